"""`prepare --pseudo-queries` and `prepare python-docs`: queries extracted from documents, in splits."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from command import Notices, hybrid, raises
from small_artifacts import foreign
from tiny_collection import corpus_of, counts_of, write_lines

from hybrid_cli import artifacts
from hybrid_cli.artifacts import lineage
from hybrid_cli.collections import collection
from hybrid_cli.collections.readers import python_docs
from hybrid_cli.commands import PrepareBeir, PrepareFiles, PreparePythonDocs
from hybrid_cli.stages.prepare import prepare
from hybrid_cli.stages.split import split

REST = "The rest of this document has more than five words"


def beir(folder: Path, *documents: tuple[str, str, str]) -> Path:
    write_lines(folder / "corpus.jsonl", *({"_id": d, "title": title, "text": text} for d, title, text in documents))
    write_lines(folder / "queries.jsonl", {"_id": "real", "text": "a query of a user"})
    write_lines(folder / "qrels/train.tsv", "query-id\tcorpus-id\tscore", f"real\t{documents[0][0]}\t1")
    return folder


def titled(folder: Path, count: int = 40) -> Path:
    return beir(folder, *((f"d{n}", f"Title number {n}", f"{REST}: {n}.") for n in range(count)))


def pseudo(folder: Path, kind: str, **options: Any) -> Path:
    return prepare(PrepareBeir(folder, pseudo_queries=kind, output=folder.parent / "made", **options))  # type: ignore[arg-type]


def queries_of(made: Path) -> dict[str, tuple[str, list[str]]]:
    found: dict[str, tuple[str, list[str]]] = {}
    for name in collection.splits(made):
        qrels = collection.read_qrels(collection.qrels_path(made, name))
        for qid, text, _ in collection.read_queries(collection.queries_path(made, name)).iter_rows():
            found[qid] = (text, qrels.filter(qid=qid)["docid"].to_list())
    return found


def only_cut(tmp_path: Path, kind: str, text: str, **options: Any) -> tuple[str, str]:
    made = pseudo(beir(tmp_path / "beir", ("d", "A title", text)), kind, **options)
    ((query, relevant),) = queries_of(made).values()
    ((_, title, rest),) = corpus_of(made)
    assert (relevant, title) == (["d"], "A title")
    return query, rest


def test_titles_become_queries_and_are_removed_from_the_documents(tmp_path: Path, notices: Notices) -> None:
    folder = beir(
        tmp_path / "beir",
        ("a", "Tides", f"Tides are waves. {REST}."),
        ("untitled", "", f"{REST}."),
        ("short", "Sodium", "Four words are left"),
        ("again", "A long title", f"A long  title\n{REST}."),
    )
    made = pseudo(folder, "title")
    assert queries_of(made) == {"q:a": ("Tides", ["a"])}
    assert corpus_of(made) == [
        ("a", "", f"Tides are waves. {REST}."),
        ("untitled", "", f"{REST}."),
        ("short", "Sodium", "Four words are left"),
        ("again", "A long title", f"A long  title\n{REST}."),
    ]
    reasons = {"no title": 1, "rest of under 5 words": 1, "repeated in the rest": 1}
    assert counts_of(made)["pseudo_queries"]["left_out"] == reasons
    assert notices.says("pseudo-queries", documents=1, left_out=reasons)
    assert notices.says("queries-left-out")
    notices.clear()
    (folder / "documents.jsonl").write_text((folder / "corpus.jsonl").read_text("utf-8"), "utf-8")
    prepare(PrepareFiles([folder / "documents.jsonl"], pseudo_queries="title", output=tmp_path / "files"))
    assert not notices.says("queries-left-out")  # there are none


def test_a_random_sentence_is_removed_once(tmp_path: Path) -> None:
    sentences = [f"Sentence {word} has six words." for word in ("one", "two", "three", "four", "five")]
    text = " ".join([*sentences, "Too short."])
    drawn = set()
    for seed in range(12):
        query, rest = only_cut(tmp_path / str(seed), "sentence", text, seed=seed)
        assert rest == " ".join(each for each in [*sentences, "Too short."] if each != query)
        drawn.add(query)
    assert 2 < len(drawn) <= len(sentences)


def test_the_first_sentence_is_removed_once(tmp_path: Path) -> None:
    query, rest = only_cut(tmp_path, "first-sentence", f"  The first\nsentence is here. {REST}. And  one more.")
    assert query == "The first sentence is here."
    assert rest == f"{REST}. And  one more."


def test_a_sentence_that_occurs_twice_is_not_used(tmp_path: Path) -> None:
    folder = beir(tmp_path / "beir", ("d", "", f"This one is repeated. {REST}. This one is repeated."))
    with raises("no-queries", option="pseudo_queries", value="first-sentence"):
        pseudo(folder, "first-sentence")


@pytest.mark.parametrize(
    "heading",
    ["## Removing files ##", "Removing files\n--------------", "Removing files\n  ====", "== Removing files =="],
)
def test_headings_of_several_formats(tmp_path: Path, heading: str) -> None:
    query, rest = only_cut(tmp_path, "heading", f"An introduction.\n\n{heading}\n\n{REST}.")
    assert (query, rest) == ("Removing files", f"An introduction.\n{REST}.")


def test_headings_of_many_documents_are_not_drawn(tmp_path: Path) -> None:
    documents = [(f"d{n}", "", f"# Parameters\n{REST}.\n# Subject {n}\nMore.") for n in range(11)]
    made = pseudo(beir(tmp_path / "beir", *documents, ("x", "", f"# Parameters\n{REST}.")), "heading")
    assert {text for text, _ in queries_of(made).values()} == {f"Subject {n}" for n in range(11)}
    assert counts_of(made)["pseudo_queries"]["left_out"] == {"only headings of over 10 documents": 1}


def test_documents_with_equal_texts_are_relevant_for_one_query(tmp_path: Path) -> None:
    same = [(f"s{n}", f"same  {'TITLE' if n else 'title'}", f"{REST}: {n}.") for n in range(3)]
    many = [(f"m{n}", "Home", f"{REST}: {n}.") for n in range(11)]
    made = pseudo(beir(tmp_path / "beir", *same, *many), "title")
    assert queries_of(made) == {"q:s0": ("same title", ["s0", "s1", "s2"])}
    assert counts_of(made)["pseudo_queries"]["texts_of_over_10_documents"] == 1
    assert {title for _, title, _ in corpus_of(made)} == {""}


@pytest.mark.parametrize("kind", ["title", "first-sentence", "sentence"])
def test_no_document_is_empty_and_none_has_its_query(tmp_path: Path, tiny: Path, kind: str) -> None:
    before = corpus_of(tiny)
    folder = beir(tmp_path / "beir", *((str(n), title, text) for n, (_, title, text) in enumerate(before)))
    made = pseudo(folder, kind)
    after = {docid: (title, text) for docid, title, text in corpus_of(made)}
    assert len(after) == len(before)
    for query, (docid, *others) in queries_of(made).values():
        _, title, text = before[int(docid)]
        assert not others
        words = Counter(f"{title} {text}".split())
        assert words - Counter(" ".join(after[docid]).split()) == Counter(query.split())
        assert len(after[docid][1].split()) >= 5


def test_the_splits_do_not_overlap_and_have_the_requested_sizes(tmp_path: Path) -> None:
    folder = titled(tmp_path / "beir")
    assert counts_of(pseudo(folder, "title"))["queries"] == {"dev": 8, "train": 32}
    small = pseudo(folder, "title", pseudo_sizes={"train": 10, "dev": 5}, overwrite=True)
    few = {name: set(collection.read_queries(small / f"queries.{name}.parquet")["qid"]) for name in ("train", "dev")}
    assert (len(few["train"]), len(few["dev"]), few["train"] & few["dev"]) == (10, 5, set())
    more = pseudo(folder, "title", pseudo_sizes={"train": 20, "dev": 5}, overwrite=True)
    assert few["train"] < set(collection.read_queries(more / "queries.train.parquet")["qid"])
    only_dev = pseudo(folder, "title", pseudo_sizes={"train": 0, "dev": 30}, overwrite=True)
    assert counts_of(only_dev)["queries"] == {"dev": 30}


def test_the_same_seed_gives_the_same_bytes_and_another_seed_other_queries(tmp_path: Path) -> None:
    folder = titled(tmp_path / "beir")
    one, two, other = (
        prepare(PrepareBeir(folder, pseudo_queries="title", seed=seed, output=tmp_path / name))
        for name, seed in (("one", 42), ("two", 42), ("other", 7))
    )
    files = sorted(path.name for path in one.glob("*.parquet"))
    assert "queries.dev.parquet" in files
    for name in files:
        assert (one / name).read_bytes() == (two / name).read_bytes()
    assert set(collection.read_queries(one / "queries.dev.parquet")["qid"]) != set(
        collection.read_queries(other / "queries.dev.parquet")["qid"]
    )


def test_manifests_and_tables_mark_pseudo_queries(tmp_path: Path) -> None:
    made = pseudo(titled(tmp_path / "beir"), "title")
    for file in ("queries.dev.parquet", "qrels.dev.parquet"):
        assert artifacts.read_manifest(made / file).options["pseudo_queries"] == "title"
    folds = split(made, split=["dev"], folds=2, output=tmp_path / "folds")
    assert lineage.pseudo_queries(folds / "qrels.test-1.parquet") == "title"
    qrels = collection.read_qrels(made / "qrels.dev.parquet")
    for name, score in (("one", 1.0), ("two", 2.0)):
        hits = qrels.select("qid", "docid").insert_column(2, qrels["relevance"].cast(float).alias("score") * score)
        foreign(tmp_path / f"{name}.parquet", hits.with_columns(rank=1).select("qid", "docid", "rank", "score"))
    runs = tmp_path / "one.parquet", tmp_path / "two.parquet"
    note = "Measured on pseudo-queries (title), not on queries of users."
    assert note in hybrid("evaluate", made, "--split", "dev", *runs).out
    assert (
        json.loads(hybrid("evaluate", made, "--split", "dev", *runs, "--format", "json").out)["pseudo_queries"]
        == "title"
    )
    tuned = hybrid("fuse", *runs, "--tune", "--qrels", made, "--split", "dev", "--output", tmp_path / "weights.json")
    assert note in tuned.out
    assert json.loads((tmp_path / "weights.json").read_text())["pseudo_queries"] == "title"


MODULE = '''
"""A module."""
def plain(x):
    """Return the plain value of the argument.

    One two three four five six seven eight nine ten eleven.
    """
def copied(x):
    """Return the plain value of the argument.

    One two three four five six seven eight nine ten eleven.
    """
def other(x):
    """Return the plain
    value of the argument.

    Another text of words: three four five six seven eight nine ten eleven.
    """
def signed(x):
    """signed(x, out=None) -> array

    Sign the argument with a key.

    One two three four five six seven eight nine ten eleven.
    """
def _private(x):
    """Return the private value of the argument.

    One two three four five six seven eight nine ten eleven.
    """
def short(x):
    """Too short.

    One two three four five six seven eight nine ten eleven.
    """
def bare(x):
    """Return something without saying more."""
class Thing:
    """Hold a thing of some kind.

    One two three four five six seven eight nine ten eleven.
    """
    if True:
        def method(self):
            """Do something to the thing.

            One two three four five six seven eight nine ten eleven.
            """
raise RuntimeError("this module must not be run")
'''


def docs_of(package: str, output: Path) -> PreparePythonDocs:
    return PreparePythonDocs(package=[package], output=output)


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    root = tmp_path / "sources" / "documented_package"
    write_lines(root / "__init__.py", "raise RuntimeError")
    write_lines(root / "_inner.py", MODULE)
    write_lines(root / "tests" / "test_inner.py", MODULE)
    write_lines(root / "broken.py", "def (:")
    monkeypatch.syspath_prepend(root.parent)
    return root.name


def test_first_paragraphs_become_queries_and_the_rest_documents(tmp_path: Path, package: str) -> None:
    made = prepare(docs_of(package, tmp_path / "made"))
    prefix = f"{package}._inner"
    names = [row[0].removeprefix(prefix + ".") for row in corpus_of(made)]
    assert names == ["Thing", "Thing.method", "copied", "other", "signed"]
    assert all(docid == title for docid, title, _ in corpus_of(made))
    assert corpus_of(made)[0][2] == "One two three four five six seven eight nine ten eleven."
    queries, qrels = (
        pl.concat([read(path) for path in sorted(made.glob(pattern))])
        for read, pattern in ((collection.read_queries, "queries.*"), (collection.read_qrels, "qrels.*"))
    )
    expected = {"Hold a thing of some kind.", "Do something to the thing.", "Return the plain value of the argument."}
    expected |= {"Sign the argument with a key."}
    assert set(queries["text"]) == expected
    shared = qrels.filter(pl.col("qid") == f"q:{prefix}.copied")["docid"].to_list()
    assert shared == [f"{prefix}.copied", f"{prefix}.other"]
    assert not set(queries["qid"]) & set(names)


def test_the_split_is_seventy_ten_twenty_and_depends_on_the_seed() -> None:
    splits = [python_docs.split_of(f"q{number}", 42) for number in range(10_000)]
    for name, fraction in (("train", 0.7), ("dev", 0.1), ("test", 0.2)):
        assert splits.count(name) / len(splits) == pytest.approx(fraction, abs=0.02)
    assert splits != [python_docs.split_of(f"q{number}", 43) for number in range(10_000)]
