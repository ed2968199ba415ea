"""Do these artifacts belong together? Corpora and queries that manifests record are compared.

Files of other tools have no manifest, and are not compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from hybrid_cli import artifacts, console, storage
from hybrid_cli.artifacts import Manifest, Recorded, lineage
from hybrid_cli.artifacts.indexes import corpora_of_shards, ids_of
from hybrid_cli.collections import collection as collections
from hybrid_cli.errors import InputError, path_error
from hybrid_cli.fusion.methods import METHODS
from hybrid_cli.fusion.weights import read_tuned
from hybrid_cli.storage import Kind, layout

_FEW = 0.5  # of the queries of all runs: below it, a warning
_USE = "use those of one collection and split, or export the run with --format trec to use it anyway"


def belongs_together(
    runs: Iterable[Path] | None = None,
    indexes: Mapping[Path, Sequence[Manifest]] | None = None,
    corpus: Path | None = None,
    queries: Path | bool = False,
) -> None:
    """Refuse runs and indexes of another corpus than the given one or the first one, and runs of other queries.

    Attacked queries count as the queries that were attacked; query files with the same texts for their common ids are
    the same queries. Indexes of one corpus each are compared by its fingerprint; where an index may have several, after
    an update or as shards, ids are compared too.

    Args:
        runs: paths of runs.
        indexes: the manifests of each index, several for one of shards.
        corpus: corpus of a collection; a folder without a corpus is not compared.
        queries: runs must have the same queries, or those of a file.

    Raises:
        InputError: names both artifacts and both files.
    """
    runs = list(runs or [])
    for run in runs:
        made = artifacts.find_manifest(run)
        if made is not None and made.kind != Kind.RUN:  # inputs of other kinds have another meaning
            storage.check_table(run, Kind.RUN)
    if corpus is not None and not (corpus.is_file() or any(corpus.glob(layout.PARTS))):
        corpus = None
    if queries is not False:
        given = None if queries is True else queries
        _refuse_other_sources(runs, lineage.queries_of if given is None else lineage.texts_of, given, "queries")
    _refuse_other_sources(runs, lineage.corpus_of, corpus, "corpus")
    _refuse_other_documents(
        [
            *([] if corpus is None else [_Indexed.of_corpus(corpus)]),
            *(
                _Indexed(path, corpora_of_shards(shards), _only_corpus(shards))
                for path, shards in (indexes or {}).items()
            ),
        ]
    )


def _refuse_other_sources(
    runs: Sequence[Path], find: Callable[[Path], Recorded | None], given: Path | None, what: str
) -> None:
    """Refuse runs with other sources than the given one or that of the first run."""
    known = [(run, source) for run in runs if (source := find(run)) is not None]
    if given is not None and known:
        known.insert(0, (given, Recorded(given, what, storage.fingerprint(given))))
    for run, source in known[1:]:
        first, other = known[0]
        if source.fingerprint == other.fingerprint or (what == "queries" and _same_texts(source, other)):
            continue
        if given is not None and source.path.resolve() == given.resolve():
            problem = f"{run}: was searched before {given} changed; index it again with --overwrite, and search again"
            raise InputError(problem, code=f"changed-{what}", path=run, other=given)
        problem = f"{run}: has other {what} ({source.path}) than {first}"
        problem = f"{problem}; {_USE}" if given is not None else f"{problem} ({other.path}); {_USE}"
        raise InputError(problem, code=f"other-{what}", path=run, other=first)


@dataclass(frozen=True)
class _Indexed:
    """The documents of an index, or of a corpus that indexes are compared with.

    Attributes:
        path: the index or the corpus.
        corpora: the corpora that the index records.
        only: the corpus of all documents; None if there are several, or changes since.
    """

    path: Path
    corpora: Sequence[Recorded]
    only: str | None
    is_corpus: bool = False

    @classmethod
    def of_corpus(cls, corpus: Path) -> _Indexed:
        """Return a corpus."""
        fingerprint = storage.fingerprint(corpus)
        return cls(corpus, [Recorded(corpus, Kind.CORPUS, fingerprint)], fingerprint, is_corpus=True)

    @property
    def ids(self) -> pl.Series:
        """Return the ids of the documents."""
        return collections.docids(self.path) if self.is_corpus else ids_of(self.path)


def _only_corpus(shards: Sequence[Manifest]) -> str | None:
    """Return the fingerprint of the corpus from which all shards were built; None if there are several, or changes."""
    fingerprints = {corpus.fingerprint for corpus in corpora_of_shards(shards)}
    whole = len(fingerprints) == 1 and all("corpus" in shard.inputs for shard in shards)
    return fingerprints.pop() if whole else None


def _refuse_other_documents(indexes: Sequence[_Indexed]) -> None:
    """Refuse indexes of other documents than the first; an index without a recorded corpus is not compared."""
    known = [index for index in indexes if index.corpora]
    for index in known[1:]:
        first = known[0]
        if index.only is not None and first.only is not None:
            if index.only != first.only:
                paths = f"({index.corpora[0].path}, not {first.corpora[0].path})"
                problem = f"{index.path}: has another corpus than {first.path} {paths}; build both from one corpus"
                raise InputError(problem, code="other-corpus", path=index.path, other=first.path)
            continue
        ids, others = index.ids, first.ids
        more, fewer = ids.filter(~ids.is_in(others.implode())), others.filter(~others.is_in(ids.implode()))
        differences = [
            f"{len(side):,} {name}: {side[0]}, ..." for side, name in ((more, "more"), (fewer, "fewer")) if len(side)
        ]
        if differences:
            problem = f"has other documents than {first.path} ({'; '.join(differences)}); update both alike"
            raise path_error(
                index.path, problem, code="other-corpus", other=first.path, more=len(more), fewer=len(fewer)
            )
        _refuse_replaced(index, first, ids)
        _refuse_replaced(first, index, others)


def _refuse_replaced(index: _Indexed, other: _Indexed, ids: pl.Series) -> None:
    """Refuse indexes of the same corpora but for some, added to the first only, that replaced documents."""
    known = {corpus.fingerprint for corpus in other.corpora}
    added = [corpus for corpus in index.corpora if corpus.fingerprint not in known]
    if not added or len(added) + len(known) > len({corpus.fingerprint for corpus in index.corpora}):
        return
    for corpus in added:
        if corpus.is_unchanged and len(replaced := ids.filter(ids.is_in(collections.docids(corpus.path).implode()))):
            count = console.counted(document=len(replaced))
            problem = f"lacks {count} of {corpus.path} that {index.path} has ({replaced[0]}, ...); update both"
            fields = {"other": index.path, "corpus": corpus.path, "count": len(replaced)}
            raise path_error(other.path, problem, code="other-corpus", **fields)


def check_common(queries: Mapping[Path, pl.Series]) -> None:
    """Refuse a run without a common query with the others; warn if less than half of all queries are in all runs.

    Runs that record their queries are not refused: `belongs_together` compares these, and a search may find no hit for
    the queries of another one.

    Args:
        queries: path of each run -> ids of its queries, each once; empty runs do not count.

    Raises:
        InputError: names the run, with an example of both sides.
    """
    given = {path: qids for path, qids in queries.items() if len(qids)}
    recorded = [path for path in given if lineage.queries_of(path) is not None]
    for path, qids in given.items():
        if path in recorded and len(recorded) > 1:
            continue
        others = [other for run, other in given.items() if run != path]
        if others and not qids.is_in(pl.concat(others).unique().implode()).any():
            problem = f"has no query of the other runs: its first is {qids[0]}, theirs {others[0][0]}"
            raise path_error(path, problem, code="other-queries", id=qids[0])
    counts = pl.concat([pl.Series([], dtype=pl.String), *given.values()]).value_counts()["count"]
    everywhere = int((counts == len(given)).sum())
    if everywhere < _FEW * len(counts):
        text = f"only {everywhere:,} of {len(counts):,} queries are in all {len(given)} runs"
        console.warn(text, code="few-common-queries", count=everywhere, queries=len(counts), runs=len(given))


def _same_texts(one: Recorded, other: Recorded) -> bool:
    """Test whether two query files have the same texts for their common ids, of which there is at least one."""
    if not (one.path.is_file() and other.path.is_file()):
        return False
    first, second = (collections.read_queries(source.path).select("qid", "text") for source in (one, other))
    both = first.join(second, on="qid", suffix="_other")
    return len(both) > 0 and bool((both["text"] == both["text_other"]).all())


def check_systems(path: Path, systems: Sequence[lineage.System]) -> None:
    """Refuse systems of the kinds of a tuning in another order; warn about raw scores of another encoder.

    Runs of the tuning that are gone since then are not checked.

    Args:
        path: file written by `fuse --tune`.
        systems: those of the weighted runs or indexes, in order.

    Raises:
        InputError: the file holds the weight of another kind for some of them.
    """
    made = artifacts.read_manifest(path, Kind.WEIGHTS)
    runs = [made.input_path(f"run {number}") for number in range(1, len(systems) + 1)]
    tuned = [lineage.system_of(run) if run is not None and run.exists() else None for run in runs]
    before, now = [system.kind for system in tuned if system is not None], [system.kind for system in systems]
    if before != now and sorted(before) == sorted(now):
        problem = f"was tuned for the order {', '.join(before)}, not {', '.join(now)}; use its order"
        raise path_error(path, problem, code="other-order")
    pairs = [(one, other) for one, other in zip(tuned, systems, strict=True) if one is not None]
    changed = any(one.kind == other.kind and one.difference(other) for one, other in pairs)
    if changed and METHODS[read_tuned(path)["method"]].normalization == "none":
        text = f"{path}: was tuned for raw scores of another encoder; tune again"
        console.warn(text, code="other-encoder", path=path)
