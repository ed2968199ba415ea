"""Names of models: folders, packages, Hugging Face ids; checkpoints that are refused."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from command import raises
from recording_hub import recording_hub
from safetensors.torch import load_file, save_file

from hybrid_cli.encoders.models import resolve
from hybrid_cli.encoders.transformer import TransformerEncoder
from hybrid_cli.errors import InputError


@pytest.fixture
def hub() -> Iterator[tuple[str, list[str]]]:
    """Return the address of a hub, and the list of requested paths."""
    with recording_hub() as found:
        yield found


def run(model: str, address: str, folder: Path, offline: str = "0") -> subprocess.CompletedProcess[str]:
    """Resolve a model in a separate process: huggingface_hub reads its settings when it is imported."""
    code = (
        "import sys\n"
        "from hybrid_cli import console, errors\n"
        "from hybrid_cli.encoders.models import resolve\n"
        "with console.heard() as notices:\n"
        "    try:\n"
        "        resolve(sys.argv[1])\n"
        "    except errors.InputError as error:\n"
        "        print(*(notice.code for notice in notices), error.code, error.fields['value'])\n"
    )
    settings = {"HF_ENDPOINT": address, "HF_HUB_OFFLINE": offline, "HF_HOME": str(folder / "cache")}
    return subprocess.run(
        [sys.executable, "-c", code, model], cwd=folder, env={**os.environ, **settings}, capture_output=True, text=True
    )


@pytest.mark.parametrize(
    "name", ["out/clear", "./owner/clear", "../clear", "/owner/clear", "~/clear", "clear", "a/b/c"]
)
def test_a_mistyped_path_is_never_requested_from_the_hub(tmp_path: Path, hub: tuple[str, list[str]], name: str) -> None:
    (tmp_path / "out").mkdir()
    done = run(name, hub[0], tmp_path)
    assert done.stdout == f"no-such-model {name}\n", done
    assert not hub[1]


def test_a_hub_id_is_requested_with_a_notice(tmp_path: Path, hub: tuple[str, list[str]]) -> None:
    done = run("owner/clear", hub[0], tmp_path)
    assert done.stdout == "download no-such-model owner/clear\n", done
    assert done.stderr.startswith("owner/clear: ")
    assert any("owner/clear" in path for path in hub[1])


def test_nothing_is_requested_offline(tmp_path: Path, hub: tuple[str, list[str]]) -> None:
    done = run("owner/clear", hub[0], tmp_path, offline="1")
    assert done.stdout == "no-such-model owner/clear\n", done
    assert not hub[1]


def test_a_path_object_is_local(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with raises("no-such-model", value="model"):
        resolve(Path("owner/model"))


@pytest.fixture
def copy(tmp_path: Path, tiny_bert: Path) -> Path:
    shutil.copytree(tiny_bert, tmp_path / "model")
    return tmp_path / "model"


def set_layers(folder: Path, count: int) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "num_hidden_layers": count}))


@pytest.mark.parametrize("prefix", ["", "bert."])
def test_weights_of_layers_that_are_not_in_the_config_are_refused(copy: Path, prefix: str) -> None:
    """Transformers would drop these weights with a note, and the encoder would be a different one."""
    weights = load_file(copy / "model.safetensors")
    save_file({prefix + name: value for name, value in weights.items()}, copy / "model.safetensors", {"format": "pt"})
    TransformerEncoder.load(copy)
    set_layers(copy, 1)
    with raises("more-layers"):
        TransformerEncoder.load(copy)


def test_a_tokenizer_with_more_tokens_than_the_model_is_refused(copy: Path) -> None:
    content = json.loads((copy / "tokenizer.json").read_text())
    content["model"]["vocab"]["zzz"] = 40_000
    (copy / "tokenizer.json").write_text(json.dumps(content))
    with raises("other-tokenizer", path="model"):
        TransformerEncoder.load(copy)


@pytest.mark.parametrize("files", [["passage/config.json", "query/config.json"], ["model.safetensors"]])
def test_a_folder_without_a_model_is_refused(tmp_path: Path, files: list[str]) -> None:
    for name in files:
        (tmp_path / "model" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "model" / name).write_text("{}")
    with raises("model-without-config", path="model"):
        TransformerEncoder.load(tmp_path / "model")


def test_integer_weights_are_refused(copy: Path) -> None:
    weights = load_file(copy / "model.safetensors")
    name = "encoder.layer.0.attention.self.query.weight"
    save_file({**weights, name: weights[name].to(torch.int8)}, copy / "model.safetensors", {"format": "pt"})
    with raises("integer-weights", path="model"):
        TransformerEncoder.load(copy)


@pytest.mark.parametrize("shard", ["pytorch_model.bin", "../other/model.safetensors", "model.pt"])
def test_an_index_with_a_path_to_a_pickle_or_outside_of_the_folder_is_refused(copy: Path, shard: str) -> None:
    weights = load_file(copy / "model.safetensors")
    (copy / "other.safetensors").write_bytes((copy / "model.safetensors").read_bytes())
    (copy / "model.safetensors").unlink()
    torch.save(weights, copy / "pytorch_model.bin")
    index = {"metadata": {"total_size": 1}, "weight_map": dict.fromkeys(weights, shard)}
    (copy / "model.safetensors.index.json").write_text(json.dumps(index))
    with raises("unsafe-name"):
        TransformerEncoder.load(copy)


def test_a_config_that_names_a_pickle_as_its_weights_is_refused(copy: Path) -> None:
    torch.save(load_file(copy / "model.safetensors"), copy / "pytorch_model.bin")
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps({**config, "transformers_weights": "pytorch_model.bin"}))
    with raises("unsafe-name", path="model", name="pytorch_model.bin"):
        TransformerEncoder.load(copy)


MODEL = {"AutoConfig": "custom.A", "AutoModel": "custom.B"}
CUSTOM: list[tuple[str, Any]] = [
    ("config.json", {"model_type": "bert", "auto_map": MODEL}),
    ("config.json", {"model_type": "custom", "auto_map": MODEL}),
    ("tokenizer_config.json", {"tokenizer_class": "C", "auto_map": {"AutoTokenizer": ["custom.C", "custom.C"]}}),
    ("modules.json", [{"idx": 0, "name": "0", "path": "", "type": "custom.D"}]),
]


@pytest.mark.parametrize(("name", "content"), CUSTOM)
def test_code_in_a_model_folder_is_not_executed(tiny_bert: Path, tmp_path: Path, name: str, content: Any) -> None:
    folder, marker = tmp_path / "model", tmp_path / "executed"
    shutil.copytree(tiny_bert, folder)
    known = json.loads((folder / name).read_text()) if name == "config.json" else {}
    (folder / name).write_text(json.dumps({**known, **content} if isinstance(content, dict) else content))
    (folder / "custom.py").write_text(f"import pathlib\npathlib.Path({str(marker)!r}).touch()\n")
    with suppress(InputError):  # either is safe: the folder is refused, or opened without its code
        TransformerEncoder.load(folder, device="cpu").encode_queries(["salt"])
    assert not marker.exists()


def test_a_pickle_is_not_opened(tiny_bert: Path, tmp_path: Path) -> None:
    class Payload:
        def __reduce__(self) -> tuple[object, ...]:
            return os.mkdir, (str(tmp_path / "executed"),)

    folder = tmp_path / "model"
    shutil.copytree(tiny_bert, folder)
    (folder / "model.safetensors").unlink()
    torch.save(Payload(), folder / "pytorch_model.bin")
    with raises("no-weights"):
        TransformerEncoder.load(folder, device="cpu")
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize("wrapper", ["module.", "encoder."])
def test_weights_of_a_wrapped_model_are_read(copy: Path, tiny_bert: Path, wrapper: str) -> None:
    weights = load_file(copy / "model.safetensors")
    save_file({wrapper + name: value for name, value in weights.items()}, copy / "model.safetensors", {"format": "pt"})
    found = TransformerEncoder.load(copy).encode_queries(["salt"])
    assert (found == TransformerEncoder.load(tiny_bert).encode_queries(["salt"])).all()
