"""Types of options that are paths: for a type checker, a constructor takes texts too, and the attribute is a `Path`."""

from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

AnyPath = str | PathLike[str]
Given = TypeVar("Given")
Stored = TypeVar("Stored")


class Converted(Generic[Given, Stored]):
    """A field of settings that is declared with two types, of which the second is its type."""

    if TYPE_CHECKING:

        def __get__(self, settings: object, kind: object = None) -> Stored: ...
        def __set__(self, settings: object, value: Given) -> None: ...

    else:

        def __class_getitem__(cls, types):
            return types[1]


PathField = Converted[AnyPath, Path]
OptionalPath = Converted[AnyPath | None, Path | None]
Paths = Converted[Sequence[AnyPath], Sequence[Path]]
OptionalPaths = Converted[Sequence[AnyPath] | None, Sequence[Path] | None]
PathOrPaths = Converted[Sequence[AnyPath] | AnyPath, Sequence[Path] | Path]
OptionalPathOrPaths = Converted[Sequence[AnyPath] | AnyPath | None, Sequence[Path] | Path | None]
TwoPaths = Converted[tuple[AnyPath, AnyPath] | None, tuple[Path, Path] | None]
NamedPaths = Converted[Mapping[str, AnyPath], Mapping[str, Path]]
# Fields that frozen subclasses inherit and read: for mypy, they have there the type that the constructor takes.
InheritedPath = Converted[Path | Any, Path]
InheritedOptionalPath = Converted[Path | Any | None, Path | None]
