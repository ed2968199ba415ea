"""Settings: one declaration per option, the same rules for the command line, a config file and Python."""

import ast
import contextlib
import copy
import inspect
import pickle
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, MISSING, dataclass, fields, is_dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

import pytest
from command import raises
from hypothesis import given
from hypothesis import strategies as some

from hybrid_cli.commands import COMMANDS, Fuse, SearchOptions
from hybrid_cli.errors import InputError
from hybrid_cli.settings import Settings
from hybrid_cli.settings.common import Writes
from hybrid_cli.settings.conversion import byte_count, default_text
from hybrid_cli.settings.options import GIVEN, POSITIVE, REQUIRED, By, argument, option, when
from hybrid_cli.stages import stage

ROOT = Path(inspect.getfile(Settings)).parent.parent
ROOMS = ("commands", "settings")  # of the declarations and of their mechanism
DECLARING = [file for room in ROOMS for file in (ROOT / room).glob("[a-z]*.py")]


@dataclass(frozen=True)
class Brew(Writes):
    """Brew coffee.

    Attributes:
        beans: Kinds of beans.
        method: Brewing method.
        pressure: Pressure in bar.
        water: Liters of water.
        cups: Number of cups.
        sizes: Cup sizes.
        filters: Filters.
        pair: Two cups.
        memory: Memory.
        milk: Milk.
        foam: Foam the milk.
        grinder: Grinder.
        spout: Spout.
    """

    beans: Sequence[str] = argument(REQUIRED)
    _: KW_ONLY
    method: Literal["filter", "espresso"] = option("filter")
    pressure: float = option(9.0, above=0, maximum=15, applies=when(method="espresso"))
    water: float = option(By("method", {"espresso": 0.04}, 0.25))
    cups: int = option(1, "--cups", "-c", minimum=1)
    sizes: Sequence[int] = option(())
    filters: Mapping[str, Path] = option({}, metavar="SIZE=FILE", applies=when(method="filter"))
    pair: tuple[str, str] | None = option(None)
    memory: int | None = option(None, parse=byte_count)
    milk: str | None = option(None)
    foam: bool = option(False, applies=when(milk=GIVEN))
    grinder: str | None = option(None, applies=when(machine="built-in"))
    spout: Path | None = option(None, needed=when(milk="condensed"), excluded=when(sizes=GIVEN, cups=POSITIVE))


def brew(**values: Any) -> Brew:
    return Brew(**{"beans": ["arabica"], "output": "cup.parquet", **values})


def test_texts_become_values_of_the_declared_types() -> None:
    made = brew(cups="3", method="espresso", pressure="8.5", sizes="1,2", pair=("a", "b"), memory="2GiB")
    assert (made.cups, made.pressure, made.sizes, made.pair, made.memory) == (3, 8.5, (1, 2), ("a", "b"), 2 << 30)
    assert made.output == Path("cup.parquet")
    assert brew(output=Path("x.parquet")).output == Path("x.parquet")


def test_a_repeated_list_option_adds_up() -> None:
    assert brew(sizes=["1", "2,3"]).sizes == brew(sizes="1,2,3").sizes == brew(sizes=[1, 2, 3]).sizes == (1, 2, 3)
    assert brew(sizes=5).sizes == (5,)


def test_arguments_are_not_split_at_commas() -> None:
    assert brew(beans=["a,b", Path("c")]).beans == ("a,b", "c")


def test_names_with_files_are_given_as_text_or_mapping() -> None:
    assert brew(filters=["small=a.txt", "large=b.txt"]).filters == {"small": Path("a.txt"), "large": Path("b.txt")}
    assert brew(filters={"small": "a.txt"}).filters == {"small": Path("a.txt")}
    with raises("needs-a-name", option="filters", value="x"):
        brew(filters=["x"])
    with raises("repeated-value", option="filters"):
        brew(filters="a=1,a=2")


@given(some.floats(allow_nan=True, allow_infinity=True))
def test_a_number_is_accepted_exactly_within_its_range(value: float) -> None:
    try:
        assert brew(method="espresso", pressure=value).pressure == value
    except InputError:
        assert not 0 < value <= 15
    else:
        assert 0 < value <= 15


TEXTS_THAT_ARE: list[Any] = [{"cups": "1.5"}, {"cups": "1_0"}, {"cups": True}, {"output": Path("memory://x")}]
TEXTS_THAT_ARE += [{"sizes": ","}, {"pair": ("a",)}, {"memory": "much"}, {"filters": "a=b,c"}]


@pytest.mark.parametrize("values", TEXTS_THAT_ARE)
def test_texts_that_are_no_values_are_refused(values: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        brew(**values)


def test_an_option_of_another_variant_is_refused_even_at_its_default() -> None:
    with raises("option-does-not-apply", option="pressure"):
        brew(pressure=9.0)
    with raises("option-does-not-apply", option="foam"):
        brew(foam=True)
    assert brew(foam=True, milk="oat").foam


def test_an_option_that_does_not_apply_is_not_recorded() -> None:
    assert "pressure" not in brew().recorded()
    assert brew(method="espresso").recorded()["pressure"] == 9.0
    assert {"output", "overwrite", "beans"}.isdisjoint(brew().recorded())


def test_a_fact_that_only_the_stage_knows_is_checked_by_the_stage() -> None:
    made = brew(grinder="fine")
    with raises("option-does-not-apply", option="grinder"):
        made.check_facts(subject="out/machine has no grinder", machine="none")
    made.check_facts(machine="built-in")
    made.check_facts(machine=frozenset({"none", "built-in"}))  # one of several is enough
    assert "grinder" not in brew().recorded(machine="none")
    assert brew(grinder="fine").recorded(machine="built-in")["grinder"] == "fine"


def every_settings_class(kind: type[Settings] = Settings) -> Iterator[type[Settings]]:
    """Yield the settings classes of the package, mixins included."""
    for each in kind.__subclasses__():
        if each.__module__.startswith("hybrid_cli."):
            yield each
        yield from every_settings_class(each)


def test_the_variants_of_every_option_can_be_named_also_in_mixins() -> None:
    kinds = set(every_settings_class())
    assert SearchOptions in kinds
    assert all(isinstance(kind.variants(name), str) for kind in kinds for name in kind.declared())
    for name, value in {"fb_docs": 4, "fb_terms": 4, "fb_weight": 0.4}.items():
        with raises("option-does-not-apply", option=name):
            SearchOptions(**{name: value})  # type: ignore[arg-type]


def test_an_option_may_be_needed_or_excluded_by_others() -> None:
    assert brew(milk="condensed", spout="s").spout == Path("s")
    with raises("missing-option", option="spout", needed_by="milk") as caught:
        brew(milk="condensed")
    assert str(caught.value) == "--milk condensed: needs --spout"
    with raises("conflicting-options", option="spout", others=("sizes", "cups")) as caught:
        brew(spout="s", sizes="1")
    assert str(caught.value) == "--spout: not with --sizes and --cups above 0"
    assert "spout" not in brew(spout="s").recorded(), "paths are recorded with their fingerprints"


def test_a_default_may_depend_on_another_option() -> None:
    assert (brew().water, brew(method="espresso").water, brew(water=1).water) == (0.25, 0.04, 1.0)
    assert default_text(Brew.declared()["water"]) == "0.25; 0.04 for espresso"


def test_none_means_not_set() -> None:
    assert brew(pressure=None, cups=None) == brew()
    assert brew(pressure=None).given == {"beans", "output"}


def test_settings_can_be_changed_copied_and_pickled() -> None:
    made = brew(cups=2)
    assert made.changed(cups=3).cups == 3
    assert made.changed(cups=None).cups == 1
    with raises("option-does-not-apply"):
        made.changed(pressure=3)
    assert copy.deepcopy(made) == made
    assert pickle.loads(pickle.dumps(made)).given == made.given


def test_a_stage_takes_the_object_or_its_fields() -> None:
    @stage(Brew)
    def make(settings: Brew) -> int:
        return settings.cups

    as_text: dict[str, Any] = {"output": "x", "cups": "2"}
    assert make(brew(cups=2)) == make(["arabica"], **as_text) == make(beans="arabica", output=Path("x"), cups=2) == 2


def test_a_stage_refuses_the_settings_of_another() -> None:
    @stage(Brew)
    def make(settings: Brew) -> int:
        return settings.cups

    with pytest.raises(TypeError, match=r"Brew\b.*\bFuse"):
        make(Fuse(["a", "b"], output=Path("f.parquet")))  # type: ignore[call-overload]


READ_BY_NAME = {
    "train-dense": {"xi"},  # keyword of the losses, see training/losses.py
    "mine-negatives": {"negatives"},  # read by MineNegatives.plan
}


@cache
def read_names() -> set[str]:
    """Return the names of all attributes that the package reads outside of commands/ and settings/."""
    trees = (ast.parse(file.read_text("utf-8")) for file in ROOT.rglob("*.py") if file.parent.name not in ROOMS)
    nodes = (node for tree in trees for node in ast.walk(tree))
    return {node.attr for node in nodes if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)}


@pytest.mark.parametrize("kind", COMMANDS, ids=lambda kind: kind.command)
class TestEveryCommand:
    def test_has_help_a_panel_and_examples_that_can_be_pasted(self, kind: type[Settings]) -> None:
        assert kind.panel
        summary = kind.description().partition("\n\n")[0]
        assert summary.endswith(".")
        assert kind.examples
        assert all(example.startswith(f"hybrid {kind.command}") for example in kind.examples)

    def test_options_have_help_and_usable_defaults(self, kind: type[Settings]) -> None:
        for name, declared in kind.declared().items():
            assert declared.help.strip().endswith("."), f"{name}: {declared.help}"
            assert "  " not in declared.help, name
            if declared.default is REQUIRED or declared.default is None or isinstance(declared.default, By | dict):
                continue
            if declared.minimum is not None and not isinstance(declared.default, tuple):
                assert declared.default >= declared.minimum, name

    def test_conditions_name_options_or_facts_with_possible_values(self, kind: type[Settings]) -> None:
        for name, declared in kind.declared().items():
            for condition in declared.applies:
                for other, allowed in condition.allowed.items():
                    known = kind.declared().get(other)
                    choices = known and (known.allowed() or getattr(kind.types()[other], "__args__", None))
                    if choices and all(isinstance(choice, str) for choice in choices):
                        expected = allowed if isinstance(allowed, tuple) else (allowed,)
                        assert {each for each in expected if isinstance(each, str)} <= set(choices), (name, other)

    def test_only_arguments_are_positional_in_python(self, kind: type[Settings]) -> None:
        for each in fields(kind):
            if each.name in kind.declared():
                assert each.kw_only != kind.declared()[each.name].positional, each.name

    def test_every_field_is_declared_with_the_default_of_the_library(self, kind: type[Settings]) -> None:
        assert {each.name for each in fields(kind)} == set(kind.declared())
        for base in (each for each in kind.__mro__ if issubclass(each, Settings)):
            for library in (each for each in base.__bases__ if is_dataclass(each) and not issubclass(each, Settings)):
                for each in fields(library):
                    declared = base.declared()[each.name].default
                    default = each.default if each.default_factory is MISSING else each.default_factory()
                    assert default in (declared, getattr(declared, "otherwise", declared)), (base, each.name)

    def test_every_option_is_read_outside_of_its_declaration(self, kind: type[Settings]) -> None:
        assert set(kind.declared()) <= read_names() | READ_BY_NAME.get(kind.command, set())

    def test_no_two_options_have_one_spelling(self, kind: type[Settings]) -> None:
        spelled = [part for each in kind.declared().values() for one in each.names for part in one.split("/")]
        spelled += ["--" + name.replace("_", "-") for name, each in kind.declared().items() if not each.names]
        assert len(spelled) == len(set(spelled))


NEUTRAL = {  # equal by chance: a value of these parameters that changes nothing, or that has another meaning
    "training/losses.py": {  # no scaling; all passages of a batch
        "temperature",
        "teacher_temperature",
        "weight",
        "distill_weight",
        "in_batch",
    },
    "training/roc.py": {"seed"},  # of the projection
    "collections/readers/text_files.py": {"encoding"},  # of JSON, TSV and CSV
    "inputs/files.py": {"encoding"},
}


def literal_defaults(tree: ast.Module) -> Iterator[tuple[str, object]]:
    """Yield parameters of functions and fields of classes whose default is a literal."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.Lambda):
            arguments = node.args
            positional = [*arguments.posonlyargs, *arguments.args]
            pairs = [
                *zip(positional[len(positional) - len(arguments.defaults) :], arguments.defaults, strict=True),
                *zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True),
            ]
            found = [(argument.arg, value) for argument, value in pairs]
        elif isinstance(node, ast.ClassDef):
            assigned = [each for each in node.body if isinstance(each, ast.AnnAssign)]
            found = [(each.target.id, each.value) for each in assigned if isinstance(each.target, ast.Name)]
        else:
            continue
        for name, value in found:
            with contextlib.suppress(ValueError, TypeError):
                yield name, ast.literal_eval(value)  # type: ignore[arg-type]


SAME_NAME = {  # options of several commands with one name and another meaning
    ("depth", "100"),  # hits of an encoder, and hits that a reranker rescores
    ("form", "'text'"),  # of different results
    ("measure", "'nDCG@10'"),  # `auto` and `judge` have graded or few judgments
    ("measure", "'MRR@10'"),  # of one relevant document per query
    ("temperature", "1.0"),  # no scaling
}


def declarations(tree: ast.Module) -> Iterator[tuple[str, str, ast.expr]]:
    """Yield the options of all classes with a default: name, class, default."""
    for owner in (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)):
        for node in owner.body:
            match node:
                case ast.AnnAssign(ast.Name(name), value=ast.Call(ast.Name(function), arguments, keywords)):
                    defaults = [each.value for each in keywords if each.arg == "default"]
                    first = function == "argument" or function.endswith("option")
                    yield from ((name, owner.name, each) for each in (arguments[:1] if first else defaults))


def literals(default: ast.expr) -> Iterator[object]:
    """Yield a default that is written as a literal: of a list with one item the item, of `By` the last default."""
    match default:
        case ast.Tuple([item]):
            yield from literals(item)
        case ast.Call(ast.Name("By"), [_, _, otherwise]):
            yield from literals(otherwise)
        case _:
            with contextlib.suppress(ValueError, TypeError):
                yield ast.literal_eval(default)


def test_a_default_is_written_once() -> None:
    """No parameter elsewhere and no second declaration repeats a default; None, False and 0 turn it off."""
    declared = {
        (name, repr(each.default))  # not those that another option decides
        for kind in COMMANDS
        for name, each in kind.declared().items()
    }
    again = [
        f"{file.relative_to(ROOT)}: {name} = {value!r}"
        for file in ROOT.rglob("*.py")
        if file.parent.name not in ROOMS and file.name not in ("options.py", "cluster.py")
        for name, value in literal_defaults(ast.parse(file.read_text("utf-8")))
        if not (value is None or value is False)
        and (name, repr(value)) in declared
        and name not in NEUTRAL.get(file.relative_to(ROOT).as_posix(), set())
    ]
    written = Counter(
        (name, repr(value))
        for file in DECLARING
        for name, _, default in declarations(ast.parse(file.read_text("utf-8")))
        for value in literals(default)
        if value
    )
    again += [f"settings: {name} = {value}" for (name, value), times in written.items() if times > 1]
    assert set(again) == {f"settings: {name} = {value}" for name, value in SAME_NAME}


def test_no_declaration_repeats_the_default_that_it_inherits() -> None:
    repeated = []
    for file in DECLARING:
        module = vars(import_module(f"hybrid_cli.{file.parent.name}.{file.stem}"))
        for name, owner, default in declarations(ast.parse(file.read_text("utf-8"))):
            bases = [each for each in module[owner].__mro__[1:] if issubclass(each, Settings)]
            before = next((each.declared()[name].default for each in bases if name in each.declared()), None)
            repeated += [f"{file.name}: {name}" for value in literals(default) if value is not None and value == before]
    assert not repeated


def test_a_help_has_at_most_two_lines() -> None:
    """Of 80 columns; tables of values are in the docs."""
    declared = {(kind.command, name): each.help for kind in COMMANDS for name, each in kind.declared().items()}
    assert declared
    assert {name: text for name, text in declared.items() if len(text) > 160} == {}
