"""Settings: one declaration per option, the same rules for the command line, a config file and Python."""

import copy
import pickle
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any, Literal

import pytest
from command import raises
from hypothesis import given
from hypothesis import strategies as some

from hybrid_cli.commands import Fuse, SearchOptions
from hybrid_cli.errors import InputError
from hybrid_cli.settings import Settings, Writes
from hybrid_cli.settings.conversion import byte_count, default_text
from hybrid_cli.settings.options import GIVEN, POSITIVE, REQUIRED, By, argument, option, options_by, when
from hybrid_cli.stages import stage
from hybrid_cli.stages.search import search, search_query
from hybrid_cli.stages.update import update


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

    cases = options_by("method", {"espresso": ("pressure",), (): ("cups",)})
    beans: Sequence[str] = argument(REQUIRED)
    _: KW_ONLY
    method: Literal["filter", "espresso"] = option("filter")
    pressure: float = option(9.0, above=0, maximum=15)
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


def test_a_stage_names_the_function_that_has_the_result_of_the_options() -> None:
    with raises("other-function", function="search_query"):
        search(index="a", query="b")
    with raises("other-function", function="search"):
        search_query(index="a", output="b")
    with raises("other-function", function="list_ids"):
        update("a", ids=True)
