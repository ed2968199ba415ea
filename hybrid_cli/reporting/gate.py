"""The result of `gate`: as text, JSON and a Markdown summary."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any, Literal

from hybrid_cli import console
from hybrid_cli.commands.analysis import Gate
from hybrid_cli.evaluation.gate import DEVIATION_OF_DIFFERENCES, Deviation, Origin
from hybrid_cli.evaluation.significance import ALPHA
from hybrid_cli.reporting.complement import RELEVANT, Hit, hit_text
from hybrid_cli.reporting.tables import Result, Table, figure, with_sign

EXIT_CODES = {"passed": 0, "new baseline": 0, "failed": 1, "undecided": 4}
_FEWEST_RANKS = 3
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
        gone: queries that are left out -> their relevant documents that were deleted since the baseline.
        written: the means in the old and in the new baseline, if it was written in place of a comparison.
    """

    baseline: Path
    queries: int
    max_drop: float
    tests: Sequence[Tested]
    changed: Mapping[str, tuple[Any, Any]]
    lost: Sequence[Lost] = ()
    gone: Mapping[str, Sequence[str]] = field(default_factory=dict)
    written: Result | None = None

    @property
    def dropped(self) -> list[Tested]:
        """Return the measures with a significant drop."""
        return [test for test in self.tests if test.dropped]

    @property
    def undecided(self) -> list[Tested]:
        """Return the measures whose mean fell beyond the tolerance, which may be chance."""
        return [test for test in self.tests if not test.dropped and test.before - test.now > self.max_drop]

    @property
    def verdict(self) -> Literal["passed", "failed", "undecided", "new baseline"]:
        """Return whether a measure dropped, whether one may have, or neither; or that the baseline was written."""
        if self.written is not None:
            return "new baseline"
        return "failed" if self.dropped else "undecided" if self.undecided else "passed"

    @property
    def passed(self) -> bool:
        """Return whether no mean fell beyond the tolerance."""
        return self.verdict == "passed"

    def result(self) -> Result:
        """Return the verdict in the form of every format."""
        if self.written is not None:
            return self.written
        rows = [
            [
                test.measure,
                figure(test.before),
                figure(test.now),
                with_sign(test.now - test.before, 4),
                f"{with_sign(test.interval[0])} to {with_sign(test.interval[1])}",
                "<.001" if test.p < 0.001 else figure(test.p, 3),
                "none" if test.smallest_drop is None else figure(test.smallest_drop, 3),
            ]
            for test in self.tests
        ]
        columns = ["measure", "baseline", "now", "difference", "95% interval", "p", "detectable drop"]
        measures = [
            {**asdict(test), "difference": test.now - test.before, "dropped": test.dropped} for test in self.tests
        ]
        content = {
            "passed": self.passed,
            "verdict": self.verdict,
            "baseline": str(self.baseline),
            "queries": self.queries,
            "max_drop": self.max_drop,
            "measures": measures,
            "changed": {name: {"before": before, "now": now} for name, (before, now) in self.changed.items()},
            "lost": [asdict(query) for query in self.lost],
            "gone": self.gone,
        }
        return Result([Table(columns, rows), *self._sentences(), *map(_lost_table, self.lost)], content)

    def _sentences(self) -> Iterator[str]:
        """Yield the verdict, the smallest drop that fails, and the changes of the system."""
        beyond = f" by more than {figure(self.max_drop)}" if self.max_drop else ""
        names = " and ".join(test.measure for test in self.dropped or self.undecided or self.tests)
        yield {
            "passed": f"Passed: {names} did not drop{beyond}.",
            "failed": f"Failed: {names} dropped{beyond}.",
            "undecided": f"Cannot tell: {names} fell{beyond}, which may be chance; judge more queries.",
        }[self.verdict]
        if self.gone:
            docids = sorted({docid for docids in self.gone.values() for docid in docids})
            listed = ", ".join([*docids[:_FEWEST_RANKS], *(["..."] if len(docids) > _FEWEST_RANKS else [])])
            left_out = console.counted(query=len(self.gone))
            yield f"Left out: {left_out} with a relevant document that was deleted ({listed})."
        widest = max(self.tests, key=lambda test: test.smallest_drop or 0)
        if widest.smallest_drop is None:
            yield f"{console.counted(query=self.queries)} cannot show a drop: all signs may be chance."
        else:
            of = f" of {widest.measure}" if len(self.tests) > 1 else ""
            drop, beyond = figure(widest.smallest_drop, 3), figure(self.max_drop + widest.smallest_drop, 3)
            tolerance = f" beyond the tolerance, {beyond} in all," if self.max_drop else ""
            sentence = f"{self.queries:,} queries detect a drop{of} of {drop}{tolerance} with a probability of 80%."
            yield sentence + _SOURCES[widest.deviation.origin]
        if self.changed:
            yield f"Changed since the baseline: {'; '.join(_changes(self.changed))}."
        if self.lost:
            yield f"Queries that lost most {self.dropped[0].measure} ({RELEVANT} relevant):"


def renewed(
    path: Path,
    queries: int,
    means: Mapping[str, tuple[float | None, float]],
    differences: Mapping[str, Sequence[str]],
) -> Gated:
    """Return that a baseline was written.

    Args:
        path: the baseline.
        queries: number of judged queries.
        means: measure -> mean in the old baseline, None if there was none, and now.
        differences: the queries that differ from those of the old baseline; see `Baseline.differences`.
    """
    rows = [
        [name, "-", figure(now), "-"]
        if before is None
        else [name, figure(before), figure(now), with_sign(now - before, 4)]
        for name, (before, now) in means.items()
    ]
    blocks: list[Table | str] = [
        Table(["measure", "before", "now", "difference"], rows),
        f"Written: {path}, {console.counted(query=queries)}. Commit it.",
    ]
    if differences:
        blocks.append(f"{describe_differences(differences)}: the means are not of the same queries or judgments.")
    named = {name: {"before": before, "now": now} for name, (before, now) in means.items()}
    content = {"written": str(path), "queries": queries, "means": named, "differences": differences}
    return Gated(path, queries, 0.0, (), {}, written=Result(blocks, content))


def show(found: Gated, settings: Gate) -> int:
    """Print the result of `gate`, and return the exit code: 1 after a drop, 4 if a fall may be chance."""
    result = found.result()
    if settings.form == "json":
        console.result(result.text("json"))
    else:
        result.show()
    return EXIT_CODES[found.verdict]


def describe_differences(differences: Mapping[str, Sequence[str]]) -> str:
    """Return differences of queries in words: `2 queries added (q1, q2), 1 query removed (q7)`."""
    parts = []
    for name, qids in differences.items():
        listed = ", ".join([*qids[:_FEWEST_RANKS], *(["..."] if len(qids) > _FEWEST_RANKS else [])])
        noun, _, rest = name.partition(" ")
        parts.append(f"{len(qids):,} {'query' if len(qids) == 1 else noun} {rest} ({listed})")
    return ", ".join(parts)


def _changes(changed: Mapping[str, tuple[Any, Any]]) -> Iterator[str]:
    """Yield the changed settings in words; fingerprints are shortened."""
    for name, values in changed.items():
        yield f"{name} {' -> '.join('none' if value is None else _HASH.sub(_SHORT, str(value)) for value in values)}"


def _lost_table(query: Lost) -> Table:
    """Return the hits before and now, side by side, down to the last relevant one."""
    pairs = list(zip_longest(query.hits_before, query.hits_now))
    relevant = [rank for rank, pair in enumerate(pairs, 1) if any(hit is not None and hit.relevant for hit in pair)]
    rows = [[hit_text(hit) if hit else "" for hit in pair] for pair in pairs[: max([_FEWEST_RANKS, *relevant])]]
    title = f"{query.qid}: {query.text}  {figure(query.before)} -> {figure(query.now)}"
    return Table(["before", "now"], rows, title, left=2, shared=True)
