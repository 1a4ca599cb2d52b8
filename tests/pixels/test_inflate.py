"""The kernel that inflates chunks, against zlib and numpy."""

from __future__ import annotations

import zlib

import numpy as np
import pytest

from asyncreader.sources.hdf5 import filters


@pytest.mark.parametrize("width", [1, 2, 3, 4, 8])
def test_chunks_are_inflated(width: int) -> None:
    """Whole streams give the bytes that were packed, in the order of before the shuffle filter;
    those that are cut, damaged, too short or too long are told, and no byte outside is written."""
    rng, room = np.random.default_rng(width), 5003
    plain = rng.integers(0, 9, (8, room), np.uint8)
    items = plain[:, : room // width * width].reshape(8, -1, width)
    stored = np.concatenate(
        (items.transpose(0, 2, 1).reshape(8, -1), plain[:, room // width * width :]), axis=1
    )
    streams = [zlib.compress(row.tobytes(), level) for level, row in enumerate(stored)]
    whole = [True] * 8
    streams[1] = streams[1][:-5]
    streams[2] = zlib.compress(stored[2].tobytes()[:-1])
    streams[3] = zlib.compress(stored[3].tobytes() + b"1")
    streams[5] = streams[5][:-1] + bytes([streams[5][-1] ^ 1])
    streams[6] = b""
    for i in (1, 2, 3, 5, 6):
        whole[i] = False
    held = [np.frombuffer(stream + b"\0", np.uint8) for stream in streams]
    out = np.full((8, room + 16), 77, np.uint8)
    found = np.full(8, 9)
    filters.inflate(
        np.array([one.ctypes.data for one in held]),
        np.array([len(stream) for stream in streams]),
        out.ctypes.data + np.arange(8) * out.strides[0],
        room,
        width,
        found,
    )
    assert (found == room).tolist() == whole
    assert found[~np.array(whole)].tolist() == [-1, room - 1, -1, -1, -1]
    np.testing.assert_array_equal(out[whole, :room], plain[whole])
    assert (out[:, room:] == 77).all()
