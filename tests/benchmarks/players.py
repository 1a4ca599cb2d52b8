"""One contender in a process of its own: it builds its loader, then takes batches when told to.

``python players.py KIND JSON`` prints ``ready`` with the versions of what it uses, once the loader
is built, compiled and has served batches. For each line ``go SECONDS SAMPLES`` on standard input
it takes batches until SECONDS are over, or SAMPLES are taken and a fifth of SECONDS is over, and
prints one JSON line (samples, seconds). Nothing is built, compiled or given an order in that time,
except what starting the next epoch costs a user of ``"mode": "epochs"``.

What a contender is given (JSON):

    mode      "epochs": ``for batch in loader``, epoch after epoch, as its users do;
              any other: its fastest way, as ``rivals.FASTEST`` says
    batch, workers, count     samples a batch, threads or processes, samples in the set
    consumer  "none", or "sum": each batch is read once
    crop      JPEGs only: "center" (0.875 of the shorter side) or "random" (resized crop and flip)
    params    ours only: parameters; ``"postprocess": "nothing"`` is a function that does nothing
    epoch     first epochs only: which epoch of each new reader is timed, 0 unless told

Imports stay inside the contenders: each needs only its own packages.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from rivals import (
    AHEAD,
    USED,
    Batches,
    Ffcv,
    dali,
    files_of,
    grain,
    tfdata,
    torch_folder,
    torch_h5py,
    torch_h5py_block,
    torch_lmdb,
    torch_recipe,
)

# -- ours ----------------------------------------------------------------------------------------


def nothing(data: Any, labels: Any) -> None:
    """A postprocess that changes nothing, in place."""


def _params(spec: dict[str, Any]) -> dict[str, Any]:
    given = {"batch_size": spec["batch"], "nthread": spec["workers"], "njob": AHEAD}
    params = {"shuffle": True, **given, **spec["params"]}
    if "postprocess" in params:
        params["postprocess"] = nothing
    return params


def reader_of(spec: dict[str, Any]) -> type[Any]:
    """AsyncReader, which must come from the tree that is to be measured."""
    import asyncreader

    tree = spec.get("tree")
    if tree is not None and not str(asyncreader.__file__).startswith(tree):
        raise RuntimeError(f"asyncreader came from {asyncreader.__file__}, not from {tree}")
    return asyncreader.AsyncReader


def ours(spec: dict[str, Any]) -> Batches:
    reader = reader_of(spec)(_params(spec))
    if spec["mode"] == "epochs":
        while True:
            for batch in reader:
                yield batch.data
    for _ in range(AHEAD):
        reader.fetchData()
    while True:
        batch = reader.getNextBatch()
        reader.fetchData()
        yield batch.data


class FirstEpochs:
    """One epoch of each of many readers, the first if nothing else is told: it verifies every
    sample for the first time. Readers are made between them.

    The clock runs from the seventh batch on: by then slots and queue are warm.
    """

    def __init__(self, spec: dict[str, Any]) -> None:
        self.spec, self.reader = spec, reader_of(spec)
        self.epoch = spec.get("epoch", 0)
        self.take(0, 0)

    def take(self, seconds: float, samples: int) -> tuple[int, float]:
        taken, spent = 0, 0.0
        while not enough(seconds, samples, taken, spent):
            with self.reader(_params(self.spec), epochs=self.epoch + 1) as reader:
                for _ in range(self.epoch):
                    for _ in reader:
                        pass
                batches = iter(reader)
                for _ in itertools.islice(batches, AHEAD + 2):
                    pass
                started = time.perf_counter()
                taken += sum(len(batch) for batch in batches)
                spent += time.perf_counter() - started
            if not seconds:
                break
        return taken, spent


# -- limits --------------------------------------------------------------------------------------


class Bare:
    """As many threads as there are workers, each calling ``work(thread)`` over and over."""

    def __init__(self, spec: dict[str, Any], work: Callable[[int], int]) -> None:
        self.done = [0] * spec["workers"]
        self.open = threading.Event()
        self.work = work
        for number in range(spec["workers"]):
            threading.Thread(target=self._run, args=(number,), daemon=True).start()
        self.take(0.2, 0)

    def _run(self, number: int) -> None:
        while True:
            self.open.wait()
            self.done[number] += self.work(number)

    def take(self, seconds: float, samples: int) -> tuple[int, float]:
        """Samples that the threads did, and in how many seconds."""
        self.open.set()
        pause = threading.Event()
        pause.wait(0.02)  # they are under way
        before, started = sum(self.done), time.perf_counter()
        while True:
            pause.wait(0.01)
            taken, spent = sum(self.done) - before, time.perf_counter() - started
            if enough(seconds, samples, taken, spent):
                self.open.clear()
                return taken, spent


def memcpy(spec: dict[str, Any]) -> Bare:
    """Threads that copy one hot batch into slots, as many as njob=4 has."""
    size = spec["row_bytes"] * spec["batch"]
    hot = np.random.default_rng(0).integers(0, 255, size, dtype=np.uint8)
    slots = [np.ones(size, np.uint8) for _ in range(AHEAD + 1)]
    turn = list(range(spec["workers"]))

    def work(number: int) -> int:
        np.copyto(slots[turn[number] % len(slots)], hot)
        turn[number] += spec["workers"]
        return int(spec["batch"])

    return Bare(spec, work)


def fill(spec: dict[str, Any]) -> Bare:
    """Threads that fill slots of a float dtype, float32 unless told, with a constant."""
    shape, dtype = (spec["batch"], spec["row_values"]), spec.get("dtype", "float32")
    slots = [np.ones(shape, dtype) for _ in range(AHEAD + 1)]
    turn = list(range(spec["workers"]))

    def work(number: int) -> int:
        slots[turn[number] % len(slots)].fill(turn[number])
        turn[number] += spec["workers"]
        return int(spec["batch"])

    return Bare(spec, work)


def cast(spec: dict[str, Any]) -> Bare:
    """Threads in which a compiled loop casts rows of an array, in random order, into slots."""
    from numba import njit

    stored = np.load(spec["npy"], mmap_mode="r").reshape(spec["count"], -1)
    slots = [np.ones((spec["batch"], stored.shape[1]), spec["dtype"]) for _ in range(AHEAD + 1)]
    views = [slot.view(np.uint16) if slot.itemsize == 2 else slot for slot in slots]
    half = np.arange(256, dtype=np.float16).view(np.uint16)

    @njit(nogil=True)
    def run(rows: Any, picked: Any, out: Any, scale: Any) -> None:
        for i in range(picked.size):
            row, to = rows[picked[i]], out[i]
            for k in range(row.size):
                to[k] = row[k] * scale

    @njit(nogil=True)
    def look_up(rows: Any, picked: Any, out: Any, table: Any) -> None:
        for i in range(picked.size):
            row, to = rows[picked[i]], out[i]
            for k in range(row.size):
                to[k] = table[row[k]]

    function, argument = (
        (look_up, half) if spec["dtype"] == "float16" else (run, np.float32(1 / 255))
    )
    order = np.random.default_rng(0).permutation(spec["count"])
    batches = np.array_split(order, spec["count"] // spec["batch"])
    batches = [one[: spec["batch"]] for one in batches]
    turn = list(range(spec["workers"]))
    plain = stored.view(np.ndarray)

    def work(number: int) -> int:
        at = turn[number]
        function(plain, batches[at % len(batches)], views[at % len(views)], argument)
        turn[number] += spec["workers"]
        return len(batches[at % len(batches)])

    return Bare(spec, work)


def decode(spec: dict[str, Any]) -> Bare:
    """Threads that decode whole JPEGs with simplejpeg into a buffer, and nothing else."""
    import simplejpeg

    images = []
    for path in files_of(spec["folder"]):
        with open(path, "rb") as file:
            images.append(file.read())
    threads = range(spec["workers"])
    orders = [itertools.cycle(np.random.default_rng(n).permutation(len(images))) for n in threads]
    buffers = [np.empty(1 << 21, np.uint8) for _ in threads]

    def work(number: int) -> int:
        simplejpeg.decode_jpeg(images[next(orders[number])], buffer=buffers[number])
        return 1

    return Bare(spec, work)


def inflate(spec: dict[str, Any]) -> Bare:
    """Threads that inflate a gzip set's chunks with libdeflate, and nothing else."""
    import h5py
    import imagecodecs

    chunks: list[tuple[int, int]] = []
    with h5py.File(spec["path"], "r") as file:
        file["data"].id.chunk_iter(lambda info: chunks.append((info.byte_offset, info.size)))
        rows = file["data"].chunks[0]
        size = int(np.prod(file["data"].chunks))
    stored = np.memmap(spec["path"], np.uint8, "r")
    threads = range(spec["workers"])
    orders = [itertools.cycle(np.random.default_rng(n).permutation(len(chunks))) for n in threads]
    buffers = [np.empty(size, np.uint8) for _ in threads]

    def work(number: int) -> int:
        offset, length = chunks[next(orders[number])]
        imagecodecs.deflate_decode(stored[offset : offset + length], out=buffers[number])
        return int(rows)

    return Bare(spec, work)


# -- the protocol --------------------------------------------------------------------------------

KINDS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "ours": ours, "first_epochs": FirstEpochs, "memcpy": memcpy, "fill": fill, "cast": cast,
    "decode": decode, "inflate": inflate, "torch_h5py": torch_h5py, "torch_lmdb": torch_lmdb,
    "torch_folder": torch_folder, "torch_h5py_block": torch_h5py_block,
    "torch_recipe": torch_recipe, "ffcv": Ffcv, "grain": grain, "tfdata": tfdata, "dali": dali,
}  # fmt: skip


def enough(seconds: float, samples: int, taken: int, spent: float) -> bool:
    return spent >= seconds or (0 < samples <= taken and spent >= seconds / 5)


def pixels_of(data: Any) -> np.ndarray:
    """A batch of any contender as a one-dimensional array over its own memory."""
    if hasattr(data, "as_tensor"):  # DALI
        data = data.as_tensor()
    array = np.asarray(data if hasattr(data, "__array_interface__") else _memory(data))
    array = array.transpose(np.argsort([-stride for stride in array.strides], kind="stable"))
    return array.reshape(-1)


def _memory(data: Any) -> Any:
    """A tensor's memory without a copy: torch's by its array protocol, others' as a buffer."""
    return data.numpy() if type(data).__module__.startswith("torch") else memoryview(data)


def read_once(data: Any) -> int:
    """Sum a batch, eight bytes at a time: it is read once, at the speed of memory."""
    pixels = pixels_of(data)
    return int(pixels[: pixels.nbytes // 8 * 8 // pixels.itemsize].view(np.uint64).sum())


class Loop:
    """A contender that hands out batches one after the other."""

    def __init__(self, spec: dict[str, Any], contender: Any) -> None:
        self.renew = getattr(contender, "renew", None)
        self.summed = spec["consumer"] == "sum"
        #: Batches that can be ready before a window starts, and so would cost nothing in it.
        self.ready = 2 + AHEAD * (spec["workers"] if spec["kind"].startswith("torch") else 1)
        self.source = contender
        self.batches: Batches | None = None
        self.take(0.2, 0)

    def take(self, seconds: float, samples: int) -> tuple[int, float]:
        if self.renew is not None:
            self.renew()
        if self.batches is None:
            self.batches = iter(self.source)
        for _ in range(self.ready):
            data = next(self.batches)
        taken, started = 0, time.perf_counter()
        while True:
            data = next(self.batches)
            taken += len(data)
            if self.summed:
                read_once(data)
            spent = time.perf_counter() - started
            if enough(seconds, samples, taken, spent):
                return taken, spent


def versions(kind: str) -> dict[str, str]:
    """Of the packages that a contender uses."""
    from importlib.metadata import PackageNotFoundError, version

    found = {}
    for name in USED.get(kind, ()):
        for alias in (name, name.replace("-headless", ""), name.replace("-cpu", "")):
            try:
                found[name] = version(alias)
                break
            except PackageNotFoundError:
                continue
    return found


def main() -> None:
    kind = sys.argv[1]
    spec = {"kind": kind, **json.loads(sys.argv[2])}
    contender = KINDS[kind](spec)
    player = contender if hasattr(contender, "take") else Loop(spec, contender)
    print("ready " + json.dumps(versions(kind)), flush=True)
    for line in sys.stdin:
        _, seconds, samples = line.split()
        taken, spent = player.take(float(seconds), int(samples))
        print(json.dumps({"samples": taken, "seconds": spent}), flush=True)


if __name__ == "__main__":
    main()
    sys.stdout.flush()
    os._exit(0)  # loaders of some peers do not end by themselves
