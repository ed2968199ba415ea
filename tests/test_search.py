"""`search`: runs, the check of the encoder, options by kind of index, and the hits of one query."""

import io
import json
import re
import shutil
import signal
import subprocess
import sys
from itertools import product
from pathlib import Path
from typing import Any, cast

import numpy as np
import polars as pl
import pyarrow.parquet as pq
import pytest
from command import hybrid, raises, ran
from small_artifacts import vector_scores
from terminal import Terminal

from hybrid_cli import artifacts, runs
from hybrid_cli.artifacts.opening import open_bm25, open_dense
from hybrid_cli.commands import Search
from hybrid_cli.encoders.transformer import TransformerEncoder
from hybrid_cli.lexical.index import LexicalIndex
from hybrid_cli.reporting.terminal import show_hits
from hybrid_cli.stages import search as stage
from hybrid_cli.stages.compose import compose
from hybrid_cli.stages.encode import encode
from hybrid_cli.stages.fuse import fuse
from hybrid_cli.stages.index_bm25 import index_bm25
from hybrid_cli.stages.search import search, search_query

ENGINES: tuple[str, ...] = ("matrix", "lucene")


@pytest.fixture(scope="module")
def dense(tiny_runs: Path) -> Path:
    return tiny_runs / "dense"


def test_a_dense_run_ranks_by_inner_products(tiny: Path, tiny_bert: Path, dense: Path, tmp_path: Path) -> None:
    run = runs.read_run(search(tiny, split="test", index=dense, output=tmp_path / "run.parquet", hits=5))
    encoder = TransformerEncoder.load(tiny_bert, device="cpu")
    texts = pq.read_table(tiny / "queries.test.parquet")["text"].to_pylist()
    corpus = pq.read_table(tiny / "corpus.parquet").to_pydict()
    scores = encoder.encode_queries(texts) @ encoder.encode_documents(corpus["title"], corpus["text"]).T
    for number, (_, hits) in enumerate(run.group_by("qid", maintain_order=True)):
        best = np.argsort(-scores[number])[:5]
        assert hits["docid"].to_list() == [corpus["docid"][row] for row in best]
        np.testing.assert_allclose(hits["score"], scores[number][best], rtol=1e-4)
        assert hits["rank"].to_list() == [1, 2, 3, 4, 5]


def test_stored_vectors_give_the_same_run(tiny: Path, tiny_bert: Path, dense: Path, tmp_path: Path) -> None:
    queries = encode(tiny, output=tmp_path / "queries", model=str(tiny_bert), split="test", dtype="fp32")
    stored = search(queries=queries, index=dense, output=tmp_path / "stored.parquet")
    texts = search(tiny, split="test", index=dense, output=tmp_path / "texts.parquet")
    assert runs.read_run(stored).equals(runs.read_run(texts))


def test_queries_are_encoded_with_the_contract_of_the_index(tiny: Path, tiny_bert: Path, tmp_path: Path) -> None:
    changed: dict[str, Any] = {"query_prefix": "query: ", "pooling": "cls"}
    index = encode(tiny, output=tmp_path / "index", model=str(tiny_bert), dtype="fp32", **changed)
    run = runs.read_run(search(tiny, split="test", index=index, output=tmp_path / "run.parquet", hits=1))
    encoder = TransformerEncoder.load(tiny_bert, device="cpu", **changed)
    queries = encoder.encode_queries(pq.read_table(tiny / "queries.test.parquet")["text"].to_pylist())
    opened = open_dense(index)
    pairs = vector_scores(opened, run, run["qid"].to_list(), queries)
    np.testing.assert_allclose(run["score"], pairs, rtol=1e-4)


def test_another_encoder_differs_in_names(tiny: Path, tiny_bert: Path, dense: Path, tmp_path: Path) -> None:
    def differences_from(model: str) -> list[str]:
        with raises("other-encoder", path=dense, model=model) as caught:
            search(tiny, split="test", index=dense, output=tmp_path / "run.parquet", model=model)
        return cast(list[str], caught.value.fields["differences"])

    assert "query_max_len" in [each.partition("=")[0] for each in differences_from("minilm")]
    encoder = TransformerEncoder.load(tiny_bert, device="cpu")
    words: Any = encoder.document_tower.backbone.embeddings
    words.word_embeddings.weight.data += 0.1
    encoder.save(tmp_path / "trained")
    assert differences_from(str(tmp_path / "trained")) == []
    assert not (tmp_path / "run.parquet").exists()


def test_query_vectors_of_another_model_are_refused(tiny: Path, dense: Path, tmp_path: Path) -> None:
    queries = encode(tiny, output=tmp_path / "queries", split="test", dtype="fp32")
    with raises("other-width", value=384, expected=16, index="dense"):
        search(queries=queries, index=dense, output=tmp_path / "run.parquet")


@pytest.mark.parametrize("options", [{}, {"k1": 1.2, "b": 0.75}, {"rm3": True, "fb_docs": 2}], ids=str)
def test_matrix_and_lucene_are_equal(tiny: Path, tiny_bm25: Path, tmp_path: Path, options: dict[str, Any]) -> None:
    given: dict[str, Any] = {"split": "test", "index": tiny_bm25}
    plain, matrix, lucene = (
        runs.read_run(search(tiny, output=tmp_path / f"{number}.parquet", **given, **how))
        for number, how in enumerate([{}, *({"engine": engine, **options} for engine in ENGINES)])
    )
    assert matrix.drop("score").equals(lucene.drop("score"))
    np.testing.assert_allclose(matrix["score"], lucene["score"], atol=1e-4)
    assert np.allclose(matrix["score"], plain["score"]) is (not options)


def test_options_of_other_kinds_of_index_are_refused(tiny: Path, tiny_bm25: Path, dense: Path, tmp_path: Path) -> None:
    """Not ignored; a retriever is searched as it was composed."""
    retriever = compose([tiny_bm25, dense], method="rrf", output=tmp_path / "retriever")
    others: dict[Path, dict[str, Any]] = {
        dense: {"rm3": True, "engine": "lucene", "k1": 0.9, "nprobe": 8, "binary_k": 8},
        tiny_bm25: {"model": "minilm", "weight": 1.0, "binary_k": 8, "fb_docs": 3, "weights": "1,2"},
        retriever: {"k1": 2.0},
    }
    for index, options in others.items():
        for name in options:
            with raises("option-does-not-apply", option=name):
                search(tiny, split="test", index=index, output=tmp_path / "run.parquet", **{name: options[name]})


def test_options_of_several_indexes_apply_to_one(tiny: Path, tiny_bert: Path, tiny_bm25: Path, dense: Path) -> None:
    both, query = [tiny_bm25, dense], "salt in sea water"
    search_query(tiny, index=both, query=query, k1=0.5, model=str(tiny_bert))
    first = search_query(tiny, index=[tiny_bm25], query=query, k1=0.5)
    assert first["score"].to_list() != search_query(tiny, index=[tiny_bm25], query=query)["score"].to_list()


def test_an_hnsw_index_gives_the_exact_run(tiny: Path, tiny_bert: Path, dense: Path, tmp_path: Path) -> None:
    graph = encode(tiny, output=tmp_path / "graph", model=str(tiny_bert), dtype="fp32", index_type="hnsw")
    found = [
        runs.read_run(search(tiny, split="test", index=index, output=tmp_path / f"{index.name}.parquet"))
        for index in (graph, dense)
    ]
    assert found[0].drop("score").equals(found[1].drop("score"))


def test_the_hits_of_a_query_have_titles_and_texts(tiny_bm25: Path) -> None:
    best = search_query(index=tiny_bm25, query="salt in sea water", hits=2)
    assert best.columns == ["docid", "rank", "score", "title", "text"]
    assert best["docid"].to_list() == ["salt", "NA"]
    assert best["title"].to_list() == ["Table salt", "Sodium"]


SIDES = ["bm25_rank", "bm25_score", "dense_rank", "dense_score"]


def test_hits_of_several_indexes_are_fused_with_the_rank_in_each(tiny: Path, tiny_bm25: Path, dense: Path) -> None:
    best = search_query(tiny, index=[tiny_bm25, dense], query="salt in sea water", hits=12)
    assert best.columns == ["docid", "rank", "score", *SIDES, "title", "text"]
    assert len(best) == 12  # the dense index ranks all documents
    one = search_query(tiny, index=dense, query="salt in sea water", hits=12)
    ranks = dict(one.select("docid", "rank").iter_rows())
    assert dict(best.select("docid", "dense_rank").iter_rows()) == ranks
    both = f"{tiny_bm25},{dense}"
    printed = hybrid("search", tiny, "--index", both, "--query", "salt in sea water", "-k", 12).out
    assert f"bm25 1, dense {ranks['salt']}]" in printed
    assert f"bm25 -, dense {ranks['hamlet']}]" in printed


def test_printed_hits_are_fused_like_a_tuned_run(tiny: Path, tiny_bm25: Path, dense: Path, tmp_path: Path) -> None:
    both = [
        search(tiny, split="test", index=index, output=tmp_path / f"{index.name}.parquet")
        for index in (tiny_bm25, dense)
    ]
    weights = fuse(both, output=tmp_path / "w.json", qrels=tiny, split="test", tune=True, methods=["zscore"])
    run = runs.read_run(fuse(both, output=tmp_path / "f.parquet", weights=f"@{weights}"))
    qid, text = pl.read_parquet(tiny / "queries.test.parquet").select("qid", "text").row(0)
    asked = {"index": [tiny_bm25, dense], "query": text, "hits": 12}
    tuned = search_query(tiny, weights=f"@{weights}", **asked)
    assert tuned.select("docid", "score").equals(run.filter(qid=qid).select("docid", "score"))
    assert not tuned["score"].equals(search_query(tiny, **asked)["score"])
    alone = search_query(tiny, index=dense, query=text, hits=12)
    assert search_query(tiny, weights="0,1", **asked)["docid"].to_list() == alone["docid"].to_list()
    with raises("missing-option", option="index"):
        search_query(tiny, index=dense, query=text, weights="1")
    options: dict[str, Any] = {"qrels": tiny, "split": "test", "tune": True}
    exact = fuse(both, output=tmp_path / "e.json", index=[tiny_bm25, dense], methods=["weighted-sum"], **options)
    run = runs.read_run(fuse(both, output=tmp_path / "g.parquet", weights=f"@{exact}", index=[tiny_bm25, dense]))
    printed = search_query(tiny, weights=f"@{exact}", **asked)
    assert printed["docid"].to_list() == run.filter(qid=qid)["docid"].to_list()
    np.testing.assert_allclose(printed["score"], run.filter(qid=qid)["score"], rtol=1e-5)


def test_a_query_without_hits_prints_a_line(tiny_bm25: Path) -> None:
    assert not len(search_query(index=tiny_bm25, query="xylophone"))
    assert hybrid("search", "--index", tiny_bm25, "--query", "xylophone").out == "no hits\n"
    assert hybrid("search", "--index", tiny_bm25, "--query", " ").is_problem("missing-value", option="query")


def test_hits_as_json(tiny_bm25: Path, dense: Path) -> None:
    done = hybrid(
        "search", "--index", f"{tiny_bm25},{dense}", "--query", "salt in sea water", "-k", 2, "--format", "json"
    )
    found = json.loads(done.out)
    assert found["query"] == "salt in sea water"
    assert [hit["docid"] for hit in found["hits"]][:1] == ["salt"]
    assert found["hits"][0]["ranks"].keys() == {"bm25", "dense"}
    assert found["hits"][0]["title"] == "Table salt"
    nothing = hybrid("search", "--index", tiny_bm25, "--query", "xylophone", "--format", "json")
    assert (nothing.code, json.loads(nothing.out)) == (0, {"query": "xylophone", "hits": []})


def test_interactive_queries_open_the_index_once(tiny_bm25: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[Path] = []

    def counted(folder: Path, *more: Any) -> LexicalIndex:
        opened.append(folder)
        return open_bm25(folder, *more)

    monkeypatch.setattr("hybrid_cli.artifacts.opening.open_bm25", counted)
    monkeypatch.setattr("sys.stdin", io.StringIO("salt in sea water\n\nxylophone\noxygen in the blood\n"))
    done = ran("search", "--index", tiny_bm25, "--interactive", "-k", 1)
    asked, first, _, other, none, _, last, *_ = done.out.splitlines()
    assert (asked, first[:14]) == ("query: salt in sea water", " 1. Table salt")
    assert (other, none, last[:9]) == ("query: xylophone", "no hits", " 1. Lungs")
    assert opened == [tiny_bm25]


def test_an_interactive_query_with_invalid_bytes_does_not_end_the_others(tiny_bm25: Path) -> None:
    words = ["search", "--index", str(tiny_bm25), "--interactive", "--format", "json"]
    command = [sys.executable, "-m", "hybrid_cli", *words]
    done = subprocess.run(command, input=b"salt caf\xe9\noxygen in the blood\n", capture_output=True, check=True)
    first, second = map(json.loads, done.stdout.splitlines())
    assert (first["query"], first["hits"][0]["docid"]) == ("salt caf\ufffd", "salt")
    assert second["query"] == "oxygen in the blood"
    assert b"not valid UTF-8" in done.stderr


def test_indexes_of_the_same_name_keep_their_ranks(tiny: Path, tmp_path: Path) -> None:
    for name in "ab":
        index_bm25(tiny, output=tmp_path / name / "index")
    both = f"{tmp_path}/a/index,{tmp_path}/b/index"
    done = ran("search", "--index", both, "--query", "salt in sea water", "--format", "json")
    assert json.loads(done.out)["hits"][0]["ranks"].keys() == {"a/index", "b/index"}


def test_queries_on_a_terminal_are_edited_and_recalled_until_exit(tiny_bm25: Path) -> None:
    session = Terminal("search", "--index", tiny_bm25, "--interactive", "-k", 1)
    session.wait_for(b"query> ")
    session.press(b"xalt\x01\x04s\n")  # Ctrl-A, Ctrl-D: to the start, delete
    session.wait_for(b"Table salt")
    session.press(b"\x1b[A\n")  # the former query
    session.wait_for_texts(2, b"Table salt")
    session.press(b"exit\n")
    session.end()
    assert session.code == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_interactive_queries_at_once(tiny_bm25: Path, number: signal.Signals) -> None:
    session = Terminal("search", "--index", tiny_bm25, "--interactive", "-k", 1)
    session.wait_for(b"query> ")
    session.press(b"salt\n")
    session.wait_for(b"Table salt")
    session.wait_for(b"\nquery> ")
    session.wait_until_it_waits()
    if number == signal.SIGINT:
        session.press(b"\x03")
    else:
        session.send(number)
    last = session.end().splitlines()[-1]
    assert session.code == 128 + number
    assert re.fullmatch(r"(query> )?(\^C)?hybrid: (interrupted|terminated)", last)


def test_a_terminal_wraps_at_words_and_marks_terms(tiny_bm25: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Screen(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    screen = Screen()
    settings = Search(index=tiny_bm25, query="salts in sea water", hits=1)
    monkeypatch.setattr("sys.stdout", screen)
    show_hits(search_query(settings), settings)
    lines = screen.getvalue().splitlines()
    assert "\x1b[1msalt\x1b[0m" in screen.getvalue()
    plain = [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in lines]
    assert max(map(len, plain)) <= 40
    text = "Table salt is made of sodium and chlorine. Sea water holds 35 grams of salt in a litre."
    assert " ".join(line.strip() for line in plain).endswith(text)


def test_hits_without_a_corpus_are_ids_and_a_warning(tiny: Path, tmp_path: Path) -> None:
    shutil.copytree(tiny, tmp_path / "collection")
    index = index_bm25(tmp_path / "collection", output=tmp_path / "bm25", threads=1)
    shutil.rmtree(tmp_path / "collection")
    done = hybrid("search", "--index", index, "--query", "salt in sea water", "-k", 1)
    assert done.out.startswith(" 1. salt  [")
    assert done.out.count("salt") == 1
    assert done.warnings == ["corpus-changed"]


def test_rm3_is_tuned_by_cross_validation(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The hits of a judged query come from parameters of the grid that the other fold selects."""
    assert len(stage.GRID) == 900  # (DualRM, section 4); a part of it here
    grid = {"SIZES": stage.SIZES[:2], "SHARES": stage.SHARES[::4]}
    for name, values in {**grid, "GRID": [*product(grid["SIZES"], *grid.values())]}.items():
        monkeypatch.setattr(stage, name, values)
    collection = made / "collection"
    tuning: dict[str, Any] = {"index": made / "bm25", "rm3": True, "tune": True, "measure": "nDCG@10"}
    tuned = search(collection, split="test", output=tmp_path / "t.parquet", **tuning)
    manifest = artifacts.read_manifest(tuned)
    selected = manifest.counts["rm3"]
    assert sum(each["queries"] for each in selected) == 5  # of six queries, one has no judgments
    run = runs.read_run(tuned)
    one = selected[0]
    sizes: dict[str, Any] = {name: one[name] for name in ("fb_docs", "fb_terms", "fb_weight")}
    output = tmp_path / "f.parquet"
    fixed = search(collection, split="test", index=made / "bm25", rm3=True, output=output, **sizes)
    same = run.join(runs.read_run(fixed), on=list(run.columns), how="semi")
    assert same["qid"].n_unique() >= one["queries"] - 1  # a query of stop words has no hits
