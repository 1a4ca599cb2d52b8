"""Kernels that read the records of LMDB datasets: values in msgpack, and Caffe's Datums.

msgpack: https://github.com/msgpack/msgpack/blob/master/spec.md; a Datum is a protobuf message:
https://protobuf.dev/programming-guides/encoding/. Nothing in a record is trusted: every length that
it states is compared with its end before it is used. What is refused is a ValueError with the words
for the user, ``{}`` the name of the field; ``place`` says where it is (tables.RECORD ...).
"""

from __future__ import annotations

import numpy as np
from numba import types

from .. import tables as col
from .base import bytes_type, inner, kernel, offsets_type

_sizes = types.uint32[::1]

# -- msgpack -------------------------------------------------------------------------------------

_NIL, _BOOL, _INT, _FLOAT, _STR, _BIN, _ARRAY, _MAP, _EXT, _BAD = range(10)
#: Of the first bytes from 0xC0 to 0xDF: what they begin, and the bytes of the number after them.
_KINDS = np.array(
    [_NIL, _BAD, _BOOL, _BOOL, _BIN, _BIN, _BIN, _EXT, _EXT, _EXT, _FLOAT, _FLOAT]
    + [_INT] * 8
    + [_EXT] * 5
    + [_STR] * 3
    + [_ARRAY, _ARRAY, _MAP, _MAP]
)
_WIDTHS = np.array(
    [0] * 4 + [1, 2, 4] * 2 + [4, 8] + [1, 2, 4, 8] * 2 + [0] * 5 + [1, 2, 4, 2, 4, 2, 4]
)
#: Items of a nested value that are stepped over, and fields of a record.
_ITEMS = 4096
_FIELDS = 256
#: The parts of an array: ml-pyxis writes the first four, msgpack_numpy all but dtype.
_PARTS = np.frombuffer(b"typedtypeshapedatandkind", np.uint8)
_PART_ENDS = np.array([0, 4, 9, 14, 18, 20, 24])
_TYPE, _DTYPE, _SHAPE, _DATA, _ND, _KIND = range(6)


@inner
def _big_endian(data, at, size):
    number = np.int64(0)
    for k in range(size):
        number = number << 8 | np.int64(data[at + k])
    return number


@inner
def _head(data, at, end):
    """What value stands at ``at``: its kind, its number (a length in bytes, a count of items, a
    float's bits), where its bytes begin and where they end (items are not counted)."""
    if at >= end:
        raise ValueError("its msgpack is cut short or damaged")
    first = np.int64(data[at])
    kind, width = np.int64(_INT), np.int64(0)
    if 0xC0 <= first < 0xE0:
        kind, width = _KINDS[first - 0xC0], _WIDTHS[first - 0xC0]
    start = at + 1 + width
    if kind == _BAD or start > end:
        raise ValueError("its msgpack is cut short or damaged")
    if first < 0x80:
        number = first
    elif first < 0x90:
        kind, number = np.int64(_MAP), first - 0x80
    elif first < 0xA0:
        kind, number = np.int64(_ARRAY), first - 0x90
    elif first < 0xC0:
        kind, number = np.int64(_STR), first - 0xA0
    elif first >= 0xE0:
        number = first - 0x100
    elif kind == _BOOL:
        number = first - 0xC2
    elif kind == _EXT and width == 0:
        number = np.int64(1) << (first - 0xD4)
    else:
        number = _big_endian(data, at + 1, width)
        if first >= 0xD0 and kind == _INT:
            number = number << (64 - 8 * width) >> (64 - 8 * width)
        elif kind == _INT and number < 0:  # whole numbers above int64 are of no use here
            raise ValueError("its msgpack is cut short or damaged")
    length = np.int64(0)
    if kind in (_STR, _BIN):
        length = number
    elif kind == _EXT:
        length = number + 1
    if length > end - start:
        raise ValueError("its msgpack is cut short or damaged")
    return kind, number, start, start + length


@inner
def _skip(data, at, end):
    """Where the value at ``at`` ends, whatever is nested in it."""
    left = np.int64(1)
    for _ in range(_ITEMS):
        kind, number, _, at = _head(data, at, end)
        left -= 1
        if kind == _ARRAY:
            left += number
        elif kind == _MAP:
            left += 2 * number
        if left > end - at:  # an item takes a byte at least
            raise ValueError("its msgpack is cut short or damaged")
        if left == 0:
            return at
    raise ValueError("its msgpack has too many nested values")


@inner
def _fields(data, at, end):
    """Whether a list or a map of fields stands at ``at``, how many it has, and where they begin."""
    kind, count, start, _ = _head(data, at, end)
    if (kind != _ARRAY and kind != _MAP) or count > _FIELDS:
        raise ValueError("not a msgpack list or map of some fields")
    return kind, count, start


@inner
def _name(data, at, end):
    """Where the name at ``at`` begins and ends. Writers under Python 2 made no difference between
    text and bytes."""
    kind, _, start, stop = _head(data, at, end)
    if kind != _STR and kind != _BIN:
        raise ValueError("a msgpack map with a key that is no name")
    return start, stop


@inner
def _is(data, start, stop, names, low, high):
    """Whether the bytes from ``start`` to ``stop`` are those of ``names`` from ``low`` to
    ``high``."""
    k = 0
    while k < high - low and start + k < stop and data[start + k] == names[low + k]:
        k += 1
    return k == high - low == stop - start


@inner
def _find(data, at, end, names, ends, found):
    """Set ``found`` to where the values of ``names`` in the map at ``at`` are, or in a list the
    items with the numbers ``ends``; -1 for none. Returns where the map or list ends. Name k is the
    bytes from ``ends[k]`` to ``ends[k + 1]``."""
    kind, count, at = _fields(data, at, end)
    found[:] = -1
    for number in range(count):
        start = stop = at
        if kind == _MAP:
            start, stop = _name(data, at, end)
        for k in range(found.size):
            if kind == _ARRAY:
                named = ends[k] == number
            else:
                named = _is(data, start, stop, names, ends[k], ends[k + 1])
            if named:
                found[k] = stop
        at = _skip(data, stop, end)
    return at


@inner
def _type_string(data, at, end, place):
    """The dtype that stands at ``at``, as a number made of its bytes, and the bytes of an item:
    plain numbers of at most 64 bits."""
    kind, size, start, _ = _head(data, at, end)
    if kind != _STR and kind != _BIN:
        raise ValueError("an array whose dtype is no text")
    text, width = np.int64(0), np.int64(0)
    known = size == 3
    for k in range(min(size, 4)):
        text |= np.int64(data[start + k]) << (8 * k)
    if size == 3:
        order, letter, width = data[start], data[start + 1], np.int64(data[start + 2]) - 0x30
        known = width in (1, 2, 4, 8) and order in (0x3C, 0x3E, 0x7C, 0x3D)  # < > | =
        if letter == 0x62:  # b
            known = known and width == 1
        elif letter == 0x66:  # f
            known = known and width > 1
        else:
            known = known and letter in (0x75, 0x69)  # u, i
    if not known:
        place[col.FOUND], place[col.FOUND_BYTES] = start, min(size, 4)
        raise ValueError("an array that does not hold plain numbers")
    return text, width


@inner
def _read_shape(data, at, end, row):
    kind, rank, at, _ = _head(data, at, end)
    if kind != _ARRAY or rank > col.AXES:
        raise ValueError("an array whose shape is no list of at most 6 numbers")
    row[col.RANK] = rank
    for axis in range(rank):
        kind, side, _, at = _head(data, at, end)
        if kind != _INT or side < 0:
            raise ValueError("an array with a side that is no number")
        row[col.SHAPE + axis] = side


@inner
def _size_fits(row, width):
    """Whether an array has as many bytes as its shape and items of ``width`` bytes need."""
    left, rest, empty = row[col.SIZE] // width, row[col.SIZE] % width, False
    for axis in range(col.AXES):
        side = row[col.SHAPE + axis]
        if side == 0:
            empty = True
        elif rest == 0:  # divided, not multiplied: a hostile shape would overflow
            left, rest = left // side, left % side
    return row[col.SIZE] == 0 if empty else rest == 0 and left == 1


@inner
def _read_array(data, at, end, parts, row, place):
    """Note the array that is the map at ``at``, as ml-pyxis ({type, dtype, shape, data}) or
    msgpack_numpy ({nd, type, kind, shape, data}) wrote it."""
    _find(data, at, end, _PARTS, _PART_ENDS, parts)
    if parts[_TYPE] < 0 or parts[_DATA] < 0:
        raise ValueError("a map that is no array: it lacks type or data")
    kind, number, _, _ = _head(data, parts[_TYPE], end)
    pyxis = kind == _INT
    kind, _, row[col.START], stop = _head(data, parts[_DATA], end)
    row[col.SIZE] = stop - row[col.START]
    if kind != _STR and kind != _BIN:
        raise ValueError("an array whose data are no bytes")
    if pyxis and number == 1:  # text, as {type: 1, data: text}
        row[col.FORM] = col.TEXT
        return
    row[col.FORM] = col.ARRAYS
    dtype = parts[_DTYPE] if pyxis else parts[_TYPE]
    if dtype < 0:
        raise ValueError("an array without a dtype")
    if parts[_KIND] >= 0:  # b"" plain, b"V" structured, b"O" a pickle of objects
        kind, number, _, _ = _head(data, parts[_KIND], end)
        if (kind != _STR and kind != _BIN) or number != 0:
            raise ValueError("an array of structures or of Python objects, which is not read")
    row[col.DTYPE], width = _type_string(data, dtype, end, place)
    scalar = False
    if not pyxis and parts[_ND] >= 0:
        kind, number, _, _ = _head(data, parts[_ND], end)
        scalar = kind == _BOOL and number == 0
    if not scalar:
        if parts[_SHAPE] < 0:
            raise ValueError("an array without a shape")
        _read_shape(data, parts[_SHAPE], end, row)
    if not _size_fits(row, width):
        place[col.FOUND] = row[col.SIZE]
        raise ValueError("an array has not the size that its shape needs")


@inner
def _read_value(data, at, end, parts, row, place):
    """Note what stands at ``at`` in ``row``."""
    kind, number, start, stop = _head(data, at, end)
    if kind == _ARRAY and number == 1:
        # DataLoader makes a list of one of everything that folder2lmdb writes
        at = start
        kind, number, start, stop = _head(data, at, end)
    row[: col.SHAPE], row[col.SHAPE :] = 0, 1
    row[col.START], row[col.SIZE], row[col.NUMBER] = start, stop - start, number
    if kind == _BIN:
        row[col.FORM] = col.BINARY
    elif kind == _STR:
        row[col.FORM] = col.TEXT
    elif kind in (_INT, _BOOL):
        row[col.FORM] = col.WHOLE
    elif kind == _FLOAT:
        row[col.FORM], row[col.SIZE] = col.REAL, start - at - 1
    elif kind == _MAP:
        _read_array(data, at, end, parts, row, place)
    else:
        raise ValueError("a value that is neither array, bytes, text nor number")


@kernel(
    *(bytes_type, offsets_type, _sizes, types.int64, types.int64, bytes_type, offsets_type),
    *(types.int64, types.int64[:, :, ::1], offsets_type),
)
def read_msgpack(data, starts, sizes, low, high, names, ends, form, values, place):
    """Read fields of the records ``low`` to ``high`` into ``values`` (fields, records, columns).

    Record i is ``sizes[i]`` bytes of ``data`` from ``starts[i]`` on, and inside it. ``names``,
    ``ends``: see _find; ``form``: how the fields are kept.
    """
    fields = values.shape[0]
    found, parts = np.empty(fields, np.int64), np.empty(_PART_ENDS.size - 1, np.int64)
    for i in range(low, high):
        place[col.RECORD] = i
        at, end = starts[i], starts[i] + np.int64(sizes[i])
        kind, _, _ = _fields(data, at, end)
        if (form == col.LISTED) != (kind == _ARRAY):
            if form == col.NESTED:
                raise ValueError("a msgpack map with a key that is no name")
            raise ValueError("a sample of another kind than the first")
        if _find(data, at, end, names, ends, found) != end:
            raise ValueError("bytes behind its msgpack")
        for k in range(fields):
            place[col.FIELD], at, stop = k, found[k], end
            if at < 0:
                raise ValueError("a sample without {}")
            if form == col.NESTED:
                kind, _, at, stop = _head(data, at, end)
                if kind != _STR and kind != _BIN:
                    raise ValueError("{} is no msgpack in bytes")
                if _skip(data, at, stop) != stop:
                    raise ValueError("bytes behind the msgpack of {}")
            _read_value(data, at, stop, parts, values[k, i], place)


@kernel(bytes_type, types.int64, types.int64, types.int64[:, ::1], offsets_type)
def msgpack_fields(data, at, end, fields, place):
    """Where the names of the map at ``at`` begin and end, or the items of a list: a line of
    ``fields`` (256, 2) each."""
    place[col.RECORD] = 0
    kind, count, at = _fields(data, at, end)
    for k in range(count):
        start, stop = at, _skip(data, at, end)
        at = stop
        if kind == _MAP:
            start, stop = _name(data, start, end)
            at = _skip(data, stop, end)
        fields[k, 0], fields[k, 1] = start, stop


# -- Datums --------------------------------------------------------------------------------------

#: Fields of a message that are looked at; a Datum has seven.
_MOST = 64
_N_CHANNELS, _N_HEIGHT, _N_WIDTH, _N_DATA, _N_LABEL, _N_FLOATS, _N_ENCODED = range(1, 8)
#: The columns of those that are numbers.
_NUMBERS = np.array([-1, col.CHANNELS, col.HEIGHT, col.WIDTH, -1, col.LABEL, -1, col.ENCODED])
#: Wire types: varint, 64 bits, a length and bytes, 32 bits.
_VARINT, _EIGHT, _BYTES, _FOUR = 0, 1, 2, 5
#: The tag of one float of an unpacked float_data.
_FLOAT_TAG = _N_FLOATS << 3 | _FOUR


@inner
def _varint(data, at, end):
    """The varint at ``at`` (modulo 2^64, as int64), and where it ends."""
    value = np.int64(0)
    for k in range(min(end - at, 10)):
        byte = np.int64(data[at + k])
        value |= (byte & 0x7F) << (7 * k)
        if byte < 0x80:
            return value, at + k + 1
    raise ValueError("its protobuf is cut short or damaged")


@inner
def _note_number(field, value, row):
    # int32 fields: negative ones are written as 64 bits, and readers keep the low 32
    number = value << 32 >> 32
    if field == _N_DATA:
        raise ValueError("data of a Datum is of another wire type")
    if field == _N_FLOATS:
        raise ValueError("float_data of a Datum is of another wire type")
    if field == _N_LABEL:
        row[col.HAS_LABEL] = 1
    elif field == _N_ENCODED:
        number = np.int64(value != 0)
    if field <= _N_ENCODED:
        row[_NUMBERS[field]] = number


@inner
def _note_floats(start, count, step, row):
    if row[col.FLOAT_COUNT] > 0:
        raise ValueError("float_data of a Datum is split into several pieces")
    row[col.FLOATS], row[col.FLOAT_COUNT], row[col.FLOAT_STEP] = start, count, step


@inner
def _read_bytes(data, at, end, field, row, place):
    """Note a length and bytes: data, or packed floats; returns where they end."""
    size, at = _varint(data, at, end)
    if size < 0 or size > end - at:
        place[col.FOUND] = size
        raise ValueError("its protobuf states more bytes than there are")
    if field == _N_DATA:
        row[col.DATA], row[col.DATA_SIZE] = at, size
    elif field == _N_FLOATS:
        if size % 4 != 0:
            place[col.FOUND] = size
            raise ValueError("float_data of a Datum is not whole floats")
        _note_floats(at, size // 4, 4, row)
    return at + size


@inner
def _read_fixed(data, at, end, field, size, row):
    """Note ``size`` bytes: the first of a run of floats, each after its own tag; returns where they
    end."""
    stop = at + size
    if stop > end:
        raise ValueError("its protobuf is cut short or damaged")
    if field == _N_DATA:
        raise ValueError("data of a Datum is of another wire type")
    if field == _N_FLOATS:
        if size != 4:
            raise ValueError("float_data of a Datum is of another wire type")
        count = np.int64(1)
        while end - stop >= 5 and data[stop] == _FLOAT_TAG:
            stop, count = stop + 5, count + 1
        _note_floats(at, count, 5, row)
    return stop


@inner
def _read_datum(data, at, end, row, place):
    row[:] = -1
    for _ in range(_MOST):
        if at == end:
            return
        tag, at = _varint(data, at, end)
        field, wire = tag >> 3 & 0x1FFFFFFFFFFFFFFF, tag & 7
        if field == 0:
            raise ValueError("its protobuf has a field without a number")
        number = field <= _N_ENCODED and field != _N_DATA and field != _N_FLOATS
        if number and wire != _VARINT:
            raise ValueError("a number of a Datum is of another wire type")
        if wire == _VARINT:
            value, at = _varint(data, at, end)
            _note_number(field, value, row)
        elif wire == _BYTES:
            at = _read_bytes(data, at, end, field, row, place)
        elif wire in (_FOUR, _EIGHT):
            at = _read_fixed(data, at, end, field, 4 if wire == _FOUR else 8, row)
        else:
            raise ValueError("its protobuf is damaged")
    if at != end:
        raise ValueError("its protobuf has too many fields")


@kernel(
    bytes_type, offsets_type, _sizes, types.int64, types.int64, types.int64[:, ::1], offsets_type
)
def read_datums(data, starts, sizes, low, high, datums, place):
    """Read the records ``low`` to ``high``, which are Caffe's Datums, into lines of ``datums``.

    Record i is ``sizes[i]`` bytes of ``data`` from ``starts[i]`` on, and inside it.
    """
    for i in range(low, high):
        place[col.RECORD] = i
        end = starts[i] + np.int64(sizes[i])
        _read_datum(data, starts[i], end, datums[i], place)
