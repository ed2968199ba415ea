"""What the jobs share: texts and processes that encode them; the index of vectors, and what a manifest records."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa

from hybrid_cli import cluster, console, languages
from hybrid_cli.artifacts import Output
from hybrid_cli.artifacts.indexes import read_info
from hybrid_cli.collections import collection as collections
from hybrid_cli.commands import VectorIndex
from hybrid_cli.commands import retrieval as jobs
from hybrid_cli.commands.common import EncoderContract
from hybrid_cli.encoders import composite
from hybrid_cli.encoders.contract import COMBINATION, ENDPOINT, STATIC, Encoder, kind_of, reads_english_only
from hybrid_cli.encoders.models import pick_device, pick_devices, pick_dtype
from hybrid_cli.errors import option_error
from hybrid_cli.indexes import construction
from hybrid_cli.indexes.auto import RECALL_SAMPLE, choose, measure_recall
from hybrid_cli.indexes.dense import IndexInfo
from hybrid_cli.indexes.shards import Block, D, Texts, refuse_lost_vectors, unread_share
from hybrid_cli.memory import cpu_count
from hybrid_cli.reporting.tables import figure
from hybrid_cli.reporting.terminal import show_candidates
from hybrid_cli.storage import Kind

MANY_OTHERS = 0.2  # share of documents in other languages than English
MUCH_TRUNCATED = 0.1  # share of the documents above which the loss is a warning
E = TypeVar("E", bound=jobs.EncodedTexts)


def source_of(settings: jobs.Texts) -> tuple[Path, Kind]:
    """Return the file of texts, and the kind of the output."""
    if settings.queries is not None:
        return collections.queries_path(settings.queries, settings.split), Kind.VECTORS
    assert settings.collection is not None  # checked by the settings
    if settings.split is not None:
        return collections.queries_path(settings.collection, settings.split), Kind.VECTORS
    return collections.corpus_path(settings.collection), Kind.DENSE_INDEX


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


def encoder_of(folders: Sequence[Path]) -> str:
    """Return the fact about one or two dense encoders: two are a transformer if one is."""
    if {*map(kind_of, folders)} == {ENDPOINT}:
        return jobs.OF_ENDPOINT
    every = [
        part for folder in folders for part in (composite.parts(folder) if kind_of(folder) == COMBINATION else [folder])
    ]
    return jobs.OF_STATIC if all(kind_of(folder) == STATIC for folder in every) else jobs.OF_TRANSFORMER


def precision(settings: jobs.Texts, encoder: str) -> Any:
    """Return the precision with `auto` resolved, because it affects the vectors; fp32 of an encoder behind an API."""
    if encoder == jobs.OF_ENDPOINT:
        return "fp32"
    device = device_of(settings) if isinstance(settings, jobs.EncodedTexts) else pick_device(settings.device)
    return str(pick_dtype(settings.dtype, device)).replace("torch.bfloat", "bf").replace("torch.float", "fp")


def device_of(settings: jobs.EncodedTexts) -> str:
    """Return the first device that encodes; on a cluster, as the settings name it."""
    if settings.devices:
        return pick_devices(settings.devices)[0]
    return pick_device(settings.device) if settings.ray_address is None else settings.device


def on_cluster(settings: E) -> E:
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


def own_device(settings: jobs.EncodedTexts) -> str:
    """Return the device of this process, which opens the encoder also where other processes encode."""
    return "cpu" if settings.devices or settings.ray_address is not None else settings.device


def blocks(
    settings: E, function: Callable[[Block], D], start: Callable[[E, str], Callable[[Block], D]]
) -> Callable[[Iterable[Block]], Iterable[D]]:
    """Return the function that maps blocks: in this process, in one process per device, or on a Ray cluster.

    Args:
        settings: options of the job.
        function: function of a block in this process.
        start: makes that of another process, from its settings and a device.
    """
    if settings.ray_address is not None:
        of_process = partial(start, settings.of_worker(), settings.device)
        return partial(cluster.map_blocks, settings, of_process, gpu=settings.device.startswith("cuda"))
    if not settings.devices:
        return partial(map, function)
    devices = pick_devices(settings.devices)
    settings = settings.changed(threads=settings.threads or max(1, cpu_count() // len(devices)))
    return partial(cluster.map_blocks, settings, partial(start, settings), devices=devices)


def warn_truncated(corpus: Path, encoder: Encoder, truncated: int, total: int) -> None:
    """Warn about the tokens of documents that the encoder does not read, estimated on some documents."""
    if not isinstance(length := encoder.describe().get("doc_max_len"), int) or not hasattr(encoder, "unread_tokens"):
        return
    unread = unread_share(corpus, encoder, total)
    console.warn(
        f"encode: {truncated / total:.0%} of the documents have more than {length} tokens, and about {unread:.0%} of "
        "all tokens are not read; pass a larger --doc-max-len, or divide documents with `prepare --split-passages`",
        code="truncated-documents",
        count=truncated,
        documents=total,
        limit=length,
        unread=round(unread, 3),
    )


def warn_english_only(corpus: Path, models: Sequence[str], folders: Sequence[Path]) -> None:
    """Warn about documents in languages that an English model cannot read."""
    counts = collections.languages_of(corpus)
    english = [model for model, folder in zip(models, folders, strict=True) if reads_english_only(folder)]
    if english and (share := languages.others(counts, than=languages.ENGLISH)) >= MANY_OTHERS:
        text = f"encode: {english[0]} reads English only, and the documents are {languages.listed(counts)}; name a"
        text = f"{text} multilingual model: --model BAAI/bge-m3 (preset bge-m3), or intfloat/multilingual-e5-small (e5)"
        console.warn(text, code="english-only", model=english[0], others=round(share, 3))


V = TypeVar("V", bound=VectorIndex)


def with_type(settings: V, binary: bool) -> V:
    """Return settings with an index type: the set one, else that for which the encoder was trained."""
    return settings if settings.index_type else settings.changed(index_type="binary" if binary else "flat")


def without_contract(recorded: dict[str, Any]) -> dict[str, Any]:
    """Return options without those of the contract, which the manifest stores under `contract`."""
    contract = {"truncate_dim", *EncoderContract.declared()}
    return {name: value for name, value in recorded.items() if name not in contract}


def info_of_encoder(encoder: Encoder, vectors: int, truncated: int) -> IndexInfo:
    """Return the properties of an index of the vectors of an encoder, which is not built yet."""
    return IndexInfo(vectors, encoder.dim, encoder.fingerprint, encoder.describe(), truncated)


def check_space(
    settings: jobs.DenseTexts | jobs.ImportedVectors | jobs.CombinedIndexes, dim: int, vectors: int, output: Output
) -> None:
    """Check that FAISS can build the index, and that memory and disk hold it and the stored vectors."""
    size = 2 if settings.vector_dtype == "float16" else 4
    construction.check_recipe(settings, dim, vectors, output.partial, vectors * dim * size)


def finish(settings: VectorIndex, work: Path, info: IndexInfo, kind: Kind = Kind.DENSE_INDEX) -> dict[str, Any]:
    """Build the index of the shards in `work`, unless they are vectors of queries; return the counts."""
    built = _build(settings, work, info) if kind == Kind.DENSE_INDEX else info
    refuse_lost_vectors(work, info.vectors)
    return built.counts()


def _build(settings: VectorIndex, work: Path, info: IndexInfo) -> IndexInfo:
    """Build the index of the shards in `work`; measure the recall if the type or an option requires it."""
    if settings.index_type == "auto":
        with console.progress("choose", unit="indexes") as advance:
            tried = choose(work, settings, advance)
        show_candidates([asdict(candidate) for candidate in tried])
        return replace(info, factory=tried[-1].factory, recall={"recall@100": tried[-1].recall})
    with console.progress("index", info.vectors, "vectors") as advance:
        info = replace(info, factory=construction.build(work, settings, advance), recall={})
    return replace(info, recall=_recall(work, info, settings.seed)) if settings.recall_check else info


def _recall(folder: Path, info: IndexInfo, seed: int) -> dict[str, float]:
    recall = measure_recall(folder, info.factory, seed)
    shares = ", ".join(f"{name} {figure(share)}" for name, share in recall.items())
    asked = console.counted(document=min(info.vectors, RECALL_SAMPLE))
    measured = f"{shares} against exact search, for {asked} as queries"
    note = measured if recall else "an exact index; --recall-check measures approximate ones"
    console.note(f"encode: {info.factory}: {note}", code="recall", factory=info.factory, recall=recall)
    return recall


def check_recall(settings: VectorIndex, output: Output) -> Path:
    """Measure the recall of an up-to-date index, if requested."""
    if settings.recall_check:
        _recall(output.path, read_info(output.path), settings.seed)
    return output.path
