"""The commands that are disturbed, and the commands that write their inputs."""

from __future__ import annotations

import re
from collections.abc import Iterable

ANSWERS = "1\n" * 100  # on standard input of every command, for `judge`
GROWING = ("judge",)  # an interrupted call leaves the first lines of its output

SEARCHED = "search tiny --split test --threads 1 --index"
TUNED = "--tune --qrels tiny --split test"
STEPS = "--batch-size 2 --max-steps 4 --checkpoint-steps 1 --dtype fp32 --threads 1"
STUDENT = f"--model bert {STEPS}"
TRAIN = f"--loss nll {STUDENT}"
INPUTS = (  # each may read the outputs of earlier ones
    "prepare trec docs.jsonl --topics train=topics.train.tsv --topics test=topics.test.tsv "
    "--qrels train=qrels.train.txt --qrels test=qrels.test.txt --output tiny",
    "index-bm25 tiny --threads 1 --output bm25",
    f"{SEARCHED} bm25 --output one.parquet",
    f"{SEARCHED} bm25 --k1 2 --output two.parquet",
    "mine-negatives tiny --split train --index bm25 --threads 1 --output train.parquet",
    "encode tiny --model bert --threads 1 --output dense",
    "label tiny --index bm25 --max-queries 6 --threads 1 --output labels",
    f"{SEARCHED} bm25 --hits 1 --output top.parquet",
    "search tiny --split train --threads 1 --index bm25 --output train-run.parquet",
    f"train-reranker train.parquet --negatives 1 --max-length 48 --query-max-len 16 {STUDENT} --output reranker",
    f"train-sparse train.parquet --architecture splade {STUDENT} --output splade",
    "encode tiny --model splade --dtype fp32 --threads 1 --output splade-index",
    f"train-dense train.parquet {TRAIN} --output bert-2",
    "encode tiny --model bert-2 --threads 1 --output dense-2",
    f"train-dense train.parquet --boost bert-2 {TRAIN} --seed 2 --output ensemble",
    "encode tiny --model ensemble --threads 1 --output ensemble-index",
    "combine bert bert-2 --output pair",
    "encode dense --concat-with dense-2 --threads 1 --output pair-index",
    "encode dense --index-type hnsw --threads 1 --output hnsw",
    "encode tiny --split test --model bert --threads 1 --output vectors",
    "train-lambda tiny --encoder static --index bm25 --labels labels --dim 8 --batch-size 2 --max-steps 4 "
    "--threads 1 --output static",
    "index-bm25 tiny --shards 2 --threads 1 --output shards",
    f"fuse one.parquet two.parquet {TUNED} --output weights.json",
)
RERANK = "rerank one.parquet --model reranker --dtype fp32 --threads 1 --shard-size 4"
STAGES = {  # command, and options of an older output that --overwrite replaces; heavy ones are drawn less often
    "prepare": (INPUTS[0].replace("--output tiny", "--output out"), "--sample 11", 4),
    "prepare files": (
        "prepare files docs.jsonl --queries train=topics.train.tsv --qrels train=qrels.train.txt --output out",
        "--split-passages 9", 4,
    ),
    "prepare beir": ("prepare beir beir --output out", "--sample 11", 4),
    "prepare msmarco": (
        "prepare msmarco marco.tsv --queries test=topics.test.tsv --qrels test=qrels.test.txt --output out",
        "--sample 11", 4,
    ),
    "prepare dpr": ("prepare dpr psgs.tsv --questions test=questions.tsv --output out", "", 4),
    "prepare tevatron": ("prepare tevatron train=tevatron.jsonl --output out", "", 4),
    "prepare (pseudo-queries)": (
        "prepare files docs.jsonl --pseudo-queries title --pseudo-sizes train=4 --output out", "--seed 7", 4
    ),
    "index-bm25": ("index-bm25 tiny --threads 1 --output out", "--language de", 1),
    "index-bm25 (parameters)": ("index-bm25 tiny --threads 1 --k1 1.5 --output out", "", 1),
    "search": (f"{SEARCHED} bm25 --output out.parquet", "--hits 3", 1),
    "search (dense)": (f"{SEARCHED} dense --output out.parquet", "--hits 3", 2),
    "search (ensemble)": (f"{SEARCHED} ensemble-index --output out.parquet", "--hits 3", 2),
    "search (shards)": (f"{SEARCHED} shards/shard-* --output out.parquet", "--hits 3", 2),
    "search --exact": (f"{SEARCHED} bm25,dense --exact --output out.parquet", "--hits 3", 2),
    "search (composite)": (f"{SEARCHED} pair-index --output out.parquet", "--hits 3", 2),
    "search (hnsw)": (f"{SEARCHED} hnsw --output out.parquet", "--hits 3", 2),
    "search (vectors)": ("search --queries vectors --threads 1 --index dense --output out.parquet", "--hits 3", 2),
    "search --rm3": (f"{SEARCHED} bm25 --rm3 --output out.parquet", "--hits 3", 2),
    "search --tune": (f"{SEARCHED} bm25 --rm3 --tune --output out.parquet", "--hits 3", 1),
    "search --engine lucene": (f"{SEARCHED} bm25 --engine lucene --output out.parquet", "--hits 3", 1),
    "fuse": ("fuse one.parquet two.parquet --output out.parquet", "--method rrf", 6),
    "fuse --tune": (f"fuse one.parquet two.parquet {TUNED} --output out.json", "--method sum", 2),
    "fuse --weights": (
        "fuse one.parquet two.parquet --weights @weights.json --output out.parquet", "--hits 3", 6
    ),
    "fuse --missing exact": (
        "fuse one.parquet two.parquet --missing exact --index bm25,bm25 --threads 1 --output out.parquet", "--hits 3", 2
    ),
    "concat-runs": ("concat-runs train-run.parquet one.parquet --output out.parquet", "", 4),
    "evaluate": ("evaluate tiny --split test one.parquet --output out.parquet", "--measure MRR@10", 4),
    "report": ("report tiny --split test one.parquet two.parquet --output out.html", "--measure MRR@10", 2),
    "split": ("split tiny --split train --folds 2 --output out", "--seed 7", 4),
    "perturb": ("perturb tiny --split test --attack shuffle --output out.parquet", "--seed 7", 4),
    "perturb (several)": ("perturb tiny --split test --attack shuffle,char-swap --output out", "--seed 7", 4),
    "inspect": ("inspect one=one.parquet --memory-table tiny --split test --overwrite --output out.parquet", "", 1),
    "export trec": ("export top.parquet --format trec --output out.trec", "--hits 1", 4),
    "export msmarco": ("export one.parquet --format msmarco --output out.tsv", "--hits 1", 4),
    "export dpr": ("export one.parquet --format dpr --collection tiny --split test --output out.json", "--hits 1", 4),
    "export sentence-transformers": ("export bert-2 --format sentence-transformers --output out", "", 2),
    "export pyserini": ("export dense --format pyserini --output out", "", 2),
    "mine-negatives": (INPUTS[4].replace("train.parquet", "out.parquet"), "--seed 7", 1),
    "mine-negatives (sources)": (
        "mine-negatives tiny --split train --index bm25 --sources bm25:1,random:1,run:train-run.parquet:1 --threads 1 "
        "--output out.parquet", "--seed 7", 1,
    ),
    "label --run": ("label tiny --run train-run.parquet --split train --threads 1 --output out", "--depth 2", 1),
    "label": ("label tiny --index bm25 --max-queries 6 --threads 1 --output out", "--seed 7", 1),
    "encode": ("encode tiny --model bert --shard-size 4 --threads 1 --output out", "--vector-dtype float16", 2),
    "encode (queries)": ("encode tiny --split test --model bert --threads 1 --output out", "--dtype bf16", 2),
    "encode (index)": ("encode dense --index-type HNSW64,Flat --threads 1 --output out", "--ef-search 8", 1),
    "encode (vectors)": ("encode tiny --from-vectors vectors.npy --threads 1 --output out", "--index-type sq8", 1),
    "encode (binary)": ("encode dense --index-type binary --threads 1 --output out", "--index-type fp16", 1),
    "encode (two models)": ("encode tiny --model bert,bert-2 --threads 1 --output out", "--combine sum", 2),
    "encode (static)": ("encode tiny --model static --threads 1 --output out", "--vector-dtype float16", 2),
    "encode (ensemble)": ("encode tiny --model ensemble --shard-size 4 --threads 1 --output out", "--dtype bf16", 2),
    "encode (composite)": ("encode tiny --model pair --shard-size 4 --threads 1 --output out", "--dtype bf16", 2),
    "encode --concat-with": ("encode dense --concat-with dense-2 --threads 1 --output out", "--weight 2", 2),
    "update (bm25)": ("update bm25 --add new.parquet --threads 1 --output out", "", 1),
    "update (dense)": ("update dense --add new.parquet --threads 1 --output out", "", 2),
    "update (sparse)": ("update splade-index --add new.parquet --threads 1 --output out", "", 2),
    "update (shards)": ("update shards --add new.parquet --threads 1 --output out", "", 2),
    "update (composite)": ("update pair-index --add new.parquet --threads 1 --output out", "", 2),
    "update --remove (composite)": ("update pair-index --remove gone.txt --threads 1 --output out", "", 2),
    "update --remove (shards)": ("update shards --remove gone.txt --threads 1 --output out", "", 2),
    "update --remove (bm25)": ("update bm25 --remove gone.txt --threads 1 --output out", "", 1),
    "update --remove (sparse)": ("update splade-index --remove gone.txt --threads 1 --output out", "", 2),
    "update --remove": ("update dense --remove gone.txt --threads 1 --output out", "", 2),
    "combine": ("combine bert bert-2 --output out", "--weight 2", 2),
    "train-dense": (f"train-dense train.parquet {TRAIN} --output out", "--seed 7", 2),
    "train-dense (residual)": (
        f"train-dense train.parquet --loss residual-margin --index bm25 --dynamic-negatives 1 {STUDENT} --output out",
        "--seed 7", 1,
    ),
    "train-dense (refreshed)": (
        "train-dense train.parquet --loss residual-nll --index bm25 --scorer-schedule learned --dynamic-negatives 1 "
        f"--refresh-negatives 2 {STUDENT} --output out", "--seed 7", 1,
    ),
    "train-dense --teacher": (
        f"train-dense train.parquet --distill kl --teacher reranker {STUDENT} --output out", "--seed 7", 1
    ),
    "train-dense (roc)": (
        f"train-dense train.parquet --loss roc --index bm25 --negatives 1 {STUDENT} --output out", "--seed 7", 1
    ),
    "train-dense (bpr)": (f"train-dense train.parquet --loss bpr --dim 8 {STUDENT} --output out", "--seed 7", 1),
    "train-dense (untied)": (
        f"train-dense train.parquet {TRAIN} --untied --chunk-size 1 --accumulate 2 --output out", "--seed 7", 1
    ),
    "combine (sum)": ("combine bert bert-2 --combine sum --output out", "--weight 2", 2),
    "combine (ensemble)": ("combine ensemble static --output out", "--weight 2", 2),
    "combine --tune": (
        "combine bert bert-2 --tune tiny --split test --index pair-index --output out", "--measure R@10", 2
    ),
    "train-dense --dev": (
        f"train-dense train.parquet {TRAIN} --dev train.parquet --eval-steps 1 --keep-epochs --output out", "--seed 7",
        2,
    ),
    "train-dense --boost": (f"train-dense train.parquet --boost bert-2 {TRAIN} --output out", "--seed 7", 2),
    "train-lambda --encoder static": (
        "train-lambda tiny --encoder static --index bm25 --labels labels --dim 8 --batch-size 2 --max-steps 4 "
        "--checkpoint-steps 1 --threads 1 --output out", "--seed 7", 2,
    ),
    "train-lambda": (
        f"train-lambda tiny --labels labels --positives 1 --negatives 1 {STUDENT} --output out", "--seed 7", 1
    ),
    "train-lambda --loss listwise": (
        "train-lambda tiny --labels labels --loss listwise --index bm25 --positives 1 --list-passages 1 "
        f"{STUDENT} --output out",
        "--seed 7", 1,
    ),
    "train-lambda --base": (
        f"train-lambda tiny --labels labels --base static --positives 1 --negatives 1 {STUDENT} --output out",
        "--seed 7", 1,
    ),
    "train-lambda --dev": (
        f"train-lambda tiny --labels labels --index bm25 --dev test --eval-steps 1 --positives 1 --negatives 1 "
        f"{STUDENT} --output out", "--seed 7", 1,
    ),
    "distill-lite": (f"distill-lite train.parquet --teacher bert-2 --dim 4 {STUDENT} --output out", "--seed 7", 1),
    "pretrain": (f"pretrain tiny {STUDENT} --output out", "--seed 7", 1),
    "distill-lite --queries-only": (
        f"distill-lite train.parquet --teacher bert-2 --queries-only {STUDENT} --output out", "--seed 7", 1
    ),
    "pretrain --cocondenser": (f"pretrain tiny --cocondenser {STUDENT} --output out", "--seed 7", 1),
    "train-reranker --dev": (
        f"{INPUTS[9].replace('--output reranker', '')} --dev train.parquet --eval-steps 1 --output out", "--seed 7", 1
    ),
    "train-sparse (deepct)": (
        INPUTS[10].replace("splade", "deepct").replace("--output deepct", "--output out"), "--seed 7", 1
    ),
    "train-sparse (unicoil)": (
        INPUTS[10].replace("splade", "unicoil").replace("--output unicoil", "--output out"), "--seed 7", 1
    ),
    "train-sparse (sparterm)": (
        INPUTS[10].replace("splade", "sparterm").replace("--output sparterm", "--output out"), "--seed 7", 1
    ),
    "train-reranker (pointwise)": (
        INPUTS[9].replace("--output reranker", "--loss pointwise --output out"), "--seed 7", 1
    ),
    "train-reranker": (INPUTS[9].replace("--output reranker", "--output out"), "--seed 7", 1),
    "rerank": (f"{RERANK} --depth 3 --output out.parquet", "--max-length 40", 2),
    "rerank (depths)": (f"{RERANK} --depth 1,2 --output out", "--max-length 40", 2),
    "train-sparse": (INPUTS[10].replace("--output splade", "--output out"), "--seed 7", 1),
    "encode (sparse)": (INPUTS[11].replace("--output splade-index", "--output out"), "--quantization 64", 2),
    "search (sparse)": (f"{SEARCHED} splade-index --output out.parquet", "--hits 3", 2),
    "index-bm25 (shards)": ("index-bm25 tiny --shards 2 --threads 1 --output out", "--language de", 1),
    "export opensearch": ("export bm25 --dense dense --format opensearch --output out", "", 2),
    "export parquet": ("export bm25 --dense dense --format parquet --output out", "", 2),
    "export anserini": ("export splade-index --format anserini --output out", "", 2),
    "convert-checkpoint (pickle)": ("convert-checkpoint pickled out", "", 2),
    "convert-checkpoint": ("convert-checkpoint bert --documents bert-2 out", "", 2),
    "judge": ("judge tiny one.parquet two.parquet --split test --stop-after 3 --output out.tsv", "", 2),
    "auto": ("auto docs.jsonl --model bert --max-steps 2 --threads 1 --output out", "", 1),
}  # fmt: skip
TRAININGS = [name for name in STAGES if re.match("train-|distill-lite|pretrain", name)]


def inputs_of(names: Iterable[str]) -> list[str]:
    """Return the commands that write the inputs of stages, in order; the collection is always among them."""
    words = words_of(" ".join(["tiny", *(STAGES[name][0] for name in names)]))
    found = []
    for command in reversed(INPUTS):
        if command.split()[-1] in words:
            found.append(command)
            words |= words_of(command)
    return found[::-1]


def words_of(commands: str) -> set[str]:
    """Return all words of commands that may be paths."""
    return {word.removesuffix("/shard-*") for word in re.split("[ ,=:@]", commands)}
