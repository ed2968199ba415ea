"""Tables of the papers: cells, published figures, and every row on a sample."""

import csv
import json
import re
import shutil
import sys
from itertools import combinations
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import yaml
from small_artifacts import write_run
from test_architecture import REPOSITORY
from tiny_collection import write_lines

from hybrid_cli import runs, storage
from hybrid_cli.collections import collection
from hybrid_cli.commands import PrepareDpr
from hybrid_cli.errors import InputError
from hybrid_cli.evaluation.complementarity import rbo
from hybrid_cli.evaluation.measures import evaluate_run
from hybrid_cli.stages.evaluate import evaluate
from hybrid_cli.stages.prepare import prepare

sys.path.insert(0, str(Path(__file__).parents[1] / "studies"))

import one_process
import tables


@pytest.fixture(scope="module")
def out(made: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Outputs with the runs of BM25 and of an encoder in two seeds, of which the second is BM25's run."""
    folder = tmp_path_factory.mktemp("tables")
    for name in ("collection", "model", "bm25", "dense"):
        (folder / name).symlink_to(made / name)
    sources = {"bm25": "bm25", "roc/seed-1/dense": "dense", "roc/seed-2/dense": "bm25", "lite/seed-1/dpr": "dense"}
    for name, source in (sources | {"robustness/bm25": "bm25", "robustness/bm25@shuffle": "dense"}).items():
        suffix = "" if name.startswith("robustness") else ".test"
        target = folder / f"{name}{suffix}.parquet"
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(made / f"{source}.parquet", target)
    return folder


def value(run: Path, data: Path, measure: str) -> np.ndarray:
    qrels = collection.read_qrels(data / "qrels.test.parquet")
    found = evaluate_run(runs.read_run(run), qrels, [measure]).filter(measure=measure)
    return found.sort("qid")["value"].to_numpy()


def test_cells_are_means_over_queries_and_seeds_with_their_runs(made: Path, out: Path) -> None:
    where = tables.Collection(made / "collection", out, "test")
    text = tables.page(where, with_costs=False)
    bm25, dense = (value(made / f"{name}.parquet", where.data, "MAP") for name in ("bm25", "dense"))
    with (out / "tables" / "tables.csv").open() as opened:
        rows = list(csv.DictReader(opened))
    roc = [row for row in rows if row["table"].startswith("RoC, tables 3 to 5") and row["column"] == "MAP"]
    assert {row["row"]: float(row["mean"]) for row in roc} == {
        "BM25": pytest.approx(bm25.mean()),
        "DPR": pytest.approx(((bm25 + dense) / 2).mean()),
    }
    seeds = [row["run"] for row in roc if row["row"] == "DPR"]
    assert seeds == [str(out / f"roc/seed-{seed}/dense.test.parquet") for seed in (1, 2)]
    assert {row["fingerprint"] for row in roc if row["row"] == "BM25"} == {
        storage.fingerprint(out / "bm25.test.parquet")
    }
    assert "| BM25 | " in text
    mrr = value(made / "bm25.parquet", where.data, "MRR@10").mean()
    assert f"| .191 | {tables.with_sign(mrr - 0.191, 3)} |" in text
    assert "BM25+RM3; DeepCT; DeepCT+RM3" in text
    assert r"\begin{tabular}" in (out / "tables" / "tables.tex").read_text()


def test_published_figures_have_a_column_and_a_run() -> None:
    for table in tables.TABLES:
        assert len({row.run for row in table.rows}) == len(table.rows), table.title
        columns = {column for column, name in table.columns.items() if name}
        assert all(row.paper.keys() <= columns for row in table.rows), table.title


def test_every_table_of_the_papers_has_a_state() -> None:
    """A table of a paper is measured by tables that exist, replaced by another measurement, or omitted for a reason."""
    content = yaml.safe_load(tables.PUBLISHED.read_text("utf-8"))
    titles, named = {table.title for table in tables.TABLES}, set[str]()
    assert len(titles) == len(tables.TABLES)
    for paper, parts in content["papers"].items():
        for part, states in parts.items():
            ((state, of),) = states.items()
            assert state in ("run", "stand-in", "out of scope"), (paper, part)
            assert of, (paper, part)
            named |= set(of) if state == "run" else set()
    assert named == titles
    cells = {table.title: sum(len(row.paper) for row in table.rows) for table in tables.TABLES}
    assert cells["LITE, table 4, robustness (NQ; the mean drop is recomputed from the printed cells)"] == 9 * 8
    assert cells["LITE, table 3 (BEIR; the average includes MS MARCO)"] == 5 * 15
    assert cells["SPAR, table 4 (BEIR)"] == 10 * 15
    assert cells["SPAR, table 3 (MS MARCO dev)"] == 17 * 3


def test_rows_of_a_sample_have_rankings_of_their_own(made: Path, out: Path) -> None:
    """Rows that coincide or are missing are named; rows that must coincide may not differ."""
    where, table = small(made, out, agrees=True)
    paper = {"MRR@10": 0.1}
    bm25, dense, copy, absent = (
        tables.Row(name, run, paper)
        for name, run in (("A", "bm25"), ("B", "lite/seed-1/dpr"), ("C", "roc/seed-2/dense"), ("D", "no-such-run"))
    )
    for rows, same, named in (
        ((bm25, dense), (), ()),
        ((bm25, dense, copy), (), ("A; C",)),
        ((bm25, dense, copy), (("A", "C"),), ()),
        ((bm25, dense), (("A", "B"),), ("A; B",)),
        ((bm25, absent), (), (": D:", "`make c SCALE=small`")),
    ):
        text, passed = tables.check_sample(where, [tables.replace(table, rows=rows, same=same)])
        assert passed == (not named)
        assert all(each in text for each in named)


def test_roc_and_its_counts_have_intervals(made: Path, out: Path) -> None:
    where = tables.Collection(made / "collection", out, "test")
    (table,) = (each for each in tables.TABLES if tables.ROC in each.columns)
    cells = {cell.column: cell for cell in tables.cells(where, table, "roc") if cell.row == "DPR"}
    dense, lexical = (value(made / f"{name}.parquet", where.data, "Success@10") for name in ("dense", "bm25"))
    both = (dense + lexical) / 2
    parts = {
        "D only@10": both * (1 - lexical),
        "S only@10": lexical * (1 - both),
        "Fail@10": (1 - both) * (1 - lexical),
    }
    assert cells[tables.ROC].mean == pytest.approx(parts["D only@10"].sum() / both.sum())
    assert {name: cells[name].mean for name in parts} == {
        name: pytest.approx(part.mean()) for name, part in parts.items()
    }
    assert all(cell.low <= cell.mean <= cell.high for cell in cells.values())


def test_drops_are_means_over_the_attacks(made: Path, out: Path) -> None:
    where = tables.Collection(made / "collection", out, "test")
    (table,) = (each for each in tables.TABLES if tables.DROP in each.columns)
    table = tables.replace(
        table, documents=None, queries=None, columns=table.columns | {"shuffle": "WOS"}, tolerance=100
    )
    bm25, dense = (value(made / f"{name}.parquet", where.data, "Success@100") for name in ("bm25", "dense"))
    for attacks, compared in ((("shuffle",), 2), (table.attacks, 1)):  # the mean over other attacks is not compared
        of_paper = tables.replace(table, attacks=attacks)
        original, attacked, drop = tables.robustness(where, of_paper)
        assert [each.mean for each in (original, attacked, drop)] == [
            pytest.approx(bm25.mean()),
            pytest.approx(dense.mean()),
            pytest.approx(bm25.mean() - dense.mean()),
        ]
        text, passed = tables.check(where, [of_paper])
        assert passed
        assert f"{compared} of {compared} figures" in text


def test_a_repeated_call_measures_nothing_and_a_changed_run_is_measured_again(made: Path, out: Path) -> None:
    where = tables.Collection(made / "collection", out, "test")
    tables.page(where, with_costs=False)
    file = out / "tables" / "tables-0.parquet"
    content, old = file.read_bytes(), pl.read_parquet(file)
    tables.page(where, with_costs=False)
    assert file.read_bytes() == content
    try:
        shutil.copyfile(made / "dense.parquet", out / "bm25.test.parquet")
        tables.page(where, with_costs=False)
        assert not pl.read_parquet(file).equals(old)
    finally:
        shutil.copyfile(made / "bm25.parquet", out / "bm25.test.parquet")


def test_overlap_with_bm25_is_that_of_evaluate(made: Path, out: Path) -> None:
    where = tables.Collection(made / "collection", out, "test")
    (table,) = (each for each in tables.TABLES if each.title.startswith("SPAR, table 6, overlap with BM25 (NQ"))
    folder = table.rows[0].run.split("seed-")[0]
    (out / folder / "seed-1").mkdir(parents=True, exist_ok=True)
    shutil.copyfile(made / "dense.parquet", out / folder / "seed-1" / "dense.test.parquet")
    (found,) = (cell for cell in tables.cells(where, table, "overlap") if cell.row == "DPR")
    judged = collection.read_qrels(where.data / "qrels.test.parquet")["qid"].unique()
    every = rbo(runs.read_run(made / "dense.parquet"), runs.read_run(made / "bm25.parquet"))
    assert found.mean == pytest.approx(every.filter(pl.col("qid").is_in(judged.implode()))["value"].mean())


def small(made: Path, out: Path, agrees: bool) -> tuple[tables.Collection, tables.Table]:
    """A table of BM25 whose published figure agrees with ours, or differs by more than the tolerance."""
    where = tables.Collection(made / "collection", out, "test", "small")
    mrr = value(made / "bm25.parquet", where.data, "MRR@10").mean()
    row = tables.Row("BM25", "bm25", {"MRR@10": mrr + (0.004 if agrees else 0.006)})
    return where, tables.Table("t", "c", "", {"MRR@10": "MRR"}, (row,), 1, 0.005, documents=12)


def test_the_check_names_figures_beyond_the_tolerance(made: Path, out: Path) -> None:
    for agrees in (True, False):
        where, table = small(made, out, agrees)
        text, passed = tables.check(where, [table])
        assert passed == agrees
        assert ("t: BM25: MRR@10 is " in text) != agrees
        assert f"{int(agrees)} of 1 figures agree" in text


@pytest.mark.parametrize(("other", "run"), [({"documents": 13}, "bm25"), ({"queries": 7}, "bm25"), ({}, "no-such-run")])
def test_a_check_without_comparable_figures_fails_and_names_the_command(
    made: Path, out: Path, other: dict[str, int], run: str
) -> None:
    where, table = small(made, out, agrees=True)
    assert tables.check(where, [tables.replace(table, documents=None, queries=None)])[1]
    table = tables.replace(table, rows=(tables.replace(table.rows[0], run=run),), **other)
    text, passed = tables.check(where, [table])
    assert not passed
    assert text.count("`make c`") == 2  # at the table, and in the summary
    assert "0 of 0" in text


def test_figures_need_a_tolerance_and_a_column(tmp_path: Path) -> None:
    file = tmp_path / "published.yaml"
    table = "{title: t, collection: c, from: '', unit: 1, columns: {MAP: MAP}, rows: {BM25: [bm25, .2%s]}%s}"
    for more, tolerance in (("", ", tolerance: 1"), ("", ""), (", .3", ", tolerance: 1")):
        file.write_text(f"collections: {{c: {{documents: 1}}}}\nattacks: []\ntables: [{table % (more, tolerance)}]\n")
        if tolerance and not more:
            assert tables.published(file)[0].rows[0].paper == {"MAP": 0.2}
        else:
            with pytest.raises(InputError):
                tables.published(file)


def test_means_over_parts_need_all_parts(made: Path, tmp_path: Path) -> None:
    columns = {"a MRR@10": "a", "macro MRR@10": "average"}
    row = tables.Row("BM25", "bm25", {"macro MRR@10": 0.5})
    for parts, means in ((1, ["a MRR@10", "macro MRR@10"]), (2, ["a MRR@10"])):
        measurements = tmp_path / "a" / "measurements.parquet"
        measurements.parent.mkdir(exist_ok=True)
        run = f"bm25={made / 'bm25.parquet'}"
        evaluate([made / "collection", run], split="test", measure=["MRR@10"], output=measurements)
        where = tables.Collection(made / "collection", tmp_path, "test")
        table = tables.Table("t", "c", "", columns, (row,), 1, 0.005, parts=parts)
        cells = list(tables.part_cells(where, table))
        assert [cell.column for cell in cells] == means
        assert cells[0].mean == pytest.approx(value(made / "bm25.parquet", where.data, "MRR@10").mean())


def test_overlaps_of_parts_are_those_of_their_runs(made: Path, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    named = [f"{name}={made / name}.parquet" for name in ("bm25", "dense")]
    evaluate(
        [made / "collection", *named],
        split="test",
        measure=["MRR@10"],
        overlap_with=str(made / "bm25.parquet"),
        output=tmp_path / "a" / "measurements.parquet",
    )
    rows = tuple(tables.Row(name, name) for name in ("bm25", "dense"))
    table = tables.Table("t", "c", "", {"a RBO": None}, rows, 1, 0.005, parts=1)
    found = {cell.row: cell.mean for cell in tables.part_cells(tables.Collection(made, tmp_path, "test"), table)}
    judged = collection.read_qrels(made / "collection" / "qrels.test.parquet").select("qid").unique()
    lists = {name: runs.read_run(made / f"{name}.parquet") for name in found}
    every = {name: judged.join(rbo(run, lists["bm25"]), on="qid", how="left") for name, run in lists.items()}
    assert found == {name: pytest.approx(values["value"].fill_null(0).mean()) for name, values in every.items()}
    assert 0 < found["dense"] < found["bm25"]


def test_rows_without_judgments_are_timed_on_the_questions_of_dev(made: Path, out: Path, tmp_path: Path) -> None:
    data = shutil.copytree(made / "collection", tmp_path / "data")
    table = tables.Table("t", "c", "", {tables.LATENCY: None}, (tables.Row("BM25", "bm25"),), 1, 0.01)
    (out / "tables").mkdir(exist_ok=True)
    for old, name, columns in (("test", "other", [tables.BYTES]), ("other", "dev", [tables.BYTES, tables.LATENCY])):
        for kind in ("queries", "qrels"):
            (data / f"{kind}.{old}.parquet").rename(data / f"{kind}.{name}.parquet")
        found = list(tables.costs(tables.Collection(data, out, "test"), table, name))
        assert [cell.column for cell in found] == columns
        assert all(cell.mean > 0 for cell in found)


def test_questions_without_judgments_are_measured_by_their_answers(here: Path) -> None:
    folder = here / "asked"
    questions = [("salt", ["sodium"]), ("moon", ["tides", "two high tides"]), ("tea", ["price in China"])]
    rows = [{"question": question, "answers": answers} for question, answers in questions]
    write_lines(folder / "test.json", json.dumps(rows))
    passages = [("id", "text", "title"), (1, "made of sodium", "Salt"), (2, "two high tides a day", "Sea")]
    write_lines(folder / "psgs_w100.tsv", *("\t".join(map(str, row)) for row in passages))
    source = PrepareDpr(folder / "psgs_w100.tsv", queries={"test": folder / "test.json"}, output=folder / "data")
    data = prepare(source)
    write_run(folder / "bm25.test.parquet", [("0", "2", 1, 2.0), ("0", "1", 2, 1.0), ("1", "2", 1, 1.0)])
    write_run(folder / "dense.test.parquet", [("1", "1", 1, 2.0), ("2", "2", 1, 1.0)])
    columns = {"Success@1": "R@1", "Success@20": "R@20", "MAP": "MAP"}
    table = tables.Table("t", "c", "", columns, (tables.Row("BM25", "bm25"),), 1, 0.01, pool=("bm25",))
    (folder / "tables").mkdir()
    where = tables.Collection(data, folder, "test")
    cells = {cell.column: cell for cell in tables.cells(where, table, "asked")}
    expected = {"Success@1": (pytest.approx(1 / 3), 3), "Success@20": (pytest.approx(2 / 3), 3), "MAP": (0.5, 3)}
    assert {name: (cell.mean, cell.queries) for name, cell in cells.items()} == expected
    for pool in ((), ("bm25", "no-such-run")):
        cells_without = tables.cells(where, tables.replace(table, pool=pool), "asked")
        assert {cell.column for cell in cells_without} == {"Success@1", "Success@20"}


def test_a_check_without_a_finished_collection_names_the_target(tmp_path: Path) -> None:
    for folder in ("missing", "."):
        with pytest.raises(SystemExit) as ended:
            tables.main([str(tmp_path / folder), str(tmp_path), "--collection", "msmarco", "--check"])
        assert ended.value.code not in (None, 0)


def test_map_does_not_change_with_other_rows(here: Path) -> None:
    """The relevant documents of a question without judgments are those of the pool."""
    folder = here / "pooled"
    questions = [{"question": name, "answers": ["sodium"]} for name in ("salt", "soda")]
    write_lines(folder / "test.json", json.dumps(questions))
    rows = [("id", "text", "title"), *((number, "made of sodium", "Salt") for number in (1, 2, 3))]
    write_lines(folder / "psgs_w100.tsv", *("\t".join(map(str, row)) for row in rows))
    source = PrepareDpr(folder / "psgs_w100.tsv", queries={"test": folder / "test.json"}, output=folder / "data")
    where = tables.Collection(prepare(source), folder, "test")
    (folder / "tables").mkdir()
    write_run(folder / "bm25.test.parquet", [("0", "1", 1, 2.0), ("0", "2", 2, 1.0)])
    write_run(folder / "other.test.parquet", [("0", "1", 1, 2.0), ("0", "3", 2, 1.0)])
    maps = []
    for names in (["bm25"], ["bm25", "other"]):
        rows_of = tuple(tables.Row(name, name) for name in names)
        table = tables.Table("t", "c", "", {"MAP": "MAP"}, rows_of, 1, 0.01, pool=("bm25",))
        maps.append({cell.row: cell.mean for cell in tables.cells(where, table, "pooled")})
    assert maps == [{"bm25": 0.5}, {"bm25": 0.5, "other": 0.25}]


sys.path.insert(0, str(REPOSITORY / "studies"))


IN_CI = {"msmarco", "robust04"}
SPLITS = {"dl19": "dl19", "robust04": "all"}
LOST = {  # table and row: a setting without which the method is another
    ("DualRM, table 2 (MS", "CLEAR / DualRM"): (r"scorer_weight=0\.1", "scorer_weight=0.0"),
    ("RoC, tables 3 to 5", "I, dense"): (r"mask_matches=0\.15", "mask_matches=0.0"),
    ("RoC, tables 3 to 5", "E, dense"): (r"ortho_weight=1(\.0)?", "ortho_weight=0.0"),
    ("RoC, figure 5", "RoC + BM25, epoch 2, synonyms"): ("synonym-adversary", "char-swap"),
    ("LITE, tables 2 and 5", "LITE"): (r"kd_weight=1(\.0)?", "kd_weight=0.0"),
    ("LITE, tables 2 and 5", "DPR32"): (r" dim=32\b", " dim=None"),
    ("SPAR, table 2 (NQ, SQuAD", "SPAR, MARCO Lambda"): ("queries_from=all", "queries_from=sampled"),
}
COLLECTIONS = ["msmarco", "dl19", "nq", "odqa", "beir", "entityquestions", "robust04", "trec-covid"]


def make(target: str, folder: Path) -> None:
    for call in one_process.planned(target, "SCALE=small", f"papers={folder}"):
        one_process.run(call)


@pytest.mark.usefixtures("few_feedbacks")
@pytest.mark.parametrize(
    "collection",
    [pytest.param(name, marks=pytest.mark.heavy if name in IN_CI else pytest.mark.exhaustive) for name in COLLECTIONS],
)
def test_every_row_runs_on_a_sample(collection: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", [])
    content, split = yaml.safe_load(tables.PUBLISHED.read_text("utf-8")), SPLITS.get(collection, "test")
    make(collection, tmp_path)
    (file,) = tmp_path.glob(f"*/tables/{collection}.csv")
    with file.open() as opened:
        measured = {(row["table"], row["row"]) for row in csv.DictReader(opened)}
    printed = [table for table in tables.TABLES if table.collection == collection]
    expected = {(table.title, name) for table in printed for name in table.expected}
    assert expected - measured == set()
    make(f"check-{collection}", tmp_path)  # exits with 1 if rows coincide or have other settings
    rules, where = content["settings"], tables.Collection(Path(), file.parents[1], split, collection)
    for table in printed:
        here = where.below(table)
        runs_of = {row.name: tables.rankings(here, table, row) for row in table.rows}
        behind = {name: tables.settings_behind(paths[0]) for name, paths in runs_of.items() if paths}
        for one, other in combinations(behind, 2):
            broken = [tables.broken_rules(name, behind[run], rules) for name, run in ((one, other), (other, one))]
            assert any(broken), f"{table.title}: {one} and {other} exchanged"
        for (title, name), (setting, lost) in LOST.items():
            if table.title.startswith(title):
                assert tables.broken_rules(name, re.sub(setting, lost, behind[name]), rules), f"{name}: {lost}"
