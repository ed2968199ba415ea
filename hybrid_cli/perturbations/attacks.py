"""The registry of attacks. A new attack is a function and a line here, or in another package (docs/extending.md)."""

from __future__ import annotations

from typing import Any

from hybrid_cli.perturbations import edits, synonyms
from hybrid_cli.perturbations.attack import Attack, Inputs, Rewrite, of_text
from hybrid_cli.plugins import Registry


def _back_translation(inputs: Inputs) -> Rewrite:
    from hybrid_cli.perturbations import translation  # torch and transformers, for this attack only

    return translation.start(inputs)


def as_attack(name: str, added: Any) -> Attack:
    """Return the attack of a plugin: an `Attack`, or a function of a text and a source of random numbers.

    Raises:
        ValueError: neither of them.
    """
    if not isinstance(added, Attack) and not callable(added):
        raise ValueError(f"{type(added).__name__} is neither an Attack nor a function")
    return added if isinstance(added, Attack) else of_text(added)


_LITE = {
    "char-swap": edits.of_words(lambda inputs: edits.swap_characters),
    "word-deletion": edits.of_words(lambda inputs: edits.delete_word),
    "synonym-replacement": edits.of_words(synonyms.replacement, needs=("synonyms",)),
    "word-order-swap": edits.of_words(lambda inputs: edits.swap_words),
    "synonym-insertion": edits.of_words(synonyms.insertion, needs=("synonyms",)),
    "back-translation": Attack(_back_translation, ("translation",)),
}
_OTHERS = {
    "shuffle": of_text(edits.shuffle),
    "synonym-adversary": Attack(synonyms.adversary, ("qrels", "corpus", "synonyms")),
}
SETS = {"lite": tuple(_LITE), "all": (*_LITE, *_OTHERS)}
ATTACKS: Registry[Attack] = Registry("perturbations", {**_LITE, **_OTHERS}, as_attack, SETS)
