"""From findings to the sections of the page, each only where there is something to show."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

import polars as pl

from hybrid_cli import config, console
from hybrid_cli.errors import HybridError
from hybrid_cli.lexical.analysis import Analyzer
from hybrid_cli.reporting import complement, depth, groups, lists, memory, overview, queries, training
from hybrid_cli.reporting.data import Findings
from hybrid_cli.reporting.memory import Held
from hybrid_cli.reporting.page import Section


def sections(
    found: Findings,
    how: config.Reporting,
    curves: Mapping[str, pl.DataFrame],
    held: Mapping[str, Sequence[Held]],
    language: str,
) -> Iterator[Section]:
    """All sections but the last, which says where this comes from.

    Args:
        curves: model -> step, name, value.
        held: run -> its indexes.
        language: of the documents.
    """
    runs = found.summary.runs
    yield overview.section(found.summary)
    yield depth.section(found)
    if found.complement:
        yield complement.section(found.complement, runs, how.drawn)
    if found.matches:
        yield queries.section(found, how.dots)
    if len(found.helped) or len(found.hurt):
        yield lists.section(found, _analyse(language))
    if found.groups:
        yield groups.section(found.groups, found.measure, runs)
    if curves:
        yield training.section(curves)
    if held:
        means = {run: found.summary.means[run, found.measure] for run in held}
        yield memory.section(held, means, found.measure, runs)


def _analyse(language: str) -> lists.Analyse:
    """Lucene's terms, or where no Java works the words in lower case."""
    try:
        return Analyzer(language).analyze
    except HybridError as error:
        console.note(f"report: words of the queries are marked as they are written, without stems: {error}")
        return lambda texts: [re.findall(r"\w+", text.casefold()) for text in texts]
