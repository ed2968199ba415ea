"""Checked inputs of `fuse`: runs, recipes, and sources of exact scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hybrid_cli import runs
from hybrid_cli.artifacts.lineage import system_of
from hybrid_cli.collections import collection
from hybrid_cli.collections.searched import refuse_mixed
from hybrid_cli.errors import InputError
from hybrid_cli.evaluation.retrieved import removes_query
from hybrid_cli.fusion import tuning
from hybrid_cli.fusion.fuser import FUSER_ROLE, Fuser, check_pair, read_fuser
from hybrid_cli.fusion.methods import LEARNED, METHODS, Recipe
from hybrid_cli.fusion.tuning import Family
from hybrid_cli.fusion.weights import check_systems, chosen_weights, stored_recipe, weights_path
from hybrid_cli.indexes.exact import ExactSource, exact_sources
from hybrid_cli.settings import Fuse

_PARAMETERS = ("method", "missing", "normalize", "rrf_k")


@dataclass(frozen=True)
class FusionInputs:
    """The runs to fuse, the recipe or the methods to try, and the sources of exact scores.

    Attributes:
        remove_query: remove hits whose docid is the qid where runs are measured.
    """

    settings: Fuse
    runs: dict[str, Path]
    families: list[Family]
    exact: list[ExactSource]
    fuser: Fuser | None = None
    remove_query: bool = False

    @classmethod
    def of(cls, settings: Fuse) -> FusionInputs:
        """Check the runs and the options, and open the fuser."""
        named = runs.named_once(settings.runs)
        if len(named) < 2:
            raise InputError("fuse: needs two or more runs, got 1")
        fuser = _fuser(settings, named)
        families = (
            tuning.families(settings, len(named))
            if settings.tune
            else [Family(fuser.recipe if fuser else _recipe(settings, named), "linear")]
        )
        rules = dict.fromkeys(family.recipe.missing for family in families)
        rule = "exact" if "exact" in rules else next(iter(rules))
        settings.check_facts(f"--missing is {rule}", rule=f"--missing {rule}")
        refuse_mixed(named)
        exact = _exact_sources(named, families, settings, fuser)
        return cls(settings, named, families, exact, fuser, removes_query(settings.qrels, settings.split))

    @property
    def recipe(self) -> Recipe:
        """Return the recipe of a fusion; of a tuning, the first method."""
        return self.families[0].recipe

    def inputs(self) -> dict[str, Path]:
        """Return the inputs that affect the result, by role with the position of the run."""
        files = {f"run {number}": path for number, path in enumerate(self.runs.values(), 1)}
        for number, source in enumerate(self.exact, 1):
            files |= {f"index {number}": source.index, f"queries {number}": source.queries}
        return files | ({FUSER_ROLE: self.settings.model} if self.settings.model else {})

    def options(self) -> dict[str, Any]:
        """Return the recorded options; `measure` and `split` affect only tuning."""
        recorded = self.settings.recorded()
        if self.settings.tune:
            unused: tuple[str, ...] = _PARAMETERS
            recipes = [family.recipe for family in self.families]
            used = {
                "methods": [_parameters(recipe) for recipe in recipes],
                "grid": [each.grid for each in self.families],
                "choice": "middle of the plateau",  # before, sometimes a single run
            } | ({"remove_query": True} if self.remove_query else {})
        else:
            unused, used = ("measure", "split", "tune"), _parameters(self.recipe)
            used |= {"method": LEARNED, "weights": None} if self.fuser else {"weights": list(self.recipe.weights)}
        return {name: value for name, value in recorded.items() if name not in unused} | used


def _recipe(settings: Fuse, named: Mapping[str, Path]) -> Recipe:
    """Return the recipe of the options, or of `--weights @FILE`."""
    if path := weights_path(settings.weights):
        values = settings.values()
        given = {name: values[name] for name in sorted(settings.given) if name in _PARAMETERS}
        recipe = stored_recipe(path, list(named), given)
        check_systems(path, [system_of(run) for run in named.values()])
        return recipe
    missing = settings.missing or METHODS[settings.method].missing
    recipe = Recipe(settings.method, (1.0,) * len(named), missing, settings.normalize, settings.rrf_k)
    return chosen_weights(settings.weights, recipe, list(named))


def _fuser(settings: Fuse, named: Mapping[str, Path]) -> Fuser | None:
    """Return the fuser of `--model`, if it fits the runs."""
    if settings.model is None:
        return None
    fuser, _ = read_fuser(settings.model)
    check_pair(fuser, settings.model, named, settings.force)
    if fuser.indexed and not settings.index:
        raise InputError(f"{settings.model}: was trained with --index; pass the index of each run, in order")
    if settings.index and not fuser.indexed:
        raise InputError(f"--index: {settings.model} was trained without it; omit it, or train again with --index")
    return fuser


def _parameters(recipe: Recipe) -> dict[str, Any]:
    found = {"method": recipe.method, "missing": recipe.missing, "normalize": recipe.normalization}
    return found | ({"rrf_k": recipe.rrf_k} if recipe.method == "rrf" else {})


def _exact_sources(
    named: Mapping[str, Path], families: Sequence[Family], settings: Fuse, fuser: Fuser | None
) -> list[ExactSource]:
    """Return one source of exact scores per run; empty for other rules for missing documents."""
    recipe = next((family.recipe for family in families if family.recipe.missing == "exact"), None)
    if recipe is not None and not settings.index:
        other = (
            "; or use --missing min (the list's lowest score), zero, ignore, or drop (keep only documents in all lists)"
        )
        raise InputError(
            f"--method {recipe.method} --missing exact: needs the index of each run, in order (--index A,B)"
            + ("" if weights_path(settings.weights) else other)
        )
    if recipe is None and not (fuser and fuser.indexed):
        return []
    override = collection.queries_path(settings.queries, settings.split) if settings.queries is not None else None
    return exact_sources(named, settings.index, override)
