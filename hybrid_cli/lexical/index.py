"""An open lexical index: search, scores of pairs, and the matrix of impacts.

The folder of a lexical index holds the impact matrix (`impacts/`), `docids.parquet`, for BM25 `bm25.json` with the
stored k1 and b, and Lucene's index (`lucene/`) if `index-bm25` built it. Everything here reads the impact matrix;
`lexical.lucene` searches Lucene itself. The weights of a learned sparse index are impacts, or counts for BM25 (DeepCT).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import polars as pl

from hybrid_cli import runs, storage
from hybrid_cli.errors import HybridError, InputError, named_keywords
from hybrid_cli.inputs.json_values import mismatch_of_fields, read_object
from hybrid_cli.lexical import keys as keyed
from hybrid_cli.lexical.analysis import LazyAnalyzer, TextAnalyzer, refuse_unknown
from hybrid_cli.lexical.feedback import Feedback, FirstHits, Rm3
from hybrid_cli.lexical.impacts import Impacts, Postings
from hybrid_cli.lexical.keys import Bags
from hybrid_cli.lexical.options import ENGLISH, FB_DOCS, FB_TERMS, FB_WEIGHT
from hybrid_cli.memory import cpu_count
from hybrid_cli.runs.given import queries_table
from hybrid_cli.runs.index import Allowed, Documents, Hits, Index
from hybrid_cli.storage import layout
from hybrid_cli.threads import ThreadPool

FEW_QUERIES = 4  # whose terms are looked up one by one: less time than a join
FEW_POSTINGS = 1 << 24  # read by numpy in half a second, in which numba can be imported
MANY_POSTINGS = 1 << 27  # read by numpy in 3 to 4 seconds; kernels that no process has compiled yet take 5 to 8


class QueryWeights(Protocol):
    """The query side of a learned sparse encoder; see `encoders.sparse`."""

    def query_weights(self, texts: Sequence[str]) -> pl.DataFrame:
        """Return query (row in `texts`), term and boost (quantized weight); each term of a query once."""


class _Shared:
    """The parts of an index that do not depend on k1 and b, computed on first use."""

    def __init__(
        self, postings: Postings, docids: pl.Series, language: str, queries: TextAnalyzer | QueryWeights | None
    ):
        self.postings, self.documents, self.language = postings, Documents(docids), language
        self._queries = queries
        self.read = 0  # postings of the queries so far

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "queries"}

    @cached_property
    def queries(self) -> TextAnalyzer | QueryWeights:
        return self._queries or LazyAnalyzer(self.language)

    @cached_property
    def feedback(self) -> Feedback:
        return Feedback(self.postings)

    @cached_property
    def dictionary(self) -> pl.DataFrame:
        terms = self.postings.terms
        return pl.DataFrame({"term": terms, "id": np.arange(len(terms), dtype=np.int32)})

    @cached_property
    def terms(self) -> runs.SortedIds:
        """The dictionary, for a few queries."""
        return runs.SortedIds(self.postings.terms)

    @property
    def order(self) -> npt.NDArray[np.int32]:
        """Rank [N] of each row's docid in string order, which breaks ties."""
        return self.documents.sorted.numbers


@named_keywords
class LexicalIndex(Index):
    """BM25 or learned weights over an impact matrix: search, scores of pairs, and the matrix itself.

    Attributes:
        threads: CPU threads of a search; None for all cores.
    """

    threads: int | None = None

    def __init__(
        self,
        impacts: Impacts,
        docids: pl.Series,
        language: str = ENGLISH,
        queries: TextAnalyzer | QueryWeights | None = None,
    ):
        """Wrap an impact matrix in memory; see `load` for one on disk.

        Args:
            impacts: weighted postings.
            docids: [N] ids by row.
            language: name of the analysis.
            queries: replaces the analyzer of this name.
        """
        self.impacts, self.docids, self.language = impacts, docids, language
        self.allowed: npt.NDArray[np.bool_] | None = None
        self._shared = _Shared(impacts.postings, docids, language, queries)

    @property
    def documents(self) -> Documents:
        """See `Index`."""
        return self._shared.documents

    @classmethod
    def load(cls, folder: Path, language: str, parameters: tuple[float, float]) -> LexicalIndex:
        """Open the matrix of BM25 in `folder`, with the name of its analysis and (k1, b)."""
        refuse_unknown(language, folder)
        return cls(Impacts.of(Postings.open(folder / layout.IMPACTS), *parameters), _docids(folder), language)

    @classmethod
    def load_learned(cls, folder: Path, queries: QueryWeights, steps: int) -> LexicalIndex:
        """Open the matrix of learned weights in `folder`.

        Args:
            folder: folder of the matrix and the ids.
            queries: the query side of the encoder.
            steps: steps per unit of the stored weights.
        """
        return cls(Impacts.learned(Postings.open(folder / layout.IMPACTS), steps**-2), _docids(folder), queries=queries)

    @property
    def system(self) -> str | None:  # type: ignore[override]
        """See `Index`."""
        return "learned" if np.isnan(self.k1) else "bm25"

    @property
    def k1(self) -> float:
        """Saturation of term frequency."""
        return self.impacts.k1

    @property
    def b(self) -> float:
        """Strength of document length normalization."""
        return self.impacts.b

    def under(self, k1: float, b: float) -> LexicalIndex:
        """Return the same index with another k1 and b; everything else is shared."""
        return self._with(Impacts.of(self.impacts.postings, k1, b), self.allowed)

    def within(self, allowed: Allowed) -> LexicalIndex:
        """See `Index`: the statistics in scores are those of all documents, and so are the documents of a feedback."""
        return self._with(self.impacts, allowed.mask(self.docids))

    def expanded(
        self, fb_terms: int = FB_TERMS, fb_docs: int = FB_DOCS, fb_weight: float = FB_WEIGHT
    ) -> ExpandedQueries:
        """Return the index whose queries are expanded by pseudo-relevance feedback (RM3).

        Args:
            fb_terms: feedback terms; 10 by default.
            fb_docs: feedback documents; 10 by default.
            fb_weight: weight of the original query, from 0 to 1; .5 by default.
        """
        made = ExpandedQueries(self, Rm3(fb_terms, fb_docs, fb_weight))
        return made if self.known is None else made.knowing(self.known.opened_by(None))

    def _with(self, impacts: Impacts, allowed: npt.NDArray[np.bool_] | None) -> LexicalIndex:
        other = copy(self)
        other.__dict__.pop("matrix", None)
        other.impacts, other.allowed = impacts, allowed
        return other

    def counts(self) -> dict[str, Any]:
        """Return the counts of the manifest."""
        postings = self.impacts.postings
        return {
            "documents": len(self.docids),
            "empty documents": len(self.docids) - postings.counted,
            "terms": len(postings.terms),
            "tokens": postings.tokens,
            "postings": len(postings),
            "k1": self.k1,
            "b": self.b,
        }

    @property
    def has_analyzer(self) -> bool:
        """Return whether queries are analyzed, and not encoded as learned weights."""
        return isinstance(self._shared.queries, TextAnalyzer)

    def analyze(self, texts: Sequence[str]) -> list[list[str]]:
        """Return the tokens of each text.

        Raises:
            InputError: the index has learned weights, which are not counts of tokens.
        """
        if isinstance(queries := self._shared.queries, TextAnalyzer):
            return queries.analyze(texts)
        problem = "learned weights do not count tokens; use an index of `hybrid index-bm25`"
        raise InputError(problem, code="learned-weights")

    def bags(self, texts: Sequence[str]) -> Bags:
        """Analyze queries: the terms in the dictionary, boosted by their frequency in the query, or by their weight."""
        queries = self._shared.queries
        if isinstance(queries, TextAnalyzer) and len(texts) <= FEW_QUERIES:
            return self._few_bags(queries.analyze(texts))
        return self.bags_of(self.weighted(texts), len(texts))

    def _few_bags(self, tokens: Sequence[Sequence[str]]) -> Bags:
        """Return the bags of a few queries, whose terms are looked up one by one in the sorted dictionary."""
        bags = [Counter(words) for words in tokens]
        owners = np.repeat(np.arange(len(bags)), [len(bag) for bag in bags])
        boosts = np.array([boost for bag in bags for boost in bag.values()], np.float32)
        ids, known = self._shared.terms.find(pl.Series([word for bag in bags for word in bag], dtype=pl.String))
        order = np.lexsort((ids, owners))
        order = order[known[order]]
        counts = np.bincount(owners[order], minlength=len(bags))
        return Bags(np.concatenate(([0], np.cumsum(counts))), ids[order].astype(np.int32), boosts[order])

    def weighted(self, texts: Sequence[str]) -> pl.DataFrame:
        """Return query, term and boost: the frequency, or the learned weight, of each term in each text."""
        queries = self._shared.queries
        if not isinstance(queries, TextAnalyzer):
            return queries.query_weights(texts)
        tokens, lengths = queries.tokens(texts)
        terms = pl.Series("term", pl.from_arrow(tokens), dtype=pl.String)
        frame = pl.DataFrame({"query": np.repeat(np.arange(len(texts)), lengths), "term": terms})
        return frame.group_by("query", "term").agg(boost=pl.len().cast(pl.Float64))

    def bags_of(self, weighted: pl.DataFrame, queries: int) -> Bags:
        """Return queries given by query, term and boost; terms that are not in the dictionary are left out."""
        known = weighted.join(self._shared.dictionary, on="term").sort("query", "id")
        counts = np.bincount(known["query"].to_numpy(), minlength=queries)
        return Bags(
            np.concatenate(([0], np.cumsum(counts))),
            known["id"].to_numpy().astype(np.int32),
            known["boost"].to_numpy().astype(np.float32),
        )

    def prepare(self, queries: pl.DataFrame) -> Bags:
        """Return analyzed queries."""
        return self.bags(queries["text"].to_list())

    def hits(self, prepared: Bags, k: int) -> Hits:
        """Rank the documents that share a term with the query, as Lucene does.

        Args:
            prepared: analyzed queries.
            k: documents per query.
        """
        counts, keys = self.keys(prepared, k, self.threads)
        kept = keys[np.arange(keys.shape[1]) < counts[:, None]]
        rows = self.documents.sorted.rows[keyed.positions_of(kept)]
        return Hits(counts, rows, keyed.scores_of(kept))

    def keys(
        self, bags: Bags, hits: int, threads: int | None = None
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.uint64]]:
        """Search as `hits` does, without looking up docids.

        Returns:
            Number of hits of each query [Q]; keys of `kernels.search` [Q, hits], best first.
        """
        size = len(self._shared.order) if self.allowed is None else int(self.allowed.sum())
        hits = max(1, min(hits, size))
        counts = np.zeros(len(bags), np.int32)
        best = np.empty((len(bags), hits), np.uint64)
        if not self._compiled(bags):
            keyed.search(hits, self._shared.order, *self.kernel_arguments(bags), self.allowed, counts, best)
            return counts, best
        from hybrid_cli.lexical import kernels

        workers = max(1, min(threads or cpu_count(), len(bags)))
        bounds, documents = self.impacts.bounds(bags.terms), (self._shared.order, self.allowed)

        if workers == 1:
            kernels.search(hits, documents, *self.kernel_arguments(bags), bounds, counts, best)
            return counts, best

        def work(begin: int, end: int) -> None:
            arguments = *self.kernel_arguments(bags.part(begin, end)), bounds
            kernels.search(hits, documents, *arguments, counts[begin:end], best[begin:end])

        with ThreadPool(workers) as pool:
            list(pool.map(lambda piece: work(*piece), bags.pieces(4 * workers)))
        return counts, best

    def compile(self) -> None:
        """Compile the loops of a search, if its postings are so many that the first search on this machine would."""
        postings = self.impacts.postings
        if 4 * len(postings) >= MANY_POSTINGS:
            frequent = np.array([int(postings.df.argmax())], np.int32)
            self._shared.read = MANY_POSTINGS + 1
            for index in (self, self._with(self.impacts, np.ones(len(self._shared.order), np.bool_))):  # with a filter
                index.keys(Bags(np.array([0, 1]), frequent, np.ones(1, np.float32)), 1, 1)

    def _compiled(self, bags: Bags) -> bool:
        """Count the postings of queries, and return whether kernels read them; numpy finds the same bits."""
        if self._shared.read > MANY_POSTINGS:
            return True
        indptr = self.impacts.postings.indptr
        self._shared.read += int((indptr[bags.terms + 1] - indptr[bags.terms]).sum())
        if self._shared.read <= FEW_POSTINGS:
            return False
        from hybrid_cli.lexical import kernels

        return self._shared.read > MANY_POSTINGS or kernels.is_compiled()

    def kernel_arguments(self, bags: Bags) -> tuple[keyed.Queries, keyed.Matrix]:
        """Return analyzed queries, their terms by falling weight, and the matrix, in the form of the kernels."""
        weights = bags.boosts * self.impacts.idf[bags.terms]
        if len(bags) == 1:  # lexsort takes longer than the search
            by_weight = np.argsort(-weights, kind="stable")
        else:
            by_weight = np.lexsort((-weights, np.repeat(np.arange(len(bags)), np.diff(bags.ends))))
        return keyed.Queries(bags.ends, bags.terms[by_weight], weights[by_weight]), self.impacts.postings.matrix(
            self.impacts.scale, bags.terms
        )

    # -------------------------------------------------------------------------------------------------- exact scores

    def scores(
        self, prepared: Bags, queries: npt.NDArray[np.integer], rows: npt.NDArray[np.integer]
    ) -> npt.NDArray[np.float32]:
        """Score pairs as `hits` does; 0 where no term matches. See `Index`."""
        pairs = queries.astype(np.int64), rows.astype(np.int64)  # the types that the kernel is compiled for
        if not self._compiled(prepared):
            return keyed.score_pairs(*pairs, *self.kernel_arguments(prepared))
        from hybrid_cli.lexical import kernels

        scores: npt.NDArray[np.float32] = kernels.score_pairs(*pairs, *self.kernel_arguments(prepared))
        return scores

    def explain(self, query: str, docid: str) -> pl.DataFrame:
        """Return term, boost (in the query) and score of each term of a query; see `Index`."""
        bag = self.bags(queries_table(query)["text"].to_list())
        alone = Bags(np.arange(len(bag.terms) + 1), bag.terms, bag.boosts)
        row = self.documents.rows(pl.Series([docid]))
        scores = self.scores(alone, np.arange(len(alone)), np.repeat(row, len(alone)))
        terms = self.impacts.postings.terms.gather(bag.terms)
        return pl.DataFrame({"term": terms, "boost": bag.boosts, "score": scores}).sort(
            "score", "term", descending=[True, False]
        )

    def query_matrix(self, texts: Sequence[str]) -> Any:
        """Return term frequencies of texts, scipy CSR [n, V]; `query_matrix(texts) @ matrix.T` is BM25."""
        from scipy.sparse import csr_matrix

        bags = self.bags(texts)
        return csr_matrix((bags.boosts, bags.terms, bags.ends), shape=(len(texts), len(self.impacts.idf)))

    @cached_property
    def matrix(self) -> Any:
        """Impacts including IDF, scipy CSC [N, V]."""
        from scipy.sparse import csc_matrix

        postings = self.impacts.postings
        shape = (len(postings.lengths), len(self.impacts.idf))
        return csc_matrix((self.impacts.values(), postings.rows, postings.indptr), shape=shape)

    def rows(self, docids: pl.Series) -> Any:
        """Return the rows of `matrix` for some ids, scipy CSR [n, V].

        Raises:
            InputError: a docid is not in the index.
        """
        rows, order = np.unique(
            runs.positions(docids, self.docids, "the lexical index has no document"), return_inverse=True
        )
        return self.impacts.of_documents(rows).rows(order)

    @property
    def idf(self) -> npt.NDArray[np.float32]:
        """Inverse document frequency of each term, [V]."""
        return self.impacts.idf

    def feedback(self, weighted: pl.DataFrame, queries: int, documents: int) -> FirstHits:
        """Return the first hits of queries (query, term, boost), for pseudo-relevance feedback."""
        hits = self._with(self.impacts, None).hits(self.bags_of(weighted, queries), documents)
        return FirstHits(self._shared.feedback, weighted, hits)


@dataclass(frozen=True, repr=False)
class ExpandedQueries(Index):
    """An index of BM25 whose queries are expanded by RM3.

    Attributes:
        index: the index.
        rm3: parameters.
    """

    index: LexicalIndex
    rm3: Rm3
    kind = "--rm3"

    @property
    def documents(self) -> Documents:
        """See `Index`."""
        return self.index.documents

    def prepare(self, queries: pl.DataFrame) -> Bags:
        """Return expanded queries."""
        weighted = self.index.weighted(queries["text"].to_list())
        return self.index.bags_of(
            self.index.feedback(weighted, len(queries), self.rm3.fb_docs).expanded(self.rm3), len(queries)
        )

    def hits(self, prepared: Bags, k: int) -> Hits:
        """See `Index`."""
        return self.index.hits(prepared, k)

    def within(self, allowed: Allowed) -> ExpandedQueries:
        """See `Index`."""
        return ExpandedQueries(self.index.within(allowed), self.rm3)


def _docids(folder: Path) -> pl.Series:
    """Return the ids of an index by row."""
    return pl.read_parquet(storage.validate_parquet(folder / layout.DOCIDS), glob=False)["docid"]


def read_parameters(folder: Path) -> dict[str, Any]:
    """Return the stored k1 and b of an index, and the record of their tuning."""
    file = folder / layout.PARAMETERS
    try:
        stored = read_object(file)
    except InputError as error:
        problem = f"{error}; rebuild the index with `hybrid index-bm25 --overwrite`"
        raise HybridError(problem, code="damaged", path=file) from None
    if wrong := mismatch_of_fields(stored, {"k1": float, "b": float}):
        raise HybridError(f"{file}: {wrong}", code="damaged", path=file)
    return stored
