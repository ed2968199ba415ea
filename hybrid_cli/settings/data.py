"""Settings of importing collections."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY
from pathlib import Path
from typing import Any, ClassVar

from hybrid_cli.collections import options
from hybrid_cli.collections.options import (
    DELIMITED,
    RESERVED,
    SGML,
    SGML_TOPICS,
    TEXT_FILES,
    OnDangling,
    OnDuplicate,
    OnError,
    PseudoQueries,
    SampleFrom,
    is_column_name,
)
from hybrid_cli.errors import option_error
from hybrid_cli.plugins import Registry
from hybrid_cli.settings.base import settings
from hybrid_cli.settings.common import OnCluster, Seeded, Writes
from hybrid_cli.settings.options import GIVEN, REQUIRED, argument, inherited, option, scope, when
from hybrid_cli.settings.signature import settings_of

_QRELS = when(qrels=GIVEN, pseudo_queries=None)
_ASCII = bytes(range(9, 11)) + bytes(range(32, 127))

DATA = "Data"
SAMPLE, PASSAGES, PSEUDO = "Sample", "Passages", "Pseudo-queries"


def text_encoding(name: str) -> str:
    """Return the name of an encoding; refuse one in which line ends and tags are not the bytes of ASCII."""
    try:
        usable = _ASCII.decode(name) == _ASCII.decode("ascii")
    except (LookupError, ValueError):
        usable = False
    if not usable:
        raise ValueError("unknown, or no extension of ASCII; use one such as utf-8 or latin-1, or convert the files")
    return name


@settings(kw_only=True)
class Prepare(Seeded, Writes, options.Import):
    """A command that imports a collection; all sources have these options.

    Attributes:
        reader: reader of a plugin, a function of its own options; None for ours, which are in `collections/readers`.
    """

    reader: ClassVar[Callable[..., Any] | None] = None

    scopes = (
        scope(when(split_passages=GIVEN), "passage_stride")
        + scope(when(pseudo_queries=GIVEN), "pseudo_train", "pseudo_dev", "seed")
        + scope(when(sample=GIVEN), "seed")
        + scope(when(sample_queries=GIVEN), "seed")
    )

    sample: int | None = option(
        None,
        "Keep a random sample of N documents that includes all documents judged relevant for the queries; judgments of "
        "documents outside of the sample are dropped.",
        metavar="N",
        panel=SAMPLE,
        minimum=1,
        shown="all documents",
    )
    sample_queries: Mapping[str, int] = option(
        {}, "Keep at most N random queries of a split.", metavar="SPLIT=N", panel=SAMPLE, minimum=1, shown="all queries"
    )
    split_passages: int | None = option(
        None,
        "Split documents into passages of N words, named DOCID#0, DOCID#1, ...; judgments hold for all passages of a "
        "document. See `concat-runs --max-per`.",
        metavar="N",
        panel=PASSAGES,
        minimum=1,
        shown="whole documents",
        recorded=False,
        excluded=when(on_duplicate=("first", "last")),
    )
    passage_stride: int | None = option(
        None,
        "Words between the starts of two passages.",
        metavar="N",
        panel=PASSAGES,
        minimum=1,
        shown="their length, without overlap",
        recorded=False,
    )
    pseudo_queries: PseudoQueries | None = option(
        None,
        "Take a query out of every document: its title, first sentence, a random sentence or heading. Queries of the "
        "source are omitted.",
        panel=PSEUDO,
        recorded=False,
        excluded=when(on_duplicate="last"),
    )
    pseudo_train: int = inherited("Maximum number of training queries.", panel=PSEUDO, minimum=0)
    pseudo_dev: int = inherited(
        "Maximum number of dev queries; with training queries, at most a fifth of all.", panel=PSEUDO, minimum=1
    )
    seed: int = inherited(
        "Random seed of the sample and of the pseudo-queries.",
    )


@settings(kw_only=True)
class PrepareRows(Prepare, options.Rows):
    """A source whose rows may repeat or contradict each other."""

    scopes = scope(when(pseudo_queries=None), "on_dangling")

    on_duplicate: OnDuplicate = inherited(
        "Rows with the same id: stop with an error, keep the first row, or keep the last row."
    )
    on_dangling: OnDangling = inherited(
        "Judgments of unknown documents or queries: stop with an error, drop the judgments, or keep them.",
    )


@settings(kw_only=True)
class PrepareDocumentFiles(OnCluster, PrepareRows):
    """A source that may have its documents in several files."""

    ray_address: str | None = inherited(
        "Read the files of documents on the Ray cluster at this address: `10.0.0.1:6379`, `auto` (on this machine), or "
        "`local` (start one)."
    )
    ray_workers: int = inherited("Files read on the Ray cluster at a time, each on one core and in memory.")


@settings(kw_only=True)
class PreparePythonDocs(Prepare, options.PythonDocs):
    """Make a retrieval task from the docstrings of installed packages.

    A query is the first paragraph of a docstring; the document with the rest of the docstring is relevant. The source
    files of numpy, scipy, sklearn and pandas are parsed, never imported. Queries are split into train, dev and test.
    """

    command = "prepare python-docs"
    panel = DATA
    examples = (
        "hybrid prepare python-docs --output data/pydocs",
        "hybrid prepare python-docs --package rich --only --output data/rich",
    )

    scopes = scope(when(package=GIVEN), "only")

    package: Sequence[str] = option((), "Additional packages, named as in `import`.", recorded=False)
    only: bool = option(False, "Read the packages of `--package` only.", recorded=False)
    seed: int = inherited("Random seed of the splits, the sample and the pseudo-queries.", applies=())


@settings()
class PrepareFiles(PrepareDocumentFiles, options.Files):
    """Import TSV, CSV, JSON lines or Parquet files with a row per document, query and judgment, or text files.

    A folder has a document in each text file (`.txt`, `.md`, `.rst`, `.html`), at any depth: the id is the path in the
    folder, the title a heading at the beginning of the text. HTML pages are read without scripts and navigation.

    The columns are found by their usual names (`docid`, `title`, `text`, `qid`, `query`, `relevance`, ...) and printed.
    Those of JSON lines are the names of all lines. In a file without a header, documents and queries have two columns
    (id, text), judgments three (query id, document id, relevance) or the four of TREC; columns of other files need
    their numbers, from 1.

    A text file of queries without tabs has a query per line, whose ids are the line numbers.

    The split of queries and judgments is named by the option (`dev=FILE`) or by the file (`qrels.dev.tsv`). Other
    queries belong to the splits with their judgments, other judgments to the split of the queries if there is one file
    of each, else to the split `test`.
    """

    command = "prepare files"
    panel = DATA
    examples = (
        "hybrid prepare files docs.csv --queries queries.tsv --qrels qrels.tsv --output data/mine",
        "hybrid prepare files handbook/ --on-error skip --output data/handbook",
        "hybrid prepare files articles.parquet --document-columns id=url,text=body --queries dev=questions.csv "
        "--qrels dev=judgments.csv --output data/articles",
    )

    documents: Sequence[Path] = argument(
        REQUIRED, "Files of documents, HTML pages, or folders of text files (.txt, .md, .rst, .html), a document each."
    )
    _: KW_ONLY
    scopes = (
        scope(when(queries=GIVEN), "query_columns")
        + scope(when(qrels=GIVEN), "qrels_columns")
        + scope(_QRELS, "on_dangling")
        + scope(when(inputs=DELIMITED), "header", "quoted")
        + scope(when(documents_form=TEXT_FILES), "on_error")
    )

    queries: Sequence[str] = option((), "Files of queries.", metavar="[SPLIT=]FILE", recorded=False)
    qrels: Sequence[str] = option((), "Files of judgments.", metavar="[SPLIT=]FILE", recorded=False)
    document_columns: Mapping[str, str] = option(
        {},
        "Columns of documents: `id`, `title`, `text`; any other name adds a field for `index-bm25 --fields`.",
        metavar="FIELD=COLUMN",
        shown="by their names",
    )
    metadata: Sequence[str] = option(
        (),
        "Columns of documents that are stored for `search --filter`, or `all`: texts, numbers, true and false.",
        metavar="COLUMN,...",
        recorded=False,
    )
    query_columns: Mapping[str, str] = option(
        {},
        "Columns of queries: `id`, `text`, `answers`.",
        metavar="FIELD=COLUMN",
        shown="by their names",
        choices=("id", "text", "answers"),
    )
    qrels_columns: Mapping[str, str] = option(
        {},
        "Columns of judgments: `qid`, `docid`, `relevance`.",
        metavar="FIELD=COLUMN",
        shown="by their names",
        choices=("qid", "docid", "relevance"),
    )
    header: bool | None = option(
        None, "The first row of TSV and CSV files names the columns.", shown="if it contains a usual name"
    )
    quoted: bool | None = option(None, "Fields of TSV and CSV files may be in double quotes.", shown="CSV files only")
    on_error: OnError = inherited(
        "Text files and HTML pages that cannot be read, as those not in UTF-8: stop with an error, or skip them."
    )

    def check(self) -> None:
        """Refuse files of queries as documents, and names that `index-bm25 --fields` cannot take."""
        super().check()
        for option_name in ("queries", "qrels"):
            astray = [path for path in self.documents if Path(path).name.startswith(f"{option_name}.")]
            if astray and getattr(self, option_name):
                reason = "was passed as documents; repeat the option for each file, or separate files by commas"
                raise option_error(option_name, astray[0], reason, code="other-role", path=astray[0])
        for option_name, names in (("document_columns", self.other_fields), ("metadata", self.metadata)):
            if wrong := [name for name in names if not is_column_name(name)]:
                reason = f"needs a name of letters, digits and '_', other than {', '.join(RESERVED)}"
                raise option_error(option_name, wrong[0], reason, code="invalid-name")
        if repeated := [name for name in self.metadata if [*self.metadata, *self.other_fields].count(name) > 1]:
            raise option_error("metadata", repeated[0], "name each column and field once", code="repeated-value")
        if self.pseudo_queries is not None and self.other_fields:
            reason = f"not with the field '{self.other_fields[0]}', which may repeat the query"
            others = ("document_columns",)
            raise option_error("pseudo_queries", None, reason, code="conflicting-options", others=others)


@settings()
class PrepareBeir(PrepareRows, options.Beir):
    """Import a BEIR folder.

    Each file in `qrels/` is a split. Queries without judgments form the split `unjudged`.
    """

    command = "prepare beir"
    panel = DATA
    examples = (
        "hybrid prepare beir scifact --output data/scifact",
        "hybrid prepare beir nq --sample 100000 --output data/nq-100k",
    )

    folder: Path = argument(REQUIRED, "Folder with corpus.jsonl, queries.jsonl and qrels/SPLIT.tsv.")


@settings()
class PrepareMsmarco(PrepareDocumentFiles, options.Msmarco):
    """Import the files of MS MARCO, versions 1 and 2.

    Version 2 has JSON lines in a folder of files: passages are imported with their id `pid`, documents with title and
    body.
    """

    command = "prepare msmarco"
    panel = DATA
    examples = (
        "hybrid prepare msmarco collection.tsv --queries dev=queries.dev.small.tsv --qrels dev=qrels.dev.small.tsv "
        "--output data/msmarco",
        "hybrid prepare msmarco msmarco_v2_passage/ --queries dev=passv2_dev_queries.tsv --qrels "
        "dev=passv2_dev_qrels.tsv --output data/msmarco-v2",
    )

    corpus: Path = argument(REQUIRED, "collection.tsv, msmarco-docs.tsv, or a folder or file of version 2.")
    _: KW_ONLY
    scopes = scope(_QRELS, "on_dangling") + scope(when(triples=GIVEN, pseudo_queries=None), "on_dangling")

    queries: Mapping[str, Path] = option({}, "Query ids and texts of each split.", metavar="SPLIT=FILE")
    qrels: Mapping[str, Path] = option({}, "Judgments of each split.", metavar="SPLIT=FILE")
    triples: Mapping[str, Path] = option(
        {},
        "Ids of a query, a relevant document and another document; the relevant ones become judgments.",
        metavar="SPLIT=FILE",
    )


@settings()
class PrepareDpr(PrepareRows, options.Dpr):
    """Import the passages, questions and training files of DPR.

    Questions get the numbers 0, 1, 2, ... in each split as ids.
    """

    command = "prepare dpr"
    panel = DATA
    examples = (
        "hybrid prepare dpr psgs_w100.tsv --questions test=nq-test.qa.csv --training train=biencoder-nq-train.json "
        "--output data/nq",
    )

    corpus: Path = argument(REQUIRED, "psgs_w100.tsv, plain or gzipped.")
    _: KW_ONLY
    scopes = scope(when(training=GIVEN, pseudo_queries=None), "on_dangling") + scope(when(sample=GIVEN), "sample_from")

    questions: Mapping[str, Path] = option(
        {}, "Questions and answers of each split (.csv with tabs, .jsonl or .json).", metavar="SPLIT=FILE"
    )
    training: Mapping[str, Path] = option(
        {},
        "Training JSON of each split: questions, answers and positive passages.",
        metavar="SPLIT=FILE",
        needed=when(sample_from="contexts"),
    )
    sample_from: SampleFrom = inherited(
        "Documents of a sample besides the relevant ones: `random`, or first the hard negatives of `--training`.",
        panel=SAMPLE,
    )


@settings()
class PrepareTevatron(PrepareRows, options.Tevatron):
    """Import training files of Tevatron, FlagEmbedding or sentence-transformers: queries with their passages.

    Read are Tevatron's `positive_passages` and `negative_passages`, Tevatron 2's `positive_document_ids` and
    `negative_document_ids`, FlagEmbedding's `pos` and `neg`, and triplets of `anchor` or `query`, `positive` and
    `negative` (or `negative_1`, ...), as JSON lines or Parquet. Texts without ids have a hash of the text as id.

    Without `--corpus`, the documents are the passages of the files. `mine-negatives --sources given:FILE` draws from
    their negatives.
    """

    command = "prepare tevatron"
    panel = DATA
    examples = ("hybrid prepare tevatron train=train.jsonl dev=dev.jsonl --corpus corpus.jsonl --output data/msmarco",)

    training: Mapping[str, Path] = argument(REQUIRED, "Training file of each split.", metavar="SPLIT=FILE...")
    _: KW_ONLY
    corpus: Path | None = option(None, "JSON lines of docid, title and text; needed for ids.")


@settings()
class PrepareTrec(PrepareDocumentFiles, options.Trec):
    """Import TREC documents, topics and judgments."""

    command = "prepare trec"
    panel = DATA
    examples = (
        "hybrid prepare trec robust04/ --topics test=topics.robust04.txt --qrels test=qrels.robust04.txt "
        "--encoding latin-1 --output data/robust04",
    )

    corpus: Path = argument(REQUIRED, "Documents in SGML or JSON lines: a file, or a folder of files.")
    _: KW_ONLY
    scopes = (
        scope(_QRELS, "on_dangling")
        + scope(when(topics=GIVEN, topic_format=SGML_TOPICS), "topic_fields")
        + scope(when(document_format=SGML), "text_fields")
        + scope(when(inputs=SGML), "encoding")
    )

    topics: Mapping[str, Path] = option({}, "Topics of each split.", "--topics", "--queries", metavar="SPLIT=FILE")
    qrels: Mapping[str, Path] = option({}, "Judgments of each split.", metavar="SPLIT=FILE")
    topic_fields: Sequence[str] = inherited(
        "Fields of an SGML or XML topic that form the query: `title`, `desc`, `narr`, or the names of other tags, such "
        "as `disease,gene`."
    )
    text_fields: Sequence[str] = option(
        (),
        "More fields of SGML documents that become text, such as `byline,subject`; `all` for all. A note counts the "
        "words of other fields.",
    )
    encoding: str = inherited(
        "Encoding of SGML and XML files, an extension of ASCII; the older TREC disks need `latin-1`.",
        parse=text_encoding,
    )


@settings()
class PrepareIrds(PrepareRows, options.Irds):
    """Import datasets of ir_datasets, which downloads missing files.

    Needs the extra `irds`.
    """

    command = "prepare irds"
    panel = DATA
    examples = ("hybrid prepare irds dev=msmarco-passage/dev/small msmarco-passage/train --output data/msmarco",)

    ids: Sequence[str] = argument(
        REQUIRED,
        "Dataset ids over one corpus; without SPLIT=, the last part of the id names the split.",
        metavar="[SPLIT=]ID...",
    )


def prepare_with(name: str, added: Any) -> type[Prepare]:
    """Return the settings class of a reader of a plugin, whose parameters are the options.

    Raises:
        ValueError: not a function, or a parameter without type or description.
    """
    if not inspect.isfunction(added):
        raise ValueError(f"{type(added).__name__} is no function that returns a Source")
    title = "".join(part.title() for part in re.split("[-_]", name))
    attributes = {"command": f"prepare {name}", "panel": DATA, "reader": staticmethod(added)}
    return settings_of(added, PrepareRows, f"Prepare{title}", **attributes)


READERS: Registry[type[Prepare]] = Registry(
    "readers",
    {
        kind.command.removeprefix("prepare "): kind
        for kind in (
            PreparePythonDocs,
            PrepareFiles,
            PrepareBeir,
            PrepareMsmarco,
            PrepareDpr,
            PrepareTevatron,
            PrepareTrec,
            PrepareIrds,
        )
    },
    prepare_with,
)


@settings()
class Split(Seeded, Writes):
    """Split the judged queries into folds for cross-validation.

    Writes a collection over the same documents with the splits `test-1`, `dev-1`, `train-1`, `test-2`, ... Split
    `test-i` is fold i of the queries, `dev-i` the next fold, `train-i` all other folds. Split `all` contains all judged
    queries. One index serves all folds.

    With `--no-dev`, `train-i` contains all queries outside of fold i: 200 of 250 with five folds (RoC on Robust04).
    """

    command = "split"
    panel = DATA
    examples = ("hybrid split data/robust04 --folds 5 --output out/folds",)

    collection: Path = argument(REQUIRED, "Collection with judgments.")
    _: KW_ONLY
    scopes = scope(when(folds_file=None), "seed")

    folds: int = option(5, "Number of folds; with `--folds-file`, the number of folds required in the file.", minimum=2)
    folds_file: Path | None = option(
        None, "Predefined folds: a JSON list of lists of query ids, or lines of query id and fold."
    )
    splits: Sequence[str] = option(
        (), "Splits whose queries are divided, or `all`.", "--split", shown="the only split", recorded=False
    )
    dev: bool = option(True, "Use the fold after the test fold as dev split; else it is part of the training split.")
    seed: int = inherited("Random seed of the folds.")
