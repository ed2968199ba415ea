"""Pretraining: batches of masked spans, and their gradients in chunks and with caching."""

import operator
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from command import raises
from small_artifacts import write_corpus
from transformers import AutoTokenizer

from hybrid_cli.commands import Pretrain
from hybrid_cli.encoders.contract import Contract
from hybrid_cli.encoders.models import resolve
from hybrid_cli.training import parallel, pretraining
from hybrid_cli.training.losses import Terms
from hybrid_cli.training.pretraining import IGNORED, Corpus, MaskedLanguageModel, Pieces, PretrainingLearner, Spans

PLAN = Pretrain(Path("corpus"), output=Path("out"), batch_size=4, epochs=3, max_length=12, held_out=3, seed=7)
TEXTS = [f"number{n} " + "alpha beta gamma delta " * (n % 5) for n in range(40)]


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(resolve("minilm"))


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pretraining, "BLOCK", 8)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_corpus(tmp_path_factory.mktemp("corpus") / "corpus.parquet", TEXTS)


@pytest.fixture
def open_corpus(path: Path, tokenizer: Any) -> Callable[..., Corpus]:
    return lambda **changes: Corpus(path, tokenizer, Contract().document, PLAN.changed(**changes))


def plain(spans: Spans) -> list[tuple[int, ...]]:
    pairs = zip(spans.ids, spans.labels, strict=True)
    return [tuple(np.where(labels == IGNORED, ids, labels)[1:-1].tolist()) for ids, labels in pairs]


def same(one: Spans, other: Spans) -> bool:
    flat = [[*spans.ids, *spans.labels] for spans in (one, other)]
    return len(flat[0]) == len(flat[1]) and all(map(np.array_equal, *flat))


def held_out_of(corpus: Corpus) -> Spans:
    found = corpus.held_out()
    assert found is not None
    return found


def numbers(tokenizer: Any, spans: Any) -> list[str]:
    texts = [tokenizer.decode(ids) for ids in spans]
    return [text.split()[0] for text in texts if text.startswith("number")]


def test_an_epoch_has_every_token_of_every_document_once(open_corpus: Callable[..., Corpus], tokenizer: Any) -> None:
    spans = [span for batch in open_corpus(epochs=1, held_out=0).batches() for span in plain(batch)]
    assert Counter(numbers(tokenizer, spans)) == Counter(text.split()[0] for text in TEXTS)
    whole = tokenizer(TEXTS, add_special_tokens=False)["input_ids"]
    assert Counter(piece for span in spans for piece in span) == Counter(piece for ids in whole for piece in ids)
    assert max(map(len, spans)) <= PLAN.max_length - 2


def test_epochs_and_seeds_differ_in_order_and_masks_only(open_corpus: Callable[..., Corpus], tokenizer: Any) -> None:
    batches = list(open_corpus().batches())
    each = len(batches) // 3
    first, second, _ = (batches[epoch * each :][:each] for epoch in range(3))
    spans = [[span for batch in epoch for span in plain(batch)] for epoch in (first, second)]
    assert Counter(spans[0]) == Counter(spans[1])
    assert spans[0] != spans[1]
    masks = [Counter(tuple(ids.tolist()) for batch in epoch for ids in batch.ids) for epoch in (first, second)]
    assert masks[0] != masks[1]
    assert not same(first[0], next(open_corpus(seed=8).batches()))
    order = [int(name.removeprefix("number")) // 8 for name in numbers(tokenizer, spans[0])]
    assert sum(map(operator.ne, order, order[1:])) == 4, "five blocks, one after the other"
    stopped = open_corpus(max_steps=2)
    assert 8 <= len(stopped) < len(open_corpus())
    assert all(map(same, stopped.batches(), first[:2]))


@pytest.mark.parametrize("cocondenser", [False, True])
def test_batches_do_not_depend_on_the_first_batch(open_corpus: Callable[..., Corpus], cocondenser: bool) -> None:
    whole = list(open_corpus(cocondenser=cocondenser).batches())
    for done in (1, 5, len(whole) // 3, len(whole) // 3 + 1, len(whole) - 1):
        rest = list(open_corpus(cocondenser=cocondenser).batches(done))
        assert len(rest) == len(whole) - done
        assert all(map(same, rest, whole[done:]))


def test_held_out_documents_are_not_trained_on(open_corpus: Callable[..., Corpus], tokenizer: Any) -> None:
    corpus = open_corpus(max_length=64)
    held = numbers(tokenizer, plain(held_out_of(corpus)))
    assert len(held) == len(set(held)) == corpus.held == 3
    trained = {name for batch in corpus.batches() for name in numbers(tokenizer, plain(batch))}
    assert trained == {text.split()[0] for text in TEXTS} - set(held)
    assert same(held_out_of(corpus), held_out_of(open_corpus(max_length=64)))


def test_cocondenser_draws_two_spans_of_a_document(open_corpus: Callable[..., Corpus], tokenizer: Any) -> None:
    batches = list(open_corpus(cocondenser=True, epochs=1, held_out=0).batches())
    assert [len(batch.ids) for batch in batches] == [8] * 8, "documents of one word are dropped"
    for batch in batches:
        spans = plain(batch)
        assert len(numbers(tokenizer, spans[1::2])) == 0, "the second span comes after the first"
    later = next(open_corpus(cocondenser=True, held_out=0).batches(8))
    earlier = {span for batch in batches for span in plain(batch)}
    assert set(plain(later)) - earlier, "new spans in every epoch"


@pytest.mark.parametrize("texts", [[], [""], ["", "", ""]])
def test_a_corpus_without_words_is_refused(tmp_path: Path, tokenizer: Any, texts: list[str]) -> None:
    with raises("no-text"):
        len(Corpus(write_corpus(tmp_path / "corpus.parquet", texts), tokenizer, Contract().document, PLAN))


@contextmanager
def count_texts(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Yield a list of the texts that are tokenized."""
    seen: list[str] = []
    tokenized = pretraining.pieces

    def pieces(tokenizer: Any, texts: list[str]) -> Iterator[Pieces]:
        seen.extend(texts)
        return tokenized(tokenizer, texts)

    with monkeypatch.context() as patch:
        patch.setattr(pretraining, "pieces", pieces)
        yield seen


@pytest.mark.parametrize("cocondenser", [False, True])
def test_a_process_tokenizes_the_documents_of_its_share(
    open_corpus: Callable[..., Corpus], monkeypatch: pytest.MonkeyPatch, cocondenser: bool
) -> None:
    """The shares of two processes are the batches of one."""
    whole = [plain(batch) for batch in open_corpus(cocondenser=cocondenser).batches()]
    shares, texts = [], []
    for rank in range(2):
        corpus = open_corpus(cocondenser=cocondenser, epochs=3)
        assert len(corpus)  # counted, which two processes do together
        with monkeypatch.context() as patch, count_texts(monkeypatch) as seen:
            patch.setattr(parallel, "size", lambda: 2)
            patch.setattr(parallel, "rank", lambda rank=rank: rank)
            shares.append([plain(batch) for batch in corpus.batches()])
        texts.append(len(seen))
    assert [first + second for first, second in zip(*shares, strict=True)] == whole
    assert max(texts) < 3 * len(TEXTS)


class Tokenizer:
    pad_token_id = 0


def batch_of(spans: int = 6) -> Spans:
    rng = np.random.default_rng(0)
    ids = [np.array([101, *rng.integers(1000, 2000, rng.integers(4, 15)), 102]) for _ in range(spans)]
    labels = [np.where(rng.random(len(row)) < 0.4, row, IGNORED) for row in ids]
    return Spans(ids, labels)


def learner(tiny_bert: Path, cocondenser: bool, chunk_size: int | None) -> PretrainingLearner:
    torch.manual_seed(0)
    model = MaskedLanguageModel.load(tiny_bert, condenser=cocondenser).eval()
    return PretrainingLearner(model, Tokenizer(), torch.float32, chunk_size)


def gradients(
    tiny_bert: Path, cocondenser: bool, chunk_size: int | None, batch: Spans
) -> tuple[Terms, list[torch.Tensor | None]]:
    mine = learner(tiny_bert, cocondenser, chunk_size)
    terms = mine.backward(batch, lambda loss: 8 * loss)
    return terms, [parameter.grad for parameter in mine.model.parameters()]


@pytest.mark.parametrize("cocondenser", [False, True])
@pytest.mark.parametrize("chunk_size", [1, 2, 4, 6])
def test_chunks_do_not_change_the_gradient(tiny_bert: Path, cocondenser: bool, chunk_size: int) -> None:
    batch = batch_of()
    whole_terms, whole = gradients(tiny_bert, cocondenser, None, batch)
    terms, parts = gradients(tiny_bert, cocondenser, chunk_size, batch)
    torch.testing.assert_close(terms, whole_terms)
    for one, other in zip(whole, parts, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)


def test_the_gradient_is_that_of_the_sum_of_the_terms(tiny_bert: Path) -> None:
    """Compare with the loss written without rows, chunks and orders."""
    batch = batch_of()
    _, mine = gradients(tiny_bert, True, None, batch)
    model = learner(tiny_bert, True, None).model
    masked = sum((labels != IGNORED).sum() for labels in batch.labels)
    results = [
        model(torch.tensor(ids)[None], torch.ones(1, len(ids)), torch.tensor(labels)[None])
        for ids, labels in zip(batch.ids, batch.labels, strict=True)
    ]
    loss = sum(losses.sum() for _, losses in results) / masked
    vectors = [vector[0] for vector, _ in results]
    for i, vector in enumerate(vectors):
        scores = torch.stack([vector @ other for j, other in enumerate(vectors) if j != i])
        positive = vector @ vectors[i + 1 if i % 2 == 0 else i - 1]
        loss = loss + (torch.logsumexp(scores, 0) - positive) / len(vectors)
    (8 * loss).backward()
    for one, other in zip(mine, [parameter.grad for parameter in model.parameters()], strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)


def test_measured_terms_equal_trained_terms(tiny_bert: Path) -> None:
    batch = batch_of()
    for cocondenser, names in ((False, ["mlm"]), (True, ["mlm", "condenser_mlm", "span_contrast"])):
        mine = learner(tiny_bert, cocondenser, None)
        terms = mine.backward(batch, lambda loss: loss)
        assert list(terms) == names
        assert mine.measure(batch) == pytest.approx({f"held_out_{name}": terms[name].item() for name in names})


def test_a_batch_without_masked_words_has_no_loss(tiny_bert: Path) -> None:
    batch = batch_of()
    nothing = Spans(batch.ids, [np.full(len(ids), IGNORED) for ids in batch.ids])
    assert learner(tiny_bert, False, None).backward(nothing, lambda loss: loss)["mlm"] == 0
