"""The results of `inspect` as text or JSON."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hybrid_cli import console
from hybrid_cli.commands import Inspect
from hybrid_cli.errors import HybridError
from hybrid_cli.reporting import tables
from hybrid_cli.reporting.tables import Table, figure
from hybrid_cli.reporting.terminal import show_calibration

if TYPE_CHECKING:
    from rich.tree import Tree


Description = dict[str, Any]
_NOT_READ = ("stored vectors", "Lucene index")
_LATENCY = ("encode", "search", "fuse", "total")
_SHOWN = 5  # queries with other documents


def show(found: Description, settings: Inspect) -> None:
    """Print the result of `inspect`.

    Raises:
        HybridError: with --verify, files are damaged, and a warning names each of them; or an engine has other hits.
    """
    if settings.form == "json":
        console.result_json(found.get("artifacts", found), indent=2)
    elif settings.engine is not None:
        _show_agreement(found)
    elif settings.verify:
        _show_verified(found["artifacts"])
    elif settings.memory_table is not None:
        _show_memory_table(found["memory_table"])
    else:
        _describe(found)
    if settings.engine is not None and found["same"] < found["queries"] and not found["differences"]:
        count = found["queries"] - found["same"]
        problem = f"{found['engine']}: other documents for {console.counted(query=count)}; load the export again"
        raise HybridError(problem, code="other-hits", count=count)
    if settings.verify and settings.engine is None:
        problems = list(dict.fromkeys(line for artifact in found["artifacts"] for line in artifact["problems"]))
        for line in problems:
            console.warn(line, code="damaged")
        if problems:
            problem = f"damaged files: {len(problems)}; restore them, or rebuild the artifacts"
            raise HybridError(problem, code="damaged", count=len(problems))


def _show_memory_table(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print quality and latency of each run, then the parts of each index."""
    measures = [name for name in rows[0] if "@" in name]
    columns = ["run", "memory", "GiB", *measures, *(f"{part} (ms)" for part in _LATENCY)]
    shown = [
        [row["run"], console.size(row["bytes"]), f"{row['bytes'] / 2**30:.4f}"]
        + [f"{100 * row[name]:.1f}" for name in measures]
        + [f"{row[f'{part} p50']:.1f} {row[f'{part} p95']:.1f}" for part in _LATENCY]
        for row in rows
    ]
    tables.show(Table(columns, shown, stacked=True))
    parts = {(part["index"], part["part"]): part for row in rows for part in row["parts"]}
    cells = [[*key, console.size(part["bytes"]), "yes" if part["read"] else "no"] for key, part in parts.items()]
    tables.show(Table(["index", "part", "size", "read by a search"], cells, left=2))
    latency = "Latency: p50 and p95 of single queries on one thread; a fused run searches its indexes in parallel."
    tables.prose(["memory: bytes that a search of the run's indexes reads.", latency])


def _describe(described: Description) -> None:
    out = console.stdout()
    made = f", written by `{described['stage']}`" if "stage" in described else ", not written by hybrid"
    out.print(console.one_line(f"{described['path']}: {described['what']}{made}"))
    for name in ("options", "counts", "contract", "adapters", "versions"):
        _pairs(name, {key: _plain(value) for key, value in described.get(name, {}).items()})
    _show_weights(described.get("weights", {}))
    _show_retriever(described)
    content = {"fingerprint": described["fingerprint"]} if "fingerprint" in described else {}
    _pairs("content", content | ({"rows": f"{described['rows']:,}"} if "rows" in described else {}))
    tables = described.get("tables", {})
    rows = {name: console.size(size) for name, size in described["parts"].items()}
    _pairs("on disk", rows | {name: f"{count:,} rows" for name, count in tables.items() if name not in rows})
    _show_memory(described)
    _pairs("columns", described.get("columns", {}))
    for title, key in (("validation at the best step", "best_values"), ("last values", "last_values")):
        values = described.get(key, {})
        _pairs(title, {name: f"{value:.6g} (step {step:,})" for name, (step, value) in values.items()})
    _pairs("first rows", {str(n + 1): _plain(row) for n, row in enumerate(described.get("sample", []))})
    _pairs("first lines", {str(n + 1): line for n, line in enumerate(described.get("head", []))})
    if described.get("inputs"):
        out.print(_tree(described["inputs"]))


def _show_weights(weights: Mapping[str, Any]) -> None:
    """Print the weights of a fusion with their evidence, or the tables of a static encoder."""
    if "runs" in weights:
        shown = {f"weight of {name}": f"{weight:g}" for name, weight in weights["runs"].items()}
        shown |= {f"{name} alone": f"{value:.4f}" for name, value in weights["alone"].items()}
        _pairs("weights", _scalars(weights) | shown)
    else:
        for name, table in weights.items():
            size = " x ".join(f"{n:,}" for n in table["shape"])
            longest = ", ".join(f"{term} {length:.3g}" for term, length in table["longest"])
            _pairs(name.replace("_", " "), {"size": f"{size} ({table['dtype']})", "longest vectors": longest})


def _show_retriever(described: Description) -> None:
    """Print the indexes of a retriever with their weights, its fusion, and how it was chosen."""
    if not (stored := described.get("retriever")):
        return
    paths = [os.path.normpath(Path(described["path"]) / index["path"]) for index in stored["indexes"]]
    scales = [f", of scores with a deviation of {scale:.4g}" for scale in stored["scales"] or ()] or [""] * len(paths)
    weights = [f"weight {weight:g}{scale}" for weight, scale in zip(stored["weights"], scales, strict=True)]
    _pairs("indexes", dict(zip(paths, weights, strict=True)))
    for title, values in (("fusion", stored), ("updates since weights were chosen", stored["changed"] or {})):
        _pairs(title, _scalars(values))
    if stored["calibration"]:
        tables.heading("probabilities of hits")
        show_calibration(stored["calibration"])
    _pairs("tuning", _scalars(stored["tuning"] or {}))


def _scalars(values: Mapping[str, Any]) -> dict[str, str]:
    """Return the texts, numbers and intervals among some values, with names in words."""
    shown = {
        name: f"{value[0]:.4f} to {value[1]:.4f}"
        for name, value in values.items()
        if name.endswith("_interval") and value
    }
    shown |= {name: _number(value) for name, value in values.items() if isinstance(value, str | int | float)}
    return {name.replace("_", " "): text for name, text in shown.items()}


def _number(value: Any) -> str:
    """Return a value with four decimals where it is not a whole number."""
    return f"{value:.4f}" if isinstance(value, float) else str(value)


def _show_memory(described: Description) -> None:
    if "memory" not in described:
        return
    rows, count = described["memory"], max(1, described["documents"])
    read = sum(size for name, size in rows.items() if name not in _NOT_READ)
    shown = {
        f"{name} (not read by a search)" if name in _NOT_READ else name: (
            f"{size / count:10,.1f} bytes per document {size / 1e9:10,.4f} GB {size / 2**30:10,.4f} GiB"
        )
        for name, size in {**rows, "total read by a search": read}.items()
    }
    _pairs("memory", shown)


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def _pairs(title: str, values: Mapping[str, str]) -> None:
    if not values:
        return
    out = console.stdout()
    out.print(f"\n{title}", style="bold")
    names = {name: console.one_line(name) for name in values}
    width = max(map(len, names.values()))
    for name, value in values.items():
        out.print(f"  {names[name]:{width}}  {console.one_line(value)}", soft_wrap=True)


def _tree(inputs: list[Description]) -> Tree:
    from rich.tree import Tree

    shown: set[str] = set()

    def grow(branch: Tree, entries: list[Description]) -> Tree:
        for entry in entries:
            made = f" by `{entry['stage']}`" if entry.get("stage") else ""
            state = "" if entry["state"] == "unchanged" else f"  <- {entry['state']}"
            again = bool(entry["inputs"]) and entry["path"] in shown
            shown.add(entry["path"])
            line = f"{entry['role']}: {entry['path']} ({entry['kind']}{made}){state}{', shown above' if again else ''}"
            grow(branch.add(console.styled(console.one_line(line))), [] if again else entry["inputs"])
        return branch

    return grow(Tree(console.styled("\ninputs", "bold")), inputs)


def _show_verified(artifacts: Sequence[Description]) -> None:
    """Print the state of every artifact and of its inputs."""
    rows = [[each["path"], each["kind"], f"{each['files']:,}", each["state"]] for each in artifacts]
    console.table(("artifact", "kind", "files", "state"), rows, left=("kind", "state"))
    names = ("role", "path", "state")
    inputs = [[each["path"], *(source[name] for name in names)] for each in artifacts for source in each["inputs"]]
    if inputs:
        console.table(("artifact", "input", "path", "state"), inputs, left=("input", "path", "state"))


def _show_agreement(found: Description) -> None:
    """Print how far the top ten of a retriever and of an engine agree; see `exports.comparison.compare`."""
    rows = [
        ["queries with the same top 10", f"{found['same']:,} of {found['queries']:,}"],
        ["  of them in the same order", f"{found['same_order']:,}"],
        ["overlap of the top 10", f"{found['overlap']:.3f}"],
    ]
    if found["measured"] is not None:
        rows.append(["nDCG@10 of hybrid, engine", ", ".join(map(figure, found["measured"]))])
    console.table((f"{found['engine']}: {console.counted(document=found['documents'])}", ""), rows)
    if differing := found["differing"][:_SHOWN]:
        shown = [[each["qid"], " ".join(each["hybrid"]), " ".join(each["engine"])] for each in differing]
        console.table(("query", "only hybrid", "only the engine"), shown, left=("only hybrid", "only the engine"))
    for line in found["differences"]:
        console.note(f"  {line}", code="engine-difference")
