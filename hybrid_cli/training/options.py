"""Names and defaults of training, which import nothing but the registries."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from hybrid_cli.collections.options import QueriesFrom
from hybrid_cli.plugins import Lazy, Registry, function_of

Distill = Literal["margin-mse", "kl"]
DynamicRanking = Literal["model", "sum"]
Keep = Literal["best", "last"]
Tracker = Literal["tensorboard"]
LambdaEncoder = Literal["transformer", "static"]
LambdaLoss = Literal["contrastive", "listwise"]
RerankerLoss = Literal["pointwise", "listwise"]
SparseLoss = Literal["nll", "margin-mse", "kl"]
Schedule = Literal["linear", "halve", "constant"]
ScorerSchedule = Literal["fixed", "anneal", "random", "learned"]

LOSSES: Registry[Callable[..., Any]] = Registry(
    "losses",
    {
        name: Lazy(f"hybrid_cli.training.losses:{function}", meaning)
        for name, function, meaning in (
            (
                "residual-margin",
                "residual_margin",
                "hinge whose margin shrinks where a frozen scorer already separates the pair (DualRM)",
            ),
            ("residual-nll", "residual_nll", "likelihood of the positive under the weighted sum with a frozen scorer"),
            ("margin", "margin", "hinge with a constant margin"),
            ("nll", "nll", "negative log-likelihood of the positive (DPR)"),
            ("roc", "nll", "nll, orthogonal to BM25's vectors, with masked matches (RoC)"),
            ("bpr", "bpr", "binary codes, reranked by the float query (BPR)"),
            ("margin-mse", "margin_mse", "squared error of the score differences of a teacher (Margin-MSE)"),
            ("kl", "kl", "divergence from a teacher's distribution over the documents of a query"),
        )
    },
    function_of,
)
LOSS = "nll"
MARGINS = ("margin", "residual-margin")
RESIDUALS = ("residual-margin", "residual-nll")  # losses on the weighted sum with a frozen scorer
TAUGHT = ("margin-mse", "kl")  # losses on the scores of a teacher


class _OfPlugins:
    """Equals the name of every loss of a plugin, which may read any input."""

    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        return isinstance(other, str) and other not in LOSSES.built_in()

    def __str__(self) -> str:
        return "a loss of a plugin"


OF_PLUGINS = _OfPlugins()
SCORED, MAY_BE_TAUGHT = (*RESIDUALS, OF_PLUGINS), (*TAUGHT, OF_PLUGINS)  # losses that may read scorer or teacher
SCORER_WEIGHT = 0.1  # of BM25
XI = 1.0  # margin where the scorer's scores are equal

BM25, RANDOM, RUN, GIVEN_FILE = "bm25", "random", "run", "given"  # sources of negatives


def mining_depth(documents: int, negatives: int) -> int:
    """Return the lowest rank from which hard negatives are drawn.

    It is sqrt(documents) / 3, at least 20, at most 1,000, and at least twice the negatives: our choice, which passes
    through 1,000 of MS MARCO's 8.8 million passages (CLEAR) and keeps the ranks of small collections to BM25's errors
    (docs/training.md).
    """
    return max(min(max(round(math.sqrt(documents) / 3), 20), 1000), 2 * negatives)


@dataclass(frozen=True, kw_only=True)
class Start:
    """The start model of a training.

    Attributes:
        layers: transformer layers to keep, the first ones; None keeps all.
        gradient_checkpointing: the backward pass computes the states of layers again, which takes less memory.
    """

    layers: int | None = None
    gradient_checkpointing: bool = False


WHOLE = Start()  # all layers


@dataclass(frozen=True, kw_only=True)
class Optimization:
    """Steps of the optimizer.

    Attributes:
        default_epochs: passes over the training data if neither `epochs` nor `max_steps` limits them.
        seed: random seed.
        epochs: passes over the training data.
        max_steps: number of steps; fewer if the epochs end first.
        batch_size: queries per batch.
        accumulate: batches per step.
        chunk_size: texts encoded at once, with gradient caching; None encodes the whole batch.
        learning_rate: peak learning rate.
        warmup: steps with a rising rate; below 1, as a fraction of all steps.
        schedule: learning rate after the warm-up.
        keep_epochs: store the model after each epoch.
        weight_decay: weight decay of AdamW.
        clip: maximum norm of the gradient.
        dtype: precision of the forward pass; `auto` is bf16 where the device supports it.
        checkpoint_steps: steps between two checkpoints.
    """

    default_epochs: ClassVar[int] = 1

    seed: int = 42
    epochs: int | None = None
    max_steps: int | None = None
    batch_size: int = 28
    accumulate: int = 1
    chunk_size: int | None = None
    learning_rate: float = 2e-5
    warmup: float = 0.1
    schedule: Schedule = "linear"
    keep_epochs: bool = False
    weight_decay: float = 0.0
    clip: float = 1.0
    dtype: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    checkpoint_steps: int = 100


@dataclass(frozen=True, kw_only=True)
class Sampling(Optimization):
    """Optimization on mined examples.

    Attributes:
        negatives: hard negatives per query, drawn again in every epoch.
    """

    negatives: int = 1


@dataclass(frozen=True, kw_only=True)
class Validation:
    """Validation during training.

    Attributes:
        dev: training examples of a dev split; None for no validation.
        dev_queries: number of dev queries.
        eval_steps: steps between two validations; None for a tenth of all steps.
        keep: the weights that are kept: of the best validation, or of the last step.
    """

    dev: Path | str | None = None
    dev_queries: int = 200
    eval_steps: int | None = None
    keep: Keep = "best"


@dataclass(frozen=True, kw_only=True)
class Pretraining(Optimization):
    """Masked language modeling on the spans of a corpus.

    Attributes:
        cocondenser: training units are pairs of spans of one document.
        max_length: maximum tokens of a span.
        mlm_probability: fraction of the tokens that are masked.
        held_out: documents held out for validation, at most a tenth of the corpus.
    """

    default_epochs: ClassVar[int] = 8

    batch_size: int = 32
    learning_rate: float = 1e-4
    weight_decay: float = 0.01
    cocondenser: bool = False
    max_length: int = 256
    mlm_probability: float = 0.15
    held_out: int = 200


@dataclass(frozen=True, kw_only=True)
class Imitation(Optimization):
    """Imitation of a teacher's ranking (Lambda of SPAR).

    Attributes:
        loss: `contrastive` has one hard negative per query, `listwise` the teacher's scores of several hits.
        positives: top-ranked hits used as positives.
        negatives: bottom-ranked hits used as hard negatives.
        list_passages: passages drawn from the hits of each query, in addition to one positive.
        dynamic_negatives: hard negatives per query mined with the student itself.
        text_fraction: fraction of given texts among the queries of a static encoder.
        candidates: candidates of a static encoder: top-ranked documents of the teacher for each query, and documents
            drawn from the collection in each step.
    """

    loss: LambdaLoss = "contrastive"
    positives: int = 10
    negatives: int = 5
    list_passages: int = 3
    dynamic_negatives: int = 0
    text_fraction: float = 0.5
    candidates: tuple[int, int] = (8, 1024)


@dataclass(frozen=True, kw_only=True)
class Flops:
    """FLOPS regularization of a sparse encoder.

    Attributes:
        query_flops: weight of the FLOPS of queries.
        doc_flops: weight of the FLOPS of documents.
    """

    query_flops: float = 0.01
    doc_flops: float = 0.01


@dataclass(frozen=True)
class NegativeSource:
    """A source of negatives.

    Attributes:
        name: `bm25`, `random`, or the name of a run.
        count: negatives per example.
        run: path of the run, for a run.
        given: path of the training file, for negatives that it names.
    """

    name: str
    count: int
    run: Path | None = None
    given: Path | None = None


@dataclass(frozen=True, kw_only=True)
class Mining:
    """Draws and filters of hard negatives.

    Attributes:
        skip_top: number of top ranks that are skipped.
        prob: probability that a negative comes from its source, else from the corpus.
        answer_filter: drop candidates whose text contains an answer to the query.
        relative_margin: drop candidates that score above this fraction of the positive's score.
        max_score: drop candidates with a score above this value.
        seed: random seed.
    """

    skip_top: int = 0
    prob: float = 1.0
    answer_filter: bool = False
    relative_margin: float | None = None
    max_score: float | None = None
    seed: int = 42


@dataclass(frozen=True, kw_only=True)
class Labeling:
    """Queries that a teacher labels, and the hits that are kept.

    Attributes:
        queries_from: sentences of the corpus that become queries.
        max_queries: number of queries, drawn uniformly; None for all.
        depth: hits kept per query.
        seed: random seed of the sample.
    """

    queries_from: QueriesFrom = "sampled"
    max_queries: int | None = None
    depth: int = 50
    seed: int = 42
