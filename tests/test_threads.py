"""Two stages in two threads have limits and messages of their own."""

from pathlib import Path
from threading import Barrier, Thread

import pytest

from hybrid_cli import console
from hybrid_cli.commands import PrepareFiles
from hybrid_cli.errors import InputError
from hybrid_cli.inputs import files as input_files
from hybrid_cli.stages.prepare import prepare
from hybrid_cli.threads import ThreadPool


def test_a_pool_has_the_context_of_its_caller() -> None:
    with input_files.change_limits({"line": 7}), ThreadPool(2) as pool:
        assert pool.submit(lambda: input_files.limits().line).result() == 7
        assert list(pool.map(lambda _: input_files.limits().line, range(3))) == [7, 7, 7]
    with ThreadPool(1) as pool:
        assert pool.submit(lambda: input_files.limits().line).result() > 7


def test_two_stages_at_once_do_not_share_their_limits(tmp_path: Path) -> None:
    source = tmp_path / "docs.jsonl"
    source.write_text('{"docid": "1", "text": "' + "word " * 100 + '"}\n')
    barrier, ends = Barrier(2), dict[int, str]()

    def run(limit: int) -> None:
        barrier.wait()
        for number in range(5):
            try:
                prepare(PrepareFiles([source], limits={"line": limit}, output=tmp_path / f"out-{limit}-{number}"))
                ends[limit] = ends.get(limit, "") + "."
            except InputError as error:
                ends[limit] = ends.get(limit, "") + error.code

    threads = [Thread(target=run, args=(limit,)) for limit in (100, 10_000)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert ends == {100: 5 * "line-too-long", 10_000: "....."}


def test_quiet_is_of_the_thread_that_sets_it(capsys: pytest.CaptureFixture[str]) -> None:
    def quietly() -> None:
        console.set_quiet(True)
        console.note("hidden")

    thread = Thread(target=quietly)
    thread.start()
    thread.join()
    console.note("shown")
    assert capsys.readouterr().err == "shown\n"


def test_notices_of_two_threads_do_not_mix() -> None:
    heard, barrier = dict[int, list[int]](), Barrier(2)

    def run(stage: int) -> None:
        with console.heard() as notices, ThreadPool(2) as pool:
            barrier.wait()
            list(pool.map(lambda step: console.note("a step", code="step", step=step), range(stage, stage + 5)))
        heard[stage] = sorted(int(str(notice.fields["step"])) for notice in notices)

    threads = [Thread(target=run, args=(stage,)) for stage in (0, 100)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert heard == {0: [0, 1, 2, 3, 4], 100: [100, 101, 102, 103, 104]}
