"""`encode`: encode a corpus as a dense index or queries as vectors, or rebuild a dense index."""

from __future__ import annotations

from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from hybrid_cli import artifacts, console, storage
from hybrid_cli.artifacts import Manifest, Output
from hybrid_cli.artifacts.indexes import info_of, model_input, read_info, recorded_corpora, recorded_model_input
from hybrid_cli.artifacts.opening import model_of, open_dense, query_encoder
from hybrid_cli.collections import collection as collections
from hybrid_cli.commands import Encode, VectorIndex
from hybrid_cli.commands.common import DENSE_INDEX, TEXTS, EncoderContract, as_names
from hybrid_cli.commands.retrieval import OF_SPARSE, OF_STATIC, OF_TRANSFORMER
from hybrid_cli.encoders import composite
from hybrid_cli.encoders.composite import Combination, CombinationRecipe, refuse_equal
from hybrid_cli.encoders.contract import TRANSFORMER, Encoder, kind_of, preset_fields, read_contract, refuse_truncation
from hybrid_cli.encoders.models import open_encoder, resolve
from hybrid_cli.encoders.sparse import read_sparse_contract
from hybrid_cli.errors import InputError, option_error
from hybrid_cli.indexes import construction
from hybrid_cli.indexes import shards as shards_module
from hybrid_cli.indexes.auto import RECALL_SAMPLE, choose, measure_recall
from hybrid_cli.indexes.construction import check_recipe
from hybrid_cli.indexes.dense import IndexInfo, combine_vectors
from hybrid_cli.indexes.external import read_external, rows_of, write_external
from hybrid_cli.indexes.faiss import set_threads
from hybrid_cli.indexes.shards import (
    encode_texts,
    link_vectors,
    progress,
    refuse_lost_vectors,
    shard_facts,
    shard_path,
    truncate_vectors,
)
from hybrid_cli.lexical.analysis import ENGLISH
from hybrid_cli.reporting.tables import figure
from hybrid_cli.reporting.terminal import show_candidates
from hybrid_cli.stages import stage
from hybrid_cli.storage import Kind
from hybrid_cli.storage.layout import INDEX_ENCODER
from hybrid_cli.workflows.encoding import (
    DEEPCT_B,
    DEEPCT_K1,
    blocks_encoder,
    build_matrix,
    check_encoder,
    check_indexes,
    encode_documents,
    on_cluster,
    open_encoders,
    open_sparse,
    precision,
    quantization_steps,
    set_all_threads,
    source_of,
    texts_in,
    unread_share,
    weight_shard,
)

MUCH_TRUNCATED = 0.1  # share of the documents above which the loss is a warning


@stage(Encode)
def encode(settings: Encode) -> Path:
    """Encode a corpus and build its index, encode queries, or rebuild or combine dense indexes.

    A sparse encoder gives a lexical index with learned weights.

    Memory holds one shard at a time, and the index while FAISS builds it (a flat index is written as a stream). An
    interrupted run resumes with the first missing shard.

    Returns:
        Path of the dense index, or of the folder of query vectors.

    Raises:
        InputError: inputs or options cannot be used together, or FAISS cannot build such an index.
        HybridError: a vector is not finite.
    """
    source = settings.collection
    manifest = artifacts.find_manifest(source) if source is not None else None
    if source is None or manifest is None or manifest.kind != Kind.DENSE_INDEX:
        settings.check_facts(f"{source} is not a dense index", input=TEXTS)
        vectors = settings.from_vectors
        return _encode(settings) if vectors is None else _import(settings, vectors)
    settings.check_facts(f"{source} is a dense index", input=DENSE_INDEX)
    set_threads(settings.threads)
    if settings.concat_with is not None:
        return _combine(settings, [source, settings.concat_with])
    return _rebuild(settings, source, manifest)


# --------------------------------------------------------------------------------------------------------------- texts


def _encode(settings: Encode) -> Path:
    source, kind = source_of(settings)
    models = as_names(settings.model)
    folders = [*map(resolve, models)]
    preset = preset_fields(settings.preset, folders[0], sparse=True)
    if architecture := preset.pop("architecture", None):
        settings = settings.changed(architecture=settings.architecture or architecture)
    facts = check_encoder(settings, folders)
    changes = {**preset, **settings.contract()}
    if OF_SPARSE in facts:
        return _encode_sparse(settings, source, kind, changes)
    binary = len(folders) == 1 and kind_of(folders[0]) == TRANSFORMER and read_contract(folders[0]).binary
    if kind == Kind.DENSE_INDEX:
        settings = _with_type(settings, binary)
    recorded = _without_contract(settings.recorded(input=TEXTS, encoder=facts))
    settings = on_cluster(settings)
    dtype = precision(settings)
    precise = {"dtype": dtype} if "dtype" in recorded else {}
    inputs: dict[str, artifacts.Input] = {"corpus" if kind == Kind.DENSE_INDEX else "queries": source}
    inputs |= zip(("model", "second model"), map(model_input, models), strict=False)
    output = artifacts.output_of(settings, kind, inputs, {**recorded, "contract": changes, **precise})
    if output.up_to_date:
        return _check_recall(settings, output)
    set_all_threads(settings.threads)
    elsewhere = bool(settings.devices) or settings.ray_address is not None
    recipe, encoder = open_encoders(settings, "cpu" if elsewhere else settings.device, dtype, changes)
    texts, total = texts_in(source, kind)
    if not total:
        raise InputError(f"{source}: has no texts to encode", code="no-documents", path=source)
    if kind == Kind.DENSE_INDEX:
        _check_recipe(settings, encoder.dim, total, output)
    with output.folder() as (work, counts):
        if len(folders) > 1:
            composite.write_combination(work / INDEX_ENCODER, folders, recipe, artifacts.hard_link)
        with progress("encode", partial(shard_path, work), total, settings.shard_size) as advance:
            resolved, of_queries = {"dtype": dtype, "contract": changes}, kind == Kind.VECTORS
            encoded = blocks_encoder(settings, encoder, of_queries, resolved)
            encode_texts(work, texts, encoded, of_queries, settings, advance)
        storage.refuse_lost(shard_path(work, number) for number in range(-(-total // settings.shard_size)))
        truncated = sum(int(shard_facts(path).get("truncated", 0)) for path in shards_module.shards(work))
        info = _info(encoder, total, truncated)
        counts |= _finish(settings, work, info, kind)
    console.note(
        f"encode: {output.path}: {console.counted(**{'document' if kind == Kind.DENSE_INDEX else 'query': total})}, "
        f"{encoder.dim} dimensions, {f'{dtype}, ' if precise else ''}{truncated / total:.1%} truncated"
    )
    if kind == Kind.DENSE_INDEX and truncated > MUCH_TRUNCATED * total:
        _warn_truncated(source, encoder, truncated, total)
    return output.path


def _warn_truncated(corpus: Path, encoder: Encoder, truncated: int, total: int) -> None:
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


def _encode_sparse(settings: Encode, source: Path, kind: Kind, changes: dict[str, Any]) -> Path:
    """Write the weights of a corpus by a sparse encoder as an impact matrix."""
    names = as_names(settings.model)
    if len(names) > 1:
        reason = "a sparse encoder is not combined with another; search both and fuse the runs"
        raise option_error("model", names, reason, code="other-kind", kind="sparse")
    if kind == Kind.VECTORS:
        problem = f"{names[0]}: `search` encodes the queries of a sparse encoder; omit --split and --queries"
        raise InputError(problem, code="option-does-not-apply", path=names[0], kind="sparse")
    settings = on_cluster(settings)
    dtype = precision(settings)
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
    elsewhere = bool(settings.devices) or settings.ray_address is not None
    encoder = open_sparse(settings, "cpu" if elsewhere else settings.device, dtype, changes)
    texts, total = texts_in(source, Kind.DENSE_INDEX, settings.expansion)
    with output.folder() as (work, counts):
        with progress("encode", partial(weight_shard, work), total, settings.shard_size) as advance:
            resolved = {"steps": steps, "dtype": dtype, "contract": changes}
            encode_documents(settings, encoder, work, texts, total, resolved, advance)
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
    elif built.truncated > MUCH_TRUNCATED * total:
        _warn_truncated(source, encoder, built.truncated, total)
    return output.path


def _import(settings: Encode, path: Path) -> Path:
    """Write vectors of another tool as a dense index, or as vectors of queries."""
    source, kind = source_of(settings)
    model = as_names(settings.model)[0] if "model" in settings.given else None
    facts = check_encoder(
        settings, [resolve(model)] if model else [], "" if model else f"{path} has no --model that computed it"
    )
    if kind == Kind.DENSE_INDEX:
        settings = _with_type(settings, False)
    changes = settings.contract()
    if model is not None:
        changes = {**preset_fields(settings.preset, resolve(model)), **changes}
    dtype: Any = precision(settings) if OF_TRANSFORMER in facts else ""
    recorded = _without_contract(settings.recorded(input=TEXTS, encoder=facts))
    inputs: dict[str, artifacts.Input] = {"corpus" if kind == Kind.DENSE_INDEX else "queries": source, "vectors": path}
    inputs |= {"ids": settings.ids} if settings.ids else {}
    inputs |= {"model": model_input(model)} if model else {}
    precise = {} if OF_STATIC in facts else {"dtype": dtype}
    output = artifacts.output_of(settings, kind, inputs, {**recorded, "contract": changes, **precise})
    if output.up_to_date:
        return _check_recall(settings, output)
    set_threads(settings.threads)
    vectors, own = read_external(path)
    wanted = collections.docids(source) if kind == Kind.DENSE_INDEX else collections.read_queries(source)["qid"]
    rows = rows_of(len(vectors), own, path, settings.ids, wanted, source)
    info = IndexInfo(*vectors.shape)
    if model is not None:
        encoder = open_encoder(resolve(model), device=settings.device, dtype=dtype, overrides=changes)
        if encoder.dim != info.dim:
            problem = f"{path}: vectors of {info.dim} values; {model} computes {encoder.dim}"
            raise InputError(problem, code="other-width", path=path, value=info.dim, expected=encoder.dim)
        info = _info(encoder, info.vectors, 0)
    if kind == Kind.DENSE_INDEX:
        _check_recipe(settings, info.dim, info.vectors, output)
    with output.folder() as (work, counts):
        with console.progress("import", info.vectors, "vectors") as advance:
            write_external(work, vectors, path, rows, wanted, settings, advance)
        counts |= _finish(settings, work, info, kind)
    what = "documents" if kind == Kind.DENSE_INDEX else "queries"
    console.note(f"encode: {output.path}: vectors of {info.vectors:,} {what} from {path}, {info.dim} dimensions")
    return output.path


def _check_recipe(settings: Encode, dim: int, vectors: int, output: Output) -> None:
    """Check that FAISS can build the index, and that memory and disk hold it and the stored vectors."""
    size = 2 if settings.vector_dtype == "float16" else 4
    check_recipe(settings, dim, vectors, output.partial, vectors * dim * size)


def _info(encoder: Encoder, vectors: int, truncated: int) -> IndexInfo:
    return IndexInfo(vectors, encoder.dim, encoder.fingerprint, encoder.describe(), truncated)


# ------------------------------------------------------------------------------------------------------- dense indexes


def _rebuild(settings: Encode, old: Path, made: Manifest) -> Path:
    """Build a new index from the vectors of a dense index, or from their leading values."""
    check_indexes(settings, {old: made})
    info, length = info_of(made), settings.truncate_dim
    refuse_truncation(length, info.dim, old)
    settings = _with_type(settings, bool(info.contract.get("binary", False)))
    changes = made.options["contract"] | ({} if length is None else {"truncate_dim": length})
    declared = VectorIndex.declared()
    kept = {name: value for name, value in made.options.items() if name not in declared}
    inputs = {"vectors": old, **_texts_and_model(made)}
    chosen = {name: value for name, value in settings.recorded(input=DENSE_INDEX).items() if name in declared}
    options = {**kept, **chosen, "contract": changes}
    output = artifacts.output_of(settings, Kind.DENSE_INDEX, inputs, options)
    if output.up_to_date:
        return _check_recall(settings, output)
    if length is not None:
        opened = open_dense(old)
        query_encoder(opened, device=settings.device)  # refuses a model that has changed
        model = model_of(opened)
        encoder = open_encoder(model, device=settings.device, overrides=changes)
        info = _info(encoder, info.vectors, info.truncated)
    written = info.vectors * (length or 0) * (2 if made.options["vector_dtype"] == "float16" else 4)
    check_recipe(settings, info.dim, info.vectors, output.partial, written)
    with output.folder() as (work, counts):
        if length is None:
            link_vectors(old, work)
        else:
            truncate_vectors(
                old, work, encoder.dim, bool(encoder.describe().get("normalize")), made.options["vector_dtype"]
            )
        if (old / INDEX_ENCODER).is_dir():
            artifacts.hard_link(old / INDEX_ENCODER, work / INDEX_ENCODER)
        counts |= _finish(settings, work, info)
    console.note(f"encode: {output.path}: {console.counted(vector=info.vectors)} of {old}, {counts['factory']}")
    return output.path


def _combine(settings: Encode, folders: list[Path]) -> Path:
    """Combine two dense indexes of one corpus into an index of the combined encoder."""
    opened = [open_dense(path) for path in folders]
    if not opened[0].docids.equals(opened[1].docids):
        problem = f"{folders[1]}: has other documents than {folders[0]}; encode one collection with both models"
        raise InputError(problem, code="other-corpus", path=folders[1], other=folders[0])
    manifests = [artifacts.read_manifest(path) for path in folders]
    check_indexes(settings, dict(zip(folders, manifests, strict=True)))
    settings = _with_type(settings, False)
    changes = (manifests[0].options["contract"], manifests[1].options["contract"])
    recipe = CombinationRecipe(settings.combine, settings.weight, changes)
    inputs = {"vectors": folders[0], "second vectors": folders[1], **_texts_and_model(manifests[0])}
    options = _without_contract(settings.recorded(input=DENSE_INDEX)) | {"contract": {}, "changes": list(changes)}
    dtypes = [manifest.options["dtype"] for manifest in manifests if "dtype" in manifest.options]
    options |= {"dtype": dtypes[0]} if dtypes else {}
    output = artifacts.output_of(settings, Kind.DENSE_INDEX, inputs, options)
    if output.up_to_date:
        return _check_recall(settings, output)
    parts = [query_encoder(index, device=settings.device) for index in opened]
    refuse_equal(parts, folders)
    encoder = Combination(recipe, parts)
    total, truncated = len(opened[0].docids), max(index.info.truncated for index in opened)
    _check_recipe(settings, encoder.dim, total, output)
    with output.folder() as (work, counts):
        composite.write_combination(
            work / INDEX_ENCODER, [model_of(index) for index in opened], recipe, artifacts.hard_link
        )
        combine_vectors(opened, work, encoder.document_vectors, settings)
        counts |= _finish(settings, work, _info(encoder, total, truncated))
    console.note(
        f"encode: {output.path}: {console.counted(vector=total)} of {folders[0]} and {folders[1]}, "
        f"{encoder.dim} dimensions"
    )
    return output.path


def _texts_and_model(made: Manifest) -> dict[str, artifacts.Input]:
    """Return the corpora and the model of an index, as recorded: for texts of hits and for encoding queries."""
    return {**recorded_corpora(made), **recorded_model_input(made)}


# --------------------------------------------------------------------------------------------------------------- index


def _with_type(settings: Encode, binary: bool) -> Encode:
    """Return settings with an index type: the set one, else that for which the encoder was trained."""
    return settings if settings.index_type else settings.changed(index_type="binary" if binary else "flat")


def _without_contract(recorded: dict[str, Any]) -> dict[str, Any]:
    """Return options without those of the contract, which the manifest stores under `contract`."""
    contract = {"truncate_dim", *EncoderContract.declared()}
    return {name: value for name, value in recorded.items() if name not in contract}


def _finish(settings: Encode, work: Path, info: IndexInfo, kind: Kind = Kind.DENSE_INDEX) -> dict[str, Any]:
    """Build the index of the shards in `work`, unless they are vectors of queries; return the counts."""
    built = _build(settings, work, info) if kind == Kind.DENSE_INDEX else info
    refuse_lost_vectors(work, info.vectors)
    return built.counts()


def _build(settings: Encode, work: Path, info: IndexInfo) -> IndexInfo:
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


def _check_recall(settings: Encode, output: Output) -> Path:
    """Measure the recall of an up-to-date index, if requested."""
    if settings.recall_check:
        _recall(output.path, read_info(output.path), settings.seed)
    return output.path
