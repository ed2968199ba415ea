"""Verdicts on the claims of the papers, from the values of every query in studies/measured.

python studies/verdicts.py [FOLDER]

Each file NAME.parquet holds run, measure, qid, value, written by `evaluate --output` with runs named ROW-SEED, and
NAME-curves.csv the learning curves of the rows, written by curves.py. Files NAME-seed-SEED.parquet and
NAME-seed-SEED-curves.csv, measured at another time or on another machine with the same settings, add their seeds.

A claim compares two rows in one measure, or one row with a constant: the mean of each query over the seeds, the
difference with its 95% t-interval over the queries, and the standard deviation (SD) of the difference over the seeds. A
claim holds if the difference is above the claimed gain with p < .05, corrected by Holm over the claims of its file, and
by more than two SD; it does not hold if it is below in the same way; else it is undecided. Trained rows need two seeds.
The SD alone is a weak condition (one-sided error 11% with two seeds, 4% with three), so it never decides alone.

Claims on a learning curve have one value per seed: their interval and p are over the seeds.

FOLDER/settings.yaml declares collection, model, training, fusion and machines of each file, and what its rows are;
every line has them. A claim that was stated after its test queries had been seen is marked with its verdict.

The column of other measures has the means of both rows in every other measure of the file, and the 95% interval of
their difference, without a claimed gain. They do not decide: the declared measure does, and Holm's family is that of
the declared claims. RoC@10 is always followed by its counts, since the ratio also rises if a row finds less of
everything: shares of the queries that only the row, only BM25, and neither answers (`D only`, `S only`, `Fail`).
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import polars as pl
import yaml
from scipy import stats

from hybrid_cli.evaluation.significance import holm

MEASURED = Path(__file__).parent / "measured"
CONFIDENCE = 0.95
NO_VALUES = pl.DataFrame(schema={"run": pl.String, "measure": pl.String, "qid": pl.String, "value": pl.Float64})
NO_CURVES = pl.DataFrame(schema={"run": pl.String, "name": pl.String, "first": pl.Float64, "last": pl.Float64})
PAPER = "R@100"  # LITE and SPAR claim accuracy and recall at 20 and 100; added after the runs were measured in MRR@10
KD_WEIGHTS = ("0.3", "1", "3")
TRANSFORMERS = ("lambda", "lambda-cls", "on-static")


@dataclass(frozen=True)
class Claim:
    """A claimed difference between two rows.

    Attributes:
        file: name of the measurements, without suffix.
        better, worse: rows; without `worse`, `better` is compared with the constant `gain`.
        measure: measure of the comparison.
        gain: claimed difference, 0 for any.
        share: the claim is about `better` and this share of `worse`.
        fall: the claim is refuted only if RoC's orthogonality, trained in `better`, fell by this share.
        curve: `measure` is a term of the learning curve, at the last step.
    """

    file: str
    better: str
    worse: str
    measure: str = "MRR@10"
    gain: float = 0.0
    share: float = 1.0
    fall: float = 0.0
    curve: bool = False


ROC = "RoC@10"
ROC_COUNTS = ("D only@10", "S only@10", "Fail@10")
RBO = "RBO"
CHANGE = "change of "  # under attack; before the name of a measure
CLAIMS = (
    *(
        Claim(file, f"bm25+{better}", f"bm25+{worse}")
        for file in ("clear", "clear-2000-steps")
        for better, worse in (
            ("residual", "constant"),
            ("residual", "constant-mean"),
            ("constant", "random"),
            ("residual", "random"),
            ("residual", "start"),
            ("residual", "nll-one"),
            ("residual", "nll"),
            ("residual-dynamic", "residual"),
            ("residual-dynamic", "nll"),
            ("batch-dynamic-sum", "nll"),
            ("residual-batch", "nll"),
            ("residual-nll", "nll"),
            ("residual-nll-anneal", "nll"),
        )
    ),
    Claim("clear-2000-steps", "bm25+batch-dynamic-sum", "bm25+residual-dynamic"),
    *(
        Claim("clear-scaled", f"bm25+{better}", f"bm25+{worse}")  # weights of another grid (studies/clear.md)
        for better, worse in (
            ("residual-dynamic", "nll-dynamic"),
            ("residual-dynamic", "nll-dynamic-sum"),
            ("residual-dynamic", "residual-dynamic-model"),
            ("residual-dynamic-model", "nll-dynamic"),
            ("nll-dynamic-sum", "nll-dynamic"),
            ("batch-dynamic-sum", "nll-two"),
            ("batch-dynamic-sum", "residual-dynamic"),
        )
    ),
    *(Claim("large", "bm25+clear-taught", f"bm25+{other}") for other in ("nll-taught", "start")),
    Claim("roc", "E100", "control", ROC, 0.005, fall=0.8),
    *(Claim("roc", weight, "E0", ROC) for weight in ("E1", "E100")),
    *(Claim("roc", f"bm25+{weight}", "bm25+E0") for weight in ("E1", "E100")),
    *(
        Claim("roc", masked + queries, f"I0{queries}", ROC)
        for masked in ("I15", "I50")
        for queries in ("", "@adversary")
    ),
    *(Claim("roc", masked, "I0", f"{CHANGE}MRR@10") for masked in ("I15", "I50")),
    *(Claim("roc", f"bm25+{masked}", "bm25+I0") for masked in ("I15", "I50")),
    *(
        claim
        for file in ("lite", "lite-1500-steps")
        for claim in (
            *(Claim(file, f"lite-{weight}", "dpr32", gain=gain) for gain in (0.0, 0.02) for weight in KD_WEIGHTS),
            *(Claim(file, f"lite-{weight}", "dpr32", PAPER) for weight in KD_WEIGHTS),
            *(
                Claim(file, ours, whole, measure, share=0.98)
                for measure in ("MRR@10", "R@100")
                for weight in KD_WEIGHTS
                for ours, whole in ((f"lite-{weight}", "drboost"), (f"bm25+lite-{weight}", "bm25+dpr"))
            ),
            *(
                Claim(file, better, worse, measure)
                for measure in ("MRR@10", PAPER)
                for better, worse in (("drboost", "dpr32"), ("l-drboost", "drboost"), ("drboost", "r-drboost"))
            ),
        )
    ),
    *(
        claim
        for file in ("lite", "lite-four", "lite-1500-steps")  # lite-four: run later than the other rows
        for claim in (
            Claim(file, "lite4-1", "dpr32", gain=0.02),
            Claim(file, "lite4-1", "drboost-4", share=0.98),
            Claim(file, "lite4-1", "lite-1"),
            Claim(file, "l-drboost-4", "drboost-4"),
            Claim(file, "drboost-4", "r-drboost-4"),
            Claim(file, "lite-1-untied", "lite-0-untied", gain=0.02),
        )
    ),
    Claim("bpr", "bpr", "signs"),
    Claim("bpr", "bpr", "dpr"),
    *(Claim("bpr-1500-steps", "bpr", other) for other in ("signs", "dpr", "bpr-before")),
    Claim("bpr-before", "bpr", "bpr-before"),
    *(Claim("rounding", "bpr", other) for other in ("signs", "dpr")),  # repeated with losses in fp32
    *(Claim("lambda", row, "", "RBO", gain=0.45) for row in ("static", *TRANSFORMERS)),
    *(
        Claim("lambda", f"dpr+{row}", "bm25+dpr", measure)
        for measure in ("MRR@10", PAPER)
        for row in ("static", *TRANSFORMERS)
    ),
    *(
        claim
        for row in ("lambda", "on-static")
        for claim in (
            Claim(f"{row}-4000-steps", row, "", "RBO", gain=0.45),
            *(
                Claim(f"{row}-4000-steps", f"dpr+{row}", other, measure)
                for measure in ("MRR@10", PAPER)
                for other in ("bm25+dpr", "dpr")
            ),
        )
    ),
    *(
        Claim(file, f"positives-{count}", "positives-1", "dev_MRR", curve=True)
        for file in ("lambda", "positives-1500-steps")
        for count in (2, 10)
    ),
    *(
        Claim("robustness", f"bm25+{dense}", part, f"{CHANGE}{measure}")
        for dense in ("before", "dense")
        for measure in ("R@100", "MRR@10")
        for part in (dense, "bm25")
    ),
    *(
        Claim(f"recommended-{name}", f"bm25+{better}", f"bm25+{worse}", "nDCG@10")
        for name in ("scifact", "pydocs", "insuranceqa-5k", "openwiki")
        for better, worse in (("nll", "before"), ("nll", "clear"), ("residual-nll", "nll"), ("roc", "nll"))
    ),
    *(
        Claim(f"recommended-objectives-{name}-dev", f"bm25+{better}", "bm25+nll", "nDCG@10")
        for name in ("scifact", "pydocs", "insuranceqa-5k", "openwiki")
        for better in ("residual-nll", "clear", "roc")
    ),
    *(
        Claim(f"recommended-{name}", "nll+static", "bm25+nll", "nDCG@10", share=0.98)
        for name in ("scifact", "pydocs", "insuranceqa-5k", "openwiki")
    ),
    *(
        Claim(f"recommended-dynamic-{name}", "bm25+nll-dynamic", f"bm25+{worse}", "nDCG@10")
        for name in ("scifact", "pydocs", "insuranceqa-5k", "openwiki")
        for worse in ("nll", "nll-two")
    ),
    *(
        Claim(f"recommended-taught-{name}", f"bm25+nll-{arm}", "bm25+nll", "nDCG@10")
        for name in ("scifact", "insuranceqa-5k", "pydocs", "openwiki-5k")
        for arm in ("all", "refresh", "taught", "dynamic")
    ),
    Claim("recommended-large-insuranceqa-5k", "bm25+nll", "bm25+before", "nDCG@10"),
    Claim("recommended-large-insuranceqa-5k", "bm25+nll", "nll", "nDCG@10"),
    *(
        Claim(f"recommended-gpu-{name}", better, worse, "nDCG@10")  # studies/gpu.sh
        for name in ("insuranceqa", "openwiki", "pydocs")
        for better, worse in (
            ("bm25+nll", "bm25+before"),
            ("bm25+clear", "bm25+nll"),
            ("bm25+nll-dynamic", "bm25+nll"),
            ("bm25+nll-scored", "bm25+nll"),
            ("short-scored", "short"),
        )
    ),
    Claim("recommended-two-passes-pydocs", "bm25+nll-dynamic", "bm25+nll", "nDCG@10"),
    *(
        Claim(f"recommended-300-{name}", f"bm25+{better}", f"bm25+{worse}", "nDCG@10")
        for name in ("scifact", "pydocs", "insuranceqa-5k", "openwiki")
        for better, worse in (("nll", "nll-60"), ("nll-dynamic", "nll"))
    ),
)


@dataclass(frozen=True)
class Verdict:
    """A measured difference.

    Attributes:
        better, worse: means of both rows; `worse` times the claimed share.
        low, high: 95% interval of the difference.
        p: probability of the difference, or a larger one, at the claimed gain; corrected by Holm in `verdicts`.
        deviation: SD of the difference over the seeds, NaN with fewer than two.
        seeds: common seeds of both rows, none if neither was trained.
        others: other measures, which do not decide, without correction.
        word: holds, does not hold, or undecided with the reason.
    """

    better: float
    worse: float
    low: float
    high: float
    p: float
    deviation: float
    seeds: tuple[str, ...]
    others: Mapping[str, Verdict] = field(default_factory=dict)
    word: str = "undecided"


@dataclass(frozen=True)
class Setting:
    """What a file of measurements was measured with; empty where it is not known.

    Attributes:
        sum: how the rows `bm25+X` are fused.
        rows: row -> description.
        chosen: what was chosen after a look at the test queries.
    """

    collection: str = ""
    model: str = ""
    training: str = ""
    sum: str = ""
    machines: str = ""
    rows: Mapping[str, str] = field(default_factory=dict)
    chosen: str = ""

    def text(self, claim: Claim) -> str:
        """Return the setting of a claim, with the rows that it compares."""
        rows = [row.removeprefix("bm25+").partition("@")[0] for row in (claim.better, claim.worse)]
        known = [f"{row}: {self.rows[row]}" for row in rows if row in self.rows]
        fused = f"sum {self.sum}" if self.sum and "+" in claim.better else ""
        parts = (self.collection, self.model, self.training, *known, fused, self.machines)
        return "; ".join(filter(None, parts)) or "not declared"


def verdicts(values: pl.DataFrame, claims: Sequence[Claim], curves: pl.DataFrame = NO_CURVES) -> dict[Claim, Verdict]:
    """Decide the claims of one file.

    Args:
        values: run, measure, qid, value; a row without seeds has one run of its name.
        claims: the claims, one family of Holm's correction.
        curves: run, name, first, last.

    Returns:
        The verdicts of the claims whose rows were measured.
    """
    last = curves.select("run", measure="name", qid=pl.lit(""), value="last").drop_nulls()
    known = {str(name): table for (name,), table in with_roc(with_changes(values)).group_by("measure")}
    pairs = ((claim, compared(last if claim.curve else known.get(claim.measure, NO_VALUES), claim)) for claim in claims)
    found = {
        claim: replace(verdict, others=dict(_others(known, claim))) for claim, verdict in pairs if verdict is not None
    }
    p = holm(np.nan_to_num([verdict.p for verdict in found.values()], nan=1.0)) if found else ()
    corrected = {claim: replace(found[claim], p=float(own)) for claim, own in zip(found, p, strict=True)}
    return {claim: replace(own, word=_word(claim, own, curves)) for claim, own in corrected.items()}


def compared(values: pl.DataFrame, claim: Claim) -> Verdict | None:
    """Compare the rows of a claim, without a verdict; None if they have no seed in common."""
    rows = pl.col("run").str.replace(r"-\d+$", "")
    chosen = values.filter(measure=claim.measure).with_columns(row=rows, seed=pl.col("run").str.extract(r"-(\d+)$"))
    better = chosen.filter(row=claim.better)
    worse = chosen.filter(row=claim.worse) if claim.worse else better.with_columns(value=pl.lit(0.0))
    if not len(better) or not len(worse):
        return None
    seeds = [set(side["seed"].drop_nulls()) for side in (better, worse)]
    common = seeds[0] & seeds[1] if all(seeds) else seeds[0] | seeds[1]
    if all(seeds) and not common:
        return None
    sides = [side.filter(pl.col("seed").is_null() | pl.col("seed").is_in(common)) for side in (better, worse)]
    sides[1] = sides[1].with_columns(pl.col("value") * claim.share)
    means = [side.group_by("qid").agg(pl.col("value").mean()).sort("qid") for side in sides]
    by_seed = np.array(_by_seed(sides[0], sides[1], sorted(common)))
    sample = by_seed if claim.curve else (means[0]["value"] - means[1]["value"]).to_numpy()
    low, high, p = _test(sample, claim.gain)
    deviation = float(np.std(by_seed, ddof=1)) if len(by_seed) > 1 else float("nan")
    first, second = (float(side["value"].mean()) for side in means)  # type: ignore[arg-type]
    return Verdict(first, second, low, high, p, deviation, tuple(sorted(common)))


def _others(values: Mapping[str, pl.DataFrame], claim: Claim) -> Iterator[tuple[str, Verdict]]:
    """Yield the counts of RoC, then the other measures of the file; nothing for curves and for single rows."""
    if claim.curve or not claim.worse:
        return
    derived = (ROC, RBO, *ROC_COUNTS, claim.measure.removeprefix(CHANGE))
    attacked = claim.measure.startswith(CHANGE)
    names = [name for name in sorted(values) if name.startswith(CHANGE) == attacked]
    plain = [name for name in names if name.removeprefix(CHANGE) not in derived]
    for name in [*(ROC_COUNTS if claim.measure == ROC else ()), *plain]:
        if other := compared(values[name], replace(claim, measure=name, gain=0.0)):
            yield name, other


def _word(claim: Claim, found: Verdict, curves: pl.DataFrame) -> str:
    """Return the verdict, with the reason if it is undecided."""
    distance = found.better - found.worse - claim.gain
    if len(found.seeds) == 1:
        return "undecided: one seed"
    if found.p >= 1 - CONFIDENCE:
        return f"undecided: p = {found.p:.2g}"
    if found.seeds and abs(distance) <= 2 * found.deviation:
        return "undecided: within two SD"
    if distance > 0:
        return "holds"
    if claim.fall:
        ends = _ends(curves, claim.better, found.seeds, "orthogonality")
        fall = 1 - ends[1] / ends[0] if ends else float("nan")
        if not fall >= claim.fall:
            return f"undecided: cos^2 fell by {fall:.0%}, below {claim.fall:.0%}" if ends else "undecided: no curve"
    return "does not hold"


def _ends(curves: pl.DataFrame, row: str, seeds: Sequence[str], term: str) -> tuple[float, float] | None:
    """Return the means of a term in the first and the last steps, over the seeds; None without a curve.

    A sum with BM25 and attacked queries have the curve of their encoder.
    """
    encoder = re.sub(r"^bm25\+|@.*$", "", row)
    own = curves.filter(pl.col("run").is_in([f"{encoder}-{seed}" for seed in seeds]), name=term).drop_nulls()
    return (float(own["first"].mean()), float(own["last"].mean())) if len(own) else None  # type: ignore[arg-type]


def settings(folder: Path) -> dict[str, Setting]:
    """Return the declared setting of each file, from settings.yaml; empty without one."""
    path = folder / "settings.yaml"
    declared = yaml.safe_load(path.read_text(encoding="utf-8")) if path.exists() else {}
    return {name: Setting(**fields) for name, fields in declared.items()}


def measurements(folder: Path, name: str) -> pl.DataFrame:
    """Return the values of NAME.parquet and of all files NAME-seed-*.parquet.

    Raises:
        ValueError: two files have the same run.
    """
    tables = [pl.read_parquet(file) for file in _files(folder, name, ".parquet")]
    return _joined(tables or [NO_VALUES], ["run", "measure", "qid"], f"{folder}: several files {name}*.parquet")


def learning_curves(folder: Path, name: str) -> pl.DataFrame:
    """Return the rows of NAME-curves.csv and of all files NAME-seed-*-curves.csv.

    Raises:
        ValueError: two files have the same run.
    """
    files = _files(folder, name, "-curves.csv")
    tables = [NO_CURVES, *(pl.read_csv(file, schema=NO_CURVES.schema) for file in files)]
    return _joined(tables, ["run", "name"], f"{folder}: several files {name}*-curves.csv")


def _files(folder: Path, name: str, suffix: str) -> list[Path]:
    return [*folder.glob(name + suffix), *sorted(folder.glob(f"{name}-seed-*{suffix}"))]


def _joined(tables: Sequence[pl.DataFrame], key: list[str], where: str) -> pl.DataFrame:
    values = pl.concat(tables)
    seeded = values.filter(pl.col("run").str.contains(r"-\d+$"))
    if twice := seeded.filter(seeded.select(key).is_duplicated())["run"].unique().sort().to_list():
        raise ValueError(f"{where} have the runs {', '.join(twice)}")
    return values.unique(key, keep="first", maintain_order=True)  # runs without seeds


def with_changes(values: pl.DataFrame) -> pl.DataFrame:
    """Add the change of every measure under attack: the mean over the runs ROW@ATTACK-SEED minus the run ROW-SEED."""
    row = pl.col("run").str.replace(r"@.*?(-\d+)?$", "${1}")
    attacked = values.filter(pl.col("run").str.contains("@", literal=True)).group_by(row, "measure", "qid")
    both = values.join(
        attacked.agg(attacked=pl.col("value").mean()), on=["run", "measure", "qid"], maintain_order="left"
    )
    changed = both.with_columns(value=pl.col("attacked") - pl.col("value"), measure=CHANGE + pl.col("measure"))
    return pl.concat([values, changed.select(values.columns)])


def with_roc(values: pl.DataFrame) -> pl.DataFrame:
    """Add RoC(D;S) = |D - S| / |D| at rank 10 (RoC, section 3.1) of every run D against the run `bm25`, and its counts.

    Runs of attacked queries, D@ATTACK, are compared with `bm25@ATTACK`. The value of a query is
    r + (x - r d) / mean(d), where d and x are 1 if the query is in D and in D - S, and r is the ratio of all queries.
    The mean is r, and the interval is that of a ratio estimator. The counts are 1 or 0 for each query.
    """
    found = values.filter(measure="Success@10").with_columns(
        pl.col("value") > 0, attack=pl.col("run").str.extract(r"@(.*?)(?:-\d+)?$").fill_null("")
    )
    lexical = pl.col("run").is_in(["bm25"]) | pl.col("run").str.starts_with("bm25@")
    known = found.filter(lexical).select("qid", "attack", known="value")
    runs = found.filter(~lexical).join(known, on=["qid", "attack"])
    dense, sparse = pl.col("value"), pl.col("known")
    d, x = dense.cast(pl.Float64), (dense & ~sparse).cast(pl.Float64)
    ratio = x.sum() / d.sum()
    added = {ROC: (ratio + (x - ratio * d) / d.mean()).over("run")}
    added |= dict(
        zip(ROC_COUNTS, (x, (sparse & ~dense).cast(pl.Float64), (~dense & ~sparse).cast(pl.Float64)), strict=True)
    )
    columns = values.columns
    return pl.concat(
        [
            values,
            *(runs.with_columns(value=value, measure=pl.lit(name)).select(columns) for name, value in added.items()),
        ]
    )


def _test(sample: np.ndarray, gain: float) -> tuple[float, float, float]:
    """Return the interval of the mean, and p of a t-test against the gain; NaN with one value."""
    if len(sample) < 2:
        return float("nan"), float("nan"), float("nan")
    result = stats.ttest_1samp(sample, gain)
    interval = result.confidence_interval(CONFIDENCE)
    return float(interval.low), float(interval.high), float(result.pvalue)


def _by_seed(better: pl.DataFrame, worse: pl.DataFrame, seeds: list[str]) -> list[float]:
    """Return the difference of the means of each seed."""

    def mean(side: pl.DataFrame, seed: str) -> float:
        return float(side.filter(pl.col("seed").is_null() | (pl.col("seed") == seed))["value"].mean())  # type: ignore[arg-type]

    return [mean(better, seed) - mean(worse, seed) for seed in seeds]


def _active(curves: pl.DataFrame, claim: Claim, seeds: Sequence[str]) -> str:
    """Return the active share of both rows, from the first to the last steps; empty without a curve."""
    found = [_ends(curves, row, seeds, "active_share") for row in (claim.better, claim.worse)]
    shares = [f"{ends[0]:.0%} to {ends[1]:.0%}" if ends else "-" for ends in found]
    return "; ".join(shares) if any(found) else ""


def main() -> int:
    """Print one line per claim that was measured."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", nargs="?", type=Path, default=MEASURED)
    folder = parser.parse_args().folder
    columns = (
        "Values", "Setting", "Claim", "Measure", "Means", "Difference", "95% interval", "p (Holm)", "SD over seeds",
        "Seeds", "Active share, first to last", "Other measures: means [95% interval of the difference]", "Verdict",
    )  # fmt: skip
    print(f"| {' | '.join(columns)} |")
    print("|---" * len(columns) + "|")
    declared = settings(folder)
    for file in dict.fromkeys(claim.file for claim in CLAIMS):
        values, curves = measurements(folder, file), learning_curves(folder, file)
        for claim, found in verdicts(values, [claim for claim in CLAIMS if claim.file == file], curves).items():
            print(_line(claim, found, declared.get(file, Setting()), _active(curves, claim, found.seeds)))
    return 0


def _line(claim: Claim, found: Verdict, setting: Setting, active: str) -> str:
    other = f"{claim.share:.0%} of {claim.worse}" if claim.share != 1 else claim.worse
    other = " + ".join([*filter(None, [other]), *([f"{claim.gain:g}"] if claim.gain else [])])
    measure = f"{claim.measure}, last step; over the seeds only" if claim.curve else claim.measure
    means = f"{found.better:.4f}, {found.worse:.4f}" if claim.worse else f"{found.better:.4f}"
    others = [
        f"{name} {each.better:.4f}, {each.worse:.4f} [{each.low:+.4f} to {each.high:+.4f}]"
        for name, each in found.others.items()
    ]
    chosen = f" ({setting.chosen})" if setting.chosen else ""
    return (
        f"| {claim.file} | {setting.text(claim)} | {claim.better} > {other} | {measure} | {means} "
        f"| {found.better - found.worse:+.4f} | {found.low:+.4f} to {found.high:+.4f} | {found.p:.2g} "
        f"| {found.deviation:.4f} | {len(found.seeds)} | {active} | {'; '.join(others)} | {found.word}{chosen} |"
    )


if __name__ == "__main__":
    sys.exit(main())
