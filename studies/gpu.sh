#!/usr/bin/env bash
# Objectives at 110 million weights, a cross-encoder as teacher, and rates of one large GPU, in at most 12 minutes.
#
#   MODEL=FOLDER studies/gpu.sh COLLECTIONS OUT             on a GPU: InsuranceQA and Wikipedia, 5,000 documents each, and python-docs
#   SMALL=1 studies/gpu.sh COLLECTIONS OUT                  a hundredth of it, on a CPU, with MiniLM
#
# COLLECTIONS has insuranceqa/ and openwiki/ in BEIR's layout. MODEL is an encoder of BERT's size, such as all-mpnet-base-v2.
# OUT/measured has the values of every query and the rates, as studies/measured; the verdicts are printed at the end. Rows are those of
# pipelines/recommended.mk. After an interruption, repeat the command. JOBS commands share the GPU.
set -euo pipefail
cd "$(dirname "$0")/.."
collections=$1 out=$2
: "${MODEL:=minilm}" "${SMALL:=}" "${JOBS:=${SMALL:+2}}" "${PYTHON:=python3}" "${SEEDS:=${SMALL:-1 2 3}}"
hybrid="${HYBRID:-$PYTHON -m hybrid_cli}"
documents=5000 train=1200 dev=300 queries=800 steps=85 lengths='--query-max-len 64 --doc-max-len 96' # 85 steps of 28: two passes
if [ -n "$SMALL" ]; then documents=200 train=30 dev=20 queries=20 steps=2 lengths='--query-max-len 16 --doc-max-len 24'; fi
mkdir -p "$out/measured"

prepare() { # NAME COMMAND [FOLDER]; of splits that are not used, one query remains
  [ ! -f "$out/data/$1/manifest.json" ] || return 0
  local kept="train=$train,dev=$dev,test=$queries" file split
  for file in "${3:-}"/qrels/*.tsv; do
    split=$(basename "$file" .tsv)
    case "$split" in train|dev|test|'*') ;; *) kept="$kept,$split=1" ;; esac
  done
  $hybrid prepare "${@:2}" --sample-queries "$kept" --sample "$documents" --output "$out/data/$1" --overwrite
}
prepare insuranceqa beir "$collections/insuranceqa"
prepare openwiki beir "$collections/openwiki"
prepare pydocs python-docs

for name in insuranceqa openwiki pydocs; do
  make --no-print-directory -j"${JOBS:-6}" recommended SETUP=Makefile HYBRID="$hybrid" DATA="$out/data/$name" OUT="$out/$name" SEEDS="$SEEDS" MODEL="$MODEL" \
      MEASURED="$out/measured" RECIPE_NAME="gpu-$name" RECIPE_ARMS='nll nll-dynamic clear nll-scored short short-scored' RECIPE_STATIC= RECIPE_STEPS=$steps LENGTHS="$lengths"
done
"$PYTHON" studies/gpu_rates.py "$out/data/openwiki" --model "$MODEL" --output "$out/measured/gpu-rates.csv" ${SMALL:+--small}
"$PYTHON" studies/verdicts.py "$out/measured"
