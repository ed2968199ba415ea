"""What `gate` compares: a baseline, a small JSON file with the values and first hits of every query, and drops."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import polars as pl

from hybrid_cli.errors import InputError, path_error
from hybrid_cli.evaluation.significance import ALPHA, holm, sign_flip
from hybrid_cli.inputs.json_values import make_typed, read_object
from hybrid_cli.storage import disk
from hybrid_cli.storage.files import replacing
from hybrid_cli.version import __version__

FORMAT = 1
HITS = 10
_DIGITS = 6  # of a value, so that lines stay short and equal runs have equal values


class OtherQueries(InputError):
    """A baseline of other queries or judgments; exit code 3."""

    exit_code = 3


@dataclass(frozen=True)
class StoredQuery:
    """One judged query.

    Attributes:
        values: one per measure.
        hits: ids of the first documents.
        judgments: hash of its judgments.
        text: hash of its text; None if the text is unknown.
    """

    values: Sequence[float]
    hits: Sequence[str]
    judgments: str
    text: str | None = None


@dataclass(frozen=True)
class Baseline:
    """Measured values of a system.

    Attributes:
        measures: names.
        system: settings of the system and fingerprints of its parts, by name.
        queries: qid -> values, hits and hashes.
        deviations: measure -> standard deviation of the differences when the baseline was last renewed.
        gone: ids of relevant documents that are not indexed.
        format: version of the form of the file.
        hybrid: version of hybrid that measured.
    """

    measures: Sequence[str]
    system: Mapping[str, Any]
    queries: Mapping[str, StoredQuery]
    deviations: Mapping[str, float] = field(default_factory=dict)
    gone: Sequence[str] = ()
    format: int = FORMAT
    hybrid: str = __version__

    @classmethod
    def of(
        cls,
        values: pl.DataFrame,
        head: pl.DataFrame,
        qrels: pl.DataFrame,
        texts: Mapping[str, str],
        system: Mapping[str, Any],
        gone: Sequence[str] = (),
    ) -> Self:
        """Return the baseline of measured hits.

        Args:
            values: measure, qid, value: the same queries for every measure.
            head: qid, docid, rank of the first hits.
            qrels: qid, docid, relevance.
            texts: qid -> text, where it is known.
            system, gone: see `Baseline`.
        """
        measures = values["measure"].unique(maintain_order=True).to_list()
        rows = values.pivot(on="measure", index="qid", values="value").select("qid", *measures)
        first = head.filter(pl.col("rank") <= HITS).sort("qid", "rank").group_by("qid").agg("docid")
        hits = dict(first.iter_rows())
        judged = qrels.sort("qid", "docid").group_by("qid").agg("docid", "relevance")
        judgments = {qid: _hash([docids, grades]) for qid, docids, grades in judged.iter_rows()}
        queries = {
            qid: StoredQuery(
                [round(value, _DIGITS) for value in numbers],
                hits.get(qid, []),
                judgments.get(qid, ""),
                _hash(texts[qid]) if qid in texts else None,
            )
            for qid, *numbers in rows.iter_rows()
        }
        return cls(measures, system, queries, gone=gone)

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a baseline.

        Raises:
            InputError: no file, no baseline, a damaged one, or one of a later version of hybrid.
        """
        content = read_object(path)
        if isinstance(stored := content.get("format"), int) and stored > FORMAT:
            raise path_error(
                path, f"is a baseline of hybrid {content.get('hybrid')}; update hybrid", code="newer-format"
            )
        queries = content.get("queries")
        baseline = make_typed(cls, {**content, "queries": {}} if isinstance(queries, dict) else content, path)
        typed = {
            qid: make_typed(StoredQuery, stored, f"{path}, query {qid}") for qid, stored in (queries or {}).items()
        }
        for qid, query in typed.items():
            if len(query.values) != len(baseline.measures):
                problem = (
                    f"query {qid} has {len(query.values)} values of {len(baseline.measures)} measures; write it again"
                )
                raise path_error(path, problem, code="damaged", id=qid)
        return cls(**{**vars(baseline), "queries": typed})

    def write(self, path: Path) -> None:
        """Write the baseline; a kill leaves the old file or the new one."""
        first = ("format", "hybrid", "measures", "deviations", "gone", "system")
        head = {name: getattr(self, name) for name in first}
        rows = (f"  {_json(qid)}: {_json(asdict(self.queries[qid]))}" for qid in self.qids)
        start = json.dumps(head, indent=1, ensure_ascii=False).removesuffix("\n}")
        text = f'{start},\n "queries": {{\n' + ",\n".join(rows) + "\n }\n}\n"
        with replacing(path) as scratch:
            disk.write_text(scratch, text)

    def without(self, qids: Collection[str]) -> Self:
        """Return the baseline of the other queries."""
        return replace(self, queries={qid: query for qid, query in self.queries.items() if qid not in qids})

    @property
    def qids(self) -> list[str]:
        """Return the ids of the queries, sorted."""
        return sorted(self.queries)

    def values(self, measures: Sequence[str]) -> np.ndarray:
        """Return the values of some of its measures, [queries, measures], in the order of `qids`."""
        columns = [list(self.measures).index(measure) for measure in measures]
        return np.array([self.queries[qid].values for qid in self.qids], dtype=np.float64)[:, columns]

    def differences(self, other: Baseline) -> dict[str, list[str]]:
        """Return the ids of the queries in which another baseline was measured on something else, by the difference.

        Keys: `queries added`, `queries removed`, `queries with another text`, `queries with other judgments`; those
        without queries are left out.
        """
        common = [qid for qid in self.queries if qid in other.queries]
        pairs = [(qid, self.queries[qid], other.queries[qid]) for qid in common]
        differences = {
            "queries added": [qid for qid in other.queries if qid not in self.queries],
            "queries removed": [qid for qid in self.queries if qid not in other.queries],
            "queries with another text": [
                qid for qid, a, b in pairs if None not in (a.text, b.text) and a.text != b.text
            ],
            "queries with other judgments": [qid for qid, a, b in pairs if a.judgments != b.judgments],
        }
        return {name: qids for name, qids in differences.items() if qids}

    def changed_settings(self, other: Baseline) -> Iterator[tuple[str, Any, Any]]:
        """Yield name, value here and value in another baseline where the systems differ; None for no value."""
        for name in dict.fromkeys([*self.system, *other.system]):
            here, there = self.system.get(name), other.system.get(name)
            if here != there:
                yield name, here, there


def _json(content: Any) -> str:
    return json.dumps(content, ensure_ascii=False)


def _hash(content: Any) -> str:
    return hashlib.blake2b(_json(content).encode(), digest_size=4).hexdigest()


# --------------------------------------------------------------------------------------------------------------- drops

POWER = 0.8
DEVIATION_OF_DIFFERENCES = 0.5  # relative to that of the values: less in 9 of the 12 pairs of studies/gate.md

Origin = Literal["differences", "earlier differences", "values"]


@dataclass(frozen=True)
class Deviation:
    """Standard deviation of the differences of one query.

    Attributes:
        value: in units of the measure.
        origin: these differences; where all of them are 0, those of an earlier comparison; without one, half of the
            deviation of the values, an estimate.
    """

    value: float
    origin: Origin


def drop_p_values(before: np.ndarray, now: np.ndarray, max_drop: float = 0.0) -> np.ndarray:
    """Return the p-values of drops beyond a tolerance, corrected over the measures (Holm).

    One-sided sign-flip test of `before` minus `now` minus `max_drop`. It needs no normal distribution: a t-test finds a
    drop wherever three of many queries lose the same, which chance does in one of eight cases.

    Args:
        before, now: [queries, measures].
        max_drop: tolerance, in units of the measures.

    Returns:
        [measures].
    """
    return holm(sign_flip(before - now - max_drop, greater=True))


def deviation_of(before: np.ndarray, now: np.ndarray, earlier: float | None = None) -> Deviation:
    """Return the standard deviation of the differences of a measure; see `Deviation`.

    Args:
        before, now: [queries], two or more.
        earlier: deviation of the differences in an earlier comparison; None if there was none.
    """
    differences = now - before
    if differences.any():
        return Deviation(float(differences.std(ddof=1)), "differences")
    if earlier is not None:
        return Deviation(earlier, "earlier differences")
    return Deviation(DEVIATION_OF_DIFFERENCES * float(now.std(ddof=1)), "values")


def least_queries(measures: int) -> int:
    """Return the smallest number of queries of which `drop_p_values` can detect any drop."""
    return math.floor(math.log2(measures / ALPHA)) + 1


def smallest_drop(deviation: float, queries: int, measures: int = 1) -> float | None:
    """Return the smallest drop that `drop_p_values` detects with a probability of 80%, beyond the tolerance.

    By Student's noncentral t, whose power is that of the sign-flip test (studies/gate.md), in the first step of Holm's
    method: the others need less.

    Args:
        deviation: standard deviation of the differences.
        queries: number of queries, two or more.
        measures: number of measures that are tested.

    Returns:
        None where even a loss of every query is not significant: chance gives all signs in one of 2^queries cases.
    """
    if queries < least_queries(measures):
        return None
    from scipy.special import nctdtrinc, stdtrit  # takes longer to import than small runs to compare

    critical = stdtrit(queries - 1, 1 - ALPHA / measures)
    return float(nctdtrinc(queries - 1, 1 - POWER, critical)) * deviation / math.sqrt(queries)
