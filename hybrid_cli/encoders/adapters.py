"""LoRA adapters by peft: a frozen base model, and the small matrices that a training adds to its linear layers.

In place of the weights of its transformer, the folder of an adapted encoder has `adapter_config.json` and
`adapter_model.safetensors` in peft's form, and `base_model.json`: the base model with a hash of its weights.
"""

from __future__ import annotations

import json
import warnings
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from hybrid_cli.encoders.contract import TowerFiles, stored_encoder, weight_files
from hybrid_cli.encoders.models import resolve
from hybrid_cli.encoders.options import AUTO_TARGETS, LoraOptions
from hybrid_cli.errors import InputError, option_error, path_error, require_packages
from hybrid_cli.inputs.json_values import make_typed, read_object
from hybrid_cli.storage import disk, records
from hybrid_cli.storage.layout import ADAPTER_CONFIG, ADAPTER_HEADS, ADAPTER_WEIGHTS, BASE_MODEL

_PREFIX = "base_model.model."  # of peft's names of weights
_SHAPE = {  # keys of adapter_config.json that decide the adapter
    *("r", "lora_alpha", "target_modules", "exclude_modules", "layers_to_transform", "layers_pattern"),
    *("rank_pattern", "alpha_pattern", "use_rslora", "use_dora", "fan_in_fan_out", "lora_bias"),
}
_WITHOUT_EFFECT = {  # on the vectors of a trained adapter
    *("base_model_name_or_path", "revision", "task_type", "peft_type", "peft_version", "auto_mapping"),
    *("inference_mode", "init_lora_weights", "lora_dropout", "loftq_config", "runtime_config", "megatron_core"),
    "qalora_group_size",
}


@dataclass(frozen=True)
class BaseModel:
    """The model that an adapter changes.

    Attributes:
        model: `minilm`, a folder, or a Hugging Face id.
        side: tower of the model, `query` or `document`; empty for a reranker.
        fingerprint: hash of configuration and weights; empty for an adapter of another tool.
    """

    model: str
    side: str = "document"
    fingerprint: str = ""

    @classmethod
    def of(cls, name: str, side: str) -> BaseModel:
        """Return a tower of a model as a base; a folder by its absolute path."""
        folder = resolve(name)
        known = str(folder.resolve()) if folder == Path(name) else name
        return cls(known, side, _fingerprint(_tower(folder, side)))

    def files(self, folder: Path) -> TowerFiles:
        """Return the files of the tower, of the content that the adapter in `folder` was trained for.

        Raises:
            InputError: the model is not on this machine, has other weights, or is an adapter itself.
        """
        try:
            tower = _tower(resolve(self.model, local=True), self.side)
        except InputError:
            problem = f"is a LoRA adapter of {self.model!r}, which is not on this machine; restore it"
            raise path_error(folder, problem, code="model-adapter", model=self.model) from None
        if (self.fingerprint and _fingerprint(tower) != self.fingerprint) or (tower.folder / ADAPTER_CONFIG).is_file():
            raise _other_base(folder, f"{self.model} has other weights")
        return tower


def _tower(folder: Path, side: str) -> TowerFiles:
    return stored_encoder(folder).tower(side) if side else TowerFiles(folder)


def _fingerprint(tower: TowerFiles) -> str:
    files = [tower.folder / "config.json", *weight_files(tower.folder)]
    return records.hash_names({file.name: records.fingerprint(file) for file in files if file.is_file()})


def _other_base(folder: Path, reason: str) -> InputError:
    problem = f"is a LoRA adapter of another base model ({reason}); restore the base model of the training"
    return path_error(folder, problem, code="other-base")


def read_base(folder: Path) -> BaseModel | None:
    """Return the base model of the adapter in a folder; None for a folder without an adapter."""
    if not (folder / ADAPTER_CONFIG).is_file():
        return None
    if (folder / BASE_MODEL).is_file():
        return make_typed(BaseModel, read_object(folder / BASE_MODEL), folder / BASE_MODEL)
    name = read_object(folder / ADAPTER_CONFIG).get("base_model_name_or_path")
    if not isinstance(name, str) or not name:
        raise path_error(folder, "is a LoRA adapter without the name of its base model", code="model-adapter")
    return BaseModel(name)


def adapter_of(module: nn.Module) -> dict[str, Any] | None:
    """Return the configuration of the adapter of a transformer; None without one."""
    return getattr(module, "peft_config", {}).get("default") and module.peft_config["default"].to_dict()  # type: ignore


def add_adapter(backbone: PreTrainedModel, base: BaseModel, lora: LoraOptions) -> None:
    """Freeze a transformer, and add a new adapter, from torch's random state, whose effect is zero.

    Raises:
        InputError: no such modules, or the transformer has an adapter already.
    """
    assert lora.lora_r is not None
    if adapter_of(backbone):
        problem = f"{base.model} has an adapter; merge it first: hybrid convert-checkpoint {base.model} OUT --merge"
        raise option_error("lora_r", lora.lora_r, problem, code="model-adapter")
    linear = {name: part for name, part in backbone.named_modules() if isinstance(part, nn.Linear | Conv1D)}
    known = sorted({name.rpartition(".")[2] for name in linear if not name.startswith("pooler.")})
    targets = known if tuple(lora.lora_targets) == AUTO_TARGETS else list(lora.lora_targets)
    if not targets or set(targets) - set(known):
        problem = f"{base.model} has the modules {', '.join(known) or 'none'}"
        raise option_error("lora_targets", ",".join(targets), problem, code="unknown-choice")
    shape = {"r": lora.lora_r, "lora_alpha": lora.lora_alpha or 2 * lora.lora_r, "target_modules": targets}
    shape |= {"exclude_modules": ["pooler.dense"]} if "pooler.dense" in linear else {}
    _inject(backbone, base, {**shape, "fan_in_fan_out": any(isinstance(part, Conv1D) for part in linear.values())})


def _inject(backbone: PreTrainedModel, base: BaseModel, shape: dict[str, Any], **options: Any) -> None:
    peft = _peft()
    with warnings.catch_warnings(action="ignore"):
        peft.inject_adapter_in_model(peft.LoraConfig(**shape), backbone, **options)
    backbone.base_of_adapter = base  # type: ignore[assignment]
    if isinstance(pooler := getattr(backbone, "pooler", None), nn.Module):
        pooler.requires_grad_(True)  # a part of heads, which are trained


def load_adapter(
    folder: Path, backbone: PreTrainedModel, base: BaseModel, tower: TowerFiles, whole: nn.Module | None = None
) -> None:
    """Add the adapter of a folder to its base, without merging, and load the heads of `whole`.

    Raises:
        InputError: no LoRA adapter, one with an unsupported part, or of a base with other modules or shapes.
    """
    stored = read_object(folder / ADAPTER_CONFIG)
    plain = {"peft_type": ("LORA",), "bias": ("none",), "init_lora_weights": (True, False, "gaussian", None)}
    for key, value in stored.items():
        allowed = value in plain[key] if key in plain else not value or key in _SHAPE | _WITHOUT_EFFECT
        if not allowed or (key == "target_modules" and not isinstance(value, list)):
            problem = f"{key} {value!r} is not supported; merge the adapter with peft's `merge_and_unload`"
            raise path_error(folder / ADAPTER_CONFIG, problem, code="model-adapter", key=key)
    file = folder / ADAPTER_WEIGHTS
    if not file.is_file():
        raise path_error(folder, f"has no {file.name}; restore it", code="no-weights")
    peft, known = _peft(), set(backbone.state_dict())
    try:
        state = {name.removeprefix(_PREFIX): value for name, value in load_file(file).items()}
        shape = {key: value for key, value in stored.items() if key in _SHAPE}
        _inject(backbone, base, {**shape, "init_lora_weights": False}, low_cpu_mem_usage=True)
        report = peft.set_peft_model_state_dict(backbone, state, low_cpu_mem_usage=True)
    except (AttributeError, KeyError, RuntimeError, SafetensorError, TypeError, ValueError) as error:
        raise _other_base(folder, " ".join(str(error).split())[:200]) from None
    missing = [name for name in report.missing_keys if "lora_" in name]
    if report.unexpected_keys or missing or not set(backbone.state_dict()) - known:
        raise _other_base(folder, f"{next(iter([*report.unexpected_keys, *missing]), 'no module')} has no place")
    if whole is not None:
        heads = load_file(folder / ADAPTER_HEADS) if (folder / ADAPTER_HEADS).is_file() else {}
        try:
            lacking = whole.load_state_dict(heads, strict=False).unexpected_keys
        except RuntimeError as error:
            lacking = [" ".join(str(error).split())[:200]]
        if lacking or heads.keys() != heads_of(whole).keys():
            raise _other_base(folder, f"{next(iter(lacking), ADAPTER_HEADS)} has no place")
    if not base.fingerprint:
        backbone.base_of_adapter = BaseModel(base.model, base.side, _fingerprint(tower))  # type: ignore[assignment]


def heads_of(whole: nn.Module) -> dict[str, Tensor]:
    """Return the trained weights of a model besides its adapter."""
    return {name: w.detach() for name, w in whole.named_parameters() if w.requires_grad and "lora_" not in name}


def save_adapter(folder: Path, backbone: PreTrainedModel, whole: nn.Module | None = None) -> None:
    """Write the adapter of a transformer in peft's form, with its base model, and the heads of `whole`."""
    base: Any = backbone.base_of_adapter
    config = adapter_of(backbone)
    assert config is not None
    tower = base.files(folder).folder
    named = base.model if "/" in base.model and not Path(base.model).is_absolute() else str(tower.resolve())
    config |= {"base_model_name_or_path": named, "inference_mode": True, "init_lora_weights": True}
    state = _peft().get_peft_model_state_dict(backbone, save_embedding_layers=False)
    with disk.by_name(folder / ADAPTER_WEIGHTS) as file:
        save_file({_PREFIX + name: value.contiguous() for name, value in state.items()}, file, {"format": "pt"})
    if whole is not None:
        with disk.by_name(folder / ADAPTER_HEADS) as file:
            save_file(heads_of(whole), file, {"format": "pt"})
    disk.write_text(folder / ADAPTER_CONFIG, json.dumps(config, indent=2, sort_keys=True, default=sorted) + "\n")
    disk.write_text(folder / BASE_MODEL, json.dumps(asdict(base), indent=2) + "\n")


def cast_base(model: nn.Module, precision: torch.dtype) -> None:
    """Store the frozen layers under adapters in the precision of autocast, which would cast them in every call."""
    for layer in model.modules():
        if hasattr(layer, "get_base_layer"):
            layer.get_base_layer().to(precision)  # type: ignore[operator]


def merge_adapters(model: nn.Module) -> bool:
    """Add the adapters of all transformers of a model to their weights; return whether there were any."""
    adapted = [part for part in model.modules() if adapter_of(part)]
    for backbone in adapted:
        for name, layer in [*backbone.named_modules()]:
            if hasattr(layer, "get_base_layer"):
                layer.merge(safe_merge=True)  # type: ignore[operator]
                backbone.set_submodule(name, layer.get_base_layer())  # type: ignore[operator]
        del backbone.peft_config
    return bool(adapted)


def _peft() -> ModuleType:
    with require_packages("peft"):
        import peft
    return peft
