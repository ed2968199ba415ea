"""The layers and sizes that keep the code readable; this test fails where an import points up."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import hybrid_cli

ROOT = Path(hybrid_cli.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))
LAYERS = (
    {"__main__"},
    {"cli"},
    {"stages"},
    {"training", "reporting"},
    {"evaluation", "fusion", "indexes", "perturbations"},
    {"encoders"},
    {"lexical", "collections"},
    {"runs"},
    {"artifacts", "config", "console", "errors"},
)
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}
ONLY_IN = {
    "typer": ("cli",),
    "click": ("cli",),
    "faiss": ("indexes",),
    "jnius": ("lexical/jvm",),
    "jnius_config": ("lexical/jvm",),
    "pyserini": ("lexical",),
    "pickle": (),
}
HEAVY = (
    "torch", "transformers", "faiss", "jnius", "polars", "scipy", "pyserini", "pandas", "sklearn", "numba", "altair",
    "jinja2", "vl_convert",
)  # fmt: skip


def named(file: Path) -> str:
    return file.relative_to(ROOT).with_suffix("").as_posix()


def imports(file: Path) -> Iterator[str]:
    """Every module that a file imports, also inside functions and for types only."""
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{named(file)}: imports relatively"
            package = node.module or ""
            yield from (f"hybrid_cli.{alias.name}" for alias in node.names) if package == "hybrid_cli" else [package]


def functions(file: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def test_imports_point_down():
    wrong = []
    for file in FILES:
        if file.name == "__init__.py" and file.parent == ROOT:
            continue  # the package itself: its version and its errors
        home = named(file).split("/")[0]
        for module in imports(file):
            package, _, rest = module.partition(".")
            target = rest.split(".")[0]
            if package == "hybrid_cli" and target in LEVEL and target != home and LEVEL[target] <= LEVEL[home]:
                if {home, target} <= LAYERS[-1]:
                    continue
                wrong.append(f"{named(file)} imports {module}")
    assert not wrong


def test_every_module_has_a_layer():
    assert {named(file).split("/")[0] for file in FILES} - {"__init__"} == set(LEVEL) & {
        named(file).split("/")[0] for file in FILES
    }


def test_the_lowest_modules_do_not_import_in_a_circle():
    order = ["errors", "config", "console", "artifacts"]
    for file in (file for file in FILES if named(file).split("/")[0] in order):
        home = named(file).split("/")[0]
        ours = {module.split(".")[1] for module in imports(file) if module.startswith("hybrid_cli.")}
        assert ours - {"__version__"} <= set(order[: order.index(home) + 1]), named(file)


def test_stages_do_not_import_stages():
    assert not [
        f"{named(file)} imports {module}"
        for file in (ROOT / "stages").glob("*.py")
        for module in imports(file)
        if module.startswith("hybrid_cli.stages")
    ]


@pytest.mark.parametrize("library", ONLY_IN)
def test_a_library_is_imported_in_its_home_only(library):
    homes = ONLY_IN[library]
    users = [named(file) for file in FILES if library in {module.split(".")[0] for module in imports(file)}]
    assert not [user for user in users if not any(user == home or user.startswith(f"{home}/") for home in homes)]


def test_help_imports_nothing_heavy():
    code = (
        "import sys; from hybrid_cli.cli import app\n"
        "try:\n    app(['--help'])\nexcept SystemExit:\n    pass\n"
        f"print('heavy:', sorted(set({HEAVY}) & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "heavy: []"


def test_no_file_is_over_400_lines():
    sizes = {named(file): len(file.read_text("utf-8").splitlines()) for file in FILES}
    assert not {name: size for name, size in sizes.items() if size > 400}


def test_no_function_is_over_60_lines():
    long = {
        f"{named(file)}:{function.name}": function.end_lineno - function.lineno + 1
        for file in FILES
        for function in functions(file)
        if function.end_lineno and _body_lines(function) > 60
    }
    assert not long


def _body_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines of the body without the docstring; a command's options are its documentation."""
    body = function.body[1:] if ast.get_docstring(function) else function.body
    return (body[-1].end_lineno or 0) - body[0].lineno + 1 if body else 0


def test_only_the_console_prints():
    printing = [
        f"{named(file)}, line {node.lineno}"
        for file in FILES
        for node in ast.walk(ast.parse(file.read_text("utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
    ]
    assert not [place for place in printing if not place.startswith("console,")]


def test_exceptions_are_caught_by_name():
    """But for the command line's last resort, which says that it is a bug."""
    broad = [
        f"{named(file)}, line {node.lineno}"
        for file in FILES
        for node in ast.walk(ast.parse(file.read_text("utf-8")))
        if isinstance(node, ast.ExceptHandler)
        and (node.type is None or (isinstance(node.type, ast.Name) and node.type.id == "Exception"))
    ]
    assert not [place for place in broad if not place.startswith("cli/__init__,")]


def test_a_command_has_its_name_all_the_way_down():
    """Command `mine-negatives` is `stages/mine_negatives.py`, which holds a function of that name."""
    from hybrid_cli.cli import app

    for registered in app.registered_commands:
        name = str(registered.name).replace("-", "_")
        file = ROOT / "stages" / f"{name}.py"
        assert file.is_file(), f"no stages/{name}.py for the command {registered.name}"
        assert name in {function.name for function in functions(file)}
