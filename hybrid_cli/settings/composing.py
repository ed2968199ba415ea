"""Settings of retrievers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path

from hybrid_cli.errors import option_error
from hybrid_cli.fusion.options import Missing, Normalization
from hybrid_cli.passages import Group
from hybrid_cli.settings.common import HITS, MEASURE, OnDevice, Overwrites, ReadsFiles, Seeded, Threaded, Writes
from hybrid_cli.settings.fusion import FUSION, Fuse
from hybrid_cli.settings.options import GIVEN, REQUIRED, argument, inherited, option, redeclare, scope, when
from hybrid_cli.settings.retrieval import (
    LEARNED,
    RETRIEVER,
    SINGLE_INDEX,
    TRANSFORMER_INDEX,
    TUNING,
    SearchOptions,
)

SCALE, RERANK = "Scale of the scores", "Reranking"


@dataclass(frozen=True)
class Compose(OnDevice, Threaded, Seeded, Writes):
    """Compose indexes of one corpus into a retriever: one path that is searched, measured, served and shipped.

    The retriever names its indexes and their fusion, and copies nothing. By default it sums exact scores, each in units
    of its standard deviation over the collection: .3 for lexical indexes, .7 for dense ones. `--tune` chooses the
    fusion on judged queries.

    Attributes:
        indexes: Lexical and dense indexes of one corpus.
        method: Fusion method; see `hybrid fuse`.
        weights: One weight per index, in order: `0.3,0.7`; without `--method`, of scores in units of their deviations;
            or `@FILE` written by `fuse --tune`.
        missing: A document that an index does not return; see `hybrid fuse`.
        depth: Hits of each index that are fused.
        reranker: Reranker of the first fused hits: a folder, or a Hugging Face id.
        rerank_depth: Hits per query that the reranker rescores.
        queries: Queries, or a collection with `--split`, that the deviations are of, or the judgments in `--qrels`.
        split: Split of the collection in `--queries` or `--qrels`.
        seed: Random seed of the sentences and folds.
        tune: Search the queries of `--qrels`, and choose method and weights on them.
        calibrate: Learn the probability of a hit from the queries of `--qrels`, for `search --min-probability`.
        qrels: Qrels, or a collection with `--split`, whose judged queries tune the fusion or calibrate its hits.
        measure: Measure to maximize.
    """

    command = "compose"
    panel = FUSION
    examples = (
        "hybrid compose out/bm25 out/dense --output out/retriever",
        "hybrid compose out/bm25 out/dense --tune --qrels data/mine --split dev --output out/retriever",
        "hybrid compose out/bm25 out/dense --tune --qrels judgments.tsv --output out/retriever",
        "hybrid compose out/bm25 out/dense --weights @out/weights.json --output out/retriever",
        "hybrid compose out/bm25 out/dense --calibrate --qrels data/mine --split dev --output out/retriever",
    )

    indexes: Sequence[Path] = argument(REQUIRED)
    _: KW_ONLY
    scopes = (
        scope(when(method=GIVEN), "normalize", "missing")
        + scope(when(reranker=GIVEN), "rerank_depth")
        + scope((when(method=None, tune=False), when(tune=True), when(calibrate=True)), "queries")
        + scope((when(tune=True), when(calibrate=True)), "qrels")
        + scope(when(tune=True), "measure")
        + scope((when(queries=GIVEN), when(qrels=GIVEN)), "split")
    )

    method: str | None = redeclare(
        Fuse, "method", default=None, shown="the sum of exact scores in units of their deviations"
    )
    weights: str | Sequence[float] | None = option(
        None, parse=str, shown="0.3 for lexical, 0.7 for dense indexes; else equal"
    )
    normalize: Normalization | None = redeclare(Fuse, "normalize")
    rrf_k: float = redeclare(Fuse, "rrf_k", applies=when(method="rrf"))
    missing: Missing | None = redeclare(Fuse, "missing", panel="")
    depth: int = option(HITS, minimum=1)
    group: Group | None = redeclare(SearchOptions, "group", applies=(), recorded=True)
    reranker: str | None = option(None, panel=RERANK)
    rerank_depth: int = option(50, panel=RERANK, minimum=1)
    queries: Path | None = option(
        None,
        panel=SCALE,
        shown="200 pieces of sentences of the documents; for `--qrels`, those of the indexed collection",
    )
    split: str | None = option(None, recorded=False)
    seed: int = inherited()
    tune: bool = option(False, panel=TUNING, excluded=(when(weights=GIVEN), when(method=GIVEN)))
    calibrate: bool = option(False, panel=TUNING)
    qrels: Path | None = option(None, panel=TUNING, needed=(when(tune=True), when(calibrate=True)))
    machine: Path | None = redeclare(Fuse, "machine")
    measure: str = option("nDCG@10", panel=TUNING, parse=MEASURE)

    def check(self) -> None:
        """Refuse an index that is listed twice."""
        super().check()
        if len(set(self.indexes)) < len(self.indexes):
            raise option_error("indexes", self.indexes, "list each index once", code="repeated-value")


@dataclass(frozen=True)
class Update(OnDevice, Threaded, ReadsFiles):
    """Bring a retriever or an index up to date with its documents: add, replace and delete what has changed.

    Name all documents in their present state, or the changes alone: `--add` and `--remove`. Only new and changed
    documents are analyzed and encoded, and the result equals one that is built from all documents at once.

    Of a retriever, the documents are read as those of its collection were. New generations of collection and indexes
    (`bm25.2`, `dense.2`) are written next to the old ones, and the retriever is switched last: open searches, and a
    killed update, keep the old state. Weights and scales are kept.

    A lexical (sharded or not), learned sparse or dense index is not changed: `--output` names the new index, which
    shares unchanged files with it by hard links.

    Attributes:
        index: Retriever, the folder of `auto`, or an index.
        documents: All documents in their present state: files or folders as for `prepare files`, or a collection.
        add: Documents to add, or to replace by their ids: a collection or a corpus file; for a retriever, a collection,
            or files as for `prepare files`.
        remove: File with the ids of documents to delete, one per line.
        output: Path of the new index.
        dry_run: Print what has changed, and write nothing.
        allow_shrink: Delete over half of the documents, if so many are gone.
        prune: Remove earlier generations that no retriever next to this one names.
        model: Encoder of a dense or learned sparse index; required if it has moved since indexing.
    """

    command = "update"
    panel = FUSION
    examples = (
        "hybrid update out/mine docs/",
        "hybrid update out/retriever docs.jsonl --prune",
        "hybrid update out/retriever --add new.jsonl --remove retracted.txt",
        "hybrid update out/bm25 --add data/new --remove retracted.txt --output out/bm25-2",
    )

    index: Path = argument(REQUIRED)
    documents: Sequence[Path] = argument(())
    _: KW_ONLY
    scopes = (
        scope(when(index_kind=RETRIEVER), "documents", "allow_shrink", "prune")
        + scope(when(index_kind=SINGLE_INDEX), "output", "overwrite")
        + scope(when(index_kind=("a dense index", LEARNED)), "model")
        + scope(when(index_kind=(TRANSFORMER_INDEX, RETRIEVER)), "device")
    )

    add: Path | None = option(None)
    remove: Path | None = option(None)
    output: Path | None = option(None, "--output", "-o")
    overwrite: bool = redeclare(Overwrites, "overwrite")
    dry_run: bool = option(False, recorded=False)
    allow_shrink: bool = option(False, recorded=False)
    prune: bool = option(False, recorded=False)
    model: str | None = option(None, recorded=False)

    def check(self) -> None:
        """Refuse a call without documents, and one with all documents and with changes."""
        super().check()
        if bool(self.documents) == (self.add is not None or self.remove is not None):
            reason = "name all documents in their present state, or the changes by --add and --remove"
            raise option_error("documents", None, reason, code="missing-option", others=("add", "remove"))
