"""Refusals, generated from the declarations: every value outside of its type, range and choices, every option that does
not apply, is needed or is excluded, in every command.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import pytest

from hybrid_cli.commands import COMMANDS
from hybrid_cli.errors import InputError
from hybrid_cli.settings import Settings
from hybrid_cli.settings.conversion import bare_type, is_list, is_mapping, is_pair
from hybrid_cli.settings.options import GIVEN, POSITIVE, REQUIRED, By, Condition, Option

TEXTS = ["x", "MRR@10", "1G", "1,0.5", "0.5", "bm25", "train", "random:2", "utf-8", "1", "title", "year > 1", "x=1"]
TEXTS += ["a/b"]
# options whose variant has conditions of its own that no declaration tells
UNUSUAL = {"fuse": {"step"}, "evaluate": {"correction", "p_values", "test"}}  # of several runs
UNUSUAL |= {"export": {"collection", "split", "qrels", "dense", "model", "license", "measurements"}}
Values = dict[str, Any]


def item_type(kind: Any) -> Any:
    """Return the type of a value, or of each value of a list, pair or mapping."""
    kind = bare_type(kind)
    if is_list(kind) or is_pair(kind):
        return bare_type(get_args(kind)[0])
    return bare_type(get_args(kind)[1]) if is_mapping(kind) else kind


def choices_of(kind: Any, declared: Option) -> tuple[str, ...]:
    of = item_type(kind)
    return get_args(of) if get_origin(of) is Literal else tuple(declared.allowed() or ())


def item(kind: Any, declared: Option) -> Any:
    of, choices = item_type(kind), choices_of(kind, declared)
    if choices and not is_mapping(bare_type(kind)):
        return choices[0]
    if of is bool:
        return declared.default is False
    if declared.parse is None and of in (int, float):
        least = declared.minimum if declared.minimum is not None else (declared.above or 0) + 0.5
        return max(1, int(least)) if of is int else min(least or 0.5, declared.maximum or least or 0.5)
    return "x"


def sample(kind: type[Settings], name: str) -> Any:
    """Return an accepted value of an option; of a parsed text, the first that its parser takes."""
    declared, of = kind.declared()[name], bare_type(kind.types()[name])
    one = item(of, declared)
    if is_mapping(of):
        return {(choices_of(of, declared) or ("test",))[0]: one}
    if is_pair(of):
        return [one] * len(get_args(of))
    if declared.parse is not None and one == "x":
        for text in TEXTS:
            try:
                declared.parse(text)
            except (ValueError, TypeError):
                continue
            return text
    if is_list(of):
        return [one, "y"] if kind.command == "combine" and declared.positional else [one]
    return one


def wanted(kind: type[Settings], condition: Condition) -> Values:
    """Return values of options that fulfil a condition, as far as it names options."""
    found: Values = {}
    for name, allowed in condition.allowed.items():
        if name in kind.declared() and allowed is not None and allowed is not False:
            first = allowed[0] if isinstance(allowed, tuple) else allowed
            chosen = sample(kind, name) if allowed is GIVEN or allowed is POSITIVE else first
            listed = is_list(bare_type(kind.types()[name])) and not isinstance(chosen, list)
            found[name] = [chosen] if listed else chosen
    return found


def required(kind: type[Settings]) -> Values:
    return {name: sample(kind, name) for name, each in kind.declared().items() if each.default is REQUIRED}


def completed(kind: type[Settings], values: Values) -> Values:
    """Add the options that the given ones need or apply with, and remove those that they exclude."""
    kept, values = set(values), {**required(kind), **values}
    for _ in range(9):
        try:
            kind(**values)
        except InputError as error:
            name = str(error.fields.get("option", ""))
            declared = kind.declared().get(name)
            if error.code == "missing-option" and declared is not None and name not in values:
                values = {**values, name: sample(kind, name)}
            elif error.code == "option-does-not-apply" and declared is not None and declared.applies:
                values |= {
                    other: value for other, value in wanted(kind, declared.applies[0]).items() if other not in kept
                }
            elif error.code == "conflicting-options" and name in values and name not in kept:
                del values[name]
            else:
                raise
        else:
            return values
    raise InputError("no values were found", code="no-values")


def refusal(kind: type[Settings], values: Values) -> tuple[str, object]:
    try:
        kind(**values)
    except InputError as error:
        one_line = "\n" not in str(error) and error.exit_code == 2
        return (error.code, error.fields.get("option")) if one_line else ("several lines", None)
    return "accepted", None


def outside(kind: Any, declared: Option) -> Iterator[tuple[Any, str]]:
    """Yield values that an option does not take, with the code of the refusal."""
    of, choices, simple = item_type(kind), choices_of(kind, declared), not is_pair(bare_type(kind))
    if choices and simple and not is_mapping(bare_type(kind)):
        yield "no such choice", "unknown-choice"
    elif declared.parse is None and of in (int, float) and simple and not is_mapping(bare_type(kind)):
        yield "x", "not-a-number"
        yield float("nan"), "not-a-number"
        least = declared.above if declared.above is not None else declared.minimum
        if least is not None:
            yield (least if declared.above is not None else least - 1), "out-of-range"
        yield (declared.maximum + 1 if declared.maximum is not None else 1 << 40), "out-of-range"
    elif of is bool:
        yield "maybe", "not-true-or-false"
    elif of is Path and simple and not is_mapping(bare_type(kind)):
        yield "s3://", "not-a-path"


@pytest.mark.parametrize("kind", COMMANDS, ids=lambda kind: kind.command)
def test_a_value_outside_of_its_type_range_and_choices_is_refused(kind: type[Settings]) -> None:
    for name, declared in kind.declared().items():
        for value, code in outside(kind.types()[name], declared):
            if isinstance(value, int) and value == 1 << 40 and item_type(kind.types()[name]) is float:
                continue
            listed = [value] if is_list(bare_type(kind.types()[name])) else value
            assert refusal(kind, {**required(kind), name: listed}) == (code, name), (name, value)


def violating(kind: type[Settings], name: str) -> Iterator[Values]:
    """Yield values of other options with which an option may not apply: the defaults, and each other variant."""
    yield {}
    for other in dict.fromkeys(other for each in kind.declared()[name].applies for other in each.allowed):
        if (declared := kind.declared().get(other)) is None or other == name:
            continue
        listed = is_list(bare_type(kind.types()[other]))
        for choice in choices_of(kind.types()[other], declared):
            yield {other: [choice] if listed else choice}
        yield {other: sample(kind, other)}


@pytest.mark.parametrize("kind", COMMANDS, ids=lambda kind: kind.command)
def test_an_option_is_accepted_with_its_variant_and_refused_without(kind: type[Settings]) -> None:
    """Conditions on facts, such as the kind of an index, belong to the stage that knows them."""
    for name, declared in kind.declared().items():
        if not declared.applies or any(not set(each.allowed) & set(kind.declared()) for each in declared.applies):
            continue
        value = sample(kind, name)
        assert name in UNUSUAL.get(kind.command, ()) or completed(kind, {name: value}), name
        codes = [refusal(kind, {**required(kind), name: value, **others}) for others in violating(kind, name)]
        assert ("option-does-not-apply", name) in codes, (name, codes)


@pytest.mark.parametrize("kind", COMMANDS, ids=lambda kind: kind.command)
def test_an_option_that_others_need_or_exclude_is_missed_or_refused(kind: type[Settings]) -> None:
    for name, declared in kind.declared().items():
        for condition in (each for each in declared.excluded if set(each.allowed) & set(kind.declared())):
            values = {**completed(kind, wanted(kind, condition)), name: sample(kind, name)}
            assert refusal(kind, values)[0] in ("conflicting-options", "option-does-not-apply"), (name, condition)
        for condition in declared.needed:
            values = completed(kind, wanted(kind, condition))
            values.pop(name, None)
            values |= {name: 0} if isinstance(declared.default, int | float | By) else {}
            found = refusal(kind, values)
            assert found == ("missing-option", name) or found[0] == "option-does-not-apply", (name, condition, found)
