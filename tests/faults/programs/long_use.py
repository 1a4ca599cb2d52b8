"""Long use in one process: whether batches stay right under stress, and what is left over."""

import contextlib
import gc
import json
import os
import random
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
from observed import private_bytes

from faults.programs.child_runner import start_clock, tell

#: Private bytes that a process may gain in 100 epochs, or in 100 readers.
GROWTH = 1_000_000

#: Pictures of the stress set: (N, 4, 4, 3), every pixel spells the index.
SHAPE = (4, 4, 3)


def warm() -> None:
    """Import what a trial needs, and load all kernels: a worker that loads one while descriptors
    are counted has its files open."""
    from asyncreader import AsyncReader
    from asyncreader.pixels import _compiled, kernels

    assert AsyncReader is not None
    for name in _compiled.KERNELS:
        getattr(kernels, name)


def painted(count: int) -> np.ndarray[Any, Any]:
    """Pictures of one colour, index in base 256; the third channel is a sum over both."""
    index = np.arange(count)
    colour = np.stack([index % 256, index // 256, (index * 7 + 3) % 256], axis=1)
    return np.broadcast_to(colour[:, None, None, :], (count, *SHAPE)).astype(np.uint8)


def jittered(data: Any, labels: Any, rng: Any) -> None:
    """Lets others run now and then, for a random time."""
    draw = rng.integers(0, 64)
    if draw == 0:
        time.sleep(float(rng.random()) * 0.002)
    elif draw < 8:
        os.sched_yield()


def mixed(batch: Any, expected: np.ndarray[Any, Any]) -> str | None:
    """What is wrong with a batch of the stress set."""
    wanted = expected[batch.indices]
    if not np.array_equal(batch.data, wanted):
        rows = (batch.data != wanted).reshape(len(batch), -1).any(axis=1)
        return f"rows {np.flatnonzero(rows).tolist()} of {batch!r} are of others"
    if not np.array_equal(batch.labels[:, 0], batch.indices):
        return f"labels {batch.labels.tolist()} for {batch.indices.tolist()}"
    return None


def stress(path: str, workers: str, rounds: int, seed: int) -> None:
    """Take batches with the next ones in flight, and look at each twice: at once, and later."""
    from asyncreader import AsyncReader

    sys.setswitchinterval(1e-6)
    rng = random.Random(seed)
    found: list[str] = []
    seen = np.zeros(0, np.int64)
    with AsyncReader(
        path=path,
        batch_size=8,
        shuffle=True,
        seed=seed,
        njob=3,
        nthread=8,
        workers=workers,
        layout="NHWC",
        postprocess=jittered,
        verify="always",
    ) as reader:
        expected = painted(reader.count)
        seen = np.zeros(reader.count, np.int64)
        in_flight, kept = 0, None
        for number in range(rounds):
            while in_flight < 3 - (kept is not None):
                reader.fetchData()
                in_flight += 1
            batch = reader.getNextBatch()
            in_flight -= 1
            if in_flight < 3 - (kept is not None):
                reader.fetchData()
                in_flight += 1
            seen[batch.indices] += 1
            problems = [mixed(batch, expected)]
            draw = rng.random()
            if draw < 0.02:
                time.sleep(rng.random() * 0.002)
            elif draw < 0.3:
                os.sched_yield()
            problems.append(mixed(batch, expected))  # while others are being filled
            if kept is not None:  # for some batches, while the ring goes round
                problems.append(mixed(kept, expected))
                if rng.random() < 0.3:
                    kept.release()
                    kept = None
            elif rng.random() < 0.02:
                kept = batch.keep()
            if batch is not kept:
                batch.data[:] = 255  # it is the caller's
            found += [f"batch {number}: {problem}" for problem in problems if problem]
            if len(found) > 10:
                break
    whole = rounds * 8 // len(seen)
    if not found and (seen.min() < whole or seen.max() > whole + 1):
        found.append(f"samples were served {seen.min()} to {seen.max()} times in {whole} epochs")
    tell(found=found, counts={"mixed or wrong": len(found), "right": rounds - len(found)})


def usage(of_all: bool = False) -> dict[str, int]:
    """What this process holds: private memory (bytes; ``of_all``: and that of its children),
    descriptors, threads, children, and mappings of shared memory."""
    gc.collect()
    own = children()
    held = private_bytes("self")
    return {
        "private": held + sum(map(private_bytes, own)) if of_all else held,
        "descriptors": len(os.listdir("/proc/self/fd")),
        "threads": threading.active_count(),
        "children": len(own),
        "shared memory": Path("/proc/self/maps").read_text().count("/memfd:"),
    }


def children() -> list[int]:
    """Processes that this one has started, but for the one of Python's that stays: its tracker of
    resources, which every spawn wants."""
    from multiprocessing import resource_tracker

    tracker = getattr(resource_tracker._resource_tracker, "_pid", None)
    found: list[int] = []
    for task in os.listdir("/proc/self/task"):
        with contextlib.suppress(OSError):  # a thread that has just ended
            words = Path(f"/proc/self/task/{task}/children").read_text().split()
            found += [int(word) for word in words if int(word) != tracker]
    return found


def usage_as_before(level: dict[str, int]) -> dict[str, int]:
    """The usage when it is as in ``level`` again, or after a minute: threads and processes take
    time to end."""
    until = time.monotonic() + 60
    while True:
        found = usage()
        same = all(found[name] == level[name] for name in level if name != "private")
        if same or time.monotonic() > until:
            return found
        time.sleep(0.005)


def slope(points: list[int]) -> float:
    """Least squares, per 100 steps."""
    return float(np.polyfit(np.arange(len(points)), points, 1)[0] * 100)


def epochs(path: str, workers: str, rounds: int, nthread: int) -> None:
    """Many epochs of one reader; the first tenth is not counted. With processes for workers their
    memory counts, too."""
    from asyncreader import AsyncReader

    given = {"path": path, "batch_size": 8, "nthread": nthread, "workers": workers}
    with AsyncReader(given) as reader:  # what is started once, and stays
        next(iter(reader))
    del reader
    before = usage()
    points = []
    with AsyncReader(given, shuffle=True, njob=2) as reader:
        for number in range(rounds + rounds // 10 + 1):
            for _ in reader:
                pass
            if number == rounds // 10:
                first = usage()
            if number >= rounds // 10:
                points.append(usage(of_all=True)["private"])
        last = usage()
    del reader, _
    found = differences("before the first epoch", before, "after closing", usage_as_before(before))
    found += differences("first", first, "last", last)
    tell_growth(found, slope(points), rounds)


def openings(path: str, workers: str, rounds: int, nthread: int) -> None:
    """Many readers, opened, used and closed, or forgotten; the first tenth is not counted."""
    from asyncreader import AsyncReader

    points = []
    every = 10 if rounds >= 500 else 1
    for number in range(rounds + rounds // 10 + 2):
        reader = AsyncReader(path=path, batch_size=8, nthread=nthread, workers=workers)
        reader.fetchData()
        batch = reader.getNextBatch()
        reader.fetchData()
        if number % 2:
            reader.close()
        del reader, batch
        if number == rounds // 10 + 1:
            gc.collect()
            first = usage_as_before({**usage(), "children": 0, "shared memory": 0})
        if number > rounds // 10 and number % every == 0:
            points.append(usage()["private"])
    last = usage_as_before(first)
    found = differences("expected", {"children": 0, "shared memory": 0}, "at the end", last)
    found += differences("first", first, "last", last)
    tell_growth(found, slope(points) / every, rounds)


def differences(when: str, then: dict[str, int], later: str, now: dict[str, int]) -> list[str]:
    """What a process has more or less of, other than memory."""
    return [
        f"{name}: {then[name]} {when}, {now[name]} {later}"
        for name in then
        if name != "private" and then[name] != now[name]
    ]


def tell_growth(found: list[str], gained: float, rounds: int) -> None:
    """Report what is left over, and the growth of private memory: too few rounds show none."""
    if gained > GROWTH and rounds >= 100:
        found = [*found, f"private memory grows by {gained / 1e6:.2f} MB per 100"]
    note = f"private memory {gained / 1e6:+.3f} MB per 100"
    tell(found=found, counts={"no growth": int(not found)}, note=note, peak=gained)


def trial(what: str, **given: Any) -> int:
    """Run one of these functions."""
    functions = (stress, epochs, openings)
    {function.__name__: function for function in functions}[what](**given)
    start_clock()
    return 0


if __name__ == "__main__":
    sys.exit(trial(**json.loads(sys.argv[1])))
