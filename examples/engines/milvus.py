"""Milvus, as a plugin: a field of sparse vectors with metric IP, and the rankers of `hybrid_search`.

pip install 'pymilvus>=2.5' milvus-lite
hybrid export out/retriever --plugin milvus.py --format milvus --collection data/mine --split test --output out/milvus
python out/milvus/load.py out/milvus.db
hybrid inspect out/retriever --verify --plugin milvus.py --engine milvus:out/milvus.db --split test
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hybrid_cli import plugins
from hybrid_cli.errors import package_error, require_packages
from hybrid_cli.exports.documents import Served
from hybrid_cli.exports.engine import (
    TIES,
    TIMEOUT,
    Formula,
    Fusion,
    Limits,
    OpenCollection,
    Query,
    Tables,
    Translation,
    collection_in,
    hits_of,
    nearest,
    no_collection,
    one_line,
    refusal,
    unreachable,
)
from hybrid_cli.fusion.methods import reciprocal_rank

if TYPE_CHECKING:
    from pymilvus import AnnSearchRequest, MilvusClient

DEEPEST = 16_384  # hits of one search
NO_TERM, UNKNOWN = 4_000_000_000, 4_000_000_001  # ids for documents, and queries, without terms: a vector needs one
_LOAD = '''\
"""Load documents.parquet into Milvus: python load.py FILE.db|URL"""

import sys
from pathlib import Path

import pyarrow.parquet as pq
from pymilvus import DataType, MilvusClient

VECTORS = {vectors}  # dimensions
NO_TERM = {no_term}  # a sparse vector must not be empty
client = MilvusClient(sys.argv[1])
schema = client.create_schema(auto_id=False, enable_dynamic_field=True)  # other columns are dynamic fields
index = client.prepare_index_params()
schema.add_field("docid", DataType.VARCHAR, is_primary=True, max_length=65535)
for name, size in VECTORS.items():
    schema.add_field(name, DataType.FLOAT_VECTOR, dim=size)
    index.add_index(name, index_type="FLAT", metric_type="IP")
schema.add_field("bm25", DataType.SPARSE_FLOAT_VECTOR)
index.add_index("bm25", index_type="SPARSE_INVERTED_INDEX", metric_type="IP")
client.create_collection("documents", schema=schema, index_params=index, consistency_level="Strong")
count = 0
for batch in pq.ParquetFile(Path(__file__).parent / "documents.parquet").iter_batches(256):
    rows = [{{name: value for name, value in row.items() if value is not None}} for row in batch.to_pylist()]
    for row in rows:
        row["bm25"] = dict(zip(row.pop("indices"), row.pop("values"))) or {{NO_TERM: 1.0}}
    count += client.insert("documents", rows)["insert_count"]
print(count, "documents")
client.close()
'''
_ASK = '''\
"""Ask Milvus the queries of queries.jsonl: python ask.py FILE.db|URL"""

import json
import sys
from pathlib import Path

from pymilvus import AnnSearchRequest, MilvusClient, RRFRanker, WeightedRanker

client = MilvusClient(sys.argv[1])
client.load_collection("documents")
for line in (Path(__file__).parent / "queries.jsonl").open(encoding="utf-8"):
    query = json.loads(line)
    lists, params = [], query["request"]["rerank"]["params"]
    for search in query["request"]["search"]:
        data = search["data"][0]
        vector = {int(term): count for term, count in data.items()} if isinstance(data, dict) else data
        lists.append(AnnSearchRequest([vector], search["annsField"], {"metric_type": "IP"}, search["limit"]))
    weighted = "weights" in params
    ranker = WeightedRanker(*params["weights"], norm_score=False) if weighted else RRFRanker(params["k"])
    (hits,) = client.hybrid_search("documents", lists, ranker, query["request"]["limit"])
    for rank, hit in enumerate(hits, 1):
        print(query["qid"], hit["docid"], rank, hit["distance"], sep="\\t")
client.close()
'''


@plugins.register("engines", "milvus")
class Milvus(Tables):
    """Milvus: tables for `load.py`, which creates the collection."""

    name = "milvus"
    lexical = "bm25"
    limits = Limits(65_535, 65_535, dimensions=32_768, json=True)

    def scripts(self, served: Served) -> Mapping[str, str]:
        """See `Tables`."""
        return {"load.py": _LOAD.format(vectors=served.dims, no_term=NO_TERM), "ask.py": _ASK}

    def translate(self, fusion: Fusion) -> Translation:
        """See `Engine`."""
        near = nearest(fusion, ("sum", "rrf"), self.name, deepest=DEEPEST)
        differences, count = [*near.differences], len(near.weights)
        if near.kind == "sum":
            depth, largest = min(fusion.documents, DEEPEST), max(near.weights)
            weights = [weight / largest for weight in near.weights]  # at most 1
            ranker: dict[str, Any] = {"strategy": "ws", "params": {"weights": weights, "norm_score": False}}
            formula = Formula(near.weights)
            if depth < fusion.documents:
                differences.append(f"A document that is not among the first {depth:,} of a list counts 0 there.")
        else:
            depth, ranker = near.depth, {"strategy": "rrf", "params": {"k": near.constant}}
            formula = Formula((1.0,) * count, (partial(reciprocal_rank, k=near.constant),) * count, depth)
            differences += [TIES, *(["Weights are not used."] if len(set(near.weights)) > 1 else [])]
        return Translation(
            "WeightedRanker without normalization" if near.kind == "sum" else "RRFRanker",
            lambda query: _request(fusion, depth, ranker, query),
            formula,
            differences=differences,
            load="pip install 'pymilvus>=2.5' milvus-lite pyarrow\npython load.py FILE.db  # or the URL of a server",
            ask="python ask.py FILE.db",
        )

    def connect(self, address: str) -> OpenCollection:
        """See `Engine`."""
        return _Collection(address)


def _request(fusion: Fusion, depth: int, ranker: dict[str, Any], query: Query) -> dict[str, Any]:
    """Return the body of `POST /v2/vectordb/entities/hybrid_search`."""

    def search(name: str, dim: int | None) -> dict[str, Any]:
        vector = query[name] if dim else dict(zip(query["indices"], query["values"], strict=True)) or {UNKNOWN: 1.0}
        return {"data": [vector], "annsField": name, "limit": depth}

    lists = [search(each.name, each.dim) for each in fusion.fields]
    return {
        "collectionName": "documents",
        "search": lists,
        "rerank": ranker,
        "limit": min(hits_of(fusion), depth),
        "outputFields": ["docid", "title"],
    }


class _Collection:
    """A collection in a file of Milvus Lite, or on a server."""

    def __init__(self, address: str):
        with require_packages():
            import pymilvus
        self.address, self.name = collection_in(address)
        if "://" not in address and not Path(address).exists():
            raise unreachable("milvus", address, "no such file")
        self._library = pymilvus
        self._client: MilvusClient = self._asked(lambda: pymilvus.MilvusClient(self.address, timeout=TIMEOUT), True)
        if not self._asked(lambda: self._client.has_collection(self.name)):
            self.close()  # a folder has one client at a time
            raise no_collection("milvus", address, self.name)
        self._asked(lambda: self._client.load_collection(self.name))

    def _asked(self, call: Any, connects: bool = False) -> Any:
        try:
            return call()
        except ImportError:
            raise package_error("milvus_lite") from None
        except (self._library.MilvusException, RuntimeError, ValueError) as error:
            if connects:
                raise unreachable("milvus", self.address, one_line(error)) from None
            raise refusal("milvus", self.address, one_line(error)) from None

    def count(self) -> int:
        """See `OpenCollection`."""
        answer = self._asked(lambda: self._client.query(self.name, filter="", output_fields=["count(*)"]))
        return int(answer[0]["count(*)"])

    def search(self, request: Mapping[str, Any]) -> list[tuple[str, float]]:
        """See `OpenCollection`."""
        lists = [self._list(each) for each in request["search"]]
        params = request["rerank"]["params"]
        ranker = (
            self._library.WeightedRanker(*params["weights"], norm_score=False)
            if "weights" in params
            else self._library.RRFRanker(params["k"])
        )
        answer = self._asked(lambda: self._client.hybrid_search(self.name, lists, ranker, request["limit"]))
        return [(hit["docid"], hit["distance"]) for hit in answer[0]]

    def _list(self, search: Mapping[str, Any]) -> AnnSearchRequest:
        return self._library.AnnSearchRequest(
            search["data"], search["annsField"], {"metric_type": "IP"}, search["limit"]
        )

    def close(self) -> None:
        """See `OpenCollection`."""
        self._client.close()
