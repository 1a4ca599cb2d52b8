"""An open data set: its fields, such as image and mask, with the same crop for each sample.

Each field is a source over the same file, read with the same plan: records, rows and random keys.
This module compares their counts, uses the first one's crop for all, and reports a sample as bad if
one of its fields is.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..array_types import Array, Int64
from ..errors import DecodeError, FormatError, ParamsError, SampleError
from ..formats import packed as fmt
from ..pixels.masks import decode_values
from ..pixels.rows import RowError, RowJob
from ..pixels.transform import OutputSpec, RowTransform, SampleSpec
from ..stats import Meter
from ..text import sides
from . import base
from .base import FieldIndex, Source, read_rows
from .inspector import Inspector
from .sets.joined import JoinedSource

#: At most so many samples are tried to find one that can be decoded.
_LOOKED_AT = 16


@dataclass(frozen=True)
class SetIndex:
    """All that was found out of a set when it was opened: its fields by name, the first one first.

    Frozen and picklable. A worker process gets it, and neither looks for the set nor parses it
    again. ``named``: see :class:`OpenSet`.
    """

    fields: Mapping[str, FieldIndex]
    named: bool

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


class OpenSet:
    """A set that is open: ``parts``, each a source of one field.

    ``named``: the caller named the fields, so that errors name them, and a batch's data is a tuple.
    ``unchecked``: names of the fields that have no checksums. Raises FormatError (ParamsError of
    arrays) where the fields differ in their number of samples.
    """

    def __init__(self, parts: Mapping[str, Source], named: bool = True) -> None:
        self.named = named
        self.names = tuple(parts)
        self.parts = tuple(parts.values())
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
        self.unchecked = tuple(name for name, part in parts.items() if not part.spec.checksums)
        for name, part in parts.items():
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
        parts = zip(self.names, self.parts, strict=True)
        return SetIndex({name: part.index for name, part in parts}, self.named)

    @classmethod
    def of(cls, source: Source | OpenSet) -> OpenSet:
        """``source`` as the only field of its set, if it is not the fields already."""
        if isinstance(source, OpenSet):
            return source
        return cls({fmt.DATA: source}, named=False)

    def fills(self, wanted: OutputSpec) -> tuple[RowTransform, ...]:
        """How each field becomes rows, where the first does as ``wanted``."""
        spec = self.first.spec
        others = zip(self.names[1:], self.parts[1:], strict=True)
        return (
            RowTransform(spec.stored, wanted, spec.path),
            *(_fill(name, part, wanted, _size(spec.stored)) for name, part in others),
        )

    @property
    def open_at_once(self) -> int | None:
        """Of a set in several files those that stay open; None of others."""
        return self.first.open_at_once if isinstance(self.first, JoinedSource) else None

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


def fingerprint(source: Source | OpenSet) -> str:
    """What identifies this data set: the first field's fingerprint, and those of the others."""
    fields = OpenSet.of(source)
    first = _fingerprint(fields.first)
    others = [_fingerprint(part, labels=False) for part in fields.parts[1:]]
    if not others:
        return first
    named = "".join(f"{name}={one}\n" for name, one in zip(fields.names[1:], others, strict=True))
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
