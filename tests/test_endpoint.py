"""Encoders behind an embeddings API: vectors, cache, resuming, limits; bad servers, and models that have changed."""

import hashlib
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from api_server import Reply, Server, running
from bare import Environment
from command import hybrid, raises, ran

from hybrid_cli import Dense, open_encoder, open_index, open_retriever, open_run
from hybrid_cli.encoders.endpoint import BATCH, PROBE
from hybrid_cli.errors import HybridError
from hybrid_cli.indexes.shards import read_ids, read_vectors
from hybrid_cli.stages.index_bm25 import index_bm25

pytestmark = pytest.mark.usefixtures("no_delays")


def vector(text: str, dim: int = 24, seed: int = 0) -> list[float]:
    """Return the sum of a random vector per word."""
    words = (hashlib.blake2b(word.encode(), digest_size=8).digest() for word in text.lower().split())
    rows = [np.random.default_rng([seed, int.from_bytes(word)]).normal(size=dim) for word in words]
    whole = np.sum(rows, axis=0) if rows else np.ones(dim)
    return list((whole / np.linalg.norm(whole)).astype(float))


def answer(vectors: list[Any]) -> tuple[int, str]:
    rows = [{"object": "embedding", "index": number, "embedding": value} for number, value in enumerate(vectors)]
    return 200, json.dumps({"object": "list", "data": rows[::-1], "model": "m"})  # order counts by index


def good(body: dict[str, Any]) -> tuple[int, str]:
    return answer([vector(text) for text in body["input"]])


def of_model(dim: int = 24, seed: int = 0) -> Reply:
    return lambda body: answer([vector(text, dim, seed) for text in body["input"]])


@pytest.fixture
def server() -> Iterator[Server]:
    yield from running(good)


@pytest.fixture
def model(server: Server, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HYBRID_CACHE", str(tmp_path / "cache"))
    Path("tiny").symlink_to(tiny)
    return f"{server.url}#some/model"


def texts_of(server: Server) -> list[str]:
    return [text for body in server.bodies for text in body["input"]]


def test_documents_and_queries_have_the_vectors_of_the_server(model: str, server: Server) -> None:
    words = ["--query-prefix", "query: ", "--doc-prefix", "passage: ", "--title-separator", " | "]
    done = ran("encode", "tiny", "--model", model, *words, "--output", "index")
    assert done.says("forecast", calls=len(server.bodies), known=0)
    assert {body["model"] for body in server.bodies} == {"some/model"}
    assert {headers["path"] for headers in server.headers} == {"/v1/embeddings"}
    assert {headers.get("Authorization") for headers in server.headers} == {None}
    corpus = pl.read_parquet("tiny/corpus.parquet")
    inputs = [f"passage: {title} | {text}" for title, text in corpus.select("title", "text").iter_rows()]
    assert texts_of(server) == [PROBE, PROBE, *inputs]
    expected = np.array([vector(text) for text in inputs], np.float32)
    np.testing.assert_allclose(read_vectors(Path("index")), expected, atol=1e-6)
    ran("encode", "tiny", "--split", "test", "--model", model, *words, "--output", "queries")
    assert texts_of(server)[-1].startswith("query: ")
    calls = len(server.bodies)
    ran("search", "tiny", "--split", "test", "--index", "index", "--output", "live.parquet")
    ran("search", "--queries", "queries", "--index", "index", "--output", "stored.parquet")
    assert open_run("live.parquet").equals(open_run("stored.parquet"))
    assert len(server.bodies) == calls, "the vectors of the queries are in the cache"
    scores = np.array([vector("query: salt in sea water")], np.float32) @ expected.T
    hits = open_index("index", timeout=5).search("salt in sea water", k=1)
    assert hits["docid"].to_list() == [read_ids(Path("index"))[int(scores.argmax())]]
    assert hits["score"][0] == pytest.approx(scores.max(), abs=1e-5)


def test_the_key_is_sent_and_stored_nowhere(model: str, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HYBRID_API_KEY", "secret")
    ran("encode", "tiny", "--model", model, "--output", "index")
    assert {headers["Authorization"] for headers in server.headers} == {"Bearer secret"}
    files = [path for folder in ("index", "cache") for path in Path(folder).rglob("*") if path.is_file()]
    assert not [path for path in files if b"secret" in path.read_bytes()]


def test_nothing_is_asked_again_and_the_forecast_says_so(model: str, server: Server) -> None:
    ran("encode", "tiny", "--model", model, "--output", "index")
    calls = len(server.bodies)
    done = ran("encode", "tiny", "--model", model, "--index-type", "fp16", "--output", "half")
    assert done.says("forecast", calls=0, tokens=0, known=12)
    assert len(server.bodies) == calls
    np.testing.assert_array_equal(read_vectors(Path("half")), read_vectors(Path("index")))
    ran("encode", "index", "--truncate-dim", 8, "--output", "rebuilt")
    ran("encode", "tiny", "--model", model, "--truncate-dim", 8, "--output", "short")
    short = read_vectors(Path("short"))
    np.testing.assert_allclose(np.linalg.norm(short, axis=1), 1, atol=1e-6)
    np.testing.assert_allclose(read_vectors(Path("rebuilt")), short, atol=1e-6)
    assert len(server.bodies) == calls
    assert open_index("short").search("salt", k=3).height == 3


@pytest.fixture
def many(model: str) -> str:
    lines = [json.dumps({"id": str(number), "text": f"text {number}"}) for number in range(300)]
    Path("docs.jsonl").write_text("\n".join(lines))
    ran("prepare", "files", "docs.jsonl", "--output", "many")
    return model


def test_more_calls_than_allowed_are_refused_before_the_first(many: str, server: Server) -> None:
    words = ["encode", "many", "--model", many, "--output", "index"]
    refusal = hybrid(*words, "--max-calls", 10)
    assert refusal.is_problem("max-calls", option="max_calls", value=10, calls=11)
    assert (server.bodies, Path("index").exists()) == ([], False)
    assert ran(*words, "--max-calls", 11, "--concurrency", 2).says("forecast", calls=11)
    assert len(server.bodies) == 11
    assert {len(body["input"]) for body in server.bodies} == {1, 32, 301 % 32}


def test_retries_count_and_what_is_done_is_kept(many: str, server: Server) -> None:
    server.reply = lambda body: (429, "slow down") if len(server.bodies) in (5, 6) else good(body)
    words = ["encode", "many", "--model", many, "--concurrency", 1, "--output", "index"]
    assert hybrid(*words, "--max-calls", 11).is_problem("max-calls")
    assert len(server.bodies) == 11
    assert ran(*words).says("forecast", calls=2, known=8 * 32 - 1)
    assert len(texts_of(server)) == 300 + 3 + 2 * 32, "the probe thrice, and the refused calls"


def test_a_server_says_when_to_ask_again(model: str, server: Server) -> None:
    server.more, started = {"Retry-After": "1"}, time.monotonic()
    server.reply = lambda body: (429, "slow down") if len(server.bodies) == 1 else good(body)
    ran("encode", "tiny", "--model", model, "--output", "index")
    assert time.monotonic() - started > 1


@pytest.mark.heavy
def test_a_killed_command_resumes(many: str, server: Server) -> None:
    def slow(body: dict[str, Any]) -> tuple[int, str]:
        time.sleep(0.2)
        return good(body)

    server.reply = slow
    words = ["encode", "many", "--model", many, "--concurrency", "1", "--output", "index"]
    process = subprocess.Popen([sys.executable, "-m", "hybrid_cli", *words], stderr=subprocess.DEVNULL)
    while len(server.bodies) < 5:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    server.reply, before = good, len(set(texts_of(server)))
    ran(*words)
    assert len(set(texts_of(server))) == 301
    assert len(texts_of(server)) <= 300 + 3 + 2 * BATCH
    assert before > BATCH
    assert read_vectors(Path("index")).shape == (300, 24)


@pytest.mark.heavy
def test_a_signal_ends_the_running_calls(many: str, server: Server) -> None:
    def slow(body: dict[str, Any]) -> tuple[int, str]:
        time.sleep(0 if len(server.bodies) < 3 else 15)
        return good(body)

    server.reply = slow
    words = ["encode", "many", "--model", many, "--output", "index"]
    process = subprocess.Popen([sys.executable, "-m", "hybrid_cli", *words], stderr=subprocess.DEVNULL)
    while len(server.bodies) < 5:
        time.sleep(0.01)
    process.terminate()
    assert process.wait(8) == 128 + signal.SIGTERM


def test_a_server_that_takes_fewer_texts_gets_fewer(many: str, server: Server) -> None:
    server.reply = lambda body: (413, "batch size > 8") if len(body["input"]) > 8 else good(body)
    ran("encode", "many", "--model", many, "--concurrency", 1, "--output", "index")
    assert read_vectors(Path("index")).shape == (300, 24)


def test_long_texts_are_cut_at_four_characters_a_token(model: str, server: Server) -> None:
    server.reply = lambda body: (400, "too long") if max(map(len, body["input"])) > 80 else good(body)
    assert hybrid("encode", "tiny", "--model", model, "--output", "index").is_problem("server-refuses", status=400)
    ran("encode", "tiny", "--model", model, "--doc-max-len", 20, "--output", "index")
    assert max(map(len, server.bodies[-1]["input"])) == 80


@pytest.mark.parametrize(
    ("reply", "problem"),
    [
        (lambda body: (401, "no such key"), ("server-refuses", {"status": 401})),
        (lambda body: (302, "http://127.0.0.1:1/v1"), ("server-refuses", {"status": 302})),
        (lambda body: (429, "slow down"), ("server-down", {})),
        (lambda body: (500, "oops"), ("server-down", {})),
        (lambda body: (200, "<html>Sign in</html>"), ("server-answer", {})),
        (lambda body: (200, '{"data": [{"embedding": "AAAA"}]}'), ("server-answer", {})),
        (lambda body: answer([vector(text) for text in body["input"]][1:]), ("server-answer", {"texts": 1})),
        (lambda body: answer([[float("nan")] * 4 for _ in body["input"]]), ("server-answer", {})),
        (lambda body: answer([[1.0] * (4 + n) for n in range(len(body["input"]) + 1)]), ("server-answer", {})),
    ],
)
def test_a_bad_server_is_one_line(
    model: str, server: Server, reply: Reply, problem: tuple[str, dict[str, Any]]
) -> None:
    server.reply = reply
    code, fields = problem
    done = hybrid("encode", "tiny", "--model", model, "--output", "index")
    assert (done.code, done.err.count("hybrid: ")) == (1, 1), done.err
    assert done.is_problem(code, option="model", value=model, **fields), done.err
    assert done.err.splitlines()[-1].startswith("hybrid: ")


def test_a_refused_key_of_a_later_call_keeps_what_is_done(many: str, server: Server) -> None:
    server.reply = lambda body: good(body) if len(server.bodies) < 4 else answer([vector(t) for t in body["input"]][1:])
    words = ["encode", "many", "--model", many, "--concurrency", 1, "--output", "index"]
    assert hybrid(*words).is_problem("server-answer", texts=32, vectors=31)
    server.reply = good
    assert ran(*words).says("forecast", known=63)


def test_no_server_and_a_late_one(model: str, server: Server) -> None:
    ran("encode", "tiny", "--model", model, "--output", "index")

    def late(body: dict[str, Any]) -> tuple[int, str]:
        time.sleep(1)
        return good(body)

    server.reply = late
    started = time.monotonic()
    assert hybrid("search", "--index", "index", "--query", "new", "--timeout", 0.2).problem == "server-down"
    assert time.monotonic() - started < 3
    server.close()
    assert hybrid("search", "--index", "index", "--query", "other").problem == "server-down"
    assert (
        hybrid("search", "--index", "index", "--query", "to be", "--device", "cpu").problem == "option-does-not-apply"
    )


@pytest.mark.parametrize("reply", [of_model(seed=1), of_model(dim=16)])
def test_another_model_on_another_day_is_refused(model: str, server: Server, reply: Reply) -> None:
    ran("encode", "tiny", "--model", model, "--output", "index")
    server.reply = reply
    for words in (["--index", "index", "--query", "new"], ["--index", "index", "--query", "n", "--model", model]):
        assert hybrid("search", *words).is_problem("model-changed", option="model", value=model)
    assert hybrid("encode", "tiny", "--split", "test", "--model", model, "--output", "q").problem == "model-changed"
    for file in Path("cache/endpoints").glob("*.sqlite*"):
        file.unlink()
    assert hybrid("search", "--index", "index", "--query", "new").problem == "model-changed"
    ran("encode", "tiny", "--model", model, "--output", "again")
    assert hybrid("search", "--index", "index", "--query", "new").problem == "model-changed"
    ran("search", "--index", "again", "--query", "new")


def test_a_server_may_round_and_move_but_the_contract_is_that_of_the_index(model: str, server: Server) -> None:
    ran("encode", "tiny", "--model", model, "--output", "index")
    other = Server(lambda body: answer([[round(value, 3) for value in vector(text)] for text in body["input"]]))
    moved = f"{other.url}#some/model"
    ran("search", "--index", "index", "--query", "new", "--model", moved)
    assert other.bodies[-1]["input"] == [PROBE, "new"]
    renamed = hybrid("search", "--index", "index", "--query", "new", "--model", f"{other.url}#other/model")
    assert renamed.is_problem("other-encoder", differences=["model='some/model', not 'other/model'"]), renamed.err
    other.close()


def test_a_file_sends_queries_to_no_server_that_was_not_named(
    model: str, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran("encode", "tiny", "--model", model, "--output", "index")
    calls = len(server.bodies)
    monkeypatch.setenv("HYBRID_CACHE", "another-machine")
    assert hybrid("search", "--index", "index", "--query", "salt").problem == "recorded-model-missing"
    assert len(server.bodies) == calls
    ran("search", "--index", "index", "--query", "salt", "--model", model)
    ran("search", "--index", "index", "--query", "sea")


@pytest.mark.parametrize("damage", [lambda file: file.write_text("no database" * 99), lambda file: file.mkdir()])
def test_a_cache_that_cannot_be_used_is_one_line(model: str, server: Server, damage: Any) -> None:
    open_encoder(model)
    for file in sorted(Path("cache/endpoints").glob("*.sqlite*"), reverse=True):
        file.unlink()
    damage(file)
    assert hybrid("encode", "tiny", "--model", model, "--output", "index").is_problem("cache-unusable", path=str(file))


@pytest.mark.parametrize("name", ["http://127.0.0.1:1/v1", "https://#m", "http://[::1#m"])
def test_a_name_needs_a_url_and_a_model(model: str, name: str) -> None:
    done = hybrid("encode", "tiny", "--model", name, "--output", "index")
    assert done.problem in ("no-such-model", "not-a-url"), done.err


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["encode", "tiny", "--model", "MODEL", "--pooling", "mean"], "option-does-not-apply"),
        (["encode", "tiny", "--model", "MODEL", "--device", "cpu"], "option-does-not-apply"),
        (["encode", "tiny", "--model", "MODEL", "--ray-address", "local"], "option-does-not-apply"),
        (["encode", "tiny", "--model", "MODEL", "--truncate-dim", 25], "out-of-range"),
        (["encode", "tiny", "--model", "minilm", "--max-calls", 1], "option-does-not-apply"),
        (["encode", "tiny", "--model", "MODEL,minilm"], "other-kind"),
        (["auto", "tiny/corpus.parquet", "--model", "MODEL", "--max-steps", 5], "option-does-not-apply"),
        (["train-dense", "examples.parquet", "--model", "MODEL"], ""),
    ],
)
def test_options_of_local_models_do_not_apply(model: str, words: list[Any], problem: str) -> None:
    done = hybrid(*(str(word).replace("MODEL", model) for word in words), "--output", "index")
    assert done.code == 2, done.err
    assert problem in ("", done.problem), done.err


def test_a_retriever_is_composed_updated_and_exported(many: str, server: Server) -> None:
    ran("encode", "many", "--model", many, "--output", "dense")
    index_bm25("many", output="bm25", lucene=False)
    ran("compose", "bm25", "dense", "--output", "retriever")
    ran("search", "--index", "retriever", "--query", "text 7", "--timeout", 5)
    Path("new.jsonl").write_text('{"id": "new", "text": "fresh water in lakes"}\n')
    ran("update", "retriever", "--add", "new.jsonl")
    assert open_retriever("retriever").search("fresh water in lakes", k=1)["docid"].to_list() == ["new"]
    ran("export", "retriever", "--format", "folder", "--output", "shipped")
    assert open_retriever("shipped").search("fresh lakes", k=1)["docid"].to_list() == ["new"]


def test_auto_uses_a_model_behind_an_api(model: str, server: Server) -> None:
    ran("auto", "tiny/corpus.parquet", "--model", model, "--output", "mine")
    assert open_retriever("mine").search("salt in sea water", k=1)["docid"].to_list() == ["salt"]


def test_python_takes_the_name(model: str, server: Server) -> None:
    encoder = open_encoder(model)
    np.testing.assert_allclose(encoder.encode_queries(["sea", "salt", "sea"])[2], vector("sea"), atol=1e-6)
    assert texts_of(server) == [PROBE, PROBE, "sea", "salt"]
    assert Dense(model).index({"a": "salt in sea water", "b": "oxygen"}).search("salt", k=1)["docid"].to_list() == ["a"]
    server.close()
    with raises("server-down", HybridError, value=model):
        encoder.encode_queries(["air"])


@pytest.mark.heavy
def test_the_light_installation_encodes_and_searches(model: str, server: Server, tmp_path: Path) -> None:
    light = Environment(tmp_path / "light")
    done = light.hybrid("encode", "tiny", "--model", model, "--output", "index")
    assert done.returncode == 0, done.stderr
    done = light.hybrid("search", "--index", "index", "--query", "salt in sea water", "-k", 1)
    assert "Table salt" in done.stdout, done.stderr
