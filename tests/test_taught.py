"""Scores of a teacher: their losses, in examples, from runs, rerankers and encoders; `distill-lite`."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import polars as pl
import pytest
import torch
from command import Notices, hybrid, raises, ran
from gradient_descent import TOLERANCE, errors, gradient_descent
from pairwise import Case, pairwise
from trainings import curve, weights

from hybrid_cli import artifacts, storage
from hybrid_cli.encoders.cross_encoder import CrossEncoder
from hybrid_cli.encoders.models import open_encoder
from hybrid_cli.encoders.transformer import TransformerEncoder
from hybrid_cli.errors import InputError
from hybrid_cli.runs import read_run
from hybrid_cli.stages.combine import combine
from hybrid_cli.stages.distill_lite import distill_lite
from hybrid_cli.stages.encode import encode
from hybrid_cli.stages.mine_negatives import mine_negatives
from hybrid_cli.stages.rerank import rerank
from hybrid_cli.stages.search import search
from hybrid_cli.stages.train_dense import train_dense
from hybrid_cli.stages.train_sparse import train_sparse
from hybrid_cli.storage import Kind, layout
from hybrid_cli.training import losses
from hybrid_cli.training.batches import Examples
from hybrid_cli.training.dense import BatchSources, DenseLearner
from hybrid_cli.training.losses import LossInputs, kl, margin_mse
from hybrid_cli.training.options import Sampling
from hybrid_cli.training.teachers import FrozenEncoder, ScoredExamples

pytestmark = pytest.mark.usefixtures("one_thread")

TAUGHT = {"margin-mse": margin_mse, "kl": kl}
PLAN: dict[str, Any] = {"batch_size": 4, "epochs": 9, "max_steps": 8, "learning_rate": 1e-3, "dtype": "fp32"}


def taught_vectors(seed: int = 0, added: int = 0) -> LossInputs:
    """Return 3 queries with 4 documents scored by a teacher, and `added` others."""
    generator = torch.Generator().manual_seed(seed)

    def drawn(*size: int) -> torch.Tensor:
        return torch.randn(*size, generator=generator, dtype=torch.double)

    group = 4 + added
    vectors = drawn(3, 5), drawn(3, group, 5), drawn(3, 3 * group), torch.ones(3, 3 * group, dtype=torch.bool)
    return LossInputs(*vectors, teacher_scores=3 * drawn(3, 4), scorer_weight=0.3)


def by_hand(name: str, scores: np.ndarray, teacher: np.ndarray) -> float:
    if name == "margin-mse":
        return float((((scores[:, :1] - scores[:, 1:]) - (teacher[:, :1] - teacher[:, 1:])) ** 2).mean())
    p, q = (np.exp(values) / np.exp(values).sum(1, keepdims=True) for values in (teacher, scores))
    return float((p * np.log(p / q)).sum(1).mean())


@pytest.mark.parametrize("case", pairwise({"name": list(TAUGHT), "added": [0, 2], "fused": [False, True]}), ids=str)
def test_a_loss_equals_its_formula_on_the_documents_of_the_teacher(case: Case) -> None:
    name, fused, vectors = case["name"], case["fused"], taught_vectors(added=case["added"])
    queries, documents, scorer = (each.numpy() for each in (vectors.queries, vectors.documents, vectors.scorer))
    assert vectors.teacher_scores is not None
    scores = np.einsum("bd,bgd->bg", queries, documents)[:, :4] / 0.7
    if fused:
        scores = scores + 0.3 * np.stack([scorer[row].reshape(3, -1)[row, :4] for row in range(3)])
    found = TAUGHT[name](vectors, temperature=0.7, teacher_temperature=2.0, fused=fused)
    expected = by_hand(name, scores, vectors.teacher_scores.numpy() / 2)
    assert expected > 0.1
    assert found[name.replace("-", "_")].item() == pytest.approx(expected, abs=1e-6)
    assert vectors.recorded["student_margin"].item() == pytest.approx((scores[:, :1] - scores[:, 1:]).mean())


def test_the_divergence_covers_the_batch_if_the_teacher_scores_it() -> None:
    vectors = taught_vectors()
    queries, documents, scorer = (each.numpy() for each in (vectors.queries, vectors.documents, vectors.scorer))
    teacher = np.random.default_rng(5).normal(size=(3, 12))
    found = kl(replace(vectors, teacher_scores=torch.from_numpy(teacher)), 0.7, 2.0, fused=True)["kl"]
    scores = queries @ documents.reshape(12, -1).T / 0.7 + 0.3 * scorer
    assert found.item() == pytest.approx(by_hand("kl", scores, teacher / 2), abs=1e-6)
    others = [[column for column in range(12) if column != 4 * row] for row in range(3)]
    margins = [scores[row, 4 * row] - scores[row, columns].mean() for row, columns in enumerate(others)]
    assert vectors.recorded["student_margin"].item() == pytest.approx(np.mean(margins))


@pytest.mark.parametrize("name", TAUGHT)
def test_a_teacher_that_scores_as_the_model_gives_no_gradient(name: str) -> None:
    vectors = taught_vectors()
    queries = vectors.queries.clone().requires_grad_()
    equal = 2 * replace(vectors, queries=queries).dense_scores(False).detach() / 0.5 + 7
    (loss,) = TAUGHT[name](replace(vectors, queries=queries, teacher_scores=equal), 0.5, 2.0).values()
    (gradient,) = torch.autograd.grad(loss, queries)
    assert loss.item() == pytest.approx(0, abs=1e-12)
    assert gradient.abs().max() < 1e-12


@pytest.mark.parametrize("name", TAUGHT)
def test_a_loss_has_the_gradient_of_finite_differences(name: str) -> None:
    vectors = taught_vectors()

    def value(queries: torch.Tensor, documents: torch.Tensor) -> torch.Tensor:
        (loss,) = TAUGHT[name](replace(vectors, queries=queries, documents=documents), 0.9, fused=True).values()
        return loss

    inputs = [vectors.queries.clone().requires_grad_(), vectors.documents.clone().requires_grad_()]
    assert torch.autograd.gradcheck(value, inputs)


@pytest.mark.parametrize("name", TAUGHT)
def test_a_constant_added_to_the_teacher_of_a_query_changes_nothing(name: str) -> None:
    vectors = taught_vectors()
    shifted = vectors.teacher_scores + torch.tensor([[3.0], [-8.0], [0.5]])
    (one,), (other,) = (TAUGHT[name](each).values() for each in (vectors, replace(vectors, teacher_scores=shifted)))
    assert one.item() == pytest.approx(other.item(), abs=1e-9)


@pytest.mark.parametrize("name", TAUGHT)
@pytest.mark.parametrize("loss", ["nll", "residual-nll", "residual-margin", "margin"])
def test_distillation_is_added_to_any_loss(name: Any, loss: str) -> None:
    """A residual loss is taught as the sum with the scorer."""
    vectors, how = taught_vectors(), cast("dict[str, Any]", {"temperature": 0.7, "in_batch": True})
    found = losses.objective(loss, distill=name, distill_weight=0.25, teacher_temperature=3.0, **how)(vectors)
    alone = losses.objective(loss, **how)(vectors)
    (taught,) = TAUGHT[name](vectors, 0.7, 3.0, fused=loss.startswith("residual")).values()
    assert {key: value.item() for key, value in found.items()} == pytest.approx(
        {key: value.item() for key, value in alone.items()} | {name.replace("-", "_"): 0.25 * taught.item()}
    )


@pytest.fixture(scope="module")
def scored(examples: Path, reranker: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("scored") / "scored.parquet"
    return rerank(examples, model=str(reranker), output=output, dtype="fp32", device="cpu", threads=1)


def documents_of(path: Path) -> pl.DataFrame:
    rows, names = pl.read_parquet(path), ["qid", "query", "docid", "title", "text", "teacher_score"]
    negatives = rows.select("qid", "query", "negatives").explode("negatives").unnest("negatives")
    return pl.concat([rows.select(names), negatives.select(names)])


def test_a_reranker_scores_all_documents_of_examples(examples: Path, scored: Path, reranker: Path) -> None:
    pairs, model = documents_of(scored), CrossEncoder.load(reranker, device="cpu")
    alone = [model.scores(pairs[row])[0][0] for row in range(len(pairs))]
    np.testing.assert_allclose(pairs["teacher_score"], alone, atol=1e-5)
    assert pairs["teacher_score"].to_numpy().std() > 0.1
    before, after = pl.read_parquet(examples), pl.read_parquet(scored)
    without = pl.element().struct.with_fields(pl.lit(None, pl.Float32).alias("teacher_score"))
    cleared = after.with_columns(
        pl.lit(None, pl.Float32).alias("teacher_score"), pl.col("negatives").list.eval(without)
    )
    assert cleared.equals(before)
    manifest = artifacts.read_manifest(scored, Kind.EXAMPLES)
    assert manifest.counts == {"rows": 18, "pairs": 72}
    assert manifest.input_path("model") == reranker


def test_examples_without_the_column_are_scored(examples: Path, scored: Path, reranker: Path, tmp_path: Path) -> None:
    kept = pl.struct(pl.element().struct.field("docid", "title", "text", "lexical_score", "source"))
    rows = pl.read_parquet(examples).drop("teacher_score").with_columns(pl.col("negatives").list.eval(kept))
    rows.write_parquet(tmp_path / "old.parquet")
    with raises("no-scores", path="old.parquet"):
        Examples(tmp_path / "old.parquet").check_teacher()
    job = ScoredExamples(Examples(tmp_path / "old.parquet"), tmp_path / "shards", lambda: CrossEncoder.load(reranker))
    assert job.score() == 72
    found = pl.concat([pl.DataFrame(pl.from_arrow(table)) for table in job.tables()])
    assert found.select(pl.read_parquet(scored).columns).equals(pl.read_parquet(scored))


def test_two_rerankers_score_half_of_the_queries(examples: Path, scored: Path, reranker: Path, tmp_path: Path) -> None:
    """Out-of-fold scores: each half is scored by the reranker of the other half."""
    other = shutil.copytree(reranker, tmp_path / "other")
    (other / "manifest.json").unlink()
    config = other / "config.json"
    config.write_text(config.read_text("utf-8").replace("1e-12", "1e-1"), "utf-8")
    qids = pl.read_parquet(examples)["qid"].unique(maintain_order=True)
    for name, half in (("first", qids[:4]), ("second", qids[4:])):
        pl.DataFrame({"qid": half, "text": ["?"] * len(half)}).write_parquet(tmp_path / f"{name}.parquet")
    how: dict[str, Any] = {"device": "cpu", "dtype": "fp32"}
    how["queries"] = tmp_path / "first.parquet"
    first = rerank(examples, model=str(other), output=tmp_path / "one.parquet", **how)
    with raises("missing-score", query="q4"):
        Examples(first).check_teacher()
    how["queries"] = tmp_path / "second.parquet"
    both = rerank(first, model=str(reranker), output=tmp_path / "both.parquet", **how)
    Examples(both).check_teacher()
    found, expected = documents_of(both), documents_of(scored)
    second = pl.col("qid").is_in(qids[4:].implode())
    own, same = found.filter(second), expected.filter(second)
    assert own.drop("teacher_score").equals(same.drop("teacher_score"))
    np.testing.assert_allclose(own["teacher_score"], same["teacher_score"], atol=1e-5)
    others = found.filter(~second)["teacher_score"] - expected.filter(~second)["teacher_score"]
    assert others.abs().max() > 1e-2  # type: ignore[operator]
    with raises("scored-already"):
        rerank(both, model=str(reranker), output=tmp_path / "no.parquet", **how)


@pytest.fixture(scope="module")
def run(made: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("run") / "run.parquet"
    search(made / "collection", split="train", index=made / "dense", output=output, hits=9)
    return output


def test_mined_examples_store_the_scores_of_a_run(made: Path, run: Path, tmp_path: Path, notices: Notices) -> None:
    out = mine_negatives(
        made / "collection", split="train", sources="random:3", scores=run, output=tmp_path / "out.parquet"
    )
    known = {(qid, docid): score for qid, docid, _, score in read_run(run).iter_rows()}
    rows = documents_of(out)
    assert all(known[qid, docid] == score for qid, docid, score in rows.select("qid", "docid", "teacher_score").rows())
    plain = mine_negatives(made / "collection", split="train", sources="random:3", output=tmp_path / "plain.parquet")
    missing = set(pl.read_parquet(plain).select("qid", "docid").rows()) - set(known)
    assert missing, "the run lacks a positive"
    assert set(pl.read_parquet(out).select("qid", "docid").rows()) == (
        set(pl.read_parquet(plain).select("qid", "docid").rows()) - missing
    )
    assert notices.says("positives-without-score", path=run, count=len(missing))
    assert artifacts.read_manifest(out).counts["tally"]["random"]["no teacher score"] > 0
    Examples(out).check_teacher()
    assert not documents_of(plain)["teacher_score"].count()


@pytest.mark.parametrize("loss", TAUGHT)
def test_a_model_learns_the_scores_of_a_teacher(scored: Path, tiny_bert: Path, tmp_path: Path, loss: str) -> None:
    plan = {**PLAN, "model": str(tiny_bert), "loss": loss, "negatives": 3, "teacher_temperature": 0.2}
    plan |= {"epochs": 20, "max_steps": 100, "learning_rate": 5e-3}
    found = curve(train_dense(scored, output=tmp_path / "out", **plan), loss.replace("-", "_"))
    assert np.mean(found[-9:]) < 0.8 * np.mean(found[:9])


def test_a_reranker_while_training_gives_the_model_of_scored_examples(
    examples: Path, scored: Path, reranker: Path, tiny_bert: Path, tmp_path: Path
) -> None:
    plan = {**PLAN, "model": str(tiny_bert), "distill": "margin-mse", "distill_weight": 0.5, "device": "cpu"}
    stored = train_dense(scored, output=tmp_path / "stored", **plan)
    computed = train_dense(examples, output=tmp_path / "computed", teacher=str(reranker), **plan)
    assert weights(stored) == weights(computed)
    assert not [path for path in computed.iterdir() if path.name.startswith(".")]
    assert artifacts.read_manifest(computed).inputs["teacher"]["fingerprint"] == storage.fingerprint(reranker)
    alone = train_dense(examples, output=tmp_path / "alone", **{**PLAN, "model": str(tiny_bert)})
    assert weights(alone) != weights(stored)


def test_sparse_encoders_and_small_students_are_taught(scored: Path, tiny_bert: Path, tmp_path: Path) -> None:
    plan = {**PLAN, "model": str(tiny_bert), "max_steps": 2}
    splade = {**plan, "architecture": "splade"}
    small = {**plan, "teacher": str(tiny_bert), "dim": 4, "distill": "kl"}
    made = [
        (train_sparse(scored, output=tmp_path / "a", loss="margin-mse", **splade), {"margin_mse", "query_flops"}),
        (train_sparse(scored, output=tmp_path / "b", distill="kl", **splade), {"nll", "kl"}),
        (distill_lite(scored, output=tmp_path / "c", **small), {"nll", "kl", "distillation"}),
    ]
    for folder, names in made:
        assert names < set(pl.read_parquet(folder / layout.CURVE)["name"])


def test_an_encoder_teaches_its_inner_products(examples: Path, tiny_bert: Path, tmp_path: Path) -> None:
    """The examples of a run of the same encoder give the same model."""
    encoder = open_encoder(tiny_bert)
    rows = pl.read_parquet(examples)

    def score(query: str, document: dict[str, Any]) -> float:
        vector = encoder.encode_documents([document["title"]], [document["text"]])[0]
        return float(encoder.encode_queries([query])[0] @ vector)

    records = rows.to_dicts()
    for record in records:
        record["teacher_score"] = score(record["query"], record)
        for negative in record["negatives"]:
            negative["teacher_score"] = score(record["query"], negative)
    table = pl.DataFrame(records, schema=rows.schema).to_arrow(compat_level=pl.CompatLevel.oldest())
    stored = tmp_path / "stored.parquet"
    artifacts.open_output(stored, Kind.EXAMPLES, "test", inputs={}, options={}).write([table])
    plan = {**PLAN, "model": str(tiny_bert), "loss": "kl", "device": "cpu", "clip": 1e9, "learning_rate": 0.02}
    plan |= {"max_steps": 3}
    with gradient_descent() as by_file:
        train_dense(stored, output=tmp_path / "file", **plan)
    with gradient_descent() as by_encoder:
        train_dense(examples, output=tmp_path / "encoder", teacher=str(tiny_bert), **plan)
    assert max(errors(by_encoder, by_file)) < TOLERANCE


def test_an_encoder_teaches_the_documents_of_the_batch(examples: Path, tiny_bert: Path, tmp_path: Path) -> None:
    """A model that is its own teacher starts with a divergence of 0, also of dynamic negatives."""
    model = Path(shutil.copytree(tiny_bert, tmp_path / "model"))
    config = json.loads((model / "config.json").read_text())
    rates = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    (model / "config.json").write_text(json.dumps(config | rates))
    plan = {**PLAN, "model": str(model), "distill": "kl", "teacher": str(model), "markers": "none"}
    plan |= {"dynamic_negatives": 1, "max_steps": 3}
    first, *later = curve(train_dense(examples, output=tmp_path / "batch", **plan), "kl")
    assert abs(first) < 1e-4 < max(later)
    own = train_dense(examples, output=tmp_path / "own", in_batch=False, **plan)
    assert curve(own, "teacher_margin") != curve(tmp_path / "batch", "teacher_margin")


def test_a_dense_index_teaches_as_its_encoder(examples: Path, tiny_bert: Path, tmp_path: Path) -> None:
    documents = pl.concat(Examples(examples).documents())
    for name, rows in (("whole", documents), ("part", documents.head(9))):
        table = rows.to_arrow(compat_level=pl.CompatLevel.oldest()).cast(storage.SCHEMAS[Kind.CORPUS])
        corpus = tmp_path / f"{name}.parquet"
        artifacts.open_output(corpus, Kind.CORPUS, "test", inputs={}, options={}).write([table])
        encode(corpus, model=str(tiny_bert), output=tmp_path / name, dtype="fp32")
    plan = {**PLAN, "model": str(tiny_bert), "distill": "kl", "max_steps": 3, "device": "cpu"}
    with gradient_descent() as by_index:
        train_dense(examples, output=tmp_path / "by-index", teacher=str(tmp_path / "whole"), **plan)
    with gradient_descent() as by_encoder:
        train_dense(examples, output=tmp_path / "by-encoder", teacher=str(tiny_bert), **plan)
    assert max(errors(by_index, by_encoder)) < TOLERANCE
    with raises("unknown-id"):
        train_dense(examples, output=tmp_path / "refused", teacher=str(tmp_path / "part"), **plan)


def test_a_teacher_trained_on_test_queries_is_noticed(here: Path) -> None:
    """By the examples of the reranker, behind the model that it taught, or behind the examples that it scored."""
    train = ["--model", "model", "--max-steps", 1, "--batch-size", 2]
    mine = ["mine-negatives", "collection", "--split", "test", "--sources", "random:2", "--output", "test.parquet"]
    ran(*mine)
    ran("train-reranker", "test.parquet", *train, "--output", "teacher")
    ran("rerank", "train.parquet", "--model", "teacher", "--output", "scored.parquet")
    for name, words in (("stored", ["scored.parquet"]), ("computed", ["train.parquet", "--teacher", "teacher"])):
        ran("train-dense", *words, "--distill", "kl", *train, "--output", name)
        ran("encode", "collection", "--model", name, "--output", f"{name}-index")
        out = f"{name}.parquet"
        ran("search", "collection", "--split", "test", "--index", f"{name}-index", "--output", out)
        assert hybrid("evaluate", "collection", "--split", "test", out).says("queries-reused", part="training examples")


PLAN_LITE = {**PLAN, "epochs": 10, "max_steps": 10, "checkpoint_steps": 4}
TEXTS = ["salt water", "a river and its bank"]


@pytest.fixture(scope="module")
def teacher(ensembles: Path) -> Path:
    return ensembles / "2"


@pytest.fixture(scope="module")
def student(mined: Path, teacher: Path, tiny_bert: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    settings = {**PLAN_LITE, "teacher": str(teacher), "model": str(tiny_bert), "dim": 4, "dev": mined}
    return distill_lite(mined, output=tmp_path_factory.mktemp("lite") / "student", **settings)


def test_a_student_with_weight_0_is_taught(mined: Path, teacher: Path, tiny_bert: Path, tmp_path: Path) -> None:
    settings: dict[str, Any] = {**PLAN_LITE, "model": str(tiny_bert), "dim": 4}
    student = distill_lite(mined, teacher=str(teacher), kd_weight=0, output=tmp_path / "student", **settings)
    plain = train_dense(mined, loss="nll", output=tmp_path / "plain", **settings)
    ours, theirs = (open_encoder(folder).encode_documents(["", ""], TEXTS) for folder in (student, plain))
    np.testing.assert_allclose(ours, theirs, atol=1e-4)  # of two programs, whose sums are rounded otherwise


def test_the_student_is_a_small_encoder_without_its_large_head(student: Path, teacher: Path) -> None:
    encoder = open_encoder(student)
    assert isinstance(encoder, TransformerEncoder)
    assert encoder.encode_queries(TEXTS).shape == (2, 4)
    assert encoder.query_tower.distillation_head is None
    weights = [name for file in student.rglob("*.safetensors") for name in names(file)]
    assert not [name for name in weights if "distillation" in name]
    assert not list(student.rglob(".frozen"))
    manifest = artifacts.read_manifest(student)
    assert manifest.inputs["teacher"]["fingerprint"] == storage.fingerprint(teacher)
    curve = pl.read_parquet(student / "curve.parquet")
    losses_seen = curve.filter(name="distillation")["value"].to_list()
    assert {"nll", "distillation", "dev_MRR@10"} <= set(curve["name"])
    assert losses_seen[-1] < losses_seen[0]


def names(file: Path) -> list[str]:
    from safetensors import safe_open

    with safe_open(file, "pt") as weights:
        return list(weights.keys())


def test_distillation_trains_the_encoder(mined: Path, teacher: Path, tiny_bert: Path, tmp_path: Path) -> None:
    encoder = TransformerEncoder.load(tiny_bert, dim=4).train()
    encoder.add_distillation_heads(8)
    known = Examples(mined)
    frozen = FrozenEncoder(open_encoder(teacher), known, tmp_path)
    objective = losses.with_distillation(lambda _: {}, 4)
    learner = DenseLearner(encoder, objective, torch.float32, sources=BatchSources(teacher=frozen))
    learner.backward(learner.prepare(next(known.batches(Sampling(batch_size=4)))), lambda loss: loss)
    projection, head = encoder.query_tower.projection, encoder.query_tower.distillation_head
    assert head is not None
    assert projection is not None
    assert all(weight.grad is None or not weight.grad.any() for weight in projection.parameters())
    assert head.weight.grad is not None
    assert head.weight.grad.any()
    words = encoder.query_tower.backbone.get_parameter("embeddings.word_embeddings.weight")
    assert words.grad is not None
    assert words.grad.any()


def test_a_teacher_may_have_more_dimensions(mined: Path, teacher: Path, tiny_bert: Path, tmp_path: Path) -> None:
    """The query encoder maps its 16 values to the 24 of the teacher; the small student drops its wide head."""
    wide = combine([str(teacher), str(tiny_bert)], output=tmp_path / "wide")
    settings: dict[str, Any] = {**PLAN_LITE, "teacher": str(wide), "model": str(tiny_bert)}
    pair = distill_lite(mined, output=tmp_path / "pair", queries_only=True, **settings)
    losses_seen = curve(pair, "distillation")
    assert losses_seen[-1] < losses_seen[0]
    settings["model"] = f"{pair}/queries"
    again = distill_lite(mined, output=tmp_path / "again", queries_only=True, **settings)
    settings |= {"model": str(tiny_bert), "layers": 1}
    student = distill_lite(mined, output=tmp_path / "student", **settings, dim=4)
    assert [open_encoder(folder).dim for folder in (pair, again, student)] == [24, 24, 4]
    assert not [name for name in names(student / layout.WEIGHTS) if "layer.1." in name]


def test_a_query_encoder_fits(mined: Path, teacher: Path, tiny: Path, tiny_bert: Path, tmp_path: Path) -> None:
    plan = {**PLAN_LITE, "teacher": str(teacher), "model": str(tiny_bert), "queries_only": True}
    query_encoder = distill_lite(mined, output=tmp_path / "query_encoder", **plan)
    pair, whole = open_encoder(query_encoder), open_encoder(teacher)
    assert pair.dim == 8
    assert "negatives" not in artifacts.read_manifest(query_encoder).options
    np.testing.assert_array_equal(pair.encode_documents(["", ""], TEXTS), whole.encode_documents(["", ""], TEXTS))
    assert not np.allclose(pair.encode_queries(TEXTS), whole.encode_queries(TEXTS))
    losses_seen = pl.read_parquet(query_encoder / "curve.parquet")["value"].to_list()
    assert losses_seen[-1] < losses_seen[0]
    index = encode(tiny, model=str(teacher), output=tmp_path / "index")
    found = search(tiny, split="test", index=index, model=str(query_encoder), output=tmp_path / "run.parquet")
    assert len(pl.read_parquet(found))
    other = encode(tiny, model=str(tiny_bert), output=tmp_path / "other")
    with pytest.raises(InputError):
        search(tiny, split="test", index=other, model=str(query_encoder), output=tmp_path / "no.parquet")
