"""Accuracy at k: the fraction of questions with an answer in the text of a top-k hit (DPR, section 5; SPAR).

The search for answers in passages is that of DPR's evaluation (dpr/data/qa_validation.py, tokenizers.py). Our choice:
in scripts without spaces, a character is a token; the token of DPR's code, a clause, never equals an answer.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import get_args

import polars as pl
import regex

from hybrid_cli.errors import InputError
from hybrid_cli.evaluation.measures import ACCURACY, Measure, in_order, other_queries
from hybrid_cli.evaluation.options import ANSWER_MATCH, AnswerMatch
from hybrid_cli.words import UNSPACED, has_unspaced

MODES: tuple[AnswerMatch, ...] = get_args(AnswerMatch)
MATCH_SECONDS = 5.0  # CPU time of a pattern in one passage; usual ones take microseconds
LONGEST_PATTERN = 10_000  # characters; longer ones take seconds to compile

# Runs of letters, digits and combining marks, or one character that is neither a separator nor a control.
_TOKEN = regex.compile(r"[\p{L}\p{N}\p{M}]+|[^\p{Z}\p{C}]")
_MIXED_TOKEN = regex.compile(
    rf"{UNSPACED}[\p{{M}}\u0E33\u0EB3]*+|[[\p{{L}}\p{{N}}\p{{M}}]--{UNSPACED}]+|[^\p{{Z}}\p{{C}}]", regex.V1
)


def passage_form(text: str, mode: AnswerMatch = ANSWER_MATCH) -> str:
    """Normalize a passage for the matchers of a mode; the result serves all questions.

    For strings: NFD, split into tokens, each between two spaces, in lower case. For patterns: NFD only.
    """
    decomposed = unicodedata.normalize("NFD", text)
    if mode == "regex":
        return decomposed
    # No token contains a space, so a sequence of tokens is a substring between spaces.
    token = _MIXED_TOKEN if has_unspaced(text) else _TOKEN
    return f" {' '.join(token.findall(decomposed))} ".lower()


def matcher(answers: Iterable[str], mode: AnswerMatch = ANSWER_MATCH) -> Callable[[str], bool]:
    """Return a function that tests whether a normalized passage contains any of the answers.

    Our choice: an answer without tokens and an invalid pattern match nothing (in DPR's code, an answer without tokens
    matches every passage).

    Raises:
        InputError: unknown mode, or a pattern that takes too long to compile; the function raises it for a pattern that
            takes too long in a passage.
    """
    if mode == "string":
        needles = [form for form in map(passage_form, answers) if form.strip()]
        return lambda passage: any(needle in passage for needle in needles)
    if mode == "regex":
        patterns = [pattern for pattern in map(_compiled, answers) if pattern is not None]
        return lambda passage: any(_occurs(pattern, passage) for pattern in patterns)
    problem = f"answer match '{mode}': unknown; choices: {' or '.join(MODES)}"
    raise InputError(problem, code="unknown-choice", value=mode, choices=MODES)


def _compiled(answer: str) -> regex.Pattern[str] | None:
    if not answer.strip():
        return None
    pattern = unicodedata.normalize("NFD", answer)
    if len(pattern) > LONGEST_PATTERN:
        raise _refusal(answer, f"has more than {LONGEST_PATTERN:,} characters", "pattern-too-long", LONGEST_PATTERN)
    try:
        return regex.compile(pattern, regex.IGNORECASE | regex.UNICODE | regex.MULTILINE)
    except RecursionError:
        raise _refusal(answer, "is nested too deeply", "pattern-too-deep", LONGEST_PATTERN) from None
    except regex.error:
        return None


def _occurs(pattern: regex.Pattern[str], passage: str) -> bool:
    try:
        return pattern.search(passage, timeout=MATCH_SECONDS) is not None
    except TimeoutError:
        problem = f"takes more than {MATCH_SECONDS:g} s in a passage"
        raise _refusal(pattern.pattern, problem, "pattern-too-slow", MATCH_SECONDS) from None


def _refusal(answer: str, problem: str, code: str, limit: float) -> InputError:
    shown = answer if len(answer) <= 100 else f"{answer[:100]}..."
    sentence = f"the regular expression {shown!r} of an answer {problem}; simplify it, or use --answer-match string"
    return InputError(sentence, code=code, value=answer, limit=limit)


def with_answers(queries: pl.DataFrame) -> pl.DataFrame:
    """Return the queries with a non-empty answer.

    Raises:
        InputError: no query has one.
    """
    asked = queries.filter(pl.col("answers").list.eval(pl.element().str.strip_chars() != "").list.any())
    if len(asked) == 0:
        problem = "acc@k: needs answers, and no query has any; use Success@k to measure with qrels"
        raise InputError(problem, code="needs-answers")
    return asked


def candidates(run: pl.DataFrame, queries: pl.DataFrame, measures: Sequence[Measure]) -> pl.Series:
    """Return the docids whose texts `evaluate_answers` needs."""
    hits = in_order(run, depth(measures)).join(queries, on="qid", how="semi")
    return hits["docid"].unique(maintain_order=True)


def passages(texts: pl.DataFrame, mode: AnswerMatch = ANSWER_MATCH) -> dict[str, str]:
    """Return docid -> normalized text, computed once for all runs and questions."""
    return {docid: passage_form(text, mode) for docid, text in texts.select("docid", "text").iter_rows()}


def evaluate_answers(
    run: pl.DataFrame,
    queries: pl.DataFrame,
    texts: Mapping[str, str],
    measures: Sequence[Measure],
    mode: AnswerMatch = ANSWER_MATCH,
) -> pl.DataFrame:
    """Compute `acc@k` for every query with answers; 0 for queries without hits.

    Args:
        run: qid, docid, rank.
        queries: qid, answers (list of strings), as returned by `with_answers`.
        texts: docid -> normalized text, as returned by `passages`.
        measures: names of measures; all but `acc@k` are ignored.

    Returns:
        measure, qid, value (0 or 1); see `evaluate_run`.

    Raises:
        InputError: a document of the run is not in the collection, or the run has other queries.
    """
    wanted = [measure for measure in measures if measure.family == ACCURACY]
    hits = in_order(run, depth(wanted)).join(queries, on="qid", how="semi")
    if len(run) and not len(hits):
        raise other_queries(run["qid"], queries["qid"], "queries")
    listed = hits.group_by("qid", maintain_order=True).agg(pl.col("docid").sort_by("position"))
    ranking = dict(listed.iter_rows())
    first = [
        _first_answer(ranking.get(qid, []), answers, texts, mode)
        for qid, answers in queries.select("qid", "answers").iter_rows()
    ]
    rank = pl.Series("rank", first, dtype=pl.Int64)
    return pl.concat(
        pl.select(
            pl.lit(measure.name).alias("measure"),
            queries["qid"],
            (rank <= measure.cutoff).fill_null(False).cast(pl.Float64).alias("value"),
        )
        for measure in wanted
    )


def answer_qrels(
    hits: pl.DataFrame, queries: pl.DataFrame, texts: Mapping[str, str], mode: AnswerMatch = ANSWER_MATCH
) -> pl.DataFrame:
    """Return qrels for hits, from the answers in their texts.

    Args:
        hits: qid, docid, each pair once.
        queries, found: see `evaluate_answers`.

    Returns:
        qid, docid, relevance (1) of the hits with an answer. Every query has one more row, without a docid, so that
        queries without such a hit are counted.
    """
    has_answer = {qid: matcher(answers, mode) for qid, answers in queries.select("qid", "answers").iter_rows()}
    rows: list[tuple[str, str | None, int]] = [(qid, None, 1) for qid in has_answer]
    rows += [
        (qid, docid, 1)
        for qid, docid in hits.iter_rows()
        if qid in has_answer and has_answer[qid](_passage(docid, texts))
    ]
    schema = {"qid": pl.String, "docid": pl.String, "relevance": pl.Int32}
    return pl.DataFrame(rows, schema=schema, orient="row")


def depth(measures: Sequence[Measure]) -> int:
    """Return the number of top hits that the measures `acc@k` need; 0 if there is none."""
    return max((measure.cutoff or 0 for measure in measures if measure.family == ACCURACY), default=0)


def _first_answer(
    docids: Sequence[str], answers: Sequence[str], texts: Mapping[str, str], mode: AnswerMatch
) -> int | None:
    """Return the rank of the first passage with an answer."""
    has_answer = matcher(answers, mode)
    for rank, docid in enumerate(docids, 1):
        if has_answer(_passage(docid, texts)):
            return rank
    return None


def _passage(docid: str, texts: Mapping[str, str]) -> str:
    if docid not in texts:
        problem = f"document '{docid}' of the run is not in the corpus; pass the corpus that was searched"
        raise InputError(problem, code="other-corpus", id=docid)
    return texts[docid]
