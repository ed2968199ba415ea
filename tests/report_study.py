"""A small study with data for every section of a report; its texts contain HTML that the page must escape."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tiny_collection import TINY_DOCUMENTS, TINY_JUDGEMENTS, TINY_QUERIES, write_lines

from hybrid_cli.commands import PrepareTrec
from hybrid_cli.stages.encode import encode
from hybrid_cli.stages.fuse import fuse
from hybrid_cli.stages.index_bm25 import index_bm25
from hybrid_cli.stages.mine_negatives import mine_negatives
from hybrid_cli.stages.prepare import prepare
from hybrid_cli.stages.search import search
from hybrid_cli.stages.train_dense import train_dense

ATTACK = "<script>window.broken = 1</script><img src=x onerror='window.broken = 1'>"
HOSTILE_DOCUMENTS = [
    (
        "d<i>1</i>",
        f"</script></head>{ATTACK}",
        f'The moon </style>{ATTACK} & "quoted" {{{{ 7 * 7 }}}} \u2028 ${{1}} salt',
    ),
    ("d&2", "<!-- moon -->", "]]> Oceans of oxygen <svg onload='window.broken = 1'> \x1b\\u003c"),
]
HOSTILE_QUERIES = [("q<b>", f"{ATTACK}</script> moon & 'salt'"), ('q"2', "</textarea> <b>oxygen</b> oceans")]
HOSTILE_JUDGEMENTS = [("q<b>", "moon landing", 1), ('q"2', "d&2", 2)]


@dataclass(frozen=True)
class Study:
    """Paths of all artifacts; `fused` combines `bm25` and `dense`."""

    collection: Path
    lexical_index: Path
    encoder: Path
    dense_index: Path
    bm25: Path
    dense: Path
    fused: Path

    @property
    def inputs(self) -> list[str]:
        """Return the inputs of `report`; the name of one run contains HTML too."""
        return [str(self.collection), f"<b>bm25</b>={self.bm25}", str(self.dense), str(self.fused)]


def collection(folder: Path) -> Path:
    documents = [*TINY_DOCUMENTS, *HOSTILE_DOCUMENTS]
    source = write_lines(folder / "docs.jsonl", *({"id": i, "title": t, "text": x} for i, t, x in documents))
    queries = {"train": TINY_QUERIES["train"], "test": [*TINY_QUERIES["test"], *HOSTILE_QUERIES]}
    judgments = {"train": TINY_JUDGEMENTS["train"], "test": [*TINY_JUDGEMENTS["test"], *HOSTILE_JUDGEMENTS]}
    topics = {split: folder / f"{split}.jsonl" for split in queries}
    qrels = {split: folder / f"{split}.tsv" for split in judgments}
    for split, rows in queries.items():
        write_lines(topics[split], *({"id": qid, "text": text} for qid, text in rows))
        write_lines(qrels[split], *("\t".join(map(str, row)) for row in judgments[split]))
    return prepare(PrepareTrec(source, queries=topics, qrels=qrels, output=folder / "a<b>&amp;c"))


def make(folder: Path, model: Path) -> Study:
    threads = torch.get_num_threads()
    data = collection(folder)
    lexical = index_bm25(data, output=folder / "bm25", threads=1)
    bm25 = search(data, split="test", index=lexical, output=folder / "bm25.parquet", threads=1)
    examples = mine_negatives(data, split="train", index=lexical, output=folder / "train.parquet", threads=1)
    plan: dict[str, Any] = {"loss": "nll", "batch_size": 2, "epochs": 2, "learning_rate": 1e-3, "dtype": "fp32"}
    plan |= {"model": str(model), "eval_steps": 1, "dev": examples, "dev_queries": 4, "threads": 1}
    encoder = train_dense(examples, output=folder / "encoder", **plan)
    index = encode(data, output=folder / "dense", model=str(encoder), threads=1)
    dense = search(data, split="test", index=index, output=folder / "dense.parquet", threads=1)
    fused = fuse([bm25, dense], output=folder / "fused.parquet", method="rrf")
    torch.set_num_threads(threads)
    return Study(data, lexical, encoder, index, bm25, dense, fused)
