"""Small tables of commands: fusion, mining, tuning, index candidates, hits of a query, checks of `doctor`."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hybrid_cli import console
from hybrid_cli.commands import Doctor, Search
from hybrid_cli.errors import HybridError
from hybrid_cli.fusion.selection import FEWEST
from hybrid_cli.reporting.snippets import Matching, match_words, snippet, wrap_lines
from hybrid_cli.reporting.tables import figure, prose, pseudo_note, with_sign
from hybrid_cli.reporting.verdict import Verdict

if TYPE_CHECKING:
    import polars as pl

    from hybrid_cli.fusion.tuning import TunedWeight


def show_hits(result: Path | pl.DataFrame | Iterator[tuple[str, pl.DataFrame]], settings: Search) -> None:
    """Print the hits of one query, or of each query that is read.

    Args:
        result: the path that `search` returns, for which nothing is printed, or the result of `search_query` or
            `search_interactively`.
        settings: settings of the search.
    """
    if isinstance(result, Path):
        return
    show = _show_json if settings.form == "json" else _show_text if settings.context is None else _show_context
    heads = settings.interactive and show is not _show_json and not console.asks()
    for query, hits in result if isinstance(result, Iterator) else [(settings.query or "", result)]:
        if heads:
            console.result(f"query: {console.one_line(query)}")
        show(query, hits.rows(named=True), settings.min_probability)


def _show_json(query: str, hits: Sequence[Mapping[str, Any]], least: float | None) -> None:
    from hybrid_cli.collections.collection import values_of  # imports polars, which `doctor` does without

    def plain(hit: Mapping[str, Any]) -> dict[str, Any]:
        shown = {name: value for name, value in hit.items() if not name.endswith(("_rank", "_score"))}
        shown |= {"metadata": values_of(shown["metadata"] or {})} if "metadata" in shown else {}
        sides = {part: {name: hit[f"{name}_{part}"] for name in _sides(hit)} for part in ("rank", "score")}
        return shown | ({"ranks": sides["rank"], "scores": sides["score"]} if sides["rank"] else {})

    of_context = bool(hits) and "place" in hits[0]
    answerable = {} if least is None else {"answerable": bool(hits)}
    console.result_json({"query": query, **answerable, "context" if of_context else "hits": list(map(plain, hits))})


def _sides(hit: Mapping[str, Any]) -> list[str]:
    """Return the names of the indexes behind a hit; none for a single one."""
    return [name.removesuffix("_rank") for name in hit if name.endswith("_rank")]


def _show_text(query: str, hits: Sequence[Mapping[str, Any]], least: float | None) -> None:
    if not hits:
        console.result("no hits" if least is None else f"no hits with a probability of at least {least:g}")
    marked = match_words(query)
    for hit in hits:
        ranks = [f"{name} {hit[f'{name}_rank'] or '-'}" for name in _sides(hit)]
        likely = [f"probability {hit['probability']:.2f}"] if "probability" in hit else []
        details = ", ".join([f"{hit['score']:.4f}", *likely, *ranks])
        title = hit.get("title")
        _show_wrapped(
            f"{hit['rank']:2}. ", f"{title}  [{hit['docid']}: {details}]" if title else f"{hit['docid']}  [{details}]"
        )
        if text := hit.get("text"):
            _show_wrapped("    ", snippet(text, " ".join(text[slice(*span)] for span in marked.spans(text))), marked)


def _show_context(query: str, parts: Sequence[Mapping[str, Any]], least: float | None) -> None:
    if not parts:
        console.result("no hits")
    for number, part in enumerate(parts, 1):
        title = f"{part['title']}  " if part["title"] else ""
        console.result(f"[{number}] {console.one_line(title)}[{part['docid']}: {part['place']}]\n{part['text']}\n")


def _show_wrapped(start: str, text: str, marked: Matching | None = None) -> None:
    """Print one line; on a terminal, wrap it at words and print words of the query in bold."""
    text = console.one_line(text)
    if not sys.stdout.isatty():
        console.result(start + text)
        return
    out = console.stdout()
    room = max(out.width - len(start), 20)
    for line in wrap_lines(text, room):
        shown = console.styled(start + line)
        for begin, end in marked.spans(line) if marked else ():
            shown.stylize("bold", len(start) + begin, len(start) + end)
        out.print(shown, soft_wrap=True)
        start = " " * len(start)


def show_comparison(measure: str, alone: Mapping[str, float], method: str, fused: float) -> None:
    """Print the scores of the single runs and of the fused run; warn if fusion does not help."""
    rows = [[name, figure(score)] for name, score in alone.items()]
    console.table(["run", measure], [*rows, [f"fused ({method})", figure(fused)]])
    best = max(alone, key=lambda name: alone[name])
    if fused <= alone[best]:
        problem = f"fusion ({measure} {figure(fused)}) does not beat {best} alone ({figure(alone[best])})"
        console.warn(problem, code="fusion-not-better", run=best, measure=measure)


def show_tuned(tuned: Mapping[str, Any]) -> None:
    """Print the tuned fusion: method, shares and plateau, scores, and how far the judged queries decide.

    Args:
        tuned: content of a weights file; see `fusion.weights.Tuned.content`.
    """
    measure, alone, plateau = tuned["measure"], tuned["alone"], tuned["plateau"]
    rows = []
    for number, (name, share) in enumerate(zip(tuned["runs"], tuned["shares"], strict=True)):
        ends = [shares[number] for shares in plateau]
        rows.append([name, f"{share:.0%}", f"{min(ends):.0%} to {max(ends):.0%}", figure(alone[name])])
    method = tuned["method"] if tuned["rrf_k"] is None else f"{tuned['method']} k={tuned['rrf_k']:g}"
    method += f" ({tuned['normalize']})" if tuned.get("normalize") else ""
    kept = tuned.get("keeps_untuned", False)
    if (untuned := tuned.get("untuned")) is not None:
        rows.append([f"{untuned['method']}, untuned", "", "", figure(untuned["score"])])
    if not kept:
        rows.append([f"{method}, same queries", "", "", figure(tuned["score"])])
    if tuned["held_out"] is not None:
        rows.append([f"{'tuned' if kept else method}, held out", "", "", figure(tuned["held_out"])])
    console.table(["run", "weight", "plateau", measure], rows)
    prose(_evidence(tuned))
    if "pseudo_queries" in tuned:
        console.result(pseudo_note(tuned["pseudo_queries"]))


def _evidence(tuned: Mapping[str, Any]) -> Iterator[str]:
    """Yield sentences on the choice, its evidence, and the worth of more judged queries."""
    if tuned.get("keeps_untuned", False):
        yield f"Chosen: the untuned {tuned['method']}, as nothing else is better by the evidence."
    elif tuned["single_run_chosen"]:
        yield f"Chosen: {max(zip(tuned['weights'], tuned['runs'], strict=True))[1]} alone."
    if tuned["held_out"] is None:
        yield f"One judged query: there is no held-out score, and the gain over {tuned['best_single']} is unknown."
    if "machine_weight" in tuned:
        weight = f"{figure(tuned['machine_weight'], 2)} (0: useless, 1: as good as people)"
        yield f"Corrected by a machine, which judged {tuned['machine_queries']:,} more queries; its weight: {weight}."
    queries = console.counted(**{"judged query": tuned["queries"]})
    if tuned["no_prior"]:
        yield f"Evidence: {queries}; no curves of other collections, since {tuned['no_prior']}."
    else:
        few = f"; fewer than {FEWEST} change nothing" if tuned["queries"] < FEWEST else ""
        yield f"Evidence: {queries}, and the curves of other collections{few}."
    if (more := tuned.get("more_may_add")) is not None:
        yield f"{tuned['more_queries']:,} more may add {figure(more, 3)} {tuned['measure']} at most."


def show_verdict(tuned: Mapping[str, Any]) -> None:
    """Print whether the tuned fusion is better than the best run; nothing for pseudo-queries."""
    if verdict := tuned.get("verdict"):
        prose([Verdict.stored(verdict).sentence()])


def show_candidates(tried: Sequence[Mapping[str, Any]]) -> None:
    """Print the measurements of the candidates; see `indexes.auto.Candidate`."""
    rows = []
    for each in tried:
        measured = f"{each['size']:,.0f}", figure(each["recall"]), f"{each['milliseconds']:.2f}"
        rows.append([each["index_type"], each["factory"], f"{each['documents']:,}", *measured])
    headings = ["index type", "factory", "documents", "bytes/document", "recall@100", "ms/query"]
    console.table(headings, rows, left=["factory"])


def show_tuned_weight(tuned: TunedWeight, combine: str, measure: str, depth: int) -> None:
    """Print the selected weight of a combination, those within one standard error of the best, and the scores.

    Args:
        tuned: the selection.
        combine: how the encoders are combined.
        measure: name of the measure.
        depth: candidates of each encoder.
    """
    shares = ("", "") if tuned.share is None else (f"{1 - tuned.share:.0%}", f"{tuned.share:.0%}")
    weights, plateau = ("1", f"{tuned.weight:g}"), ("", "{:g} to {:g}".format(*tuned.near))
    scores = (figure(values.mean()) for values in tuned.alone.values())
    rows = [list(cells) for cells in zip(tuned.alone, weights, shares, plateau, scores, strict=True)]
    rows.append([f"{combine}, same queries", "", "", "", figure(tuned.score)])
    if tuned.held_out is not None:
        rows.append([f"{combine}, held out", "", "", "", figure(tuned.held_out.mean())])
    console.table(["encoder", "weight", "share", "plateau", measure], rows)
    judged = console.counted(**{"judged query": tuned.table.queries})
    said = [f"{measure} of the best {depth:,} documents of each encoder alone, {judged}."]
    if tuned.gain is None:
        said.append("One judged query: there is no held-out score.")
    else:
        gain, low, high = (with_sign(value, 4) for value in tuned.gain)
        said.append(f"Gain over {tuned.best_single} alone on held-out queries: {gain} [{low}, {high}] (95% interval).")
    prose(said)


def show_tally(tally: Mapping[str, Mapping[str, int]]) -> None:
    """Print counts per source.

    Args:
        tally: source -> name of the count -> number.
    """
    rows = dict.fromkeys(what for counts in tally.values() for what in counts)
    table = [(what, *(f"{counts.get(what, 0):,}" for counts in tally.values())) for what in rows]
    console.table(("", *tally), table)


@dataclass(frozen=True)
class Check:
    """Result of one check of `doctor`.

    Attributes:
        name: the requirement.
        present: the requirement is met.
        found: version or location.
        needed: commands fail without it.
        advice: installation command, or a hint, where the requirement is not met.
    """

    name: str
    present: bool
    found: str
    needed: bool = True
    advice: str = ""

    @property
    def state(self) -> str:
        """Return `ok`, `missing` (needed) or `none` (optional)."""
        return "ok" if self.present else "missing" if self.needed else "none"


def show_checks(checks: Sequence[Check], settings: Doctor) -> None:
    """Print the checks.

    Raises:
        HybridError: a required component is missing.
    """
    console.table(
        ("component", "state", "found", "advice"),
        [(check.name, check.state, check.found, "" if check.present else check.advice) for check in checks],
        left=("state", "found", "advice"),
    )
    if missing := [check.name for check in checks if check.state == "missing"]:
        raise HybridError(f"doctor: missing: {', '.join(missing)}; see the column `advice`", code="missing-package")


_BAR_WIDTH = 40  # characters of a probability of 1


def show_calibration(stored: Mapping[str, Any]) -> None:
    """Print the calibration error and the reliability of a calibration; see `retrieval.calibration.Calibration`.

    A bar is the share of relevant hits, a mark the mean probability: both end at the same place if it is right.
    """
    rows = [
        [figure(likely, 3), figure(share, 3), f"{hits:,}", _bar(likely, share)]
        for likely, share, hits in stored["bins"]
    ]
    console.table(
        ["probability", "relevant", "hits", "reliability (bar: relevant, |: probability)"],
        rows,
        left=["reliability (bar: relevant, |: probability)"],
    )
    counts = f"{stored['queries']:,} judged queries, {stored['relevant']:,} relevant hits"
    error = f"Expected calibration error: {figure(stored['error'])} for the first ten hits of left-out queries"
    prose([f"{error} ({counts}).", "Unjudged documents count as not relevant."])


def _bar(probability: float, relevant: float) -> str:
    bar = ("=" * round(relevant * _BAR_WIDTH)).ljust(_BAR_WIDTH + 1)
    mark = round(probability * _BAR_WIDTH)
    return f"{bar[:mark]}|{bar[mark + 1 :]}".rstrip()
