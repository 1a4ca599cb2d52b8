"""What identifies a data set, wherever it lies: its count and the digests of what it holds."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import numpy as np

from ..errors import SampleError
from ..formats import packed as fmt
from .base import Source
from .fields import OpenSet
from .inspector import Inspector
from .sets.joined import JoinedSource


def fingerprint(source: Source | OpenSet) -> str:
    """What identifies this data set: the first field's fingerprint, and those of the others."""
    if not isinstance(source, OpenSet):
        return _fingerprint(source)
    first = _fingerprint(source.first)
    others = zip(source.names[1:], source.parts[1:], strict=True)
    named = "".join(f"{name}={_fingerprint(part, labels=False)}\n" for name, part in others)
    if not named:
        return first
    return f"{first}:{hashlib.sha256(named.encode()).hexdigest()[:16]}"


def _fingerprint(part: Source, labels: bool = True) -> str:
    """The fingerprint of one field. ``labels``: with those of the set.

    Packed by asyncreader: count and the digests of checksums and labels. Others: count, shape,
    dtype and a hash of 64 fixed samples.
    """
    spec = part.spec
    digests: Mapping[str, str] | None = None if spec.meta is None else spec.meta.digests
    if digests is None and isinstance(part, JoinedSource):
        digests = part.digests()
    if digests is not None:
        of_labels = digests.get(fmt.LABELS, "-") if labels else "-"
        return f"{spec.count}:{digests.get(fmt.CHECKSUMS)}:{of_labels}"
    state = hashlib.sha256(
        f"{spec.count} {spec.stored.shape} {spec.stored.dtype.str} {spec.encoding}".encode()
    )
    inspector = Inspector(part)
    for index in np.linspace(0, spec.count - 1, min(64, spec.count)).astype(np.int64).tolist():
        try:
            state.update(inspector.bytes(index))
        except SampleError:  # with on_error a set with bad samples can be resumed, too
            state.update(b"bad")
    return f"{spec.count}:{state.hexdigest()[:32]}"
