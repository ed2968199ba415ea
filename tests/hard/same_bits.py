"""Run the pipelines, and hash what they write: a change of structure must give the same bits.

    python tests/hard/same_bits.py DATA FOLDER > before.txt      # at the first commit; DATA has scifact and cacm
    python tests/hard/same_bits.py DATA FOLDER > after.txt       # at another, in another folder
    diff before.txt after.txt

`hybrid` on the PATH is run. A table is hashed by its columns and values, without its manifest; an index by its search.
Bits of encoders depend on the processor: compare files of one machine.
"""

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import polars as pl

FUSIONS = ["minmax", "sum", "product", "rrf", "zscore", "dbsf", "borda", "isr", "rbc", "log-odds", "combsum", "combmnz"]
FUSIONS += ["combanz", "combmax", "combmin", "combmed"]
COLLECTION = """
prepare beir {data}/{name} --on-dangling drop --output {name}
index-bm25 {name} --output {name}-bm25
index-bm25 {name} --shards 3 --output {name}-shards
encode {name} --model minilm --doc-max-len 48 --output {name}-dense
encode {name} --model minilm --doc-max-len 48 --index-type hnsw --output {name}-hnsw
encode {name} --model minilm --doc-max-len 48 --shard-size 1500 --output {name}-dense-shards
search {name} --split test --hits 200 --index {name}-bm25 --output {name}.bm25.parquet
search {name} --split test --hits 200 --index {name}-bm25 --engine lucene --output {name}.lucene.parquet
search {name} --split test --hits 200 --index {name}-bm25 --rm3 --output {name}.rm3.parquet
search {name} --split test --hits 200 --index {name}-shards --output {name}.shards.parquet
search {name} --split test --hits 200 --index {name}-dense --output {name}.dense.parquet
search {name} --split test --hits 200 --index {name}-hnsw --output {name}.hnsw.parquet
search {name} --split test --hits 200 --index {name}-dense-shards --output {name}.dense-shards.parquet
search {name} --split test --hits 200 --exact --index {name}-dense,{name}-bm25 --weights 1,0.05 \
--output {name}.exact.parquet
fuse {name}.bm25.parquet {name}.dense.parquet --method weighted-sum --weights 0.05,1 --index {name}-bm25,{name}-dense \
--output {name}.weighted.parquet
fuse {name}.bm25.parquet {name}.dense.parquet --tune --qrels {name} --split test --index {name}-bm25,{name}-dense \
--output {name}.weights.json
compose {name}-bm25 {name}-dense --output {name}-retriever
compose {name}-bm25 {name}-dense --calibrate --qrels {name} --split test --output {name}-calibrated
search {name} --split test --hits 200 --index {name}-retriever --output {name}.retriever.parquet
search {name} --split test --hits 200 --index {name}-calibrated --output {name}.calibrated.parquet
mine-negatives {name} --split test --index {name}-bm25 --negatives 4 --output {name}.examples.parquet
evaluate {name} --split test {name}.bm25.parquet {name}.dense.parquet {name}.weighted.parquet --measure \
nDCG@10,MRR@10,R@100,MAP --output {name}.measures.parquet
"""
FUSE = "fuse {name}.bm25.parquet {name}.dense.parquet --method {method} --output {name}.{method}.parquet"
PASSAGES = """
prepare beir {data}/cacm --on-dangling drop --split-passages 40 --passage-stride 20 --output passages
index-bm25 passages --no-lucene --output passages-bm25
encode passages --model minilm --doc-max-len 48 --output passages-dense
search passages --split test --index passages-bm25 --hits 200 --output passages.bm25.parquet
search passages --split test --index passages-dense --hits 200 --group sum2 --output passages.dense.parquet
compose passages-bm25 passages-dense --output passages-retriever
search passages --split test --index passages-retriever --hits 200 --output passages.retriever.parquet
"""
FILTERS = """
prepare files first.jsonl --metadata all --queries test=queries.jsonl --output filtered
index-bm25 filtered --no-lucene --output filtered-bm25
encode filtered --model minilm --doc-max-len 48 --output filtered-dense
encode filtered --model minilm --doc-max-len 48 --index-type hnsw --output filtered-hnsw
compose filtered-bm25 filtered-dense --output filtered-retriever
search filtered --split test --index filtered-bm25 --filter {some} --hits 100 --output filtered.bm25.parquet
search filtered --split test --index filtered-dense --filter {some} --hits 100 --output filtered.dense.parquet
search filtered --split test --index filtered-hnsw --filter {some} --hits 100 --output filtered.hnsw.parquet
search filtered --split test --index filtered-retriever --filter {some} --hits 100 --output filtered.both.parquet
update filtered-retriever second.jsonl
search filtered.2 --split test --index filtered-retriever --hits 100 --output updated.parquet
"""
SAMPLES = ("msmarco", "dl19", "nq", "beir", "entityquestions", "robust04", "trec-covid")


def content(path: Path) -> str:
    if path.suffix == ".json":
        whole = json.loads(path.read_text())
        return hashlib.sha256(json.dumps(whole, sort_keys=True).encode()).hexdigest()[:16]
    table = pl.read_parquet(path, glob=False)
    hashed = hashlib.sha256(repr(table.schema).encode())
    hashed.update(table.write_json().encode())
    return hashed.hexdigest()[:16]


def shown(folder: Path) -> None:
    """Print the hash of each run, table of examples and file of weights below a folder."""
    for path in sorted(folder.rglob("*.parquet")) + sorted(folder.rglob("*weights.json")):
        inside = any((parent / "manifest.json").exists() for parent in path.parents if parent != folder)
        if not inside and not path.name.startswith("."):
            print(content(path), path.relative_to(folder), flush=True)


def run(lines: str, **names: str) -> None:
    for line in filter(None, lines.strip().splitlines()):
        words = [word.format(**names) for word in line.split()]
        done = subprocess.run(["hybrid", *words, "--quiet"], capture_output=True, text=True)
        if done.returncode:
            print("FAILED", " ".join(words), done.stderr.splitlines()[-1:], flush=True)


def documents(data: Path) -> None:
    lines = [json.loads(line) for line in (data / "cacm/corpus.jsonl").open()][:900]
    kept = [{"id": row["_id"], "title": row.get("title", ""), "text": row["text"] or "none"} for row in lines]
    rows = [{**row, "year": 1950 + number % 40} for number, row in enumerate(kept)]
    added = (" parallel machine" if number % 9 == 0 else "" for number in range(len(rows)))
    changed = [{**row, "text": row["text"] + more} for row, more in zip(rows[100:], added, strict=False)]
    for name, some in (("first", rows[:800]), ("second", changed)):
        Path(f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in some))
    Path("queries.jsonl").write_text((data / "cacm/queries.jsonl").read_text())


def main() -> None:
    data, folder = Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve()
    samples = SAMPLES if len(sys.argv) < 4 else tuple(sys.argv[3:])
    folder.mkdir(parents=True, exist_ok=True)
    os.chdir(folder)
    for name in ("cacm", "scifact"):
        run(COLLECTION, data=str(data), name=name)
        for method in FUSIONS:
            run(FUSE, name=name, method=method)
    run(PASSAGES, data=str(data))
    documents(data)
    run(FILTERS, some="year>=1970")
    shown(folder)
    root = Path(__file__).resolve().parents[2]
    for sample in samples:
        papers = folder / "papers-small"
        words = [sys.executable, str(root / "studies/one_process.py"), str(sample), "SCALE=small", f"papers={papers}"]
        subprocess.run(words, cwd=root, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    shown(folder / "papers-small")


if __name__ == "__main__":
    main()
