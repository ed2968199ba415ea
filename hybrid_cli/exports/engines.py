"""The search engines that `export` writes for."""

from __future__ import annotations

from collections.abc import Mapping

from hybrid_cli.exports.elasticsearch import Elasticsearch
from hybrid_cli.exports.engine import Engine
from hybrid_cli.exports.lance import LanceDB
from hybrid_cli.exports.milvus import Milvus
from hybrid_cli.exports.opensearch import OpenSearch
from hybrid_cli.exports.parquet import Parquet
from hybrid_cli.exports.qdrant import Qdrant
from hybrid_cli.exports.vespa import Vespa

ENGINES: Mapping[str, Engine] = {  # names: `settings.analysis.ENGINES`
    "opensearch": OpenSearch(),
    "elasticsearch": Elasticsearch(),
    "vespa": Vespa(),
    "qdrant": Qdrant(),
    "milvus": Milvus(),
    "lancedb": LanceDB(),
    "parquet": Parquet(),
}
