"""`search`: the run that an index gives, the model it insists on, and what a person sees."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from command import hybrid

from hybrid_cli import artifacts, indexes, runs
from hybrid_cli.artifacts import Kind
from hybrid_cli.config import Encoding, Searching, VectorIndex
from hybrid_cli.encoders.transformer import TransformerEncoder
from hybrid_cli.errors import InputError
from hybrid_cli.stages.encode import encode
from hybrid_cli.stages.index_bm25 import index_bm25
from hybrid_cli.stages.search import look, search

EXACT = Encoding(dtype="fp32")


@pytest.fixture(scope="module")
def dense(tiny: Path, tiny_bert: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("dense") / "clear-index"
    return encode(tiny, output=output, model=str(tiny_bert), encoding=EXACT)


@pytest.fixture(scope="module")
def lexical(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return index_bm25(tiny, output=tmp_path_factory.mktemp("lexical") / "bm25")


def test_a_dense_run_is_the_inner_products_of_the_encoders_vectors(
    tiny: Path, tiny_bert: Path, dense: Path, tmp_path: Path
):
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


def test_the_manifest_of_a_run_leads_to_index_and_queries(tiny: Path, dense: Path, tmp_path: Path):
    output = search(tiny, split="test", index=dense, output=tmp_path / "run.parquet", hits=5)
    manifest = artifacts.read_manifest(output, Kind.RUN)
    assert set(manifest.inputs) == {"index", "queries"}
    assert manifest.counts == {"rows": 6 * 5, "queries": 6}
    written = output.read_bytes()
    search(tiny, split="test", index=dense, output=tmp_path / "again.parquet", hits=5)
    assert written == (tmp_path / "again.parquet").read_bytes()


def test_stored_query_vectors_give_the_run_of_their_texts(tiny: Path, tiny_bert: Path, dense: Path, tmp_path: Path):
    queries = encode(tiny, output=tmp_path / "queries", model=str(tiny_bert), split="test", encoding=EXACT)
    stored = search(None, queries=queries, index=dense, output=tmp_path / "stored.parquet")
    texts = search(tiny, split="test", index=dense, output=tmp_path / "texts.parquet")
    assert runs.read_run(stored).equals(runs.read_run(texts))


def test_settings_of_the_contract_hold_for_the_queries_too(tiny: Path, tiny_bert: Path, tmp_path: Path):
    changed = {"query_prefix": "query: ", "pooling": "cls"}
    index = encode(tiny, output=tmp_path / "index", model=str(tiny_bert), encoding=EXACT, contract=changed)
    run = runs.read_run(search(tiny, split="test", index=index, output=tmp_path / "run.parquet", hits=1))
    encoder = TransformerEncoder.load(tiny_bert, device="cpu", **changed)
    queries = encoder.encode_queries(pq.read_table(tiny / "queries.test.parquet")["text"].to_pylist())
    opened = indexes.DenseIndex.open(index)
    pairs = opened.score(run, run["qid"].to_list(), queries)
    np.testing.assert_allclose(run["score"], pairs, rtol=1e-4)


def test_another_model_is_refused_with_the_difference(tiny: Path, tiny_bert: Path, dense: Path, tmp_path: Path):
    def searched_with(model: str) -> str:
        with pytest.raises(InputError) as error:
            search(tiny, split="test", index=dense, output=tmp_path / "run.parquet", how=Searching(model=model))
        return str(error.value)

    assert "query_max_len=64, not 256" in searched_with("minilm")
    encoder = TransformerEncoder.load(tiny_bert, device="cpu")
    encoder.document_tower.backbone.embeddings.word_embeddings.weight.data += 0.1
    encoder.save(tmp_path / "trained")
    assert "was encoded by other weights" in searched_with(str(tmp_path / "trained"))
    assert not (tmp_path / "run.parquet").exists()


def test_query_vectors_of_another_model_are_refused(tiny: Path, dense: Path, tmp_path: Path):
    queries = encode(tiny, output=tmp_path / "queries", split="test", encoding=EXACT)
    with pytest.raises(InputError, match="query_max_len=64, not 256"):
        search(None, queries=queries, index=dense, output=tmp_path / "run.parquet")


@pytest.mark.parametrize("how", [Searching(), Searching(k1=1.2, b=0.75)], ids=["recorded", "given"])
def test_matrix_and_lucene_give_the_same_run(tiny: Path, lexical: Path, tmp_path: Path, how: Searching):
    found = {}
    for engine in ("matrix", "lucene"):
        mine = Searching(engine=engine, k1=how.k1, b=how.b)  # type: ignore[arg-type]
        output = search(tiny, split="test", index=lexical, output=tmp_path / f"{engine}.parquet", how=mine)
        found[engine] = runs.read_run(output)
    assert found["matrix"].drop("score").equals(found["lucene"].drop("score"))
    np.testing.assert_allclose(found["matrix"]["score"], found["lucene"]["score"], atol=1e-4)


def test_feedback_reaches_both_engines(tiny: Path, lexical: Path, tmp_path: Path):
    plain = runs.read_run(search(tiny, split="test", index=lexical, output=tmp_path / "plain.parquet"))
    found = []
    for engine in ("matrix", "lucene"):
        how = Searching(engine=engine, rm3=True, fb_docs=2)  # type: ignore[arg-type]
        output = search(tiny, split="test", index=lexical, output=tmp_path / f"{engine}.parquet", how=how)
        found.append(runs.read_run(output))
    assert found[0].drop("score").equals(found[1].drop("score"))
    np.testing.assert_allclose(found[0]["score"], found[1]["score"], atol=1e-4)
    assert not np.allclose(found[0]["score"], plain["score"])


@pytest.mark.parametrize(
    ("how", "words"),
    [(Searching(rm3=True, k1=0.9), "--k1, --rm3: means nothing to"), (Searching(engine="lucene"), "--engine: means")],
)
def test_settings_for_a_lexical_index_are_refused_for_a_dense_one(
    tiny: Path, dense: Path, tmp_path: Path, how: Searching, words: str
):
    with pytest.raises(InputError, match=words):
        search(tiny, split="test", index=dense, output=tmp_path / "run.parquet", how=how)


def test_settings_for_a_dense_index_are_refused_for_a_lexical_one(tiny: Path, lexical: Path, tmp_path: Path):
    how = Searching(model="minilm", nprobe=3)
    with pytest.raises(InputError, match="--model, --nprobe: means nothing to"):
        search(tiny, split="test", index=lexical, output=tmp_path / "run.parquet", how=how)


def test_something_else_is_no_index(tiny: Path, tmp_path: Path):
    with pytest.raises(InputError, match=r"is a collection .*; an index is needed here"):
        search(tiny, split="test", index=tiny, output=tmp_path / "run.parquet")


def test_a_graph_index_gives_the_exact_run_of_a_small_corpus(tiny: Path, tiny_bert: Path, dense: Path, tmp_path: Path):
    graph = encode(tiny, output=tmp_path / "graph", model=str(tiny_bert), encoding=EXACT, index=VectorIndex("hnsw"))
    found = [
        runs.read_run(search(tiny, split="test", index=index, output=tmp_path / f"{index.name}.parquet"))
        for index in (graph, dense)
    ]
    assert found[0].drop("score").equals(found[1].drop("score"))


def test_a_person_sees_titles_and_snippets(lexical: Path, capsys: pytest.CaptureFixture[str]):
    best = look("salt in sea water", indexes=[lexical], hits=2)
    assert best["docid"].to_list() == ["salt", "NA"]
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(" 1. Table salt  [salt: ")
    assert lines[1] == "    Table salt is made of sodium and chlorine. Sea water holds 35 grams of salt in a litre."
    assert lines[2].startswith(" 2. Sodium  [NA: ")


def test_a_person_sees_the_rank_in_each_list_of_a_fusion(
    tiny: Path, lexical: Path, dense: Path, capsys: pytest.CaptureFixture[str]
):
    best = look("salt in sea water", indexes=[lexical, dense], collection=tiny, hits=12)
    assert best.columns == ["docid", "score", "rank_0", "rank_1"]
    assert len(best) == 12  # the dense list has them all
    one = look("salt in sea water", indexes=[dense], hits=12)
    ranks = dict(one.select("docid", "rank_0").iter_rows())
    assert dict(best.select("docid", "rank_1").iter_rows()) == ranks
    printed = capsys.readouterr().out
    assert f"bm25 1, clear-index {ranks['salt']}]" in printed
    assert f"bm25 -, clear-index {ranks['hamlet']}]" in printed


def test_a_query_that_finds_nothing_says_so(lexical: Path, capsys: pytest.CaptureFixture[str]):
    assert not len(look("xylophone", indexes=[lexical]))
    assert capsys.readouterr().out == "no hits\n"


def test_the_command_takes_several_indexes_for_a_person_only(tiny: Path, lexical: Path, dense: Path, tmp_path: Path):
    both = f"{lexical},{dense}"
    seen = hybrid("search", "--index", both, "--query", "oxygen in the blood", "-k", 1)
    assert seen.code == 0
    assert seen.out.startswith(" 1. Lungs  [lungs: ")
    refused = hybrid("search", tiny, "--split", "test", "--index", both, "--output", tmp_path / "run.parquet")
    assert refused.code == 2
    assert "name one --index and an --output" in refused.err
    assert hybrid("search", tiny, "--split", "test", "--index", lexical).code == 2


def test_a_dry_run_checks_everything_and_writes_nothing(tiny: Path, dense: Path, tmp_path: Path):
    output = tmp_path / "run.parquet"
    done = hybrid("search", tiny, "--split", "test", "--index", dense, "--output", output, "--dry-run")
    assert done.code == 0
    assert "would be written" in done.out
    assert not output.exists()
