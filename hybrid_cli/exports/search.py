"""A search engine in production: a request per query, from a template; runs with their latency, and live hits."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from hybrid_cli import console, runs
from hybrid_cli.encoders.models import open_query_encoder
from hybrid_cli.errors import HybridError, InputError, option_error
from hybrid_cli.exports.comparison import engine_at
from hybrid_cli.exports.engine import Engine, refusal
from hybrid_cli.inputs.json_values import read_object
from hybrid_cli.runs.index import Allowed, Documents, Hits, Index, Mask

_QUERY, _VECTOR, _HITS = "{query}", '"{vector}"', '"{hits}"'  # in the body of a request
_FILTERED = 1000  # hits that are asked for if a filter follows
_OF_EXPORTS = (("TEXT OF THE QUERY", _QUERY), (r'"VECTOR OF \d+ NUMBERS"', _VECTOR))  # in `query.json`
Answer = tuple[dict[str, float], float]  # docid -> score; milliseconds


@dataclass(frozen=True)
class AskedEngine:
    """A search engine and the body of a request to it.

    Attributes:
        name: engine and address; see `engine_at`.
        engine, address: of the name.
        form: JSON of the body, with the places of text, vector and number of hits.
    """

    name: str
    engine: Engine
    address: str
    form: str

    @classmethod
    def of(cls, name: str, request: Path | None, timeout: float) -> AskedEngine:
        """Return the engine of `NAME:ADDRESS`.

        Args:
            name: engine and address; see `engine_at`.
            request: file of the body of a request, with `{query}` and `{vector}` in place of text and vector of a
                query; None for the engine's own.
            timeout: seconds for an answer.

        Raises:
            InputError: an unknown engine, or an unusable file.
        """
        engine, address = engine_at(name)
        engine.timeout = timeout
        body = engine.request if request is None else read_object(request)
        form = json.dumps({**engine.envelope, **body})
        for pattern, place in _OF_EXPORTS:
            form = re.sub(pattern, place, form)
        return cls(name, engine, address, form)

    @property
    def takes_vectors(self) -> bool:
        """Return whether a request has the vector of its query."""
        return _VECTOR in self.form

    def answers(self, texts: Sequence[str], vectors: Sequence[Any] | None, hits: int) -> Iterator[Answer]:
        """Yield the hits of each query and the milliseconds of its request.

        Raises:
            InputError: the engine cannot be reached, refuses a request, or its answer is no list of hits.
        """
        form = self.form.replace(_HITS, str(hits))
        with closing(self.engine.connect(self.address)) as live:
            for text, vector in zip(texts, vectors or [None] * len(texts), strict=True):
                asked = form.replace(_VECTOR, json.dumps(vector)).replace(_QUERY, json.dumps(text)[1:-1])
                start = time.perf_counter()
                try:
                    answer = live.search(json.loads(asked))
                except (LookupError, TypeError, AttributeError):
                    problem = "answers no hits; check the request"
                    raise refusal(self.engine.name, self.address, problem, "engine-answer") from None
                spent = 1e3 * (time.perf_counter() - start)
                yield _checked(answer, f"--engine {self.name}: query {text!r}"), spent


def search_engine(
    name: str, request: Path | None, queries: pl.DataFrame, model: str | None, hits: int, timeout: float
) -> tuple[pl.DataFrame, dict[str, float]]:
    """Ask a search engine the queries, one after another.

    Args:
        name, request, timeout: see `AskedEngine.of`.
        queries: qid, text.
        model: encoder of the vectors.
        hits: hits per query.

    Returns:
        The run, and the milliseconds of a request at p50 and p95.

    Raises:
        InputError: see `AskedEngine`; or no query has a hit.
    """
    asked = AskedEngine.of(name, request, timeout)
    if asked.takes_vectors != (model is not None):
        problem = f"the request has no {_VECTOR}" if model else f"the request has a {_VECTOR}; name its encoder"
        raise option_error("model", model, problem, code="conflicting-options" if model else "missing-option")
    texts = queries["text"].to_list()
    vectors = None if model is None else open_query_encoder(model).encode_queries(texts).tolist()
    rows, spent = list[tuple[str, str, float]](), list[float]()
    with console.progress("search", len(queries), "queries") as advance:
        for qid, (answer, milliseconds) in zip(queries["qid"], asked.answers(texts, vectors, hits), strict=True):
            spent.append(milliseconds)
            rows += ((qid, *hit) for hit in answer.items())
            advance(1)
    if not rows:
        problem = f"--engine {name}: no query has a hit; check the fields of the request (--engine-query)"
        raise InputError(problem, code="no-hits", option="engine")
    latency = {f"p{p}": round(float(np.percentile(spent, p)), 3) for p in (50, 95)}
    return runs.ranked(pl.DataFrame(rows, ["qid", "docid", "score"], orient="row"), hits), latency


class EngineIndex(Index):
    """A search engine as an index of documents that another index has; further documents are no hits.

    An engine that fails has no hits, with a warning. A filter keeps hits among the first thousand.

    Args:
        asked: the engine.
        documents: the documents.
        encode: returns the vectors of queries (qid, text), for requests that have one.
        allowed: [N] documents that are returned; None for all.
    """

    kind = "a search engine"

    def __init__(
        self,
        asked: AskedEngine,
        documents: Documents,
        encode: Callable[[pl.DataFrame], Any],
        allowed: Mask | None = None,
    ):
        self._asked, self._documents, self._encode, self._allowed = asked, documents, encode, allowed

    @property
    def documents(self) -> Documents:
        """See `Index`."""
        return self._documents

    def prepare(self, queries: pl.DataFrame) -> tuple[list[str], list[Any] | None]:
        """Return texts, and vectors for requests that have one."""
        vectors = self._encode(queries).tolist() if self._asked.takes_vectors else None
        return queries["text"].to_list(), vectors

    def hits(self, prepared: tuple[list[str], list[Any] | None], k: int) -> Hits:
        """See `Index`."""
        pairs = list[tuple[int, str, float]]()
        try:
            for number, (answer, _) in enumerate(
                self._asked.answers(*prepared, max(k, _FILTERED * (self._allowed is not None)))
            ):
                pairs += ((number, *hit) for hit in answer.items())
        except HybridError as error:
            console.warn(f"serve: {error}", code=error.code)
        numbers, docids, scores = (list(column) for column in zip(*pairs, strict=True)) if pairs else ([], [], [])
        rows, known = self.documents.sorted.find(pl.Series(docids, dtype=pl.String))
        kept = known if self._allowed is None else known & self._allowed[rows]
        table = (np.array(numbers, np.int64)[kept], rows[kept], np.array(scores, np.float32)[kept])
        return Hits.ranked(len(prepared[0]), *table, self.documents, k)

    def within(self, allowed: Allowed) -> EngineIndex:
        """See `Index`."""
        return EngineIndex(self._asked, self.documents, self._encode, allowed.mask(self.documents.ids))


def _checked(answer: Iterable[tuple[str, float]], where: str) -> dict[str, float]:
    """Return the hits of a query: docid -> score.

    Raises:
        InputError: a hit without a score or twice, or a score that is higher than the one before.
    """
    hits, last = dict[str, float](), inf
    for docid, score in answer:
        if str(docid) in hits or not isinstance(score, int | float) or not -inf < score <= last:
            problem = f"{where}: {docid} ({score}) follows a hit with {last}; a run has each document once, best first"
            raise InputError(problem, code="engine-answer", option="engine", id=docid)
        hits[str(docid)] = last = score
    return hits
