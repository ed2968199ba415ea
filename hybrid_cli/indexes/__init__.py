"""Dense vectors on disk: shards of vectors, the FAISS index built from them, exact scores of pairs.

A folder of vectors is `vectors/part-*.parquet` (id, vector); a dense index adds `docids.parquet` and `index.faiss`.
The score is always the inner product. Row numbers of the index are those of the shards, in order.
This is the only package that imports FAISS.
"""

from hybrid_cli.indexes.auto import RECALL_SAMPLE, choose, footprint, measure_recall
from hybrid_cli.indexes.construction import build, check_recipe
from hybrid_cli.indexes.dense import DenseIndex, IndexInfo
from hybrid_cli.indexes.faiss import set_threads
from hybrid_cli.indexes.shards import (
    read_ids,
    read_shard,
    refuse_lost_vectors,
    shard_facts,
    shard_path,
    shards,
    write_shard,
)

__all__ = [
    "RECALL_SAMPLE",
    "DenseIndex",
    "IndexInfo",
    "build",
    "check_recipe",
    "choose",
    "footprint",
    "measure_recall",
    "read_ids",
    "read_shard",
    "refuse_lost_vectors",
    "set_threads",
    "shard_facts",
    "shard_path",
    "shards",
    "write_shard",
]
