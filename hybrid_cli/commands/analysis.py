"""Settings of evaluating, reporting, inspecting and exporting."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import Any, Literal

from hybrid_cli import plugins
from hybrid_cli.commands.common import MEASURE, QUALITY, START, TOOLS, Called, NameOrPath, as_names
from hybrid_cli.errors import InputError
from hybrid_cli.evaluation import options
from hybrid_cli.fusion.options import Tuning
from hybrid_cli.settings import MayWrite, Overwrites, ReadsFiles, Seeded, Settings, Writes
from hybrid_cli.settings.options import GIVEN, REQUIRED, argument, inherited, option, options_by, redeclare, scope, when
from hybrid_cli.settings.paths import OptionalPath, OptionalPaths, PathField

Format = Literal["table", "json", "csv", "markdown", "latex"]
Study = Literal["robustness", "over-seeds", "aggregate", "agreement", "answerable"]
FORMATS = ("trec", "msmarco", "dpr", "sentence-transformers", "hub", "pyserini", "anserini", "folder")

MEASURED, TESTS, COMPLEMENT, STUDIES = "Measures", "Significance", "Complementarity", "Studies"
SEVERAL_RUNS = "two or more runs"  # fact
ACC = "acc@k"  # fact: a measure that searches texts for answers is among the measures
_measure_option = partial(option, panel=MEASURED)


@dataclass(frozen=True)
class Comparison(Seeded):
    """Options that `evaluate` and `report` share: inputs, measures, significance tests.

    Attributes:
        inputs: A collection or qrels, by default of the runs; then runs (Parquet, TREC, MS MARCO; `name=path` names
            one), or retrievers, which are searched.
        split: Split of the collection.
        qrels: Qrels; replaces the collection among the inputs.
        measure: Measures in the spelling of trec_eval or ir_measures.
        relevance_level: Lowest grade that counts as relevant.
        remove_query: Remove hits whose docid is the qid (BEIR: ArguAna, Quora).
        residual_qrels: Qrels of an earlier round: remove these documents of each query from runs and judgments before
            measuring (residual collection; TREC-COVID).
        answer_match: acc@k: matching of answers.
        queries: Texts and answers of the queries, if not those of the collection or of the runs.
        corpus: Texts of the documents, if not those of the collection or of the runs.
        baseline: Runs that the others are tested against.
        test: Significance test: paired t-test, or sign-flip permutation test.
        correction: Correction over the comparisons of one measure.
        complement: Two runs, by name or path, to compare: shows the queries that only one of them answers.
        show_queries: Number of queries shown that a run hurts most, and that it helps most.
    """

    inputs: Sequence[NameOrPath] = argument(())
    _: KW_ONLY
    scopes = scope(when(measured=ACC), "answer_match") + scope(when(compared=SEVERAL_RUNS), "test", "correction")

    split: str | None = option(None)
    qrels: OptionalPath = option(None)
    measure: Sequence[str] = _measure_option(options.MEASURES, "--measure", "-m", parse=MEASURE)
    relevance_level: int = _measure_option(options.LEVEL, "--relevance-level", "-l", minimum=1)
    remove_query: bool | None = _measure_option(
        None,
        "--remove-query/--keep-query",
        shown="remove them if the queries of the collection are documents of its corpus",
        recorded=False,
    )
    residual_qrels: OptionalPath = _measure_option(None)
    answer_match: options.AnswerMatch = _measure_option(options.ANSWER_MATCH)
    queries: OptionalPath = _measure_option(None)
    corpus: OptionalPath = _measure_option(None)
    baseline: Sequence[str] = option((), panel=TESTS, shown="the runs of --complement, or the first run")
    test: options.SignificanceTest = option(options.Significance.test, panel=TESTS)
    correction: options.Correction = option(options.Significance.correction, panel=TESTS)
    complement: tuple[str, str] | None = option(None, metavar="DENSE SPARSE", panel=COMPLEMENT)
    show_queries: int = option(5, minimum=0, panel=COMPLEMENT)

    def check(self) -> None:
        """Refuse a command without runs."""
        super().check()
        if not self.inputs:
            problem = "missing argument INPUTS: a collection (or --qrels FILE), then at least one run or retriever"
            raise InputError(problem, code="missing-option", option="inputs")

    def values(self) -> dict[str, Any]:
        """Return every field by name, and whether there are several runs, which can be tested."""
        return {**super().values(), "compared": SEVERAL_RUNS if self._has_several_runs() else ""}

    def _has_several_runs(self) -> bool:
        return len(self.inputs) - (self.qrels is None) > 1 or self.complement is not None


_STUDIES = {
    "robustness": "loss of runs of attacked queries, named SYSTEM@ATTACK, against the run named SYSTEM",
    "over-seeds": "mean and deviation of the runs named ROW-SEED, one row per ROW, which `--baseline` then names",
    "aggregate": "means over collections, of files of `--output`, `name=file` each; parts (COLLECTION/PART) come first",
    "agreement": "agreement of judgments of several people, and their conflicts",
    "answerable": "risk of wrong first hits, and false hits of queries without a relevant document",
}
_RUNS = (None, "robustness", "over-seeds")
_ONE_COLLECTION = (*_RUNS, "answerable")
_TESTED = (when(study=(None, "robustness"), machine=None), when(study="over-seeds", baseline=GIVEN))
_TEXTS = (when(measured=ACC, study=_ONE_COLLECTION), when(complement=GIVEN), when(study="answerable"))


@dataclass(frozen=True)
class Evaluate(MayWrite, Comparison):
    """Measure runs, with confidence intervals and significance tests.

    pytrec_eval computes the binary measures. Means are over all judged queries; a query without hits scores 0. Hits are
    ordered by the rank column. Measures: MRR@k, nDCG@k, MAP@k, P@k, R@k (recall), Success@k, Rprec, Bpref, ERR@k, RBP,
    Judged@k; acc@k is the share of questions with an answer in the texts of the top k hits. The spellings `recip_rank`,
    `ndcg_cut_10` and `AP(rel=2)` are accepted too.

    `--complement` compares a dense and a sparse run: queries answered by only one of them, and queries hurt by fusion.
    `--machine` corrects means by a machine's judgments.

    Attributes:
        seed: Random seed of the bootstrap and of the permutation test.
        condensed: Remove documents without a judgment from the lists before measuring (condensed lists).
        overlap_with: Run, by name or path: adds the rank-biased overlap of each run with this run.
        study: Another result than the means of the runs.
        machine: Qrels of a machine (`judge --llm`): prints its agreement with the judgments of people, and means that
            these correct.
        roc_against: Row: `--study over-seeds` adds the RoC of each row against this row, at the cutoff of Success@k
            (by default 10).
        p_values: Print the corrected p-values against each baseline.
        form: Format of the printed result.
        output: Parquet file for the values of all queries.
    """

    command = "evaluate"
    panel = START
    examples = (
        "hybrid evaluate data/pydocs --split test out/bm25.parquet out/clear.parquet --measure MRR@10,nDCG@10,R@100",
        "hybrid evaluate data/pydocs --split test out/bm25.parquet out/retriever",
        "hybrid evaluate data/pydocs --split test out/clear.parquet --complement out/dense.parquet out/bm25.parquet",
        "hybrid evaluate data/pydocs --split test a=out/bm25.parquet a@shuffle=out/shuffled.parquet --study robustness",
        "hybrid evaluate data/pydocs --split test clear-1=out/1.parquet clear-2=out/2.parquet --study over-seeds",
        "hybrid evaluate out/clear.parquet",
        "hybrid evaluate --qrels human.tsv --machine machine.tsv out/bm25.parquet out/dense.parquet",
        "hybrid evaluate data/mine --split dev out/retriever --study answerable",
        "hybrid evaluate --study agreement anna.tsv ben.tsv",
        "hybrid evaluate --study aggregate scifact=out/scifact.parquet cqadupstack/gis=out/gis.parquet",
    )

    scopes = (
        scope(when(machine=None), "baseline", "overlap_with", "seed", "output")
        + scope(_TESTED, "test", "correction")
        + scope(_TEXTS, "queries", "corpus")
        + scope(when(complement=GIVEN, form=("table", "json", "markdown")), "show_queries")
        + scope(when(machine=None, complement=None), "condensed")
        + scope(when(machine=None, compared=SEVERAL_RUNS, form=("table", "markdown", "latex")), "p_values")
    )
    cases = options_by(
        "study",
        {
            _ONE_COLLECTION: ("split", "qrels", "relevance_level", "remove_query", "residual_qrels", "answer_match"),
            _RUNS: ("measure", "baseline", "test", "correction", "overlap_with", "condensed", "seed", "output"),
            None: ("complement", "machine", "p_values"),
            "over-seeds": ("roc_against",),
            ("aggregate", "agreement"): ("measure",),
        },
    )

    inputs: Sequence[NameOrPath] = inherited()
    _: KW_ONLY
    condensed: bool = _measure_option(False)
    overlap_with: str | None = option(None, panel=COMPLEMENT, recorded=False)
    study: Study | None = option(None, panel=STUDIES, choices=_STUDIES, recorded=False)
    machine: OptionalPath = option(None, panel=STUDIES)
    roc_against: str | None = option(None, panel=STUDIES)
    p_values: bool = option(False, panel=TESTS, recorded=False)
    form: Format = option("table", "--format", recorded=False)

    def _has_several_runs(self) -> bool:
        """A file of `--output`, an input of `--study aggregate`, has the values of several runs."""
        return self.study == "aggregate" or super()._has_several_runs()


@dataclass(frozen=True)
class Sweep(Seeded):
    """Compare set-ups of a retriever, and choose one.

    SETUPS is a YAML file of `NAME: {COMMAND: {OPTION: VALUE}}`. Commands are `prepare` (as `split_passages: 120`),
    `index-bm25`, `encode`, `compose` and `search` (as `queries: FILE`, rewritten ones); null leaves a side out, and an
    empty set-up is BM25 with minilm. Equal steps are done once, and an interrupted sweep resumes. A set-up is
    recommended over the first one only if it is better on queries that did not choose it.

    Attributes:
        setups: YAML file with two or more set-ups; the first one is the baseline.
        collection: Collection with documents, queries and judgments.
        split: Split of the collection.
        measure: Measure of the comparison.
        folds: Folds of the queries for the choice.
        output: Output folder: all steps, `sweep.json`, and the chosen `retriever`.
    """

    command = "sweep"
    panel = QUALITY
    examples = (
        "hybrid sweep setups.yaml data/mine --split dev --output out/sweep",
        "hybrid sweep setups.yaml data/mine --split dev --measure R@20 --output out/sweep",
    )

    setups: PathField = argument(REQUIRED)
    collection: PathField = argument(REQUIRED)
    _: KW_ONLY
    split: str | None = redeclare(Comparison, "split")
    measure: str = _measure_option("nDCG@10", "--measure", "-m", parse=MEASURE)
    folds: int = option(Tuning.folds, minimum=2)
    output: PathField = redeclare(Writes, "output")


@dataclass(frozen=True)
class GateInputs(Overwrites, Comparison):
    """The comparison behind `gate`: of one run, which may be searched first."""

    command = "gate"


@dataclass(frozen=True)
class Gate(ReadsFiles):
    """Check that retrieval quality has not dropped since a baseline, for continuous integration.

    Searches the queries and compares every value with the baseline, a small JSON file to commit. Exit code 1: a drop
    beyond --max-drop is significant (one-sided sign-flip test, p < .05, Holm over the measures); the ten queries that
    lost most are printed with their hits before and after. Exit code 3: the queries or judgments are not those of the
    baseline. Exit code 4: a mean fell beyond --max-drop, which may be chance. Exit code 0: no mean did; the smallest
    drop that the queries can detect is printed. Queries whose relevant documents were deleted are left out, by name.

    Attributes:
        system: A retriever, the folder of `auto`, an index, or a run.
        collection: Collection with the judgments; by default that of the indexes or the run.
        baseline: JSON file with the values of the baseline.
        write: Write the baseline, or renew it, and print how the means change.
        qrels: Qrels in place of the collection.
        measure: Measures in the spelling of trec_eval or ir_measures.
        max_drop: Tolerance: drop of a mean that passes.
        form: Format of the printed result.
        summary: Markdown file that the result is appended to.
    """

    command = "gate"
    panel = QUALITY
    examples = (
        "hybrid gate out/retriever data/mine --split test --baseline quality.json --write",
        "hybrid gate out/retriever data/mine --split test --baseline quality.json --max-drop .02",
        "hybrid gate out/run.parquet --measure nDCG@10,R@100 --baseline quality.json --format json",
    )

    system: PathField = argument(REQUIRED)
    collection: OptionalPath = argument(None)
    _: KW_ONLY
    scopes = scope(when(write=False), "max_drop")

    baseline: PathField = option(REQUIRED)
    write: bool = option(False)
    split: str | None = redeclare(Comparison, "split")
    qrels: OptionalPath = option(None, excluded=when(collection=GIVEN))
    queries: OptionalPath = redeclare(Comparison, "queries")
    corpus: OptionalPath = redeclare(Comparison, "corpus")
    measure: Sequence[str] = _measure_option(
        (), "--measure", "-m", parse=MEASURE, shown="those of the baseline, or nDCG@10"
    )
    max_drop: float = option(0.01, minimum=0, maximum=1, panel=TESTS)
    form: Literal["text", "json"] = option("text", "--format")
    summary: OptionalPath = option(None)


@dataclass(frozen=True)
class Report(Writes, Comparison):
    """Write an HTML page that compares runs.

    The page is self-contained and opens offline. It starts with a summary in sentences, followed by the measures with
    intervals and tests, recall at every depth, area-proportional Venn diagrams of two runs, a scatter plot of all
    queries, a comparison of any two runs query by query, means of query groups, learning curves, and index size
    against quality. Sections without data are omitted. Without --complement, the two compared runs are the only run of
    a dense index and the only run of a lexical index.

    Attributes:
        model: Encoder whose learning curve is shown, in addition to the encoders of the runs (`name=folder` names it).
        index: Index of a run whose manifest records no index; may be repeated.
        reranked: Folder written by `rerank --depth N,N`, one per first stage: adds quality and cost by rescored hits
            (`name=folder` names it).
    """

    command = "report"
    panel = QUALITY
    examples = (
        "hybrid report data/pydocs --split test out/bm25.parquet out/dense.parquet out/clear.parquet "
        "--output out/report.html",
        "hybrid report out/mine --qrels judgments.tsv --output out/report.html",
    )

    _: KW_ONLY
    show_queries: int = inherited(default=10)
    model: Sequence[NameOrPath] = option((), metavar="FOLDER")
    index: Sequence[str] = option((), metavar="RUN=FOLDER", recorded=False)
    reranked: Sequence[NameOrPath] = option((), metavar="FOLDER")


@dataclass(frozen=True)
class Inspect(MayWrite):
    """Describe an artifact and its inputs, verify artifacts, or compare the memory of indexes.

    Prints kind, stage, options, counts, library versions, size on disk, first rows, an encoder's contract, the last
    values of a learning curve, and the tree of inputs; inputs that have changed or are missing are marked.

    With --verify, reads every file of artifacts and of their inputs, also those that a search does not check: files
    over 1 GiB, and Lucene's. Exit code 1 if a file is damaged; inputs that changed or are missing are marked. With
    --engine too, compares the top ten of a retriever with those of an engine into which its `hybrid export` was loaded:
    exit code 1 if they differ although the engine computes the same formula.

    With --memory-table, prints one row per run: bytes read by a search, recall, accuracy, and latency of encoding,
    search and fusion (p50 and p95 of single queries on one thread, 100 hits).

    Attributes:
        paths: An artifact, or any file or folder. With --verify: artifacts, and folders that contain some; with
            --memory-table: runs (`name=path` names one).
        verify: Compare every file with the checksums and fingerprints of the manifests.
        engine: Engine to compare with: qdrant:FOLDER, or NAME:URL of a server, such as
            opensearch:http://localhost:9200/documents.
        collection: Collection of the queries.
        memory_table: Compare the indexes of the runs on the queries of this collection (LITE, table 2).
        split: Split of the collection.
        form: Format of the printed result.
        output: Parquet file for the memory table.
    """

    command = "inspect"
    panel = TOOLS
    examples = (
        "hybrid inspect out/clear.parquet",
        "hybrid inspect --verify out/clear.parquet out/clear-index",
        "hybrid inspect --verify out/retriever --engine qdrant:out/qdrant-data --split test",
        "hybrid inspect bm25=out/bm25.parquet dense=out/dense.parquet --memory-table data/pydocs --split test",
    )

    paths: Sequence[NameOrPath] | NameOrPath = argument(REQUIRED)
    _: KW_ONLY
    scopes = (
        scope(when(verify=True), "engine")
        + scope(when(engine=GIVEN), "collection")
        + scope(when(verify=False), "memory_table")
        + scope(when(memory_table=GIVEN), "output")
        + scope((when(memory_table=GIVEN), when(engine=GIVEN)), "split")
    )

    verify: bool = option(False)
    engine: str | None = option(None, metavar="NAME:ADDRESS")
    collection: OptionalPath = option(None, shown="that of the indexes")
    memory_table: OptionalPath = option(None, metavar="COLLECTION")
    split: str | None = option(None)
    form: Literal["text", "json"] = option("text", "--format", recorded=False)


RUN, QRELS = "a run", "qrels"  # facts: kind of the exported artifact
ENGINE = "a search engine"  # fact: whom the format is for
_HUB = when(form="hub")


def _formats() -> tuple[str, ...]:
    """Return the names of all formats; those of search engines are the entries of `exports.engine.ENGINES`."""
    return (*FORMATS, *plugins.registry("engines"))


@dataclass(frozen=True)
class Export(Writes):
    """Convert an artifact to the format of another tool.

    `trec`: a run with strictly decreasing scores, so that trec_eval keeps its order, and the name of the output in the
    last column; or qrels. `msmarco`: a run as qid,
    pid, rank. `dpr`: a run as the JSON of DPR's retriever, with texts and has_answer. `sentence-transformers`: an
    encoder. `hub`: an encoder with a model card, for the Hugging Face hub. `pyserini`: a dense index that FaissSearcher
    opens. `opensearch`, `elasticsearch`, `qdrant`, `parquet`, and engines of plugins: the documents of a lexical index
    with BM25, and with the vectors of `--dense`; of a retriever also its fusion in the words of the engine, with what
    the engine computes differently. `anserini`: the weights of a lexical index as JSON lines, for Anserini's
    impact search; of BM25 and DeepCT the counts, for its BM25. `folder`: a retriever with its indexes, encoders and
    texts, which opens on another machine.

    Attributes:
        path: A run, qrels, an encoder, an index or a retriever.
        form: Format to write.
        collection: Texts, questions and answers.
        split: Split of the collection. For an engine, its queries are written; judged ones measure the fusion.
        qrels: Judgments of the queries, which measure the fusion.
        dense: Dense index of the same documents.
        model: Query encoder; required if the encoder has moved since indexing.
        hits: Hits written per query.
        license: License in the model card, by its identifier on the hub: `apache-2.0`.
        measurements: Measurements for the model card, written by `evaluate --output`.
    """

    command = "export"
    panel = TOOLS
    examples = (
        "hybrid export out/clear.parquet --format trec --output out/clear.trec",
        "hybrid export out/bm25 --dense out/clear-index --format parquet --output out/parquet",
        "hybrid export out/retriever --format opensearch --collection data/mine --split test --output out/opensearch",
        "hybrid export out/retriever --format folder --output out/shipped",
        "hybrid export out/clear --format hub --license apache-2.0 --output out/clear-hub",
    )

    path: PathField = argument(REQUIRED)
    _: KW_ONLY
    scopes = (
        scope((when(form="dpr"), when(target=ENGINE)), "collection", "split")
        + scope(when(target=ENGINE, split=GIVEN), "qrels")
        + scope(when(target=ENGINE, artifact="a lexical index"), "dense")
        + scope(when(target=ENGINE, dense=GIVEN, split=GIVEN), "model")
        + scope(when(form=("trec", "msmarco", "dpr"), artifact=RUN), "hits")
        + scope(_HUB, "license", "measurements")
    )

    form: str = option(REQUIRED, "--format", choices=_formats)
    collection: OptionalPath = option(None, shown="for an index, its corpus")
    split: str | None = option(None)
    qrels: OptionalPath = option(None, shown="those of the split")
    dense: OptionalPath = option(None)
    model: str | None = option(None, recorded=False)
    hits: int | None = option(None, "--hits", "-k", minimum=1, shown="all")
    license: str | None = option(None)
    measurements: OptionalPath = option(None)

    def values(self) -> dict[str, Any]:
        """Return every field by name, and whether the format is that of a search engine."""
        return {**super().values(), "target": "" if self.form in FORMATS else ENGINE}


@dataclass(frozen=True)
class Doctor(Settings):
    """Check the requirements of hybrid on this machine, and print installation commands for missing ones."""

    command = "doctor"
    panel = TOOLS
    examples = ("hybrid doctor",)


TWO_RUNS = "two runs"  # fact
PERSON = "a person"  # fact: who judges
BY_MACHINE = "Judging by a machine"
_machine_option = partial(option, panel=BY_MACHINE, recorded=False)


def _rater(text: str) -> str:
    """Return the name of a person who judges."""
    from hybrid_cli.collections.journal import is_rater

    if not is_rater(text):
        raise ValueError("is no name of a person in one word")
    return text


@dataclass(frozen=True)
class Judge(Called, ReadsFiles, Seeded):
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

    Attributes:
        collection: Collection with the texts of queries and documents; that of a retriever may be left out.
        runs: Runs (Parquet, TREC or MS MARCO; `name=path` names one), or a retriever that is searched: hits of its
            indexes and of their fusion are judged.
        queries: Queries in place of those of the collection; they may be a text file with a query per line.
        output: Journal (.jsonl) or qrels file (.tsv, .txt), extended by each answer; skipped hits of qrels go to
            OUTPUT.skipped.
        split: Split of the collection.
        stop_after: Number of judged queries at which the command ends.
        depth: Hits pooled from each run.
        order: Order of the queries; `random` gives an unbiased sample for the scores of `hybrid evaluate`.
        adjudicate: Judgments of several people, or their journal: only hits that they grade differently are shown.
        rater: Name of the person, for the output.
        llm: A model judges: base URL of a server with the OpenAI chat API (vLLM, Ollama, llama.cpp, OpenAI). A key is
            read from HYBRID_API_KEY.
        model: Name of the model on the server.
        guidelines: Text file with further rules for the model.
        timeout: Seconds to wait for an answer of the server or command.
        concurrency: Calls at a time.
        max_calls: Most calls of the server, retries included.
        reranker: A reranker judges: name or folder. Its scores become grades that are as frequent as those of --qrels.
        qrels: Judgments of people for queries of the collection.
        program: A command judges: it reads a JSON line with id, query, title and text per hit, and writes one:
            {"grade": 2}.
        measure: Measure that chooses the weight shown with two runs.
        seed: Random seed of the order of queries and hits.
    """

    command = "judge"
    panel = START
    examples = (
        "hybrid judge data/mine --split dev out/bm25.parquet out/dense.parquet --output judgments.tsv",
        "hybrid judge out/retriever --queries queries.txt --rater anna --output judgments.jsonl",
        "hybrid judge out/retriever --queries queries.txt --llm http://localhost:8000/v1 --model NAME "
        "--output machine.tsv",
        "hybrid judge data/mine --split dev out/bm25.parquet --stop-after 50 --order random --output judgments.tsv",
    )

    collection: PathField = argument(REQUIRED)
    runs: Sequence[NameOrPath] = argument(())
    _: KW_ONLY
    scopes = scope(when(compared=TWO_RUNS), "measure")
    cases = options_by(
        "judge",
        {
            PERSON: ("stop_after", "adjudicate", "rater"),
            "--llm": ("model", "guidelines", "timeout", "concurrency", "max_calls"),
            "--command": ("timeout",),
            "--reranker": ("qrels",),
        },
    )

    queries: OptionalPath = option(None)
    output: PathField = option(REQUIRED, "--output", "-o")
    split: str | None = option(None)
    stop_after: int = option(20, minimum=1)
    depth: int = option(5, minimum=1)
    order: Literal["disagreement", "random"] = option("disagreement")
    adjudicate: OptionalPaths = option(None, metavar="FILE,...", recorded=False)
    rater: str | None = option(None, parse=_rater)
    llm: str | None = _machine_option(None, metavar="URL", excluded=(when(reranker=GIVEN), when(program=GIVEN)))
    model: str | None = _machine_option(None, needed=when(llm=GIVEN))
    guidelines: OptionalPath = _machine_option(None)
    reranker: str | None = _machine_option(None, excluded=when(program=GIVEN))
    qrels: OptionalPath = _machine_option(None, needed=when(reranker=GIVEN))
    program: str | None = _machine_option(None, "--command", metavar="COMMAND")
    measure: str = option("nDCG@10", parse=MEASURE)
    seed: int = inherited()

    def values(self) -> dict[str, Any]:
        """Return every field by name, who judges, and whether there are, or may be, two runs with a weight."""
        two = len(as_names(self.runs)) <= 2  # one may be a retriever, or none
        machines = {"--llm": self.llm, "--command": self.program, "--reranker": self.reranker}
        judge = next((flag for flag, value in machines.items() if value), PERSON)
        return {**super().values(), "compared": TWO_RUNS if two else "", "judge": judge}
