"""Documents to an index of learned weights with a sparse encoder."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from hybrid_cli import artifacts, console, storage
from hybrid_cli.artifacts.indexes import model_input
from hybrid_cli.artifacts.opening import limit_threads
from hybrid_cli.commands.common import as_names
from hybrid_cli.commands.retrieval import OF_TRANSFORMER, SPARSE_TEXTS, SparseTexts
from hybrid_cli.encoders.models import resolve
from hybrid_cli.encoders.sparse import TermWeights, load_sparse, read_sparse_contract
from hybrid_cli.errors import option_error
from hybrid_cli.indexes.shards import Block, Weighted, block_weights, encode_weights, progress, weight_shard
from hybrid_cli.lexical.build import DEEPCT_B, DEEPCT_K1, build_matrix
from hybrid_cli.lexical.options import ENGLISH
from hybrid_cli.stages.encode import shared
from hybrid_cli.storage import Kind


def encode_sparse(settings: SparseTexts, source: Path, changes: dict[str, Any]) -> Path:
    """Write the weights of a corpus by a sparse encoder as an impact matrix.

    Args:
        settings: options of the job.
        source: file of the documents.
        changes: fields of the contract that presets and options set.
    """
    names = as_names(settings.model)
    settings.check_facts(f"{names[0]} is a learned sparse encoder", job=SPARSE_TEXTS, encoder=OF_TRANSFORMER)
    if len(names) > 1:
        reason = "a sparse encoder is not combined with another; search both and fuse the runs"
        raise option_error("model", names, reason, code="other-kind", kind="sparse")
    settings = shared.on_cluster(settings)
    dtype = shared.precision(settings, OF_TRANSFORMER)
    contract = read_sparse_contract(resolve(names[0]), settings.architecture).changed(**changes)
    steps = quantization_steps(settings, contract.counts)
    options = {
        "architecture": settings.architecture,
        "quantization": steps,
        "shard_size": settings.shard_size,
        "contract": changes,
        "dtype": dtype,
        "language": ENGLISH,
        "fields": ["title", "text"],
    }
    inputs = {"corpus": source, "model": model_input(names[0])}
    inputs |= {"expansion": settings.expansion} if settings.expansion else {}
    output = artifacts.output_of(settings, Kind.LEXICAL_INDEX, inputs, options)
    if output.up_to_date:
        return output.path
    encoder = open_sparse(settings, shared.own_device(settings), dtype, changes)
    texts, total = shared.texts_in(source, Kind.DENSE_INDEX, settings.expansion)
    with output.folder() as (work, counts):
        with progress("encode", partial(weight_shard, work), total, settings.shard_size) as advance:
            function = block_weights(encoder, steps, settings.batch_tokens)
            weighted = shared.blocks(settings, function, partial(_start, steps, dtype, changes))
            encode_weights(work, texts, weighted, settings.shard_size, advance)
        storage.refuse_lost(weight_shard(work, number) for number in range(-(-total // settings.shard_size)))
        built = build_matrix(work, contract.counts)
        storage.refuse_lost_rows(work, "documents", built.documents, total)
        counts |= built.counts() | {"encoder": encoder.fingerprint, "contract": encoder.describe()}
        counts |= {"k1": DEEPCT_K1, "b": DEEPCT_B} if contract.counts else {"quantization": steps}
    console.note(
        f"encode: {output.path}: {console.counted(document=total)}, "
        f"{counts['postings'] / total:.1f} terms per document, {built.truncated / total:.1%} truncated; "
        f"{contract.architecture}, {dtype}"
    )
    if settings.expansion and built.truncated:
        console.warn(
            f"encode: {built.truncated:,} of {console.counted(document=total)} were cut to {contract.doc_max_len} "
            "tokens, and their --expansion, which follows the text, first; use a larger --doc-max-len",
            code="truncated-documents",
            count=built.truncated,
            documents=total,
            limit=contract.doc_max_len,
        )
    elif built.truncated > shared.MUCH_TRUNCATED * total:
        shared.warn_truncated(source, encoder, built.truncated, total)
    return output.path


def quantization_steps(settings: SparseTexts, counts: bool) -> int:
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


def open_sparse(settings: SparseTexts, device: str, dtype: Any, changes: dict[str, Any]) -> TermWeights:
    """Return the sparse encoder of the settings with a changed contract; set the threads of PyTorch."""
    limit_threads(settings.threads)
    name = as_names(settings.model)[0]
    return load_sparse(name, device=device, dtype=dtype, architecture=settings.architecture, **changes)


def _start(
    steps: int, dtype: str, changes: dict[str, Any], settings: SparseTexts, device: str
) -> Callable[[Block], Weighted]:
    """Open the encoder in a process of its own."""
    return block_weights(open_sparse(settings, device, dtype, changes), steps, settings.batch_tokens)
