"""The command `export`: formats of other tools, read back by these tools."""

import json
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from command import Notices, raises
from hypothesis import given
from hypothesis import strategies as st
from processes import run
from small_artifacts import vector_hits

from hybrid_cli import artifacts, runs, storage
from hybrid_cli.artifacts.opening import open_dense
from hybrid_cli.collections import collection as collections
from hybrid_cli.commands import VectorIndex
from hybrid_cli.encoders.transformer import TransformerEncoder
from hybrid_cli.evaluation.measures import evaluate_run
from hybrid_cli.indexes.construction import build
from hybrid_cli.indexes.dense import IndexInfo
from hybrid_cli.indexes.shards import shard_path, write_shard
from hybrid_cli.lexical import jvm
from hybrid_cli.stages.export import export, strictly_decreasing
from hybrid_cli.stages.inspect import inspect
from hybrid_cli.storage import Kind

RUN = {"qid": pl.String, "docid": pl.String, "score": pl.Float32}


def write_run(path: Path, hits: list[tuple[str, str, float]]) -> Path:
    run = runs.ranked(pl.DataFrame(hits, schema=RUN, orient="row"))
    output = artifacts.open_output(path, Kind.RUN, "test", inputs={}, options={})
    output.write([run.to_arrow(compat_level=pl.CompatLevel.oldest())])
    return path


@pytest.fixture(scope="module")
def tied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    random = np.random.default_rng(3)
    hits = [
        (f"q{query}", f"d{document}", float(score))
        for query, scale in enumerate([1.0, 100.0, 1e-30, 0.0, -3.0])
        for document, score in enumerate(scale * random.integers(1, 5, 200))
    ]
    return write_run(tmp_path_factory.mktemp("tied") / "tied.parquet", hits)


@pytest.fixture(scope="module")
def tied_qrels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    random = np.random.default_rng(4)
    rows = [(f"q{q}", f"d{d}", int(random.integers(0, 3))) for q in range(6) for d in random.choice(200, 40, False)]
    schema = {"qid": pl.String, "docid": pl.String, "relevance": pl.Int32}
    path = tmp_path_factory.mktemp("tied") / "qrels.parquet"
    pl.DataFrame(rows, schema=schema, orient="row").write_parquet(path)
    return path


@given(
    st.lists(
        st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False, min_value=-(2.0**100), max_value=2.0**100)),
        min_size=1,
        max_size=3,
    )
)
def test_exported_scores_decrease_strictly_with_minimal_changes(lists: list[list[float]]) -> None:
    hits = [(str(q), str(d), score) for q, scores in enumerate(lists) for d, score in enumerate(scores)]
    run = runs.ranked(pl.DataFrame(hits, schema=RUN, orient="row"))
    lowered = strictly_decreasing(run)
    assert lowered.select("qid", "docid", "rank").equals(run.select("qid", "docid", "rank"))
    for before, after in zip(run.partition_by("qid"), lowered.partition_by("qid"), strict=True):
        scores = after["score"].to_numpy()
        assert (np.diff(scores.astype(np.float64)) < 0).all()
        if before["score"].n_unique() == len(before) and (before["score"].abs() > 1e-30).all():
            assert after["score"].equals(before["score"])
        as_text = after["score"].cast(pl.String).cast(pl.Float32)
        assert as_text.equals(after["score"])


def test_a_tie_is_broken_by_one_float32_step() -> None:
    run = runs.ranked(pl.DataFrame([("q", "a", 25.0), ("q", "b", 25.0), ("q", "c", 3.0)], schema=RUN, orient="row"))
    below = float(np.nextafter(np.float32(25), np.float32(0)))
    assert strictly_decreasing(run)["score"].to_list() == [25.0, below, 3.0]


def test_trec_eval_computes_our_values_from_an_exported_run(tied: Path, tied_qrels: Path, tmp_path: Path) -> None:
    export(tied, form="trec", output=tmp_path / "run.txt")
    export(tied_qrels, form="trec", output=tmp_path / "qrels.txt")
    names = {"MAP": "map", "MRR": "recip_rank", "nDCG@10": "ndcg_cut_10", "P@5": "P_5", "R@100": "recall_100"}
    measures = ["-m", "map", "-m", "recip_rank", "-m", "ndcg_cut.10", "-m", "P.5", "-m", "recall.100"]
    java = jvm.find_java().home / "bin" / "java"
    command = [str(java), "-cp", str(jvm.find_jar()), "trec_eval", "-q", "-c", *measures, "qrels.txt", "run.txt"]
    printed = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    theirs = {tuple(line.split()[:2]): float(line.split()[2]) for line in printed.splitlines() if line.split()}
    ours = evaluate_run(runs.read_run(tied), collections.read_qrels(tied_qrels), list(names))
    compared = [(theirs[names[m], q], value) for m, q, value in ours.iter_rows() if (names[m], q) in theirs]
    assert len(compared) == 5 * 5  # -q prints the queries of the run
    assert max(abs(a - b) for a, b in compared) < 1e-4  # trec_eval prints four decimals
    means = ours.group_by("measure").agg(pl.col("value").mean())
    assert all(abs(theirs[names[m], "all"] - value) < 1e-4 for m, value in means.iter_rows())


def test_an_exported_trec_run_reads_back_in_the_same_order(tied: Path, tmp_path: Path) -> None:
    export(tied, form="trec", output=tmp_path / "run.txt")
    before, after = runs.read_run(tied), runs.read_run(tmp_path / "run.txt")
    assert after.select("qid", "docid", "rank").equals(before.select("qid", "docid", "rank"))
    by_score = after.sort("qid", "score", descending=[False, True], maintain_order=True)
    assert by_score["docid"].equals(before.sort("qid", maintain_order=True)["docid"])


def test_ids_with_white_space_do_not_fit_trec(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run.parquet", [("q", "moon landing", 2.0), ("q", "NA", 1.0)])
    with raises("unsafe-name", id="moon landing", column="docid"):
        export(run, form="trec", output=tmp_path / "run.txt")
    assert [file.name for file in tmp_path.iterdir()] == ["run.parquet"]
    export(run, form="msmarco", output=tmp_path / "run.tsv")
    assert (tmp_path / "run.tsv").read_text() == "q\tmoon landing\t1\nq\tNA\t2\n"


def test_hits_limits_each_query(tied: Path, tmp_path: Path) -> None:
    export(tied, form="msmarco", output=tmp_path / "run.tsv", hits=3)
    assert len((tmp_path / "run.tsv").read_text().splitlines()) == 5 * 3


def test_dpr_records_have_texts_and_answers(tiny: Path, tmp_path: Path) -> None:
    run = write_run(tmp_path / "run.parquet", [("003", "lungs", 2.5), ("003", "salt", 1.0), ("001", "007", 0.1)])
    questions = collections.read_queries(collections.queries_path(tiny, "test"))
    answers = pl.Series("answers", [["Oxygen"] if qid == "003" else None for qid in questions["qid"]])
    folder = tmp_path / "with_answers"
    folder.mkdir()
    questions.with_columns(answers).write_parquet(folder / "queries.test.parquet")
    (folder / "corpus.parquet").write_bytes((tiny / "corpus.parquet").read_bytes())
    export(run, form="dpr", output=tmp_path / "run.json", collection=folder, split="test")
    first, second = json.loads((tmp_path / "run.json").read_text())
    assert (first["question"], first["answers"]) == ("what does the moon do to the oceans", [])
    assert second["answers"] == ["Oxygen"]
    assert [(ctx["id"], ctx["title"], ctx["score"], ctx["has_answer"]) for ctx in second["ctxs"]] == [
        ("lungs", "Lungs", "2.5", True),
        ("salt", "Table salt", "1.0", False),
    ]
    assert second["ctxs"][0]["text"].startswith("The lungs bring oxygen")


def test_dpr_needs_the_texts_of_all_hits(tiny: Path, tmp_path: Path) -> None:
    run = write_run(tmp_path / "run.parquet", [("003", "nowhere", 2.5)])
    with raises("other-corpus", run="run.parquet", id="nowhere", count=1):
        export(run, form="dpr", output=tmp_path / "run.json", collection=tiny, split="test")


@pytest.mark.parametrize("options", [{}, {"overwrite": True}], ids=["plain", "overwrite"])
def test_a_folder_of_a_user_is_never_replaced_by_an_export(tied: Path, tmp_path: Path, options: dict[str, Any]) -> None:
    folder = tmp_path / "papers"
    folder.mkdir()
    (folder / "thesis.tex").write_text("years of work")
    with raises("not-a-regular-file", path="papers") as refused:
        export(tied, form="trec", output=folder, **options)
    assert "pass --overwrite" not in str(refused.value)
    assert (folder / "thesis.tex").read_text() == "years of work"
    with raises("not-a-regular-file", path="null"):
        export(tied, form="trec", output=Path("/dev/null"), **options)


def test_a_format_that_does_not_fit_the_kind_is_refused(tied: Path, tmp_path: Path) -> None:
    with raises("unknown-choice", option="format"):
        export(tied, form="pyserini", output=tmp_path / "x")
    queries = tmp_path / "queries.parquet"
    output = artifacts.open_output(queries, Kind.QUERIES, "test", inputs={}, options={})
    output.write([pa.table([["q1"], ["text"], [None]], schema=storage.SCHEMAS[Kind.QUERIES])])
    with raises("unknown-choice", option="format"):
        export(queries, form="trec", output=tmp_path / "x")


def export_encoder(model: Path, folder: Path, **options: Any) -> None:
    output = artifacts.open_output(folder / "encoder", Kind.ENCODER, "test", inputs={}, options={})
    with output.folder() as (work, _):
        TransformerEncoder.load(model, device="cpu", **options).save(work)
    export(folder / "encoder", form="sentence-transformers", output=folder / "model")


@pytest.mark.parametrize("tied", [True, False])
def test_the_printed_line_opens_the_model(tiny_bert: Path, tmp_path: Path, notices: Notices, tied: bool) -> None:
    pytest.importorskip("sentence_transformers")
    export_encoder(tiny_bert, tmp_path, tied=tied)
    line = next(notice.message for notice in notices.heard if "SentenceTransformer(" in notice.message)
    assert line.count("SentenceTransformer(") == (1 if tied else 2)
    exec(line.strip(), {})


def test_an_exported_model_has_all_weights_and_both_lengths(tiny_bert: Path, workdir: Path, notices: Notices) -> None:
    pytest.importorskip("sentence_transformers")
    export_encoder(tiny_bert, workdir, query_max_len=8, doc_max_len=100)
    assert notices.says("two-lengths", query_max_len=8, doc_max_len=100)
    assert not (workdir / "model" / storage.MANIFEST).exists()
    assert any(f'SentenceTransformer("{workdir / "model"}")' in notice.message for notice in notices.heard)
    code = (
        "import sys, numpy, transformers; transformers.logging.set_verbosity_warning()"
        "; from sentence_transformers import SentenceTransformer as S; m = S(sys.argv[1])"
        "; t = sys.argv[2:]; numpy.save('q', m.encode_query(t)); numpy.save('d', m.encode_document(t))"
        "; print(m.max_seq_length)"
    )
    texts = ["salt in sea water " * 9, "two tides"]
    done = run(code, workdir / "model", *texts)
    assert (done.returncode, done.stdout.split()) == (0, ["100"]), done.stderr
    assert "MISSING" not in done.stderr
    ours = TransformerEncoder.load(workdir / "encoder", device="cpu")
    np.testing.assert_allclose(np.load(workdir / "q.npy"), ours.encode_queries(texts), atol=1e-5)
    np.testing.assert_allclose(np.load(workdir / "d.npy"), ours.encode_documents(["", ""], texts), atol=1e-5)
    assert ours.truncated == 1
    (workdir / "model" / "encoder.json").unlink()
    again = TransformerEncoder.load(workdir / "model", device="cpu").contract
    assert (again.query_max_len, again.doc_max_len) == (8, 100)


def test_two_exported_towers_have_their_own_lengths(tiny_bert: Path, tmp_path: Path) -> None:
    export_encoder(tiny_bert, tmp_path, tied=False, query_max_len=8, doc_max_len=100)
    files = (tmp_path / "model" / side / "sentence_bert_config.json" for side in ("query", "document"))
    assert [json.loads(file.read_text())["max_seq_length"] for file in files] == [8, 100]


def test_minilm_is_a_name_for_export_and_inspect(workdir: Path) -> None:
    export(Path("minilm"), form="sentence-transformers", output=workdir / "model")
    assert (workdir / "model" / "modules.json").is_file()
    assert inspect(["minilm"])["what"] == "a sentence-transformers model"


@pytest.fixture(scope="module")
def dense(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dense") / "index"
    output = artifacts.open_output(folder, Kind.DENSE_INDEX, "test", inputs={}, options={})
    values = np.random.default_rng(5).normal(size=(50, 8)).astype(np.float32)
    with output.folder() as (work, counts):
        write_shard(shard_path(work, 0), pa.array([f"doc {row}" for row in range(50)]), values)
        counts |= IndexInfo(50, 8, factory=build(work, VectorIndex())).counts()
    return folder


@pytest.mark.heavy
def test_pyserini_opens_an_exported_index_and_finds_our_hits(dense: Path, tmp_path: Path) -> None:
    export(dense, form="pyserini", output=tmp_path / "faiss")
    queries = np.random.default_rng(6).normal(size=(3, 8)).astype(np.float32)
    np.save(tmp_path / "queries.npy", queries)
    code = (
        "import sys, json, numpy; from hybrid_cli.lexical import jvm; jvm.start()\n"
        "from pyserini.search.faiss import FaissSearcher\n"
        "searcher = FaissSearcher(sys.argv[1], query_encoder=None)\n"
        "print(json.dumps([[(hit.docid, float(hit.score)) for hit in searcher.search(query[None], k=10)]"
        " for query in numpy.load(sys.argv[2])]))"
    )
    key = "unused"  # pyserini 1.6 cannot be imported without one
    done = run(code, tmp_path / "faiss", tmp_path / "queries.npy", OPENAI_API_KEY=key)
    assert done.returncode == 0, done.stderr[-2000:]
    theirs = json.loads(done.stdout.splitlines()[-1])
    ours = vector_hits(open_dense(dense), queries, ["0", "1", "2"], 10)
    for group, hits in zip(ours.partition_by("qid"), theirs, strict=True):
        assert group["docid"].to_list() == [docid for docid, _ in hits]
        np.testing.assert_allclose(group["score"], [score for _, score in hits], rtol=1e-5)
