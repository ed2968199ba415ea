"""One transformer with tokenizer, pooling and projection, stored as a sentence-transformers model."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers.processors import TemplateProcessing
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from hybrid_cli.artifacts import disk, layout
from hybrid_cli.encoders.checkpoint import WITH_POOLER, Loaded, load_checkpoint
from hybrid_cli.encoders.contract import DOCUMENT_MARKER, QUERY_MARKER, Contract
from hybrid_cli.encoders.head import Dense, load_modules, load_projection, save_head
from hybrid_cli.encoders.library_files import LONGEST, POOLING, STATIC_EMBEDDING, Module, parts_of
from hybrid_cli.encoders.options import Markers, Pooling
from hybrid_cli.encoders.token_table import TokenTable, load_table, save_table
from hybrid_cli.encoders.tokens import attended, cut_tokens, padded, padding_of, save_tokenizer
from hybrid_cli.errors import InputError

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
        loaded: Loaded,
        tokenizer: Any,
        contract: Contract,
        modules: nn.Sequential | None,
        projection: nn.Sequential | None,
    ):
        super().__init__()
        self.backbone = loaded.backbone
        self.left_out = loaded.left_out
        self.tokenizer = tokenizer
        self.padding = padding_of(tokenizer)
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
    def load(cls, folder: Path, contract: Contract, side: str = "query") -> Tower:
        """Load a tower; markers and projection that are not in the folder are initialized from torch's random state.

        Args:
            folder: folder of the checkpoint.
            contract: contract of the encoder.
            side: `query` or `document`, the tower to load from a checkpoint with two.

        Raises:
            InputError: no complete checkpoint in safetensors format, weights that config.json does not describe,
                weights of an unknown part, or no vocabulary for the markers.
        """
        listed = (folder / layout.MODULES).is_file()
        first = parts_of(folder, side)[0] if listed else Module("Transformer", folder)
        loaded = _load_table(first, contract) if first.kind == STATIC_EMBEDDING else load_checkpoint(first.folder, side)
        tokenizer = loaded.tokenizer
        if tokenizer.sep_token_id is None and (contract.segments or contract.markers == "replace"):
            raise InputError(
                f"{folder}: the tokenizer has no separator token, which divides parts of its input; use another model",
                code="tokenizer-without-separator",
                path=folder,
            )
        if contract.markers != "none" and QUERY_MARKER not in tokenizer.all_special_tokens:
            tokenizer = _with_markers(loaded.backbone, tokenizer, contract.markers, folder)
        if contract.fill_queries and tokenizer.mask_token_id is None:
            raise InputError(f"{folder}: the vocabulary has no mask token, with which queries are filled")
        head = load_modules(folder, contract.modules, side)
        pooled = loaded.backbone.config.hidden_size * len(contract.poolings)
        needed = next((layer.linear.in_features for layer in head or () if isinstance(layer, Dense)), pooled)
        if needed != pooled:
            raise InputError(f"{folder}: its Dense module needs {needed} values, and the pooling gives {pooled}")
        inputs = _outputs(head) or pooled
        tower = cls(loaded, tokenizer, contract, head, load_projection(folder, contract, inputs, loaded.projection))
        length = contract.truncate_dim
        if length is not None and not 0 < length <= tower.full_dim:
            raise InputError(
                f"--truncate-dim {length}: the vectors of {folder} have {tower.full_dim} values",
                code="truncate-dim-too-large",
                path=folder,
                value=length,
                limit=tower.full_dim,
            )
        return tower

    @property
    def dim(self) -> int:
        """Length of the vectors."""
        return self.contract.truncate_dim or self.full_dim

    @property
    def full_dim(self) -> int:
        """Length of the vectors before truncation."""
        linear = self.projection[0] if self.projection is not None else None
        if isinstance(linear, nn.Linear):
            return linear.out_features
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
        ids, cut = cut_tokens(tokenizer, texts, length, add_special_tokens=contract.special_tokens)
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
        found = padded(rows, self.padding)
        ids, mask = found["input_ids"], found["attention_mask"]
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
        if isinstance(self.backbone, TokenTable):
            table: Tensor = self.backbone(ids, pooled)
            return table.float()
        states = self.backbone(**self.inputs(ids, attended(mask.clamp(max=1)))).last_hidden_state.float()
        return torch.cat([pool(states, pooled, each) for each in self.contract.poolings], 1)

    def inputs(self, input_ids: Tensor, attention_mask: Tensor) -> dict[str, Tensor]:
        """Return the inputs of the transformer, each [n, L]."""
        types = {"token_type_ids": self._segments(input_ids)} if self.contract.segments else {}
        return {"input_ids": input_ids, "attention_mask": attention_mask, **types}

    def _segments(self, input_ids: Tensor) -> Tensor:
        """Return token types [n, L]: 0 up to the first separator, 1 after it."""
        separators = (input_ids == self.tokenizer.sep_token_id).long()
        types: Tensor = (separators.cumsum(1) - separators > 0).long()
        return types

    def save(self, folder: Path, contract: Contract) -> None:
        """Write the tower; `SentenceTransformer(folder)` returns the same vectors, if its modules can express them."""
        folder.mkdir(parents=True, exist_ok=True)
        static = isinstance(self.backbone, TokenTable)
        with disk.by_name(folder):
            if isinstance(self.backbone, TokenTable):
                save_table(folder, self.backbone, self.tokenizer, contract.doc_max_len)
            else:
                self.backbone.save_pretrained(folder, safe_serialization=True)
                save_tokenizer(self.tokenizer, folder)
        head = save_head(folder, self.head, self.projection, contract)
        if not _is_sentence_transformer(contract, static):
            return
        modules = [("", STATIC_EMBEDDING), *head] if static else [("", "Transformer"), ("1_Pooling", "Pooling"), *head]
        if not static:
            _write(folder / "1_Pooling" / "config.json", _pooling_config(self.backbone.config.hidden_size, contract))
        if contract.normalize:
            modules.append((f"{len(modules)}_Normalize", "Normalize"))
            (folder / modules[-1][0]).mkdir(exist_ok=True)
        listing = [
            {"idx": i, "name": str(i), "path": path, "type": f"{_ST}.{kind}"} for i, (path, kind) in enumerate(modules)
        ]
        _write(folder / layout.MODULES, listing)
        settings: dict[str, Any] = {"max_seq_length": contract.doc_max_len, "do_lower_case": False}
        if self.backbone.config.model_type in WITH_POOLER:
            settings["model_args"] = {"add_pooling_layer": False}
        if not static:
            _write(folder / "sentence_bert_config.json", settings)
        prompts = {"query": contract.query_head, "document": contract.document_head}
        whole: dict[str, Any] = {"prompts": prompts, "default_prompt_name": None, "similarity_fn_name": "dot"}
        whole |= {} if contract.truncate_dim is None else {"truncate_dim": contract.truncate_dim}
        _write(folder / "config_sentence_transformers.json", whole)


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
        return LONGEST
    before = getattr(table, "offset", 0) if table.padding_idx is None else table.padding_idx + 1  # OPT; RoBERTa
    return int(table.num_embeddings - before)


def _is_sentence_transformer(contract: Contract, static: bool) -> bool:
    """Test whether modules of sentence-transformers can compute the vectors of a contract."""
    plain = not (contract.skip_tokens or contract.fill_queries or contract.segments)
    truncated = contract.truncate_dim is not None and contract.normalize  # that library truncates last
    return (contract.special_tokens or static) and plain and not truncated


def _load_table(module: Module, contract: Contract) -> Loaded:
    """Return the table of a StaticEmbedding in place of a transformer."""
    if contract.poolings != ("mean",) or contract.special_tokens or contract.markers != "none":
        raise InputError(
            f"{module.folder}: is a table of token vectors, whose pooling is the mean of all tokens but special ones; "
            "omit --pooling and --markers",
            code="table-contract",
            path=module.folder,
        )
    table, tokenizer = load_table(module.folder)
    return Loaded(table, tokenizer, {}, ())  # type: ignore[arg-type]


def _outputs(modules: nn.Sequential | None) -> int:
    """Return the length of the vectors after some modules; 0 if no module changes it."""
    return next((each.linear.out_features for each in reversed(modules or ()) if isinstance(each, Dense)), 0)


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


def _pooling_config(hidden: int, contract: Contract) -> dict[str, Any]:
    names = {ours: theirs for theirs, ours in POOLING.items()}
    return {
        "word_embedding_dimension": hidden,
        "pooling_mode_cls_token": contract.pooling == "cls",
        "pooling_mode_mean_tokens": contract.pooling == "mean",
        "pooling_mode_max_tokens": contract.pooling == "max",
        **{f"pooling_mode_{key}": True for key, ours in _LATER_MODES.items() if contract.pooling == ours},
        **({"pooling_mode": [names[each] for each in contract.poolings]} if contract.more_pooling else {}),
        "include_prompt": contract.include_prompt,
    }


def _write(file: Path, content: Any) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    disk.write_text(file, json.dumps(content, indent=2) + "\n")
