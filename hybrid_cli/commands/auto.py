"""Settings of the recommended path in one command."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass

from hybrid_cli.collections.options import OnDangling, OnDuplicate, OnError, PseudoQueries
from hybrid_cli.commands.common import MEASURE, START, EncoderContract, OnDevice, StartModel
from hybrid_cli.commands.data import PSEUDO, Prepare, PrepareFiles, PrepareRows
from hybrid_cli.commands.retrieval import IndexBm25
from hybrid_cli.errors import option_error
from hybrid_cli.settings import Seeded, Threaded, Writes
from hybrid_cli.settings.options import GIVEN, REQUIRED, argument, inherited, option, redeclare, scope, when
from hybrid_cli.settings.paths import OptionalPath, PathField, Paths


@dataclass(frozen=True)
class Auto(Threaded, OnDevice, Seeded, StartModel, Writes):
    """Build a hybrid of BM25 and a trained dense model from documents, in one command.

    Runs the recommended stages: prepare, index, mine negatives, train, encode, search, tune, fuse, evaluate and report.
    The command of each stage is printed before it runs: continue by hand from any of them. The same command resumes
    after an interruption, also with --overwrite, which replaces outputs of other options or inputs, and keeps equal
    ones.

    With 200 judged queries or more, three fifths train the model, one fifth tunes the weights and one fifth tests. With
    fewer, all of them tune the weights. Without any, both indexes and their default fusion are built, ready to search;
    `--pseudo-queries` adds a report whose queries are texts of the documents. With fewer than 200, the model is trained
    only on request, on pseudo-queries, which can make it worse: `--max-steps` or `--layers` asks for it, and with
    judgments `--pseudo-queries` too.

    Attributes:
        documents: Files of documents, HTML pages, or folders of text files, as for `prepare files`.
        output: Folder of all outputs.
        queries: Queries: ids and texts, or a query per line.
        qrels: Judgments of the queries.
        max_steps: Number of training steps; 0 keeps the start model.
        measure: Measure that the weights maximize.
        pseudo_queries: Texts of the documents that become queries: of a report without judgments, and of a training.
    """

    command = "auto"
    panel = START
    examples = (
        "hybrid auto docs.jsonl --output out/mine",
        "hybrid auto docs.csv --queries queries.tsv --qrels qrels.tsv --max-steps 1000 --output out/mine",
    )

    documents: Paths = argument(REQUIRED)
    _: KW_ONLY
    scopes = scope(when(qrels=GIVEN), "queries") + scope(when(queries=GIVEN), "qrels")

    output: PathField = inherited()
    queries: OptionalPath = option(None, recorded=True)
    qrels: OptionalPath = option(None, recorded=True)
    document_columns: Mapping[str, str] = redeclare(PrepareFiles, "document_columns")
    metadata: Sequence[str] = redeclare(PrepareFiles, "metadata")
    metadata_file: OptionalPath = redeclare(PrepareFiles, "metadata_file")
    query_columns: Mapping[str, str] = redeclare(PrepareFiles, "query_columns")
    qrels_columns: Mapping[str, str] = redeclare(PrepareFiles, "qrels_columns")
    header: bool | None = redeclare(PrepareFiles, "header")
    quoted: bool | None = redeclare(PrepareFiles, "quoted")
    on_error: OnError = redeclare(PrepareFiles, "on_error")
    on_duplicate: OnDuplicate = redeclare(PrepareRows, "on_duplicate")
    on_dangling: OnDangling = redeclare(PrepareRows, "on_dangling")
    split_passages: int | None = redeclare(
        Prepare,
        "split_passages",
        shown="whole documents; half the tokens that the encoder reads, if documents lose over half of theirs",
    )
    passage_stride: int | None = redeclare(Prepare, "passage_stride")
    identifiers: bool = redeclare(IndexBm25, "identifiers")
    max_steps: int | None = option(
        None,
        minimum=0,
        shown="three passes over the examples, at most 300 steps; with fewer than 200 judged queries, 0",
    )
    layers: int | None = inherited(excluded=when(max_steps=0))
    doc_max_len: int | None = redeclare(EncoderContract, "doc_max_len", panel="")
    measure: str = option("nDCG@10", parse=MEASURE)
    pseudo_queries: PseudoQueries | None = option(
        None,
        panel=PSEUDO,
        shown="none; for a training title if most documents have one, else sentence, else another kind",
        excluded=when(qrels=GIVEN, max_steps=0),
    )

    def check(self) -> None:
        """Refuse a path that `--index` would split."""
        super().check()
        if "," in str(self.output):
            reason = "a comma separates indexes in --index; name another folder"
            raise option_error("output", self.output, reason, code="invalid-name")
