"""Config files: YAML of `option: value`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from hybrid_cli.errors import InputError
from hybrid_cli.input_files import read_text
from hybrid_cli.json_files import NOT_JSON, reason
from hybrid_cli.settings.declaration import bare_name


class _Loader(yaml.SafeLoader):
    """Reads numbers and dates as text, which the options convert as on the command line: `010` is 10, not 8.

    Refuses aliases, which can expand to any size.
    """

    path: Path

    def compose_node(self, parent: Any, index: Any) -> Any:
        """Compose the next node."""
        if self.check_event(yaml.AliasEvent):
            event = self.peek_event()  # type: ignore[no-untyped-call]
            raise InputError(f"{self.path}, {_line(event)}: *{event.anchor} is an alias; write the value itself")
        return super().compose_node(parent, index)


_Loader.yaml_implicit_resolvers = {
    first: [(tag, words) for tag, words in several if tag.rpartition(":")[2] not in ("int", "float", "timestamp")]
    for first, several in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def read_config(path: Path) -> dict[str, Any]:
    """Return the options of a YAML file; an empty file has none.

    Raises:
        InputError: not YAML, no mapping, an option that is set twice, or an alias.
    """
    text = read_text(path)
    try:
        loader = _Loader(text)
        loader.path = path
        node = loader.get_single_node()
        for name, key in _repeated(node, options=True):
            raise InputError(f"{path}, {_line(key)}: '{name}' is set twice; keep one line")
        content = None if node is None else loader.construct_document(node)
    except (yaml.YAMLError, *NOT_JSON) as error:
        raise InputError(f"{path}: not a readable YAML file ({reason(error)})") from None
    if content is not None and not isinstance(content, dict):
        raise InputError(f"{path}: needs lines of 'option: value'")
    return content or {}


def _repeated(node: Any, options: bool = False) -> Iterator[tuple[str, yaml.Node]]:
    """Yield the keys that occur again in a mapping, at any depth; spellings of an option are the same key."""
    if isinstance(node, yaml.MappingNode):
        seen: set[str] = set()
        for key, value in node.value:
            if isinstance(key, yaml.ScalarNode):
                name = bare_name(key.value) if options else key.value
                if name in seen:
                    yield name, key
                seen.add(name)
            yield from _repeated(value)
    elif isinstance(node, yaml.SequenceNode):
        for item in node.value:
            yield from _repeated(item)


def _line(place: Any) -> str:
    return f"line {place.start_mark.line + 1}"
