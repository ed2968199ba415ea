"""Settings of importing collections, of folds, and of perturbed queries."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any, ClassVar

from hybrid_cli.collections import options
from hybrid_cli.commands.common import COLLECTIONS, OnCluster, OnDevice
from hybrid_cli.errors import option_error
from hybrid_cli.perturbations.options import Perturbation
from hybrid_cli.plugins import Registry
from hybrid_cli.settings import Seeded, Writes
from hybrid_cli.settings.options import (
    GIVEN,
    REQUIRED,
    argument,
    inherited,
    option,
    options_by,
    registered,
    scope,
    when,
)
from hybrid_cli.settings.paths import NamedPaths, OptionalPath, PathField, Paths, TwoPaths
from hybrid_cli.settings.signature import settings_of

_ASCII = bytes(range(9, 11)) + bytes(range(32, 127))

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


@dataclass(frozen=True, kw_only=True)
class Prepare(Seeded, Writes, options.Import):
    """A command that imports a collection; all sources have these options.

    Attributes:
        reader: reader of a plugin, a function of its own options; None for ours, which are in `collections/readers`.
        sample: Keep a random sample of N documents that includes all documents judged relevant for the queries;
            judgments of documents outside of the sample are dropped.
        sample_queries: Keep at most N random queries of a split.
        split_passages: Split documents into passages of N words, named DOCID#0, DOCID#1, ...; judgments hold for all
            passages of a document. See `concat-runs --group`.
        passage_stride: Words between the starts of two passages.
        pseudo_queries: Take a query out of every document: its title, first sentence, a random sentence or heading.
            Queries of the source are omitted.
        pseudo_sizes: Maximum number of training and dev queries; with training queries, at most a fifth of all are for
            dev.
        seed: Random seed of the sample and of the pseudo-queries.
    """

    reader: ClassVar[Callable[..., Any] | None] = None

    scopes = (
        scope(when(split_passages=GIVEN), "passage_stride")
        + scope(when(pseudo_queries=GIVEN), "pseudo_sizes")
        + scope((when(pseudo_queries=GIVEN), when(sample=GIVEN), when(sample_queries=GIVEN)), "seed")
    )

    sample: int | None = option(None, metavar="N", panel=SAMPLE, minimum=1, shown="all documents")
    sample_queries: Mapping[str, int] = option({}, metavar="SPLIT=N", panel=SAMPLE, minimum=1, shown="all queries")
    split_passages: int | None = option(
        None,
        metavar="N",
        panel=PASSAGES,
        minimum=1,
        shown="whole documents",
        recorded=False,
        excluded=when(on_duplicate=("first", "last")),
    )
    passage_stride: int | None = option(
        None, metavar="N", panel=PASSAGES, minimum=1, shown="their length, without overlap", recorded=False
    )
    pseudo_queries: options.PseudoQueries | None = option(
        None, panel=PSEUDO, recorded=False, excluded=when(on_duplicate="last")
    )
    pseudo_sizes: Mapping[str, int] = option(
        {}, metavar="SPLIT=N", panel=PSEUDO, minimum=0, choices=[*options.PSEUDO_SIZES], shown="train=10000,dev=500"
    )
    seed: int = inherited()

    def check(self) -> None:
        """Refuse pseudo-queries without one for dev, since their titles leave the documents."""
        super().check()
        if self.pseudo_sizes.get("dev") == 0:
            raise option_error("pseudo_sizes", "dev=0", "needs at least one query for dev")


@dataclass(frozen=True, kw_only=True)
class PrepareRows(Prepare, options.Rows):
    """A source whose rows may repeat or contradict each other.

    Attributes:
        on_duplicate: Rows with the same id: stop with an error, keep the first row, or keep the last row.
        on_dangling: Judgments of unknown documents or queries: stop with an error, drop the judgments, or keep them.
    """

    scopes = scope(when(pseudo_queries=None), "on_dangling")

    on_duplicate: options.OnDuplicate = inherited()
    on_dangling: options.OnDangling = inherited()


@dataclass(frozen=True, kw_only=True)
class PrepareDocumentFiles(OnCluster, PrepareRows):
    """A source that may have its documents in several files.

    Attributes:
        ray_address: Read the files of documents on the Ray cluster at this address: `10.0.0.1:6379`, `auto` (on this
            machine), or `local` (start one).
        ray_workers: Files read on the Ray cluster at a time, each on one core and in memory.
    """

    ray_address: str | None = inherited()
    ray_workers: int = inherited()


@dataclass(frozen=True, kw_only=True)
class PreparePythonDocs(Prepare, options.PythonDocs):
    """Make a retrieval task from the docstrings of installed packages.

    A query is the first paragraph of a docstring; the document with the rest of the docstring is relevant. The source
    files of packages are parsed, never imported. Queries are split into train, dev and test.

    Attributes:
        package: Packages, named as in `import`.
        seed: Random seed of the splits, the sample and the pseudo-queries.
    """

    command = "prepare python-docs"
    panel = COLLECTIONS
    examples = (
        "hybrid prepare python-docs --output data/pydocs",
        "hybrid prepare python-docs --package rich --output data/rich",
    )

    package: Sequence[str] = inherited(
        recorded=False, shown="those of numpy, scipy, sklearn and pandas that are installed"
    )
    seed: int = inherited(applies=when())


@dataclass(frozen=True)
class PrepareFiles(PrepareDocumentFiles, options.Files):
    """Import TSV, CSV, JSON lines or Parquet files with a row per document, query and judgment, or text files.

    A folder has a document in each text file (`.txt`, `.md`, `.rst`, `.html`), at any depth: the id is the path in the
    folder, the title a heading at the beginning of the text, or the first one of Markdown. HTML pages are read as by a
    browser, without navigation.

    The columns are found by their usual names (`docid`, `title`, `text`, `qid`, `query`, `relevance`, ...) and printed.
    Those of JSON lines are the names of all lines. In a file without a header, documents and queries have two columns
    (id, text), judgments three (query id, document id, relevance) or the four of TREC; columns of other files need
    their numbers, from 1.

    A text file of queries without tabs has a query per line; ids are hashes of the lines.

    The split of queries and judgments is named by the option (`dev=FILE`) or by the file (`qrels.dev.tsv`). Other
    queries belong to the splits with their judgments, other judgments to the split of the queries if there is one file
    of each, else to the split `test`.

    Attributes:
        documents: Files of documents, HTML pages, or folders of text files (.txt, .md, .rst, .html), a document each.
        queries: Files of queries.
        qrels: Files of judgments.
        document_columns: Columns of documents: `id`, `title`, `text`; any other name adds a field for `index-bm25
            --fields`.
        metadata: Columns of documents that are stored for `search --filter`, or `all`; of text files `folder`,
            `modified`, and the front matter of Markdown.
        metadata_file: Table with metadata of the files of a folder; its column `path` has their paths in the folder.
        query_columns: Columns of queries: `id`, `text`, `answers`.
        qrels_columns: Columns of judgments: `qid`, `docid`, `relevance`.
        header: The first row of TSV and CSV files names the columns.
        quoted: Fields of TSV and CSV files may be in double quotes.
        on_error: Text files that cannot be read, as those not in UTF-8: stop with an error, or skip them.
    """

    command = "prepare files"
    panel = COLLECTIONS
    examples = (
        "hybrid prepare files docs.csv --queries queries.tsv --qrels qrels.tsv --output data/mine",
        "hybrid prepare files handbook/ --on-error skip --output data/handbook",
        "hybrid prepare files articles.parquet --document-columns id=url,text=body --queries dev=questions.csv "
        "--qrels dev=judgments.csv --output data/articles",
    )

    documents: Paths = argument(REQUIRED)
    _: KW_ONLY
    scopes = (
        scope(when(queries=GIVEN), "query_columns")
        + scope(when(qrels=GIVEN), "qrels_columns")
        + scope(when(inputs=options.DELIMITED), "header", "quoted")
        + scope(when(documents_form=options.TEXT_FILES), "on_error")
    )

    queries: Sequence[str] = option((), metavar="[SPLIT=]FILE", recorded=False)
    qrels: Sequence[str] = option((), metavar="[SPLIT=]FILE", recorded=False)
    document_columns: Mapping[str, str] = option({}, metavar="FIELD=COLUMN", shown="by their names")
    metadata: Sequence[str] = option((), metavar="COLUMN,...", recorded=False)
    metadata_file: OptionalPath = option(None, recorded=False)
    query_columns: Mapping[str, str] = option(
        {}, metavar="FIELD=COLUMN", shown="by their names", choices=("id", "text", "answers")
    )
    qrels_columns: Mapping[str, str] = option(
        {}, metavar="FIELD=COLUMN", shown="by their names", choices=("qid", "docid", "relevance")
    )
    header: bool | None = option(None, shown="if a usual name, or a text above numbers, is in it")
    quoted: bool | None = option(None, shown="CSV files only")
    on_error: options.OnError = inherited()

    def check(self) -> None:
        """Refuse files of queries as documents, and names that `index-bm25 --fields` cannot take."""
        super().check()
        for option_name in ("queries", "qrels"):
            astray = [path for path in self.documents if Path(path).name.startswith(f"{option_name}.")]
            if astray and getattr(self, option_name):
                reason = "was passed as documents; repeat the option for each file, or separate files by commas"
                raise option_error(option_name, astray[0], reason, code="other-role", path=astray[0])
        for option_name, names in (("document_columns", self.other_fields), ("metadata", self.metadata)):
            if wrong := [name for name in names if not options.is_column_name(name)]:
                reason = f"needs a name of letters, digits and '_', other than {', '.join(options.RESERVED)}"
                raise option_error(option_name, wrong[0], reason, code="invalid-name")
        if repeated := [name for name in self.metadata if [*self.metadata, *self.other_fields].count(name) > 1]:
            raise option_error("metadata", repeated[0], "name each column and field once", code="repeated-value")
        if self.pseudo_queries is not None and self.other_fields:
            reason = f"not with the field '{self.other_fields[0]}', which may repeat the query"
            others = ("document_columns",)
            raise option_error("pseudo_queries", None, reason, code="conflicting-options", others=others)


@dataclass(frozen=True)
class PrepareBeir(PrepareRows, options.Beir):
    """Import a BEIR folder.

    Each file in `qrels/` is a split. Queries without judgments form the split `unjudged`.

    Attributes:
        folder: Folder with corpus.jsonl, queries.jsonl and qrels/SPLIT.tsv.
    """

    command = "prepare beir"
    panel = COLLECTIONS
    examples = (
        "hybrid prepare beir scifact --output data/scifact",
        "hybrid prepare beir nq --sample 100000 --output data/nq-100k",
    )

    folder: PathField = argument(REQUIRED)


@dataclass(frozen=True)
class PrepareMsmarco(PrepareDocumentFiles, options.Msmarco):
    """Import the files of MS MARCO, versions 1 and 2.

    Version 2 has JSON lines in a folder of files: passages are imported with their id `pid`, documents with title and
    body.

    Attributes:
        corpus: collection.tsv, msmarco-docs.tsv, or a folder or file of version 2.
        queries: Query ids and texts of each split.
        qrels: Judgments of each split.
        training: Triples: ids of a query, a relevant document and another one; the relevant ones become judgments.
    """

    command = "prepare msmarco"
    panel = COLLECTIONS
    examples = (
        "hybrid prepare msmarco collection.tsv --queries dev=queries.dev.small.tsv --qrels dev=qrels.dev.small.tsv "
        "--output data/msmarco",
        "hybrid prepare msmarco msmarco_v2_passage/ --queries dev=passv2_dev_queries.tsv --qrels "
        "dev=passv2_dev_qrels.tsv --output data/msmarco-v2",
    )

    corpus: PathField = argument(REQUIRED)
    _: KW_ONLY
    queries: NamedPaths = option({}, metavar="SPLIT=FILE")
    qrels: NamedPaths = option({}, metavar="SPLIT=FILE")
    training: NamedPaths = option({}, metavar="SPLIT=FILE")


@dataclass(frozen=True)
class PrepareDpr(PrepareRows, options.Dpr):
    """Import the passages, questions and training files of DPR.

    Questions get the numbers 0, 1, 2, ... in each split as ids.

    Attributes:
        corpus: psgs_w100.tsv, plain or gzipped.
        queries: Questions and answers of each split (.csv with tabs, .jsonl or .json).
        training: Training JSON of each split: questions, answers and positive passages.
        sample_from: Documents of a sample besides the relevant ones: `random`, or first the hard negatives of
            `--training`.
    """

    command = "prepare dpr"
    panel = COLLECTIONS
    examples = (
        "hybrid prepare dpr psgs_w100.tsv --questions test=nq-test.qa.csv --training train=biencoder-nq-train.json "
        "--output data/nq",
    )

    corpus: PathField = argument(REQUIRED)
    _: KW_ONLY
    scopes = scope(when(sample=GIVEN), "sample_from")

    queries: NamedPaths = option({}, "--queries", "--questions", metavar="SPLIT=FILE")
    training: NamedPaths = option({}, metavar="SPLIT=FILE", needed=when(sample_from="contexts"))
    sample_from: options.SampleFrom = inherited(panel=SAMPLE)


@dataclass(frozen=True)
class PrepareTevatron(PrepareRows, options.Tevatron):
    """Import training files of Tevatron, FlagEmbedding or sentence-transformers: queries with their passages.

    Read are Tevatron's `positive_passages` and `negative_passages`, Tevatron 2's `positive_document_ids` and
    `negative_document_ids`, FlagEmbedding's `pos` and `neg`, and triplets of `anchor` or `query`, `positive` and
    `negative` (or `negative_1`, ...), as JSON lines or Parquet. Texts without ids have a hash of the text as id.

    Without `--corpus`, the documents are the passages of the files. `mine-negatives --sources given:FILE` draws from
    their negatives.

    Attributes:
        training: Training file of each split.
        corpus: JSON lines of docid, title and text; needed for ids.
    """

    command = "prepare tevatron"
    panel = COLLECTIONS
    examples = ("hybrid prepare tevatron train=train.jsonl dev=dev.jsonl --corpus corpus.jsonl --output data/msmarco",)

    training: NamedPaths = argument(REQUIRED, metavar="SPLIT=FILE...")
    _: KW_ONLY
    corpus: OptionalPath = option(None)


@dataclass(frozen=True)
class PrepareTrec(PrepareDocumentFiles, options.Trec):
    """Import TREC documents, topics and judgments.

    Attributes:
        corpus: Documents in SGML or JSON lines: a file, or a folder of files.
        queries: Topics of each split.
        qrels: Judgments of each split.
        topic_fields: Fields of an SGML or XML topic that form the query: `title`, `desc`, `narr`, or the names of other
            tags, such as `disease,gene`.
        text_fields: More fields of SGML documents that become text, such as `byline,subject`; `all` for all. A note
            counts the words of other fields.
        encoding: Encoding of SGML and XML files, an extension of ASCII; the older TREC disks need `latin-1`.
    """

    command = "prepare trec"
    panel = COLLECTIONS
    examples = (
        "hybrid prepare trec robust04/ --topics test=topics.robust04.txt --qrels test=qrels.robust04.txt "
        "--encoding latin-1 --output data/robust04",
    )

    corpus: PathField = argument(REQUIRED)
    _: KW_ONLY
    scopes = (
        scope(when(queries=GIVEN, topic_format=options.SGML_TOPICS), "topic_fields")
        + scope(when(document_format=options.SGML), "text_fields")
        + scope(when(inputs=options.SGML), "encoding")
    )

    queries: NamedPaths = option({}, "--queries", "--topics", metavar="SPLIT=FILE")
    qrels: NamedPaths = option({}, metavar="SPLIT=FILE")
    topic_fields: Sequence[str] = inherited()
    text_fields: Sequence[str] = option(())
    encoding: str = inherited(parse=text_encoding)


@dataclass(frozen=True)
class PrepareIrds(PrepareRows, options.Irds):
    """Import datasets of ir_datasets, which downloads missing files.

    Needs the extra `irds`.

    Attributes:
        ids: Dataset ids over one corpus; without SPLIT=, the last part of the id names the split.
    """

    command = "prepare irds"
    panel = COLLECTIONS
    examples = ("hybrid prepare irds dev=msmarco-passage/dev/small msmarco-passage/train --output data/msmarco",)

    ids: Sequence[str] = argument(REQUIRED, metavar="[SPLIT=]ID...")


def prepare_with(name: str, added: Any) -> type[Prepare]:
    """Return the settings class of a reader of a plugin, whose parameters are the options.

    Raises:
        ValueError: not a function, or a parameter without type or description.
    """
    if not inspect.isfunction(added):
        raise ValueError(f"{type(added).__name__} is no function that returns a Source")
    title = "".join(part.title() for part in re.split("[-_]", name))
    attributes = {"command": f"prepare {name}", "panel": COLLECTIONS, "reader": staticmethod(added)}
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


@dataclass(frozen=True)
class Split(Seeded, Writes):
    """Split the judged queries into folds for cross-validation.

    Writes a collection over the same documents with the splits `test-1`, `dev-1`, `train-1`, `test-2`, ... Split
    `test-i` is fold i of the queries, `dev-i` the next fold, `train-i` all other folds. Split `all` contains all judged
    queries. One index serves all folds.

    With `--no-dev`, `train-i` contains all queries outside of fold i: 200 of 250 with five folds (RoC on Robust04).

    Attributes:
        collection: Collection with judgments.
        folds: Number of folds; with `--folds-file`, the number of folds required in the file.
        folds_file: Predefined folds: a JSON list of lists of query ids, or lines of query id and fold.
        split: Splits whose queries are divided, or `all`.
        dev: Use the fold after the test fold as dev split; else it is part of the training split.
        seed: Random seed of the folds.
    """

    command = "split"
    panel = COLLECTIONS
    examples = ("hybrid split data/robust04 --folds 5 --output out/folds",)

    collection: PathField = argument(REQUIRED)
    _: KW_ONLY
    scopes = scope(when(folds_file=None), "seed")

    folds: int = option(5, minimum=2)
    folds_file: OptionalPath = option(None)
    split: Sequence[str] = option((), shown="the only split", recorded=False)
    dev: bool = option(True)
    seed: int = inherited()


WORDS, SYNONYMS, TRANSLATION = "Words", "Synonyms", "Back translation"
_SETS = ("lite", "all")
_OF_WORDS = ("char-swap", "word-deletion", "synonym-replacement", "word-order-swap", "synonym-insertion", *_SETS)
_OF_SYNONYMS = ("synonym-replacement", "synonym-insertion", "synonym-adversary", *_SETS)
_DRAWN = ("shuffle", "synonym-adversary", *_OF_WORDS)
_OF_TRANSLATION = ("back-translation", *_SETS)


def facts_of(attacks: Sequence[str]) -> dict[str, Any]:
    """Return what decides whether an option applies: the attacks; to one of a plugin, every option applies."""
    added = set(attacks) - {*_DRAWN, *_OF_TRANSLATION}
    return {"attacks": (*attacks, *(["all"] if added else []))}


@dataclass(frozen=True)
class Perturb(OnDevice, Seeded, Writes, Perturbation):
    """Perturb the queries of a split, to measure the robustness of runs.

    The output is read by `search --queries`. With several attacks, the output is a folder with one file per attack and
    `meta.json`; attacks whose resources are missing are skipped with a notice.

    `char-swap`: swap two letters of a word, or replace, delete or insert a letter. `word-deletion`: delete a word.
    `synonym-replacement`: replace a word with a synonym. `word-order-swap`: swap two words. `synonym-insertion`: insert
    a synonym of a word. `back-translation`: machine-translate the query to another language and back. `--attack lite`
    selects these six attacks.

    `shuffle`: put the words in random order. BM25 scores do not change.

    `synonym-adversary`: replace each word that occurs in a relevant document with a random synonym that occurs in no
    relevant document. BM25 loses its matches; the meaning stays similar.

    Attributes:
        collection: Collection; for attacks that need no documents, also a query file.
        attacks: Attacks; `lite` selects the six attacks of LITE, `all` all eight.
        output: Output file (Parquet); a folder for several attacks.
        split: Split of the collection.
        attacked_queries: Queries perturbed by another tool, used instead of a perturbation by hybrid: lines of query
            id, tab, text.
        word_fraction: Fraction of the words of a query to change; at least one word is changed.
        wordnet: Folder or zip file of WordNet.
        synonyms: Table of synonyms that replaces WordNet: lines of a word and its synonyms, separated by tabs.
        translation: Folders of the translation models to another language and back.
        translation_prefix: Text put before every query for the model THERE, such as `>>es<<`.
    """

    command = "perturb"
    panel = COLLECTIONS
    examples = (
        "hybrid perturb data/pydocs --split test --attack lite --output out/attacked",
        "hybrid perturb data/pydocs --split test --attack synonym-adversary --output out/adversary.parquet",
    )

    collection: PathField = argument(REQUIRED)
    _: KW_ONLY
    scopes = scope(when(wordnet=None), "synonyms")
    cases = options_by(
        "attacks",
        {
            _OF_WORDS: ("word_fraction",),
            _OF_SYNONYMS: ("wordnet", "synonyms"),
            _OF_TRANSLATION: ("translation", "translation_prefix", "device"),
            _DRAWN: ("seed",),
        },
    )

    attacks: Sequence[str] = option(
        REQUIRED, "--attack", choices=registered("hybrid_cli.perturbations.attacks", "ATTACKS", *_SETS), recorded=False
    )
    output: PathField = inherited()
    split: str | None = option(None, shown="the only split", recorded=False)
    attacked_queries: NamedPaths = option({}, metavar="ATTACK=FILE")
    seed: int = inherited()
    word_fraction: float = inherited(panel=WORDS, minimum=0, maximum=1)
    wordnet: OptionalPath = option(
        None, panel=SYNONYMS, shown="the location of nltk or of Debian's wordnet-base, else a small table of hybrid"
    )
    synonyms: OptionalPath = option(None, panel=SYNONYMS)
    translation: TwoPaths = option(None, metavar="THERE BACK", panel=TRANSLATION)
    translation_prefix: str = inherited(panel=TRANSLATION)

    def values(self) -> dict[str, Any]:
        """Return every field by name; see `facts_of` for the attacks."""
        return {**super().values(), **facts_of(self.attacks)}
