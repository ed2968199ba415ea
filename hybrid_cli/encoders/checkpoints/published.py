"""Published checkpoints that are no plain transformers: names of the weights of towers, projections, unused parts.

PyTorch's pickled checkpoints are converted to safetensors in a process of its own, without creating objects.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hybrid_cli.encoders import contract as contracts
from hybrid_cli.errors import InputError, path_error
from hybrid_cli.storage.layout import CONTRACT, MODULES

if TYPE_CHECKING:
    from torch import Tensor


PLAIN, TWO_PLAIN = "plain", "two plain towers"
LEARNERS = "weak_encoders."  # of DrBoost in dpr-scale; a number and the names of one learner follow
WRAPPERS = ("module.", "encoder.")  # prefixes of all weights: of torch's DataParallel, and of Tevatron's models


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
        names = [layout_of(contracts.shapes(folder / side)) for side in contracts.SIDES]
        return TWO_PLAIN if names == [PLAIN, PLAIN] else " and ".join(names)
    return PLAIN if (folder / MODULES).is_file() else layout_of(contracts.shapes(folder))


def is_two_folders(folder: Path) -> bool:
    """Test whether a model folder has one folder per tower."""
    return all((folder / side).is_dir() for side in contracts.SIDES)


def structure(folder: Path) -> dict[str, Any]:
    """Return the fields of the contract that follow from the layout of a checkpoint; empty for a plain one.

    Raises:
        InputError: the checkpoint has one tower of two.
    """
    if is_two_folders(folder):
        return {**_of_tower(folder / contracts.SIDES[0]), "tied": False}
    widths = {} if (folder / MODULES).is_file() else _of_tower(folder)
    layout = LAYOUTS.get(layout_of(contracts.shapes(folder))) if widths else None
    if layout is not None and len(layout.towers) == 1 and (side := next(iter(layout.towers))):
        raise path_error(folder, f"has the {side} tower only; join both: convert-checkpoint", code="one-tower")
    return {**widths, "tied": False} if layout is not None and len(layout.towers) == 2 else widths


def _of_tower(folder: Path) -> dict[str, Any]:
    known = contracts.shapes(folder)
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


@dataclass(frozen=True)
class PublishedModel:
    """An encoder whose weights have one of the forms of `LAYOUTS`, a wrapper, or a folder for each tower."""

    folder: Path

    @property
    def kind(self) -> str:
        """`transformer`."""
        return contracts.TRANSFORMER

    def contract(self) -> contracts.Contract:
        """Return the contract that follows from the form; of two joined towers that have contracts, their contract."""
        return _of_towers(self.folder) or contracts.Contract(**structure(self.folder))

    def tower(self, side: str) -> contracts.TowerFiles:
        """Return the files of a tower, which may be an encoder of its own."""
        if is_two_folders(self.folder):
            return replace(contracts.stored_encoder(self.folder / side).tower(side), projection=None)
        return contracts.TowerFiles(self.folder, read=partial(read_weights, self.folder, side))


def _of_towers(folder: Path) -> contracts.Contract | None:
    """Return the contract of two joined towers that have contracts of their own; None if neither has one.

    Raises:
        InputError: the contracts differ in other fields than prefixes, lengths and the title separator.
    """
    sides = [folder / side for side in contracts.SIDES] if is_two_folders(folder) else []
    own = [contracts.read_contract(side) for side in sides if (side / CONTRACT).is_file() or (side / MODULES).is_file()]
    if not own:
        return None
    query, document = own[0], own[-1]
    joined = replace(document, tied=False, query_prefix=query.query_prefix, query_max_len=query.query_max_len)
    of_document = {name: getattr(document, name) for name in ("doc_prefix", "doc_max_len", "title_separator")}
    if differing := contracts.differences(replace(query, tied=False, **of_document).to_dict(), joined.to_dict()):
        raise path_error(folder, f"the query tower has {differing[0]} as the document tower", code="towers-differ")
    return joined


def read_weights(folder: Path, side: str) -> tuple[Mapping[str, Tensor] | None, Mapping[str, Tensor]]:
    """Return the weights of the transformer and of the projection of a tower; None if transformers reads them itself.

    Raises:
        InputError: the checkpoint has only the other tower, or a weight without a place in its layout.
    """
    from safetensors.torch import load_file

    from hybrid_cli.encoders.loading import has_no_values, unknown_weights

    names = contracts.shapes(folder)
    if any(name.startswith(LEARNERS) for name in names):
        raise path_error(folder, "has several learners; convert it: hybrid convert-checkpoint", code="several-learners")
    items = (item for file in contracts.weight_files(folder) for item in load_file(file).items())
    if (name := layout_of(names)) not in LAYOUTS:
        wrapper = _wrapper(names)
        return (None if wrapper is None else {key.removeprefix(wrapper): value for key, value in items}), {}
    layout = LAYOUTS[name]
    if (root := layout.towers.get(side, layout.towers.get(""))) is None:
        raise path_error(folder, f"has no {side} tower ({', '.join(layout.towers)} only)", code="one-tower", side=side)
    backbone: dict[str, Tensor] = {}
    projection: dict[str, Tensor] = {}
    unknown = []
    for key, value in items:
        rest = key.removeprefix(root)
        if not key.startswith(root):
            known = any(key.startswith(other) for other in layout.towers.values()) or has_no_values(key)
            unknown += [] if known else [key]
        elif layout.linear and rest.startswith(layout.linear):
            projection["linear." + rest.removeprefix(layout.linear)] = value
        elif layout.norm and rest.startswith(layout.norm):
            projection["norm." + rest.removeprefix(layout.norm)] = value
        elif rest.startswith(layout.backbone):
            backbone[rest.removeprefix(layout.backbone)] = value
        elif not rest.startswith(layout.unused) and not has_no_values(rest):
            unknown.append(key)
    if unknown:
        raise unknown_weights(folder, unknown)
    return backbone, projection


def _wrapper(names: Collection[str]) -> str | None:
    """Return the prefix that a wrapper gave to all weights of a plain transformer."""
    return next((prefix for prefix in WRAPPERS if names and all(name.startswith(prefix) for name in names)), None)


def published_model(folder: Path, known: Mapping[str, Any] | None = None) -> PublishedModel | None:
    """Return the encoder in a folder of two towers, of a published form, or in a wrapper; None for another one."""
    names = {} if is_two_folders(folder) else contracts.shapes(folder)
    plain = layout_of(names) == PLAIN and _wrapper(names) is None
    learners = any(name.startswith(LEARNERS) for name in names)
    return None if plain and not learners and not is_two_folders(folder) else PublishedModel(folder)


# ------------------------------------------------------------------------------------------------------------ pickles


_NESTED = ("state_dict", "model_state_dict", "model_dict")  # Lightning, plain PyTorch, DPR
_REFUSED = 3  # exit status of the child process for a file that it does not open
_GLOBAL = re.compile(r"GLOBAL ([\w.]+)")


def convert(files: Mapping[Path, Sequence[Path]]) -> None:
    """Write the weights of pickled files as safetensors.

    A new process reads them with `torch.load(weights_only=True)`.

    Args:
        files: target -> the shards of one checkpoint.

    Raises:
        InputError: a file is damaged, holds other objects than tensors, or no weights.
    """
    if not files:
        return
    first = next(iter(files.values()))[0]
    listed = json.dumps([[str(target), *map(str, sources)] for target, sources in files.items()])
    done = subprocess.run([sys.executable, "-m", __name__, listed], capture_output=True, text=True, check=False)
    if done.returncode == _REFUSED:
        raise InputError(done.stdout.strip().splitlines()[-1], code="checkpoint-refused", path=first)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1]
        raise path_error(first, f"the process that reads it failed ({last})", code="worker-ended")


def read_pickle(file: Path) -> dict[str, Any]:
    """Return the tensors of a pickled checkpoint by name; only for a process that may fail.

    Raises:
        InputError: see `convert`.
    """
    import torch

    try:
        loaded = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # damaged archives raise every class
        if match := _GLOBAL.search(str(error)):
            problem = f"needs unpickling of {match[1]}, which can run any code; ask for safetensors"
            raise path_error(file, problem, code="needs-unpickling") from None
        raise path_error(file, "is no readable PyTorch file, or needs unpickling", code="needs-unpickling") from None
    for name in _NESTED:
        if isinstance(loaded, Mapping) and isinstance(loaded.get(name), Mapping):
            loaded = loaded[name]
    if not isinstance(loaded, Mapping) or not loaded:
        raise path_error(file, "has no weights; needs a mapping of names and tensors", code="no-weights")
    if others := [str(name) for name, value in loaded.items() if not isinstance(value, torch.Tensor)]:
        raise path_error(file, f"{others[0]} is no tensor; needs a mapping of names and tensors", code="not-a-tensor")
    return {str(name): value for name, value in loaded.items()}


def main(listed: str) -> int:
    """Convert the files of a JSON list of targets and sources; print the reason of a refusal.

    Returns:
        Exit status.
    """
    from safetensors.torch import save_file

    try:
        for target, *sources in json.loads(listed):
            weights = {name: value for source in sources for name, value in read_pickle(Path(source)).items()}
            whole = {name: value.detach().clone().contiguous() for name, value in weights.items()}  # no shared storage
            save_file(whole, target, metadata={"format": "pt"})
    except InputError as error:
        sys.stdout.write(f"{error}\n")
        return _REFUSED
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
