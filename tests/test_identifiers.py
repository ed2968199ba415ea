"""The parts of names of program code are indexed with the names, by every reader of an index; analyzers are plugins."""

import json
from pathlib import Path

import polars as pl
import pytest
from command import hybrid, raises, ran, refused
from served import Served
from small_artifacts import lucene_run
from test_lucene import as_queries, assert_equal_runs, corpus_file

from hybrid_cli import BM25, artifacts, open_index, plugins, words
from hybrid_cli.artifacts.opening import open_bm25
from hybrid_cli.lexical import analyze
from hybrid_cli.lexical.options import IDENTIFIERS
from hybrid_cli.stages.index_bm25 import index_bm25
from hybrid_cli.stages.update import update

ROWS = [
    ("a", "", "def getUserById(self): return self.parseHTMLResponse()"),
    ("b", "", "STREAM_MCAST_DEST is set by the pool"),
    ("c", "", "foo.bar_baz opens a ConnectionPool"),
    ("d", "", "the user of a response"),
]
QUERIES = ["user by id", "html response", "mcast destination", "connection pools", "bar_baz", "getUserById", "baz"]


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("getUserById", "get User By Id"),
        ("parseHTMLResponse", "parse HTML Response"),
        ("STREAM_MCAST_DEST", "STREAM MCAST DEST"),
        ("ConnectionPool", "Connection Pool"),
        ("foo.bar_baz", "foo bar_baz bar baz"),
        ("parseHTML5Page", "parse HTML5 Page"),
        ("numpy.random.RandomState", "numpy random RandomState Random State"),
        ("__init__ COVID-19 e.g. U.S.A. 3.14 utf8", ""),
    ],
)
def test_names_have_parts(name: str, parts: str) -> None:
    assert [part for _, own in words.compound_names(name) for part in own] == parts.split()
    assert words.with_name_parts(name).split() == [*name.split(), *parts.split()]


def first_hit(text: str) -> str:
    return str(json.loads(text)["hits"][0]["docid"])


def served_hit(index: Path | str, query: str, *words: object) -> str:
    with Served(index, *words) as server:
        found = server.ask("POST", "/api/search", {"queries": [{"text": query}]}).json
        return str(found["results"][0]["candidates"][0]["docid"])


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return corpus_file(tmp_path_factory.mktemp("code"), ROWS)


@pytest.fixture(scope="module")
def index(corpus: Path) -> Path:
    return index_bm25(corpus, output=corpus.parent / "bm25", identifiers=True)


def test_parts_and_exact_forms_are_found(corpus: Path, index: Path, tmp_path: Path) -> None:
    found = open_bm25(index).search(as_queries(QUERIES), 10)
    hits = {qid: own["docid"].to_list() for (qid,), own in found.group_by("qid", maintain_order=True)}
    assert [hits[f"q {number}"][0] for number in range(len(QUERIES))] == ["a", "a", "b", "c", "c", "a", "c"]
    plain = index_bm25(corpus, output=tmp_path / "plain")
    assert open_bm25(plain).search(as_queries(["html", "baz"]), 10).is_empty()
    assert analyze(["getUserById"], "en" + IDENTIFIERS) == [["getuserbyid", "get", "user", "id"]]


def test_every_reader_of_the_index_has_its_analysis(corpus: Path, index: Path, tmp_path: Path) -> None:
    queries = as_queries(QUERIES)
    found = open_bm25(index).search(queries, 10)
    assert_equal_runs(found, lucene_run(index, queries, 10, language="en" + IDENTIFIERS))
    in_memory = BM25(identifiers=True).index(pl.read_parquet(corpus)).search(queries, 10)
    assert_equal_runs(found, in_memory.select(found.columns))
    terms = open_index(index).explain("html of getUserById", "a")["term"].to_list()
    assert {"html", "getuserbyid", "user"} <= set(terms)
    (tmp_path / "ids.txt").write_text("d\n")
    smaller = update(index, remove=tmp_path / "ids.txt", output=tmp_path / "smaller")
    more = corpus_file(tmp_path, [("e", "", "newHTMLParser"), ROWS[3]])
    added = update(smaller, add=more, output=tmp_path / "more")
    assert open_bm25(added).search(as_queries(["html"]), 9)["docid"].to_list() == ["e", "a"]
    shards = index_bm25(corpus, output=tmp_path / "shards", identifiers=True, shards=2)
    for engine in ([], ["--rm3"]):
        done = hybrid("search", "--index", index, "--query", "html", *engine, "--format", "json")
        assert first_hit(done.out) == "a", done.err
    assert hybrid("search", "--index", shards, "--query", "html", "--format", "json").out.count('"a"')
    assert served_hit(index, "html") == "a"


def test_an_index_records_its_analysis(corpus: Path, index: Path, tmp_path: Path) -> None:
    recorded = artifacts.read_manifest(index).options
    assert (recorded["language"], recorded["identifiers"]) == ("en", True)
    with raises("output-differs", path="bm25"):
        index_bm25(corpus, output=index)
    index_bm25(corpus, output=tmp_path / "k1", identifiers=True)
    changed = index_bm25(corpus, output=tmp_path / "k1", identifiers=True, k1=1.2)
    assert open_bm25(changed).search(as_queries(["html"]), 9)["docid"].to_list() == ["a"]


def test_what_cannot_have_parts_is_refused(corpus: Path, index: Path, workdir: Path) -> None:
    words = ["index-bm25", corpus, "--identifiers", "--language", "pl", "--output", "pl"]
    refused(*words, problem="option-does-not-apply", option="identifiers")
    exported = ["export", index, "--format", "opensearch", "--output", "out"]
    refused(*exported, problem="other-language", option="format")


def test_auto_proposes_parts_where_names_are_frequent(workdir: Path) -> None:
    for name, text in (("code", "calls getUserById of foo.bar_baz"), ("text", "a text about the sea")):
        (workdir / f"{name}.tsv").write_text(f"d1\t{text}\n")
        done = hybrid("auto", f"{name}.tsv", "--output", f"out-{name}")
        assert done.says("identifiers-proposed") == (name == "code"), done.err
    done = ran("auto", "code.tsv", "--identifiers", "--output", "out-parts")
    assert artifacts.read_manifest(Path("out-parts/bm25")).options["identifiers"]
    assert not done.says("identifiers-proposed")


ANALYZER = '''
from hybrid_cli import plugins

@plugins.register("analyzers", "trigrams")
def trigrams(text):
    """Return all runs of three letters of the words of a text."""
    return [word[at : at + 3] for word in text.lower().split() for at in range(max(1, len(word) - 2))]
'''


@pytest.fixture
def trigrams(workdir: Path) -> Path:
    (workdir / "mine.py").write_text(ANALYZER)
    (workdir / "corpus.tsv").write_text("d1\tunbelievable\nd2\tsea\n")
    ran("prepare", "files", "corpus.tsv", "--output", "data")
    made = ["index-bm25", "data", "--language", "trigrams", "--plugin", "mine.py", "--output", "bm25"]
    refused(*made[:4], "--output", "bm25", problem="unknown-choice", option="language")
    ran(*made)
    return workdir / "mine.py"


def test_an_analyzer_of_a_plugin_is_used_by_every_reader(trigrams: Path) -> None:
    search = ["search", "--index", "bm25", "--query", "believer", "--format", "json"]
    assert first_hit(ran(*search, "--plugin", trigrams).out) == "d1"
    refused(*search[:-2], problem="missing-plugin", name="trigrams")
    refused(
        *search[:-2], "--engine", "lucene", "--plugin", trigrams, problem="option-does-not-apply", option="language"
    )
    Path("ids.txt").write_text("d2\n")
    ran("update", "bm25", "--remove", "ids.txt", "--output", "smaller", "--plugin", trigrams)
    assert served_hit("bm25", "believer", "--plugin", trigrams) == "d1"
    with plugins.load_files([trigrams]):
        assert open_index("smaller").search("believer", 9)["docid"].to_list() == ["d1"]
        found = BM25(language="trigrams", identifiers=True).index({"a": "unbelievable", "b": "getSea"})
        assert found.search("seas", 9)["docid"].to_list() == ["b"]
    with raises("unknown-choice", option="language"):
        BM25(language="trigrams").index(["text"])


@pytest.mark.parametrize("result", ["None", "[1]", "1 / 0"])
def test_an_analyzer_that_fails_is_named(workdir: Path, result: str) -> None:
    lines = 'import re\nfrom hybrid_cli import plugins\n\n@plugins.register("analyzers", "bad")\ndef bad(text):\n'
    Path("bad.py").write_text(f'{lines}    """Fail."""\n    return {result}\n')
    with plugins.load_files(["bad.py"]), raises("plugin-fails", name="bad", group="analyzers"):
        BM25(language="bad").index(["text"])
