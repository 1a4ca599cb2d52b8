"""Ways to end a program that has a reader open. child_runner.py runs each in its own process.

Each calls ``start_clock()`` when the end begins. If the program goes on, it reports which threads,
descriptors, child processes and shared memory are left.
"""

import contextlib
import gc
import itertools
import json
import multiprocessing
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable
from functools import partial
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any

from faults.programs.child_runner import start_clock, tell


def warm() -> None:
    """Import what a trial needs."""
    import asyncreader.sources
    from asyncreader import AsyncReader

    assert AsyncReader is not None
    assert asyncreader.sources is not None


def state() -> dict[str, Any]:
    """What this process has."""
    gc.collect()
    fds = {}
    for fd in os.listdir("/proc/self/fd"):
        try:
            fds[fd] = os.readlink(f"/proc/self/fd/{fd}")
        except FileNotFoundError:  # the listing's own
            continue
    maps = Path("/proc/self/maps").read_text()
    return {
        "threads": sorted(thread.name for thread in threading.enumerate()),
        "descriptors": sorted(fds.values()),
        "children": [child.name for child in multiprocessing.active_children()],
        "shared memory": maps.count("memfd:asyncreader"),
    }


class Trial:
    """One trial: what there was before it."""

    def __init__(self, path: str, workers: str) -> None:
        self.path = path
        self.workers = workers
        if workers == "process":
            resource_tracker.ensure_running()  # Python's own; it stays
        self.before = state()
        self.named = set(os.listdir("/dev/shm"))

    def open(self, **params: Any) -> Any:
        from asyncreader import AsyncReader

        given = {"path": self.path, "batch_size": 4, "njob": 2, "shuffle": True}
        nthread = 1 if self.workers == "process" else 2
        return AsyncReader({**given, "workers": self.workers, "nthread": nthread, **params})

    def check(self) -> None:
        """Tell what is there now and was not before, and what is missing."""
        after = state()
        wrong = {n: (self.before[n], after[n]) for n in after if after[n] != self.before[n]}
        until_gone = time.monotonic() + 20  # those of other processes come and go
        while new := set(os.listdir("/dev/shm")) - self.named:
            if time.monotonic() > until_gone:
                wrong["files in /dev/shm"] = ([], sorted(new))
                break
            time.sleep(0.002)
        tell(wrong=wrong)

    def raises(self, name: str, call: Callable[..., Any], *arguments: Any) -> None:
        """Tell unless ``call`` raises that error."""
        import asyncreader

        try:
            call(*arguments)
        except getattr(asyncreader, name):
            return
        except BaseException as exc:
            tell(unexpected=f"{exc!r} instead of {name}")
        else:
            tell(unexpected=f"no {name}")

    def worker(self) -> int:
        """The number of a worker process."""
        pid = multiprocessing.active_children()[0].pid
        assert pid is not None
        return pid


def read_on(reader: Any) -> None:
    """Take batches, one ahead, until something ends it."""
    while True:
        reader.getNextBatch()
        reader.fetchData()


# -- what workers do -----------------------------------------------------------------------------


def slow(data: Any, labels: Any) -> None:
    """A little work that lets others run."""
    time.sleep(0.002)


def _later(data: Any, labels: Any, act: Callable[[], Any]) -> Any:
    """Do it from the third batch on: the first calls are the trial call and a good batch."""
    calls = _later.__dict__["calls"] = _later.__dict__.get("calls", 0) + 1
    return act() if calls > 3 else None


def raises(data: Any, labels: Any) -> None:
    _later(data, labels, lambda: {}["no such key"])


def wrong_shape(data: Any, labels: Any) -> Any:
    calls = _later.__dict__["calls"] = _later.__dict__.get("calls", 0) + 1
    return (data[:-1] if calls > 3 else data), labels


def kills_itself(data: Any, labels: Any) -> None:
    _later(data, labels, lambda: os.kill(os.getpid(), signal.SIGKILL))


def crashes(data: Any, labels: Any) -> None:
    _later(data, labels, lambda: os.kill(os.getpid(), signal.SIGSEGV))


def stuck(data: Any, labels: Any) -> None:
    _later(data, labels, threading.Event().wait)


def calls_c(data: Any, labels: Any) -> None:
    """Stuck in C, with the GIL held for a second at a time."""
    import ctypes

    def hold() -> None:
        while True:
            ctypes.PyDLL(None).usleep(1_000_000)

    _later(data, labels, hold)


# -- ways ----------------------------------------------------------------------------------------

#: It says whether the program goes on, so that what is left is looked at.
Way = Callable[[Trial], bool | None]


def normal(trial: Trial) -> bool:
    with trial.open() as reader:
        for batch in reader:
            assert len(batch) == 4
        start_clock()
    return True


def exception(trial: Trial) -> None:
    with trial.open() as reader:
        for _ in reader:
            start_clock()
            raise KeyError("mine")


def exception_without_with(trial: Trial) -> None:
    for _ in trial.open(postprocess=slow):
        start_clock()
        raise KeyError("mine")


def no_close(trial: Trial) -> None:
    global KEPT
    reader = trial.open(postprocess=slow)
    reader.fetchData()
    batch = reader.getNextBatch()
    reader.fetchData()
    reader.fetchData()
    KEPT = reader, batch
    start_clock()


KEPT: Any = None


def exit_code(trial: Trial) -> None:
    for _ in trial.open(postprocess=slow):
        start_clock()
        sys.exit(7)


def thread_reads_on(trial: Trial) -> None:
    """The main thread ends while another one reads."""
    from asyncreader import ReaderClosedError

    reader = trial.open(postprocess=slow)
    begun = threading.Event()

    def read() -> None:
        with contextlib.suppress(ReaderClosedError):
            while True:
                for _ in reader:
                    begun.set()

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    begun.wait()
    start_clock()


def until_signal(trial: Trial) -> None:
    """Reads until a signal from outside ends it."""
    reader = trial.open(postprocess=slow)
    tell(reads=True)
    while True:
        for _ in reader:
            pass


def stuck_until_signal(trial: Trial) -> None:
    """Waits for a stuck worker until a signal from outside ends it."""
    reader = trial.open(postprocess=stuck)
    for _ in range(2):
        reader.fetchData()
    reader.getNextBatch()
    reader.fetchData()
    tell(reads=True)
    read_on(reader)


def after_fork(trial: Trial) -> bool:
    """A forked child cannot use the reader, ends as any program, and the parent goes on."""
    reader = trial.open(njob=1)
    whole = [batch.indices.tolist() for batch in reader]
    reader.seek(0)
    reader.fetchData()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pid = os.fork()
    if pid == 0:
        trial.raises("ReaderClosedError", reader.getNextBatch)
        trial.raises("ReaderClosedError", reader.fetchData)
        repr(reader)
        return False
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if code != 0:
        tell(unexpected=f"the forked child ended with {code}")
    if [batch.indices.tolist() for batch in reader] != whole:
        tell(unexpected="the parent reads something else")
    start_clock()
    reader.close()
    return True


def _gets_error(trial: Trial, error: str, **params: Any) -> bool:
    """The error comes with its batch, and the reader can be closed."""
    reader = trial.open(**params)
    reader.fetchData()
    trial.raises(error, read_on, reader)
    start_clock()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        reader.close()
    return trial.workers == "process" or error != "ReaderTimeoutError"


def failing(error: str, postprocess: Any, **params: Any) -> tuple[Way, int, str]:
    """The way of a worker that fails, and how it ends."""
    return partial(_gets_error, error=error, postprocess=postprocess, **params), 0, ""


def worker_stopped(trial: Trial) -> bool:
    """A worker process stopped from outside, whatever it does."""
    reader = trial.open(timeout=0.2, postprocess=slow)
    reader.fetchData()
    os.kill(trial.worker(), signal.SIGSTOP)
    trial.raises("ReaderTimeoutError", read_on, reader)
    start_clock()
    reader.close()
    return True


def children_reaped_by_others(trial: Trial) -> bool:
    """SIGCHLD is ignored: nobody can wait for a child, and a number may be another's."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    reader = trial.open()
    for batch in reader:
        assert len(batch) == 4
    start_clock()
    reader.close()
    return True


def all_phases(trial: Trial, **params: Any) -> None:
    """Opening, fetching, waiting, looping, closing, twice: for a signal at any moment."""
    # numpy and dataclasses turn Ctrl-C during their import into errors of their own
    tell(phase="import")
    from asyncreader import AsyncReader  # noqa: F401

    for _ in range(2 if trial.workers == "thread" else 1):
        tell(phase="open")
        reader = trial.open(postprocess=slow, **params)
        tell(phase="loop")
        reader.fetchData()
        reader.getNextBatch()
        for _ in reader:
            pass
        tell(phase="close")
        reader.close()
    tell(phase="end")


def all_phases_traced(trial: Trial) -> None:
    """The same with a trace, in a folder that is still there when the interpreter ends."""
    all_phases(trial, trace=f"{trial.path}.{os.getpid()}.trace")


def all_phases_of_drop_ins(trial: Trial) -> None:
    """The same of an enqueuer and a ParaLoad, which has threads only."""
    from asyncreader.faces import OrderedEnqueuer, ParaLoad

    for _ in range(2 if trial.workers == "thread" else 1):
        tell(phase="open")
        enqueuer = OrderedEnqueuer(Slowly(), trial.workers == "process")
        enqueuer.start(2, 3)
        loader = ParaLoad([[0], [0]], fetch)
        loader.start_loaders()
        tell(phase="loop")
        for number in itertools.islice(enqueuer.get(), 20):
            assert number >= 0
            loader.return_back_for_refill(loader.get_available_data_index())
        tell(phase="close")
        enqueuer.stop()
        loader.stop()
    tell(phase="end")


class Slowly:
    """A sequence that takes a little while."""

    def __len__(self) -> int:
        return 1000

    def __getitem__(self, index: int) -> int:
        time.sleep(0.002)
        return index


def fetch(batch: list[int], number: int) -> None:
    """Fill a batch of a ParaLoad."""
    time.sleep(0.002)
    batch[0] = number


#: The ways that end by themselves: function, exit code, and how its last line on standard error
#: begins. Then those that a signal ends: plan, and the exit code that it makes.
WAYS: dict[str, tuple[Way, int, str]] = {
    **{way.__name__: (way, 0, "") for way in (normal, no_close, thread_reads_on, after_fork)},
    "exception": (exception, 1, "KeyError: 'mine'"),
    "exception_without_with": (exception_without_with, 1, "KeyError: 'mine'"),
    "exit_code": (exit_code, 7, ""),
    "worker_raises": failing("WorkerError", raises),
    "worker_returns_wrong_shape": failing("WorkerError", wrong_shape),
    "worker_stuck": failing("ReaderTimeoutError", stuck, timeout=0.2),
}
OF_PROCESSES: dict[str, tuple[Way, int, str]] = {
    "worker_killed": failing("WorkerError", kills_itself),
    "worker_crashes": failing("WorkerError", crashes),
    "worker_stopped": (worker_stopped, 0, ""),
    "worker_stuck_in_c": failing("ReaderTimeoutError", calls_c, timeout=0.2),
    "children_reaped_by_others": (children_reaped_by_others, 0, ""),
}
BY_SIGNAL: dict[str, tuple[Way, dict[str, Any], int]] = {
    "SIGTERM": (until_signal, {"signal": 15}, -15),
    "SIGKILL": (until_signal, {"signal": 9}, -9),
    "SIGTERM, a worker stuck": (stuck_until_signal, {"signal": 15}, -15),
    "SIGKILL, a worker stuck": (stuck_until_signal, {"signal": 9}, -9),
    "Ctrl-C, a worker stuck": (stuck_until_signal, {"signal": 2, "group": True}, -2),
}
_FUNCTIONS: dict[str, Way] = {
    **{name: way for name, (way, _, _) in (WAYS | OF_PROCESSES | BY_SIGNAL).items()},
    "all phases": all_phases,
    "all phases, traced": all_phases_traced,
    "all phases, drop-ins": all_phases_of_drop_ins,
}


def trial(way: str, path: str, workers: str) -> int:
    """Leave in that way; the exit code."""
    made = Trial(path, workers)
    if _FUNCTIONS[way](made):
        made.check()
    return 0


if __name__ == "__main__":  # a trial of its own from the first import on
    tell(phase="import")
    sys.exit(trial(**json.loads(sys.argv[1])))
