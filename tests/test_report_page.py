"""The report in a browser: it opens offline, draws every chart, fits a phone, and escapes all text."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from browsing import Tab
from report_study import ATTACK, HOSTILE_QUERIES, Study

from hybrid_cli.reporting.colours import COLOURS
from hybrid_cli.stages.report import report

WIDTHS = {"phone": 390, "desktop": 1280}
JUDGED, RUNS = 7, 3
# Marks of each chart: dots for queries and a line for the diagonal; circles and counts for a Venn diagram.
MARKS = """places => places.map(place => [place.dataset.figure, {
  marks: place.querySelectorAll("svg .role-mark > :is(path, line)").length,
  dots: place.querySelectorAll("svg .mark-symbol.role-mark > path").length,
  texts: [...place.querySelectorAll("svg .mark-text.role-mark text")].map(text => text.textContent),
  lost: [...place.querySelectorAll("svg *")].filter(mark => /NaN|undefined/.test(
    [...mark.attributes].map(attribute => attribute.value).join(" "))).length,
  wide: place.querySelector("svg")?.getBoundingClientRect().width ?? 0,
  room: place.getBoundingClientRect().width,
}])"""


@pytest.fixture(scope="module")
def html(study: Study, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return report(study.inputs, split="test", output=tmp_path_factory.mktemp("report") / "report.html")


class OpenPage(Tab):
    def __init__(self, browser: Any, path: Path, width: int, scheme: str):
        super().__init__(browser, path.as_uri(), width, scheme)
        self.open("")
        self.until_drawn(scheme)
        self.charts = dict(self.page.eval_on_selector_all("[data-figure]", MARKS))
        for name, chart in self.charts.items():
            marks = "dots" if name == "memory" else "marks"  # the front line of `memory` is a mark even without dots
            if not chart[marks]:
                self.faults.append(f"chart {name} is empty")
            if chart["lost"]:
                self.faults.append(f"chart {name} has {chart['lost']} marks without coordinates")
            if chart["wide"] > chart["room"] + 1:
                self.faults.append(f"chart {name} is {chart['wide']} pixels wide in a box of {chart['room']}")
        if (across := self.page.evaluate("document.documentElement.scrollWidth")) > width:
            self.faults.append(f"the page is {across} pixels wide on a screen of {width}")

    def until_drawn(self, scheme: str) -> None:
        # Not wait_for_function: it evaluates text in the page, which the page's own policy forbids.
        self.page.wait_for_selector(f"html[data-drawn={scheme}]", state="attached")

    def _heard(self, message: Any) -> None:
        self.faults.append(f"console {message.type}: {message.text}")


@pytest.fixture(scope="module")
def open_page(browser: Any) -> Iterator[Callable[..., OpenPage]]:
    """Open each page once, because drawing takes seconds; tests that change a page are below those that read it."""
    opened: dict[tuple[Path, int, str], OpenPage] = {}

    def opens(path: Path, width: int = WIDTHS["desktop"], scheme: str = "light") -> OpenPage:
        if (key := (path, width, scheme)) not in opened:
            opened[key] = OpenPage(browser, *key)
        return opened[key]

    yield opens
    for each in opened.values():
        each.context.close()


@pytest.mark.parametrize(("width", "scheme"), [(390, "dark"), (1280, "light")])
def test_it_opens_without_faults(open_page: Callable[..., OpenPage], html: Path, width: int, scheme: str) -> None:
    shown = open_page(html, width=width, scheme=scheme)
    assert not shown.faults
    assert shown.page.evaluate("document.documentElement.dataset.drawn") == scheme
    assert {"recall-by-depth", "venn-at-1", "queries-1", "queries-2", "groups-4", "training-1", "memory"} <= set(
        shown.charts
    )


def test_every_query_is_a_dot_and_every_count_is_labeled(open_page: Callable[..., OpenPage], html: Path) -> None:
    shown = open_page(html)
    for name in ("queries-1", "queries-2"):
        assert shown.charts[name]["marks"] == JUDGED + 1  # and the diagonal
    assert shown.charts["memory"]["texts"] == ["<b>bm25</b>", "dense", "fused"]
    for cutoff in (1, 10, 100):
        written = shown.charts[f"venn-at-{cutoff}"]["texts"]
        counts = [int(text.split()[0]) for text in written if text[0].isdigit()]
        assert sum(counts) == JUDGED


CHARTS = {'"field":"recall"': '"field":"recal"', '"field":"bytes"': '"field":"byte"'}
CONTENT = '<main><script>window.broken = 1</script><img src="https://example.org/"><p style="width: 1300px">.</p>'


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        ({'"mark":{"type":"bar"': '"mark":{"type":"tick"'}, []),
        (CHARTS | {'"mark":{"type":"bar"': '"mark":{"type":"barr"'}, ["recall-by-depth", "memory", "is empty"]),
        ({"<main>": CONTENT}, ["script", "image", "pixels wide"]),
    ],
    ids=["no fault", "charts", "content"],
)
def test_a_broken_page_has_faults(
    open_page: Callable[..., OpenPage], html: Path, tmp_path: Path, changes: dict[str, str], wanted: list[str]
) -> None:
    text = html.read_text("utf-8")
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    broken = tmp_path / "broken.html"
    broken.write_text(text, "utf-8")
    faults = open_page(broken).faults
    assert bool(faults) == bool(wanted)
    assert all(any(words in each for each in faults) for words in wanted)


def test_all_text_is_escaped(open_page: Callable[..., OpenPage], html: Path) -> None:
    page = open_page(html).page
    page.click(".queries li[data-qid='q<b>'] .query")
    page.eval_on_selector_all("details", "all => all.forEach(each => each.open = true)")
    text = page.inner_text("main")
    for query in (HOSTILE_QUERIES[0][1], "<b>bm25</b>", f"</script></head>{ATTACK}"):
        assert query in text
    assert page.evaluate("window.broken === undefined")
    assert not page.query_selector_all("main img, main svg [onload], main b, main textarea, main script")
    assert page.title() == "a<b>&amp;c, test"


def test_a_chart_is_saved_with_its_legend(open_page: Callable[..., OpenPage], html: Path) -> None:
    page = open_page(html, scheme="dark").page
    for name, legend in (("recall-by-depth", ["<b>bm25</b>", "dense", "fused"]), ("venn-at-1", [])):
        with page.expect_download() as saving:
            page.click(f"[data-save={name}]")
        assert saving.value.suggested_filename == f"{name}.svg"
        root = ElementTree.parse(saving.value.path()).getroot()
        texts = ["".join(each.itertext()) for each in root.iter() if each.tag.endswith("text")]
        assert float(root.get("width", "0")) > 300
        assert set(legend) <= set(texts)
        assert COLOURS["light"]["card"] in "".join(each.get("fill", "") for each in root.iter())


def test_hovering_a_dot_shows_its_query(open_page: Callable[..., OpenPage], html: Path) -> None:
    page = open_page(html).page
    shown = set()
    for dot in page.query_selector_all('[data-figure="queries-1"] .mark-symbol path'):
        dot.dispatch_event("pointermove", {"bubbles": True})
        shown.add(page.inner_text("#vg-tooltip-element"))
    assert any("oxygen in the blood" in each for each in shown)
    assert any(ATTACK in each for each in shown)
    assert page.evaluate("window.broken === undefined")


def test_lists_open_by_keyboard_and_flag_documents(open_page: Callable[..., OpenPage], html: Path) -> None:
    page = open_page(html, width=390).page
    first = page.query_selector(".queries .query")
    first.focus()
    page.keyboard.press("Enter")
    assert first.get_attribute("aria-expanded") == "true"
    assert len(page.query_selector_all(".queries .detail .list")) == 2
    assert page.query_selector_all(".detail .grade.relevant")
    assert page.query_selector_all(".detail mark")
    tables = page.query_selector_all(".scroll")
    assert tables
    assert all(table.get_attribute("tabindex") == "0" for table in tables)
    page.keyboard.press("Enter")
    assert first.get_attribute("aria-expanded") == "false"


@pytest.mark.parametrize("width", WIDTHS.values(), ids=WIDTHS)
def test_words_filter_the_comparison(open_page: Callable[..., OpenPage], html: Path, width: int) -> None:
    page = open_page(html, width=width).page
    assert len(page.query_selector_all(".queries > li")) == JUDGED
    page.fill("#find", "BLOOD oxygen")
    found = page.query_selector_all(".queries > li")
    assert ["oxygen in the blood" in row.text_content() for row in found] == [True]
    page.fill("#find", "")
    counts = {}
    for outcome in ("won", "lost", "equal"):
        page.click(f"[data-outcome={outcome}]")
        counts[outcome] = len(page.query_selector_all(".queries > li"))
    assert sum(counts.values()) == JUDGED
    page.select_option("#system-b", "2")  # the run with itself
    assert len(page.query_selector_all(".queries > li")) == JUDGED
    page.select_option("#system-b", "0")
    page.click("[data-outcome=all]")


def test_no_column_is_cut_on_a_phone(open_page: Callable[..., OpenPage], html: Path) -> None:
    page = open_page(html, width=390).page
    page.eval_on_selector_all("details", "all => all.forEach(each => each.open = true)")
    boxes = page.query_selector_all(".scroll, .queries, .query")
    assert len(boxes) > JUDGED
    assert not [box.inner_text() for box in boxes if box.evaluate("box => box.scrollWidth > box.clientWidth + 1")]
    assert page.query_selector("td[data-column='R@100']").is_visible()


def test_a_learning_curve_has_the_color_of_its_run(open_page: Callable[..., OpenPage], html: Path) -> None:
    page = open_page(html).page
    second = page.evaluate("getComputedStyle(document.documentElement).getPropertyValue('--run-1').trim()")
    curve = page.query_selector('[data-figure="training-1"] .mark-line path')
    assert curve.get_attribute("stroke") == second
    drawn = page.evaluate(
        "[...document.querySelectorAll('[data-figure=training-1]')].map(each => getComputedStyle("
        "each.parentElement.querySelector('.legend .swatch')).backgroundColor)[0]"
    )
    red, green, blue = (int(second[place : place + 2], 16) for place in (1, 3, 5))
    assert drawn == f"rgb({red}, {green}, {blue})"


def test_the_page_follows_the_color_scheme(open_page: Callable[..., OpenPage], html: Path) -> None:
    shown = open_page(html)
    colour = 'getComputedStyle(document.querySelector("[data-figure=recall-by-depth] .mark-symbol path")).fill'
    day = shown.page.evaluate(colour)
    shown.page.emulate_media(color_scheme="dark")
    shown.until_drawn("dark")
    assert shown.page.evaluate(colour) != day
    assert not shown.faults


def test_tables_need_no_javascript(browser: Any, html: Path) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(html.as_uri())
    assert "MRR@10" in page.inner_text("table >> nth=0")
    context.close()


LONG_WORDS = """(word) => document.querySelectorAll(
  ".detail :is(.docid, .title, .text), .asked, .queries .words").forEach((each) => { each.textContent = word; })"""
TOO_WIDE = """[...document.querySelectorAll(".hit, .hit .below, .query, .detail")].filter(
  (each) => each.scrollWidth > each.clientWidth + 1 || [...each.children].some(
    (child) => child.getBoundingClientRect().right > each.getBoundingClientRect().right + 1)).length"""


@pytest.mark.parametrize("width", WIDTHS.values(), ids=WIDTHS)
def test_long_ids_and_words_stay_in_their_list(open_page: Callable[..., OpenPage], html: Path, width: int) -> None:
    page = open_page(html, width=width).page
    if not page.query_selector(".detail .hit"):
        page.click(".queries > li:first-child .query")
    page.wait_for_selector(".detail .hit")
    page.evaluate(LONG_WORDS, "scipy.spatial.transform.Rotation_concatenate_" * 4)
    assert page.evaluate(TOO_WIDE) == 0
    assert page.evaluate("document.documentElement.scrollWidth") <= width
