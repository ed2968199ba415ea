"""`search`: search an index for all queries of a split, or for single queries."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa

from hybrid_cli import artifacts, cluster, console, runs
from hybrid_cli.artifacts import Manifest, Output
from hybrid_cli.artifacts.belonging import belongs_together, check_systems
from hybrid_cli.artifacts.indexes import (
    REBUILD,
    corpora_of,
    documents,
    group_of,
    index_kinds,
    kind_in_words,
    known_corpora,
    metadata_of,
    model_input,
    shards_of,
    warn_changed,
    warn_lost,
)
from hybrid_cli.artifacts.lineage import System
from hybrid_cli.artifacts.opening import open_hybrid, open_lexical
from hybrid_cli.artifacts.retrievers import RetrieverFiles, find_retriever, open_fused, open_searchable
from hybrid_cli.collections import collection as collections
from hybrid_cli.collections.collection import TextStore
from hybrid_cli.commands import Search
from hybrid_cli.commands.retrieval import A_SERVER, RETRIEVER
from hybrid_cli.errors import InputError, option_error
from hybrid_cli.evaluation.measures import evaluate_run
from hybrid_cli.evaluation.retrieved import removes_query
from hybrid_cli.fusion.methods import FusionRecipe
from hybrid_cli.fusion.selection import Choice, Trials, Values, check_folds
from hybrid_cli.fusion.weights import chosen_weights, weights_file, weights_path
from hybrid_cli.indexes.shards import read_ids
from hybrid_cli.passages import NO_GROUPS
from hybrid_cli.reporting.tables import figure
from hybrid_cli.runs.context import context
from hybrid_cli.runs.index import Allowed, Index
from hybrid_cli.runs.tables import SCHEMA
from hybrid_cli.stages import stage
from hybrid_cli.storage import PROBABILITY, Kind

QUERIES_AT_ONCE = 1024
Manifests = Sequence[Sequence[Manifest]]  # of each index, several for one of shards
Searched = tuple[Search, RetrieverFiles | None, list[dict[Path, Manifest]], Manifests, frozenset[str]]
SIZES = tuple(range(5, 55, 5))  # feedback documents and terms (DualRM, section 4)
SHARES = tuple(tenth / 10 for tenth in range(1, 10))
GRID = list(product(SIZES, SIZES, SHARES))


@stage(Search)
def search(settings: Search) -> Path:
    """Search indexes for all queries and write a run.

    Returns:
        Path of the run.

    Raises:
        InputError: inputs or options cannot be used together, or an encoder differs from the one that built the index.
    """
    if ":" in settings.engine:
        return _search_engine(settings)
    settings, files, shards, parts, kinds = _searched(settings)
    allowed = _allowed(settings, parts)
    source = _queries_source(settings)
    if source.is_dir() and (settings.exact or "a dense index" not in kinds):
        problem = f"{source}: a folder of vectors; only a single dense index is searched with it"
        raise InputError(problem, code="other-kind", path=source, **({"option": "exact"} if settings.exact else {}))
    recipe = _recipe(settings, [part[0] for part in parts])
    options = settings.recorded(index_kind=kinds) | ({"weights": list(recipe.weights)} if recipe else {})
    if files is not None:
        rule = settings.group or files.stored.group
    else:
        rule = NO_GROUPS if settings.exact or settings.tune else group_of(settings.group, parts)
    options |= {} if rule == NO_GROUPS else {"group": rule}
    options |= {} if settings.filter is None else {"filter": settings.filter}
    name = "search --exact" if settings.exact else "search"
    output = artifacts.output_of(settings, Kind.RUN, _inputs(settings, source, shards), options, name)
    if output.up_to_date:
        return output.path
    warn_changed([manifest for part in parts for manifest in part])
    if settings.tune:
        _write_tuned(output, settings, source)
    else:
        start = partial(_opened, settings.of_worker(), source, recipe, next(iter(shards), None), allowed)
        calibrated = files is not None and files.stored.calibration is not None and rule == files.stored.group
        _write(output, settings, source, [part[0] for part in parts], start, [PROBABILITY] if calibrated else [])
    return output.path


def _search_engine(settings: Search) -> Path:
    """Write the run of a search engine; refuse documents that the collection does not have."""
    from hybrid_cli.exports.search import search_engine

    settings.check_facts(f"{settings.engine} is {A_SERVER}", index_kind=A_SERVER)
    source, request, model = _queries_source(settings), settings.engine_query, settings.model
    inputs: dict[str, Path | artifacts.Named] = {"queries": source, **({"request": request} if request else {})}
    inputs |= {"model": model_input(model)} if model else {}
    recorded = settings.recorded(index_kind=A_SERVER)
    output = artifacts.output_of(settings, Kind.RUN, inputs, recorded, "search --engine")
    if output.up_to_date:
        return output.path
    queries = collections.read_queries(source).select("qid", "text")
    run, latency = search_engine(settings.engine, request, queries, model, settings.hits, settings.timeout)
    if settings.collection is not None and (corpus := collections.corpus_path(settings.collection)).exists():
        unknown = run.filter(~pl.col("docid").is_in(collections.docids(corpus).implode()))["docid"].unique().sort()
        if len(unknown):
            reason = f"answers documents that {corpus} does not have, such as {unknown[0]}; or pass --queries alone"
            raise option_error(
                "engine", settings.engine, reason, code="other-corpus", id=unknown[0], count=len(unknown)
            )
    output.write([run.to_arrow()], queries=len(queries), latency=latency)
    without = len(queries) - run["qid"].n_unique()
    text = f"{console.counted(query=len(queries), hit=len(run))}; without hits: {without:,}"
    text = f"{text}; {latency['p50']:.1f} ms per request (p50), {latency['p95']:.1f} ms (p95)"
    output.note(text, queries=len(queries), hits=len(run), without_hits=without)
    return output.path


@stage(Search)
def search_query(settings: Search) -> pl.DataFrame:
    """Return the hits of `query`.

    Returns:
        docid, rank, score, title, text and metadata (of known corpora), and for a retriever or several indexes the rank
        and score in each (`bm25_rank`, `bm25_score`, ...); with `context`, see `Index.context`.

    Raises:
        InputError: as `search`.
    """
    return _hits_of_queries(settings)(settings.query or "")


@stage(Search)
def search_interactively(settings: Search) -> Iterator[tuple[str, pl.DataFrame]]:
    """Return an iterator of each query on standard input and its hits, as of `search_query`."""
    return _asked(_hits_of_queries(settings))


def _searched(settings: Search) -> Searched:
    """Return the settings, the retriever or the shards of each index, the manifests, and the kinds of the indexes."""
    if (files := next(filter(None, map(find_retriever, settings.indexes)), None)) is not None:
        settings = _of_retriever(settings, files.folder)
    shards = [] if files else [shards_of(path) for path in settings.indexes]
    parts = files.manifests if files else [[*manifests.values()] for manifests in shards]
    return settings, files, shards, parts, _kinds(settings, parts, files)


def _allowed(settings: Search, parts: Manifests) -> Allowed | None:
    """Return the documents of the filter; None without one."""
    return None if settings.filter is None else metadata_of(parts, settings.collection).allowed(settings.filter)


def _of_retriever(settings: Search, folder: Path) -> Search:
    """Return the settings that search a retriever; refuse those of several indexes."""
    if len(settings.indexes) > 1 or settings.exact:
        reason = f"{folder} is a retriever, which is searched alone and has a fusion of its own"
        option = "exact" if settings.exact else "index"
        raise option_error(option, settings.indexes if option == "index" else None, reason, code="conflicting-options")
    return settings.changed(index=folder)


def _kinds(settings: Search, parts: Manifests, files: RetrieverFiles | None) -> frozenset[str]:
    """Return the kinds of the indexes, to which the options must apply; refuse indexes that do not belong together."""
    if files is not None:
        settings.check_facts(f"{files.folder} is {RETRIEVER}", index_kind=RETRIEVER)
        return frozenset({RETRIEVER})
    if settings.exact and (several := [path for path, part in zip(settings.indexes, parts, strict=True) if part[1:]]):
        reason = f"{several[0]} has shards; build one index of all documents"
        raise option_error("exact", None, reason, code="conflicting-options", path=several[0])
    manifests = [part[0] for part in parts]
    kinds = frozenset[str]().union(*map(index_kinds, manifests))
    settings.check_facts(", ".join(map(kind_in_words, settings.indexes, manifests)), index_kind=kinds)
    belongs_together(indexes=dict(zip(settings.indexes, parts, strict=True)))
    if path := weights_path(settings.weights):
        check_systems(path, [System(manifest.kind, encoder=manifest.counts.get("encoder")) for manifest in manifests])
    return kinds


def _inputs(settings: Search, source: Path, shards: Sequence[Iterable[Path]]) -> dict[str, Path | artifacts.Named]:
    inputs: dict[str, Path | artifacts.Named] = {"queries": source, **weights_file(settings.weights)}
    inputs |= {"qrels": _qrels(settings)} if settings.tune else {}
    searched = settings.indexes if settings.exact or not shards else list(shards[0])
    if settings.exact or len(searched) > 1:
        inputs |= {f"index {number}": path for number, path in enumerate(searched, 1)}
    else:
        inputs["index"] = searched[0]
    return inputs | ({"model": model_input(settings.model)} if settings.model is not None else {})


def _queries_source(settings: Search) -> Path:
    """Return the query file, or the folder of query vectors."""
    queries = settings.queries
    if queries is not None and queries.is_dir():
        manifest = artifacts.find_manifest(queries)
        if manifest is not None and manifest.kind == Kind.VECTORS:
            if settings.split is not None:
                reason = f"{queries} has vectors of queries, which have no splits; omit the option"
                raise option_error("split", settings.split, reason, code="option-does-not-apply", path=queries)
            return queries
    if queries is None and settings.collection is None:
        problem = "search: no queries; pass a collection with --split, a file with --queries, or use --query"
        raise InputError(problem, code="no-queries")
    return collections.queries_path(queries or settings.collection or Path(), settings.split)


def _recipe(settings: Search, manifests: Sequence[Manifest]) -> FusionRecipe | None:
    """Return the weights of an exact search; None for other searches."""
    if not settings.exact:
        return None
    dense = [manifest.kind for manifest in manifests].count(Kind.DENSE_INDEX)
    if dense > 1 and (unfit := sorted({"model", "weight"} & settings.given)):
        reason = f"only with one dense index; --exact searches {dense}"
        raise option_error(unfit[0], None, reason, code="option-does-not-apply")
    names = [path.name for path in settings.indexes]
    return chosen_weights(settings.weights, FusionRecipe("weighted-sum", (1.0,) * len(names), "exact"), names)


def _write(
    output: Output,
    settings: Search,
    source: Path,
    manifests: Sequence[Manifest],
    start: Callable[[], Callable[[pl.DataFrame], list[pl.DataFrame]]],
    more: Sequence[pa.Field] = (),
) -> None:
    if source.is_dir():
        queries = pl.DataFrame({"qid": read_ids(source)})
    else:
        queries = collections.read_queries(source).select("qid", "text")
    gpu = settings.device.startswith("cuda")
    if settings.ray_address and any(manifest.kind == Kind.DENSE_INDEX for manifest in manifests):
        start = partial(_with_pytorch, start)
    columns = [*SCHEMA.names(), *(field.name for field in more)]
    answered: list[int] = []

    def blocks() -> Iterator[Any]:
        some = list(queries.iter_slices(QUERIES_AT_ONCE))
        with console.progress("search", len(queries), "queries") as advance:
            for asked, runs in zip(some, cluster.map_blocks(settings, start, some, gpu), strict=True):
                for run in runs:
                    answered.append(run["qid"].n_unique())
                    yield run.select(columns).to_arrow()
                advance(len(asked))

    written = output.write(blocks(), *more, queries=len(queries), **_parameters(settings, manifests))
    without, hits = len(queries) - sum(answered), written.counts["rows"]
    text = console.counted(query=len(queries), hit=hits)
    text += f", {console.counted(query=without)} without hits" if without else ""
    output.note(text, queries=len(queries), hits=hits, without_hits=without)


def _with_pytorch(start: Callable[[], Callable[[pl.DataFrame], list[pl.DataFrame]]]) -> Any:
    """Open an index whose encoder computes all queries with PyTorch, and not few of them without it.

    The vectors of the two differ in their last bits, and a block of a worker may have few queries.
    """
    import torch  # noqa: F401

    return start()


# ------------------------------------------------------------------------------------------------------- tuning of RM3


def _write_tuned(output: Output, settings: Search, source: Path) -> None:
    """Write the run of RM3, each query with the parameters that are best on the other folds of the judged ones.

    Queries without judgments have the parameters that are best on all judged ones.

    Raises:
        InputError: fewer than two judged queries, or fewer than folds.
    """
    queries = collections.read_queries(source).select("qid", "text")
    qrels = collections.read_qrels(file := _qrels(settings))
    judged = queries.join(qrels, on="qid", how="semi", maintain_order="left")["qid"]
    if "folds" in settings.given:
        check_folds(settings.folds, file, len(judged))
    if len(judged) < 2:
        raise option_error("tune", None, "needs two or more judged queries", code="too-few-queries")
    known, remove_query = qrels.join(judged.to_frame(), on="qid", how="semi"), removes_query(file)
    index = open_lexical(settings.indexes[0], settings.k1, settings.b, threads=settings.threads)
    first = index.feedback(index.weighted(queries["text"].to_list()), len(queries), max(SIZES))
    models = lru_cache(1)(first.models)  # the same for all shares

    def run_of(documents: int, terms: int, share: float) -> pl.DataFrame:
        bags = index.bags_of(first.interpolated(models(documents, terms), share), len(queries))
        return index.table(index.hits(bags, settings.hits), queries["qid"])

    def values_of(run: pl.DataFrame) -> Values:
        values = evaluate_run(run, known, [settings.measure], remove_query=remove_query).select("qid", "value")
        ordered = judged.to_frame().join(values, on="qid", how="left", maintain_order="left")
        return ordered["value"].fill_null(0.0).to_numpy()

    values, plain = [], values_of(index.search(queries, settings.hits))
    with console.progress("tune RM3", len(GRID), "settings") as advance:
        for point in GRID:
            values.append(values_of(run_of(*point)))
            advance(1)
    choices = [Choice(f"{documents} documents, {terms} terms", (share, 1 - share)) for documents, terms, share in GRID]
    table = Trials(choices, np.stack(values))
    rows = table.crossed(settings.folds, settings.seed)
    row_of = dict.fromkeys(queries["qid"], table.plateau().best) | dict(zip(judged, rows.tolist(), strict=True))
    parts, selected = [runs.empty()], []
    for row in dict.fromkeys(row_of.values()):
        parts.append(run_of(*GRID[row]).filter(pl.col("qid").is_in([qid for qid in row_of if row_of[qid] == row])))
        parameters = dict(zip(("fb_docs", "fb_terms", "fb_weight"), GRID[row], strict=True))
        selected.append({**parameters, "queries": int((rows == row).sum())})
    run = queries.select("qid").join(pl.concat(parts), on="qid", maintain_order="left_right")
    output.write([run.to_arrow()], queries=len(queries), k1=index.k1, b=index.b, rm3=selected)
    score, without = float(table.values[rows, np.arange(len(rows))].mean()), float(plain.mean())
    text = f"{settings.measure} {figure(score)} with RM3 by cross-validation, {figure(without)} without, on"
    text = f"{console.counted(query=len(queries), hit=len(run))}; {text} {len(judged):,} judged queries"
    output.note(text, queries=len(queries), hits=len(run), measure=settings.measure, value=score, without=without)


def _qrels(settings: Search) -> Path:
    if settings.qrels is None and settings.collection is None:
        reason = "needed by --tune; or pass a collection with --split"
        raise option_error("qrels", None, reason, code="missing-option")
    split = None if settings.qrels else settings.split
    return collections.qrels_path(settings.qrels or settings.collection or Path(), split)


def _parameters(settings: Search, manifests: Sequence[Manifest]) -> dict[str, float]:
    """Return the k1 and b of the lexical index among the indexes, for the manifest."""
    stored = next((manifest.counts for manifest in manifests if manifest.kind == Kind.LEXICAL_INDEX), None)
    if stored is None:
        return {}
    chosen = {name: value for name in ("k1", "b") if (value := getattr(settings, name)) is not None}
    return {name: stored[name] for name in ("k1", "b") if name in stored} | chosen


def _opened(
    settings: Search,
    source: Path,
    recipe: FusionRecipe | None,
    shards: Mapping[Path, Manifest] | None,
    allowed: Allowed | None,
) -> Callable[[pl.DataFrame], list[pl.DataFrame]]:
    """Open the indexes, a single one with the given shards; return a function from queries to their runs."""
    if recipe:
        index: Index = open_hybrid(settings.indexes, recipe.weights, settings)
    else:
        index = open_searchable(settings.indexes[0], settings, shards, source if source.is_dir() else None)
    searched = index if allowed is None else index.within(allowed)
    return lambda queries: list(searched.runs(queries, settings.hits))


# ----------------------------------------------------------------------------------------------------------- one query


def _hits_of_queries(settings: Search) -> Callable[[str], pl.DataFrame]:
    """Return a function from a query to its hits, with titles and texts where the corpora are known."""
    settings, _, _, parts, _ = _searched(settings)
    allowed = _allowed(settings, parts)
    one, *more = settings.indexes
    opened = open_fused([one, *more], parts, settings, settings.weights) if more else open_searchable(one, settings)
    index = opened if allowed is None else opened.within(allowed)
    corpora = _corpora(settings, parts)
    if settings.context is not None and not corpora:
        raise option_error("context", settings.context, "needs the texts of the documents", code="no-texts")
    read = TextStore(corpora).documents if settings.interactive else partial(documents, corpora)

    def hits(query: str) -> pl.DataFrame:
        best = index.search({"query": query}, settings.hits).drop("qid")
        if not corpora:
            return best
        shown = best.select(docid="passage" if "passage" in best.columns else "docid")  # the best passage of a document
        named = shown.join(read(shown["docid"]), on="docid", how="left", maintain_order="left")
        best = best.hstack(named.drop("docid"))
        return best if settings.context is None else context(best, query, settings.context, read)

    return hits


def _corpora(settings: Search, parts: Manifests) -> list[Path]:
    """Return the corpora with the titles and texts of hits; warn if they are not those of the indexes."""
    if settings.collection:
        _warn_other_corpus(settings, settings.collection, parts)
        return [settings.collection]
    if not corpora_of(parts):
        console.warn("the index records no corpus; pass the collection to see titles and texts", code="no-corpus")
    return known_corpora(parts, "hits may lack their texts or show others" + REBUILD)


def _warn_other_corpus(settings: Search, collection: Path, parts: Manifests) -> None:
    """Warn that titles and texts of hits come from another corpus; an index of a part of the corpus belongs to it."""
    corpus = collections.corpus_path(collection)
    recorded = corpora_of(parts)
    if inside := [one for one in recorded if one.path.resolve().is_relative_to(corpus.resolve())]:
        if not any(artifacts.has_content(corpus, one.fingerprint) for one in recorded):
            warn_lost(inside, "scores and texts are of different documents" + REBUILD)
        return
    try:
        belongs_together(indexes=dict(zip(settings.indexes, parts, strict=False)), corpus=corpus)
    except InputError as error:
        console.warn(f"{error}; texts may be missing or of other documents", code=error.code, path=corpus)


def _asked(hits: Callable[[str], pl.DataFrame]) -> Iterator[tuple[str, pl.DataFrame]]:
    """Yield each query on standard input with its hits; empty lines are skipped, and `exit` on a terminal ends."""
    if console.asks():
        console.note("type a query; exit or Ctrl-D ends")
    while line := console.ask("query> "):
        if (query := _valid(line).strip()) == "exit" and console.asks():
            return
        if query:
            yield query, hits(query)


def _valid(line: str) -> str:
    """Replace bytes that are not UTF-8, so that one query does not end all others."""
    valid = line.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    if valid != line:
        problem = f"the query {valid.strip()!r} has bytes that are not valid UTF-8, which match nothing"
        console.warn(problem, code="not-utf-8")
    return valid
