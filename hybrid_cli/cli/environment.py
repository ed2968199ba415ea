"""Environment variables of libraries; imported first, because libraries read them when they are loaded."""

from __future__ import annotations

import os

from hybrid_cli import memory

# Idle OpenMP threads sleep instead of spinning: if other processes use the cores too, a spinning thread takes time from
# the thread that it waits for. OpenMP reads the variable when torch or FAISS loads it.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
memory.economize(os.environ)
