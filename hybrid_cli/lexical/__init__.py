"""BM25: Lucene through Anserini, and an impact matrix with the same analysis and the same scores."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING

from hybrid_cli.lexical.options import ENGLISH

if TYPE_CHECKING:
    from hybrid_cli.lexical.analysis import LazyAnalyzer

__all__ = ["analyze"]


def analyze(texts: Sequence[str], language: str = ENGLISH) -> list[list[str]]:
    """Return the terms of each text as `index-bm25 --language` indexes them, for BM25 in another program.

    English, Chinese and Korean need no Java. `en+identifiers` is the analysis of `--identifiers`.

    Args:
        texts: queries or documents.
        language: language of the index, or the name of its analysis; en by default.

    Returns:
        The terms of each text.

    Raises:
        InputError: an unknown language, or one text in place of a list.
        HybridError: Java does not start, or lacks the language.

    Example:
        >>> from hybrid_cli.lexical import analyze
        >>> analyze(["parsing the JSON strings"])
        [['pars', 'json', 'string']]
    """
    if isinstance(texts, str):
        from hybrid_cli.errors import InputError

        raise InputError("analyze: needs a list of texts, not one text", code="not-a-list")
    return _analyzer(language).analyze(list(texts))


@cache
def _analyzer(language: str) -> LazyAnalyzer:
    from hybrid_cli.lexical.analysis import LazyAnalyzer

    return LazyAnalyzer(language)
