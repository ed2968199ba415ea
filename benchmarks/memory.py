"""Peak memory of each stage for growing collections of random text, and its growth per document.

python benchmarks/memory.py [--documents 20000,200000] [--folder FOLDER] [--csv FILE] [--plot FILE] [--rehearsal]

Words follow Zipf's law, lengths of documents a lognormal distribution with a median of 50 words. Vectors of documents
are random, with MiniLM's 384 dimensions; the encoder of queries has one layer and reads 8 tokens. Memory is what a
process cannot share or drop: anonymous pages, without memory-mapped files; `resident` has these too. With `--folder`
and `--csv`, a call resumes after an interruption. `--rehearsal` runs the life of one retriever in place of single
stages: it is built, served with a filter, updated by 1% of its documents (a quarter replaced, the others new), and
rolled back.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import altair as alt
import numpy as np
import polars as pl
import polars.selectors as cs
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from ratios import Row
from safetensors.torch import save_file
from transformers import AutoTokenizer, BertConfig, BertForSequenceClassification, BertModel, PreTrainedModel

from hybrid_cli.encoders.models import resolve

WORDS, EXPONENT, SHIFT = 1_000_000, 1.07, 2.7  # of the Zipf-Mandelbrot distribution
MEDIAN_LENGTH, SPREAD, QUERIES = 50, 0.45, 1000
SYLLABLES = [first + second for first in "bdfgklmnprstvz" for second in "aeiou"]
STAGES = {  # name -> arguments; {n} is the folder of a size
    "prepare": "prepare files {n}/data/corpus.parquet --output {n}/prepared",
    "index-bm25": "index-bm25 {n}/data --threads 1 --output {n}/bm25",
    "update --add, BM25": "update {n}/bm25 --add {n}/new --threads 1 --output {n}/appended",
    "update --remove, BM25": "update {n}/bm25 --remove {n}/ids.txt --threads 1 --output {n}/deleted",
    "encode, flat": "encode {n}/data --from-vectors {n}/vectors.npy --model {model} --threads 1 --output {n}/flat",
    "update --add, flat": "update {n}/flat --add {n}/new --threads 1 --output {n}/appended-flat",
    "encode, ivf": "encode {n}/flat --index-type ivf --threads 1 --output {n}/ivf",
    "encode, hnsw": "encode {n}/flat --index-type hnsw --threads 1 --output {n}/hnsw",
    "encode, sq8": "encode {n}/flat --index-type sq8 --threads 1 --output {n}/sq8",
    "search, BM25": "search {n}/data --split train --index {n}/bm25 --threads 1 --output {n}/bm25.parquet",
    "search, flat": "search {n}/data --split train --index {n}/flat --threads 1 --output {n}/flat.parquet",
    "search, sq8": "search {n}/data --split train --index {n}/sq8 --threads 1 --output {n}/sq8.parquet",
    "search, ivf": "search {n}/data --split train --index {n}/ivf --threads 1 --output {n}/ivf.parquet",
    "search, hnsw": "search {n}/data --split train --index {n}/hnsw --threads 1 --output {n}/hnsw.parquet",
    "search --exact": (
        "search {n}/data --split train --exact --index {n}/bm25,{n}/flat --threads 1 --output {n}/exact.parquet"
    ),
    "fuse": "fuse a={n}/bm25.parquet b={n}/flat.parquet --output {n}/fused.parquet",
    "fuse --missing exact": (
        "fuse a={n}/bm25.parquet b={n}/flat.parquet --missing exact --index {n}/bm25,{n}/flat --threads 1 "
        "--output {n}/both.parquet"
    ),
    "rerank": "rerank {n}/bm25.parquet --model {reranker} --depth 2 --threads 1 --output {n}/reranked.parquet",
    "evaluate": "evaluate {n}/data --split train {n}/bm25.parquet {n}/flat.parquet",
    "mine-negatives": "mine-negatives {n}/data --split train --index {n}/bm25 --threads 1 --output {n}/train.parquet",
    "label": "label {n}/data --index {n}/bm25 --max-queries 20000 --threads 1 --output {n}/labels",
    "label --run": "label {n}/data --split train --run {n}/bm25.parquet --threads 1 --output {n}/labels-run",
    "train-dense": (
        "train-dense {n}/train.parquet --model {model} --loss nll --max-steps 3 --threads 1 --output {n}/dense"
    ),
    "train-lambda": (
        "train-lambda {n}/data --labels {n}/labels --index {n}/bm25 --loss listwise --model {model} --max-steps 3 "
        "--threads 1 --output {n}/lambda"
    ),
    "train-lambda, contrastive": (
        "train-lambda {n}/data --labels {n}/labels --model {model} --max-steps 3 --threads 1 --output {n}/contrastive"
    ),
    "pretrain": "pretrain {n}/data --model {model} --max-steps 3 --max-length 16 --threads 1 --output {n}/pretrained",
    "export": "export {n}/bm25 --format opensearch --output {n}/export",
    "export, parquet": "export {n}/bm25 --format parquet --output {n}/export-parquet",
    "judge": "judge {n}/data --split train {n}/bm25.parquet {n}/flat.parquet --output {n}/judged.tsv",
    "auto": (
        "auto {n}/data/corpus.parquet --queries {n}/queries.tsv --qrels {n}/qrels.tsv --model {model} --max-steps 3 "
        "--threads 1 --output {n}/auto"
    ),
    "inspect --verify": "inspect --verify {n}/bm25",
    "encode": "encode {n}/data --model {model} --threads 1 --output {n}/encoded",
    "prepare --split-passages": ("prepare files {n}/data/corpus.parquet --split-passages 25 --output {n}/passages"),
    "split": "split {n}/data --split train --folds 5 --output {n}/folds",
    "perturb": "perturb {n}/data --split train --attack char-swap --output {n}/perturbed.parquet",
    "index-bm25 --shards 4": "index-bm25 {n}/data --shards 4 --threads 1 --output {n}/shards",
    "search, 4 shards": (
        "search {n}/data --split train --index {n}/shards/shard-* --threads 1 --output {n}/sharded.parquet"
    ),
    "update --add, 4 shards": "update {n}/shards --add {n}/new --threads 1 --output {n}/appended-shards",
    "update --remove, 4 shards": "update {n}/shards --remove {n}/ids.txt --threads 1 --output {n}/deleted-shards",
    "search --rm3": "search {n}/data --split train --index {n}/bm25 --rm3 --threads 1 --output {n}/rm3.parquet",
    "encode, sparse": "encode {n}/data --architecture unicoil --model {sparse} --threads 1 --output {n}/sparse",
    "encode, sparse, drawn weights": (
        "encode {n}/data --architecture unicoil --model {sparse} --threads 1 --output {n}/drawn"
    ),
    "search, sparse": "search {n}/data --split train --index {n}/drawn --threads 1 --output {n}/sparse.parquet",
    "train-sparse": (
        "train-sparse {n}/train.parquet --architecture unicoil --model {model} --max-steps 3 --threads 1 "
        "--output {n}/unicoil"
    ),
    "train-lambda, static": (
        "train-lambda {n}/data --encoder static --index {n}/bm25 --dim 64 --max-steps 3 --threads 1 --output {n}/static"
    ),
    "train-dense --loss roc": (
        "train-dense {n}/train.parquet --model {model} --loss roc --ortho-weight 1 --mask-matches 0.15 "
        "--index {n}/bm25 --max-steps 3 --threads 1 --output {n}/roc"
    ),
    "train-dense --dynamic-negatives": (
        "train-dense {n}/train.parquet --model {model} --loss nll --dynamic-negatives 1 --max-steps 3 --threads 1 "
        "--output {n}/dynamic"
    ),
    "train-reranker": (
        "train-reranker {n}/train.parquet --model {reranker} --max-steps 3 --threads 1 --output {n}/trained-reranker"
    ),
    "distill-lite": (
        "distill-lite {n}/train.parquet --teacher {model} --model {model} --dim 32 --max-steps 3 --threads 1 "
        "--output {n}/lite"
    ),
    "encode --concat-with": "encode {n}/flat --concat-with {n}/second --threads 1 --output {n}/both",
    "combine --tune": ("combine {model} {other} --tune {n}/data --split train --index {n}/both --output {n}/combined"),
    "concat-runs": "concat-runs {n}/half-0.parquet {n}/half-1.parquet --output {n}/whole.parquet",
    "report": "report {n}/data --split train {n}/bm25.parquet {n}/flat.parquet --output {n}/report.html",
    "inspect": "inspect {n}/bm25",
    "inspect --memory-table": (
        "inspect a={n}/bm25.parquet b={n}/flat.parquet --memory-table {n}/data --split train --output {n}/table.parquet"
    ),
}
REHEARSAL = {  # one after the other
    "prepare": "prepare files {n}/years.parquet --metadata year --output {n}/life/data",
    "index-bm25": "index-bm25 {n}/life/data --threads 1 --output {n}/life/bm25",
    "encode, flat": (
        "encode {n}/life/data --from-vectors {n}/vectors.npy --model {model} --threads 1 --output {n}/life/dense"
    ),
    "compose": "compose {n}/life/bm25 {n}/life/dense --threads 1 --output {n}/life/retriever",
    "serve": "{n}/life/retriever",
    "update of 1%": "update {n}/life/retriever --add {n}/changes.parquet --threads 1",
    "serve after the update": "{n}/life/retriever",
    "roll back": "update {n}/life/retriever --rollback",
    "serve after rolling back": "{n}/life/retriever",
}
FILTERS = ("", "year >= 2020", "year = 2001")  # about all, a fifth and a twenty-fifth of the documents
DRAWN = "encode, sparse, drawn weights"  # the stage that runs sparse_stub.py
SECOND = "encode {n}/data --from-vectors {n}/vectors.npy --model {other} --threads 1 --quiet --output {n}/second"
COLUMNS = {
    "stage": pl.String,
    "documents": pl.Int64,
    "bytes": pl.Int64,
    "resident": pl.Int64,
    "seconds": pl.Float64,
    "cpu": pl.Float64,
    "disk": pl.Int64,
}
SERVED = 20  # queries per filter
NEW = 1000  # documents of `update --add` and of `update --remove`
SCRIPT = "memory.py"
LIMIT = 8 << 30  # bytes for index and matrix of two million documents


def word(rank: int) -> str:
    """Return the pseudo-word of a rank; frequent words are shorter."""
    rank, parts = rank + len(SYLLABLES), []
    while rank:
        rank, syllable = divmod(rank, len(SYLLABLES))
        parts.append(SYLLABLES[syllable])
    return "".join(parts)


def texts(count: int, seed: int) -> Iterator[list[str]]:
    """Yield blocks of `count` texts in all."""
    rng = np.random.default_rng(seed)
    words = np.array([word(rank) for rank in range(WORDS)])
    shares = np.cumsum((np.arange(WORDS) + SHIFT) ** -EXPONENT)
    for begin in range(0, count, 10_000):
        size = min(10_000, count - begin)
        lengths = np.maximum(3, rng.lognormal(np.log(MEDIAN_LENGTH), SPREAD, size)).astype(int)
        ranks = np.searchsorted(shares, rng.random(lengths.sum()) * shares[-1])
        yield [" ".join(part) for part in np.split(words[ranks], np.cumsum(lengths)[:-1])]


def write_collection(folder: Path, count: int) -> None:
    """Write a collection whose queries are the first words of documents."""
    folder.mkdir(parents=True, exist_ok=True)
    schema = pa.schema([(name, pa.string()) for name in ("docid", "title", "text")])
    queries: list[str] = []
    with pq.ParquetWriter(folder / "corpus.parquet", schema) as writer:
        row = 0
        for block in texts(count, 0):
            ids = [f"document-{row + place}" for place in range(len(block))]
            writer.write_table(pa.table({"docid": ids, "title": [""] * len(block), "text": block}, schema=schema))
            queries += [" ".join(text.split()[:6]) for text in block[:QUERIES]]
            row += len(block)
    qids = [f"q{number}" for number in range(min(QUERIES, count))]
    pl.DataFrame({"qid": qids, "text": queries[: len(qids)]}).write_parquet(folder / "queries.train.parquet")
    docids = [f"document-{row}" for row in range(len(qids))]
    pl.DataFrame({"qid": qids, "docid": docids, "relevance": 1}).write_parquet(folder / "qrels.train.parquet")


def write_changes(folder: Path) -> None:
    """Write documents to add, ids to remove, and queries and judgments as text."""
    (folder / "new").mkdir(exist_ok=True)
    (block,) = texts(NEW, 1)
    frame = pl.DataFrame({"docid": [f"new-{row}" for row in range(NEW)], "title": "", "text": block})
    frame.write_parquet(folder / "new" / "corpus.parquet")
    (folder / "ids.txt").write_text("".join(f"document-{row}\n" for row in range(NEW)))
    queries = pl.read_parquet(folder / "data" / "queries.train.parquet")
    queries.write_csv(folder / "queries.tsv", separator="\t", include_header=False)
    judged = pl.read_parquet(folder / "data" / "qrels.train.parquet").select("qid", pl.lit(0), "docid", "relevance")
    judged.write_csv(folder / "qrels.tsv", separator="\t", include_header=False)


def write_life(folder: Path, count: int) -> None:
    """Write the documents with a column of years, and the changes: 1% of them, a quarter with known ids."""
    years = 2000 + pl.int_range(pl.len()) % 25
    pl.scan_parquet(folder / "data" / "corpus.parquet").with_columns(year=years).sink_parquet(folder / "years.parquet")
    ids = [f"document-{row * 200}" if row % 2 else f"added-{row}" for row in range(count // 100)]
    changed = pl.DataFrame(
        {"docid": ids, "title": "", "text": [text for block in texts(len(ids), 2) for text in block]}
    )
    changed.with_columns(year=years).write_parquet(folder / "changes.parquet")


def write_vectors(file: Path, count: int) -> None:
    """Write random vectors of documents."""
    values = np.lib.format.open_memmap(file, "w+", np.float32, (count, 384))
    rng = np.random.default_rng(0)
    for begin in range(0, count, 10_000):
        part = values[begin : begin + 10_000]
        rng.standard_normal(out=part, dtype=np.float32)


def write_model(folder: Path, kind: type[PreTrainedModel], seed: int = 0, **options: Any) -> None:
    """Write a model that computes little."""
    tokenizer = AutoTokenizer.from_pretrained(resolve("minilm"), model_max_length=16)
    torch.manual_seed(seed)
    shape = BertConfig(
        vocab_size=len(tokenizer), hidden_size=384, num_hidden_layers=1, num_attention_heads=1, intermediate_size=16
    )
    shape.num_labels = 1
    kind(shape, **options).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    (folder / "sentence_bert_config.json").write_text('{"max_seq_length": 8}')


def write_sparse_model(folder: Path) -> None:
    """Write a UniCOIL encoder that computes little; it reads 180 tokens of a document."""
    tokenizer = AutoTokenizer.from_pretrained(resolve("minilm"), model_max_length=64)
    torch.manual_seed(0)
    shape = BertConfig(
        vocab_size=len(tokenizer), hidden_size=16, num_hidden_layers=1, num_attention_heads=1, intermediate_size=16
    )
    body, head = BertModel(shape), torch.nn.Linear(16, 1)
    torch.nn.init.constant_(head.bias, 3.0)  # each token has a weight
    shape.save_pretrained(folder)
    weights = {f"coil_encoder.{name}": value for name, value in body.state_dict().items()}
    weights |= {f"tok_proj.{name}": value for name, value in head.state_dict().items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    tokenizer.save_pretrained(folder)


def write_halves(folder: Path) -> None:
    """Write a run as two runs of different queries."""
    hits = pl.read_parquet(folder / "bm25.parquet")
    for number in range(2):
        half = hits.filter(pl.col("qid").str.slice(1).cast(pl.Int64) % 2 == number)
        half.write_parquet(folder / f"half-{number}.parquet")


@dataclass(frozen=True)
class Cost:
    """What a process used: peaks of memory in bytes, anonymous and resident; seconds of wall time and of CPU time."""

    bytes: int
    resident: int
    seconds: float
    cpu: float


def memory_of(process: int) -> tuple[int, int]:
    """Return the anonymous memory of a process, and its peak of resident memory, in bytes."""
    status = Path(f"/proc/{process}/status").read_text().splitlines()
    found = {line.partition(":")[0]: int(line.split()[1]) for line in status if line.startswith(("RssAnon", "VmHWM"))}
    return found.get("RssAnon", 0) << 10, found.get("VmHWM", 0) << 10


def peak(words: Sequence[str], program: Sequence[str] = ("-m", "hybrid_cli")) -> Cost:
    """Run hybrid; return what the process used."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    start, largest, before = time.monotonic(), (0, 0), os.times()
    process = subprocess.Popen(
        [sys.executable, *program, *words, "--quiet"],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )
    while process.poll() is None:
        with suppress(OSError):
            anonymous, resident = memory_of(process.pid)
            largest = max(largest[0], anonymous), max(largest[1], resident)
        time.sleep(0.02)
    if process.wait():
        raise SystemExit(f"hybrid {' '.join(words)}: exit code {process.returncode}")
    after = os.times()
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    return Cost(*largest, time.monotonic() - start, cpu)


def served(retriever: Path, queries: Sequence[str]) -> tuple[Cost, list[list[Any]]]:
    """Serve a retriever and search each query with each filter; return what the server used, and the scored hits."""
    from serve import Server

    start = time.monotonic()
    server = Server(retriever)
    try:
        print(f"  the server answers after {time.monotonic() - start:.1f} s")
        largest, hits = 0, list[list[Any]]()
        for condition in FILTERS:
            times = []
            for query in queries:
                begin = time.perf_counter()
                address = urlencode({"query": query, "k": 10} | ({"filter": condition} if condition else {}))
                with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/api/search?{address}") as answer:
                    hits.append([[hit["docid"], hit["score"]] for hit in json.load(answer)["candidates"]])
                times.append(1e3 * (time.perf_counter() - begin))
                largest = max(largest, memory_of(server.process.pid)[0])
            found = f"{times[0]:.0f} first, {np.median(times[1:]):.0f} median, {max(times[1:]):.0f} most"
            print(f"  {condition or 'no filter'}: {len(hits[-1])} hits, ms per query: {found}", flush=True)
        return Cost(largest, memory_of(server.process.pid)[1], time.monotonic() - start, server.cpu), hits
    finally:
        server.process.terminate()
        server.process.wait()


def disk(folder: Path) -> int:
    """Return the bytes of the files of a folder on disk; a file of several names counts once."""
    known = {(stat.st_dev, stat.st_ino): stat.st_blocks for stat in map(Path.stat, folder.rglob("*"))}
    return 512 * sum(known.values())


def plot(rows: pl.DataFrame, file: Path) -> None:
    """Draw the memory of each stage over the number of documents, one panel per stage."""
    table = rows.select("stage", "documents", mib=pl.col("bytes") / 2**20)
    sizes = table["documents"].unique().sort().to_list()
    drawn = alt.Chart(table).mark_line(point=True).properties(width=150, height=80)
    panels = drawn.encode(
        alt.X("documents:Q", scale=alt.Scale(type="log"), axis=alt.Axis(values=sizes, format="~s"), title=None),
        alt.Y("mib:Q", scale=alt.Scale(type="log"), axis=alt.Axis(values=[50, 200, 1000, 4000]), title=None),
    ).facet(alt.Facet("stage:N", sort=None, title="peak memory (MiB) by number of documents"), columns=5)
    panels.save(str(file))


def inputs(folder: Path, sizes: Sequence[int]) -> None:
    """Write the models, and the collections and vectors of each size, that `folder` lacks."""
    if not (folder / "reranker").exists():
        write_model(folder / "model", BertModel, add_pooling_layer=False)
        write_model(folder / "reranker", BertForSequenceClassification)
    if not (folder / "sparse").exists():
        write_model(folder / "other", BertModel, seed=1, add_pooling_layer=False)
        write_sparse_model(folder / "sparse")
    for size in sizes:
        if not (folder / str(size) / "vectors.npy").exists():
            write_collection(folder / str(size) / "data", size)
            write_changes(folder / str(size))
            write_life(folder / str(size), size)
            write_vectors(folder / str(size) / "vectors.npy", size)


def growth(rows: pl.DataFrame) -> None:
    """Print the growth of each stage between two sizes."""
    for (stage,), part in rows.sort("documents").group_by("stage", maintain_order=True):
        for before, last in itertools.pairwise(part.iter_rows(named=True)):
            rate = (last["bytes"] - before["bytes"]) / (last["documents"] - before["documents"])
            print(f"{stage:31} {before['documents']:>10,} to {last['documents']:>10,}: {rate:8.1f} bytes per document")


def main(words: Sequence[str] | None = None) -> list[Row]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--documents", default="20000,200000")
    parser.add_argument("--stages", help="names, separated by semicolons; all by default")
    parser.add_argument("--rehearsal", action="store_true", help="the life of one retriever")
    parser.add_argument("--folder", type=Path, help="keep the inputs and outputs here")
    parser.add_argument("--csv", type=Path, help="write the rows here; those that it has are not measured again")
    parser.add_argument("--plot", type=Path)
    arguments = parser.parse_args(words)
    sizes = [int(size) for size in arguments.documents.split(",")]
    rows = pl.DataFrame(schema=COLUMNS)
    if arguments.csv and arguments.csv.exists():
        rows = pl.concat([rows, pl.read_csv(arguments.csv)], how="diagonal_relaxed")
    stages = REHEARSAL if arguments.rehearsal else STAGES
    with tempfile.TemporaryDirectory() as scratch:
        folder = arguments.folder or Path(scratch)
        inputs(folder, sizes)
        models = {name: folder / name for name in ("model", "other", "reranker", "sparse")}
        for size, stage in itertools.product(sizes, arguments.stages.split(";") if arguments.stages else stages):
            if len(rows.filter(stage=stage, documents=size)):
                continue
            own = folder / str(size)
            if stage == "encode --concat-with" and not (own / "second").exists():
                subprocess.run(
                    [sys.executable, "-m", "hybrid_cli", *SECOND.format(n=own, **models).split()], check=True
                )
            if stage == "concat-runs":
                write_halves(own)
            command, before = stages[stage].format(n=own, **models).split(), disk(own / "life")
            if stage.startswith("serve"):
                queries = pl.read_parquet(own / "data" / "queries.train.parquet")["text"].head(SERVED)
                cost, hits = served(Path(command[0]), queries.to_list())
                (own / f"{stage}.json").write_text(json.dumps(hits))
                if stage == "serve after rolling back" and hits != json.loads((own / "serve.json").read_text()):
                    raise SystemExit("the hits after rolling back differ from those before the update")
            else:
                words = [*command, *(["--overwrite"] if "--output" in command and stage != "judge" else [])]
                program = [str(Path(__file__).with_name("sparse_stub.py"))] if stage == DRAWN else ["-m", "hybrid_cli"]
                cost = peak(words, program)
            row = {"stage": stage, "documents": size, **asdict(cost), "disk": disk(own / "life") - before}
            rows = pl.concat([rows, pl.DataFrame([row], schema=rows.schema).with_columns(cs.float().round(1))])
            print(f"{stage:31} {size:>10,} {cost.bytes / 2**20:8,.0f} MiB {cost.seconds:6.0f} s", flush=True)
            if arguments.csv:
                rows.write_csv(arguments.csv)
    growth(rows)
    if arguments.plot:
        plot(rows, arguments.plot)
    limited = rows.filter(pl.col("stage").is_in(["index-bm25", "search, BM25"])).iter_rows(named=True)
    return [
        Row(
            f"peak memory of {row['stage']}, {row['documents']:,} documents",
            "8 GiB",
            [LIMIT / row["bytes"]],
            "1",
            SCRIPT,
        )
        for row in limited
    ]


if __name__ == "__main__":
    main()
