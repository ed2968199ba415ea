"""Runs: one row per hit, ordered by query and rank."""

from hybrid_cli.runs.files import name_runs as name_runs
from hybrid_cli.runs.files import named_once as named_once
from hybrid_cli.runs.files import open_run as open_run
from hybrid_cli.runs.files import pick as pick
from hybrid_cli.runs.files import read_run as read_run
from hybrid_cli.runs.files import with_probability as with_probability
from hybrid_cli.runs.given import RunLike as RunLike
from hybrid_cli.runs.given import frame_of as frame_of
from hybrid_cli.runs.given import of_dictionary as of_dictionary
from hybrid_cli.runs.given import run_table as run_table
from hybrid_cli.runs.given import table_of as table_of
from hybrid_cli.runs.run import Run as Run
from hybrid_cli.runs.tables import SCHEMA as SCHEMA
from hybrid_cli.runs.tables import SortedIds as SortedIds
from hybrid_cli.runs.tables import empty as empty
from hybrid_cli.runs.tables import positions as positions
from hybrid_cli.runs.tables import ranked as ranked
from hybrid_cli.runs.tables import rerank_hits as rerank_hits
