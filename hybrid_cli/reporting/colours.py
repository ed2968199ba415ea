"""Colors of the pages and charts, as data and as CSS variables."""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib.resources import files
from typing import Literal

Scheme = Literal["light", "dark"]
RUN_COLOURS = 10

# background, text, lines; `mark`: background of query terms; `good`, `bad`: flags; run-0, ...: colors of the runs
COLOURS: Mapping[Scheme, Mapping[str, str]] = json.loads(files(__package__).joinpath("colours.json").read_text("utf-8"))


def style_sheet() -> str:
    """Return the colors as CSS variables; dark colors apply if the reader's system prefers them."""

    def variables(scheme: Scheme) -> str:
        return " ".join(f"--{name}: {value};" for name, value in COLOURS[scheme].items())

    night = f"@media screen and (prefers-color-scheme: dark) {{ :root {{ {variables('dark')} }} }}"
    return f":root {{ color-scheme: light dark; {variables('light')} }}\n{night}\n"
