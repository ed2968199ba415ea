"""Fixtures shared by the tests: a collection small enough to read, artifacts made from it once a session."""

from __future__ import annotations

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
