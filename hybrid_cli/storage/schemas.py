"""Kinds of artifacts and the schemas of their tables."""

from __future__ import annotations

from enum import StrEnum

import pyarrow as pa


class Kind(StrEnum):
    """Kinds of artifacts; messages use the values as names."""

    COLLECTION = "collection"
    CORPUS = "corpus"
    QUERIES = "queries"
    ATTACKS = "perturbed queries"
    QRELS = "qrels"
    LEXICAL_INDEX = "lexical index"
    SHARDS = "sharded lexical index"
    EXAMPLES = "training examples"
    LABELS = "teacher labels"
    ENCODER = "encoder"
    RERANKER = "reranker"
    DENSE_INDEX = "dense index"
    VECTORS = "vectors"
    RUN = "run"
    RERANKED = "reranked runs"
    MEASUREMENTS = "measurements"
    LEARNING_CURVE = "learning curve"
    WEIGHTS = "fusion weights"
    RETRIEVER = "retriever"
    REPORT = "report"

    @property
    def phrase(self) -> str:
        """Return the name with its article: `a run`, `an encoder`, `training examples`."""
        if self.is_plural:
            return str(self)
        return f"{'an' if self == Kind.ENCODER else 'a'} {self}"

    @property
    def predicate(self) -> str:
        """Return the end of a sentence about an artifact: `is a run`, `holds training examples`."""
        return f"{'holds' if self.is_plural else 'is'} {self.phrase}"

    @property
    def is_plural(self) -> bool:
        """Test whether the name is a plural: `training examples have`, `a run has`."""
        return self in _PLURAL


_PLURAL = {
    Kind.QUERIES,
    Kind.ATTACKS,
    Kind.QRELS,
    Kind.EXAMPLES,
    Kind.LABELS,
    Kind.VECTORS,
    Kind.RERANKED,
    Kind.MEASUREMENTS,
    Kind.WEIGHTS,
}
_NEGATIVE = pa.struct(
    [
        ("docid", pa.string()),
        ("title", pa.string()),
        ("text", pa.string()),
        ("lexical_score", pa.float32()),
        ("source", pa.string()),
        ("teacher_score", pa.float32()),
    ]
)
PROBABILITY = pa.field("probability", pa.float64())  # column of a run of a calibrated retriever
COLUMN_TYPES = {
    "string": pa.string(),
    "int64": pa.int64(),
    "float64": pa.float64(),
    "boolean": pa.bool_(),
    "list": pa.list_(pa.string()),
}  # metadata
SCHEMAS: dict[Kind, pa.Schema] = {
    Kind.CORPUS: pa.schema([("docid", pa.string()), ("title", pa.string()), ("text", pa.string())]),
    Kind.QUERIES: pa.schema([("qid", pa.string()), ("text", pa.string()), ("answers", pa.list_(pa.string()))]),
    Kind.QRELS: pa.schema([("qid", pa.string()), ("docid", pa.string()), ("relevance", pa.int32())]),
    Kind.EXAMPLES: pa.schema(
        [
            ("qid", pa.string()),
            ("query", pa.string()),
            ("docid", pa.string()),
            ("title", pa.string()),
            ("text", pa.string()),
            ("lexical_score", pa.float32()),
            ("teacher_score", pa.float32()),
            ("negatives", pa.list_(_NEGATIVE)),
        ]
    ),
    Kind.LABELS: pa.schema(
        [
            ("qid", pa.string()),
            ("text", pa.string()),
            ("source", pa.string()),
            ("docids", pa.list_(pa.string())),
            ("scores", pa.list_(pa.float32())),
        ]
    ),
    Kind.RUN: pa.schema([("qid", pa.string()), ("docid", pa.string()), ("rank", pa.int32()), ("score", pa.float32())]),
    Kind.MEASUREMENTS: pa.schema(
        [("run", pa.string()), ("measure", pa.string()), ("qid", pa.string()), ("value", pa.float64())]
    ),
    Kind.LEARNING_CURVE: pa.schema([("step", pa.int32()), ("name", pa.string()), ("value", pa.float64())]),
}
