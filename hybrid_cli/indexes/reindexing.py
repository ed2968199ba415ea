"""`encode` of what is encoded already: another index, a shorter one, or one of two."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from hybrid_cli import artifacts, console, indexes
from hybrid_cli.artifacts import Kind, Manifest, Named
from hybrid_cli.config import Encoding, VectorIndex
from hybrid_cli.encoders import combination
from hybrid_cli.encoders.combination import Combination, Recipe
from hybrid_cli.encoders.encoder import Encoder, open_encoder
from hybrid_cli.encoders.models import model_input, recorded_model
from hybrid_cli.errors import InputError
from hybrid_cli.indexes import indexing
from hybrid_cli.indexes.exact import COMBINED, model_of, query_encoder


def index_again(
    old: Path,
    output: Path,
    index: VectorIndex,
    prefix: int | None,
    recall_check: bool,
    threads: int | None,
    overwrite: bool,
) -> Path:
    """Another index over the vectors of a dense index, or over the first `prefix` values of each.

    Corpus and model stay what they are.

    Raises:
        InputError: the vectors have no such prefix, or FAISS cannot build such an index.
    """
    made = artifacts.read_manifest(old, Kind.DENSE_INDEX)
    shorter = _shorter(old, prefix) if prefix else None
    index = indexing.typed(index, made.counts["contract"].get("binary", False))
    claim = artifacts.open_output(
        output,
        Kind.DENSE_INDEX,
        "encode",
        inputs={"vectors": old, **_corpus_of(made), **_model_of(made)},
        options={**made.options, **indexing.options(index), **(_contract(made, prefix) if prefix else {})},
        overwrite=overwrite,
    )
    if claim.up_to_date:
        return indexing.as_it_is(output, recall_check)
    indexes.set_threads(threads)
    indexes.check_recipe(index, prefix or made.counts["dim"], made.counts["vectors"])
    with claim.folder() as (work, counts):
        for number, shard in enumerate(indexes.shards(old)):
            if shorter is None:
                indexes.share_shard(shard, work)
            else:
                _write_shorter(shard, indexes.shard_path(work, number), shorter, made.options["vector_dtype"])
        if (old / COMBINED).is_dir():
            artifacts.hard_link(old / COMBINED, work / COMBINED)
        described = {name: value for name, value in made.counts.items() if not name.startswith("recall@")}
        if shorter is not None:
            described |= {
                "dim": shorter.dim, "encoder": shorter.fingerprint, "contract": shorter.describe(),
            }  # fmt: skip
        counts |= described | indexing.build(work, index, described["vectors"], recall_check)
    console.note(f"encode: {output}: {made.counts['vectors']:,} vectors of {old}, {counts['factory']}")
    return output


def _contract(made: Manifest, prefix: int) -> dict[str, Any]:
    return {"contract": {**made.options["contract"], "prefix": prefix}}


def _shorter(old: Path, prefix: int) -> Encoder:
    """The encoder of an index, with a prefix."""
    opened = indexes.DenseIndex.open(old)
    if prefix > opened.dim:
        raise InputError(f"--prefix {prefix}: the vectors of {old} have {opened.dim} values")
    query_encoder(opened)  # refuses a model that has changed since
    made = opened.manifest
    return open_encoder(model_of(opened), dtype=made.options["dtype"], overrides=_contract(made, prefix)["contract"])


def _write_shorter(shard: Path, output: Path, encoder: Encoder, vector_dtype: str) -> None:
    """The beginnings of the vectors of a shard, as long as the encoder's; of length 1 where the encoder's are."""
    values = indexes.read_shard(shard)[:, : encoder.dim]
    if encoder.describe().get("normalize"):
        values = values / np.maximum(np.linalg.norm(values, axis=1, keepdims=True), 1e-12)
    ids = pl.read_parquet(shard, columns=["id"])["id"].to_arrow()
    indexes.write_shard(output, ids, values.astype(vector_dtype), **indexes.shard_facts(shard))


def index_both(
    folders: Sequence[Path],
    combine: Recipe,
    output: Path,
    index: VectorIndex,
    encoding: Encoding,
    recall_check: bool,
    overwrite: bool,
) -> Path:
    """One index of two over one corpus, by the combination of the encoders that made them; nothing is encoded."""
    opened = [indexes.DenseIndex.open(path) for path in folders]
    if not opened[0].docids.equals(opened[1].docids):
        raise InputError(
            f"{folders[1]}: holds other documents than {folders[0]}; encode one collection with both models"
        )
    first, second = (each.manifest.options["contract"] for each in opened)
    combine = replace(combine, changes=(first, second))
    claim = artifacts.open_output(
        output,
        Kind.DENSE_INDEX,
        "encode",
        inputs={"vectors": folders[0], "beside": folders[1], **_corpus_of(opened[0].manifest)},
        options={
            "dtype": opened[0].manifest.options["dtype"],
            "contract": {},
            "vector_dtype": encoding.vector_dtype,
            "shard_size": encoding.shard_size,
            **asdict(combine),
            **indexing.options(index),
        },
        overwrite=overwrite,
    )
    if claim.up_to_date:
        return indexing.as_it_is(output, recall_check)
    encoder = Combination(combine, [query_encoder(each) for each in opened])
    total = len(opened[0].docids)
    indexes.check_recipe(index, encoder.dim, total)
    with claim.folder() as (work, counts):
        combination.write(work / COMBINED, [model_of(each) for each in opened], combine)
        for number, begin in enumerate(range(0, total, encoding.shard_size)):
            rows = np.arange(begin, min(total, begin + encoding.shard_size))
            halves = [each.vectors_of(rows) for each in opened]
            whole = np.hstack(halves) if combine.how == "concat" else halves[0] + halves[1]
            ids = opened[0].docids.gather(rows).to_arrow()
            indexes.write_shard(indexes.shard_path(work, number), ids, whole.astype(encoding.vector_dtype))
        counts |= indexing.build(work, index, total, recall_check)
        counts |= {
            "vectors": total,
            "dim": encoder.dim,
            "truncated": max(each.manifest.counts["truncated"] for each in opened),
            "encoder": encoder.fingerprint,
            "contract": encoder.describe(),
        }
    console.note(f"encode: {output}: {total:,} vectors of {folders[0]} and {folders[1]}, {encoder.dim} dimensions")
    return output


def _corpus_of(made: Manifest) -> dict[str, Path]:
    """The corpus that an index was made from, where it still is; there people see the texts of hits."""
    path = made.input_path("corpus")
    return {"corpus": path} if path and path.exists() else {}


def _model_of(made: Manifest) -> dict[str, Path | Named]:
    """Return the model that an index was made with, if it still exists: queries are encoded with it."""
    recorded, path = recorded_model(made), made.input_path("model")
    if recorded is None or (path is not None and not path.exists()):
        return {}
    return {"model": model_input(recorded)}
