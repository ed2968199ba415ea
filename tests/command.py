"""Run `hybrid ARGUMENTS` inside the process of the test, without starting Python."""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import pytest

from hybrid_cli import console
from hybrid_cli.cli import main
from hybrid_cli.errors import HybridError, InputError


@dataclass(frozen=True)
class Notices:
    """The warnings, notes and errors of a command or of a test; see `console.heard`."""

    heard: list[console.Notice]

    def says(self, code: str, /, **fields: object) -> bool:
        """Test whether a warning or note has this code and at least these fields; see `raises`."""
        return any(_fits(notice, code, fields) for notice in self.heard)

    def count(self, code: str, /, **fields: object) -> int:
        """Return the number of warnings and notes with this code and at least these fields."""
        return sum(_fits(notice, code, fields) for notice in self.heard)

    @property
    def warnings(self) -> list[str]:
        return [notice.code for notice in self.heard if notice.level == "warning"]

    def clear(self) -> None:
        self.heard.clear()


class Done(NamedTuple):
    """Exit code, stdout and stderr of a command, the error that ended it, its warnings and notes."""

    code: int
    out: str
    err: str
    error: BaseException | None
    notices: Notices

    @property
    def failure(self) -> console.Notice:
        """The error that was printed; without one, a notice without code and fields."""
        return next((notice for notice in self.notices.heard if notice.level == "error"), console.Notice("error", ""))

    @property
    def problem(self) -> str:
        """The code of the error, such as `grade-out-of-range`; empty without one."""
        return self.failure.code

    @property
    def fields(self) -> Mapping[str, object]:
        return self.failure.fields

    @property
    def warnings(self) -> list[str]:
        return self.notices.warnings

    def says(self, code: str, /, **fields: object) -> bool:
        """Test whether a warning or note has this code and at least these fields; see `raises`."""
        return self.notices.says(code, **fields)

    def is_problem(self, code: str | Refusal, /, **fields: object) -> bool:
        """Test the code and some fields of the error; see `raises`."""
        return _fits(self.failure, code, fields)


class Refusal(NamedTuple):
    """What an error must be, for tables of parameters; `refusal` makes it."""

    code: str
    fields: dict[str, object]


def refusal(code: str, /, **fields: object) -> Refusal:
    return Refusal(code, fields)


def cases(values: Iterable[str], *kept: str) -> list[Any]:
    """Return the values of a parameter: all but `kept` are cases of `make hard` only."""
    return [each if each in kept else pytest.param(each, marks=pytest.mark.exhaustive) for each in values]


@contextlib.contextmanager
def raises(
    code: str | Refusal = "", expected: type[HybridError] = InputError, /, **fields: object
) -> Iterator[pytest.ExceptionInfo[HybridError]]:
    """Expect an error with a code and at least these fields; `path="run.txt"` fits every folder.

    Args:
        code: expected code, or code and fields; empty if the code is among `fields`.
        expected: class of the error.
        fields: expected values of fields.
    """
    code = code or str(fields.pop("code"))
    with pytest.raises(expected) as caught:
        yield caught
    assert _fits(caught.value, code, fields), (caught.value.code, caught.value.fields, str(caught.value))


def _fits(error: HybridError | console.Notice, code: str | Refusal, fields: dict[str, object]) -> bool:
    expected = code if isinstance(code, Refusal) else Refusal(code, {})
    wanted = {**expected.fields, **fields}
    return error.code == expected.code and all(_equal(error.fields.get(name), wanted[name]) for name in wanted)


def _equal(value: object, wanted: object) -> bool:
    """Compare a value of a field; a text fits the end of a path, and the text of another value."""
    if isinstance(wanted, str):
        return str(value) == wanted or str(value).endswith(f"/{wanted}")
    return value == wanted


def hybrid(*arguments: object) -> Done:
    """Run `hybrid ARGUMENTS` through the program's entry point; return exit code, stdout and stderr."""
    out, err, code, error = io.StringIO(), io.StringIO(), 0, None
    words = ["hybrid", *map(str, arguments)]
    streams = contextlib.redirect_stdout(out), contextlib.redirect_stderr(err)
    with patch.object(sys, "argv", words), streams[0], streams[1], console.heard() as heard:
        try:
            main()
        except SystemExit as stopped:
            code = stopped.code if isinstance(stopped.code, int) else int(stopped.code is not None)
            error = stopped.__context__
        finally:
            console.set_quiet(False)
            console.set_verbose(False)
            console.log_to(None)
    return Done(code, out.getvalue(), err.getvalue(), error, Notices(heard))


def ran(*arguments: object) -> Done:
    done = hybrid(*arguments)
    assert done.code == 0, done.err
    return done


def refused(*arguments: object, problem: str | Refusal = "", code: int = 2, **fields: object) -> Done:
    """Run a command that must be refused in one line and must not change the folder.

    Args:
        arguments: words of the command.
        problem: code of the error, or code and fields.
        code: exit code.
        fields: expected fields of the error; see `raises`.
    """
    before = listing()
    done = hybrid(*arguments)
    assert (done.code, done.out, done.err.count("\n")) == (code, "", 1), done
    assert done.err.startswith("hybrid: ")
    assert problem == "" or done.is_problem(problem, **fields), (done.problem, done.fields, done.err)
    assert listing() == before
    return done


def listing() -> dict[str, bytes]:
    """Return the bytes of every file below the current folder, a test's own; links are followed."""
    assert not Path("pyproject.toml").exists(), "call monkeypatch.chdir(tmp_path) first: other tests write here too"
    return {str(path): path.read_bytes() for path in sorted(Path().glob("**/*")) if path.is_file()}
