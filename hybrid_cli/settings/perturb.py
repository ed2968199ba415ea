"""Settings of perturbing queries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any

from hybrid_cli.perturbations.options import Perturbation
from hybrid_cli.settings.common import OnDevice, Seeded, Writes
from hybrid_cli.settings.data import DATA
from hybrid_cli.settings.options import REQUIRED, argument, inherited, option, registered, scope, when

WORDS, SYNONYMS, TRANSLATION = "Words", "Synonyms", "Back translation"
_SETS = ("lite", "all")
ADDED = "an attack of a plugin"  # fact: every option applies
_OF_WORDS = ("char-swap", "word-deletion", "synonym-replacement", "word-order-swap", "synonym-insertion", *_SETS)
_OF_SYNONYMS = ("synonym-replacement", "synonym-insertion", "synonym-adversary", *_SETS)
_DRAWN = ("shuffle", "synonym-adversary", *_OF_WORDS)
_OF_TRANSLATION = ("back-translation", *_SETS)


def facts_of(attacks: Sequence[str]) -> dict[str, Any]:
    """Return what decides whether an option applies: the attacks, and whether one belongs to a plugin."""
    return {"attacks": tuple(attacks), "added": ADDED if set(attacks) - {*_DRAWN, *_OF_TRANSLATION} else ""}


@dataclass(frozen=True)
class Perturb(OnDevice, Seeded, Writes, Perturbation):
    """Perturb the queries of a split, to measure the robustness of runs.

    The output is read by `search --queries`. With several attacks, the output is a folder with one file per attack and
    `meta.json`; attacks whose resources are missing are skipped with a notice.

    `char-swap`: swap two letters of a word, or replace, delete or insert a letter. `word-deletion`: delete a word.
    `synonym-replacement`: replace a word with a synonym. `word-order-swap`: swap two words. `synonym-insertion`: insert
    a synonym of a word. `back-translation`: machine-translate the query to another language and back. `--attack lite`
    selects these six attacks.

    `shuffle`: put the words in random order. BM25 scores do not change.

    `synonym-adversary`: replace each word that occurs in a relevant document with a random synonym that occurs in no
    relevant document. BM25 loses its matches; the meaning stays similar.

    Attributes:
        collection: Collection; for attacks that need no documents, also a query file.
        attacks: Attacks; `lite` selects the six attacks of LITE, `all` all eight.
        output: Output file (Parquet); a folder for several attacks.
        split: Split of the collection.
        attacked_queries: Queries perturbed by another tool, used instead of a perturbation by hybrid: lines of query
            id, tab, text.
        word_fraction: Fraction of the words of a query to change; at least one word is changed.
        wordnet: Folder or zip file of WordNet.
        synonyms: Table of synonyms that replaces WordNet: lines of a word and its synonyms, separated by tabs.
        translation: Folders of the translation models to another language and back.
        translation_prefix: Text put before every query for the model THERE, such as `>>es<<`.
    """

    command = "perturb"
    panel = DATA
    examples = (
        "hybrid perturb data/pydocs --split test --attack lite --output out/attacked",
        "hybrid perturb data/pydocs --split test --attack synonym-adversary --output out/adversary.parquet",
    )

    collection: Path = argument(REQUIRED)
    _: KW_ONLY
    scopes = (
        scope((when(attacks=_OF_WORDS), when(added=ADDED)), "word_fraction")
        + scope((when(added=ADDED), when(attacks=_OF_SYNONYMS)), "wordnet")
        + scope((when(added=ADDED), when(attacks=_OF_TRANSLATION)), "translation", "translation_prefix", "device")
        + scope((when(added=ADDED), when(attacks=_DRAWN)), "seed")
        + scope((when(attacks=_OF_SYNONYMS, wordnet=None), when(added=ADDED, wordnet=None)), "synonyms")
    )

    attacks: Sequence[str] = option(
        REQUIRED, "--attack", choices=registered("hybrid_cli.perturbations.attacks", "ATTACKS", *_SETS), recorded=False
    )
    output: Path = inherited()
    split: str | None = option(None, shown="the only split", recorded=False)
    attacked_queries: Mapping[str, Path] = option({}, metavar="ATTACK=FILE")
    seed: int = inherited()
    word_fraction: float = inherited(panel=WORDS, minimum=0, maximum=1)
    wordnet: Path | None = option(
        None, panel=SYNONYMS, shown="the location of nltk or of Debian's wordnet-base, else a small table of hybrid"
    )
    synonyms: Path | None = option(None, panel=SYNONYMS)
    translation: tuple[Path, Path] | None = option(None, metavar="THERE BACK", panel=TRANSLATION)
    translation_prefix: str = inherited(panel=TRANSLATION)

    def values(self) -> dict[str, Any]:
        """Return every field by name, and whether an attack belongs to a plugin."""
        return {**super().values(), **facts_of(self.attacks)}
