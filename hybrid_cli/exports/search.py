"""Runs of a search engine in production: a request per query, from a template, with its latency."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterable
from contextlib import closing
from math import inf
from pathlib import Path

import numpy as np
import polars as pl

from hybrid_cli import console, runs
from hybrid_cli.encoders.models import open_query_encoder
from hybrid_cli.errors import InputError, option_error
from hybrid_cli.exports.comparison import engine_at
from hybrid_cli.exports.engine import refusal
from hybrid_cli.inputs.json_values import read_object

_QUERY, _VECTOR, _HITS = "{query}", '"{vector}"', '"{hits}"'  # in the body of a request
_OF_EXPORTS = (("TEXT OF THE QUERY", _QUERY), (r'"VECTOR OF \d+ NUMBERS"', _VECTOR))  # in `query.json`


def search_engine(
    text: str, request: Path | None, queries: pl.DataFrame, model: str | None, hits: int, timeout: float
) -> tuple[pl.DataFrame, dict[str, float]]:
    """Ask a search engine the queries, one after another.

    Args:
        text: engine and address; see `engine_at`.
        request: file of the body of a request, with `{query}` and `{vector}` in place of text and vector of a query;
            None for the engine's own.
        queries: qid, text.
        model: encoder of the vectors.
        hits: hits per query.
        timeout: seconds for an answer.

    Returns:
        The run, and the milliseconds of a request at p50 and p95.

    Raises:
        InputError: the engine cannot be reached, refuses a request, or its answers are no run.
    """
    engine, address = engine_at(text)
    engine.timeout = timeout
    body = engine.request if request is None else read_object(request)
    form = json.dumps({**engine.envelope, **body}).replace(_HITS, str(hits))
    for name, own in _OF_EXPORTS:
        form = re.sub(name, own, form)
    if (_VECTOR in form) != (model is not None):
        problem = f"the request has no {_VECTOR}" if model else f"the request has a {_VECTOR}; name its encoder"
        raise option_error("model", model, problem, code="conflicting-options" if model else "missing-option")
    texts = queries["text"].to_list()
    vectors = [None] * len(texts) if model is None else open_query_encoder(model).encode_queries(texts).tolist()
    rows, spent = list[tuple[str, str, float]](), list[float]()
    with closing(engine.connect(address)) as live, console.progress("search", len(queries), "queries") as advance:
        for qid, query, vector in zip(queries["qid"], texts, vectors, strict=True):
            asked = json.loads(form.replace(_VECTOR, json.dumps(vector)).replace(_QUERY, json.dumps(query)[1:-1]))
            start = time.perf_counter()
            try:
                answer = live.search(asked)
            except (LookupError, TypeError, AttributeError):
                raise refusal(engine.name, address, "answers no hits; check the request", "engine-answer") from None
            spent.append(1e3 * (time.perf_counter() - start))
            rows += ((qid, *hit) for hit in _checked(answer, f"--engine {text}: query {qid}").items())
            advance(1)
    if not rows:
        problem = f"--engine {text}: no query has a hit; check the fields of the request (--engine-query)"
        raise InputError(problem, code="no-hits", option="engine")
    latency = {f"p{p}": round(float(np.percentile(spent, p)), 3) for p in (50, 95)}
    return runs.ranked(pl.DataFrame(rows, ["qid", "docid", "score"], orient="row"), hits), latency


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
