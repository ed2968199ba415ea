"""Settings of fusions and retrievers: fuse, compose, update, rerank, serve."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar, Literal

from hybrid_cli.commands.common import FUSION, HITS, INDEXES, MEASURE, START, NameOrPath, OnDevice
from hybrid_cli.commands.retrieval import (
    RETRIEVER,
    SINGLE_INDEX,
    TUNING,
    EncodedTexts,
    SearchOptions,
    StoredVectors,
    Texts,
)
from hybrid_cli.commands.training import RERANKER, Pairs
from hybrid_cli.encoders.options import Precision
from hybrid_cli.errors import option_error
from hybrid_cli.fusion.options import MEASURE as TUNED_MEASURE
from hybrid_cli.fusion.options import METHOD, RRF_K, Grid, Missing, Normalization, Tuning
from hybrid_cli.indexes.options import LEARNED, TRANSFORMER_INDEX
from hybrid_cli.passages import Group
from hybrid_cli.settings import Overwrites, ReadsFiles, Seeded, Threaded, Writes
from hybrid_cli.settings.options import (
    GIVEN,
    REQUIRED,
    argument,
    inherited,
    option,
    options_by,
    parsed_by,
    redeclare,
    registered,
    scope,
    when,
)
from hybrid_cli.settings.paths import InheritedOptionalPath, OptionalPath, PathField, Paths

ABSENT, COMPARED = "Documents missing from a list", "Comparison"
MOST_K = 1_000_000  # the scores of further ranks would be equal in 32 bits
EXACT = "--missing exact"  # fact: the rule for missing documents, by --missing or by the method
_EXACT = when(rule=EXACT)
RRF = "the method rrf"  # fact: among the methods that --tune tries
_NO_METHOD = "no --method"  # fact


@dataclass(frozen=True, kw_only=True)
class WeightTuning(Seeded):
    """Options of tuning a fusion, with `--tune`.

    Attributes:
        methods: Methods to try. `auto`: with `--index` weighted-sum, else minmax; `--method` tries one. The first is
            chosen, unless another is better on held-out queries.
        grid: Weights that are tried: `linear`, `scaled` by the deviations of the scores, `log`, `reciprocal`, or those
            of a paper: `clear`, `roc`, `spar`.
        step: Distance between weights of the grids `linear` and `scaled`.
        folds: Folds of the queries for the held-out score.
        machine: Qrels of a machine (`judge --llm`) for these and more queries, which the judgments of people correct.
        seed: Random seed of the folds.
    """

    option_panel = TUNING

    scopes = (
        scope(when(tune=GIVEN, named=_NO_METHOD), "methods")
        + scope(when(tune=GIVEN), "grid", "folds", "machine", "seed")
        + scope(when(tune=GIVEN, grid=("auto", "linear", "scaled")), "step")
    )

    methods: Sequence[str] = option(Tuning.methods)
    grid: Grid | Literal["auto"] = option(Tuning.grid)
    step: float = option(Tuning.step, above=0, maximum=1)
    folds: int = option(Tuning.folds, minimum=2)
    machine: InheritedOptionalPath = option(None)
    seed: int = inherited()


@dataclass(frozen=True)
class Fuse(OnDevice, Threaded, WeightTuning, Writes):
    """Fuse runs into one, or tune the weights of a fusion.

    A method normalizes each list, combines the lists, and has a rule for documents missing from a list: `minmax` scores
    them 0, `weighted-sum` computes their exact scores. With `--qrels`, the scores of the single runs and of the fused
    run are printed.

    Attributes:
        runs: Two or more runs (Parquet, TREC or MS MARCO; `name=path` names one).
        method: Fusion method; names of ranx are also accepted.
        weights: One weight per run, in order: `0.5,1`; by name: `bm25=0.5,dense=1`; or `@FILE` written by `--tune`,
            with the method and its parameters.
        normalize: Normalization of each list; overrides the method's.
        rrf_k: Constant k in 1 / (k + rank).
        method_options: Parameters of the combination rule of `--method`, such as one of a plugin.
        depth: Hits read from each run.
        hits: Hits kept per query.
        missing: A document that a list lacks: `exact` score of `--index`, `min` of the list, `zero`, `ignore` the list,
            or `drop` the document.
        index: Index of each run, in order: `a,b`. `--tune` then tunes the exact sum.
        queries: Queries or collection; overrides the paths recorded in the runs.
        qrels: Qrels or collection; prints the score of each run.
        split: Split of the collection in `--qrels` or `--queries`.
        measure: Measure of the comparison and tuning.
        tune: Tune the weights on `--qrels` and write them as JSON.
    """

    command = "fuse"
    panel = FUSION
    examples = (
        "hybrid fuse out/bm25.parquet out/dense.parquet --method minmax --output out/minmax.parquet",
        "hybrid fuse out/bm25.parquet out/dense.parquet --method weighted-sum --weights 0.5,1 --missing exact "
        "--index out/bm25,out/clear-index --output out/clear.parquet",
        "hybrid fuse dev/bm25.parquet dev/dense.parquet --tune --qrels data/pydocs --split dev "
        "--output out/weights.json",
    )

    runs: Sequence[NameOrPath] = argument(REQUIRED)
    _: KW_ONLY
    scopes = (
        scope(when(tune=False), "weights")
        + scope((when(method="rrf"), when(tune=GIVEN, tried=RRF)), "rrf_k")
        + scope(_EXACT, "index", "queries", "device")
        + scope((when(qrels=GIVEN), when(queries=GIVEN), when(tune=True)), "split")
        + scope((when(qrels=GIVEN), when(tune=True)), "measure")
    )

    method: str = option(
        METHOD,
        choices=registered("hybrid_cli.fusion.methods", "METHODS"),
        parse=parsed_by("hybrid_cli.fusion.methods", "method_name"),
    )
    weights: str | Sequence[float] | None = option(None, parse=str, shown="equal")
    normalize: Normalization | None = option(None, shown="the method's")
    rrf_k: float = option(RRF_K, above=-1, maximum=MOST_K)
    method_options: Mapping[str, str] = option({}, "--method-option", metavar="NAME=VALUE")
    depth: int = option(HITS, minimum=1)
    hits: int = option(HITS, "--hits", "-k", minimum=1)
    missing: Missing | None = option(None, panel=ABSENT, shown="the method's")
    index: Paths = option((), panel=ABSENT)
    queries: OptionalPath = option(None, panel=ABSENT)
    qrels: OptionalPath = option(
        None, panel=COMPARED, shown="with --tune, those of the split that the runs were searched on"
    )
    split: str | None = option(None, panel=COMPARED)
    measure: str = option("MRR@10", panel=COMPARED, parse=MEASURE)
    tune: bool = option(False, panel=TUNING)

    def values(self) -> dict[str, Any]:
        """Return every field by name, and whether `method` was set."""
        return {**super().values(), "named": "--method" if "method" in self.given else _NO_METHOD}


@dataclass(frozen=True)
class ConcatRuns(Writes):
    """Concatenate runs of different queries, or aggregate a run of passages.

    For cross-validation: the test runs of all folds become one run, which is evaluated once. With `--group max`, a
    document has the score of its best passage, of a collection made with `prepare --split-passages`.

    Attributes:
        runs: Two or more runs without a common query; with `--group`, one or more.
        group: Replace the passages DOCID#NUMBER of a document by the document, with the highest score (`max`).
    """

    command = "concat-runs"
    panel = FUSION
    examples = (
        "hybrid concat-runs out/test-1.parquet out/test-2.parquet out/test-3.parquet --output out/all.parquet",
        "hybrid concat-runs out/passages.parquet --group max --output out/documents.parquet",
    )

    runs: Paths = argument(REQUIRED)
    _: KW_ONLY
    group: Literal["max"] | None = option(None)


SCALE, RERANK = "Scale of the scores", "Reranking"


@dataclass(frozen=True)
class Compose(OnDevice, Threaded, Seeded, Writes):
    """Compose indexes of one corpus into a retriever: one path that is searched, measured, served and shipped.

    The retriever names its indexes and their fusion, and copies nothing. By default it sums exact scores, each in units
    of its standard deviation over the collection: .3 for lexical indexes, .7 for dense ones. `--tune` chooses the
    weights on judged queries.

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
        tune: Search the queries of `--qrels`, and choose the weights on them: ten or more move them from the default.
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

    indexes: Paths = argument(REQUIRED)
    _: KW_ONLY
    scopes = (
        scope(when(method=GIVEN), "normalize", "missing", "method_options")
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
    method_options: Mapping[str, str] = redeclare(Fuse, "method_options")
    missing: Missing | None = redeclare(Fuse, "missing", panel="")
    depth: int = option(HITS, minimum=1)
    group: Group | None = redeclare(SearchOptions, "group", applies=(), recorded=True)
    reranker: str | None = option(None, panel=RERANK)
    rerank_depth: int = option(50, panel=RERANK, minimum=1)
    queries: OptionalPath = option(
        None,
        panel=SCALE,
        shown="200 pieces of sentences of the documents; for `--qrels`, those of the indexed collection",
    )
    split: str | None = option(None, recorded=False)
    seed: int = inherited()
    tune: bool = option(False, panel=TUNING, excluded=(when(weights=GIVEN), when(method=GIVEN)))
    calibrate: bool = option(False, panel=TUNING)
    qrels: OptionalPath = option(None, panel=TUNING, needed=(when(tune=True), when(calibrate=True)))
    machine: OptionalPath = redeclare(Fuse, "machine")
    measure: str = option(TUNED_MEASURE, panel=TUNING, parse=MEASURE)

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

    `--model` alone gives a retriever another encoder: its index is built next to the present one, the fusion is tuned
    on the same judgments, the difference is printed, and the retriever is switched last. `--rollback` returns a
    retriever to the generation before, and a second one to that before it.

    Attributes:
        index: Retriever, the folder of `auto`, or an index.
        documents: All documents in their present state: files or folders as for `prepare files`, or a collection.
        add: Documents to add, or to replace by their ids: a collection or a corpus file; for a retriever, a collection,
            or files as for `prepare files`.
        remove: File with the ids of documents to delete, one per line.
        output: Path of the new index.
        dry_run: Print what has changed, and write nothing.
        allow_shrink: Delete over half of the documents, if so many are gone.
        prune: Remove other generations that no retriever next to this one names.
        ids: Print the ids of the documents, one per line.
        rollback: Return to the generation before the last update.
        model: Another encoder for a retriever; of a dense or learned sparse index its own, if it has moved.
    """

    command = "update"
    panel = INDEXES
    examples = (
        "hybrid update out/mine docs/",
        "hybrid update out/retriever docs.jsonl --prune",
        "hybrid update out/retriever --add new.jsonl --remove retracted.txt",
        "hybrid update out/retriever --rollback",
        "hybrid update out/retriever --model intfloat/multilingual-e5-small",
        "hybrid update out/bm25 --add data/new --remove retracted.txt --output out/bm25-2",
    )

    index: PathField = argument(REQUIRED)
    documents: Paths = argument(())
    _: KW_ONLY
    cases = options_by(
        "index_kind",
        {
            RETRIEVER: ("documents", "allow_shrink", "prune", "rollback", "device"),
            SINGLE_INDEX: ("output", "overwrite"),
            (RETRIEVER, "a dense index", LEARNED): ("model",),
            TRANSFORMER_INDEX: ("device",),
        },
    )
    result_functions: ClassVar = {"ids": "list_ids"}

    add: OptionalPath = option(None)
    remove: OptionalPath = option(None)
    output: OptionalPath = option(None, "--output", "-o")
    overwrite: bool = redeclare(Overwrites, "overwrite")
    dry_run: bool = option(False, recorded=False)
    allow_shrink: bool = option(False, recorded=False)
    prune: bool = option(False, recorded=False)
    ids: bool = option(False, "--list", recorded=False)
    rollback: bool = option(False, recorded=False)
    model: str | None = option(None, recorded=False)

    def check(self) -> None:
        """Refuse a call without documents, and one with all documents and with changes."""
        super().check()
        kinds = (bool(self.documents), self.add is not None or self.remove is not None, self.rollback, self.ids)
        alone = self.model is not None and not any(kinds)
        if sum(kinds) + alone != 1 or ((self.ids or self.rollback) and (self.prune or self.allow_shrink)):
            reason = "name all documents in their present state, or the changes by --add and --remove; "
            reason += "or pass --model, --list or --rollback alone"
            raise option_error("documents", None, reason, code="missing-option")


JUDGING, SAFETY, PROGRAMS = "Judging", "Access", "Programs"


@dataclass(frozen=True)
class Serve(OnDevice, Threaded, ReadsFiles):
    """Serve a page, an API and MCP tools on a retriever.

    The page shows BM25, dense and hybrid hits side by side, explains every score, re-ranks while the weight is moved,
    and collects judgments. It works offline. The server listens on this machine only; with another `--host`, it asks
    for the token that is printed at the start.

    Attributes:
        retriever: Retriever, the folder of `auto`, or an index.
        compare: Further retrievers, shown in columns next to it.
        engine: Search engine in production, shown in a column too: NAME:URL/INDEX, such as
            opensearch:http://localhost:9200/docs.
        engine_query: JSON file with a request to the engine, as for `hybrid search`; `{vector}` is by the encoder of
            the retriever.
        watch: Open the retriever again when it has changed, as after `hybrid update`.
        collection: Collection with queries to judge and compare.
        split: Split of the collection; by default all queries, with the judgments of the only judged split.
        queries: Queries in place of those of the collection; they may be a text file with a query per line.
        judgments: Journal of judgments (.jsonl), which the page and `hybrid judge` extend.
        guidelines: Markdown file with rules for the people who judge.
        measure: Measure of the page.
        host: Address to listen on.
        port: Port; 0 for a free one.
        open: Open the page in the browser.
        allow_host: Further names of this server in requests, as behind a proxy.
        require_filter: YAML file of `TOKEN: CONDITION`: each token sees the documents of its condition alone.
        timeout: Seconds until a request ends without an answer.
        access_log: File for a JSON line per request, without texts of queries.
        log_queries: Log the texts of queries too.
        mcp_stdio: Serve MCP tools on standard input and output in place of the page.
        mcp_judge: Give MCP clients a tool that stores judgments.
    """

    command = "serve"
    panel = START
    examples = (
        "hybrid serve out/retriever",
        "hybrid serve out/retriever --collection data/mine --split dev --judgments judgments.jsonl --open",
        "hybrid serve out/retriever --compare out/other-retriever --port 8081",
        "hybrid serve out/retriever --engine opensearch:http://localhost:9200/docs",
        "hybrid serve out/retriever --host 0.0.0.0 --allow-host search.example.org",
        "hybrid serve out/retriever --require-filter tokens.yaml",
        "hybrid serve out/retriever --mcp-stdio",
    )

    retriever: PathField = argument(REQUIRED)
    _: KW_ONLY
    scopes = (
        scope(when(judgments=GIVEN), "guidelines", "mcp_judge")
        + scope(when(access_log=GIVEN), "log_queries")
        + scope(when(engine=GIVEN), "engine_query")
    )

    compare: Paths = option((), metavar="RETRIEVER,...")
    engine: str | None = option(None, metavar="NAME:URL")
    engine_query: OptionalPath = option(None)
    watch: bool = option(False)
    collection: OptionalPath = option(None, panel=JUDGING, shown="that of the indexes")
    split: str | None = option(None, panel=JUDGING)
    queries: OptionalPath = option(None, panel=JUDGING)
    judgments: OptionalPath = option(None, panel=JUDGING)
    guidelines: OptionalPath = option(None, panel=JUDGING)
    measure: str = option("nDCG@10", parse=MEASURE, panel=JUDGING)
    host: str = option("127.0.0.1", panel=SAFETY)
    port: int = option(8080, minimum=0, maximum=65535, panel=SAFETY)
    open: bool = option(False)
    allow_host: Sequence[str] = option((), panel=SAFETY, metavar="NAME,...")
    require_filter: OptionalPath = option(
        None, panel=SAFETY, metavar="TOKENS.yaml", excluded=(when(judgments=GIVEN), when(mcp_stdio=True))
    )
    timeout: float = option(30.0, above=0, panel=SAFETY)
    access_log: OptionalPath = option(None, panel=SAFETY)
    log_queries: bool = option(False, panel=SAFETY)
    mcp_stdio: bool = option(False, panel=PROGRAMS)
    mcp_judge: bool = option(False, panel=PROGRAMS)

    def search_options(self) -> SearchOptions:
        """Return the options of opening the retriever."""
        return SearchOptions(device=self.device, threads=self.threads, timeout=self.timeout)


A_RUN = "a run"  # fact about the input of `rerank`


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

    run: PathField = argument(REQUIRED)
    _: KW_ONLY
    scopes = (
        scope(when(input=A_RUN), "depth") + scope(when(collection=GIVEN), "split") + scope(when(split=None), "queries")
    )

    model: str = option(REQUIRED, panel=RERANKER, recorded=False)
    depth: Sequence[int] = option((100,), "--depth", "-k", minimum=1)
    collection: OptionalPath = option(None, shown="the corpus recorded in the run")
    split: str | None = option(None, recorded=False)
    queries: OptionalPath = option(None)
    dtype: Precision = redeclare(Texts, "dtype")
    shard_size: int = redeclare(StoredVectors, "shard_size")
    batch_tokens: int | None = redeclare(EncodedTexts, "batch_tokens", shown="4096 on a CPU, 65536 on a GPU")

    @property
    def deepest(self) -> int:
        """Return the largest number of rescored hits per query."""
        return max(self.depth)
