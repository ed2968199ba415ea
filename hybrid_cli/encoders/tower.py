"""One transformer with tokenizer, pooling and projection, stored as a sentence-transformers model."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from tokenizers.processors import TemplateProcessing
from torch import Tensor, nn
from torch.nn import functional
from transformers import (
    AutoConfig,
    AutoModel,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)
from transformers.utils import logging

from hybrid_cli.artifacts import disk, layout
from hybrid_cli.encoders.contract import DOCUMENT_MARKER, QUERY_MARKER, Contract
from hybrid_cli.errors import InputError
from hybrid_cli.json_files import fits, read_object
from hybrid_cli.settings.common import Markers, Pooling

_ST = "sentence_transformers.models"
_UNUSED = {"pooler", "position_ids"}  # parts of a checkpoint that are skipped without notice
_WITH_POOLER = ("bert", "roberta", "xlm-roberta")
_NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")
_LAYERS = ("linear", "norm")  # names of the weights of Dense and LayerNorm in sentence-transformers


class Tower(nn.Module):
    """Transformer that maps token ids to vectors.

    Attributes:
        left_out: unused pretraining heads of the checkpoint (`cls`, Condenser's `c_head`).
        distillation_head: see `add_distillation_head`; it is never saved.
    """

    def __init__(
        self,
        backbone: PreTrainedModel,
        tokenizer: Any,
        pooling: Pooling,
        normalize: bool,
        projection: nn.Sequential | None,
        left_out: Sequence[str] = (),
        truncate_dim: int | None = None,
    ):
        super().__init__()
        self.backbone = backbone
        self.tokenizer = tokenizer
        self.pooling = pooling
        self.normalize = normalize
        self.projection = projection
        self.left_out = left_out
        self.truncate_dim = truncate_dim
        self.distillation_head: nn.Linear | None = None

    @classmethod
    def load(cls, folder: Path, contract: Contract) -> Tower:
        """Load a tower; markers and projection that are not in the folder are initialized from torch's random state.

        Raises:
            InputError: no complete checkpoint in safetensors format, weights that config.json does not describe, or no
                vocabulary for the markers.
        """
        silence_transformers()
        _refuse_pickles(folder)
        try:
            config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
            # BERT's unused pooler over [CLS]
            unused = {"add_pooling_layer": False} if config.model_type in _WITH_POOLER else {}
            backbone, report = AutoModel.from_pretrained(
                folder,
                use_safetensors=True,
                output_loading_info=True,
                ignore_mismatched_sizes=True,  # `_refuse_missing` checks this with a clear message
                **unused,
            )
            tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
        except MemoryError:
            raise
        except Exception as error:  # transformers and tokenizers raise every class for files that are damaged
            raise InputError(f"{folder}: no readable model ({_first_line(error)})") from None
        if len(tokenizer) <= len(tokenizer.all_special_tokens):  # else transformers creates one
            raise InputError(
                f"{folder}: has no vocabulary (tokenizer.json or vocab.txt); save the tokenizer in this folder"
            )
        _refuse_missing(folder, [*report["missing_keys"], *(key for key, *_ in report["mismatched_keys"])])
        _refuse_more_layers(folder, report["unexpected_keys"], backbone.state_dict())
        if contract.markers != "none" and QUERY_MARKER not in tokenizer.all_special_tokens:
            tokenizer = _with_markers(backbone, tokenizer, contract.markers, folder)
        projection = _load_projection(folder, contract, backbone.config.hidden_size)
        extra = {key.split(".")[0] for key in report["unexpected_keys"] if not _UNUSED & {*key.split(".")}}
        length = contract.truncate_dim
        tower = cls(backbone, tokenizer, contract.pooling, contract.normalize, projection, sorted(extra), length)
        if length is not None and not 0 < length <= tower.full_dim:
            raise InputError(f"--truncate-dim {length}: the vectors of {folder} have {tower.full_dim} values")
        return tower

    @property
    def dim(self) -> int:
        """Length of the vectors."""
        return self.truncate_dim or self.full_dim

    @property
    def full_dim(self) -> int:
        """Length of the vectors before truncation."""
        linear = self.projection[0] if self.projection is not None else None
        return int(linear.out_features if isinstance(linear, nn.Linear) else self.backbone.config.hidden_size)

    def add_distillation_head(self, dim: int) -> None:
        """Add a linear map from pooled states to `dim` values; see `forward`."""
        weight = next(self.backbone.parameters())
        self.distillation_head = nn.Linear(self.backbone.config.hidden_size, dim, bias=False, device=weight.device)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Return vectors [n, dim] in float32.

        In training mode the values of the distillation head, if there is one, follow the vector.

        Args:
            input_ids: [n, L]
            attention_mask: [n, L]
        """
        states = self.backbone(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        pooled = pool(states.float(), attention_mask, self.pooling)
        vectors = pooled
        if self.projection is not None:  # computed in the precision of the weights
            vectors = self.projection(pooled.to(self.backbone.dtype)).float()
        vectors = vectors[:, : self.truncate_dim]
        vectors = functional.normalize(vectors, dim=-1) if self.normalize else vectors
        if self.distillation_head is None or not self.training:
            return vectors
        return torch.cat([vectors, self.distillation_head(pooled)], dim=-1)

    def save(self, folder: Path, contract: Contract) -> None:
        """Write the tower so that `SentenceTransformer(folder)` returns the same vectors."""
        folder.mkdir(parents=True, exist_ok=True)
        with disk.by_name(folder):
            self.backbone.save_pretrained(folder, safe_serialization=True)
            self.tokenizer.save_pretrained(folder)
        modules = [("", "Transformer"), ("1_Pooling", "Pooling")]
        _write(folder / "1_Pooling" / "config.json", _pooling_config(self.backbone.config.hidden_size, self.pooling))
        if self.projection is not None:
            modules += _save_projection(folder, self.projection)
        if self.normalize:
            modules.append((f"{len(modules)}_Normalize", "Normalize"))
            (folder / modules[-1][0]).mkdir(exist_ok=True)
        listing = [
            {"idx": i, "name": str(i), "path": path, "type": f"{_ST}.{kind}"} for i, (path, kind) in enumerate(modules)
        ]
        _write(folder / layout.MODULES, listing)
        settings: dict[str, Any] = {"max_seq_length": contract.doc_max_len, "do_lower_case": False}
        if self.backbone.config.model_type in _WITH_POOLER:
            settings["model_args"] = {"add_pooling_layer": False}
        _write(folder / "sentence_bert_config.json", settings)
        prompts = {"query": contract.query_head, "document": contract.document_head}
        _write(
            folder / "config_sentence_transformers.json",
            {"prompts": prompts, "default_prompt_name": None, "similarity_fn_name": "dot"},
        )


def silence_transformers() -> None:
    """Suppress reports and progress bars of transformers."""
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]


def pool(states: Tensor, mask: Tensor, pooling: Pooling) -> Tensor:
    """Pool states [n, L, h] to vectors [n, h] with the attention mask [n, L]; padding is excluded from the mean."""
    if pooling == "cls":
        return states[:, 0]
    weights = mask.unsqueeze(-1).to(states.dtype)
    return (states * weights).sum(1) / weights.sum(1).clamp(min=1e-9)


def _refuse_pickles(folder: Path) -> None:
    if (folder / "config.json").is_file() and not any(folder.glob("*.safetensors")):
        raise InputError(
            f"{folder}: has no model.safetensors; pickles (pytorch_model.bin) are not opened. Convert a trusted model: "
            'python -c "from transformers import AutoModelForMaskedLM as M, AutoTokenizer as T; '
            "[C.from_pretrained('MODEL').save_pretrained('FOLDER') for C in (M, T)]\""
        )
    for file in _weight_files(folder):
        if not file.endswith(".safetensors") or Path(file).name != file:
            raise InputError(f"{folder}: weights in {file!r} are not opened; needs .safetensors files in this folder")


def _weight_files(folder: Path) -> set[str]:
    """Return the files that the index of a sharded checkpoint and config.json name as its weights."""
    found: set[str] = set()
    if (index := folder / "model.safetensors.index.json").exists():
        shards = read_object(index).get("weight_map")
        if not fits(shards, dict[str, str]):
            raise InputError(f"{index}: needs a weight_map of weight names and files")
        found |= set((shards or {}).values())
    if (config := folder / "config.json").exists() and (named := read_object(config).get("transformers_weights")):
        found.add(str(named))
    return found


def _refuse_more_layers(folder: Path, unexpected: Collection[str], known: Collection[str]) -> None:
    """Refuse weights of layers that config.json does not have; the encoder would be a truncated model."""
    shapes = {_NUMBER.sub("#", key) for key in known}
    more = sorted(key for key in unexpected if any(_NUMBER.sub("#", key).endswith(shape) for shape in shapes))
    if more:
        raise InputError(
            f"{folder}: the checkpoint has {len(more)} weights of layers that config.json does not have ({more[0]}, "
            "...); correct num_hidden_layers, or keep fewer layers with --layers when training"
        )


def _first_line(error: Exception) -> str:
    """Return the first line of a message, or the class of an error without one."""
    if isinstance(error, RecursionError):
        return "JSON nested too deeply"
    text = next(iter(str(error).splitlines()), "")
    return text if isinstance(error, OSError | ValueError | SafetensorError) else f"{type(error).__name__}: {text}"


def _refuse_missing(folder: Path, keys: Collection[str]) -> None:
    """Refuse a checkpoint with missing or misshaped weights, which would be random; poolers do not count."""
    if missing := sorted(key for key in keys if not key.startswith("pooler.")):
        shown = ", ".join(missing[:3]) + (f", and {len(missing) - 3} more" if len(missing) > 3 else "")
        raise InputError(f"{folder}: weights named in config.json are missing ({shown}); save the complete checkpoint")


def _with_markers(backbone: PreTrainedModel, tokenizer: Any, markers: Markers, folder: Path) -> Any:
    """Return a tokenizer with two reserved word pieces as special tokens; their embeddings start near that of [CLS]."""
    ids = tokenizer.convert_tokens_to_ids([QUERY_MARKER, DOCUMENT_MARKER])
    if tokenizer.unk_token_id in ids or tokenizer.cls_token_id is None:
        raise InputError(
            f"{folder}: the vocabulary has no {QUERY_MARKER} for query and document markers; use --markers none"
        )
    table: Tensor = backbone.get_input_embeddings().weight  # type: ignore[assignment]
    with torch.no_grad():
        for marker in ids:
            table[marker] = table[tokenizer.cls_token_id] + 0.02 * torch.randn_like(table[marker])
    rules = tokenizer.backend_tokenizer
    if markers == "replace":
        separator = tokenizer.sep_token
        rules.post_processor = TemplateProcessing(
            single=f"$A {separator}",
            pair=f"$A {separator} $B {separator}",
            special_tokens=[(separator, tokenizer.sep_token_id)],
        )
    names = ("unk_token", "cls_token", "sep_token", "pad_token", "mask_token")
    return PreTrainedTokenizerFast(  # the plain class: model-specific classes restore [CLS] on loading
        tokenizer_object=rules,
        additional_special_tokens=[QUERY_MARKER, DOCUMENT_MARKER],
        model_max_length=tokenizer.model_max_length,
        **{name: getattr(tokenizer, name) for name in names if getattr(tokenizer, name) is not None},
    )


def refuse_missing_projection(folder: Path, contract: Contract) -> None:
    """Refuse a stored encoder without the weights of its projection, which would be random."""
    for path, _ in _projection_modules(contract.projection_norm) if contract.dim is not None else ():
        if not (folder / path / layout.WEIGHTS).is_file():
            raise InputError(f"{folder}: damaged encoder; {path}/{layout.WEIGHTS} is missing")


def _load_projection(folder: Path, contract: Contract, hidden: int) -> nn.Sequential | None:
    if contract.dim is None:
        return None
    if contract.dim > hidden:
        raise InputError(f"--dim {contract.dim}: needs at most the {hidden} dimensions of {folder}")
    layers: list[nn.Module] = [nn.Linear(hidden, contract.dim)]
    if contract.projection_norm:
        layers.append(nn.LayerNorm(contract.dim))
    projection = nn.Sequential(*layers)
    for (path, _), layer, name in zip(_projection_modules(contract.projection_norm), layers, _LAYERS, strict=False):
        file = folder / path / layout.WEIGHTS
        if file.is_file():
            layer.load_state_dict({key.removeprefix(f"{name}."): value for key, value in load_file(file).items()})
        elif isinstance(layer, nn.Linear):
            nn.init.normal_(layer.weight, std=0.02)
            nn.init.zeros_(layer.bias)
    return projection


def _save_projection(folder: Path, projection: nn.Sequential) -> list[tuple[str, str]]:
    modules = _projection_modules(len(projection) == 2)
    for (path, _), layer, name in zip(modules, projection, _LAYERS, strict=False):
        (folder / path).mkdir(exist_ok=True)
        state = {f"{name}.{key}": value.contiguous() for key, value in layer.state_dict().items()}
        with disk.by_name(folder / path / layout.WEIGHTS) as file:
            save_file(state, file, metadata={"format": "pt"})
        if isinstance(layer, nn.Linear):
            config: dict[str, Any] = {
                "in_features": layer.in_features,
                "out_features": layer.out_features,
                "bias": True,
            }
            config["activation_function"] = "torch.nn.modules.linear.Identity"
        else:
            config = {"dimension": layer.normalized_shape[0]}  # type: ignore[union-attr, index]
        _write(folder / path / "config.json", config)
    return modules


def _projection_modules(norm: bool) -> list[tuple[str, str]]:
    return [("2_Dense", "Dense")] + ([("3_LayerNorm", "LayerNorm")] if norm else [])


def _pooling_config(hidden: int, pooling: Pooling) -> dict[str, Any]:
    return {
        "word_embedding_dimension": hidden,
        "pooling_mode_cls_token": pooling == "cls",
        "pooling_mode_mean_tokens": pooling == "mean",
        "pooling_mode_max_tokens": False,
        "include_prompt": True,
    }


def _write(file: Path, content: Any) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    disk.write_text(file, json.dumps(content, indent=2) + "\n")
