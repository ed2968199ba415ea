"""Teacher labels: the top hits of many queries, from a sparse ranker, in shards on disk (SPAR, section 4.1).

`train-lambda` reads them as batches, and validates on a small pool.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Lock
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from hybrid_cli import console, draws, runs, storage
from hybrid_cli.collections import collection as collections
from hybrid_cli.collections import sentences
from hybrid_cli.collections.sentences import Sentences
from hybrid_cli.encoders.contract import Encoder
from hybrid_cli.errors import option_error, path_error
from hybrid_cli.evaluation.complementarity import rbo
from hybrid_cli.lexical.index import LexicalIndex
from hybrid_cli.runs import Run
from hybrid_cli.runs.index import Index
from hybrid_cli.storage import SCHEMAS, Kind, Record, layout
from hybrid_cli.training.batches import Group, batches
from hybrid_cli.training.options import Imitation, Labeling

QUERIES_IN_A_SHARD = 8_192  # bounds the memory, together with the hits
HITS_IN_A_SHARD = 1 << 22

Longs: TypeAlias = npt.NDArray[np.int64]
# Number of hits of each query, [Q]; docids and scores of all hits, query after query, best first.
Hits: TypeAlias = tuple[npt.NDArray[np.integer], pl.Series, npt.NDArray[np.float32]]
Teacher: TypeAlias = Callable[[pl.DataFrame], Hits]  # of queries: qid, text


# -------------------------------------------------------------------------------------------------------------- on disk


class Labels:
    """Labels that `hybrid label` wrote, one shard in memory at a time.

    Args:
        folder: output of `hybrid label`.
        depth: maximum hits of a query.

    Attributes:
        shards: number of files.

    Raises:
        InputError: not teacher labels, or a shard is missing or damaged.
    """

    def __init__(self, folder: Path, depth: int):
        self.folder, self.depth = folder, depth
        self.shards = int(storage.read_record(Record, folder, Kind.LABELS).counts["shards"])
        for number in range(self.shards):
            storage.check_table(storage.validate_parquet(shard_path(folder, number)), Kind.LABELS)

    def __len__(self) -> int:
        """Return the number of labelled queries."""
        return sum(storage.row_count(shard_path(self.folder, number)) for number in range(self.shards))

    def read(self, shard: int) -> pl.DataFrame:
        """Return one shard: qid, text, source (null for given queries), docids and scores (lists, best first)."""
        return pl.read_parquet(storage.validate_parquet(shard_path(self.folder, shard)), glob=False)

    def tables(self) -> Iterator[pl.DataFrame]:
        """Yield the shards in order; see `read`."""
        return map(self.read, range(self.shards))


class LabelsInMemory(Labels):
    """Labels of queries, as `hybrid label` writes them.

    Args:
        queries: the queries to label.
        teacher: ranks their hits.
        depth: maximum hits of a query.
    """

    def __init__(self, queries: Queries, teacher: Teacher, depth: int):
        self.folder, self.depth = Path("the labels"), depth
        shards = storage.regroup((block.to_arrow() for block in queries.blocks), shard_size(depth))
        blocks = [pl.DataFrame(pl.from_arrow(shard)) for shard in shards]
        self._shards = [pl.DataFrame(pl.from_arrow(labelled(block, teacher(block)))) for block in blocks]
        self.shards = len(self._shards)

    def __len__(self) -> int:
        return sum(map(len, self._shards))

    def read(self, shard: int) -> pl.DataFrame:
        """See `Labels`."""
        return self._shards[shard]


def shard_size(depth: int) -> int:
    """Return the number of queries in a shard."""
    return min(QUERIES_IN_A_SHARD, max(1, HITS_IN_A_SHARD // depth))


def shard_path(folder: Path, number: int) -> Path:
    """Return the path of shard `number`."""
    return folder / layout.LABELS / layout.part(number)


def write_shard(path: Path, table: pa.Table, record: Record, **counts: int) -> None:
    """Write one shard atomically; its record stores the counts."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with storage.replacing(path) as scratch:
        storage.write_parquet(scratch, [table], SCHEMAS[Kind.LABELS], replace(record, counts=counts))


def labelled(queries: pl.DataFrame, hits: Hits) -> pa.Table:
    """Return rows of teacher labels: queries with at least one hit, and lists of their hits."""
    counts, docids, scores = hits
    ends = np.concatenate(([0], np.cumsum(counts[counts > 0]))).astype(np.int32)
    columns = queries.filter(pl.Series(counts > 0)).select("qid", "text", "source").to_arrow()
    lists = (docids.to_arrow().cast(pa.string()), pa.array(scores, pa.float32()))
    for name, values in zip(("docids", "scores"), lists, strict=True):
        columns = columns.append_column(name, pa.ListArray.from_arrays(ends, values))
    return columns.cast(SCHEMAS[Kind.LABELS])


# -------------------------------------------------------------------------------------------------------------- queries


@dataclass(frozen=True)
class Queries:
    """Queries to label.

    Attributes:
        blocks: tables of qid, text, source (docid of a sentence), row (corpus row of that document).
        total: number of queries in all blocks.
        counts: numbers of queries by origin, for the manifest.
    """

    blocks: Iterable[pl.DataFrame]
    total: int
    counts: dict[str, int]


def given_queries(file: Path, options: Labeling, run: Run | None = None) -> Queries:
    """Return the queries of a file, or `max_queries` of them, in the order of the file or of a run.

    Args:
        file: the queries.
        options: number of queries, and the seed.
        run: run whose hits are read in its order; a query without hits follows the query before it in the file.
    """
    nothing = {"source": pl.lit(None, pl.String), "row": pl.lit(None, pl.Int64)}
    table = collections.read_queries(file).select("qid", "text").with_columns(**nothing)
    queries = _drawn([table], len(table), {"available": len(table)}, options)
    if run is None:
        return queries
    placed = pl.concat(queries.blocks).join(
        run.queries.select("qid", position="begin"), on="qid", how="left", maintain_order="left"
    )
    placed = placed.with_columns(pl.col("position").forward_fill()).sort("position", maintain_order=True)
    return replace(queries, blocks=[placed.drop("position")])


def sentence_queries(corpus: Path, questions: Path | None, language: str, options: Labeling) -> Queries:
    """Return sentences of a corpus as queries, or `max_queries` of them.

    Args:
        corpus: the corpus file.
        questions: queries whose lengths cropped sentences get.
        language: ISO 639-1 code.
        options: selection and number of sentences, and the seed.

    Raises:
        InputError: the corpus has no sentence of sufficient length.
    """
    lengths: Sequence[int] = sentences.QUESTION_WORDS
    if questions is not None:
        lengths = sentences.word_counts(collections.read_queries(questions)["text"]) or lengths
    source = Sentences(corpus, options.queries_from, options.seed, lengths=lengths, language=language)
    counts = source.count()
    if not counts["queries"]:
        raise path_error(corpus, f"has no sentence of {sentences.LEAST_WORDS} words or more", code="no-text")
    return _drawn(source.blocks(), counts["queries"], {"available": counts.pop("queries"), **counts}, options)


def _drawn(blocks: Iterable[pl.DataFrame], total: int, counts: dict[str, int], options: Labeling) -> Queries:
    wanted = min(total, options.max_queries or total)
    return Queries(draws.stream_sample(blocks, total, wanted, options.seed), wanted, counts)


# ------------------------------------------------------------------------------------------------------------- teachers


def matrix_teacher(index: LexicalIndex, depth: int) -> Teacher:
    """Return BM25, computed with the impact matrix of a lexical index of the corpus, to `depth` hits per query."""

    def hits_of(queries: pl.DataFrame) -> Hits:
        hits = index.hits(index.prepare(queries), depth)
        return hits.counts, index.docids.gather(hits.rows), hits.scores

    return hits_of


def retriever_teacher(retriever: Index, depth: int) -> Teacher:
    """Return the fused ranking of a retriever: open indexes of the corpus, and their fusion, as one index."""
    lock = Lock()  # encoders are used by one thread at a time

    def hits_of(queries: pl.DataFrame) -> Hits:
        with lock:
            blocks = retriever.runs(queries.select("qid", "text"), depth)
            return _of_run(pl.concat([runs.empty(), *(block.select(runs.SCHEMA.names()) for block in blocks)]), queries)

    return hits_of


def run_teacher(path: Path, opened: Run, queries: pl.DataFrame, corpus: Path, depth: int) -> Teacher:
    """Return the ranking of a run, such as that of a learned sparse model; memory holds a block of hits and their ids.

    Queries in another order than that of the run hold its hits in memory.

    Args:
        path: the run.
        opened: the same, opened; queries that are not to be labeled are ignored.
        queries: qid, text of the queries to label.
        corpus: the corpus file.
        depth: hits per query.

    Raises:
        InputError: not a run, a document that is not in the corpus, or a run of other queries.
    """
    run, lock = opened.of_queries(queries["qid"]), Lock()  # the run is read by one thread at a time
    if not run.hits:
        raise path_error(path, "has no hits for these queries; pass a run of them", code="other-queries")
    _check_documents(run, corpus, path)
    first = pl.int_range(pl.len()).over("qid") < depth

    def hits_of(queries: pl.DataFrame) -> Hits:
        with lock:
            blocks = run.in_order(queries["qid"]).blocks()
            return _of_run(pl.concat([runs.empty(), *(block.filter(first) for block in blocks)]), queries)

    return hits_of


def _of_run(run: pl.DataFrame, queries: pl.DataFrame) -> Hits:
    """Return the hits in a run (qid, docid, score), which are in the order of the queries."""
    lengths = run.group_by("qid").len()
    counts = queries.select("qid").join(lengths, on="qid", how="left", maintain_order="left")["len"].fill_null(0)
    return counts.to_numpy(), run["docid"], run["score"].to_numpy()


def _distinct(blocks: Iterable[pl.Series]) -> pl.Series:
    """Return the distinct ids of some blocks, in order; memory holds at most twice as many, and a block."""
    known, new = pl.Series("docid", [], pl.String), list[pl.Series]()
    for block in blocks:
        new.append(block.unique(maintain_order=True))
        if sum(map(len, new)) > len(known):  # rare, so that the time is linear
            known, new = pl.concat([known, *new]).unique(maintain_order=True), []
    return pl.concat([known, *new]).unique(maintain_order=True)


def _check_documents(opened: Run, corpus: Path, run: Path) -> None:
    """Check that a corpus has the documents of a run, each once.

    Raises:
        InputError: the corpus lacks a document, or repeats an id.
    """
    wanted = _distinct(block["docid"] for block in opened.blocks())
    mine = collections.scan(corpus).filter(pl.col("docid").is_in(wanted.implode())).select("docid")
    with storage.reading(corpus):
        known = mine.collect(engine="streaming")["docid"]
    if len(known) > len(wanted):
        collections.docids(corpus)  # names the repeated id
    unknown = wanted.filter(~wanted.is_in(known.implode()))
    if len(unknown):
        names = ", ".join(unknown.head(3)) + (", ..." if len(unknown) > 3 else "")
        problem = f"{console.counted(document=len(unknown))} not in {corpus} ({names}); pass a run of this corpus"
        raise path_error(run, problem, code="other-corpus", id=unknown[0], count=len(unknown), corpus=corpus)


@dataclass(frozen=True)
class SurrogatePool:
    """A small pool in place of the corpus: the teacher's top passage and one hard negative of each dev query (SPAR,
    section 4.1). N queries have 2N passages.

    Attributes:
        queries: qid, text.
        documents: docid, title, text.
        own: [N] position of each query's top passage among the documents.
        teacher: the teacher's ranking of the documents of the pool, as a run.
    """

    queries: pl.DataFrame
    documents: pl.DataFrame
    own: Sequence[int]
    teacher: pl.DataFrame

    @classmethod
    def of(
        cls,
        queries: pl.DataFrame,
        hits: pl.DataFrame,
        texts: Callable[[pl.Series], pl.DataFrame],
        score: Callable[[pl.DataFrame], pl.Series],
        negatives: int = Imitation.negatives,
        seed: int = Imitation.seed,
    ) -> SurrogatePool:
        """Draw the pool.

        Args:
            queries: qid, text.
            hits: the teacher's run of these queries; the negative is one of the last `negatives` hits.
            texts: maps docids to docid, title, text.
            score: maps pairs (qid, docid) to the teacher's scores.
            negatives: number of bottom-ranked hits.
            seed: random seed.

        Raises:
            InputError: no query has two hits.
        """
        lists = hits.sort("qid", "rank").group_by("qid", maintain_order=True).agg("docid")
        lists = queries.join(lists, on="qid", maintain_order="left").filter(pl.col("docid").list.len() > 1)
        if not len(lists):
            raise option_error("dev", None, "no query has two hits of the teacher; use another split", code="no-hits")
        rng = draws.rng(seed)
        drawn = []
        for docids in lists["docid"].to_list():
            worst = docids[1:][-negatives:]
            drawn.append((docids[0], worst[rng.integers(len(worst))]))
        pool = pl.Series("docid", [docid for pair in drawn for docid in pair]).unique(maintain_order=True)
        documents = pool.to_frame().join(texts(pool), on="docid", maintain_order="left")
        row_of = {docid: row for row, docid in enumerate(pool)}
        asked = lists.select("qid", "text")
        ranked = asked.select("qid").join(pool.to_frame(), how="cross")
        ranked = ranked.with_columns(score(ranked).alias("score")).filter(pl.col("score") > 0)
        return cls(asked, documents, [row_of[best] for best, _ in drawn], runs.ranked(ranked, len(pool)))

    def measure(self, encoder: Encoder) -> dict[str, float]:
        """Return `dev_MRR` of each query's own passage in the pool, with ties counted against it, and `dev_RBO`, the
        overlap with the teacher's ranking.
        """
        queries = encoder.encode_queries(self.queries["text"].to_list())
        documents = encoder.encode_documents(self.documents["title"].to_list(), self.documents["text"].to_list())
        scores = queries @ documents.T
        own = scores[np.arange(len(scores)), self.own]
        ranks = (scores >= own[:, None]).sum(1)
        hits = pl.DataFrame(
            {
                "qid": self.queries["qid"].gather(np.repeat(np.arange(len(scores)), scores.shape[1])),
                "docid": pl.concat([self.documents["docid"]] * len(scores)),
                "score": scores.ravel(),
            }
        )
        overlap = rbo(runs.ranked(hits, scores.shape[1]), self.teacher)
        agreement = self.queries.join(overlap, on="qid", how="left", maintain_order="left")["value"].fill_null(0.0)
        return {"dev_MRR": float((1 / ranks).mean()), "dev_RBO": float(agreement.to_numpy().mean())}


PIECES = 8  # of a shard, which is read as often in an epoch


class LabeledQueries:
    """Queries with the passages that a teacher ranked for them.

    Each step draws one of a query's first `positives` hits and, with the loss `contrastive`, one of the last
    `negatives` hits; with `listwise`, `list_passages` of all hits. Queries with fewer hits than
    `positives` and, with `contrastive`, `negatives` together are dropped.

    Attributes:
        dropped: number of dropped queries.
        texts: docid, title, text of the corpus, memory-mapped.

    Raises:
        InputError: the labels belong to another corpus, or all lists are too short.
    """

    def __init__(self, labels: Labels, corpus: Path, plan: Imitation, work: Path):
        self._labels, self._plan = labels, plan
        bounds = ["positives", *(["negatives"] if plan.loss == "contrastive" else [])]
        least, depth = sum(getattr(plan, name) for name in bounds), self._labels.depth
        if least > depth:
            reason = f"its lists have at most {depth} hits, fewer than {least}; lower --{' or --'.join(bounds)}"
            raise path_error(labels.folder, reason, code="out-of-range", value=least, limit=depth)
        from hybrid_cli.training.teachers import mapped_texts  # imports PyTorch, which `label` does not need

        self.texts = mapped_texts(work, (pl.DataFrame(pl.from_arrow(part)) for part in collections.documents(corpus)))
        self._rows = self.texts.select("docid").with_row_index("row")
        self._kept = [table.select(pl.col("docids").list.len() >= least).to_series() for table in self._labels.tables()]
        self._sizes = [int(kept.sum()) for kept in self._kept]
        self.dropped = sum(len(kept) for kept in self._kept) - sum(self._sizes)
        if not sum(self._sizes):
            raise path_error(labels.folder, f"no query has {least} hits; pass a smaller --positives", code="no-hits")
        self._known(0)  # checks that the labels belong to this corpus

    def __len__(self) -> int:
        return sum(self._sizes)

    def batches(self, done: int = 0) -> Iterator[list[Group]]:
        """Yield the batches of all epochs from the `done`-th on; the last batch of an epoch may be smaller."""
        return batches(len(self), self._epoch, self._plan, done)

    def _epoch(self, epoch: int, skip: int) -> Iterator[Group]:
        """Yield one epoch in shuffled order: pieces of shards, so that a part of an epoch sees the whole collection."""
        seed = self._plan.seed
        for shard, positions in draws.shuffle_tables(self._sizes, seed, epoch, skip=skip, pieces=PIECES):
            texts, rows, scores = self._known(shard)
            for position in positions:
                rng = draws.rng(seed, epoch, shard, position)
                yield self._draw(texts[position], rows[position], scores[position], rng)

    def _known(self, shard: int) -> tuple[list[str], list[np.ndarray], list[np.ndarray]]:
        """Return text, corpus rows of the hits, and their scores, for each kept query of a shard."""
        table = self._labels.read(shard).filter(self._kept[shard])
        hits = table.select("docids").with_row_index("query").explode("docids").rename({"docids": "docid"})
        rows = hits.join(self._rows, on="docid", how="left", maintain_order="left")["row"]
        if rows.null_count():
            lost = hits["docid"].filter(rows.is_null())[0]
            raise path_error(self._labels.folder, f"document {lost} is not in the corpus", code="other-corpus", id=lost)
        bounds = np.cumsum(table["docids"].list.len().to_numpy())[:-1]
        scores = table["scores"].explode().to_numpy()
        return table["text"].to_list(), np.split(rows.to_numpy(), bounds), np.split(scores, bounds)

    def _draw(self, query: str, rows: np.ndarray, scores: np.ndarray, rng: np.random.Generator) -> Group:
        plan, size = self._plan, len(rows)
        listwise = plan.loss == "listwise"
        worst, negatives = (size, plan.list_passages) if listwise else (plan.negatives, 1)
        first = rng.integers(plan.positives)
        others = size - worst + rng.choice(worst, negatives, replace=worst < negatives)
        positions = [int(first), *others.tolist()]
        documents = self.texts[rows[positions].tolist()]
        return Group(
            query=query,
            docids=documents["docid"].to_list(),
            titles=documents["title"].to_list(),
            texts=documents["text"].to_list(),
            lexical=scores[positions].tolist(),
            positives=frozenset(self.texts["docid"].gather(rows[: plan.positives]).to_list()),
            noise=int(rng.integers(2**62)),
        )
