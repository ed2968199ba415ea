"""`perturb`: the queries of a split become harder ones."""

from __future__ import annotations

from collections.abc import Set
from functools import cache, partial
from pathlib import Path
from typing import Any, get_args

import polars as pl

from hybrid_cli import artifacts, console
from hybrid_cli.artifacts import Kind
from hybrid_cli.collections import collection as collections
from hybrid_cli.config import Attack, Perturbation
from hybrid_cli.errors import InputError
from hybrid_cli.evaluation.perturbations import wordnet as wordnets
from hybrid_cli.evaluation.perturbations.adversary import Attacked, draw, replace_matches
from hybrid_cli.lexical.analysis import Analyzer

_DOCUMENTS_AT_ONCE = 1024


def perturb(
    collection: Path,
    *,
    output: Path,
    attack: Attack,
    split: str | None = None,
    wordnet: Path | None = None,
    seed: int = Perturbation.seed,
    overwrite: bool = False,
) -> Path:
    """Attack the queries of `split` and write them: ids, answers and order stay.

    Args:
        collection: queries, corpus and judgements; a document of grade 1 or above is relevant.
        attack: `synonym-adversary`, as `adversary.replace_matches` has it, terms being those of BM25.
        wordnet: folder or zip file, if not where nltk or Debian puts it.

    Raises:
        InputError: no such attack, split or WordNet.
        HybridError: there is no WordNet on this machine.
    """
    if attack not in get_args(Attack):
        raise InputError(f"--attack {attack}: is unknown; there are {', '.join(get_args(Attack))}")
    inputs = {
        "queries": collections.queries_path(collection, split),
        "qrels": collections.qrels_path(collection, split),
        "corpus": collections.corpus_path(collection),
        "wordnet": wordnets.find(wordnet),
    }
    options = {"attack": attack, "seed": seed}
    claim = artifacts.claim(output, Kind.QUERIES, "perturb", inputs=inputs, options=options, overwrite=overwrite)
    if claim.up_to_date:
        return output
    queries, qrels = collections.read_queries(inputs["queries"]), collections.read_qrels(inputs["qrels"])
    analyzer = Analyzer()
    relevant = _relevant_terms(qrels.join(queries, on="qid", how="semi"), inputs["corpus"], analyzer)
    attacked = _attacked(queries, relevant, analyzer, inputs["wordnet"], attack, seed)
    counts = _counts(queries, attacked, unjudged=len(queries) - len(relevant))
    claim.write(
        [queries.with_columns(text=pl.Series([each.text for each in attacked], dtype=pl.String)).to_arrow()], **counts
    )
    _tell(output, counts)
    return output


def _relevant_terms(qrels: pl.DataFrame, corpus: Path, analyzer: Analyzer) -> dict[str, set[str]]:
    """For each query, the terms of all its relevant documents together; queries without any are left out."""
    pairs = qrels.filter(pl.col("relevance") >= 1)
    documents = collections.texts(corpus, pairs["docid"])
    terms: dict[str, set[str]] = {}
    with console.progress("read the relevant", len(documents), "documents") as advance:
        for some in documents.iter_slices(_DOCUMENTS_AT_ONCE):
            words = analyzer.analyse([f"{title}\n{text}" for _, title, text in some.rows()])
            terms |= zip(some["docid"], map(set, words), strict=True)
            advance(len(some))
    found: dict[str, set[str]] = {}
    for qid, docid in pairs.select("qid", "docid").iter_rows():
        if docid in terms:
            found.setdefault(qid, set()).update(terms[docid])
    return found


def _attacked(
    queries: pl.DataFrame, relevant: dict[str, set[str]], analyzer: Analyzer, wordnet: Path, attack: Attack, seed: int
) -> list[Attacked]:
    synonyms = cache(wordnets.WordNet(wordnet).synonyms)

    @cache
    def terms(words: str) -> Set[str]:
        return frozenset(analyzer.analyse([words])[0])

    attacked = []
    with console.progress("perturb", len(queries), "queries") as advance:
        for qid, text in queries.select("qid", "text").iter_rows():
            number = partial(draw, seed, attack, qid)
            attacked.append(replace_matches(text, relevant.get(qid, frozenset()), terms, synonyms, number))
            advance(1)
    return attacked


def _counts(queries: pl.DataFrame, attacked: list[Attacked], unjudged: int) -> dict[str, Any]:
    changed = sum(each.text != text for each, text in zip(attacked, queries["text"], strict=True))
    matched, replaced = sum(each.matched for each in attacked), sum(each.replaced for each in attacked)
    return {
        "queries": len(queries),
        "changed": changed,
        "unchanged_rate": 1 - changed / max(len(queries), 1),
        "without_relevant": unjudged,
        "matched": matched,
        "replaced": replaced,
        "without_synonym": matched - replaced,
    }


def _tell(output: Path, counts: dict[str, Any]) -> None:
    console.note(
        f"perturb: {output}: {counts['queries']:,} queries, {counts['changed']:,} changed "
        f"({counts['unchanged_rate']:.1%} unchanged, {counts['without_relevant']:,} without a relevant document); "
        f"{counts['matched']:,} words stand in a relevant document, {counts['replaced']:,} replaced, "
        f"{counts['without_synonym']:,} without a synonym"
    )
