"""Environments with a part of the installed packages: those of hybrid's dependencies, and of some of its extras."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement

import hybrid_cli

FORKED = """
import importlib, json, os, sys, tempfile
from hybrid_cli.cli import run
lines, given, modules = json.load(sys.stdin)
ended = [importlib.import_module(module) for module in modules][:0]
for line in lines:
    streams = [tempfile.TemporaryFile("w+") for _ in range(3)]
    streams[0].write(given)
    streams[0].seek(0)
    if not (child := os.fork()):
        for number, stream in enumerate(streams):
            os.dup2(stream.fileno(), number)
        sys.stdin, sys.argv = open(0, closefd=False), ["hybrid", *line.split()]
        run()
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    ended.append([line, code, *(stream.seek(0) or stream.read() for stream in streams[1:])])
print(json.dumps(ended))
"""
REPOSITORY = Path(hybrid_cli.__file__).parents[1]
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text("utf-8"))["project"]


def requirements(*extras: str) -> list[str]:
    """Return the requirements of hybrid, and of some of its extras, without those of other extras of its own."""
    lines = list(PROJECT["dependencies"])
    for extra in extras:
        for line in PROJECT["optional-dependencies"][extra]:
            of = Requirement(line)
            lines += requirements(*of.extras) if of.name == "hybrid_cli" else [line]
    return list(dict.fromkeys(lines))


def packages(*extras: str) -> set[str]:
    """Return the names of the installed packages that an installation with these extras brings."""
    names, seen, left = set(), set(), [Requirement(line) for line in requirements(*extras)]
    while left:
        required = left.pop()
        if str(required) in seen or not any(_applies(required, extra) for extra in ("", *required.extras)):
            continue
        seen.add(str(required))
        try:
            package = distribution(required.name)
        except PackageNotFoundError:  # a newer version of a package needs it
            continue
        names.add(package.name)
        for line in package.requires or ():
            inner = Requirement(line)
            if any(_applies(inner, extra) for extra in ("", *required.extras)):
                inner.marker = None
                left.append(inner)
    return names


def _applies(required: Requirement, extra: str) -> bool:
    return required.marker is None or required.marker.evaluate({"extra": extra})


class Environment:
    """A folder of links to installed packages, in which Python finds them and no others.

    Args:
        folder: folder of the links.
        extras: extras of hybrid.
        lacking: modules that are left out, as in a damaged environment.
    """

    def __init__(self, folder: Path, *extras: str, lacking: tuple[str, ...] = ()):
        folder.mkdir(parents=True)
        for name in packages(*extras):
            tops = {file.parts[0] for file in distribution(name).files or ()} - {"..", "__pycache__", *lacking}
            for top in tops:
                (folder / top).symlink_to(Path(str(distribution(name).locate_file(top))))
        self.variables = _variables(folder) | {"PYTHONPATH": os.pathsep.join([str(REPOSITORY), str(folder)])}
        self.command = [sys.executable, "-S"]  # without the packages of the running Python

    @classmethod
    def of(cls, home: Path) -> Environment:
        """Return the virtual environment in a folder."""
        environment = cls.__new__(cls)
        environment.variables, environment.command = _variables(home / "bin"), [str(home / "bin" / "python")]
        return environment

    def python(self, *words: object, given: str = "") -> subprocess.CompletedProcess[str]:
        line = [*self.command, *map(str, words)]
        return subprocess.run(line, env=self.variables, input=given, capture_output=True, text=True, check=False)

    def hybrid(self, *words: object, given: str = "") -> subprocess.CompletedProcess[str]:
        return self.python("-m", "hybrid_cli", *words, given=given)

    def forked(
        self, *lines: str, given: str = "", modules: tuple[str, ...] = ("polars", "pyarrow.parquet")
    ) -> dict[str, subprocess.CompletedProcess[str]]:
        """Run commands in turn, each forked from a process that has imported the command line and some modules."""
        done = self.python("-c", FORKED, given=json.dumps([lines, given, modules]))
        assert done.returncode == 0, done.stderr
        return {line: subprocess.CompletedProcess(line, *ended) for line, *ended in json.loads(done.stdout)}


def _variables(path: Path) -> dict[str, str]:
    """Return the environment of a process that finds no Java and no packages of this one."""
    return {**os.environ, "PYTHONPATH": "", "JAVA_HOME": "", "JDK_HOME": "", "PATH": str(path)}
