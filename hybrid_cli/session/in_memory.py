"""Training in memory: the trainings of `train-dense`, `distill-lite` and `train-lambda`, without files.

bm25 = BM25().index(data := open_collection("data/mine"))
encoder = train("minilm", data, loss="residual-margin", scorer=bm25, dev="dev", steps=200)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from hybrid_cli.artifacts.examples import open_examples
from hybrid_cli.artifacts.opening import open_bm25
from hybrid_cli.collections import collection as collections
from hybrid_cli.collections.collection import Collection
from hybrid_cli.commands import DistillLite, Label, MineNegatives, TrainDense, TrainLambda
from hybrid_cli.encoders.contract import Encoder
from hybrid_cli.encoders.options import MODEL
from hybrid_cli.errors import InputError, option_error
from hybrid_cli.evaluation.measures import qrels_table
from hybrid_cli.lexical.index import LexicalIndex
from hybrid_cli.lexical.options import IDENTIFIERS
from hybrid_cli.runs.given import frame_of, queries_table
from hybrid_cli.runs.index import Index
from hybrid_cli.session import Session, dense, imitation
from hybrid_cli.storage import SCHEMAS, Kind
from hybrid_cli.training.batches import Examples
from hybrid_cli.training.dev_set import DevExamples
from hybrid_cli.training.labels import LabelsInMemory, given_queries, matrix_teacher, sentence_queries
from hybrid_cli.training.mining import MinedCollection, Miner
from hybrid_cli.training.options import BM25, RANDOM, SCORER_WEIGHT

METHODS: dict[str, Any] = {kind.command: kind for kind in (TrainDense, DistillLite, TrainLambda)}
_OF_FILES = {"output", "overwrite", "limits", "track", "keep_epochs", "training_examples", "collection", "model"}
_OBJECT = "an object"  # value of an option in whose place there is an object
_TAKES: dict[str, Any] = {"index": LexicalIndex, "scorer": Index, "teacher": ()}  # classes of objects, or encoders
_TRAIN = "train"  # split with the examples, and with the queries whose lengths cropped sentences get


def train(model: str | Path, data: Any, method: str, options: Mapping[str, Any]) -> Encoder:
    """Train an encoder; see `hybrid_cli.train`."""
    if method not in METHODS:
        raise InputError(f"method {method}: choices: {', '.join(METHODS)}", code="unknown-choice", value=method)
    if not isinstance(model, str | Path):
        raise option_error("model", None, "is no name and no path; pass the model, then the data", code="other-type")
    kind = METHODS[method]
    source = Label if kind is TrainLambda else MineNegatives
    of_source = source.declared().keys() - {*kind.declared(), "index"} if isinstance(data, Collection) else set[str]()
    values = kind.by_field(options, {*of_source, "index"})
    if taken := sorted(values.keys() & _OF_FILES):
        raise option_error(taken[0], None, "is of the command; omit it", code="option-does-not-apply")
    more = {name: values.pop(name) for name in of_source if name in values}
    more |= {"seed": values["seed"]} if isinstance(data, Collection) and "seed" in values else {}
    given = _objects(values)
    lexical, dev = given.get("index"), values.get("dev")
    values |= {} if model == MODEL else {"model": str(model)}
    if kind is TrainLambda:
        values["collection"] = data.path if isinstance(data, Collection) else _OBJECT
        values |= {} if values.get("encoder") == "static" else {"labels": values.get("labels", _OBJECT)}
    else:
        values["training_examples"] = _OBJECT
        is_split = isinstance(data, Collection) and dev in data.splits
        if dev is not None and (is_split or not (isinstance(dev, str | Path) and Path(dev).exists())):
            values["dev"] = _OBJECT
        if values.get("scorer") == BM25 and lexical is not None and not isinstance(data, Collection | str | Path):
            given["scorer"], values["scorer"] = lexical, _OBJECT
            values.setdefault("scorer_weight", SCORER_WEIGHT)
    settings = _settings(kind, values, "index" in options and "index" in kind.declared(), lexical)
    if values.get("labels") == _OBJECT:
        given["labels"] = _labels(data, lexical, more)
    elif kind is not TrainLambda:
        given["training_examples"] = _examples(data, lexical, more)
        given |= {"dev": _dev_examples(data, lexical, dev)} if values.get("dev") == _OBJECT else {}
    return _fitted(settings, Session(settings, given=given), data)


def _objects(values: dict[str, Any]) -> dict[str, Any]:
    """Take the objects out of the values of options; a scorer of BM25 is an index, too."""
    callbacks = values.pop("callback", ())
    callbacks = callbacks if isinstance(callbacks, list | tuple) else [callbacks]
    values["callback"] = [name for name in callbacks if isinstance(name, str)]
    given: dict[str, Any] = {"callback": [one for one in callbacks if not isinstance(one, str)]}
    for role, kinds in _TAKES.items():
        value = values.get(role)
        value = open_bm25(Path(value)) if role == "index" and isinstance(value, str | Path) else value
        if value is None or isinstance(value, str | Path):
            continue
        attributes = {"index": (), "teacher": ("encode_queries", "input")}.get(role, ("encode_queries",))
        if not isinstance(value, kinds) and not any(hasattr(value, name) for name in attributes):
            raise option_error(role, type(value).__name__, "is of another kind; see help(train)", code="other-type")
        if role == "scorer" and isinstance(value, LexicalIndex):
            given.setdefault("index", value)
            values[role] = BM25
        else:
            given[role], values[role] = value, _OBJECT
    values.pop("index", None)
    return given


def _settings(kind: Any, values: dict[str, Any], explicit: bool, lexical: LexicalIndex | None) -> Any:
    """Return the settings, with the index where it applies if it is given, and where it is needed in any case."""
    if kind is DistillLite and "teacher" not in values:
        raise option_error("teacher", None, f"{kind.command} needs an encoder", code="missing-option")
    values["output"], indexed = _OBJECT, {**values, "index": _OBJECT, "output": _OBJECT}
    try:
        return kind(**indexed if explicit else values)
    except InputError as error:
        if lexical is None or error.fields.get("option") != "index":
            raise
        return kind(**values if explicit else indexed)


def _fitted(settings: TrainDense | DistillLite | TrainLambda, session: Session, data: Any) -> Encoder:
    if isinstance(settings, DistillLite):
        return dense.distill(settings, session)
    if isinstance(settings, TrainDense):
        refreshed = settings.refresh_negatives is not None
        return dense.fit(settings, session, _collection(data, "refresh_negatives").path if refreshed else None)
    if settings.encoder == "static":
        return imitation.fit_static(settings, session, ("title", "text"))
    return imitation.fit_transformer(settings, session)


def _collection(data: Any, option: str) -> Collection:
    if not isinstance(data, Collection):
        raise option_error(option, None, "needs data of open_collection", code="needs-collection")
    return data


def _examples(data: Any, lexical: LexicalIndex | None, options: Mapping[str, Any]) -> Examples:
    if isinstance(data, Collection):
        return _mined(data, lexical, {"split": _TRAIN if _TRAIN in data.splits else None, **options})
    if isinstance(data, str | Path):
        return open_examples(Path(data))
    data = frame_of(data, "the examples").to_dicts() if hasattr(data, "columns") else data
    if not isinstance(data, Sequence):
        problem = f"train: the data are {type(data).__name__}; pass a collection, a list of examples, or their path"
        raise InputError(problem, code="other-type")
    return Examples("the examples", table=examples_table(data))


def _mined(
    data: Collection, lexical: LexicalIndex | None, options: Mapping[str, Any], judged: Sequence[Any] | None = None
) -> Examples:
    """Mine the examples of a split, or of queries and judgments, by BM25 if there is an index, else at random."""
    defaults: dict[str, Any] = {"sources": [RANDOM]} if lexical is None else {"index": _OBJECT}
    settings = MineNegatives(data.path, output=_OBJECT, **{**defaults, **options})
    settings = settings.with_depth(collections.document_count(data.path))
    if judged is None:
        queries, qrels = data.queries(settings.split), data.qrels(settings.split)
        own = collections.queries_in_corpus(data.path, settings.split) > 0
    else:
        queries, qrels, own = queries_table(judged[0]), qrels_table(judged[1]), False
    miner = Miner(**settings.mining(), queries=queries, open_index=None if lexical is None else lambda: lexical)
    mined = MinedCollection.of(miner, qrels, settings.positives == "first", own)
    tables = pa.concat_tables(miner.rows(mined.examples, mined.chosen))
    return Examples(f"the examples of {data.path}", own, tables)


def _dev_examples(data: Any, lexical: LexicalIndex | None, dev: Any) -> DevExamples:
    """Return the examples of a split of a collection, or of queries and judgments."""
    data = _collection(data, "dev")
    if not (isinstance(dev, str) or (isinstance(dev, tuple | list) and len(dev) == 2)):
        raise option_error("dev", type(dev).__name__, "pass a split, or (queries, judgments)", code="other-type")
    examples = _mined(data, lexical, {"split": dev}) if isinstance(dev, str) else _mined(data, lexical, {}, dev)
    return DevExamples(examples, data.path, lexical)


def _labels(data: Any, lexical: LexicalIndex | None, options: Mapping[str, Any]) -> LabelsInMemory:
    """Label queries with the hits of BM25."""
    data = _collection(data, "method")
    if lexical is None:
        raise option_error("index", None, "train-lambda needs the index of the collection", code="missing-option")
    settings = Label(data.path, index=_OBJECT, output=_OBJECT, **options)
    if settings.split is not None or settings.queries is not None:
        file = collections.queries_path(settings.queries or data.path, settings.split)
        queries = given_queries(file, settings)
    else:
        cropped = settings.queries_from == "cropped" and _TRAIN in data.splits
        questions = collections.queries_path(data.path, _TRAIN) if cropped else None
        language = lexical.language.partition(IDENTIFIERS)[0]
        queries = sentence_queries(collections.corpus_path(data.path), questions, language, settings)
    return LabelsInMemory(queries, matrix_teacher(lexical, settings.depth), settings.depth)


def _document(given: Any, numbers: dict[tuple[str, str], str], label: str) -> dict[str, Any]:
    """Return the row of a document, whose id is a number of its text if it has none."""
    document = {"text": given} if isinstance(given, str) else given
    if not isinstance(document, Mapping) or not isinstance(document.get("text"), str):
        raise InputError(f"the examples: {label} is no text, and no dictionary with a text", code="not-a-text")
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
            raise InputError(f"the examples: {label} has no query, a text", code="no-query")
        negatives = example.get("negatives") or []
        if "positive" not in example or isinstance(negatives, str | Mapping):
            raise InputError(f"the examples: {label} needs `positive`, and a list `negatives`", code="no-documents")
        qid = queries.setdefault(example["query"], str(len(queries)))
        positive = _document(example["positive"], numbers, f"the positive of {label}")
        own = [_document(negative, numbers, f"a negative of {label}") | {"source": "given"} for negative in negatives]
        rows.append({"qid": qid, "query": example["query"], **positive, "negatives": own})
    return pa.Table.from_pylist(rows, SCHEMAS[Kind.EXAMPLES])
