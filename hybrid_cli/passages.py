"""Passages of documents: their ids, and the rules by which they score a document."""

from __future__ import annotations

from typing import Literal

GroupRule = Literal["max", "mean", "sum2"]
Group = Literal[GroupRule, "none"]
MAX: GroupRule = "max"
NO_GROUPS: Literal["none"] = "none"
PASSAGE = r"#\d+$"  # end of the id of a passage


def passage_id(docid: str, number: int) -> str:
    """Return the id of a passage of a document; numbers start at 0."""
    return f"{docid}#{number}"
