"""Shuffled minibatches from HDF5 or LMDB at the speed of memory, every pixel checked."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .errors import (
    AsyncReaderError,
    ChecksumError,
    DecodeError,
    FinishedError,
    FormatError,
    NothingQueuedError,
    ParamsError,
    QueueFullError,
    ReaderClosedError,
    ReaderTimeoutError,
    SampleError,
    SourceError,
    SourceNotFoundError,
    WorkerError,
)

if TYPE_CHECKING:
    from .batch import Batch
    from .dataset import Dataset
    from .dataset import open as open
    from .reader import AsyncReader
    from .stats import ReaderStats

__version__ = "0.1.0"

__all__ = [
    "AsyncReader",
    "AsyncReaderError",
    "Batch",
    "ChecksumError",
    "Dataset",
    "DecodeError",
    "FinishedError",
    "FormatError",
    "NothingQueuedError",
    "ParamsError",
    "QueueFullError",
    "ReaderClosedError",
    "ReaderStats",
    "ReaderTimeoutError",
    "SampleError",
    "SourceError",
    "SourceNotFoundError",
    "WorkerError",
    "__version__",
]

#: Names whose modules take numpy and numba along (0.8 s): they are loaded when first asked for,
#: so that ``asyncreader --help`` answers at once (PEP 562).
_LATE = {
    "AsyncReader": "reader",
    "Batch": "batch",
    "Dataset": "dataset",
    "ReaderStats": "stats",
    "open": "dataset",  # not in __all__: ``from asyncreader import *`` leaves Python's own open
}


def __getattr__(name: str) -> object:
    if name not in _LATE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    try:
        value = globals()[name] = getattr(import_module(f"{__name__}.{_LATE[name]}"), name)
    except AttributeError as exc:  # to Python it would say that the name is unknown
        raise ImportError(f"{__name__}.{_LATE[name]} cannot be loaded: {exc}") from exc
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
