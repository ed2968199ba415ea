"""Types of options that are paths: for a type checker, a constructor takes texts too, and the attribute is a `Path`."""

from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    Given = TypeVar("Given")
    Stored = TypeVar("Stored")
    AnyPath = str | PathLike[str]

    class Converted(Generic[Given, Stored]):
        """A field of settings for a type checker: the constructor takes texts for paths, the attribute is a path."""

        def __get__(self, settings: object, kind: object = None) -> Stored: ...
        def __set__(self, settings: object, value: Given) -> None: ...

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
else:
    PathField = InheritedPath = Path
    OptionalPath = InheritedOptionalPath = Path | None
    Paths, NamedPaths, PathOrPaths = Sequence[Path], Mapping[str, Path], Sequence[Path] | Path
    OptionalPaths, OptionalPathOrPaths, TwoPaths = Paths | None, PathOrPaths | None, tuple[Path, Path] | None
