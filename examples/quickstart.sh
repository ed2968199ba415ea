#!/usr/bin/env bash
# The commands of docs/quickstart.md, in the same order. The tests execute this script.
set -euo pipefail

hybrid prepare python-docs --package rich --output data/rich
hybrid index-bm25 data/rich --output out/bm25
hybrid search data/rich --split test --index out/bm25 --output out/bm25.parquet
hybrid mine-negatives data/rich --split train --index out/bm25 --output out/train.parquet
hybrid train-dense out/train.parquet --loss residual-margin --max-steps 2 --batch-size 8 --doc-max-len 64 --output out/clear
hybrid encode data/rich --model out/clear --output out/clear-index
hybrid search data/rich --split test --index out/clear-index --output out/dense.parquet
hybrid fuse out/bm25.parquet out/dense.parquet --method minmax --output out/hybrid.parquet
hybrid evaluate data/rich --split test out/bm25.parquet out/dense.parquet out/hybrid.parquet --measure MRR@10,nDCG@10,R@100
hybrid inspect out/hybrid.parquet
