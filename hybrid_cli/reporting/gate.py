"""The result of `gate`: as text, JSON and a Markdown summary."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any, ClassVar

from hybrid_cli import console
from hybrid_cli.evaluation.gate import ALPHA, DEVIATION_OF_DIFFERENCES, Deviation, Origin
from hybrid_cli.reporting import tables
from hybrid_cli.reporting.complement import Hit
from hybrid_cli.reporting.snippets import cells
from hybrid_cli.reporting.tables import Table, figure, with_sign
from hybrid_cli.settings.analysis import Gate

_FEWEST_RANKS = 3
_RELEVANT = "●"
_HASH, _SHORT = re.compile(r"([0-9a-f]{8})[0-9a-f]{24}"), r"\1"
_EQUAL = " All values equal the baseline, so this is computed from the deviation of"
_SOURCES: Mapping[Origin, str] = {  # where the deviation behind a detectable drop comes from
    "differences": "",
    "earlier differences": f"{_EQUAL} the differences when it was renewed.",
    "values": f"{_EQUAL} the values themselves, times {DEVIATION_OF_DIFFERENCES:g}: an estimate.",
}


@dataclass(frozen=True)
class Tested:
    """One measure against the baseline.

    Attributes:
        before, now: means.
        interval: 95% interval of `now` minus `before`, by Student's t.
        p: p-value of a drop beyond the tolerance, corrected over the measures.
        smallest_drop: drop that this number of queries detects with a probability of 80%, beyond the tolerance; None
            for too few queries.
        deviation: standard deviation of the differences, of which `smallest_drop` follows.
    """

    measure: str
    before: float
    now: float
    interval: tuple[float, float]
    p: float
    smallest_drop: float | None
    deviation: Deviation

    @property
    def dropped(self) -> bool:
        """Return whether the drop is significant."""
        return self.p < ALPHA

    def content(self) -> dict[str, Any]:
        """Return all values, for JSON."""
        return {**asdict(self), "difference": self.now - self.before, "dropped": self.dropped}


@dataclass(frozen=True)
class Lost:
    """A query with a lower value than in the baseline.

    Attributes:
        text: text of the query; empty if it is unknown.
        before, now: values of the measure.
        hits_before, hits_now: first hits.
    """

    qid: str
    text: str
    before: float
    now: float
    hits_before: Sequence[Hit]
    hits_now: Sequence[Hit]


@dataclass(frozen=True)
class Gated:
    """The comparison of a system with a baseline.

    Attributes:
        queries: number of judged queries.
        tests: one per measure.
        changed: name -> values before and now, of the settings and parts of the system that differ.
        lost: after a drop, the queries that lost most by the first measure that dropped.
    """

    baseline: Path
    queries: int
    max_drop: float
    tests: Sequence[Tested]
    changed: Mapping[str, tuple[Any, Any]]
    lost: Sequence[Lost] = ()

    @property
    def dropped(self) -> list[Tested]:
        """Return the measures with a significant drop."""
        return [test for test in self.tests if test.dropped]

    @property
    def passed(self) -> bool:
        """Return whether there is no evidence of a drop."""
        return not self.dropped

    @property
    def exit_code(self) -> int:
        """Return 0 if the gate passed, else 1."""
        return int(not self.passed)

    def content(self) -> dict[str, Any]:
        """Return all values, for JSON."""
        return {
            "passed": self.passed,
            "baseline": str(self.baseline),
            "queries": self.queries,
            "max_drop": self.max_drop,
            "measures": [test.content() for test in self.tests],
            "changed": {name: {"before": before, "now": now} for name, (before, now) in self.changed.items()},
            "lost": [asdict(query) for query in self.lost],
        }

    def table(self) -> Table:
        """Return a row per measure."""
        rows = [
            [
                test.measure,
                figure(test.before),
                figure(test.now),
                with_sign(test.now - test.before, 4),
                f"{with_sign(test.interval[0])} to {with_sign(test.interval[1])}",
                "<.001" if test.p < 0.001 else figure(test.p, 3),
                _drop(test.smallest_drop),
            ]
            for test in self.tests
        ]
        return Table(["measure", "baseline", "now", "difference", "95% interval", "p", "detectable drop"], rows)

    def sentences(self) -> Iterator[str]:
        """Yield the verdict, the smallest drop that fails, and the changes of the system."""
        beyond = f" by more than {figure(self.max_drop)}" if self.max_drop else ""
        names = " and ".join(test.measure for test in self.dropped or self.tests)
        if self.passed:
            yield f"Passed: no evidence that {names} dropped{beyond}."
        else:
            yield f"Failed: {names} dropped{beyond}."
        yield self._power()
        if self.changed:
            yield f"Changed since the baseline: {'; '.join(_changes(self.changed))}."

    def _power(self) -> str:
        """Return which drops the queries can detect."""
        widest = max(self.tests, key=lambda test: test.smallest_drop or 0)
        if widest.smallest_drop is None:
            return (
                f"{console.counted(query=self.queries)} cannot show a drop: the signs of all differences may be chance."
            )
        of = f" of {widest.measure}" if len(self.tests) > 1 else ""
        drop, beyond = figure(widest.smallest_drop, 3), figure(self.max_drop + widest.smallest_drop, 3)
        tolerance = f" beyond the tolerance, {beyond} in all," if self.max_drop else ""
        sentence = f"{self.queries:,} queries detect a drop{of} of {drop}{tolerance} with a probability of 80%."
        return sentence + _SOURCES[widest.deviation.origin]

    def show(self) -> None:
        """Print the tables and sentences."""
        tables.show(self.table())
        tables.prose(self.sentences())
        if self.lost:
            tables.heading(f"Queries that lost most {self.dropped[0].measure} ({_RELEVANT} relevant)")
        for query in self.lost:
            tables.heading(_title(query))
            tables.show(_hits(query, (tables.stdout().width - 10) // 2))

    def markdown(self) -> str:
        """Return the summary for a pull request."""
        parts = [
            f"### Retrieval quality: {'passed' if self.passed else 'dropped'}",
            tables.markdown_table(self.table()),
        ]
        parts += map(tables.markdown, self.sentences())
        if self.lost:
            parts.append(f"Queries that lost most {tables.markdown(self.dropped[0].measure)} ({_RELEVANT} relevant):")
        for query in self.lost:
            hits = tables.markdown_table(_hits(query, 60))
            parts.append(f"<details><summary>{html.escape(_title(query))}</summary>\n\n{hits}\n\n</details>")
        return "\n\n".join(parts)


@dataclass(frozen=True)
class Renewed:
    """A baseline that was written.

    Attributes:
        queries: number of judged queries.
        means: measure -> mean in the old baseline, None if there was none, and now.
        differences: the queries that differ from those of the old baseline; see `Baseline.differences`.
    """

    baseline: Path
    queries: int
    means: Mapping[str, tuple[float | None, float]]
    differences: Mapping[str, Sequence[str]]
    exit_code: ClassVar[int] = 0

    def content(self) -> dict[str, Any]:
        """Return all values, for JSON."""
        means = {name: {"before": before, "now": now} for name, (before, now) in self.means.items()}
        return {
            "written": str(self.baseline),
            "queries": self.queries,
            "means": means,
            "differences": dict(self.differences),
        }

    def table(self) -> Table:
        """Return a row per measure."""
        rows = [
            [name, *(("-", figure(now), "-") if before is None else _moved(before, now))]
            for name, (before, now) in self.means.items()
        ]
        return Table(["measure", "before", "now", "difference"], rows)

    def sentences(self) -> Iterator[str]:
        """Yield what was written, and how its queries differ."""
        yield f"Written: {self.baseline}, {console.counted(query=self.queries)}. Commit it."
        if self.differences:
            yield f"{describe_differences(self.differences)}: the means are not of the same queries or judgments."

    def show(self) -> None:
        """Print the table and sentences."""
        tables.show(self.table())
        tables.prose(self.sentences())

    def markdown(self) -> str:
        """Return the summary for a pull request."""
        parts = ["### Retrieval quality: new baseline", tables.markdown_table(self.table())]
        return "\n\n".join([*parts, *map(tables.markdown, self.sentences())])


def show(result: Gated | Renewed, settings: Gate) -> int:
    """Print the result of `gate`, and return the exit code."""
    if settings.form == "json":
        console.result_json(result.content(), indent=2)
    else:
        result.show()
    return result.exit_code


def describe_differences(differences: Mapping[str, Sequence[str]]) -> str:
    """Return differences of queries in words: `2 queries added (q1, q2), 1 query removed (q7)`."""
    parts = []
    for name, qids in differences.items():
        listed = ", ".join([*qids[:_FEWEST_RANKS], *(["..."] if len(qids) > _FEWEST_RANKS else [])])
        noun, _, rest = name.partition(" ")
        parts.append(f"{len(qids):,} {'query' if len(qids) == 1 else noun} {rest} ({listed})")
    return ", ".join(parts)


def _drop(drop: float | None) -> str:
    return "none" if drop is None else figure(drop, 3)


def _moved(before: float, now: float) -> tuple[str, str, str]:
    return figure(before), figure(now), with_sign(now - before, 4)


def _changes(changed: Mapping[str, tuple[Any, Any]]) -> Iterator[str]:
    """Yield the changed settings in words; fingerprints are shortened."""
    for name, values in changed.items():
        yield f"{name} {' -> '.join('none' if value is None else _HASH.sub(_SHORT, str(value)) for value in values)}"


def _title(query: Lost) -> str:
    text = f"{query.qid}: {query.text}" if query.text else query.qid
    return f"{console.one_line(text)}  {figure(query.before)} -> {figure(query.now)}"


def _hits(query: Lost, room: int) -> Table:
    """Return the hits before and now, side by side, down to the last relevant one."""
    pairs = list(zip_longest(query.hits_before, query.hits_now))
    relevant = [rank for rank, pair in enumerate(pairs, 1) if any(hit is not None and hit.relevant for hit in pair)]
    shown = pairs[: max([_FEWEST_RANKS, *relevant])]
    rows = [[str(rank), *(_hit(hit, room) for hit in pair)] for rank, pair in enumerate(shown, 1)]
    return Table(["", "before", "now"], rows, left=3)


def _hit(hit: Hit | None, room: int) -> str:
    if hit is None:
        return ""
    return cells(f"{_RELEVANT if hit.relevant else ' '} {hit.docid}  {hit.title or hit.text}", room)
