"""A small collection with unusual ids, and functions to write and read other collections."""

import json
from pathlib import Path
from typing import Any

from hybrid_cli import artifacts
from hybrid_cli.collections import collection
from hybrid_cli.storage import Kind

AWKWARD_IDS = ["007", "NA", "null", "1e5", "órgãos", "moon landing", "7", "nan", "True", "日本"]
TINY_DOCUMENTS = [
    ("007", "Tides", "The pull of the moon raises two bulges of water in the oceans. As the earth turns, each coast "
     "meets both of them, so that most places see two high tides a day."),
    ("NA", "Sodium", "Sodium is a soft metal that burns with a yellow flame. With chlorine it makes table salt."),
    ("null", "Empty set", "A set without members is called empty. There is only one empty set."),
    ("1e5", "Hundred thousand", "In Roman numerals a hundred thousand is a C under a bar."),
    ("órgãos", "Organs of the body", "The heart pumps blood through the body; the lungs take oxygen from the air."),
    ("moon landing", "Apollo 11", "In July 1969 two astronauts walked on the moon and brought back stones from it."),
    ("hamlet", "Hamlet", "To be, or not to be, that is the question: so begins the best known speech of the play by "
     "William Shakespeare, prince Hamlet's doubts about life and death."),
    ("salt", "Table salt", "Table salt is made of sodium and chlorine. Sea water holds 35 grams of salt in a litre."),
    ("bm25", "Okapi BM25", "BM25 ranks documents by the query terms in each of them, with a weight that saturates with "
     "term frequency and is corrected for document length."),
    ("dense", "Dense retrieval", "Queries and documents become vectors; the nearest vectors are the best documents."),
    ("lungs", "Lungs", "The lungs bring oxygen into the blood and let carbon dioxide out."),
    ("void", "A page without words", ""),
]  # fmt: skip # a document per line
TINY_QUERIES = {
    "train": [
        ("t1", "why are there two high tides a day"),
        ("t2", "what is table salt made of"),
        ("t3", "first people on the moon"),
        ("t4", "how does the heart work"),
        ("t5", "ranking documents with query terms"),
        ("t6", "sets without members"),
    ],
    "test": [
        ("001", "what does the moon do to the oceans"),
        ("002", "salt in sea water"),
        ("003", "oxygen in the blood"),
        ("004", "nearest vectors for a query"),
        ("005", "to be or not to be"),
        ("006", "price of tea in China"),
    ],
}
TINY_JUDGEMENTS = {
    "train": [
        ("t1", "007", 1), ("t2", "salt", 1), ("t2", "NA", 1), ("t3", "moon landing", 1), ("t4", "órgãos", 1),
        ("t5", "bm25", 1), ("t6", "null", 1),
    ],
    "test": [
        ("001", "007", 2), ("001", "moon landing", 0), ("002", "salt", 2), ("002", "NA", 1), ("003", "lungs", 2),
        ("003", "órgãos", 1), ("004", "dense", 1), ("005", "hamlet", 1),
    ],
}  # fmt: skip # several judgments per line


def write_tiny_source(folder: Path) -> None:
    """Write the tiny collection in TREC formats: `docs.jsonl`, `topics.SPLIT.tsv`, `qrels.SPLIT.txt`."""
    records = [{"id": docid, "title": title, "text": text} for docid, title, text in TINY_DOCUMENTS]
    (folder / "docs.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records), "utf-8")
    for split, queries in TINY_QUERIES.items():
        (folder / f"topics.{split}.tsv").write_text("".join(f"{qid}\t{text}\n" for qid, text in queries), "utf-8")
    for split, rows in TINY_JUDGEMENTS.items():
        lines = (f"{qid}\t0\t{docid}\t{relevance}\n" for qid, docid, relevance in rows)
        (folder / f"qrels.{split}.txt").write_text("".join(lines), "utf-8")


def write_lines(path: Path, *rows: object) -> Path:
    """Write one row per line: texts unchanged, anything else as JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    texts = (row if isinstance(row, str) else json.dumps(row) for row in rows)
    path.write_text("".join(text + "\n" for text in texts), "utf-8")
    return path


def corpus_of(path: Path) -> list[tuple[str, str, str]]:
    return [tuple(row.values()) for batch in collection.documents(path) for row in batch.to_pylist()]


def counts_of(path: Path) -> dict[str, Any]:
    return artifacts.read_manifest(path, Kind.COLLECTION).counts
