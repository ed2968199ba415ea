"""Training examples in memory, as the table of a file of training examples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from hybrid_cli.errors import InputError
from hybrid_cli.storage import SCHEMAS, Kind

_NAME = "the examples"


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
    """Return examples in memory as the table of a file of training examples; see `hybrid_cli.train`.

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
