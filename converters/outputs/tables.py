"""What a sink needs at the end, after the samples: labels, paths, checksums, and their digests."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from asyncreader.errors import FormatError
from asyncreader.formats import packed as fmt

from ..encode import Packed
from ..temp_tables import Numbers

#: Samples whose labels or paths are handled at a time.
BLOCK = 1 << 16


@dataclass(frozen=True)
class FieldTables:
    """The same as :class:`Tables`, for one of the other fields."""

    meta: fmt.FieldMeta
    offsets: npt.NDArray[np.int64] | None
    checksums: npt.NDArray[np.uint64]
    paths: Paths | None


@dataclass(frozen=True)
class Paths:
    """Paths of the samples in record order. ``each``: starts over at the first one; ``longest``:
    bytes of the longest."""

    each: Callable[[], Iterator[bytes]]
    longest: int

    @classmethod
    def of(cls, numbers: npt.NDArray[np.int64], path: Callable[[int], bytes]) -> Paths:
        """Paths of samples ``numbers`` of the source; ``path(number)`` gives one."""

        def each() -> Iterator[bytes]:
            return (path(int(number)) for number in numbers)

        return cls(each, max(len(name) for name in each()))

    def blocks(self, size: int) -> Iterator[npt.NDArray[np.bytes_]]:
        """Arrays of fixed-length bytes, ``size`` paths at a time."""
        block: list[bytes] = []
        for path in self.each():
            block.append(path)
            if len(block) == size:
                yield np.array(block, f"S{self.longest}")
                block = []
        if block:
            yield np.array(block, f"S{self.longest}")


@dataclass(frozen=True)
class Tables:
    """The tables of a finished set, on disk, in record order.

    ``offsets``: (N+1,) int64, of the encoded samples in their blob, None for raw; ``checksums``:
    (N,) uint64; ``labels``: (N, L) int64 or float64, None without; ``paths``: None where none are
    known; ``fields``: those of the other fields.
    """

    meta: fmt.Meta
    offsets: npt.NDArray[np.int64] | None
    checksums: npt.NDArray[np.uint64]
    labels: npt.NDArray[Any] | None
    paths: Paths | None
    fields: tuple[FieldTables, ...] = ()

    def class_names(self) -> list[bytes]:
        """Class names as they are stored."""
        return [encoded(name) for name in self.meta.classes or ()]


def encoded(name: str) -> bytes:
    """A name's bytes: UTF-8, or whatever bytes a file name had that is not."""
    return name.encode("utf-8", "surrogateescape")


class FieldRecords:
    """The packed samples of one of the other fields, in record order: checksum and bytes.

    ``kind``: what its values must be, None: as the first one's.
    """

    def __init__(self, name: str, encoding: str, kind: str | None) -> None:
        self.name = name
        self._encoding = encoding
        self._kind = kind
        self._checksums = Numbers("Q")
        self._ends = Numbers("q")
        self._ends.append(0)
        self.bytes = 0
        self._first: Packed | None = None
        self._shape: tuple[int, int, int] | None = None

    def add(self, sample: Packed, where: str) -> None:
        """Note the next record; FormatError if its values are of another kind than the first's."""
        self._kind = self._kind or sample.kind
        if sample.kind != self._kind:
            raise FormatError(
                f"field {self.name!r} has values of another kind than the first",
                source_path=where,
                found=sample.kind,
                expected=self._kind,
                hint="convert all of them to one kind",
            )
        if self._first is None:
            self._first = Packed(b"", sample.shape, 0, sample.dtype)
            self._shape = sample.shape
        elif sample.shape != self._shape:
            self._shape = None
        self._checksums.append(sample.checksum)
        self.bytes += len(sample.data)
        self._ends.append(self.bytes)

    def tables(self, paths: Paths | None) -> FieldTables:
        """All tables, with these paths."""
        first = self._first
        assert first is not None
        assert first.shape is not None
        encoding, shape = self._encoding, self._shape
        return FieldTables(
            fmt.FieldMeta(self.name, encoding, shape, first.shape[2], first.dtype),
            None if encoding == "raw" else self._ends.rows(),
            self._checksums.rows(),
            paths,
        )

    def close(self) -> None:
        """Close the temporary files."""
        self._checksums.close()
        self._ends.close()


class PackedRecords:
    """The packed samples in record order: number in the source, checksum, bytes.

    ``fields``: names of their other fields; ``encoding``: how those are stored; ``kinds``: what
    their values must be, empty: as the first ones.
    """

    def __init__(
        self,
        fields: tuple[str, ...] = (),
        encoding: str = "raw",
        kinds: tuple[str, ...] = (),
    ) -> None:
        kind_of = dict(zip(fields, kinds, strict=False))
        self._fields = [FieldRecords(name, encoding, kind_of.get(name)) for name in fields]
        self._numbers = Numbers("q")
        self._checksums = Numbers("Q")
        self._ends = Numbers("q")
        self._ends.append(0)
        self.bytes = 0
        self.count = 0

    def add(self, number: int, sample: Packed, where: Callable[[int], str]) -> None:
        """Note the next record. FormatError (with its path, by ``where``) if a field differs in
        kind from those before."""
        for field, values in zip(self._fields, sample.fields, strict=True):
            field.add(values, where(number))
        self._numbers.append(number)
        self._checksums.append(sample.checksum)
        self.bytes += len(sample.data)
        self._ends.append(self.bytes)
        self.count += 1

    @property
    def field_bytes(self) -> tuple[int, ...]:
        """Bytes of each of the other fields."""
        return tuple(field.bytes for field in self._fields)

    def tables(
        self,
        meta: fmt.Meta,
        labels: Callable[[npt.NDArray[np.int64]], npt.NDArray[Any] | None],
        path: Callable[[int], bytes] | None,
        field_paths: Sequence[Callable[[int], bytes] | None] = (),
    ) -> Tables:
        """All tables. ``meta`` lacks its digests; ``labels``, ``path`` and ``field_paths`` (of
        the other fields) take the source's numbers."""
        numbers = self._numbers.rows()
        rows = self._labels(numbers, labels)
        paths = None if path is None else Paths.of(numbers, path)
        offsets = None if meta.encoding == "raw" else self._ends.rows()
        checksums = self._checksums.rows()
        digests = {fmt.CHECKSUMS: fmt.digest(checksums)}
        if offsets is not None:
            digests[fmt.OFFSETS] = fmt.digest(offsets)
        if rows is not None:
            digests[fmt.LABELS] = fmt.digest(rows)
        if paths is not None:
            digests[fmt.PATHS] = fmt.names_digest(paths.each())
        if meta.classes is not None:
            digests[fmt.CLASSES] = fmt.names_digest(map(encoded, meta.classes))
        fields = tuple(
            field.tables(None if one is None else Paths.of(numbers, one))
            for field, one in zip(self._fields, field_paths, strict=True)
        )
        for field in fields:
            name = field.meta.name
            digests[fmt.table_of(name, fmt.CHECKSUMS)] = fmt.digest(field.checksums)
            if field.offsets is not None:
                digests[fmt.table_of(name, fmt.OFFSETS)] = fmt.digest(field.offsets)
            if field.paths is not None:
                digests[fmt.table_of(name, fmt.PATHS)] = fmt.names_digest(field.paths.each())
        dtype = "<i8" if rows is None else rows.dtype.newbyteorder("<").str
        return Tables(
            meta=replace(
                meta,
                count=self.count,
                digests=digests,
                label_dtype=dtype,
                fields=tuple(field.meta for field in fields),
            ).sealed(),
            offsets=offsets,
            checksums=checksums,
            labels=rows,
            paths=paths,
            fields=fields,
        )

    def _labels(
        self,
        numbers: npt.NDArray[np.int64],
        labels: Callable[[npt.NDArray[np.int64]], npt.NDArray[Any] | None],
    ) -> npt.NDArray[Any] | None:
        spool: Numbers | None = None
        for start in range(0, self.count, BLOCK):
            rows = labels(numbers[start : start + BLOCK])
            if rows is None:
                return None
            if spool is None:
                spool = Numbers("d" if rows.dtype.kind == "f" else "q", rows.shape[1])
            spool.extend(rows)
        assert spool is not None
        return spool.rows().reshape(self.count, -1)

    def close(self) -> None:
        """Close the temporary files."""
        for numbers in (self._numbers, self._checksums, self._ends):
            numbers.close()
        for field in self._fields:
            field.close()
