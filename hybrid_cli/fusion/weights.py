"""Weights of a fusion: given as text, or stored with the method in the file that `fuse --tune` writes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, get_args

from hybrid_cli import console, storage
from hybrid_cli.errors import InputError, path_error
from hybrid_cli.fusion.methods import METHODS, FusionRecipe
from hybrid_cli.fusion.options import Missing, Normalization
from hybrid_cli.fusion.prior import MEASURES
from hybrid_cli.fusion.selection import FIRST_JUDGED, Choice, Selected, Trials, Values
from hybrid_cli.inputs.json_values import has_type, mismatch_of_fields, read_object
from hybrid_cli.storage import Kind

_STORED: dict[str, Any] = {
    "runs": list[str],
    "weights": list[float],
    "method": str,
    "missing": str,
    "judged": list[str],
}
WEIGHTS = "weights"  # of the file of `fuse --tune` among the inputs of a fused run


@dataclass(frozen=True)
class ByPeople:
    """Values by the judgments of people alone, where a machine's change those of a tuning.

    Attributes:
        values: [choices, queries].
        alone: run -> value of each query.
        others: number of queries that the machine alone judged.
        weight: weight of the machine, from 0 to 1; see `evaluation.prediction_powered.rectified`.
    """

    values: Values
    alone: Mapping[str, Values]
    others: int
    weight: float


@dataclass(frozen=True)
class Tuned:
    """Result of tuning a fusion.

    Attributes:
        tables: values of the choices of each method.
        selected: the selection.
        recipe: method, parameters and weights of the selected choice.
        alone: run -> value of each judged query, in the order of the weights.
        qids: ids of the judged queries, also of those that the machine alone judged.
        measure: name of the measure.
        folds, seed: see `Trials.held_out`.
        scales: standard deviations of the scores that the shares are in units of; None for those of judged queries.
        people: values by people alone, of the selected method; None if they are those of the table.
    """

    tables: Sequence[Trials]
    selected: Selected
    recipe: FusionRecipe
    alone: Mapping[str, Values]
    qids: Sequence[str]
    measure: str
    folds: int
    seed: int
    scales: Sequence[float] | None = None
    people: ByPeople | None = None

    @property
    def shares(self) -> list[float]:
        """Return the share of each run."""
        return [float(share) for share in self.selected.table.choices[self.selected.row].proportions]

    def __str__(self) -> str:
        """Say what was chosen, and its held-out score."""
        kept = "keeps the untuned fusion after" if self.selected.keeps_untuned else "tuned on"
        judged, fair = (
            console.counted(**{"judged query": self.selected.table.queries}),
            float(self.selected.fair.mean()),
        )
        rows = [self.selected.table.choices[row].proportions for row in self.selected.plateau.rows]
        near = f"{float(rows[0][-1]):.0%} to {float(rows[-1][-1]):.0%} {list(self.alone)[-1]}"
        return f"{kept} {judged}: {fair:.3f} {self.measure} held out; plateau {near}"

    @property
    def gains_by_people(self) -> dict[str, Values]:
        """Return run -> gain of the fair value of each query by the judgments of people."""
        if self.people is None:
            return {name: self.selected.fair - values for name, values in self.alone.items()}
        fair = self.people.values[self.selected.row]
        if not self.selected.keeps_untuned:
            held_out = self.selected.table.held_out(self.folds, self.seed, values=self.people.values)
            fair = fair if held_out is None else held_out
        return {name: fair - values for name, values in self.people.alone.items()}

    def content(self) -> dict[str, Any]:
        """Return the content of the file: recipe, scores, plateau, evidence, and all trials."""
        selected, table = self.selected, self.selected.table
        values, untuned = table.values[selected.row], self.tables[0].untuned
        best = max(self.alone, key=lambda name: self.alone[name].mean())
        after = table.gains()
        return {
            "runs": list(self.alone),
            "method": self.recipe.method,
            "weights": list(self.recipe.weights),
            "shares": table.choices[selected.row].proportions.round(6).tolist(),
            "scales": None if self.scales is None else list(self.scales),
            "rrf_k": self.recipe.rrf_k if self.recipe.method == "rrf" else None,
            "normalize": self.recipe.normalization,
            "missing": self.recipe.missing,
            **({"method_options": dict(self.recipe.options)} if self.recipe.options else {}),
            "measure": self.measure,
            "queries": table.queries,
            **(
                {}
                if self.people is None
                else {"machine_queries": self.people.others, "machine_weight": self.people.weight}
            ),
            "score": float(values.mean()),
            "held_out": None if selected.held_out is None else float(selected.held_out.mean()),
            "single_run_chosen": table.choices[selected.row].single is not None,
            "plateau": [table.choices[row].proportions.round(6).tolist() for row in selected.plateau.rows],
            "alone": {name: float(values_of_run.mean()) for name, values_of_run in self.alone.items()},
            "untuned": None
            if untuned is None
            else _trial(self.tables[0].choices[untuned], float(self.tables[0].values[untuned].mean())),
            "keeps_untuned": selected.keeps_untuned,
            "best_single": best,
            "more_queries": (more := max(table.queries, FIRST_JUDGED)),
            "more_may_add": None
            if after is None or self.measure not in MEASURES  # the curves are of these
            else after.worth(more, selected.row),
            "judged": list(self.qids),
            "trials": [
                _trial(choice, float(mean))
                for tried in self.tables
                for choice, mean in zip(tried.choices, tried.values.mean(1), strict=True)
            ],
        }


def _trial(choice: Choice, score: float) -> dict[str, Any]:
    return {"method": choice.family, "weights": list(choice.weights), "score": score}


def chosen_weights(given: str | Sequence[float] | None, recipe: FusionRecipe, names: Sequence[str]) -> FusionRecipe:
    """Return the recipe with weights given as numbers, as text (`0.5,1`) or as `@FILE`; unchanged for None.

    Args:
        given: value of --weights.
        recipe: method and its settings.
        names: names of the weighted runs, in order.

    Raises:
        InputError: not numbers, a wrong number of them, or a file for other runs or another recipe.
    """
    weights = recipe.weights if given is None else _parsed(given, recipe, names)
    if len(weights) != len(names):
        problem = (
            f"--weights {','.join(f'{weight:g}' for weight in weights)}: pass one weight for each of "
            f"{', '.join(names)}, in this order; got {len(weights)}"
        )
        raise InputError(problem, code="number-of-weights", option="weights", value=len(weights))
    return replace(recipe, weights=weights)


def _parsed(given: str | Sequence[float], recipe: FusionRecipe, names: Sequence[str]) -> tuple[float, ...]:
    if not isinstance(given, str):
        return tuple(float(weight) for weight in given)
    if path := weights_path(given):
        wanted = {"method": recipe.method, "missing": recipe.missing, "normalize": recipe.normalization}
        return stored_recipe(path, read_tuned(path), names, wanted, fixed=True).weights
    try:
        if "=" in given:
            return _by_name(given, names)
        return tuple(_number(weight) for weight in given.split(","))
    except ValueError:
        problem = f"--weights {given}: needs numbers such as 0.5,1 or {names[0]}=0.5,..., or @FILE written by --tune"
        raise InputError(problem, code="not-a-number", option="weights", value=given) from None


def _number(text: str) -> float:
    """Return a weight; unlike `float`, refuse `1_0` and other digits than ASCII's."""
    if "_" in text or not text.isascii():
        raise ValueError(text)
    return float(text)


def _by_name(given: str, names: Sequence[str]) -> tuple[float, ...]:
    """Return the weights of `bm25=0.3,dense=0.7` in the order of `names`."""
    weights: dict[str, float] = {}
    for part in given.split(","):
        name, _, weight = part.strip().rpartition("=")
        if name not in names:
            close = get_close_matches(name, names, n=1, cutoff=0.5)
            hint = f"did you mean {close[0]}? The" if close else "the"
            problem = f"--weights {part}: no such run; {hint} runs are {', '.join(names)}"
            raise InputError(problem, code="unknown-choice", option="weights", value=name, choices=list(names))
        if name in weights:
            problem = f"--weights {given}: {name} is given twice"
            raise InputError(problem, code="repeated-value", option="weights", value=name)
        weights[name] = _number(weight)
    if missing := [name for name in names if name not in weights]:
        problem = f"--weights {given}: has no weight for {', '.join(missing)}"
        raise InputError(problem, code="missing-value", option="weights")
    return tuple(weights[name] for name in names)


def weights_file(given: object) -> dict[str, Path]:
    """Return the weights file as an input of a stage, if weights are given as `@FILE`."""
    path = weights_path(given)
    return {} if path is None else {WEIGHTS: path}


def weights_path(given: object) -> Path | None:
    """Return the path of weights that are given as `@FILE`."""
    return Path(given[1:]) if isinstance(given, str) and given.startswith("@") else None


def stored_recipe(
    path: Path, stored: Mapping[str, Any], names: Sequence[str], given: Mapping[str, Any], fixed: bool = False
) -> FusionRecipe:
    """Return method, parameters and weights of a file for the runs `names`.

    Args:
        path: file written by `fuse --tune`.
        stored: its content.
        names: names of the runs, in order.
        given: parameters that the user set (method, missing, normalize, rrf_k), which must agree with the file.
        fixed: the parameters are those of the exact sum, and no option changes them.

    Raises:
        InputError: the file was tuned for other parameters, another number of runs, or another order of the runs.
    """
    for name, value in given.items():
        if stored.get(name) != value:
            option = "--" + name.replace("_", "-")
            advice = f"omit {option}, or tune again" if not fixed else "tune again with --method weighted-sum"
            problem = f"holds {option} {stored.get(name)}, not {value}; {advice}"
            raise path_error(path, problem, code="tuned-with-other-option", option=option, value=value)
    if len(stored["runs"]) != len(names):
        problem = f"was tuned for {len(stored['runs'])} runs, not {len(names)}; tune again"
        raise path_error(path, problem, code="tuned-for-others", value=len(names))
    if stored["runs"] != list(names) and sorted(stored["runs"]) == sorted(names):
        problem = f"was tuned for the runs in the order {', '.join(stored['runs'])}; pass them in this order"
        raise path_error(path, problem, code="other-order", value=list(names))
    return tuned_recipe(stored)


def tuned_recipe(stored: Mapping[str, Any]) -> FusionRecipe:
    """Return method, parameters and weights of the content of a file that `fuse --tune` wrote."""
    k = stored["rrf_k"] if has_type(stored.get("rrf_k"), float) else FusionRecipe.rrf_k
    more = stored["missing"], stored.get("normalize"), k, stored.get("method_options", {})
    return FusionRecipe(stored["method"], tuple(stored["weights"]), *more)


def read_tuned(path: Path) -> dict[str, Any]:
    """Return the content of a file written by `fuse --tune`.

    Raises:
        InputError: not such a file, or one of an earlier version.
    """
    storage.read_record(storage.Record, path, Kind.WEIGHTS)
    stored = read_object(path)
    if "method" not in stored:
        raise path_error(path, "was written by an earlier version, without the method; tune again", code="older-format")
    if wrong := mismatch_of_fields(stored, _STORED):
        raise path_error(path, f"damaged weights; {wrong}; tune again", code="damaged-weights", **wrong.fields)
    if len(stored["runs"]) != len(stored["weights"]):
        problem = f"damaged weights; {len(stored['weights'])} for {len(stored['runs'])} runs; tune again"
        raise path_error(path, problem, code="damaged-weights")
    known = {"method": METHODS, "missing": get_args(Missing), "normalize": (None, *get_args(Normalization))}
    if unknown := [name for name, allowed in known.items() if stored.get(name) not in allowed]:
        raise path_error(
            path,
            f"damaged weights; '{unknown[0]}' is {stored.get(unknown[0])}; tune again",
            code="damaged-weights",
            **{"group": "fusion_methods", "name": stored["method"]} if unknown[0] == "method" else {},
        )
    return stored
