"""From stored pictures to rows of a slot: crop, resize, flip, cast, normalise, axis order.

What has to be done is worked out once, as a :class:`Form`; the classes after it do that, each in
its own way: a compiled pass for the whole batch, one that crops and resizes many pictures, or one
picture after the other.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cached_property
from typing import Any, Final

import numpy as np

from ..errors import ParamsError
from ..system.array_types import Array, Int64, UInt64
from ..system.memory import SCRATCH, address_of
from . import codec, geometry, kernels
from .codec import planes
from .numbers import Numbers, Ragged
from .row_maker import Affine, Drawn, RowFiller, RowMaker, RowView, Target, load, streams
from .shared import AREA, CROPS
from .specs import OutputSpec, SampleSpec, Step, after, holds_all, run, run_in_place
from .tables import MIRROR_DRAW, PLAN, numbers

#: Pictures are resized and then cast in groups of about this many bytes.
RESIZED_BYTES: Final = 320 << 10


def plan_rows(
    stored: SampleSpec, wanted: OutputSpec, path: str, frame: tuple[int, int] | None = None
) -> RowMaker:
    """The cheapest way from stored samples to rows. ParamsError where what is wanted cannot be had.

    ``path``: of the set, for errors; ``frame``: (H, W) of the picture whose crop is taken (that of
    the first field), None for a sample's own.
    """
    if wanted.transformed_later:
        wanted = replace(wanted, mean=(0.0,), std=(1.0,))
    if wanted.layout == "planes":
        return Planes(stored, wanted, path)
    if stored.axes is None:
        return (Ragged if stored.ragged else Numbers)(stored, wanted, path)
    form = Form(stored, wanted, path, frame)
    together = form.method is not None and not stored.encoded
    return (Filled if form.kernel else Resized if together else Pictures)(form)


class Form:
    """What becomes of stored pictures, and what has to be done for that.

    ``stored``, ``wanted``, ``path``, ``frame``: see :func:`plan_rows`. ``dtype``: that of a row;
    ``narrows``: whether a stored value may be one that it cannot hold; ``same``: whether pixels
    keep their numbers; ``casts``: whether compiled code casts them, by the kernel ``casting``;
    ``in_size``: whether pictures are raw, of the size that is wanted, and that of their frame;
    ``geometry``: whether a part is cut out or resized. ``goal``: the axes as the user sees them,
    "CHW" or "HWC", or those of the stored pictures; ``memory``: the axes of a row.
    """

    def __init__(
        self, stored: SampleSpec, wanted: OutputSpec, path: str, frame: tuple[int, int] | None
    ) -> None:
        self.stored, self.wanted, self.path, self.frame = stored, wanted, path, frame
        self.dtype: np.dtype[Any] = wanted.dtype or stored.dtype.newbyteorder("=")
        self.narrows = not holds_all(stored.dtype, self.dtype)
        self.same = self.dtype == stored.dtype and not wanted.affine
        self.casts = stored.dtype == np.uint8 and self.dtype in (np.float32, np.float16)
        self.casting = "affine_batches_half" if self.dtype == np.float16 else "affine_batches"
        there = not stored.encoded and wanted.size == stored.image_shape()[:2]
        self.in_size = there and frame in (None, wanted.size)
        whole = wanted.crop == "none" or (
            wanted.crop_ratio == 1.0 and wanted.crop != "random-resized" and not wanted.crop_padding
        )
        self.geometry = wanted.size is not None and not (self.in_size and whole)
        self.goal = stored.axes or "" if stored.as_stored else wanted.layout[1:]
        as_decoded = "HWC" if stored.encoded or self.geometry else stored.axes or ""
        self.memory = self.goal if wanted.contiguous else as_decoded

    @cached_property
    def size(self) -> tuple[int, int]:
        """(H, W) of a picture before the steps."""
        height, width = self.wanted.size or self.stored.image_shape()[:2]
        if height is None or width is None:
            raise ParamsError(
                "the stored images differ in size, but all images of a batch have one size",
                path=self.path,
                hint="pass size=(H, W)",
            )
        return height, width

    @cached_property
    def hwc(self) -> tuple[int, ...]:
        """(H, W, C) of a row."""
        wanted = self.wanted
        hwc = after(wanted.steps, (*self.size, self.stored.image_shape()[2]))
        for name, values in (("mean", wanted.mean), ("std", wanted.std)):
            if len(values) not in (1, hwc[2]):
                raise ParamsError(
                    f"{name} has one value, or one per channel",
                    found=f"{len(values)} values",
                    expected="1" if hwc[2] == 1 else f"1 or {hwc[2]}",
                )
        return hwc

    @cached_property
    def erases(self) -> Step | None:
        """The step, if compiled code does all that the steps do."""
        steps = self.wanted.steps
        alone = len(steps) == 1 and self.memory in ("HWC", "CHW")
        return steps[0] if alone and steps[0].erasure is not None else None

    @cached_property
    def kernel(self) -> str:
        """What makes rows of raw pictures in one pass for a whole batch; "" if nothing does."""
        stored, wanted, memory = self.stored, self.wanted, self.memory
        pads = self.in_size and wanted.crop_padding and wanted.crop_ratio == 1
        if (self.geometry and not (pads and stored.axes == "HWC")) or stored.encoded:
            return ""
        if wanted.views or (wanted.steps and self.erases is None):
            return ""
        turned = memory != "HWC" and (wanted.flip or wanted.crop_padding)
        if self.same and memory == stored.axes and not turned:
            return "copy_batches"
        if stored.axes != "HWC" or memory not in ("HWC", "CHW"):
            return ""
        if self.same:
            return "transpose_batches"
        return self.casting if self.casts else ""

    @cached_property
    def method(self) -> int | None:
        """How compiled code crops and resizes many pictures in a call, by geometry.METHODS; None
        where it does not."""
        stored, wanted = self.stored, self.wanted
        if self.narrows or wanted.nearest or wanted.crop_padding or stored.values:
            return None
        copied = None if self.geometry else AREA
        method = geometry.METHODS.get(wanted.interpolation, copied)
        if stored.encoded:  # of which a compiled call makes one row each
            plain = stored.channels == 3 and stored.dtype == np.uint8 and not wanted.views
            return method if plain else None
        height, width, channels = stored.image_shape()
        if not self.geometry or height is None or width is None or channels > 4:
            return None
        small = not geometry.averaged(height, width, self.size)
        return method if small and stored.axes == "HWC" and stored.dtype == np.uint8 else None

    @cached_property
    def terms(self) -> Int64:
        """What the kernels that plan crops take of what is wanted."""
        size = self.wanted.size
        crop = CROPS.index("none" if size is None else self.wanted.crop)
        return np.array((*self.size, crop, codec.MAX_PIXELS, size is None), np.int64)


class Cast:
    """Writes pictures (H, W, C) into rows: normalised, cast, their axes in the order of a row's."""

    def __init__(self, form: Form) -> None:
        self._form, self._hwc = form, form.hwc
        self._axes = tuple(form.memory.index(axis) for axis in "HWC")
        self._copies = form.same and form.memory == "HWC"
        self.affine = Affine(form.wanted, form.dtype)
        turns = form.same and form.memory == "CHW" and form.dtype.itemsize == 1
        casts = form.casts and form.memory in ("HWC", "CHW")
        self._kernel = form.casting if casts else "transpose_batches" if turns else ""

    def one(self, hwc: Array, flip: bool, out: Array) -> None:
        """Write a picture into the row ``out``, mirrored with ``flip``."""
        if hwc.shape != self._hwc:  # compiled code would take its size from either
            raise ValueError(f"pixels of shape {hwc.shape} for a row of shape {self._hwc}")
        if self._copies:
            geometry.copy_into(hwc, out, flip)
        elif self._kernel and hwc.flags.c_contiguous:
            if flip:
                mirrored = SCRATCH.array("mirrored", hwc.shape, hwc.dtype)
                geometry.copy_into(hwc, mirrored, flip)
                hwc = mirrored
            self._filler.fill(np.array([hwc.ctypes.data]), np.zeros(1, np.int64), out)
        else:
            self.affine.into(hwc[:, ::-1] if flip else hwc, out.transpose(self._axes))

    def many(self, pictures: Array, out: Array, rows: Int64) -> None:
        """Write pictures (B, H, W, C) in C order into ``rows`` of a slot."""
        if self._kernel:
            addresses = address_of(pictures) + np.arange(len(rows)) * pictures.strides[0]
            self._filler.fill(addresses, rows, out)
            return
        for one, row in zip(pictures, rows.tolist(), strict=True):
            self.one(one, False, out[row])

    @cached_property
    def _filler(self) -> RowFiller:
        return filler_of(self._form, self._kernel, self._hwc, 1)


def filler_of(form: Form, kernel: str, hwc: tuple[int, ...], item: int) -> RowFiller:
    """What makes rows of pictures ``hwc`` in C order, of ``item`` bytes each value."""
    height, width, channels = hwc
    mean, std = (np.broadcast_to(one, channels) for one in (form.wanted.mean, form.wanted.std))
    return RowFiller.of(
        kernel,
        (form.wanted.scale / std).astype(np.float32),
        (-mean / std).astype(np.float32),
        row_bytes=math.prod(hwc) * item,
        out_bytes=math.prod(form.hwc) * form.dtype.itemsize,
        height=height,
        width=width,
        channels=channels,
        item=item,
        planar=form.memory == "CHW",
    )


class Pictures(RowMaker):
    """Pictures, one by one: cropped, resized and mirrored in one pass, changed by steps, cast."""

    def __init__(self, form: Form) -> None:
        super().__init__(form.stored, form.wanted, form.path, form.dtype, form.narrows)
        self.form, self.geometry, self.method = form, form.geometry, form.method
        self.cast = Cast(form)
        sizes = dict(zip("HWC", form.hwc, strict=True))
        self.row_shape = tuple(sizes[axis] for axis in form.memory)
        self.view_axes = (0, *(form.memory.index(axis) + 1 for axis in form.goal))
        assert form.stored.axes is not None
        self._to_hwc = tuple(form.stored.axes.index(axis) for axis in "HWC")
        self.to_image = tuple(form.memory.index(axis) for axis in "HWC")
        #: steps work in the row itself
        unchanged = form.hwc[:2] == form.size and form.hwc[2] == form.stored.image_shape()[2]
        self.in_row = form.same and form.memory == "HWC" and unchanged
        self.direct = self.in_row and not form.wanted.steps
        load(*self._kernels())

    def _kernels(self) -> tuple[str, ...]:
        """Kernels that rows need, besides those of a filler."""
        if self.method is not None:
            plan = {"raw": "plan_crops", planes.YUV420: "plan_planes"}
            return "uniform_rows", "resize_planned", plan.get(self.stored.encoding, "plan_jpegs")
        if self.wanted.views and self.stored.encoded:
            return "uniform_rows", "jpeg_header", "cut_jpeg", "resize_planned"
        return ("uniform_rows", "resize_planned") if self.steps and self.wanted.flip else ()

    def draws(self, keys: UInt64) -> Drawn:
        keys, crops, flips = np.ascontiguousarray(keys), None, None
        if self.geometry and self.wanted.crop in ("random", "random-resized"):
            crops = np.empty((keys.size, 2 if self.wanted.crop == "random" else 40))
            kernels.uniform_rows(keys, 0, crops)
        if self.wanted.flip:
            chance = np.empty((keys.size, 1))
            kernels.uniform_rows(keys, MIRROR_DRAW, chance)
            flips = (chance[:, 0] < 0.5).view(np.uint8)
        return Drawn(crops, flips)

    def put(self, sample: Array, view: RowView) -> None:
        self.put_pixels(sample.transpose(self._to_hwc), None, view)

    def put_pixels(self, pixels: Array, box: geometry.Box | None, view: RowView) -> None:
        """Fill one row from upright pixels (H, W, C), of which ``box`` is served; None: what is
        wanted of all of them."""
        with self.checked(pixels):
            if self.geometry and self.wanted.nearest:
                self._put_nearest(pixels, view)
            elif self.geometry:
                self._put_resized(pixels, box, view)
            else:
                self._put_stepped(pixels, view.flip, view)
        self.run_last_steps(view.out, view.row)

    def _put_resized(self, pixels: Array, box: geometry.Box | None, view: RowView) -> None:
        wanted, native = self.wanted, pixels.dtype.newbyteorder("=")
        if box is None:
            box = wanted.rect(pixels.shape[0], pixels.shape[1], view.draws).box()
        if wanted.crop_padding:
            pixels = self._padded(pixels, wanted.crop_padding, wanted.crop_padding)
        resized = view.out
        if not self.direct:
            resized = SCRATCH.array("resize", (*self.form.size, pixels.shape[2]), native)
        geometry.resize_into(pixels, resized, box, wanted.interpolation, view.flip)
        if self.direct:
            return
        if self.narrows and self.dtype.kind != "f" and native.kind == "f":
            np.rint(resized, out=resized)  # whole numbers, but for what the resize mixed
        self._put_stepped(resized, False, view)

    def _put_stepped(self, pixels: Array, flip: bool, view: RowView) -> None:
        """The steps before the cast, which get a copy of their own, and the cast."""
        if self.steps:
            own = SCRATCH.array("steps", pixels.shape, pixels.dtype.newbyteorder("="))
            geometry.copy_into(pixels, own, flip)
            pixels, flip = run(self.steps, own, view.row), False
        self.cast.one(pixels, flip, view.out)

    def finish(self, pixels: Array, view: RowView) -> None:
        """What is left to do with pixels (H, W, C) that are cropped, resized and mirrored."""
        if self.in_row:  # they are the row
            run_in_place(self.wanted.steps, pixels, view.row)
            return
        self.cast.one(run(self.steps, pixels, view.row), False, view.out)
        self.run_last_steps(view.out, view.row)

    def _padded(self, pixels: Array, down: int, right: int) -> Array:
        """``pixels`` with so many around them on each side: zeros ("zero"), the outermost ones
        ("edge") or the mirror image ("reflect")."""
        (high, wide, channels), mode = pixels.shape, self.wanted.padding_mode
        if mode != "zero":
            around = (down, down), (right, right), (0, 0)
            return np.pad(pixels, around, mode)  # type: ignore[call-overload,no-any-return]
        shape = high + 2 * down, wide + 2 * right, channels
        padded = SCRATCH.array("padded", shape, pixels.dtype.newbyteorder("="))
        padded[:] = 0
        padded[down : down + high, right : right + wide] = pixels
        return padded

    def _put_nearest(self, pixels: Array, view: RowView) -> None:
        """The part of ``pixels`` that is the first field's crop, unmixed."""
        wanted = self.wanted
        assert wanted.size is not None
        high, wide = pixels.shape[0], pixels.shape[1]
        frame = self.form.frame or (high, wide)
        rect = wanted.rect(frame[0], frame[1], view.draws)
        fy, fx = high / frame[0], wide / frame[1]
        if wanted.crop_padding:
            by = round(wanted.crop_padding * fy), round(wanted.crop_padding * fx)
            pixels = self._padded(pixels, *by)
            high, wide = pixels.shape[:2]
        rows = geometry.nearest_pixels(rect.top * fy, rect.height * fy, wanted.size[0], high)
        columns = geometry.nearest_pixels(rect.left * fx, rect.width * fx, wanted.size[1], wide)
        columns, out = columns[::-1] if view.flip else columns, self.image(view.out)
        if not wanted.affine:
            geometry.pick(pixels, rows, columns, out)
            return
        native = pixels.dtype.newbyteorder("=")
        picked = SCRATCH.array("picked", (*wanted.size, pixels.shape[2]), native)
        geometry.pick(pixels, rows, columns, picked)
        self.cast.affine.into(picked, out)


class Filled(Pictures):
    """Raw pictures of which one compiled pass makes all rows of a batch: as they are, mirrored,
    padded and cut, erased, turned to (C, H, W), or cast."""

    def __init__(self, form: Form) -> None:
        super().__init__(form)
        self.kernel, wanted = form.kernel, form.wanted
        changed = wanted.flip or wanted.crop_padding or wanted.steps
        self.as_stored = form.kernel == "copy_batches" and not changed

    def _make_filler(self, batch_bytes: int) -> RowFiller:
        load("pread_rows")
        stored, wanted, erases = self.stored, self.wanted, self.form.erases
        channels = stored.image_shape()[2]
        hwc = *self.form.size, channels
        filler = filler_of(self.form, self.kernel, hwc, stored.dtype.itemsize).having(
            stream=streams(self.row_bytes, batch_bytes),
            mirrored=wanted.flip,
            padding=wanted.crop_padding if self.geometry else 0,
            around=geometry.PADDINGS.index(wanted.padding_mode),
        )
        if erases is None or erases.erasure is None:
            return filler
        return filler.erasing(erases.erasure, erases.paint(self.dtype, channels))


class Resized(Pictures):
    """Raw pictures of which one compiled pass crops and resizes many."""

    def place(self, target: Target, which: Int64, addresses: Int64) -> None:
        count, size, channels = which.size, self.form.size, self.stored.image_shape()[2]
        rows, out = target.rows[which], target.out
        resized, at, together = out, rows, count
        if not self.direct:  # some at a time: they stay in a core's cache until they are cast
            together = min(count, RESIZED_BYTES // (math.prod(size) * channels))
        together = max(1, together)
        if not self.in_row:
            resized = SCRATCH.array("resize", (together, *size, channels), self.stored.dtype)
            at = np.arange(count, dtype=np.int64) % together
        plan, boxes = numbers(np.empty(count, PLAN)), np.empty((count, 4))
        shape = np.array(self.stored.shape, np.int64)
        drawn = self.wanted.shares, *target.draws.pick(which, count)
        into = address_of(resized), math.prod(size) * channels, at
        kernels.plan_crops(addresses, shape, self.form.terms, *drawn, *into, plan, boxes)
        for first in range(0, count, together):
            end = min(first + together, count)
            kernels.resize_planned(plan, boxes, first, end, channels, self.method, *size, False)
            if self.wanted.steps:
                for k in range(first, end):
                    pixels = out[rows[k]] if self.in_row else resized[k - first]
                    target.finish(int(which[k]), pixels)
            elif not self.direct:
                self.cast.many(resized[: end - first], out, rows[first:end])


class Planes(RowMaker):
    """4:2:0 planes as they are stored."""

    def __init__(self, stored: SampleSpec, wanted: OutputSpec, path: str) -> None:
        dtype = wanted.dtype or stored.dtype
        super().__init__(stored, wanted, path, dtype, not holds_all(stored.dtype, dtype))
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
        height, width, _ = stored.image_shape()
        if height is None or width is None:
            raise ParamsError(
                "the stored planes differ in size, but all images of a batch have one size",
                path=path,
                hint="convert the dataset with a fixed size (--size HxW), or leave layout out and "
                "pass size=(H, W)",
            )
        self.row_shape = (planes.planes_bytes(height, width),)
