"""The stages of kill_stages.py with the results of undisturbed runs, and the inputs of the stages in two versions."""

import json
import os
import re
import shutil
import traceback
from collections.abc import Callable, Sequence
from contextlib import chdir
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import torch  # imported before the fork
import transformers
from command import hybrid
from faults import STDIN, Ended, run
from kill_stages import ANSWERS, GROWING, STAGES, inputs_of, words_of
from safetensors.torch import load_file
from tiny_collection import write_lines, write_tiny_source
from tiny_tokenizer import tiny_tokenizer

from hybrid_cli import storage
from hybrid_cli.collections import collection
from hybrid_cli.commands import COMMANDS
from hybrid_cli.settings import Settings
from hybrid_cli.storage import disk, layout

OTHER = "other"  # folder with another version of every input


def bytes_of(path: Path) -> dict[str, bytes] | None:
    """Return all files of an output without the parts that differ between equal runs; see `comparable`."""
    if path.is_file() and path.parent.name == "inspect":  # latencies differ; a complete file has its footer
        footer = pq.read_metadata(path)
        return {"": f"{footer.num_rows} rows of {footer.schema.names}".encode()}
    if path.is_file():
        return {"": path.read_bytes()}
    if not path.exists():
        return None
    files = {file.relative_to(path): file for file in path.rglob("*") if file.is_file()}
    kept = {name for name in files if layout.LUCENE not in name.parts}
    return {str(name): comparable(files[name]) for name in kept}


def comparable(file: Path) -> bytes:
    """Return the bytes of a file; of a manifest, those of all fields except the duration and what depends on it.

    Lucene's files contain random ids, so their checksums differ too; and it numbers its attempts to commit.
    """
    content = file.read_bytes()
    try:
        fields = json.loads(content) if file.name == storage.MANIFEST else None
    except ValueError:  # of a killed call
        fields = None
    if fields is None:
        return content
    del fields["seconds"], fields["checksum"]
    fields.get("counts", {}).pop("seconds", None)  # of `rerank --depth`
    fields["checksums"] = {
        name: value
        for name, value in fields.get("checksums", {}).items()
        if layout.LUCENE not in Path(name).parts and not name.endswith(storage.MANIFEST)
    }
    return re.sub(r"/segments_\w+", "/segments", json.dumps(fields)).encode()


def clear(path: Path) -> None:
    for each in [path, *path.parent.glob(f".{path.name}.*")]:
        shutil.rmtree(each) if each.is_dir() and not each.is_symlink() else each.unlink(missing_ok=True)


def must(words: list[str]) -> Ended:
    done = run(words)
    assert done.code == 0, f"{' '.join(words)}: {done}"
    return done


@dataclass
class Case:
    words: list[str]
    older: list[str] | None
    output: Path
    whole: dict[str, bytes] = field(default_factory=dict)
    old: dict[str, bytes] | None = None
    grows: bool = False
    plain: Ended | None = None
    replaced: Ended | None = None
    exchanged: dict[str, dict[str, bytes] | None] = field(default_factory=dict)

    @property
    def settings(self) -> type[Settings]:
        names = {kind.command: kind for kind in COMMANDS}
        return names.get(" ".join(self.words[:2])) or names[self.words[0]]

    @property
    def inputs(self) -> list[str]:
        words = words_of(" ".join(self.words)) - {""}
        return sorted(word for word in words if Path(OTHER, word).exists() and Path(word).exists())

    def measure(self) -> None:
        clear(self.output)
        self.plain = must(self.words)
        self.whole = bytes_of(self.output) or {}
        if self.older is not None:
            clear(self.output)
            must(self.older)
            self.old = bytes_of(self.output)
            self.replaced = must([*self.words, "--overwrite"])
            assert bytes_of(self.output) == self.whole, f"{self.words}: a replacement has other bytes"

    def with_other(self, name: str) -> dict[str, bytes] | None:
        """Return the result with another version of an input; None if the command refuses it."""
        if name not in self.exchanged:
            clear(self.output)
            exchange(name)
            try:
                self.exchanged[name] = bytes_of(self.output) if run(self.words).code == 0 else None
            finally:
                exchange(name)
        return self.exchanged[name]


def exchange(name: str) -> None:
    assert disk.Disk().exchange(Path(name), Path(OTHER, name))


def prepare(folder: Path, names: Sequence[str], versions: bool = False) -> None:
    """Write the inputs of stages into the working directory, if needed in two versions."""
    for version, place in enumerate([folder, folder / OTHER] if versions else [folder]):
        place.mkdir(exist_ok=True)
        with chdir(place):
            _write_in_child(version)
            write_inputs(place, inputs_of(names), version)


def write_inputs(
    folder: Path, commands: Sequence[str], version: int, execute: Callable[[list[str]], object] = must
) -> None:
    """Write the inputs of stages into the working directory.

    Args:
        folder: the working directory.
        commands: commands that write inputs, in order.
        version: in another version than 0, documents exchange their texts, and models have other weights.
        execute: runs a command.
    """
    write_tiny_source(folder)
    _write_sources(folder)
    source = folder / "docs.jsonl"
    rows = [json.loads(line) for line in source.read_text("utf-8").splitlines()]
    texts = [row["text"] for row in rows]
    turned = [row | {"text": text} for row, text in zip(rows, texts[version:] + texts[:version], strict=True)]
    source.write_text("".join(json.dumps(row) + "\n" for row in turned), "utf-8")
    Path(STDIN).write_text(ANSWERS)
    for command in commands:
        execute(command.split())
    corpus = pq.read_table(collection.corpus_path(Path("tiny")))
    docids = corpus["docid"].to_pylist()
    pq.write_table(corpus.set_column(0, "docid", [[f"new {docid}" for docid in docids]]), "new.parquet")
    Path("gone.txt").write_text("".join(f"{docid}\n" for docid in docids[3 + version : 6 + version]))
    np.save("vectors.npy", np.random.default_rng(version).normal(size=(len(docids), 8)).astype(np.float32))


def _write_sources(folder: Path) -> None:
    rows = [json.loads(line) for line in (folder / "docs.jsonl").read_text("utf-8").splitlines()]
    queries = [line.split("\t") for line in (folder / "topics.test.tsv").read_text("utf-8").splitlines()]
    write_lines(folder / "beir/corpus.jsonl", *({"_id": row["id"], **row} for row in rows))
    write_lines(folder / "beir/queries.jsonl", *({"_id": qid, "text": text} for qid, text in queries))
    write_lines(folder / "beir/qrels/test.tsv", "query-id\tcorpus-id\tscore", "001\t007\t1")
    write_lines(folder / "marco.tsv", *(f"{row['id']}\t{row['text'] or 'no words'}" for row in rows))
    write_lines(
        folder / "psgs.tsv", "id\ttext\ttitle", *(f"{row['id']}\t{row['text']}\t{row['title']}" for row in rows)
    )
    write_lines(folder / "questions.tsv", *(f"{text}\t['salt']" for _, text in queries))
    passages = [{"docid": row["id"], "title": row["title"], "text": row["text"] or "no words"} for row in rows]
    write_lines(
        folder / "tevatron.jsonl",
        *(
            {"query_id": qid, "query": text, "positive_passages": [row], "negative_passages": passages[:1]}
            for (qid, text), row in zip(queries, passages[1:], strict=False)
        ),
    )


def _write_in_child(version: int) -> None:
    """Write the start model in another process, so that no thread of PyTorch runs in this one."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            write_bert(Path("bert"), version)
            code = 0
        except Exception:
            traceback.print_exc()
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, "the model was not written"


def write_bert(folder: Path, seed: int) -> None:
    transformers.utils.logging.disable_progress_bar()
    tokenizer = tiny_tokenizer()
    torch.manual_seed(seed)
    shape = transformers.BertConfig(
        vocab_size=len(tokenizer), hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32
    )
    transformers.BertModel(shape, add_pooling_layer=False).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    _write_pickled(folder, folder.with_name("pickled"))


def _write_pickled(folder: Path, pickled: Path) -> None:
    shutil.copytree(folder, pickled, ignore=shutil.ignore_patterns("*.safetensors"))
    torch.save(load_file(folder / "model.safetensors"), pickled / "pytorch_model.bin")


def cases(names: Sequence[str]) -> dict[str, Case]:
    found = {}
    for name in names:
        command, older, _ = STAGES[name]
        words = command.split()
        place = Path("outputs") / name.replace(" ", "-")
        place.mkdir(parents=True)
        output = place / words[-1]
        words = [*words[:-1], str(output)]
        found[name] = Case(words, [*words[:-2], *older.split(), *words[-2:]] if older else None, output)
        found[name].grows = name in GROWING
    return found


def import_stages() -> None:
    """Import every stage and make the parser of the command line, so that a forked process starts at once."""
    from importlib import import_module

    for kind in COMMANDS:
        import_module(f"hybrid_cli.stages.{kind.command.split()[0].replace('-', '_')}")
    hybrid("--version")
