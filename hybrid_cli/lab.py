"""Experiments in Python: systems are compared as `hybrid evaluate` compares runs, and results combined over seeds."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from hybrid_cli import storage
from hybrid_cli.api import open_collection
from hybrid_cli.artifacts import Manifest
from hybrid_cli.collections.collection import Collection, qrels_path, read_qrels
from hybrid_cli.commands import Evaluate, PrepareFiles, TrainDense
from hybrid_cli.commands.common import HITS
from hybrid_cli.encoders.options import MODEL
from hybrid_cli.errors import InputError, named_keywords, require_packages
from hybrid_cli.evaluation.complementarity import Sets, sets
from hybrid_cli.evaluation.measures import qrels_table
from hybrid_cli.evaluation.options import LEVEL, MEASURES
from hybrid_cli.indexes.dense import DenseIndex
from hybrid_cli.lexical.index import LexicalIndex
from hybrid_cli.reporting import studies
from hybrid_cli.reporting.complement import answered
from hybrid_cli.reporting.summary import Summary
from hybrid_cli.retrieval.in_memory import BM25, KnownTable
from hybrid_cli.retrieval.retriever import Retriever
from hybrid_cli.runs import RunLike, run_table
from hybrid_cli.runs.given import checked_depth, queries_table
from hybrid_cli.runs.index import Index
from hybrid_cli.stages.compose import compose
from hybrid_cli.stages.encode import encode
from hybrid_cli.stages.evaluate import evaluate
from hybrid_cli.stages.index_bm25 import index_bm25
from hybrid_cli.stages.prepare import prepare
from hybrid_cli.storage import SCHEMAS, Kind, disk

if TYPE_CHECKING:
    import altair as alt

    from hybrid_cli.encoders.contract import Encoder

DataLike = str | os.PathLike[str] | Collection | tuple[Any, Any] | Any  # Any: as a collection
SystemLike = Index | RunLike


@dataclass(frozen=True, repr=False, kw_only=True)
class Complementarity(Summary):
    """The queries that each of two systems answers with a relevant document in its top hits.

    Attributes:
        cells: qid, cell, of each query with a relevant document: `both`, `only NAME`, or `neither`.
        sets: numbers of these queries; D is the first system.
        names: of the systems.
    """

    cells: pl.DataFrame
    sets: Sets
    names: tuple[str, str]

    def plot(self) -> alt.LayerChart:
        """Return an area-proportional Venn diagram."""
        from hybrid_cli.reporting.venn import chart_of

        return chart_of(self.sets, self.names)


def compare(
    systems: Mapping[str, SystemLike],
    data: DataLike,
    split: str | None = None,
    measures: Sequence[str] = MEASURES,
    *,
    k: int = HITS,
    **options: Any,
) -> Summary:
    """Compare systems on judged queries: means, intervals and significance tests, as `hybrid evaluate` computes them.

    Args:
        systems: name -> index or retriever, which is searched; run, as for `evaluate`; or path of one of them.
        data: collection, its path, or a pair of queries and judgments, as `search` and `evaluate` take them.
        split: split of the collection; None by default, for a collection with one split.
        measures: names such as `nDCG@10`; `MRR@10`, `nDCG@10`, `R@100` and `R@1000` by default.
        k: hits per query of a system that is searched; 1000 by default.
        options: of `hybrid evaluate`, such as `baseline` (by default the first system), `test`, `correction`, `seed`
            and `relevance_level`.

    Returns:
        A result that shows itself in a notebook; `frame` has a row per system, measure and baseline; `plot()`,
        `to_markdown()` and `to_latex(caption, label, p_values)` are further forms.

    Raises:
        InputError: an unknown measure or split, something that is no system, or a system without a judged query.

    Example:
        >>> from hybrid_cli import compare
        >>> runs = {"first": {"q": {"a": 2.0, "b": 1.0}}, "second": {"q": {"b": 1.0}}}
        >>> compare(runs, ({}, {"q": {"b": 1}}), measures=["MRR@10"]).frame["mean"].to_list()
        [0.5, 1.0]
    """
    with _on_disk(systems, data, split, k) as (inputs, chosen):
        return evaluate(inputs, split=chosen, measure=measures, **options)


@named_keywords
def complementarity(
    first: SystemLike,
    second: SystemLike,
    data: DataLike,
    split: str | None = None,
    *,
    k: int = 10,
    names: tuple[str, str] | None = None,
    relevance_level: int = LEVEL,
) -> Complementarity:
    """Count the queries that both, one, or neither of two systems answers with a relevant document in its top hits.

    Args:
        first, second: index or retriever, run, or path of one of them.
        data: collection, its path, or a pair of queries and judgments.
        split: split of the collection; None by default, for a collection with one split.
        k: top hits; 10 by default.
        names: of the systems; None by default: `bm25` and `dense` of such indexes, else `first` and `second`.
        relevance_level: lowest relevant grade; 1 by default.

    Returns:
        A result that shows itself in a notebook. `frame` has the counts, shares, ratios of complementarity (RoC) and
        their intervals; `cells` the cell of each query with a relevant document; `plot()` draws a Venn diagram.

    Raises:
        InputError: as for `compare`, or no query has a relevant document.

    Example:
        >>> from hybrid_cli import complementarity
        >>> first, second = {"q1": {"a": 1.0}, "q2": {"a": 1.0}}, {"q1": {"b": 1.0}, "q2": {"a": 1.0}}
        >>> found = complementarity(first, second, ({}, {"q1": {"a": 1}, "q2": {"a": 1}}))
        >>> found.cells.rows()
        [('q1', 'only first'), ('q2', 'both')]
    """
    one, other = (getattr(system, "system", None) for system in (first, second))
    pair = names or ((one, other) if one and other and one != other else ("first", "second"))
    if isinstance(pair, str) or len(set(pair)) != 2:
        raise InputError("names: needs two different names", code="invalid-name", option="names")
    with _on_disk(dict(zip(pair, (first, second), strict=True)), data, split, k) as (inputs, chosen):
        measured = evaluate(inputs, split=chosen, measure=[f"Success@{k}"], relevance_level=relevance_level)
        qrels = read_qrels(qrels_path(Path(inputs[0]), chosen))
    relevant = qrels.filter(pl.col("relevance") >= relevance_level)
    values = measured.values.join(relevant, on="qid", how="semi", maintain_order="left")
    wide = values.pivot(on="run", index="qid", values="value", maintain_order=True)
    if wide.is_empty():
        raise InputError("the judgments: no query has a relevant document", code="nothing-relevant")
    labels = {(1, 1): "both", (1, 0): f"only {pair[0]}", (0, 1): f"only {pair[1]}", (0, 0): "neither"}
    cells = wide.select("qid", cell=pl.Series([labels[row] for row in wide.select(pair).iter_rows()]))
    one, other = (wide.select("qid", rank=pl.when(pl.col(name) > 0).then(k)) for name in pair)
    cut = sets(one, other, k)
    study = {**vars(Summary.of_study(answered(cut, *pair))), "values": values}
    return Complementarity(**study, cells=cells, sets=cut, names=pair)


def over_seeds(results: Sequence[Summary], **options: Any) -> Summary:
    """Combine the results of several seeds, as `hybrid evaluate --study over-seeds` does.

    Args:
        results: of `compare`, or of `complementarity`: one per seed, with the same names of systems and queries. A
            system with equal values in all results, such as BM25, counts as one seed.
        options: `baseline` (none by default), `roc_against`, `test`, `correction` and `seed` of `hybrid evaluate`.

    Returns:
        A result whose `frame` has mean, standard deviation over the seeds and number of seeds; for RoC, the bootstrap
        interval of each share over the queries.

    Raises:
        InputError: no results, or results of different kinds or queries.

    Example:
        >>> from hybrid_cli import compare, over_seeds
        >>> data = {}, {"q": {"b": 1}}
        >>> runs = {"q": {"b": 1.0}}, {"q": {"a": 2.0, "b": 1.0}}
        >>> seeds = [compare({"mine": run}, data, measures=["MRR"]) for run in runs]
        >>> over_seeds(seeds).frame.select("mean", "seeds").rows()
        [(0.75, 2)]
    """
    given = results if isinstance(results, list | tuple) and all(isinstance(each, Summary) for each in results) else ()
    measured = {(type(each), *each.values.select("run", "measure", "qid").rows()) for each in given}
    if len(measured) != 1 or measured == {(Summary,)}:
        problem = "over_seeds: needs a list of results of one function, of equal systems, measures and queries"
        raise InputError(problem, code="other-results")
    settings = Evaluate(["results"], study="over-seeds", **Evaluate.by_field(options))
    pair = results[0].names if isinstance(results[0], Complementarity) else ()
    against = pair[::-1] or [name for name in [settings.roc_against] if name]
    return Summary.of_study(studies.over_results([result.values for result in results], settings, against, not pair))


def train(model: str | Path = MODEL, data: Any = None, *, method: str = TrainDense.command, **options: Any) -> Encoder:
    """Train an encoder in memory, and return it; the weights are those of the command on the same examples.

    Args:
        model: start model: minilm by default, a folder, or a Hugging Face id.
        data: a collection (`open_collection`), whose negatives are mined, or whose labels are made, in the call;
            examples: dictionaries with `query`, `positive` and `negatives` (a list), texts or dictionaries with `text`
            and maybe `title`, `docid` and `teacher_score`; a data frame of such rows; or the path of training examples.
        method: `train-dense` by default, `distill-lite` or `train-lambda`.
        options: options of the command of this name, such as `loss`, `steps`, `seed` and `dtype`; of a collection also
            those of `mine-negatives` or `label`, such as `split` ("train" by default), `sources` or `max_queries`.
            `index` may be an index of BM25 in memory, `scorer` also an encoder or another index,
            `teacher` an encoder or a reranker, `callback` one or several objects of `Callback`, and `dev` a split, or
            queries and judgments.

    Returns:
        The trained encoder.

    Raises:
        InputError: unusable data, model or options, or a loss without its inputs.

    Example:
        >>> from hybrid_cli import train
        >>> examples = [{"query": "wrap a cell", "positive": "Wrap text in a cell.", "negatives": ["Render a bar."]}]
        >>> trained = train("minilm", examples, steps=1, batch_size=1)
        >>> trained.encode_queries(["progress"]).shape
        (1, 384)
    """
    with require_packages():
        from hybrid_cli.session.in_memory import train as trained

    return trained(model, data, method, options)


@named_keywords
def save(index: Index, path: str | os.PathLike[str]) -> Path:
    """Write an index or a retriever of Python as the commands write it; `open_index` and `open_retriever` open it.

    Documents of a table are written as a collection, and an encoder in memory as a model, next to an index: `PATH` and
    `-collection` or `-encoder`. A retriever is a folder with `collection`, an index of each side, and `retriever`.

    Args:
        index: of `BM25().index`, `Dense(...).index`, or a `Retriever` of such indexes.
        path: the new folder.

    Returns:
        The folder.

    Raises:
        InputError: another kind of index, or a path that exists with other content.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> from hybrid_cli import BM25, open_index, save
        >>> with TemporaryDirectory() as folder:
        ...     made = save(BM25().index(["salt in sea water", "oxygen in the blood"]), f"{folder}/bm25")
        ...     hits = open_index(made).search("salt")
        >>> hits["text"].to_list()
        ['salt in sea water']
    """
    folder = Path(path)
    if not isinstance(index, Retriever):
        return _save(index, folder, folder.with_name(f"{folder.name}-collection"))
    sides = [_save(side, folder / name, folder / "collection") for name, side in index.sides.items()]
    recipe, output = index.recipe, folder / "retriever"
    how: dict[str, Any] = {"missing": recipe.missing, "normalize": recipe.normalization, "depth": index.depth}
    how |= {"rrf_k": recipe.rrf_k} if recipe.method == "rrf" else {}
    compose(sides, method=recipe.method, weights=list(recipe.weights), output=output, **how)
    return folder


def _save(index: Index, path: Path, collection: Path) -> Path:
    """Write one index, and its documents if they are of no collection."""
    known = index.known
    if not isinstance(known, KnownTable) or not isinstance(index, LexicalIndex | DenseIndex):
        problem = f"save: {type(index).__name__} has no documents in memory; save indexes of `BM25` and `Dense`"
        raise InputError(problem, code="other-kind")
    with tempfile.TemporaryDirectory() as scratch:
        if known.collection is not None:
            collection = known.collection.path
        elif not collection.exists():
            known.table.write_parquet(file := Path(scratch) / "documents.parquet")
            columns = known.table.drop("docid", "title", "text").columns
            prepare(PrepareFiles([file], metadata=columns, output=collection))
        if isinstance(known.maker, BM25):
            options: dict[str, Any] = vars(known.maker)
            return index_bm25(collection, output=path, lucene=False, **options)
        vectors, ids, model = Path(scratch) / "vectors.npy", Path(scratch) / "ids.txt", known.maker.encoder
        assert isinstance(index, DenseIndex)
        np.save(vectors, index.vectors_of(np.arange(len(index.docids))))
        disk.write_text(ids, "\n".join(index.docids) + "\n")
        if hasattr(model, "save") and hasattr(model, "encode_queries"):
            model.save(folder := path.with_name(f"{path.name}-encoder"))
            model = folder
        named: dict[str, Any] = {}
        if isinstance(model, str | os.PathLike):
            weights = str(getattr(getattr(known.maker.encoder, "backbone", None), "dtype", ""))
            precision = {"torch.bfloat16": "bf16", "torch.float16": "fp16"}.get(weights, "fp32")
            named = {"model": os.fspath(model), "dtype": precision}
        return encode(collection, from_vectors=vectors, ids=ids, output=path, **named)


@contextmanager
def _on_disk(
    systems: Mapping[str, SystemLike], data: DataLike, split: str | None, k: int
) -> Iterator[tuple[list[str], str | None]]:
    """Yield the inputs of `evaluate` and the split; errors name the systems, not their files."""
    if not isinstance(systems, Mapping) or not systems or not all(name and "=" not in str(name) for name in systems):
        problem = "systems: needs a dictionary of names, without `=`, and systems"
        raise InputError(problem, code="invalid-name", system="systems")
    data = open_collection(data) if isinstance(data, str | os.PathLike) else data
    data = (data, data) if hasattr(data, "qrels_iter") else data  # of ir_datasets
    with tempfile.TemporaryDirectory() as folder:
        files = {f"{folder}/{number}.parquet": str(name) for number, name in enumerate(systems)}
        inputs, chosen, name = [f"{folder}/qrels.parquet"], None, "systems"
        if isinstance(data, Collection):
            inputs, chosen = [str(data.path)], split
        elif hasattr(data, "qrels") or (isinstance(data, tuple) and len(data) == 2 and split is None):
            qrels = data[1] if isinstance(data, tuple) else data.qrels(split)
            qrels_table(qrels).write_parquet(inputs[0])
        else:
            problem = (
                f"data: is {type(data).__name__}; pass a collection, its path, or (queries, qrels) without a split"
            )
            raise InputError(problem, code="other-type", option="data")
        try:
            for (file, name), system in zip(files.items(), systems.values(), strict=True):
                if isinstance(system, Index):
                    queries = data[0] if isinstance(data, tuple) else data.queries(split)
                    hits = system.runs(queries_table(queries), checked_depth(k))
                elif not isinstance(system, str | os.PathLike):
                    hits = iter([run_table(system, name)])
                else:
                    inputs.append(f"{name}={os.fspath(system)}")
                    continue
                rows = (block.select(SCHEMAS[Kind.RUN].names).to_arrow() for block in hits)
                storage.write_parquet(Path(file), rows, SCHEMAS[Kind.RUN], Manifest(Kind.RUN, "search", {}, {}))
                inputs.append(f"{name}={file}")
            name = "systems"
            yield inputs, chosen
        except InputError as error:
            message, fields = str(error), {key: files.get(str(value), value) for key, value in error.fields.items()}
            for file, name in files.items():
                message = message.replace(file, name)
            raise InputError(message, code=error.code, **{"system": name, **fields}) from None
