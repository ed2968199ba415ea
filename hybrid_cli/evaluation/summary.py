"""What an evaluation found, in the four forms that people and programs read."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

import polars as pl

from hybrid_cli import config, console
from hybrid_cli.config import SignificanceTest
from hybrid_cli.errors import InputError
from hybrid_cli.evaluation import complement_view, layout

if TYPE_CHECKING:
    from rich.table import Table

    from hybrid_cli.evaluation.complement import Complement

Format = Literal["table", "json", "csv", "markdown"]
FORMATS: tuple[Format, ...] = get_args(Format)
TESTS: tuple[SignificanceTest, ...] = get_args(SignificanceTest)

_LETTERS = "abcdefghijklmnoprstuvwxyz"
_RAISED = dict(zip(_LETTERS, "ᵃᵇᶜᵈᵉᶠᵍʰⁱʲᵏˡᵐⁿᵒᵖʳˢᵗᵘᵛʷˣʸᶻ", strict=True))
MOST_BASELINES = len(_LETTERS)
_BELOW = "⁻"
COUNTS = {"judged": "judged", "answered": "answered", "missing": "missing = 0", "unjudged": "unjudged"}


@dataclass(frozen=True)
class Summary:
    """Means, counts and comparisons of some runs.

    Attributes:
        values: run, measure, qid, value.
        counts: run -> judged, answered, missing and unjudged queries; `Judged@10`; `removed` hits where asked for.
        comparisons: what `significance.compare` returns.
        intervals: of the means, as `intervals.intervals` returns them.
        baselines: the runs that the others were compared with, in the order of their letters.
        settings: relevance_level, test, correction, alpha, permutations, resamples, confidence, seed,
            nothing_relevant; overlap_with where that was asked for.
        complement: two of the runs beside each other, where that was asked for.
    """

    values: pl.DataFrame
    counts: Mapping[str, Mapping[str, float]]
    comparisons: pl.DataFrame
    intervals: pl.DataFrame
    baselines: Sequence[str]
    settings: Mapping[str, Any]
    complement: Complement | None = None

    @property
    def runs(self) -> list[str]:
        """The names of the runs, in the order given."""
        return list(self.counts)

    @property
    def measures(self) -> list[str]:
        """The measures, in the order given."""
        return self.values["measure"].unique(maintain_order=True).to_list()

    @property
    def means(self) -> dict[tuple[str, str], float]:
        """(run, measure) -> the mean over all judged queries, 0 for those that the run misses."""
        return {(run, name): mean for run, name, mean in self.intervals.select("run", "measure", "mean").iter_rows()}

    @property
    def ends(self) -> dict[tuple[str, str], tuple[float, float]]:
        """(run, measure) -> the ends of the confidence interval of the mean."""
        rows = self.intervals.select("run", "measure", "low", "high").iter_rows()
        return {(run, name): (low, high) for run, name, low, high in rows}

    def queries(self, measure: str) -> int:
        """The number of queries behind the mean of a measure."""
        return self.values.filter(measure=measure)["qid"].n_unique()


def show(summary: Summary, form: Format = "table") -> None:
    """Print the summary on stdout."""
    if form == "table":
        _show_table(summary)
    elif form in FORMATS:
        console.result({"json": as_json, "csv": as_csv, "markdown": as_markdown}[form](summary))
    else:
        raise InputError(f"format '{form}' is unknown; there are {', '.join(FORMATS)}")


# ----------------------------------------------------------------------------------------------------------- programs


def as_json(summary: Summary) -> str:
    """Everything, for programs; a p-value that does not exist is null."""
    means, ends, names = summary.means, summary.ends, summary.measures
    runs = [
        {
            "run": run,
            "means": {name: means[run, name] for name in names},
            "intervals": {name: list(ends[run, name]) for name in names},
            **summary.counts[run],
        }
        for run in summary.runs
    ]
    comparisons = [
        {key: None if isinstance(value, float) and math.isnan(value) else value for key, value in row.items()}
        for row in summary.comparisons.iter_rows(named=True)
    ]
    content = {
        "queries": {name: summary.queries(name) for name in summary.measures},
        "runs": runs,
        "baselines": list(summary.baselines),
        "comparisons": comparisons,
        **summary.settings,
    }
    if summary.complement:
        content["complement"] = complement_view.as_dict(summary.complement)
    return json.dumps(content, indent=2, ensure_ascii=False)


def as_csv(summary: Summary) -> str:
    """A row for each run, measure and baseline it was compared with (one without a baseline where with none).

    Then, where two runs were set beside each other, a row for each figure of that.
    """
    rows = [*_csv_rows(summary), *(complement_view.figures(summary.complement) if summary.complement else ())]
    out = io.StringIO()
    columns = dict.fromkeys([*rows[0], *summary.comparisons.columns, *summary.settings])
    writer = csv.DictWriter(out, list(columns), lineterminator="\n")
    writer.writeheader()
    writer.writerows({**row, **summary.settings} for row in rows)
    return out.getvalue().removesuffix("\n")


def _csv_rows(summary: Summary) -> Iterator[dict[str, Any]]:
    for run, measure, mean, low, high in summary.intervals.iter_rows():
        ours = {"run": run, "measure": measure, "mean": repr(mean), "low": repr(low), "high": repr(high)}
        ours |= {"queries": summary.queries(measure), **summary.counts[run]}
        compared = summary.comparisons.filter(run=run, measure=measure)
        for row in compared.iter_rows(named=True) if len(compared) else [{}]:
            yield {**ours, **row}


def as_markdown(summary: Summary) -> str:
    """Three tables (means, comparisons, counts) and the legend."""
    best, widths = leaders(summary), _half_widths(summary)
    means = [
        [
            lettered(summary, run),
            *((f"**{text}**" if (run, name) in best else text) + f" {widths[run, name]}" for name, text in row.items()),
        ]
        for run, row in _figures(summary).items()
    ]
    names = [COUNTS.get(name, name) for name in next(iter(summary.counts.values()))]
    counts = [[run, *map(layout.count, row.values())] for run, row in summary.counts.items()]
    blocks = [layout.markdown_table(["run", *summary.measures], means)]
    if len(summary.comparisons):
        rows = [[layout.cell(value) for value in row] for row in summary.comparisons.drop("queries").iter_rows()]
        blocks.append(layout.markdown_table(summary.comparisons.drop("queries").columns, rows, left=3))
    blocks += [layout.markdown_table(["queries", *names], counts), *legend(summary)]
    if summary.complement:
        blocks.append(complement_view.as_markdown(summary.complement))
    return "\n\n".join(blocks)


# ------------------------------------------------------------------------------------------------------------- people


def _show_table(summary: Summary) -> None:
    out = console.stdout()
    out.print(_means_table(summary))
    out.print(_counts_table(summary))
    for line in legend(summary):
        out.print(line, markup=False, highlight=False)
    if summary.complement:
        complement_view.show(summary.complement)


def _means_table(summary: Summary) -> Table:
    """One row a run; cells are padded, so that the points stand below each other whatever marks follow."""
    from rich.text import Text

    best, figures, widths = leaders(summary), _figures(summary), _half_widths(summary)
    table = layout.table("run", summary.measures, justify="left", wrap=True)
    whole = {name: any(row[name].startswith("1") for row in figures.values()) for name in summary.measures}
    longest = {name: max(len(row[name]) for row in figures.values()) for name in summary.measures}
    for run, row in figures.items():
        cells = []
        for name, text in row.items():
            shown = text if text.startswith("1") or not whole[name] else f" {text}"
            bold = "bold" if (run, name) in best else ""
            cells.append(Text(shown.ljust(longest[name] + 1), bold).append(widths[run, name], "not bold dim"))
        table.add_row(Text(lettered(summary, run), no_wrap=True), *cells)
    return table


def _counts_table(summary: Summary) -> Table:
    from rich.text import Text

    table = layout.table("queries", [COUNTS.get(name, name) for name in next(iter(summary.counts.values()))])
    for run, counts in summary.counts.items():
        table.add_row(Text(run), *map(layout.count, counts.values()))
    return table


def _figures(summary: Summary) -> dict[str, dict[str, str]]:
    """run -> measure -> mean with the letters of the baselines from which it differs."""
    means, marks = summary.means, significant(summary)
    return {
        run: {name: layout.figure(means[run, name]) + marks.get((run, name), "") for name in summary.measures}
        for run in summary.runs
    }


def _half_widths(summary: Summary) -> dict[tuple[str, str], str]:
    """(run, measure) -> `±.021`, half of what the confidence interval covers."""
    return {key: f"±{layout.figure((high - low) / 2, 3)}" for key, (low, high) in summary.ends.items()}


def significant(summary: Summary) -> dict[tuple[str, str], str]:
    """(run, measure) -> raised letters of the baselines it is significantly above, then those it is below."""
    marks: dict[tuple[str, str], list[str]] = {}
    if not len(summary.comparisons):
        return {}
    p = pl.col(f"p_{summary.settings['test']}_corrected")
    found = summary.comparisons.filter(p.is_not_nan() & (p < summary.settings["alpha"]))
    for run, measure, baseline, difference in found.select("run", "measure", "baseline", "difference").iter_rows():
        letter = _RAISED[_LETTERS[summary.baselines.index(baseline)]]
        marks.setdefault((run, measure), []).append(letter if difference > 0 else _BELOW + letter)
    return {key: "".join(sorted(letters, key=lambda mark: mark.startswith(_BELOW))) for key, letters in marks.items()}


def leaders(summary: Summary) -> set[tuple[str, str]]:
    """The runs that show the highest figure of a measure; none where there is one run only."""
    means = summary.means
    top = {name: max(layout.figure(means[run, name]) for run in summary.runs) for name in summary.measures}
    return {key for key, mean in means.items() if len(summary.runs) > 1 and layout.figure(mean) == top[key[1]]}


def lettered(summary: Summary, run: str) -> str:
    """The run's name, with its letter where it is a baseline that marks refer to."""
    if run not in summary.baselines or not len(summary.comparisons):
        return run
    return f"{run} ({_LETTERS[summary.baselines.index(run)]})"


def legend(summary: Summary, more: str = "better than", less: str = "worse") -> Iterator[str]:
    """What intervals, marks and zeros mean, a line each; `more` and `less` say what a higher or a lower mean is."""
    settings = summary.settings
    yield (
        f"± half of the {settings['confidence']:.0%} interval of the mean: {settings['resamples']:,} bootstrap samples "
        f"of the queries, seed {settings['seed']}."
    )
    if len(summary.comparisons):
        marks = [_RAISED[letter] for letter, _ in zip(_LETTERS, summary.baselines, strict=False)]
        letters = ", ".join(f"{mark} {more} {name}" for mark, name in zip(marks, summary.baselines, strict=True))
        family = len(summary.comparisons) // len(summary.measures)
        yield (
            f"{letters} ({_BELOW}{marks[0]} {less}): p < {settings['alpha']:g}, two-sided {test_in_words(settings)}, "
            + (f"{_correction_in_words(settings['correction'], family)}; n = {_sizes(summary)}.")
        )
    if settings["nothing_relevant"]:
        yield (
            f"{settings['nothing_relevant']:,} judged queries have nothing relevant "
            f"(grade {settings['relevance_level']} or more) and count as 0."
        )
    if "overlap_with" in settings:
        how = config.Complementarity()
        yield (
            f"RBO: rank-biased overlap with {settings['overlap_with']}, p = {how.rbo_p:g}, first {how.rbo_depth} hits, "
            "extrapolated."
        )


def test_in_words(settings: Mapping[str, Any]) -> str:
    """The test that marks tables."""
    if settings["test"] == "t":
        return "paired t-test"
    return f"sign-flip permutation test ({settings['permutations']:,}, seed {settings['seed']})"


def _correction_in_words(correction: str, family: int) -> str:
    if correction == "none":
        return "not corrected"
    comparisons = "1 comparison" if family == 1 else f"{family} comparisons"
    return f"{correction.capitalize()} over {comparisons} a measure"


def _sizes(summary: Summary) -> str:
    """`120`, or `120 (100 for acc@20)` where measures have queries of their own."""
    sizes = {name: summary.queries(name) for name in summary.measures}
    usual = max(sizes.values())
    others = ", ".join(f"{size:,} for {name}" for name, size in sizes.items() if size != usual)
    return f"{usual:,} ({others})" if others else f"{usual:,}"
