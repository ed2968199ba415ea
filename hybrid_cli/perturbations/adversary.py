"""The synonym adversary (RoC 4.2.2, methods 4.8): words that a query shares with its relevant documents give way.

What BM25 finds a document by is taken away; what the query means mostly stays. Synonyms come in the manner of EDA (Wei
and Zou, 2019) from every sense and part of speech in WordNet, one word or several, each as likely as the other.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence, Set
from functools import cache
from pathlib import Path

import polars as pl

from hybrid_cli import console
from hybrid_cli.collections import collection as collections
from hybrid_cli.lexical.analysis import Analyzer
from hybrid_cli.perturbations.attack import Attacked, Draw, Given, Rewrite
from hybrid_cli.perturbations.function_words import FUNCTION_WORDS
from hybrid_cli.perturbations.synonyms import thesaurus

_DOCUMENTS_AT_ONCE = 1024

# Runs of letters, digits and underscores; an apostrophe may stand inside, but a possessive 's is not part of the word.
_WORD = re.compile(r"(?<!\w['\u2019])\b\w+(?:['\u2019](?!s\b)\w+)*", re.IGNORECASE)


def begin(given: Given) -> Rewrite:
    """The attack on the queries, terms being those of BM25; a document of grade 1 or above is relevant.

    Args:
        given: with the files `qrels`, `corpus` and `wordnet` or `synonyms`.
    """
    analyzer = Analyzer()
    qrels = collections.read_qrels(given.files["qrels"]).join(given.queries, on="qid", how="semi")
    relevant = _relevant_terms(qrels, given.files["corpus"], analyzer)
    synonyms = cache(thesaurus(given.files).synonyms)

    @cache
    def terms(words: str) -> Set[str]:
        return frozenset(analyzer.analyze([words])[0])

    def rewrite(qid: str, text: str, draw: Draw) -> Attacked:
        attacked = replace_matches(text, relevant.get(qid, frozenset()), terms, synonyms, draw)
        return Attacked(attacked.text, {"without_relevant": int(qid not in relevant), **attacked.counts})

    return rewrite


def _relevant_terms(qrels: pl.DataFrame, corpus: Path, analyzer: Analyzer) -> dict[str, set[str]]:
    """For each query, the terms of all its relevant documents together; queries without any are left out."""
    pairs = qrels.filter(pl.col("relevance") >= 1)
    documents = collections.texts(corpus, pairs["docid"])
    terms: dict[str, set[str]] = {}
    with console.progress("read the relevant", len(documents), "documents") as advance:
        for some in documents.iter_slices(_DOCUMENTS_AT_ONCE):
            words = analyzer.analyze([f"{title}\n{text}" for _, title, text in some.rows()])
            terms |= zip(some["docid"], map(set, words), strict=True)
            advance(len(some))
    found: dict[str, set[str]] = {}
    for qid, docid in pairs.select("qid", "docid").iter_rows():
        if docid in terms:
            found.setdefault(qid, set()).update(terms[docid])
    return found


def replace_matches(
    text: str,
    relevant: Set[str],
    terms: Callable[[str], Set[str]],
    synonyms: Callable[[str], Sequence[str]],
    draw: Draw,
) -> Attacked:
    """Replace each word of `text` that stands in a relevant document by a synonym that stands in none.

    A word without such a synonym stays, and so does every other character. Within a text the same word always becomes
    the same synonym. A capital is handed on.

    Args:
        relevant: the terms of all relevant documents together.
        terms: of a word, or of several. Two words are one where they share a term.
        synonyms: of a word in lower case.
        draw: a number for a word in lower case, which says which of its synonyms is taken.

    Returns:
        the text, with the number of words that stand in a relevant document, of those replaced, and of the others.
    """
    matched = replaced = 0

    def replacement(found: re.Match[str]) -> str:
        nonlocal matched, replaced
        word = found[0].lower()
        if word in FUNCTION_WORDS or terms(word).isdisjoint(relevant):
            return found[0]
        matched += 1
        fit = [synonym for synonym in synonyms(word) if _elsewhere(terms(synonym), relevant)]
        if not fit:
            return found[0]
        replaced += 1
        chosen = fit[draw(word) % len(fit)]
        return chosen[0].upper() + chosen[1:] if found[0][0].isupper() else chosen

    attacked = _WORD.sub(replacement, text)
    counts = {"matched": matched, "replaced": replaced, "without_synonym": matched - replaced}
    return Attacked(attacked, counts)


def _elsewhere(terms: Set[str], relevant: Set[str]) -> bool:
    """Whether a synonym can be searched for at all, and no part of it stands in a relevant document."""
    return bool(terms) and terms.isdisjoint(relevant)
