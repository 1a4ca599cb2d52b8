"""Hides from a Python, and from those that it starts, the system calls that other systems lack.

``HIDE_CALLS=python`` hides those that some builds of Python for Linux lack, ``linux`` also what
Linux alone has. tests/support/hidden, on the PYTHONPATH, makes a Python call :func:`hide`.
"""

import ctypes
import errno
import importlib
import os
import sys
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
#: Folders of Linux that our packages read facts from, or put memory in.
FOLDERS = ("/proc/", "/sys/", "/dev/shm")


def hide(what: str) -> None:
    """Hide calls from now on; ``what``: see above."""
    for kind in list(MISSING)[: list(MISSING).index(what) + 1]:
        for module, names in MISSING[kind].items():
            for name in names.split():
                delattr(importlib.import_module(module), name)
    if what == "linux":
        real = ctypes.CDLL.__getattr__

        def function(library: ctypes.CDLL, name: str) -> Any:
            if name in OF_LINUX:
                raise AttributeError(name)
            return real(library, name)

        ctypes.CDLL.__getattr__ = function  # type: ignore[method-assign]
        sys.addaudithook(watch)


def watch(event: str, arguments: tuple[Any, ...]) -> None:
    """FileNotFoundError where one of our packages opens a file of these folders."""
    if event != "open" or not str(arguments[0]).startswith(FOLDERS):
        return
    frame, above = sys._getframe(1), 0
    while frame is not None and above < 6:  # tempfile lies in between
        if str(frame.f_globals.get("__name__")).startswith(("asyncreader", "converters")):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), arguments[0])
        frame, above = frame.f_back, above + 1
