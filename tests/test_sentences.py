"""Sentences as training queries: segmentation, quotas, and seeded draws."""

# ruff: noqa: RUF001 - punctuation of other scripts

from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from small_artifacts import open_output, write_corpus

from hybrid_cli.collections.options import QueriesFrom
from hybrid_cli.collections.sentences import Sentences, quota, split, word_count, word_counts
from hybrid_cli.storage import SCHEMAS, Kind

NUMERALS = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]


def passage(sentences: int, about: str = "foxes") -> str:
    return " ".join(f"Number {NUMERALS[n]} of these {about} runs over the fields." for n in range(sentences))


def corpus_of(path: Path, rows: list[tuple[str, str, str]]) -> Path:
    table = pa.table([list(column) for column in zip(*rows, strict=True)], schema=SCHEMAS[Kind.CORPUS])
    open_output(path, kind=Kind.CORPUS, overwrite=True).write([table])
    return path


def drawn(corpus: Path, selection: QueriesFrom, seed: int = 42, at_once: int = 1024, **options: Any) -> pl.DataFrame:
    return pl.concat(Sentences(corpus, selection, seed, **options).blocks(at_once))


QUOTAS = {1: "111111", 3: "211111", 5: "421111", 6: "522111", 9: "843221", 10: "843221"}  # of six passages


@pytest.mark.parametrize("sentences", QUOTAS)
def test_the_golden_quotas_are_drawn(tmp_path: Path, sentences: int) -> None:
    """Two titles with alternating passages."""
    expected = list(map(int, QUOTAS[sentences]))
    assert [quota(sentences, position) for position in range(6)] == expected
    rows = [(f"{title}{n}", title, passage(sentences)) for n in range(6) for title in ("A", "B")]
    found = drawn(corpus_of(tmp_path / "corpus.parquet", rows), "sampled")
    counts = dict(found.group_by("source").len().iter_rows())
    assert [counts[f"A{n}"] for n in range(6)] == [counts[f"B{n}"] for n in range(6)] == expected
    assert found["text"].is_in([sentence + "." for sentence in passage(sentences).rstrip(".").split(". ")]).all()
    assert found["qid"].is_unique().all()


def test_a_quota_is_at_most_the_number_of_sentences() -> None:
    assert [quota(0, position) for position in range(4)] == [0, 0, 0, 0]
    assert all(1 <= quota(n, position) <= n for n in range(1, 50) for position in range(50))


def test_documents_without_a_title_have_quotas_of_their_own(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "corpus.parquet", [passage(5, "foxes"), passage(5, "hares")])
    assert drawn(corpus, "sampled").group_by("source", maintain_order=True).len()["len"].to_list() == [4, 4]


@pytest.mark.parametrize("selection", ["all", "sampled", "cropped"])
def test_the_count_is_the_number_of_queries(tiny: Path, selection: QueriesFrom) -> None:
    sentences = Sentences(tiny, selection, 7)
    found = pl.concat(sentences.blocks())
    assert sentences.count()["queries"] == len(found) > 0
    assert found["row"].to_list() == sorted(found["row"])


def test_crops_have_the_lengths_of_questions_but_at_least_three_words(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "corpus.parquet", [passage(10)] * 30)
    assert set(word_counts(drawn(corpus, "cropped", lengths=[1, 5, 400])["text"])) == {3, 5, 9}
    assert set(word_counts(drawn(corpus, "cropped")["text"])) == set(range(3, 10))
    assert not drawn(corpus, "sampled", 1).equals(drawn(corpus, "sampled", 2)), "another seed draws others"


def test_all_sentences_are_in_order_with_white_space_folded(tmp_path: Path) -> None:
    rows = [
        ("a#1", "A title of four words", "The first\n  sentence here. Mr. Fox has\ta second one?\n\nShort one."),
        ("b", "Nothing", " \n"),
        ("c", "", "Only. Two words. ----- --- ---"),
        ("d", "", "A last sentence without a stop"),
    ]
    corpus = corpus_of(tmp_path / "corpus.parquet", rows)
    assert drawn(corpus, "all").rows() == [
        ("a#1#1", "The first sentence here.", "a#1", 0),
        ("a#1#2", "Mr. Fox has a second one?", "a#1", 0),
        ("d#1", "A last sentence without a stop", "d", 3),
    ]
    expected = {"documents": 4, "empty_documents": 2, "sentences": 3, "short_sentences": 3, "queries": 3}
    assert Sentences(corpus, "all", 0).count() == expected


def test_samples_are_sentences_and_crops_are_parts_of_samples(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "corpus.parquet", [passage(10, about) for about in ("foxes", "hares", "owls")])
    whole, sample, crops = (drawn(corpus, selection) for selection in ("all", "sampled", "cropped"))
    assert len(sample.join(whole, on=["qid", "text", "source", "row"])) == len(sample) < len(whole)
    assert crops["qid"].to_list() == sample["qid"].to_list()
    assert all(f" {crop} " in f" {text} " for crop, text in zip(crops["text"], sample["text"], strict=True))


def test_words_with_a_letter_are_counted_in_every_script() -> None:
    texts = ["你好", "np.random.rng(1) -- __ a-b", "ทดสอบ x", "", "日本 é"]
    assert word_counts(pl.Series(texts)) == [word_count(text) for text in texts] == [2, 2, 3, 0, 3]


def test_a_language_has_its_own_sentence_marks(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "corpus.parquet", ["你好世界。今天天气很好。"])
    assert drawn(corpus, "all", language="zh")["text"].to_list() == ["你好世界。", "今天天气很好。"]
    assert word_counts(drawn(corpus, "cropped", language="zh", lengths=[3])["text"]) == [3] * 2


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("「元気ですか？」と言った。はい。", ["「元気ですか？」", "と言った。", "はい。"]),
        ("สวัสดีครับ ผมชื่อจอห์น  คุณล่ะ Go 3", ["สวัสดีครับ ", "ผมชื่อจอห์น  ", "คุณล่ะ Go 3"]),
        ("ສະບາຍດີ ຂ້ອຍຊື່ຈອນ", ["ສະບາຍດີ ", "ຂ້ອຍຊື່ຈອນ"]),
        ("ខ្ញុំស្រលាញ់។ ភាសាខ្មែរ៕ ច", ["ខ្ញុំស្រលាញ់។ ", "ភាសាខ្មែរ៕ ", "ច"]),
        ("ကျွန်တော်။ မြန်မာစာ။", ["ကျွန်တော်။ ", "မြန်မာစာ။"]),
        ("བོད་ཡིག་ནི། སྐད་ཡིག །རེད། །", ["བོད་ཡིག་ནི། ", "སྐད་ཡིག །", "རེད། །"]),
        ("यह है। वह है।", ["यह है। ", "वह है।"]),
        ("ما هذا؟ هذا كتاب.", ["ما هذا؟ ", "هذا كتاب."]),
    ],
)
def test_the_marks_of_all_scripts_end_a_sentence(text: str, sentences: list[str]) -> None:
    assert split(text) == sentences


@given(st.text(alphabet=st.one_of(st.characters(), st.sampled_from("ก ็ຂ។།。 .\n"))))
def test_the_sentences_of_a_text_are_the_text(text: str) -> None:
    assert "".join(split(text)) == text


TEXTS = st.lists(st.integers(0, 10).map(passage), min_size=1, max_size=8)


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(texts=TEXTS, selection=st.sampled_from(["sampled", "cropped"]), at_once=st.integers(1, 9), data=st.data())
def test_a_draw_depends_on_seed_and_document_only(
    tmp_path: Path, texts: list[str], selection: QueriesFrom, at_once: int, data: st.DataObject
) -> None:
    rows = [(f"d{n}", "", text) for n, text in enumerate(texts)]
    first = drawn(corpus_of(tmp_path / "corpus.parquet", rows), selection)
    order = data.draw(st.permutations(rows))
    again = drawn(corpus_of(tmp_path / "other.parquet", order), selection, at_once=at_once)
    columns = ["qid", "text", "source"]
    assert first.select(columns).sort("qid").equals(again.select(columns).sort("qid"))
