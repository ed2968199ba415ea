"""Artifacts on disk: kinds, schemas, manifests, atomic writes and checked reads.

Every artifact has a manifest with its kind and origin: Parquet files in their footer under the key `hybrid`, folders in
`manifest.json`. Before it starts, a stage checks and locks its output path; it writes to a scratch path next to it and
renames, so a file or folder under its final name is always complete. Parquet, JSON and HTML files contain no clock
time: the same inputs and options give the same bytes.
"""

from hybrid_cli.artifacts.checks import check_place, keeping_equal_outputs
from hybrid_cli.artifacts.history import options_of, same_call
from hybrid_cli.artifacts.inputs import Input, Named, Recorded, describe_inputs, has_content, recorded_input
from hybrid_cli.artifacts.manifest import (
    Manifest,
    enclosing_artifact,
    find_manifest,
    hard_link,
    read_manifest,
    refuse_missing_plugin,
)
from hybrid_cli.artifacts.output import DryRun, Output, dry_run, lock_growing, open_output, output_of
from hybrid_cli.storage import (
    FORMAT,
    MANIFEST,
    check_file,
    check_listed,
    check_parts,
    check_table,
    column_names,
    damage,
    fingerprint,
    has_checksums,
    hash_folder,
    one_version,
    reading,
    refuse_lost,
    refuse_lost_rows,
    regrouped,
    replaced,
    replacing,
    restore,
    row_count,
    sizes,
    stored_bytes,
    validate_parquet,
    write_parquet,
)

__all__ = [
    "FORMAT",
    "MANIFEST",
    "DryRun",
    "Input",
    "Manifest",
    "Named",
    "Output",
    "Recorded",
    "check_file",
    "check_listed",
    "check_parts",
    "check_place",
    "check_table",
    "column_names",
    "damage",
    "describe_inputs",
    "dry_run",
    "enclosing_artifact",
    "find_manifest",
    "fingerprint",
    "hard_link",
    "has_checksums",
    "has_content",
    "hash_folder",
    "keeping_equal_outputs",
    "lock_growing",
    "one_version",
    "open_output",
    "options_of",
    "output_of",
    "read_manifest",
    "reading",
    "recorded_input",
    "refuse_lost",
    "refuse_lost_rows",
    "refuse_missing_plugin",
    "regrouped",
    "replaced",
    "replacing",
    "restore",
    "row_count",
    "same_call",
    "sizes",
    "stored_bytes",
    "validate_parquet",
    "write_parquet",
]
