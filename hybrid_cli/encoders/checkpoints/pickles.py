"""Conversion of PyTorch's pickled checkpoints to safetensors, in a process of its own, without creating objects."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hybrid_cli.errors import InputError, path_error

_WRAPPERS = ("state_dict", "model_state_dict", "model_dict")  # Lightning, plain PyTorch, DPR
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


def read_weights(file: Path) -> dict[str, Any]:
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
    for name in _WRAPPERS:
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
            weights = {name: value for source in sources for name, value in read_weights(Path(source)).items()}
            whole = {name: value.detach().clone().contiguous() for name, value in weights.items()}  # no shared storage
            save_file(whole, target, metadata={"format": "pt"})
    except InputError as error:
        sys.stdout.write(f"{error}\n")
        return _REFUSED
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
