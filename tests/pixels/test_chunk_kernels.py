"""The kernels that inflate chunks and copy boxes of them, against zlib and numpy."""

import zlib

import numpy as np
import pytest

from asyncreader.pixels import kernels
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


def test_boxes_are_copied() -> None:
    """Boxes of any rank, size of elements and order of axes go where they belong, and nothing else
    is written; those of one byte that lie in threes are woven, with 16 in a line and with fewer."""
    rng = np.random.default_rng(3)
    for trial in range(300):
        rank, item = int(rng.integers(1, 5)), int(rng.choice([1, 1, 2, 3, 4, 8, 16]))
        full = rng.integers(1, 40 if rank < 3 else 7, rank)
        order, count = rng.permutation(rank), int(rng.integers(1, 8))
        if woven := trial % 3 == 0:
            item, order, full[-1], count = 1, np.arange(rank), 1, 3 + trial % 2 * trial % 5
        stored = rng.integers(0, 256, (count, *full[order], item), np.uint8)
        extents = np.array([[rng.integers(0, n + 1) for n in full] for _ in range(count)])
        if trial % 2 == 0:
            extents[:] = full
        # woven: one box beside the other along the last axis; else one behind the other
        shape = (1, *full[:-1], count) if woven else (count, *full)
        outs = [np.full((*shape, item), 9, np.uint8) for _ in range(2)]
        steps = outs[0].strides[-2] if woven else outs[0].strides[0]
        targets = outs[0].ctypes.data + np.arange(count) * steps
        sources = stored.ctypes.data + np.arange(count) * stored.strides[0]
        near = np.array(stored.strides[1:-1])[np.argsort(order)]
        kernels.copy_boxes(sources, targets, extents, near, np.array(outs[0].strides[1:-1]), item)
        for i in range(count):
            part = tuple(map(slice, extents[i]))
            values = stored[i].transpose(*np.argsort(order), rank)[part]
            into = outs[1][0][..., i : i + 1, :] if woven else outs[1][i]
            into[part] = values
        np.testing.assert_array_equal(*outs, err_msg=f"{trial}")
