"""Settings of lexical indexing and of searching."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from hybrid_cli.errors import InputError, option_error
from hybrid_cli.indexes.options import BINARY_K, VectorIndex
from hybrid_cli.lexical.options import MAX_K1, BM25Options, field_weight
from hybrid_cli.passages import Group
from hybrid_cli.settings.common import HITS, MEASURE, OnDevice, Overwrites, Seeded, Threaded, ThreadedOnCluster, Writes
from hybrid_cli.settings.options import GIVEN, REQUIRED, By, argument, inherited, option, redeclare, scope, when

# --------------------------------------------------------------------------------------------- lexical indexes, search

LEXICAL, RETRIEVAL, TUNING = "Lexical", "Retrieval", "Tuning"
SEVERAL, LEXICAL_INDEX, DENSE_INDEX = "Several indexes", "Lexical index", "Dense index"
TRANSFORMER_INDEX = "an index of a transformer encoder"  # fact about an index
LEARNED = "a learned sparse index"  # fact about an index
RETRIEVER = "a retriever"  # fact about an index
SINGLE_INDEX = "an index"  # fact about an index: it is no retriever
_LEXICAL, _DENSE = when(index_kind="a lexical index"), when(index_kind="a dense index")
_FEEDBACK, _TUNED = when(rm3=True, tune=False), when(tune=True)
_ENCODED = (_DENSE, when(index_kind=LEARNED))

Engine = Literal["matrix", "matrix-8bit", "lucene"]
REPLACED = when(queries=GIVEN, qrels=GIVEN)  # both files of a split


def _field(text: str) -> str:
    name, weight = field_weight(text)
    return name if weight == 1 else f"{name}={weight}"


_tuning_option = partial(option, panel=TUNING, applies=_TUNED)


@dataclass(frozen=True)
class IndexBm25(Threaded, Writes, BM25Options):
    """Index a corpus for BM25, with Lucene and as an impact matrix with the same scores.

    In an existing index, other values of `--k1` and `--b`, or `--tune`, are stored without reading the corpus again.
    `--tune` tries a grid of k1 and b on judged queries and prints the gain on held-out queries.

    Attributes:
        collection: Collection, or a corpus file.
        k1: Saturation of term frequency; larger values saturate later.
        b: Strength of document length normalization.
        fields: Indexed fields of a document: title, text, and further columns of the corpus. `title=3` counts each word
            of the title three times (BM25F).
        expansion: File of docid and text, such as queries of docT5query; the text is added to the document.
        language: Analyzer: `en` (Porter stemmer), or a code such as `de`, `fr` or `zh`.
        shards: Write this number of indexes of consecutive documents, with the scores of one index. Each can be
            searched on another machine; they contain no Lucene index.
        tune: Tune k1 and b on judged queries.
        measure: Measure to maximize.
        split: Split of the collection.
        queries: Query file; replaces the split's queries.
        qrels: Qrels file; replaces the split's qrels.
        lucene: Build Lucene's index as well, for `--engine lucene` and Lucene's tools. Without it English needs no
            Java.
    """

    command = "index-bm25"
    panel = LEXICAL
    examples = (
        "hybrid index-bm25 data/pydocs --k1 0.9 --b 0.4 --output out/bm25",
        "hybrid index-bm25 data/pydocs --tune --split dev --output out/bm25-tuned",
        "hybrid index-bm25 data/cord19 --fields title=3,text,body --output out/bm25-fields",
    )

    collection: Path = argument(REQUIRED)
    _: KW_ONLY
    scopes = scope(when(tune=False), "k1", "b", "shards") + scope(when(shards=None), "expansion", "lucene")

    k1: float = inherited(minimum=0, maximum=MAX_K1)
    b: float = inherited(minimum=0, maximum=1)
    fields: Sequence[str] = inherited(metavar="FIELD[=WEIGHT],...", parse=_field)
    expansion: Path | None = option(None)
    language: str = inherited()
    shards: int | None = option(None, minimum=2, recorded=False, shown="one index")
    tune: bool = option(False, panel=TUNING)
    measure: str = _tuning_option("MRR@10", parse=MEASURE)
    split: str | None = _tuning_option(None, shown="the only split, or dev", recorded=False, excluded=REPLACED)
    queries: Path | None = _tuning_option(None)
    qrels: Path | None = _tuning_option(None)
    lucene: bool = option(True)

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


@dataclass(frozen=True, kw_only=True)
class SearchOptions(OnDevice, Threaded):
    """Options of opening and searching indexes.

    Attributes:
        exact: Rank all documents by the weighted sum of scores of one or more dense indexes and at most one lexical
            index.
        weights: One weight per index, in order: `1,0.1`; or `@FILE` written by `fuse --tune`.
        group: Passages D#0, D#1, ... give document D the score of the best (`max`), the two best (`sum2`) or all of
            them (`mean`), or are the hits (`none`).
        min_probability: Drop hits with a lower probability; of a retriever with `compose --calibrate`.
        engine: Impact matrix, with impacts rounded to 8 bits for a faster search of many queries (`matrix-8bit`; a byte
            of memory per posting), or Lucene.
        k1: Overrides the k1 stored in the index.
        b: Overrides the b stored in the index.
        rm3: Expand queries with RM3 pseudo-relevance feedback.
        fb_terms: Feedback terms.
        fb_docs: Feedback documents.
        fb_weight: Weight of the original query.
        model: Query encoder; required if the encoder has moved since indexing.
        weight: Weight of the second encoder of a combination.
        ef_search: Overrides the search candidates stored in the index.
        nprobe: Overrides the number of probed lists stored in the index.
        binary_k: Candidates by Hamming distance, rescored with the float query.
        faiss_device: Device of FAISS, if its build supports GPUs: `auto` (all GPUs, if any), `cpu`, `gpu`, or numbers:
            `0,1`.
    """

    scopes = (
        scope(when(index_kind=(TRANSFORMER_INDEX, RETRIEVER)), "device")
        + scope(when(query=None, interactive=False), "exact")
        + scope(when(exact=True), "weights")
        + scope(when(exact=False), "group")
        + scope(when(index_kind=RETRIEVER), "min_probability")
        + scope(when(index_kind="a lexical index", exact=False), "engine")
        + scope(when(index_kind="a lexical index", exact=False, engine=("matrix", "lucene")), "rm3")
        + scope(_LEXICAL, "k1", "b")
        + scope(_FEEDBACK, "fb_terms", "fb_docs", "fb_weight")
        + scope(_ENCODED, "model")
        + scope(_DENSE, "weight")
        + scope(when(index_kind="a flat index", exact=False), "faiss_device")
        + scope(when(index_kind="an HNSW index", exact=False), "ef_search")
        + scope(when(index_kind="an IVF index", exact=False), "nprobe")
        + scope(when(index_kind="a binary index", exact=False), "binary_k")
    )

    exact: bool = option(False, panel=SEVERAL, recorded=False)
    weights: str | Sequence[float] | None = option(None, panel=SEVERAL, parse=str, shown="equal")
    group: Group | None = option(None, shown="max for a collection made with --split-passages", recorded=False)
    min_probability: float | None = option(None, minimum=0, maximum=1, shown="all hits")
    engine: Engine = _lexical_option("matrix")
    k1: float | None = _lexical_option(None, minimum=0, maximum=MAX_K1)
    b: float | None = _lexical_option(None, minimum=0, maximum=1)
    rm3: bool = _lexical_option(False)
    fb_terms: int = _lexical_option(10, minimum=1)
    fb_docs: int = _lexical_option(10, minimum=1)
    fb_weight: float = _lexical_option(0.5, minimum=0, maximum=1)
    model: str | None = _dense_option(None, recorded=False)
    weight: float | None = _dense_option(None, shown="the combination's")
    faiss_device: str = _dense_option(VectorIndex.faiss_device, recorded=False)
    ef_search: int | None = _dense_option(None, minimum=1)
    nprobe: int | None = _dense_option(None, minimum=1)
    binary_k: int = _dense_option(BINARY_K, minimum=1)


_WRITES = when(query=None, interactive=False)


@dataclass(frozen=True)
class Search(SearchOptions, ThreadedOnCluster, Overwrites):
    """Search an index and write a run, or print the hits of a query.

    With `--interactive`, queries are read from standard input, one per line, while the indexes stay open. A dense index
    is searched with the encoder that built it; other encoders are refused.

    Attributes:
        collection: Collection of the queries (`--split`), and of the titles and texts of printed hits.
        index: Retriever, or lexical or dense index; several indexes, for printed hits or with `--exact`: `a,b`; shards:
            `'out/bm25/shard-*'`.
        output: Output path.
        split: Split of the collection: train, dev, test, ...
        queries: Query file, or query vectors written by `encode`. With `--tune`, it replaces the queries of COLLECTION.
        query: Query text; prints its hits. Several indexes are fused by min-max, or as `--weights @FILE` states.
        interactive: Read queries from standard input, one per line, and print the hits of each.
        form: Format of printed hits; `json`: one object per query, on one line.
        hits: Hits per query.
        filter: Return only documents for which a condition over their metadata (`prepare --metadata`) is true, in the
            syntax of SQL: `year >= 2020 AND lang = 'de'`.
        tune: Tune RM3 on the judged queries: each query is searched with the parameters that are best on the other
            folds.
        measure: Measure to maximize.
        qrels: Qrels file; replaces the split's qrels.
        folds: Folds of the queries.
        seed: Random seed of the folds.
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

    collection: Path | None = argument(None)
    _: KW_ONLY
    scopes = (
        scope(_WRITES, "output", "split", "overwrite")
        + scope((when(collection=None, query=None, interactive=False), when(tune=True, qrels=None)), "queries")
        + scope(when(query=None, interactive=False, tune=False), "ray_address")
        + scope(when(query=None), "interactive")
        + scope((when(query=GIVEN), when(interactive=True)), "form")
        + scope(when(engine=("matrix", "matrix-8bit"), tune=False), "filter")
        + scope(when(rm3=True, engine="matrix", query=None, interactive=False), "tune")
        + scope(_TUNED, "seed")
    )

    index: Sequence[Path] | Path = option(REQUIRED)
    output: Path | None = option(None, "--output", "-o", needed=_WRITES)
    split: str | None = option(None, recorded=False)
    queries: Path | None = option(None)
    query: str | None = option(None, recorded=False)
    interactive: bool = option(False, recorded=False)
    form: Literal["text", "json"] = option("text", "--format", recorded=False)
    weights: str | Sequence[float] | None = inherited(
        applies=(when(exact=True), when(query=GIVEN), when(interactive=True))
    )
    hits: int = option(By("prints", {True: 10}, HITS), "--hits", "-k", minimum=1, shown="1000; 10 for printed hits")

    filter: str | None = option(None, metavar="CONDITION", recorded=False)
    tune: bool = option(False, panel=TUNING)
    measure: str = _tuning_option("MAP", parse=MEASURE)
    qrels: Path | None = _tuning_option(None)
    folds: int = _tuning_option(2, minimum=2)
    seed: int = redeclare(Seeded, "seed", panel=TUNING)

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
            problem = "--weights: needs several indexes"
            raise InputError(problem, code="missing-option", option="index", needed_by="weights")
        if not self.prints and not self.exact and len(self.indexes) > 1:
            reason = "pass one index, or use --exact or --query"
            raise option_error("index", self.indexes, reason, code="number-of-values")
