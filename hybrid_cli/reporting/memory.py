"""The indexes and encoders behind a run; index size against quality (LITE, table 2)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import altair as alt

from hybrid_cli import artifacts, console
from hybrid_cli.artifacts import Kind, layout
from hybrid_cli.errors import InputError
from hybrid_cli.reporting.charts import Figure, chart, colours, plain
from hybrid_cli.reporting.page import Cell, Section, Table
from hybrid_cli.reporting.tables import figure

_ROOM = 2.5  # factor beyond the smallest and the largest index, for names
_INDEXES = (Kind.LEXICAL_INDEX, Kind.DENSE_INDEX)
_LUCENE_READS = ("lucene/",)
_READ = {
    Kind.LEXICAL_INDEX: ("impacts/", layout.DOCIDS, layout.PARAMETERS),
    Kind.DENSE_INDEX: (layout.FAISS_INDEX, layout.DOCIDS),
}


@dataclass(frozen=True)
class Held:
    """One index and the bytes that a search of it reads.

    Attributes:
        index: path.
        parts: name -> bytes of everything in the folder.
        needed: names of the parts that a search reads.
        documents: number of documents.
    """

    index: Path
    parts: Mapping[str, int]
    needed: Sequence[str]
    documents: int

    @property
    def size(self) -> int:
        """Return the bytes that a search reads."""
        return sum(self.parts[name] for name in self.needed)


def indexes_of(run: Path) -> dict[Path, Held]:
    """Return the indexes behind a run, or behind the runs that it fuses, as far as the paths in manifests exist.

    Copies of one index count once.
    """
    found = _indexes(run)
    firsts = {artifacts.fingerprint(path): path for path in reversed(found)}.values()
    return {path: held for path, held in found.items() if path in firsts}


def _indexes(run: Path) -> dict[Path, Held]:
    manifest = artifacts.find_manifest(run)
    found: dict[Path, Held] = {}
    for path, kind in _inputs(run):
        if kind == Kind.RUN:
            found |= {index: held for index, held in _indexes(path).items() if index not in found}
        elif kind in _INDEXES and path not in found:
            lucene = manifest is not None and manifest.options.get("engine") == "lucene"
            found[path] = held(path, lucene)
    return found


def sides(runs: Mapping[str, Path]) -> tuple[str, str] | None:
    """Return the only run searched in a dense index and the only one searched in a lexical index, if there are both."""
    of: dict[str, list[str]] = {kind: [] for kind in _INDEXES}
    for name, path in runs.items():
        for _, kind in _inputs(path) if not _from_runs(path) else ():
            if kind in _INDEXES:
                of[kind].append(name)
    dense, lexical = of[Kind.DENSE_INDEX], of[Kind.LEXICAL_INDEX]
    return (dense[0], lexical[0]) if len(dense) == len(lexical) == 1 else None


def _from_runs(path: Path) -> bool:
    return any(kind == Kind.RUN for _, kind in _inputs(path))


def held(index: Path, lucene: bool = False) -> Held:
    """Return the parts of an index.

    Args:
        index: a lexical or dense index.
        lucene: the lexical index is searched with Lucene, not with the impact matrix.

    Raises:
        InputError: not an index.
    """
    manifest = artifacts.read_manifest(index)
    if manifest.kind not in _INDEXES:
        raise InputError(f"{index}: is {manifest.kind.phrase} (written by `{manifest.stage}`); an index is needed here")
    parts = artifacts.sizes(index)
    needed = _LUCENE_READS if lucene else _READ[manifest.kind]
    documents = manifest.counts.get("documents", manifest.counts.get("vectors", 0))
    return Held(index, parts, [name for name in parts if name in needed], documents)


def curves(run: Path) -> list[Path]:
    """Return the encoders behind a run that have a learning curve."""
    encoders = [path for index in indexes_of(run) for path, kind in _inputs(index) if kind == Kind.ENCODER]
    return [path for path in dict.fromkeys(encoders) if (path / layout.CURVE).is_file()]


def language(run: Path) -> str | None:
    """Return the language of the lexical index behind a run, if there is one."""
    for index in indexes_of(run):
        manifest = artifacts.read_manifest(index)
        if manifest.kind == Kind.LEXICAL_INDEX:
            return str(manifest.options["language"])
    return None


def _inputs(path: Path) -> Iterator[tuple[Path, str]]:
    """Yield path and kind of the inputs of an artifact that still exist and have the recorded kind."""
    manifest = artifacts.find_manifest(path)
    for role, recorded in manifest.inputs.items() if manifest else ():
        source = manifest.input_path(role) if manifest else None
        if source is None:
            continue
        try:
            there = artifacts.find_manifest(source)
        except InputError:
            continue
        if there is not None and there.kind == recorded["kind"]:
            yield source, recorded["kind"]


# ------------------------------------------------------------------------------------------------------------ section


def section(
    held: Mapping[str, Sequence[Held]], means: Mapping[str, float], measure: str, runs: Sequence[str]
) -> Section:
    """Return a scatter plot of the runs whose indexes are known, and a table of the indexes.

    Args:
        held: run -> its indexes.
        means: run -> mean of `measure`.
        measure: name of the measure.
        runs: all runs, in the order of their colors.
    """
    return Section(
        "memory",
        "Index size against quality",
        figures=[_figure(held, means, measure, runs)],
        tables=[_table(held)],
    )


def _figure(
    held: Mapping[str, Sequence[Held]], means: Mapping[str, float], measure: str, runs: Sequence[str]
) -> Figure:
    sizes = {run: sum(index.size for index in indexes) for run, indexes in held.items()}
    best = front(sizes, means)
    rows = [
        {"run": run, "bytes": size, "size": console.size(size), "mean": means[run], "shown": figure(means[run])}
        | {"front": run in best}
        for run, size in sizes.items()
    ]
    across = alt.Scale(type="log", domain=[min(sizes.values()) / _ROOM, max(sizes.values()) * _ROOM], nice=False)
    base = chart("memory").encode(
        alt.X("bytes:Q", title="bytes read by a search", scale=across).axis(format="~s", tickCount=5, grid=False),
        alt.Y("mean:Q", title=measure).scale(zero=False, padding=24).axis(tickCount=5, format=".2~f"),
        tooltip=[alt.Tooltip("run:N"), alt.Tooltip("size:N"), alt.Tooltip("shown:N", title=measure)],
    )
    dots = base.mark_circle(size=130, opacity=1).encode(colours(runs))
    names = base.mark_text(dy=-13, align="center").encode(text="run:N")
    steps = base.transform_filter("datum.front").mark_line(style="guide", interpolate="step-after")
    return Figure(
        "memory",
        f"{measure} and bytes",
        plain(steps + dots + names, {"memory": rows}, height=300),
        "Size on disk of the files that a search reads; for a fused run, of all its indexes. The query encoder is not "
        "included. Up and to the left is better: the line connects the runs that no smaller or equal run beats "
        "(Pareto front).",
        wide=True,
    )


def front(sizes: Mapping[str, int], means: Mapping[str, float]) -> set[str]:
    """Return the Pareto front: runs that no other run equals with fewer bytes, or beats with as many."""

    def beaten(run: str, by: str) -> bool:
        no_worse = sizes[by] <= sizes[run] and means[by] >= means[run]
        return no_worse and (sizes[by], means[by]) != (sizes[run], means[run])

    return {run for run in sizes if not any(beaten(run, other) for other in sizes)}


def _table(held: Mapping[str, Sequence[Held]]) -> Table:
    rows = []
    for run, indexes in held.items():
        for index in indexes:
            parts = ", ".join(
                f"{name} {console.size(size)}{'' if name in index.needed else ' (not read)'}"
                for name, size in index.parts.items()
            )
            each = index.size / index.documents if index.documents else 0
            rows.append(
                [
                    Cell(run),
                    Cell(str(index.index)),
                    Cell(parts),
                    Cell(console.size(index.size), f"{index.size / 2**30:.3f} GiB"),
                    Cell(f"{each:,.0f}"),
                ]
            )
    return Table(
        "Parts of each index",
        ["run", "index", "parts", "read by a search", "bytes per document"],
        rows,
        left=3,
        folded=True,
    )
