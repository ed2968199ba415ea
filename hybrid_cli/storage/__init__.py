"""Files: names and schemas of tables, atomic and synced writes, checksums, and what a file records about itself."""

from hybrid_cli.storage.files import hard_link, replacing, restore, sizes
from hybrid_cli.storage.integrity import (
    check_file,
    check_listed,
    check_parts,
    damage,
    one_version,
    refuse_lost,
    refuse_lost_rows,
    replaced_error,
)
from hybrid_cli.storage.records import (
    FORMAT,
    MANIFEST,
    Record,
    find_record,
    fingerprint,
    has_checksums,
    hash_folder,
    read_record,
)
from hybrid_cli.storage.schemas import COLUMN_TYPES, PROBABILITY, SCHEMAS, Kind
from hybrid_cli.storage.tables import (
    check_table,
    column_names,
    reading,
    regroup,
    row_count,
    validate_parquet,
    write_parquet,
)

__all__ = [
    "COLUMN_TYPES",
    "FORMAT",
    "MANIFEST",
    "PROBABILITY",
    "SCHEMAS",
    "Kind",
    "Record",
    "check_file",
    "check_listed",
    "check_parts",
    "check_table",
    "column_names",
    "damage",
    "find_record",
    "fingerprint",
    "hard_link",
    "has_checksums",
    "hash_folder",
    "one_version",
    "read_record",
    "reading",
    "refuse_lost",
    "refuse_lost_rows",
    "regroup",
    "replaced_error",
    "replacing",
    "restore",
    "row_count",
    "sizes",
    "validate_parquet",
    "write_parquet",
]
