"""The transformer encoder: one or two towers, a contract, and encoding in length-sorted batches.

A tower is a transformer with tokenizer, pooling, and the modules between pooling and vector: those of a
sentence-transformers model, and the projection of this package.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from tokenizers.processors import TemplateProcessing
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from hybrid_cli import console, storage
from hybrid_cli.encoders import contract as contracts
from hybrid_cli.encoders import loading
from hybrid_cli.encoders.adapters import adapter_of, save_adapter
from hybrid_cli.encoders.models import Known, placed, resolve
from hybrid_cli.encoders.options import DEVICE, Markers, Pooling, Precision
from hybrid_cli.errors import option_error, path_error
from hybrid_cli.inputs.json_values import read_object
from hybrid_cli.storage import disk, layout
from hybrid_cli.storage.layout import CONTRACT

_ACTIVATIONS = (  # of torch.nn, without arguments
    *("Identity", "Tanh", "ReLU", "GELU", "Sigmoid", "SiLU", "ELU", "SELU", "CELU", "ReLU6", "LeakyReLU", "Mish"),
    *("Softplus", "Softsign", "Hardtanh", "Hardsigmoid", "Hardswish", "LogSigmoid", "Tanhshrink"),
)


class Dense(nn.Module):
    """A linear map and an activation, as in sentence-transformers; with a residual, the input is added.

    Input and output of a residual have equal lengths, or the input has a linear map of its own.
    """

    def __init__(
        self, inputs: int, outputs: int, bias: bool = True, activation: str = "Identity", residual: bool = False
    ):
        super().__init__()
        self.linear = nn.Linear(inputs, outputs, bias=bias)
        self.activation: nn.Module = getattr(nn, activation)()
        self.adds_input = residual
        self.residual = nn.Linear(inputs, outputs, bias=False) if residual and inputs != outputs else None

    def forward(self, vectors: Tensor) -> Tensor:
        """Map vectors [n, inputs] to [n, outputs]."""
        mapped: Tensor = self.activation(self.linear(vectors))
        if not self.adds_input:
            return mapped
        return mapped + (vectors if self.residual is None else self.residual(vectors))


class LayerNorm(nn.Module):
    """Layer normalization, as in sentence-transformers."""

    def __init__(self, dim: int):
        super().__init__()
        self.norm = nn.LayerNorm(dim)

    def forward(self, vectors: Tensor) -> Tensor:
        """Map vectors [n, d] to [n, d]."""
        normed: Tensor = self.norm(vectors)
        return normed


class Normalize(nn.Module):
    """Scale vectors to length 1."""

    def forward(self, vectors: Tensor) -> Tensor:
        """Map vectors [n, d] to [n, d]."""
        return functional.normalize(vectors, dim=-1)


def _load_module(entry: contracts.Module) -> nn.Module:
    kind, folder = entry.kind, entry.folder
    if kind == "Normalize":
        return Normalize()
    file = folder / "config.json"
    config = read_object(file)
    try:
        with torch.device("meta"):  # sizes that the weights do not have take no memory
            if kind == "LayerNorm":
                module: nn.Module = LayerNorm(config["dimension"])
            else:
                sizes = config["in_features"], config["out_features"], config.get("bias", True)
                module = Dense(*sizes, _activation(file, config), config.get("use_residual") or False)
        module.load_state_dict(load_file(_weights(folder)), assign=True)
    except (KeyError, RuntimeError, TypeError, ValueError) as error:
        raise path_error(folder, f"damaged {kind} module ({str(error).splitlines()[0]})", code="damaged") from None
    return module


def _activation(file: Path, config: Mapping[str, Any]) -> str:
    """Return the name of the activation of a Dense module; Tanh if none is stored, as in sentence-transformers."""
    stored = str(config.get("activation_function") or "torch.nn.Tanh")
    name = stored.rsplit(".", 1)[-1]
    if name not in _ACTIVATIONS or not stored.startswith("torch.nn."):
        raise path_error(file, f"activation_function {stored!r} is not supported", code="activation-unsupported")
    return name


def _weights(folder: Path) -> Path:
    """Return the file of the weights of a module."""
    file = folder / layout.WEIGHTS
    if not file.is_file():
        code = "needs-unpickling" if (folder / "pytorch_model.bin").is_file() else "damaged"
        raise path_error(
            folder, f"has no {file.name}; restore it, or use hybrid convert-checkpoint", code=code, missing=file.name
        )
    return file


def refuse_missing_projection(files: contracts.TowerFiles, contract: contracts.Contract) -> None:
    """Refuse a stored encoder without the weights of its projection, which would be random."""
    if files.projection is not None and contract.dim is not None:
        for path in _projection_modules(contract):
            _weights(files.projection / path)


def load_projection(
    files: contracts.TowerFiles, contract: contracts.Contract, inputs: int, published: Mapping[str, Tensor]
) -> nn.Sequential | None:
    """Load the projection; one that is not in its folder is initialized from torch's random state.

    Args:
        files: files of the tower.
        contract: contract with the length of the projection; None for no projection.
        inputs: length of the vectors before the projection.
        published: weights of a published checkpoint with a projection, as `linear.*` and `norm.*`.

    Raises:
        InputError: the weights have another shape.
    """
    if contract.dim is None:
        return None
    folder = files.folder
    layers: list[nn.Module] = [Dense(inputs, contract.dim)]
    layers += [LayerNorm(contract.dim)] if contract.projection_norm else []
    for path, layer in zip(_projection_modules(contract), layers, strict=True):
        file = None if files.projection is None else files.projection / path / layout.WEIGHTS
        weights = load_file(file) if file is not None and file.is_file() else published
        try:
            if weights:  # a linear map that is stored without a bias has the bias 0
                state = {"linear.bias": torch.zeros(contract.dim), **weights}
                layer.load_state_dict({key: state[key] for key in layer.state_dict().keys() & state.keys()})
            elif isinstance(layer, Dense):
                nn.init.normal_(layer.linear.weight, std=0.02)
                nn.init.zeros_(layer.linear.bias)
        except RuntimeError:
            raise path_error(folder, f"the projection is not {contract.dim} x {inputs}", code="weights-shape") from None
    return nn.Sequential(*layers)


def save_head(folder: Path, modules: nn.Sequential | None, projection: nn.Sequential | None) -> list[tuple[str, str]]:
    """Write all modules between pooling and vector; return folder and kind of each, for modules.json."""
    listed = []
    for number, module in enumerate([*(modules or ()), *(projection or ())], contracts.FIRST_MODULE):
        kind = type(module).__name__
        listed.append((f"{number}_{kind}", kind))
        _save_module(folder / f"{number}_{kind}", module)
    return listed


def _save_module(folder: Path, module: nn.Module) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    if isinstance(module, Dense):
        linear, activation = module.linear, type(module.activation).__name__
        full_name = f"torch.nn.modules.{'linear' if activation == 'Identity' else 'activation'}.{activation}"
        config: dict[str, Any] = {"in_features": linear.in_features, "out_features": linear.out_features}
        config |= {"bias": linear.bias is not None, "activation_function": full_name}
        config |= {"use_residual": True} if module.adds_input else {}
    elif isinstance(module, LayerNorm):
        config = {"dimension": module.norm.normalized_shape[0]}
    else:
        return
    with disk.by_name(folder / layout.WEIGHTS) as file:
        state = {key: value.contiguous() for key, value in module.state_dict().items()}
        save_file(state, file, metadata={"format": "pt"})
    disk.write_text(folder / "config.json", json.dumps(config, indent=2) + "\n")


def _projection_modules(contract: contracts.Contract) -> list[str]:
    """Return the folders of the modules of the projection."""
    first = contracts.FIRST_MODULE + len(contract.modules)
    return [f"{first}_Dense", *([f"{first + 1}_LayerNorm"] if contract.projection_norm else [])]


UNPOOLED = 2  # in the mask of a tower: tokens that the transformer reads, and poolings leave out
_ST = "sentence_transformers.models"
_POSITIONS = ("position_embeddings", "wpe", "embed_positions")  # names of the tables: BERT, GPT-2, OPT
_LATER_MODES = {  # poolings that older files of sentence-transformers lack
    "lasttoken": "last",
    "mean_sqrt_len_tokens": "mean-sqrt",
    "weightedmean_tokens": "weighted-mean",
}


class Tower(nn.Module):
    """Transformer that maps token ids to vectors.

    Attributes:
        left_out: unused pretraining heads of the checkpoint (`cls`, Condenser's `c_head`).
        longest: maximum tokens of a text: the number of position embeddings; `LONGEST` for relative positions.
        head: modules of a sentence-transformers model, before the projection.
        distillation_head: see `add_distillation_head`; it is never saved.
    """

    def __init__(
        self,
        loaded: loading.Loaded,
        tokenizer: Any,
        contract: contracts.Contract,
        modules: nn.Sequential | None,
        projection: nn.Sequential | None,
    ):
        super().__init__()
        self.backbone = loaded.backbone
        self.left_out = loaded.left_out
        self.tokenizer = tokenizer
        self.padding = loading.padding_of(tokenizer)
        self._unpooled: Any = {
            side: contract.skip_tokens + (0 if contract.include_prompt else _tokens_of(tokenizer, head))
            for side, head in (("query", contract.query_head), ("document", contract.document_head))
        }
        self.longest = min(map(_positions, self.backbone.named_modules()))
        self.contract = contract
        self.head = modules
        self.projection = projection
        self.distillation_head: nn.Linear | None = None

    @classmethod
    def load(cls, files: contracts.TowerFiles, contract: contracts.Contract) -> Tower:
        """Load a tower; markers and projection that are not in the folder are initialized from torch's random state.

        Args:
            files: files of the tower; see `stored_encoder`.
            contract: contract of the encoder.

        Raises:
            InputError: no complete checkpoint in safetensors format, weights that config.json does not describe,
                weights of an unknown part, or no vocabulary for the markers.
        """
        folder = files.folder
        loaded = loading.load_checkpoint(files, contract.lower_case)
        tokenizer = loaded.tokenizer
        if tokenizer.sep_token_id is None and (contract.segments or contract.markers == "replace"):
            raise path_error(folder, "the tokenizer has no separator token", code="tokenizer-without-separator")
        if contract.markers != "none" and contracts.QUERY_MARKER not in tokenizer.all_special_tokens:
            tokenizer = _with_markers(loaded.backbone, tokenizer, contract.markers, folder)
        if contract.append_eos:
            _append_eos(tokenizer, folder)
        if contract.fill_queries and tokenizer.mask_token_id is None:
            raise path_error(folder, "has no mask token, which fills queries", code="no-mask-token")
        modules = files.modules[: len(contract.modules)]
        head = nn.Sequential(*map(_load_module, modules)) if modules else None
        pooled = loaded.backbone.config.hidden_size * len(contract.poolings)
        needed = next((layer.linear.in_features for layer in head or () if isinstance(layer, Dense)), pooled)
        if needed != pooled:
            raise path_error(folder, f"Dense needs {needed} values, the pooling has {pooled}", code="weights-shape")
        inputs = _outputs(head) or pooled
        tower = cls(loaded, tokenizer, contract, head, load_projection(files, contract, inputs, loaded.projection))
        contracts.refuse_truncation(contract.truncate_dim, tower.full_dim, folder)
        return tower

    @property
    def dim(self) -> int:
        """Length of the vectors."""
        return self.contract.truncate_dim or self.full_dim

    @property
    def full_dim(self) -> int:
        """Length of the vectors before truncation."""
        return _outputs(self.projection) or self.unprojected_dim

    @property
    def unprojected_dim(self) -> int:
        """Length of the vectors before the projection."""
        return _outputs(self.head) or self._pooled

    @property
    def _pooled(self) -> int:
        return int(self.backbone.config.hidden_size) * len(self.contract.poolings)

    def add_distillation_head(self, dim: int) -> None:
        """Add a linear map from pooled states to `dim` values; see `forward`."""
        weight = next(self.backbone.parameters())
        self.distillation_head = nn.Linear(self._pooled, dim, bias=False, device=weight.device)

    def tokenize(self, texts: Sequence[str], side: str, tokenizer: Any = None) -> tuple[list[list[int]], int]:
        """Return the token ids of texts with their prefixes, cut to the maximum length, and the number of cut texts.

        Args:
            texts: inputs of the tokenizer (`Contract.query`, `Contract.document`).
            side: `query` or `document`.
            tokenizer: a copy of the tower's tokenizer, for use in another thread.
        """
        contract, tokenizer = self.contract, tokenizer or self.tokenizer
        length = min(contract.query_max_len if side == "query" else contract.doc_max_len, self.longest)
        ids, cut = loading.cut_tokens(tokenizer, texts, length, add_special_tokens=contract.special_tokens)
        if contract.fill_queries and side == "query":
            ids = [row + [tokenizer.mask_token_id] * (length - len(row)) for row in ids]
        return ids, sum(cut)

    def batch(self, rows: Sequence[Sequence[int]], side: str) -> tuple[Tensor, Tensor]:
        """Return token ids and mask [n, L] of some texts, padded.

        The mask is 1 for tokens, `UNPOOLED` for tokens that poolings leave out, and 0 for padding.

        Args:
            rows: token ids of each text; see `tokenize`.
            side: `query` or `document`.
        """
        batch = loading.pad_batch(rows, self.padding)
        ids, mask = batch["input_ids"], batch["attention_mask"]
        mask[:, : self._unpooled[side]] *= UNPOOLED
        return ids, mask

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Return vectors [n, dim] in float32.

        In training mode the values of the distillation head, if there is one, follow the vector.

        Args:
            input_ids: [n, L]
            attention_mask: [n, L]; see `batch`.
        """
        pooled = self._pool(input_ids, attention_mask)
        vectors = pooled
        for layers in (self.head, self.projection):
            if layers is not None:  # computed in the precision of the weights
                vectors = layers(vectors.to(self.backbone.dtype)).float()
        vectors = vectors[:, : self.contract.truncate_dim]
        vectors = functional.normalize(vectors, dim=-1) if self.contract.normalize else vectors
        if self.distillation_head is None or not self.training:
            return vectors
        return torch.cat([vectors, self.distillation_head(pooled)], dim=-1)

    def _pool(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Return the vectors of all poolings [n, h] in float32."""
        pooled = (mask == 1).long()
        states = self.backbone(
            **self.inputs(ids, loading.attend_to_padding(mask.clamp(max=1)))
        ).last_hidden_state.float()
        return torch.cat([pool(states, pooled, pooling) for pooling in self.contract.poolings], 1)

    def inputs(self, input_ids: Tensor, attention_mask: Tensor) -> dict[str, Tensor]:
        """Return the inputs of the transformer, each [n, L]."""
        types = {"token_type_ids": self._segments(input_ids)} if self.contract.segments else {}
        return {"input_ids": input_ids, "attention_mask": attention_mask, **types}

    def _segments(self, input_ids: Tensor) -> Tensor:
        """Return token types [n, L]: 0 up to the first separator, 1 after it."""
        separators = (input_ids == self.tokenizer.sep_token_id).long()
        types: Tensor = (separators.cumsum(1) - separators > 0).long()
        return types

    def save(self, folder: Path, contract: contracts.Contract) -> None:
        """Write the tower; `SentenceTransformer(folder)` returns the same vectors, if its modules can express them."""
        folder.mkdir(parents=True, exist_ok=True)
        with disk.by_name(folder):
            if not adapter_of(self.backbone):
                self.backbone.save_pretrained(folder, safe_serialization=True)
            loading.save_tokenizer(self.tokenizer, folder)
        if adapter_of(self.backbone):
            save_adapter(folder, self.backbone)
        head = save_head(folder, self.head, self.projection)
        if not _is_sentence_transformer(contract):
            return
        modules = [("", "Transformer"), ("1_Pooling", "Pooling"), *head]
        _write_json(folder / "1_Pooling" / "config.json", _pooling_config(self.backbone.config.hidden_size, contract))
        if contract.normalize:
            modules.append((f"{len(modules)}_Normalize", "Normalize"))
            (folder / modules[-1][0]).mkdir(exist_ok=True)
        listing = [
            {"idx": i, "name": str(i), "path": path, "type": f"{_ST}.{kind}"} for i, (path, kind) in enumerate(modules)
        ]
        _write_json(folder / layout.MODULES, listing)
        settings: dict[str, Any] = {"max_seq_length": contract.doc_max_len, "do_lower_case": False}
        if self.backbone.config.model_type in loading.WITH_POOLER:
            settings["model_args"] = {"add_pooling_layer": False}
        _write_json(folder / "sentence_bert_config.json", settings)
        prompts = {"query": contract.query_head, "document": contract.document_head}
        whole: dict[str, Any] = {"prompts": prompts, "default_prompt_name": None, "similarity_fn_name": "dot"}
        whole |= {} if contract.truncate_dim is None else {"truncate_dim": contract.truncate_dim}
        _write_json(folder / layout.LIBRARY_CONFIG, whole)


def note_left_out(tower: Tower, folder: object) -> None:
    """Print the pretraining heads of a checkpoint that its encoder does not use."""
    if heads := tower.left_out:
        console.note(f"{folder}: skips the heads {', '.join(heads)}", code="heads-skipped", path=folder, heads=heads)


def _tokens_of(tokenizer: Any, head: str) -> int:
    """Return the number of tokens at the start of a text that belong to its prompt, special tokens before it included.

    As in sentence-transformers, the last token of the prompt alone does not count if it is a special one.
    """
    ids = tokenizer(head)["input_ids"] if head else []
    return len(ids) - (ids[-1:] != [] and ids[-1] in tokenizer.all_special_ids)


def _positions(item: tuple[str, nn.Module]) -> int:
    """Return the number of positions of a table of position embeddings; `LONGEST` for every other module."""
    name, table = item
    if not isinstance(table, nn.Embedding) or name.rpartition(".")[2] not in _POSITIONS:
        return contracts.LONGEST
    before = getattr(table, "offset", 0) if table.padding_idx is None else table.padding_idx + 1  # OPT; RoBERTa
    return int(table.num_embeddings - before)


def _is_sentence_transformer(contract: contracts.Contract) -> bool:
    """Test whether modules of sentence-transformers can compute the vectors of a contract."""
    plain = not (contract.skip_tokens or contract.fill_queries or contract.segments)
    truncated = contract.truncate_dim is not None and contract.normalize  # that library truncates last
    return contract.special_tokens and plain and not truncated


def _outputs(modules: nn.Sequential | None) -> int:
    """Return the length of the vectors after some modules; 0 if no module changes it."""
    return next((module.linear.out_features for module in reversed(modules or ()) if isinstance(module, Dense)), 0)


def pool(states: Tensor, mask: Tensor, pooling: Pooling) -> Tensor:
    """Pool states [n, L, h] to vectors [n, h] with a mask [n, L], which excludes padding and other tokens."""
    some = mask.amax(1, keepdim=True)  # 0 for a text without tokens, whose vector is zero
    if pooling == "cls":
        return states[torch.arange(len(states)), mask.argmax(1)] * some
    if pooling == "last":
        last = (mask * torch.arange(1, mask.shape[1] + 1, device=mask.device)).argmax(1)
        return states[torch.arange(len(states)), last] * some
    if pooling == "max":
        return states.masked_fill(mask.unsqueeze(-1) == 0, -torch.inf).amax(1).masked_fill(some == 0, 0)
    weights = mask.unsqueeze(-1).to(states.dtype)
    if pooling == "weighted-mean":
        weights = weights * torch.arange(1, states.shape[1] + 1, device=states.device).view(1, -1, 1)
    total = weights.sum(1).clamp(min=1e-9)
    return (states * weights).sum(1) / (total.sqrt() if pooling == "mean-sqrt" else total)


def _with_markers(backbone: PreTrainedModel, tokenizer: Any, markers: Markers, folder: Path) -> Any:
    """Return a tokenizer with two reserved word pieces as special tokens; their embeddings start near that of [CLS]."""
    ids = tokenizer.convert_tokens_to_ids([contracts.QUERY_MARKER, contracts.DOCUMENT_MARKER])
    if tokenizer.unk_token_id in ids or tokenizer.cls_token_id is None:
        raise path_error(
            folder, f"the vocabulary has no {contracts.QUERY_MARKER}; use --markers none", code="no-markers"
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
        additional_special_tokens=[contracts.QUERY_MARKER, contracts.DOCUMENT_MARKER],
        model_max_length=tokenizer.model_max_length,
        **{name: getattr(tokenizer, name) for name in names if getattr(tokenizer, name) is not None},
    )


def _append_eos(tokenizer: Any, folder: Path) -> None:
    """Let a tokenizer end every text with the end-of-sequence token."""
    end = tokenizer.eos_token
    if end is None:
        raise path_error(folder, "the tokenizer has no end-of-sequence token; omit --append-eos", code="no-eos-token")
    ids = tokenizer("a")["input_ids"]
    if ids[-1] != tokenizer.eos_token_id:
        begin = ids[: len(ids) - len(tokenizer("a", add_special_tokens=False)["input_ids"])]
        before = tokenizer.convert_ids_to_tokens(begin)
        special = [*zip(before, begin, strict=True), (end, tokenizer.eos_token_id)]
        tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
            single=[*before, "$A", end], special_tokens=special
        )


def _pooling_config(hidden: int, contract: contracts.Contract) -> dict[str, Any]:
    names = {ours: theirs for theirs, ours in contracts.POOLING.items()}
    return {
        "word_embedding_dimension": hidden,
        "pooling_mode_cls_token": contract.pooling == "cls",
        "pooling_mode_mean_tokens": contract.pooling == "mean",
        "pooling_mode_max_tokens": contract.pooling == "max",
        **{f"pooling_mode_{key}": True for key, ours in _LATER_MODES.items() if contract.pooling == ours},
        **({"pooling_mode": [names[pooling] for pooling in contract.poolings]} if contract.more_pooling else {}),
        "include_prompt": contract.include_prompt,
    }


def _write_json(file: Path, content: Any) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    disk.write_text(file, json.dumps(content, indent=2) + "\n")


BATCH_TOKENS = 4096


class TransformerEncoder(nn.Module):
    """Encoder of queries and documents with one or two transformers; the inner product is the score.

    Attributes:
        contract: parameters of the encoder.
        query_tower: encodes queries.
        document_tower: encodes documents; the same object as `query_tower` if the contract is tied.
        fingerprint: hash of the stored weights and of the contract; empty for an encoder built in memory.
        truncated: number of texts cut to the maximum length so far.
    """

    def __init__(self, contract: contracts.Contract, query_tower: Tower, document_tower: Tower, fingerprint: str = ""):
        super().__init__()
        self.contract = contract
        self.query_tower = query_tower
        self.document_tower = document_tower
        self.fingerprint = fingerprint
        self.truncated = 0

    @classmethod
    def load(
        cls, name: str | Path, *, device: str = DEVICE, dtype: Precision = "fp32", known: Known = None, **overrides: Any
    ) -> TransformerEncoder:
        """Open an encoder.

        Args:
            name: `minilm`, a folder, or a Hugging Face id.
            device: `auto` uses a GPU if there is one.
            dtype: precision of the weights; `auto` is bf16 where the processor supports it natively, else fp32.
            known: see `stored_encoder`.
            overrides: contract fields to change; `tied=False` copies the tower of a tied checkpoint.

        Raises:
            InputError: no such model, or the model does not fit the contract.
        """
        folder = resolve(name)
        stored, own = contracts.stored_encoder(folder, known), contracts.read_contract(folder, known)
        contract = own.changed(**overrides)
        if contract.tied and not own.tied:
            raise path_error(folder, "has two towers; use --untied", code="two-towers")
        files = [stored.tower(side) for side in contracts.SIDES]
        if contract.dim == own.dim:
            for tower_files in files:
                refuse_missing_projection(tower_files, own)
        weights = storage.fingerprint(folder)
        query = Tower.load(files[0], contract)
        document = query if contract.tied else Tower.load(files[1], contract)
        for name, tower in (("query_max_len", query), ("doc_max_len", document)):
            if (overrides.get(name) or 0) > tower.longest:
                most = tower.longest
                raise option_error(name, overrides[name], f"{folder} reads at most {most} word pieces", limit=most)
        note_left_out(query, folder)
        encoder = cls(contract, query, document, contracts.contract_fingerprint(weights, contract))
        return placed(encoder, device, dtype)

    @property
    def dim(self) -> int:
        """Length of the vectors."""
        return self.document_tower.dim

    @property
    def device(self) -> torch.device:
        """Device of the weights."""
        return next(self.parameters()).device

    def describe(self) -> dict[str, Any]:
        """Return the contract as JSON values, as manifests store it."""
        return self.contract.to_dict()

    def save(self, folder: Path) -> None:
        """Write checkpoint, tokenizer and contract; a tied encoder is also a sentence-transformers model."""
        if self.contract.tied:
            self.document_tower.save(folder, self.contract)
        else:
            self.query_tower.save(folder / "query", self.contract)
            self.document_tower.save(folder / "document", self.contract)
        disk.write_text(folder / CONTRACT, json.dumps(self.contract.to_dict(), indent=2) + "\n")

    def add_distillation_heads(self, dim: int) -> None:
        """Add a linear map from pooled states to `dim` values to each tower, for training only (LITE, eq. 8-9).

        In training mode a tower returns these values after the vector; they are never saved.
        """
        for tower in dict.fromkeys((self.query_tower, self.document_tower)):
            tower.add_distillation_head(dim)

    def start_at_zero(self) -> None:
        """Set the weights of the projections to zero, so that every vector is zero before the training."""
        for tower in dict.fromkeys((self.query_tower, self.document_tower)):
            assert tower.projection is not None
            for weights in tower.projection.parameters():
                torch.nn.init.zeros_(weights)

    def encode_queries(self, texts: Sequence[str], batch_tokens: int = BATCH_TOKENS) -> np.ndarray:
        """Return vectors [n, dim], float32, in the order of `texts`."""
        contracts.refuse_single_text(texts)
        texts = [self.contract.query(text) for text in texts]
        return self._encode(self.query_tower, texts, "query", batch_tokens)

    def encode_documents(
        self, titles: Sequence[str], texts: Sequence[str], batch_tokens: int = BATCH_TOKENS
    ) -> np.ndarray:
        """Return vectors [n, dim], float32, in the order of `texts`."""
        contracts.refuse_single_text(titles, texts)
        whole = [self.contract.document(title, text) for title, text in zip(titles, texts, strict=True)]
        return self._encode(self.document_tower, whole, "document", batch_tokens)

    def unread_tokens(self, titles: Sequence[str], texts: Sequence[str]) -> float:
        """Return the share of the tokens of documents that the maximum length leaves out."""
        whole = [self.contract.document(title, text) for title, text in zip(titles, texts, strict=True)]
        return unread_share(self.document_tower, whole, self.contract.special_tokens)

    def _encode(self, tower: Tower, texts: list[str], side: str, batch_tokens: int) -> np.ndarray:
        if not texts:
            return np.zeros((0, tower.dim), np.float32)
        ids, truncated = tower.tokenize(texts, side)
        self.truncated += truncated
        vectors = np.empty((len(texts), tower.dim), np.float32)
        device = next(tower.parameters()).device
        with torch.inference_mode():
            for rows in batches_by_length([len(x) for x in ids], batch_tokens):
                batch = [part.to(device) for part in tower.batch([ids[row] for row in rows], side)]
                vectors[rows] = tower(*batch).float().cpu().numpy()
        return vectors


def unread_share(tower: Any, texts: Sequence[str], special_tokens: bool = True) -> float:
    """Return the share of the tokens of documents that the maximum length of a tower leaves out."""
    read, _ = tower.tokenize(texts, "document")
    every = tower.tokenizer(list(texts), add_special_tokens=special_tokens, verbose=False)["input_ids"]
    return 1 - sum(map(len, read)) / max(1, sum(map(len, every)))


def batches_by_length(lengths: Sequence[int], batch_tokens: int, most: int | None = None) -> Iterator[np.ndarray]:
    """Yield row numbers in batches of similar length, longest first.

    Args:
        lengths: tokens of each row.
        batch_tokens: maximum tokens of a batch, padding included; a longer row is a batch of its own.
        most: maximum rows of a batch.
    """
    order = np.argsort(-np.asarray(lengths), kind="stable")
    begin = 0
    while begin < len(order):
        size = min(most or len(order), max(1, batch_tokens // max(1, lengths[order[begin]])))
        yield order[begin : begin + size]
        begin += size
