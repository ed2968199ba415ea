"""Build the documentation site: guide, command reference, studies, README and CONTRIBUTING, in `build/site`.

python docs/build.py

The pages are copied to `build/pages` with the folders of the repository, so that their links hold on the site too. The
navigation has the order of docs/index.md and studies/README.md. A broken link fails the build.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import write_commands

ROOT = Path(__file__).parent.parent
BUILD = ROOT / "build"
PAGES = BUILD / "pages"
PROJECT = ("CONTRIBUTING.md", "CHANGELOG.md", "CODE_OF_CONDUCT.md", "SECURITY.md")
COPIED = ("README.md", *PROJECT, "CITATION.cff", "LICENSE", "docs", "studies", "examples")
_SECTION, _LINK = re.compile(r"^## ", re.MULTILINE), re.compile(r"\]\(((?:\w|[-./])+\.md)\)")


def copy_pages() -> None:
    """Copy the stored pages, with the files that they link, and write the command reference next to them."""
    shutil.rmtree(PAGES, ignore_errors=True)
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, PAGES / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            PAGES.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, PAGES / name)
    write_commands.write(PAGES / "docs" / "commands")


def sections(index: str) -> Iterator[dict[str, list[str]]]:
    """Yield the pages of its folder that an index links, in its order, below its headings."""
    folder = (ROOT / index).parent
    for section in _SECTION.split((ROOT / index).read_text("utf-8")):
        links = [(folder / link).resolve() for link in _LINK.findall(section)]
        pages = [page.relative_to(ROOT).as_posix() for page in links if page.is_relative_to(folder)]
        if pages:
            yield {section.partition("\n")[0].removeprefix("# "): list(dict.fromkeys(pages))}


def navigation() -> list[object]:
    """Return the entries of the site's navigation."""
    commands = [f"docs/commands/{name}" for name in write_commands.pages()]
    studies = [page for section in sections("studies/README.md") for pages in section.values() for page in pages]
    return [
        {"Home": "README.md"},
        {"Guide": ["docs/index.md", *sections("docs/index.md")]},
        {"Commands": commands},
        {"Studies": ["studies/README.md", *dict.fromkeys(studies)]},
        {"Project": [*PROJECT]},
    ]


def main() -> int:
    """Build the site and return the exit code of the generator."""
    copy_pages()
    theme = {"font": False, "language": "en"}  # no request to a server of fonts
    settings = {"site_name": "hybrid", "docs_dir": "pages", "site_dir": "site", "nav": navigation(), "theme": theme}
    (BUILD / "mkdocs.yml").write_text(json.dumps(settings, indent=2), "utf-8")  # JSON is YAML
    call = [sys.executable, "-m", "zensical", "build", "--strict", "--clean", "-f", BUILD / "mkdocs.yml"]
    return subprocess.run(call, cwd=BUILD).returncode


if __name__ == "__main__":
    sys.exit(main())
