"""Batches of queries: queries that arrive together are encoded and searched together, and equal ones once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

from hybrid_cli.encoders.few_queries import FEW
from hybrid_cli.threads import ThreadPool

WINDOW = 0.005  # seconds in which further queries may join a batch
MOST = FEW  # queries of a batch


@dataclass
class _Waiting:
    """Queries that wait for the next batch of a key."""

    queries: dict[str, asyncio.Future[Any]] = field(default_factory=dict)
    running: bool = False
    alone: bool = True  # the last batch had one query, so the next one does not wait


class Batches:
    """Answers queries in threads; one batch of a key runs at a time.

    Args:
        answer: from a key and texts to one result per text; called in a thread.
        workers: number of threads.
    """

    def __init__(self, answer: Callable[[Any, Sequence[str]], Sequence[Any]], workers: int):
        self._answer = answer
        self._pool = ThreadPool(workers)
        self._waiting: dict[Hashable, _Waiting] = {}
        self._running: dict[tuple[Hashable, str], asyncio.Future[Any]] = {}

    async def get(self, key: Hashable, text: str) -> Any:
        """Return the result of one query; an equal query that is in flight is answered with it.

        Args:
            key: what the queries of a batch share, such as column, depth and filter.
            text: text of the query.
        """
        same = self._running.get((key, text))
        if same is None:
            same = self._running[key, text] = asyncio.get_running_loop().create_future()
            waiting = self._waiting.setdefault(key, _Waiting())
            waiting.queries[text] = same
            if not waiting.running:
                waiting.running = True
                task = asyncio.create_task(self._run(key, waiting))
                task.add_done_callback(lambda done: done.exception())
        return await asyncio.shield(same)

    def close(self) -> None:
        """Wait for the running batches, and end the threads."""
        self._pool.shutdown()

    async def _run(self, key: Hashable, waiting: _Waiting) -> None:
        loop = asyncio.get_running_loop()
        try:
            while waiting.queries:
                if not waiting.alone and len(waiting.queries) < MOST:
                    await asyncio.sleep(WINDOW)
                texts = list(waiting.queries)[:MOST]
                batch = {text: waiting.queries.pop(text) for text in texts}
                waiting.alone = len(texts) == 1 and not waiting.queries
                done = asyncio.ensure_future(loop.run_in_executor(self._pool, self._answer, key, texts))
                await asyncio.wait([done])
                error = done.exception()
                for number, (text, future) in enumerate(batch.items()):
                    self._running.pop((key, text), None)
                    if error is None:
                        future.set_result(done.result()[number])
                    else:
                        future.set_exception(error)
                        future.exception()  # is read, also if nobody waits any more
        finally:
            waiting.running = False
            if self._waiting.get(key) is waiting:
                del self._waiting[key]
