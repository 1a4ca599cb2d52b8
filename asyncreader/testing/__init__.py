"""For tests of a package's own layout: the contract of all sources, and a dataset in memory."""

from __future__ import annotations

import sys

from ..sources import open_source

if "pytest" in sys.modules:  # a test that fails shows the values that were compared
    sys.modules["pytest"].register_assert_rewrite(f"{__name__}.contract")

from .contract import CheckedSourceContract, KnownSet, MemorySource, SourceContract

__all__ = ["CheckedSourceContract", "KnownSet", "MemorySource", "SourceContract", "open_source"]
