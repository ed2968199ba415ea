"""`report`: write an HTML page that compares runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import polars as pl

from hybrid_cli import artifacts, console, runs
from hybrid_cli.artifacts import Output, lineage
from hybrid_cli.artifacts.judged import reused, warn_raters
from hybrid_cli.artifacts.lineage import Held
from hybrid_cli.artifacts.retrievers import user_folder
from hybrid_cli.commands import Report
from hybrid_cli.commands.analysis import ACC
from hybrid_cli.commands.common import NameOrPath
from hybrid_cli.errors import option_error
from hybrid_cli.lexical.options import ENGLISH
from hybrid_cli.reporting import page, sections
from hybrid_cli.reporting.complement import Texts
from hybrid_cli.reporting.data import Findings, find
from hybrid_cli.reporting.plan import EvaluationPlan, judgments, with_searched
from hybrid_cli.reporting.sections import at_depths
from hybrid_cli.reporting.summary import chosen_baselines
from hybrid_cli.stages import call, stage
from hybrid_cli.storage import Kind, layout


@stage(Report)
def report(settings: Report) -> Path:
    """Write the report of runs as one HTML file.

    Returns:
        Path of the page.

    Raises:
        InputError: unknown measure, missing file, or unknown run.
        PackageError: an index whose queries a model encodes without `dense`.
    """
    settings = with_searched(settings, settings.output.parent, call)
    plan = EvaluationPlan.of(settings)
    if plan.qrels is not None:
        warn_raters(plan.qrels)
    plan = replace(plan, pair=plan.pair or lineage.sides(plan.runs))
    baselines = chosen_baselines(settings.baseline, list(plan.runs), plan.pair or ())
    texts = Texts.of(settings, plan)
    held, curves = _indexes_of_runs(plan.runs, settings.index), _curves(plan.runs, settings.model)
    inputs = plan.inputs() | ({"queries": texts.queries, "corpus": texts.corpus} if texts else {})
    reranked = runs.name_runs(settings.reranked)
    inputs |= {f"reranked {name}": folder for name, folder in reranked.items()}
    folders = dict.fromkeys(index.index for indexes in held.values() for index in indexes)
    inputs |= {f"index {number}": folder for number, folder in enumerate(folders, 1)}
    inputs |= {f"model {name}": folder for name, folder in curves.items()}
    options = settings.recorded(measured=ACC if plan.by_answers else "") | plan.options()
    options |= {"complement": plan.pair, "baseline": baselines}
    output = artifacts.output_of(settings, Kind.REPORT, inputs, options)
    used = reused(plan.runs, plan.qrels)
    for reuse in used:
        reuse.warn()
    if not output.up_to_date:
        data = find(plan, settings, baselines, texts, [str(reuse) for reuse in used])
        owners = lineage.curve_owners(plan.runs)
        learned = {
            name: (owners.get(folder.resolve()), pl.read_parquet(folder / layout.CURVE, glob=False))
            for name, folder in curves.items()
        }
        studies = {name: at_depths(name, folder, plan) for name, folder in reranked.items()}
        languages = filter(None, map(lineage.language, plan.runs.values()))
        parts = list(sections.sections(data, learned, held, next(languages, ENGLISH), studies))
        judged, split = judgments(settings), f", {settings.split}" if settings.split else ""
        title = judged.stem if judged.is_file() else user_folder(judged).resolve().name + split
        _write(output, title, data, parts)
    return settings.output


# -------------------------------------------------------------------------------------------------------------- inputs


def _indexes_of_runs(named: Mapping[str, Path], given: Sequence[str]) -> dict[str, list[Held]]:
    """Return run -> indexes, from `--index` or from the manifest of the run."""
    held = {name: list(lineage.indexes_of(path).values()) for name, path in named.items()}
    chosen: dict[str, list[Held]] = {}
    for text in given:
        name, equals, folder = text.partition("=")
        if not equals or name not in named:
            reason = f"needs RUN=FOLDER; the runs are {', '.join(named)}"
            raise option_error("index", text, reason, code="unknown-choice", choices=list(named))
        lineage.refuse_other_index(named[name], Path(folder))
        chosen.setdefault(name, []).append(lineage.index_parts(Path(folder)))
    return {name: indexes for name, indexes in (held | chosen).items() if indexes}


def _curves(named: Mapping[str, Path], given: Sequence[NameOrPath]) -> dict[str, Path]:
    """Return name -> folder of every encoder whose learning curve is shown."""
    known = {folder.resolve() for folder in runs.name_runs(given).values()}
    folders = dict.fromkeys(folder for path in named.values() for folder in lineage.curves(path))
    models = runs.name_runs([*given, *(folder for folder in folders if folder.resolve() not in known)])
    for folder in models.values():
        if not (folder / layout.CURVE).is_file():
            reason = f"has no {layout.CURVE}; pass an encoder of a training command"
            raise option_error("model", folder, reason, code="no-such-file", path=folder)
    return models


# ------------------------------------------------------------------------------------------------------------- writing


def _write(output: Output, title: str, findings: Findings, parts: Sequence[page.Section]) -> None:
    """Write the page."""
    drawn = [figure for part in parts for figure in part.figures]
    summary, queries = findings.summary, findings.summary.queries(findings.measure)
    count = console.counted(run=len(summary.runs))
    parts = [*parts, sections.provenance_section(output.manifest)]
    text = page.render(title, f"{count}, {queries:,} judged queries", sections.in_words(findings), parts, summary.runs)
    output.write_html(text, runs=len(summary.runs), queries=queries, figures=len(drawn))
    note = f"{len(drawn)} figures of {count}, {console.size(len(text.encode()))}"
    output.note(note, figures=len(drawn), runs=len(summary.runs))
