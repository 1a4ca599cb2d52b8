"""Hostile HDF5: more is declared than is stored, and chunks that lie."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from ..corpus import CANARY, NONE, SET, Scratch, Target, attack
from .tools import (
    ROWS,
    N,
    done,
    filtered,
    on_plain,
    patched,
    plain,
    space,
)


@on_plain(says="lacks some|too small", data=False, labels=False)
def shape_bomb_chunked(file: Any, scratch: Scratch) -> None:
    """2^60 rows of which none is stored."""
    file.create_dataset("data", (1 << 60, 4), "u1", chunks=(1 << 20, 4))


@on_plain(says="stores none", data=False, labels=False)
def shape_bomb_contiguous(file: Any, scratch: Scratch) -> None:
    """2^50 rows, never written."""
    file.create_dataset("data", (1 << 50, 4), "u1")


@on_plain(says="lacks some|too small", data=False, labels=False)
def fill_value_bomb(file: Any, scratch: Scratch) -> None:
    """A fill value, a count, and one chunk."""
    made = file.create_dataset("data", (1 << 40, 4), "u1", chunks=(64, 4), fillvalue=67)
    made[0:64] = 1


@on_plain(says="another number of rows|lacks some|stores none", ways=SET, labels=False)
def labels_bomb(file: Any, scratch: Scratch) -> None:
    """As many labels as no memory holds, all of them the fill value."""
    file.create_dataset("labels", (N, 1 << 45), "i8", chunks=(N, 1 << 20), fillvalue=1)


def _zeros(mib: int) -> bytes:
    """So many MiB of zeros, compressed a piece at a time."""
    body = zlib.compressobj(9)
    piece = bytes(1 << 20)
    return b"".join(body.compress(piece) for _ in range(mib)) + body.flush()


@on_plain(says="declares far more than it stores", ways=SET, labels=False)
def labels_gzip_bomb(file: Any, scratch: Scratch) -> None:
    """Labels of 1.9 GB in 2 MB."""
    filtered(file, "labels", (N, 300 << 17), "i8", (1,), (1, 300 << 17), _zeros(300), values=(9,))


@on_plain(says="declares far more than it stores", data=False, labels=False)
def chunk_gzip_bomb(file: Any, scratch: Scratch) -> None:
    """A chunk of 300 MB in 300 kB."""
    filtered(file, "data", (300, 1 << 20), "u1", (1,), (300, 1 << 20), _zeros(300), values=(9,))


@on_plain(says="declares far more than it stores", data=False, labels=False)
def chunk_declares_gigabytes(file: Any, scratch: Scratch) -> None:
    """A chunk of 4 GB, ten bytes of it stored."""
    shape = (1 << 12, (1 << 20) - 1)
    filtered(file, "data", shape, "u1", (1,), shape, zlib.compress(b"abc"), values=(9,))


def _chunk(code: int, stored: bytes, says: str, name: str, **settings: Any) -> None:
    def make(scratch: Scratch) -> Target:
        file = plain(scratch, data=False)
        filtered(file, "data", ROWS, "u1", (code,), (1, *ROWS[1:]), stored, **settings)
        made, values = done(file), settings.get("values", ())
        # the library puts its own numbers in the place of some
        assert struct.pack(f"<{len(values)}I", *values) in Path(made.path).read_bytes()
        return made

    make.__doc__ = f"Chunks: {name}."
    attack(("read", "verify", "convert", "drop_in"), says, name=f"chunk_{name}")(make)


ROW = 16 * 4 * 3
_chunk(1, zlib.compress(bytes(50 << 20), 9), "decompress|size", "inflates_to_50_mb", values=(9,))
_chunk(1, zlib.compress(bytes(10)), "size", "inflates_short", values=(9,))
_chunk(1, b"\x78\x9c" + b"\xff" * 60, "decompress", "of_garbage", values=(9,))
_chunk(3, CANARY[:ROW] + b"\0\0\0\0", "fletcher32", "of_a_wrong_fletcher32")
_chunk(3, b"ab", "too short", "shorter_than_its_fletcher32")
_chunk(
    32001,
    b"\x02\x01\x00\x01" + struct.pack("<III", 0x7FFFFFFF, 1 << 20, 16),
    "blosc",
    "blosc_states_2_gb",
)
_chunk(
    32001,
    b"\x02\x01\x00\x01" + struct.pack("<III", ROW, 0, 1 << 31) + bytes(64),
    "blosc|size",
    "blosc_of_garbage",
)
_chunk(32004, struct.pack(">QI", 1 << 62, 1 << 30) + bytes(64), "lz4|size", "lz4_states_2_62")
_chunk(
    32015, bytes.fromhex("28b52ffde0ffffffffffffff7f") + bytes(20), "zstd|size", "zstd_states_much"
)
_chunk(
    32008,
    struct.pack(">QI", ROW, 1) + bytes(64),
    "bitshuffle|size",
    "bitshuffle_tiny_block",
    values=(0, 3, 1, 0, 2),
)
_chunk(
    32008,
    struct.pack(">QI", ROW, 1 << 31) + bytes(64),
    "bitshuffle|size",
    "bitshuffle_huge_item",
    values=(0, 3, (1 << 31) - 1, 1 << 30, 0),
)
_chunk(
    32008,
    b"A" * (ROW - 1),
    "bitshuffle|size",
    "bitshuffle_huge_block",
    values=(0, 3, 1, (1 << 31) - 8, 0),
)
_chunk(
    32008,
    struct.pack(">QI", ROW, 8) + bytes(64),
    "bitshuffle|size",
    "bitshuffle_item_0",
    values=(0, 3, 0, 0, 3),
)
_chunk(32000, b"\xff" * 40, "lzf|size", "lzf_of_garbage")


@attack(("read", "verify", "convert", "drop_in"), "size")
def chunk_shuffled_short(scratch: Scratch) -> Target:
    """Chunks of five bytes, shuffled by items of 4 GiB."""
    file = plain(scratch, data=False)
    filtered(file, "data", ROWS, "u1", (2,), (1, *ROWS[1:]), CANARY[:5])
    made, name = done(file), b"shuffle\0"
    # the library writes the size of the type
    patched(Path(made.path), name + struct.pack("<I", 1), name + struct.pack("<I", (1 << 32) - 1))
    return made


@on_plain(says="a chunk has the wrong size", data=False)
def chunk_shorter_than_declared(file: Any, scratch: Scratch) -> None:
    """An unfiltered chunk of five bytes: what follows it would be served."""
    made = file.create_dataset("data", ROWS, "u1", chunks=(1, *ROWS[1:]))
    for number in range(N):
        made.id.write_direct_chunk((number, 0, 0, 0), CANARY[:5], 0)


@on_plain(says="no samples", data=False, labels=False)
def no_rows(file: Any, scratch: Scratch) -> None:
    """A set without a sample."""
    file["data"] = np.zeros((0, 4, 4, 3), np.uint8)


@on_plain(says="another number of rows", ways=SET, labels=False)
def labels_without_values(file: Any, scratch: Scratch) -> None:
    """Labels of shape (N, 0)."""
    file["labels"] = np.zeros((N, 0), np.int64)


@on_plain(NONE, ways=SET, data=False, labels=False)
def huge_class_numbers(file: Any, scratch: Scratch) -> None:
    """Labels of 2^61: counting from 0 would need all memory."""
    file["data"] = np.zeros(ROWS, np.uint8)
    file["labels"] = np.full(N, 1 << 61)


@on_plain(NONE, ways=SET, data=False, labels=False)
def sparse_terabyte(file: Any, scratch: Scratch) -> None:
    """A file of 4 TiB that takes none of the disk."""
    made = file.create_dataset("data", (1 << 12, 1 << 30), "u1")
    plist = made.id.get_create_plist()
    del file["data"]
    plist.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    plist.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    h5py.h5d.create(file.id, b"data", h5py.h5t.NATIVE_UINT8, space((1 << 12, 1 << 30)), plist)
