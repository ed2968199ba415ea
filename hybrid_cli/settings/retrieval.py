"""Settings of indexing, encoding, searching and fusing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Literal

from hybrid_cli.errors import InputError
from hybrid_cli.settings.cluster import OnCluster
from hybrid_cli.settings.common import MEASURE, NameOrPath, OnDevice, Overwrites, Seeded, Threaded, Writes
from hybrid_cli.settings.options import GIVEN, REQUIRED, By, argument, option, parsed_by, redeclare, registered, when

Missing = Literal["exact", "min", "zero", "ignore", "drop"]
Normalization = Literal["none", "minmax", "max", "sum", "l2", "zscore", "rank", "borda", "dbsf"]
Grid = Literal["linear", "log", "reciprocal", "clear", "roc", "spar"]

FUSION = "Fusion"
ABSENT, COMPARED, TUNING = "Documents missing from a list", "Comparison", "Tuning"
EXACT = "--missing exact"  # fact: the rule for missing documents, by --missing or by the method
_EXACT = when(rule=EXACT)


# --------------------------------------------------------------------------------------------- lexical indexes, search

LEXICAL, RETRIEVAL = "Lexical", "Retrieval"
SEVERAL, LEXICAL_INDEX, DENSE_INDEX = "Several indexes", "Lexical index", "Dense index"
_LEXICAL, _DENSE = when(index_kind="a lexical index"), when(index_kind="a dense index")

Field = Literal["title", "text"]
Engine = Literal["matrix", "lucene"]


@dataclass(frozen=True)
class IndexBm25(Threaded, Writes):
    """Index a corpus for BM25, with Lucene and as an impact matrix with the same scores.

    In an existing index, other values of `--k1` and `--b`, or `--tune`, are stored without reading the corpus again.
    `--tune` tries a grid of k1 and b on judged queries and prints the gain on held-out queries.
    """

    command = "index-bm25"
    panel = LEXICAL
    examples = (
        "hybrid index-bm25 data/pydocs --k1 0.9 --b 0.4 --output out/bm25",
        "hybrid index-bm25 data/pydocs --tune --split dev --output out/bm25-tuned",
    )

    collection: Path = argument(REQUIRED, "Collection, or a corpus file.")
    _: KW_ONLY
    k1: float = option(
        0.9, "Saturation of term frequency; larger values saturate later.", minimum=0, applies=when(tune=False)
    )
    b: float = option(0.4, "Strength of document length normalization.", minimum=0, maximum=1, applies=when(tune=False))
    fields: Sequence[Field] = option(("title", "text"), "Indexed fields of a document.")
    language: str = option("en", "Analyzer: `en` (Porter stemmer), or a code such as `de`, `fr` or `zh`.")
    shards: int | None = option(
        None,
        "Write this number of indexes of consecutive documents, with the scores of one index. Each can be searched on "
        "another machine; they contain no Lucene index.",
        minimum=2,
        applies=when(tune=False),
        recorded=False,
        shown="one index",
    )
    tune: bool = option(False, "Tune k1 and b on judged queries.", panel=TUNING)
    tune_measure: str = option("MRR@10", "Measure to maximize.", panel=TUNING, parse=MEASURE, applies=when(tune=True))
    split: str | None = option(
        None, "Split of the collection.", panel=TUNING, shown="dev", recorded=False, applies=when(tune=True)
    )
    queries: Path | None = option(
        None, "Query file; replaces the split's queries.", panel=TUNING, recorded=False, applies=when(tune=True)
    )
    qrels: Path | None = option(
        None, "Qrels file; replaces the split's qrels.", panel=TUNING, recorded=False, applies=when(tune=True)
    )
    java_heap: str | None = option(
        None, "Maximum Java heap, such as `4g`.", shown="a quarter of the memory", recorded=False
    )

    def check(self) -> None:
        """Refuse a field that is listed twice."""
        if len(set(self.fields)) < len(self.fields):
            raise InputError(f"--fields {','.join(self.fields)}: list each field once")


@dataclass(frozen=True, kw_only=True)
class SearchOptions(OnDevice, Threaded):
    """Options of opening and searching indexes."""

    device: str = redeclare(OnDevice, "device", "auto", applies=(_DENSE,))
    exact: bool = option(
        False,
        "Rank all documents by the weighted sum of scores of one or more dense indexes and at most one lexical index.",
        panel=SEVERAL,
        recorded=False,
    )
    weights: str | Sequence[float] | None = option(
        None,
        "One weight per index, in order: `1,0.1`; or `@FILE` written by `fuse --tune`.",
        panel=SEVERAL,
        parse=str,
        shown="equal",
        applies=when(exact=True),
    )
    engine: Engine = option(
        "matrix",
        "Impact matrix, or Lucene.",
        panel=LEXICAL_INDEX,
        applies=when(index_kind="a lexical index", exact=False),
    )
    k1: float | None = option(
        None, "Overrides the k1 stored in the index.", panel=LEXICAL_INDEX, minimum=0, applies=_LEXICAL
    )
    b: float | None = option(
        None, "Overrides the b stored in the index.", panel=LEXICAL_INDEX, minimum=0, maximum=1, applies=_LEXICAL
    )
    rm3: bool = option(
        False,
        "Expand queries with RM3 pseudo-relevance feedback.",
        panel=LEXICAL_INDEX,
        applies=when(index_kind="a lexical index", exact=False),
    )
    fb_terms: int = option(10, "Feedback terms.", panel=LEXICAL_INDEX, minimum=1, applies=when(rm3=True))
    fb_docs: int = option(10, "Feedback documents.", panel=LEXICAL_INDEX, minimum=1, applies=when(rm3=True))
    fb_weight: float = option(
        0.5, "Weight of the original query.", panel=LEXICAL_INDEX, minimum=0, maximum=1, applies=when(rm3=True)
    )
    model: str | None = option(
        None,
        "Query encoder; required if the encoder has moved since indexing.",
        panel=DENSE_INDEX,
        applies=_DENSE,
        recorded=False,
    )
    weight: float | None = option(
        None,
        "Weight of the second encoder of a combination.",
        panel=DENSE_INDEX,
        shown="the combination's",
        applies=_DENSE,
    )
    ef_search: int | None = option(
        None,
        "Overrides the search candidates stored in the index.",
        panel=DENSE_INDEX,
        minimum=1,
        applies=when(index_kind="an HNSW index", exact=False),
    )
    nprobe: int | None = option(
        None,
        "Overrides the number of probed lists stored in the index.",
        panel=DENSE_INDEX,
        minimum=1,
        applies=when(index_kind="an IVF index", exact=False),
    )
    binary_k: int = option(
        1000,
        "Candidates by Hamming distance, rescored with the float query.",
        panel=DENSE_INDEX,
        minimum=1,
        applies=when(index_kind="a binary index", exact=False),
    )


_WRITES = when(query=None, interactive=False)


@dataclass(frozen=True)
class Search(SearchOptions, OnCluster, Overwrites):
    """Search an index and write a run, or print the hits of a query.

    With `--interactive`, queries are read from standard input, one per line, while the indexes stay open. A dense index
    is searched with the encoder that built it; other encoders are refused.
    """

    command = "search"
    panel = RETRIEVAL
    examples = (
        "hybrid search data/pydocs --split test --index out/bm25 --hits 1000 --output out/bm25.parquet",
        "hybrid search data/pydocs --split test --exact --index out/clear-index,out/bm25 --weights 1,0.5 "
        "--output out/exact.parquet",
        'hybrid search --index out/bm25,out/clear-index --query "remove a file"',
        "hybrid search --index out/clear-index --interactive",
    )

    collection: Path | None = argument(
        None, "Collection of the queries (`--split`), and of the titles and texts of printed hits."
    )
    _: KW_ONLY
    index: Sequence[Path] | Path = option(
        REQUIRED,
        "Lexical or dense index; several for printed hits or with `--exact`: `a,b`; the shards of one index: a pattern "
        "such as `'out/bm25/shard-*'`.",
        recorded=False,
    )
    output: Path | None = option(None, "Output path.", "--output", "-o", recorded=False, applies=_WRITES)
    split: str | None = option(None, "Split of the collection: train, dev, test, ...", recorded=False, applies=_WRITES)
    queries: Path | None = option(
        None,
        "Query file, or query vectors written by `encode`; replaces the collection's queries.",
        recorded=False,
        applies=_WRITES,
    )
    overwrite: bool = redeclare(Overwrites, "overwrite", False, applies=(_WRITES,))
    ray_address: str | None = redeclare(OnCluster, "ray_address", None, applies=(_WRITES,))
    query: str | None = option(
        None, "Query text; prints its hits. Several indexes are fused by min-max.", recorded=False
    )
    interactive: bool = option(
        False,
        "Read queries from standard input, one per line, and print the hits of each.",
        recorded=False,
        applies=when(query=None),
    )
    form: Literal["text", "json"] = option(
        "text",
        "Format of printed hits; `json`: one object per query, on one line.",
        "--format",
        recorded=False,
        applies=(when(query=GIVEN), when(interactive=True)),
    )
    hits: int = option(
        By("prints", {True: 10}, 1000),
        "Hits per query.",
        "--hits",
        "-k",
        minimum=1,
        shown="1000; 10 for printed hits",
    )

    @property
    def prints(self) -> bool:
        """Return whether hits are printed, and no run is written."""
        return self.query is not None or self.interactive

    @property
    def indexes(self) -> tuple[Path, ...]:
        """The indexes, in order."""
        return (self.index,) if isinstance(self.index, Path) else tuple(self.index)

    def check(self) -> None:
        """Refuse a search without an output, or of several indexes where one is needed."""
        if self.query is not None and not self.query.strip():
            raise InputError("--query: the query is empty; pass a text")
        if self.prints and self.exact:
            raise InputError("--exact: writes a run; it cannot be used with --query or --interactive")
        if not self.prints and self.output is None:
            raise InputError(
                "search: needs --output for a run, or --query or --interactive to print the hits of a query"
            )
        if not self.prints and not self.exact and len(self.indexes) > 1:
            raise InputError(f"--index: {len(self.indexes)} indexes; pass one, or use --exact or --query")


# -------------------------------------------------------------------------------------------------------------- fusion


@dataclass(frozen=True, kw_only=True)
class WeightTuning(Seeded):
    """Options of tuning a fusion, with `--tune`."""

    methods: Sequence[str] = option(
        ("auto",),
        "Methods to try. `auto`: minmax, zscore and rrf, and with `--index` weighted-sum; `--method` tries one.",
        panel=TUNING,
        applies=when(tune=GIVEN),
    )
    grid: Literal["auto", "linear", "log", "reciprocal", "clear", "roc", "spar"] = option(
        "auto",
        "`linear`: weights that sum to 1; `log`: .001 to 1000 against 1 for the last run; `reciprocal`: .1 to 1 and "
        "their reciprocals; `auto`: log for sums of raw scores, else linear. If an end point is best, `log` and "
        "`reciprocal` are extended. Published grids of a lexical and a dense run, in this order: `clear` (.1 to .9 for "
        "the first), `roc` (0 to 2 for the second), `spar` (.1 to 10 for the second).",
        panel=TUNING,
        applies=when(tune=GIVEN),
    )
    step: float = option(
        0.05,
        "Distance between weights of the linear grid.",
        panel=TUNING,
        above=0,
        maximum=1,
        applies=when(tune=GIVEN, grid=("auto", "linear")),
    )
    folds: int = option(
        5, "Folds of the queries for the held-out score.", panel=TUNING, minimum=2, applies=when(tune=GIVEN)
    )
    prior_queries: float = option(
        5.0,
        "Judged queries that the stored mean of other collections counts for; 0 to use the judged queries alone.",
        panel=TUNING,
        minimum=0,
        applies=when(tune=GIVEN),
    )
    seed: int = redeclare(Seeded, "seed", 42, help="Random seed of the folds.", applies=(when(tune=GIVEN),))


@dataclass(frozen=True)
class Fuse(OnDevice, Threaded, WeightTuning, Writes):
    """Fuse runs into one, or tune method and weights of a fusion.

    A method normalizes each list, combines the lists, and has a rule for documents missing from a list: `minmax` scores
    them 0, `weighted-sum` computes their exact scores. With `--qrels`, the scores of the single runs and of the fused
    run are printed.
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

    runs: Sequence[NameOrPath] = argument(REQUIRED, "Two or more runs (Parquet or TREC; `name=path` names one).")
    _: KW_ONLY
    method: str = option(
        "minmax",
        "Fusion method; names of ranx are also accepted.",
        choices=registered("hybrid_cli.fusion.methods", "METHODS"),
        parse=parsed_by("hybrid_cli.fusion.methods", "method_name"),
    )
    weights: str | Sequence[float] | None = option(
        None,
        "One weight per run, in order: `0.5,1`; by name: `bm25=0.5,dense=1`; or `@FILE` written by `--tune`, with "
        "the method and its parameters.",
        parse=str,
        shown="equal",
        applies=when(tune=False),
    )
    normalize: Normalization | None = option(
        None, "Normalization of each list; overrides the method's.", shown="the method's"
    )
    rrf_k: float = option(
        60.0, "Constant k in 1 / (k + rank).", above=-1, applies=(when(method="rrf"), when(tune=GIVEN))
    )
    depth: int = option(1000, "Hits read from each run.", minimum=1)
    hits: int = option(1000, "Hits kept per query.", "--hits", "-k", minimum=1)
    missing: Missing | None = option(
        None,
        "`exact`: score computed from `--index`; `min`: the list's lowest score; `zero`: 0, or the lowest score if it "
        "is lower; `ignore`: no contribution of the list; `drop`: drop the document.",
        panel=ABSENT,
        shown="the method's",
    )
    index: Sequence[Path] = option(
        (), "Index of each run, in order: `a,b`.", panel=ABSENT, recorded=False, applies=_EXACT
    )
    queries: Path | None = option(
        None,
        "Queries or collection; overrides the paths recorded in the runs.",
        panel=ABSENT,
        recorded=False,
        applies=_EXACT,
    )
    qrels: Path | None = option(
        None, "Qrels or collection; prints the score of each run.", panel=COMPARED, recorded=False
    )
    split: str | None = option(
        None,
        "Split of the collection in `--qrels` or `--queries`.",
        panel=COMPARED,
        applies=(when(qrels=GIVEN), when(queries=GIVEN)),
    )
    measure: str = option(
        "MRR@10", "Measure of the comparison and tuning.", panel=COMPARED, parse=MEASURE, applies=when(qrels=GIVEN)
    )
    device: str = redeclare(OnDevice, "device", "auto", applies=(_EXACT,))
    tune: bool = option(False, "Tune method and weights on `--qrels` and write them as JSON.", panel=TUNING)


@dataclass(frozen=True)
class ConcatRuns(Writes):
    """Concatenate runs of different queries.

    For cross-validation: the test runs of all folds become one run, which is evaluated once.
    """

    command = "concat-runs"
    panel = FUSION
    examples = ("hybrid concat-runs out/test-1.parquet out/test-2.parquet out/test-3.parquet --output out/all.parquet",)

    runs: Sequence[Path] = argument(REQUIRED, "Two or more runs without a common query.")
