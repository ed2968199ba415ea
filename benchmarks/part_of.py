"""A seeded part of a collection that keeps every relevant document of the queries it keeps, as a BEIR folder.

    python benchmarks/part_of.py data/big out/part --queries train=1000,dev=200,test=500 --documents 6000
    hybrid prepare beir out/part --output data/part

Figures on a part are higher than on the whole: fewer documents compete. Compare within it only.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import polars as pl

from hybrid_cli.collections import collection


def main() -> None:
    """Write corpus.jsonl, queries.jsonl and qrels/SPLIT.tsv."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("collection", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--queries", default="train=1000,dev=200,test=500", help="of each split, at most")
    parser.add_argument("--documents", type=int, default=6000, help="in all, if the judged ones are not more")
    parser.add_argument("--seed", type=int, default=42)
    arguments = parser.parse_args()
    (arguments.output / "qrels").mkdir(parents=True, exist_ok=True)
    queries, judged = [], []
    for split, most in (item.split("=") for item in arguments.queries.split(",")):
        qrels = collection.read_qrels(collection.qrels_path(arguments.collection, split))
        qids = qrels["qid"].unique().sort()
        kept = qids.sample(min(int(most), len(qids)), seed=arguments.seed, shuffle=True).implode()
        texts = collection.read_queries(collection.queries_path(arguments.collection, split))
        queries.append(texts.filter(pl.col("qid").is_in(kept)).select(_id="qid", text="text", answers="answers"))
        rows = qrels.filter(pl.col("qid").is_in(kept))
        rows.write_csv(arguments.output / "qrels" / f"{split}.tsv", separator="\t")
        judged.append(rows["docid"])
    needed = pl.concat(judged).unique().sort()
    docids = collection.docids(arguments.collection)
    others = docids.filter(~docids.is_in(needed.implode())).sort()
    more = others.sample(min(len(others), max(0, arguments.documents - len(needed))), seed=arguments.seed)
    texts = collection.texts(arguments.collection, pl.concat([needed, more]))
    texts.rename({"docid": "_id"}).write_ndjson(arguments.output / "corpus.jsonl")
    pl.concat(queries).unique("_id", keep="first", maintain_order=True).write_ndjson(arguments.output / "queries.jsonl")
    print(
        f"{len(texts):,} documents ({len(needed):,} judged), {sum(map(len, queries)):,} queries -> {arguments.output}"
    )


if __name__ == "__main__":
    main()
