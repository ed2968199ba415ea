"""The one function that opens model folders: keys of their files that may act, sizes, and no network."""

from __future__ import annotations

import ast
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
    BertModel,
    MarianConfig,
    MarianMTModel,
)

from hybrid_cli.encoders.cross_encoder import CrossEncoder
from hybrid_cli.encoders.sparse import SparseEncoder
from hybrid_cli.encoders.transformer import TransformerEncoder
from hybrid_cli.errors import InputError
from hybrid_cli.perturbations.translation import Translator
from hybrid_cli.training.pretraining import MaskedLanguageModel

OPENERS: dict[str, Callable[[Path], object]] = {
    "encoder": TransformerEncoder.load,
    "reranker": CrossEncoder.load,
    "start of a reranker": lambda folder: CrossEncoder.load(folder, train=True),
    "splade": lambda folder: SparseEncoder.load(folder, architecture="splade", fresh=True),
    "unicoil": lambda folder: SparseEncoder.load(folder, architecture="unicoil", fresh=True),
    "pretraining": lambda folder: MaskedLanguageModel.load(folder, condenser=False),
    "translation": lambda folder: Translator(folder, "cpu"),
}
CLASSES: dict[str, Any] = {"reranker": BertForSequenceClassification, "translation": MarianMTModel}
CLASSES |= dict.fromkeys(("start of a reranker", "splade", "pretraining"), BertForMaskedLM)
SIZE: dict[str, Any] = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def folders(tiny_bert: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A model for each function that opens one."""
    made = {}
    for name in OPENERS:
        folder = made[name] = tmp_path_factory.mktemp(name.replace(" ", "_"))
        shutil.copytree(tiny_bert, folder, dirs_exist_ok=True)
        shape: dict[str, Any] = {"vocab_size": 8000, "num_labels": 1, "pad_token_id": 0}
        if name == "translation":
            shape |= {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 16}
            shape |= {"decoder_ffn_dim": 16, "encoder_attention_heads": 2, "decoder_attention_heads": 2}
            shape |= {"decoder_start_token_id": 0}
            MarianMTModel(MarianConfig(**shape)).save_pretrained(folder)
            continue
        CLASSES.get(name, BertModel)(BertConfig(**shape, **SIZE)).save_pretrained(folder)
    return made


@pytest.fixture
def folder(folders: dict[str, Path], tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """A copy of the model of the test's parameter `name`."""
    parameters = getattr(request.node, "callspec", None)
    name = parameters.params.get("name", "encoder") if parameters else "encoder"
    return Path(shutil.copytree(folders[name], tmp_path / "model"))


def edit(folder: Path, **changes: Any) -> Path:
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))
    return folder


def problem(opener: Callable[[], object]) -> InputError:
    with pytest.raises(InputError) as caught:
        opener()
    return caught.value


KERNEL = "owner/kernel"
KERNELS = ("_attn_implementation", "attn_implementation", "_attn_implementation_internal", "experts_implementation")
ACTING: list[tuple[str, Any]] = [
    *((key, KERNEL) for key in (*KERNELS, "_experts_implementation")), ("gguf_file", "model.gguf"), ("dtype", "load"),
    ("attn_implementation", f"paged|{KERNEL}@main:flash"), ("torch_dtype", "float8_e4m3fn"),
    ("attn_implementation", {"": "sdpa", "text_config": KERNEL}), ("text_config", {"attn_implementation": KERNEL}),
    ("parts", [{"deeper": {"_attn_implementation": KERNEL}}]), ("quantization_config", {"quant_method": "fp8"}),
    ("text_config", {"quantization_config": {"quant_method": "mxfp4"}}), ("backbone", "owner/model"),
    ("use_pretrained_backbone", True),
]  # fmt: skip


@pytest.mark.parametrize(("key", "value"), ACTING)
def test_a_key_that_needs_more_than_the_folder_is_refused(folder: Path, key: str, value: Any) -> None:
    error = problem(lambda: TransformerEncoder.load(edit(folder, **{key: value})))
    assert error.code == "model-config-key"
    assert error.fields["path"] == folder / "config.json"
    assert str(error.fields["key"]) in json.dumps({key: value})


@pytest.mark.parametrize("name", OPENERS)
def test_every_opener_refuses_a_kernel_and_huge_configurations(folder: Path, name: str) -> None:
    layers = "encoder_layers" if name == "translation" else "num_hidden_layers"
    OPENERS[name](folder)
    before = (folder / "config.json").read_text()
    assert problem(lambda: OPENERS[name](edit(folder, _attn_implementation=KERNEL))).code == "model-config-key"
    (folder / "config.json").write_text(before)
    for key, value in ((layers, 10**6), ("vocab_size", 10**9), ("max_position_embeddings", 10**9)):
        error = problem(lambda key=key, value=value: OPENERS[name](edit(folder, **{key: value})))  # type: ignore[misc]
        assert (error.code, error.fields["path"]) == ("model-config-size", folder / "config.json")
        (folder / "config.json").write_text(before)
    (folder / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": "owner/model"}))
    assert problem(lambda: OPENERS[name](folder)).code == "model-adapter"


SIZES = [
    {"hidden_size": 10**6},
    {"num_hidden_layers": 1e6},
    pytest.param({"intermediate_size": 10**9}, marks=pytest.mark.exhaustive),
    pytest.param({"num_attention_heads": 10**7}, marks=pytest.mark.exhaustive),
]


@pytest.mark.heavy
@pytest.mark.parametrize("sizes", SIZES)
def test_a_configuration_larger_than_the_weights_is_refused_in_little_time_and_memory(
    folder: Path, sizes: dict[str, Any]
) -> None:
    edit(folder, **sizes)
    code = f"""
import resource
from pathlib import Path
from hybrid_cli.encoders.transformer import TransformerEncoder
from hybrid_cli.errors import InputError
resource.setrlimit(resource.RLIMIT_CPU, (60, 60))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    TransformerEncoder.load(Path({str(folder)!r}))
except InputError as error:
    print(error.code, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    name, grown = done.stdout.split()
    assert name == "model-config-size"
    assert int(grown) < 200 << 10  # KiB


def test_records_of_the_authors_environment_do_not_act(folder: Path, tmp_path: Path) -> None:
    expected = TransformerEncoder.load(folder).encode_queries(["salt"])
    edit(folder, _attn_implementation="flash_attention_2", experts_implementation="grouped_mm", to_dict=1)
    edit(folder, quantization_config=None, fusion_config={"patch_embeddings": True}, distributed_config={"tp_size": 2})
    edit(folder, return_dict=False, output_hidden_states=True, output_attentions=True, _name_or_path="owner/model")
    edit(folder, _commit_hash="a" * 40, auto_map={"AutoModel": "owner/model--custom.B"})
    edit(folder, label2id={"backbone": 0, "quantization_config": 1})
    opened = TransformerEncoder.load(folder)
    assert (opened.encode_queries(["salt"]) == expected).all()
    opened.save(tmp_path / "saved")
    assert (TransformerEncoder.load(tmp_path / "saved").encode_queries(["salt"]) == expected).all()


def test_an_architecture_that_needs_code_of_its_own_is_refused(folder: Path) -> None:
    error = problem(
        lambda: TransformerEncoder.load(edit(folder, model_type="own", auto_map={"AutoModel": "own.Model"}))
    )
    assert (error.code, error.fields["value"]) == ("model-type-unknown", "own")


def test_a_model_of_images_is_refused(folder: Path) -> None:
    assert problem(lambda: TransformerEncoder.load(edit(folder, model_type="vit"))).code == "architecture-unsupported"


def test_an_attribute_of_a_configuration_cannot_be_replaced(folder: Path) -> None:
    expected = TransformerEncoder.load(folder).encode_queries(["salt", "water"])
    edit(folder, attribute_map=["x"], sub_configs={"a": 1}, get_text_config=1, chunk_size_feed_forward=10**6)
    assert (TransformerEncoder.load(folder).encode_queries(["salt", "water"]) == expected).all()


@pytest.mark.parametrize("name", ["splade", "unicoil"])
def test_a_vocabulary_with_more_ids_than_the_tokenizer(folders: dict[str, Path], folder: Path, name: str) -> None:
    """Many models have a vocabulary rounded up to a multiple of 64."""
    CLASSES.get(name, BertModel)(BertConfig(vocab_size=8064, **SIZE)).save_pretrained(folder)
    encoder = SparseEncoder.load(folder, architecture=name, fresh=True)  # type: ignore[arg-type]
    assert encoder.encode_queries(["salt water", "x"]).shape == (2, 8064)
    assert encoder.terms.null_count == 0
    assert len(encoder.document_weights(["", ""], ["salt water", "tides"], 128).distinct) == 2


def test_transformers_opens_models_in_one_module_only() -> None:
    import hybrid_cli

    users = {
        file.stem
        for file in Path(hybrid_cli.__file__).parent.rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text("utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
        if node.func.attr in ("from_pretrained", "from_config", "from_dict", "for_model")
    }
    assert users == {"loading"}
