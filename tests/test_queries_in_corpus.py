"""Queries that are documents: their own document is no hit where runs are measured, and no negative."""

import json
import random
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest
import torch
from command import Notices
from evaluated import evaluate
from tiny_collection import write_lines

from hybrid_cli import artifacts
from hybrid_cli.artifacts.examples import open_dev_examples, open_examples
from hybrid_cli.artifacts.opening import open_bm25
from hybrid_cli.commands import PrepareBeir
from hybrid_cli.encoders.static import StaticEncoder
from hybrid_cli.stages.fuse import fuse
from hybrid_cli.stages.index_bm25 import index_bm25
from hybrid_cli.stages.mine_negatives import mine_negatives
from hybrid_cli.stages.prepare import prepare
from hybrid_cli.stages.search import search
from hybrid_cli.stages.split import split
from hybrid_cli.storage import Kind
from hybrid_cli.training.dense import allowed_mask
from hybrid_cli.training.dev_set import DevRetrieval, DevSet
from hybrid_cli.training.options import Sampling
from hybrid_cli.training.teachers import Bm25Scorer

QUERIES = 20


def relevant(number: int) -> int:
    return (number * 7 + 3) % 60


@pytest.fixture(scope="module")
def arguments(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """60 documents; the first 20 are also queries, each with another relevant document. With a lexical index."""
    folder, rng = tmp_path_factory.mktemp("arguments"), random.Random(1)
    texts = [" ".join(rng.choices([f"w{number}" for number in range(60)], k=12)) for _ in range(60)]
    write_lines(
        folder / "corpus.jsonl", *({"_id": f"a{at}", "title": "", "text": text} for at, text in enumerate(texts))
    )
    write_lines(folder / "queries.jsonl", *({"_id": f"a{at}", "text": texts[at]} for at in range(QUERIES)))
    judgments = [f"a{at}\ta{relevant(at)}\t1" for at in range(QUERIES)]
    write_lines(folder / "qrels" / "test.tsv", "query-id\tcorpus-id\tscore", *judgments)
    prepare(PrepareBeir(folder, output=folder / "data"))
    index_bm25(folder / "data", output=folder / "bm25", threads=1)
    return folder


@pytest.fixture(scope="module")
def two_runs(arguments: Path) -> list[Path]:
    """A run with the query itself before the relevant document, and one without the query and a worse order."""
    rng, rows = random.Random(0), []
    for number in range(QUERIES):
        own, judged = f"a{number}", f"a{relevant(number)}"
        others = [f"a{at}" for at in range(60) if f"a{at}" not in (own, judged)]
        rng.shuffle(others)
        second = others[8:17]
        second.insert(0 if number % 5 else 3, judged)
        for name, hits in (("own", [own, judged, *others[:8]]), ("second", second)):
            rows += [(name, own, docid, rank) for rank, docid in enumerate(hits, 1)]
    paths = []
    for name in ("own", "second"):
        path = arguments / f"{name}.run"
        lines = (f"{qid} Q0 {docid} {rank} {20 - rank} x" for run, qid, docid, rank in rows if run == name)
        path.write_text("\n".join(lines) + "\n", "utf-8")
        paths.append(path)
    return paths


def measured(data: Path, *runs: Path, measure: str = "MRR@10") -> list[float]:
    found = evaluate([data, *runs], measure=[measure]).means
    return [found[run.stem, measure] for run in runs]


def test_fusions_tune_on_those_lists(arguments: Path, two_runs: list[Path], tmp_path: Path, notices: Notices) -> None:
    data = arguments / "data"
    weights = fuse(two_runs, tune=True, qrels=data, measure="MRR@10", output=tmp_path / "weights.json")
    assert notices.says("queries-in-corpus", path=data)
    found = json.loads(weights.read_text("utf-8"))
    assert [*found["alone"].values()] == pytest.approx(measured(data, *two_runs))
    assert measured(data, *two_runs)[0] == 1  # .5 with the queries themselves
    assert max(trial["score"] for trial in found["trials"]) == pytest.approx(1)
    fused = fuse(two_runs, weights=f"@{weights}", qrels=data, measure="MRR@10", output=tmp_path / "fused.parquet")
    assert measured(data, fused) == [1]


def test_folds_and_a_file_of_judgments_keep_the_mark(arguments: Path, two_runs: list[Path], tmp_path: Path) -> None:
    data = arguments / "data"
    folds = split(data, folds=2, output=tmp_path / "folds")
    counts = artifacts.read_manifest(folds, Kind.COLLECTION).counts["queries_in_corpus"]
    assert counts["all"] == QUERIES == counts["test-1"] + counts["test-2"]
    means = evaluate([folds, *two_runs], split="all", measure=["MRR@10"]).means
    assert [means[run.stem, "MRR@10"] for run in two_runs] == measured(data, *two_runs)
    assert measured(data / "qrels.test.parquet", *two_runs) == measured(data, *two_runs)


@pytest.mark.usefixtures("few_feedbacks")
def test_bm25_and_its_feedback_are_tuned_on_those_lists(arguments: Path, tmp_path: Path, notices: Notices) -> None:
    data, index = arguments / "data", arguments / "bm25"
    tuned = index_bm25(data, tune=True, measure="MRR@10", output=tmp_path / "tuned", threads=1)
    means = json.loads((tuned / "bm25.json").read_text("utf-8"))["tuning"]["means"]
    default = next(each["mean"] for each in means if (each["k1"], each["b"]) == (0.9, 0.4))
    plain = search(data, index=index, split="test", hits=50, output=tmp_path / "plain.parquet", threads=1)
    assert measured(data, plain) == pytest.approx([default])
    notices.clear()
    feedback = search(
        data, index=index, split="test", rm3=True, tune=True, measure="MRR@10", output=tmp_path / "rm3.parquet"
    )
    with_feedback, without = measured(data, feedback, plain)
    tuned_on = {"value": pytest.approx(with_feedback), "without": pytest.approx(without)}
    assert notices.says("written", path="rm3.parquet", measure="MRR@10", **tuned_on)


def test_the_query_itself_is_no_negative_of_its_batch(arguments: Path, tmp_path: Path) -> None:
    data = arguments / "data"
    mined = mine_negatives(data, split="test", index=arguments / "bm25", output=tmp_path / "x.parquet")
    drawn = pl.read_parquet(mined).select("qid", pl.col("negatives").list.eval(pl.element().struct.field("docid")))
    assert not drawn.filter(pl.col("qid").is_in(pl.col("negatives"))).height
    groups = next(open_examples(mined).batches(Sampling(batch_size=QUERIES, negatives=1)))
    texts = [text for group in groups for text in group.texts]
    own = torch.tensor([[text == group.query for text in texts] for group in groups])
    assert own.any()
    assert not allowed_mask(groups)[own].any()


@pytest.mark.parametrize("limit", [QUERIES * 2, 10])
def test_the_query_itself_is_no_hit_of_a_validation(tmp_path: Path, limit: int) -> None:
    """Each query has two equal documents, itself and a relevant one; the vectors of the encoder are BM25's."""
    texts = [f"word{at} and other words" for at in range(QUERIES)]
    documents = [{"_id": f"{kind}{at}", "text": text} for kind in ("own", "copy") for at, text in enumerate(texts)]
    write_lines(tmp_path / "corpus.jsonl", *documents)
    write_lines(tmp_path / "queries.jsonl", *documents[:QUERIES])
    judgments = [f"own{at}\tcopy{at}\t1" for at in range(QUERIES)]
    write_lines(tmp_path / "qrels" / "dev.tsv", "query-id\tcorpus-id\tscore", *judgments)
    data = prepare(PrepareBeir(tmp_path, output=tmp_path / "data"))
    mined = mine_negatives(
        data, split="dev", index=index_bm25(data, output=tmp_path / "bm25"), output=tmp_path / "dev.parquet"
    )
    index = open_bm25(tmp_path / "bm25")
    terms = len(index.idf)
    bm25 = StaticEncoder.over(index, ("title", "text"), dim=terms, vocab_size=terms, hash_buckets=1)
    for table in bm25.parameters():
        torch.nn.init.eye_(table)
    dev = DevSet.of(replace(open_dev_examples(mined), index=index), QUERIES, limit)
    found = DevRetrieval(dev, bm25, Bm25Scorer(index, dev.documents["docid"])).measure()
    assert {name for name, value in found.items() if value == 1} == {"dev_MRR@10", "dev_hybrid_MRR@10"}
    assert not any(value for name, value in found.items() if "MRR" not in name)
