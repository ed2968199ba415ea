"""One transformer with its tokenizer, pooling and projection; on disk a whole sentence-transformers model."""

from __future__ import annotations

import json
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
    BatchEncoding,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)
from transformers.utils import logging

from hybrid_cli.config import Markers, Pooling
from hybrid_cli.encoders.contract import DOCUMENT_MARKER, QUERY_MARKER, Contract
from hybrid_cli.errors import InputError

_ST = "sentence_transformers.models"
_UNUSED = {"pooler", "position_ids"}  # parts of a checkpoint that are not worth a word
_LAYERS = ("linear", "norm")  # as sentence-transformers names the weights of Dense and LayerNorm


class Tower(nn.Module):
    """Token ids to vectors.

    Attributes:
        left_out: heads of the checkpoint that an encoder has no use for (`cls`, Condenser's `c_head`).
        large: LITE's second head, whose values follow the vector while a student trains; it is never saved.
    """

    large: nn.Linear | None

    def __init__(
        self,
        backbone: PreTrainedModel,
        tokenizer: Any,
        pooling: Pooling,
        normalize: bool,
        projection: nn.Sequential | None,
        left_out: Sequence[str] = (),
        prefix: int | None = None,
    ):
        super().__init__()
        self.backbone = backbone
        self.tokenizer = tokenizer
        self.pooling = pooling
        self.normalize = normalize
        self.projection = projection
        self.left_out = left_out
        self.prefix = prefix
        self.large = None

    @classmethod
    def load(cls, folder: Path, contract: Contract, trust_remote_code: bool = False) -> Tower:
        """Read a tower; markers and projection that the contract has and the folder lacks are added, seeded by torch.

        Raises:
            InputError: no whole checkpoint in safetensors form, or no vocabulary for the markers.
        """
        silence_transformers()
        _refuse_pickles(folder)
        try:
            config = AutoConfig.from_pretrained(folder, trust_remote_code=trust_remote_code)
            # BERT's kin bring a pooler over [CLS] that nothing here uses
            unused = {"add_pooling_layer": False} if config.model_type in ("bert", "roberta", "xlm-roberta") else {}
            backbone, report = AutoModel.from_pretrained(
                folder,
                use_safetensors=True,
                trust_remote_code=trust_remote_code,
                output_loading_info=True,
                ignore_mismatched_sizes=True,  # `_refuse_missing` does not
                **unused,
            )
            tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=trust_remote_code)
        except (OSError, ValueError, SafetensorError) as error:
            raise InputError(f"{folder}: no model can be read there ({str(error).splitlines()[0]})") from None
        if len(tokenizer) <= len(tokenizer.all_special_tokens):  # transformers makes one up where no file is
            raise InputError(f"{folder}: has no vocabulary (tokenizer.json or vocab.txt); save the tokenizer there too")
        _refuse_missing(folder, [*report["missing_keys"], *(key for key, *_ in report["mismatched_keys"])])
        if contract.markers != "none" and QUERY_MARKER not in tokenizer.all_special_tokens:
            tokenizer = _with_markers(backbone, tokenizer, contract.markers, folder)
        projection = _load_projection(folder, contract, backbone.config.hidden_size)
        extra = {key.split(".")[0] for key in report["unexpected_keys"] if not _UNUSED & {*key.split(".")}}
        tower = cls(
            backbone, tokenizer, contract.pooling, contract.normalize, projection, sorted(extra), contract.prefix
        )
        if contract.prefix is not None and not 0 < contract.prefix <= tower.full_dim:
            raise InputError(f"--prefix {contract.prefix}: the vectors of {folder} have {tower.full_dim} values")
        return tower

    @property
    def dim(self) -> int:
        """Length of the vectors."""
        return self.prefix or self.full_dim

    @property
    def full_dim(self) -> int:
        """Length before they are cut."""
        linear = self.projection[0] if self.projection is not None else None
        return int(linear.out_features if isinstance(linear, nn.Linear) else self.backbone.config.hidden_size)

    def tokenize(self, texts: Sequence[str], max_length: int) -> BatchEncoding:
        """Token ids and attention mask [n, L], padded to the longest, cut at `max_length`."""
        batch: BatchEncoding = self.tokenizer(
            list(texts),
            padding=True,
            truncation=True,
            max_length=max_length,
            return_tensors="pt",
            return_token_type_ids=False,
        )
        return batch

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Vectors [n, dim] in float32 for ids and mask [n, L]; in training those of the large head follow them."""
        states = self.backbone(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        pooled = pool(states.float(), attention_mask, self.pooling)
        vectors = pooled
        if self.projection is not None:  # in the precision of its weights
            vectors = self.projection(pooled.to(self.backbone.dtype)).float()
        vectors = vectors[:, : self.prefix]
        vectors = functional.normalize(vectors, dim=-1) if self.normalize else vectors
        if self.large is None or not self.training:
            return vectors
        return torch.cat([vectors, self.large(pooled)], dim=-1)

    def save(self, folder: Path, contract: Contract) -> None:
        """Write the tower so that `SentenceTransformer(folder)` gives the same vectors."""
        folder.mkdir(parents=True, exist_ok=True)
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
        _write(folder / "modules.json", listing)
        _write(folder / "sentence_bert_config.json", {"max_seq_length": contract.doc_max_len, "do_lower_case": False})
        prompts = {"query": contract.query_head, "document": contract.document_head}
        _write(
            folder / "config_sentence_transformers.json",
            {"prompts": prompts, "default_prompt_name": None, "similarity_fn_name": "dot"},
        )


def silence_transformers() -> None:
    """Keep its reports and bars off the terminal; what a person should know is said in our words."""
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]


def pool(states: Tensor, mask: Tensor, pooling: Pooling) -> Tensor:
    """States [n, L, h] and mask [n, L] to vectors [n, h]; padding never counts (methods 2.10)."""
    if pooling == "cls":
        return states[:, 0]
    weights = mask.unsqueeze(-1).to(states.dtype)
    return (states * weights).sum(1) / weights.sum(1).clamp(min=1e-9)


def _refuse_pickles(folder: Path) -> None:
    if (folder / "config.json").is_file() and not any(folder.glob("*.safetensors")):
        raise InputError(
            f"{folder}: has no model.safetensors, and hybrid opens no pickles (pytorch_model.bin); where you trust it, "
            'convert it: python -c "from transformers import AutoModelForMaskedLM as M, AutoTokenizer as T; '
            "[C.from_pretrained('MODEL').save_pretrained('FOLDER') for C in (M, T)]\""
        )


def _refuse_missing(folder: Path, keys: Collection[str]) -> None:
    """What the checkpoint lacks, or has in another shape, would begin at random; of poolers nothing here is used."""
    if missing := sorted(key for key in keys if not key.startswith("pooler.")):
        shown = ", ".join(missing[:3]) + (f", and {len(missing) - 3} more" if len(missing) > 3 else "")
        raise InputError(f"{folder}: lacks weights that its config.json asks for ({shown}); save it whole there")


def _with_markers(backbone: PreTrainedModel, tokenizer: Any, markers: Markers, folder: Path) -> Any:
    """The tokenizer with two reserved word pieces as special tokens, which may replace [CLS]; both start near it."""
    ids = tokenizer.convert_tokens_to_ids([QUERY_MARKER, DOCUMENT_MARKER])
    if tokenizer.unk_token_id in ids or tokenizer.cls_token_id is None:
        raise InputError(
            f"{folder}: its vocabulary has no {QUERY_MARKER} for query and document markers; use --markers none"
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
    return PreTrainedTokenizerFast(  # the plain class: a model's own would write [CLS] back when it is loaded
        tokenizer_object=rules,
        additional_special_tokens=[QUERY_MARKER, DOCUMENT_MARKER],
        model_max_length=tokenizer.model_max_length,
        **{name: getattr(tokenizer, name) for name in names if getattr(tokenizer, name) is not None},
    )


def _load_projection(folder: Path, contract: Contract, hidden: int) -> nn.Sequential | None:
    if contract.dim is None:
        return None
    if contract.dim > hidden:
        raise InputError(f"--dim {contract.dim}: {folder} has {hidden} dimensions; a projection does not add any")
    layers: list[nn.Module] = [nn.Linear(hidden, contract.dim)]
    if contract.projection_norm:
        layers.append(nn.LayerNorm(contract.dim))
    projection = nn.Sequential(*layers)
    for (path, _), layer, name in zip(_projection_modules(contract.projection_norm), layers, _LAYERS, strict=False):
        file = folder / path / "model.safetensors"
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
        save_file(state, folder / path / "model.safetensors", metadata={"format": "pt"})
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
    file.write_text(json.dumps(content, indent=2) + "\n", "utf-8")
