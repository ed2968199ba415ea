"""Checks of what runs and indexes record about their origin: what does not belong together is refused.

The facts come from manifests (`artifacts.lineage`); files of other tools have none, and are not checked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from hybrid_cli import artifacts, console, storage
from hybrid_cli.artifacts import Manifest, Recorded, lineage
from hybrid_cli.collections import collection as collections
from hybrid_cli.errors import InputError
from hybrid_cli.fusion.methods import METHODS
from hybrid_cli.fusion.weights import read_tuned
from hybrid_cli.inputs.json_values import read_object
from hybrid_cli.opening.sharded import ids_of
from hybrid_cli.passages import MAX, NO_GROUPS, Group
from hybrid_cli.retrieval.filters import Metadata
from hybrid_cli.runs import open_run
from hybrid_cli.storage import Kind, layout

_REBUILD = "; build the index again with --overwrite, or pass the collection from which it was built"
_FEW = 0.5  # of the queries of all runs: below it, a warning
_PARTS = {  # kind of an artifact made from judgments -> the part of the run, in words
    Kind.WEIGHTS: "its weights were tuned",
    Kind.RETRIEVER: "its fusion was tuned",
    Kind.LEXICAL_INDEX: "k1 and b of its index were tuned",
    Kind.ENCODER: "the weight of its encoder was tuned",
    Kind.EXAMPLES: "its model was trained",
}


@dataclass(frozen=True)
class Reuse:
    """A part of a run that was tuned or trained on judged queries.

    Attributes:
        run: name of the run.
        part: kind of the artifact that was made from judgments.
        count: number of those queries.
        queries: number of all judged queries.
    """

    run: str
    part: Kind
    count: int
    queries: int

    def __str__(self) -> str:
        return (
            f"{self.run}: {_PARTS[self.part]} on {self.count:,} of the {self.queries:,} judged queries; their scores "
            "are too high to report"
        )

    def warn(self) -> None:
        """Print a warning."""
        console.warn(
            str(self), code="queries-reused", run=self.run, part=str(self.part), count=self.count, queries=self.queries
        )


def reused(runs: Mapping[str, Path], qrels: Path | None) -> list[Reuse]:
    """Return each run and part that was tuned or trained on queries of the qrels.

    Args:
        runs: name -> path.
        qrels: the judgments of the evaluation; None without judgments.

    Raises:
        InputError: the judgments cannot be read.
    """
    parts = {
        name: [part for part in lineage.sources_of_run(path) if part[2].kind in _PARTS] for name, path in runs.items()
    }
    if qrels is None or not any(parts.values()):
        return []
    judged = collections.read_qrels(qrels)
    asked, fingerprint = judged["qid"].n_unique(), storage.fingerprint(qrels)
    return [
        Reuse(name, kind, common, asked)
        for name, made in parts.items()
        for kind, common in _counts(made, judged, fingerprint).items()
    ]


def _counts(made: Sequence[tuple[Path, Path, Manifest]], judged: pl.DataFrame, fingerprint: str) -> dict[Kind, int]:
    """Return kind of part -> number of judged queries that such parts were made from, above 0.

    A query counts for a part only if the run made of the part has it: a fold has other queries than its model.
    """
    qids_by_kind: dict[Kind, set[str]] = {}
    for run, path, manifest in made:
        try:
            common = set(_used(path, manifest, judged, fingerprint))
            if common:
                common.intersection_update(open_run(run).qids)
        except InputError:  # damaged: nothing is known
            continue
        qids_by_kind.setdefault(manifest.kind, set()).update(common)
    return {kind: len(common) for kind, common in qids_by_kind.items() if common}


def _used(path: Path, manifest: Manifest, judged: pl.DataFrame, fingerprint: str) -> pl.Series:
    """Return the ids of judged queries whose judgments an artifact was made from.

    Equal ids of other collections are not the same queries, so a document must be judged for them in both; only where
    the judgments of weights are gone do ids decide.
    """
    pairs = ["qid", "docid"]
    sources = {role: source_of_role for role, source_of_role in manifest.inputs.items() if role.split()[0] == "qrels"}
    if manifest.kind in _PARTS and not _was_tuned(path, manifest.kind):
        return judged["qid"].head(0)
    if manifest.kind == Kind.EXAMPLES and len(sources) == 1:
        return judged.join(pl.read_parquet(path, columns=pairs, glob=False), on=pairs, how="semi")["qid"]
    used = [judged["qid"].head(0)]
    for role, recorded in sources.items():
        source = manifest.input_path(role)
        if recorded["fingerprint"] == fingerprint:
            used.append(judged["qid"])
        elif source is not None and source.exists():
            used.append(judged.join(collections.read_qrels(source), on=pairs, how="semi")["qid"])
        elif manifest.kind == Kind.WEIGHTS:
            used.append(judged.filter(pl.col("qid").is_in(read_object(path).get("judged", [])))["qid"])
    qids, queries = pl.concat(used), manifest.input_path("queries")
    if queries is not None and queries.is_file() and sources:
        qids = qids.filter(qids.is_in(collections.read_queries(queries)["qid"].implode()))
    return qids


def _was_tuned(path: Path, kind: Kind) -> bool:
    """Test whether judgments chose parameters: without a gain on held-out queries, a tuning keeps the given ones."""
    if kind == Kind.LEXICAL_INDEX:
        return bool(read_object(path / layout.PARAMETERS).get("tuning", {}).get("held_out_gain", 0.0) > 0)
    if kind == Kind.RETRIEVER:
        tuning = read_object(path / layout.RETRIEVER).get("tuning")
        return tuning is not None and not tuning.get("keeps_untuned")
    return kind != Kind.WEIGHTS or not read_object(path).get("keeps_untuned")


def corpora_of(indexes: Iterable[Sequence[Manifest]]) -> list[Recorded]:
    """Return the corpora of indexes with the same documents: those of the index that lost fewest.

    Args:
        indexes: the manifests of each index; several for one of shards.
    """
    recorded = [_of_shards(manifests) for manifests in indexes]
    return min((corpora for corpora in recorded if corpora), key=lambda corpora: len(_lost(corpora)), default=[])


def group_of(given: Group | None, indexes: Iterable[Sequence[Manifest]]) -> Group:
    """Return how passages give documents: as given, else by the best passage for a collection of passages."""
    if given is not None:
        return given
    return MAX if any(corpus.split_passages for corpus in corpora_of(indexes)) else NO_GROUPS


def _of_shards(manifests: Sequence[Manifest]) -> list[Recorded]:
    """Return the corpora that the shards of an index record, each once."""
    corpora = [corpus for manifest in manifests for corpus in recorded_corpora(manifest).values()]
    return list({(corpus.path, corpus.fingerprint): corpus for corpus in corpora}.values())


def recorded_corpora(manifest: Manifest) -> dict[str, Recorded]:
    """Return role -> corpora that an index records, several after `update --add`."""
    roles = [role for role in manifest.inputs if role.split()[0] in ("corpus", "texts")]
    return {role: corpus for role in roles if (corpus := artifacts.recorded_input(manifest, role)) is not None}


def _lost(corpora: Iterable[Recorded]) -> dict[Path, str]:
    """Return path -> what happened, for the recorded corpora that are missing or have changed."""
    changed = "has changed since the index was built"
    return {
        corpus.path: f"{corpus.path} {changed if corpus.path.exists() else 'is missing'}"
        for corpus in corpora
        if not corpus.is_unchanged
    }


def warn_lost(corpora: Iterable[Recorded], consequence: str) -> None:
    """Warn that recorded corpora are missing or have changed; the consequence says what to do."""
    if lost := _lost(corpora):
        console.warn(
            f"{', '.join(lost.values())}: {consequence}",
            code="corpus-changed", paths=list(lost), missing=[path for path in lost if not path.exists()],
        )  # fmt: skip


def existing_paths(corpora: Iterable[Recorded]) -> list[Path]:
    """Return the paths of the recorded corpora that are there."""
    return list(dict.fromkeys(corpus.path for corpus in corpora if corpus.path.exists()))


def metadata_of(indexes: Iterable[Sequence[Manifest]], collection: Path | None = None) -> Metadata:
    """Return the metadata of the documents of indexes, from the corpora that they record.

    Args:
        indexes: the manifests of each index, several for one of shards.
        collection: replaces a recorded corpus with the same content.

    Raises:
        InputError: no recorded corpus, or one that is missing or has changed: a filter must be exact.
    """
    recorded = corpora_of(indexes)
    if not recorded:
        problem = "--filter: the index records no corpus, whose metadata it needs; build it with `hybrid`"
        raise InputError(problem, code="no-corpus", option="filter")
    given = None if collection is None else collections.corpus_path(collection)
    paths: list[Path] = []
    for corpus in recorded:
        if corpus.is_unchanged:
            paths.append(corpus.path)
        elif given is not None and artifacts.has_content(given, corpus.fingerprint):
            paths.append(given)
        else:
            raise InputError(
                f"--filter: {_lost([corpus])[corpus.path]}, and a filter needs its metadata; pass the collection from "
                "which the index was built, or build the index again with --overwrite",
                code="corpus-changed", option="filter", path=corpus.path, missing=not corpus.path.exists(),
            )  # fmt: skip
    return Metadata(paths)


def warn_changed(manifests: Iterable[Manifest]) -> None:
    """Warn that indexes are older than their corpora; hits need no texts, so missing corpora do not count."""
    recorded = [corpus for manifest in manifests for corpus in recorded_corpora(manifest).values()]
    warn_lost((corpus for corpus in recorded if corpus.path.exists()), "hits are of its former documents" + _REBUILD)


def warn_other_corpus(collection: Path, manifests: Iterable[Manifest]) -> None:
    """Warn that titles and texts of hits come from another corpus than that of the indexes.

    An index of a part of the collection belongs to it, and so may one of several corpora (`update --add`):
    these are compared only where the collection contains them.
    """
    corpus = collections.corpus_path(collection)
    by_role = [recorded_corpora(manifest) for manifest in manifests]
    recorded = {source.fingerprint: source for roles in by_role for source in roles.values()}
    if any(artifacts.has_content(corpus, fingerprint) for fingerprint in recorded):
        return
    if inside := [one for one in recorded.values() if one.path.resolve().is_relative_to(corpus.resolve())]:
        warn_lost(inside, "scores and texts are of different documents" + _REBUILD)
    elif len(recorded) == 1 and all("corpus" in roles for roles in by_role if roles):
        (source,) = recorded.values()
        console.warn(
            f"{corpus} is not the corpus of the index, {source.path}: texts may be missing or of other documents; "
            "pass the collection from which the index was built",
            code="other-corpus", path=corpus, expected=source.path,
        )  # fmt: skip


def refuse_other_corpora(indexes: Mapping[Path, Sequence[Manifest]]) -> None:
    """Refuse to search indexes of different documents together; an index without a recorded corpus is not checked.

    Indexes of one corpus each are compared by its fingerprint. Where an index may have several, after `update` or
    as shards, ids are compared too.

    Args:
        indexes: the manifests of each index, several for one of shards.

    Raises:
        InputError: names both indexes, and how they differ.
    """
    known = [(index, _of_shards(shards), _only_corpus(shards)) for index, shards in indexes.items()]
    known = [(index, corpora, corpus) for index, corpora, corpus in known if corpora]
    for index, corpora, corpus in known[1:]:
        first, corpora_of_first, corpus_of_first = known[0]
        if corpus is None or corpus_of_first is None:
            _refuse_other_documents(index, first)
            _refuse_updates_of_one(index, corpora, first, corpora_of_first)
            _refuse_updates_of_one(first, corpora_of_first, index, corpora)
        elif corpus.fingerprint != corpus_of_first.fingerprint:
            paths = f"{corpus.path}, not {corpus_of_first.path}"
            raise InputError(
                f"{index}: has another corpus than {first} ({paths}); build both indexes from one corpus",
                code="other-corpus",
                path=index,
                other=first,
                corpus=corpus.path,
            )


def _only_corpus(shards: Sequence[Manifest]) -> Recorded | None:
    """Return the corpus from which all shards were built; None if there are several, or changes since."""
    corpora = {corpus.fingerprint: corpus for shard in shards for corpus in recorded_corpora(shard).values()}
    return (
        next(iter(corpora.values()))
        if len(corpora) == 1 and all("corpus" in shard.inputs for shard in shards)
        else None
    )


def _refuse_other_documents(index: Path, first: Path) -> None:
    """Refuse an index with other ids than another one."""
    ids, others = ids_of(index), ids_of(first)
    sides = {"more": ids.filter(~ids.is_in(others.implode())), "fewer": others.filter(~others.is_in(ids.implode()))}
    differences = [f"{len(side):,} {name}: {side[0]}, ..." for name, side in sides.items() if len(side)]
    if differences:
        raise InputError(
            f"{index}: has other documents than {first} ({'; '.join(differences)}); update both "
            "indexes with the same documents",
            code="other-corpus",
            path=index,
            other=first,
            more=len(sides["more"]),
            fewer=len(sides["fewer"]),
        )


def _refuse_updates_of_one(
    index: Path, corpora: Sequence[Recorded], other: Path, corpora_of_other: Sequence[Recorded]
) -> None:
    """Refuse indexes of the same corpora but for some, added to the first only, that replaced documents."""
    known = {corpus.fingerprint for corpus in corpora_of_other}
    added = [corpus for corpus in corpora if corpus.fingerprint not in known]
    if not added or len(added) + len(known) > len({corpus.fingerprint for corpus in corpora}):
        return
    ids = ids_of(index)
    for corpus in added:
        if corpus.is_unchanged and len(replaced := ids.filter(ids.is_in(collections.docids(corpus.path).implode()))):
            raise InputError(
                f"{other}: lacks {console.counted(document=len(replaced))} of {corpus.path} that {index} has "
                f"({replaced[0]}, ...); add them with `hybrid update --add`",
                code="other-corpus",
                path=other,
                other=index,
                corpus=corpus.path,
                id=replaced[0],
                count=len(replaced),
            )


def texts(corpora: Iterable[Path], docids: pl.Series) -> pl.DataFrame:
    """Return docid, title and text of documents; a later corpus replaces the documents of earlier ones."""
    rows = pl.concat([collections.texts(corpus, docids) for corpus in corpora])
    return rows.unique("docid", keep="last", maintain_order=True)


def check_corpus(index: Path, corpus: Path, shards: Sequence[Manifest] = ()) -> None:
    """Check that a lexical index, or another index with its manifests, was built from a corpus.

    Args:
        index: the index.
        corpus: the corpus.
        shards: manifests of an index of any kind; none for a lexical index.

    Raises:
        InputError: it was built from other documents.
    """
    shards = shards or [artifacts.read_manifest(index, Kind.LEXICAL_INDEX)]
    known = {source["fingerprint"] for manifest in shards for source in manifest.inputs.values()}
    if any("index" in manifest.inputs for manifest in shards):  # of several corpora
        same = set(ids_of(index)) == set(collections.docids(corpus))
    else:
        same = not known or storage.fingerprint(corpus) in known
    if not same:
        raise InputError(
            f"{index}: built from another corpus than {corpus}; index this corpus",
            code="other-corpus",
            path=index,
            corpus=corpus,
        )


def refuse_mixed(runs: Mapping[str, Path]) -> None:
    """Refuse runs that were searched with other queries or in another corpus than the first one.

    Only facts in manifests count; runs of other tools have none. Attacked queries count as the queries that were
    attacked. Two query files with the same texts for their common ids are the same queries.

    Args:
        runs: name -> path.

    Raises:
        InputError: names both runs and both files.
    """
    _refuse(runs, lineage.queries_of, "other queries")
    refuse_runs_of_other_corpora(runs)


def refuse_runs_of_other_corpora(runs: Mapping[str, Path]) -> None:
    """Refuse runs that were searched in another corpus than the first one; see `refuse_mixed`."""
    _refuse(runs, lineage.corpus_of, "another corpus")


def _refuse(runs: Mapping[str, Path], find: Callable[[Path], lineage.Source | None], what: str) -> None:
    for path in runs.values():
        _refuse_other_kind(path)
    known = [(name, source) for name, path in runs.items() if (source := find(path)) is not None]
    for name, source in known[1:]:
        first, other = known[0]
        queries = find is lineage.queries_of
        if source.fingerprint != other.fingerprint and not (queries and _same_texts(source, other)):
            raise InputError(
                f"{runs[name]}: has {what} than {runs[first]} ({source.path}, not {other.path}); use runs of the "
                "same collection and split, or export this run with --format trec to use it anyway",
                code="other-queries" if queries else "other-corpus", path=runs[name], other=runs[first],
            )  # fmt: skip


def _refuse_other_kind(run: Path) -> None:
    """Refuse an artifact that is no run: the queries and the corpus among its inputs have another meaning."""
    made = artifacts.find_manifest(run)
    if made is not None and made.kind != Kind.RUN:
        storage.check_table(run, Kind.RUN)


def refuse_other_judgments(runs: Iterable[Path], judged: Path) -> None:
    """Refuse a run that was searched in another corpus than that of the collection `judged`; files are not checked."""
    if judged.is_dir():
        refuse_other_corpus(runs, collections.corpus_path(judged))


def refuse_other_queries(run: Path, queries: Path) -> None:
    """Refuse queries with other texts than those with which a run was searched, where these are recorded.

    Raises:
        InputError: names the run and both files.
    """
    _refuse_other_kind(run)
    known = lineage.texts_of(run)
    if known is None or storage.fingerprint(known) == storage.fingerprint(queries):
        return
    if not _same_texts(lineage.Source(known, ""), lineage.Source(queries, "")):
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
    expected = storage.fingerprint(corpus)
    for run in runs:
        _refuse_other_kind(run)
        source = lineage.corpus_of(run)
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
    recorded = [path for path in given if lineage.queries_of(path) is not None]
    for path, qids in given.items():
        if path in recorded and len(recorded) > 1:
            continue
        others = [other for run, other in given.items() if run != path]
        if others and not qids.is_in(pl.concat(others).unique().implode()).any():
            raise InputError(
                f"{path}: has no query of the other runs: it starts with query '{qids[0]}', they with "
                f"'{others[0][0]}'; use runs of the same queries",
                code="other-queries", path=path, id=qids[0],
            )  # fmt: skip
    counts = pl.concat([pl.Series([], dtype=pl.String), *given.values()]).value_counts()["count"]
    everywhere = int((counts == len(given)).sum())
    if everywhere < _FEW * len(counts):
        console.warn(
            f"only {everywhere:,} of {len(counts):,} queries are in all {len(given)} runs",
            code="few-common-queries", count=everywhere, queries=len(counts), runs=len(given),
        )  # fmt: skip


def _same_texts(one: lineage.Source, other: lineage.Source) -> bool:
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
        raise InputError(
            f"{path}: was tuned for the order {', '.join(before)}, not {', '.join(now)}; use its order",
            code="other-order",
            path=path,
            value=now,
            expected=before,
        )
    pairs = [(one, other) for one, other in zip(tuned, systems, strict=True) if one is not None]
    changed = any(one.kind == other.kind and one.difference(other) for one, other in pairs)
    if changed and METHODS[read_tuned(path)["method"]].normalization == "none":
        console.warn(
            f"{path}: was tuned for raw scores of another encoder; tune again", code="other-encoder", path=path
        )
