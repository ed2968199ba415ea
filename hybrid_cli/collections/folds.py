"""Cross-validation: queries in parts, and the splits of every fold made of them (methods 10.8)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Set
from pathlib import Path
from typing import Any

from hybrid_cli.collections.problems import EXAMPLES
from hybrid_cli.collections.readers.lines import lines, open_binary
from hybrid_cli.errors import InputError

WHOLE = "all"

Parts = list[list[str]]


def seeded(qids: Set[str], folds: int, seed: int) -> Parts:
    """Parts whose sizes differ by one at most, drawn by hashes of (seed, qid).

    Raises:
        InputError: fewer than two parts, or more than there are queries.
    """
    if folds < 2:
        raise InputError(f"--folds {folds}: at least two are needed, one to test on and one to learn from")
    if folds > len(qids):
        raise InputError(f"--folds {folds}: there are only {len(qids)} judged queries; ask for fewer folds")

    def key(qid: str) -> tuple[bytes, str]:
        return hashlib.blake2b(f"{seed}\0{qid}".encode(), digest_size=8).digest(), qid

    drawn = sorted(qids, key=key)
    return [drawn[first::folds] for first in range(folds)]


def given(file: Path, judged: Set[str], unjudged: Set[str]) -> Parts:
    """Parts that somebody else chose, as far as they are judged; see `read` for the form of `file`.

    Raises:
        InputError: a query stands in two folds, is in neither set, or is judged and in no fold; or a fold is empty.
    """
    parts = read(file)
    home: dict[str, int] = {}
    for number, part in enumerate(parts, 1):
        for qid in part:
            if qid in home:
                raise InputError(f"{file}: query {qid} stands in folds {home[qid]} and {number}; keep it in one")
            home[qid] = number
    if unknown := home.keys() - judged - unjudged:
        raise InputError(
            f"{file}: {_counted(unknown)}: not among the queries; name the splits that have them (--split)"
        )
    if left := judged - home.keys():
        raise InputError(f"{file}: {_counted(left)}: judged, but in no fold; put each into one")
    kept = [[qid for qid in part if qid in judged] for part in parts]
    if empty := [number for number, part in enumerate(kept, 1) if not part]:
        raise InputError(f"{file}: fold {empty[0]} has no judged query")
    return kept


def _counted(qids: Set[str]) -> str:
    named = ", ".join(sorted(qids)[:EXAMPLES]) + (", ..." if len(qids) > EXAMPLES else "")
    return f"{len(qids):,} {'query' if len(qids) == 1 else 'queries'} ({named})"


def read(file: Path) -> Parts:
    """A JSON list of lists of qids, or lines of `qid fold`; lines are split at tabs, if they have any, else at spaces.

    Folds of a JSON list stand as they stand there, those of lines in the order of their names, numbers as numbers.

    Raises:
        InputError: another form, or fewer than two folds.
    """
    parts = _json_parts(file) if file.suffix == ".json" else _line_parts(file)
    if len(parts) < 2:
        raise InputError(f"{file}: has fewer than two folds; at least two are needed")
    return parts


def _json_parts(file: Path) -> Parts:
    with open_binary(file) as opened:
        text = opened.read()
    try:
        content: Any = json.loads(text, parse_int=str, parse_float=str)
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise InputError(f"{file}: is not readable JSON ({error})") from None
    if not _is_list(content, list) or not all(_is_list(part, str) for part in content):
        raise InputError(f'{file}: needs a list of lists of query ids, such as [["301", "302"], ["303"]]')
    return list(content)


def _is_list(value: Any, kind: type) -> bool:
    return isinstance(value, list) and all(isinstance(item, kind) for item in value)


def _line_parts(file: Path) -> Parts:
    parts: dict[str, list[str]] = {}
    for place, line in lines(file):
        fields = line.split("\t") if "\t" in line else line.split()
        if len(fields) != 2:
            raise InputError(f"{place}: {len(fields)} columns; needed: query id and fold")
        parts.setdefault(fields[1], []).append(fields[0])
    order = sorted(parts, key=lambda name: (int(name) if name.isdecimal() else float("inf"), name))
    return [parts[name] for name in order]


def splits(parts: Iterable[Iterable[str]]) -> dict[str, set[str]]:
    """The queries of each split: `all`, and for fold i, from 1, `test-i`, `dev-i` and `train-i`.

    `test-i` is part i, `dev-i` the next one (after the last the first), `train-i` the others. Of two parts none is left
    to train on: then there is no `train-i`.
    """
    sets = [set(part) for part in parts]
    whole = set().union(*sets)
    found = {WHOLE: whole}
    for number, test in enumerate(sets, 1):
        dev = sets[number % len(sets)]
        fold = {f"train-{number}": whole - test - dev, f"dev-{number}": dev, f"test-{number}": test}
        found |= {name: qids for name, qids in fold.items() if qids}
    return found
