"""Settings of `serve`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path

from hybrid_cli.settings.common import MEASURE, OnDevice, ReadsFiles, Threaded
from hybrid_cli.settings.fusion import FUSION
from hybrid_cli.settings.options import GIVEN, REQUIRED, argument, option, scope, when
from hybrid_cli.settings.retrieval import SearchOptions

JUDGING, SAFETY, PROGRAMS = "Judging", "Access", "Programs"


@dataclass(frozen=True)
class Serve(OnDevice, Threaded, ReadsFiles):
    """Serve a page, an API and MCP tools on a retriever.

    The page shows BM25, dense and hybrid hits side by side, explains every score, re-ranks while the weight is moved,
    and collects judgments. It works offline. The server listens on this machine only; with another `--host`, it asks
    for the token that is printed at the start.

    Attributes:
        retriever: Retriever, the folder of `auto`, or an index.
        compare: Further retrievers, shown in columns next to it.
        watch: Open the retriever again when it has changed, as after `hybrid update`.
        collection: Collection with queries to judge and compare.
        split: Split of the collection.
        judgments: Journal of judgments (.jsonl), which the page and `hybrid judge` extend.
        guidelines: Markdown file with rules for the people who judge.
        measure: Measure of the page.
        host: Address to listen on.
        port: Port; 0 for a free one.
        open: Open the page in the browser.
        allow_host: Further names of this server in requests, as behind a proxy.
        timeout: Seconds until a request ends without an answer.
        access_log: File for a JSON line per request, without texts of queries.
        log_queries: Log the texts of queries too.
        mcp_stdio: Serve MCP tools on standard input and output in place of the page.
        mcp_judge: Give MCP clients a tool that stores judgments.
    """

    command = "serve"
    panel = FUSION
    examples = (
        "hybrid serve out/retriever",
        "hybrid serve out/retriever --collection data/mine --split dev --judgments judgments.jsonl --open",
        "hybrid serve out/retriever --compare out/other-retriever --port 8081",
        "hybrid serve out/retriever --host 0.0.0.0 --allow-host search.example.org",
        "hybrid serve out/retriever --mcp-stdio",
    )

    retriever: Path = argument(REQUIRED)
    _: KW_ONLY
    scopes = scope(when(judgments=GIVEN), "guidelines", "mcp_judge") + scope(when(access_log=GIVEN), "log_queries")

    compare: Sequence[Path] = option((), metavar="RETRIEVER,...")
    watch: bool = option(False)
    collection: Path | None = option(None, panel=JUDGING, shown="that of the indexes")
    split: str | None = option(None, panel=JUDGING)
    judgments: Path | None = option(None, panel=JUDGING)
    guidelines: Path | None = option(None, panel=JUDGING)
    measure: str = option("nDCG@10", parse=MEASURE, panel=JUDGING)
    host: str = option("127.0.0.1", panel=SAFETY)
    port: int = option(8080, minimum=0, maximum=65535, panel=SAFETY)
    open: bool = option(False)
    allow_host: Sequence[str] = option((), panel=SAFETY, metavar="NAME,...")
    timeout: float = option(30.0, above=0, panel=SAFETY)
    access_log: Path | None = option(None, panel=SAFETY)
    log_queries: bool = option(False, panel=SAFETY)
    mcp_stdio: bool = option(False, panel=PROGRAMS)
    mcp_judge: bool = option(False, panel=PROGRAMS)

    def search_options(self) -> SearchOptions:
        """Return the options of opening the retriever."""
        return SearchOptions(device=self.device, threads=self.threads)
