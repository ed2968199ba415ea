"""The documentation against the code: commands, examples, links, schemas, tables of methods."""

import importlib.util
import re
import shlex
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, get_args

import polars as pl
import pyarrow as pa
import pytest
import typer
import yaml

from hybrid_cli import storage
from hybrid_cli.cli.app import app
from hybrid_cli.commands import COMMANDS
from hybrid_cli.errors import InputError
from hybrid_cli.settings import Settings

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
STUDIES = ROOT / "studies"
GUIDE = sorted(DOCS.rglob("*.md"))
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *GUIDE, *sorted(STUDIES.glob("*.md"))]
LINKED = [*PAGES, ROOT / "CHANGELOG.md", ROOT / "SECURITY.md"]
SCRIPTS = sorted((ROOT / "examples").glob("*.sh"))
_UsageError: Any = typer.BadParameter.__base__  # click's class; some versions of typer bundle click
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def named(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@pytest.fixture(scope="module")
def reference() -> dict[str, str]:
    pages: dict[str, str] = import_file(DOCS / "write_commands.py").pages()
    return pages


def import_file(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_reference_has_a_page_for_every_command_with_every_option(reference: dict[str, str]) -> None:
    names = {kind: f"{kind.command.replace(' ', '-')}.md" for kind in COMMANDS}
    assert set(reference) == {"index.md", *names.values()}
    for kind, name in names.items():
        assert f"]({name})" in reference["index.md"]
        assert reference[name].startswith(f"# hybrid {kind.command}\n")
        options = {option for each in parameters(kind) if each.name in kind.declared() for option in each.opts}
        assert not {option for option in options - {"--overwrite"} if option not in reference[name]}


def cells(row: str) -> list[str]:
    return [cell.strip() for cell in row.strip("|").split("|")]


def parameters(kind: type[Settings]) -> list[Any]:
    command = program()
    for word in kind.command.split():
        command = command.get_command(None, word)
    return [each for each in command.params if each.param_type_name == "option"]


def test_the_guide_names_the_file_of_every_option() -> None:
    guide = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    files = {f"`{kind.__module__.rpartition('.')[2]}.py`" for kind in COMMANDS}
    assert not {file for file in files if file not in guide}


@pytest.mark.parametrize("kind", COMMANDS, ids=lambda kind: kind.command)
def test_the_examples_of_the_help_are_valid(kind: type[Settings]) -> None:
    assert not {example: found for example in kind.examples if (found := complaint(example))}


@cache
def program() -> Any:
    return typer.main.get_command(app)


def complaint(line: str) -> str:
    """Return why a command line would be refused before any file is read; empty if it is valid."""
    words = shlex.split(line)[1:]
    command = program()
    while hasattr(command, "commands") and words and not words[0].startswith("-"):
        if words[0] not in command.list_commands(None):
            return f"no command {words[0]}"
        command = command.get_command(None, words.pop(0))
    if {"--help", "--version"} & set(words):
        return ""
    try:
        context = command.make_context("hybrid", words)
        kind: type[Settings] = command.settings
        kind(**{name: value for name, value in context.params.items() if name in kind.declared() and value})
    except (_UsageError, InputError, TypeError) as refused:
        return f"{type(refused).__name__}: {refused}"
    return ""


def shell_lines(text: str) -> Iterator[str]:
    """Find each `hybrid ...` in shell code, with continued lines joined and the first value of variables and loops."""
    text = re.sub(r"\\\n[ \t]*", " ", text)
    values = dict(re.findall(r"^\s*(\w+)=\$\{\w+:-([^}]*)\}", text, re.MULTILINE))
    for line in re.findall(r"^(?:\w+=[^\s$]+ ?)+$", text, re.MULTILINE):
        values |= dict(word.split("=", 1) for word in line.split())
    values |= dict(re.findall(r"\bfor (\w+) in ([^\s;$]+)", text))
    for line in text.splitlines():
        line = re.sub(r"\$\{?(\w+)\}?", lambda found: values.get(found[1], found[0]), line)
        words = shlex.shlex(line, posix=True, punctuation_chars=True)
        words.whitespace_split = True
        yield from _calls(list(words))


def _calls(words: list[str]) -> Iterator[str]:
    begin = None
    for place, word in enumerate([*words, ";"]):
        if begin is not None and (set(word) <= set(";|&()<>") or word in ("2>", "done")):
            yield shlex.join(words[begin:place])
            begin = None
        if (
            begin is None
            and word == "hybrid"
            and (place == 0 or words[place - 1] in ("do", "then", "time", ";", "&&", "|"))
        ):
            begin = place


def texts(value: Any) -> Iterator[str]:
    if isinstance(value, dict | list):
        for each in value.values() if isinstance(value, dict) else value:
            yield from texts(each)
    elif isinstance(value, str):
        yield value


def typed() -> Iterator[tuple[str, str]]:
    for page in PAGES:
        for language, block in _FENCE.findall(page.read_text("utf-8")):
            if language in ("sh", "bash", "console"):
                yield from ((named(page), line) for line in shell_lines(block.replace("\n$ ", "\n").removeprefix("$ ")))
            if language == "yaml":
                yield from ((named(page), text) for text in texts(yaml.safe_load(block)) if text.startswith("hybrid "))
    for script in SCRIPTS:
        yield from ((named(script), line) for line in shell_lines(script.read_text("utf-8")))


def test_shell_lines_are_found_in_loops_and_after_continuations() -> None:
    text = "K=${K:-5}\nfor m in rrf minmax; do hybrid fuse a b \\\n  --method $m -k $K; done\n  hybrid doctor | head"
    assert list(shell_lines(text)) == ["hybrid fuse a b --method rrf -k 5", "hybrid doctor"]


def test_every_command_line_in_the_documentation_parses() -> None:
    wrong = [f"{where}: {line}: {found}" for where, line in typed() if (found := complaint(line))]
    assert not wrong


def test_a_misspelled_command_line_does_not_parse() -> None:
    assert complaint("hybrid evaluat data run")
    assert complaint("hybrid evaluate data run --mesures MRR@10")
    assert complaint("hybrid evaluate data run --format tabel")


def misnamed(code: str, options: dict[str, set[str]]) -> bool:
    """Test whether inline code (`hybrid fuse --missing exact`, `fuse --missing`) has an unknown command or option."""
    words = [word for word in re.split(r"[\s,]+", code.removeprefix("hybrid ")) if word != "prepare"]
    stage = next((name for name in options if words and name.split()[-1] == words[0]), "")
    if code.startswith("hybrid ") and not stage and words and re.match("[a-z]", words[0]):
        return True
    if not stage and not code.startswith(("hybrid ", "-")):
        return False
    known = (options[stage] if stage else set().union(*options.values())) | {"--help", "--version"}
    return not {re.split("[/=]", word)[0] for word in words if word.startswith("--")} <= known


def test_every_command_and_option_named_in_prose_exists() -> None:
    from hybrid_cli.cli.options import spellings

    everywhere = {
        "--config",
        "--quiet",
        "--verbose",
        "--log-file",
        "--plugin",
        "--debug",
        "--dry-run",
        "--help",
        "--version",
    }
    everywhere |= {"--install-completion", "--show-completion"}
    options = {f"hybrid {kind.command}": {*spellings(kind), *everywhere} for kind in COMMANDS}
    assert misnamed("hybrid fues --missing exact", options)
    assert misnamed("fuse --mising exact", options)
    assert not [
        f"{named(page)}: {code}"
        for page in PAGES
        for code in re.findall(r"`([^`\n]+)`", _FENCE.sub("", page.read_text("utf-8")))
        if misnamed(code, options)
    ]


def _anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", _FENCE.sub("", page.read_text("utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_relative_links_have_targets() -> None:
    broken = []
    for page in LINKED:
        for target in re.findall(r"\]\((?!\w+:)([^)\s]+)\)", _FENCE.sub("", page.read_text("utf-8"))):
            path, _, anchor = target.partition("#")
            goal = (page.parent / path).resolve() if path else page
            if not goal.exists() or (anchor and goal.suffix == ".md" and anchor not in _anchors(goal)):
                broken.append(f"{named(page)}: {target}")
    assert not broken


@pytest.mark.parametrize("index", [DOCS / "index.md", STUDIES / "README.md"], ids=named)
def test_an_index_links_every_page_of_its_folder(index: Path) -> None:
    text = index.read_text("utf-8")
    pages = [page.relative_to(index.parent).as_posix() for page in index.parent.rglob("*.md") if page != index]
    assert not [page for page in pages if f"({page}" not in text]


def test_the_navigation_of_the_site_has_every_page(reference: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(DOCS)
    listed = set(re.findall(r"'([^']+\.md)'", str(import_module("build").navigation())))
    commands = {f"docs/commands/{name}" for name in reference}
    assert listed == {named(page) for page in LINKED} | commands


def test_the_readme_begins_with_commands_and_has_at_most_120_lines() -> None:
    lines = (ROOT / "README.md").read_text("utf-8").splitlines()
    assert any(line.startswith("hybrid ") for line in lines[:15])
    assert len(lines) <= 120


def test_the_table_of_stages_is_complete() -> None:
    rows = [line for line in (DOCS / "pipeline.md").read_text("utf-8").splitlines() if line.startswith("| `")]
    named = {name for row in rows for name in re.findall(r"`([a-z0-9-]+)`", row.split("|")[1])}
    assert not {kind.command.split()[0] for kind in COMMANDS} - named


def test_the_architecture_page_names_every_folder_of_the_code() -> None:
    text = (DOCS / "architecture.md").read_text("utf-8")
    folders = {path.parent.name for path in (ROOT / "hybrid_cli").glob("*/__init__.py")}
    assert not {name for name in folders if f"`{name}`" not in text}


def test_the_quickstart_is_the_script_that_the_tests_run() -> None:
    page = (DOCS / "quickstart.md").read_text("utf-8")
    blocks = [line for language, block in _FENCE.findall(page) if language == "sh" for line in block.splitlines()]
    script = (ROOT / "examples" / "quickstart.sh").read_text("utf-8").splitlines()
    assert [line for line in script if line and not line.startswith(("#", "set "))] == blocks


def test_clear_by_hand_is_the_script_that_the_tests_run() -> None:
    blocks = _FENCE.findall((DOCS / "methods" / "clear.md").read_text("utf-8"))
    block = next(text for language, text in blocks if language == "sh").splitlines()
    script = (ROOT / "examples" / "clear_by_hand.sh").read_text("utf-8")
    assert block[1:] == script.split("\n\n", 1)[1].splitlines()


def rows_below(page: Path, heading: str) -> list[list[str]]:
    """Return the cells of the first table below a heading, without the header row."""
    text = page.read_text("utf-8").split(f"\n## {heading}\n", 1)[1].split("\n## ", 1)[0]
    lines = next(part for part in text.strip().split("\n\n") if part.startswith("|")).splitlines()
    return [[cell.strip().strip("`") for cell in line[1:-1].split("|")] for line in lines[2:]]


def _columns(schema: pa.Schema | pa.StructType, prefix: str = "") -> Iterator[list[str]]:
    for column in schema:
        if pa.types.is_list(column.type) and pa.types.is_struct(column.type.value_type):
            yield [f"{prefix}{column.name}", "list of records"]
            yield from _columns(column.type.value_type, f"{prefix}{column.name}[].")
        else:
            listed = pa.types.is_list(column.type)
            yield [f"{prefix}{column.name}", f"list of {column.type.value_type}" if listed else str(column.type)]


@pytest.mark.parametrize("kind", storage.SCHEMAS)
def test_the_artifacts_page_has_every_schema(kind: storage.Kind) -> None:
    rows = rows_below(DOCS / "artifacts.md", str(kind))
    assert [row[:2] for row in rows] == list(_columns(storage.SCHEMAS[kind]))


def test_the_artifacts_page_names_every_kind() -> None:
    text = (DOCS / "artifacts.md").read_text("utf-8")
    assert not [kind for kind in storage.Kind if f"| {kind} |" not in text]


def test_the_fusion_page_has_every_method_and_rule() -> None:
    from hybrid_cli.fusion.methods import METHODS
    from hybrid_cli.fusion.options import Missing, Normalization

    rows = rows_below(DOCS / "fusion.md", "Methods")
    assert [row[:3] for row in rows] == [[name, m.normalization, m.missing] for name, m in METHODS.items()]
    rules = rows_below(DOCS / "fusion.md", "Documents missing from a list")
    assert [row[0] for row in rules] == list(get_args(Missing))
    named = " ".join(row[0] for row in rows_below(DOCS / "fusion.md", "Edge cases of normalization"))
    assert set(re.findall(r"[\w-]+", named)) >= set(get_args(Normalization)) - {"none"}


@pytest.mark.parametrize("row", rows_below(DOCS / "fusion.md", "An example"), ids="-".join)
def test_the_fusion_example_equals_the_computed_scores(row: list[Any]) -> None:
    from hybrid_cli.fusion import lists
    from hybrid_cli.fusion.methods import FusionRecipe

    method, missing, *printed = row
    runs = [{"x": 10.0, "y": 8.0, "z": 5.0}, {"y": 3.0, "w": 2.5, "x": 1.0}]
    true = [{"w": 4.0}, {"z": 0.5}]
    tables = [
        pl.DataFrame({"qid": "q", "docid": list(run), "rank": range(1, 4), "score": list(run.values())}) for run in runs
    ]
    side_by_side = lists.Lists.of(tables)
    blocks = list(side_by_side.blocks())
    if missing == "exact":
        scorers = [lambda pairs, known=known: pl.Series([known[docid] for docid in pairs["docid"]]) for known in true]
        blocks = list(lists.complete(blocks, side_by_side.qids, scorers))
    fused = pl.concat(lists.fuse_blocks(blocks, side_by_side.qids, FusionRecipe(method, (1.0, 1.0), missing), 10))
    found = dict(fused.select("docid", "score").iter_rows())
    assert printed == [f"{found[docid]:.4f}" if docid in found else "-" for docid in "wxyz"]


@pytest.mark.parametrize("row", rows_below(DOCS / "evaluation.md", "Measures"), ids=lambda row: row[0])
def test_every_documented_measure_is_accepted(row: list[str]) -> None:
    from hybrid_cli.evaluation.measures import parse_measures

    names = [re.sub("@k$", "@10", name) for cell in row[:2] for name in re.findall(r"[\w@.-]+", cell)]
    found = parse_measures(names)
    assert len({measure.family for measure in found}) == 1
    assert found[0].family == names[0].partition("@")[0]


def test_pages_name_every_benchmark() -> None:
    pages = [*STUDIES.glob("*.md"), *(ROOT / "docs").glob("*.md")]
    text = "".join(path.read_text("utf-8") for path in pages)
    assert not [path.name for path in (ROOT / "benchmarks").glob("*.py") if f"benchmarks/{path.name}" not in text]


def test_every_guarantee_names_a_test() -> None:
    text = re.sub(r"\n## Measured\n.*?(?=\n## |$)", "", (DOCS / "guarantees.md").read_text("utf-8"), flags=re.DOTALL)
    rows = [
        line for line in text.splitlines() if line.startswith("| ") and not line.startswith(("| Promise", "| Source"))
    ]
    assert len(rows) > 30
    for row in rows:
        named = re.findall(r"`(tests/[^`]+)`", row.rstrip(" |").rpartition(" | ")[2])
        assert named, row
        assert [name for name in named if not is_test(name)] == [], row


def is_test(name: str) -> bool:
    """Return whether there is a file of tests, or a test in it, as in `tests/test_a.py::test_b`."""
    path, _, function = name.partition("::")
    file = ROOT / path
    return file.is_file() and (not function or f"\ndef {function}(" in file.read_text("utf-8"))
