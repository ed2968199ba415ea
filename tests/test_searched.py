"""Runs of other queries or of another corpus are refused; foreign runs are compared by the ids of their queries."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from command import Notices, hybrid, raises, ran
from small_artifacts import write_run

from hybrid_cli.stages.concat_runs import concat_runs
from hybrid_cli.stages.evaluate import evaluate
from hybrid_cli.stages.export import export
from hybrid_cli.stages.fuse import fuse
from hybrid_cli.stages.index_bm25 import index_bm25
from hybrid_cli.stages.inspect import inspect
from hybrid_cli.stages.label import label
from hybrid_cli.stages.mine_negatives import mine_negatives
from hybrid_cli.stages.perturb import perturb
from hybrid_cli.stages.report import report
from hybrid_cli.stages.search import search


@pytest.fixture(scope="module")
def made(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with runs of two splits, of attacked queries, and of a second corpus."""
    folder = tmp_path_factory.mktemp("mixed")
    shutil.copytree(tiny, folder / "data")
    shutil.copytree(tiny, folder / "fewer")
    shrunk = pl.read_parquet(tiny / "corpus.parquet").head(-1)
    shrunk.write_parquet(folder / "fewer" / "corpus.parquet")
    index_bm25(folder / "data", output=folder / "bm25")
    index_bm25(folder / "fewer" / "corpus.parquet", output=folder / "fewer-bm25")
    for split in ("train", "test"):
        search(folder / "data", split=split, index=folder / "bm25", hits=4, output=folder / f"{split}.parquet")
    search(folder / "data", split="test", index=folder / "fewer-bm25", hits=4, output=folder / "fewer.parquet")
    perturb(folder / "data", split="test", attacks=["char-swap"], output=folder / "swapped.q.parquet")
    search(queries=folder / "swapped.q.parquet", index=folder / "bm25", hits=3, output=folder / "swapped.parquet")
    search(folder / "data", split="test", index=folder / "bm25", hits=2, output=folder / "short.parquet")
    texts = pl.read_parquet(tiny / "queries.test.parquet")
    texts.select("qid", "text").head(3).write_parquet(folder / "same.q.parquet")
    search(queries=folder / "same.q.parquet", index=folder / "bm25", hits=2, output=folder / "same.parquet")
    texts.select("qid", text=pl.lit("moon")).write_parquet(folder / "changed.q.parquet")
    search(queries=folder / "changed.q.parquet", index=folder / "bm25", hits=2, output=folder / "changed.parquet")
    return folder


def test_a_fused_run_has_the_queries_and_corpus_of_its_runs(made: Path, tmp_path: Path) -> None:
    fused = fuse([made / "test.parquet", made / "short.parquet"], output=tmp_path / "fused.parquet")
    with raises("other-corpus"):
        fuse([made / "fewer.parquet", fused], output=tmp_path / "f.parquet")
    with raises("other-queries"):
        fuse([made / "train.parquet", fused], output=tmp_path / "f.parquet")


@pytest.mark.parametrize("other", ["short", "swapped", "same"])
def test_attacked_queries_and_copies_of_queries_are_the_same_queries(made: Path, tmp_path: Path, other: str) -> None:
    fuse([made / "test.parquet", made / f"{other}.parquet"], output=tmp_path / "f.parquet")
    evaluate([made / "data", made / "test.parquet", made / f"{other}.parquet"], split="test", overlap_with="test")


def test_without_recorded_queries_the_query_ids_are_compared(made: Path, tmp_path: Path, notices: Notices) -> None:
    first = write_run(tmp_path / "a.parquet", [(f"q{n}", "d", 1, 1.0) for n in range(10)])
    half = write_run(tmp_path / "b.parquet", [(f"q{n}", "d", 1, 1.0) for n in range(5, 10)])
    fuse([first, half], output=tmp_path / "ok.parquet")
    assert not notices.says("few-common-queries")
    few = write_run(tmp_path / "c.parquet", [(f"q{n}", "d", 1, 1.0) for n in range(6, 10)])
    fuse([first, few], output=tmp_path / "few.parquet")
    assert notices.warnings == ["few-common-queries"]
    assert notices.says("few-common-queries", count=4, queries=10, runs=2)
    notices.clear()
    apart = write_run(tmp_path / "e.parquet", [(f"q{n}", "x", 1, 1.0) for n in range(10)])
    fuse([first, apart], output=tmp_path / "apart.parquet")
    assert notices.warnings == ["no-common-document"]
    other = write_run(tmp_path / "d.parquet", [("r1", "d", 1, 1.0)])
    with raises("other-queries", path="a.parquet", id="q0"):
        fuse([first, other], output=tmp_path / "f.parquet")


def test_runs_of_the_same_queries_may_answer_different_ones(tmp_path: Path, notices: Notices) -> None:
    """As with one index per field: the title answers one query, and the text the other."""
    pl.DataFrame({"docid": ["d"], "title": ["heart"], "text": ["oxygen"]}).write_parquet(tmp_path / "corpus.parquet")
    pl.DataFrame({"qid": ["1", "2"], "text": ["heart", "oxygen"]}).write_parquet(tmp_path / "queries.parquet")
    runs = []
    for field in ("title", "text"):
        index = index_bm25(tmp_path / "corpus.parquet", fields=[field], output=tmp_path / field, threads=1)
        output = tmp_path / f"{field}.parquet"
        runs.append(search(queries=tmp_path / "queries.parquet", index=index, output=output))
    fused = fuse(runs, method="sum", output=tmp_path / "sum.parquet")
    assert pl.read_parquet(fused)["qid"].to_list() == ["1", "2"]
    assert notices.says("few-common-queries", count=0, queries=2, runs=2)


def test_a_corpus_that_changed_after_the_search_is_named(tmp_path: Path) -> None:
    pl.DataFrame({"docid": ["d"], "title": [""], "text": ["oxygen"]}).write_parquet(tmp_path / "corpus.parquet")
    pl.DataFrame({"qid": ["1"], "text": ["oxygen"]}).write_parquet(tmp_path / "queries.test.parquet")
    pl.DataFrame({"qid": ["1"], "docid": ["d"], "relevance": [1]}).write_parquet(tmp_path / "qrels.test.parquet")
    index = index_bm25(tmp_path, output=tmp_path / "bm25", threads=1)
    run = search(tmp_path, split="test", index=index, output=tmp_path / "run.parquet")
    pl.DataFrame({"docid": ["d"], "title": [""], "text": ["heart"]}).write_parquet(tmp_path / "corpus.parquet")
    with raises("changed-corpus", path="run.parquet", other="corpus.parquet"):
        evaluate([tmp_path, run], split="test")


def test_a_search_with_other_documents_than_those_of_the_index_warns(workdir: Path) -> None:

    def prepare(output: str, *texts: str) -> None:
        lines = ["id,text", *(f"{number},{text}" for number, text in enumerate(texts, 1))]
        Path("docs.csv").write_text("\n".join(lines) + "\n")
        ran("prepare", "files", "docs.csv", "--output", output, "--overwrite")

    prepare("data", "the walrus sings", "the cat sits")
    ran("index-bm25", "data", "--output", "bm25", "--threads", "1")
    shutil.copytree("data", "copy")
    prepare("other", "a dog")
    Path("queries.jsonl").write_text('{"qid": "q", "text": "walrus"}\n')
    run = ["search", "--queries", "queries.jsonl", "--index", "bm25", "--output", "run.parquet", "--overwrite"]
    query = ["--index", "bm25", "--query", "walrus"]
    for words in (["search", "data", *query], ["search", "copy", *query], ["search", *query], run):
        assert not hybrid(*words).warnings, words
    assert hybrid("search", "other", *query).says("other-corpus", path="other/corpus.parquet")
    prepare("data", "something else")
    for words in (["search", "data", *query], ["search", *query], run):
        done = hybrid(*words)
        assert done.warnings == ["corpus-changed"], words
        assert done.says("corpus-changed", paths=[Path("data/corpus.parquet")], missing=[]), words
    assert not hybrid("search", "copy", *query).warnings


def test_runs_of_another_corpus_or_of_other_queries_are_refused(made: Path, tmp_path: Path) -> None:
    data, out = made / "data", tmp_path / "out.parquet"
    test, train, fewer, short = (made / f"{name}.parquet" for name in ("test", "train", "fewer", "short"))
    exact: dict[str, Any] = {"missing": "exact", "index": [made / "bm25"] * 2}
    judged: dict[str, Any] = {"qrels": made / "fewer", "split": "test"}
    calls: dict[str, list[tuple[Path, Callable[[], object]]]] = {
        "other-queries": [
            (train, lambda: fuse([test, train], output=out)),
            (made / "changed.parquet", lambda: fuse([test, made / "changed.parquet"], output=out)),
            (test, lambda: fuse([test, short], qrels=data, split="train", output=out)),
            (test, lambda: fuse([test, short], queries=made / "changed.q.parquet", output=out, **exact)),
            (test, lambda: mine_negatives(data, split="train", sources=[f"run:{test}:2"], output=out)),
        ],
        "other-corpus": [
            (fewer, lambda: fuse([test, fewer], output=out)),
            (fewer, lambda: evaluate([data, test, fewer], split="test", complement=("test", "fewer"))),
            (fewer, lambda: evaluate([data, test, fewer], split="test", overlap_with="test")),
            (fewer, lambda: concat_runs([train, fewer], output=out)),
            (test, lambda: fuse([test, short], output=out, **judged)),
            (test, lambda: fuse([test, short], tune=True, output=tmp_path / "w.json", **judged)),
            (fewer, lambda: evaluate([data, fewer], split="test")),
            (fewer, lambda: mine_negatives(data, split="test", sources=[f"run:{fewer}:2"], output=out)),
            (fewer, lambda: label(data, split="test", run=fewer, output=tmp_path / "labels")),
            (fewer, lambda: export(fewer, form="dpr", collection=data, split="test", output=tmp_path / "dpr")),
            (fewer, lambda: inspect([fewer], memory_table=data, split="test")),
        ],
    }
    for code, refused in calls.items():
        for path, call in refused:
            with raises(code, path=path):
                call()
    with raises("other-index", path="test.parquet", index="fewer-bm25"):
        report([data, test], split="test", index=[f"test={made / 'fewer-bm25'}"], output=tmp_path / "r.html")
    assert not list(tmp_path.iterdir())
    evaluate([fewer], qrels=data / "qrels.test.parquet")
    concat_runs([train, test], output=out)
    pl.read_parquet(data / "queries.test.parquet").write_parquet(tmp_path / "copy.parquet")
    fuse([test, short], queries=tmp_path / "copy.parquet", output=tmp_path / "f.parquet", **exact)
