"""The served page in a browser: search, fusion under the slider, explanation, filters and comparison."""

import random
import re
import signal
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from browsing import Tab
from report_study import ATTACK
from served import Served
from tiny_collection import TINY_DOCUMENTS, TINY_JUDGEMENTS, TINY_QUERIES, write_lines

from hybrid_cli import evaluate, open_retriever
from hybrid_cli.commands import PrepareFiles
from hybrid_cli.evaluation.complementarity import rbo
from hybrid_cli.fusion import lists
from hybrid_cli.fusion.methods import METHODS, FusionRecipe
from hybrid_cli.fusion.options import Missing, Normalization
from hybrid_cli.stages.compose import compose
from hybrid_cli.stages.encode import encode
from hybrid_cli.stages.index_bm25 import index_bm25
from hybrid_cli.stages.prepare import prepare

pytestmark = pytest.mark.slow
WIDTHS = (390, 768, 1280, 1600)
QUERY = "salt in sea water"
MINUS = "\u2212"
NAMES = ("retriever", "shallow")
OFFERED = ["weighted-sum", "minmax", "zscore", "rrf", "dbsf", "combmnz", "borda", "isr"]
RULES: list[tuple[Missing | None, Normalization | None]] = [(None, None), ("min", None), ("zero", None)]
RULES += [("ignore", None), ("drop", None), ("exact", None), ("zero", "l2"), ("zero", "sum"), ("ignore", "max")]
RULES += [("min", "rank")]
WEIGHTS = [(0.3, 0.7), (1.0, 0.0), (0.0, 1.0), (1.5, 1.5)]
COPIES = 4  # of each document, of which two have the same text


def rows() -> list[dict[str, Any]]:
    """Return the tiny documents several times, with metadata, and one with HTML."""
    places = ["Oslo", "O'Brien", "Łódź"]
    every = [
        {
            "id": docid if copy == 0 else f"{docid}/{copy}",
            "title": title if copy < 2 else f"{title}, part {copy}",
            "text": text if copy < 2 else " ".join(text.split()[copy:]) or "Nothing.",
            "year": 2000 + number + copy,
            "place": places[(number + copy) % 3],
            "day": f"20{10 + number}-0{copy + 1}-15",
            "checked": copy % 2 == 0,
        }
        for number, (docid, title, text) in enumerate(TINY_DOCUMENTS)
        for copy in range(COPIES)
    ]
    hostile = {"id": "a<b>&'\"", "title": ATTACK, "text": f"salt {ATTACK} sea water </script>"}
    return [*every, hostile | {"year": 1999, "place": "O'Brien", "day": "2009-01-01", "checked": True}]


@pytest.fixture(scope="module")
def folder(tiny_bert: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("page")
    write_lines(folder / "docs.jsonl", *rows())
    write_lines(folder / "queries.jsonl", *({"id": qid, "text": text} for qid, text in TINY_QUERIES["test"]))
    write_lines(
        folder / "qrels.tsv", "qid\tdocid\trelevance", *("\t".join(map(str, row)) for row in TINY_JUDGEMENTS["test"])
    )
    judged: dict[str, Any] = {
        "queries": [f"test={folder / 'queries.jsonl'}"],
        "qrels": [f"test={folder / 'qrels.tsv'}"],
    }
    columns = ["year", "place", "day", "checked"]
    prepare(PrepareFiles([folder / "docs.jsonl"], metadata=columns, output=folder / "data", **judged))
    indexes = [
        index_bm25(folder / "data", output=folder / "bm25", threads=1),
        encode(folder / "data", model=str(tiny_bert), output=folder / "dense", dtype="fp32", threads=1),
    ]
    compose(indexes, output=folder / "retriever")
    compose(indexes, method="minmax", depth=3, output=folder / "shallow")
    return folder


def serving(folder: Path, *words: object, port: int = 0) -> Served:
    return Served(folder / "retriever", "--compare", folder / "shallow", *words, port=port)


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Served]:
    words = ("--collection", folder / "data", "--split", "test", "--judgments", folder / "judgments.jsonl")
    with serving(folder, *words) as running:
        yield running


@pytest.fixture
def tab(browser: Any, server: Served) -> Iterator[Tab]:
    tab = Tab(browser, server.url)
    yield tab
    assert tab.faults == []
    tab.context.close()


def until(tab: Tab, expression: str) -> None:
    """Wait until an expression is true; `wait_for_function` evaluates text, which the policy of the page forbids."""
    for _ in range(300):
        if tab.page.evaluate(expression):
            return
        tab.page.wait_for_timeout(100)
    raise AssertionError(expression)


def searched(tab: Tab, fragment: str) -> None:
    tab.open(fragment)
    tab.page.wait_for_selector(".columns .hit", state="attached")
    tab.page.wait_for_selector(".measure .number")


def column(tab: Tab, system: str) -> list[str]:
    hits = tab.page.query_selector_all(f'.column[data-system="{system}"] .hit')
    return [str(hit.get_attribute("data-docid")) for hit in hits]


def shown(tab: Tab, expected: set[str]) -> None:
    for _ in range(300):
        if set(column(tab, "hybrid")) == expected:
            return
        tab.page.wait_for_timeout(100)
    assert set(column(tab, "hybrid")) == expected


def moved(tab: Tab, share: float) -> None:
    tab.page.evaluate(
        "share => { const slider = document.querySelector('#weight-1'); slider.value = share;"
        " slider.dispatchEvent(new Event('input', { bubbles: true })); }",
        share,
    )


IN_PAGE = """async (cases) => {
  const { candidates, fuse } = await import("/static/fusion.js");
  return cases.map(({ docids, scores, ranks, recipe, weights }) =>
    fuse(candidates(docids, scores, ranks), recipe, weights).map(({ docid, score }) => [docid, score]));
}"""


def no_scores(pairs: pl.DataFrame) -> pl.Series:
    raise AssertionError("all scores are known")


def in_python(case: dict[str, Any]) -> dict[str, float]:
    """Return the fused scores of the candidates of one query, as `hybrid fuse` and a retriever compute them."""
    recipe = case["python"]
    exact = recipe.missing == "exact"
    columns: dict[str, Any] = {"query": pl.Series([0] * len(case["docids"]), dtype=pl.UInt32), "docid": case["docids"]}
    for number, (scores, ranks) in enumerate(zip(case["scores"], case["ranks"], strict=True)):
        known = [score if exact or rank is not None else None for score, rank in zip(scores, ranks, strict=True)]
        columns[f"score_{number}"] = pl.Series(known, dtype=pl.Float64)
        columns[f"rank_{number}"] = pl.Series(ranks, dtype=pl.Float64)
    frame = pl.DataFrame(columns)
    if exact:
        frame = next(iter(lists.complete([frame], pl.Series(["q"]), [no_scores] * len(case["scores"]))))
    return dict(lists.fused(lists.values(frame, recipe), recipe).select("docid", "score").iter_rows())


def made(seed: int, documents: int, empty: bool = False) -> dict[str, Any]:
    """Return candidates of two lists with ties, missing documents, and ids whose UTF-16 order is another."""
    draw = random.Random(seed)
    ids = ["é", "z", "Z", "10", "9", "\ufffd", "\U0001d4b3", "日本", "a b", ""]
    docids = [f"{ids[number % len(ids)]}{number // len(ids)}" for number in range(documents)]
    draw.shuffle(docids)
    scores = [[round(draw.uniform(-1, 4), 1) for _ in docids] for _ in range(2)]
    ranks: list[list[int | None]] = []
    for number, own in enumerate(scores):
        returned = [at for at in range(documents) if not (empty and number) and draw.random() < 0.6]
        order = sorted(returned, key=lambda at, own=own: (-own[at], docids[at]))  # type: ignore[misc]
        ranks.append([order.index(at) + 1 if at in returned else None for at in range(documents)])
    keep = [at for at in range(documents) if any(rank[at] is not None for rank in ranks)]
    return {
        "docids": [docids[at] for at in keep],
        "scores": [[own[at] for at in keep] for own in scores],
        "ranks": [[rank[at] for at in keep] for rank in ranks],
    }


def real(server: Served, query: str, depth: int) -> dict[str, Any]:
    documents = server.get("/api/columns", query=query, depth=depth).json["documents"]
    documents = [each for each in documents if any(rank is not None for rank in each["ranks"])]
    return {
        "docids": [each["docid"] for each in documents],
        "scores": [[each["scores"][side] for each in documents] for side in range(2)],
        "ranks": [[each["ranks"][side] for each in documents] for side in range(2)],
    }


def test_the_page_fuses_as_python_does(tab: Tab, server: Served) -> None:
    found = [real(server, query, depth) for _, query in TINY_QUERIES["test"] for depth in (1, 5, 30)]
    found += [made(seed, 1 + 4 * seed, empty=seed % 5 == 0) for seed in range(12)]
    found = [candidates for candidates in found if candidates["docids"]]
    cases = []
    for method in set(METHODS) - {"product"}:
        rules = [rule for rule in RULES if not (rule[1] and METHODS[method].fixed)]
        for number, ((missing, normalize), weights) in enumerate(product(rules, WEIGHTS)):
            k = 2.0 if method == "rrf" and number // len(WEIGHTS) % 2 else 60.0
            recipe = FusionRecipe(method, weights, missing or METHODS[method].missing, normalize, k)
            sent = {"method": method, "missing": missing, "normalize": normalize, "k": k}
            cases += [
                {**candidates, "recipe": sent, "weights": list(weights), "python": recipe}
                for candidates in found[number % 27 :: 27]
            ]
    tab.open("#/search")
    answers = tab.page.evaluate(IN_PAGE, [{**case, "python": None} for case in cases])
    for case, answer in zip(cases, answers, strict=True):
        expected = in_python(case)
        assert dict(answer) == pytest.approx(expected, abs=1e-9), case
        for (one, score), (other, next_score) in pairwise(answer):
            assert expected[one] >= expected[other] - 1e-9, case
            assert score > next_score or one < other, case  # ties are in the order of Python's texts


def test_the_menu_and_the_measure_are_those_of_python(tab: Tab, folder: Path) -> None:
    searched(tab, f"#/search?q={QUERY}")
    assert tab.page.eval_on_selector_all("#method option", "all => all.map(each => each.value)") == OFFERED
    retriever = open_retriever(folder / "retriever")
    qrels = pl.read_parquet(folder / "data" / "qrels.test.parquet")
    run = retriever.search(dict(TINY_QUERIES["test"]), 100)
    value = evaluate(run, qrels, ["nDCG@10"])["nDCG@10"]
    assert float(tab.page.inner_text(".measure .number")) == pytest.approx(value, abs=6e-4)
    assert column(tab, "hybrid") == retriever.search(QUERY, 10)["docid"].to_list()
    tab.page.wait_for_selector(".curve svg")
    moved(tab, 0)
    assert column(tab, "hybrid")[:5] == column(tab, "bm25")[:5]
    assert "from" in tab.page.inner_text(".measure")
    moved(tab, 0.7)
    assert tab.page.is_disabled("text=Back to stored")


def test_the_state_is_in_the_address(tab: Tab) -> None:
    tab.open("")
    page = tab.page
    page.wait_for_selector("#query")
    page.click("#name")
    page.keyboard.press("/")
    page.keyboard.type(QUERY)
    page.keyboard.press("Enter")
    page.wait_for_selector(".columns .hit")
    stored = column(tab, "hybrid")
    page.select_option("#method", "rrf")
    page.fill("#rrf-k", "7")
    page.press("#rrf-k", "Enter")
    page.focus("#weight-1")
    page.keyboard.press("Home")
    for _ in range(3):
        page.keyboard.press("ArrowRight")
    page.uncheck(".toggle input")
    until(tab, "location.hash.includes('w=0.0')")
    before, address = column(tab, "hybrid"), page.url
    assert "method=rrf" in address
    assert "k=7" in address
    assert before != stored
    page.reload()
    page.wait_for_selector(".columns .hit")
    assert column(tab, "hybrid") == before
    assert (page.input_value("#query"), page.input_value("#method")) == (QUERY, "rrf")
    assert (page.input_value("#rrf-k"), page.input_value("#weight-1")) == ("7", "0.03")
    assert page.evaluate("getComputedStyle(document.querySelector('.hit mark')).backgroundImage") == "none"
    page.fill("#query", "moon")
    page.keyboard.press("Enter")
    until(tab, "document.title.startsWith('moon')")
    page.go_back()
    page.wait_for_selector(f'.column[data-system="hybrid"] .hit:first-child[data-docid="{before[0]}"]')
    assert page.title().startswith(QUERY)
    assert column(tab, "hybrid") == before
    page.click("text=Back to stored")
    assert column(tab, "hybrid") == stored


def test_a_document_that_the_weight_lifts_has_its_snippet(tab: Tab) -> None:
    searched(tab, f"#/search?q={QUERY}")
    for method in OFFERED:
        tab.page.select_option("#method", method)
        for share in (0, 0.37, 1):
            moved(tab, share)
    tab.page.wait_for_timeout(600)
    empty = "all => all.filter(each => each.textContent === each.closest('.hit').dataset.docid).length"
    assert tab.page.eval_on_selector_all(".columns .title", empty) == 0


def test_an_explanation_opens_and_closes_by_keyboard(tab: Tab) -> None:
    searched(tab, f"#/search?q={QUERY}")
    page = tab.page
    first = page.locator('.column[data-system="hybrid"] .hit .open').first
    docid = column(tab, "hybrid")[0]
    first.focus()
    page.keyboard.press("Enter")
    page.wait_for_selector(".explanation[open] table")
    assert page.evaluate("document.activeElement.className") == "close"
    assert page.inner_text(".explanation .note >> nth=0") == docid
    names = page.eval_on_selector_all(".explanation tbody th", "all => all.map(each => each.textContent)")
    assert names == ["bm25", "dense", "hybrid"]
    assert page.locator(".explanation .terms li").count() >= 2
    assert page.locator(".explanation dt").all_inner_texts() == ["year", "place", "day", "checked"]
    formula = page.locator(".explanation .formula")
    numbers = [float(text) for text in re.findall(r"-?\d+\.\d+", formula.inner_text().replace(MINUS, "-"))]
    assert numbers[0] * numbers[1] + numbers[2] * numbers[3] == pytest.approx(numbers[4], rel=2e-2)
    moved(tab, 0.2)
    assert "0.80" in formula.inner_text()
    address = page.url
    page.keyboard.press("Escape")
    assert page.locator(".explanation[open]").count() == 0
    assert page.evaluate("document.activeElement.closest('.hit').dataset.docid") == docid
    page.goto(address)
    page.reload()
    page.wait_for_selector(".explanation[open] table")
    page.keyboard.press("Escape")
    page.locator('.column[data-system="bm25"] .hit .open').first.focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowRight")
    system = "document.activeElement.closest('.column').dataset.system"
    assert page.evaluate(system) == "dense"


def test_hovering_connects_a_document_in_all_columns(tab: Tab) -> None:
    searched(tab, f"#/search?q={QUERY}")
    shared = set(column(tab, "bm25")) & set(column(tab, "dense")) & set(column(tab, "hybrid"))
    docid = next(each for each in column(tab, "hybrid") if each in shared)
    tab.page.locator(f'.column[data-system="hybrid"] .hit[data-docid="{docid}"]').hover()
    assert tab.page.locator(".hit.chosen").count() >= 3
    assert tab.page.locator(".lines path.chosen").count() >= 2


def test_filters_build_a_condition(tab: Tab) -> None:
    """Each condition is set after the hits of the one before are shown."""
    left = rows()
    searched(tab, f"#/search?q={QUERY}&n=20")
    page = tab.page

    def kept(condition: Callable[[dict[str, Any]], bool]) -> None:
        left[:] = filter(condition, left)
        shown(tab, {row["id"] for row in left})

    page.click("button:has-text('Filters')")
    page.click('fieldset[data-column=place] label:has-text("O\'Brien")')
    kept(lambda row: row["place"] == "O'Brien")
    page.fill("fieldset[data-column=year] [data-part=from]", "2003")
    page.press("fieldset[data-column=year] [data-part=from]", "Enter")
    kept(lambda row: row["year"] >= 2003)
    page.fill("fieldset[data-column=day] [data-part=to]", "2019-12-31")
    page.press("fieldset[data-column=day] [data-part=to]", "Tab")
    kept(lambda row: row["day"] <= "2019-12-31")
    page.click("fieldset[data-column=checked] label:has-text('true')")
    kept(lambda row: row["checked"])
    assert left
    until(tab, "document.querySelectorAll('.chip').length === 4")
    found = column(tab, "hybrid")
    page.reload()
    page.wait_for_selector(".columns .hit")
    assert column(tab, "hybrid") == found
    for number in range(4):
        page.locator(".chip").first.click()
        until(tab, f"document.querySelectorAll('.chip').length === {3 - number}")
    until(tab, "document.querySelectorAll('.column[data-system=\"hybrid\"] .hit').length === 20")
    page.click("button:has-text('Filters')")
    page.fill("#condition", "year > 3000")
    page.press("#condition", "Enter")
    page.click("text=Remove the filters")
    page.wait_for_selector(".columns .hit")


def test_a_filter_that_is_refused_is_marked_at_its_field(browser: Any, server: Served) -> None:
    tab = Tab(browser, server.url)
    tab.open(f"#/search?q={QUERY}&filter=yeer+%3E+2000")
    page = tab.page
    page.wait_for_selector("#condition[aria-invalid=true]")
    assert "yeer" in page.inner_text("#condition-error")
    assert page.locator(".columns").count() == 0
    page.fill("#condition", "year > 2000")
    page.press("#condition", "Enter")
    page.wait_for_selector(".columns .hit")
    assert page.get_attribute("#condition", "aria-invalid") == "false"
    assert [fault for fault in tab.faults if "400" not in fault] == []
    tab.context.close()


def test_texts_are_no_html(tab: Tab) -> None:
    searched(tab, f"#/search?q={QUERY}&n=20&filter=year+%3D+1999")
    page = tab.page
    assert ATTACK in page.inner_text(".columns")
    page.click('.column[data-system="hybrid"] .open')
    page.wait_for_selector(".explanation[open] table")
    assert ATTACK in page.inner_text(".explanation .full")
    assert page.locator("main :is(img, script)").count() == 0
    assert page.evaluate("window.broken === undefined")


def test_empty_answers_and_slow_ones(tab: Tab) -> None:
    page = tab.page
    tab.open("#/search")
    page.click(".examples button")
    page.wait_for_selector(".columns .hit")
    waiting: list[Any] = []
    page.route("**/api/columns*", lambda route: waiting.append(route))
    page.fill("#query", "oxygen")
    page.press("#query", "Enter")
    page.wait_for_selector(".results .skeleton")
    waiting[0].continue_()
    page.wait_for_selector(".columns .hit")


def test_the_page_returns_with_the_server(browser: Any, folder: Path) -> None:
    with serving(folder) as server:
        tab = Tab(browser, server.url)
        tab.open(f"#/search?q={QUERY}")
        tab.page.wait_for_selector(".columns .hit")
        server.stop(signal.SIGTERM)
        tab.page.fill("#query", "moon")
        tab.page.keyboard.press("Enter")
        tab.page.wait_for_selector("#banner p")
    with serving(folder, port=server.port):
        tab.page.wait_for_selector("#banner p", state="detached")
        tab.page.wait_for_selector(".columns .hit")
        assert tab.page.input_value("#query") == "moon"
    tab.context.close()


def test_the_comparison_has_the_values_of_python(tab: Tab, server: Served, folder: Path) -> None:
    content = server.get("/api/comparison").json
    qrels = pl.read_parquet(folder / "data" / "qrels.test.parquet")
    queries = dict(TINY_QUERIES["test"])
    assert content["systems"] == ["bm25", "dense", "hybrid", "shallow"]
    for system, name in ((2, "retriever"), (3, "shallow")):
        run = open_retriever(folder / name).search(queries, 100)
        for query in content["queries"]:
            own = evaluate(run.filter(qid=query["qid"]), qrels.filter(qid=query["qid"]), ["nDCG@10"])
            assert query["values"][system] == pytest.approx(own["nDCG@10"])
    tab.open("#/compare?a=hybrid&b=dense")
    page = tab.page
    page.wait_for_selector(".queries .query")
    assert page.locator(".queries > li").count() == len(content["queries"])
    changes = sorted((each["values"][2] - each["values"][1] for each in content["queries"]), reverse=True)
    shown = page.locator(".queries .change").all_inner_texts()
    assert [float(text.replace(MINUS, "-")) for text in shown] == pytest.approx(changes, abs=6e-4)
    page.fill("#find", "OXYGEN blood")
    assert page.locator(".queries > li").count() == 1
    page.focus(".queries .query")
    page.keyboard.press("Enter")
    page.wait_for_selector(".detail .hit")
    assert page.locator(".detail .list").count() == 2
    assert page.locator(".detail .grade.relevant").count() >= 1
    page.reload()
    page.wait_for_selector(".detail .hit")
    assert page.input_value("#find") == "OXYGEN blood"
    page.select_option("#system-b", "3")
    until(tab, "document.querySelector('.detail .list:nth-child(2)')?.textContent.includes('shallow')")


def test_without_judgments_lists_that_differ_come_first(browser: Any, folder: Path) -> None:
    with serving(folder, "--queries", folder / "queries.jsonl") as server:
        content = server.get("/api/comparison").json
        one, other = (open_retriever(folder / name).search(dict(TINY_QUERIES["test"]), 100) for name in NAMES)
        expected: dict[str, float] = dict(rbo(one, other).iter_rows())
        assert content["overlaps"]["2,3"] == pytest.approx([expected[query["qid"]] for query in content["queries"]])
        tab = Tab(browser, server.url)
        tab.open("#/compare?a=hybrid&b=shallow")
        tab.page.wait_for_selector(".queries .query")
        shown = [float(text) for text in tab.page.locator(".queries .change").all_inner_texts()]
        assert shown == sorted(shown)
        assert sorted(expected.values()) == pytest.approx(shown, abs=6e-4)
        tab.page.click(".queries .query >> nth=0")
        tab.page.wait_for_selector(".detail .hit")
        assert tab.faults == []
        tab.context.close()


def test_without_judgments_the_home_proposes_texts_and_nothing_is_blank(
    browser: Any, tiny_bert: Path, tmp_path: Path
) -> None:
    write_lines(tmp_path / "docs.jsonl", *rows())
    data = prepare(PrepareFiles([tmp_path / "docs.jsonl"], output=tmp_path / "data"))
    indexes = [
        index_bm25(data, output=tmp_path / "bm25", threads=1),
        encode(data, model=str(tiny_bert), output=tmp_path / "dense", dtype="fp32", threads=1),
    ]
    with Served(compose(indexes, output=tmp_path / "retriever")) as server:
        tab = Tab(browser, server.url)
        page = tab.page
        tab.open("#/judge")  # a view that this server does not have
        page.wait_for_selector(".examples button")
        words = page.inner_text(".examples li >> nth=0")
        assert any(each["title"].startswith(words) for each in rows())
        card, slider = (page.locator(part).bounding_box() for part in (".strip", ".slider"))
        assert card["x"] + card["width"] - slider["x"] - slider["width"] < 30
        moved(tab, 0.1)
        page.wait_for_selector(".result button:enabled")
        page.wait_for_timeout(300)
        assert page.locator(".result button").is_visible()
        page.click(".examples button >> nth=0")
        page.wait_for_selector(".columns .hit")
        assert page.input_value("#query") == words
        assert tab.faults == []
        tab.context.close()


def test_neither_end_of_a_slider_between_two_sides_is_filled(tab: Tab) -> None:
    searched(tab, f"#/search?q={QUERY}")
    style = tab.page.evaluate("getComputedStyle(document.querySelector('#weight-1')).appearance")
    assert style == "none", "the browser fills the track up to the thumb"


def test_all_queries_of_a_comparison_are_printed(tab: Tab) -> None:
    tab.open("#/compare")
    tab.page.wait_for_selector(".queries .query")
    tab.page.emulate_media(media="print")
    tab.page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert tab.page.locator(".queries .query").count() == len({qid for qid, *_ in TINY_JUDGEMENTS["test"]})
    assert tab.page.evaluate("getComputedStyle(document.querySelector('.listing')).overflowY") == "visible"


@pytest.mark.parametrize("fragment", [f"#/search?q={QUERY}", "#/judge?rater=anna"])
def test_a_phone_has_no_hints_about_keys(browser: Any, server: Served, fragment: str) -> None:
    tab = Tab(browser, server.url, 390, has_touch=True, is_mobile=True)
    tab.open(fragment)
    tab.page.wait_for_selector(".columns .hit, .to-judge .title", state="attached")
    assert not [each for each in tab.page.locator("kbd, .keyboard").all() if each.is_visible()]
    tab.context.close()


VIEWS = {
    "search": (f"#/search?q={QUERY}&w=0.2&method=zscore", ".measure .number"),
    "empty": ("#/search", ".examples li"),
    "explanation": (f"#/search?q={QUERY}&doc=salt", ".explanation[open] table"),
    "filters": (f"#/search?q={QUERY}&is.place=Oslo&from.year=2001", ".chip"),
    "nothing": (f"#/search?q={QUERY}&filter=year+%3E+3000", ".results .empty"),
    "compare": ("#/compare?q=003", ".detail .hit"),
}
SHOWN = [  # each view in one color scheme; `make hard` has both
    pytest.param(view, scheme, marks=() if number % 2 == dark else pytest.mark.exhaustive)
    for number, view in enumerate(VIEWS)
    for dark, scheme in enumerate(["light", "dark"])
]
FAULTS = """() => {
  const parts = ".hit, .column, .strip > *, .ask > *, .charts > *, .narrow > *, .query, .top > *";
  const shown = [...document.querySelectorAll(parts)].filter((each) => each.offsetParent !== null);
  const boxes = shown.map((each) => [each, each.getBoundingClientRect()]);
  const meet = (a, b) => Math.min(a.right, b.right) - Math.max(a.left, b.left) > 1
    && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 1;
  const overlaps = boxes.flatMap(([one, a], at) => boxes.slice(at + 1)
    .filter(([other, b]) => one.parentElement === other.parentElement && meet(a, b))
    .map(([other]) => `${one.className} over ${other.className}`));
  const cut = shown.filter((each) => each.scrollWidth > each.clientWidth + 1).map((each) => `${each.className} is cut`);
  return [...overlaps, ...cut, ...(document.documentElement.scrollWidth > innerWidth ? ["page too wide"] : [])];
}"""


@pytest.mark.parametrize(("view", "scheme"), SHOWN)
def test_every_view_fits_and_is_accessible(browser: Any, server: Served, view: str, scheme: str) -> None:
    from axe_playwright_python.sync_playwright import Axe

    fragment, ready = VIEWS[view]
    tab = Tab(browser, server.url, WIDTHS[0], scheme)
    for width in WIDTHS:
        tab.page.set_viewport_size({"width": width, "height": 900})
        tab.open("?")
        tab.open(fragment)
        tab.page.wait_for_selector(ready)
        if view == "filters":
            tab.page.click("button:has-text('Filters')")
        tab.page.wait_for_load_state("networkidle")
        assert tab.page.evaluate(FAULTS) == [], width
        if width in (390, 1280):  # with one column, and with three
            found = Axe().run(tab.page).response["violations"]
            assert [(each["id"], each["nodes"][0]["target"]) for each in found] == [], width
    background = tab.page.evaluate("getComputedStyle(document.documentElement).backgroundColor")
    assert background == {"light": "rgb(252, 251, 248)", "dark": "rgb(21, 24, 28)"}[scheme]
    assert tab.faults == []
    tab.context.close()


def test_on_a_phone_one_column_is_shown_and_an_explanation_covers_the_page(browser: Any, server: Served) -> None:
    tab = Tab(browser, server.url, 390)
    searched(tab, f"#/search?q={QUERY}")
    page = tab.page
    visible: Sequence[str] = page.eval_on_selector_all(
        ".column", "all => all.filter(each => each.offsetParent).map(each => each.dataset.system)"
    )
    assert visible == ["hybrid"]
    page.click(".picker button[data-system=dense]")
    assert page.is_visible('.column[data-system="dense"]')
    page.click('.column[data-system="dense"] .open >> nth=0')
    page.wait_for_selector(".explanation[open] table")
    box = page.locator(".explanation").bounding_box()
    assert (box["x"], box["width"]) == (0, 390)
    assert page.evaluate("document.querySelector('.explanation').matches(':modal')")
    page.keyboard.press("Escape")
    assert page.locator(".explanation[open]").count() == 0
    assert page.evaluate("document.activeElement.className") == "open"
    assert tab.faults == []
    tab.context.close()
