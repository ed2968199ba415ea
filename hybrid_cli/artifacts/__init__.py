"""What is on disk: kinds, schemas, manifests, atomic writes and checked reads.

Every artifact carries a manifest that says what it is and where it came from: Parquet files in their footer under the
key `hybrid`, folders in `manifest.json`. A stage claims its output, writes beside it and renames, so a name that exists
is a whole artifact. Files hold no clock time: the same inputs and options give the same bytes.
"""

from hybrid_cli.artifacts.manifest import (
    FORMAT,
    MANIFEST,
    SCHEMAS,
    Kind,
    Manifest,
    check_table,
    find_manifest,
    fingerprint,
    hash_folder,
    read_manifest,
    row_count,
    sizes,
    source,
    validate_parquet,
)
from hybrid_cli.artifacts.output import DryRun, Output, dry_run, hard_link, open_output, regrouped, write_parquet

__all__ = [
    "FORMAT",
    "MANIFEST",
    "SCHEMAS",
    "DryRun",
    "Kind",
    "Manifest",
    "Output",
    "check_table",
    "dry_run",
    "find_manifest",
    "fingerprint",
    "hard_link",
    "hash_folder",
    "open_output",
    "read_manifest",
    "regrouped",
    "row_count",
    "sizes",
    "source",
    "validate_parquet",
    "write_parquet",
]
