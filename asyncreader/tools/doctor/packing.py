"""Some samples of a set, packed in another form into a temporary folder, to be read for a trial."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from ...errors import AsyncReaderError, SourceError
from ...system.array_types import Int64
from . import measure
from .advice import Proposal
from .facts import Facts

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


def pack_samples(
    forms: Sequence[Proposal],
    facts: Facts,
    path: Any,
    records: Int64 | None,
    read: Mapping[str, Any],
    folder: str,
    seconds: float,
    tell: Callable[[str], None],
) -> dict[str, PackedSample | AsyncReaderError]:
    """For each of ``forms`` by name a packed part, or why it cannot be packed.

    ``records``: those to choose from, None for all; ``read``: how the set is read; ``seconds``: for
    all forms together, about; ``tell`` gets a line for each form.
    """
    found: dict[str, PackedSample | AsyncReaderError] = {}
    whole = isinstance(path, str) and os.path.lexists(path)
    for form in forms:
        if not whole:
            hint = (
                "run doctor on one of them and convert each, or convert the images to one dataset"
            )
            found[form.name] = SourceError("doctor does not convert several files", hint=hint)
            continue
        tell(f"trying: {form.words}")
        try:
            found[form.name] = _pack(form, facts, path, records, read, folder, seconds / len(forms))
        except AsyncReaderError as exc:
            found[form.name] = exc
    return found


def _pack(
    form: Proposal,
    facts: Facts,
    path: str,
    records: Int64 | None,
    read: Mapping[str, Any],
    folder: str,
    seconds: float,
) -> PackedSample:
    """A few samples first, then as many as the time lets expect, until the caches are exceeded."""
    from converters import convert

    assert form.convert is not None
    until = time.perf_counter() + seconds
    wanted = 16
    while True:
        chosen = measure.spread(facts.count, wanted, facts.chunk, records)
        target = os.path.join(folder, f"{form.name}-{wanted}.h5")
        begun = time.perf_counter()
        params = {**read, "subset": chosen}
        report = convert(path, target, params=params, skip_bad=True, progress=False, **form.convert)
        took = time.perf_counter() - begun
        each = report.bytes / max(1, report.count)
        most = min(facts.count, int(_SAMPLE_BYTES / max(each, 1)))
        more = int(wanted * min(16.0, 0.7 * (until - time.perf_counter()) / took))
        if wanted >= most or more < 2 * wanted:
            most = min(most, int(_ENOUGH / max(each, 1)))
            if form.convert.get("encoding") == "raw" and report.count < most:
                # pixels that all lie in a core's cache would be copied too fast: the same again
                larger = os.path.join(folder, f"{form.name}.h5")
                again = {"subset": np.arange(most, dtype=np.int64) % report.count}
                report = convert(target, larger, params=again, progress=False)
                target = larger
            return PackedSample(target, each, report.count)
        os.unlink(target)
        wanted = min(more, most)
