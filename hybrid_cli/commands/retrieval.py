"""Settings of indexing, encoding and searching."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal

from hybrid_cli.commands.common import (
    ENCODER,
    ENCODERS,
    HITS,
    INDEXES,
    MEASURE,
    START,
    Called,
    EncoderContract,
    NameOrPath,
    OnDevice,
    StartModel,
    ThreadedOnCluster,
    as_names,
)
from hybrid_cli.encoders.options import CombineMode, Combining, Precision, SparseArchitecture
from hybrid_cli.errors import InputError, option_error
from hybrid_cli.indexes import options
from hybrid_cli.indexes.options import ENDPOINT_INDEX, ENGINES, FLAT, LEARNED, TRANSFORMER_INDEX, Searching, VectorType
from hybrid_cli.lexical.options import MAX_K1, STACKING, BM25Options, field_weight
from hybrid_cli.passages import Group
from hybrid_cli.settings import MayWrite, Overwrites, Seeded, Settings, Threaded, Writes
from hybrid_cli.settings.conversion import byte_count, chosen
from hybrid_cli.settings.options import (
    GIVEN,
    REQUIRED,
    By,
    argument,
    inherited,
    option,
    options_by,
    redeclare,
    scope,
    when,
)
from hybrid_cli.settings.paths import InheritedOptionalPath, OptionalPath, OptionalPathOrPaths, PathField

TUNING = "Tuning"
SEVERAL = "Several indexes"
RETRIEVER = "a retriever"  # fact about an index
AN_INDEX, A_SERVER = "an index of hybrid", "a search engine"  # facts
SINGLE_INDEX = "an index"  # fact about an index: it is no retriever
_TUNED = when(tune=True)

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
        language: Analyzer: `en` (Porter stemmer), a code such as `de`, `fr` or `zh`, or a plugin's.
        identifiers: Also index the parts of names of program code, such as `getUserById` and `foo.bar_baz`.
        shards: Write this number of indexes of consecutive documents, with the scores of one index. Each can be
            searched on another machine; they contain no Lucene index.
        tune: Tune k1 and b on judged queries.
        measure: Measure to maximize.
        split: Split of the collection.
        queries: Query file; replaces the split's queries.
        qrels: Qrels file; replaces the split's qrels.
        lucene: Build Lucene's index as well, for `--engine lucene` and Lucene's tools. Without it English,
            Chinese and Korean need no Java.
    """

    command = "index-bm25"
    panel = INDEXES
    examples = (
        "hybrid index-bm25 data/pydocs --k1 0.9 --b 0.4 --output out/bm25",
        "hybrid index-bm25 data/pydocs --tune --split dev --output out/bm25-tuned",
        "hybrid index-bm25 data/cord19 --fields title=3,text,body --output out/bm25-fields",
    )

    collection: PathField = argument(REQUIRED)
    _: KW_ONLY
    scopes = scope(when(tune=False), "k1", "b", "shards") + scope(when(shards=None), "expansion", "lucene")

    k1: float = inherited(minimum=0, maximum=MAX_K1)
    b: float = inherited(minimum=0, maximum=1)
    fields: Sequence[str] = inherited(metavar="FIELD[=WEIGHT],...", parse=_field)
    expansion: OptionalPath = option(None)
    language: str | None = inherited(shown="that of most documents")
    identifiers: bool = inherited()
    shards: int | None = option(None, minimum=2, recorded=False, shown="one index")
    tune: bool = option(False, panel=TUNING)
    measure: str = _tuning_option("MRR@10", parse=MEASURE)
    split: str | None = _tuning_option(None, shown="the only split, or dev", recorded=False, excluded=REPLACED)
    queries: OptionalPath = _tuning_option(None)
    qrels: OptionalPath = _tuning_option(None)
    lucene: bool = option(True, shown="lucene, if its extra is installed")

    def check(self) -> None:
        """Refuse a field that is listed twice, and an expansion of a text that is not indexed."""
        super().check()
        names = [field_weight(field)[0] for field in self.fields]
        if len(set(names)) < len(names):
            raise option_error("fields", self.fields, "list each field once", code="repeated-value")
        if self.expansion is not None and "text" not in names:
            reason = "adds to the text; add text to --fields"
            raise option_error("expansion", None, reason, code="conflicting-options", others=("fields",))
        if self.identifiers and self.language in STACKING:
            reason = f"not with --language {self.language}"
            raise option_error("identifiers", None, reason, code="option-does-not-apply")


def _engine(text: str) -> str:
    return text if ":" in text else chosen(text, ENGINES)


LEXICAL = "Lexical index"
_lexical_option = partial(inherited, panel=LEXICAL)
_dense_option = partial(inherited, panel="Dense index")


@dataclass(frozen=True, kw_only=True)
class SearchOptions(OnDevice, Threaded, Searching):
    """Options of opening and searching indexes.

    Attributes:
        exact: Rank all documents by the weighted sum of scores of one or more dense indexes and at most one lexical
            index.
        weights: One weight per index, in order: `1,0.1`; or `@FILE` written by `fuse --tune`.
        group: Passages D#0, D#1, ... give document D the score of the best (`max`), the two best (`sum2`) or all of
            them (`mean`), or are the hits (`none`).
        min_probability: Drop hits with a lower probability; of a retriever with `compose --calibrate`.
        engine: Impact matrix, or Lucene.
        k1: Overrides the k1 stored in the index.
        b: Overrides the b stored in the index.
        rm3: Expand queries with RM3 pseudo-relevance feedback.
        fb_terms: Feedback terms.
        fb_docs: Feedback documents.
        fb_weight: Weight of the original query.
        model: Query encoder; required if the encoder has moved since indexing.
        timeout: Seconds for an answer of the API that encodes queries, or of the search engine.
        weight: Weight of the second encoder of a combination.
        ef_search: Overrides the search candidates stored in the index.
        nprobe: Overrides the number of probed lists stored in the index.
        binary_k: Candidates by Hamming distance, rescored with the float query.
        faiss_device: Device of FAISS, if its build supports GPUs: `auto` (all GPUs, if any), `cpu`, `gpu`, or numbers:
            `0,1`.
    """

    scopes = (
        scope(when(exact=True), "weights")
        + scope(when(exact=False), "group", "engine", "faiss_device", "ef_search", "nprobe", "binary_k")
        + scope(when(exact=False, engine=("matrix", "lucene")), "rm3")
        + scope(when(rm3=True, tune=False), "fb_terms", "fb_docs", "fb_weight")
    )
    cases = options_by(
        "index_kind",
        {
            RETRIEVER: ("device", "min_probability", "timeout"),
            TRANSFORMER_INDEX: ("device",),
            ENDPOINT_INDEX: ("timeout",),
            "a lexical index": ("engine", "rm3", "k1", "b"),
            LEARNED: ("model",),
            A_SERVER: ("engine", "model", "timeout"),
            "a dense index": ("model", "weight"),
            "a flat index": ("faiss_device",),
            "an HNSW index": ("ef_search",),
            "an IVF index": ("nprobe",),
            "a binary index": ("binary_k",),
        },
    )

    exact: bool = option(False, panel=SEVERAL, recorded=False)
    weights: str | Sequence[float] | None = option(None, panel=SEVERAL, parse=str, shown="equal")
    group: Group | None = inherited(shown="max for a collection made with --split-passages", recorded=False)
    min_probability: float | None = inherited(minimum=0, maximum=1, shown="all hits")
    engine: str = _lexical_option(choices=ENGINES)
    k1: float | None = _lexical_option(minimum=0, maximum=MAX_K1)
    b: float | None = _lexical_option(minimum=0, maximum=1)
    rm3: bool = _lexical_option()
    fb_terms: int = _lexical_option(minimum=1)
    fb_docs: int = _lexical_option(minimum=1)
    fb_weight: float = _lexical_option(minimum=0, maximum=1)
    model: str | None = _dense_option(recorded=False)
    timeout: float = _dense_option(above=0, recorded=False)
    weight: float | None = _dense_option(shown="the combination's")
    faiss_device: str = _dense_option(recorded=False)
    ef_search: int | None = _dense_option(minimum=1)
    nprobe: int | None = _dense_option(minimum=1)
    binary_k: int = _dense_option(minimum=1)


_WRITES = when(query=None, interactive=False)


@dataclass(frozen=True)
class Search(SearchOptions, ThreadedOnCluster, MayWrite):
    """Search an index and write a run, or print the hits of a query.

    With `--interactive`, queries are read from standard input, one per line, while the indexes stay open. A dense index
    is searched with the encoder that built it; other encoders are refused.

    Attributes:
        collection: Collection of the queries (`--split`), and of the titles and texts of printed hits.
        index: Retriever, or lexical or dense index; several indexes, for printed hits or with `--exact`: `a,b`; shards:
            `'out/bm25/shard-*'`.
        engine: Reader of a lexical index: `matrix` or `lucene`; or a search engine in place of an index:
            `opensearch:URL/INDEX`, `qdrant:URL/NAME`.
        engine_query: JSON file with a request to the search engine; `{query}` in it is the text of a query, `{vector}`
            the vector by --model.
        output: Output path.
        split: Split of the collection: train, dev, test, ...
        queries: Query file, or query vectors written by `encode`. With `--tune`, it replaces the queries of COLLECTION.
        query: Query text; prints its hits. Several indexes are fused by min-max, or as `--weights @FILE` states.
        interactive: Read queries from standard input, one per line, and print the hits of each; on a terminal, `exit`
            ends.
        form: Format of printed hits; `json`: one object per query, on one line.
        hits: Hits per query.
        context: Print the best parts of the hits and their neighbors, with their places, in place of the hits: at most
            TOKENS tokens, estimated as a third of the bytes.
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
    panel = START
    examples = (
        "hybrid search data/pydocs --split test --index out/bm25 --hits 1000 --output out/bm25.parquet",
        "hybrid search data/pydocs --split test --exact --index out/clear-index,out/bm25 --weights 1,0.5 "
        "--output out/exact.parquet",
        'hybrid search --index out/bm25,out/clear-index --weights @out/weights.json --query "remove a file"',
        'hybrid search --index out/retriever --query "wind farms" --filter "year >= 2020 AND lang = \'de\'"',
        "hybrid search --index out/clear-index --interactive",
        "hybrid search data/pydocs --split test --engine opensearch:http://localhost:9200/docs "
        "--output out/engine.parquet",
    )

    collection: OptionalPath = argument(None)
    _: KW_ONLY
    scopes = (
        scope(_WRITES, "output", "split", "overwrite", "exact")
        + scope((when(collection=None, query=None, interactive=False), when(tune=True, qrels=None)), "queries")
        + scope(when(query=None, interactive=False, tune=False), "ray_address")
        + scope(when(query=None), "interactive")
        + scope((when(query=GIVEN), when(interactive=True)), "form", "context")
        + scope(when(engine="matrix", tune=False), "filter")
        + scope(when(rm3=True, engine="matrix", query=None, interactive=False), "tune")
        + scope(_TUNED, "seed")
    )

    cases = options_by(
        "searched",
        {AN_INDEX: ("index", "query", "interactive", "group", "ray_address"), A_SERVER: ("engine_query",)},
    )

    result_functions: ClassVar = {"query": "search_query", "interactive": "search_interactively"}

    index: OptionalPathOrPaths = option(None, needed=when(searched=AN_INDEX))
    engine: str = inherited(choices=None, parse=_engine, metavar="NAME")
    engine_query: OptionalPath = option(None, panel=LEXICAL)
    output: OptionalPath = redeclare(MayWrite, "output", needed=_WRITES)
    split: str | None = option(None, recorded=False)
    queries: InheritedOptionalPath = option(None)
    query: str | None = option(None, recorded=False)
    interactive: bool = option(False, recorded=False)
    form: Literal["text", "json"] = option("text", "--format", recorded=False)
    weights: str | Sequence[float] | None = inherited(
        applies=(when(exact=True), when(query=GIVEN), when(interactive=True))
    )
    hits: int = option(By("prints", {True: 10}, HITS), "--hits", "-k", minimum=1, shown="1000; 10 for printed hits")

    context: int | None = option(None, minimum=1, metavar="TOKENS", recorded=False)
    filter: str | None = option(None, metavar="CONDITION", recorded=False)
    tune: bool = option(False, panel=TUNING)
    measure: str = _tuning_option("MAP", parse=MEASURE)
    qrels: OptionalPath = _tuning_option(None)
    folds: int = _tuning_option(2, minimum=2)
    seed: int = redeclare(Seeded, "seed", panel=TUNING)

    @property
    def prints(self) -> bool:
        """Return whether hits are printed, and no run is written."""
        return self.query is not None or self.interactive

    @property
    def indexes(self) -> tuple[Path, ...]:
        """The indexes, in order."""
        return (self.index,) if isinstance(self.index, Path) else tuple(self.index or ())

    def values(self) -> dict[str, Any]:
        """Return every field by name, and what is searched."""
        return {**super().values(), "searched": A_SERVER if ":" in self.engine else AN_INDEX}

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


INDEX, COMBINED, COMPUTATION = "Index", "Two encoders", "Computation"
IMPORTED, SPARSE = "Vectors of other tools", "Learned sparse index"

APPROXIMATE, GRAPH, LISTS = "an approximate index type", "a graph (HNSW)", "inverted lists (IVF)"  # facts
SAMPLED, CHECKED = "an index type that is trained on a sample", "--recall-check"  # facts
CHOSEN = "--index-type auto"  # fact
_UNTRAINED = ("flat", "fp16", "binary", "hnsw", "hnsw-fp16", "hnsw-binary")


@dataclass(frozen=True, kw_only=True)
class VectorIndex(Seeded, options.VectorIndex):
    """Type and parameters of a FAISS index.

    Attributes:
        index_type: Index type: exact (`flat`), codes, graphs (`hnsw`), lists (`ivf`), `auto`, or a factory string of
            FAISS, such as `HNSW32,Flat`. Table: docs/indexes.md.
        ef_search: Size of the candidate list during a search of an HNSW graph; `search --ef-search` overrides it.
        nprobe: Number of inverted lists searched per query; `search --nprobe` overrides it.
        memory: Maximum bytes of the index: `500M`, `4G`.
        min_recall: Minimum recall of the exact top 100 hits.
        recall_check: Measure and store the recall of an approximate index against exact search.
        seed: Random seed of training samples and recall checks.
        faiss_device: Device of FAISS, if its build supports GPUs: `auto` (all GPUs, if any), `cpu`, `gpu`, or numbers:
            `0,1`.
    """

    option_panel = INDEX
    cases = options_by(
        "structure",
        {
            GRAPH: ("ef_search",),
            LISTS: ("nprobe", "faiss_device"),
            CHOSEN: ("memory", "min_recall"),
            APPROXIMATE: ("recall_check",),
            (SAMPLED, CHECKED): ("seed",),
        },
    )

    index_type: str | None = option(None, metavar="TYPE", shown="flat; binary for a model trained with --loss bpr")
    ef_search: int = inherited(minimum=1)
    nprobe: int = inherited(minimum=1)
    memory: int | None = inherited(minimum=1, parse=byte_count, metavar="BYTES", shown="any", recorded=True)
    min_recall: float = inherited(minimum=0, maximum=1)
    faiss_device: str = inherited(recorded=False)
    recall_check: bool = option(False, recorded=False)
    seed: int = inherited()

    def values(self) -> dict[str, Any]:
        """Return every field by name, and what the type of the index has."""
        kind = self.index_type or ""
        holds = {
            GRAPH: "HNSW" in kind.upper(),
            LISTS: "IVF" in kind.upper(),
            CHOSEN: kind == "auto",
            APPROXIMATE: kind not in ("flat", FLAT),
            SAMPLED: bool(kind) and kind not in _UNTRAINED,
            CHECKED: self.recall_check,
        }
        return {**super().values(), "structure": tuple(fact for fact, held in holds.items() if held)}


_weight_option = partial(option, panel=TUNING, applies=when(tune=GIVEN))


@dataclass(frozen=True)
class Combine(OnDevice, Writes):
    """Combine two encoders into one.

    Vectors are concatenated or added, the second encoder with a weight on the query side. An index of the combination
    serves every weight. With `--tune`, the weight is selected on the judged queries of a collection.

    Attributes:
        models: Two encoders: `minilm`, a folder, or a Hugging Face id.
        combine: Concatenate the vectors, or add them.
        weight: Weight of the second encoder, on the query side.
        tune: Collection with judged queries, which select the weight.
        split: Split of the collection in `--tune`.
        index: Index of the same two models, built by `encode` with any weight.
        measure: Measure to maximize.
        depth: Top-ranked documents of each encoder alone; both encoders score all of them.
        grid: Candidate weights: `scaled` by the deviations of the scores (the middle of the best is selected),
            `reciprocal` (SPAR) or `log` (the best).
    """

    command = "combine"
    panel = ENCODERS
    examples = (
        "hybrid combine out/dense out/lambda --output out/spar",
        "hybrid combine out/dense out/lambda --tune data/pydocs --index out/spar-index --output out/spar-tuned",
    )

    models: Sequence[NameOrPath] = argument(REQUIRED)
    _: KW_ONLY
    combine: CombineMode = option(Combining.combine)
    weight: float = option(Combining.weight, applies=when(tune=None))
    tune: OptionalPath = option(None, panel=TUNING)
    split: str | None = redeclare(IndexBm25, "split", applies=when(tune=GIVEN))
    index: OptionalPath = _weight_option(None, needed=when(tune=GIVEN))
    measure: str = _weight_option("R@100", parse=MEASURE)
    depth: int = _weight_option(100, minimum=1)
    grid: Literal["scaled", "reciprocal", "log"] = _weight_option("scaled")

    def check(self) -> None:
        """Require two models."""
        super().check()
        if len(self.models) != 2:
            problem = f"combine: needs two encoders, got {len(self.models)}"
            raise InputError(problem, code="number-of-values", option="models")


DENSE_TEXTS, SPARSE_TEXTS = "a dense encoder", "a learned sparse encoder"  # facts: the job of `encode`
IMPORTED_VECTORS = "vectors of another tool"
ONE_INDEX, TWO_INDEXES = "a dense index", "two dense indexes"
OF_TRANSFORMER, OF_STATIC = "a transformer encoder", "a static encoder"  # facts
OF_ENDPOINT = "an encoder behind an API"  # fact
ONE_MODEL, TWO_MODELS = "one model", "two models"  # facts
_RUNNING = (DENSE_TEXTS, SPARSE_TEXTS, IMPORTED_VECTORS, TWO_INDEXES)  # jobs that run a model
_OF_TYPE = ("ef_search", "nprobe", "memory", "min_recall", "faiss_device", "seed")  # which depend on --index-type
_OF_WEIGHTS = ("architecture", "quantization", "expansion")
_ON_MACHINES = ("devices", "ray_address")
_OF_ENDPOINT = (
    *("normalize", "truncate_dim", "query_prefix", "doc_prefix", "title_separator", "query_max_len", "doc_max_len"),
)
_OF_VECTORS = ("queries", "split", "pooling", "normalize", "task", "append_eos", "vector_dtype")  # not of weights


@dataclass(frozen=True, kw_only=True)
class StoredVectors(Settings, options.Shards):
    """How vectors are stored.

    Attributes:
        vector_dtype: Type of the stored vectors.
        shard_size: Texts per shard.
    """

    option_panel = COMPUTATION

    vector_dtype: VectorType = inherited()
    shard_size: int = inherited(minimum=1)


@dataclass(frozen=True, kw_only=True)
class Truncated(Settings):
    """Vectors of which the leading values are kept.

    Attributes:
        truncate_dim: Number of leading values kept of each vector; for models trained with `--matryoshka-dims`.
    """

    truncate_dim: int | None = option(None, panel=ENCODER, minimum=1, shown="all")


@dataclass(frozen=True, kw_only=True)
class Weighted(Settings):
    """A combination of two encoders.

    Attributes:
        combine: Concatenate the vectors, or add them.
        weight: Weight of the second encoder, on the query side; `search --weight` overrides it.
    """

    option_panel = COMBINED

    combine: CombineMode = option(Combining.combine)
    weight: float = option(Combining.weight)


@dataclass(frozen=True, kw_only=True)
class Texts(OnDevice, StoredVectors, Threaded, Writes):
    """Texts of documents or of queries, and the model that encodes them.

    Attributes:
        model: Encoder: `minilm`, a folder, a Hugging Face id, or `URL#NAME` of an embeddings API:
            `http://localhost:8000/v1#NAME`. Two encoders are combined.
        queries: File of queries to encode, in place of a corpus.
        split: Encode the queries of this split of the collection.
        dtype: Precision of the model; `auto` is bf16 where the processor supports it natively, else fp32.
    """

    collection: Path | None
    model: Sequence[NameOrPath] | NameOrPath = option((StartModel.model,))
    queries: OptionalPath = option(None)
    split: str | None = option(None, recorded=False)
    dtype: Precision = option("auto", panel=COMPUTATION)

    def contract(self) -> dict[str, Any]:
        """Return the options that override fields of the encoder's contract."""
        names = ("truncate_dim", *(name for name in EncoderContract.declared() if name != "preset"))
        return {name: value for name in names if (value := getattr(self, name, None)) is not None}


@dataclass(frozen=True, kw_only=True)
class EncodedTexts(ThreadedOnCluster, Texts):
    """Texts that are encoded, on one or several devices or machines.

    Attributes:
        devices: Devices to encode on, in one process each: `0,1` are two GPUs, `all` is all GPUs. The bytes are those
            of one device.
        batch_tokens: Tokens per batch, padding included; changes vectors by rounding only.
    """

    option_panel = COMPUTATION

    device: str = inherited(excluded=when(devices=GIVEN))
    devices: Sequence[str] = option((), recorded=False)
    batch_tokens: int | None = option(None, minimum=1, shown="1024 on a CPU, 65536 on a GPU", recorded=False)


@dataclass(frozen=True, kw_only=True)
class DenseTexts(EncodedTexts, VectorIndex, Weighted, Truncated, EncoderContract, Called):
    """The job of `encode` with a dense encoder."""


@dataclass(frozen=True, kw_only=True)
class SparseTexts(EncodedTexts, EncoderContract):
    """The job of `encode` with a sparse encoder.

    Attributes:
        quantization: Steps between the learned weights 0 and 1: a power of two. With `deepct`, any number: a word of
            weight 1 is counted that many times.
        expansion: File of docid and text, such as queries of docT5query; the text is added to the document.
        architecture: Read a plain checkpoint as a sparse encoder: `splade`: the whole vocabulary; `unicoil`: word
            pieces of the text; `deepct`: its words; `sparterm`: gated.
    """

    option_panel = SPARSE

    architecture: SparseArchitecture | None = option(None, shown="the model's", recorded=False)
    quantization: int | None = option(None, minimum=1, maximum=1 << 12, shown="128; 100 for `deepct`", recorded=False)
    expansion: OptionalPath = option(None)


@dataclass(frozen=True, kw_only=True)
class ImportedVectors(Texts, VectorIndex, Truncated, EncoderContract):
    """The job of `encode` with vectors of another tool.

    Attributes:
        from_vectors: Vectors of another tool, in place of encoding: a `.npy` file, or a flat, HNSW or IVF-flat index of
            FAISS of inner products. Name their model with `--model`.
        ids: Ids of the vectors, one per line.
    """

    option_panel = IMPORTED

    from_vectors: InheritedOptionalPath = option(None)
    ids: OptionalPath = option(None, shown="in the order of the documents or queries")


@dataclass(frozen=True, kw_only=True)
class RebuiltIndex(OnDevice, Threaded, Writes, VectorIndex, Truncated):
    """The job of `encode` with a dense index: another index type, or shorter vectors."""


@dataclass(frozen=True, kw_only=True)
class CombinedIndexes(OnDevice, StoredVectors, Threaded, Writes, VectorIndex, Weighted):
    """The job of `encode` with two dense indexes.

    Attributes:
        concat_with: Second dense index of the same corpus; both are combined without encoding.
    """

    concat_with: InheritedOptionalPath = option(None, panel=COMBINED)


@dataclass(frozen=True)
class Encode(DenseTexts, SparseTexts, ImportedVectors, RebuiltIndex, CombinedIndexes):
    """Encode a corpus and build its index, or encode queries.

    If the input is a dense index, its stored vectors get another index type, are truncated, or are combined with those
    of a second index (`--concat-with`); no text is encoded. An interrupted command resumes with the first missing
    shard.

    Attributes:
        collection: A collection or corpus, or a dense index to rebuild with another index type.
    """

    command = "encode"
    panel = INDEXES
    examples = (
        "hybrid encode data/pydocs --model out/clear --output out/clear-index",
        "hybrid encode data/pydocs --model models/ance --preset ance --output out/ance-index",
        "hybrid encode out/clear-index --index-type sq8 --recall-check --output out/clear-sq8",
        "hybrid encode data/pydocs --split test --model out/clear --output out/clear-queries",
        "hybrid encode data/pydocs --from-vectors documents.npy --ids docids.txt --output out/mine-index",
    )

    cases = (
        options_by(
            "job",
            {
                DENSE_TEXTS: (DenseTexts, *_OF_VECTORS),
                SPARSE_TEXTS: (SparseTexts,),
                IMPORTED_VECTORS: (ImportedVectors, *_OF_VECTORS),
                ONE_INDEX: (RebuiltIndex,),
                TWO_INDEXES: (CombinedIndexes, "vector_dtype"),
                (): ("output", "overwrite", "limits", "threads", "ray_workers", "device", *_OF_TYPE),
            },
        )
        + options_by(
            "encoder",
            {
                OF_TRANSFORMER: (EncoderContract, *_OF_ENDPOINT, "device", "dtype", "batch_tokens", *_ON_MACHINES),
                OF_STATIC: ("truncate_dim", *_ON_MACHINES),
                OF_ENDPOINT: (Called, *_OF_ENDPOINT),
            },
        )
        + options_by("models", {ONE_MODEL: (EncoderContract, "truncate_dim", "from_vectors"), TWO_MODELS: (Weighted,)})
    )
    scopes = (
        scope(when(collection=None), "queries")
        + scope(when(queries=None, split=None), "index_type", "recall_check", *_OF_WEIGHTS)
        + scope(when(ray_address=None), "devices")
        + scope((when(job=_RUNNING), when(truncate_dim=GIVEN)), "device")
    )

    collection: InheritedOptionalPath = argument(None, needed=when(queries=None))
    _: KW_ONLY

    def values(self) -> dict[str, Any]:
        """Return every field by name, the number of models, and the jobs that the options leave."""
        jobs: tuple[str, ...] = (DENSE_TEXTS, SPARSE_TEXTS, ONE_INDEX)
        if self.from_vectors is not None:
            jobs = (IMPORTED_VECTORS,)
        elif self.concat_with is not None:
            jobs = (TWO_INDEXES,)
        elif self.queries is not None or self.split is not None:
            jobs = (DENSE_TEXTS,)
        two = len(as_names(self.model)) == 2 or self.concat_with is not None
        return {**super().values(), "job": jobs, "models": TWO_MODELS if two else ONE_MODEL}

    def check(self) -> None:
        """Refuse more than two models."""
        super().check()
        if len(as_names(self.model)) > 2:
            raise option_error("model", self.model, "needs one or two encoders", code="number-of-values")


@dataclass(frozen=True)
class ConvertCheckpoint(Overwrites):
    """Convert a checkpoint to safetensors, or join the towers or learners of a published encoder.

    Pickled weights (`pytorch_model.bin`, `.ckpt`) are read in a separate process, tensors only; a file with other
    objects is refused. Configuration and tokenizer are copied from the folder of the checkpoint.

    Attributes:
        checkpoint: Pickled file, model folder, or Hugging Face id.
        output: Folder of the converted checkpoint.
        documents: Document encoder, if CHECKPOINT is the query encoder of two published checkpoints.
        learners: Further learners of an ensemble with CHECKPOINT as its first, each with both towers; their vectors are
            concatenated (DrBoost).
        merge: Add the LoRA adapter of CHECKPOINT to its base model; writes an encoder without adapter.
        base: Model with configuration and tokenizer, for a file without config.json next to it.
    """

    command = "convert-checkpoint"
    panel = ENCODERS
    examples = (
        "hybrid convert-checkpoint downloads/ance models/ance",
        "hybrid convert-checkpoint dpr-question models/dpr --documents dpr-context",
        "hybrid convert-checkpoint lambda.ckpt models/lambda --base google-bert/bert-base-uncased",
        "hybrid convert-checkpoint one.ckpt models/drboost --learners two.ckpt,three.ckpt "
        "--base google-bert/bert-base-uncased",
    )

    checkpoint: NameOrPath = argument(REQUIRED)
    output: PathField = argument(REQUIRED)
    _: KW_ONLY
    documents: NameOrPath | None = option(None)
    learners: Sequence[NameOrPath] = option((), applies=when(documents=None))
    merge: bool = option(False, applies=when(documents=None, learners=None), excluded=when(base=GIVEN))
    base: NameOrPath | None = option(None)
