"""What a sink needs at the end, after the samples: labels, paths, checksums, and their digests."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from asyncreader.formats import packed as fmt
from asyncreader.system.array_types import Array, Int64, UInt64

from ..block import Block, FieldBlock
from ..inputs.samples import Samples, Splits
from ..temp_tables import Numbers, blocks, spooled


@dataclass(frozen=True)
class Paths:
    """Paths of the samples in record order. ``each``: starts over at the first one; ``longest``:
    bytes of the longest."""

    each: Callable[[], Iterator[bytes]]
    longest: int

    @classmethod
    def of(cls, numbers: Int64 | range, path: Callable[[int], bytes]) -> Paths:
        """Paths of samples ``numbers`` of the source; ``path(number)`` gives one."""

        def each() -> Iterator[bytes]:
            return (path(int(number)) for number in numbers)

        return cls(each, max(len(name) for name in each()))

    def blocks(self, size: int) -> Iterator[npt.NDArray[np.bytes_]]:
        """Arrays of fixed-length bytes, ``size`` paths at a time."""
        paths = self.each()
        while block := list(itertools.islice(paths, size)):
            yield np.array(block, f"S{self.longest}")


@dataclass(frozen=True)
class FieldTables:
    """The tables of one field, on disk, in record order.

    ``offsets``: (N+1,) int64, of the encoded samples in their blob, or of those of different length
    in their values, None for raw; ``checksums``:
    (N,) uint64; ``paths``: None where none are known.
    """

    meta: fmt.FieldMeta
    offsets: Int64 | None
    checksums: UInt64
    paths: Paths | None

    def name(self, table: str) -> str:
        """The name of one of these tables in the file."""
        return fmt.table_of(self.meta.name, table)

    def data(self) -> tuple[tuple[int, ...], str]:
        """Shape and dtype of all samples as one array: (N, H, W, C) of raw ones, else bytes."""
        if self.offsets is not None and self.meta.encoding != fmt.RAGGED:
            return (int(self.offsets[-1]),), "uint8"
        assert self.meta.shape is not None
        if self.offsets is not None:
            return (int(self.offsets[-1]), *self.meta.shape), self.meta.dtype
        return (self.checksums.size, *self.meta.shape), self.meta.dtype

    def digests(self) -> dict[str, str]:
        """The digest of each table by its name in the file."""
        found = {self.name(fmt.CHECKSUMS): fmt.digest(self.checksums)}
        if self.offsets is not None:
            found[self.name(fmt.OFFSETS)] = fmt.digest(self.offsets)
        if self.paths is not None:
            found[self.name(fmt.PATHS)] = fmt.names_digest(self.paths.each())
        return found


@dataclass(frozen=True)
class Tables:
    """The tables of a finished set. ``labels``: (N, L) int64 or float64, None without; ``splits``:
    int64 (N,), None without."""

    meta: fmt.Meta
    labels: Array | None
    splits: Int64 | None
    fields: tuple[FieldTables, ...]

    def class_names(self) -> list[bytes]:
        """Class names as they are stored."""
        return [encoded(name) for name in self.meta.classes or ()]


def encoded(name: str) -> bytes:
    """A name's bytes: UTF-8, or whatever bytes a file name had that is not."""
    return name.encode("utf-8", "surrogateescape")


class FieldRecords:
    """The packed samples of one field in record order: checksum and bytes."""

    def __init__(self, name: str, encoding: str) -> None:
        self._name = name
        self._encoding = encoding
        self._checksums = Numbers("Q")
        self._ends = Numbers("q")
        self._ends.append(0)
        self._values = self.bytes = 0
        #: What all of them have in common.
        self._meta: fmt.FieldMeta | None = None

    def add(self, sample: FieldBlock) -> None:
        """Note the next record."""
        meta = self._meta
        if meta is None:
            described = sample.described(self._name, self._encoding)
            self._meta = replace(described, shape=sample.shape)
        elif meta.shape is not None and sample.shape != meta.shape:
            self._meta = replace(meta, shape=None)
        self.bytes += len(sample.data)
        if isinstance(sample.checksum, int):
            self._checksums.append(sample.checksum)
            self._ends.append(self.bytes)
        else:  # raw samples, which need no offsets unless they differ in length
            self._checksums.extend(sample.checksum)
            if sample.lengths is not None:
                self._ends.extend(self._values + np.cumsum(sample.lengths))
                self._values += int(sample.lengths.sum())

    def tables(self, paths: Paths | None) -> FieldTables:
        """All tables, with these paths."""
        assert self._meta is not None
        offsets = None if self._encoding == "raw" else self._ends.rows()
        return FieldTables(self._meta, offsets, self._checksums.rows(), paths)

    def close(self) -> None:
        """Close the temporary files."""
        self._checksums.close()
        self._ends.close()


class RecordTables:
    """The packed samples of ``samples`` in record order: number in the source, and each field."""

    def __init__(self, samples: Samples) -> None:
        self._samples = samples
        self._fields = list(map(FieldRecords, samples.fields, samples.encodings))
        #: None while the records are in the source's order, and none is left out.
        self._numbers: Numbers | None = None
        self.count = 0

    def add(self, number: int, sample: Block) -> None:
        """Note the next record; or several, from ``number`` on in the source."""
        for field, values in zip(self._fields, sample, strict=True):
            field.add(values)
        count = sample[0].count
        if self._numbers is None and number != self.count:
            self._numbers = Numbers("q")
            for part in blocks(self.count):
                self._numbers.extend(np.arange(part.start, part.stop))
        if self._numbers is not None:
            if count == 1:
                self._numbers.append(number)
            else:
                self._numbers.extend(np.arange(number, number + count))
        self.count += count

    @property
    def bytes(self) -> tuple[int, ...]:
        """Bytes of each field."""
        return tuple(field.bytes for field in self._fields)

    def tables(self) -> Tables:
        """All tables, and the description with their digests."""
        samples, labels = self._samples, self._labels()
        numbers = range(self.count) if self._numbers is None else self._numbers.rows()
        fields = tuple(
            field.tables(None if path is None else Paths.of(numbers, path))
            for field, path in zip(self._fields, samples.paths, strict=True)
        )
        digests = {name: digest for field in fields for name, digest in field.digests().items()}
        if labels is not None:
            digests[fmt.LABELS] = fmt.digest(labels)
        if samples.classes is not None:
            digests[fmt.CLASSES] = fmt.names_digest(map(encoded, samples.classes))
        # what a Dataset serves may have other labels than its file
        names = samples.label_names
        names = names if labels is not None and len(names) == labels.shape[1] else ()
        if names:
            digests[fmt.LABEL_NAMES] = fmt.names_digest(map(encoded, names))
        splits = samples.splits
        if splits is not None:
            rows = splits.rows[: self.count] if self._numbers is None else splits.rows[numbers]
            splits = Splits(splits.names, rows)
            digests[fmt.SPLITS] = fmt.digest(splits.rows)
        first, *others = (field.meta for field in fields)
        meta = fmt.Meta(
            count=self.count,
            encoding=first.encoding,
            shape=first.shape,
            channels=first.channels,
            label_kind=samples.label_kind,
            label_dtype="<i8" if labels is None else labels.dtype.newbyteorder("<").str,
            classes=samples.classes,
            splits=None if splits is None else splits.names,
            fields=tuple(others),
            dtype=first.dtype,
            digests=digests,
            label_names=names or None,
        )
        return Tables(meta.sealed(), labels, None if splits is None else splits.rows, fields)

    def _labels(self) -> Array | None:
        table, numbers = self._samples.labels, self._numbers
        if table is None:
            return None
        if isinstance(table, np.ndarray) and numbers is None:
            return np.ascontiguousarray(table[: self.count])
        return spooled(
            table[part if numbers is None else numbers.rows()[part]] for part in blocks(self.count)
        )

    def close(self) -> None:
        """Close the temporary files."""
        if self._numbers is not None:
            self._numbers.close()
        for field in self._fields:
            field.close()
