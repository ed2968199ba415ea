"""Kernels against plain arithmetic and full sorts: few and many postings, hits and ties."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from count_reads import BLOCKS, POSTINGS
from hypothesis import given
from hypothesis import strategies as st
from small_postings import count

from hybrid_cli import BM25
from hybrid_cli.lexical import kernels
from hybrid_cli.lexical import keys as keyed
from hybrid_cli.lexical.impacts import Impacts, Postings
from hybrid_cli.runs.index import Documents, Hits


def plain(impacts: Impacts, terms: list[int], order: np.ndarray, hits: int) -> list[tuple[int, float]]:
    postings, rows = impacts.postings, impacts.postings.rows
    sums = np.zeros(len(postings.lengths))
    for term in terms:
        for at in range(postings.indptr[term], postings.indptr[term + 1]):
            row, weight, tf = rows[at], impacts.idf[term], np.float32(postings.tfs[at])
            scale = impacts.scale
            sums[row] += weight * tf if scale is None else weight - weight / (np.float32(1) + tf * scale[row])
    found = [(-float(np.float32(sums[row])), int(order[row])) for row in np.flatnonzero(sums)]
    return [(place, -score) for score, place in sorted(found)[:hits]]


def flat(lists: list[list[int]]) -> tuple[np.ndarray, np.ndarray]:
    return np.cumsum([0, *map(len, lists)]), np.array([item for each in lists for item in each], np.int64)


@given(
    seed=st.integers(0, 999),
    size=st.integers(1, 400),
    rare=st.floats(0.001, 0.9),
    hits=st.integers(1, 60),
    learned=st.booleans(),
)
def test_search_equals_sorting_every_sum(seed: int, size: int, rare: float, hits: int, learned: bool) -> None:
    """Few postings are read one by one, many by a scan over all documents; equal documents make ties."""
    rng = np.random.default_rng(seed)
    vocabulary = ["rare", "half", "all"]
    chances = [rare, 0.5, 1.0]
    documents = [
        [word for word, chance in zip(vocabulary, chances, strict=True) for _ in range(3) if rng.random() < chance]
        for _ in range(size)
    ]
    counted = count(documents)
    impacts = Impacts.learned(counted, 0.25) if learned else Impacts.of(counted, 0.9, 0.4)
    words = impacts.postings.terms.to_list()
    queries = [[words.index(word)] for word in vocabulary if word in words] + [list(range(len(words))), []]
    order, hits = rng.permutation(size).astype(np.int32), min(hits, size)
    counts, best = np.zeros(len(queries), np.int32), np.zeros((len(queries), hits), np.uint64)
    ends, terms = flat(queries)
    packed = keyed.Queries(ends, terms.astype(np.int32), impacts.idf[terms])
    kernels.search(hits, (order, None), packed, impacts.matrix, impacts.bounds(packed.terms), counts, best)
    for number, query in enumerate(queries):
        keys = best[number, : counts[number]]
        found = list(zip(keyed.positions_of(keys).tolist(), keyed.scores_of(keys).tolist(), strict=True))
        assert found == plain(impacts, query, order, hits)


def test_a_sample_of_the_best_documents_loses_no_hit() -> None:
    """The documents of the sample are the best of the corpus, so the first estimate of the worst hit is too high."""
    size, hits, rng = 51_200, 1000, np.random.default_rng(3)
    first = np.arange(1, 32, 2) * size // 32  # of the 16 parts of the sample
    tfs, rows = np.ones(size, np.int32), np.arange(size, dtype=np.int32)
    tfs[(first[:, None] + np.arange(40)).ravel()] = 20
    lengths = rng.integers(20, 60, size).astype(np.int32)
    impacts = Impacts.of(Postings.of(pl.Series("term", ["a"]), np.array([0, size]), rows, tfs, lengths), 0.9, 0.4)
    packed = keyed.Queries(np.array([0, 1]), np.zeros(1, np.int32), impacts.idf)
    order, counts, best = rows[::-1].copy(), np.zeros(1, np.int32), np.zeros((1, hits), np.uint64)
    kernels.search(hits, (order, None), packed, impacts.matrix, impacts.bounds(packed.terms), counts, best)
    found = list(zip(keyed.positions_of(best[0]).tolist(), keyed.scores_of(best[0]).tolist(), strict=True))
    assert (counts[0], found) == (hits, plain(impacts, [0], order, hits))


def test_the_reads_of_a_search_are_bounded_by_its_postings() -> None:
    """The loops run as plain Python, which counts what they read."""
    environment = {**os.environ, "NUMBA_DISABLE_JIT": "1"}
    script = Path(__file__).with_name("count_reads.py")
    found = subprocess.run([sys.executable, script], env=environment, capture_output=True, text=True, check=True).stdout
    for reads, postings in zip(json.loads(found), POSTINGS, strict=True):
        assert len(reads) == len(BLOCKS)
        assert min(reads) > 2 * postings, "each posting and its sum"
        assert max(reads) < 10 * postings, f"in {max(BLOCKS) * kernels.BLOCK:,} documents"


@given(
    seed=st.integers(0, 999),
    size=st.integers(1, 300),
    block=st.integers(1, 300),
    hits=st.integers(1, 40),
    spare=st.integers(1, 40),
    distinct=st.integers(1, 400),
)
def test_the_best_of_blocks_are_sorted(seed: int, size: int, block: int, hits: int, spare: int, distinct: int) -> None:
    """Few distinct scores make ties, also between -0 and 0; little spare room for keys makes many selections."""
    rng = np.random.default_rng(seed)
    hits = min(hits, size)
    scores = rng.integers(-distinct, distinct + 1, (3, size)).astype(np.float32) * np.float32(0.5)
    scores[rng.random(scores.shape) < 0.1] = -0.0
    order = rng.permutation(size).astype(np.int32)
    none = np.zeros(0, np.int32)
    packed = keyed.Queries(np.zeros(4, np.int64), none, np.zeros(0, np.float32))
    matrix = Postings.of(pl.Series([], dtype=pl.String), np.zeros(1, np.int64), none, none, none).matrix(
        np.zeros(0, np.float32)
    )
    best = kernels.Best(np.zeros(3, np.int64), np.full(3, -np.inf, np.float32), np.zeros((3, hits + spare), np.uint64))
    for first in range(0, size, block):
        part = np.ascontiguousarray(scores[:, first : first + block])
        kernels.keep_best((first, part), 0.0, order, hits, packed, np.zeros(0, np.int64), matrix, best)
    for row, held, keys in zip(scores, best.counts, best.keys, strict=True):
        kept = np.sort(keys[:held])[::-1][:hits]
        expected = sorted(zip((-row).tolist(), order.tolist(), strict=True))[:hits]
        assert keyed.positions_of(kept).tolist() == [place for _, place in expected]
        assert keyed.signed_scores_of(kept).tolist() == [-score for score, _ in expected]


@given(
    seed=st.integers(0, 999),
    size=st.integers(1, 1200),
    width=st.integers(1, 70),
    depth=st.integers(1, 40),
    shift=st.integers(0, 3),
)
def test_products_have_the_bits_of_numpy(seed: int, size: int, width: int, depth: int, shift: int) -> None:
    """At any alignment, as in a file; a query alone, which is multiplied by NumPy, thus gets the scores of a batch."""
    rng = np.random.default_rng(seed)
    vectors, queries = (rng.standard_normal((count, width)).astype(np.float32) for count in (size, 3))
    rows = np.sort(rng.integers(0, size, (3, depth)), axis=1)
    stored = np.zeros(shift + 4 * vectors.size, np.uint8)
    stored[shift:] = vectors.reshape(-1).view(np.uint8)
    some = stored[shift:]
    some.flags.writeable = False
    products = np.empty((3, depth), np.float32)
    kernels.inner_products(some, queries, rows, products)
    for query, mine, found in zip(queries, rows, products, strict=True):
        assert found.tobytes() == np.einsum("nd,d->n", vectors[mine], query).tobytes()


@given(seed=st.integers(0, 999), distinct=st.integers(1, 30), dtype=st.sampled_from([np.float32, np.float64]))
def test_hits_are_ranked_by_score_then_id(seed: int, distinct: int, dtype: Any) -> None:
    """Also where -0 and 0 tie, and for scores below 0."""
    rng = np.random.default_rng(seed)
    queries, rows = np.sort(rng.integers(0, 4, 60)), rng.permutation(60)
    scores = (rng.integers(-distinct, distinct, 60) * 0.5).astype(dtype)
    scores[rng.random(60) < 0.1] = -0.0
    ids = [f"{row * 37 % 60:02}" for row in range(60)]
    hits = Hits.ranked(4, queries, rows, scores, Documents(pl.Series(ids)), 10)
    expected = sorted(zip(queries.tolist(), (-scores).tolist(), [ids[row] for row in rows], strict=True))
    kept = [[hit for hit in expected if hit[0] == query][:10] for query in range(4)]
    assert hits.counts.tolist() == [len(some) for some in kept]
    found = zip(hits.queries.tolist(), (-hits.scores).tolist(), [ids[row] for row in hits.rows], strict=True)
    assert list(found) == [hit for some in kept for hit in some]


@given(seed=st.integers(0, 999), size=st.integers(1, 300), hits=st.integers(1, 40), k1=st.sampled_from([0.0, 0.9, 3.0]))
def test_numpy_finds_the_same_bits_as_numba(seed: int, size: int, hits: int, k1: float) -> None:
    rng = np.random.default_rng(seed)
    documents = [[f"w{rng.integers(30)}" for _ in range(rng.integers(1, 40))] for _ in range(size)]
    impacts, hits = Impacts.of(count(documents), k1, 0.4), min(hits, size)
    postings = impacts.postings
    ends, terms = flat([sorted(rng.choice(len(postings.terms), rng.integers(1, 5)).tolist()) for _ in range(4)] + [[]])
    packed = keyed.Queries(ends, terms.astype(np.int32), impacts.idf[terms] * np.float32(rng.uniform(0.1, 3)))
    order = rng.permutation(size).astype(np.int32)
    counts, best = np.zeros((2, 5), np.int32), np.zeros((2, 5, hits), np.uint64)
    allowed = rng.random(size) < 0.5 if seed % 2 else None
    kernels.search(hits, (order, allowed), packed, impacts.matrix, impacts.bounds(packed.terms), counts[0], best[0])
    keyed.search(hits, order, packed, impacts.matrix, allowed, counts[1], best[1])
    assert counts[0].tolist() == counts[1].tolist()
    assert best[0].tolist() == best[1].tolist()
    pairs = np.divmod(np.sort(rng.integers(0, 5 * size, 60))[:: 1 if seed % 3 else -1], size)  # rows ascend or fall
    scores = kernels.score_pairs(*pairs, packed, impacts.matrix)
    assert keyed.score_pairs(*pairs, packed, impacts.matrix).tolist() == scores.tolist()


@pytest.mark.parametrize("hits", [1, 10, 400])
@pytest.mark.parametrize(("sort", "k1"), [(True, 0.9), (False, 0.9), (True, 1000.0), (True, None)])
def test_a_search_that_skips_postings_equals_one_over_all_postings(hits: int, sort: bool, k1: float | None) -> None:
    """Frequent terms cannot reach the best scores alone, in most blocks; many documents are equal."""
    rng, size = np.random.default_rng(hits), 5 * kernels.BLOCK + 77
    lists = [np.sort(rng.choice(size, min(size, 6 * 3**term // 2), replace=False)) for term in range(11) for _ in "ab"]
    indptr, rows = flat([each.tolist() for each in lists])
    tfs, lengths = rng.geometric(0.6, len(rows)).astype(np.int32), rng.integers(5, 12, size).astype(np.int32)
    terms = pl.Series("term", [f"t{term:02}" for term in range(len(lists))])
    counted = Postings.of(terms, indptr, rows.astype(np.int32), tfs, lengths)
    impacts = Impacts.learned(counted, 0.25) if k1 is None else Impacts.of(counted, k1, 0.4)
    queries = [rng.choice(len(lists), rng.integers(1, 8), replace=False) for _ in range(60)]
    if sort:
        queries = [query[np.argsort(-impacts.idf[query], kind="stable")] for query in queries]
    ends, asked = flat([query.tolist() for query in queries])
    packed = keyed.Queries(ends, asked.astype(np.int32), impacts.idf[asked])
    order = rng.permutation(size).astype(np.int32)
    wanted_counts, wanted = np.zeros(60, np.int32), np.zeros((60, hits), np.uint64)
    keyed.search(hits, order, packed, impacts.matrix, None, wanted_counts, wanted)
    counts, best = np.zeros(60, np.int32), np.zeros((60, hits), np.uint64)
    kernels.search(hits, (order, None), packed, impacts.matrix, impacts.bounds(packed.terms), counts, best)
    for query in range(60):
        expected = wanted[query, : wanted_counts[query]][:hits]
        assert best[query, : counts[query]].tolist() == expected.tolist()


def test_the_cache_of_a_kernel_is_keyed_by_the_file_of_all_kernels_that_it_calls() -> None:
    """Numba hashes the file of a function only: a change in another file would leave the old machine code in use."""
    compiled = {name: each for name, each in vars(kernels).items() if hasattr(each, "py_func")}
    assert len(compiled) > 10
    for kernel in compiled.values():
        code = kernel.py_func.__code__
        called = [compiled[name].py_func.__code__ for name in code.co_names if name in compiled]
        assert {each.co_filename for each in [code, *called]} == {kernels.__file__}
    texts = {path: path.read_text("utf-8") for path in Path(kernels.__file__).parents[1].rglob("*.py")}
    assert [path.stem for path, text in texts.items() if "njit" in text] == ["compilation"]
    assert [path for path, text in texts.items() if "\n@jit" in text] == [Path(kernels.__file__)]


FIRST_TOUCH = """
import sys
from hybrid_cli import BM25
from hybrid_cli.console import heard
texts = [f"{word} \u2603 \u6771\u4eac" for word in ("salt", "oxygen", "sea", "blood", "water")]
index = BM25().index(texts)
print(len(index.search([f"{text} {text}" for text in texts], 3)), "numba" in sys.modules)
from hybrid_cli.lexical import index as lexical
lexical.FEW_POSTINGS = 0
print(len(index.search(texts, 3)), "hybrid_cli.lexical.kernels" in sys.modules)
lexical.MANY_POSTINGS = 0
with heard() as notices:
    print(len([index.search(texts, 3) for _ in "ab"][1]), "numba" in sys.modules)
print(*(notice.code for notice in notices))
"""


def test_small_indexes_compile_nothing_and_a_compilation_is_noted(tmp_path: Path) -> None:
    def lines() -> list[str]:
        environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
        words = [sys.executable, "-c", FIRST_TOUCH]
        return subprocess.run(words, env=environment, capture_output=True, text=True, check=True).stdout.splitlines()

    assert lines() == ["15 False", "15 True", "15 True", "compiling"]
    assert lines() == ["15 False", "15 True", "15 True", ""]  # compiled before


INDEXED = """
import sys
import numpy as np
from hybrid_cli import open_index
from hybrid_cli.console import heard
from hybrid_cli.lexical import index as lexical
from hybrid_cli.runs.index import Allowed
from hybrid_cli.stages.index_bm25 import index_bm25
lexical.FEW_POSTINGS = 0
_, collection, output, lexical.MANY_POSTINGS = [*sys.argv[:3], int(sys.argv[3])]
with heard() as notices:
    if lexical.MANY_POSTINGS:
        index_bm25(collection, output=output, lucene=False)
    else:
        index = open_index(output)
        for each in (index, index.within(Allowed(index.docids, np.ones(len(index.docids), np.bool_)))):
            each.search("salt", 3)
print("compiling" in [notice.code for notice in notices])
"""


@pytest.mark.heavy
def test_the_loops_of_a_large_index_are_compiled_when_it_is_built(tiny: Path, tmp_path: Path) -> None:
    def compiles(most: int, name: str) -> bool:
        environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "cache")}
        words = [sys.executable, "-c", INDEXED, str(tiny), str(tmp_path / name), str(most)]
        done = subprocess.run(words, env=environment, capture_output=True, text=True, check=True)
        return done.stdout.splitlines()[-1] == "True"

    assert not compiles(1 << 30, "small")
    assert compiles(1, "large")
    assert not compiles(0, "large")


def test_kernels_read_what_exceeds_the_work_of_numpy_with_the_same_hits(monkeypatch: pytest.MonkeyPatch) -> None:
    """The work is that of all searches of an index, so the kernels serve one that is open for long."""
    monkeypatch.setattr("hybrid_cli.lexical.index.FEW_POSTINGS", 0)
    monkeypatch.setattr("hybrid_cli.lexical.index.MANY_POSTINGS", 500)
    monkeypatch.setattr(kernels, "is_compiled", lambda: False)
    texts = [f"sea water {'salt ' * (number % 7)}" for number in range(100)]
    index, searches = BM25().index(texts), list[Any]()
    for module in (kernels, keyed):

        def search(*arguments: Any, module: Any = module, own: Any = module.search) -> None:
            searches.append(module)
            own(*arguments)

        monkeypatch.setattr(module, "search", search)
    hits = [index.search(["sea water"], 20) for _ in range(4)]
    assert searches == [keyed, keyed, kernels, kernels]
    assert all(each.equals(hits[0]) for each in hits)


WITHOUT_CACHE = """
import resource, signal, sys
import numpy as np
from hybrid_cli import console
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # as on a full disk, each write of a file fails
resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0)) if "full" in sys.argv else None
with console.heard() as heard:
    from hybrid_cli.lexical import kernels
    print(*(len(kernels.room_of(np.array(places))) for places in ([0, 3, 5], [0, 1])))
print(*(notice.code for notice in heard))
"""


@pytest.mark.parametrize("state", ["full", "read-only"])
def test_kernels_run_where_compiled_code_cannot_be_stored(state: str, tmp_path: Path) -> None:
    place = tmp_path if state == "full" else "/dev/null/cache"
    locators = {"NUMBA_CACHE_DIR": str(place), "NUMBA_CACHE_LOCATOR_CLASSES": "UserProvidedCacheLocator"}
    words = [sys.executable, "-c", WITHOUT_CACHE, state]
    done = subprocess.run(words, env={**os.environ, **locators}, capture_output=True, text=True, check=True)
    lengths, codes = done.stdout.splitlines()
    assert (lengths, codes.count("code-not-stored")) == ("3 1", 1)
    assert len(done.stderr.splitlines()) == len(codes.split())  # a busy processor notes the compilation first
