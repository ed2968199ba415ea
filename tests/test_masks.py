"""Masks of words, spans for coCondenser, and the loss of the Condenser head."""

import shutil
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from command import Notices
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional
from transformers import AutoModelForMaskedLM, AutoTokenizer, RobertaConfig, RobertaForMaskedLM

from hybrid_cli.encoders.contract import Contract, OwnEncoder
from hybrid_cli.encoders.models import resolve
from hybrid_cli.encoders.options import Markers
from hybrid_cli.encoders.transformer import Tower
from hybrid_cli.lexical.english import STOP_WORDS
from hybrid_cli.storage import layout
from hybrid_cli.training.pretraining import (
    IGNORED,
    MaskedLanguageModel,
    Pieces,
    WholeWordMasking,
    consecutive,
    pieces,
    two,
)
from hybrid_cli.training.roc import MatchMasking

TOKENIZER = AutoTokenizer.from_pretrained(resolve("minilm"))
QUERY = "what is the inverse of a matrix, (3.5)?"
DOCUMENT = "The inverse: it is a matrix (3.5) of the matrix, and what else?"
WORDS = ["inverse", "matrix", "river", "the", "of", "plot", "3.5", ",", "?", "unaffable"]
words = st.lists(st.sampled_from(WORDS), max_size=20)


def masked_pieces(contract: Contract, tower_tokenizer: Any, share: float, query: str, document: str) -> list[str]:
    masking = MatchMasking(tower_tokenizer, contract, share)
    ids = [tower_tokenizer(text)["input_ids"] for text in (contract.query(query), contract.document("", document))]
    tokens: list[str] = tower_tokenizer.convert_ids_to_tokens(masking(ids[1], ids[0], (0,)))
    return tokens


def test_with_a_share_of_1_exactly_the_matches_are_masked() -> None:
    shown = masked_pieces(Contract(), TOKENIZER, 1.0, QUERY, DOCUMENT)
    expected = "[CLS] the [MASK] : it is a [MASK] ( [MASK] . [MASK] ) of the [MASK] , and [MASK] else ? [SEP]"
    assert shown == expected.split()


@pytest.mark.parametrize("markers", ["replace", "prepend"])
def test_markers_and_prefixes_are_not_masked(tiny_bert: Path, markers: Markers) -> None:
    contract = Contract(markers=markers, query_prefix="question: ", doc_prefix="question water ")
    tokenizer = Tower.load(OwnEncoder(tiny_bert).tower("query"), contract).tokenizer
    shown = masked_pieces(contract, tokenizer, 1.0, "river", "question river")
    head = ["[unused2]", "question", "water"] if markers == "replace" else ["[CLS]", "[unused2]", "question", "water"]
    assert shown == [*head, "question", "[MASK]", "[SEP]"], (
        "the query's prefix matches nothing, the prefix of the document is not masked"
    )


@given(words, words, st.integers(0, 10**6), st.floats(0, 1))
def test_only_matched_words_change(query: list[str], document: list[str], seed: int, share: float) -> None:
    query_ids, ids = (TOKENIZER(" ".join(text))["input_ids"] for text in (query, document))
    masked = MASKING[round(share)](ids, query_ids, [seed])
    assert len(masked) == len(ids)
    for before, after in zip(ids, masked, strict=True):
        if after != before:
            piece = TOKENIZER.convert_ids_to_tokens(before)
            assert after == TOKENIZER.mask_token_id
            assert before in query_ids
            assert before not in TOKENIZER.all_special_ids
            assert piece not in STOP_WORDS
            assert any(character.isalnum() for character in piece)


MASKING = {share: MatchMasking(TOKENIZER, Contract(), float(share)) for share in (0, 1)}


def test_the_mean_share_of_masked_matches_is_the_requested_share() -> None:
    masking = MatchMasking(TOKENIZER, Contract(), 0.15)
    ids = TOKENIZER("matrix " * 100)["input_ids"]
    counts = [masking(ids, ids, [seed]).count(TOKENIZER.mask_token_id) for seed in range(200)]
    assert np.mean(counts) == pytest.approx(15, abs=4 * np.sqrt(100 * 0.15 * 0.85 / 200))


def test_masks_depend_on_the_seed_and_not_on_earlier_draws() -> None:
    masking = MatchMasking(TOKENIZER, Contract(), 0.5)
    ids = TOKENIZER("matrix inverse " * 20)["input_ids"]
    alone = masking(ids, ids, [7, 1])
    for other in range(5):
        masking(ids, ids, [other])
    assert masking(ids, ids, [7, 1]) == alone
    assert masking(ids, ids, [7, 2]) != alone


WORD_SIZES = st.lists(st.integers(1, 4), max_size=40)
ROOM = st.integers(4, 12)


def text_of(sizes: list[int]) -> Pieces:
    starts = np.concatenate([[0], np.cumsum(sizes, dtype=int)])
    return Pieces(np.arange(starts[-1], dtype=np.int32), starts)


def is_cut_between_words(span: Pieces, whole: Pieces) -> bool:
    begin = int(span.ids[0])
    return set(span.starts + begin) <= set(whole.starts.tolist())


def test_words_of_bert_continue_with_double_hashes() -> None:
    tokenizer = AutoTokenizer.from_pretrained(resolve("minilm"))
    texts = ["Numpy's broadcasting(rules), naïvely unsqueezed. [SEP] 3.14", "", "tokenization"]
    for text, found in zip(texts, pieces(tokenizer, texts), strict=True):
        words = tokenizer.tokenize(text)
        assert tokenizer.convert_ids_to_tokens(found.ids.tolist()) == words
        begins = [place for place, piece in enumerate(words) if not piece.startswith("##")]
        assert found.starts.tolist() == [*begins, len(words)]


@given(WORD_SIZES, ROOM)
def test_consecutive_spans_are_the_text(sizes: list[int], room: int) -> None:
    text = text_of(sizes)
    spans = list(consecutive(text, room))
    assert [piece for span in spans for piece in span.ids] == text.ids.tolist()
    assert all(len(span.ids) <= room and is_cut_between_words(span, text) for span in spans)
    for span, after in pairwise(spans):
        assert len(span.ids) + after.starts[1] > room, "the next word would fit"


def test_a_word_longer_than_the_room_is_truncated() -> None:
    spans = list(consecutive(text_of([2, 9, 1]), 4))
    assert [span.ids.tolist() for span in spans] == [[0, 1], [2, 3, 4, 5], [11]]


@given(WORD_SIZES.filter(lambda sizes: len(sizes) > 1), ROOM, st.integers(0, 99))
def test_two_spans_are_disjoint(sizes: list[int], room: int, seed: int) -> None:
    text = text_of(sizes)
    first, second = two(text, room, np.random.default_rng(seed))
    assert 0 < len(first.ids) <= room
    assert 0 < len(second.ids) <= room
    assert first.ids[-1] < second.ids[0]
    assert is_cut_between_words(first, text)
    assert is_cut_between_words(second, text)


def test_two_spans_of_a_long_text_fill_their_room_at_random_positions() -> None:
    text = text_of([1] * 1000)
    draws = [two(text, 50, np.random.default_rng(seed)) for seed in range(40)]
    assert {len(span.ids) for pair in draws for span in pair} == {50}
    assert len({int(first.ids[0]) for first, _ in draws}) > 30
    again = two(text, 50, np.random.default_rng(7))
    assert [span.ids.tolist() for span in again] == [span.ids.tolist() for span in draws[7]]


@pytest.mark.parametrize("sizes", [[], [3]])
def test_a_text_of_fewer_than_two_words_has_no_two_spans(sizes: list[int]) -> None:
    assert two(text_of(sizes), 10, np.random.default_rng(0)) == []


TEXT = (
    "Compute the eigenvalues and right eigenvectors of a square array. The number w is an eigenvalue of a if there "
    "exists a vector v such that a @ v = w * v, hence unnormalized. [SEP] Broadcasting rules apply, [MASK] or not; "
    "see numpy.linalg.eigvalsh for symmetrically stored arrays, and \u16a0\u16a1\u16a2 for something that is unknown. "
)


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(resolve("minilm"))


@pytest.fixture(scope="module")
def span(tokenizer: Any) -> Pieces:
    (found,) = pieces(tokenizer, [TEXT * 3])
    return found


def masked(tokenizer: Any, span: Pieces, seed: int, share: float = 0.15) -> tuple[np.ndarray, np.ndarray]:
    return WholeWordMasking(tokenizer, share)(span, np.random.default_rng(seed))


def test_a_span_gets_cls_and_sep_and_keeps_tokens_that_are_not_predicted(tokenizer: Any, span: Pieces) -> None:
    ids, labels = masked(tokenizer, span, 0)
    assert (ids[0], ids[-1]) == (tokenizer.cls_token_id, tokenizer.sep_token_id)
    assert (labels[0], labels[-1]) == (IGNORED, IGNORED)
    assert not any(map(np.array_equal, (ids, labels), masked(tokenizer, span, 6)))
    assert all(map(np.array_equal, (ids, labels), masked(tokenizer, span, 0)))
    kept = labels[1:-1] == IGNORED
    np.testing.assert_array_equal(ids[1:-1][kept], span.ids[kept])
    np.testing.assert_array_equal(labels[1:-1][~kept], span.ids[~kept])


@pytest.mark.parametrize("share", [0.05, 0.15, 0.4])
def test_the_fraction_is_reached_and_never_exceeded(tokenizer: Any, span: Pieces, share: float) -> None:
    shares = [(masked(tokenizer, span, seed, share)[1] != IGNORED).sum() / len(span.ids) for seed in range(100)]
    assert max(shares) <= share
    short = pieces(tokenizer, ["unsqueezed arrays", "[SEP] [UNK]"])
    least = [masked(tokenizer, each, 0)[1] for each in short]
    assert [(labels != IGNORED).any() for labels in least] == [True, False], "at least one word, no special token"
    assert np.mean(shares) == pytest.approx(share, abs=0.01)


def test_a_word_is_predicted_as_a_whole(tokenizer: Any, span: Pieces) -> None:
    for seed in range(50):
        predicted = masked(tokenizer, span, seed)[1][1:-1] != IGNORED
        for begin, end in pairwise(span.starts):
            assert predicted[begin:end].all() or not predicted[begin:end].any()


def test_special_tokens_are_neither_predicted_nor_inserted(tokenizer: Any, span: Pieces) -> None:
    special = set(tokenizer.all_special_ids)
    assert special & set(span.ids.tolist()) >= {tokenizer.sep_token_id, tokenizer.mask_token_id, tokenizer.unk_token_id}
    for seed in range(100):
        ids, labels = masked(tokenizer, span, seed, 0.9)
        predicted = labels != IGNORED
        assert not special & set(labels[predicted].tolist())
        assert not (special - {tokenizer.mask_token_id}) & set(ids[predicted].tolist())


def test_masks_of_short_spans_and_of_equal_seeds(tokenizer: Any, span: Pieces) -> None:
    nothing, short, kana = pieces(tokenizer, ["[SEP] [UNK]", "unsqueezed arrays", "\u306e\u306b\u306f\u3068 retrieval"])
    assert (masked(tokenizer, nothing, 0)[1] == IGNORED).all()
    assert (masked(tokenizer, short, 0)[1] != IGNORED).any(), "at least one word"
    assert kana.starts.tolist() == [0, 1, 2, 3, 4, 5], "words end within a clause"
    for one, other in zip(masked(tokenizer, span, 5), masked(tokenizer, span, 5), strict=True):
        np.testing.assert_array_equal(one, other)
    assert (masked(tokenizer, span, 5)[1] != masked(tokenizer, span, 6)[1]).any()


def test_eight_of_ten_become_mask_one_a_random_token_and_one_stays(tokenizer: Any, span: Pieces) -> None:
    counts = np.zeros(3)
    for seed in range(200):
        ids, labels = masked(tokenizer, span, seed)
        predicted = labels != IGNORED
        mask, same = ids[predicted] == tokenizer.mask_token_id, ids[predicted] == labels[predicted]
        counts += [mask.sum(), (~mask & ~same).sum(), same.sum()]
    np.testing.assert_allclose(counts / counts.sum(), [0.8, 0.1, 0.1], atol=0.02)


IDS = torch.tensor([[101, 7592, 103, 2088, 102, 0], [101, 103, 3899, 3216, 103, 102]])
MASK = (IDS != 0).long()
LABELS = torch.where(IDS == 103, torch.tensor([[9, 9, 2023, 9, 9, 9], [9, 1996, 9, 9, 2182, 9]]), IGNORED)


def load(folder: Path, condenser: bool = False, skip_layer: int | None = None) -> MaskedLanguageModel:
    torch.manual_seed(0)
    return MaskedLanguageModel.load(folder, condenser=condenser, skip_layer=skip_layer).eval()


class Through(nn.Module):
    def forward(self, states: torch.Tensor, src_key_padding_mask: torch.Tensor) -> torch.Tensor:
        return states


@pytest.fixture(params=["bert", "roberta"])
def checkpoint(request: pytest.FixtureRequest, tiny_bert: Path, tmp_path: Path) -> Path:
    if request.param == "bert":
        return tiny_bert
    torch.manual_seed(0)
    sizes: Any = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    RobertaForMaskedLM(RobertaConfig(vocab_size=8000, pad_token_id=0, **sizes)).save_pretrained(tmp_path)
    return tmp_path


def test_the_loss_is_that_of_transformers(checkpoint: Path) -> None:
    model = load(checkpoint)
    losses = model(IDS, MASK, LABELS)[1]
    theirs = model.whole(IDS, attention_mask=MASK, labels=LABELS).loss
    torch.testing.assert_close(losses.sum() / 3, theirs)
    assert losses.shape == (2, 1)


def test_the_condenser_head_reads_the_late_cls_and_early_tokens(tiny_bert: Path) -> None:
    model: Any = load(tiny_bert, condenser=True, skip_layer=1)
    model.condenser = Through()
    vectors, losses = model(IDS, MASK, LABELS)
    states = model.backbone(IDS, attention_mask=MASK, output_hidden_states=True).hidden_states
    mixed = [torch.cat([states[2][row][:1], states[1][row][1:]]) for row in range(2)]
    expected: list[Any] = [
        sum(functional.cross_entropy(model.whole.cls(mixed[row])[place], LABELS[row, place]) for place in places)
        for row, places in enumerate([[2], [1, 4]])
    ]
    torch.testing.assert_close(losses[:, 1], torch.stack(expected))
    torch.testing.assert_close(vectors, states[2][:, 0])


def test_early_tokens_come_from_the_middle_layer_by_default(tiny_bert: Path) -> None:
    assert load(tiny_bert, condenser=True).skip == 1
    assert load(tiny_bert, condenser=True, skip_layer=0).skip == 0


def test_padding_does_not_change_the_loss(checkpoint: Path) -> None:
    model = load(checkpoint, condenser=True)
    longer = [functional.pad(t, (0, 4), value=v) for t, v in ((IDS, 0), (MASK, 0), (LABELS, IGNORED))]
    for plain, padded in zip(model(IDS, MASK, LABELS), model(*longer), strict=True):
        torch.testing.assert_close(plain, padded)


def test_a_text_without_labels_has_no_loss(tiny_bert: Path) -> None:
    labels = LABELS.clone()
    labels[0] = IGNORED
    losses = load(tiny_bert)(IDS, MASK, labels)[1]
    assert losses[0] == 0
    assert losses[1] > 0


def test_a_new_head_is_noted_tied_and_reproducible(tiny_bert: Path, notices: Notices) -> None:
    model = load(tiny_bert)
    assert notices.says("new-head", path=tiny_bert)
    assert model.whole.get_output_embeddings().weight is model.backbone.get_input_embeddings().weight
    torch.testing.assert_close(load(tiny_bert)(IDS, MASK, LABELS)[1], model(IDS, MASK, LABELS)[1])


@pytest.mark.parametrize("condenser", [False, True])
def test_a_saved_model_keeps_its_heads(tiny_bert: Path, tmp_path: Path, notices: Notices, condenser: bool) -> None:
    model = load(tiny_bert, condenser=condenser)
    shutil.copytree(tiny_bert, tmp_path, dirs_exist_ok=True)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    model.save(tmp_path)
    notices.clear()
    again = load(tmp_path, condenser=condenser)
    assert [(notice.code, notice.fields) for notice in notices.heard] == [
        ("condenser-head", {"path": tmp_path})
    ] * condenser
    for mine, theirs in zip(model(IDS, MASK, LABELS), again(IDS, MASK, LABELS), strict=True):
        torch.testing.assert_close(mine, theirs)
    assert (tmp_path / layout.CONDENSER_HEAD).is_file() == condenser
    theirs = AutoModelForMaskedLM.from_pretrained(tmp_path)(IDS, attention_mask=MASK, labels=LABELS).loss
    torch.testing.assert_close(theirs, model(IDS, MASK, LABELS)[1][:, 0].sum() / 3)
