"""The impact matrix: Lucene's BM25 from bags of words, without Java."""

from __future__ import annotations

from math import log
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybrid_cli.errors import HybridError
from hybrid_cli.lexical.impacts import (
    Impacts,
    Postings,
    PostingsBuilder,
    count,
    decode_length,
    encode_length,
    quantised,
)
from hybrid_cli.lexical.index import Bags, LexicalIndex

K1, B = 0.9, 0.4
DOCUMENTS = [
    ["cat", "sat", "mat"],
    ["cat", "cat", "dog"],
    ["dog", "runs", "fast", "far", "away"],
    ["bird"] * 45 + ["cat"] * 5,
    [],
]
AVERAGE = (3 + 3 + 5 + 50) / 4
GOLDEN = {"d1": 0.221425, "d2": 0.273228, "d4": 0.265370}  # methods 12.1
IDF_CAT, IDF_DOG = log(1 + (4 - 3 + 0.5) / (3 + 0.5)), log(1 + (4 - 2 + 0.5) / (2 + 0.5))
words = st.lists(st.sampled_from("abcdefgh"), max_size=60)
corpora = st.lists(words, min_size=1, max_size=25)


class Known(LexicalIndex):
    """An index whose texts are analysed already: words between spaces. Nothing here needs Java."""

    class _Spaces:
        def analyse(self, texts: list[str]) -> list[list[str]]:
            return [text.split() for text in texts]

        def tokens(self, texts: list[str]) -> tuple[pa.Array, np.ndarray]:
            split = self.analyse(texts)
            flat = pa.array([word for text in split for word in text], pa.string())
            return flat, np.array([len(text) for text in split], np.int64)

    _analyzer = _Spaces()  # type: ignore[assignment]


def known(documents: list[list[str]], k1: float = K1, b: float = B) -> Known:
    docids = pl.Series("docid", [f"d{number}" for number in range(1, len(documents) + 1)], dtype=pl.String)
    return Known(Impacts.of(count(documents), k1, b), docids)


def hits(index: LexicalIndex, text: str, number: int = 10) -> dict[str, float]:
    run = index.search(pl.DataFrame({"qid": ["q"], "text": [text]}), number, 1)
    return dict(zip(run["docid"], run["score"], strict=True))


def part(idf: float, tf: int, length: int) -> float:
    """One term's part of a score (methods 1.1), no length here is one that Lucene rounds."""
    return idf * tf / (tf + K1 * (1 - B + B * length / AVERAGE))


def test_golden_scores_of_one_term():
    assert hits(known(DOCUMENTS), "cat") == pytest.approx(
        {"d2": part(IDF_CAT, 2, 3), "d4": part(IDF_CAT, 5, 50), "d1": part(IDF_CAT, 1, 3)}, abs=1e-6
    )
    assert hits(known(DOCUMENTS), "cat") == pytest.approx(GOLDEN, abs=1e-6)


def test_golden_scores_of_two_terms():
    assert hits(known(DOCUMENTS), "cat dog") == pytest.approx(
        {
            "d2": part(IDF_CAT, 2, 3) + part(IDF_DOG, 1, 3),
            "d3": part(IDF_DOG, 1, 5),
            "d4": part(IDF_CAT, 5, 50),
            "d1": part(IDF_CAT, 1, 3),
        },
        abs=1e-6,
    )


def test_a_repeated_query_word_counts_twice():
    assert hits(known(DOCUMENTS), "cat cat") == pytest.approx(
        {"d2": 2 * part(IDF_CAT, 2, 3), "d4": 2 * part(IDF_CAT, 5, 50), "d1": 2 * part(IDF_CAT, 1, 3)}, abs=1e-6
    )


def test_exact_lengths_where_asked_for():
    impacts = Impacts.of(count(DOCUMENTS), K1, B, exact_length=True)
    assert 1 / impacts.scale[3] == pytest.approx(K1 * (1 - B + B * 50 / AVERAGE))


def test_length_byte_rounds_down_as_lucene_does():
    table = {
        24: 24, 40: 40, 41: 40, 43: 42, 57: 56, 91: 88, 100: 96, 121: 120, 150: 144, 261: 248, 300: 280, 500: 472,
        512: 504, 1000: 984, 5000: 4632,
    }  # fmt: skip
    assert {length: decode_length(encode_length(length)) for length in table} == table
    assert quantised(np.array(list(table))).tolist() == list(table.values())
    assert all(decode_length(encode_length(length)) == length for length in range(41))


@given(st.integers(0, 2**31 - 1))
def test_length_codec_agrees_with_its_table(length):
    byte = encode_length(length)
    assert 0 <= byte <= 255
    assert decode_length(byte) == quantised(np.array([length]))[0] <= length


def test_empty_and_unmatched_queries_have_no_hits():
    index = known(DOCUMENTS)
    assert hits(index, "") == hits(index, "unicorn") == {}
    assert index.search(pl.DataFrame(schema={"qid": pl.String, "text": pl.String}), 10).is_empty()


def test_a_corpus_without_a_token_can_be_searched():
    assert hits(known([[], []]), "cat") == {}


def test_equal_scores_are_ordered_by_docid_as_a_string():
    run = known([["cat"]] * 12).search(pl.DataFrame({"qid": ["q"], "text": ["cat"]}), 12)
    assert run["docid"].to_list() == sorted(f"d{number}" for number in range(1, 13))
    assert run["rank"].to_list() == list(range(1, 13))


@given(corpora, words, st.integers(1, 30))
def test_fewer_hits_are_the_first_of_more(documents, query, number):
    index, text = known(documents), " ".join(query)
    assert list(hits(index, text, number).items()) == list(hits(index, text, 100).items())[:number]


@given(corpora, words, st.randoms())
def test_shuffled_query_words_change_no_bit(documents, query, random):
    index, shuffled = known(documents), list(query)
    random.shuffle(shuffled)
    assert hits(index, " ".join(query), 30) == hits(index, " ".join(shuffled), 30)


@given(corpora, words)
def test_search_finds_all_matches_with_the_formula(documents, query):
    index = known(documents)
    counted = [document for document in documents if document]
    average = sum(map(len, counted)) / len(counted) if counted else 1
    wanted = {}
    for number, document in enumerate(documents, start=1):
        length = K1 * (1 - B + B * decode_length(encode_length(len(document))) / average)
        score = 0.0
        for word in query:
            tf, df = document.count(word), sum(word in other for other in documents)
            score += log(1 + (len(counted) - df + 0.5) / (df + 0.5)) * tf / (tf + length) if tf else 0.0
        if score:
            wanted[f"d{number}"] = score
    assert hits(index, " ".join(query), 30) == pytest.approx(wanted, rel=1e-5)


@given(corpora, st.lists(words, min_size=1, max_size=5))
def test_pair_scores_and_the_product_are_the_search_scores(documents, queries):
    index = known(documents)
    frame = pl.DataFrame({"qid": [f"q{n}" for n in range(len(queries))], "text": [" ".join(q) for q in queries]})
    pairs = frame.select("qid").join(index.docids.to_frame(), how="cross")
    scored = pairs.with_columns(index.score(pairs, frame))
    run = index.search(frame, 100)
    searched = pairs.join(run, on=["qid", "docid"], how="left", maintain_order="left")["score"].fill_null(0.0)
    assert scored["score"].equals(searched)
    product = (index.query_matrix(frame["text"].to_list()) @ index.documents.T).toarray()
    np.testing.assert_allclose(product.ravel(), searched.to_numpy(), rtol=1e-5)


@given(corpora, st.integers(1, 7))
def test_blocks_of_documents_make_the_same_postings(documents, size):
    builder = PostingsBuilder()
    for at in range(0, len(documents), size):
        block = documents[at : at + size]
        builder.add(
            pa.array([word for document in block for word in document], pa.string()), np.array([len(d) for d in block])
        )
    made, whole = builder.finish(), count(documents)
    assert made.terms.equals(whole.terms)
    for name in ("indptr", "rows", "tfs", "lengths"):
        np.testing.assert_array_equal(getattr(made, name), getattr(whole, name))


def test_saved_postings_open_as_they_were(tmp_path: Path):
    postings = count(DOCUMENTS)
    postings.save(tmp_path)
    opened = Postings.open(tmp_path)
    assert opened.terms.to_list() == sorted({word for document in DOCUMENTS for word in document})
    assert (opened.counted, opened.tokens) == (4, 61)
    np.testing.assert_array_equal(Impacts.of(opened, K1, B).values(), Impacts.of(postings, K1, B).values())


def test_a_matrix_cut_short_is_refused(tmp_path: Path):
    count(DOCUMENTS).save(tmp_path)
    whole = (tmp_path / "rows.npy").read_bytes()
    (tmp_path / "rows.npy").write_bytes(whole[:-4])
    with pytest.raises(HybridError, match="whole impact matrix"):
        Postings.open(tmp_path)


def test_threads_change_nothing():
    random = np.random.default_rng(0)
    index = known([random.choice(list("abcdefgh"), 20).tolist() for _ in range(300)])
    bags = index.bags(["a b", "c", "", "d e f a", "h h"] * 20)
    qids = pl.Series([str(number) for number in range(len(bags))])
    assert isinstance(bags, Bags)
    assert index.search_bags(qids, bags, 50, 1).equals(index.search_bags(qids, bags, 50, 3))


def test_another_k1_and_b_is_another_index_opened_anew():
    index = known(DOCUMENTS)
    assert hits(index.under(1.2, 0.75), "cat dog") == hits(known(DOCUMENTS, 1.2, 0.75), "cat dog")


def test_k1_zero_counts_a_term_once():
    assert hits(known(DOCUMENTS, k1=0.0), "cat") == pytest.approx(dict.fromkeys(("d1", "d2", "d4"), IDF_CAT))
