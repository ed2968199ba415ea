"""Which attacks there are. A new one is a function and a line here."""

from __future__ import annotations

from hybrid_cli.perturbations import adversary, edits, synonyms, words
from hybrid_cli.perturbations.attack import Attack, Given, Rewrite, of_words
from hybrid_cli.perturbations.characters import swap_characters


def _back_translation(given: Given) -> Rewrite:
    from hybrid_cli.perturbations import translation  # torch and transformers, for this attack only

    return translation.begin(given)


ATTACKS: dict[str, Attack] = {
    "char-swap": edits.of_share(lambda given: swap_characters),
    "word-deletion": edits.of_share(lambda given: edits.delete_word),
    "synonym-replacement": edits.of_share(synonyms.replacement, needs=("synonyms",)),
    "word-order-swap": edits.of_share(lambda given: edits.swap_words),
    "synonym-insertion": edits.of_share(synonyms.insertion, needs=("synonyms",), settings=("tries",)),
    "back-translation": Attack(_back_translation, ("translation",), ("prefix", "beams", "batch_size", "max_tokens")),
    "shuffle": of_words(words.shuffle),
    "synonym-adversary": Attack(adversary.begin, ("qrels", "corpus", "synonyms")),
}
_LITE = (
    "char-swap",
    "word-deletion",
    "synonym-replacement",
    "word-order-swap",
    "synonym-insertion",
    "back-translation",
)
SETS: dict[str, tuple[str, ...]] = {"lite": _LITE, "all": tuple(ATTACKS)}
