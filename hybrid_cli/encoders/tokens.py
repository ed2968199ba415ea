"""Token ids of texts, cut to a length, without reading the part of a text that is cut off."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

CHARACTERS = 8  # of a text that are read at first, for each token of the length; English has 4 to 5


def cut_tokens(tokenizer: Any, texts: Sequence[str], length: int, **options: Any) -> tuple[list[list[int]], list[bool]]:
    """Return the token ids of each text, cut to `length`, and whether it was cut.

    Only the beginning of a long text is read: `CHARACTERS` for each token, up to the end of a word. The ids equal those
    of the whole text, because no token contains a letter, white space and another letter. A text whose beginning has
    too few tokens is read as a whole.

    Args:
        tokenizer: tokenizer of transformers.
        texts: inputs of the tokenizer.
        length: maximum number of tokens, with special tokens.
        options: other arguments of the tokenizer.
    """

    def tokenize(parts: list[str]) -> tuple[list[list[int]], list[bool]]:
        encoded = tokenizer(parts, truncation=True, max_length=length, return_token_type_ids=False, **options)
        cut = [bool(each.overflowing) for each in encoded.encodings or ()]
        return encoded["input_ids"], cut or [False] * len(parts)

    from_start = tokenizer.is_fast and tokenizer.truncation_side == "right"
    beginnings = [beginning(text, CHARACTERS * length) if from_start else text for text in texts]
    ids, cut = tokenize(beginnings)
    again = [row for row, text in enumerate(texts) if len(beginnings[row]) < len(text) and not cut[row]]
    if again:
        for row, own, own_cut in zip(again, *tokenize([texts[row] for row in again]), strict=True):
            ids[row], cut[row] = own, own_cut
    return ids, cut


def beginning(text: str, most: int) -> str:
    """Return the words of a text that end within `most` characters; the whole text if none does."""
    if len(text) <= most:
        return text
    end = max(text.rfind(mark, 0, most + 1) for mark in (" ", "\n"))
    return text[: max(end, 0)].rstrip() or text
