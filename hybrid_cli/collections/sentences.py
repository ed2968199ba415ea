"""Sentences of a corpus as queries, such as the training queries of Lambda (SPAR, section 4.1).

Every draw depends on the seed and the document id only, not on the order of the corpus.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from random import Random

import numpy as np
import polars as pl
import regex
from sentencex import segment

from hybrid_cli import draws, words
from hybrid_cli.collections import collection as collections
from hybrid_cli.collections.options import LANGUAGE, QueriesFrom

LEAST_WORDS = 3  # our choice: shorter pieces are headings, list markers or parts of formulas
QUESTION_WORDS = tuple(range(3, 12))  # lengths of cropped sentences, without given ones
_DECAY = 1.2
_QUERY = ("qid", "text")
_DOCUMENTS_AT_ONCE = 1024
# Ends of sentences that sentencex does not know: marks of Khmer and Tibetan, spaces of Thai and Lao.
_OTHER_ENDS = regex.compile(
    r"[\u17D4\u17D5\u0F0D-\u0F11][\s\u17D4\u17D5\u0F0D-\u0F11]*+|(?<=[\p{Thai}\p{Lao}])\s++(?=[\p{Thai}\p{Lao}])"
)


class Sentences:
    """The sentences of a corpus that are used as queries.

    Args:
        corpus: a collection or a corpus. Titles are not sentences; a sentence has at least three words.
        how: `all`; `sampled`: `quota` sentences per document; `cropped`: a span of words of each sampled sentence.
        seed: random seed.
        lengths: numbers of words, one of which is drawn for each cropped sentence (at least three).
        language: language of the rules for the end of a sentence (ISO 639-1).
    """

    def __init__(
        self,
        corpus: Path,
        how: QueriesFrom,
        seed: int,
        *,
        lengths: Sequence[int] = QUESTION_WORDS,
        language: str = LANGUAGE,
    ):
        self._corpus, self._how, self._seed, self._lengths, self._language = corpus, how, seed, lengths, language
        self._positions = _positions(corpus) if how != "all" else None

    def count(self) -> dict[str, int]:
        """Count queries in one pass over the corpus, without drawing them.

        Returns:
            Numbers of documents, `empty_documents` without a sentence, sentences, `short_sentences` left out, queries.
        """
        totals = dict.fromkeys(("documents", "empty_documents", "sentences", "short_sentences", "queries"), 0)
        for first, documents in self._documents(_DOCUMENTS_AT_ONCE):
            sentences = self._split(documents)
            long = sentences.filter(pl.col("words") >= LEAST_WORDS)
            counts = np.bincount(long["document"], minlength=len(documents))
            totals["documents"] += len(documents)
            totals["empty_documents"] += int((counts == 0).sum())
            totals["sentences"] += len(long)
            totals["short_sentences"] += len(sentences) - len(long)
            totals["queries"] += sum(self._quotas(first, counts))
        return totals

    def blocks(self, documents_at_once: int = _DOCUMENTS_AT_ONCE) -> Iterator[pl.DataFrame]:
        """Yield qid (`docid#n` for sentence n, from 1), text, source (the docid) and its corpus row."""
        for first, documents in self._documents(documents_at_once):
            sentences = self._split(documents).filter(pl.col("words") >= LEAST_WORDS)
            if self._how != "all":
                sentences = self._drawn(sentences, documents["docid"], first)
            else:
                sentences = sentences.with_columns(number=pl.int_range(1, pl.len() + 1).over("document"))
            source = documents["docid"].gather(sentences["document"])
            yield sentences.select(
                pl.concat_str(source, pl.lit("#"), "number").alias("qid"),
                "text",
                source.alias("source"),
                (pl.col("document") + first).alias("row"),
            )

    def _documents(self, at_once: int) -> Iterator[tuple[int, pl.DataFrame]]:
        """Yield the row of the first document of each block, and docid and text of the block."""
        first = 0
        for batch in collections.documents(self._corpus, at_once):
            yield first, pl.DataFrame(pl.from_arrow(batch)).select("docid", "text")
            first += len(batch)

    def _split(self, documents: pl.DataFrame) -> pl.DataFrame:
        """Return document (its position in the block), text with white space folded, and words; drop empty pieces."""
        pieces = [split(text, self._language) for text in documents["text"]]
        texts = [" ".join(piece.split()) for some in pieces for piece in some]
        owners = np.repeat(np.arange(len(pieces)), [len(some) for some in pieces])
        frame = pl.DataFrame({"document": owners, "text": pl.Series(texts, dtype=pl.String)})
        return frame.with_columns(words=words.counts(frame["text"], letters=True)).filter(pl.col("words") > 0)

    def _quotas(self, first: int, counts: np.ndarray) -> list[int]:
        """Return the number of queries of each document of a block."""
        if self._positions is None:
            return list(counts.tolist())
        positions = self._positions[first : first + len(counts)]
        return [quota(count, position) for count, position in zip(counts.tolist(), positions.tolist(), strict=True)]

    def _drawn(self, sentences: pl.DataFrame, docids: pl.Series, first: int) -> pl.DataFrame:
        """Return document, number and text of the sentences drawn from each document, in order."""
        counts = np.bincount(sentences["document"], minlength=len(docids))
        begins = np.cumsum(counts) - counts
        texts = sentences["text"].to_list()
        rows = []
        for document, wanted in enumerate(self._quotas(first, counts)):
            draw = draws.generator(self._seed, docids[document])
            for number in sorted(draw.sample(range(counts[document]), wanted)):
                text = texts[begins[document] + number]
                if self._how == "cropped":
                    text = cropped(text, self._lengths, draw)
                rows.append((document, number + 1, text))
        return pl.DataFrame(rows, schema={"document": pl.Int64, "number": pl.Int64, "text": pl.String}, orient="row")


def cropped(text: str, lengths: Sequence[int], draw: Random) -> str:
    """Return a span of the words of a sentence; its number of words is drawn from `lengths`, and is at least three."""
    spans = words.spans(text, letters=True)
    length = min(len(spans), max(LEAST_WORDS, draw.choice(lengths)))
    begin = draw.randrange(len(spans) - length + 1)
    return text[spans[begin][0] : spans[begin + length - 1][1]]


def sampled(corpora: Sequence[Path], number: int, seed: int, lengths: Sequence[int] = QUESTION_WORDS) -> pl.DataFrame:
    """Return cropped sentences of documents drawn from corpora, as queries: qid (the docid), text.

    Args:
        corpora: collections or corpora.
        number: number of documents; those without a sentence of three words give none, unless none of them has one:
            then their titles and texts are the sentences.
        seed: random seed.
        lengths: numbers of words, one of which is drawn for each sentence.
    """
    scanned = pl.concat([collections.scan(path) for path in corpora]).drop("corpus_row").with_row_index("row")
    total = sum(map(collections.document_count, corpora))
    rows = draws.sample(total, number, draws.rng(seed)).tolist()
    drawn = scanned.filter(pl.col("row").is_in(rows)).select("docid", "title", "text").collect(engine="streaming")
    return _cropped(drawn, seed, lengths)


def pieces_of(documents: pl.DataFrame, number: int, seed: int) -> pl.DataFrame:
    """Return cropped sentences of documents (docid, title, text) as `sampled` does of those of a corpus."""
    drawn = documents[draws.sample(len(documents), number, draws.rng(seed))].select("docid", "title", "text")
    return _cropped(drawn, seed, QUESTION_WORDS)


def _cropped(documents: pl.DataFrame, seed: int, lengths: Sequence[int]) -> pl.DataFrame:
    queries, short = {}, {}
    for docid, title, text in documents.sort("docid").iter_rows():
        if long := [piece for piece in split(text) if word_count(piece) >= LEAST_WORDS]:
            draw = draws.generator(seed, docid)
            queries[docid] = " ".join(cropped(draw.choice(long), lengths, draw).split())
        elif word_count(whole := f"{title} {text}"):
            short[docid] = " ".join(cropped(whole, lengths, draws.generator(seed, docid)).split())
    queries = queries or short
    return pl.DataFrame({"qid": list(queries), "text": list(queries.values())}, schema=dict.fromkeys(_QUERY, pl.String))


def quota(sentences: int, position: int) -> int:
    """Return the number of sentences drawn from a document: the pseudo-exponential sample of SPAR (appendix A).

    Args:
        sentences: number of sentences of the document.
        position: number of earlier documents with the same title.
    """
    return min(sentences, max(1, round(sentences / (_DECAY * (position + 1)))))


def word_counts(texts: pl.Series) -> list[int]:
    """Return the number of words of each text with a letter or digit; see `words`."""
    return words.counts(texts, letters=True).to_list()


def word_count(text: str) -> int:
    """Return the number of words of a text with a letter or digit."""
    return len(words.spans(text, letters=True))


def split(text: str, language: str = LANGUAGE) -> list[str]:
    """Return the sentences of a text, which together are the text.

    Args:
        text: any text.
        language: language of the rules for the end of a sentence (ISO 639-1). The marks of all scripts end a sentence
            in every language. Thai and Lao have none: there, a space ends it.
    """
    pieces: list[str] = segment(language, text)
    if not words.has_unspaced(text):
        return pieces
    return [part for piece in pieces for part in _parts(piece)]


def _parts(piece: str) -> Iterator[str]:
    ends = [0, *(match.end() for match in _OTHER_ENDS.finditer(piece))]
    for begin, end in pairwise([*ends, len(piece)]):
        if begin < end:
            yield piece[begin:end]


def _positions(corpus: Path) -> np.ndarray:
    """Return [N] int32, the number of earlier documents with the same title; 0 without a title."""
    title = pl.col("title").hash()  # eight bytes per document
    position = pl.when(pl.col("title") == "").then(0).otherwise(pl.int_range(pl.len()).over(title))
    return collections.scan(corpus).select(position.cast(pl.Int32).alias("position")).collect()["position"].to_numpy()


HEADING = re.compile(
    r"^[ ]{0,3}\#{1,6}[ \t]+(?P<hashes>\S.*?)[ \t]*\#*[ \t]*$"  # Markdown
    r"|^(?P<equals>={2,6})[ \t]*(?P<wiki>[^\s=].*?)[ \t]*(?P=equals)[ \t]*$"  # MediaWiki
    r"|^[ \t]*(?P<lined>\S.*?)[ \t]*\n[ \t]*(?P<line>[=~^-])(?P=line){2,}[ \t]*$",  # Markdown, reStructuredText
    re.MULTILINE,
)


def heading(match: re.Match[str]) -> str:
    """Return the text of a heading that `HEADING` has found."""
    return str(match["hashes"] or match["wiki"] or match["lined"])
