"""JSON values of other types than declared: the error names the element, its type and the needed one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal

import pytest

from hybrid_cli.errors import InputError
from hybrid_cli.input_files import Location
from hybrid_cli.json_files import describe_value, has_type, make_typed, mismatch
from hybrid_cli.json_rows import check_field

FILE = Path("stored.json")


class Color(StrEnum):
    RED = "red"


@dataclass(frozen=True)
class Stored:
    """Every declared form of type."""

    name: str
    count: int = 0
    share: float | None = None
    mode: Literal["a", "b"] = "a"
    color: Color = Color.RED
    files: tuple[str, ...] | None = None
    pair: tuple[int, str] = (0, "")
    inputs: Mapping[str, dict[str, str]] = field(default_factory=dict)
    rows: Sequence[dict[str, list[int]]] = ()
    anything: Any = None


GOOD: dict[str, Any] = {
    "name": "", "count": 1, "share": 1, "mode": "b", "color": "red", "files": ["a"], "pair": [1, "x"],
    "inputs": {"a": {"b": "c"}}, "rows": [{"x": []}, {"x": [1]}], "anything": [{}],
}  # fmt: skip
WRONG: list[tuple[str, Any, str, Any, str]] = [
    ("name", None, "field 'name'", None, "a text"),
    ("count", True, "field 'count'", True, "a whole number"),
    ("share", float("inf"), "field 'share'", float("inf"), "a finite number or null"),
    ("mode", "c", "field 'mode'", "c", "a or b"),
    ("color", {}, "field 'color'", {}, "red"),
    ("files", ["a", 1], "field 'files', item 2", 1, "a text"),
    ("files", [["a"]], "field 'files', item 1", ["a"], "a text"),
    ("pair", [1], "field 'pair'", [1], "a list of 2 items"),
    ("inputs", {"a": []}, "field 'inputs', field 'a'", [], "an object"),
    ("rows", [{"x": [1]}, {"y": [1, None]}], "field 'rows', item 2, field 'y', item 2", None, "a whole number"),
]


def test_values_of_the_declared_types_are_read() -> None:
    stored = make_typed(Stored, GOOD, FILE)
    assert (stored.color, stored.pair, stored.inputs) == (Color.RED, (1, "x"), GOOD["inputs"])


@pytest.mark.parametrize(("name", "value", "element", "inner", "needed"), WRONG)
def test_the_element_of_another_type_is_named(name: str, value: Any, element: str, inner: Any, needed: str) -> None:
    with pytest.raises(InputError) as caught:
        make_typed(Stored, {**GOOD, name: value}, FILE)
    assert caught.value.code == "json-type"
    assert caught.value.fields == {"path": FILE, "element": element, "value": inner}
    assert str(caught.value) == f"{FILE}: {element} is {describe_value(inner)}; needs {needed}"
    assert describe_value(inner) != needed


@pytest.mark.parametrize(
    ("values", "problem", "element"),
    [
        ({**GOOD, "telepathy": 1}, "json-unknown-field", "telepathy"),
        ({"count": 1}, "json-missing-field", "name"),
        ([GOOD], "not-an-object", None),
        (None, "not-an-object", None),
    ],
)
def test_other_fields_are_refused(values: Any, problem: str, element: str | None) -> None:
    with pytest.raises(InputError) as caught:
        make_typed(Stored, values, FILE)
    assert (caught.value.code, caught.value.fields.get("element")) == (problem, element)
    assert caught.value.fields["path"] == FILE


def test_the_arm_of_a_union_with_the_outer_type_names_the_element() -> None:
    assert has_type([1, "a"], list[str | int] | str)
    assert has_type("a", list[str | int] | str)
    found = mismatch(["a", {}], list[str | int] | str)
    assert found is not None
    assert (found.element, found.needed) == ("item 2", "a text or a whole number")


def test_a_field_of_a_row_names_its_line_and_item() -> None:
    location = Location(FILE, 7)
    check_field({"answers": ["a"]}, "answers", list[str], location, "answers-form")
    with pytest.raises(InputError) as caught:
        check_field({"answers": ["a", ["b"]]}, "answers", list[str], location, "answers-form")
    assert caught.value.code == "answers-form"
    assert caught.value.fields == {
        "path": FILE, "line": 7, "column": "answers", "element": "field 'answers', item 2",
    }  # fmt: skip
