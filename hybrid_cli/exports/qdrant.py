"""Qdrant: named vectors of a collection, and a formula over nested prefetches."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from hybrid_cli.errors import require_packages
from hybrid_cli.exports import engine
from hybrid_cli.exports.documents import Served
from hybrid_cli.fusion.methods import Transform, dbsf, reciprocal_rank
from hybrid_cli.http_client import KEY_VARIABLE

if TYPE_CHECKING:
    from qdrant_client import QdrantClient

_LOAD = '''\
"""Load documents.parquet into Qdrant: python load.py FOLDER|URL"""

import sys
from pathlib import Path

import pyarrow.parquet as pq
from qdrant_client import QdrantClient, models

VECTORS = {vectors}  # dimensions
target = sys.argv[1]
client = QdrantClient(url=target) if "://" in target else QdrantClient(path=target)
client.create_collection(
    "documents",
    vectors_config={{
        name: models.VectorParams(size=size, distance=models.Distance.DOT) for name, size in VECTORS.items()
    }},
    sparse_vectors_config={{"bm25": models.SparseVectorParams()}},
)
count = 0
for batch in pq.ParquetFile(Path(__file__).parent / "documents.parquet").iter_batches(256):
    points = []
    for document in batch.to_pylist():
        vectors = {{name: document.pop(name) for name in VECTORS}}
        sparse = models.SparseVector(indices=document.pop("indices"), values=document.pop("values"))
        vectors |= {{"bm25": sparse}} if sparse.indices else {{}}
        points.append(models.PointStruct(id=count, payload=document, vector=vectors))
        count += 1
    client.upsert("documents", points)
print(count, "documents")
client.close()
'''
_ASK = '''\
"""Ask Qdrant the queries of queries.jsonl: python ask.py FOLDER|URL"""

import json
import sys
from pathlib import Path

from qdrant_client import QdrantClient, models

target = sys.argv[1]
client = QdrantClient(url=target) if "://" in target else QdrantClient(path=target)
for line in (Path(__file__).parent / "queries.jsonl").open(encoding="utf-8"):
    query = json.loads(line)
    request = models.QueryRequest(**query["request"])  # also the body of POST /collections/documents/points/query
    answer = client.query_points(
        "documents", prefetch=request.prefetch, query=request.query, limit=request.limit, with_payload=["docid"]
    )
    for rank, point in enumerate(answer.points, 1):
        print(query["qid"], point.payload["docid"], rank, point.score, sep="\\t")
client.close()
'''


class Qdrant(engine.Tables):
    """Qdrant: tables for `load.py`, which creates the collection, and a formula over nested prefetches."""

    name = "qdrant"
    lexical = "bm25"
    ran = True
    request: ClassVar[Mapping[str, Any]] = {"query": "{vector}", "using": "vector"}  # the name in an export
    envelope: ClassVar[Mapping[str, Any]] = {"limit": "{hits}"}
    limits = engine.Limits(document_bytes=32_000_000, dimensions=65_536, json=True)  # of a request: 32 MB

    def scripts(self, served: Served) -> Mapping[str, str]:
        """See `Tables`."""
        return {"load.py": _LOAD.format(vectors=served.dims), "ask.py": _ASK}

    def translate(self, fusion: engine.Fusion) -> engine.Translation:
        """See `Engine`."""
        near = engine.nearest(fusion, ("sum", "dbsf", "rrf"), self.name)
        of_list: dict[str, dict[str, Any]] = {"rrf": {"rrf": {"k": near.constant + 1}}, "dbsf": {"fusion": "dbsf"}}
        inner = of_list.get(near.kind)
        depth = fusion.documents if inner is None else near.depth  # a sum is exact over all documents
        values: Transform = dbsf if near.kind == "dbsf" else partial(reciprocal_rank, k=near.constant)
        return engine.Translation(
            "weighted sum of scores" if inner is None else f"weighted sum of {near.kind} of each list",
            lambda query: _request(fusion, near, inner, depth, query),
            engine.Formula(near.weights)
            if inner is None
            else engine.Formula(near.weights, (values,) * len(near.weights), near.depth),
            differences=[*near.differences, *([] if inner is None else [engine.TIES])],
            load="pip install 'qdrant-client>=1.16' pyarrow\npython load.py FOLDER  # or the URL of a server",
            ask="python ask.py FOLDER",
        )

    def connect(self, address: str) -> engine.OpenCollection:
        """See `Engine`."""
        return _Collection(address, self.timeout)


def _request(
    fusion: engine.Fusion, near: engine.Nearest, inner: dict[str, Any] | None, depth: int, query: engine.Query
) -> dict[str, Any]:
    """Return the body of `query points`.

    Args:
        fusion: the fusion.
        near: weights.
        inner: fusion query of one list alone, which gives the normalized scores; None for raw scores.
        depth: hits of each list.
        query: the query; without known terms, only vectors are asked for.
    """
    lists: list[dict[str, Any]] = []
    terms = []
    for each, weight in zip(fusion.fields, near.weights, strict=True):
        vector = query[each.name] if each.dim else {"indices": query["indices"], "values": query["values"]}
        if each.dim is None and not len(query["indices"]):
            continue
        one = {"query": vector, "using": each.name, "limit": depth}
        terms.append({"mult": [weight, f"$score[{len(lists)}]"]})
        lists.append(one if inner is None else {"prefetch": [one], "query": inner, "limit": depth})
    defaults = {f"$score[{number}]": 0.0 for number in range(len(lists))}
    formula = {"formula": {"sum": terms}, "defaults": defaults}
    return {"prefetch": lists, "query": formula, "limit": engine.hits_of(fusion), "with_payload": ["docid", "title"]}


class _Collection:
    """A collection in a folder of Qdrant's local mode, or on a server."""

    def __init__(self, address: str, timeout: float):
        with require_packages():
            import qdrant_client
        (self.address, self.name), self._timeout = engine.collection_in(address), math.ceil(timeout)
        self._client: QdrantClient = self._opened(qdrant_client)
        if not self._asked(lambda: self._client.collection_exists(self.name)):
            self.close()  # a folder has one client at a time
            raise engine.no_collection("qdrant", address, self.name)

    def _opened(self, library: Any) -> QdrantClient:
        if "://" in self.address:
            how = {"timeout": self._timeout, "check_compatibility": False, "api_key": os.environ.get(KEY_VARIABLE)}
            return library.QdrantClient(url=self.address, **how)  # type: ignore[no-any-return]
        if not Path(self.address, "meta.json").is_file():
            raise engine.unreachable("qdrant", self.address, "no folder of Qdrant's local mode")
        return self._asked(lambda: library.QdrantClient(path=self.address))  # type: ignore[no-any-return]

    def _asked(self, call: Any) -> Any:
        from qdrant_client.http.exceptions import ResponseHandlingException, UnexpectedResponse

        try:
            return call()
        except ResponseHandlingException as error:
            raise engine.unreachable("qdrant", self.address, engine.one_line(error)) from None
        except (UnexpectedResponse, RuntimeError, ValueError) as error:  # such as a feature of a later version
            raise engine.refusal("qdrant", self.address, engine.one_line(error)) from None

    def count(self) -> int:
        """See `OpenCollection`."""
        return int(self._asked(lambda: self._client.count(self.name, exact=True)).count)

    def search(self, request: Any) -> list[tuple[str, float]]:
        """See `OpenCollection`."""
        from qdrant_client import models

        def call() -> Any:
            body = models.QueryRequest(**request)
            how: dict[str, Any] = {"using": body.using, "query_filter": body.filter, "search_params": body.params}
            how |= {"prefetch": body.prefetch, "limit": body.limit or 10, "with_payload": ["docid"]}
            return self._client.query_points(self.name, query=body.query, **how)

        points = self._asked(call).points
        return [((point.payload or {}).get("docid", point.id), point.score) for point in points]

    def close(self) -> None:
        """See `OpenCollection`."""
        self._client.close()
