"""HDF5 chunks read and decoded outside the HDF5 library: the filters, and a source over chunks.

Filters are undone in reverse order of the pipeline, skipping those in a chunk's mask (HDF5 File
Format Specification 3.0, IV.A.2.l and III.A.1). Numbers of registered filters are the HDF Group's.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from ..errors import DecodeError, FormatError
from ..fill import Fill
from ..memory import aligned_empty
from ..stats import Meter
from .base import Array, BaseSource, RowError, RowPlan, SourceSpec, UInt64
from .store import ByteStore, MemoryStore

Int64: TypeAlias = npt.NDArray[np.int64]
UInt8: TypeAlias = npt.NDArray[np.uint8]

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

MEMORY: Final = MemoryStore()

#: Decoded chunks that a source may remember.
CACHE_BYTES: Final = 64 << 20

#: Memory of dropped chunks that is kept for the next ones.
SPARE_BYTES: Final = 2 << 20


@dataclass(frozen=True)
class Filter:
    """One step of a pipeline: its registered number and client values."""

    code: int
    values: tuple[int, ...]


def decode_chunk(
    data: UInt8,
    filters: tuple[Filter, ...],
    mask: int,
    size: int,
    item: int,
    out: UInt8 | None = None,
) -> UInt8:
    """A chunk's ``size`` bytes of pixels from its stored bytes; DecodeError if damaged.

    ``out`` (uint8, ``size``) lends memory: what the last step makes may be put there.
    """
    for place in range(len(filters) - 1, -1, -1):
        if mask & (1 << place):
            continue
        step = filters[place]
        try:
            if step.code == DEFLATE and place == 0 and out is not None:
                data = _inflate_into(data, out)
            else:
                data = _UNDO[step.code](data, step, size, item)
        except DecodeError:
            raise
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
    import imagecodecs

    # 4 more: a fletcher32 sum may lie inside
    return _bytes(imagecodecs.deflate_decode(data, out=np.empty(size + 4, np.uint8)))


def _inflate_into(data: UInt8, out: UInt8) -> UInt8:
    import imagecodecs

    return _bytes(imagecodecs.deflate_decode(data, out=out))


def _undo_shuffle(data: UInt8, step: Filter, size: int, item: int) -> UInt8:
    width = step.values[0] if step.values else item
    if width <= 1:
        return data
    whole = data.size // width * width
    out = np.empty(data.size, np.uint8)
    out[:whole].reshape(-1, width)[:] = data[:whole].reshape(width, -1).T
    out[whole:] = data[whole:]
    return out


def _undo_fletcher32(data: UInt8, step: Filter, size: int, item: int) -> UInt8:
    import imagecodecs

    if data.size < 4:
        raise DecodeError("a chunk is too short for its checksum")
    body = data[:-4]
    stated = int.from_bytes(data[-4:].tobytes(), "little")
    found = int(imagecodecs.h5checksum_fletcher32(body.tobytes()))
    # HDF5 up to 1.6.2 stored the halves the other way round, and is still accepted by the library
    swapped = ((found & 0x00FF00FF) << 8) | ((found >> 8) & 0x00FF00FF)
    if stated not in (found, swapped):
        raise DecodeError(
            "a chunk's fletcher32 checksum is wrong", found=f"{found:08x}", expected=f"{stated:08x}"
        )
    return body


def _undo_lzf(data: UInt8, step: Filter, size: int, item: int) -> UInt8:
    import imagecodecs

    return _bytes(imagecodecs.lzf_decode(data.tobytes(), out=size))


def _undo_lz4(data: UInt8, step: Filter, size: int, item: int) -> UInt8:
    import imagecodecs

    return _bytes(imagecodecs.lz4h5_decode(data, out=size))


def _undo_zstd(data: UInt8, step: Filter, size: int, item: int) -> UInt8:
    import imagecodecs

    return _bytes(imagecodecs.zstd_decode(data, out=size))


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
    if total != size or block_bytes % width:
        raise DecodeError("a bitshuffle chunk states another size", found=total, expected=size)
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
    LZF: _undo_lzf,
    BLOSC: _undo_blosc,
    LZ4: _undo_lz4,
    BITSHUFFLE: _undo_bitshuffle,
    ZSTD: _undo_zstd,
}
READABLE: Final = frozenset(_UNDO)


@dataclass(frozen=True)
class ChunkGrid:
    """A chunked data set: ``shape``, ``chunk`` shape, and per chunk (C order over the grid) its
    offset, stored size and filter mask."""

    shape: tuple[int, ...]
    chunk: tuple[int, ...]
    dtype: np.dtype[Any]
    filters: tuple[Filter, ...]
    offsets: Int64
    sizes: npt.NDArray[np.int64]
    masks: npt.NDArray[np.uint32]

    @property
    def grid(self) -> tuple[int, ...]:
        """Chunks along each axis."""
        return tuple(-(-n // c) for n, c in zip(self.shape, self.chunk, strict=True))

    @property
    def chunk_bytes(self) -> int:
        """Bytes of one decoded chunk."""
        return math.prod(self.chunk) * self.dtype.itemsize


class _Dropped:
    """Chunks dropped in one stretch of time, and the next stretch: alive as long as someone who
    began before it ended holds on. Its memory is then used again (``spare``): fresh pages cost a
    fault each, a quarter of the time that inflating takes."""

    __slots__ = ("chunks", "next", "spare")

    def __init__(self, spare: deque[UInt8]) -> None:
        self.chunks: list[UInt8] = []
        self.next: _Dropped | None = None
        self.spare = spare

    def __del__(self) -> None:
        self.spare.extend(self.chunks)


class ChunkCache:
    """Decoded chunks by number, the longest unused dropped first. Thread-safe.

    Two threads that want the same chunk decode it once: the second waits for the first.
    ``addresses``: int64 (chunks,), where each chunk lies in memory now, 0 where it is not held. An
    address read, or a chunk got, after :meth:`pin` stays good for as long as what pin() returned
    is kept, and no longer: then another chunk is decoded into the same memory.
    """

    def __init__(self, limit: int, chunks: int, chunk_bytes: int) -> None:
        self.limit = limit
        self.addresses = np.zeros(chunks, np.int64)
        self._used = np.zeros(chunks, np.int64)
        self._tick = 0
        self._held: dict[int, UInt8] = {}
        self._chunk_bytes = chunk_bytes
        self._lock = threading.Lock()
        self._busy: dict[int, threading.Lock] = {}
        #: memory of chunks that nobody looks at any more; what is beyond a few goes back
        self._spare: deque[UInt8] = deque(maxlen=max(1, SPARE_BYTES // chunk_bytes))
        self._dropped = _Dropped(self._spare)

    def pin(self) -> object:
        """Keep every chunk that is held now, or dropped from now on, until this is let go."""
        return self._dropped

    def find(self, numbers: Int64) -> Int64:
        """Addresses of chunks (after :meth:`pin`), 0 where one is not held; notes their use."""
        self._tick += 1  # two threads may take the same tick: it only tells old from new
        self._used[numbers] = self._tick
        return self.addresses[numbers]

    def get(self, number: int, decode: Callable[[UInt8], None], wait: bool = True) -> UInt8 | None:
        """The chunk (after :meth:`pin`) from memory, else what ``decode(memory)`` puts there.

        None where another thread is at it and not to be waited for.
        """
        with self._lock:
            found = self._held.get(number)
            if found is not None:
                return found
            busy = self._busy.setdefault(number, threading.Lock())
            mine = busy.acquire(blocking=False)
        if not mine:
            if not wait:
                return None
            busy.acquire()
        try:
            with self._lock:
                found = self._held.get(number)
            if found is not None:
                return found
            try:
                pixels = self._memory()
                decode(pixels)
                self._put(number, pixels)
            finally:
                with self._lock:
                    self._busy.pop(number, None)
        finally:
            busy.release()
        return pixels

    def _memory(self) -> UInt8:
        """Room for a chunk, in pages of its own, which go back to the system when it is dropped."""
        try:
            return self._spare.pop()
        except IndexError:
            fresh: UInt8 = aligned_empty((self._chunk_bytes,), np.uint8)
            return fresh

    def _put(self, number: int, pixels: UInt8) -> None:
        with self._lock:
            if number in self._held:  # dropped meanwhile, and decoded by two: counted once
                self._dropped.chunks.append(pixels)  # its decoder still looks at it
                return
            while self._held and (len(self._held) + 1) * self._chunk_bytes > self.limit:
                self._drop_oldest()
            self._tick += 1
            self._used[number] = self._tick
            self._held[number] = pixels
            self.addresses[number] = pixels.ctypes.data

    def _drop_oldest(self) -> None:
        held = np.fromiter(self._held, np.int64, len(self._held))
        oldest = int(held[np.argmin(self._used[held])])
        self.addresses[oldest] = 0  # first: nobody finds it any more
        self._dropped.chunks.append(self._held.pop(oldest))
        self._dropped.next = _Dropped(self._spare)
        self._dropped = self._dropped.next


class ChunkSource(BaseSource):
    """Samples inside chunks: decoded in the calling thread, a bounded number remembered.

    ``axis``: where the sample number is in the stored shape.
    """

    def __init__(
        self,
        spec: SourceSpec,
        store: ByteStore,
        grid: ChunkGrid,
        axis: int,
        labels: Array | None,
        checksums: UInt64 | None,
        read_chunk: Callable[[int], UInt8] | None = None,
    ) -> None:
        self.spec = spec
        self.labels = labels
        self.checksums = checksums
        self._store = store
        self._grid = grid
        self._axis = axis
        self._fallback = read_chunk
        #: samples lie whole in a chunk, one behind the other
        self._whole = axis == 0 and grid.chunk[1:] == grid.shape[1:]
        limit = max(CACHE_BYTES, 2 * grid.chunk_bytes)
        self.cache = ChunkCache(limit, math.prod(grid.grid), grid.chunk_bytes)

    def offsets(self, records: Int64) -> Int64:
        """Byte offsets in the file of the (first) chunk that each record lies in."""
        behind = math.prod(self._grid.grid[self._axis + 1 :])
        first: Int64 = self._grid.offsets[records // self._grid.chunk[self._axis] * behind]
        return first

    def reserve(self, samples: int) -> None:
        # a window, and what the next one needs while the last batches of it are in flight; no
        # more, so that memory stays where it is after the first window
        chunks = -(-samples // self._grid.chunk[self._axis])
        across = math.prod(n for i, n in enumerate(self._grid.grid) if i != self._axis)
        self.cache.limit = (chunks + chunks // 32 + 2) * across * self._grid.chunk_bytes

    def _decode(self, number: int, meter: Meter, out: UInt8 | None = None) -> UInt8:
        """A decoded chunk, in memory of its own (or in ``out``)."""
        if self._fallback is not None:
            return self._fallback(number)
        grid = self._grid
        stored = self._store.view(int(grid.offsets[number]), int(grid.sizes[number]))
        started = time.perf_counter()
        mask, size = int(grid.masks[number]), grid.chunk_bytes
        pixels = decode_chunk(stored, grid.filters, mask, size, grid.dtype.itemsize, out)
        if np.may_share_memory(pixels, stored):
            pixels = pixels.copy()  # nothing was to be undone
        meter.decode += time.perf_counter() - started
        return pixels

    def _chunk(self, number: int, meter: Meter, wait: bool = True) -> UInt8 | None:
        """A decoded chunk: good for as long as the caller keeps the cache pinned.

        None where another thread decodes it just now, unless ``wait``.
        """
        if self._whole and self._grid.chunk[0] == 1:
            return self._decode(number, meter)  # nothing else is in it to remember it for

        def decode(memory: UInt8) -> None:
            pixels = self._decode(number, meter, memory)
            if pixels.ctypes.data != memory.ctypes.data:
                memory[:] = pixels

        return self.cache.get(number, decode, wait)

    def _sample(self, record: int, meter: Meter) -> Array:
        """One sample in stored axis order."""
        grid, axis = self._grid, self._axis
        place, inside = divmod(record, grid.chunk[axis])
        if self._whole:
            chunk = self._chunk(place, meter)
            assert chunk is not None
            size = self._row_bytes()
            row = chunk[inside * size : (inside + 1) * size]
            return row.view(grid.dtype).reshape(grid.shape[1:])
        shape = tuple(n for i, n in enumerate(grid.shape) if i != axis)
        out = np.empty(shape, grid.dtype)
        counts = grid.grid
        for across in np.ndindex(*(n for i, n in enumerate(counts) if i != axis)):
            at = (*across[:axis], place, *across[axis:])
            number = int(np.ravel_multi_index(at, counts))
            chunk = self._chunk(number, meter)
            assert chunk is not None
            plane = chunk.view(grid.dtype).reshape(grid.chunk).take(inside, axis=axis)
            steps = tuple(n for i, n in enumerate(grid.chunk) if i != axis)
            where = tuple(
                slice(a * s, min((a + 1) * s, n))
                for a, s, n in zip(across, steps, shape, strict=True)
            )
            out[where] = plane[tuple(slice(0, w.stop - w.start) for w in where)]
        return out

    def sample_bytes(self, index: int) -> bytes:
        pinned = self.cache.pin()
        try:
            data = self._sample(index, Meter()).tobytes()
        except DecodeError as exc:
            raise self.located(exc, index) from exc.__cause__
        del pinned
        if self.checksums is not None:
            error = self.checked(data, index)
            if error is not None:
                raise error
        return data

    def read_into(
        self, plan: RowPlan, fill: Fill, out: Array, meter: Meter
    ) -> tuple[RowError, ...]:
        if self._whole and self._grid.chunk[0] == 1 and fill.mode == "copy":
            return self._read_straight(plan, out, meter)
        errors: list[RowError] = []
        pinned = self.cache.pin()
        held: list[Array] = []  # with pinned, what the addresses point into
        per_chunk = self._grid.chunk[self._axis]
        chunks = plan.records // per_chunk
        if self._whole:
            numbers, inverse = np.unique(chunks, return_inverse=True)
            found = self.cache.find(numbers)
            missing = np.flatnonzero(found == 0).tolist()
            if self._store.far and missing:
                wanted = numbers[missing]
                self._store.will_need(self._grid.offsets[wanted], self._grid.sizes[wanted])
            # first those that nobody else decodes just now, then wait for the others
            for wait in (False, True):
                for i in missing:
                    if found[i]:
                        continue
                    try:
                        pixels = self._chunk(int(numbers[i]), meter, wait)
                    except DecodeError as exc:
                        errors.extend(self._failed(plan, np.flatnonzero(inverse == i), exc))
                        found[i] = -1
                        continue
                    if pixels is not None:
                        held.append(pixels)
                        found[i] = pixels.ctypes.data
            found[found < 0] = 0
            addresses = found[inverse]
            good = addresses != 0
            addresses += plan.records % per_chunk * self._row_bytes()
        else:
            addresses = np.zeros(plan.records.size, np.int64)
            # samples of one chunk together, so that it is decoded once even if soon dropped
            for i in np.argsort(chunks, kind="stable").tolist():
                try:
                    held.append(self._sample(int(plan.records[i]), meter))
                    addresses[i] = held[-1].ctypes.data
                except DecodeError as exc:
                    errors.extend(self._failed(plan, np.array([i]), exc))
            good = addresses != 0
        rest = plan if good.all() else plan.pick(good)
        errors.extend(self._read_rows(MEMORY, addresses[good], rest, fill, out))
        del pinned
        return tuple(errors)

    def _read_straight(self, plan: RowPlan, out: Array, meter: Meter) -> tuple[RowError, ...]:
        """One sample a chunk and nothing to convert: decoded where it is wanted."""
        errors: list[RowError] = []
        if self._store.far:
            self._store.will_need(self._grid.offsets[plan.records], self._grid.sizes[plan.records])
        flat = out.reshape(out.shape[0], -1).view(np.uint8)
        for i, (record, row) in enumerate(
            zip(plan.records.tolist(), plan.rows.tolist(), strict=True)
        ):
            if meter.stopped:
                break
            target = flat[row]
            try:
                pixels = self._decode(record, meter, target)
            except DecodeError as exc:
                errors.append(RowError(row, self.located(exc, record)))
                continue
            if pixels.ctypes.data != target.ctypes.data:
                target[:] = pixels
            if plan.check is not None and plan.check[i]:
                bad = self.checked(target.data, record)
                if bad is not None:
                    errors.append(RowError(row, bad))
        return tuple(errors)

    def _failed(self, plan: RowPlan, rows: Int64, exc: DecodeError) -> Iterator[RowError]:
        for i in rows.tolist():
            error = DecodeError(exc.what, found=exc.found, expected=exc.expected, hint=exc.hint)
            error.__cause__ = exc.__cause__
            yield RowError(int(plan.rows[i]), self.located(error, int(plan.records[i])))


def check_filters(filters: tuple[Filter, ...], path: str, name: str) -> bool:
    """True when all filters are decoded here, False when HDF5 itself must; else FormatError."""
    codes = {step.code for step in filters}
    unknown = sorted(codes - READABLE - set(BUILT_IN_ONLY))
    if unknown:
        raise FormatError(
            f"data set {name!r} needs a filter that is not read",
            path=path,
            found=f"filter {unknown[0]}",
            expected=f"one of {', '.join(sorted(NAMES.values()))}",
            hint="repack it, for example with h5repack -f GZIP=4",
        )
    if not codes & set(BUILT_IN_ONLY):
        return True
    # HDF5 would look for the others among plugins, which are programs
    mixed = sorted(codes - set(BUILT_IN_ONLY) - {DEFLATE, SHUFFLE, FLETCHER32, LZF})
    if mixed:
        raise FormatError(
            f"data set {name!r} needs filters that are not read together",
            path=path,
            found=" + ".join(NAMES[code] for code in sorted(codes)),
            hint="repack it, for example with h5repack -f GZIP=4",
        )
    return False
