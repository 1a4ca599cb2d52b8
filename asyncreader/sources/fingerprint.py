"""What identifies a data set, wherever it lies: its count and the digests of what it holds."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

import numpy as np

from ..errors import SampleError
from ..formats import packed as fmt
from .base import SetFacts
from .fields import OpenSet
from .inspector import Inspector
from .sets.combined import MixedSet
from .sets.joined import JoinedSource

#: Bytes of a sample of different length that are hashed; of a longer one its length says enough.
_HASHED: Final = 1 << 20


def fingerprint(source: OpenSet) -> str:
    """What identifies this data set: the first field's fingerprint, and those of the others."""
    if isinstance(source, MixedSet):  # with what its labels are numbered by
        parts = [fingerprint(one) for one in source.sets]
        text = repr((parts, source.index.classes, source.facts.classes))
        return f"{source.facts.count}:{hashlib.sha256(text.encode()).hexdigest()[:32]}"
    return _of_fields(source, source.facts)


def earlier_fingerprints(source: OpenSet) -> dict[str, int]:
    """The fingerprints that the set had before shards were added to it, and its samples then."""
    facts, meta, found = source.facts, source.facts.meta, {}
    for count, digests in facts.earlier if meta is not None else ():
        assert meta is not None
        before = replace(facts, count=count, meta=replace(meta, digests=digests))
        found[_of_fields(source, before)] = count
    return found


def _of_fields(source: OpenSet, facts: SetFacts) -> str:
    first = _fingerprint(source, source.names[0], facts)
    named = "".join(f"{name}={_fingerprint(source, name, facts)}\n" for name in source.names[1:])
    return first if not named else f"{first}:{hashlib.sha256(named.encode()).hexdigest()[:16]}"


def _fingerprint(source: OpenSet, name: str, facts: SetFacts) -> str:
    """The fingerprint of one field; the first one's has that of the labels.

    Packed by asyncreader: count and the digests of checksums and labels. Others: count, shape,
    dtype and a hash of 64 fixed samples. Their numbers are hashed in little-endian order, since
    pickle gives arrays back in the machine's order.
    """
    count, meta, part = facts.count, facts.meta, source.part(name)
    digests: Mapping[str, str] | None = None if meta is None else meta.digests
    table = fmt.table_of(name.strip("/"), fmt.CHECKSUMS)
    if meta is None and isinstance(part, JoinedSource):
        digests = part.digests()
    if digests is not None and table in digests:  # others may have added a field
        labels = digests.get(fmt.LABELS, "-") if part is source.first else "-"
        return f"{count}:{digests[table]}:{labels}"
    spec = part.spec
    little = spec.dtype.newbyteorder("<")
    dtype = little.str if little.names is None else str(little)
    kind = part.index.stored_as or f"{'ragged ' * spec.ragged}{spec.shape} {dtype}"
    state = hashlib.sha256(f"{count} {kind} {spec.encoding}".encode())
    inspector, offsets, rows = Inspector(part), part.index.offsets, source.rows_of(name)
    for index in np.linspace(0, rows - 1, min(64, rows)).astype(np.int64).tolist():
        if offsets is not None:
            size = int(offsets[index + 1]) - int(offsets[index])
            state.update(f"{int(offsets[index])} {size}".encode())
            if not 0 <= size * spec.row_bytes <= _HASHED:
                continue
        try:
            stored = inspector.bytes(index)
            if little != spec.dtype:
                stored = np.frombuffer(stored, spec.dtype).astype(little).tobytes()
            state.update(stored)
        except SampleError:  # with on_error a set with bad samples can be resumed, too
            state.update(b"bad")
    return f"{count}:{state.hexdigest()[:32]}"
