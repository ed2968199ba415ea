"""The registry of attacks. A new attack is a function, a line here, and its name in `options.Attack`."""

from __future__ import annotations

from hybrid_cli.perturbations import edits, synonyms
from hybrid_cli.perturbations.attack import Attack, Inputs, Rewrite, of_text
from hybrid_cli.perturbations.options import Attack as AttackName


def _back_translation(inputs: Inputs) -> Rewrite:
    from hybrid_cli.perturbations import translation  # torch and transformers, for this attack only

    return translation.start(inputs)


ATTACKS: dict[AttackName, Attack] = {
    "char-swap": edits.of_words(lambda inputs: edits.swap_characters),
    "word-deletion": edits.of_words(lambda inputs: edits.delete_word),
    "synonym-replacement": edits.of_words(synonyms.replacement, needs=("synonyms",)),
    "word-order-swap": edits.of_words(lambda inputs: edits.swap_words),
    "synonym-insertion": edits.of_words(synonyms.insertion, needs=("synonyms",)),
    "back-translation": Attack(_back_translation, ("translation",)),
    "shuffle": of_text(edits.shuffle),
    "synonym-adversary": Attack(synonyms.adversary, ("qrels", "corpus", "synonyms")),
}
_LITE: tuple[AttackName, ...] = (
    "char-swap",
    "word-deletion",
    "synonym-replacement",
    "word-order-swap",
    "synonym-insertion",
    "back-translation",
)
SETS: dict[str, tuple[AttackName, ...]] = {"lite": _LITE, "all": tuple(ATTACKS)}
