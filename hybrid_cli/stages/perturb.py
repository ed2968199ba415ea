"""`perturb`: the queries of a split become harder ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl

from hybrid_cli import artifacts, config, console
from hybrid_cli.artifacts import Kind
from hybrid_cli.collections import collection as collections
from hybrid_cli.config import Perturbation
from hybrid_cli.errors import InputError
from hybrid_cli.evaluation.perturbations import wordnet as wordnets
from hybrid_cli.evaluation.perturbations.attack import Attack, Attacked, Need, draw
from hybrid_cli.evaluation.perturbations.attacks import ATTACKS


def perturb(
    collection: Path,
    *,
    output: Path,
    attack: config.Attack,
    split: str | None = None,
    wordnet: Path | None = None,
    seed: int = Perturbation.seed,
    overwrite: bool = False,
) -> Path:
    """Attack the queries of `split` and write them: ids, answers and order stay.

    Args:
        collection: queries; where the attack needs them, also corpus and judgements.
        attack: one of `ATTACKS`.
        wordnet: folder or zip file, if not where nltk or Debian puts it.

    Raises:
        InputError: no such attack, split or WordNet.
        HybridError: the attack needs WordNet, and there is none on this machine.
    """
    if attack not in ATTACKS:
        raise InputError(f"--attack {attack}: is unknown; there are {', '.join(ATTACKS)}")
    files = _files(ATTACKS[attack], collection, split, wordnet)
    if wordnet is not None and "wordnet" not in files:
        raise InputError(f"--wordnet: means nothing to --attack {attack}")
    claim = artifacts.claim(
        output,
        Kind.QUERIES,
        "perturb",
        inputs={"queries": collections.queries_path(collection, split), **files},
        options={"attack": attack, "seed": seed},
        overwrite=overwrite,
    )
    if claim.up_to_date:
        return output
    queries = collections.read_queries(collections.queries_path(collection, split))
    attacked = _attacked(queries, attack, files, seed)
    counts = _counts(queries, attacked)
    texts = pl.Series([each.text for each in attacked], dtype=pl.String)
    claim.write([queries.with_columns(text=texts).to_arrow()], **counts)
    _tell(output, counts)
    return output


def _files(attack: Attack, collection: Path, split: str | None, wordnet: Path | None) -> dict[str, Path]:
    """Where the files are that the attack needs."""
    places: dict[Need, Callable[[], Path]] = {
        "qrels": lambda: collections.qrels_path(collection, split),
        "corpus": lambda: collections.corpus_path(collection),
        "wordnet": lambda: wordnets.find(wordnet),
    }
    return {need: places[need]() for need in attack.needs}


def _attacked(queries: pl.DataFrame, attack: config.Attack, files: Mapping[str, Path], seed: int) -> list[Attacked]:
    rewrite = ATTACKS[attack].begin(queries, files)
    attacked = []
    with console.progress("perturb", len(queries), "queries") as advance:
        for qid, text in queries.select("qid", "text").iter_rows():
            attacked.append(rewrite(qid, text, partial(draw, seed, attack, qid)))
            advance(1)
    return attacked


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
