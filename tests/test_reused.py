"""`evaluate` and `report` warn about runs that were tuned or trained on the queries that they measure."""

import shutil
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from command import hybrid, ran

from hybrid_cli.artifacts.judged import Reuse, reused
from hybrid_cli.stages.combine import combine
from hybrid_cli.stages.concat_runs import concat_runs
from hybrid_cli.stages.encode import encode
from hybrid_cli.stages.fuse import fuse
from hybrid_cli.stages.index_bm25 import index_bm25
from hybrid_cli.stages.mine_negatives import mine_negatives
from hybrid_cli.stages.search import search
from hybrid_cli.stages.train_dense import train_dense
from hybrid_cli.storage import Kind

TUNED: dict[str, object] = {"run": "fused", "part": Kind.WEIGHTS, "count": 12, "queries": 12}


@pytest.fixture
def here(workdir: Path) -> Path:
    """Return a folder with weights tuned on q0 to q11, the fused run, and qrels of q0 to q11 and of q12 to q23."""
    qids = [f"q{number}" for number in range(24)]
    Path("a.trec").write_text("".join(f"{qid} Q0 good 1 2.0 a\n{qid} Q0 bad 2 1.0 a\n" for qid in qids))
    Path("b.trec").write_text("".join(f"{qid} Q0 bad 1 2.0 b\n{qid} Q0 good 2 1.0 b\n" for qid in qids))
    for name, chosen in {"dev.tsv": qids[:12], "test.tsv": qids[12:]}.items():
        Path(name).write_text("".join(f"{qid}\t0\tgood\t1\n" for qid in chosen))
    for words in (
        ["--tune", "--method", "minmax", "--qrels", "dev.tsv", "--output", "w.json"],
        ["--weights", "@w.json", "--output", "fused.parquet"],
    ):
        ran("fuse", "a.trec", "b.trec", *words)
    return workdir


def warned(qrels: str) -> bool:
    done = ran("evaluate", "--qrels", qrels, "fused.parquet", "a.trec")
    assert done.warnings.count("queries-reused") == done.says("queries-reused", **TUNED)
    return done.says("queries-reused")


def test_the_queries_of_tuning_are_named_and_others_are_not(here: Path) -> None:
    """Not with equal ids of another collection, nor from weights that are gone or replaced."""
    Path("other.tsv").write_text("".join(f"q{number}\t0\tbad\t1\n" for number in range(12)))
    assert [warned(name) for name in ("dev.tsv", "test.tsv", "other.tsv")] == [True, False, False]
    Path("w.json").write_text(Path("w.json").read_text().replace('"q0"', '"qX"'))
    assert not warned("dev.tsv")
    Path("w.json").unlink()
    assert not warned("dev.tsv")


def test_the_report_says_it_in_the_terminal_and_on_the_page(here: Path) -> None:
    done = hybrid("report", "--qrels", "dev.tsv", "fused.parquet", "a.trec", "--output", "r.html")
    assert done.says("queries-reused", **TUNED)
    (warning,) = (notice.message for notice in done.notices.heard if notice.code == "queries-reused")
    assert warning in Path("r.html").read_text("utf-8")
    done = hybrid("report", "--qrels", "test.tsv", "fused.parquet", "a.trec", "--output", "other.html")
    assert not done.says("queries-reused")
    assert warning.partition(" on ")[0] not in Path("other.html").read_text("utf-8")


@pytest.fixture(scope="module")
def parts(tiny: Path, tiny_bert: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of the train queries: of a tuned index, a model trained on them, a tuned combination, and a sum of two."""
    folder = tmp_path_factory.mktemp("parts")
    index_bm25(tiny, tune=True, split="train", output=folder / "bm25", threads=1)
    mine_negatives(tiny, split="train", sources="random:2", output=folder / "train.parquet")
    train_dense(folder / "train.parquet", model=str(tiny_bert), max_steps=1, batch_size=2, output=folder / "model")
    models = [str(tiny_bert), str(folder / "model")]
    encode(tiny, model=folder / "model", dtype="fp32", output=folder / "dense")
    encode(tiny, model=models, dtype="fp32", output=folder / "both")
    tuned = combine(models, tune=tiny, split="train", index=folder / "both", measure="MRR", output=folder / "tuned")
    for name, model in {"bm25": None, "dense": None, "both": str(tuned)}.items():
        for split, end in (("train", ""), ("test", ".test")):
            output = folder / f"{name}{end}.parquet"
            search(tiny, split=split, threads=1, index=folder / name, model=model, output=output)
    fuse([folder / "bm25.parquet", folder / "dense.parquet"], output=folder / "sum.parquet")
    return folder


@pytest.mark.parametrize(
    ("run", "kinds"),
    [
        ("bm25", []),  # the tuning kept k1 and b, so the index is that of any other queries
        ("dense", [Kind.EXAMPLES]),
        ("both", [Kind.ENCODER, Kind.EXAMPLES]),
        ("sum", [Kind.EXAMPLES]),
    ],
)
def test_every_part_of_a_run_is_followed_to_its_judgments(parts: Path, tiny: Path, run: str, kinds: list[Kind]) -> None:
    """No part has seen the test queries."""
    found = reused({run: parts / f"{run}.parquet"}, tiny / "qrels.train.parquet")
    judged = pl.read_parquet(tiny / "qrels.train.parquet")["qid"].n_unique()
    assert set(found) == {Reuse(run, kind, judged, judged) for kind in kinds}
    if run != "sum":
        assert reused({run: parts / f"{run}.test.parquet"}, tiny / "qrels.test.parquet") == []


def test_runs_of_folds_are_each_compared_with_their_own_model(parts: Path, tiny: Path, tmp_path: Path) -> None:
    """The model was trained on the train queries, the other index on none; all queries are judged in one file."""
    judged = tmp_path / "judged.parquet"
    pl.concat([pl.read_parquet(tiny / f"qrels.{split}.parquet") for split in ("train", "test")]).write_parquet(judged)
    index_bm25(tiny, output=tmp_path / "bm25", threads=1)
    for split in ("train", "test"):
        search(tiny, split=split, threads=1, index=tmp_path / "bm25", output=tmp_path / f"{split}.parquet")
    fair = concat_runs([parts / "dense.test.parquet", tmp_path / "train.parquet"], output=tmp_path / "fair.parquet")
    assert reused({"x": fair}, judged) == []
    unfair = concat_runs([parts / "dense.parquet", tmp_path / "test.parquet"], output=tmp_path / "unfair.parquet")
    assert len(reused({"x": unfair}, judged)) == 1


@pytest.fixture
def lengths(tmp_path: Path) -> Path:
    """A collection in which only a strong length normalization ranks the relevant document first."""
    folder, qids = tmp_path / "lengths", [f"q{number}" for number in range(8)]
    folder.mkdir()
    texts = {
        f"{kind}{qid}": text
        for qid in qids
        for kind, text in (("r", qid), ("n", f"{qid} {qid} {qid}" + " filler" * 40))
    }
    corpus = {"docid": list(texts), "title": [""] * len(texts), "text": list(texts.values())}
    pl.DataFrame(corpus).write_parquet(folder / "corpus.parquet")
    for split in ("one", "two"):
        pl.DataFrame({"qid": qids, "text": qids}).write_parquet(folder / f"queries.{split}.parquet")
        judged = pl.DataFrame({"qid": qids, "docid": [f"r{qid}" for qid in qids], "relevance": [1] * len(qids)})
        judged.write_parquet(folder / f"qrels.{split}.parquet")
    return folder


def test_tuned_k1_and_b_are_followed_from_runs_only(lengths: Path, tiny_bert: Path, tmp_path: Path) -> None:
    """A model whose negatives come from that index has not seen the judgments of its tuning."""
    index = index_bm25(lengths, tune=True, split="one", output=tmp_path / "bm25", threads=1)
    run = search(lengths, split="one", threads=1, index=index, output=tmp_path / "bm25.parquet")
    judged = lengths / "qrels.one.parquet"
    tuned = Reuse("x", Kind.LEXICAL_INDEX, 8, 8)
    assert reused({"x": run}, judged) == [tuned]
    other = tmp_path / "other.tsv"
    other.write_text("".join(f"q{number}\t0\tnq{number}\t1\n" for number in range(8)))
    assert reused({"x": run}, other) == []
    mine_negatives(lengths, split="two", index=index, output=tmp_path / "train.parquet")
    train_dense(tmp_path / "train.parquet", model=str(tiny_bert), max_steps=1, batch_size=2, output=tmp_path / "model")
    encode(lengths, model=tmp_path / "model", dtype="fp32", output=tmp_path / "dense")
    dense = search(lengths, split="one", threads=1, index=tmp_path / "dense", output=tmp_path / "dense.parquet")
    assert [each.part for each in reused({"x": dense}, judged)] == [Kind.EXAMPLES]
    found = pl.read_parquet(judged)
    pl.concat([found, found.head(1).with_columns(docid=pl.lit("nq0"))]).write_parquet(judged)  # one more judgment
    assert reused({"x": run}, judged) == [tuned]
    (index / "manifest.json").write_text("damaged")
    assert reused({"x": run}, judged) == []


def test_queries_of_validation_and_left_out_ones_are_untrained(tiny: Path, tiny_bert: Path, tmp_path: Path) -> None:
    """Half of the queries are mined with the judgments of all; the other split validates."""
    queries = pl.read_parquet(tiny / "queries.train.parquet")
    queries.head(3).write_parquet(tmp_path / "half.parquet")
    half: dict[str, Any] = {"queries": tmp_path / "half.parquet", "qrels": tiny / "qrels.train.parquet"}
    mine_negatives(tiny, sources="random:2", output=tmp_path / "t.parquet", **half)
    mine_negatives(tiny, split="test", sources="random:2", output=tmp_path / "dev.parquet")
    options: dict[str, Any] = {"model": str(tiny_bert), "max_steps": 1, "batch_size": 2}
    train_dense(tmp_path / "t.parquet", dev=tmp_path / "dev.parquet", output=tmp_path / "model", **options)
    encode(tiny, model=tmp_path / "model", dtype="fp32", output=tmp_path / "dense")
    for split, common in (("train", queries.head(3)), ("test", queries.head(0))):
        run = search(tiny, split=split, threads=1, index=tmp_path / "dense", output=tmp_path / f"{split}.parquet")
        judged = tiny / f"qrels.{split}.parquet"
        used = pl.read_parquet(judged).filter(pl.col("qid").is_in(common["qid"].implode()))["qid"].n_unique()
        found = [(reuse.part, reuse.count) for reuse in reused({"x": run}, judged)]
        assert found == ([(Kind.EXAMPLES, used)] if used else [])


def test_examples_are_followed_to_each_collection(tiny: Path, lengths: Path, tiny_bert: Path, tmp_path: Path) -> None:
    (lengths / "queries.one.parquet").rename(lengths / "queries.train.parquet")
    (lengths / "qrels.one.parquet").rename(lengths / "qrels.train.parquet")
    mine_negatives([tiny, lengths], split="train", sources="random:1", output=tmp_path / "t.parquet")
    train_dense(tmp_path / "t.parquet", model=str(tiny_bert), max_steps=1, batch_size=2, output=tmp_path / "model")
    for data in (tiny, lengths):
        index = encode(data, model=tmp_path / "model", dtype="fp32", output=tmp_path / f"{data.name}-index")
        run = search(data, split="train", threads=1, index=index, output=tmp_path / f"{data.name}.parquet")
        assert len(reused({"x": run}, data / "qrels.train.parquet")) == 1


def test_a_part_that_was_made_again_is_another_part(parts: Path, tiny: Path, tiny_bert: Path, tmp_path: Path) -> None:
    folder = tmp_path / "parts"
    shutil.copytree(parts, folder)  # where the recorded path of the judgments leads nowhere
    assert len(reused({"x": folder / "dense.parquet"}, tiny / "qrels.train.parquet")) == 1
    shutil.rmtree(folder / "model")
    shutil.copytree(tiny_bert, folder / "model")
    assert reused({"x": folder / "dense.parquet"}, tiny / "qrels.train.parquet") == []
