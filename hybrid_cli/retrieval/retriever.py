"""A retriever: indexes of one corpus, searched together by one fusion.

Runs of many queries and single queries take the same path: the hits of each index are joined and fused by
`fusion.lists`, as `hybrid fuse` does with runs on disk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import polars as pl

from hybrid_cli import runs
from hybrid_cli.errors import InputError, named_keywords
from hybrid_cli.fusion.frames import recipe_of
from hybrid_cli.fusion.lists import values
from hybrid_cli.fusion.methods import FusionRecipe
from hybrid_cli.fusion.options import HITS, LEXICAL_SHARE, MEASURE, METHOD, RRF_K, Missing, Normalization
from hybrid_cli.retrieval.calibration import FIRST, Calibration
from hybrid_cli.retrieval.candidates import Candidates, CommonRows
from hybrid_cli.runs.given import QueriesLike, queries_table
from hybrid_cli.runs.index import Allowed, Documents, Hits, Index, Rows, Scores
from hybrid_cli.runs.tables import ranks

if TYPE_CHECKING:
    from hybrid_cli.evaluation.measures import QrelsLike
    from hybrid_cli.fusion.weights import Tuned

QUERIES = 200  # whose scores give the deviations of an untuned fusion
SEED = 42
DEFAULT_DEPTH = 200  # hits of each index whose scores count
_QUERIES_AT_ONCE, _LEAST_QUERIES = 1024, 16
_HITS_AT_ONCE = 1 << 20  # of all sides; a hit takes some 700 bytes in all steps of a fusion


class Asked(NamedTuple):
    """Queries (qid, text), and as each index prepares them."""

    queries: pl.DataFrame
    sides: Sequence[Any]


@dataclass(frozen=True)
class RerankStep:
    """A reranker that rescores the first hits of the fusion.

    Attributes:
        depth: hits per query that are rescored.
        score: from pairs (query, title, text) to scores [n], float32.
        texts: from docids to docid, title and text, in the same order.
    """

    depth: int
    score: Callable[[pl.DataFrame], np.ndarray]
    texts: Callable[[pl.Series], pl.DataFrame]

    def apply(self, hits: pl.DataFrame) -> pl.DataFrame:
        """Return hits in the order of the new scores; see `runs.rerank_hits`.

        Args:
            hits: qid, docid, rank, score, `text` of the query, and `shown`, the id whose title and text are scored.
        """
        heads = hits.filter((pl.col("rank") <= self.depth) & (pl.col("text").str.strip_chars() != ""))
        if not len(heads):
            return hits
        pairs = heads.select(query="text").hstack(
            self.texts(heads["shown"]).select(pl.col("title", "text").fill_null(""))
        )
        new = heads.select("qid", "docid", new_score=pl.Series(self.score(pairs)))
        return runs.rerank_hits(hits.join(new, on=["qid", "docid"], how="left", maintain_order="left"), self.depth)


@dataclass(frozen=True)
class DefaultFusion:
    """The untuned fusion of indexes: weights of exact scores in units of their deviations.

    Attributes:
        shares: weight of each index.
        scales: standard deviation of each index's scores over the candidates of all queries; empty for one index.
        queries: the queries that the scales are of, in words.
    """

    shares: tuple[float, ...]
    scales: tuple[float, ...] = field(default=())
    queries: str = ""

    @property
    def recipe(self) -> FusionRecipe:
        """Return the sum of raw scores: weights are shares divided by scales, of six digits."""
        scales = self.scales or (1.0,) * len(self.shares)
        weights = (float(f"{share / scale:.6g}") for share, scale in zip(self.shares, scales, strict=True))
        return FusionRecipe("weighted-sum", tuple(weights), "exact")


def default_shares(lexical: Sequence[bool]) -> tuple[float, ...]:
    """Return the untuned shares: .3 for the lexical indexes together, .7 for the dense ones; equal for one kind.

    Measured on seven collections (studies/default-fusion.md).
    """
    if len(set(lexical)) == 1:
        return (1 / len(lexical),) * len(lexical)
    share = {True: LEXICAL_SHARE / sum(lexical), False: (1 - LEXICAL_SHARE) / list(lexical).count(False)}
    return tuple(round(share[side], 6) for side in lexical)


@named_keywords
@dataclass(frozen=True, init=False, repr=False)
class Retriever(Index):
    """Indexes of one corpus and the fusion of their hits; `Retriever.of` makes one of another fusion.

    Attributes:
        sides: indexes by name, or a list, in the order of the weights.
        recipe: method, weights and the rule for documents that a side does not return; by default that of `compose`,
            the sum of exact scores in units of their deviations, where all indexes have such scores and texts, else
            min-max with equal weights.
        depth: hits of each side that are fused; 1000 by default.
        reranker: rescores the first fused hits; None for none.
        calibration: gives the hits probabilities; None for none.
        min_probability: least probability of a hit; None for all hits.
        default: shares of the untuned sum of exact scores, and the standard deviations of the scores over the
            collection, which they are in units of, or None; None for indexes of an unknown kind.
        tuning: evidence of `tune`; None for weights that were not tuned.

    Example:
        >>> from hybrid_cli import BM25, Retriever
        >>> texts = {"a": "salt in sea water", "b": "oxygen in the blood"}
        >>> sides = {"usual": BM25().index(texts), "short": BM25(b=0.9).index(texts)}
        >>> hits = Retriever.of(sides, "weighted-sum", weights=[0.3, 0.7]).search("sea", k=1)
        >>> hits.select("docid", "usual_rank", "short_rank").rows()
        [('a', 1, 1)]
    """

    sides: Mapping[str, Index]
    recipe: FusionRecipe
    depth: int = HITS
    reranker: RerankStep | None = None
    calibration: Calibration | None = None
    min_probability: float | None = None
    default: tuple[tuple[float, ...], tuple[float, ...] | None] | None = None
    tuning: Tuned | None = None
    kind = "a retriever"

    def __init__(
        self,
        sides: Mapping[str, Index] | Sequence[Index],
        recipe: FusionRecipe | None = None,
        depth: int = HITS,
        reranker: RerankStep | None = None,
        calibration: Calibration | None = None,
        min_probability: float | None = None,
        default: tuple[tuple[float, ...], tuple[float, ...] | None] | None = None,
        tuning: Tuned | None = None,
    ) -> None:
        """Fuse indexes; see `Retriever`.

        Raises:
            InputError: no index, or another number of weights.
        """
        listed = list(sides.values()) if isinstance(sides, Mapping) else sides
        if not isinstance(listed, list | tuple) or not all(isinstance(side, Index) for side in listed):
            problem = "Retriever: needs a list or a dictionary of indexes, such as [BM25().index(texts), dense]"
            raise InputError(problem, code="other-type")
        named = sides if isinstance(sides, Mapping) else _named(sides)
        if recipe is None:
            recipe, default = _untuned(named)
        fields = (named, recipe, depth, reranker, calibration, min_probability, default, tuning)
        vars(self).update(zip(self.__dataclass_fields__, fields, strict=True))
        if known := next((side.known for side in named.values() if side.known), None):
            self.knowing(known.opened_by(None))
        if not self.sides or len(self.sides) != len(self.recipe.weights):
            problem = f"retriever: {len(self.recipe.weights)} weights for {len(self.sides)} indexes; pass one per index"
            raise InputError(problem, code="number-of-weights", value=len(self.recipe.weights))
        self._check_probability()

    def __repr__(self) -> str:
        shares = self.tuning.shares if self.tuning else self.default[0] if self.default else self.recipe.weights
        parts = " + ".join(f"{share / sum(shares):.0%} {name}" for name, share in zip(self.sides, shares, strict=True))
        reason = f"; {self.tuning}" if self.tuning else ""
        return f"Retriever({parts}: {self.recipe.method}, {len(self.documents):,} documents{reason})"

    @classmethod
    def of(
        cls,
        sides: Mapping[str, Index],
        method: str = METHOD,
        weights: Sequence[float] | Mapping[str, float] | None = None,
        *,
        normalize: Normalization | None = None,
        missing: Missing | None = None,
        rrf_k: float = RRF_K,
        depth: int = HITS,
        **options: Any,
    ) -> Retriever:
        """Fuse the hits of indexes, in memory or on disk, by any method of `fuse`.

        Args:
            sides: name -> index, such as `BM25().index(texts)`.
            method: fusion method; minmax by default.
            weights: one per index, in order or by name; equal if None.
            normalize: normalization of each list; None for that of the method.
            missing: rule for documents that an index does not return, such as `exact`; None for that of the method.
            rrf_k: constant k in 1 / (k + rank), for `rrf`; 60 by default.
            depth: hits of each index that are fused; 1000 by default.
            options: parameters of the combination rule, such as those of a plugin.

        Raises:
            InputError: an unknown method, or a weight too few.
        """
        return cls(sides, recipe_of(list(sides), method, weights, normalize, missing, rrf_k, options), depth)

    def _check_probability(self) -> None:
        least = self.min_probability
        if least is None:
            return
        if not 0 <= least <= 1:
            problem = f"min_probability {least}: needs a number from 0 to 1"
            raise InputError(problem, code="out-of-range", option="min_probability", value=least)
        if self.calibration is None:
            problem = "the hits have no probabilities; calibrate the retriever: hybrid compose INDEXES --calibrate"
            raise InputError(f"{problem} --qrels COLLECTION --split dev --output RETRIEVER", code="not-calibrated")

    @cached_property
    def _rows(self) -> CommonRows:
        return CommonRows([side.documents for side in self.sides.values()])

    @cached_property
    def _passages(self) -> CommonRows | None:
        parts = [side.passages for side in self.sides.values() if side.passages is not None]
        return CommonRows(parts) if len(parts) == len(self.sides) else None

    @property
    def documents(self) -> Documents:
        """See `Index`; the order of the rows is that of the ids."""
        return self._rows.documents

    @property
    def passages(self) -> Documents | None:  # type: ignore[override]
        """The passages of which the hits are documents; None for hits as they are indexed."""
        return None if self._passages is None else self._passages.documents

    def prepare(self, queries: pl.DataFrame) -> Asked:
        """Return the queries of each index."""
        return Asked(queries, [side.prepare(queries) for side in self.sides.values()])

    def within(self, allowed: Allowed) -> Retriever:
        """See `Index`."""
        other = replace(self, sides={name: side.within(allowed) for name, side in self.sides.items()})
        if all(
            side.documents is mine.documents
            for side, mine in zip(self.sides.values(), other.sides.values(), strict=True)
        ):
            other.__dict__["_rows"] = self._rows
        return other

    def hits(self, prepared: Asked, k: int) -> Hits:
        """Return the top documents; see `Index`.

        The further columns are `SIDE_rank`, null if the side does not return the document, and `SIDE_score`, null too,
        unless the rule for missing documents is `exact`; of a calibrated retriever, `probability` that the document is
        relevant.
        """
        wanted = k if self.calibration is None else max(k, FIRST)
        depth = wanted if self.reranker is None else max(wanted, self.reranker.depth)
        candidates = self.candidates(prepared, self.recipe.missing == "exact")
        hits = candidates.fused(self.recipe, depth)
        if self.reranker is not None:
            hits = self._reranked(prepared, candidates, hits, wanted)
        at = candidates.find(hits.queries, hits.rows)
        hits = replace(hits, columns=candidates.columns(at, list(self.sides)))
        return hits if self.calibration is None else self._probable(self.calibration, hits, k)

    def candidates(self, prepared: Asked, exact: bool) -> Candidates:
        """Return the documents that some index returns, with the exact scores of all indexes if asked for."""
        sides = list(zip(self.sides.values(), prepared.sides, strict=True))
        hits = [side.hits(queries, self.depth) for side, queries in sides]
        scorers = [partial(self._exact, side, queries) for side, queries in sides] if exact else None
        return Candidates.of(prepared.queries["qid"], hits, self._rows, self._passages, scorers)

    def _exact(self, side: Index, prepared: Any, queries: Rows, rows: Rows) -> Scores:
        if (rows < 0).any():
            raise InputError("the indexes have different documents; build them from one corpus", code="unknown-id")
        return side.scores(prepared, queries, rows)

    def _reranked(self, asked: Asked, candidates: Candidates, hits: Hits, k: int) -> Hits:
        """Return the first `k` hits in the order of the reranker."""
        assert self.reranker is not None
        queries, shown = hits.queries, self.documents.ids.gather(hits.rows)
        if self._passages is not None and candidates.passages is not None:
            shown = self._passages.documents.ids.gather(candidates.passages[candidates.find(queries, hits.rows)])
        frame = pl.DataFrame(
            {
                "qid": queries,
                "docid": hits.rows,
                "rank": ranks(hits.counts).astype(np.int32),
                "score": hits.scores,
                "text": asked.queries["text"].gather(queries),
                "shown": shown,
            }
        )
        ordered = self.reranker.apply(frame).filter(pl.col("rank") <= k)
        counts = np.bincount(ordered["qid"].to_numpy(), minlength=len(hits.counts))
        return Hits(counts, ordered["docid"].to_numpy(), ordered["score"].to_numpy())

    def _probable(self, calibration: Calibration, hits: Hits, k: int) -> Hits:
        """Return the first `k` hits with their probabilities, if these are high enough."""
        rank = ranks(hits.counts)
        frame = pl.DataFrame({"qid": hits.queries, "rank": rank.astype(np.int32), "score": hits.scores, **hits.columns})
        likely = calibration.probabilities(frame, list(self.sides))
        kept = rank <= k
        if self.min_probability is not None:
            kept &= likely >= self.min_probability
        counts = np.bincount(hits.queries[kept], minlength=len(hits.counts))
        columns = {
            name: values[kept] if isinstance(values, np.ndarray) else values.filter(pl.Series(kept))
            for name, values in hits.columns.items()
        }
        return Hits(counts, hits.rows[kept], hits.scores[kept], {**columns, "probability": likely[kept]})

    def some(self, queries: pl.DataFrame, k: int) -> Iterator[pl.DataFrame]:
        """See `Index`; the candidates of all indexes are in memory."""
        size = max(_LEAST_QUERIES, min(_QUERIES_AT_ONCE, _HITS_AT_ONCE // (self.depth * len(self.sides))))
        return queries.iter_slices(size)

    def probable(self, least: float) -> Retriever:
        """See `Index`."""
        return replace(self, min_probability=least)

    def explain(self, query: str, docid: str) -> pl.DataFrame:
        """Return index, rank (null beyond the depth), score, weight and value in the sum of each side; see `Index`."""
        asked = queries_table(query)
        found = self.candidates(self.prepare(asked), self.recipe.missing == "exact")
        row = self.documents.rows(pl.Series([docid]))
        valued = values(found.table(self.recipe.missing == "exact"), self.recipe).filter(pl.col("docid") == row[0])
        at = found.find(np.zeros(1, np.int64), row)
        known = bool(at[0] < len(found.keys) and found.keys[at[0]] == row[0])
        parts = found.columns(at, list(self.sides)) if known else {}
        rows = [
            {
                "index": name,
                "rank": parts[f"{name}_rank"][0] if known else None,
                "score": side.score(asked.select("qid", docid=pl.lit(docid)), asked)[0],
                "weight": weight,
                "value": valued[f"value_{number}"][0] if len(valued) else None,
            }
            for number, ((name, side), weight) in enumerate(zip(self.sides.items(), self.recipe.weights, strict=True))
        ]
        return pl.DataFrame(rows, infer_schema_length=None)

    def tune(self, qrels: QrelsLike, queries: QueriesLike | None = None, measure: str = MEASURE) -> Retriever:
        """Return the retriever with the weights that judged queries choose, as `compose --tune` chooses them.

        Weights of the default fusion shrink towards it. Fewer than ten judged queries change nothing. `tuning` of the
        result has the evidence. Its hits have no probabilities: `compose --tune --calibrate` learns them.

        Args:
            qrels: judgments; see `evaluation.evaluate`.
            queries: judged queries, and perhaps others; see `search`. None for those of the collection that was
                indexed.
            measure: measure to maximize; nDCG@10 by default.

        Raises:
            InputError: no query has a judgment, or no hit of any query is relevant.
        """
        from hybrid_cli.evaluation.measures import check_overlap, qrels_table  # slow to import
        from hybrid_cli.fusion.lists import Lists, complete
        from hybrid_cli.fusion.selection import FEWEST
        from hybrid_cli.fusion.tuning import MethodGrid, default_grid
        from hybrid_cli.retrieval.tuning import JudgedLists

        known = qrels_table(qrels)
        given = self.known.queries() if queries is None and self.known is not None else queries
        asked = queries_table([] if given is None else given)
        check_overlap(asked["qid"], known)
        asked = asked.join(known, on="qid", how="semi", maintain_order="left")
        joined = Lists.of([pl.concat(side.runs(asked, self.depth)) for side in self.sides.values()])
        blocks, exact = list(joined.blocks()), self.recipe.missing == "exact"
        if exact:
            blocks = list(complete(blocks, joined.qids, [side.scorer(asked) for side in self.sides.values()]))
        systems = [side.system for side in self.sides.values()]
        dense = systems.index("dense") if set(systems) == {"bm25", "dense"} and len(systems) == 2 else None
        equal = (1 / len(self.sides),) * len(self.sides)
        of_kinds, scales = (equal, None) if self.default is None else self.default
        untuned = of_kinds if exact and scales else equal if self.recipe.method == METHOD else ()
        grid = MethodGrid(self.recipe, default_grid(self.recipe), scales=scales, untuned=untuned)
        judged = known.join(asked, on="qid", how="semi")
        evidence = JudgedLists(list(self.sides), blocks, joined.qids, judged, self.depth).tuned(grid, measure, dense)
        recipe = self.recipe if len(asked) < FEWEST else evidence.recipe
        made = replace(self, recipe=recipe, calibration=None, min_probability=None, tuning=evidence)
        if (before := self.known) is None:
            return made
        again = None if before.opened is None else partial(_retuned, before.opened, recipe)
        return made.knowing(before.opened_by(again))

    def scales(self, queries: pl.DataFrame) -> tuple[float, ...]:
        """Return the standard deviation of each side's exact scores over the candidates of all queries; 1 where 0."""
        blocks = [self.candidates(self.prepare(some), True).scores for some in self.some(queries, self.depth)]
        return tuple(float(np.std(np.concatenate(scores))) or 1.0 for scores in zip(*blocks, strict=True)) or (
            1.0,
        ) * len(self.sides)


def _retuned(opened: Callable[[], Index], recipe: FusionRecipe) -> Index:
    """Open a retriever, and return it with other weights."""
    before = opened()
    assert isinstance(before, Retriever)
    made = replace(before, recipe=recipe, calibration=None, min_probability=None)
    return made if before.known is None else made.knowing(before.known.opened_by(partial(_retuned, opened, recipe)))


def _named(sides: Sequence[Index]) -> dict[str, Index]:
    """Return indexes by their systems: `bm25`, `dense`, `dense-2`."""
    named: dict[str, Index] = {}
    for side in sides:
        name = side.system or "index"
        like = sum(other.split("-")[0] == name for other in named)
        named[f"{name}-{like + 1}" if like else name] = side
    return named


def _untuned(
    sides: Mapping[str, Index],
) -> tuple[FusionRecipe, tuple[tuple[float, ...], tuple[float, ...] | None] | None]:
    """Return the fusion of `compose` without judgments, its shares and scales; else min-max with equal weights."""
    known = next((side.known for side in sides.values() if side.known), None)
    pieces = pl.DataFrame() if known is None or len(sides) == 1 else known.pieces(QUERIES, SEED)
    if len(pieces):
        shares = default_shares([side.system != "dense" for side in sides.values()])
        equal = FusionRecipe("weighted-sum", (1.0,) * len(sides), "exact")
        with suppress(InputError):  # an index without exact scores
            fusion = DefaultFusion(shares, Retriever(sides, equal, DEFAULT_DEPTH).scales(pieces))
            return fusion.recipe, (shares, fusion.scales)
    return recipe_of(list(sides)), None
