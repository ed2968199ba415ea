"""Lambda as a person trains it: from labels or from the matrix, killed and begun again, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from small_artifacts import write_corpus
from tiny_collection import TINY_DOCUMENTS

from hybrid_cli import artifacts
from hybrid_cli.config import Imitation, Optimization, StaticTraining
from hybrid_cli.encoders.encoder import open_encoder
from hybrid_cli.encoders.static import StaticEncoder
from hybrid_cli.encoders.transformer import TransformerEncoder
from hybrid_cli.errors import InputError
from hybrid_cli.lexical.index import LexicalIndex
from hybrid_cli.stages.index_bm25 import index_bm25
from hybrid_cli.stages.label import label
from hybrid_cli.stages.train_lambda import Sources, train_lambda, train_static_lambda
from hybrid_cli.training import static
from hybrid_cli.training.hard_negatives import OwnErrors
from hybrid_cli.training.lambda_data import LabelledQueries

HOW = Imitation(positives=2, negatives=1)
PLAN = Optimization(max_steps=3, batch_size=4, learning_rate=1e-3, precision="fp32", eval_steps=3)
STATIC = StaticTraining(max_steps=30, batch_size=16, dim=4, hard=2, sampled=6, learning_rate=0.02, eval_steps=10)


@pytest.fixture(scope="module")
def sources(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Sources:
    folder = tmp_path_factory.mktemp("lambda")
    index = index_bm25(tiny, output=folder / "bm25")
    labels = label(tiny, index=index, output=folder / "labels", queries_from="all", depth=4)
    return Sources(tiny, index, labels, "train", 6)


def curve(folder: Path) -> dict[str, list[float]]:
    table = pl.read_parquet(folder / "curve.parquet")
    return {name: part["value"].to_list() for (name,), part in table.group_by(["name"], maintain_order=True)}


def test_every_step_shows_one_of_the_best_and_one_of_the_worst(sources: Sources):
    assert sources.labels is not None
    queries = LabelledQueries(sources.labels, sources.collection, HOW)
    lists = {row["text"]: row["docids"] for row in pl.read_parquet(sources.labels / "labels/*.parquet").to_dicts()}
    assert queries.dropped == sum(len(docids) < 3 for docids in lists.values())
    texts = {docid: (title, text) for docid, title, text in TINY_DOCUMENTS}
    groups = [group for batch in queries.batches(replace(PLAN, epochs=20)) for group in batch]
    assert len(groups) == 20 * len(queries)
    for group in groups:
        best, worst = lists[group.query][:2], lists[group.query][-1:]
        assert group.positives == set(best)
        assert group.docids[0] in best
        assert group.docids[1:] == worst
        assert [texts[docid] for docid in group.docids] == list(zip(group.titles, group.texts, strict=True))
    assert {group.docids[0] == lists[group.query][0] for group in groups} == {True, False}


def test_batches_go_on_where_they_were_left(sources: Sources):
    assert sources.labels is not None
    queries = LabelledQueries(sources.labels, sources.collection, HOW)
    plan = replace(PLAN, epochs=3)
    whole = list(queries.batches(plan))
    for done in (1, 4, len(whole) - 1):
        assert list(queries.batches(plan, done)) == whole[done:]


@pytest.mark.parametrize(("loss", "errors"), [("contrastive", 0), ("listwise", 0), ("listwise", 2)])
def test_a_transformer_learns_and_is_an_encoder(sources: Sources, tiny_bert: Path, tmp_path: Path, loss, errors):
    how = replace(HOW, loss=loss, errors=errors)
    plan = replace(PLAN, max_steps=25, epochs=25)
    output = train_lambda(sources, tmp_path / "lambda", model=str(tiny_bert), how=how, plan=plan, contract={"dim": 8})
    values = curve(output)
    loss_values = values["nll" if loss == "contrastive" else "listwise"]
    assert np.mean(loss_values[-5:]) < np.mean(loss_values[:5])
    assert 0 < values["dev_RBO"][-1] <= 1
    encoder = open_encoder(output)
    assert isinstance(encoder, TransformerEncoder)
    assert encoder.dim == 8
    assert artifacts.read_manifest(output).counts["queries"] == len(
        LabelledQueries(sources.labels, sources.collection, how)
    )


def test_a_transformer_meets_what_it_ranks_high_itself(sources: Sources, tiny_bert: Path, tmp_path: Path):
    queries = LabelledQueries(sources.labels, sources.collection, HOW)
    encoder = TransformerEncoder.load(tiny_bert)
    errors = OwnErrors(encoder, queries.texts, 2, 100, 3, 0, torch.float32)
    plain = list(islice(queries.batches(PLAN), 2))
    for before, after in zip(plain, list(errors.added(iter(plain), 0)), strict=True):
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


def test_the_same_seed_gives_the_same_transformer(sources: Sources, tiny_bert: Path, tmp_path: Path):
    same = [
        open_encoder(train_lambda(sources, tmp_path / name, model=str(tiny_bert), how=HOW, plan=PLAN))
        for name in ("one", "two")
    ]
    np.testing.assert_array_equal(*(encoder.encode_queries(["salt water"]) for encoder in same))


def test_a_static_encoder_learns_to_rank_as_bm25(sources: Sources, tmp_path: Path):
    output = train_static_lambda(sources, tmp_path / "light", plan=replace(STATIC, max_steps=150))
    values = curve(output)
    assert values["dev_RBO"][-1] > values["dev_RBO"][0]
    assert np.mean(values["listwise"][-10:]) < 0.7 * np.mean(values["listwise"][:10])
    encoder = open_encoder(output)
    assert isinstance(encoder, StaticEncoder)
    assert encoder.dim == 4


def test_the_students_own_errors_are_candidates(sources: Sources):
    """Whatever its tables say: here it ranks documents by the first term's weight alone."""
    assert sources.index is not None
    index = LexicalIndex.open(sources.index)
    encoder = StaticEncoder.over(index, ("title", "text"), dim=1, most_terms=40, shared_rows=5)
    encoder.query_table.data.fill_(1)
    encoder.document_table.data.fill_(1)
    plan = replace(STATIC, sampled=1, hard=1, errors=1, pool=100)
    source = static.BagsOfTerms(index, encoder, plan, None)
    weights = source.documents(np.arange(len(index.docids)))
    best = weights[[int(weights.sum(1).argmax())]].toarray()
    for batch in islice(source.batches(), 3):
        assert (batch.documents.toarray() == best).all(1).any()


def test_the_matrix_and_the_texts_weigh_documents_alike(sources: Sources):
    assert sources.index is not None
    index = LexicalIndex.open(sources.index)
    encoder = StaticEncoder.over(index, ("title", "text"), dim=3, most_terms=40, shared_rows=5)
    rows = np.arange(len(index.docids))
    of_matrix = static.BagsOfTerms(index, encoder, STATIC, None).documents(rows)
    of_texts = encoder.document_weights(
        [title for _, title, _ in TINY_DOCUMENTS], [text for *_, text in TINY_DOCUMENTS]
    )
    kept = of_texts.toarray()[:, :40]  # terms that share a row add up before BM25 saturates them, or after
    np.testing.assert_allclose(of_matrix.toarray()[:, :40], kept, atol=1e-5)


@pytest.mark.parametrize("candidates", [{}, {"sampled": 3, "hard": 1, "errors": 2, "pool": 9}])
def test_a_static_training_goes_on_where_it_was_left(sources: Sources, tmp_path: Path, monkeypatch, candidates):
    plan = replace(STATIC, checkpoint_steps=7, **candidates)
    whole = train_static_lambda(sources, tmp_path / "whole", plan=plan)
    true, steps = static.StaticLearner.backward, []

    def killed(self, *arguments):
        steps.append(1)
        if len(steps) == 17:
            raise KeyboardInterrupt
        return true(self, *arguments)

    monkeypatch.setattr(static.StaticLearner, "backward", killed)
    with pytest.raises(KeyboardInterrupt):
        train_static_lambda(sources, tmp_path / "again", plan=plan)
    assert not (tmp_path / "again").exists()
    train_static_lambda(sources, tmp_path / "again", plan=plan)
    assert len(steps) == 17 + 30 - 14
    one, two = (open_encoder(folder) for folder in (whole, tmp_path / "again"))
    np.testing.assert_array_equal(one.encode_queries(["salt water"]), two.encode_queries(["salt water"]))


def test_the_gradient_of_the_sparse_product_is_that_of_a_dense_one():
    from scipy.sparse import random as random_matrix

    matrix = random_matrix(5, 7, density=0.5, random_state=0, format="csr", dtype=np.float32)
    table = torch.randn(7, 3, requires_grad=True)
    again = table.detach().clone().requires_grad_()
    wanted = torch.from_numpy(matrix.toarray()) @ again
    found = static._Product.apply(matrix, table)
    torch.testing.assert_close(found, wanted)
    found.square().sum().backward()
    wanted.square().sum().backward()
    torch.testing.assert_close(table.grad, again.grad)


def test_what_does_not_fit_is_refused(sources: Sources, tiny: Path, tiny_bert: Path, tmp_path: Path):
    with pytest.raises(InputError, match="a transformer learns from teacher labels"):
        train_lambda(replace(sources, labels=None), tmp_path / "no", model=str(tiny_bert))
    with pytest.raises(InputError, match="lists have 4 hits at most, --positives 10 and --negatives 5 need 15"):
        train_lambda(sources, tmp_path / "no", model=str(tiny_bert))
    few = label(tiny, index=sources.index, split="test", output=tmp_path / "few", depth=4)
    few = replace(sources, labels=few)
    with pytest.raises(InputError, match="no query has 4 hits"):
        train_lambda(few, tmp_path / "no", model=str(tiny_bert), how=Imitation(positives=2, negatives=2))
    with pytest.raises(InputError, match="--errors: the teacher scores them; needs --loss listwise"):
        train_lambda(sources, tmp_path / "no", model=str(tiny_bert), how=replace(HOW, errors=2))
    with pytest.raises(InputError, match="needs --index, whose exact scores are imitated"):
        train_lambda(replace(sources, index=None), tmp_path / "no", how=replace(HOW, loss="listwise"))
    with pytest.raises(InputError, match="learns from the impact matrix; give --index"):
        train_static_lambda(replace(sources, index=None), tmp_path / "no")
    with pytest.raises(InputError, match="--dev: validation needs the teacher's scores"):
        train_lambda(replace(sources, index=None), tmp_path / "no", model=str(tiny_bert), how=HOW)
    assert not list(tmp_path.glob(".no*"))
    other = write_corpus(tmp_path / "corpus.parquet", ["another text"])
    with pytest.raises(InputError, match="another corpus"):
        train_static_lambda(replace(sources, collection=other, dev=None), tmp_path / "no", plan=STATIC)
    with pytest.raises(InputError, match=r"names document .*, which the corpus lacks"):
        train_lambda(Sources(other, None, sources.labels), tmp_path / "no", model=str(tiny_bert), how=HOW)
    assert not (tmp_path / "no").exists()


@pytest.mark.parametrize("texts", [["The moon pulls the oceans."], ["The moon pulls the oceans.", ""]])
def test_a_corpus_of_one_sentence_trains_a_static_encoder(tmp_path: Path, texts: list[str]):
    corpus = write_corpus(tmp_path / "corpus.parquet", texts)
    index = index_bm25(corpus, output=tmp_path / "bm25")
    output = train_static_lambda(Sources(corpus, index), tmp_path / "light", plan=replace(STATIC, max_steps=3))
    assert np.isfinite(open_encoder(output).encode_queries(["moon", "nothing known"])).all()


def test_terms_that_were_never_seen_are_found_too(sources: Sources, tmp_path: Path):
    encoder = open_encoder(train_static_lambda(sources, tmp_path / "light", plan=replace(STATIC, dim=32)))
    texts = ["zyzzyva qwertz", "flibbertigibbet", "moon"]
    scores = encoder.encode_queries(["zyzzyva", "flibbertigibbet"]) @ encoder.encode_documents([""] * 3, texts).T
    assert scores.argmax(1).tolist() == [0, 1]
