"""Attacks on queries: edits of words and characters, synonyms of WordNet or a table, the synonym adversary."""

import re
import shutil
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from itertools import chain
from pathlib import Path
from string import ascii_letters

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybrid_cli.commands import Perturb
from hybrid_cli.draws import draw
from hybrid_cli.perturbations import edits, synonyms, wordnet
from hybrid_cli.perturbations.attacks import ATTACKS, SETS, Attacked, Inputs, Rewrite
from hybrid_cli.perturbations.synonyms import SynonymTable, insertion, replace_matches, replacement, thesaurus
from hybrid_cli.perturbations.wordnet import WordNet, find

SYNONYMS = "cat\tfeline\nsalt\tsodium\tsea salt\nthe\tthis\n"
LOCAL = [name for name in SETS["lite"] if name != "back-translation"]


def edited(edit: edits.Edit, text: str, fraction: float = 0.1, seed: int = 0, qid: str = "q") -> str:
    return edits.edit_words(text, edit, fraction, partial(draw, seed, "test", qid))


def all_edits(edit: edits.Edit, text: str, fraction: float = 0.1) -> set[str]:
    return {edited(edit, text, fraction, seed) for seed in range(300)}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("what's a 1-D array?", ["what's", "a", "1-D", "array"]),
        ("'numpy' and e.g. read_csv, x*y @me a@b.c", ["numpy", "and", "e", "g", "read_csv", "x*y", "me", "a@b", "c"]),
        ("-- _ ' ...", []),
        ("Émile, naïve: 3rd", ["Émile", "naïve", "3rd"]),
    ],
)
def test_words_are_letters_and_digits_with_some_marks_inside(text: str, found: list[str]) -> None:
    assert edits.WORD.findall(text) == found


def test_a_word_is_deleted_with_one_white_space_and_no_punctuation() -> None:
    found = all_edits(edits.delete_word, "The cat, it sat.")
    assert found == {"cat, it sat.", "The, it sat.", "The cat, sat.", "The cat, it."}


def test_any_two_words_are_swapped_and_everything_else_is_kept() -> None:
    assert all_edits(edits.swap_words, "(one)  two, three") == {
        "(two)  one, three",
        "(three)  two, one",
        "(one)  three, two",
    }


def test_one_swap_changes_two_words() -> None:
    """One swap changes 2 of 20 words; 3 of 30 words need a second swap. Equal words may be swapped."""
    for words, moved in ((20, {2}), (30, {3, 4})):
        text = [f"w{number}" for number in range(words)]
        found = [edited(edits.swap_words, " ".join(text), seed=seed).split() for seed in range(100)]
        assert {sum(old != new for old, new in zip(text, each, strict=True)) for each in found} == moved
    assert "to be or not to be" in all_edits(edits.swap_words, "to be or not to be")
    assert {"lite": tuple(ATTACKS.built_in()[:6]), "all": tuple(ATTACKS.built_in())} == SETS


@pytest.mark.parametrize(
    ("words", "fraction", "deleted"), [(19, 0.1, 1), (20, 0.1, 2), (39, 0.1, 3), (8, 0.5, 4), (5, 1.0, 4), (3, 0.0, 1)]
)
def test_a_fraction_of_the_words_is_changed_but_at_least_one(words: int, fraction: float, deleted: int) -> None:
    text = " ".join(f"w{number}" for number in range(words))
    assert len(edited(edits.delete_word, text, fraction).split()) == words - deleted


@pytest.fixture(scope="module")
def rewrites(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Rewrite]:
    table = tmp_path_factory.mktemp("synonyms") / "synonyms.tsv"
    table.write_text(SYNONYMS, "utf-8")
    settings = Perturb(Path("queries.tsv"), attacks=["lite"], word_fraction=0.4, output=Path("out"))
    inputs = Inputs(pl.DataFrame(), {"synonyms": table}, settings)
    return {name: ATTACKS[name].start(inputs) for name in LOCAL}


texts = st.lists(
    st.sampled_from(["the", "Cat", "salt", "x", "sat", "don't", "1-D", "?", ",", "-", "\n", "é"]), max_size=9
)


@pytest.mark.parametrize("name", LOCAL)
@given(parts=texts, seed=st.integers(0, 5), glue=st.sampled_from([" ", "  ", ", "]))
def test_no_query_is_emptied(rewrites: dict[str, Rewrite], name: str, parts: list[str], seed: int, glue: str) -> None:
    text = glue.join(parts)
    found = rewrites[name]("q", text, partial(draw, seed, name, "q")).text
    before, after = edits.WORD.findall(text), edits.WORD.findall(found)
    assert bool(before) == bool(after)
    assert bool(text.strip()) == bool(found.strip())
    if name == "word-deletion":
        assert Counter(after) <= Counter(before)
    elif name == "word-order-swap":
        assert Counter(after) == Counter(before)
    if name in ("synonym-replacement", "word-order-swap"):  # the text between words is kept
        assert edits.WORD.split(text) == edits.WORD.split(found)
    assert found == rewrites[name]("q", text, partial(draw, seed, name, "q")).text


@pytest.mark.parametrize("name", LOCAL)
def test_draws_depend_on_seed_attack_and_id(rewrites: dict[str, Rewrite], name: str) -> None:
    text = "the salt cat sat on the salt cat of the sea with salt, cat, salt and cat"

    def under(seed: int = 0, attack: str = name, qid: str = "q") -> str:
        return rewrites[name]("q", text, partial(draw, seed, attack, qid)).text

    assert len({under(seed=seed) for seed in range(20)}) > 3
    assert len({under(qid=f"q{number}") for number in range(20)}) > 3
    assert len({under(attack=attack) for attack in map(str, range(20))}) > 3


def all_of(kind: str, word: str) -> set[str]:
    return {"".join(edits.CHARACTER_CHANGES[kind](list(word), number)) for number in range(len(word) * 52)}


def test_the_four_kinds_of_change() -> None:
    assert all_of("neighbours", "abc") == {"bac", "acb"}
    assert all_of("deletion", "abc") == {"bc", "ac", "ab"}
    assert all_of("substitution", "abc") == {
        "abc"[:place] + letter + "abc"[place + 1 :] for place in range(3) for letter in ascii_letters
    }
    assert all_of("insertion", "abc") == {
        "abc"[:place] + letter + "abc"[place:] for place in range(3) for letter in ascii_letters
    }  # never after the last letter


def test_one_word_changes_and_everything_else_is_kept() -> None:
    for seed in range(200):
        first, second = edited(edits.swap_characters, "heart, (lungs)?", seed=seed).split(", ")
        assert (first == "heart") != (second == "(lungs)?")
        assert second[0] == "("
        assert second[-2:] == ")?"


@pytest.mark.parametrize("text", ["The of IT", "a 1 x", "don't You'll it's", "?"])
def test_stop_words_and_single_characters_are_kept(text: str) -> None:
    assert {edited(edits.swap_characters, text, seed=seed) for seed in range(100)} == {text}


def test_contractions_are_stop_words_and_possessives_are_not() -> None:
    assert all(map(edits.is_stop_word, ["the", "THE", "don't", "Isn't", "they've", "he'd", "won", "further"]))
    assert not any(map(edits.is_stop_word, ["cat", "cat's", "can-can", "the-", "moon", "o'clock", ""]))


def test_words_and_changes_are_equally_likely() -> None:
    """A swap cannot change words of equal letters: six proposals remain, three for each word."""
    found = Counter(edited(edits.swap_characters, "oo zzz", seed=seed).split()[0] == "oo" for seed in range(6000))
    assert 2800 < found[True] < 3200
    lengths = Counter(len(edited(edits.swap_characters, "zzz", seed=seed)) for seed in range(6000))
    assert all(1800 < lengths[length] < 2200 for length in (2, 3, 4))


def shuffled(text: str, seed: int = 0, qid: str = "q") -> str:
    return edits.shuffle(text, partial(draw, seed, "shuffle", qid))


@given(st.text(st.sampled_from("ab\u00e9.,-'3 \t\n"), max_size=30), st.integers(0, 9))
def test_the_words_are_permuted_and_the_white_space_is_kept(text: str, seed: int) -> None:
    found = shuffled(text, seed)
    assert Counter(found.split()) == Counter(text.split())
    assert re.split(r"\S+", found) == re.split(r"\S+", text)


def test_all_orders_are_equally_likely() -> None:
    seen = Counter(shuffled("a b c", qid=str(number)) for number in range(6000))
    assert len(seen) == 6
    assert all(850 < count < 1150 for count in seen.values())  # expected 1,000, within five standard deviations


DATA = Path(__file__).parent / "data" / "wordnet"
WORDNET = {"wordnet": DATA}


def counts_of_edits(
    start: Callable[[Inputs], edits.Edit], text: str, files: Mapping[str, Path] = WORDNET
) -> Counter[str]:
    edit = start(Inputs(pl.DataFrame(), files, Perturb(Path("queries.tsv"), attacks=["lite"], output=Path("out"))))
    return Counter(edits.edit_words(text, edit, 0.1, partial(draw, seed, "test", "q")) for seed in range(300))


def test_a_word_is_replaced_by_a_single_word_of_any_synset() -> None:
    """`night lamp` and `railway car` are two words; `Moon` would be the word itself."""
    assert set(counts_of_edits(replacement, "what is the Moon?")) == {"what is the Luna?", "what is the tide?"}


def test_a_synonym_is_inserted_before_any_word_even_of_a_stop_word() -> None:
    """WordNet knows the noun `can`; its synonym `tin` is inserted anywhere but at the end."""
    assert set(counts_of_edits(insertion, "Can, (can)?")) == {"tin Can, (can)?", "Can, (tin can)?"}


def test_pairs_of_word_and_synonym_are_equally_likely() -> None:
    """The synonyms are `box` and `crate`, `ocean` and `deep`, and `sodium`; stop words have none."""
    found = counts_of_edits(replacement, "boxes oceans salt")
    boxes, oceans = {"box oceans salt", "crate oceans salt"}, {"boxes ocean salt", "boxes deep salt"}
    assert set(found) == boxes | oceans | {"boxes oceans sodium"}
    assert all(35 < count < 85 for count in found.values())
    assert set(counts_of_edits(replacement, "mice")) == {"mouse", "nibbler"}  # the base form is a synonym
    assert set(counts_of_edits(replacement, "Can you have moss")) == {"Can you have moss"}


def test_the_number_of_words_tried_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    text = " ".join(["moss"] * 9 + ["box"])
    unchanged = {}
    for tries in (1, 7):
        monkeypatch.setattr(synonyms, "TRIES", tries)
        unchanged[tries] = counts_of_edits(insertion, text)[text]
    assert 250 < unchanged[1] < 290  # .9 of 300
    assert 115 < unchanged[7] < 175  # .9 to the 7th
    assert set(counts_of_edits(insertion, "moss")) == {"moss"}


def test_a_table_replaces_wordnet(tmp_path: Path) -> None:
    table = tmp_path / "synonyms.tsv"
    table.write_text("Moon\tsatellite\t earth's moon \nsea\tdeep\nmoon\tLuna\n", "utf-8")
    assert SynonymTable(table).synonyms("MOON") == ["satellite", "earth's moon", "Luna"]
    assert thesaurus({"synonyms": table, **WORDNET}).lemmas("boxes") == []
    assert set(counts_of_edits(replacement, "the moon", {"synonyms": table})) == {"the satellite", "the Luna"}


def test_our_own_table_has_groups_of_words() -> None:
    """Each word of a group has the others as synonyms, and so have its inflected forms."""
    own = thesaurus({"groups": synonyms.OWN})
    assert {"automobile", "vehicle"} <= set(own.synonyms("Cars"))
    assert "car" in own.synonyms("automobile")
    assert "car" not in own.synonyms("cars")
    assert "car" in own.lemmas("cars")
    assert own.synonyms("tapir") == []
    groups = [line.split("\t") for line in synonyms.OWN.read_text("utf-8").splitlines()]
    assert groups == sorted(groups)
    assert all(word == word.strip().lower() for group in groups for word in group)
    assert all(len(set(group)) == len(group) > 1 for group in groups)
    assert len({frozenset(group) for group in groups}) == len(groups)


# Synonyms are in capitals, to distinguish them from the original words; each of their words is a term.
ALTERNATIVES = {"moon": ["NIGHT LAMP", "LUNE"], "sea": ["BRINE", "SALT FLOOD"], "salt": ["SODIUM"], "can": ["TIN"]}
ALTERNATIVES["lungs"] = []
WORDS = [*ALTERNATIVES, "the", "tides", "x2", "naïve", "read_csv"]
BETWEEN = [" ", "  ", ", ", "-", "\t", " (", "! ", "\n", " ... ", "'s "]


def terms(words: str) -> frozenset[str]:
    return frozenset(words.lower().split())


def attack(text: str, *relevant: str, seed: int = 0) -> Attacked:
    return replace_matches(
        text, set(relevant), terms, lambda word: ALTERNATIVES.get(word, []), lambda word: draw(seed, "test", "q", word)
    )


queries = st.lists(st.tuples(st.sampled_from(WORDS), st.sampled_from(BETWEEN)), max_size=8).map(
    lambda pieces: "".join(chain.from_iterable(pieces))
)
documents = st.sets(st.sampled_from([*WORDS, "night", "lune", "brine", "flood", "sodium", "tin"]))


def test_counts_of_words() -> None:
    found = attack("the moon, salt and lungs of the sea", "moon", "salt", "sodium", "lungs", "the", "and")
    assert found.counts == {"matched": 3, "replaced": 1, "without_synonym": 2}


def test_any_usable_synonym_is_drawn_with_the_capitals_of_the_word() -> None:
    assert {attack("moon", "moon", seed=seed).text for seed in range(20)} == {"NIGHT LAMP", "LUNE"}
    capitals = replace_matches("Moon moon MOON", {"moon"}, terms, lambda word: ["lune"], lambda word: 0)
    assert capitals.text == "Lune lune Lune"


def test_a_synonym_without_terms_is_not_used() -> None:
    def only_long(words: str) -> set[str]:
        return {word for word in words.split() if len(word) > 2}

    found = replace_matches("moon", {"moon"}, only_long, lambda word: ["it"], lambda word: 0)
    assert (found.text, found.counts["matched"], found.counts["replaced"]) == ("moon", 1, 0)


@given(st.text(), st.sets(st.text(min_size=1)))
def test_without_synonyms_any_text_is_unchanged(text: str, relevant: set[str]) -> None:
    assert replace_matches(text, relevant, terms, lambda word: [], lambda word: 0).text == text


@given(queries, documents, st.integers(0, 5))
def test_only_matching_words_change_and_no_relevant_term_is_added(text: str, relevant: set[str], seed: int) -> None:
    found = attack(text, *relevant, seed=seed)
    pattern, places = "", []
    for piece in re.split(r"(\w+)", text):
        fit = [name for name in ALTERNATIVES.get(piece, ()) if terms(name).isdisjoint(relevant)]
        matched = piece in relevant and piece not in edits.FUNCTION_WORDS
        pattern += f"({'|'.join(map(re.escape, fit))})" if matched and fit else re.escape(piece)
        places += [piece] if matched and fit else []
    whole = re.fullmatch(pattern, found.text)
    assert whole, (text, found.text)
    assert len(set(zip(places, whole.groups(), strict=True))) == len(set(places))  # one synonym per word
    assert found.counts["replaced"] == len(places) <= found.counts["matched"]
    assert relevant.isdisjoint(terms(" ".join(whole.groups())))


@pytest.fixture(scope="module")
def small() -> WordNet:
    return WordNet(DATA)


@pytest.fixture
def places(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Hide an installed WordNet, and return the data folder of nltk."""
    monkeypatch.setattr(wordnet, "DEBIAN", tmp_path / "nowhere")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("NLTK_DATA", str(tmp_path / "nltk"))
    if (path := find()) is not None:
        pytest.skip(f"nltk's data are at {path}")
    return tmp_path / "nltk"


@pytest.mark.parametrize(
    ("form", "synonyms"),
    [
        ("moon", ["Luna", "night lamp", "tide"]), ("Moon", ["Luna", "night lamp", "tide"]), ("luna", ["moon"]),
        ("near", ["adjacent", "close", "nigh"]),  # adjective and adverb; the marker of `close(p)` is removed
        ("close", ["adjacent", "near"]), ("aplenty", ["galore"]), ("tapir", []), ("", []),
        ("moons", ["Luna", "night lamp", "tide"]), ("boxes", ["crate"]), ("ladies", ["woman"]), ("queries", ["ask"]),
        ("hurries", ["run"]), ("ran", ["hurry"]), ("runs", ["hurry"]), ("baked", ["roast"]), ("baking", ["roast"]),
        ("finer", ["nice"]), ("nicest", ["fine"]),
    ],
)  # fmt: skip # several forms per line
def test_synonyms_are_the_lemmas_of_all_synsets_of_a_form(small: WordNet, form: str, synonyms: list[str]) -> None:
    assert small.synonyms(form) == synonyms


def test_synonyms_are_symmetric(small: WordNet) -> None:
    words = {line.split()[0] for file in DATA.glob("index.*") for line in file.read_text().splitlines()[2:]}
    assert len(words) > 30
    for word in words:
        for synonym in small.synonyms(word.replace("_", " ")):
            if " " not in synonym and "_" not in word:
                assert word in [back.lower() for back in small.synonyms(synonym)]


def test_the_data_of_nltk_are_found_unpacked_or_zipped(places: Path, small: WordNet, tmp_path: Path) -> None:
    (places / "corpora").mkdir(parents=True)
    archive = shutil.make_archive(str(places / "corpora" / "wordnet"), "zip", DATA.parent, "wordnet")
    assert find() == Path(archive)
    without_folder = shutil.make_archive(str(tmp_path / "flat"), "zip", DATA)
    for path in (archive, without_folder):
        assert WordNet(Path(path)).synonyms("mice") == small.synonyms("mice")
    shutil.copytree(DATA, places / "corpora" / "wordnet")
    assert find() == places / "corpora" / "wordnet"
