"""numpy's .npy files: an array in one file, its first axis the samples."""

from __future__ import annotations

import ast
import math
import struct
from functools import partial
from typing import Any, Final

import numpy as np

from ...errors import FormatError, ParamsError
from ...formats import packed as fmt
from ..arrays import FileRows, FlatVolumes, cut_volumes, flat, of_volumes
from ..base import FieldIndex, SetFacts, Storage, default_block
from ..bytestore import OpenFile
from ..extents import Extents
from ..fields import SetIndex, index_set
from ..request import Request, no_field, stored_samples

#: The first bytes (numpy.lib.format); ``info`` calls such a file by the name.
MAGIC: Final = b"\x93NUMPY"
NAME: Final = "numpy array (.npy)"

#: The longest header that is read. numpy pads headers to 64 bytes.
_MOST: Final = 1 << 16


def index_npy(file: OpenFile, fields: Request) -> SetIndex:
    """The index of a .npy file's array. FormatError if it is damaged or holds no plain numbers."""
    return index_set(fields, partial(_index, file))


def _index(file: OpenFile, fields: Request) -> SetIndex:
    if fields.data != fmt.DATA:
        raise no_field(fields.data, [fmt.DATA])
    if fields.labels is not None and fields.labels_required:
        raise ParamsError(
            "a .npy file has no labels",
            hint=f"write data=np.load({file.path!r}, mmap_mode='r'), labels=np.load(...)",
        )
    shape, dtype, start = _header(file)
    storage: Storage
    volumes, block = None, 1
    if fields.cut is not None:
        volumes, stored = cut_volumes(shape, dtype, fields, file.path)
        storage, count = FlatVolumes(start, volumes), volumes.volumes.count
    else:
        shape = shape if fields.lead else (1, *shape)
        axis, stored = stored_samples(shape, dtype, fields, file.path)
        size, count = stored.row_bytes, shape[axis]
        storage, block = FileRows(start, shape, dtype, axis), default_block(size)
        if axis == 0:
            storage = Extents((start, size), size)
    field = FieldIndex(stored, storage, file.where, block=block)
    index = SetIndex(SetFacts.of(file, "NPY", NAME, count), {fields.data: field})
    return index if volumes is None else of_volumes(index, volumes)


def _header(file: OpenFile) -> tuple[tuple[int, ...], np.dtype[Any], int]:
    """Shape, dtype, and where the numbers begin. Nothing in it is trusted."""
    head = bytes(file.mapped.bytes[:_MOST])
    try:
        long = head[6] > 1  # the version: 1 states the header's length in 16 bits, 2 and 3 in 32
        (length,) = struct.unpack_from("<I" if long else "<H", head, 8)
        start = (12 if long else 10) + length
        said = ast.literal_eval(head[start - length : start].decode("utf-8" if long else "latin-1"))
        shape, fortran = said["shape"], said["fortran_order"]
        dtype = np.lib.format.descr_to_dtype(said["descr"])
        good = head[6] in (1, 2, 3) and start <= len(head) and type(fortran) is bool
        good = good and type(shape) is tuple and all(type(n) is int and n >= 0 for n in shape)
    except Exception as exc:  # whatever a damaged text makes of a parser
        raise _damaged(file, f"a header that cannot be read ({type(exc).__name__})") from exc
    if not good:
        raise _damaged(file, "a header that cannot be read")
    dtype = flat(dtype, FormatError)
    plain = dtype.kind in "buif" and dtype.itemsize <= 8 and not dtype.shape
    if not plain and dtype.names is None:
        raise FormatError(
            "the array does not hold plain numbers",
            found=f"dtype {dtype}",
            expected="integers or floats of at most 64 bits",
        )
    if not shape or 0 in shape:
        raise FormatError("the array has no samples", found=f"shape {shape}")
    if start + math.prod(shape) * dtype.itemsize > file.size:
        raise _damaged(file, f"{file.size} bytes for an array of shape {shape}, {dtype}")
    if fortran and len(shape) > 1:
        raise FormatError(
            "the array lies in the file column by column (Fortran's order)",
            hint=f"write np.save({file.path!r}, np.ascontiguousarray(np.load({file.path!r})))",
        )
    return shape, dtype, start


def _damaged(file: OpenFile, found: str) -> FormatError:
    return FormatError("not a whole .npy file", found=found, hint="copy it again, or save it again")
