"""Shuffled minibatches from HDF5 or LMDB at the speed of memory, every pixel checked."""

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
from .reader import AsyncReader, Batch
from .stats import ReaderStats

__version__ = "0.1.0"

__all__ = [
    "AsyncReader",
    "AsyncReaderError",
    "Batch",
    "ChecksumError",
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
