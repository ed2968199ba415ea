"""Token ids of texts, cut to a length, without reading the part of a text that is cut off; padded batches of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

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


_SPECIAL = ("eos_token", "unk_token", "bos_token", "sep_token", "cls_token", "mask_token")


def choose_padding(tokenizer: Any) -> None:
    """Give a tokenizer without a padding token another special token as such; the attention mask hides it.

    The first choice is the end of a text, as is usual for GPT-2 and Llama. A token that the tokenizer puts at the end
    of every text is the last choice: rerankers of these architectures read the last token that is not padding.
    """
    if tokenizer.pad_token_id is not None:
        return
    special = [token for name in _SPECIAL if (token := getattr(tokenizer, name, None)) is not None]
    last = tokenizer("a")["input_ids"][-1:]
    special.sort(key=lambda token: [tokenizer.convert_tokens_to_ids(token)] == last)
    if special:
        tokenizer.pad_token = special[0]


def padding_of(tokenizer: Any) -> int:
    """Return the token id for padding; of a tokenizer without special tokens the last one, which is rare in texts."""
    found = tokenizer.pad_token_id
    return int(max(tokenizer.get_vocab().values()) if found is None else found)


def save_tokenizer(tokenizer: Any, folder: Path) -> None:
    """Store a tokenizer without the truncation and padding of its last call, so that equal trainings store the same."""
    if tokenizer.is_fast:
        tokenizer.backend_tokenizer.no_truncation()
        tokenizer.backend_tokenizer.no_padding()
    tokenizer.save_pretrained(folder)


def attended(mask: Tensor) -> Tensor:
    """Return an attention mask [n, L] under which a text without tokens attends to its padding, not to nothing."""
    empty = mask.sum(1, keepdim=True) == 0
    return torch.cat([mask[:, :1] | empty, mask[:, 1:]], dim=1)


def padded(
    rows: Sequence[Sequence[int]], padding: int, types: Sequence[Sequence[int]] | None = None
) -> dict[str, Tensor]:
    """Return the inputs of a transformer for a batch, padded on the right: each [n, L], L at least 1.

    Args:
        rows: token ids of each text.
        padding: token id for padding; see `padding_of`.
        types: token types of each text.
    """
    length = max(1, *map(len, rows))
    named: Mapping[str, tuple[Sequence[Sequence[int]], int]] = {
        "input_ids": (rows, padding),
        **({} if types is None else {"token_type_ids": (types, 0)}),
        "attention_mask": ([[1] * len(row) for row in rows], 0),
    }
    return {
        name: torch.tensor([[*row, *[fill] * (length - len(row))] for row in values])
        for name, (values, fill) in named.items()
    }
