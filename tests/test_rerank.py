"""`train-reranker` and `rerank`: losses, weights, the form of sentence-transformers, rescored hits, refusals."""

import json
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from command import Notices, Refusal, hybrid, raises, ran, refusal, refused
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from small_artifacts import write_run
from test_report import Page
from tiny_collection import TINY_DOCUMENTS, TINY_QUERIES

from hybrid_cli import artifacts, runs
from hybrid_cli.artifacts.lineage import corpus_of, queries_of
from hybrid_cli.commands import TrainReranker
from hybrid_cli.encoders.cross_encoder import CrossEncoder
from hybrid_cli.lexical.english import STOP_WORDS
from hybrid_cli.stages.report import report
from hybrid_cli.stages.rerank import rerank
from hybrid_cli.stages.train_reranker import train_reranker
from hybrid_cli.storage import Kind
from hybrid_cli.training.batches import Examples
from hybrid_cli.training.options import RerankerLoss
from hybrid_cli.training.reranking import LOSSES, DevRanking, RerankerLearner, diagnostics

pytestmark = pytest.mark.usefixtures("one_thread")

OPTIONS: dict[str, Any] = {"dtype": "fp32", "device": "cpu", "threads": 1}


def scored(reranker: Path, run: pl.DataFrame, queries: dict[str, str]) -> pl.DataFrame:
    texts = {docid: (title, text) for docid, title, text in TINY_DOCUMENTS}
    model = CrossEncoder.load(reranker, device="cpu")
    pairs = [(queries[qid], *texts[docid]) for qid, docid in run.select("qid", "docid").iter_rows()]
    rows = pl.DataFrame(pairs, schema=["query", "title", "text"], orient="row")
    alone = [model.scores(rows[row])[0][0] for row in range(len(rows))]
    return run.with_columns(new_score=pl.Series(alone, dtype=pl.Float32))


@given(
    st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=8), min_size=1, max_size=4),
    st.integers(1, 5),
    st.randoms(use_true_random=False),
)
def test_no_document_is_lost_and_the_rest_keeps_its_order(lists: list[list[int]], depth: int, random: Any) -> None:
    rows = [
        (f"q{query}", f"d{place}", place + 1, float(score))
        for query, scores in enumerate(lists)
        for place, score in enumerate(sorted(scores, reverse=True))
    ]
    hits = pl.DataFrame(rows, schema=runs.SCHEMA, orient="row")
    new = [random.choice([-1.0, 0.0, 2.5]) if rank <= depth else None for rank in hits["rank"]]
    found = runs.rerank_hits(hits.with_columns(new_score=pl.Series(new, dtype=pl.Float32)), depth)
    assert found.schema == runs.SCHEMA
    for (qid,), before in hits.with_columns(new=pl.Series(new)).group_by("qid", maintain_order=True):
        after = found.filter(qid=qid)
        assert after["rank"].to_list() == list(range(1, len(before) + 1))
        first = before.filter(pl.col("rank") <= depth).sort(["new", "docid"], descending=[True, False])
        assert after["docid"].to_list() == first["docid"].to_list() + before["docid"].to_list()[depth:]
        assert after["score"].head(depth).to_list() == first["new"].to_list()
        assert (after["score"].diff().drop_nulls() <= 0).all()
        assert not set(after["score"][:depth]) & set(after["score"][depth:]), "equal to a rescored hit"


def test_the_other_hits_keep_their_distances() -> None:
    hits = pl.DataFrame(
        [("q", "a", 1, 9.0, 0.5), ("q", "b", 2, 7.0, 3.0), ("q", "c", 3, 6.5, None), ("q", "d", 4, 2.0, None)],
        schema=[*runs.SCHEMA, "new_score"],
        orient="row",
    )
    found = runs.rerank_hits(hits, 2)
    assert found.rows() == [("q", "b", 1, 3.0), ("q", "a", 2, 0.5), ("q", "c", 3, 0.0), ("q", "d", 4, -4.5)]


def test_the_top_hits_have_the_scores_of_their_texts(made: Path, reranker: Path, tmp_path: Path) -> None:
    out = rerank(made / "dense.parquet", model=str(reranker), depth=[3], output=tmp_path / "out.parquet", **OPTIONS)
    before, after = runs.read_run(made / "dense.parquet"), runs.read_run(out)
    expected = scored(reranker, before.filter(pl.col("rank") <= 3), dict(TINY_QUERIES["test"]))
    both = after.join(expected.select("qid", "docid", "new_score"), on=["qid", "docid"])
    assert len(both) == len(expected)
    np.testing.assert_allclose(both["score"], both["new_score"], atol=1e-5)
    assert (both["rank"] <= 3).all()
    assert after.select("qid", "docid").sort("qid", "docid").equals(before.select("qid", "docid").sort("qid", "docid"))
    manifest = artifacts.read_manifest(out, Kind.RUN)
    assert manifest.counts["pairs"] == len(expected)
    assert manifest.input_path("model") == reranker
    source, corpus = queries_of(out), corpus_of(out)
    assert source is not None
    assert corpus is not None
    assert source.path.samefile(made / "collection" / "queries.test.parquet")
    assert corpus.path.samefile(made / "collection" / "corpus.parquet")


def test_each_depth_is_the_run_of_its_own_call(made: Path, reranker: Path, tmp_path: Path) -> None:
    folder = rerank(made / "dense.parquet", model=str(reranker), depth=(1, 4), output=tmp_path / "by-depth", **OPTIONS)
    manifest = artifacts.read_manifest(folder, Kind.RERANKED)
    assert manifest.counts["depths"] == [1, 4]
    assert manifest.counts["seconds"] > 0
    for depth in (1, 4):
        alone = rerank(
            made / "dense.parquet", model=str(reranker), depth=[depth], output=tmp_path / f"{depth}.parquet", **OPTIONS
        )
        one, other = runs.read_run(folder / f"depth-{depth}.parquet"), runs.read_run(alone)
        assert one.drop("score").equals(other.drop("score"))
        np.testing.assert_allclose(one["score"], other["score"], atol=1e-4)
        part = artifacts.read_manifest(folder / f"depth-{depth}.parquet", Kind.RUN)
        single = artifacts.read_manifest(alone, Kind.RUN)
        assert part.counts == single.counts
        assert part.options == single.options
        assert part.input_path("corpus") == single.input_path("corpus")
    assert artifacts.read_manifest(folder / "depth-1.parquet").counts["pairs"] == 6


def test_quality_and_cost_are_by_depth(made: Path, reranker: Path, tmp_path: Path, notices: Notices) -> None:
    runs_of = {}
    for name in ("bm25", "dense"):
        depths = (1, 3) if name == "bm25" else (1, 2)
        out = tmp_path / f"{name}-by-depth"
        runs_of[name] = rerank(made / f"{name}.parquet", model=str(reranker), depth=depths, output=out, **OPTIONS)
    given = [str(made / "collection"), str(made / "bm25.parquet")]
    folders = [f"bm25={runs_of['bm25']}", str(runs_of["dense"])]
    options: dict[str, Any] = {"split": "test", "measure": ["MRR@10", "R@100"], "reranked": folders}
    shown = Page(report(given, output=tmp_path / "report.html", **options))
    assert "reranked" in shown.sections
    assert notices.says("short-lists", run="bm25, 3 rescored")
    rows = shown.rows("reranked-quality")
    expected = [("bm25", 0), ("bm25", 1), ("bm25", 3), ("dense-by-depth", 0), ("dense-by-depth", 1)]
    expected += [("dense-by-depth", 2)]
    assert [(row["stage"], row["depth"]) for row in rows] == expected
    done = hybrid("evaluate", *given, runs_of["bm25"] / "depth-3.parquet", "--split", "test", "--format", "json")
    means = {run["run"]: run["means"]["MRR@10"] for run in json.loads(done.out)["runs"]}
    assert [row["mean"] for row in rows if row["stage"] == "bm25"][::2] == [
        pytest.approx(means["bm25"], abs=1e-5),
        pytest.approx(means["depth-3"], abs=1e-5),
    ]
    costs = [row["ms"] for row in rows if row["stage"] == "bm25"]
    assert costs[0] == 0 < costs[1] < costs[2]
    with raises("other-kind", path="dense.parquet"):
        report(given, output=tmp_path / "no.html", split="test", reranked=[str(made / "dense.parquet")])


@pytest.fixture
def place(here: Path, reranker: Path) -> Path:
    (here / "reranker").symlink_to(reranker)
    return here


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ("dense.parquet --collection other", refusal("other-corpus", path="dense.parquet")),
        ("foreign.parquet", refusal("corpus-missing", option="collection")),
        ("foreign.parquet --collection collection", refusal("queries-missing", option="queries")),
        (
            "foreign.parquet --collection collection --split test",
            refusal("other-corpus", path="foreign.parquet", id="moonstone"),
        ),
        ("foreign.parquet --collection collection --split train", refusal("unknown-id", id="001")),
    ],
)
def test_unusable_input_is_refused(place: Path, words: str, complaint: str | Refusal) -> None:
    rows = [("001", "007", 1, 2.0), ("001", "moonstone", 2, 1.0), ("002", "rock", 1, 1.0)]
    pl.DataFrame(rows, schema=runs.SCHEMA, orient="row").write_parquet("foreign.parquet")
    other = Path("other")
    other.mkdir()
    pl.DataFrame({"docid": ["007"], "title": [""], "text": ["x"]}).write_parquet(other / "corpus.parquet")
    refused("rerank", *words.split(), "--model", "reranker", "--output", "out.parquet", problem=complaint)


def test_a_query_without_text_keeps_its_order(place: Path) -> None:
    write_run(Path("run.parquet"), [("e", "007", 1, 2.0), ("e", "salt", 2, 1.0), ("f", "salt", 1, 1.0)])
    pl.DataFrame({"qid": ["e", "f"], "text": ["  ", "sea salt"]}).write_parquet("queries.parquet")
    options = ["--model", "reranker", "--collection", "collection", "--queries", "queries.parquet"]
    done = ran("rerank", "run.parquet", *options, "--output", "out.parquet")
    assert done.says("queries-without-text", count=1, path="run.parquet")
    found = runs.read_run(Path("out.parquet"))
    assert found.filter(qid="e").rows() == [("e", "007", 1, 2.0), ("e", "salt", 2, 1.0)]
    assert artifacts.read_manifest("out.parquet").counts["queries_without_text"] == 1


PLAN: dict[str, Any] = {"batch_size": 4, "negatives": 2, "epochs": 2, "checkpoint_steps": 2, "learning_rate": 1e-3}
PLAN |= {"dtype": "fp32", "max_length": 48, "query_max_len": 16, "threads": 1}
PAIRS = pl.DataFrame(
    {
        "query": ["river bank", "a loan of money", "matrix " * 30, "water"],
        "title": ["", "Loans", "", "The root"],
        "text": ["The river has two banks. " * 20, "Money that a bank lends.", "A square matrix.", ""],
    }
)


@pytest.fixture(scope="module")
def trained_reranker(examples: Path, tiny_bert: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train_reranker(examples, model=str(tiny_bert), output=tmp_path_factory.mktemp("out") / "reranker", **PLAN)


def weights(folder: Path) -> bytes:
    return (folder / "model.safetensors").read_bytes()


def test_losses_of_a_group_computed_by_hand() -> None:
    scores = torch.tensor([[2.0, 0.0, 1.0]])
    assert LOSSES["listwise"](scores)["listwise"].item() == pytest.approx(
        math.log(math.exp(2) + 1 + math.e) - 2, abs=1e-6
    )
    by_pair = [math.log(1 + math.exp(-2)), math.log(2), math.log(1 + math.e)]
    assert LOSSES["pointwise"](scores)["pointwise"].item() == pytest.approx(sum(by_pair) / 3, abs=1e-6)


@pytest.mark.parametrize("loss", LOSSES)
def test_the_active_share_is_the_derivative_of_the_positive(loss: RerankerLoss) -> None:
    scores = torch.tensor([[0.5, -1.0], [0.1, 0.4]], requires_grad=True)
    LOSSES[loss](scores)[loss].backward()
    assert scores.grad is not None
    per_positive = -scores.grad[:, 0].mean() * (4 if loss == "pointwise" else 2)  # the mean is over pairs, or groups
    assert diagnostics(scores, loss)["active_share"].item() == pytest.approx(per_positive.item(), abs=1e-6)


@pytest.mark.parametrize("loss", LOSSES)
def test_training_lowers_the_loss(examples: Path, tiny_bert: Path, tmp_path: Path, loss: RerankerLoss) -> None:
    plan = PLAN | {"epochs": 5, "eval_steps": 8, "loss": loss, "learning_rate": 3e-3}
    out = train_reranker(examples, model=str(tiny_bert), output=tmp_path / "out", dev=examples, **plan)
    curve = pl.read_parquet(out / "curve.parquet")
    values = curve.filter(name=loss)["value"].to_list()
    assert np.mean(values[-5:]) < np.mean(values[:5])
    dev = curve.filter(name="dev_MRR@10")["value"].to_list()
    assert dev[0] < max(dev)
    best = artifacts.read_manifest(out, Kind.RERANKER).counts["best_step"]
    assert curve.filter(name="dev_MRR@10", step=best)["value"].item() == max(dev)
    found = DevRanking(examples, 200, CrossEncoder.load(out)).measure()["dev_MRR@10"]
    assert found == pytest.approx(max(dev))


def test_scores_in_bf16_have_more_than_8_significant_bits(trained_reranker: Path) -> None:
    models = [CrossEncoder.load(trained_reranker, device="cpu", dtype=each) for each in ("bf16", "fp32")]  # type: ignore[arg-type]
    rounded, exact = (torch.from_numpy(model.scores(PAIRS)[0]) for model in models)
    assert (rounded != rounded.bfloat16()).any()
    np.testing.assert_allclose(rounded, exact, atol=0.05)


def test_gradient_caching_gives_the_same_gradients(examples: Path, tiny_bert: Path) -> None:
    found = []
    for chunk_size in (None, 5):
        torch.manual_seed(0)
        model = CrossEncoder.load(tiny_bert, device="cpu", train=True)
        learner = RerankerLearner(model, "listwise", torch.float32, chunk_size)
        batch = next(Examples(examples).batches(TrainReranker(examples, output=Path("out"), **PLAN)))
        learner.backward(batch, lambda loss: loss)
        found.append(torch.cat([each.grad.flatten() for each in model.parameters() if each.grad is not None]))
    torch.testing.assert_close(found[0], found[1], atol=1e-5, rtol=1e-4)


def test_matched_words_of_documents_are_masked(examples: Path, tiny_bert: Path) -> None:
    model = CrossEncoder.load(tiny_bert, device="cpu", train=True)
    batch = next(Examples(examples).batches(TrainReranker(examples, output=Path("out"), **PLAN)))
    plain, masked = (
        RerankerLearner(model, "listwise", torch.float32, mask_matches=share).inputs(batch) for share in (0.0, 1.0)
    )
    mask, changed = model.tokenizer.mask_token_id, 0
    for pair, ids in zip(plain.encodings, masked["input_ids"], strict=True):
        rows = zip(pair.ids, pair.tokens, pair.sequence_ids, strict=True)
        query = {number for number, piece, side in rows if side == 0 and piece not in STOP_WORDS}
        wanted = [
            mask if side == 1 and number in query else number
            for number, side in zip(pair.ids, pair.sequence_ids, strict=True)
        ]
        assert ids == wanted
        changed += ids != pair.ids
    assert changed


def test_sentence_transformers_reads_the_output(trained_reranker: Path) -> None:
    models = pytest.importorskip("sentence_transformers")
    theirs = models.CrossEncoder(str(trained_reranker), device="cpu")
    model = CrossEncoder.load(trained_reranker, device="cpu")
    pairs = [(query, model.input.document(title, text)) for query, title, text in PAIRS.rows() if "matrix" not in query]
    ours = model.scores(PAIRS.filter(~pl.col("query").str.contains("matrix")))[0]
    np.testing.assert_allclose(ours, theirs.predict(pairs), atol=1e-5)
    assert np.ptp(ours) > 1e-3


def test_only_the_document_is_cut_after_an_overlong_query(trained_reranker: Path) -> None:
    model = CrossEncoder.load(trained_reranker, device="cpu")
    documents = [model.input.document(*row) for row in PAIRS.select("title", "text").rows()]
    encoded = model.tokens(PAIRS["query"].to_list(), documents)
    sides = [[pair.sequence_ids.count(side) for side in (0, 1)] for pair in encoded.encodings]
    assert sides[0] == [2, 48 - 3 - 2]
    assert sides[2] == [14, len(model.tokenizer("A square matrix.", add_special_tokens=False)["input_ids"])]
    scores = model.scores(PAIRS)[0]
    np.testing.assert_allclose(scores, [model.scores(PAIRS[row])[0][0] for row in range(len(PAIRS))], atol=1e-5)


def changed(reranker: Path, copy: Path, **config: Any) -> Path:
    shutil.copytree(reranker, copy)
    stored = json.loads((copy / "config.json").read_text("utf-8"))
    (copy / "config.json").write_text(json.dumps(stored | config), "utf-8")
    return copy


def test_a_head_of_three_labels_is_replaced_in_training(tiny_bert: Path, tmp_path: Path, notices: Notices) -> None:
    from transformers import AutoModelForSequenceClassification

    model = AutoModelForSequenceClassification.from_pretrained(tiny_bert, num_labels=3)
    shutil.copytree(tiny_bert, tmp_path / "nli")
    model.save_pretrained(tmp_path / "nli")
    with raises("other-kind", labels=3):
        CrossEncoder.load(tmp_path / "nli")
    assert CrossEncoder.load(tmp_path / "nli", train=True).scores(PAIRS)[0].shape == (4,)
    assert notices.says("new-head", path="nli")


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"reranker.json": '{"max_length": 20, "query_max_len": 18}'}, refusal("out-of-range", path="reranker.json")),
        ({"reranker.json": '{"most": 20}'}, refusal("json-unknown-field", path="reranker.json")),
    ],
)
def test_other_files_are_refused(
    trained_reranker: Path, tmp_path: Path, files: dict[str, str], words: str | Refusal
) -> None:
    copy = changed(trained_reranker, tmp_path / "copy")
    for name, content in files.items():
        (copy / name).write_text(content, "utf-8")
    with raises(words):
        CrossEncoder.load(copy)


def test_weights_that_the_architecture_lacks_are_refused(trained_reranker: Path, tmp_path: Path) -> None:
    copy = changed(trained_reranker, tmp_path / "copy")
    tensors = {**load_file(copy / "model.safetensors"), "embeddingHead.weight": torch.zeros(4, 4)}
    save_file(tensors, copy / "model.safetensors", metadata={"format": "pt"})
    for train in (False, True):
        with raises("unknown-weights"):
            CrossEncoder.load(copy, train=train)
