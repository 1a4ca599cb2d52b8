"""Chunks of HDF5 files decoded outside the library: the filters users have, and the cache."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import h5py
import hdf5plugin
import numpy as np
import pytest

from asyncreader import AsyncReader, DecodeError
from asyncreader.sources.chunk_cache import ChunkCache

PIXELS = np.random.default_rng(0).integers(0, 40, (37, 12, 9, 3)).astype(np.uint8)

#: Written by the filters' own libraries, as hdf5plugin ships them.
FILTERS: dict[str, Any] = {
    "lz4": hdf5plugin.LZ4(),
    "lz4 of small blocks": hdf5plugin.LZ4(nbytes=512),
    "zstd": hdf5plugin.Zstd(clevel=7),
    "bitshuffle": hdf5plugin.Bitshuffle(cname="none"),
    "bitshuffle lz4": hdf5plugin.Bitshuffle(cname="lz4"),
    "bitshuffle lz4 of small blocks": hdf5plugin.Bitshuffle(nelems=128, cname="lz4"),
    "bitshuffle zstd": hdf5plugin.Bitshuffle(cname="zstd"),
    **{
        f"blosc {name} {shuffle}": hdf5plugin.Blosc(cname=name, shuffle=shuffle)
        for name in ("blosclz", "lz4", "lz4hc", "zlib", "zstd")
        for shuffle in (0, 1, 2)
    },
    "gzip, shuffle, fletcher32": {
        "compression": "gzip",
        "compression_opts": 4,
        "shuffle": True,
        "fletcher32": True,
    },
    "lzf": {"compression": "lzf"},
}


def written(folder: Path, name: str, pixels: np.ndarray, chunk: int) -> Path:
    path = folder / "set.h5"
    with h5py.File(path, "w") as file:
        chunks = (chunk, *pixels.shape[1:])
        file.create_dataset("data", data=pixels, chunks=chunks, **FILTERS[name])
        file["labels"] = np.arange(len(pixels))[:, None]
    return path


@pytest.mark.parametrize("dtype", ["u1", "<u2", ">f4", "<f8"])
@pytest.mark.parametrize("chunk", [1, 5])
@pytest.mark.parametrize("name", FILTERS)
def test_filters_of_users(tmp_path: Path, name: str, chunk: int, dtype: str) -> None:
    """What a filter's own library wrote comes out as it went in, whatever dtype and chunk."""
    pixels = PIXELS.astype(dtype) * (1 if dtype == "u1" else 5)
    path = written(tmp_path, name, pixels, chunk)
    with AsyncReader(path=path, batch_size=8, shuffle=True, layout="NHWC", nthread=2) as reader:
        for data, labels in reader:
            np.testing.assert_array_equal(data, pixels[labels[:, 0]])
            assert data.dtype == pixels.dtype.newbyteorder("=")


@pytest.mark.parametrize("name", FILTERS)
def test_damaged_chunks_of_users(tmp_path: Path, name: str) -> None:
    """Bytes changed in a compressed chunk end in an error or in the same pixels or, where the
    format has no checksum, in other pixels: never in a crash, and never beside the sample."""
    path = written(tmp_path, name, PIXELS, 1)
    with h5py.File(path) as file:
        info = file["data"].id.get_chunk_info(3)
    whole = bytearray(path.read_bytes())
    rng = np.random.default_rng(1)
    for _ in range(40):
        broken = bytearray(whole)
        for _ in range(3):
            broken[info.byte_offset + int(rng.integers(info.size))] = int(rng.integers(256))
        path.write_bytes(broken)
        with AsyncReader(path=path, batch_size=37, layout="NHWC", on_error="zero") as reader:
            (batch,) = list(reader)
            others = np.arange(37) != 3
            np.testing.assert_array_equal(batch.data[others], PIXELS[others])
            assert batch.mask[others].all()
            if not batch.mask[3]:
                assert not batch.data[3].any()


def filled(memory: np.ndarray, number: int) -> None:
    memory[:] = number


def test_a_pinned_chunk_stays() -> None:
    """Memory of a dropped chunk is used again only when nobody who pinned before looks at it."""
    cache = ChunkCache(limit=2 * 4096, chunks=9, chunk_bytes=4096)

    def get(number: int) -> np.ndarray:
        chunk = cache.get(number, lambda memory: filled(memory, number))
        assert chunk is not None
        return chunk

    pinned = cache.pin()
    chunks = [get(number) for number in range(6)]
    assert np.count_nonzero(cache.addresses) == 2
    assert all((chunk == number).all() for number, chunk in enumerate(chunks))
    del pinned
    places = {chunk.ctypes.data for chunk in chunks}
    assert {get(number).ctypes.data for number in (6, 7, 8)} <= places


def test_memory_of_dropped_chunks_is_used_again() -> None:
    """A cache that drops as much as it takes in asks the system for no more memory."""
    cache = ChunkCache(limit=2 * 4096, chunks=100, chunk_bytes=4096)
    places = set()
    for number in range(100):
        pinned = cache.pin()
        chunk = cache.get(number, lambda memory, number=number: filled(memory, number))
        assert chunk is not None
        assert (chunk == number).all()
        places.add(chunk.ctypes.data)
        del pinned
    assert len(places) <= 4


def test_a_chunk_that_another_thread_decodes() -> None:
    """It is decoded once: who need not wait is told so at once, who waits gets it."""
    cache = ChunkCache(limit=1 << 20, chunks=2, chunk_bytes=4096)
    begun, go_on, decoded = threading.Event(), threading.Event(), []

    def slowly(memory: np.ndarray) -> None:
        decoded.append(1)
        begun.set()
        assert go_on.wait(30)
        filled(memory, 7)

    one = threading.Thread(target=cache.get, args=(1, slowly))
    one.start()
    assert begun.wait(30)
    assert cache.get(1, slowly, wait=False) is None
    found: list[Any] = []
    two = threading.Thread(target=lambda: found.append(cache.get(1, slowly)))
    two.start()
    go_on.set()
    one.join()
    two.join()
    assert decoded == [1]
    assert (found[0] == 7).all()


def test_a_chunk_that_cannot_be_decoded_is_tried_again() -> None:
    """An error leaves nothing behind: the next one who wants the chunk decodes it."""
    cache = ChunkCache(limit=1 << 20, chunks=2, chunk_bytes=4096)

    def broken(memory: np.ndarray) -> None:
        raise DecodeError("damaged")

    for _ in range(2):
        with pytest.raises(DecodeError):
            cache.get(1, broken)
    chunk = cache.get(1, lambda memory: filled(memory, 3))
    assert chunk is not None
    assert (chunk == 3).all()
