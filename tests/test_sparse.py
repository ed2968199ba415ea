"""Learned sparse retrieval: quantized sums, training, expansion, changes of an index."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from command import Notices, raises
from small_artifacts import write_corpus
from sparse_models import ARCHITECTURES, TEXTS, open_model, write_checkpoint, write_checkpoints
from transformers import AutoModel

from hybrid_cli import artifacts, runs, storage
from hybrid_cli.artifacts.opening import open_lexical
from hybrid_cli.collections import collection as collections
from hybrid_cli.encoders.sparse import SparseEncoder
from hybrid_cli.lexical.analysis import LazyAnalyzer
from hybrid_cli.stages.encode import encode
from hybrid_cli.stages.evaluate import evaluate
from hybrid_cli.stages.export import export
from hybrid_cli.stages.fuse import fuse
from hybrid_cli.stages.index_bm25 import index_bm25
from hybrid_cli.stages.inspect import inspect
from hybrid_cli.stages.label import label
from hybrid_cli.stages.mine_negatives import mine_negatives
from hybrid_cli.stages.search import search, search_query
from hybrid_cli.stages.train_lambda import train_lambda
from hybrid_cli.stages.train_sparse import train_sparse
from hybrid_cli.stages.update import update
from hybrid_cli.storage import Kind
from hybrid_cli.training.sparse import flops, gate_loss, growth, recall

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[Any, Path]:
    return write_checkpoints(tmp_path_factory.mktemp("sparse"))


@pytest.fixture(scope="module")
def built(models: dict[Any, Path], tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[Any, Path]:
    folder = tmp_path_factory.mktemp("built")
    return {
        each: encode(tiny, model=str(path), architecture=each, output=folder / each, dtype="fp32")
        for each, path in models.items()
    }


# --------------------------------------------------------------------------------------------------------- its indexes


def scores_by_hand(encoder: SparseEncoder, tiny: Path, queries: pl.DataFrame, steps: int) -> pl.DataFrame:
    corpus = pl.concat([pl.DataFrame(pl.from_arrow(batch)) for batch in collections.documents(tiny)])
    documents = encoder.encode_documents(corpus["title"].to_list(), corpus["text"].to_list())
    ours = np.rint(encoder.encode_queries(queries["text"].to_list()) * np.float32(steps)).astype(int)
    theirs = np.rint(documents * np.float32(steps)).astype(int)
    pairs = queries.select("qid").join(corpus.select("docid"), how="cross")
    scored = pairs.with_columns(score=pl.Series((ours @ theirs.T).ravel() / steps**2, dtype=pl.Float32))
    return runs.ranked(scored.filter(pl.col("score") > 0), 1000)


@pytest.mark.parametrize("architecture", ["splade", "unicoil"])
def test_quantized_sums(
    models: dict[Any, Path], built: dict[Any, Path], tiny: Path, tmp_path: Path, architecture: str
) -> None:
    queries = collections.read_queries(collections.queries_path(tiny, "test")).select("qid", "text")
    run = runs.read_run(search(tiny, split="test", index=built[architecture], output=tmp_path / "run.parquet"))
    wanted = scores_by_hand(open_model(models, architecture), tiny, queries, 128)
    assert run.sort("qid", "rank").equals(wanted.sort("qid", "rank"))
    one = search_query(tiny, index=built[architecture], query=queries["text"][0])
    assert one["docid"].to_list() == wanted.filter(pl.col("qid") == queries["qid"][0])["docid"].head(10).to_list()


def test_deepct_is_bm25_on_counts_with_its_own_parameters(built: dict[Any, Path], tiny: Path) -> None:
    index = open_lexical(built["deepct"])
    assert (index.k1, index.b) == (10.0, 0.9)
    postings = index.impacts.postings
    assert postings.tokens == postings.tfs.sum()
    expanded = search_query(tiny, index=built["deepct"], query="oxygen in the blood", rm3=True, k1=5.0)
    assert "lungs" in expanded["docid"].to_list()


@pytest.mark.heavy
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_command_reads_the_index(
    built: dict[Any, Path], made: Path, tiny: Path, tiny_bert: Path, tmp_path: Path, architecture: str
) -> None:
    index = built[architecture]
    run = search(tiny, split="test", index=index, output=tmp_path / "run.parquet")
    exact = search(
        tiny, split="test", index=[made / "dense", index], exact=True, weights="0,1", output=tmp_path / "exact.parquet"
    )
    ranked, whole = runs.read_run(run), runs.read_run(exact)
    both = ranked.join(whole, on=["qid", "docid"])
    assert len(both) == len(ranked)
    assert (both["score"] - both["score_right"]).abs().max() < 1e-5  # type: ignore[operator]
    options: dict[str, Any] = {"method": "weighted-sum", "missing": "exact", "weights": "1,0"}
    indexes, output = [index, made / "dense"], tmp_path / "fused.parquet"
    fused = fuse([run, made / "dense.parquet"], index=indexes, output=output, **options)
    mixed = runs.read_run(fused).join(ranked, on=["qid", "docid"])
    assert (mixed["score"] - mixed["score_right"]).abs().max() < 1e-5  # type: ignore[operator]
    compared = evaluate([tiny, made / "dense.parquet", run], split="test", complement=("dense", "run"))
    assert compared.complement is not None
    mined = mine_negatives(
        tiny, split="train", index=index, sources="bm25:2", depth=5, output=tmp_path / "train.parquet"
    )
    assert pl.read_parquet(mined)["lexical_score"].max() > 0  # type: ignore[operator]
    labels = label(tiny, index=index, split="train", depth=3, output=tmp_path / "labels")
    plan: dict[str, Any] = {"loss": "listwise", "dev": "test", "positives": 1, "max_steps": 1, "model": str(tiny_bert)}
    plan |= {"labels": labels, "index": index, "device": "cpu", "threads": 1}
    imitated = train_lambda(tiny, output=tmp_path / "lambda", **plan)
    assert "dev_RBO" in pl.read_parquet(imitated / "curve.parquet")["name"].to_list()
    described = inspect([index])
    assert described["documents"] == 12
    assert inspect([index], verify=True) is not None


def test_an_index_refuses_another_encoder(built: dict[Any, Path], tiny: Path, tmp_path: Path) -> None:
    other = write_checkpoint(tmp_path / "other", "splade", seed=2)
    with raises("other-encoder"):
        search_query(tiny, index=built["splade"], query="salt", model=str(other))


def counted_blocks(monkeypatch: pytest.MonkeyPatch, interrupted_at: int = 0) -> list[Any]:
    """Return a list that grows with each block that is encoded; one of them is interrupted."""
    original, calls = SparseEncoder.document_weights, list[Any]()

    def counted(self: SparseEncoder, *given: Any) -> Any:
        calls.append(given)
        if len(calls) == interrupted_at:
            raise KeyboardInterrupt
        return original(self, *given)

    monkeypatch.setattr(SparseEncoder, "document_weights", counted)
    return calls


def test_shards_resume_and_do_not_change_the_index(
    models: dict[Any, Path], built: dict[Any, Path], tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments: dict[str, Any] = {"model": str(models["unicoil"]), "architecture": "unicoil", "dtype": "fp32"}
    arguments |= {"output": tmp_path / "index", "shard_size": 4}
    calls = counted_blocks(monkeypatch, interrupted_at=3)
    with pytest.raises(KeyboardInterrupt):
        encode(tiny, **arguments)
    encode(tiny, **arguments)
    assert len(calls) == 4  # the third and last shard again
    ours, whole = (artifacts.read_manifest(path) for path in (tmp_path / "index", built["unicoil"]))
    assert ours.fingerprint == whole.fingerprint


class Boosts:
    """Query encoder for Pyserini: the integer weights of our encoder."""

    def __init__(self, encoder: SparseEncoder):
        self.encoder = encoder

    def encode(self, text: str) -> dict[str, int]:
        boosts = self.encoder.query_boosts([text], 128)
        return {term: int(boost) for term, boost in boosts.select("term", "boost").iter_rows()}


def lucene_index(index: Path, folder: Path, impact: bool) -> str:
    from hybrid_cli.lexical import jvm

    (folder / "json").mkdir()
    export(index, form="anserini", output=folder / "json" / "docs.jsonl")
    settings = jvm.java_class("io.anserini.index.IndexCollection$Args")()
    settings.collectionClass, settings.generatorClass = "JsonVectorCollection", "DefaultLuceneDocumentGenerator"
    settings.input, settings.index, settings.threads = str(folder / "json"), str(folder / "lucene"), 1
    settings.impact, settings.pretokenized, settings.quiet = impact, True, True
    jvm.java_class("io.anserini.index.IndexCollection")(settings).run()
    return str(folder / "lucene")


@pytest.mark.parametrize("architecture", ["splade", "deepct"])
def test_pyserini_ranks_the_exported_weights_as_we_do(
    models: dict[Any, Path],
    built: dict[Any, Path],
    tiny: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    architecture: str,
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "none")  # Pyserini does not import without one
    learned = architecture == "splade"
    folder = lucene_index(built[architecture], tmp_path, impact=learned)
    assert ("--impact" in capsys.readouterr().err) is learned
    from pyserini.analysis import JWhiteSpaceAnalyzer
    from pyserini.search.lucene import LuceneImpactSearcher, LuceneSearcher

    if learned:
        searcher = LuceneImpactSearcher(folder, Boosts(open_model(models, architecture)), min_idf=-1)
    else:
        searcher = LuceneSearcher(folder)
        searcher.set_bm25(10, 0.9)
        searcher.set_analyzer(JWhiteSpaceAnalyzer())
    for text in collections.read_queries(collections.queries_path(tiny, "test"))["text"]:
        ours = search_query(tiny, index=built[architecture], query=text, hits=12)
        theirs = searcher.search(text if learned else " ".join(LazyAnalyzer().analyze([text])[0]), k=12)
        assert [hit.docid for hit in theirs] == ours["docid"].to_list()
        scores = np.array([hit.score for hit in theirs]) / (128**2 if learned else 1)
        np.testing.assert_allclose(scores, ours["score"].to_numpy(), rtol=1e-6, atol=0 if learned else 1e-4)


# ------------------------------------------------------------------------------------------------------------ training


def test_flops_of_the_golden_example() -> None:
    assert flops(torch.tensor([[1.0, 0.0, 2.0], [3.0, 0.0, 0.0]])).item() == 5.0


def test_the_regularization_grows_with_the_square_of_the_step() -> None:
    assert [growth(step, 100) for step in (0, 33, 99)] == [0.0, 1.0, 1.0]
    assert growth(11, 100) == pytest.approx(1 / 9)


def test_term_recall_is_a_share_of_the_queries() -> None:
    assert recall([{"salt", "sea"}, {"salt"}]) == {"salt": 1.0, "sea": 0.5}


def test_the_gate_separates_terms_of_the_query() -> None:
    wanted = torch.tensor([[1.0, 0.0, 0.0]])
    low = gate_loss(torch.tensor([[9.0, -9.0, -9.0]]), wanted)
    assert low < 1e-3 < gate_loss(torch.tensor([[-9.0, 9.0, 9.0]]), wanted)
    assert gate_loss(torch.zeros(1, 3), wanted).item() == pytest.approx(2 * np.log(2))


@pytest.mark.heavy
@pytest.mark.parametrize("architecture", ["splade", "unicoil", "deepct", "sparterm"])
def test_training_lowers_the_loss(made: Path, tiny_bert: Path, tmp_path: Path, architecture: Any) -> None:
    arguments: dict[str, Any] = {"architecture": architecture, "model": str(tiny_bert), "layers": 1}
    arguments |= {"max_steps": 8, "batch_size": 4, "learning_rate": 2e-3, "warmup": 0.0, "device": "cpu", "threads": 1}
    arguments |= {"doc_max_len": 24, "dtype": "fp32"}
    if architecture == "sparterm":
        arguments |= {"mask_matches": 0.5, "chunk_size": 3}
    whole = train_sparse(made / "train.parquet", output=tmp_path / "whole", **arguments)
    curve = pl.read_parquet(whole / "curve.parquet")
    name = {"deepct": "term_recall"}.get(architecture, "nll")
    values = curve.filter(pl.col("name") == name).sort("step")["value"].to_list()
    assert np.mean(values[-2:]) < values[0]
    index = encode(made / "collection", model=str(whole), output=tmp_path / "index", dtype="fp32")
    assert len(search_query(made / "collection", index=index, query="salt in sea water"))


def test_a_missing_language_head_is_new(made: Path, tiny_bert: Path, tmp_path: Path, notices: Notices) -> None:
    options: dict[str, Any] = {"architecture": "splade", "model": str(tiny_bert), "max_steps": 1, "batch_size": 2}
    train_sparse(made / "train.parquet", device="cpu", doc_max_len=12, output=tmp_path / "model", **options)
    assert notices.says("new-head", path=str(tiny_bert))
    found = SparseEncoder.load(tmp_path / "model", device="cpu").encode_documents([""] * 3, TEXTS)
    terms = (found > 0).sum(1)  # half of the vocabulary without a start bias
    assert terms.min() > 0
    assert terms.max() < found.shape[1] / 4


def test_a_new_head_starts_sparse_on_the_layers_that_are_kept(made: Path, tiny_bert: Path, tmp_path: Path) -> None:
    plan: dict[str, Any] = {"architecture": "splade", "max_steps": 1, "learning_rate": 0.0, "doc_max_len": 12}
    cut = shutil.copytree(tiny_bert, tmp_path / "cut")
    AutoModel.from_pretrained(tiny_bert, num_hidden_layers=1).save_pretrained(cut)
    for name, more in (("whole", {"model": str(tiny_bert), "layers": 1}), ("cut", {"model": str(cut)})):
        train_sparse(made / "train.parquet", device="cpu", output=tmp_path / f"{name}-sparse", **plan, **more)
    assert (tmp_path / "cut-sparse" / "model.safetensors").read_bytes() == (
        tmp_path / "whole-sparse" / "model.safetensors"
    ).read_bytes()


def test_documents_are_expanded(models: dict[Any, Path], tiny: Path, tmp_path: Path, notices: Notices) -> None:
    rows = tmp_path / "queries.tsv"
    rows.write_text("salt\twhat is zirconium\nsalt\ttwo more\n", "utf-8")
    bm25 = index_bm25(tiny, expansion=rows, output=tmp_path / "bm25", threads=1)
    assert search_query(tiny, index=bm25, query="zirconium")["docid"].to_list() == ["salt"]
    index = encode(tiny, model=str(models["deepct"]), architecture="deepct", expansion=rows, output=tmp_path / "deepct")
    assert "zirconium" in open_lexical(index).impacts.postings.terms
    assert not notices.says("truncated-documents")
    encode(
        tiny, model=str(models["unicoil"]), architecture="unicoil", expansion=rows, doc_max_len=4, output=tmp_path / "x"
    )
    assert notices.says("truncated-documents", count=12, documents=12, limit=4)
    rows.write_text("salt\tx\nunknown\ty\n", "utf-8")
    with raises("unknown-id", path="queries.tsv", id="unknown", count=1):
        index_bm25(tiny, expansion=rows, output=tmp_path / "other", threads=1)
    (named := tmp_path / "named.jsonl").write_text('{"id": "salt", "predicted_queries": "x"}\n')
    with raises("no-such-column", path="named.jsonl", field="text"):
        index_bm25(tiny, expansion=named, output=tmp_path / "other", threads=1)


SALTY = ["salt in sea water", "", "the moon moves the tides", "salt", "blood carries oxygen", "sea water and the moon"]
EVERY = pytest.mark.parametrize("architecture", ARCHITECTURES)


@pytest.fixture(scope="module")
def corpora(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """All documents, the first four, the last two, and the first with another text."""
    folder = tmp_path_factory.mktemp("corpora")
    return {
        "whole": write_corpus(folder / "whole.parquet", SALTY),
        "first": write_corpus(folder / "first.parquet", SALTY[:4]),
        "last": write_corpus(folder / "last.parquet", SALTY[4:], first=4),
        "changed": write_corpus(folder / "changed.parquet", ["moon moon"]),
    }


def encoded(models: dict[Any, Path], corpus: Path, architecture: Any, output: Path) -> Path:
    return encode(
        corpus, model=str(models[architecture]), architecture=architecture, output=output, dtype="fp32", shard_size=2
    )


def content(folder: Path) -> dict[str, bytes]:
    files = [file for file in folder.rglob("*") if file.is_file() and file.name != storage.MANIFEST]
    return {str(file.relative_to(folder)): file.read_bytes() for file in files}


def counts(folder: Path) -> dict[str, Any]:
    return artifacts.read_manifest(folder, Kind.LEXICAL_INDEX).counts


@EVERY
def test_appended_documents(
    models: dict[Any, Path], corpora: dict[str, Path], tmp_path: Path, architecture: Any
) -> None:
    whole = encoded(models, corpora["whole"], architecture, tmp_path / "whole")
    first = encoded(models, corpora["first"], architecture, tmp_path / "first")
    before = content(first)
    both = update(first, add=corpora["last"], output=tmp_path / "both")
    assert content(both) == content(whole)
    assert counts(both) == counts(whole)
    assert content(first) == before
    assert inspect([both], verify=True) is not None
    hits = [search_query(corpora["whole"], index=each, query="salt water of the moon") for each in (both, whole)]
    assert hits[0].equals(hits[1])
    assert len(hits[0])


@EVERY
def test_an_index_without_deleted_documents_is_that_of_the_others(
    models: dict[Any, Path], corpora: dict[str, Path], tmp_path: Path, architecture: Any
) -> None:
    whole = encoded(models, corpora["whole"], architecture, tmp_path / "whole")
    (ids := tmp_path / "ids.txt").write_text("d4\nd5\n")
    less = update(whole, remove=ids, output=tmp_path / "less")
    assert content(less) == content(encoded(models, corpora["first"], architecture, tmp_path / "first"))
    assert "truncated" not in counts(less), "not known for each document"
    again = update(less, add=corpora["last"], output=tmp_path / "again")
    assert content(again) == content(whole)


def test_a_replaced_document_has_new_weights(models: dict[Any, Path], corpora: dict[str, Path], tmp_path: Path) -> None:
    first = encoded(models, corpora["first"], "splade", tmp_path / "first")
    new = update(first, add=corpora["changed"], output=tmp_path / "new")
    alone = encoded(models, corpora["changed"], "splade", tmp_path / "alone")
    found, expected = (
        search_query(corpora["whole"], index=each, query="moon").filter(docid="d0") for each in (new, alone)
    )
    assert found["score"].to_list() == expected["score"].to_list()
    assert counts(new)["documents"] == 4


def test_other_and_moved_encoders_are_named(models: dict[Any, Path], corpora: dict[str, Path], tmp_path: Path) -> None:
    model = shutil.copytree(models["unicoil"], tmp_path / "model")
    first = encoded({"unicoil": model}, corpora["first"], "unicoil", tmp_path / "first")
    other = write_checkpoints(tmp_path / "others")["deepct"]
    with raises("unknown-weights"):
        update(first, add=corpora["last"], model=str(other), output=tmp_path / "both")
    moved = model.rename(tmp_path / "moved")
    with raises("recorded-model-missing"):
        update(first, add=corpora["last"], output=tmp_path / "both")
    assert counts(update(first, add=corpora["last"], model=str(moved), output=tmp_path / "both"))["documents"] == 6
