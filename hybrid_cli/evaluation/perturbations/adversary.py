"""The synonym adversary (RoC 4.2.2, methods 4.8): words that a query shares with its relevant documents give way.

What BM25 finds a document by is taken away; what the query means mostly stays. Synonyms come in the manner of EDA (Wei
and Zou, 2019) from every sense and part of speech in WordNet, one word or several, each as likely as the other.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass

# Runs of letters, digits and underscores; an apostrophe may stand inside, but a possessive 's is not part of the word.
_WORD = re.compile(r"(?<!\w['\u2019])\b\w+(?:['\u2019](?!s\b)\w+)*", re.IGNORECASE)

# English words that only hold a sentence together. Lucene drops 33 of them; the others would be given the synonyms of
# words that are spelt alike: helium for `he`, hold for `have`, tin for `can`.
FUNCTION_WORDS = frozenset(
    """
    a an the this that these those such same other another each every either neither both all any some no none few
    many much more most several own one
    i me my mine myself we us our ours ourselves you your yours yourself yourselves he him his himself she her hers
    herself it its itself they them their theirs themselves who whom whose which what whatever whichever whoever
    about above across after against along among around as at before behind below beneath beside besides between
    beyond by down during except for from in inside into near of off on onto out outside over past per since than
    through throughout till to toward towards under until unto up upon via with within without
    and but or nor so yet if because although though unless whereas whether while
    am is are was were be been being have has had having do does did done doing can could may might must shall should
    will would ought
    how when where why here there then now not only too very just also again ever never once quite rather still even
    """.split()  # noqa: SIM905 - a list to be read
)


@dataclass(frozen=True)
class Attacked:
    """A query's new text, how many of its words stand in a relevant document, and how many of those were replaced."""

    text: str
    matched: int
    replaced: int


def replace_matches(
    text: str,
    relevant: Set[str],
    terms: Callable[[str], Set[str]],
    synonyms: Callable[[str], Sequence[str]],
    draw: Callable[[str], int],
) -> Attacked:
    """Replace each word of `text` that stands in a relevant document by a synonym that stands in none.

    A word without such a synonym stays, and so does every other character. Within a text the same word always becomes
    the same synonym. A capital is handed on.

    Args:
        relevant: the terms of all relevant documents together.
        terms: of a word, or of several. Two words are one where they share a term.
        synonyms: of a word in lower case.
        draw: a number for a word in lower case, which says which of its synonyms is taken.
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
    return Attacked(attacked, matched, replaced)


def _elsewhere(terms: Set[str], relevant: Set[str]) -> bool:
    """Whether a synonym can be searched for at all, and no part of it stands in a relevant document."""
    return bool(terms) and terms.isdisjoint(relevant)


def draw(seed: int, attack: str, qid: str, word: str) -> int:
    """A number that depends on nothing else: not on the other words, nor on the order of the queries."""
    key = "\0".join((str(seed), attack, qid, word))
    return int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest())
