"""Conversions that are disturbed, each in its own process (see child_runner.py).

The disturbance comes at the k-th call of C from the modules that write a set. Every write, sync,
rename and lock is such a call; so is each step of lmdb and those around h5py.
"""

import argparse
import errno
import importlib
import os
import resource
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from faults.programs.child_runner import tell

WRITING = ("disk", "hdf5_writer", "publish", "sharded_set", "shards", "sinks")

#: The modules that write. warm() imports each, so that a renamed one is an error.
WRITERS = frozenset(
    (
        *("converters.temp_tables", "asyncreader.system.files"),
        *(f"converters.outputs.{name}" for name in WRITING),
    )
)

#: Two thirds of the calls of C, and none of them writes: there are others between any two writes.
IDLE = frozenset(("len", "append"))

#: Calls of os that write, which fail where a disk is full.
WRITES = ("pwrite", "posix_fallocate", "ftruncate", "fsync", "mkdir", "rename", "open")


#: Those that need free space: on a full disk they go on failing.
GROWING = ("pwrite", "posix_fallocate", "ftruncate", "mkdir", "open")


def warm() -> None:
    """Import what a conversion needs, and what it imports late."""
    import asyncreader.cli.main
    import asyncreader.tools.verify
    import converters.writer

    assert asyncreader.cli.main is not None
    assert asyncreader.tools.verify is not None
    assert converters.writer is not None
    assert converters.Writer is not None
    for name in WRITERS:
        importlib.import_module(name)


class Counter:
    """Counts calls of C from WRITERS, and acts at the k-th: before it, or when it has returned."""

    def __init__(self, at: int, act: Callable[[], None], after_it: bool) -> None:
        self.calls = 0
        self._at = at
        self._act = act
        self._event = "c_return" if after_it else "c_call"

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        if event == self._event and frame.f_globals.get("__name__") in WRITERS:
            name = getattr(argument, "__name__", "?")
            self.calls += name not in IDLE
            if self.calls == self._at and name not in IDLE:
                tell(at=f"{frame.f_code.co_name}, line {frame.f_lineno}: {name}")
                self._act()


def full_from_now_on() -> None:
    """No file can grow from now on: writes fail with EFBIG, in libraries too."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))


def fail_write(number: int, for_good: bool) -> Callable[[], int]:
    """From now on the converter's ``number``-th write fails with ENOSPC, ``for_good``: and all
    after it."""
    seen = 0

    def failing(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            nonlocal seen
            if real is os_open and not args[1] & os.O_CREAT:
                return real(*args, **options)
            seen += 1
            if seen == number or (for_good and seen > number and real.__name__ in GROWING):
                tell(at=real.__name__)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return real(*args, **options)

        return call

    os_open = os.open
    for name in WRITES:
        setattr(os, name, failing(getattr(os, name)))
    return lambda: seen


def write(arguments: list[str]) -> None:
    """Add the pictures of a folder to a Writer, as ``asyncreader convert`` takes its arguments."""
    import numpy as np
    from PIL import Image

    from asyncreader import Writer
    from asyncreader.errors import AsyncReaderError, shown

    parser = argparse.ArgumentParser()
    for name in ("source", "target"):
        parser.add_argument(name)
    for name, kind in (("encoding", str), ("jobs", int), ("shards", int), ("format", str)):
        parser.add_argument(f"--{name}", type=kind)
    for name in ("overwrite", "resume"):
        parser.add_argument(f"--{name}", action="store_true")
    options = vars(parser.parse_args(arguments))
    files = sorted(Path(options.pop("source")).rglob("*.png"))
    try:
        with Writer(options.pop("target"), variable_length="boxes", **options) as writer:
            for number, file in enumerate(files):
                with Image.open(file) as picture:
                    pixels = np.asarray(picture)
                side = np.arange(9.0) * number
                writer.add(
                    pixels, number % 2, path=str(number), side=side, boxes=side[: number % 5]
                )
    except AsyncReaderError as exc:
        print(f"error: {shown(exc)}", file=sys.stderr)
        raise SystemExit(1) from exc


def trial(
    arguments: list[str],
    temporary: str,
    kill_at: int = 0,
    wait_at: int = 0,
    fifo: str = "",
    full_at: int = 0,
    fail_at: int = 0,
    after_it: bool = False,
    for_good: bool = True,
    added: bool = False,
) -> int:
    """Run ``asyncreader convert`` with these arguments, or ``added`` a Writer; its exit code.

    At most one of: ``kill_at``: kill -9 at that call; ``wait_at``: wait there until another
    process has opened the FIFO ``fifo`` and closed it; ``full_at``: the disk is full from there on;
    ``fail_at``: the converter's write of that number fails, and ``for_good`` those after it that
    need free space.
    """
    import tempfile

    from asyncreader.cli.main import main

    tempfile.tempdir = temporary
    writes: Callable[[], int] = lambda: 0  # noqa: E731
    act: Callable[[], None] = lambda: None  # noqa: E731
    if kill_at:
        act = lambda: os.kill(os.getpid(), signal.SIGKILL)  # noqa: E731
    elif wait_at:
        act = lambda: Path(fifo).read_bytes() and None  # noqa: E731
    elif full_at:
        act = full_from_now_on
    elif fail_at:
        writes = fail_write(fail_at, for_good)
    counter = Counter(kill_at or wait_at or full_at, act, after_it)
    sys.setprofile(counter)
    try:
        write(arguments) if added else main(["convert", *arguments])
    except SystemExit as end:
        return int(end.code or 0)
    finally:
        sys.setprofile(None)
        tell(calls=counter.calls, writes=writes())
    return 0
