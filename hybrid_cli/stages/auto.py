"""`auto`: the recommended path from documents to a hybrid, as a plan of other stages."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from hybrid_cli import artifacts, console
from hybrid_cli.artifacts.indexes import model_input
from hybrid_cli.commands import Auto, Evaluate, Fuse, Judge, Report
from hybrid_cli.encoders.models import resolve
from hybrid_cli.fusion.weights import read_tuned
from hybrid_cli.inputs.json_values import read_object
from hybrid_cli.reporting.summary import show
from hybrid_cli.settings import command_line
from hybrid_cli.stages import call, stage
from hybrid_cli.training.dense import check_layers
from hybrid_cli.workflows.recommended import AutoPlan, RecommendedPath


@stage(Auto)
def auto(settings: Auto) -> Path:
    """Build a hybrid from documents: every artifact is in the output folder.

    Returns:
        Path of the report; of the output folder, without judgments and pseudo-queries.

    Raises:
        InputError: no such model, the documents cannot be read, the output folder has other artifacts of the same
            names, or a stage refuses its input.
    """
    artifacts.check_output_path(settings.output, {"model": model_input(settings.model)})
    if settings.layers is not None and (file := resolve(settings.model) / "config.json").is_file():
        check_layers(settings.layers, int(read_object(file).get("num_hidden_layers", settings.layers)))
    path = RecommendedPath(settings, call)
    path.check_outputs()
    try:
        return _follow(path)
    except artifacts.DryRun:
        text = "auto: the stages after this one depend on its output; without --dry-run, they follow"
        console.note(text, code="later-stages")
        raise


def _follow(path: RecommendedPath) -> Path:
    """Run all stages; return the report, or the output folder without judgments and pseudo-queries."""
    plan = path.prepared()
    documents = path.at("collection")
    if plan is None:
        path.run(path.lexical(documents))
        path.run(path.encode(documents, path.settings.model))
        path.run(path.composed(documents))
        _suggest_search(path, path.settings.output, judged=False)
        return path.settings.output
    pseudo = plan.train.collection == path.at("pseudo")
    for corpus in [documents, path.at("pseudo")] if pseudo else [documents]:
        path.run(path.lexical(corpus))
    model = path.trained(plan)
    for corpus in dict.fromkeys([path.documents(plan.tune), documents]):
        path.run(path.encode(corpus, model))
    single = [path.searched(plan.tune, name) for name in ("bm25", "dense")]
    weights = path.at("weights.json") if path.judged_tuning(plan) else None
    if weights is not None:
        indexes = [path.index(name, path.documents(plan.tune)) for name in ("bm25", "dense")]
        path.run(
            Fuse(
                single,
                tune=True,
                index=indexes,
                qrels=plan.tune.collection,
                split=plan.tune.split,
                measure=path.settings.measure,
                output=weights,
                **path.given("device", "threads"),
            )
        )
    for corpus in dict.fromkeys([path.documents(plan.tune), documents]):
        path.run(path.composed(corpus, weights))
    if plan.test != plan.tune:
        single = [path.searched(plan.test, name) for name in ("bm25", "dense")]
    hybrid = path.searched(plan.test, "retriever", "hybrid")
    return _compared(path, plan, {"bm25": single[0], "dense": single[1], "hybrid": hybrid})


def _compared(path: RecommendedPath, plan: AutoPlan, runs: dict[str, Path]) -> Path:
    """Print the comparison of the runs, and write the report."""
    inputs: Sequence[Path | str] = [plan.test.collection, *(f"{name}={run}" for name, run in runs.items())]
    measured = Evaluate(inputs, split=plan.test.split, baseline=["bm25", "dense"])
    show(path.run(measured), measured)
    report = path.at("report.html")
    path.run(Report(inputs, split=plan.test.split, baseline=["bm25", "dense"], output=report))
    judged = path.judged_tuning(plan)
    if judged and plan.test == plan.tune and not read_tuned(path.at("weights.json")).get("keeps_untuned"):
        console.note(f"\nauto: the weights were tuned on split {plan.test.split} too; `held out` above is unbiased")
    _suggest_search(path, report, judged)
    return report


def _suggest_search(path: RecommendedPath, made: Path, judged: bool) -> None:
    """Print what was made, and the command of a search; without judgments, that of judging too."""
    retriever = path.at("retriever")
    command = shlex.join(["hybrid", "search", "--index", str(retriever), "--interactive"])
    console.note(f"\nauto: {made}; to search:\n{command}")
    if not judged:
        judging = Judge(retriever, queries=Path("queries.txt"), output=Path("judgments.tsv"), **path.given("measure"))
        console.note(
            "\nauto: no judgments, so the fusion is the default, and nothing was measured. Judge twenty of your own "
            "queries (a query per line in queries.txt); the command to tune the fusion on them follows:\n"
            + command_line(judging),
            code="no-judgments",
        )
