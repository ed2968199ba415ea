"""`convert-checkpoint`: convert a pickled checkpoint to safetensors, and join the two towers of a published encoder."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from hybrid_cli import artifacts, console
from hybrid_cli.artifacts import Kind, disk, layout
from hybrid_cli.encoders.layouts import PLAIN, SIDES, find, shapes
from hybrid_cli.encoders.models import model_input, resolve
from hybrid_cli.encoders.pickles import convert
from hybrid_cli.encoders.presets import PRESETS
from hybrid_cli.errors import InputError
from hybrid_cli.settings import ConvertCheckpoint, stage
from hybrid_cli.settings.common import NameOrPath

_COPIED = (".json", ".txt", ".model", ".safetensors")
_PICKLES = "pytorch_model*.bin"
_TOKENIZER = ("config.json", "tokenizer*", "vocab*", "merges.txt", "special_tokens_map.json", "*.model")


@stage(ConvertCheckpoint)
def convert_checkpoint(settings: ConvertCheckpoint) -> Path:
    """Write a checkpoint in safetensors format; with `documents`, an encoder of two towers.

    Returns:
        Folder of the checkpoint, which `--model` takes.

    Raises:
        InputError: a file is damaged or needs unpickling of objects, or the checkpoint has no weights.
    """
    inputs = {"checkpoint": _input(settings.checkpoint)}
    inputs |= {"documents": _input(settings.documents)} if settings.documents else {}
    inputs |= {"base": _input(settings.base)} if settings.base else {}
    output = artifacts.open_output(
        settings.output,
        Kind.ENCODER,
        settings.command,
        inputs=inputs,
        options=settings.recorded(),
        overwrite=settings.overwrite,
    )
    if output.up_to_date:
        return output.path
    base = resolve(settings.base) if settings.base else None
    with output.folder() as (work, counts):
        for left in work.iterdir():  # of an interrupted call
            if not left.name.startswith("."):
                disk.remove(left)
        if settings.documents is None:
            counts["weights"] = _write(_place(settings.checkpoint), work, base)
        else:
            for side, source in zip(SIDES, (settings.checkpoint, settings.documents), strict=True):
                counts[f"{side} weights"] = _write(_place(source), work / side, base)
    form = find(output.path)
    console.note(f"convert-checkpoint: {output.path}: {sum(counts.values()):,} weights{_advice(form)}")
    return output.path


def _advice(form: str) -> str:
    names = [name for name, preset in PRESETS.items() if form in preset.layouts]
    return f", form '{form}'; use it with --preset {' or '.join(names)}" if names and form != PLAIN else ""


def _place(source: NameOrPath) -> Path:
    return Path(source) if Path(source).is_file() else resolve(source)


def _input(source: NameOrPath) -> Path | artifacts.Named:
    return Path(source) if Path(source).is_file() else model_input(str(source))


def _write(source: Path, folder: Path, base: Path | None) -> int:
    """Write the checkpoint `source`, a file or a folder, to `folder`; return the number of its weights."""
    pickles: dict[Path, list[Path]] = {}
    if source.is_dir():
        modules = [each for each in sorted(source.iterdir()) if (each / "config.json").is_file()]
        for place in (source, *modules):
            target = folder / place.relative_to(source)
            _copy([file for file in place.iterdir() if file.is_file() and file.suffix in _COPIED], target)
            if not any(place.glob("*.safetensors")) and (found := sorted(place.glob(_PICKLES))):
                pickles[target / layout.WEIGHTS] = found
    else:
        if not (source.parent / "config.json").is_file() and base is None:
            raise InputError(
                f"{source}: has no config.json next to it; pass --base, the model from which it was trained"
            )
        if base is None:
            _copy([file for pattern in _TOKENIZER for file in source.parent.glob(pattern)], folder)
        pickles[folder / layout.WEIGHTS] = [source]
    if base is not None:
        _copy([file for pattern in _TOKENIZER for file in base.glob(pattern)], folder)
    convert(pickles)
    if not (count := len(shapes(folder))):
        raise InputError(f"{source}: has no weights (*.safetensors or {_PICKLES}) with a config.json")
    return count


def _copy(files: Iterable[Path], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for file in files:
        if not file.name.startswith(("pytorch_model", "manifest.json")):
            disk.copy(file, folder / file.name)
