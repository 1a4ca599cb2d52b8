"""From an image's bytes to those to store: decode, resize, encode, checksum; and samples as stored,
one or several that were hashed together.

Pure functions of their arguments, safe in any thread; what they call releases the GIL.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

import numpy as np
import xxhash

from asyncreader.errors import DecodeError, ParamsError, SampleError
from asyncreader.formats.packed import FIELD_DTYPES, PLAIN, RAGGED, FieldMeta, row_checksums
from asyncreader.pixels import codec, kernels
from asyncreader.pixels.geometry import nearest_pixels, resize_into
from asyncreader.pixels.points import move
from asyncreader.system.array_types import Array, Float64, Int64, UInt64
from asyncreader.system.checks import MAX_SIDE
from asyncreader.system.memory import SCRATCH
from asyncreader.system.text import sides

from .options import QUALITY, Options


@dataclass(frozen=True, slots=True)
class FieldBlock:
    """One field of a sample as it is stored: bytes, shape if that is known, XXH3-64.

    Or of several raw samples, one after the other: then ``checksum`` is uint64 (n,), and ``data``
    is memory that changes later. ``channels``: of images, whose shape is (H, W, C); 0 of rows of
    numbers of any shape. ``lengths``: of samples of different length, the values of each, int64
    (n,); ``shape`` is that of a value then.
    """

    data: bytes | memoryview
    shape: tuple[int, ...] | None
    checksum: int | UInt64
    dtype: str
    channels: int
    lengths: Int64 | None = None
    #: Whether restart markers were put into it; None where that was not tried.
    rewritten: bool | None = None
    #: Whether the image has 16 bits, and is served with 8.
    narrowed: bool = False

    @property
    def count(self) -> int:
        """Samples in it."""
        return 1 if isinstance(self.checksum, int) else int(self.checksum.size)

    def each(self) -> Iterator[bytes | memoryview]:
        """The bytes of each sample, to be kept: those of several are copied one by one."""
        if isinstance(self.checksum, int):
            yield self.data
            return
        ends = np.arange(1, self.count + 1) * (len(self.data) // self.count)
        if self.lengths is not None:
            assert self.shape is not None
            ends = np.cumsum(self.lengths) * math.prod(self.shape) * np.dtype(self.dtype).itemsize
        for start, end in itertools.pairwise([0, *ends.tolist()]):
            yield bytes(self.data[start:end])

    def described(self, name: str, encoding: str) -> FieldMeta:
        """What all samples of the field ``name`` must have in common: encoded images of a field may
        differ in height and width."""
        shape = self.shape if encoding in PLAIN else None
        return FieldMeta(name, encoding, shape, self.channels, self.dtype)

    def fits(self, field: FieldMeta) -> bool:
        """Whether ``field``, by another of its samples, describes these."""
        return (
            (field.dtype, field.channels) == (self.dtype, self.channels)
            and (field.shape is None or field.shape == self.shape)
            and (field.encoding == RAGGED) == (self.lengths is not None)
        )


#: Samples as they are stored: a block for each field in the order of the set, the image's first.
Block: TypeAlias = tuple[FieldBlock, ...]


def block_bytes(block: Block) -> int:
    """Bytes of all its fields."""
    return sum(len(field.data) for field in block)


def hashed(
    data: bytes | memoryview,
    shape: tuple[int, ...] | None,
    dtype: str = "uint8",
    channels: int | None = None,
) -> FieldBlock:
    """``data`` with its checksum; ``channels``: those of ``shape`` where they are not said."""
    if channels is None:
        assert shape is not None
        channels = shape[-1]
    return FieldBlock(data, shape, xxhash.xxh3_64_intdigest(data), dtype, channels)


def hashed_pixels(pixels: Array, image: bool = True) -> FieldBlock:
    """Pixels (H, W, C), or numbers of any shape, as they are stored raw: more than a byte
    little-endian."""
    row = np.asarray(pixels, pixels.dtype.newbyteorder("<"), order="C")
    data = row.reshape(-1).view(np.uint8).data
    return hashed(data, row.shape, row.dtype.name, row.shape[2] if image else 0)


def hashed_rows(rows: Array, image: bool) -> FieldBlock:
    """Rows (n, ...) as :func:`hashed_pixels` stores each, without a copy where they are
    C-contiguous and little-endian."""
    rows = np.asarray(rows, rows.dtype.newbyteorder("<"), order="C")
    each = rows.reshape(len(rows), -1).view(np.uint8)
    sums, channels = row_checksums(each), rows.shape[3] if image else 0
    return FieldBlock(each.reshape(-1).data, rows.shape[1:], sums, rows.dtype.name, channels)


def hashed_values(values: Array, lengths: Int64) -> FieldBlock:
    """Samples of different length: ``values`` (total, ...) of all, one after the other, of which
    each has so many."""
    values = np.asarray(values, values.dtype.newbyteorder("<"), order="C")
    data = values.reshape(-1).view(np.uint8).data
    ends = np.cumsum(lengths) * (math.prod(values.shape[1:]) * values.itemsize)
    sums = np.array(
        [xxhash.xxh3_64_intdigest(data[a:b]) for a, b in itertools.pairwise([0, *ends.tolist()])],
        np.uint64,
    )
    return FieldBlock(data, values.shape[1:], sums, values.dtype.name, 0, lengths)


# -- images ----------------------------------------------------------------------------------------


#: Called with the bytes that the next step needs; may wait until they are free.
Hold: TypeAlias = Callable[[int], None]

#: The JPEG decoder may reduce a crop that is this many times larger than the target.
REDUCE_ABOVE: Final = 3

#: Bytes of memory per pixel while one image is decoded and resized: RGB, what the decoder holds
#: and the result; the odd kinds (16-bit, CMYK, palettes by way of RGBA) hold one copy more.
PIXEL_BYTES: Final = 8
ODD_PIXEL_BYTES: Final = 12


#: ``codec.reduction`` of an image that was decoded at its full size.
_FULL: Final = (1.0, 0.0, 0.0)


def field_encoding(encoding: str) -> str:
    """How other fields are stored with images of an encoding: raw with raw pixels, else as PNG;
    always without loss."""
    return "raw" if encoding in PLAIN else "png"


@dataclass(frozen=True)
class Recipe:
    """What is done to each image. ``size``: (H, W), the shorter side's length, or None;
    ``bits``: what grey images of 16 bits become, None where that was not said."""

    encoding: str
    channels: int
    size: tuple[int, int] | int | None = None
    resize: str = "crop"
    quality: int = QUALITY
    check_decode: bool = False
    restarts: bool = False
    bits: int | None = None

    def from_file(self, data: bytes, hold: Hold) -> FieldBlock:
        """Pack an image file's bytes; DecodeError for a damaged one."""
        header = self._examined(data)
        narrowed = self._narrows(header)
        if self.encoding == "original":
            return replace(self._original(data, header, hold), narrowed=narrowed)
        hold(decoding_bytes(header))
        full = header.height, header.width
        plan = None if self.size is None else resize_plan(full, self.size, self.resize)
        if self.bits == 16:
            return self._stored(codec.decode_values(data), plan)
        pixels = codec.decode(
            data,
            self.channels,
            header=header,
            min_size=None if plan is None else plan.enough(full),
            min_factor=2,
        )
        stored = self._stored(pixels, plan, codec.reduction(header, pixels.shape))
        return replace(stored, narrowed=narrowed)

    def from_pixels(self, pixels: Array) -> FieldBlock:
        """Pack pixels (H, W, 1 or 3) that are decoded already; of uint16 with ``bits`` 8 the high
        byte."""
        full = pixels.shape[0], pixels.shape[1]
        plan = None if self.size is None else resize_plan(full, self.size, self.resize)
        narrowed = pixels.dtype.itemsize == 2 and self.bits == 8
        if narrowed:
            pixels = (pixels >> 8).astype(np.uint8)
        if self.bits != 16:
            pixels = codec.with_channels(pixels, self.channels)
        elif pixels.dtype.itemsize != 2:
            raise _not_deep("8 bits")
        return replace(self._stored(pixels, plan), narrowed=narrowed)

    def from_values(self, values: Array, full: tuple[int, int]) -> FieldBlock:
        """Pack values (H, W, 1 or 3), uint8 or uint16, that go with an image of size ``full``:
        cut and resized as it is, by nearest neighbour; padded with 0."""
        if self.size is not None:
            values = resize_plan(full, self.size, self.resize).picked(values)
        if field_encoding(self.encoding) == "raw":
            return hashed_pixels(values)
        shape = values.shape[0], values.shape[1], values.shape[2]
        return hashed(codec.encode(values, "png"), shape, values.dtype.name)

    def moved(self, kind: str, values: Array, full: tuple[int, int]) -> Array:
        """Numbers that go with an image of size ``full``, as they go with what becomes of it:
        "boxes" and "keypoints" in its pixels, as float32, a "map" (H, W, ...) cut and resized as
        it is, by nearest neighbour; others as they are."""
        if self.size is None or kind == "numbers":
            return values
        plan = resize_plan(full, self.size, self.resize)
        if kind == "map":
            return plan.picked(values)
        places = values.reshape(-1, values.shape[-1]).astype(np.float64)
        move(places, kind, [plan.matrix], plan.outer)
        return places.reshape(values.shape).astype(np.float32)

    def _narrows(self, header: codec.ImageHeader) -> bool:
        """Whether the image has 16 bits and becomes one of 8. ParamsError where it is grey, and
        nothing says so; DecodeError where 16 bits are kept, and it has none."""
        if self.bits == 16 and header.deep != "grey":
            raise _not_deep("colour" if header.deep else "8 bits")
        if self.bits is None and header.deep == "grey":
            raise ParamsError(
                "a grey image of 16 bits: nothing says whether they are kept",
                hint="pass bits 16 (--bits 16), which keeps them as uint16, or bits 8 (--bits 8), "
                "which drops the lower 8 bits",
            )
        return self.bits != 16 and header.deep != ""

    def _original(self, data: bytes, header: codec.ImageHeader, hold: Hold) -> FieldBlock:
        """The file's own bytes, or those with restart markers."""
        shape = (header.height, header.width, self.channels)
        if self.check_decode:
            hold(decoding_bytes(header))
            if self.bits == 16:
                codec.decode_values(data)
            else:
                codec.decode(data, self.channels, header=header)
        if not self.restarts or header.kind != "jpeg" or header.loose:
            return hashed(data, shape, "uint16" if self.bits == 16 else "uint8")
        hold(3 * len(data))
        return _marked(data, with_restarts(data), shape)

    def _examined(self, data: bytes) -> codec.ImageHeader:
        kind = codec.sniff(data)
        # Decoders stop at the last pixel they need, so the end of a PNG or GIF is checked here. The
        # JPEG decoder is strict, and TIFF and PPM have no check but decoding.
        if self.encoding == "original" or kind not in ("jpeg", "tiff", "ppm"):
            return codec.check_structure(data)
        return codec.read_header(data)

    def _stored(
        self,
        pixels: Array,
        plan: ResizePlan | None,
        reduction: tuple[float, float, float] = _FULL,
    ) -> FieldBlock:
        if plan is not None:
            pixels = plan.resized(pixels, reduction)
        if self.encoding == "raw":
            return hashed_pixels(pixels)
        shape = pixels.shape[0], pixels.shape[1], pixels.shape[2]
        if self.encoding == "jpeg" and max(shape) > MAX_SIDE:
            raise DecodeError(
                "too long for a JPEG",
                found=f"{sides(*shape[:2])} pixels",
                expected=f"sides of at most {MAX_SIDE}",
                hint="choose encoding 'png', or a smaller size",
            )
        data = codec.encode(pixels, self.encoding, self.quality)
        if self.restarts:
            return _marked(data, with_restarts(data), shape)
        return hashed(data, shape, pixels.dtype.name)


def _not_deep(found: str) -> DecodeError:
    return DecodeError(
        "not a grey image of 16 bits, as all are to be with bits 16",
        found=found,
        hint="pass bits 8 (--bits 8) for images of 8 bits, or skip_bad (--skip-bad) to leave "
        "such images out",
    )


def _marked(data: bytes, new: bytes | None, shape: tuple[int, int, int]) -> FieldBlock:
    """A JPEG: ``new``, which is ``data`` with restart markers, or ``data`` where there is none."""
    return replace(hashed(data if new is None else new, shape), rewritten=new is not None)


def with_restarts(data: bytes) -> bytes | None:
    """A JPEG with restart markers, of the same pixels (see the kernel ``add_restarts``); None
    where it cannot get any."""
    size = len(data)
    longest = size + size // 4 + 8192
    memory = SCRATCH.take("restarts", size + 1024 + longest)
    result = np.zeros(2, np.int64)
    scratch, source = memory.ctypes.data, np.frombuffer(data, np.uint8)
    kernels.add_restarts(source.ctypes.data, size, scratch, scratch + size + 1024, longest, result)
    start, end = (size + 1024 + result).tolist()
    return memory[start:end].tobytes() if end > start else None


def make_recipe(options: Options, encoding: str, channels: int, bits: int | None) -> Recipe:
    """What is done to each image."""
    return Recipe(
        encoding=encoding,
        channels=channels,
        bits=bits,
        size=options.size,
        resize=options.resize,
        quality=options.quality or QUALITY,
        check_decode=options.check_decode,
        restarts=encoding == "jpeg" if options.restarts is None else options.restarts,
    )


def size_of_picture(picture: bytes | Array) -> tuple[int, int]:
    """(H, W) of pixels, or of an image file's bytes: upright, as they are decoded."""
    if isinstance(picture, bytes):
        header = codec.read_header(picture)
        return header.height, header.width
    return picture.shape[0], picture.shape[1]


def decoding_bytes(header: codec.ImageHeader) -> int:
    """Bytes of memory that an image takes while it is decoded and resized."""
    return header.height * header.width * (ODD_PIXEL_BYTES if header.odd else PIXEL_BYTES)


@dataclass(frozen=True)
class ResizePlan:
    """How an image becomes its new size: the part taken (left, top, right, bottom, of the full
    image), the (H, W) it is resized to, and the (H, W) canvas it is centred on."""

    box: tuple[float, float, float, float]
    inner: tuple[int, int]
    outer: tuple[int, int]

    def enough(self, full: tuple[int, int]) -> tuple[int, int]:
        """(H, W) of the whole image at which the part taken is REDUCE_ABOVE times ``inner``."""
        left, top, right, bottom = self.box
        high, wide = self.inner
        return (
            math.ceil(full[0] * REDUCE_ABOVE * high / (bottom - top)),
            math.ceil(full[1] * REDUCE_ABOVE * wide / (right - left)),
        )

    def resized(self, pixels: Array, reduction: tuple[float, float, float] = _FULL) -> Array:
        """``pixels`` at their new size: the whole image, decoded as ``codec.reduction`` says."""
        rows, columns = pixels.shape[:2]
        scale, y, x = reduction
        left, top, right, bottom = (
            side * scale + shift for side, shift in zip(self.box, (x, y, x, y), strict=True)
        )
        right, bottom = min(right, columns), min(bottom, rows)
        if (left, top, right, bottom) == (0, 0, columns, rows) and self.inner == (rows, columns):
            return self._framed(pixels)
        new = np.empty((*self.inner, pixels.shape[2]), pixels.dtype.newbyteorder("="))
        resize_into(pixels, new, (top, left, bottom - top, right - left), "bicubic", outside=True)
        return self._framed(new)

    def picked(self, values: Array) -> Array:
        """``values`` of the full image at its new size, by nearest neighbour."""
        rows, columns = values.shape[:2]
        left, top, right, bottom = self.box
        return self._framed(
            values[nearest_pixels(top, bottom - top, self.inner[0], rows)][
                :, nearest_pixels(left, right - left, self.inner[1], columns)
            ]
        )

    def _framed(self, new: Array) -> Array:
        """``new`` in the middle of a canvas of zeros, where that is larger."""
        if self.inner == self.outer:
            return new
        canvas = np.zeros((*self.outer, *new.shape[2:]), new.dtype)
        y, x = self._margins
        canvas[y : y + self.inner[0], x : x + self.inner[1]] = new
        return canvas

    @property
    def _margins(self) -> tuple[int, int]:
        """Rows above and columns left of the image on its canvas."""
        y, x = (round((b - a) * 0.5) for a, b in zip(self.inner, self.outer, strict=True))
        return y, x

    @property
    def matrix(self) -> Float64:
        """The matrix (3, 3) that takes a place (x, y, 1) in the full image to its new place."""
        left, top, right, bottom = self.box
        by_y, by_x = self.inner[0] / (bottom - top), self.inner[1] / (right - left)
        y, x = self._margins
        first = by_x, 0.0, x - left * by_x
        return np.array((first, (0.0, by_y, y - top * by_y), (0.0, 0.0, 1.0)))


def resize_plan(full: tuple[int, int], size: tuple[int, int] | int, resize: str) -> ResizePlan:
    """The arithmetic of PIL's ImageOps.fit ("crop"), ImageOps.pad ("pad") or a plain resize."""
    height, width = full
    whole = (0.0, 0.0, float(width), float(height))
    if isinstance(size, int):
        return ResizePlan(whole, *[_shorter_side(height, width, size)] * 2)
    high, wide = size
    if resize == "squeeze":
        return ResizePlan(whole, size, size)
    if resize == "pad":
        inner = size
        if width / height > wide / high:
            inner = max(1, round(height / width * wide)), wide
        elif width / height < wide / high:
            inner = high, max(1, round(width / height * high))
        return ResizePlan(whole, inner, size)
    ratio, wanted = width / height, wide / high
    columns, rows = float(width), float(height)
    if ratio > wanted:
        columns = wanted * height
    elif ratio < wanted:
        rows = width / wanted
    left, top = (width - columns) * 0.5, (height - rows) * 0.5
    return ResizePlan((left, top, left + columns, top + rows), size, size)


def _shorter_side(height: int, width: int, side: int) -> tuple[int, int]:
    new = (
        (side, max(side, round(width * side / height)))
        if height <= width
        else (max(side, round(height * side / width)), side)
    )
    if new[0] * new[1] > codec.MAX_PIXELS:
        raise DecodeError(
            "its shape makes the resized image too large",
            found=f"{height} x {width} would become {sides(*new)}",
            expected=f"at most {codec.MAX_PIXELS} pixels",
        )
    return new


def stored_values(name: str, values: Array, full: tuple[int, int], recipe: Recipe) -> FieldBlock:
    """Values (H, W, C) of field ``name`` of an image of size ``full``, as they are stored."""
    check_size(name, values, full)
    return recipe.from_values(as_stored(name, values), full)


def check_size(name: str, values: Array, full: tuple[int, int]) -> None:
    """SampleError where a field of an image of size ``full`` has another height or width."""
    if values.shape[:2] != full:
        raise SampleError(
            f"field {name!r} and its image differ in size",
            found="{} x {} (height x width)".format(*values.shape),
            expected="{} x {}, as the upright image".format(*full),
        )


def as_stored(name: str, values: Array) -> Array:
    """Whole numbers as uint8 or uint16, with 1 or 3 channels; SampleError if they are neither."""
    if values.dtype == np.bool_:
        values = values.astype(np.uint8)
    fits = values.dtype.kind in "iu" and int(values.min()) >= 0 and int(values.max()) <= 65_535
    if fits and values.dtype.name not in FIELD_DTYPES:
        values = values.astype(np.uint16)
    if values.dtype.name not in FIELD_DTYPES or values.shape[2] not in (1, 3):
        raise SampleError(
            f"field {name!r} cannot be stored",
            found=f"{values.shape[2]} channels of {values.dtype}, "
            f"from {values.min()} to {values.max()}",
            expected="1 or 3 channels of whole numbers from 0 to 65535",
        )
    return values
