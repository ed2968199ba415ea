"""Plan each pipeline with `make --dry-run`, and check the calls of `hybrid`."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from test_architecture import REPOSITORY, complaint, shell_lines

sys.path.insert(0, str(REPOSITORY / "studies"))

import tables
from verdicts import CLAIMS

if shutil.which("make") is None:
    pytest.skip("make is not installed", allow_module_level=True)

STUDIES = {"ablations", "roc", "spar", "lambda-study", "lite", "drboost", "no-labels"}  # one file tree per seed
TARGETS = [
    "clear",
    *sorted(STUDIES),
    "static-lambda",
    "memory-table",
    "robustness",
    "cross-validation",
    "rerank",
    "rerank-depths",
    "sparse",
    "recommended",
    *(f"claims-{paper}" for paper in ("clear", "roc", "lite", "bpr", "lambda")),
    "tables-page",
    *(PAPERS := ["msmarco", "dl19", "nq", "odqa", "beir", "entityquestions", "robust04", "trec-covid"]),
]


def make(target: str, folder: Path, *flags: str, **variables: object) -> subprocess.CompletedProcess[str]:
    # the margin of `constant-mean` is computed from a training that a plan does not have
    settings = {"DATA": folder / "pydocs", "OUT": folder / "out", "HYBRID": "hybrid", "RESIDUAL_MEAN": 0.7}
    settings |= {"papers": folder / "papers", **variables}
    words = [f"{name}={value}" for name, value in settings.items()]
    command = ["make", "--dry-run", *flags, "--no-print-directory", "--old-file=.venv/.installed", target, *words]
    return subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True)


def planned(target: str, folder: Path, **variables: object) -> list[str]:
    done = make(target, folder, **variables)
    assert done.returncode == 0, done.stderr
    return list(shell_lines(done.stdout))


def outputs(lines: list[str]) -> dict[str, str]:
    return {line.split("--output ")[1].split()[0]: line for line in lines if "--output " in line}


_PARTS = r"/(part-2|corpus.parquet|epochs/\d)$"  # of an output


@pytest.mark.parametrize("target", TARGETS)
def test_every_call_is_accepted_and_reads_outputs_of_earlier_calls(target: str, tmp_path: Path) -> None:
    """The rules of a pipeline are complete: no call reads a path that no call has written."""
    written: set[str] = set()
    lines = planned(target, tmp_path, SEEDS="1 2", PARTS=2)
    assert not [f"{line}: {found}" for line in dict.fromkeys(lines) if (found := complaint(line))]
    for line in lines:
        words = [word for part in line.split() for word in re.split("[=,]", part)]
        output = line.split("--output ")[1].split()[0] if "--output " in line else ""
        read = {word.removeprefix("@").removeprefix("run:") for word in words} - {output}
        paths = {re.sub(_PARTS, "", word) for word in read if word.startswith(str(tmp_path))}
        assert paths - written == set(), line
        written.add(output)


@pytest.mark.parametrize("target", sorted(STUDIES))
def test_each_seed_has_its_own_files_and_the_table_has_them_all(target: str, tmp_path: Path) -> None:
    lines = planned(target, tmp_path, SEEDS="3 14")
    *_, table = (line for line in lines if " evaluate " in line and "--study over-seeds" in line)
    rows = dict(word.split("=") for word in table.split() if "=" in word)
    for name, path in rows.items():
        row, _, seed = name.rpartition("-")
        assert row == "" or seed not in ("3", "14") or f"/seed-{seed}/" in path
    assert {name.rpartition("-")[0] for name in rows if name.endswith("-3")} == {
        name.rpartition("-")[0] for name in rows if name.endswith("-14")
    }
    for path, call in outputs(lines).items():
        if " train-" in call and "/seed-" in path:
            seed = path.split("/seed-")[1].split("/")[0]
            assert call.split("--seed ")[1].split()[0] in (seed, *(f"{round}{seed}" for round in range(1, 7)))


def test_the_demo_ends_with_a_report(tmp_path: Path) -> None:
    done = make("demo", tmp_path, "--always-make", DEMO_STEPS=3)  # the files of a demo may be here
    lines = list(shell_lines(done.stdout))
    assert [line.split()[1] for line in lines if " train-dense " in line or " report " in line] == [
        "train-dense",
        "report",
    ]
    assert "--output out/demo/trained-report.html" in next(line for line in lines if " report " in line)
    expected = ["search", "--index", "out/demo/trained-tuned-retriever"]
    assert [line.split()[1:4] for line in lines if line.split()[1] == "search"][-1] == expected
    assert not [f"{line}: {found}" for line in lines if (found := complaint(line))]
    suggested = [line.split("'")[1] for line in done.stdout.splitlines() if line.startswith("echo '  hybrid ")]
    assert len(suggested) == 2
    assert not [complaint(line.strip()) for line in suggested if complaint(line.strip())]


def test_an_existing_index_does_not_hide_the_tuned_weight(tmp_path: Path) -> None:
    """A pipeline that was interrupted between index and tuning resumes with the tuning."""
    folder = tmp_path / "out" / "spar" / "seed-1"
    for name in ("two", "concat"):
        (folder / f"{name}-index").mkdir(parents=True)
        (folder / f"{name}-index" / "manifest.json").touch()
    calls = outputs(planned("spar", tmp_path, SEEDS="1"))
    for row in ("two", "joint", "sum", "concat", "static+dense"):
        assert f"--index {folder}/{row}-index --model {folder}/{row}-tuned " in calls[f"{folder}/{row}.test.parquet"]
        assert f"--combine {'sum' if row == 'sum' else 'concat'} " in calls[f"{folder}/{row}-tuned"] + " "


def test_each_fold_is_trained_tuned_and_tested_on_its_own_queries(tmp_path: Path) -> None:
    lines = planned("cross-validation", tmp_path, PARTS=3)
    for fold in "123":
        of_fold = [line for line in lines if f"/fold-{fold}/" in line and not line.startswith("hybrid concat-runs")]
        splits = {line.split(" --split ")[1].split()[0] for line in of_fold if " --split " in line}
        assert splits == {f"{name}-{fold}" for name in ("train", "dev", "test")}
        assert len(of_fold) == 9
        (trained,) = (line for line in of_fold if line.startswith("hybrid train-dense"))
        assert " --loss roc --index " in trained
    joined = [line.split() for line in lines if line.startswith("hybrid concat-runs")]
    assert [sum("/fold-" in word for word in words) for words in joined] == [3, 3, 3]
    lines = planned("cross-validation", tmp_path, PARTS=2, NO_DEV=1)  # tuned on the training queries
    assert [line for line in lines if " split " in line and "--no-dev" in line]
    splits = {line.split(" --split ")[1].split()[0] for line in lines if "/fold-1/" in line and " --split " in line}
    assert splits == {"train-1", "test-1"}


@pytest.mark.parametrize("target", PAPERS)
def test_a_paper_plans_with_nothing_prepared_and_names_its_files_in_one_line(target: str, tmp_path: Path) -> None:
    done = make(target, tmp_path, papers=tmp_path / "papers")
    assert done.returncode == 0, done.stderr
    named = [line for line in done.stdout.splitlines() if line.startswith(f"{target}: ")]
    assert named
    wrong = make(target, tmp_path, MSMARCO=tmp_path, BEIR=tmp_path, ROBUST04=tmp_path, TREC_COVID=tmp_path)
    assert [line for line in wrong.stdout.splitlines() if line.startswith(f"{target}: ")] == named
    assert all("pass " in line and "=FOLDER with " in line for line in named)
    assert make(f"check-{target}", tmp_path).stdout.rstrip().endswith("--check")


def test_published_settings_are_those_of_the_presets(tmp_path: Path) -> None:
    folder = tmp_path / "papers"
    calls = outputs(planned("msmarco", tmp_path, papers=folder))
    trained = calls[f"{folder}/msmarco/clear/ablations/seed-1/residual"]
    assert " --model google-bert/bert-base-uncased --config dualrm-marco " in trained
    assert not re.search("--(max-steps|batch-size|lr|query-max-len)", trained)
    own = calls[f"{folder}/msmarco/roc/roc/seed-1/dualrm"].split()  # CLEAR with its own examples and batches
    assert {f"{folder}/msmarco/roc/roc/seed-1/errors.parquet", "dualrm-marco"} <= {*own}
    sums = [calls[f"{folder}/msmarco/roc/roc/seed-1/bm25+EI-2.{queries}.parquet"] for queries in ("test", "adversary")]
    assert len({re.sub(r"\S+\.(test|adversary)\.parquet", "RUN", call) for call in sums}) == 1  # index and weights
    calls = outputs(planned("nq", tmp_path, papers=folder))
    for row, config in {"dpr": "dpr-nq", "bpr": "bpr-nq", "dpr32": "lite-nq"}.items():
        assert f" --config {config} " in calls[f"{folder}/nq/lite/seed-1/{row}"]


def test_weights_of_spar_are_tuned_on_the_dev_questions_of_each_set(tmp_path: Path) -> None:
    calls = outputs(planned("odqa", tmp_path, papers=(folder := tmp_path / "papers"), DPR="dpr"))
    for question_set in ("nq", "squad1", "trivia", "webquestions", "curatedtrec"):
        for row in ("dpr+lambda", "dpr+marco"):
            tuned = f"{folder}/odqa/{row}.{question_set}-tuned"
            search = calls[f"{folder}/odqa/{row}.{question_set}.parquet"].split()
            assert f"{question_set}-dev" in calls[tuned].split()
            assert {question_set, tuned} <= {*search}


def test_each_system_searches_each_attack_and_hybrids_fuse_the_same_attack(tmp_path: Path) -> None:
    source = tmp_path / "out" / "roc" / "seed-1"
    systems = {"SYSTEMS": "bm25 dense clear", "HYBRIDS": "bm25+clear", "FROM": source}
    for name in ("dense", "clear"):
        (source / f"{name}-index").mkdir(parents=True)
        (source / f"{name}-index" / "manifest.json").touch()
    lines = planned("robustness", tmp_path, ATTACKS="char-swap shuffle", **systems)
    assert not [f"{line}: {found}" for line in dict.fromkeys(lines) if (found := complaint(line))]
    calls, robust = outputs(lines), tmp_path / "out" / "robustness"
    for row in ("bm25", "dense", "clear", "bm25+clear"):
        assert f"{robust}/{row}.parquet" in calls
        for attack in ("char-swap", "shuffle"):
            call = calls[f"{robust}/{row}@{attack}.parquet"]
            if "+" in row:
                assert f"fuse {robust}/bm25@{attack}.parquet {robust}/clear@{attack}.parquet --method minmax" in call
            else:
                index = tmp_path / "out" / "bm25" if row == "bm25" else source / f"{row}-index"
                assert f"--queries {robust}/queries/{attack}.parquet --index {index} " in call
    assert [call.split()[1] for call in calls.values()].count("perturb") == 2
    (table,) = (line for line in lines if "--study robustness" in line)
    assert table.count(".parquet") == 4 * 3 + 1  # rows, each with the original and two attacks; the values


LITE_MORE = "drboost-4 r-drboost-4 l-drboost-4 lite4-1 lite-0-untied lite-1-untied"
LAMBDAS = "lambda lambda-cls on-static"


def test_boosting_appends_one_learner_per_round(tmp_path: Path) -> None:
    calls = outputs(planned("drboost", tmp_path, SEEDS="1", ROUNDS=4))
    folder = tmp_path / "out" / "lite" / "seed-1"
    for ensemble, first in (("drboost-2", "dpr32"), ("drboost-3", "drboost-2"), ("drboost-4", "drboost-3")):
        assert f"--boost {folder}/{first} " in calls[f"{folder}/{ensemble}"]
        assert f"run:{folder}/{first}.train.parquet" in calls[f"{folder}/{first}.errors.parquet"]
        joined = f"encode {folder}/{first}-index --concat-with {folder}/{ensemble}-learner-index"
        assert joined in calls[f"{folder}/{ensemble}-index"]
    assert f"{folder}/drboost-5" not in calls


def test_zero_shot_and_the_start_of_a_study_are_not_trained(tmp_path: Path) -> None:
    (tmp_path / "models" / "lite").mkdir(parents=True)
    (tmp_path / "models" / "lite" / "manifest.json").touch()
    lines = planned("zero-shot", tmp_path, FROM=tmp_path / "models", MODELS="lite")
    assert not [line for line in lines if " train-" in line or complaint(line)]
    assert [line for line in lines if f"encode {tmp_path}/pydocs --model {tmp_path}/models/lite " in line]
    calls = outputs(planned("claims-clear", tmp_path, SEEDS="1", CLAIM_STEPS=600, CLAIM_RATE="3e-4"))
    starts = [line for path, line in calls.items() if path.endswith("/start")]
    assert [("--max-steps 1 " in line, "--lr 0 " in line) for line in starts] == [(True, True)]


def test_tables_makes_the_run_of_every_row(tmp_path: Path) -> None:
    out = tmp_path / "out"
    (out / "spar/seed-1").mkdir(parents=True)
    (out / "spar/seed-1/concat.test.parquet").touch()  # LITE has a row of SPAR after `make spar`
    lines = make("tables", tmp_path, SEEDS="1", MODEL_LARGE="models/large", STATIC_MODEL="models/static").stdout
    whole = [table for table in tables.TABLES if not table.parts and table.collection not in ("robust04", "trec-covid")]
    runs = [row.run.replace("*", "1") for table in whole for row in table.rows]
    alone = (
        "released/",
        "ablations/seed-1/bm25+triples",
        "roc-cocondenser/",
        *(f"roc/seed-1/bm25+{row}-" for row in ("dense", "clear", "EI")),
        "roc/seed-1/bm25+dualrm",
        "bm25.adversary",
        "spar/seed-1/lambda-",
        *(f"lite/seed-1/{alone}drboost-{rounds}" for alone in ("", "bm25+") for rounds in range(3, 7)),
    )
    paths = [run if run.endswith(".parquet") else f"{run}.test.parquet" for run in runs if not run.startswith(alone)]
    assert [path for path in paths if f"{out / path} " not in lines.replace("\n", " ")] == []


def test_a_path_with_a_space_is_refused(tmp_path: Path) -> None:
    done = subprocess.run(
        ["make", "-n", "--no-print-directory", "clear", f"DATA={tmp_path}/my data"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout) == (2, "")


def test_claims_are_read_from_rows_of_the_pipelines(tmp_path: Path) -> None:
    """Every row of a claim is a run of its pipeline, and every target writes the learning curves of its arms."""
    for name in ("clear", "roc", "lite", "bpr", "lambda"):
        plan = make(f"claims-{name}", tmp_path, SEEDS="1", CLAIM_LITE_MORE=LITE_MORE, CLAIM_LAMBDAS=LAMBDAS).stdout
        (table,) = (line for line in shell_lines(plan) if " evaluate " in line)
        measured = {word.split("=")[0].removesuffix("-1") for word in table.split() if "=" in word}
        claimed = {row for claim in CLAIMS if claim.file == name for row in (claim.better, claim.worse) if row}
        assert claimed - measured == set(), name
        assert f"--output {tmp_path}/out/measured/{name}.parquet" in table
        (curves,) = (line for line in plan.splitlines() if "curves.py" in line and "--output" in line)
        assert curves.endswith(f"--output {tmp_path}/out/measured/{name}-curves.csv")
        assert {f" {claim.better}-1=" in curves for claim in CLAIMS if claim.file == name and claim.curve} <= {True}


def test_encoders_are_trained_on_pseudo_queries_and_measured_on_real_ones(tmp_path: Path) -> None:
    lines = planned("no-labels", tmp_path, PSEUDO="title sentence", SEEDS="3")
    calls, folder = outputs(lines), tmp_path / "out" / "no-labels"
    for kind in ("title", "sentence"):
        own, trained = folder / kind, folder / "seed-3" / f"{kind}-nll"
        assert f"{tmp_path}/pydocs/corpus.parquet --pseudo-queries {kind} " in calls[f"{own}/collection"]
        assert f"mine-negatives {own}/collection --split train --index {own}/bm25 " in calls[f"{own}/train.parquet"]
        assert f"{own}/train.parquet " in calls[f"{trained}"]
        assert f"train-lambda {own}/collection " in calls[f"{folder}/seed-3/{kind}-static"]
        assert f"encode {tmp_path}/pydocs --model {trained} " in calls[f"{trained}-index"]
    (table,) = (line for line in lines if " evaluate " in line)
    assert f"evaluate {tmp_path}/pydocs --split test " in table


def test_the_prior_is_measured_with_the_indexes_of_each_collection(tmp_path: Path) -> None:
    for name in ("cacm", "scifact"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "manifest.json").touch()
    lines = planned("prior", tmp_path, PRIOR=tmp_path, COLLECTIONS="cacm scifact")
    assert not [f"{line}: {found}" for line in lines if (found := complaint(line))]
    assert {Path(path).name for path in outputs(lines)} == {
        f"{name}.{system}" for name in ("cacm", "scifact") for system in ("bm25", "minilm")
    }


@pytest.mark.parametrize(("passages", "full"), [("", ""), ("passages", "title=2,text,body")])
def test_the_zero_shot_recipe_of_trec_covid(tmp_path: Path, passages: str, full: str) -> None:
    folders = {"TRAIN_DATA": tmp_path / "source"} | ({"PASSAGES": tmp_path / passages} if passages else {})
    for folder in folders.values():
        folder.mkdir()
        (folder / "manifest.json").touch()
    settings: dict[str, object] = {
        "RESIDUAL": "round1.txt",
        "FULL": full,
        "PASSAGE_FIELDS": "title,abstract",
        **folders,
    }
    lines = planned("transfer", tmp_path, **settings)
    assert not [f"{line}: {found}" for line in lines if (found := complaint(line))]
    calls = outputs(lines)
    out = tmp_path / "out" / "trec-covid"
    assert f"--model {out}/adapted " in calls[f"{out}/clear"]
    assert f"mine-negatives {tmp_path}/source " in calls[f"{out}/train.parquet"]
    assert calls[f"{out}/lexical.parquet"].count(".test.parquet") == (4 if passages else 2)
    assert (f"{out}/passages.test.parquet" in calls) == bool(passages)
    assert ("--fields title,abstract " in calls.get(f"{out}/passages-bm25", "")) == bool(passages)
    assert (f"--fields {full} " in calls.get(f"{out}/full-bm25", "")) == bool(full)
    assert lines[-1].endswith("--residual-qrels round1.txt")
