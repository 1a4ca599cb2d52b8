"""What can go wrong, as types: one tree; each error says what, where, found and what to do.

AsyncReaderError
├── ParamsError (ValueError)            the caller asked for something that cannot be
├── SourceError (OSError)               the dataset, not the caller
│   ├── SourceNotFoundError (FileNotFoundError)
│   ├── FormatError                     the file is not what it claims to be, or not for us
│   └── SampleError                     one sample is bad; on_error decides what happens
│       ├── ChecksumError               its bytes are not the bytes that were written
│       └── DecodeError                 its bytes are not an image that we can decode
├── QueueFullError (RuntimeError)       fetchData() or keep() with every slot in use
├── NothingQueuedError (RuntimeError)   getNextBatch() without a fetchData() before it
├── FinishedError (RuntimeError)        a fetch past the last epoch
├── ReaderClosedError (RuntimeError)    a call after close(), or in a forked child
├── ReaderTimeoutError (TimeoutError)   no batch within timeout seconds
└── WorkerError (RuntimeError)          transform or postprocess raised, or a worker died
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, Protocol, Self, TypedDict, Unpack, cast


def shown(text: object) -> str:
    r"""``text`` fit for one line of a terminal: bytes that are no UTF-8, and controls, as \x.. .

    What stands in a file (names, paths, keys) must not move a cursor or retitle a window.
    """
    line = str(text)
    if line.isprintable():
        return line

    def escape(letter: str) -> str:
        code = ord(letter)
        if 0xDC80 <= code <= 0xDCFF:  # a byte of a name, as os.fsdecode carries it
            return f"\\x{code - 0xDC00:02x}"
        return letter.encode("unicode_escape").decode("ascii")

    return "".join(c if c.isprintable() else escape(c) for c in line)


class ErrorFields(TypedDict, total=False):
    """What an error says besides ``what``."""

    path: str | None
    index: int | None
    key: str | None
    source_path: str | None
    found: object
    expected: object
    hint: str | None


class AsyncReaderError(Exception):
    """Base of every error this package raises.

    ``what`` is one clause; the keyword fields say where (``path``, ``index``, ``key``,
    ``source_path``), ``found``, ``expected``, and ``hint``: what to do next. All of them are
    attributes and survive pickling; ``str(error)`` joins those that are set into one line.
    """

    path: str | None = None
    index: int | None = None
    key: str | None = None
    source_path: str | None = None
    found: object = None
    expected: object = None
    hint: str | None = None

    def __init__(self, what: str, **fields: Unpack[ErrorFields]) -> None:
        unknown = fields.keys() - ErrorFields.__annotations__
        if unknown:
            raise TypeError(f"an error has no {', '.join(sorted(unknown))}")
        super().__init__(what)
        self.what = what
        vars(self).update(fields)

    def fields(self) -> ErrorFields:
        """The keyword fields, as given (what pickling carries)."""
        fields: Any = {name: getattr(self, name) for name in ErrorFields.__annotations__}
        return cast(ErrorFields, fields)

    def shift_record(self, first: int) -> None:
        """Name the record by its number in a dataset, whose part begins with record ``first``."""
        if self.index is not None:
            self.index += first

    def __reduce__(self) -> tuple[object, ...]:
        return partial(type(self), self.what, **self.fields()), ()

    def __str__(self) -> str:
        source = None if self.source_path is None else repr(self.source_path)
        places = (("", self.path), ("record ", self.index), ("key ", self.key), ("source ", source))
        said = (("found ", self.found), ("expected ", self.expected), ("", self.hint))
        where = ", ".join(f"{word}{value}" for word, value in places if value is not None)
        more = "".join(f"; {word}{value}" for word, value in said if value is not None)
        return shown(f"{self.what} [{where}]{more}" if where else f"{self.what}{more}")


class ParamsError(AsyncReaderError, ValueError):
    """A parameter is unknown, of the wrong type, out of range, or at odds with another."""


class SourceError(AsyncReaderError, OSError):
    """The dataset could not be opened or read."""

    def __init__(self, what: str, **fields: Unpack[ErrorFields]) -> None:
        AsyncReaderError.__init__(self, what, **fields)


class SourceNotFoundError(SourceError, FileNotFoundError):
    """There is no such file."""


class FormatError(SourceError):
    """The file is damaged, incomplete, hostile, or of a kind that is not read."""


class SampleError(SourceError):
    """One sample is bad. ``on_error`` decides whether it is raised, skipped or zeroed."""


class ChecksumError(SampleError):
    """A sample's bytes are not the bytes that were written."""


class DecodeError(SampleError):
    """A sample's bytes are not an image that can be decoded as declared."""


class QueueFullError(AsyncReaderError, RuntimeError):
    """Every slot is in flight, held or kept."""


class NothingQueuedError(AsyncReaderError, RuntimeError):
    """There is no batch to wait for: call ``fetchData()`` first."""


class FinishedError(AsyncReaderError, RuntimeError):
    """All ``epochs`` have been fetched."""


class ReaderClosedError(AsyncReaderError, RuntimeError):
    """The reader is closed, or belongs to the process this one was forked from."""


class ReaderTimeoutError(AsyncReaderError, TimeoutError):
    """No batch became ready within ``timeout`` seconds; it is still being filled."""


class WorkerError(AsyncReaderError, RuntimeError):
    """``transform`` or ``postprocess`` raised or returned another shape, or a worker died."""


@contextlib.contextmanager
def located(
    *,
    path: str | None = None,
    index: int | None = None,
    key: Callable[[], str | None] | None = None,
    source_path: str | None = None,
) -> Iterator[None]:
    """Give errors of ours that pass here their place, as far as they do not say it themselves.

    ``key``: a function, since looking a key up takes time that only an error is worth.
    """
    try:
        yield
    except AsyncReaderError as exc:
        exc.path = path if exc.path is None else exc.path
        exc.index = index if exc.index is None else exc.index
        if key is not None and exc.key is None:
            with contextlib.suppress(AsyncReaderError):  # where the file cannot be read
                exc.key = key()
        exc.source_path = source_path if exc.source_path is None else exc.source_path
        raise


class Closes(Protocol):
    """What can be closed."""

    def close(self) -> object:
        """Close it."""


class Closing:
    """What is closed at the end of a ``with`` block: derive from this class."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """Close it."""
        raise NotImplementedError


@contextlib.contextmanager
def closed_on_error(opened: Iterable[Closes]) -> Iterator[None]:
    """Close all that is in ``opened`` by then, if an error or Ctrl-C passes here."""
    try:
        yield
    except BaseException:
        for one in opened:
            one.close()
        raise


def as_ours(error: BaseException) -> AsyncReaderError:
    """The error as an AsyncReaderError; any other error becomes the cause of a WorkerError."""
    if isinstance(error, AsyncReaderError):
        return error
    wrapped = WorkerError(
        f"a worker failed: {type(error).__name__}: {error}", hint="the original error is its cause"
    )
    wrapped.__cause__ = error
    return wrapped
