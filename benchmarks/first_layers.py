"""The first layers of a BERT-like encoder, as an encoder: for studies that a small machine is to end in an hour.

    python benchmarks/first_layers.py minilm out/minilm-2 --layers 2
    make lite DATA=... OUT=... MODEL=out/minilm-2

It retrieves worse than the whole and trains at a fraction of its cost. Compare within it only.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
from pathlib import Path

from safetensors.torch import load_file, save_file

from hybrid_cli.encoders import models


def main() -> None:
    """Copy the model's folder, without the weights of the other layers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a model's folder in the form of sentence-transformers, or minilm")
    parser.add_argument("output", type=Path)
    parser.add_argument("--layers", type=int, default=2)
    arguments = parser.parse_args()
    shutil.copytree(models.resolve(arguments.model), arguments.output)
    settings = arguments.output / "config.json"
    settings.write_text(json.dumps(json.loads(settings.read_text()) | {"num_hidden_layers": arguments.layers}))
    weights = load_file(arguments.output / "model.safetensors")
    kept = {name: tensor for name, tensor in weights.items() if _layer(name) < arguments.layers}
    save_file(kept, arguments.output / "model.safetensors", metadata={"format": "pt"})
    print(
        f"{arguments.layers} layers, {sum(tensor.numel() for tensor in kept.values()):,} weights -> {arguments.output}"
    )


def _layer(name: str) -> int:
    """The layer that a weight belongs to; -1 for those below all."""
    found = re.search(r"encoder\.layer\.(\d+)\.", name)
    return int(found.group(1)) if found else -1


if __name__ == "__main__":
    main()
