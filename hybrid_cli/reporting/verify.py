"""The result of `verify` as tables or JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hybrid_cli import console
from hybrid_cli.errors import HybridError
from hybrid_cli.settings import Verify


def show(found: Sequence[dict[str, Any]], settings: Verify) -> None:
    """Print the state of every artifact and of its inputs.

    Raises:
        HybridError: files are damaged; a warning names each of them.
    """
    if settings.form == "json":
        console.result_json(found, indent=2)
    else:
        rows = [[each["path"], each["kind"], f"{each['files']:,}", each["state"]] for each in found]
        console.table(("artifact", "kind", "files", "state"), rows, left=("kind", "state"))
        inputs = [
            [each["path"], source["role"], source["path"], source["state"]]
            for each in found
            for source in each["inputs"]
        ]
        if inputs:
            console.table(("artifact", "input", "path", "state"), inputs, left=("input", "path", "state"))
    if problems := list(dict.fromkeys(line for each in found for line in each["problems"])):
        for line in problems:
            console.warn(line)
        raise HybridError(
            f"damaged files: {len(problems)}; restore them, or rebuild the artifacts",
            code="damaged", count=len(problems), problems=problems,
        )  # fmt: skip
