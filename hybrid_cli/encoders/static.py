"""The static encoder: a text's vector is the weighted sum of its terms' vectors, one table for each side.

    query    sum over its terms of  count(t) sqrt(idf(t)) Q[t]
    document sum over its terms of  sqrt(idf(t)) tf / (tf + k1 (1 - b + b |d| / avgdl)) D[t]

With the identity for both tables the score would be BM25 itself. Terms are those of Lucene's analysis, which the
lexical index has too; a term that has no row of its own shares one of a few with others, chosen by a hash.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from hybrid_cli import artifacts
from hybrid_cli.encoders.contract import FILE
from hybrid_cli.errors import InputError
from hybrid_cli.lexical.analysis import Analyzer
from hybrid_cli.lexical.impacts import quantized
from hybrid_cli.lexical.index import LexicalIndex

KIND = "static"
_TERMS, _TABLES = "terms.parquet", "tables.safetensors"

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class StaticContract:
    """What besides the tables decides a vector.

    Attributes:
        language: of the analysis.
        fields: of a document, which of title and text are read.
        k1, b, average_length: BM25's, of the collection that it was trained on.
        unknown_idf: weight of a term without a row of its own.
        dim: length of the vectors.
        shared_rows: rows for all such terms.
    """

    language: str
    fields: tuple[str, ...]
    k1: float
    b: float
    average_length: float
    unknown_idf: float
    dim: int
    shared_rows: int


class StaticEncoder(nn.Module):
    """Texts to vectors by looking up terms.

    Args:
        contract: see there.
        terms: those with a row of their own; the shared rows come after theirs.
        idf: [terms] their weights.

    Attributes:
        query_table, document_table: [terms + shared_rows, dim]
        truncated: always 0; it reads whole texts.
    """

    truncated = 0

    def __init__(self, contract: StaticContract, terms: pl.Series, idf: Floats, fingerprint: str = ""):
        super().__init__()
        self.contract, self.terms, self.fingerprint = contract, terms, fingerprint
        shared = np.full(contract.shared_rows, contract.unknown_idf, np.float32)
        self.idf: Floats = np.concatenate([idf.astype(np.float32), shared])
        self.query_table = nn.Parameter(torch.zeros(len(self.idf), contract.dim))
        self.document_table = nn.Parameter(torch.zeros(len(self.idf), contract.dim))

    @classmethod
    def over(
        cls, index: LexicalIndex, fields: Sequence[str], dim: int, most_terms: int, shared_rows: int
    ) -> StaticEncoder:
        """An encoder without vectors yet, for the terms of a lexical index.

        Args:
            fields: of a document, which the index reads.
            most_terms: terms with a row of their own, those in most documents first.
        """
        postings = index.impacts.postings
        kept = np.sort(np.argsort(-postings.df, kind="stable")[:most_terms])
        counted = max(1, postings.counted)
        contract = StaticContract(
            language=index.language,
            fields=tuple(fields),
            k1=index.k1,
            b=index.b,
            average_length=postings.tokens / counted,
            unknown_idf=math.log(1 + (counted - 0.5) / 1.5),  # as if one document had it
            dim=dim,
            shared_rows=shared_rows,
        )
        return cls(contract, postings.terms.gather(kept), index.idf[kept])

    @classmethod
    def load(cls, folder: Path, prefix: int | None = None) -> StaticEncoder:
        """Open what `save` wrote.

        Args:
            prefix: how many values of each vector are kept, from its beginning; all if None.

        Raises:
            InputError: a file is missing or does not fit, or the vectors are shorter.
        """
        try:
            stored: dict[str, Any] = json.loads((folder / FILE).read_text("utf-8"))
            stored.pop("kind")
            contract = StaticContract(**{**stored, "fields": tuple(stored["fields"])})
            known = pl.read_parquet(folder / _TERMS)
            if prefix is not None and not 0 < prefix <= contract.dim:
                raise InputError(f"--prefix {prefix}: the vectors of {folder} have {contract.dim} values")
            contract = replace(contract, dim=prefix or contract.dim)
            encoder = cls(contract, known["term"], known["idf"].to_numpy())
            tables = load_file(folder / _TABLES)
            encoder.load_state_dict({name: table[:, : contract.dim].contiguous() for name, table in tables.items()})
        except (OSError, TypeError, ValueError, RuntimeError, pl.exceptions.PolarsError) as error:
            raise InputError(f"{folder}: is no whole static encoder ({str(error).splitlines()[0]})") from None
        files = "".join(artifacts.fingerprint(folder / name) for name in (FILE, _TERMS, _TABLES)) + str(prefix or "")
        encoder.fingerprint = hashlib.blake2b(files.encode(), digest_size=16).hexdigest()
        return encoder.eval()

    def save(self, folder: Path) -> None:
        """Write contract, terms and tables."""
        pl.DataFrame({"term": self.terms, "idf": self.idf[: len(self.terms)]}).write_parquet(folder / _TERMS)
        save_file({name: value.contiguous() for name, value in self.state_dict().items()}, folder / _TABLES)
        (folder / FILE).write_text(json.dumps(self.describe(), indent=2) + "\n", "utf-8")

    def describe(self) -> dict[str, Any]:
        """The contract, as manifests hold it."""
        return {"kind": KIND, **asdict(self.contract), "fields": list(self.contract.fields)}

    @property
    def dim(self) -> int:
        """Length of the vectors."""
        return self.contract.dim

    @property
    def device(self) -> torch.device:
        """Where the tables are."""
        return self.query_table.device

    def encode_queries(self, texts: Sequence[str], batch_tokens: int = 0) -> np.ndarray:
        """Vectors [n, dim], float32, in the order of `texts`; all zero without a term."""
        return self._vectors(self.query_weights(texts), self.query_table)

    def encode_documents(self, titles: Sequence[str], texts: Sequence[str], batch_tokens: int = 0) -> np.ndarray:
        """Vectors [n, dim], float32, in the order of `texts`; all zero without a term."""
        return self._vectors(self.document_weights(titles, texts), self.document_table)

    def query_weights(self, texts: Sequence[str]) -> Any:
        """scipy CSR [n, rows] of the weights of each text's terms."""
        return self._counts(texts)[0].multiply(np.sqrt(self.idf)).tocsr().astype(np.float32)

    def document_weights(self, titles: Sequence[str], texts: Sequence[str]) -> Any:
        """scipy CSR [n, rows] of the weights of each document's terms."""
        fields = {"title": titles, "text": texts}
        whole = ["\n".join(parts) for parts in zip(*(fields[name] for name in self.contract.fields), strict=True)]
        counts, lengths = self._counts(whole)
        relative = quantized(lengths).astype(np.float32) / np.float32(self.contract.average_length)
        saturation = self.contract.k1 * (1 - self.contract.b + self.contract.b * relative)
        counts.data = counts.data / (counts.data + np.repeat(saturation, np.diff(counts.indptr)))
        return counts.multiply(np.sqrt(self.idf)).tocsr().astype(np.float32)

    def rows_of(self, terms: pl.Series) -> npt.NDArray[np.int64]:
        """[n] the table's row of each term."""
        found = pl.DataFrame({"term": terms}).join(self._rows, on="term", how="left", maintain_order="left")["row"]
        rows = found.fill_null(-1).to_numpy().astype(np.int64)
        lost = np.flatnonzero(rows < 0)
        if len(lost):
            distinct = terms.gather(lost).unique()
            shared = {term: len(self.terms) + _hash(term) % self.contract.shared_rows for term in distinct}
            rows[lost] = [shared[term] for term in terms.gather(lost)]
        return rows

    def _counts(self, texts: Sequence[str]) -> tuple[Any, npt.NDArray[np.int64]]:
        """scipy CSR [n, rows] of how often a row's terms stand in each text, and the texts' lengths in tokens."""
        from scipy.sparse import csr_matrix

        tokens, lengths = self._analyzer.tokens(texts)
        rows = self.rows_of(pl.Series("term", pl.from_arrow(tokens), dtype=pl.String))
        ends = np.concatenate(([0], np.cumsum(lengths)))
        counts = csr_matrix((np.ones(len(rows), np.float32), rows, ends), shape=(len(texts), len(self.idf)))
        counts.sum_duplicates()
        return counts, lengths

    def _vectors(self, weights: Any, table: Tensor) -> np.ndarray:
        return np.asarray(weights @ table.detach().numpy(), np.float32)

    @cached_property
    def _analyzer(self) -> Analyzer:
        return Analyzer(self.contract.language)

    @cached_property
    def _rows(self) -> pl.DataFrame:
        return pl.DataFrame({"term": self.terms}).with_row_index("row")


def _hash(term: str) -> int:
    return int.from_bytes(hashlib.blake2b(term.encode(), digest_size=8).digest())
