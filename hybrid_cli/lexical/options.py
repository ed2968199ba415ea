"""Names and defaults of lexical indexes, which import nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

ENGLISH = "en"
BIGRAMS = "bigrams"  # analysis of a language whose analyzer is missing
LUCENE_LANGUAGES = (  # with an analyzer in Java
    *("ar", "bn", "da", "de", "es", "fa", "fi", "fr", "hi", "hu", "id", "it", "ja", "ko", "nl", "no", "pl", "pt"),
    *("ru", "sv", "te", "th", "tr", "uk", "zh"),
)
STACKING = ("pl", "uk")  # analyzers that put several stems at one position, counted once in Lucene's length
IDENTIFIERS = "+identifiers"  # ends the name of an analysis that adds the parts of identifiers
MAX_K1 = 1000  # beyond it, 32 bits cannot distinguish small impacts from 0
MAX_FIELD_WEIGHT = 100  # the text of a field is repeated
FB_TERMS, FB_DOCS, FB_WEIGHT = 10, 10, 0.5  # of RM3


@dataclass(frozen=True, kw_only=True)
class BM25Options:
    """Parameters of BM25 and of the analysis of texts.

    Attributes:
        k1: saturation of term frequency.
        b: strength of document length normalization.
        fields: indexed fields; `title=3` counts each word of the title three times (BM25F).
        language: analyzer: `en` (Porter stemmer), or a code such as `de` or `zh`; None for that of most documents.
        identifiers: also index the parts of names such as `getUserById` and `foo.bar_baz`.
    """

    k1: float = 0.9
    b: float = 0.4
    fields: Sequence[str] = ("title", "text")
    language: str | None = None
    identifiers: bool = False

    @property
    def analysis(self) -> str:
        """Name of the analysis: `en`, or `en+identifiers`."""
        return analysis_of({"language": self.language or ENGLISH, "identifiers": self.identifiers})


def analysis_of(options: Mapping[str, Any]) -> str:
    """Return the name of the analysis that the manifest of an index records in its options."""
    language: str = options["language"]
    return language + IDENTIFIERS if options.get("identifiers") else language


def field_weight(text: str) -> tuple[str, int]:
    """Return name and weight of a field, written `title` or `title=3`; raise ValueError for other texts."""
    name, equals, weight = text.partition("=")
    if not name.isidentifier():
        raise ValueError("needs a field, or a field with a weight such as title=3")
    if equals and not (weight.isdecimal() and 1 <= int(weight) <= MAX_FIELD_WEIGHT):
        raise ValueError(f"needs a whole number from 1 to {MAX_FIELD_WEIGHT} as weight")
    return name, int(weight or 1)


def weighted_fields(fields: Sequence[str]) -> tuple[str, ...]:
    """Return the names of fields in order, each as often as its weight: `title=2,text` is title, title, text."""
    return tuple(name for field in fields for name, weight in [field_weight(field)] for _ in range(weight))
