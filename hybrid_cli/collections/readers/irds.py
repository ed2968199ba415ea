"""Collections of `ir_datasets` (the optional extra `irds`), by their ids."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
from typing import Any

from hybrid_cli.collections.readers.lines import Place
from hybrid_cli.collections.source import Document, Judgement, Query, Source, checked_split
from hybrid_cli.errors import HybridError, InputError


def source(datasets: Mapping[str, str]) -> Source:
    """The collection of one or several ids over the same documents; what is not there yet, `ir_datasets` downloads.

    Args:
        datasets: split -> id, such as `{"test": "beir/scifact/test"}`.
    """
    loaded = {checked_split(split): _load(name) for split, name in datasets.items()}
    corpora = {_corpus_of(name) for name in datasets.values()}
    if len(corpora) > 1:
        raise InputError(f"{', '.join(datasets.values())}: belong to several corpora ({', '.join(sorted(corpora))})")
    if not all(dataset.has_docs() for dataset in loaded.values()):
        raise InputError(f"{', '.join(datasets.values())}: has no documents; name an id of ir_datasets that has")
    options = {"datasets": dict(datasets), "ir_datasets": version("ir_datasets")}
    return of_datasets(loaded, options)


def of_datasets(loaded: Mapping[str, Any], options: Mapping[str, Any]) -> Source:
    """The same, of datasets that are loaded (split -> dataset of `ir_datasets`); the first gives the documents."""
    names = {
        split: str(getattr(dataset, "dataset_id", lambda split=split: split)()) for split, dataset in loaded.items()
    }

    def documents() -> Iterator[Document]:
        split, dataset = next(iter(loaded.items()))
        for number, document in enumerate(dataset.docs_iter(), 1):
            title, text = _title_and_text(document)
            yield Document(document.doc_id, title, text, Place(names[split], number, "document"))

    def queries() -> Iterator[Query]:
        for split, dataset in loaded.items():
            for number, query in enumerate(dataset.queries_iter() if dataset.has_queries() else (), 1):
                answers = getattr(query, "answers", None)
                place = Place(names[split], number, "query")
                yield Query(split, query.query_id, query.default_text(), list(answers) if answers else None, place)

    def judgements() -> Iterator[Judgement]:
        for split, dataset in loaded.items():
            for number, row in enumerate(dataset.qrels_iter() if dataset.has_qrels() else (), 1):
                place = Place(names[split], number, "judgement")
                yield Judgement(split, row.query_id, row.doc_id, int(row.relevance), place)

    return Source("irds", documents, queries, judgements, options=options)


def by_split(ids: Sequence[str]) -> dict[str, str]:
    """`dev=msmarco-passage/dev/small` and bare ids as split -> id; a bare id's split is its last part, else `test`."""
    datasets: dict[str, str] = {}
    for each in ids:
        split, equals, name = each.partition("=")
        if not equals:
            split, name = each.rsplit("/", 1)[1] if "/" in each else "test", each
        if split in datasets:
            raise InputError(f"{each}: split '{split}' stands there twice; name the splits apart with SPLIT=ID")
        datasets[split] = name
    return datasets


def _load(name: str) -> Any:
    try:
        import ir_datasets
    except ModuleNotFoundError:
        raise HybridError("prepare irds needs ir_datasets: pip install 'hybrid_cli[irds]'") from None
    try:
        return ir_datasets.load(name)
    except KeyError:
        raise InputError(f"{name}: ir_datasets has no such id (its catalogue: https://ir-datasets.com)") from None


def _corpus_of(name: str) -> str:
    """The id that owns the documents: `beir/scifact` of `beir/scifact/test`."""
    import ir_datasets

    return str(ir_datasets.docs_parent_id(name))


def _title_and_text(document: Any) -> tuple[str, str]:
    """The field `title` apart, where there is one; the rest is what ir_datasets takes for the text."""
    title, text = getattr(document, "title", None), document.default_text()
    return (title, text.removeprefix(title).strip()) if isinstance(title, str) else ("", text)
