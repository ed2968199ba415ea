"""`sweep`: set-ups of a retriever, built by the other stages, measured on the same queries, and one of them chosen."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from hybrid_cli import artifacts, console, storage
from hybrid_cli.artifacts.retrievers import find_retriever, open_retriever
from hybrid_cli.collections import collection as collections
from hybrid_cli.commands import Compose, Encode, Evaluate, Gate, IndexBm25, PrepareFiles, Search, SearchOptions, Sweep
from hybrid_cli.errors import option_error, path_error
from hybrid_cli.fusion.selection import FEWEST, Choice, Trials
from hybrid_cli.inputs.files import read_text
from hybrid_cli.inputs.json_values import reason
from hybrid_cli.reporting.summary import Summary, p_text
from hybrid_cli.reporting.tables import figure, with_sign
from hybrid_cli.reporting.verdict import Verdict
from hybrid_cli.settings import Settings, command_line
from hybrid_cli.stages import call, stage
from hybrid_cli.storage import disk

_STEPS: dict[str, type[Settings]] = {
    kind.command.split()[0]: kind for kind in (PrepareFiles, IndexBm25, Encode, Compose, Search)
}
_ANY: dict[str, tuple[Any, ...]] = {  # inputs with which options are checked
    **dict.fromkeys(("index-bm25", "encode"), (Path("collection"),)),
    **dict.fromkeys(("prepare", "compose"), ([Path("collection")],)),
    "search": (),
}
_SET = {"output", "overwrite", "collection", "documents", "index", "indexes", "split"}  # options
_MODEL = "minilm"
_TIMED = 100  # queries for the latency, after ten that are not counted


@stage(Sweep)
def sweep(settings: Sweep) -> Path:
    """Build and measure set-ups, print their table, and write the chosen one.

    Returns:
        Path of the chosen retriever.

    Raises:
        InputError: no set-ups, an unknown command or option, or a stage refuses its input.
    """
    setups = read_setups(settings.setups)
    parts = SweptParts(settings)
    made = {name: parts.composed(steps) for name, steps in setups.items()}
    runs = [f"{name}={parts.run(made[name], steps)}" for name, steps in setups.items()]
    first = next(iter(setups))
    of: dict[str, Any] = {"split": settings.split, "measure": [settings.measure], "seed": settings.seed}
    measured = Evaluate([settings.collection, *runs], baseline=[first], **of)
    summary: Summary = call(measured)
    values = {name: summary.values.filter(run=name)["value"].to_numpy() for name in setups}
    verdict, chosen = chosen_of(settings, values)
    costs = {name: parts.costs(retriever) for name, retriever in made.items()}
    _show(settings, summary, values, costs)
    console.result(verdict.sentence() if verdict else "")
    best, second = sorted(values, key=lambda name: -values[name].mean())[:2]
    console.result(Verdict.of(settings.measure, (second, values[second]), (best, values[best])).sentence())
    console.result(f"{chosen} is recommended." if chosen != first else f"No set-up is recommended over {first}.")
    content = {
        "measure": settings.measure,
        "chosen": chosen,
        "verdict": verdict and verdict.content(),
        "setups": {
            name: {"steps": steps, "retriever": str(made[name]), "mean": float(values[name].mean()), **costs[name]}
            for name, steps in setups.items()
        },
        "comparisons": summary.comparisons.to_dicts(),
    }
    disk.write_text(settings.output / "sweep.json", json.dumps(content, indent=2, default=str) + "\n")
    winner = parts.composed(setups[chosen], settings.output / "retriever")
    gate = Gate(
        winner, settings.collection, split=settings.split, baseline=settings.output / "quality.json", write=True
    )
    console.note(f"sweep: {winner}: {chosen}; to keep its quality:\n{command_line(gate)}", code="chosen", name=chosen)
    return winner


def read_setups(path: Path) -> dict[str, dict[str, Any]]:
    """Return name -> command -> options of a YAML file.

    Raises:
        InputError: no set-ups, or something else in place of one.
    """
    try:
        content = yaml.safe_load(read_text(path))
    except yaml.YAMLError as error:
        raise path_error(path, f"not a readable YAML file ({reason(error)})", code="not-yaml") from None
    if not isinstance(content, dict) or len(content) < 2:
        raise path_error(path, "needs two or more set-ups: `NAME: {COMMAND: {OPTION: VALUE}}`", code="too-few-setups")
    for name, steps in content.items():
        if not isinstance(steps, dict | None) or "=" in str(name):
            raise path_error(path, f"{name}: needs `COMMAND: {{OPTION: VALUE}}`", code="other-type", name=name)
        if steps and steps.get("index-bm25", {}) is None and steps.get("encode", {}) is None:
            raise path_error(path, f"{name}: has neither BM25 nor an encoder", code="other-type", name=name)
        for step, options in (steps or {}).items():
            if step not in _STEPS:
                problem = f"{name}: {step} is no step; steps: {', '.join(_STEPS)}"
                raise path_error(path, problem, code="unknown-choice", name=name, choices=[*_STEPS])
            if not isinstance(options, dict | None):
                raise path_error(path, f"{name}: {step} needs options, or null", code="other-type", name=name)
            _settings(
                step,
                options or {},
                *_ANY[step],
                output=path,
                **({"index": path, "queries": path} if step == "search" else {}),
            )
    return {str(name): steps or {} for name, steps in content.items()}


def _settings(step: str, options: Mapping[str, Any], *inputs: Any, **fixed: Any) -> Settings:
    """Return the settings of a step.

    Raises:
        InputError: an unknown or unusable option, or one that the sweep sets.
    """
    kind = _STEPS[step]
    values = kind.by_field(options)
    if taken := sorted(values.keys() & _SET):
        raise option_error(taken[0], None, f"{step}: the sweep sets it; omit it", code="option-does-not-apply")
    return kind(*inputs, **{**fixed, **values})


@dataclass(frozen=True)
class SweptParts:
    """The artifacts of all set-ups; equal steps are one artifact, whose name has a hash of its options and inputs."""

    settings: Sweep

    def made(
        self, step: str, options: Mapping[str, Any], *inputs: Any, output: Path | None = None, **fixed: Any
    ) -> Path:
        """Run a step, or keep what an earlier call made."""
        named = json.dumps([step, options, fixed, inputs], default=str, sort_keys=True)
        name = f"{step}-{hashlib.blake2b(named.encode(), digest_size=4).hexdigest()}"
        path = output or self.settings.output / "steps" / (f"{name}.parquet" if step == "search" else name)
        made = _settings(step, options, *inputs, output=path, **fixed)
        if output is not None:
            made = made.changed(overwrite=True)
        console.note(f"\n{command_line(made)}")
        with artifacts.keeping_equal_outputs():
            call(made)
        return path

    def documents(self, steps: Mapping[str, Any]) -> Path:
        """Return the documents of a set-up: those of the collection, or passages of them."""
        if not (options := steps.get("prepare")):
            return self.settings.collection
        parts = collections.parts(self.settings.collection)
        metadata = list(collections.metadata_schema(collections.corpus_path(self.settings.collection)))
        return self.made("prepare", options, parts, metadata=metadata)

    def indexes(self, steps: Mapping[str, Any]) -> list[Path]:
        """Return the indexes of a set-up."""
        documents, made = self.documents(steps), []
        if (options := steps.get("index-bm25", {})) is not None:
            made.append(self.made("index-bm25", options or {}, documents, lucene=False))
        if (options := steps.get("encode", {})) is not None:
            made.append(self.made("encode", options or {}, documents, model=_MODEL))
        return made

    def composed(self, steps: Mapping[str, Any], output: Path | None = None) -> Path:
        """Return the retriever of a set-up."""
        return self.made("compose", steps.get("compose") or {}, self.indexes(steps), output=output)

    def run(self, retriever: Path, steps: Mapping[str, Any]) -> Path:
        """Return the run of a set-up on the queries of the collection, or on rewritten ones."""
        queries = collections.queries_path(self.settings.collection, self.settings.split)
        return self.made("search", steps.get("search") or {}, index=retriever, queries=queries, hits=100)

    def costs(self, retriever: Path) -> dict[str, float]:
        """Return seconds of indexing, bytes of the indexes, and the latency of queries: the 95th percentile in ms."""
        files = find_retriever(retriever)
        assert files is not None
        seconds = [artifacts.read_manifest(path).seconds or 0.0 for path in files.indexes]
        queries = collections.read_queries(collections.queries_path(self.settings.collection, self.settings.split))
        opened, times = open_retriever(files, SearchOptions()), []
        for text in queries["text"].head(_TIMED + 10):
            start = time.perf_counter()
            opened.search(text, 10)
            times.append(1e3 * (time.perf_counter() - start))
        used = sum(sum(storage.sizes(path).values()) for path in files.indexes)
        return {"seconds": sum(seconds), "bytes": used, "p95": float(np.percentile(times[10:] or times, 95))}


def chosen_of(settings: Sweep, values: Mapping[str, np.ndarray]) -> tuple[Verdict | None, str]:
    """Return the verdict on the best set-up by queries that did not choose it, and the chosen set-up.

    Each query counts for the set-up that is best on the other folds; the first set-up stays unless this is better.
    """
    names, table = list(values), np.stack([*values.values()])
    if table.shape[1] < FEWEST:
        problem = f"{console.counted(**{'judged query': table.shape[1]})} choose nothing; judge {FEWEST} or more"
        console.warn(f"sweep: {problem}", code="too-few-queries", queries=table.shape[1])
        return None, names[0]
    rows = Trials([Choice(name, (1.0,)) for name in names], table).crossed(settings.folds, settings.seed)
    held_out = table[rows, np.arange(len(rows))]
    best = names[int(table.mean(1).argmax())]
    verdict = Verdict.of(
        settings.measure, (names[0], table[0]), (f"{best}, on queries that did not choose it", held_out)
    )
    return verdict, best if verdict.outcome == "better" else names[0]


def _show(
    settings: Sweep, summary: Summary, values: Mapping[str, np.ndarray], costs: Mapping[str, Mapping[str, float]]
) -> None:
    """Print quality and cost of each set-up."""
    ends = {row["run"]: (row["low"], row["high"]) for row in summary.intervals.iter_rows(named=True)}
    tests = {
        row["run"]: row[f"p_{summary.settings['test']}_corrected"] for row in summary.comparisons.iter_rows(named=True)
    }
    first, rows = next(iter(values)), []
    for name, own in values.items():
        low, high = ends[name]
        change = "" if name == first else f"{with_sign(float((own - values[first]).mean()))} (p {p_text(tests[name])})"
        cost = costs[name]
        sizes = f"{cost['seconds']:,.1f}", console.size(cost["bytes"]), f"{cost['p95']:.1f}"
        rows.append([name, figure(own.mean()), f"{figure(low, 3)} to {figure(high, 3)}", change, *sizes])
    columns = ["set-up", settings.measure, "95% interval", f"from {first}", "index s", "size", "p95 ms"]
    console.table(columns, rows)
    console.result(f"p: Holm over {len(values) - 1} comparisons with {first}. p95: of single queries, warm.")
