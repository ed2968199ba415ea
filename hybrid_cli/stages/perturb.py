"""`perturb`: the queries of a split become harder ones."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl

from hybrid_cli import artifacts, console
from hybrid_cli.artifacts import Kind, Output
from hybrid_cli.collections import collection as collections
from hybrid_cli.config import Perturbation
from hybrid_cli.errors import InputError
from hybrid_cli.perturbations import wordnet as wordnets
from hybrid_cli.perturbations.attack import Attacked, Draw, Given, Lacking, Need, Rewrite, draw
from hybrid_cli.perturbations.attacks import ATTACKS, SETS

META = "meta.json"


@dataclass(frozen=True)
class Sources:
    """What a person names for the attacks to draw from.

    Attributes:
        wordnet: folder or zip file, if not where nltk or Debian puts it.
        synonyms: a table of synonyms in WordNet's place.
        translation: folders of the models that translate there and back.
        ready: attack -> a file of queries that somebody else has attacked.
    """

    wordnet: Path | None = None
    synonyms: Path | None = None
    translation: tuple[Path, Path] | None = None
    ready: Mapping[str, Path] = field(default_factory=dict)


def perturb(
    collection: Path,
    *,
    output: Path,
    attacks: Sequence[str],
    split: str | None = None,
    sources: Sources = Sources(),
    how: Perturbation = Perturbation(),  # noqa: B008 - frozen
    device: str = "auto",
    overwrite: bool = False,
) -> Path:
    """Attack the queries of `split` and write them: ids, answers and order stay.

    Args:
        collection: queries; where the attack needs them, also corpus and judgements.
        output: a Parquet file for one attack; a folder for several, with a file `ATTACK.parquet` for each and
            `meta.json`. Into a folder go the attacks that this machine can make; the others are named.
        attacks: of `ATTACKS` or `SETS`.

    Raises:
        InputError: no such attack, split, file or model.
        Lacking: WordNet or a translation model is needed, not named, and not on this machine.
    """
    names = _names(attacks)
    _check_named(names, sources)
    queries = collections.queries_path(collection, split)
    several = len(names) > 1 or not output.suffix
    if several and output.suffix == ".parquet":
        raise InputError(f"{output}: several attacks go into a folder; name one without .parquet")
    claims: dict[str, Output] = {}
    absent: dict[str, str] = {}
    for name in names:
        try:
            files = {"queries": queries, **_files(name, collection, split, sources)}
        except Lacking as lacking:
            if not several:
                raise Lacking(f"--attack {name}: {lacking}") from None
            absent[name] = str(lacking)
            continue
        place = output / f"{name}.parquet" if several else output
        options = _options(name, how, "ready" in files)
        claims[name] = artifacts.open_output(
            place, Kind.QUERIES, "perturb", inputs=files, options=options, overwrite=overwrite
        )
    for name, why in absent.items():
        console.warn(f"perturb: {name} is left out: {why}")
    if not claims:
        raise Lacking(f"{output}: none of the attacks can be made here")
    for name, claim in claims.items():
        if not claim.up_to_date:
            _make(claim, name, how, device)
    if several:
        _write_meta(output, claims, absent, how)
    return output


def _names(attacks: Sequence[str]) -> list[str]:
    """The attacks, each once, with those of sets in the sets' place."""
    if unknown := [name for name in attacks if name not in ATTACKS and name not in SETS]:
        raise InputError(f"--attack {', '.join(unknown)}: is unknown; there are {', '.join([*ATTACKS, *SETS])}")
    if not attacks:
        raise InputError(f"--attack: needs one of {', '.join([*ATTACKS, *SETS])}")
    return list(dict.fromkeys(each for name in attacks for each in SETS.get(name, (name,))))


def _check_named(names: Sequence[str], sources: Sources) -> None:
    """Refuse what none of the attacks reads."""
    if unknown := [name for name in sources.ready if name not in names]:
        raise InputError(f"--ready {unknown[0]}=...: is none of the attacks; they are {', '.join(names)}")
    needed = {need for name in names if name not in sources.ready for need in ATTACKS[name].needs}
    for option, value, need in (
        ("wordnet", sources.wordnet, "synonyms"),
        ("synonyms", sources.synonyms, "synonyms"),
        ("translation", sources.translation, "translation"),
    ):
        if value is not None and need not in needed:
            raise InputError(f"--{option}: means nothing to --attack {','.join(names)}")
    if sources.wordnet and sources.synonyms:
        raise InputError("--wordnet and --synonyms: name one of them")


def _files(name: str, collection: Path, split: str | None, sources: Sources) -> dict[str, Path]:
    """Role -> path of what the attack reads besides the queries."""
    if name in sources.ready:
        return {"ready": sources.ready[name]}
    places: dict[Need, Callable[[], dict[str, Path]]] = {
        "qrels": lambda: {"qrels": collections.qrels_path(collection, split)},
        "corpus": lambda: {"corpus": collections.corpus_path(collection)},
        "synonyms": lambda: _synonyms(sources),
        "translation": lambda: _models(sources),
    }
    return {role: path for need in ATTACKS[name].needs for role, path in places[need]().items()}


def _synonyms(sources: Sources) -> dict[str, Path]:
    if sources.synonyms is not None:
        return {"synonyms": sources.synonyms}
    return {"wordnet": wordnets.find(sources.wordnet)}


def _models(sources: Sources) -> dict[str, Path]:
    if sources.translation is None:
        raise Lacking(
            "needs models: --translation THERE BACK for two folders, or --ready back-translation=FILE for a file of "
            "query id and text"
        )
    return dict(zip(("there", "back"), sources.translation, strict=True))


def _options(name: str, how: Perturbation, ready: bool) -> dict[str, Any]:
    """What of `how` the attack depends on; nothing where somebody else has made it."""
    fields = () if ready else ("seed", *ATTACKS[name].settings)
    return {"attack": name, **{each: getattr(how, each) for each in fields}}


def _make(claim: Output, name: str, how: Perturbation, device: str) -> None:
    files = {role: path for role in claim.manifest.inputs if (path := claim.manifest.input_path(role))}
    queries = collections.read_queries(files["queries"])
    given = Given(queries, files, how, device)
    rewrite = _from_file(given) if "ready" in files else ATTACKS[name].begin(given)
    attacked = []
    with console.progress(name, len(queries), "queries") as advance:
        for qid, text in queries.select("qid", "text").iter_rows():
            attacked.append(rewrite(qid, text, partial(draw, how.seed, name, qid)))
            advance(1)
    counts = _counts(queries, attacked)
    texts = pl.Series([each.text for each in attacked], dtype=pl.String)
    claim.write([queries.with_columns(text=texts).to_arrow()], **counts)
    _tell(claim.path, counts)


def _from_file(given: Given) -> Rewrite:
    """The texts of a file of queries; a query that it has not, or has without a text, stays as it is."""
    path = given.files["ready"]
    texts = dict(collections.read_queries(path).select("qid", "text").iter_rows())
    if texts.keys().isdisjoint(given.queries["qid"]):
        raise InputError(f"{path}: has none of the queries; its first id is {next(iter(texts), 'missing')}")

    def rewrite(qid: str, text: str, draw: Draw) -> Attacked:
        return Attacked(texts.get(qid, "").strip() or text, {"not_in_file": int(qid not in texts)})

    return rewrite


def _counts(queries: pl.DataFrame, attacked: list[Attacked]) -> dict[str, Any]:
    changed = sum(each.text != text for each, text in zip(attacked, queries["text"], strict=True))
    own: Counter[str] = Counter()
    for each in attacked:
        own.update(each.counts)
    return {
        "queries": len(queries),
        "changed": changed,
        "unchanged_rate": 1 - changed / max(len(queries), 1),
        **own,
    }


def _tell(output: Path, counts: dict[str, Any]) -> None:
    own = [f"{number:,} {name.replace('_', ' ')}" for name, number in list(counts.items())[3:]]
    console.note(
        f"perturb: {output}: {counts['queries']:,} queries, {counts['changed']:,} changed "
        f"({counts['unchanged_rate']:.1%} unchanged)" + (f"; {', '.join(own)}" if own else "")
    )


def _write_meta(folder: Path, claims: Mapping[str, Output], absent: Mapping[str, str], how: Perturbation) -> None:
    """What the manifests of the files say, in one place, for those who read no Parquet."""
    manifests = {name: artifacts.read_manifest(claim.path, Kind.QUERIES) for name, claim in claims.items()}
    content = {
        "seed": how.seed,
        "versions": next(iter(manifests.values())).versions,
        "attacks": {
            name: {"file": f"{name}.parquet", "options": manifest.options, "inputs": manifest.inputs, **manifest.counts}
            for name, manifest in manifests.items()
        },
        "left_out": dict(absent),
    }
    scratch = folder / f".{META}.partial"
    scratch.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", "utf-8")
    os.replace(scratch, folder / META)
