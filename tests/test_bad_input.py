"""Bad input: exit code 2 and one line on stderr that names the file and the fix; existing files are unchanged."""

from __future__ import annotations

import csv
import io
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from command import Refusal, hybrid, refusal, refused

from hybrid_cli.errors import HybridError

pytestmark = pytest.mark.usefixtures("one_thread")


COMMANDS = {
    "index-bm25": "index-bm25 {} --output out",
    "encode": "encode {} --model model --output out",
    "encode --queries": "encode --queries {} --model model --output out",
    "encode --model": "encode collection --model {} --output out",
    "search": "search {} --split test --index bm25 --output out.parquet",
    "search --index": "search collection --split test --index {} --output out.parquet",
    "search --queries": "search --queries {} --index bm25 --output out.parquet",
    "mine-negatives": "mine-negatives {} --split train --sources random:2 --output out.parquet",
    "mine-negatives --index": "mine-negatives collection --split train --index {} --output out.parquet",
    "mine-negatives run:": "mine-negatives collection --split train --sources run:{} --output out.parquet",
    "mine-negatives --qrels": "mine-negatives collection --split train --sources random --qrels {} --output o.parquet",
    "train-dense": "train-dense {} --model model --output out",
    "train-dense --model": "train-dense train.parquet --model {} --output out",
    "train-dense --dev": "train-dense train.parquet --model model --dev {} --output out",
    "fuse": "fuse bm25.parquet {} --output out.parquet",
    "fuse --index": "fuse bm25.parquet dense.parquet --method sum --missing exact --index {},dense --output o.parquet",
    "evaluate": "evaluate collection --split test {}",
    "evaluate QRELS": "evaluate {} bm25.parquet",
    "evaluate --split": "evaluate {} collection --split test",
    "evaluate --qrels": "evaluate --qrels {} bm25.parquet",
    "rerank": "rerank {} --model model --output out.parquet",
    "inspect": "inspect {}",
    "export": "export {} --format trec --output out",
    "export --collection": "export dense.parquet --format dpr --collection {} --split test --output out",
    "prepare beir": "prepare beir {} --output out",
    "prepare trec": "prepare trec {} --output out",
    "prepare msmarco": "prepare msmarco {} --output out",
    "prepare dpr": "prepare dpr {} --output out",
    "prepare files": "prepare files {} --output out",
}


def typed(command: str, path: str) -> list[str]:
    return COMMANDS[command].format(path).split()


@pytest.mark.parametrize("command", COMMANDS)
def test_a_missing_file_is_named(here: Path, command: str) -> None:
    done = refused(*typed(command, "nothing.parquet"))
    assert done.problem in ("no-such-file", "no-such-folder", "no-such-model")
    assert str(done.fields.get("path", done.fields.get("value"))) == "nothing.parquet"


READING_TABLES = (
"index-bm25",
"encode --queries",
"mine-negatives --qrels",
"evaluate"
,)  # fmt: skip


@pytest.mark.parametrize("command", READING_TABLES)
def test_a_truncated_parquet_file_is_named(here: Path, made: Path, command: str) -> None:
    Path("cut.parquet").write_bytes((made / "bm25.parquet").read_bytes()[:-9])
    refused(*typed(command, "cut.parquet"), problem="damaged", path="cut.parquet", code=1)


@pytest.mark.parametrize(
    ("command", "needed"),
    [
        ("index-bm25", "has no column 'docid' (found: a); a corpus file needs docid, title, text"),
        ("encode", "has no column 'docid' (found: a); a corpus file needs docid, title, text"),
        ("search --queries", "no column known for the id (columns: a); name its columns qid and text"),
        ("mine-negatives run:", "has no column 'qid' (found: a); a run file needs qid, docid, rank, score"),
        ("train-dense", "has no column 'qid' (found: a); a training examples file needs qid, query, docid"),
        ("fuse", "has no column 'qid' (found: a); a run file needs qid, docid, rank, score"),
        ("evaluate", "has no column 'qid' (found: a); a run file needs qid, docid, rank, score"),
        ("evaluate --qrels", "no column known for the qid (columns: a); name its columns qid, docid and relevance"),
    ],
)
def test_a_file_of_another_schema_is_refused_with_the_columns_needed(here: Path, command: str, needed: str) -> None:
    pl.DataFrame({"a": [1]}).write_parquet("other.parquet")
    refused(*typed(command, "other.parquet"), problem="no-such-column", path="other.parquet")


@pytest.mark.parametrize(
    ("command", "path", "words"),
    [
        ("index-bm25", "bm25.parquet", refusal("other-kind", path="bm25.parquet")),
        ("index-bm25", "bm25", refusal("other-kind", path="bm25")),
        ("encode --model", "collection", refusal("other-kind", path="collection")),
        ("rerank", "dense", refusal("other-kind", path="dense")),
        ("encode --model", "bm25.parquet", refusal("no-such-model")),
        (
            "search --index",
            "collection",
            refusal("other-kind", path="collection"),
        ),
        (
            "mine-negatives --index",
            "dense",
            refusal("other-kind", path="dense"),
        ),
        ("train-dense", "bm25", refusal("other-kind", path="bm25")),
        ("fuse --index", "bm25.parquet", refusal("other-kind", path="bm25.parquet")),
        ("evaluate --qrels", "bm25.parquet", refusal("other-kind", path="bm25.parquet")),
        ("export", "bm25", refusal("unknown-choice", option="format")),
        ("prepare beir", "collection", refusal("no-such-file", path="corpus.jsonl")),
    ],
)
def test_an_artifact_of_another_kind_is_refused_with_its_kind(
    here: Path, command: str, path: str, words: str | Refusal
) -> None:
    refused(*typed(command, path), problem=words)


# ---------------------------------------------------------------------------------------------------------- collections


def collection(change: Callable[[str, pl.DataFrame], pl.DataFrame]) -> Path:
    """Copy the test split with changed tables."""
    folder = Path("changed")
    folder.mkdir()
    for name in ("corpus", "queries.test", "qrels.test"):
        table = pl.read_parquet(Path("collection") / f"{name}.parquet")
        change(name.split(".")[0], table).write_parquet(folder / f"{name}.parquet")
    return folder


def change_corpus(change: Callable[[pl.DataFrame], pl.DataFrame]) -> Path:
    return collection(lambda role, table: change(table) if role == "corpus" else table)


@pytest.mark.parametrize("command", ["index-bm25", "encode"])
@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda corpus: corpus.head(0), refusal("no-documents")),
        (lambda corpus: pl.concat([corpus, corpus.slice(1, 1)]), refusal("duplicate-id", row=13, id="NA")),
        (
            lambda corpus: corpus.with_columns(docid=pl.when(pl.col("docid") != "null").then("docid")),
            refusal("missing-value", row=3, column="docid"),
        ),
        (
            lambda corpus: corpus.with_columns(docid=pl.col("docid").replace("null", "")),
            refusal("missing-value", row=3, column="docid"),
        ),
    ],
    ids=["empty", "twice", "without id", "empty id"],
)
def test_a_corpus_that_cannot_be_indexed_is_refused_and_leaves_no_files(
    here: Path, command: str, change: Callable[[pl.DataFrame], pl.DataFrame], problem: Refusal
) -> None:
    change_corpus(change)
    refused(*typed(command, "changed"), problem=problem, path="changed/corpus.parquet")


def test_texts_without_words_can_be_indexed_and_searched(here: Path) -> None:
    change_corpus(lambda corpus: corpus.with_columns(title=pl.lit(""), text=pl.lit(" \n")))
    assert hybrid("index-bm25", "changed", "--output", "empty", "--threads", 1).code == 0
    done = hybrid("search", "collection", "--split", "test", "--index", "empty", "--output", "none.parquet")
    assert (done.code, pl.read_parquet("none.parquet").height) == (0, 0)
    assert done.says("written", path="none.parquet", queries=6, without_hits=6)


@pytest.mark.parametrize("options", [[], ["--engine", "lucene"], ["--rm3"]])
def test_queries_without_words_have_no_hits_and_other_queries_are_answered(here: Path, options: list[str]) -> None:
    texts = ["", "salt", "the of and", " \t", '?!*:("~^[', "to be or not to be"]

    def change(role: str, table: pl.DataFrame) -> pl.DataFrame:
        return table.with_columns(text=pl.Series(texts)) if role == "queries" else table

    collection(change)
    command = ["search", "changed", "--split", "test", "--index", "bm25", "--output", "run.parquet", *options]
    assert hybrid(*command).code == 0
    assert set(pl.read_parquet("run.parquet")["qid"]) == {"002"}
    done = hybrid("evaluate", "--qrels", "changed/qrels.test.parquet", "run.parquet", "-m", "R@10", "--format", "csv")
    (row,) = csv.DictReader(io.StringIO(done.out))
    assert (row["mean"], row["queries"]) == ("0.2", "5"), "one of five queries is answered; the others score 0"


def test_a_dense_index_answers_a_query_without_words(here: Path) -> None:
    Path("queries.tsv").write_text("1\t\n2\t?!\n")
    assert hybrid("search", "--queries", "queries.tsv", "--index", "dense", "--output", "run.parquet").code == 0
    run = pl.read_parquet("run.parquet")
    assert run["qid"].value_counts(sort=True).rows() == [("1", 12), ("2", 12)]
    assert run["score"].is_finite().all()


# ----------------------------------------------------------------------------------------------------------------- runs


def changed_run(**columns: Any) -> Path:
    path = Path("run.parquet")
    pl.read_parquet("dense.parquet").with_columns(**columns).write_parquet(path)
    return path


SECOND = pl.int_range(pl.len()) == 1
READING_RUNS = ("fuse",)


@pytest.mark.parametrize("command", READING_RUNS)
@pytest.mark.parametrize(
    ("columns", "problem"),
    [
        (
            {"score": pl.when(SECOND).then(float("nan")).otherwise("score")},
            refusal("score-not-finite", row=2),
        ),
        ({"docid": pl.lit("a")}, refusal("duplicate-id", row=1, query="001", document="a")),
        (
            {"docid": pl.when(SECOND).then(None).otherwise("docid")},
            refusal("missing-value", path="run.parquet", row=2, column="docid"),
        ),
        (
            {"qid": pl.when(SECOND).then(pl.lit("")).otherwise("qid")},
            refusal("missing-value", path="run.parquet", row=2, column="qid"),
        ),
    ],
    ids=["nan", "twice", "no id", "empty id"],
)
def test_an_invalid_run_is_refused_with_row_and_ids(
    here: Path, command: str, columns: dict[str, Any], problem: str | Refusal
) -> None:
    changed_run(**columns)
    refused(*typed(command, "run.parquet"), problem=problem, path="run.parquet")


# --------------------------------------------------------------------------------------------------- models and indexes


def test_tuned_weights_are_refused_for_the_other_order_of_kinds(here: Path) -> None:
    tune = ["fuse", "bm25.parquet", "dense.parquet", "--tune", "--qrels", "collection", "--split", "test"]
    assert hybrid(*tune, "--output", "w.json").code == 0
    for name in ("bm25", "dense"):
        (here / f"new-{name}.parquet").symlink_to(here / f"{name}.parquet")
    swapped = ["new-dense.parquet", "new-bm25.parquet", "--weights", "@w.json"]
    words = refusal("other-order", path="w.json")
    refused("fuse", *swapped, "--output", "x.parquet", problem=words)
    refused("search", "--index", "dense", "--index", "bm25", "--query", "moon", "--weights", "@w.json", problem=words)
    assert hybrid("fuse", *swapped[1::-1], *swapped[2:], "--output", "x.parquet").code == 0


def test_the_name_of_a_hub_model_is_refused_offline(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    for command in ("encode --model", "train-dense --model"):
        done = refused(*typed(command, "owner/model"), problem="no-such-model")
        assert done.fields["value"] == "owner/model"


def damaged(made: Path, name: str, file: str, *, cut: bool) -> Path:
    """Copy an artifact with one file truncated to half, or removed."""
    folder = Path("damaged")
    shutil.copytree(made / name, folder)
    content = (folder / file).read_bytes()
    (folder / file).unlink()
    if cut:
        (folder / file).write_bytes(content[: len(content) // 2])
    return folder


@pytest.mark.parametrize("cut", [True, False], ids=["truncated", "missing"])
@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("dense", "index.faiss"),
        ("dense", "docids.parquet"),
        ("bm25", "docids.parquet"),
        ("bm25", "bm25.json"),
        ("bm25", "impacts/lows.npy"),
        ("model", "model.safetensors"),
        ("model", "tokenizer.json"),
    ],
)
def test_a_damaged_folder_is_named_and_not_reported_as_a_bug(
    here: Path, made: Path, name: str, file: str, cut: bool
) -> None:
    folder = damaged(made, name, file, cut=cut)
    command = typed("encode --model" if name == "model" else "search --index", str(folder))
    done = hybrid(*command)
    assert (done.code in (1, 2), done.err.count("\n")) == (True, 1), done
    assert isinstance(done.error, HybridError), done
    assert str(done.fields["path"]).startswith("damaged")
    assert "bug" not in done.err
    assert not Path("out.parquet").exists()


@pytest.mark.parametrize("cut", [True, False], ids=["truncated", "missing"])
def test_inspect_reports_damage(here: Path, made: Path, cut: bool) -> None:
    folder = damaged(made, "dense", "docids.parquet", cut=cut)
    done = hybrid("inspect", folder)
    assert (done.code, "bug" in done.err) == ((2, False) if cut else (0, False)), done


# ----------------------------------------------------------------------------------------------------- existing files


@pytest.mark.parametrize(
    "command",
    [
        "fuse",
        "evaluate",
        "index-bm25",
    ],
)
def test_bad_input_does_not_change_an_existing_output_even_with_overwrite(here: Path, made: Path, command: str) -> None:
    """`refused` compares the bytes of all files, which include the output that `--overwrite` would replace."""
    Path("cut.parquet").write_bytes((made / "bm25.parquet").read_bytes()[:-9])
    output = Path("old.parquet" if command not in ("encode", "index-bm25") else "old")
    shutil.copytree(made / "dense", output) if output.suffix == "" else shutil.copy(made / "dense.parquet", output)
    arguments = [word if not word.startswith("out") else str(output) for word in typed(command, "cut.parquet")]
    extra = ["--output", output] if command == "evaluate" else []
    refused(*arguments, *extra, "--overwrite", problem="damaged", path="cut.parquet", code=1)


def test_an_output_is_never_an_input_of_the_stage(here: Path, made: Path) -> None:
    shutil.copytree(made / "collection", "mine", symlinks=True)
    refused("index-bm25", "mine", "--output", "mine", "--overwrite", problem="replaces-input")
    refused("encode", "mine", "--model", "model", "--output", "mine", "--overwrite", problem="replaces-input")
    refused(
        "fuse", "bm25.parquet", "dense.parquet", "--output", "dense.parquet", "--overwrite", problem="replaces-input"
    )
