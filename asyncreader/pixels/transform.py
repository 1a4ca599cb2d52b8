"""From a stored sample to its row in a slot: crop, resize, flip, cast, normalise, axis order.

A :class:`RowTransform` is worked out once, from what the file holds and what the user wants, and
knows the shape of the slots. It picks the cheapest way there is: a plain copy, one compiled pass
for the whole batch, or a pass per image where a resize or an odd dtype needs one.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property
from typing import Final

import numpy as np

from ..errors import ParamsError
from ..system.array_types import Array, Float64, Int64, UInt8, UInt64
from ..system.limits import last_level_cache
from ..system.memory import SCRATCH, address_of
from . import codec, geometry, kernels, ranges
from .codec import planes
from .codec.masks import check_values, decode_values, pick
from .fill_tables import MIRROR_DRAW, PLAN, numbers
from .lengths import padding
from .numbers import NumberRows
from .rectangles import AREA, CROPS
from .row_filler import RowFiller
from .specs import OutputSpec, SampleSpec
from .steps import Erases, ImageShape, Row, after, run

#: Rows of at least this many bytes are written past the caches if the slot is larger than this part
#: of the last-level cache: such a slot would be evicted before the consumer reads it. Measured with
#: a consumer that sums each batch, one that copies it, and none.
STREAMED_ROW: Final = 16 << 10
STREAMED_PART: Final = 8


def streams(row_bytes: int, batch_bytes: int) -> bool:
    """Whether rows of a batch are copied past the caches, where they would not stay."""
    return row_bytes >= STREAMED_ROW and batch_bytes >= last_level_cache() // STREAMED_PART


#: Pictures are resized and then cast in groups of about this many bytes.
RESIZED_BYTES: Final = 320 << 10


def decode_sample(
    data: codec.Buffer,
    stored: SampleSpec,
    header: codec.ImageHeader | None = None,
    min_size: tuple[int, int] | None = None,
) -> Array:
    """Upright pixels (H, W, C) of an encoded sample, with the dtype that its set declares. With
    ``min_size``: see :func:`codec.decode`. DecodeError."""
    header = header or codec.read_header(data)
    if stored.values:
        values = codec.check_size(decode_values(data), header)
        return check_values(values, stored.channels, stored.dtype)
    if not stored.narrow:
        codec.check_depth(header)
    return codec.decode(data, stored.channels, header=header, min_size=min_size)


class RowTransform:
    """How stored samples become rows of a slot.

    ``row_shape``, ``dtype``: a row of a slot's memory; ``view_axes``: how a batch of such rows is
    transposed to what the user sees. ``mode``: "copy" (bytes as they are), "mirror" (the same with
    flips, padded crops or erased rectangles), "affine" (uint8 -> float32 or float16) and
    "transpose" (HWC -> CHW), each one compiled pass for a whole batch; "resize" (uint8 pictures,
    cropped and resized), "numbers" (no pictures, cast, normalised, or members of structured
    rows), "ragged" (numbers of different length: ``values`` makes one value of a row) or "each"
    (per image).
    ``frame``: (H, W) of the picture whose crop is taken (that of the first field), None for a
    sample's own. ``members``: of a mix of sets, that of each set, by the number of the set's first
    record.
    """

    def __init__(
        self,
        stored: SampleSpec,
        wanted: OutputSpec,
        path: str,
        frame: tuple[int, int] | None = None,
    ) -> None:
        if wanted.transformed_later:
            wanted = replace(wanted, mean=(0.0,), std=(1.0,))
        self.stored = stored
        self.wanted = wanted
        self.members: Mapping[int, RowTransform] = {}
        self.values: RowTransform | None = None
        self._frame = frame
        self._path = path
        #: what is done with numbers that are no pictures
        self._numbers: NumberRows | None = None
        if stored.axes is None and wanted.layout != "planes":
            self._numbers = NumberRows(stored, wanted, path)
            self.dtype, self.narrows = self._numbers.dtype, self._numbers.narrows
        else:
            self.dtype = wanted.dtype or stored.dtype.newbyteorder("=")
            #: whether a stored value may be one that ``dtype`` cannot hold
            self.narrows = not ranges.holds_all(stored.dtype, self.dtype)
        #: whether a compiled pass casts pixels to float32 or float16
        self._casts = False
        #: uint8 pictures of 3 channels that compiled code crops and resizes, by geometry.METHODS;
        #: None where they go one by one
        self.method: int | None = None
        self.random = (
            wanted.flip
            or (wanted.size is not None and wanted.crop in ("random", "random-resized"))
            or any(step.random for step in wanted.steps)
            or (wanted.max_length is not None and wanted.overlong == "random")
        )
        self._steps = tuple(step for step in wanted.steps if not step.last)
        self._last_steps = tuple(step for step in wanted.steps if step.last)
        if wanted.affine and self.dtype.kind != "f":
            raise ParamsError(
                "scale, mean and std need a float dtype",
                found=f"dtype {self.dtype}",
                hint='pass dtype="float32"',
            )
        if wanted.layout == "planes":
            self._plan_planes(stored, wanted, path)
        elif stored.axes is None:
            self._plan_other(wanted, self._numbers)
        else:
            self._plan_image(stored, wanted, path)
        # loaded by the thread that opens the reader, not by a worker during the first batch
        for name in self._needed():
            getattr(kernels, name)
        shape = () if stored.axes is None and self._channels == 1 else (self._channels,)
        mean, std = (np.broadcast_to(np.ravel(v), shape or 1) for v in (wanted.mean, wanted.std))
        work = np.float64 if self.dtype.itemsize > 4 else np.float32
        self._scale: Array = (wanted.scale / std).astype(work).reshape(shape)
        self._shift: Array = (-mean / std).astype(work).reshape(shape)
        self._scale32 = (wanted.scale / std).astype(np.float32)
        self._shift32 = (-mean / std).astype(np.float32)
        self.row_bytes = math.prod(self.row_shape) * self.dtype.itemsize
        self._fillers: dict[int, RowFiller] = {}

    def _needed(self) -> tuple[str, ...]:
        """Kernels that rows need, besides those of :meth:`filler`."""
        if self.method is not None:
            plan = "plan_jpegs" if self.stored.encoded else "plan_crops"
            if self.stored.encoding == planes.YUV420:
                plan = "plan_planes"
            return "uniform_rows", "resize_planned", plan
        if self.wanted.views and self.stored.encoded:
            return "uniform_rows", "jpeg_header", "cut_jpeg", "resize_planned"
        if self.mode in ("numbers", "ragged"):
            return ("cast_numbers",) if self.mode == "numbers" else ("copy_runs",)
        return ("uniform_rows", "resize_planned") if self._steps and self.wanted.flip else ()

    # -- what the slots look like ----------------------------------------------------------

    def _plan_other(self, wanted: OutputSpec, numbers: NumberRows | None) -> None:
        """Data that are no pictures: served as stored, cast or scaled at most."""
        assert numbers is not None
        asked = [name for name in ("size", "flip", "views") if getattr(wanted, name)]
        if asked:
            need = "needs" if len(asked) == 1 else "need"
            raise ParamsError(
                f"{' and '.join(asked)} {need} images",
                path=self._path,
                found=f"samples of shape {numbers.shape}, {numbers.dtype}",
                hint="images are (N, H, W, C), grey ones also (N, H, W, 1), or (N, H, W) of "
                "uint8; num_dim, h_dim, w_dim and cha_dim name the axes of 4-D data",
            )
        self.row_shape = after(wanted.steps, numbers.shape)
        self.view_axes: tuple[int, ...] = tuple(range(len(self.row_shape) + 1))
        self._channels = max(len(wanted.mean), len(wanted.std))
        one = "numbers" if numbers.compiled else "each"
        self.mode = "each" if wanted.steps else "copy" if numbers.plain else one
        self._to_hwc: tuple[int, ...] | None = None
        self.geometry = False
        if self.stored.ragged:
            self._plan_ragged(wanted)

    def _plan_ragged(self, wanted: OutputSpec) -> None:
        """Numbers of different length."""
        if wanted.max_length is None:
            raise ParamsError(
                "the stored samples differ in length, but all samples of a batch have one shape",
                path=self._path,
                hint="pass max_length",
            )
        plain = replace(wanted, steps=())  # steps work on a whole sample
        self.values = RowTransform(replace(self.stored, ragged=False), plain, self._path)
        self.row_shape = (wanted.max_length, *self.row_shape)
        self.view_axes = tuple(range(len(self.row_shape) + 1))
        self.mode = "ragged"
        self.pad  # noqa: B018 - checked when the set is opened

    @cached_property
    def pad(self) -> Array:
        """What shorter samples are filled up with. ParamsError where ``dtype`` cannot hold it."""
        return padding(self.wanted, self.dtype, self._path)

    def _plan_planes(self, stored: SampleSpec, wanted: OutputSpec, path: str) -> None:
        """4:2:0 planes as they are stored."""
        planes.check_served(
            stored.encoding,
            {
                "size": wanted.size is not None,
                "crop": wanted.crop != "center" or wanted.crop_ratio != 1.0,
                "flip": wanted.flip,
                "dtype": self.dtype != np.uint8,
                "steps on samples": bool(wanted.steps),
            },
            path,
        )
        height, width, self._channels = stored.image_shape()
        if height is None or width is None:
            raise ParamsError(
                "the stored planes differ in size, but all images of a batch have one size",
                path=path,
                hint="convert the dataset with a fixed size (--size HxW), or leave layout out and "
                "pass size=(H, W)",
            )
        self.row_shape = (planes.planes_bytes(height, width),)
        self.view_axes = (0, 1)
        self.mode, self.geometry, self._to_hwc = "each", False, None

    def _plan_image(self, stored: SampleSpec, wanted: OutputSpec, path: str) -> None:
        assert stored.axes is not None
        height, width, channels = stored.image_shape()
        # the whole of a raw sample that has the size already: nothing to cut, nothing to resize
        whole = wanted.crop == "none" or (
            wanted.crop_ratio == 1.0 and wanted.crop != "random-resized" and not wanted.crop_padding
        )
        there = not stored.encoded and wanted.size == (height, width) and whole
        there = there and self._frame in (None, wanted.size)
        self.geometry = wanted.size is not None and not there
        if wanted.size is not None:
            height, width = wanted.size
        if height is None or width is None:
            raise ParamsError(
                "the stored images differ in size, but all images of a batch have one size",
                path=path,
                hint="pass size=(H, W)",
            )
        goal = stored.axes if stored.as_stored else wanted.layout[1:]  # "CHW" or "HWC"
        if wanted.contiguous:
            memory = goal
        elif stored.encoded or self.geometry:
            memory = "HWC"
        else:
            memory = stored.axes
        #: (H, W, C) of a row
        self._hwc = after(wanted.steps, (height, width, channels))
        self._channels = self._hwc[2]
        for name, values in (("mean", wanted.mean), ("std", wanted.std)):
            if len(values) not in (1, self._channels):
                raise ParamsError(
                    f"{name} has one value, or one per channel",
                    found=f"{len(values)} values",
                    expected="1" if self._channels == 1 else f"1 or {self._channels}",
                )
        sizes = dict(zip("HWC", self._hwc, strict=True))
        self.row_shape = tuple(sizes[axis] for axis in memory)
        self.view_axes = (0, *(memory.index(axis) + 1 for axis in goal))
        #: stored row -> HWC, and slot row -> HWC
        self._to_hwc = tuple(stored.axes.index(axis) for axis in "HWC")
        self._row_to_hwc = tuple(memory.index(axis) for axis in "HWC")
        self._memory = memory
        same = self.dtype == stored.dtype and not wanted.affine
        self.direct = same and not wanted.steps and memory == "HWC"
        #: steps work in the row itself
        self.in_row = same and memory == "HWC" and self._hwc == (height, width, channels)
        if self._resizes_compiled():
            self._plan_resize()
        self.mode = self._image_mode(same)
        upright = stored.encoded or self.geometry or stored.axes == "HWC"
        self._casts = self._compiled_affine and upright and memory in ("HWC", "CHW")

    def _image_mode(self, same: bool) -> str:
        """The cheapest way to a row; ``same``: pixels keep their numbers."""
        stored, wanted, memory = self.stored, self.wanted, self._memory
        pads, moves = self._pads_compiled(), wanted.flip or wanted.crop_padding
        erases = memory in ("HWC", "CHW") and self._erases is not None
        one_by_one = stored.encoded or wanted.views or (self.geometry and not pads)
        if one_by_one or (wanted.steps and not erases):
            return "resize" if self.method is not None and not stored.encoded else "each"
        if same and memory == stored.axes and not moves and not wanted.steps:
            return "copy"
        if same and memory == stored.axes and (memory == "HWC" or not moves):
            return "mirror"
        if same and stored.axes == "HWC" and memory == "CHW":
            return "transpose"
        affine = self._compiled_affine and stored.axes == "HWC" and memory in ("HWC", "CHW")
        return "affine" if affine else "each"

    def _resizes_compiled(self) -> bool:
        """Whether compiled code crops and resizes many pictures in a call."""
        stored, wanted = self.stored, self.wanted
        if self.narrows or wanted.nearest or wanted.crop_padding:
            return False
        if stored.values:
            return False
        if self.geometry and wanted.interpolation not in geometry.METHODS:
            return False
        if stored.encoded:  # of which a compiled call makes one row each
            return stored.channels == 3 and stored.dtype == np.uint8 and not wanted.views
        height, width, channels = stored.image_shape()
        if not self.geometry or height is None or width is None or channels > 4:
            return False
        assert wanted.size is not None
        small = not geometry.averaged(height, width, wanted.size)
        return small and stored.axes == "HWC" and stored.dtype == np.uint8

    def _plan_resize(self) -> None:
        wanted, size = self.wanted, self.wanted.size
        self.method = geometry.METHODS.get(wanted.interpolation, AREA)
        crop = CROPS.index("none" if size is None else wanted.crop)
        height, width = size or self.stored.image_shape()[:2]
        #: as the kernel plan_jpegs takes them
        self.terms = np.array((height, width, crop, codec.MAX_PIXELS, size is None), np.int64)

    def _pads_compiled(self) -> bool:
        """Whether compiled code cuts parts of their own size out of many padded pictures."""
        stored, wanted = self.stored, self.wanted
        if not wanted.crop_padding or wanted.crop_ratio != 1:
            return False
        whole = wanted.size == stored.image_shape()[:2] and self._frame in (None, wanted.size)
        return whole and not stored.encoded and stored.axes == "HWC"

    @property
    def _erases(self) -> Erases | None:
        """The step, if compiled code does all that the steps do."""
        steps = self.wanted.steps
        if len(steps) == 1 and isinstance(steps[0], Erases) and steps[0].erasure is not None:
            return steps[0]
        return None

    @property
    def _compiled_affine(self) -> bool:
        return self.stored.dtype == np.uint8 and self.dtype in (np.float32, np.float16)

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
        if self._to_hwc is None:
            return None
        goal = "".join(self._memory[axis - 1] for axis in self.view_axes[1:])
        return goal.replace("C", "") if self.stored.flat else goal

    def stepped(self, last: bool) -> tuple[np.dtype[np.generic], ImageShape]:
        """What steps get, or those that are ``last``: dtype, and shape (H, W, C) behind them all,
        () of data that are no pictures."""
        dtype = self.dtype if last else self.stored.dtype.newbyteorder("=")
        if self._to_hwc is None:
            return dtype, ()
        return dtype, tuple(self.row_shape[axis] for axis in self._row_to_hwc)

    # -- filling ---------------------------------------------------------------------------

    def as_stored(self, data: UInt8) -> Array:
        """A raw sample in stored axis order, from its bytes."""
        assert self.stored.shape is not None
        return data.view(self.stored.dtype).reshape(self.stored.shape)

    def draws(self, keys: UInt64) -> tuple[Array | None, UInt8 | None]:
        """Crop draws (B, 40) and flips (B,) uint8 of samples; None where nothing is random."""
        keys, draws, flips = np.ascontiguousarray(keys), None, None
        if self.geometry and self.wanted.crop in ("random", "random-resized"):
            draws = np.empty((keys.size, 2 if self.wanted.crop == "random" else 40))
            kernels.uniform_rows(keys, 0, draws)
        if self.wanted.flip:
            chance = np.empty((keys.size, 1))
            kernels.uniform_rows(keys, MIRROR_DRAW, chance)
            flips = (chance[:, 0] < 0.5).view(np.uint8)
        return draws, flips

    def placement(self, key: int, frame: tuple[int, int]) -> geometry.Placement:
        """Where a picture of ``frame`` (H, W) is served, whose draws follow from ``key``."""
        crops, flips = self.draws(np.array([key], np.uint64))
        rect, size = geometry.Rect(0, 0, *frame), self.wanted.size or frame
        if self.geometry:
            found = self.wanted.rect(*frame, None if crops is None else crops[0])
            around = self.wanted.crop_padding
            rect = geometry.Rect(found.top - around, found.left - around, found.height, found.width)
        return geometry.Placement(rect, size, flips is not None and bool(flips[0]))

    def filler(self, batch_bytes: int) -> RowFiller | None:
        """What fills rows of a slot of so many bytes from memory, many at a time; None where each
        row is a call of its own."""
        if self.mode in ("each", "resize", "numbers", "ragged"):
            return None
        found = self._fillers.get(batch_bytes)
        if found is None:
            found = self._fillers[batch_bytes] = self._make_filler(batch_bytes)
        return found

    @cached_property
    def copier(self) -> RowFiller:
        """What copies raw rows as they are stored."""
        return RowFiller.copying(self.stored.row_bytes)

    def _make_filler(self, batch_bytes: int) -> RowFiller:
        kernels.pread_rows  # noqa: B018 - loaded now, and not by a worker during the first batch
        half = self.dtype == np.float16
        name = {"transpose": "transpose_batches", "affine": "affine_batches"}.get(self.mode)
        name = "affine_batches_half" if self.mode == "affine" and half else name or "copy_batches"
        height, width, channels = (size or 0 for size in self.stored.image_shape())
        size, erases = self.stored.row_bytes, self._erases
        filler = RowFiller.of(
            name,
            self._scale32,
            self._shift32,
            row_bytes=size,
            out_bytes=self.row_bytes,
            height=height,
            width=width,
            channels=channels,
            item=self.stored.dtype.itemsize,
            planar=self.stored.axes is not None and self._memory == "CHW",
            stream=streams(self.row_bytes, batch_bytes),
            mirrored=self.wanted.flip,
            padding=self.wanted.crop_padding if self.geometry else 0,
            around=geometry.PADDINGS.index(self.wanted.padding_mode),
        )
        if erases is None or erases.erasure is None:
            return filler
        return filler.erasing(erases.erasure, erases.paint(self.dtype, channels))

    def resize_rows(
        self,
        addresses: Int64,
        rows: Int64,
        flips: UInt8 | None,
        out: Array,
        crops: Float64 | None,
        finish: Callable[[int, Array], None] | None = None,
    ) -> None:
        """Crop and resize raw samples at ``addresses`` into ``rows`` of a slot, in one compiled
        call. ``crops`` and ``flips``: as :meth:`draws` gives them. ``finish``: what is done with
        each, where there are steps: it gets its number and its pixels."""
        assert self.stored.shape is not None
        assert self.wanted.size is not None
        count, size, channels = addresses.size, self.wanted.size, self.stored.image_shape()[2]
        resized, at, together = out, rows, count
        if not self.direct:  # some at a time: they stay in a core's cache until they are cast
            together = max(1, min(count, RESIZED_BYTES // (math.prod(size) * channels)))
        if not self.in_row:
            resized = SCRATCH.array("resize", (together, *size, channels), self.stored.dtype)
            at = np.arange(count, dtype=np.int64) % together
        flips = np.zeros(count, np.uint8) if flips is None else flips
        some = self._resizer(addresses, at, flips, resized, crops)
        for first in range(0, count, max(1, together)):
            end = min(first + together, count)
            some(first, end)
            if finish is not None:
                for k in range(first, end):
                    finish(k, out[rows[k]] if self.in_row else resized[k - first])
            elif not self.direct:
                self.finish_resized(resized[: end - first], out, rows[first:end])

    def _resizer(
        self, addresses: Int64, rows: Int64, flips: UInt8, out: Array, crops: Float64 | None
    ) -> Callable[[int, int], None]:
        """What crops and resizes samples ``first`` to ``end`` into ``rows`` of ``out``."""
        count = addresses.size
        plan, boxes = numbers(np.empty(count, PLAN)), np.empty((count, 4))
        kernels.plan_crops(
            0,
            addresses,
            np.array(self.stored.shape, np.int64),
            self.terms,
            self.wanted.shares,
            np.empty((count, 0)) if crops is None else crops,
            flips,
            out.ctypes.data,
            rows,
            plan,
            boxes,
        )
        more = self.stored.image_shape()[2], self.method, *self.terms[:2].tolist(), False
        return lambda first, end: kernels.resize_planned(plan, boxes, first, end, *more)

    def finish_resized(self, resized: Array, out: Array, rows: Int64) -> None:
        """Cast, normalise and reorder pixels (B, H, W, C) into ``rows`` of a slot."""
        count, high, wide, channels = resized.shape
        planes = self.dtype == resized.dtype and not self.wanted.affine and self._memory == "CHW"
        if planes or self._casts:
            size = high * wide * channels
            addresses = address_of(resized) + np.arange(0, count * size, size)
            self._finisher.fill(addresses, rows, out)
            return
        for one, row in zip(resized, rows.tolist(), strict=True):
            self.finish(one, False, out[row])

    @cached_property
    def _finisher(self) -> RowFiller:
        """What casts resized pictures (H, W, C), or turns them to (C, H, W)."""
        high, wide, channels = (self.row_shape[axis] for axis in self._row_to_hwc)
        affine = "affine_batches_half" if self.dtype == np.float16 else "affine_batches"
        return RowFiller.of(
            affine if self._casts else "transpose_batches",
            self._scale32,
            self._shift32,
            row_bytes=high * wide * channels,
            out_bytes=self.row_bytes,
            height=high,
            width=wide,
            channels=channels,
            item=1,
            planar=self._memory == "CHW",
        )

    def put(
        self, sample: Array, draws: Array | None, flip: bool, out: Array, row: Row | None = None
    ) -> None:
        """Fill one row from a raw sample in stored axis order (any strides).

        ``row``: what the steps are told of the sample; None where there are no steps. ParamsError
        where ``dtype`` cannot hold one of its values.
        """
        if self.mode == "numbers":
            whole = np.ascontiguousarray(sample)
            wrong = self.put_numbers(np.array([whole.ctypes.data]), np.zeros(1, np.int64), out)
            if wrong is not None:
                raise wrong[1]
            return
        with self.checked(sample):
            if self._to_hwc is None:
                self._cast(self._stepped(sample, row), out)
            else:
                self.put_hwc(sample.transpose(self._to_hwc), None, draws, flip, out, row)
        self.finish_steps(out, row)

    def put_numbers(
        self, addresses: Int64, rows: Int64, out: Array
    ) -> tuple[int, ParamsError] | None:
        """Write rows that are no pictures: see :meth:`NumberRows.put`."""
        assert self._numbers is not None
        return self._numbers.put(addresses, rows, out)

    def checked(self, values: Array) -> contextlib.AbstractContextManager[None]:
        """What casts a sample's ``values`` goes in here: ParamsError where one does not fit."""
        if not self.narrows:
            return _UNCHECKED
        return ranges.checked(values, self.stored.dtype, self.dtype, self._path)

    def put_hwc(
        self,
        pixels: Array,
        box: geometry.Box | None,
        draws: Array | None,
        flip: bool,
        out: Array,
        row: Row | None,
    ) -> None:
        wanted = self.wanted
        if self.geometry and wanted.nearest:
            self._put_nearest(pixels, draws, flip, out)
            return
        if self.geometry:
            assert wanted.size is not None
            if box is None:
                high, wide = pixels.shape[:2]
                box = wanted.rect(high, wide, draws).box()
            if wanted.crop_padding:
                pixels = self._padded(pixels, wanted.crop_padding, wanted.crop_padding)
            if self.direct:
                geometry.resize_into(pixels, out, box, wanted.interpolation, flip)
                return
            native = pixels.dtype.newbyteorder("=")
            resized = SCRATCH.array("resize", (*wanted.size, pixels.shape[2]), native)
            geometry.resize_into(pixels, resized, box, wanted.interpolation, flip)
            if self.narrows and self.dtype.kind != "f" and native.kind == "f":
                np.rint(resized, out=resized)  # whole numbers, but for what the resize mixed
            pixels, flip = resized, False
        if self._steps:
            pixels, flip = self._stepped(pixels, row, flip), False
        self.finish(pixels, flip, out)

    def _stepped(self, image: Array, row: Row | None, flip: bool = False) -> Array:
        """``image``, mirrored with ``flip``, after the steps before the cast; they get a copy of
        their own."""
        if not self._steps:
            return image
        assert row is not None
        own = SCRATCH.array("steps", image.shape, image.dtype.newbyteorder("="))
        if flip:
            geometry.copy_into(image, own, flip)
        else:
            np.copyto(own, image)
        return run(self._steps, own, row)

    def image(self, row: Array) -> Array:
        """A row of a slot as (H, W, C); of data that are no pictures, as it is."""
        return row if self._to_hwc is None else row.transpose(self._row_to_hwc)

    def finish_stepped(self, pixels: Array, out: Array, row: Row) -> None:
        """What is left to do with a picture (H, W, C) that is cropped, resized and mirrored: the
        steps, which may change it, cast and normalise."""
        if not self.in_row:
            self.finish(run(self._steps, pixels, row), False, out)
            self.finish_steps(out, row)
            return
        made = run(self.wanted.steps, pixels, row)  # pixels are the row
        if made is not pixels:
            pixels[...] = made

    def finish_steps(self, out: Array, row: Row | None) -> None:
        """The steps after the cast, in the row itself."""
        if self._last_steps:
            assert row is not None
            image = self.image(out)
            made = run(self._last_steps, image, row)
            if made is not image:
                image[...] = made

    def _padded(self, pixels: Array, down: int, right: int) -> Array:
        """``pixels`` with so many around them on each side."""
        high, wide, channels = pixels.shape
        shape = high + 2 * down, wide + 2 * right, channels
        padded = SCRATCH.array("padded", shape, pixels.dtype.newbyteorder("="))
        geometry.pad_into(pixels, padded, self.wanted.padding_mode)
        return padded

    def _put_nearest(self, pixels: Array, draws: Array | None, flip: bool, out: Array) -> None:
        """The part of ``pixels`` that is the first field's crop, unmixed."""
        wanted = self.wanted
        assert wanted.size is not None
        high, wide = pixels.shape[0], pixels.shape[1]
        frame = self._frame or (high, wide)
        rect = wanted.rect(frame[0], frame[1], draws)
        fy, fx = high / frame[0], wide / frame[1]
        if wanted.crop_padding:
            by = round(wanted.crop_padding * fy), round(wanted.crop_padding * fx)
            pixels = self._padded(pixels, *by)
            high, wide = pixels.shape[:2]
        rows = geometry.nearest_pixels(rect.top * fy, rect.height * fy, wanted.size[0], high)
        columns = geometry.nearest_pixels(rect.left * fx, rect.width * fx, wanted.size[1], wide)
        columns, out = columns[::-1] if flip else columns, out.transpose(self._row_to_hwc)
        if not wanted.affine:
            pick(pixels, rows, columns, out)
            return
        native = pixels.dtype.newbyteorder("=")
        picked = SCRATCH.array("picked", (*wanted.size, pixels.shape[2]), native)
        pick(pixels, rows, columns, picked)
        self._cast(picked, out)

    def finish(self, hwc: Array, flip: bool, out: Array) -> None:
        """Flip, cast, normalise and reorder (H, W, C) pixels into a slot row."""
        if hwc.shape != self._hwc:  # compiled code would take its size from either
            raise ValueError(f"pixels of shape {hwc.shape} for a row of shape {self._hwc}")
        if self._casts and hwc.flags.c_contiguous:
            if flip:
                mirrored = SCRATCH.array("mirrored", hwc.shape, hwc.dtype)
                geometry.copy_into(hwc, mirrored, flip)
                hwc = mirrored
            self._finisher.fill(np.array([hwc.ctypes.data]), np.zeros(1, np.int64), out)
            return
        if self.direct:
            geometry.copy_into(hwc, out, flip)
            return
        if flip:
            hwc = hwc[:, ::-1]
        self._cast(hwc, out.transpose(self._row_to_hwc))

    def _cast(self, sample: Array, out: Array) -> None:
        """Normalise a sample, and cast it into ``out``."""
        if self.wanted.affine:
            sample = sample.astype(self._scale.dtype)
            sample *= self._scale
            sample += self._shift
        np.copyto(out, sample, casting="unsafe")


_UNCHECKED: Final = contextlib.nullcontext()
