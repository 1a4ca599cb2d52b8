"""For tests of a layout that a package adds: the contract of all sources, and a set in memory."""

from __future__ import annotations

from ..sources import open_source
from .contract import KnownSet, SourceContract
from .memory import MemorySource

__all__ = ["KnownSet", "MemorySource", "SourceContract", "open_source"]
