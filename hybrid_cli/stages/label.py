"""`label`: what a sparse ranker finds for many queries, for Lambda to learn from."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

import polars as pl
import pyarrow as pa

from hybrid_cli import artifacts, console
from hybrid_cli.artifacts import Kind, Output
from hybrid_cli.collections import collection as collections
from hybrid_cli.collections import sentences
from hybrid_cli.collections.sentences import Sentences
from hybrid_cli.config import Labelling
from hybrid_cli.errors import InputError
from hybrid_cli.lexical.index import LexicalIndex, check_corpus
from hybrid_cli.settings.common import cpu_count
from hybrid_cli.training import labels, teacher_labels
from hybrid_cli.training.teacher_labels import MatrixTeacher, RunTeacher

_SHARDS_AT_ONCE = 2
_HITS_IN_A_SHARD = 1 << 22  # whatever the depth, a shard is held in memory
_QUESTIONS = "train"  # the split whose questions say how long cropped sentences are: it is there to be learned from

Teacher = MatrixTeacher | RunTeacher


def label(
    collection: Path,
    *,
    output: Path,
    index: Path | None = None,
    run: Path | None = None,
    split: str | None = None,
    queries: Path | None = None,
    how: Labelling = Labelling(),  # noqa: B008 - frozen
    threads: int | None = None,
    overwrite: bool = False,
) -> Path:
    """Label queries with a teacher's best documents, and write shards of them.

    Memory holds two shards, whatever the number of queries; a given run is held whole. A killed labelling goes on with
    the first missing shard.

    Args:
        collection: its corpus, whose sentences are the queries unless `split` or `queries` names given ones.
        index: a lexical index of that corpus as the teacher; or
        run: a run over that corpus for the given queries, whoever made it.

    Raises:
        InputError: unusable inputs or options, an index or a run of another corpus, no query with a hit.
    """
    given = _given(collection, split, queries)
    _check(how, index, run, given)
    inputs = _inputs(collection, index, run, given, how)
    options = {
        name: value for name, value in asdict(how).items() if not (given and name in ("queries_from", "keep_own"))
    }
    claim = artifacts.open_output(output, Kind.LABELS, "label", inputs=inputs, options=options, overwrite=overwrite)
    if claim.up_to_date:
        return output
    source = _given_queries(inputs["queries"], how) if given else _sentences(inputs, _language(index), how)
    teacher = _teacher(inputs, source, how, threads)
    with claim.folder() as (work, counts):
        counts |= source.counts | _write(
            claim, work, source, teacher, how, min(_SHARDS_AT_ONCE, threads or cpu_count())
        )
        if not counts["labelled"]:
            raise InputError(f"{collection}: the teacher finds nothing for any of {counts['queries']:,} queries")
    console.note(
        f"label: {output}: {counts['labelled']:,} queries with {counts['hits']:,} hits; "
        f"{counts['without_hits']:,} without a hit dropped"
    )
    return output


def _given(collection: Path, split: str | None, queries: Path | None) -> Path | None:
    """The file of the given queries, if any were."""
    if split is None and queries is None:
        return None
    return collections.queries_path(queries or collection, split)


def _check(how: Labelling, index: Path | None, run: Path | None, given: Path | None) -> None:
    if (index is None) == (run is None):
        raise InputError("a teacher is needed, one: --index (BM25) or --run (any other ranking)")
    if how.depth < 1:
        raise InputError(f"--depth {how.depth}: at least one hit is needed; Lambda learns from 50")
    if how.max_queries is not None and how.max_queries < 1:
        raise InputError(f"--max-queries {how.max_queries}: at least one query is needed")
    if run is not None and given is None:
        raise InputError("--run ranks given questions, not sentences; name them with --split or --queries")
    if given is not None and not how.keep_own:
        raise InputError("--drop-own: given questions are of no passage; leave it out")


def _inputs(
    collection: Path, index: Path | None, run: Path | None, given: Path | None, how: Labelling
) -> dict[str, Path]:
    """All that the labels depend on, by role."""
    roles = {"corpus": collections.corpus_path(collection), "index": index, "run": run, "queries": given}
    if given is None and how.queries_from == "cropped" and _QUESTIONS in collections.splits(collection):
        roles["questions"] = collections.queries_path(collection, _QUESTIONS)
    inputs = {role: path for role, path in roles.items() if path is not None}
    if index is not None:
        check_corpus(index, inputs["corpus"])
    return inputs


# ------------------------------------------------------------------------------------------------------------ queries


@dataclass(frozen=True)
class _Queries:
    """Queries to be labelled.

    Attributes:
        blocks: qid, text, source, row, block by block.
        total: how many they are.
        counts: what there is to say of where they are from.
    """

    blocks: Iterable[pl.DataFrame]
    total: int
    counts: dict[str, int]


def _given_queries(file: Path, how: Labelling) -> _Queries:
    nothing = {"source": pl.lit(None, pl.String), "row": pl.lit(None, pl.Int64)}
    table = collections.read_queries(file).select("qid", "text").with_columns(**nothing)
    if not len(table):
        raise InputError(f"{file}: holds no queries")
    return _part([table], len(table), {"available": len(table)}, how)


def _sentences(inputs: dict[str, Path], language: str, how: Labelling) -> _Queries:
    lengths: Sequence[int] = sentences.QUESTION_WORDS
    if "questions" in inputs:
        lengths = sentences.word_counts(collections.read_queries(inputs["questions"])["text"]) or lengths
    found = Sentences(inputs["corpus"], how.queries_from, how.seed, lengths=lengths, language=language)
    counts = found.count()
    if not counts["queries"]:
        raise InputError(f"{inputs['corpus']}: holds no sentence of {sentences.LEAST_WORDS} words or more")
    return _part(found.blocks(), counts["queries"], {"available": counts.pop("queries"), **counts}, how)


def _part(blocks: Iterable[pl.DataFrame], total: int, counts: dict[str, int], how: Labelling) -> _Queries:
    """The queries, or a uniform part of them."""
    wanted = min(total, how.max_queries or total)
    return _Queries(teacher_labels.uniform_part(blocks, total, wanted, how.seed), wanted, counts)


def _language(index: Path | None) -> str:
    """That of the index; a run comes with questions, which are not split."""
    return str(artifacts.read_manifest(index, Kind.LEXICAL_INDEX).options["language"]) if index else "en"


# ----------------------------------------------------------------------------------------------------------- labelling


def _teacher(inputs: dict[str, Path], source: _Queries, how: Labelling, threads: int | None) -> Teacher:
    if "run" in inputs:
        asked = collections.read_queries(inputs["queries"])
        return RunTeacher(inputs["run"], asked, inputs["corpus"], how)
    return MatrixTeacher(LexicalIndex.open(inputs["index"]), inputs["corpus"], how, threads)


def _write(
    claim: Output, work: Path, source: _Queries, teacher: Teacher, how: Labelling, workers: int
) -> dict[str, int]:
    """Label shard after shard; what an earlier, killed labelling wrote stays."""
    size = min(how.shard_size, max(1, _HITS_IN_A_SHARD // how.depth))
    counts = {"queries": source.total, "labelled": 0, "without_hits": 0, "hits": 0, "shards": 0}

    def write(number: int, shard: pa.Table) -> tuple[Path, int]:
        path = labels.shard_path(work, number)
        if not path.exists():
            queries = pl.DataFrame(pl.from_arrow(shard))
            hits = teacher.hits(queries)
            labels.write_shard(path, teacher_labels.labelled(queries, hits), claim.manifest, hits=len(hits[1]))
        return path, len(shard)

    shards = enumerate(artifacts.regrouped((block.to_arrow() for block in source.blocks), size))
    with console.progress("label", source.total, "queries") as advance:
        for path, asked in _side_by_side(write, shards, workers):
            counts["labelled"] += artifacts.row_count(path)
            counts["without_hits"] += asked - artifacts.row_count(path)
            counts["hits"] += artifacts.read_manifest(path, Kind.LABELS).counts["hits"]
            counts["shards"] += 1
            advance(asked)
    return counts


def _side_by_side(
    write: Callable[[int, pa.Table], tuple[Path, int]], shards: Iterable[tuple[int, pa.Table]], workers: int
) -> Iterator[tuple[Path, int]]:
    """What `write` returns for each shard, in order, with as many at work as there are workers.

    Java, the search and the files wait for each other within a shard, so that two shards make more of two processors.
    """
    with ThreadPoolExecutor(workers) as pool:
        waiting: deque[Future[tuple[Path, int]]] = deque()
        for shard in shards:
            if len(waiting) == workers:
                yield waiting.popleft().result()
            waiting.append(pool.submit(write, *shard))
        while waiting:
            yield waiting.popleft().result()
