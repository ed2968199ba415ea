"""Attacks with synonyms: replacement and insertion of LITE, and the adversary of RoC (section 4.2.2)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from functools import cache
from pathlib import Path
from typing import Protocol

import polars as pl
import regex

from hybrid_cli import console
from hybrid_cli.collections import collection as collections
from hybrid_cli.collections.readers import text_files
from hybrid_cli.errors import path_error
from hybrid_cli.lexical.analysis import LazyAnalyzer
from hybrid_cli.perturbations.attacks import Attack, Attacked, Draw, Inputs, Rewrite
from hybrid_cli.perturbations.edits import FUNCTION_WORDS, WORD, Edit, Edits, is_stop_word, of_words, unedited_positions
from hybrid_cli.perturbations.wordnet import WordNet, base_forms

OWN = Path(__file__).with_name("synonyms.tsv")  # used where WordNet is not installed
TRIES = 7  # words to look up; if none has a synonym, the query remains unchanged
_DOCUMENTS_AT_ONCE = 1024

# Runs of letters, digits and underscores, with apostrophes inside; a possessive 's is not part of the word.
_WORD = regex.compile(r"(?<!\w['\u2019])\b\w+(?:['\u2019](?!s\b)\w+)*", regex.IGNORECASE)


# ------------------------------------------------------------------------------------------------- sources of synonyms


class Thesaurus(Protocol):
    """A source of synonyms; words may be in any case."""

    def synonyms(self, word: str) -> Sequence[str]:
        """Return other words for `word`, of one or several words each, without forms of the word itself."""

    def lemmas(self, word: str) -> Sequence[str]:
        """Return the synonyms and the base forms of the word."""


class SynonymTable:
    """A table of synonyms: a word and its synonyms, separated by tabs; a word may have several lines."""

    def __init__(self, path: Path):
        self._synonyms: dict[str, list[str]] = {}
        for _, (word, *others) in text_files.columns(path, 2, "a word and its synonyms"):
            given = (other.strip() for other in others)
            self._synonyms.setdefault(word.strip().lower(), []).extend(other for other in given if other)
        if not self._synonyms:
            raise path_error(path, "needs a word and its synonyms per line, separated by tabs", code="no-rows")

    def synonyms(self, word: str) -> Sequence[str]:
        """Return the synonyms in the order of the table."""
        return self._synonyms.get(word.lower(), [])

    lemmas = synonyms


class SynonymGroups:
    """Groups of common English words with one meaning: one group per line, its words separated by tabs."""

    def __init__(self, path: Path):
        self._groups: dict[str, list[list[str]]] = {}
        for _, group in text_files.columns(path, 2, "a group of synonyms"):
            for word in group:
                self._groups.setdefault(word, []).append(group)

    def synonyms(self, word: str) -> Sequence[str]:
        """Return the other words of all groups of the word or a base form, sorted."""
        own = {word.lower(), *base_forms(word.lower(), self._groups)}
        return [lemma for lemma in self.lemmas(word) if lemma not in own]

    def lemmas(self, word: str) -> Sequence[str]:
        """Return all words of the same groups, sorted."""
        bases = base_forms(word.lower(), self._groups)
        return sorted({lemma for base in bases for group in self._groups[base] for lemma in group})


def thesaurus(paths: Mapping[str, Path]) -> Thesaurus:
    """Open the file `synonyms`, or else `wordnet`, or else `groups`."""
    if "synonyms" in paths:
        return SynonymTable(paths["synonyms"])
    return WordNet(paths["wordnet"]) if "wordnet" in paths else SynonymGroups(paths["groups"])


def _single_words(inputs: Inputs) -> Callable[[str], Sequence[str]]:
    """Return a function from a word in lower case to its lemmas that are other single words."""
    lemmas = thesaurus(inputs.files).lemmas
    return cache(lambda word: [lemma for lemma in lemmas(word) if lemma.lower() != word and WORD.fullmatch(lemma)])


# ------------------------------------------------------------------------------------------- replacement and insertion


def replacement(inputs: Inputs) -> Edit:
    """Replace a word: draw one of all pairs of a word (other than a stop word) and a synonym.

    Words with many synonyms are drawn more often, as in TextAttack.
    """
    find = _single_words(inputs)

    def replace(words: Sequence[str], edits: Edits, draw: Draw) -> None:
        positions = [position for position in unedited_positions(words, edits) if not is_stop_word(words[position])]
        pairs = [(position, synonym) for position in positions for synonym in find(words[position].lower())]
        if pairs:
            position, synonym = pairs[draw("pair") % len(pairs)]
            edits[position] = synonym

    return replace


def insertion(inputs: Inputs) -> Edit:
    """Insert a synonym of a random word, which may be a stop word, before a random word; try up to `TRIES` words."""
    find = _single_words(inputs)

    def insert(words: Sequence[str], edits: Edits, draw: Draw) -> None:
        positions = unedited_positions(words, edits)
        if not positions:
            return
        tried = (find(words[draw(f"word {number}") % len(words)].lower()) for number in range(TRIES))
        synonyms_of_word = next((synonyms for synonyms in tried if synonyms), None)
        if synonyms_of_word:
            position = positions[draw("place") % len(positions)]
            edits[position] = f"{synonyms_of_word[draw('synonym') % len(synonyms_of_word)]} {words[position]}"

    return insert


REPLACEMENT = of_words(replacement, needs=("synonyms",))
INSERTION = of_words(insertion, needs=("synonyms",))


# ----------------------------------------------------------------------------------------------------------- adversary


def adversary(inputs: Inputs) -> Rewrite:
    """Replace the words that a query shares with its relevant documents, so that BM25 loses its matches.

    A term is a term of BM25; a document of grade 1 or above is relevant. Our choice, since RoC gives only the idea: a
    synonym is drawn as in EDA, from every sense and part of speech with equal probability.

    Args:
        inputs: inputs with the files `qrels`, `corpus`, and `synonyms`, `wordnet` or `groups`.
    """
    analyzer = LazyAnalyzer()
    qrels = collections.read_qrels(inputs.files["qrels"]).join(inputs.queries, on="qid", how="semi")
    relevant = _relevant_terms(qrels, inputs.files["corpus"], analyzer)
    synonyms = cache(thesaurus(inputs.files).synonyms)

    @cache
    def terms(words: str) -> Set[str]:
        return frozenset(analyzer.analyze([words])[0])

    def rewrite(qid: str, text: str, draw: Draw) -> Attacked:
        attacked = replace_matches(text, relevant.get(qid, frozenset()), terms, synonyms, draw)
        return Attacked(attacked.text, {"without_relevant": int(qid not in relevant), **attacked.counts})

    return rewrite


def _relevant_terms(qrels: pl.DataFrame, corpus: Path, analyzer: LazyAnalyzer) -> dict[str, set[str]]:
    """Return the terms of all relevant documents of each query that has relevant documents."""
    pairs = qrels.filter(pl.col("relevance") >= 1)
    documents = collections.texts(corpus, pairs["docid"])
    terms: dict[str, set[str]] = {}
    with console.progress("read relevant", len(documents), "documents") as advance:
        for block in documents.iter_slices(_DOCUMENTS_AT_ONCE):
            words = analyzer.analyze([f"{title}\n{text}" for _, title, text in block.rows()])
            terms |= zip(block["docid"], map(set, words), strict=True)
            advance(len(block))
    by_query: dict[str, set[str]] = {}
    for qid, docid in pairs.select("qid", "docid").iter_rows():
        if docid in terms:
            by_query.setdefault(qid, set()).update(terms[docid])
    return by_query


def replace_matches(
    text: str,
    relevant: Set[str],
    terms: Callable[[str], Set[str]],
    synonyms: Callable[[str], Sequence[str]],
    draw: Draw,
) -> Attacked:
    """Replace each word of `text` that occurs in a relevant document with a synonym that occurs in none.

    A word without such a synonym is kept, and so are function words and all other characters. Equal words get the same
    synonym. Capitalization is copied.

    Args:
        text: the query.
        relevant: terms of all relevant documents.
        terms: returns the terms of one or several words. Two words match if they share a term.
        synonyms: returns the synonyms of a word in lower case.
        draw: a number for a word in lower case, which selects its synonym.

    Returns:
        The text, and the number of matching words, of replaced words, and of words without a synonym.
    """
    matched = replaced = 0

    def substitute(match: regex.Match[str]) -> str:
        nonlocal matched, replaced
        word = match[0].lower()
        if word in FUNCTION_WORDS or terms(word).isdisjoint(relevant):
            return match[0]
        matched += 1
        usable = [synonym for synonym in synonyms(word) if _is_new(terms(synonym), relevant)]
        if not usable:
            return match[0]
        replaced += 1
        chosen = usable[draw(word) % len(usable)]
        return chosen[0].upper() + chosen[1:] if match[0][0].isupper() else chosen

    attacked = _WORD.sub(substitute, text)
    counts = {"matched": matched, "replaced": replaced, "without_synonym": matched - replaced}
    return Attacked(attacked, counts)


def _is_new(synonym: Set[str], relevant: Set[str]) -> bool:
    """Test whether a synonym has terms, none of which occurs in a relevant document."""
    return bool(synonym) and synonym.isdisjoint(relevant)


ADVERSARY = Attack(adversary, ("qrels", "corpus", "synonyms"))
