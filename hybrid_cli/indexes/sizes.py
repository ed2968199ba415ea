"""What the bytes of an index are: vectors or codes, the graph, the ids (methods 10.10)."""

from __future__ import annotations

import re
from pathlib import Path

from hybrid_cli.indexes.build import DOCIDS, INDEX, is_binary
from hybrid_cli.indexes.shards import VECTORS

_BITS = {"Flat": 32, "SQfp16": 16, "SQbf16": 16, "SQ8": 8, "SQ6": 6, "SQ4": 4}
_FLOATS = ("Flat", "SQfp16", "SQbf16")


def footprint(folder: Path, factory: str, dim: int, count: int) -> dict[str, int]:
    """The bytes of a dense index of `count` documents by what they are for.

    Returns:
        `vectors` or `codes`, those of the documents alone; `graph`, `lists` or `tables`, what else FAISS's file holds:
        links, inverted lists with their ids, or code books; `ids`; and `stored vectors`, which a search does not read.
        A factory string whose codes we cannot tell is `index` as a whole.
    """
    whole = (folder / INDEX).stat().st_size
    ids = (folder / DOCIDS).stat().st_size
    stored = sum(path.stat().st_size for path in (folder / VECTORS).iterdir())
    each = code_size(factory, dim)
    if each is None:
        return {"index": whole, "ids": ids, "stored vectors": stored}
    rest = "graph" if "HNSW" in factory else "lists" if "IVF" in factory else "tables"
    name = "vectors" if factory.rsplit(",", 1)[-1] in _FLOATS else "codes"
    return {name: each * count, rest: whole - each * count, "ids": ids, "stored vectors": stored}


def code_size(factory: str, dim: int) -> int | None:
    """Bytes of one document's vector or code in an index of this factory string, None where we cannot tell."""
    if is_binary(factory):
        return -(-dim // 8)
    *before, last = factory.split(",")
    for step in before:  # a rotation or projection may shorten vectors: PCA64, OPQ16_64
        if found := re.fullmatch(r"PCAR?(\d+)|OPQ\d+_(\d+)", step):
            dim = int(found[1] or found[2])
    if product := re.fullmatch(r"PQ(\d+)(x8)?", last):
        return int(product[1])
    return -(-dim * _BITS[last] // 8) if last in _BITS else None
