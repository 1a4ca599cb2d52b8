"""Shuffled minibatches from HDF5 or LMDB; training resumes at the next sample."""

from __future__ import annotations

import sys
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
from .system.late import late_names
from .version import __version__

if sys.platform == "win32":
    raise ImportError("asyncreader runs on Linux and macOS; on Windows it runs in WSL")

if TYPE_CHECKING:
    from converters import Writer, convert

    from .batch import Batch
    from .dataset import Dataset
    from .dataset import open as open
    from .params.families import Block, Crop, Lengths, Mix, Patch, Window
    from .reader import AsyncReader
    from .stats import ReaderStats

__all__ = [
    "AsyncReader",
    "AsyncReaderError",
    "Batch",
    "Block",
    "ChecksumError",
    "Crop",
    "Dataset",
    "DecodeError",
    "FinishedError",
    "FormatError",
    "Lengths",
    "Mix",
    "NothingQueuedError",
    "ParamsError",
    "Patch",
    "QueueFullError",
    "ReaderClosedError",
    "ReaderStats",
    "ReaderTimeoutError",
    "SampleError",
    "SourceError",
    "SourceNotFoundError",
    "Window",
    "WorkerError",
    "Writer",
    "__version__",
    "convert",
]

#: Names whose modules take numpy and numba along (0.8 s): they are loaded when first asked for,
#: so that ``asyncreader --help`` answers at once (PEP 562).
_LATE = {
    "asyncreader.reader": "AsyncReader",
    "asyncreader.batch": "Batch",
    # open is not in __all__: ``from asyncreader import *`` leaves Python's own
    "asyncreader.dataset": "Dataset open",
    "asyncreader.params.families": "Block Crop Lengths Mix Patch Window",
    "asyncreader.stats": "ReaderStats",
    "converters": "Writer convert",
}

__getattr__, __dir__ = late_names(globals(), _LATE)
