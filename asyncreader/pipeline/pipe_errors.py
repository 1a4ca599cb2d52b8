"""Errors that cross a pipe between processes: the error, the trace of its process, its cause."""

from __future__ import annotations

import io
import os
import traceback
from multiprocessing import reduction
from multiprocessing.connection import Connection
from typing import Any

from ..errors import AsyncReaderError


def _describe(error: AsyncReaderError) -> tuple[AsyncReaderError, str, BaseException | None]:
    """An error as it can cross a pipe: itself, the worker's trace, and its cause where that can."""
    cause = error.__cause__
    trace = "".join(traceback.format_exception(cause or error))
    if cause is not None:
        try:
            reduction.ForkingPickler(io.BytesIO()).dump(cause)
        except Exception:
            cause = RuntimeError(f"{type(cause).__name__}: {cause}")
    return error, f"in worker process {os.getpid()}:\n{trace}", cause


def send_error(pipe: Connection, error: AsyncReaderError | None, *head: Any) -> None:
    """Send (*head, error, trace), and its cause as a message of its own: it may not unpickle."""
    if error is None:
        pipe.send((*head, None, None))
        return
    error, trace, cause = _describe(error)
    pipe.send((*head, error, trace))
    pipe.send(cause)


def receive_error(pipe: Connection) -> tuple[Any, ...]:
    """What send_error sent, the error put together again."""
    *head, error, trace = pipe.recv()
    if error is not None:
        try:
            cause = pipe.recv()
        except (EOFError, OSError):
            raise
        except Exception as exc:  # a class whose pickle only goes one way
            cause = RuntimeError(f"the original error cannot be unpickled: {exc!r}")
        error.__cause__ = cause
        error.add_note(trace)
    return (*head, error)
