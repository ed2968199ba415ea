"""Learned sparse encoders: texts to weights of terms, under one contract, stored as impacts or as counts for BM25.

`splade` and `sparterm` weight all terms of the vocabulary, `unicoil` the word pieces of the text, `deepct` its words.
The score is the inner product of the weights; for `deepct` it is BM25 on the weighted counts, and queries are analyzed
as for BM25. Weights are stored as integers, as in Anserini's impact indexes, so both rank documents equally.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
import torch
from torch import Tensor, nn

from hybrid_cli import storage
from hybrid_cli.encoders import contract as contracts
from hybrid_cli.encoders import sparse_towers as towers
from hybrid_cli.encoders.adapters import adapter_of, load_adapter, read_base, save_adapter
from hybrid_cli.encoders.loading import load_tokenizer, refuse_other_tokenizer, save_tokenizer
from hybrid_cli.encoders.models import Known, placed, resolve
from hybrid_cli.encoders.options import DEVICE, Precision, SparseArchitecture
from hybrid_cli.encoders.transformer import BATCH_TOKENS, batches_by_length, unread_share
from hybrid_cli.errors import option_error, path_error
from hybrid_cli.inputs.json_values import read_object
from hybrid_cli.lexical.analysis import LazyAnalyzer
from hybrid_cli.lexical.options import ENGLISH
from hybrid_cli.storage import disk
from hybrid_cli.storage.layout import CONTRACT, IDF_TABLE, MODULES

_CHUNK = re.compile(r"\S+")


class LiteralTerms:
    """The words of a text with their analyzed terms, by the position of their first piece.

    Args:
        head: characters before the text; words that begin there are skipped.
    """

    def __init__(self, head: int = 0):
        self._head, self._analyzer = head, LazyAnalyzer(ENGLISH)

    def words(self, texts: Sequence[str], encodings: Sequence[Any]) -> list[list[tuple[int, list[str]]]]:
        """Return position and terms of each word of each text.

        Lucene and the tokenizer may split a piece of text between spaces differently (`U.S.`): of such a piece, the
        terms that no word has alone go to the first word.

        Args:
            texts: [n] inputs of the tokenizer.
            encodings: [n] their encodings.
        """
        split = [list(self._split(text, encoding)) for text, encoding in zip(texts, encodings, strict=True)]
        wanted = dict.fromkeys(part for pieces in split for chunk, words in pieces for part in (chunk, *words.values()))
        known = dict(zip(wanted, self._analyzer.analyze(list(wanted)), strict=True))
        return [[word for chunk, words in pieces for word in _terms(chunk, words, known)] for pieces in split]

    def _split(self, text: str, encoding: Any) -> list[tuple[str, dict[int, str]]]:
        """Return the pieces of text between spaces, with the words of each by position."""
        chunks = [match.span() for match in _CHUNK.finditer(text)]
        pieces: list[tuple[str, dict[int, str]]] = [(text[begin:end], {}) for begin, end in chunks]
        number, ends = 0, {}
        for position, word in enumerate(encoding.word_ids):
            if word is not None:
                ends[word] = encoding.offsets[position][1]
        seen: set[int] = set()
        for position, word in enumerate(encoding.word_ids):
            if word is None or word in seen:
                continue
            seen.add(word)
            begin = encoding.offsets[position][0]
            while number < len(chunks) and begin >= chunks[number][1]:
                number += 1
            if begin >= self._head and number < len(chunks):
                pieces[number][1][position] = text[begin : ends[word]].strip()
        return [(chunk, words) for chunk, words in pieces if words]


def _terms(chunk: str, words: Mapping[int, str], known: Mapping[str, list[str]]) -> list[tuple[int, list[str]]]:
    whole = known[chunk]
    by_position = {position: [term for term in known[word] if term in whole] for position, word in words.items()}
    covered = {term for terms in by_position.values() for term in terms}
    by_position[min(by_position)] += [term for term in whole if term not in covered]
    return list(by_position.items())


_MLM = ("splade", "sparterm")
Ints: TypeAlias = npt.NDArray[np.int32]


@dataclass(frozen=True)
class SparseContract(contracts.TextForm):
    """Parameters of a sparse encoder, besides the weights; see `TextForm` for the others.

    Attributes:
        architecture: `splade`, `unicoil`, `deepct` or `sparterm`.
        pooling, saturation: see `sparse_towers.VocabularyWeights`.
        query_table: query weights come from a table of word pieces, not from the transformer.
    """

    architecture: SparseArchitecture = "splade"
    pooling: towers.Repeats = "max"
    saturation: int = 1
    query_table: bool = False

    @property
    def counts(self) -> bool:
        """The weights are counts for BM25."""
        return self.architecture == "deepct"

    def to_dict(self) -> dict[str, Any]:
        """Return JSON values for `encoder.json` and manifests."""
        return {"kind": contracts.SPARSE, **super().to_dict()}


class TermLists(NamedTuple):
    """Terms of documents with their quantized weights.

    Attributes:
        distinct: [n] number of terms of each document.
        terms: terms of all documents, concatenated.
        weights: [number of terms] integers above 0.
    """

    distinct: npt.NDArray[np.int64]
    terms: pa.DictionaryArray
    weights: Ints


def read_sparse_contract(folder: Path, architecture: SparseArchitecture | None = None) -> SparseContract:
    """Return the contract of a sparse encoder: from `encoder.json`, sentence-transformers, or the architecture.

    Args:
        folder: folder of the encoder.
        architecture: architecture of a plain checkpoint.

    Raises:
        InputError: an unknown field, another architecture than the stored one, or none.
    """
    if (folder / CONTRACT).is_file() and read_object(folder / CONTRACT).get("kind") == contracts.SPARSE:
        contract = contracts.stored_contract(SparseContract, folder)
        if architecture not in (None, contract.architecture):
            problem = f"{folder} is a {contract.architecture} encoder"
            raise option_error("architecture", architecture, problem, code="conflicting-options")
        return contract
    if architecture is None:
        stored = contracts.stored_encoder(folder)
        if stored.kind != contracts.SPARSE:
            raise option_error("architecture", None, f"{folder} is a plain checkpoint; pass it", code="missing-option")
        foreign = stored.contract()
        assert isinstance(foreign, SparseContract)
        return foreign
    table = architecture == "splade" and (folder / IDF_TABLE).is_file()
    return SparseContract(
        architecture=architecture, saturation=0 if architecture == "sparterm" else 1, query_table=table
    )


class TermWeights:
    """An encoder of queries and documents as weights of terms.

    Attributes:
        contract: parameters of the encoder.
        fingerprint: hash of the stored weights and of the contract; empty for an encoder built in memory.
        truncated: number of texts cut to the maximum length so far.
    """

    contract: SparseContract
    fingerprint: str
    truncated: int

    @property
    def dim(self) -> int:
        """Size of the vocabulary."""
        raise NotImplementedError

    @property
    def device(self) -> torch.device:
        """Device of the weights."""
        raise NotImplementedError

    @property
    def terms(self) -> pa.StringArray:
        """Word pieces by id, [V]; ids without one have names of their own."""
        raise NotImplementedError

    def describe(self) -> dict[str, Any]:
        """Return the contract as JSON values, as manifests store it."""
        return self.contract.to_dict()

    def encode_queries(self, texts: Sequence[str], batch_tokens: int = BATCH_TOKENS) -> np.ndarray:
        """Return weights [n, V], float32, in the order of `texts`; for few texts."""
        contracts.refuse_single_text(texts)
        return np.asarray(self._matrix(texts, True, batch_tokens).toarray())

    def encode_documents(
        self, titles: Sequence[str], texts: Sequence[str], batch_tokens: int = BATCH_TOKENS
    ) -> np.ndarray:
        """Return weights [n, V], float32, in the order of `texts`; for few texts."""
        contracts.refuse_single_text(titles, texts)
        return np.asarray(self._matrix(self._whole(titles, texts), False, batch_tokens).toarray())

    def document_weights(
        self, titles: Sequence[str], texts: Sequence[str], steps: int, batch_tokens: int = BATCH_TOKENS
    ) -> TermLists:
        """Return the quantized weights of documents.

        Args:
            titles, texts: [n].
            steps: integers per unit of a weight; weights below half a step are dropped.
            batch_tokens: maximum tokens of a batch, padding included.
        """
        whole = self._whole(titles, texts)
        matrix = _quantized(self._matrix(whole, False, batch_tokens), steps)
        terms = pa.DictionaryArray.from_arrays(pa.array(matrix.indices), self.terms)
        return TermLists(np.diff(matrix.indptr).astype(np.int64), terms, matrix.data)

    def query_boosts(self, texts: Sequence[str], steps: int) -> pl.DataFrame:
        """Return query (row in `texts`), term and boost, the quantized weight."""
        matrix = _quantized(self._matrix(texts, True, BATCH_TOKENS), steps)
        terms = pl.Series("term", self.terms.take(pa.array(matrix.indices)), dtype=pl.String)
        query = np.repeat(np.arange(len(texts)), np.diff(matrix.indptr))
        return pl.DataFrame({"query": query, "term": terms, "boost": matrix.data.astype(np.float64)})

    def _whole(self, titles: Sequence[str], texts: Sequence[str]) -> list[str]:
        return [self.contract.document(title, text) for title, text in zip(titles, texts, strict=True)]

    def named_terms(self, tokenizer: Any) -> pa.StringArray:
        """Return the word pieces of a tokenizer by id, [V]."""
        known = {number: piece for piece, number in tokenizer.get_vocab().items()}
        return pa.array([known.get(number, f"[id {number}]") for number in range(self.dim)], pa.string())

    def _matrix(self, texts: Sequence[str], of_queries: bool, batch_tokens: int) -> Any:
        """Return positive weights as a scipy CSR matrix [n, V], float32."""
        raise NotImplementedError


class SparseEncoder(nn.Module, TermWeights):
    """Encoder of queries and documents as weights of terms.

    Attributes:
        contract: parameters of the encoder.
        query_tower, document_tower: share their network, unless queries have a table.
        fingerprint: hash of the stored weights and of the contract; empty for an encoder built in memory.
        truncated: number of texts cut to the maximum length so far.
        fresh: names of the parts that the checkpoint lacks, from torch's random state.
    """

    def __init__(
        self,
        contract: SparseContract,
        network: towers.Network,
        tokenizer: Any,
        table: towers.TableWeights | None = None,
        fingerprint: str = "",
    ):
        super().__init__()
        self.contract, self.fingerprint, self.truncated = contract, fingerprint, 0
        self.fresh: list[str] = []
        self.document_tower = towers.SparseTower(network, tokenizer, contract)
        self.query_tower = self.document_tower
        if table is not None or contract.architecture == "unicoil":
            self.query_tower = towers.SparseTower(table or network, tokenizer, contract, "sum")

    @classmethod
    def load(
        cls,
        name: str | Path,
        *,
        device: str = DEVICE,
        dtype: Precision = "fp32",
        architecture: SparseArchitecture | None = None,
        fresh: bool = False,
        **overrides: Any,
    ) -> SparseEncoder:
        """Open a sparse encoder.

        Args:
            name: a folder, or a Hugging Face id.
            device: `auto` uses a GPU if there is one.
            dtype: precision of the weights.
            architecture: architecture of a plain checkpoint.
            fresh: parts that the checkpoint lacks are new, as the start of a training.
            overrides: contract fields to change.

        Raises:
            InputError: no such model, or a checkpoint of another architecture.
        """
        folder = resolve(name)
        known = {declaration.name for declaration in fields(SparseContract)} - {"pooling"}
        if unfit := [name for name in overrides if name not in known]:
            raise option_error(unfit[0], None, f"{folder} is a sparse encoder; omit it", code="option-does-not-apply")
        contract = read_sparse_contract(folder, architecture).changed(**overrides)
        base = read_base(folder)
        origin = contracts.TowerFiles(folder) if base is None else base.files(folder)
        body = origin.folder
        tokenizer = load_tokenizer(folder)
        if contract.architecture in _MLM:
            gated = contract.architecture == "sparterm"
            network, new = towers.load_vocabulary_weights(body, contract.pooling, contract.saturation, gated)
        else:
            network, new = towers.load_token_weights(body, contract.architecture)
        assert not isinstance(network, towers.TableWeights)
        if base is not None:
            load_adapter(folder, network.backbone, base, origin, network)
            new = []
        if new and not fresh:
            raise path_error(folder, f"has no {' and no '.join(new)}; use hybrid train-sparse", code="missing-weights")
        refuse_other_tokenizer(folder, tokenizer, network.backbone)
        size = int(network.backbone.config.vocab_size)
        table = (
            towers.TableWeights(towers.read_table(folder / IDF_TABLE, tokenizer, size))
            if contract.query_table
            else None
        )
        weights = storage.fingerprint(folder)
        encoder = cls(contract, network, tokenizer, table, contracts.contract_fingerprint(weights, contract))
        encoder.fresh = new
        return placed(encoder, device, dtype)

    @property
    def network(self) -> towers.VocabularyWeights | towers.TokenWeights:
        """Network of documents."""
        network = self.document_tower.network
        assert not isinstance(network, towers.TableWeights)
        return network

    @property
    def dim(self) -> int:
        """Size of the vocabulary of the transformer, which may have more ids than the tokenizer."""
        return int(self.network.backbone.config.vocab_size)

    @property
    def device(self) -> torch.device:
        """Device of the weights."""
        return next(self.parameters()).device

    def save(self, folder: Path) -> None:
        """Write checkpoint, tokenizer, table and contract."""
        folder.mkdir(parents=True, exist_ok=True)
        if adapter_of(self.network.backbone):
            save_adapter(folder, self.network.backbone, self.network)
        else:
            self.network.save(folder)
        with disk.by_name(folder):
            save_tokenizer(self.document_tower.tokenizer, folder)
        if isinstance(table := self.query_tower.network, towers.TableWeights):
            weights = dict(zip(self.terms.to_pylist(), table.table.tolist(), strict=True))
            disk.write_text(folder / IDF_TABLE, json.dumps({name: value for name, value in weights.items() if value}))
        disk.write_text(folder / CONTRACT, json.dumps(self.contract.to_dict(), indent=2) + "\n")

    @cached_property
    def terms(self) -> pa.StringArray:
        """Word pieces by id, [V]; ids without one have names of their own."""
        return self.named_terms(self.document_tower.tokenizer)

    def document_weights(
        self, titles: Sequence[str], texts: Sequence[str], steps: int, batch_tokens: int = BATCH_TOKENS
    ) -> TermLists:
        """Return the quantized weights of documents, or their counts; see `TermWeights.document_weights`."""
        if self.contract.counts:
            return self._literal(self._whole(titles, texts), steps, batch_tokens)
        return super().document_weights(titles, texts, steps, batch_tokens)

    def start_sparse(self, titles: Sequence[str], texts: Sequence[str]) -> None:
        """Make a new masked-language-model head sparse on some documents; see `VocabularyWeights.start_sparse`."""
        network = self.network
        assert isinstance(network, towers.VocabularyWeights)
        ids, _ = self.document_tower.tokenize(self._whole(titles, texts), "document")
        with torch.inference_mode():
            scores = [network.scores(*batch) for _, batch in self._batches(ids, BATCH_TOKENS)]
        network.start_sparse(torch.cat(scores))

    def unread_tokens(self, titles: Sequence[str], texts: Sequence[str]) -> float:
        """Return the share of the tokens of documents that the maximum length leaves out."""
        return unread_share(self.document_tower, self._whole(titles, texts))

    def _matrix(self, texts: Sequence[str], of_queries: bool, batch_tokens: int) -> Any:
        """Return positive weights as a scipy CSR matrix [n, V], float32."""
        from scipy.sparse import csr_matrix, vstack

        tower = self.document_tower
        if of_queries:
            texts, tower = [*map(self.contract.query, texts)], self.query_tower
        ids, cut = tower.tokenize(texts, "query" if of_queries else "document") if len(texts) else ([], 0)
        self.truncated += cut
        parts: list[Any] = [csr_matrix(np.zeros((0, self.dim), np.float32))]
        order: list[int] = []
        with torch.inference_mode():
            for rows, batch in self._batches(ids, batch_tokens):
                parts.append(csr_matrix(tower(*batch).float().cpu().numpy()))
                order += rows
        return vstack(parts, format="csr")[np.argsort(order)] if order else parts[0]

    def _batches(self, ids: Sequence[list[int]], batch_tokens: int) -> Iterator[tuple[list[int], list[Tensor]]]:
        """Yield the rows of a batch, with token ids and attention mask [n, L] on the device of the weights."""
        for rows in batches_by_length([*map(len, ids)], batch_tokens) if ids else ():
            batch = self.document_tower.batch([ids[row] for row in rows])
            yield rows.tolist(), [part.to(self.device) for part in batch]

    def words(self, texts: Sequence[str]) -> tuple[list[list[int]], list[list[tuple[int, list[str]]]]]:
        """Return the token ids of documents, and position and terms of each of their words; see `LiteralTerms`."""
        length = self.contract.doc_max_len
        encoded = self.document_tower.tokenizer(
            list(texts), truncation=True, max_length=length, return_token_type_ids=False
        )
        self.truncated += sum(bool(encoding.overflowing) for encoding in encoded.encodings)
        return encoded["input_ids"], self.literal.words(texts, encoded.encodings)

    # -------------------------------------------------------------------------------------------------------- DeepCT

    def _literal(self, texts: Sequence[str], steps: int, batch_tokens: int) -> TermLists:
        """Return counts of the analyzed words of documents (DeepCT, section 3.2).

        The weight of a term is the largest of its words' weights, which are those of their first pieces; negative
        weights count 0. Only terms of the analyzed text have a count.
        """
        network = self.network
        assert isinstance(network, towers.TokenWeights)
        ids, words = self.words(texts)
        weighted = [dict[str, float]() for _ in texts]
        with torch.inference_mode():
            for rows, batch in self._batches(ids, batch_tokens):
                for row, weights in zip(rows, network.tokens(*batch).cpu().tolist(), strict=True):
                    for position, terms in words[row]:
                        for term in terms:
                            weighted[row][term] = max(weights[position], weighted[row].get(term, 0.0))
        kept = [
            {term: count for term, w in weights_of_text.items() if (count := round(steps * w)) > 0}
            for weights_of_text in weighted
        ]
        terms = pa.array(
            [term for weights_of_text in kept for term in weights_of_text], pa.string()
        ).dictionary_encode()
        counts = np.array([count for weights_of_text in kept for count in weights_of_text.values()], np.int32)
        return TermLists(np.array([*map(len, kept)], np.int64), terms, counts)

    @cached_property
    def literal(self) -> LiteralTerms:
        """Words of documents, for DeepCT."""
        return LiteralTerms(len(self.contract.doc_prefix))


def _quantized(matrix: Any, steps: int) -> Any:
    """Return rint(weights * steps) of a scipy CSR matrix, int32, without zeros."""
    counts = matrix.copy()
    counts.data = np.rint(counts.data * np.float32(steps)).astype(np.int32)
    counts.eliminate_zeros()
    counts.sort_indices()
    return counts


def load_sparse(
    name: str | Path,
    *,
    device: str = DEVICE,
    dtype: Precision = "fp32",
    architecture: SparseArchitecture | None = None,
    known: Known = None,
    **changes: Any,
) -> TermWeights:
    """Open a sparse encoder, computed here or in sentence-transformers; see `SparseEncoder.load`."""
    folder = resolve(name)
    if architecture is None and (folder / MODULES).is_file() and not (folder / CONTRACT).is_file():
        encoder: TermWeights = contracts.in_library("LibrarySparse").load(folder, device, dtype, **changes)
        return encoder
    return SparseEncoder.load(folder, device=device, dtype=dtype, architecture=architecture, **changes)
