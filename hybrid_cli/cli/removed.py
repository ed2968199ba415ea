"""Commands, options and values of options of 0.2.0 that were removed, and what to use instead.

docs/stability.md promises these errors until 1.0, and the changelog names each word.
"""

from __future__ import annotations

from hybrid_cli.errors import InputError

_STREAMING = ["auto", "combine", "concat-runs", "evaluate", "export", "fuse", "inspect", "judge", "label"]
_STREAMING += ["mine-negatives", "report", "rerank", "search"]
_SOURCES = ("beir", "dpr", "files", "irds", "msmarco", "python-docs", "tevatron", "trec")
_TRAINING = ("distill-lite", "pretrain", "train-dense", "train-lambda", "train-reranker", "train-sparse")
# `COMMAND`, `COMMAND --option` or `COMMAND --option VALUE` -> what to use instead; empty if nothing is needed
REMOVED = {
    "append": "hybrid update INDEX --add FILE --output PATH",
    "delete": "hybrid update INDEX --remove IDS --output PATH",
    "presets": "encode --help",
    "auto --minutes": "--max-steps",
    "encode --dtype int8": "--dtype auto",
    "encode --M": "--index-type HNSW32,Flat",
    "encode --ef-construction": "",
    "encode --factory": "--index-type",
    "encode --nlist": "--index-type IVF1024,Flat",
    "encode --pq-bytes": "--index-type PQ16",
    "export --format lancedb": "--format lancedb --plugin examples/engines/lancedb.py",
    "export --format milvus": "--format milvus --plugin examples/engines/milvus.py",
    "export --format vespa": "--format vespa --plugin examples/engines/vespa.py",
    "verify": "inspect --verify",
    "concat-runs --max-per": "--group",
    "index-bm25 --memory": "--shards",
    "index-bm25 --java-heap": "JAVA_TOOL_OPTIONS=-Xmx4g",
    **{f"evaluate --{study}": f"--study {study}" for study in ("aggregate", "over-seeds")},
    "evaluate --robustness": "--study robustness",
    **{f"{command} --measures": "--measure" for command in ("evaluate", "report")},
    **{f"{command} --retriever": f"hybrid {command} RETRIEVER" for command in ("evaluate", "report")},
    "export --tag": "--output NAME.trec",
    "fuse --prior-queries": "",
    "index-bm25 --tune-measure": "--measure",
    "label --drop-own": "",
    "rerank --depths": "--depth",
    "rerank --top-k": "--depth",
    "label --drop-same-text": "",
    "mine-negatives --keep-same-text": "",
    "mine-negatives --num-negatives": "--negatives",
    "prepare msmarco --triples": "--training",
    "prepare python-docs --only": "--package",
    **{f"prepare {source} --pseudo-dev": "--pseudo-sizes dev=N" for source in _SOURCES},
    **{f"prepare {source} --pseudo-train": "--pseudo-sizes train=N" for source in _SOURCES},
    "search --engine matrix-8bit": "--engine matrix",
    "search --impact-bits": "",
    "train-lambda --hard-candidates": "--candidates",
    "train-lambda --sampled-candidates": "--candidates",
    "train-lambda --student-negatives": "--dynamic-negatives",
    "train-sparse --flops-warmup": "",
    **{f"{command} --precision": "--dtype" for command in _TRAINING},
    **{f"{command} --memory": "" for command in _STREAMING},
    **{f"{command} --halve-after": "--schedule halve" for command in _TRAINING},
    **{f"{command} --warmup-steps": "--warmup" for command in _TRAINING},
}


def removed_error(words: str, place: str = "") -> InputError | None:
    """Return the error about a removed command, option or value; None if it was not removed.

    Args:
        words: the words of the command line: `append`, `auto --minutes`, or `export --format milvus`.
        place: path of the config file that has the words.
    """
    if words not in REMOVED:
        return None
    where = f"{place}: " if place else ""
    successor = REMOVED[words]
    instead = f"use `{successor}`" if successor else "leave it out"
    return InputError(f"{where}`{words}` was removed; {instead}", code="removed", words=words, successor=successor)
