"""The FAISS index of a folder of vectors: which one, how it is built, what is told of it."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from hybrid_cli import artifacts, console, indexes
from hybrid_cli.artifacts import Kind
from hybrid_cli.config import RecallCheck, VectorIndex


def typed(index: VectorIndex, binary: bool = False) -> VectorIndex:
    """The index with a type: the one given, else that which the encoder was trained for."""
    if index.index_type:
        return index
    return replace(index, index_type="binary" if binary and not index.factory else "flat")


def options(index: VectorIndex) -> dict[str, Any]:
    """What the manifest says of an index; how to choose only where it is chosen."""
    options = asdict(index)
    choice = options.pop("choice")
    return {**options, **choice} if index.index_type == "auto" else options


def build(work: Path, index: VectorIndex, total: int, recall_check: bool) -> dict[str, Any]:
    """Build the index; its factory string, and what it finds of the exact hits where that is asked for."""
    if index.index_type == "auto" and not index.factory:
        return _choose(work, index)
    with console.progress("index", total, "vectors") as advance:
        factory = indexes.build(work, index, advance)
    return {"factory": factory, **(_recall(work, factory, index.seed, total) if recall_check else {})}


def _choose(work: Path, index: VectorIndex) -> dict[str, Any]:
    """Let measuring choose; what was tried is printed, and what came of it is kept."""
    with console.progress("choose", unit="indexes") as advance:
        factory, tried = indexes.choose(work, index, advance)
    recall = f"recall@{index.choice.cutoff}"
    rows = [
        [each.index_type, each.factory, f"{each.documents:,}", f"{each.size:,.0f}", f"{each.recall:.4f}",
         f"{each.milliseconds:.2f}"]
        for each in tried
    ]  # fmt: skip
    console.table(["tried", "factory", "documents", "bytes/document", recall, "ms/query"], rows, left=["factory"])
    return {"factory": factory, recall: tried[-1].recall}


def _recall(index: Path, factory: str, seed: int, total: int) -> dict[str, float]:
    """What an index finds of the exact hits, which is printed."""
    recall = indexes.measure_recall(index, factory, RecallCheck(seed=seed))
    if recall:
        shares = ", ".join(f"{name} {share:.4f}" for name, share in recall.items())
        console.note(f"encode: {factory}: {shares} of exact search for {min(total, RecallCheck.sample):,} documents")
    return recall


def as_it_is(output: Path, recall_check: bool) -> Path:
    """What is up to date; the recall of an index is measured where that is asked for."""
    made = artifacts.read_manifest(output)
    if recall_check and made.kind == Kind.DENSE_INDEX:
        _recall(output, made.counts["factory"], made.options["seed"], made.counts["vectors"])
    return output
