"""The results of `inspect` as text or JSON."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hybrid_cli import console
from hybrid_cli.errors import HybridError
from hybrid_cli.reporting import tables
from hybrid_cli.reporting.tables import Table, figure
from hybrid_cli.reporting.terminal import show_calibration
from hybrid_cli.settings import Inspect

if TYPE_CHECKING:
    from rich.tree import Tree


Description = dict[str, Any]
_NOT_READ = ("stored vectors", "Lucene index")
_LATENCY = ("encode", "search", "fuse", "total")


def show(described: Description | Sequence[Description] | Agreement, settings: Inspect) -> None:
    """Print the result of `inspect`.

    Raises:
        HybridError: with --verify, files are damaged, and a warning names each of them; or an engine has other hits.
    """
    if isinstance(described, Agreement):
        show_agreement(described, settings.form)
    elif not isinstance(described, dict):
        _show_verified(described, settings.form)
    elif settings.form == "json":
        console.result_json(described, indent=2)
    elif "memory_table" in described:
        _show_memory_table(described["memory_table"])
    else:
        _describe(described)


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
    indexes = {part["index"]: row["parts"] for row in rows for part in row["parts"]}
    for index, parts in indexes.items():
        cells = [
            [part["part"], console.size(part["bytes"]), "yes" if part["read"] else "no"]
            for part in parts
            if part["index"] == index
        ]
        tables.show(Table(["part", "size", "read by a search"], cells, index))
    tables.prose(
        [
            "memory: bytes that a search of the run's indexes reads. Latency: p50 and p95 of single queries on one "
            "thread; a fused run searches its indexes in parallel."
        ]
    )


def _describe(described: Description) -> None:
    out = console.stdout()
    made = f", written by `{described['stage']}`" if "stage" in described else ", not written by hybrid"
    out.print(console.one_line(f"{described['path']}: {described['what']}{made}"))
    sections: dict[str, Mapping[str, Any]] = {
        name: described[name]
        for name in ("options", "counts", "contract", "adapters", "versions")
        if described.get(name)
    }
    for name, values in sections.items():
        _pairs(name, {key: _plain(value) for key, value in values.items()})
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
        shown |= {f"{name} alone": f"{value:.4f}" for name, value in weights.get("alone", {}).items()}
        others = {name: value for name, value in weights.items() if name not in ("runs", "alone")}
        _pairs("weights", {name.replace("_", " "): _number(value) for name, value in others.items()} | shown)
    else:
        for name, table in weights.items():
            size = " x ".join(f"{n:,}" for n in table["shape"])
            longest = ", ".join(f"{term} {length:.3g}" for term, length in table["longest"])
            _pairs(name.replace("_", " "), {"size": f"{size} ({table['dtype']})", "longest vectors": longest})


def _show_retriever(described: Description) -> None:
    """Print the indexes of a retriever with their weights, and its fusion."""
    if not (stored := described.get("retriever")):
        return
    folder = Path(described["path"])
    scales = stored["scales"] or [None] * len(stored["indexes"])
    rows = {}
    for index, weight, scale in zip(stored["indexes"], stored["weights"], scales, strict=True):
        of = "" if scale is None else f", of scores with a deviation of {scale:.4g}"
        rows[os.path.normpath(folder / index["path"])] = f"weight {weight:g}{of}"
    _pairs("indexes", rows)
    names = ("method", "normalize", "missing", "depth", "scaled_by")
    _pairs("fusion", {name.replace("_", " "): str(stored[name]) for name in names if stored[name] is not None})
    if stored["changed"]:
        changes = {name: console.counted(document=number) for name, number in stored["changed"].items()}
        _pairs("updates since weights and scales were chosen", {"generation": str(stored["generation"]), **changes})
    if stored["calibration"]:
        tables.heading("probabilities of hits")
        show_calibration(stored["calibration"])
    evidence = {name: value for name, value in (stored["tuning"] or {}).items() if isinstance(value, str | int | float)}
    _pairs("tuning", {name.replace("_", " "): _number(value) for name, value in evidence.items()})


def _number(value: Any) -> str:
    """Return a value with four decimals where it is not a whole number."""
    if isinstance(value, list):
        return f"[{', '.join(map(_number, value))}]"
    return f"{value:.4f}" if isinstance(value, float) else str(value)


def _show_memory(described: Description) -> None:
    if "memory" not in described:
        return
    rows, count = described["memory"], described["documents"]
    read = sum(size for name, size in rows.items() if name not in _NOT_READ)
    rows = {**rows, "total read by a search": read}
    width = max(map(len, rows))
    shown = {}
    for name, size in rows.items():
        bytes_per_document, remark = size / max(1, count), "  (not read by a search)" if name in _NOT_READ else ""
        shown[f"{name:{width}}"] = (
            f"{bytes_per_document:10,.1f} bytes per document {size / 1e9:10,.4f} GB {size / 2**30:10,.4f} GiB{remark}"
        )
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


def _show_verified(descriptions: Sequence[Description], form: str) -> None:
    """Print the state of every artifact and of its inputs."""
    if form == "json":
        console.result_json(descriptions, indent=2)
    else:
        rows = [
            [artifact["path"], artifact["kind"], f"{artifact['files']:,}", artifact["state"]]
            for artifact in descriptions
        ]
        console.table(("artifact", "kind", "files", "state"), rows, left=("kind", "state"))
        inputs = [
            [artifact["path"], source["role"], source["path"], source["state"]]
            for artifact in descriptions
            for source in artifact["inputs"]
        ]
        if inputs:
            console.table(("artifact", "input", "path", "state"), inputs, left=("input", "path", "state"))
    if problems := list(dict.fromkeys(line for artifact in descriptions for line in artifact["problems"])):
        for line in problems:
            console.warn(line, code="damaged")
        problem = f"damaged files: {len(problems)}; restore them, or rebuild the artifacts"
        raise HybridError(problem, code="damaged", count=len(problems))


# -------------------------------------------------------------------------------------------------------------- engines

TOP, MEASURE = 10, "nDCG@10"


@dataclass(frozen=True)
class Difference:
    """A query with other documents in the top ten.

    Attributes:
        qid: id of the query.
        hybrid, engine: documents that only one of them returns.
    """

    qid: str
    hybrid: Sequence[str]
    engine: Sequence[str]


@dataclass(frozen=True)
class Agreement:
    """The top ten of a retriever and of an engine.

    Attributes:
        engine: engine and address.
        documents: number of documents in both.
        queries: number of queries.
        same: queries with the same ten documents, ties aside.
        same_order: those of them with the same order, ties aside.
        overlap: mean fraction of common documents in the top ten.
        measured: mean of `MEASURE` of the retriever and of the engine; None without judged queries.
        differences: what the engine computes differently, in sentences.
        differing: queries with other documents.
    """

    engine: str
    documents: int
    queries: int
    same: int
    same_order: int
    overlap: float
    measured: tuple[float, float] | None
    differences: Sequence[str]
    differing: Sequence[Difference]


def show_agreement(agreement: Agreement, form: str) -> None:
    """Print an agreement.

    Raises:
        HybridError: the hits differ although the engine computes the same formula.
    """
    if form == "json":
        console.result_json(asdict(agreement), indent=2)
    else:
        rows = [
            [f"queries with the same top {TOP}", f"{agreement.same:,} of {agreement.queries:,}"],
            ["  of them in the same order", f"{agreement.same_order:,}"],
            [f"overlap of the top {TOP}", f"{agreement.overlap:.3f}"],
        ]
        if agreement.measured is not None:
            ours, theirs = map(figure, agreement.measured)
            rows.append([f"{MEASURE} of hybrid, engine", f"{ours}, {theirs}"])
        title = f"{agreement.engine}: {console.counted(document=agreement.documents)}"
        console.table((title, ""), rows)
        if agreement.differing:
            shown = [[each.qid, " ".join(each.hybrid), " ".join(each.engine)] for each in agreement.differing[:_SHOWN]]
            console.table(("query", "only hybrid", "only the engine"), shown, left=("only hybrid", "only the engine"))
        for line in agreement.differences:
            console.note(f"  {line}", code="engine-difference")
    if agreement.same < agreement.queries and not agreement.differences:
        count = agreement.queries - agreement.same
        problem = f"{agreement.engine}: other documents for {console.counted(query=count)}; load the export again"
        raise HybridError(problem, code="other-hits", count=count)


_SHOWN = 5
