"""The package as it is released: its version, files and metadata, and the promises of docs/stability.md."""

import ast
import doctest
import inspect
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import venv
import zipfile
from importlib import import_module
from io import StringIO
from pathlib import Path
from pkgutil import resolve_name
from types import UnionType
from typing import Any, get_type_hints

import pytest
import yaml
from test_architecture import DOCS, REPOSITORY, complaint, import_file, nodes, rows_below

import hybrid_cli
from hybrid_cli import __version__, commands, storage
from hybrid_cli.cli.removed import REMOVED
from hybrid_cli.evaluation import gate
from hybrid_cli.stages.compose import compose
from hybrid_cli.storage.records import newest_format
from hybrid_cli.version import is_later

STABILITY = DOCS / "stability.md"
CHANGES = (REPOSITORY / "CHANGELOG.md").read_text("utf-8")


def test_a_state_between_releases_is_later_than_the_last_release() -> None:
    """Its changes have the heading `Unreleased`; a release has its own heading."""
    headings = re.findall(r"^## (\S+)", CHANGES, re.MULTILINE)
    assert headings[0] == ("Unreleased" if ".dev" in __version__ else __version__)
    assert is_later(__version__, headings[1])
    assert is_later("0.3.0", "0.3.0.dev0")
    assert yaml.safe_load((REPOSITORY / "CITATION.cff").read_text("utf-8"))["version"] == __version__


def test_promised_python_names_exist() -> None:
    rows = {module: re.findall(r"`(\w+)`", f"`{cell}`") for module, cell in rows_below(STABILITY, "Python names")}
    assert {*rows["hybrid_cli"]} == {*hybrid_cli.__all__}
    patterns = {"hybrid_cli.stages.NAME", "hybrid_cli.adapters.NAME", "hybrid_cli.commands"}  # of every command
    assert patterns < rows.keys()
    named = [(import_module(module), name) for module in rows.keys() - patterns for name in rows[module]]
    assert not [(module, name) for module, name in named if not hasattr(module, name)]


@pytest.mark.parametrize("package", ["", ".evaluation", ".fusion", ".retrieval", ".training"])
def test_a_package_lists_its_public_names_alone(package: str) -> None:
    module = import_module(f"hybrid_cli{package}")
    assert dir(module) == sorted(module.__all__)
    assert all(getattr(module, name) is not None for name in dir(module))
    with pytest.raises(AttributeError) as caught:
        _ = module.evaluates
    assert (caught.value.name, caught.value.obj) == ("evaluates", module)  # of which Python suggests a name


def test_the_settings_of_all_commands_are_exported() -> None:
    assert not {kind.__name__ for kind in commands.COMMANDS} - {*commands.__all__}
    assert all(hasattr(commands, name) for name in commands.__all__)


def test_options_that_are_paths_take_texts_for_type_checkers() -> None:
    """`Path` alone is the type of an annotation that subclasses declare, and of one with a text anyway."""
    plain = [
        (owner.name, node.target.id)
        for file in sorted((REPOSITORY / "hybrid_cli" / "commands").glob("*.py"))
        for owner in (node for node in nodes(file) if isinstance(node, ast.ClassDef))
        for node in owner.body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
        if re.search(r"\bPath\b", ast.unparse(node.annotation))
    ]
    assert plain == [("Validation", "dev"), ("Texts", "collection")]


MISTAKES = """
import hybrid_cli
from hybrid_cli import BM25, fuse
from hybrid_cli.commands import Fuse
from hybrid_cli.stages.search import search, search_query
hybrid_cli.open_indx
BM25(k1="a")
Fuse([1], output="b")
fuse({"a": "x.trec", "b": "y.trec"}, method=3)
search(index="a", output="b").columns
search_query(index="a", query="b").suffix
"""


def test_the_result_of_each_command_has_one_type() -> None:
    for kind in commands.COMMANDS:
        name = kind.command.split()[0].replace("-", "_")
        for function in (name, *kind.result_functions.values()):
            result = get_type_hints(getattr(import_module(f"hybrid_cli.stages.{name}"), function))["return"]
            assert result is not Any, name
            assert not isinstance(result, UnionType), name


@pytest.mark.exhaustive  # `make lint` checks the types, another test that the wheel has `py.typed`
def test_a_type_checker_knows_the_installed_package(tmp_path: Path) -> None:
    """An editable install is a path, as in pyproject.toml; a wheel has the same files."""
    venv.create(tmp_path / "env")
    (packages,) = (tmp_path / "env").glob("lib/python*/site-packages")
    (packages / "hybrid.pth").write_text(f"{REPOSITORY}\n{sysconfig.get_path('purelib')}\n")
    for name in ("README.md", "docs/python.md"):
        blocks = re.findall(r"^```python\n(.*?)^```", (REPOSITORY / name).read_text("utf-8"), re.MULTILINE | re.DOTALL)
        assert blocks
        (tmp_path / f"{Path(name).stem.lower()}_page.py").write_text("\n".join(blocks))
    (tmp_path / "mistakes.py").write_text(MISTAKES)
    unread = "[mypy-torch.*,transformers.*,scipy.*,pyarrow.*]\nfollow_imports = skip\n"  # half of the time
    (tmp_path / "mypy.ini").write_text(f"[mypy]\nstrict = True\n{unread}")
    words = [sys.executable, "-m", "mypy", "--python-executable", str(tmp_path / "env" / "bin" / "python"), "."]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)
    errors = [line for line in done.stdout.splitlines() if ": error:" in line]
    assert [line.partition(": error:")[0] for line in errors] == [f"mistakes.py:{number}" for number in range(6, 12)]


def test_the_formats_of_the_page_are_those_of_the_code() -> None:
    formats = {row[0]: row[1] for row in rows_below(STABILITY, "Formats")}
    listed = {name: int(number) for names, number in list(formats.items())[:1] for name in names.split(", ")}
    assert listed == {str(kind): newest_format(kind) for kind in storage.Kind if newest_format(kind) != storage.FORMAT}
    assert int(formats["all other kinds of artifacts"]) == storage.FORMAT
    assert int(formats["baselines (`gate`)"]) == gate.FORMAT


@pytest.mark.parametrize("words", REMOVED)
def test_a_removed_word_is_in_the_changelog(words: str) -> None:
    """As the page on stability promises; a value is named alone."""
    option, _, value = words.partition(" --")[2].partition(" ")
    assert value or (f"--{option}" if option else words) in CHANGES


def test_the_description_on_an_index_has_no_link_that_leads_nowhere() -> None:
    module = import_file(REPOSITORY / "setup.py")
    page = "# A\n\n![page](docs/page.png)\n\nSee [a](docs/index.md#a), [b](https://example.org) and `x[0](1)`.\n"
    assert module.without_relative_links(page) == "# A\n\nSee a, [b](https://example.org) and `x[0](1)`.\n"
    assert not re.findall(r"\]\((?!\w+:)", re.sub(r"```.*?```", "", module.description(), flags=re.DOTALL))


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, set[str]]:
    """A folder with the files of the repository, and their names."""
    words = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    done = subprocess.run(words, cwd=REPOSITORY, capture_output=True, text=True)
    names = {name for name in done.stdout.splitlines() if (REPOSITORY / name).is_file()}
    if not names:
        pytest.skip("not in a repository")
    folder = tmp_path_factory.mktemp("source")
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(REPOSITORY / name, folder / name)
    return folder, names


def build(folder: Path, kind: str) -> Path:
    code = f"from setuptools import build_meta; print(build_meta.build_{kind}('.'))"
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=True)
    return folder / done.stdout.splitlines()[-1]


@pytest.mark.heavy
def test_the_source_distribution_has_all_files_and_makes_a_wheel_with_those_of_the_package(
    source: tuple[Path, set[str]], tmp_path: Path
) -> None:
    folder, names = source
    with tarfile.open(build(folder, "sdist")) as archive:
        archive.extractall(tmp_path, filter="data")
    (unpacked,) = tmp_path.iterdir()
    assert not {name for name in names if not (unpacked / name).is_file()}
    with zipfile.ZipFile(build(unpacked, "wheel")) as wheel:
        inside = {name for name in wheel.namelist() if ".dist-info/" not in name}
        metadata = next(wheel.read(name).decode() for name in wheel.namelist() if name.endswith("/METADATA"))
    assert inside == {name for name in names if name.startswith("hybrid_cli/")}
    assert f"\nVersion: {__version__}\n" in metadata
    assert import_file(REPOSITORY / "setup.py").description() in metadata


GITHUB = REPOSITORY / ".github"


def test_the_commands_of_workflows_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (REPOSITORY / "Makefile").read_text("utf-8"), re.MULTILINE))
    workflows = [yaml.safe_load(path.read_text("utf-8")) for path in (GITHUB / "workflows").glob("*.yml")]
    assert {workflow["name"] for workflow in workflows} == {"check", "release"}
    steps = [step for workflow in workflows for job in workflow["jobs"].values() for step in job["steps"]]
    lines = [line for step in steps for line in step.get("run", "").splitlines()]
    lines += [line for line in (REPOSITORY / ".ci" / "run").read_text("utf-8").splitlines() if line.startswith("make ")]
    assert {"make lint", "make test", "make docs"} <= {*lines}
    for line in lines:
        assert line.split()[0] in ("make", "test", ".venv/bin/hybrid"), line
        assert line.split()[1] in targets or not line.startswith("make "), line
        assert not [call for call in re.findall(r"\bhybrid [a-z -]+", line) if complaint(call.strip())], line


def test_the_versions_of_python_that_are_tested_are_those_of_the_package() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text("utf-8"))["project"]
    versions = [line.rpartition(" ")[2] for line in project["classifiers"] if re.search(r":: 3\.\d+$", line)]
    jobs = yaml.safe_load((GITHUB / "workflows" / "check.yml").read_text("utf-8"))["jobs"]
    assert jobs["test"]["strategy"]["matrix"]["python"] == versions
    assert project["requires-python"] == f">={versions[0]}"


@pytest.mark.parametrize("name", ["fault", "proposal"])
def test_an_issue_form_asks_for_what_exists(name: str) -> None:
    form = yaml.safe_load((GITHUB / "ISSUE_TEMPLATE" / f"{name}.yml").read_text("utf-8"))
    assert {"name", "description", "body"} < form.keys()
    assert len({field["id"] for field in form["body"]}) == len(form["body"])
    calls = [call for field in form["body"] for call in re.findall(r"`(hybrid [^`]+)`", field["attributes"]["label"])]
    assert not [call for call in calls if complaint(call)]


PUBLIC = [f"hybrid_cli.{name}" for name in hybrid_cli.__all__ if name != "__version__"]
PUBLIC += ["hybrid_cli.evaluation.evaluate_queries", "hybrid_cli.lexical.analyze"]
PUBLIC += ["hybrid_cli.training.Callback"]


@pytest.fixture(scope="module")
def artifacts(tiny: Path, tiny_runs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder whose `out` has indexes, a run and a retriever, with a collection in `data/rich`."""
    folder = tmp_path_factory.mktemp("documented")
    for name in ("out", "data"):
        (folder / name).mkdir()
    (folder / "data" / "rich").symlink_to(tiny)
    for path in tiny_runs.iterdir():
        (folder / "out" / path.name).symlink_to(path)
    compose([tiny_runs / "bm25", tiny_runs / "dense"], output=folder / "out" / "retriever")
    return folder


@pytest.mark.parametrize("name", PUBLIC)
def test_the_example_of_a_public_name_runs(name: str, artifacts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(artifacts)
    examples = doctest.DocTestParser().get_doctest(inspect.getdoc(resolve_name(name)) or "", {}, name, None, None)
    assert examples.examples
    printed = StringIO()
    assert doctest.DocTestRunner().run(examples, out=printed.write).failed == 0, printed.getvalue()


METHODS = ["hybrid_cli.BM25.index", "hybrid_cli.Dense.index", "hybrid_cli.Index.search", "hybrid_cli.Retriever.of"]


@pytest.mark.parametrize("name", [*PUBLIC, *METHODS])
def test_each_parameter_is_explained_with_its_default(name: str) -> None:
    public = resolve_name(name)
    rows = re.findall(r"^    ([\w, ]+): (.*(?:\n {8}.*)*)", inspect.getdoc(public) or "", re.MULTILINE)
    texts = {parameter: text for names, text in rows for parameter in names.split(", ")}  # of Args and Attributes
    for parameter in inspect.signature(public).parameters.values():
        values = parameter.default if isinstance(parameter.default, tuple) else (parameter.default,)
        for value in values if parameter.default not in (parameter.empty, None, "") else ():
            shown = f"{value:g}" if isinstance(value, float) else str(value)
            assert re.search(rf"(?<!\w){shown}(?!\w)", texts[parameter.name]), (parameter.name, value)
        assert parameter.name == "self" or texts[parameter.name]
