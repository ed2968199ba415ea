"""`auto`: the recommended path in one command, whose printed commands can be pasted."""

import io
import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from command import Done, Refusal, cases, hybrid, ran, refusal
from test_architecture import complaint
from tiny_collection import write_lines, write_tiny_source

from hybrid_cli import artifacts
from hybrid_cli.collections import collection
from hybrid_cli.reporting.tables import pseudo_note
from hybrid_cli.storage import Kind


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("source")
    write_tiny_source(folder)
    return folder


@pytest.fixture(scope="module", autouse=True)
def few_queries_suffice() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hybrid_cli.stages.auto.FEWEST_QUERIES", 11)
        yield


def auto(source: Path, output: Path, *words: object, judged: bool = False) -> Done:
    given = ["--queries", source / "topics.train.tsv", "--qrels", source / "qrels.train.txt"] if judged else []
    return hybrid("auto", source / "docs.jsonl", *given, *words, "--output", output)


def commands(done: Done) -> list[str]:
    return [line for line in done.err.splitlines() if line.startswith("hybrid ") and " judge " not in line]


@pytest.fixture(scope="module")
def made(source: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Done]:
    folder = tmp_path_factory.mktemp("auto") / "out"
    return folder, auto(source, folder, "--layers", 1, "--max-steps", 2)


def test_documents_become_a_hybrid_and_a_report(made: tuple[Path, Done]) -> None:
    folder, done = made
    assert done.code == 0, done.err
    expected = ["prepare", "prepare", "index-bm25", "index-bm25", "mine-negatives", "mine-negatives", "train-dense"]
    expected += ["encode", "encode", "search", "search", "compose", "compose", "search", "evaluate", "report", "search"]
    assert [line.split()[1] for line in commands(done)] == expected
    assert not (folder / "weights.json").exists()
    assert done.says("pseudo-queries-train", option="max_steps")
    kinds = {"retriever": Kind.RETRIEVER, "pseudo-retriever": Kind.RETRIEVER}
    for name, kind in kinds.items():
        assert artifacts.read_manifest(folder / name).kind == kind
    for name, kind in {"model": Kind.ENCODER, "hybrid.dev.parquet": Kind.RUN, "report.html": Kind.REPORT}.items():
        assert artifacts.read_manifest(folder / name).kind == kind
    assert done.out.count(pseudo_note("title")) == 1


def test_every_printed_command_can_be_pasted(made: tuple[Path, Done]) -> None:
    """The commands have their outputs already: each finds it up to date, so it is the same call."""
    _, done = made
    writing = [line for line in commands(done) if "--output" in line]
    assert len(writing) == 15
    for line in writing:
        assert not complaint(line)
        again = ran(*shlex.split(line)[1:])
        assert again.says("up-to-date"), line


JUDGED = "--queries {whole}/pseudo/queries.dev.parquet --qrels {whole}/pseudo/qrels.dev.parquet"
COMMANDS = {
    "inspect": "inspect {folder}",
    "export": "export {folder} --format folder --output exported",
    "label": "label {whole}/collection --index {folder} --output labels",
    "search": "search --index {folder} --query salt --format json",
    "judge": "judge {folder} --queries queries.txt --output judgments.tsv",
    "mine-negatives": f"mine-negatives {{whole}}/collection {JUDGED} --index {{folder}} --output mined.parquet",
    "fuse": "fuse bm25=bm25.parquet dense=dense.parquet --weights @{folder} --output fused.parquet",
    "evaluate": f"evaluate hybrid={{folder}} {JUDGED} --format json",
    "report": f"report hybrid={{folder}} bm25={{whole}}/bm25 {JUDGED} --output report.html",
    "gate": f"gate hybrid={{folder}} {JUDGED} --write --baseline base.json",
    "update": "update {folder} --remove queries.txt --dry-run",
}


@pytest.mark.parametrize("command", cases(COMMANDS, "search", "label", "evaluate", "fuse"))
def test_the_folder_of_auto_is_a_retriever_for_every_command(
    made: tuple[Path, Done], command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, done = made[0], []
    for folder in (whole, whole / "retriever"):
        (place := tmp_path / folder.name).mkdir()
        monkeypatch.chdir(place)
        monkeypatch.setattr("sys.stdin", io.StringIO("1\nq\n"))
        write_lines(place / "queries.txt", ["salt in sea water"])
        if command == "fuse":
            for side in ("bm25", "dense"):
                queries = whole / "pseudo" / "queries.dev.parquet"
                ran("search", "--queries", queries, "--index", whole / side, "--output", f"{side}.parquet")
        done.append(hybrid(*COMMANDS[command].format(folder=folder, whole=whole).split()))
    assert done[0].out == done[1].out
    refused = {"update": "unknown-id", "gate": "too-few-queries"}
    assert [each.problem for each in done] == [refused.get(command, "")] * 2, done[0].err


def finds(line: str, query: str, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Return whether the suggested search, which reads queries from standard input, prints hits."""
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{query}\n"))
    done = ran(*shlex.split(line)[1:])
    return " 1. " in done.out


def test_documents_alone_become_a_retriever(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pseudo-queries, whose scores are no estimate, are made on request."""
    done = auto(source, tmp_path / "out")
    assert done.code == 0, done.err
    assert [line.split()[1] for line in commands(done)] == ["prepare", "index-bm25", "encode", "compose", "search"]
    assert finds(commands(done)[-1], "salt in sea water", monkeypatch)
    assert done.says("no-judgments")
    assert done.out == ""
    done = auto(source, tmp_path / "out", "--pseudo-queries", "title")
    assert done.code == 0, done.err
    assert "train-dense" not in {line.split()[1] for line in commands(done)}
    assert done.says("start-model-used", queries=200)
    assert artifacts.read_manifest(tmp_path / "out/report.html").kind == Kind.REPORT
    assert "Measured on pseudo-queries (title)" in done.out


def test_without_judgments_the_command_of_judging_is_suggested_and_works(
    made: tuple[Path, Done], source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "queries.txt").write_text("salt in the oceans\noxygen in the blood\n")
    line = made[1].err.splitlines()[-1]
    assert not complaint(line)
    monkeypatch.setattr("sys.stdin", io.StringIO("1\n" * 50))
    done = ran(*shlex.split(line)[1:])
    tuned = next(line for line in done.err.splitlines() if " compose " in line)
    done = ran(*shlex.split(tuned[tuned.index("hybrid compose") :])[1:])


def test_a_second_call_finds_everything_up_to_date(made: tuple[Path, Done], source: Path) -> None:
    folder, _ = made
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    again = auto(source, folder, "--layers", 1, "--max-steps", 2)
    assert again.code == 0
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    assert again.notices.count("up-to-date") >= 11


def test_an_interrupted_call_continues(made: tuple[Path, Done], source: Path) -> None:
    folder, _ = made
    before = (folder / "hybrid.dev.parquet").read_bytes()
    for name in ("hybrid.dev.parquet", "report.html"):
        (folder / name).unlink()
    assert auto(source, folder, "--layers", 1, "--max-steps", 2).code == 0
    assert (folder / "hybrid.dev.parquet").read_bytes() == before


def test_few_judged_queries_tune_the_weights(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = auto(source, tmp_path / "out", judged=True)
    assert done.code == 0, done.err
    called = {line.split()[1]: line for line in commands(done)}
    assert not {"mine-negatives", "train-dense"} & called.keys()
    assert sum(line.startswith("hybrid prepare ") for line in commands(done)) == 1
    assert done.says("start-model-used", queries=200)
    assert not (tmp_path / "out/model").exists()
    assert f"--qrels {tmp_path}/out/collection --split judged" in next(
        line for line in commands(done) if "--tune" in line
    )
    assert "--split judged" in called["evaluate"]
    assert pseudo_note("title") not in done.out
    assert not done.says("no-judgments")
    searched = commands(done)[-1]
    assert f"--index {tmp_path / 'out'} " in searched
    assert finds(searched, "salt in sea water", monkeypatch)


def test_many_judged_queries_train_tune_and_test(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hybrid_cli.stages.auto.MIN_TRAIN_QUERIES", 6)
    done = auto(source, tmp_path / "out", "--max-steps", 0, judged=True)
    assert done.code == 0, done.err
    lines = commands(done)
    expected = ["judged", "dev-1", "dev-1", "dev-1", *["test-1"] * 5]
    assert [line.split("--split ")[1].split()[0] for line in lines if " --split " in line] == expected
    assert not (tmp_path / "out/pseudo").exists()
    done = auto(source, tmp_path / "out", "--pseudo-queries", "title", judged=True)
    assert (done.code, done.problem) == (2, "option-does-not-apply")
    assert done.fields["option"] == "pseudo_queries"


@pytest.mark.heavy
def test_overwrite_replaces_what_differs_only(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that the same call resumes after an interruption; the last lines can be pasted, whatever the folder."""
    output = tmp_path / "an output"
    auto(source, output, "--max-steps", 0, judged=True)
    indexes = [(output / name / "manifest.json").stat().st_ino for name in ("bm25", "dense")]
    done = auto(source, output, "--max-steps", 0, "--measure", "R@10", "--overwrite", judged=True)
    assert done.code == 0, done.err
    assert [(output / name / "manifest.json").stat().st_ino for name in ("bm25", "dense")] == indexes
    weights = json.loads((output / "weights.json").read_text())
    assert weights["manifest"]["options"]["measure"] == "R@10"
    (output / "bm25" / "impacts" / "lengths.npy").unlink()
    assert auto(source, output, "--max-steps", 0, "--measure", "R@10", "--overwrite", judged=True).code == 0
    assert (output / "bm25" / "impacts" / "lengths.npy").is_file()
    assert finds(done.err.splitlines()[-1], "salt", monkeypatch)


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--layers", 99, "--max-steps", 1], refusal("out-of-range", option="layers", value=99)),
        ([], refusal("invalid-name", option="output")),
    ],
)
def test_options_of_late_stages_are_checked(
    source: Path, tmp_path: Path, words: list[object], problem: Refusal
) -> None:
    output = tmp_path / ("out" if words else "a,b")
    done = auto(source, output, *words)
    assert (done.code, done.is_problem(problem)) == (2, True), done
    assert not output.exists()


def test_own_artifacts_stay_even_with_overwrite(made: tuple[Path, Done], source: Path, tmp_path: Path) -> None:
    """Every output of a call is found, whatever its stage."""
    for path in made[0].iterdir():
        if not re.match(r"collection|\.|.*-tuned", path.name):  # judging leads to the last
            (tmp_path / path.name).symlink_to(path)
    before = sorted(tmp_path.iterdir())
    for words in ((), ("--overwrite",)):
        done = auto(source, tmp_path, *words)
        assert (done.code, done.is_problem("foreign-output", option="output")) == (2, True), done
        assert all(str(path) in done.err for path in before)
        assert sorted(tmp_path.iterdir()) == before


def test_text_files_are_searched_by_passages_and_metadata_filters_the_hits(tmp_path: Path) -> None:
    for number in range(6):
        words = " ".join(f"Page {number} has sentence {line} of ten." for line in range(10))
        write_lines(tmp_path / "docs" / f"page {number}.md", f"# Page {number}", words)
    asked = ("--split-passages", 14, "--pseudo-queries", "sentence")
    ran("auto", tmp_path / "docs", *asked, "--output", tmp_path / "out")
    for name in ("collection", "pseudo"):
        documents = collection.scan(tmp_path / "out" / name).collect()
        assert (len(documents), documents["docid"][4]) == (30, "page 0.md#4")
    found = collection.read_qrels(tmp_path / "out" / "pseudo" / "qrels.dev.parquet")
    assert found["qid"].is_unique().all(), "a passage is relevant to its own sentence"
    rows = [{"id": f"d{n}", "text": f"Page {n} is about the sea and salt.", "year": 2015 + n} for n in range(8)]
    dated = write_lines(tmp_path / "docs.jsonl", *rows)
    ran("auto", dated, "--metadata", "year", "--output", tmp_path / "dated")
    asking = ["--query", "salt of the sea", "--filter", "year >= 2020", "--format", "json"]
    hits = json.loads(hybrid("search", "--index", tmp_path / "dated", *asking).out)["hits"]
    assert {hit["docid"] for hit in hits} == {"d5", "d6", "d7"}


def test_documents_that_lose_half_of_their_tokens_are_divided(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def rows(words: int) -> list[dict[str, str]]:
        return [{"id": f"d{n}", "text": " ".join(["water"] * words) + f" reef number {n}"} for n in range(3)]

    for name, words, code in (("short", 20, "whole-documents"), ("long", 600, "passages-chosen")):
        documents = write_lines(tmp_path / f"{name}.jsonl", *rows(words))
        for _ in range(2):  # the second call repeats the choice
            done = ran("auto", documents, "--output", tmp_path / name)
        docids = collection.scan(tmp_path / name / "collection").collect()["docid"].to_list()
        assert len(docids) == (3 if code == "whole-documents" else 15)
        assert done.says("up-to-date")
        assert finds(commands(done)[-1], "reef number 2", monkeypatch)
    assert hybrid("auto", tmp_path / "long.jsonl", "--output", tmp_path / "again").says("passages-chosen", words=128)
    found = hybrid("search", "--index", tmp_path / "again/retriever", "--query", "reef number 2", "--hits", 3)
    assert found.out.count("d2") == 1
