"""A long list of files packed by asyncreader as one source, with few open at a time.

Each file is opened once for what a manifest would say of it (some hundred bytes), then closed.
After that the files are read like shards. A shorter list stays open as a whole (joined.py) and
serves the same samples in the same orders under the same fingerprint.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from ...errors import FormatError
from ...formats import packed as fmt
from ...formats.manifest import Common, Manifest
from ..base import Source, SourceSpec
from .digests import WholeDigests
from .shards import ShardSource

#: Opens one field of a file; None if the name means several files.
Opener: TypeAlias = Callable[[str], Source | None]


def open_many(names: Sequence[str], field: str, opener: Opener) -> ShardSource | None:
    """The files ``names`` as one source; None unless asyncreader packed all, of one kind.

    ``field``: the name of what ``opener`` opens. Raises what ``opener`` raises.
    """
    table = _Table(field)
    for name in names:
        source = opener(name)
        if source is None:
            return None
        with contextlib.closing(source):
            if not table.add(source):
                return None
    first = table.first
    assert first is not None

    def again(number: int) -> Source:
        source = opener(names[number])
        if source is None:
            raise FormatError("the file is no longer a packed file", path=names[number])
        return source

    whole = ShardSource(
        table.manifest(),
        again,
        path=f"{first.path} and {len(names) - 1} more",
        io=first.io,
        labels=table.labelled,
        field=field,
    )
    layout = f"asyncreader, {len(names)} files"
    whole.spec = replace(whole.spec, layout=layout, block=first.block)
    return whole


@dataclass(frozen=True)
class _Kind:
    """What all files must share."""

    container: str
    meta: fmt.Meta
    fields: tuple[fmt.FieldMeta, ...]
    label_width: int | None
    chunk: int | None
    compression: str | None

    @classmethod
    def of(cls, source: Source) -> _Kind | None:
        """None for a file that asyncreader did not pack."""
        spec, labels = source.spec, source.labels
        if spec.meta is None or spec.ends is not None or not spec.checksums:
            return None
        # encoded pictures may differ in size
        meta = spec.meta if spec.encoding == "raw" else replace(spec.meta, shape=None)
        return cls(
            spec.container,
            replace(meta, count=0, digests={}, fields=()),
            tuple(
                one if one.encoding == "raw" else replace(one, shape=None) for one in spec.fields
            ),
            None if labels is None else int(labels.shape[1]),
            spec.chunk,
            spec.compression,
        )


class _Table:
    """A manifest in the making, from one file after the other. ``first``: what that one is."""

    def __init__(self, field: str) -> None:
        self._field = field
        self.first: SourceSpec | None = None
        self._kind: _Kind | None = None
        self._digests = WholeDigests(())
        self._rows: list[tuple[int, int, int, int]] = []
        self._shapes: set[tuple[int, int, int] | None] = set()

    @property
    def labelled(self) -> bool:
        """Whether labels are read."""
        return self._kind is not None and self._kind.label_width is not None

    def add(self, source: Source) -> bool:
        """Add the next file; False if it does not fit those before."""
        spec, kind = source.spec, _Kind.of(source)
        if kind is None or spec.meta is None:
            return False
        if self._kind is None:
            self.first, self._kind = spec, kind
            self._digests = WholeDigests([self._checksums, *([fmt.LABELS] * self.labelled)])
        if kind != self._kind:
            return False
        self._digests.add({self._field: source})
        stated = spec.meta.digests
        checksums, labels = (int(stated.get(n, "0"), 16) for n in (fmt.CHECKSUMS, fmt.LABELS))
        self._rows.append((spec.count, spec.size_on_disk, checksums, labels))
        self._shapes.add(spec.meta.shape)
        return True

    @property
    def _checksums(self) -> str:
        return fmt.table_of(None if self._field == fmt.DATA else self._field, fmt.CHECKSUMS)

    def manifest(self) -> Manifest:
        """The manifest of the files; their names are their numbers, and other fields have a
        description only."""
        assert self._kind is not None
        kind, meta = self._kind, self._kind.meta
        shape = self._shapes.pop() if len(self._shapes) == 1 else None
        fields = tuple(
            replace(one, shape=shape) if one.name == self._field else one for one in kind.fields
        )
        rows = np.array(self._rows, np.uint64)
        columns = np.zeros((len(fields), len(rows)), np.uint64)
        for column, one in zip(columns, fields, strict=True):
            if one.name == self._field:
                column[:] = rows[:, 2]
        common = Common(
            container=kind.container.lower(),
            encoding=meta.encoding,
            shape=shape,
            channels=meta.channels,
            label_kind=meta.label_kind,
            label_dtype=meta.label_dtype,
            label_width=kind.label_width or 1,
            classes=meta.classes,
            chunk=kind.chunk,
            compression=kind.compression,
            data_bytes=len(rows),  # not used
            fields=fields,
            field_bytes=(len(rows),) * len(fields),
        )
        return Manifest(
            common,
            np.arange(len(rows)).astype("S"),
            rows[:, 0].astype(np.int64),
            rows[:, 1].astype(np.int64),
            np.zeros(len(rows), np.uint64),
            rows[:, 2],
            rows[:, 3],
            columns,
            self._digests.found(),
        )
