"""The reranker: one transformer that reads query and document together and returns a score (a cross-encoder).

On disk, a reranker is a sequence classification checkpoint as sentence-transformers' `CrossEncoder` reads and writes
it, with its input lengths in `reranker.json`. A checkpoint without this file has the lengths of its tokenizer.

A run is reranked in shards of scores.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Tensor, nn
from transformers import AutoModelForSequenceClassification, PreTrainedModel

from hybrid_cli import console, runs, storage
from hybrid_cli.collections import collection as collections
from hybrid_cli.encoders import loading
from hybrid_cli.encoders.adapters import adapter_of, load_adapter, read_base, save_adapter
from hybrid_cli.encoders.contract import TowerFiles, in_library, is_reranker_of_library
from hybrid_cli.encoders.models import placed, resolve
from hybrid_cli.encoders.options import DEVICE, Precision
from hybrid_cli.encoders.transformer import batches_by_length
from hybrid_cli.errors import HybridError, InputError, option_error, path_error
from hybrid_cli.inputs.json_values import make_typed, read_object
from hybrid_cli.runs import Run
from hybrid_cli.storage import disk, layout
from hybrid_cli.storage.layout import CONTRACT, RERANKER

BATCH_TOKENS = 4096
ROOM = 8  # tokens of an input that a query of full length leaves at least: special tokens and words of the document
_LONGEST = 512  # tokens of an input where neither `reranker.json` nor the tokenizer limits them
_IDENTITY = "torch.nn.modules.linear.Identity"  # CrossEncoder's activation function: scores are the logits


@dataclass(frozen=True)
class PairInput:
    """Input of a reranker: `[CLS] query [SEP] document [SEP]`.

    Attributes:
        max_length: maximum word pieces of the input, special tokens included; longer documents are cut.
        query_max_len: maximum word pieces of `[CLS] query [SEP]`; longer queries are cut first.
        title_separator: text between title and body of a document.
    """

    max_length: int = 512
    query_max_len: int = 64
    title_separator: str = " "

    def document(self, title: str, text: str) -> str:
        """Return the text of a document."""
        return f"{title}{self.title_separator}{text}" if title else text

    def changed(self, **overrides: Any) -> PairInput:
        """Return this input with the values of `overrides` that are not None.

        Raises:
            InputError: the query leaves no room for the document.
        """
        new = replace(self, **{name: value for name, value in overrides.items() if value is not None})
        if new.max_length < new.query_max_len + ROOM:
            problem = f"needs {ROOM} tokens more than --query-max-len"
            raise option_error("max_length", new.max_length, problem, minimum=new.query_max_len + ROOM)
        return new


class Reranker(Protocol):
    """A model that scores pairs of query and document."""

    input: PairInput
    truncated: int

    @property
    def device(self) -> torch.device:
        """Device of the weights."""

    def scores(
        self, pairs: pl.DataFrame, batch_tokens: int = ..., most: int | None = ...
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return scores [n], float32, and the tokens [n] of each input, int32; see `CrossEncoder.scores`."""


def load_reranker(name: str | Path, *, device: str = DEVICE, dtype: Precision = "fp32", **overrides: Any) -> Reranker:
    """Open a reranker: one of sentence-transformers in that library, others here; see `CrossEncoder.load`."""
    folder = resolve(name)
    if not (folder / RERANKER).is_file() and is_reranker_of_library(folder):
        reranker: Reranker = in_library("LibraryReranker").load(folder, device, dtype, **overrides)
        return reranker
    return CrossEncoder.load(folder, device=device, dtype=dtype, **overrides)


class CrossEncoder(nn.Module):
    """A reranker: scores pairs of query and document.

    Attributes:
        input: lengths and form of the input.
        backbone: transformer with a classification head of one or two labels.
        tokenizer: its tokenizer.
        truncated: number of pairs whose document was cut so far.
    """

    def __init__(self, input: PairInput, backbone: PreTrainedModel, tokenizer: Any):
        super().__init__()
        self.input = input
        self.backbone = backbone
        self.tokenizer = tokenizer
        self.padding = _padding(backbone, tokenizer)
        self.truncated = 0

    @classmethod
    def load(
        cls, name: str | Path, *, device: str = DEVICE, dtype: Precision = "fp32", train: bool = False, **overrides: Any
    ) -> CrossEncoder:
        """Open a reranker, in evaluation mode.

        Args:
            name: `minilm`, a folder, or a Hugging Face id.
            device: `auto` uses a GPU if there is one.
            dtype: precision of the weights.
            train: any transformer is accepted; without a head of one or two labels, a new one is initialized from
                torch's random state, with a notice.
            overrides: fields of `PairInput` to change.

        Raises:
            InputError: no such model, no ranking head, or weights that the architecture does not have.
        """
        folder = resolve(name)
        base = read_base(folder)
        origin = TowerFiles(folder) if base is None else base.files(folder)
        if not (origin.folder / "config.json").is_file():
            raise path_error(folder, "has no config.json; name a folder with one", code="model-without-config")
        loading.refuse_pickles(origin.folder)
        backbone = _backbone(origin.folder, train or base is not None, train)
        if base is not None:
            load_adapter(folder, backbone.base_model, base, origin, backbone)  # type: ignore[arg-type]
        tokenizer = loading.load_tokenizer(folder)
        loading.refuse_other_tokenizer(folder, tokenizer, backbone)
        if not tokenizer.is_fast:
            raise path_error(folder, "has no tokenizer.json; save the fast tokenizer here", code="no-such-file")
        longest = _positions(backbone, tokenizer)
        stored = read_input(folder, longest, train).changed(**overrides)
        if stored.max_length > longest:
            raise option_error("max_length", stored.max_length, f"the model has {longest} positions", limit=longest)
        model = placed(cls(stored, backbone, tokenizer), device, dtype)
        return model if train else model._with_exact_head()

    def _with_exact_head(self) -> CrossEncoder:
        """Compute the head in float32: scores in bf16 have 8 significant bits, so many hits of a query would tie."""
        for name, part in self.backbone.named_children():
            if name != self.backbone.base_model_prefix:
                part.float().register_forward_pre_hook(lambda _, states: tuple(state.float() for state in states))
        return self

    @property
    def device(self) -> torch.device:
        """Device of the weights."""
        return next(self.parameters()).device

    @property
    def transformer(self) -> PreTrainedModel:
        """The transformer without the head."""
        inner: PreTrainedModel = self.backbone.base_model  # type: ignore[assignment]
        return inner

    def forward(self, **inputs: Tensor) -> Tensor:
        """Return scores [n] in float32: the logit, or of two labels the difference of the second and the first.

        Args:
            inputs: `input_ids`, `attention_mask` and, for some architectures, `token_type_ids`, each [n, L].
        """
        logits: Tensor = self.backbone(**inputs).logits.float()
        return logits[:, 0] if logits.shape[1] == 1 else logits[:, 1] - logits[:, 0]

    def tokens(self, queries: Sequence[str], documents: Sequence[str]) -> Any:
        """Return the tokenizer's encodings of pairs; only documents are cut, after overlong queries."""
        return self.tokenizer(
            self._cut(queries), list(documents), truncation="only_second", max_length=self.input.max_length
        )

    def _cut(self, queries: Sequence[str]) -> list[str]:
        """Return the queries, cut to the maximum length."""
        known = list(dict.fromkeys(queries))
        most = self.input.query_max_len - 2
        mappings = self.tokenizer(known, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
        cut = {
            text: text[: offsets[most - 1][1]] if len(offsets) > most else text
            for text, offsets in zip(known, mappings, strict=True)
        }
        return [cut[text] for text in queries]

    def padded(self, encoded: Mapping[str, Any], rows: Sequence[int] | np.ndarray) -> dict[str, Tensor]:
        """Return the input of `forward` for some pairs, on the device of the weights."""
        types = [encoded["token_type_ids"][row] for row in rows] if "token_type_ids" in encoded else None
        batch = loading.pad_batch([encoded["input_ids"][row] for row in rows], self.padding, types)
        return {name: part.to(self.device) for name, part in batch.items()}

    def scores(
        self, pairs: pl.DataFrame, batch_tokens: int = BATCH_TOKENS, most: int | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Score pairs in batches of similar length.

        Args:
            pairs: query, title, text.
            batch_tokens: maximum tokens of a batch, padding included.
            most: maximum pairs of a batch.

        Returns:
            Scores [n], float32, and the tokens [n] of each input, int32.
        """
        if not len(pairs):
            return np.zeros(0, np.float32), np.zeros(0, np.int32)
        documents = [self.input.document(title, text) for title, text in pairs.select("title", "text").iter_rows()]
        encoded = self.tokens(pairs["query"].to_list(), documents)
        self.truncated += sum(bool(encoding.overflowing) for encoding in encoded.encodings)
        lengths = np.array([len(ids) for ids in encoded["input_ids"]], np.int32)
        scores = np.empty(len(pairs), np.float32)
        with torch.inference_mode():
            for rows in batches_by_length(lengths.tolist(), batch_tokens, most):
                scores[rows] = self(**self.padded(encoded, rows)).cpu().numpy()
        return scores, lengths

    def save(self, folder: Path) -> None:
        """Write the reranker so that sentence-transformers' `CrossEncoder(folder)` returns the same scores."""
        self.backbone.config.sentence_transformers = {"activation_fn": _IDENTITY}
        self.tokenizer.model_max_length = self.input.max_length
        if adapter_of(self.transformer):
            save_adapter(folder, self.transformer, self.backbone)
        with disk.by_name(folder):
            if not adapter_of(self.transformer):
                self.backbone.save_pretrained(folder, safe_serialization=True)
            loading.save_tokenizer(self.tokenizer, folder)
        disk.write_text(folder / RERANKER, json.dumps(asdict(self.input), indent=2) + "\n")


def is_reranker(folder: Path) -> bool:
    """Test whether a folder contains a model with a ranking head, and not an encoder."""
    if (folder / RERANKER).is_file() or (folder / CONTRACT).is_file() or not (folder / "config.json").is_file():
        return (folder / RERANKER).is_file()
    architectures = read_object(folder / "config.json").get("architectures")  # not of transformers alone
    return isinstance(architectures, list) and any("ForSequenceClassification" in str(name) for name in architectures)


def read_input(folder: Path, longest: int, train: bool = False) -> PairInput:
    """Return the input of a reranker: from `reranker.json`, or the lengths of a foreign checkpoint.

    A query of a foreign reranker may fill half of the input: sentence-transformers cuts the longer text of a pair,
    which then is the document.

    Args:
        folder: folder of the reranker.
        longest: maximum tokens of the model.
        train: a foreign checkpoint gets the default lengths, as far as the model has positions.
    """
    if not (folder / RERANKER).is_file():
        length = min(longest, PairInput.max_length) if train else longest
        half = length // 2 - 1
        return PairInput(length, min(PairInput.query_max_len, half) if train else half)
    stored: PairInput = make_typed(PairInput, read_object(folder / RERANKER), folder / RERANKER)
    if not 3 <= stored.query_max_len <= stored.max_length - ROOM:
        raise path_error(folder / RERANKER, "leaves no room for a document", code="out-of-range")
    return stored


def _backbone(folder: Path, train: bool, new: bool) -> PreTrainedModel:
    """Load the transformer with its head, which is new in a training if it is missing; see `CrossEncoder.load`."""
    config = loading.read_config(folder)
    has_head = any("ForSequenceClassification" in name for name in config.architectures or ())
    if train and not (has_head and (config.num_labels or 0) <= 2):
        config.num_labels = 1
    backbone: PreTrainedModel
    backbone, missing, others = loading.open_model(AutoModelForSequenceClassification, folder, config)
    loading.refuse_more_layers(folder, others, backbone.state_dict())
    inner = f"{backbone.base_model_prefix}."
    if foreign := loading.foreign_weights(backbone.config.model_type, others, inner):
        raise loading.unknown_weights(folder, foreign)
    head = sorted(key for key in missing if not key.startswith(inner) or "pooler" in key.split("."))
    loading.refuse_missing(folder, [key for key in missing if key not in head])
    if head and not train:
        raise path_error(folder, "has no ranking head; use `hybrid train-reranker`", code="no-ranking-head")
    if head and new:
        console.note(f"{folder}: has no ranking head; starts with a new one", code="new-head", path=folder)
    if (backbone.config.num_labels or 0) > 2:
        raise other_labels(folder, backbone.config.num_labels)
    return backbone


def other_labels(folder: Path, count: int | None) -> InputError:
    """Return the error about a head of more than two labels."""
    problem = f"its head has {count} labels; train one with `hybrid train-reranker`"
    return path_error(folder, problem, code="other-kind", labels=count)


def _padding(backbone: PreTrainedModel, tokenizer: Any) -> int:
    """Return the token id for padding, and store it in a configuration without one.

    GPT-2, Llama and others score the last token whose id is not that of padding in their configuration.
    """
    config, embeddings = backbone.config.get_text_config(), backbone.get_input_embeddings()
    known = getattr(config, "pad_token_id", None)
    if known is None or not 0 <= known < getattr(embeddings, "num_embeddings", 0):
        known = config.pad_token_id = loading.padding_of(tokenizer)
    return int(known)


def _positions(backbone: PreTrainedModel, tokenizer: Any) -> int:
    """Return the maximum number of tokens of the model and its tokenizer."""
    most: int = getattr(backbone.config, "max_position_embeddings", None) or _LONGEST
    if backbone.config.model_type in ("roberta", "xlm-roberta", "camembert"):  # positions start after the padding id
        most -= backbone.config.pad_token_id + 1
    return min(most, int(tokenizer.model_max_length))


# ------------------------------------------------------------------------------------------------- reranking of a run


_GPU_BATCH_TOKENS = 1 << 16
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
    default = BATCH_TOKENS if model.device.type == "cpu" else _GPU_BATCH_TOKENS
    scores, tokens = model.scores(pairs, batch_tokens or default)
    if not np.isfinite(scores).all():
        row = int((~np.isfinite(scores)).argmax())
        problem = f"{pairs['qid'][row]}, {pairs['docid'][row]}: the score is not finite; use --dtype fp32"
        raise HybridError(problem, code="values-not-finite")
    facts = {"truncated": str(model.truncated - cut), "seconds": str(time.monotonic() - began)}
    table = pa.table({"score": scores, "tokens": tokens}).replace_schema_metadata(facts)
    with storage.replacing(path) as scratch, disk.create(scratch) as file:
        pq.write_table(table, file, compression="zstd", write_page_checksum=True)
