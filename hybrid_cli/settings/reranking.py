"""Settings of training a reranker and of reranking runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any

from hybrid_cli.encoders.options import Precision
from hybrid_cli.settings.base import Settings
from hybrid_cli.settings.common import (
    OBJECTIVE,
    VALIDATION,
    AdaptedModel,
    LossOptions,
    OnDevice,
    Optimization,
    Sampling,
    Threaded,
    Training,
    Validation,
    Writes,
)
from hybrid_cli.settings.dense import Encode
from hybrid_cli.settings.fusion import FUSION
from hybrid_cli.settings.options import GIVEN, REQUIRED, By, argument, inherited, option, redeclare, scope, when
from hybrid_cli.settings.training import TRAINING
from hybrid_cli.training.options import RerankerLoss

RERANKER, DEPTHS = "Reranker", "Depths"
A_RUN = "a run"  # fact about the input of `rerank`


@dataclass(frozen=True, kw_only=True)
class Pairs(Settings):
    """Input of a reranker: query and document. Defaults come from the model.

    Attributes:
        query_max_len: Maximum tokens of a query, special tokens included.
        max_length: Maximum tokens of query and document together; longer documents are cut.
        title_separator: Text between title and body of a document.
    """

    option_panel = RERANKER

    query_max_len: int | None = option(None, minimum=3, shown="the model's, or 64")
    max_length: int | None = option(None, minimum=11, shown="the model's, or 512")
    title_separator: str | None = option(None, shown="the model's, or a space")

    def pair_input(self) -> dict[str, Any]:
        """Return the options that override fields of the reranker's input."""
        return {name: value for name in Pairs.declared() if (value := getattr(self, name)) is not None}


@dataclass(frozen=True)
class TrainReranker(Training, Validation, Sampling, AdaptedModel, Pairs):
    """Train a reranker on mined examples: a cross-encoder that reads query and document together.

    The output is also a `CrossEncoder` of sentence-transformers. An interrupted run resumes from its last checkpoint
    and ends with the same weights.

    Attributes:
        training_examples: Training examples, written by `mine-negatives`.
        loss: `listwise`: cross-entropy of the positive within its group of negatives (LCE); `pointwise`: binary
            cross-entropy of each pair (monoBERT).
        chunk_size: Pairs scored at once, with gradient caching: less memory.
        dev: Training examples of a dev split, for validation: ranks the judged documents and up to 50 negatives of each
            query.
    """

    command = "train-reranker"
    panel = TRAINING
    examples = (
        "hybrid train-reranker out/train.parquet --model minilm --output out/reranker",
        "hybrid train-reranker out/train.parquet --loss pointwise --mask-matches 0.15 --dev out/dev.parquet "
        "--output out/reranker",
    )

    training_examples: Path = argument(REQUIRED, metavar="EXAMPLES")
    _: KW_ONLY
    loss: RerankerLoss = option("listwise", panel=OBJECTIVE)
    mask_matches: float = redeclare(LossOptions, "mask_matches", default=0.0)
    model: str = inherited(panel=RERANKER)
    layers: int | None = inherited(panel=RERANKER)
    negatives: int = inherited(default=By("loss", {"listwise": 7}, Sampling.negatives))
    batch_size: int = inherited(default=By("loss", {"listwise": 8}, Optimization.batch_size))
    chunk_size: int | None = inherited()
    dev: Path | None = inherited(panel=VALIDATION)


@dataclass(frozen=True)
class Rerank(OnDevice, Threaded, Pairs, Writes):
    """Rescore the top hits of a run with a reranker, or score training examples.

    The rescored hits come first, in the order of their new scores; all other hits follow in their order, with lower
    scores at their previous distances. Queries without text keep their order. An interrupted command resumes with the
    first missing shard.

    With several `--depth`, each pair is scored once, and the output is a folder with one run per depth, for `report
    --reranked`.

    All documents of training examples are scored, for `train-dense --distill`; with `--collection` and `--split`, or
    `--queries`, those of these queries, and the others keep their scores.

    Attributes:
        run: A run (Parquet, TREC or MS MARCO), or training examples.
        model: Reranker: a folder or a Hugging Face id; also a `CrossEncoder` of sentence-transformers.
        depth: Hits that are rescored per query; several numbers write one run for each.
        collection: Collection or corpus with the texts of the documents.
        split: Split of the collection with the queries.
        queries: Query file; overrides the path recorded in the run.
        dtype: Precision of the model; `auto` is bf16 where the processor supports it natively, else fp32.
        shard_size: Pairs per shard; an interruption loses at most one shard.
        batch_tokens: Tokens per batch, padding included; changes scores by rounding only.
    """

    command = "rerank"
    panel = FUSION
    examples = (
        "hybrid rerank out/bm25.parquet --model out/reranker --depth 100 --output out/reranked.parquet",
        "hybrid rerank out/bm25.parquet --model out/reranker --depth 10,20,50,100,200,500,1000 --output out/by-depth",
        "hybrid rerank out/train.parquet --model out/reranker --output out/scored.parquet",
    )

    run: Path = argument(REQUIRED)
    _: KW_ONLY
    scopes = (
        scope(when(input=A_RUN), "depth") + scope(when(collection=GIVEN), "split") + scope(when(split=None), "queries")
    )

    model: str = option(REQUIRED, panel=RERANKER, recorded=False)
    depth: Sequence[int] = option((100,), "--depth", "-k", minimum=1)
    collection: Path | None = option(None, shown="the corpus recorded in the run")
    split: str | None = option(None, recorded=False)
    queries: Path | None = option(None)
    dtype: Precision = redeclare(Encode, "dtype", applies=())
    shard_size: int = redeclare(Encode, "shard_size", applies=())
    batch_tokens: int | None = redeclare(Encode, "batch_tokens", shown="4096 on a CPU, 65536 on a GPU", applies=())

    @property
    def deepest(self) -> int:
        """Return the largest number of rescored hits per query."""
        return max(self.depth)
