"""Verdicts on claims, from measured values."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import polars as pl
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "studies"))

import curves as learning
from verdicts import (
    CLAIMS,
    MEASURED,
    NO_CURVES,
    Claim,
    Verdict,
    learning_curves,
    main,
    measurements,
    settings,
    verdicts,
    with_roc,
)

QUERIES = 400


def measured(rows: dict[str, tuple[float, float]], seeds: int = 3) -> pl.DataFrame:
    """Return values of rows that have the given mean, and the given shift from one seed to the next."""
    rng = np.random.default_rng(0)
    noise = rng.normal(0, 0.05, QUERIES)
    frames = []
    for row, (mean, shift) in rows.items():
        for seed in range(1, seeds + 1):
            values = mean + noise + rng.normal(0, 0.01, QUERIES) + shift * (seed - (seeds + 1) / 2)
            frames.append(
                pl.DataFrame({"qid": [f"q{n}" for n in range(QUERIES)], "value": values}).with_columns(
                    run=pl.lit(f"{row}-{seed}"), measure=pl.lit("MRR@10")
                )
            )
    return pl.concat(frames)


def verdict(values: pl.DataFrame, claim: Claim, curves: pl.DataFrame = NO_CURVES) -> Verdict:
    return verdicts(values, [claim], curves)[claim]


def successes(answered: dict[str, list[int]]) -> pl.DataFrame:
    rows = [(run, "Success@10", f"q{n}", float(one)) for run, own in answered.items() for n, one in enumerate(own)]
    return pl.DataFrame(rows, ["run", "measure", "qid", "value"], orient="row")


def curve_table(**terms: tuple[float, float]) -> pl.DataFrame:
    """Return first and last values of terms, the same for three seeds of the rows a and b."""
    rows = [(f"{row}-{seed}", name, *ends) for row in "ab" for seed in (1, 2, 3) for name, ends in terms.items()]
    return pl.DataFrame(rows, NO_CURVES.schema, orient="row")


@pytest.mark.parametrize(
    ("better", "gain", "word"),
    [
        pytest.param((0.55, 0.0), 0.0, "holds", id="clear gain"),
        pytest.param((0.45, 0.0), 0.0, "does not hold", id="clear loss"),
        pytest.param((0.5, 0.0), 0.0, "undecided: p = ", id="no difference"),
        pytest.param((0.55, 0.05), 0.0, "undecided: within two SD", id="gain within two deviations over the seeds"),
        pytest.param((0.51, 0.0), 0.02, "does not hold", id="gain below the claimed one"),
    ],
)
def test_a_verdict_needs_the_interval_and_the_seeds(better: tuple[float, float], gain: float, word: str) -> None:
    values = measured({"a": better, "b": (0.5, 0.0)})
    found = verdict(values, Claim("x", "a", "b", gain=gain))
    assert found.word.startswith(word)
    assert found.seeds == ("1", "2", "3")
    assert found.low < found.better - found.worse < found.high


def test_a_claim_can_be_about_a_share() -> None:
    values = measured({"a": (0.475, 0.0), "b": (0.5, 0.0)})
    words = [verdict(values, Claim("x", "a", "b", share=share)).word for share in (0.9, 1.0)]
    assert words == ["holds", "does not hold"]


def test_only_seeds_of_both_rows_are_compared() -> None:
    values = pl.concat([measured({"a": (0.55, 0.0)}, seeds=2), measured({"b": (0.5, 0.0)}, seeds=3)])
    found = verdict(values, Claim("x", "a", "b"))
    assert found.seeds == ("1", "2")
    assert not verdicts(values.filter(pl.col("run").is_in(["a-1", "b-2"])), [Claim("x", "a", "b")], NO_CURVES)
    assert not verdicts(values, [Claim("x", "a", "missing")], NO_CURVES)


def test_one_seed_decides_nothing_and_rows_that_were_not_trained_need_none() -> None:
    values = measured({"a": (0.55, 0.0), "b": (0.5, 0.0)}, seeds=1)
    found = [verdict(values, Claim("x", *rows)) for rows in ("ab", "ba")]
    found.append(verdict(values.with_columns(pl.col("run").str.head(1)), Claim("x", "a", "b")))
    assert [(one.word, one.seeds) for one in found] == [*[("undecided: one seed", ("1",))] * 2, ("holds", ())]


@pytest.mark.parametrize(("mean", "word"), [(0.47, "holds"), (0.43, "does not hold")])
def test_a_row_can_be_compared_with_a_constant(mean: float, word: str) -> None:
    found = verdict(measured({"a": (mean, 0.0)}), Claim("x", "a", "", gain=0.45))
    assert (found.word, found.worse) == (word, 0.0)


@pytest.mark.parametrize(
    ("curves", "word"),
    [
        (curve_table(orthogonality=(0.5, 0.05)), "does not hold"),
        (curve_table(orthogonality=(0.5, 0.2)), "undecided: cos^2 fell by 60%, below 80%"),
        (NO_CURVES, "undecided: no curve"),
    ],
    ids=["minimized", "not enough", "unknown"],
)
def test_orthogonality_is_refuted_only_where_it_was_reached(curves: pl.DataFrame, word: str) -> None:
    claim = Claim("x", "a", "b", gain=0.02, fall=0.8)
    for mean, expected in ((0.5, word), (0.55, "holds")):
        assert verdict(measured({"a": (mean, 0.0), "b": (0.5, 0.0)}), claim, curves).word == expected


def test_the_claims_of_a_file_are_corrected_together() -> None:
    values = measured({"a": (0.5, 0.0), "b": (0.5, 0.0), "c": (0.5, 0.0)})
    effects = np.random.default_rng(2).normal(0, 0.05, QUERIES)
    effects += 2.7 * 0.05 / QUERIES**0.5 - effects.mean()  # 2.7 standard errors, the same for all seeds
    gains = pl.DataFrame({"qid": [f"q{n}" for n in range(QUERIES)], "gain": effects})
    gain = pl.when(pl.col("run").str.starts_with("a")).then("gain").otherwise(0.0)
    values = values.join(gains, on="qid", maintain_order="left").with_columns(pl.col("value") + gain).drop("gain")
    claim, others = Claim("x", "a", "b"), [Claim("x", "b", "c", gain=n * 1e-9) for n in range(19)]
    alone = verdicts(values, [claim])[claim]
    together = verdicts(values, [claim, *others])[claim]
    assert alone.word == "holds"
    assert together.p == pytest.approx(20 * alone.p)
    assert together.word.startswith("undecided: p = 0.")


def test_a_claim_on_the_curve_is_decided_over_the_seeds() -> None:
    values = measured({"a": (0.5, 0.0), "b": (0.5, 0.0)})
    last = {"a": (0.91, 0.92, 0.93), "b": (0.80, 0.82, 0.83)}
    rows = [(f"{row}-{seed}", "dev_MRR", 0.5, value) for row in last for seed, value in enumerate(last[row], 1)]
    curves = pl.DataFrame(rows, NO_CURVES.schema, orient="row")
    found = verdict(values, Claim("x", "a", "b", "dev_MRR", curve=True), curves)
    assert (found.word, found.seeds) == ("holds", ("1", "2", "3"))
    assert found.better - found.worse == pytest.approx(0.31 / 3)
    assert found.deviation == pytest.approx(np.std([0.11, 0.10, 0.10], ddof=1))
    assert not verdicts(values, [Claim("x", "a", "b", "dev_MRR", curve=True)], NO_CURVES)


def test_robustness_is_the_change_under_attack() -> None:
    originals = measured({"a": (0.5, 0.0), "b": (0.6, 0.0)}, seeds=2)
    attacked = [
        originals.with_columns(
            run=pl.col("run").str.replace("-", f"@{attack}-"), value=pl.col("value") * (1 - drop * loss)
        )
        for attack, drop in (("char-swap", 0.1), ("shuffle", 0.3))
        for loss in [pl.when(pl.col("run").str.starts_with("a")).then(1.0).otherwise(2.0)]
    ]
    found = verdict(pl.concat([originals, *attacked]), Claim("x", "a", "b", "change of MRR@10"))
    assert [found.better, found.worse] == pytest.approx([-0.1, -0.24], abs=0.01)
    assert (found.word, found.seeds) == ("holds", ("1", "2"))


def test_roc_of_attacked_queries_is_against_bm25_under_the_same_attack() -> None:
    answered = {"bm25": [1, 1, 0, 0], "bm25@x": [1, 0, 0, 0], "a-1": [1, 0, 1, 0], "a@x-1": [1, 1, 1, 0]}
    means = with_roc(successes(answered)).filter(measure="RoC@10").group_by("run").agg(pl.col("value").mean())
    assert dict(means.iter_rows()) == pytest.approx({"a-1": 1 / 2, "a@x-1": 2 / 3})


def test_a_curve_is_summarized_by_its_first_and_last_ten_steps(tmp_path: Path) -> None:
    rows = [(step, "loss", float(step)) for step in range(1, 41)] + [(20, "dev_MRR", 0.5), (40, "dev_MRR", 0.9)]
    for folder in ("a", "b/part-2"):
        (tmp_path / folder).mkdir(parents=True)
        pl.DataFrame(rows, ["step", "name", "value"], orient="row").write_parquet(tmp_path / folder / "curve.parquet")
    encoders = {"a-1": tmp_path / "a", "b-1": tmp_path / "b", "signs-1": tmp_path / "c"}
    expected = [("dev_MRR", None, 0.9), ("loss", 5.5, 35.5)]
    for name, run in (("x-curves.csv", "a-1"), ("x-seed-2-curves.csv", "b-1")):
        learning.table({run: encoders[run]}).write_csv(tmp_path / name)
    joined = [("a-1", *terms) for terms in expected] + [("b-1", *terms) for terms in expected]
    assert learning.table(encoders).rows() == joined
    assert learning_curves(tmp_path, "x").rows() == joined
    learning.table(encoders).write_csv(tmp_path / "x-seed-3-curves.csv")
    with pytest.raises(ValueError, match=r"\bx\b.*a-1, b-1"):
        learning_curves(tmp_path, "x")


def test_roc_is_the_fraction_of_answered_queries_that_bm25_does_not_answer() -> None:
    rng = np.random.default_rng(1)
    answered = {"bm25": rng.random(QUERIES) < 0.6, "a-1": rng.random(QUERIES) < 0.5, "b-1": rng.random(QUERIES) < 0.7}
    values = successes({run: found.tolist() for run, found in answered.items()})
    found = verdict(with_roc(values), Claim("x", "a", "b", "RoC@10"))
    expected = [(answered[run] & ~answered["bm25"]).sum() / answered[run].sum() for run in ("a-1", "b-1")]
    assert [found.better, found.worse] == pytest.approx(expected)
    bootstrap = []
    for _ in range(2000):
        rows = rng.integers(0, QUERIES, QUERIES)
        ratios = [(answered[run] & ~answered["bm25"])[rows].sum() / answered[run][rows].sum() for run in ("a-1", "b-1")]
        bootstrap.append(ratios[0] - ratios[1])
    assert [found.low, found.high] == pytest.approx(np.quantile(bootstrap, [0.025, 0.975]).tolist(), abs=0.01)


def test_files_of_seeds_are_joined(tmp_path: Path) -> None:
    both = measured({"a": (0.55, 0.0), "b": (0.5, 0.0)}, seeds=2)
    for seed, name in ((1, "x"), (2, "x-seed-2")):
        own = both.filter(pl.col("run").str.ends_with(f"-{seed}"))
        shared = own.filter(pl.col("run").str.starts_with("a")).with_columns(run=pl.lit("bm25"))
        pl.concat([own, shared]).write_parquet(tmp_path / f"{name}.parquet")
    found = measurements(tmp_path, "x")
    assert sorted(found["run"].unique()) == ["a-1", "a-2", "b-1", "b-2", "bm25"]
    assert len(found) == 5 * QUERIES
    assert not len(measurements(tmp_path, "y"))
    both.write_parquet(tmp_path / "x-seed-3.parquet")
    with pytest.raises(ValueError, match=r"\bx\b.*a-1"):
        measurements(tmp_path, "x")


def test_roc_has_its_counts() -> None:
    answered = {"bm25": [1, 1, 0, 0, 0], "a-1": [1, 0, 1, 1, 0], "b-1": [1, 0, 1, 0, 0]}
    found = verdict(successes(answered), Claim("x", "a", "b", "RoC@10"))
    means = {name: (other.better, other.worse) for name, other in found.others.items()}
    assert means == {
        "D only@10": pytest.approx((2 / 5, 1 / 5)),
        "S only@10": pytest.approx((1 / 5, 1 / 5)),
        "Fail@10": pytest.approx((1 / 5, 2 / 5)),
        "Success@10": pytest.approx((3 / 5, 2 / 5)),
    }


def test_a_claim_on_learning_curves_needs_no_values_of_queries(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [
        (f"positives-{count}-{seed}", "dev_MRR", 0.2, 0.5 - 0.01 * count + 0.001 * seed * count)
        for count in (1, 2, 10)
        for seed in (1, 2, 3)
    ]
    pl.DataFrame(rows, NO_CURVES.schema, orient="row").write_csv(tmp_path / "positives-1500-steps-curves.csv")
    monkeypatch.setattr(sys, "argv", ["verdicts.py", str(tmp_path)])
    assert main() == 0
    printed = [line for line in capsys.readouterr().out.splitlines() if "positives" in line]
    assert [line.endswith("| does not hold |") for line in printed] == [True, True]


def test_a_line_has_the_setting_and_the_measures_that_do_not_decide(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    values = measured({"bm25+nll-dynamic": (0.55, 0.0), "bm25+nll": (0.5, 0.0)}).with_columns(measure=pl.lit("nDCG@10"))
    recall = values.with_columns(measure=pl.lit("R@100"), value=1 - pl.col("value"))
    pl.concat([values, recall]).write_parquet(tmp_path / "recommended-two-passes-pydocs.parquet")
    monkeypatch.setattr(sys, "argv", ["verdicts.py", str(tmp_path)])
    declarations = {
        "": "not declared",
        "recommended-two-passes-pydocs: {collection: ours, model: small, rows: {nll: plain}, chosen: seen before}": (
            "ours; small; nll: plain"
        ),
    }
    for declaration, setting in declarations.items():
        if declaration:
            (tmp_path / "settings.yaml").write_text(declaration, encoding="utf-8")
        assert main() == 0
        cells = [cell.strip() for cell in capsys.readouterr().out.splitlines()[-1].split("|")]
        assert cells[2] == setting
        assert cells[12].startswith("R@100 0.45")
        assert cells[13] == ("holds (seen before)" if declaration else "holds")


STUDIES = MEASURED.parent
END = r"([-+]?\.\d{4})"
WORDS = "does not hold|holds|undecided"


@pytest.fixture(scope="module")
def found() -> dict[tuple[str, str], list[Verdict]]:
    """Return the verdicts of all stored values, also in other measures, by the ends of their intervals."""
    by_interval: dict[tuple[str, str], list[Verdict]] = {}
    for file in dict.fromkeys(claim.file for claim in CLAIMS):
        claims = [claim for claim in CLAIMS if claim.file == file]
        for own in verdicts(measurements(MEASURED, file), claims, learning_curves(MEASURED, file)).values():
            for one in (own, *own.others.values()):
                for low, high in ((one.low, one.high), (-one.high, -one.low)):
                    by_interval.setdefault((ending(low), ending(high)), []).append(one)
    return by_interval


def ending(value: float | str) -> str:
    """Return an end of an interval in four decimals, without the sign of a zero."""
    return f"{float(value) + 0.0:+.4f}".replace("-0.0000", "+0.0000")


def rows_with_verdicts() -> Iterator[tuple[str, dict[str, str]]]:
    """Yield page and cells of the rows of all tables that have an interval and a verdict."""
    for page in sorted(STUDIES.glob("*.md")):
        header: list[str] = []
        for line in page.read_text(encoding="utf-8").splitlines():
            cells = [cell.strip() for cell in line.strip("|").split("|")]
            header = (header or cells) if line.startswith("|") else []
            row = dict(zip(header, cells, strict=False))
            if "Verdict" in header and re.search(f"{END} to {END}", row["95% interval"]):
                yield page.name, row


def test_every_file_of_a_claim_has_a_setting() -> None:
    declared = settings(MEASURED)
    assert sorted(declared) == sorted({claim.file for claim in CLAIMS})
    assert all(one.collection and one.model and one.training and one.machines for one in declared.values())


@pytest.mark.parametrize("page", ["recommended", "roc"])
def test_intervals_are_those_of_the_verdicts(page: str, found: dict[tuple[str, str], list[Verdict]]) -> None:
    intervals = re.findall(rf"\[{END}, {END}\]", (STUDIES / f"{page}.md").read_text(encoding="utf-8"))
    assert len(intervals) > 20
    assert [pair for pair in intervals if (ending(pair[0]), ending(pair[1])) not in found] == []


ROWS = list(rows_with_verdicts())


@pytest.mark.parametrize(("page", "row"), ROWS, ids=[f"{page}: {row['Claim'][:50]}" for page, row in ROWS])
def test_a_row_has_stored_values(page: str, row: dict[str, str], found: dict[tuple[str, str], list[Verdict]]) -> None:
    if "not corrected" in row["95% interval"]:
        pytest.skip("no claim of verdicts.py")
    ends = [(ending(low), ending(high)) for low, high in re.findall(f"{END} to {END}", row["95% interval"])]
    own = [one for pair in ends for one in found[pair] if one.word != "undecided"]  # a declared claim
    assert {one.word.partition(":")[0] for one in own} == set(re.findall(WORDS, row["Verdict"]))
    means = {f"{mean:.4f}" for one in own for mean in (one.better, one.worse)}
    assert {f"{float(value):.4f}" for value in re.findall(r"(?<![\d.])(?<!± )-?\.\d{4}", row["Ours"])} <= means
    for pair in re.findall(r"p = (1|\.\d+)(?: and (1|\.\d+))?", row["Verdict"]):
        for p in filter(None, pair):
            assert any(round(one.p, len(p) - 1) == float(p) for one in own), p
