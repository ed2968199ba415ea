"""Settings of changes to the documents of an index."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from pathlib import Path

from hybrid_cli.settings.common import OnDevice, Threaded, Writes
from hybrid_cli.settings.options import REQUIRED, argument, option, redeclare, when
from hybrid_cli.settings.retrieval import LEARNED, LEXICAL, TRANSFORMER_INDEX

_LEXICAL, _ENCODED = when(index_kind="a lexical index"), when(index_kind=("a dense index", LEARNED))
_ANALYZED = when(index_kind=("a lexical index", "a sharded lexical index"))
_TRANSFORMER = when(index_kind=TRANSFORMER_INDEX)


@dataclass(frozen=True)
class Append(OnDevice, Threaded, Writes):
    """Add documents to a lexical, learned sparse or dense index without reading its other documents again.

    The output equals an index of all documents that is built at once. The given index is not changed, and files that
    do not change are hard-linked. Only the new documents are analyzed or encoded, with the language, fields, k1, b or
    encoder of the index. A sharded lexical index gets one more shard, and unchanged shards
    share their postings with the given index.
    """

    command = "append"
    panel = LEXICAL
    examples = (
        "hybrid append out/bm25 data/new --output out/bm25-2",
        "hybrid append out/clear-index data/new --replace --output out/clear-index-2",
    )

    index: Path = argument(REQUIRED, "Lexical index (sharded or not), learned sparse index or dense index.")
    collection: Path = argument(REQUIRED, "Collection with the new documents, or a corpus file.")
    _: KW_ONLY
    replace: bool = option(False, "Replace documents of the index that have the id of a new one.")
    model: str | None = option(
        None, "Encoder; required if it has moved since indexing.", applies=_ENCODED, recorded=False
    )
    device: str = redeclare(OnDevice, "device", applies=_TRANSFORMER)
    batch_tokens: int | None = option(
        None,
        "Tokens per batch, padding included; changes vectors by rounding only.",
        minimum=1,
        applies=_TRANSFORMER,
        shown="1024 on a CPU, 65536 on a GPU",
        recorded=False,
    )
    java_heap: str | None = option(
        None,
        "Maximum Java heap, such as `4g`.",
        applies=_ANALYZED,
        shown="a quarter of the memory",
        recorded=False,
    )


@dataclass(frozen=True)
class Delete(Threaded, Writes):
    """Delete documents from a lexical, learned sparse or dense index.

    The output equals an index of the other documents that is built at once. The given index is not changed, and files
    that do not change are hard-linked.
    """

    command = "delete"
    panel = LEXICAL
    examples = ("hybrid delete out/bm25 --ids retracted.txt --output out/bm25-2",)

    index: Path = argument(REQUIRED, "Lexical index (sharded or not), learned sparse index or dense index.")
    _: KW_ONLY
    ids: Path = option(REQUIRED, "File with the ids of the documents, one per line.", recorded=False)
    java_heap: str | None = option(
        None,
        "Maximum Java heap, such as `4g`.",
        applies=_LEXICAL,
        shown="a quarter of the memory",
        recorded=False,
    )
