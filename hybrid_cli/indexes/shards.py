"""Shards: Parquet files of ids with vectors or learned weights, encoded from texts or copied from another index."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from itertools import count, takewhile
from pathlib import Path
from time import monotonic
from typing import Any, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from hybrid_cli import console, draws, storage
from hybrid_cli.collections import collection as collections
from hybrid_cli.errors import DamageError, HybridError, path_error
from hybrid_cli.indexes.options import Shards
from hybrid_cli.storage import disk
from hybrid_cli.storage.layout import PARTS, VECTORS, WEIGHT_SHARDS, part

_SPLIT = {"vector.list.element": "BYTE_STREAM_SPLIT"}  # byte-stream split: floats compress better

Vectors = np.ndarray[Any, np.dtype[np.float32]]


def shard_path(folder: Path, number: int) -> Path:
    """Return the path of shard `number` in a folder of vectors."""
    return folder / VECTORS / part(number)


def weight_shard(folder: Path, number: int) -> Path:
    """Return the path of a shard of learned weights in the folder of an unfinished index."""
    return folder / WEIGHT_SHARDS / part(number)


def write_shard(path: Path, ids: pa.Array, vectors: np.ndarray, **facts: int) -> None:
    """Write ids and vectors [n, d] (float32 or float16) as one Parquet file, atomically.

    Args:
        path: path of the shard.
        ids: [n]
        vectors: [n, d]
        facts: counts stored in the footer, for resuming after an interruption.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    values = pa.array(np.ascontiguousarray(vectors).reshape(-1))
    column = pa.FixedSizeListArray.from_arrays(values, vectors.shape[1])
    table = pa.table({"id": ids.cast(pa.string()), "vector": column})
    table = table.replace_schema_metadata({name: str(value) for name, value in facts.items()})
    with storage.replacing(path) as scratch, disk.create(scratch) as file:
        pq.write_table(
            table, file, compression="zstd", use_dictionary=False, column_encoding=_SPLIT, write_page_checksum=True
        )


def link_shard(path: Path, folder: Path, number: int) -> None:
    """Hard-link the shard at `path` as shard `number` of a folder; copy it where the file system has no hard links."""
    target = shard_path(folder, number)
    target.parent.mkdir(parents=True, exist_ok=True)
    storage.hard_link(path, target)


def shards(folder: Path) -> list[Path]:
    """Return the shards of a folder of vectors, in order.

    Raises:
        InputError: the folder has no shards.
        DamageError: the folder is complete, and its shards are not those of its manifest.
    """
    paths = sorted((folder / VECTORS).glob(PARTS))
    if not paths:
        raise path_error(folder, f"has no {VECTORS}/{PARTS}; build it with `hybrid encode`", code="no-such-file")
    storage.check_listed(folder, paths, f"{VECTORS}/{PARTS}")
    return paths


def refuse_lost_vectors(folder: Path, vectors: int) -> None:
    """Refuse to publish a folder whose shards hold another number of vectors than the stage wrote.

    Raises:
        HybridError: a shard was removed or replaced meanwhile.
    """
    count = sum(pq.read_metadata(path).num_rows for path in shards(folder))
    storage.refuse_lost_rows(folder / VECTORS, "vectors", count, vectors)


def shard_facts(path: Path) -> dict[str, int]:
    """Return the counts that `write_shard` stored in the footer."""
    metadata = pq.read_schema(path).metadata or {}
    return {name.decode(): int(value) for name, value in metadata.items()}


def read_shard(path: Path) -> Vectors:
    """Return the vectors [n, d] of one shard as float32."""
    column = _read(path, "vector")["vector"].combine_chunks()
    if not pa.types.is_fixed_size_list(column.type) or not pa.types.is_floating(column.type.value_type):
        raise DamageError(f"{path}: the vectors are {column.type}; restore it", code="damaged", path=path)
    flat = column.flatten().to_numpy(zero_copy_only=False)
    return np.asarray(flat, np.float32).reshape(len(column), column.type.list_size)


def read_shards(folder: Path) -> Iterator[Vectors]:
    """Yield the vectors [n, d] of each shard of a folder, in order.

    Raises:
        DamageError: the vectors of a shard have another length than those of the first.
    """
    dim = None
    for path in shards(folder):
        vectors = read_shard(path)
        if dim not in (None, vectors.shape[1]):
            problem = f"{path}: has vectors of {vectors.shape[1]} values, not {dim}; restore it"
            raise DamageError(problem, code="damaged", path=path)
        dim = vectors.shape[1]
        yield vectors


def read_vectors(folder: Path) -> Vectors:
    """Return the vectors [n, d] of all shards of a folder; see `read_shards`."""
    return np.concatenate(list(read_shards(folder)))


def read_ids(folder: Path) -> pl.Series:
    """Return the ids of a folder of vectors, by row."""
    return pl.concat([pl.Series("id", _read(path, "id")["id"], dtype=pl.String) for path in shards(folder)])


def _read(path: Path, *columns: str) -> pa.Table:
    """Return columns of a shard, all without any; a damaged page is refused, also in a folder without manifest."""
    storage.check_parts(path.parent, path.name)
    with storage.reading(path):
        table = pq.read_table(path, columns=[*columns] or None, page_checksum_verification=True)
    if lost := [name for name in columns if name not in table.column_names]:
        raise DamageError(f"{path}: has no column {lost[0]!r}; restore it", code="damaged", path=path)
    return table


SAVE_SECONDS = 1.0  # between two writes of blocks, which take hundredths of a second
_AT_ONCE = 256, 1024  # texts of a block: on a CPU, on a GPU
CPU_BATCH_TOKENS, GPU_BATCH_TOKENS = 1024, 1 << 16

Texts: TypeAlias = "pa.RecordBatch | pa.Table"  # columns id, title, text
Advance: TypeAlias = Callable[[int], None]
Block: TypeAlias = tuple[list[str], list[str]]  # titles and texts
Encoded: TypeAlias = tuple[Vectors, int]  # vectors [n, d] of a block, and the number of truncated texts


def missing_shards(path_of: Callable[[int], Path], total: int, size: int) -> list[int]:
    """Return the numbers of the shards of `size` texts that do not exist, of `total` texts.

    Args:
        path_of: returns the path of a shard.
        total: number of texts.
        size: number of texts of a shard.
    """
    return [number for number in range(-(-total // size)) if not path_of(number).exists()]


def texts_of(numbers: Collection[int], total: int, size: int) -> int:
    """Return the number of texts in some shards of `size` texts, of `total` texts."""
    return sum(min(size, total - number * size) for number in numbers)


def progress(
    what: str, path_of: Callable[[int], Path], total: int, size: int, unit: str = "texts"
) -> AbstractContextManager[Advance]:
    """Return the progress of `total` texts, of which those in shards that exist are done; see `missing_shards`."""
    done = total - texts_of(missing_shards(path_of, total, size), total, size)
    return console.progress(what, total, unit, done=done)


D = TypeVar("D", bound=tuple[Any, int])


@dataclass(frozen=True)
class TextShards:
    """Shards that are encoded from texts; those that exist already are skipped.

    The blocks of an unfinished shard are written next to it, unless the last were written `SAVE_SECONDS` ago or less.

    Attributes:
        texts: tables with the columns id, title, text.
        path_of: returns the path of a shard.
        size: number of texts of a shard.
        at_once: number of texts of a block.
        first: number of the first shard.
    """

    texts: Iterable[Texts]
    path_of: Callable[[int], Path]
    size: int
    at_once: int
    first: int = 0

    def encode(
        self,
        encoded: Callable[[Iterable[Block]], Iterable[D]],
        write: Callable[[Path, pa.Array, list[D]], None],
        read: Callable[[Path], D],
        advance: Advance,
    ) -> None:
        """Encode blocks of texts, and write each shard when its blocks are complete.

        Args:
            encoded: encodes blocks, in order: rows of each, and the number of truncated texts.
            write: writes path, ids and blocks of a shard, or of its beginning.
            read: reads what `write` wrote as one block.
            advance: called with the number of encoded texts.
        """
        started: deque[tuple[Path, pa.Array, list[Path]]] = deque()  # the shards in progress, and files of their blocks
        parts: list[D] = []
        saved = monotonic()
        for done in encoded(self.blocks(started, advance)):
            parts.append(done)
            advance(len(done[0]))
            path, ids, files = started[0]
            begin, rows = sum(map(storage.row_count, files)), sum(len(block) for block, _ in parts)
            if begin + rows == len(ids):
                write(path, ids, [*map(read, files), *parts])
                started.popleft()
                _remove(files)
            elif monotonic() - saved >= SAVE_SECONDS:
                files.append(unfinished_shard(path, len(files)))
                write(files[-1], ids.slice(begin, rows), parts)
            else:
                continue
            parts, saved = [], monotonic()

    def blocks(self, started: deque[tuple[Path, pa.Array, list[Path]]], advance: Advance) -> Iterator[Block]:
        """Yield the texts that are to be encoded; `started` receives each shard before its blocks."""
        for number, shard in enumerate(storage.regroup(map(pa.table, self.texts), self.size), self.first):
            path = self.path_of(number)
            files = [*takewhile(Path.exists, map(partial(unfinished_shard, path), count()))]
            if path.exists():
                _remove(files)
                continue
            started.append((path, shard["id"].combine_chunks(), files))
            advance(done := sum(map(storage.row_count, files)))
            for begin in range(done, len(shard), self.at_once):
                part = shard.slice(begin, self.at_once)
                yield part["title"].to_pylist(), part["text"].to_pylist()


def unfinished_shard(path: Path, number: int) -> Path:
    """Return the path of some blocks of the unfinished shard at `path`."""
    return path.with_name(f".{path.stem}.{number}{path.suffix}")


def _remove(files: list[Path]) -> None:
    """Remove files, the last one first: those that remain after an interruption are numbered from 0."""
    for file in reversed(files):
        disk.remove(file)


def encode_texts(
    folder: Path,
    texts: Iterable[Texts],
    encoded: Callable[[Iterable[Block]], Iterable[Encoded]],
    of_queries: bool,
    options: Shards,
    advance: Advance,
    gpu: bool,
    first: int = 0,
) -> None:
    """Encode texts to shards of vectors in `folder`; see `TextShards`.

    Args:
        folder: folder of the shards.
        texts: tables with the columns id, title, text.
        encoded: encodes blocks, in order: `partial(map, function)`, or on other machines.
        of_queries: the texts are queries, for messages.
        options: size of shards, type of the stored vectors.
        advance: called with the number of encoded texts.
        gpu: the encoder takes many texts at once, as on a GPU.
        first: number of the first shard.

    Raises:
        HybridError: a vector is not finite.
    """

    def write(path: Path, ids: pa.Array, parts: list[Encoded]) -> None:
        vectors = np.concatenate([part for part, _ in parts]).astype(options.vector_dtype)
        remedy = "use --dtype fp32 and --vector-dtype float32, or another model"
        check_finite(vectors, pl.Series(ids), "query" if of_queries else "document", remedy)
        write_shard(path, ids, vectors, truncated=sum(truncated for _, truncated in parts))

    def read(path: Path) -> Encoded:
        return read_shard(path), shard_facts(path)["truncated"]

    shards = TextShards(texts, partial(shard_path, folder), options.shard_size, _AT_ONCE[gpu], first)
    shards.encode(encoded, write, read, advance)


def remaining_blocks(folder: Path, texts: Iterable[Texts], options: Shards, gpu: bool) -> Iterator[Block]:
    """Yield the blocks that `encode_texts` encodes in a folder, which may have shards and parts of one."""
    shards = TextShards(texts, partial(shard_path, folder), options.shard_size, _AT_ONCE[gpu])
    return shards.blocks(deque(), lambda _: None)


def check_finite(vectors: np.ndarray, ids: pl.Series, what: str, remedy: str) -> None:
    """Refuse vectors [n, d] with a value that is not finite; the message names the first id and the remedy."""
    finite = np.isfinite(vectors).all(1)
    if not finite.all():
        problem = (
            f"{what} {ids[int(finite.argmin())]}: the vector is not finite, the first of {int((~finite).sum()):,} such "
            f"vectors; {remedy}"
        )
        raise HybridError(problem, code="values-not-finite", id=ids[int(finite.argmin())], count=int((~finite).sum()))


def link_vectors(old: Path, folder: Path) -> None:
    """Hard-link (or copy) the shards of an index to another folder."""
    storage.check_parts(old, VECTORS)
    for number, shard in enumerate(shards(old)):
        link_shard(shard, folder, number)


def keep_vectors(old: Path, folder: Path, kept: npt.NDArray[np.bool_]) -> int:
    """Link the shards of an index to another folder, or write those of its rows [N] that are `kept`.

    Returns:
        Number of shards.
    """
    storage.check_parts(old, VECTORS)
    begin = number = 0
    for shard in shards(old):
        mine = kept[begin : begin + pq.read_metadata(shard).num_rows]
        begin += len(mine)
        if mine.all():
            link_shard(shard, folder, number)
        elif mine.any() and not shard_path(folder, number).exists():
            rows = _read(shard).combine_chunks().filter(pa.array(mine))
            column = rows["vector"].combine_chunks()
            vectors = column.flatten().to_numpy(zero_copy_only=False).reshape(len(column), -1)
            write_shard(shard_path(folder, number), rows["id"].combine_chunks(), vectors, **shard_facts(shard))
        number += bool(mine.any())
    return number


def vector_blocks(folder: Path, size: int) -> Iterator[Vectors]:
    """Yield the vectors of all shards, in order, in blocks of `size` rows; the last block may be shorter."""
    waiting: list[Vectors] = []
    for shard in read_shards(folder):
        waiting.append(shard)
        if (count := sum(map(len, waiting))) >= size:
            vectors = waiting[0] if len(waiting) == 1 else np.concatenate(waiting)
            whole = count // size * size
            yield from (vectors[begin : begin + size] for begin in range(0, whole, size))
            waiting = [vectors[whole:]] if whole < count else []
    if waiting:
        yield np.concatenate(waiting)


def truncate_vectors(old: Path, folder: Path, dim: int, normalize: bool, vector_dtype: str) -> None:
    """Write the vectors of an index, truncated to their leading values.

    Args:
        old: folder of the index.
        folder: folder of the new shards.
        dim: number of leading values.
        normalize: scale the truncated vectors to length 1.
        vector_dtype: type of the stored vectors.
    """
    for number, (shard, vectors) in enumerate(zip(shards(old), read_shards(old), strict=True)):
        values = vectors[:, :dim]
        if normalize:
            values = values / np.maximum(np.linalg.norm(values, axis=1, keepdims=True), 1e-12)
        write_shard(
            shard_path(folder, number),
            _read(shard, "id")["id"].combine_chunks(),
            values.astype(vector_dtype),
            **shard_facts(shard),
        )


def block_encoder(encoder: Any, of_queries: bool, batch_tokens: int | None) -> Callable[[Block], Encoded]:
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


_SPARSE_BATCH_TOKENS = 1024, 1 << 14  # on a CPU, on a GPU; a token has a score for each term of the vocabulary

Weighted: TypeAlias = tuple[pa.Table, int]  # terms and weights of a block, and the number of truncated documents


def block_weights(encoder: Any, steps: int, batch_tokens: int | None) -> Callable[[Block], Weighted]:
    """Return the function that computes the weights of a block of documents.

    Args:
        encoder: a sparse encoder.
        steps: see `TermWeights.document_weights`.
        batch_tokens: tokens per batch; None for the default of the device.
    """
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
    (folder / WEIGHT_SHARDS).mkdir(exist_ok=True)
    shards = TextShards(texts, partial(weight_shard, folder), size, _AT_ONCE[0])
    shards.encode(weighted, _write_weights, _read_weights, advance)


def _write_weights(path: Path, ids: pa.Array, parts: list[Weighted]) -> None:
    """Write the ids and weights of a shard, with the number of truncated documents in the footer."""
    table = pa.concat_tables([part for part, _ in parts]).add_column(0, "id", ids)
    table = table.replace_schema_metadata({"truncated": str(sum(truncated for _, truncated in parts))})
    with storage.replacing(path) as scratch, disk.create(scratch) as file:
        pq.write_table(table, file, compression="zstd", write_page_checksum=True)


def _read_weights(path: Path) -> Weighted:
    return _read(path, "terms", "weights"), shard_facts(path)["truncated"]


_LENGTHS = 500  # documents whose tokens are counted


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
