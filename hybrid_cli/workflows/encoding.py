"""Texts to encode, their encoder, and encoding in one process per device, or on a Ray cluster."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from hybrid_cli import cluster, draws, storage
from hybrid_cli.artifacts import Manifest
from hybrid_cli.artifacts.indexes import index_kinds, kind_in_words
from hybrid_cli.collections import collection as collections
from hybrid_cli.commands import Encode
from hybrid_cli.commands.common import DENSE_INDEX, TEXTS, as_names
from hybrid_cli.commands.retrieval import OF_DENSE, OF_DENSE_TRANSFORMER, OF_SPARSE, OF_STATIC, OF_TRANSFORMER
from hybrid_cli.encoders import composite
from hybrid_cli.encoders.composite import Combination, CombinationRecipe, refuse_equal
from hybrid_cli.encoders.contract import COMBINATION, SPARSE, STATIC, Encoder, kind_of
from hybrid_cli.encoders.models import open_encoder, pick_device, pick_devices, pick_dtype, resolve
from hybrid_cli.errors import option_error
from hybrid_cli.indexes.faiss import set_threads
from hybrid_cli.indexes.shards import CPU_BATCH_TOKENS, GPU_BATCH_TOKENS, Advance, Block, D, Encoded, Texts, TextShards
from hybrid_cli.lexical.build import Base
from hybrid_cli.lexical.builder import PostingsBuilder
from hybrid_cli.lexical.impacts import Postings
from hybrid_cli.memory import cpu_count
from hybrid_cli.retrieval.options import TRANSFORMER_INDEX
from hybrid_cli.storage import Kind, disk, layout

if TYPE_CHECKING:
    from hybrid_cli.encoders.sparse import TermWeights


_LENGTHS = 500  # documents whose tokens are counted
_FACTS = {
    OF_SPARSE: frozenset({OF_SPARSE, OF_TRANSFORMER}),
    OF_STATIC: frozenset({OF_STATIC, OF_DENSE}),
    OF_DENSE_TRANSFORMER: frozenset({OF_DENSE_TRANSFORMER, OF_DENSE, OF_TRANSFORMER}),
}


def source_of(settings: Encode) -> tuple[Path, Kind]:
    """Return the file of texts, and the kind of the output."""
    if settings.queries is not None:
        return collections.queries_path(settings.queries, settings.split), Kind.VECTORS
    assert settings.collection is not None  # checked by the settings
    if settings.split is not None:
        return collections.queries_path(settings.collection, settings.split), Kind.VECTORS
    return collections.corpus_path(settings.collection), Kind.DENSE_INDEX


def unread_share(corpus: Path, encoder: Any, total: int) -> float:
    """Estimate the share of the tokens of a corpus that an encoder with `unread_tokens` leaves out, on some documents.

    Args:
        corpus: collection, or its corpus file.
        encoder: a transformer.
        total: number of documents.
    """
    rows = draws.sample(total, _LENGTHS, draws.rng(0)).tolist()
    some = collections.scan(corpus).filter(pl.col("corpus_row").is_in(rows)).collect(engine="streaming")
    return float(encoder.unread_tokens(some["title"].to_list(), some["text"].to_list()))


def texts_in(source: Path, kind: Kind, added: Path | None = None) -> tuple[Iterable[Texts], int]:
    """Return the texts of a corpus (for a dense index) or of queries (for vectors), and their number.

    Args:
        source: the file.
        kind: kind of the output.
        added: file of texts to add to the documents.
    """
    if kind == Kind.DENSE_INDEX:
        batches = (
            batch.rename_columns(["id", "title", "text"]) for batch in collections.expanded_documents(source, added)
        )
        return batches, len(collections.docids(source))
    frame = collections.read_queries(source)
    ids, texts = (frame[name].to_arrow().cast(pa.string()) for name in ("qid", "text"))
    titles = pa.array([""] * len(frame), pa.string())
    return [pa.table({"id": ids, "title": titles, "text": texts})], len(frame)


def set_all_threads(threads: int | None) -> None:
    """Set the number of threads of PyTorch and FAISS; None keeps all cores."""
    if threads:
        torch.set_num_threads(threads)
        set_threads(threads)


def precision(settings: Encode) -> Any:
    """Return the precision with `auto` resolved, because it affects the vectors."""
    names = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}
    here = settings.ray_address is None
    devices = pick_devices(settings.devices) or [pick_device(settings.device) if here else settings.device]
    return names[pick_dtype(settings.dtype, devices[0])]


def check_encoder(settings: Encode, folders: Sequence[Path], subject: str = "") -> frozenset[str]:
    """Refuse options that the encoders do not have.

    Args:
        settings: settings of the command.
        folders: folders of the encoders; none for imported vectors of an unknown encoder.
        subject: phrase for the message, in place of the kind of the encoder.

    Returns:
        The facts about the encoders, for the settings.
    """
    kind = _kind(settings, folders)
    facts = _FACTS[kind] if folders else frozenset({OF_DENSE})
    settings.check_facts(subject or f"{as_names(settings.model)[0]} is {kind}", input=TEXTS, encoder=facts)
    return facts


def check_indexes(settings: Encode, made: Mapping[Path, Manifest]) -> None:
    """Refuse options that the encoders of dense indexes do not have: static ones need no device.

    Args:
        settings: settings of the command.
        made: index -> its manifest.
    """
    static = not any(TRANSFORMER_INDEX in index_kinds(manifest_of_index) for manifest_of_index in made.values())
    subject = ", ".join(kind_in_words(path, manifest_of_index) for path, manifest_of_index in made.items())
    facts = _FACTS[OF_STATIC if static else OF_DENSE_TRANSFORMER]
    settings.check_facts(subject, input=DENSE_INDEX, encoder=facts)


def _kind(settings: Encode, folders: Sequence[Path]) -> str:
    """Return the kind of one or two encoders; that of two is a transformer if one is."""
    if settings.architecture is not None or SPARSE in map(kind_of, folders):
        return OF_SPARSE
    every = [
        part for folder in folders for part in (composite.parts(folder) if kind_of(folder) == COMBINATION else [folder])
    ]
    return OF_STATIC if all(kind_of(folder) == STATIC for folder in every) else OF_DENSE_TRANSFORMER


def open_encoders(
    settings: Encode, device: str, dtype: Any, changes: dict[str, Any]
) -> tuple[CombinationRecipe, Encoder]:
    """Return the encoder of one or two models with a changed contract, and the recipe of a combination."""
    recipe = CombinationRecipe(settings.combine, settings.weight)
    models = as_names(settings.model)
    encoders = [open_encoder(resolve(model), device=device, dtype=dtype, overrides=changes) for model in models]
    if len(encoders) == 1:
        return recipe, encoders[0]
    refuse_equal(encoders, models)
    return recipe, Combination(recipe, encoders)


def on_cluster(settings: Encode) -> Encode:
    """Return the settings for a Ray cluster, whose machines may have other devices than this one.

    Raises:
        InputError: the precision depends on the device.
    """
    if settings.ray_address is None:
        return settings
    if settings.device.startswith("cuda") and settings.dtype == "auto":
        problem = "depends on the GPUs of the cluster; pass fp32, bf16 or fp16"
        raise option_error("dtype", "auto", problem, code="conflicting-options")
    return settings.changed(device="cpu") if settings.device == "auto" else settings


def blocks_encoder(
    settings: Encode, encoder: Encoder, of_queries: bool, resolved: dict[str, Any]
) -> Callable[[Iterable[Block]], Iterable[Encoded]]:
    """Return the function that encodes blocks: with `encoder` in this process, or in others.

    Args:
        settings: settings of the command.
        encoder: the encoder of this process.
        of_queries: encode the texts as queries, not as documents.
        resolved: `dtype` and `contract` of the encoder.
    """
    if settings.ray_address is None and not settings.devices:
        return partial(map, block_encoder(encoder, of_queries, settings.batch_tokens))
    return elsewhere(settings, partial(_start, of_queries, resolved))


def elsewhere(
    settings: Encode, start: Callable[[Encode, str], Callable[[Block], D]]
) -> Callable[[Iterable[Block]], Iterable[D]]:
    """Return the function that maps blocks in one process per device, or on a Ray cluster.

    Args:
        settings: settings of the command.
        start: makes the function of a block, from the settings of its process and a device.
    """
    if settings.ray_address is not None:
        of_process = partial(start, settings.of_worker(), settings.device)
        return partial(cluster.map_blocks, settings, of_process, gpu=settings.device.startswith("cuda"))
    devices = pick_devices(settings.devices)
    settings = settings.changed(threads=settings.threads or max(1, cpu_count() // len(devices)))
    return partial(cluster.map_blocks, settings, partial(start, settings), devices=devices)


def block_encoder(encoder: Encoder, of_queries: bool, batch_tokens: int | None) -> Callable[[Block], Encoded]:
    """Return the function that encodes a block, as queries or as documents.

    Args:
        encoder: any encoder.
        of_queries: encode the texts as queries, not as documents.
        batch_tokens: tokens per batch; None for the default of the device.
    """
    tokens = batch_tokens or (CPU_BATCH_TOKENS if encoder.device.type == "cpu" else GPU_BATCH_TOKENS)

    def encoded(block: Block) -> Encoded:
        titles, texts = block
        before = encoder.truncated
        vectors = (
            encoder.encode_queries(texts, tokens) if of_queries else encoder.encode_documents(titles, texts, tokens)
        )
        return vectors, encoder.truncated - before

    return encoded


def _start(of_queries: bool, resolved: dict[str, Any], settings: Encode, device: str) -> Callable[[Block], Encoded]:
    """Open the encoder in a process of its own."""
    set_all_threads(settings.threads)
    _, encoder = open_encoders(settings, device, resolved["dtype"], resolved["contract"])
    return block_encoder(encoder, of_queries, settings.batch_tokens)


AT_ONCE = 256  # texts between two updates of the progress bar
_SPARSE_BATCH_TOKENS = 1024, 1 << 14  # on a CPU, on a GPU; a token has a score for each term of the vocabulary
DEEPCT_K1, DEEPCT_B = 10.0, 0.9  # for weights times 100 (DeepCT, README of its code)

Weighted: TypeAlias = tuple[pa.Table, int]  # terms and weights of a block, and the number of truncated documents


def weight_shard(folder: Path, number: int) -> Path:
    """Return the path of a shard of learned weights in the folder of an unfinished index."""
    return folder / layout.WEIGHT_SHARDS / layout.part(number)


def quantization_steps(settings: Encode, counts: bool) -> int:
    """Return the integers per unit of a weight.

    Args:
        settings: settings of the command.
        counts: the weights are counts of terms (DeepCT).

    Raises:
        InputError: no power of two.
    """
    steps = settings.quantization or (100 if counts else 128)
    if not counts and steps & (steps - 1):
        raise option_error("quantization", steps, "needs a power of two, so that sums of weights are exact")
    return steps


def open_sparse(settings: Encode, device: str, dtype: Any, changes: dict[str, Any]) -> TermWeights:
    """Return the sparse encoder of the settings with a changed contract; set the threads of PyTorch."""
    import torch

    from hybrid_cli.encoders.sparse import load_sparse

    if settings.threads:
        torch.set_num_threads(settings.threads)
    name = as_names(settings.model)[0]
    return load_sparse(name, device=device, dtype=dtype, architecture=settings.architecture, **changes)


def encode_documents(
    settings: Encode,
    encoder: TermWeights,
    folder: Path,
    texts: Iterable[Texts],
    total: int,
    resolved: dict[str, Any],
    advance: Advance,
) -> None:
    """Encode documents to shards: in this process, in one process per device, or on a Ray cluster.

    Shards that exist already are skipped.

    Args:
        settings: settings of the command.
        encoder: the encoder of this process.
        folder: folder of the unfinished index.
        texts: tables with the columns id, title, text.
        total: number of documents.
        resolved: `steps` (see `TermWeights.document_weights`), `dtype` and `contract` of the encoder.
        advance: called with numbers of encoded texts.

    Raises:
        InputError, HybridError: see `cluster.map_blocks`.
    """
    weighted: Callable[[Iterable[Block]], Iterable[Weighted]]
    if settings.ray_address is None and not settings.devices:
        weighted = partial(map, _block_weights(encoder, resolved["steps"], settings.batch_tokens))
    else:
        weighted = elsewhere(settings, partial(_start_sparse, resolved))
    encode_weights(folder, texts, weighted, settings.shard_size, advance)


def _start_sparse(resolved: dict[str, Any], settings: Encode, device: str) -> Callable[[Block], Weighted]:
    """Open the encoder in a process of its own."""
    encoder = open_sparse(settings, device, resolved["dtype"], resolved["contract"])
    return _block_weights(encoder, resolved["steps"], settings.batch_tokens)


def _block_weights(encoder: TermWeights, steps: int, batch_tokens: int | None) -> Callable[[Block], Weighted]:
    """Return the function that computes the weights of a block."""
    tokens = batch_tokens or _SPARSE_BATCH_TOKENS[encoder.device.type != "cpu"]

    def weighted(block: Block) -> Weighted:
        before = encoder.truncated
        lists = encoder.document_weights(*block, steps, tokens)
        ends = pa.array([0, *lists.distinct.cumsum()], pa.int32())
        terms = pa.ListArray.from_arrays(ends, lists.terms.cast(pa.string()))
        weights = pa.ListArray.from_arrays(ends, pa.array(lists.weights, pa.int32()))
        return pa.table({"terms": terms, "weights": weights}), encoder.truncated - before

    return weighted


def encode_weights(
    folder: Path,
    texts: Iterable[Texts],
    weighted: Callable[[Iterable[Block]], Iterable[Weighted]],
    size: int,
    advance: Advance,
) -> None:
    """Encode documents to shards of `size`.

    Args:
        folder: folder of the unfinished index.
        texts: tables with the columns id, title, text.
        weighted: computes the weights of blocks, in order.
        size: number of documents of a shard.
        advance: called with the number of encoded texts.
    """
    (folder / layout.WEIGHT_SHARDS).mkdir(exist_ok=True)
    shards = TextShards(texts, partial(weight_shard, folder), size, AT_ONCE)
    shards.encode(weighted, _write_shard, advance)


def _write_shard(path: Path, ids: pa.Array, parts: Sequence[Weighted]) -> None:
    """Write the ids and weights of a shard, with the number of truncated documents in the footer."""
    table = pa.concat_tables([part for part, _ in parts]).add_column(0, "id", ids)
    table = table.replace_schema_metadata({"truncated": str(sum(truncated for _, truncated in parts))})
    with storage.replacing(path) as scratch, disk.create(scratch) as file:
        pq.write_table(table, file, compression="zstd", write_page_checksum=True)


@dataclass(frozen=True)
class Built:
    """An impact matrix of learned weights, and the number of truncated documents."""

    postings: Postings
    documents: int
    truncated: int

    def counts(self) -> dict[str, Any]:
        """Return values for the manifest."""
        return {
            "documents": self.documents,
            "empty documents": self.documents - self.postings.counted,
            "terms": len(self.postings.terms),
            "postings": len(self.postings),
            "truncated": self.truncated,
        }


def build_matrix(folder: Path, bm25: bool, base: Base | None = None) -> Built:
    """Write `impacts/` and `docids.parquet` from the shards in `folder`, which are hidden and so removed at the end.

    Args:
        folder: folder of the unfinished index.
        bm25: the weights are counts; k1 and b of DeepCT are stored with them.
        base: an index of the same encoder, whose kept documents come first.
    """
    builder, ids, truncated = PostingsBuilder(), [pl.DataFrame(schema={"docid": pl.String})], 0
    paths = sorted((folder / layout.WEIGHT_SHARDS).glob(layout.PARTS))
    earlier = Postings.open(base.folder / layout.IMPACTS) if base else None
    for path in paths:
        file = pq.ParquetFile(path, read_dictionary=["terms.list.element"])
        table = file.read()
        truncated += int((file.schema_arrow.metadata or {}).get(b"truncated", 0))
        terms, weights = (table[name].combine_chunks() for name in ("terms", "weights"))
        flat = terms.flatten()
        flat = flat if isinstance(flat, pa.DictionaryArray) else flat.dictionary_encode()
        distinct = weights.value_lengths().to_numpy(zero_copy_only=False).astype("int64")
        builder.add_weights(flat, weights.flatten().to_numpy(), distinct)
        ids.append(pl.DataFrame({"docid": pl.Series(table["id"].combine_chunks(), dtype=pl.String)}))
    postings = builder.finish()
    if base is not None and earlier is not None:
        kept = base.kept()
        ids.insert(0, kept.filter("kept").select("docid"))
        postings = earlier.extended(kept["kept"].to_numpy(), postings)
    docids = pl.concat(ids)
    with storage.replacing(folder / layout.IMPACTS) as scratch:
        postings.save(scratch)
    with disk.create(folder / layout.DOCIDS) as opened:
        docids.write_parquet(opened, compression="zstd")
    if bm25:
        disk.write_text(folder / layout.PARAMETERS, json.dumps({"k1": DEEPCT_K1, "b": DEEPCT_B}, indent=2) + "\n")
    return Built(postings, len(docids), truncated)
