"""The collection, split and queries to which runs and judgments belong, found through manifests."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from hybrid_cli import console, runs, storage
from hybrid_cli.artifacts import Manifest, Recorded, find_manifest, lineage
from hybrid_cli.collections import collection as collections
from hybrid_cli.collections.journal import MACHINE
from hybrid_cli.collections.readers.qrels import JudgmentFile
from hybrid_cli.errors import InputError, path_error
from hybrid_cli.evaluation.prediction_powered import LEAST_QUERIES
from hybrid_cli.evaluation.retrieved import removes_query
from hybrid_cli.inputs.json_values import read_object
from hybrid_cli.runs.groups import judgments_for
from hybrid_cli.storage import Kind, layout

_PARTS = {  # kind of an artifact made from judgments -> the part of the run, in words
    Kind.WEIGHTS: "its weights were tuned",
    Kind.RETRIEVER: "its fusion was tuned",
    Kind.LEXICAL_INDEX: "k1 and b of its index were tuned",
    Kind.ENCODER: "the weight of its encoder was tuned",
    Kind.EXAMPLES: "its model was trained",
}


@dataclass(frozen=True)
class Split:
    """A split of a collection."""

    collection: Path
    name: str


def split_of(file: Path) -> Split | None:
    """Return the split whose queries or judgments a file of a collection has; None for any other file."""
    role, _, name = file.stem.partition(".")
    if file.suffix != ".parquet" or role not in ("queries", "qrels") or not name:
        return None
    made = find_manifest(file.parent)
    return Split(_relative(file.parent), name) if made is not None and made.kind == Kind.COLLECTION else None


def split_of_runs(runs: Iterable[Path]) -> Split | None:
    """Return the split with whose queries runs were searched; None if no run records one.

    Raises:
        InputError: runs of several splits.
    """
    sources = filter(None, map(lineage.queries_of, runs))
    found = list(dict.fromkeys(filter(None, (split_of(source.path) for source in sources))))
    if len(found) > 1:
        names = " and ".join(f"{split.name} of {split.collection}" for split in found)
        problem = f"the runs were searched with queries of several splits ({names}); pass runs of one, or a collection"
        raise InputError(f"{problem} with --split", code="other-queries")
    return found[0] if found else None


def judgments_of(qrels: Path, paths: Mapping[str, Path], of_machine: bool = False) -> pl.DataFrame:
    """Return judgments of what runs have: of documents, also if the collection has those of their passages.

    Args:
        qrels: file of judgments.
        paths: runs by name.
        of_machine: those of machines in a journal.

    Raises:
        InputError: some runs have passages, others documents.
    """
    judgments = collections.read_qrels(qrels, of_machine)
    if lineage.passage_length(qrels) is None:
        return judgments
    return judgments_for(judgments, ((name, runs.open_run(path).first_docids) for name, path in paths.items()))


def machine_raters(judged: JudgmentFile) -> dict[str, int]:
    """Return the machines that gave grades in a file of judgments, with their numbers of judgments."""
    return {rater: count for rater, count in judged.raters.items() if rater.startswith(MACHINE)}


def warn_raters(qrels: Path) -> None:
    """Warn about judgments of a machine where those of people are expected, and about people who disagree."""
    judged = JudgmentFile.of(qrels)
    if raters := machine_raters(judged):
        count = sum(raters.values())
        given = f"{console.counted(judgment=count)} by {', '.join(raters)}, not by people"
        text = f"{qrels}: {given}; `evaluate --machine` corrects their bias with judgments of people"
        console.warn(text, code="machine-judgments", path=qrels, judgments=count, raters=list(raters))
    if judged.journal is not None and (conflicts := judged.journal.conflicts()):
        text = f"{qrels}: people disagree on {console.counted(hit=conflicts)}, whose last grades count; settle with"
        text = f"{text} `judge --adjudicate {qrels}`"
        console.warn(text, code="conflicting-judgments", path=qrels, conflicts=conflicts)


@dataclass(frozen=True)
class BothJudged:
    """Judgments of people and of a machine for queries of the same runs.

    Attributes:
        people, machine: qid, docid, relevance.
        both: ids of the queries that people and machine judged.
        others: ids of the queries that the machine alone judged, and that a run has.
    """

    people: pl.DataFrame
    machine: pl.DataFrame
    both: Sequence[str]
    others: Sequence[str]

    @classmethod
    def read(cls, command: str, qrels: Path, machine: Path, paths: Mapping[str, Path]) -> BothJudged:
        """Read the judgments; warn where they allow no correction.

        Args:
            command: name of the command, for the warnings.
            qrels: judgments of people.
            machine: judgments of a machine.
            paths: runs by name.

        Raises:
            InputError: judgments of a machine for those of people, or no common query.
        """
        if raters := machine_raters(JudgmentFile.of(qrels)):
            problem = f"has judgments of {', '.join(raters)}; needs those of people"
            raise path_error(qrels, problem, code="machine-judgments", raters=list(raters))
        people, of_machine = judgments_of(qrels, paths), judgments_of(machine, paths, of_machine=True)
        by_people, by_machine = (frame["qid"].unique(maintain_order=True) for frame in (people, of_machine))
        both = by_people.filter(by_people.is_in(by_machine.implode()))
        if not len(both):
            problem = "has no query that people judged; judge the same queries by the machine"
            raise path_error(machine, problem, code="other-queries", option="machine")
        rest = by_machine.filter(~by_machine.is_in(both.implode()))
        searched = pl.concat([runs.open_run(path).qids for path in paths.values()]).unique()
        others = rest.filter(rest.is_in(searched.implode()))
        grades = of_machine["relevance"]
        if len(both) < LEAST_QUERIES:
            text = f"{command}: people and machine judged {console.counted(query=len(both))}, too few for a correction"
            console.warn(text, code="no-correction", queries=len(both), needed=LEAST_QUERIES)
        elif grades.n_unique() == 1:
            text = f"{machine}: every grade is {grades[0]}, which says nothing"
            console.warn(text, code="one-grade", grade=grades[0])
        if unsearched := len(rest) - len(others):
            text = f"{command}: {unsearched:,} queries that the machine judged are left out: no run has hits for them"
            console.warn(text, code="queries-without-hits")
        return cls(people, of_machine, both.to_list(), others.to_list())

    def of_both(self, command: str) -> pl.DataFrame:
        """Return the judgments of people for queries that the machine judged too; warn about the others."""
        if left_out := self.people["qid"].n_unique() - len(self.both):
            text = f"{command}: the machine did not judge {left_out:,} queries of people, which are left out"
            console.warn(text, code="queries-without-machine", queries=left_out)
        return self.people.filter(pl.col("qid").is_in(self.both))


def missing_split(command: str, collection: Path | None, split: str | None, runs: Sequence[Path]) -> Split | None:
    """Return the collection and split of judgments where the user left one out, and print them.

    Args:
        command: name of the command, for the note.
        collection: collection or qrels file; None if it was left out.
        split: split of the collection; None if it was left out.
        runs: the runs to measure, whose queries decide.

    Returns:
        None if nothing was left out, or the runs record nothing that fits.

    Raises:
        InputError: runs of several splits.
    """
    if collection is not None and (split is not None or len(collections.splits(collection)) < 2):
        return None
    found = split_of_runs(runs)
    if found is None or (collection is not None and collection.resolve() != found.collection.resolve()):
        return None
    whole = Split(collection or found.collection, split or found.name)
    text = f"{command}: judgments of split {whole.name} of {whole.collection}, as the runs record it"
    console.note(text, code="assumed-split", path=whole.collection, split=whole.name)
    return whole


@dataclass(frozen=True)
class RunJudgments:
    """The judgments by which some runs are measured.

    Attributes:
        path: file of judgments.
        machine: file of judgments of a machine.
        corpus: corpus of the collection; None for a file outside of one.
        assumed: the split that the runs record, where the user left it out.
        remove_query: hits whose docid is the qid are removed.
        pseudo_queries: kind of the pseudo-queries that are judged; None for real queries.
    """

    path: Path
    machine: Path | None
    corpus: Path | None
    assumed: Split | None
    remove_query: bool
    pseudo_queries: str | None

    @classmethod
    def of(
        cls, command: str, judged: Path | None, split: str | None, runs: Mapping[str, Path], machine: Path | None
    ) -> RunJudgments | None:
        """Find the judgments of runs; warn about those of a machine in place of those of people.

        Args:
            command: name of the command, for notes.
            judged: collection or file of judgments; None if the runs record it.
            split: split of the collection.
            runs: the runs by name.
            machine: file of judgments of a machine.

        Returns:
            None if the runs do not record their split.

        Raises:
            InputError: no such split, or runs of several splits.
        """
        assumed = missing_split(command, judged, split, list(runs.values()))
        if assumed is not None:
            judged, split = assumed.collection, assumed.name
        if judged is None:
            return None
        path = collections.qrels_path(judged, split)
        if machine is None:
            warn_raters(path)
        corpus = collections.corpus_path(judged) if judged.is_dir() else None
        return cls(path, machine, corpus, assumed, removes_query(judged, split), lineage.pseudo_queries(path))

    def people(self, runs: Mapping[str, Path]) -> pl.DataFrame:
        """Return the judgments of people; see `judgments_of`."""
        return judgments_of(self.path, runs)

    def by_rater(self, command: str, runs: Mapping[str, Path]) -> list[pl.DataFrame]:
        """Return the judgments of people, and those of a machine if it judged enough of the same queries.

        Those of the machine then begin with the queries of people, in the same order.
        """
        if self.machine is None:
            return [self.people(runs)]
        found = BothJudged.read(command, self.path, self.machine, runs)
        if len(found.both) < LEAST_QUERIES:
            return [found.people]
        frames = (found.of_both(command), found.both), (found.machine, [*found.both, *found.others])
        return [pl.DataFrame({"qid": qids}).join(frame, on="qid", maintain_order="left") for frame, qids in frames]


def queries_of_judgments(command: str, qrels: Path, corpora: Iterable[Recorded]) -> Path:
    """Return the queries that judgments belong to: those of their split, or of a split of the indexed collection.

    Args:
        command: name of the command, for the note.
        qrels: file of judgments.
        corpora: the corpora that indexes record.

    Raises:
        InputError: no split has all judged queries, or several have.
    """
    if (own := split_of(qrels)) is not None:
        return collections.queries_path(own.collection, own.name)
    judged = collections.read_qrels(qrels)["qid"].unique()
    folders = list(dict.fromkeys(_relative(corpus.path.parent) for corpus in corpora if corpus.path.exists()))
    found = [Split(folder, name) for folder in folders for name in collections.splits_with(folder, judged)]
    if not found:
        where = f"in no split of {' or '.join(map(str, folders))}" if folders else "not recorded"
        problem = f"{qrels}: its queries are {where}; pass them with --queries"
        raise InputError(problem, code="queries-missing", path=qrels, option="queries")
    if len(found) > 1:
        names = ", ".join(split.name for split in found)
        problem = f"{qrels}: its queries are in several splits of {found[0].collection} ({names}); pass --queries"
        problem = f"{problem} {found[0].collection} --split NAME"
        raise InputError(problem, code="missing-option", path=qrels, option="queries")
    split = found[0]
    text = f"{command}: {qrels} has judgments of split {split.name} of {split.collection}, as the indexes record it"
    console.note(text, code="assumed-split", path=split.collection, split=split.name)
    return collections.queries_path(found[0].collection, found[0].name)


def collection_of(corpora: Iterable[Recorded]) -> Path | None:
    """Return the collection that indexes are of; None if its corpus is gone, or belongs to no collection."""
    for corpus in corpora:
        made = find_manifest(corpus.path.parent) if corpus.path.exists() else None
        if made is not None and made.kind == Kind.COLLECTION:
            return _relative(corpus.path.parent)
    return None


def _relative(path: Path) -> Path:
    """Return a path as a user writes it: relative to the working directory if it is below it."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


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
        fields = {"run": self.run, "part": str(self.part), "count": self.count, "queries": self.queries}
        console.warn(str(self), code="queries-reused", **fields)


def reused(searched: Mapping[str, Path], qrels: Path | None) -> list[Reuse]:
    """Return each run and part that was tuned or trained on queries of the qrels.

    Args:
        searched: name -> path of a run.
        qrels: the judgments of the evaluation; None without judgments.

    Raises:
        InputError: the judgments cannot be read.
    """
    parts = {
        name: [part for part in lineage.sources_of_run(path) if part[2].kind in _PARTS]
        for name, path in searched.items()
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
                common.intersection_update(runs.open_run(run).qids)
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
