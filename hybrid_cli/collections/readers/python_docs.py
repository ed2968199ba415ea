"""A retrieval task from docstrings: find the document whose docstring begins with the query.

The source files of installed packages are parsed with `ast`; they are never imported or run.
"""

from __future__ import annotations

import ast
import hashlib
import re
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import packages_distributions, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from hybrid_cli.collections.options import PythonDocs
from hybrid_cli.collections.source import Document, Judgment, Location, Query, Source
from hybrid_cli.draws import draw
from hybrid_cli.errors import InputError
from hybrid_cli.inputs.files import read_bytes

# Minimum words (runs of two or more letters) of a query and of a document. Our choice: shorter texts are labels.
MIN_QUERY_WORDS, MAX_QUERY_WORDS, MIN_WORDS = 3, 64, 10
_PACKAGES = ("numpy", "scipy", "sklearn", "pandas")  # without given ones
_TESTS = {"tests", "test", "conftest", "setup"}
_VENDORED = {"externals", "_external", "extern", "_vendor", "_vendored", "vendored"}
_VENDORED |= {"array_api_compat", "array_api_extra", "cobyqa", "pyprima", "_uarray"}  # in scipy
_SIGNATURE = re.compile(r"[\w.]+\s*\(.*\)(\s*->.*)?")
_WORD = re.compile(r"[^\W\d_]{2,}")
_Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


class Docstring(NamedTuple):
    """A docstring with the name of its definition: first paragraph on one line, and the rest."""

    name: str
    summary: str
    rest: str
    location: Location


@dataclass(frozen=True)
class _Task:
    """Documents and their queries; `facts` counts the excluded docstrings."""

    documents: list[Docstring]
    queries: dict[str, list[Docstring]]
    facts: dict[str, Any]


def source(options: PythonDocs) -> Source:
    """Return the task over the packages; its queries are split into train, dev and test.

    Raises:
        InputError: a package is not installed, or is not made of Python files.
    """
    packages = options.package or [name for name in _PACKAGES if find_spec(name)]
    roots = {name: _root(name) for name in dict.fromkeys(packages)}

    @cache
    def task() -> _Task:
        made = _make_task(docstring for name, root in roots.items() for docstring in read_package(name, root))
        result.facts.update(made.facts)
        return made

    def documents() -> Iterator[Document]:
        for docstring in task().documents:
            yield Document(docstring.name, docstring.name, docstring.rest, docstring.location)

    def queries() -> Iterator[Query]:
        for summary, relevant in task().queries.items():
            qid = _qid(relevant)
            yield Query(split_of(qid, options.seed), qid, summary, None, relevant[0].location)

    def judgments() -> Iterator[Judgment]:
        for relevant in task().queries.values():
            qid = _qid(relevant)
            for docstring in relevant:
                yield Judgment(split_of(qid, options.seed), qid, docstring.name, 1, docstring.location)

    recorded = {"packages": {name: _version(name, root) for name, root in roots.items()}}
    result = Source("python-docs", documents, queries, judgments, options=recorded)
    return result


def _qid(relevant: Sequence[Docstring]) -> str:
    """Return the query id: a prefix and the first relevant docid. Some evaluators drop hits whose docid is the qid."""
    return f"q:{relevant[0].name}"


def split_of(qid: str, seed: int) -> str:
    """Return train, dev or test in the proportions 70 : 10 : 20, independently of all other queries."""
    fraction = draw(seed, qid) / 2**64
    return "train" if fraction < 0.7 else "dev" if fraction < 0.8 else "test"


# ----------------------------------------------------------------------------------------------------- the packages


def _root(package: str) -> Path:
    spec = find_spec(package) if package.isidentifier() else None
    if spec is None or not spec.submodule_search_locations:
        problem = f"--package {package}: not installed; use the name of the import (sklearn, not scikit-learn)"
        raise InputError(problem, code="missing-package", option="package")
    return Path(next(iter(spec.submodule_search_locations)))


def _version(package: str, root: Path) -> str:
    """Return the version of the distribution; without a distribution, a hash of the files."""
    if distributions := packages_distributions().get(package):
        return version(distributions[0])
    digest = hashlib.blake2b(digest_size=8)
    for path in _modules(root):
        digest.update(read_bytes(path))
    return digest.hexdigest()


def _modules(root: Path) -> list[Path]:
    """Return the Python files of a package, without tests and vendored packages."""
    paths = []
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        if not any(part in _TESTS | _VENDORED or part.startswith(("test_", "_test")) for part in parts):
            paths.append(path)
    return paths


def read_package(package: str, root: Path) -> Iterator[Docstring]:
    """Yield the docstrings of public classes, functions and methods, in the order of files and lines."""
    for path in _modules(root):
        names = [package, *path.relative_to(root).with_suffix("").parts]
        module = ".".join(names[:-1] if names[-1] == "__init__" else names)
        try:
            with warnings.catch_warnings(action="ignore"):
                tree = ast.parse(read_bytes(path))
        except (SyntaxError, ValueError):  # a template, or syntax of another Python version
            continue
        yield from _docstrings(tree, module, f"{package}/{path.relative_to(root).as_posix()}")


def _docstrings(node: ast.AST, prefix: str, file: str) -> Iterator[Docstring]:
    """Yield the docstrings of definitions, also within `if`, `try` and `with`, but not within functions."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, _Definition):
            if child.name.startswith("_"):
                continue
            name = f"{prefix}.{child.name}"
            if text := ast.get_docstring(child):
                yield Docstring(name, *_summary_and_rest(text), Location(file, child.lineno))
            if isinstance(child, ast.ClassDef):
                yield from _docstrings(child, name, file)
        elif isinstance(child, ast.If | ast.Try | ast.With | ast.ExceptHandler):
            yield from _docstrings(child, prefix, file)


def _summary_and_rest(text: str) -> tuple[str, str]:
    """Return the first paragraph, with white space folded, and the rest; a signature before it is skipped."""
    first, rest = _cut(text)
    return _cut(rest) if _SIGNATURE.fullmatch(first) else (first, rest)


def _cut(text: str) -> tuple[str, str]:
    first, _, rest = re.sub(r"\n[ \t]+\n", "\n\n", text).partition("\n\n")
    return " ".join(first.split()), rest.strip()


# --------------------------------------------------------------------------------------------------------- the task


def _make_task(docstrings: Iterator[Docstring]) -> _Task:
    """Exclude unsuitable docstrings, merge copies, and create one query per distinct first paragraph."""
    left_out: Counter[str] = Counter()
    kept: dict[str, Docstring] = {}
    for docstring in docstrings:
        if reason := _unfit(docstring):
            left_out[reason] += 1
        elif docstring.name in kept:
            left_out["name defined again"] += 1
        else:
            kept[docstring.name] = docstring
    merged: dict[tuple[str, str], list[Docstring]] = {}
    for name in sorted(kept):
        merged.setdefault((kept[name].summary, kept[name].rest), []).append(kept[name])
    documents = [copies[0] for copies in merged.values()]
    queries: dict[str, list[Docstring]] = {}
    for docstring in documents:
        queries.setdefault(docstring.summary, []).append(docstring)
    copied = [copies for copies in merged.values() if len(copies) > 1]
    facts = {
        "left_out": dict(sorted(left_out.items())),
        "copies_merged": {
            "count": sum(len(copies) - 1 for copies in copied),
            "examples": [f"{copies[1].name} = {copies[0].name}" for copies in copied[:3]],
        },
        "queries_with_several_documents": sum(len(relevant) > 1 for relevant in queries.values()),
    }
    return _Task(documents, queries, facts)


def _unfit(docstring: Docstring) -> str | None:
    words = len(_WORD.findall(docstring.summary))
    if words < MIN_QUERY_WORDS:
        return "first paragraph too short"
    if words > MAX_QUERY_WORDS:
        return "first paragraph too long"
    return "nothing after the first paragraph" if len(_WORD.findall(docstring.rest)) < MIN_WORDS else None
