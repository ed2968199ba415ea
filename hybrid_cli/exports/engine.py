"""What a search engine declares: how it takes documents, and a fusion in its own words with the formula it computes.

An engine is one class, and one entry of `ENGINES`, here or in another package or file (docs/extending.md).
"""

from __future__ import annotations

import json
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol
from urllib.parse import urlsplit

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from hybrid_cli.errors import HybridError, InputError, option_error
from hybrid_cli.exports.documents import Served, write_line
from hybrid_cli.fusion import lists
from hybrid_cli.fusion.methods import METHODS, FusionRecipe, Transform, unchanged, weighted_mean, weighted_sum
from hybrid_cli.fusion.options import Missing
from hybrid_cli.http_client import Api
from hybrid_cli.indexes.shards import Advance
from hybrid_cli.lexical.options import ENGLISH
from hybrid_cli.passages import MAX, NO_GROUPS, Group
from hybrid_cli.plugins import Lazy, Registry
from hybrid_cli.runs import ranked
from hybrid_cli.storage import disk

# qid, text, terms (term -> frequency), their ids (`indices`) and frequencies (`values`), one vector per dense field
Query = Mapping[str, Any]
Request = Callable[[Query], Mapping[str, Any]]
APPROXIMATE = (
    "The engine finds the nearest vectors by its own HNSW graph, and so may miss some; the loss is of an exact search."
)


@dataclass(frozen=True)
class Field:
    """One index of a retriever, as a field of the exported documents.

    Attributes:
        name: name of the field.
        weight: weight of its scores in the fusion.
        dim: dimensions of its vectors; None for the lexical index.
        exact: the index finds the nearest vectors exactly.
        unit: its vectors have length 1.
    """

    name: str
    weight: float
    dim: int | None = None
    exact: bool = True
    unit: bool = False


@dataclass(frozen=True)
class Fusion:
    """The fusion of a retriever.

    Attributes:
        recipe: method, weights and the rule for missing documents.
        fields: one per index, in the order of the weights.
        depth: hits of each index that are fused.
        k1: k1 of BM25.
        group: how passages give documents.
        hits: documents per query that a request asks for.
        documents: number of all documents (or passages).
        language: language of BM25.
        shares: weights in deviations of the scores; None where the weights are not derived from scales.
    """

    recipe: FusionRecipe
    fields: tuple[Field, ...]
    depth: int
    k1: float
    group: Group = NO_GROUPS
    hits: int = 10
    documents: int = 0
    language: str = ENGLISH
    shares: tuple[float, ...] | None = None

    @property
    def lexical(self) -> Field:
        """The field of BM25."""
        return next(each for each in self.fields if each.dim is None)

    @property
    def dense(self) -> list[Field]:
        """The fields of vectors."""
        return [each for each in self.fields if each.dim is not None]


@dataclass(frozen=True)
class Formula:
    """Scores that an engine computes for documents (passages, if those were indexed).

    Attributes:
        weights: one per field, in the order of `Fusion.fields`.
        values: one function per field, from score and rank (from 1) to the value that the engine adds, as in
            `fusion.methods`; empty for raw scores. Score and rank are null if the field does not return the document.
        depth: hits of each field that are combined; None for the exact sum of raw scores of all documents.
        complete: a document that a field does not return has its exact score and rank among the candidates.
    """

    weights: tuple[float, ...]
    values: tuple[Transform, ...] = ()
    depth: int | None = None
    complete: bool = False

    def run(self, candidates: Iterable[pl.DataFrame], qids: pl.Series, hits: int) -> Iterator[pl.DataFrame]:
        """Yield the run of the candidates of some queries at a time.

        Args:
            candidates: frames of `fusion.lists`, with the hits of each field up to `depth`.
            qids: ids of the queries, by number.
            hits: documents per query.
        """
        numbers = range(len(self.weights))
        values = [
            value(pl.col(f"score_{number}"), pl.col(f"rank_{number}")).alias(f"value_{number}")
            for number, value in zip(numbers, self.values or [unchanged] * len(numbers), strict=True)
        ]
        present = [pl.col(f"score_{number}").is_not_null() for number in numbers]
        score = weighted_sum([pl.col(f"value_{number}") for number in numbers], self.weights, present)
        for block in candidates:
            frame = block.lazy().with_columns(values).select("docid", qid="query", score=score)
            run = ranked(frame, hits)
            yield run.replace_column(0, lists.named(run["qid"], qids))


@dataclass(frozen=True)
class Translation:
    """A fusion in the words of an engine.

    Attributes:
        name: the engine's name of it, such as `linear retriever, minmax`.
        request: from a query to the complete body of the request that the engine answers.
        formula: the scores that the engine computes.
        files: name -> text of further files, such as a pipeline.
        differences: what the engine computes differently, one sentence each; empty if nothing.
        load: commands that load the files and the documents, run in the folder of the export.
        ask: command that sends the first request of `queries.jsonl`.
    """

    name: str
    request: Request
    formula: Formula
    files: Mapping[str, str] = field(default_factory=dict)
    differences: Sequence[str] = ()
    load: str = ""
    ask: str = ""


# ---------------------------------------------------------------------------------------------------- running engines

NAME = "documents"  # of a collection, an index or a table, in the commands of every export
TIMEOUT = 10.0  # seconds of one request


class OpenCollection(Protocol):
    """An open collection of an engine.

    Raises:
        InputError: in every method: the engine cannot be reached, or refuses a request.
    """

    def count(self) -> int:
        """Return the number of documents."""

    def search(self, request: Mapping[str, Any]) -> list[tuple[str, float]]:
        """Return ids and scores of the hits of a request of a `Translation`, the best first."""

    def close(self) -> None:
        """Close the connection."""


def collection_in(address: str) -> tuple[str, str]:
    """Return the address of an engine and the name of a collection: the path of a URL, else `NAME`."""
    parts = urlsplit(address)
    name = parts.path.strip("/")
    if "://" not in address or not name:
        return address.rstrip("/"), NAME
    return f"{parts.scheme}://{parts.netloc}", name


def one_line(error: object) -> str:
    """Return the first line of what an engine says."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = " ".join(lines[:2]) if lines else type(error).__name__
    return text if len(text) <= 300 else f"{text[:300]}..."


def refusal(engine: str, address: str, reason: str, code: str = "engine-refused") -> InputError:
    """Return the error about a request that an engine refuses, such as for a feature of a later version."""
    return InputError(f"--engine {engine}:{address}: {reason}", code=code, option="engine", value=address)


def unreachable(engine: str, address: str, reason: str) -> InputError:
    """Return the error about an engine that does not answer."""
    problem = f"cannot be reached ({reason}); load the export first, or correct the address"
    return refusal(engine, address, problem, "engine-unreachable")


def no_collection(engine: str, address: str, name: str) -> InputError:
    """Return the error about a collection that is not in an engine."""
    problem = f"has no collection '{name}'; run load.py of the export, or add /NAME to a URL"
    return refusal(engine, address, problem, "no-such-collection")


class Server:
    """An engine that answers JSON over HTTP.

    Args:
        engine: name of the engine, for messages.
        address: URL that the user named; nothing else is contacted.

    Attributes:
        name: name of the collection.

    Raises:
        InputError: no URL.
    """

    def __init__(self, engine: str, address: str, timeout: float = TIMEOUT):
        self._engine, self._address = engine, address
        base, self.name = collection_in(address)
        if urlsplit(address).scheme not in ("http", "https"):
            raise unreachable(engine, address, "needs a URL, such as http://localhost:9200/documents")
        self._api = Api(base, "engine", timeout, shown=f"{engine}:{address}")

    def ask(self, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """Return the answer of a path: to a GET, or with a body to a POST.

        Raises:
            InputError: the server cannot be reached, or refuses.
        """
        try:
            return json.loads(self._api.ask(path, body, live=True))
        except HybridError as error:
            reason, status = str(error.fields["reason"]), error.fields.get("status")
            if status == 404:
                raise no_collection(self._engine, self._address, self.name) from None
            refused = refusal if status else unreachable
            raise refused(self._engine, self._address, f"HTTP {reason}" if status else reason) from None
        except ValueError as error:
            raise unreachable(self._engine, self._address, f"no JSON in the answer: {one_line(error)}") from None


# -------------------------------------------------------------------------------------------------------------- engines


_NO_LIMIT = 1 << 62


@dataclass(frozen=True)
class Limits:
    """What an engine takes, by its documentation.

    Attributes:
        id_bytes: bytes of an id.
        value_bytes: bytes of a title, a text, or a value of the metadata.
        document_bytes: bytes of all texts of a document.
        dimensions: dimensions of a vector.
        refused_names: pattern of names of metadata that are refused; empty for none.
        refused_text: pattern of texts that are refused; empty for none.
        json: numbers are those of JSON and of 64 bits with a sign: neither infinite nor NaN.
    """

    id_bytes: int = _NO_LIMIT
    value_bytes: int = _NO_LIMIT
    document_bytes: int = _NO_LIMIT
    dimensions: int = _NO_LIMIT
    refused_names: str = ""
    refused_text: str = ""
    json: bool = False

    def faults(self, frame: pl.DataFrame) -> Iterator[tuple[str, pl.Expr]]:
        """Yield what the engine refuses in a document, in words and as a condition over docid, texts and metadata."""
        texts = [name for name, kind in frame.schema.items() if kind == pl.String]
        yield f"docid: is longer than {self.id_bytes:,} bytes", pl.col("docid").str.len_bytes() > self.id_bytes
        for name in texts:
            yield f"{name}: is longer than {self.value_bytes:,} bytes", pl.col(name).str.len_bytes() > self.value_bytes
            if self.refused_text:
                yield f"{name}: has a character that it refuses", pl.col(name).str.contains(self.refused_text)
        total = pl.sum_horizontal(pl.col(name).str.len_bytes().cast(pl.Int64) for name in texts)
        yield f"has more than {self.document_bytes:,} bytes of text", total > self.document_bytes
        for name, kind in frame.schema.items() if self.json else ():
            if kind.is_float():
                yield f"{name}: is no finite number", ~pl.col(name).is_finite()
            elif kind.is_unsigned_integer() or kind == pl.Int128:
                yield f"{name}: needs more than 63 bits", pl.col(name).cast(pl.Float64).abs() >= 2.0**63


class Engine(ABC):
    """A search engine, or a format that several engines read.

    Attributes:
        name: name of the format.
        lexical: name of the field of BM25 in the documents.
        ran: the tests of this project run its translations in the engine.
        limits: limits of ids, texts, names and numbers.
        request: body of a request for a query of `search --engine`; empty if there is no usual one.
        envelope: the rest of the body, with the number of hits.
        timeout: seconds of one request.
    """

    request: ClassVar[Mapping[str, Any]] = {}
    envelope: ClassVar[Mapping[str, Any]] = {}
    timeout: float = TIMEOUT
    name: ClassVar[str]
    lexical: ClassVar[str]
    ran: ClassVar[bool] = False
    limits: ClassVar[Limits] = Limits()

    def check(self, served: Served) -> None:
        """Refuse documents that the engine cannot take.

        Raises:
            InputError: a document, a name or a vector is beyond the limits.
        """
        for name, dim in served.dims.items():
            if dim > self.limits.dimensions:
                reason = f"takes vectors of at most {self.limits.dimensions:,} dimensions, {name} has {dim:,}"
                raise option_error("format", self.name, reason, code="over-limit", field=name)
        for name in served.metadata:
            if self.limits.refused_names and re.search(self.limits.refused_names, name):
                reason = f"refuses the name {name!r} of a column of metadata; rename it"
                raise option_error("format", self.name, reason, code="unsafe-name", column=name)
        for frame, _ in served.texts() if self.limits != Limits() and served.corpora else ():
            for fault, condition in self.limits.faults(frame):
                if len(bad := frame.filter(condition)):
                    reason = f"refuses document {bad['docid'][0]!r}: {fault}; change the collection"
                    raise option_error("format", self.name, reason, code="over-limit", id=bad["docid"][0])

    @abstractmethod
    def write(self, served: Served, folder: Path, advance: Advance) -> None:
        """Write documents with vectors, and the schema that they need; advance by the number of written documents."""

    def write_queries(self, served: Served, queries: pl.DataFrame, folder: Path, request: Request | None) -> None:
        """Write `queries.jsonl`: qid, text, terms, and the body of the request of a translation if there is one.

        Args:
            served: the documents.
            queries: see `Served.queries`.
            folder: folder of the export.
            request: see `Translation`; None for a format of several engines.
        """
        with disk.create_text(folder / "queries.jsonl") as file:
            for query in served.with_terms(queries):
                named = {name: query[name] for name in ("qid", "text", "terms")}
                write_line(file, named | ({} if request is None else {"request": request(query)}))

    def connect(self, address: str) -> OpenCollection:
        """Connect to a collection that was loaded from an export.

        Args:
            address: path, or URL with the name of the collection.

        Raises:
            InputError: the engine cannot be reached, or has no such collection.
            HybridError: its client is not installed.
        """
        raise option_error("engine", address, "a format of several engines; name one of them", code="unknown-choice")

    @abstractmethod
    def translate(self, fusion: Fusion) -> Translation | None:
        """Return a fusion in the words of the engine; None for a format of several engines.

        Raises:
            InputError: the engine has nothing near the fusion.
        """


# -------------------------------------------------------------------------------------------------------------- tables

TIES = "Documents with equal scores in a list may have other ranks there, and others of them are cut off."
_PASSAGES = 10  # asked for per document


class Parquet(Engine):
    """`documents.parquet`, `terms.parquet` and `queries.parquet`, which many tools read."""

    name = "parquet"
    lexical = "values"

    def write(self, served: Served, folder: Path, advance: Advance) -> None:
        """See `Engine`."""
        writer = None
        with disk.create(folder / "documents.parquet") as file, ExitStack() as opened:
            for frame in self.frames(served):
                table = frame.to_arrow()
                schema = pa.schema([(column.name, _plain(column.type)) for column in table.schema])
                if writer is None:
                    writer = opened.enter_context(pq.ParquetWriter(file, schema, compression="zstd"))
                writer.write_table(table.cast(schema))
                advance(len(frame))
        with disk.create(folder / "terms.parquet") as file:
            pl.DataFrame({"term": served.terms}).with_row_index("id").write_parquet(file)

    def frames(self, served: Served) -> Iterator[pl.DataFrame]:
        """Yield the documents with the columns of the table."""
        return served.documents()

    def write_queries(self, served: Served, queries: pl.DataFrame, folder: Path, request: Request | None) -> None:
        """Write `queries.parquet`."""
        with disk.create(folder / "queries.parquet") as file:
            queries.write_parquet(file)

    def translate(self, fusion: Fusion) -> Translation | None:
        """See `Engine`."""
        return None


class Tables(Parquet):
    """Tables, a script that loads them, and one that asks the queries."""

    write_queries = Engine.write_queries

    def write(self, served: Served, folder: Path, advance: Advance) -> None:
        """See `Engine`."""
        for name, text in self.scripts(served).items():
            disk.write_text(folder / name, text)
        super().write(served, folder, advance)

    @abstractmethod
    def scripts(self, served: Served) -> Mapping[str, str]:
        """Return name -> text of the scripts."""


def hits_of(fusion: Fusion) -> int:
    """Return the number of hits that a request asks for: several passages for each document."""
    return fusion.hits if fusion.group == NO_GROUPS else _PASSAGES * fusion.hits


def _plain(kind: pa.DataType) -> pa.DataType:
    """Return a type with 32-bit offsets, which every reader knows."""
    if pa.types.is_large_list(kind):
        return pa.list_(_plain(kind.value_type))
    return pa.string() if pa.types.is_large_string(kind) or pa.types.is_string_view(kind) else kind


# ------------------------------------------------------------------------------------------------------------ registry


def as_engine(name: str, added: Any) -> type[Engine]:
    """Return the class of an engine of a plugin.

    Raises:
        ValueError: another object, or the class has another name.
    """
    if not isinstance(added, type) or not issubclass(added, Engine):
        raise ValueError("it is no subclass of `hybrid_cli.exports.engine.Engine`")
    if getattr(added, "name", None) != name:
        raise ValueError(f"{added.__name__} needs `name = {name!r}`")
    return added


ENGINES: Registry[type[Engine]] = Registry(
    "engines",
    {
        "opensearch": Lazy("hybrid_cli.exports.lucene:OpenSearch"),
        "elasticsearch": Lazy("hybrid_cli.exports.lucene:Elasticsearch"),
        "qdrant": Lazy("hybrid_cli.exports.qdrant:Qdrant"),
        "parquet": Parquet,
    },
    as_engine,
)


# ---------------------------------------------------------------------------------------------------- nearest fusion

Kind = Literal["sum", "minmax", "l2", "zscore", "dbsf", "rrf"]  # of a fusion: weighted sums of what
_NEAR: Mapping[str, Sequence[Kind]] = {  # normalization -> kinds, the nearest first
    "none": ("sum", "minmax", "rrf"),
    "l2": ("l2", "minmax", "dbsf", "rrf"),
    "zscore": ("zscore", "minmax", "dbsf", "rrf"),
    "dbsf": ("dbsf", "zscore", "minmax", "rrf"),
    **dict.fromkeys(("minmax", "max", "sum", "log-odds"), ("minmax", "dbsf", "rrf")),
    **dict.fromkeys(("rrf", "rank", "borda", "isr", "rbc"), ("rrf",)),
}
_RULES = {  # other rules than the weighted sum
    "combmnz": "multiplies the sum by the number of lists with the document",
    "isr": "multiplies the sum by the number of lists with the document",
    "combanz": "divides the sum by the weights of the lists with the document",
    "combmax": "takes the largest value",
    "combmin": "takes the smallest value",
    "combmed": "takes the median",
    "log-odds": "adds the log-odds of probabilities",
}


@dataclass(frozen=True)
class Nearest:
    """A kind of fusion that an engine has.

    Attributes:
        kind: weighted sum of what.
        weights: one per field; they sum to 1 unless `kind` is `sum`.
        constant: constant of reciprocal rank fusion.
        depth: hits of each field that are fused.
        differences: what the kind does differently from the fusion, one sentence each.
    """

    kind: Kind
    weights: tuple[float, ...]
    constant: int
    depth: int
    differences: tuple[str, ...]


def nearest(
    fusion: Fusion, kinds: Sequence[Kind], engine: str, missing: Missing = "zero", deepest: int | None = None
) -> Nearest:
    """Return the kind of fusion of an engine that is nearest to a fusion.

    Args:
        fusion: fusion of a retriever.
        kinds: kinds that the engine has.
        engine: name of the engine, for messages.
        missing: rule of the engine for documents that a field does not return; sums are exact.
        deepest: most hits of a field that the engine fuses; None for no limit.

    Raises:
        InputError: products, and methods of plugins, have nothing near them.
    """
    recipe, method = fusion.recipe, METHODS[fusion.recipe.method]
    normalization = recipe.normalization or method.normalization
    known = recipe.method in _RULES or method.rule in (weighted_sum, weighted_mean)
    kind = next((near for near in _NEAR.get(normalization, ()) if known and near in kinds), None)
    if kind is None:
        near = [name for name in METHODS if name in _RULES or METHODS[name].rule in (weighted_sum, weighted_mean)]
        reason = f"{engine} has nothing near the fusion method {recipe.method}; tune one of {', '.join(near)}"
        raise option_error("format", engine, reason, code="no-near-fusion", method=recipe.method, choices=near)
    differences = []
    if kind != ("sum" if normalization == "none" else normalization):
        ours = "are raw" if normalization == "none" else f"by {normalization}"
        theirs = {"rrf": "reciprocal ranks", "sum": "nothing"}.get(kind, kind)
        differences.append(f"Scores are normalized by {theirs}; ours {ours}.")
    if recipe.method in _RULES:
        differences.append(f"Values are added; {recipe.method} {_RULES[recipe.method]}.")
    rule: Missing = "exact" if kind == "sum" else missing
    if recipe.missing not in (("zero", "ignore") if rule == "zero" else (rule,)):
        value = "its exact score" if rule == "exact" else "the value 0"
        differences.append(f"A document that a list lacks has {value} there; ours follow the rule `{recipe.missing}`.")
    constant = max(1, round(recipe.rrf_k))
    if kind == "rrf" and normalization == "rrf" and constant != recipe.rrf_k:
        differences.append(f"The constant of the ranks is {constant}; ours is {recipe.rrf_k:g}.")
    depth = fusion.depth if deepest is None else min(fusion.depth, deepest)
    if depth < fusion.depth and kind != "sum":
        differences.append(f"At most {depth:,} hits of each list are fused; ours are {fusion.depth:,}.")
    if fusion.group != NO_GROUPS:
        best = "" if fusion.group == MAX else f", scored by `{fusion.group}` of their passages"
        differences.append(f"Passages are fused, and the best one gives the document; ours fuse documents{best}.")
    total = math.fsum(recipe.weights)
    weights = recipe.weights if kind == "sum" else tuple(weight / total for weight in recipe.weights)
    return Nearest(kind, weights, constant, depth, tuple(differences))
