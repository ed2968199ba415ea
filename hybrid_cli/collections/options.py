"""Names and defaults of collections and of the readers of their sources, which import nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Literal

OnDuplicate = Literal["error", "first", "last"]
OnDangling = Literal["error", "drop", "keep"]
OnError = Literal["stop", "skip"]
SampleFrom = Literal["random", "contexts"]
PseudoQueries = Literal["title", "first-sentence", "sentence", "heading"]
QueriesFrom = Literal["all", "sampled", "cropped"]

TEXT_FILES = "text files or HTML pages"
DELIMITED = "TSV or CSV files"  # facts about the inputs of a source
SGML, SGML_TOPICS = "SGML or XML files", "topics in SGML or XML"
ALL_FIELDS = "ALL"
ALL_COLUMNS = "all"  # of the metadata
RESERVED = ("docid", "corpus_row", "title", "text")  # columns of the corpus, as it is stored and read
PSEUDO_SIZES = {"train": 10_000, "dev": 500}
LANGUAGE = "en"  # of sentences and of analyzers


@dataclass(frozen=True, kw_only=True)
class Import:
    """What is imported from a source.

    Attributes:
        sample: documents of a random sample that includes all documents judged relevant; None for all.
        sample_queries: split -> queries of a random sample.
        split_passages: words of a passage; None for whole documents.
        passage_stride: words between the starts of two passages; None for their length.
        pseudo_queries: part of a document that becomes a query; None for the queries of the source.
        pseudo_sizes: split (`train`, `dev`) -> pseudo-queries, at most; by default those of `PSEUDO_SIZES`.
        seed: random seed of samples and pseudo-queries.
    """

    sample: int | None = None
    sample_queries: Mapping[str, int] = field(default_factory=dict)
    split_passages: int | None = None
    passage_stride: int | None = None
    pseudo_queries: PseudoQueries | None = None
    pseudo_sizes: Mapping[str, int] = field(default_factory=dict)
    seed: int = 42


@dataclass(frozen=True, kw_only=True)
class Rows(Import):
    """A source whose rows may repeat or contradict each other.

    Attributes:
        on_duplicate: for rows with the same id: stop, keep the first, or keep the last.
        on_dangling: for judgments of unknown documents or queries: stop, drop them, or keep them.
    """

    on_duplicate: OnDuplicate = "error"
    on_dangling: OnDangling = "error"


@dataclass(frozen=True)
class PythonDocs(Import):
    """Docstrings of installed packages.

    Attributes:
        package: packages, named as in `import`; none for those of numpy, scipy, sklearn and pandas that are installed.
    """

    package: Sequence[str] = ()


@dataclass(frozen=True)
class Files(Rows):
    """Tables with a row per document, query and judgment, or text files and HTML pages.

    Attributes:
        documents: files or folders.
        queries, qrels: files, each with the name of its split and `=` before it, or without.
        document_columns, query_columns, qrels_columns: field -> column.
        metadata: columns that are stored with their types; `all` for every one.
        metadata_file: table of the metadata of the text files of a folder.
        header: the first row of TSV and CSV files names the columns; None decides by its content.
        quoted: fields of TSV and CSV files may be in double quotes; None means CSV files only.
        on_error: for text files and HTML pages that cannot be read as text: stop, or skip them.
    """

    documents: Sequence[Path]
    _: KW_ONLY
    queries: Sequence[str] = ()
    qrels: Sequence[str] = ()
    document_columns: Mapping[str, str] = field(default_factory=dict)
    metadata: Sequence[str] = ()
    metadata_file: Path | None = None
    query_columns: Mapping[str, str] = field(default_factory=dict)
    qrels_columns: Mapping[str, str] = field(default_factory=dict)
    header: bool | None = None
    quoted: bool | None = None
    on_error: OnError = "stop"

    @property
    def columns_of_metadata(self) -> Sequence[str]:
        """The columns that are stored; all with a table of metadata, unless they are named."""
        return self.metadata or ([] if self.metadata_file is None else [ALL_COLUMNS])

    @property
    def other_fields(self) -> tuple[str, ...]:
        """Fields of documents besides id, title and text."""
        return tuple(name for name in self.document_columns if name not in ("id", "title", "text"))


@dataclass(frozen=True)
class Beir(Rows):
    """A BEIR folder: corpus.jsonl, queries.jsonl and qrels/SPLIT.tsv."""

    folder: Path


@dataclass(frozen=True)
class Msmarco(Rows):
    """Files of MS MARCO, versions 1 and 2.

    Attributes:
        corpus: collection.tsv, msmarco-docs.tsv, or a folder or file of version 2.
        queries, qrels, training: split -> file.
    """

    corpus: Path
    _: KW_ONLY
    queries: Mapping[str, Path] = field(default_factory=dict)
    qrels: Mapping[str, Path] = field(default_factory=dict)
    training: Mapping[str, Path] = field(default_factory=dict)


@dataclass(frozen=True)
class Dpr(Rows):
    """Passages, questions and training files of DPR.

    Attributes:
        corpus: psgs_w100.tsv.
        queries, training: split -> file.
        sample_from: documents of a sample besides the relevant ones: random ones, or first hard negatives.
    """

    corpus: Path
    _: KW_ONLY
    queries: Mapping[str, Path] = field(default_factory=dict)
    training: Mapping[str, Path] = field(default_factory=dict)
    sample_from: SampleFrom = "random"


@dataclass(frozen=True)
class Tevatron(Rows):
    """Training files of Tevatron, FlagEmbedding or sentence-transformers.

    Attributes:
        training: split -> file.
        corpus: JSON lines of docid, title and text.
    """

    training: Mapping[str, Path]
    _: KW_ONLY
    corpus: Path | None = None


@dataclass(frozen=True)
class Trec(Rows):
    """TREC documents, topics and judgments.

    Attributes:
        corpus: a file or folder of SGML or JSON lines.
        queries, qrels: split -> file.
        topic_fields: fields of a topic that form the query.
        text_fields: more fields of SGML documents that become text.
        encoding: encoding of SGML and XML files.
    """

    corpus: Path
    _: KW_ONLY
    queries: Mapping[str, Path] = field(default_factory=dict)
    qrels: Mapping[str, Path] = field(default_factory=dict)
    topic_fields: Sequence[str] = ("title",)
    text_fields: Sequence[str] = ()
    encoding: str = "utf-8"


@dataclass(frozen=True)
class Irds(Rows):
    """Datasets of ir_datasets over one corpus, each with the name of its split and `=` before its id, or without."""

    ids: Sequence[str]


def is_column_name(name: str) -> bool:
    """Test whether a field or a column of metadata can have a name."""
    return name.isidentifier() and name not in RESERVED
