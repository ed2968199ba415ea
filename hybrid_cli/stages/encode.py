"""`encode`: a corpus to a dense index, or queries to vectors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import torch

from hybrid_cli import artifacts, console, vectors
from hybrid_cli.artifacts import Claim, Kind, Manifest
from hybrid_cli.collections import collection as collections
from hybrid_cli.config import Encoding, RecallCheck, VectorIndex
from hybrid_cli.encoders import combination
from hybrid_cli.encoders.combination import Combination, Recipe
from hybrid_cli.encoders.contract import TRANSFORMER, kind_of, read_contract
from hybrid_cli.encoders.encoder import Encoder, open_encoder
from hybrid_cli.encoders.models import pick_device, pick_dtype, resolve
from hybrid_cli.errors import HybridError, InputError
from hybrid_cli.vectors.exact import COMBINED, model_of, query_encoder

_AT_ONCE = 1024  # texts between two beats of the progress line
_CPU_BATCH_TOKENS, _GPU_BATCH_TOKENS = 2048, 1 << 16

Advance = Callable[[int], None]
Texts: TypeAlias = "pa.RecordBatch | pa.Table"  # columns id, title, text


def encode(
    collection: Path | None,
    *,
    output: Path,
    model: str = "minilm",
    second: str | None = None,
    beside: Path | None = None,
    combine: Recipe = Recipe(),  # noqa: B008 - frozen
    queries: Path | None = None,
    split: str | None = None,
    index: VectorIndex = VectorIndex(),  # noqa: B008 - frozen
    encoding: Encoding = Encoding(),  # noqa: B008 - frozen
    contract: Mapping[str, Any] | None = None,
    recall_check: bool = False,
    device: str = "auto",
    threads: int | None = None,
    overwrite: bool = False,
) -> Path:
    """Encode a corpus and build its index; with `queries` or `split`, encode queries to vectors only.

    Memory holds one shard at a time, and the index while FAISS builds it (a flat one is written as a stream). A killed
    run goes on with the first missing shard.

    Args:
        collection: a collection or a corpus; not needed with `queries`. Or a dense index: its vectors get another
            index, and nothing is encoded.
        model: `minilm`, a folder, or a Hugging Face id.
        second: another one to combine it with, by `combine`; the combination then lies in the index.
        beside: where `collection` is a dense index, another one of the same corpus: both are combined from the vectors
            that they hold, and nothing is encoded.
        recall_check: measure what an approximate index finds of the exact hits, and keep it with the index.
        contract: fields of the encoder's contract to change; they are kept with the index, and `search` applies them.

    Raises:
        InputError: collection or model are not usable, or FAISS cannot build such an index.
        HybridError: the encoder gave a vector that is not finite.
    """
    changes = {name: value for name, value in (contract or {}).items() if value is not None}
    if beside is not None:
        _refuse(changes, "vectors that are there already")
        index = _typed(index)
        return _index_both([collection or beside, beside], combine, output, index, encoding, recall_check, overwrite)
    if collection is not None and _is_dense_index(collection):
        _refuse(changes, "vectors that are there already")
        return _index_again(collection, output, index, recall_check, threads, overwrite)
    source, kind = _source(collection, queries, split)
    dtype = _dtype(encoding, device)
    folders = _folders(model, second, changes)
    index = _typed(index, second is None and _trained_for_codes(folders["model"]))
    claim = artifacts.claim(
        output,
        kind,
        "encode",
        inputs={"corpus" if kind == Kind.DENSE_INDEX else "queries": source, **folders},
        options={
            "model": model,
            **({} if second is None else {"second": second, **asdict(combine)}),
            "contract": changes,
            "dtype": dtype,
            "vector_dtype": encoding.vector_dtype,
            "shard_size": encoding.shard_size,
            **(_options(index) if kind == Kind.DENSE_INDEX else {}),
        },
        overwrite=overwrite,
    )
    if claim.up_to_date:
        return _as_it_is(output, recall_check)
    if threads:
        torch.set_num_threads(threads)
        vectors.set_threads(threads)
    encoders = [open_encoder(folder, device=device, dtype=dtype, overrides=changes) for folder in folders.values()]
    encoder = encoders[0] if second is None else Combination(combine, encoders)
    _write(claim, source, encoder, index, encoding, list(folders.values()), recall_check)
    return output


def _folders(model: str, second: str | None, changes: Mapping[str, Any]) -> dict[str, Path]:
    """The models by role; two keep their own contracts."""
    if second is None:
        return {"model": resolve(model)}
    _refuse(changes, "two models; each keeps its own contract")
    return {"model": resolve(model), "second": resolve(second)}


def _refuse(changes: Mapping[str, Any], what: str) -> None:
    if changes:
        options = ", ".join("--" + name.replace("_", "-") for name in changes)
        raise InputError(f"{options}: means nothing to {what}")


def _typed(index: VectorIndex, binary: bool = False) -> VectorIndex:
    """The index with a type: the one given, else that which the encoder was trained for."""
    if index.index_type:
        return index
    return replace(index, index_type="binary" if binary and not index.factory else "flat")


def _options(index: VectorIndex) -> dict[str, Any]:
    """What the manifest says of an index; how to choose only where it is chosen."""
    options = asdict(index)
    choice = options.pop("choice")
    return {**options, **choice} if index.index_type == "auto" else options


def _trained_for_codes(model: Path) -> bool:
    return kind_of(model) == TRANSFORMER and read_contract(model).binary


def _is_dense_index(path: Path) -> bool:
    manifest = artifacts.find_manifest(path)
    return manifest is not None and manifest.kind == Kind.DENSE_INDEX


def _index_again(
    old: Path, output: Path, index: VectorIndex, recall_check: bool, threads: int | None, overwrite: bool
) -> Path:
    """Another index over the vectors of a dense index, which stay what they are; the corpus and model too."""
    made = artifacts.read_manifest(old, Kind.DENSE_INDEX)
    index = _typed(index, made.counts["contract"].get("binary", False))
    claim = artifacts.claim(
        output,
        Kind.DENSE_INDEX,
        "encode",
        inputs={"vectors": old, **_corpus_of(made)},
        options={**made.options, **_options(index)},
        overwrite=overwrite,
    )
    if claim.up_to_date:
        return _as_it_is(output, recall_check)
    vectors.set_threads(threads)
    vectors.check_recipe(index, made.counts["dim"], made.counts["vectors"])
    with claim.folder() as (work, counts):
        for shard in vectors.shards(old):
            vectors.share_shard(shard, work)
        if (old / COMBINED).is_dir():
            artifacts.share(old / COMBINED, work / COMBINED)
        described = {name: value for name, value in made.counts.items() if not name.startswith("recall@")}
        counts |= described | _build(work, index, described["vectors"], recall_check)
    console.note(f"encode: {output}: {made.counts['vectors']:,} vectors of {old}, {counts['factory']}")
    return output


def _corpus_of(made: Manifest) -> dict[str, Path]:
    """The corpus that an index was made from, where it still is; there people see the texts of hits."""
    found = {role: Path(source["path"]) for role, source in made.inputs.items() if role == "corpus"}
    return {role: path for role, path in found.items() if path.exists()}


def _index_both(
    indexes: Sequence[Path],
    combine: Recipe,
    output: Path,
    index: VectorIndex,
    encoding: Encoding,
    recall_check: bool,
    overwrite: bool,
) -> Path:
    """One index of two over one corpus, by the combination of the encoders that made them; nothing is encoded."""
    opened = [vectors.DenseIndex.open(path) for path in indexes]
    if not opened[0].docids.equals(opened[1].docids):
        raise InputError(
            f"{indexes[1]}: holds other documents than {indexes[0]}; encode one collection with both models"
        )
    first, second = (each.manifest.options["contract"] for each in opened)
    combine = replace(combine, changes=(first, second))
    claim = artifacts.claim(
        output,
        Kind.DENSE_INDEX,
        "encode",
        inputs={"vectors": indexes[0], "beside": indexes[1], **_corpus_of(opened[0].manifest)},
        options={
            **{name: opened[0].manifest.options[name] for name in ("model", "dtype")},
            "contract": {},
            "vector_dtype": encoding.vector_dtype,
            "shard_size": encoding.shard_size,
            **asdict(combine),
            **_options(index),
        },
        overwrite=overwrite,
    )
    if claim.up_to_date:
        return _as_it_is(output, recall_check)
    encoder = Combination(combine, [query_encoder(each) for each in opened])
    total = len(opened[0].docids)
    vectors.check_recipe(index, encoder.dim, total)
    with claim.folder() as (work, counts):
        combination.write(work / COMBINED, [model_of(each) for each in opened], combine)
        for number, begin in enumerate(range(0, total, encoding.shard_size)):
            rows = np.arange(begin, min(total, begin + encoding.shard_size))
            halves = [each.vectors_of(rows) for each in opened]
            whole = np.hstack(halves) if combine.how == "concat" else halves[0] + halves[1]
            ids = opened[0].docids.gather(rows).to_arrow()
            vectors.write_shard(vectors.shard_path(work, number), ids, whole.astype(encoding.vector_dtype))
        counts |= _build(work, index, total, recall_check)
        counts |= {
            "vectors": total,
            "dim": encoder.dim,
            "truncated": max(each.manifest.counts["truncated"] for each in opened),
            "encoder": encoder.fingerprint,
            "contract": encoder.describe(),
        }
    console.note(f"encode: {output}: {total:,} vectors of {indexes[0]} and {indexes[1]}, {encoder.dim} dimensions")
    return output


def _build(work: Path, index: VectorIndex, total: int, recall_check: bool) -> dict[str, Any]:
    """Build the index; its factory string, and what it finds of the exact hits where that is asked for."""
    if index.index_type == "auto" and not index.factory:
        return _choose(work, index)
    with console.progress("index", total, "vectors") as advance:
        factory = vectors.build(work, index, advance)
    return {"factory": factory, **(_recall(work, factory, index.seed, total) if recall_check else {})}


def _recall(index: Path, factory: str, seed: int, total: int) -> dict[str, float]:
    """What an index finds of the exact hits, which is printed."""
    recall = vectors.measure_recall(index, factory, RecallCheck(seed=seed))
    if recall:
        shares = ", ".join(f"{name} {share:.4f}" for name, share in recall.items())
        console.note(f"encode: {factory}: {shares} of exact search for {min(total, RecallCheck.sample):,} documents")
    return recall


def _as_it_is(output: Path, recall_check: bool) -> Path:
    """What is up to date; the recall of an index is measured where that is asked for."""
    made = artifacts.read_manifest(output)
    if recall_check and made.kind == Kind.DENSE_INDEX:
        _recall(output, made.counts["factory"], made.options["seed"], made.counts["vectors"])
    return output


def _choose(work: Path, index: VectorIndex) -> dict[str, Any]:
    """Let measuring choose; what was tried is printed, and what came of it is kept."""
    with console.progress("choose", unit="indexes") as advance:
        factory, tried = vectors.choose(work, index, advance)
    recall = f"recall@{index.choice.cutoff}"
    rows = [
        [each.index_type, each.factory, f"{each.documents:,}", f"{each.size:,.0f}", f"{each.recall:.4f}",
         f"{each.milliseconds:.2f}"]
        for each in tried
    ]  # fmt: skip
    console.table(["tried", "factory", "documents", "bytes/document", recall, "ms/query"], rows, left=["factory"])
    return {"factory": factory, recall: tried[-1].recall}


def _source(collection: Path | None, queries: Path | None, split: str | None) -> tuple[Path, Kind]:
    """What to encode, and what becomes of it."""
    if queries is not None:
        return collections.queries_path(queries, split), Kind.VECTORS
    if collection is None:
        raise InputError("nothing to encode: name a collection, or a file with --queries")
    if split is not None:
        return collections.queries_path(collection, split), Kind.VECTORS
    return collections.corpus_path(collection), Kind.DENSE_INDEX


def _dtype(encoding: Encoding, device: str) -> Any:
    """The option, with `auto` resolved, since it decides the vectors."""
    names = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}
    return names[pick_dtype(encoding.dtype, pick_device(device))]


def _write(
    claim: Claim,
    source: Path,
    encoder: Encoder,
    index: VectorIndex,
    encoding: Encoding,
    models: Sequence[Path],
    recall_check: bool,
) -> None:
    of_queries = claim.manifest.kind == Kind.VECTORS
    texts, total = (_queries if of_queries else _documents)(source)
    if not total:
        raise InputError(f"{source}: holds nothing to encode")
    if not of_queries:
        vectors.check_recipe(index, encoder.dim, total)
    with claim.folder() as (work, counts):
        if isinstance(encoder, Combination) and len(models) > 1:
            combination.write(work / COMBINED, models, encoder.recipe)
        with console.progress("encode", total, "texts") as advance:
            for number, shard in enumerate(artifacts.regrouped(map(pa.table, texts), encoding.shard_size)):
                path = vectors.shard_path(work, number)
                if path.exists():
                    advance(len(shard))
                else:
                    _encode_shard(path, shard, encoder, of_queries, encoding, advance)
        if not of_queries:
            counts |= _build(work, index, total, recall_check)
        truncated = sum(int(vectors.shard_facts(path).get("truncated", 0)) for path in vectors.shards(work))
        counts |= {
            "vectors": total,
            "dim": encoder.dim,
            "truncated": truncated,
            "encoder": encoder.fingerprint,
            "contract": encoder.describe(),
        }
    console.note(
        f"encode: {claim.output}: {total:,} {'queries' if of_queries else 'documents'}, {encoder.dim} dimensions, "
        f"{claim.manifest.options['dtype']}, {truncated / total:.1%} truncated"
    )


def _documents(source: Path) -> tuple[Iterable[Texts], int]:
    batches = (batch.rename_columns(["id", "title", "text"]) for batch in collections.documents(source))
    return batches, len(collections.docids(source))


def _queries(source: Path) -> tuple[Iterable[Texts], int]:
    frame = collections.read_queries(source)
    titles = pa.array([""] * len(frame), pa.string())
    table = pa.table(
        {
            "id": frame["qid"].to_arrow().cast(pa.string()),
            "title": titles,
            "text": frame["text"].to_arrow().cast(pa.string()),
        }
    )
    return [table], len(frame)


def _encode_shard(
    path: Path, shard: pa.Table, encoder: Encoder, of_queries: bool, encoding: Encoding, advance: Advance
) -> None:
    before = encoder.truncated
    parts = []
    for begin in range(0, len(shard), _AT_ONCE):
        part = shard.slice(begin, _AT_ONCE)
        parts.append(_encode_texts(part, encoder, of_queries, encoding.batch_tokens))
        advance(len(part))
    found = np.concatenate(parts).astype(encoding.vector_dtype)
    finite = np.isfinite(found).all(1)
    if not finite.all():
        text = f"{'query' if of_queries else 'document'} {shard['id'][int(finite.argmin())].as_py()}"
        raise HybridError(
            f"{text}: its vector is not finite, and {int((~finite).sum()) - 1} more like it; "
            "take --dtype fp32 and --vector-dtype float32, or another model"
        )
    vectors.write_shard(path, shard["id"].combine_chunks(), found, truncated=encoder.truncated - before)


def _encode_texts(part: pa.Table, encoder: Encoder, of_queries: bool, batch_tokens: int) -> np.ndarray:
    tokens = batch_tokens or (_CPU_BATCH_TOKENS if encoder.device.type == "cpu" else _GPU_BATCH_TOKENS)
    texts = part["text"].to_pylist()
    if of_queries:
        return encoder.encode_queries(texts, tokens)
    return encoder.encode_documents(part["title"].to_pylist(), texts, tokens)
