"""Settings of evaluating, reporting, inspecting and exporting."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import KW_ONLY
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

from hybrid_cli.errors import InputError
from hybrid_cli.evaluation.options import (
    ANSWER_MATCH,
    LEVEL,
    MEASURES,
    AnswerMatch,
    Correction,
    Significance,
    SignificanceTest,
)
from hybrid_cli.settings.base import Settings, settings
from hybrid_cli.settings.common import (
    MEASURE,
    Budgeted,
    MayWrite,
    NameOrPath,
    Overwrites,
    ReadsFiles,
    Seeded,
    Writes,
    as_names,
)
from hybrid_cli.settings.fusion import FUSION
from hybrid_cli.settings.options import GIVEN, REQUIRED, argument, inherited, option, redeclare, scope, when

Format = Literal["table", "json", "csv", "markdown", "latex"]
Engine = Literal[  # search engines, in `exports.engines`
    "opensearch", "elasticsearch", "vespa", "qdrant", "milvus", "lancedb", "parquet"
]  # fmt: skip
ExportFormat = Literal[
    "trec", "msmarco", "dpr", "sentence-transformers", "hub", "pyserini", "anserini", "folder", Engine
]  # fmt: skip

ANALYSIS = "Analysis"
MEASURED, TESTS, COMPLEMENT, STUDIES = "Measures", "Significance", "Complementarity", "Studies"
SEVERAL_RUNS = "two or more runs"  # fact
ACC = "acc@k"  # fact: a measure that searches texts for answers is among the measures
_measure_option = partial(option, panel=MEASURED)


@settings()
class Comparison(Budgeted, Seeded):
    """Options that `evaluate` and `report` share: inputs, measures, significance tests."""

    inputs: Sequence[NameOrPath] = argument(
        (),
        "A collection or qrels file, then runs (Parquet, TREC or MS MARCO; `name=path` names one) or retrievers. The "
        "default collection is that of the runs.",
    )
    _: KW_ONLY
    retriever: Sequence[Path] = option(
        (), "Retrievers: each is searched for the queries of the collection, and its run is measured with the others.",
        recorded=False
    )  # fmt: skip
    split: str | None = option(None, "Split of the collection.")
    qrels: Path | None = option(None, "Qrels; replaces the collection among the inputs.")
    measures: Sequence[str] = _measure_option(
        MEASURES, "Measures in the spelling of trec_eval or ir_measures.", "--measures", "-m", parse=MEASURE
    )
    relevance_level: int = _measure_option(
        LEVEL, "Lowest grade that counts as relevant.", "--relevance-level", "-l", minimum=1
    )
    remove_query: bool | None = _measure_option(
        None, "Remove hits whose docid is the qid (BEIR: ArguAna, Quora).", "--remove-query/--keep-query",
        shown="remove them if the queries of the collection are documents of its corpus", recorded=False
    )  # fmt: skip
    residual_qrels: Path | None = _measure_option(
        None,
        "Qrels of an earlier round: remove these documents of each query from runs and judgments before measuring "
        "(residual collection; TREC-COVID).",
    )
    answer_match: AnswerMatch = _measure_option(ANSWER_MATCH, "acc@k: matching of answers.", applies=when(measured=ACC))
    queries: Path | None = _measure_option(
        None, "Texts and answers of the queries, if not those of the collection or of the runs."
    )
    corpus: Path | None = _measure_option(
        None, "Texts of the documents, if not those of the collection or of the runs."
    )
    baseline: Sequence[str] = option(
        (), "Runs that the others are tested against.", panel=TESTS, shown="the runs of --complement, or the first run"
    )
    test: SignificanceTest = option(
        Significance.test, "Significance test: paired t-test, or sign-flip permutation test.", panel=TESTS,
        applies=when(compared=SEVERAL_RUNS)
    )  # fmt: skip
    correction: Correction = option(
        Significance.correction, "Correction over the comparisons of one measure.", panel=TESTS,
        applies=when(compared=SEVERAL_RUNS)
    )  # fmt: skip
    complement: tuple[str, str] | None = option(
        None, "Two runs, by name or path, to compare: shows the queries that only one of them answers.",
        metavar="DENSE SPARSE", panel=COMPLEMENT
    )  # fmt: skip
    show_queries: int = option(
        5, "Number of queries shown that a run hurts most, and that it helps most.", minimum=0, panel=COMPLEMENT
    )

    def check(self) -> None:
        """Refuse a command without runs."""
        super().check()
        if not self.inputs and not self.retriever:
            raise InputError(
                "missing argument INPUTS: a collection (or --qrels FILE), then at least one run or retriever",
                code="missing-option", option="inputs",
            )  # fmt: skip

    def values(self) -> dict[str, Any]:
        """Return every field by name, and whether there are several runs, which can be tested."""
        return {**super().values(), "compared": SEVERAL_RUNS if self._has_several_runs() else ""}

    def _has_several_runs(self) -> bool:
        runs = len(self.inputs) - (self.qrels is None) + len(self.retriever)
        return runs > 1 or self.complement is not None


_SINGLE = when(aggregate=False, agreement=False)  # one collection
_MEANS = when(aggregate=False, agreement=False, machine=None, answerable=False)  # means of runs, which are compared
_DRAWS = (
    when(**_MEANS.allowed, over_seeds=False),
    when(**_MEANS.allowed, baseline=GIVEN),
)
_TESTED = tuple(when(**condition.allowed, compared=SEVERAL_RUNS) for condition in _DRAWS)
_TEXTS = (when(measured=ACC, aggregate=False, agreement=False), when(complement=GIVEN), when(answerable=True))


@settings()
class Evaluate(MayWrite, Comparison):
    """Measure runs, with confidence intervals and significance tests.

    pytrec_eval computes the binary measures. Means are over all judged queries; a query without hits scores 0. Hits are
    ordered by the rank column. Measures: MRR@k, nDCG@k, MAP@k, P@k, R@k (recall), Success@k, Rprec, Bpref, ERR@k, RBP,
    Judged@k; acc@k is the share of questions with an answer in the texts of the top k hits. The spellings `recip_rank`,
    `ndcg_cut_10` and `AP(rel=2)` are accepted too.

    `--complement` compares a dense and a sparse run: queries answered by only one of them, and queries hurt by fusion.
    `--robustness` measures the loss under attacks on the queries. `--over-seeds` prints means and standard deviations
    over seeds. `--aggregate` prints means over collections. `--machine` corrects means by a machine's judgments.
    `--answerable` measures queries without an answer.
    """

    command = "evaluate"
    panel = ANALYSIS
    examples = (
        "hybrid evaluate data/pydocs --split test out/bm25.parquet out/clear.parquet --measures MRR@10,nDCG@10,R@100",
        "hybrid evaluate data/pydocs --split test out/bm25.parquet --retriever out/retriever",
        "hybrid evaluate data/pydocs --split test out/clear.parquet --complement out/dense.parquet out/bm25.parquet",
        "hybrid evaluate data/pydocs --split test bm25=out/bm25.parquet bm25@shuffle=out/shuffled.parquet --robustness",
        "hybrid evaluate data/pydocs --split test clear-1=out/1.parquet clear-2=out/2.parquet --over-seeds",
        "hybrid evaluate out/clear.parquet",
        "hybrid evaluate --qrels human.tsv --machine machine.tsv out/bm25.parquet out/dense.parquet",
        "hybrid evaluate data/mine --split dev out/retriever --answerable",
        "hybrid evaluate --agreement anna.tsv ben.tsv",
        "hybrid evaluate --aggregate scifact=out/scifact.parquet cqadupstack/gis=out/gis.parquet",
    )

    scopes = scope(_SINGLE, Comparison)

    inputs: Sequence[NameOrPath] = inherited()
    _: KW_ONLY
    measures: Sequence[str] = inherited(applies=when(answerable=False))
    baseline: Sequence[str] = inherited(applies=_MEANS)
    test: SignificanceTest = inherited(applies=_TESTED)
    correction: Correction = inherited(applies=_TESTED)
    seed: int = inherited("Random seed of the bootstrap and of the permutation test.", applies=_DRAWS)
    queries: Path | None = inherited(applies=_TEXTS)
    corpus: Path | None = inherited(applies=_TEXTS)
    complement: tuple[str, str] | None = inherited(
        applies=when(robustness=False, over_seeds=False, aggregate=False, agreement=False)
    )
    show_queries: int = inherited(applies=when(complement=GIVEN, form=("table", "json", "markdown")))
    condensed: bool = _measure_option(
        False, "Remove documents without a judgment from the lists before measuring (condensed lists).",
        applies=when(complement=None, aggregate=False, agreement=False, answerable=False)
    )  # fmt: skip
    retriever: Sequence[Path] = inherited(applies=_SINGLE)
    overlap_with: str | None = option(
        None, "Run, by name or path: adds the rank-biased overlap of each run with this run.", panel=COMPLEMENT,
        applies=_MEANS, recorded=False
    )  # fmt: skip
    robustness: bool = option(
        False, "Compare runs of attacked queries, named SYSTEM@ATTACK, with the run named SYSTEM.", panel=STUDIES,
        applies=when(over_seeds=False, complement=None, aggregate=False, agreement=False)
    )  # fmt: skip
    over_seeds: bool = option(
        False, "Print one row per ROW of the runs named ROW-SEED, with mean and standard deviation over the seeds. "
        "--baseline then names rows; its default is none.", panel=STUDIES,
        applies=when(robustness=False, complement=None, aggregate=False, agreement=False)
    )  # fmt: skip
    aggregate: bool = option(
        False,
        "Inputs are files of `--output`, `name=file` for each collection; parts of one (COLLECTION/PART) are averaged "
        "first.",
        panel=STUDIES, recorded=False
    )  # fmt: skip
    agreement: bool = option(
        False, "Inputs are judgments of several people: prints the agreement of every two, and their conflicts.",
        panel=STUDIES, recorded=False, excluded=when(aggregate=True)
    )  # fmt: skip
    machine: Path | None = option(
        None, "Qrels of a machine (`judge --llm`): prints its agreement with the judgments of people, and means that "
        "these correct.", panel=STUDIES,
        applies=when(robustness=False, over_seeds=False, complement=None, aggregate=False, agreement=False, output=None)
    )  # fmt: skip
    answerable: bool = option(
        False, "Print the risk of wrong first hits at every coverage, and the false hits of queries without a relevant "
        "document.", panel=STUDIES,
        applies=when(
            robustness=False, over_seeds=False, complement=None, aggregate=False, agreement=False, machine=None,
            output=None
        )
    )  # fmt: skip
    roc_against: str | None = option(
        None, "Row: adds the RoC of each row against this row, at the cutoff of Success@k among the measures.",
        panel=STUDIES, applies=when(over_seeds=True)
    )  # fmt: skip
    form: Format = option("table", "Format of the printed result.", "--format", recorded=False)
    output: Path | None = inherited("Parquet file for the values of all queries.", applies=_SINGLE)

    def _has_several_runs(self) -> bool:
        return self.aggregate or super()._has_several_runs()  # a file of `--output` has the values of several runs


@settings()
class GateInputs(Overwrites, Comparison):
    """The comparison behind `gate`: of one run, which may be searched first."""

    command = "gate"


@settings()
class Gate(ReadsFiles, Budgeted):
    """Check that retrieval quality has not dropped since a baseline, for continuous integration.

    Searches the queries and compares every value with the baseline, a small JSON file to commit. Exit code 1: a drop
    beyond --max-drop is significant (one-sided sign-flip test, p < .05, Holm over the measures); the ten queries that
    lost most are printed with their hits before and after. Exit code 3: the queries or judgments are not those of the
    baseline. Exit code 0: no evidence of a drop; the smallest drop that the queries can detect is printed.
    """

    command = "gate"
    panel = ANALYSIS
    examples = (
        "hybrid gate out/retriever data/mine --split test --baseline quality.json --write",
        "hybrid gate out/retriever data/mine --split test --baseline quality.json --max-drop .02",
        "hybrid gate out/run.parquet --measure nDCG@10,R@100 --baseline quality.json --format json",
    )

    system: Path = argument(REQUIRED, "A retriever, the folder of `auto`, an index, or a run.")
    collection: Path | None = argument(
        None, "Collection with the judgments; by default that of the indexes or the run."
    )
    _: KW_ONLY
    baseline: Path = option(REQUIRED, "JSON file with the values of the baseline.")
    write: bool = option(False, "Write the baseline, or renew it, and print how the means change.")
    split: str | None = redeclare(Comparison, "split")
    qrels: Path | None = option(None, "Qrels in place of the collection.", excluded=when(collection=GIVEN))
    queries: Path | None = redeclare(Comparison, "queries")
    corpus: Path | None = redeclare(Comparison, "corpus")
    measure: Sequence[str] = _measure_option(
        (), "Measures in the spelling of trec_eval or ir_measures.", "--measure", "-m", parse=MEASURE,
        shown="those of the baseline, or nDCG@10"
    )  # fmt: skip
    max_drop: float = option(
        0.01, "Tolerance: drop of a mean that passes.", minimum=0, maximum=1, applies=when(write=False), panel=TESTS
    )
    form: Literal["text", "json"] = option("text", "Format of the printed result.", "--format")
    summary: Path | None = option(None, "Markdown file that the result is appended to.")


@settings()
class Report(Writes, Comparison):
    """Write an HTML page that compares runs.

    The page is self-contained and opens offline. It starts with a summary in sentences, followed by the measures with
    intervals and tests, recall at every depth, area-proportional Venn diagrams of two runs, a scatter plot of all
    queries, a comparison of any two runs query by query, means of query groups, learning curves, and index size
    against quality. Sections without data are omitted. Without --complement, the two compared runs are the only run of
    a dense index and the only run of a lexical index.
    """

    command = "report"
    panel = ANALYSIS
    examples = (
        "hybrid report data/pydocs --split test out/bm25.parquet out/dense.parquet out/clear.parquet "
        "--output out/report.html",
        "hybrid report out/mine --qrels judgments.tsv --output out/report.html",
    )

    _: KW_ONLY
    show_queries: int = inherited(default=10)
    model: Sequence[NameOrPath] = option(
        (), "Encoder whose learning curve is shown, in addition to the encoders of the runs (`name=folder` names it).",
        metavar="FOLDER"
    )  # fmt: skip
    index: Sequence[str] = option(
        (), "Index of a run whose manifest records no index; may be repeated.", metavar="RUN=FOLDER", recorded=False
    )
    reranked: Sequence[NameOrPath] = option(
        (), "Folder written by `rerank --depths`, one per first stage: adds quality and cost by rescored hits "
        "(`name=folder` names it).", metavar="FOLDER"
    )  # fmt: skip
    png: Path | None = option(None, "Folder for the figures as PNG files.")


@settings()
class Inspect(Budgeted, MayWrite):
    """Describe an artifact and its inputs, or compare the memory of indexes.

    Prints kind, stage, options, counts, library versions, size on disk, first rows, an encoder's contract, the last
    values of a learning curve, and the tree of inputs; inputs that have changed or are missing are marked.

    With --memory-table, prints one row per run: bytes read by a search, recall, accuracy, and latency of encoding,
    search and fusion (p50 and p95 of single queries on one thread, 100 hits).
    """

    command = "inspect"
    panel = ANALYSIS
    examples = (
        "hybrid inspect out/clear.parquet",
        "hybrid inspect bm25=out/bm25.parquet dense=out/dense.parquet --memory-table data/pydocs --split test",
    )

    paths: Sequence[NameOrPath] | NameOrPath = argument(
        REQUIRED, "An artifact, or any file or folder. With --memory-table: runs (`name=path` names one)."
    )
    _: KW_ONLY
    memory_table: Path | None = option(
        None, "Compare the indexes of the runs on the queries of this collection (LITE, table 2).", metavar="COLLECTION"
    )
    split: str | None = option(None, "Split of the collection.", applies=when(memory_table=GIVEN))
    form: Literal["text", "json"] = option("text", "Format of the printed result.", "--format", recorded=False)
    output: Path | None = inherited("Parquet file for the memory table.", applies=when(memory_table=GIVEN))
    memory: int | None = inherited(applies=when(memory_table=GIVEN))


@settings()
class Verify(Settings):
    """Compare artifacts and their inputs with the fingerprints and checksums of their manifests.

    Reads every file, also those that a search does not check: files over 1 GiB, and Lucene's. Inputs are found through
    the manifests and verified too. Exit code 1 if a file is damaged; inputs that changed or are missing are marked.

    With --engine, compares the top ten of a retriever with those of an engine into which its `hybrid export` was
    loaded. Exit code 1 if they differ although the engine computes the same formula.
    """

    command = "verify"
    panel = ANALYSIS
    examples = (
        "hybrid verify out/clear.parquet out/clear-index",
        "hybrid verify out",
        "hybrid verify out/retriever --engine qdrant:out/qdrant-data --split test",
    )

    paths: Sequence[Path] = argument(
        REQUIRED, "Artifacts, or folders that contain artifacts. With --engine: one retriever."
    )
    _: KW_ONLY
    engine: str | None = option(
        None, "Engine, and path or URL: qdrant:FOLDER, milvus:FILE.db, lancedb:FOLDER, or NAME:URL of a server, such "
        "as opensearch:http://localhost:9200/documents.", metavar="NAME:ADDRESS"
    )  # fmt: skip
    split: str | None = option(None, "Split whose queries are asked.", applies=when(engine=GIVEN))
    collection: Path | None = option(
        None, "Collection of the queries.", applies=when(engine=GIVEN), shown="that of the indexes"
    )
    form: Literal["table", "json"] = option("table", "Format of the printed result.", "--format", recorded=False)


RUN, QRELS = "a run", "qrels"  # facts: kind of the exported artifact
ENGINES: tuple[Engine, ...] = get_args(Engine)


_HUB = when(form="hub")


def _repository(text: str) -> str:
    """Return the name of a repository of the hub."""
    if not re.fullmatch(r"[\w-][\w.-]*/[\w-][\w.-]*", text, re.ASCII):
        raise ValueError("needs OWNER/NAME")
    return text


@settings()
class Export(Budgeted, Writes):
    """Convert an artifact to the format of another tool.

    `trec`: a run with strictly decreasing scores, so that trec_eval keeps its order; or qrels. `msmarco`: a run as qid,
    pid, rank. `dpr`: a run as the JSON of DPR's retriever, with texts and has_answer. `sentence-transformers`: an
    encoder. `hub`: an encoder with a model card, for the Hugging Face hub. `pyserini`: a dense index that FaissSearcher
    opens. `opensearch`, `elasticsearch`, `vespa`, `qdrant`, `milvus`, `lancedb`, `parquet`: the documents of a lexical
    index with BM25, and with the vectors of `--dense`; of a retriever also its fusion in the words of the engine, with
    what the engine computes differently. `anserini`: the weights of a lexical index as JSON lines, for Anserini's
    impact search; of BM25 and DeepCT the counts, for its BM25. `folder`: a retriever with its indexes, encoders and
    texts, which opens on another machine. A retriever has the formats of its indexes too; its fusion is written to
    `fusion.json`.
    """

    command = "export"
    panel = ANALYSIS
    examples = (
        "hybrid export out/clear.parquet --format trec --output out/clear.trec",
        "hybrid export out/bm25 --dense out/clear-index --format vespa --output out/vespa",
        "hybrid export out/retriever --format opensearch --collection data/mine --split test --output out/opensearch",
        "hybrid export out/retriever --format folder --output out/shipped",
        "hybrid export out/clear --format hub --license apache-2.0 --output out/clear-hub",
    )

    path: Path = argument(REQUIRED, "A run, qrels, an encoder, an index or a retriever.")
    _: KW_ONLY
    form: ExportFormat = option(REQUIRED, "Format to write.", "--format")
    collection: Path | None = option(
        None, "Texts, questions and answers.", applies=when(form=("dpr", *ENGINES)), shown="for an index, its corpus"
    )
    split: str | None = option(
        None, "Split of the collection. For an engine, its queries are written; judged ones measure the fusion.",
        applies=when(form=("dpr", *ENGINES))
    )  # fmt: skip
    qrels: Path | None = option(
        None, "Judgments of the queries, which measure the fusion.", applies=when(form=ENGINES, split=GIVEN),
        shown="those of the split"
    )  # fmt: skip
    dense: Path | None = option(
        None, "Dense index of the same documents.", applies=when(form=ENGINES, artifact="a lexical index")
    )  # fmt: skip
    model: str | None = option(
        None, "Query encoder; required if the encoder has moved since indexing.",
        applies=when(form=ENGINES, dense=GIVEN, split=GIVEN), recorded=False
    )  # fmt: skip
    hits: int | None = option(
        None, "Hits written per query.", "--hits", "-k", minimum=1, shown="all",
        applies=when(form=("trec", "msmarco", "dpr"), artifact=RUN)
    )  # fmt: skip
    memory: int | None = inherited(applies=when(form=("trec", "msmarco", "dpr"), artifact=RUN))
    tag: str = option("hybrid", "Last column of a TREC run.", applies=when(form="trec", artifact=RUN))
    license: str | None = option(
        None, "License in the model card, by its identifier on the hub: `apache-2.0`.", applies=_HUB
    )
    measurements: Path | None = option(
        None, "Measurements for the model card, written by `evaluate --output`.", applies=_HUB
    )
    push: str | None = option(
        None, "Upload the folder to this repository of the Hugging Face hub; a new one is private.",
        metavar="OWNER/NAME", parse=_repository, applies=_HUB, recorded=False
    )  # fmt: skip


@settings()
class Doctor(Settings):
    """Check the requirements of hybrid on this machine, and print installation commands for missing ones."""

    command = "doctor"
    panel = ANALYSIS
    examples = ("hybrid doctor",)


TWO_RUNS = "two runs"  # fact
PERSON, MACHINE = "a person", "a machine"  # facts: who judges
BY_MACHINE = "Judging by a machine"
TIMEOUT = 60.0  # seconds
_machine_option = partial(option, panel=BY_MACHINE, recorded=False)


def _rater(text: str) -> str:
    """Return the name of a person who judges."""
    from hybrid_cli.collections.journal import is_rater

    if not is_rater(text):
        raise ValueError("is no name of a person in one word")
    return text


@settings()
class Judge(ReadsFiles, Budgeted, Seeded):
    """Judge the pooled hits of runs in the terminal, one key per hit.

    The first hits of all runs are shown in random order, without their run, rank or score. Grades: 0 not relevant,
    1 partly relevant, 2 relevant, 3 fully relevant; measures count grades from 1 as relevant. Queries on which the runs
    disagree come first. Each answer is saved at once; the same command continues after an interruption. With two runs,
    the screen also shows the fusion weights within one standard error of the best.

    If standard input or output is not a terminal, answers are read from the lines of standard input.

    With --llm, --reranker or --command, a machine judges all pooled hits, those of three fusions of two runs too. Its
    name is in the output, so that its grades are not taken for those of people.

    A journal (.jsonl) keeps the answers of several people and machines, with reasons, times and changes. Every option
    that takes qrels takes it.
    """

    command = "judge"
    panel = FUSION
    examples = (
        "hybrid judge data/mine --split dev out/bm25.parquet out/dense.parquet --output judgments.tsv",
        "hybrid judge --retriever out/retriever --queries queries.txt --rater anna --output judgments.jsonl",
        "hybrid judge --retriever out/retriever --queries queries.txt --llm http://localhost:8000/v1 --model NAME "
        "--output machine.tsv",
        "hybrid judge data/mine --split dev out/bm25.parquet --stop-after 50 --order random --output judgments.tsv",
    )

    collection: Path | None = argument(
        None, "Collection with the texts of queries and documents; with --retriever, its own by default.",
        needed=when(retriever=None)
    )  # fmt: skip
    runs: Sequence[NameOrPath] = argument(
        (), "One or more runs (Parquet, TREC or MS MARCO; `name=path` names one).",
        needed=when(retriever=None, adjudicate=None),
        excluded=when(retriever=GIVEN)
    )  # fmt: skip
    _: KW_ONLY
    retriever: Path | None = option(
        None, "Retriever that is searched for the queries in place of runs: the hits of each of its indexes, and of "
        "their fusion, are judged."
    )  # fmt: skip
    queries: Path | None = option(
        None, "Queries in place of those of the collection; they may be a text file with a query per line."
    )
    output: Path = option(
        REQUIRED, "Journal (.jsonl) or qrels file (.tsv, .txt), extended by each answer; skipped hits of qrels go "
        "to OUTPUT.skipped.", "--output", "-o"
    )  # fmt: skip
    split: str | None = option(None, "Split of the collection.")
    stop_after: int = option(
        20, "Number of judged queries at which the command ends.", minimum=1, applies=when(judge=PERSON)
    )
    depth: int = option(5, "Hits pooled from each run.", minimum=1)
    order: Literal["disagreement", "random"] = option(
        "disagreement", "Order of the queries; `random` gives an unbiased sample for the scores of `hybrid evaluate`."
    )
    adjudicate: Sequence[Path] | None = option(
        None, "Judgments of several people, or their journal: only hits that they grade differently are shown.",
        metavar="FILE,...",
        recorded=False, excluded=(when(runs=GIVEN), when(retriever=GIVEN), when(llm=GIVEN)), applies=when(judge=PERSON)
    )  # fmt: skip
    rater: str | None = option(None, "Name of the person, for the output.", parse=_rater, applies=when(judge=PERSON))
    llm: str | None = _machine_option(
        None, "A model judges: base URL of a server with the OpenAI chat API (vLLM, Ollama, llama.cpp, OpenAI). A key "
        "is read from HYBRID_API_KEY.", metavar="URL", excluded=when(reranker=GIVEN)
    )  # fmt: skip
    model: str | None = _machine_option(
        None, "Name of the model on the server.", applies=when(llm=GIVEN), needed=when(llm=GIVEN)
    )
    guidelines: Path | None = _machine_option(
        None, "Text file with further rules for the model.", applies=when(llm=GIVEN)
    )
    timeout: float = _machine_option(
        TIMEOUT, "Seconds to wait for an answer of the server or command.", above=0,
        applies=(when(llm=GIVEN), when(program=GIVEN))
    )  # fmt: skip
    concurrency: int = _machine_option(4, "Calls at a time.", minimum=1, maximum=256, applies=when(llm=GIVEN))
    max_calls: int | None = _machine_option(
        None, "Most calls of the server, retries included.", minimum=1, applies=when(llm=GIVEN)
    )
    reranker: str | None = _machine_option(
        None, "A reranker judges: name or folder. Its scores become grades that are as frequent as those of --qrels.",
        excluded=when(program=GIVEN)
    )  # fmt: skip
    qrels: Path | None = _machine_option(
        None, "Judgments of people for queries of the collection.", applies=when(reranker=GIVEN),
        needed=when(reranker=GIVEN)
    )  # fmt: skip
    program: str | None = _machine_option(
        None, "A command judges: it reads a JSON line with id, query, title and text per hit, and writes one: "
        "{\"grade\": 2}.", "--command", metavar="COMMAND", excluded=when(llm=GIVEN)
    )  # fmt: skip
    measure: str = option(
        "nDCG@10", "Measure that chooses the weight shown with two runs.", parse=MEASURE,
        applies=when(compared=TWO_RUNS)
    )  # fmt: skip
    seed: int = inherited("Random seed of the order of queries and hits.")

    def values(self) -> dict[str, Any]:
        """Return every field by name, who judges, and whether there are, or may be, two runs with a weight."""
        two = self.retriever is not None or len(as_names(self.runs)) == 2
        machine = self.llm or self.reranker or self.program
        return {**super().values(), "compared": TWO_RUNS if two else "", "judge": MACHINE if machine else PERSON}
