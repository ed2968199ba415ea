"""LanceDB, as a plugin: its own BM25 over terms that are analyzed here, and its rerankers.

pip install 'lancedb>=0.30'
hybrid export out/retriever --plugin lancedb.py --format lancedb --collection data/mine --split test --output out/lance
python out/lance/load.py out/lance-data
hybrid inspect out/retriever --verify --plugin lancedb.py --engine lancedb:out/lance-data --split test
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl

from hybrid_cli import plugins
from hybrid_cli.errors import option_error, require_packages
from hybrid_cli.exports.documents import Served
from hybrid_cli.exports.engine import (
    NAME,
    TIES,
    Formula,
    Fusion,
    OpenCollection,
    Query,
    Tables,
    Translation,
    hits_of,
    nearest,
    no_collection,
    one_line,
    refusal,
    unreachable,
)
from hybrid_cli.fusion.methods import Transform, minmax, reciprocal_rank
from hybrid_cli.lexical import analyze

TERMS = "terms"  # column: the analyzed terms of a document
_BM25 = "LanceDB computes BM25 itself, with k1 = 1.2 and b = 0.75; the loss is measured with ours."
_NO_WEIGHTS = "Weights are not used."
_LOAD = '''\
"""Load documents.parquet into LanceDB: python load.py FOLDER"""

import sys
from pathlib import Path

import lancedb
import pyarrow as pa
import pyarrow.parquet as pq
from lancedb.index import FTS

VECTORS = {vectors}  # dimensions
file = pq.ParquetFile(Path(__file__).parent / "documents.parquet")
schema = pa.schema(
    [pa.field(each.name, pa.list_(pa.float32(), VECTORS[each.name])) if each.name in VECTORS else each
     for each in file.schema_arrow]
)
batches = (pa.Table.from_batches([batch]).cast(schema).to_batches()[0] for batch in file.iter_batches(2048))
table = lancedb.connect(sys.argv[1]).create_table("documents", batches, schema=schema)
terms = FTS(base_tokenizer="whitespace", lower_case=False, stem=False, remove_stop_words=False, ascii_folding=False)
table.create_index("terms", config=terms)
print(table.count_rows(), "documents")
'''
_ASK = '''\
"""Ask LanceDB the queries of queries.jsonl: python ask.py FOLDER"""

import json
import os
import sys
from pathlib import Path

os.environ.setdefault("LANCEDB_LOG", "error")  # no warning for every search
import lancedb
from lancedb.rerankers import LinearCombinationReranker, RRFReranker

table = lancedb.connect(sys.argv[1]).open_table("documents")
for line in (Path(__file__).parent / "queries.jsonl").open(encoding="utf-8"):
    query = json.loads(line)
    request = query["request"]
    search = table.search(query_type="hybrid", vector_column_name=request["column"], fts_columns="terms")
    search = search.vector(request["vector"]).text(request["terms"]).distance_type("dot")
    weight, constant = request.get("weight"), request.get("K")
    reranker = LinearCombinationReranker(weight) if constant is None else RRFReranker(constant)
    hits = search.rerank(reranker).limit(request["candidates"]).select(["docid"]).to_list()
    for rank, hit in enumerate(hits[: request["limit"]], 1):
        print(query["qid"], hit["docid"], rank, hit["_relevance_score"], sep="\\t")
'''


@plugins.register("engines", "lancedb")
class LanceDB(Tables):
    """LanceDB: tables for `load.py`, which creates the table and its index of terms."""

    name = "lancedb"
    lexical = TERMS

    def check(self, served: Served) -> None:
        """Refuse several dense indexes, and fields besides title and text.

        Raises:
            InputError: see above.
        """
        if len(served.dense) != 1:
            reason = f"a hybrid search has one vector, there are {len(served.dense)} dense indexes"
            raise option_error("format", self.name, reason, code="number-of-indexes", expected=1)
        if others := [name for name in served.fields if name not in ("title", "text")]:
            reason = f"writes titles and texts, the index has the field '{others[0]}'; use qdrant"
            raise option_error("format", self.name, reason, code="other-fields", field=others[0])

    def scripts(self, served: Served) -> Mapping[str, str]:
        """See `Tables`."""
        return {"load.py": _LOAD.format(vectors=served.dims), "ask.py": _ASK}

    def frames(self, served: Served) -> Iterator[pl.DataFrame]:
        """See `Parquet`."""
        for frame in served.documents(impacts=False):
            texts = ["\n".join(row[name] for name in served.fields) for row in frame.iter_rows(named=True)]
            terms = map(" ".join, analyze(texts, served.lexical.language))
            yield frame.with_columns(pl.Series(TERMS, list(terms), dtype=pl.String))

    def translate(self, fusion: Fusion) -> Translation:
        """See `Engine`."""
        raw = fusion.recipe.sums_raw_scores
        if raw and fusion.shares is not None:
            fusion = replace(fusion, recipe=replace(fusion.recipe, weights=fusion.shares))
        near = nearest(fusion, ("rrf",) if raw and fusion.shares is None else ("minmax", "rrf"), self.name)
        number = next(number for number, each in enumerate(fusion.fields) if each.dim)
        differences = [_BM25, *near.differences]
        values: Transform
        if near.kind == "minmax":
            ranker: dict[str, Any] = {"weight": near.weights[number]}
            weights, values = near.weights, minmax
        else:
            ranker = {"K": near.constant}
            weights, values = (1.0, 1.0), partial(reciprocal_rank, k=near.constant)
            differences += [TIES, *([_NO_WEIGHTS] if len(set(near.weights)) > 1 else [])]

        def request(query: Query) -> dict[str, Any]:
            name = fusion.dense[0].name
            terms = " ".join(word for words in analyze([query["text"]], fusion.language) for word in words)
            limits = {"candidates": near.depth, "limit": hits_of(fusion)}
            return {"column": name, "vector": query[name], "terms": terms or "-", **ranker, **limits}

        return Translation(
            "LinearCombinationReranker" if near.kind == "minmax" else "RRFReranker",
            request,
            Formula(weights, (values,) * len(weights), near.depth),
            differences=differences,
            load="pip install 'lancedb>=0.30'\npython load.py FOLDER",
            ask="python ask.py FOLDER",
        )

    def connect(self, address: str) -> OpenCollection:
        """See `Engine`."""
        return _Table(address)


class _Table:
    """A table in a folder of LanceDB."""

    def __init__(self, address: str):
        os.environ.setdefault("LANCEDB_LOG", "error")  # a warning for every search, read at the import
        with require_packages():
            import lancedb
        self.address = address
        if not Path(address).is_dir():
            raise unreachable("lancedb", address, "no such folder")
        try:
            self._table = lancedb.connect(address).open_table(NAME)
        except (ValueError, RuntimeError, OSError):
            raise no_collection("lancedb", address, NAME) from None

    def count(self) -> int:
        """See `OpenCollection`."""
        return int(self._table.count_rows())

    def search(self, request: Mapping[str, Any]) -> list[tuple[str, float]]:
        """See `OpenCollection`."""
        from lancedb.rerankers import LinearCombinationReranker, RRFReranker

        ranker = RRFReranker(request["K"]) if "K" in request else LinearCombinationReranker(request["weight"])
        try:
            search: Any = self._table.search(
                query_type="hybrid", vector_column_name=request["column"], fts_columns=TERMS
            )
            search = search.vector(list(request["vector"])).text(request["terms"]).distance_type("dot").rerank(ranker)
            hits = search.limit(request["candidates"]).select(["docid"]).to_list()
        except (ValueError, RuntimeError, OSError) as error:
            raise refusal("lancedb", self.address, one_line(error)) from None
        return [(hit["docid"], hit["_relevance_score"]) for hit in hits[: request["limit"]]]

    def close(self) -> None:
        """See `OpenCollection`."""
