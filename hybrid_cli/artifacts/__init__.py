"""Artifacts on disk: kinds, schemas, manifests, atomic writes and checked reads.

Every artifact has a manifest with its kind and origin: Parquet files in their footer under the key `hybrid`, folders in
`manifest.json`. Before it starts, a stage checks and locks its output path; it writes to a scratch path next to it and
renames, so a file or folder under its final name is always complete. Parquet, JSON and HTML files contain no clock
time: the same inputs and options give the same bytes.
"""

from hybrid_cli.artifacts.checks import check_output_path, keeping_equal_outputs, options_of, same_call
from hybrid_cli.artifacts.inputs import Input, Named, Part, Recorded, describe_inputs, has_content, recorded_input
from hybrid_cli.artifacts.manifest import (
    Manifest,
    enclosing_artifact,
    find_manifest,
    hard_link,
    read_manifest,
    refuse_missing_plugin,
)
from hybrid_cli.artifacts.output import DryRun, Output, dry_run, lock_growing, open_output, output_of

__all__ = [
    "DryRun",
    "Input",
    "Manifest",
    "Named",
    "Output",
    "Part",
    "Recorded",
    "check_output_path",
    "describe_inputs",
    "dry_run",
    "enclosing_artifact",
    "find_manifest",
    "hard_link",
    "has_content",
    "keeping_equal_outputs",
    "lock_growing",
    "open_output",
    "options_of",
    "output_of",
    "read_manifest",
    "recorded_input",
    "refuse_missing_plugin",
    "same_call",
]
