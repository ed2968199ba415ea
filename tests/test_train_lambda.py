"""train-lambda: transformers from labels, static encoders from the impact matrix; the surrogate pool."""

from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from command import raises
from small_artifacts import write_corpus
from tiny_collection import TINY_DOCUMENTS

from hybrid_cli import artifacts
from hybrid_cli.artifacts.examples import open_labels
from hybrid_cli.artifacts.opening import open_bm25
from hybrid_cli.commands import TrainLambda
from hybrid_cli.encoders.composite import Combination
from hybrid_cli.encoders.models import open_encoder
from hybrid_cli.encoders.static import StaticEncoder
from hybrid_cli.encoders.transformer import TransformerEncoder
from hybrid_cli.lexical.index import LexicalIndex
from hybrid_cli.stages.index_bm25 import index_bm25
from hybrid_cli.stages.label import label
from hybrid_cli.stages.search import search
from hybrid_cli.stages.train_lambda import train_lambda
from hybrid_cli.training import static
from hybrid_cli.training.dense import StudentNegatives
from hybrid_cli.training.labels import LabeledQueries, SurrogatePool

Sources = dict[str, Any]
PLAN: dict[str, Any] = {"positives": 2, "negatives": 1, "max_steps": 3, "batch_size": 4, "learning_rate": 1e-3}
PLAN |= {"dtype": "fp32"}
STATIC: dict[str, Any] = {"encoder": "static", "max_steps": 30, "batch_size": 16, "dim": 4, "candidates": (2, 6)}
STATIC |= {"learning_rate": 0.02}


@pytest.fixture(scope="module")
def sources(tiny: Path, tiny_bm25: Path, tmp_path_factory: pytest.TempPathFactory) -> Sources:
    folder = tmp_path_factory.mktemp("lambda")
    labels = label(tiny, index=tiny_bm25, output=folder / "labels", queries_from="all", depth=4)
    return {"collection": tiny, "index": tiny_bm25, "labels": labels, "dev": "train", "dev_queries": 6, "eval_steps": 3}


def options(sources: Sources, **more: Any) -> TrainLambda:
    return TrainLambda(**{**sources, "output": Path("out"), **planned(**more)})


def planned(**more: Any) -> dict[str, Any]:
    """Return `PLAN` with other options, and without hard negatives for the loss `listwise`."""
    return {**(without(PLAN, "negatives") if more.get("loss") == "listwise" else PLAN), **more}


def test_listwise_learns_the_scores_of_a_run(tiny: Path, made: Path, tiny_bert: Path, tmp_path: Path) -> None:
    """Also with an index, for the validation, the teacher is the run that made the labels."""
    run = search(tiny, split="train", index=made / "dense", output=tmp_path / "run.parquet", hits=8)
    labels = label(tiny, run=run, split="train", output=tmp_path / "labels", depth=6)
    plan = planned(loss="listwise", positives=1, max_steps=60, epochs=60, learning_rate=5e-3)
    plan |= {"collection": tiny, "labels": labels, "model": str(tiny_bert)}
    out = train_lambda(output=tmp_path / "out", **plan)
    losses = curve(out)["listwise"]
    assert np.mean(losses[-10:]) < 0.7 * np.mean(losses[:10])
    plan |= {"max_steps": 2, "epochs": 2, "keep": "last", "dev": "train", "index": made / "bm25"}
    validated = train_lambda(output=tmp_path / "validated", **plan)
    assert curve(validated)["listwise"][0] == losses[0]
    with raises("conflicting-options", option="dynamic_negatives"):
        train_lambda(output=tmp_path / "no", **plan, dynamic_negatives=1)


def without(sources: Sources, *names: str) -> Sources:
    return {name: value for name, value in sources.items() if name not in names}


def static_options(sources: Sources, **more: Any) -> TrainLambda:
    return TrainLambda(**{**sources, "output": Path("out"), **STATIC, **more})


def labelled(sources: Sources, plan: TrainLambda) -> LabeledQueries:
    return LabeledQueries(open_labels(sources["labels"]), sources["collection"], plan, sources["labels"].parent)


def bags(index: LexicalIndex, encoder: StaticEncoder, plan: TrainLambda) -> static.BagsOfTerms:
    everything = np.arange(len(index.docids))
    return static.BagsOfTerms(index, encoder, plan, None, index.impacts.of_documents(everything))


def curve(folder: Path) -> dict[str, list[float]]:
    table = pl.read_parquet(folder / "curve.parquet")
    return {name: part["value"].to_list() for (name,), part in table.group_by(["name"], maintain_order=True)}


def test_every_step_draws_a_top_ranked_and_a_bottom_ranked_hit(sources: Sources) -> None:
    queries = labelled(sources, options(sources))
    lists = {row["text"]: row["docids"] for row in pl.read_parquet(sources["labels"] / "labels/*.parquet").to_dicts()}
    assert queries.dropped == sum(len(docids) < 3 for docids in lists.values())
    texts = {docid: (title, text) for docid, title, text in TINY_DOCUMENTS}
    groups = [group for batch in labelled(sources, options(sources, epochs=20)).batches() for group in batch]
    assert len(groups) == 20 * len(queries)
    for group in groups:
        best, worst = lists[group.query][:2], lists[group.query][-1:]
        assert group.positives == set(best)
        assert group.docids[0] in best
        assert group.docids[1:] == worst
        assert [texts[docid] for docid in group.docids] == list(zip(group.titles, group.texts, strict=True))
    assert {group.docids[0] == lists[group.query][0] for group in groups} == {True, False}


def test_batches_resume_at_any_step(sources: Sources) -> None:
    queries = labelled(sources, options(sources, epochs=3))
    whole = list(queries.batches())
    for done in (1, 4, len(whole) - 1):
        assert list(queries.batches(done)) == whole[done:]


@pytest.mark.parametrize("loss", [{}, {"loss": "listwise"}, {"loss": "listwise", "dynamic_negatives": 2}])
def test_a_transformer_is_an_encoder(sources: Sources, tiny_bert: Path, tmp_path: Path, loss: dict[str, Any]) -> None:
    plan = {**sources, **planned(**loss), "max_steps": 25, "epochs": 25, "dim": 8}
    output = train_lambda(output=tmp_path / "lambda", model=str(tiny_bert), **plan)
    values = curve(output)
    loss_values = values[loss.get("loss", "nll")]
    assert np.mean(loss_values[-5:]) < np.mean(loss_values[:5])
    assert 0 < values["dev_RBO"][-1] <= 1
    encoder = open_encoder(output)
    assert isinstance(encoder, TransformerEncoder)
    assert encoder.dim == 8
    assert artifacts.read_manifest(output).counts["queries"] == len(labelled(sources, options(sources, **loss)))


@pytest.mark.heavy
def test_a_transformer_adds_to_the_static_encoder(sources: Sources, tiny_bert: Path, tmp_path: Path) -> None:
    base = train_lambda(
        output=tmp_path / "static", **{**without(sources, "dev", "dev_queries", "eval_steps"), **STATIC}
    )
    plan = {**sources, **PLAN, "max_steps": 25, "epochs": 25, "eval_steps": 25, "model": str(tiny_bert)}
    plan |= {"batch_size": 8, "learning_rate": 5e-3}
    output = train_lambda(output=tmp_path / "sum", base=str(base), **plan)
    loss = curve(output)["nll"]
    assert np.mean(loss[-5:]) < np.mean(loss[:5])
    whole, static_only = open_encoder(output), open_encoder(base)
    assert isinstance(whole, Combination)
    added = open_encoder(output / "part-2")
    texts = ["salt water", "oxygen in the blood"]
    together = static_only.encode_queries(texts) + added.encode_queries(texts)
    np.testing.assert_allclose(whole.encode_queries(texts), together, rtol=1e-6)
    assert np.abs(added.encode_queries(texts)).max() > 0
    start = open_encoder(train_lambda(output=tmp_path / "start", base=str(base), **{**plan, "learning_rate": 1e-12}))
    np.testing.assert_allclose(start.encode_queries(texts), static_only.encode_queries(texts), atol=1e-5)
    weights = next(base.glob("*.safetensors"))
    content = weights.read_bytes()
    weights.unlink()  # a part of the output has a hard link to it
    weights.write_bytes(content[:-1])
    train_lambda(output=output, base=str(base), **plan)  # up to date: the damaged base is not opened
    with raises("option-does-not-apply", option="dim"):
        train_lambda(output=tmp_path / "no", base=str(base), dim=3, **plan)


def test_student_negatives_are_top_ranked_documents_of_the_student(sources: Sources, tiny_bert: Path) -> None:
    queries = labelled(sources, options(sources))
    encoder = TransformerEncoder.load(tiny_bert)
    plan = options(sources, loss="listwise", dynamic_negatives=2, checkpoint_steps=3, seed=0)
    negatives = StudentNegatives(encoder, queries.texts, plan, torch.float32, plan.dynamic_negatives)
    plain = list(islice(queries.batches(), 2))
    for before, after in zip(plain, list(negatives.added(iter(plain), 0)), strict=True):
        encoder.eval()
        for old, new in zip(before, after, strict=True):
            assert new.docids[: len(old.docids)] == old.docids
            assert len(set(new.docids)) == len(old.docids) + 2
            others = queries.texts.filter(~pl.col("docid").is_in(old.docids))
            scores = (
                encoder.encode_queries([old.query])
                @ encoder.encode_documents(others["title"].to_list(), others["text"].to_list()).T
            )
            best = others["docid"].gather(np.argsort(-scores[0])[:2]).to_list()
            assert sorted(new.docids[-2:]) == sorted(best)


def test_a_static_encoder_learns_to_rank_like_bm25(sources: Sources, tmp_path: Path) -> None:
    output = train_lambda(output=tmp_path / "static", **{**sources, **STATIC, "max_steps": 150, "eval_steps": 10})
    values = curve(output)
    assert values["dev_RBO"][-1] > values["dev_RBO"][0]
    assert np.mean(values["listwise"][-10:]) < 0.7 * np.mean(values["listwise"][:10])
    encoder = open_encoder(output)
    assert isinstance(encoder, StaticEncoder)
    assert encoder.dim == 4


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("kind", ["static", "transformer"])
def test_equal_trainings_with_equal_threads_have_equal_files_whatever_validates_them(
    sources: Sources, tiny_bert: Path, tmp_path: Path, kind: str, threads: int
) -> None:
    plan = {**sources, **(STATIC if kind == "static" else {**PLAN, "model": str(tiny_bert)}), "threads": threads}
    plan |= {"max_steps": 4, "keep": "last"}
    one, two, other = (
        train_lambda(output=tmp_path / name, **{**plan, "dev": dev})
        for name, dev in (("one", "train"), ("two", "train"), ("other", "test"))
    )
    assert len({artifacts.read_manifest(folder).fingerprint for folder in (one, two, other)}) == 1
    assert (one / "curve.parquet").read_bytes() == (two / "curve.parquet").read_bytes()
    assert curve(one)["dev_MRR"] != curve(other)["dev_MRR"]


def test_unseen_terms_match_themselves(sources: Sources, tmp_path: Path) -> None:
    encoder = open_encoder(train_lambda(output=tmp_path / "static", **{**sources, **STATIC, "dim": 32}))
    texts = ["zyzzyva qwertz", "flibbertigibbet", "moon"]
    scores = encoder.encode_queries(["zyzzyva", "flibbertigibbet"]) @ encoder.encode_documents([""] * 3, texts).T
    assert scores.argmax(1).tolist() == [0, 1]


@pytest.mark.parametrize("texts", [["The moon pulls the oceans."], ["The moon pulls the oceans.", ""]])
def test_a_corpus_of_one_sentence_trains_a_static_encoder(tmp_path: Path, texts: list[str]) -> None:
    corpus = write_corpus(tmp_path / "corpus.parquet", texts)
    index = index_bm25(corpus, output=tmp_path / "bm25")
    output = train_lambda(corpus, index=index, output=tmp_path / "static", **{**STATIC, "max_steps": 3})
    assert np.isfinite(open_encoder(output).encode_queries(["moon", "nothing known"])).all()


def test_the_students_top_documents_are_candidates(sources: Sources, monkeypatch: pytest.MonkeyPatch) -> None:
    """With tables of ones, the student ranks documents by the sum of their weights."""
    index = open_bm25(sources["index"])
    encoder = StaticEncoder.over(index, ("title", "text"), dim=1, vocab_size=40, hash_buckets=5)
    encoder.query_table.data.fill_(1)
    encoder.document_table.data.fill_(1)
    monkeypatch.setattr(static, "STUDENT_POOL", 100)
    candidates = {"candidates": (1, 1), "dynamic_negatives": 1}
    source = bags(index, encoder, static_options(sources, **candidates))
    weights = source.documents(np.arange(len(index.docids)))
    best = weights[[int(weights.sum(1).argmax())]].toarray()
    for batch in islice(source.batches(), 3):
        assert (batch.documents.toarray() == best).all(1).any()


def test_the_matrix_and_the_texts_give_equal_weights(sources: Sources) -> None:
    index = open_bm25(sources["index"])
    encoder = StaticEncoder.over(index, ("title", "text"), dim=3, vocab_size=40, hash_buckets=5)
    rows = np.arange(len(index.docids))
    of_matrix = bags(index, encoder, static_options(sources)).documents(rows)
    of_texts = encoder.document_weights(
        [title for _, title, _ in TINY_DOCUMENTS], [text for *_, text in TINY_DOCUMENTS]
    )
    kept = of_texts.toarray()[:, :40]  # terms that share a row are added before or after the saturation
    np.testing.assert_allclose(of_matrix.toarray()[:, :40], kept, atol=1e-5)


def test_the_gradient_of_the_sparse_product_equals_that_of_a_dense_one() -> None:
    from scipy.sparse import random as random_matrix

    matrix: Any = random_matrix(5, 7, density=0.5, random_state=0, format="csr", dtype=np.float32)
    table = torch.randn(7, 3, requires_grad=True)
    again = table.detach().clone().requires_grad_()
    expected = torch.from_numpy(matrix.toarray()) @ again
    found = static.SparseProduct.apply(matrix, table)  # type: ignore[no-untyped-call]
    torch.testing.assert_close(found, expected)
    found.square().sum().backward()
    expected.square().sum().backward()
    torch.testing.assert_close(table.grad, again.grad)


QUERIES = pl.DataFrame({"qid": ["a", "b", "c"], "text": ["0", "1", "2"]})
HITS = pl.DataFrame(
    {
        "qid": ["a", "a", "a", "b", "b", "c"],
        "docid": ["d1", "d2", "d3", "d1", "d4", "d5"],
        "rank": [1, 2, 3, 1, 2, 1],
        "score": [3.0, 2.0, 1.0, 5.0, 4.0, 9.0],
    },
    schema_overrides={"rank": pl.Int32, "score": pl.Float32},
)


class Table:
    """An encoder whose n-th query has the scores in the n-th row of a table."""

    def __init__(self, scores: list[list[float]]) -> None:
        self.scores = np.array(scores, np.float32)

    def encode_queries(self, texts: Sequence[str]) -> np.ndarray:
        return self.scores[[int(text) for text in texts]]

    def encode_documents(self, titles: Sequence[str], texts: Sequence[str]) -> np.ndarray:
        return np.eye(self.scores.shape[1], dtype=np.float32)[: len(texts)]


def table(scores: list[list[float]]) -> Any:
    return Table(scores)


def texts(docids: pl.Series) -> pl.DataFrame:
    return pl.DataFrame({"docid": sorted(docids), "title": "", "text": "x"})


@pytest.mark.parametrize(
    ("scores", "mrr"),
    [
        ([[3, 2, 1], [3, 2, 1]], 1.0),
        ([[1, 2, 3], [3, 2, 1]], (1 / 3 + 1) / 2),
        ([[2, 2, 1], [0, 0, 0]], (1 / 2 + 1 / 3) / 2),  # ties count against it
    ],
)
def test_mrr_by_hand(scores: list[list[float]], mrr: float) -> None:
    pool = SurrogatePool.of(QUERIES, HITS, texts, lambda pairs: pl.Series([1.0] * len(pairs)), negatives=1)
    assert pool.measure(table(scores))["dev_MRR"] == pytest.approx(mrr)
    assert pool.queries["qid"].to_list() == ["a", "b"]  # c has a single hit
    assert (pool.documents["docid"].to_list(), list(pool.own)) == (["d1", "d3", "d4"], [0, 0])


def test_the_overlap_with_the_teacher_itself_is_one() -> None:
    known = {"d1": 3.0, "d3": 2.0, "d4": 1.0}
    pool = SurrogatePool.of(QUERIES, HITS, texts, negatives=1, score=lambda pairs: pairs["docid"].replace_strict(known))
    assert pool.measure(table([[3, 2, 1], [3, 2, 1]]))["dev_RBO"] == pytest.approx(1)
    assert pool.measure(table([[1, 2, 3], [1, 2, 3]]))["dev_RBO"] < 0.9
