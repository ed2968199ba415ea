"""The commands of the panel "Retrieval"."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hybrid_cli import config
from hybrid_cli.cli.common import Device, Output, Seed, Split, Threads, byte_count, command, option
from hybrid_cli.cli.training import (
    ENCODER,
    DocMaxLen,
    DocPrefix,
    Normalize,
    Pooling,
    QueryMaxLen,
    QueryPrefix,
    TitleSeparator,
)
from hybrid_cli.config import Combining, Encoding, IndexChoice, VectorIndex
from hybrid_cli.errors import InputError

PANEL = "Retrieval"


def register(app: typer.Typer) -> None:
    """Add this panel's commands to the application."""
    command(app, PANEL)(combine)
    command(app, PANEL)(encode)


CONTRACT_OPTIONS = (
    "pooling", "normalize", "query_prefix", "doc_prefix", "title_separator", "query_max_len", "doc_max_len", "prefix",
)  # fmt: skip
INDEX = "Index"
COMPUTE = "Computation"

Collection = Annotated[
    Path | None,
    typer.Argument(
        help="A collection, or a corpus. Or a dense index: gives its vectors another index.", show_default=False
    ),
]
Queries = Annotated[Path | None, typer.Option(help="A file of queries instead.", show_default=False)]


TUNED = "Tuning"


def combine(
    models: Annotated[list[str], typer.Argument(help="Two encoders: `minilm`, a folder, or a Hugging Face id.")],
    *,
    output: Output,
    how: Annotated[config.Combine, typer.Option(help="Vectors side by side, or added.")] = Combining.how,
    weight: Annotated[float, typer.Option(help="Of the second encoder, on the query side.")] = Combining.weight,
    tune: Annotated[
        Path | None,
        option(TUNED, "Find the weight on the judged queries of this collection.", show_default=False),
    ] = None,
    split: Annotated[str, option(TUNED, "The split of that collection.")] = "dev",
    index: Annotated[
        Path | None,
        option(TUNED, "What `encode` made of the two models, at any weight.", show_default=False),
    ] = None,
    measure: Annotated[str, option(TUNED, "What the weight is to raise.")] = Combining.measure,
    depth: Annotated[
        int, option(TUNED, "Documents of each half alone that are scored by both.", min=1)
    ] = Combining.depth,
    grid: Annotated[
        config.Grid, option(TUNED, ".1 to 10 (`reciprocal`) or .001 to 1000 (`log`); further where an end is best.")
    ] = Combining.grid,
    device: Device = "auto",
    overwrite: bool = False,
) -> None:
    """Make one encoder of two: vectors side by side, or added, the second one weighted.

    An index made by the combination serves every weight, since the weight is on the query side.

    Examples:

    `hybrid combine out/dense out/lambda --output out/spar`

    `hybrid combine out/dense out/lambda --tune data/pydocs --index out/spar-index --output out/spar-tuned`
    """
    from hybrid_cli.stages import combine as stage

    if len(models) != 2:
        raise InputError(f"combine: needs two encoders, got {len(models)}")
    if tune is not None and index is None:
        raise InputError("--tune: needs --index, what `encode` made of the two models")
    stage.combine(
        models,
        output,
        how=Combining(how, weight, depth, measure, grid),
        tune=None if tune is None or index is None else stage.Judged(tune, split, index),
        device=device,
        overwrite=overwrite,
    )


def encode(
    collection: Collection = None,
    *,
    output: Output,
    model: Annotated[
        list[str] | None,
        typer.Option(
            help="`minilm`, a folder, or a Hugging Face id. Twice: the two are combined.", show_default="minilm"
        ),
    ] = None,
    beside: Annotated[
        Path | None,
        typer.Option(
            help="Combine the dense index named first with this one, of the same corpus; nothing is encoded.",
            show_default=False,
        ),
    ] = None,
    combine: Annotated[
        config.Combine, typer.Option(help="Two models: vectors side by side, or added.")
    ] = Combining.how,
    weight: Annotated[
        float, typer.Option(help="Two models: of the second one, on the query side; `search` may change it.")
    ] = Combining.weight,
    queries: Queries = None,
    split: Split = None,
    index_type: Annotated[
        config.IndexType | None,
        option(
            INDEX,
            "Exact (`flat`), 16 or 8 bits a value, product codes (rotated before: `opq`), sign bits; a graph over "
            "them (`hnsw`); inverted lists; or the smallest that finds enough (`auto`).",
            show_default="flat, or as the model was trained",
        ),
    ] = VectorIndex.index_type,
    factory: Annotated[str | None, option(INDEX, "Any other FAISS factory string: `OPQ64,IVF1024,PQ64`.")] = None,
    m: Annotated[int, option(INDEX, "`hnsw`: links of a vector.", "--M", min=2)] = VectorIndex.m,
    ef_construction: Annotated[
        int, option(INDEX, "`hnsw`: candidates while building.", min=1)
    ] = VectorIndex.ef_construction,
    ef_search: Annotated[
        int, option(INDEX, "`hnsw`: candidates while searching, unless `search` says otherwise.", min=1)
    ] = VectorIndex.ef_search,
    nlist: Annotated[
        int, option(INDEX, "`ivf`: lists; 0 takes 4 times the square root of the documents.", min=0)
    ] = VectorIndex.nlist,
    nprobe: Annotated[
        int, option(INDEX, "`ivf`: lists looked into, unless `search` says otherwise.", min=1)
    ] = VectorIndex.nprobe,
    ram: Annotated[
        str | None,
        option(INDEX, "`auto`: most memory that a search may hold: `500M`, `2G`.", show_default="any"),
    ] = None,
    min_recall: Annotated[
        float, option(INDEX, "`auto`: least share of the exact first 100 that it must find.", min=0, max=1)
    ] = IndexChoice.min_recall,
    pq_bytes: Annotated[
        int, option(INDEX, "`pq`, `opq`: bytes of a vector; 0 takes one for four dimensions.", min=0)
    ] = VectorIndex.pq_bytes,
    recall_check: Annotated[
        bool,
        option(INDEX, "Measure what an approximate index finds of the exact hits, and keep it.", "--recall-check"),
    ] = False,
    pooling: Pooling = None,
    normalize: Normalize = None,
    query_prefix: QueryPrefix = None,
    doc_prefix: DocPrefix = None,
    title_separator: TitleSeparator = None,
    query_max_len: QueryMaxLen = None,
    doc_max_len: DocMaxLen = None,
    prefix: Annotated[
        int | None,
        option(ENCODER, "Keep so many values of each vector; for models trained with --nested.", min=1),
    ] = None,
    dtype: Annotated[
        config.Precision, option(COMPUTE, "Of the model; `auto` is bf16 where the processor has it.")
    ] = Encoding.dtype,
    vector_dtype: Annotated[config.VectorType, option(COMPUTE, "Of the vectors on disk.")] = Encoding.vector_dtype,
    shard_size: Annotated[int, option(COMPUTE, "Texts in a shard: what a kill can cost.", min=1)] = Encoding.shard_size,
    batch_tokens: Annotated[
        int, option(COMPUTE, "Word pieces in a batch, padding included; 0 lets the device decide.", min=0)
    ] = Encoding.batch_tokens,
    seed: Seed = VectorIndex.seed,
    device: Device = "auto",
    threads: Threads = None,
    overwrite: bool = False,
) -> None:
    """Encode a corpus and build its index, or encode queries.

    Stopped half-way, the same command goes on with the first missing shard.

    Example:

    `hybrid encode data/pydocs --model out/clear --output out/clear-index`
    """
    given = locals()
    from hybrid_cli.encoders.combination import Recipe
    from hybrid_cli.stages.encode import encode

    models = model or ["minilm"]
    if len(models) > 2:
        raise InputError(f"--model: stands there {len(models)} times; one or two models are encoded with")
    encode(
        collection,
        output=output,
        model=models[0],
        second=models[1] if len(models) == 2 else None,
        beside=beside,
        combine=Recipe(combine, weight),
        queries=queries,
        split=split,
        index=VectorIndex(
            index_type,
            factory,
            m,
            ef_construction,
            ef_search,
            nlist,
            nprobe,
            pq_bytes,
            seed,
            IndexChoice(byte_count("--ram", ram) if ram else IndexChoice.ram, min_recall),
        ),
        encoding=Encoding(dtype, vector_dtype, shard_size, batch_tokens),
        contract={name: given[name] for name in CONTRACT_OPTIONS},
        recall_check=recall_check,
        device=device,
        threads=threads,
        overwrite=overwrite,
    )
