"""Names of the weights in published checkpoints that are not plain transformers: towers, projections, unused parts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from hybrid_cli.errors import path_error
from hybrid_cli.storage.layout import CONDENSER_HEAD, MODULES

PLAIN, TWO_PLAIN = "plain", "two plain towers"
LEARNERS = "weak_encoders."  # of DrBoost in dpr-scale; a number and the names of one learner follow
WRAPPERS = ("module.", "encoder.")  # prefixes of all weights: of torch's DataParallel, and of Tevatron's models
SIDES = ("query", "document")  # also the folders of an encoder with two towers


@dataclass(frozen=True)
class Layout:
    """Names of the weights of one published form.

    Attributes:
        towers: side -> prefix of all weights of its tower; one tower without a side serves both.
        backbone: prefix of the transformer's weights within a tower.
        linear: prefix of the projection of [CLS] within a tower; empty if the form has none.
        norm: prefix of the LayerNorm after the projection.
        unused: prefixes of weights that the published encoder does not apply.
    """

    towers: Mapping[str, str]
    backbone: str
    linear: str = ""
    norm: str = ""
    unused: tuple[str, ...] = field(default=())


LAYOUTS = {
    "dpr-question": Layout({"query": "question_encoder."}, "bert_model.", "encode_proj."),
    "dpr-context": Layout({"document": "ctx_encoder."}, "bert_model.", "encode_proj."),
    "dpr-original": Layout({"query": "question_model.", "document": "ctx_model."}, "", "encode_proj."),
    "dpr-scale": Layout(
        {"query": "query_encoder.", "document": "context_encoder."}, "transformer.", "project.0.", "project.1."
    ),
    "ance": Layout({"": ""}, "roberta.", "embeddingHead.", "norm.", unused=("classifier.", "lm_head.")),
    "pyserini-ance": Layout({"": "ance_encoder."}, "roberta.", "embeddingHead.", "norm."),
}


def weight_files(folder: Path) -> list[Path]:
    """Return the files of weights of a checkpoint, in safetensors format, without the head of its pretraining."""
    files = sorted(folder.glob("*.safetensors")) if (folder / "config.json").is_file() else []
    return [file for file in files if file.name != CONDENSER_HEAD]


def shapes(folder: Path) -> dict[str, list[int]]:
    """Return the shape of each weight of a checkpoint, by name; empty without weights in safetensors format."""
    by_name: dict[str, list[int]] = {}
    for file in weight_files(folder):
        try:
            with safe_open(file, "np") as opened:
                by_name |= {key: opened.get_slice(key).get_shape() for key in opened.keys()}  # noqa: SIM118 - no mapping
        except (SafetensorError, OSError):
            return {}  # the loader names the damaged file
    return by_name


def layout_of(names: Mapping[str, Any]) -> str:
    """Return the name of the layout that weights have; `plain` for every other form.

    A projection is part of a form with one tower for both sides: without it, this is a plain transformer.
    """
    for name, layout in LAYOUTS.items():
        needed = [root + layout.backbone for root in layout.towers.values()]
        needed += [root + layout.linear for root in layout.towers.values()] if "" in layout.towers else []
        if all(any(key.startswith(prefix) for key in names) for prefix in needed):
            return name
    return PLAIN


def find(folder: Path) -> str:
    """Return the name of the layout of a model folder: of its weights, or of the weights of its two towers."""
    if is_two_folders(folder):
        names = [layout_of(shapes(folder / side)) for side in SIDES]
        return TWO_PLAIN if names == [PLAIN, PLAIN] else " and ".join(names)
    return PLAIN if (folder / MODULES).is_file() else layout_of(shapes(folder))


def is_two_folders(folder: Path) -> bool:
    """Test whether a model folder has one folder per tower."""
    return all((folder / side).is_dir() for side in SIDES)


def structure(folder: Path) -> dict[str, Any]:
    """Return the fields of the contract that follow from the layout of a checkpoint; empty for a plain one.

    Raises:
        InputError: the checkpoint has one tower of two.
    """
    if is_two_folders(folder):
        return {**_of_tower(folder / SIDES[0]), "tied": False}
    widths = {} if (folder / MODULES).is_file() else _of_tower(folder)
    layout = LAYOUTS.get(layout_of(shapes(folder))) if widths else None
    if layout is not None and len(layout.towers) == 1 and (side := next(iter(layout.towers))):
        problem = f"has the {side} tower only; join both: convert-checkpoint QUERY OUT --documents DOCUMENT"
        raise path_error(folder, problem, code="one-tower")
    return {**widths, "tied": False} if layout is not None and len(layout.towers) == 2 else widths


def _of_tower(folder: Path) -> dict[str, Any]:
    known = shapes(folder)
    layout = LAYOUTS.get(layout_of(known))
    if layout is None:
        return {}
    root = next(iter(layout.towers.values()))
    weight = known.get(f"{root}{layout.linear}weight") if layout.linear else None
    if weight is None:
        return {"pooling": "cls"}
    return {
        "pooling": "cls",
        "dim": weight[0],
        "projection_norm": bool(layout.norm) and f"{root}{layout.norm}weight" in known,
    }
