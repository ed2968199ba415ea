"""Build commands from settings classes: Typer options from fields, and settings objects from arguments."""

from __future__ import annotations

import inspect
import os
import platform
import resource
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Optional, get_args, get_origin

import typer
from typer.core import TyperCommand

from hybrid_cli import console, plugins
from hybrid_cli.cli import startup
from hybrid_cli.cli.removed import removed_error
from hybrid_cli.errors import InputError, option_error
from hybrid_cli.interrupts import Interrupted
from hybrid_cli.memory import cpu_count
from hybrid_cli.plugins import Registry
from hybrid_cli.settings import Overwrites, Settings
from hybrid_cli.settings.conversion import bare_type, default_text, is_list, is_mapping, is_pair, json_value, range_text
from hybrid_cli.settings.options import GENERAL, REQUIRED, Option, spelling
from hybrid_cli.version import __version__

if TYPE_CHECKING:
    from hybrid_cli import artifacts

_COLUMNS = 76
_MISSING = "missing"  # any path, to check the other options of a command without --output
_LONG = 19  # characters of choices that fit into one line of help at 80 columns
_NAMES = {int: "INT", float: "FLOAT", str: "TEXT", Path: "PATH"}


def _general(kind: Any, *names: str, help: str, metavar: str = "") -> Any:
    """Return the annotation of an option that every command has."""
    return Annotated[
        kind, typer.Option(*names, metavar=metavar, show_default=False, rich_help_panel=GENERAL, help=help)
    ]


EVERYWHERE = {
    "config": _general(
        list[str] | None,
        "--config",
        metavar="FILE",
        help="YAML file of `option: value`, or the name of an experiment (docs/training.md); with several, the last "
        "takes precedence, and the command line over all; `no-` before its name unsets a flag.",
    ),
    "plugin": _general(
        list[str] | None,
        "--plugin",
        metavar="FILE",
        help="Python file that adds losses, measures, commands or others (docs/extending.md); it is run.",
    ),
    "quiet": _general(bool, "--quiet", "-q", help="Print only warnings and results."),
    "verbose": _general(bool, "--verbose", "-v", help="Also print the settings, versions, time and peak memory."),
    "log_file": _general(
        str | None,
        "--log-file",
        metavar="FILE",
        help="Append all messages, with the details of `--verbose`, to a file.",
    ),
    "debug": _general(bool, "--debug", help="Print the traceback of an error."),
}
DRY_RUN = _general(bool, "--dry-run", help="Check everything, print the settings, and stop.")
FLAGS, _FILES = ("quiet", "verbose", "debug"), ("config", "plugin", "log_file")  # of `EVERYWHERE`
_FLAG = Option(False, "")


class _Command(TyperCommand):
    """A command whose help lists the choices of registries, which are imported only for the help."""

    settings: type[Settings]
    described = True  # False in a help whose description was printed, and whose options follow

    def get_params(self, ctx: Any) -> Any:
        """Return the parameters, without the placeholders `<bool>` and `<str>` in the help.

        A help asks for them after its description, which the examples follow.
        """
        if not self.described:
            self.described = True
            typer.echo(_examples(self.settings) + "\n")
        return without_types(super().get_params(ctx))

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the command line; `--no-FLAG` unsets a flag of a config file, also where the help does not name it."""
        unset = {negative(spelled): name for spelled, name in _flags_without_negative(self.settings).items()}
        end = args.index("--") if "--" in args else len(args)
        named = {unset[word] for word in args[:end] if word in unset}
        ctx.allow_extra_args = True  # they are refused here
        rest = super().parse_args(ctx, [*(word for word in args[:end] if word not in unset), *args[end:]])
        if rest and not ctx.resilient_parsing:
            raise _unexpected(rest[0], args, self.settings)
        for name in named:
            ctx.params[name] = bool(ctx.params.get(name))
        return rest

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return the usage line, such as `[OPTIONS] FOLDER`, with brackets around optional arguments."""
        arguments = [(name, option) for name, option in self.settings.declared().items() if option.positional]
        return ["[OPTIONS]", *(_usage(self.settings, name, declared) for name, declared in arguments)]

    def format_help(self, ctx: Any, formatter: Any) -> None:
        for parameter in self.params:
            declared = self.settings.declared().get(str(parameter.name))
            if declared is not None and (callable(declared.choices) or isinstance(declared.choices, Registry)):
                parameter.help = help_text(self.settings, str(parameter.name))  # type: ignore[attr-defined]
        self.described = False
        super().format_help(ctx, formatter)


def _unexpected(word: str, words: Sequence[str], kind: type[Settings]) -> InputError:
    """Return the error about an argument that a command does not have; it names the option that it may belong to.

    Args:
        word: the argument.
        words: the words of the command line behind the command.
        kind: settings class of the command.
    """
    named = {spelled: name for name in kind.declared() for spelled in _spelled(kind, name)}
    before = [given for given in words[: len(words) - words[::-1].index(word) - 1] if given.startswith("-")]
    option = before[-1].partition("=")[0] if before else ""
    if option not in named:
        required = [name for name, declared in kind.declared().items() if declared.default is REQUIRED]
        required += [name for name, declared in kind.declared().items() if declared.needed and name != "output"]
        option = next((one for name in required for one in _spelled(kind, name)[:1] if one not in words), "")
        hint = f"pass it with its option, such as {option}" if option else "values follow their option"
    elif bare_type(kind.types()[named[option]]) is bool:
        hint = f"{option} takes no value"
    elif is_list(bare_type(kind.types()[named[option]])):
        hint = f"separate several values of {option} by commas"
    else:
        hint = f"{option} takes one value; quote a value with spaces"
    problem = f"unexpected argument {word!r}; {hint}; see `hybrid {kind.command} --help`"
    return InputError(problem, code="unexpected-argument", argument=word, option=named.get(option, option) or None)


@contextmanager
def _hint_of_words(kind: type[Settings]) -> Iterator[None]:
    """Add to the error about a path that it may be a word of a text before it: `--query two words`."""
    try:
        yield
    except InputError as error:
        words, path = sys.argv, str(error.fields.get("path"))
        before = words[words.index(path) - 2] if path in words[2:] else ""
        named = {spelled: name for name in kind.declared() for spelled in _spelled(kind, name)}
        if error.code != "no-such-file" or bare_type(kind.types().get(named.get(before, ""))) is not str:
            raise
        problem = f"{error}; {before} takes one value: quote a text"
        raise InputError(problem, code=error.code, **error.fields, option=named[before]) from None


def without_types(parameters: Iterable[Any]) -> list[Any]:
    """Remove the types that Typer shows for flags and arguments, and its conversion of values."""
    shown = list(parameters)
    for parameter in shown:
        startup.keep_values_as_typed(parameter)
        if parameter.param_type_name == "argument":
            parameter.display_type = lambda ctx: ""
        elif parameter.metavar is None and parameter.is_flag:
            parameter.metavar = ""
    return shown


def _usage(kind: type[Settings], name: str, declared: Option) -> str:
    shown = declared.metavar or name.upper()
    several = is_list(bare_type(kind.types()[name])) and not shown.endswith("...")
    shown += "..." if several else ""
    return shown if declared.default is REQUIRED else f"[{shown}]"


def add_command(app: typer.Typer, kind: type[Settings], run: Callable[[Settings], int | None], name: str) -> None:
    """Register the command of a settings class.

    Args:
        app: application or group.
        kind: settings class; its docstring and `examples` are the help.
        run: called with the checked settings object; returns the exit code, None for 0.
        name: the command's own name, without that of its group.
    """

    def command(**typed: Any) -> int | None:
        from hybrid_cli import artifacts  # it imports pyarrow, which the help does without

        configs = typed.pop("config") or []
        configured = import_module("hybrid_cli.cli.config").configured_values(configs, kind) if configs else {}
        for path in (*(typed.pop("plugin") or ()), *as_paths(configured.pop("plugin", None) or [])):
            plugins.load(path)  # `main` has loaded it, before this command line was parsed
        shared = _take_common_options(typed, configured, kind)
        started = time.monotonic()
        try:
            _limit_polars({**configured, **_set(typed)}.get("threads"))
            _refuse_options_as_values(typed, kind)
            with _add_config_file(configs, configured.keys() - _set(typed).keys(), kind):
                settings = kind(**_complete(_without_unset_flags({**configured, **_set(typed)}, kind), kind))
            for line in _details(settings):
                console.detail(line)
            if shared["dry_run"] and getattr(settings, "output", None) is None:
                raise option_error("dry_run", None, "needs --output", code="missing-option")
            with artifacts.dry_run(shared["dry_run"]), _hint_of_words(kind):
                code = run(settings)
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # KiB on Linux, bytes on macOS
            size = console.size(peak * (1 if sys.platform == "darwin" else 1024))
            console.detail(f"done in {console.duration(time.monotonic() - started)}, peak memory {size}")
            return code
        except artifacts.DryRun as stopped:
            _print_settings(stopped.output)
            return None
        except KeyboardInterrupt as stopped:
            raise Interrupted(stopped, resumes=not _set(typed).get("interactive")) from None

    parameters = [_parameter(kind, name) for name, _ in in_help_order(kind)]
    shared = {**({"dry_run": DRY_RUN} if issubclass(kind, Overwrites) else {}), **EVERYWHERE}
    for key, annotation in shared.items():
        default = None if key in _FILES else False
        parameters.append(
            inspect.Parameter(key, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
        )
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    command.__doc__ = kind.description()
    shaped = type(f"{kind.__name__}Command", (_Command,), {"settings": kind})
    app.command(name, cls=shaped, rich_help_panel=kind.panel)(command)


def _details(settings: Settings) -> Iterator[str]:
    """Yield the versions and the value of every option that applies, for `--verbose` and `--log-file`."""
    yield f"hybrid {__version__}, Python {platform.python_version()}, {platform.platform()}"
    for name, value in settings.values().items():
        if name in settings.declared() and settings.applies(name):
            yield f"{settings.command}: {name} = {json_value(value)}{'' if name in settings.given else ' (default)'}"


def _refuse_options_as_values(typed: Mapping[str, Any], kind: type[Settings]) -> None:
    """Refuse `--output --overwrite`, which the parser reads as an output of the name `--overwrite`."""
    known = spellings(kind) | {spelling(name, _FLAG) for name in (*FLAGS, *_FILES, "dry_run")}
    for name in kind.declared():
        value = typed.get(name)
        if options_given := known.intersection(value if isinstance(value, (list, tuple)) else [value]):
            raise option_error(name, None, f"needs a value, got the option {options_given.pop()}", code="missing-value")


def _limit_polars(threads: object) -> None:
    """Set the number of threads of polars, at most one per core; polars reads it once, on its import."""
    if str(threads).isdecimal() and int(str(threads)) > 0:
        os.environ.setdefault("POLARS_MAX_THREADS", str(min(int(str(threads)), cpu_count())))


def _take_common_options(typed: dict[str, Any], configured: dict[str, Any], kind: type[Settings]) -> dict[str, bool]:
    """Take the options of every command out of what was typed and configured, and set up messages."""
    shared = {"dry_run": False}
    for key in {*FLAGS, "dry_run"} - kind.declared().keys():
        if not isinstance(from_file := configured.pop(key, False), bool):
            raise option_error(key, from_file, "needs true or false", code="not-true-or-false")
        shared[key] = typed.pop(key, False) or from_file
    if shared["quiet"] and shared["verbose"]:
        raise option_error("quiet", None, "not with --verbose", code="conflicting-options", others=("verbose",))
    log, from_file = typed.pop("log_file", None), configured.pop("log_file", None)
    console.set_quiet(shared["quiet"])  # `main` reads --debug before parsing can fail
    console.set_verbose(shared["verbose"])
    output = typed.get("output") or configured.get("output")
    console.log_to(_log_path(from_file if log is None else log, output))
    return shared


def _log_path(given: Any, output: Any) -> Path | None:
    """Return the path of the log file; refuse the path of the output, and a new file inside an artifact."""
    if given is None:
        return None
    if not isinstance(given, str) or not given:
        raise option_error("log_file", None, "needs a path", code="missing-value")
    if output and os.path.realpath(given) == os.path.realpath(str(output)):
        raise option_error("log_file", given, "is the output; pass another path", code="replaces-input", path=given)
    if not os.path.exists(given):
        from hybrid_cli import artifacts

        try:
            artifacts.check_output_path(Path(given), {})
        except InputError as error:
            raise InputError(f"--log-file {error}", code=error.code, **error.fields) from None
    return Path(given)


def in_help_order(kind: type[Settings]) -> list[tuple[str, Option]]:
    """Return the declared fields: arguments, options without a panel, panels, general options; required ones first."""
    panels = list(dict.fromkeys(declared.panel for declared in kind.declared().values()))

    def sort_key(item: tuple[str, Option]) -> tuple[bool, bool, bool, int, bool]:
        declared = item[1]
        place = panels.index(declared.panel)
        last = declared.panel == GENERAL
        needed = declared.default is REQUIRED, bool(declared.needed)
        return (not declared.positional, declared.panel != "", last, place, not any(needed))

    return sorted(kind.declared().items(), key=sort_key)


def _examples(kind: type[Settings]) -> str:
    """Return the examples, broken for 80 columns; without padding, so that they can be pasted."""
    heading = f"Example{'s' if len(kind.examples) > 1 else ''}:"
    return "\n\n".join([heading, *(_broken(example) for example in kind.examples)])


def _broken(example: str) -> str:
    lines = [" "]
    for word in example.split():
        if len(lines[-1]) + len(word) + 3 > _COLUMNS:
            lines[-1] += " \\"
            lines.append("     ")
        lines[-1] += f" {word}"
    return "\n".join(lines)


def _parameter(kind: type[Settings], name: str) -> inspect.Parameter:
    """Return the Typer parameter of a field. Values arrive as text; the settings class converts and checks them."""
    declared, bare = kind.declared()[name], bare_type(kind.types()[name])

    def complete(incomplete: str) -> list[str]:
        """Return the choices that begin with what was typed, for the shell; in a list, its last value is completed."""
        *others, last = incomplete.split(",") if is_list(bare) else [incomplete]
        chosen = [choice for choice in _choices(kind, name) or () if choice.startswith(last)]
        return [",".join([*others, choice]) for choice in chosen]

    settings: dict[str, Any] = {"help": help_text(kind, name, lazy=True), "show_default": False}
    if (name in kind.declared() and declared.choices) or get_origin(bare) is Literal:
        settings["autocompletion"] = complete
    typed: Any = str
    if is_pair(bare):
        typed = tuple.__class_getitem__(tuple(str for _ in get_args(bare)))
    elif is_list(bare) or is_mapping(bare):
        typed = list[str]
    elif bare is bool:
        typed = bool
    if declared.positional:
        info = typer.Argument(metavar=declared.metavar or name.upper(), **settings)
    else:
        names = declared.names or switch(name, declared, bare)
        info = typer.Option(*names, metavar=metavar(declared, bare), rich_help_panel=declared.panel or None, **settings)
    annotation: Any = Annotated[Optional[typed], info]  # type: ignore[valid-type]  # noqa: UP045
    # Required values are checked by `_complete`: a config file may give them.
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def spellings(kind: type[Settings]) -> set[str]:
    """Return every spelling of every option of a command."""
    spelled_options = {spelled for name in kind.declared() for spelled in _spelled(kind, name)}
    return spelled_options | {negative(spelled) for spelled in _flags_without_negative(kind)}


def _spelled(kind: type[Settings], name: str) -> list[str]:
    """Return the spellings of an option: `--tune`; of an argument, none."""
    if (declared := kind.declared()[name]).positional:
        return []
    names = declared.names or switch(name, declared, bare_type(kind.types()[name]))
    return [part for spelled in names for part in spelled.split("/")]


def _flags_without_negative(kind: type[Settings]) -> dict[str, str]:
    """Return spelling -> field of the flags without a negative form in the help."""
    return {
        spelled: name
        for name, declared in kind.declared().items()
        if bare_type(kind.types()[name]) is bool and not declared.positional
        for spelled in declared.names or switch(name, declared, bool)
        if "/" not in spelled and spelled.startswith("--")
    }


def negative(spelled: str) -> str:
    """Return the form of a flag that unsets it: `--no-tune` of `--tune`."""
    return f"--no-{spelled.removeprefix('--')}"


def _without_unset_flags(values: dict[str, Any], kind: type[Settings]) -> dict[str, Any]:
    """Return the values without flags that are off, as by default."""
    off = {name for name in _flags_without_negative(kind).values() if values.get(name) is False}
    return {name: value for name, value in values.items() if name not in off}


@contextmanager
def _add_config_file(configs: Sequence[str], fields: Set[str], kind: type[Settings]) -> Iterator[None]:
    """Add the config file to an error about an option that only it sets; a removed value names its successor."""
    try:
        yield
    except InputError as error:
        option = str(error.fields.get("option"))
        flag = spelling(option, kind.declared()[option]) if option in kind.declared() else f"--{option}"
        if removed := removed_error(f"{kind.command} {flag} {error.fields.get('value')}".replace("_", "-")):
            raise removed from None
        name = str(error.fields.get("needed_by", error.fields.get("option")))
        if name in fields & kind.declared().keys():
            option = spelling(name, kind.declared()[name])
            problem = f"{error} ({option} is set in {' or '.join(configs)})"
            raise InputError(problem, code=error.code, **error.fields) from None
        raise


def switch(name: str, declared: Option, kind: Any) -> tuple[str, ...]:
    """Return `--flag` for a flag that is off by default, `--on/--no-on` for other flags."""
    spelled = "--" + name.replace("_", "-")
    if kind is not bool or declared.default is False:
        return (spelled,)
    return (f"{spelled}/{negative(spelled)}",)


def metavar(declared: Option, kind: Any) -> str:
    """Return the placeholder of a value; empty for a flag."""
    bare = bare_type(kind)
    if bare is bool:
        return ""
    if declared.metavar:
        return declared.metavar
    if is_mapping(bare):
        return "NAME=FILE"
    if is_pair(bare):
        return " ".join(_NAMES.get(arm, "TEXT") for arm in get_args(bare))
    one = get_args(bare)[0] if is_list(bare) else bare
    choices = "|".join(get_args(one)) if get_origin(one) is Literal else ""
    if not choices and isinstance(declared.choices, Mapping | tuple):
        choices = "|".join(declared.choices)
    if choices and len(choices) <= _LONG and not is_list(bare):
        return choices
    shown = "NAME" if choices or declared.choices else _NAMES.get(one, "TEXT")
    return f"{shown},..." if is_list(bare) else shown


def help_text(kind: type[Settings], name: str, lazy: bool = False, default: bool = True) -> str:
    """Return the help of an option with its choices, range, variants and default.

    Args:
        kind: settings class.
        name: field of the option.
        lazy: omit choices that need an import.
        default: add the default, or `required`.
    """
    declared, bare = kind.declared()[name], bare_type(kind.types()[name])
    parts = [
        " ".join(declared.help.split()),
        *([] if lazy and not isinstance(declared.choices, dict) else _entries_in_words(declared.choices)),
    ]
    choices = None if lazy and callable(declared.choices) else _choices(kind, name)
    if choices and "|".join(choices) != metavar(declared, bare):
        unnamed = [choice for choice in choices if f"`{choice}`" not in " ".join(parts)]
        parts += [f"Choices: {', '.join(choices)}."] if unnamed else []
    notes = [range_text(declared), kind.variants(name)]
    if default:
        text = default_text(declared)
        notes.append("required" if declared.default is REQUIRED else f"default: {text}" if text else "")
    return " ".join([*parts, *(f"[{note}]" for note in notes if note)])


def _choices(kind: type[Settings], name: str) -> Collection[str] | None:
    """Return the choices of an option, for which a registry is imported; None if any value is allowed."""
    bare = bare_type(kind.types()[name])
    one = get_args(bare)[0] if is_list(bare) else bare
    return get_args(one) if get_origin(one) is Literal else kind.declared()[name].allowed()


def _entries_in_words(choices: Any) -> list[str]:
    """Return a sentence with the meaning of each choice; an entry of a plugin that fails is left out."""
    explanations = [f"`{name}`: {meaning}" for name, meaning in choices.items()] if isinstance(choices, dict) else []
    for name in choices if isinstance(choices, Registry) else ():
        try:
            explanations.append(f"`{name}`: {choices.help(name).removesuffix('.')}")
        except InputError as error:
            console.warn(str(error), code=error.code, **error.fields)
    return [f"{'; '.join(explanations)}."] if explanations else []


def _set(typed: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of the command line; Typer passes None or an empty list for missing ones."""
    return {name: value for name, value in typed.items() if value is not None and value != [] and value != ()}


def _complete(values: dict[str, Any], kind: type[Settings]) -> dict[str, Any]:
    """Return the values; refuse a command without required arguments and options."""
    missing = {
        name: f"argument {name.upper()}" if declared.positional else f"option {spelling(name, declared)}"
        for name, declared in in_help_order(kind)
        if declared.default is REQUIRED and name not in values
    }
    if list(missing) == ["output"]:
        kind(**{**values, "output": _MISSING})  # an error in another option is reported first
    if missing:
        problem = f"missing {' and '.join(missing.values())}; see `hybrid {kind.command} --help`"
        raise InputError(problem, code="missing-option", option=next(iter(missing)))
    return values


def _print_settings(output: artifacts.Output) -> None:
    state = "up to date" if output.up_to_date else "would be written"
    rows = [("output", f"{output.path} ({state})")]
    manifest = output.manifest
    rows += [(role, f"{manifest.input_label(role)} ({source['kind']})") for role, source in manifest.inputs.items()]
    rows += [(name, str(value)) for name, value in output.manifest.options.items()]
    for name, value in rows:
        console.result(f"{name:24} {console.one_line(value)}")


# ------------------------------------------------------ values read before the options are parsed: plugins may add some


def requested_plugins(words: Sequence[str]) -> list[str]:
    """Return the plugin files of a command line, and those that its config files name."""
    files = list(values_of(words, "--plugin"))
    for config in values_of(words, "--config"):
        files += import_module("hybrid_cli.cli.config").plugin_files(config, words)
    return files


def values_of(words: Sequence[str], option: str) -> Iterator[str]:
    """Yield the values of an option that may be repeated."""
    end = words.index("--") if "--" in words else len(words)
    for number, word in enumerate(words[:end]):
        if word == option and number + 1 < end:
            yield words[number + 1]
        elif word.startswith(f"{option}="):
            yield word.removeprefix(f"{option}=")


def without(words: Sequence[str], option: str) -> list[str]:
    """Return the words of a command line without an option that may be repeated, and its values."""
    end = words.index("--") if "--" in words else len(words)
    flags = {at for at, word in enumerate(words[: end - 1]) if word == option}
    joined = {at for at, word in enumerate(words[:end]) if word.startswith(f"{option}=")}
    return [word for at, word in enumerate(words) if not {at, at - 1} & flags and at not in joined]


def as_paths(value: Any) -> list[str]:
    """Return the files of `plugin` in a config file: a path, or a list of paths."""
    return [str(path) for path in (value if isinstance(value, list | tuple) else [value])]
