"""The commands of the panel "Analysis"."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from hybrid_cli import config
from hybrid_cli.cli.common import Output, Seed, Split, comma_separated, command
from hybrid_cli.errors import InputError

PANEL = "Analysis"

_EVALUATION = config.Evaluation()
_MEASURES = ",".join(_EVALUATION.measures)
_WHAT = "What is measured"
_TESTS = "Significance"
_BESIDE = "Complementarity"

_Runs = Annotated[
    list[str],
    typer.Argument(help="A collection, then runs (Parquet or TREC; `name=path` names one). With --qrels: runs only."),
]
_Measures = Annotated[
    str, typer.Option("--measures", "-m", help="Names as in trec_eval or ir_measures.", rich_help_panel=_WHAT)
]
_Level = Annotated[
    int, typer.Option("--relevance-level", "-l", min=1, help="Lowest relevant grade.", rich_help_panel=_WHAT)
]
_RemoveQuery = Annotated[
    bool, typer.Option("--remove-query", help="Leave out hits with their query's id.", rich_help_panel=_WHAT)
]
_AnswerMatch = Annotated[config.AnswerMatch, typer.Option(help="How acc@k finds answers.", rich_help_panel=_WHAT)]
_Answers = Annotated[
    Path | None,
    typer.Option(
        help="Answers and texts of queries, if not the collection's.", show_default=False, rich_help_panel=_WHAT
    ),
]
_Texts = Annotated[
    Path | None,
    typer.Option(help="Texts of documents, if not the collection's.", show_default=False, rich_help_panel=_WHAT),
]
_Baseline = Annotated[
    str | None,
    typer.Option(
        help="Runs to compare all with; if not given, those of --complement, or the first.",
        show_default=False,
        rich_help_panel=_TESTS,
    ),
]
_Test = Annotated[
    config.SignificanceTest, typer.Option(help="Which of the two tests marks the table.", rich_help_panel=_TESTS)
]
_Correction = Annotated[
    config.Correction, typer.Option(help="Over the comparisons of one measure.", rich_help_panel=_TESTS)
]
_Complement = Annotated[
    tuple[str, str] | None,
    typer.Option(
        metavar="DENSE SPARSE",
        help="Two runs, by name or path: what each finds alone.",
        show_default=False,
        rich_help_panel=_BESIDE,
    ),
]
_Changed = Annotated[
    int, typer.Option(min=0, help="Queries hurt and helped most that are shown.", rich_help_panel=_BESIDE)
]


_Qrels = Annotated[Path | None, typer.Option(help="Judgements, if not a collection's.", show_default=False)]


def register(app: typer.Typer) -> None:
    """Add this panel's commands to the application."""
    command(app, PANEL)(evaluate)
    command(app, PANEL)(report)
    command(app, PANEL, writes=False)(inspect)
    command(app, PANEL)(export)
    command(app, PANEL, writes=False)(doctor)


def evaluate(
    inputs: _Runs,
    split: Split = None,
    qrels: _Qrels = None,
    measures: _Measures = _MEASURES,
    relevance_level: _Level = _EVALUATION.relevance_level,
    remove_query: _RemoveQuery = False,
    answer_match: _AnswerMatch = _EVALUATION.answer_match,
    queries: _Answers = None,
    corpus: _Texts = None,
    baseline: _Baseline = None,
    test: _Test = _EVALUATION.test,
    correction: _Correction = _EVALUATION.correction,
    overlap_with: Annotated[
        str | None,
        typer.Option(
            help="A run, by name or path: every run's rank-biased overlap with it, as a measure.",
            show_default=False,
            rich_help_panel=_BESIDE,
        ),
    ] = None,
    complement: _Complement = None,
    changed: _Changed = config.Complementarity.changed,
    robustness: Annotated[
        bool,
        typer.Option("--robustness", help="Runs named SYSTEM@ATTACK beside SYSTEM: what attacks on the queries cost."),
    ] = False,
    form: Annotated[
        Literal["table", "json", "csv", "markdown"], typer.Option("--format", help="How to print the result.")
    ] = "table",
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Parquet file for the values of every query.", show_default=False),
    ] = None,
    seed: Seed = _EVALUATION.seed,
    overwrite: bool = False,
) -> None:
    """Measure runs, and test whether they differ.

    pytrec_eval judges. Means go over all judged queries, with 0 for those that a run misses. The rank column is the
    order. Measures: MRR@k, nDCG@k, MAP@k, P@k, R@k (recall), Success@k, Rprec, Bpref, Judged@k; acc@k is the share of
    questions with an answer among the texts of the first k hits. `recip_rank`, `ndcg_cut_10`, `AP(rel=2)` are
    understood too. `--complement` says what a dense run finds that BM25 does not, and which queries fusion hurts;
    `--overlap-with` how much each run's list is like BM25's. `--robustness` prints a row a system, a column an attack.

    Examples:

    `hybrid evaluate data/pydocs --split test out/bm25.parquet out/clear.parquet --measures MRR@10,nDCG@10,R@100`

    `hybrid evaluate data/pydocs --split test out/clear.parquet --complement out/dense.parquet out/bm25.parquet`

    `hybrid evaluate data/pydocs --split test --robustness bm25=out/bm25.parquet bm25@shuffle=out/shuffled.parquet`
    """
    from hybrid_cli.evaluation import robustness_view, summary
    from hybrid_cli.stages import evaluate as stage

    if robustness and complement:
        raise InputError("--robustness and --complement: ask for one at a time")
    common: dict[str, Any] = {
        "split": split,
        "qrels": qrels,
        "queries": queries,
        "corpus": corpus,
        "measures": comma_separated(measures),
        "relevance_level": relevance_level,
        "baselines": comma_separated(baseline),
        "test": test,
        "correction": correction,
        "answer_match": answer_match,
        "remove_query": remove_query,
        "overlap_with": overlap_with,
        "seed": seed,
        "output": output,
        "overwrite": overwrite,
    }
    if robustness:
        robustness_view.show(stage.robustness(inputs, **common), form)
    else:
        summary.show(stage.evaluate(inputs, complement=complement, changed=changed, **common), form)


def report(
    inputs: _Runs,
    output: Output,
    split: Split = None,
    qrels: _Qrels = None,
    measures: _Measures = _MEASURES,
    relevance_level: _Level = _EVALUATION.relevance_level,
    remove_query: _RemoveQuery = False,
    answer_match: _AnswerMatch = _EVALUATION.answer_match,
    queries: _Answers = None,
    corpus: _Texts = None,
    baseline: _Baseline = None,
    test: _Test = _EVALUATION.test,
    correction: _Correction = _EVALUATION.correction,
    complement: _Complement = None,
    changed: _Changed = config.Reporting.changed,
    model: Annotated[
        str | None,
        typer.Option(
            help="Encoders whose learning curves are shown, besides those that the runs come from.", show_default=False
        ),
    ] = None,
    index: Annotated[
        str | None,
        typer.Option(
            help="RUN=FOLDER, for runs whose manifests do not lead to their indexes; several with commas.",
            show_default=False,
        ),
    ] = None,
    png: Annotated[
        Path | None, typer.Option(help="A folder, where the figures will stand as pictures too.", show_default=False)
    ] = None,
    seed: Seed = _EVALUATION.seed,
    overwrite: bool = False,
) -> None:
    """Show what runs find, where they differ and why, on one HTML page.

    The page holds everything it needs and opens offline. It begins with the findings in plain words; then come the
    measures with intervals and tests, recall at every depth, area-true Venn diagrams of what two runs find, every query
    as a dot, the ranked lists of the queries that change most, means in groups of queries, learning curves, and index
    size against quality. Without --complement the two runs are the only one searched in a dense index and the only one
    searched in a lexical index.

    Example:

    `hybrid report data/pydocs --split test out/bm25.parquet out/dense.parquet out/clear.parquet -o out/report.html`
    """
    from hybrid_cli.stages import report as stage

    stage.report(
        inputs,
        output=output,
        split=split,
        qrels=qrels,
        queries=queries,
        corpus=corpus,
        measures=comma_separated(measures),
        relevance_level=relevance_level,
        baselines=comma_separated(baseline),
        test=test,
        correction=correction,
        answer_match=answer_match,
        remove_query=remove_query,
        complement=complement,
        changed=changed,
        models=comma_separated(model),
        indexes=comma_separated(index),
        png=png,
        seed=seed,
        overwrite=overwrite,
    )


def inspect(
    path: Annotated[Path, typer.Argument(help="An artifact, or any file or folder.")],
    form: Annotated[Literal["text", "json"], typer.Option("--format", help="How to print the result.")] = "text",
) -> None:
    """Say what an artifact is, and where it came from.

    Kind, stage, options, counts, library versions, bytes on disk, first rows; an encoder's contract; a learning curve's
    last values; and the tree of what it was made from, with a mark where an input has changed since or is gone.

    Example:

    `hybrid inspect out/clear.parquet`
    """
    from hybrid_cli.stages import inspect as stage

    stage.inspect(path, form=form)


def export(
    path: Annotated[Path, typer.Argument(help="A run, judgements, an encoder or a dense index.")],
    form: Annotated[
        Literal["trec", "msmarco", "dpr", "sentence-transformers", "pyserini"],
        typer.Option("--format", help="The form to write.", show_default=False),
    ],
    output: Output,
    collection: Annotated[
        Path | None, typer.Option(help="Texts, questions and answers, for `dpr`.", show_default=False)
    ] = None,
    split: Split = None,
    hits: Annotated[
        int | None, typer.Option("--hits", "-k", min=1, help="Documents of a query; all if not given.")
    ] = None,
    tag: Annotated[str, typer.Option(help="Last column of a TREC run.")] = "hybrid",
    overwrite: bool = False,
) -> None:
    """Write an artifact in the form of another tool.

    `trec`: a run whose scores fall strictly, so that trec_eval keeps its order; or judgements. `msmarco`: qid, pid,
    rank. `dpr`: the retriever's JSON, with texts and has_answer. `sentence-transformers`: an encoder's folder.
    `pyserini`: a folder that FaissSearcher opens.

    Example:

    `hybrid export out/clear.parquet --format trec --output out/clear.trec`
    """
    from hybrid_cli.stages import export as stage

    stage.export(
        path, form=form, output=output, collection=collection, split=split, hits=hits, tag=tag, overwrite=overwrite
    )


def doctor() -> None:
    """Look for what hybrid needs on this machine, and say what to type where it is missing.

    Example:

    `hybrid doctor`
    """
    from hybrid_cli.stages import doctor as stage

    stage.doctor()
