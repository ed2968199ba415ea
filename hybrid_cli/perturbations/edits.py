"""Attacks that edit the words of a query: TextAttack's augmenters as used by LITE, and the shuffle of SPAR.

A word is a sequence of letters (with their marks) and digits, with ' - _ * @ inside. In scripts without spaces, a word
has two or three characters (`words.TERM`). Everything between words is preserved.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from string import ascii_letters

import regex

from hybrid_cli.perturbations.attacks import Attack, Attacked, Draw, Inputs, Need, Rewrite, of_text
from hybrid_cli.words import TERM, UNSPACED, characters, spans

# Lucene removes only 33 of them. WordNet lists the others under words with the same spelling: helium for `he`, tin for
# `can`.
FUNCTION_WORDS = frozenset(
    """
    a an the this that these those such same other another each every either neither both all any some no none few
    many much more most several own one
    i me my mine myself we us our ours ourselves you your yours yourself yourselves he him his himself she her hers
    herself it its itself they them their theirs themselves who whom whose which what whatever whichever whoever
    about above across after against along among around as at before behind below beneath beside besides between
    beyond by down during except for from in inside into near of off on onto out outside over past per since than
    through throughout till to toward towards under until unto up upon via with within without
    and but or nor so yet if because although though unless whereas whether while
    am is are was were be been being have has had having do does did doing done can could may might must shall should
    will would ought
    how when where why here there then now not only too very just also again ever never once quite rather still even
    """.split()  # noqa: SIM905 - readable
)
_SHORTENED = frozenset({"d", "ll", "m", "re", "s", "t", "ve"})  # after the apostrophe of I'd, you'll, I'm, don't
_NEGATED = frozenset(
    "ain aren couldn didn doesn don hadn hasn haven isn mightn mustn needn shan shouldn wasn weren won wouldn".split()  # noqa: SIM905
)
_FIRST_PARTS = FUNCTION_WORDS | _SHORTENED | _NEGATED | {"further"}


def is_stop_word(word: str) -> bool:
    """Return whether attacks must keep a word: a stop word, in any case, or a contraction such as `don't`."""
    first, apostrophe, rest = word.lower().partition("'")
    return first in _FIRST_PARTS and (not apostrophe or rest in _SHORTENED)


_BETWEEN_LETTERS = "'_*@-"  # the hyphen last, because elsewhere it denotes a range
_ALPHANUMERIC = r"[\p{L}\p{N}\p{M}]"
_SPACED = rf"[{_ALPHANUMERIC}--{UNSPACED}]"
WORD = regex.compile(rf"{_ALPHANUMERIC}+(?:[{_BETWEEN_LETTERS}]+{_ALPHANUMERIC}+)*", regex.V1)  # of a table of synonyms
_SPLIT = regex.compile(rf"({TERM}|{_SPACED}+(?:[{_BETWEEN_LETTERS}]+{_SPACED}+)*)", regex.V1)

Letters = list[str]  # characters with their marks
Edits = dict[int, str]  # position of a word -> its replacement; empty for a deleted word
Edit = Callable[[Sequence[str], Edits, Draw], None]  # adds one edit, if one is possible


def of_words(start: Callable[[Inputs], Edit], needs: tuple[Need, ...] = ()) -> Attack:
    """Return an attack that edits the fraction `word_fraction` of the words of a query.

    Args:
        start: returns the function that adds an edit.
        needs: see `Attack`.
    """

    def begin(inputs: Inputs) -> Rewrite:
        edit = start(inputs)
        return lambda qid, text, draw: Attacked(edit_words(text, edit, inputs.options.word_fraction, draw))

    return Attack(begin, needs, start)


def edit_words(text: str, edit: Edit, fraction: float, draw: Draw) -> str:
    """Return the text with a fraction of its words edited, rounded down, but at least one where possible."""
    pieces = _SPLIT.split(text)
    words = pieces[1::2]
    edits: Edits = {}
    wanted = max(int(fraction * len(words)), 1)
    turn = -1
    while turn < len(edits) < wanted:
        turn = len(edits)
        edit(words, edits, lambda name: draw(f"{turn} {name}"))  # noqa: B023 - is called at once
    for position, new in edits.items():
        pieces[2 * position + 1] = new
        if not new:
            _close(pieces, 2 * position + 1)
    return "".join(pieces)


def _close(pieces: list[str], gap: int) -> None:
    """Remove one white space next to a deleted word."""
    before, after = pieces[gap - 1], pieces[gap + 1]
    if before[-1:].isspace():
        pieces[gap - 1] = before[:-1]
    elif after[:1].isspace():
        pieces[gap + 1] = after[1:]


def unedited_positions(words: Sequence[str], edits: Edits) -> list[int]:
    """Return the positions of the words without an edit."""
    return [position for position in range(len(words)) if position not in edits]


# --------------------------------------------------------------------------------------------------------- whole words


def delete_word(words: Sequence[str], edits: Edits, draw: Draw) -> None:
    """Delete any word, stop words included, as long as another remains."""
    left = unedited_positions(words, edits)
    if len(left) > 1:
        edits[left[draw("which") % len(left)]] = ""


def swap_words(words: Sequence[str], edits: Edits, draw: Draw) -> None:
    """Swap any word with any other, at any distance."""
    left = unedited_positions(words, edits)
    if not left or len(words) < 2:
        return
    first = left[draw("which") % len(left)]
    others = [position for position in range(len(words)) if position != first]
    second = others[draw("with") % len(others)]
    edits[first], edits[second] = edits.get(second, words[second]), words[first]


def shuffle(text: str, draw: Draw) -> str:
    """Put the words between white space in random order, and keep the white space (SPAR, section 6.2).

    All orders are equally likely, the original order included. The bag of words does not change.
    """
    pairs = spans(text, pairs=True)
    order = sorted(range(len(pairs)), key=lambda position: draw(str(position)))
    pieces, last = [], 0
    for (begin, end), new in zip(pairs, order, strict=True):
        pieces += [text[last:begin], text[slice(*pairs[new])]]
        last = end
    return "".join([*pieces, text[last:]])


# ---------------------------------------------------------------------------------------------------------- characters


def swap_characters(words: Sequence[str], edits: Edits, draw: Draw) -> None:
    """Change a character: propose one change of each of four kinds for each word, and apply one of all proposals.

    Stop words and words of one character are kept; a proposal that does not change its word is discarded.
    """
    proposals = []
    for position in unedited_positions(words, edits):
        word = words[position]
        letters = characters(word)
        if len(letters) > 1 and not is_stop_word(word):
            changed = (
                "".join(change(letters, draw(f"{position} {name}"))) for name, change in CHARACTER_CHANGES.items()
            )
            proposals += [(position, new) for new in changed if new != word]
    if proposals:
        position, new = proposals[draw("offer") % len(proposals)]
        edits[position] = new


def _swap_neighbors(word: Letters, number: int) -> Letters:
    position = number % (len(word) - 1)
    return [*word[:position], word[position + 1], word[position], *word[position + 2 :]]


def _substitute(word: Letters, number: int) -> Letters:
    rest, position = divmod(number, len(word))
    return [*word[:position], ascii_letters[rest % len(ascii_letters)], *word[position + 1 :]]


def _delete(word: Letters, number: int) -> Letters:
    position = number % len(word)
    return [*word[:position], *word[position + 1 :]]


def _insert(word: Letters, number: int) -> Letters:
    """Insert a random letter before a character, so never at the end."""
    rest, position = divmod(number, len(word))
    return [*word[:position], ascii_letters[rest % len(ascii_letters)], *word[position:]]


CHARACTER_CHANGES: dict[str, Callable[[Letters, int], Letters]] = {  # the names are part of the seeded draws
    "neighbours": _swap_neighbors,
    "substitution": _substitute,
    "deletion": _delete,
    "insertion": _insert,
}


CHARACTERS = of_words(lambda inputs: swap_characters)
DELETION = of_words(lambda inputs: delete_word)
ORDER = of_words(lambda inputs: swap_words)
SHUFFLE = of_text(shuffle)
