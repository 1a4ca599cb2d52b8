"""What a sink needs at the end, after the samples: labels, paths, checksums, and their digests."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from asyncreader.formats import packed as fmt
from asyncreader.system.array_types import Array, Int64, UInt64

from ..block import Block, FieldBlock
from ..inputs.samples import Samples
from ..temp_tables import LabelTable, Numbers, PathOf, blocks, spooled


@dataclass(frozen=True)
class Paths:
    """Paths of the samples in record order. ``each``: starts over at the first one; ``longest``:
    bytes of the longest."""

    each: Callable[[], Iterator[bytes]]
    longest: int

    @classmethod
    def of(cls, count: int, path: PathOf) -> Paths:
        """Paths of so many samples; ``path(number)`` gives one."""

        def each() -> Iterator[bytes]:
            return map(path, range(count))

        return cls(each, max(map(len, each())))

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


class RecordTables:
    """The packed samples of ``samples`` in record order: each field."""

    def __init__(self, samples: Samples) -> None:
        self._samples = samples
        self._fields = list(map(FieldRecords, samples.fields, samples.encodings))
        self.count = 0

    def add(self, sample: Block) -> None:
        """Note the next record, or several."""
        for field, values in zip(self._fields, sample, strict=True):
            field.add(values)
        self.count += sample[0].count

    @property
    def bytes(self) -> tuple[int, ...]:
        """Bytes of each field."""
        return tuple(field.bytes for field in self._fields)

    def tables(self, skipped: Sequence[int]) -> Tables:
        """All tables, and the description with their digests. ``skipped``: numbers of samples that
        are no records."""
        samples = self._samples
        if skipped:
            samples = samples.of(np.delete(np.arange(self.count + len(skipped)), skipped))
        labels = None if samples.labels is None else self._labels(samples.labels)
        fields = tuple(
            field.tables(None if path is None else Paths.of(self.count, path))
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

    def _labels(self, table: LabelTable) -> Array:
        if isinstance(table, np.ndarray):
            return np.ascontiguousarray(table)
        return spooled(table[part] for part in blocks(self.count))
