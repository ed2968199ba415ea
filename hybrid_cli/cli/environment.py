"""Environment variables of libraries; imported first, because libraries read them when they are loaded."""

from __future__ import annotations

import os
import sys

from hybrid_cli import memory

if sys.platform == "win32":  # it has no advisory locks, no renames of open files, and no signals of terminals
    raise SystemExit("hybrid: does not run on Windows; use the Windows Subsystem for Linux (wsl --install)")

# Idle OpenMP threads sleep instead of spinning: if other processes use the cores too, a spinning thread takes time from
# the thread that it waits for. OpenMP reads the variable when torch or FAISS loads it.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
memory.economize(os.environ)
