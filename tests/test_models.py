"""Folders of models: names and the hub, code, pickles, configurations."""

import ast
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import processes
import pytest
import torch
import transformers
from command import raises
from safetensors.torch import load_file, save_file

from hybrid_cli.encoders.cross_encoder import CrossEncoder
from hybrid_cli.encoders.models import resolve
from hybrid_cli.encoders.sparse import SparseEncoder
from hybrid_cli.encoders.transformer import TransformerEncoder
from hybrid_cli.errors import InputError
from hybrid_cli.perturbations.translation import Translator
from hybrid_cli.training.pretraining import MaskedLanguageModel


def run(model: str, address: str, folder: Path, offline: str = "0") -> subprocess.CompletedProcess[str]:
    """Resolve a model in a separate process: huggingface_hub reads its settings when it is imported."""
    code = (
        "import sys\n"
        "from hybrid_cli import console, errors\n"
        "from hybrid_cli.encoders.models import resolve\n"
        "with console.heard() as notices:\n"
        "    try:\n"
        "        resolve(sys.argv[1])\n"
        "    except errors.InputError as error:\n"
        "        print(*(notice.code for notice in notices), error.code, error.fields['value'])\n"
    )
    settings = {"HF_ENDPOINT": address, "HF_HUB_OFFLINE": offline, "HF_HOME": str(folder / "cache")}
    return subprocess.run(
        [sys.executable, "-c", code, model], cwd=folder, env={**os.environ, **settings}, capture_output=True, text=True
    )


PATHS = ["out/clear", "./owner/clear", "../clear", "/owner/clear", "~/clear", "clear", "a/b/c"]


@pytest.mark.parametrize(
    ("name", "offline", "codes"),
    [
        *((name, "0", "no-such-model") for name in PATHS),
        ("owner/clear", "1", "no-such-model"),
        ("owner/clear", "0", "download no-such-model"),
    ],
)
def test_the_hub_is_asked_for_its_ids_only_and_not_offline(
    tmp_path: Path, hub: tuple[str, list[str]], name: str, offline: str, codes: str
) -> None:
    (tmp_path / "out").mkdir()
    done = run(name, hub[0], tmp_path, offline)
    assert done.stdout == f"{codes} {name}\n", done
    assert bool(hub[1]) == any("owner/clear" in path for path in hub[1]) == codes.startswith("download")


def test_a_path_object_is_local(workdir: Path) -> None:
    with raises("no-such-model", value="model"):
        resolve(Path("owner/model"))


@pytest.fixture
def copy(tmp_path: Path, tiny_bert: Path) -> Path:
    shutil.copytree(tiny_bert, tmp_path / "model")
    return tmp_path / "model"


def set_layers(folder: Path, count: int) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "num_hidden_layers": count}))


@pytest.mark.parametrize("prefix", ["", "bert."])
def test_weights_of_layers_that_are_not_in_the_config_are_refused(copy: Path, prefix: str) -> None:
    """Transformers would drop these weights with a note, and the encoder would be a different one."""
    weights = load_file(copy / "model.safetensors")
    save_file({prefix + name: value for name, value in weights.items()}, copy / "model.safetensors", {"format": "pt"})
    TransformerEncoder.load(copy)
    set_layers(copy, 1)
    with raises("more-layers"):
        TransformerEncoder.load(copy)


def test_a_tokenizer_with_more_tokens_than_the_model_is_refused(copy: Path) -> None:
    content = json.loads((copy / "tokenizer.json").read_text())
    content["model"]["vocab"]["zzz"] = 40_000
    (copy / "tokenizer.json").write_text(json.dumps(content))
    with raises("other-tokenizer", path="model"):
        TransformerEncoder.load(copy)


@pytest.mark.parametrize("files", [["passage/config.json", "query/config.json"], ["model.safetensors"]])
def test_a_folder_without_a_model_is_refused(tmp_path: Path, files: list[str]) -> None:
    for name in files:
        (tmp_path / "model" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "model" / name).write_text("{}")
    with raises("model-without-config", path="model"):
        TransformerEncoder.load(tmp_path / "model")


def test_integer_weights_are_refused(copy: Path) -> None:
    weights = load_file(copy / "model.safetensors")
    name = "encoder.layer.0.attention.self.query.weight"
    save_file({**weights, name: weights[name].to(torch.int8)}, copy / "model.safetensors", {"format": "pt"})
    with raises("integer-weights", path="model"):
        TransformerEncoder.load(copy)


@pytest.mark.parametrize("shard", ["pytorch_model.bin", "../other/model.safetensors", "model.pt"])
def test_an_index_with_a_path_to_a_pickle_or_outside_of_the_folder_is_refused(copy: Path, shard: str) -> None:
    weights = load_file(copy / "model.safetensors")
    (copy / "other.safetensors").write_bytes((copy / "model.safetensors").read_bytes())
    (copy / "model.safetensors").unlink()
    torch.save(weights, copy / "pytorch_model.bin")
    index = {"metadata": {"total_size": 1}, "weight_map": dict.fromkeys(weights, shard)}
    (copy / "model.safetensors.index.json").write_text(json.dumps(index))
    with raises("unsafe-name"):
        TransformerEncoder.load(copy)


def test_a_config_that_names_a_pickle_as_its_weights_is_refused(copy: Path) -> None:
    torch.save(load_file(copy / "model.safetensors"), copy / "pytorch_model.bin")
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps({**config, "transformers_weights": "pytorch_model.bin"}))
    with raises("unsafe-name", path="model", name="pytorch_model.bin"):
        TransformerEncoder.load(copy)


MODEL = {"AutoConfig": "custom.A", "AutoModel": "custom.B"}
CUSTOM: list[tuple[str, Any]] = [
    ("config.json", {"model_type": "bert", "auto_map": MODEL}),
    ("config.json", {"model_type": "custom", "auto_map": MODEL}),
    ("tokenizer_config.json", {"tokenizer_class": "C", "auto_map": {"AutoTokenizer": ["custom.C", "custom.C"]}}),
    ("modules.json", [{"idx": 0, "name": "0", "path": "", "type": "custom.D"}]),
]


@pytest.mark.parametrize(("name", "content"), CUSTOM)
def test_code_in_a_model_folder_is_not_executed(tiny_bert: Path, tmp_path: Path, name: str, content: Any) -> None:
    folder, marker = tmp_path / "model", tmp_path / "executed"
    shutil.copytree(tiny_bert, folder)
    known = json.loads((folder / name).read_text()) if name == "config.json" else {}
    (folder / name).write_text(json.dumps({**known, **content} if isinstance(content, dict) else content))
    (folder / "custom.py").write_text(f"import pathlib\npathlib.Path({str(marker)!r}).touch()\n")
    with suppress(InputError):  # either is safe: the folder is refused, or opened without its code
        TransformerEncoder.load(folder, device="cpu").encode_queries(["salt"])
    assert not marker.exists()


def test_a_pickle_is_not_opened(tiny_bert: Path, tmp_path: Path) -> None:
    class Payload:
        def __reduce__(self) -> tuple[object, ...]:
            return os.mkdir, (str(tmp_path / "executed"),)

    folder = tmp_path / "model"
    shutil.copytree(tiny_bert, folder)
    (folder / "model.safetensors").unlink()
    torch.save(Payload(), folder / "pytorch_model.bin")
    with raises("no-weights"):
        TransformerEncoder.load(folder, device="cpu")
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize("wrapper", ["module.", "encoder."])
def test_weights_of_a_wrapped_model_are_read(copy: Path, tiny_bert: Path, wrapper: str) -> None:
    weights = load_file(copy / "model.safetensors")
    save_file({wrapper + name: value for name, value in weights.items()}, copy / "model.safetensors", {"format": "pt"})
    found = TransformerEncoder.load(copy).encode_queries(["salt"])
    assert (found == TransformerEncoder.load(tiny_bert).encode_queries(["salt"])).all()


OPENERS: dict[str, Callable[[Path], object]] = {
    "encoder": TransformerEncoder.load,
    "reranker": CrossEncoder.load,
    "start of a reranker": lambda folder: CrossEncoder.load(folder, train=True),
    "splade": lambda folder: SparseEncoder.load(folder, architecture="splade", fresh=True),
    "unicoil": lambda folder: SparseEncoder.load(folder, architecture="unicoil", fresh=True),
    "pretraining": lambda folder: MaskedLanguageModel.load(folder, condenser=False),
    "translation": lambda folder: Translator(folder, "cpu"),
}
CLASSES: dict[str, Any] = {
    "reranker": transformers.BertForSequenceClassification,
    "translation": transformers.MarianMTModel,
}
CLASSES |= dict.fromkeys(("start of a reranker", "splade", "pretraining"), transformers.BertForMaskedLM)
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
            transformers.MarianMTModel(transformers.MarianConfig(**shape)).save_pretrained(folder)
            continue
        CLASSES.get(name, transformers.BertModel)(transformers.BertConfig(**shape, **SIZE)).save_pretrained(folder)
    return made


@pytest.fixture
def folder(folders: dict[str, Path], tmp_path: Path, request: pytest.FixtureRequest) -> Path:
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
ACTING: list[tuple[str, Any]] = [*((key, KERNEL) for key in (*KERNELS, "_experts_implementation"))]
ACTING += [("gguf_file", "model.gguf"), ("dtype", "load"), ("attn_implementation", f"paged|{KERNEL}@main:flash")]
ACTING += [("torch_dtype", "float8_e4m3fn"), ("attn_implementation", {"": "sdpa", "text_config": KERNEL})]
ACTING += [("text_config", {"attn_implementation": KERNEL}), ("parts", [{"deeper": {"_attn_implementation": KERNEL}}])]
ACTING += [("quantization_config", {"quant_method": "fp8"})]
ACTING += [("text_config", {"quantization_config": {"quant_method": "mxfp4"}}), ("backbone", "owner/model")]
ACTING += [("use_pretrained_backbone", True)]


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
def test_a_configuration_larger_than_the_weights_is_refused_early(folder: Path, sizes: dict[str, Any]) -> None:
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
    name, grown = processes.run(code).stdout.split()
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
    CLASSES.get(name, transformers.BertModel)(transformers.BertConfig(vocab_size=8064, **SIZE)).save_pretrained(folder)
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
        if not ast.unparse(node.func).startswith("alt.")  # a chart
    }
    assert users == {"loading"}
