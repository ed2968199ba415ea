"""`report`: one page that shows what some runs find, where they differ and why; and its figures for a paper."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import polars as pl

from hybrid_cli import artifacts, config, console, runs
from hybrid_cli.artifacts import Kind, Output
from hybrid_cli.config import AnswerMatch, Correction, SignificanceTest
from hybrid_cli.errors import InputError
from hybrid_cli.evaluation.complement import Texts, names_of, with_pair
from hybrid_cli.evaluation.plan import Comparing, Plan
from hybrid_cli.reporting import contents, figures, lineage, overview, page, provenance
from hybrid_cli.reporting.data import Findings, find
from hybrid_cli.reporting.memory import Held
from hybrid_cli.settings import IndexBm25

_DEFAULT = config.Evaluation()
_LANGUAGE = IndexBm25.language


def report(
    inputs: Sequence[str | Path],
    *,
    output: Path,
    split: str | None = None,
    qrels: Path | None = None,
    queries: Path | None = None,
    corpus: Path | None = None,
    measures: Sequence[str] = _DEFAULT.measures,
    relevance_level: int = _DEFAULT.relevance_level,
    baselines: Sequence[str] = (),
    test: SignificanceTest = _DEFAULT.test,
    correction: Correction = _DEFAULT.correction,
    answer_match: AnswerMatch = _DEFAULT.answer_match,
    remove_query: bool = False,
    complement: tuple[str, str] | None = None,
    changed: int = config.Reporting.changed,
    models: Sequence[str] = (),
    indexes: Sequence[str] = (),
    png: Path | None = None,
    seed: int = _DEFAULT.seed,
    overwrite: bool = False,
) -> Path:
    """Write the report of some runs as one HTML file.

    Args:
        inputs, split, qrels, measures, relevance_level, answer_match, remove_query: see `Plan.of`.
        queries, corpus: texts, and answers for `acc@k`, if not those of the collection.
        baselines, test, correction, seed: see `Comparing`; the runs of `complement` are the baselines if none is named.
        complement: two runs, by name or path, that are set beside each other (normally the dense one, then BM25).
            If not given: the only run searched in a dense index and the only one searched in a lexical index.
        changed: queries that are shown of those a run hurts most, and as many it helps most.
        models: encoders whose learning curves are shown, besides those that the runs come from; or `name=folder`.
        indexes: `run=folder`, for runs whose manifests do not lead to their indexes.
        png: folder for the figures.

    Raises:
        InputError: an unusable measure, file or name.
    """
    inputs, sides = with_pair(inputs, qrels, complement or ())
    plan = Plan.of(
        inputs,
        split=split,
        qrels=qrels,
        queries=queries,
        corpus=corpus,
        measures=measures,
        relevance_level=relevance_level,
        answer_match=answer_match,
        remove_query=remove_query,
    )
    pair = names_of(sides, plan) if complement else lineage.sides(plan.runs)
    comparing = Comparing(baselines or pair or (), test, correction, seed).checked(list(plan.runs))
    judgements = qrels or Path(inputs[0])
    texts = Texts.of(judgements, split, queries, corpus)
    held, curves = _held(plan.runs, indexes), _curves(plan.runs, models)
    sources = (
        plan.inputs() | _text_files(texts) | _index_folders(held) | {f"model {name}": at for name, at in curves.items()}
    )
    options = plan.options() | {
        "complement": pair,
        "baselines": comparing.baselines,
        "test": test,
        "correction": correction,
        "changed": changed,
        "seed": seed,
    }

    def claim(path: Path, kind: Kind) -> Output:
        return artifacts.open_output(path, kind, "report", inputs=sources, options=options, overwrite=overwrite)

    claims = [claim(output, Kind.REPORT), *([claim(png, Kind.FIGURES)] if png else [])]
    if all(each.up_to_date for each in claims):
        return output
    how = config.Reporting(changed=changed)
    found = find(plan, comparing, pair, texts, how)
    title = judgements.stem if judgements.is_file() else judgements.resolve().name + (f", {split}" if split else "")
    _write(claims, title, found, how, curves, held)
    return output


# -------------------------------------------------------------------------------------------------------------- inputs


def _text_files(texts: Texts | None) -> dict[str, Path]:
    return {"queries": texts.queries, "corpus": texts.corpus} if texts else {}


def _index_folders(held: Mapping[str, Sequence[Held]]) -> dict[str, Path]:
    folders = dict.fromkeys(index.index for indexes in held.values() for index in indexes)
    return {f"index {number}": folder for number, folder in enumerate(folders, 1)}


def _held(named: Mapping[str, Path], given: Sequence[str]) -> dict[str, list[Held]]:
    """Run -> its indexes: those that its manifest leads to, or those that were named."""
    held = {name: list(lineage.indexes(path).values()) for name, path in named.items()}
    told: dict[str, list[Held]] = {}
    for text in given:
        name, mark, folder = text.partition("=")
        if not mark or name not in named:
            raise InputError(f"--index {text}: is written RUN=FOLDER; the runs are {', '.join(named)}")
        told.setdefault(name, []).append(lineage.held(Path(folder)))
    return {name: indexes for name, indexes in (held | told).items() if indexes}


def _curves(named: Mapping[str, Path], given: Sequence[str]) -> dict[str, Path]:
    """Name -> folder of every encoder whose learning curve is shown."""
    known = {folder.resolve() for folder in runs.named(given).values()}
    found = dict.fromkeys(folder for path in named.values() for folder in lineage.curves(path))
    models = runs.named([*given, *(folder for folder in found if folder.resolve() not in known)])
    for folder in models.values():
        if not (folder / lineage.CURVE).is_file():
            raise InputError(f"--model {folder}: holds no {lineage.CURVE}; an encoder of `train-dense` is needed here")
    return models


def _language(named: Mapping[str, Path]) -> str:
    found = (lineage.language(path) for path in named.values())
    return next((language for language in found if language), _LANGUAGE)


# ------------------------------------------------------------------------------------------------------------- writing


def _write(
    claims: Sequence[Output],
    title: str,
    found: Findings,
    how: config.Reporting,
    curves: Mapping[str, Path],
    held: Mapping[str, Sequence[Held]],
) -> None:
    learned = {name: pl.read_parquet(folder / lineage.CURVE) for name, folder in curves.items()}
    parts = list(contents.sections(found, how, learned, held, _language(found.plan.runs)))
    summary = found.summary
    told = f"{len(summary.runs)} runs" if len(summary.runs) > 1 else "1 run"
    subtitle = f"{told} over {summary.queries(found.measure):,} judged queries"
    drawn = [figure for part in parts for figure in part.figures]
    for claim in claims:
        if claim.up_to_date:
            continue
        if claim.manifest.kind == Kind.FIGURES:
            with claim.folder(figures=len(drawn)) as (work, _):
                figures.write(work, drawn)
            console.note(f"report: {len(drawn)} figures -> {claim.path}")
            continue
        sections = [*parts, provenance.section(claim.manifest)]
        text = page.render(title, subtitle, overview.in_words(found), sections, summary.runs)
        claim.write_html(text, runs=len(summary.runs), queries=summary.queries(found.measure), figures=len(drawn))
        console.note(f"report: {len(drawn)} figures of {told}, {console.size(len(text.encode()))} -> {claim.path}")
