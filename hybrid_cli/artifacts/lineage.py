"""What artifacts were made of, found through manifests: indexes, encoders, queries and corpus of a run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hybrid_cli.artifacts.inputs import has_content
from hybrid_cli.artifacts.manifest import Manifest, find_manifest, read_manifest
from hybrid_cli.errors import InputError, path_error
from hybrid_cli.storage import Kind, layout
from hybrid_cli.storage.files import sizes
from hybrid_cli.storage.records import fingerprint

_INDEXES = (Kind.LEXICAL_INDEX, Kind.DENSE_INDEX)
_MODELS = (Kind.ENCODER, Kind.EXAMPLES, Kind.LABELS)
_PARTS_OF = {  # kind of an artifact -> kinds of inputs that become a part of it
    Kind.RUN: (*_INDEXES, Kind.SHARDS, Kind.ENCODER, Kind.RERANKER, Kind.RUN, Kind.WEIGHTS, Kind.RETRIEVER),
    Kind.RETRIEVER: (*_INDEXES, Kind.SHARDS, Kind.WEIGHTS),
    Kind.SHARDS: (Kind.LEXICAL_INDEX, Kind.SHARDS),
    Kind.LEXICAL_INDEX: (Kind.LEXICAL_INDEX,),
    Kind.DENSE_INDEX: (Kind.DENSE_INDEX, Kind.ENCODER),
    Kind.ENCODER: (Kind.RERANKER, *_MODELS),
    Kind.EXAMPLES: (Kind.RERANKER,),
    Kind.RERANKER: (Kind.RERANKER, *_MODELS),
}
_OF_QUERIES = ("perturb", "encode")  # stages that change the form of queries, not which ones they are
_SEVERAL, _UNKNOWN = "several runs", "unknown origin"
_LUCENE_READS = ("lucene/",)
_READ = {
    Kind.LEXICAL_INDEX: ("impacts/", layout.DOCIDS, layout.PARAMETERS),
    Kind.DENSE_INDEX: (layout.FAISS_INDEX, layout.DOCIDS),
}


@dataclass(frozen=True)
class Held:
    """One index and the bytes that a search of it reads.

    Attributes:
        index: path.
        parts: name -> bytes, for all files and folders of the index.
        needed: names of the parts that a search reads.
        documents: number of documents.
    """

    index: Path
    parts: Mapping[str, int]
    needed: Sequence[str]
    documents: int

    @property
    def size(self) -> int:
        """Return the bytes that a search reads."""
        return sum(self.parts[name] for name in self.needed)


def indexes_of(run: Path) -> dict[Path, Held]:
    """Return the indexes searched for a run, or for the runs that it fuses, if the recorded paths still exist.

    Copies of one index count once.
    """
    indexes = _indexes(run)
    firsts = {fingerprint(path): path for path in reversed(indexes)}.values()
    return {path: held for path, held in indexes.items() if path in firsts}


def _indexes(run: Path) -> dict[Path, Held]:
    manifest = find_manifest(run)
    indexes: dict[Path, Held] = {}
    for path, kind in _inputs(run):
        if kind in (Kind.RUN, Kind.RETRIEVER):
            indexes |= {index: held for index, held in _indexes(path).items() if index not in indexes}
        elif kind in _INDEXES and path not in indexes:
            lucene = manifest is not None and manifest.options.get("engine") == "lucene"
            indexes[path] = index_parts(path, lucene)
    return indexes


def sides(runs: Mapping[str, Path]) -> tuple[str, str] | None:
    """Return the only run of a dense index and the only run of a lexical index; None without exactly one of each."""
    of: dict[str, list[str]] = {}
    for name, path in runs.items():
        of.setdefault(system_of(path).kind, []).append(name)
    dense, lexical = of.get(Kind.DENSE_INDEX, []), of.get(Kind.LEXICAL_INDEX, [])
    return (dense[0], lexical[0]) if len(dense) == len(lexical) == 1 else None


def dense_side(runs: Mapping[str, Path]) -> int | None:
    """Return the number of the run of a dense index among two, of which the other is of a lexical index; else None."""
    names = sides(runs) if len(runs) == 2 else None
    return None if names is None else list(runs).index(names[0])


@dataclass(frozen=True)
class System:
    """The index and encoder that a run was searched with.

    Attributes:
        kind: `lexical index`, `dense index`, `several runs` for a fused run, or `unknown origin` without a manifest.
        index: fingerprint of the index; of shards, of the first.
        encoder: fingerprint of the encoder of a dense index, if the index still exists.
    """

    kind: str
    index: str | None = None
    encoder: str | None = None

    def difference(self, other: System) -> str | None:
        """Return the difference of `other` in words, for messages; None if both have one kind, and one encoder."""
        if self.kind != other.kind:
            return f"a run of {self._phrase}, not of {other._phrase}"
        if self.encoder and other.encoder and self.encoder != other.encoder:
            return "a run of a dense index of another encoder"
        return None

    @property
    def is_fused(self) -> bool:
        """Return whether the run is of a retriever, or fused from other runs."""
        return self.kind == _SEVERAL

    @property
    def _phrase(self) -> str:
        return self.kind if self.kind in (_SEVERAL, _UNKNOWN) else Kind(self.kind).phrase


def system_of(run: Path) -> System:
    """Return the index and encoder of a run, from manifests; the kind is known without the index."""
    manifest = find_manifest(run)
    recorded = list(manifest.inputs.values()) if manifest is not None else []
    if any(source["kind"] in (Kind.RUN, Kind.RETRIEVER) for source in recorded):
        return System(_SEVERAL)
    indexes = [source for source in recorded if source["kind"] in _INDEXES]
    kinds = {source["kind"] for source in indexes}
    if len(kinds) != 1:
        return System(_UNKNOWN)
    encoder = None
    if kinds == {Kind.DENSE_INDEX}:
        there = (find_manifest(path) for path, kind in _inputs(run) if kind == Kind.DENSE_INDEX)
        encoder = next((index.counts.get("encoder") for index in there if index is not None), None)
    return System(str(kinds.pop()), indexes[0]["fingerprint"], encoder if isinstance(encoder, str) else None)


def _from_runs(path: Path) -> bool:
    return any(kind == Kind.RUN for _, kind in _inputs(path))


def index_parts(index: Path, lucene: bool = False) -> Held:
    """Return the parts of an index.

    Args:
        index: a lexical or dense index.
        lucene: the lexical index is searched with Lucene, not with the impact matrix.

    Raises:
        InputError: not an index.
    """
    manifest = read_manifest(index)
    if manifest.kind not in _INDEXES:
        raise manifest.other_kind(index, "an index is needed here")
    parts = sizes(index)
    needed = _LUCENE_READS if lucene else _READ[manifest.kind]
    documents = manifest.counts.get("documents", manifest.counts.get("vectors", 0))
    return Held(index, parts, [name for name in parts if name in needed], documents)


def refuse_other_index(run: Path, index: Path) -> None:
    """Refuse an index in which a run was not searched; a run without recorded indexes is not checked.

    Raises:
        InputError: names the run and the index.
    """
    made = find_manifest(run)
    searched = {
        recorded["fingerprint"]
        for role, recorded in (made.inputs.items() if made else ())
        if recorded["kind"] in _INDEXES and role.startswith("index")
    }
    if searched and fingerprint(index) not in searched:
        problem = f"was not searched in {index}; pass its own index, or omit --index"
        raise path_error(run, problem, code="other-index", index=index)


def curves(run: Path) -> list[Path]:
    """Return the encoders used for a run that have a learning curve."""
    encoders = [path for index in indexes_of(run) for path, kind in _inputs(index) if kind == Kind.ENCODER]
    return [path for path in dict.fromkeys(encoders) if (path / layout.CURVE).is_file()]


def curve_owners(runs: Mapping[str, Path]) -> dict[Path, str]:
    """Return encoder with a learning curve -> the first run searched with it; runs fused from others come last."""
    owners: dict[Path, str] = {}
    for name, path in sorted(runs.items(), key=lambda item: _from_runs(item[1])):
        for folder in curves(path):
            owners.setdefault(folder.resolve(), name)
    return owners


def language(run: Path) -> str | None:
    """Return the language of the lexical index of a run, if there is one."""
    for index in indexes_of(run):
        manifest = read_manifest(index)
        if manifest.kind == Kind.LEXICAL_INDEX:
            return str(manifest.options["language"])
    return None


def sources_of_run(run: Path) -> Iterator[tuple[Path, Path, Manifest]]:
    """Yield run, artifact and its manifest for the indexes, encoders, examples and weights that a run was made of.

    The run is the one that was made of the artifact: the given run, or one that it was fused or concatenated from.
    Artifacts that are gone, damaged, or have changed since then are left out with all that they were made of, and so is
    what a training only read: its validation, and the index or teacher of its negatives.
    """
    waiting, seen = [(run, run)], set()
    while waiting:
        owner, path = waiting.pop()
        if (owner, path) in seen:
            continue
        seen.add((owner, path))
        try:
            manifest = find_manifest(path)
            sources = list(_unchanged(manifest)) if manifest is not None else []
        except InputError:
            continue
        if manifest is None:
            continue
        if manifest.kind != Kind.RUN:
            yield owner, path, manifest
        waiting += [(source if kind == Kind.RUN else owner, source) for source, kind in sources]


def _unchanged(manifest: Manifest) -> Iterator[tuple[Path, str]]:
    """Yield path and kind of the inputs that became a part of an artifact and are still what was recorded."""
    for role, recorded in manifest.inputs.items():
        follow = recorded["kind"] in _PARTS_OF.get(manifest.kind, ()) and not role.startswith("dev")
        source = manifest.input_path(role) if follow else None
        if source is not None and source.exists() and fingerprint(source) == recorded["fingerprint"]:
            yield source, recorded["kind"]


def _inputs(path: Path) -> Iterator[tuple[Path, str]]:
    """Yield path and kind of the inputs of an artifact that still exist and have the recorded kind."""
    manifest = find_manifest(path)
    for role, recorded in manifest.inputs.items() if manifest else ():
        source = manifest.input_path(role) if manifest else None
        if source is None:
            continue
        try:
            there = find_manifest(source)
        except InputError:
            continue
        if there is not None and there.kind == recorded["kind"]:
            yield source, recorded["kind"]


# ------------------------------------------------------------------------------------------- queries and corpus of runs


@dataclass(frozen=True)
class RecordedFile:
    """A file behind a run, with the fingerprint that the run records."""

    path: Path
    fingerprint: str


def queries_of(run: Path) -> RecordedFile | None:
    """Return the queries that a run was searched with; None if they are not recorded, or were moved or changed."""
    made = find_manifest(run)
    if made is None:
        return None
    if made.stage == "fuse":
        sources = (queries_of(path) for path in _existing(made, "run "))
        return next((source for source in sources if source is not None), None)
    return _root(made)


def _root(made: Manifest) -> RecordedFile | None:
    """Follow the recorded queries to the file before any attack or encoding."""
    path = made.input_path("queries")
    if path is None:
        return None
    recorded = made.inputs["queries"]["fingerprint"]
    if not has_content(path, recorded):
        return None
    own = find_manifest(path)
    return _root(own) if own is not None and own.stage in _OF_QUERIES and own.inputs else RecordedFile(path, recorded)


def texts_of(run: Path) -> Path | None:
    """Return the file with the texts of the queries of a run, attacked or not; None if not recorded or changed."""
    made = find_manifest(run)
    if made is None:
        return None
    if made.stage == "fuse":
        return next((texts for path in _existing(made, "run ") if (texts := texts_of(path)) is not None), None)
    while made is not None and (path := made.input_path("queries")) is not None:
        if not has_content(path, made.inputs["queries"]["fingerprint"]):
            return None
        if path.is_file():
            return path
        made = find_manifest(path)  # a folder of query vectors
    return None


def searched_indexes(runs: Iterable[Path]) -> list[Path]:
    """Return the index of each run, in order; empty unless every run is of one index, no two of the same one.

    Indexes that are gone or have changed since then count as unknown.
    """
    indexes = []
    for run in runs:
        made = find_manifest(run)
        paths = _existing(made, "index") if made is not None else []
        kinds = {recorded["kind"] for role, recorded in made.inputs.items() if role.startswith("index")} if made else ()
        if len(paths) != 1 or not set(kinds) <= set(_INDEXES):
            return []
        indexes += paths
    return indexes if len({path.resolve() for path in indexes}) == len(indexes) else []


def corpus_of(run: Path, of_texts: bool = False) -> RecordedFile | None:
    """Return the corpus of the index behind a run; None if it is not recorded or gone, or shards have several.

    The corpus of a run of documents, whose passages were searched, is known for its texts only (`of_texts`): the same
    documents may be in another collection as a whole.
    """
    made = find_manifest(run)
    by_document = made is not None and made.kind == Kind.RUN and {"max_per", "group"} & made.options.keys()
    if by_document and not of_texts:
        return None
    if made is not None and (corpus := made.input_path("corpus")) is not None:  # of a reranked run
        return RecordedFile(corpus, made.inputs["corpus"]["fingerprint"])
    for path in _existing(made, "run ") if made is not None else ():
        if (source := corpus_of(path, of_texts)) is not None:
            return source
    corpora = []
    for path in _existing(made, "index") if made is not None else ():
        index = find_manifest(path)
        if index is not None and index.kind == Kind.RETRIEVER and (source := corpus_of(path, of_texts)) is not None:
            corpora.append(source)
        elif index is not None and (corpus := index.input_path("corpus")) is not None:
            corpora.append(RecordedFile(corpus, index.inputs["corpus"]["fingerprint"]))
    one = len({source.fingerprint for source in corpora}) == 1  # shards may have one corpus each
    return corpora[0] if one else None


def _existing(made: Manifest, role: str) -> list[Path]:
    """Return the inputs whose role begins so, where they are still what was recorded."""
    paths = []
    for name, recorded in made.inputs.items():
        path = made.input_path(name)
        if name.startswith(role) and path is not None and has_content(path, recorded["fingerprint"]):
            paths.append(path)
    return paths


def passage_length(file: Path) -> int | None:
    """Return the words of a passage of the collection to which a corpus, queries or qrels belong.

    Returns:
        None for whole documents, and for files of no collection.
    """
    manifest = find_manifest(file)
    words = manifest.options.get("split_passages") if manifest is not None else None
    return None if words is None else int(words)


def pseudo_queries(file: Path | None) -> str | None:
    """Return the kind of the pseudo-queries to which queries or qrels belong; None for real queries.

    Args:
        file: a file of a collection, or any other queries or qrels.
    """
    manifest = find_manifest(file) if file is not None else None
    kind = manifest.options.get("pseudo_queries") if manifest is not None else None
    return None if kind is None else str(kind)
