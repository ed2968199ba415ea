"""Steps of the optimizer: cached gradients, dropout, weight decay, callbacks."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import AutoModel, BertConfig, LlamaConfig, PreTrainedConfig, T5Config, Trainer

from hybrid_cli.errors import HybridError
from hybrid_cli.training import loop
from hybrid_cli.training.gradients import FastDropout, Share, backward, dropout_mask
from hybrid_cli.training.loop import Callback, Job, Validator, parameter_groups, train
from hybrid_cli.training.losses import Terms
from hybrid_cli.training.options import Optimization


def gradients(chunk: int, cached: bool, dropout: float) -> list[torch.Tensor | None]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Dropout(dropout), nn.Linear(12, 5))
    inputs = torch.randn(8, 6)

    order = torch.tensor([3, 0, 5, 1, 7, 2, 6, 4])

    def loss(vectors: Sequence[torch.Tensor]) -> Terms:
        scores = vectors[0][:4] @ vectors[0][4:].T
        return {"nll": functional.cross_entropy(scores, torch.arange(4))}

    torch.manual_seed(1)
    backward(model, Share(inputs.split(chunk), order), loss, lambda value: value, cached=cached)
    return [parameter.grad for parameter in model.parameters()]


@pytest.mark.parametrize("chunk", [1, 2, 3, 8])
def test_cached_gradients_equal_those_of_the_whole_batch(chunk: int) -> None:
    for plain, cached in zip(gradients(8, False, 0.0), gradients(chunk, True, 0.0), strict=True):
        torch.testing.assert_close(plain, cached, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("chunk", [1, 2, 8])
def test_dropout_is_the_same_in_both_passes(chunk: int) -> None:
    for plain, cached in zip(gradients(chunk, False, 0.5), gradients(chunk, True, 0.5), strict=True):
        torch.testing.assert_close(plain, cached, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("cached", [False, True])
def test_scores_are_not_rounded_to_the_precision_of_the_encoder(cached: bool) -> None:
    """In bf16, inner products above 128 are whole numbers, and a margin of 1 is one step."""
    inputs, seen = 10 * torch.eye(4) + torch.randn(4, 4, generator=torch.Generator().manual_seed(0)), []

    def loss(vectors: Sequence[torch.Tensor]) -> Terms:
        seen.append(scores := vectors[0] @ vectors[0].T)
        return {"sum": scores.sum()}

    leaf = inputs.requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        backward(lambda chunk: chunk, Share([leaf], torch.arange(4)), loss, lambda value: value, cached=cached)
    torch.testing.assert_close(seen[0], inputs.detach() @ inputs.detach().T, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("p", [0.1, 0.25, 0.9])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_values_are_dropped_with_the_probability_and_scaled(p: float, dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    with FastDropout():
        found = functional.dropout(torch.ones(401, 997, dtype=dtype), p)
    kept = found != 0
    assert found[kept].unique().tolist() == [pytest.approx(1 / (1 - p), rel=1e-4 if dtype == torch.float32 else 4e-3)]
    rates = kept.flatten()[: 4 * 90_000].view(-1, 4).float().mean(0)  # of the four decisions of a number
    assert (rates - (1 - p)).abs().max() < 5 * (p * (1 - p) / 90_000) ** 0.5
    pairs = kept.flatten()[: 4 * 90_000].view(-1, 4).float().T
    assert (torch.corrcoef(pairs) - torch.eye(4)).abs().max() < 5 / 90_000**0.5


def attention(masked: Tensor | None, p: float) -> tuple[Tensor, Tensor]:
    """Return the result of FastDropout and that of plain arithmetic with the same mask."""
    torch.manual_seed(2)
    query, key, value = torch.randn(3, 2, 4, 7, 8).unbind()
    torch.manual_seed(3)
    with FastDropout():
        found = functional.scaled_dot_product_attention(query, key, value, masked, dropout_p=p)
    scores = torch.einsum("bhqd,bhkd->bhqk", query, key) / 8**0.5
    if masked is not None:
        scores += torch.zeros(masked.shape).masked_fill(~masked, -torch.inf) if masked.dtype == torch.bool else masked
    weights = scores.exp() / scores.exp().sum(-1, keepdim=True)
    torch.manual_seed(3)
    return found, torch.einsum("bhqk,bhkd->bhqd", weights * dropout_mask(weights, p), value)


def test_attention_weights_are_dropped_after_the_softmax() -> None:
    keys = torch.arange(7) < torch.tensor([[7], [4]])
    for masked in (None, keys[:, None, None], torch.where(keys, 0.0, -1e9)[:, None, None]):
        found, expected = attention(masked, 0.3)
        assert torch.allclose(found, expected, atol=1e-5)


def test_attention_without_dropout_is_that_of_pytorch() -> None:
    torch.manual_seed(4)
    query, key, value = torch.randn(3, 8, 4, 7, 8).unbind()
    with FastDropout():
        causal = functional.scaled_dot_product_attention(query, key, value, dropout_p=0.3, is_causal=True)
        found = functional.scaled_dot_product_attention(query, key, value)
    assert found.equal(functional.scaled_dot_product_attention(query, key, value))
    assert causal[:, :, 0].count_nonzero() < causal[:, :, 0].numel()  # the first row reads one value: dropped or not


def test_a_model_in_training_gets_the_same_masks_from_the_same_random_state(tiny_bert: Path) -> None:
    model = AutoModel.from_pretrained(tiny_bert, hidden_dropout_prob=0.2, attention_probs_dropout_prob=0.2).train()
    tokens = torch.arange(10, 26).view(2, 8)

    def states(seed: int) -> Tensor:
        torch.manual_seed(seed)
        with FastDropout():
            found: Tensor = model(tokens).last_hidden_state
        return found.detach()

    assert states(1).equal(states(1))
    assert not states(1).equal(states(2))
    torch.manual_seed(1)
    assert not states(1).equal(model(tokens).last_hidden_state)  # PyTorch draws other masks
    model.eval()
    assert states(1).equal(states(2))


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


STEPS = 6


class Line:
    precision = torch.float32

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = nn.Linear(1, 1)

    def backward(self, batch: Tensor, scale: Callable[[Tensor], Tensor], step: int = 0) -> Terms:
        loss = (self.model(batch) - (2 * batch + 1)).square().mean()
        scale(loss).backward()
        return {"square": loss.detach(), "largest": batch.max().double()}


class Record(Callback):
    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def on_step(self, step: int, values: Mapping[str, float]) -> None:
        self.calls.append(("step", step, dict(values)))

    def on_validation(self, step: int, values: Mapping[str, float]) -> None:
        self.calls.append(("validation", step, dict(values)))

    def on_epoch(self, epoch: int) -> None:
        self.calls.append(("epoch", epoch))

    def on_checkpoint(self, step: int) -> None:
        self.calls.append(("checkpoint", step))

    def names(self) -> list[tuple[Any, ...]]:
        return [call[:2] for call in self.calls]


def batches(done: int) -> Iterator[Tensor]:
    for number in range(done, 2 * STEPS):
        yield torch.tensor([[float(number)], [number + 0.5]]) / 10


def job(learner: Line, epoch_steps: int | None = 2) -> Job[Tensor]:
    validator = Validator(lambda: {"dev": learner.model.weight.item()}, every=3, criterion="dev")
    return Job(learner, batches, STEPS, lambda folder: {}, validator, epoch_steps=epoch_steps)


PLAN = Optimization(batch_size=2, accumulate=2, learning_rate=0.05, warmup=0, checkpoint_steps=4)


def test_callbacks_see_every_step_validation_epoch_and_checkpoint(tmp_path: Path) -> None:
    record = Record()
    state = train(job(Line()), PLAN, tmp_path, [Callback(), record])
    expected = [("validation", 0), ("step", 1), ("step", 2), ("epoch", 1), ("step", 3), ("validation", 3), ("step", 4)]
    expected += [("epoch", 2), ("checkpoint", 4), ("step", 5), ("step", 6), ("validation", 6), ("epoch", 3)]
    assert record.names() == expected
    seen = [(call[1], name, value) for call in record.calls if len(call) > 2 for name, value in call[2].items()]
    assert seen == state.curve


class WithScalar:
    """A linear model whose gradient is the same in each step, and a scalar whose gradients are given."""

    precision = torch.float32

    def __init__(self, gradients: Sequence[float]):
        self.model: Any = nn.Module()
        self.model.weights = nn.Parameter(torch.ones(3))
        if gradients:
            self.model.scalar = nn.Parameter(torch.ones(()))
        self.gradients = gradients

    def backward(self, batch: int, scale: Callable[[Tensor], Tensor], step: int = 0) -> Terms:
        loss = (self.model.weights * torch.tensor([3.0, 4.0, 12.0])).sum()
        if self.gradients:
            loss = loss + self.gradients[batch] * self.model.scalar
        scale(loss).backward()
        return {"loss": loss.detach()}


def test_the_gradient_of_a_scalar_does_not_change_the_steps_of_the_model_and_a_scalar_does_not_decay() -> None:
    """The learned weight has a gradient hundreds of times larger than the encoder's, which clipping would shrink."""
    models = []
    for gradients in ([], [1000.0, 1.0, 50.0]):
        learner = WithScalar(gradients)
        trainer = loop.Trainer(learner, Optimization(learning_rate=0.01, weight_decay=0.1))
        for number in range(3):
            trainer.step(iter([number]), number)
        models.append(learner.model)
    assert models[0].weights.equal(models[1].weights)
    learner = WithScalar([0.0])
    loop.Trainer(learner, Optimization(learning_rate=0.01, weight_decay=0.5)).step(iter([0]))
    assert learner.model.scalar.item() == 1


def test_values_read_late_are_the_same_in_the_same_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, late = Record(), Record()
    now = train(job(Line()), PLAN, tmp_path / "now", [first])
    original = loop.scalars
    reads: list[int] = []

    def counted(tensors: list[Tensor]) -> list[float]:
        reads.append(len(tensors))
        return original(tensors)

    monkeypatch.setattr(loop, "scalars", counted)
    monkeypatch.setattr(loop, "CPU_LOG_STEPS", 10)
    later = train(job(Line(), epoch_steps=None), PLAN, tmp_path / "later", [late])
    assert later.curve == now.curve
    assert reads == [3 * 2 * 2, 1 * 2 * 2, 2 * 2 * 2]  # at a validation, a checkpoint and the last step
    assert [call for call in late.calls if call[0] == "step"] == [call for call in first.calls if call[0] == "step"]


def test_a_value_that_is_not_finite_ends_the_training_at_its_step(tmp_path: Path) -> None:
    class Broken(Line):
        def backward(self, batch: Tensor, scale: Callable[[Tensor], Tensor], step: int = 0) -> Terms:
            terms = super().backward(batch, scale, step)
            return {**terms, "square": terms["square"] * (float("nan") if step == 2 else 1)}

    record = Record()
    with pytest.raises(HybridError) as caught:
        train(job(Broken()), PLAN, tmp_path, [record])
    assert (caught.value.code, caught.value.fields) == ("values-not-finite", {"step": 3, "names": ["square"]})
    assert record.names()[-1] == ("epoch", 1)
    assert not list(tmp_path.glob("checkpoint*"))
