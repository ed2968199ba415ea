"""What artifacts were made of, found through manifests: indexes, encoders, queries and corpus of a run."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hybrid_cli.artifacts.inputs import Recorded, recorded_input
from hybrid_cli.artifacts.manifest import Manifest, find_manifest, read_manifest
from hybrid_cli.errors import InputError, path_error
from hybrid_cli.lexical.options import analysis_of
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
    """Return the indexes searched for a run, or for the runs that it fuses, if they are still what was searched.

    Copies of one index count once.
    """
    first: dict[str, Held] = {}
    for content, held in _searched(run):
        first.setdefault(content, held)
    return {held.index: held for held in first.values()}


def _searched(run: Path) -> Iterator[tuple[str, Held]]:
    made = find_manifest(run)
    for source in sources(made, kinds=(*_INDEXES, Kind.RUN, Kind.RETRIEVER)).values():
        if source.kind in _INDEXES:
            lucene = made is not None and made.options.get("engine") == "lucene"
            yield source.fingerprint, index_parts(source.path, lucene)
        else:
            yield from _searched(source.path)


def sides(runs: Mapping[str, Path]) -> tuple[str, str] | None:
    """Return the only run of a dense index and the only run of a lexical index; None without exactly one of each."""
    of: dict[str, list[str]] = {}
    for name, path in runs.items():
        of.setdefault(system_of(path).kind, []).append(name)
    dense, lexical = of.get(Kind.DENSE_INDEX, []), of.get(Kind.LEXICAL_INDEX, [])
    return (dense[0], lexical[0]) if len(dense) == len(lexical) == 1 else None


@dataclass(frozen=True)
class System:
    """The index and encoder that a run was searched with.

    Attributes:
        kind: `lexical index`, `dense index`, `several runs` for a fused run, or `unknown origin` without a manifest.
        index: fingerprint of the index; of shards, of the first.
        encoder: fingerprint of the encoder of the index, if the index still exists; None for BM25.
    """

    kind: str
    index: str | None = None
    encoder: str | None = None

    def difference(self, other: System) -> str | None:
        """Return the difference of `other` in words, for messages; None if both have one kind, and one encoder."""
        if self.kind != other.kind:
            return f"a run of {self._phrase}, not of {other._phrase}"
        if self.encoder and other.encoder and self.encoder != other.encoder:
            return "a run of an index of another encoder"
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
    found = sources(manifest, kinds=_INDEXES).values()
    encoder = next((read_manifest(source.path).counts.get("encoder") for source in found), None)
    return System(str(kinds.pop()), indexes[0]["fingerprint"], encoder if isinstance(encoder, str) else None)


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
    encoders = [
        source.path
        for index in indexes_of(run)
        for source in sources(find_manifest(index), kinds=(Kind.ENCODER,)).values()
    ]
    return [path for path in dict.fromkeys(encoders) if (path / layout.CURVE).is_file()]


def curve_owners(runs: Mapping[str, Path]) -> dict[Path, str]:
    """Return encoder with a learning curve -> the first run searched with it; runs fused from others come last."""
    owners: dict[Path, str] = {}
    for name, path in sorted(runs.items(), key=lambda item: system_of(item[1]).is_fused):
        for folder in curves(path):
            owners.setdefault(folder.resolve(), name)
    return owners


def language(run: Path) -> str | None:
    """Return the name of the analysis of the lexical index of a run, if there is one."""
    for index in indexes_of(run):
        manifest = read_manifest(index)
        if manifest.kind == Kind.LEXICAL_INDEX:
            return analysis_of(manifest.options)
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
        except InputError:
            continue
        if manifest is None:
            continue
        if manifest.kind != Kind.RUN:
            yield owner, path, manifest
        parts = sources(manifest, kinds=_PARTS_OF.get(manifest.kind, ()))
        waiting += [
            (source.path if source.kind == Kind.RUN else owner, source.path)
            for role, source in parts.items()
            if not role.startswith("dev")
        ]


def sources(made: Manifest | None, role: str = "", kinds: Collection[str] | None = None) -> dict[str, Recorded]:
    """Return role -> input of an artifact, where it is still what was recorded.

    Args:
        made: the manifest of the artifact; None for a file of another tool.
        role: beginning of the roles.
        kinds: kinds of the inputs; None for all.
    """
    recorded = {} if made is None else {name: recorded_input(made, name) for name in made.inputs}
    return {
        name: replace(source, path=source.path.absolute())
        for name, source in recorded.items()
        if source is not None
        and name.startswith(role)
        and (kinds is None or source.kind in kinds)
        and source.is_unchanged
    }


# ------------------------------------------------------------------------------------------- queries and corpus of runs


def queries_of(run: Path, attacked: bool = False) -> Recorded | None:
    """Return the queries that a run was searched with; None if they are not recorded, or were moved or changed.

    Args:
        run: the run.
        attacked: attacked texts count, not the queries that were attacked.
    """
    made = find_manifest(run)
    if made is not None and made.stage == "fuse":
        fused = (queries_of(source.path, attacked) for source in sources(made, "run ").values())
        return next(filter(None, fused), None)
    source = None
    while made is not None and (source := sources(made, "queries").get("queries")) is not None:
        own = None if attacked and source.path.is_file() else find_manifest(source.path)
        made = own if own is not None and own.stage in _OF_QUERIES and own.inputs else None
    return source


def texts_of(run: Path) -> Recorded | None:
    """Return the file with the texts of the queries of a run, attacked or not; None if not recorded or changed."""
    source = queries_of(run, attacked=True)
    return source if source is not None and source.path.is_file() else None


def searched_indexes(runs: Iterable[Path]) -> list[Path]:
    """Return the index of each run, in order; empty unless every run is of one index, no two of the same one.

    Indexes that are gone or have changed since then count as unknown.
    """
    indexes = []
    for run in runs:
        made = find_manifest(run)
        paths = [source.path for source in sources(made, "index").values()]
        kinds = {recorded["kind"] for role, recorded in made.inputs.items() if role.startswith("index")} if made else ()
        if len(paths) != 1 or not set(kinds) <= set(_INDEXES):
            return []
        indexes += paths
    return indexes if len({path.resolve() for path in indexes}) == len(indexes) else []


def corpus_of(run: Path, of_texts: bool = False) -> Recorded | None:
    """Return the corpus of the index behind a run; None if it is not recorded or gone, or shards have several.

    The corpus of a run of documents, whose passages were searched, is known for its texts only (`of_texts`): the same
    documents may be in another collection as a whole.
    """
    made = find_manifest(run)
    if made is None or (made.kind == Kind.RUN and {"max_per", "group"} & made.options.keys() and not of_texts):
        return None
    if (corpus := recorded_input(made, "corpus")) is not None:  # of a reranked run
        return corpus
    fused = (corpus_of(source.path, of_texts) for source in sources(made, "run ").values())
    if (corpus := next(filter(None, fused), None)) is not None:
        return corpus
    corpora = []
    for source in sources(made, "index").values():
        index = read_manifest(source.path)
        retriever = index.kind == Kind.RETRIEVER
        corpora.append(corpus_of(source.path, of_texts) if retriever else recorded_input(index, "corpus"))
    known = list(filter(None, corpora))
    one = len({corpus.fingerprint for corpus in known}) == 1  # shards may have one corpus each
    return known[0] if one else None


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
