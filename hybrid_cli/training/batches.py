"""Batches of training examples, in a seeded order with seeded draws of negatives.

Order and draws depend only on (seed, epoch, row), so a resumed run sees the same batches.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from hybrid_cli import console, draws, storage
from hybrid_cli.errors import path_error
from hybrid_cli.storage import Kind
from hybrid_cli.storage.tables import ROWS_PER_GROUP
from hybrid_cli.threads import ThreadPool
from hybrid_cli.training.options import Optimization, Sampling

Item = TypeVar("Item")


@dataclass(frozen=True)
class Group:
    """A query with its positive and the negatives of this step; `noise` seeds other random draws for the example.

    `positives` are never its negatives: its judged documents, and itself where queries are documents. `teacher` are the
    stored scores of a teacher for the positive and the mined negatives, the first documents.
    """

    query: str
    docids: list[str]
    titles: list[str]
    texts: list[str]
    lexical: Sequence[float | None]
    positives: frozenset[str]
    noise: int = 0
    teacher: Sequence[float | None] = ()


class Examples:
    """A file of training examples, read by row group; or a table in memory with the same columns.

    Attributes:
        path: the file; the name of a table in memory, for messages.
        remove_query: queries are documents of the corpus, and no hits of themselves.
    """

    def __init__(self, path: Path | str, remove_query: bool = False, table: pa.Table | None = None):
        source: Any = path
        if table is None:
            storage.check_table(Path(path), Kind.EXAMPLES)
        else:
            schema, stored = storage.SCHEMAS[Kind.EXAMPLES], pa.BufferOutputStream()
            pq.write_table(table.select(schema.names).cast(schema), stored, ROWS_PER_GROUP)  # as in a file
            source = pa.BufferReader(stored.getvalue())
        self._file, self.path, self.remove_query = pq.ParquetFile(source), path, remove_query
        self._sizes = [self._file.metadata.row_group(i).num_rows for i in range(self._file.num_row_groups)]
        if not sum(self._sizes):
            raise path_error(path, "has no training examples", code="no-rows")
        self._positives = self._known_positives()

    def __len__(self) -> int:
        return sum(self._sizes)

    def check_lexical(self) -> None:
        """Refuse examples without lexical scores.

        Raises:
            InputError: the examples were mined without a lexical index.
        """
        if self._file.read(columns=["lexical_score"])["lexical_score"].null_count:
            problem = "has no lexical scores; mine with --index, or pass another --scorer"
            raise path_error(self.path, problem, code="no-scores", option="scorer")

    def check_teacher(self) -> None:
        """Refuse examples of which a document has no score of a teacher.

        Raises:
            InputError: names the query and the document.
        """
        missing, count, documents = None, 0, 0
        for rows in self._teacher_scores():
            lacking = rows.filter(pl.col("teacher_score").is_finite().not_().fill_null(True))
            missing = missing or next(lacking.iter_rows(named=True), None)
            count, documents = count + len(lacking), documents + len(rows)
        advice = "score the examples with `hybrid rerank`, mine with --scores, or pass --teacher"
        if count == documents:
            raise path_error(self.path, f"has no scores of a teacher; {advice}", code="no-scores", option="teacher")
        if missing is not None:
            facts = {"query": missing["qid"], "document": missing["docid"], "count": count}
            problem = f"{count:,} documents have no score of the teacher ({missing['qid']}, {missing['docid']})"
            raise path_error(self.path, f"{problem}; {advice}", code="missing-score", **facts)

    def refuse_scores(self, advice: str, qids: pl.Series | None = None) -> None:
        """Refuse examples that have scores of a teacher already.

        Args:
            advice: fix, for the message.
            qids: queries that may have none; None for all.

        Raises:
            InputError: names the query and the document.
        """
        for rows in self._teacher_scores():
            scored = rows.drop_nulls("teacher_score")
            if qids is not None:
                scored = scored.filter(pl.col("qid").is_in(qids.implode()))
            if len(scored):
                place = f"query {scored['qid'][0]}, document {scored['docid'][0]}"
                raise path_error(self.path, f"{place} has a teacher's score already; {advice}", code="scored-already")

    def _teacher_scores(self) -> Iterator[pl.DataFrame]:
        """Yield qid, docid and teacher_score of all documents, by row group."""
        schema = self._file.schema
        paths = [schema.column(number).path for number in range(len(schema.names))]
        read = [path for path in paths if path.rpartition(".")[2] in ("qid", "docid", "teacher_score")]
        empty = pl.DataFrame(schema={"qid": pl.String, "docid": pl.String, "teacher_score": pl.Float32})
        for part in range(len(self._sizes)):
            rows = pl.DataFrame(pl.from_arrow(self._file.read_row_group(part, columns=read)))
            negatives = rows.select("qid", pl.col("negatives")).explode("negatives", empty_as_null=False)
            both = (empty, rows.drop("negatives"), negatives.unnest("negatives"))
            yield pl.concat(both, how="diagonal").drop_nulls("docid")

    def tables(self) -> Iterator[pl.DataFrame]:
        """Yield all rows, by row group."""
        for part in range(len(self._sizes)):
            yield pl.DataFrame(pl.from_arrow(self._file.read_row_group(part)))

    def docids(self) -> pl.Series:
        """Return the ids of all documents of the examples."""
        table = self._table("docid", "negatives")
        negatives = table["negatives"].explode(empty_as_null=False).struct.field("docid")
        return pl.concat([table["docid"], negatives.drop_nulls()]).unique().sort()

    def positives(self) -> pl.Series:
        """Return the ids of the positives of all queries."""
        return self._table("docid")["docid"].unique()

    @property
    def most_positives(self) -> int:
        """The largest number of positives of a query."""
        return max(map(len, self._positives.values()))

    def queries(self) -> Iterator[pl.DataFrame]:
        """Yield tables with the column `text`: every query once, in file order."""
        yield self._table("query").rename({"query": "text"}).unique(maintain_order=True)

    def asked(self) -> pl.DataFrame:
        """Return qid and text of all queries, each once."""
        return self._table("qid", "query").rename({"query": "text"}).unique()

    def queries_of_positives(self) -> pl.DataFrame:
        """Return docid, title, text and queries (a list) of every positive, in file order."""
        rows = self._table("docid", "title", "text", "query")
        return rows.group_by("docid", maintain_order=True).agg(
            pl.col("title", "text").first(), pl.col("query").unique(maintain_order=True).alias("queries")
        )

    def documents(self) -> Iterator[pl.DataFrame]:
        """Yield tables of docid, title, text: every document once, in file order."""
        seen = pl.Series("docid", [], pl.String)
        columns = ("docid", "title", "text")
        for part in range(len(self._sizes)):
            rows = pl.from_arrow(self._file.read_row_group(part, columns=[*columns, "negatives"]))
            assert isinstance(rows, pl.DataFrame)
            negatives = rows.select(pl.col("negatives").explode(empty_as_null=False)).unnest("negatives")
            table = pl.concat([rows.select(columns), negatives.select(columns)]).drop_nulls("docid")
            table = table.unique("docid", keep="first", maintain_order=True)
            table = table.filter(~pl.col("docid").is_in(seen.implode()))
            seen = pl.concat([seen, table["docid"]])
            yield table

    def _table(self, *columns: str) -> pl.DataFrame:
        table = pl.from_arrow(self._file.read(columns=list(columns)))
        assert isinstance(table, pl.DataFrame)
        return table

    def _known_positives(self) -> dict[str, frozenset[str]]:
        ids = self._file.read(columns=["qid", "docid"])
        known: dict[str, set[str]] = {}
        for qid, docid in zip(ids["qid"].to_pylist(), ids["docid"].to_pylist(), strict=True):
            known.setdefault(qid, {qid} if self.remove_query else set()).add(docid)
        return {qid: frozenset(docids) for qid, docids in known.items()}

    def epoch(self, epoch: int, seed: int, negatives: int, skip: int = 0) -> Iterator[Group]:
        """Yield one epoch in shuffled order (row groups, then rows within each), from the `skip`-th example on."""
        starts = np.concatenate([[0], np.cumsum(self._sizes)]).tolist()
        for part, rows in draws.shuffle_tables(self._sizes, seed, epoch, skip=skip):
            table = self._file.read_row_group(part)
            for row in rows:
                rng = draws.rng(seed, epoch, starts[part] + row)
                yield self._draw(table.slice(row, 1).to_pylist()[0], negatives, rng)

    def _draw(self, row: dict[str, Any], negatives: int, rng: np.random.Generator) -> Group:
        pool = row["negatives"] or []
        if not pool and negatives:
            problem = f"query {row['qid']} has no negatives; mine again"
            raise path_error(self.path, problem, code="no-negatives", id=row["qid"])
        chosen = [pool[i] for i in rng.choice(len(pool), negatives, replace=len(pool) < negatives)]
        documents = [row, *chosen]
        return Group(
            query=row["query"],
            docids=[document["docid"] for document in documents],
            titles=[document["title"] for document in documents],
            texts=[document["text"] for document in documents],
            lexical=[document["lexical_score"] for document in documents],
            positives=self._positives[row["qid"]],
            noise=int(rng.integers(2**62)),
            teacher=[document.get("teacher_score") for document in documents],
        )

    def batches(self, plan: Sampling, done: int = 0) -> Iterator[list[Group]]:
        """Yield the batches of all epochs from the `done`-th on; the last batch of an epoch may be smaller."""
        most = self._table("negatives").select(pl.col("negatives").list.len().max()).item() or 0
        if 0 < most < plan.negatives:
            problem = f"--negatives {plan.negatives}: {self.path} has at most {most} per query; mine more"
            facts = {"option": "negatives", "value": plan.negatives, "path": self.path, "most": most}
            console.warn(problem, code="few-negatives", **facts)
        return batches(len(self), lambda epoch, skip: self.epoch(epoch, plan.seed, plan.negatives, skip), plan, done)

    def dev_rows(self, queries: int) -> pl.DataFrame:
        """Return the examples of the first `queries` queries, in file order."""
        wanted = pl.Series(list(islice(self._positives, queries)), dtype=pl.String)
        return self._table(*self._file.schema_arrow.names).filter(pl.col("qid").is_in(wanted.implode()))


def passes(plan: Optimization) -> int:
    """Return the maximum number of passes over the training data; `max_steps` alone does not limit them."""
    return plan.epochs or (plan.default_epochs if plan.max_steps is None else sys.maxsize)


def batches(
    size: int, groups: Callable[[int, int], Iterator[Item]], plan: Optimization, done: int = 0
) -> Iterator[list[Item]]:
    """Yield the batches of all epochs from the `done`-th on; the last batch of an epoch may be smaller.

    Args:
        size: groups per epoch.
        groups: maps (epoch, number of groups to skip) to the groups.
        plan: batch size and epochs.
        done: number of batches to skip.
    """
    steps = -(-size // plan.batch_size)
    for epoch in range(done // steps, passes(plan)):
        rest = groups(epoch, (done - epoch * steps) * plan.batch_size if epoch == done // steps else 0)
        while batch := list(islice(rest, plan.batch_size)):
            yield batch


def prefetch(items: Iterator[Item], count: int = 2) -> Iterator[Item]:
    """Yield items in order, and compute the next `count` of them in a background thread meanwhile."""
    with ThreadPool(1, "batches") as worker:
        end: Any = object()
        waiting = deque(worker.submit(next, items, end) for _ in range(count))
        try:
            while (item := waiting.popleft().result()) is not end:
                waiting.append(worker.submit(next, items, end))
                yield item
        finally:
            worker.shutdown(wait=False, cancel_futures=True)
