"""Config files: YAML of `option: value`, or of the options of several commands."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import Any

import yaml

from hybrid_cli.cli.options import FLAGS, as_paths, switch
from hybrid_cli.cli.removed import removed_error
from hybrid_cli.commands import command_names
from hybrid_cli.errors import InputError, path_error
from hybrid_cli.inputs.files import read_text
from hybrid_cli.inputs.json_values import NOT_JSON, reason
from hybrid_cli.presets import experiments
from hybrid_cli.settings import Overwrites, Settings
from hybrid_cli.settings.conversion import bare_type, has_url
from hybrid_cli.settings.options import bare_name

_LARGEST = 1 << 20  # bytes; the parser reads about 200,000 a second


class _Loader(yaml.SafeLoader):
    """Reads numbers and dates as text, which the options convert as on the command line: `010` is 10, not 8.

    Refuses aliases, which can expand to any size.
    """

    def compose_node(self, parent: Any, index: Any) -> Any:
        """Compose the next node."""
        if self.check_event(yaml.AliasEvent):
            event = self.peek_event()  # type: ignore[no-untyped-call]
            raise yaml.MarkedYAMLError(problem=f"*{event.anchor} is an alias", problem_mark=event.start_mark)
        return super().compose_node(parent, index)


_Loader.yaml_implicit_resolvers = {
    first: [(tag, words) for tag, words in several if tag.rpartition(":")[2] not in ("int", "float", "timestamp")]
    for first, several in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def read_config(path: Path) -> dict[str, Any]:
    """Return the options of a YAML file; an empty file has none.

    Raises:
        InputError: not YAML, no mapping, or an option that is set twice.
    """
    text = read_text(path, most=_LARGEST)
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        for name, key in _repeated_keys(node, options=True):
            line = key.start_mark.line + 1
            problem = f"{path}, line {line}: '{name}' is set twice; keep one line"
            raise InputError(problem, code="repeated-option", path=path, line=line, option=name)
        content = None if node is None else loader.construct_document(node)
    except (yaml.YAMLError, *NOT_JSON) as error:
        mark = getattr(error, "problem_mark", None)
        at = {"line": mark.line + 1} if mark else {}
        raise path_error(path, f"not a readable YAML file ({reason(error)})", code="not-yaml", **at) from None
    if content is not None and not isinstance(content, dict):
        raise path_error(path, "needs lines of 'option: value'", code="not-yaml")
    return content or {}


def _repeated_keys(node: Any, options: bool = False) -> Iterator[tuple[str, yaml.Node]]:
    """Yield the keys that occur again in a mapping, at any depth; spellings of an option are the same key."""
    if isinstance(node, yaml.MappingNode):
        seen: set[str] = set()
        for key, value in node.value:
            if isinstance(key, yaml.ScalarNode):
                name = bare_name(key.value) if options else key.value
                if name in seen:
                    yield name, key
                seen.add(name)
            yield from _repeated_keys(value)
    elif isinstance(node, yaml.SequenceNode):
        for item in node.value:
            yield from _repeated_keys(item)


def configured_values(configs: Sequence[str], kind: type[Settings]) -> dict[str, Any]:
    """Return the values of config files for a command, by field name; later files take precedence."""
    return {name: value for config in configs for name, value in _values(config, kind).items()}


def _values(config: str, kind: type[Settings]) -> dict[str, Any]:
    content = _section(config, read_config(_config_path(config)), kind)
    shared = (*FLAGS, "log_file", "plugin", *(("dry_run",) if issubclass(kind, Overwrites) else ()))
    fields = {bare_name(name): name for name in (*shared, *kind.declared())}
    fields = {name: field for name, field in fields.items() if not getattr(kind.declared().get(field), "names", ())}
    for name, declared in kind.declared().items():
        fields |= {bare_name(part): name for spelled in declared.names for part in spelled.split("/")[:1]}
    if unknown := sorted(str(name) for name in content if bare_name(name) not in fields):
        if removed := removed_error(f"{kind.command} --{bare_name(unknown[0])}", config):
            raise removed
        close = get_close_matches(bare_name(unknown[0]), fields, n=1)
        hint = f"; did you mean {close[0]}?" if close else ""
        if positive := _positive(bare_name(unknown[0]), kind):
            hint = f"; write `{positive}: false`"
        problem = f"{config}: `hybrid {kind.command}` has no option {', '.join(unknown)}{hint}"
        raise InputError(problem, code="no-such-option", path=config, option=unknown[0])
    values: dict[str, str] = {}
    for name in content:
        if (other := values.setdefault(fields[bare_name(name)], name)) != name:
            problem = f"{config}: '{other}' and '{name}' are the same option; keep one"
            raise InputError(problem, code="repeated-option", path=config, option=name)
    return {fields[bare_name(name)]: value for name, value in content.items()}


def plugin_files(config: str, words: Sequence[str]) -> list[str]:
    """Return the plugin files that a config file names for a command line, which may be of a plugin itself.

    Args:
        config: value of `--config`.
        words: the command line, from the name of the command on.
    """
    content = read_config(_config_path(config))
    sections = [content[name] for name in (" ".join(words[:length]) for length in (1, 2)) if name in content]
    options = next((section for section in sections if isinstance(section, dict)), content)
    return as_paths(options["plugin"]) if options.get("plugin") is not None else []


def _config_path(config: str) -> Path:
    """Return the path of a config file, of an experiment by its name, or of the copy of an object."""
    if has_url(config):
        (copy,) = import_module("hybrid_cli.artifacts.remote").local_copies([config])
        return Path(copy)
    return Path(config) if Path(config).is_file() else experiments().get(config, Path(config))


def _section(config: str, content: dict[str, Any], kind: type[Settings]) -> dict[str, Any]:
    """Return the options of one command from a file with the options of several.

    Raises:
        InputError: no section of this command, or options outside of the sections.
    """
    for name, value in content.items():
        if isinstance(value, dict) and name != kind.command and (removed := removed_error(name, config)):
            raise removed
    commands = set(command_names())
    sections = {name for name, value in content.items() if name in commands and isinstance(value, dict)}
    if not sections:
        return content
    if other := sorted(str(name) for name in content.keys() - sections):
        close = get_close_matches(other[0], commands - sections, n=1)
        hint = f"did you mean {close[0]}?" if close else "put each option below a command"
        problem = f"{config}: has options by command, and {', '.join(other)}; {hint}"
        raise InputError(problem, code="no-such-command", path=config, value=other[0])
    if kind.command not in content:
        problem = f"{config}: has no options of `hybrid {kind.command}`; it has those of {', '.join(content)}"
        raise InputError(problem, code="no-such-command", path=config, value=kind.command)
    section: dict[str, Any] = content[kind.command]
    return section


def _positive(name: str, kind: type[Settings]) -> str | None:
    """Return the positive form of the negative name of a flag: `tune` for `no-tune`."""
    for field, declared in kind.declared().items():
        for spelled in declared.names or switch(field, declared, bare_type(kind.types()[field])):
            positive, _, negative = spelled.partition("/")
            if negative and bare_name(negative) == name:
                return bare_name(positive)
    return None
