"""OpenSearch: a bulk file of documents, and an index that computes BM25 as Lucene does.

BM25 is computed by the engine, from a text that its analyzer splits as Anserini's does.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hybrid_cli.errors import option_error
from hybrid_cli.exports.documents import Served, json_rows, write_line
from hybrid_cli.exports.engine import Engine, Fusion, Translation
from hybrid_cli.indexes.shards import Advance
from hybrid_cli.lexical.analysis import ENGLISH
from hybrid_cli.lexical.english import STOP_WORDS
from hybrid_cli.storage import disk


class OpenSearch(Engine):
    """`documents.ndjson` (bulk) and `index.json` (settings and mappings)."""

    lexical = "contents"

    def check(self, served: Served) -> None:
        """Refuse another language than English, and fields besides title and text.

        Raises:
            InputError: see above.
        """
        if others := [name for name in served.fields if name not in ("title", "text")]:
            reason = f"writes titles and texts, the index has the field '{others[0]}'; use parquet or vespa"
            raise option_error("format", "opensearch", reason, code="other-fields", field=others[0])
        if served.lexical.language != ENGLISH:
            reason = f"analyzes English, the index has language {served.lexical.language}; use parquet or vespa"
            raise option_error("format", "opensearch", reason, code="other-language")

    def write(self, served: Served, folder: Path, advance: Advance) -> int:
        """See `Engine`."""
        count = 0
        with disk.create_text(folder / "documents.ndjson") as file:
            for row in json_rows(served.documents(impacts=False)):
                write_line(file, {"index": {"_id": row["docid"]}})
                source = {name: row[name] for name in ("title", "text")}
                source |= {"contents": "\n".join(row[name] for name in served.fields)}
                write_line(file, source | {name: row[name] for name in served.dense})
                count += 1
                advance(1)
        mapping = _opensearch_index(served.lexical.k1, served.lexical.b, served.dims)
        disk.write_text(folder / "index.json", json.dumps(mapping, indent=2) + "\n")
        return count

    def translate(self, fusion: Fusion) -> Translation | None:
        """See `Engine`."""
        return None


def _opensearch_index(k1: float, b: float, dims: Mapping[str, int]) -> dict[str, Any]:
    """Return settings and mappings: one shard, and the analysis chain of Anserini's DefaultEnglishAnalyzer."""
    filters = {
        "possessive": {"type": "stemmer", "language": "possessive_english"},
        "stop_words": {"type": "stop", "stopwords": sorted(STOP_WORDS)},
        "porter": {"type": "porter_stem"},
    }
    chain = {"tokenizer": "standard", "filter": ["possessive", "lowercase", "stop_words", "porter"]}
    fields: dict[str, Any] = {name: {"type": "text", "index": False} for name in ("title", "text")}
    fields["contents"] = {"type": "text", "analyzer": "anserini", "similarity": "bm25"}
    fields |= {name: {"type": "knn_vector", "dimension": dim} for name, dim in dims.items()}
    return {
        "settings": {
            "number_of_shards": 1,
            "similarity": {"bm25": {"type": "BM25", "k1": k1, "b": b}},
            "analysis": {"filter": filters, "analyzer": {"anserini": {"type": "custom", **chain}}},
        },
        "mappings": {"properties": fields},
    }
