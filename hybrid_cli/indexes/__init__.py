"""Dense vectors on disk: shards of embeddings, the FAISS index built from them, exact scores of pairs.

A folder of vectors is `vectors/part-*.parquet` (id, vector); a dense index adds `docids.parquet` and `index.faiss`.
The score is the inner product, always. Rows of the index are the rows of the shards, in order.
This is the only package that knows FAISS.
"""

from hybrid_cli.indexes.auto import choose
from hybrid_cli.indexes.build import build, check_recipe
from hybrid_cli.indexes.dense import DenseIndex
from hybrid_cli.indexes.faiss import set_threads
from hybrid_cli.indexes.recall import measure_recall
from hybrid_cli.indexes.shards import read_ids, read_shard, shard_facts, shard_path, shards, share_shard, write_shard
from hybrid_cli.indexes.sizes import footprint

__all__ = [
    "DenseIndex",
    "build",
    "check_recipe",
    "choose",
    "footprint",
    "measure_recall",
    "read_ids",
    "read_shard",
    "set_threads",
    "shard_facts",
    "shard_path",
    "shards",
    "share_shard",
    "write_shard",
]
