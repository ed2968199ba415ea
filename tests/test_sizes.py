"""Bytes of an index by purpose: passages * dimensions * bytes, as in LITE, table 2."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from command import hybrid
from test_vectors import build, random_vectors

from hybrid_cli.commands import VectorIndex
from hybrid_cli.indexes.auto import footprint
from hybrid_cli.indexes.faiss import code_size
from hybrid_cli.stages.inspect import inspect

COUNT, DIM = 400, 64
EACH = {
    "flat": 4 * DIM, "fp16": 2 * DIM, "sq8": DIM, "binary": DIM // 8, "hnsw": 4 * DIM, "hnsw-sq8": DIM,
    "hnsw-binary": DIM // 8, "ivf": 4 * DIM, "pq": 16, "opq": 16,
}  # fmt: skip


@pytest.mark.parametrize("kind", EACH)
def test_each_part_has_the_bytes_of_the_formula(kind: Any, tmp_path: Path) -> None:
    index = build(tmp_path / "index", random_vectors(COUNT, DIM), VectorIndex(index_type=kind))
    parts = footprint(index.folder, index.info)
    assert (parts.get("vectors") or parts["codes"]) == COUNT * EACH[kind]
    if kind in ("flat", "fp16"):
        assert (index.folder / "index.faiss").stat().st_size == pytest.approx(COUNT * EACH[kind], rel=0.01)
    rest = {"pq": 4 * 256 * DIM, "opq": 4 * (256 + DIM) * DIM, "hnsw": COUNT * 4 * 2 * 64}.get(kind)
    if rest:  # code books, a rotation, links; FAISS adds 8 bytes per offset and some links of higher levels
        assert rest <= parts.get("tables", parts.get("graph", 0)) <= 1.3 * rest
    assert (
        sum(size for name, size in parts.items() if name not in ("ids", "stored vectors"))
        == (index.folder / "index.faiss").stat().st_size
    )


@pytest.mark.parametrize(
    ("factory", "dim", "size"),
    [
        ("Flat", 768, 3072), ("Flat", 32, 128), ("Flat", 1536, 6144), ("Binary", 768, 96), ("SQfp16", 384, 768),
        ("HNSW64,SQ8", 384, 384), ("PCA64,Flat", 768, 256), ("OPQ16_64,IVF100,PQ16", 768, 16), ("SQ4", 33, 17),
        ("IVF100,PQ8x4fs", 768, None), ("LSH", 768, None),
    ],
)  # fmt: skip
def test_the_bytes_of_a_passage_are_those_of_the_papers(factory: str, dim: int, size: int | None) -> None:
    assert code_size(factory, dim) == size


def test_inspect_prints_bytes_per_document_and_totals_in_both_units(tiny: Path, tmp_path: Path) -> None:
    from hybrid_cli.stages.index_bm25 import index_bm25

    index = index_bm25(tiny, output=tmp_path / "bm25")
    described = inspect(index)
    shown = hybrid("inspect", index).out
    assert described["documents"] == 12
    assert described["memory"]["impact matrix: postings"] > 0
    assert described["memory"]["Lucene index"] > 0
    assert "GB" in shown
    assert "GiB" in shown
