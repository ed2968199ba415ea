"""Dense indexes against numpy: equal hits, scores and bytes; their sizes, and the choice of an index type."""

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from command import Notices, Refusal, raises, refusal
from hypothesis import given
from hypothesis import strategies as st
from small_artifacts import vector_hits, vector_scores

from hybrid_cli import artifacts
from hybrid_cli.artifacts.opening import open_dense
from hybrid_cli.commands import VectorIndex
from hybrid_cli.indexes import construction, dense
from hybrid_cli.indexes.auto import choose, footprint, measure_recall, open_unfinished
from hybrid_cli.indexes.codes import Codes
from hybrid_cli.indexes.dense import DenseIndex, IndexInfo, nearest
from hybrid_cli.indexes.faiss import code_size, same_graph, set_threads, sign_bits
from hybrid_cli.indexes.shards import read_ids, shard_path, write_shard
from hybrid_cli.settings.conversion import byte_count
from hybrid_cli.stages.encode import encode
from hybrid_cli.stages.inspect import inspect
from hybrid_cli.storage import Kind

DIM, COUNT = 16, 600
OTHERS: list[Any] = ["pq", "sq8", "binary", "fp16", "opq", "HNSW16,SQfp16", "HNSW16,SQ8", "BHNSW16", "PCA12,IVF4,SQ8"]
EVERY = [VectorIndex(), VectorIndex(index_type="HNSW16,Flat"), VectorIndex(index_type="ivf", nprobe=10_000)]
EVERY += [VectorIndex(index_type=name) for name in OTHERS]
NAMES = [recipe.index_type or "default" for recipe in EVERY]


def random_vectors(count: int = COUNT, dim: int = DIM, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((count, dim)).astype(np.float32)


def build(folder: Path, matrix: np.ndarray, recipe: VectorIndex, ids: list[str] | None = None) -> DenseIndex:
    names = ids or [f"d{row}" for row in range(len(matrix))]
    output = artifacts.open_output(folder, Kind.DENSE_INDEX, "encode", inputs={}, options={})
    with output.folder() as (work, counts):
        for number, begin in enumerate(range(0, len(matrix), 250)):
            some = slice(begin, begin + 250)
            write_shard(shard_path(work, number), pa.array(names[some]), matrix[some])
        factory = construction.build(work, recipe)
        counts |= IndexInfo(len(matrix), matrix.shape[1], "none", factory=factory).counts()
    return open_dense(folder)


def qids(queries: np.ndarray) -> list[str]:
    return [f"q{row}" for row in range(len(queries))]


def exact(matrix: np.ndarray, queries: np.ndarray, hits: int) -> pl.DataFrame:
    scores = queries.astype(np.float64) @ matrix.T.astype(np.float64)
    rows = [(f"q{q}", f"d{d}", scores[q, d]) for q in range(len(queries)) for d in range(len(matrix))]
    frame = pl.DataFrame(rows, schema=["qid", "docid", "score"], orient="row")
    return (
        frame.sort(["qid", "score", "docid"], descending=[False, True, False])
        .group_by("qid", maintain_order=True)
        .head(hits)
    )


def overlap(found: pl.DataFrame, expected: pl.DataFrame) -> float:
    return len(found.join(expected, on=["qid", "docid"])) / len(expected)


@pytest.mark.parametrize("recipe", EVERY, ids=NAMES)
def test_every_index_type_has_enough_recall(recipe: VectorIndex, tmp_path: Path) -> None:
    matrix, queries = random_vectors(), random_vectors(40, seed=1)
    index = build(tmp_path / "index", matrix, recipe)
    found, expected = vector_hits(index, queries, qids(queries), 10), exact(matrix, queries, 10)
    least = {"flat": 1.0, "HNSW16,Flat": 0.99, "ivf": 1.0, "pq": 0.5, "opq": 0.5, "sq8": 0.95, "fp16": 0.99}
    least |= {"HNSW16,SQfp16": 0.98, "HNSW16,SQ8": 0.95, "binary": 0.2}
    assert overlap(found, expected) >= least.get(recipe.index_type or "", 0.2)
    assert found.group_by("qid").len()["len"].unique().to_list() == [10]


@given(seed=st.integers(0, 999), queries=st.integers(5, 70), block=st.integers(1, 700), depth=st.integers(1, COUNT))
def test_the_nearest_of_all_blocks_are_those_of_faiss(seed: int, queries: int, block: int, depth: int) -> None:
    matrix, asked = random_vectors(seed=seed), random_vectors(queries, seed=seed + 1)
    blocks = (matrix[begin : begin + block] for begin in range(0, COUNT, block))
    scores, _ = faiss.knn(asked, matrix, depth, metric=faiss.METRIC_INNER_PRODUCT)
    rows = nearest(asked, blocks, depth)
    assert all(len(set(mine)) == depth for mine in rows.tolist())
    np.testing.assert_allclose(np.sort(np.einsum("qd,qnd->qn", asked, matrix[rows]))[:, ::-1], scores, atol=1e-5)


@given(st.integers(0, 2**32), st.integers(1, 70), st.integers(1, 90), st.sampled_from([0.0, 1e-20, 1.0, 1e15]))
def test_codes_leave_all_nearest_vectors_as_candidates(seed: int, dim: int, depth: int, scale: float) -> None:
    rng = np.random.default_rng(seed)
    vectors = (scale * rng.standard_normal((90, dim)) * rng.exponential(1, (90, 1))).astype(np.float32)
    vectors[rng.integers(0, 90, 30)] = vectors[0]  # equal scores
    codes = Codes.of(np.split(vectors, [40, 41]), 90, dim)
    query = rng.standard_normal(dim).astype(np.float32)
    found, scores = codes.candidates(query, depth), np.einsum("nd,d->n", vectors, query)
    assert {*np.flatnonzero(scores >= np.sort(scores)[-depth])} <= {*found}


def test_codes_leave_few_candidates() -> None:
    vectors = random_vectors(20_000, 96)
    found = Codes.of([vectors], 20_000, 96).candidates(vectors[0], 20)
    assert len(found) < 60


def test_a_large_flat_index_has_the_same_bits_by_its_codes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dense, "LARGE", 100)
    index, queries = build(tmp_path / "index", random_vectors(), VectorIndex()), random_vectors(20, seed=1)
    first = [vector_hits(index, query[None], ["q"], 7).rows() for query in queries]
    while index.codes is None:
        time.sleep(0.01)
    assert [vector_hits(index, query[None], ["q"], 7).rows() for query in queries] == first
    index.codes = replace(index.codes, values=-index.codes.values)
    assert [vector_hits(index, query[None], ["q"], 7).rows() for query in queries] != first


def test_a_flat_index_is_exact(tmp_path: Path) -> None:
    matrix, queries = random_vectors(), random_vectors(40, seed=1)
    found = vector_hits(build(tmp_path / "i", matrix, VectorIndex()), queries, qids(queries), 100)
    expected = exact(matrix, queries, 100)
    assert found.sort("qid", "rank")["docid"].to_list() == expected["docid"].to_list()
    np.testing.assert_allclose(found.sort("qid", "rank")["score"], expected["score"], atol=1e-5)


def test_the_streamed_flat_index_equals_the_file_that_faiss_writes(tmp_path: Path) -> None:
    matrix = random_vectors()
    build(tmp_path / "index", matrix, VectorIndex())
    theirs = faiss.IndexFlatIP(DIM)
    theirs.add(matrix)
    faiss.write_index(theirs, str(tmp_path / "theirs"))
    assert (tmp_path / "index" / "index.faiss").read_bytes() == (tmp_path / "theirs").read_bytes()


@pytest.mark.parametrize("recipe", EVERY, ids=NAMES)
def test_more_hits_than_documents_return_each_document_once(recipe: VectorIndex, tmp_path: Path) -> None:
    queries = random_vectors(3, seed=1)
    found = vector_hits(build(tmp_path / "index", random_vectors(), recipe), queries, qids(queries), COUNT + 100)
    assert found.group_by("qid", "docid").len()["len"].max() == 1
    assert len(found) <= 3 * COUNT
    if recipe.index_type in ("flat", "pq", "sq8", "binary"):
        assert len(found) == 3 * COUNT


def test_the_padding_of_faiss_is_never_a_hit(tmp_path: Path) -> None:
    matrix = random_vectors()
    index = build(tmp_path / "index", matrix, VectorIndex(index_type="IVF8,Flat", nprobe=1))
    queries = random_vectors(20, seed=2)
    found = vector_hits(index, queries, qids(queries), COUNT)
    sizes = found.group_by("qid").len()["len"]
    assert (sizes < COUNT).all()  # one list of eight: FAISS fills the rest of each row with -1
    asked, returned = (
        values[found[name].str.slice(1).cast(int)] for name, values in (("qid", queries), ("docid", matrix))
    )
    np.testing.assert_allclose(found["score"], np.einsum("nd,nd->n", asked, returned), atol=1e-5)


@pytest.mark.parametrize("recipe", EVERY, ids=NAMES)
def test_an_index_built_twice_has_the_same_bytes(recipe: VectorIndex, tmp_path: Path) -> None:
    files = []
    for name in ("one", "two"):
        build(tmp_path / name, random_vectors(), recipe)
        files.append(
            {path.name: path.read_bytes() for path in (tmp_path / name).rglob("*.*") if path.name != "manifest.json"}
        )
    assert files[0] == files[1]


def test_a_graph_does_not_depend_on_the_number_of_threads(tmp_path: Path) -> None:
    before = faiss.omp_get_max_threads()
    try:
        for threads in (1, 4):
            set_threads(threads)
            build(tmp_path / str(threads), random_vectors(), VectorIndex(index_type="HNSW8,Flat"))
            assert faiss.omp_get_max_threads() == threads
    finally:
        set_threads(before)
    assert (tmp_path / "1" / "index.faiss").read_bytes() == (tmp_path / "4" / "index.faiss").read_bytes()


def test_a_graph_is_built_with_one_thread_by_older_versions_of_faiss(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(faiss, "hnsw_add_vertices_deterministic", raising=False)
    before = faiss.omp_get_max_threads()
    try:
        set_threads(3)
        with same_graph():
            assert faiss.omp_get_max_threads() == 1
        assert faiss.omp_get_max_threads() == 3
    finally:
        set_threads(before)


@pytest.mark.parametrize(
    "recipe", [VectorIndex(index_type="ivf", nprobe=1), VectorIndex(index_type="PQ2"), VectorIndex(index_type="binary")]
)
def test_recall_is_the_share_of_the_exact_hits_without_the_query_document(recipe: VectorIndex, tmp_path: Path) -> None:
    matrix = random_vectors()
    index = build(tmp_path / "index", matrix, recipe)
    found = vector_hits(index, matrix, index.docids.to_list(), 101)
    expected = exact(matrix, matrix, 101).with_columns(qid=pl.col("qid").str.replace("q", "d"))
    shares = []
    for cutoff in (10, 100):
        heads = [
            run.filter(pl.col("qid") != pl.col("docid")).group_by("qid", maintain_order=True).head(cutoff)
            for run in (found.sort("qid", "rank"), expected)
        ]
        shares.append(len(heads[0].join(heads[1], on=["qid", "docid"])) / len(heads[1]))
    measured = measure_recall(tmp_path / "index", index.info.factory, seed=42)
    assert measured == pytest.approx({"recall@10": shares[0], "recall@100": shares[1]}, abs=2e-3)
    assert 0.02 < shares[0] < 0.9
    part = measure_recall(tmp_path / "index", index.info.factory, seed=42, sample=300)
    assert part == pytest.approx(measured, abs=0.1)


@pytest.mark.parametrize(
    ("recipe", "dim"),
    [*((recipe, DIM) for recipe in EVERY[:6]), (VectorIndex(), 512)],
    ids=[*NAMES[:6], "BLAS"],  # FAISS 1.15 uses it from 128,000 query values on: 250 of the queries with 512
)
def test_the_hits_of_a_query_do_not_depend_on_other_queries(recipe: VectorIndex, dim: int, tmp_path: Path) -> None:
    index = build(tmp_path / "index", random_vectors(dim=dim), recipe)
    queries = random_vectors(300, dim, seed=1)
    together = vector_hits(index, queries, qids(queries), 20)
    for first, last in ((0, 1), (17, 18), (257, 258), (200, 232), (250, 300)):
        some = vector_hits(index, queries[first:last], qids(queries)[first:last], 20)
        assert some.equals(together.filter(pl.col("qid").is_in(qids(queries)[first:last])))
    assert vector_hits(index, queries[:0], [], 10).equals(together.head(0))


def test_equal_vectors_are_ordered_by_docid_even_at_the_cut(tmp_path: Path) -> None:
    matrix = np.repeat(random_vectors(1), 20, axis=0)
    ids = [str(number) for number in range(20)]
    index = build(tmp_path / "index", matrix, VectorIndex(), ids[::-1])
    found = vector_hits(index, matrix[:1], ["q"], 5)
    assert found["docid"].to_list() == sorted(ids)[:5]


def test_sign_codes_are_rescored_with_the_float_query(tmp_path: Path) -> None:
    matrix, queries = random_vectors(50), random_vectors(5, seed=1)
    matrix[7, 3] = 0.0  # sign(0) = +1
    found = vector_hits(build(tmp_path / "index", matrix, VectorIndex(index_type="binary")), queries, qids(queries), 50)
    expected = exact(np.where(matrix >= 0, 1.0, -1.0), queries, 50)
    both = found.join(expected, on=["qid", "docid"])
    np.testing.assert_allclose(both["score"], both["score_right"], atol=1e-4)
    assert found.sort("qid", "rank")["docid"].to_list() == expected["docid"].to_list()


def test_sign_codes_work_for_dimensions_that_are_no_multiple_of_8(tmp_path: Path) -> None:
    matrix = random_vectors(40, dim=13)
    assert sign_bits(np.array([[0.0, -1.0, 2.0]])).tolist() == [[0b10100000]]
    found = vector_hits(build(tmp_path / "index", matrix, VectorIndex(index_type="binary")), matrix, qids(matrix), 1)
    assert found["docid"].to_list() == [f"d{row}" for row in range(40)]


@pytest.mark.parametrize("recipe", EVERY, ids=NAMES)
def test_pair_scores_equal_those_of_numpy_for_every_index_type(recipe: VectorIndex, tmp_path: Path) -> None:
    matrix, queries = random_vectors(), random_vectors(4, seed=1)
    index = build(tmp_path / "index", matrix, recipe)
    rng = np.random.default_rng(2)
    rows, places = rng.integers(0, COUNT, 1000), rng.integers(0, 4, 1000)
    pairs = pl.DataFrame({"qid": [f"q{q}" for q in places], "docid": [f"d{row}" for row in rows]})
    scored = np.where(matrix >= 0, 1, -1) if index.binary else matrix
    expected = (queries[places] * scored[rows]).sum(1)
    np.testing.assert_allclose(vector_scores(index, pairs, qids(queries), queries), expected, atol=1e-5)
    np.testing.assert_array_equal(index.vectors_of(rows), matrix[rows])


@given(ids=st.lists(st.text(st.characters(codec="utf-8"), min_size=1), min_size=1, max_size=20, unique=True))
def test_ids_are_returned_unchanged(ids: list[str], tmp_path_factory: pytest.TempPathFactory) -> None:
    matrix = np.eye(20, dtype=np.float32)[: len(ids)]
    index = build(tmp_path_factory.mktemp("ids") / "index", matrix, VectorIndex(), ids)
    found = vector_hits(index, matrix, ids, 1)
    assert found["docid"].to_list() == ids == found["qid"].to_list()
    assert vector_scores(index, pl.DataFrame({"qid": ids, "docid": ids}), ids, matrix).to_list() == [1.0] * len(ids)


def test_unknown_ids_other_lengths_and_other_artifacts_are_refused(tmp_path: Path, tiny: Path) -> None:
    index = build(tmp_path / "index", random_vectors(), VectorIndex())
    with raises("other-width", value=8, expected=16):
        vector_hits(index, random_vectors(1, dim=8), ["q"], 1)
    with raises("other-kind", path="collection"):
        open_dense(tiny)
    with raises("unknown-id", id="nowhere"):
        vector_scores(index, pl.DataFrame({"qid": ["q0"], "docid": ["nowhere"]}), ["q0"], random_vectors(1))
    with raises("unknown-id", id="q9"):
        vector_scores(index, pl.DataFrame({"qid": ["q9"], "docid": ["d0"]}), ["q0"], random_vectors(1))


def test_half_precision_vectors_are_searched_as_stored(tmp_path: Path) -> None:
    matrix = random_vectors().astype(np.float16)
    index = build(tmp_path / "index", matrix, VectorIndex())
    found = vector_hits(index, random_vectors(2, seed=1), ["a", "b"], 3)
    scores = vector_scores(index, found, ["a", "b"], random_vectors(2, seed=1))
    np.testing.assert_allclose(found["score"], scores, atol=1e-5)


@pytest.mark.parametrize(
    ("recipe", "problem"),
    [
        (VectorIndex(index_type="Nonsense7"), refusal("invalid-value", option="index_type", value="Nonsense7")),
        (VectorIndex(index_type="PQ7"), refusal("invalid-value", option="index_type", value="PQ7")),
        (VectorIndex(index_type="HNSW16,PQ4"), refusal("faiss-metric")),
        (VectorIndex(index_type="PQ5"), refusal("invalid-value", option="index_type", value="PQ5")),
        (VectorIndex(index_type="IVF5000,Flat"), refusal("too-few-vectors")),
        (VectorIndex(index_type="pq"), refusal("too-few-vectors")),
    ],
)
def test_an_impossible_index_is_refused_in_one_line(recipe: VectorIndex, problem: Refusal, tmp_path: Path) -> None:
    with raises(problem):
        build(tmp_path / "index", random_vectors(20), recipe)


def test_few_vectors_for_product_codes_print_one_warning_and_none_of_faiss(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], notices: Notices
) -> None:
    build(tmp_path / "index", random_vectors(), VectorIndex(index_type="pq"))
    assert capfd.readouterr().err.count("\n") == 1
    assert notices.says("few-training-vectors", factory="PQ4", vectors=600, recommended=9984)


def replace_index(folder: Path, content: Any) -> None:
    """Replace `index.faiss`, and remove the checksums from the manifest, as in an artifact of an older version."""
    if isinstance(content, bytes):
        (folder / "index.faiss").write_bytes(content)
    else:
        faiss.write_index(content, str(folder / "index.faiss"))
    manifest = folder / "manifest.json"
    fields = json.loads(manifest.read_text())
    manifest.write_text(json.dumps({name: value for name, value in fields.items() if not name.startswith("checksum")}))


@pytest.mark.parametrize("queries", [1, 40])
def fp16_of_another_metric(dim: int) -> Any:
    return faiss.IndexScalarQuantizer(dim, faiss.ScalarQuantizer.QT_fp16, faiss.METRIC_L2)


@pytest.mark.parametrize("queries", [1, 40])
@pytest.mark.parametrize(
    ("index_type", "other", "count", "problem"),
    [
        ("flat", faiss.IndexFlatL2, COUNT, "damaged"),
        ("flat", faiss.IndexFlatIP, 3, "damaged"),
        ("sq8", faiss.IndexFlatIP, 3, "damaged"),
        ("sq8", None, 0, "damaged"),
        ("fp16", fp16_of_another_metric, COUNT, "faiss-metric"),
    ],
)
def test_an_index_with_damage_or_of_another_metric_or_size_is_refused(
    index_type: Any, other: Any, count: int, problem: str, tmp_path: Path, queries: int
) -> None:
    index = build(tmp_path / "index", random_vectors(), VectorIndex(index_type=index_type))
    content: Any = other(DIM) if other else b"IxSQ, truncated"
    if other:
        content.add(random_vectors(count))
    replace_index(index.folder, content)
    with raises(problem):
        index.hits(random_vectors(queries), 1)


def test_search_parameters_reach_the_index_or_are_refused(tmp_path: Path) -> None:
    folder = tmp_path / "index"
    build(folder, random_vectors(), VectorIndex(index_type="IVF8,Flat", nprobe=1))
    queries = random_vectors(5, seed=1)
    every = vector_hits(open_dense(folder, nprobe=8), queries, qids(queries), 10)
    assert overlap(every, exact(random_vectors(), queries, 10)) == 1.0
    with raises("unknown-parameter", option="ef_search", value=9):
        vector_hits(open_dense(folder, ef_search=9), queries, qids(queries), 10)


ROWS, WIDTH = 400, 64
EACH = {"flat": 4 * WIDTH, "fp16": 2 * WIDTH, "sq8": WIDTH, "binary": WIDTH // 8, "hnsw": 4 * WIDTH, "hnsw-sq8": WIDTH}
EACH |= {"hnsw-binary": WIDTH // 8, "ivf": 4 * WIDTH, "pq": 16, "opq": 16}


@pytest.mark.parametrize("kind", EACH)
def test_each_part_has_the_bytes_of_the_formula(kind: Any, tmp_path: Path) -> None:
    index = build(tmp_path / "index", random_vectors(ROWS, WIDTH), VectorIndex(index_type=kind))
    parts = footprint(index.folder, index.info)
    assert (parts.get("vectors") or parts["codes"]) == ROWS * EACH[kind]
    if kind in ("flat", "fp16"):
        assert (index.folder / "index.faiss").stat().st_size == pytest.approx(ROWS * EACH[kind], rel=0.01)
    rest = {"pq": 4 * 256 * WIDTH, "opq": 4 * (256 + WIDTH) * WIDTH, "hnsw": ROWS * 4 * 2 * 64}.get(kind)
    if rest:  # code books, a rotation, links; FAISS adds 8 bytes per offset and some links of higher levels
        assert rest <= parts.get("tables", parts.get("graph", 0)) <= 1.3 * rest
    assert (
        sum(size for name, size in parts.items() if name not in ("ids", "stored vectors"))
        == (index.folder / "index.faiss").stat().st_size
    )


BYTES_OF_A: list[Any] = [("Flat", 768, 3072), ("Flat", 32, 128), ("Flat", 1536, 6144), ("Binary", 768, 96)]
BYTES_OF_A += [("SQfp16", 384, 768), ("HNSW64,SQ8", 384, 384), ("PCA64,Flat", 768, 256)]
BYTES_OF_A += [("OPQ16_64,IVF100,PQ16", 768, 16), ("SQ4", 33, 17), ("IVF100,PQ8x4fs", 768, None), ("LSH", 768, None)]


@pytest.mark.parametrize(("factory", "dim", "size"), BYTES_OF_A)
def test_the_bytes_of_a_passage_are_those_of_the_papers(factory: str, dim: int, size: int | None) -> None:
    assert code_size(factory, dim) == size


def test_inspect_has_the_bytes_of_the_parts(tiny_bm25: Path) -> None:
    described = inspect(tiny_bm25)
    assert described["documents"] == 12
    assert described["memory"]["impact matrix: postings"] > 0
    assert described["memory"]["Lucene index"] > 0


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return written(tmp_path, COUNT, DIM)


def written(folder: Path, count: int, dim: int) -> Path:
    matrix = random_vectors(count, dim)
    for number, rows in enumerate((slice(0, 400), slice(400, count))):
        ids = pa.array([f"d{row}" for row in range(count)[rows]])
        write_shard(shard_path(folder, number), ids, matrix[rows])
    return folder


def chosen(folder: Path, min_recall: float, memory: int | None = None, sample: int = COUNT) -> tuple[str, list[str]]:
    recipe = VectorIndex(index_type="auto", min_recall=min_recall, memory=memory)
    tried = choose(folder, recipe, cutoff=10, sample=sample)
    assert all(each.recall < min_recall for each in tried[:-1] if each.documents == COUNT)
    assert tried[-1].recall >= min_recall
    return tried[-1].factory, [f"{each.index_type} {each.documents}" for each in tried]


@pytest.mark.parametrize(
    ("least", "factory", "tried"),
    [
        (0.0, "Binary", ["binary 600"]),
        (0.97, "SQ8", ["binary 600", "sq8 600"]),
        (1.0, "Flat", ["binary 600", "sq8 600", "pq 600", "fp16 600", "flat 600"]),
    ],
)
def test_the_first_with_enough_recall_is_kept(folder: Path, least: float, factory: str, tried: list[str]) -> None:
    assert chosen(folder, min_recall=least) == (factory, tried)
    docids, matrix = read_ids(folder), random_vectors(COUNT, DIM)
    index = open_unfinished(folder, docids, factory)
    assert len(index.hits(matrix[:1], 1).rows) == 1  # the index in the folder is the chosen one


@pytest.mark.parametrize(
    ("count", "dim", "order"),
    [(500, 384, ["binary", "sq8", "fp16", "pq", "flat"]), (2_000, 16, ["binary", "pq", "sq8", "fp16", "flat"])],
)
def test_candidates_are_built_in_the_order_of_their_sizes(
    tmp_path: Path, count: int, dim: int, order: list[str]
) -> None:
    tried = choose(written(tmp_path, count, dim), VectorIndex(index_type="auto", min_recall=1.0), cutoff=10)
    sizes = [each.size for each in tried]
    assert [each.index_type for each in tried] == order[: len(tried)]
    assert len(tried) > order.index("pq")
    assert sizes == sorted(sizes)


def test_candidates_for_a_large_collection_are_tried_on_a_sample_first(folder: Path) -> None:
    factory, tried = chosen(folder, min_recall=0.97, sample=300)
    assert factory == "SQ8"
    assert tried == ["binary 300", "sq8 300", "sq8 600"]


def test_no_index_is_larger_than_the_memory(folder: Path) -> None:
    assert chosen(folder, min_recall=0.97, memory=16_000)[0] == "SQ8"
    with raises("no-index-fits", option="memory", value=9_000):
        chosen(folder, min_recall=0.97, memory=9_000)


def test_encode_stores_the_recall(tiny: Path, tiny_bert: Path, tmp_path: Path) -> None:
    encode(tiny, output=tmp_path / "index", model=tiny_bert, index_type="auto", min_recall=0.999)
    described = inspect(tmp_path / "index")
    assert described["counts"]["recall@100"] >= 0.999
    assert described["options"]["min_recall"] == 0.999
    again = encode(tmp_path / "index", output=tmp_path / "again", index_type="auto", min_recall=0.999)
    assert np.array_equal((tmp_path / "index" / "index.faiss").read_bytes(), (again / "index.faiss").read_bytes())


@pytest.mark.parametrize(
    ("text", "count"), [("500M", 500_000_000), ("2G", 2 * 10**9), ("1.5GiB", 1_610_612_736), ("12k", 12_000), ("7", 7)]
)
def test_memory_has_decimal_and_binary_units(text: str, count: int) -> None:
    assert byte_count(text) == VectorIndex(index_type="auto", memory=text).memory == count  # type: ignore[arg-type]
