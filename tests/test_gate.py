"""`gate`: exit codes, p-values and reports against a baseline, and its rate of false alarms."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from command import Notices, hybrid, ran, refused
from scipy import stats
from small_artifacts import write_run
from tiny_collection import write_lines

from hybrid_cli.commands import PreparePythonDocs
from hybrid_cli.evaluation.gate import Baseline, deviation_of, drop_p_values, smallest_drop
from hybrid_cli.evaluation.significance import ALPHA
from hybrid_cli.reporting.gate import Gated
from hybrid_cli.stages.gate import compare, gate
from hybrid_cli.stages.index_bm25 import index_bm25
from hybrid_cli.stages.prepare import prepare
from hybrid_cli.stages.search import search
from hybrid_cli.storage import disk

QUERIES = [f"q{number:02}" for number in range(40)]
Ranks = Mapping[str, int]  # qid -> rank of its relevant document; 0 for none


def run_of(path: Path, ranks: Ranks) -> Path:
    rows = [
        (qid, f"{qid}-good" if rank == good else f"d{rank}", rank, 11.0 - rank)
        for qid, good in ranks.items()
        for rank in range(1, 11)
    ]
    return write_run(path, rows)


def qrels_of(path: Path, qids: list[str], grade: int = 1) -> Path:
    path.write_text("".join(f"{qid}\t{qid}-good\t{grade}\n{qid}\td1\t0\n" for qid in qids), "utf-8")
    return path


def ranks(lost: int = 0, to: int = 2) -> dict[str, int]:
    """Return ranks of the first relevant document: 1, and `to` for the first `lost` queries."""
    return {qid: to if number < lost else 1 for number, qid in enumerate(QUERIES)}


@pytest.fixture
def stored(workdir: Path) -> Path:
    """A baseline of MRR@10 = 1 for 40 queries, in the working folder with its judgments."""
    run_of(workdir / "before.parquet", ranks())
    qrels_of(workdir / "qrels.tsv", QUERIES)
    ran("gate", "before.parquet", *MRR, "--write")
    return workdir / "quality.json"


BASELINE = ("--qrels", "qrels.tsv", "--baseline", "quality.json")
MRR = (*BASELINE, "--measure", "MRR@10")


def gated(run: Path, **options: Any) -> Gated:
    result = gate(run, qrels=Path("qrels.tsv"), baseline=Path("quality.json"), **options)
    return result


@pytest.mark.parametrize(
    ("now", "max_drop", "code"),
    [
        (ranks(), 0.01, 0),
        (ranks(lost=10), 0.01, 1),  # 10 of 40 lose .5: a mean of .125
        (ranks(lost=10), 0.2, 0),  # within the tolerance
        (ranks(lost=3, to=10), 0.0, 4),  # a loss of three queries may be chance: 1/8
        (ranks(lost=4, to=10), 0.0, 4),  # 1/16
        (ranks(lost=5, to=10), 0.0, 1),  # 1/32
    ],
    ids=["equal", "loss", "within", "three", "four", "five"],
)
def test_the_exit_code_says_whether_the_mean_dropped(stored: Path, now: Ranks, max_drop: float, code: int) -> None:
    run_of(Path("now.parquet"), now)
    assert hybrid("gate", "now.parquet", *BASELINE, "--max-drop", max_drop).code == code
    printed = hybrid("gate", "now.parquet", *BASELINE, "--max-drop", max_drop, "--format", "json")
    assert json.loads(printed.out)["passed"] == (code == 0)
    assert gated(Path("now.parquet"), max_drop=max_drop).passed == (code == 0)


def test_the_values_of_a_loss(stored: Path) -> None:
    run_of(Path("now.parquet"), ranks(lost=12))
    result = gated(Path("now.parquet"), max_drop=0.0)
    (test,) = result.tests
    differences = np.repeat([-0.5, 0.0], [12, 28])
    ends = stats.ttest_1samp(differences, 0).confidence_interval(0.95)
    assert test.before == 1.0
    assert test.now == pytest.approx(0.85)
    assert test.interval == pytest.approx((ends.low, ends.high))
    assert test.p == pytest.approx(2.0**-12, abs=1e-3)
    assert test.deviation.value == pytest.approx(differences.std(ddof=1))
    assert [lost.qid for lost in result.lost] == QUERIES[:10]
    first = result.lost[0]
    assert (first.before, first.now) == (1.0, 0.5)
    assert [hit.docid for hit in first.hits_before[:2]] == ["q00-good", "d2"]
    assert [hit.relevant for hit in first.hits_now[:3]] == [False, True, False]
    assert len(first.hits_now) == 10


def test_a_better_run_passes_and_queries_that_lost_most_come_first(stored: Path) -> None:
    run_of(Path("worse.parquet"), ranks(lost=20) | {"q07": 10, "q09": 5})
    lost = gated(Path("worse.parquet")).lost
    assert [query.qid for query in lost[:3]] == ["q07", "q09", "q00"]
    gate(Path("worse.parquet"), qrels=Path("qrels.tsv"), baseline=stored, write=True)
    result = gated(Path("before.parquet"), max_drop=0.0)
    assert result.passed
    assert result.tests[0].now - result.tests[0].before == pytest.approx((18 * 0.5 + 0.9 + 0.8) / 40)
    assert result.tests[0].p > 0.99


def test_p_values_of_several_measures_are_those_of_holm(stored: Path) -> None:
    """Lost queries of 6, 7 and 1 of 40 by one each: 2^-6, 2^-7 and 2^-1."""
    now = np.column_stack([np.repeat([0.0, 1.0], [lost, 40 - lost]) for lost in (6, 7, 1)])
    expected = [2 * 2.0**-6, 3 * 2.0**-7, 0.5]
    np.testing.assert_allclose(drop_p_values(np.ones((40, 3)), now), expected, atol=0.012)
    measures = "MRR@10,Success@5,nDCG@10"
    ran("gate", "before.parquet", *BASELINE, "--measure", measures, "--write")
    run_of(Path("now.parquet"), ranks(lost=5, to=10))
    result = gated(Path("now.parquet"), max_drop=0.0)
    assert ",".join(test.measure for test in result.tests) == measures
    assert result.verdict == "undecided", "1/32 in each of three measures"
    assert [test.p for test in result.tests] == pytest.approx([3 / 32] * 3, abs=0.01)
    alone = gated(Path("now.parquet"), max_drop=0.0, measure=["Success@5"])
    assert alone.verdict == "failed"
    assert alone.tests[0].p == pytest.approx(1 / 32, abs=0.004)


def test_other_queries_or_judgments_have_exit_code_3(stored: Path) -> None:
    cases = {"queries added": [*QUERIES, "q98", "q99"], "queries removed": QUERIES[:-2]}
    for name, qids in cases.items():
        qrels_of(Path("qrels.tsv"), qids)
        done = hybrid("gate", "before.parquet", *BASELINE)
        expected = [*sorted(set(qids) ^ set(QUERIES))]
        assert (done.code, done.out) == (3, "")
        assert done.is_problem("other-queries", path="quality.json", differences={name: expected})
    qrels_of(Path("qrels.tsv"), QUERIES)
    with Path("qrels.tsv").open("a") as file:
        file.write("q03\td7\t1\n")
    done = hybrid("gate", "before.parquet", *BASELINE, "--format", "json")
    assert done.code == 3
    assert json.loads(done.err.splitlines()[-1])["differences"] == {"queries with other judgments": ["q03"]}
    texts = Path("queries.tsv")
    texts.write_text("".join(f"{qid}\ttext of {qid}\n" for qid in QUERIES))
    ran("gate", "before.parquet", *BASELINE, "--queries", texts, "--write")
    assert hybrid("gate", "before.parquet", *BASELINE).code == 0, "texts that are unknown are not compared"
    texts.write_text(texts.read_text().replace("of q05", "about q05"))
    done = hybrid("gate", "before.parquet", *BASELINE, "--queries", texts)
    assert (done.code, done.fields["differences"]) == (3, {"queries with another text": ["q05"]})


def test_bad_input_is_refused_in_one_line(stored: Path) -> None:
    Path("broken.json").write_text(stored.read_text()[:-40])
    refused("gate", "before.parquet", *BASELINE[:3], "broken.json", problem="not-json")
    Path("else.json").write_text('{"some": "file"}')
    refused("gate", "before.parquet", *BASELINE[:3], "else.json", "--write", problem="json-unknown-field")
    content = json.loads(stored.read_text())
    Path("newer.json").write_text(json.dumps(content | {"format": 2}))
    refused("gate", "before.parquet", *BASELINE[:3], "newer.json", problem="newer-format")
    content["queries"]["q03"]["values"] = []
    Path("short.json").write_text(json.dumps(content))
    refused("gate", "before.parquet", *BASELINE[:3], "short.json", problem="damaged", id="q03")
    refused("gate", "before.parquet", *MRR, "--max-drop", 1.0, problem="out-of-range", option="max_drop")


@pytest.mark.parametrize(("queries", "measures", "enough"), [(4, "MRR@10", 5), (5, "MRR@10,R@10", 6)])
def test_a_gate_that_cannot_fail_is_not_written(workdir: Path, queries: int, measures: str, enough: int) -> None:
    """It passed after a fall from 1 to 0."""
    qids = QUERIES[:enough]
    run_of(workdir / "before.parquet", dict.fromkeys(qids, 1))
    run_of(workdir / "now.parquet", dict.fromkeys(qids, 0))
    words = [*BASELINE, "--measure", measures]
    qrels_of(workdir / "qrels.tsv", qids[:queries])
    assert hybrid("gate", "before.parquet", *words, "--write").is_problem("too-few-queries", count=queries)
    qrels_of(workdir / "qrels.tsv", qids)
    ran("gate", "before.parquet", *words, "--write")
    assert hybrid("gate", "now.parquet", *words).code == 1


def test_a_deleted_document_is_no_regression(workdir: Path) -> None:
    documents = [f"d{number}" for number in range(10)]
    write_lines(workdir / "docs.jsonl", [{"docid": docid, "text": f"text number {docid}"} for docid in documents])
    write_lines(workdir / "few.jsonl", [{"docid": docid, "text": f"text number {docid}"} for docid in documents[1:]])
    (workdir / "queries.tsv").write_text("".join(f"q{docid}\t{docid}\n" for docid in documents))
    (workdir / "qrels.tsv").write_text("".join(f"q{docid}\t{docid}\t1\nq{docid}\tnever\t1\n" for docid in documents))
    for name in ("docs", "few"):
        ran("prepare", "files", f"{name}.jsonl", "--output", name)
        ran("index-bm25", name, "--no-lucene", "--output", f"{name}-bm25")
        ran("search", "--queries", "queries.tsv", "--index", f"{name}-bm25", "--output", f"{name}.parquet")
    ran("gate", "docs.parquet", *MRR, "--write")
    done = hybrid("gate", "few.parquet", *MRR, "--format", "json")
    found = json.loads(done.out)
    assert (done.code, found["verdict"], found["queries"], found["gone"]) == (0, "passed", 9, {"qd0": ["d0"]})


def test_the_baseline_has_one_line_per_query_and_is_never_cut(stored: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before, content = stored.read_bytes(), json.loads(stored.read_text())
    assert [line.split('"')[1] for line in stored.read_text().splitlines() if '"hits"' in line] == QUERIES
    assert (content["format"], content["measures"]) == (1, ["MRR@10"])
    assert content["queries"]["q00"]["values"] == [1.0]
    assert (len(content["queries"]["q00"]["hits"]), content["queries"]["q00"]["hits"][:2]) == (10, ["q00-good", "d2"])
    ran("gate", "before.parquet", *MRR, "--write")
    assert stored.read_bytes() == before

    def full(path: Path, text: str) -> None:
        path.write_text(text[:100])
        raise KeyboardInterrupt

    monkeypatch.setattr(disk, "write_text", full)
    with pytest.raises(KeyboardInterrupt):
        Baseline(["MRR@10"], {}, {}).write(stored)
    assert stored.read_bytes() == before
    assert sorted(path.name for path in Path().iterdir()) == ["before.parquet", "qrels.tsv", "quality.json"]


def test_renewing_says_how_the_means_change_and_keeps_the_deviation(stored: Path) -> None:
    run_of(Path("now.parquet"), ranks(lost=10))
    done = hybrid("gate", "now.parquet", *BASELINE, "--write", "--format", "json")
    assert json.loads(done.out)["means"] == {"MRR@10": {"before": 1.0, "now": 0.875}}
    deviation = float(np.repeat([0.5, 0.0], [10, 30]).std(ddof=1))
    assert Baseline.read(stored).deviations == {"MRR@10": pytest.approx(deviation)}
    (test,) = gated(Path("now.parquet")).tests
    assert test.deviation.origin == "earlier differences"
    assert test.deviation.value == pytest.approx(deviation)
    ran("gate", "now.parquet", *BASELINE, "--write")
    assert Baseline.read(stored).deviations == {"MRR@10": pytest.approx(deviation)}


def test_changes_of_the_system_are_named_and_summaries_are_appended(stored: Path) -> None:
    run_of(Path("now.parquet"), ranks())
    write_run(Path("now.parquet"), pl.read_parquet("now.parquet").rows(), overwrite=True, k1=2.0)
    assert gated(Path("now.parquet")).changed == {"k1": (None, 2.0)}
    Path("summary.md").write_text("# Before\n")
    for run in ("before.parquet", "now.parquet"):
        hybrid("gate", run, *BASELINE, "--summary", "summary.md")
    assert Path("summary.md").read_text().startswith("# Before\n### ")
    assert Path("summary.md").read_text().count("\n### ") == 2


def test_a_drop_that_the_queries_cannot_detect_is_warned_about(stored: Path) -> None:
    run_of(Path("now.parquet"), ranks(lost=2))
    done = hybrid("gate", "now.parquet", *BASELINE, "--max-drop", ".01")
    (test,) = gated(Path("now.parquet"), max_drop=0.01).tests
    assert test.smallest_drop is not None
    assert done.says("undetectable-drop", measure="MRR@10", drop=test.smallest_drop)
    assert not hybrid("gate", "now.parquet", *BASELINE, "--max-drop", ".1").warnings


@pytest.mark.parametrize(("queries", "measures"), [(10, 1), (50, 1), (50, 3), (500, 1)])
def test_the_smallest_drop_has_a_power_of_80_percent(queries: int, measures: int) -> None:
    drop = smallest_drop(0.2, queries, measures)
    assert drop is not None
    critical = stats.t.ppf(1 - ALPHA / measures, queries - 1)
    assert stats.nct.sf(critical, queries - 1, drop / 0.2 * np.sqrt(queries)) == pytest.approx(0.8, abs=1e-4)
    assert smallest_drop(0.4, queries, measures) == pytest.approx(2 * drop)
    assert smallest_drop(0.2, 4, measures) is None, "too few queries to detect anything"


def test_the_deviation_is_that_of_the_differences_else_an_earlier_one_else_an_estimate() -> None:
    values = np.array([0.0, 0.5, 1.0, 0.5])
    assert deviation_of(values, values[::-1]).origin == "differences"
    assert deviation_of(values, values, 0.3).value == 0.3
    estimated = deviation_of(values, values)
    assert estimated.origin == "values"
    assert estimated.value == pytest.approx(values.std(ddof=1) / 2)


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("real")
    prepare(PreparePythonDocs(package=["rich"], output=folder / "data/mine"))
    index_bm25(folder / "data/mine", output=folder / "out/retriever")
    search(folder / "data/mine", split="test", index=folder / "out/retriever", output=folder / "first.parquet")
    options: dict[str, Any] = {"split": "test", "k1": 5.0}
    search(folder / "data/mine", index=folder / "out/retriever", b=1.0, output=folder / "second.parquet", **options)
    return folder


def test_false_alarms_without_a_true_change_are_rare(real: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Real differences with random signs, as whole baselines, with Holm over three measures."""
    monkeypatch.chdir(real)
    measures = ("MRR@10", "nDCG@10", "R@100")
    baselines = []
    for run in ("first", "second"):
        call = ("gate", f"{run}.parquet", "data/mine", "--split", "test", "--baseline", f"{run}.json")
        ran(*call, "--write", "--measure", ",".join(measures))
        baselines.append(Baseline.read(Path(f"{run}.json")))
    first, second = baselines
    rng = np.random.default_rng(7)
    alarms = 0
    for _ in range(300):
        swapped = dict(zip(first.qids, rng.random(len(first.qids)) < 0.5, strict=True))
        before, now = (
            Baseline(measures, {}, {qid: (one if swap else other).queries[qid] for qid, swap in swapped.items()})
            for one, other in ((first, second), (second, first))
        )
        alarms += bool(compare(Path("x.json"), before, now, measures, 0.0).dropped)
    assert alarms / 300 <= 0.05 + 2 * (0.05 * 0.95 / 300) ** 0.5


def test_an_index_is_searched(real: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, notices: Notices) -> None:
    monkeypatch.chdir(real)
    baseline = tmp_path / "quality.json"
    gate(Path("first.parquet"), Path("data/mine"), split="test", baseline=baseline, write=True)
    equal = gate(Path("out/retriever"), split="test", baseline=baseline)
    assert equal.passed
    assert equal.tests[0].before == equal.tests[0].now
    assert notices.says("assumed-collection", path="data/mine")
    worse = pl.read_parquet("first.parquet").with_columns(pl.col("docid").reverse().over("qid"))
    write_run(tmp_path / "worse.parquet", worse.rows())
    result = gate(tmp_path / "worse.parquet", Path("data/mine"), split="test", baseline=baseline)
    assert not result.passed
    assert result.lost[0].text
    assert all(hit.text or hit.title for query in result.lost for hit in query.hits_before)
