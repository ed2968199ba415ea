"""Settings of training data: hard negatives and teacher labels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any, Literal

from hybrid_cli.collections.options import QueriesFrom
from hybrid_cli.errors import InputError, option_error
from hybrid_cli.settings.common import Seeded, ThreadedOnCluster, Writes
from hybrid_cli.settings.conversion import LARGEST
from hybrid_cli.settings.options import GIVEN, REQUIRED, argument, inherited, option, scope, when
from hybrid_cli.settings.retrieval import REPLACED
from hybrid_cli.training.options import BM25, GIVEN_FILE, RANDOM, RUN, Labeling, Mining, Source, mining_depth

TRAINING = "Training"
SOURCES, FILTERS = "Sources of negatives", "Filters"
TEACHER, QUERIES, HITS = "Teacher (--index or --run)", "Queries", "Hits"

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

    collection: Sequence[Path] | Path = argument(REQUIRED)
    _: KW_ONLY
    scopes = scope(_RANKED, "depth", "skip_top", "prob", "relative_margin", "max_score")

    split: str | None = option(None, recorded=False, excluded=REPLACED)
    queries: Path | None = option(None)
    qrels: Path | None = option(None)
    sources: Sequence[str] = option((BM25,), panel=SOURCES, metavar="SOURCE,...")
    index: Sequence[Path] | Path | None = option((), panel=SOURCES)
    scores: Path | None = option(None, panel=SOURCES)
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
            raise InputError(
                "--sources bm25: needs --index", code="missing-option", option="index", needed_by="sources"
            )
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

    def plan(self) -> list[Source]:
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

    @property
    def fewer(self) -> str:
        """Return advice for fewer negatives, for messages."""
        numbered = any(_numbered(item)[1] is not None for item in self.sources)
        return "use smaller numbers in --sources" if numbered else "use a smaller --negatives"

    def recorded(self, **facts: Any) -> dict[str, Any]:
        """Return the options for the manifest; `sources` maps each name to its number of negatives."""
        counts = {source.name: source.count for source in self.plan()}
        return {**super().recorded(**self._facts(), **facts), "sources": counts}


def _source(item: str, default: int | None) -> Source:
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
        return Source(name, count)
    if prefix == GIVEN_FILE:
        return Source(GIVEN_FILE, count, given=Path(path))
    stem = Path(path).stem
    return Source(f"{RUN}:{stem}" if stem in (BM25, RANDOM) else stem, count, Path(path))


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

    collection: Path = argument(REQUIRED)
    _: KW_ONLY
    scopes = (
        scope((when(split=GIVEN), when(queries=GIVEN)), "run")
        + scope(_SENTENCES, "queries_from")
        + scope((when(max_queries=GIVEN), when(queries_from=("sampled", "cropped"), split=None, queries=None)), "seed")
    )

    index: Path | None = option(None, panel=TEACHER, needed=when(run=None), excluded=when(run=GIVEN))
    run: Path | None = option(None, panel=TEACHER)
    queries_from: QueriesFrom = inherited(panel=QUERIES)
    split: str | None = option(None, panel=QUERIES, recorded=False)
    queries: Path | None = option(None, panel=QUERIES)
    max_queries: int | None = option(None, panel=QUERIES, minimum=1, shown="all")
    depth: int = inherited(panel=HITS, minimum=1)
    seed: int = inherited()
