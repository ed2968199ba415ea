"""Options of every command that reads files, writes an output, draws random numbers or computes on several threads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path

from hybrid_cli.inputs import files as input_files
from hybrid_cli.settings import Settings
from hybrid_cli.settings.conversion import byte_count
from hybrid_cli.settings.options import GENERAL, REQUIRED, option


@dataclass(frozen=True, kw_only=True)
class ReadsFiles(Settings):
    """A command that reads files of other tools.

    Attributes:
        limits: Limits of an input file: `line`, bytes of a line (32Mi); `columns` of a table (1000); `expansion` of a
            compressed file after 256 MiB of its content (100 times).
    """

    limits: Mapping[str, int] = option(
        {},
        panel=GENERAL,
        minimum=1,
        parse=byte_count,
        metavar="NAME=N",
        recorded=False,
        choices=[field.name for field in fields(input_files.Limits)],
    )


@dataclass(frozen=True, kw_only=True)
class Overwrites(ReadsFiles):
    """A command that can write an artifact.

    Attributes:
        overwrite: Replace an existing output.
    """

    overwrite: bool = option(False, panel=GENERAL, recorded=False)


@dataclass(frozen=True, kw_only=True)
class Writes(Overwrites):
    """A command that always writes an artifact.

    Attributes:
        output: Output path.
    """

    output: Path = option(REQUIRED, "--output", "-o")


@dataclass(frozen=True, kw_only=True)
class MayWrite(Overwrites):
    """A command that prints its result, and writes it with `--output`.

    Attributes:
        output: Output path.
    """

    output: Path | None = option(None, "--output", "-o")


@dataclass(frozen=True, kw_only=True)
class Seeded(Settings):
    """A command that draws random numbers.

    Attributes:
        seed: Random seed.
    """

    seed: int = option(42, panel=GENERAL, minimum=0)


@dataclass(frozen=True, kw_only=True)
class Threaded(Settings):
    """A command that computes on several CPU threads.

    Attributes:
        threads: CPU threads.
    """

    threads: int | None = option(None, panel=GENERAL, minimum=1, maximum=1024, shown="all cores", recorded=False)
