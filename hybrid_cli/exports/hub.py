"""Model cards of encoders, for the Hugging Face hub."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import yaml

from hybrid_cli import artifacts, storage
from hybrid_cli.artifacts import Manifest
from hybrid_cli.encoders.contract import read_contract
from hybrid_cli.evaluation.options import Significance
from hybrid_cli.evaluation.significance import CONFIDENCE, intervals
from hybrid_cli.reporting.tables import Table, markdown_table
from hybrid_cli.storage import Kind

CARD = "README.md"
_MINILM = {"minilm": "sentence-transformers/all-MiniLM-L6-v2"}  # name on the hub
_CONTRACT = ("query_prefix", "doc_prefix", "query_max_len", "doc_max_len", "title_separator")  # are in another section


def model_card(encoder: Path, name: str, license: str | None, measurements: Path | None) -> str:
    """Return the model card of an encoder with one tower, with front matter.

    Args:
        encoder: folder of the encoder; its manifest, and those of its inputs, describe the training.
        name: name of the model, in the code that opens it.
        license: identifier of the license on the hub.
        measurements: values written by `evaluate`.
    """
    manifests, base = _lineage(encoder)
    facts = {
        "license": license,
        "base_model": base,
        "pipeline_tag": "sentence-similarity",
        "library_name": "sentence-transformers",
        "tags": ["sentence-transformers", "sentence-similarity", "feature-extraction", "hybrid-retrieval"],
    }
    front = yaml.safe_dump({key: value for key, value in facts.items() if value is not None}, sort_keys=False)
    parts = [f"---\n{front}---\n", f"# {name}\n", *_opening(read_contract(encoder), name)]
    parts += [_training(manifest) for manifest in manifests]
    if measurements is not None:
        parts.append(_measures(measurements))
    return "\n".join(parts)


def _lineage(encoder: Path) -> tuple[list[Manifest], str | None]:
    """Return the manifests of all trainings of an encoder, the last one first, and the model they started from."""
    manifests: list[Manifest] = []
    path: Path | None = encoder
    while path is not None and (manifest := artifacts.find_manifest(path)) is not None:
        manifests.append(manifest)
        if (name := manifest.inputs.get("model", {}).get("name")) is not None:
            return manifests, _MINILM.get(name, name)
        path = manifest.input_path("model")
    return manifests, None


def _opening(contract: Any, name: str) -> Iterator[str]:
    similarity = "cosine" if contract.normalize else "inner product"
    prefix = contract.query_prefix.replace("{task}", contract.task)
    rows = [
        ("prefix", _quoted(prefix), _quoted(contract.doc_prefix)),
        ("maximum tokens", str(contract.query_max_len), str(contract.doc_max_len)),
    ]
    yield f"""A dense encoder of queries and documents for hybrid retrieval with BM25. Similarity: {similarity}.

## Usage

```python
from sentence_transformers import SentenceTransformer

model = SentenceTransformer("{name}")
queries = model.encode_query(["a query"])
documents = model.encode_document(["a title" + {_quoted(contract.title_separator)} + "a document", "one without"])
```

```sh
hybrid encode COLLECTION --model {name} --output out/dense
```

The prefixes are part of the prompts of the model.

{markdown_table(Table(("", "query", "document"), rows, left=3))}
"""


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _training(manifest: Manifest) -> str:
    counts = {"steps": "steps", "best_step": "kept step", "examples": "training examples"}
    rows = [(name, str(manifest.counts[key])) for key, name in counts.items() if manifest.counts.get(key) is not None]
    for role in manifest.inputs:
        rows += [(role, origin) for origin in _origins(manifest, role)]
    rows += [
        (name, json.dumps(value))
        for name, value in manifest.options.items()
        if name not in _CONTRACT and value not in (None, False, [], {}, "", 0)
    ]
    version = manifest.versions.get("hybrid", "")
    return f"## Training: {manifest.stage}, hybrid {version}\n\n{markdown_table(Table(('', 'value'), rows, left=2))}\n"


def _origins(manifest: Manifest, role: str) -> Iterator[str]:
    """Yield the name of an input without its folder; of training examples, also how they were mined."""
    source = manifest.inputs[role]
    yield source.get("name") or Path(source.get("path", source.get("part", ""))).name
    path = manifest.input_path(role)
    mined = artifacts.find_manifest(path) if path is not None and source["kind"] == Kind.EXAMPLES else None
    if mined is not None:
        corpus = mined.input_path("corpus")
        yield f"{mined.stage} of {corpus.parent.name if corpus else 'a collection'}: {json.dumps(mined.options)}"


def _measures(path: Path) -> str:
    values = pl.read_parquet(storage.check_table(path, Kind.MEASUREMENTS), glob=False)
    means = intervals(values, seed=Significance.seed)
    rows = [
        (run, measure, f"{mean:.3f}", f"{low:.3f} to {high:.3f}") for run, measure, mean, low, high in means.iter_rows()
    ]
    table = markdown_table(Table(("run", "measure", "mean", f"{CONFIDENCE:.0%} interval"), rows, left=2))
    return f"## Measures\n\n{values['qid'].n_unique():,} queries.\n\n{table}\n"
