"""`search`: queries and an index to a run; or one query, and what a person wants to see of its hits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from hybrid_cli import artifacts, console
from hybrid_cli.artifacts import Kind, Manifest, Output
from hybrid_cli.collections import collection as collections
from hybrid_cli.collections.snippets import snippet
from hybrid_cli.config import Retrieval, Searching
from hybrid_cli.errors import InputError

if TYPE_CHECKING:
    from hybrid_cli.indexes.hybrid_search import JointIndex

_QUERIES_AT_ONCE = 1024

_LEXICAL = ("engine", "k1", "b", "rm3", "fb_terms", "fb_docs", "fb_weight")
_DENSE = ("model", "weight", "ef_search", "nprobe", "binary_k")

Searcher = Callable[
    [pl.DataFrame, int], Iterator[pl.DataFrame]
]  # queries (qid, text) and hits to a run, block by block


def search(
    collection: Path | None,
    *,
    index: Path,
    output: Path,
    split: str | None = None,
    queries: Path | None = None,
    hits: int = Retrieval.hits,
    how: Searching = Searching(),  # noqa: B008 - frozen
    device: str = "auto",
    threads: int | None = None,
    overwrite: bool = False,
) -> Path:
    """Search an index for every query and write the run.

    Args:
        collection: its queries of `split` are taken; not needed with `queries`.
        index: a lexical or a dense index.
        queries: a file of queries, or for a dense index the vectors that `encode` made of them.

    Raises:
        InputError: inputs or options are not usable together, or the model is not the one that made the index.
    """
    source = _queries_source(collection, queries, split)
    manifest = _checked_index(index, how)
    claim = artifacts.open_output(
        output,
        Kind.RUN,
        "search",
        inputs={"index": index, "queries": source, **_model(how)},
        options={"hits": hits, **_without_model(_relevant(how, manifest.kind))},
        overwrite=overwrite,
    )
    if claim.up_to_date:
        return output
    _write(claim, *_opened(source, index, manifest, how, device, threads), hits)
    return output


def search_exactly(
    collection: Path | None,
    *,
    indexes: Sequence[Path],
    output: Path,
    weights: str | Sequence[float] | None = None,
    split: str | None = None,
    queries: Path | None = None,
    hits: int = Retrieval.hits,
    how: Searching = Searching(),  # noqa: B008 - frozen
    device: str = "auto",
    threads: int | None = None,
    overwrite: bool = False,
) -> Path:
    """Score every document by the weighted sum of several indexes, for every query, and write the run.

    No list of candidates stands between: the run is what `fuse --method weighted-sum --missing exact` comes to when
    its lists are as long as the corpus. Of a dense index of any type the stored vectors count.

    Args:
        indexes: of one corpus, in the order of the weights: dense ones, and one lexical index at most.
        weights: numbers, `1,0.1` or `@FILE` that `fuse --tune` wrote; equal if not given.

    Raises:
        InputError: inputs or options are not usable together.
    """
    from hybrid_cli.fusion.methods import Recipe
    from hybrid_cli.fusion.weights import chosen_weights, weights_file
    from hybrid_cli.indexes.hybrid_search import JointIndex

    source = _queries_source(collection, queries, split)
    if source.is_dir():
        raise InputError(f"{source}: holds vectors; search --exact needs the texts of the queries")
    options = _relevant_together([_checked_index(index, Searching()) for index in indexes], how)
    names = [index.name for index in indexes]
    recipe = chosen_weights(weights, Recipe("weighted-sum", (1.0,) * len(indexes), "exact"), names)
    claim = artifacts.open_output(
        output,
        Kind.RUN,
        "search --exact",
        inputs={
            **{f"index {number}": index for number, index in enumerate(indexes, 1)},
            "queries": source,
            **_model(how),
            **weights_file(weights),
        },
        options={"hits": hits, "weights": list(recipe.weights), **_without_model(options)},
        overwrite=overwrite,
    )
    if not claim.up_to_date:
        joint = JointIndex.open(indexes, recipe.weights, how.k1, how.b)
        table = collections.read_queries(source).select("qid", "text")
        _write(claim, table, _jointly(joint, how, device, threads), hits)
    return output


def _write(claim: Output, queries: pl.DataFrame, searcher: Searcher, hits: int) -> None:
    answered: list[int] = []

    def blocks() -> Iterator[Any]:
        with console.progress("search", len(queries), "queries") as advance:
            for begin in range(0, len(queries), _QUERIES_AT_ONCE):
                some = queries.slice(begin, _QUERIES_AT_ONCE)
                for run in searcher(some, hits):
                    answered.append(run["qid"].n_unique())
                    yield run.to_arrow()
                advance(len(some))

    written = claim.write(blocks(), queries=len(queries))
    console.note(
        f"search: {claim.path}: {len(queries):,} queries, {written.counts['rows']:,} hits"
        + (f", {len(queries) - sum(answered):,} queries without any" if sum(answered) < len(queries) else "")
    )


def _without_model(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options to record: the model is an input."""
    return {name: value for name, value in options.items() if name != "model"}


def _model(how: Searching) -> dict[str, Path | artifacts.Named]:
    """The encoder among the inputs, where one is named."""
    if how.model is None:
        return {}
    from hybrid_cli.encoders.models import model_input

    return {"model": model_input(str(how.model))}


def _queries_source(collection: Path | None, queries: Path | None, split: str | None) -> Path:
    if queries is not None and queries.is_dir():
        manifest = artifacts.find_manifest(queries)
        if manifest is not None and manifest.kind == Kind.VECTORS:
            return queries
    if queries is None and collection is None:
        raise InputError("no queries: name a collection and --split, a file with --queries, or words with --query")
    return collections.queries_path(queries or collection or Path(), split)


def _checked_index(index: Path, how: Searching) -> Manifest:
    """The index's manifest; options that mean nothing to such an index are refused."""
    manifest = artifacts.read_manifest(index)
    if manifest.kind not in (Kind.LEXICAL_INDEX, Kind.DENSE_INDEX):
        raise InputError(f"{index}: is {manifest.kind.phrase} (made by `{manifest.stage}`); an index is needed here")
    _check_fit(how, _relevant(how, manifest.kind), f"{index}, which is a {manifest.kind}")
    return manifest


def _relevant_together(manifests: Sequence[Manifest], how: Searching) -> dict[str, Any]:
    """The settings of an exact search; those of an encoder are for the only one."""
    kinds = [manifest.kind for manifest in manifests]
    names = [*(("k1", "b") if Kind.LEXICAL_INDEX in kinds else ())]
    names += ("model", "weight") if kinds.count(Kind.DENSE_INDEX) == 1 else ()
    found = {name: getattr(how, name) for name in names}
    _check_fit(how, found, "an exact search of these indexes")
    return found


def _check_fit(how: Searching, relevant: Mapping[str, Any], what: str) -> None:
    if unfit := sorted(set(_given(how)) - set(relevant)):
        options = ", ".join("--" + name.replace("_", "-") for name in unfit)
        raise InputError(f"{options}: means nothing to {what}")


def _given(how: Searching) -> dict[str, Any]:
    """The settings that are not as they are by default."""
    default = asdict(Searching())
    return {name: value for name, value in asdict(how).items() if value != default[name]}


def _relevant(how: Searching, kind: Kind) -> dict[str, Any]:
    """The settings that an index of this kind is searched with; what came later if it is given, so that runs stay."""
    found = {name: getattr(how, name) for name in (_LEXICAL if kind == Kind.LEXICAL_INDEX else _DENSE)}
    return {name: value for name, value in found.items() if (name, value) != ("binary_k", None)}


# ------------------------------------------------------------------------------------------------------------ searchers


def _opened(
    source: Path, index: Path, manifest: Manifest, how: Searching, device: str, threads: int | None
) -> tuple[pl.DataFrame, Searcher]:
    """The queries, as texts or as vectors, and what searches with them."""
    if source.is_dir():
        if manifest.kind != Kind.DENSE_INDEX:
            raise InputError(f"{source}: holds vectors, which search a dense index only; {index} is a {manifest.kind}")
        return _stored_queries(source, index, how, threads)
    queries = collections.read_queries(source).select("qid", "text")
    return queries, _searcher(index, manifest, how, device, threads)


def _searcher(index: Path, manifest: Manifest, how: Searching, device: str, threads: int | None) -> Searcher:
    if manifest.kind == Kind.DENSE_INDEX:
        return _dense(index, how, device, threads)
    return _lexical(index, how, threads)


def _lexical(index: Path, how: Searching, threads: int | None) -> Searcher:
    from hybrid_cli.lexical import lucene
    from hybrid_cli.lexical.feedback import Rm3
    from hybrid_cli.lexical.index import LexicalIndex

    rm3 = Rm3(how.fb_terms, how.fb_docs, how.fb_weight) if how.rm3 else None
    if how.engine == "lucene":
        return lambda queries, hits: iter([lucene.search(index, queries, hits, threads, how.k1, how.b, rm3)])
    lexical = LexicalIndex.open(index, how.k1, how.b)
    return lambda queries, hits: iter([lexical.search(queries, hits, threads, rm3)])


def _dense(index: Path, how: Searching, device: str, threads: int | None) -> Searcher:
    import torch

    from hybrid_cli import indexes
    from hybrid_cli.indexes.exact import query_encoder

    if threads:
        torch.set_num_threads(threads)
        indexes.set_threads(threads)
    dense = indexes.DenseIndex.open(index, how.ef_search, how.nprobe, how.binary_k)
    encoder = query_encoder(dense, how.model, device, how.weight)

    def searcher(queries: pl.DataFrame, hits: int) -> Iterator[pl.DataFrame]:
        found = encoder.encode_queries(queries["text"].to_list())
        return dense.search_blocks(found, queries["qid"].to_list(), hits)

    return searcher


def _jointly(joint: JointIndex, how: Searching, device: str, threads: int | None) -> Searcher:
    import torch

    from hybrid_cli.indexes.exact import query_encoder

    if threads:
        torch.set_num_threads(threads)
    encoders = [query_encoder(index, how.model, device, how.weight) for index in joint.dense]

    def searcher(queries: pl.DataFrame, hits: int) -> Iterator[pl.DataFrame]:
        texts = queries["text"].to_list()
        return joint.search_blocks([encoder.encode_queries(texts) for encoder in encoders], queries, hits, threads)

    return searcher


def _stored_queries(source: Path, index: Path, how: Searching, threads: int | None) -> tuple[pl.DataFrame, Searcher]:
    """Query vectors that `encode` wrote: searched as they are, without a model."""
    from hybrid_cli import indexes
    from hybrid_cli.indexes.exact import refusal

    indexes.set_threads(threads)
    dense = indexes.DenseIndex.open(index, how.ef_search, how.nprobe, how.binary_k)
    counts = artifacts.read_manifest(source, Kind.VECTORS).counts
    if counts["encoder"] != dense.fingerprint:
        raise InputError(refusal(dense, str(source), counts["contract"]))
    stored = np.concatenate([indexes.read_shard(path) for path in indexes.shards(source)])
    queries = pl.DataFrame({"qid": indexes.read_ids(source)}).with_row_index("row")

    def searcher(some: pl.DataFrame, hits: int) -> Iterator[pl.DataFrame]:
        return dense.search_blocks(stored[some["row"].to_numpy()], some["qid"].to_list(), hits)

    return queries, searcher


# -------------------------------------------------------------------------------------------------------- for a person


def look(
    query: str,
    *,
    indexes: Sequence[Path],
    collection: Path | None = None,
    hits: int = Retrieval.shown,
    depth: int = Retrieval.hits,
    how: Searching = Searching(),  # noqa: B008 - frozen
    device: str = "auto",
    threads: int | None = None,
) -> pl.DataFrame:
    """Print the top hits of one query with titles and snippets; of several indexes, fused by min-max.

    Args:
        indexes: lexical or dense indexes of one corpus.
        collection: where the texts are, if not in the corpus that the first index was made from.
        depth: hits of each index that are fused.

    Returns:
        docid, score, and for each index its `rank_i`, of the documents printed.
    """
    manifests = [artifacts.read_manifest(index) for index in indexes]
    table = pl.DataFrame({"qid": ["query"], "text": [query]})
    found = []
    for index, manifest in zip(indexes, manifests, strict=True):
        mine = Searching(**{**asdict(Searching()), **_fitting(how, manifest.kind)})
        _checked_index(index, mine)
        found.append(pl.concat(_searcher(index, manifest, mine, device, threads)(table, max(hits, depth))))
    best = _fused(found, hits)
    _print_hits(query, best, [index.name for index in indexes], _texts(best, collection, manifests))
    return best


def _fitting(how: Searching, kind: Kind) -> dict[str, Any]:
    """Of the settings given, those for this index; with several indexes each takes its own."""
    return {
        name: value for name, value in _relevant(how, kind).items() if kind in (Kind.LEXICAL_INDEX, Kind.DENSE_INDEX)
    }


def _fused(found: list[pl.DataFrame], hits: int) -> pl.DataFrame:
    if len(found) == 1:
        return found[0].head(hits).select("docid", "score", pl.col("rank").alias("rank_0"))
    from hybrid_cli.fusion import lists
    from hybrid_cli.fusion.methods import Recipe

    recipe = Recipe("minmax", (1.0,) * len(found), "zero")
    side_by_side = lists.Lists.of(found)
    candidates = pl.concat(side_by_side.blocks())
    fused = pl.concat(lists.fuse([candidates], side_by_side.qids, recipe, hits))
    ranks = candidates.select("docid", pl.col(r"^rank_\d+$").cast(pl.Int32))
    return fused.select("docid", "score").join(ranks, on="docid", how="left", maintain_order="left")


def _texts(best: pl.DataFrame, collection: Path | None, manifests: Sequence[Manifest]) -> dict[str, tuple[str, str]]:
    """Title and text of the hits, from the collection named, else from the corpus that an index remembers."""
    recorded = [manifest.input_path("corpus") for manifest in manifests]
    corpus = collection or next((path for path in recorded if path and path.exists()), None)
    if corpus is None:
        console.warn("the corpus is not where the index recorded it; name the collection to see titles and texts")
        return {}
    return {docid: (title, text) for docid, title, text in collections.texts(corpus, best["docid"]).rows()}


def _print_hits(query: str, best: pl.DataFrame, names: Sequence[str], texts: dict[str, tuple[str, str]]) -> None:
    if not len(best):
        console.result("no hits")
    for rank, row in enumerate(best.iter_rows(named=True), 1):
        title, text = texts.get(row["docid"], ("", ""))
        ranks = [f"{name} {row[f'rank_{n}'] or '-'}" for n, name in enumerate(names)] if len(names) > 1 else []
        details = ", ".join([f"{row['score']:.4f}", *ranks])
        console.result(f"{rank:2}. {title or row['docid']}  [{row['docid']}: {details}]")
        if text:
            console.result(f"    {snippet(text, query)}")
