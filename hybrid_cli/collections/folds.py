"""Cross-validation: folds of the queries, and the splits of each fold.

The protocol is that of McDonald et al. (2018) on Robust04: test on one fold, tune on the next, train on the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Set
from pathlib import Path

from hybrid_cli import console
from hybrid_cli.draws import draw
from hybrid_cli.errors import InputError, path_error
from hybrid_cli.inputs.files import plain_suffix, read_text
from hybrid_cli.inputs.json_values import mismatch, parse_json
from hybrid_cli.inputs.rows import lines

WHOLE = "all"
_EXAMPLES = 3
_LONGEST_NUMBER = 20  # digits of a fold that is ordered as a number

Folds = list[list[str]]


def random_folds(qids: Set[str], count: int, seed: int) -> Folds:
    """Draw folds whose sizes differ by one at most.

    Raises:
        InputError: more folds than queries.
    """
    if count > len(qids):
        problem = f"--folds {count}: more than {console.counted(**{'judged query': len(qids)})}; use fewer folds"
        raise InputError(problem, code="out-of-range", option="folds", value=count)
    drawn = sorted(qids, key=lambda qid: (draw(seed, qid), qid))
    return [drawn[first::count] for first in range(count)]


def predefined_folds(file: Path, judged: Set[str], unjudged: Set[str]) -> Folds:
    """Read folds from a file and keep the judged queries; see `read` for the format.

    Raises:
        InputError: a query is in two folds, is unknown, or is judged and in no fold; or a fold is empty.
    """
    folds = read(file)
    home: dict[str, int] = {}
    for number, fold in enumerate(folds, 1):
        for qid in fold:
            if qid in home:
                problem = f"query {qid} is in folds {home[qid]} and {number}; keep it in one"
                raise path_error(file, problem, code="duplicate-id", id=qid, folds=(home[qid], number))
            home[qid] = number
    if unknown := home.keys() - judged - unjudged:
        problem = f"unknown: {_counted(unknown)}; select the splits that contain them with --split"
        raise path_error(file, problem, code="unknown-id", id=min(unknown), count=len(unknown))
    if missing := judged - home.keys():
        problem = f"judged, but in no fold: {_counted(missing)}; add each to one fold"
        raise path_error(file, problem, code="missing-id", id=min(missing), count=len(missing))
    kept = [[qid for qid in fold if qid in judged] for fold in folds]
    if empty := [number for number, fold in enumerate(kept, 1) if not fold]:
        raise path_error(file, f"fold {empty[0]} has no judged query", code="empty-fold", fold=empty[0])
    return kept


def _counted(qids: Set[str]) -> str:
    named = ", ".join(sorted(qids)[:_EXAMPLES]) + (", ..." if len(qids) > _EXAMPLES else "")
    return f"{len(qids):,} {'query' if len(qids) == 1 else 'queries'} ({named})"


def read(file: Path) -> Folds:
    """Read folds from a JSON list of lists of query ids, or from lines of query id and fold.

    Lines are split at tabs if they contain any, else at spaces. Folds of a JSON list keep their order; those of lines
    are ordered by name, numbers as numbers.

    Raises:
        InputError: another format, or fewer than two folds.
    """
    folds = _json_folds(file) if plain_suffix(file) == ".json" else _line_folds(file)
    if len(folds) < 2:
        raise path_error(file, "fewer than two folds", code="too-few-folds")
    return folds


def _json_folds(file: Path) -> Folds:
    text = read_text(file)
    content = parse_json(text, file, parse_int=str, parse_float=str)
    if wrong := mismatch(content, list[list[str]]):
        problem = f'{wrong}; folds are a list of lists of query ids, such as [["301", "302"], ["303"]]'
        raise path_error(file, problem, code="folds-form", **wrong.fields)
    return list(content)


def _line_folds(file: Path) -> Folds:
    folds: dict[str, list[str]] = {}
    for location, line in lines(file):
        fields = line.split("\t") if "\t" in line else line.split()
        if len(fields) != 2:
            problem = f"{console.counted(column=len(fields))}; needs query id and fold"
            raise location.error(problem, code="other-width", found=len(fields), expected=2)
        folds.setdefault(fields[1], []).append(fields[0])
    numbers = {name: int(name) for name in folds if name.isdecimal() and len(name) < _LONGEST_NUMBER}
    order = sorted(folds, key=lambda name: (numbers.get(name, float("inf")), name))
    return [folds[name] for name in order]


def splits(folds: Iterable[Iterable[str]], with_dev: bool = True) -> dict[str, set[str]]:
    """Return the queries of each split: `all`, and for fold i, from 1, `test-i`, `dev-i` and `train-i`.

    `test-i` is fold i, `dev-i` the next fold (for the last fold the first), `train-i` the others. With two folds there
    is no `train-i`. Without `with_dev`, there is no `dev-i`, and its queries belong to `train-i`.
    """
    sets = [set(fold) for fold in folds]
    whole = set().union(*sets)
    members = {WHOLE: whole}
    for number, test in enumerate(sets, 1):
        held = sets[number % len(sets)] if with_dev else set()
        fold = {f"train-{number}": whole - test - held, f"dev-{number}": held, f"test-{number}": test}
        members |= {name: qids for name, qids in fold.items() if qids}
    return members
