"""`convert-checkpoint`: pickles become safetensors, and towers and learners in several files one encoder."""

import shutil
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from command import raises, refusal
from published_models import QUERIES, TEXTS, TITLES, WEIGHTS, batch, bert, chain, close, opened, saved
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import AutoConfig, AutoTokenizer, BertForSequenceClassification

from hybrid_cli.encoders.checkpoints.published import read_pickle
from hybrid_cli.encoders.contract import preset_fields
from hybrid_cli.encoders.models import open_encoder
from hybrid_cli.encoders.transformer import TransformerEncoder
from hybrid_cli.stages.convert_checkpoint import convert_checkpoint

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def tokenizer(tiny_bert: Path) -> Any:
    return AutoTokenizer.from_pretrained(tiny_bert)


def test_dpr_scale_and_drboost_read_one_lightning_file(tokenizer: Any, tiny_bert: Path, tmp_path: Path) -> None:
    """The form of dpr-scale: a projection with LayerNorm in each tower, under `state_dict`."""
    towers: Any = learner(tokenizer, 0)
    state = OrderedDict(towers.state_dict())
    torch.save({"epoch": 1, "state_dict": state, "hyper_parameters": {"k": 1}}, tmp_path / "learner.ckpt")
    first = towers["query_encoder"]["transformer"]
    base = saved(first, first.config, tokenizer, tmp_path / "base")
    folder = convert_checkpoint(tmp_path / "learner.ckpt", tmp_path / "learner", base=str(base))
    encoder = opened(folder, "drboost")
    assert (encoder.contract.dim, encoder.contract.tied) == (4, False)
    close(encoder.encode_queries(QUERIES), published([towers], "query", batch(tokenizer, QUERIES)))
    close(encoder.encode_documents(["", ""], QUERIES), published([towers], "context", batch(tokenizer, QUERIES)))


def learner(tokenizer: Any, seed: int) -> nn.ModuleDict:
    """A learner of dpr-scale, with different weights for each seed."""
    torch.manual_seed(seed)
    towers = {}
    for number, side in enumerate(("query", "context")):
        parts = {"transformer": bert(tokenizer, 2 * seed + number)}
        parts["project"] = nn.Sequential(nn.Linear(16, 4), nn.LayerNorm(4))
        towers[f"{side}_encoder"] = nn.ModuleDict(parts)
    return nn.ModuleDict(towers)


def published(learners: Sequence[Any], side: str, inputs: Any) -> Tensor:
    """Return the vectors of dpr-scale's DrBoostTask: those of all learners, concatenated."""
    towers = [each[f"{side}_encoder"] for each in learners]
    return torch.cat([each["project"](each["transformer"](**inputs).last_hidden_state[:, 0]) for each in towers], dim=1)


@pytest.mark.parametrize("files", [1, 3])
def test_drboost_concatenates_its_learners(tokenizer: Any, tmp_path: Path, files: int) -> None:
    """A file of all learners, named as in dpr-scale's DrBoostTask, and one file per learner."""
    learners = [learner(tokenizer, seed) for seed in range(3)]
    whole = nn.ModuleDict({"weak_encoders": nn.ModuleList(learners)})
    for number, module in enumerate([whole] if files == 1 else learners):
        torch.save({"state_dict": OrderedDict(module.state_dict())}, tmp_path / f"{number}.ckpt")
    towers: Any = learners[0]["query_encoder"]
    base = saved(towers["transformer"], towers["transformer"].config, tokenizer, tmp_path / "base")
    more = [tmp_path / f"{number}.ckpt" for number in range(1, files)]
    options: dict[str, Any] = {"learners": more} if more else {}
    folder = convert_checkpoint(tmp_path / "0.ckpt", tmp_path / "drboost", base=str(base), **options)
    assert sorted(path.name for path in folder.iterdir()) == ["encoder.json", "manifest.json", "part-1", "part-2"]
    encoder = open_encoder(folder)
    close(encoder.encode_queries(QUERIES), published(learners, "query", batch(tokenizer, QUERIES)))
    texts = [f"{TITLES[0]} [SEP] {TEXTS[0]}", TEXTS[1]]
    close(encoder.encode_documents(TITLES, TEXTS), published(learners, "context", batch(tokenizer, texts)))
    with raises("option-does-not-apply", option="preset"):
        preset_fields("drboost", folder)


def folder_of(weights: dict[str, Tensor], model: Path, folder: Path) -> Path:
    shutil.copytree(model, folder)
    save_file({name: value.clone() for name, value in weights.items()}, folder / WEIGHTS, metadata={"format": "pt"})
    return folder


def test_learners_of_another_form_are_refused(tokenizer: Any, tiny_bert: Path, tmp_path: Path) -> None:
    one = {f"weak_encoders.0.{name}": value for name, value in learner(tokenizer, 0).state_dict().items()}
    third = {name.replace(".0.", ".2.", 1): value for name, value in one.items()}
    foreign = folder_of({**one, "head.weight": torch.zeros(2)}, tiny_bert, tmp_path / "foreign")
    gap = folder_of(one | third, tiny_bert, tmp_path / "gap")
    for checkpoint, more, message in (
        (foreign, [], refusal("unknown-weights", path="foreign")),
        (gap, [], refusal("other-kind", path="gap")),
        (tiny_bert, [shutil.copytree(tiny_bert, tmp_path / "copy")], refusal("other-kind")),
    ):
        options: dict[str, Any] = {"learners": more} if more else {}
        with raises(message):
            convert_checkpoint(checkpoint, tmp_path / "out", **options)
        assert not (tmp_path / "out").exists()
    with raises("several-learners"):
        TransformerEncoder.load(gap)


def test_one_learner_in_a_file_of_learners_is_a_plain_learner(tokenizer: Any, tmp_path: Path) -> None:
    one: Any = learner(tokenizer, 0)
    tower = one["query_encoder"]["transformer"]
    base = saved(tower, tower.config, tokenizer, tmp_path / "base")
    weights = {f"weak_encoders.0.{name}": value for name, value in one.state_dict().items()}
    folder = convert_checkpoint(folder_of(weights, base, tmp_path / "one"), tmp_path / "out")
    close(opened(folder, "drboost").encode_queries(QUERIES), published([one], "query", batch(tokenizer, QUERIES)))


def test_dpr_reads_both_towers_from_a_checkpoint_of_its_authors(tokenizer: Any, tmp_path: Path) -> None:
    """The form of the DPR repository: `question_model` and `ctx_model` under `model_dict`, with an optimizer."""
    towers = {"question_model": bert(tokenizer, 0), "ctx_model": bert(tokenizer, 1)}
    state = {f"{name}.{key}": value for name, model in towers.items() for key, value in model.state_dict().items()}
    training: dict[str, Any] = {"optimizer_dict": {"state": {}}, "scheduler_dict": None, "offset": 0, "epoch": 40}
    torch.save({"model_dict": state, **training, "encoder_params": {}}, tmp_path / "dpr_biencoder.40")
    base = saved(towers["ctx_model"], towers["ctx_model"].config, tokenizer, tmp_path / "base")
    folder = convert_checkpoint(tmp_path / "dpr_biencoder.40", tmp_path / "dpr", base=str(base))
    encoder = opened(folder, "dpr")
    question, context = (model(**batch(tokenizer, QUERIES)).last_hidden_state[:, 0] for model in towers.values())
    close(encoder.encode_queries(QUERIES), question)
    close(encoder.encode_documents(["", ""], QUERIES), context)


def test_spar_joins_two_plain_towers(tokenizer: Any, tmp_path: Path) -> None:
    models = [bert(tokenizer, seed) for seed in range(2)]
    for model, name in zip(models, ("query", "context"), strict=True):
        saved(model, model.config, tokenizer, tmp_path / name)
    folder = convert_checkpoint(tmp_path / "query", tmp_path / "spar", documents=tmp_path / "context")
    encoder = opened(folder, "spar")
    close(encoder.encode_queries(QUERIES), models[0](**batch(tokenizer, QUERIES)).last_hidden_state[:, 0])
    close(encoder.encode_documents(["", ""], TEXTS), models[1](**batch(tokenizer, TEXTS)).last_hidden_state[:, 0])


def test_joined_towers_keep_contracts(tiny_bert: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from sentence_transformers.models import Normalize

    for name, pooling in (("query", "cls"), ("documents", "cls"), ("mean", "mean")):
        chain(tmp_path / name, tiny_bert, pooling, Normalize())
    settings = tmp_path / "query" / "config_sentence_transformers.json"
    settings.write_text('{"prompts": {"query": "find: "}}')
    folder = convert_checkpoint(tmp_path / "query", tmp_path / "out", documents=tmp_path / "documents")
    assert "--preset" not in capsys.readouterr().err, "a preset would replace the contract"
    contract = TransformerEncoder.load(folder).contract
    assert (contract.pooling, contract.normalize, contract.tied) == ("cls", True, False)
    assert (contract.query_prefix, contract.doc_prefix) == ("find: ", "")
    with raises("towers-differ"):
        convert_checkpoint(tmp_path / "query", tmp_path / "other", documents=tmp_path / "mean")


class Payload:
    """An object whose unpickling would create a file."""

    def __init__(self, file: Path):
        self.file = file

    def __reduce__(self) -> Any:
        return Path.touch, (self.file,)


def test_a_pickled_model_folder_is_converted_with_its_modules(tiny_bert: Path, tmp_path: Path) -> None:
    from sentence_transformers.models import Dense, Normalize

    chain(tmp_path / "chain", tiny_bert, "mean", Dense(16, 8), Normalize())
    expected = TransformerEncoder.load(tmp_path / "chain").encode_queries(TEXTS)
    for folder in (tmp_path / "chain", tmp_path / "chain" / "2_Dense"):
        torch.save(load_file(folder / WEIGHTS), folder / "pytorch_model.bin")
        (folder / WEIGHTS).unlink()
    with raises("no-weights"):
        TransformerEncoder.load(tmp_path / "chain")
    convert_checkpoint(tmp_path / "chain", tmp_path / "converted")
    np.testing.assert_array_equal(TransformerEncoder.load(tmp_path / "converted").encode_queries(TEXTS), expected)
    assert not any((tmp_path / "converted").rglob("*.bin"))


def test_a_file_that_needs_unpickling_is_refused_and_runs_nothing(tiny_bert: Path, tmp_path: Path) -> None:
    torch.save({"state_dict": load_file(tiny_bert / WEIGHTS), "code": Payload(tmp_path / "ran")}, tmp_path / "a.ckpt")
    with raises("checkpoint-refused", path="a.ckpt"):
        convert_checkpoint(tmp_path / "a.ckpt", tmp_path / "out", base=str(tiny_bert))
    assert not (tmp_path / "ran").exists()
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("content", "code"),
    [({"state_dict": {"a": 1}}, "not-a-tensor"), ([1, 2], "no-weights"), (b"no pickle", "needs-unpickling")],
)
def test_a_file_without_weights_is_refused(content: Any, code: str, tmp_path: Path) -> None:
    torch.save(content, file := tmp_path / "a.bin")
    if isinstance(content, bytes):
        file.write_bytes(content)
    with raises(code):
        read_pickle(file)


def test_only_transformer_encoders_are_joined(tokenizer: Any, tiny_bert: Path, tmp_path: Path) -> None:
    """A sparse encoder, a reranker, and a cross-encoder, whose classifier an encoder does not apply."""
    sparse, reranker = (shutil.copytree(tiny_bert, tmp_path / name) for name in ("sparse", "reranker"))
    (sparse / "encoder.json").write_text('{"kind": "sparse"}')
    (reranker / "reranker.json").write_text("{}")
    cross = BertForSequenceClassification(AutoConfig.from_pretrained(tiny_bert, num_labels=1))
    saved(cross, cross.config, tokenizer, tmp_path / "cross")
    for name, problem in (
        ("sparse", refusal("other-kind", path=str(sparse), kind="sparse")),
        ("reranker", refusal("other-kind", path=str(reranker), kind="reranker")),
        ("cross", refusal("unknown-weights")),
    ):
        for query, documents in ((tiny_bert, tmp_path / name), (tmp_path / name, tiny_bert)):
            with raises(problem):
                convert_checkpoint(query, tmp_path / "out", documents=documents)
        assert not (tmp_path / "out").exists()
    wide = bert(tokenizer, hidden_size=24)
    saved(wide, wide.config, tokenizer, tmp_path / "wide")
    with raises("other-width"):
        convert_checkpoint(tiny_bert, tmp_path / "out", documents=tmp_path / "wide")
