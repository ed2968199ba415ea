"""Training of a dense encoder on examples in memory, as `train-dense` trains on a file.

encoder = train(
    [{"query": "salt in water", "positive": "Sea water contains salt.", "negatives": ["Oxygen is in the blood."]}],
    loss="nll", options=Sampling(max_steps=100),
)
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import torch

from hybrid_cli.encoders.models import pick_dtype
from hybrid_cli.encoders.options import DEVICE, MODEL
from hybrid_cli.encoders.transformer import TransformerEncoder
from hybrid_cli.errors import InputError
from hybrid_cli.storage import SCHEMAS, Kind
from hybrid_cli.training.batches import Examples
from hybrid_cli.training.dense import BatchSources, DenseLearner, load_start
from hybrid_cli.training.loop import Callback, Job, epoch_steps, steps_of
from hybrid_cli.training.loop import train as run
from hybrid_cli.training.losses import objective, usual_temperature
from hybrid_cli.training.options import LOSS, LOSSES, RESIDUALS, TAUGHT, Sampling
from hybrid_cli.training.teachers import stored_scores

Text = str | Mapping[str, Any]  # a text, or a dictionary with `text` and maybe `title`, `docid`, `teacher_score`
_NAME = "the examples"


def train(
    examples: Sequence[Mapping[str, Any]],
    model: str | Path = MODEL,
    *,
    loss: str = LOSS,
    options: Sampling | None = None,
    device: str = DEVICE,
    callbacks: Sequence[Callback] = (),
    **parameters: Any,
) -> TransformerEncoder:
    """Train a dense encoder and return it.

    Args:
        examples: dictionaries with `query`, `positive` and `negatives` (a list): texts, or dictionaries with `text` and
            maybe `title`, `docid` and `teacher_score`. Documents with equal texts are one document.
        model: start model: minilm by default, a folder, or a Hugging Face id.
        loss: name of a loss that needs no scorer and no lexical index: nll by default, `margin`, `bpr`, ...
        options: steps, batch size, negatives of a query, learning rate, seed, ...; those of `Sampling` by default.
        device: auto by default, `cpu`, `cuda`, ...
        callbacks: are called by the training loop; see `Callback`.
        parameters: parameters of the loss, such as `temperature`, `xi` or `distill`.

    Returns:
        The trained encoder.

    Raises:
        InputError: unusable examples, model or loss.

    Example:
        >>> from hybrid_cli.training import train
        >>> from hybrid_cli.training.options import Sampling
        >>> examples = [{"query": "wrap a cell", "positive": "Wrap text in a cell.", "negatives": ["Render a bar."]}]
        >>> trained = train(examples, options=Sampling(max_steps=1, batch_size=1))
        >>> trained.encode_queries(["progress"]).shape
        (1, 384)
    """
    if loss not in LOSSES:
        raise InputError(f"loss {loss}: unknown; choices: {', '.join(LOSSES)}", code="unknown-choice", value=loss)
    if loss in RESIDUALS:
        raise InputError(f"loss {loss}: needs a frozen scorer; use `hybrid train-dense`", code="needs-scorer")
    plan = options or Sampling()
    known = Examples(_NAME, table=examples_table(examples))
    taught = loss in TAUGHT or parameters.get("distill") is not None
    if taught:
        known.check_teacher()
    torch.manual_seed(plan.seed)
    encoder = load_start(str(model), device=device, binary=loss == "bpr")
    unit = encoder.contract.normalize
    values = {"temperature": usual_temperature(unit, loss), **parameters, "unit": unit}
    learner: DenseLearner[TransformerEncoder] = DenseLearner(
        encoder,
        objective(loss, **values),
        pick_dtype(plan.dtype, encoder.device.type),
        plan.chunk_size,
        BatchSources(teacher_scores=stored_scores if taught else None),
    )
    with tempfile.TemporaryDirectory() as work:
        job = Job(
            learner,
            learner.batches(partial(known.batches, plan)),
            steps_of(plan, len(known)),
            lambda folder: {},
            epoch_steps=epoch_steps(plan, len(known)),
        )
        run(job, plan, Path(work), callbacks)
    learner.model.eval()
    return encoder


def _document(given: Any, numbers: dict[tuple[str, str], str], label: str) -> dict[str, Any]:
    """Return the row of a document, whose id is a number of its text if it has none."""
    document = {"text": given} if isinstance(given, str) else given
    if not isinstance(document, Mapping) or not isinstance(document.get("text"), str):
        raise InputError(f"{_NAME}: {label} is no text, and no dictionary with a text", code="not-a-text")
    title, text = str(document.get("title") or ""), document["text"]
    docid = str(document.get("docid", numbers.setdefault((title, text), str(len(numbers)))))
    score = document.get("teacher_score")
    return {"docid": docid, "title": title, "text": text, "lexical_score": None, "teacher_score": score}


def examples_table(examples: Sequence[Mapping[str, Any]]) -> pa.Table:
    """Return examples in memory as the table of a file of training examples; see `train`.

    Raises:
        InputError: an example without query or positive, or something else in place of texts.
    """
    numbers, queries = dict[tuple[str, str], str](), dict[str, str]()
    rows = []
    for number, example in enumerate(examples):
        label = f"example {number}"
        if not isinstance(example, Mapping) or not isinstance(example.get("query"), str):
            raise InputError(f"{_NAME}: {label} has no query, a text", code="no-query")
        negatives = example.get("negatives") or []
        if "positive" not in example or isinstance(negatives, str | Mapping):
            raise InputError(f"{_NAME}: {label} needs `positive`, and a list `negatives`", code="no-documents")
        qid = queries.setdefault(example["query"], str(len(queries)))
        positive = _document(example["positive"], numbers, f"the positive of {label}")
        own = [_document(negative, numbers, f"a negative of {label}") | {"source": "given"} for negative in negatives]
        rows.append({"qid": qid, "query": example["query"], **positive, "negatives": own})
    return pa.Table.from_pylist(rows, SCHEMAS[Kind.EXAMPLES])
