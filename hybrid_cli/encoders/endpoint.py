"""Texts to vectors by a model behind an embeddings API: of vLLM, Ollama, TEI, llama.cpp or OpenAI.

`--model https://HOST/v1#NAME` names it. In the cache of this machine, such a name has a folder with an `encoder.json`,
and next to it the vectors of texts: an index records the name, and nobody is asked for vectors whose name was not given
on this machine. The vector of one text is a part of the contract, which shows whether the model is still the same.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from hybrid_cli import console
from hybrid_cli.encoders.contract import ENDPOINT, LONGEST, Encoder, TextForm, contract_fingerprint, refuse_truncation
from hybrid_cli.encoders.models import endpoint_folder, refuse_changes
from hybrid_cli.encoders.options import Calling
from hybrid_cli.errors import HybridError, InputError, option_error
from hybrid_cli.http_client import Api, SpentError
from hybrid_cli.inputs.json_values import make_typed, read_object
from hybrid_cli.storage.layout import CONTRACT
from hybrid_cli.threads import ThreadPool

BATCH = 32  # texts of a call: the most that TEI takes by default
PROBE = "The quick brown fox jumps over the lazy dog."  # text whose vector is a part of the contract
_LEADING = 32  # values of it
_SAME = 0.99  # cosine: servers round differently from day to day
_CHARACTERS = 4  # of a token
_AT_ONCE = 500  # rows of a query of SQLite
Key = bytes  # hash of a text


@dataclass(frozen=True)
class Sample:
    """What is known of the vectors of a model.

    Attributes:
        dim: length of its vectors.
        probe: leading values of the vector of `PROBE`.
        unit: this vector has length 1.
    """

    dim: int
    probe: tuple[float, ...]
    unit: bool = False

    @classmethod
    def of(cls, vector: np.ndarray) -> Sample:
        """Return the sample of the vector of `PROBE`."""
        leading = tuple(round(float(value), 6) for value in vector[:_LEADING])
        return cls(len(vector), leading, abs(float(np.linalg.norm(vector)) - 1) < 1e-3)

    def is_of(self, other: Sample) -> bool:
        """Return whether two samples are of one model."""
        first, second = np.array(self.probe), np.array(other.probe)
        return self.dim == other.dim and first @ second >= _SAME * np.linalg.norm(first) * np.linalg.norm(second)


@dataclass(frozen=True)
class EndpointContract(TextForm):
    """Parameters of a model behind an API.

    Attributes:
        query_max_len, doc_max_len: maximum tokens, of four characters each; by default, texts are not cut.
        model: name of the model on the server.
        dim: length of its vectors.
        normalize: scale vectors to length 1; by default, if those of the model have it.
        truncate_dim: number of leading values kept of each vector; None for all.
    """

    query_max_len: int = LONGEST
    doc_max_len: int = LONGEST
    model: str = ""
    dim: int = 0
    normalize: bool = False
    truncate_dim: int | None = None


class EndpointEncoder(Encoder):
    """A model behind an embeddings API.

    Args:
        name: `https://HOST/v1#NAME`.
        known: contract that an index stores; the model must still be the same.
        changes: fields of the contract.
    """

    truncated: int = 0  # type: ignore[misc]

    def __init__(self, name: str, known: Mapping[str, Any] | None = None, **changes: Any) -> None:
        self.name, self._changes = name, changes
        self._cache = _Cache(endpoint_folder(name, local=True).with_suffix(".sqlite"))
        self._expected = None if known is None else make_typed(Sample, {key: known.get(key) for key in _SAMPLE}, name)
        self._is_checked, self._batch = False, BATCH
        self.limit(Calling())

    @classmethod
    def load(
        cls, folder: Path, *, device: str, dtype: str, known: Mapping[str, Any] | None = None, **changes: Any
    ) -> EndpointEncoder:
        """Open the encoder in a folder; see `models.open_encoder`. The server is not asked yet."""
        stored = read_object(folder / CONTRACT)
        name = f"{stored.get('url')}#{stored.get('model')}"
        refuse_changes(folder, {key: value for key, value in changes.items() if key not in _CHANGES}, ENDPOINT)
        return cls(name, known, **changes)

    def limit(self, calling: Calling) -> None:
        """Set the limits of later calls."""
        self._calling = calling
        url = self.name.partition("#")[0]
        self._api = Api(url, "model", calling.timeout, calling.max_calls, shown=self.name)

    @cached_property
    def _sample(self) -> Sample:
        """What is known of the model: from the index or the cache, else by a call."""
        cached = self._cached_sample()
        if cached and self._expected and not cached.is_of(self._expected):
            raise self._changed("the vectors of the index are not like those of the cache")
        return self._expected or cached or Sample.of(self._called([PROBE])[0])

    def _cached_sample(self) -> Sample | None:
        """Return the sample of the first call of the model; None before."""
        kept = self._cache.known([_key(PROBE)], "vector")
        return Sample.of(np.frombuffer(kept[_key(PROBE)], "<f4")) if kept else None

    @cached_property
    def contract(self) -> EndpointContract:
        """The contract."""
        base = EndpointContract(model=self.name.partition("#")[2], dim=self._sample.dim, normalize=self._sample.unit)
        contract = base.changed(**self._changes)
        refuse_truncation(contract.truncate_dim, contract.dim, self.name)
        return contract

    @property
    def dim(self) -> int:
        """Length of the vectors."""
        return self.contract.truncate_dim or self.contract.dim

    @property
    def fingerprint(self) -> str:  # type: ignore[override]
        """Hash of the contract, without the address: a server may move."""
        return contract_fingerprint(ENDPOINT, self.contract)

    def describe(self) -> dict[str, Any]:
        """Return the contract, with what shows that the model is the same."""
        return {"kind": ENDPOINT, **self.contract.to_dict(), **asdict(self._sample), "probe": list(self._sample.probe)}

    def encode_queries(self, texts: Sequence[str], batch_tokens: int = 0) -> np.ndarray:
        """Return vectors [n, dim], float32, in the order of `texts`; few queries have one time limit together."""
        return self._vectors(self._inputs(texts), live=True)

    def encode_documents(self, titles: Sequence[str], texts: Sequence[str], batch_tokens: int = 0) -> np.ndarray:
        """Return vectors [n, dim], float32, in the order of `texts`."""
        return self._vectors(self._inputs(texts, titles))

    def forecast(self, blocks: Iterable[tuple[Sequence[str], Sequence[str]]], of_queries: bool) -> None:
        """Print the calls and tokens that texts need; they are in the cache, or will be, text by text.

        Args:
            blocks: titles and texts.
            of_queries: the texts are queries.

        Raises:
            InputError: more calls than allowed; none is made.
        """
        is_new = self._expected is None and self._cached_sample() is None
        calls, tokens, known, more = int(is_new), 0, 0, 1  # the probe: alone for a new model, and with the first texts
        for titles, texts in blocks:
            inputs = self._inputs(texts, None if of_queries else titles)
            by_key = {_key(text): text for text in inputs}
            missing = [by_key[key] for key in by_key.keys() - self._cache.known(list(by_key))]
            calls += -(-(len(missing) + more) // self._batch) if missing else 0
            more = 0 if missing else more
            tokens += sum(map(len, missing)) // _CHARACTERS
            known += len(inputs) - len(missing)
        self.truncated, needed = 0, f"{console.counted(call=calls)}, about {tokens:,} tokens of input"
        most = self._calling.max_calls
        if most is not None and calls > most:
            raise option_error("max_calls", most, f"{self.name} needs {needed}", code="max-calls", calls=calls)
        text = f"{self.name}: {needed}" + (f"; {known:,} vectors are known" if known else "")
        console.note(text, code="forecast", calls=calls, tokens=tokens, known=known)

    def _inputs(self, texts: Sequence[str], titles: Sequence[str] | None = None) -> list[str]:
        """Return what the server gets for queries, or with titles for documents."""
        form = EndpointContract().changed(**self._changes)
        if titles is None:
            most, inputs = form.query_max_len, list(map(form.query, texts))
        else:
            most, inputs = form.doc_max_len, list(map(form.document, titles, texts))
        self.truncated += sum(len(text) > most * _CHARACTERS for text in inputs)
        return [text[: most * _CHARACTERS] or " " for text in inputs]  # servers refuse an empty text

    def _vectors(self, inputs: Sequence[str], live: bool = False) -> np.ndarray:
        contract, keys = self.contract, [_key(text) for text in inputs]
        known = {key: np.frombuffer(kept, "<f4") for key, kept in self._cache.known(keys, "vector").items()}
        missing = list({key: text for key, text in zip(keys, inputs, strict=True) if key not in known}.items())
        if missing and not self._is_checked:
            missing.insert(0, (_key(PROBE), PROBE))
        batches = [missing[begin : begin + self._batch] for begin in range(0, len(missing), self._batch)]

        def call(batch: Sequence[tuple[Key, str]]) -> dict[Key, np.ndarray]:
            texts, named = [text for _, text in batch], [key for key, _ in batch]
            made = self._called(texts, live and len(missing) <= BATCH)
            self._keep(made, named)
            return dict(zip(named, made, strict=True))

        first = [] if self._is_checked else batches[:1]  # the others wait until the model is checked
        pool = ThreadPool(self._calling.concurrency)
        try:
            for made in (*map(call, first), *pool.map(call, batches[len(first) :])):
                known |= made
        except KeyboardInterrupt:
            self._api.close()
            raise
        finally:
            pool.shutdown(cancel_futures=True)
        vectors = np.stack([known[key] for key in keys])[:, : contract.truncate_dim]
        if contract.normalize:
            vectors = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
        return vectors

    def _keep(self, vectors: np.ndarray, keys: Sequence[Key]) -> None:
        """Keep vectors in the cache, if the model is the same: the first text of the first call is `PROBE`."""
        if not self._is_checked:
            if not Sample.of(vectors[0]).is_of(self._sample):
                raise self._changed("a text has another vector than before")
            self._is_checked = True
        self._cache.put(keys, vectors)

    def _called(self, texts: Sequence[str], live: bool = False) -> np.ndarray:
        """Return the vectors [n, d] of texts by one call, or by more where the server takes fewer texts."""
        body = {"model": self.name.partition("#")[2], "input": list(texts)}
        try:
            return self._parsed(self._api.ask("/embeddings", body, live), len(texts))
        except SpentError:
            problem = "reached, also by retries; the same command with a larger one resumes"
            raise option_error("max_calls", self._calling.max_calls, problem, code="max-calls") from None
        except HybridError as error:
            if (status := error.fields.get("status")) not in (400, 413, 422):
                raise
            if len(texts) == 1:
                reason = f"refuses a text of {len(texts[0]):,} characters (--doc-max-len N cuts at 4 N)"
                reason = f"{reason}: {error.fields['reason']}"
                raise self._api.failure(reason, "server-refuses", status=status) from None
        self._batch = half = max(1, len(texts) // 2)
        return np.concatenate([self._called(texts[:half], live), self._called(texts[half:], live)])

    def _parsed(self, answer: bytes, count: int) -> np.ndarray:
        try:
            rows = json.loads(answer)["data"]
            order = [row.get("index", number) for number, row in enumerate(rows)]
            vectors = np.array([row["embedding"] for row in rows], np.float32)
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            start = " ".join(console.plain(answer[:80].decode("utf-8", "replace")).split())
            raise self._api.failure(f"answers no vectors, but {start!r}", "server-answer") from None
        if sorted(order, key=str) != sorted(range(count), key=str) or vectors.ndim != 2:
            reason = f"answers {console.counted(vector=len(rows))} for {console.counted(text=count)}"
            raise self._api.failure(reason, "server-answer", vectors=len(rows), texts=count)
        if not np.isfinite(vectors).all():
            raise self._api.failure("answers a vector with NaN or infinity", "server-answer")
        if "_sample" in vars(self) and vectors.shape[1] != self._sample.dim:
            raise self._changed(f"its vectors have {vectors.shape[1]} values, and had {self._sample.dim}")
        return vectors[np.argsort(order)]

    def _changed(self, reason: str) -> InputError:
        problem = f"--model {self.name}: the model has changed ({reason}): remove {self._cache.path}"
        problem = f"{problem}, and encode again, into another output"
        return InputError(problem, code="model-changed", option="model", value=self.name)


def _key(text: str) -> Key:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()


_SAMPLE = [declared.name for declared in fields(Sample)]
_CHANGES = {declared.name for declared in fields(EndpointContract)} - {"model", "dim"}


class _Cache:
    """Vectors by text, in a file that several processes extend.

    Args:
        path: the file.
    """

    def __init__(self, path: Path) -> None:
        self.path, self._lock = path, threading.Lock()
        for statement in (
            "PRAGMA journal_mode=WAL",
            "PRAGMA synchronous=NORMAL",
            "CREATE TABLE IF NOT EXISTS vectors (text BLOB PRIMARY KEY, vector BLOB) WITHOUT ROWID",
        ):
            self._rows(statement)

    def known(self, keys: Sequence[Key], column: str = "text") -> dict[Key, bytes]:
        """Return the vectors, or another column, of the texts that the cache has."""
        found = dict[Key, bytes]()
        for begin in range(0, len(keys), _AT_ONCE):
            some = keys[begin : begin + _AT_ONCE]
            marks = ",".join("?" * len(some))
            found |= dict(self._rows(f"SELECT text, {column} FROM vectors WHERE text IN ({marks})", some))
        return found

    def put(self, keys: Sequence[Key], vectors: np.ndarray) -> None:
        """Keep the vectors of texts."""
        rows = [(key, vector.astype("<f4").tobytes()) for key, vector in zip(keys, vectors, strict=True)]
        self._rows("INSERT OR IGNORE INTO vectors VALUES (?, ?)", rows)

    @cached_property
    def _file(self) -> sqlite3.Connection:
        return sqlite3.connect(self.path, timeout=30, check_same_thread=False)

    def _rows(self, statement: str, values: Sequence[Any] = ()) -> list[Any]:
        try:
            with self._lock, self._file:
                if statement.startswith("INSERT"):
                    return self._file.executemany(statement, values).fetchall()
                return self._file.execute(statement, values).fetchall()
        except sqlite3.Error as error:
            problem = f"{self.path}: cannot be used ({error}); remove it, or set HYBRID_CACHE to another folder"
            raise HybridError(problem, code="cache-unusable", path=self.path) from None
