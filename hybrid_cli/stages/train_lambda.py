"""`train-lambda`: a lexical teacher to an encoder that ranks as it does."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl
import torch

from hybrid_cli import artifacts, console
from hybrid_cli.artifacts import Kind
from hybrid_cli.collections import collection as collections
from hybrid_cli.config import Imitation, Optimization, StaticTraining
from hybrid_cli.encoders.contract import Contract
from hybrid_cli.encoders.models import pick_device, pick_dtype, resolve
from hybrid_cli.encoders.static import StaticEncoder
from hybrid_cli.encoders.transformer import TransformerEncoder
from hybrid_cli.errors import InputError
from hybrid_cli.evaluation.surrogate import SurrogatePool
from hybrid_cli.lexical.index import LexicalIndex, check_corpus
from hybrid_cli.training import checkpoint, losses, parallel, static
from hybrid_cli.training.batches import Group
from hybrid_cli.training.dense import DenseLearner
from hybrid_cli.training.hard_negatives import OwnErrors
from hybrid_cli.training.labels import Labels
from hybrid_cli.training.lambda_data import LabelledQueries
from hybrid_cli.training.loop import Validate, fit, steps_of
from hybrid_cli.training.teachers import ExactTeacher

DEV_DEPTH = 50
CRITERION = "dev_MRR"
CONTRACT_OPTIONS = tuple(field.name for field in fields(Contract) if field.name not in ("markers", "prefix"))


@dataclass(frozen=True)
class Sources:
    """What a Lambda learns from.

    Attributes:
        collection: the corpus, and the queries of the split `dev`.
        index: the lexical index that teaches; None where the labels are another teacher's.
        labels: the teacher's lists, made by `label`.
        dev: split whose queries validate, or None.
        dev_queries: how many of them.
    """

    collection: Path
    index: Path | None = None
    labels: Path | None = None
    dev: str | None = None
    dev_queries: int = 200

    def inputs(self) -> dict[str, Path]:
        """As a manifest holds them."""
        given = {"corpus": collections.corpus_path(self.collection), "index": self.index, "labels": self.labels}
        if self.dev is not None:
            given["dev"] = collections.queries_path(self.collection, self.dev)
        return {role: path for role, path in given.items() if path is not None}


def train_lambda(
    sources: Sources,
    output: Path,
    *,
    model: str = "minilm",
    how: Imitation = Imitation(),  # noqa: B008 - frozen
    plan: Optimization = Optimization(),  # noqa: B008 - frozen
    contract: Mapping[str, Any] | None = None,
    device: str = "auto",
    threads: int | None = None,
    overwrite: bool = False,
) -> Path:
    """Train a transformer to rank as the teacher of the labels does (SPAR 4.1).

    Args:
        sources: labels are needed; with `index` too, dev queries validate, and the list-wise loss has its teacher.
        output: folder of the encoder; a killed training goes on from its last checkpoint.
        model: where to start: `minilm`, a folder, or a Hugging Face id.
        contract: fields of the encoder's contract to set.

    Raises:
        InputError: the inputs are not usable, or do not fit together.
    """
    if sources.labels is None:
        raise InputError("a transformer learns from teacher labels; make them with `hybrid label` and give --labels")
    if how.errors and how.loss != "listwise":
        raise InputError("--errors: the teacher scores them; needs --loss listwise")
    if how.loss == "listwise" and sources.index is None:
        raise InputError("--loss listwise: needs --index, whose exact scores are imitated")
    if threads:
        torch.set_num_threads(threads)
    precision = pick_dtype(plan.precision, pick_device(device))
    changes = {name: value for name, value in (contract or {}).items() if value is not None}
    options = {**asdict(plan), **asdict(how), **changes, "precision": str(precision).removeprefix("torch.")}
    inputs = {**sources.inputs(), "model": resolve(model)}
    claim = _claim(output, inputs, options, sources, overwrite)
    if claim.up_to_date:
        return output
    plan = replace(plan, negatives=how.passages if how.loss == "listwise" else 1)
    queries = LabelledQueries(sources.labels, sources.collection, how)
    index = LexicalIndex.open(sources.index) if sources.index else None
    torch.manual_seed(plan.seed)  # a projection starts from it
    encoder = TransformerEncoder.load(model, device=device, **changes)
    own = losses.usual_temperature(encoder.contract.normalize)
    objective: losses.Objective = partial(losses.nll, temperature=own)
    if how.loss == "listwise":
        objective = partial(losses.listwise, temperature=how.temperature, own_temperature=own)
    if how.nested:
        losses.check_nested(how.nested, encoder.dim)
        objective = losses.nested(objective, [*how.nested, encoder.dim], encoder.contract.normalize)
    teacher = ExactTeacher(index) if index is not None and how.loss == "listwise" else None
    learner = DenseLearner(encoder, objective, precision, plan.chunk_size, other=teacher)
    validate = _validate(sources, index, how, encoder)
    with parallel.folder(claim) as (work, counts):
        state = fit(
            learner,
            _with_errors(learner, queries, how, plan),
            plan,
            steps_of(plan, len(queries)),
            work,
            validate=validate,
            criterion=CRITERION,
        )
        encoder.save(work)
        checkpoint.write_curve(work, state, "train-lambda")
        counts.update(queries=len(queries), dropped=queries.dropped, steps=state.step, best_step=state.best_step)
    console.note(
        f"train-lambda: {output}: {len(queries):,} queries ({queries.dropped:,} with too few hits left out), "
        f"{state.step:,} steps, kept step {state.best_step:,}"
    )
    return output


def train_static_lambda(
    sources: Sources,
    output: Path,
    *,
    plan: StaticTraining = StaticTraining(),  # noqa: B008 - frozen
    threads: int | None = None,
    overwrite: bool = False,
) -> Path:
    """Train a static encoder to rank as the impact matrix does.

    Args:
        sources: the index is needed; with labels, their texts are queries beside random bags of terms.
        output: folder of the encoder; a killed training goes on from its last checkpoint.

    Raises:
        InputError: the inputs are not usable, or do not fit together.
    """
    if sources.index is None:
        raise InputError("--encoder static: learns from the impact matrix; give --index")
    if threads:
        torch.set_num_threads(threads)
    claim = _claim(output, sources.inputs(), asdict(plan), sources, overwrite)
    if claim.up_to_date:
        return output
    index = LexicalIndex.open(sources.index)
    check_corpus(sources.index, collections.corpus_path(sources.collection))
    fields = artifacts.read_manifest(sources.index, Kind.LEXICAL_INDEX).options["fields"]
    encoder = StaticEncoder.over(index, fields, plan.dim, plan.most_terms, plan.shared_rows)
    texts = pl.concat([table["text"] for table in Labels(sources.labels).tables()]) if sources.labels else None
    source = static.BagsOfTerms(index, encoder, plan, texts)
    with console.progress("begin with singular vectors", unit="tables"):
        static.start(encoder, source, len(index.docids), plan.seed)
    validate = _validate(sources, index, Imitation(), encoder)
    with claim.folder() as (work, counts):
        state = fit(
            static.StaticLearner(encoder, plan.temperature, plan.nested),
            source.batches,
            plan,
            plan.max_steps or StaticTraining.max_steps or 1,
            work,
            validate=validate,
            criterion=CRITERION,
        )
        encoder.save(work)
        checkpoint.write_curve(work, state, "train-lambda")
        counts.update(terms=len(encoder.terms), dim=encoder.dim, steps=state.step, best_step=state.best_step)
    console.note(
        f"train-lambda: {output}: static, {len(encoder.terms):,} terms, {encoder.dim} dimensions, "
        f"{state.step:,} steps, kept step {state.best_step:,}"
    )
    return output


def _with_errors(
    learner: DenseLearner, queries: LabelledQueries, how: Imitation, plan: Optimization
) -> Callable[[int], Iterator[list[Group]]]:
    """Batches from a step on, where it is asked for with what the student ranks high by then."""
    if not how.errors:
        return partial(queries.batches, plan)
    errors = OwnErrors(
        learner.model, queries.texts, how.errors, how.pool, plan.checkpoint_steps, plan.seed, learner.precision
    )
    return lambda done: errors.added(queries.batches(plan, done), done)


def _claim(
    output: Path, inputs: Mapping[str, Path], options: Mapping[str, Any], sources: Sources, overwrite: bool
) -> artifacts.Output:
    settled = {**options, "dev_queries": sources.dev_queries}
    return artifacts.open_output(
        output, Kind.ENCODER, "train-lambda", inputs=inputs, options=settled, overwrite=overwrite
    )


def _validate(
    sources: Sources, index: LexicalIndex | None, how: Imitation, encoder: TransformerEncoder | StaticEncoder
) -> Validate | None:
    if sources.dev is None:
        return None
    if index is None:
        raise InputError("--dev: validation needs the teacher's scores; give --index, or leave --dev out")
    queries = collections.read_queries(collections.queries_path(sources.collection, sources.dev))
    queries = queries.select("qid", "text").head(sources.dev_queries)
    pool = SurrogatePool.of(
        queries,
        index.search(queries, DEV_DEPTH),
        partial(collections.texts, sources.collection),
        score=lambda pairs: index.score(pairs, queries),
        negatives=how.negatives,
    )
    return partial(pool.measure, encoder)
