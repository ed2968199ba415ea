"""Blocks of work on a Ray cluster: the same results in the same order, also when a machine ends."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from command import refused

from hybrid_cli import cluster
from hybrid_cli.errors import InputError
from hybrid_cli.settings.cluster import OnCluster
from hybrid_cli.stages.search import search

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def machines() -> Iterator[Any]:
    """A cluster of two machines with two cores each, on this machine."""
    from ray.cluster_utils import Cluster

    made: Any = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})
    made.add_node(num_cpus=2)
    made.wait_for_nodes()
    yield made
    made.shutdown()


def on(machines: Any) -> OnCluster:
    return OnCluster(ray_address=machines.address, ray_workers=4)


def squares(seconds: float) -> Callable[[], Callable[[int], int]]:
    """Return a local function, which Ray sends by value: its processes cannot import the tests."""

    def start() -> Callable[[int], int]:
        def square(number: int) -> int:
            time.sleep(seconds)
            if number < 0:
                raise InputError(f"{number} is negative")
            return number**2

        return square

    return start


def test_runs_of_a_cluster_equal_those_of_one_process(machines: Any, made: Path, tmp_path: Path) -> None:
    for name in ("bm25", "dense"):
        output = tmp_path / f"{name}.parquet"
        found = search(
            made / "collection", split="test", index=made / name, output=output, ray_address=machines.address,
            ray_workers=2, threads=1,
        )  # fmt: skip
        assert pl.read_parquet(found).equals(pl.read_parquet(made / f"{name}.parquet"))


def test_an_error_of_a_block_is_that_of_one_process(machines: Any) -> None:
    with pytest.raises(InputError, match="-3 is negative"):
        list(cluster.ordered(on(machines), squares(0.0), [1, -3, 2]))


def test_blocks_of_a_machine_that_ends_are_computed_by_the_others(machines: Any) -> None:
    results = cluster.ordered(on(machines), squares(0.2), range(40))
    found = [next(results) for _ in range(5)]
    machines.remove_node(machines.list_all_nodes()[-1], allow_graceful=False)
    assert found + list(results) == [number**2 for number in range(40)]


def test_an_address_where_nothing_listens_is_refused(here: Path) -> None:
    words = "--ray-address 127.0.0.1:1: cannot connect"
    refused(
        "search", "collection", "--split", "test", "--index", "bm25", "--output", "run.parquet", "--ray-address",
        "127.0.0.1:1", words=words,
    )  # fmt: skip
