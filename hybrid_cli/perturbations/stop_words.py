"""English function words: our own list, which contains the words of NLTK's stop list."""

from __future__ import annotations

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
    """Test whether attacks must keep a word, in lower or upper case; contractions such as `don't` are stop words."""
    first, apostrophe, rest = word.lower().partition("'")
    return first in _FIRST_PARTS and (not apostrophe or rest in _SHORTENED)
