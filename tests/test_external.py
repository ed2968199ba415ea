"""`encode --from-vectors`: vectors of other tools become an index or query vectors; unfit ones are refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from command import Refusal, raises, refusal

from hybrid_cli import runs
from hybrid_cli.artifacts.opening import open_dense
from hybrid_cli.collections import collection
from hybrid_cli.encoders.transformer import TransformerEncoder
from hybrid_cli.errors import HybridError
from hybrid_cli.stages.encode import encode
from hybrid_cli.stages.search import search


def random_vectors(count: int, dim: int = 8) -> np.ndarray:
    return np.random.default_rng(count).normal(size=(count, dim)).astype("float32")


def saved(path: Path, vectors: np.ndarray) -> Path:
    np.save(path, vectors)
    return path


def listed(path: Path, ids: list[str]) -> Path:
    path.write_text("".join(f"{name}\n" for name in ids), "utf-8")
    return path


def test_vectors_are_searched_by_query_vectors(tiny: Path, tmp_path: Path) -> None:
    docids = collection.docids(tiny).to_list()
    qids = collection.read_queries(tiny / "queries.test.parquet")["qid"].to_list()
    documents, queries = random_vectors(len(docids)), random_vectors(len(qids))
    index = encode(
        tiny,
        from_vectors=saved(tmp_path / "d.npy", documents[::-1]),
        ids=listed(tmp_path / "d.txt", docids[::-1]),
        shard_size=5,
        output=tmp_path / "index",
    )
    asked = encode(tiny, split="test", from_vectors=saved(tmp_path / "q.npy", queries), output=tmp_path / "queries")
    run = runs.read_run(search(index=index, queries=asked, hits=1, output=tmp_path / "run.parquet"))
    assert run["docid"].to_list() == [docids[row] for row in (queries @ documents.T).argmax(1)]
    assert open_dense(index).docids.to_list() == docids
    with raises("option-does-not-apply", option="split", value="train", path="queries"):
        search(split="train", index=index, queries=asked, output=tmp_path / "other.parquet")
    with raises("no-encoder"):
        search(tiny, split="test", index=index, output=tmp_path / "texts.parquet")


def test_with_their_model_vectors_are_searched_by_texts(tiny: Path, tiny_bert: Path, tmp_path: Path) -> None:
    made = encode(tiny, model=tiny_bert, dtype="fp32", output=tmp_path / "made")
    texts = collection.texts(tiny, collection.docids(tiny))
    encoder = TransformerEncoder.load(tiny_bert, device="cpu")
    vectors = encoder.encode_documents(texts["title"].to_list(), texts["text"].to_list())
    path = saved(tmp_path / "v.npy", vectors)
    index = encode(tiny, from_vectors=path, model=tiny_bert, dtype="fp32", output=tmp_path / "index")
    found = [
        runs.read_run(search(tiny, split="test", index=each, output=tmp_path / f"{each.name}.parquet"))
        for each in (made, index)
    ]
    assert found[0].select("qid", "docid").equals(found[1].select("qid", "docid"))
    with raises("other-width", value=8):
        encode(tiny, from_vectors=saved(path, random_vectors(12)), model=tiny_bert, output=tmp_path / "other")


def test_vectors_that_do_not_fit_are_refused(tiny: Path, tmp_path: Path) -> None:
    docids = collection.docids(tiny).to_list()
    right = random_vectors(12)
    infinite = right.copy()
    infinite[3, 2] = np.inf
    cases: list[tuple[np.ndarray, list[str] | None, Refusal]] = [
        (right[:11], None, refusal("missing-option", option="ids", value=11)),
        (right[:11], docids, refusal("number-of-values", path="ids.txt", value=12)),
        (right, [*docids[:-1], "nothing"], refusal("unknown-id", path="ids.txt", id="nothing")),
        (right[:11], docids[:11], refusal("unknown-id", path="corpus.parquet", id=docids[11])),
        (right, [*docids[:-1], docids[0]], refusal("duplicate-id", path="ids.txt", line=12, id=docids[0])),
        (infinite, None, refusal("values-not-finite")),
        (right.astype("float64") * 1e300, None, refusal("values-not-finite", id=docids[0], count=12)),
    ]
    for number, (vectors, ids, problem) in enumerate(cases):
        with raises(problem, HybridError):
            encode(
                tiny,
                from_vectors=saved(tmp_path / "v.npy", vectors),
                ids=listed(tmp_path / "ids.txt", ids) if ids else None,
                output=tmp_path / f"index-{number}",
            )
        assert not (tmp_path / f"index-{number}").exists()


def test_query_vectors_of_another_length_are_refused(tiny: Path, tmp_path: Path) -> None:
    index = encode(tiny, from_vectors=saved(tmp_path / "d.npy", random_vectors(12)), output=tmp_path / "index")
    short = saved(tmp_path / "q.npy", random_vectors(6, 4))
    asked = encode(tiny, split="test", from_vectors=short, output=tmp_path / "queries")
    with raises("other-width", value=4, expected=8, index="index"):
        search(index=index, queries=asked, output=tmp_path / "run.parquet")
