"""Tiny random decoders, whose tokenizers have no padding token and few or no special tokens."""

from functools import cache
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.processors import TemplateProcessing
from tokenizers.trainers import BpeTrainer
from transformers import (
    GPT2Config,
    GPT2ForSequenceClassification,
    GPT2Model,
    LlamaConfig,
    LlamaForSequenceClassification,
    LlamaModel,
    MistralConfig,
    MistralModel,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2Model,
    Qwen3Config,
    Qwen3Model,
)

TEXTS = [
    "The heart pumps blood, and blood carries oxygen to all organs of the body.",
    "Tides rise and fall twice a day because of the moon.",
    "Salt lowers the freezing point of water.",
]
KINDS: dict[str, Any] = {
    "gpt2": (GPT2Config, GPT2Model, GPT2ForSequenceClassification, {"eos_token": "<|end|>"}, ""),
    "llama": (
        LlamaConfig, LlamaModel, LlamaForSequenceClassification,
        {"bos_token": "<s>", "eos_token": "</s>"}, "<s> $A </s>",
    ),
    "bare": (GPT2Config, GPT2Model, GPT2ForSequenceClassification, {}, ""),
}  # fmt: skip # a model per line
DECODERS: dict[str, Any] = {  # without heads; the tokenizer of Qwen ends no text, that of Mistral begins texts only
    "qwen2": (Qwen2Config, Qwen2Model, None, {"eos_token": "<|endoftext|>"}, ""),
    "qwen3": (Qwen3Config, Qwen3Model, None, {"eos_token": "<|endoftext|>"}, "$A <|endoftext|>"),
    "mistral": (MistralConfig, MistralModel, None, {"bos_token": "<s>", "eos_token": "</s>"}, "<s> $A"),
    "llama": KINDS["llama"],
}


@cache
def _rules(special: tuple[str, ...], template: str) -> Tokenizer:
    rules = Tokenizer(BPE())
    rules.pre_tokenizer = ByteLevel(add_prefix_space=False)
    alphabet = ByteLevel.alphabet()
    rules.train_from_iterator(
        TEXTS * 3, BpeTrainer(vocab_size=340, special_tokens=[*special], initial_alphabet=alphabet, show_progress=False)
    )
    if template:
        numbers = [(token, rules.token_to_id(token)) for token in special]
        rules.post_processor = TemplateProcessing(
            single=template, pair=template.replace("$A", "$A $B"), special_tokens=numbers
        )
    return rules


def write_causal(folder: Path, kind: str, head: bool = False) -> Path:
    """Write a model of two layers with its tokenizer; with `head`, a reranker of one label."""
    config, body, classifier, special, template = {**KINDS, **DECODERS}[kind]
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=_rules(tuple(special.values()), template), model_max_length=256, **special
    )
    shape: dict[str, Any] = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    shape["vocab_size"] = len(tokenizer)
    shape |= {"intermediate_size": 32, "num_key_value_heads": 2} if kind in DECODERS else {}
    shape |= {"head_dim": 8} if kind == "qwen3" else {}
    shape |= {"max_position_embeddings": 256, "initializer_range": 0.3, "pad_token_id": None}
    shape |= {"bos_token_id": None, "eos_token_id": tokenizer.eos_token_id, "num_labels": 1}
    torch.manual_seed(0)
    (classifier if head else body)(config(**shape)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
