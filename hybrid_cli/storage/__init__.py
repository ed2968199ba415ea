"""Files: names and schemas of tables, atomic and synced writes, checksums."""

from hybrid_cli.storage.schemas import SCHEMAS, Kind

__all__ = ["SCHEMAS", "Kind"]
