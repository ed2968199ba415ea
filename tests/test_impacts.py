"""The impact matrix: Lucene's BM25 from bags of words, without Java."""

from math import log
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from command import raises
from hypothesis import given, settings
from hypothesis import strategies as st
from small_postings import count, flat, small_index

from hybrid_cli import memory
from hybrid_cli.errors import HybridError
from hybrid_cli.lexical import analyze, impacts, kernels, keys
from hybrid_cli.lexical.build import store_statistics
from hybrid_cli.lexical.builder import PostingsBuilder, TermNumbers
from hybrid_cli.lexical.impacts import CHECKED, Impacts, Postings, decode_length, quantize_lengths
from hybrid_cli.lexical.index import LexicalIndex
from hybrid_cli.retrieval.in_memory import BM25
from hybrid_cli.storage import layout
from hybrid_cli.threads import ThreadPool
from hybrid_cli.training.teachers import Bm25Scorer, PostingsScorer

K1, B = 0.9, 0.4
DOCUMENTS = [
    ["cat", "sat", "mat"],
    ["cat", "cat", "dog"],
    ["dog", "runs", "fast", "far", "away"],
    ["bird"] * 45 + ["cat"] * 5,
    [],
]
AVERAGE = (3 + 3 + 5 + 50) / 4
GOLDEN = {"d1": 0.221425, "d2": 0.273228, "d4": 0.265370}  # BM25/Lucene, computed by hand
IDF_CAT, IDF_DOG = log(1 + (4 - 3 + 0.5) / (3 + 0.5)), log(1 + (4 - 2 + 0.5) / (2 + 0.5))
words = st.lists(st.sampled_from("abcdefgh"), max_size=60)
corpora = st.lists(words, min_size=1, max_size=25)


def known(documents: list[list[str]], k1: float = K1, b: float = B) -> LexicalIndex:
    return small_index(documents, k1, b)


def hits(index: LexicalIndex, text: str, number: int = 10) -> dict[str, float]:
    run = index.search(pl.DataFrame({"qid": ["q"], "text": [text]}), number)
    return dict(zip(run["docid"], run["score"], strict=True))


def part(idf: float, tf: int, length: int) -> float:
    """A term's share of a score (BM25/Lucene); Lucene rounds none of the lengths used here."""
    return idf * tf / (tf + K1 * (1 - B + B * length / AVERAGE))


def test_golden_scores_of_one_and_two_terms() -> None:
    cats, dogs = {"d2": (2, 3), "d4": (5, 50), "d1": (1, 3)}, {"d2": (1, 3), "d3": (1, 5)}
    cat, dog = ({d: part(idf, *of) for d, of in each.items()} for idf, each in ((IDF_CAT, cats), (IDF_DOG, dogs)))
    found = hits(known(DOCUMENTS), "cat")
    assert found == pytest.approx(cat, abs=1e-6)
    assert hits(known(DOCUMENTS), "cat cat") == pytest.approx({d: 2 * score for d, score in cat.items()}, abs=1e-6)
    both = {"d2": cat["d2"] + dog["d2"], "d3": dog["d3"], "d4": cat["d4"], "d1": cat["d1"]}
    of_both = hits(known(DOCUMENTS), "cat dog")
    assert list(of_both) == list(both)
    assert of_both == pytest.approx(both, abs=1e-6)
    assert found == pytest.approx(GOLDEN, abs=1e-6)
    textbook = {"d1": 0.420707, "d2": 0.519134, "d4": 0.504203}  # with the factor k1 + 1, which Lucene leaves out
    assert {docid: score * (K1 + 1) for docid, score in found.items()} == pytest.approx(textbook, abs=2e-6)


def test_lengths_are_rounded_down_as_in_lucene() -> None:
    table = {24: 24, 40: 40, 41: 40, 43: 42, 57: 56, 91: 88, 100: 96, 121: 120, 150: 144, 261: 248, 300: 280, 500: 472}
    table |= {512: 504, 1000: 984, 5000: 4632}
    assert quantize_lengths(np.array(list(table))).tolist() == list(table.values())
    assert quantize_lengths(np.arange(41)).tolist() == list(range(41))
    stored, lengths = [decode_length(byte) for byte in range(256)], np.geomspace(1, 2**31 - 1, 999).astype(np.int64)
    assert quantize_lengths(lengths).tolist() == [max(each for each in stored if each <= n) for n in lengths]


def test_equal_scores_are_ordered_by_docid_as_a_string() -> None:
    run = known([["cat"]] * 12).search(pl.DataFrame({"qid": ["q"], "text": ["cat"]}), 12)
    assert run["docid"].to_list() == sorted(f"d{number}" for number in range(1, 13))
    assert run["rank"].to_list() == list(range(1, 13))


@given(corpora, words, st.integers(1, 30), st.randoms())
def test_search_returns_every_match(documents: list[list[str]], query: list[str], number: int, random: Random) -> None:
    """Fewer hits are the first of more, and the order of the words does not matter."""
    index = known(documents)
    counted = [document for document in documents if document]
    average = sum(map(len, counted)) / len(counted) if counted else 1
    expected = {}
    for number, document in enumerate(documents, start=1):
        length = K1 * (1 - B + B * int(quantize_lengths(np.array([len(document)]))[0]) / average)
        score = 0.0
        for word in query:
            tf, df = document.count(word), sum(word in other for other in documents)
            score += log(1 + (len(counted) - df + 0.5) / (df + 0.5)) * tf / (tf + length) if tf else 0.0
        if score:
            expected[f"d{number}"] = score
    found = hits(index, " ".join(query), 30)
    assert found == pytest.approx(expected, rel=1e-5)
    assert list(hits(index, " ".join(query), number).items()) == list(found.items())[:number]
    assert hits(index, " ".join(random.sample(query, len(query))), 30) == found


def test_hits_do_not_depend_on_the_number_of_threads() -> None:
    random = np.random.default_rng(0)
    index = known([random.choice(list("abcdefgh"), 20).tolist() for _ in range(300)])
    queries = pl.DataFrame({"qid": map(str, range(100)), "text": ["a b", "c", "", "d e f a", "h h"] * 20})
    runs = []
    for index.threads in (1, 3):
        runs.append(index.search(queries, 50))
    assert len(runs[0]) > 1000
    assert runs[0].equals(runs[1])
    assert index.search(queries.clear(), 50).schema == runs[0].schema


@given(corpora, st.lists(words, min_size=1, max_size=5))
def test_pair_scores_equal_search_scores(documents: list[list[str]], queries: list[list[str]]) -> None:
    index = known(documents)
    frame = pl.DataFrame({"qid": [f"q{n}" for n in range(len(queries))], "text": [" ".join(q) for q in queries]})
    pairs = frame.select("qid").join(index.docids.to_frame(), how="cross")
    scored = pairs.with_columns(index.score(pairs, frame))
    run = index.search(frame, 100)
    searched = pairs.join(run, on=["qid", "docid"], how="left", maintain_order="left")["score"].fill_null(0.0)
    assert scored["score"].equals(searched)
    product = (index.query_matrix(frame["text"].to_list()) @ index.matrix.T).toarray()
    np.testing.assert_allclose(product.ravel(), searched.to_numpy(), rtol=1e-5)


@given(corpora, st.integers(1, 7), st.integers(1, 4))
def test_postings_do_not_depend_on_blocks_and_threads(documents: list[list[str]], size: int, threads: int) -> None:
    builder = PostingsBuilder(threads)
    for at in range(0, len(documents), size):
        builder.add(*flat(documents[at : at + size]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hybrid_cli.lexical.builder.FEW_POSTINGS", -1)  # compiled loops sort; numpy sorts the others
        made = builder.finish()
    whole = count(documents)
    assert made.terms.equals(whole.terms)
    for name in ("indptr", "rows", "tfs", "lengths"):
        np.testing.assert_array_equal(getattr(made, name), getattr(whole, name))


@pytest.mark.parametrize("few", [-1, 100])
def test_nothing_has_no_postings(few: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hybrid_cli.lexical.builder.FEW_POSTINGS", few)
    nothing = PostingsBuilder().finish()
    assert (len(nothing), nothing.terms.to_list(), nothing.lengths.tolist()) == (0, [], [])


@given(
    st.lists(
        st.text("aAs \u00e9\u2019'.,;:#*\"-_1\t\n\u2603\u6771\u0300\u05d0\u20e3", max_size=30), min_size=1, max_size=9
    )
)
def test_distinct_pieces_have_the_terms_of_whole_texts(texts: list[str]) -> None:
    """Documents are cut where no word is cut, and each distinct piece is analyzed once."""
    whole, made = count(analyze(texts)), BM25(fields=("text",)).index(texts).impacts.postings
    assert made.terms.equals(whole.terms)
    for name in ("indptr", "rows", "tfs", "lengths"):
        np.testing.assert_array_equal(getattr(made, name), getattr(whole, name))


def test_many_threads_number_terms_once() -> None:
    numbers, words = TermNumbers(), [f"w{number}" for number in range(20_000)]
    with ThreadPool(8) as pool:
        found = list(
            pool.map(numbers.number, [pa.array(words[start:] + words[:start]) for start in range(0, 800, 100)])
        )
    assert sorted(found[0].tolist()) == list(range(len(words)))
    for start, each in zip(range(0, 800, 100), found, strict=True):
        assert [numbers.terms()[number] for number in each] == words[start:] + words[:start]


@given(corpora, words, st.data())
def test_scores_of_any_documents(documents: list[list[str]], query: list[str], data: st.DataObject) -> None:
    index, texts = known(documents), [" ".join(query), "", "unknown"]
    docids = data.draw(st.lists(st.sampled_from(index.docids.to_list()), max_size=30))  # in any order, repeated
    queries = pl.DataFrame({"qid": ["0", "1", "2"], "text": texts})
    pairs = pl.DataFrame({"qid": [f"{place // len(docids)}" for place in range(3 * len(docids))], "docid": docids * 3})
    exact = index.score(pairs, queries).to_numpy().reshape(3, len(docids))
    np.testing.assert_array_equal(PostingsScorer(index).scores(texts, docids), exact)
    np.testing.assert_allclose(Bm25Scorer(index, index.docids).scores(texts, docids), exact, rtol=1e-5)


def test_a_matrix_that_does_not_fit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    builder = PostingsBuilder()
    builder.add(*flat(DOCUMENTS))
    monkeypatch.setattr(memory, "available", lambda: [(0, "this test", "raise it")])
    with raises("no-memory", HybridError):
        builder.finish()


@given(st.integers(0, 999), st.sampled_from([1, 65_536, 65_537, 200_000]), st.sampled_from([3, 300, 70_000]))
@settings(max_examples=20)
def test_postings_keep_documents_and_frequencies(seed: int, size: int, most: int) -> None:
    """One or several parts of the corpus; terms with few postings, with many, and with none in a part."""
    rng = np.random.default_rng(seed)
    lists = [np.unique(rng.integers(0, size, count)) for count in (0, 1, 3, 40, 5000)]
    lists.append(np.unique(rng.integers(max(0, size - 70_000), size, 900)))  # of the last parts
    indptr, rows = np.concatenate(([0], np.cumsum([*map(len, lists)]))), np.concatenate(lists).astype(np.int32)
    tfs = rng.integers(1, most + 1, len(rows)).astype(np.int32)
    terms = pl.Series("term", [f"t{number}" for number in range(len(lists))])
    postings = Postings.of(terms, indptr, rows, tfs, np.ones(size, np.int32))
    np.testing.assert_array_equal(postings.rows, rows)
    np.testing.assert_array_equal(postings.tfs, tfs)
    if size <= 65_536 and most < 256:
        arrays = (postings.lows, postings.starts, postings.highs, postings.tfs)
        assert sum(array.nbytes for array in arrays) == 3 * len(rows)
    for term, documents in enumerate(lists):
        np.testing.assert_array_equal(keys.rows_of(postings.matrix(None), term), documents)
    query = keys.Queries(np.array([0, 6]), np.arange(6, dtype=np.int32), np.ones(6, np.float32))
    scored = np.zeros(90, np.int64), np.sort(rng.choice(rows, 90)).astype(np.int64), query, postings.matrix(None)
    assert kernels.score_pairs(*scored).tolist() == keys.score_pairs(*scored).tolist()
    kept = rng.random(size) < 0.7
    changed = postings.extended(kept, postings)
    pairs = {term: documents[kept[documents]] for term, documents in zip(terms, lists, strict=True)}
    renumbered = np.cumsum(kept) - 1
    for number, term in enumerate(changed.terms):
        documents = np.concatenate((renumbered[pairs[term]], kept.sum() + lists[terms.to_list().index(term)]))
        np.testing.assert_array_equal(keys.rows_of(changed.matrix(None), number), documents)


@pytest.mark.parametrize("size", [-4, 0])
def test_statistics_of_an_interrupted_call_are_refused_and_written_again(tmp_path: Path, size: int) -> None:
    folder = tmp_path / layout.shard(0) / layout.IMPACTS
    count(DOCUMENTS).save(folder)
    store_statistics(tmp_path)
    whole = {name: (folder / name).read_bytes() for name in (layout.COLLECTION, layout.COLLECTION_DF)}
    (folder / layout.COLLECTION).write_bytes(whole[layout.COLLECTION][:size])
    with raises("incomplete-matrix", HybridError):
        Postings.open(folder)
    store_statistics(tmp_path)
    assert {name: (folder / name).read_bytes() for name in whole} == whole


def test_a_search_refuses_the_damaged_block_of_its_terms_only(tmp_path: Path) -> None:
    """The other blocks are not read."""
    rows = np.tile(np.arange(CHECKED, dtype=np.int32), 3)
    indptr, lengths = np.arange(4) * CHECKED, np.full(CHECKED, 3, np.int32)
    Postings.of(pl.Series("term", ["x", "y", "z"]), indptr, rows, np.ones_like(rows), lengths).save(tmp_path)
    content = bytearray((tmp_path / "lows.npy").read_bytes())
    content[-2 * CHECKED - 10] ^= 1  # in the postings of y
    (tmp_path / "lows.npy").write_bytes(content)
    index = LexicalIndex(Impacts.of(Postings.open(tmp_path), K1, B), pl.Series([f"{row:05}" for row in range(CHECKED)]))
    assert len(hits(index, "x z", 5)) == 5
    for text in ("y", "x y"):
        with raises("damaged", HybridError):
            hits(index, text, 5)
    with raises("damaged", HybridError):
        index.impacts.values()


@pytest.mark.parametrize("name", ["lows.npy", "tfs.npy"])
def test_a_flipped_bit_in_the_header_of_postings_changes_no_score(tmp_path: Path, name: str) -> None:
    """The checksums cover the postings, not the header, which has their type and number."""
    count(DOCUMENTS).save(tmp_path)
    expected = Impacts.of(Postings.open(tmp_path), K1, B).values()
    whole = (tmp_path / name).read_bytes()
    refused = 0
    for bit in range(0, 8 * 128, 3):
        content = bytearray(whole)
        content[bit // 8] ^= 1 << bit % 8
        (tmp_path / name).write_bytes(content)
        try:
            np.testing.assert_array_equal(Impacts.of(Postings.open(tmp_path), K1, B).values(), expected)
        except HybridError:
            refused += 1
    assert refused > 100


def test_an_index_under_another_k1_and_b_equals_one_built_with_them() -> None:
    index = known(DOCUMENTS)
    assert hits(index.under(1.2, 0.75), "cat dog") == hits(known(DOCUMENTS, 1.2, 0.75), "cat dog")


@given(corpora, st.integers(1, 40))
def test_impacts_by_document_equal_those_by_term(documents: list[list[str]], at_once: int) -> None:
    index = known(documents)
    whole = index.matrix.tocsr()
    wanted = np.arange(len(documents))[::-2]
    some = index.impacts.of_documents(wanted)
    assert (some.rows(np.arange(len(wanted))) != whole[wanted]).nnz == 0
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(impacts, "POSTINGS_AT_ONCE", at_once)  # tokens of a block of documents
        for _ in ("written", "found"):
            mapped = index.impacts.by_document(Path(folder) / "impacts")
            assert (mapped.rows(np.arange(len(documents))) != whole).nnz == 0
            assert (mapped.rows(wanted) != whole[wanted]).nnz == 0
