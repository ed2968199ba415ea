"""`train-fusion`: train a fusion with one weight per query on judged queries."""

from __future__ import annotations

from pathlib import Path

from hybrid_cli import artifacts, console, runs
from hybrid_cli.artifacts import Kind
from hybrid_cli.collections import collection
from hybrid_cli.collections.searched import refuse_mixed, refuse_other_judgments
from hybrid_cli.errors import InputError
from hybrid_cli.evaluation.measures import parse_measures
from hybrid_cli.evaluation.retrieved import removes_query
from hybrid_cli.fusion import tuning
from hybrid_cli.fusion.features import Sources
from hybrid_cli.fusion.fuser import LINEAR, read_fuser
from hybrid_cli.fusion.methods import METHODS
from hybrid_cli.fusion.tuning import Family
from hybrid_cli.indexes.exact import exact_scorer, exact_sources, limit_threads, texts_of
from hybrid_cli.reporting import terminal
from hybrid_cli.settings import Fuse, TrainFusion, stage
from hybrid_cli.training.fusion import FusionTraining


@stage(TrainFusion)
def train_fusion(settings: TrainFusion) -> Path:
    """Train a fusion with one weight per query.

    Returns:
        Path of the fuser.

    Raises:
        InputError: not two runs of the same queries, or judgments that cannot train a fusion.
    """
    named = runs.named_once(settings.runs)
    if len(named) != 2:
        raise InputError(f"train-fusion: needs two runs, got {len(named)}; `fuse --tune` takes more")
    parse_measures([settings.measure])
    families = _families(settings)
    refuse_mixed(named)
    judged = collection.qrels_path(settings.qrels, settings.split)
    refuse_other_judgments(named.values(), settings.qrels)
    override = collection.queries_path(settings.queries, settings.split) if settings.queries is not None else None
    exact = exact_sources(named, settings.index, override) if settings.index else []
    inputs = {f"run {number}": path for number, path in enumerate(named.values(), 1)}
    for number, source in enumerate(exact, 1):
        inputs |= {f"index {number}": source.index, f"queries {number}": source.queries}
    remove_query = removes_query(settings.qrels, settings.split)
    options = settings.recorded() | ({"remove_query": True} if remove_query else {})
    output = artifacts.output_of(settings, Kind.FUSER, inputs | {"qrels": judged}, options)
    if not output.up_to_date:
        limit_threads(settings.threads)
        sources = (
            Sources([exact_scorer(each, device=settings.device) for each in exact], *texts_of(exact)) if exact else None
        )
        job = FusionTraining(settings, named, families, judged, sources, remove_query)
        with output.folder() as (folder, counts):
            fuser, report = job.trained()
            fuser.save(folder, report)
            counts |= {"queries": len(fuser.judged), "trees": len(fuser.model.trees)}
    terminal.show_fuser(*read_fuser(settings.output))
    console.note(f"train-fusion: {settings.output}")
    return settings.output


def _families(settings: TrainFusion) -> list[Family]:
    """Return the methods to try: sums of weighted normalized scores."""
    found = tuning.families(Fuse(settings.runs, output=settings.output, tune=True, methods=settings.methods), 2)
    for family in found:
        method = METHODS[family.recipe.method]
        if method.rule not in LINEAR or family.recipe.missing == "exact" or family.grid != "linear":
            allowed = (name for name, each in METHODS.items() if each.rule in LINEAR and each.normalization != "none")
            raise InputError(
                f"--methods {family.recipe.method}: has no weight per query; choose among {', '.join(allowed)}"
            )
    return found
