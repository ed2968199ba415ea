"""The commands of the panel "Lexical"."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hybrid_cli.cli.common import Output, Threads, comma_separated, command
from hybrid_cli.config import Bm25, LexicalIndexing

PANEL = "Lexical"
TUNING = "Tuning"

Collection = Annotated[Path, typer.Argument(help="A collection, or its corpus alone.")]
K1 = Annotated[
    float | None,
    typer.Option(help=f"How late term frequency saturates; {Bm25.k1:g} if not given.", min=0, show_default=False),
]
B = Annotated[
    float | None,
    typer.Option(help=f"How much length counts, 0 to 1; {Bm25.b:g} if not given.", min=0, max=1, show_default=False),
]
Fields = Annotated[str, typer.Option(help="What of a document is indexed: `title,text`, `text` or `title`.")]
Language = Annotated[str, typer.Option(help="Analyzer: `en` (Porter's stemmer), or a code such as `de`, `fr`, `zh`.")]
Tune = Annotated[bool, typer.Option("--tune", help="Choose k1 and b on a split's queries.", rich_help_panel=TUNING)]
TuneMeasure = Annotated[str, typer.Option(help="What `--tune` raises.", rich_help_panel=TUNING)]
Split = Annotated[
    str | None,
    typer.Option(
        help=f"Of the collection; {LexicalIndexing.tune_split} if not given.",
        rich_help_panel=TUNING,
        show_default=False,
    ),
]
Queries = Annotated[
    Path | None, typer.Option(help="A file of queries instead.", rich_help_panel=TUNING, show_default=False)
]
Qrels = Annotated[Path | None, typer.Option(help="Their judgements.", rich_help_panel=TUNING, show_default=False)]
JavaHeap = Annotated[
    str | None,
    typer.Option(help="Largest heap of Java: `4g`; a quarter of the memory if not given.", show_default=False),
]

_FIELDS = ",".join(LexicalIndexing.fields)


def register(app: typer.Typer) -> None:
    """Add this panel's commands to the application."""
    command(app, PANEL)(index_bm25)


def index_bm25(
    collection: Collection,
    output: Output,
    k1: K1 = None,
    b: B = None,
    fields: Fields = _FIELDS,
    language: Language = LexicalIndexing.language,
    tune: Tune = False,
    tune_measure: TuneMeasure = LexicalIndexing.tune_measure,
    split: Split = None,
    queries: Queries = None,
    qrels: Qrels = None,
    threads: Threads = None,
    java_heap: JavaHeap = None,
    overwrite: bool = False,
) -> None:
    """Index a corpus for BM25: with Lucene, and as an exact impact matrix.

    An index that is there already takes another k1 and b, or `--tune`, in a moment: the corpus is not read again.
    `--tune` tries a grid on the dev split (or `--split`), and prints what the choice gains on held-out queries.

    Example: `hybrid index-bm25 data/pydocs --k1 0.9 --b 0.4 --output out/bm25`
    """
    from hybrid_cli.stages.index_bm25 import index_bm25 as stage

    stage(
        collection,
        output=output,
        k1=k1,
        b=b,
        fields=comma_separated(fields),
        language=language,
        tune_measure=tune_measure if tune else None,
        split=split,
        queries=queries,
        qrels=qrels,
        threads=threads,
        java_heap=java_heap,
        overwrite=overwrite,
    )
