"""From the bytes of an image to its row in a slot.

Plain JPEGs go many at a time: one compiled call reads their headers, chooses their crops and cuts
out what is needed of those with restart markers; for each there is then one call of the decoder and
one of the resize. Other images are decoded one by one.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import numpy as np

from ..errors import DecodeError
from ..stats import Meter
from ..system.array_types import Array, Int64, UInt8
from ..system.memory import SCRATCH, address_of
from ..system.text import sides
from . import codec, geometry, kernels
from .codec import planes
from .row_maker import RowView, Target
from .specs import SampleSpec
from .tables import PLAN, PLANES_HEADER, numbers
from .transform import Pictures

#: JPEGs are planned together up to this many bytes: what is cut out of them stays in a core's cache
#: until it is decoded.
PLANNED_BYTES: Final = 1 << 20


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
        values = codec.check_size(codec.decode_values(data), header)
        if values.shape[2] != stored.channels or values.dtype != stored.dtype:
            raise DecodeError(
                "the image's channels or dtype are not those of its dataset",
                found=f"{values.shape[2]} channels of {values.dtype}",
                expected=f"{stored.channels} of {stored.dtype}",
            )
        return values
    if not stored.narrow:
        codec.check_depth(header)
    return codec.decode(data, stored.channels, header=header, min_size=min_size)


class Images:
    """The bytes of images: ``view(offset, size)``, which lie at ``address + offset``."""

    def __init__(
        self, view: Callable[[int, int], UInt8], address: int, offsets: Int64, sizes: Int64
    ) -> None:
        self.addresses = address + offsets
        self.sizes = sizes
        self._view = view
        self._extents = list(zip(offsets.tolist(), sizes.tolist(), strict=True))

    def __getitem__(self, k: int) -> UInt8:
        return self._view(*self._extents[k])


def groups(sizes: list[int], most: int) -> Iterator[slice]:
    """Images, one after the other, in groups of at most ``most`` bytes, or of one image."""
    first = total = 0
    for i, size in enumerate(sizes):
        total += size
        if i > first and total > most:
            yield slice(first, i)
            first, total = i, size
    if sizes:
        yield slice(first, len(sizes))


class Planned:
    """Plain JPEGs or 4:2:0 planes, of which one compiled call plans what is decoded, and what is
    made of that: the samples ``some`` of ``target``. Nothing is planned of those that must go by
    :func:`put_views`."""

    def __init__(self, fill: Pictures, images: Images, target: Target, some: slice) -> None:
        started = time.perf_counter()
        self._fill, self._images, self._target, self._first = fill, images, target, some.start
        self._rows, (high, wide) = target.rows[some], fill.form.size
        self._resized = None
        if not fill.in_row:
            self._resized = SCRATCH.array("resize", (high, wide, 3), fill.stored.dtype)
        self._to = 3, fill.method, high, wide, False
        count = images.sizes.size
        self._plan, self._boxes = np.empty(count, PLAN), np.empty((count, 4))
        self._numbers = numbers(self._plan)
        self._plan_all(
            images.addresses,
            images.sizes,
            fill.form.terms,
            fill.wanted.shares,
            *target.draws.pick(some, count),
            address_of(target.out if self._resized is None else self._resized),
            fill.row_bytes if self._resized is None else 0,
            self._rows,
        )
        pixels = self._plan["height"] * self._plan["width"] * (self._plan["size"] != 0)
        self._scratch = SCRATCH.take("decode", 3 * max(1, int(pixels.max(initial=1))))
        self._plan["source"] = self._place = address_of(self._scratch)
        self._lines = self._plan.tolist()
        self._seconds = time.perf_counter() - started

    def _plan_all(self, *given: object) -> None:
        """Write the lines of the plan: see PLAN."""
        raise NotImplementedError

    def decode(self, k: int) -> bool:
        """Decode what is planned of image ``k``. Whether that can be done."""
        raise NotImplementedError

    def put_all(self, meter: Meter) -> Iterator[int]:
        """Fill all rows. Yields in turn the number of each image that must go by
        :func:`put_views`; ends when the reader is closed."""
        decode, resize, fill = self.decode, kernels.resize_planned, self._fill
        seconds, clock = self._seconds, time.perf_counter
        for k in range(self._rows.size):
            if meter.stopped:
                break
            started = clock()
            good = decode(k)
            seconds += clock() - started
            if not good:
                yield k
                continue
            resize(self._numbers, self._boxes, k, k + 1, *self._to)
            row = self._target.out[self._rows[k]]
            if fill.wanted.steps:
                self._target.finish(
                    self._first + k, row if self._resized is None else self._resized
                )
            elif self._resized is not None:
                fill.cast.one(self._resized, False, row)
        meter.seconds["decode"] += seconds


class _Jpegs(Planned):
    """Plain JPEGs, but for those that EXIF or XMP may turn. The bytes may change meanwhile: the
    decoder reads the header again, and what it gives is compared with what is planned."""

    def _plan_all(self, *given: object) -> None:
        import simplejpeg

        sizes = self._images.sizes
        cuts = SCRATCH.take("cuts", int(sizes.sum()) + 64 * sizes.size)
        kernels.plan_jpegs(*given, cuts, self._numbers, self._boxes)
        self._cuts = cuts.data
        self._decoder = simplejpeg.decode_jpeg
        self._known = False  # that the decoder uses the memory that it gets

    def decode(self, k: int) -> bool:
        _, tall, broad, _, _, at, size, low_h, low_w = self._lines[k]
        if not size:
            return False
        data = self._images[k] if at >= 0 else self._cuts[-1 - at : -1 - at + size]
        try:
            pixels = self._decoder(data, "RGB", False, False, low_h, low_w, 2.0, self._scratch)
        except Exception:  # put_views() says what is wrong, or decodes all of it
            return False
        if not self._known:
            self._known = address_of(pixels) == self._place
        return self._known and pixels.shape == (tall, broad, 3)


class _Planes(Planned):
    """4:2:0 planes, of which what is cut out is converted."""

    def _plan_all(self, *given: object) -> None:
        parts = np.empty((self._images.sizes.size, 4), np.int64)
        magic = int.from_bytes(planes.MAGIC, "little")
        kernels.plan_planes(*given, magic, self._numbers, self._boxes, parts)
        self._parts = parts.tolist()

    def decode(self, k: int) -> bool:
        _, tall, broad, _, _, at, size, *_ = self._lines[k]
        if not size:
            return False
        kernels.convert_420(at + PLANES_HEADER, *self._parts[k], self._place, tall, broad)
        return True


def planned(fill: Pictures) -> type[Planned]:
    """What plans the images of a field."""
    return _Planes if fill.stored.encoding == planes.YUV420 else _Jpegs


def put_views(views: Sequence[RowView], data: codec.Buffer, meter: Meter) -> None:
    """Decode image bytes into rows of one field; DecodeError if they are not what was declared.

    What all of them need is decoded once, at the size that the one with the most pixels needs.
    ParamsError where the dtype cannot hold one of the values.
    """
    started = time.perf_counter()
    stored, wanted = views[0].fill.stored, views[0].fill.wanted
    cropped = wanted.size is not None or len(views) > 1
    header = codec.read_plain_header(data) if cropped else None
    header = header or codec.read_header(data)
    full = (header.height, header.width)
    rects = [view.rect(*full) for view in views]
    if None in rects and full != stored.image_shape()[:2]:
        raise DecodeError(
            "image of another size than the dataset declares",
            found=sides(*full),
            expected=" x ".join(str(n) for n in stored.image_shape()[:2]),
            hint="pass size=(H, W), or leave it out with on_error='skip'",
        )
    if wanted.layout == "planes":
        if header.kind != planes.YUV420:
            raise DecodeError("not yuv420 planes", found=header.kind)
        np.copyto(views[0].out, planes.stored_planes(data))
        meter.seconds["decode"] += time.perf_counter() - started
        return
    found = _decoded(views, rects, data, header)
    pixels = found.pixels
    scale, top, left = codec.reduction(header, found.whole)
    meter.seconds["decode"] += time.perf_counter() - started
    for view, rect in zip(views, rects, strict=True):
        box = None if rect is None else rect.box(scale, top - found.top, left - found.left)
        assert isinstance(view.fill, Pictures)
        view.fill.put_pixels(pixels, box, view)


def _decoded(
    views: Sequence[RowView],
    rects: Sequence[geometry.Rect | None],
    data: codec.Buffer,
    header: codec.ImageHeader,
) -> codec.Decoded:
    """The pixels that ``views`` show, of which each is the part ``rects`` of a picture."""
    stored = views[0].fill.stored
    if stored.values:
        values = decode_sample(data, stored, header)
        return codec.Decoded(values, 0, 0, (header.height, header.width))
    if not stored.narrow:
        codec.check_depth(header)
    shown = _together(views, rects, (header.height, header.width))
    return codec.decode_part(data, stored.channels, header, shown)


def _together(
    views: Sequence[RowView], rects: Sequence[geometry.Rect | None], full: tuple[int, int]
) -> codec.Shown:
    """The part that holds ``rects`` of a picture of size ``full``, how far around it the resizes
    look, and the least size at which it may be decoded."""
    bottom = right = down = across = low_h = low_w = 0
    top, left = full
    reduced = True
    for view, rect in zip(views, rects, strict=True):
        wanted = view.fill.wanted
        if rect is None or wanted.size is None or wanted.nearest or wanted.crop_padding:
            return codec.Shown()
        top, left = min(top, rect.top), min(left, rect.left)
        bottom, right = max(bottom, rect.top + rect.height), max(right, rect.left + rect.width)
        down = max(down, geometry.reach(rect.height, wanted.size[0]))
        across = max(across, geometry.reach(rect.width, wanted.size[1]))
        # DCT scaling as long as the part that is used stays at least as large as its target
        low_h = max(low_h, math.ceil(full[0] * wanted.size[0] / rect.height))
        low_w = max(low_w, math.ceil(full[1] * wanted.size[1] / rect.width))
        reduced = reduced and wanted.interpolation != "nearest"
    part = top, left, bottom - top, right - left
    return codec.Shown(part, (down, across), (low_h, low_w) if reduced else None)
