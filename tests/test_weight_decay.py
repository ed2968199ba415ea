"""Weight decay: matrices and embeddings decay, normalizations and biases do not."""

from __future__ import annotations

from typing import Any, cast

import pytest
from torch import nn
from transformers import AutoModel, BertConfig, LlamaConfig, PreTrainedConfig, T5Config, Trainer

from hybrid_cli.training.loop import parameter_groups

CONFIGS: list[PreTrainedConfig] = [
    BertConfig(vocab_size=30, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8),
    T5Config(vocab_size=30, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2),
    LlamaConfig(vocab_size=30, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8),
]


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.model_type)
def test_the_parameters_that_decay_are_those_of_the_trainer_of_transformers(config: PreTrainedConfig) -> None:
    model = AutoModel.from_config(config)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    tied = Trainer.get_decay_parameter_names(cast(Any, None), model)
    wanted = {names[id(model.get_parameter(name))] for name in tied}
    found = {
        group["weight_decay"]: [names[id(each)] for each in group["params"]] for group in parameter_groups(model, 0.1)
    }
    assert {decay: sorted(group) for decay, group in found.items()} == {
        0.1: sorted(wanted),
        0.0: sorted(set(names.values()) - set(wanted)),
    }


def test_the_table_of_a_static_encoder_decays() -> None:
    table = nn.EmbeddingBag(30, 8)
    assert parameter_groups(table, 0.1) == [{"params": [table.weight], "weight_decay": 0.1}]
