"""`perturb`: perturb the queries of a split, with one file per attack."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl

from hybrid_cli import artifacts, console
from hybrid_cli.artifacts import Kind, Output, disk, layout
from hybrid_cli.collections import collection
from hybrid_cli.draws import draw
from hybrid_cli.errors import InputError
from hybrid_cli.perturbations import wordnet
from hybrid_cli.perturbations.attack import Attacked, Draw, Inputs, MissingResource, Need, Rewrite
from hybrid_cli.perturbations.attacks import ATTACKS, SETS
from hybrid_cli.settings import Perturb, stage
from hybrid_cli.settings.perturb import Attack as AttackName
from hybrid_cli.settings.perturb import AttackOrSet


@stage(Perturb)
def perturb(settings: Perturb) -> Path:
    """Perturb the queries of a split; ids, answers and order are kept.

    Returns:
        Path of the queries (Parquet); for several attacks, of a folder with a file `ATTACK.parquet` for each, and
        `meta.json`. Attacks whose resources are missing are skipped.

    Raises:
        InputError: options, split, files or models cannot be used.
        MissingResource: WordNet or a translation model is needed, no path is given, and it is not installed.
    """
    names = _names(settings)
    queries = collection.queries_path(settings.collection, settings.split)
    several = len(names) > 1 or not settings.output.suffix
    if several and settings.output.suffix == ".parquet":
        raise InputError(f"{settings.output}: several attacks need a folder; pass --output without .parquet")
    outputs: dict[AttackName, Output] = {}
    skipped: dict[str, str] = {}
    for name in names:
        try:
            files = {"queries": queries, **_files(name, settings)}
        except MissingResource as missing:
            if not several:
                raise MissingResource(f"--attack {name}: {missing}") from None
            skipped[name] = str(missing)
            continue
        outputs[name] = artifacts.open_output(
            settings.output / f"{name}.parquet" if several else settings.output,
            Kind.QUERIES,
            "perturb",
            inputs=files,
            options=_options(name, settings),
            overwrite=settings.overwrite,
        )
    for skip, why in skipped.items():
        console.warn(f"perturb: {skip} is skipped: {why}")
    if not outputs:
        raise MissingResource(f"{settings.output}: the resources of all attacks are missing")
    for name, output in outputs.items():
        if not output.up_to_date:
            _attack(output, name, settings)
    if several:
        _write_meta(settings, outputs, skipped)
    return settings.output


def _names(settings: Perturb) -> list[AttackName]:
    """Return the attacks, with sets expanded; refuse options of attacks that are not computed."""
    names = list(dict.fromkeys(each for name in settings.attacks for each in _members(name)))
    if unknown := [name for name in settings.attacked_queries if name not in names]:
        raise InputError(f"--attacked-queries {unknown[0]}=...: not among the attacks ({', '.join(names)})")
    computed = tuple(name for name in names if name not in settings.attacked_queries)
    settings.check_facts("the attack is read from --attacked-queries", attacks=computed)
    return names


def _members(name: AttackOrSet) -> tuple[AttackName, ...]:
    return SETS[name] if name == "lite" or name == "all" else (name,)


def _files(name: AttackName, settings: Perturb) -> dict[str, Path]:
    """Return role -> path of the files that the attack reads besides the queries."""
    if name in settings.attacked_queries:
        return {"attacked": settings.attacked_queries[name]}
    paths: dict[Need, Callable[[], dict[str, Path]]] = {
        "qrels": lambda: {"qrels": collection.qrels_path(settings.collection, settings.split)},
        "corpus": lambda: {"corpus": collection.corpus_path(settings.collection)},
        "synonyms": lambda: _synonyms(settings),
        "translation": lambda: _models(settings),
    }
    return {role: path for need in ATTACKS[name].needs for role, path in paths[need]().items()}


def _synonyms(settings: Perturb) -> dict[str, Path]:
    if settings.synonyms is not None:
        return {"synonyms": settings.synonyms}
    return {"wordnet": wordnet.find(settings.wordnet)}


def _models(settings: Perturb) -> dict[str, Path]:
    if settings.translation is None:
        raise MissingResource(
            "no translation models; pass --translation THERE BACK with two folders, or "
            "--attacked-queries back-translation=FILE"
        )
    return dict(zip(("there", "back"), settings.translation, strict=True))


def _options(name: str, settings: Perturb) -> dict[str, Any]:
    """Return the options that affect the result of one attack; none if the result is read from a file."""
    if name in settings.attacked_queries:
        return {"attack": name}
    recorded = settings.recorded()
    return {"attack": name, **{each: recorded[each] for each in recorded if settings.applies(each, attacks=(name,))}}


def _attack(output: Output, name: AttackName, settings: Perturb) -> None:
    files = _files(name, settings)
    queries = collection.read_queries(collection.queries_path(settings.collection, settings.split))
    inputs = Inputs(queries, files, settings)
    rewrite = _from_file(inputs) if "attacked" in files else ATTACKS[name].start(inputs)
    attacked = []
    with console.progress(name, len(queries), "queries") as advance:
        for qid, text in queries.select("qid", "text").iter_rows():
            attacked.append(rewrite(qid, text, partial(draw, settings.seed, name, qid)))
            advance(1)
    counts = _counts(queries, attacked)
    texts = pl.Series([each.text for each in attacked], dtype=pl.String)
    output.write([queries.with_columns(text=texts).to_arrow()], **counts)
    _note(output.path, counts)


def _from_file(inputs: Inputs) -> Rewrite:
    """Return the texts of a file; queries without a text in the file remain unchanged."""
    path = inputs.files["attacked"]
    texts = dict(collection.read_queries(path).select("qid", "text").iter_rows())
    if texts.keys().isdisjoint(inputs.queries["qid"]):
        raise InputError(f"{path}: contains none of the queries; its first id is {next(iter(texts), 'missing')}")

    def rewrite(qid: str, text: str, draw: Draw) -> Attacked:
        return Attacked(texts.get(qid, "").strip() or text, {"not_in_file": int(qid not in texts)})

    return rewrite


def _counts(queries: pl.DataFrame, attacked: Sequence[Attacked]) -> dict[str, Any]:
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


def _note(path: Path, counts: dict[str, Any]) -> None:
    own = [f"{number:,} {name.replace('_', ' ')}" for name, number in list(counts.items())[3:]]
    console.note(
        f"perturb: {path}: {counts['queries']:,} queries, {counts['changed']:,} changed "
        f"({counts['unchanged_rate']:.1%} unchanged)" + (f"; {', '.join(own)}" if own else "")
    )


def _write_meta(settings: Perturb, outputs: Mapping[AttackName, Output], skipped: Mapping[str, str]) -> None:
    """Write the contents of the manifests to one JSON file, for tools that do not read Parquet."""
    manifests = {name: artifacts.read_manifest(output.path, Kind.QUERIES) for name, output in outputs.items()}
    content = {
        "seed": settings.seed,
        "versions": next(iter(manifests.values())).versions,
        "attacks": {
            name: {"file": f"{name}.parquet", "options": manifest.options, "inputs": manifest.inputs, **manifest.counts}
            for name, manifest in manifests.items()
        },
        "skipped": dict(skipped),
    }
    with artifacts.replacing(settings.output / layout.ATTACKS) as scratch:
        disk.write_text(scratch, json.dumps(content, indent=2, ensure_ascii=False) + "\n")
