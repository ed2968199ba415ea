"""Pairs of option values of cheap commands, from the declarations: each runs, or is refused with a code."""

from collections import Counter
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from pairwise import Case, pairwise
from test_refusals import choices_of, sample

from hybrid_cli.commands import Evaluate, Fuse, Search
from hybrid_cli.errors import HybridError, InputError
from hybrid_cli.indexes.options import ENGINES
from hybrid_cli.settings import Settings
from hybrid_cli.stages import call

FIXED: dict[type[Settings], Case] = {
    Fuse: {"runs": ["bm25.parquet", "dense.parquet"], "overwrite": True, "output": "out.parquet"},
    Search: {"index": "bm25", "overwrite": True, "output": "out.parquet"},
    Evaluate: {"inputs": ["bm25.parquet", "dense.parquet"]},
}
FILES = {"queries": "tiny/queries.test.parquet", "qrels": "tiny/qrels.test.parquet", "corpus": "tiny/corpus.parquet"}
VALUES = FILES | {"collection": "tiny", "split": "test", "index": ["bm25", "dense"], "weights": [0.3, 0.7]}
VALUES |= {"machine": "tiny/qrels.test.parquet", "residual_qrels": "tiny/qrels.train.parquet", "baseline": ["bm25"]}
VALUES |= {"complement": ["bm25", "dense"], "overlap_with": "bm25", "roc_against": "bm25", "filter": "docid = 'salt'"}
OMITTED = {"limits", "overwrite", "output", "seed", "threads", "device", "interactive", "ray_address", "ray_workers"}
OMITTED |= {"faiss_device", "model", "folds", "method_options"}  # no rule of ours has parameters
OMITTED |= {"engine_query"}  # of a server


def options_of(kind: type[Settings]) -> dict[str, Sequence[Any]]:
    """Return the values of each option: six of its choices, true, or one that its declaration allows."""
    found: dict[str, Sequence[Any]] = {}
    for name, declared in kind.declared().items():
        if name not in {*OMITTED, *FIXED[kind]}:
            choices = ENGINES if name == "engine" else choices_of(kind.types()[name], declared)
            value = VALUES.get(name) or sample(kind, name)
            found[name] = [[choice] if isinstance(value, list) else choice for choice in choices[:6]] or [value]
    return found


def accepted(kind: type[Settings], case: Case) -> bool:
    """Test whether no rule of the options refuses a case; its files are not read."""
    try:
        return bool(kind(**FIXED[kind], **case))
    except InputError:
        return False


def outcome(kind: type[Settings], case: Case) -> str:
    """Run a case without the options that are refused one after the other; return the code of the last refusal."""
    try:
        output = {"output": "out.json"} if kind is Fuse and case.get("tune") else {}
        call(kind(**{**FIXED[kind], **case, **output}))
    except HybridError as error:
        refused = error.fields.get("option")
        assert error.exit_code in (1, 2), case  # noqa: PT017
        return outcome(kind, {n: v for n, v in case.items() if n != refused}) if refused in case else error.code
    return "ran"


@pytest.mark.parametrize(("kind", "least"), [(Fuse, 30), (Search, 6), (Evaluate, 20)])
@pytest.mark.usefixtures("few_feedbacks")
def test_a_pair_of_values_runs_or_is_refused(
    kind: type[Settings], least: int, tiny: Path, tiny_runs: Path, workdir: Path
) -> None:
    for path in (*tiny_runs.iterdir(), tiny):
        Path("tiny" if path == tiny else path.name).symlink_to(path)
    found = Counter(outcome(kind, case) for case in pairwise(options_of(kind), lambda case: accepted(kind, case)))
    assert found["ran"] >= least, found
    assert "" not in found


def test_every_pair_occurs_in_few_cases() -> None:
    values = {"a": [1, 2, 3], "b": "xyz", "c": [True, False], "d": "uv"}
    cases = list(pairwise(values))
    assert len(cases) < 14
    for one, other in combinations(values, 2):
        assert len({(case[one], case[other]) for case in cases}) == len(values[one]) * len(values[other])
