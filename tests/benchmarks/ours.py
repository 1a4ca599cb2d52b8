"""asyncreader as a contender, and the bare work that no loader is asked to pass."""

import itertools
import math
import os
import time
from typing import Any

import numpy as np
from player import AHEAD, Batches, Result, Spec, Threads, enough, private_mb, timed


def nothing(data: Any, labels: Any) -> None:
    """A postprocess that changes nothing, in place."""


def params_of(spec: Spec) -> Spec:
    """The parameters of a reader: random order, ``AHEAD`` batches in flight, and what is given."""
    params = {"shuffle": True, "njob": AHEAD, "batch_size": spec["batch"], **spec["params"]}
    params.setdefault("nthread", spec["workers"])
    if "postprocess" in params:
        params["postprocess"] = nothing
    return params


class Ours:
    """A reader that stays open and goes on where it was.

    In "block" a window has at least as many samples as are mixed together, because the first of
    them wait for all their chunks.
    """

    def __init__(self, spec: Spec) -> None:
        from asyncreader import AsyncReader

        self.spec, self.reader = spec, AsyncReader(params_of(spec))
        block = self.reader.params.shuffle == "block"
        self.least = self.reader.state_dict()["window"] if block else 0

    def __iter__(self) -> Batches:
        read = self.spec["consumer"] == "sum"
        for batch in self._batches():
            yield batch.data if read else batch

    def _batches(self) -> Batches:
        reader = self.reader
        while self.spec["mode"] == "epochs":
            yield from reader
        for _ in range(reader.params.njob):
            reader.fetchData()
        while True:
            batch = reader.getNextBatch()
            reader.fetchData()
            yield batch


class FirstEpochs:
    """One epoch of each of many readers, the first unless the spec says otherwise: it verifies
    every sample for the first time. Readers are opened outside the window.

    The clock runs from the seventh batch on: by then slots and queue are warm.
    """

    def __init__(self, spec: Spec) -> None:
        self.params, self.epoch = params_of(spec), spec.get("epoch", 0)
        self.take(0, 0)

    def take(self, seconds: float, samples: int) -> Result:
        from asyncreader import AsyncReader

        taken, spent = 0, 0.0
        while True:
            with AsyncReader(self.params, epochs=self.epoch + 1) as reader:
                for _ in range(self.epoch):
                    for _ in reader:
                        pass
                batches = iter(reader)
                for _ in itertools.islice(batches, AHEAD + 2):
                    pass
                began = time.perf_counter()
                taken += sum(len(batch) for batch in batches)
                spent += time.perf_counter() - began
            if enough(seconds, samples, taken, spent):
                return {"samples": taken, "seconds": spent}


def opened(spec: Spec) -> Any:
    """The seconds to open a reader, its samples, and the private memory that it takes."""
    from asyncreader import AsyncReader

    def job() -> Result:
        before = private_mb()
        with timed() as result:
            reader = AsyncReader(params_of(spec))
        result["count"], result["MB"] = reader.count, private_mb() - before
        reader.close()
        return result

    return job


# -- the bare work ---------------------------------------------------------------------------------


def slots_of(spec: Spec, work: Any, *shape: int, dtype: str = "u1") -> Threads:
    """Threads that call ``work(slot, number)`` with the slots of a ring, as many as njob=4 has."""
    slots = [np.ones((spec["batch"], *shape), dtype) for _ in range(AHEAD + 1)]
    turn = list(range(spec["workers"]))

    def step(thread: int) -> int:
        number = turn[thread]
        turn[thread] += spec["workers"]
        work(slots[number % len(slots)], number)
        return int(spec["batch"])

    return Threads(spec, step)


#: With this environment, memcpy writes past the caches: as a loader should that fills slots which
#: nobody reads soon. It reads no line before it writes it, but misses a cache that holds the slots.
PAST_CACHES = {"GLIBC_TUNABLES": "glibc.cpu.x86_non_temporal_threshold=0x10000"}


def memcpy(spec: Spec) -> Threads:
    """Threads that copy one hot batch into slots."""
    shape = (spec["batch"], spec["row_bytes"])
    hot = np.random.default_rng(0).integers(0, 255, shape, dtype=np.uint8)
    return slots_of(spec, lambda slot, number: np.copyto(slot, hot), spec["row_bytes"])


def fill(spec: Spec) -> Threads:
    """Threads that fill float32 slots with a constant."""
    return slots_of(
        spec, lambda slot, number: slot.fill(number), spec["row_values"], dtype="float32"
    )


def cast(spec: Spec) -> Threads:
    """Threads in which a compiled loop casts rows of an array, in random order, into slots."""
    from numba import njit

    stored = np.load(spec["npy"], mmap_mode="r").view(np.ndarray)
    rows = stored.reshape(len(stored), -1)
    half = spec["dtype"] == "float16"
    table = np.arange(256, dtype=np.float16).view(np.uint16)

    @njit(nogil=True)
    def scale(rows: Any, picked: Any, out: Any, factor: Any) -> None:
        for i in range(picked.size):
            row, to = rows[picked[i]], out[i]
            for k in range(row.size):
                to[k] = row[k] * factor

    @njit(nogil=True)
    def look_up(rows: Any, picked: Any, out: Any, table: Any) -> None:
        for i in range(picked.size):
            row, to = rows[picked[i]], out[i]
            for k in range(row.size):
                to[k] = table[row[k]]

    loop, argument = (look_up, table) if half else (scale, np.float32(1 / 255))
    order = np.random.default_rng(0).permutation(len(rows))
    batches = order[: len(order) // spec["batch"] * spec["batch"]].reshape(-1, spec["batch"])

    def work(slot: np.ndarray, number: int) -> None:
        loop(rows, batches[number % len(batches)], slot, argument)

    return slots_of(spec, work, rows.shape[1], dtype="uint16" if half else "float32")


def files_of(folder: str) -> list[str]:
    """A folder's JPEGs, sorted."""
    return sorted(
        os.path.join(at, name)
        for at, _, names in os.walk(folder)
        for name in names
        if name.endswith(".jpg")
    )


def decode(spec: Spec) -> Threads:
    """Threads that decode whole JPEGs with simplejpeg into a buffer, and nothing else."""
    import simplejpeg

    images = []
    for path in files_of(spec["images"]):
        with open(path, "rb") as file:
            images.append(file.read())
    buffers = [np.empty(1 << 21, np.uint8) for _ in range(spec["workers"])]

    def work(image: bytes, thread: int) -> int:
        simplejpeg.decode_jpeg(image, buffer=buffers[thread])
        return 1

    return at_random(spec, images, work)


def at_random(spec: Spec, items: list[Any], work: Any) -> Threads:
    """Threads that call ``work(item, thread)`` with all items, each in an order of its own."""
    orders = [
        itertools.cycle(np.random.default_rng(thread).permutation(len(items)))
        for thread in range(spec["workers"])
    ]
    return Threads(spec, lambda thread: int(work(items[next(orders[thread])], thread)))


class Chunks:
    """The gzip chunks of a dataset, which are inflated with libdeflate, and nothing else."""

    def __init__(self, path: str, name: str) -> None:
        import h5py
        import imagecodecs

        self.decode = imagecodecs.deflate_decode
        self.places: dict[tuple[int, ...], tuple[int, int]] = {}
        with h5py.File(path) as file:
            data = file[name]
            self.chunk, self.shape = data.chunks, data.shape
            self.size = data.dtype.itemsize * math.prod(data.chunks)
            data.id.chunk_iter(self._add)
        self.stored = np.memmap(path, np.uint8, "r")

    def _add(self, info: Any) -> None:  # a value that is not None would end chunk_iter
        self.places[info.chunk_offset] = info.byte_offset, info.size

    def touched(self, *sides: tuple[int, int]) -> list[tuple[int, ...]]:
        """Corners of the chunks that hold a box: (start, stop) on its first axes, the others
        whole."""
        whole = ((0, n) for n in self.shape[len(sides) :])
        axes = zip((*sides, *whole), self.chunk, strict=True)
        return list(itertools.product(*(range(low // c * c, high, c) for (low, high), c in axes)))

    def inflate(self, *sides: tuple[int, int]) -> None:
        """Inflate the chunks that hold a box."""
        for corner in self.touched(*sides):
            self.inflate_one(self.places[corner], np.empty(self.size, np.uint8))

    def inflate_one(self, place: tuple[int, int], out: np.ndarray) -> None:
        offset, length = place
        self.decode(self.stored[offset : offset + length], out=out)


def inflate(spec: Spec) -> Threads:
    """Threads that inflate all chunks of a dataset of rows, in random order."""
    chunks = Chunks(spec["path"], "data")
    buffers = [np.empty(chunks.size, np.uint8) for _ in range(spec["workers"])]

    def work(place: tuple[int, int], thread: int) -> int:
        chunks.inflate_one(place, buffers[thread])
        return int(chunks.chunk[0])

    return at_random(spec, list(chunks.places.values()), work)
