"""Fixtures shared by the tests: a collection small enough to read, artifacts made from it once a session."""

from __future__ import annotations

import gc
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from command import Notices
from filelock import FileLock
from hypothesis import settings
from tiny_collection import TINY_JUDGEMENTS, TINY_QUERIES, write_tiny_source
from tiny_tokenizer import tiny_tokenizer

from hybrid_cli import console
from hybrid_cli.artifacts.opening import open_bm25

if TYPE_CHECKING:
    from report_study import Study

pytest.register_assert_rewrite("object_stores")  # a plugin of two files, which also import it
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("RAY_DISABLE_FAILURE_SIGNAL_HANDLER", "1")  # Java in this process; tests import Ray first
os.environ.setdefault("OMP_NUM_THREADS", "1")  # `make test` runs one process per core
_SLOW = """
    page installation cluster judging_page retriever server kill memory lucene train_frozen report_page languages
    external_vectors examples encode train_lambda auto_command convert_checkpoint train_dense taught object_store
    object_store_names index_updates update sparse train_roc fuse vectors pretrain export engines report parallel
    combination cli endpoint hybrid_search judge_terminal journal machine_tuning search search_engines run_files
    models judge presets sharded dev_set fuzz serving bpr bad_input impacts index_bm25 encoder api mine_negatives
    rerank paths pretraining pipelines damage prepare workers hub lora filters verdicts tokens calibration passages
    gate exported_fusions judge_machine train_warnings judged padding queries_in_corpus grades decoders complement
    tables searched sparse_checkpoints machine_labels pairs lost_shards faiss_gpu pseudo_queries failing_files
    labels perturb significance
"""
SLOW = [f"test_{name}" for name in _SLOW.split()]  # files that `make check` leaves out; the longest first
_HEAVY = """
    object_store object_store_names cluster kill readers memory recorded_models parallel examples report_page
    page sentence_transformers convert_checkpoint languages train_frozen every_form untrusted_text same_bytes export
    index_updates reused judging_page auto_command server engines update pipelines lora verdicts machine_tuning dev_set
    pretrain journal resumed installation
"""  # kills, clusters, object stores, limits of memory, real models, other tools, browsers, servers, installations
HEAVY = {f"test_{name}" for name in _HEAVY.split()}  # files that `make test` leaves out
NOT_HEAVY = "not heavy and not exhaustive"  # the expression of `make test`
settings.register_profile("hybrid", deadline=None, derandomize=True, max_examples=50)
settings.register_profile("short", settings.get_profile("hybrid"), max_examples=20)


def pytest_configure(config: pytest.Config) -> None:
    """Draw fewer examples where tests are left out by their marks."""
    settings.load_profile("short" if config.option.markexpr else "hybrid")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not import modules of which all tests are left out."""
    omitted = {"not slow": {*SLOW, *HEAVY}, NOT_HEAVY: HEAVY}.get(config.option.markexpr, ())
    return True if collection_path.stem in omitted else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the modules that `make check` and `make test` leave out, and start them first: all cores end together."""
    for item in items:
        if item.path.stem in HEAVY:
            item.add_marker(pytest.mark.heavy)
        if item.path.stem in SLOW or any(map(item.get_closest_marker, ("heavy", "exhaustive"))):
            item.add_marker(pytest.mark.slow)
    items.sort(key=lambda item: SLOW.index(item.path.stem) if item.path.stem in SLOW else len(SLOW))


def pytest_collection_finish() -> None:
    """Exclude the imported libraries from garbage collection, which would search their objects again in each test."""
    gc.freeze()


def once(factory: pytest.TempPathFactory, name: str, build: Callable[[Path], object]) -> Path:
    """Return the folder that `build` fills; the first process of a run builds it, the others wait and share it."""
    base = factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "shared" / name
    folder.parent.mkdir(exist_ok=True)
    with FileLock(f"{folder}.lock"):
        if not (complete := folder.with_name(f"{name}.complete")).exists():
            shutil.rmtree(folder, ignore_errors=True)  # of a failed process
            folder.mkdir()
            build(folder)
            complete.touch()
    return folder


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A collection of 12 passages (one without text) and 6 queries in each of train and test.

    Of the test queries 005 has only stop words and 006 has no judgment; grades are 0, 1 and 2.
    """
    from hybrid_cli.commands import PrepareTrec
    from hybrid_cli.stages.prepare import prepare

    def build(folder: Path) -> None:
        write_tiny_source(folder)
        topics = {split: folder / f"topics.{split}.tsv" for split in TINY_QUERIES}
        qrels = {split: folder / f"qrels.{split}.txt" for split in TINY_JUDGEMENTS}
        prepare(PrepareTrec(folder / "docs.jsonl", queries=topics, qrels=qrels, output=folder / "collection"))

    return once(tmp_path_factory, "tiny", build) / "collection"


@pytest.fixture
def notices() -> Iterator[Notices]:
    with console.heard() as heard:
        yield Notices(heard)


@pytest.fixture
def no_delays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask a server again at once."""
    monkeypatch.setattr("hybrid_cli.http_client.DELAYS", (0.0, 0.0))


@pytest.fixture
def hub() -> Iterator[tuple[str, list[str]]]:
    """The address of a hub that has no model, and the paths that were requested."""
    from recording_hub import recording_hub

    with recording_hub() as found:
        yield found


@pytest.fixture
def few_feedbacks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tune RM3 on a grid of 36 points instead of 900."""
    from itertools import product

    from hybrid_cli.stages import search

    monkeypatch.setattr(search, "SIZES", (5, 10))
    monkeypatch.setattr(search, "GRID", list(product((5, 10), (5, 10), search.SHARES)))


@pytest.fixture(scope="session")
def tiny_bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A BERT of two layers and 16 dimensions, seeded, with a part of MiniLM's vocabulary."""

    def build(folder: Path) -> None:
        import torch
        from transformers import BertConfig, BertModel

        tokenizer = tiny_tokenizer()
        torch.manual_seed(0)
        shape = BertConfig(
            vocab_size=len(tokenizer),
            hidden_size=16,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=32,
            initializer_range=0.3,
        )
        BertModel(shape, add_pooling_layer=False).save_pretrained(folder)
        tokenizer.save_pretrained(folder)

    return once(tmp_path_factory, "tiny_bert0", build)


@pytest.fixture(scope="session")
def reranker(tiny_bert: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    def build(folder: Path) -> None:
        import torch

        from hybrid_cli import artifacts
        from hybrid_cli.encoders.cross_encoder import CrossEncoder
        from hybrid_cli.storage import Kind

        torch.manual_seed(3)
        model = CrossEncoder.load(tiny_bert, device="cpu", train=True, max_length=64, query_max_len=24)
        output = artifacts.open_output(folder / "reranker", Kind.RERANKER, "test", inputs={}, options={})
        with output.folder() as (work, _):
            model.save(work)

    return once(tmp_path_factory, "reranker", build) / "reranker"


@pytest.fixture(scope="session")
def examples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Training examples whose queries share words with their positives only."""
    from test_train_dense import write_examples

    return write_examples(tmp_path_factory.mktemp("examples") / "train.parquet")


@pytest.fixture(scope="session")
def study(tmp_path_factory: pytest.TempPathFactory, tiny_bert: Path) -> Study:
    """Runs of BM25, of a trained encoder and of both, with their inputs."""
    from report_study import make

    return make(tmp_path_factory.mktemp("study"), tiny_bert)


@pytest.fixture(scope="session")
def tiny_lambda(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A static encoder of 6 dimensions with random tables over the terms of `tiny`, half of which share four rows.

    Its lexical index is `bm25` next to it.
    """

    def build(folder: Path) -> None:
        import torch

        from hybrid_cli.encoders.static import StaticEncoder
        from hybrid_cli.stages.index_bm25 import index_bm25

        index = open_bm25(index_bm25(tiny, output=folder / "bm25"))
        terms = len(index.idf) // 2
        encoder = StaticEncoder.over(index, ("title", "text"), dim=6, vocab_size=terms, hash_buckets=4)
        torch.manual_seed(0)
        for table in encoder.parameters():
            torch.nn.init.normal_(table)
        (folder / "lambda").mkdir()
        encoder.save(folder / "lambda")

    return once(tmp_path_factory, "tiny_lambda", build) / "lambda"


@pytest.fixture(scope="session")
def tiny_bm25(tiny_lambda: Path) -> Path:
    return tiny_lambda.parent / "bm25"


@pytest.fixture(scope="session")
def mined(tiny: Path, tiny_bm25: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Training examples of `tiny` with negatives of BM25."""
    from hybrid_cli.stages.mine_negatives import mine_negatives

    def build(folder: Path) -> None:
        mine_negatives(tiny, split="train", index=tiny_bm25, output=folder / "train.parquet")

    return once(tmp_path_factory, "mined", build) / "train.parquet"


@pytest.fixture(scope="session")
def ensembles(mined: Path, tiny_bert: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with ensembles `1`, `2` and `3` of as many learners of 4 dimensions."""

    def build(folder: Path) -> None:
        from hybrid_cli.stages.train_dense import train_dense

        plan: dict[str, Any] = {"batch_size": 4, "max_steps": 10, "learning_rate": 1e-3, "dtype": "fp32", "epochs": 10}
        plan |= {"loss": "nll", "model": str(tiny_bert)}
        train_dense(mined, output=folder / "1", **plan, dim=4, doc_max_len=24)
        for seed in (2, 3):
            train_dense(mined, output=folder / str(seed), **plan, seed=seed, boost=str(folder / str(seed - 1)))

    return once(tmp_path_factory, "ensembles", build)


@pytest.fixture(scope="session")
def made(tiny: Path, tiny_bert: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with one artifact of each kind."""

    def build(folder: Path) -> None:
        from hybrid_cli.stages.encode import encode
        from hybrid_cli.stages.index_bm25 import index_bm25
        from hybrid_cli.stages.mine_negatives import mine_negatives
        from hybrid_cli.stages.search import search

        shutil.copytree(tiny, folder / "collection")
        shutil.copytree(tiny_bert, folder / "model")
        index_bm25(folder / "collection", output=folder / "bm25", threads=1)
        encode(folder / "collection", output=folder / "dense", model=str(folder / "model"), dtype="fp32")
        for name in ("bm25", "dense"):
            output = folder / f"{name}.parquet"
            search(folder / "collection", split="test", index=folder / name, output=output, threads=1)
        mine_negatives(folder / "collection", split="train", sources="random:2", output=folder / "train.parquet")

    return once(tmp_path_factory, "made", build)


@pytest.fixture(scope="session")
def tiny_runs(tiny: Path, tiny_bert: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a lexical and a dense index of `tiny`, and a run of four hits of each for its test queries.

    Documents are missing from lists of four hits.
    """

    def build(folder: Path) -> None:
        from hybrid_cli.stages.encode import encode
        from hybrid_cli.stages.index_bm25 import index_bm25
        from hybrid_cli.stages.search import search

        index_bm25(tiny, output=folder / "bm25")
        encode(tiny, model=str(tiny_bert), dtype="fp32", output=folder / "dense")
        for name in ("bm25", "dense"):
            search(tiny, split="test", index=folder / name, hits=4, output=folder / f"{name}.parquet")

    return once(tmp_path_factory, "tiny_runs", build)


@pytest.fixture
def paths(tmp_path: Path) -> list[Path]:
    """Runs of three systems with the hits of `evaluated.RUNS`."""
    from evaluated import RUNS, write_run

    return [write_run(tmp_path / f"{name}.parquet", hits) for name, hits in RUNS.items()]


@pytest.fixture
def workdir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def here(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Change to a folder with links to one artifact of each kind."""
    for path in made.iterdir():
        (tmp_path / path.name).symlink_to(path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def two_runs(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Change to a folder with the tiny collection and two runs to judge."""
    from judging import write_runs

    (tmp_path / "tiny").symlink_to(tiny)
    write_runs(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from browsing import chromium

    with chromium() as opened:
        yield opened


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """PyTorch on one thread: models of a few dimensions do not profit from more."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
