"""Artifacts on disk: kinds, schemas, manifests, atomic writes and checked reads.

Every artifact has a manifest with its kind and origin: Parquet files in their footer under the key `hybrid`, folders in
`manifest.json`. Before it starts, a stage checks and locks its output path; it writes to a scratch path next to it and
renames, so a file or folder under its final name is always complete. Parquet, JSON and HTML files contain no clock
time: the same inputs and options give the same bytes.
"""

from hybrid_cli.artifacts.checks import check_output_path as check_output_path
from hybrid_cli.artifacts.checks import keeping_equal_outputs as keeping_equal_outputs
from hybrid_cli.artifacts.checks import options_of as options_of
from hybrid_cli.artifacts.checks import same_call as same_call
from hybrid_cli.artifacts.inputs import Input as Input
from hybrid_cli.artifacts.inputs import Named as Named
from hybrid_cli.artifacts.inputs import Part as Part
from hybrid_cli.artifacts.inputs import Recorded as Recorded
from hybrid_cli.artifacts.inputs import describe_inputs as describe_inputs
from hybrid_cli.artifacts.inputs import has_content as has_content
from hybrid_cli.artifacts.inputs import recorded_input as recorded_input
from hybrid_cli.artifacts.manifest import Manifest as Manifest
from hybrid_cli.artifacts.manifest import enclosing_artifact as enclosing_artifact
from hybrid_cli.artifacts.manifest import find_manifest as find_manifest
from hybrid_cli.artifacts.manifest import hard_link as hard_link
from hybrid_cli.artifacts.manifest import read_manifest as read_manifest
from hybrid_cli.artifacts.output import DryRun as DryRun
from hybrid_cli.artifacts.output import Output as Output
from hybrid_cli.artifacts.output import dry_run as dry_run
from hybrid_cli.artifacts.output import lock_growing as lock_growing
from hybrid_cli.artifacts.output import open_output as open_output
from hybrid_cli.artifacts.output import output_of as output_of
