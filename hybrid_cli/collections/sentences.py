"""Sentences of a corpus as queries, such as those that Lambda learns from (SPAR, methods 7.1).

Every draw depends on the seed and the document's id alone: not on the order of the corpus, nor on how it is read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random

import numpy as np
import polars as pl
import regex
from sentencex import segment

from hybrid_cli import draws
from hybrid_cli.collections import collection as collections
from hybrid_cli.settings.mining import QueriesFrom

LEAST_WORDS = 3  # what is shorter is a heading, a list's mark or the rest of a formula, and no query
QUESTION_WORDS = tuple(range(3, 12))  # of a cropped sentence, where no questions say how long they are
_DECAY = 1.2
_DOCUMENTS_AT_ONCE = 1024
_UNSPACED = r"\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}"
# A word is what stands between spaces and holds a letter or digit; where writing has no spaces, each character is one.
_WORD = rf"[{_UNSPACED}]|[^\s{_UNSPACED}]*[[\p{{L}}\p{{N}}]--[{_UNSPACED}]][^\s{_UNSPACED}]*"
_WORDS = regex.compile(_WORD, regex.V1)


class Sentences:
    """The sentences of a corpus that serve as queries.

    Args:
        corpus: a collection or a corpus. Titles are not read as sentences; a sentence has three words at least.
        how: `all`; `sampled`, of each document as many as `share` says; `cropped`, a run of words of each sampled one.
        lengths: numbers of words, one of which, drawn at random, a cropped sentence keeps (three at least).
        language: whose rules end a sentence (ISO 639-1).
    """

    def __init__(
        self,
        corpus: Path,
        how: QueriesFrom,
        seed: int,
        *,
        lengths: Sequence[int] = QUESTION_WORDS,
        language: str = "en",
    ):
        self._corpus, self._how, self._seed, self._lengths, self._language = corpus, how, seed, lengths, language
        self._positions = _positions(corpus) if how != "all" else None

    def count(self) -> dict[str, int]:
        """How many there will be of what: one pass over the corpus that draws nothing.

        Returns:
            documents, and `empty_documents` without a sentence; sentences, and `short_sentences` left out; queries.
        """
        found = dict.fromkeys(("documents", "empty_documents", "sentences", "short_sentences", "queries"), 0)
        for first, documents in self._documents(_DOCUMENTS_AT_ONCE):
            sentences = self._split(documents)
            long = sentences.filter(pl.col("words") >= LEAST_WORDS)
            counts = np.bincount(long["document"], minlength=len(documents))
            found["documents"] += len(documents)
            found["empty_documents"] += int((counts == 0).sum())
            found["sentences"] += len(long)
            found["short_sentences"] += len(sentences) - len(long)
            found["queries"] += sum(self._quotas(first, counts))
        return found

    def blocks(self, documents_at_once: int = _DOCUMENTS_AT_ONCE) -> Iterator[pl.DataFrame]:
        """qid (`docid#n`, the document's n-th sentence from 1 on), text, source (the docid) and its corpus row."""
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
        """The row of the first document of each block, and docid and text of all of it."""
        first = 0
        for batch in collections.documents(self._corpus, at_once):
            yield first, pl.DataFrame(pl.from_arrow(batch)).select("docid", "text")
            first += len(batch)

    def _split(self, documents: pl.DataFrame) -> pl.DataFrame:
        """document (its place in the block), text with white space folded, words; pieces without a word are none."""
        pieces = [segment(self._language, text) for text in documents["text"]]
        texts = [" ".join(piece.split()) for some in pieces for piece in some]
        places = np.repeat(np.arange(len(pieces)), [len(some) for some in pieces])
        frame = pl.DataFrame({"document": places, "text": pl.Series(texts, dtype=pl.String)})
        return frame.with_columns(words=pl.col("text").str.count_matches(_WORD)).filter(pl.col("words") > 0)

    def _quotas(self, first: int, counts: np.ndarray) -> list[int]:
        """How many queries each document of a block gives."""
        if self._positions is None:
            return list(counts.tolist())
        positions = self._positions[first : first + len(counts)]
        return [share(count, position) for count, position in zip(counts.tolist(), positions.tolist(), strict=True)]

    def _drawn(self, sentences: pl.DataFrame, docids: pl.Series, first: int) -> pl.DataFrame:
        """document, number, text of the sentences that each document gives, in its order."""
        counts = np.bincount(sentences["document"], minlength=len(docids))
        begins = np.cumsum(counts) - counts
        texts = sentences["text"].to_list()
        rows = []
        for document, quota in enumerate(self._quotas(first, counts)):
            draw = draws.generator(self._seed, docids[document])
            for number in sorted(draw.sample(range(counts[document]), quota)):
                text = texts[begins[document] + number]
                rows.append((document, number + 1, self._cropped(text, draw) if self._how == "cropped" else text))
        return pl.DataFrame(rows, schema={"document": pl.Int64, "number": pl.Int64, "text": pl.String}, orient="row")

    def _cropped(self, text: str, draw: Random) -> str:
        words = list(_WORDS.finditer(text))
        length = min(len(words), max(LEAST_WORDS, draw.choice(self._lengths)))
        begin = draw.randrange(len(words) - length + 1)
        return text[words[begin].start() : words[begin + length - 1].end()]


def share(sentences: int, position: int) -> int:
    """How many of its sentences a document gives: SPAR's pseudo-exponential sample (methods 7.1).

    Args:
        position: how many documents of the same title stand before it.
    """
    return min(sentences, max(1, round(sentences / (_DECAY * (position + 1)))))


def word_counts(texts: pl.Series) -> list[int]:
    """How many words each text has, counted as those of sentences are."""
    return texts.str.count_matches(_WORD).to_list()


def _positions(corpus: Path) -> np.ndarray:
    """[N] int32 how many documents before each have its title; one without a title stands alone."""
    title = pl.col("title").hash()  # eight bytes for each document
    place = pl.when(pl.col("title") == "").then(0).otherwise(pl.int_range(pl.len()).over(title))
    return collections.scan(corpus).select(place.cast(pl.Int32).alias("place")).collect()["place"].to_numpy()
