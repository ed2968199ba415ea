"""Unusual inputs: each is refused in one line, with exit code 2 (1 for damaged artifacts), never as a bug of hybrid."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from command import Refusal, hybrid, refusal, refused
from processes import HYBRID, run

DEEP = "[" * 100_000 + "]" * 100_000
LONG = "x" * 300


pytestmark = pytest.mark.usefixtures("one_thread")


def write(name: str, content: str | bytes) -> None:
    path = Path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())


# ---------------------------------------------------------------------------------------------------------- arguments


ARGUMENTS = [
    ("index-bm25 collection --output .", refusal("invalid-name")),
    ("index-bm25 collection --output /", refusal("invalid-name")),
    ("evaluate collection --split test ''", refusal("invalid-name")),
    ("index-bm25 collection --output no/../out", refusal("no-such-folder")),
    (f"index-bm25 collection --output {LONG[:250]}", refusal("invalid-name")),
    (f"prepare trec docs.jsonl --topics {LONG}=t.tsv --output out", refusal("invalid-name")),
    ("inspect loop", refusal("no-such-file")),
    ("index-bm25 collection --output loop/out", refusal("invalid-name")),
    ("encode collection --model ./loop --output out", refusal("no-such-model")),
    (
        f"fuse bm25.parquet dense.parquet --depth {'9' * 5000} --output o.parquet",
        refusal("not-a-number", option="depth"),
    ),
    ("index-bm25 collection --threads 1000000 --output out", refusal("out-of-range", option="threads")),
    ("prepare trec docs.jsonl --encoding punycode --output out", refusal("invalid-value", option="encoding")),
]
TOO_LONG = [
    f"index-bm25 collection --output {LONG}",
    f"index-bm25 {LONG} --output out",
    f"inspect {'/'.join([LONG[:200]] * 30)}",
]


@pytest.mark.parametrize(("command", "words"), ARGUMENTS)
def test_an_argument_that_cannot_be_used_is_refused(here: Path, command: str, words: Refusal) -> None:
    Path("loop").symlink_to("loop")
    Path("loop.parquet").symlink_to("loop.parquet")
    write("docs.jsonl", '{"id": "1", "text": "x"}\n')
    done = refused(*shlex.split(command), problem=words)
    assert len(done.err) < 800


@pytest.mark.parametrize("command", TOO_LONG)
def test_a_name_that_is_too_long_is_refused(here: Path, command: str) -> None:
    assert refused(*shlex.split(command)).problem in ("unusable-file", "invalid-name")


@pytest.mark.parametrize(
    ("text", "words"),
    [("a\0b", refusal("not-a-text")), ("a\udcffb", refusal("not-utf-8"))],
)
@pytest.mark.parametrize("command", ["inspect {}", "search --index bm25 --query {}", "index-bm25 collection -o {}"])
def test_text_that_cannot_be_stored_is_refused(here: Path, command: str, text: str, words: str | Refusal) -> None:
    refused(*(text if word == "{}" else word for word in command.split()), problem=words)


# -------------------------------------------------------------------------------------------------------------- files


FILES: list[tuple[str, str | bytes, str, Refusal]] = [
    (
        "x.jsonl",
        '{"id":"1","text":' + DEEP + "}",
        "prepare trec x.jsonl -o out",
        refusal("not-json", path="x.jsonl", line=1),
    ),
    ("x.json", DEEP, "inspect x.json", refusal("not-json", path="x.json")),
    ("x.json", b"\xff\xfe", "inspect x.json", refusal("not-json", path="x.json")),
    (
        "x.yaml",
        DEEP,
        "evaluate collection --split test bm25.parquet --config x.yaml",
        refusal("not-yaml", path="x.yaml"),
    ),
    (
        "x.yaml",
        "a: \0",
        "evaluate collection --split test bm25.parquet --config x.yaml",
        refusal("not-yaml", path="x.yaml"),
    ),
]


@pytest.mark.parametrize(("name", "content", "command", "words"), FILES)
def test_a_file_that_cannot_be_parsed_is_refused(
    here: Path, name: str, content: str | bytes, command: str, words: str | Refusal
) -> None:
    write(name, content)
    refused(*command.split(), problem=words)


OPENED_IN = [
    ("x.parquet", "fuse bm25.parquet x.parquet -o o.parquet"),
    ("x.trec", "fuse bm25.parquet x.trec -o o.parquet"),
    ("x.json", "fuse bm25.parquet dense.parquet --method weighted-sum --weights @x.json -o o.parquet"),
    ("x.tsv", "evaluate --qrels x.tsv bm25.parquet"),
    ("x.yaml", "evaluate collection --split test bm25.parquet --config x.yaml"),
    ("x.log", "evaluate collection --split test bm25.parquet --log-file x.log"),
    ("x.json", "inspect x.json"),
    ("x.json", "split collection --split test --folds-file x.json -o out"),
    ("x.tsv", "search --queries x.tsv --index bm25 -o o.parquet"),
    ("documents/x.jsonl", "prepare trec documents -o out"),
    ("x.tsv", "prepare msmarco x.tsv -o out"),
    ("mine/config.json", "encode collection --model mine -o out"),
    ("x.faiss", "encode collection --from-vectors x.faiss -o out"),
]


@pytest.mark.parametrize(("name", "command"), OPENED_IN)
def test_a_pipe_is_refused_and_not_read(here: Path, name: str, command: str) -> None:
    pipe = Path(name)
    pipe.parent.mkdir(exist_ok=True)
    os.mkfifo(pipe)
    writer = threading.Thread(target=lambda: pipe.open("wb").close())  # a reader would see an empty file, and not hang
    writer.start()
    try:
        refused(*command.split(), problem="not-a-regular-file")
        assert writer.is_alive(), "the pipe was opened"
    finally:
        reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
        writer.join()  # with a reader until then: the thread may open the pipe only now
        os.close(reader)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems allow UTF-8 names only")
def test_a_file_whose_name_is_not_utf8_is_read(here: Path) -> None:
    Path("documents").mkdir()
    with open(b"documents/\xff.jsonl", "w") as file:
        file.write('{"id": "1", "text": "salt"}\n')
    assert hybrid("prepare", "trec", "documents", "--output", "out").code == 0
    assert pl.read_parquet("out/corpus.parquet")["docid"].to_list() == ["1"]


def test_devices_and_sockets_are_refused(here: Path) -> None:
    for path in ("/dev/zero", "socket"):
        with socket.socket(socket.AF_UNIX) as server:
            server.bind("socket")
            refused("inspect", path, problem="not-a-regular-file")
            refused("fuse", "bm25.parquet", path, "-o", "o.parquet", problem="not-a-regular-file")
        Path("socket").unlink()


def test_lone_surrogates_become_replacement_characters(here: Path) -> None:
    """JSON can escape surrogates, UTF-8 and Parquet cannot store them; texts, ids and answers are treated alike."""
    write("beir/corpus.jsonl", '{"_id": "1", "text": "a \\ud800"}\n')
    write("beir/queries.jsonl", '{"_id": "q", "text": "\\udfff", "metadata": {"answers": ["\\ud800", "b"]}}\n')
    write("beir/qrels/test.tsv", "query-id\tcorpus-id\tscore\nq\t1\t1\n")
    assert hybrid("prepare", "beir", "beir", "--output", "out").code == 0
    (query,) = pl.read_parquet("out/queries.test.parquet").to_dicts()
    assert query == {"qid": "q", "text": "\ufffd", "answers": ["\ufffd", "b"]}


# ------------------------------------------------------------------------------------------------- parts of artifacts


_TYPE = "sentence_transformers.models"
MODULES = f'[{{"type": "{_TYPE}.Transformer", "path": ""}}, {{"type": "{_TYPE}.Pooling", "path": "1_Pooling"}}]'
PARTS: list[tuple[str, str | bytes, Refusal]] = [
    ("tokenizer.json", "{}", refusal("model-unreadable", path="model")),
    ("tokenizer.json", DEEP, refusal("model-unreadable", path="model")),
    ("tokenizer_config.json", "[]", refusal("model-unreadable", path="model")),
    ("config.json", "[]", refusal("not-an-object", path="model/config.json")),
    (
        "config.json",
        '{"model_type": "x", "auto_map": {"AutoConfig": "a.B"}}',
        refusal("model-type-unknown", path="model/config.json", value="x"),
    ),
    ("modules.json", DEEP, refusal("not-json", path="model/modules.json")),
    ("modules.json", "{}", refusal("modules-form", element="")),
    ("modules.json", '[{"type": 1, "path": ""}]', refusal("modules-form", element="field 'type'")),
    (
        "sentence_bert_config.json",
        '{"max_seq_length": "x"}',
        refusal("length-out-of-range", path="model/sentence_bert_config.json", value="x"),
    ),
    (
        "config_sentence_transformers.json",
        '{"prompts": {"query": 1}}',
        refusal("prompts-form", element="field 'query'"),
    ),
    (
        "config_sentence_transformers.json",
        '{"similarity_fn_name": "manhattan"}',
        refusal("sentence-transformers-key", path="model/config_sentence_transformers.json", value="manhattan"),
    ),
    ("encoder.json", "x", refusal("not-json", path="model/encoder.json")),
    (
        "encoder.json",
        '{"kind": [1]}',
        refusal("unknown-encoder", path="model"),
    ),
    ("encoder.json", '{"kind": "x"}', refusal("unknown-encoder", path="model", name="x")),
    ("encoder.json", '{"pooling": "median"}', refusal("json-type", element="field 'pooling'")),
    ("encoder.json", '{"doc_max_len": -1}', refusal("out-of-range", path="model/encoder.json")),
    ("encoder.json", '{"dim": 8}', refusal("damaged", path="model/2_Dense", missing="model.safetensors")),
    ("encoder.json", '{"tied": false}', refusal("damaged", path="model")),
    ("encoder.json", '{"telepathy": 1}', refusal("json-unknown-field", path="model/encoder.json", element="telepathy")),
    ("encoder.json", '{"kind": "combination"}', refusal("damaged", path="model/encoder.json")),
    (
        "encoder.json",
        '{"kind": "combination", "combine": "concat", "weight": 1, "changes": [{}, {}]}',
        refusal("no-such-model", value="model/part-1"),
    ),
    ("encoder.json", '{"kind": "pair"}', refusal("no-such-model", value="model/queries")),
    (
        "encoder.json",
        '{"kind": "static"}',
        refusal("json-missing-field", path="model/encoder.json", element="language"),
    ),
]


@pytest.mark.parametrize(("name", "content", "problem"), PARTS)
def test_a_model_with_a_damaged_file_is_refused(
    here: Path, made: Path, name: str, content: str | bytes, problem: Refusal
) -> None:
    Path("model").unlink()
    shutil.copytree(made / "model", "model")
    if name in ("1_Pooling/config.json", "sentence_bert_config.json", "config_sentence_transformers.json"):
        write("model/modules.json", MODULES)
        write("model/1_Pooling/config.json", '{"pooling_mode_cls_token": true}')
    write(f"model/{name}", content)
    refused("encode", "collection", "--model", "model", "--output", "out", problem=problem)


MANIFESTS: list[tuple[dict[str, Any] | str, Refusal]] = [
    (DEEP, refusal("damaged-manifest", path="damaged")),
    ({"format": "x"}, refusal("damaged-manifest", path="damaged")),
    ({"format": 99}, refusal("newer-format", path="damaged")),
    ({"kind": []}, refusal("damaged-manifest", path="damaged", element="field 'kind'")),
    (
        {"inputs": {"corpus": {"path": 1}}},
        refusal("damaged-manifest", path="damaged", element="field 'inputs', field 'corpus', field 'path'"),
    ),
    ({"files": [1]}, refusal("damaged-manifest", path="damaged", element="field 'files', item 1")),
    ({"telepathy": 1}, refusal("damaged-manifest", path="damaged")),
]


@pytest.mark.parametrize(("change", "words"), MANIFESTS)
def test_a_damaged_manifest_is_refused(here: Path, made: Path, change: dict[str, Any] | str, words: Refusal) -> None:
    shutil.copytree(made / "dense", "damaged")
    stored = json.loads(Path("damaged/manifest.json").read_text())
    write("damaged/manifest.json", change if isinstance(change, str) else json.dumps({**stored, **change}))
    command = ["search", "collection", "--split", "test", "--index", "damaged", "--output", "out.parquet"]
    code = 2 if change == {"format": 99} else 1
    refused(*command, problem=words.code, code=code)  # a search may find the changed checksum first
    refused("inspect", "damaged", problem=words, code=code)


# ---------------------------------------------------------------------------------------------------- standard streams


def shell(command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-c", command.replace("hybrid", f"{sys.executable} -m hybrid_cli")],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_a_full_stdout_is_an_error(here: Path) -> None:
    done = shell("hybrid inspect bm25.parquet > /dev/full")
    assert (done.returncode, done.stderr.count("\n")) == (1, 1), done
    assert "no space left on device" in done.stderr


def test_ascii_streams_print_every_character(here: Path) -> None:
    write("queries.tsv", "1\tórgãos\n")
    done = shell("hybrid inspect queries.tsv", PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stderr) == (0, ""), done
    assert "\\xf3rg\\xe3os" in done.stdout


def test_closed_standard_streams_do_not_become_files(here: Path) -> None:
    """Without descriptor 1, the next file would get this number and receive the output of Java."""
    done = shell("hybrid fuse bm25.parquet dense.parquet --output fused.parquet <&- >&- 2>&-")
    assert done.returncode == 0, done
    assert pl.read_parquet("fused.parquet").height


def test_tables_that_do_not_fit_into_memory_are_refused(here: Path) -> None:
    command = "train-lambda collection --encoder static --index bm25 --dim 64 --hash-buckets 2147483647 --output out"
    refused(*command.split(), problem="no-memory", code=1)


def test_a_failed_allocation_is_reported_in_one_line(here: Path) -> None:
    command = "encode collection --model model --factory IVF2000000000,Flat --output out"
    limit = "import resource; resource.setrlimit(resource.RLIMIT_AS, (30_000_000 << 10,) * 2); "
    done = run(limit + HYBRID, *command.split())
    assert (done.returncode, done.stderr.count("\n")) == (1, 1), done
    assert "not enough memory" in done.stderr


AS_NOBODY = """
import os, sys
import shlex
from pathlib import Path
from hybrid_cli.cli import main
for allowed in (True, False):
    if not allowed:
        Path("run.parquet").chmod(0), Path("qrels.tsv").chmod(0), os.seteuid(65534)
        print("now", file=sys.stderr)
    try:
        main()
    except SystemExit as stopped:
        code = stopped.code
raise SystemExit(code)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="changes the user")
@pytest.mark.parametrize(
    "command", ["inspect run.parquet", "evaluate --qrels qrels.tsv run.parquet", "verify run.parquet"]
)
def test_a_file_without_permission_is_named_and_not_called_the_output(
    tmp_path: Path, made: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    """The first call, by root, imports the libraries, which another user may not be allowed to read."""
    monkeypatch.chdir(tmp_path)
    tmp_path.chmod(0o755)
    shutil.copy(made / "bm25.parquet", tmp_path / "run.parquet")
    (tmp_path / "qrels.tsv").write_text("001\t0\t007\t1\n")
    done = run(AS_NOBODY, *command.split())
    message = done.stderr.partition("now\n")[2]
    assert (done.returncode, message.count("\n")) == (2, 1), done
    assert "permission denied" in message.lower()
