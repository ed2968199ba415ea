"""Run `hybrid ARGUMENTS` inside the process of the test, without starting Python."""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import pytest

from hybrid_cli import console
from hybrid_cli.cli import main
from hybrid_cli.errors import HybridError, InputError


class Done(NamedTuple):
    """Exit code, stdout and stderr of a command, and the error that ended it."""

    code: int
    out: str
    err: str
    error: BaseException | None = None

    @property
    def problem(self) -> str:
        """The code of the error, such as `grade-out-of-range`; empty without one."""
        return self.error.code if isinstance(self.error, HybridError) else ""

    @property
    def fields(self) -> dict[str, object]:
        """The fields of the error."""
        return self.error.fields if isinstance(self.error, HybridError) else {}


def hybrid(*arguments: object) -> Done:
    """Run `hybrid ARGUMENTS` through the program's entry point; return exit code, stdout and stderr."""
    out, err, code, error = io.StringIO(), io.StringIO(), 0, None
    words = ["hybrid", *map(str, arguments)]
    with patch.object(sys, "argv", words), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main()
        except SystemExit as stopped:
            code = stopped.code if isinstance(stopped.code, int) else int(stopped.code is not None)
            error = stopped.__context__
        finally:
            console.set_quiet(False)
            console.set_verbose(False)
            console.log_to(None)
    return Done(code, out.getvalue(), err.getvalue(), error)


def refused(*arguments: object, words: str = "", problem: str = "", code: int = 2) -> Done:
    """Run a command that must be refused in one line and must not change the folder.

    Args:
        arguments: words of the command.
        words: part of the message.
        problem: code of the error.
        code: exit code.
    """
    before = listing()
    done = hybrid(*arguments)
    assert (done.code, done.out, done.err.count("\n")) == (code, "", 1), done
    assert done.err.startswith("hybrid: ")
    assert words in done.err
    assert problem in ("", done.problem)
    assert listing() == before
    return done


@contextlib.contextmanager
def fails(
    code: str, error: type[HybridError] = InputError, **fields: Any
) -> Iterator[pytest.ExceptionInfo[HybridError]]:
    """Expect an error with this code and at least these fields; the name of a file stands for its path."""
    with pytest.raises(error) as caught:
        yield caught
    actual = {name: caught.value.fields.get(name) for name in fields}
    names = {name: value.name if isinstance(value, Path) else value for name, value in actual.items()}
    assert caught.value.code == code, repr(caught.value)
    assert all(fields[name] in (actual[name], names[name]) for name in fields), (fields, actual)


def listing() -> dict[str, bytes]:
    """Return the bytes of every file below the current folder; links are followed."""
    return {str(path): path.read_bytes() for path in sorted(Path().glob("**/*")) if path.is_file()}
