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
COPIED = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "LICENSE", "docs", "studies", "examples")
_LINK = re.compile(r"\]\(((?:\w|[-./])+\.md)\)")


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


def linked(index: str) -> Iterator[str]:
    """Yield the pages that an index links, in its order, by their paths below the root."""
    text = (ROOT / index).read_text("utf-8")
    for link in dict.fromkeys(_LINK.findall(text)):
        page = (ROOT / index).parent / link
        yield page.resolve().relative_to(ROOT).as_posix()


def navigation() -> list[object]:
    """Return the entries of the site's navigation."""
    commands = [f"docs/commands/{name}" for name in write_commands.pages()]
    guide = [page for page in linked("docs/index.md") if page.startswith("docs/")]
    studies = [page for page in linked("studies/README.md") if page.startswith("studies/")]
    return [
        {"Home": "README.md"},
        {"Guide": ["docs/index.md", *guide]},
        {"Commands": commands},
        {"Studies": ["studies/README.md", *studies]},
        {"Project": ["CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md"]},
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
