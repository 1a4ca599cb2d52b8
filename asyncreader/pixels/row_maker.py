"""What all ways from stored samples to rows of a slot have in common, and the compiled calls.

A :class:`RowMaker` is worked out once, from what a file holds and what the user wants, and knows
the shape of the slots. ``plan_rows`` (transform.py) picks the cheapest one there is. A new way to
make a row is a class here, in numbers.py or in transform.py.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final, NamedTuple, Protocol

import numpy as np

from ..errors import ParamsError
from ..system.array_types import Array, Bools, Float32, Float64, Int64, UInt8, UInt64
from ..system.limits import last_level_cache
from ..system.memory import address_of, bytes_at
from . import kernels
from .geometry import Placement, Rect
from .specs import ImageShape, OutputSpec, Row, SampleSpec, checked, limits, run_in_place
from .tables import FILE, ROWS, Erasure, Jobs, numbers

_NO_FILES: Final = numbers(np.zeros(0, FILE))


@dataclass(frozen=True, eq=False)
class RowFiller:
    """Fills many rows in one compiled call. ``kernel``: the name of the function that does;
    ``terms``: see ROWS, one record for each field; ``scale``, ``shift``: float32 (C,), for those
    that cast; ``paint``: the pixel that rectangles are painted over with, None for none."""

    kernel: str
    terms: Array
    scale: Float32
    shift: Float32
    paint: Array | None = None

    @classmethod
    def of(cls, kernel: str, scale: Float32, shift: Float32, **terms: float) -> RowFiller:
        """A filler of rows with these ``terms``."""
        getattr(kernels, kernel)  # loaded now, and not by a worker during the first batch
        return cls(kernel, np.zeros(1, ROWS), scale, shift).having(**terms)

    @classmethod
    def copying(cls, size: int) -> RowFiller:
        """A filler of rows of ``size`` bytes, which stay as they are."""
        none = np.zeros(1, np.float32)
        return cls.of("copy_batches", none, none, row_bytes=size, out_bytes=size)

    def having(self, **terms: float) -> RowFiller:
        """The same filler with other terms."""
        other = self.terms.copy()
        for name, value in terms.items():
            other[name] = value
        return replace(self, terms=other)

    def erasing(self, erasure: Erasure, paint: Array) -> RowFiller:
        """The same filler, which then paints a rectangle over with ``paint``, a pixel (C,)."""
        other = self.having(**erasure._asdict(), paint=address_of(paint))
        return replace(other, paint=paint)

    @cached_property
    def row_bytes(self) -> int:
        """Bytes of a stored row."""
        return int(self.terms["row_bytes"][0])

    @cached_property
    def draws(self) -> bool:
        """Whether anything follows from the rows' keys."""
        return any(self.terms[name].any() for name in ("mirrored", "padding", "chance"))

    @cached_property
    def arguments(self) -> tuple[Any, ...]:
        """What kernels take besides jobs and files."""
        return numbers(self.terms), self.scale, self.shift

    @property
    def copies(self) -> bool:
        """Whether each row is written as it is stored."""
        return self.kernel == "copy_batches" and not self.draws

    def run(self, jobs: Jobs, files: Int64 = _NO_FILES) -> None:
        """Fill one batch. The GIL is released."""
        control, queue = np.array((0, 1, 0)), np.zeros(1, np.int64)
        fill = getattr(kernels, self.kernel)
        fill(control, queue, jobs.table, files, *self.arguments, 1, 0)

    def fill(
        self,
        addresses: Int64,
        rows: Int64,
        out: Array,
        keys: UInt64 | None = None,
        wanted: Bools | None = None,
    ) -> UInt64 | None:
        """Fill ``rows`` of ``out`` from ``addresses``; what is drawn follows from ``keys``.

        Returns the XXH3-64 of the stored rows where ``wanted`` says so; the bytes served are those
        that were hashed. None without ``wanted``.
        """
        assert keys is not None or not self.draws
        hashes = None if wanted is None else np.zeros(rows.size, np.uint64)
        jobs, given = Jobs(1), (addresses, rows, keys, wanted, hashes)
        jobs.places(0, rows.size, *map(address_of, given))
        jobs.memory(0, address_of(out), 0)
        self.run(jobs)
        return hashes


@dataclass(frozen=True, eq=False)
class RowTables:
    """How compiled code fills batches of a set: see tables.py.

    ``filler``: what is done with a row; its ``terms`` are those of each field; ``files``: where all
    rows lie; ``records``: the records of each field in the samples of some records, None where
    these are the records of the one field; ``alive``: owns the memory that the tables name.
    """

    filler: RowFiller
    files: Int64
    records: Callable[[Int64], Sequence[Int64]] | None
    alive: object

    @classmethod
    def of(
        cls,
        fillers: Sequence[RowFiller],
        files: Sequence[Int64],
        records: Callable[[Int64], Sequence[Int64]] | None = None,
        alive: object = None,
    ) -> RowTables:
        """The tables of fields: their ``fillers``, of one kernel, and the ``files`` of each."""
        ends = np.cumsum([len(one) for one in files]).tolist()
        each = zip(fillers, files, ends, strict=True)
        terms = [one.having(first=end - len(own), last=end).terms for one, own, end in each]
        filler = replace(fillers[0], terms=np.concatenate(terms))
        return cls(filler, np.concatenate(files), records, (alive, fillers))

    def fill(
        self, records: Int64, outs: Sequence[Array], labels: Array | None, key: int, position: int
    ) -> bool:
        """Fill the rows of ``outs``, of each field, with samples, and their labels.

        Returns whether all checksums are the recorded ones; what was written is not defined else.
        """
        own = (records,) if self.records is None else self.records(records)
        mark, jobs, place = np.zeros(1, np.int64), Jobs(len(own)), address_of(labels)
        for job, (out, one) in enumerate(zip((*outs, labels), own, strict=False)):
            jobs.records(job, one, key, position)
            jobs.memory(job, address_of(out), place)
        jobs.mark(0, address_of(mark), 1, 2)
        self.filler.run(jobs, self.files)
        return bool(mark[0] == 1)


#: Rows of at least this many bytes are written past the caches if the slot is larger than this part
#: of the last-level cache: such a slot would be evicted before the consumer reads it. Measured with
#: a consumer that sums each batch, one that copies it, and none.
STREAMED_ROW: Final = 16 << 10
STREAMED_PART: Final = 8


def streams(row_bytes: int, batch_bytes: int) -> bool:
    """Whether rows of a batch are copied past the caches, where they would not stay."""
    return row_bytes >= STREAMED_ROW and batch_bytes >= last_level_cache() // STREAMED_PART


def load(*names: str) -> None:
    """Load kernels: by the thread that opens the reader, and not by a worker during its first
    batch."""
    for name in names:
        getattr(kernels, name)


def arrays_at(addresses: Int64, size: int) -> Iterator[UInt8]:
    """The ``size`` bytes at each address, as arrays that do not own them."""
    if addresses.size:
        first = int(addresses.min())
        every = bytes_at(first, int(addresses.max()) - first + size)
        for at in (addresses - first).tolist():
            yield every[at : at + size]


class Affine:
    """Numbers of samples, normalised along their last axis and cast to ``dtype``.

    ``scale``, ``shift``: what they are multiplied by, and what is added then: float64 (n,).
    """

    def __init__(self, wanted: OutputSpec, dtype: np.dtype[Any]) -> None:
        mean, std = np.broadcast_arrays(np.array(wanted.mean), np.array(wanted.std))
        self.scale: Float64 = wanted.scale / std
        self.shift: Float64 = -mean / std
        work = np.float64 if dtype.itemsize > 4 else np.float32
        one = () if self.scale.size == 1 else self.scale.shape
        self._terms = [term.astype(work).reshape(one) for term in (self.scale, self.shift)]
        self._changes = wanted.affine

    def into(self, sample: Array, out: Array) -> None:
        """Write what is made of a sample."""
        if self._changes:
            scale, shift = self._terms
            straight = out.dtype == scale.dtype and out.flags.c_contiguous
            work = out if straight else np.empty(sample.shape, scale.dtype)
            np.copyto(work, sample, casting="unsafe")
            work *= scale
            work += shift
            if straight:
                return
            sample = work
        np.copyto(out, sample, casting="unsafe")


class Drawn(NamedTuple):
    """What is drawn for samples: ``crops`` (B, 40) and ``flips`` (B,) uint8, None where nothing is
    random."""

    crops: Float64 | None
    flips: UInt8 | None

    def pick(self, which: Int64 | slice, count: int) -> tuple[Float64, UInt8]:
        """That of some of them, ``count``, as kernels take it: (n, 0) and zeros for nothing."""
        crops = np.empty((count, 0)) if self.crops is None else self.crops[which]
        return crops, np.zeros(count, np.uint8) if self.flips is None else self.flips[which]

    def of(self, i: int) -> tuple[Float64 | None, bool]:
        """Crop draws of one, and whether it is mirrored."""
        crops = None if self.crops is None else self.crops[i]
        return crops, self.flips is not None and bool(self.flips[i])


class RowView(NamedTuple):
    """A row that is made of a sample. ``draws``, ``flip``: its crop draws, None where there are
    none, and whether it is mirrored; ``out``: its memory; ``row``: what the steps are told of the
    sample, None where there are no steps."""

    fill: RowMaker
    draws: Float64 | None
    flip: bool
    out: Array
    row: Row | None = None

    def rect(self, height: int, width: int) -> Rect | None:
        """The part of a picture that is served; None where it is all, as it is stored."""
        wanted = self.fill.wanted
        return None if wanted.size is None else wanted.rect(height, width, self.draws)


class Target(Protocol):
    """Who writes samples into ``rows`` of a slot's memory ``out``, as makers ask it."""

    out: Array
    rows: Int64

    @property
    def draws(self) -> Drawn:
        """What is drawn for each sample."""

    def put(self, i: int, sample: Array) -> None:
        """Make the row of sample ``i`` by :meth:`RowMaker.put`."""

    def finish(self, i: int, pixels: Array) -> None:
        """Make the row of sample ``i`` by :meth:`Pictures.finish`."""

    def locate(self, error: ParamsError, i: int) -> ParamsError:
        """``error``, which names sample ``i`` then."""


class RowMaker:
    """How stored samples become rows of a slot.

    ``row_shape``, ``dtype``: a row of a slot's memory; ``view_axes``: how a batch of such rows is
    transposed to what the user sees. ``kernel``: what makes a whole batch of rows in one compiled
    call, "" where nothing does. ``narrows``: whether a stored value may be one that ``dtype``
    cannot hold. ``random``: whether anything is drawn. ``members``: of a mix of sets, the maker of
    each set, by the number of the set's first record.
    """

    row_shape: tuple[int, ...]
    kernel = ""
    #: whether rows are the stored bytes
    as_stored = False
    #: of pictures: whether a part is cut out or resized, the axes of a row in the order (H, W, C)
    geometry = False
    to_image: tuple[int, ...] | None = None

    def __init__(
        self, stored: SampleSpec, wanted: OutputSpec, path: str, dtype: np.dtype[Any], narrows: bool
    ) -> None:
        if wanted.affine and dtype.kind != "f":
            raise ParamsError(
                "scale, mean and std need a float dtype",
                found=f"dtype {dtype}",
                hint='pass dtype="float32"',
            )
        self.stored, self.wanted, self.path = stored, wanted, path
        self.dtype, self.narrows, self.random = dtype, narrows, wanted.random
        self.members: Mapping[int, RowMaker] = {}
        self.steps = tuple(step for step in wanted.steps if not step.last)
        self.last_steps = tuple(step for step in wanted.steps if step.last)
        self._fillers: dict[int, RowFiller] = {}

    # -- what the slots look like ----------------------------------------------------------

    @cached_property
    def view_axes(self) -> tuple[int, ...]:
        """See the class."""
        return tuple(range(len(self.row_shape) + 1))

    @cached_property
    def row_bytes(self) -> int:
        """Bytes of a row."""
        return math.prod(self.row_shape) * self.dtype.itemsize

    @property
    def sample_bytes(self) -> int:
        """Bytes of what is made of one sample: a row, or its views."""
        return self.row_bytes * (self.wanted.views or 1)

    def allocate_shape(self, batch: int) -> tuple[int, ...]:
        """Shape of a slot's memory."""
        views = self.wanted.views
        return (batch, views, *self.row_shape) if views else (batch, *self.row_shape)

    def handed_out(self, rows: Array) -> Array:
        """The view of a slot's memory that the user sees."""
        first = rows.ndim - len(self.row_shape)  # behind the axes of samples and of views
        seen = rows.transpose(*range(first), *self._seen_axes)
        if self.stored.flat:
            return seen[..., 0, :, :] if self.wanted.layout == "NCHW" else seen[..., 0]
        return seen

    @cached_property
    def _seen_axes(self) -> tuple[int, ...]:
        """The axes of a row in the order in which the user sees them, counted from the last."""
        return tuple(axis - 1 - len(self.row_shape) for axis in self.view_axes[1:])

    @property
    def image_axes(self) -> str | None:
        """The axes of a picture as it is handed out, such as "CHW"; None for other data."""
        if self.to_image is None:
            return None
        goal = "".join("HWC"[self.to_image.index(axis - 1)] for axis in self.view_axes[1:])
        return goal.replace("C", "") if self.stored.flat else goal

    def stepped(self, last: bool) -> tuple[np.dtype[np.generic], ImageShape]:
        """What steps get, or those that are ``last``: dtype, and shape (H, W, C) behind them all,
        () of data that are no pictures."""
        dtype = self.dtype if last else self.stored.dtype.newbyteorder("=")
        return dtype, tuple(self.row_shape[axis] for axis in self.to_image or ())

    def image(self, row: Array) -> Array:
        """A row of a slot as (H, W, C); of data that are no pictures, as it is."""
        return row if self.to_image is None else row.transpose(self.to_image)

    @cached_property
    def pad(self) -> Array:
        """What shorter samples are filled up with. ParamsError where ``dtype`` cannot hold it."""
        value, dtype, made = self.wanted.pad_value, self.dtype, None
        whole = float(value).is_integer()
        if dtype.kind == "f" or (whole and limits(dtype)[0] <= value <= limits(dtype)[1]):
            with np.errstate(over="ignore"):
                made = np.array(value).astype(dtype)
        if made is None or (np.isfinite(value) and not np.isfinite(made)):
            having = "int64" if whole and abs(value) < 1 << 62 else "float32"
            raise ParamsError(
                "pad_value is no number of the dtype that is served",
                path=self.path,
                found=f"pad_value={value!r}",
                expected=f"a number of {dtype}",
                hint=f'pass another one, or a dtype that has it, such as dtype="{having}"',
            )
        return made

    # -- one sample ------------------------------------------------------------------------

    def put(self, sample: Array, view: RowView) -> None:
        """Fill one row from a raw sample in stored axis order (any strides). ParamsError where
        ``dtype`` cannot hold one of its values."""
        raise NotImplementedError

    def run_last_steps(self, out: Array, row: Row | None) -> None:
        """The steps after the cast, in the row itself."""
        if self.last_steps:
            run_in_place(self.last_steps, self.image(out), row)

    def checked(self, values: Array) -> contextlib.AbstractContextManager[None]:
        """What casts a sample's ``values`` goes in here: ParamsError where one does not fit."""
        if not self.narrows:
            return _UNCHECKED
        return checked(values, self.stored.dtype, self.dtype, self.path)

    # -- many samples ----------------------------------------------------------------------

    def draws(self, keys: UInt64) -> Drawn:
        """What is drawn for samples."""
        return Drawn(None, None)

    def placement(self, key: int, frame: tuple[int, int]) -> Placement:
        """Where a picture of ``frame`` (H, W) is served, whose draws follow from ``key``."""
        crops, flip = self.draws(np.array([key], np.uint64)).of(0)
        rect, size = Rect(0, 0, *frame), self.wanted.size or frame
        if self.geometry:
            found = self.wanted.rect(*frame, crops)
            around = self.wanted.crop_padding
            rect = Rect(found.top - around, found.left - around, found.height, found.width)
        return Placement(rect, size, flip)

    def place(self, target: Target, which: Int64, addresses: Int64) -> None:
        """Make rows of the samples ``which``, which lie raw at ``addresses``: where there is no
        filler."""
        assert self.stored.shape is not None
        samples = arrays_at(addresses, self.stored.row_bytes)
        for i, data in zip(which.tolist(), samples, strict=True):
            target.put(i, data.view(self.stored.dtype).reshape(self.stored.shape))

    @cached_property
    def copier(self) -> RowFiller:
        """What copies raw rows as they are stored."""
        return RowFiller.copying(self.stored.row_bytes)

    def filler(self, batch_bytes: int) -> RowFiller | None:
        """What fills rows of a slot of so many bytes from memory, many at a time; None where each
        row is a call of its own."""
        if not self.kernel:
            return None
        found = self._fillers.get(batch_bytes)
        if found is None:
            found = self._fillers[batch_bytes] = self._make_filler(batch_bytes)
        return found

    def _make_filler(self, batch_bytes: int) -> RowFiller:
        load("pread_rows")
        return self.copier.having(stream=streams(self.row_bytes, batch_bytes))


_UNCHECKED: Final = contextlib.nullcontext()
