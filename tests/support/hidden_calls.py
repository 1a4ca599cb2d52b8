"""Hides from the packages, and from nobody else, the system calls that other systems lack.

The environment says which, before asyncreader is imported: ``HIDE_CALLS=python`` those that some
builds of Python for Linux lack, ``linux`` also what Linux alone has, ``posix`` also what Windows
lacks. There Windows' own calls are stood in for, and a few behave as they do on Windows::

    HIDE_CALLS=posix pytest -m "not slow" tests/pipeline tests/sources tests/converters

Python processes that a test starts do the same: tests/support/hidden is put on their PYTHONPATH.
"""

from __future__ import annotations

import builtins
import ctypes
import errno
import fcntl
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
        "os": "memfd_create pidfd_open register_at_fork posix_fadvise posix_fallocate preadv"
        " sched_getaffinity O_DIRECT"
    },
    "linux": {"mmap": "MADV_HUGEPAGE"},
    "posix": {
        "os": "pread pwrite statvfs geteuid sysconf uname fork O_CLOEXEC O_NOFOLLOW O_NONBLOCK"
        " O_NOCTTY O_DIRECTORY",
        "mmap": "MAP_PRIVATE MAP_SHARED MAP_ANONYMOUS PROT_READ PROT_WRITE",
        "signal": "pthread_sigmask SIG_BLOCK SIG_UNBLOCK SIG_SETMASK",
    },
}
MODULES = {"posix": {"fcntl", "resource", "termios", "pwd", "grp"}}
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


def no_library(name: str | None, *_: Any, **__: Any) -> Any:
    """Windows' own libraries have names."""
    raise TypeError("bad argument type for built-in operation")


class Kernel32:
    """Windows' calls that are used, done by those of this system."""

    error = 0

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def LockFileEx(self, handle: Any, flags: int, *_: Any) -> int:
        kind = fcntl.LOCK_EX if flags & 2 else fcntl.LOCK_SH
        try:
            fcntl.flock(handle.value, kind | (fcntl.LOCK_NB if flags & 1 else 0))
        except BlockingIOError:
            Kernel32.error = 33
            return 0
        return 1

    def UnlockFileEx(self, handle: Any, *_: Any) -> int:
        fcntl.flock(handle.value, fcntl.LOCK_UN)
        return 1

    def GlobalMemoryStatusEx(self, status: Any) -> int:
        assert status[0] == ctypes.sizeof(status)
        status[1] = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        return 1


def create_file(path: str, access: int, share: int, _: int, kind: int, *__: int) -> int:
    """_winapi.CreateFile, of a file that may be renamed and removed while it is open."""
    assert share == 7
    flags = os.O_RDWR if access & 0x40000000 else os.O_RDONLY
    return os.open(path, flags | os.O_CLOEXEC | (os.O_CREAT if kind == 4 else 0))


def open_file(path: Any, *rest: Any, **named: Any) -> int:
    """os.open, which opens no folder on Windows."""
    if os.path.isdir(path):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
    return os.open(path, *rest, **named)


def rename(path: Any, target: Any) -> None:
    """os.rename, which takes no name that something has on Windows."""
    if os.path.lexists(target):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), target)
    os.rename(path, target)


WINDOWS: dict[str, dict[str, Any]] = {
    "os": {"open": open_file, "rename": rename, "supports_fd": frozenset()},
    "ctypes": {
        "CDLL": no_library,
        "WinDLL": Kernel32,
        "get_last_error": lambda: Kernel32.error,
        "WinError": lambda code: OSError(code, "an error of Windows"),
    },
}
OF_WINDOWS = {
    "msvcrt": types.SimpleNamespace(
        get_osfhandle=lambda fd: fd, open_osfhandle=lambda handle, flags: handle
    ),
    "_winapi": types.SimpleNamespace(CreateFile=create_file),
}


def hide(what: str) -> None:
    """Hide calls from now on; ``what``: see above."""
    chosen = list(MISSING)[: list(MISSING).index(what) + 1]
    windows = what == "posix"
    instead: dict[str, dict[str, Any]] = WINDOWS if windows else {}
    if what == "linux":
        instead = {"ctypes": {"CDLL": Library}}
    seen: dict[str, types.ModuleType] = {}
    for real in (os, mmap, signal, ctypes):
        name = real.__name__
        missing = {one for kind in chosen for one in MISSING[kind].get(name, "").split()}
        seen[name] = Seen(real, missing, instead.get(name, {}))
    gone = MODULES.get(what, set())
    real_import: Callable[..., Any] = builtins.__import__
    real_module = importlib.import_module

    def found(name: str, real: Callable[[], Any]) -> Any:
        if name in gone:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        if windows and name in OF_WINDOWS:
            return OF_WINDOWS[name]
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
