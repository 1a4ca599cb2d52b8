"""Digests of the tables of a set in several files, equal to those of one file of all samples.

So a set's identity does not depend on how its samples are divided into files.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import xxhash

from ...formats import packed as fmt
from ..fields import OpenSet
from ..inspector import Inspector
from ..splits import split_rows


class WholeDigests:
    """Computed file by file. ``tables``: ``checksums``, ``labels``, ``mask.checksums``;
    labels go with the first field."""

    def __init__(self, tables: Iterable[str]) -> None:
        self._states = {name: xxhash.xxh3_64() for name in tables}

    def add(self, file: OpenSet) -> None:
        """Go on with the next file."""
        parts = {name.strip("/"): part for name, part in zip(file.names, file.parts, strict=True)}
        for name, state in self._states.items():
            rows: Any
            if name == fmt.LABELS:
                rows = file.labels
            elif name == fmt.SPLITS:
                rows = split_rows(file.splits, file.facts.count)
            else:
                part = parts[name.rpartition(".")[0] or fmt.DATA]
                rows = Inspector(part).checksums(0, file.facts.count)
            assert rows is not None
            state.update(np.ascontiguousarray(rows).reshape(-1).view(np.uint8).data)

    def found(self) -> dict[str, str]:
        """The digests, of all files that were added; 16 hex digits each."""
        return {name: state.hexdigest() for name, state in self._states.items()}
