"""Learning curves of the encoders of an experiment, in one small table.

python studies/curves.py ROW-SEED=ENCODER ... --output FILE.csv
python studies/curves.py ENCODER --mean TERM

The table holds run, name (a term of the curve), first and last: the means over the first and the last ten steps, empty
where a term has no value in these steps. An ensemble has the curve of its last learner; rows without a curve, such as
signs of another encoder, are left out. With `--mean`, prints the mean of one term over all steps.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import polars as pl

from hybrid_cli.storage.layout import CURVE

STEPS = 10


def curve(encoder: Path) -> pl.DataFrame | None:
    """Return step, name, value of an encoder, or of the last learner of an ensemble; None without a curve."""
    files = [encoder / CURVE, *sorted(encoder.glob(f"part-*/{CURVE}"), reverse=True)]
    return next((pl.read_parquet(file) for file in files if file.is_file()), None)


def ends(values: pl.DataFrame) -> pl.DataFrame:
    """Return name, first, last: the means over the first and the last ten steps."""
    step, end = pl.col("step"), int(values["step"].to_numpy().max())
    return values.group_by("name").agg(
        first=pl.col("value").filter(step <= STEPS).mean(),
        last=pl.col("value").filter(step > end - STEPS).mean(),
    )


def table(encoders: dict[str, Path]) -> pl.DataFrame:
    """Return run, name, first, last of all encoders that have a curve."""
    found = {run: values for run, folder in encoders.items() if (values := curve(folder)) is not None}
    rows = [ends(values).select(pl.lit(run).alias("run"), pl.all()).sort("name") for run, values in found.items()]
    schema = {"run": pl.String, "name": pl.String, "first": pl.Float64, "last": pl.Float64}
    return pl.concat([pl.DataFrame(schema=schema), *rows])


def main() -> int:
    """Write the table, or print one mean."""
    parser = argparse.ArgumentParser()
    parser.add_argument("encoders", nargs="+", metavar="ENCODER")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--output", type=Path)
    what.add_argument("--mean", metavar="TERM")
    options = parser.parse_args()
    if options.mean is None:
        encoders = {run: Path(folder) for run, _, folder in (word.partition("=") for word in options.encoders)}
        options.output.parent.mkdir(parents=True, exist_ok=True)
        table(encoders).write_csv(options.output, float_precision=6)
        return 0
    values = curve(Path(options.encoders[0]))
    if values is None or not len(values := values.filter(name=options.mean)):
        parser.error(f"{options.encoders[0]}: has no learning curve with {options.mean}")
    print(f"{values['value'].to_numpy().mean():.4f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
