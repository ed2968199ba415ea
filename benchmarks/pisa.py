"""PISA as a peer of BM25, through the wheel `pyterrier-pisa` and without Java: the same terms of the same documents.

PISA does not round document lengths as Lucene does, so scores differ by some percent.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import polars as pl
from scipy.sparse import csc_matrix

from hybrid_cli.collections.collection import documents
from hybrid_cli.lexical.build import contents
from hybrid_cli.lexical.impacts import Postings


def installed() -> bool:
    return find_spec("pyterrier_pisa") is not None


def _opened(folder: Path) -> Any:
    import pyterrier_pisa

    return pyterrier_pisa.PisaIndex(str(folder), stemmer="none", stops="none")


def write_index(postings: Postings, docids: pl.Series, folder: Path) -> None:
    shape, terms = (len(docids), len(postings.terms)), postings.terms.to_list()
    counts: Any = csc_matrix((postings.tfs, postings.rows, postings.indptr), shape=shape).tocsr()

    def bags() -> Iterator[dict[str, Any]]:
        for docid, begin, end in zip(docids, counts.indptr[:-1], counts.indptr[1:], strict=True):
            ids, tfs = counts.indices[begin:end].tolist(), counts.data[begin:end].tolist()
            yield {"docno": docid, "toks": {terms[term]: tf for term, tf in zip(ids, tfs, strict=True)}}

    _opened(folder).toks_indexer(scale=1).index(bags())


def index_texts(collection: Path, folder: Path) -> None:
    """Index titles and texts on one thread with PISA's own tokenizer and Porter stemmer."""
    import pyterrier_pisa

    index = pyterrier_pisa.PisaIndex(str(folder), stemmer="porter2", threads=1)
    batches = (contents(batch, ("title", "text")) for batch in documents(collection))
    index.indexer("text", mode="overwrite").index(
        {"docno": docid, "text": text} for batch in batches for docid, text in batch.iter_rows()
    )


def search_task(
    folder: Path, qids: Sequence[str], tokens: Sequence[Sequence[str]], hits: int, k1: float, b: float
) -> Callable[[], Any]:
    """Return a search of analyzed queries on one thread, whose result is a data frame."""
    import pandas as pd

    queries = pd.DataFrame({"qid": qids, "query_toks": [dict(Counter(words)) for words in tokens]})
    options = {"num_results": hits, "query_algorithm": "block_max_maxscore", "toks_scale": 1}
    retriever = _opened(folder).bm25(k1=k1, b=b, **options)
    return lambda: retriever.transform(queries)
