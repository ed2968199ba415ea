"""Exact scores of the pairs of a run that other runs return: its index and queries."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from hybrid_cli import artifacts, storage
from hybrid_cli.artifacts import Manifest
from hybrid_cli.artifacts.belonging import belongs_together
from hybrid_cli.artifacts.indexes import index_manifest, recorded_model
from hybrid_cli.artifacts.opening import open_index
from hybrid_cli.collections import collection as collections
from hybrid_cli.encoders.options import DEVICE
from hybrid_cli.errors import InputError, path_error
from hybrid_cli.indexes.options import Searching
from hybrid_cli.passages import NO_GROUPS

_SEARCHED = ("k1", "b", "weight", "group")  # options of a run that change its scores


@dataclass(frozen=True)
class SearchedIndex:
    """Index, queries and search options that determine the exact scores of a run.

    Attributes:
        index: a lexical or a dense index.
        queries: a file of texts, or for a dense index a folder of vectors.
        options: search options of the run.
    """

    index: Path
    queries: Path
    options: Searching

    def scorer(
        self, qids: pl.Series, device: str = DEVICE, threads: int | None = None
    ) -> Callable[[pl.DataFrame], pl.Series]:
        """Return a function from pairs (qid, docid) to their scores by the index (float32).

        Args:
            qids: ids of all queries of the pairs; they are encoded together, so scores do not depend on the calls.
            device: device of the encoder.
            threads: CPU threads; None for all cores.
        """
        vectors = self.queries if self.queries.is_dir() else None
        index = open_index(self.index, self.options.changed(device=device, threads=threads), vectors=vectors)
        if vectors is not None:
            return index.scorer(pl.DataFrame({"qid": qids.unique(maintain_order=True)}))
        every = collections.read_queries(self.queries)
        return index.scorer(every.filter(pl.col("qid").is_in(qids.unique().implode())))


def exact_source(run: Path, index: Path, queries: Path | None = None) -> SearchedIndex:
    """Check that `run` was searched in `index`, and locate its queries.

    Args:
        run: a run; without a manifest it is not checked.
        index: index in which the run was searched.
        queries: overrides the recorded queries; needed for a run without a manifest.

    Raises:
        InputError: another index, other queries or missing ones, or a search with feedback.
    """
    manifest = index_manifest(index)
    made = artifacts.find_manifest(run)
    if made is None:
        if queries is None:
            raise path_error(run, "the queries are not recorded; pass them with --queries", code="queries-missing")
        return SearchedIndex(index, queries, Searching(group=NO_GROUPS))
    if made.inputs.get("index", {}).get("fingerprint") != manifest.fingerprint:
        before = made.input_path("index")
        shards = "index 2" in made.inputs and "index" not in made.inputs and made.stage == "search"
        if shards or made.stage == "search --engine":
            searched = "shards, which give" if shards else "a search engine, which gives"
            problem = f"was searched in {searched} no exact scores; use another --missing, such as min"
            raise path_error(run, problem, code="no-exact-scores")
        if before is not None and before.exists() and before.samefile(index):
            problem = f"{index} has changed since the search{_change(made, manifest)}; search again"
            raise path_error(run, problem, code="index-changed", index=index)
        problem = f"was not searched in {index}; pass --index in the order of the runs"
        raise path_error(run, problem, code="other-index", index=index)
    if made.options.get("rm3"):
        problem = "was searched with --rm3, which has no exact scores; use another --missing"
        raise path_error(run, problem, code="no-exact-scores")
    if queries is not None:
        belongs_together([run], queries=queries)
    options = {name: made.options[name] for name in _SEARCHED if made.options.get(name) is not None}
    if (model := recorded_model(run, made)) is not None:
        options["model"] = str(model)
    return SearchedIndex(index, queries or _recorded_queries(run, made), Searching(**{"group": NO_GROUPS, **options}))


def exact_sources(
    runs: Mapping[str, Path], indexes: Sequence[Path], queries: Path | None = None
) -> list[SearchedIndex]:
    """Return one source per run; see `exact_source`.

    Raises:
        InputError: not one index per run.
    """
    if len(indexes) != len(runs):
        problem = f"--index: {len(indexes)} indexes for {len(runs)} runs; give one per run, in order"
        raise InputError(problem, code="number-of-values", option="index", value=len(indexes))
    return [exact_source(run, index, queries) for run, index in zip(runs.values(), indexes, strict=True)]


def _change(made: Manifest, index: Manifest) -> str:
    """Return the change of k1 and b between a run and its index, in words."""
    changed = [
        f"{name}={made.counts[name]:g} in the run, {index.counts[name]:g} in the index"
        for name in ("k1", "b")
        if name in made.counts and name in index.counts and made.counts[name] != index.counts[name]
    ]
    return f" ({'; '.join(changed)})" if changed else ""


def _recorded_queries(run: Path, made: Manifest) -> Path:
    path = made.input_path("queries")
    if path is None or not path.exists():
        where = f"no longer at {made.input_label('queries')}" if "queries" in made.inputs else "not recorded"
        raise path_error(run, f"its queries are {where}; pass them with --queries", code="queries-missing")
    if storage.fingerprint(path) != made.inputs["queries"]["fingerprint"]:
        problem = f"its queries at {path} have changed; search again, or pass them with --queries"
        raise path_error(run, problem, code="input-changed", option="queries")
    return path
