"""An open data set: its fields, such as image and mask, with the same crop for each sample.

Each field is a source over the same file, read with the same plan: records, rows and random keys.
This module compares their counts, uses the first one's crop for all, and reports a sample as bad if
one of its fields is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from ..array_types import Array, Int64
from ..errors import DecodeError, FormatError, ParamsError, SampleError
from ..pixels.masks import decode_values
from ..pixels.rows import RowError, RowJob
from ..pixels.transform import OutputSpec, RowTransform, SampleSpec
from ..stats import Meter
from ..text import sides
from . import base
from .base import FieldIndex, Source, read_rows
from .bytestore import ByteFile
from .inspector import Inspector
from .request import Request

File = TypeVar("File", bound=ByteFile)

#: At most so many samples are tried to find one that can be decoded.
_LOOKED_AT = 16


@dataclass(frozen=True)
class SetIndex:
    """All that was found out of a set when it was opened: its fields by name, the first one first.

    Frozen and picklable. A worker process gets it, and neither looks for the set nor parses it
    again. ``named``: see :class:`OpenSet`.
    """

    fields: Mapping[str, FieldIndex]
    named: bool = False

    def open(self) -> OpenSet:
        """The set, open. Nothing stays open if a field fails: FormatError if a file was replaced
        or changed."""
        parts: dict[str, Source] = {}
        try:
            for name, field in self.fields.items():
                parts[name] = field.open()
            return OpenSet(parts, self.named)
        except BaseException:
            for part in parts.values():
                part.close()
            raise


def open_file(file: File, index: Callable[[File], SetIndex]) -> OpenSet:
    """The set that ``index`` finds in ``file``, which is closed if that fails."""
    try:
        fields = index(file).fields.items()
        return OpenSet({name: field.storage.serve(field, file) for name, field in fields})
    except BaseException:
        file.close()
        raise


def index_set(fields: Request, index: Callable[[Request], FieldIndex]) -> SetIndex:
    """The index of the fields that are asked for, of a file that is open."""
    first = index(fields)
    if fields.others == ():
        return SetIndex({fields.data: first})
    others = fields.also(first.spec.stored, [one.name for one in first.spec.fields])
    return SetIndex({fields.data: first, **{one.data: index(one) for one in others}})


class OpenSet:
    """A set that is open: ``fields``, each a source.

    ``named``: errors name the field, and a batch's data is a tuple: there are several, or the
    caller named the only one. ``unchecked``: names of the fields that have no checksums. Raises
    FormatError (ParamsError of arrays) where the fields differ in their number of samples.
    """

    def __init__(self, fields: Mapping[str, Source], named: bool = False) -> None:
        self.fields = fields
        self.named = named or len(fields) > 1
        self.names = tuple(fields)
        self.parts = tuple(fields.values())
        self.first = first = self.parts[0]
        specs = [part.spec for part in self.parts]
        self.spec = replace(
            first.spec,
            checksums=any(spec.checksums for spec in specs),
            some_checksums=any(spec.some_checksums for spec in specs),
        )
        self.labels = first.labels
        self.splits = first.index.splits
        self.remote = first.spec.remote
        self.unchecked = tuple(name for name, part in fields.items() if not part.spec.checksums)
        for name, part in fields.items():
            if part.spec.count != first.spec.count:
                kind = ParamsError if first.spec.container == "arrays" else FormatError
                raise kind(
                    f"field {name!r} has another number of samples than {self.names[0]!r}",
                    path=part.spec.path,
                    found=part.spec.count,
                    expected=first.spec.count,
                )

    @property
    def index(self) -> SetIndex:
        """What was found when it was opened: another process opens it with that."""
        return SetIndex({name: part.index for name, part in self.fields.items()}, self.named)

    def fills(self, wanted: OutputSpec) -> tuple[RowTransform, ...]:
        """How each field becomes rows, where the first does as ``wanted``."""
        spec = self.first.spec
        others = zip(self.names[1:], self.parts[1:], strict=True)
        return (
            RowTransform(spec.stored, wanted, spec.path),
            *(_fill(name, part, wanted, _size(spec.stored)) for name, part in others),
        )

    # -- reading ---------------------------------------------------------------------------

    def read_fields(
        self, plan: RowJob, fills: Sequence[RowTransform], outs: Sequence[Array], meter: Meter
    ) -> tuple[RowError, ...]:
        """Fill rows of each field's memory. A sample is bad if one of its fields is."""
        errors: list[RowError] = []
        if self.remote and len(self.parts) > 1:  # request all before waiting for the first
            self.prefetch(plan.records)
        for name, part, fill, out in zip(self.names, self.parts, fills, outs, strict=True):
            if fill is not fills[0] and self._may_differ(fills[0], fill):
                errors += self._other_sizes(_without(plan, errors), name, part)
            rest = _without(plan, errors)
            if rest.records.size == 0:
                break
            for bad in read_rows(part, rest, fill, out, meter):
                if self.named:
                    bad.error.what = f"field {name!r}: {bad.error.what}"
                if bad.error.source_path is None and bad.error.index is not None:
                    # a field without paths of its own: its picture's
                    origin = Inspector(self.first).path(bad.error.index)
                    bad.error.source_path = base.shown_path(origin)
                errors.append(bad)
        return tuple(errors)

    @staticmethod
    def _may_differ(first: RowTransform, other: RowTransform) -> bool:
        """Whether a sample's picture and this field of it may differ in size, so that one crop
        would not be the other."""
        cropped = other.geometry and other.wanted.crop != "none" and first.stored.axes is not None
        return cropped and (_size(first.stored) is None or _size(other.stored) is None)

    def _other_sizes(self, plan: RowJob, name: str, part: Source) -> Iterator[RowError]:
        first, other = Inspector(self.first), Inspector(part)
        for record, row in zip(plan.records.tolist(), plan.rows.tolist(), strict=True):
            try:
                expected, found = first.size(record), other.size(record)
            except DecodeError:
                continue  # reading it raises the error
            if found != expected:
                error = SampleError(
                    f"field {name!r} has another size than {self.names[0]!r}: one crop for both "
                    "would show different parts",
                    found=sides(*found),
                    expected=sides(*expected),
                    hint='leave it out with on_error="skip", or squeeze all with crop="none"',
                )
                error = part.located(error, record)
                error.source_path = None  # that of the picture
                yield RowError(row, error)

    def prefetch(self, records: Int64) -> None:
        for part in self.parts:
            part.prefetch(records)

    def reserve(self, samples: int) -> None:
        for part in self.parts:
            part.reserve(samples)

    def close(self) -> None:
        for part in self.parts:
            part.close()


def _without(plan: RowJob, errors: Sequence[RowError]) -> RowJob:
    if not errors:
        return plan
    return plan.pick(~np.isin(plan.rows, np.array([bad.row for bad in errors], np.int64)))


def _size(stored: SampleSpec) -> tuple[int, int] | None:
    """(H, W) of every sample's picture; None where they differ, or there is none."""
    if stored.axes is None:
        return None
    high, wide, _ = stored.image_shape()
    return None if high is None or wide is None else (high, wide)


def _fill(
    name: str, part: Source, wanted: OutputSpec, frame: tuple[int, int] | None
) -> RowTransform:
    """Other fields keep their values: nearest neighbour, no cast, no normalisation."""
    spec = part.spec
    stored = _values_of(part) if spec.stored.encoded else spec.stored
    plain = replace(wanted, dtype=None, scale=1.0, mean=(0.0,), std=(1.0,), nearest=True, steps=())
    if stored.axes is None:  # numbers of unknown meaning, such as boxes
        plain = replace(plain, size=None, flip=False)
    try:
        return RowTransform(stored, plain, spec.path, frame if _size(stored) is not None else None)
    except ParamsError as exc:
        exc.what = f"field {name!r}: {exc.what}"
        raise


def _values_of(part: Source) -> SampleSpec:
    """The stored form of encoded values; from the first good sample if the set does not say it."""
    stored = part.spec.stored
    if stored.values:
        return stored
    for index in range(min(_LOOKED_AT, part.spec.count)):
        try:
            values = decode_values(Inspector(part).bytes(index))
        except SampleError:
            continue
        shape = None if stored.shape is None else (*stored.shape[:2], values.shape[2])
        return replace(
            stored, shape=shape, dtype=values.dtype, channels=values.shape[2], values=True
        )
    raise FormatError("none of its first samples can be decoded", path=part.spec.path)
