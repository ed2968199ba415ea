"""Condensed lists, and the note about unjudged hits."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command import hybrid


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("run.trec").write_text("".join(f"q Q0 d{rank} {rank} {10 - rank} x\n" for rank in range(1, 6)))
    Path("qrels.tsv").write_text("q\t0\td2\t0\nq\t0\td4\t1\n")
    return tmp_path


def means(*options: str) -> dict[str, float]:
    words = ["evaluate", "--qrels", "qrels.tsv", "run.trec", "-m", "MRR@10", "-m", "Judged@4", "--format", "json"]
    done = hybrid(*words, *options)
    assert done.code == 0, done.err
    (run,) = json.loads(done.out)["runs"]
    return dict(run["means"])


def test_condensed_lists_count_judged_documents_only(here: Path) -> None:
    assert means() == {"MRR@10": 0.25, "Judged@4": 0.5}
    assert means("--condensed") == {"MRR@10": 0.5, "Judged@4": 0.5}


def test_a_note_offers_condensed_lists_for_pooled_judgments(here: Path) -> None:
    words = ["evaluate", "--qrels", "qrels.tsv", "run.trec"]
    assert hybrid(*words).says("unjudged-hits", shares={"run": 0.6})
    Path("judged.trec").write_text("q Q0 d2 1 2 x\nq Q0 d4 2 1 x\n")
    for silent in ([*words, "--condensed"], [*words[:3], "judged.trec"]):
        assert not hybrid(*silent).says("unjudged-hits")
    Path("qrels.tsv").write_text("q\t0\td4\t1\n")
    assert not hybrid(*words).says("unjudged-hits")
    assert hybrid(*words, "--condensed").is_problem("all-judged-relevant", path="run.trec")
