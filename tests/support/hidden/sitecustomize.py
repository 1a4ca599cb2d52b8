"""Hides system calls from the packages in every Python that a test starts (see hidden_calls.py)."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))
import hidden_calls  # noqa: F401
