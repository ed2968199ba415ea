"""Directions that a method must have by construction, of rows trained on a sample by the rules of the pipelines.

The rows are those of the papers' tables (studies/published.yaml), so that exchanged rows are noticed. The model is a
small BERT; the directions are the same for seeds 1, 2 and 3, and its figures say nothing about the methods.
"""

import sys
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from hybrid_cli import runs
from hybrid_cli.artifacts.lineage import indexes_of
from hybrid_cli.collections import collection
from hybrid_cli.evaluation.complementarity import rbo
from hybrid_cli.evaluation.measures import evaluate_run

sys.path.insert(0, str(Path(__file__).parents[1] / "studies"))

import one_process
import sample
import tables

pytestmark = pytest.mark.heavy
SEED = 1
LENGTHS = "--query-max-len 16 --doc-max-len 48"
STEPS = "--max-steps 80 --eval-steps 80 --dev-queries 20 --tied"
SETTINGS = {
    "LENGTHS": LENGTHS,
    "SPARSE_LENGTHS": LENGTHS,
    "RM3": "--rm3",
    "TRAIN": "--batch-size 16 --lr 1e-3 --pooling mean",
    "SPARSE_TRAIN": "--batch-size 16 --lr 3e-4 --max-steps 100",
    "ROC_TRAIN": f"{STEPS} --ortho-weight 30 --mask-matches 0.9",  # strong, so that few steps show them
    "SPAR_TRAIN": STEPS,
    "LITE_TRAIN": STEPS,
    "LAMBDA_TRAIN": "--max-steps 150 --batch-size 24 --lr 1e-3 --eval-steps 150 --keep last --pooling mean --tied",
    "STATIC_TRAIN": "--dim 128 --max-steps 600",
}
ROC, SPAR, LITE, CLEAR = "RoC, tables 3 to 5", "SPAR, table 1 ", "LITE, tables 2 and 5", "DualRM, table 2 (MS"
LEARNED, OVERLAP = "SPAR, table 3", "SPAR, table 6, overlap with BM25 (NQ"


def row(title: str, name: str) -> str:
    """Return the path of the run of a row, without its split."""
    (table,) = (table for table in tables.TABLES if table.title.startswith(title))
    (found,) = (row for row in table.rows if row.name == name)
    return str(found.run.replace("*", str(SEED)))


class Trained:
    """The runs and encoders of the rows."""

    def __init__(self, folder: Path) -> None:
        self.out = folder / "out"
        self.qrels = collection.read_qrels(folder / "data" / "qrels.test.parquet")

    def run(self, name: str) -> pl.DataFrame:
        return runs.read_run(self.out / f"{name}.test.parquet")

    def mrr(self, name: str) -> float:
        return float(evaluate_run(self.run(name), self.qrels, ["MRR@10"])["value"].to_numpy().mean())

    def overlap(self, name: str, other: str = "bm25") -> float:
        return float(rbo(self.run(name), self.run(other))["value"].to_numpy().mean())

    def bytes(self, name: str) -> int:
        """Return the bytes that a search reads."""
        return sum(held.size for held in indexes_of(self.out / f"{name}.test.parquet").values())

    def curve(self, name: str, value: str) -> list[float]:
        """Return a value of the training of a row, in the order of the steps."""
        curve = pl.read_parquet(self.out / name / "curve.parquet")
        return curve.filter(name=value).sort("step")["value"].to_list()


ROWS = [
    (BM25 := row(CLEAR, "BM25")),
    (RM3 := row(CLEAR, "BM25+RM3")),
    (START := row(CLEAR, "start model, untrained")),
    *(
        RESIDUAL := {
            name: row(CLEAR, name).replace("bm25+", "")
            for name in ("CLEAR / DualRM", "constant margin", "random negatives")
        }
    ).values(),
    (DENSE := row(ROC, "DPR")),
    (E := row(ROC, "E, dense")),
    (INPUTS := row(ROC, "I, dense")),
    (EI := row(ROC, "E and I, dense")),
    (BASE := row(SPAR, "DPR")),
    (STATIC := row(OVERLAP, "static Lambda")),
    (WITH_STATIC := row(SPAR, "DPR and static Lambda")),
    (LAMBDA := row(LEARNED, "Lambda taught by BM25")),
    (DPR32 := row(LITE, "DPR32")),
    (DRBOOST := row(LITE, "DrBoost-2")),
    (STUDENT := row(LITE, "LITE")),
    (BINARY := row(LITE, "BPR")),
    (UNICOIL := row(LEARNED, "UniCOIL")),
    (UNICOIL_LAMBDA := row(LEARNED, "Lambda taught by UniCOIL")),
]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """Train the rows by the rules of the pipelines, on the sample of MS MARCO."""
    folder = tmp_path_factory.mktemp("directions")
    source = folder / "source"
    sample.msmarco(source)
    sample.model(folder / f"start-{SEED}")
    splits = {"train": "queries.train.tsv qrels.train.tsv", "test": "queries.dev.small.tsv qrels.dev.small.tsv"}
    splits["dev"] = "msmarco-test2019-queries.tsv 2019qrels-pass.txt"
    files = []
    for split, names in splits.items():
        queries, qrels = (source / name for name in names.split())
        files += ["--queries", f"{split}={queries}", "--qrels", f"{split}={qrels}"]
    collection_file = str(source / "collection.tsv")
    one_process.run(("hybrid", "prepare", "msmarco", collection_file, *files, "--output", str(folder / "data")))
    settings = SETTINGS | {"DATA": folder / "data", "OUT": folder / "out", "MODEL": folder / f"start-{SEED}"}
    targets = [f"{folder / 'out' / name}.test.parquet" for name in dict.fromkeys(ROWS)]
    variables = [f"{name}={value}" for name, value in settings.items()]
    for call in one_process.planned(targets[0], *targets[1:], *variables, f"SEED={SEED}"):
        one_process.run(call)
    return Trained(folder)


@pytest.mark.parametrize(
    ("less", "more"),
    [(INPUTS, DENSE), (EI, E), (DENSE, WITH_STATIC), (START, STATIC), (START, LAMBDA)],
    ids=["masked matches", "masked matches and orthogonality", "SPAR", "static Lambda", "Lambda"],
)
def test_overlap_with_bm25(trained: Trained, less: str, more: str) -> None:
    """Masked matches lower the overlap; a Lambda has more than its start, and adds some to a dense encoder."""
    assert trained.overlap(less) + 0.01 < trained.overlap(more)


def test_orthogonality_lowers_the_cosines_with_vectors_of_bm25(trained: Trained) -> None:
    for orthogonal, other in ((E, DENSE), (EI, INPUTS)):
        assert trained.curve(orthogonal, "dev_cos2")[-1] < 0.5 * trained.curve(other, "dev_cos2")[-1]


def test_margins_follow_the_scores_of_bm25(trained: Trained) -> None:
    """A residual margin is lower where BM25 is right: of its errors it is above that of random documents."""
    residual, constant, random = (np.mean(trained.curve(name, "mean_margin")) for name in RESIDUAL.values())
    assert random + 0.05 < residual < constant - 0.05
    assert constant == 1
    assert trained.overlap(RESIDUAL["CLEAR / DualRM"], RESIDUAL["constant margin"]) < 0.995


def test_a_lambda_imitates_its_teacher_more_than_another_teacher(trained: Trained) -> None:
    assert trained.overlap(LAMBDA, UNICOIL) + 0.05 < trained.overlap(UNICOIL_LAMBDA, UNICOIL)


def test_a_second_learner_improves_the_ensemble(trained: Trained) -> None:
    assert trained.mrr(DPR32) + 0.02 < trained.mrr(DRBOOST)


def test_a_student_approaches_its_teacher(trained: Trained) -> None:
    distillation = trained.curve(STUDENT, "distillation")
    assert distillation[-1] < 0.5 * distillation[0]
    assert trained.overlap(BASE, DRBOOST) < trained.overlap(STUDENT, DRBOOST)


def test_feedback_changes_the_ranking(trained: Trained) -> None:
    assert 0.3 < trained.overlap(RM3) < 0.95


def test_vectors_of_bits_are_small(trained: Trained) -> None:
    binary, dense = (trained.bytes(name) for name in (BINARY, BASE))
    assert 10 * binary < dense
    assert trained.overlap(BINARY, BASE) < 0.95


def test_scores_of_a_concatenation_are_weighted_sums(trained: Trained) -> None:
    parts = {name: trained.run(run) for name, run in (("both", WITH_STATIC), ("dense", BASE), ("static", STATIC))}
    both = parts["both"].select("qid", "docid", "score")
    for name in ("dense", "static"):
        both = both.join(parts[name].select("qid", "docid", pl.col("score").alias(name)), on=["qid", "docid"])
    weights = ((both["score"] - both["dense"]) / both["static"]).filter(both["static"].abs() > 1)
    assert len(weights) > 100
    assert float(weights.min()) > 0  # type: ignore[arg-type]
    assert float(weights.std() / weights.mean()) < 0.01  # type: ignore[arg-type, operator]
