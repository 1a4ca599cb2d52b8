"""Chunks of HDF5 files decoded outside the library: the filters users have, and the cache."""

import struct
import sys
import threading
import warnings
import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import h5py
import hdf5plugin
import imagecodecs
import numpy as np
import pytest
import sweep_chunks
from fakes import encoded, first_batch, paint

import asyncreader
from asyncreader import AsyncReader, DecodeError, FormatError, WorkerError
from asyncreader.pipeline import build
from asyncreader.pixels.rows import Writer
from asyncreader.sources import Request, open_source
from asyncreader.sources.hdf5 import checks, chunk_cache, chunks, filters, stored
from asyncreader.sources.hdf5.chunk_cache import Chunk, ChunkCache, Decode
from asyncreader.stats import Meter
from asyncreader.system.memory import bytes_at

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


@pytest.mark.some(3)
@pytest.mark.parametrize(("chunk", "dtype"), [(1, "u1"), (5, "<u2"), (1, ">f4"), (5, "<f8")])
@pytest.mark.parametrize("name", FILTERS)
def test_filters_of_users(tmp_path: Path, name: str, chunk: int, dtype: str) -> None:
    """What a filter's own library wrote comes out as it went in, whatever dtype and chunk."""
    pixels = PIXELS.astype(dtype) * (1 if dtype == "u1" else 5)
    path = written(tmp_path, name, pixels, chunk)
    with AsyncReader(path=path, batch_size=8, shuffle=True, layout="NHWC", nthread=2) as reader:
        for data, labels in reader:
            np.testing.assert_array_equal(data, pixels[labels[:, 0]])
            assert data.dtype == pixels.dtype.newbyteorder("=")
        assert reader.stats().decode_seconds > 0


@pytest.mark.some(3)
@pytest.mark.parametrize("name", FILTERS)
def test_damaged_chunks_of_users(tmp_path: Path, name: str) -> None:
    """Bytes changed in a compressed chunk end in an error or in the same pixels or, where the
    format has no checksum, in other pixels: never in a crash, and never beside the sample."""
    path = written(tmp_path, name, PIXELS, 1)
    with h5py.File(path) as file:
        info = file["data"].id.get_chunk_info(3)
    whole = bytearray(path.read_bytes())
    rng = np.random.default_rng(1)
    for _ in range(12):
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


def test_what_is_stated_is_held_against_what_is_there() -> None:
    """The sizes in bitshuffle's header against the chunk, before there is room for them; where
    bytes end against the file."""
    step = filters.Filter(filters.BITSHUFFLE, (0, 3, 1, 0, 2))
    for total, block in ((1 << 30, 8), (64, 0), (64, 12)):
        stated = np.frombuffer(struct.pack(">QI", total, block) + bytes(8), np.uint8)
        with pytest.raises(DecodeError, match="states another size"):
            filters.decode_chunk(stated, (step,), 0, 64, 1)
    with pytest.raises(FormatError, match="the file is truncated"):
        checks.check_inside(cast(Any, SimpleNamespace(size=9, path="a.h5")), 4, 6)


@pytest.mark.parametrize("width", [2, 3, 7, 160, 161, 324, (1 << 32) - 1])
@pytest.mark.parametrize("code", [0, 1], ids=["gzip", "stored"])
def test_an_item_size_of_the_file(tmp_path: Path, width: int, code: int) -> None:
    """The shuffle filter's item size is a number of the file: chunks are what h5py reads, and
    nothing is undone of a chunk that is shorter than two items."""
    path = tmp_path / "set.h5"
    with h5py.File(path, "w") as file:
        made = file.create_dataset(
            "data", data=PIXELS, chunks=(1, *PIXELS.shape[1:]), shuffle=True, compression="gzip"
        )
        for number in range(len(PIXELS) if code else 0):  # without gzip
            made.id.write_direct_chunk((number, 0, 0, 0), PIXELS[number].tobytes(), 2)
    raw, before = path.read_bytes(), b"shuffle\0" + (1).to_bytes(4, "little")
    assert raw.count(before) == 1
    path.write_bytes(raw.replace(before, b"shuffle\0" + width.to_bytes(4, "little")))
    with h5py.File(path) as file:
        expected = file["data"][()]
    assert (expected == PIXELS).all() == (width > 162)
    with AsyncReader(path=path, batch_size=37, layout="NHWC") as reader:
        np.testing.assert_array_equal(next(iter(reader)).data, expected)


class Lacking:
    """imagecodecs without a codec: as it is where its library cannot be loaded, as of a version
    that did not have it, or where memory runs out."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def __getattr__(self, name: str) -> Any:
        if isinstance(self.error, AttributeError):
            raise self.error

        def decode(*given: Any, **named: Any) -> Any:
            raise self.error

        return decode


@pytest.mark.parametrize(
    "error",
    [ImportError("no codec"), AttributeError("no codec"), MemoryError("no memory")],
    ids=repr,
)
@pytest.mark.parametrize("name", ["gzip, shuffle, fletcher32", "lzf", "zstd", "blosc lz4 1", "lz4"])
def test_a_codec_that_fails_is_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, error: Exception
) -> None:
    """A codec that cannot be loaded, or memory that runs out, fails the batch: on_error="zero" does
    not serve zeros for it. Filters that h5py has are tried when a set is opened."""
    path = written(tmp_path, name, np.full_like(PIXELS, 3), 1)
    params: dict[str, Any] = {"path": path, "batch_size": 8, "on_error": "zero"}
    kind = MemoryError if isinstance(error, MemoryError) else ImportError
    with AsyncReader(params) as reader:
        monkeypatch.setitem(sys.modules, "imagecodecs", Lacking(error))  # type: ignore[arg-type]
        reader.fetchData()
        with pytest.raises(WorkerError, match=kind.__name__) as failed:
            reader.getNextBatch()
        assert isinstance(failed.value.__cause__, kind)
    if name.startswith(("gzip", "lzf")):
        with pytest.raises(kind):
            AsyncReader(params)


@pytest.fixture
def without_imagecodecs(monkeypatch: pytest.MonkeyPatch) -> None:
    """As installed without its extra ``codecs``."""
    monkeypatch.setitem(sys.modules, "imagecodecs", None)  # type: ignore[arg-type]


def test_fletcher32_of_our_own() -> None:
    """The sums of HDF5's checksum are those of its own code, of any length and of zeros."""
    rng = np.random.default_rng(2)
    for size in (0, 1, 2, 7, 360, 718, 721, 65_536 * 2 + 1, 300_001):
        for data in (rng.integers(0, 256, size, np.uint8), np.full(size, 255, np.uint8)):
            assert filters.fletcher32(data) == imagecodecs.h5checksum_fletcher32(data.tobytes())
        assert filters.fletcher32(np.zeros(size, np.uint8)) == 0


@pytest.mark.usefixtures("without_imagecodecs")
def test_gzip_without_imagecodecs(tmp_path: Path) -> None:
    """Without imagecodecs gzip, shuffle and fletcher32 are undone as with it, a damaged chunk fails
    its sample alone, and HDF5 itself undoes lzf, with a warning that names the extra."""
    name = "gzip, shuffle, fletcher32"
    pixels = PIXELS.astype("<u2") * 5
    path = written(tmp_path, name, pixels, 1)
    np.testing.assert_array_equal(first_batch(path=path, batch_size=37, layout="NHWC").data, pixels)
    with h5py.File(path) as file:
        info = file["data"].id.get_chunk_info(3)
    whole = bytearray(path.read_bytes())
    for at in range(0, info.size, 97):
        broken = bytearray(whole)
        broken[info.byte_offset + at] ^= 0x55
        path.write_bytes(broken)
        batch = first_batch(path=path, batch_size=37, layout="NHWC", on_error="zero")
        assert np.flatnonzero(~batch.mask).tolist() == [3]
    path = written(tmp_path, "lzf", pixels, 5)
    with (
        pytest.warns(UserWarning, match=r"lzf can only be .*\[codecs\]"),
        AsyncReader(path=path, batch_size=37, layout="NHWC") as reader,
    ):
        np.testing.assert_array_equal(next(iter(reader)).data, pixels)


@pytest.mark.usefixtures("without_imagecodecs")
@pytest.mark.parametrize("name", ["zstd", "lz4", "bitshuffle lz4", "blosc zstd 1"])
def test_filters_that_need_imagecodecs(tmp_path: Path, name: str) -> None:
    """A set with another filter is a FormatError whose one line names it and the extra."""
    path = written(tmp_path, name, PIXELS, 5)
    with pytest.raises(FormatError, match=rf"needs imagecodecs.*{name.split()[0]}.*\[codecs\]"):
        AsyncReader(path=path)


# -- where chunks lie ------------------------------------------------------------------------------


@pytest.mark.some(2)
@pytest.mark.parametrize("layout", sweep_chunks.drawn(80), ids=str)
def test_chunks_of_every_index(tmp_path: Path, layout: sweep_chunks.Layout) -> None:
    """A chunked set is read as h5py reads it, whatever index lists its chunks, whatever axes may
    grow and whatever filters it has."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*scaleoffset can only be decoded")
        assert sweep_chunks.differs(layout, tmp_path / "set.h5") == "equal"


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:.*scaleoffset can only be decoded")
def test_chunks_of_all_layouts(tmp_path: Path) -> None:
    """Each of the 31,644 layouts is read as h5py reads it, or refused (20 minutes)."""
    said = {
        str(one): sweep_chunks.differs(one, tmp_path / "a.h5") for one in sweep_chunks.layouts()
    }
    assert {one: what for one, what in said.items() if what not in ("equal", "refused")} == {}


def growing(path: Path, **more: Any) -> np.ndarray:
    """A set that grows along its last axis, the samples; HDF5 2.0 lists its chunks wrongly."""
    pixels = np.random.default_rng(3).integers(0, 256, (8, 8, 3, 40)).astype(np.uint8)
    with h5py.File(path, "w", libver="latest") as file:
        storage: Any = {"maxshape": (8, 8, 3, None), "chunks": (4, 8, 1, 7), "compression": "gzip"}
        file.create_dataset("data", data=pixels, **storage)
        file.create_dataset("more", data=pixels[::-1], **storage)
        labels = np.arange(40 * 6).reshape(40, 6)
        file.create_dataset("labels", data=labels, maxshape=(40, None), chunks=(9, 2))
    return pixels.transpose(3, 0, 1, 2)


DIMS = {"num_dim": 4, "h_dim": 1, "w_dim": 2, "cha_dim": 3}


@pytest.mark.parametrize("workers", ["thread", pytest.param("process", marks=pytest.mark.slow)])
def test_a_set_that_grows_along_its_last_axis(tmp_path: Path, workers: str) -> None:
    """Data, a second field and labels whose growing axis is the last are served as h5py reads
    them, by threads and by worker processes."""
    images = growing(tmp_path / "set.h5")
    params = {"path": tmp_path / "set.h5", "data_field": ["data", "more"], "workers": workers}
    data, labels = first_batch(params, batch_size=40, layout="NHWC", **DIMS)
    np.testing.assert_array_equal(data[0], images)
    np.testing.assert_array_equal(data[1], images[:, ::-1])
    np.testing.assert_array_equal(labels, np.arange(240).reshape(40, 6))


def test_a_wrong_list_of_chunks_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the list of chunks and h5py's own read disagree, in places or in values, opening the
    set is an error, and so is a list that names chunks outside the shape, one twice, or too few."""
    path = tmp_path / "set.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("data", data=PIXELS, chunks=(5, 12, 9, 3), compression="gzip")
    open_source(path).close()
    differs, decode = "not what the HDF5 library reads there", stored.decode_chunk
    index = "chunk index of dataset 'data'"
    wrongs: list[tuple[str, Any, str]] = [
        ("_unrotated", lambda at, *_: at[::-1], differs),
        *(("_unrotated", wrong, index)
          for wrong in (lambda at, *_: at + 1, lambda at, *_: at * 0, lambda at, *_: at[1:])),
        ("decode_chunk", lambda *given: decode(*given) ^ 1, differs),
    ]  # fmt: skip
    for name, wrong, says in wrongs:
        with monkeypatch.context() as patch:
            patch.setattr(stored, name, wrong)
            with pytest.raises(FormatError, match=says):
                open_source(path)


def test_a_chunk_outside_the_file(tmp_path: Path) -> None:
    """A chunk that lies outside the file is not named as a record: it holds several, and in a list
    of files that number would be another's."""
    for name in ("a.h5", "b.h5"):
        with h5py.File(tmp_path / name, "w") as file:
            made = file.create_dataset(
                "data", data=PIXELS, chunks=(5, 12, 9, 3), compression="gzip"
            )
            at = made.id.get_chunk_info(3).byte_offset
    raw, place = (tmp_path / "b.h5").read_bytes(), at.to_bytes(8, "little")
    assert raw.count(place) == 1
    (tmp_path / "b.h5").write_bytes(raw.replace(place, (1 << 40).to_bytes(8, "little")))
    with pytest.raises(FormatError, match="a chunk of dataset 'data' lies outside") as caught:
        AsyncReader(path=[tmp_path / "a.h5", tmp_path / "b.h5"])
    assert caught.value.index is None


def odd_type(name: str) -> Any:
    """A number of other bits than numpy's."""
    kind = {"bfloat16": h5py.h5t.IEEE_F32LE, "10 bits": h5py.h5t.STD_I16LE}.get(
        name, h5py.h5t.STD_U16LE
    )
    kind = kind.copy()
    if name == "bfloat16":
        kind.set_fields(15, 7, 8, 0, 7)
        kind.set_size(2)
    else:
        kind.set_precision(10)
        kind.set_offset(4 if name == "shifted" else 0)
    return kind


@pytest.mark.parametrize("chunk", [None, (2, 4)])
@pytest.mark.parametrize("name", ["bfloat16", "10 bits", "shifted"])
def test_numbers_of_other_bits(tmp_path: Path, name: str, chunk: Any) -> None:
    """Numbers whose stored bits are not numpy's, which HDF5 converts, are refused as data and
    converted as labels."""
    path, values = tmp_path / "set.h5", np.arange(40).reshape(10, 4)
    with h5py.File(path, "w") as file:
        plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        if chunk is not None:
            plist.set_chunk(chunk)
        space = h5py.h5s.create_simple(values.shape)
        made = h5py.h5d.create(file.id, b"odd", odd_type(name), space, plist)
        kind = "f4" if name == "bfloat16" else "i2"
        made.write(h5py.h5s.ALL, h5py.h5s.ALL, values.astype(kind))
        file["data"] = values
    with pytest.raises(FormatError, match="unusual bit layout"):
        open_source(path, Request(data="odd", labels=None))
    with AsyncReader(path=path, labels_field="odd", batch_size=10) as reader:
        np.testing.assert_array_equal(next(iter(reader)).labels, values)


@pytest.mark.parametrize("chunk", [None, 4])
@pytest.mark.parametrize("name", ["U8BE", "I8BE", "B8LE", "I16BE", "B16BE"])
def test_numbers_of_big_endian_machines(tmp_path: Path, name: str, chunk: Any) -> None:
    """Numbers whose type says that their high byte is first are served, those of one byte and bit
    fields too; alone, in structured rows, and as labels."""
    kind, values = getattr(h5py.h5t, f"STD_{name}"), np.arange(10)
    stored = np.dtype(f">{name[0].lower().replace('b', 'u')}{2 if '16' in name else 1}")
    rows = h5py.h5t.create(h5py.h5t.COMPOUND, stored.itemsize)
    rows.insert(b"x", 0, kind)
    with h5py.File(tmp_path / "set.h5", "w") as file:
        for field, of in ("data", kind), ("rows", rows):
            plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
            if chunk is not None:
                plist.set_chunk((chunk,))
            space = h5py.h5s.create_simple(values.shape)
            made = h5py.h5d.create(file.id, field.encode(), of, space, plist)
            written = values.astype(stored)
            made.write(h5py.h5s.ALL, h5py.h5s.ALL, written, of)
    for field in "data", "rows.x":
        with asyncreader.open(tmp_path / "set.h5", data_field=field, labels_field=None) as ds:
            np.testing.assert_array_equal(ds[:], values)
            assert ds[:].dtype == stored.newbyteorder("=")
    with AsyncReader(path=tmp_path / "set.h5", labels_field="data", batch_size=10) as reader:
        np.testing.assert_array_equal(next(iter(reader)).labels, values)


# -- the cache -------------------------------------------------------------------------------------


#: Bytes of the chunks below.
SIZE = 256


def filled(numbers: list[int], targets: np.ndarray) -> dict[int, DecodeError]:
    """Fills chunks with their own numbers; those whose number is 5 modulo 17 are damaged."""
    for number, target in zip(numbers, targets.tolist(), strict=True):
        bytes_at(target, SIZE)[:] = 255 if number % 17 == 5 else number
    return {i: DecodeError("damaged") for i, number in enumerate(numbers) if number % 17 == 5}


def pixels(chunk: Chunk) -> np.ndarray:
    return bytes_at(chunk.address, SIZE)


def get(cache: ChunkCache, number: int, decode: Decode, alone: bool = False) -> Chunk | None:
    """A chunk by itself. DecodeError if it is damaged."""
    (found,) = cache.get_some([number], decode, alone)
    if isinstance(found, DecodeError):
        raise found
    return found


def got(cache: ChunkCache, number: int, decode: Any = filled, alone: bool = False) -> Chunk:
    chunk = get(cache, number, decode, alone)
    assert chunk is not None
    return chunk


def test_a_pinned_chunk_stays() -> None:
    """No other chunk is decoded into the memory of one that is pinned; where all are pinned a
    chunk comes in memory of its own, or not at all."""
    cache = ChunkCache(limit=2 * SIZE, chunks=9, chunk_bytes=SIZE)
    held = [got(cache, number) for number in (1, 2)]
    entries, addresses = cache.pin(np.array([2, 5, 2, 1]))
    assert (entries != 0).tolist() == [True, False, True, True]
    assert addresses[1] == 0
    assert addresses[3] == held[0].address
    cache.unpin([chunk.entry for chunk in held])
    assert get(cache, 3, filled) is None
    lonely = got(cache, 3, alone=True)
    assert lonely.entry == 0
    assert (pixels(lonely) == 3).all()
    assert [int(pixels(chunk)[0]) for chunk in held] == [1, 2]
    cache.unpin(entries)
    assert {got(cache, number).entry for number in (3, 4)} == {chunk.entry for chunk in held}
    assert (cache.pin(np.array([1, 2]))[0] == 0).all()


def test_the_chunk_used_longest_ago_goes_first() -> None:
    """Of three chunks in two entries the one goes that was not used lately."""
    cache = ChunkCache(limit=2 * SIZE, chunks=9, chunk_bytes=SIZE)
    for number in (1, 2):
        cache.unpin([got(cache, number).entry])
    cache.unpin(cache.pin(np.array([1]))[0])
    cache.unpin([got(cache, 3).entry])
    assert (cache.pin(np.array([1, 2, 3]))[0] != 0).tolist() == [True, False, True]


def test_some_chunks_at_once() -> None:
    """Of chunks that are asked for together, those that are held come as they are, the others are
    made in one call as far as there are entries, and one that is damaged costs no other."""
    cache = ChunkCache(limit=4 * SIZE, chunks=50, chunk_bytes=SIZE)
    held, calls = got(cache, 2), []

    def noted(numbers: list[int], targets: np.ndarray) -> dict[int, DecodeError]:
        calls.append(numbers)
        return filled(numbers, targets)

    found = cache.get_some([1, 2, 5, 3, 4], noted)
    assert calls == [[1, 5, 3]]
    assert isinstance(found[2], DecodeError)
    assert found[4] is None
    chunks = [one for one in found if isinstance(one, Chunk)]
    assert [set(pixels(one).tolist()) for one in chunks] == [{1}, {2}, {3}]
    assert chunks[1].entry == held.entry
    assert cache.get_some([6, 7], noted)[0] is not None  # the entry of the damaged one is free
    assert calls[1:] == [[6]]

    def stopped(numbers: list[int], targets: np.ndarray) -> dict[int, DecodeError]:
        raise KeyboardInterrupt

    cache.unpin([one.entry for one in chunks])
    with pytest.raises(KeyboardInterrupt):
        cache.get_some([1, 8], stopped)
    cache.unpin([held.entry])
    # nothing but what 6 has is pinned now
    assert [n for n in (9, 10, 11, 12) if get(cache, n, filled) is not None] == [9, 10, 11]


def test_what_fails_leaves_nothing_pinned() -> None:
    """Where it is an error to tell of a damaged chunk, or to copy what others hold, those that were
    decoded with it are let go."""
    cache = ChunkCache(limit=4 * SIZE, chunks=50, chunk_bytes=SIZE)

    def broken(*_: object) -> None:
        raise OSError("planned")

    def unused(*_: object) -> None:
        pass

    some, job = np.array([5, 1, 2, 3]), cast(Writer, SimpleNamespace(meter=Meter(), stopped=False))
    for give, fail in ((unused, broken), (broken, unused)):
        with pytest.raises(OSError, match="planned"):
            chunk_cache.decode_each(cache, some, filled, job, give, fail)
        held = [got(cache, number).entry for number in (6, 7, 8, 9)]
        assert sorted(held) == [1, 2, 3, 4]
        cache.unpin(held)


@pytest.mark.parametrize("capacity", [1, 3, 40])
def test_many_threads_over_one_cache(capacity: int) -> None:
    """Whatever eight threads pin, decode, fail to decode and release, none ever sees another
    chunk's pixels under a number, and nothing stays pinned."""
    cache = ChunkCache(limit=capacity * SIZE, chunks=50, chunk_bytes=SIZE)
    wrong: list[int] = []

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for _ in range(300):
            numbers = rng.integers(0, 50, 4)
            entries, addresses = cache.pin(numbers)
            for number, address in zip(numbers.tolist(), addresses.tolist(), strict=True):
                if address and (bytes_at(address, SIZE) != number).any():
                    wrong.append(number)
            cache.unpin(entries)
            if not rng.integers(8):
                cache.release()
            some = np.unique(numbers[: rng.integers(1, 4)]).tolist()
            found = cache.get_some(some, filled, or_own_memory=bool(rng.integers(2)))
            for number, chunk in zip(some, found, strict=True):
                if isinstance(chunk, Chunk) and (pixels(chunk) != number).any():
                    wrong.append(number)
                if isinstance(chunk, DecodeError) != (number % 17 == 5 and chunk is not None):
                    wrong.append(number)
            cache.unpin([chunk.entry for chunk in found if isinstance(chunk, Chunk)])
            if None in found:
                cache.wait(some[found.index(None)])

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    places = {got(cache, n, filled).entry for n in range(capacity) if n % 17 != 5}
    assert len(places - {0}) == len([n for n in range(capacity) if n % 17 != 5])


def shared(path: Path, samples: int = 2048, **filters: Any) -> np.ndarray:
    """A set with 32 samples a chunk, the samples: 98 kB each chunk."""
    pixels = np.random.default_rng(5).integers(0, 256, (samples, 32, 32, 3)).astype(np.uint8)
    with h5py.File(path, "w") as file:
        file.create_dataset("data", data=pixels, chunks=(32, 32, 32, 3), **filters)
        file["labels"] = np.arange(samples)[:, None]
    return pixels


BLOCKS: dict[str, Any] = {"shuffle": "block", "shuffle_window": 1024, "layout": "NHWC"}


def some_chunks(group: h5py.Group, name: str, values: np.ndarray, **storage: Any) -> None:
    """A data set of which the first and each third chunk is never written."""
    data = group.create_dataset(name, values.shape, values.dtype, **storage)
    for number, where in enumerate(data.iter_chunks()):
        if number % 3:
            data[where] = values[where]


def no_chunks(group: h5py.Group, name: str, values: np.ndarray, **storage: Any) -> None:
    group.create_dataset(name, values.shape, values.dtype, **storage)


def whole_chunks(group: h5py.Group, name: str, values: np.ndarray, **storage: Any) -> None:
    group.create_dataset(name, data=values, **storage)


def every_source(folder: Path, kind: str, write: Any = whole_chunks, **more: Any) -> dict[str, Any]:
    """What opens a set of chunks, of every kind of source that decodes them."""
    given, packed = {"path": folder / "set.h5", "labels_field": None}, {"compression": "gzip"}
    packed |= more
    files = [np.frombuffer(encoded(one, "PNG"), np.uint8) for one in paint(8, (9, 7, 3))]
    padded = np.zeros((8, max(one.size for one in files)), np.uint8)
    for row, one in zip(padded, files, strict=True):
        row[: one.size] = one
    with h5py.File(given["path"], "w") as file:
        if kind in ("rows", "cut", "patches", "values"):
            data = PIXELS[..., 0] if kind == "patches" else PIXELS
            size = (4, 5 if kind == "cut" else 12, *data.shape[2:])
            write(file, "data", data, chunks=size, **packed)
        if kind == "values":
            file["data_lengths"] = np.array([30, 7])
            return {**given, "max_length": 4}
        if kind == "sparse":
            for name, values in (("data", np.ones(8, "f4")), ("indices", np.arange(8) % 4)):
                write(file, f"m/{name}", values, chunks=(2,), **packed)
            file["m/indptr"], file["m"].attrs["shape"] = np.arange(0, 9, 2), (4, 4)
            return {**given, "data_field": "m"}
        for number in range(3 if kind.startswith("groups") else 0):
            rows = padded if kind == "groups of images" else PIXELS
            chunks = (4, *rows.shape[1:])
            write(file, f"data/demo_{number}/x", rows, chunks=chunks, **packed)
            given |= {"data_field": "x"}
    if kind == "patches":
        return {**given, "patch": (4, 4), "patch_at": "grid"}
    return given


@pytest.mark.parametrize(
    "kind", ["rows", "cut", "patches", "values", "sparse", "groups", "groups of images"]
)
def test_release_gives_back_every_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """``release()`` of any source gives back the memory of all decoded chunks, also those of other
    sources that it holds."""
    taken: list[weakref.ref[np.ndarray]] = []
    take = chunk_cache.aligned_empty

    def noted(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        memory = take(shape, dtype)
        taken.append(weakref.ref(memory))
        return memory

    monkeypatch.setattr(chunk_cache, "aligned_empty", noted)
    with asyncreader.open(**every_source(tmp_path, kind)) as dataset:
        before = dataset[:]
        assert any(memory() is not None for memory in taken)
        dataset.source.release()
        assert all(memory() is None for memory in taken)
        np.testing.assert_equal(dataset[:], before)


def written_whole(path: Path) -> Path:
    """A file with the same data sets, each written to its end with what h5py reads."""
    whole = path.with_name("whole.h5")
    with h5py.File(path) as file, h5py.File(whole, "w") as copy:

        def add(name: str, item: Any) -> None:
            if isinstance(item, h5py.Dataset):
                copy.create_dataset(name, data=item[()], chunks=item.chunks)
            else:
                copy.require_group(name).attrs.update(item.attrs)

        file.visititems(add)
    return whole


@pytest.mark.parametrize("filters", [{}, {"compression": "gzip"}, {"compression": "lzf"}], ids=str)
@pytest.mark.parametrize("kind", ["rows", "cut", "patches", "values", "sparse", "groups"])
@pytest.mark.parametrize("write", [some_chunks, no_chunks])
def test_chunks_that_were_never_written(
    tmp_path: Path, kind: str, filters: dict[str, Any], write: Any
) -> None:
    """Where the writer of a file set a fill value, chunks that were never written hold it, in every
    kind of source: what is served is what h5py reads."""
    more = {"compression": None, "fillvalue": 1, **filters}
    params = every_source(tmp_path, kind, write, **more)
    with (
        asyncreader.open(**params) as part,
        asyncreader.open(**{**params, "path": written_whole(params["path"])}) as whole,
    ):
        assert len(part) == len(whole)
        np.testing.assert_equal(part[:], whole[:])
        np.testing.assert_equal(part[len(part) - 1], whole[len(part) - 1])


@pytest.mark.parametrize("dtype", ["<u2", ">i4", "<f4", ">f8", "?", "structured"])
def test_a_fill_value_of_any_type(tmp_path: Path, dtype: str) -> None:
    """Fill values are served as h5py reads them: of numbers of any kind and byte order, NaN, and
    structured rows; of data and of labels."""
    pair = np.dtype([("x", "<f4"), ("y", ">i2", (2,))])
    fill: Any = {"<f4": np.nan, ">f8": -np.inf, "?": True}.get(dtype, 300)
    rows = np.zeros((9, 4), dtype) if dtype != "structured" else np.zeros(9, pair)
    more: dict[str, Any] = {"labels_field": "labels"}
    if dtype == "structured":
        fill, more["members"] = np.array((2.5, [7, -8]), pair), ["x"]
    with h5py.File(tmp_path / "set.h5", "w") as file:
        some_chunks(file, "data", rows, chunks=(2, *rows.shape[1:]), fillvalue=fill)
        some_chunks(file, "labels", np.arange(9), chunks=(2,), fillvalue=-1)
    with h5py.File(tmp_path / "set.h5") as file:
        data, labels = file["data"][()], file["labels"][()]
    batch = first_batch(path=tmp_path / "set.h5", batch_size=9, **more)
    expected = data["x"][:, None] if dtype == "structured" else data
    np.testing.assert_array_equal(batch.data, expected)
    np.testing.assert_array_equal(batch.labels, labels)


@pytest.mark.parametrize("kind", ["rows", "cut", "patches", "values", "sparse", "groups"])
def test_chunks_without_a_fill_value(tmp_path: Path, kind: str) -> None:
    """Where no one set a fill value, or the file says that none is to be used, what was never
    written is an error: it says how many chunks that are, and that the file may be unfinished."""
    never = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    never.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    for more in ({}, {"fillvalue": 1, "dcpl": never}):
        params = every_source(tmp_path, kind, some_chunks, **more)
        with (
            pytest.raises(FormatError, match=r"lacks some.*found \d+ of \d+ chunks.*unfinished"),
            asyncreader.open(**params) as dataset,
        ):
            dataset[:]


@pytest.mark.parametrize("name", ["labels", "mask/train"])
def test_tables_without_a_fill_value(tmp_path: Path, name: str) -> None:
    """A table that is read whole is refused in the same way; so is text of variable length, whose
    fill value would lie in a heap."""
    params = every_source(tmp_path, "groups" if name == "mask/train" else "rows")
    with h5py.File(params["path"], "a") as file:
        if name == "labels":
            some_chunks(file, name, np.arange(37), chunks=(4,))
        else:
            text = h5py.string_dtype()
            some_chunks(file, name, np.array(["demo_0"] * 9, text), chunks=(2,), fillvalue="demo_1")
    with pytest.raises(FormatError, match=r"lacks some.*found \d+ of \d+ chunks"):
        AsyncReader(params, labels_field="labels" if name == "labels" else None)


def test_images_in_rows_that_are_cut_over_many_chunks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Image files in padded rows come whole where a row lies in several chunks, also where these
    are too large to be put together."""
    images = np.random.default_rng(1).integers(0, 256, (6, 32, 24, 3), np.uint8)
    rows = np.zeros((6, 8192), np.uint8)
    for row, image in zip(rows, images, strict=True):
        stored = encoded(image, "PNG")
        row[: len(stored)] = np.frombuffer(stored, np.uint8)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("data", data=rows, chunks=(2, 512), compression=1)
    for most in (chunks.MOST_ASSEMBLED, 1024):
        monkeypatch.setattr(chunks, "MOST_ASSEMBLED", most)
        with asyncreader.open(tmp_path / "a.h5", labels_field=None, layout="NHWC") as dataset:
            np.testing.assert_array_equal(dataset[:], images)


def decoded_chunks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A list that has an entry for each chunk that is decoded from now on."""
    decoded, decode = list[int](), chunk_cache.decode_chunk
    monkeypatch.setattr(
        chunk_cache, "decode_chunk", lambda *given: decoded.append(1) or decode(*given)
    )
    return decoded


@pytest.mark.parametrize("files", [1, 2])
def test_blocks_of_a_set_that_fits_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: int
) -> None:
    """Where all decoded chunks of all files fit in memory, "block" decodes each of them once in
    all epochs; where those of all together do not, again in each."""
    paths = [tmp_path / f"{number}.h5" for number in range(files)]
    for path in paths:
        shared(path, compression="lzf")
    decoded = decoded_chunks(monkeypatch)
    once, size = files * 2048 // 32, files * 2048 * 32 * 32 * 3
    for most in (size, size - 1):
        monkeypatch.setattr(build, "CACHE_BYTES", most)
        decoded.clear()
        with AsyncReader(path=paths, batch_size=256, nthread=1, **BLOCKS) as reader:
            for _ in range(3):
                assert sum(len(batch) for batch in reader) == files * 2048
        assert len(decoded) == once if most == size else len(decoded) > 2 * once


def test_windows_take_memory_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Window after window is decoded into the same memory: none is taken after the first batch,
    and each chunk is decoded once an epoch."""
    shared(tmp_path / "set.h5", compression="lzf")
    monkeypatch.setattr(build, "CACHE_BYTES", 0)  # the set is larger than what is remembered
    taken: list[int] = []
    take = chunk_cache.aligned_empty

    def counted(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        taken.append(int(np.prod(shape)))
        return take(shape, dtype)

    monkeypatch.setattr(chunk_cache, "aligned_empty", counted)
    decoded = decoded_chunks(monkeypatch)
    with AsyncReader(path=tmp_path / "set.h5", batch_size=256, nthread=1, **BLOCKS) as reader:
        for _ in range(3):
            decoded.clear()
            assert sum(len(batch) for batch in reader) == 2048
    assert len(decoded) <= 2048 // 32
    assert len(taken) == 1
    # a window of 32 chunks, and a few more
    assert taken[0] <= 40 * 32 * 3072


#: How shared chunks are read by eight threads: bytes of the cache, and parameters.
READ: dict[str, tuple[int | None, dict[str, Any]]] = {
    "one by one": (0, {"batch_size": 16, "shuffle": True}),
    "a large batch": (0, {"batch_size": 1024, "shuffle": True}),
    "copy": (None, {"batch_size": 64, **BLOCKS}),
    "affine": (None, {"batch_size": 64, "dtype": "float32", "scale": 0.5, **BLOCKS}),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", READ)
def test_many_threads_over_shared_chunks(
    tmp_path: Path, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eight threads over shared chunks, also where there is room for two, serve every sample once
    an epoch, with its own pixels, copied or converted: none waits for ever for another one's chunk,
    or for memory."""
    pixels, (cache, given) = shared(tmp_path / "set.h5", compression="lzf"), READ[case]
    monkeypatch.setattr(chunks, "CACHE_BYTES", chunks.CACHE_BYTES if cache is None else cache)
    params = {"nthread": 8, "njob": 8, "layout": "NHWC", **given}
    with AsyncReader(path=tmp_path / "set.h5", **params) as reader:
        for _ in range(2):
            seen = []
            for data, labels in reader:
                expected = pixels[labels[:, 0]] * given.get("scale", 1)
                np.testing.assert_array_equal(data, expected)
                seen.append(labels[:, 0].copy())
            np.testing.assert_array_equal(np.sort(np.concatenate(seen)), np.arange(2048))
