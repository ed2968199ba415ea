"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from hybrid_cli import input_files, memory
from hybrid_cli.encoders import options as encoders
from hybrid_cli.encoders.options import INT8 as INT8
from hybrid_cli.encoders.options import EncodingPrecision as EncodingPrecision
from hybrid_cli.encoders.options import Markers, Pooling, Precision
from hybrid_cli.errors import InputError
from hybrid_cli.settings.options import (
    GENERAL,
    GIVEN,
    REQUIRED,
    By,
    Settings,
    byte_count,
    option,
    parsed_by,
    redeclare,
    registered,
    when,
)
from hybrid_cli.training import options as training
from hybrid_cli.training.options import BM25, LOSSES, MARGINS, RESIDUALS, Keep, Schedule, ScorerSchedule

MEASURE = parsed_by("hybrid_cli.evaluation.measures", "measure_name")
HITS = 1000  # hits per query of a run
NameOrPath = str | Path  # a model name, `name=path`, or a path; settings store it as text


def as_names(given: Sequence[NameOrPath] | NameOrPath) -> tuple[str, ...]:
    """Return one or several names as texts."""
    return tuple(map(str, (given,) if isinstance(given, str | Path) else given))


@dataclass(frozen=True, kw_only=True)
class ReadsFiles(Settings):
    """A command that reads files of other tools."""

    limits: Mapping[str, int] = option(
        {}, "Limits of an input file: `line`, bytes of a line (32Mi); `columns` of a table (1000); `expansion` of a "
        "compressed file after 256 MiB of its content (100 times).", panel=GENERAL, minimum=1, parse=byte_count,
        metavar="NAME=N", recorded=False,
    )  # fmt: skip

    def check(self) -> None:
        """Refuse limits that do not exist."""
        super().check()
        known = [each.name for each in fields(input_files.Limits)]
        if unknown := sorted(set(self.limits) - set(known)):
            raise InputError(
                f"--limits {unknown[0]}: unknown limit; choices: {', '.join(known)}", code="unknown-limit",
                value=unknown[0],
            )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Overwrites(ReadsFiles):
    """A command that can write an artifact."""

    overwrite: bool = option(False, "Replace an existing output.", panel=GENERAL, recorded=False)


@dataclass(frozen=True, kw_only=True)
class Writes(Overwrites):
    """A command that always writes an artifact."""

    output: Path = option(REQUIRED, "Output path.", "--output", "-o", recorded=False)


@dataclass(frozen=True, kw_only=True)
class MayWrite(Overwrites):
    """A command that prints its result, and writes it with `--output`."""

    output: Path | None = option(None, "Output path.", "--output", "-o", recorded=False)
    overwrite: bool = redeclare(Overwrites, "overwrite", applies=when(output=GIVEN))


@dataclass(frozen=True, kw_only=True)
class Seeded(Settings):
    """A command that draws random numbers."""

    seed: int = option(42, "Random seed.", panel=GENERAL, minimum=0)


@dataclass(frozen=True, kw_only=True)
class Threaded(Settings):
    """A command that computes on several CPU threads."""

    threads: int | None = option(
        None, "CPU threads.", panel=GENERAL, minimum=1, maximum=1024, shown="all cores", recorded=False
    )

    def check(self) -> None:
        """Refuse more threads than the address space holds."""
        super().check()
        memory.require_threads(self.threads)


@dataclass(frozen=True, kw_only=True)
class Budgeted(Settings):
    """A command that reads blocks of a chosen size, or compares its need of memory with a budget before it starts."""

    memory: int | None = option(
        None, "Maximum memory of the command: `500M`, `4G`. Blocks are smaller if necessary; work that does not fit is "
        "refused.", panel=GENERAL, minimum=1, parse=byte_count, metavar="BYTES", shown="the free memory",
        recorded=False,
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class OnDevice(Settings):
    """A command that runs a model."""

    device: str = option(
        encoders.DEVICE, "Device: `auto`, `cpu`, `cuda`, `cuda:1` or `mps`.", panel=GENERAL, recorded=False
    )


ENCODER = "Encoder"
TEXTS, DENSE_INDEX = "texts to encode", "a dense index"  # facts about the input of `encode`
PROJECTION = "a start model with a projection"  # fact
ONE_MODEL, TWO_MODELS = "one model", "two models"


@dataclass(frozen=True, kw_only=True)
class EncoderContract(encoders.EncoderContract, Settings):
    """Encoder contract: reading of texts and form of vectors. Defaults come from the model."""

    preset: str | None = option(
        None,
        "Contract of a published model, by name; `hybrid presets` lists them. Other options take precedence.",
        panel=ENCODER,
        choices=registered("hybrid_cli.encoders.checkpoints.presets", "PRESETS"),
        recorded=False,
    )
    pooling: Pooling | None = option(
        None,
        "Pooling: masked mean of all tokens, [CLS], maximum, last token, sum over the square root of the number of "
        "tokens, or mean weighted by the position.",
        panel=ENCODER,
        shown="the model's",
    )
    normalize: bool | None = option(None, "Normalize vectors to length 1.", panel=ENCODER, shown="the model's")
    query_prefix: str | None = option(None, "Text put before every query.", panel=ENCODER, shown="the model's")
    doc_prefix: str | None = option(None, "Text put before every document.", panel=ENCODER, shown="the model's")
    title_separator: str | None = option(
        None, "Text between title and body; DPR uses ' [SEP] '.", panel=ENCODER, shown="the model's"
    )
    query_max_len: int | None = option(
        None, "Maximum tokens of a query.", panel=ENCODER, minimum=1, shown="the model's"
    )
    doc_max_len: int | None = option(
        None, "Maximum tokens of a document.", panel=ENCODER, minimum=1, shown="the model's"
    )


OBJECTIVE, BOOSTING, OPTIMIZATION, VALIDATION = "Objective", "Boosting (DrBoost)", "Optimization", "Validation"

TEMPERATURE = "1, or 0.05 for vectors of length 1"


@dataclass(frozen=True, kw_only=True)
class Optimization(training.Optimization, Seeded):
    """Options of the optimizer."""

    seed: int = redeclare(Seeded, "seed")
    epochs: int | None = option(
        None, "Passes over the training data.", panel=OPTIMIZATION, minimum=1,
        shown="1, or as many as --max-steps needs",
    )  # fmt: skip
    max_steps: int | None = option(
        None, "Number of steps; fewer if --epochs ends first.",
        panel=OPTIMIZATION, minimum=1,
    )  # fmt: skip
    batch_size: int = option(training.Optimization.batch_size, "Queries per batch.", panel=OPTIMIZATION, minimum=1)
    accumulate: int = option(
        training.Optimization.accumulate,
        "Batches per step; in-batch negatives stay within a batch.",
        panel=OPTIMIZATION,
        minimum=1,
    )
    chunk_size: int | None = option(
        None,
        "Texts encoded at once, with gradient caching: less memory, the same gradient.",
        panel=OPTIMIZATION,
        minimum=1,
        shown="the whole batch",
    )
    learning_rate: float = option(
        training.Optimization.learning_rate,
        "Peak learning rate.",
        "--learning-rate",
        "--lr",
        panel=OPTIMIZATION,
        minimum=0,
    )
    warmup: float = option(
        training.Optimization.warmup,
        "Fraction of the steps with a rising rate.",
        panel=OPTIMIZATION,
        minimum=0,
        maximum=1,
        applies=when(warmup_steps=None),
    )
    warmup_steps: int | None = option(
        None, "Number of steps with a rising rate, in place of `--warmup`.", panel=OPTIMIZATION, minimum=0
    )
    schedule: Schedule = option(
        training.Optimization.schedule,
        "Learning rate after the warm-up. `linear`: decay to 0 at the last step; `halve`: half the rate in each epoch "
        "after the first `--halve-after` (RoC); `constant`.",
        panel=OPTIMIZATION,
    )
    halve_after: int = option(
        training.Optimization.halve_after,
        "Epochs before the rate is halved.",
        panel=OPTIMIZATION,
        minimum=0,
        applies=when(schedule="halve"),
    )
    keep_epochs: bool = option(
        False, "Also store the model after each epoch, as epochs/1, epochs/2, ... of the output.", panel=OPTIMIZATION
    )
    weight_decay: float = option(
        training.Optimization.weight_decay,
        "Weight decay of AdamW, of matrices and embeddings; normalizations and biases do not decay.",
        panel=OPTIMIZATION,
        minimum=0,
    )
    clip: float = option(training.Optimization.clip, "Maximum norm of the gradient.", panel=OPTIMIZATION, above=0)
    precision: Precision = option(
        training.Optimization.precision,
        "Precision of the forward pass; `auto` is bf16 where the device supports it.",
        panel=OPTIMIZATION,
    )
    checkpoint_steps: int = option(
        training.Optimization.checkpoint_steps,
        "Steps between two checkpoints; training resumes from the last one.",
        panel=OPTIMIZATION,
        minimum=1,
        recorded=False,  # by the training, only if it changes the result
    )


@dataclass(frozen=True, kw_only=True)
class Sampling(Optimization, training.Sampling):
    """Optimization on mined examples."""

    negatives: int = option(
        training.Sampling.negatives,
        "Hard negatives per query, drawn again in every epoch.",
        panel=OPTIMIZATION,
        minimum=1,
        maximum=10_000,
    )


@dataclass(frozen=True, kw_only=True)
class Training(Threaded, OnDevice, Optimization, Writes):
    """A command that trains a model."""


@dataclass(frozen=True, kw_only=True)
class StartModel(Settings):
    """The start model of a training."""

    model: str = option(
        encoders.MODEL, "Start model: `minilm`, a folder, or a Hugging Face id.", panel=ENCODER, recorded=False
    )
    layers: int | None = option(
        None, "Keep the first N transformer layers of the start model.", panel=ENCODER, minimum=1, shown="all"
    )


@dataclass(frozen=True, kw_only=True)
class Architecture(EncoderContract, StartModel):
    """The encoder to train; defaults come from the start model."""

    tied: bool | None = option(
        None, "One tower for queries and documents, or two.", "--tied/--untied", panel=ENCODER, shown="the model's"
    )
    markers: Markers | None = option(
        None,
        "Query and document markers: `replace` puts them in place of [CLS] (DualRM), `prepend` after [CLS] (CLEAR).",
        panel=ENCODER,
        shown="the model's",
    )
    dim: int | None = option(None, "Dimensions of a linear projection.", panel=ENCODER, minimum=1, shown="the model's")
    projection_norm: bool | None = option(
        None, "LayerNorm after the projection.", panel=ENCODER, shown="the model's",
        applies=(when(dim=GIVEN), when(start=PROJECTION)),
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Validation(training.Validation, Settings):
    """Validation during training."""

    dev: Path | str | None = option(
        None, "Training examples of a dev split, for validation on their corpus.", panel=VALIDATION, recorded=False
    )
    dev_queries: int = option(
        training.Validation.dev_queries,
        "Number of dev queries: the first ones of the split.",
        panel=VALIDATION,
        minimum=1,
        applies=when(dev=GIVEN),
    )
    eval_steps: int | None = option(
        None, "Steps between two validations.", panel=VALIDATION, minimum=1, shown="a tenth of all steps",
        applies=when(dev=GIVEN),
    )  # fmt: skip
    keep: Keep = option(
        training.Validation.keep,
        "Keep the weights of the best validation, or the last ones.",
        panel=VALIDATION,
        applies=when(dev=GIVEN),
    )


@dataclass(frozen=True, kw_only=True)
class ExampleValidation(Validation):
    """Validation on mined examples."""

    dev: Path | None = redeclare(Validation, "dev")
    eval_steps: int | None = redeclare(
        Validation, "eval_steps", shown="a tenth of all steps, at least dev documents / documents of a step"
    )


@dataclass(frozen=True, kw_only=True)
class Likelihood(Settings):
    """Options of the negative log-likelihood."""

    temperature: float | None = option(
        None, "Divisor of the dense scores.", panel=OBJECTIVE, above=0, shown=TEMPERATURE
    )
    in_batch: bool = option(
        True, "Use the documents of the other queries in the batch as negatives.", "--in-batch/--no-in-batch",
        panel=OBJECTIVE,
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class LossOptions(Settings):
    """The training objective: a loss and its parameters; xi and lambda as published (DualRM, section 4)."""

    loss: str = option(training.LOSS, "Loss.", panel=OBJECTIVE, choices=LOSSES)
    loss_options: Mapping[str, str] = option(
        {}, "Parameters of the loss without an option of their own, such as those of a loss of a plugin.",
        "--loss-option", panel=OBJECTIVE, metavar="NAME=VALUE",
    )  # fmt: skip
    xi: float = option(
        training.XI, "Margin of a pair with equal scores by the scorer.", panel=OBJECTIVE, applies=when(loss=MARGINS)
    )
    scorer: str = option(
        BM25,
        "Frozen scorer that the model complements: `bm25`, or an encoder (a Lambda, an ensemble).",
        panel=OBJECTIVE,
        recorded=False,
        applies=when(loss=RESIDUALS),
    )
    scorer_weight: float = option(
        By("scorer", {BM25: 0.1}, 1.0),
        "Weight of the scorer's scores in the sum (lambda_train), relative to the dense scores divided by "
        "`--temperature`.",
        panel=OBJECTIVE,
        minimum=0,
        shown="0.1 for `bm25`; 1 for an encoder",
        applies=when(loss=RESIDUALS),
    )
    scorer_schedule: ScorerSchedule = option(
        "fixed",
        "Weight of the scorer during training. `fixed`: `--scorer-weight` in every step; `anneal`: linear rise from 0 "
        "to `--scorer-weight`; `random`: uniform draw between 0 and `--scorer-weight` for each batch; `learned`: "
        "trained, starting from `--scorer-weight`.",
        panel=OBJECTIVE,
        applies=when(loss=RESIDUALS),
    )
    temperature: float | None = redeclare(
        Likelihood, "temperature", shown="1, or 0.05 for vectors of length 1 except with `bpr`"
    )
    in_batch: bool = redeclare(
        Likelihood,
        "in_batch",
        By("loss", dict.fromkeys(MARGINS, False), Likelihood.in_batch),
        shown="`in-batch`; `no-in-batch` for margin, residual-margin",
        applies=when(loss=(*MARGINS, "nll", "roc", "residual-nll")),
    )
    ortho_weight: float = option(
        By("loss", {"roc": 1.0}, 0.0),
        "Weight of the orthogonality to BM25's vectors (RoC); needs `--index`.",
        panel=OBJECTIVE,
        minimum=0,
    )
    ortho_control: bool = option(
        False,
        "Control experiment for `--ortho-weight`: each query and document gets the BM25 vector of another one, always "
        "the same, so that the orthogonality has no meaning.",
        panel=OBJECTIVE,
    )
    mask_matches: float = option(
        By("loss", {"roc": 0.15}, 0.0),
        "Fraction of the query's words that are masked in documents during training (RoC).",
        panel=OBJECTIVE, minimum=0, maximum=1,
    )  # fmt: skip
    index: Path | None = option(
        None,
        "Lexical index: BM25's vectors for the orthogonality, its scores of all documents of a batch for `--scorer "
        "bm25`, and RoC in the learning curve with `--dev`.",
        panel=OBJECTIVE,
        recorded=False,
    )
    matryoshka_dims: Sequence[int] = option(
        (), "Lengths of vector prefixes that are trained in addition: `32,64,128`.", panel=OBJECTIVE, minimum=1
    )
    boost: str | None = option(
        None,
        "Encoder or ensemble to extend by one learner. Mine the training examples with this encoder or ensemble, so "
        "that the learner is trained on its errors.",
        panel=BOOSTING,
        recorded=False,
    )

    def parameters(self) -> dict[str, Any]:
        """Return the options that apply, by name: the keyword arguments of a loss are among them."""
        return {name: getattr(self, name) for name in self.declared() if self.applies(name)}

    def check(self) -> None:
        """Refuse options that exclude each other."""
        super().check()
        if self.scorer_schedule == "learned" and not self.scorer_weight:
            raise InputError(
                "--scorer-schedule learned: needs a start above 0; raise --scorer-weight",
                code="missing-option", option="scorer_weight", needed_by="scorer_schedule",
            )  # fmt: skip
        if self.ortho_weight and self.index is None:
            raise InputError(
                f"--ortho-weight {self.ortho_weight:g}: needs the BM25 vectors of --index; or pass --ortho-weight 0",
                code="missing-option", option="index", needed_by="ortho_weight",
            )  # fmt: skip
        if self.ortho_control and not self.ortho_weight:
            raise InputError(
                "--ortho-control: needs --ortho-weight above 0",
                code="missing-option", option="ortho_weight", needed_by="ortho_control",
            )  # fmt: skip
        if self.ortho_weight and self.matryoshka_dims:
            raise InputError(
                "--matryoshka-dims: the orthogonality is defined on whole vectors; pass --ortho-weight 0",
                code="conflicting-options", option="matryoshka_dims", others=("ortho_weight",),
            )  # fmt: skip
