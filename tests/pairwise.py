"""Few cases in which every pair of values of two parameters occurs."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any

Case = dict[str, Any]


def pairwise(values: Mapping[str, Sequence[Any]], allowed: Callable[[Case], bool] = bool) -> Iterator[Case]:
    """Yield cases with all allowed pairs; a case grows while it is allowed, by the values with the most new pairs."""
    items = [(name, number) for name in values for number in range(len(values[name]))]
    missing = dict.fromkeys(frozenset(pair) for pair in combinations(items, 2) if pair[0][0] != pair[1][0])
    while missing:
        chosen = dict(sorted(next(iter(missing))))
        del missing[frozenset(chosen.items())]
        if allowed({name: values[name][number] for name, number in chosen.items()}):
            for name in values:
                news = [
                    sum(frozenset([(name, at), each]) in missing for each in chosen.items())
                    for at in range(len(values[name]))
                ]
                for number in sorted(range(len(news)), key=news.__getitem__, reverse=True):
                    case = {each: values[each][at] for each, at in {name: number, **chosen}.items()}
                    if name not in chosen and allowed(case):
                        chosen[name] = number
            for pair in combinations(chosen.items(), 2):
                missing.pop(frozenset(pair), None)
            yield {name: values[name][number] for name, number in chosen.items()}
