"""From the bytes of an image to its row in a slot.

Plain JPEGs go many at a time: one compiled call reads their headers, chooses their crops and cuts
out what is needed of those with restart markers; for each there is then one call of the decoder and
one of the resize. Other images are decoded one by one.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple, TypeAlias

import numpy as np

from ..array_types import Array, Float64, Int64, UInt8
from ..errors import DecodeError
from ..stats import Meter
from ..system.memory import address_of
from ..text import sides
from . import codec, geometry, jpeg_cut, kernels, planes, twins
from .steps import Row
from .transform import SCRATCH, RowTransform, decode_sample

#: JPEGs are planned together up to this many bytes: what is cut out of them stays in a core's cache
#: until it is decoded.
PLANNED_BYTES: Final = 1 << 20


#: Gets the number of an image, and its pixels (H, W, C), which it may change.
Finish: TypeAlias = Callable[[int, Array], None]


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


def put_planned(
    fill: RowTransform,
    images: Images,
    crops: Float64 | None,
    flips: UInt8 | None,
    out: Array,
    rows: Int64,
    meter: Meter,
    finish: Finish | None = None,
) -> Iterator[int]:
    """Fill ``rows`` of ``out`` from plain JPEGs. Yields in turn the number of each image that must
    go by :func:`put_encoded`; ends when the reader is closed.

    ``finish``: what is done with pictures that are cropped and resized, where there are steps.
    ``crops`` and ``flips``: as RowTransform.draws gives them. Nothing is planned of an image that
    is no plain JPEG, or that EXIF or XMP may turn. The bytes may change meanwhile: the decoder
    reads the header again, and what it gives is compared with what is planned.
    """
    import simplejpeg

    decode, resize, clock = simplejpeg.decode_jpeg, kernels.resize_planned, time.perf_counter
    started = clock()
    wanted, sizes, count = fill.wanted, images.sizes, images.sizes.size
    assert fill.method is not None
    high, wide = fill.terms[:2].tolist()
    shape = 1, high, wide, 3
    resized = None if fill.in_row else SCRATCH.array("resize", shape, fill.stored.dtype)
    cuts = SCRATCH.take("cuts", int(sizes.sum()) + 64 * count)
    plan, boxes = np.empty((count, twins.PLAN), np.int64), np.empty((count, 4))
    kernels.plan_jpegs(
        images.addresses,
        sizes,
        fill.terms,
        wanted.shares,
        np.empty((count, 0)) if crops is None else crops,
        np.zeros(count, np.uint8) if flips is None else flips,
        address_of(out if resized is None else resized),
        fill.row_bytes if resized is None else 0,
        rows,
        cuts,
        plan,
        boxes,
    )
    held = cuts.data
    there = plan[:, 6] != 0
    scratch = SCRATCH.take("decode", 3 * int((plan[:, 1] * plan[:, 2])[there].max(initial=0)))
    plan[:, 0] = place = address_of(scratch) if scratch.size else 0
    known, seconds = False, clock() - started
    for k, line in enumerate(plan[:, 1:].tolist()):
        tall, broad, _, _, at, size, low_h, low_w = line
        if meter.stopped:
            break
        if not size:
            yield k
            continue
        data = images[k] if at >= 0 else held[-1 - at : -1 - at + size]
        started = clock()
        try:
            pixels = decode(data, "RGB", False, False, low_h, low_w, 2.0, scratch)
        except Exception:  # put_encoded() says what is wrong, or decodes all of it
            pixels = None
        seconds += clock() - started
        if not known and pixels is not None:  # that it uses the memory that it gets
            known = address_of(pixels) == place
        if not known or pixels is None or pixels.shape != (tall, broad, 3):
            yield k
            continue
        resize(plan, boxes, k, k + 1, 3, fill.method, high, wide)
        if finish is not None:
            finish(k, out[rows[k]] if resized is None else resized[0])
        elif resized is not None:
            fill.finish_resized(resized, out, rows[k : k + 1])
    meter.seconds["decode"] += seconds


def put_planes(
    fill: RowTransform,
    images: Images,
    crops: Float64 | None,
    flips: UInt8 | None,
    out: Array,
    rows: Int64,
    meter: Meter,
    finish: Finish | None = None,
) -> Iterator[int]:
    """:func:`put_planned` of 4:2:0 planes: two compiled calls for each, of what is cut out."""
    clock = time.perf_counter
    started = clock()
    count = images.sizes.size
    high, wide = fill.terms[:2].tolist()
    resized = None
    if not fill.in_row:
        resized = SCRATCH.array("resize", (1, high, wide, 3), fill.stored.dtype)
    plan, boxes = np.empty((count, twins.PLAN), np.int64), np.empty((count, 4))
    parts = np.empty((count, 4), np.int64)
    kernels.plan_planes(
        images.addresses,
        images.sizes,
        fill.terms,
        fill.wanted.shares,
        np.empty((count, 0)) if crops is None else crops,
        np.zeros(count, np.uint8) if flips is None else flips,
        address_of(out if resized is None else resized),
        fill.row_bytes if resized is None else 0,
        rows,
        int.from_bytes(planes.MAGIC, "little"),
        plan,
        boxes,
        parts,
    )
    there = plan[:, 6] != 0
    most = int((plan[:, 1] * plan[:, 2])[there].max(initial=1))
    plan[:, 0] = place = address_of(SCRATCH.take("decode", 3 * most))
    convert, resize = kernels.convert_420, kernels.resize_planned
    lines = zip(plan[:, [1, 2, 5, 6]].tolist(), parts.tolist(), strict=True)
    seconds = clock() - started
    for k, ((tall, broad, at, size), (height, width, top, left)) in enumerate(lines):
        if meter.stopped:
            break
        if not size:
            yield k
            continue
        started = clock()
        convert(at + planes.HEADER, height, width, top, left, place, tall, broad)
        resize(plan, boxes, k, k + 1, 3, fill.method, high, wide)
        seconds += clock() - started
        if finish is not None:
            finish(k, out[rows[k]] if resized is None else resized[0])
        elif resized is not None:
            fill.finish_resized(resized, out, rows[k : k + 1])
    meter.seconds["decode"] += seconds


class RowView(NamedTuple):
    """A row that is made of a sample. ``draws``, ``flip``, ``out`` and ``row``: as RowTransform.put
    takes them."""

    fill: RowTransform
    draws: Array | None
    flip: bool
    out: Array
    row: Row | None = None

    def rect(self, height: int, width: int) -> geometry.Rect | None:
        """The part of a picture that is served; None where it is all, as it is stored."""
        wanted = self.fill.wanted
        return None if wanted.size is None else wanted.rect(height, width, self.draws)


def put_encoded(
    fill: RowTransform,
    data: codec.Buffer,
    draws: Array | None,
    flip: bool,
    out: Array,
    meter: Meter,
    row: Row | None = None,
) -> None:
    """:func:`put_views` of one row."""
    put_views((RowView(fill, draws, flip, out, row),), data, meter)


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
        with view.fill.checked(pixels):
            view.fill.put_hwc(pixels, box, view.draws, view.flip, view.out, view.row)
        view.fill.finish_steps(view.out, view.row)


def _decoded(
    views: Sequence[RowView],
    rects: Sequence[geometry.Rect | None],
    data: codec.Buffer,
    header: codec.ImageHeader,
) -> codec.Decoded:
    """The pixels that ``views`` show, of which each is the part ``rects`` of a picture."""
    stored = views[0].fill.stored
    if stored.values:
        values = decode_sample(data, stored)
        return codec.Decoded(values, 0, 0, (header.height, header.width))
    if not stored.narrow:
        codec.check_depth(header)
    part, reach, min_size = _together(views, rects, (header.height, header.width))
    return codec.decode_part(
        data,
        stored.channels,
        header=header,
        part=part,
        reach=reach,
        min_size=min_size,
        scratch=SCRATCH.take("decode", header.height * header.width * 3),
        copy=SCRATCH.take("cut", jpeg_cut.most(data)) if header.facts is not None else None,
    )


def _together(
    views: Sequence[RowView], rects: Sequence[geometry.Rect | None], full: tuple[int, int]
) -> tuple[tuple[int, int, int, int] | None, tuple[int, int], tuple[int, int] | None]:
    """The part that holds ``rects`` of a picture of size ``full``, how far around it the resizes
    look, and the least size at which it may be decoded: as codec.decode_part takes them."""
    bottom = right = down = across = low_h = low_w = 0
    top, left = full
    reduced = True
    for view, rect in zip(views, rects, strict=True):
        wanted = view.fill.wanted
        if rect is None or wanted.size is None or wanted.nearest or wanted.crop_padding:
            return None, (0, 0), None
        top, left = min(top, rect.top), min(left, rect.left)
        bottom, right = max(bottom, rect.top + rect.height), max(right, rect.left + rect.width)
        down = max(down, geometry.reach(rect.height, wanted.size[0]))
        across = max(across, geometry.reach(rect.width, wanted.size[1]))
        # DCT scaling as long as the part that is used stays at least as large as its target
        low_h = max(low_h, math.ceil(full[0] * wanted.size[0] / rect.height))
        low_w = max(low_w, math.ceil(full[1] * wanted.size[1] / rect.width))
        reduced = reduced and wanted.interpolation != "nearest"
    part = top, left, bottom - top, right - left
    return part, (down, across), (low_h, low_w) if reduced else None
