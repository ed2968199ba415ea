#!/usr/bin/env bash
# A collection from your own files: documents as JSON lines, tab-separated queries, TREC qrels.
set -euo pipefail
OUT=${OUT:-out/own}
mkdir -p $OUT/source

cat > $OUT/source/documents.jsonl <<'DOCUMENTS'
{"id": "007", "title": "Tides", "text": "The pull of the moon raises two bulges of water in the oceans."}
{"id": "salt", "title": "Table salt", "text": "Table salt is made of sodium and chlorine."}
{"id": "1e5", "title": "Lungs", "text": "The lungs bring oxygen into the blood."}
DOCUMENTS
printf 'q1\twhat does the moon do to the oceans\nq2\twhat is salt made of\n' > $OUT/source/queries.tsv
printf 'q1 0 007 1\nq2 0 salt 1\n' > $OUT/source/qrels.txt

hybrid prepare trec $OUT/source/documents.jsonl --topics test=$OUT/source/queries.tsv --qrels test=$OUT/source/qrels.txt --output $OUT/collection
hybrid index-bm25 $OUT/collection --output $OUT/bm25
hybrid search $OUT/collection --split test --index $OUT/bm25 --hits 10 --output $OUT/bm25.parquet
hybrid evaluate $OUT/collection --split test $OUT/bm25.parquet --measure MRR@10
hybrid search --index $OUT/bm25 --query "sodium"
