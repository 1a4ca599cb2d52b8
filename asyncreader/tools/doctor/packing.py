"""Some samples of a set, packed in another form into a temporary folder, to be read for a trial."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from ...errors import SourceError
from ...system.array_types import Int64
from . import measure
from .advice import Candidate

#: Bytes of a packed sample: several times the caches of today's processors.
_SAMPLE_BYTES: Final = 192 << 20

#: Pixels, decoded or not, beyond which caches help no more.
_ENOUGH: Final = 96 << 20


@dataclass(frozen=True)
class PackedSample:
    """A packed part of a set."""

    path: str
    bytes_each: float
    """Bytes of file to a sample."""
    count: int


@dataclass(frozen=True)
class Packer:
    """Packs parts of the set at ``path``, of ``count`` samples, ``chunk`` of them compressed
    together. ``records``: those to choose from, None for all; ``read``: how the set is read."""

    path: Any
    count: int
    chunk: int
    records: Int64 | None
    read: Mapping[str, Any]
    folder: str

    def pack(self, candidate: Candidate, seconds: float) -> PackedSample:
        """A few samples first, then as many as the ``seconds`` let expect, until the caches are
        exceeded. Raises what ``convert`` raises."""
        from converters import convert

        if not isinstance(self.path, str) or not os.path.lexists(self.path):
            raise SourceError(
                "doctor does not convert several files",
                hint="run doctor on one of them and convert each, or convert the images to one "
                "dataset",
            )
        options = dict(candidate.options or {})
        until = time.perf_counter() + seconds
        wanted = 16
        while True:
            target = os.path.join(self.folder, f"{candidate.name}-{wanted}.h5")
            chosen = measure.spread(self.count, wanted, self.chunk, self.records)
            params = {**self.read, "subset": chosen}
            begun = time.perf_counter()
            report = convert(
                self.path, target, params=params, skip_bad=True, progress=False, **options
            )
            took = time.perf_counter() - begun
            each = report.bytes / max(1, report.count)
            most = min(self.count, int(_SAMPLE_BYTES / max(each, 1)))
            more = int(wanted * min(16.0, 0.7 * (until - time.perf_counter()) / took))
            if wanted >= most or more < 2 * wanted:
                break
            os.unlink(target)
            wanted = min(more, most)
        most = min(most, int(_ENOUGH / max(each, 1)))
        if options.get("encoding") == "raw" and report.count < most:
            # pixels that all lie in a core's cache would be copied too fast: the same again
            again = {"subset": np.arange(most, dtype=np.int64) % report.count}
            larger = os.path.join(self.folder, f"{candidate.name}.h5")
            report = convert(target, larger, params=again, progress=False)
            target = larger
        return PackedSample(target, each, report.count)
