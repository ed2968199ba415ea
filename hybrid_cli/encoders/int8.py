"""Transformers with 8-bit weights, computed by ONNX Runtime: for processors without bf16."""

from __future__ import annotations

import contextlib
import io
import logging
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from hybrid_cli.encoders.loading import TokenTable
from hybrid_cli.errors import HybridError, option_error

_LEAST_COSINE = 0.9  # far below what quantization costs, and above what a wrong conversion reaches
_PROBES = (
    "how does a hybrid of two rankings work",
    "A first-stage retriever returns a thousand candidates from millions of passages within milliseconds. Its lexical "
    "part counts the words that query and passage share; its dense part compares two vectors, and finds passages that "
    "use other words for the same thing.",
    "exact match",
)


class HasTowers(Protocol):
    """A `TransformerEncoder`, whose towers may be one object."""

    query_tower: Any
    document_tower: Any

    @property
    def device(self) -> torch.device:
        """Device of the weights."""


def quantize(encoder: HasTowers) -> None:
    """Replace the transformers of an encoder by 8-bit copies.

    Matrices have one scale per output, activations one per batch. The weights use 7 of the 8 bits, because processors
    without VNNI add two products in 16 bits. The second feed-forward matrices of the first half of the layers, whose
    inputs have the widest range, stay in fp32, as do pooling, projection and normalization.

    Args:
        encoder: an encoder in fp32 on a CPU.

    Raises:
        InputError: a GPU, or ONNX Runtime is not installed.
        HybridError: ONNX cannot express the transformer, or its copy returns other vectors.
    """
    if encoder.device.type != "cpu":
        raise option_error("dtype", "int8", "computed on CPUs; use fp16 on a GPU", code="option-does-not-apply")
    for tower in dict.fromkeys((encoder.query_tower, encoder.document_tower)):
        if isinstance(tower.backbone, TokenTable):
            raise option_error("dtype", "int8", "not with a table of vectors; use fp32", code="option-does-not-apply")
        rows, _ = tower.tokenize(_PROBES, "document")
        probe = tower.batch(rows, "document")
        with torch.inference_mode():
            expected = tower(*probe)
            tower.backbone = _Backbone(tower.backbone, tower.inputs(*probe))
            cosine = float(nn.functional.cosine_similarity(expected, tower(*probe)).min())
        if not cosine >= _LEAST_COSINE:
            raise HybridError(
                f"--dtype int8: vectors differ from fp32 (cosine {cosine:.2f}); use --dtype fp32", code="int8-inexact"
            )


class _Backbone(nn.Module):
    """An 8-bit copy of a transformer, with the attributes of the original that a tower reads."""

    def __init__(self, original: PreTrainedModel, probe: dict[str, Tensor]):
        super().__init__()
        self.config = original.config
        self.dtype = torch.float32
        self.embeddings = getattr(original, "embeddings", None)  # for the number of positions
        self.device_parameter = nn.Parameter(torch.zeros(0), requires_grad=False)  # for the device
        self._session = _session(original, probe)

    def forward(self, **inputs: Tensor) -> Any:
        """Return an object with `last_hidden_state`, [n, L, h]."""
        (states,) = self._session.run(None, {name: tensor.numpy() for name, tensor in inputs.items()})
        return SimpleNamespace(last_hidden_state=torch.from_numpy(states))


class _States(nn.Module):
    """A transformer that returns its last states only."""

    def __init__(self, backbone: nn.Module, names: list[str]):
        super().__init__()
        self.backbone, self.names = backbone, names

    def forward(self, *inputs: Tensor) -> Tensor:
        states: Tensor = self.backbone(**dict(zip(self.names, inputs, strict=True))).last_hidden_state
        return states


def _session(backbone: PreTrainedModel, probe: dict[str, Tensor]) -> Any:
    """Export a transformer, quantize its matrices, and open it on the threads of PyTorch."""
    try:
        import onnxruntime
        import onnxscript  # noqa: F401  (of torch.onnx)
        from onnxruntime.quantization import QuantType, quantize_dynamic
    except ImportError:
        raise option_error(
            "dtype", "int8", "run: pip install 'hybrid_cli[int8]'", code="missing-package", package="onnxruntime"
        ) from None
    if getattr(backbone.config, "_attn_implementation", None) is not None:
        backbone.set_attn_implementation("eager")  # matrix products and a softmax, which ONNX Runtime computes faster
    names = list(probe)
    rows, columns = torch.export.Dim("rows"), torch.export.Dim("columns")
    with tempfile.TemporaryDirectory() as folder, _without_noise():
        whole, small = Path(folder, "whole.onnx"), Path(folder, "int8.onnx")
        try:
            torch.onnx.export(
                _States(backbone, names).eval(),
                tuple(probe.values()),
                whole,
                input_names=names,
                output_names=["states"],
                dynamic_shapes=(({0: rows, 1: columns},) * len(names),),
                dynamo=True,
                verbose=False,
            )
            quantize_dynamic(
                whole,
                small,
                per_channel=True,
                reduce_range=True,
                weight_type=QuantType.QInt8,
                op_types_to_quantize=["MatMul", "Gemm"],
                nodes_to_exclude=_exact(whole),
                extra_options={"MatMulConstBOnly": True},
            )
        except (torch.onnx.errors.OnnxExporterError, RuntimeError, ValueError):
            problem = f"--dtype int8: {type(backbone).__name__} has no form in ONNX; use fp32"
            raise HybridError(problem, code="architecture-unsupported") from None
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # spinning threads slow others down
        return onnxruntime.InferenceSession(small, options, providers=["CPUExecutionProvider"])


def _exact(file: Path) -> list[str]:
    """Return the names of the matrix products that stay in fp32: half of those with fewer outputs than inputs."""
    import onnx

    graph = onnx.load(file, load_external_data=False).graph
    shapes = {weights.name: tuple(weights.dims) for weights in graph.initializer}
    products = [node for node in graph.node if node.op_type == "MatMul" and node.input[1] in shapes]
    narrowing = [node.name for node in products if shapes[node.input[1]][0] > shapes[node.input[1]][1]]
    return narrowing[: -(-len(narrowing) // 2)]


@contextlib.contextmanager
def _without_noise() -> Iterator[None]:
    """Silence the exporter and the quantizer, whose warnings do not concern a user."""
    with warnings.catch_warnings(action="ignore"), contextlib.redirect_stdout(io.StringIO()):
        before = logging.root.manager.disable
        logging.disable(logging.WARNING)
        try:
            yield
        finally:
            logging.disable(before)
