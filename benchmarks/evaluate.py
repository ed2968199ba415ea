"""Speed of `hybrid evaluate` compared with ranx: load one run of 6,980 queries x 1,000 hits, compute four measures.

Also measures the additional time of `evaluate --complement` with two such runs, with the values of every query written
to a file: without texts, and with as many passages as MS MARCO (`--passages 0` omits the second case).

Each tool runs in its own process, in turns; the time covers the start of Python, all work and the printing of the
means. Medians over rounds after a first one. The means must agree. ranx reads its JSON format, or Parquet through
pandas; hybrid reads Parquet, and also computes counts and Judged@10.

    python benchmarks/evaluate.py [--queries 6980] [--hits 1000] [--ranx json,parquet] [--passages 8841823]
                                  [--folder DIR]
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import polars as pl
from ratios import Row, Used, measured, ratios

MEASURES = ("MRR@10", "nDCG@10", "R@100", "R@1000")
RANX_MEASURES = ("mrr@10", "ndcg@10", "recall@100", "recall@1000")
HYBRID = "from hybrid_cli.cli import main; main()"
RANX = """
import json, sys
import pandas as pd
from ranx import Qrels, Run, evaluate
form, run_file, qrels_file, measures = *sys.argv[1:4], sys.argv[4].split(",")
qrels = Qrels.from_file(qrels_file, kind="json")
if form == "json":
    run = Run.from_file(run_file, kind="json")
else:
    frame = pd.read_parquet(run_file, columns=["qid", "docid", "score"])
    frame = frame.astype({"qid": object, "docid": object, "score": float})
    run = Run.from_df(frame, q_id_col="qid", doc_id_col="docid", score_col="score")
print(json.dumps({name: float(value) for name, value in evaluate(qrels, run, measures).items()}))
"""


def make_data(folder: Path, queries: int, hits: int) -> None:
    """Write a run, and qrels with one relevant document per query (two for 6%); two thirds of them are retrieved."""
    from hybrid_cli import storage
    from hybrid_cli.artifacts import Manifest
    from hybrid_cli.storage import SCHEMAS, Kind

    rng = np.random.default_rng(42)
    qids = np.sort(rng.choice(1_200_000, queries, replace=False)).astype(str)
    docids = np.stack([rng.choice(8_841_823, hits, replace=False) for _ in range(queries)])
    scores = -np.sort(-rng.gamma(20.0, 1.0, (queries, hits)).astype(np.float32), axis=1)
    run = pl.DataFrame(
        {
            "qid": np.repeat(qids, hits),
            "docid": docids.ravel().astype(str),
            "rank": np.tile(np.arange(1, hits + 1, dtype=np.int32), queries),
            "score": scores.ravel(),
        }
    )
    places = np.minimum((rng.pareto(0.35, queries) * 3).astype(int), 3 * hits)
    rows = [(row, int(place)) for row, place in enumerate(places)]
    rows += [(row, int(rng.integers(hits))) for row in range(queries) if rng.random() < 0.065]
    pairs = {(qids[row], str(docids[row, at]) if at < hits else f"missed-{row}") for row, at in rows}
    ordered = sorted(pairs)
    qrels = pl.DataFrame({"qid": [q for q, _ in ordered], "docid": [d for _, d in ordered]})
    qrels = qrels.with_columns(relevance=pl.lit(1, dtype=pl.Int32))
    other = another_run(run, qrels, rng)
    for kind, name, frame in ((Kind.RUN, "run", run), (Kind.RUN, "other", other), (Kind.QRELS, "qrels", qrels)):
        manifest = Manifest(kind, "benchmark", {}, {})
        storage.write_parquet(folder / f"{name}.parquet", [frame.to_arrow()], SCHEMAS[kind], manifest)
    judged: dict[str, dict[str, int]] = {}
    for qid, docid in ordered:
        judged.setdefault(str(qid), {})[docid] = 1
    (folder / "qrels.json").write_text(json.dumps(judged))
    listed = dict(zip(qids.tolist(), zip(docids.astype(str).tolist(), scores.tolist(), strict=True), strict=True))
    (folder / "run.json").write_text(json.dumps({qid: dict(zip(*hit, strict=True)) for qid, hit in listed.items()}))


def another_run(run: pl.DataFrame, qrels: pl.DataFrame, rng: np.random.Generator) -> pl.DataFrame:
    """Return a run of the same queries that shares about half of its documents with `run`, in another order."""
    from hybrid_cli import runs

    own = pl.Series(rng.integers(0, 8_841_823, len(run))).cast(pl.String)
    kept = pl.Series(rng.random(len(run)) < 0.5) | run["docid"].is_in(qrels["docid"].implode())
    hits = run.select("qid", docid=pl.when(kept).then("docid").otherwise(own), score=rng.gamma(20.0, 1.0, len(run)))
    return runs.ranked(hits.unique(["qid", "docid"], maintain_order=True))


def make_texts(folder: Path, passages: int) -> None:
    """Write queries of 6 words, and passages of 56 words with ids from 0, in parts of a million passages."""
    rng = np.random.default_rng(42)
    syllables = ["ba", "de", "fi", "go", "lu", "ma", "ne", "pi", "ro", "su", "ta", "vo"]
    words = np.array(["".join(parts) for parts in product(syllables, repeat=3)])
    pieces = pl.Series([" ".join(rng.choice(words, 14)) for _ in range(50_000)])
    (folder / "corpus").mkdir()
    for part, begin in enumerate(range(0, passages, 1_000_000)):
        docids = pl.Series(range(begin, min(begin + 1_000_000, passages)))
        text = [pieces.gather(rng.integers(0, len(pieces), len(docids))).alias(str(piece)) for piece in range(4)]
        frame = pl.DataFrame(text).select(
            docids.cast(pl.String).alias("docid"),
            pl.lit("").alias("title"),
            pl.concat_str(pl.all(), separator=" ").alias("text"),
        )
        frame.write_parquet(folder / "corpus" / f"part-{part:05}.parquet", compression="zstd")
    qids = pl.read_parquet(folder / "qrels.parquet")["qid"].unique(maintain_order=True)
    queries = [" ".join(rng.choice(words, 6)) for _ in qids]
    pl.DataFrame({"qid": qids, "text": queries}).write_parquet(folder / "queries.parquet")


@contextmanager
def data_folder(options: argparse.Namespace) -> Iterator[Path]:
    """Yield the folder of the data: `--folder`, or one that is removed afterwards; what is missing is made."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.folder or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / "run.json").exists():
            make_data(folder, options.queries, options.hits)
        if options.passages and not (folder / "queries.parquet").exists():
            make_texts(folder, options.passages)
        yield folder


def main(words: Sequence[str] | None = None) -> list[Row]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--queries", type=int, default=6980)
    parser.add_argument("--hits", type=int, default=1000)
    parser.add_argument("--ranx", default="json,parquet")
    parser.add_argument("--passages", type=int, default=8_841_823)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--no-complement", action="store_true", help="measure `evaluate` only")
    parser.add_argument("--folder", type=Path)
    options = parser.parse_args(words)
    with data_folder(options) as folder:
        rows = compare(folder, options.ranx.split(",") if options.ranx else [], options.repeat)
        if not options.no_complement:
            compare_complement(folder, bool(options.passages), options.repeat)
        return [replace(row, task=f"{row.task}, {options.queries:,} x {options.hits:,}") for row in rows]


def compare(folder: Path, forms: list[str], repeat: int) -> list[Row]:
    run, qrels = folder / "run.parquet", folder / "qrels.parquet"
    python = [sys.executable, "-c"]
    ours = [*python, HYBRID, "evaluate", "--qrels", str(qrels), str(run), "-m", ",".join(MEASURES), "--format", "json"]
    commands = {"hybrid": ours}
    for form in forms:
        source = folder / ("run.json" if form == "json" else "run.parquet")
        theirs = [*python, RANX, form, str(source), str(folder / "qrels.json"), ",".join(RANX_MEASURES)]
        commands[f"ranx ({form})"] = theirs
    found: dict[str, list[Used]] = {name: [] for name in commands}
    for number in range(repeat + 1):
        for name, command in commands.items():
            times_of = measured(command)
            found[name] += [times_of] if number else []  # ranx compiles code at its first call on a machine
    outputs = {name: json.loads(times[0][3]) for name, times in found.items()}
    means = list(outputs.pop("hybrid")["runs"][0]["means"].values())
    rows = []
    for name, times in found.items():
        values = means if name == "hybrid" else list(outputs[name].values())
        wall, cpu, gigabytes = (statistics.median(each) for each in zip(*(each[:3] for each in times), strict=True))
        show(name, wall, cpu, gigabytes, values)
        assert all(abs(a - b) < 1e-9 for a, b in zip(means, values, strict=True)), "the means differ"
        if name != "hybrid":
            walls = ratios([each[0] for each in times], [each[0] for each in found["hybrid"]])
            rows.append(Row("evaluate, four measures", name, walls, "3", "evaluate.py"))
            print(f"  {rows[-1]}")
    return rows


def compare_complement(folder: Path, texts: bool, repeat: int) -> None:
    """Measure the additional time of `--complement`; the output file is rewritten each time."""
    alone = [sys.executable, "-c", HYBRID, "evaluate", "--qrels", str(folder / "qrels.parquet")]
    alone += [str(folder / "run.parquet"), str(folder / "other.parquet"), "-m", ",".join(MEASURES), "--format", "json"]
    alone += ["--output", str(folder / "measurements.parquet"), "--overwrite"]
    complement = [*alone, "--complement", "run", "other"]
    with_texts = [*complement, "--queries", str(folder / "queries.parquet"), "--corpus", str(folder / "corpus")]
    commands = {"two runs": alone, "--complement": complement} | ({"with texts": with_texts} if texts else {})
    base = 0.0
    for name, command in commands.items():
        seconds, cpu, gigabytes, output = min(measured(command) for _ in range(repeat))
        means = [mean for run in json.loads(output)["runs"] for mean in run["means"].values()]
        show(name, seconds, cpu, gigabytes, means)
        base = base or seconds
        print(f"  {seconds / base:.2f} times the time of evaluate alone")


def show(name: str, seconds: float, cpu: float, gigabytes: float, means: list[float]) -> None:
    figures = " ".join(f"{mean:.6f}" for mean in means)
    print(f"{name:16} {seconds:6.1f} s  {cpu:6.1f} s CPU  {gigabytes:5.2f} GB  {figures}")


if __name__ == "__main__":
    main()
