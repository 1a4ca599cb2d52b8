"""Physical values: what a file's attributes say that its numbers mean; NaN where one is missing.

A source of stored numbers is wrapped: it gives them to a writer that turns them into values, some
at a time, and hands these on. So all sources and all that is done with rows go with it.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from ..errors import DecodeError, ParamsError, SampleError
from ..pixels.rows import E, NumberWriter, Origin, RowStore, Writer
from ..pixels.specs import SampleSpec
from ..system.array_types import Array, Bools, Float64, Int64, UInt8
from ..system.memory import SCRATCH, address_of
from .base import BaseSource, FieldIndex, SetFacts, Source
from .bytestore import ByteFile, MemoryStore
from .fields import SetIndex
from .patches import StoredVolumes
from .request import Request

#: Values that are made together: their float64 stay in a core's cache. Rows of fewer bytes are
#: copied before, many in a call.
_TOGETHER: Final = 1 << 15
_DOUBLE: Final = np.dtype(np.float64)

_MEMORY: Final = MemoryStore()


@dataclass(frozen=True, eq=False)
class Meaning:
    """What the stored numbers of an array mean: ``number * scale + offset``.

    ``kind``: the dtype that they are read as; ``clip``: the least and the greatest of them, beyond
    which they count as these; ``missing``: those that stand for no value; ``scale``, ``offset``:
    one number each, or arrays that are broadcast to the array; ``said``: the attributes, in words.
    """

    kind: np.dtype[Any]
    missing: tuple[Any, ...]
    scale: Float64
    offset: Float64
    said: str
    clip: tuple[float, float] | None = None

    def fill(self, stored: Array, out: Array, scale: Float64, offset: Float64, no: float) -> None:
        """Write the values of ``stored`` numbers to ``out``, both in C order; ``no``: what stands
        where one is missing."""
        numbers = stored.view(self.kind)
        if scale.ndim:
            for k in range(len(numbers)):
                here = k if len(scale) > 1 else 0
                self._fill(numbers[k], out[k], scale[here], offset[here], no)
            return
        flat, made = numbers.reshape(-1), out.reshape(-1)
        for at in range(0, flat.size, _TOGETHER):
            some = slice(at, at + _TOGETHER)
            self._fill(flat[some], made[some], scale, offset, no)

    def _fill(self, numbers: Array, out: Array, scale: Any, offset: Any, no: float) -> None:
        wide = SCRATCH.array("wide values", numbers.shape, _DOUBLE)
        with np.errstate(all="ignore"):
            if self.clip is not None:
                np.clip(numbers, *self.clip, out=wide)
                wide *= scale
            else:
                np.multiply(numbers, scale, out=wide)
            wide += offset
            np.copyto(out, wide, casting="unsafe")
        for one in self.missing:
            np.copyto(out, no, where=numbers == one)


@dataclass(frozen=True, eq=False)
class Physical:
    """The values of the field ``FieldIndex.numbers``. ``scale``, ``offset``: those of its samples
    where these differ, by their numbers, or with ``volumes`` by the places of patches in them;
    ``missing``: what stands for no value."""

    meaning: Meaning
    scale: Float64
    offset: Float64
    missing: float
    volumes: StoredVolumes | None = None

    def serve(self, facts: SetFacts, index: FieldIndex, file: ByteFile | None) -> Source:
        """A source that makes them of what the source of the numbers reads."""
        assert index.numbers is not None
        own = replace(index.numbers, path=index.path)
        return PhysicalSource(index, file, own.storage.serve(facts, own, file), self)

    def fill(self, records: Int64, stored: Array, out: Array) -> None:
        """Write the values of samples to ``out`` (n, ...)."""
        scale, offset = self.scale, self.offset
        if self.volumes is not None and scale.ndim:
            scale, offset = (np.stack(one) for one in zip(*map(self._at, records), strict=True))
        elif scale.ndim and len(scale) > 1:
            scale, offset = scale[records], offset[records]
        self.meaning.fill(stored, out, scale, offset, self.missing)

    def _at(self, record: int) -> tuple[Float64, Float64]:
        """Scale and offset in a patch."""
        assert self.volumes is not None
        box, (start,) = self.volumes.box, self.volumes.starts(np.array([record]))
        number = self.volumes.volumes.sample_axis
        where = tuple(
            slice(at, at + size) if n > 1 else slice(None)
            for at, size, n in zip(start.tolist(), box, self.scale.shape, strict=True)
        )
        parts = self.scale[where], self.offset[where]
        scale, offset = parts if number is None else (np.squeeze(one, number) for one in parts)
        return scale, offset


def as_physical(index: SetIndex, meaning: Meaning, asked: Request) -> SetIndex:
    """The set of one field whose values are served in place of its numbers."""
    ((name, field),) = index.fields.items()
    return replace(index, fields={name: physical_field(field, meaning, asked)})


def physical_field(field: FieldIndex, meaning: Meaning, asked: Request) -> FieldIndex:
    """The field of the values of ``field``: float32, unless more is asked for."""
    if field.spec.dtype.kind not in "iuf" or field.spec.encoded:
        raise ParamsError(
            'values="physical" goes with arrays of numbers',
            found=f"field {asked.own_name!r} of {field.spec.dtype}, and {meaning.said}",
        )
    dtype = np.dtype(asked.own_dtype or np.float32)
    small = dtype.kind == "f" and dtype.itemsize <= 4
    volumes = getattr(field.storage, "stored", None)
    scale, offset = meaning.scale, meaning.offset
    if scale.ndim and volumes is None:
        if asked.lead > 1:
            raise ParamsError(f"slices with values of their own are no episodes: {meaning.said}")
        axis = asked.dims[0] - 1 if asked.dims is not None else asked.along
        scale, offset = (
            np.moveaxis(one, axis, 0) if asked.lead else one[None] for one in (scale, offset)
        )
    storage = Physical(meaning, scale, offset, asked.missing, volumes)
    spec = replace(field.spec, dtype=np.dtype(np.float32) if small else _DOUBLE)
    return replace(field, spec=spec, storage=storage, numbers=field)


class PhysicalSource(BaseSource):
    """Reads values: see :class:`Physical`. ``inner``: the source of the numbers."""

    def __init__(
        self, index: FieldIndex, file: ByteFile | None, inner: Source, values: Physical
    ) -> None:
        super().__init__(inner.facts, index, file)
        self.inner, self.values = inner, values

    def read_into(self, writer: Writer) -> None:
        self.inner.read_into(_Made(writer, self))

    def holding(self, record: int) -> AbstractContextManager[tuple[BaseSource, int]]:
        return self.inner.holding(record)

    def located(self, error: E, record: int) -> E:
        return self.inner.located(error, record)

    def prefetch(self, records: Int64) -> None:
        self.inner.prefetch(records)

    def reserve(self, samples: int) -> None:
        self.inner.reserve(samples)

    def release(self) -> None:
        self.inner.release()

    def close(self) -> None:
        self.inner.close()


class _Origin:
    """A source of numbers as that of their values."""

    checksums = None

    def __init__(self, source: Origin, spec: SampleSpec) -> None:
        self.spec, self._source = spec, source

    def located(self, error: E, record: int) -> E:
        return self._source.located(error, record)


class _Made(NumberWriter):
    """Gives ``writer`` the values of the numbers that it is given."""

    def __init__(self, writer: Writer, source: PhysicalSource) -> None:
        assert source.index.numbers is not None
        self.job, self.meter = writer.job, writer.meter
        self._writer, self._source = writer, source
        self._stored: SampleSpec = source.index.numbers.spec
        assert self._stored.shape is not None
        self._shape = self._stored.shape

    @property
    def stopped(self) -> bool:
        return self._writer.stopped

    def of_file(self, origin: Origin, first: int, positions: Int64, local: Int64) -> Writer:
        named = _Origin(origin, self._source.spec)
        return _Made(self._writer.of_file(named, first, positions, local), self._source)

    def raw(self, i: int, sample: Array, stored: UInt8 | None = None) -> None:
        numbers = np.ascontiguousarray(sample, self._stored.dtype).reshape(1, *self._shape)
        self._writer.raw(i, self._made(np.array([i]), numbers)[0])

    def bulk(self, store: RowStore, offsets: Int64, which: Int64 | Bools | None = None) -> None:
        places = np.arange(self.job.rows.size)
        places = places if which is None else places[which]
        size, straight = self._stored.row_bytes, self._writer.in_place
        together = max(1, _TOGETHER * self._source.spec.dtype.itemsize // max(1, size))
        out = None if straight is None else straight.out.reshape(-1, *self._shape)
        for first in range(0, places.size, together):
            if self.stopped:
                return
            some, at = places[first : first + together], offsets[first : first + together]
            numbers = self._read(store, at, size)
            if out is None:
                made = self._made(some, numbers)
                lines = np.arange(some.size) * (made.nbytes // some.size)
                self._writer.bulk(_MEMORY, address_of(made) + lines, some)
                continue
            rows = self.job.rows[some]
            if int(rows[-1]) - int(rows[0]) == rows.size - 1 and (np.diff(rows) == 1).all():
                self._fill(some, numbers, out[rows[0] : rows[-1] + 1])
            else:
                out[rows] = self._made(some, numbers)

    def _read(self, store: RowStore, offsets: Int64, size: int) -> Array:
        """The numbers of samples at ``offsets`` of a store, (n, ...)."""
        if offsets.size == 1:
            found = store.view(int(offsets[0]), size)
            return found.view(self._stored.dtype).reshape(1, *self._shape)
        numbers = SCRATCH.array("numbers", (offsets.size, *self._shape), self._stored.dtype)
        store.gather(offsets, size, address_of(numbers), np.arange(offsets.size))
        return numbers

    def _made(self, places: Int64, numbers: Array) -> Array:
        """The values of samples, (n, ...), in memory of the thread."""
        made = SCRATCH.array("values", numbers.shape, self._source.spec.dtype)
        self._fill(places, numbers, made)
        return made

    def _fill(self, places: Int64, numbers: Array, out: Array) -> None:
        self._source.values.fill(self.job.records[places], numbers, out)

    def fail(self, i: int, error: SampleError) -> None:
        self._writer.fail(i, error)

    def fail_all(self, which: Int64, error: DecodeError) -> None:
        self._writer.fail_all(which, error)
