"""Model cards of encoders, for the Hugging Face hub."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import polars as pl
import yaml

from hybrid_cli import artifacts, storage
from hybrid_cli.artifacts import Manifest
from hybrid_cli.encoders.contract import read_contract
from hybrid_cli.evaluation.options import Significance
from hybrid_cli.evaluation.significance import CONFIDENCE, intervals
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
        ("prefix", _code(prefix), _code(contract.doc_prefix)),
        ("maximum tokens", contract.query_max_len, contract.doc_max_len),
    ]
    yield f"""A dense encoder of queries and documents for hybrid retrieval with BM25. Similarity: {similarity}.

## Usage

```python
from sentence_transformers import SentenceTransformer

model = SentenceTransformer("{name}")
queries = model.encode_query(["a query"])
documents = model.encode_document(["a title" + {json.dumps(contract.title_separator)} + "a document", "one without"])
```

```sh
hybrid encode COLLECTION --model {name} --output out/dense
```

The prefixes are part of the prompts of the model.

{_table(("", "query", "document"), rows)}
"""


def _training(manifest: Manifest) -> str:
    rows = [("steps", manifest.counts.get("steps")), ("kept step", manifest.counts.get("best_step"))]
    rows += [("training examples", manifest.counts.get("examples"))]
    for role in manifest.inputs:
        rows += [(role, _code(origin)) for origin in _origins(manifest, role)]
    rows += [
        (name, _code(json.dumps(value)))
        for name, value in manifest.options.items()
        if name not in _CONTRACT and value not in (None, False, [], {}, "", 0)
    ]
    shown = [row for row in rows if row[1] is not None]
    version = manifest.versions.get("hybrid", "")
    return f"## Training: {manifest.stage}, hybrid {version}\n\n{_table(('', 'value'), shown)}\n"


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
        (_escaped(run), _escaped(measure), f"{mean:.3f}", f"{low:.3f} to {high:.3f}")
        for run, measure, mean, low, high in means.iter_rows()
    ]
    table = _table(("run", "measure", "mean", f"{CONFIDENCE:.0%} interval"), rows)
    return f"## Measures\n\n{values['qid'].n_unique():,} queries.\n\n{table}\n"


def _table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


def _escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ").replace("<", "&lt;")


def _code(text: str) -> str:
    """Return a text as code in a table; empty if the text is."""
    shown = text.replace("\n", "\\n").replace("|", "\\|").replace("`", "'")
    return f"`{shown}`" if text else ""
