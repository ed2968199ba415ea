"""Networks of learned sparse encoders: texts to weights of vocabulary terms, and of the tokens of a text.

On disk they have the layouts of published checkpoints: SPLADE is a masked language model, UniCOIL a transformer with a
linear unit (`coil_encoder.*`, `tok_proj.*`), DeepCT a token classifier with one label (`classifier.*`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional
from transformers import MODEL_MAPPING, AutoModelForMaskedLM, PretrainedConfig, PreTrainedModel
from transformers.activations import ACT2FN

from hybrid_cli.encoders import loading
from hybrid_cli.encoders.contract import TextForm, weight_files
from hybrid_cli.errors import path_error
from hybrid_cli.inputs.json_values import mismatch, read_object
from hybrid_cli.storage import disk, layout

Repeats: TypeAlias = Literal["max", "sum"]  # weight of a term that a text repeats
_HEADS = {"unicoil": "tok_proj", "deepct": "classifier"}  # prefix of the weights of the linear unit
_COIL = "coil_encoder."
_START = 2.5  # deviations


class VocabularyWeights(nn.Module):
    """Masked language model whose scores weight every term of the vocabulary (SPLADE), with a gate (SparTerm).

    Args:
        whole: masked language model.
        pooling: `max` over the tokens, or their `sum` (the first version of SPLADE).
        saturation: number of logarithms `ln(1 + x)` over `x = relu(score)`: 1 for SPLADE, 0 for SparTerm, 2 for recent
            models without a query encoder.
        gate: scores of the terms that a text may have besides its own; None lets all terms pass.
    """

    def __init__(self, whole: PreTrainedModel, pooling: Repeats, saturation: int, gate: Gate | None = None):
        super().__init__()
        self.whole, self.pooling, self.saturation, self.gate = whole, pooling, saturation, gate

    @property
    def backbone(self) -> PreTrainedModel:
        """Transformer without heads."""
        backbone: PreTrainedModel = self.whole.base_model  # type: ignore[assignment]
        return backbone

    def forward(self, ids: Tensor, mask: Tensor, words: Tensor, repeats: Repeats) -> Tensor:
        """Return weights [n, V] in float32; in training with a gate, its scores and the text's own terms follow.

        Args:
            ids: [n, L]
            mask: [n, L]
            words: [n, L] 1 for tokens of the text, 0 for special tokens and padding.
            repeats: not used; see `pooling`.
        """
        if self.gate is None:
            return self._pooled(self.whole(input_ids=ids, attention_mask=mask).logits, mask)
        output = self.whole(input_ids=ids, attention_mask=mask, output_hidden_states=True)
        weights = self._pooled(output.logits, mask)
        scores = _largest(self.gate(output.hidden_states[-1], self.backbone), mask)
        own = torch.zeros_like(weights).scatter_(1, ids * words, 1.0)
        own[:, 0] = 0  # where other tokens were sent; the first piece of a vocabulary is padding
        weights = weights * ((own > 0) | (scores > 0))
        return torch.cat([weights, scores, own], dim=-1) if self.training else weights

    def _pooled(self, scores: Tensor, mask: Tensor) -> Tensor:
        """Return weights [n, V] of scores [n, L, V]; a monotone function commutes with the maximum."""
        if self.pooling == "max":
            return self._saturated(_largest(scores, mask))
        return (self._saturated(scores.float()) * mask.unsqueeze(-1)).sum(1)

    def _saturated(self, scores: Tensor) -> Tensor:
        weights = functional.relu(scores)
        for _ in range(self.saturation):
            weights = torch.log1p(weights)
        return weights

    def scores(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Return the largest score of each term [n, V] over the tokens of texts [n, L]."""
        return _largest(self.whole(input_ids=ids, attention_mask=mask).logits, mask)

    def start_sparse(self, scores: Tensor) -> None:
        """Lower the biases of a new head, so that a text has few terms before the training (our choice).

        The scores of a new head differ little between texts, and half of the vocabulary would have a weight. A term
        then has one where its score is 2.5 deviations above its mean.

        Args:
            scores: [n, V] scores of some texts; see `scores`.
        """
        bias = getattr(self.whole.get_output_embeddings(), "bias", None)
        if bias is not None:
            with torch.no_grad():
                bias -= (scores.mean(0) + _START * scores.std(0)).to(bias)

    def save(self, folder: Path) -> None:
        """Write the checkpoint for `AutoModelForMaskedLM`, with the gate in a file of its own."""
        with disk.by_name(folder):
            self.whole.save_pretrained(folder, safe_serialization=True)
        if self.gate is not None:
            with disk.by_name(folder / layout.GATE) as file:
                save_file(self.gate.state_dict(), file, metadata={"format": "pt"})


def _largest(scores: Tensor, mask: Tensor) -> Tensor:
    """Return the largest score [n, V] of the unmasked tokens, in float32."""
    if not bool(mask.all()):
        scores = scores.masked_fill(mask.unsqueeze(-1) == 0, -torch.inf)
    return (scores.max(1).values if scores.requires_grad else scores.amax(1)).float()  # `max` keeps places, not scores


class Gate(nn.Module):
    """Scores of vocabulary terms that a text may have besides its own (SparTerm, the gating controller).

    A layer like the transform of a masked-language-model head, then the word embeddings of the backbone and a bias
    (our choice). The bias starts at -2, so that few terms pass at first.
    """

    def __init__(self, backbone: PreTrainedModel):
        super().__init__()
        config = backbone.config
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.norm = nn.LayerNorm(config.hidden_size)
        self.bias = nn.Parameter(torch.full((config.vocab_size,), -2.0))
        self._activation = ACT2FN[getattr(config, "hidden_act", "gelu")]
        nn.init.normal_(self.dense.weight, std=0.02)
        nn.init.zeros_(self.dense.bias)

    def forward(self, states: Tensor, backbone: PreTrainedModel) -> Tensor:
        """Map token states [n, L, h] to scores [n, L, V]."""
        table: Tensor = backbone.get_input_embeddings().weight  # type: ignore[assignment]
        logits: Tensor = self.norm(self._activation(self.dense(states))) @ table.T + self.bias
        return logits


class TokenWeights(nn.Module):
    """Transformer with one linear unit that weights each token of a text (UniCOIL, DeepCT).

    Args:
        backbone: transformer.
        head: linear unit.
        architecture: `unicoil` or `deepct`, which decides the layout on disk.
    """

    def __init__(self, backbone: PreTrainedModel, head: nn.Linear, architecture: str):
        super().__init__()
        self.backbone, self.head, self.architecture = backbone, head, architecture

    def tokens(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Return the weight of each token [n, L] in float32; may be negative."""
        states = self.backbone(input_ids=ids, attention_mask=mask).last_hidden_state
        weights: Tensor = self.head(states).squeeze(-1).float()
        return weights

    def forward(self, ids: Tensor, mask: Tensor, words: Tensor, repeats: Repeats) -> Tensor:
        """Return weights [n, V] of the text's own word pieces; see `VocabularyWeights.forward`.

        Args:
            ids, mask, words: [n, L].
            repeats: a repeated piece has the largest of its weights, or their sum.
        """
        weights = functional.relu(self.tokens(ids, mask)) * words
        none = weights.new_zeros(len(ids), self.backbone.config.vocab_size)
        return none.scatter_reduce(1, ids, weights, "amax" if repeats == "max" else "sum")

    def save(self, folder: Path) -> None:
        """Write the checkpoint in the published layout."""
        body = _COIL if self.architecture == "unicoil" else f"{self.backbone.base_model_prefix}."
        state = {f"{body}{name}": value.contiguous() for name, value in self.backbone.state_dict().items()}
        head = _HEADS[self.architecture]
        state |= {f"{head}.{name}": value.contiguous() for name, value in self.head.state_dict().items()}
        self.backbone.config.num_labels = 1
        with disk.by_name(folder):
            self.backbone.config.save_pretrained(folder)
        with disk.by_name(folder / layout.WEIGHTS) as file:
            save_file(state, file, metadata={"format": "pt"})


class TableWeights(nn.Module):
    """One weight per word piece for the pieces of a query, without a transformer.

    Args:
        table: [V] weights.
    """

    def __init__(self, table: Tensor):
        super().__init__()
        self.register_buffer("table", table.float())
        self.table: Tensor

    def forward(self, ids: Tensor, mask: Tensor, words: Tensor, repeats: Repeats) -> Tensor:
        """Return weights [n, V]; a repeated piece counts once."""
        weights = self.table[ids] * words
        return weights.new_zeros(len(ids), len(self.table)).scatter_reduce(1, ids, weights, "amax")


Network: TypeAlias = VocabularyWeights | TokenWeights | TableWeights


class SparseTower(nn.Module):
    """A network with its tokenizer, for queries or for documents.

    Attributes:
        network: may be shared with another tower.
        repeats: weight of a term that a text repeats, where the network leaves the choice.
    """

    def __init__(self, network: Network, tokenizer: Any, contract: TextForm, repeats: Repeats = "max"):
        super().__init__()
        self.network, self.tokenizer, self.contract, self.repeats = network, tokenizer, contract, repeats
        self.padding = loading.padding_of(tokenizer)
        special = torch.zeros(len(tokenizer), dtype=torch.bool)
        special[tokenizer.all_special_ids] = True
        self.register_buffer("special", special, persistent=False)
        self.special: Tensor

    def tokenize(self, texts: Sequence[str], side: str, tokenizer: Any = None) -> tuple[list[list[int]], int]:
        """Return the token ids of texts, cut to the length of a `query` or a `document`; see `Tower.tokenize`."""
        length = self.contract.query_max_len if side == "query" else self.contract.doc_max_len
        ids, cut = loading.cut_tokens(tokenizer or self.tokenizer, texts, length)
        return ids, sum(cut)

    def batch(self, rows: Sequence[Sequence[int]], side: str = "") -> tuple[Tensor, Tensor]:
        """Return token ids and attention mask [n, L] of some texts, padded; see `Tower.batch`."""
        batch = loading.pad_batch(rows, self.padding)
        return batch["input_ids"], batch["attention_mask"]

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Return weights [n, V] in float32 of token ids [n, L] with an attention mask [n, L]."""
        words = mask * ~self.special[ids]
        weights: Tensor = self.network(ids, loading.attend_to_padding(mask), words, self.repeats) * mask[:, :1]
        return weights


# ------------------------------------------------------------------------------------------------------------- loading


def load_masked_language_model(folder: Path) -> tuple[PreTrainedModel, bool]:
    """Load a checkpoint with its masked-language-model head.

    Returns:
        The model, and whether its head is new: tied to the embeddings, other weights from torch's random state.

    Raises:
        InputError: no complete checkpoint, or an architecture without such a head.
    """
    whole, missing, others = loading.open_model(AutoModelForMaskedLM, folder, loading.read_config(folder))
    body = f"{whole.base_model_prefix}."
    loading.refuse_missing(folder, [key.removeprefix(body) for key in missing if key.startswith(body)])
    _refuse_foreign(folder, whole.config, others, body)
    return whole.float(), any(not key.startswith(body) for key in missing)


def load_vocabulary_weights(folder: Path, pooling: Repeats, saturation: int, gated: bool) -> tuple[Network, list[str]]:
    """Load a masked language model, and its gate; return it with the names of the parts that are new."""
    whole, fresh = load_masked_language_model(folder)
    gate = Gate(whole.base_model) if gated else None  # type: ignore[arg-type]
    new = ["masked-language-model head"] if fresh else []
    if gate is not None and (folder / layout.GATE).is_file():
        _load(folder, gate, _read(folder / layout.GATE))
    elif gate is not None:
        new.append("gate")
    return VocabularyWeights(whole, pooling, saturation, gate), new


def load_token_weights(folder: Path, architecture: str) -> tuple[Network, list[str]]:
    """Load a transformer with its linear unit; return it with the names of the parts that are new.

    Raises:
        InputError: no complete checkpoint.
    """
    config = loading.read_config(folder)
    backbone: Any = loading.new_model(loading.encoder_class(config, MODEL_MAPPING[type(config)]), folder, config)
    if getattr(backbone, "pooler", None) is not None:
        backbone.pooler = None  # weights of tokens do not use it, and a checkpoint may lack it
    state: dict[str, Tensor] = {}
    for file in weight_files(folder):
        state |= _read(file)
    body = next(
        (prefix for prefix in (_COIL, f"{backbone.base_model_prefix}.") if any(k.startswith(prefix) for k in state)), ""
    )
    known = backbone.state_dict()
    inner = {key.removeprefix(body): value for key, value in state.items() if key.startswith(body)}
    loading.refuse_missing(folder, set(known) - set(inner))
    head = nn.Linear(config.hidden_size, 1)
    nn.init.normal_(head.weight, std=0.02)
    nn.init.zeros_(head.bias)
    prefix = f"{_HEADS[architecture]}."
    own = {key.removeprefix(prefix): value for key, value in state.items() if key.startswith(prefix)}
    outside = [key for key in state if not key.startswith(prefix) and key.removeprefix(body) not in known]
    _refuse_foreign(folder, config, outside, body)
    if own:
        _refuse_reranker(folder, config)
        _load(folder, head, own)
    _load(folder, backbone, {key: inner[key] for key in known})
    new = [] if own else ["linear unit"]
    return TokenWeights(backbone.float(), head, architecture), new


def read_table(path: Path, tokenizer: Any, size: int) -> Tensor:
    """Read the weights [V] of word pieces in queries.

    Args:
        path: JSON object of word pieces and weights.
        tokenizer: tokenizer of the documents.
        size: V, at least the number of word pieces of the tokenizer.

    Raises:
        InputError: not such a file, or other word pieces than those of the tokenizer.
    """
    stored = read_object(path)
    if wrong := mismatch(stored, dict[str, float]):
        raise path_error(path, f"{wrong}, the weight of a word piece", code="json-type", **wrong.fields)
    vocabulary: Mapping[str, int] = tokenizer.get_vocab()
    if unknown := [piece for piece in stored if piece not in vocabulary]:
        raise path_error(path, f"the vocabulary lacks {unknown[0]!r} and others", code="unknown-id", id=unknown[0])
    table = torch.zeros(size)
    table[[vocabulary[piece] for piece in stored]] = torch.tensor(list(stored.values()))
    return table


def _read(file: Path) -> dict[str, Tensor]:
    with loading.opening(file):
        return load_file(file)


def _load(folder: Path, module: nn.Module, state: Mapping[str, Tensor]) -> None:
    try:
        module.load_state_dict(state)
    except RuntimeError as error:
        raise path_error(folder, f"other shapes ({' '.join(str(error).split())[:200]})", code="weights-shape") from None


def _refuse_foreign(folder: Path, config: PretrainedConfig, keys: Collection[str], body: str) -> None:
    """Refuse weights of another kind of model: without them the encoder would compute something else."""
    if foreign := loading.foreign_weights(config.model_type, keys, body):
        problem = f"has unused weights ({loading.first_names(foreign)}); pass its --architecture"
        raise path_error(folder, problem, code="unknown-weights")


def _refuse_reranker(folder: Path, config: PretrainedConfig) -> None:
    """Refuse a classifier of whole texts, whose head has the name and perhaps the shape of DeepCT's."""
    if names := [name for name in config.architectures or () if "ForSequenceClassification" in name]:
        problem = f"{names[0]} classifies whole texts; use `hybrid rerank`"
        raise path_error(folder, problem, code="other-kind", kind=names[0])
