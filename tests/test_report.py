"""The command `report`: content of the page and its figures; test_report_page opens it in a browser."""

import gzip
import json
import re
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import vl_convert
from command import Notices, raises, ran
from evaluated import write_run
from report_study import ATTACK, Study

import hybrid_cli.reporting
from hybrid_cli import artifacts, storage
from hybrid_cli.artifacts import Manifest
from hybrid_cli.reporting.tables import pseudo_note
from hybrid_cli.stages.report import report
from hybrid_cli.storage import Kind

MEASURES = ["MRR@10", "R@100"]


@pytest.fixture(scope="module")
def whole(study: Study, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a report that has every section, `report.html`."""
    folder = tmp_path_factory.mktemp("whole")
    report(study.inputs, split="test", output=folder / "report.html")
    return folder


def test_the_script_of_the_charts_is_that_of_vl_convert() -> None:
    script = gzip.decompress(Path(hybrid_cli.reporting.__file__).with_name("vega.js.gz").read_bytes()).decode()
    assert script == vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")


class Page:
    def __init__(self, path: Path):
        self.html = path.read_text("utf-8")
        self.content: dict[str, Any] = self.data("content") or {"specs": {}, "datasets": {}}
        self.sections = re.findall(r'<section id="([^"]+)"', self.html)
        self.text = " ".join(
            unescape(re.sub(r"<(script|style).*?</\1>|<[^>]*>", " ", self.html, flags=re.DOTALL)).split()
        )

    def data(self, name: str) -> Any:
        found = re.search(rf'<script type="application/json" id="{name}">(.*?)</script>', self.html, re.DOTALL)
        return json.loads(found[1]) if found else None

    @property
    def with_lists(self) -> list[dict[str, Any]]:
        return [query for query in self.data("comparison")["queries"] if "lists" in query]

    @property
    def marked(self) -> set[str]:
        documents = [document for query in self.with_lists for document in query["documents"].values()]
        parts = [part for document in documents for part in (*document["title"], *document["snippet"])]
        return {text for text, is_term in parts if is_term}

    def rows(self, figure: str) -> list[dict[str, Any]]:
        spec = self.content["specs"][figure]
        names = [layer["data"]["name"] for layer in spec.get("layer", []) if "data" in layer] or [spec["data"]["name"]]
        return [row for name in dict.fromkeys(names) for row in self.content["datasets"][name]]


def page(inputs: list[Any], folder: Path, **settings: Any) -> Page:
    return Page(report(inputs, output=folder / "report.html", **settings))


def test_the_summary_has_the_findings_in_sentences(tiny: Path, paths: list[Path], tmp_path: Path) -> None:
    shown = page([tiny, *paths], tmp_path, split="test", measure=MEASURES, complement=("dense", "bm25"))
    # MRR@10 of clear is 1, of both others (1/2 + 1 + 1) / 5; dense finds 001, 002 and 004, bm25 001, 002 and 003
    assert "clear has the highest MRR@10, 1.0000. That is .5000 more than bm25" in shown.text
    assert "which is not significant (p = " in shown.text
    assert "dense has a relevant document in its top 10 hits for 3 of 5 (60%) queries, bm25 for 3." in shown.text
    assert "Only dense answers 1 (RoC .33), only bm25 1, neither 1." in shown.text
    assert "An oracle that chooses between the two answers 4 of 5 (80%); clear answers 5." in shown.text
    assert "clear is better than the better of dense and bm25 on 2 queries, worse on 0, and ties on 3." in shown.text


def test_the_first_sentence_names_pseudo_queries(tiny: Path, paths: list[Path], tmp_path: Path) -> None:
    table = pl.read_parquet(tiny / "qrels.test.parquet").to_arrow()
    qrels, made = tmp_path / "qrels.parquet", Manifest(Kind.QRELS, "prepare", {"pseudo_queries": "title"}, {})
    storage.write_parquet(qrels, [table], storage.SCHEMAS[Kind.QRELS], made)
    shown = page([*paths], tmp_path, qrels=qrels, measure=MEASURES)
    first = re.search(r'id="summary".*?<p[^>]*>(.*?)</p>', shown.html, re.DOTALL)
    assert first is not None
    assert first[1].startswith(pseudo_note("title"))
    assert pseudo_note("title") not in page([tiny, *paths], tmp_path / "users", split="test").text


def test_wins_ties_and_losses_are_in_one_row(tiny: Path, paths: list[Path], tmp_path: Path) -> None:
    shown = page([tiny, *paths], tmp_path, split="test", measure=MEASURES, baseline=["bm25"])
    # by query, MRR@10 of bm25 is .5, 1, 1, 0 and 0; that of clear is 1 everywhere
    assert re.search(r"\bclear\b.{,20}\bbm25 3 2 0 \+\.500", shown.text)


def test_the_first_row_compares_the_hybrid_with_bm25_whatever_the_baselines(study: Study, tmp_path: Path) -> None:
    """By the manifests: the fused run is the hybrid, that of the lexical index is BM25."""
    for baseline in (["dense"], ["fused"], None):
        folder = tmp_path / "-".join(baseline or ["none"])
        shown = page(study.inputs, folder, split="test", baseline=baseline or [])
        first = re.search(r"<tbody>\s*<tr><th[^>]*>(.*?)</tr>", shown.html, re.DOTALL)
        assert first is not None
        assert "fused <small>against &lt;b&gt;bm25&lt;/b&gt;</small>" in re.sub(r"<i [^>]*></i>", "", first[1])


def test_every_judged_query_is_compared(tiny: Path, paths: list[Path], tmp_path: Path) -> None:
    shown = page([tiny, *paths], tmp_path, split="test", measure=MEASURES, baseline=["bm25"])
    content = shown.data("comparison")
    asked = dict(pl.read_parquet(tiny / "queries.test.parquet").select("qid", "text").iter_rows())
    assert content["systems"] == ["bm25", "dense", "clear"]
    assert [content["systems"][place] for place in content["first"]] == ["clear", "bm25"]
    # by query, MRR@10 of bm25 is .5, 1, 1, 0 and 0; that of clear is 1 everywhere
    values = sorted((query["values"][0], query["values"][2]) for query in content["queries"])
    assert values == [(0, 1), (0, 1), (0.5, 1), (1, 1), (1, 1)]
    assert all(query["text"] == asked[query["qid"]] for query in content["queries"])
    assert {group["name"] for group in content["groups"]} >= {"words in the query"}
    assert all(len(query["groups"]) == len(content["groups"]) for query in content["queries"])


def test_all_sections_are_present(whole: Path) -> None:
    shown = Page(whole / "report.html")
    expected = ["summary", "measures", "depth", "complement", "queries", "compare", "groups", "training", "memory"]
    expected += ["provenance"]
    assert shown.sections == expected
    assert len(shown.rows("queries-1")) == 7 + 2  # dots, and the ends of the diagonal
    assert {row["model"] for row in shown.rows("training-1")} == {"encoder"}
    assert [row["run"] for row in shown.rows("memory")] == ["<b>bm25</b>", "dense", "fused"]


def test_a_single_run_has_no_comparison(tiny: Path, paths: list[Path], tmp_path: Path) -> None:
    shown = page([tiny, paths[0]], tmp_path, split="test", measure=MEASURES)
    assert shown.sections == ["summary", "measures", "depth", "groups", "absent", "provenance"]
    assert "bm25 has MRR@10 .5000 over 5 judged queries" in shown.text


def test_without_texts_ids_are_shown(tiny: Path, paths: list[Path], tmp_path: Path) -> None:
    qrels = tiny / "qrels.test.parquet"
    shown = page([*paths[:2]], tmp_path, qrels=qrels, measure=MEASURES, complement=("dense", "bm25"))
    assert any("órgãos" in query["documents"] for query in shown.with_lists)
    assert "oxygen in the blood" not in shown.html
    assert [name for name in shown.content["specs"] if name.startswith("groups")] == ["groups-1"]  # by difficulty


def test_equal_runs_are_reported_as_equal(tiny: Path, paths: list[Path], tmp_path: Path) -> None:
    shown = page([tiny, f"one={paths[0]}", f"two={paths[0]}"], tmp_path, split="test", measure=MEASURES)
    assert "two has the same mean." in shown.text
    assert shown.with_lists == []


def test_an_undefined_ratio_is_explained(tiny: Path, paths: list[Path], tmp_path: Path) -> None:
    empty = write_run(tmp_path / "empty.parquet", {"001": ["void"]})
    shown = page([tiny, paths[0], empty], tmp_path, split="test", measure=MEASURES, complement=("empty", "bm25"))
    assert "k = 1, 5, 10, 20, 100: empty" in shown.text
    assert not re.search(r"\bnan\b", shown.text.lower())
    assert [row["run"] for row in shown.rows("venn-at-10") if "size" in row] == ["bm25", "neither"]


def test_answers_replace_qrels(tmp_path: Path) -> None:
    hits = {"one": {"1": ["a", "b"], "2": ["b"]}, "two": {"1": ["b"], "2": ["a"]}}
    paths = [write_run(tmp_path / f"{name}.parquet", rows) for name, rows in hits.items()]
    queries, corpus = tmp_path / "queries.parquet", tmp_path / "corpus.parquet"
    questions = {"qid": ["1", "2"], "text": ["river?", "sea?"], "answers": [["Nile"], ["Nile"]]}
    pl.DataFrame(questions).write_parquet(queries)
    texts = {"docid": ["a", "b"], "title": ["", ""], "text": ["no river", "on the nile."]}
    pl.DataFrame(texts).write_parquet(corpus)
    settings = {"measure": ["acc@1", "acc@2"], "queries": queries, "corpus": corpus, "complement": ("one", "two")}
    shown = page([queries, *paths], tmp_path, **settings)
    assert "depth" in shown.sections
    curve = {(row["run"], row["depth"]): row["recall"] for row in shown.rows("recall-by-depth")}
    assert curve == {("one", 1): 0.5, ("one", 2): 1.0, ("two", 1): 0.5}
    grades = [
        query["grades"].get(hit["docid"]) for query in shown.with_lists for hits in query["lists"] for hit in hits
    ]
    assert not any(query["ranks"] for query in shown.with_lists)
    assert grades.count(1) == 3  # the hits with an answer, in all lists shown


def test_circle_areas_equal_the_counts(whole: Path) -> None:
    from hybrid_cli.reporting.venn import lens

    shown = Page(whole / "report.html")
    scales = set()
    for cutoff in (1, 10, 100):
        drawn = [row for row in shown.rows(f"venn-at-{cutoff}") if "size" in row]
        found = re.search(rf'data-figure="venn-at-{cutoff}".*?<p class="note">(.*?)</p>', shown.html, re.DOTALL)
        assert found is not None
        only, both, other, neither, _ = (int(re.findall(r"\d+", part)[-1]) for part in unescape(found[1]).split(" · "))
        counts = [count for count in (only + both, other + both, neither) if count]
        scales |= {round(row["size"] / count, 6) for row, count in zip(drawn, counts, strict=True)}
        if only + both and other + both:
            one, two = (row["size"] ** 0.5 / 2 for row in drawn[:2])
            shared = lens(one, two, drawn[1]["x"] - drawn[0]["x"]) / (np.pi / 4) / next(iter(scales))
            assert shared == pytest.approx(both, abs=1e-4)
    assert len(scales) == 1


def test_equal_dots_form_a_disc_and_a_single_dot_stays() -> None:
    from hybrid_cli.reporting.sections import spread

    x, y = np.array([0.0] * 500 + [0.5]), np.array([1.0] * 500 + [0.25])
    right, up = spread(x, y)
    assert (right[500], up[500]) == (0, 0)
    distances = np.hypot(right[:500], up[:500])
    assert distances.max() < 0.05
    gaps = np.hypot(right[:500, None] - right[:500], up[:500, None] - up[:500]) + np.eye(500)
    assert gaps.min() > 0.001


def test_long_curves_keep_their_means() -> None:
    from hybrid_cli.reporting.sections import thin_curve

    values = np.random.default_rng(0).normal(size=1000)
    curve = pl.DataFrame({"model": "m", "step": np.arange(1, 1001), "value": values})
    thin = thin_curve(curve, 200)
    assert len(thin) == 200
    assert thin["value"].to_list() == pytest.approx(values.reshape(200, 5).mean(1).tolist())
    assert thin_curve(curve.head(7), 200)["value"].to_list() == pytest.approx(values[:7].tolist())


def test_lists_flag_relevant_documents_and_give_the_ranks_of_others(tiny: Path, tmp_path: Path) -> None:
    hits = ["NA", "null", "1e5", "bm25", "dense", "void", "hamlet", "lungs", "moon landing", "órgãos"]
    first = write_run(tmp_path / "first.parquet", {"001": ["007"], "002": [*hits, "salt"]})
    second = write_run(tmp_path / "second.parquet", {"001": hits, "002": ["salt"]})
    shown = page([tiny, first, second], tmp_path, split="test", measure=["nDCG@10"], relevance_level=2)
    moon, salt = sorted(shown.with_lists, key=lambda query: query["qid"])
    assert (moon["ranks"], salt["ranks"]) == ({"007": [1, None]}, {"salt": [11, 1]})
    assert moon["grades"]["007"] == 2
    assert salt["grades"]["NA"] == 1  # below the level
    assert "void" not in salt["grades"]


def test_words_are_highlighted_by_their_stems(tiny: Path, tmp_path: Path) -> None:
    first = write_run(tmp_path / "first.parquet", {"001": ["007"]})
    second = write_run(tmp_path / "second.parquet", {"001": ["void"]})
    shown = page([tiny, second, first], tmp_path, split="test", measure=MEASURES)
    assert [query["text"] for query in shown.with_lists] == ["what does the moon do to the oceans"]
    assert {"moon", "oceans"} <= shown.marked
    assert not {"the", "to", "of"} & shown.marked


def test_without_java_words_are_highlighted_without_stemming(monkeypatch: pytest.MonkeyPatch, notices: Notices) -> None:
    from hybrid_cli.errors import HybridError
    from hybrid_cli.lexical import analysis
    from hybrid_cli.reporting.sections import analyzer_of

    def refuse(language: str) -> None:
        raise HybridError("no Java 21 or later")

    monkeypatch.setattr(analysis, "Analyzer", refuse)
    assert analyzer_of("de")(["Die Katzen"]) == [["die", "katzen"]]
    assert notices.says("no-java")
    assert analyzer_of("en")(["The cats"]) == [["cat"]]


def test_a_report_is_an_artifact(study: Study, whole: Path, tmp_path: Path, notices: Notices) -> None:
    output = whole / "report.html"
    options = artifacts.read_manifest(output, Kind.REPORT).options
    assert options["complement"] == ["dense", "<b>bm25</b>"]
    assert "answer_match" not in options  # applies to acc@k only
    report(study.inputs, split="test", output=output)
    assert notices.says("up-to-date")
    with raises("output-differs"):
        report(study.inputs, split="test", output=output, show_queries=3)
    again = report(study.inputs, split="test", output=tmp_path / "again.html")
    assert again.read_bytes() == output.read_bytes()


def test_no_text_ends_a_script_element(whole: Path) -> None:
    html = Page(whole / "report.html").html
    assert ATTACK not in html
    head, body = html.split("<body>", 1)
    assert head.count("</head>") == head.count("<script") == head.count("</script>") == 1  # the manifest
    assert body.count("</script>") == 5  # two of data, Vega, our own two
    assert re.search(r"script-src( 'sha256-[^']+'){3}\"", html)


def test_the_command_accepts_all_options(tiny: Path, paths: list[Path], tmp_path: Path) -> None:
    arguments = [tiny, "--split", "test", *paths, "--complement", "dense", "bm25", "-m", "MRR@10,R@100"]
    output = tmp_path / "report.html"
    done = ran("report", *arguments, "--output", output, "--show-queries", 1)
    assert done.says("written", path="report.html", runs=3)
    assert len(Page(output).with_lists) == 1  # of two queries helped; none is hurt


def test_indexes_and_encoders_may_be_named(tiny: Path, study: Study, paths: list[Path], tmp_path: Path) -> None:
    index = [f"bm25={study.lexical_index}", f"clear={study.lexical_index}", f"clear={study.dense_index}"]
    named: dict[str, Any] = {"index": index, "model": [f"mine={study.encoder}"]}
    shown = page([tiny, *paths], tmp_path, split="test", measure=MEASURES, **named)
    sizes = {row["run"]: row["bytes"] for row in shown.rows("memory")}
    dense = sum((study.dense_index / name).stat().st_size for name in ("index.faiss", "docids.parquet"))
    assert sizes["clear"] - sizes["bm25"] == dense
    assert {row["model"] for row in shown.rows("training-1")} == {"mine"}
