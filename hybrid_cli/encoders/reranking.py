"""Reranking of a run in shards of scores."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from hybrid_cli import console, runs, storage
from hybrid_cli.collections import collection as collections
from hybrid_cli.encoders.cross_encoder import Reranker
from hybrid_cli.errors import HybridError, path_error
from hybrid_cli.runs import Run
from hybrid_cli.storage import disk, layout

_GPU_BATCH_TOKENS, _CPU_BATCH_TOKENS = 1 << 16, 4096
_PAIRS_AT_ONCE = 1 << 18  # whose texts are read in one pass over the corpus


@dataclass
class Reranking:
    """The scores of one call.

    Attributes:
        run: the run to rerank.
        path: its path, for messages.
        inputs: role -> path, of the `queries` and the `corpus`.
        folder: folder of the shards.
        load: opens the reranker.
        deepest: hits that are rescored per query.
        shard_size: pairs per shard of scores; an interruption loses at most one shard.
        batch_tokens: tokens per batch, padding included; None is 4,096 on a CPU and 65,536 on a GPU.
    """

    run: Run
    path: Path
    inputs: Mapping[str, Any]
    folder: Path
    load: Callable[[], Reranker]
    deepest: int
    shard_size: int
    batch_tokens: int | None = None

    @cached_property
    def queries(self) -> pl.DataFrame:
        """The queries of the run (qid, query), in its order.

        Raises:
            InputError: a query of the run has no text.
        """
        path = self.inputs["queries"]
        known = collections.read_queries(path)
        complaint = f"{self.path}: its queries are not those of {path} (pass --split or --queries); no text for"
        rows = runs.positions(self.run.qids, known["qid"], complaint)
        return pl.DataFrame({"qid": self.run.qids, "query": known["text"].gather(rows)})

    @cached_property
    def _model(self) -> Reranker:
        return self.load()

    def _heads(self) -> Iterator[tuple[pl.DataFrame, pl.DataFrame]]:
        """Yield blocks of the run, and the rows of each that are scored: qid, docid, query."""
        for block in self.run.blocks():
            heads = block.filter(pl.col("rank") <= self.deepest).join(
                self.queries, on="qid", how="left", maintain_order="left"
            )
            yield block, heads.filter(pl.col("query").str.strip_chars() != "").select("qid", "docid", "rank", "query")

    def _shards(self) -> Iterator[tuple[Path, pl.DataFrame]]:
        """Yield the shards: path, and its part of the rows, which does not depend on the sizes of blocks."""
        size, waiting, number = self.shard_size, pl.DataFrame(), 0
        for _, heads in self._heads():
            waiting = pl.concat([waiting, heads]) if len(waiting) else heads
            while len(waiting) >= size:
                yield self.folder / layout.part(number), waiting.head(size)
                waiting, number = waiting.slice(size), number + 1
        if len(waiting):
            yield self.folder / layout.part(number), waiting

    def _groups(self) -> Iterator[list[tuple[Path, pl.DataFrame]]]:
        """Yield consecutive shards whose texts fit into memory together."""
        group: list[tuple[Path, pl.DataFrame]] = []
        for shard in self._shards():
            group.append(shard)
            if sum(len(part) for _, part in group) + self.shard_size > _PAIRS_AT_ONCE:
                yield group
                group = []
        if group:
            yield group

    def score(self) -> None:
        """Write all shards; those of an interrupted call are kept."""
        self.folder.mkdir(exist_ok=True)
        total = int(self.run.queries["length"].clip(upper_bound=self.deepest).sum())
        with console.progress("rerank", total, "pairs") as advance:
            for shards in self._groups():
                missing = [part for path, part in shards if not path.exists()]
                texts = self._texts(pl.concat(part["docid"] for part in missing)) if missing else pl.DataFrame()
                for path, part in shards:
                    if not path.exists():
                        pairs = part.join(texts, on="docid", how="left", maintain_order="left")
                        write_scores(path, pairs, self._model, self.batch_tokens)
                    advance(len(part))

    def _texts(self, docids: pl.Series) -> pl.DataFrame:
        """Return docid, title, text.

        Raises:
            InputError: the corpus lacks a document of the run.
        """
        corpus = self.inputs["corpus"]
        texts = collections.texts(corpus, docids)
        unknown = docids.filter(~docids.is_in(texts["docid"].implode())).unique(maintain_order=True)
        if len(unknown):
            problem = f"no document {unknown[0]} in {corpus}; pass its own collection"
            raise path_error(self.path, problem, code="other-corpus", id=unknown[0], count=len(unknown))
        return texts

    def facts(self, name: str) -> float:
        """Return the sum of a number over all shards, also those of an interrupted call."""
        metadata = (pq.read_schema(path).metadata or {} for path in sorted(self.folder.glob(layout.PARTS)))
        return sum(float(footer[name.encode()]) for footer in metadata)

    def _scored(self) -> Iterator[tuple[pl.DataFrame, pl.DataFrame]]:
        """Yield blocks of the run, and the rows of each with new_score and tokens."""
        read, number = pl.DataFrame(schema={"score": pl.Float32, "tokens": pl.Int32}), 0
        for block, heads in self._heads():
            while len(read) < len(heads):
                read = pl.concat([read, pl.read_parquet(self.folder / layout.part(number), glob=False)])
                number += 1
            yield block, pl.concat([heads, read.head(len(heads))], how="horizontal")
            read = read.slice(len(heads))

    def blocks(self, depth: int) -> Iterator[pa.Table]:
        """Yield the reranked hits."""
        for block, scored in self._scored():
            if not len(scored):
                yield block.to_arrow()
                continue
            new = scored.select("qid", "docid", new_score="score")
            hits = block.join(new, on=["qid", "docid"], how="left", maintain_order="left")
            yield runs.rerank_hits(hits, depth).to_arrow()

    def counts(self, depth: int) -> dict[str, Any]:
        """Return the cost of a depth: queries, rescored pairs and their tokens; and queries without text."""
        pairs = tokens = 0
        for _, scored in self._scored():
            if len(scored):
                within = scored.filter(pl.col("rank") <= depth)
                pairs += len(within)
                tokens += int(within["tokens"].cast(pl.Int64).sum())
        empty = int((self.queries["query"].str.strip_chars() == "").sum())
        counts = {"queries": len(self.queries), "pairs": pairs, "tokens": tokens, "input": asdict(self._model.input)}
        return {**counts, "queries_without_text": empty} if empty else counts

    def note(self, path: Path) -> None:
        """Print the numbers of queries, pairs and cut documents."""
        counts, cut = self.counts(self.deepest), int(self.facts("truncated"))
        pairs, seconds = counts["pairs"], self.facts("seconds")
        counted = console.counted(query=counts["queries"], pair=pairs)
        shortened = f", {console.counted(document=cut)} cut to --max-length" if cut else ""
        console.note(f"rerank: {path}: {counted} ({pairs / max(seconds, 1e-9):,.0f}/s){shortened}")
        if empty := counts.get("queries_without_text"):
            problem = f"{console.counted(query=empty)} without text; such hits keep the order of {self.path}"
            console.warn(problem, code="queries-without-text", path=self.path, count=empty)


def write_scores(path: Path, pairs: pl.DataFrame, model: Reranker, batch_tokens: int | None = None) -> None:
    """Write one shard: score and tokens of each pair; its metadata hold the seconds and the number of cut documents.

    Args:
        path: the shard.
        pairs: qid, docid, query, title, text.
        model: the reranker.
        batch_tokens: tokens per batch, padding included; None is 4,096 on a CPU and 65,536 on a GPU.

    Raises:
        HybridError: a score is not finite.
    """
    began, cut = time.monotonic(), model.truncated
    default = _CPU_BATCH_TOKENS if model.device.type == "cpu" else _GPU_BATCH_TOKENS
    scores, tokens = model.scores(pairs, batch_tokens or default)
    if not np.isfinite(scores).all():
        row = int((~np.isfinite(scores)).argmax())
        problem = f"{pairs['qid'][row]}, {pairs['docid'][row]}: the score is not finite; use --dtype fp32"
        raise HybridError(problem, code="values-not-finite")
    facts = {"truncated": str(model.truncated - cut), "seconds": str(time.monotonic() - began)}
    table = pa.table({"score": scores, "tokens": tokens}).replace_schema_metadata(facts)
    with storage.replacing(path) as scratch, disk.create(scratch) as file:
        pq.write_table(table, file, compression="zstd", write_page_checksum=True)
