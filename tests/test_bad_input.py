"""Bad and unusual input: refused with file and fix; existing files are unchanged; limits; fields of JSON files."""

import csv
import io
import json
import os
import shlex
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal

import polars as pl
import pytest
from command import Refusal, hybrid, raises, ran, refusal, refused
from processes import run
from tiny_collection import corpus_of, write_lines

from hybrid_cli.errors import HybridError, InputError
from hybrid_cli.inputs.files import Location
from hybrid_cli.inputs.json_values import has_type, make_typed, mismatch
from hybrid_cli.inputs.rows import check_field

pytestmark = pytest.mark.usefixtures("one_thread")

COMMANDS = {
    "index-bm25": "index-bm25 {} --output out",
    "encode": "encode {} --model model --output out",
    "encode --queries": "encode --queries {} --model model --output out",
    "encode --model": "encode collection --model {} --output out",
    "search": "search {} --split test --index bm25 --output out.parquet",
    "search --index": "search collection --split test --index {} --output out.parquet",
    "search --queries": "search --queries {} --index bm25 --output out.parquet",
    "mine-negatives": "mine-negatives {} --split train --sources random:2 --output out.parquet",
    "mine-negatives --index": "mine-negatives collection --split train --index {} --output out.parquet",
    "mine-negatives run:": "mine-negatives collection --split train --sources run:{} --output out.parquet",
    "mine-negatives --qrels": "mine-negatives collection --split train --sources random --qrels {} --output o.parquet",
    "train-dense": "train-dense {} --model model --output out",
    "train-dense --model": "train-dense train.parquet --model {} --output out",
    "train-dense --dev": "train-dense train.parquet --model model --dev {} --output out",
    "fuse": "fuse bm25.parquet {} --output out.parquet",
    "fuse --index": "fuse bm25.parquet dense.parquet --method sum --missing exact --index {},dense --output o.parquet",
    "evaluate": "evaluate collection --split test {}",
    "evaluate QRELS": "evaluate {} bm25.parquet",
    "evaluate --split": "evaluate {} collection --split test",
    "evaluate --qrels": "evaluate --qrels {} bm25.parquet",
    "rerank": "rerank {} --model model --output out.parquet",
    "inspect": "inspect {}",
    "export": "export {} --format trec --output out",
    "export --collection": "export dense.parquet --format dpr --collection {} --split test --output out",
    "prepare beir": "prepare beir {} --output out",
    "prepare trec": "prepare trec {} --output out",
    "prepare msmarco": "prepare msmarco {} --output out",
    "prepare dpr": "prepare dpr {} --output out",
    "prepare files": "prepare files {} --output out",
}


def typed(command: str, path: str) -> list[str]:
    return COMMANDS[command].format(path).split()


@pytest.mark.parametrize("command", COMMANDS)
def test_a_missing_file_is_named(here: Path, command: str) -> None:
    done = refused(*typed(command, "nothing.parquet"))
    assert done.problem in ("no-such-file", "no-such-folder", "no-such-model")
    assert str(done.fields.get("path", done.fields.get("value"))) == "nothing.parquet"


READING_COLUMNS = ("index-bm25", "encode", "search --queries", "mine-negatives run:", "train-dense", "fuse", "evaluate")


@pytest.mark.parametrize("command", [*READING_COLUMNS, "evaluate --qrels"])
def test_a_file_of_another_schema_is_refused(here: Path, command: str) -> None:
    pl.DataFrame({"a": [1]}).write_parquet("other.parquet")
    refused(*typed(command, "other.parquet"), problem="no-such-column", path="other.parquet")


OF_OTHER_KINDS = {
    "index-bm25": "bm25.parquet",
    "encode --model": "collection",
    "rerank": "dense",
    "train-dense": "bm25",
}
OF_OTHER_KINDS |= {"search --index": "collection", "mine-negatives --index": "dense", "fuse --index": "bm25.parquet"}
OF_OTHER_KINDS |= {"encode": "bm25", "evaluate --qrels": "bm25.parquet"}


@pytest.mark.parametrize(("command", "path"), OF_OTHER_KINDS.items())
def test_an_artifact_of_another_kind_is_refused(here: Path, command: str, path: str) -> None:
    refused(*typed(command, path), problem="other-kind", path=path)


def collection(change: Callable[[str, pl.DataFrame], pl.DataFrame]) -> Path:
    folder = Path("changed")
    folder.mkdir()
    for name in ("corpus", "queries.test", "qrels.test"):
        table = pl.read_parquet(Path("collection") / f"{name}.parquet")
        change(name.split(".")[0], table).write_parquet(folder / f"{name}.parquet")
    return folder


def change_corpus(change: Callable[[pl.DataFrame], pl.DataFrame]) -> Path:
    return collection(lambda role, table: change(table) if role == "corpus" else table)


NO_ID = refusal("missing-value", row=3, column="docid")


@pytest.mark.parametrize("command", ["index-bm25", "encode"])
@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda corpus: corpus.head(0), refusal("no-documents")),
        (lambda corpus: pl.concat([corpus, corpus.slice(1, 1)]), refusal("duplicate-id", row=13, id="NA")),
        (lambda corpus: corpus.with_columns(docid=pl.col("docid").replace("null", None)), NO_ID),
        (lambda corpus: corpus.with_columns(docid=pl.col("docid").replace("null", "")), NO_ID),
    ],
    ids=["empty", "twice", "without id", "empty id"],
)
def test_a_corpus_that_cannot_be_indexed_is_refused_and_leaves_no_files(
    here: Path, command: str, change: Callable[[pl.DataFrame], pl.DataFrame], problem: Refusal
) -> None:
    change_corpus(change)
    refused(*typed(command, "changed"), problem=problem, path="changed/corpus.parquet")


@pytest.mark.parametrize("options", [[], ["--engine", "lucene"], ["--rm3"]])
def test_queries_without_words_have_no_hits_and_other_queries_are_answered(here: Path, options: list[str]) -> None:
    texts = ["", "salt", "the of and", " \t", '?!*:("~^[', "to be or not to be"]

    def change(role: str, table: pl.DataFrame) -> pl.DataFrame:
        return table.with_columns(text=pl.Series(texts)) if role == "queries" else table

    collection(change)
    command = ["search", "changed", "--split", "test", "--index", "bm25", "--output", "run.parquet", *options]
    ran(*command)
    assert set(pl.read_parquet("run.parquet")["qid"]) == {"002"}
    done = hybrid("evaluate", "--qrels", "changed/qrels.test.parquet", "run.parquet", "-m", "R@10", "--format", "csv")
    (row,) = csv.DictReader(io.StringIO(done.out))
    assert (row["mean"], row["queries"]) == ("0.2", "5"), "one of five queries is answered; the others score 0"


def test_texts_without_words_have_no_hits_and_are_no_examples(here: Path) -> None:
    blank = pl.read_parquet("collection/qrels.test.parquet").filter(pl.col("relevance") > 0)["docid"][0]

    def emptied(documents: pl.Expr) -> Callable[[pl.DataFrame], pl.DataFrame]:
        return lambda corpus: corpus.with_columns(
            pl.when(documents).then(pl.lit(" \n")).otherwise(name).alias(name) for name in ("title", "text")
        )

    words = ["mine-negatives", "changed", "--split", "test", "--sources", "random:2", "--output", "x.parquet"]
    change_corpus(emptied(pl.col("docid") == blank))
    assert hybrid(*words).says("documents-without-text", path="changed", count=1, ids=[blank])
    assert blank not in set(pl.read_parquet("x.parquet")["docid"])
    shutil.rmtree("changed")
    change_corpus(emptied(pl.lit(True)))
    refused(*words, "--overwrite", problem="other-corpus", path="changed")
    ran("index-bm25", "changed", "--output", "empty", "--threads", 1)
    done = hybrid("search", "collection", "--split", "test", "--index", "empty", "--output", "none.parquet")
    assert (done.code, pl.read_parquet("none.parquet").height) == (0, 0)
    assert done.says("written", path="none.parquet", queries=6, without_hits=6)


def test_a_dense_index_answers_a_query_without_words(here: Path) -> None:
    Path("queries.tsv").write_text("1\t\n2\t?!\n")
    ran("search", "--queries", "queries.tsv", "--index", "dense", "--output", "run.parquet")
    run = pl.read_parquet("run.parquet")
    assert run["qid"].value_counts(sort=True).rows() == [("1", 12), ("2", 12)]
    assert run["score"].is_finite().all()


def damaged(made: Path, name: str, file: str, *, cut: bool) -> Path:
    folder = Path("damaged")
    shutil.copytree(made / name, folder)
    content = (folder / file).read_bytes()
    (folder / file).unlink()
    if cut:
        (folder / file).write_bytes(content[: len(content) // 2])
    return folder


@pytest.mark.parametrize("cut", [True, False], ids=["truncated", "missing"])
@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("dense", "index.faiss"),
        ("dense", "docids.parquet"),
        ("bm25", "docids.parquet"),
        ("bm25", "bm25.json"),
        ("bm25", "impacts/lows.npy"),
        ("model", "model.safetensors"),
        ("model", "tokenizer.json"),
    ],
)
def test_a_damaged_folder_is_named_and_is_no_bug(here: Path, made: Path, name: str, file: str, cut: bool) -> None:
    folder = damaged(made, name, file, cut=cut)
    command = typed("encode --model" if name == "model" else "search --index", str(folder))
    done = hybrid(*command)
    assert (done.code in (1, 2), done.err.count("\n")) == (True, 1), done
    assert isinstance(done.error, HybridError), done
    assert str(done.fields["path"]).startswith("damaged")
    assert not Path("out.parquet").exists()


@pytest.mark.parametrize("content", ["[]", "{}", '{"k1": NaN, "b": 0.4}', '{"k1": "x", "b": 1}', '{"k1":-1,"b":0}'])
def test_damaged_parameters_of_an_index_are_refused(here: Path, made: Path, content: str) -> None:
    shutil.copytree(made / "bm25", "damaged")
    write("damaged/bm25.json", content)
    refused(*typed("search --index", "damaged"), problem="damaged", path="bm25.json", code=1)


@pytest.mark.parametrize("cut", [True, False], ids=["truncated", "missing"])
def test_inspect_reports_damage_and_export_refuses_it(here: Path, made: Path, cut: bool) -> None:
    folder = damaged(made, "dense", "docids.parquet", cut=cut)
    assert hybrid("inspect", folder).code == (2 if cut else 0)
    refused("export", folder, "--format", "pyserini", "--output", "out", problem="damaged", code=1)


@pytest.mark.parametrize("command", ["index-bm25", "encode --queries", "mine-negatives --qrels", "evaluate", "fuse"])
def test_a_truncated_file_is_named_and_no_output_changes_even_with_overwrite(
    here: Path, made: Path, command: str
) -> None:
    """`refused` compares the bytes of all files, which include the output that `--overwrite` would replace."""
    Path("cut.parquet").write_bytes((made / "bm25.parquet").read_bytes()[:-9])
    shutil.copytree(made / "dense", "out")
    shutil.copy(made / "dense.parquet", "out.parquet")
    output = ["--output", "out.parquet"] if command == "evaluate" else []
    refused(*typed(command, "cut.parquet"), *output, "--overwrite", problem="damaged", path="cut.parquet", code=1)


def test_an_output_is_never_an_input_of_the_stage(here: Path, made: Path) -> None:
    shutil.copytree(made / "collection", "mine", symlinks=True)
    refused("index-bm25", "mine", "--output", "mine", "--overwrite", problem="replaces-input")
    refused("encode", "mine", "--model", "model", "--output", "mine", "--overwrite", problem="replaces-input")
    words = shlex.split("fuse bm25.parquet dense.parquet --output dense.parquet --overwrite")
    refused(*words, problem="replaces-input")


DEEP = "[" * 100_000 + "]" * 100_000
LONG = "x" * 300


def write(name: str, content: str | bytes) -> None:
    path = Path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())


ARGUMENTS = [
    ("evaluate collection --split test ''", refusal("invalid-name")),
    ("index-bm25 collection --output no/../out", refusal("no-such-folder")),
    (f"prepare trec docs.jsonl --topics {LONG}=t.tsv --output out", refusal("invalid-name")),
    ("inspect loop", refusal("no-such-file")),
    ("encode collection --model ./loop --output out", refusal("no-such-model")),
    (f"fuse a.run b.run --depth {'9' * 5000} --output o.parquet", refusal("not-a-number", option="depth")),
    (f"index-bm25 {LONG} --output {LONG}", refusal("unusable-file")),
    (f"inspect {'/'.join([LONG[:200]] * 30)}", refusal("unusable-file")),
    (f"inspect {LONG}", refusal("unusable-file")),
    ("prepare trec docs.jsonl --encoding punycode --output out", refusal("invalid-value", option="encoding")),
]


@pytest.mark.parametrize(("command", "words"), ARGUMENTS)
def test_an_argument_that_cannot_be_used_is_refused(here: Path, command: str, words: Refusal) -> None:
    Path("loop").symlink_to("loop")
    Path("loop.parquet").symlink_to("loop.parquet")
    write("docs.jsonl", '{"id": "1", "text": "x"}\n')
    assert len(refused(*shlex.split(command), problem=words).err) < 800


@pytest.mark.parametrize(("text", "words"), [("a\0b", refusal("not-a-text")), ("a\udcffb", refusal("not-utf-8"))])
@pytest.mark.parametrize("command", ["inspect {}", "search --index bm25 --query {}", "index-bm25 collection -o {}"])
def test_text_that_cannot_be_stored_is_refused(here: Path, command: str, text: str, words: str | Refusal) -> None:
    refused(*(text if word == "{}" else word for word in command.split()), problem=words)


EVALUATE = "evaluate collection --split test bm25.parquet --config x.yaml"
FILES: list[tuple[str, str | bytes, str, str]] = [
    ("x.jsonl", '{"id":"1","text":' + DEEP + "}", "prepare trec x.jsonl -o out", "not-json"),
    ("x.json", DEEP, "inspect x.json", "not-json"),
    ("x.json", b"\xff\xfe", "inspect x.json", "not-json"),
    ("x.yaml", DEEP, EVALUATE, "not-yaml"),
    ("x.yaml", "a: \0", EVALUATE, "not-yaml"),
]


@pytest.mark.parametrize(("name", "content", "command", "problem"), FILES)
def test_an_unparsable_file_is_refused(here: Path, name: str, content: str | bytes, command: str, problem: str) -> None:
    write(name, content)
    refused(*command.split(), problem=problem, path=name)


OPENED_IN = [
    ("x.parquet", "fuse bm25.parquet x.parquet -o o.parquet"),
    ("x.trec", "fuse bm25.parquet x.trec -o o.parquet"),
    ("x.json", "fuse bm25.parquet dense.parquet --method weighted-sum --weights @x.json -o o.parquet"),
    ("x.tsv", "evaluate --qrels x.tsv bm25.parquet"),
    ("x.yaml", "evaluate collection --split test bm25.parquet --config x.yaml"),
    ("x.log", "evaluate collection --split test bm25.parquet --log-file x.log"),
    ("documents/x.jsonl", "prepare trec documents -o out"),
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
    ran("prepare", "trec", "documents", "--output", "out")
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
    ran("prepare", "beir", "beir", "--output", "out")
    (query,) = pl.read_parquet("out/queries.test.parquet").to_dicts()
    assert query == {"qid": "q", "text": "\ufffd", "answers": ["\ufffd", "b"]}


MODULES = json.dumps(
    [
        {"name": str(number), "type": f"sentence_transformers.models.{name}", "path": path}
        for number, (name, path) in enumerate([("Transformer", ""), ("Pooling", "1_Pooling")])
    ]
)
PARTS: list[tuple[str, str | bytes, Refusal]] = [
    ("tokenizer.json", "{}", refusal("model-unreadable", path="model")),
    ("tokenizer_config.json", "[]", refusal("model-unreadable", path="model")),
    ("config.json", "[]", refusal("not-an-object", path="model/config.json")),
    ("config.json", '{"model_type": "x", "auto_map": {"AutoConfig": "a.B"}}', refusal("model-type-unknown", value="x")),
    ("modules.json", DEEP, refusal("not-json", path="model/modules.json")),
    ("modules.json", '[{"type": 1, "path": ""}]', refusal("modules-form", element="field 'type'")),
    ("1_Pooling/config.json", "[]", refusal("not-an-object", path="model/1_Pooling/config.json")),
    ("sentence_bert_config.json", '{"max_seq_length": "x"}', refusal("model-unreadable", path="model")),
    ("config_sentence_transformers.json", '{"prompts": ["x"]}', refusal("model-unreadable", path="model")),
    ("config_sentence_transformers.json", '{"similarity_fn_name": [1]}', refusal("similarity-unsupported", value=[1])),
    ("encoder.json", "x", refusal("not-json", path="model/encoder.json")),
    ("encoder.json", '{"kind": "x"}', refusal("unknown-encoder", path="model", name="x")),
    ("encoder.json", '{"pooling": "median"}', refusal("json-type", element="field 'pooling'")),
    ("encoder.json", '{"doc_max_len": -1}', refusal("out-of-range", path="model/encoder.json")),
    ("encoder.json", '{"dim": 8}', refusal("damaged", path="model/2_Dense", missing="model.safetensors")),
    ("encoder.json", '{"tied": false}', refusal("damaged", path="model")),
    ("encoder.json", '{"telepathy": 1}', refusal("json-unknown-field", path="model/encoder.json", element="telepathy")),
    ("encoder.json", '{"kind": "combination"}', refusal("damaged", path="model/encoder.json")),
    (
        *("encoder.json", '{"kind": "combination", "combine": "concat", "weight": 1, "changes": [{}, {}]}'),
        refusal("no-such-model", value="model/part-1"),
    ),
    ("encoder.json", '{"kind": "pair"}', refusal("no-such-model", value="model/queries")),
    ("encoder.json", '{"kind": "static"}', refusal("json-missing-field", path="encoder.json", element="language")),
]


@pytest.mark.parametrize(("name", "content", "problem"), PARTS)
def test_a_damaged_model_is_refused(here: Path, made: Path, name: str, content: str | bytes, problem: Refusal) -> None:
    Path("model").unlink()
    shutil.copytree(made / "model", "model")
    if name in ("1_Pooling/config.json", "sentence_bert_config.json", "config_sentence_transformers.json"):
        write("model/modules.json", MODULES)
        write("model/1_Pooling/config.json", '{"pooling_mode_cls_token": true}')
    write(f"model/{name}", content)
    refused("encode", "collection", "--model", "model", "--output", "out", problem=problem)


OF_PATH = "field 'inputs', field 'corpus', field 'path'"
MANIFESTS: list[tuple[dict[str, Any] | str, Refusal]] = [
    (DEEP, refusal("damaged-manifest", path="damaged")),
    ({"format": "x"}, refusal("damaged-manifest", path="damaged")),
    ({"format": 99}, refusal("newer-format", path="damaged")),
    ({"kind": []}, refusal("damaged-manifest", path="damaged", element="field 'kind'")),
    ({"inputs": {"corpus": {"path": 1}}}, refusal("damaged-manifest", element=OF_PATH)),
    ({"files": [1]}, refusal("damaged-manifest", path="damaged", element="field 'files', item 1")),
    ({"telepathy": 1}, refusal("damaged-manifest", path="damaged")),
    ({"files": ["../x"]}, refusal("damaged-manifest", value="../x")),
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
    done = shell("hybrid inspect bm25.parquet --format json >&-")
    assert (done.returncode, json.loads(done.stderr)["code"]) == (1, "stdout-closed")


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
    "command", ["inspect run.parquet", "evaluate --qrels qrels.tsv run.parquet", "inspect run.parquet --verify"]
)
def test_a_file_without_permission_is_named_and_not_called_the_output(workdir: Path, made: Path, command: str) -> None:
    """The first call, by root, imports the libraries, which another user may not be allowed to read."""
    workdir.chmod(0o755)
    shutil.copy(made / "bm25.parquet", workdir / "run.parquet")
    (workdir / "qrels.tsv").write_text("001\t0\t007\t1\n")
    done = run(AS_NOBODY, *command.split())
    message = done.stderr.partition("now\n")[2]
    assert (done.returncode, message.count("\n")) == (2, 1), done
    assert "permission denied" in message.lower()


@pytest.mark.usefixtures("workdir")
def test_a_link_that_leaves_the_folder_is_left_out_with_a_count() -> None:
    write_lines(Path("secret.txt"), "of this machine")
    write_lines(Path("docs/a.txt"), "a document")
    Path("docs/b.txt").symlink_to(Path("secret.txt").absolute())
    Path("docs/c").symlink_to(Path("/etc"))
    done = ran("prepare", "files", "docs", "--output", "out")
    assert done.says("text-files", count=1, links={"symbolic links that leave the folder": 2})
    assert [row[2] for row in corpus_of(Path("out"))] == ["a document"]


@pytest.mark.usefixtures("workdir")
def test_a_named_file_of_a_folder_that_is_a_link_out_of_it_is_refused() -> None:
    write_lines(Path("corpus.jsonl"), {"_id": "a", "text": "of this machine"})
    write_lines(Path("beir/queries.jsonl"), {"_id": "q", "text": "a query"})
    write_lines(Path("beir/qrels/test.tsv"), "query-id\tcorpus-id\tscore", "q\ta\t1")
    Path("beir/corpus.jsonl").symlink_to(Path("corpus.jsonl").absolute())
    done = refused("prepare", "beir", "beir", "--output", "out", problem="link-leaves-folder")
    assert done.fields["path"] == Path("beir/corpus.jsonl")


FILE = Path("stored.json")


class Color(StrEnum):
    RED = "red"


@dataclass(frozen=True)
class Stored:
    name: str
    count: int = 0
    share: float | None = None
    mode: Literal["a", "b"] = "a"
    color: Color = Color.RED
    files: tuple[str, ...] | None = None
    pair: tuple[int, str] = (0, "")
    inputs: Mapping[str, dict[str, str]] = field(default_factory=dict)
    rows: Sequence[dict[str, list[int]]] = ()
    anything: Any = None


GOOD: dict[str, Any] = {"name": "", "count": 1, "share": 1, "mode": "b", "color": "red", "files": ["a"]}
GOOD |= {"pair": [1, "x"], "inputs": {"a": {"b": "c"}}, "rows": [{"x": []}, {"x": [1]}], "anything": [{}]}
WRONG: list[tuple[str, Any, str, Any]] = [
    ("name", None, "field 'name'", None),
    ("count", True, "field 'count'", True),
    ("share", float("inf"), "field 'share'", float("inf")),
    ("mode", "c", "field 'mode'", "c"),
    ("color", {}, "field 'color'", {}),
    ("files", ["a", 1], "field 'files', item 2", 1),
    ("files", [["a"]], "field 'files', item 1", ["a"]),
    ("pair", [1], "field 'pair'", [1]),
    ("inputs", {"a": []}, "field 'inputs', field 'a'", []),
    ("rows", [{"x": [1]}, {"y": [1, None]}], "field 'rows', item 2, field 'y', item 2", None),
]


def test_values_of_the_declared_types_are_read() -> None:
    stored = make_typed(Stored, GOOD, FILE)
    assert (stored.color, stored.pair, stored.inputs) == (Color.RED, (1, "x"), GOOD["inputs"])


@pytest.mark.parametrize(("name", "value", "element", "inner"), WRONG)
def test_the_element_of_another_type_is_named(name: str, value: Any, element: str, inner: Any) -> None:
    with raises("json-type") as caught:
        make_typed(Stored, {**GOOD, name: value}, FILE)
    assert caught.value.fields == {"path": FILE, "element": element, "value": inner}


@pytest.mark.parametrize(
    ("values", "problem", "element"),
    [
        ({**GOOD, "telepathy": 1}, "json-unknown-field", "telepathy"),
        ({"count": 1}, "json-missing-field", "name"),
        ([GOOD], "not-an-object", None),
        (None, "not-an-object", None),
    ],
)
def test_other_fields_are_refused(values: Any, problem: str, element: str | None) -> None:
    with pytest.raises(InputError) as caught:
        make_typed(Stored, values, FILE)
    assert (caught.value.code, caught.value.fields.get("element")) == (problem, element)
    assert caught.value.fields["path"] == FILE


def test_the_arm_of_a_union_with_the_outer_type_names_the_element() -> None:
    assert has_type([1, "a"], list[str | int] | str)
    assert has_type("a", list[str | int] | str)
    found = mismatch(["a", {}], list[str | int] | str)
    assert found is not None
    assert found.element == "item 2"


def test_a_field_of_a_row_names_its_line_and_item() -> None:
    location = Location(FILE, 7)
    check_field({"answers": ["a"]}, "answers", list[str], location, "answers-form")
    with raises("answers-form") as caught:
        check_field({"answers": ["a", ["b"]]}, "answers", list[str], location, "answers-form")
    element = "field 'answers', item 2"
    assert caught.value.fields == {"path": FILE, "line": 7, "column": "answers", "element": element}
