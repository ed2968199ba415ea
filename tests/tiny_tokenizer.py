"""A tokenizer with a small vocabulary, for models that tests load, train and save many times."""

import json
from functools import cache
from tempfile import TemporaryDirectory
from typing import Any

VOCABULARY = 8000
"""Word pieces of MiniLM's vocabulary that are kept: special tokens, characters and frequent words."""


@cache
def tiny_tokenizer() -> Any:
    """Return MiniLM's tokenizer with the first 8,000 word pieces; other words are split into shorter pieces."""
    from pathlib import Path

    from transformers import AutoTokenizer

    from hybrid_cli.encoders.models import resolve

    with TemporaryDirectory() as name:
        folder = Path(name)
        AutoTokenizer.from_pretrained(resolve("minilm")).save_pretrained(folder)
        file = folder / "tokenizer.json"
        rules = json.loads(file.read_text())
        pieces = rules["model"]["vocab"]
        rules["model"]["vocab"] = {piece: i for piece, i in pieces.items() if i < VOCABULARY}
        file.write_text(json.dumps(rules))
        return AutoTokenizer.from_pretrained(folder)
