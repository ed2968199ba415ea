"""The Python interface: indexes, runs, texts in memory, adapters for other libraries."""

import asyncio
import copy
import pickle
import subprocess
import sys
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import polars as pl
import pytest
import pytrec_eval
import torch
from command import raises
from hypothesis import given
from hypothesis import strategies as st
from polars.testing import assert_frame_equal
from tiny_collection import TINY_DOCUMENTS

import hybrid_cli
from hybrid_cli import (
    BM25,
    Dense,
    HybridError,
    Retriever,
    evaluate,
    fuse,
    open_collection,
    open_encoder,
    open_index,
    open_retriever,
    open_run,
    runs,
    save,
)
from hybrid_cli.collections import collection
from hybrid_cli.errors import InputError
from hybrid_cli.evaluation.measures import qrels_table
from hybrid_cli.fusion.frames import recipe_of
from hybrid_cli.fusion.methods import METHODS
from hybrid_cli.runs.given import documents_table, queries_table, run_table
from hybrid_cli.stages.compose import compose
from hybrid_cli.stages.encode import encode
from hybrid_cli.stages.fuse import fuse as fuse_stage
from hybrid_cli.stages.index_bm25 import index_bm25

COLUMNS = ["qid", "docid", "rank", "score"]


@pytest.fixture(scope="module")
def queries(tiny: Path) -> dict[str, str]:
    return dict(collection.read_queries(tiny / "queries.test.parquet").select("qid", "text").iter_rows())


@pytest.mark.parametrize("name", ["bm25", "dense"])
def test_an_index_answers_as_the_command_does(tiny_runs: Path, queries: dict[str, str], name: str) -> None:
    found = open_index(str(tiny_runs / name)).search(queries, k=4)
    assert found.columns == [*COLUMNS, "title", "text"]
    assert found.select(COLUMNS).equals(open_run(tiny_runs / f"{name}.parquet"))
    assert open_index(tiny_runs / name).search([]).columns == found.columns


def test_weights_of_several_indexes_are_those_of_a_retriever(tiny_runs: Path, tmp_path: Path) -> None:
    pair = [tiny_runs / "dense", tiny_runs / "bm25"]
    composed = open_retriever(compose(pair, weights="1,0.5", output=tmp_path / "retriever")).search("table salt", k=4)
    assert open_index(*pair, weights=[1, 0.5]).search("table salt", k=4).equals(composed)


def test_options_of_an_index_are_used_or_refused(tiny_runs: Path) -> None:
    opened = [open_index(tiny_runs / "bm25"), open_index(tiny_runs / "bm25", k1=2.0, b=0.0)]
    scores = [index.search("table salt")["score"][0] for index in opened]
    assert scores[0] != scores[1]
    for name, option, value in (("dense", "k1", 2.0), ("bm25", "weights", [1])):
        given: dict[str, Any] = {option: value}
        with raises("option-does-not-apply", option=option):
            open_index(tiny_runs / name, **given)


def test_texts_are_numbered_and_a_mapping_names_them(tiny_runs: Path) -> None:
    index = open_index(tiny_runs / "bm25")
    texts = ["table salt", "moon"]
    assert index.search(texts)["qid"].unique(maintain_order=True).to_list() == ["0", "1"]
    assert index.search({"b": texts[0], "a": texts[1]})["qid"].unique(maintain_order=True).to_list() == ["b", "a"]


def test_texts_that_no_encoder_takes_are_refused(tiny_bert: Path) -> None:
    encoder = open_encoder(tiny_bert, dtype="fp32")
    with raises("other-type"):
        encoder.encode_queries("table salt")
    with raises("other-type"):
        encoder.encode_documents(["a"], "table salt")
    with raises("number-of-values"):
        encoder.encode_documents(["a"], ["b", "c"])


def test_an_encoder_returns_vectors_whose_products_are_the_scores(tiny_runs: Path, tiny_bert: Path) -> None:
    encoder = open_encoder(tiny_bert, dtype="fp32")
    vectors = encoder.encode_queries(["table salt"])
    assert isinstance(vectors, np.ndarray)
    assert vectors.shape == (1, 16)
    hit = open_index(tiny_runs / "dense").search("table salt", k=1)
    title, text = next((title, text) for docid, title, text in TINY_DOCUMENTS if docid == hit["docid"][0])
    assert (vectors @ encoder.encode_documents([title], [text]).T).item() == pytest.approx(hit["score"][0], abs=1e-4)


def test_the_package_imports_the_interface_only_when_it_is_used() -> None:
    steps = (
        "import sys, hybrid_cli",
        "assert 'polars' not in sys.modules",
        "hybrid_cli.open_run",
        "sys.modules['polars']",
    )
    subprocess.run([sys.executable, "-c", "; ".join(steps)], check=True)
    with pytest.raises(AttributeError, match="open_nothing"):
        _ = hybrid_cli.open_nothing  # type: ignore[attr-defined]


LEXICAL = {"q1": {"a": 3.0, "b": 2.0, "c": 1.0}, "q2": {"a": 1.5}}
DENSE = {"q1": {"b": 0.9, "d": 0.8}, "q2": {"c": 0.7, "a": 0.1}}
QRELS = {"q1": {"b": 2, "d": 1, "x": 0}, "q2": {"c": 1}}


def as_frame(run: dict[str, dict[str, float]], **names: str) -> pl.DataFrame:
    rows = [(qid, docid, score) for qid, hits in run.items() for docid, score in hits.items()]
    frame = pl.DataFrame(rows, schema=["qid", "docid", "score"], orient="row")
    return frame.rename(names)


def forms(run: dict[str, dict[str, float]], folder: Path) -> dict[str, Any]:
    frame = as_frame(run)
    (folder / "run.tsv").write_text(frame.write_csv(separator="\t"))
    return {
        "dictionary": run,
        "polars": frame,
        "pandas": pd.DataFrame(frame.to_dict(as_series=False)),
        "ranx": as_frame(run, qid="q_id", docid="doc_id"),
        "path": folder / "run.tsv",
        "text": str(folder / "run.tsv"),
        "hits": runs.ranked(frame),
    }


def test_every_form_of_a_run_is_the_same_run(tmp_path: Path) -> None:
    wanted = fuse({"bm25": LEXICAL, "dense": DENSE}, weights=[0.4, 0.6])
    for form in forms(LEXICAL, tmp_path).values():
        assert_frame_equal(fuse({"bm25": form, "dense": DENSE}, weights=[0.4, 0.6]), wanted)
        assert evaluate(form, QRELS, ["nDCG@10"]) == evaluate(LEXICAL, QRELS, ["nDCG@10"])


@pytest.mark.parametrize("method", [name for name, method in METHODS.items() if method.missing != "exact"])
def test_the_library_fuses_as_the_command_does(tmp_path: Path, method: str) -> None:
    paths = []
    for name, run in (("bm25", LEXICAL), ("dense", DENSE)):
        paths.append(tmp_path / f"{name}.tsv")
        paths[-1].write_text(as_frame(run).write_csv(separator="\t"))
    wanted = runs.read_run(fuse_stage(paths, method=method, weights=[1, 3], output=tmp_path / "fused.parquet"))
    found = fuse({"bm25": LEXICAL, "dense": DENSE}, method=method, weights={"dense": 3, "bm25": 1})
    assert_frame_equal(found, wanted)


RUNS = st.dictionaries(
    st.sampled_from(["q1", "q2", "3"]),
    st.dictionaries(st.sampled_from("abcdef"), st.integers(-50, 50).map(float), min_size=1),
    min_size=1,
)
JUDGMENTS = st.dictionaries(
    st.sampled_from(["q1", "q2", "3"]),
    st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 3), min_size=1),
    min_size=1,
)


@given(RUNS, JUDGMENTS)
def test_the_values_are_those_of_trec_eval(run: dict[str, dict[str, float]], qrels: dict[str, dict[str, int]]) -> None:
    common = [qid for qid in run if qid in qrels]
    if not common:
        with pytest.raises(InputError):
            evaluate(run, qrels, ["AP"])
        return
    distinct = {qid: {d: s + ord(d) / 1000 for d, s in hits.items()} for qid, hits in run.items()}
    values = pytrec_eval.RelevanceEvaluator(qrels, {"map", "P_5"}).evaluate(distinct)
    means = {name: sum(each[name] for each in values.values()) / len(qrels) for name in ("map", "P_5")}
    assert evaluate(distinct, qrels, ["AP", "P@5"]) == pytest.approx({"AP": means["map"], "P@5": means["P_5"]})


@pytest.mark.parametrize(
    ("call", "code"),
    [
        (lambda: fuse({"a": LEXICAL}), "too-few-runs"),
        (lambda: fuse({"a": LEXICAL, "b": DENSE}, weights=[1]), "number-of-weights"),
        (lambda: fuse({"a": LEXICAL, "b": 7}), "not-a-table"),
        (lambda: fuse({"a": LEXICAL, "b": {"q": 3}}), "not-a-table"),
        (lambda: fuse({"a": LEXICAL, "b": pl.DataFrame({"x": [1]})}), "no-such-column"),
        (lambda: evaluate(LEXICAL, QRELS, "AP"), "not-a-list"),
        (lambda: evaluate(LEXICAL, {"q1": {"a": 1 << 40}}, ["AP"]), "grade-not-a-number"),
        (lambda: evaluate(LEXICAL, {}, ["AP"]), "no-judgments"),
    ],
)
def test_other_values_are_one_clear_error(call: Any, code: str) -> None:
    with pytest.raises(InputError) as caught:
        call()
    assert caught.value.code == code


QUERY = "salt in sea water"


@pytest.fixture(scope="module")
def retriever(tiny_runs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compose([tiny_runs / "bm25", tiny_runs / "dense"], output=tmp_path_factory.mktemp("adapters") / "retriever")


@pytest.fixture(scope="module")
def hits(retriever: Path) -> pl.DataFrame:
    return open_retriever(retriever).search(QUERY, 3)


def test_langchain(retriever: Path, hits: pl.DataFrame) -> None:
    pytest.importorskip("langchain_core", reason="langchain-core is not installed: pip install 'hybrid_cli[langchain]'")
    from hybrid_cli.adapters.langchain import HybridRetriever

    adapter = HybridRetriever(path=str(retriever), k=3)
    documents: list[Any] = adapter.invoke(QUERY)
    assert [document.id for document in documents] == hits["docid"].to_list()
    assert [document.page_content for document in documents] == hits["text"].to_list()
    assert [document.hit["score"] for document in documents] == hits["score"].to_list()
    assert documents[0].hit["bm25_rank"] == hits["bm25_rank"][0]
    assert [each.id for each in asyncio.run(adapter.ainvoke(QUERY))] == hits["docid"].to_list()
    assert adapter.invoke(QUERY, k=1) == asyncio.run(adapter.ainvoke(QUERY, k=1)) == documents[:1]
    for filtered in (adapter.invoke, lambda *words, **options: asyncio.run(adapter.ainvoke(*words, **options))):
        with raises("no-such-column", column="tenant"):
            filtered(QUERY, filter="tenant = 'mine'")
        with pytest.raises(TypeError):
            filtered(QUERY, tenant="mine")
    parts = open_retriever(retriever).context(QUERY, 90, 3)
    short = HybridRetriever(path=str(retriever), k=3, context=90).invoke(QUERY)
    assert [(each.page_content, each.metadata["place"]) for each in short] == parts.select("text", "place").rows()
    others: dict[str, Any] = {str(each.id): each for each in adapter.invoke(f"{QUERY} again", k=20)}
    assert others[documents[0].id] == documents[0]
    assert others[documents[0].id].hit["score"] != documents[0].hit["score"]
    for copied in (copy.deepcopy(adapter), pickle.loads(pickle.dumps(adapter))):
        assert copied.invoke(QUERY) == documents


@pytest.mark.exhaustive
def test_llama_index(retriever: Path, hits: pl.DataFrame) -> None:
    pytest.importorskip("llama_index.core", reason="not installed: pip install 'hybrid_cli[llama-index]'")
    from hybrid_cli.adapters.llama_index import HybridRetriever

    nodes = HybridRetriever(str(retriever), k=3).retrieve(QUERY)
    assert [node.node.node_id for node in nodes] == hits["docid"].to_list()
    assert [node.score for node in nodes] == hits["score"].to_list()
    assert nodes[0].node.get_content() == hits["text"][0]


@pytest.mark.exhaustive
def test_pyterrier(retriever: Path, hits: pl.DataFrame) -> None:
    pyterrier = pytest.importorskip("pyterrier", reason="not installed: pip install 'hybrid_cli[pyterrier]'")
    from hybrid_cli.adapters.pyterrier import HybridRetriever

    asked = pd.DataFrame({"qid": [7, 8], "query": [QUERY, "xylophone"], "kind": ["a", "b"]})
    ours = HybridRetriever(retriever, k=3)
    found = (ours % 2)(asked)  # type: ignore[operator]
    first = found[found["qid"] == "7"]
    assert first["docno"].to_list() == hits["docid"].to_list()[:2]
    assert first["score"].to_list() == pytest.approx(hits["score"].to_list()[:2])
    assert (first["rank"].to_list(), set(first["kind"]), set(first["query"])) == ([0, 1], {"a"}, {QUERY})
    assert first["text"].to_list() == hits["text"].to_list()[:2]
    memory = HybridRetriever(BM25().index(["salt in sea water", "oxygen"]), k=1)
    assert memory.search("salt")["docno"].to_list() == ["0"]
    judged = pd.DataFrame({"qid": ["7"], "docno": [hits["docid"][0]], "label": [1]})
    table = pyterrier.Experiment([ours], asked[:1].assign(qid="7"), judged, ["recip_rank"])
    assert table["recip_rank"].to_list() == [1.0]


@pytest.mark.exhaustive
def test_mteb(hits: pl.DataFrame) -> None:
    mteb = pytest.importorskip("mteb", reason="not installed: pip install 'hybrid_cli[mteb]'")
    from hybrid_cli.adapters.mteb import HybridSearch

    ours, tasks = HybridSearch(BM25().index, "mine/bm25"), mteb.mocks.mock_tasks
    assert isinstance(ours, mteb.SearchProtocol)
    for task in (tasks.MockRetrievalTask(), tasks.MockRerankingTask()):
        results = mteb.evaluate(ours, task, cache=None, show_progress_bar=False)
        assert results.model_name == "mine/bm25"
        assert results.task_results[0].get_score() > 0
    ours.index([{"id": "a", "text": "salt in sea water"}, {"id": "b", "title": "Salt", "text": "is a mineral"}])
    queries = [{"id": "q", "text": "mineral salt"}, {"id": "none", "text": "xylophone"}]
    assert [*ours.search(queries, top_k=2)["q"]] == ["b", "a"]
    ranked = ours.search(queries, top_k=2, top_ranked={"q": ["a"], "none": ["a"]})
    assert ({*ranked["q"]}, ranked["none"]) == ({"a"}, {})


@pytest.mark.exhaustive
def test_haystack(retriever: Path, hits: pl.DataFrame) -> None:
    haystack = pytest.importorskip("haystack", reason="not installed: pip install 'hybrid_cli[haystack]'")
    from hybrid_cli.adapters.haystack import HybridRetriever

    pipeline = haystack.Pipeline()
    pipeline.add_component("retriever", HybridRetriever(str(retriever)))
    haystack.core.serialization.allow_deserialization_module("hybrid_cli.adapters.haystack")
    pipeline = haystack.Pipeline.from_dict(pipeline.to_dict())
    documents = pipeline.run({"retriever": {"query": QUERY, "top_k": 3}})["retriever"]["documents"]
    assert [document.id for document in documents] == hits["docid"].to_list()
    assert [document.score for document in documents] == hits["score"].to_list()


TEXTS = ["salt in sea water", "oxygen in the blood", "salt and pepper"]
ASKED = {"a": "salt water", "b": "blood", "c": "xylophone"}


def corpus_of(tiny: Path) -> pl.DataFrame:
    return pl.read_parquet(collection.corpus_path(tiny))


def test_five_lines_lead_from_texts_to_hits_of_both() -> None:
    bm25 = BM25(k1=0.9, b=0.4).index(TEXTS)
    dense = Dense(open_encoder("minilm")).index(TEXTS)
    runs = {"bm25": bm25.search("salt in water", 3), "dense": dense.search("salt in water", 3)}
    hits = fuse(runs, method="minmax", weights=[0.4, 0.6])
    assert evaluate(hits, {"0": {"0": 1}}, ["MRR@10"]) == {"MRR@10": 1.0}
    assert (len(runs["bm25"]), len(runs["dense"]), hits["docid"][0]) == (2, 3, "0")


@pytest.mark.parametrize("options", [{}, {"k1": 2.0, "b": 0.1}, {"fields": ["title=3", "text"]}, {"language": "de"}])
def test_bm25_in_memory_has_the_hits_of_an_index(tiny: Path, tmp_path: Path, options: dict[str, Any]) -> None:
    queries = collection.read_queries(collection.queries_path(tiny, "test"))
    index_bm25(tiny, output=tmp_path / "bm25", **options)
    wanted = open_index(tmp_path / "bm25").search(queries, k=5)
    assert_frame_equal(BM25(**options).index(corpus_of(tiny)).search(queries, k=5), wanted, check_exact=True)


@pytest.mark.parametrize("k", [1, 3, 100])
def test_dense_vectors_in_memory_have_the_hits_of_an_index(tiny: Path, tiny_bert: Path, tmp_path: Path, k: int) -> None:
    queries = collection.read_queries(collection.queries_path(tiny, "test"))
    encode(tiny, model=str(tiny_bert), dtype="fp32", output=tmp_path / "dense")
    wanted = open_index(tmp_path / "dense").search(queries, k=k)
    found = Dense(open_encoder(tiny_bert, dtype="fp32")).index(corpus_of(tiny)).search(queries, k=k)
    assert_frame_equal(found, wanted, abs_tol=1e-5)


def test_lone_surrogates_of_documents_are_replaced_at_any_depth() -> None:
    rows = [{"docid": "a", "text": "\ud800", "tags": ("\ud800",)}]
    assert documents_table(rows).row(0, named=True) == {"docid": "a", "title": "", "text": "\ufffd", "tags": ["\ufffd"]}


def test_every_form_of_documents_and_queries_is_the_same_table() -> None:
    wanted = documents_table(dict(enumerate_texts()))
    rows = [{"docid": docid, "text": text} for docid, text in enumerate_texts()]
    frame = pl.DataFrame(rows)
    named = [frame.rename({"docid": name}) for name in ("doc_id", "_id", "docno")]
    of_beir = {docid: {"title": "", "text": text} for docid, text in enumerate_texts()}
    for form in (TEXTS, rows, frame, pd.DataFrame(rows), *named, iter(enumerate_texts()), Dataset(), of_beir):
        assert_frame_equal(documents_table(form), wanted)
    asked = queries_table(ASKED)
    frame = pl.DataFrame({"qid": list(ASKED), "text": list(ASKED.values())})
    named = [frame.rename({"qid": "query_id"}), frame.rename({"text": "query"}), frame.rename({"qid": "_id"})]
    topics = [Topic(*pair) for pair in ASKED.items()]
    for other in (frame, pd.DataFrame(frame.to_dict(as_series=False)), *named, list(ASKED.items()), Dataset(), topics):
        assert_frame_equal(queries_table(other), asked)
    judged = qrels_table({"a": {"0": 1}})
    for given_judgments in ([("a", "0", 1)], Dataset(), OfRanx()):
        assert_frame_equal(qrels_table(given_judgments), judged)
    run = [("a", "0", 2.0), ("a", "1", 1.0)]
    assert_frame_equal(run_table(run), run_table({"a": {"0": 2.0, "1": 1.0}}))
    assert queries_table("salt").rows() == queries_table(["salt"]).rows() == [("0", "salt")]


class Doc(NamedTuple):
    doc_id: str
    text: str


class AskedQuery(NamedTuple):
    query_id: str
    text: str


class Topic(NamedTuple):
    """A topic of TREC."""

    query_id: str
    title: str

    def default_text(self) -> str:
        return self.title


class OfRanx:
    """Judgments as ranx has them."""

    def to_dict(self) -> dict[str, dict[str, int]]:
        return {"a": {"0": 1}}


class Qrel(NamedTuple):
    query_id: str
    doc_id: str
    relevance: int
    iteration: str


class Dataset:
    """A dataset as ir_datasets has it."""

    def docs_iter(self) -> Iterator[Doc]:
        yield from (Doc(str(number), text) for number, text in enumerate(TEXTS))

    def queries_iter(self) -> Iterator[AskedQuery]:
        yield from (AskedQuery(*pair) for pair in ASKED.items())

    def qrels_iter(self) -> Iterator[Qrel]:
        yield Qrel("a", "0", 1, "0")


ROWS = [{"docid": f"d{year}", "text": text, "year": year} for year, text in enumerate(TEXTS, 2000)]


def lengths(texts: list[str]) -> list[list[int]]:
    return [[len(text), 1] for text in texts]


def test_an_index_in_memory_is_searched_filtered_explained_and_copied_as_one_on_disk() -> None:
    bm25, dense = BM25().index(ROWS), Dense(open_encoder("minilm")).index(ROWS)
    both = Retriever([bm25, dense])
    for index in (bm25, dense, both, bm25.expanded(fb_docs=1)):
        hits = index.search("salt", k=3)
        assert {"title", "text", "metadata"} < set(hits.columns)
        assert index.search("salt", k=3, filter="year >= 2001")["docid"].to_list() == [
            docid for docid in hits["docid"] if docid != "d2000"
        ]
        assert copy.deepcopy(index) is index
        assert pickle.loads(pickle.dumps(index)).search("salt", k=3).equals(hits)
    best = both.search("salt water", k=1).row(0, named=True)
    parts = both.explain("salt water", best["docid"])
    assert parts["index"].to_list() == ["bm25", "dense"]
    assert (parts["weight"] * parts["value"]).sum() == pytest.approx(best["score"])
    assert bm25.explain("salt water", "d2000")["score"].sum() == pytest.approx(best["bm25_score"])
    assert dense.explain("salt water", "d2000")["score"][0] == pytest.approx(best["dense_score"])
    with raises("unknown-id"):
        both.explain("salt", "d1")


def test_a_retriever_in_memory_has_the_default_fusion_of_compose(tiny: Path, tiny_bert: Path, tiny_runs: Path) -> None:
    encoder = open_encoder(tiny_bert, dtype="fp32")
    mine = Retriever([BM25().index(corpus_of(tiny)), Dense(encoder).index(corpus_of(tiny))])
    stored = open_index(tiny_runs / "bm25", tiny_runs / "dense")
    assert isinstance(stored, Retriever)
    assert mine.recipe.weights == pytest.approx(stored.recipe.weights, rel=1e-4)
    assert Retriever([stored.sides["bm25"], stored.sides["dense"]]).recipe.method == "minmax"  # without texts


@pytest.mark.parametrize("name", ["salt", "torch"])
def test_dense_takes_functions_models_and_vectors(name: str) -> None:
    class Model:
        encode = staticmethod(lengths)

    class Sides:
        encode_query = encode_document = staticmethod(lengths)

    def tensors(texts: list[str]) -> Any:
        return torch.tensor(lengths(texts), dtype=torch.bfloat16, requires_grad=True)

    for encoder in (
        lengths,
        Model(),
        Sides(),
        tensors,
        lambda texts: list(tensors(texts)),
        lambda texts: iter(lengths(texts)),
    ):
        hits = Dense(encoder).index(TEXTS).search("x", k=1)
        assert hits["docid"].to_list() == ["1"]
    vectors = torch.eye(3) if name == "torch" else np.eye(3)
    index = Dense(vectors).index(TEXTS)
    assert index.search(vectors[1], k=1)["docid"].to_list() == ["1"]
    assert index.search(vectors, k=1)["docid"].to_list() == ["0", "1", "2"]
    for named in ({"0": vectors[0]}, [vectors[0]], pl.DataFrame({"qid": ["0"], "vector": [[1.0, 0.0, 0.0]]})):
        assert index.search(named, k=1).select("qid", "docid").rows() == [("0", "0")]
    frame = pl.DataFrame({"qid": ["x"], "text": ["salt"], "vector": [[0.0, 0.0, 1.0]]})
    both = Retriever({"words": BM25().index(TEXTS), "vectors": index}, recipe_of(["words", "vectors"]))
    assert both.search(frame, k=1)["docid"].to_list() == ["2"]
    for queries, searched, code in (
        ("text", index, "no-encoder"),
        (vectors[1], BM25().index(TEXTS), "no-text"),
        (np.ones(2), index, "other-width"),
        (np.full(3, np.nan), index, "other-type"),
    ):
        with raises(code):
            searched.search(queries)
    unusable: Any
    for unusable, code in (
        (3, "not-an-encoder"),
        (Model, "not-an-encoder"),
        (np.eye(2), "number-of-values"),
        (len, "encoder-output"),
        (lambda texts: np.ones((len(texts), 2)) * 1j, "encoder-output"),
        (lambda texts: torch.ones(len(texts), 2, device="meta"), "encoder-output"),
    ):
        with raises(code):
            Dense(unusable).index(TEXTS)


def test_tuning_in_memory_says_what_it_did() -> None:
    both = Retriever([BM25().index(ROWS), Dense(open_encoder("minilm")).index(ROWS)])
    queries = {str(number): text for number, text in enumerate(TEXTS * 4)}
    tuned = both.tune({qid: {f"d{2000 + int(qid) % 3}": 1} for qid in queries}, queries)
    assert tuned.tuning is not None
    assert tuned.tuning.content()["queries"] == 12
    assert str(tuned.tuning) in repr(tuned)
    with raises("missing-value", option="queries"):
        both.tune({"0": {"d2000": 1}})


def test_a_collection_has_the_queries_of_its_judgments(tiny: Path) -> None:
    data = open_collection(tiny)
    both = Retriever([BM25().index(data), BM25(b=0.9).index(data)])
    assert list(both.sides) == ["bm25", "bm25-2"]
    tuned = both.tune(data.qrels("test"), measure="MRR@10")
    assert tuned.tuning is not None
    assert set(tuned.tuning.qids) == set(data.qrels("test")["qid"])


@pytest.mark.parametrize("form", ["table", "collection"])
def test_indexes_are_saved_and_opened(tiny: Path, tiny_bert: Path, tmp_path: Path, form: str) -> None:
    data = open_collection(tiny) if form == "collection" else corpus_of(tiny).with_columns(year=pl.int_range(pl.len()))
    encoder = open_encoder(tiny_bert, dtype="fp32")
    bm25, dense = BM25(k1=1.2, fields=["title=2", "text"]).index(data), Dense(encoder).index(data)
    queries = open_collection(tiny).queries("test").select("qid", "text")
    for name, index in {"bm25": bm25, "dense": dense}.items():
        saved = open_index(save(index, tmp_path / name))
        columns = [name for name in index.search(queries).columns if name != "metadata"]
        assert_frame_equal(saved.search(queries).select(columns), index.search(queries).select(columns), abs_tol=1e-5)
        if form == "table":
            assert saved.search(queries, filter="year < 3").equals(saved.search(queries, filter="NOT year >= 3"))
            assert (tmp_path / f"{name}-collection" / "corpus.parquet").is_file()
    for hybrid in (Retriever([bm25, dense]), Retriever.of({"a": bm25, "b": dense}, "rrf", rrf_k=10)):
        folder = save(hybrid, tmp_path / hybrid.recipe.method)
        assert open_retriever(folder).search(queries)["docid"].to_list() == hybrid.search(queries)["docid"].to_list()
    vectors = Dense(np.eye(12)).index(data)
    hit = open_index(save(vectors, tmp_path / "eye")).search(np.eye(12)[4], k=1)
    assert hit["docid"].equals(vectors.search(np.eye(12)[4], k=1)["docid"])
    for other in (bm25.expanded(), open_index(tmp_path / "bm25")):
        with raises("other-kind"):
            save(other, tmp_path / "other")
    with raises("output-differs"):
        save(BM25(k1=2.0).index(data), tmp_path / "bm25")


def enumerate_texts() -> list[tuple[str, str]]:
    return [(str(number), text) for number, text in enumerate(TEXTS)]


def test_no_documents_and_no_queries_have_no_hits() -> None:
    none: Any
    for none in ([], {}, pl.DataFrame({"docid": [], "text": []})):
        index, dense = BM25().index(none), Dense(lengths).index(none)
        for empty in (index, dense, Retriever([index, dense])):
            assert len(empty.search("salt")) == len(empty.documents) == 0
    assert len(BM25().index(TEXTS).search([])) == 0


@pytest.mark.parametrize(
    ("documents", "code"),
    [
        ("one text", "not-a-list"),
        ([1, 2], "not-a-text"),
        ([{"docid": "1"}], "no-such-column"),
        ([{"docid": "1", "text": "a"}, {"docid": 2, "text": "b"}], "other-type"),
        ([{"docid": None, "text": "a"}], "other-type"),
        ([{"docid": "1", "text": "a"}, {"docid": "1", "text": "b"}], "duplicate-id"),
    ],
)
def test_unusable_documents_are_refused(documents: Any, code: str) -> None:
    with pytest.raises(InputError) as caught:
        documents_table(documents)
    assert caught.value.code == code


def test_unusable_calls_are_refused() -> None:
    index = BM25().index(TEXTS)
    for queries, k, code in ((3, 1, "not-a-list"), ({"a": 3}, 1, "other-type"), ("a", 0, "invalid-depth")):
        with pytest.raises(InputError) as caught:
            index.search(queries, k)
        assert caught.value.code == code
    assert BM25(fields="text").index(TEXTS).search("salt")["docid"].to_list()  # type: ignore[arg-type]
    wrong = {"k1": "a", "b": 2}.items()
    for options, code in (
        ({"fields": ["body"]}, "no-such-column"),
        ({"fields": ["a=b"]}, "invalid-field"),
        *(({name: value}, "out-of-range") for name, value in wrong),
    ):
        with pytest.raises(HybridError) as refused:
            BM25(**options).index(TEXTS)  # type: ignore[arg-type]
        assert refused.value.code == code
    calls: list[tuple[Any, str]] = [
        (lambda: index.expanded(fb_docs=0), "out-of-range"),
        (lambda: index.search("salt", filter=pl.col("year") > 1), "other-type"),  # type: ignore[arg-type]
        (lambda: index.score([("0", "0")], "salt"), "not-a-table"),  # type: ignore[arg-type]
        (lambda: Retriever(index), "other-type"),  # type: ignore[arg-type]
        (lambda: Retriever({"bm25": BM25()}), "other-type"),  # type: ignore[dict-item]
        (lambda: open_collection({"a": "salt"}), "other-type"),  # type: ignore[arg-type]
        (lambda: qrels_table([(None, "a", 1)]), "missing-value"),
    ]
    for call, code in calls:
        with raises(code):
            call()


def test_indexes_show_themselves_in_a_line() -> None:
    bm25, dense = BM25().index(TEXTS), Dense(lengths).index(TEXTS)
    for index in (bm25, dense, bm25.expanded(), Retriever([bm25, dense])):
        assert type(index).__name__ in repr(index)
        assert str(len(TEXTS)) in repr(index)
        assert "\n" not in repr(index)


def test_pairs_are_scored_and_dates_filtered() -> None:
    index = BM25().index([{"docid": "a", "text": "salt", "day": date(2024, 5, 1)}, {"docid": "b", "text": "sea"}])
    hits = index.search("salt", filter="day > '2024'")
    pairs = hits.select("qid", "docid")
    assert index.score(pairs, ["salt"]).to_list() == index.score(pairs, "salt").to_list() == hits["score"].to_list()
    assert index.explain(["salt"], "a")["score"].to_list() == hits["score"].to_list()  # type: ignore[arg-type]
