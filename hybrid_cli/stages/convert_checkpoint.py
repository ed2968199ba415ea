"""`convert-checkpoint`: convert pickled checkpoints to safetensors, and join the towers or learners of an encoder."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from safetensors import safe_open
from safetensors.torch import save_file

from hybrid_cli import artifacts, console
from hybrid_cli.artifacts.indexes import model_input
from hybrid_cli.commands import ConvertCheckpoint
from hybrid_cli.commands.common import NameOrPath
from hybrid_cli.encoders import composite
from hybrid_cli.encoders import contract as contracts
from hybrid_cli.encoders.adapters import merge_adapters
from hybrid_cli.encoders.checkpoints.published import LEARNERS, PLAIN, convert, find, layout_of
from hybrid_cli.encoders.cross_encoder import CrossEncoder, is_reranker
from hybrid_cli.encoders.loading import unknown_weights
from hybrid_cli.encoders.models import resolve
from hybrid_cli.encoders.sparse import SparseEncoder
from hybrid_cli.encoders.transformer import Tower, TransformerEncoder, note_left_out
from hybrid_cli.errors import InputError
from hybrid_cli.stages import stage
from hybrid_cli.storage import Kind, disk, layout

_COPIED = (".json", ".txt", ".model", ".safetensors")
_PICKLES = "pytorch_model*.bin"
_LEARNER = "dpr-scale"  # form of DrBoost's learners
_TOKENIZER = ("config.json", "tokenizer*", "vocab*", "merges.txt", "special_tokens_map.json", "*.model")


@stage(ConvertCheckpoint)
def convert_checkpoint(settings: ConvertCheckpoint) -> Path:
    """Write a checkpoint in safetensors format: an encoder of two towers with `documents`, an ensemble with `learners`.

    A file with several learners of DrBoost becomes an ensemble, too.

    Returns:
        Folder of the checkpoint, which `--model` takes.

    Raises:
        InputError: a file is damaged or needs unpickling of objects, or the checkpoint has no weights.
    """
    sources = [settings.checkpoint, *([settings.documents] if settings.documents else []), *settings.learners]
    if len({_path_of(source).resolve() for source in sources}) < len(sources):
        problem = f"{settings.checkpoint}: a checkpoint is given twice; each tower or learner needs its own"
        raise InputError(problem, code="repeated-input", path=settings.checkpoint)
    named = {"checkpoint": settings.checkpoint, "documents": settings.documents, "base": settings.base}
    named |= {f"learner {number}": learner for number, learner in enumerate(settings.learners, 2)}
    inputs = {role: _input(source) for role, source in named.items() if source}
    merges_reranker = settings.merge and is_reranker(resolve(settings.checkpoint))
    kind, options = Kind.RERANKER if merges_reranker else Kind.ENCODER, settings.recorded()
    output = artifacts.open_output(
        settings.output, kind, settings.command, inputs=inputs, options=options, overwrite=settings.overwrite
    )
    if output.up_to_date:
        return output.path
    base = resolve(settings.base) if settings.base else None
    with output.folder() as (work, counts):
        for left in work.iterdir():  # of an interrupted call
            if not left.name.startswith("."):
                disk.remove(left)
        if settings.merge:
            counts |= _merge(settings.checkpoint, work)
        elif settings.documents is None:
            counts |= _write_learners([settings.checkpoint, *settings.learners], work, base)
        else:
            counts |= _write_towers((settings.checkpoint, settings.documents), work, base)
    weights = sum(number for name, number in counts.items() if name.endswith("weights"))
    learners = f", an ensemble of {counts['learners']} learners" if "learners" in counts else _advice(output.path)
    output.note(f"{console.counted(weight=weights)}{learners}")
    return output.path


def _advice(folder: Path) -> str:
    """Return the presets of the form of a checkpoint in words; empty if towers have contracts of their own."""
    if any((folder / side / name).is_file() for side in contracts.SIDES for name in (layout.CONTRACT, layout.MODULES)):
        return ""
    form = find(folder)
    names = [name for name, preset in contracts.PRESETS.items() if form in preset.layouts]
    return f", form '{form}'; use it with --preset {' or '.join(names)}" if names and form != PLAIN else ""


def _path_of(source: NameOrPath) -> Path:
    return Path(source) if Path(source).is_file() else resolve(source)


def _input(source: NameOrPath) -> Path | artifacts.Named:
    return Path(source) if Path(source).is_file() else model_input(str(source))


def _write(sources: Mapping[Path, NameOrPath], base: Path | None) -> list[int]:
    """Write checkpoints, files or folders, to the folders they are named for; return the number of weights of each."""
    pickles: dict[Path, list[Path]] = {}
    for folder, source in sources.items():
        pickles |= _copy_checkpoint(_path_of(source), folder, base)
    convert(pickles)
    counts = [len(contracts.shapes(folder)) for folder in sources]
    for count, source in zip(counts, sources.values(), strict=True):
        if not count:
            raise InputError(f"{source}: has no weights with a config.json", code="no-weights", path=source)
    return counts


def _copy_checkpoint(source: Path, folder: Path, base: Path | None) -> dict[Path, list[Path]]:
    """Copy all files but pickles of a checkpoint; return the pickles to convert, by target."""
    pickles: dict[Path, list[Path]] = {}
    if source.is_dir():
        modules = [module for module in sorted(source.iterdir()) if (module / "config.json").is_file()]
        for part in (source, *modules):
            target = folder / part.relative_to(source)
            _copy([file for file in part.iterdir() if file.is_file() and file.suffix in _COPIED], target)
            if not any(part.glob("*.safetensors")) and (weights := sorted(part.glob(_PICKLES))):
                pickles[target / layout.WEIGHTS] = weights
    else:
        if not (source.parent / "config.json").is_file() and base is None:
            problem = f"{source}: has no config.json next to it; pass --base, the model from which it was trained"
            raise InputError(problem, code="missing-option", path=source, option="base")
        if base is None:
            _copy([file for pattern in _TOKENIZER for file in source.parent.glob(pattern)], folder)
        pickles[folder / layout.WEIGHTS] = [source]
    if base is not None:
        _copy([file for pattern in _TOKENIZER for file in base.glob(pattern)], folder)
    return pickles


def _merge(source: NameOrPath, work: Path) -> dict[str, int]:
    """Write an encoder whose adapters are merged; return the number of weights.

    Raises:
        InputError: it has no adapter.
    """
    folder = resolve(source)
    kind: Any = CrossEncoder
    if not is_reranker(folder):
        kind = SparseEncoder if contracts.kind_of(folder) == contracts.SPARSE else TransformerEncoder
    encoder = kind.load(folder, device="cpu")
    if not merge_adapters(encoder):
        raise InputError(f"{source}: has no LoRA adapter; omit --merge", code="option-does-not-apply", path=source)
    encoder.save(work)
    return {"weights": len(encoder.state_dict())}


def _write_towers(sources: Sequence[NameOrPath], work: Path, base: Path | None) -> dict[str, int]:
    """Write the query and the document tower of one encoder; return the counts.

    Raises:
        InputError: a checkpoint is no transformer encoder, or the lengths of the vectors differ.
    """
    for source in sources:
        if (folder := _path_of(source)).is_dir() and (kind := contracts.kind_of(folder)) != contracts.TRANSFORMER:
            problem = f"{source}: is a {kind} encoder; --documents joins transformer encoders"
            raise InputError(problem, code="other-kind", path=source, kind=kind, expected=contracts.TRANSFORMER)
    weights = _write({work / side: source for side, source in zip(contracts.SIDES, sources, strict=True)}, base)
    try:
        contract = contracts.read_contract(work)
        stored = contracts.stored_encoder(work)
        towers = {side: Tower.load(stored.tower(side), contract) for side in contracts.SIDES}
    except InputError as error:
        text = str(error)
        for side, source in zip(contracts.SIDES, sources, strict=True):
            text = text.replace(str(work / side), str(source))
        text = text.replace(str(work), f"{sources[0]} and {sources[1]}")
        raise InputError(text, code=error.code, **error.fields) from None
    query, document = (tower.dim for tower in towers.values())
    if query != document:
        problem = f"{sources[1]}: has vectors of {document} values, and {sources[0]} of {query}"
        raise InputError(problem, code="other-width", path=sources[1], value=document, expected=query)
    for tower, source in zip(towers.values(), sources, strict=True):
        note_left_out(tower, source)
    return {f"{side} weights": count for side, count in zip(contracts.SIDES, weights, strict=True)}


def _write_learners(sources: Sequence[NameOrPath], work: Path, base: Path | None) -> dict[str, int]:
    """Write one encoder, or the ensemble of the learners in one or several checkpoints; return the counts."""
    folders = composite.learners(work, len(sources))
    weights = sum(_write(dict(zip(folders, sources, strict=True)), base))
    names = contracts.shapes(work) if len(sources) == 1 else {}
    if numbers := {name.split(".")[1] for name in names if name.startswith(LEARNERS)}:
        if unknown := [name for name in names if not name.startswith(LEARNERS)]:
            raise unknown_weights(Path(sources[0]), unknown)
        folders = composite.learners(work, len(numbers))
        _split(work, folders)
    if len(folders) == 1:
        return {"weights": weights}
    for number, folder in enumerate(folders, 1):
        if (form := layout_of(contracts.shapes(folder))) != _LEARNER:
            problem = f"{sources[0]}: learner {number} has the form '{form}'; an ensemble needs '{_LEARNER}'"
            raise InputError(problem, code="other-kind", path=sources[0], kind=form, expected=_LEARNER)
    composite.write_ensemble(work, len(folders), contracts.PRESETS["drboost"].contract)
    return {"weights": weights, "learners": len(folders)}


def _split(work: Path, folders: Sequence[Path]) -> None:
    """Move the weights of each learner from `work` to its folder, with configuration and tokenizer."""
    whole = [path.rename(path.with_suffix(".whole")) for path in contracts.weight_files(work)]
    others = [path for path in work.iterdir() if path.suffix in _COPIED]
    for number, folder in enumerate(folders):
        prefix = f"{LEARNERS}{number}."
        own: dict[str, Any] = {}
        for file in whole:
            with safe_open(file, "pt") as opened:
                names = [name for name in opened.keys() if name.startswith(prefix)]  # noqa: SIM118 - no mapping
                own |= {name.removeprefix(prefix): opened.get_tensor(name) for name in names}
        if folder != work:
            _copy(others, folder)
        with disk.by_name(folder / layout.WEIGHTS) as target:
            save_file(own, target, metadata={"format": "pt"})
    for path in [*whole, *(others if len(folders) > 1 else ())]:
        disk.remove(path)


def _copy(files: Iterable[Path], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for file in files:
        if not file.name.startswith(("pytorch_model", "manifest.json")):
            disk.copy(file, folder / file.name)
