"""The published settings of experiments: every file fits the settings classes, and every value has a source."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from command import hybrid, raises

from hybrid_cli.cli.config import configured_values
from hybrid_cli.commands import COMMANDS
from hybrid_cli.presets import experiments
from hybrid_cli.settings import Settings
from hybrid_cli.settings.options import REQUIRED

KINDS: dict[str, type[Settings]] = {kind.command: kind for kind in COMMANDS}
_NAMES = "bpr-nq cocondenser-marco dpr-nq dualrm-marco lite-nq roc-marco roc-nq roc-robust04 spar-marco spar-nq"
NAMES = tuple(_NAMES.split())
OTHERS: dict[str, dict[str, Any]] = {  # what else a command needs
    "train-dense": {"index": "index"},
    "mine-negatives": {"index": "index"},
    "train-lambda": {"labels": "labels"},
    "label": {"index": "index"},
    "encode": {"collection": "data"},
    "combine": {"models": ["a", "b"], "tune": "data", "index": "index"},
    "fuse": {"index": ["a", "b"], "qrels": "data"},
    "evaluate": {"inputs": ["data", "run"]},
}
SECTIONS = [(name, command) for name, file in experiments().items() for command in yaml.safe_load(file.read_text())]


def settings(name: str, command: str) -> Any:
    kind, values = KINDS[command], configured_values([name], KINDS[command])
    needed = {key: "x" for key, each in kind.declared().items() if each.default is REQUIRED and key not in values}
    unused = (command == "fuse" and not values.get("tune")) or values.get("loss") in ("nll", "bpr", "residual-margin")
    return kind(**{**needed, **({} if unused else OTHERS.get(command, {})), **values})


@pytest.mark.parametrize(("name", "command"), SECTIONS)
def test_an_experiment_fits_the_settings_of_its_commands(name: str, command: str) -> None:
    assert settings(name, command).command == command


def test_the_docs_list_the_commands_of_each_experiment() -> None:
    text = (Path(__file__).parent.parent / "docs" / "training.md").read_text("utf-8")
    rows = re.findall(r"^\| (`.*`) \| (.*evaluate) \|$", text, re.MULTILINE)
    listed = {name.strip("`"): commands.split(", ") for names, commands in rows for name in names.split(", ")}
    assert listed == {name: list(yaml.safe_load(file.read_text())) for name, file in experiments().items()}
    assert tuple(experiments()) == NAMES


def test_every_model_of_an_experiment_is_a_hugging_face_id() -> None:
    """A name without an owner is a folder; see `encoders.models.resolve`."""
    values = [configured_values([name], KINDS[command]) for name, command in SECTIONS]
    models = [each["model"] for each in values if "model" in each]
    assert models
    assert not [model for model in models if model.count("/") != 1]


@pytest.mark.parametrize("name", NAMES)
def test_every_value_of_an_experiment_has_a_source(name: str) -> None:
    lines = experiments()[name].read_text("utf-8").splitlines()
    values = [line for line in lines if line.startswith("  ")]
    assert values
    assert not [line for line in values if "  # " not in line or len(line.split("  # ")[1]) < 4]
    assert not [line for line in lines if not line.startswith(("  ", "#")) and not line.endswith(":")]


PUBLISHED = yaml.safe_load((Path(__file__).parent / "data" / "published_values.yaml").read_text("utf-8"))


@pytest.mark.parametrize(("name", "command", "published"), PUBLISHED)
def test_an_experiment_has_the_published_values(name: str, command: str, published: dict[str, Any]) -> None:
    found = settings(name, command)
    assert {key: getattr(found, key) for key in published} == published


def test_several_files_are_merged_and_the_last_takes_precedence(workdir: Path) -> None:
    Path("mine.yaml").write_text("loss: bpr\nclip: 3\n")
    Path("empty.yaml").write_text("")
    Path("dpr-nq").mkdir()  # an output with the name of an experiment
    kind, published = KINDS["train-dense"], configured_values(["dpr-nq"], KINDS["train-dense"])
    both = configured_values(["dpr-nq", "mine.yaml", "empty.yaml"], kind)
    assert both == {**published, "loss": "bpr", "clip": "3"}
    assert configured_values(["mine.yaml", "dpr-nq"], kind)["loss"] == published["loss"]


@pytest.mark.parametrize(
    ("words", "kept"), [([], True), (["--no-keep-epochs"], False), (["--no-keep-epochs", "--keep-epochs"], True)]
)
def test_a_flag_of_a_file_is_unset_by_its_negative_form(tmp_path: Path, words: list[str], kept: bool) -> None:
    (tmp_path / "mine.yaml").write_text("keep-epochs: true\n")
    given = ["train-dense", tmp_path / "none", "--config", tmp_path / "mine.yaml", *words, "--output", tmp_path / "x"]
    done = hybrid(*given, "--verbose")
    assert ("keep_epochs = True" in done.err) is kept, done.err


def test_a_file_of_several_commands_gives_each_its_own_options(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("train-dense:\n  loss: nll\n")
    assert configured_values([str(file)], KINDS["train-dense"]) == {"loss": "nll"}
    with raises("no-such-command", path="mine.yaml"):
        configured_values([str(file)], KINDS["fuse"])
    file.write_text("combine: sum\n")  # an option of `encode` with the name of a command
    assert configured_values([str(file)], KINDS["encode"]) == {"combine": "sum"}
    with raises("no-such-file", path="nothing"):
        configured_values(["nothing"], KINDS["fuse"])
