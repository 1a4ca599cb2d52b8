"""The kernel that inflates chunks, with either library, against zlib and numpy."""

from __future__ import annotations

import zlib

import numpy as np
import pytest

from asyncreader.pixels import kernels
from asyncreader.sources.hdf5 import filters

KINDS = ("libdeflate", "zlib")


def functions_of(kind: str, monkeypatch: pytest.MonkeyPatch) -> np.ndarray:
    """The library's functions."""
    if kind == "libdeflate":
        pytest.importorskip("imagecodecs")
    else:
        monkeypatch.setattr(filters, "find_imagecodecs", lambda: None)
    found = filters.inflater.__wrapped__()
    if found is None:
        pytest.skip(f"{kind} has no functions here")
    assert len(found) == (3 if kind == "libdeflate" else 1)
    return found


@pytest.mark.parametrize("width", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("kind", KINDS)
def test_chunks_are_inflated(kind: str, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole streams give the bytes that were packed, in the order of before the shuffle filter;
    those that are cut, damaged, too short or too long are told, and no byte outside is written."""
    functions = functions_of(kind, monkeypatch)
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
    good = np.full(8, 9)
    kernels.inflate_chunks(
        functions,
        np.array([one.ctypes.data for one in held]),
        np.array([len(stream) for stream in streams]),
        out.ctypes.data + np.arange(8) * out.strides[0],
        room,
        width,
        good,
    )
    assert (good != 0).tolist() == whole
    np.testing.assert_array_equal(out[whole, :room], plain[whole])
    assert (out[:, room:] == 77).all()
