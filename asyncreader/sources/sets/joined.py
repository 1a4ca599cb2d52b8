"""Several files as one data set, in the order given."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from ...errors import FormatError
from ...formats import packed as fmt
from ...pixels.transform import Fill
from ...stats import Meter
from ..base import Array, Int64, RowError, RowPlan, Source, SourceSpec, UInt64
from .digests import WholeDigests


class ConcatSource:
    """Sources in sequence: record numbers continue from file to file."""

    remote = False

    def __init__(self, parts: Sequence[Source]) -> None:
        self.parts = tuple(parts)
        first = parts[0].spec
        for part in parts[1:]:
            _check_alike(first, part)
        counts = [part.spec.count for part in parts]
        self._ends = np.cumsum(np.array(counts, np.int64))
        self.splits = _joined_splits(parts, [0, *self._ends.tolist()])
        labels, classes = _joined_classes(parts)
        self.labels: Array | None = None
        if all(table is not None for table in labels):
            try:
                self.labels = np.concatenate([table for table in labels if table is not None])
            except ValueError as exc:
                raise FormatError(
                    "the files' labels differ in shape",
                    found=", ".join(str(t.shape[1:]) for t in labels if t is not None),
                ) from exc
        elif any(table is not None for table in labels):
            without = parts[[table is None for table in labels].index(True)].spec.path
            raise FormatError(
                "some of the files have labels and some have none",
                path=without,
                hint="pass labels_field=None to read all of them without",
            )
        shapes = {part.spec.stored.shape for part in parts}
        self.spec = replace(
            first,
            path=f"{first.path} and {len(parts) - 1} more",
            count=int(self._ends[-1]),
            stored=first.stored if len(shapes) == 1 else replace(first.stored, shape=None),
            meta=None,
            classes=classes,
            checksums=all(part.spec.checksums for part in parts),
            size_on_disk=sum(part.spec.size_on_disk for part in parts),
            ends=self._ends,
            fields=tuple(
                field
                for field in first.fields
                if all(field.name in (one.name for one in part.spec.fields) for part in parts)
            ),
        )

    def digests(self) -> dict[str, str] | None:
        """The digests that one file of all samples would have; None if asyncreader did not pack
        all of the files, or if one of them is several files."""
        metas = [part.spec.meta for part in self.parts]
        if any(part.spec.ends is not None for part in self.parts):
            return None
        if not self.spec.checksums or len({meta and meta.label_dtype for meta in metas}) > 1:
            return None
        digests = WholeDigests([fmt.CHECKSUMS, *([fmt.LABELS] * (self.labels is not None))])
        for part in self.parts:
            digests.add({fmt.DATA: part})
        return digests.found()

    def _find(self, index: int) -> tuple[Source, int]:
        which = int(np.searchsorted(self._ends, index, side="right"))
        before = int(self._ends[which - 1]) if which else 0
        return self.parts[which], index - before

    def sample_bytes(self, index: int) -> bytes:
        part, inside = self._find(index)
        return part.sample_bytes(inside)

    def sample_pixels(self, index: int) -> Array:
        part, inside = self._find(index)
        return part.sample_pixels(inside)

    def picture_size(self, index: int) -> tuple[int, int]:
        part, inside = self._find(index)
        return part.picture_size(inside)

    def key_of(self, index: int) -> str | None:
        part, inside = self._find(index)
        return part.key_of(inside)

    def source_path(self, index: int) -> bytes | None:
        part, inside = self._find(index)
        return part.source_path(inside)

    def all_paths(self) -> Iterator[bytes | None]:
        for part in self.parts:
            yield from part.all_paths()

    def checksum_rows(self, start: int, stop: int) -> UInt64 | None:
        if not self.spec.checksums:
            return None
        rows = [self._find(index) for index in range(start, stop)]
        found = [part.checksum_rows(at, at + 1) for part, at in rows]
        return np.concatenate([row for row in found if row is not None])

    def in_memory(self, size: int) -> None:
        return None

    def read_into(
        self, plan: RowPlan, fill: Fill, out: Array, meter: Meter
    ) -> tuple[RowError, ...]:
        which = np.searchsorted(self._ends, plan.records, side="right")
        errors: list[RowError] = []
        for number in np.unique(which).tolist():
            mine = np.flatnonzero(which == number)
            part = plan.pick(mine)
            before = int(self._ends[number - 1]) if number else 0
            # if only some of the files have checksums, check those
            check = part.check if self.parts[number].spec.checksums else None
            local = part._replace(records=part.records - before, check=check)
            for bad in self.parts[number].read_into(local, fill, out, meter):
                # the error names the file, and the record number in the whole set
                if bad.error.index is not None:
                    bad.error.index += before
                errors.append(bad)
        return tuple(errors)

    def prefetch(self, records: Int64) -> None:
        pass  # each part prefetches when it is read

    def reserve(self, samples: int) -> None:
        for part in self.parts:
            part.reserve(samples)

    def close(self) -> None:
        for part in self.parts:
            part.close()


def _joined_splits(parts: Sequence[Source], starts: Sequence[int]) -> Mapping[str, slice | Int64]:
    """Splits that every part has: their records, part by part."""
    names = [name for name in parts[0].splits if all(name in part.splits for part in parts)]
    joined: dict[str, slice | Int64] = {}
    for name in names:
        rows = []
        for part, start in zip(parts, starts, strict=False):
            split = part.splits[name]
            chosen = np.arange(split.start, split.stop) if isinstance(split, slice) else split
            rows.append(chosen.astype(np.int64) + start)
        joined[name] = np.concatenate(rows)
    return joined


def _joined_classes(
    parts: Sequence[Source],
) -> tuple[list[Array | None], tuple[str, ...] | None]:
    """Labels of each part, and the class names of all.

    Foreign sets number the names that they hold (OCR, say), so that numbers are worked out anew.
    """
    labels = [part.labels for part in parts]
    named = [part.spec.classes for part in parts]
    if all(names == named[0] for names in named):
        return labels, named[0]
    every = sorted({name for names in named for name in names or ()})
    number = {name: i for i, name in enumerate(every)}
    for i, (table, names) in enumerate(zip(labels, named, strict=True)):
        if table is not None and names is not None:
            labels[i] = np.array([number[name] for name in names], np.int64)[table]
    return labels, tuple(every)


def _check_alike(first: SourceSpec, part: Source) -> None:
    one, other = first.stored, part.spec.stored
    same = (one.dtype, one.axes, one.encoded) == (other.dtype, other.axes, other.encoded)
    same = same and one.image_shape()[2] == other.image_shape()[2]
    if not one.encoded:
        same = same and one.shape == other.shape
    packed = first.meta is not None or part.spec.meta is not None
    named = (first.classes is None, part.spec.classes is None)
    if not same or named[0] != named[1] or (packed and first.classes != part.spec.classes):
        raise FormatError(
            "this file does not match the first one",
            path=part.spec.path,
            found=_kind(part.spec),
            expected=_kind(first),
            hint="all files of a set need the same shape, dtype, encoding and classes: convert "
            "them so (--classes takes the classes of another set)",
        )


def _kind(spec: SourceSpec) -> str:
    """What all files of a set have in common, in words."""
    shape = "pictures of many sizes" if spec.stored.shape is None else f"{spec.stored.shape}"
    names = spec.classes or ()
    listed = ", ".join(map(repr, names[:4])) + (", ..." if len(names) > 4 else "")
    classes = f"{len(names)} classes" + (f" ({listed})" if names else "")
    return f"{shape} {spec.stored.dtype} {spec.encoding}, {classes}"
