"""Loading of checkpoints: transformer and tokenizer of one tower, with every weight used or refused."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import safe_open
from safetensors.torch import load_file
from tokenizers.normalizers import Lowercase, Sequence
from torch import Tensor, nn
from transformers import (
    MODEL_MAPPING,
    AutoModel,
    BertConfig,
    MT5EncoderModel,
    PretrainedConfig,
    PreTrainedModel,
    T5EncoderModel,
    UMT5EncoderModel,
)

from hybrid_cli.encoders.layouts import LAYOUTS, LEARNERS, WRAPPERS, layout_of, shapes, weight_files
from hybrid_cli.encoders.library_files import lowers_case
from hybrid_cli.encoders.model_folder import open_model, open_tokenizer, opening, read_config, refuse_pickles
from hybrid_cli.encoders.tokens import choose_padding
from hybrid_cli.errors import InputError

WITH_POOLER = ("bert", "roberta", "xlm-roberta", "ernie")
_ENCODERS = {"t5": T5EncoderModel, "mt5": MT5EncoderModel, "umt5": UMT5EncoderModel}  # AutoModel adds a decoder
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


def load_checkpoint(folder: Path, side: str) -> Loaded:
    """Load one tower of a checkpoint.

    Args:
        folder: folder of weights, config.json and tokenizer.
        side: `query` or `document`; a checkpoint of one tower serves both.

    Raises:
        InputError: no complete checkpoint in safetensors format, weights that config.json does not describe, or weights
            of an unknown part, without which the vectors would be wrong.
    """
    refuse_pickles(folder)
    config = _config(folder)
    with opening(folder):
        names, projection = _read(folder, side)
    # BERT's unused pooler over [CLS]
    unused = {"add_pooling_layer": False} if config.model_type in WITH_POOLER else {}
    kind = encoder_class(config, AutoModel if names is None else MODEL_MAPPING[type(config)])
    backbone, report = open_model(kind, folder, config, names, **unused)
    tokenizer = load_tokenizer(folder)
    refuse_other_tokenizer(folder, tokenizer, backbone)
    _refuse_integers(folder)
    _refuse_sparse(folder, report["unexpected_keys"])
    refuse_missing(folder, [*report["missing_keys"], *(key for key, *_ in report["mismatched_keys"])])
    refuse_more_layers(folder, report["unexpected_keys"], backbone.state_dict())
    if unknown := foreign_weights(config.model_type, report["unexpected_keys"]):
        raise InputError(_unknown(folder, unknown))
    left_out = sorted({key.split(".")[0] for key in report["unexpected_keys"] if not _silent(key)})
    return Loaded(backbone, tokenizer, projection, tuple(left_out))


def encoder_class(config: PretrainedConfig, otherwise: Any = AutoModel) -> Any:
    """Return the class of the transformer of an encoder: of T5 its encoder alone, `otherwise` for other types."""
    return _ENCODERS.get(config.model_type, otherwise)


def _config(folder: Path) -> PretrainedConfig:
    """Return the configuration; that of DPR's classes as the BERT inside them."""
    config = read_config(folder)
    if config.model_type != "dpr":
        return config
    fields = {name: value for name, value in config.to_dict().items() if name not in ("model_type", "projection_dim")}
    return BertConfig(**fields)


def load_tokenizer(folder: Path) -> Any:
    """Return the tokenizer of a checkpoint, which pads on the right.

    Raises:
        InputError: the tokenizer is not readable, or has no vocabulary.
    """
    tokenizer = open_tokenizer(folder)
    tokenizer.padding_side = "right"
    choose_padding(tokenizer)
    rules = tokenizer.backend_tokenizer
    if lowers_case(folder) and '"Lowercase"' not in rules.to_str():  # as sentence-transformers, which adds it once
        rules.normalizer = Sequence([Lowercase(), *([rules.normalizer] if rules.normalizer else [])])
    return tokenizer


def _read(folder: Path, side: str) -> tuple[Mapping[str, Tensor] | None, dict[str, Tensor]]:
    """Return the weights of the transformer and of the projection of a tower; None if transformers reads them itself.

    Raises:
        InputError: the checkpoint has only the other tower, or a weight without a place in its layout.
    """
    names = shapes(folder)
    if any(name.startswith(LEARNERS) for name in names):
        raise InputError(
            f"{folder}: has several learners ({LEARNERS}*); convert it: hybrid convert-checkpoint {folder} OUT"
        )
    if (name := layout_of(names)) not in LAYOUTS:
        return _unwrapped(folder, names), {}
    layout = LAYOUTS[name]
    if (root := layout.towers.get(side, layout.towers.get(""))) is None:
        raise InputError(f"{folder}: has the weights of the {next(iter(layout.towers))} tower, not of the {side} tower")
    backbone: dict[str, Tensor] = {}
    projection: dict[str, Tensor] = {}
    unknown = []
    for key, value in ((key, value) for file in weight_files(folder) for key, value in load_file(file).items()):
        rest = key.removeprefix(root)
        if not key.startswith(root):
            known = any(key.startswith(other) for other in layout.towers.values()) or _silent(key)
            unknown += [] if known else [key]
        elif layout.linear and rest.startswith(layout.linear):
            projection["linear." + rest.removeprefix(layout.linear)] = value
        elif layout.norm and rest.startswith(layout.norm):
            projection["norm." + rest.removeprefix(layout.norm)] = value
        elif rest.startswith(layout.backbone):
            backbone[rest.removeprefix(layout.backbone)] = value
        elif not rest.startswith(layout.unused) and not _silent(rest):
            unknown.append(key)
    if unknown:
        raise InputError(_unknown(folder, unknown))
    return backbone, projection


def _unwrapped(folder: Path, names: Collection[str]) -> dict[str, Tensor] | None:
    """Return the weights of a plain transformer without the prefix of a wrapper; None if they have none."""
    wrapper = next((each for each in WRAPPERS if names and all(name.startswith(each) for name in names)), None)
    if wrapper is None:
        return None
    found = (item for file in weight_files(folder) for item in load_file(file).items())
    return {key.removeprefix(wrapper): value for key, value in found}


def _silent(key: str) -> bool:
    return bool(_SILENT & {*key.split(".")})


def foreign_weights(model_type: str, keys: Iterable[str], body: str = "") -> list[str]:
    """Return the weights, sorted, that are neither heads of pretraining nor parts without values, such as positions.

    Args:
        model_type: `model_type` of config.json.
        keys: names of weights of a checkpoint that a model does not have.
        body: prefix of the names of the transformer inside a model with a head.
    """
    heads = {*_PRETRAINING, *_OF_TYPE.get(model_type, ())}
    return sorted(key for key in keys if not _silent(key) and key.removeprefix(body).split(".")[0] not in heads)


def _unknown(folder: Path, keys: Collection[str]) -> str:
    return (
        f"{folder}: has weights of an unknown part ({few(keys)}), without which its vectors would be wrong; see "
        "`hybrid presets` for the known forms"
    )


def few(keys: Collection[str]) -> str:
    """Return the first three names in words."""
    return ", ".join(sorted(keys)[:3]) + (f", and {len(keys) - 3} more" if len(keys) > 3 else "")


def refuse_other_tokenizer(folder: Path, tokenizer: Any, backbone: PreTrainedModel) -> None:
    """Refuse a tokenizer with ids beyond the embeddings: a text with such a token would end the encoding."""
    embeddings: Any = backbone.get_input_embeddings()
    if not isinstance(embeddings, nn.Embedding):
        raise InputError(
            f"{folder}: the architecture {backbone.config.model_type} is no encoder of texts; use another model",
            code="architecture-unsupported",
            path=folder,
            value=backbone.config.model_type,
        )
    if (last := max(tokenizer.get_vocab().values())) >= embeddings.num_embeddings:
        raise InputError(
            f"{folder}: the tokenizer has ids up to {last:,}, and the model has {embeddings.num_embeddings:,} tokens; "
            "save the tokenizer of this model"
        )


def _refuse_integers(folder: Path) -> None:
    """Refuse quantized weights without their scales, which would be read as numbers."""
    for file in weight_files(folder):
        with safe_open(file, "np") as opened:
            for key in opened.keys():  # noqa: SIM118 - no mapping
                if key.endswith(".weight") and (kind := opened.get_slice(key).get_dtype())[0] in "IU":
                    raise InputError(f"{folder}: the weights {key} are integers ({kind}); save them in fp32 or bf16")


def refuse_more_layers(folder: Path, unexpected: Collection[str], known: Collection[str]) -> None:
    """Refuse weights of layers that config.json does not have; the encoder would be a truncated model."""
    patterns = {_NUMBER.sub("#", key) for key in known}
    more = sorted(key for key in unexpected if any(_NUMBER.sub("#", key).endswith(each) for each in patterns))
    if more:
        raise InputError(
            f"{folder}: the checkpoint has {len(more)} weights of layers that config.json does not have ({more[0]}, "
            "...); correct num_hidden_layers, or keep fewer layers with --layers when training"
        )


def _refuse_sparse(folder: Path, unexpected: Collection[str]) -> None:
    """Refuse a checkpoint of UniCOIL, which is no dense encoder, and name the option that opens it."""
    if "tok_proj.weight" in unexpected:
        raise InputError(
            f"{folder}: weights of UniCOIL (tok_proj), a learned sparse encoder; pass --architecture unicoil"
        )


def refuse_missing(folder: Path, keys: Collection[str]) -> None:
    """Refuse a checkpoint with missing or misshaped weights, which would be random; poolers do not count."""
    if missing := sorted(key for key in keys if not key.startswith("pooler.")):
        raise InputError(
            f"{folder}: weights named in config.json are missing ({few(missing)}); save the complete checkpoint"
        )
