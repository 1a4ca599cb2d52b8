"""Fields of a sample that the user's transform changes together: read, changed, and then cast."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from ..errors import ParamsError, WorkerError
from ..pixels.specs import OutputSpec, SampleSpec
from ..pixels.steps import Row
from ..pixels.transform import RowTransform
from ..pixels.user_transform import Field, Transform
from ..sources import OpenSet, RowError, RowJob
from ..stats import Meter
from ..system.array_types import Array
from ..system.keyed_random import key_of
from ..system.memory import SCRATCH

#: Samples are read and changed in groups of about this many bytes.
_GROUP_BYTES: Final = 4 << 20

#: Keeps what the last steps draw apart from what those before the transform drew.
_LAST: Final = 0x4C41


class Together:
    """Several fields of a set, changed by the user's ``transform``.

    ``before``: how each field becomes what the function gets; ``fills``: how what it returns
    becomes rows of a slot, () while a trial call has to say what that is.
    """

    def __init__(self, source: OpenSet, wanted: OutputSpec, transform: Transform) -> None:
        if wanted.layout == "planes":
            raise ParamsError('transform works on images, and layout="planes" serves none')
        self._source = source
        steps = tuple(step for step in wanted.steps if not step.last)
        plain = OutputSpec(layout=wanted.layout)
        uncast = {name: getattr(plain, name) for name in ("dtype", "scale", "mean", "std")}
        # members are chosen before the function, values are cast and normalised behind it
        members = {
            name: {"members": one["members"]}
            for name, one in wanted.by_field.items()
            if "members" in one
        }
        raw = replace(wanted, **uncast, contiguous=False, steps=steps, by_field=members)
        self.before = source.fills(raw)
        kinds = [self._kind(number, name, wanted) for number, name in enumerate(source.names)]
        self.transform = replace(transform, fields=tuple(kinds))
        if type(transform.function).__module__.startswith("albumentations"):
            self._check_albumentations()
        self.fills: tuple[RowTransform, ...] = ()
        if transform.made is not None:
            last = tuple(step for step in wanted.steps if step.last)
            first = wanted.for_field(source.names[0])
            cast = {name: getattr(first, name) for name in uncast}
            others = replace(plain, contiguous=wanted.contiguous)
            given = [replace(others, **cast, steps=last)]
            for name in source.names[1:]:
                asked = wanted.by_field.get(name, {}).items()
                own: dict[str, Any] = {what: value for what, value in asked if what in uncast}
                given.append(replace(others, **own))
            self.fills = tuple(
                RowTransform(_stored(fill, shape), one, source.facts.path)
                for fill, shape, one in zip(self.before, transform.made.shapes, given, strict=True)
            )

    def _kind(self, number: int, name: str, wanted: OutputSpec) -> Field:
        if name in (wanted.boxes, wanted.keypoints):
            return Field(name, "boxes" if name == wanted.boxes else "keypoints")
        if self.before[number].stored.axes is None:
            return Field(name, "numbers")
        return Field(name, "mask" if number else "image")

    def _check_albumentations(self) -> None:
        odd = [one.name for one in self.transform.fields[1:] if one.kind != "mask"]
        if odd:
            raise ParamsError(
                "a transform of albumentations gets images and label maps",
                found=", ".join(map(repr, odd)),
                hint="call it in a function of your own: f(fields, label, rng)",
            )

    def read_fields(self, job: RowJob, outs: Sequence[Array], meter: Meter) -> tuple[RowError, ...]:
        """Fill rows of each field's memory, as OpenSet.read_fields does. WorkerError, with the
        record, where the function fails."""
        size = sum(fill.row_bytes for fill in self.before)
        together, errors = max(1, _GROUP_BYTES // size), list[RowError]()
        if self._source.facts.remote:  # request all before waiting for the first group
            self._source.prefetch(job.records)
        for first in range(0, job.records.size, together):
            errors += self._read(job.pick(slice(first, first + together)), outs, meter)
        return tuple(errors)

    def _read(self, job: RowJob, outs: Sequence[Array], meter: Meter) -> list[RowError]:
        count = job.records.size
        held = [
            SCRATCH.array(f"field {k}", fill.allocate_shape(count), fill.dtype)
            for k, fill in enumerate(self.before)
        ]
        lines = np.arange(count, dtype=np.int64)
        bad = self._source.read_fields(
            job._replace(rows=lines, made=None), self.before, held, meter
        )
        lost = {one.row for one in bad}
        for i in lines.tolist():
            if meter.stopped:
                break
            if i not in lost:
                self._change(i, job, held, outs, meter)
        return [replace(one, row=int(job.rows[one.row])) for one in bad]

    def _change(
        self, i: int, job: RowJob, held: Sequence[Array], outs: Sequence[Array], meter: Meter
    ) -> None:
        """Call the function for sample ``i``, and write what it returns into its row."""
        record, row, started = int(job.records[i]), int(job.rows[i]), time.perf_counter()
        position = -1 if job.positions is None else int(job.positions[i])
        label = None if job.labels is None else job.labels[i]
        told = Row(record, position, label, int(job.keys[i]), meter.seconds)
        given = (fill.image(rows[i]) for fill, rows in zip(self.before, held, strict=True))
        try:
            made = self.transform.of(tuple(given), told)
            meter.seconds[self.transform.name] += time.perf_counter() - started
            last = Row(record, position, told.label, key_of(told.key, _LAST), meter.seconds)
            for fill, image, out in zip(self.fills, made, outs, strict=bool(self.fills)):
                axes = fill.stored.axes
                if axes is not None:
                    image = image.transpose(["HWC".index(axis) for axis in axes])
                fill.put(image, None, False, out[row, ...], last)
        except (ParamsError, WorkerError) as exc:
            self._source.first.located(exc, record)
            raise
        if job.made is not None and self.fills:
            job.made[row] = told.label


def _stored(fill: RowTransform, shape: tuple[int, ...]) -> SampleSpec:
    """What the function returned of a field that ``fill`` made, as if a set held it."""
    was, dtype = fill.stored, fill.dtype
    if was.axes is None:
        return SampleSpec(shape, dtype, None)
    sizes = dict(zip("HWC", shape, strict=True))
    return SampleSpec(
        tuple(sizes[axis] for axis in was.axes),
        dtype,
        was.axes,
        channels=shape[2],
        flat=was.flat and shape[2] == 1,
        as_stored=was.as_stored,
    )
