"""`sweep`: set-ups of a retriever, built by the other stages and compared on queries that did not choose them."""

import json
from pathlib import Path
from typing import Any

import pytest
from api_server import Server
from command import hybrid
from hypothesis import given
from hypothesis import strategies as st

from hybrid_cli import open_retriever
from hybrid_cli.commands.data import PrepareFiles
from hybrid_cli.stages.prepare import prepare

VERBS = ("get", "set", "open", "close", "parse", "render", "load", "store", "merge", "split", "sort", "filter")
NOUNS = ("user", "table", "socket", "window", "header", "image", "model", "vector", "branch", "string", "list", "event")
WORDS = "encode: null\n"
REWRITE = Path(__file__).parents[1] / "examples/queries/rewrite.py"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Twelve functions whose names have the words of the query, in documents that name another one in words."""
    rows, queries, judged = [], [], []
    for number, (verb, noun) in enumerate(zip(VERBS, NOUNS, strict=True)):
        other = f"{VERBS[number - 1]} {NOUNS[number - 1]}"
        rows.append({"id": f"d{number}", "text": f"{verb}{noun.title()}ById is not about {other} once"})
        queries.append({"qid": f"q{number}", "text": f"{verb} {noun}"})
        judged.append(f"q{number}\td{number}\t1")
    for name, content in (("docs", rows), ("queries", queries)):
        (tmp_path / f"{name}.jsonl").write_text("\n".join(map(json.dumps, content)))
    (tmp_path / "qrels.tsv").write_text("qid\tdocid\trelevance\n" + "\n".join(judged) + "\n")
    files: dict[str, Any] = {"queries": [str(tmp_path / "queries.jsonl")], "qrels": [str(tmp_path / "qrels.tsv")]}
    return prepare(PrepareFiles([tmp_path / "docs.jsonl"], output=tmp_path / "data", **files))


def swept(data: Path, setups: str, *more: object) -> Any:
    (data.parent / "setups.yaml").write_text(setups)
    return hybrid("sweep", data.parent / "setups.yaml", data, "--output", data.parent / "out", *more)


SETUPS = """
words: {encode: null}
again: {encode: null, compose: {method: minmax}}
parts: {encode: null, index-bm25: {identifiers: true}}
passages: {encode: null, prepare: {split_passages: 3}}
"""


def test_the_better_set_up_is_one_retriever_that_gate_starts_from(data: Path, tmp_path: Path) -> None:
    assert (done := swept(data, SETUPS)).code == 0, done.err
    result = json.loads((tmp_path / "out/sweep.json").read_text())
    assert (result["chosen"], result["verdict"]["outcome"]) == ("parts", "better")
    means = {name: each["mean"] for name, each in result["setups"].items()}
    assert means["parts"] > means["words"] == means["again"]
    assert all(each["bytes"] > 0 and each["p95"] > 0 and each["seconds"] >= 0 for each in result["setups"].values())
    hits = open_retriever(tmp_path / "out/retriever").search("merge branch", 1)
    assert hits["docid"].to_list() == ["d8"]
    assert len(list((tmp_path / "out/steps").glob("index-bm25-*"))) == 3  # `again` has that of `words`
    words = ["gate", tmp_path / "out/retriever", data, "--baseline", tmp_path / "quality.json"]
    assert hybrid(*words, "--write").code == 0
    assert hybrid(*words).code == 0


def test_a_sweep_resumes_with_what_is_there(data: Path, tmp_path: Path) -> None:
    assert swept(data, SETUPS).code == 0
    made = {path: path.stat().st_ino for path in (tmp_path / "out/steps").glob("index-bm25-*")}
    assert swept(data, SETUPS + "more: {encode: null, index-bm25: {k1: 2}}\n").code == 0
    assert {path: path.stat().st_ino for path in made} == made
    assert "more" in json.loads((tmp_path / "out/sweep.json").read_text())["setups"]


def test_queries_that_a_language_model_rewrites_are_a_set_up(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the plugin of the examples; an answer without a query, here to `filter event`, leaves the query."""

    def reply(body: dict[str, Any]) -> tuple[int, str]:
        query = json.loads(body["messages"][-1]["content"])["query"]
        text = json.dumps({"query": f"{query.replace(' ', '')}byid"}) if query != "filter event" else "no"
        return 200, json.dumps({"choices": [{"message": {"content": f"Here: {text}"}}]})

    server = Server(reply)
    monkeypatch.setenv("HYBRID_LLM", f"{server.url}#writer")
    written = tmp_path / "rewritten.parquet"
    words = ["perturb", data, "--plugin", REWRITE, "--attack", "rewrite", "--output", written]
    assert (done := hybrid(*words)).code == 0, done.err
    server.close()
    assert {body["model"] for body in server.bodies} == {"writer"}
    setups = f"plain: {{encode: null}}\nrewritten: {{encode: null, search: {{queries: {written}}}}}\n"
    assert swept(data, setups).code == 0
    result = json.loads((tmp_path / "out/sweep.json").read_text())
    assert result["chosen"] == "rewritten"
    assert 1 > result["setups"]["rewritten"]["mean"] > 0.9
    monkeypatch.delenv("HYBRID_LLM")
    refused = hybrid(*words, "--overwrite")
    assert (refused.code, refused.problem) == (2, "no-model")


@pytest.mark.parametrize(
    ("setups", "code"),
    [
        ("", "too-few-setups"),
        ("one: {encode: null}", "too-few-setups"),
        ("- a\n- b", "too-few-setups"),
        ("a: {\nb: 1", "not-yaml"),
        ("a: 1\nb: 2", "other-type"),
        ("a: {encode: 1}\nb:", "other-type"),
        ("a=b: {}\nb:", "other-type"),
        ("a: {encod: null}\nb:", "unknown-choice"),
        ("a: {encode: null, index-bm25: null}\nb:", "other-type"),
        ("a: {encode: null, index-bm25: {stemer: x}}\nb: {encode: null}", "no-such-option"),
        ("a: {encode: null, index-bm25: {k1: -1}}\nb: {encode: null}", "out-of-range"),
        ("a: {encode: null, compose: {output: x}}\nb: {encode: null}", "option-does-not-apply"),
    ],
)
def test_unusable_set_ups_are_refused_before_the_first_step(data: Path, tmp_path: Path, setups: str, code: str) -> None:
    done = swept(data, setups)
    assert done.is_problem(code), (done.err, done.fields)
    assert not (tmp_path / "out").exists()


def test_few_judged_queries_choose_nothing(tiny: Path, tmp_path: Path) -> None:
    (tmp_path / "setups.yaml").write_text("a: {encode: null}\nb: {encode: null, index-bm25: {k1: 2}}\n")
    done = hybrid("sweep", tmp_path / "setups.yaml", tiny, "--split", "test", "--output", tmp_path / "out")
    assert done.says("too-few-queries")
    assert json.loads((tmp_path / "out/sweep.json").read_text())["chosen"] == "a"


@given(st.integers(0, 2**32 - 1))
def test_equal_set_ups_are_never_recommended(seed: int) -> None:
    import numpy as np

    from hybrid_cli.commands import Sweep
    from hybrid_cli.stages.sweep import chosen_of

    values = np.random.default_rng(seed).random(30)
    settings = Sweep("setups.yaml", "data", output="out")
    verdict, chosen = chosen_of(settings, {"a": values, "b": values.copy()})
    assert (verdict and verdict.outcome, chosen) == ("undecided", "a")
