"""What `prepare` gains at most on a Ray cluster, from the CPU time of its parts in one process.

A cluster reads files and returns their documents as columns; the calling process turns these into rows, checks ids and
writes. With any number of machines, the time is at least that of the calling process. One round for each format.

    python benchmarks/prepare.py [--documents 40000]
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from hybrid_cli.collections import source
from hybrid_cli.collections.readers import files, trec
from hybrid_cli.collections.source import DocumentFiles, Source
from hybrid_cli.commands import PrepareFiles, PrepareTrec
from hybrid_cli.stages.prepare import prepare

WORDS, LENGTH = 20_000, 55


def write(folder: Path, documents: int) -> None:
    """Write the same random documents as TSV, JSON lines and SGML."""
    rng = np.random.default_rng(1)
    words = np.array(["".join(rng.choice(list("abcdefghijklm"), 6)) for _ in range(WORDS)])
    texts = [" ".join(rng.choice(words, LENGTH)) for _ in range(documents)]
    (folder / "sgml").mkdir()
    forms: dict[str, Callable[[int, str], str]] = {
        "docs.tsv": lambda number, text: f"{number}\t{text}\n",
        "docs.jsonl": lambda number, text: json.dumps({"docid": str(number), "text": text}) + "\n",
        "sgml/docs.sgml": lambda number, text: (
            f"<DOC>\n<DOCNO>{number}</DOCNO>\n<HEADLINE>a b</HEADLINE>\n<TEXT>\n{text}\n</TEXT>\n</DOC>\n"
        ),
    }
    for path, row in forms.items():
        (folder / path).write_text("".join(row(number, text) for number, text in enumerate(texts)), "utf-8")


def cpu(work: Callable[[], Any]) -> tuple[float, Any]:
    """Return the CPU seconds of a call, and its result."""
    start = time.process_time()
    found = work()
    return time.process_time() - start, found


def main() -> None:
    """Measure and print each format."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--documents", type=int, default=40_000)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        write(folder, parser.parse_args().documents)
        corpus = folder / "JSON lines" / "corpus.parquet"
        for name, settings, reader in (
            ("TSV", PrepareFiles([folder / "docs.tsv"], output=folder / "TSV"), files.source),
            ("JSON lines", PrepareFiles([folder / "docs.jsonl"], output=folder / "JSON lines"), files.source),
            ("Parquet", PrepareFiles([corpus], output=folder / "Parquet"), files.source),
            ("SGML", PrepareTrec(folder / "sgml", output=folder / "SGML"), trec.source),
        ):
            measure(name, settings, reader)


def measure(name: str, settings: Any, reader: Callable[[Any], Source]) -> None:
    """Print the CPU time of a format, and how many times as fast a cluster could be."""
    documents = reader(settings).documents
    assert isinstance(documents, DocumentFiles)
    reading, _ = cpu(lambda: sum(1 for _ in documents()))
    read = [source.read_file(each) for each in documents.files]
    turning, _ = cpu(lambda: sum(1 for each in read for _ in source.documents_of(each)))
    whole, _ = cpu(lambda: prepare(settings))
    best = whole / (whole - reading + turning)
    print(f"{name}: {whole:.2f} s of CPU time, {reading:.2f} of them reading; {best:.2f} times at best")


if __name__ == "__main__":
    main()
