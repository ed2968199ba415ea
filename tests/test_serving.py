"""Exports for search engines, and retrievers that leave as one folder."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from command import Refusal, hybrid, raises, ran, refusal, refused
from sparse_models import write_checkpoint
from tiny_collection import write_lines

from hybrid_cli import open_retriever
from hybrid_cli.artifacts.opening import open_bm25, open_dense
from hybrid_cli.commands import PrepareFiles
from hybrid_cli.lexical.analysis import Analyzer
from hybrid_cli.stages.compose import compose
from hybrid_cli.stages.encode import encode
from hybrid_cli.stages.export import export
from hybrid_cli.stages.index_bm25 import index_bm25
from hybrid_cli.stages.inspect import INTACT, UNCHANGED, inspect
from hybrid_cli.stages.prepare import prepare
from hybrid_cli.stages.search import search
from hybrid_cli.stages.update import update

ENGINES = ("opensearch", "elasticsearch", "qdrant", "parquet")


@pytest.fixture(scope="module")
def indexed(tiny: Path, tiny_bert: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A collection, a lexical index of one part and an append, a dense index, and the exact hybrid run."""
    folder = tmp_path_factory.mktemp("serving")
    shutil.copytree(tiny, folder / "tiny")
    rows = pl.read_parquet(tiny / "corpus.parquet")
    rows.head(7).write_parquet(folder / "first.parquet")
    rows.tail(6).write_parquet(folder / "rest.parquet")
    index_bm25(folder / "first.parquet", output=folder / "part", k1=1.2, b=0.5, threads=1)
    update(folder / "part", add=folder / "rest.parquet", output=folder / "bm25", threads=1)
    model = str(tiny_bert)
    encode(folder / "tiny", model=model, normalize=True, dtype="fp32", output=folder / "dense", threads=1)
    index_bm25(folder / "tiny", output=folder / "whole", k1=1.2, b=0.5, threads=1)
    both, output = [folder / "dense", folder / "whole"], folder / "exact.parquet"
    search(folder / "tiny", split="test", exact=True, index=both, weights=[1.0, 0.5], output=output)
    return folder


@pytest.fixture
def here(indexed: Path, workdir: Path) -> Path:
    for path in indexed.iterdir():
        (workdir / path.name).symlink_to(path)
    return workdir


def exported(form: str, *options: str) -> Path:
    queries = ["--collection", "tiny", "--split", "test"]
    words = ["export", "bm25", "--dense", "dense", "--format", form, "--output", f"out/{form}", *queries, *options]
    ran(*words)
    return Path("out", form)


@pytest.fixture
def retriever(here: Path) -> Path:
    return compose([Path("bm25"), Path("dense")], method="weighted-sum", weights="0.5,1", output=Path("retriever"))


@pytest.mark.parametrize("form", ENGINES)
def test_the_indexes_of_a_retriever_are_exported_as_they_are_alone(retriever: Path, form: str) -> None:
    alone = exported(form)
    queries = ["--collection", "tiny", "--split", "test"]
    assert ran("export", retriever, "--format", form, *queries, "--output", "both").says("fusion-written")
    fusion = json.loads(Path("both/fusion.json").read_text())
    for name in ("documents.ndjson", "documents.jsonl", "documents.parquet", "index.json"):
        assert (alone / name).is_file() == Path("both", name).is_file()
        assert not (alone / name).is_file() or (alone / name).read_bytes() == Path("both", name).read_bytes()
    expected = ["weighted-sum", [0.5, 1], "exact", 1000]
    assert [fusion[name] for name in ("method", "weights", "missing", "depth")] == expected
    assert [index["name"] for index in fusion["indexes"]] == ["bm25", "dense"]
    assert fusion["indexes"][1]["written"] == "vector"


def test_every_dense_index_of_a_retriever_has_vectors(here: Path, tiny_bert: Path) -> None:
    encode(Path("tiny"), model=str(tiny_bert), dtype="fp32", doc_max_len=8, output=Path("short"))
    compose([Path("dense"), Path("bm25"), Path("short")], method="rrf", output=Path("retriever"))
    queries = ["--collection", "tiny", "--split", "test"]
    for form in ENGINES:
        ran("export", "retriever", "--format", form, *queries, "--output", form)
    documents = pl.read_parquet("parquet/documents.parquet")
    expected = open_dense(Path("short"))
    rows = np.array([expected.docids.to_list().index(docid) for docid in documents["docid"]])
    np.testing.assert_array_equal(np.array(documents["vector_2"].to_list(), np.float32), expected.vectors_of(rows))
    request = json.dumps(json.loads(Path("opensearch/queries.jsonl").read_text().splitlines()[0])["request"])
    assert "vector_1" in request and "vector_2" in request  # noqa: PT018
    mapping = json.loads(Path("opensearch/index.json").read_text())["mappings"]["properties"]
    assert (mapping["vector_2"]["type"], mapping["vector_2"]["dimension"]) == ("knn_vector", 16)
    mapping = json.loads(Path("elasticsearch/index.json").read_text())["mappings"]["properties"]
    assert [mapping[f"vector_{n}"]["similarity"] for n in (1, 2)] == ["dot_product", "max_inner_product"]
    assert mapping["vector_2"]["dims"] == 16


def test_a_retriever_has_the_formats_of_engines_that_take_all_its_indexes(retriever: Path) -> None:
    words = ["export", retriever, "--format", "pyserini", "--output", "refused"]
    assert hybrid(*words).is_problem("unknown-choice", option="format", choices=[*ENGINES, "folder"])
    compose([Path("bm25"), Path("whole")], method="rrf", output=Path("lexical"))
    words = ["export", "lexical", "--format", "opensearch", "--output", "refused"]
    assert hybrid(*words).is_problem("unknown-choice", option="format", choices=["folder"])
    dense = ["export", retriever, "--dense", "dense", "--format", "opensearch", "--output", "refused"]
    assert hybrid(*dense).is_problem("option-does-not-apply", option="dense")


def test_opensearch_has_a_bulk_file_and_the_analysis_of_anserini(here: Path) -> None:
    folder = exported("opensearch")
    lines = [json.loads(line) for line in (folder / "documents.ndjson").read_text("utf-8").splitlines()]
    assert sorted(line["index"]["_id"] for line in lines[::2]) == sorted(open_bm25(Path("whole")).docids)
    assert all(len(line["vector"]) == 16 for line in lines[1::2])
    assert all(line["contents"] == f"{line['title']}\n{line['text']}" for line in lines[1::2])
    index = json.loads((folder / "index.json").read_text())
    assert index["settings"]["similarity"]["bm25"] == {"type": "BM25", "k1": 1.2, "b": 0.5}
    words = index["settings"]["analysis"]["filter"]["stop_words"]["stopwords"]
    assert Analyzer().analyze([" ".join(words), "parser's"]) == [[], ["parser"]]
    assert len(words) == 33


def test_metadata_are_typed_fields(here: Path, tmp_path: Path) -> None:
    """Columns of the corpus besides id, title and text; one that is named as another field is left out."""
    corpus = pl.read_parquet("tiny/corpus.parquet").with_row_index("year")
    year, free = pl.col("year"), pl.when(pl.col("year") > 0).then(pl.col("year") > 3)
    added = {"language": pl.lit("en"), "price": year / 2, "free": free, "contents": pl.lit("taken")}
    corpus = corpus.with_columns(year.cast(pl.Int64) + 2000, **added)
    Path("typed").mkdir()
    corpus.write_parquet("typed/corpus.parquet")
    for engine in ENGINES:
        words = ["export", "whole", "--dense", "dense", "--format", engine, "--collection", "typed/corpus.parquet"]
        ran(*words, "--output", f"typed/{engine}")
    columns = ["year", "language", "price", "free"]
    table = pl.read_parquet("typed/parquet/documents.parquet")
    assert table.select("docid", *columns).sort("docid").equals(corpus.select("docid", *columns).sort("docid"))
    assert "contents" not in table.columns
    for engine in ("opensearch", "elasticsearch"):
        fields = json.loads(Path(f"typed/{engine}/index.json").read_text())["mappings"]["properties"]
        assert [fields[name]["type"] for name in columns] == ["long", "keyword", "double", "boolean"]
        row = json.loads(Path(f"typed/{engine}/documents.ndjson").read_text("utf-8").splitlines()[1])
        assert [row[name] for name in columns] == [2000, "en", 0.0, None]


ENGINE_FILES = Path(__file__).parent.parent / "examples" / "engines"
UNSAFE: list[tuple[str, dict[str, pl.Expr], str]] = [  # engines, changed columns, code
    ("opensearch elasticsearch qdrant vespa milvus", {"price": pl.lit(float("nan"))}, "over-limit"),
    ("opensearch elasticsearch qdrant", {"price": pl.lit(float("inf"))}, "over-limit"),
    ("opensearch elasticsearch qdrant", {"year": pl.lit(2**63, pl.UInt64)}, "over-limit"),
    ("opensearch elasticsearch", {"text": pl.lit("x" * 51_000_000)}, "over-limit"),
    ("vespa", {"title": pl.lit("a\x01b")}, "over-limit"),
    ("vespa", {"language": pl.lit("\ufffe")}, "over-limit"),
    ("milvus", {"language": pl.lit("\u00e9" * 32_768)}, "over-limit"),
    ("opensearch elasticsearch", {"_id": pl.lit("x")}, "unsafe-name"),
    ("opensearch elasticsearch", {" ": pl.lit("x")}, "unsafe-name"),
    ("opensearch elasticsearch", {".a": pl.lit(1)}, "unsafe-name"),
    ("opensearch elasticsearch", {"a": pl.lit(1), "a.b": pl.lit(1)}, "unsafe-name"),
]


@pytest.mark.parametrize(
    ("engines", "columns", "code"), UNSAFE, ids=lambda value: " ".join(value) if isinstance(value, dict) else value
)
def test_a_document_that_an_engine_refuses_is_named_before_anything_is_written(
    here: Path, engines: str, columns: dict[str, pl.Expr], code: str
) -> None:
    corpus = pl.read_parquet("tiny/corpus.parquet")
    bad = pl.col("docid") == corpus["docid"][2]
    usual: dict[str, Any] = {name: pl.col(name) for name in ("title", "text")} | {"language": pl.lit("a\tb\n\x85")}
    changed = {name: pl.when(bad).then(value).otherwise(usual.get(name)) for name, value in columns.items()}
    Path("changed").mkdir()
    corpus.with_columns(**usual, year=pl.lit(-(2**63))).with_columns(**changed).write_parquet("changed/corpus.parquet")
    fields = {"id": corpus["docid"][2]} if code == "over-limit" else {"column": [*columns][-1]}
    for engine in ("parquet", *engines.split()):
        words = ["export", "whole", "--format", engine, "--collection", "changed/corpus.parquet"]
        words += ["--plugin", str(ENGINE_FILES / f"{engine}.py")] if engine in ("vespa", "milvus") else []
        if engine == "parquet":
            ran(*words, "--output", engine)
        else:
            refused(*words, "--output", engine, problem=refusal(code, **fields))


@pytest.mark.parametrize("engine", ["opensearch", "elasticsearch"])
def test_an_id_has_at_most_512_bytes(tmp_path: Path, engine: str) -> None:
    for size, code in ((256, ""), (257, "over-limit")):
        folder = tmp_path / str(size)
        folder.mkdir()
        texts = {"docid": ["a", "\u00e9" * size], "title": ["", ""], "text": ["salt", "water"]}
        pl.DataFrame(texts).write_parquet(folder / "corpus.parquet")
        index = index_bm25(folder / "corpus.parquet", lucene=False, output=folder / "bm25")
        done = hybrid("export", index, "--format", engine, "--output", folder / "out")
        assert done.problem == code
        assert (folder / "out").exists() == (not code)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("bm25 --format parquet --split test", refusal("missing-option", option="collection")),
        ("bm25 --format parquet --collection first.parquet", refusal("other-corpus", path="first.parquet")),
        ("part --format parquet --dense dense", refusal("other-corpus", path="dense")),
        ("bm25 --format parquet --dense codes", refusal("other-index-type", path="codes")),
    ],
)
def test_unusable_exports_are_refused(here: Path, words: str, message: str | Refusal) -> None:
    if "codes" in words:
        ran("encode", "dense", "--index-type", "binary", "--output", "codes")
    refused("export", *words.split(), "--output", "refused", problem=message)


def test_an_export_is_up_to_date_and_works_without_a_dense_index(here: Path) -> None:
    for _ in range(2):
        done = ran("export", "bm25", "--format", "parquet", "--output", "lexical")
    assert done.says("up-to-date")
    assert pl.read_parquet("lexical/documents.parquet").columns == ["docid", "title", "text", "indices", "values"]


QUERIES = ["salt water", "oxygen in the blood", "parsing"]


@pytest.fixture
def home(tiny: Path, tiny_bert: Path, workdir: Path) -> Path:
    folder = workdir / "home"
    shutil.copytree(tiny, folder / "collection")
    shutil.copytree(tiny_bert, folder / "model")
    return folder


def shipped(retriever: Path, home: Path) -> pl.DataFrame:
    """Ship a retriever, remove everything else, and compare hits, scores and texts; return the hits."""
    before = open_retriever(retriever).search(QUERIES, 5)
    Path("out").mkdir()
    assert hybrid("export", retriever, "--format", "folder", "--output", "out/shipped").says("written")
    assert hybrid("export", retriever, "--format", "folder", "--output", "out/shipped").says("up-to-date")
    Path("elsewhere").mkdir()
    shutil.copytree("out/shipped", "elsewhere/retriever")
    shutil.rmtree(home)
    shutil.rmtree("out")
    after = open_retriever("elsewhere/retriever").search(QUERIES, 5)
    assert after.equals(before)
    assert after["text"].null_count() == 0
    done = hybrid("search", "--index", "elsewhere/retriever", "--query", QUERIES[0], "--format", "json")
    assert (done.code, done.warnings) == (0, []), done.err
    assert {each["state"] for each in inspect([Path("elsewhere/retriever")], verify=True)["artifacts"]} == {INTACT}
    return after


def test_a_retriever_leaves_as_one_folder(home: Path) -> None:
    index_bm25(home / "collection", output=home / "bm25")
    encode(home / "collection", model=str(home / "model"), output=home / "dense")
    retriever = compose([home / "bm25", home / "dense"], output=home / "hybrid")
    shipped(retriever, home)
    files = {path.relative_to("elsewhere/retriever").as_posix() for path in Path("elsewhere/retriever").glob("*/*")}
    assert files == {"indexes/bm25", "indexes/dense", "models/model", "texts/corpus.parquet"}
    inputs = [
        source for each in inspect([Path("elsewhere/retriever")], verify=True)["artifacts"] for source in each["inputs"]
    ]
    needed = [source for source in inputs if source["role"] in ("model", "corpus", "index 1", "index 2")]
    assert {source["state"] for source in needed} == {UNCHANGED}
    assert {source["path"].split("/", 2)[2] for source in needed} == files


def test_passages_shards_appended_documents_and_a_reranker_leave_too(home: Path, reranker: Path) -> None:
    rows = [{"id": f"d{n}", "title": f"T{n}", "text": f"salt water parser number {n} " * (n + 1)} for n in range(9)]
    write_lines(home / "docs.jsonl", rows)
    write_lines(home / "more.jsonl", [{"id": "new", "title": "New", "text": "oxygen and blood " * 12}])
    for name in ("docs", "more"):
        prepare(PrepareFiles([home / f"{name}.jsonl"], split_passages=20, output=home / name))
    index_bm25(home / "docs", shards=2, output=home / "first")
    update(home / "first", add=home / "more", output=home / "bm25")
    encode(home / "docs", model=str(home / "model"), output=home / "vectors")
    update(home / "vectors", add=home / "more", output=home / "dense")
    shutil.copytree(reranker, home / "reranker")
    reranked: dict[str, Any] = {"reranker": str(home / "reranker"), "rerank_depth": 3}
    retriever = compose([home / "bm25", home / "dense"], method="rrf", output=home / "hybrid", **reranked)
    hits = shipped(retriever, home)
    assert "new" in hits["docid"].to_list()
    assert hits["passage"].null_count() == 0


def test_learned_weights_and_a_model_of_the_cache_leave_too(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(home / "hub"))
    place = home / "hub/models--owner--small"
    (place / "refs").mkdir(parents=True)
    (place / "refs/main").write_text("a" * 40)
    (place / "snapshots" / ("a" * 40)).mkdir(parents=True)
    shutil.move(home / "model", place / "blobs")
    for file in (place / "blobs").iterdir():
        (place / "snapshots" / ("a" * 40) / file.name).symlink_to(Path("../../blobs", file.name))
    splade = write_checkpoint(home / "splade", "splade")
    encode(home / "collection", model=str(splade), architecture="splade", output=home / "sparse")
    encode(home / "collection", model="owner/small", output=home / "dense")
    shipped(compose([home / "sparse", home / "dense"], method="minmax", output=home / "hybrid"), home)
    models = Path("elsewhere/retriever/models")
    assert not any(file.is_symlink() for file in models.rglob("*"))
    assert len(list(models.iterdir())) == 2


def test_a_retriever_without_its_texts_or_encoder_does_not_leave(home: Path) -> None:
    index_bm25(home / "collection", output=home / "bm25")
    encode(home / "collection", model=str(home / "model"), output=home / "dense")
    retriever = compose([home / "bm25", home / "dense"], method="rrf", output=home / "hybrid")
    shutil.move(home / "model", home / "moved")
    with raises("recorded-model-missing", path=home / "dense"):
        export(retriever, form="folder", output=Path("shipped"))
    shutil.move(home / "moved", home / "model")
    shutil.rmtree(home / "collection")
    with raises("corpus-missing", corpus="corpus.parquet"):
        export(retriever, form="folder", output=Path("shipped"))
    with raises("unknown-choice", option="format"):
        export(home / "bm25", form="folder", output=Path("shipped"))
    assert not Path("shipped").exists()
