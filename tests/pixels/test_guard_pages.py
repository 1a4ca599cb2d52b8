"""Compiled code stays in the memory that it is given: each input and each output lies between two
guard pages, in a child process."""

import contextlib
import functools
import math
import tempfile
import zlib
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import cut_jpegs
import msgpack
import numpy as np
import pytest
from child_processes import Ended, Watched, answer_requests
from fakes import encoded
from foreign_sets import branch_sample, datum, numpy_map, pyxis_sample
from guard_pages import Guards, address

from asyncreader.pixels import kernels, tables
from asyncreader.pixels.augment import functions
from asyncreader.pixels.codec import planes
from asyncreader.pixels.row_maker import RowFiller, RowTables
from asyncreader.pixels.shared import CROPS, crop_shares
from asyncreader.pixels.tables import (
    ALWAYS,
    FACTS,
    NO_STARTS,
    PLAN,
    RUN,
    Erasure,
    RowsInMemory,
    file_table,
)
from asyncreader.sampling.weighted import AliasTable
from asyncreader.sources.hdf5 import filters
from asyncreader.system.keyed_random import mix_rows

Rng: TypeAlias = np.random.Generator
#: What calls a kernel with random arguments that lie between guard pages.
Case: TypeAlias = Callable[[Guards, Rng], object]

CASES: dict[str, Case] = {}


def case(*names: str) -> Callable[[Callable[..., object]], Callable[..., object]]:
    """Enter a case of the kernel that it is called by, or of several, which it gets first."""

    def enter(function: Callable[..., object]) -> Callable[..., object]:
        for name in names:
            CASES[name] = functools.partial(function, name)
        if not names:
            CASES[function.__name__] = function
        return function

    return enter


def sizes(rng: Rng, *most: int) -> list[int]:
    """Numbers from 1 to each of ``most``, small ones often."""
    return [int(math.exp(rng.uniform(0, math.log(one + 1)))) for one in most]


def noise(g: Guards, rng: Rng, *shape: int) -> np.ndarray:
    """Random bytes."""
    found: np.ndarray = g.of(rng.integers(0, 256, shape, np.uint8))
    return found


# -- numbers of records --------------------------------------------------------------------------


@case()
def feistel_rows(g: Guards, rng: Rng) -> None:
    count, asked = sizes(rng, 5000, 700)
    bits = max(2, count.bit_length())
    keys, out = g.of(rng.integers(0, 1 << 63, 6).astype(np.uint64)), g.empty(asked, np.int64)
    positions = g.of(rng.integers(0, count, asked))
    kernels.feistel_rows(positions, count, bits // 2, bits - bits // 2, keys, out)


@case()
def permuted_rows(g: Guards, rng: Rng) -> None:
    (asked,) = sizes(rng, 700)
    counts = rng.integers(1, 99, asked)
    keys = g.of(rng.integers(0, 1 << 63, asked).astype(np.uint64))
    out = g.empty(asked, np.int64)
    kernels.permuted_rows(g.of(rng.integers(0, counts)), g.of(counts), keys, 8, out)


@case()
def alias_rows(g: Guards, rng: Rng) -> None:
    count, asked = sizes(rng, 300, 700)
    table, out = AliasTable.of(rng.random(count) + 0.01), g.empty(asked, np.int64)
    numbers = g.of(rng.integers(0, 1 << 60, asked))
    kernels.alias_rows(numbers, np.uint64(7), g.of(table.cells), table.bits, out)


@case()
def uniform_rows(g: Guards, rng: Rng) -> None:
    count, draws = sizes(rng, 99, 40)
    kernels.uniform_rows(g.of(mix_rows(1, np.arange(count))), 3, g.empty((count, draws), float))


# -- rows ----------------------------------------------------------------------------------------


@case()
def pread_rows(g: Guards, rng: Rng) -> None:
    size, count = sizes(rng, 5000, 9)
    offsets, rows = g.of(rng.permutation(count) * size), g.of(rng.permutation(count))
    with tempfile.TemporaryFile() as file:
        file.write(bytes(count * size - int(rng.integers(0, 2))))
        file.flush()
        out, order = g.empty(count * size), g.of(np.argsort(offsets))
        done = g.empty(1, np.int64)
        kernels.pread_rows(file.fileno(), offsets, size, address(out), rows, order, done)


@case()
def hash_rows(g: Guards, rng: Rng) -> None:
    size = int(rng.choice([0, rng.integers(0, 300), rng.integers(0, 3000)]))
    # each row by itself: none lies behind another
    rows, scratch = [noise(g, rng, size) for _ in range(3)], g.empty(size)
    at = g.of([address(row) for row in rows])
    kernels.hash_rows(at, size, address(scratch), g.empty(3, np.uint64))


@case("copy_batches", "transpose_batches", "affine_batches", "affine_batches_half")
def batches(name: str, g: Guards, rng: Rng) -> None:
    high, wide, channels, count = sizes(rng, 40, 60, 5, 4)
    item = {"affine_batches": 4, "affine_batches_half": 2}.get(name, 1)
    size, labels = high * wide * channels, int(rng.choice([0, 1, 8, 20]))
    padding = int(rng.integers(0, 9)) if rng.random() < 0.5 else 0
    scale, shift = (g.of(rng.normal(0, 1, channels).astype(np.float32)) for _ in range(2))
    seen = g.of(np.zeros(count, np.uint8))
    filler = RowFiller.of(
        name, scale, shift, row_bytes=size, out_bytes=size * item, height=high, width=wide,
        channels=channels, item=1, planar=name[0] == "t" or rng.random() < 0.5,
        mirrored=rng.random() < 0.5, stream=rng.random() < 0.5, padding=padding,
        around=int(rng.integers(0, 3)),
    )  # fmt: skip
    if rng.random() < 0.3:
        filler = filler.erasing(Erasure(1.0, 0.02, 0.9, -1.5, 1.5), noise(g, rng, channels * item))
    rows = [noise(g, rng, size) for _ in range(count)]
    at, out = g.of([address(row) for row in rows]), g.empty((count, size * item))
    wanted = g.of(np.ones(count, np.bool_))
    filler.fill(at, g.of(rng.permutation(count)), out, g.of(mix_rows(1, np.arange(count))), wanted)
    # the same rows by their numbers, with labels and checksums, from memory and from a file
    sums = g.of(np.zeros(count, np.uint64))
    filler = filler.having(check=ALWAYS, seen=address(seen), label_bytes=labels)
    tables = [noise(g, rng, count, labels)] if labels else []
    made = noise(g, rng, count, labels) if labels else None
    with tempfile.TemporaryFile() as file:
        file.write(b"".join(row.tobytes() for row in rows))
        file.flush()
        file.fd = file.fileno()  # type: ignore[attr-defined]
        for of_file in (
            RowsInMemory(count, 0, at, 0, 0, sums),
            RowsInMemory(count, 0, NO_STARTS, 0, size, sums, file),  # type: ignore[arg-type]
        ):
            found = RowTables.of([filler], [g.of(file_table([of_file], tables))])
            found.fill(g.of(rng.integers(0, count, count)), [g.empty(out.shape)], made, 5, 7)


@case()
def await_batch(g: Guards, rng: Rng) -> None:
    kernels.await_batch(address(g.of([1])), 1, 9)


@case()
def cast_numbers(g: Guards, rng: Rng) -> None:
    kinds = [np.dtype(one) for one in ("?", "i1", ">i2", "u4", "<i8", ">f2", "f4", "f8")]
    made = kinds[int(rng.integers(len(kinds)))].newbyteorder("=")
    chosen = [kinds[int(k)] for k in rng.integers(0, len(kinds), 3)]
    counts = rng.integers(1, 12, 3).tolist()
    ends = np.cumsum([one.itemsize * n for one, n in zip(chosen, counts, strict=True)]).tolist()
    table = g.empty((3, len(RUN)), np.int64)
    for line, one, n, end in zip(table, chosen, counts, ends, strict=True):
        copied = one.newbyteorder("=") == made
        line[:] = end - one.itemsize * n, one.itemsize, ord(one.kind), not one.isnative, n, copied
    each, count = sizes(rng, 5, 5)
    rows, row_bytes = [noise(g, rng, each * ends[-1]) for _ in range(count)], each * sum(counts)
    row_bytes *= made.itemsize
    ones = g.of(np.ones(sum(counts)))
    kernels.cast_numbers(
        g.of([address(row) for row in rows]), each, ends[-1], table, ord(made.kind), made.itemsize,
        False, ones, ones, address(g.empty(count * row_bytes)), g.of(rng.permutation(count)),
        row_bytes, g.of([-1, -1]),
    )  # fmt: skip


@case()
def copy_runs(g: Guards, rng: Rng) -> None:
    lengths = rng.integers(0, 99, 5)
    both = [[g.empty(int(one)) for one in lengths] for _ in range(2)]
    sources, targets = (g.of([address(one) for one in some]) for some in both)
    kernels.copy_runs(sources, g.of(lengths), targets)


@case("add_rows_f4", "add_rows_f8", "add_rows_i8")
def add_rows(name: str, g: Guards, rng: Rng) -> None:
    kind = np.dtype(name[-2:])
    count, width = sizes(rng, 9, 30)
    ends = np.cumsum(rng.integers(0, 9, count))
    columns = g.of(rng.integers(-1 if rng.random() < 0.3 else 0, width + 1, ends[-1]))
    lookup = rng.permutation(width) - 2 if rng.random() < 0.5 else np.empty(0, np.int64)
    getattr(kernels, name)(
        columns, g.of(np.ones(ends[-1], kind)), g.of(ends), g.of(np.ones(count, np.uint8)),
        g.of(lookup), g.of(np.arange(count)), width, width, g.empty(count * width, kind),
        g.empty(count, np.int64),
    )  # fmt: skip


@case()
def copy_boxes(g: Guards, rng: Rng) -> None:
    rank, item = int(rng.integers(1, 5)), int(rng.choice([1, 1, 2, 3, 4, 8, 16]))
    full, count = rng.integers(1, 40 if rank < 3 else 7, rank), 3
    woven = bool(rng.random() < 0.4)
    if woven:
        item, full[-1] = 1, 1
    shape = (1, *full[:-1], count) if woven else (count, *full)
    stored = [noise(g, rng, *full, item) for _ in range(count)]
    out = g.empty((*shape, item))
    extents = np.array([rng.integers(0, full + 1)] * count) if woven else rng.integers(
        0, full + 1, (count, rank)
    )  # fmt: skip
    targets = address(out) + np.arange(count) * (out.strides[-2] if woven else out.strides[0])
    near, far = np.array(stored[0].strides[:-1]), np.array(out.strides[1:-1])
    sources = g.of([address(one) for one in stored])
    kernels.copy_boxes(sources, g.of(targets), g.of(extents), g.of(near), g.of(far), item)


@case()
def inflate_chunks(g: Guards, rng: Rng) -> None:
    room, width = sizes(rng, 5000, 9)
    streams = [zlib.compress(rng.integers(0, 9, room, np.uint8).tobytes()) for _ in range(5)]
    streams[1] = streams[1][: int(rng.integers(0, len(streams[1])))]
    streams[2] = zlib.compress(bytes(room + 9))
    held = [g.bytes(one) for one in streams]
    outs = [g.empty(room) for _ in held]
    kernels.inflate_chunks(
        g.of(filters._libdeflate()), g.of([address(one) for one in held]),
        g.of([one.size for one in held]), g.of([address(one) for one in outs]), room, width,
        g.empty(5, np.int64),
    )  # fmt: skip


# -- resizing ------------------------------------------------------------------------------------


def _part(rng: Rng, stored: list[int]) -> np.ndarray:
    """The box of a part."""
    box = [rng.uniform(0, side - 0.5) for side in stored]
    return np.array(
        [*box, *(rng.uniform(0.25, side - at) for side, at in zip(stored, box, strict=True))]
    )


@case("resize_f4", "resize_f8")
def resize_floats(name: str, g: Guards, rng: Rng) -> None:
    kind = np.dtype(name[-2:])
    stored, size, channels = sizes(rng, 60, 60), sizes(rng, 40, 40), int(rng.integers(1, 7))
    source = g.of(rng.normal(0, 9, (stored[0], stored[1] * channels)).astype(kind))
    flip, outside = (bool(rng.random() < 0.5) for _ in range(2))
    box, method, out = (
        g.of(_part(rng, stored)),
        int(rng.integers(0, 3)),
        g.empty((*size, channels), kind),
    )
    getattr(kernels, name)(source, channels, box, method, outside, flip, out)


@case("plan_crops", "resize_planned")
def planned_crops(name: str, g: Guards, rng: Rng) -> None:
    stored, size, channels = sizes(rng, 60, 60), sizes(rng, 40, 40), int(rng.integers(1, 5))
    crop, count = int(rng.integers(0, len(CROPS))), 3
    pictures = [noise(g, rng, *stored, channels) for _ in range(count)]
    out, plan = g.empty((count, *size, channels)), g.empty((count, len(PLAN)), np.int64)
    boxes, rows = g.empty((count, 4), float), g.of(rng.permutation(count))
    kernels.plan_crops(
        g.of([address(one) for one in pictures]), g.of([*stored, channels]),
        g.of([*size, crop, 1 << 30, 0]), g.of(_shares(rng)), g.of(rng.random((count, 40))),
        g.of(rng.integers(0, 2, count).astype(np.uint8)), address(out), out[0].nbytes, rows, plan,
        boxes,
    )  # fmt: skip
    method, outside = int(rng.integers(0, 3)), bool(rng.random() < 0.5)
    if rng.random() < 0.5:  # parts that begin and end inside of pixels
        boxes[:] = [_part(rng, stored) for _ in range(count)]
    kernels.resize_planned(plan, boxes, 0, count, channels, method, *size, outside)


def _shares(rng: Rng) -> np.ndarray:
    return np.array(crop_shares(float(rng.choice([1.0, 0.5])), (0.08, 1.0), (0.75, 4 / 3)))


# -- planes --------------------------------------------------------------------------------------


@case()
def make_420(g: Guards, rng: Rng) -> None:
    high, wide = sizes(rng, 90, 90)
    rgb, out = noise(g, rng, high, wide, 3), g.empty(planes.planes_bytes(high, wide))
    kernels.make_420(address(rgb), high, wide, address(out))


@case()
def convert_420(g: Guards, rng: Rng) -> None:
    height, width = sizes(rng, 90, 90)
    top, left = int(rng.integers(height)), int(rng.integers(width))
    high, wide = int(rng.integers(1, height - top + 1)), int(rng.integers(1, width - left + 1))
    stored = noise(g, rng, planes.planes_bytes(height, width))
    out = g.empty((high, wide, 3))
    kernels.convert_420(address(stored), height, width, top, left, address(out), high, wide)


@case()
def plan_planes(g: Guards, rng: Rng) -> None:
    images = [
        planes.encode(rng.integers(0, 256, (*sizes(rng, 60, 60), 3), np.uint8)) for _ in range(6)
    ]
    images = [*images[:3], images[3][:-1], images[4][: int(rng.integers(0, 20))], b"\0" * 99]
    _plan(kernels.plan_planes, [g.bytes(one) for one in images], g, rng)


def _plan(kernel: Any, held: list[np.ndarray], g: Guards, rng: Rng) -> None:
    """Plan encoded images, each by itself."""
    size, count = sizes(rng, 60, 60), len(held)
    crop, lengths = int(rng.integers(0, len(CROPS))), [one.size for one in held]
    plan, boxes = g.empty((count, len(PLAN)), np.int64), g.empty((count, 4), float)
    given = (
        g.of([address(one) for one in held]), g.of(lengths), g.of([*size, crop, 1 << 24, 0]),
        g.of(_shares(rng)), g.of(rng.random((count, 40))),
        g.of(rng.integers(0, 2, count).astype(np.uint8)), 1 << 40, 3 * math.prod(size),
        g.of(np.arange(count)),
    )  # fmt: skip
    if kernel is kernels.plan_planes:
        magic = int.from_bytes(planes.MAGIC, "little")
        kernel(*given, magic, plan, boxes, g.empty((count, 4), np.int64))
    else:
        kernel(*given, g.empty(sum(lengths) + 64 * count), plan, boxes)


# -- JPEG ----------------------------------------------------------------------------------------


def jpegs(rng: Rng) -> Iterator[bytes]:
    """JPEGs with restart markers and without: whole, damaged, cut short, and with other numbers in
    their headers."""
    marked = cut_jpegs.drawn(rng, 80, 330)
    yield marked
    yield cut_jpegs.damaged(marked, rng)
    yield encoded(cut_jpegs.picture(rng, *sizes(rng, 99, 99)), "JPEG")
    yield marked[: int(rng.integers(0, len(marked)))]
    header = bytearray(marked)
    for _ in range(int(rng.integers(1, 4))):
        header[int(rng.integers(2, 700))] = int(rng.integers(256))
    yield bytes(header)
    yield bytes(header[: int(rng.integers(0, 700))])
    yield b"\xff\xd8\xff\xc0\0\2\xff\xda\0\2\0"
    yield detailed_below(rng)


def detailed_below(rng: Rng) -> bytes:
    """A JPEG with a marker behind each row of MCUs, white above and noise in its last rows: its
    last segment is longer than all the others."""
    pixels = np.full((16 * int(rng.integers(10, 40)), 160, 3), 255, np.uint8)
    pixels[-16:] = rng.integers(0, 256, (16, 160, 3))
    return cut_jpegs.marked(pixels, "4:2:0", 10, quality=97)


@case()
def jpeg_header(g: Guards, rng: Rng) -> None:
    for data in jpegs(rng):
        kernels.jpeg_header(g.bytes(data), g.empty(len(FACTS), np.int64))


@case()
def cut_jpeg(g: Guards, rng: Rng) -> None:
    for data in jpegs(rng):
        facts = g.empty(len(FACTS), np.int64)
        kernels.jpeg_header(g.bytes(data), facts)
        if facts[0] == 0:
            continue
        # another process writes to the file after the header was read
        changed, components = bytearray(data), bytearray(data)
        for _ in range(4):
            changed[int(rng.integers(0, len(data)))] = int(rng.integers(256))
        components[facts[0] - 10] = 255  # of the scan, where there were three
        other = (cut_jpegs.drawn(rng, 80, 330) + bytes(len(data)))[: len(data)]
        for now in (data, bytes(changed), bytes(components), other):
            wanted, found = g.of([0, *_part_of(rng, facts), 8]), g.of(np.zeros(6, int))
            kernels.cut_jpeg(g.bytes(now), facts, wanted, g.empty(len(now) + 64), found)


def _part_of(rng: Rng, facts: np.ndarray) -> list[int]:
    """First row, first column, end row and end column of a part, most often at the lower end."""
    found = []
    for side in facts[1:3].tolist():
        length = int(rng.integers(1, side + 1))
        start = side - length if rng.random() < 0.5 else int(rng.integers(0, side - length + 1))
        found.append((start, start + length))
    (top, bottom), (left, right) = found
    return [top, left, bottom, right]


@case()
def plan_jpegs(g: Guards, rng: Rng) -> None:
    held = [g.bytes(one) for one in jpegs(rng)]
    for some in (held, *([one] for one in held)):
        _plan(kernels.plan_jpegs, some, g, rng)


@case()
def add_restarts(g: Guards, rng: Rng) -> None:
    for data in jpegs(rng):
        room = len(data) + len(data) // 4 + 8192
        source, scratch = g.bytes(data), g.empty(len(data) + 1024)
        out, result = g.empty(room), g.empty(2, np.int64)
        where = address(source), len(data), address(scratch), address(out), room
        kernels.add_restarts(*where, result)


# -- augmentation --------------------------------------------------------------------------------


def _levels(function: Callable[..., None], *given: Any) -> Case:
    def changed(g: Guards, rng: Rng) -> None:
        function(noise(g, rng, *sizes(rng, 60, 60), int(rng.choice([1, 3]))), *given)

    return changed


CASES["autocontrast"] = _levels(functions.autocontrast)
CASES["equalize"] = _levels(functions.equalize)
CASES["sum_of_grey"] = _levels(functions.adjust_contrast, 0.3)
CASES["blend_level"] = _levels(functions.adjust_brightness, 1.3)
CASES["saturate"] = _levels(functions.adjust_saturation, 0.3)
CASES["turn_hue"] = _levels(functions.adjust_hue, 0.3)
CASES["sharpen"] = _levels(functions.adjust_sharpness, 2.0)


@case()
def blur(g: Guards, rng: Rng) -> None:
    high, wide = sizes(rng, 60, 60)
    reach = int(rng.integers(0, wide)), int(rng.integers(0, high))
    image = noise(g, rng, high, wide, int(rng.choice([1, 3])))
    functions.gaussian_blur(image, (2 * reach[0] + 1, 2 * reach[1] + 1), 1.5)


@case("affine_nearest", "warp")
def moved(name: str, g: Guards, rng: Rng) -> None:
    image = noise(g, rng, *sizes(rng, 60, 60), int(rng.choice([1, 3])))
    fill = [None, 7, (1,) * image.shape[2]][int(rng.integers(3))]
    way = "nearest" if name == "affine_nearest" else "bilinear"
    angle, move = rng.uniform(-180, 180), tuple(rng.uniform(-40, 40, 2).tolist())
    scale = float(rng.choice([0.01, 0.5, 1.0, 3.0, 1e9]))
    functions.affine(image, functions.Affine(angle, move, scale, (3.0, 5.0)), way, fill)
    corners = rng.uniform(-9, 70, (2, 4, 2)).tolist()
    coefficients = functions.perspective_coefficients(*corners)
    functions.perspective(image, coefficients, way if name == "warp" else "nearest", fill)


# -- records of LMDB -----------------------------------------------------------------------------


def damaged(g: Guards, rng: Rng, record: bytes) -> Any:
    """A record, as it was written, cut short, or with some of its bytes changed."""
    data = np.frombuffer(record, np.uint8).copy()
    for at in rng.integers(0, data.size, rng.integers(0, 4)):
        data[at] = rng.choice([0, 1, 0x7F, 0x80, 0xC4, 0xDB, 0xDD, 0xDF, 0xFF, rng.integers(256)])
    found = g.of(data[: rng.integers(0, data.size + 1)] if rng.random() < 0.3 else data)
    found.flags.writeable = False  # as mapped files are
    return found


@case("read_msgpack", "msgpack_fields")
def records_in_msgpack(name: str, g: Guards, rng: Rng) -> None:
    fields = {"x": rng.random(sizes(rng, 5, 9)).astype(np.float32), "label": np.int64(7)}
    form = int(rng.choice([tables.LISTED, tables.NAMED, tables.NESTED]))
    if form == tables.NESTED:
        record = (pyxis_sample, branch_sample)[rng.integers(2)](fields)
    else:
        values = {key: numpy_map(value) for key, value in fields.items()}
        listed = form == tables.LISTED
        record = msgpack.packb([*values.values()] if listed else values, use_bin_type=True)
    data, place = damaged(g, rng, record), g.of(np.full(4, -1))
    names = g.bytes(b"xlabel")
    names.flags.writeable = False
    ends = g.of(np.array([0, 1] if form == tables.LISTED else [0, 1, 6]))
    with contextlib.suppress(ValueError):  # what is damaged is refused
        if name == "msgpack_fields":
            kernels.msgpack_fields(data, 0, data.size, g.empty((256, 2), np.int64), place)
        else:
            table = g.empty((2, 1, tables.VALUE_COLUMNS), np.int64)
            where = g.of(np.zeros(1, np.int64)), g.of(np.array([data.size], np.uint32))
            kernels.read_msgpack(data, *where, 0, 1, names, ends, form, table, place)


@case()
def read_datums(g: Guards, rng: Rng) -> None:
    floats = rng.random(rng.integers(1, 9)) if rng.random() < 0.5 else None
    more: dict[str, Any] = {"floats": floats, "packed": bool(rng.integers(2))}
    data = damaged(g, rng, datum((3, 2, 5), rng.bytes(30), int(rng.integers(-9, 9)), **more))
    where = g.of(np.zeros(1, np.int64)), g.of(np.array([data.size], np.uint32))
    table = g.empty((1, tables.DATUM_COLUMNS), np.int64)
    with contextlib.suppress(ValueError):
        kernels.read_datums(data, *where, 0, 1, table, g.of(np.full(4, -1)))


# -- the tests -----------------------------------------------------------------------------------


def answer(request: list[Any]) -> None:
    """In the child: try a case."""
    name, end, trials = request
    for trial in range(trials):
        guards = Guards(end)
        guards.replace_allocators()
        CASES[name](guards, np.random.default_rng(trial))


@pytest.fixture(scope="module")
def child() -> Iterator[Watched]:
    """A process that tries cases."""
    with Watched(__file__, patience=None) as found:
        yield found


def test_every_kernel_has_a_case() -> None:
    """No kernel is left out."""
    pytest.importorskip("numba")
    from asyncreader.pixels import _compiled

    assert set(CASES) >= set(_compiled.KERNELS)


@pytest.mark.parametrize(
    "end",
    [pytest.param(True, id="behind"), pytest.param(False, id="before", marks=pytest.mark.slow)],
)
@pytest.mark.parametrize("name", CASES)
def test_kernels_stay_in_their_memory(name: str, end: bool, child: Watched, long: bool) -> None:
    """A kernel reads and writes no byte behind or before what it is given."""
    try:
        child.ask([name, end, 300 if long else 25])
    except Ended as exc:
        pytest.fail(f"{exc.how}: {exc.said}")


if __name__ == "__main__":
    answer_requests(answer)
