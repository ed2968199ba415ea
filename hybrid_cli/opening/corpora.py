"""The corpora of indexes: those that they record, and whether these still belong to them and to each other."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import polars as pl

from hybrid_cli import artifacts, console
from hybrid_cli.artifacts import Manifest, Recorded
from hybrid_cli.collections import collection as collections
from hybrid_cli.errors import InputError
from hybrid_cli.opening.sharded import ids_of
from hybrid_cli.storage import Kind

_REBUILD = "; build the index again with --overwrite, or pass the collection from which it was built"


def corpora_of(indexes: Iterable[Sequence[Manifest]]) -> list[Recorded]:
    """Return the corpora of indexes with the same documents: those of the index that lost fewest.

    Args:
        indexes: the manifests of each index; several for one of shards.
    """
    recorded = [_of_shards(manifests) for manifests in indexes]
    return min((each for each in recorded if each), key=lambda each: len(_lost(each)), default=[])


def _of_shards(manifests: Sequence[Manifest]) -> list[Recorded]:
    """Return the corpora that the shards of an index record, each once."""
    found = [each for manifest in manifests for each in recorded_corpora(manifest).values()]
    return list({(each.path, each.fingerprint): each for each in found}.values())


def recorded_corpora(manifest: Manifest) -> dict[str, Recorded]:
    """Return role -> corpora that an index records, several after `append`."""
    roles = [role for role in manifest.inputs if role.split()[0] in ("corpus", "texts")]
    return {role: each for role in roles if (each := artifacts.recorded_input(manifest, role)) is not None}


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
        console.warn(f"{', '.join(lost.values())}: {consequence}")


def found(corpora: Iterable[Recorded]) -> list[Path]:
    """Return the paths of the recorded corpora that are there."""
    return list(dict.fromkeys(corpus.path for corpus in corpora if corpus.path.exists()))


def warn_changed(manifests: Iterable[Manifest]) -> None:
    """Warn that indexes are older than their corpora; hits need no texts, so missing corpora do not count."""
    recorded = [corpus for manifest in manifests for corpus in recorded_corpora(manifest).values()]
    warn_lost((corpus for corpus in recorded if corpus.path.exists()), "hits are of its former documents" + _REBUILD)


def warn_other_corpus(collection: Path, manifests: Iterable[Manifest]) -> None:
    """Warn that titles and texts of hits come from another corpus than that of the indexes.

    An index of a part of the collection belongs to it, and so may one of several corpora (`append`): these are compared
    only where the collection contains them.
    """
    corpus = collections.corpus_path(collection)
    each = [recorded_corpora(manifest) for manifest in manifests]
    recorded = {source.fingerprint: source for roles in each for source in roles.values()}
    if any(artifacts.has_content(corpus, fingerprint) for fingerprint in recorded):
        return
    if inside := [one for one in recorded.values() if one.path.resolve().is_relative_to(corpus.resolve())]:
        warn_lost(inside, "scores and texts are of different documents" + _REBUILD)
    elif len(recorded) == 1 and all("corpus" in roles for roles in each if roles):
        (source,) = recorded.values()
        console.warn(
            f"{corpus} is not the corpus of the index, {source.path}: texts may be missing or of other documents; "
            "pass the collection from which the index was built"
        )


def refuse_other_corpora(indexes: Mapping[Path, Sequence[Manifest]]) -> None:
    """Refuse to search indexes of different documents together; an index without a recorded corpus is not checked.

    Indexes of one corpus each are compared by its fingerprint. Where an index may have several, after `append` or
    `delete` or as shards, ids are compared too.

    Args:
        indexes: the manifests of each index, several for one of shards.

    Raises:
        InputError: names both indexes, and how they differ.
    """
    known = [(index, _of_shards(shards), _only_corpus(shards)) for index, shards in indexes.items()]
    known = [each for each in known if each[1]]
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
    found = {each.fingerprint: each for shard in shards for each in recorded_corpora(shard).values()}
    return next(iter(found.values())) if len(found) == 1 and all("corpus" in shard.inputs for shard in shards) else None


def _refuse_other_documents(index: Path, first: Path) -> None:
    """Refuse an index with other ids than another one."""
    ids, others = ids_of(index), ids_of(first)
    sides = {"more": ids.filter(~ids.is_in(others.implode())), "fewer": others.filter(~others.is_in(ids.implode()))}
    if found := [f"{len(side):,} {name}: {side[0]}, ..." for name, side in sides.items() if len(side)]:
        raise InputError(
            f"{index}: has other documents than {first} ({'; '.join(found)}); append and delete the same documents in "
            "both indexes",
            code="other-corpus",
            path=index,
            other=first,
            more=len(sides["more"]),
            fewer=len(sides["fewer"]),
        )


def _refuse_updates_of_one(
    index: Path, corpora: Sequence[Recorded], other: Path, corpora_of_other: Sequence[Recorded]
) -> None:
    """Refuse indexes of the same corpora but for some, appended to the first only, that replaced documents."""
    known = {corpus.fingerprint for corpus in corpora_of_other}
    added = [corpus for corpus in corpora if corpus.fingerprint not in known]
    if not added or len(added) + len(known) > len({corpus.fingerprint for corpus in corpora}):
        return
    ids = ids_of(index)
    for corpus in added:
        if corpus.is_unchanged and len(replaced := ids.filter(ids.is_in(collections.docids(corpus.path).implode()))):
            raise InputError(
                f"{other}: lacks {console.counted(document=len(replaced))} of {corpus.path} that {index} has "
                f"({replaced[0]}, ...); append them with `hybrid append --replace`",
                code="other-corpus",
                path=other,
                other=index,
                corpus=corpus.path,
                id=replaced[0],
                count=len(replaced),
            )


def texts(corpora: Iterable[Path], docids: pl.Series) -> pl.DataFrame:
    """Return docid, title and text of documents; a later corpus replaces the documents of earlier ones."""
    found = pl.concat([collections.texts(corpus, docids) for corpus in corpora])
    return found.unique("docid", keep="last", maintain_order=True)


def check_corpus(index: Path, corpus: Path) -> None:
    """Check that a lexical index was built from a corpus.

    Raises:
        InputError: it was built from other documents.
    """
    made_from = artifacts.read_manifest(index, Kind.LEXICAL_INDEX).inputs
    known = {source["fingerprint"] for source in made_from.values()}
    if "index" in made_from:  # of several corpora
        same = set(ids_of(index)) == set(collections.docids(corpus))
    else:
        same = not known or artifacts.fingerprint(corpus) in known
    if not same:
        raise InputError(
            f"{index}: built from another corpus than {corpus}; build an index of this corpus with `hybrid index-bm25`",
            code="other-corpus",
            path=index,
            corpus=corpus,
        )
