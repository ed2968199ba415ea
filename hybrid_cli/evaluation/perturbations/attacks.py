"""Which attacks there are. A new one is a function and a line here."""

from __future__ import annotations

from hybrid_cli import config
from hybrid_cli.evaluation.perturbations import adversary, words
from hybrid_cli.evaluation.perturbations.attack import Attack, of_words

ATTACKS: dict[config.Attack, Attack] = {
    "synonym-adversary": Attack(adversary.begin, ("qrels", "corpus", "wordnet")),
    "shuffle": of_words(words.shuffle),
}
