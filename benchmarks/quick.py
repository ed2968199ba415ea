"""The quick form of the benchmarks (`make bench`): short runs in turn, and a table of ratios in docs/performance.md.

python benchmarks/quick.py [--parts bm25,encode] [--threads N] [--state out/bench.json] [--page docs/performance.md]

Each part runs one script of this folder with few queries, texts or steps, in a process of its own. Parts that an
earlier call finished are kept in the state file, until all are finished. A part that fails, for example because another
tool is not installed, is left out of the table.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import statistics
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from datetime import UTC, datetime
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

from ratios import Row

PARTS = {
    "bm25": ("--queries", "300", "--repeat", "3"),
    "encode": ("--passages", "160", "--rounds", "3"),
    "rerank": ("--pairs", "128", "--rounds", "3"),
    "train": ("--steps", "5"),
    "pretrain": ("--steps", "5"),
    "fuse": ("--queries", "700", "--repeat", "2"),
    "evaluate": ("--queries", "700", "--passages", "0", "--ranx", "parquet", "--repeat", "2"),
    "impacts": ("--repeat", "3"),
    "dimensions": ("--vectors", "50000", "--dims", "768,32", "--repeat", "3"),
}
THREADED = ("bm25", "encode", "rerank")  # with the option --threads
PACKAGES = ("torch", "transformers", "sentence-transformers", "faiss-cpu", "pyserini", "bm25s", "ranx")
BEGIN, END = "<!-- make bench -->\n", "<!-- end of make bench -->\n"


def measured(part: str, words: tuple[str, ...]) -> list[Row]:
    """Run the script of a part in this process."""
    rows: list[Row] = import_module(part).main(words)
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


def table(rows: list[Row], seconds: float, threads: int) -> str:
    """Return the section of docs/performance.md."""
    lines = [
        f"{facts(threads)}. {seconds / 60:.0f} minutes in all.",
        "",
        "| hybrid | Peer | Ratio (range) | Goal | Script |",
        "|---|---|---|---|---|",
    ]
    for row in rows:
        least, middle, most = (each(row.ratios) for each in (min, statistics.median, max))
        lines.append(
            f"| {row.task} | {row.peer} | {middle:.2f} ({least:.2f} to {most:.2f}) | {row.goal} | `{row.script}` |"
        )
    return "\n".join(lines) + "\n"


def write(page: Path, section: str) -> None:
    """Replace the text between the markers of a page."""
    before, _, rest = page.read_text("utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    if not end:
        raise SystemExit(f"{page}: lacks the lines {BEGIN.strip()} and {END.strip()}")
    page.write_text(before + BEGIN + section + end + after, "utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--state", type=Path, default=Path("out/bench.json"))
    parser.add_argument("--page", type=Path, default=Path("docs/performance.md"))
    given = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = str(given.threads)
    state: dict[str, Any] = json.loads(given.state.read_text()) if given.state.exists() else {}
    for part in given.parts.split(","):
        words = (*PARTS[part], *(("--threads", str(given.threads)) if part in THREADED else ()))
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
        given.state.parent.mkdir(parents=True, exist_ok=True)
        given.state.write_text(json.dumps(state, indent=1))
    done = [state[part] for part in PARTS if part in state]
    rows = [Row(**row) for each in done for row in each["rows"]]
    write(given.page, table(rows, sum(each["seconds"] for each in done), given.threads))
    if state.keys() >= PARTS.keys():
        given.state.unlink()


if __name__ == "__main__":
    main()
