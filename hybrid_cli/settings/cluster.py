"""Options of commands that can compute on several machines."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from hybrid_cli.settings.common import Threaded
from hybrid_cli.settings.options import GENERAL, GIVEN, option, when


@dataclass(frozen=True, kw_only=True)
class OnCluster(Threaded):
    """A command that can compute on a Ray cluster."""

    ray_address: str | None = option(
        None,
        "Compute on the Ray cluster at this address: `10.0.0.1:6379`, `auto` for the cluster of this machine, or "
        "`local` to start one. Its machines need the inputs under the same paths.",
        panel=GENERAL,
        recorded=False,
    )
    ray_workers: int = option(
        1,
        "Blocks in progress on the Ray cluster at a time. Each block uses `--threads` cores, or one core without "
        "`--threads`.",
        panel=GENERAL,
        minimum=1,
        maximum=65536,
        applies=when(ray_address=GIVEN),
        recorded=False,
    )

    def of_worker(self) -> Self:
        """Return the settings for a process that computes blocks; on a cluster, it has one thread by default."""
        return self if self.ray_address is None else self.changed(threads=self.threads or 1)
