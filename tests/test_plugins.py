"""Entries of other packages and of files: used as our own, recorded in manifests, and refused in one line."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from command import hybrid, listing, raises, ran, refused
from test_train_dense import write_examples
from trainings import curve

from hybrid_cli import (
    Dense,
    Encoder,
    Retriever,
    artifacts,
    fuse,
    open_collection,
    open_encoder,
    open_index,
    open_retriever,
    plugins,
    runs,
)
from hybrid_cli.collections.collection import documents
from hybrid_cli.evaluation import evaluate
from hybrid_cli.storage import Kind
from hybrid_cli.training.losses import LossInputs

PACKAGE = Path(__file__).parent / "example_plugin"
RUNS = {"a": "1 Q0 d1 1 3.0 a\n1 Q0 d2 2 2.0 a\n1 Q0 d3 3 1.0 a\n", "b": "1 Q0 d3 1 9.0 b\n1 Q0 d2 2 5.0 b\n"}


@pytest.fixture
def folder(workdir: Path) -> Path:
    """A folder with two runs and a file of documents, in which the test runs."""
    for name, lines in RUNS.items():
        (workdir / f"{name}.trec").write_text(lines, "utf-8")
    (workdir / "corpus.tsv").write_text("d1\tred salt\nd2\tblue sea\n", "utf-8")
    return workdir


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The example package, as if it were installed: its metadata is on the path."""
    yield from on_path(PACKAGE, monkeypatch)


def on_path(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    before = set(sys.modules)
    with monkeypatch.context() as patched:
        patched.syspath_prepend(folder)
        plugins.refresh()
        yield
    for name in set(sys.modules) - before:
        if name.startswith("hybrid_example"):
            del sys.modules[name]
    plugins.refresh()


def help_of(command: str) -> str:
    return " ".join(hybrid(*command.split(), "--help").out.replace("│", " ").split())


def left_alone(output: str, *words: str) -> None:
    """Expect that a command succeeds and does not write its output again, which would be another file."""
    before = Path(output).stat().st_ino
    ran(*words)
    assert Path(output).stat().st_ino == before


@pytest.mark.usefixtures("installed")
def test_a_reader_of_a_package_is_a_source_of_prepare(folder: Path) -> None:
    assert "pairs" in hybrid("prepare", "--help").out
    help_text = hybrid("prepare", "pairs", "--help").out
    assert "Text put before every id." in help_text
    assert "--sample" in help_text
    ran("prepare", "pairs", "corpus.tsv", "--prefix", "x-", "--upper", "--output", "made")
    (batch,) = documents(folder / "made")
    assert batch.select(["docid", "text"]).to_pylist() == [
        {"docid": "x-d1", "text": "RED SALT"},
        {"docid": "x-d2", "text": "BLUE SEA"},
    ]
    manifest = artifacts.read_manifest(folder / "made")
    assert manifest.stage == "prepare pairs"
    assert (manifest.options["prefix"], manifest.options["upper"]) == ("x-", True)
    assert manifest.inputs["corpus"]["path"] == "corpus.tsv"
    assert manifest.versions["hybrid-example"] == "1.2"
    left_alone("made/manifest.json", "prepare", "pairs", "corpus.tsv", "--prefix=x-", "--upper", "--output", "made")


@pytest.mark.usefixtures("installed")
def test_a_fusion_method_of_a_package_is_a_method(folder: Path) -> None:
    assert "first" in hybrid("fuse", "--help").out
    ran("fuse", "a.trec", "b.trec", "--method", "first", "--output", "fused.parquet")
    assert runs.read_run(folder / "fused.parquet")["docid"].to_list() == ["d1", "d2", "d3"]
    manifest = artifacts.read_manifest(folder / "fused.parquet")
    assert (manifest.options["method"], manifest.versions["hybrid-example"]) == ("first", "1.2")
    ran("fuse", "a.trec", "b.trec", "--method", "rrf", "--output", "rrf.parquet")
    assert "hybrid-example" not in artifacts.read_manifest(folder / "rrf.parquet").versions


@pytest.mark.usefixtures("installed")
def test_a_measure_of_a_package_is_measured(folder: Path) -> None:
    (folder / "qrels.tsv").write_text("1\td1\t1\n", "utf-8")
    qrels = {"1": {"d1": 1}}
    hits = {"1": {"d1": 2.0, "d3": 1.0}}
    assert evaluate(hits, qrels, ["First1", "first1@5", "MRR@10"]) == {"First1": 1, "first1@5": 1, "MRR@10": 1}
    words = ["evaluate", "--qrels", "qrels.tsv", "a.trec", "b.trec", "--measure", "First1,First1@3,nDCG@10"]
    done = ran(*words, "--format", "json", "--output", "measured.parquet")
    found = json.loads(done.out)
    assert {run["run"]: run["means"]["First1@3"] for run in found["runs"]} == {"a": 1.0, "b": 0.0}
    assert artifacts.read_manifest(folder / "measured.parquet").versions["hybrid-example"] == "1.2"
    refused(
        "evaluate", "--qrels", "qrels.tsv", "a.trec", "--measure", "Firs1", problem="invalid-value", option="measure"
    )


@pytest.mark.usefixtures("installed")
def test_a_loss_of_a_package_trains_with_its_parameters(folder: Path, tiny_bert: Path) -> None:
    write_examples(folder / "train.parquet")
    assert "Raise the cosine of query and positive" in help_of("train-dense")
    words = ["train-dense", "train.parquet", "--model", tiny_bert, "--loss", "cosine", "--temperature", "2"]
    words += ["--max-steps", "1", "--batch-size", "4", "--dtype", "fp32", "--output", "out"]
    ran(*words, "--loss-option", "weight=0.5", "--loss-option", "squared=true")
    curve = pl.read_parquet(folder / "out" / "curve.parquet")
    assert curve["name"].to_list()[0] == "cosine"
    manifest = artifacts.read_manifest(folder / "out")
    assert (manifest.options["loss"], manifest.versions["hybrid-example"]) == ("cosine", "1.2")
    assert manifest.options["loss_options"] == {"weight": "0.5", "squared": "true"}
    refused(
        *words, "--loss-option", "weight=0.6", "--loss-option", "squared=true", problem="output-differs", path="out"
    )
    unknown = refused(*words, "--overwrite", "--loss-option", "wieght=1", problem="unknown-parameter")
    assert unknown.fields == {"name": "wieght", "choices": ["weight", "squared"]}
    refused(*words, "--overwrite", "--loss-option", "weight=much", problem="not-a-number", option="weight")
    refused(*words, "--overwrite", "--xi", "2", problem="option-does-not-apply", option="xi")
    (folder / "bad.py").write_text(
        "from hybrid_cli import plugins\n@plugins.register('losses', 'bad')\ndef bad(vectors, scale):\n"
        "    'Return no terms.'\n    return vectors.queries\n"
    )
    words[words.index("cosine")] = "bad"
    words += ["--plugin", "bad.py", "--overwrite"]
    refused(*words, problem="missing-parameter", name="scale")
    refused(*words, "--loss-option", "scale=1", problem="not-terms", name="bad")


READS = """
import torch
from hybrid_cli import plugins

@plugins.register("losses", "reads")
def reads(vectors, field: str = "scorer"):
    "Record the mean of one of the inputs, which has no effect."
    value = getattr(vectors, field)
    vectors.record(mean=value.mean(), width=torch.tensor(float(value.shape[1])))
    return {"reads": vectors.queries.mean() + 0 * value.sum()}
"""


@pytest.mark.parametrize(
    ("field", "keyword"),
    [
        ("scorer", "scorer"),
        ("lexical_queries", "index"),
        ("lexical_documents", "index"),
        ("teacher_scores", "teacher"),
        ("teacher_queries", "teacher"),
    ],
)
def test_a_loss_of_a_plugin_without_its_inputs_is_refused(
    folder: Path, tiny_bert: Path, field: str, keyword: str
) -> None:
    (folder / "reads.py").write_text(READS, "utf-8")
    made = pq.read_table(write_examples(folder / "whole.parquet"))
    bare = [
        {**row, "lexical_score": None, "negatives": [{**other, "lexical_score": None} for other in row["negatives"]]}
        for row in made.to_pylist()
    ]
    bare_table = pa.Table.from_pylist(bare, made.schema.remove_metadata())
    output = artifacts.open_output(folder / "bare.parquet", Kind.EXAMPLES, "test", inputs={}, options={})
    output.write([bare_table])
    words = ["--model", tiny_bert, "--loss", "reads", "--loss-option", f"field={field}", "--max-steps", "1"]
    words += ["--batch-size", "4", "--dtype", "fp32", "--plugin", "reads.py", "--output", "out"]
    refused("train-dense", "bare.parquet", *words, problem="missing-loss-input", option=keyword)
    if keyword == "scorer":
        ran("train-dense", "whole.parquet", *words)
        assert curve(folder / "out", "mean")[0] > 1, "the scores of the examples"
        assert curve(folder / "out", "width") == [2]


def test_a_loss_of_a_plugin_reads_scorer_index_and_teacher(
    folder: Path, tiny: Path, tiny_bm25: Path, tiny_bert: Path
) -> None:
    (folder / "reads.py").write_text(READS, "utf-8")
    ran("mine-negatives", tiny, "--split", "train", "--index", tiny_bm25, "--output", "train.parquet")
    words = ["train-dense", "train.parquet", "--model", tiny_bert, "--loss", "reads", "--max-steps", "1", "--dtype"]
    words += ["fp32", "--batch-size", "2", "--plugin", "reads.py", "--overwrite", "--output", "out", "--loss-option"]
    bm25 = ["--scorer", "bm25", "--index", tiny_bm25]
    for field, width, more in (
        ("scorer", 4, bm25),
        ("scorer", 4, ["--scorer", tiny_bert]),
        ("lexical_queries", 16, ["--index", tiny_bm25]),
        ("teacher_scores", 2, ["--teacher", tiny_bert]),
    ):
        ran(*words, f"field={field}", *more)
        assert curve(folder / "out", "width") == [width], field


@pytest.mark.usefixtures("installed")
def test_a_command_of_a_package_is_a_command(folder: Path) -> None:
    help_text = hybrid("--help").out
    assert "cut-run" in help_text
    assert "Example" in help_text
    assert "Hits per query. [>= 1]" in help_of("cut-run")
    (folder / "options.yaml").write_text("cut-run:\n  keep: 2\n", "utf-8")
    words = ["cut-run", "a.trec", "--config", "options.yaml", "--output", "cut.parquet"]
    assert hybrid(*words, "--dry-run").out.split()[:2] == ["output", "cut.parquet"]
    assert not (folder / "cut.parquet").exists()
    ran(*words)
    assert len(runs.read_run(folder / "cut.parquet")) == 2
    assert artifacts.read_manifest(folder / "cut.parquet").versions["hybrid-example"] == "1.2"
    left_alone("cut.parquet", *words)
    refused(*words, "--keep", "1", problem="output-differs", path="cut.parquet")
    refused("cut-run", "a.trec", "--keep", "0", "--output", "x.parquet", problem="out-of-range", option="keep")


@pytest.mark.usefixtures("installed")
def test_a_kind_of_encoder_of_a_package_is_encoded_and_searched(folder: Path) -> None:
    ran("make-letters", "--output", "letters")
    assert open_encoder("letters").encode_queries(["abba"])[0, :3].tolist() == [2, 2, 0]
    ran("prepare", "pairs", "corpus.tsv", "--output", "docs")
    ran("encode", "docs", "--model", "letters", "--output", "index")
    assert artifacts.read_manifest(folder / "index").versions["hybrid-example"] == "1.2"
    found = json.loads(hybrid("search", "--index", "index", "--query", "sea blue", "--format", "json").out)
    assert [hit["docid"] for hit in found["hits"]] == ["d2", "d1"]


class Lengths(Encoder):
    """Length of a text and the number of its words, as an object of some type."""

    def __init__(self, form: Callable[[list[list[float]]], Any], dim: int | None = None):
        self.form = form
        if dim is not None:
            self.dim = dim  # type: ignore[misc]

    def encode_queries(self, texts: Sequence[str], batch_tokens: int = 0) -> Any:
        return self.form([[len(text), len(text.split())] for text in texts])


@pytest.mark.parametrize(
    "form", [list, np.array, torch.tensor, lambda rows: torch.tensor(rows, dtype=torch.bfloat16, requires_grad=True)]
)
def test_a_subclass_of_encoder_returns_any_numbers(form: Callable[[list[list[float]]], Any]) -> None:
    index = Dense(Lengths(form, 2)).index({"a": "salt", "b": "sea water"})
    assert index.search(["moon"], k=2)["docid"].to_list() == ["b", "a"]
    assert index.vectors_of(np.arange(2)).dtype == np.float32
    encoder = Lengths(form)
    assert isinstance(encoder, Encoder)  # type: ignore[misc]
    assert (encoder.dim, encoder.truncated, encoder.device.type, encoder.describe()) == (
        2,
        0,
        "cpu",
        {"kind": "Lengths"},
    )
    assert encoder.encode_documents(["sea", ""], ["salt", "a b"]).tolist() == [[8, 2], [3, 2]]
    assert encoder.encode_queries([]).shape == (0, 2)
    with raises("other-type"):
        encoder.encode_queries("salt")


@pytest.mark.parametrize(
    ("form", "fields"),
    [
        (lambda rows: rows[1:], {"shape": (1, 2)}),
        (lambda rows: np.ones(len(rows)), {"shape": (2,)}),
        (lambda rows: np.ones((len(rows), 3)), {"shape": (2, 3)}),
        (lambda rows: np.array([*rows[1:], [np.nan, 0]]), {"row": 1}),
        (lambda rows: ["text", None], {}),
        (lambda rows: [[1], [1, 2]], {}),
    ],
)
def test_an_encoder_with_other_vectors_is_refused(form: Callable[[Any], Any], fields: dict[str, Any]) -> None:
    with raises("encoder-output", encoder="Lengths", **fields):
        Dense(Lengths(form, 2)).index(["salt", "sea water"])


def test_an_error_of_a_plugin_names_its_file_and_line(folder: Path, tiny_bert: Path) -> None:
    """Also if the plugin returns an expression that fails later, out of its code."""
    write_examples(folder / "train.parquet")
    (folder / "qrels.tsv").write_text("1\td1\t1\n", "utf-8")
    fuse = ["fuse", "a.trec", "b.trec", "--output", "x.parquet"]
    train = ["train-dense", "train.parquet", "--model", tiny_bert, "--max-steps", "1", "--output", "x"]
    evaluate = ["evaluate", "--qrels", "qrels.tsv", "a.trec"]
    for group, words, signature, fault, line in (
        ("fusion_methods", [*fuse, "--method", "bad"], "values, weights, present", "values[7]", 7),
        ("fusion_methods", [*fuse, "--method", "bad"], "values, weights, present", "values[0] + pl.col('no')", 4),
        ("losses", [*train, "--loss", "bad"], "vectors", "vectors.no", 7),
        ("measures", [*evaluate, "--measure", "bad"], "measure", "pl.col('no')", 4),
    ):
        lines = ["import polars as pl", "from hybrid_cli import plugins", "", f"@plugins.register('{group}', 'bad')"]
        lines += [f"def bad({signature}):", "    'Fail.'", f"    return {fault}"]
        (folder / "bad.py").write_text("\n".join(lines), "utf-8")
        done = hybrid(*words, "--plugin", "bad.py")
        code = "plugin-fails" if group == "measures" else "bug"
        assert done.is_problem(code, plugin="bad.py", path="bad.py", line=line), (done.err, done.fields)
        assert (done.code, done.err.count("\n")) == (2 if group == "measures" else 1, 1), done.err


def test_an_artifact_does_not_load_a_plugin_but_names_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed = on_path(PACKAGE, monkeypatch)
    next(installed)
    ran("make-letters", "--output", "letters")
    next(installed, None)
    with raises("missing-plugin", name="letters") as caught:
        open_encoder("letters")
    assert caught.value.fields["plugins"] == ["hybrid-example 1.2"]
    (folder / "last.py").write_text(METHOD, "utf-8")
    (folder / "qrels.tsv").write_text("1\td3\t1\n", "utf-8")
    tune = ["--tune", "--methods", "last", "--qrels", "qrels.tsv", "--output", "weights.json"]
    ran("fuse", "a.trec", "b.trec", *tune, "--plugin", "last.py")
    words = ["fuse", "a.trec", "b.trec", "--weights", "@weights.json", "--output", "x.parquet"]
    fields = refused(*words, problem="missing-plugin").fields
    assert (fields["name"], fields["plugins"]) == ("last", ["last.py"])
    ran(*words, "--plugin", "last.py")


METHOD = '''
from hybrid_cli import plugins

@plugins.register("fusion_methods", "last")
def last(values, weights, present):
    """Score documents as the last list does."""
    return values[-1]
'''


def test_a_file_adds_entries_for_one_call(folder: Path) -> None:
    (folder / "last.py").write_text(METHOD, "utf-8")
    words = ["fuse", "a.trec", "b.trec", "--method", "last", "--output", "fused.parquet"]
    ran(*words, "--plugin", "last.py")
    assert runs.read_run(folder / "fused.parquet")["docid"].to_list()[0] == "d3"
    source = artifacts.read_manifest(folder / "fused.parquet").inputs["plugin last.py"]
    assert (source["path"], source["kind"]) == ("last.py", "file")
    left_alone("fused.parquet", *words, "--plugin", "last.py")
    (folder / "last.py").write_text(METHOD.replace("[-1]", "[0]"), "utf-8")
    refused(*words, "--plugin", "last.py", problem="output-differs", path="fused.parquet")
    refused(*words, problem="unknown-choice", option="method")
    assert not plugins.files()
    (folder / "flat.yaml").write_text("plugin: last.py\nmethod: last\n", "utf-8")
    (folder / "several.yaml").write_text("fuse:\n  plugin: [last.py]\n  method: last\nevaluate:\n  top: 3\n", "utf-8")
    for config in ("flat", "several"):
        assert hybrid(*words[:3], "--config", f"{config}.yaml", "--output", f"{config}.parquet").code == 0, config
        assert "plugin last.py" in artifacts.read_manifest(folder / f"{config}.parquet").inputs
    (folder / "other").mkdir()
    (folder / "other/last.py").write_text(METHOD.replace('"last"', '"own"'), "utf-8")
    refused(*words, "--plugin", "last.py", "--plugin", "other/last.py", problem="plugin-name-taken")


COMMAND = '''
from dataclasses import dataclass
from hybrid_cli import plugins
from hybrid_cli.settings import Settings
from hybrid_cli.stages import stage

@dataclass(frozen=True)
class Greet(Settings):
    """Print a greeting."""
    command = "greet"
    panel = "Other"

@plugins.register("commands", "greet")
@stage(Greet)
def greet(settings: Greet) -> str:
    """Print a greeting."""
    return "hello"
'''


def test_a_file_adds_a_command(folder: Path) -> None:
    (folder / "greet.py").write_text(COMMAND, "utf-8")
    assert hybrid("greet", "--plugin", "greet.py").out == hybrid("--plugin", "greet.py", "greet").out == "hello\n"
    assert "greet" in hybrid("--plugin=greet.py", "--help").out
    assert hybrid("greet").code == 2


@pytest.mark.slow
def test_a_package_is_there_from_the_start_of_a_process(folder: Path) -> None:
    paths = os.pathsep.join([str(PACKAGE), str(PACKAGE.parent.parent)])
    command = [sys.executable, "-m", "hybrid_cli", "cut-run", "a.trec", "--keep", "1", "--output", "cut.parquet"]
    subprocess.run(command, env={**os.environ, "PYTHONPATH": paths}, check=True)
    assert len(runs.read_run(folder / "cut.parquet")) == 1


def test_the_examples_of_the_documentation_work(folder: Path, tiny_runs: Path, tiny_bert: Path) -> None:
    root = Path(__file__).parent.parent
    first = (root / "CONTRIBUTING.md").read_text("utf-8").split("\n## ")[1]
    page = (root / "docs" / "extending.md").read_text("utf-8")
    (folder / "several.py").write_text("\n".join(re.findall(r"```python\n(.*?)```", first, re.DOTALL)), "utf-8")
    (folder / "mine.py").write_text("\n".join(re.findall(r"```python\n(.*?)```", page, re.DOTALL)), "utf-8")
    fuse = ["fuse", "a.trec", "b.trec", "--method", "first", "--output"]
    ran(*fuse, "mine.parquet", "--plugin", "mine.py")
    (folder / "faq.tsv").write_text("what is salt\ta mineral\nwhat is water\ta liquid\n", "utf-8")
    train = ["train-dense", write_examples(folder / "train.parquet"), "--model", tiny_bert, "--max-steps", "1"]
    for words in (
        ["fuse", "a.trec", "b.trec", "--method", "power", "--method-option", "exponent=2", "--output", "power.parquet"],
        ["prepare", "faq", "faq.tsv", "--output", "faq"],
        [*train, "--loss", "scorer-kl", "--loss-option", "sharpness=2", "--dtype", "fp32", "--output", "model"],
        ["compose", tiny_runs / "bm25", tiny_runs / "dense", "--method", "minmax", "--output", "retriever"],
        ["export", "retriever", "--format", "lines", "--output", "lines"],
        ["index-bm25", "faq", "--language", "trigrams", "--no-lucene", "--output", "trigrams"],
    ):
        ran(*words, "--plugin", "mine.py")
    data = open_collection(folder / "faq")
    assert data.qrels("test").select("qid", "docid").rows() == [("q0", "a0"), ("q1", "a1")]
    assert data.queries("test")["text"].to_list() == ["what is salt", "what is water"]
    (folder / "faq.tsv").write_text("what is salt\ta mineral\nwhat is water\n", "utf-8")
    words = ["prepare", "faq", "faq.tsv", "--output", "again", "--plugin", "mine.py"]
    assert refused(*words, path="faq.tsv", line=2, problem="").fields["line"] == 2
    assert len((folder / "lines" / "documents.jsonl").read_text("utf-8").splitlines()) == 12
    with plugins.load_files(["several.py"]):
        added = {group: [entry.name for entry in plugins.registry(group).others()] for group in plugins.REGISTRIES}
        (folder / "queries.tsv").write_text("1\tred salt\n", "utf-8")
        (folder / "qrels.tsv").write_text("1\td1\t1\n", "utf-8")
        commands: list[list[str]] = [
            [*fuse, "first.parquet"],
            ["prepare", "pairs", "corpus.tsv", "--prefix", "a-", "--output", "docs"],
            ["perturb", "queries.tsv", "--attack", "shout", "--output", "shout.parquet"],
            ["cut-run", "a.trec", "--keep", "1", "--output", "cut.parquet"],
            ["evaluate", "--qrels", "qrels.tsv", "a.trec", "--measure", "Top@3"],
        ]
        assert [(words[0], done.err) for words in commands if (done := hybrid(*words)).code] == []
        vectors = LossInputs(
            torch.ones(2, 3), torch.ones(2, 1, 3), torch.zeros(2, 2), torch.ones(2, 2, dtype=torch.bool)
        )
        assert plugins.registry("losses")["cosine"](vectors, weight=0.5)["cosine"].item() == pytest.approx(0, abs=1e-6)
    kinds = ("commands", "fusion_methods", "losses", "measures", "perturbations", "readers")
    names = ("cut-run", "first", "cosine", "Top", "shout", "pairs")
    assert {group: own for group, own in added.items() if own} == {
        k: [name] for k, name in zip(kinds, names, strict=True)
    }


def test_an_error_without_code_of_the_plugin_names_it_too(folder: Path, tiny_bert: Path) -> None:
    """A reader that yields other rows, and a class that an option names."""
    (folder / "mine.py").write_text(READER.replace("return 3", ROWS), "utf-8")
    done = hybrid("prepare", "mine", "corpus.tsv", "--output", "made", "--plugin", "mine.py")
    assert done.is_problem("bug", plugin="mine.py", path="mine.py", line=5), (done.err, done.fields)
    write_examples(folder / "train.parquet")
    (folder / "my_callbacks.py").write_text(CALLBACK, "utf-8")
    words = ["train-dense", "train.parquet", "--model", tiny_bert, "--max-steps", "1", "--output", "model"]
    for home in ("my_callbacks.py", "my_callbacks"):
        with pytest.MonkeyPatch.context() as patched:
            patched.syspath_prepend(folder)
            done = hybrid(*words, "--callback", f"{home}:Failing")
        assert done.is_problem("bug", plugin="my_callbacks.py", line=5), (done.err, done.fields)
    sys.modules.pop("my_callbacks")


ROWS = """from hybrid_cli.collections.source import Source
    return Source("mine", lambda: iter([("a", "salt")]))"""
CALLBACK = """from hybrid_cli.training import Callback

class Failing(Callback):
    def on_step(self, step, values):
        raise RuntimeError("no")
"""

POWER = '''
from hybrid_cli import plugins

@plugins.register("fusion_methods", "power")
def power(values, weights, present, exponent: float = 1.0, scale: float = 1.0):
    """Add weighted powers of the scores."""
    return scale * sum(w * value.fill_null(0.0) ** exponent for value, w in zip(values, weights))
'''


def test_a_fusion_rule_has_parameters(folder: Path, tiny_runs: Path) -> None:
    (folder / "power.py").write_text(POWER, "utf-8")
    words = ["fuse", "a.trec", "b.trec", "--method", "power", "--plugin", "power.py", "--output", "x.parquet"]
    refused(*words, "--method-option", "exponnt=2", problem="unknown-parameter", name="exponnt")
    refused(*words, "--method-option", "exponent=much", problem="not-a-number")
    refused("fuse", "a.trec", "b.trec", "--method-option", "k=2", "--output", "x.parquet", problem="unknown-parameter")
    ran(*words, "--method-option", "exponent=2", "--method-option", "scale=2")
    fused = runs.read_run(folder / "x.parquet")
    assert dict(fused.select("docid", "score").rows()) == {"d1": 2.0, "d2": 0.5, "d3": 2.0}
    assert artifacts.read_manifest(folder / "x.parquet").options["method_options"] == {"exponent": 2.0, "scale": 2.0}
    refused(*words, problem="output-differs", path="x.parquet")
    (folder / "qrels.tsv").write_text("1\td1\t1\n", "utf-8")
    tune = [*words[:-1], "w.json", "--tune", "--qrels", "qrels.tsv", "--measure", "MRR@10"]
    ran(*tune, "--method-option", "exponent=2", "--method-option", "scale=2")
    tuned = json.loads((folder / "w.json").read_text("utf-8"))
    assert tuned["method_options"] == {"exponent": 2.0, "scale": 2.0}
    ran("fuse", "a.trec", "b.trec", "--weights", "@w.json", "--plugin", "power.py", "--output", "tuned.parquet")
    by_hand = [*words[:-1], "by-hand.parquet", "--weights", ",".join(map(str, tuned["weights"]))]
    ran(*by_hand, "--method-option", "exponent=2", "--method-option", "scale=2")
    assert runs.read_run(folder / "tuned.parquet").equals(runs.read_run(folder / "by-hand.parquet"))
    refused(*tune, "--method-option", "exponnt=2", problem="unknown-parameter", name="exponnt")
    indexes = [tiny_runs / "bm25", tiny_runs / "dense"]
    options = ["--method", "power", "--method-option", "exponent=3", "--plugin", "power.py"]
    ran("compose", *indexes, *options, "--output", "retriever")
    with plugins.load_files(["power.py"]):
        memory = {"a": "a.trec", "b": "b.trec"}
        assert fuse(memory, "power", exponent=2, scale=2.0).equals(fused)
        for method in ("power", "minmax"):
            with raises("unknown-parameter", name="exponnt"):
                fuse(memory, method, exponnt=2)
        hits = open_retriever("retriever").search("salt water", k=5)
        sides = {path.name: open_index(path) for path in indexes}
        same = Retriever.of(sides, "power", exponent=3.0).search("salt water", k=5)
        assert hits["score"].to_list() == same["score"].to_list()
        assert hits["score"].to_list() != Retriever.of(sides, "power").search("salt water", k=5)["score"].to_list()


@pytest.mark.parametrize("place", range(7))
def test_the_option_plugin_may_be_anywhere(folder: Path, place: int) -> None:
    (folder / "mine.py").write_text(READER.replace("return 3", SOURCE), "utf-8")
    words: list[object] = ["prepare", "mine", "corpus.tsv", "--rows", "1", "--output", "made"]
    ran(*words[:place], "--plugin", "mine.py", *words[place:])
    assert "hybrid prepare mine" in help_of("--plugin=mine.py help prepare mine".removesuffix(" --help"))


SOURCE = """from hybrid_cli.collections.source import Document, Location, Source
    return Source("mine", lambda: iter([Document("a", "", "salt", Location(corpus, 1))]))"""


def test_a_measure_that_fails_is_named(folder: Path) -> None:
    def failing(measure: Any) -> pl.Expr:
        """Fail for a grade of 2."""

        def value(grades: pl.Series) -> float:
            if grades.max() == 2:
                raise ValueError("no grade of 2")
            return 1.0

        return pl.col("relevance").map_batches(value, returns_scalar=True, return_dtype=pl.Float64)  # type: ignore

    plugins.register("measures", "Failing", failing)
    try:
        assert evaluate({"1": {"d": 1.0}}, {"1": {"d": 1}}, ["Failing"]) == {"Failing": 1.0}
        with raises("plugin-fails", name="Failing", group="measures") as refusal:
            evaluate({"1": {"d": 1.0}, "2": {"d": 1.0}}, {"1": {"d": 1}, "2": {"d": 2}}, ["Failing"])
        assert refusal.value.fields["line"] == failing.__code__.co_firstlineno
    finally:
        plugins.registry("measures").remove(plugins.Origin(__name__))


def test_a_bug_of_a_plugin_is_not_one_of_hybrid(folder: Path) -> None:
    (folder / "last.py").write_text(METHOD.replace("values[-1]", "values[7]"), "utf-8")
    done = hybrid("fuse", "a.trec", "b.trec", "--method", "last", "--output", "x.parquet", "--plugin", "last.py")
    assert (done.code, type(done.error)) == (1, IndexError)
    assert done.is_problem("bug", plugin="last.py")
    assert listing().keys() == {"a.trec", "b.trec", "corpus.tsv", "last.py"}


@pytest.mark.parametrize(
    ("code", "problem", "fields"),
    [
        ("import no_such_module\n", "plugin-import", {"plugin": "bad.py", "line": 1}),
        ("raise SystemExit(3)\n", "plugin-import", {"line": 1}),
        ("x = 1\n", "plugin-empty", {}),
        (METHOD.replace('"last")', '"rrf")'), "plugin-name-taken", {"name": "rrf", "other": "hybrid_cli"}),
        (METHOD.replace('"""Score documents as the last list does."""', "pass"), "plugin-docstring", {"name": "last"}),
        (METHOD.replace("fusion_methods", "methods"), "plugin-group", {"group": "methods"}),
        (METHOD.replace('"last")', '"a method")'), "plugin-name", {"name": "a method"}),
        (METHOD + 'plugins.register("fusion_methods", "x", 3)\n', "plugin-kind", {"name": "x"}),
        (COMMAND.replace('"commands", "greet"', '"commands", "fuse"'), "plugin-name-taken", {"name": "fuse"}),
        (COMMAND.replace("@stage(Greet)\n", ""), "plugin-kind", {"name": "greet"}),
    ],
)
def test_an_unusable_file_is_refused(folder: Path, code: str, problem: str, fields: dict[str, object]) -> None:
    (folder / "bad.py").write_text(code, "utf-8")
    done = refused("fuse", "a.trec", "b.trec", "--output", "x.parquet", "--plugin", "bad.py", problem=problem)
    assert fields.items() <= done.fields.items()
    assert not plugins.registry("fusion_methods").others()


READER = '''
from pathlib import Path
from hybrid_cli import plugins

@plugins.register("readers", "mine")
def mine(corpus: Path, *, rows: int = 3):
    """Import a file.

    Args:
        corpus: file
        rows: number of rows
    """
    return 3
'''


@pytest.mark.parametrize(
    ("code", "problem"),
    [
        (READER.replace("        rows: number of rows\n", ""), "plugin-kind"),
        (READER.replace("rows: int", "rows: object"), "plugin-kind"),
        (READER, "not-a-source"),
    ],
)
def test_an_unusable_reader_is_refused_in_one_line(folder: Path, code: str, problem: str) -> None:
    (folder / "mine.py").write_text(code, "utf-8")
    refused("prepare", "mine", "corpus.tsv", "--output", "out", "--plugin", "mine.py", problem=problem)


def test_a_plugin_is_a_local_python_file(folder: Path) -> None:
    (folder / "plugin.txt").write_text(METHOD, "utf-8")
    for name in ("no.py", "plugin.txt", "s3://bucket/plugin.py", "."):
        refused("fuse", "a.trec", "b.trec", "--output", "x.parquet", "--plugin", name, problem="no-such-plugin")


@pytest.fixture
def broken(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A package that fails to import, lacks a docstring, and registers names that are taken."""
    site = tmp_path_factory.mktemp("packages")
    (site / "hybrid_example_bad-0.1.dist-info").mkdir(parents=True)
    (site / "hybrid_example_bad-0.1.dist-info" / "METADATA").write_text("Name: hybrid-example-bad\nVersion: 0.1\n")
    (site / "hybrid_example_bad-0.1.dist-info" / "entry_points.txt").write_text(
        "[hybrid_cli.commands]\nbroken = hybrid_example_bad:nothing\nevaluate = hybrid_example_bad:nothing\n"
        "[hybrid_cli.fusion_methods]\nrrf = hybrid_example_bad:bare\nbare = hybrid_example_bad:bare\n"
        "gone = hybrid_example_gone:bare\nmax = hybrid_example_bad:bare\n"
    )
    (site / "hybrid_example_bad.py").write_text("def bare(values, weights, present):\n    return values[0]\n")
    yield from on_path(site, monkeypatch)


@pytest.mark.usefixtures("broken")
@pytest.mark.parametrize(
    ("method", "problem"),
    [
        ("rrf", "plugin-name-taken"),
        ("max", "plugin-name-taken"),
        ("bare", "plugin-docstring"),
        ("gone", "plugin-import"),
    ],
)
def test_an_unusable_package_is_refused_where_it_is_used(folder: Path, method: str, problem: str) -> None:
    done = refused("fuse", "a.trec", "b.trec", "--output", "x.parquet", "--method", method, problem=problem)
    assert (done.fields["plugin"], done.fields["name"]) == ("hybrid-example-bad", method)
    ran("fuse", "a.trec", "b.trec", "--output", "x.parquet", "--method", "minmax")


@pytest.mark.usefixtures("broken")
def test_an_unusable_command_does_not_hide_the_others(folder: Path) -> None:
    shown = hybrid("--help")
    assert (shown.code, shown.err.count("\n"), "concat-runs" in shown.out) == (0, 1, True)
    assert refused("broken", problem="plugin-import").fields["plugin"] == "hybrid-example-bad"
    refused("evaluate", "a.trec", problem="plugin-name-taken")
