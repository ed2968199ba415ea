"""`search --context`: parts of hits for a prompt, within a number of tokens, each with its place."""

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from command import hybrid, raises
from hypothesis import given
from hypothesis import strategies as st

from hybrid_cli import BM25, open_index
from hybrid_cli.collections.source import passages
from hybrid_cli.commands.data import PrepareFiles
from hybrid_cli.runs.context import context, tokens_of
from hybrid_cli.stages.index_bm25 import index_bm25
from hybrid_cli.stages.prepare import prepare

LONG = " ".join(f"w{number}" for number in range(250)) + " a needle in the hay " + " ".join(f"v{n}" for n in range(400))
QUERY = "the needle"


def cost(parts: pl.DataFrame) -> int:
    """The tokens of all parts and of the title of each document."""
    return int(parts["tokens"].sum()) + sum(map(tokens_of, parts.unique("docid")["title"].fill_null("")))


def test_the_part_around_the_words_of_the_query_comes_first() -> None:
    index = BM25().index({"long": LONG, "short": "A needle is short."})
    parts = index.context(QUERY, tokens=10_000)
    assert set(parts["docid"]) == {"long", "short"}
    (row,) = parts.filter(docid="long").iter_rows(named=True)
    assert row["place"] == "words 1 to 500"  # the third hundred, and two more on each side
    assert "needle" in row["text"]
    assert row["text"] in LONG
    (less,) = index.context(QUERY, tokens=250, k=1, filter=None).iter_rows(named=True)
    assert less["docid"] == "short" or less["place"] == "words 201 to 300"


@given(
    st.lists(st.text(st.sampled_from("ab 日本é\n."), max_size=900), min_size=1, max_size=4),
    st.integers(1, 700),
    st.lists(st.text(st.sampled_from("ab日本"), max_size=9), min_size=4, max_size=4),
)
def test_parts_fit_and_are_at_their_places(texts: list[str], tokens: int, titles: list[str]) -> None:
    rows = {"docid": [f"d{n}" for n in range(len(texts))], "title": titles[: len(texts)], "text": texts}
    hits = pl.DataFrame(rows, schema_overrides=dict.fromkeys(rows, pl.String))
    parts = context(hits, "ab 日本", tokens, lambda docids: None)
    assert cost(parts) <= tokens
    assert parts["docid"].unique(maintain_order=True).is_sorted()
    for part in parts.iter_rows(named=True):
        text = texts[int(part["docid"][1:])]
        assert part["text"] in text
        assert part["tokens"] == tokens_of(part["text"])
        if part["place"] == "whole document" and len(parts) > 1:
            assert part["text"] == text.strip()


@pytest.mark.parametrize("stride", [40, 30])
@pytest.mark.parametrize("group", ["max", "none"])
def test_passages_are_joined_with_their_neighbors(tmp_path: Path, stride: int, group: str) -> None:
    (tmp_path / "rows.jsonl").write_text(json.dumps({"docid": "long", "text": LONG, "year": 7}))
    more: dict[str, Any] = {"split_passages": 40, "passage_stride": stride, "metadata": ["all"]}
    prepare(PrepareFiles([tmp_path / "rows.jsonl"], output=tmp_path / "collection", **more))
    index_bm25(tmp_path / "collection", lucene=False, output=tmp_path / "bm25")
    words = "search", "--index", tmp_path / "bm25", "--query", QUERY, "--format", "json", "--group", group
    done = hybrid(*words, "--context", 5000, "--hits", 1)
    (part,) = json.loads(done.out)["context"]
    whole = open_index(tmp_path / "bm25").search(QUERY, 1)["passage"][0]
    number = int(whole.partition("#")[2])
    assert (part["docid"], part["place"]) == ("long", f"passages {number - 2} to {number + 2}")
    assert part["text"] in LONG
    cut = passages(LONG, 40, stride)
    assert all(text in part["text"] for text in cut[number - 2 : number + 3])
    assert part["metadata"] == {"year": 7}
    few = json.loads(hybrid(*words, "--context", 100, "--hits", 1).out)["context"]
    assert [each["place"] for each in few] == [f"passage {number}"]
    text = hybrid(*words[:5], "--context", 100, "--hits", 1).out
    assert f"[1] [long: passage {number}]" in text


def test_the_estimate_is_more_than_a_tokenizer_counts() -> None:
    from transformers import AutoTokenizer

    from hybrid_cli.encoders.contract import minilm_folder

    tokenizer = AutoTokenizer.from_pretrained(minilm_folder())
    docs = Path(__file__).parent.parent / "docs"
    for page in docs.glob("*.md"):
        text = page.read_text("utf-8")
        assert len(tokenizer(text, verbose=False)["input_ids"]) <= 1.05 * tokens_of(text), page.name


def test_unusable_values_and_lost_texts_are_refused(tiny_runs: Path) -> None:
    index = BM25().index(["salt", "water"])
    with raises("invalid-depth"):
        index.context("salt", tokens=0)
    assert index.context("nothing").is_empty()
    assert index.context("salt", tokens=1).height <= 1
    assert hybrid("search", "--index", tiny_runs / "bm25", "--query", "salt", "--context", 0).is_problem("out-of-range")
