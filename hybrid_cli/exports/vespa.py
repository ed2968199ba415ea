"""Vespa: a feed of documents, and a schema with a rank profile."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from hybrid_cli.exports.documents import Served, json_rows, write_line
from hybrid_cli.exports.engine import Engine, Fusion, Translation
from hybrid_cli.indexes.shards import Advance
from hybrid_cli.storage import disk


class Vespa(Engine):
    """`documents.jsonl` (feed) and `document.sd` (schema)."""

    lexical = "impacts"

    def write(self, served: Served, folder: Path, advance: Advance) -> int:
        """See `Engine`."""
        terms, count = served.terms.to_list(), 0
        with disk.create_text(folder / "documents.jsonl") as file:
            for row in json_rows(served.documents()):
                impacts = {terms[at]: value for at, value in zip(row["indices"], row["values"], strict=True)}
                fields = {name: row[name] for name in ("docid", "title", "text")} | {"impacts": impacts}
                fields |= {name: row[name] for name in served.dense}
                write_line(file, {"put": f"id:hybrid:document::{row['docid']}", "fields": fields})
                count += 1
                advance(1)
        disk.write_text(folder / "document.sd", _vespa_schema(served.dims))
        return count

    def translate(self, fusion: Fusion) -> Translation | None:
        """See `Engine`."""
        return None


def _vespa_schema(dims: Mapping[str, int]) -> str:
    """Return the schema, with a rank profile for the weighted sum of BM25 and the inner products.

    Args:
        dims: field name -> dimensions of its vectors.
    """
    types = {name: f"tensor<float>(x[{dim}])" for name, dim in dims.items()}
    fields = {
        "docid": ("string", "summary | attribute"),
        "title": ("string", "summary"),
        "text": ("string", "summary"),
        "impacts": ("tensor<float>(term{})", "attribute"),
        **{name: (kind, "attribute") for name, kind in types.items()},
    }
    lines = [f"        field {name} type {kind} {{ indexing: {how} }}" for name, (kind, how) in fields.items()]
    inputs = ["query(terms) tensor<float>(term{})", "query(weight) double: 1.0"]
    score = "query(weight) * sum(query(terms) * attribute(impacts))"
    for name, kind in types.items():
        inputs.append(f"query({name}) {kind}")
        score += f" + sum(query({name}) * attribute({name}))"
    return "\n".join(
        [
            "schema document {",
            "    document document {",
            *lines,
            "    }",
            "    rank-profile hybrid {",
            "        inputs {",
            *(f"            {input_line}" for input_line in inputs),
            "        }",
            "        first-phase {",
            f"            expression: {score}",
            "        }",
            "    }",
            "}",
            "",
        ]
    )
