"""Settings of lexical indexing and of searching."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY
from functools import partial
from pathlib import Path
from typing import Literal

from hybrid_cli.errors import InputError, option_error
from hybrid_cli.indexes.options import BINARY_K, VectorIndex
from hybrid_cli.lexical.options import MAX_K1, BM25Options, field_weight
from hybrid_cli.passages import Group
from hybrid_cli.settings.base import settings
from hybrid_cli.settings.common import (
    HITS,
    MEASURE,
    Budgeted,
    OnDevice,
    Overwrites,
    Seeded,
    Threaded,
    ThreadedOnCluster,
    Writes,
)
from hybrid_cli.settings.options import GIVEN, REQUIRED, By, argument, inherited, option, redeclare, when

# --------------------------------------------------------------------------------------------- lexical indexes, search

LEXICAL, RETRIEVAL, TUNING = "Lexical", "Retrieval", "Tuning"
SEVERAL, LEXICAL_INDEX, DENSE_INDEX = "Several indexes", "Lexical index", "Dense index"
FAISS_DEVICE = (
    "Device of FAISS, if its build supports GPUs: `auto` (all GPUs, if any), `cpu`, `gpu`, or numbers: `0,1`."
)
TRANSFORMER_INDEX = "an index of a transformer encoder"  # fact about an index
LEARNED = "a learned sparse index"  # fact about an index
RETRIEVER = "a retriever"  # fact about an index
_LEXICAL, _DENSE = when(index_kind="a lexical index"), when(index_kind="a dense index")
_FEEDBACK, _TUNED = when(rm3=True, tune=False), when(tune=True)
_ENCODED = (_DENSE, when(index_kind=LEARNED))

Engine = Literal["matrix", "lucene"]
REPLACED = when(queries=GIVEN, qrels=GIVEN)  # both files of a split


def _field(text: str) -> str:
    name, weight = field_weight(text)
    return name if weight == 1 else f"{name}={weight}"


_tuning_option = partial(option, panel=TUNING, applies=_TUNED)


@settings()
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
    k1: float = inherited(
        "Saturation of term frequency; larger values saturate later.", minimum=0, maximum=MAX_K1,
        applies=when(tune=False)
    )  # fmt: skip
    b: float = inherited("Strength of document length normalization.", minimum=0, maximum=1, applies=when(tune=False))
    fields: Sequence[str] = inherited(
        "Indexed fields of a document: title, text, and further columns of the corpus. `title=3` counts each word of "
        "the title three times (BM25F).", metavar="FIELD[=WEIGHT],...", parse=_field
    )  # fmt: skip
    expansion: Path | None = option(
        None, "File of docid and text, such as queries of docT5query; the text is added to the document.",
        applies=when(shards=None)
    )  # fmt: skip
    language: str = inherited("Analyzer: `en` (Porter stemmer), or a code such as `de`, `fr` or `zh`.")
    shards: int | None = option(
        None,
        "Write this number of indexes of consecutive documents, with the scores of one index. Each can be searched on "
        "another machine; they contain no Lucene index.", minimum=2, applies=when(tune=False), recorded=False,
        shown="one index"
    )  # fmt: skip
    tune: bool = option(False, "Tune k1 and b on judged queries.", panel=TUNING)
    tune_measure: str = _tuning_option("MRR@10", "Measure to maximize.", parse=MEASURE)
    split: str | None = _tuning_option(
        None, "Split of the collection.", shown="the only split, or dev", recorded=False, excluded=REPLACED
    )
    queries: Path | None = _tuning_option(None, "Query file; replaces the split's queries.")
    qrels: Path | None = _tuning_option(None, "Qrels file; replaces the split's qrels.")
    lucene: bool = option(
        True,
        "Build Lucene's index as well, for `--engine lucene` and Lucene's tools. Without it English needs no Java.",
        applies=when(shards=None)
    )  # fmt: skip
    java_heap: str | None = option(
        None, "Maximum Java heap, such as `4g`.", shown="a quarter of the memory, or half of --memory", recorded=False
    )

    def check(self) -> None:
        """Refuse a field that is listed twice, and an expansion of a text that is not indexed."""
        super().check()
        names = [field_weight(field)[0] for field in self.fields]
        if len(set(names)) < len(names):
            raise option_error("fields", self.fields, "list each field once", code="repeated-value")
        if self.expansion is not None and "text" not in names:
            reason = "adds to the text; add text to --fields"
            raise option_error("expansion", None, reason, code="conflicting-options", others=("fields",))


_lexical_option = partial(option, panel=LEXICAL_INDEX)
_dense_option = partial(option, panel=DENSE_INDEX)


@settings(kw_only=True)
class SearchOptions(OnDevice, Threaded):
    """Options of opening and searching indexes."""

    device: str = inherited(applies=when(index_kind=(TRANSFORMER_INDEX, RETRIEVER)))
    exact: bool = option(
        False,
        "Rank all documents by the weighted sum of scores of one or more dense indexes and at most one lexical index.",
        panel=SEVERAL, recorded=False, applies=when(query=None, interactive=False)
    )  # fmt: skip
    weights: str | Sequence[float] | None = option(
        None, "One weight per index, in order: `1,0.1`; or `@FILE` written by `fuse --tune`.", panel=SEVERAL,
        parse=str, shown="equal", applies=when(exact=True)
    )  # fmt: skip
    group: Group | None = option(
        None,
        "Passages D#0, D#1, ... give document D the score of the best (`max`), the two best (`sum2`) or all of them "
        "(`mean`), or are the hits (`none`).", shown="max for a collection made with --split-passages",
        applies=when(exact=False), recorded=False
    )  # fmt: skip
    min_probability: float | None = option(
        None, "Drop hits with a lower probability; of a retriever with `compose --calibrate`.", minimum=0, maximum=1,
        applies=when(index_kind=RETRIEVER), shown="all hits"
    )  # fmt: skip
    engine: Engine = _lexical_option(
        "matrix", "Impact matrix, or Lucene.", applies=when(index_kind="a lexical index", exact=False)
    )
    k1: float | None = _lexical_option(
        None, "Overrides the k1 stored in the index.", minimum=0, maximum=MAX_K1, applies=_LEXICAL
    )
    b: float | None = _lexical_option(
        None, "Overrides the b stored in the index.", minimum=0, maximum=1, applies=_LEXICAL
    )
    impact_bits: Literal["8"] | None = _lexical_option(
        None,
        "Round BM25's impacts to 8 bits for a faster search of many queries; the rounding takes a byte of memory per "
        "posting.", shown="exact", applies=when(index_kind="a lexical index", exact=False, engine="matrix", rm3=False)
    )  # fmt: skip
    rm3: bool = _lexical_option(
        False, "Expand queries with RM3 pseudo-relevance feedback.",
        applies=when(index_kind="a lexical index", exact=False)
    )  # fmt: skip
    fb_terms: int = _lexical_option(10, "Feedback terms.", minimum=1, applies=_FEEDBACK)
    fb_docs: int = _lexical_option(10, "Feedback documents.", minimum=1, applies=_FEEDBACK)
    fb_weight: float = _lexical_option(0.5, "Weight of the original query.", minimum=0, maximum=1, applies=_FEEDBACK)
    model: str | None = _dense_option(
        None, "Query encoder; required if the encoder has moved since indexing.", applies=_ENCODED, recorded=False
    )
    weight: float | None = _dense_option(
        None, "Weight of the second encoder of a combination.", shown="the combination's", applies=_DENSE
    )
    faiss_device: str = _dense_option(
        VectorIndex.faiss_device,
        FAISS_DEVICE,
        applies=when(index_kind="a flat index", exact=False), recorded=False
    )  # fmt: skip
    ef_search: int | None = _dense_option(
        None, "Overrides the search candidates stored in the index.", minimum=1,
        applies=when(index_kind="an HNSW index", exact=False)
    )  # fmt: skip
    nprobe: int | None = _dense_option(
        None, "Overrides the number of probed lists stored in the index.", minimum=1,
        applies=when(index_kind="an IVF index", exact=False)
    )  # fmt: skip
    binary_k: int = _dense_option(
        BINARY_K, "Candidates by Hamming distance, rescored with the float query.", minimum=1,
        applies=when(index_kind="a binary index", exact=False)
    )  # fmt: skip


_WRITES = when(query=None, interactive=False)


@settings()
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
        'hybrid search --index out/retriever --query "wind farms" --filter "year >= 2020 AND lang = \'de\'"',
        "hybrid search --index out/clear-index --interactive",
    )

    collection: Path | None = argument(
        None, "Collection of the queries (`--split`), and of the titles and texts of printed hits."
    )
    _: KW_ONLY
    index: Sequence[Path] | Path = option(
        REQUIRED,
        "Retriever, or lexical or dense index; several indexes, for printed hits or with `--exact`: `a,b`; shards: "
        "`'out/bm25/shard-*'`.",
    )
    output: Path | None = option(None, "Output path.", "--output", "-o", applies=_WRITES, needed=_WRITES)
    split: str | None = option(None, "Split of the collection: train, dev, test, ...", recorded=False, applies=_WRITES)
    queries: Path | None = option(
        None,
        "Query file, or query vectors written by `encode`. With `--tune`, it replaces the queries of COLLECTION.",
        applies=(when(collection=None, query=None, interactive=False), when(tune=True, qrels=None)),
    )
    overwrite: bool = inherited(applies=_WRITES)
    memory: int | None = inherited(applies=when(ray_address=None))
    ray_address: str | None = inherited(applies=when(query=None, interactive=False, tune=False))
    query: str | None = option(
        None, "Query text; prints its hits. Several indexes are fused by min-max, or as `--weights @FILE` states.",
        recorded=False
    )  # fmt: skip
    interactive: bool = option(
        False, "Read queries from standard input, one per line, and print the hits of each.", recorded=False,
        applies=when(query=None)
    )  # fmt: skip
    form: Literal["text", "json"] = option(
        "text", "Format of printed hits; `json`: one object per query, on one line.", "--format", recorded=False,
        applies=(when(query=GIVEN), when(interactive=True))
    )  # fmt: skip
    weights: str | Sequence[float] | None = inherited(
        applies=(when(exact=True), when(query=GIVEN), when(interactive=True))
    )
    hits: int = option(
        By("prints", {True: 10}, HITS), "Hits per query.", "--hits", "-k", minimum=1, shown="1000; 10 for printed hits"
    )

    filter: str | None = option(
        None,
        "Return only documents for which a condition over their metadata (`prepare --metadata`) is true, in the syntax "
        "of SQL: `year >= 2020 AND lang = 'de'`.", metavar="CONDITION", recorded=False,
        applies=when(engine="matrix", tune=False)
    )  # fmt: skip
    tune: bool = option(
        False,
        "Tune RM3 on the judged queries: each query is searched with the parameters that are best on the other folds.",
        panel=TUNING,
        applies=when(rm3=True, engine="matrix", query=None, interactive=False),
    )
    measure: str = _tuning_option("MAP", "Measure to maximize.", parse=MEASURE)
    qrels: Path | None = _tuning_option(None, "Qrels file; replaces the split's qrels.")
    folds: int = _tuning_option(2, "Folds of the queries.", minimum=2)
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
        if self.prints and self.weights is not None and len(self.indexes) == 1:
            raise InputError(
                "--weights: needs several indexes", code="missing-option", option="index", needed_by="weights"
            )
        if not self.prints and not self.exact and len(self.indexes) > 1:
            reason = "pass one index, or use --exact or --query"
            raise option_error("index", self.indexes, reason, code="number-of-values")


_ANALYZED = when(index_kind=("a lexical index", "a sharded lexical index"))
_TRANSFORMER = when(index_kind=TRANSFORMER_INDEX)


@settings()
class Append(OnDevice, Threaded, Writes):
    """Add documents to a lexical, learned sparse or dense index without reading its other documents again.

    The output equals an index of all documents that is built at once. The given index is not changed, and files that
    do not change are hard-linked. Only the new documents are analyzed or encoded, with the language, fields, k1, b or
    encoder of the index. A sharded lexical index gets one more shard, and unchanged shards
    share their postings with the given index.
    """

    command = "append"
    panel = LEXICAL
    examples = (
        "hybrid append out/bm25 data/new --output out/bm25-2",
        "hybrid append out/clear-index data/new --replace --output out/clear-index-2",
    )

    index: Path = argument(REQUIRED, "Lexical index (sharded or not), learned sparse index or dense index.")
    collection: Path = argument(REQUIRED, "Collection with the new documents, or a corpus file.")
    _: KW_ONLY
    replace: bool = option(False, "Replace documents of the index that have the id of a new one.")
    model: str | None = option(
        None, "Encoder; required if it has moved since indexing.", applies=when(index_kind=("a dense index", LEARNED)),
        recorded=False
    )  # fmt: skip
    device: str = inherited(applies=_TRANSFORMER)
    batch_tokens: int | None = option(
        None, "Tokens per batch, padding included; changes vectors by rounding only.", minimum=1, applies=_TRANSFORMER,
        shown="1024 on a CPU, 65536 on a GPU", recorded=False
    )  # fmt: skip
    java_heap: str | None = redeclare(IndexBm25, "java_heap", applies=_ANALYZED, shown="a quarter of the memory")


@settings()
class Delete(Threaded, Writes):
    """Delete documents from a lexical, learned sparse or dense index.

    The output equals an index of the other documents that is built at once. The given index is not changed, and files
    that do not change are hard-linked.
    """

    command = "delete"
    panel = LEXICAL
    examples = ("hybrid delete out/bm25 --ids retracted.txt --output out/bm25-2",)

    index: Path = argument(REQUIRED, "Lexical index (sharded or not), learned sparse index or dense index.")
    _: KW_ONLY
    ids: Path = option(REQUIRED, "File with the ids of the documents, one per line.")
    java_heap: str | None = redeclare(IndexBm25, "java_heap", applies=_LEXICAL, shown="a quarter of the memory")
