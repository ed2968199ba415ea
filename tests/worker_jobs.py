"""Jobs of the processes of `indexes.workers` that need no model."""

from __future__ import annotations

import time
from typing import Any

from hybrid_cli.errors import InputError
from hybrid_cli.indexes import workers


def job() -> None:
    workers.serve(_work)


def _work(values: dict[str, Any], send: workers.Send) -> None:
    send("done", values["count"])
    if "error" in values:
        raise InputError(values["error"])
    time.sleep(values.get("seconds", 0))
