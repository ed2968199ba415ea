"""Claims of README and the guide against the studies: verdicts and figures of stored measurements."""

import re
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

sys.path.insert(0, str(Path(__file__).parents[1] / "studies"))

import verdicts

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
CLAIMS = [
    (entry["page"], claim)
    for entry in yaml.safe_load((ROOT / "studies/claims.yaml").read_text())
    for claim in entry["claims"]
]
DIFFERENCE = re.compile(r"(?<![\w.])[+-]?\.\d{3,4}\b")
STUDY = re.compile(r"\]\(([^)#]*studies/[\w-]+\.md)")
WORDS = ("does not hold", "undecided", "holds")  # the first contains the last


def prose(page: Path) -> str:
    """Return the text of a page without blocks of code, on one line."""
    return " ".join(re.sub(r"```.*?```", "", page.read_text("utf-8"), flags=re.S).split())


@cache
def decided(file: str) -> Any:
    values = verdicts.measurements(verdicts.MEASURED, file)
    own = [claim for claim in verdicts.CLAIMS if claim.file == file]
    return verdicts.verdicts(values, own, verdicts.learning_curves(verdicts.MEASURED, file))


def disagreement(text: str, word: str, figures: list[float], slack: float = 0.0) -> str:
    """Return how a text contradicts a verdict and its figures; empty if it does not."""
    if (said := next((each for each in WORDS if each in text), "")) and not word.startswith(said):
        return f"says {said}; measured: {word}"
    for printed, measured in zip(DIFFERENCE.findall(text), figures, strict=False):
        if abs(float(printed) - measured) > 0.5001 * 10.0 ** -len(printed.partition(".")[2]) + slack:
            return f"says {printed}; measured: {measured:+.4f}"
    return ""


@pytest.mark.parametrize(("page", "claim"), CLAIMS, ids=[f"{page}:{claim['says'][:40]}" for page, claim in CLAIMS])
def test_a_claim_says_what_was_measured(page: str, claim: dict[str, Any]) -> None:
    says, share = claim["says"], claim.get("share", 1.0)
    assert says in prose(ROOT / page)
    of = verdicts.Claim(claim["file"], claim["better"], claim["worse"], claim["measure"], share=share)
    slack = 0.0
    found = decided(claim["file"]).get(of)
    if found is None:  # no claim of a paper: figures alone, of a bootstrap interval
        assert not any(word in says for word in WORDS)
        found, slack = verdicts.compared(verdicts.measurements(verdicts.MEASURED, claim["file"]), of), 0.0005
    assert found is not None
    assert not disagreement(says, found.word, [found.better - found.worse, found.low, found.high], slack)


def test_wrong_words_and_figures_are_noticed() -> None:
    """Three claims that the guide once had, with what was measured."""
    assert disagreement("98% of its teacher's recall: does not hold (94%)", "undecided: p = 1", [0.0034])
    assert disagreement("+.015 on InsuranceQA", "undecided: within two SD", [0.0075])
    assert disagreement("the paper's gain of .020 holds", "undecided: p = 1", [0.0126])
    assert not disagreement("98% of it: undecided (+.0034, -.0033 to", "undecided: p = 1", [0.00337, -0.00331])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_difference_names_the_study_that_has_it(page: Path) -> None:
    """Every signed figure is in a study that the page links, or rounds one of its figures."""
    text = prose(page)
    studies = [(page.parent / link).read_text("utf-8") for link in STUDY.findall(text)]
    known = {abs(float(each)) for study in studies for each in re.findall(r"[+-]?\.\d{2,4}\b", study)}
    printed = [each for each in DIFFERENCE.findall(text) if each[0] in "+-"]
    stated = " ".join(claim["says"] for named, claim in CLAIMS if page == ROOT / named)
    lost = [
        each
        for each in printed
        if each not in stated
        and not any(round(figure, len(each) - 2) == round(abs(float(each)), 4) for figure in known)
    ]
    assert not lost, f"{page.name}: in no study that it links: {lost}"
