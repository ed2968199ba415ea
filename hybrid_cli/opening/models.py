"""Models that artifacts record, and models as inputs of stages."""

from __future__ import annotations

from pathlib import Path

from hybrid_cli.artifacts import Input, Manifest, Named, has_content, recorded_input
from hybrid_cli.encoders.models import resolve
from hybrid_cli.errors import HybridError, InputError


def input_path(manifest: Manifest, role: str) -> Path | None:
    """Return the path of an input; for a model recorded by name, its folder on this machine, or None."""
    if "name" not in manifest.inputs[role]:
        return manifest.input_path(role)
    try:
        return resolve(manifest.inputs[role]["name"], local=True)
    except HybridError:
        return None


def model_input(name: str) -> Path | Named:
    """Return a model as an input of a stage: a folder, or the name of a model from a package or from the hub.

    Raises:
        InputError: see `resolve`.
    """
    folder = resolve(name)
    return folder if folder == Path(name) else Named(name, folder)


def recorded_model_input(manifest: Manifest) -> dict[str, Input]:
    """Return the encoder of an index as an input of a derived one: as recorded, even if missing or changed."""
    recorded = recorded_input(manifest, "model")
    return {} if recorded is None else {"model": recorded}


def find_model(index: Path, manifest: Manifest) -> Path:
    """Return the folder of the recorded encoder of an index; see `recorded_model`.

    Raises:
        InputError: no encoder is recorded, or it is no longer there.
    """
    folder = recorded_model(index, manifest)
    if folder is None:
        raise InputError(f"{index}: records no encoder; pass it with --model", code="no-recorded-model", path=index)
    if not folder.exists():
        raise InputError(
            f"{index}: its encoder is no longer at {folder}; pass it with --model",
            code="recorded-model-missing",
            path=index,
            model=str(folder),
        )
    return resolve(folder)


def recorded_model(artifact: Path, manifest: Manifest) -> Path | None:
    """Return the folder of the model that an artifact records; None if it records none.

    No artifact makes hybrid ask the hub: a model recorded by name is opened from the Hugging Face cache alone, and only
    with the recorded content.

    Args:
        artifact: path of the artifact, for messages.
        manifest: its manifest.

    Raises:
        InputError: a model recorded by name is not on this machine, or has other content.
    """
    if (path := manifest.input_path("model")) is not None:
        return path
    if (recorded := manifest.inputs.get("model", {})).get("name") is None:
        return None
    name = recorded["name"]
    try:
        folder = resolve(name, local=True)
    except HybridError:
        raise InputError(
            f"{artifact}: records the model {name!r}, which is not in the local Hugging Face cache; if you trust this "
            f"name, download it with --model {name}, or pass a folder with --model",
            code="recorded-model-missing",
            path=artifact,
            model=name,
        ) from None
    if not has_content(folder, recorded["fingerprint"]):
        raise InputError(
            f"{artifact}: records the model {name!r} with other content than {folder}; pass the model of this "
            "artifact with --model",
            code="recorded-model-changed",
            path=artifact,
            model=name,
        )
    return folder
