"""The settings of what makes and trains models."""

from __future__ import annotations

from dataclasses import dataclass

from hybrid_cli.config.choices import BoostMode, ImitationLoss, Keep, Loss, Precision, Reduction


@dataclass(frozen=True)
class Optimization:
    """How a model is optimised; one set for every training command.

    Attributes:
        epochs: passes over the examples.
        max_steps: stop (and end the decay) there instead, if given.
        batch_size: queries in a batch.
        negatives: hard negatives of each, drawn anew every epoch.
        accumulate: batches to an optimiser step; in-batch negatives stay within a batch.
        chunk_size: texts encoded at once with gradient caching; None encodes the batch in one go.
        learning_rate: at its peak; linear warm-up over the share `warmup` of the steps, then linear decay to 0.
        clip: largest norm of the gradient.
        eval_steps: steps between two looks at the dev pool; None looks ten times.
        keep: the weights that were best on dev, or those of the last step.
        checkpoint_steps: steps between two checkpoints.
    """

    epochs: int = 1
    max_steps: int | None = None
    batch_size: int = 28
    negatives: int = 1
    accumulate: int = 1
    chunk_size: int | None = None
    learning_rate: float = 2e-5
    warmup: float = 0.1
    weight_decay: float = 0.0
    clip: float = 1.0
    precision: Precision = "auto"
    eval_steps: int | None = None
    keep: Keep = "best"
    checkpoint_steps: int = 100
    seed: int = 42


@dataclass(frozen=True)
class Pretraining(Optimization):
    """Training on a corpus alone, with Condenser's settings (methods 3.5); no validation picks the weights.

    Attributes:
        cocondenser: add the Condenser head and the corpus contrastive loss.
        batch_size: spans in a batch; with coCondenser documents, which give two spans each.
        max_length: word pieces of a span, special tokens included.
        mask_share: of a span's word pieces, hidden in whole words.
        skip_from: layer whose token states enter the Condenser head; None is the middle one.
        held_out: documents that are never trained on, a tenth of the corpus at most; their loss is in the learning
            curve.
    """

    epochs: int = 8
    batch_size: int = 32
    learning_rate: float = 1e-4
    weight_decay: float = 0.01
    keep: Keep = "last"
    cocondenser: bool = False
    max_length: int = 256
    mask_share: float = 0.15
    skip_from: int | None = None
    held_out: int = 200


@dataclass(frozen=True)
class Imitation:
    """How a transformer learns from teacher labels (SPAR, methods 7.1).

    Attributes:
        loss: the likelihood of one of the teacher's best passages in the batch, or its scores of all of the batch.
        positives: first hits of a list that count as its best.
        negatives: last hits that count as its worst.
        passages: list-wise, passages of a list drawn for each query beside one of the best.
        errors: list-wise, the student's own best documents of `pool` documents, which it encodes anew at every
            checkpoint, beside those.
        temperature: list-wise, of both soft-maxes; 1 is BM25's own scale. Scores of vectors of length 1 are divided by
            .05 before, whatever the loss.
        nested: lengths of prefixes that are trained too (Matryoshka).
    """

    loss: ImitationLoss = "contrastive"
    positives: int = 10
    negatives: int = 5
    passages: int = 3
    errors: int = 0
    pool: int = 2_048
    temperature: float = 1.0
    nested: tuple[int, ...] = ()


@dataclass(frozen=True)
class StaticTraining(Optimization):
    """How a static encoder learns from the impact matrix: list-wise, over many passages at once.

    Attributes:
        dim: length of the vectors.
        most_terms: terms with a row of their own, the most frequent ones; the others share `shared_rows`.
        query_terms: least and most terms of a random bag.
        text_share: of a batch, the share of labelled texts where there are any; the rest are random bags.
        hard: the teacher's best documents for each query that are among a step's candidates.
        errors: the student's own best ones, of `pool` documents that it encodes anew at every checkpoint.
        sampled: other candidates, drawn from the collection.
        temperature: of both soft-maxes.
        nested: lengths of prefixes that are trained too (Matryoshka).
    """

    max_steps: int | None = 1200
    batch_size: int = 256
    learning_rate: float = 3e-3
    warmup: float = 0.0
    dim: int = 64
    most_terms: int = 200_000
    shared_rows: int = 4096
    query_terms: tuple[int, int] = (3, 11)
    text_share: float = 0.5
    hard: int = 8
    errors: int = 0
    pool: int = 16_384
    sampled: int = 1024
    temperature: float = 1.0
    nested: tuple[int, ...] = ()


@dataclass(frozen=True)
class Objective:
    """What a dense model is trained for; `xi` and `lexical_weight` as published for CLEAR (DualRM 4).

    `temperature` divides the dense scores; None is 1, or 0.05 where vectors have length 1, whose scores would not reach
    a margin of 1. `in_batch` lets the likelihood see the other queries' documents.

    RoC's two pieces go with every loss: `ortho_weight` that of the squared cosines with BM25's vectors, `mask_matches`
    the share of matched word pieces hidden from the encoder. None is 0, or as published for the loss `roc`: 1 and .15
    (RoC 4.1). `ortho_seed` is that of the projection (methods 15, row 13). `nested` are lengths of prefixes of the
    vectors that are trained too (Matryoshka).

    `boost_mode` says what a learner that joins an ensemble sees of it: its errors, by way of negatives mined with it,
    or its scores too (methods 5.2, readings A and B).
    """

    loss: Loss = "residual-margin"
    xi: float = 1.0
    lexical_weight: float = 0.1
    temperature: float | None = None
    in_batch: bool = True
    ortho_weight: float | None = None
    ortho_seed: int = 0
    mask_matches: float | None = None
    nested: tuple[int, ...] = ()
    boost_mode: BoostMode = "negatives"


@dataclass(frozen=True)
class Distillation:
    """How a small student learns from its teacher (LITE, methods 6.2).

    Attributes:
        dim: length of the student's vectors, the small heads' output.
        kd_weight: of the distillation beside the likelihood, 1 as published.
        kd_reduction: of the squared distances over a batch; methods 6.2 leave it open.
        temperature: divides the student's scores; None is 1, or 0.05 where its vectors have length 1.
        in_batch: the likelihood sees the other queries' documents.
    """

    dim: int = 32
    kd_weight: float = 1.0
    kd_reduction: Reduction = "mean"
    temperature: float | None = None
    in_batch: bool = True
