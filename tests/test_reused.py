"""`evaluate` warns about runs whose weights were tuned on the queries that it measures."""

from __future__ import annotations

from pathlib import Path

import pytest
from command import hybrid

WARNING = "fused: its weights were tuned on 4 of the 4 judged queries"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with weights tuned on q0 to q3, the fused run, and qrels of q0 to q3 and of q4 to q7."""
    monkeypatch.chdir(tmp_path)
    qids = [f"q{number}" for number in range(8)]
    Path("a.trec").write_text("".join(f"{qid} Q0 good 1 2.0 a\n{qid} Q0 bad 2 1.0 a\n" for qid in qids))
    Path("b.trec").write_text("".join(f"{qid} Q0 bad 1 2.0 b\n{qid} Q0 good 2 1.0 b\n" for qid in qids))
    for name, chosen in {"dev.tsv": qids[:4], "test.tsv": qids[4:]}.items():
        Path(name).write_text("".join(f"{qid}\t0\tgood\t1\n" for qid in chosen))
    for words in (
        ["--tune", "--method", "minmax", "--qrels", "dev.tsv", "--output", "w.json"],
        ["--weights", "@w.json", "--output", "fused.parquet"],
    ):
        done = hybrid("fuse", "a.trec", "b.trec", *words)
        assert done.code == 0, done.err
    return tmp_path


def warnings(qrels: str) -> str:
    done = hybrid("evaluate", "--qrels", qrels, "fused.parquet", "a.trec")
    assert done.code == 0, done.err
    return " ".join(done.err.split())


def test_the_queries_of_tuning_are_named_and_others_are_not(here: Path) -> None:
    assert WARNING in warnings("dev.tsv")
    assert "tuned on" not in warnings("test.tsv")


def test_a_weights_file_that_is_gone_or_replaced_gives_no_warning(here: Path) -> None:
    Path("w.json").write_text(Path("w.json").read_text().replace('"q0"', '"qX"'))
    assert "tuned on" not in warnings("dev.tsv")
    Path("w.json").unlink()
    assert "tuned on" not in warnings("dev.tsv")
