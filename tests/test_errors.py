"""Errors for programs: a command that was called with `--format json` prints its error as a JSON object."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from command import hybrid


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["inspect", "absent"], {"code": "no-such-file", "path": "absent"}),
        (
            ["evaluate", "absent", "run.trec", "-l", "0"],
            {"code": "out-of-range", "option": "relevance_level", "minimum": 1},
        ),
        (["evaluate", "absent", "run.trec", "--no-such"], {"code": "no-such-option", "option": "no_such"}),
        (
            ["inspect", "x", "--quiet", "--verbose"],
            {"code": "conflicting-options", "option": "quiet", "others": ["verbose"]},
        ),
    ],
)
def test_an_error_is_a_json_object_for_a_command_of_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], expected: dict[str, Any]
) -> None:
    monkeypatch.chdir(tmp_path)
    plain = hybrid(*words)
    for form in (["--format", "json"], ["--format=json"]):
        done = hybrid(*words, *form)
        content = json.loads(done.err)
        assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
        assert plain.err == f"hybrid: {content['error']}\n"
        assert {name: content.get(name) for name in expected} == expected
