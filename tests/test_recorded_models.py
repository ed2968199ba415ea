"""Models that artifacts record by name: opened from the local Hugging Face cache alone, with the recorded content."""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from hybrid_cli import artifacts, storage
from hybrid_cli.artifacts.opening import open_dense
from hybrid_cli.stages.encode import encode
from hybrid_cli.stages.index_bm25 import index_bm25
from hybrid_cli.stages.search import search

NAME = "evil/model"
CODE = """
import json, sys
from command import hybrid

attempts = []
sys.addaudithook(lambda event, given: attempts.append(str(given)) if event in ("socket.connect", "socket.getaddrinfo")
                 else None)
found = []
for words in json.loads(sys.argv[1]):
    done = hybrid(*words)
    found.append({"words": words[0], "code": done.code, "problem": done.problem, "error": done.err[-300:],
                  "fields": {name: str(value) for name, value in done.fields.items()}})
print(json.dumps({"found": found, "attempts": attempts}))
"""


def record(folder: Path, fingerprint: str) -> Path:
    manifest = artifacts.read_manifest(folder)
    model = {"name": NAME, "kind": "file", "fingerprint": fingerprint}
    changed = replace(manifest, inputs={**manifest.inputs, "model": model})
    (folder / "manifest.json").write_text(changed.to_json())
    return folder


def cache(home: Path, model: Path) -> Path:
    """Put a copy of a model into a Hugging Face cache, under the name."""
    place = home / "hub" / f"models--{NAME.replace('/', '--')}"
    (place / "refs").mkdir(parents=True)
    (place / "refs/main").write_text("a" * 40)
    return Path(shutil.copytree(model, place / "snapshots" / ("a" * 40)))


@pytest.fixture(scope="module")
def index(tiny: Path, tiny_bert: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("recorded")
    index_bm25(tiny, output=folder / "bm25")
    dense = encode(tiny, model=str(tiny_bert), dtype="fp32", output=folder / "dense")
    search(tiny, split="test", index=dense, output=folder / "dense.parquet")
    search(tiny, split="test", index=folder / "bm25", output=folder / "bm25.parquet")
    return record(dense, storage.fingerprint(tiny_bert))


def run(commands: list[list[Any]], address: str, home: Path) -> dict[str, Any]:
    settings = {"HF_ENDPOINT": address, "HF_HUB_OFFLINE": "0", "HF_HOME": str(home), "https_proxy": address}
    path = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    program = [sys.executable, "-c", CODE, json.dumps([[*map(str, words)] for words in commands])]
    environment = {**os.environ, **settings, "PYTHONPATH": path}
    done = subprocess.run(program, env=environment, capture_output=True, text=True, cwd=home)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout.splitlines()[-1]))


def commands(index: Path, tiny: Path, out: Path) -> tuple[list[list[Any]], list[list[Any]]]:
    """Return commands that read the index: those that need its encoder, and others."""
    bm25, runs = index.parent / "bm25", [index.parent / "bm25.parquet", index.parent / "dense.parquet"]
    given = ["--split", "test", "--index"]
    needing = [
        ["search", tiny, *given, index, "--output", out / "run.parquet"],
        ["search", tiny, *given, bm25, "--index", index, "--exact", "--output", out / "hybrid.parquet"],
        ["update", index, "--add", tiny, "--output", out / "longer"],
        ["fuse", *runs, "--missing", "exact", "--index", bm25, "--index", index, "--output", out / "fused.parquet"],
    ]
    return needing, [
        ["inspect", index],
        ["inspect", "--verify", index],
        ["update", index, "--remove", out / "ids.txt", "--output", out / "shorter"],
        ["encode", index, "--index-type", "hnsw", "--output", out / "graph"],
        ["evaluate", *runs, "--qrels", tiny, "--split", "test"],
        ["export", index, "--format", "pyserini", "--output", out / "faiss"],
    ]


def test_no_command_and_no_model_folder_asks_the_hub(
    index: Path, tiny: Path, tiny_bert: Path, hub: tuple[str, list[str]], tmp_path: Path
) -> None:
    """All in one process, whose start takes seconds."""
    (tmp_path / "ids.txt").write_text(f"{open_dense(index).docids[0]}\n")
    needing, others = commands(index, tiny, tmp_path)
    folders = changed_folders(tiny_bert, tmp_path)
    encoding = [
        ["encode", tiny, "--model", tmp_path / name, "--output", tmp_path / f"{name}-index"] for name in folders
    ]
    done = run([*needing, *others, *encoding], hub[0], tmp_path)
    assert (done["attempts"], hub[1]) == ([], [])
    results = iter(done["found"])
    for each in islice(results, len(needing)):
        assert (each["problem"], each["fields"].get("model")) == ("recorded-model-missing", NAME), each
    assert [each for each in islice(results, len(others)) if each["code"]] == []
    codes = dict(zip(folders, (each["code"] for each in results), strict=True))
    assert {name for name, code in codes.items() if code == 0} <= {"code", "tokenizer", "module"}
    assert set(codes.values()) <= {0, 2}


def test_a_model_in_the_cache_is_opened_if_its_content_is_the_recorded_one(
    index: Path, tiny: Path, tiny_bert: Path, hub: tuple[str, list[str]], tmp_path: Path
) -> None:
    model = cache(tmp_path, tiny_bert)
    command = [["search", tiny, "--split", "test", "--index", index, "--output", tmp_path / "run.parquet"]]
    assert run(command, hub[0], tmp_path)["found"][0]["code"] == 0
    (model / "config.json").write_text((model / "config.json").read_text() + "\n")
    command[0][-1] = tmp_path / "other.parquet"
    done = run(command, hub[0], tmp_path)
    assert done["found"][0]["problem"] == "recorded-model-changed"
    assert (done["attempts"], hub[1]) == ([], [])


def test_a_typed_name_may_be_downloaded(index: Path, tiny: Path, hub: tuple[str, list[str]], tmp_path: Path) -> None:
    words = ["search", tiny, "--split", "test", "--index", index, "--model", NAME, "--output", tmp_path / "run.parquet"]
    assert run([words], hub[0], tmp_path)["found"][0]["code"] == 2
    assert any(NAME in path for path in hub[1])


def changed_folders(tiny_bert: Path, folder: Path) -> list[str]:
    """Write models with names of the hub in their files: kernels, code, base models, tokenizers."""
    changes: dict[str, dict[str, Any]] = {
        "kernel": {"config.json": {"_attn_implementation": NAME}},
        "code": {
            "config.json": {"auto_map": {"AutoConfig": f"{NAME}--a.B", "AutoModel": f"{NAME}--a.C"}},
            "tokenizer_config.json": {"auto_map": {"AutoTokenizer": [None, f"{NAME}--a.D"]}, "name_or_path": NAME},
        },
        "type": {"config.json": {"model_type": "own", "auto_map": {"AutoConfig": f"{NAME}--a.B"}}},
        "adapter": {"adapter_config.json": {"base_model_name_or_path": NAME, "peft_type": "LORA"}},
        "backbone": {"config.json": {"backbone": NAME, "use_pretrained_backbone": True}},
        "quantized": {"config.json": {"quantization_config": {"quant_method": "eetq"}}},
        "mistral": {"config.json": {"model_type": "mistral", "transformers_version": "4.50.0"}},
        "tokenizer": {"tokenizer_config.json": {"tokenizer_class": "LlamaTokenizer", "gguf_file": "a.gguf"}},
        "module": {"sentence_bert_config.json": {"tokenizer_name_or_path": NAME}},
    }
    for name, files in changes.items():
        shutil.copytree(tiny_bert, folder / name)
        for file, content in files.items():
            path = folder / name / file
            stored = json.loads(path.read_text()) if path.is_file() else {}
            path.write_text(json.dumps({**stored, **content}))
    return list(changes)
