"""`auto`: the recommended path from documents to a hybrid, as a plan of other stages."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from hybrid_cli import artifacts, console, languages
from hybrid_cli.artifacts.indexes import model_input
from hybrid_cli.collections import collection as collections
from hybrid_cli.collections.options import PseudoQueries
from hybrid_cli.collections.pseudo_queries import count_usable
from hybrid_cli.collections.source import Document, Location, Source
from hybrid_cli.commands import (
    Auto,
    Compose,
    Encode,
    Evaluate,
    Fuse,
    IndexBm25,
    Judge,
    MineNegatives,
    PrepareFiles,
    Report,
    Search,
    Split,
    TrainDense,
)
from hybrid_cli.encoders.contract import read_contract, reads_english_only
from hybrid_cli.encoders.models import is_endpoint, resolve
from hybrid_cli.errors import option_error, path_error
from hybrid_cli.fusion.weights import read_tuned
from hybrid_cli.inputs.json_values import read_object
from hybrid_cli.reporting.summary import show
from hybrid_cli.reporting.terminal import show_verdict
from hybrid_cli.settings import Overwrites, Settings, command_line
from hybrid_cli.stages import call, stage
from hybrid_cli.training.dense import check_layers

JUDGED = "judged"  # split of the given queries
# Our choices. Fewer judged queries than MIN_TRAIN_QUERIES tune weights, but train nothing.
MIN_TRAIN_QUERIES, FOLDS = 200, 5
MOST_UNREAD = 0.5  # share of unread tokens above which documents are divided (studies/long-documents.md)
MANY_NAMES = 0.03  # share of compound names in all words: .15 in code, .06 in its documentation, .014 in articles
FEWEST_QUERIES = 50  # pseudo-queries of the documents; a fifth of them are measured
QUERY_LENGTH, DOCUMENT_LENGTH = 64, 128
BATCH, MAX_EPOCHS = 28, 3
MOST_STEPS = 300  # some minutes with the start model on two cores
DEV_QUERIES, DEV_NEGATIVES, VALIDATIONS = 100, 4, 2
_LATER_OUTPUTS = (  # patterns of what follows the collection, which is the first output
    *("pseudo", "folds", "train.parquet", "dev.parquet", "model", "weights.json", "report.html"),
    *(f"{prefix}{name}" for prefix in ("", "pseudo-") for name in ("bm25", "dense", "retriever")),
    *(f"{name}.*.parquet" for name in ("bm25", "dense", "hybrid")),
)
_OF_TRAINING = ("max_steps", "layers")  # options


@stage(Auto)
def auto(settings: Auto) -> Path:
    """Build a hybrid from documents: every artifact is in the output folder.

    Returns:
        Path of the report; of the output folder, without judgments and pseudo-queries.

    Raises:
        InputError: no such model, the documents cannot be read, the output folder has other artifacts of the same
            names, or a stage refuses its input.
    """
    artifacts.check_output_path(settings.output, {"model": model_input(settings.model)})
    if settings.layers is not None and (file := resolve(settings.model) / "config.json").is_file():
        check_layers(settings.layers, int(read_object(file).get("num_hidden_layers", settings.layers)))
    path = RecommendedPath(settings)
    if is_endpoint(settings.model) and (unfit := path.given(*_OF_TRAINING)):
        problem = f"{settings.model} is behind an API, and is not trained; omit it"
        raise option_error(next(iter(unfit)), None, problem, code="option-does-not-apply")
    path.check_outputs()
    try:
        return _follow(path)
    except artifacts.DryRun:
        text = "auto: the stages after this one depend on its output; without --dry-run, they follow"
        console.note(text, code="later-stages")
        raise


def _follow(path: RecommendedPath) -> Path:
    """Run all stages; return the report, or the output folder without judgments and pseudo-queries."""
    plan = path.prepared()
    documents = path.at("collection")
    if plan is None:
        path.run(path.lexical(documents))
        path.run(path.encode(documents, path.settings.model))
        path.run(path.composed(documents))
        _suggest_search(path, path.settings.output, judged=False)
        return path.settings.output
    pseudo = plan.train.collection == path.at("pseudo")
    for corpus in [documents, path.at("pseudo")] if pseudo else [documents]:
        path.run(path.lexical(corpus))
    model = path.trained(plan)
    for corpus in dict.fromkeys([path.documents(plan.tune), documents]):
        path.run(path.encode(corpus, model))
    single = [path.searched(plan.tune, name) for name in ("bm25", "dense")]
    weights = path.at("weights.json") if path.judged_tuning(plan) else None
    if weights is not None:
        indexes = [path.index(name, path.documents(plan.tune)) for name in ("bm25", "dense")]
        of: dict[str, Any] = {"qrels": plan.tune.collection, "split": plan.tune.split, "measure": path.settings.measure}
        named = [f"{name}={run}" for name, run in zip(("bm25", "dense"), single, strict=True)]
        path.run(Fuse(named, tune=True, index=indexes, output=weights, **of, **path.given("device", "threads")))
    for corpus in dict.fromkeys([path.documents(plan.tune), documents]):
        path.run(path.composed(corpus, weights))
    if plan.test != plan.tune:
        single = [path.searched(plan.test, name) for name in ("bm25", "dense")]
    hybrid = path.searched(plan.test, "retriever", "hybrid")
    return _compared(path, plan, {"bm25": single[0], "dense": single[1], "hybrid": hybrid})


def _compared(path: RecommendedPath, plan: AutoPlan, runs: dict[str, Path]) -> Path:
    """Print the comparison of the runs, and write the report."""
    inputs: Sequence[Path | str] = [plan.test.collection, *(f"{name}={run}" for name, run in runs.items())]
    measured = Evaluate(inputs, split=plan.test.split, baseline=["bm25", "dense"])
    show(path.run(measured), measured)
    report = path.at("report.html")
    path.run(Report(inputs, split=plan.test.split, baseline=["bm25", "dense"], output=report))
    judged = path.judged_tuning(plan)
    if judged and plan.test == plan.tune and not (tuned := read_tuned(path.at("weights.json"))).get("keeps_untuned"):
        show_verdict(tuned)  # of held-out queries: the weights were tuned on those that are measured
    _suggest_search(path, report, judged)
    return report


def _suggest_search(path: RecommendedPath, made: Path, judged: bool) -> None:
    """Print what was made, and the command of a search; without judgments, that of judging too."""
    retriever = path.settings.output
    command = shlex.join(["hybrid", "search", "--index", str(retriever), "--interactive"])
    console.note(f"\nauto: {made}; to search:\n{command}")
    if not judged:
        judging = Judge(retriever, queries=Path("queries.txt"), output=Path("judgments.tsv"), **path.given("measure"))
        console.note(
            "\nauto: no judgments, so the fusion is the default, and nothing was measured. Judge twenty of your own "
            "queries (a query per line in queries.txt); the command to tune the fusion on them follows:\n"
            + command_line(judging),
            code="no-judgments",
        )


@dataclass(frozen=True)
class PurposeQueries:
    """A collection and the split that one purpose reads."""

    collection: Path
    split: str


@dataclass(frozen=True)
class AutoPlan:
    """Queries by purpose; with `pseudo`, the weights are tuned on an index of the changed documents."""

    train: PurposeQueries
    dev: PurposeQueries
    tune: PurposeQueries
    test: PurposeQueries


@dataclass(frozen=True)
class RecommendedPath:
    """The stages of one call."""

    settings: Auto

    def run(self, made: Settings) -> Any:
        """Print the command of a stage, and run it; --overwrite holds for every stage that has it."""
        if self.settings.overwrite and isinstance(made, Overwrites) and getattr(made, "output", None) is not None:
            made = made.changed(overwrite=True)
        console.note(f"\n{command_line(made)}")
        with artifacts.keeping_equal_outputs():  # --overwrite resumes after an interruption
            return call(made)

    def given(self, *names: str) -> dict[str, Any]:
        """Return the options of `auto` that were set, for a stage with options of the same names."""
        return {name: getattr(self.settings, name) for name in names if name in self.settings.given}

    def at(self, name: str) -> Path:
        """Return the path of an artifact."""
        return self.settings.output / name

    def index(self, name: str, corpus: Path) -> Path:
        """Return `bm25` for the documents, `pseudo-bm25` for the documents without their pseudo-queries."""
        return self.at(name if corpus == self.at("collection") else f"{corpus.name}-{name}")

    def judged_tuning(self, plan: AutoPlan) -> bool:
        """Return whether judged queries tune the weights; those of pseudo-queries can be worse than equal weights."""
        return plan.tune.collection != self.at("pseudo")

    def documents(self, queries: PurposeQueries) -> Path:
        """Return the collection whose index serves these queries; folds share the documents of the collection."""
        return queries.collection if queries.collection == self.at("pseudo") else self.at("collection")

    def check_outputs(self) -> None:
        """Refuse a folder that holds outputs, but no collection: they are not those of an earlier call.

        Raises:
            InputError: names them.
        """
        if self.at("collection").exists():
            return
        later = sorted({str(path) for name in _LATER_OUTPUTS for path in self.settings.output.glob(name)})
        if later:
            problem = (
                f"{', '.join(later)}: not of an earlier call, since {self.at('collection')} is missing; choose another"
            )
            raise option_error("output", None, problem, code="foreign-output")

    # ------------------------------------------------------------------------------------------------- collections

    def prepared(self) -> AutoPlan | None:
        """Write the collections; return the queries of each purpose, or None without judgments and pseudo-queries.

        Raises:
            InputError: no document has text, or the judged queries are too many or useless.
        """
        documents, pseudo = self.at("collection"), self.at("pseudo")
        self._import(documents)
        texts = collections.scan(documents).select(pl.concat_str("title", "text").str.strip_chars().alias("text"))
        if texts.filter(pl.col("text") != "").head(1).collect().is_empty():
            raise path_error(documents, "every document is empty; check the source", code="no-text")
        self._propose_identifiers(collections.counts_of(documents).get("compound_names", 0))
        judged = self._judged(documents)
        if judged >= MIN_TRAIN_QUERIES:
            if self.settings.pseudo_queries is not None:
                problem = f"not with {MIN_TRAIN_QUERIES} judged queries; omit it"
                raise option_error("pseudo_queries", None, problem, code="option-does-not-apply")
            folds = self.at("folds")
            self.run(Split(documents, split=[JUDGED], folds=FOLDS, output=folds, **self.given("seed")))
            dev = PurposeQueries(folds, "dev-1")
            return AutoPlan(PurposeQueries(folds, "train-1"), dev, dev, PurposeQueries(folds, "test-1"))
        kind = self.settings.pseudo_queries
        if kind is None and self._trains_on_pseudo_queries:
            kind = self._kind(documents, judged)
        if kind is None:
            every = PurposeQueries(documents, JUDGED)
            return AutoPlan(every, every, every, every) if judged else None
        self.run(self._source(pseudo, kind))
        dev = PurposeQueries(pseudo, "dev")
        judged_queries = PurposeQueries(documents, JUDGED) if judged else dev
        return AutoPlan(PurposeQueries(pseudo, "train"), dev, judged_queries, judged_queries)

    def _propose_identifiers(self, share: float) -> None:
        """Print that names of program code are frequent in the documents, unless their parts are indexed anyway."""
        if share >= MANY_NAMES and "identifiers" not in self.settings.given:
            text = f"{share:.0%} of the words are names such as getUserById; --identifiers also indexes their parts"
            console.note(f"\nauto: {text}", code="identifiers-proposed", share=share)

    def _import(self, documents: Path) -> None:
        """Write the collection; divide documents that would lose over `MOST_UNREAD` of their tokens into passages.

        A later call repeats the choice of the first, which the manifest of the collection records.
        """
        if self.given("split_passages"):
            self.run(self._source(documents))
            return
        words = self._passage_words
        self.run(self._source(documents, words=words))
        length = self.document_length
        if words or length is None or (unread := self._unread(documents, length)) is None:
            return
        words = length // 2
        split = unread > MOST_UNREAD
        how = f"divided into passages of {words} words, and have the score of the best one" if split else "kept whole"
        text = f"the first {length} tokens of a document, which the encoder reads, leave out {unread:.0%} of all"
        text = f"\nauto: {text} tokens: documents are {how}; to choose: --doc-max-len, --split-passages"
        console.note(text, code="passages-chosen" if split else "whole-documents", words=words)
        if split:
            self.run(self._source(documents, words=words).changed(overwrite=True))

    @property
    def _passage_words(self) -> int | None:
        """Return the words of a passage in the collection that an earlier stage wrote; None without it or passages."""
        path = self.at("collection")
        made = artifacts.find_manifest(path) if path.exists() else None
        return None if made is None else made.options.get("split_passages")

    def _unread(self, documents: Path, length: int) -> float | None:
        """Return the share of the tokens of the documents that the start model does not read; None if unknown."""
        from hybrid_cli.encoders.models import open_encoder  # imports torch
        from hybrid_cli.indexes.shards import unread_share

        total = collections.document_count(documents)
        encoder = open_encoder(resolve(self.settings.model), overrides={"doc_max_len": length})
        return unread_share(documents, encoder, total) if total and hasattr(encoder, "unread_tokens") else None

    @property
    def _trains_on_pseudo_queries(self) -> bool:
        """Return whether an option asks for a training where there are too few judged queries for one.

        With judgments, pseudo-queries serve the training alone. Measured, such trainings made MiniLM worse
        (studies/no-labels.md).
        """
        judged = ("pseudo_queries",) if self.settings.qrels else ()
        return self.settings.max_steps != 0 and bool(self.given(*_OF_TRAINING, *judged))

    def _kind(self, documents: Path, judged: int) -> PseudoQueries | None:
        """Return the first kind with enough queries: titles if most documents have one, else sentences, then others.

        Without such a kind, warn about what is left out.
        """
        titled = collections.scan(documents).select((pl.col("title").str.strip_chars() != "").mean()).collect().item()
        kinds: list[PseudoQueries] = ["sentence", "first-sentence", "heading"]
        kinds.insert(0 if titled > 0.5 else len(kinds), "title")
        source = Source(documents.name, lambda: _documents(documents))
        counts: dict[PseudoQueries, int] = {}
        for kind in kinds:
            counts[kind] = count_usable(source, self._source(self.at("pseudo"), kind))
            few = ", ".join(f"{name} {count:,}" for name, count in counts.items() if count < FEWEST_QUERIES)
            if counts[kind] >= FEWEST_QUERIES:
                if few:
                    text = f"\nauto: --pseudo-queries {kind}, since other kinds give too few queries: {few}"
                    console.note(text, code="pseudo-queries-chosen")
                return kind
        left_out = "no training" if judged else "no training and no report"
        text = f"{left_out}: the documents give fewer than {FEWEST_QUERIES} pseudo-queries ({few}); pass judged queries"
        text = f"{text} (--queries and --qrels), {MIN_TRAIN_QUERIES} or more to train"
        console.warn(text, code="few-pseudo-queries")
        return None

    def _source(self, output: Path, pseudo: PseudoQueries | None = None, words: int | None = None) -> PrepareFiles:
        """Return the import of the documents: with the given queries, or with pseudo-queries.

        Args:
            output: path of the collection.
            pseudo: kind of the pseudo-queries.
            words: words of a passage, without the option.
        """
        given, passages = self.settings, self.given("split_passages", "passage_stride")
        passages |= {"split_passages": words} if words else {}
        if pseudo and self._passage_words:  # the passages give queries, and are relevant to them
            parts = collections.parts(self.at("collection"))
            return PrepareFiles(parts, pseudo_queries=pseudo, output=output, **self.given("seed"))
        if pseudo:
            rows = self.given("seed", "on_error", "on_duplicate", "document_columns", "header", "quoted")
            return PrepareFiles(given.documents, pseudo_queries=pseudo, output=output, **rows)
        queries = [f"{JUDGED}={given.queries}"] if given.queries else []
        qrels = [f"{JUDGED}={given.qrels}"] if given.qrels else []
        columns = (
            "document_columns",
            "metadata",
            "metadata_file",
            "query_columns",
            "qrels_columns",
            "header",
            "quoted",
        )
        rows = self.given("on_error", "on_duplicate", "on_dangling", *columns)
        return PrepareFiles(given.documents, queries=queries, qrels=qrels, output=output, **rows, **passages)

    def _judged(self, documents: Path) -> int:
        if self.settings.qrels is None:
            return 0
        qrels = collections.read_qrels(collections.qrels_path(documents, JUDGED))
        if not (qrels["relevance"] > 0).any():
            raise path_error(self.settings.qrels, "has no judgment above 0", code="no-judgments")
        return qrels["qid"].n_unique()

    # ---------------------------------------------------------------------------------------------------- training

    def trained(self, plan: AutoPlan) -> str:
        """Train the model, and return it; return the start model if nothing trains it."""
        if self.settings.max_steps == 0 or is_endpoint(self.settings.model):
            return self.settings.model
        if plan.train.collection == self.at("collection") and self._trains_on_pseudo_queries:  # no pseudo-queries
            return self.settings.model
        if plan.train.collection != self.at("folds") and not self._trains_on_pseudo_queries:
            text = f"the start model is used as it is, since a training needs {MIN_TRAIN_QUERIES} judged queries; pass"
            text = f"{text} --max-steps to train on pseudo-queries, which can make it worse (docs/own-documents.md)"
            console.note(f"\nauto: {text}", code="start-model-used", queries=MIN_TRAIN_QUERIES)
            return self.settings.model
        examples = self._mined(plan.train, "train.parquet")
        dev = self._mined(plan.dev, "dev.parquet", negatives=DEV_NEGATIVES)
        one_pass = -(-artifacts.read_manifest(examples).counts["rows"] // BATCH)
        steps = self.settings.max_steps or min(MAX_EPOCHS * one_pass, MOST_STEPS)
        if plan.train.collection == self.at("pseudo"):
            text = "training on pseudo-queries can lower quality (docs/own-documents.md); --max-steps 0 keeps the start"
            console.note(f"\nauto: {text} model", code="pseudo-queries-train", option="max_steps")
        training = TrainDense(
            examples,
            model=self.settings.model,
            query_max_len=QUERY_LENGTH,
            doc_max_len=DOCUMENT_LENGTH,
            batch_size=BATCH,
            max_steps=steps,
            output=self.at("model"),
            dev=dev,
            dev_queries=DEV_QUERIES,
            eval_steps=-(-steps // VALIDATIONS),
            **self.given("layers", "seed", "device", "threads"),
        )
        self.run(training)
        return str(self.at("model"))

    def _mined(self, queries: PurposeQueries, name: str, **more: Any) -> Path:
        index, output = self.index("bm25", self.documents(queries)), self.at(name)
        more |= self.given("threads", "seed")
        self.run(MineNegatives(queries.collection, split=queries.split, index=index, output=output, **more))
        return output

    # ---------------------------------------------------------------------------------------------------- retrieval

    def lexical(self, corpus: Path) -> IndexBm25:
        """Return the settings that index the words of a corpus."""
        return IndexBm25(
            corpus, output=self.index("bm25", corpus), lucene=False, **self.given("threads", "identifiers")
        )

    @property
    def document_length(self) -> int | None:
        """Return the tokens of a document that an index reads: the length of the start model, or the option.

        None for a model behind an API, which nothing is known of.
        """
        if is_endpoint(self.settings.model):
            return None
        return self.settings.doc_max_len or read_contract(resolve(self.settings.model)).doc_max_len

    def encode(self, corpus: Path, model: str) -> Encode:
        """Return the settings that encode a corpus."""
        lengths = self.given("doc_max_len")
        if (length := self.document_length) is not None:
            lengths = {"query_max_len": QUERY_LENGTH, "doc_max_len": length, **self.given("device")}
        return Encode(
            corpus,
            model=model,
            output=self.index("dense", corpus),
            **lengths,
            **self.given("threads"),
        )

    def composed(self, corpus: Path, weights: Path | None = None) -> Compose:
        """Return the settings that compose both indexes of a corpus: with tuned weights, or as the default."""
        indexes = [self.index(name, corpus) for name in ("bm25", "dense")]
        given = self.given("device", "threads") | ({} if weights else self.given("seed"))
        tuned = None if weights is None else f"@{weights}"
        if tuned is None and self._dense_is_blind(corpus):
            tuned = "1,0"
            console.note("\nauto: the encoder cannot read most documents, so BM25 alone ranks", code="bm25-alone")
        return Compose(indexes, weights=tuned, output=self.index("retriever", corpus), **given)

    def _dense_is_blind(self, corpus: Path) -> bool:
        """Return whether the start model is English, and most documents are not."""
        language = languages.majority(collections.languages_of(corpus))
        return language != languages.ENGLISH and reads_english_only(resolve(self.settings.model))

    def searched(self, queries: PurposeQueries, name: str, run: str = "") -> Path:
        """Search `bm25`, `dense` or `retriever`; return the run, which has the name of the index or `run`."""
        index, output = self.index(name, self.documents(queries)), self.at(f"{run or name}.{queries.split}.parquet")
        more = self.given("threads") if name == "bm25" else self.given("threads", "device")
        self.run(Search(queries.collection, split=queries.split, index=index, output=output, **more))
        return output


def _documents(path: Path) -> Iterator[Document]:
    """Yield the documents of a collection."""
    for batch in collections.documents(path):
        for row in batch.to_pylist():
            yield Document(row["docid"], row["title"], row["text"], Location(path, 0, "document"))
