"""The process of one contender: it prepares its loader or its job, and works when it is asked to.

``python player.py MODULE.FUNCTION JSON`` calls that function of this folder with what the JSON
holds, and prints ``ready`` with the versions of the libraries that it has loaded. For each line
``go SECONDS SAMPLES`` on standard input it takes one turn and prints its result as a line of JSON:
samples, seconds, and any other figures. The function returns one of:

* batches, as an iterable: the turn is a window, as :class:`Loop` takes it.
* a function: the turn is one call, timed. A dictionary that it returns is added to the result.
* an object with ``take(seconds, samples)``, which returns the result.

Each contender is given "mode" ("epochs": ``for batch in loader`` as its users write it, or
"fastest": its fastest way), "batch", "workers", "consumer", "folder" (where it may write), and what
its case says; "environment" is set when the process starts. Libraries are imported inside the
contenders: each needs only those that it measures.
"""

import importlib
import json
import os
import resource
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

Spec = dict[str, Any]
Result = dict[str, Any]
Batches = Iterator[Any]

#: Batches that a loader, or each worker of a DataLoader, may have ready.
AHEAD = 4

#: Seconds that a loader runs before it is ready for its first window.
WARM = 0.2


def enough(seconds: float, samples: int, taken: int, spent: float) -> bool:
    """Whether a window ends: after its seconds, or with all samples after a fifth of them. It has
    at least one sample."""
    return taken > 0 and (spent >= seconds or (0 < samples <= taken and spent >= seconds / 5))


@contextmanager
def timed(samples: int = 1) -> Iterator[Result]:
    """Fill the result that it yields with the wall and CPU seconds of the block.

    CPU seconds are those of this process, and of children that ended within the block.
    """
    result: Result = {"samples": samples}
    cpu, began = _cpu(), time.perf_counter()
    yield result
    result["seconds"], result["CPU s"] = time.perf_counter() - began, _cpu() - cpu


def _cpu() -> float:
    used = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


def private_mb() -> float:
    """Megabytes of this process's private memory, without mapped files."""
    with open("/proc/self/status", encoding="ascii") as lines:
        return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("RssAnon"))


# -- what a contender can be -----------------------------------------------------------------------


class With:
    """Batches, and figures that are shown beside their rate."""

    def __init__(self, batches: Any, **figures: Any) -> None:
        self.batches, self.figures = batches, lambda: figures
        self.least = getattr(batches, "least", 0)

    def __iter__(self) -> Batches:
        return iter(self.batches)


class Loop:
    """Windows over batches that come one after the other.

    A contender may have ``renew()``, which is called between windows, ``figures()``, and ``least``:
    the samples that a window must have, because they wait for the same chunks.
    """

    def __init__(self, spec: Spec, contender: Any) -> None:
        self.contender, self.reads = contender, spec["consumer"] == "sum"
        #: Batches that can be ready before a window starts, and so would cost nothing in it.
        self.ready = 2 + AHEAD * spec["workers"]
        self.batches: Batches | None = None
        self.take(WARM, 0)

    def take(self, seconds: float, samples: int) -> Result:
        getattr(self.contender, "renew", lambda: None)()
        if self.batches is None:
            self.batches = iter(self.contender)
        least = getattr(self.contender, "least", 0) if seconds > WARM else 0
        for _ in range(self.ready):
            next(self.batches)
        taken, spent, began = 0, 0.0, time.perf_counter()
        while taken < least or not enough(seconds, samples, taken, spent):
            data = next(self.batches)
            taken += len(data)
            if self.reads:
                read_once(data)
            spent = time.perf_counter() - began
        more = getattr(self.contender, "figures", dict)()
        return {"samples": taken, "seconds": spent, **more}


class Threads:
    """As many threads as there are workers, each of which calls ``work(thread)`` over and over.

    ``work`` returns the samples that a call is worth.
    """

    def __init__(self, spec: Spec, work: Callable[[int], int]) -> None:
        self.work, self.done = work, [0] * spec["workers"]
        self.failure: BaseException | None = None
        self.open = threading.Event()
        for number in range(spec["workers"]):
            threading.Thread(target=self._run, args=(number,), daemon=True).start()
        self.take(WARM, 0)

    def _run(self, number: int) -> None:
        try:
            while True:
                self.open.wait()
                self.done[number] += self.work(number)
        except BaseException as exc:
            self.failure = exc

    def take(self, seconds: float, samples: int) -> Result:
        self.open.set()
        pause = threading.Event()
        pause.wait(0.02)  # the threads are under way
        before, began = sum(self.done), time.perf_counter()
        while True:
            pause.wait(0.01)
            if self.failure is not None:
                raise self.failure
            taken, spent = sum(self.done) - before, time.perf_counter() - began
            if enough(seconds, samples, taken, spent):
                self.open.clear()
                return {"samples": taken, "seconds": spent}


class Job:
    """Turns that are one call each, however long it takes."""

    def __init__(self, call: Callable[[], Result | None]) -> None:
        self.call = call

    def take(self, seconds: float, samples: int) -> Result:
        with timed() as result:
            more = self.call()
        return {**result, **(more or {})}


# -- what is done with a batch ---------------------------------------------------------------------


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


# -- the protocol ----------------------------------------------------------------------------------

#: Modules whose versions are published with the figures.
MODULES = (
    "numpy", "numba", "h5py", "lmdb", "imagecodecs", "cv2", "PIL", "torch", "torchvision", "ffcv",
    "tensorflow", "nvidia.dali", "webdataset", "litdata", "anndata", "scdataset",
    "robomimic", "pytorch3dunet",
)  # fmt: skip


def versions() -> dict[str, str]:
    """The versions of the libraries that this process has loaded."""
    loaded = {name: getattr(sys.modules.get(name), "__version__", None) for name in MODULES}
    return {name: str(version) for name, version in loaded.items() if version}


def check_tree(tree: str) -> None:
    """RuntimeError if asyncreader does not come from the tree that is to be measured."""
    import asyncreader

    if not str(asyncreader.__file__).startswith(tree):
        raise RuntimeError(f"asyncreader came from {asyncreader.__file__}, not from {tree}")


def player_of(kind: str, spec: Spec) -> Any:
    """What takes the turns of a contender."""
    if spec.get("tree"):
        check_tree(spec["tree"])
    module, _, name = kind.partition(".")
    contender = getattr(importlib.import_module(module), name)(spec)
    if hasattr(contender, "take"):
        return contender
    return Job(contender) if callable(contender) else Loop(spec, contender)


def main() -> None:
    player = player_of(sys.argv[1], json.loads(sys.argv[2]))
    print("ready " + json.dumps(versions()), flush=True)
    for line in sys.stdin:
        _, seconds, samples = line.split()
        result = player.take(float(seconds), int(samples))
        print("result " + json.dumps(result, default=np.generic.item), flush=True)


if __name__ == "__main__":
    main()
    sys.stdout.flush()
    os._exit(0)  # loaders of some peers do not end by themselves
