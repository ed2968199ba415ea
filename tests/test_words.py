"""Words of all scripts: spans, heads, passages, snippets, marks, attacks, answers."""

# ruff: noqa: RUF001 - punctuation of other scripts

import json
import re
from functools import partial
from itertools import pairwise
from pathlib import Path

import polars as pl
import pytest
import regex
from command import ran
from hypothesis import given
from hypothesis import strategies as st

from hybrid_cli import words
from hybrid_cli.collections import collection
from hybrid_cli.collections.source import passages
from hybrid_cli.draws import draw
from hybrid_cli.evaluation.accuracy import matcher, passage_form
from hybrid_cli.perturbations import edits
from hybrid_cli.reporting.comparison import Marker
from hybrid_cli.reporting.snippets import cells, match_words, snippet, wrap_lines

MIXED = st.text(
    alphabet=st.one_of(
        st.sampled_from("abé1 \n\t.,!()$#'\u3000\u200b\u200d\ufeff\u0301"),
        st.sampled_from("中国人々〇。「」（）、ひらカナーﾊﾞ\u3099㍿𠮷"),
        st.sampled_from("กขที่ำเๆ๑฿ຂຳ\u17d2កខាំ។ကျွန်တော်၊\u1039བོད་ཡིག།ꦲ꦳\ua9c0"),
        st.sampled_from("👨👩\u200d👧🇩🇪\u0600\u0d4e\u1100\u1161한हिन्दी"),
        st.characters(exclude_categories=["Cs"]),
    )
)


def parts(text: str) -> list[str]:
    return [text[begin:end] for begin, end in words.spans(text)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Don't stop, e.g. here (now) -- ok", ["Don't", "stop,", "e.g.", "here", "(now)", "--", "ok"]),
        ("他说：「你好。」然后(走)了。", ["他", "说：", "「你", "好。」", "然", "后", "(走)", "了。"]),
        ("我用Python编程（很好）$100的", ["我", "用", "Python", "编", "程", "（很", "好）", "$100", "的"]),
        ("データは", ["デ", "ー", "タ", "は"]),
        ("ฉันรักภาษาไทยที่สุด 123", ["ฉันรั", "กภา", "ษาไ", "ทยที่", "สุด", "123"]),
        ("ខ្ញុំស្រលាញ់ភាសាខ្មែរ។", ["ខ្ញុំស្រលា", "ញ់ភាសា", "ខ្មែរ។"]),
        ("ខ្ញុំ\u200bស្រលាញ់", ["ខ្ញុំ\u200b", "ស្រលាញ់"]),
        ("ကျွန်တော်က မြန်မာစာ။", ["ကျွန်တော်", "က", "မြန်မာ", "စာ။"]),
        ("བོད་ཡིག་ནི།", ["བོད་", "ཡིག་", "ནི།"]),
        ("한국어 텍스트입니다", ["한국어", "텍스트입니다"]),
        ("हिन्दी भाषा", ["हिन्दी", "भाषा"]),
        ("", []),
    ],
)
def test_words(text: str, expected: list[str]) -> None:
    assert parts(text) == expected


@given(MIXED)
def test_words_are_all_that_is_not_white_space(text: str) -> None:
    assert "".join(parts(text)) == "".join(text.split())
    assert all(begin < end <= after for (begin, end), (after, _) in pairwise([*words.spans(text), (len(text), 0)]))
    assert words.count(text) == len(words.spans(text))
    for letters in (False, True):
        texts = pl.Series([text.replace("\x1c", ""), "one", None])
        expected = [len(words.spans(each, letters=letters)) for each in (texts[0], texts[1])]
        if not set(text) & set("\x1c\x1d\x1e\x1f"):  # white space for Python only
            assert words.counts(texts, letters=letters).to_list() == [*expected, None]


@given(st.text(alphabet=st.characters(max_codepoint=0xDFF)))
def test_scripts_with_spaces_are_counted_by_their_spaces(text: str) -> None:
    assert words.spans(text) == [match.span() for match in re.finditer(r"\S+", text)]


@given(MIXED, st.integers(1, 20))
def test_a_head_is_short_and_whole_characters(text: str, most: int) -> None:
    head = words.head(text, most, "")
    assert text.startswith(head)
    assert len(head) <= most
    assert head == text or text.isspace() or head or not text[: most + 1].strip()


def test_heads_end_between_words() -> None:
    assert words.head("plain english words", 12) == "plain ..."
    assert words.head("东京 很长的文字，没有空格", 8) == "东京 很长的文 ..."
    assert words.head("ที่ที่ที่ที่", 7, "") == "ที่ที่"
    assert words.head("x" * 9, 4) == "xxxx ..."


@given(MIXED)
def test_no_character_is_cut(text: str) -> None:
    """Graphemes of white space with a mark are the exception: a space always ends a word."""
    inside = {place for match in regex.finditer(r"\X", text) for place in range(match.start() + 1, match.end())}
    for begin, end in words.spans(text):
        assert begin not in inside or text[begin - 1].isspace()
        assert end not in inside or text[end].isspace()


@given(MIXED, st.integers(1, 5))
def test_joined_passages_are_the_text(text: str, size: int) -> None:
    found = passages(text, size, size)
    assert "".join("".join(found).split()) == "".join(text.split())
    assert all(words.count(passage) <= size + 1 for passage in found)  # a mark after a space may join the word before
    assert found == [text] or all(passage in text for passage in found)


@pytest.mark.parametrize(
    ("query", "text", "expected"),
    [
        ("データベースの検索した", "これはデータを検索しました。", ["データ", "検索し"]),
        ("水", "海水は水です", ["水", "水"]),
        ("した", "検索した", ["した"]),
        ("ภาษาไทย", "ฉันรักภาษาไทยมาก", ["ภาษาไทย"]),
        ("བོད་ཡིག", "བོད་ཀྱི་ཡིག་", ["བོད", "ཡིག"]),
        ("english only", "english 中文", []),
        ("中文", "english only", []),
    ],
)
def test_parts_of_a_query_are_found(query: str, text: str, expected: list[str]) -> None:
    assert [text[begin:end] for begin, end in words.common(query)(text)] == expected


@given(MIXED, MIXED)
def test_common_parts_are_in_both_texts_and_apart(query: str, text: str) -> None:
    found = words.common(query)(text)
    assert all(end < begin for (_, end), (begin, _) in pairwise(found))
    assert all(0 <= begin < end <= len(text) for begin, end in found)


@pytest.mark.parametrize(
    "text", ["（" * 200_000, "中" * 200_000, "ก" * 200_000, "\u0301" * 200_000 + "中", "་" * 200_000]
)
def test_long_texts_of_one_character_take_linear_time(text: str) -> None:
    assert "".join(parts(text + "中")) == text + "中"


CHINESE = (
    "信息检索是从大量文档中查找相关文档的科学。倒排索引记录每个词语出现的文档。向量模型把查询和文档映射到同一空间。"
)
JAPANESE = (
    "情報検索とは、大量の文書から必要な文書を探す技術です。"
    "転置索引は単語ごとに文書の一覧を持ちます。次に順位を決めます。"
)
THAI = "การค้นคืนสารสนเทศคือศาสตร์ของการค้นหาเอกสาร ดัชนีผกผันบันทึกเอกสารของแต่ละคำ แบบจำลองเวกเตอร์แปลงคำค้น"
TEXTS = {"zh": CHINESE, "ja": JAPANESE, "th": THAI}


@pytest.fixture
def files(workdir: Path) -> None:
    rows = [{"id": name, "title": name, "text": text * 12} for name, text in TEXTS.items()]
    Path("docs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")


def texts_of(path: str) -> dict[str, str]:
    rows = collection.scan(Path(path)).select("docid", "text").collect()
    return dict(rows.iter_rows())


@pytest.mark.usefixtures("files")
def test_passages_have_the_requested_words_and_together_the_text() -> None:
    ran("prepare", "files", "docs.jsonl", "--split-passages", 100, "--output", "made")
    found = texts_of("made")
    for name, text in TEXTS.items():
        own = [passage for docid, passage in found.items() if docid.startswith(f"{name}#")]
        assert [words.count(passage) for passage in own[:-1]] == [100] * (len(own) - 1)
        assert len(own) > 3
        assert "".join("".join(own).split()) == "".join((text * 12).split())


@pytest.mark.parametrize("kind", ["first-sentence", "sentence"])
def test_sentences_become_queries(workdir: Path, kind: str) -> None:
    rows = [{"id": name, "title": "", "text": text} for name, text in TEXTS.items()]
    Path("docs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    ran("prepare", "files", "docs.jsonl", "--pseudo-queries", kind, "--output", "made")
    queries = pl.concat(
        collection.read_queries(Path("made") / f"queries.{split}.parquet") for split in ("train", "dev")
    )
    rest = texts_of("made")
    assert len(queries) == 3
    for qid, query in queries.select("qid", "text").iter_rows():
        name = qid.removeprefix("q:")
        assert query in TEXTS[name]
        assert 3 <= words.count(query) < words.count(TEXTS[name]) / 2
        assert query not in rest[name]


def test_a_snippet_shows_the_part_of_the_query() -> None:
    filler = "这里没有任何相关的内容，只是一些别的文字。" * 30
    text = filler + CHINESE + filler
    shown = snippet(text, "倒排索引", 60)
    assert "倒排索引记录" in shown
    assert shown.startswith("... ")
    assert len(shown) <= 70
    thai = snippet("ข้อความอื่นที่ไม่เกี่ยวข้อง " * 30 + THAI, "ดัชนีผกผัน", 80)
    assert "ดัชนีผกผันบันทึก" in thai
    text = "Salt. " + "Nothing of interest is here. " * 20 + "Sea water holds salt. " + "The end. " * 20
    shown = snippet(text, "salt in sea water", 100)
    assert "Sea water holds salt." in shown
    assert (shown[:4], shown[-4:], len(shown) <= 110) == ("... ", " ...", True)
    assert snippet("short\n text", "absent") == "short text"
    assert snippet("x" * 500, "absent", 100) == "x" * 100 + " ..."


def test_words_of_the_query_are_marked_in_search_and_report() -> None:
    found = match_words("向量模型 index")
    text = "一个向量模型 and an index。"
    assert [text[begin:end] for begin, end in found.spans(text)] == ["向量模型", "index"]
    marker = Marker(lambda texts: [[text.casefold()] for text in texts])
    parts = marker.marked("向量模型 index", text)
    assert "".join(part for part, _ in parts) == text
    assert [part for part, marked in parts if marked] == ["向量模型"]  # the analyzer takes the query for one term
    assert marker.snippet("倒排索引", "别的文字。" * 60 + CHINESE).count("倒排索引") == 1


def test_lines_and_cells_have_the_width_of_the_terminal() -> None:
    from rich.cells import cell_len

    for text in TEXTS.values():
        lines = wrap_lines(text, 40)
        assert "".join("".join(lines).split()) == "".join(text.split())
        assert max(map(cell_len, lines)) <= 40
        assert len(lines) == pytest.approx(cell_len(text) / 40, abs=1.5)
    assert cells(CHINESE, 11) == "信息检索是…"
    assert cells("ที่ที่ที่", 3) == "ที่ที่ที่"
    assert cells("ที่ที่ที่", 2) == "ที่…"


@pytest.mark.parametrize("text", [*TEXTS.values(), "हिन्दी में खोज", "机", "ที่", ""])
def test_attacks_change_words_and_cut_no_character(text: str) -> None:
    known = set(words.characters(text)) | set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
    for seed in range(20):
        changed = edits.edit_words(text, edits.swap_characters, 0.1, partial(draw, seed))
        assert set(words.characters(changed)) <= known
        fewer = edits.edit_words(text, edits.delete_word, 0.1, partial(draw, seed))
        swapped = edits.edit_words(text, edits.swap_words, 0.1, partial(draw, seed))
        shuffled = edits.shuffle(text, partial(draw, seed))
        assert sorted(swapped) == sorted(shuffled) == sorted(text)
        if words.count(text) > 3:
            assert 0.6 < len(fewer) / len(text) < 1
            assert changed != text


def test_answers_are_found_inside_clauses() -> None:
    assert matcher(["倒排索引"])(passage_form(CHINESE))
    assert matcher(["転置索引"])(passage_form(JAPANESE))
    assert matcher(["ดัชนีผกผัน"])(passage_form(THAI))
    assert not matcher(["ดัชนีผกผ"])(passage_form(THAI))  # a letter without its vowel
    assert not matcher(["索引倒排"])(passage_form(CHINESE))
    assert matcher(["GPT 4"])(passage_form("使用GPT 4模型"))
    assert not matcher(["PT 4"])(passage_form("使用GPT 4模型"))
