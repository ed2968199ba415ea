"""What `fuse --tune` says about runs and weights that do not fit together, and what it compares."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from command import Done, hybrid

QIDS = [f"q{number}" for number in range(12)]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with judgments, a run that finds them all, one of other documents, and one of 20 hits."""
    monkeypatch.chdir(tmp_path)
    runs = {
        "good": ["right", "wrong"],
        "foreign": ["RIGHT", "WRONG"],
        "late": [f"w{number}" for number in range(15)] + ["right"],
    }
    for name, docids in runs.items():
        lines = [f"{qid} Q0 {docid} {rank} {50 - rank} x" for qid in QIDS for rank, docid in enumerate(docids, 1)]
        Path(f"{name}.trec").write_text("\n".join(lines) + "\n")
    Path("qrels.tsv").write_text("".join(f"{qid}\t0\tright\t1\n" for qid in QIDS))
    return tmp_path


def tune(*runs: str, **options: Any) -> tuple[dict[str, Any], Done]:
    """Return the content of the weights, and the command."""
    words = [word for name, value in options.items() for word in (f"--{name}", value)]
    done = hybrid("fuse", *runs, "--tune", "--qrels", "qrels.tsv", *words, "--output", "w.json", "--overwrite")
    assert done.code == 0, done.err
    return json.loads(Path("w.json").read_text()), done


def test_a_run_of_other_documents_is_warned_about(here: Path) -> None:
    content, done = tune("good.trec", "foreign.trec")
    assert done.says("no-judged-hit", run="foreign")
    assert done.says("no-common-document")
    assert content["alone"] == {"good": 1.0, "foreign": 0.0}


def test_weights_of_another_method_name_the_method_to_tune_with(here: Path, made: Path) -> None:
    """`search` has no --method that could be omitted."""
    runs = [made / "bm25.parquet", made / "dense.parquet"]
    judged = ["--qrels", made / "collection", "--split", "test"]
    assert hybrid("fuse", *runs, "--tune", "--method", "minmax", *judged, "--output", "m.json").code == 0
    indexes = f"{made / 'bm25'},{made / 'dense'}"
    done = hybrid(
        "search", made / "collection", "--split", "test", "--exact", "--index", indexes, "--weights", "@m.json",
        "--output", "x.parquet",
    )  # fmt: skip
    assert (done.problem, done.fields["option"]) == ("tuned-with-other-option", "method")


def test_raw_weights_of_another_encoder_are_warned_about(here: Path, made: Path, tiny_lambda: Path) -> None:
    """Scores of another encoder have another scale; weights of normalized scores have none."""
    data = made / "collection"
    assert hybrid("encode", data, "--model", tiny_lambda, "--output", "other").code == 0
    assert hybrid("search", data, "--split", "test", "--index", "other", "--output", "other.parquet").code == 0
    runs, indexes = [made / "bm25.parquet", made / "dense.parquet"], f"{made / 'bm25'},{made / 'dense'}"
    judged = ["--tune", "--qrels", data, "--split", "test", "--index", indexes]
    for method in ("weighted-sum", "minmax"):
        more = judged if method == "weighted-sum" else judged[:-2]
        assert hybrid("fuse", *runs, *more, "--method", method, "--output", f"{method}.json").code == 0
        used = ["--weights", f"@{method}.json", "--output", f"{method}.parquet", "--overwrite"]
        used += ["--index", f"{made / 'bm25'},other"] if method == "weighted-sum" else []
        done = hybrid("fuse", runs[0], "dense=other.parquet", *used)
        assert done.code == 0, done.err
        assert done.says("other-encoder", path="weighted-sum.json") == (method == "weighted-sum")
