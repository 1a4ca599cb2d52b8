"""The columns of the tables into which compiled code reads the records of LMDB datasets."""

from __future__ import annotations

from typing import Final

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
