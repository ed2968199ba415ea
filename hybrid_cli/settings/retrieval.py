"""Settings of lexical indexing and of searching."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Literal

from hybrid_cli.errors import InputError
from hybrid_cli.indexes.options import BINARY_K, VectorIndex
from hybrid_cli.lexical.options import MAX_K1, BM25Options, field_weight
from hybrid_cli.settings.cluster import OnCluster, ThreadedOnCluster
from hybrid_cli.settings.common import HITS, MEASURE, Budgeted, OnDevice, Overwrites, Seeded, Threaded, Writes
from hybrid_cli.settings.options import GIVEN, REQUIRED, By, argument, option, redeclare, when

# --------------------------------------------------------------------------------------------- lexical indexes, search

LEXICAL, RETRIEVAL, TUNING = "Lexical", "Retrieval", "Tuning"
SEVERAL, LEXICAL_INDEX, DENSE_INDEX = "Several indexes", "Lexical index", "Dense index"
FAISS_DEVICE = (
    "Device of FAISS, if its build supports GPUs. `auto`: all GPUs, if any; `cpu`; `gpu`: all GPUs; `0,1`: these GPUs."
)
TRANSFORMER_INDEX = "an index of a transformer encoder"  # fact about an index
LEARNED = "a learned sparse index"  # fact about an index
_LEXICAL, _DENSE = when(index_kind="a lexical index"), when(index_kind="a dense index")
_FEEDBACK, _TUNED = when(rm3=True, tune=False), when(tune=True)
_ENCODED = (_DENSE, when(index_kind=LEARNED))

Engine = Literal["matrix", "lucene"]


def refuse_replaced_split(split: str | None, queries: Path | None, qrels: Path | None) -> None:
    """Refuse a split without an effect: both of its files are replaced."""
    if split is not None and queries is not None and qrels is not None:
        raise InputError(
            "--split: not with both --queries and --qrels, which replace the files of the split",
            code="conflicting-options", option="split", others=("queries", "qrels"),
        )  # fmt: skip


def _field(text: str) -> str:
    name, weight = field_weight(text)
    return name if weight == 1 else f"{name}={weight}"


@dataclass(frozen=True)
class IndexBm25(Budgeted, Threaded, Writes, BM25Options):
    """Index a corpus for BM25, with Lucene and as an impact matrix with the same scores.

    In an existing index, other values of `--k1` and `--b`, or `--tune`, are stored without reading the corpus again.
    `--tune` tries a grid of k1 and b on judged queries and prints the gain on held-out queries.
    """

    command = "index-bm25"
    panel = LEXICAL
    examples = (
        "hybrid index-bm25 data/pydocs --k1 0.9 --b 0.4 --output out/bm25",
        "hybrid index-bm25 data/pydocs --tune --split dev --output out/bm25-tuned",
        "hybrid index-bm25 data/cord19 --fields title=3,text,body --output out/bm25-fields",
    )

    collection: Path = argument(REQUIRED, "Collection, or a corpus file.")
    _: KW_ONLY
    k1: float = option(
        BM25Options.k1,
        "Saturation of term frequency; larger values saturate later.",
        minimum=0,
        maximum=MAX_K1,
        applies=when(tune=False),
    )
    b: float = option(
        BM25Options.b, "Strength of document length normalization.", minimum=0, maximum=1, applies=when(tune=False)
    )
    fields: Sequence[str] = option(
        BM25Options.fields,
        "Indexed fields of a document: title, text, and further columns of the corpus. `title=3` counts each word of "
        "the title three times (BM25F).",
        metavar="FIELD[=WEIGHT],...",
        parse=_field,
    )
    expansion: Path | None = option(
        None,
        "File of docid and text, such as queries of docT5query; the text is added to the document.",
        applies=when(shards=None),
        recorded=False,
    )
    language: str = option(
        BM25Options.language, "Analyzer: `en` (Porter stemmer), or a code such as `de`, `fr` or `zh`."
    )
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
        None,
        "Split of the collection.",
        panel=TUNING,
        shown="the only split, or dev",
        recorded=False,
        applies=when(tune=True),
    )
    queries: Path | None = option(
        None, "Query file; replaces the split's queries.", panel=TUNING, recorded=False, applies=when(tune=True)
    )
    qrels: Path | None = option(
        None, "Qrels file; replaces the split's qrels.", panel=TUNING, recorded=False, applies=when(tune=True)
    )
    java_heap: str | None = option(
        None, "Maximum Java heap, such as `4g`.", shown="a quarter of the memory, or half of --memory", recorded=False
    )

    def check(self) -> None:
        """Refuse a field that is listed twice, an expansion of a text that is not indexed, and a replaced split."""
        super().check()
        refuse_replaced_split(self.split, self.queries, self.qrels)
        names = [field_weight(each)[0] for each in self.fields]
        if len(set(names)) < len(names):
            raise InputError(
                f"--fields {','.join(self.fields)}: list each field once",
                code="repeated-value", option="fields", value=self.fields,
            )  # fmt: skip
        if self.expansion is not None and "text" not in names:
            raise InputError(
                f"--expansion: adds to the text, which --fields {','.join(self.fields)} leaves out; add text",
                code="conflicting-options", option="expansion", others=("fields",),
            )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class SearchOptions(OnDevice, Threaded):
    """Options of opening and searching indexes."""

    device: str = redeclare(OnDevice, "device", applies=when(index_kind=TRANSFORMER_INDEX))
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
        None,
        "Overrides the k1 stored in the index.",
        panel=LEXICAL_INDEX,
        minimum=0,
        maximum=MAX_K1,
        applies=_LEXICAL,
    )
    b: float | None = option(
        None, "Overrides the b stored in the index.", panel=LEXICAL_INDEX, minimum=0, maximum=1, applies=_LEXICAL
    )
    impact_bits: Literal["8"] | None = option(
        None,
        "Round BM25's impacts to 8 bits for a faster search of many queries; the rounding takes a byte of memory per "
        "posting.",
        panel=LEXICAL_INDEX,
        shown="exact",
        applies=when(index_kind="a lexical index", exact=False, engine="matrix", rm3=False),
    )
    rm3: bool = option(
        False,
        "Expand queries with RM3 pseudo-relevance feedback.",
        panel=LEXICAL_INDEX,
        applies=when(index_kind="a lexical index", exact=False),
    )
    fb_terms: int = option(10, "Feedback terms.", panel=LEXICAL_INDEX, minimum=1, applies=_FEEDBACK)
    fb_docs: int = option(10, "Feedback documents.", panel=LEXICAL_INDEX, minimum=1, applies=_FEEDBACK)
    fb_weight: float = option(
        0.5, "Weight of the original query.", panel=LEXICAL_INDEX, minimum=0, maximum=1, applies=_FEEDBACK
    )
    model: str | None = option(
        None,
        "Query encoder; required if the encoder has moved since indexing.",
        panel=DENSE_INDEX,
        applies=_ENCODED,
        recorded=False,
    )
    weight: float | None = option(
        None,
        "Weight of the second encoder of a combination.",
        panel=DENSE_INDEX,
        shown="the combination's",
        applies=_DENSE,
    )
    faiss_device: str = option(
        VectorIndex.faiss_device,
        f"{FAISS_DEVICE} From 256 queries on, GPUs search a flat index, and the scores of its hits are computed again.",
        panel=DENSE_INDEX,
        applies=when(index_kind="a flat index", exact=False),
        recorded=False,
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
        BINARY_K,
        "Candidates by Hamming distance, rescored with the float query.",
        panel=DENSE_INDEX,
        minimum=1,
        applies=when(index_kind="a binary index", exact=False),
    )


_WRITES = when(query=None, interactive=False)


@dataclass(frozen=True)
class Search(SearchOptions, ThreadedOnCluster, Budgeted, Overwrites):
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
        'hybrid search --index out/bm25,out/clear-index --weights @out/weights.json --query "remove a file"',
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
        "Query file, or query vectors written by `encode`. With `--tune`, it replaces the queries of COLLECTION.",
        recorded=False,
        applies=(when(collection=None, query=None, interactive=False), when(tune=True, qrels=None)),
    )
    overwrite: bool = redeclare(Overwrites, "overwrite", applies=_WRITES)
    memory: int | None = redeclare(Budgeted, "memory", applies=when(ray_address=None))
    ray_address: str | None = redeclare(
        OnCluster, "ray_address", applies=when(query=None, interactive=False, tune=False)
    )
    query: str | None = option(
        None,
        "Query text; prints its hits. Several indexes are fused by min-max, or as `--weights @FILE` states.",
        recorded=False,
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
    weights: str | Sequence[float] | None = redeclare(
        SearchOptions,
        "weights",
        applies=(when(exact=True), when(query=GIVEN), when(interactive=True)),
    )
    hits: int = option(
        By("prints", {True: 10}, HITS),
        "Hits per query.",
        "--hits",
        "-k",
        minimum=1,
        shown="1000; 10 for printed hits",
    )

    tune: bool = option(
        False,
        "Tune RM3 on the judged queries by cross-validation: the hits of a query come from the feedback documents and "
        "terms (5 to 50) and the weight (.1 to .9) that are best on the other folds.",
        panel=TUNING,
        applies=when(rm3=True, engine="matrix", query=None, interactive=False),
    )
    measure: str = option("MAP", "Measure to maximize.", panel=TUNING, parse=MEASURE, applies=_TUNED)
    qrels: Path | None = option(
        None, "Qrels file; replaces the split's qrels.", panel=TUNING, recorded=False, applies=_TUNED
    )
    folds: int = option(2, "Folds of the queries.", panel=TUNING, minimum=2, applies=_TUNED)
    seed: int = redeclare(Seeded, "seed", help="Random seed of the folds.", panel=TUNING, applies=_TUNED)

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
        super().check()
        if self.query is not None and not self.query.strip():
            raise InputError("--query: the query is empty; pass a text", code="missing-value", option="query")
        if self.prints and self.exact:
            raise InputError(
                "--exact: writes a run; it cannot be used with --query or --interactive",
                code="conflicting-options", option="exact", others=("query", "interactive"),
            )  # fmt: skip
        if self.prints and self.weights is not None and len(self.indexes) == 1:
            raise InputError(
                "--weights: needs several indexes; pass them with --index a,b",
                code="missing-option", option="index", needed_by="weights",
            )  # fmt: skip
        if not self.prints and self.output is None:
            raise InputError(
                "search: needs --output for a run, or --query or --interactive to print the hits of a query",
                code="missing-option", option="output", needed_by="search",
            )  # fmt: skip
        if not self.prints and not self.exact and len(self.indexes) > 1:
            raise InputError(
                f"--index: {len(self.indexes)} indexes; pass one, or use --exact or --query",
                code="number-of-values", option="index", found=len(self.indexes), expected=1,
            )  # fmt: skip
