"""A fusion of two runs with one weight per query, predicted by a random forest and shrunk towards the fixed weight.

The forest predicts by how much the value of a query differs from the mean of the judged queries at each weight, as a
sum of a few principal curves. The weight of a query is half way between the fixed weight and the best weight of its
predicted curve. Our choice: no paper defines this model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hybrid_cli import draws
from hybrid_cli.errors import InputError
from hybrid_cli.fusion.features import Matrix
from hybrid_cli.fusion.selection import Table, Values
from hybrid_cli.json_files import mismatch, mismatch_of_fields

TREES, LEAF, SHARE = 100, 10, 0.3  # number of trees, queries per leaf, features tried per node
CURVES = 3
SHRINKAGE = 0.5  # of the way to the fixed weight; measured in docs/fusion.md
_DIGITS = 9  # predictions are rounded before the best weight is taken
_NODES = {"feature": list[int], "threshold": list[float], "below": list[int], "above": list[int]}


@dataclass(frozen=True)
class Tree:
    """A regression tree; node 0 is the root.

    Attributes:
        feature: number of the feature of each node; -1 in a leaf.
        threshold: a query goes to `below` if its feature is at most the threshold, else to `above`.
        below, above: number of the next node; in a leaf, `below` is the row of `values`.
        values: [leaves, curves].
    """

    feature: NDArray[np.int64]
    threshold: Values
    below: NDArray[np.int64]
    above: NDArray[np.int64]
    values: Matrix

    def predict(self, features: NDArray[np.float32]) -> Matrix:
        """Return the values of the leaves that the queries reach, [queries, curves]."""
        node = np.zeros(len(features), dtype=np.int64)
        inner = np.arange(len(features))
        while len(inner := inner[self.feature[node[inner]] >= 0]):
            at = node[inner]
            low = features[inner, self.feature[at]] <= self.threshold[at]
            node[inner] = np.where(low, self.below[at], self.above[at])
        return self.values[self.below[node]]

    def content(self) -> dict[str, Any]:
        """Return the tree as JSON values."""
        return {name: getattr(self, name).tolist() for name in (*_NODES, "values")}

    @classmethod
    def of(cls, tree: Any, curves: int) -> Tree:
        """Return a tree of scikit-learn: the `tree_` of an estimator with one value per curve."""
        leaf = tree.children_left < 0
        return cls(
            feature=np.where(leaf, -1, tree.feature).astype(np.int64),
            threshold=np.where(leaf, 0.0, tree.threshold),
            below=np.where(leaf, np.cumsum(leaf) - 1, tree.children_left).astype(np.int64),
            above=np.where(leaf, -1, tree.children_right).astype(np.int64),
            values=tree.value.reshape(-1, curves)[leaf].round(6),
        )

    @classmethod
    def read(cls, stored: Any, features: int, curves: int, where: object) -> Tree:
        """Return a tree of JSON values; its nodes must lead to leaves.

        Raises:
            InputError: not a tree, or one for other features.
        """
        kinds = {**_NODES, "values": list[list[float]]}
        wrong = mismatch(stored, dict[str, Any]) or mismatch_of_fields(stored, kinds)
        if wrong:
            raise InputError(
                f"{where}: damaged fuser; in a tree, {wrong}; train again", code="damaged-fuser", path=where,
                **wrong.fields,
            )  # fmt: skip
        arrays = {name: np.array(stored[name]) for name in _NODES}
        nodes, values = np.arange(len(stored["feature"])), stored["values"]
        sound = len(nodes) > 0 and all(len(each) == len(nodes) for each in arrays.values())
        if sound:
            leaf, below, above = arrays["feature"] < 0, arrays["below"], arrays["above"]
            ahead = (below > nodes) & (above > nodes) & (below < len(nodes)) & (above < len(nodes))
            in_leaf = (below >= 0) & (below < len(values))
            sound = bool(np.where(leaf, in_leaf, ahead & (arrays["feature"] < features)).all())
        if not sound or any(len(row) != curves for row in values):
            raise InputError(f"{where}: damaged fuser; a tree has nodes that lead nowhere; train again")
        floats = arrays.pop("threshold").astype(np.float64)
        return cls(threshold=floats, values=np.array(values, dtype=np.float64).reshape(-1, curves), **arrays)


@dataclass(frozen=True)
class Model:
    """Prediction of the weight of each query.

    Attributes:
        means: mean value at each weight of the grid, [weights].
        curves: principal curves of the differences from the mean, [curves, weights].
        trees: the forest; without trees, every query has the fixed weight.
        fixed: row of the fixed weight.
        shrinkage: 0 for the fixed weight, 1 for the best weight of the predicted curve.
    """

    means: Values
    curves: Matrix
    trees: Sequence[Tree]
    fixed: int
    shrinkage: float

    def rows(self, features: Matrix) -> NDArray[np.int64]:
        """Return the row of the weight of each query, [queries].

        Args:
            features: [queries, features], finite.
        """
        if not self.trees:
            return np.full(len(features), self.fixed)
        single = features.astype(np.float32)
        total = np.zeros((len(features), len(self.curves)))
        for tree in self.trees:
            total += tree.predict(single)
        return shrunk(self.means, self.curves, total / len(self.trees), self.fixed, self.shrinkage)


def shrunk(means: Values, curves: Matrix, factors: Matrix, fixed: int, shrinkage: float) -> NDArray[np.int64]:
    """Return the row between the fixed weight and the best weight of each predicted curve, [queries].

    Sums are computed row by row and rounded, so the result does not depend on the other queries.

    Args:
        means: [weights].
        curves: [curves, weights].
        factors: of the curves, [queries, curves].
        fixed: row of the fixed weight.
        shrinkage: 0 for the fixed weight, 1 for the best.
    """
    predicted = np.repeat(means[None, :], len(factors), axis=0)
    for column, curve in enumerate(curves):
        predicted += factors[:, column, None] * curve
    rounded = predicted.round(_DIGITS)
    highest = rounded == rounded.max(1, keepdims=True)
    best = (highest * np.arange(len(means))).sum(1) / highest.sum(1)  # the middle of equal values
    return np.asarray(np.rint(fixed + shrinkage * (best - fixed)), dtype=np.int64)


@dataclass(frozen=True)
class Fitted:
    """A trained model.

    Attributes:
        model: the model.
        importance: share of each feature in the reduction of the error, [features]; sums to 1.
        direction: correlation of each feature with the weight of the second run, [features].
    """

    model: Model
    importance: Values
    direction: Values


def fit(features: Matrix, values: Values, means: Values, fixed: int, seed: int) -> Fitted:
    """Train a model on judged queries.

    Args:
        features: [queries, features], finite.
        values: value of each query at each weight, [weights, queries].
        means: mean value at each weight, which may contain a prior, [weights].
        fixed: row of the fixed weight.
        seed: random seed of the forest.
    """
    from sklearn.ensemble import RandomForestRegressor

    single = features.astype(np.float32)
    gains = (values - values.mean(1, keepdims=True)).T
    gains = gains - gains.mean(1, keepdims=True)
    _, sizes, curves = np.linalg.svd(gains, full_matrices=False)
    curves = curves[: max(1, min(CURVES, int((sizes > 1e-9).sum())))]
    forest = RandomForestRegressor(
        TREES, min_samples_leaf=LEAF, max_features=SHARE, bootstrap=True, random_state=seed, n_jobs=1
    ).fit(single, np.squeeze(gains @ curves.T, axis=1) if len(curves) == 1 else gains @ curves.T)
    trees = [Tree.of(each.tree_, len(curves)) for each in forest.estimators_]
    model = Model(means, curves, trees, fixed, SHRINKAGE)
    weights = model.rows(features).astype(np.float64)
    return Fitted(model, forest.feature_importances_, _correlations(features, weights))


def _correlations(features: Matrix, weights: Values) -> Values:
    """Return the correlation of each feature with the weights; 0 for a constant feature."""
    centered, around = features - features.mean(0), weights - weights.mean()
    scale = np.sqrt((centered**2).sum(0) * (around**2).sum())
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(scale > 1e-12, (centered * around[:, None]).sum(0) / scale, 0.0)


def held_out(table: Table, features: Matrix, folds: int, seed: int) -> tuple[Values, Values]:
    """Return the value of each query under the fixed and under the learned weights of the other folds, [queries] each.

    The method, the fixed weight, the model and its shrinkage are chosen on the other folds alone.

    Args:
        table: values of all choices of two runs.
        features: of the queries of the table, [queries, features].
        folds: number of folds; at most the number of queries is used.
        seed: random seed of the folds and forests.
    """
    queries, folds = table.queries, min(folds, table.queries)
    fold = np.empty(queries, dtype=np.int64)
    fold[draws.rng(seed).permutation(queries)] = np.arange(queries) % folds
    fixed, learned = np.empty(queries), np.empty(queries)
    for number in range(folds):
        here = fold == number
        row = table.plateau((~here).astype(np.int64)).chosen
        rows, fitted = fit_method(table, features, row, ~here, seed)
        fixed[here] = table.values[row, here]
        learned[here] = table.values[np.array(rows)[fitted.model.rows(features[here])], here]
    return fixed, learned


def fit_method(
    table: Table, features: Matrix, row: int, used: NDArray[np.bool_], seed: int
) -> tuple[list[int], Fitted]:
    """Train the weights of one method on some of the judged queries.

    Args:
        table: values of all choices of two runs.
        features: of all queries of the table, [queries, features].
        row: the choice with the method and the fixed weight.
        used: queries to train on, [queries].
        seed: random seed of the forest.

    Returns:
        The rows of the table that have the method, in the order of the model's weights, and the model.
    """
    family = table.choices[row].family
    rows = [number for number, choice in enumerate(table.choices) if choice.family == family]
    means = table.means(used.astype(np.int64))[rows]
    return rows, fit(features[used], table.values[rows][:, used], means, rows.index(row), seed)


def read_model(stored: Mapping[str, Any], features: int, weights: int, where: object) -> Model:
    """Return a model of JSON values.

    Raises:
        InputError: not a model, or one for other features or weights.
    """
    kinds: dict[str, Any] = {
        "means": list[float], "curves": list[list[float]], "trees": list, "fixed": int, "shrinkage": float,
    }  # fmt: skip
    if wrong := mismatch_of_fields(stored, kinds):
        raise InputError(
            f"{where}: damaged fuser; {wrong}; train again", code="damaged-fuser", path=where, **wrong.fields
        )
    curves, trees = stored["curves"], stored["trees"]
    sizes = [len(stored["means"]), *map(len, curves)]
    if set(sizes) != {weights} or not curves or not 0 <= stored["fixed"] < weights:
        raise InputError(f"{where}: damaged fuser; its curves or trees do not fit its weights; train again")
    return Model(
        np.array(stored["means"], dtype=np.float64),
        np.array(curves, dtype=np.float64),
        [Tree.read(tree, features, len(curves), where) for tree in trees],
        stored["fixed"],
        min(max(stored["shrinkage"], 0.0), 1.0),
    )
