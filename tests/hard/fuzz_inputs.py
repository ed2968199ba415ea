"""Random files for the readers: valid ones, and the same after a few edits."""

import json
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

os.environ.setdefault("OMP_NUM_THREADS", "1")

from hypothesis import strategies as st

from hybrid_cli.errors import HybridError

Files = dict[str, bytes]
Edits = list[tuple[float, int, bytes]]  # relative position, replaced bytes, new bytes
Rows = list[tuple[Any, ...]]

# ------------------------------------------------------------------------------------------------------------- inputs

TOKENS = [b"\x00", b"\xff", b"\xc3", b"\xef\xbb\xbf", b"\t", b"\n", b"\r", b"\r\n", b"\x0b", b"\x85", b'"', b"'", b"{"]
TOKENS += [b"}", b"[", b"]", b",", b":", b"\\", b"\\ud800", b"\\u0000", b"<", b">", b"<DOC>", b"</DOC>", b"<top>"]
TOKENS += [b"<num>", b"null", b"true", b"NaN", b"Infinity", b"-", b"0", b"1", b"1.0", b"1e999", b"1_0", b"-1"]
TOKENS += [b"2147483648", b"9" * 400, b"9" * 5000, b"[" * 2000, b"[" * 200_000, b" ", b"x" * 300, "\u0663".encode()]
TOKENS += ["\u2028".encode(), "\U0001f600".encode(), b"id", b"_id", b"text", b"title", b"score", b"answers", b"Q0"]
TOKENS += [b"\x1f\x8b\x08", b"../x"]
EDIT = st.tuples(st.floats(0, 1), st.integers(0, 12), st.one_of(st.sampled_from(TOKENS), st.binary(max_size=6)))
FEW: st.SearchStrategy[Edits] = st.just([]) | st.lists(EDIT, max_size=2)
ID = st.text(st.characters(codec="utf-8", exclude_characters="\t\r\n"), min_size=1, max_size=8).filter(
    lambda text: bool(text.strip())
)
TEXT = st.text(st.characters(codec="utf-8"), max_size=30)
LINE = st.text(st.characters(codec="utf-8", exclude_characters="\t\r\n"), max_size=30)
WORD = st.from_regex(r"[a-zA-Z0-9_.-]{1,8}", fullmatch=True)
GRADE = st.integers(-(2**31) + 1, 2**31 - 1)
SCORE = st.floats(width=32, allow_nan=False, allow_infinity=False)
JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


def edited(content: bytes, edits: Edits) -> bytes:
    """Return `content` after edits: at a relative position, so many bytes are replaced."""
    for where, length, put in edits:
        at = int(where * len(content))
        content = content[:at] + put + content[at + length :]
    return content


@st.composite
def damaged(draw: st.DrawFn, files: st.SearchStrategy[Files]) -> tuple[Files, bool]:
    """Draw files and edit one of them or none; return them, and whether they are as written."""
    found = dict(draw(files))
    edits = draw(st.lists(EDIT, max_size=3))
    if edits:
        name = draw(st.sampled_from(sorted(found)))
        found[name] = edited(found[name], edits)
    return found, not edits


def json_lines(rows: list[dict[str, Any]]) -> bytes:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()


def tabbed(*rows: tuple[Any, ...]) -> bytes:
    return "".join("\t".join(map(str, row)) + "\n" for row in rows).encode()


@contextmanager
def folder_of(files: Mapping[str, bytes]) -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="fuzz-"))
    try:
        for name, content in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content)
        yield folder
    finally:
        shutil.rmtree(folder)


def accepted(read: Callable[[], Any], valid: bool) -> Any:
    """Return what a reader returns, or None if it refuses the input, which must not be valid."""
    try:
        found = read()
    except HybridError as error:
        if valid or not str(error).strip():
            raise AssertionError("valid input is refused, or the message is empty") from error
        COUNTS["refused"] += 1
        return None
    COUNTS["accepted"] += 1
    return found


COUNTS: Counter[str] = Counter()
TARGETS: dict[str, tuple[st.SearchStrategy[Any], Callable[..., None]]] = {}
Check = TypeVar("Check", bound=Callable[..., None])


def target(*strategies: st.SearchStrategy[Any]) -> Callable[[Check], Check]:
    """Register a check of one reader, and the strategies of its arguments."""

    def register(check: Check) -> Check:
        TARGETS[check.__name__] = (st.tuples(*strategies), check)
        return check

    return register


@st.composite
def changed(draw: st.DrawFn, valid: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(json.dumps(valid))
    for _ in range(draw(st.integers(0, 2))):
        inside = found
        while True:
            name = draw(st.sampled_from([*sorted(inside), "other"]))
            below = inside.get(name)
            if not isinstance(below, dict) or draw(st.booleans()):
                break
            inside = below
        if draw(st.booleans()):
            inside.pop(name, None)
        else:
            inside[name] = draw(JSON | st.sampled_from([0, -1, 1 << 40, 1e308, "", "x", "../..", [], {}]))
    return found


def as_json(content: Any, edits: Edits) -> bytes:
    return edited(json.dumps(content).encode(), edits)
