"""The tables of numbers that Python and compiled code hand each other: which rows to fill and from
where, what is planned of images, what the records of LMDB datasets hold.

The kernels ``copy_batches``, ``transpose_batches``, ``affine_batches`` and ``affine_batches_half``
take the same tables and do the same work, but for what happens to a row on its way. A table is an
array of one of the records here; addresses are those of this process. To kernels a table is handed
as int64 (:func:`numbers`): numba would take longer to tell what an array of records is.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, Final, NamedTuple, Protocol

import numpy as np

from ..system.array_types import Array, Int64, UInt64
from ..system.memory import address_of

#: Items of ``control``: batches claimed, batches published, and 1 to begin no other.
CLAIMED, PUBLISHED, STOPPED = range(3)


def _record(*names: str, floats: tuple[str, ...] = ()) -> np.dtype[Any]:
    """A record of int64 numbers; ``floats``: those that are float64."""
    return np.dtype([(name, np.float64 if name in floats else np.int64) for name in names])


def numbers(table: Array) -> Int64:
    """An array of records as kernels take it: int64 (n, numbers of a record)."""
    found: Int64 = table.view(np.int64).reshape(len(table), table.dtype.itemsize // 8)
    return found


#: A job, which is one batch, or some rows of one. ``count``: its rows. ``records``: address of
#: their record numbers, which the files locate; or ``offsets``: address of their addresses.
#: ``targets``: address of their row numbers in ``out``, 0 for 0, 1, 2 ...; ``out``, ``labels``:
#: addresses that are written to. ``mark``: address of an int64 that becomes ``whole`` after the
#: last row, or ``refused`` if a checksum differs; 0 for none. ``keys``: address of a uint64 for
#: each row, which its draws follow from; or ``key``, ``position``: that of row i is
#: mix_rows(key, position + i // window). ``wanted``: address of a byte for each row, whether it is
#: hashed, and ``hashes``: of uint64, where its XXH3-64 goes; 0 for both: the checksums of the files
#: are compared. A row of a record below 0 is zeros.
#: A batch of several fields has a job for each, side by side; ``mark`` is that of the first.
JOB: Final = _record(
    *("count", "records", "key", "position"),
    *("out", "labels"),
    *("offsets", "targets", "keys", "wanted", "hashes"),
    *("mark", "whole", "refused"),
)

#: A file: record numbers ``start`` to ``end`` - 1. Record r lies at ``base`` + the int64 at
#: ``starts`` + 8 (r - ``start``), or without ``starts`` at ``base`` + (r - ``start``) ``stride``.
#: ``sums``: address of the checksums (uint64), ``labels``: of the labels; 0 for none. ``read``: the
#: descriptor of a file that rows are read from, ``base`` is an offset in it then; -1 where they lie
#: in memory.
FILE: Final = _record("end", "start", "base", "stride", "starts", "sums", "labels", "read")

#: What all rows have in common. ``row_bytes``, ``out_bytes``: of a stored and of a written row;
#: ``height``, ``width``, ``channels``, ``item``: of an image, ``item`` bytes each value;
#: ``planar``: it is written (C, H, W); ``stream``: rows are written past the caches; ``check``: see
#: NEVER; ``seen``: address of a byte for each record of the set, 1 if its checksum has passed;
#: ``label_bytes``: of one sample. ``first`` to ``last`` - 1: the files that hold the rows;
#: ``window``: rows of a sample.
#: What follows from a row's key: ``mirrored``: draw MIRROR_DRAW below 0.5 mirrors it. ``padding``:
#: with so many pixels around it, draws 0 and 1 say which part of its own size is served;
#: ``around``: what the pixels are, by its number in geometry.PADDINGS. ``chance`` to ``broad``: the
#: items of an Erasure, whose rectangle is painted over with the pixel at address ``paint``; zeros
#: for none.
ROWS: Final = _record(
    *("row_bytes", "out_bytes", "height", "width", "channels", "item", "planar"),
    *("stream", "check", "seen", "label_bytes", "mirrored", "padding", "around"),
    *("chance", "least", "most", "narrow", "broad", "paint", "first", "last", "window"),
    floats=("chance", "least", "most", "narrow", "broad"),
)

#: Whether checksums are compared: never, those not seen, always.
NEVER, UNSEEN, ALWAYS = range(3)

#: The number of the draw that mirrors an image (of a sample's key; see keyed_random.uniforms).
MIRROR_DRAW: Final = 63


class Erasure(NamedTuple):
    """A rectangle that is painted over, with chance ``chance``: its area is a part from ``least``
    to ``most`` of the image, its height by its width exp(``narrow``) to exp(``broad``)."""

    chance: float = 0.0
    least: float = 0.0
    most: float = 0.0
    narrow: float = 0.0
    broad: float = 0.0


#: Keeps the draws of steps apart from those of crops and flips, which have the same key.
STEP_DRAWS: Final = 0x4452

#: A run of numbers in an element of a row. ``offset``: bytes from the element's start; ``size``,
#: ``kind``: bytes of a number, and numpy's letter of its kind; ``swapped``: whether its bytes are
#: in the other order; ``count``: numbers that follow each other; ``copied``: they are served as
#: they are.
RUN: Final = _record("offset", "size", "kind", "swapped", "count", "copied")

#: What is planned of an image: the address of its first pixel (``source``), its height and width,
#: 1 to mirror it, and the address of its row (``target``). Of a JPEG also the address of its bytes
#: (``data``), or -1 less where they begin in the memory for what is cut out; how many they are
#: (``size``), 0 where nothing is planned; and the least height and width to be asked of the
#: decoder, 0 where it decodes in full size.
PLAN: Final = _record(
    *("source", "height", "width", "mirrored", "target"),
    *("data", "size", "low_height", "low_width"),
)

#: What the header of a plain JPEG says. ``scan``: where its scan begins, 0 for another file;
#: ``height``, ``width``: as stored; ``marked``: whether it has APP1 segments; ``rows``,
#: ``columns``: of segments between restart markers, 0 where it cannot be cut at them; ``tall``,
#: ``broad``: pixels of such a segment; ``down``, ``across``: how many pixels one of the chroma
#: channels stands for; ``interval``: the restart interval; ``mcus``: MCUs of the image.
FACTS: Final = _record(
    *("scan", "height", "width", "marked", "rows", "columns", "tall", "broad"),
    *("down", "across", "interval", "mcus"),
)

#: A part of an image: its first and its end row and column; ``eighths``: of its size at which the
#: image is decoded; ``size``: bytes of a JPEG that shows the part, 0 for none.
PART: Final = _record("size", "top", "left", "bottom", "right", "eighths")

#: Bytes before the planes of an image that is stored as 4:2:0 planes.
PLANES_HEADER: Final = 16


class Jobs:
    """Jobs of batches, side by side; each call writes some numbers of one of them, a microsecond
    sooner than by their names. ``table``: records of JOB, as kernels take them."""

    _RECORDS, _MEMORY, _PLACES, _MARK = (struct.Struct(f"{n}q") for n in (4, 2, 5, 3))

    def __init__(self, count: int) -> None:
        self.table: Int64 = np.zeros((count, JOB.itemsize // 8), np.int64)
        self._bytes = self.table.data

    def records(self, job: int, records: Int64, key: int = 0, position: int = 0) -> None:
        """Which records the rows of a job are, and what their keys follow from."""
        given = records.size, address_of(records), key, position
        self._RECORDS.pack_into(self._bytes, job * JOB.itemsize, *given)

    def memory(self, job: int, out: int, labels: int) -> None:
        """Where the rows of a job and their labels are written to."""
        self._MEMORY.pack_into(self._bytes, job * JOB.itemsize + 32, out, labels)

    def places(self, job: int, count: int, *places: int) -> None:
        """Rows at addresses: see ``offsets`` to ``hashes`` of JOB."""
        self._RECORDS.pack_into(self._bytes, job * JOB.itemsize, count, 0, 0, 0)
        self._PLACES.pack_into(self._bytes, job * JOB.itemsize + 48, *places)

    def mark(self, job: int, address: int, whole: int, refused: int) -> None:
        """What is written where when a batch is whole, or refused."""
        self._MARK.pack_into(self._bytes, job * JOB.itemsize + 88, address, whole, refused)


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
    parts = [np.zeros(1 if f.ends is None else f.ends.size, FILE) for f in files]
    end, taken, left = 0, 0, list(labels)
    for lines, one in zip(parts, files, strict=True):
        ends = np.array([one.samples]) if one.ends is None else one.ends
        before = np.concatenate((np.zeros(1, np.int64), ends[:-1]))
        lines["start"], lines["end"], end = end + before, end + ends, end + one.samples
        lines["base"], lines["stride"] = one.address, one.stride
        if one.ends is not None:
            lines["base"] += one.starts
        elif one.starts.size:
            lines["starts"] = one.starts.ctypes.data
        else:
            lines["base"] += one.first
        lines["read"] = -1 if one.file is None else one.file.fd
        if one.checksums is not None:
            lines["sums"] = one.checksums.ctypes.data + before * 8
        if left:
            size = left[0].strides[0]
            lines["labels"] = left[0].ctypes.data + (taken + before) * size
            taken += one.samples
            if taken == left[0].shape[0]:
                taken, left = 0, left[1:]
    return numbers(np.concatenate(parts))


# -- records of LMDB datasets ----------------------------------------------------------------------

#: What a call says of the record that it refuses: its number, the number of the field, and what was
#: found: a number, or where the bytes are and how many (0: it is a number).
RECORD, FIELD, FOUND, FOUND_BYTES = range(4)

#: How the fields of a record are kept in msgpack: values in a list, values under the names of a
#: map, and msgpack inside bytes under the names of a map (ml-pyxis).
LISTED, NAMED, NESTED = range(3)
#: What a value in msgpack is: an array, bytes or text of any length, a whole number, a float.
ARRAYS, BINARY, TEXT, WHOLE, REAL = range(1, 6)
#: Axes that an array may have.
AXES: Final = 6
#: A value in msgpack: what it is, an array's dtype (four bytes of text) and number of axes, where
#: its bytes are, the number (of a float its bits, and how many bytes of them), and an array's
#: shape, 1 for the axes that it does not have.
FORM, DTYPE, RANK, START, SIZE, NUMBER, SHAPE = range(7)
VALUE_COLUMNS: Final = SHAPE + AXES

#: A Datum of Caffe, -1 for what it does not state: its sides, its label and whether it has one,
#: whether it is an image file, where its bytes are and how many, where its floats are, how many,
#: and the bytes from one to the next (4 packed, 5 with a tag before each).
CHANNELS, HEIGHT, WIDTH, LABEL, HAS_LABEL, ENCODED = range(6)
DATA, DATA_SIZE, FLOATS, FLOAT_COUNT, FLOAT_STEP = range(6, 11)
DATUM_COLUMNS: Final = 11
