"""The command line and the console: help, settings, streams, exit codes, old options; tables, progress and notes."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from command import Done, Refusal, hybrid, ran, refusal, refused
from small_artifacts import write_folder
from tiny_collection import write_lines

from hybrid_cli import __version__, artifacts, console
from hybrid_cli.cli import removed, run
from hybrid_cli.commands import COMMANDS, Evaluate
from hybrid_cli.console import Notice
from hybrid_cli.settings import Overwrites, Settings
from hybrid_cli.storage import Kind

STAGES = ["auto", "prepare", "split", "perturb", "index-bm25", "mine-negatives", "label", "pretrain", "train-dense"]
STAGES += ["train-lambda", "distill-lite", "train-sparse", "train-reranker", "convert-checkpoint", "combine"]
STAGES += ["encode", "search", "judge", "fuse", "compose", "update", "serve", "rerank", "concat-runs", "evaluate"]
STAGES += ["sweep", "gate", "report", "inspect", "export", "doctor"]
Write = Callable[[str], Path]
ALIASES = "x0: &x0 [a, a]\n" + "".join(f"x{n}: &x{n} [*x{n - 1}, *x{n - 1}]\n" for n in range(1, 40))  # 2**40 values
EVERYWHERE = ("--config", "--quiet", "--verbose", "--log-file", "--debug")


def shell(*arguments: object, **settings: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "hybrid_cli", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, **settings)


def plain(text: str) -> str:
    return re.sub(r"\s+", " ", re.sub(r"\x1b\[[0-9;]*m|[│╭╮╰╯─]", " ", text))


@pytest.fixture(scope="module")
def judged(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    run = pl.read_parquet(tiny / "qrels.test.parquet").select("qid", "docid", rank="relevance", score="relevance")
    path = tmp_path_factory.mktemp("runs") / "oracle.parquet"
    output = artifacts.open_output(path, Kind.RUN, "test", inputs={}, options={})
    output.write([run.with_columns(pl.col("rank").rank("ordinal", descending=True).over("qid")).to_arrow()])
    return [tiny, path]


def test_help_starts_with_five_commands_and_lists_all_in_the_order_of_a_pipeline() -> None:
    panels = [plain(panel).split() for panel in hybrid("--help").out.split("╭─")]
    listed = [[name for name in STAGES if name in panel] for panel in panels if "--version" not in panel]
    first, *others = [names for names in listed if names]
    assert first == ["auto", "search", "judge", "serve", "evaluate"]
    assert sorted(name for names in others for name in names if name not in first) == sorted({*STAGES} - {*first})
    assert list(dict.fromkeys(kind.command.split()[0] for kind in COMMANDS)) == STAGES


def test_help_shows_examples_before_options_and_required_options_first() -> None:
    text = plain(hybrid("search", "--help").out)
    places = [text.index(part) for part in ("Usage:", "Example", "--output -o", "--index PATH", "--query TEXT")]
    assert places == sorted(places)


def test_help_of_a_command_can_be_asked_behind_a_plugin() -> None:
    plugin = Path(__file__).parent.parent / "examples" / "engines" / "vespa.py"
    assert hybrid("--plugin", plugin, "help", "gate").out == hybrid("gate", "--help").out


@pytest.mark.parametrize(("words", "meant"), [(["help", "search"], ["search", "--help"]), (["help"], ["--help"])])
def test_help_of_a_command_can_be_asked_in_two_ways(words: list[str], meant: list[str]) -> None:
    assert hybrid(*words) == hybrid(*meant)


def test_the_version_has_a_short_option() -> None:
    assert hybrid("-V").out == f"{__version__}\n"


@pytest.mark.parametrize(
    ("words", "similar"),
    [(["serach"], "search"), (["encoed", "x"], "encode"), (["prepare", "bier"], "prepare beir"), (["qqq"], None)],
)
def test_an_unknown_command_is_refused_with_the_most_similar_one(words: list[str], similar: str | None) -> None:
    error = hybrid(*words)
    assert (error.problem, error.fields["similar"]) == ("no-such-command", similar)


@pytest.mark.parametrize(
    ("words", "option"),
    [
        (["search", "data", "--index", "a", "b"], "index"),
        (["search", "data", "--index", "a", "--query", "wind", "farms"], "query"),
        (["search", "data", "--index", "a", "--interactive", "b"], "interactive"),
        (["search", "data", "wind farms"], "index"),
    ],
)
def test_an_unexpected_argument_is_refused_with_the_option_that_it_may_belong_to(
    words: list[str], option: str | None
) -> None:
    error = hybrid(*words)
    assert (error.problem, error.fields.get("option")) == ("unexpected-argument", option)


def test_a_word_of_an_unquoted_query_is_not_only_a_missing_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_lines(tmp_path / "tiny.jsonl", {"id": "d", "text": "two words"})
    ran("prepare", "files", "tiny.jsonl", "--output", "data")
    ran("index-bm25", "data", "--no-lucene", "--output", "bm25")
    error = hybrid("search", "--index", "bm25", "--query", "two", "words")
    assert error.is_problem("no-such-file", path="words", option="query")


@pytest.mark.parametrize(
    ("line", "proposed"),
    [
        ("hybrid se", ["search", "serve"]),
        ("hybrid evaluate run --format l", ["latex"]),
        ("hybrid index-bm25 data --lan", ["--language"]),
        ("hybrid perturb data --attack lite,word-d", ["lite,word-deletion"]),
        ("hybrid fuse a b --method rr", ["rrf"]),
    ],
)
def test_the_shell_completes_commands_options_and_values(line: str, proposed: list[str]) -> None:
    count = len(line.split()) - 1
    asked = {"_HYBRID_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(count)}
    assert shell(env=os.environ | asked).stdout.split() == proposed


@pytest.mark.parametrize("kind", COMMANDS, ids=lambda kind: kind.command)
def test_every_command_has_help_with_an_example(kind: type[Settings]) -> None:
    done = hybrid(*kind.command.split(), "--help")
    text = plain(done.out)
    assert (done.code, done.err) == (0, "")
    assert text.startswith(f" Usage: hybrid {kind.command} ")
    assert not re.search("<(bool|str|list)|default: [(]", done.out)
    assert re.search(rf"Examples?: .*hybrid {kind.command}\b", text)
    writing = ("--overwrite", "--dry-run") if issubclass(kind, Overwrites) else ()
    assert not [option for option in (*EVERYWHERE, *writing) if option not in text]


@pytest.fixture
def config(tmp_path: Path) -> Write:
    def write(text: str) -> Path:
        path = tmp_path / "settings.yaml"
        path.write_text(text)
        return path

    return write


def measured(done: Done) -> set[str]:
    return {line.split(",")[1] for line in done.out.splitlines()[1:]}


def test_the_command_line_overrides_the_config_file(judged: list[Path], config: Write) -> None:
    path = config("format: csv\nsplit: test\nmeasure: R@3\n")
    assert measured(hybrid("evaluate", *judged, "--config", path)) == {"R@3"}
    assert measured(hybrid("evaluate", *judged, "--config", path, "--measure", "P@1")) == {"P@1"}
    path = config("--format: csv\nsplit: test\nm: [R@3, P@1]\nrelevance_level: 2\nremove-query: true\nquiet: true\n")
    done = hybrid("evaluate", *judged, "--config", path)
    assert (measured(done), ",2," in done.out, done.err) == ({"R@3", "P@1"}, True, "")
    path = config(f"inputs: [{judged[0]}, {judged[1]}]\nsplit: test\nformat: csv\n")
    assert measured(hybrid("evaluate", "--config", path)) == set(Evaluate.measure)
    assert hybrid("evaluate", *judged, "--config", "nothing.yaml").is_problem("no-such-file", path="nothing.yaml")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("depth: 3\nmeasure: R@3\n", refusal("no-such-option", path="settings.yaml", option="depth")),
        ("no-remove-query: true\n", refusal("no-such-option", option="no_remove_query")),
        ("- csv\n", refusal("not-yaml", path="settings.yaml")),
        ("format: [\n", refusal("not-yaml", path="settings.yaml")),
        (
            "measure: R@3\nformat: csv\nmeasure: R@4\n",
            refusal("repeated-option", path="settings.yaml", line=3, option="measure"),
        ),
        ("measure: R@3\nm: R@4\n", refusal("repeated-option", path="settings.yaml", option="m")),
        ("log-file: a\nlog_file: b\n", refusal("repeated-option", path="settings.yaml", line=2, option="log_file")),
        ("measure: {a: 1, b: 2, a: 3}\n", refusal("repeated-option", path="settings.yaml", line=1, option="a")),
        ("measure: &m [R@3]\nformat: *m\n", refusal("not-yaml", path="settings.yaml", line=2)),
        (ALIASES, refusal("not-yaml", path="settings.yaml", line=2)),
        ("relevance-level: 0x1\n", refusal("not-a-number", option="relevance_level", value="0x1")),
        ("relevance-level: 1:30\n", refusal("not-a-number", option="relevance_level", value="1:30")),
        ("split: 0012\n", refusal("no-such-split", role="qrels", split="0012")),
        ("split: 2020-01-01 00:00:00\n", refusal("no-such-split", role="qrels", split="2020-01-01 00:00:00")),
        ("split: no\n", refusal("not-a-text", option="split")),
    ],
)
def test_an_invalid_config_file_is_refused(
    judged: list[Path], config: Write, text: str, problem: str | Refusal
) -> None:
    done = hybrid("evaluate", *judged, "--config", config(text))
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert done.is_problem(problem), done.err


def test_a_dry_run_prints_the_settings_and_writes_nothing(judged: list[Path], tmp_path: Path) -> None:
    output = tmp_path / "deep" / "values.parquet"
    done = hybrid("evaluate", *judged, "--split", "test", "--measure", "P@1", "--output", output, "--dry-run")
    settings = dict(line.split(maxsplit=1) for line in done.out.splitlines() if not line.startswith("run "))
    assert (done.code, done.err) == (0, "")
    assert settings["output"] == f"{output} (would be written)"
    assert settings["qrels"] == f"{judged[0] / 'qrels.test.parquet'} (qrels)"
    assert settings["measures"] == "['P@1']"
    assert not list(tmp_path.iterdir())


def test_a_dry_run_reports_an_up_to_date_output_and_checks_the_options(judged: list[Path], tmp_path: Path) -> None:
    output = tmp_path / "values.parquet"
    command = ["evaluate", *judged, "--split", "test", "--measure", "P@1", "--output", output]
    ran(*command)
    before = output.read_bytes()
    assert f"{output} (up to date)" in hybrid(*command, "--dry-run").out
    done = hybrid(*command, "--relevance-level", 2, "--dry-run")
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert done.is_problem("output-differs", options=["relevance_level"]), done.err
    assert output.read_bytes() == before


def test_results_are_on_stdout_and_notes_on_stderr(judged: list[Path]) -> None:
    done = hybrid("evaluate", *judged, "--split", "test", "--format", "csv")
    assert done.out.startswith("run,measure,mean")
    assert done.says("short-lists")
    assert all(notice.message in done.err for notice in done.notices.heard)
    assert hybrid("evaluate", *judged, "--split", "test", "--format", "csv", "--quiet")[:3] == (0, done.out, "")


def test_debug_prints_the_traceback_with_the_same_message_and_exit_code(judged: list[Path]) -> None:
    command = ["evaluate", *judged, "--split", "nowhere"]
    brief, long = hybrid(*command), hybrid(*command, "--debug")
    assert brief.code == long.code == 2
    assert long.err.endswith(brief.err)
    assert "Traceback" in long.err
    assert "in qrels_path" in long.err, "the place in the code"
    assert "Traceback" not in brief.err


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["evaluate", "--no-such-option"], refusal("no-such-option", option="no_such_option")),
        (["evaluate"], refusal("missing-option", option="inputs")),
        (["evaluat"], refusal("no-such-command", similar="evaluate")),
        (["encode", "x", "--output", "--overwrite"], refusal("missing-value", option="output")),
    ],
)
def test_usage_errors_are_one_line_and_exit_2(workdir: Path, arguments: list[str], problem: str | Refusal) -> None:
    refused(*arguments, problem=problem)


@pytest.mark.parametrize(
    "error", [KeyError("nothing"), EOFError("no data left"), MemoryError(), RuntimeError("std::bad_alloc")]
)
def test_a_bug_and_a_failed_allocation_are_reported_in_one_line_and_exit_1(
    judged: list[Path], monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    from hybrid_cli.reporting import tables

    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(tables, "show", fail)
    command = ["evaluate", *judged, "--split", "test", "--quiet"]
    done = hybrid(*command)
    assert (done.code, done.out, done.err.strip().count("\n")) == (1, "", 0)
    assert done.is_problem("no-memory" if isinstance(error, MemoryError | RuntimeError) else "bug")
    assert "Traceback" in hybrid(*command, "--debug").err


@pytest.mark.parametrize("reader", ["head -n 1", "true"])
def test_a_closed_pipe_is_not_an_error(judged: list[Path], reader: str) -> None:
    command = f"{sys.executable} -m hybrid_cli inspect --format json '{judged[1]}' | {reader}"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    assert done.stdout == ("{\n" if reader.startswith("head") else "")


def test_the_entry_point_runs_one_command() -> None:
    from importlib.metadata import entry_points

    (program,) = entry_points(group="console_scripts", name="hybrid")
    assert program.load() is run


@pytest.mark.parametrize(("given", "expected"), [({}, "PASSIVE"), ({"OMP_WAIT_POLICY": "ACTIVE"}, "ACTIVE")])
def test_idle_threads_sleep_unless_the_environment_overrides_it(given: dict[str, str], expected: str) -> None:
    """The variable must be set before torch or FAISS loads OpenMP."""
    environment = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"} | given
    code = (
        "import os, sys, hybrid_cli.cli; print(os.environ['OMP_WAIT_POLICY'], {'torch', 'faiss'} & sys.modules.keys())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert done.stdout == f"{expected} set()\n"


@pytest.mark.parametrize(("given", "threads"), [({}, 1), ({"OPENBLAS_NUM_THREADS": "2"}, 2)])
def test_products_of_numpy_have_one_thread(given: dict[str, str], threads: int) -> None:
    ours = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    environment = {name: value for name, value in os.environ.items() if name not in ours} | given
    code = "import hybrid_cli.cli, numpy, threadpoolctl as t; print(*[p['num_threads'] for p in t.threadpool_info()])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.split() == [str(min(threads, os.cpu_count() or 1))]


def test_a_wrong_number_of_threads_does_not_reach_polars(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("POLARS_MAX_THREADS", raising=False)
    monkeypatch.setenv("POLARS_MAX_THREADS", "")  # restored afterwards
    monkeypatch.delenv("POLARS_MAX_THREADS")
    assert hybrid("index-bm25", "missing", "--threads", "1000000", "--output", "out").code != 0
    assert int(os.environ["POLARS_MAX_THREADS"]) <= (os.cpu_count() or 1)


LEAVING = """
import atexit, sys

class Library:
    def __del__(self):
        print("torn down", flush=True)

sys.modules["library"] = Library()
atexit.register(print, "registered")
from hybrid_cli.cli import run
run()
"""


@pytest.mark.parametrize(("word", "code"), [("--version", 0), ("--none", 2)])
def test_a_command_ends_without_the_teardown_of_libraries(word: str, code: int) -> None:
    """The teardown of PyTorch takes a second; functions of `atexit` run."""
    done = subprocess.run([sys.executable, "-c", LEAVING, word], capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr
    assert done.stdout.endswith("registered\n")
    assert "torn down" not in done.stdout


def test_windows_is_refused_in_one_line() -> None:
    code = "import sys; sys.platform = 'win32'; import hybrid_cli.cli"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert "Windows" in done.stderr


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (
            ["evaluate", "absent", "run.trec", "-l", "0"],
            {"code": "out-of-range", "option": "relevance_level", "minimum": 1},
        ),
        (
            ["inspect", "x", "--quiet", "--verbose"],
            {"code": "conflicting-options", "option": "quiet", "others": ["verbose"]},
        ),
    ],
)
def test_an_error_of_a_command_of_json_is_json(workdir: Path, words: list[str], expected: dict[str, Any]) -> None:
    plain = hybrid(*words)
    for form in (["--format", "json"], ["--format=json"]):
        done = hybrid(*words, *form)
        content = json.loads(done.err)
        assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
        assert plain.err == f"hybrid: {content['error']}\n"
        assert {name: content.get(name) for name in expected} == expected


def test_a_similar_option_is_named() -> None:
    done = hybrid("fuse", "a", "b", "-o", "f.parquet", "--weihgts", "1,2")
    assert (done.is_problem("no-such-option", option="weihgts"), "--weights" in done.err) == (True, True), done


def test_removed_commands_and_options_name_successors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = {
        "plot": "hybrid report",
        "prepare pdf": "",
        "fuse --rrf-constant": "--rrf-k",
        "fuse --missing worst": "--missing zero",
    }
    monkeypatch.setattr(removed, "REMOVED", table)
    config = write_lines(tmp_path / "options.yaml", "rrf-constant: 3")
    sections = write_lines(tmp_path / "sections.yaml", "plot: {k: 3}", "fuse: {}")
    for line, words in {
        "plot a b": "plot",
        "prepare pdf folder": "prepare pdf",
        "fuse a b -o f --rrf-constant 3": "fuse --rrf-constant",
        "fuse a b -o f --missing worst": "fuse --missing worst",
        f"fuse a b -o f --config {config}": "fuse --rrf-constant",
        f"fuse a b -o f --config {sections}": "plot",
    }.items():
        done = hybrid(*line.split())
        assert (done.code, len(done.err.splitlines())) == (2, 1)
        assert done.is_problem("removed", words=words, successor=table[words]), done


def test_no_removed_word_is_known() -> None:
    for words in removed.REMOVED:
        if len(words.rpartition("--")[2].split()) < 2:  # a removed value needs the rest of a command
            assert hybrid(*words.split()).is_problem("removed", words=words), words


def test_the_version_is_one_word_and_the_help_is_the_default() -> None:
    assert hybrid("--version")[:3] == (0, __version__ + "\n", "")
    for command in ([], ["prepare"]):
        assert (hybrid(*command).code, hybrid(*command).out.strip()) == (2, hybrid(*command, "--help").out.strip())


def test_brackets_in_the_usage_mark_arguments_that_may_be_left_out() -> None:
    assert "hybrid prepare beir [OPTIONS] FOLDER " in hybrid("prepare", "beir", "--help").out
    assert "hybrid search [OPTIONS] [COLLECTION] " in hybrid("search", "--help").out
    assert "hybrid evaluate [OPTIONS] [INPUTS...] " in hybrid("evaluate", "--help").out


def test_square_brackets_in_a_cell_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    console.table(["name", "command"], [["extra", "pip install 'hybrid_cli[bench]'"]])
    assert "'hybrid_cli[bench]'" in capsys.readouterr().out


def test_a_resumed_step_counts_its_own_work(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(console, "WORTH_A_LINE_SECONDS", -1)
    monkeypatch.setattr(console, "HEARTBEAT_SECONDS", -1)
    with console.progress("train", 10, "steps", done=6) as advance:
        advance(2)
        advance(2)
    first, last = capsys.readouterr().err.splitlines()
    assert (first[:16], first[-5:], last[:16]) == ("train: 2 steps i", ", 80%", "train: 4 steps i")


def test_progress_of_a_short_step_is_not_printed_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with console.progress("count", 3, "items") as advance:
        for _ in range(3):
            advance(1)
    assert capsys.readouterr().err == ""


def test_messages_have_no_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    console.note("read \x1b[2Ja\x07.jsonl\nand more")
    console.warn("\x1b]0;title\x07b.jsonl", code="x")
    assert capsys.readouterr().err == (
        "read \\u001b[2Ja\\u0007.jsonl\nand more\nwarning: \\u001b]0;title\\u0007b.jsonl\n"
    )


def test_notices_are_heard_with_their_codes_and_fields(capsys: pytest.CaptureFixture[str]) -> None:
    console.set_quiet(True)
    try:
        with console.heard() as outer:
            console.note("first", code="started", count=1)
            with console.heard() as inner:
                console.warn("second", code="truncated-documents", path=Path("a"))
    finally:
        console.set_quiet(False)
    console.note("third")
    assert outer == [Notice("note", "first", "started", {"count": 1}), *inner]
    assert inner == [Notice("warning", "second", "truncated-documents", {"path": Path("a")})]
    assert capsys.readouterr().err == "warning: second\nthird\n"


def test_details_are_printed_and_logged(workdir: Path) -> None:
    plain = hybrid("inspect", "absent", "--log-file", "run.log")
    assert plain.code == 2
    assert "paths = " not in plain.err
    verbose = hybrid("inspect", "absent", "-v", "--log-file", "run.log")
    assert "inspect: paths = ['absent']" in verbose.err
    assert "inspect: form = text (default)" in verbose.err
    lines = (workdir / "run.log").read_text("utf-8").splitlines()
    assert sum("detail inspect: form = text (default)" in line for line in lines) == 2
    errors = [line.split(" error ", 1)[1] for line in lines if " error " in line]
    assert errors == [plain.err.removeprefix("hybrid: ").strip()] * 2
    done = hybrid("doctor", "-v")
    assert re.search(r"^done in [0-9.]+s, peak memory [0-9.]+ .B$", done.err, re.MULTILINE)


def test_a_log_file_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    log = tmp_path / "no" / "run.log"
    done = hybrid("doctor", "--log-file", log)
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert done.is_problem("not-writable", option="log_file", path=log)
    assert hybrid("doctor", "-q", "-v").is_problem("conflicting-options", option="quiet")


def test_messages_are_appended_to_logs_only(workdir: Path) -> None:
    Path("note.txt").write_text("mine\n")
    Path("settings.yaml").write_text("log-file: [a, b]\n")
    refused("doctor", "--log-file", "note.txt", problem="foreign-file", option="log_file", path="note.txt")
    write_folder(Path("index"))
    refused("doctor", "--log-file", "index/run.log", problem="inside-artifact", path="index/run.log", artifact="index")
    refused("doctor", "--log-file", "", problem="missing-value", option="log_file")
    refused("doctor", "--config", "settings.yaml", problem="missing-value", option="log_file")
    command = ("fuse", "a.run", "b.run", "--overwrite", "--output", "./out.parquet", "--log-file", "out.parquet")
    refused(*command, problem="replaces-input", option="log_file", path="out.parquet")


def test_durations_sizes_and_counts_in_words() -> None:
    found = [console.duration(seconds) for seconds in (4.21, 59.94, 96, 3600, 7500)]
    assert found == ["4.2s", "59.9s", "1m 36s", "1h 00m", "2h 05m"]
    assert [console.size(count) for count in (640, 999.6, 12_345_678)] == ["640 bytes", "1.0 kB", "12.3 MB"]
    assert console.counted(query=1, hit=2567, step=0) == "1 query, 2,567 hits, 0 steps"
