"""The static encoder: the vector of a text is the weighted sum of term vectors, with one table for queries and one for
documents.

    query    sum over its terms of  count(t) sqrt(idf(t)) Q[t]
    document sum over its terms of  sqrt(idf(t)) tf / (tf + k1 (1 - b + b |d| / avgdl)) D[t]

If both tables were the identity, the score would be BM25. Terms come from Lucene's analysis, as in the lexical index.
Frequent terms have a row of their own; the others are hashed into a few buckets. The encoder is our own, for
imitating BM25 as SPAR's Lambda does (section 4.1) without a transformer.
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

from hybrid_cli import storage
from hybrid_cli.encoders.contract import STATIC, refuse_single_text, refuse_truncation, stored_contract
from hybrid_cli.encoders.models import refuse_changes
from hybrid_cli.errors import path_error
from hybrid_cli.lexical.analysis import LazyAnalyzer
from hybrid_cli.lexical.impacts import quantize_lengths
from hybrid_cli.lexical.index import LexicalIndex
from hybrid_cli.storage import disk
from hybrid_cli.storage.layout import CONTRACT, STATIC_TABLES, TERMS

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class StaticContract:
    """Parameters of a static encoder, besides the tables.

    Attributes:
        language: language of the text analysis.
        fields: encoded document fields: title, text.
        k1: BM25's k1.
        b: BM25's b.
        average_length: average document length of the training collection, in tokens.
        unknown_idf: idf of a term without a row of its own.
        dim: length of the vectors.
        hash_buckets: rows shared by terms without a row of their own.
    """

    language: str
    fields: tuple[str, ...]
    k1: float
    b: float
    average_length: float
    unknown_idf: float
    dim: int
    hash_buckets: int


class StaticEncoder(nn.Module):
    """Encoder that sums the vectors of the terms of a text.

    Args:
        contract: see `StaticContract`.
        terms: terms with a row of their own; the rows of the hash buckets follow.
        idf: [terms] weights of the terms.

    Attributes:
        dim: length of the vectors.
        query_table: [terms + hash_buckets, dim]
        document_table: [terms + hash_buckets, dim]
        truncated: always 0; texts are never truncated.
    """

    truncated = 0

    def __init__(self, contract: StaticContract, terms: pl.Series, idf: Floats, fingerprint: str = ""):
        super().__init__()
        self.contract, self.terms, self.fingerprint, self.dim = contract, terms, fingerprint, contract.dim
        hashed = np.full(contract.hash_buckets, contract.unknown_idf, np.float32)
        self.idf: Floats = np.concatenate([idf.astype(np.float32), hashed])
        self.query_table = nn.Parameter(torch.zeros(len(self.idf), contract.dim))
        self.document_table = nn.Parameter(torch.zeros(len(self.idf), contract.dim))

    @classmethod
    def over(
        cls, index: LexicalIndex, fields: Sequence[str], dim: int, vocab_size: int, hash_buckets: int
    ) -> StaticEncoder:
        """Return an encoder with zero tables for the terms of a lexical index.

        Args:
            index: lexical index with terms, idf and BM25's parameters.
            fields: document fields of the index.
            dim: length of the vectors.
            vocab_size: number of terms with a row of their own, the most frequent ones.
            hash_buckets: rows for all other terms.
        """
        postings = index.impacts.postings
        kept = np.sort(np.argsort(-postings.df, kind="stable")[:vocab_size])
        counted = max(1, postings.counted)
        contract = StaticContract(
            language=index.language,
            fields=tuple(fields),
            k1=index.k1,
            b=index.b,
            average_length=postings.tokens / counted,
            unknown_idf=math.log(1 + (counted - 0.5) / 1.5),  # the idf of a term in one document
            dim=dim,
            hash_buckets=hash_buckets,
        )
        return cls(contract, postings.terms.gather(kept), index.idf[kept])

    @classmethod
    def load(cls, folder: Path, *, truncate_dim: int | None = None, **options: Any) -> StaticEncoder:
        """Open a folder written by `save`.

        Args:
            folder: folder of the encoder.
            truncate_dim: number of leading values kept of each vector; None for all.
            options: of `open_encoder`; those of a transformer are refused, and its device and precision not used.

        Raises:
            InputError: a file is missing or does not fit, or the vectors are shorter than `truncate_dim`.
        """
        ours = ("device", "dtype", "known")
        refuse_changes(folder, {name: value for name, value in options.items() if name not in ours}, STATIC)
        try:
            contract = stored_contract(StaticContract, folder)
            known = pl.read_parquet(folder / TERMS, glob=False)
            refuse_truncation(truncate_dim, contract.dim, folder)
            tables = load_file(folder / STATIC_TABLES)
            expected = (len(known) + contract.hash_buckets, contract.dim)
            if any(tuple(table.shape) != expected for table in tables.values()):
                raise ValueError(f"{STATIC_TABLES} has tables of other sizes than {expected[0]:,} x {expected[1]:,}")
            contract = replace(contract, dim=truncate_dim or contract.dim)
            encoder = cls(contract, known["term"], known["idf"].to_numpy())
            encoder.load_state_dict({name: table[:, : contract.dim].contiguous() for name, table in tables.items()})
        except (OSError, TypeError, ValueError, RuntimeError, pl.exceptions.PolarsError) as error:
            raise path_error(folder, f"damaged static encoder ({str(error).splitlines()[0]})") from None
        files = "".join(storage.fingerprint(folder / name) for name in (CONTRACT, TERMS, STATIC_TABLES))
        files += str(truncate_dim or "")
        encoder.fingerprint = hashlib.blake2b(files.encode(), digest_size=16).hexdigest()
        return encoder.eval()

    def save(self, folder: Path) -> None:
        """Write contract, terms and tables."""
        with disk.create(folder / TERMS) as opened:
            pl.DataFrame({"term": self.terms, "idf": self.idf[: len(self.terms)]}).write_parquet(opened)
        with disk.by_name(folder / STATIC_TABLES) as file:
            save_file({name: value.contiguous() for name, value in self.state_dict().items()}, file)
        disk.write_text(folder / CONTRACT, json.dumps(self.describe(), indent=2) + "\n")

    def describe(self) -> dict[str, Any]:
        """Return the contract as JSON values, as manifests store it."""
        return {"kind": STATIC, **asdict(self.contract), "fields": list(self.contract.fields)}

    @property
    def device(self) -> torch.device:
        """Device of the tables."""
        return self.query_table.device

    def encode_queries(self, texts: Sequence[str], batch_tokens: int = 0) -> np.ndarray:
        """Return vectors [n, dim], float32, in the order of `texts`; zero for a text without terms."""
        refuse_single_text(texts)
        return self._vectors(self.query_weights(texts), self.query_table)

    def encode_documents(self, titles: Sequence[str], texts: Sequence[str], batch_tokens: int = 0) -> np.ndarray:
        """Return vectors [n, dim], float32, in the order of `texts`; zero for a text without terms."""
        refuse_single_text(titles, texts)
        return self._vectors(self.document_weights(titles, texts), self.document_table)

    def query_weights(self, texts: Sequence[str]) -> Any:
        """Return the term weights of queries as a scipy CSR matrix [n, rows]."""
        return self._counts(texts)[0].multiply(np.sqrt(self.idf)).tocsr().astype(np.float32)

    def document_weights(self, titles: Sequence[str], texts: Sequence[str]) -> Any:
        """Return the term weights of documents as a scipy CSR matrix [n, rows]."""
        fields = {"title": titles, "text": texts}
        whole = ["\n".join(parts) for parts in zip(*(fields[name] for name in self.contract.fields), strict=True)]
        counts, lengths = self._counts(whole)
        relative = quantize_lengths(lengths).astype(np.float32) / np.float32(self.contract.average_length)
        saturation = self.contract.k1 * (1 - self.contract.b + self.contract.b * relative)
        counts.data = counts.data / (counts.data + np.repeat(saturation, np.diff(counts.indptr)))
        return counts.multiply(np.sqrt(self.idf)).tocsr().astype(np.float32)

    def rows_of(self, terms: pl.Series) -> npt.NDArray[np.int64]:
        """Return the table row [n] of each term."""
        joined = pl.DataFrame({"term": terms}).join(self._rows, on="term", how="left", maintain_order="left")["row"]
        rows = joined.fill_null(-1).to_numpy().astype(np.int64)
        unknown = np.flatnonzero(rows < 0)
        if len(unknown):
            distinct = terms.gather(unknown).unique()
            bucket = {term: len(self.terms) + _hash(term) % self.contract.hash_buckets for term in distinct}
            rows[unknown] = [bucket[term] for term in terms.gather(unknown)]
        return rows

    def _counts(self, texts: Sequence[str]) -> tuple[Any, npt.NDArray[np.int64]]:
        """Return term counts as a scipy CSR matrix [n, rows], and the lengths of the texts in tokens."""
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
    def _analyzer(self) -> LazyAnalyzer:
        return LazyAnalyzer(self.contract.language)

    @cached_property
    def _rows(self) -> pl.DataFrame:
        return pl.DataFrame({"term": self.terms}).with_row_index("row")


def _hash(term: str) -> int:
    return int.from_bytes(hashlib.blake2b(term.encode(), digest_size=8).digest())
