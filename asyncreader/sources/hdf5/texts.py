"""Data sets of variable length: their elements as the file stores them, and all texts of one."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ...errors import SourceError, located
from ...system.array_types import UInt8
from ...system.late import h5py
from ..base import check_extents
from ..bytestore import ByteFile
from .filters import check_filters, decode_chunk, remedy
from .stored import Stored
from .vlen import ELEMENT, heap_extents


def is_text(data: Stored) -> bool:
    """Whether a data set holds texts, of fixed or of variable length."""
    return data.dtype.kind in "SO" and h5py.check_string_dtype(data.dtype) is not None


def texts_of(data: Stored, file: ByteFile) -> list[bytes] | None:
    """All texts of a data set of one axis; None where it holds none."""
    if data.ndim != 1 or not is_text(data):
        return None
    if data.dtype.kind == "S":
        return [bytes(text) for text in data.read()]
    mapped, name = file.mapped.bytes, data.name
    if not isinstance(mapped, np.ndarray):
        raise data.refuse(
            f"the text of {name!r} is of variable length, which is not read from a store",
            hint="download the file",
        )
    if not data.size:
        return []
    user_block = data.data.file.id.get_create_plist().get_userblock()
    try:
        elements = [np.concatenate(list(elements_of(data, file)))]  # their heaps are walked once
        starts, sizes = heap_extents(
            elements, data.shape[0], mapped, user_block, 1, data.path, name
        )
        check_extents(starts, sizes, file.size, data.path)
    except SourceError as exc:
        if exc.index is not None:  # texts may be names, which are no records
            exc.what, exc.index = f"text {exc.index} of {name!r}: {exc.what}", None
        raise
    ends = (starts + sizes).tolist()
    return [mapped[at:end].tobytes() for at, end in zip(starts.tolist(), ends, strict=True)]


def elements_of(data: Stored, file: ByteFile) -> Iterator[UInt8]:
    """The stored elements of a data set of variable length, piece by piece."""
    name = data.name
    if data.data.file.id.get_create_plist().get_sizes() != (8, 8):
        raise data.refuse("only offsets of 8 bytes are supported", hint="h5repack it")
    if data.chunks is not None:
        steps = data.filters
        if not check_filters(steps, data.path, name):
            raise data.refuse(
                f"dataset {name!r} has a filter that is not read here", hint=remedy(steps)
            )
        grid = data.checked_grid(file.mapped.view, ELEMENT)
        for number in range(grid.offsets.size):
            offset = int(grid.offsets[number])
            stored = file.mapped.view(offset, int(grid.sizes[number]))
            mask, size = int(grid.masks[number]), grid.chunk_bytes
            with located(path=data.path, index=number * grid.chunk[0]):
                part = decode_chunk(stored, steps, mask, size, ELEMENT.itemsize)
            inside = min(grid.chunk[0], grid.shape[0] - number * grid.chunk[0])
            yield part[: inside * ELEMENT.itemsize]
        return
    start, size = data.offset, data.shape[0] * ELEMENT.itemsize
    if data.plist.get_layout() != h5py.h5d.CONTIGUOUS or start is None:
        raise data.refuse(
            f"dataset {name!r} of variable length is not stored contiguous or chunked",
            found=f"shape {data.shape}",
            hint="it may never have been written; else h5repack it",
        )
    check_extents(np.array([start]), np.array([size]), file.size, data.path, lambda _: name)
    yield file.mapped.view(start, size)
