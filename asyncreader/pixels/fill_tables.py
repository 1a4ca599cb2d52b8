"""The tables of numbers that tell compiled code which rows to fill, and from where.

The kernels ``copy_batches``, ``transpose_batches``, ``affine_batches`` and ``affine_batches_half``
take the same tables and do the same work, but for what happens to a row on its way. All numbers are
int64; addresses are those of this process.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

import numpy as np

from ..system.array_types import Array, Int64, UInt64

#: Items of ``control``: batches claimed, batches published, and 1 to begin no other.
CLAIMED, PUBLISHED, STOPPED = range(3)

#: Items of a job, which is one batch, or some rows of one. COUNT: its rows. RECORDS: address of
#: their record numbers, which FILES locates; or OFFSETS: address of their addresses. TARGETS:
#: address of their row numbers in OUT, 0 for 0, 1, 2 ...; OUT, LABELS: addresses that are written
#: to. MARK: address of an int64 that becomes WHOLE behind the last row, or REFUSED if a checksum
#: differs; 0 for none. KEYS: address of a uint64 for each row, which its draws follow from; or
#: KEY, POSITION: that of row i is mix_rows(KEY, POSITION + i // WINDOW). WANTED: address of a byte
#: for each row, whether it is hashed, and FOUND: of uint64, where its XXH3-64 goes; 0 for both: the
#: checksums of the files are compared. A row of a record below 0 is zeros.
#: A batch of several fields has a job for each, side by side; MARK is that of the first.
COUNT, RECORDS, OFFSETS, TARGETS, OUT, LABELS, MARK, WHOLE, REFUSED = range(9)
KEY, POSITION, KEYS, WANTED, FOUND = range(9, 14)
JOB_ITEMS: Final = 14

#: Columns of a file: record numbers START to END - 1. Record r lies at BASE + the int64 at
#: STARTS + 8 (r - START), or without STARTS at BASE + (r - START) STRIDE. SUMS: address of the
#: checksums (uint64), LABEL_TABLE: of the labels; 0 for none. READ: the descriptor of a file that
#: rows are read from, BASE is an offset in it then; -1 where they lie in memory.
END, START, BASE, STRIDE, STARTS, SUMS, LABEL_TABLE, READ = range(8)
FILE_ITEMS: Final = 8

#: What all rows have in common. ROW_BYTES, OUT_BYTES: of a stored and of a written row; HEIGHT,
#: WIDTH, CHANNELS, ITEM: of a picture, ITEM bytes each value; PLANAR: it is written (C, H, W);
#: STREAM: rows are written past the caches; CHECK: see NEVER; SEEN: address of a byte for each
#: record of the set, 1 if its checksum has passed; LABEL_BYTES: of one sample. FIRST to LAST - 1:
#: the files that hold the rows; WINDOW: rows of a sample.
#: What follows from a row's key: MIRRORED: draw MIRROR_DRAW below 0.5 mirrors it. PADDING: with so
#: many pixels around it, draws 0 and 1 say which part of its own size is served; AROUND: what the
#: pixels are, by its number in geometry.PADDINGS. CHANCE to BROAD: float64, the items of an
#: Erasure, whose rectangle is painted over with the pixel at address PAINT; zeros for none.
ROW_BYTES, OUT_BYTES, HEIGHT, WIDTH, CHANNELS, ITEM, PLANAR = range(7)
STREAM, CHECK, SEEN, LABEL_BYTES = range(7, 11)
MIRRORED, PADDING, AROUND, CHANCE, LEAST, MOST, NARROW, BROAD, PAINT = range(11, 20)
FIRST, LAST, WINDOW = range(20, 23)
SIZE_ITEMS: Final = 23

#: Whether checksums are compared: never, those not SEEN, always.
NEVER, UNSEEN, ALWAYS = range(3)

#: The number of the draw that mirrors a picture (of a sample's key; see keyed_random.uniforms).
MIRROR_DRAW: Final = 63


class Erasure(NamedTuple):
    """A rectangle that is painted over, with chance ``chance``: its area is a part from ``least``
    to ``most`` of the picture, its height by its width exp(``narrow``) to exp(``broad``)."""

    chance: float = 0.0
    least: float = 0.0
    most: float = 0.0
    narrow: float = 0.0
    broad: float = 0.0


#: Tries to find a rectangle that is smaller than the picture.
ERASURE_TRIES: Final = 10

#: Keeps the draws of steps apart from those of crops and flips, which have the same key.
STEP_DRAWS: Final = 0x4452

#: Rows of fewer bytes are hashed in Python: XXH3 takes up to 240 bytes in other ways.
LEAST_HASHED: Final = 241


#: Columns of a table of numbers, a line for each run of them in an element of a row. OFFSET: bytes
#: from the element's start; SIZE, KIND: bytes of a number, and numpy's letter of its kind;
#: SWAPPED: whether its bytes are in the other order; COUNT: numbers that follow each other;
#: COPIED: they are served as they are.
RUN_OFFSET, RUN_SIZE, RUN_KIND, RUN_SWAPPED, RUN_COUNT, RUN_COPIED = range(6)
RUN_ITEMS: Final = 6

#: Numbers that are planned of a picture: the address of its first pixel, its height and width, 1
#: to mirror it, the address of its row. Of a JPEG also the address of its bytes, or -1 less where
#: they begin in the memory for what is cut out; how many they are, 0 where nothing is planned; and
#: the least height and width to be asked of the decoder, 0 where it decodes in full size.
PLAN: Final = 9

#: Numbers that jpeg_header says.
JPEG_FACTS: Final = 12

#: Bytes before the planes of a picture that is stored as 4:2:0 planes.
PLANES_HEADER: Final = 16


class Descriptor(Protocol):
    """A file that is open as long as this object lives."""

    fd: int


#: Of rows that lie at even distances.
NO_STARTS: Final = np.empty(0, np.int64)


class RowsInMemory(NamedTuple):
    """Where ``samples`` rows lie: at ``address + starts[r]``, or ``address + first + r * stride``.

    ``ends``: they lie in runs, and end in sequence there; ``starts`` has the first row of each.
    ``checksums``: their XXH3-64, None for none; ``file``: what they are read from, ``address`` is
    an offset in it then; None where they lie in memory. ``owner``: keeps that memory.
    """

    samples: int
    address: int
    starts: Int64
    first: int
    stride: int
    checksums: UInt64 | None = None
    file: Descriptor | None = None
    owner: object = None
    ends: Int64 | None = None


def file_table(files: Sequence[RowsInMemory], labels: Sequence[Array]) -> Int64:
    """The table of files that hold a set together.

    ``labels``: of all samples in sequence, (n, ...) each, C-contiguous; none without labels. Each
    is of one file or of several.
    """
    parts = [np.zeros((1 if f.ends is None else f.ends.size, FILE_ITEMS), np.int64) for f in files]
    end, taken, left = 0, 0, list(labels)
    for lines, one in zip(parts, files, strict=True):
        ends = np.array([one.samples]) if one.ends is None else one.ends
        before = np.concatenate((np.zeros(1, np.int64), ends[:-1]))
        lines[:, START], lines[:, END], end = end + before, end + ends, end + one.samples
        lines[:, BASE], lines[:, STRIDE] = one.address, one.stride
        if one.ends is not None:
            lines[:, BASE] += one.starts
        elif one.starts.size:
            lines[:, STARTS] = one.starts.ctypes.data
        else:
            lines[:, BASE] += one.first
        lines[:, READ] = -1 if one.file is None else one.file.fd
        if one.checksums is not None:
            lines[:, SUMS] = one.checksums.ctypes.data + before * 8
        if left:
            size = left[0].strides[0]
            lines[:, LABEL_TABLE] = left[0].ctypes.data + (taken + before) * size
            taken += one.samples
            if taken == left[0].shape[0]:
                taken, left = 0, left[1:]
    return np.concatenate(parts)
