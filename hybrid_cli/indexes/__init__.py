"""Dense vectors on disk: shards of vectors, the FAISS index built from them, exact scores of pairs.

A folder of vectors is `vectors/part-*.parquet` (id, vector); a dense index adds `docids.parquet` and `index.faiss`.
The score is always the inner product. Row numbers of the index are those of the shards, in order.
This is the only package that imports FAISS.
"""
