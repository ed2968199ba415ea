"""Long documents and a short encoder: whole documents, passages on both sides, or passages on the dense side.

    python studies/long_documents.py pages FOLDER /usr/share/man/man1 ...          # documents and queries of man pages
    python studies/long_documents.py NAME=COLLECTION:SPLIT[:PATTERN] ... --output measured/long-documents.parquet
    python studies/long_documents.py --output measured/long-documents.parquet          # prints the table of the page

Keeps the documents of a prepared collection that lose over half of their tokens at the length of MiniLM, and the
queries with a relevant one among them. PATTERN removes the end of the ids of parts, whose texts become one document;
`title` joins the documents of each title.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import polars as pl

from hybrid_cli import BM25, Dense, fuse, open_encoder
from hybrid_cli.collections import collection as collections
from hybrid_cli.collections.source import passages
from hybrid_cli.evaluation.measures import evaluate_queries
from hybrid_cli.evaluation.significance import bootstrap

DOCUMENTS, QUERIES, SEED, DEPTH = 200, 300, 42, 1000
WORDS, LOST = (200, 120), 0.5  # of a passage; share of the tokens of a kept document that is not read
WEIGHTS = (0.4, 0.6)  # of BM25 and the dense side: the best of min-max in default-fusion.md
MEASURE = "nDCG@10"


def long_documents(path: Path, split: str, pattern: str) -> tuple[pl.DataFrame, pl.DataFrame, pl.DataFrame]:
    """Return documents, queries and judgments of the documents that lose over half of their tokens."""
    rows = collections.scan(path).select("docid", "title", "text").collect()
    qrels = collections.read_qrels(collections.qrels_path(path, split)).filter(pl.col("relevance") > 0)
    if pattern:
        rows = rows.filter(pl.col("title") != "")
        whole = pl.col("title") if pattern == "title" else pl.col("docid").str.replace(f"{pattern}$", "")
        parts = rows.with_columns(whole=whole)
        qrels = qrels.join(parts.select("docid", "whole"), on="docid", maintain_order="left").drop("docid")
        qrels = qrels.rename({"whole": "docid"}).unique(["qid", "docid"], maintain_order=True)
        texts = [pl.first("title"), pl.col("text").str.join(" ")]
        rows = parts.drop("docid").group_by(docid="whole", maintain_order=True).agg(texts)
    encoder = open_encoder("minilm")
    lost = [encoder.unread_tokens([title], [text]) for title, text in rows.select("title", "text").iter_rows()]
    rows = rows.with_columns(lost=pl.Series(lost)).filter(pl.col("lost") > LOST)
    rows = rows.sample(min(DOCUMENTS, len(rows)), seed=SEED)
    qrels = qrels.join(rows, on="docid", how="semi")
    queries = collections.read_queries(collections.queries_path(path, split)).select("qid", "text")
    queries = queries.join(qrels, on="qid", how="semi", maintain_order="left")
    queries = queries.sample(min(QUERIES, len(queries)), seed=SEED)
    return rows, queries, qrels.join(queries, on="qid", how="semi")


def divided(rows: pl.DataFrame, words: int) -> pl.DataFrame:
    """Return passages DOCID#NUMBER of a number of words, with the title of their document."""
    parts = rows.select("title", text=pl.col("text").map_elements(lambda text: passages(text, words, words)))
    parts = parts.with_columns(docid=rows["docid"]).explode("text")
    number = pl.int_range(pl.len()).over("docid").cast(pl.String)
    return parts.with_columns(docid=pl.format("{}#{}", "docid", number))


def best_passages(run: pl.DataFrame) -> pl.DataFrame:
    """Return documents with the score of their best passage."""
    whole = run.with_columns(pl.col("docid").str.replace(r"#\d+$", ""))
    return whole.group_by("qid", "docid", maintain_order=True).agg(pl.max("score"))


def study(name: str, path: Path, split: str, pattern: str) -> Iterator[dict[str, object]]:
    """Yield the value of each query for each system."""
    rows, queries, qrels = long_documents(path, split, pattern)
    texts = {"whole": rows} | {f"{words} words": divided(rows, words) for words in WORDS}
    encoder = open_encoder("minilm")
    runs: dict[str, pl.DataFrame] = {}
    for kind, documents in texts.items():
        unread = encoder.unread_tokens(documents["title"].to_list(), documents["text"].to_list())
        print(f"{name}, {kind}: {len(documents):,} texts, {unread:.0%} unread, {len(queries)} queries", flush=True)
        for side, index in (("bm25", BM25()), ("dense", Dense(encoder))):
            hits = index.index(documents.select("docid", "title", "text")).search(queries, DEPTH)
            runs[f"{side}, {kind}"] = hits if kind == "whole" else best_passages(hits)
    for lexical in texts:
        for dense in texts:
            if lexical in ("whole", dense):
                both = {"bm25": runs[f"bm25, {lexical}"], "dense": runs[f"dense, {dense}"]}
                runs[f"hybrid, {lexical} and {dense}"] = fuse(both, method="minmax", weights=WEIGHTS)
    for system, run in runs.items():
        for row in evaluate_queries(run, qrels, [MEASURE]).iter_rows(named=True):
            yield {"collection": name, "system": system, "qid": row["qid"], "value": row["value"]}


def table(file: Path) -> Iterator[str]:
    """Yield the table of the page: means, and differences to the hybrid of whole documents with 95% intervals."""
    values = pl.read_parquet(file)
    base = "hybrid, whole and whole"
    names = values["collection"].unique(maintain_order=True).to_list()
    yield f"| System | {' | '.join(names)} |"
    yield f"|---|{'---|' * len(names)}"
    for system in values["system"].unique(maintain_order=True).to_list():
        cells = []
        for name in names:
            wide = values.filter(collection=name).pivot(on="system", index="qid", values="value")
            cell = f"{wide[system].mean():.3f}"
            if system.startswith("hybrid") and system != base:
                gains = (wide[system] - wide[base]).to_numpy()
                low, high = bootstrap(gains[:, None], 1000, 0.95, SEED)
                cell += f" ({gains.mean():+.3f}, {low[0]:+.3f} to {high[0]:+.3f})"
            cells.append(cell.replace("0.", "."))
        yield f"| {system} | {' | '.join(cells)} |"


def manual_pages(folder: Path, *sources: Path) -> None:
    """Write documents, queries and judgments of man pages: the description in NAME finds the rest of the page.

    The generated pages of gcloud, which differ in a few words, are left out.
    """
    files = sorted(path for source in sources for path in source.iterdir() if not path.is_symlink())
    lines: dict[str, list[str]] = {"docs.jsonl": [], "queries.tsv": [], "qrels.tsv": []}
    for path in files:
        if path.name.startswith("gcloud"):
            continue
        done = subprocess.run(["man", "--nh", "-P", "cat", path], capture_output=True, text=True, check=False)
        head, _, text = done.stdout.partition("\nSYNOPSIS")
        title, dash, query = " ".join(head.partition("\nNAME")[2].split()).partition(" - ")
        if dash and text and 3 <= len(query.split()) <= 30:
            docid = path.name.removesuffix(".gz")
            lines["docs.jsonl"].append(json.dumps({"id": docid, "title": title, "text": text}))
            lines["queries.tsv"].append(f"q-{docid}\t{query}")
            lines["qrels.tsv"].append(f"q-{docid}\t{docid}\t1")
    folder.mkdir(parents=True, exist_ok=True)
    for name, rows in lines.items():
        (folder / name).write_text("\n".join(rows) + "\n")


def main() -> None:
    """Measure the given collections."""
    if sys.argv[1:2] == ["pages"]:
        manual_pages(*map(Path, sys.argv[2:]))
        return
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("collections", nargs="*", metavar="NAME=COLLECTION:SPLIT[:PATTERN]")
    parser.add_argument("--output", type=Path, required=True)
    options = parser.parse_args()
    values: list[dict[str, object]] = []
    for given in options.collections:
        name, _, rest = given.partition("=")
        path, split, pattern = (*rest.split(":"), "")[:3]
        values += study(name, Path(path), split, pattern)
        pl.DataFrame(values).write_parquet(options.output)
    print("\n".join(table(options.output)))


if __name__ == "__main__":
    main()
