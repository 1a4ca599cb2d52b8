"""Hides from the packages, and from nobody else, the system calls that other systems lack.

The environment says which, before asyncreader is imported: ``HIDE_CALLS=python`` those that some
builds of Python for Linux lack, ``linux`` also what Linux alone has::

    HIDE_CALLS=linux pytest -m "not slow" tests/pipeline tests/sources tests/converters

Python processes that a test starts do the same: tests/support/hidden is put on their PYTHONPATH.
"""

import builtins
import ctypes
import errno
import importlib
import mmap
import os
import signal
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

HIDDEN = Path(__file__).resolve().parent / "hidden"

#: Names that are missing, by module and by what is hidden; each includes those before it.
MISSING: dict[str, dict[str, str]] = {
    "python": {
        "os": "memfd_create pidfd_open posix_fadvise posix_fallocate preadv"
        " sched_getaffinity O_DIRECT"
    },
    "linux": {"mmap": "MADV_HUGEPAGE"},
}
#: Functions of the C library, found by ctypes, that Linux alone has.
OF_LINUX = ("memfd_create", "syscall", "mincore", "sync_file_range")
#: Folders of Linux that programs read facts from, or put memory in.
FOLDERS = ("/proc/", "/sys/", "/dev/shm")


def of_packages(name: object) -> bool:
    """Whether a module is one of those that calls are hidden from."""
    return str(name).partition(".")[0] in ("asyncreader", "converters")


class Seen(types.ModuleType):
    """A module without some of its names, and with others in their place."""

    def __init__(self, real: types.ModuleType, missing: set[str], instead: dict[str, Any]) -> None:
        super().__init__(real.__name__)
        self._real, self._missing = real, missing
        self._before: dict[str, Any] = {}
        self.__dict__.update(instead)

    def __getattr__(self, name: str) -> Any:
        if name in self._missing:
            raise AttributeError(f"module {self._real.__name__!r} has no attribute {name!r}")
        return getattr(self._real, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("_") or name in self.__dict__:  # only the packages see it
            super().__setattr__(name, value)
        else:  # a test's: it is seen by all
            self._before.setdefault(name, getattr(self._real, name))
            setattr(self._real, name, value)

    def __delattr__(self, name: str) -> None:
        setattr(self._real, name, self._before.pop(name))


class Library(ctypes.CDLL):
    """The C library without what Linux alone has."""

    def __getattr__(self, name: str) -> Any:
        if name in OF_LINUX:
            raise AttributeError(name)
        return super().__getattr__(name)


def hide(what: str) -> None:
    """Hide calls from now on; ``what``: see above."""
    chosen = list(MISSING)[: list(MISSING).index(what) + 1]
    instead = {"ctypes": {"CDLL": Library}} if what == "linux" else {}
    seen: dict[str, types.ModuleType] = {}
    for real in (os, mmap, signal, ctypes):
        name = real.__name__
        missing = {one for kind in chosen for one in MISSING[kind].get(name, "").split()}
        seen[name] = Seen(real, missing, instead.get(name, {}))
    real_import: Callable[..., Any] = builtins.__import__
    real_module = importlib.import_module

    def found(name: str, real: Callable[[], Any]) -> Any:
        return seen[name] if name in seen else real()

    def imported(
        name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0
    ) -> Any:
        def real() -> Any:
            return real_import(name, globals, locals, fromlist, level)

        asks = (globals or {}).get("__name__")
        return found(name, real) if level == 0 and of_packages(asks) else real()

    seen["importlib"] = Seen(
        importlib,
        set(),
        {"import_module": lambda name, *rest: found(name, lambda: real_module(name, *rest))},
    )
    builtins.__import__ = imported

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        if event != "open" or not str(arguments[0]).startswith(FOLDERS):
            return
        frame, above = sys._getframe(1), 0
        while frame is not None and above < 6:  # tempfile lies in between
            if of_packages(frame.f_globals.get("__name__")):
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), arguments[0])
            frame, above = frame.f_back, above + 1

    if what != "python":
        sys.addaudithook(watch)
    there = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if str(HIDDEN) not in there:
        os.environ["PYTHONPATH"] = os.pathsep.join([str(HIDDEN), *filter(None, there)])


#: What is hidden in this process; "" is nothing.
ACTIVE = os.environ.get("HIDE_CALLS", "")
if ACTIVE:
    hide(ACTIVE)
