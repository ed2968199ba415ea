"""DPR's files: `psgs_w100.tsv`, questions with answers, and the training JSON."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from hybrid_cli.collections.options import Dpr
from hybrid_cli.collections.readers.tevatron import passages
from hybrid_cli.collections.readers.text_files import (
    QUERY_FIELDS,
    answer_list,
    answers_of,
    checked_id,
    columns,
    id_of,
    text_of,
)
from hybrid_cli.collections.source import Document, Judgment, Location, Query, Source, roles
from hybrid_cli.errors import InputError
from hybrid_cli.inputs.rows import InputFile

_PASSAGE_ID = ("passage_id", "psg_id")


def source(options: Dpr) -> Source:
    """Return the collection of `psgs_w100.tsv` (id, text, title, with a header) with questions.

    The files contain no question ids: questions are numbered from 0 in each split. The positive passages of a training
    file become judgments of relevance 1, in its order. `mine-negatives --sources given:FILE` draws from its negatives.
    """
    if common := sorted(set(options.queries) & set(options.training)):
        problem = f"split {common[0]}: has --queries and --training; use two names, or omit one of them"
        raise InputError(problem, code="duplicate-split", split=common[0])

    def documents() -> Iterator[Document]:
        for number, (location, fields) in enumerate(columns(options.corpus, 3, "id, text and title", quoted=True)):
            if number == 0 and fields[:2] == ["id", "text"]:
                continue
            yield Document(checked_id(fields[0], location), fields[2], fields[1], location)

    def queries() -> Iterator[Query]:
        for split, path in options.queries.items():
            for number, (location, text, answers) in enumerate(_questions(path)):
                yield Query(split, str(number), text, answers, location)
        for split, path in options.training.items():
            for number, (location, record) in enumerate(InputFile.of(path).records()):
                yield Query(
                    split, str(number), text_of(record, QUERY_FIELDS, location), answers_of(record, location), location
                )

    def judgments() -> Iterator[Judgment]:
        for split, path in options.training.items():
            without = 0
            for number, (location, record) in enumerate(InputFile.of(path).records()):
                positives = _positives(record, location)
                without += not positives
                for docid in positives:
                    yield Judgment(split, str(number), docid, 1, location)
            result.facts.setdefault("questions_without_positive", {})[split] = without

    def contexts() -> Iterator[str]:
        """Yield the hard negatives of all questions, best-ranked first."""
        lists = [
            [id_of(passage, _PASSAGE_ID, location) for passage in passages(record, "hard_negative_ctxs", location)]
            for path in options.training.values()
            for location, record in InputFile.of(path).records()
        ]
        for rank in range(max(map(len, lists), default=0)):
            yield from (docids[rank] for docids in lists if rank < len(docids))

    files = {"corpus": options.corpus, **roles("questions", options.queries), **roles("training", options.training)}
    result = Source("dpr", documents, queries, judgments, files)
    return replace(result, preferred=contexts) if options.sample_from == "contexts" else result


def _questions(path: Path) -> Iterator[tuple[Location, str, list[str] | None]]:
    file = InputFile.of(path)
    if file.form == "json":
        for location, record in file.records():
            yield location, text_of(record, QUERY_FIELDS, location), answers_of(record, location)
    else:
        for location, fields in columns(path, 2, "question and list of answers", quoted=True):
            yield location, fields[0], answer_list(fields[1], location)


def _positives(record: dict[str, Any], location: Location) -> list[str]:
    contexts = passages(record, "positive_ctxs", location)
    return list(dict.fromkeys(id_of(context, _PASSAGE_ID, location) for context in contexts))
