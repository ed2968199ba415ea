"""Fixtures shared by the tests: a collection small enough to read, artifacts made from it once a session."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tiny_collection import TINY_JUDGEMENTS, TINY_QUERIES, write_tiny_source

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A collection of 12 passages (one without text) and 6 queries in each of train and test.

    Of the test queries 005 has only stop words and 006 has no judgement; grades are 0, 1 and 2.
    """
    from hybrid_cli.collections import trec
    from hybrid_cli.stages.prepare import prepare

    folder = tmp_path_factory.mktemp("tiny")
    write_tiny_source(folder)
    topics = {split: folder / f"topics.{split}.tsv" for split in TINY_QUERIES}
    qrels = {split: folder / f"qrels.{split}.txt" for split in TINY_JUDGEMENTS}
    return prepare(trec.source(folder / "docs.jsonl", topics=topics, qrels=qrels), output=folder / "collection")
