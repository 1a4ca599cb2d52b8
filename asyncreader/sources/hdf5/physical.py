"""Physical values: what a file's attributes say that its numbers mean (CF, ODIM and MINC).

NaN stands where one is missing. A source of stored numbers is wrapped: it gives them to a writer
that turns them into values, some at a time, and hands these on. So all sources and all that is done
with rows go with it.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from ...errors import DecodeError, FormatError, ParamsError, SampleError
from ...pixels.rows import E, Origin, RowStore, Writer
from ...pixels.specs import SampleSpec
from ...system.array_types import Array, Bools, Float64, Int64, UInt8
from ...system.late import h5py
from ...system.memory import SCRATCH, address_of
from ..arrays import StoredVolumes
from ..base import BaseSource, FieldIndex, OpenField, Source
from ..bytestore import MemoryStore
from ..fields import SetIndex
from ..request import Request
from .checks import attribute
from .file import Hdf5
from .stored import Stored

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

    def serve(self, field: OpenField) -> Source:
        """A source that makes them of what the source of the numbers reads."""
        assert field.index.numbers is not None
        own = replace(field.index.numbers, path=field.index.path)
        return PhysicalSource(field, own.storage.serve(replace(field, index=own)), self)

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

    def __init__(self, field: OpenField, inner: Source, values: Physical) -> None:
        super().__init__(replace(field, facts=inner.facts))
        self.values, self.parts = values, (inner,)
        self._inner = inner

    def read_into(self, writer: Writer) -> None:
        self._inner.read_into(_Made(writer, self))

    def holding(self, record: int) -> AbstractContextManager[tuple[BaseSource, int]]:
        return self._inner.holding(record)

    def located(self, error: E, record: int) -> E:
        return self._inner.located(error, record)

    def prefetch(self, records: Int64) -> None:
        self._inner.prefetch(records)

    def reserve(self, samples: int) -> None:
        self._inner.reserve(samples)


class _Origin:
    """A source of numbers as that of their values."""

    checksums = None

    def __init__(self, source: Origin, spec: SampleSpec) -> None:
        self.spec, self._source = spec, source

    def located(self, error: E, record: int) -> E:
        return self._source.located(error, record)


class _Made(Writer):
    """Gives ``writer`` the values of the numbers that it is given."""

    def __init__(self, writer: Writer, source: PhysicalSource) -> None:
        assert source.index.numbers is not None
        self.job, self.meter = writer.job, writer.meter
        self._writer, self._source = writer, source
        self._stored: SampleSpec = source.index.numbers.spec
        assert self._stored.shape is not None
        self._shape = self._stored.shape

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


# -- what a file says ------------------------------------------------------------------------------


#: The attributes by which conventions say that values are scaled, shifted or missing: of a data set
#: (CF), and of a group ``what`` beside it (ODIM, the radars of weather services).
_CF: Final = ("scale_factor", "add_offset", "_FillValue", "missing_value")
_ODIM: Final = ("gain", "offset", "nodata", "undetect")
#: What ``_Unsigned`` may say of whole numbers: by their kind, and the kind that they then are.
_SIGNS: Final = {"i": ("true", "u"), "u": ("false", "i")}
#: More numbers than these of an attribute are not shown.
_SHOWN: Final = 4


def meaning_of(h5: Hdf5, data: Stored, name: str, asked: Request) -> Meaning | None:
    """What the file says of the numbers of the data set ``name``, where their values are asked for;
    None where nothing is said. One warning of numbers that are served as stored."""
    found = _of_attributes(h5, data, name, asked.physical) or _of_slices(h5, data, name)
    if found is None:
        return None
    if not asked.physical:
        warnings.warn(
            f"field {asked.data!r} is served as stored, and its attributes say that numbers of it "
            f'are packed or missing ({found.said}): values="physical" serves what they mean, with '
            "NaN for missing ones",
            stacklevel=2,
        )
        return None
    return found


def _words(said: Mapping[str, Array | str]) -> str:
    """Attributes in words; of long ones how many numbers they have."""
    words = []
    for key, value in said.items():
        few: object = value
        if not isinstance(value, str):
            few = value.item() if value.size == 1 else value.tolist()
            few = few if value.size <= _SHOWN else f"{value.size} numbers"
        words.append(f"{key} = {few}")
    return ", ".join(words)


def _of_attributes(h5: Hdf5, data: Stored, name: str, served: bool) -> Meaning | None:
    """What CF's attributes of a data set say, or ODIM's of the group ``what`` beside it.
    FormatError where one cannot be read, and the values are ``served``."""
    stored = np.dtype(h5py.check_vlen_dtype(data.dtype) or data.dtype)
    item, keys, kind = data.data, _CF, stored
    group = name.strip("/").rpartition("/")[0]
    what = h5.reach(f"{group}/what") if group else None
    if isinstance(what, h5py.h5g.GroupID) and h5py.h5a.exists(what, b"gain"):
        item, keys = h5py.Group(what), _ODIM
    if not h5py.h5a.get_num_attrs(item.id):
        return None
    said: dict[str, Any] = {}
    for key, usual in zip(keys, (1, 0, np.nan, np.nan), strict=True):
        values = np.asarray(attribute(item, key)).reshape(-1)
        # NaN is one wherever it is served
        if values.dtype.kind in "iuf" and ((values != usual) & ~np.isnan(values)).any():
            said[key] = values
    scale, offset = (said.get(key, [usual])[0] for key, usual in zip(keys, (1, 0), strict=False))
    missing = [one for key in keys[2:] for one in said.get(key, ())]
    signs = _SIGNS.get(kind.kind)
    if signs is not None and _unsigned(h5, data, name, served) == signs[0]:
        said["_Unsigned"] = signs[0]
        kind = np.dtype(kind.str.replace(kind.kind, signs[1]))
    if not said:
        return None
    numbers = (_as_stored(one, stored, kind) for one in missing if kind.kind in "iuf")
    there = tuple(one for one in numbers if one is not None)
    return Meaning(kind, there, np.array(scale, float), np.array(offset, float), _words(said))


def _unsigned(h5: Hdf5, data: Stored, name: str, served: bool) -> str | None:
    """What ``_Unsigned`` of a data set says."""
    if not h5py.h5a.exists(data.id, b"_Unsigned"):
        return None
    value = attribute(data.data, "_Unsigned")
    if isinstance(value, bytes):
        return value.decode("latin-1")
    try:
        return h5.text(name, "_Unsigned")
    except FormatError:
        if served:
            raise
        return "true"


def _as_stored(value: Any, stored: np.dtype[Any], kind: np.dtype[Any]) -> Any:
    """A number as one of ``stored``, read as ``kind``, or as it is given of ``kind``; None where
    there is no such number."""
    with np.errstate(all="ignore"):
        for dtype in (stored, kind):
            number = np.asarray(value).astype(dtype)
            if kind.kind == "f" or number == value:
                return number.view(kind)[()]
    return None


def _of_slices(h5: Hdf5, data: Stored, name: str) -> Meaning | None:
    """What MINC says of the slices of an image: the values that its least and its greatest number
    mean in each of them."""
    group, _, last = name.rpartition("/")
    if last != "image" or data.dtype.kind not in "iu":
        return None
    ends = [h5.find(f"{group}/{one}") for one in ("image-min", "image-max")]
    if None in ends:
        return None
    # one number for all slices is read as an array of one
    low, high = (one.read().astype(float).reshape(one.shape) for one in ends if one is not None)
    info, valid = np.iinfo(data.dtype), np.ravel(attribute(data.data, "valid_range"))
    least, most = valid.tolist() if valid.size == 2 else (info.min, info.max)
    if low.shape != high.shape or low.shape != data.shape[: low.ndim] or not least < most:
        raise FormatError(
            "image-min, image-max and valid_range are not those of the image",
            found=f"shapes {low.shape} and {high.shape}, range {least} to {most}",
            expected=f"the first axes of {data.shape}",
        )
    scale = (high - low) / (most - least)
    offset = low - least * scale
    scale, offset = (
        one.reshape(one.shape + (1,) * (data.ndim - one.ndim) * (one.ndim > 0))
        for one in (scale, offset)
    )
    said = {"image-min": low, "image-max": high, "valid_range": np.array([least, most])}
    return Meaning(data.dtype, (), scale, offset, _words(said), (least, most))
