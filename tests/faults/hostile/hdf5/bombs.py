"""Hostile HDF5: more is declared than is stored, and chunks that lie."""

import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from ..corpus import CANARY, SET, Scratch, Target, attack, family
from .tools import ROWS, N, creates, done, filtered, on, patched, plain, puts, space


def _zeros(mib: int) -> bytes:
    """So many MiB of zeros, compressed a piece at a time."""
    body = zlib.compressobj(9)
    piece = bytes(1 << 20)
    return b"".join(body.compress(piece) for _ in range(mib)) + body.flush()


def _gzip(name: str, shape: tuple[int, ...], kind: str, body: Callable[[], bytes]) -> Any:
    """A data set of one chunk, deflated."""
    chunk = (1, *shape[1:]) if kind == "i8" else shape
    return lambda f, s: filtered(f, name, shape, kind, (1,), chunk, body(), values=(9,))


def _filled(file: Any, scratch: Scratch) -> None:
    """A fill value, a count, and one chunk."""
    made = file.create_dataset("data", (1 << 40, 4), "u1", chunks=(64, 4), fillvalue=67)
    made[0:64] = 1


def _short_chunks(file: Any, scratch: Scratch) -> None:
    """Unfiltered chunks of five bytes: what follows them would be served."""
    made = file.create_dataset("data", ROWS, "u1", chunks=(1, *ROWS[1:]))
    for number in range(N):
        made.id.write_direct_chunk((number, 0, 0, 0), CANARY[:5], 0)


def _terabyte(file: Any, scratch: Scratch) -> None:
    """A file of 4 TiB that takes none of the disk."""
    plist = file.create_dataset("data", (1 << 12, 1 << 30), "u1").id.get_create_plist()
    del file["data"]
    plist.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    plist.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    h5py.h5d.create(file.id, b"data", h5py.h5t.NATIVE_UINT8, space((1 << 12, 1 << 30)), plist)


WIDE = (1 << 12, (1 << 20) - 1)
MORE, SMALL = "declares far more than it stores", "lacks some|too small"
family("Data that are declared", "", on(data=False, labels=False), {
    "shape_bomb_chunked": (SMALL, creates("data", (1 << 60, 4), chunks=(1 << 20, 4))),
    "shape_bomb_contiguous": ("stores none", creates("data", (1 << 50, 4))),
    "fill_value_bomb": (SMALL, _filled),
    "chunk_gzip_bomb": (MORE, _gzip("data", (300, 1 << 20), "u1", lambda: _zeros(300))),
    "chunk_declares_gigabytes": (MORE, _gzip("data", WIDE, "u1", lambda: zlib.compress(b"abc"))),
    "no_rows": ("no samples", puts(data=np.zeros((0, 4, 4, 3), np.uint8))),
})  # fmt: skip
family("Data that are declared", "", on(data=False), {
    "chunk_shorter_than_declared": ("a chunk has the wrong size", _short_chunks),
})  # fmt: skip
family("Served", "", on(data=False, labels=False), {
    "sparse_terabyte": (None, _terabyte),
    # counting these classes from 0 would need all memory
    "huge_class_numbers": (
        None, puts(data=np.zeros(ROWS, np.uint8), labels=np.full(N, 1 << 61))
    ),
}, ways=SET)  # fmt: skip
family("Labels that are declared", "", on(labels=False), {
    "labels_bomb": (
        "another number of rows|lacks some|stores none",
        creates("labels", (N, 1 << 45), "i8", chunks=(N, 1 << 20), fillvalue=1),
    ),
    "labels_gzip_bomb": (MORE, _gzip("labels", (N, 300 << 17), "i8", lambda: _zeros(300))),
    "labels_without_values": ("another number of rows", puts(labels=np.zeros((N, 0), np.int64))),
}, SET, SET)  # fmt: skip


def chunk(scratch: Scratch, code: int, stored: bytes, *values: int) -> Target:
    """Rows whose chunks have this filter, with these numbers, and these bytes."""
    file = plain(scratch, data=False)
    given = {"values": values} if values else {}
    filtered(file, "data", ROWS, "u1", (code,), (1, *ROWS[1:]), stored, **given)
    made = done(file)
    # the library puts its own numbers in the place of some
    assert struct.pack(f"<{len(values)}I", *values) in Path(made.path).read_bytes()
    return made


ROW = 16 * 4 * 3
BLOSC, SHUFFLED = b"\x02\x01\x00\x01", "bitshuffle|size"
ZSTD = bytes.fromhex("28b52ffde0ffffffffffffff7f")
family("Chunks", "chunk_", chunk, {
    "inflates_to_50_mb": ("decompress|size", 1, zlib.compress(bytes(50 << 20), 9), 9),
    "inflates_short": ("size", 1, zlib.compress(bytes(10)), 9),
    "of_garbage": ("decompress", 1, b"\x78\x9c" + b"\xff" * 60, 9),
    "of_a_wrong_fletcher32": ("fletcher32", 3, CANARY[:ROW] + b"\0\0\0\0"),
    "shorter_than_its_fletcher32": ("too short", 3, b"ab"),
    "blosc_states_2_gb": ("blosc", 32001, BLOSC + struct.pack("<III", 0x7FFFFFFF, 1 << 20, 16)),
    "blosc_of_garbage": (
        "blosc|size", 32001, BLOSC + struct.pack("<III", ROW, 0, 1 << 31) + bytes(64)
    ),
    "lz4_states_2_62": ("lz4|size", 32004, struct.pack(">QI", 1 << 62, 1 << 30) + bytes(64)),
    "zstd_states_much": ("zstd|size", 32015, ZSTD + bytes(20)),
    "bitshuffle_tiny_block": (
        SHUFFLED, 32008, struct.pack(">QI", ROW, 1) + bytes(64), 0, 3, 1, 0, 2
    ),
    "bitshuffle_huge_item": (
        SHUFFLED, 32008, struct.pack(">QI", ROW, 1 << 31) + bytes(64),
        0, 3, (1 << 31) - 1, 1 << 30, 0,
    ),
    "bitshuffle_huge_block": (SHUFFLED, 32008, b"A" * (ROW - 1), 0, 3, 1, (1 << 31) - 8, 0),
    "bitshuffle_item_0": (SHUFFLED, 32008, struct.pack(">QI", ROW, 8) + bytes(64), 0, 3, 0, 0, 3),
    "lzf_of_garbage": ("lzf|size", 32000, b"\xff" * 40),
}, ("read", "verify", "convert", "drop_in"))  # fmt: skip


@attack(("read", "verify", "convert", "drop_in"), "size")
def chunk_shuffled_short(scratch: Scratch) -> Target:
    """Chunks of five bytes, shuffled by items of 4 GiB."""
    file = plain(scratch, data=False)
    filtered(file, "data", ROWS, "u1", (2,), (1, *ROWS[1:]), CANARY[:5])
    made, name = done(file), b"shuffle\0"
    # the library writes the size of the type
    patched(Path(made.path), name + struct.pack("<I", 1), name + struct.pack("<I", (1 << 32) - 1))
    return made
