"""Runs: one row per hit, ordered by query and rank."""

from hybrid_cli.runs.files import name_runs, named_once, open_run, pick, read_run, with_probability
from hybrid_cli.runs.given import RunLike, frame_of, of_dictionary, run_table, table_of
from hybrid_cli.runs.run import Run
from hybrid_cli.runs.tables import SCHEMA, SortedIds, empty, positions, ranked, rerank_hits

__all__ = [
    "SCHEMA",
    "Run",
    "RunLike",
    "SortedIds",
    "empty",
    "frame_of",
    "name_runs",
    "named_once",
    "of_dictionary",
    "open_run",
    "pick",
    "positions",
    "ranked",
    "read_run",
    "rerank_hits",
    "run_table",
    "table_of",
    "with_probability",
]
