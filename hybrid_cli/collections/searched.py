"""The queries and the corpus behind a run; runs that do not belong together are refused."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from hybrid_cli import artifacts, console
from hybrid_cli.artifacts import Manifest
from hybrid_cli.collections.collection import corpus_path, read_queries
from hybrid_cli.errors import InputError
from hybrid_cli.storage import Kind, layout

_FEW = 0.5  # of the queries of all runs: below it, a warning
_OF_QUERIES = ("perturb", "encode")  # stages that change the form of queries, not which ones they are


@dataclass(frozen=True)
class Source:
    """A file behind a run, with the fingerprint that the run records."""

    path: Path
    fingerprint: str


def refuse_mixed(runs: Mapping[str, Path]) -> None:
    """Refuse runs that were searched with other queries or in another corpus than the first one.

    Only facts in manifests count; runs of other tools have none. Attacked queries count as the queries that were
    attacked. Two query files with the same texts for their common ids are the same queries.

    Args:
        runs: name -> path.

    Raises:
        InputError: names both runs and both files.
    """
    _refuse(runs, queries_of, "other queries")
    refuse_other_corpora(runs)


def refuse_other_corpora(runs: Mapping[str, Path]) -> None:
    """Refuse runs that were searched in another corpus than the first one; see `refuse_mixed`."""
    _refuse(runs, corpus_of, "another corpus")


def _refuse(runs: Mapping[str, Path], find: Callable[[Path], Source | None], what: str) -> None:
    for path in runs.values():
        _refuse_other_kind(path)
    known = [(name, source) for name, path in runs.items() if (source := find(path)) is not None]
    for name, source in known[1:]:
        first, other = known[0]
        if source.fingerprint != other.fingerprint and not (find is queries_of and _same_texts(source, other)):
            raise InputError(
                f"{runs[name]}: has {what} than {runs[first]} ({source.path}, not {other.path}); use runs of the "
                "same collection and split, or export this run with --format trec to use it anyway",
                code="other-queries" if find is queries_of else "other-corpus", path=runs[name], other=runs[first],
            )  # fmt: skip


def _refuse_other_kind(run: Path) -> None:
    """Refuse an artifact that is no run: the queries and the corpus among its inputs have another meaning."""
    made = artifacts.find_manifest(run)
    if made is not None and made.kind != Kind.RUN:
        artifacts.check_table(run, Kind.RUN)


def refuse_other_judgments(runs: Iterable[Path], judged: Path) -> None:
    """Refuse a run that was searched in another corpus than that of the collection `judged`; files are not checked."""
    if judged.is_dir():
        refuse_other_corpus(runs, corpus_path(judged))


def refuse_other_queries(run: Path, queries: Path) -> None:
    """Refuse queries with other texts than those with which a run was searched, where these are recorded.

    Raises:
        InputError: names the run and both files.
    """
    _refuse_other_kind(run)
    known = texts_of(run)
    if known is None or artifacts.fingerprint(known) == artifacts.fingerprint(queries):
        return
    if not _same_texts(Source(known, ""), Source(queries, "")):
        raise InputError(
            f"{run}: was searched with other queries ({known}) than {queries}; pass the queries of the run",
            code="other-queries", path=run, other=queries,
        )  # fmt: skip


def refuse_other_corpus(runs: Iterable[Path], corpus: Path) -> None:
    """Refuse a run that was searched in another corpus; runs without a recorded corpus are not checked.

    Args:
        runs: paths of runs.
        corpus: corpus of a collection; a folder without a corpus is not checked.

    Raises:
        InputError: names the run and both corpora.
    """
    if not (corpus.is_file() or any(corpus.glob(layout.PARTS))):
        return
    expected = artifacts.fingerprint(corpus)
    for run in runs:
        _refuse_other_kind(run)
        source = corpus_of(run)
        if source is None or source.fingerprint == expected:
            continue
        if source.path.resolve() == corpus.resolve():
            raise InputError(
                f"{run}: was searched before {corpus} changed; index it again with --overwrite, and search again",
                code="changed-corpus", path=run, corpus=corpus,
            )  # fmt: skip
        raise InputError(
            f"{run}: was searched in another corpus ({source.path}) than {corpus}; pass the collection of the run, "
            "or export the run with --format trec to use it anyway",
            code="other-corpus", path=run, corpus=corpus, searched=source.path,
        )  # fmt: skip


def check_common(queries: Mapping[Path, pl.Series]) -> None:
    """Refuse a run without a common query with the others; warn if less than half of all queries are in all runs.

    Runs that record their queries are not refused: `refuse_mixed` compares these, and a search may find no hit for the
    queries of another one.

    Args:
        queries: path of each run -> ids of its queries, each once; empty runs do not count.

    Raises:
        InputError: names the run, with an example of both sides.
    """
    given = {path: qids for path, qids in queries.items() if len(qids)}
    recorded = [path for path in given if queries_of(path) is not None]
    for path, qids in given.items():
        if path in recorded and len(recorded) > 1:
            continue
        others = [other for each, other in given.items() if each != path]
        if others and not qids.is_in(pl.concat(others).unique().implode()).any():
            raise InputError(
                f"{path}: has no query of the other runs: it starts with query '{qids[0]}', they with "
                f"'{others[0][0]}'; use runs of the same queries",
                code="other-queries", path=path, id=qids[0],
            )  # fmt: skip
    counts = pl.concat([pl.Series([], dtype=pl.String), *given.values()]).value_counts()["count"]
    everywhere = int((counts == len(given)).sum())
    if everywhere < _FEW * len(counts):
        console.warn(f"only {everywhere:,} of {len(counts):,} queries are in all {len(given)} runs")


def queries_of(run: Path) -> Source | None:
    """Return the queries that a run was searched with; None if they are not recorded, or were moved or changed."""
    made = artifacts.find_manifest(run)
    if made is None:
        return None
    if made.stage == "fuse":
        found = (queries_of(path) for path in _existing(made, "run "))
        return next((source for source in found if source is not None), None)
    return _root(made)


def _root(made: Manifest) -> Source | None:
    """Follow the recorded queries to the file before any attack or encoding."""
    path = made.input_path("queries")
    if path is None:
        return None
    recorded = made.inputs["queries"]["fingerprint"]
    if not artifacts.has_content(path, recorded):
        return None
    own = artifacts.find_manifest(path)
    return _root(own) if own is not None and own.stage in _OF_QUERIES and own.inputs else Source(path, recorded)


def texts_of(run: Path) -> Path | None:
    """Return the file with the texts of the queries of a run, attacked or not; None if not recorded or changed."""
    made = artifacts.find_manifest(run)
    if made is None:
        return None
    if made.stage == "fuse":
        return next((found for path in _existing(made, "run ") if (found := texts_of(path)) is not None), None)
    while made is not None and (path := made.input_path("queries")) is not None:
        if not artifacts.has_content(path, made.inputs["queries"]["fingerprint"]):
            return None
        if path.is_file():
            return path
        made = artifacts.find_manifest(path)  # a folder of query vectors
    return None


def corpus_of(run: Path) -> Source | None:
    """Return the corpus of the index behind a run; None if it is not recorded or gone, or shards have several."""
    made = artifacts.find_manifest(run)
    if made is not None and made.options.get("max_per"):  # of documents; the index has their passages
        return None
    if made is not None and (corpus := made.input_path("corpus")) is not None:  # of a reranked run
        return Source(corpus, made.inputs["corpus"]["fingerprint"])
    for path in _existing(made, "run ") if made is not None else ():
        if (source := corpus_of(path)) is not None:
            return source
    found = []
    for path in _existing(made, "index") if made is not None else ():
        index = artifacts.find_manifest(path)
        if index is not None and (corpus := index.input_path("corpus")) is not None:
            found.append(Source(corpus, index.inputs["corpus"]["fingerprint"]))
    one = len({source.fingerprint for source in found}) == 1  # shards may have one corpus each
    return found[0] if one else None


def _existing(made: Manifest, role: str) -> list[Path]:
    """Return the inputs whose role begins so, where they are still what was recorded."""
    found = []
    for name, recorded in made.inputs.items():
        path = made.input_path(name)
        if name.startswith(role) and path is not None and artifacts.has_content(path, recorded["fingerprint"]):
            found.append(path)
    return found


def _same_texts(one: Source, other: Source) -> bool:
    """Test whether two query files have the same texts for their common ids, of which there is at least one."""
    if not (one.path.is_file() and other.path.is_file()):
        return False
    first, second = (read_queries(source.path).select("qid", "text") for source in (one, other))
    both = first.join(second, on="qid", suffix="_other")
    return len(both) > 0 and bool((both["text"] == both["text_other"]).all())
