"""The Python interface: open an index, an encoder or a run, and use it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl

from hybrid_cli import runs
from hybrid_cli.artifacts.manifest import naming_plugins
from hybrid_cli.errors import InputError
from hybrid_cli.fusion.methods import FusionRecipe
from hybrid_cli.fusion.weights import chosen_weights
from hybrid_cli.opening.exact import index_kinds
from hybrid_cli.opening.provenance import corpora_of, existing_paths, refuse_other_corpora, texts, warn_lost
from hybrid_cli.opening.searcher import Searcher, open_hybrid, open_searcher
from hybrid_cli.opening.sharded import index_manifest, shards_of
from hybrid_cli.retrieval.in_memory import Queries, checked_depth, queries_table
from hybrid_cli.settings import Encode, SearchOptions, TrainDense
from hybrid_cli.settings.conversion import has_url

if TYPE_CHECKING:
    from hybrid_cli.encoders.contract import Encoder
    from hybrid_cli.encoders.options import EncodingPrecision

PathLike = str | os.PathLike[str]


def _local(*paths: PathLike) -> list[Path]:
    """Return the paths of local artifacts, and of the copies of those in an object store."""
    if not any(has_url(os.fspath(path)) for path in paths):
        return [Path(path) for path in paths]
    from hybrid_cli.artifacts.remote import local_copies

    return local_copies(paths)


@dataclass(frozen=True)
class Index:
    """An open lexical, dense or hybrid index; made by `open_index`.

    Attributes:
        searcher: searcher of the index.
        corpora: corpora with the titles; empty if they are not at the paths recorded in the index.
    """

    searcher: Searcher
    corpora: tuple[Path, ...]

    def search(self, queries: Queries, k: int = 10) -> pl.DataFrame:
        """Return the top documents of one or more queries.

        Args:
            queries: a text; several texts, whose qids are "0", "1", ...; texts by qid; or a data frame.
            k: documents per query.

        Returns:
            qid, docid, rank (from 1), score, and title if the corpus is known; in the order of the queries.

        Raises:
            InputError: `k` is no whole number from 1 on, or a query is no text.
        """
        k, table = checked_depth(k), queries_table(queries)
        hits = pl.concat(self.searcher.search(table, k)) if len(table) else runs.empty()
        if not self.corpora:
            return hits
        titles = texts(self.corpora, hits["docid"].unique()).select("docid", "title")
        return hits.join(titles, on="docid", how="left", maintain_order="left")


def open_index(*paths: PathLike, weights: Sequence[float] | None = None, **options: Any) -> Index:
    """Open an index, or several indexes of one corpus as a hybrid index.

    Args:
        paths: path or URL of one index; or those of one or more dense indexes and at most one lexical index, whose
            scores are summed for every document, exactly.
        weights: one per index, for several indexes; equal if None.
        options: search options of `hybrid search`, such as `k1`, `rm3`, `nprobe`, `model`, `device`,
            `threads`.

    Raises:
        InputError: no index at a path, or an option that does not apply to it.
    """
    folders = _local(*paths)
    parts = [[index_manifest(shard) for shard in shards_of(folder)] for folder in folders]
    settings = SearchOptions(exact=len(folders) > 1, **options)
    kinds = frozenset[str]().union(*(index_kinds(manifests[0]) for manifests in parts))
    settings.check_facts(", ".join(map(str, folders)), index_kind=kinds)
    refuse_other_corpora(dict(zip(folders, parts, strict=True)))
    recorded = corpora_of(parts)
    warn_lost(recorded, "hits may lack titles or show others; build the index again with --overwrite")
    corpora = tuple(existing_paths(recorded))
    if len(folders) != 1:
        if not folders:
            raise InputError("open_index: needs the path of an index", code="missing-value", option="paths")
        every = FusionRecipe("weighted-sum", (1.0,) * len(folders), "exact")
        chosen = chosen_weights(weights, every, [folder.name for folder in folders])
        return Index(open_hybrid(folders, chosen.weights, settings), corpora)
    if weights is not None:
        raise InputError("open_index: weights need several indexes", code="option-does-not-apply", option="weights")
    return Index(open_searcher(folders[0], settings), corpora)


def open_encoder(
    model: PathLike = TrainDense.model, *, device: str = Encode.device, dtype: EncodingPrecision = Encode.dtype
) -> Encoder:
    """Open an encoder: `encode_queries(texts)` and `encode_documents(titles, texts)` return float32 arrays [n, d].

    Args:
        model: `minilm`, a folder or its URL, or a Hugging Face id.
        device: `auto`, `cpu`, `cuda`, ...
        dtype: `auto`, `fp32`, `bf16`, `fp16` or `int8`.

    Raises:
        InputError: no such model, or an unusable device or dtype.
    """
    from hybrid_cli.encoders.open_encoder import open_encoder as opened

    name = str(_local(model)[0]) if has_url(os.fspath(model)) else str(model)
    with naming_plugins():
        return opened(name, device=device, dtype=dtype)


def open_run(path: PathLike) -> pl.DataFrame:
    """Read a run (Parquet, TREC or MS MARCO): qid, docid, rank, score, in the order of its ranks.

    Raises:
        InputError: the file is not a run.
    """
    return runs.read_run(_local(path)[0])
