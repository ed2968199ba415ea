"""The commands that are disturbed, and the commands that write their inputs."""

import re
from collections.abc import Iterable
from pathlib import Path

import yaml

ANSWERS = "1\n" * 100  # on standard input of every command, for `judge`
GROWING = ("judge",)  # an interrupted call leaves the first lines of its output

_TABLE = yaml.safe_load((Path(__file__).parent / "stages.yaml").read_text("utf-8"))
INPUTS = [command.format(**_TABLE["texts"]) for command in _TABLE["inputs"]]
STAGES: dict[str, tuple[str, str, int]] = {
    name: (command.format(**_TABLE["texts"]), older, weight)
    for name, (command, older, weight) in _TABLE["stages"].items()
}
TRAININGS = [name for name in STAGES if re.match("train-|distill-lite|pretrain", name)]


def inputs_of(names: Iterable[str]) -> list[str]:
    """Return the commands that write the inputs of stages, in order; the collection is always among them."""
    words = words_of(" ".join(["tiny", *(STAGES[name][0] for name in names)]))
    found = []
    for command in reversed(INPUTS):
        if command.split()[-1] in words:
            found.append(command)
            words |= words_of(command)
    return found[::-1]


def words_of(commands: str) -> set[str]:
    return {word.removesuffix("/shard-*") for word in re.split("[ ,=:@]", commands)}
