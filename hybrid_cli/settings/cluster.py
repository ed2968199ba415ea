"""Options of commands that can compute on several machines."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from hybrid_cli.cluster import Workers
from hybrid_cli.settings.common import Threaded
from hybrid_cli.settings.options import GENERAL, GIVEN, Settings, option, redeclare, when


@dataclass(frozen=True, kw_only=True)
class OnCluster(Settings, Workers):
    """A command that can compute on a Ray cluster."""

    ray_address: str | None = option(
        Workers.ray_address,
        "Compute on the Ray cluster at this address: `10.0.0.1:6379`, `auto` for the cluster of this machine, or "
        "`local` to start one. Its machines need the inputs under the same paths.",
        panel=GENERAL,
        recorded=False,
    )
    ray_workers: int = option(
        Workers.ray_workers,
        "Blocks in progress on the Ray cluster at a time. Each block uses one core.",
        panel=GENERAL,
        minimum=1,
        maximum=65536,
        applies=when(ray_address=GIVEN),
        recorded=False,
    )


@dataclass(frozen=True, kw_only=True)
class ThreadedOnCluster(OnCluster, Threaded):
    """A command that can compute on a Ray cluster, with several threads for each block."""

    ray_workers: int = redeclare(
        OnCluster,
        "ray_workers",
        help="Blocks in progress on the Ray cluster at a time. Each block uses `--threads` cores, or one core without "
        "`--threads`.",
    )

    @property
    def cores(self) -> int:
        """Number of cores of a block on a cluster."""
        return self.threads or 1

    def of_worker(self) -> Self:
        """Return the settings for a process that computes blocks; on a cluster, it has one thread by default."""
        return self if self.ray_address is None else self.changed(threads=self.cores)
