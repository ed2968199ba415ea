"""`train-fusion` and `fuse --method learned`: features, the model, the decision for learned weights, and bad input."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from command import hybrid
from fused_rankings import Ranking, run_of

from hybrid_cli import artifacts, runs
from hybrid_cli.artifacts import Kind, Manifest
from hybrid_cli.collections import collection
from hybrid_cli.errors import DamageError, InputError
from hybrid_cli.evaluation.measures import evaluate_run
from hybrid_cli.fusion import features, learned
from hybrid_cli.fusion.fuser import read_fuser
from hybrid_cli.fusion.lists import Lists
from hybrid_cli.fusion.selection import Choice, Table
from hybrid_cli.stages.fuse import fuse
from hybrid_cli.stages.inspect import inspect
from hybrid_cli.stages.train_fusion import train_fusion

QUERIES, DOCUMENTS = 160, 24
Rankings = Mapping[str, Ranking]


def lists(rng: np.random.Generator) -> tuple[Rankings, Rankings, list[tuple[str, str, int]]]:
    """Return two runs and judgments: the run with the larger gap after its top score is right, the other is wrong."""
    first: dict[str, Ranking] = {}
    second: dict[str, Ranking] = {}
    judged = []
    for number in range(QUERIES):
        qid, docs = f"q{number}", [f"d{place}" for place in rng.permutation(60)[:DOCUMENTS]]
        below = -np.sort(-rng.uniform(0, 5, DOCUMENTS - 1))
        sharp = {doc: float(score) for doc, score in zip(docs, [9, *below], strict=True)}
        even = -np.sort(-rng.uniform(6, 9, DOCUMENTS))
        flat = {docs[place]: float(score) for place, score in zip(rng.permutation(DOCUMENTS), even, strict=True)}
        first[qid], second[qid] = (sharp, flat) if number % 2 else (flat, sharp)
        judged.append((qid, docs[0], 1))
    return first, second, judged


def written(path: Path, run: Rankings, index: str | None, tag: str = "1") -> Path:
    inputs = {} if index is None else {"index": {"kind": index, "fingerprint": tag, "path": "gone"}}
    table = run_of(*run.values(), names=list(run))
    artifacts.write_parquet(
        path, [table.to_arrow()], artifacts.SCHEMAS[Kind.RUN], Manifest(Kind.RUN, "search", {}, inputs)
    )
    return path


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with two runs, judgments, and a fuser trained on them."""
    folder = tmp_path_factory.mktemp("fuser")
    first, second, judged = lists(np.random.default_rng(7))
    written(folder / "bm25.parquet", first, "lexical index")
    written(folder / "dense.parquet", second, "dense index")
    (folder / "qrels.tsv").write_text("".join(f"{qid}\t0\t{docid}\t{grade}\n" for qid, docid, grade in judged))
    trained(folder)
    return folder


def trained(folder: Path, output: str = "fuser", **options: Any) -> Path:
    both = [folder / "bm25.parquet", folder / "dense.parquet"]
    return train_fusion(
        both, output=folder / output, **{"qrels": folder / "qrels.tsv", "methods": ["minmax"], **options}
    )


def fused(folder: Path, output: Path, *given: Path, **options: Any) -> pl.DataFrame:
    both = given or (folder / "bm25.parquet", folder / "dense.parquet")
    how = {"method": "learned", "model": folder / "fuser", **options}
    return runs.read_run(fuse(list(both), output=output, **how))


def test_a_fuser_learns_which_run_is_right_and_reports_the_held_out_gain(made: Path, tmp_path: Path) -> None:
    fuser, report = read_fuser(made / "fuser")
    assert report["learned"]
    assert report["per_query"] > report["fixed"] + 0.05
    assert report["gain_interval"][0] > 0
    assert (fuser.runs, len(fuser.judged), fuser.lengths) == (["bm25", "dense"], QUERIES, [DOCUMENTS, DOCUMENTS])
    qrels = collection.read_qrels(made / "qrels.tsv")
    fixed = {"method": "minmax", "model": None, "weights": list(fuser.recipe.weights)}
    each = [fused(made, tmp_path / "l.parquet"), fused(made, tmp_path / "f.parquet", **fixed)]
    scores = [evaluate_run(run, qrels, ["MRR@10"])["value"].to_numpy().mean() for run in each]
    assert scores[0] > scores[1] + 0.05


def test_the_same_query_gets_the_same_scores_in_any_batch_and_order(made: Path, tmp_path: Path) -> None:
    whole = fused(made, tmp_path / "all.parquet")
    kept = ["q77", "q5", "q120"]
    few = []
    for name in ("bm25", "dense"):
        run = runs.read_run(made / f"{name}.parquet")
        part = {qid: dict(run.filter(qid=qid).select("docid", "score").iter_rows()) for qid in kept}
        few.append(written(tmp_path / f"{name}.parquet", part, {"bm25": "lexical index"}.get(name, "dense index")))
    again = fused(made, tmp_path / "few.parquet", *few)
    for qid in kept:
        assert again.filter(qid=qid).equals(whole.filter(qid=qid))


def test_the_stored_trees_predict_as_the_trained_forest(made: Path) -> None:
    from sklearn.ensemble import RandomForestRegressor

    rng = np.random.default_rng(3)
    inputs, targets = rng.normal(size=(80, 5)), rng.normal(size=(80, 2))
    forest = RandomForestRegressor(4, min_samples_leaf=3, random_state=1).fit(inputs.astype(np.float32), targets)
    for each in forest.estimators_:
        tree = learned.Tree.of(each.tree_, 2)
        stored = learned.Tree.read(json.loads(json.dumps(tree.content())), 5, 2, "here")
        assert stored.predict(inputs.astype(np.float32)) == pytest.approx(each.predict(inputs), abs=1e-6)


RANKINGS: dict[str, tuple[Ranking, Ranking]] = {
    "first empty": ({}, {"a": 3.0, "b": 1.0}),
    "second empty": ({"a": 3.0, "b": 1.0}, {}),
    "one hit": ({"a": 3.0}, {"b": -2.0}),
    "constant": ({"a": 2.0, "b": 2.0}, {"a": 0.0, "c": 0.0}),
    "huge": ({"a": 3e38, "b": -3e38}, {"a": 1e-38, "b": -1e-38}),
}


@pytest.mark.parametrize("case", RANKINGS)
def test_features_of_unusual_lists_are_finite(case: str) -> None:
    tables = [run_of(ranking) if ranking else run_of({}) for ranking in RANKINGS[case]]
    joined = Lists.of(tables)
    names, values = features.collected(joined.blocks(), joined.qids)
    assert len(names) == len(set(names)) == values.shape[1]
    assert np.isfinite(values).all()
    assert np.isfinite(values.astype(np.float32)).all()


def test_features_look_across_the_lists() -> None:
    joined = Lists.of([run_of({"a": 10, "b": 8, "c": 0}), run_of({"c": 5, "a": 4, "x": 1})])
    names, values = features.collected(joined.blocks(), joined.qids)
    found = dict(zip(names, values[0], strict=True))
    assert found["run 1: reciprocal rank of its hit 1 in run 2"] == 1 / 2
    assert found["run 2: reciprocal rank of its hit 1 in run 1"] == 1 / 3
    assert found["run 1: mean normalized score of its top 1 in run 2"] == 0.75
    assert found["run 1: normalized score at rank 2"] == 0.8
    assert (found["overlap at 1"], found["overlap at 3"]) == (0, 2 / 3)


def test_exact_scores_fill_in_documents_that_the_other_list_lacks() -> None:
    joined = Lists.of([run_of({"a": 10, "b": 0}), run_of({"c": 5, "d": 1})])
    queries = pl.DataFrame({"qid": ["1"], "text": ["two words"]})
    table = {"a": 4.0, "b": 1.0, "c": 10.0, "d": -100.0}

    def score(pairs: pl.DataFrame) -> pl.Series:
        return pl.Series([table[docid] for docid in pairs["docid"]])

    sources = features.Sources([score, score], queries, None)
    names, values = features.collected(joined.blocks(), joined.qids, sources)
    found = dict(zip(names, values[0], strict=True))
    assert found["run 1: mean normalized score of its top 1 in run 2"] == 0.75
    assert found["run 2: mean normalized score of its top 2 in run 1"] == (1 - 2) / 2  # -100 counts as -2
    assert found["query: words (log)"] == pytest.approx(np.log(3))
    with pytest.raises(InputError, match="no text of query 1"):
        features.collected(joined.blocks(), joined.qids, features.Sources([score, score], queries.clear(), None))


def test_a_fold_is_not_seen_by_its_own_model() -> None:
    """Changed values of the held-out queries do not change their weights; with a feature made of them, they do."""
    rng = np.random.default_rng(5)
    choices = [Choice("minmax", (1 - share, share)) for share in (0.0, 0.5, 1.0)]
    values, plain = rng.random((3, 80)), rng.random((80, 6))
    changed = values.copy()
    fold = np.empty(80, dtype=np.int64)
    fold[np.random.default_rng(42).permutation(80)] = np.arange(80) % 2
    changed[:, fold == 0] = changed[::-1, fold == 0]

    def weights(table: np.ndarray, leak: bool) -> np.ndarray:
        known = np.column_stack([plain, *(table if leak else [])])
        model = learned.fit_method(Table(choices, table), known, 1, fold != 0, 1)[1].model
        return learned.Model(model.means, model.curves, model.trees, 1, 1.0).rows(known[fold == 0])

    assert (weights(values, leak=False) == weights(changed, leak=False)).all()
    assert (weights(values, leak=True) != weights(changed, leak=True)).any()


def test_leaving_a_collection_out_does_not_see_it() -> None:
    """Other values of the left-out collection give the same model; with a feature made of them, another one."""
    place = Path(__file__).parent.parent / "benchmarks" / "fusers.py"
    spec = importlib.util.spec_from_file_location("fusers", place)
    assert spec is not None
    assert spec.loader is not None
    fusers = importlib.util.module_from_spec(spec)
    sys.modules["fusers"] = fusers
    spec.loader.exec_module(fusers)
    rng = np.random.default_rng(9)
    choices = [Choice("minmax", (1 - share, share)) for share in (0.0, 0.5, 1.0)]
    values = {name: rng.random((3, 60)) for name in "abc"}
    plain, asked = {name: rng.random((60, 4)) for name in "abc"}, rng.random((60, 7))

    def weights(leak: bool, changed: bool) -> np.ndarray:
        table = values | ({"a": values["a"][::-1]} if changed else {})
        known = {
            name: fusers.Judged(choices, table[name], [], np.column_stack([each, table["a"].T]) if leak else each)
            for name, each in plain.items()
        }
        model = fusers.left_out(known, "a").model
        return learned.Model(model.means, model.curves, model.trees, 1, 1.0).rows(asked[:, : 7 if leak else 4])

    assert (weights(leak=False, changed=False) == weights(leak=False, changed=True)).all()
    assert (weights(leak=True, changed=False) != weights(leak=True, changed=True)).any()


def test_noise_keeps_the_fixed_weight_and_equals_the_fixed_fusion(made: Path, tmp_path: Path) -> None:
    rng = np.random.default_rng(11)
    runs_ = [
        written(
            tmp_path / f"{name}.parquet",
            {f"q{n}": {f"d{d}": float(rng.normal()) for d in range(20)} for n in range(60)},
            None,
        )
        for name in ("bm25", "dense")
    ]
    (tmp_path / "qrels.tsv").write_text("".join(f"q{n}\t0\td{rng.integers(20)}\t1\n" for n in range(60)))
    fuser, report = read_fuser(trained(tmp_path))
    assert not report["learned"]
    assert not fuser.model.trees
    learned_ = fused(tmp_path, tmp_path / "l.parquet", *runs_)
    fixed = fused(
        tmp_path, tmp_path / "f.parquet", *runs_, method="minmax", model=None, weights=list(fuser.recipe.weights)
    )
    assert learned_.equals(fixed)


def test_few_queries_keep_the_fixed_weight(made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "few.tsv").write_text("".join((made / "qrels.tsv").read_text().splitlines(True)[:30]))
    _, report = read_fuser(trained(made, "few", qrels=tmp_path / "few.tsv"))
    assert (report["learned"], report["queries"]) == (False, 30)
    assert "since fewer than 50 queries are judged" in " ".join(capsys.readouterr().out.split())


def test_pseudo_queries_keep_the_fixed_weight(made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The same judgments that keep learned weights, marked as those of pseudo-queries."""
    marked = tmp_path / "qrels.dev.parquet"
    table = collection.read_qrels(made / "qrels.tsv").to_arrow()
    manifest = Manifest(Kind.QRELS, "prepare", {"pseudo_queries": "title"}, {})
    artifacts.write_parquet(marked, [table], artifacts.SCHEMAS[Kind.QRELS], manifest)
    fuser, report = read_fuser(trained(made, "pseudo", qrels=marked))
    assert report["gain_interval"][0] > 0
    assert not report["learned"]
    assert not fuser.model.trees
    assert "since gains on pseudo-queries did not hold for real queries" in " ".join(capsys.readouterr().out.split())


def test_judged_queries_are_warned_about_and_evaluate_knows_them(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fused(made, tmp_path / "l.parquet")
    assert "160 of the 160 queries are those that" in " ".join(capsys.readouterr().err.split())
    done = hybrid("evaluate", "--qrels", made / "qrels.tsv", tmp_path / "l.parquet")
    assert "its fuser was trained on 160 of the 160 judged queries" in " ".join(done.err.split())


def test_another_kind_of_pair_is_refused_unless_forced(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    swapped = (made / "dense.parquet", made / "bm25.parquet")
    with pytest.raises(InputError, match="for the other order of the runs; pass bm25 and then dense"):
        fused(made, tmp_path / "l.parquet", *swapped)
    other = {"q1": dict(runs.read_run(made / "dense.parquet").filter(qid="q1").select("docid", "score").iter_rows())}
    dense = [written(tmp_path / f"{name}.parquet", other, "dense index", name) for name in "xy"]
    with pytest.raises(InputError, match=r"for a run of a lexical index, not of a dense index as run 1 \(x\)"):
        fused(made, tmp_path / "l.parquet", *dense)
    fused(made, tmp_path / "l.parquet", *swapped, force=True)
    assert "weights are not reliable" in " ".join(capsys.readouterr().err.split())
    unknown = tmp_path / "a.trec"
    unknown.write_text("q1 Q0 d1 1 2.0 a\n")
    with pytest.raises(InputError, match="not of unknown origin"):
        fused(made, tmp_path / "l.parquet", unknown, made / "dense.parquet")
    fused(made, tmp_path / "o.parquet", made / "bm25.parquet", dense[0])
    assert "trained on another index" in " ".join(capsys.readouterr().err.split())


def test_runs_of_equal_kinds_in_the_other_order_are_refused(made: Path, tmp_path: Path) -> None:
    first, second, _ = lists(np.random.default_rng(7))
    both = [written(tmp_path / f"{name}.parquet", run, "dense index") for name, run in (("a", first), ("b", second))]
    fuser = train_fusion(both, output=tmp_path / "fuser", qrels=made / "qrels.tsv", methods=["minmax"])
    with pytest.raises(InputError, match="for the other order of the runs; pass a and then b"):
        fused(made, tmp_path / "l.parquet", *reversed(both), model=fuser)


def test_lists_of_another_length_are_warned_about(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fused(made, tmp_path / "l.parquet", depth=5)
    assert "trained on lists of up to 24 hits, bm25 has up to 5" in " ".join(capsys.readouterr().err.split())


def test_training_on_runs_of_different_depth_is_noted(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "qrels.tsv").write_text("".join((made / "qrels.tsv").read_text().splitlines(True)[:20]))
    (tmp_path / "bm25.parquet").symlink_to(made / "bm25.parquet")
    run = runs.read_run(made / "dense.parquet").filter(pl.col("rank") <= 5)
    cut = {str(qid): dict(hits.select("docid", "score").iter_rows()) for (qid,), hits in run.group_by("qid")}
    written(tmp_path / "dense.parquet", cut, "dense index")
    fuser, _ = read_fuser(trained(tmp_path))
    assert fuser.lengths == [DOCUMENTS, 5]
    printed = " ".join(capsys.readouterr().err.split())
    assert "train-fusion: the longest lists differ: bm25 24, dense 5 hits" in printed


@pytest.mark.parametrize("kept", [0, 1, 200])
def test_a_fuser_that_was_cut_is_refused_in_one_line(made: Path, tmp_path: Path, kept: int) -> None:
    folder = tmp_path / "fuser"
    folder.mkdir()
    for name in ("fuser.json", "manifest.json"):
        (folder / name).write_bytes((made / "fuser" / name).read_bytes()[: kept if name == "fuser.json" else None])
    both = [made / "bm25.parquet", made / "dense.parquet"]
    done = hybrid("fuse", *both, "--method", "learned", "--model", folder, "--output", tmp_path / "l.parquet")
    assert (done.code, done.err.count("\n")) == (1, 1), done.err
    assert "fuser.json" in done.err
    assert not (tmp_path / "l.parquet").exists()


def test_inspect_shows_the_decision_and_the_features(made: Path) -> None:
    found = inspect(made / "fuser")["fuser"]
    assert found["runs"] == {"bm25": "lexical index", "dense": "dense index"}
    assert found["importance"][0][1] >= found["importance"][1][1] > 0
    done = hybrid("inspect", made / "fuser")
    assert "run 1: " in done.out
    assert "one per query" in done.out
    assert hybrid("verify", made / "fuser").code == 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"method": "magic"}, "'method' is magic"),
        ({"runs": ["a"]}, "not for two runs"),
        ({"systems": [{}, {"kind": "x", "other": 1}]}, "other fields"),
        ({"shares": "0.5"}, "field 'shares'"),
        ({"shares": [0.5, None]}, "field 'shares', item 2"),
        ({"report": [1]}, "field 'report'"),
        ({"fixed": 99}, "do not fit its weights"),
        ({"means": [0.1]}, "do not fit its weights"),
        ({"curves": [[0.0]]}, "do not fit its weights"),
        ({"trees": [{}]}, "field 'feature'"),
        ({"trees": [{"feature": [0], "threshold": [0.0], "below": [0], "above": [0], "values": []}]}, "lead nowhere"),
    ],
)
def test_a_changed_fuser_is_refused(made: Path, tmp_path: Path, change: dict[str, Any], message: str) -> None:
    content = json.loads((made / "fuser" / "fuser.json").read_text())
    folder = tmp_path / "fuser"
    folder.mkdir()
    (folder / "fuser.json").write_text(json.dumps(content | change))
    manifest = json.loads((made / "fuser" / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(DamageError):
        read_fuser(folder)
    from hybrid_cli.artifacts.manifest import hash_json

    manifest = {name: value for name, value in manifest.items() if name != "checksum"} | {"checksums": None}
    (folder / "manifest.json").write_text(json.dumps(manifest | {"checksum": hash_json(manifest)}))
    with pytest.raises(InputError, match=re.escape(message)) as caught:
        read_fuser(folder)
    if message.startswith("field"):
        assert (caught.value.code, caught.value.fields["element"]) == ("damaged-fuser", message)


def test_the_default_folds_are_as_many_as_the_judged_queries_at_most(made: Path, tmp_path: Path) -> None:
    lines = (made / "qrels.tsv").read_text().splitlines(keepends=True)
    (tmp_path / "two.tsv").write_text("".join(line for line in lines if line.split("\t")[0] in {"q0", "q1"}))
    _, report = read_fuser(trained(made, str(tmp_path / "two"), qrels=tmp_path / "two.tsv"))
    assert report["folds"] == 2
    assert 0 <= report["fixed"] <= 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"judged": 0}, "no judgments; pass a file with some"),
        ({"judged": 1}, "has a single judged query; judge more"),
        ({"judged": "other"}, "it starts with query 'q0', and the qrels start with 'other'"),
        ({"folds": 161}, "--folds 161: .* has 160 judged queries"),
        ({"judged": "none"}, "of every run is 0 for 3 judged queries"),
        ({"methods": ["weighted-sum"]}, "--methods weighted-sum: has no weight per query"),
        ({"methods": ["combmnz"]}, "--methods combmnz: has no weight per query"),
    ],
)
def test_judgments_and_methods_that_cannot_train_are_refused(
    made: Path, tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    judged = options.pop("judged", None)
    if judged in (0, 1):
        options |= {"qrels": tmp_path / "q.tsv"}
        (tmp_path / "q.tsv").write_text("q1\t0\td1\t1\n" * judged)
    if judged == "other":
        options |= {"qrels": tmp_path / "q.tsv", "folds": 2}
        (tmp_path / "q.tsv").write_text("other\t0\td1\t1\nmore\t0\td1\t1\n")
    if judged == "none":
        options |= {"qrels": tmp_path / "q.tsv", "folds": 2}
        (tmp_path / "q.tsv").write_text("".join(f"q{n}\t0\tnone\t1\n" for n in range(3)))
    with pytest.raises(InputError, match=message):
        trained(made, str(tmp_path / "bad"), **options)
    assert not (tmp_path / "bad").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model": None}, "needs --model"),
        ({"tune": True}, "cannot tune --method learned"),
        ({"weights": "1,2"}, "--weights: not with --tune or --model"),
        ({"missing": "drop"}, "--missing: not with --model"),
        ({"method": "minmax"}, "--model: only with --method learned"),
        ({"index": ["a", "b"]}, "was trained without it"),
        ({"queries": "q.tsv"}, "--queries: only with --missing exact, or with --method learned and --index"),
        ({"device": "cpu"}, "--device: only with --missing exact, or with --method learned and --index"),
    ],
)
def test_options_that_contradict_a_fuser_are_refused(
    made: Path, tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        fused(made, tmp_path / "l.parquet", **options)


def test_one_run_and_three_runs_are_refused(made: Path, tmp_path: Path) -> None:
    both = [made / "bm25.parquet", made / "dense.parquet"]
    third = shutil.copy(both[0], tmp_path / "x.parquet")
    with pytest.raises(InputError, match="needs two runs, got 3"):
        train_fusion([*both, third], qrels=made / "qrels.tsv", output=tmp_path / "x")
    with pytest.raises(InputError, match="is a fuser for two runs, got 3"):
        fused(made, tmp_path / "l.parquet", *both, third)  # type: ignore[arg-type]
