"""`search`: search an index for all queries of a split, or for single queries."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
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
    existing_paths,
    group_of,
    index_kinds,
    index_manifest,
    kind_in_words,
    metadata_of,
    model_input,
    shards_of,
    texts,
    warn_changed,
    warn_lost,
)
from hybrid_cli.artifacts.lineage import System
from hybrid_cli.artifacts.opening import open_hybrid, open_index, open_lexical
from hybrid_cli.artifacts.retrievers import RetrieverFiles, open_fused, open_retriever, open_searchable, retriever_at
from hybrid_cli.collections import collection as collections
from hybrid_cli.collections.collection import TextStore
from hybrid_cli.commands import Search
from hybrid_cli.commands.retrieval import RETRIEVER
from hybrid_cli.errors import InputError, option_error
from hybrid_cli.evaluation.measures import evaluate_run
from hybrid_cli.evaluation.retrieved import removes_query
from hybrid_cli.fusion.methods import FusionRecipe
from hybrid_cli.fusion.selection import Choice, Trials, check_folds
from hybrid_cli.fusion.weights import chosen_weights, weights_file, weights_path
from hybrid_cli.indexes.shards import read_ids
from hybrid_cli.lexical.index import LexicalIndex
from hybrid_cli.passages import NO_GROUPS
from hybrid_cli.reporting.tables import figure
from hybrid_cli.runs.index import Allowed, Index
from hybrid_cli.runs.tables import SCHEMA
from hybrid_cli.stages import stage
from hybrid_cli.storage import PROBABILITY, Kind

QUERIES_AT_ONCE = 1024
SIZES = tuple(range(5, 55, 5))  # feedback documents and terms (DualRM, section 4)
SHARES = tuple(tenth / 10 for tenth in range(1, 10))
GRID = list(product(SIZES, SIZES, SHARES))


@stage(Search)
def search(settings: Search) -> Any:
    """Search indexes for all queries and write a run, or for one query and return its hits.

    Returns:
        Path of the run. With `query`, a DataFrame: docid, rank, score, title and text (where the corpus is found), and
        for a retriever or several indexes the rank and score in each (`bm25_rank`, `bm25_score`, ...). With
        `interactive`, an iterator of each query on standard input and its DataFrame.

    Raises:
        InputError: inputs or options cannot be used together, or an encoder differs from the one that built the index.
    """
    if retrievers := [folder for path in settings.indexes if (folder := retriever_at(path)) is not None]:
        return _in_retriever(settings, retrievers[0])
    shards = [shards_of(path) for path in settings.indexes]
    parts = [[index_manifest(shard) for shard in paths] for paths in shards]
    manifests = [part[0] for part in parts]
    several = [path for path, paths in zip(settings.indexes, shards, strict=True) if len(paths) > 1]
    if settings.exact and several:
        reason = f"{several[0]} has shards; build one index of all documents"
        raise option_error("exact", None, reason, code="conflicting-options", path=several[0])
    kinds = frozenset[str]().union(*map(index_kinds, manifests))
    settings.check_facts(", ".join(map(kind_in_words, settings.indexes, manifests)), index_kind=kinds)
    belongs_together(indexes=dict(zip(settings.indexes, parts, strict=True)))
    if path := weights_path(settings.weights):
        check_systems(path, [System(manifest.kind, encoder=manifest.counts.get("encoder")) for manifest in manifests])
    allowed = _allowed(settings, parts)
    if settings.prints:
        one = len(settings.indexes) == 1
        opened = (
            open_index(settings.indexes[0], settings)
            if one
            else open_fused(settings.indexes, parts, settings, settings.weights)
        )
        return _answers(settings, _within(opened, allowed), parts)
    source = _queries_source(settings)
    recipe = _recipe(settings, source, manifests)
    options = settings.recorded(index_kind=kinds) | ({"weights": list(recipe.weights)} if recipe else {})
    options |= _grouping(settings, parts) | _filter(settings)
    output = artifacts.open_output(
        settings.output or Path(),
        Kind.RUN,
        "search --exact" if settings.exact else "search",
        inputs=_inputs(settings, source),
        options=options,
        overwrite=settings.overwrite,
    )
    if output.up_to_date:
        return output.path
    warn_changed([manifest for part in parts for manifest in part])
    if settings.tune:
        _write_tuned(output, settings, source)
    else:
        start = partial(_opened, settings.of_worker(), source, recipe, shards[0], allowed)
        _write(output, settings, source, manifests, start)
    return output.path


def _allowed(settings: Search, parts: Sequence[Sequence[Manifest]]) -> Allowed | None:
    """Return the documents that `--filter` keeps; None without it."""
    return None if settings.filter is None else metadata_of(parts, settings.collection).allowed(settings.filter)


def _filter(settings: Search) -> dict[str, str]:
    """Return the filter, as manifests record it; none without one."""
    return {} if settings.filter is None else {"filter": settings.filter}


def _within(index: Index, allowed: Allowed | None) -> Index:
    return index if allowed is None else index.within(allowed)


def _in_retriever(settings: Search, folder: Path) -> Any:
    """Search a retriever, as `search` does."""
    if len(settings.indexes) > 1 or settings.exact:
        reason = f"{folder} is a retriever, which is searched alone and has a fusion of its own"
        option = "exact" if settings.exact else "index"
        raise option_error(option, settings.indexes if option == "index" else None, reason, code="conflicting-options")
    settings = settings.changed(index=folder)
    settings.check_facts(f"{folder} is {RETRIEVER}", index_kind=RETRIEVER)
    files = RetrieverFiles.read(folder)
    allowed = _allowed(settings, files.manifests)
    if settings.prints:
        return _answers(settings, _within(open_retriever(files, settings), allowed), files.manifests)
    source = _queries_source(settings)
    if source.is_dir():
        problem = f"{source}: a folder of vectors; a retriever needs the texts of the queries"
        raise InputError(problem, code="other-kind", path=source, kind=Kind.VECTORS)
    inputs = {"queries": source, "index": folder}
    rule = settings.group or files.stored.group
    group = {} if rule == NO_GROUPS else {"group": rule}
    output = artifacts.open_output(
        settings.output or Path(),
        Kind.RUN,
        "search",
        inputs=inputs,
        options=settings.recorded(index_kind=RETRIEVER) | group | _filter(settings),
        overwrite=settings.overwrite,
    )
    if not output.up_to_date:
        warn_changed([shard for index in files.manifests for shard in index])
        start = partial(_opened, settings.of_worker(), source, None, (), allowed)
        calibrated = files.stored.calibration is not None and rule == files.stored.group
        more = [PROBABILITY] if calibrated else []
        _write(output, settings, source, [index[0] for index in files.manifests], start, more)
    return output.path


def _grouping(settings: Search, parts: Sequence[Sequence[Manifest]]) -> dict[str, str]:
    """Return the rule that gives documents from passages, as manifests record it; none for hits as indexed."""
    rule = NO_GROUPS if settings.exact or settings.tune else group_of(settings.group, parts)
    return {} if rule == NO_GROUPS else {"group": rule}


def _inputs(settings: Search, source: Path) -> dict[str, Path | artifacts.Named]:
    inputs: dict[str, Path | artifacts.Named] = {"queries": source, **weights_file(settings.weights)}
    inputs |= {"qrels": _qrels(settings)} if settings.tune else {}
    searched = settings.indexes if settings.exact else shards_of(settings.indexes[0])
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


def _recipe(settings: Search, source: Path, manifests: Sequence[Manifest]) -> FusionRecipe | None:
    """Return the weights of an exact search; check that the indexes and queries fit it."""
    if not settings.exact:
        return None
    if source.is_dir():
        problem = f"{source}: a folder of vectors; --exact needs the texts of the queries"
        raise InputError(problem, code="other-kind", option="exact", path=source)
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
    queries = _queries(source, manifests[0])
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
    without = len(queries) - sum(answered)
    console.note(
        f"search: {output.path}: {console.counted(query=len(queries), hit=written.counts['rows'])}"
        + (f", {console.counted(query=without)} without hits" if without else ""),
        code="written",
        path=output.path,
        queries=len(queries),
        hits=written.counts["rows"],
        without_hits=without,
    )


def _with_pytorch(start: Callable[[], Callable[[pl.DataFrame], list[pl.DataFrame]]]) -> Any:
    """Open an index whose encoder computes all queries with PyTorch, and not few of them without it.

    The vectors of the two differ in their last bits, and a block of a worker may have few queries.
    """
    import torch  # noqa: F401

    return start()


def _write_tuned(output: Output, settings: Search, source: Path) -> None:
    """Write the run of RM3 with parameters from cross-validation."""
    queries = collections.read_queries(source).select("qid", "text")
    qrels = collections.read_qrels(judged := _qrels(settings))
    if "folds" in settings.given:
        check_folds(settings.folds, judged, queries.join(qrels, on="qid", how="semi")["qid"].n_unique())
    index = open_lexical(settings.indexes[0], settings.k1, settings.b, threads=settings.threads)
    remove_query = removes_query(judged)
    plain_run = index.search(queries, settings.hits)
    plain = evaluate_run(plain_run, qrels, [settings.measure], remove_query=remove_query)
    with console.progress("tune RM3", len(GRID), "settings") as advance:
        tuned = TunedFeedback(index, queries, qrels, settings.measure, settings.hits, advance, remove_query)
    run, score, selected = tuned.crossed(settings.folds, settings.seed)
    output.write([run.to_arrow()], queries=len(queries), k1=index.k1, b=index.b, rm3=selected)
    without = float(plain["value"].sum()) / len(tuned.judged)  # type: ignore[arg-type]
    console.note(
        f"search: {output.path}: {console.counted(query=len(queries), hit=len(run))}; {settings.measure} "
        f"{figure(score)} with RM3 by cross-validation, {figure(without)} without, on {len(tuned.judged):,} judged "
        "queries",
        code="written",
        path=output.path,
        queries=len(queries),
        hits=len(run),
        measure=settings.measure,
        value=score,
        without=without,
    )


class TunedFeedback:
    """Search with RM3, with parameters for each query that other judged queries select.

    Args:
        index: index of BM25.
        queries: qid, text.
        qrels: qid, docid, relevance.
        measure: measure to maximize.
        hits: documents per query.
        advance: called after every point of the grid.
        remove_query: remove hits whose docid is the qid before a run is measured.

    Raises:
        InputError: fewer than two judged queries.
    """

    def __init__(
        self,
        index: LexicalIndex,
        queries: pl.DataFrame,
        qrels: pl.DataFrame,
        measure: str,
        hits: int,
        advance: Callable[[int], None],
        remove_query: bool = False,
    ):
        self.judged = queries.join(qrels, on="qid", how="semi", maintain_order="left")["qid"]
        if len(self.judged) < 2:
            raise option_error("tune", None, "needs two or more judged queries", code="too-few-queries")
        self._index, self._queries, self._hits = index, queries, hits
        weighted = index.weighted(queries["text"].to_list())
        self._first = index.feedback(weighted, len(queries), max(SIZES))
        known = qrels.join(self.judged.to_frame(), on="qid", how="semi")
        values = []
        for documents, terms in product(SIZES, SIZES):
            models = self._first.models(documents, terms)
            for share in SHARES:
                results = evaluate_run(self._run(models, share), known, [measure], remove_query=remove_query)
                results = results.select("qid", "value")
                ordered = self.judged.to_frame().join(results, on="qid", how="left", maintain_order="left")
                values.append(ordered["value"].fill_null(0.0).to_numpy())
                advance(1)
        choices = [Choice(f"{docs} documents, {terms} terms", (share, 1 - share)) for docs, terms, share in GRID]
        self.table = Trials(choices, np.stack(values))

    def _run(self, models: list[dict[str, float]], share: float) -> pl.DataFrame:
        bags = self._index.bags_of(self._first.interpolated(models, share), len(self._queries))
        return self._index.table(self._index.hits(bags, self._hits), self._queries["qid"])

    def crossed(self, folds: int, seed: int) -> tuple[pl.DataFrame, float, list[dict[str, float]]]:
        """Return the run, its score, and the selected parameters with their numbers of judged queries.

        Queries without judgments have the parameters that are best on all judged ones.

        Args:
            folds: number of folds; at most the number of judged queries.
            seed: random seed of the folds.
        """
        rows = self.table.crossed(folds, seed)
        score = float(self.table.values[rows, np.arange(len(rows))].mean())
        row_of = dict(zip(self.judged, rows.tolist(), strict=True))
        best = self.table.plateau().best
        wanted = [row_of.get(qid, best) for qid in self._queries["qid"]]
        parts = [runs.empty()]
        selected: list[dict[str, float]] = []
        for row in dict.fromkeys(wanted):
            documents, terms, share = GRID[row]
            qids = [qid for qid, own in zip(self._queries["qid"], wanted, strict=True) if own == row]
            run = self._run(self._first.models(documents, terms), share)
            parts.append(run.filter(pl.col("qid").is_in(qids)))
            count = int((rows == row).sum())
            selected.append({"fb_docs": documents, "fb_terms": terms, "fb_weight": share, "queries": count})
        order = self._queries.select("qid")
        return order.join(pl.concat(parts), on="qid", maintain_order="left_right"), score, selected


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


def _queries(source: Path, manifest: Manifest) -> pl.DataFrame:
    """Return the queries with their texts, or the ids of queries with stored vectors."""
    if not source.is_dir():
        return collections.read_queries(source).select("qid", "text")
    if manifest.kind != Kind.DENSE_INDEX:
        problem = f"{source}: query vectors need a dense index, not {manifest.kind.phrase}"
        raise InputError(problem, code="other-kind", path=source, kind=manifest.kind)
    return pl.DataFrame({"qid": read_ids(source)})


def _opened(
    settings: Search, source: Path, recipe: FusionRecipe | None, shards: Sequence[Path], allowed: Allowed | None
) -> Callable[[pl.DataFrame], list[pl.DataFrame]]:
    """Open the indexes, a single one with the given shards; return a function from queries to their runs."""
    if recipe:
        index: Index = open_hybrid(settings.indexes, recipe.weights, settings)
    else:
        index = open_searchable(settings.indexes[0], settings, shards, source if source.is_dir() else None)
    index = _within(index, allowed)
    return lambda queries: list(index.runs(queries, settings.hits))


# ----------------------------------------------------------------------------------------------------------- one query


def _printed(settings: Search, index: Index, parts: Sequence[Sequence[Manifest]]) -> Callable[[str], pl.DataFrame]:
    """Return a function from a query to its hits, with titles and texts where the corpora are known.

    Args:
        settings: settings of the command.
        index: the open index; of a retriever, ranks and scores by index are shown.
        parts: the manifests of each index, several for one of shards.
    """
    corpora = _corpora(settings, parts)
    read = TextStore(corpora).texts if settings.interactive else partial(texts, corpora)

    def hits(query: str) -> pl.DataFrame:
        best = index.search({"query": query}, settings.hits).drop("qid")
        return best.hstack(_texts_of(best, read)) if corpora else best

    return hits


def _texts_of(hits: pl.DataFrame, read: Callable[[pl.Series], pl.DataFrame]) -> list[pl.Series]:
    """Return titles and texts of hits, of the best passage where hits are documents."""
    shown = hits.select(docid="passage" if "passage" in hits.columns else "docid")
    named = shown.join(read(shown["docid"]), on="docid", how="left", maintain_order="left")
    return [named["title"], named["text"]]


def _corpora(settings: Search, parts: Sequence[Sequence[Manifest]]) -> list[Path]:
    """Return the corpora with the titles and texts of hits; warn if they are not those of the indexes."""
    if settings.collection:
        _warn_other_corpus(settings, settings.collection, parts)
        return [settings.collection]
    recorded = corpora_of(parts)
    if not recorded:
        console.warn("the index records no corpus; pass the collection to see titles and texts", code="no-corpus")
    warn_lost(
        recorded,
        "hits may lack their texts or show others; build the index again with --overwrite, or pass the "
        "collection to see titles and texts",
    )
    return existing_paths(recorded)


def _warn_other_corpus(settings: Search, collection: Path, parts: Sequence[Sequence[Manifest]]) -> None:
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


def _answers(settings: Search, index: Index, parts: Sequence[Sequence[Manifest]]) -> Any:
    """Return the hits of `query`, or yield those of each query on standard input."""
    hits = _printed(settings, index, parts)
    return _asked(hits) if settings.interactive else hits(settings.query or "")


def _asked(hits: Callable[[str], pl.DataFrame]) -> Iterator[tuple[str, pl.DataFrame]]:
    """Yield each query on standard input with its hits; empty lines are skipped."""
    while True:
        console.prompt("query> ")
        if not (line := console.read_line()):
            return
        if query := _valid(line).strip():
            yield query, hits(query)


def _valid(line: str) -> str:
    """Replace bytes that are not UTF-8, so that one query does not end all others."""
    valid = line.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    if valid != line:
        problem = f"the query {valid.strip()!r} has bytes that are not valid UTF-8, which match nothing"
        console.warn(problem, code="not-utf-8")
    return valid
