"""Edits of a share of a query's words, in the manner of TextAttack's augmenters (methods 11).

A word is a run of letters and digits, with ' - _ * @ inside. What stands between words stays where it is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial

from hybrid_cli.perturbations.attack import Attack, Attacked, Draw, Given, Need, Rewrite

_BETWEEN_LETTERS = "'_*@-"  # the hyphen last, or it would mean a range
WORD = re.compile(rf"[^\W_]+(?:[{_BETWEEN_LETTERS}]+[^\W_]+)*")
_SPLIT = re.compile(f"({WORD.pattern})")

Edits = dict[int, str]  # the position of a word -> what stands there now; nothing for a word that was deleted
Edit = Callable[[Sequence[str], Edits, Draw], None]  # the words; one more edit is added, if there is one to add


def of_share(begin: Callable[[Given], Edit], needs: tuple[Need, ...] = (), settings: tuple[str, ...] = ()) -> Attack:
    """An attack that edits a share of a query's words, and one at least.

    Args:
        begin: what makes the edits.
        needs, settings: see `Attack`.
    """

    def start(given: Given) -> Rewrite:
        edit = begin(given)
        return lambda qid, text, draw: Attacked(edited(text, edit, given.how.share, draw))

    return Attack(start, needs, ("share", *settings))


def edited(text: str, edit: Edit, share: float, draw: Draw) -> str:
    """The text with `share` of its words edited, rounded down, and one at least where there is one to edit."""
    pieces = _SPLIT.split(text)
    words = pieces[1::2]
    edits: Edits = {}
    wanted = max(int(share * len(words)), 1)
    turn = -1
    while turn < len(edits) < wanted:
        turn = len(edits)
        edit(words, edits, partial(_in_turn, draw, turn))
    for position, new in edits.items():
        pieces[2 * position + 1] = new
        if not new:
            _close(pieces, 2 * position + 1)
    return "".join(pieces)


def _in_turn(draw: Draw, turn: int, name: str) -> int:
    return draw(f"{turn} {name}")


def _close(pieces: list[str], gap: int) -> None:
    """Take away one white space beside a word that is gone, so that one of two is left."""
    before, after = pieces[gap - 1], pieces[gap + 1]
    if before[-1:].isspace():
        pieces[gap - 1] = before[:-1]
    elif after[:1].isspace():
        pieces[gap + 1] = after[1:]


def untouched(words: Sequence[str], edits: Edits) -> list[int]:
    """The positions of the words that no edit has changed."""
    return [position for position in range(len(words)) if position not in edits]


def delete_word(words: Sequence[str], edits: Edits, draw: Draw) -> None:
    """Delete any word, stop words included, while another is left."""
    left = untouched(words, edits)
    if len(left) > 1:
        edits[left[draw("which") % len(left)]] = ""


def swap_words(words: Sequence[str], edits: Edits, draw: Draw) -> None:
    """Exchange any word with any other, at any distance."""
    left = untouched(words, edits)
    if not left or len(words) < 2:
        return
    first = left[draw("which") % len(left)]
    others = [position for position in range(len(words)) if position != first]
    second = others[draw("with") % len(others)]
    edits[first], edits[second] = edits.get(second, words[second]), words[first]
