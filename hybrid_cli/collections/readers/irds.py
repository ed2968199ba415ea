"""Datasets of `ir_datasets` (the optional extra `irds`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
from typing import Any

from hybrid_cli.collections.options import Irds
from hybrid_cli.collections.readers.qrels import grade_of
from hybrid_cli.collections.source import Document, Judgment, Location, Query, Source, checked_split
from hybrid_cli.errors import InputError, require_packages


def source(options: Irds) -> Source:
    """Return the collection of datasets over the same documents; `ir_datasets` downloads missing files."""
    ids = by_split(options.ids)
    loaded = {checked_split(split): _load(name) for split, name in ids.items()}
    named = ", ".join(ids.values())
    corpora = {_corpus_of(name) for name in ids.values()}
    if len(corpora) > 1:
        raise InputError(f"{named}: belong to several corpora ({', '.join(sorted(corpora))})", code="other-corpus")
    if not all(dataset.has_docs() for dataset in loaded.values()):
        raise InputError(f"{named}: no documents; use an id of ir_datasets with documents", code="no-documents")
    return of_datasets(loaded, {"datasets": ids, "ir_datasets": version("ir_datasets")})


def of_datasets(loaded: Mapping[str, Any], options: Mapping[str, Any]) -> Source:
    """Return the collection of loaded datasets.

    Args:
        loaded: split -> dataset of `ir_datasets`; the first one provides the documents.
        options: values for the manifest.
    """
    names = {
        split: str(getattr(dataset, "dataset_id", lambda split=split: split)()) for split, dataset in loaded.items()
    }

    def documents() -> Iterator[Document]:
        split, dataset = next(iter(loaded.items()))
        for number, document in enumerate(dataset.docs_iter(), 1):
            title, text = _title_and_text(document)
            yield Document(document.doc_id, title, text, Location(names[split], number, "document"))

    def queries() -> Iterator[Query]:
        for split, dataset in loaded.items():
            for number, query in enumerate(dataset.queries_iter() if dataset.has_queries() else (), 1):
                answers = getattr(query, "answers", None)
                location = Location(names[split], number, "query")
                yield Query(split, query.query_id, query.default_text(), list(answers) if answers else None, location)

    def judgments() -> Iterator[Judgment]:
        for split, dataset in loaded.items():
            for number, row in enumerate(dataset.qrels_iter() if dataset.has_qrels() else (), 1):
                location = Location(names[split], number, "judgment")
                yield Judgment(split, row.query_id, row.doc_id, grade_of(str(row.relevance), location), location)

    return Source("irds", documents, queries, judgments, options=options)


def by_split(ids: Sequence[str]) -> dict[str, str]:
    """Return ids by split: `dev=msmarco-passage/dev/small` names it; else it is the last part of the id, or `test`."""
    datasets: dict[str, str] = {}
    for dataset in ids:
        split, equals, name = dataset.partition("=")
        if not equals:
            split, name = dataset.rsplit("/", 1)[1] if "/" in dataset else "test", dataset
        if split in datasets:
            problem = f"{dataset}: split '{split}' is given twice; write SPLIT=ID with another name"
            raise InputError(problem, code="duplicate-split", split=split)
        datasets[split] = name
    return datasets


def _load(name: str) -> Any:
    with require_packages():
        import ir_datasets
    try:
        return ir_datasets.load(name)
    except KeyError:
        problem = f"{name}: unknown to ir_datasets; see https://ir-datasets.com for its ids"
        raise InputError(problem, code="unknown-choice", value=name) from None


def _corpus_of(name: str) -> str:
    """Return the id of the documents: `beir/scifact` for `beir/scifact/test`."""
    import ir_datasets

    return str(ir_datasets.docs_parent_id(name))


def _title_and_text(document: Any) -> tuple[str, str]:
    """Separate the field `title`, if there is one, from the default text."""
    title, text = getattr(document, "title", None), document.default_text()
    return (title, text.removeprefix(title).strip()) if isinstance(title, str) else ("", text)
