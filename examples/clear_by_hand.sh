#!/usr/bin/env bash
# CLEAR on any collection made by `hybrid prepare`, one stage per line. docs/methods/clear.md explains the stages.
# Usage (paths without spaces): DATA=data/pydocs OUT=out/by-hand STEPS=200 examples/clear_by_hand.sh
set -euo pipefail
DATA=${DATA:-data/pydocs}
OUT=${OUT:-out/by-hand}
STEPS=${STEPS:-200}
DEV=${DEV:-dev}

hybrid index-bm25 $DATA --output $OUT/bm25
hybrid mine-negatives $DATA --split train --index $OUT/bm25 --output $OUT/train.parquet
hybrid train-dense $OUT/train.parquet --loss residual-margin --max-steps $STEPS --output $OUT/model
hybrid encode $DATA --model $OUT/model --output $OUT/dense
for split in $DEV test; do for index in bm25 dense; do
  hybrid search $DATA --split $split --index $OUT/$index --output $OUT/$index.$split.parquet; done; done
FUSE="--method weighted-sum --missing exact --index $OUT/bm25,$OUT/dense"
hybrid fuse $OUT/bm25.$DEV.parquet $OUT/dense.$DEV.parquet $FUSE --tune --qrels $DATA --split $DEV --output $OUT/weights.json
hybrid fuse $OUT/bm25.test.parquet $OUT/dense.test.parquet $FUSE --weights @$OUT/weights.json --output $OUT/clear.test.parquet
hybrid evaluate $DATA --split test $OUT/bm25.test.parquet $OUT/dense.test.parquet $OUT/clear.test.parquet
