"""Compare learned sparse search with Pyserini's impact searcher, and SPLADE encoding with a bare loop of transformers.

python benchmarks/sparse.py [--documents 50000] [--queries 200]
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import torch
from transformers import AutoTokenizer, BertConfig, BertForMaskedLM

os.environ.setdefault("OPENAI_API_KEY", "none")  # pyserini.search.lucene does not import without one

from hybrid_cli.encoders.models import resolve
from hybrid_cli.encoders.sparse import SparseEncoder
from hybrid_cli.lexical import jvm
from hybrid_cli.lexical.builder import PostingsBuilder
from hybrid_cli.lexical.impacts import Impacts
from hybrid_cli.lexical.index import LexicalIndex

STEPS, TERMS, HITS = 128, 100, 1000


class Weights:
    """Query weights by text, for both searchers."""

    def __init__(self, queries: dict[str, dict[str, int]]):
        self.queries = queries

    def query_weights(self, texts: Sequence[str]) -> pl.DataFrame:
        """Return query, term and boost."""
        rows = [(at, term, float(w)) for at, text in enumerate(texts) for term, w in self.queries[text].items()]
        return pl.DataFrame(rows, schema={"query": pl.Int64, "term": pl.String, "boost": pl.Float64}, orient="row")

    def encode(self, text: str) -> dict[str, int]:
        """Return term and boost."""
        return self.queries[text]


def seconds(work: Callable[[], Any], rounds: int = 3) -> float:
    """Return the best time of a few rounds."""
    best = np.inf
    for _ in range(rounds):
        start = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - start)
    return float(best)


def search(documents: int, queries: int, scratch: Path) -> None:
    """Time 1,000 hits of synthetic weights with Zipf-distributed terms, on one thread."""
    rng = np.random.default_rng(0)
    names = [f"t{number}" for number in range(20_000)]
    builder, folder = PostingsBuilder(), scratch / "json"
    folder.mkdir()
    with (folder / "docs.jsonl").open("w") as file:
        for begin in range(0, documents, 1000):
            drawn = [np.unique(rng.zipf(1.3, TERMS) % len(names)) for _ in range(min(1000, documents - begin))]
            flat = np.concatenate(drawn).astype(np.int32)
            weights = rng.integers(1, 3 * STEPS, len(flat)).astype(np.int32)
            terms = pa.DictionaryArray.from_arrays(pa.array(flat), pa.array(names))
            builder.add_weights(terms, weights, np.array([len(each) for each in drawn], np.int64))
            at = 0
            for number, each in enumerate(drawn):
                own = weights[at : at + len(each)].tolist()
                vector = dict(zip([names[term] for term in each], own, strict=True))
                file.write(json.dumps({"id": f"d{begin + number}", "contents": "", "vector": vector}) + "\n")
                at += len(each)
    texts = [f"q{number}" for number in range(queries)]
    asked = Weights(
        {
            text: {
                names[t]: int(w)
                for t, w in zip(np.unique(rng.zipf(1.3, 24) % len(names)), rng.integers(1, 3 * STEPS, 24), strict=False)
            }
            for text in texts
        }
    )
    docids = pl.Series("docid", [f"d{number}" for number in range(documents)])
    index = LexicalIndex(Impacts.learned(builder.finish(), STEPS**-2), docids, queries=asked)
    index.threads = 1
    frame = pl.DataFrame({"qid": texts, "text": texts})
    index.search(frame, HITS)  # compiles
    ours = seconds(lambda: index.search(frame, HITS))
    settings = jvm.java_class("io.anserini.index.IndexCollection$Args")()
    settings.collectionClass, settings.generatorClass = "JsonVectorCollection", "DefaultLuceneDocumentGenerator"
    settings.input, settings.index, settings.threads = str(folder), str(scratch / "lucene"), 1
    settings.impact = settings.pretokenized = settings.quiet = True
    jvm.java_class("io.anserini.index.IndexCollection")(settings).run()
    from pyserini.search.lucene import LuceneImpactSearcher

    searcher = LuceneImpactSearcher(str(scratch / "lucene"), asked, min_idf=-1)
    theirs = seconds(lambda: [[(hit.docid, hit.score) for hit in searcher.search(text, HITS)] for text in texts])
    rates = f"{queries / ours:,.0f} queries/s; Pyserini {queries / theirs:,.0f}; ratio {theirs / ours:.1f}"
    print(f"search, {documents:,} documents, {HITS:,} hits: {rates}")


def encode(texts: int, scratch: Path) -> None:
    """Time a SPLADE model of two layers on passages of different lengths, in fp32."""
    tokenizer = AutoTokenizer.from_pretrained(resolve("minilm"))
    torch.manual_seed(0)
    model = BertForMaskedLM(
        BertConfig(
            vocab_size=len(tokenizer),
            hidden_size=384,
            num_hidden_layers=2,
            num_attention_heads=12,
            intermediate_size=1536,
        )
    ).eval()
    torch.nn.init.constant_(model.cls.predictions.bias, -1.0)
    model.save_pretrained(scratch / "model")
    tokenizer.save_pretrained(scratch / "model")
    rng = np.random.default_rng(0)
    words = ["the", "heart", "pumps", "blood", "through", "body", "and", "lungs", "oxygen", "salt"]
    passages = [" ".join(rng.choice(words, rng.integers(30, 90))) for _ in range(texts)]

    def bare() -> None:
        order = np.argsort([len(text) for text in passages])
        with torch.inference_mode():
            for at in range(0, texts, 16):
                batch = tokenizer([passages[row] for row in order[at : at + 16]], padding=True, return_tensors="pt")
                logits = model(**batch).logits
                weights = torch.log1p(torch.relu(logits)) * batch["attention_mask"].unsqueeze(-1)
                weights.amax(1).nonzero()

    encoder = SparseEncoder.load(scratch / "model", architecture="splade", device="cpu")
    ours = seconds(lambda: encoder.document_weights([""] * texts, passages, STEPS, 1024))
    theirs = seconds(bare)
    print(f"encode, {texts} passages, 2 layers: {texts / ours:.1f} texts/s; bare loop {texts / theirs:.1f}; "
          f"ratio {theirs / ours:.2f}")  # fmt: skip


def main() -> None:
    """Print both comparisons."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--documents", type=int, default=50_000)
    parser.add_argument("--queries", type=int, default=200)
    parser.add_argument("--texts", type=int, default=64)
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        encode(options.texts, Path(folder))
        search(options.documents, options.queries, Path(folder))


if __name__ == "__main__":
    main()
