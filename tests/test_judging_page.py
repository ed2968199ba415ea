"""Judging in the served page: its routes with good and bad input, and the view in a browser."""

import json
import shutil
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from browsing import Tab
from served import TOKEN, Answer, Served
from tiny_collection import TINY_DOCUMENTS

from hybrid_cli.collections.collection import read_qrels, read_queries
from hybrid_cli.stages.compose import compose
from hybrid_cli.stages.encode import encode

RULES = "# Rules\n\nGrade **evidence**, `not` style.\n\n- one\n- two\n\n<b>text</b>\n"
HIT = {"qid", "docid", "query", "title", "text", "position", "pooled"}


@pytest.fixture(scope="module")
def folder(made: Path, tiny_lambda: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A collection, its indexes, a retriever, and guidelines. Servers start faster without a transformer."""
    folder = tmp_path_factory.mktemp("judging")
    shutil.copytree(made, folder / "made", symlinks=True)
    shutil.rmtree(folder / "made" / "dense")
    encode(folder / "made" / "collection", model=str(tiny_lambda), output=folder / "made" / "dense")
    compose([folder / "made" / "bm25", folder / "made" / "dense"], output=folder / "retriever")
    (folder / "rules.md").write_text(RULES)
    return folder


def serving(folder: Path, journal: Path, port: int = 0) -> Served:
    words = (folder / "retriever", "--judgments", journal, "--guidelines", folder / "rules.md")
    return Served(*words, port=port)


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Served]:
    """A server whose journal all tests of the routes extend, each as another person."""
    with serving(folder, folder / "shared.jsonl") as running:
        yield running


@pytest.fixture
def shared(folder: Path) -> Path:
    return folder / "shared.jsonl"


def state(server: Served, rater: str, **pair: str) -> dict[str, Any]:
    while True:
        answer = server.get("/api/judging", rater=rater, **pair)
        assert answer.status == 200, answer.body
        if not answer.json.get("preparing"):
            return dict(answer.json)


def post(server: Served, body: Any, path: str = "/api/judgments") -> Answer:
    return server.ask("POST", path, body, authorization=f"Bearer {TOKEN}")


def answered(server: Served, rater: str, number: int, **changes: Any) -> dict[str, Any]:
    hit = state(server, rater)["hit"]
    body = {"rater": rater, "id": f"{rater}-{number:08}", "qid": hit["qid"], "docid": hit["docid"], **changes}
    done = post(server, {name: value for name, value in body.items() if value is not None})
    assert done.status == 200, done.body
    return dict(done.json)


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def pair_of(content: dict[str, Any]) -> tuple[str, str]:
    return content["hit"]["qid"], content["hit"]["docid"]


def test_a_hit_shows_no_system_rank_or_score(server: Served) -> None:
    content = state(server, "blind")
    assert set(content["hit"]) == HIT
    texts = {docid: (title or docid, text) for docid, title, text in TINY_DOCUMENTS}
    title, text = texts[content["hit"]["docid"]]
    assert "".join(part for part, _ in content["hit"]["title"]) == title
    assert "".join(part for part, _ in content["hit"]["text"]) == text
    info = server.get("/api/info").json["judging"]
    assert (info["path"], info["guidelines"], info["measure"]) == ("shared.jsonl", RULES, "nDCG@10")
    assert info["grades"] == {"0": "not relevant", "1": "partly", "2": "relevant", "3": "fully relevant"}


def test_the_order_is_a_persons_own_and_stays(server: Served, folder: Path, tmp_path: Path) -> None:
    def order(running: Served, rater: str) -> list[tuple[str, str]]:
        return [pair_of(state(running, rater)), *(pair_of(answered(running, rater, n, grade=0)) for n in range(7))]

    first, second = order(server, "order1"), order(server, "order2")
    assert first != second
    with serving(folder, tmp_path / "other.jsonl") as other:
        assert order(other, "order1") == first
        assert state(other, "order1")["progress"]["answers"] == 7


def test_grades_skips_later_and_undo_are_lines(server: Served, shared: Path) -> None:
    hits = [pair_of(state(server, "anna"))]
    hits.append(pair_of(answered(server, "anna", 1, grade=3, seconds=2.54)))
    hits.append(pair_of(answered(server, "anna", 2, skip=True, reason="query unclear")))
    content = answered(server, "anna", 3, later=True)
    expected = {"answers": 1, "skipped": 1, "later": 1, "judged": 0, "queries": 0}
    assert content["progress"] | {"judged": 0, "queries": 0} == expected
    undone = post(server, {"rater": "anna", "id": "anna-undo-1", "undo": True}).json
    assert tuple(undone["undone"]) == hits[2] == pair_of(undone)
    again = post(server, {"rater": "anna", "id": "anna-undo-1", "undo": True}).json
    assert pair_of(again) == hits[2], "a repeated request undoes nothing more"
    rows = [row for row in rows_of(shared) if row["rater"] == "anna"]
    assert [(row["qid"], row["docid"]) for row in rows] == [*hits, hits[2]]
    listed: list[tuple[object, ...]] = [
        (3, None, None, None),
        (None, "query unclear", None, None),
        (None, None, True, None),
    ]
    listed += [(None, None, None, True)]
    assert [(row.get("grade"), row.get("reason"), row.get("later"), row.get("undo")) for row in rows] == listed
    assert (rows[0]["seconds"], bool(rows[0]["query"]), rows[0]["id"]) == (2.5, True, "anna-00000001")


def test_an_answer_that_is_sent_twice_is_stored_once(server: Served, shared: Path) -> None:
    qid, docid = pair_of(state(server, "twice"))
    body = {"rater": "twice", "id": "twice-000001", "qid": qid, "docid": docid, "grade": 2}
    contents = [post(server, body).json for _ in range(3)]
    assert len({pair_of(content) for content in contents}) == 1
    assert sum(row["rater"] == "twice" for row in rows_of(shared)) == 1


def test_an_earlier_answer_is_shown_and_changed(server: Served, shared: Path) -> None:
    qid, docid = pair_of(state(server, "change"))
    answered(server, "change", 1, grade=1)
    content = state(server, "change", qid=qid, docid=docid)
    assert (pair_of(content), content["hit"]["answered"], content["hit"]["grade"]) == ((qid, docid), True, 1)
    changed = {"rater": "change", "id": "change-0000002", "qid": qid, "docid": docid, "grade": 3}
    assert post(server, changed).json["progress"]["answers"] == 1
    listed = server.get("/api/judging/answered", rater="change").json
    assert [(query["qid"], [(h["docid"], h["grade"]) for h in query["hits"]]) for query in listed["queries"]] == [
        (qid, [(docid, 3)])
    ]
    assert [row["grade"] for row in rows_of(shared) if row["rater"] == "change"] == [1, 3]


def test_people_see_the_same_hits_and_not_the_labels_of_others(server: Served, shared: Path) -> None:
    qid, docid = pair_of(state(server, "first"))
    answered(server, "first", 1, grade=3)
    seen = set()
    for number in range(200):
        content = state(server, "second")
        if content["hit"] is None:
            break
        seen.add(pair_of(content))
        assert set(content["hit"]) == HIT
        answered(server, "second", number, grade=0)
    assert (qid, docid) in seen
    listed = server.get("/api/judging/answered", rater="second").json["queries"]
    assert {hit["grade"] for query in listed for hit in query["hits"]} == {0}
    done = state(server, "second")
    assert done["progress"]["judged"] == done["progress"]["queries"] > 0
    assert done["conflicts"] >= 1
    lines = server.get("/api/judging/qrels").body.decode().splitlines()
    expected = [[qid, "0", docid, str(grade)] for qid, docid, grade in read_qrels(shared).iter_rows()]
    assert sorted(line.split("\t") for line in lines) == sorted(expected)
    assert done["verdict"]["run"] == "hybrid"
    assert done["verdict"]["every_look"]


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"grade": 4}, "out-of-range"),
        ({"grade": "1"}, "json-type"),
        ({"grade": None}, "not-an-answer"),
        ({"undo": True}, "not-an-answer"),
        ({"rank": 1}, "json-unknown-field"),
        ({"rater": "a b"}, "not-a-name"),
        ({"docid": "nowhere"}, "not-in-pool"),
        ({"id": "short"}, "unsafe-name"),
        ({"seconds": -1}, "out-of-range"),
        ({"reason": "x" * 201}, "unsafe-name"),
    ],
)
def test_a_bad_answer_is_not_stored(server: Served, shared: Path, changes: dict[str, Any], code: str) -> None:
    qid, docid = pair_of(state(server, "bad"))
    before = shared.read_bytes() if shared.exists() else b""
    body = {"rater": "bad", "id": "bad-00000001", "qid": qid, "docid": docid, "grade": 1, **changes}
    answer = post(server, body)
    assert (answer.status, answer.code) == (400, code)
    assert shared.read_bytes() == before


def test_bodies_that_are_no_answers_are_refused(server: Served, shared: Path) -> None:
    state(server, "bad")
    assert {post(server, body).status for body in (b"[1]", b"{", b"null", b"\xff")} == {400}
    assert post(server, {"rater": "bad", "text": "x" * 4001}, "/api/judging/queries").code == "query-too-long"
    assert post(server, {"rater": "bad", "output": "/tmp/x"}, "/api/judging/tuned").code == "json-unknown-field"
    assert server.ask("POST", "/api/judging/tuned", {"rater": "bad"}).status == 401


def test_answers_about_documents_that_are_gone_are_kept_and_counted(folder: Path, tmp_path: Path) -> None:
    journal, line = tmp_path / "j.jsonl", '{"qid": "001", "docid": "gone", "grade": 3, "rater": "anna"}\n'
    journal.write_text(line)
    with serving(folder, journal) as server:
        answered(server, "anna", 1, grade=1)
        listed = server.get("/api/judging/answered", rater="anna").json
        assert (listed["gone"], sum(len(query["hits"]) for query in listed["queries"])) == (1, 1)
    assert journal.read_text().startswith(line)


def test_a_typed_query_is_judged_next_and_its_text_is_kept(folder: Path, tmp_path: Path) -> None:
    journal = tmp_path / "j.jsonl"
    with serving(folder, journal) as server:
        state(server, "anna")
        content = post(server, {"rater": "anna", "text": "  whales  of the sea "}, "/api/judging/queries").json
        assert content["hit"]["query"] == "whales of the sea"
        qid = content["hit"]["qid"]
        answered(server, "anna", 1, grade=2)
        known = state(server, "ben")["progress"]["queries"]
    with serving(folder, journal) as server:
        assert state(server, "ben")["progress"]["queries"] == known
        assert pair_of(state(server, "anna"))[0] == qid, "a query that is begun is continued"
    assert dict(read_queries(journal).select("qid", "text").iter_rows()) == {qid: "whales of the sea"}


@pytest.fixture
def unasked(folder: Path, tmp_path: Path) -> Iterator[None]:
    """The collection has no queries during the test."""
    collection = folder / "made" / "collection"
    kept = [(file, tmp_path / file.name) for name in ("queries", "qrels") for file in collection.glob(f"{name}.*")]
    for file, place in kept:
        file.rename(place)
    yield
    for file, place in kept:
        place.rename(file)


@pytest.mark.usefixtures("unasked")
def test_without_queries_typed_ones_are_judged(folder: Path, tmp_path: Path) -> None:
    with serving(folder, tmp_path / "j.jsonl") as server:
        assert server.get("/api/comparison").json["queries"] == []
        empty = state(server, "anna")
        assert (empty["hit"], empty["progress"]["queries"]) == (None, 0)
        with ThreadPoolExecutor(12) as pool:
            typed = [{"rater": "anna", "text": f"whales and salt {number}"} for number in range(12)]
            done = list(pool.map(lambda body: post(server, body, "/api/judging/queries"), typed))
        assert {answer.status for answer in done} == {200}
        assert state(server, "anna")["progress"]["queries"] == 12
        answered(server, "anna", 1, grade=2)
        assert server.get("/api/comparison").status == 200


@pytest.mark.usefixtures("unasked")
def test_grades_are_offered_only_with_a_hit(folder: Path, tmp_path: Path, browser: Any) -> None:
    with serving(folder, tmp_path / "j.jsonl") as server:
        tab = Tab(browser, server.url)
        tab.open("#/judge?rater=anna")
        tab.page.wait_for_selector(".empty")
        assert not tab.page.locator(".answers").is_visible()
        tab.page.fill(".empty .field", "salt")
        tab.page.press(".empty .field", "Enter")
        tab.page.wait_for_selector(".grades button")
        tab.page.wait_for_selector(".to-judge .title")
        tab.page.keyboard.press("1")
        tab.page.wait_for_selector(".list h4:has-text('salt')")
        tab.context.close()


@pytest.mark.usefixtures("unasked")
def test_queries_of_a_file_are_judged_and_compared(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "q.txt").write_text("salt in the sea\nwhales and tides\n")
    words = (folder / "retriever", "--judgments", tmp_path / "j.jsonl", "--queries", tmp_path / "q.txt")
    with Served(*words) as server:
        assert state(server, "anna")["progress"]["queries"] == 2
        assert len(server.get("/api/comparison").json["queries"]) == 2


def test_a_browser_over_plain_http_writes_and_programs_need_the_token(server: Served) -> None:
    """Such a browser sends no `Sec-Fetch-Site`."""
    hit = state(server, "plain")["hit"]
    body = {"rater": "plain", "id": "plain-00000001", "qid": hit["qid"], "docid": hit["docid"], "grade": 1}
    own = f"http://127.0.0.1:{server.port}"
    sent = [{"origin": own}, {"origin": "http://elsewhere.test"}, {"sec_fetch_site": "none"}, {}]
    assert [server.ask("POST", "/api/judgments", body, **headers).status for headers in sent] == [200, 403, 401, 401]


def test_a_torn_journal_is_served_and_a_damaged_one_refused(folder: Path, tmp_path: Path) -> None:
    journal = tmp_path / "j.jsonl"
    whole = '{"qid": "001", "docid": "salt", "grade": 3, "rater": "anna"}\n'
    journal.write_text(whole + '{"qid": "001", "docid": "sa')
    with serving(folder, journal) as server:
        assert state(server, "anna")["progress"]["answers"] == 1
        assert "incomplete" in server.log.read_text()
        answered(server, "anna", 1, grade=0)
    assert journal.read_text().startswith(whole)
    assert len(rows_of(journal)) == 2
    journal.write_text('{"qid": 3}\n' + whole)
    with pytest.raises(AssertionError, match="line 1"), serving(folder, journal):
        pass


def test_a_second_server_on_a_journal_is_refused(folder: Path, tmp_path: Path) -> None:
    journal = tmp_path / "j.jsonl"
    with serving(folder, journal) as server:
        with pytest.raises(AssertionError, match=r"j\.jsonl"), serving(folder, journal):
            pass
        answered(server, "anna", 1, grade=1)
        assert server.stop(signal.SIGKILL) == -signal.SIGKILL
    with serving(folder, journal) as server:
        assert state(server, "anna")["progress"]["answers"] == 1


class Desk(Tab):
    def begin(self, rater: str) -> None:
        self.open("#/judge")
        self.page.fill("#rater", rater)
        self.page.keyboard.press("Enter")
        self.wait()

    def wait(self) -> None:
        self.page.wait_for_selector(".grades button:enabled")

    @property
    def hit(self) -> tuple[str, str]:
        return self.page.text_content(".to-judge .query"), self.page.text_content(".to-judge .title")

    def press(self, key: str) -> None:
        before = self.hit
        self.page.keyboard.press(key)
        self.page.wait_for_function(
            "([query, title]) => document.querySelector('.to-judge .query')?.textContent !== query"
            " || document.querySelector('.to-judge .title')?.textContent !== title",
            arg=list(before),
        )
        self.wait()


def test_twenty_hits_by_keys_over_a_reload_and_a_kill(folder: Path, tmp_path: Path, browser: Any) -> None:
    journal = tmp_path / "j.jsonl"
    grades, keys = [], "0123"
    with serving(folder, journal) as server:
        desk = Desk(browser, server.url)
        desk.begin("anna")
        for number in range(12):
            if number == 6:
                before = desk.hit
                desk.page.reload()
                desk.wait()
                assert desk.hit == before
            grades.append((desk.hit, number % 4))
            desk.press(keys[number % 4])
        assert len(rows_of(journal)) == 12
        server.stop(signal.SIGKILL)
        grades.append((desk.hit, 2))
        desk.page.keyboard.press("2")
        desk.page.wait_for_selector("#banner button")
        desk.page.wait_for_selector(".notice p")
        assert desk.page.is_disabled(".grades button")
        port = server.port
    assert len(rows_of(journal)) == 12
    with serving(folder, journal, port) as server:
        desk.page.wait_for_selector("#banner:empty", state="attached")
        desk.wait()
        for _ in range(600):
            if len(rows_of(journal)) == 13:
                break
            desk.page.wait_for_timeout(100)
        desk.page.wait_for_function(
            "title => document.querySelector('.to-judge .title')?.textContent !== title", arg=grades[-1][0][1]
        )
        desk.wait()
        for number in range(13, 20):
            grades.append((desk.hit, number % 4))
            desk.press(keys[number % 4])
    rows = rows_of(journal)
    titles = {docid: title or docid for docid, title, _ in TINY_DOCUMENTS}
    assert [((row["query"], titles[row["docid"]]), row["grade"]) for row in rows] == grades
    assert len({(row["qid"], row["docid"]) for row in rows}) == 20
    assert all(0 <= row["seconds"] < 60 for row in rows)
    assert desk.faults == []


def test_marks_are_off_at_first_and_guidelines_are_no_html(server: Served, browser: Any) -> None:
    desk = Desk(browser, server.url)
    desk.begin("marks")
    page = desk.page
    background = "() => getComputedStyle(document.querySelector('.to-judge mark')).backgroundColor"
    for _ in range(40):
        if page.locator(".to-judge .text mark").count():
            break
        desk.press("0")
    assert page.evaluate(background) == "rgba(0, 0, 0, 0)", "marks favour lexical hits"
    page.keyboard.press("h")
    assert page.evaluate(background) != "rgba(0, 0, 0, 0)"
    assert page.locator(".markdown li").count() == 2
    assert "<b>text</b>" in page.text_content(".markdown")
    assert desk.faults == []


def test_time_counts_only_while_someone_is_there(server: Served, shared: Path, browser: Any) -> None:
    desk = Desk(browser, server.url)
    desk.page.clock.install()
    desk.begin("clock")
    for advance, milliseconds, least in ("run_for", 5_000, 5), ("fast_forward", 3_600_000, 60):
        getattr(desk.page.clock, advance)(milliseconds)
        desk.press("1")
        (*_, last) = (row for row in rows_of(shared) if row["rater"] == "clock")
        assert least <= last["seconds"] < least + 10, "a person who does nothing for a minute is away"


@pytest.mark.parametrize(("width", "scheme"), [(390, "light"), (1600, "dark")])
def test_it_fits_and_is_accessible(server: Served, browser: Any, width: int, scheme: str) -> None:
    from axe_playwright_python.sync_playwright import Axe

    desk = Desk(browser, server.url, width, scheme, has_touch=width < 500)
    desk.open("#/judge")
    desk.page.wait_for_selector("#rater")
    faults = [Axe().run(desk.page)]
    desk.begin(f"{scheme}{width}")
    desk.page.click(".grades .g2")
    desk.page.wait_for_function("() => document.querySelector('.progress').textContent.includes('1 grade')")
    desk.page.evaluate("document.querySelector('details.list').open = true")
    desk.page.wait_for_selector(".list li")
    faults.append(Axe().run(desk.page))
    desk.page.evaluate("scrollTo(0, 1e6)")
    box = desk.page.locator(".answers").bounding_box()
    assert desk.page.evaluate("document.documentElement.scrollWidth") <= width
    assert width > 500 or all(
        each.bounding_box()["height"] >= 24 for each in desk.page.locator(".answers button:visible").all()
    )
    assert box is not None
    for action in ("Skip", "Keys") if width > 500 else ("Skip",):  # a phone has no keys
        desk.page.click(f".answers >> text={action}")
        desk.page.wait_for_selector("dialog[open]")
        faults.append(Axe().run(desk.page))
        desk.page.keyboard.press("Escape")
        desk.page.wait_for_selector("dialog", state="detached")
    assert [found.generate_report() for found in faults if found.violations_count] == []
    assert desk.faults == []
