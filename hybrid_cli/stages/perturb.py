"""`perturb`: perturb the queries of a split, with one file per attack."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl

from hybrid_cli import artifacts, console
from hybrid_cli.artifacts import Manifest
from hybrid_cli.collections import collection as collections
from hybrid_cli.commands import Perturb
from hybrid_cli.commands.data import facts_of
from hybrid_cli.draws import draw
from hybrid_cli.errors import InputError, PackageError, option_error, path_error
from hybrid_cli.perturbations import synonyms, wordnet
from hybrid_cli.perturbations.attacks import ATTACKS, SETS, Attacked, Draw, Inputs, MissingResource, Rewrite
from hybrid_cli.stages import stage
from hybrid_cli.storage import Kind, disk, layout


@stage(Perturb)
def perturb(settings: Perturb) -> Path:
    """Perturb the queries of a split; ids, answers and order are kept.

    Returns:
        Path of the queries (Parquet); for several attacks, of a folder with a file `ATTACK.parquet` for each, and
        `meta.json`. Attacks whose resources are missing are skipped.

    Raises:
        InputError: options, split, files or models cannot be used.
        MissingResource: a translation model is needed, and no path is given, or the extra `dense` is not installed.
    """
    names = _names(settings)
    queries = collections.queries_path(settings.collection, settings.split)
    several = len(names) > 1 or not settings.output.suffix
    if several and settings.output.suffix == ".parquet":
        problem = f"{settings.output}: several attacks need a folder; pass --output without .parquet"
        raise InputError(problem, code="conflicting-options", option="output")
    inputs: dict[str, dict[str, Path]] = {}
    skipped: dict[str, str] = {}
    for name in names:
        try:
            inputs[name] = {"queries": queries, **_files(name, settings)}
        except (MissingResource, PackageError) as missing:
            if not several:
                raise MissingResource(f"--attack {name}: {missing}", code="missing-resource", attack=name) from None
            skipped[name] = str(missing)
            console.warn(f"perturb: {name} is skipped: {missing}", code="missing-resource", attack=name)
    if not inputs:
        problem = f"{settings.output}: the resources of all attacks are missing"
        raise MissingResource(problem, code="missing-resource", path=settings.output)
    if any("groups" in files for files in inputs.values()):
        note = "perturb: WordNet is not installed; synonyms come from hybrid's small table (--wordnet, --synonyms)"
        console.note(note, code="own-synonyms", path=synonyms.OWN)
    if several:
        return _write_folder(settings, inputs, skipped)
    ((name, files),) = inputs.items()
    output = artifacts.output_of(settings, Kind.QUERIES, files, _options(name, settings))
    if not output.up_to_date:
        table, counts = _attack(name, files, settings)
        output.write([table.to_arrow()], **counts)
        _note(str(output.path), counts)
    return output.path


def _write_folder(settings: Perturb, inputs: Mapping[str, Mapping[str, Path]], skipped: Mapping[str, str]) -> Path:
    """Write a file for each attack, and `meta.json`; an interrupted call continues with the next attack."""
    files = {
        role if role != "attacked" else f"attacked {name}": path
        for name in inputs
        for role, path in inputs[name].items()
    }
    options = {"attacks": list(inputs), **settings.recorded()}
    output = artifacts.output_of(settings, Kind.ATTACKS, files, options)
    if output.up_to_date:
        return output.path
    with output.folder() as (work, counts):
        manifests = {}
        for name, own in inputs.items():
            path = work / f"{name}.parquet"
            if not path.exists():
                table, counted = _attack(name, own, settings)
                described = artifacts.describe_inputs(own, output.target / path.name)  # relative to the folder
                fields = {"options": _options(name, settings), "inputs": described, "counts": counted}
                output.write_part(path, [table.to_arrow()], Kind.QUERIES, **fields)
                _note(f"{output.path}: {name}", counted)
            manifests[name] = artifacts.read_manifest(path, Kind.QUERIES)
        counts |= {"queries": next(iter(manifests.values())).counts["queries"]}
        disk.write_text(work / layout.ATTACKS, _meta(settings, manifests, skipped))
    return output.path


def _names(settings: Perturb) -> list[str]:
    """Return the attacks, with sets expanded; refuse options of attacks that are not computed."""
    names = list(dict.fromkeys(attack for name in settings.attacks for attack in SETS.get(name, (name,))))
    if unknown := [name for name in settings.attacked_queries if name not in names]:
        reason = f"not among the attacks ({', '.join(names)})"
        raise option_error("attacked_queries", f"{unknown[0]}=...", reason, code="unknown-choice", choices=names)
    computed = tuple(name for name in names if name not in settings.attacked_queries)
    settings.check_facts("the attack is read from --attacked-queries", **facts_of(computed))
    return names


def _files(name: str, settings: Perturb) -> dict[str, Path]:
    """Return role -> path of the files that the attack reads besides the queries."""
    if name in settings.attacked_queries:
        return {"attacked": settings.attacked_queries[name]}
    files: dict[str, Path] = {}
    for need in ATTACKS[name].needs:
        if need == "qrels":
            files["qrels"] = collections.qrels_path(settings.collection, settings.split)
        elif need == "corpus":
            files["corpus"] = collections.corpus_path(settings.collection)
        elif need == "synonyms":
            installed = wordnet.find(settings.wordnet) if settings.synonyms is None else None
            own = {"groups": synonyms.OWN} if installed is None else {"wordnet": installed}
            files |= {"synonyms": settings.synonyms} if settings.synonyms else own
        elif settings.translation is not None:
            files |= zip(("there", "back"), settings.translation, strict=True)
        else:
            problem = "pass --translation THERE BACK with two folders, or --attacked-queries back-translation=FILE"
            raise MissingResource(problem, code="missing-resource")
    return files


def _options(name: str, settings: Perturb) -> dict[str, Any]:
    """Return the options that affect the result of one attack; none if the result is read from a file."""
    if name in settings.attacked_queries:
        return {"attack": name}
    applying = facts_of([name])
    return {"attack": name} | {
        option: value for option, value in settings.recorded().items() if settings.applies(option, **applying)
    }


def _attack(name: str, files: Mapping[str, Path], settings: Perturb) -> tuple[pl.DataFrame, dict[str, Any]]:
    """Return the perturbed queries and the counts of an attack."""
    queries = collections.read_queries(files["queries"])
    inputs = Inputs(queries, {role: path for role, path in files.items() if role != "queries"}, settings)
    rewrite = _from_file(inputs) if "attacked" in files else ATTACKS[name].start(inputs)
    attacked = []
    with console.progress(name, len(queries), "queries") as advance:
        for qid, text in queries.select("qid", "text").iter_rows():
            attacked.append(rewrite(qid, text, partial(draw, settings.seed, name, qid)))
            advance(1)
    texts = pl.Series([query.text for query in attacked], dtype=pl.String)
    return queries.with_columns(text=texts), _counts(queries, attacked)


def _from_file(inputs: Inputs) -> Rewrite:
    """Return the texts of a file; queries without a text in the file remain unchanged."""
    path = inputs.files["attacked"]
    texts = dict(collections.read_queries(path).select("qid", "text").iter_rows())
    if texts.keys().isdisjoint(inputs.queries["qid"]):
        first = next(iter(texts), None)
        raise path_error(path, f"contains none of the queries; its first id is {first}", code="other-queries", id=first)

    def rewrite(qid: str, text: str, draw: Draw) -> Attacked:
        return Attacked(texts.get(qid, "").strip() or text, {"not_in_file": int(qid not in texts)})

    return rewrite


def _counts(queries: pl.DataFrame, attacked: Sequence[Attacked]) -> dict[str, Any]:
    changed = sum(query.text != text for query, text in zip(attacked, queries["text"], strict=True))
    own = Counter[str]()
    for query in attacked:
        own.update(query.counts)  # a sum of counters would drop zeros
    unchanged_rate = 1 - changed / max(len(queries), 1)
    return {"queries": len(queries), "changed": changed, "unchanged_rate": unchanged_rate, **own}


def _note(path: str, counts: dict[str, Any]) -> None:
    own = [f"{number:,} {name.replace('_', ' ')}" for name, number in list(counts.items())[3:]]
    parts = [console.counted(query=counts["queries"]), f"{counts['changed']:,} changed", *own]
    console.note(f"perturb: {path}: {', '.join(parts)}", code="written", path=path, **counts)


def _meta(settings: Perturb, manifests: Mapping[str, Manifest], skipped: Mapping[str, str]) -> str:
    """Return the contents of the manifests as JSON, for tools that do not read Parquet."""
    content = {
        "seed": settings.seed,
        "versions": next(iter(manifests.values())).versions,
        "attacks": {
            name: {"file": f"{name}.parquet", "options": manifest.options, "inputs": manifest.inputs, **manifest.counts}
            for name, manifest in manifests.items()
        },
        "skipped": dict(skipped),
    }
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"
