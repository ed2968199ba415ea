"""`gate`: check that retrieval quality has not dropped since a committed baseline."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from hybrid_cli import artifacts, console
from hybrid_cli.errors import path_error
from hybrid_cli.evaluation.baseline import Baseline, OtherQueries
from hybrid_cli.reporting.gate import Gated, Renewed, describe_differences
from hybrid_cli.reporting.tables import figure
from hybrid_cli.settings import Gate
from hybrid_cli.settings.analysis import GateInputs
from hybrid_cli.settings.base import command_line
from hybrid_cli.stages import call, stage
from hybrid_cli.storage import disk
from hybrid_cli.workflows.gate import Measured, compare, lost_most
from hybrid_cli.workflows.retrievers import with_searched

_MEASURE = "nDCG@10"


@stage(Gate)
def gate(settings: Gate) -> Gated | Renewed:
    """Compare a system with a baseline query by query, or write the baseline.

    Returns:
        `Renewed` with `write`, else `Gated`, whose `passed` is False after a significant drop.

    Raises:
        OtherQueries: the queries or judgments are not those of the baseline; exit code 3.
        InputError: no baseline, one without a measure, one query, no relevant document, or unusable inputs.
    """
    stored = _stored(settings)
    measures = list(settings.measure or (stored.measures if stored else (_MEASURE,)))
    if not settings.write and stored and (others := [name for name in measures if name not in stored.measures]):
        problem = f"has no {others[0]}, but {', '.join(stored.measures)}; pass --write to renew it, or its measures"
        raise path_error(settings.baseline, problem, code="no-such-measure", choices=list(stored.measures))
    with tempfile.TemporaryDirectory() as folder:
        inputs = [*filter(None, [settings.collection]), settings.system]
        options = {name: getattr(settings, name) for name in ("split", "qrels", "queries", "corpus", "memory")}
        searched = with_searched(GateInputs(inputs, measures=measures, **options), Path(folder), call)
        measured = Measured.of(searched, settings.system)
        if stored is None or settings.write:
            result: Gated | Renewed = _renewed(settings.baseline, stored, measured.values)
        else:
            result = _gated(settings, stored, measured, measures)
    if settings.summary is not None:
        disk.Growing(settings.summary).add(result.markdown() + "\n")
    return result


def _stored(settings: Gate) -> Baseline | None:
    """Return the baseline; None if it is to be written and does not exist."""
    if settings.write:
        artifacts.check_output_path(settings.baseline, {"system": settings.system})
    if settings.baseline.exists():
        return Baseline.read(settings.baseline)
    if settings.write:
        return None
    write = command_line(settings.changed(write=True, max_drop=None))
    raise path_error(settings.baseline, f"no such file; write it with `{write}`", code="no-such-file", command=write)


def _renewed(path: Path, stored: Baseline | None, now: Baseline) -> Renewed:
    """Write the baseline, with the deviations of the differences from the old one."""
    differences = stored.differences(now) if stored else {}
    known = dict(stored.deviations) if stored else {}
    means: dict[str, tuple[float | None, float]] = {
        name: (None, float(now.values([name]).mean())) for name in now.measures
    }
    for name in now.measures:
        if stored is None or name not in stored.measures:
            continue
        before, after = stored.values([name])[:, 0], now.values([name])[:, 0]
        means[name] = float(before.mean()), float(after.mean())
        if not differences and (before != after).any():
            known[name] = float((after - before).std(ddof=1))
    replace(now, deviations={name: known[name] for name in now.measures if name in known}).write(path)
    return Renewed(path, len(now.queries), means, differences)


def _gated(settings: Gate, stored: Baseline, measured: Measured, measures: Sequence[str]) -> Gated:
    """Compare with the baseline; warn if the queries detect large drops only."""
    if differences := stored.differences(measured.values):
        problem = f"is of other queries or judgments: {describe_differences(differences)}; pass --write to renew it"
        raise OtherQueries(
            f"{settings.baseline}: {problem}", code="other-queries", path=settings.baseline, differences=differences
        )
    result = compare(settings.baseline, stored, measured.values, measures, settings.max_drop)
    for test in result.tests:
        if test.smallest_drop is None:
            problem = f"{console.counted(query=result.queries)} cannot show a drop of {test.measure}; judge more"
            console.warn(problem, code="too-few-queries", measure=test.measure, count=result.queries)
        elif test.smallest_drop > result.max_drop > 0:
            needed = math.ceil(result.queries * (test.smallest_drop / result.max_drop) ** 2)
            console.warn(
                f"{result.queries:,} queries detect drops of {test.measure} from {figure(test.smallest_drop, 3)} on, "
                f"more than --max-drop {result.max_drop:g}; about {needed:,} queries would detect one of this size",
                code="undetectable-drop", measure=test.measure, drop=test.smallest_drop, needed=needed,
            )  # fmt: skip
    return replace(result, lost=lost_most(result, stored, measured)) if result.dropped else result
