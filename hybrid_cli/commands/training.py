"""Settings of training data, pretraining, training and distillation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from hybrid_cli.collections.options import QueriesFrom
from hybrid_cli.commands.common import (
    OBJECTIVE,
    OPTIMIZATION,
    PROJECTION,
    TRAINING,
    VALIDATION,
    AdaptedModel,
    Architecture,
    Distillation,
    EncoderContract,
    ExampleValidation,
    Likelihood,
    LossOptions,
    OnDevice,
    Optimization,
    Sampling,
    StartModel,
    Taught,
    ThreadedOnCluster,
    Training,
    Validation,
)
from hybrid_cli.commands.retrieval import REPLACED
from hybrid_cli.encoders.options import SparseArchitecture
from hybrid_cli.errors import InputError, option_error
from hybrid_cli.settings import Seeded, Settings, Writes
from hybrid_cli.settings.conversion import LARGEST
from hybrid_cli.settings.options import (
    GIVEN,
    POSITIVE,
    REQUIRED,
    By,
    argument,
    inherited,
    option,
    redeclare,
    scope,
    when,
)
from hybrid_cli.settings.paths import OptionalPath, OptionalPathOrPaths, PathField, PathOrPaths
from hybrid_cli.training.options import (
    BM25,
    GIVEN_FILE,
    OF_PLUGINS,
    RANDOM,
    RESIDUALS,
    RUN,
    SCORED,
    TAUGHT,
    DynamicRanking,
    Flops,
    Imitation,
    Labeling,
    LambdaEncoder,
    LambdaLoss,
    Mining,
    NegativeSource,
    Pretraining,
    RerankerLoss,
    SparseLoss,
    mining_depth,
)

TEACHER, STATIC, SPANS = "Teacher", "Static encoder", "Spans"


@dataclass(frozen=True)
class Pretrain(Training, StartModel, Pretraining):
    """Pretrain an encoder on a corpus with masked language modeling.

    The output is a start model for `train-dense --model`. An interrupted run resumes from its last checkpoint and ends
    with the same weights.

    Attributes:
        collection: Collection or corpus; queries and qrels are not read.
        cocondenser: Add the Condenser head, and the contrastive loss between two spans of a document (coCondenser).
        max_length: Maximum tokens of a span.
        mlm_probability: Fraction of the tokens that are masked, in whole words.
        skip_layer: Layer whose token states enter the Condenser head; 0 is the embeddings.
        held_out: Documents held out for validation, at most a tenth of the corpus.
        batch_size: Spans per batch; with `--cocondenser`, documents with two spans each.
    """

    option_panel = SPANS

    command = "pretrain"
    panel = TRAINING
    examples = (
        "hybrid pretrain data/pydocs --model minilm --max-steps 1000 --output out/adapted",
        "hybrid pretrain data/pydocs --cocondenser --max-steps 1000 --output out/cocondenser",
    )

    default_epochs: ClassVar[int] = Pretraining.default_epochs

    collection: PathField = argument(REQUIRED)
    _: KW_ONLY
    scopes = scope(when(cocondenser=True), "skip_layer")

    cocondenser: bool = inherited()
    max_length: int = inherited(minimum=4)
    mlm_probability: float = inherited(minimum=0.01, maximum=0.99)
    skip_layer: int | None = option(None, minimum=0, shown="the middle layer")
    held_out: int = inherited(minimum=0, needed=when(eval_steps=GIVEN))
    epochs: int | None = inherited(shown="8, or as many as --max-steps needs")
    batch_size: int = inherited()
    learning_rate: float = inherited()
    weight_decay: float = inherited()
    eval_steps: int | None = redeclare(Validation, "eval_steps", applies=())


_SUMMED = when(dynamic_negatives=POSITIVE, dynamic_ranking="sum")
_SCORED = (when(loss=SCORED), _SUMMED)
_PAIRS = (  # BM25 scores of pairs that the examples do not hold
    when(loss=RESIDUALS, in_batch=True, scorer=BM25),
    when(loss=RESIDUALS, dynamic_negatives=POSITIVE, scorer=BM25),
    when(**_SUMMED.allowed, scorer=BM25),
)


@dataclass(frozen=True)
class TrainDense(Training, ExampleValidation, Sampling, Architecture, Taught, LossOptions):
    """Train a dense encoder on mined examples.

    The two parts of RoC, `--ortho-weight` and `--mask-matches`, combine with every loss, and so does `--distill`; with
    a residual loss, the teacher teaches the sum with the scorer. An interrupted run resumes from its last checkpoint
    and ends with the same weights.

    Attributes:
        training_examples: Training examples, written by `mine-negatives`.
        dynamic_negatives: Additional hard negatives per query, found again at every checkpoint among the documents of
            the examples.
        dynamic_ranking: Ranking whose top hits become dynamic negatives: of the `model`, or of the `sum` with the
            scores of `--scorer`.
        refresh_negatives: Steps between two searches of the whole collection, from whose top hits the dynamic negatives
            are drawn.
        collection: Collection or corpus of `--refresh-negatives`.
    """

    option_panel = OPTIMIZATION

    command = "train-dense"
    panel = TRAINING
    examples = (
        "hybrid train-dense out/train.parquet --loss residual-margin --model minilm --output out/clear",
        "hybrid train-dense out/train.parquet --loss roc --index out/bm25 --dev out/dev.parquet --output out/roc",
        "hybrid train-dense out/train.parquet --distill kl --teacher out/reranker --output out/taught",
    )

    training_examples: PathField = argument(REQUIRED, metavar="EXAMPLES")
    _: KW_ONLY
    default_epochs: ClassVar[int] = 2  # studies/recommended.md

    scopes = scope(when(dynamic_negatives=POSITIVE), "dynamic_ranking", "refresh_negatives") + scope(
        when(refresh_negatives=GIVEN), "collection"
    )

    epochs: int | None = inherited(shown="2, or as many as --max-steps needs")
    learning_rate: float = inherited(default=5e-5)
    index: OptionalPath = inherited(
        applies=(when(ortho_weight=POSITIVE), when(dev=GIVEN), when(loss=OF_PLUGINS), *_PAIRS),
        needed=(when(ortho_weight=POSITIVE), *_PAIRS),
    )
    scorer: str = inherited(applies=_SCORED)
    scorer_weight: float = inherited(applies=_SCORED)
    dynamic_negatives: int = option(0, minimum=0, excluded=when(loss=TAUGHT))
    dynamic_ranking: DynamicRanking = option(
        By("loss", dict.fromkeys(RESIDUALS, "sum"), "model"),
        shown="`sum` for residual-margin, residual-nll; else `model`",
    )
    refresh_negatives: int | None = option(None, minimum=1)
    collection: OptionalPath = option(None, shown="the corpus of the examples")

    @property
    def ranks_by_sum(self) -> bool:
        """Dynamic negatives are the top hits of the weighted sum with the scorer."""
        return bool(self.dynamic_negatives) and self.dynamic_ranking == "sum"

    @property
    def scored(self) -> bool:
        """The loss or the dynamic negatives depend on the scorer."""
        given = not self.given.isdisjoint(("scorer", "scorer_weight", "scorer_schedule"))  # for a loss of a plugin
        return self.loss in RESIDUALS or self.ranks_by_sum or given

    @property
    def names_encoder(self) -> bool:
        """The training reads the scores of a frozen encoder."""
        return self.scored and self.scorer != BM25

    @property
    def uses_bm25(self) -> bool:
        """The training needs BM25 scores of pairs that the examples do not hold."""
        of_plugin = self.scored and self.loss == OF_PLUGINS and self.index is not None and self.scorer == BM25
        return of_plugin or any(condition.holds(self.values()) for condition in _PAIRS)


TRANSFORMER = when(encoder="transformer")
_OF_TRANSFORMER = ("loss", "positives", "epochs", "chunk_size", "schedule", "keep_epochs", "dtype")
_WITHOUT_BASE = when(encoder="transformer", base=None)  # whose vectors determine the form of the sum


_INDEXED = (when(encoder="static"), when(loss="listwise", dynamic_negatives=POSITIVE), when(dev=GIVEN))


@dataclass(frozen=True)
class TrainLambda(Training, Validation, Architecture, Imitation):
    """Train an encoder that imitates the ranking of a lexical teacher (Lambda of SPAR).

    A transformer learns from teacher labels. A static encoder sums one vector per term: it learns from the lexical
    index in a minute, encodes without a transformer, and is independent of word order.

    Attributes:
        collection: Collection: the labeled corpus, and the dev queries.
        encoder: Transformer, or static encoder with one vector per term.
        index: Lexical index: teacher of a static encoder and of the validation; if it made the labels, also of all
            documents of the batch for `--loss listwise`.
        labels: Teacher labels, written by `label`: required for a transformer; optional queries for a static encoder.
        loss: `contrastive`: likelihood of a top-ranked passage in the batch; `listwise`: KL divergence from the scores
            in the labels, or of BM25 with `--index`.
        base: Frozen encoder, such as a static Lambda, to which the transformer is added; the output is the sum of both.
        positives: Top-ranked hits used as positives.
        negatives: Bottom-ranked hits used as hard negatives.
        list_passages: Passages drawn from the hits of each query per step, in addition to one positive.
        dynamic_negatives: Hard negatives per query mined with the student itself, from a pool that is re-encoded at
            every checkpoint.
        temperature: Divisor of the student's and the teacher's scores before the softmax.
        dim: Dimensions of the vectors.
        vocab_size: Number of terms with a vector of their own, the most frequent ones.
        hash_buckets: Vectors shared by all other terms, chosen by a hash.
        text_fraction: Fraction of labeled texts among the queries; the others are random bags of terms.
        candidates: Candidates: top-ranked documents of the teacher for each query, and documents drawn from the
            collection in each step.
        dev: Split with the queries of the validation, on a pool of the teacher's passages; needs `--index`.
        epochs: Passes over the labels.
    """

    command = "train-lambda"
    panel = TRAINING
    examples = (
        "hybrid train-lambda data/pydocs --labels out/labels --index out/bm25 --dev dev --output out/lambda",
        "hybrid train-lambda data/pydocs --encoder static --index out/bm25 --dim 64 --output out/static",
    )
    scopes = (
        scope(TRANSFORMER, Architecture, OnDevice, *_OF_TRANSFORMER)
        + scope(when(encoder="static"), "dynamic_negatives", "temperature", "vocab_size", "hash_buckets", "candidates")
        + scope(when(encoder="transformer", loss="contrastive"), "base", "negatives")
        + scope(when(encoder="transformer", loss="listwise"), "list_passages", "dynamic_negatives", "temperature")
        + scope(when(base=None), "matryoshka_dims", "dim")
        + scope(when(encoder="static", labels=GIVEN), "text_fraction")
    )

    collection: PathField = argument(REQUIRED)
    _: KW_ONLY
    encoder: LambdaEncoder = option("transformer")
    index: OptionalPath = option(None, panel=TEACHER, applies=_INDEXED, needed=_INDEXED)
    labels: OptionalPath = option(None, panel=TEACHER, needed=when(encoder="transformer"))
    loss: LambdaLoss = inherited(panel=TEACHER)
    base: str | None = option(None, panel=TEACHER, recorded=False)
    positives: int = inherited(panel=TEACHER, minimum=1)
    negatives: int = inherited(panel=TEACHER, minimum=1)
    list_passages: int = inherited(panel=TEACHER, minimum=1)
    dynamic_negatives: int = inherited(panel=TEACHER, minimum=0)
    temperature: float = option(1.0, panel=TEACHER, above=0)
    matryoshka_dims: Sequence[int] = redeclare(LossOptions, "matryoshka_dims")
    dim: int | None = inherited(default=By("encoder", {"static": 64}), shown="the model's; static: 64")
    normalize: bool | None = inherited(applies=_WITHOUT_BASE)
    projection_norm: bool | None = inherited(
        applies=(when(**_WITHOUT_BASE.allowed, dim=GIVEN), when(**_WITHOUT_BASE.allowed, start=PROJECTION))
    )
    vocab_size: int = option(200_000, panel=STATIC, minimum=1)
    hash_buckets: int = option(4096, panel=STATIC, minimum=1)
    text_fraction: float = inherited(panel=STATIC, minimum=0, maximum=1)
    candidates: tuple[int, int] = inherited(panel=STATIC, minimum=1, metavar="HARD DRAWN")
    dev: str | None = inherited(recorded=True)
    epochs: int | None = inherited()
    max_steps: int | None = inherited(default=By("encoder", {"static": 1200}))
    batch_size: int = inherited(default=By("encoder", {"static": 256}, Optimization.batch_size))
    learning_rate: float = inherited(default=By("encoder", {"static": 3e-3}, Optimization.learning_rate))
    warmup: float = inherited(default=By("encoder", {"static": 0.0}, Optimization.warmup))


STUDENT = when(queries_only=False)
_OF_STUDENT = ("kd_weight", "dim", "normalize", "projection_norm", "tied", "negatives")
_OF_DOCUMENTS = ("doc_prefix", "doc_max_len", "title_separator")


@dataclass(frozen=True)
class DistillLite(Training, ExampleValidation, Sampling, Architecture, Likelihood, Distillation):
    """Distill a teacher's vectors into a small encoder (LITE).

    The student has two heads: a small head for retrieval, and a large head that matches the teacher's vectors and is
    dropped after training; `--distill` adds a loss of the small head on the scores in the examples. With
    `--queries-only`, the output is a query encoder for the teacher's indexes (DrBoost).

    Attributes:
        training_examples: Training examples, written by `mine-negatives`.
        teacher: Encoder to distill: an ensemble or any other.
        queries_only: Train only a query encoder for the teacher's indexes; documents keep the teacher's vectors.
        kd_weight: Weight of the squared distances to the teacher's vectors, relative to the likelihood.
        dim: Dimensions of the student's vectors.
    """

    command = "distill-lite"
    panel = TRAINING
    examples = (
        "hybrid distill-lite out/train.parquet --teacher out/drboost-2 --dim 32 --output out/lite",
        "hybrid distill-lite out/train.parquet --teacher out/drboost-2 --queries-only --output out/drboost-2-queries",
    )
    scopes = scope(STUDENT, Likelihood, Distillation, *_OF_STUDENT, *_OF_DOCUMENTS)

    training_examples: PathField = argument(REQUIRED, metavar="EXAMPLES")
    _: KW_ONLY
    teacher: str = option(REQUIRED, recorded=False)
    queries_only: bool = option(False)
    kd_weight: float = option(1.0, panel=OBJECTIVE, minimum=0)
    dim: int | None = inherited(default=32, shown="32")
    negatives: int = inherited(default=By("queries_only", {True: 0}, Sampling.negatives), shown="1")


SOURCES, FILTERS = "Sources of negatives", "Filters"
RANKING, QUERIES, LISTS = "Teacher (--index or --run)", "Queries", "Hits"

NUM_NEGATIVES = 8  # default of --negatives for sources without numbers

_RANKED = when(source="a bm25, run:PATH or given:PATH source")
_SENTENCES = when(split=None, queries=None)


@dataclass(frozen=True)
class MineNegatives(Mining, Seeded, ThreadedOnCluster, Writes):
    """Write training examples with hard negatives from the errors of a first stage.

    One row per query and relevant document: query, document, negatives drawn uniformly from the ranks `--skip-top` + 1
    to `--depth` of each source, all texts, and exact lexical scores (CLEAR, section 3.3). Relevant documents are never
    negatives. If a source has too few candidates, random documents fill the list; the printed table counts them.

    Several collections become one training set (DPR-multi). Query ids are prefixed with the name of their collection;
    so are document ids, unless all collections have the same corpus.

    Attributes:
        collection: Collections with corpus, queries and qrels.
        split: Split of the collection.
        queries: Queries file; replaces the collection's.
        qrels: Qrels file; replaces the collection's.
        sources: `bm25`, `random`, `run:PATH`, or `given:PATH` (negatives of a training file); several with numbers:
            `bm25:6,random:2`.
        index: Lexical index: for the source `bm25`, and for exact lexical scores; several collections need one, or one
            each. Or a retriever, whose hits are the source.
        scores: Run with a teacher's scores, which the examples store. Documents that it lacks are left out.
        positives: Relevant documents of a query that become examples: all, or the first of the judgments (DPR's gold
            passage).
        depth: Lowest rank from which negatives are drawn. The default grows with the collection: 26 for 6,000
            documents, 1,000 from 9 million on.
        skip_top: Number of top ranks to skip; they often hold unjudged positives.
        negatives: Negatives per example.
        prob: Probability that a negative comes from its source, else from the corpus. 0 is CLEAR's ablation with random
            negatives.
        answer_filter: Drop candidates whose text contains an answer to the query.
        relative_margin: Drop candidates that score above this fraction of the positive's score; NV-Retriever uses 0.95.
        max_score: Drop candidates with a score above this value.
    """

    command = "mine-negatives"
    panel = TRAINING
    examples = (
        "hybrid mine-negatives data/pydocs --split train --index out/bm25 --output out/train.parquet",
        "hybrid mine-negatives data/pydocs --split train --index out/bm25 --sources bm25:6,random:2 "
        "--relative-margin 0.95 --output out/train.parquet",
        "hybrid mine-negatives data/pydocs --split train --index out/bm25 --scores out/reranked.parquet "
        "--output out/scored.parquet",
        "hybrid mine-negatives data/nq data/webq --split train --index out/bm25 --output out/multi.parquet",
        "hybrid mine-negatives data/nq --split train --sources given:biencoder-nq-train.json --positives first "
        "--output out/dpr.parquet",
    )

    collection: PathOrPaths = argument(REQUIRED)
    _: KW_ONLY
    scopes = scope(_RANKED, "depth", "skip_top", "prob", "relative_margin", "max_score")

    split: str | None = option(None, recorded=False, excluded=REPLACED)
    queries: OptionalPath = option(None)
    qrels: OptionalPath = option(None)
    sources: Sequence[str] = option((BM25,), panel=SOURCES, metavar="SOURCE,...")
    index: OptionalPathOrPaths = option((), panel=SOURCES)
    scores: OptionalPath = option(None, panel=SOURCES)
    positives: Literal["all", "first"] = option("all")
    depth: int | None = option(
        None,
        panel=SOURCES,
        minimum=1,
        metavar="INT|auto",
        shown="auto: sqrt(documents) / 3, from 20 to 1,000, counted after the skipped ranks",
        automatic="auto",
    )
    skip_top: int = inherited(panel=SOURCES, minimum=0)
    negatives: int | None = option(
        None, panel=SOURCES, minimum=1, shown=f"the sum of the numbers in --sources, or {NUM_NEGATIVES}", recorded=False
    )
    prob: float = inherited(panel=SOURCES, minimum=0, maximum=1)
    seed: int = inherited()
    answer_filter: bool = inherited(panel=FILTERS)
    relative_margin: float | None = option(None, panel=FILTERS, above=0)
    max_score: float | None = option(None, panel=FILTERS)

    @property
    def collections(self) -> tuple[Path, ...]:
        """The collections, in order."""
        return (self.collection,) if isinstance(self.collection, Path) else tuple(self.collection)

    @property
    def indexes(self) -> tuple[Path, ...]:
        """The lexical indexes, in order."""
        return (self.index,) if isinstance(self.index, Path) else tuple(self.index or ())

    def check(self) -> None:
        """Refuse ambiguous sources, and options of other sources."""
        super().check()
        names = [source.name for source in self.plan()]
        if BM25 in names and not self.indexes:
            problem = "--sources bm25: needs --index"
            raise InputError(problem, code="missing-option", option="index", needed_by="sources")
        self.check_facts(f"--sources is {','.join(self.sources)}", **self._facts())
        if self.depth is not None and self.skip_top >= self.depth:
            raise option_error("skip_top", self.skip_top, f"leaves no rank of --depth {self.depth}")
        self._check_several()

    def _check_several(self) -> None:
        """Refuse options that belong to one collection, and ambiguous collections or indexes."""
        if len(self.indexes) not in (0, 1, len(self.collections)):
            reason = f"pass one index, or one for each of the {len(self.collections)} collections"
            raise option_error("index", self.indexes, reason, code="number-of-values")
        if len(self.collections) == 1:
            return
        if own := [source.name for source in self.plan() if source.run]:
            raise option_error("sources", own[0], "only with one collection", code="conflicting-options")
        if self.scores is not None:
            raise option_error("scores", self.scores, "only with one collection", code="conflicting-options")
        files = sum(_is_given(item) for item in self.sources)
        if files not in (0, len(self.collections)):
            reason = f"pass one file for each of the {len(self.collections)} collections, in order"
            raise option_error("sources", self.sources, reason, code="number-of-values")
        if self.queries is not None or self.qrels is not None:
            reason = "only with one collection; --split names those of each collection"
            raise InputError(f"--queries and --qrels: {reason}", code="conflicting-options", option="queries")
        for name, times in Counter(path.name for path in self.collections).items():
            if times > 1 or ":" in name:
                reason = "the names of collections are put before their ids: each needs its own, without a colon"
                raise InputError(f"mine-negatives {name}: {reason}; rename one", code="invalid-name", value=name)

    def of_collection(self, number: int) -> MineNegatives:
        """Return the settings of one collection, with its index and the training file of its negatives."""
        index = self.indexes[number : number + 1] if len(self.indexes) == len(self.collections) else self.indexes
        return self.changed(collection=(self.collections[number],), index=index, sources=self._sources_of(number))

    def _sources_of(self, number: int) -> list[str]:
        """Return the items of `--sources` for a collection: of the training files of several ones, its own."""
        files = [position for position, item in enumerate(self.sources) if _is_given(item)]
        others = {*files} - {*files[number : number + 1]} if len(self.collections) > 1 else set()
        return [item for position, item in enumerate(self.sources) if position not in others]

    def with_depth(self, documents: int) -> MineNegatives:
        """Return the settings with the depth for a collection of `documents` documents, if none is set."""
        ranked = [source.count for source in self.plan() if source.name != RANDOM]
        if self.depth is not None or not ranked:
            return self
        return self.changed(depth=self.skip_top + mining_depth(documents, max(ranked)))

    def _facts(self) -> dict[str, Any]:
        return {} if any(source.name != RANDOM for source in self.plan()) else {"source": RANDOM}

    def plan(self) -> list[NegativeSource]:
        """Return the sources with their numbers of negatives.

        Raises:
            InputError: unknown source, a number missing or below 1, a source twice, or a sum other than
                `negatives`.
        """
        text, items = ",".join(self.sources), self._sources_of(0)
        default = (self.negatives or NUM_NEGATIVES) if len(items) == 1 else None
        sources = [_source(item, default) for item in items]
        if len(items) < len(self.sources) and len({_numbered(item)[1] for item in self.sources if _is_given(item)}) > 1:
            reason = "needs the same number of negatives for each file"
            raise option_error("sources", text, reason, code="number-of-values")
        name, times = Counter(source.name for source in sources).most_common(1)[0]
        if times > 1:
            raise option_error("sources", name, "is listed twice; list each source once", code="repeated-value")
        total = sum(source.count for source in sources)
        if self.negatives is not None and total != self.negatives:
            reason = f"the numbers add up to {total}, but --negatives is {self.negatives}"
            raise option_error("sources", text, reason, code="conflicting-options", others=("negatives",))
        return sources

    def mining(self) -> dict[str, Any]:
        """Return the arguments of `training.mining.Miner` that the options of one collection decide."""
        drawn = {"plan": self.plan(), "depth": self.depth or 0, "scores": self.scores, "remedy": self.fewer}
        return {**drawn, "collection": self.collections[0], "how": self, "where": self}

    @property
    def fewer(self) -> str:
        """Return advice for fewer negatives, for messages."""
        numbered = any(_numbered(item)[1] is not None for item in self.sources)
        return "use smaller numbers in --sources" if numbered else "use a smaller --negatives"

    def recorded(self, **facts: Any) -> dict[str, Any]:
        """Return the options for the manifest; `sources` maps each name to its number of negatives."""
        counts = {source.name: source.count for source in self.plan()}
        return {**super().recorded(**self._facts(), **facts), "sources": counts}


def _source(item: str, default: int | None) -> NegativeSource:
    name, number = _numbered(item)
    count = default if number is None else number
    prefix, _, path = name.partition(":")
    if prefix not in (BM25, RANDOM) and (prefix not in (RUN, GIVEN_FILE) or not path):
        reason = "unknown; choices: bm25:N, random:N, run:PATH:N, given:PATH:N"
        raise option_error("sources", item, reason, code="unknown-choice")
    if count is None or not 1 <= count <= LARGEST or (prefix in (BM25, RANDOM) and path):
        reason = f"needs a number of negatives between 1 and {LARGEST}, as in bm25:6,random:2"
        raise option_error("sources", item, reason)
    if name in (BM25, RANDOM):
        return NegativeSource(name, count)
    if prefix == GIVEN_FILE:
        return NegativeSource(GIVEN_FILE, count, given=Path(path))
    stem = Path(path).stem
    return NegativeSource(f"{RUN}:{stem}" if stem in (BM25, RANDOM) else stem, count, Path(path))


def _is_given(item: str) -> bool:
    """Test whether a source is a training file."""
    return item.startswith(f"{GIVEN_FILE}:")


def _numbered(item: str) -> tuple[str, int | None]:
    """Return a source without its number, and the number of negatives; None for a source without a number."""
    name, separator, number = item.rpartition(":")
    return (name, int(number)) if separator and number.isdecimal() and number.isascii() else (item, None)


@dataclass(frozen=True)
class Label(Labeling, Seeded, ThreadedOnCluster, Writes):
    """Label queries with the top hits of BM25, of a retriever or of a run, for training a Lambda (SPAR, section 4.1).

    The queries are sentences of the corpus, or queries of `--split` or `--queries`. Queries without a hit are
    dropped and counted. After an interruption, the same command resumes with the first missing shard.

    Attributes:
        collection: Collection; its corpus provides the sentences and the passages.
        index: BM25: a lexical index of the collection; or a retriever.
        run: Another ranking: a run of the given queries.
        queries_from: `all` sentences of three words or more, `sampled` ones as in SPAR (appendix A), or `cropped`:
            sampled, cut to the length of queries.
        split: Split of the collection, whose queries replace the sentences.
        queries: Queries file or collection, whose queries replace the sentences.
        max_queries: Number of queries, drawn uniformly from all.
        depth: Hits kept per query.
        seed: Random seed of the sample.
    """

    command = "label"
    panel = TRAINING
    examples = (
        "hybrid label data/pydocs --index out/bm25 --max-queries 100000 --output out/labels",
        "hybrid label data/pydocs --index out/retriever --split train --output out/labels",
        "hybrid label data/pydocs --run out/splade.parquet --split train --output out/labels",
    )

    collection: PathField = argument(REQUIRED)
    _: KW_ONLY
    scopes = (
        scope((when(split=GIVEN), when(queries=GIVEN)), "run")
        + scope(_SENTENCES, "queries_from")
        + scope((when(max_queries=GIVEN), when(queries_from=("sampled", "cropped"), split=None, queries=None)), "seed")
    )

    index: OptionalPath = option(None, panel=RANKING, needed=when(run=None), excluded=when(run=GIVEN))
    run: OptionalPath = option(None, panel=RANKING)
    queries_from: QueriesFrom = inherited(panel=QUERIES)
    split: str | None = option(None, panel=QUERIES, recorded=False)
    queries: OptionalPath = option(None, panel=QUERIES)
    max_queries: int | None = option(None, panel=QUERIES, minimum=1, shown="all")
    depth: int = inherited(panel=LISTS, minimum=1)
    seed: int = inherited()


_CONTRASTIVE = when(architecture=("splade", "unicoil", "sparterm"))
_OF_RANKING = ("loss", "distill", "query_flops", "doc_flops", "temperature", "mask_matches", "negatives")


@dataclass(frozen=True)
class TrainSparse(Flops, Training, ExampleValidation, Sampling, AdaptedModel, Taught):
    """Train a learned sparse encoder on mined examples.

    `deepct` learns the share of a passage's training queries that contain each of its words, and needs no negatives.
    The others learn to rank, with the FLOPS regularization; `sparterm` also learns a gate. An interrupted run resumes
    from its last checkpoint and ends with the same weights.

    Attributes:
        training_examples: Training examples, written by `mine-negatives`.
        loss: Likelihood of the positive, or a loss on a teacher's scores.
        query_flops: Weight of the FLOPS of queries.
        doc_flops: Weight of the FLOPS of documents.
        temperature: Divisor of the scores.
        architecture: Weights of words: `splade`: the whole vocabulary; `unicoil`: word pieces of the text; `deepct`:
            its words; `sparterm`: gated.
    """

    command = "train-sparse"
    panel = TRAINING
    examples = (
        "hybrid train-sparse out/train.parquet --architecture deepct --output out/deepct",
        "hybrid train-sparse out/train.parquet --architecture splade --lr 5e-5 --output out/splade",
    )

    training_examples: PathField = argument(REQUIRED, metavar="EXAMPLES")
    _: KW_ONLY
    scopes = scope(_CONTRASTIVE, *_OF_RANKING, "query_prefix", "query_max_len", "dev") + scope(
        when(**_CONTRASTIVE.allowed, loss="nll"), "in_batch"
    )

    architecture: SparseArchitecture = option(REQUIRED)
    loss: SparseLoss = option("nll", panel=OBJECTIVE)
    query_flops: float = option(By("architecture", {"sparterm": 0.0}, Flops.query_flops), panel=OBJECTIVE, minimum=0)
    doc_flops: float = option(By("architecture", {"sparterm": 0.0}, Flops.doc_flops), panel=OBJECTIVE, minimum=0)
    temperature: float = option(1.0, panel=OBJECTIVE, above=0)
    in_batch: bool = redeclare(Likelihood, "in_batch")
    mask_matches: float = redeclare(LossOptions, "mask_matches", default=0.0)
    query_prefix: str | None = redeclare(EncoderContract, "query_prefix")
    doc_prefix: str | None = redeclare(EncoderContract, "doc_prefix")
    title_separator: str | None = redeclare(EncoderContract, "title_separator")
    query_max_len: int | None = redeclare(EncoderContract, "query_max_len")
    doc_max_len: int | None = redeclare(EncoderContract, "doc_max_len")


RERANKER = "Reranker"


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

    training_examples: PathField = argument(REQUIRED, metavar="EXAMPLES")
    _: KW_ONLY
    loss: RerankerLoss = option("listwise", panel=OBJECTIVE)
    mask_matches: float = redeclare(LossOptions, "mask_matches", default=0.0)
    model: str = inherited(panel=RERANKER)
    layers: int | None = inherited(panel=RERANKER)
    negatives: int = inherited(default=By("loss", {"listwise": 7}, Sampling.negatives))
    batch_size: int = inherited(default=By("loss", {"listwise": 8}, Optimization.batch_size))
    chunk_size: int | None = inherited()
    dev: OptionalPath = inherited(panel=VALIDATION)
