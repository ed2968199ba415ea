"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from hybrid_cli.cluster import Workers
from hybrid_cli.encoders import options as encoders
from hybrid_cli.encoders.options import Markers, Pooling, Precision
from hybrid_cli.settings import Seeded, Settings, Threaded, Writes
from hybrid_cli.settings.options import (
    GENERAL,
    GIVEN,
    POSITIVE,
    By,
    inherited,
    option,
    options_by,
    parsed_by,
    redeclare,
    registered,
    scope,
    when,
)
from hybrid_cli.settings.paths import InheritedOptionalPath
from hybrid_cli.training import options as training

MEASURE = parsed_by("hybrid_cli.evaluation.measures", "measure_name")
# panels of `hybrid --help`, by task
START, COLLECTIONS, INDEXES, TRAINING = "Start here", "Collections", "Indexes", "Training"
ENCODERS, FUSION, QUALITY, TOOLS = "Encoders", "Fusion", "Quality", "Tools"

HITS = 1000  # hits per query of a run
NameOrPath = str | Path  # a model name, `name=path`, or a path; settings store it as text


def as_names(given: Sequence[NameOrPath] | NameOrPath) -> tuple[str, ...]:
    """Return one or several names as texts."""
    return tuple(map(str, (given,) if isinstance(given, str | Path) else given))


@dataclass(frozen=True, kw_only=True)
class OnDevice(Settings):
    """A command that runs a model.

    Attributes:
        device: Device: `auto`, `cpu`, `cuda`, `cuda:1` or `mps`.
    """

    device: str = option(encoders.DEVICE, panel=GENERAL, recorded=False)


ENCODER = "Encoder"
PROJECTION = "a start model with a projection"  # fact


@dataclass(frozen=True, kw_only=True)
class EncoderContract(Settings):
    """Encoder contract: reading of texts and form of vectors. Defaults come from the model.

    Attributes:
        preset: Contract of a published model, by name (docs/models.md). Other options take precedence.
        pooling: Pooling: masked mean of all tokens, [CLS], maximum, last token, sum over the square root of the number
            of tokens, or mean weighted by the position.
        normalize: Normalize vectors to length 1.
        query_prefix: Text put before every query. `{task}` is replaced by `--task`; a template may end with `{query}`.
        task: Instruction in place of `{task}` in the query prefix.
        append_eos: End every text with the end-of-sequence token, if the tokenizer does not.
        doc_prefix: Text put before every document.
        title_separator: Text between title and body; DPR uses ' [SEP] '.
        query_max_len: Maximum tokens of a query.
        doc_max_len: Maximum tokens of a document.
    """

    option_panel = ENCODER

    preset: str | None = option(None, choices=registered("hybrid_cli.encoders.contract", "PRESETS"), recorded=False)
    pooling: Pooling | None = option(None, shown="the model's")
    normalize: bool | None = option(None, shown="the model's")
    query_prefix: str | None = option(None, shown="the model's")
    task: str | None = option(None, shown="the model's")
    append_eos: bool | None = option(None, shown="the model's")
    doc_prefix: str | None = option(None, shown="the model's")
    title_separator: str | None = option(None, shown="the model's")
    query_max_len: int | None = option(None, minimum=1, shown="the model's")
    doc_max_len: int | None = option(None, minimum=1, shown="the model's")


@dataclass(frozen=True, kw_only=True)
class Called(encoders.Calling, Settings):
    """A command that may call an API. A key is read from HYBRID_API_KEY.

    Attributes:
        timeout: Seconds to wait for an answer of the server.
        concurrency: Calls at a time.
        max_calls: Most calls of the server, retries included; if more are needed, none is made.
    """

    option_panel = "Calls of an API"

    timeout: float = inherited(above=0, recorded=False)
    concurrency: int = inherited(minimum=1, maximum=encoders.MOST_CALLS, recorded=False)
    max_calls: int | None = inherited(minimum=1, recorded=False)


OBJECTIVE, BOOSTING, OPTIMIZATION, VALIDATION = "Objective", "Boosting (DrBoost)", "Optimization", "Validation"
WATCHING = "Watching"

TEMPERATURE = "1, or 0.05 for vectors of length 1"


@dataclass(frozen=True, kw_only=True)
class Optimization(training.Optimization, Seeded):
    """Options of the optimizer.

    Attributes:
        epochs: Passes over the training data.
        max_steps: Number of steps; fewer if --epochs ends first.
        batch_size: Queries per batch.
        accumulate: Batches per step; in-batch negatives stay within a batch.
        chunk_size: Texts encoded at once, with gradient caching: less memory, the same gradient.
        learning_rate: Peak learning rate.
        warmup: Steps with a rising rate; below 1, as a fraction of all steps.
        schedule: Learning rate after the warm-up. `linear`: decay to 0 at the last step; `halve`: half the rate in each
            epoch after the third (RoC); `constant`.
        keep_epochs: Also store the model after each epoch, as epochs/1, epochs/2, ... of the output.
        weight_decay: Weight decay of AdamW, of matrices and embeddings; normalizations and biases do not decay.
        clip: Maximum norm of the gradient.
        dtype: Precision of the forward pass; `auto` is bf16 where the device supports it.
        checkpoint_steps: Steps between two checkpoints; training resumes from the last one.
    """

    option_panel = OPTIMIZATION

    seed: int = inherited()
    epochs: int | None = option(None, minimum=1, shown="1, or as many as --max-steps needs")
    max_steps: int | None = option(None, "--max-steps", "--steps", minimum=1)
    batch_size: int = inherited(minimum=1)
    accumulate: int = inherited(minimum=1)
    chunk_size: int | None = option(None, minimum=1, shown="the whole batch")
    learning_rate: float = inherited("--learning-rate", "--lr", minimum=0)
    warmup: float = inherited(minimum=0)
    schedule: training.Schedule = inherited()
    keep_epochs: bool = option(False)
    weight_decay: float = inherited(minimum=0)
    clip: float = inherited(above=0)
    dtype: Precision = inherited()
    checkpoint_steps: int = inherited(minimum=1, recorded=False)


@dataclass(frozen=True, kw_only=True)
class Sampling(Optimization, training.Sampling):
    """Optimization on mined examples.

    Attributes:
        negatives: Hard negatives per query, drawn again in every epoch.
    """

    negatives: int = inherited(panel=OPTIMIZATION, minimum=1, maximum=10_000)


@dataclass(frozen=True, kw_only=True)
class Training(Threaded, OnDevice, Optimization, Writes):
    """A command that trains a model.

    Attributes:
        callback: Callback class: `module:Class`, `FILE.py:Class`, or the name of one of an installed package. The
            training calls its functions.
        track: Write the learning curve and validations for TensorBoard, on this machine.
    """

    option_panel = WATCHING

    callback: Sequence[str] = option((), metavar="CLASS", recorded=False)
    track: training.Tracker | None = option(None, recorded=False)


@dataclass(frozen=True, kw_only=True)
class StartModel(training.Start, Settings):
    """The start model of a training.

    Attributes:
        model: Start model: `minilm`, a folder, or a Hugging Face id.
        layers: Keep the first N transformer layers of the start model.
        gradient_checkpointing: Compute the states of layers again in the backward pass: less memory, other dropout
            masks on a CPU.
    """

    option_panel = ENCODER

    model: str = option(encoders.MODEL, recorded=False)
    layers: int | None = option(None, minimum=1, shown="all")
    gradient_checkpointing: bool = inherited()


@dataclass(frozen=True, kw_only=True)
class AdaptedModel(encoders.LoraOptions, StartModel):
    """A start model that may get a LoRA adapter.

    Attributes:
        lora_r: Train a LoRA adapter of this rank; the transformer is frozen, heads are trained.
        lora_alpha: Scale of the adapter, times its rank.
        lora_targets: Linear modules with an adapter, by name: `query,value`; `auto` is all of them.
    """

    option_panel = ENCODER

    scopes = scope(when(lora_r=GIVEN), "lora_alpha", "lora_targets")

    lora_r: int | None = option(None, minimum=1, excluded=when(layers=GIVEN), shown="all weights are trained")
    lora_alpha: int | None = option(None, minimum=1, shown="twice the rank")
    lora_targets: Sequence[str] = inherited()


@dataclass(frozen=True, kw_only=True)
class Architecture(EncoderContract, AdaptedModel):
    """The encoder to train; defaults come from the start model.

    Attributes:
        tied: One tower for queries and documents, or two.
        markers: Query and document markers: `replace` puts them in place of [CLS] (DualRM), `prepend` after [CLS]
            (CLEAR).
        dim: Dimensions of a linear projection.
        projection_norm: LayerNorm after the projection.
    """

    option_panel = ENCODER

    scopes = scope((when(dim=GIVEN), when(start=PROJECTION)), "projection_norm")

    tied: bool | None = option(None, "--tied/--untied", shown="the model's")
    markers: Markers | None = option(None, shown="the model's")
    dim: int | None = option(None, minimum=1, shown="the model's")
    projection_norm: bool | None = option(None, shown="the model's")


@dataclass(frozen=True, kw_only=True)
class Validation(training.Validation, Settings):
    """Validation during training.

    Attributes:
        dev: Training examples of a dev split, for validation on their corpus.
        dev_queries: Number of dev queries: the first ones of the split.
        eval_steps: Steps between two validations.
        keep: Keep the weights of the best validation, or the last ones.
    """

    option_panel = VALIDATION

    scopes = scope(when(dev=GIVEN), "dev_queries", "eval_steps", "keep")

    dev: Path | str | None = option(None)
    dev_queries: int = inherited(minimum=1)
    eval_steps: int | None = option(None, minimum=1, shown="a tenth of all steps")
    keep: training.Keep = inherited()


@dataclass(frozen=True, kw_only=True)
class ExampleValidation(Validation):
    """Validation on mined examples."""

    dev: InheritedOptionalPath = inherited()
    eval_steps: int | None = inherited(shown="a tenth of all steps, at least dev documents / documents of a step")


@dataclass(frozen=True, kw_only=True)
class Likelihood(Settings):
    """Options of the negative log-likelihood.

    Attributes:
        temperature: Divisor of the dense scores.
        in_batch: Use the documents of the other queries in the batch as negatives.
    """

    option_panel = OBJECTIVE

    temperature: float | None = option(None, above=0, shown=TEMPERATURE)
    in_batch: bool = option(True, "--in-batch/--no-in-batch")


TEACHER = "Teacher"
_DISTILLED = when(distill=GIVEN)
_TAUGHT = (_DISTILLED, when(loss=training.TAUGHT))
_MAY_BE_TAUGHT = (_DISTILLED, when(loss=training.MAY_BE_TAUGHT))


@dataclass(frozen=True, kw_only=True)
class Distillation(Settings):
    """A loss on the scores of a teacher, next to another loss.

    Attributes:
        distill: Loss on a teacher's scores that is added: `margin-mse`, of score differences, or `kl`, divergence over
            the query's documents, or the batch's for an encoder.
        distill_weight: Weight of `--distill`.
        teacher_temperature: Divisor of the teacher's scores; the learning curve shows the mean margins of both,
            `student_margin` and `teacher_margin`.
    """

    option_panel = TEACHER

    scopes = scope(_DISTILLED, "distill_weight", "teacher_temperature")

    distill: training.Distill | None = option(None)
    distill_weight: float = option(1.0, above=0)
    teacher_temperature: float = option(1.0, above=0)

    @property
    def is_taught(self) -> bool:
        """The loss depends on the scores of a teacher."""
        return self.applies("teacher_temperature")


@dataclass(frozen=True, kw_only=True)
class Taught(Distillation):
    """A loss on the scores of a teacher, alone or next to another loss.

    Attributes:
        teacher: Teacher: a reranker, an encoder of any kind, or a dense index, whose vectors are read.
    """

    option_panel = TEACHER

    scopes = scope(_MAY_BE_TAUGHT, "teacher")

    distill: training.Distill | None = inherited(excluded=when(loss=(*training.TAUGHT, "bpr")))
    teacher_temperature: float = inherited(applies=_TAUGHT)
    teacher: str | None = option(None, shown="the scores in the examples", recorded=False)

    @property
    def is_taught(self) -> bool:
        """The loss depends on the scores of a teacher; one of a plugin, if a teacher is given."""
        return super().is_taught or self.teacher is not None


@dataclass(frozen=True, kw_only=True)
class LossOptions(Settings):
    """The training objective: a loss and its parameters; xi and lambda as published (DualRM, section 4).

    Attributes:
        loss: Loss.
        loss_options: Parameters of the loss without an option of their own, such as those of a loss of a plugin.
        xi: Margin of a pair with equal scores by the scorer.
        scorer: Frozen scorer that the model complements: `bm25`, or an encoder (a Lambda, an ensemble).
        scorer_weight: Weight of the scorer's scores in the sum (lambda_train), relative to the dense scores divided by
            `--temperature`.
        scorer_schedule: Weight of the scorer: `fixed` is `--scorer-weight`, `anneal` rises to it, `random` is drawn
            below it for each batch, `learned` is trained.
        ortho_weight: Weight of the orthogonality to BM25's vectors (RoC); needs `--index`.
        ortho_control: Control experiment for `--ortho-weight`: each query and document gets the BM25 vector of another
            one, always the same, so that the orthogonality has no meaning.
        mask_matches: Fraction of the query's words that are masked in documents during training (RoC).
        index: Lexical index: BM25's vectors for the orthogonality, its scores of all documents of a batch for `--scorer
            bm25`, and RoC in the learning curve with `--dev`.
        matryoshka_dims: Lengths of vector prefixes that are trained in addition: `32,64,128`.
        boost: Encoder or ensemble to extend by one learner. Mine the training examples with this encoder or ensemble,
            so that the learner is trained on its errors.
    """

    option_panel = OBJECTIVE

    cases = options_by(
        "loss",
        {
            training.MARGINS: ("xi",),
            training.SCORED: ("scorer", "scorer_weight", "scorer_schedule"),
            (*training.MARGINS, "nll", "roc", "residual-nll"): ("in_batch",),
        },
    )

    loss: str = option(training.LOSS, choices=training.LOSSES)
    loss_options: Mapping[str, str] = option({}, "--loss-option", metavar="NAME=VALUE")
    xi: float = option(training.XI)
    scorer: str = option(training.BM25, recorded=False)
    scorer_weight: float = option(
        By("scorer", {training.BM25: training.SCORER_WEIGHT}, 1.0),
        minimum=0,
        shown="0.1 for `bm25`; 1 for an encoder",
        needed=when(scorer_schedule="learned"),
    )
    scorer_schedule: training.ScorerSchedule = option("fixed")
    temperature: float | None = redeclare(
        Likelihood, "temperature", shown="1, or 0.05 for vectors of length 1 except with `bpr`"
    )
    in_batch: bool = redeclare(
        Likelihood,
        "in_batch",
        default=By("loss", dict.fromkeys(training.MARGINS, False), Likelihood.in_batch),
        shown="`in-batch`; `no-in-batch` for margin, residual-margin",
    )
    ortho_weight: float = option(By("loss", {"roc": 1.0}, 0.0), minimum=0, needed=when(ortho_control=True))
    ortho_control: bool = option(False)
    mask_matches: float = option(By("loss", {"roc": 0.15}, 0.0), minimum=0, maximum=1)
    index: InheritedOptionalPath = option(None, needed=when(ortho_weight=POSITIVE))
    matryoshka_dims: Sequence[int] = option((), minimum=1, excluded=when(ortho_weight=POSITIVE))
    boost: str | None = option(None, panel=BOOSTING, recorded=False)

    def parameters(self) -> dict[str, Any]:
        """Return the options that apply, by name: the keyword arguments of a loss are among them."""
        return {name: getattr(self, name) for name in self.declared() if self.applies(name)}


@dataclass(frozen=True, kw_only=True)
class OnCluster(Settings, Workers):
    """A command that can compute on a Ray cluster.

    Attributes:
        ray_address: Compute on the Ray cluster at this address: `10.0.0.1:6379`, `auto` (on this machine), or `local`
            (start one).
        ray_workers: Blocks in progress on the Ray cluster at a time. Each block uses one core.
    """

    option_panel = GENERAL

    scopes = scope(when(ray_address=GIVEN), "ray_workers")

    ray_address: str | None = inherited(recorded=False)
    ray_workers: int = inherited(minimum=1, maximum=65536, recorded=False)


@dataclass(frozen=True, kw_only=True)
class ThreadedOnCluster(OnCluster, Threaded):
    """A command that can compute on a Ray cluster, with several threads for each block.

    Attributes:
        ray_workers: Blocks in progress on the Ray cluster at a time. Each block uses `--threads` cores, or one core
            without `--threads`.
    """

    ray_workers: int = inherited()

    @property
    def cores(self) -> int:
        """Number of cores of a block on a cluster."""
        return self.threads or 1

    def of_worker(self) -> Self:
        """Return the settings for a process that computes blocks; on a cluster, it has one thread by default."""
        return self if self.ray_address is None else self.changed(threads=self.cores)
