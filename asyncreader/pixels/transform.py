"""From a stored sample to its row in a slot: crop, resize, flip, cast, normalise, axis order.

A :class:`RowTransform` is worked out once, from what the file holds and what the user wants, and
knows the shape of the slots. It picks the cheapest way there is: a plain copy, one compiled pass
for the whole batch, or a pass per image where a resize or an odd dtype needs one.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from ..array_types import Array, Float64, Int64, UInt8, UInt64
from ..errors import DecodeError, ParamsError
from ..keyed_random import uniforms
from ..stats import Meter
from ..text import sides
from . import codec, geometry, jpeg_cut, kernels
from .masks import check_values, decode_values, pick
from .steps import ImageShape, Row, Step, after, run

#: Draws of a sample's key: 0..39 choose its crop, this one its flip.
FLIP_DRAW: Final = 63


@dataclass(frozen=True)
class SampleSpec:
    """What a source holds of one sample.

    ``shape``: of a stored row, in stored axis order; None where encoded images differ in size.
    ``axes``: for raw pictures the order of the letters H, W, C in a row; "HWC" for encoded images;
    None for data that are no pictures, which are served as they are. ``encoding``: "raw", a codec's
    name, or "original" for image files of any kind. ``flat``: the one channel is
    no axis of its own in storage, nor in what is handed out. ``values``: encoded numbers, not
    colours (masks.py). ``as_stored``: handed out in the stored order of axes, whatever the layout.
    ``narrow``: it is known that grey pictures of 16 bits are served with 8; where it is not, such a
    picture is a DecodeError.
    """

    shape: tuple[int, ...] | None
    dtype: np.dtype[Any]
    axes: str | None
    encoding: str = "raw"
    channels: int = 3
    flat: bool = False
    values: bool = False
    as_stored: bool = False
    narrow: bool = False

    @property
    def encoded(self) -> bool:
        """Whether a sample is an image file, or numbers in one."""
        return self.encoding != "raw"

    @property
    def row_bytes(self) -> int:
        """Bytes of one raw sample, where all have one shape."""
        assert self.shape is not None
        return math.prod(self.shape) * self.dtype.itemsize

    def image_shape(self) -> tuple[int | None, int | None, int]:
        """(H, W, C), None where samples differ."""
        if self.shape is None or self.axes is None:
            return None, None, self.channels
        size = dict(zip(self.axes, self.shape, strict=True))
        return size["H"], size["W"], size["C"]


@dataclass(frozen=True)
class OutputSpec:
    """What the user asked for (see the table in docs/parameters.md)."""

    layout: str = "NCHW"
    contiguous: bool = False
    dtype: np.dtype[np.generic] | None = None
    scale: float = 1.0
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    size: tuple[int, int] | None = None
    crop: str = "center"
    crop_ratio: float = 1.0
    crop_area: tuple[float, float] = (0.08, 1.0)
    crop_aspect: tuple[float, float] = (3 / 4, 4 / 3)
    crop_padding: int = 0
    padding_mode: str = "zero"
    interpolation: str = "bilinear"
    flip: bool = False
    #: Resized by nearest neighbour: the numbers mean something, and none may be made up.
    nearest: bool = False
    #: What is done with each image between its crop and its row, and after it (steps.py).
    steps: tuple[Step, ...] = ()

    @property
    def affine(self) -> bool:
        """Whether values change by more than a cast."""
        return self.scale != 1.0 or any(m != 0 for m in self.mean) or any(s != 1 for s in self.std)

    def rect(self, height: int, width: int, draws: Float64 | None) -> geometry.Rect:
        """The part of a picture that is served; with ``crop_padding``, of the padded picture."""
        assert self.size is not None
        ranges = self.crop_area, self.crop_aspect, self.crop_padding
        return geometry.choose_rect(
            height, width, self.size, self.crop, self.crop_ratio, draws, *ranges
        )


class _Scratch(threading.local):
    """Byte buffers of the calling thread, by name; they grow and are reused."""

    def __init__(self) -> None:
        self._buffers: dict[str, UInt8] = {}

    def take(self, name: str, size: int) -> UInt8:
        held = self._buffers.get(name)
        if held is None or held.size < size:
            held = self._buffers[name] = np.empty(size, np.uint8)
        return held[:size]

    def array(self, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        size = math.prod(shape) * dtype.itemsize
        return self.take(name, size).view(dtype).reshape(shape)


SCRATCH: Final = _Scratch()


def decode_sample(
    data: codec.Buffer,
    stored: SampleSpec,
    header: codec.ImageHeader | None = None,
    min_size: tuple[int, int] | None = None,
) -> Array:
    """Upright pixels (H, W, C) of an encoded sample, with the dtype that its set declares. With
    ``min_size``: see :func:`codec.decode`. DecodeError."""
    if stored.values:
        return check_values(decode_values(data), stored.channels, stored.dtype)
    header = header or codec.read_header(data)
    if not stored.narrow:
        codec.check_depth(header)
    return codec.decode(data, stored.channels, header=header, min_size=min_size)


#: What fills whole batches, by mode; affine_rows is chosen by dtype.
_KERNELS: Final = {
    "copy": "gather_rows",
    "mirror": "mirror_rows",
    "transpose": "transpose_rows",
    "padded": "padded_rows",
}

#: Bytes of rows that are cut out of padded pictures before they are cast: they stay in the cache.
_CUT_BYTES: Final = 320 << 10


class RowTransform:
    """How stored samples become rows of a slot.

    ``row_shape``, ``dtype``: a row of a slot's memory; ``view_axes``: how a batch of such rows is
    transposed to what the user sees. ``mode``: "copy" (bytes as they are), "mirror" (the same with
    flips), "affine" (one compiled pass, uint8 -> float32 or float16), "transpose" (one compiled
    pass, HWC -> CHW), "padded" (parts of padded pictures, then affine) or "each" (per image).
    ``frame``: (H, W) of the picture whose crop is taken (that of the first field), None for a
    sample's own.
    """

    def __init__(
        self,
        stored: SampleSpec,
        wanted: OutputSpec,
        path: str,
        frame: tuple[int, int] | None = None,
    ) -> None:
        self.stored = stored
        self.wanted = wanted
        self._frame = frame
        self._path = path
        self.dtype = wanted.dtype or stored.dtype.newbyteorder("=")
        #: whether a stored value may be one that ``dtype`` cannot hold
        self.narrows = not _holds_all(stored.dtype, self.dtype)
        #: the compiled pass to float32 or float16, where it serves
        self._affine_rows: Callable[..., None] | None = None
        self.random = (
            wanted.flip
            or (wanted.size is not None and wanted.crop in ("random", "random-resized"))
            or any(step.random for step in wanted.steps)
        )
        self._steps = tuple(step for step in wanted.steps if not step.last)
        self._last_steps = tuple(step for step in wanted.steps if step.last)
        if wanted.affine and self.dtype.kind != "f":
            raise ParamsError(
                "scale, mean and std need a float dtype",
                found=f"dtype {self.dtype}",
                hint='pass dtype="float32"',
            )
        if stored.axes is None:
            self._plan_other(wanted)
        else:
            self._plan_image(stored, wanted, path)
        if self.mode in _KERNELS:
            # loaded by the thread that opens the reader, not by a worker during the first batch
            for name in (_KERNELS[self.mode], "pread_runs"):
                getattr(kernels, name)
        shape = () if stored.axes is None else (self._channels,)
        mean, std = (np.broadcast_to(np.ravel(v), shape or 1) for v in (wanted.mean, wanted.std))
        work = np.float64 if self.dtype.itemsize > 4 else np.float32
        self._scale: Array = (wanted.scale / std).astype(work).reshape(shape)
        self._shift: Array = (-mean / std).astype(work).reshape(shape)
        self._scale32 = (wanted.scale / std).astype(np.float32)
        self._shift32 = (-mean / std).astype(np.float32)
        self.row_bytes = math.prod(self.row_shape) * self.dtype.itemsize

    # -- what the slots look like ----------------------------------------------------------

    def _plan_other(self, wanted: OutputSpec) -> None:
        """Data that are no pictures: served as stored, cast or scaled at most."""
        shape = self.stored.shape
        assert shape is not None
        asked = [
            name
            for name, value in (("size", wanted.size), ("flip", wanted.flip))
            if value not in (None, False)
        ]
        if asked or len(wanted.mean) > 1 or len(wanted.std) > 1:
            need = "needs" if len(asked) == 1 else "need"
            raise ParamsError(
                f"{' and '.join(asked) or 'mean and std of each channel'} {need} pictures",
                path=self._path,
                found=f"samples of shape {shape}, {self.stored.dtype}",
                hint="pictures are (N, H, W, C), grey ones also (N, H, W, 1), or (N, H, W) of "
                "uint8; num_dim, h_dim, w_dim and cha_dim name the axes of 4-D data",
            )
        self.row_shape = after(wanted.steps, shape)
        self.view_axes: tuple[int, ...] = tuple(range(len(self.row_shape) + 1))
        self._channels = 1
        same = self.stored.dtype == self.dtype and not wanted.affine and not wanted.steps
        self.mode = "copy" if same else "each"
        self._to_hwc: tuple[int, ...] | None = None
        self.geometry = False

    def _plan_image(self, stored: SampleSpec, wanted: OutputSpec, path: str) -> None:
        assert stored.axes is not None
        height, width, channels = stored.image_shape()
        self._channels = channels
        for name, values in (("mean", wanted.mean), ("std", wanted.std)):
            if len(values) not in (1, channels):
                raise ParamsError(
                    f"{name} has one value, or one per channel",
                    found=f"{len(values)} values",
                    expected=f"1 or {channels}",
                )
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
                "the stored images differ in size, a batch cannot",
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
        sizes = dict(zip("HWC", after(wanted.steps, (height, width, channels)), strict=True))
        self.row_shape = tuple(sizes[axis] for axis in memory)
        self.view_axes = (0, *(memory.index(axis) + 1 for axis in goal))
        #: stored row -> HWC, and slot row -> HWC
        self._to_hwc = tuple(stored.axes.index(axis) for axis in "HWC")
        self._row_to_hwc = tuple(memory.index(axis) for axis in "HWC")
        self._memory = memory
        plain = self.dtype == stored.dtype and not wanted.affine and not wanted.steps
        self._direct = plain and memory == "HWC"
        moved = wanted.crop_padding and wanted.crop_ratio == 1 and wanted.size == self._raw_size
        moved = moved and self._frame in (None, wanted.size) and stored.axes == "HWC"
        if moved and not wanted.steps and (self._direct or self._compiled_affine):
            self.mode = "padded"
        elif stored.encoded or self.geometry or wanted.steps:
            self.mode = "each"
        elif plain and memory == stored.axes and not wanted.flip:
            self.mode = "copy"
        elif plain and memory == stored.axes == "HWC":
            self.mode = "mirror"
        elif plain and stored.axes == "HWC" and memory == "CHW" and not wanted.flip:
            self.mode = "transpose"
        elif self._compiled_affine and stored.axes == "HWC" and memory in ("HWC", "CHW"):
            self.mode = "affine"
        else:
            self.mode = "each"
        upright = stored.encoded or self.geometry or stored.axes == "HWC"
        if self._compiled_affine and upright and memory in ("HWC", "CHW"):
            half = self.dtype == np.float16
            self._affine_rows = kernels.affine_rows_half if half else kernels.affine_rows

    @property
    def _raw_size(self) -> tuple[int | None, int | None] | None:
        """(H, W) of raw samples, None of encoded ones."""
        return None if self.stored.encoded else self.stored.image_shape()[:2]

    @property
    def _compiled_affine(self) -> bool:
        return self.stored.dtype == np.uint8 and self.dtype in (np.float32, np.float16)

    def allocate_shape(self, batch: int) -> tuple[int, ...]:
        """Shape of a slot's memory."""
        return (batch, *self.row_shape)

    def handed_out(self, rows: Array) -> Array:
        """The view of a slot's memory that the user sees."""
        seen = rows.transpose(self.view_axes)
        if self.stored.flat:
            return seen[:, 0] if self.wanted.layout == "NCHW" else seen[..., 0]
        return seen

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
        wanted = self.wanted
        draws = None
        if self.geometry and wanted.crop in ("random", "random-resized"):
            count = 2 if wanted.crop == "random" else 40
            draws = np.stack([uniforms(keys, k) for k in range(count)], axis=1)
        flips = None
        if wanted.flip:
            flips = (uniforms(keys, FLIP_DRAW) < 0.5).astype(np.uint8)
        return draws, flips

    def bulk(
        self,
        address: int,
        offsets: Int64,
        rows: Int64,
        flips: UInt8 | None,
        out: Array,
        draws: Array | None = None,
    ) -> None:
        """Fill rows from raw samples at ``address + offsets``, in one compiled call.

        ``flips``, ``draws``: of these samples, see :meth:`draws`.
        """
        height, width, channels = self.stored.image_shape()
        assert height is not None
        assert width is not None
        if self.mode == "padded":
            assert draws is not None
            flips = np.zeros(offsets.size, np.uint8) if flips is None else flips
            self._cut_padded(address, offsets, rows, flips, out, draws)
            return
        if self.mode == "transpose":
            size = self.dtype.itemsize
            kernels.transpose_rows(
                address, offsets, height * width, channels, size, out.ctypes.data, rows
            )
            return
        if self.mode == "mirror":
            assert flips is not None
            size = channels * self.dtype.itemsize
            kernels.mirror_rows(address, offsets, height, width, size, flips, out.ctypes.data, rows)
            return
        assert self._affine_rows is not None
        self._affine_rows(
            address,
            offsets,
            height * width,
            self._scale32,
            self._shift32,
            width,
            np.zeros(offsets.size, np.uint8) if flips is None else flips,
            self._memory == "CHW",
            self._bits(out.reshape(out.shape[0], -1)),
            rows,
        )

    def _cut_padded(
        self, address: int, offsets: Int64, rows: Int64, flips: UInt8, out: Array, draws: Array
    ) -> None:
        """Rows of parts of padded pictures, of the pictures' own size."""
        height, width, channels = self.stored.image_shape()
        assert height is not None
        assert width is not None
        padding = self.wanted.crop_padding
        tops, lefts = ((draws[:, k] * (2 * padding + 1)).astype(np.int64) - padding for k in (0, 1))
        size = height, width, channels * self.stored.dtype.itemsize
        around = ("zero", "edge", "reflect").index(self.wanted.padding_mode)
        if self._direct:
            kernels.padded_rows(
                address, offsets, *size, tops, lefts, around, flips, out.ctypes.data, rows
            )
            return
        assert self._affine_rows is not None
        group = max(1, _CUT_BYTES // math.prod(size))
        cut, numbers = SCRATCH.take("cut rows", group * math.prod(size)), np.arange(group)
        plain = np.zeros(group, np.uint8)
        for lo in range(0, offsets.size, group):
            part = slice(lo, min(lo + group, offsets.size))
            count = numbers[: part.stop - lo]
            places = tops[part], lefts[part], around, flips[part], cut.ctypes.data, count
            kernels.padded_rows(address, offsets[part], *size, *places)
            self._affine_rows(
                cut.ctypes.data,
                count * math.prod(size),
                height * width,
                self._scale32,
                self._shift32,
                width,
                plain,
                self._memory == "CHW",
                self._bits(out.reshape(out.shape[0], -1)),
                rows[part],
            )

    def _bits(self, out: Array) -> Array:
        """Slot rows as the kernel takes them: float16 goes by its bits."""
        return out.view(np.uint16) if self.dtype == np.float16 else out

    def put(
        self, sample: Array, draws: Array | None, flip: bool, out: Array, row: Row | None = None
    ) -> None:
        """Fill one row from a raw sample in stored axis order (any strides).

        ``row``: what the steps are told of the sample; None where there are no steps. ParamsError
        where ``dtype`` cannot hold one of its values.
        """
        with self._checked(sample):
            if self._to_hwc is None:
                self._cast(self._stepped(sample, row), out)
            else:
                self._put_hwc(sample.transpose(self._to_hwc), None, draws, flip, out, row)
        self._finish_steps(out, row)

    def put_encoded(
        self,
        data: codec.Buffer,
        draws: Array | None,
        flip: bool,
        out: Array,
        meter: Meter,
        row: Row | None = None,
    ) -> None:
        """Decode image bytes into one row; DecodeError if they are not what was declared.

        ``row``: as for :meth:`put`. ParamsError where ``dtype`` cannot hold one of the values.
        """
        started = time.perf_counter()
        stored, wanted = self.stored, self.wanted
        header = codec.read_plain_header(data) if wanted.size is not None else None
        header = header or codec.read_header(data)
        full = (header.height, header.width)
        rect: geometry.Rect | None = None
        min_size: tuple[int, int] | None = None
        if wanted.size is not None:
            rect = wanted.rect(*full, draws)
            # DCT scaling as long as the part that is used stays at least as large as its target
            if wanted.interpolation != "nearest" and not wanted.crop_padding:
                min_size = (
                    math.ceil(full[0] * wanted.size[0] / rect.height),
                    math.ceil(full[1] * wanted.size[1] / rect.width),
                )
        elif full != stored.image_shape()[:2]:
            raise DecodeError(
                "image of another size than the set declares",
                found=sides(*full),
                expected=" x ".join(str(n) for n in stored.image_shape()[:2]),
                hint="pass size=(H, W), or leave it out with on_error='skip'",
            )
        pixels: Array
        box = None if rect is None else rect.box()
        if stored.values:
            pixels = decode_sample(data, stored)
        else:
            if not stored.narrow:
                codec.check_depth(header)
            part = None if wanted.nearest or wanted.crop_padding else rect
            found = codec.decode_part(
                data,
                stored.channels,
                header=header,
                part=None if part is None else (part.top, part.left, part.height, part.width),
                reach=(0, 0) if part is None else self._reach(part),
                min_size=min_size,
                scratch=SCRATCH.take("decode", full[0] * full[1] * 3),
                copy=SCRATCH.take("cut", jpeg_cut.most(data)) if header.facts is not None else None,
            )
            pixels = found.pixels
            if rect is not None:
                scale, top, left = codec.reduction(header, found.whole)
                box = rect.box(scale, top - found.top, left - found.left)
        meter.seconds["decode"] += time.perf_counter() - started
        with self._checked(pixels):
            self._put_hwc(pixels, box, draws, flip, out, row)
        self._finish_steps(out, row)

    def _reach(self, part: geometry.Rect) -> tuple[int, int]:
        assert self.wanted.size is not None
        high, wide = self.wanted.size
        return geometry.reach(part.height, high), geometry.reach(part.width, wide)

    def _checked(self, values: Array) -> contextlib.AbstractContextManager[None]:
        """What casts a sample's ``values`` goes in here: ParamsError where one does not fit."""
        return self._checking(values) if self.narrows else _UNCHECKED

    @contextlib.contextmanager
    def _checking(self, values: Array) -> Iterator[None]:
        if self.dtype.kind != "f":
            with np.errstate(invalid="ignore"):
                wrong = values.astype(self.dtype) != values
            if wrong.any():
                raise self._does_not_fit(values[wrong])
            yield
            return
        try:
            with np.errstate(over="raise"):
                yield
        except FloatingPointError:
            raise self._does_not_fit(values[np.isfinite(values)]) from None

    def _does_not_fit(self, values: Array) -> ParamsError:
        return ParamsError(
            f'dtype="{self.dtype}" cannot hold the values that are stored',
            path=self._path,
            found=f"{values.flat[int(np.argmax(np.abs(values.astype(np.float64))))]} as "
            f"{self.stored.dtype.newbyteorder('=')}",
            expected=_range_of(self.dtype),
            hint="leave dtype out to get them as stored, or ask for a wider one"
            + (' (with scale, say, "float32")' if self.dtype.kind != "f" else ""),
        )

    def _put_hwc(
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
            if self._direct:
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
        self._finish(pixels, flip, out)

    def _stepped(self, image: Array, row: Row | None, flip: bool = False) -> Array:
        """``image``, mirrored with ``flip``, after the steps before the cast; they get a copy of
        their own."""
        if not self._steps:
            return image
        assert row is not None
        own = SCRATCH.array("steps", image.shape, image.dtype.newbyteorder("="))
        if flip and image.flags.c_contiguous and image.dtype == own.dtype:
            size = (*image.shape[:2], image.shape[2] * image.itemsize)
            come, go = image.ctypes.data, own.ctypes.data
            kernels.mirror_rows(come, _ZERO, *size, _FLIP, go, _ZERO)
        else:
            np.copyto(own, image[:, ::-1] if flip else image)
        return run(self._steps, own, row)

    def _finish_steps(self, out: Array, row: Row | None) -> None:
        """The steps after the cast, in the row itself."""
        if self._last_steps:
            assert row is not None
            image = out if self._to_hwc is None else out.transpose(self._row_to_hwc)
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
        pick(pixels, rows, columns[::-1] if flip else columns, out.transpose(self._row_to_hwc))

    def _finish(self, hwc: Array, flip: bool, out: Array) -> None:
        """Flip, cast, normalise and reorder (H, W, C) pixels into a slot row."""
        if self._affine_rows is not None and hwc.flags.c_contiguous:
            self._affine_rows(
                hwc.ctypes.data,
                _ZERO,
                hwc.shape[0] * hwc.shape[1],
                self._scale32,
                self._shift32,
                hwc.shape[1],
                _FLIP if flip else _NO_FLIP,
                self._memory == "CHW",
                self._bits(out.reshape(1, -1)),
                _ZERO,
            )
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


def _holds_all(stored: np.dtype[Any], dtype: np.dtype[Any]) -> bool:
    """Whether ``dtype`` has every value of ``stored``: for a float dtype, to its precision."""
    if dtype.kind == "f":
        top = np.finfo(stored).max if stored.kind == "f" else _limits(stored)[1]
        return float(top) <= float(np.finfo(dtype).max)
    if stored.kind == "f":
        return False
    (low, high), (least, most) = _limits(stored), _limits(dtype)
    return least <= low and high <= most


def _limits(dtype: np.dtype[Any]) -> tuple[int, int]:
    if dtype.kind == "b":
        return 0, 1
    limits = np.iinfo(dtype)
    return int(limits.min), int(limits.max)


def _range_of(dtype: np.dtype[Any]) -> str:
    if dtype.kind == "f":
        return f"at most {np.finfo(dtype).max:g}"
    return "whole numbers from {} to {}".format(*_limits(dtype))


_UNCHECKED: Final = contextlib.nullcontext()
_ZERO: Final = np.zeros(1, np.int64)
_FLIP: Final = np.ones(1, np.uint8)
_NO_FLIP: Final = np.zeros(1, np.uint8)
