"""Commands on texts in scripts without spaces: passages, pseudo-queries, snippets, marks, attacks, answers, masks."""

# ruff: noqa: RUF001 - punctuation of other scripts

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import polars as pl
import pytest
from command import hybrid

from hybrid_cli import words
from hybrid_cli.collections import collection
from hybrid_cli.draws import draw
from hybrid_cli.evaluation.accuracy import matcher, passage_form
from hybrid_cli.perturbations import edits
from hybrid_cli.reporting.compare import Marker
from hybrid_cli.reporting.snippets import cells, match_words, snippet, wrap_lines

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
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rows = [{"id": name, "title": name, "text": text * 12} for name, text in TEXTS.items()]
    Path("docs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")


def texts_of(path: str) -> dict[str, str]:
    rows = collection.scan(Path(path)).select("docid", "text").collect()
    return dict(rows.iter_rows())


@pytest.mark.usefixtures("files")
def test_passages_have_the_requested_words_and_together_the_text() -> None:
    assert hybrid("prepare", "files", "docs.jsonl", "--split-passages", 100, "--output", "made").code == 0
    found = texts_of("made")
    for name, text in TEXTS.items():
        own = [passage for docid, passage in found.items() if docid.startswith(f"{name}#")]
        assert [words.count(passage) for passage in own[:-1]] == [100] * (len(own) - 1)
        assert len(own) > 3
        assert "".join("".join(own).split()) == "".join((text * 12).split())


@pytest.mark.parametrize("kind", ["first-sentence", "sentence"])
def test_sentences_become_queries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.chdir(tmp_path)
    rows = [{"id": name, "title": "", "text": text} for name, text in TEXTS.items()]
    Path("docs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    done = hybrid("prepare", "files", "docs.jsonl", "--pseudo-queries", kind, "--output", "made")
    assert done.code == 0, done.err
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
