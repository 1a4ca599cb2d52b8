"""Decodes HDF5's filters without the HDF5 library.

They are undone in reverse order of the pipeline, skipping those in a chunk's mask (HDF5 File Format
Specification 3.0, IV.A.2.l and III.A.1). Numbers of registered filters are the HDF Group's.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, Final

import numpy as np

from ...errors import DecodeError, FormatError
from ...pixels import kernels
from ...pixels.codec import INSTALL, find_imagecodecs
from ...system.array_types import Int64, UInt8
from ...system.memory import address_of

DEFLATE: Final = 1
SHUFFLE: Final = 2
FLETCHER32: Final = 3
BUILT_IN_ONLY: Final = {4: "szip", 5: "nbit", 6: "scaleoffset"}
LZF: Final = 32000
BLOSC: Final = 32001
LZ4: Final = 32004
BITSHUFFLE: Final = 32008
ZSTD: Final = 32015
NAMES: Final = {
    DEFLATE: "gzip",
    SHUFFLE: "shuffle",
    FLETCHER32: "fletcher32",
    LZF: "lzf",
    BLOSC: "blosc",
    LZ4: "lz4",
    BITSHUFFLE: "bitshuffle",
    ZSTD: "zstd",
    **BUILT_IN_ONLY,
}
#: What HDF5 undoes itself; for the others it looks for plugins, which are programs.
LIBRARY: Final = frozenset({DEFLATE, SHUFFLE, FLETCHER32, LZF, *BUILT_IN_ONLY})


@dataclass(frozen=True)
class Filter:
    """One step of a pipeline: its registered number and client values."""

    code: int
    values: tuple[int, ...]


def decode_chunk(
    data: UInt8, filters: tuple[Filter, ...], mask: int, size: int, item: int
) -> UInt8:
    """A chunk's ``size`` bytes of pixels from its stored bytes; DecodeError if damaged."""
    for position in range(len(filters) - 1, -1, -1):
        if mask & (1 << position):
            continue
        step = filters[position]
        try:
            data = _UNDO[step.code](data, step, size, item)
        except (DecodeError, ImportError, MemoryError):
            raise  # what cannot be loaded, and memory that runs out, say nothing of the data
        except AttributeError as exc:
            raise ImportError(f"this imagecodecs cannot undo {NAMES[step.code]}: {exc}") from exc
        except Exception as exc:  # every codec of imagecodecs has an error type of its own
            raise DecodeError(
                f"a chunk cannot be decompressed ({NAMES[step.code]})", found=str(exc)
            ) from exc
    if data.size != size:
        raise DecodeError(
            "a chunk has not the size that its shape needs",
            found=f"{data.size} bytes",
            expected=f"{size} bytes",
        )
    return data


def _bytes(decoded: Any) -> UInt8:
    return np.frombuffer(decoded, np.uint8)


def _undo_deflate(data: UInt8, step: Filter, size: int, item: int) -> UInt8:
    out, found = np.empty(size + 4, np.uint8), np.empty(1, np.int64)  # a fletcher32 sum may follow
    source, target = np.array([data.ctypes.data]), np.array([address_of(out)])
    inflate(source, np.array([data.size]), target, out.size, 1, found)
    if found[0] < 0:
        raise DecodeError(
            "a chunk cannot be decompressed (gzip)",
            found="a damaged zlib stream, or a longer one",
            expected=f"one of {size} bytes",
        )
    return out[: found[0]]


@cache
def _libdeflate() -> Int64:
    """The addresses of the functions of libdeflate that inflate a zlib stream."""
    try:
        import deflate._deflate as package

        library = ctypes.CDLL(package.__file__)
    except ImportError:  # conda-forge has the library, but not the package
        library = ctypes.CDLL("libdeflate.so.0")
    names = ("zlib_decompress", "alloc_decompressor", "free_decompressor")
    functions = [getattr(library, f"libdeflate_{name}") for name in names]
    return np.array([ctypes.cast(one, ctypes.c_void_p).value for one in functions], np.int64)


def inflate(
    sources: Int64, sizes: Int64, targets: Int64, room: int, width: int, found: Int64
) -> None:
    """Inflate many gzip chunks in one call: see the kernel ``inflate_chunks``.

    A chunk of 20 kB is inflated in 15 us. Two threads that took and let go the GIL for each of them
    were together slower than one.
    """
    kernels.inflate_chunks(_libdeflate(), sources, sizes, targets, room, width, found)


def inflated_width(filters: tuple[Filter, ...], item: int) -> int | None:
    """Bytes of the items that chunks are shuffled by before gzip, 1 where they are not; None for
    other filters."""
    codes = [step.code for step in filters]
    if codes == [DEFLATE]:
        return 1
    if codes == [SHUFFLE, DEFLATE]:
        return max(1, _width(filters[0], item))
    return None


def _width(step: Filter, item: int) -> int:
    """Bytes of the items that the shuffle filter takes apart."""
    return step.values[0] if step.values else item


def _undo_shuffle(data: UInt8, step: Filter, size: int, item: int) -> UInt8:
    width = _width(step, item)
    if width <= 1 or data.size < 2 * width:  # as HDF5 does: width is any number of 32 bits
        return data
    whole = data.size // width * width
    out = np.empty(data.size, np.uint8)
    lanes, planes = out[:whole].reshape(-1, width), data[:whole].reshape(width, -1)
    for k in range(width):  # a third of the time of lanes[:] = planes.T
        lanes[:, k] = planes[k]
    out[whole:] = data[whole:]
    return out


def _undo_fletcher32(data: UInt8, step: Filter, size: int, item: int) -> UInt8:
    if data.size < 4:
        raise DecodeError("a chunk is too short for its checksum")
    body = data[:-4]
    stated = int.from_bytes(data[-4:].tobytes(), "little")
    imagecodecs = find_imagecodecs()
    if imagecodecs is None:
        found = fletcher32(body)
    else:
        found = int(imagecodecs.h5checksum_fletcher32(body.tobytes()))
    # HDF5 up to 1.6.2 stored the halves the other way round, and is still accepted by the library
    swapped = ((found & 0x00FF00FF) << 8) | ((found >> 8) & 0x00FF00FF)
    if stated not in (found, swapped):
        raise DecodeError(
            "a chunk's fletcher32 checksum is wrong", found=f"{found:08x}", expected=f"{stated:08x}"
        )
    return body


def fletcher32(data: UInt8) -> int:
    """The checksum of HDF5's filter 3 (H5checksum.c): two sums of 16-bit words, modulo 65,535."""
    odd = data.size % 2
    words = np.append(data, np.zeros(odd, np.uint8)).view(">u2").astype(np.int64)
    one = two = 0
    for start in range(0, words.size, _WORDS):
        part = words[start : start + _WORDS]
        two += part.size * one + int((np.arange(part.size, 0, -1) * part).sum())
        one = (one + int(part.sum())) % 65_535
        two %= 65_535
    some = bool(words.any())  # its folding makes 65,535 of every multiple but zero
    return ((two or 65_535 * some) << 16) | (one or 65_535 * some)


#: Words of one sum: they stay below 2^63.
_WORDS: Final = 1 << 16


def _decode(name: str, data: UInt8, step: Filter, size: int, item: int) -> UInt8:
    """What imagecodecs' function ``name`` makes of it."""
    import imagecodecs

    return _bytes(getattr(imagecodecs, name)(data, out=size))


def _undo_blosc(data: UInt8, step: Filter, size: int, item: int) -> UInt8:
    import imagecodecs

    # its header states how much memory it takes (bytes 4 to 8: Blosc's README_CHUNK_FORMAT)
    stated = int.from_bytes(data[4:8].tobytes(), "little")
    if data.size < 16 or stated > size:
        raise DecodeError("a blosc chunk states another size", found=stated, expected=size)
    return _bytes(imagecodecs.blosc_decode(data, numthreads=1))


def _undo_bitshuffle(data: UInt8, step: Filter, size: int, item: int) -> UInt8:
    """bitshuffle's HDF5 filter: values are (major, minor, item size, block, compression, ...)."""
    import imagecodecs

    width = step.values[2] if len(step.values) > 2 else item
    codec = step.values[4] if len(step.values) > 4 else 0
    if codec == 0:
        block = step.values[3] if len(step.values) > 3 else 0
        # bytes: of an array the codec would take the array's own item size
        out = imagecodecs.bitshuffle_decode(data.tobytes(), itemsize=width, blocksize=block)
        return _bytes(out)
    if codec not in (2, 3):
        raise DecodeError("a bitshuffle chunk with an unknown compression", found=codec)
    total = int.from_bytes(data[:8].tobytes(), "big")
    block_bytes = int.from_bytes(data[8:12].tobytes(), "big")
    if total != size or not block_bytes or block_bytes % (8 * width):
        raise DecodeError(
            "a bitshuffle chunk states another size",
            found=f"{total} bytes in blocks of {block_bytes}",
            expected=f"{size} bytes in blocks of a multiple of {8 * width}",
        )
    pieces, at, left = [], 12, total
    while left:
        # every block is compressed on its own; a remainder below 8 items is stored as it is
        this = min(block_bytes, left // (8 * width) * (8 * width))
        if this == 0:
            pieces.append(data[at : at + left])
            break
        length = int.from_bytes(data[at : at + 4].tobytes(), "big")
        packed = data[at + 4 : at + 4 + length]
        plain = (
            imagecodecs.lz4_decode(packed, out=this)
            if codec == 2
            else imagecodecs.zstd_decode(packed, out=this)
        )
        pieces.append(_bytes(imagecodecs.bitshuffle_decode(plain, itemsize=width)))
        at += 4 + length
        left -= this
    return np.concatenate(pieces)


_UNDO: Final[dict[int, Callable[[UInt8, Filter, int, int], UInt8]]] = {
    DEFLATE: _undo_deflate,
    SHUFFLE: _undo_shuffle,
    FLETCHER32: _undo_fletcher32,
    LZF: partial(_decode, "lzf_decode"),
    BLOSC: _undo_blosc,
    LZ4: partial(_decode, "lz4h5_decode"),
    BITSHUFFLE: _undo_bitshuffle,
    ZSTD: partial(_decode, "zstd_decode"),
}
READABLE: Final = frozenset(_UNDO)
#: Those that are undone where imagecodecs is not installed; of the others HDF5 undoes lzf.
_WITHOUT: Final = frozenset({DEFLATE, SHUFFLE, FLETCHER32})


def readable() -> frozenset[int]:
    """The filters that are undone here."""
    return READABLE if find_imagecodecs() else _WITHOUT


_REPACK: Final = "repack it, for example with h5repack -f GZIP=4"


def in_words(filters: Iterable[Filter]) -> str:
    """The names of filters in a row, "" without any."""
    return " + ".join(NAMES.get(step.code, str(step.code)) for step in filters)


def remedy(filters: tuple[Filter, ...]) -> str:
    """What to do about a data set whose filters are not all undone here."""
    return INSTALL if {step.code for step in filters} <= READABLE else _REPACK


def check_known(filters: tuple[Filter, ...], known: frozenset[int], name: str) -> None:
    """FormatError unless all filters are among ``known``."""
    unknown = sorted({step.code for step in filters} - known)
    if unknown:
        raise FormatError(
            f"dataset {name!r} needs a filter that is not read",
            found=f"filter {unknown[0]}",
            expected=f"one of {', '.join(sorted(NAMES[code] for code in known))}",
            hint=_REPACK,
        )


def check_filters(filters: tuple[Filter, ...], name: str) -> bool:
    """True when all filters are decoded here, False when HDF5 itself must; else FormatError."""
    check_known(filters, READABLE | set(BUILT_IN_ONLY), name)
    codes = {step.code for step in filters}
    if codes <= readable():
        return True
    if codes <= LIBRARY:
        return False
    needed = "imagecodecs" if codes <= READABLE else "filters that are not read together"
    raise FormatError(
        f"dataset {name!r} needs {needed}", found=in_words(filters), hint=remedy(filters)
    )
