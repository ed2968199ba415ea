"""Loading of models: folder, configuration, tokenizer, and weights, all used or refused.

Every folder of a transformer is opened here: encoders, learned sparse encoders, rerankers, start models, teachers and
translation models. Whoever wrote the folder decides its architecture and nothing else: its files name no code that is
run, no model that is downloaded, and no sizes beyond those of its weights. Texts become token ids without reading the
part of a text that is cut off.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from dataclasses import fields as dataclass_fields
from pathlib import Path
from typing import Any

import torch
import transformers
from huggingface_hub import constants
from safetensors import SafetensorError, safe_open
from tokenizers import normalizers
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel
from transformers.initialization import no_init_weights
from transformers.utils import logging

from hybrid_cli import memory
from hybrid_cli.encoders import adapters
from hybrid_cli.encoders.contract import TowerFiles, shapes, weight_files
from hybrid_cli.errors import HybridError, InputError, path_error
from hybrid_cli.inputs.files import refuse_special
from hybrid_cli.inputs.json_values import mismatch_of_fields, read_object, value_in_words

# Keys of config.json that name an implementation, wherever they are; the installed transformers chooses it instead.
_IMPLEMENTATIONS = ("attn_implementation", "experts_implementation")
# Keys without effect on the vectors: records of the author's environment, and forms of the output that is not used.
_DROPPED = {
    *("auto_map", "name_or_path", "custom_pipelines", "fusion_config", "kernel_config", "distributed_config"),
    *("use_kernels", "device_map", "tp_plan", "use_cache", "return_dict", "use_return_dict", "torchscript"),
    *("output_attentions", "output_hidden_states", "chunk_size_feed_forward"),
}
# Keys that need more than this folder, with the reason.
_REFUSED = {
    "quantization_config": "quantized weights are not opened; save the model in fp32 or bf16",
    "compression_config": "compressed weights are not opened; save the model in fp32 or bf16",
    "backbone": "a model inside this model would be downloaded; save a complete checkpoint",
    "use_timm_backbone": "a model inside this model would be downloaded; save a complete checkpoint",
    "use_pretrained_backbone": "a model inside this model would be downloaded; save a complete checkpoint",
    "gguf_file": "GGUF files are not opened; save the model as safetensors",
}
_DTYPES = ("float32", "float16", "bfloat16", "float64", "auto")
NO_WEIGHTS = "has no model.safetensors; convert pickles (.bin) with hybrid convert-checkpoint"
_LABELS = ("id2label", "label2id")  # whose keys are of their own
# Keys that number the parts of a model: each part has weights of its own, or shares those of another.
_PARTS = re.compile(r"(layers|blocks|experts|depths?|stages?|stacks|groups|towers)$|^n_(layer|block|expert|group)$")
_NUMBERS = re.compile(r"^num_")
_FEWEST_PARTS, _FEWEST_NUMBERS = 64, 4096  # always allowed: the layers of ALBERT share their weights
_NEW = 1 << 24  # values of new heads
_CLASSIFIERS = transformers.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING
_KINDS = {  # of models: their architectures, and a word for messages
    transformers.AutoModel: (transformers.MODEL_MAPPING, "encoder"),
    transformers.AutoModelForMaskedLM: (transformers.MODEL_FOR_MASKED_LM_MAPPING, "masked language model"),
    transformers.AutoModelForSequenceClassification: (_CLASSIFIERS, "classification head"),
    transformers.AutoModelForSeq2SeqLM: (transformers.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING, "translation model"),
}


def read_config(folder: Path) -> PretrainedConfig:
    """Return the configuration of a model folder, of the keys that may act.

    Raises:
        InputError: no config.json, a key that needs more than this folder, an unknown architecture, or more parts than
            the weights have.
    """
    file = folder / "config.json"
    if (folder / "adapter_config.json").is_file():
        raise path_error(folder, "is a LoRA adapter; merge it (peft's `merge_and_unload`)", code="model-adapter")
    if not file.is_file():
        problem = "has no config.json; save it complete, or join its towers: hybrid convert-checkpoint"
        raise path_error(folder, problem, code="model-without-config")
    read_object(file)  # an error in one line
    with opening(folder):
        stored, _ = PretrainedConfig.get_config_dict(folder, local_files_only=True)
    check_settings(stored, file)
    _refuse_counts(stored, file, len(shapes(folder)))
    kept = _allowed_keys(stored)
    kind = kept.get("model_type")
    if kind == "mistral" and "layer_types" in kept:  # as AutoConfig reads it
        kind = "ministral"
    if not isinstance(kind, str) or kind not in transformers.CONFIG_MAPPING:
        own = "; code of its own (auto_map) is never run" if "auto_map" in stored else ""
        problem = f"model_type {value_in_words(kind)} is not in the installed transformers{own}"
        raise path_error(file, problem, code="model-type-unknown", value=kind)
    with opening(folder):
        config: PretrainedConfig = transformers.CONFIG_MAPPING[kind].from_dict(kept)
    config.name_or_path = str(folder)
    return config


def open_model(
    auto: Any, folder: Path, config: PretrainedConfig, weights: Mapping[str, Tensor] | None = None, **options: Any
) -> tuple[Any, list[str], list[str]]:
    """Open the model of a folder.

    Args:
        auto: class of transformers, or one of its Auto classes.
        folder: folder of the model.
        config: its configuration; see `read_config`.
        weights: weights under the names of the class; None for those in the folder.
        options: arguments of the class.

    Returns:
        The model, the names of its weights that are missing or of another shape, and those that it does not have.

    Raises:
        InputError: no weights in safetensors format, weights of another size than config.json describes, or an
            architecture that the class does not have.
    """
    silence_transformers()
    refuse_pickles(folder)
    known, word = _KINDS.get(auto, (None, ""))
    if known is not None and type(config) not in known:
        raise path_error(folder, f"{config.model_type} has no {word}", code="architecture-unsupported")
    if auto is not transformers.AutoModelForSeq2SeqLM and hasattr(config, "use_cache"):
        config.use_cache = False  # keys and values of earlier tokens, which only writing a text needs
    with opening(folder):
        _refuse_size(auto, folder, config, options)
        source: dict[str, Any] = {"use_safetensors": True} if weights is None else {"state_dict": dict(weights)}
        opened, report = auto.from_pretrained(
            folder if weights is None else None,
            config=config,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # the caller refuses them with a clear message
            local_files_only=True,
            trust_remote_code=False,
            **source,
            **options,
        )
    return opened, [*report["missing_keys"], *(key for key, *_ in report["mismatched_keys"])], report["unexpected_keys"]


def new_model(kind: Any, folder: Path, config: PretrainedConfig) -> PreTrainedModel:
    """Return a model without its weights, whose size is that of the weights in the folder; see `open_model`."""
    silence_transformers()
    refuse_pickles(folder)
    with opening(folder):
        _refuse_size(kind, folder, config, {})
        built: PreTrainedModel = kind(config)
    return built


def open_tokenizer(folder: Path, **options: Any) -> Any:
    """Return the tokenizer of a folder.

    Args:
        folder: folder of the tokenizer.
        options: arguments of the tokenizer.

    Raises:
        InputError: the tokenizer is not readable, or has no vocabulary.
    """
    config = read_config(folder) if (folder / "config.json").is_file() else None
    with opening(folder):
        tokenizer = transformers.AutoTokenizer.from_pretrained(
            folder, config=config, local_files_only=True, trust_remote_code=False, **options
        )
        set(tokenizer.all_special_ids)  # fails for damaged ones
    if len(tokenizer) <= len(tokenizer.all_special_tokens):  # else transformers creates one
        raise path_error(folder, "has no vocabulary; save the tokenizer here", code="tokenizer-without-vocabulary")
    return tokenizer


def silence_transformers() -> None:
    """Suppress reports and progress bars of transformers."""
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]


@contextmanager
def opening(folder: Path) -> Iterator[None]:
    """Open the files of a model without the network; turn an error of transformers about them into one line."""
    online, constants.HF_HUB_OFFLINE = constants.HF_HUB_OFFLINE, True  # for requests that no argument switches off
    try:
        yield
    except HybridError:
        raise
    except Exception as error:  # transformers and tokenizers raise every class for files that are damaged
        if memory.is_allocation_failure(error):
            raise
        raise path_error(folder, f"no readable model ({_first_line(error)})", code="model-unreadable") from None
    finally:
        constants.HF_HUB_OFFLINE = online


def check_settings(fields: Mapping[str, Any], file: Path) -> None:
    """Refuse keys that name code or models outside the folder, also in the configurations of parts."""
    for key, value in _items(fields):
        name = key.lstrip("_").removesuffix("_internal")
        reason = _REFUSED.get(name) if value is True or (value and isinstance(value, str | dict)) else None
        if name in _IMPLEMENTATIONS and any("/" in text for text in _texts(value)):
            reason = "code of the hub is never run; remove the key"
        if name in ("dtype", "torch_dtype") and any(
            text.removeprefix("torch.") not in _DTYPES for text in _texts(value)
        ):
            reason = f"weights are floating point numbers ({', '.join(_DTYPES[:-1])}); save the model in one of them"
        if reason is not None:
            raise path_error(file, f"{key} {value_in_words(value)}: {reason}", code="model-config-key", key=key)


def _refuse_counts(fields: Mapping[str, Any], file: Path, weights: int) -> None:
    """Refuse more parts than a checkpoint of so many weights can have, before anything is built from their number."""
    for key, value in _items(fields):
        for pattern, fewest in ((_PARTS, _FEWEST_PARTS), (_NUMBERS, _FEWEST_NUMBERS)):
            most = max(weights, fewest)
            numbers = [len(value), *value] if isinstance(value, list) else [value]
            large = [number for number in numbers if isinstance(number, int | float) and number > most]
            if large and pattern.search(key):
                problem = f"{key} {large[0]} is more than {weights} weights can have"
                raise path_error(file, problem, code="model-config-size")


def _refuse_size(auto: Any, folder: Path, config: PretrainedConfig, options: Mapping[str, Any]) -> None:
    """Refuse a configuration of a model far larger than the weights; it is built without memory for them."""
    build = getattr(auto, "from_config", auto)
    with no_init_weights(), torch.device("meta"):
        model = build(config, **options)
    described = sum(tensor.numel() for tensor in (*model.parameters(), *model.buffers()))
    stored = sum(math.prod(shape) for shape in shapes(folder).values())
    if stored and described > 2 * stored + _NEW:
        problem = f"describes {described:,} values, the checkpoint has {stored:,}; save it complete"
        raise path_error(folder / "config.json", problem, code="model-config-size")


def _allowed_keys(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys that may act: no private ones, none that replace a method, and none of `_DROPPED`."""
    return {
        key: _allowed_keys(value) if isinstance(value, dict) and key not in _LABELS else value
        for key, value in fields.items()
        if key not in (*_DROPPED, *_IMPLEMENTATIONS)
        and not key.startswith("_")
        and (key == "model_type" or not _is_of_class(key))
    }


def _is_of_class(key: str) -> bool:
    """Return whether a key would replace a method or another attribute of the class of configurations."""
    declared = {declaration.name for declaration in dataclass_fields(PretrainedConfig)}  # type: ignore[arg-type]
    return key not in declared and not isinstance(getattr(PretrainedConfig, key, property()), property)


def _items(fields: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield keys and values of an object and of all objects in it."""
    for key, value in fields.items():
        yield key, value
        if key not in _LABELS:
            for item in value if isinstance(value, list) else [value]:
                if isinstance(item, dict):
                    yield from _items(item)


def _texts(value: Any) -> Iterator[str]:
    """Yield the texts in a JSON value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _texts(item)


def refuse_pickles(folder: Path) -> None:
    """Refuse weights that are not in safetensors files of this folder, and pipes in place of files."""
    for path in sorted(folder.iterdir()):
        refuse_special(path)
    if (folder / "config.json").is_file() and not weight_files(folder):
        raise path_error(folder, NO_WEIGHTS, code="no-weights")
    for name in _named_files(folder):
        if not name.endswith(".safetensors") or Path(name).name != name:
            raise path_error(folder, f"weights in {name!r}; needs .safetensors here", code="unsafe-name", name=name)


def _named_files(folder: Path) -> set[str]:
    """Return the files that the index of a sharded checkpoint and config.json name as its weights."""
    names: set[str] = set()
    if (index := folder / "model.safetensors.index.json").exists():
        stored = read_object(index)
        if wrong := mismatch_of_fields(stored, {"weight_map": dict[str, str]}):
            raise path_error(index, f"{wrong}, the file of a weight", code="json-type", **wrong.fields)
        names |= set(stored["weight_map"].values())
    if (config := folder / "config.json").exists() and (named := read_object(config).get("transformers_weights")):
        names.add(str(named))
    return names


def _first_line(error: Exception) -> str:
    """Return the first line of a message, or the class of an error without one."""
    if isinstance(error, RecursionError):
        return "JSON nested too deeply"
    text = next(iter(str(error).splitlines()), "")
    return text if isinstance(error, OSError | ValueError | SafetensorError) else f"{type(error).__name__}: {text}"


CHARACTERS = 8  # of a text that are read at first, for each token of the length; English has 4 to 5


def cut_tokens(tokenizer: Any, texts: Sequence[str], length: int, **options: Any) -> tuple[list[list[int]], list[bool]]:
    """Return the token ids of each text, cut to `length`, and whether it was cut.

    Only the beginning of a long text is read: `CHARACTERS` for each token, up to the end of a word. The ids equal those
    of the whole text, because no token contains a letter, white space and another letter. A text whose beginning has
    too few tokens is read as a whole.

    Args:
        tokenizer: tokenizer of transformers.
        texts: inputs of the tokenizer.
        length: maximum number of tokens, with special tokens.
        options: other arguments of the tokenizer.
    """

    def tokenize(parts: list[str]) -> tuple[list[list[int]], list[bool]]:
        encoded = tokenizer(parts, truncation=True, max_length=length, return_token_type_ids=False, **options)
        cut = [bool(encoding.overflowing) for encoding in encoded.encodings or ()]
        return encoded["input_ids"], cut or [False] * len(parts)

    from_start = tokenizer.is_fast and tokenizer.truncation_side == "right"
    beginnings = [head_of(text, CHARACTERS * length) if from_start else text for text in texts]
    ids, cut = tokenize(beginnings)
    again = [row for row, text in enumerate(texts) if len(beginnings[row]) < len(text) and not cut[row]]
    if again:
        for row, own, own_cut in zip(again, *tokenize([texts[row] for row in again]), strict=True):
            ids[row], cut[row] = own, own_cut
    return ids, cut


def head_of(text: str, most: int) -> str:
    """Return the words of a text that end within `most` characters; the whole text if none does."""
    if len(text) <= most:
        return text
    end = max(text.rfind(mark, 0, most + 1) for mark in (" ", "\n"))
    return text[: max(end, 0)].rstrip() or text


_SPECIAL = ("eos_token", "unk_token", "bos_token", "sep_token", "cls_token", "mask_token")


def choose_padding(tokenizer: Any) -> None:
    """Give a tokenizer without a padding token another special token as such; the attention mask hides it.

    The first choice is the end of a text, as is usual for GPT-2 and Llama. A token that the tokenizer puts at the end
    of every text is the last choice: rerankers of these architectures read the last token that is not padding.
    """
    if tokenizer.pad_token_id is not None:
        return
    special = [token for name in _SPECIAL if (token := getattr(tokenizer, name, None)) is not None]
    last = tokenizer("a")["input_ids"][-1:]
    special.sort(key=lambda token: [tokenizer.convert_tokens_to_ids(token)] == last)
    if special:
        tokenizer.pad_token = special[0]


def padding_of(tokenizer: Any) -> int:
    """Return the token id for padding; of a tokenizer without special tokens the last one, which is rare in texts."""
    padding = tokenizer.pad_token_id
    return int(max(tokenizer.get_vocab().values()) if padding is None else padding)


def save_tokenizer(tokenizer: Any, folder: Path) -> None:
    """Store a tokenizer without the truncation and padding of its last call, so that equal trainings store the same."""
    if tokenizer.is_fast:
        tokenizer.backend_tokenizer.no_truncation()
        tokenizer.backend_tokenizer.no_padding()
    tokenizer.save_pretrained(folder)


def attend_to_padding(mask: Tensor) -> Tensor:
    """Return an attention mask [n, L] under which a text without tokens attends to its padding, not to nothing."""
    empty = mask.sum(1, keepdim=True) == 0
    return torch.cat([mask[:, :1] | empty, mask[:, 1:]], dim=1)


def pad_batch(
    rows: Sequence[Sequence[int]], padding: int, types: Sequence[Sequence[int]] | None = None
) -> dict[str, Tensor]:
    """Return the inputs of a transformer for a batch, padded on the right: each [n, L], L at least 1.

    Args:
        rows: token ids of each text.
        padding: token id for padding; see `padding_of`.
        types: token types of each text.
    """
    length = max(1, *map(len, rows))
    named: Mapping[str, tuple[Sequence[Sequence[int]], int]] = {
        "input_ids": (rows, padding),
        **({} if types is None else {"token_type_ids": (types, 0)}),
        "attention_mask": ([[1] * len(row) for row in rows], 0),
    }
    return {
        name: torch.tensor([[*row, *[fill] * (length - len(row))] for row in values])
        for name, (values, fill) in named.items()
    }


WITH_POOLER = ("bert", "roberta", "xlm-roberta", "ernie")
_ENCODERS = {
    "t5": transformers.T5EncoderModel,
    "mt5": transformers.MT5EncoderModel,
    "umt5": transformers.UMT5EncoderModel,
}  # AutoModel adds a decoder
_SILENT = {"pooler", "position_ids", "inv_freq"}  # parts of a checkpoint that are skipped without a note
# Heads of pretraining, which no encoder applies: BERT, Condenser, RoBERTa and MPNet, DistilBERT, ELECTRA.
_PRETRAINING = {
    *("cls", "c_head", "lm_head", "vocab_transform", "vocab_layer_norm", "vocab_projector"),
    *("generator_predictions", "generator_lm_head", "discriminator_predictions"),
}
# The same in models of one type; of T5, the encoder is used alone.
_OF_TYPE = {"modernbert": ("head", "decoder"), **dict.fromkeys(_ENCODERS, ("decoder",))}
_NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")


@dataclass(frozen=True)
class Loaded:
    """One tower of a checkpoint.

    Attributes:
        backbone: transformer.
        tokenizer: tokenizer, which pads on the right.
        projection: weights of the projection in the checkpoint itself, as `linear.*` and `norm.*`.
        left_out: pretraining heads of the checkpoint that the encoder does not use.
    """

    backbone: PreTrainedModel
    tokenizer: Any
    projection: Mapping[str, Tensor]
    left_out: tuple[str, ...]


def load_checkpoint(files: TowerFiles, lower_case: bool = False) -> Loaded:
    """Load one tower of a checkpoint.

    Args:
        files: files of the tower.
        lower_case: see `load_tokenizer`.

    Raises:
        InputError: no complete checkpoint in safetensors format, weights that config.json does not describe, or weights
            of an unknown part, without which the vectors would be wrong.
    """
    folder = files.folder
    if (base := adapters.read_base(folder)) is not None:
        tower = base.files(folder)
        whole = load_checkpoint(tower)
        adapters.load_adapter(folder, whole.backbone, base, tower)
        return replace(whole, tokenizer=load_tokenizer(folder, lower_case))
    refuse_pickles(folder)
    config = _config(folder)
    with opening(folder):
        names, projection = (None, {}) if files.read is None else files.read()
    # BERT's unused pooler over [CLS]
    unused = {"add_pooling_layer": False} if config.model_type in WITH_POOLER else {}
    kind = encoder_class(config, transformers.AutoModel if names is None else transformers.MODEL_MAPPING[type(config)])
    backbone, missing, others = open_model(kind, folder, config, names, **unused)
    tokenizer = load_tokenizer(folder, lower_case)
    refuse_other_tokenizer(folder, tokenizer, backbone)
    _refuse_integers(folder)
    if "tok_proj.weight" in others:
        raise path_error(folder, "needs --architecture unicoil", code="other-kind", kind="unicoil")
    refuse_missing(folder, missing)
    refuse_more_layers(folder, others, backbone.state_dict())
    if unknown := foreign_weights(config.model_type, others):
        raise unknown_weights(folder, unknown)
    left_out = sorted({key.split(".")[0] for key in others if not has_no_values(key)})
    return Loaded(backbone, tokenizer, projection, tuple(left_out))


def encoder_class(config: PretrainedConfig, otherwise: Any = transformers.AutoModel) -> Any:
    """Return the class of the transformer of an encoder: of T5 its encoder alone, `otherwise` for other types."""
    return _ENCODERS.get(config.model_type, otherwise)


def _config(folder: Path) -> PretrainedConfig:
    """Return the configuration; that of DPR's classes as the BERT inside them."""
    config = read_config(folder)
    if config.model_type != "dpr":
        return config
    fields = {name: value for name, value in config.to_dict().items() if name not in ("model_type", "projection_dim")}
    return transformers.BertConfig(**fields)


def load_tokenizer(folder: Path, lower_case: bool = False) -> Any:
    """Return the tokenizer of a checkpoint, which pads on the right.

    Args:
        folder: folder of the tokenizer.
        lower_case: texts are in lower case before it reads them.

    Raises:
        InputError: the tokenizer is not readable, or has no vocabulary.
    """
    tokenizer = open_tokenizer(folder)
    tokenizer.padding_side = "right"
    choose_padding(tokenizer)
    rules = tokenizer.backend_tokenizer
    if lower_case and '"Lowercase"' not in rules.to_str():  # which is added once
        rules.normalizer = normalizers.Sequence(
            [normalizers.Lowercase(), *([rules.normalizer] if rules.normalizer else [])]
        )
    return tokenizer


def has_no_values(key: str) -> bool:
    """Return whether a weight is of a part without values of its own, such as positions."""
    return bool(_SILENT & {*key.split(".")})


def foreign_weights(model_type: str, keys: Iterable[str], body: str = "") -> list[str]:
    """Return the weights, sorted, that are neither heads of pretraining nor parts without values, such as positions.

    Args:
        model_type: `model_type` of config.json.
        keys: names of weights of a checkpoint that a model does not have.
        body: prefix of the names of the transformer inside a model with a head.
    """
    heads = {*_PRETRAINING, *_OF_TYPE.get(model_type, ())}
    return sorted(key for key in keys if not has_no_values(key) and key.removeprefix(body).split(".")[0] not in heads)


def unknown_weights(folder: Path, keys: Collection[str]) -> InputError:
    """Return the error about weights of a part that no form has."""
    return path_error(folder, f"has weights of an unknown part ({first_names(keys)})", code="unknown-weights")


def first_names(keys: Collection[str]) -> str:
    """Return the first three names in words."""
    return ", ".join(sorted(keys)[:3]) + (f", and {len(keys) - 3} more" if len(keys) > 3 else "")


def refuse_other_tokenizer(folder: Path, tokenizer: Any, backbone: PreTrainedModel) -> None:
    """Refuse a tokenizer with ids beyond the embeddings: a text with such a token would end the encoding."""
    embeddings: Any = backbone.get_input_embeddings()
    if not isinstance(embeddings, nn.Embedding):
        raise path_error(folder, f"{backbone.config.model_type} encodes no texts", code="architecture-unsupported")
    if (last := max(tokenizer.get_vocab().values())) >= embeddings.num_embeddings:
        problem = f"the tokenizer has ids up to {last:,}, beyond the embeddings; save that of this model"
        raise path_error(folder, problem, code="other-tokenizer")


def _refuse_integers(folder: Path) -> None:
    """Refuse quantized weights without their scales, which would be read as numbers."""
    for file in weight_files(folder):
        with safe_open(file, "np") as opened:
            for key in opened.keys():  # noqa: SIM118 - no mapping
                if key.endswith(".weight") and (kind := opened.get_slice(key).get_dtype())[0] in "IU":
                    raise path_error(folder, f"{key} has integers ({kind}); save fp32 or bf16", code="integer-weights")


def refuse_more_layers(folder: Path, unexpected: Collection[str], known: Collection[str]) -> None:
    """Refuse weights of layers that config.json does not have; the encoder would be a truncated model."""
    patterns = {_NUMBER.sub("#", key) for key in known}
    more = sorted(key for key in unexpected if any(_NUMBER.sub("#", key).endswith(pattern) for pattern in patterns))
    if more:
        raise path_error(
            folder, f"has layers that config.json lacks ({more[0]}); correct its number of layers", code="more-layers"
        )


def refuse_missing(folder: Path, keys: Collection[str]) -> None:
    """Refuse a checkpoint with missing or misshaped weights, which would be random; poolers do not count."""
    if missing := sorted(key for key in keys if not key.startswith("pooler.")):
        raise path_error(folder, f"lacks weights ({first_names(missing)}); save it complete", code="missing-weights")
