"""The quick form of the benchmarks (`make bench`): short runs in turn, and two tables in studies/performance.md.

python benchmarks/quick.py [--large] [--data FOLDER] [--parts bm25,encode] [--threads N] [--state FILE]
    [--page studies/performance.md]

Each part runs one script of this folder with few queries, texts or steps, in a process of its own. Parts that an
earlier call finished are kept in the state file, until all are finished. A part that fails, for example because another
tool is not installed, is named below the table, and the exit code is 1. `--large` (`make bench LARGE=1`) measures BM25
with two million documents in 20 minutes, and writes a table of its own.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import statistics
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from datetime import UTC, datetime
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

from ratios import Row

PARTS = {
    "bm25": ("--queries", "300", "--repeat", "2"),
    "encode": ("--passages", "160", "--rounds", "3"),
    "rerank": ("--pairs", "128", "--rounds", "3"),
    "train": ("--steps", "4"),
    "pretrain": ("--steps", "5"),
    "devices": ("--devices", "cpu,cpu", "--parts", "training", "--steps", "2", "--batch", "32"),
    "cluster": ("--documents", "512", "--repeats", "2"),
    "fuse": ("--queries", "200", "--repeat", "2"),
    "evaluate": ("--queries", "300", "--passages", "0", "--ranx", "parquet", "--repeat", "2", "--no-complement"),
    "live": ("--queries", "300"),
    "gate": ("--repeats", "300", "--queries", "50,100"),
    "dimensions": ("--vectors", "50000", "--dims", "768,32", "--repeat", "3"),
    "limits": ("--rounds", "3"),
}
LARGE = {
    "memory": ("--documents", "2000000", "--stages", "index-bm25;search, BM25"),
    "bm25": ("--documents", "2000000", "--queries", "200", "--repeat", "3", "--index-repeat", "1"),
}
THREADED = ("bm25", "encode", "rerank", "live")  # with the option --threads
PACKAGES = (
    "torch",
    "transformers",
    "sentence-transformers",
    "faiss-cpu",
    "pyserini",
    "bm25s",
    "pyterrier-pisa",
    "ranx",
)


def measured(part: str, words: tuple[str, ...]) -> list[Row]:
    """Run the script of a part in this process."""
    rows: list[Row] = import_module(part.split()[0]).main(words)
    return rows


def facts(threads: int) -> str:
    """Return date, processor, load and versions in one paragraph."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.split(": ")[1] for line in lines if line.startswith("model name")] or [platform.processor()]
    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = "not installed"
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return (
        f"{datetime.now(UTC):%Y-%m-%d}, {names[0]}, {len(os.sched_getaffinity(0))} processors, {memory:.0f} GiB, "
        f"{threads} threads, load {os.getloadavg()[1]:.1f} at the end, Python {platform.python_version()}, "
        + ", ".join(f"{name} {version}" for name, version in versions.items())
    )


def table(rows: list[Row], seconds: float, threads: int, failed: Sequence[str] = ()) -> str:
    """Return the section of studies/performance.md, with the names of the parts that failed."""
    lines = [
        f"{facts(threads)}. {seconds / 60:.0f} minutes in all.",
        "",
        "| hybrid | Peer | Ratio (range) | Goal | Script |",
        "|---|---|---|---|---|",
    ]
    for row in rows:
        least, middle, most = (f"{each(row.ratios):#.3g}".rstrip(".") for each in (min, statistics.median, max))
        lines.append(f"| {row.task} | {row.peer} | {middle} ({least} to {most}) | {row.goal} | `{row.script}` |")
    return "\n".join(lines + [f"\nFailed: {', '.join(failed)}."] * bool(failed)) + "\n"


def table_of_limits(rows: Sequence[Row]) -> str:
    """Return the section of the distances to the limits of the machine."""
    lines = ["| hybrid | Limit | Share of the limit (range) |", "|---|---|---|"]
    return "\n".join([*lines, *(f"| {row.task} | {row.peer} | {_shares(row.ratios)} |" for row in rows)]) + "\n"


def _shares(values: Sequence[float]) -> str:
    least, middle, most = (f"{each(values):#.2g}" for each in (min, statistics.median, max))
    return f"{middle} ({least} to {most})"


def markers(call: str) -> tuple[str, str]:
    """Return the lines around the table that a call of make writes."""
    return f"<!-- {call} -->\n", f"<!-- end of {call} -->\n"


def write(page: Path, section: str, call: str = "make bench") -> None:
    """Replace the text between the markers of a page."""
    first, last = markers(call)
    before, begin, rest = page.read_text("utf-8").partition(first)
    _, end, after = rest.partition(last)
    if not end:
        raise SystemExit(f"{page}: lacks the lines {first.strip()} and {last.strip()}")
    page.write_text(before + begin + section + end + after, "utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--large", action="store_true", help="two million documents")
    parser.add_argument("--data", type=Path, help="real questions for BM25: a folder in BEIR's layout")
    parser.add_argument("--parts", help="default: all")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--state", type=Path, help="default: out/bench.json, or out/bench-large.json")
    parser.add_argument("--page", type=Path, default=Path("studies/performance.md"))
    given = parser.parse_args()
    page = given.page
    os.environ["OMP_NUM_THREADS"] = str(given.threads)
    call, parts = ("make bench LARGE=1", LARGE) if given.large else ("make bench", PARTS)
    if given.data:
        parts = parts | {"bm25 questions": ("--beir", str(given.data), "--pisa-alone", "--queries", "2000")}
    file = given.state or Path("out/bench-large.json" if given.large else "out/bench.json")
    state: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    for part in given.parts.split(",") if given.parts else parts:
        words = (*parts[part], *(("--threads", str(given.threads)) if part.split()[0] in THREADED else ()))
        if state.get(part, {}).get("words") == list(words):
            print(f"{part}: finished by an earlier call", flush=True)
            continue
        print(f"== {part} {' '.join(words)}", flush=True)
        begin = time.monotonic()
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
            try:
                rows = pool.submit(measured, part, words).result()
            except (Exception, SystemExit) as error:
                print(f"{part}: failed: {error}", flush=True)
                continue
        seconds = round(time.monotonic() - begin, 1)
        print(f"{part}: {seconds} s", flush=True)
        state[part] = {"words": list(words), "seconds": seconds, "rows": [asdict(row) for row in rows]}
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(state, indent=1))
    done = [state[part] for part in parts if part in state]
    rows = [Row(**row) for each in done for row in each["rows"]]
    failed = [part for part in parts if part not in state]
    limits = [row for row in rows if row.script == "limits.py"]
    others = [row for row in rows if row.script != "limits.py"]
    write(page, table(others, sum(each["seconds"] for each in done), given.threads, failed), call)
    if limits:
        write(page, table_of_limits(limits), f"{call}: limits")
    if not failed:
        file.unlink()
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
