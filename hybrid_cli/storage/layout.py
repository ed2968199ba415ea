"""Names of all files and folders inside artifacts."""

from __future__ import annotations

PARTS = "part-*.parquet"

# collection
CORPUS_FILE = "corpus.parquet"
CORPUS_FOLDER = "corpus"  # folder of parts, for large collections

# lexical index; `DOCIDS` also of a dense index
LUCENE = "lucene"
LUCENE_ADDED = ".added"  # Lucene index of the documents that are added to an index
IMPACTS = "impacts"
CHECKSUMS = "checksums.npy"  # of postings
TERMS = "terms.parquet"  # also of a static encoder
POSITIONS = "positions.npy"
DOCIDS = "docids.parquet"
SHARDS = "shard-*"  # folders of a sharded lexical index
COLLECTION_DF, COLLECTION = "collection_df.npy", "collection.npy"  # of a shard: statistics over all shards
PARAMETERS = "bm25.json"
WEIGHT_SHARDS = ".weights"  # learned weights of documents during the build

# dense index
VECTORS = "vectors"
FAISS_INDEX = "index.faiss"
INDEX_ENCODER = "encoder"  # the combined encoder that made the index

# teacher labels
LABELS = "labels"

# encoder
CONTRACT = "encoder.json"
MODULES = "modules.json"  # files of sentence-transformers
LIBRARY_CONFIG = "config_sentence_transformers.json"
WEIGHTS = "model.safetensors"
STATIC_TABLES = "tables.safetensors"
CONDENSER_HEAD = "condenser_head.safetensors"
GATE = "gate.safetensors"  # of SparTerm
ADAPTER_CONFIG, ADAPTER_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"  # in peft's form
BASE_MODEL, ADAPTER_HEADS = "base_model.json", "heads.safetensors"  # of an adapter
IDF_TABLE = "idf.json"  # weights of word pieces in queries
LEXICAL_PROJECTION = "lexical_projection.json"
COMBINATION_PARTS = ("part-1", "part-2")
PAIR_SIDES = ("queries", "documents")
CURVE = "curve.parquet"
EPOCHS = "epochs"  # models after each epoch
TRACKING = "tracking"  # files of experiment trackers, which tools of others may change

# reranker
RERANKER = "reranker.json"

# retriever
RETRIEVER = "retriever.json"

# unfinished reranked runs, and trainings with a reranker as teacher
SCORES = ".scores"  # shards of scores


# unfinished encoder
CHECKPOINT = ".checkpoint"
BEST_WEIGHTS = ".best-{}.safetensors"  # of a step
OPTIMIZER, STATE, CHECKSUM = "optimizer.pt", "state.json", "checksum"  # in a checkpoint
DOCUMENT_IMPACTS = ".impacts"  # of all documents, by document
IMPACT_ENDS, IMPACT_TERMS, IMPACT_VALUES = "ends.npy", "terms.bin", "values.bin"  # in `DOCUMENT_IMPACTS`
TEXTS = ".texts.arrow"
REFRESHED = ".refreshed"  # hits of the model in training, by step
SCORED = ".scored.parquet"  # examples with the scores of a teacher
FROZEN = ".frozen"  # vectors of frozen encoders

# several attacked query files
ATTACKS = "meta.json"


def part(number: int) -> str:
    """Return the name of a part of a large table."""
    return f"part-{number:05d}.parquet"


def run_of(depth: int) -> str:
    """Return the name of the run with `depth` rescored hits per query."""
    return f"depth-{depth}.parquet"


def shard(number: int) -> str:
    """Return the name of a shard of a lexical index."""
    return f"shard-{number:05d}"
