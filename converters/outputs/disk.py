"""Reserves disk space before a library writes, and makes files durable.

Space is reserved ahead (posix_fallocate), so that a full disk is one clear error here. In HDF5 it
would be an error from close() and a crash at exit.
"""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
from collections.abc import Iterator
from typing import Final

from asyncreader.errors import AsyncReaderError, SourceError
from asyncreader.system import files
from asyncreader.system.files import free_bytes as free_bytes

#: Reserved ahead: an eighth of the file's size, within these limits; cut off at the end.
LEAST_AHEAD: Final = 1 << 20
MOST_AHEAD: Final = 64 << 20

#: Bytes that a new name, or a change of a file's length, may need: a block.
ENTRY: Final = 4096

_FULL: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
#: File systems that cannot reserve space: there a full disk is an error of the write.
_UNABLE: Final = (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)

#: Smaller pieces are written together.
_BUFFER: Final = 1 << 20
_SMALL: Final = 1 << 16

#: What errors say of a write that fails.
_NOT_WRITTEN: Final = "the target cannot be written"

#: The end of a hint, where nothing was left.
NOTHING_LEFT: Final = "nothing was left behind"


def is_full(error: BaseException) -> bool:
    """Whether ``error`` means no space: full disk, quota, or file size limit. A library's error is
    recognised by the system's text in it."""
    return any(_tells(error, number) for number in _FULL)


def _tells(error: BaseException, number: int) -> bool:
    return getattr(error, "errno", None) == number or os.strerror(number) in str(error)


def full_error(
    target: str, folder: str, needed: int, error: BaseException | None = None
) -> SourceError:
    """The error for a disk without space for ``needed`` more bytes of ``target``; ``error``: the
    system's."""
    limited = error is not None and _tells(error, errno.EFBIG)
    return SourceError(
        "the file would exceed the system's limit of a file's size"
        if limited
        else "no space on the disk",
        path=target,
        found=f"{free_bytes(folder)} bytes free",
        expected=f"{needed} more",
        hint=f"{'raise the limit (ulimit -f)' if limited else 'free some space'}, or convert "
        f"elsewhere; {NOTHING_LEFT}",
    )


def no_temporary_space() -> SourceError:
    """The error for a disk without space for the temporary files."""
    folder = tempfile.gettempdir()
    return SourceError(
        "no space for temporary files",
        path=folder,
        found=f"{free_bytes(folder)} bytes free",
        expected="about 200 more for each image",
        hint=f"free some space, or set TMPDIR to another folder; {NOTHING_LEFT}",
    )


@contextlib.contextmanager
def temporary_files() -> Iterator[None]:
    """Inside, a full disk that is told by no error of ours is that of the temporary files."""
    try:
        yield
    except OSError as exc:
        if isinstance(exc, AsyncReaderError) or not is_full(exc):
            raise
        raise no_temporary_space() from exc


@contextlib.contextmanager
def reported(
    target: str,
    folder: str,
    what: str | None = None,
    needed: int = ENTRY,
    errors: type[Exception] = OSError,
) -> Iterator[None]:
    """While files of ``target`` are written or renamed in ``folder``: of such ``errors`` a full
    disk is reported by :func:`full_error`, others as ``what``, or as they are without it."""
    try:
        yield
    except (AsyncReaderError, AssertionError, MemoryError):
        raise
    except errors as exc:
        if is_full(exc):
            raise full_error(target, folder, needed, exc) from exc
        if what is None:
            raise
        found = getattr(exc, "strerror", None) or str(exc)
        raise SourceError(what, path=target, found=found) from exc


def check_space(target: str, folder: str, needed: int) -> None:
    """SourceError if there is no space for ``needed`` more bytes of ``target``."""
    if needed > free_bytes(folder):
        raise full_error(target, folder, needed)


class Extent:
    """A file that grows at its end: reserved ahead, written in large pieces.

    ``target``: the name for messages; ``start``: where the first byte goes.
    """

    def __init__(self, path: str, target: str, start: int) -> None:
        self._folder = os.path.dirname(path)
        self._target = target
        self.file = files.open_itself(path, os.O_RDWR)
        self._reserved = 0
        self._at = self._begun = start
        self._buffer = bytearray()

    @property
    def end(self) -> int:
        """Where the next byte goes."""
        return self._at + len(self._buffer)

    def append(self, data: bytes | memoryview) -> None:
        """Add ``data``."""
        if len(data) < _SMALL:
            self._buffer += data
            if len(self._buffer) >= _BUFFER:
                self.flush()
        else:
            self.flush()
            self._write(memoryview(data))

    def flush(self) -> None:
        """Write what append() has buffered."""
        if self._buffer:
            data, self._buffer = self._buffer, bytearray()
            self._write(memoryview(data))

    def _write(self, data: memoryview) -> None:
        self.reserve(self._at + len(data))
        while data:
            with reported(self._target, self._folder, _NOT_WRITTEN, len(data)):
                done = os.pwrite(self.file, data, self._at)
            self._at += done
            data = data[done:]

    def begin_sync(self, least: int) -> None:
        """Let the disk begin with what came since the last time, if that is ``least`` bytes."""
        if self._at - self._begun >= least:
            files.begin_sync(self.file, self._begun)
            self._begun = self._at

    def reserve(self, end: int, some_more: bool = True) -> None:
        """Make sure that the file can be written up to ``end``."""
        if end <= self._reserved:
            return
        ahead = min(max(end // 8, LEAST_AHEAD), MOST_AHEAD) if some_more else 0
        try:  # False, or such an error, of file systems that cannot
            if files.reserve(self.file, self._reserved, end + ahead - self._reserved):
                self._reserved = end + ahead
        except OSError as exc:
            if ahead and is_full(exc):
                self.reserve(end, some_more=False)
            elif exc.errno not in _UNABLE:
                with reported(self._target, self._folder, _NOT_WRITTEN, end - self._reserved):
                    raise

    def read(self, start: int, size: int) -> bytes:
        """Bytes that were written (and flushed)."""
        return os.pread(self.file, size, start)

    def truncate(self, size: int) -> None:
        """Cut the file, and what was reserved of it."""
        os.ftruncate(self.file, size)
        self._reserved = min(self._reserved, size)

    def close(self) -> None:
        """Close the file; it keeps what was written."""
        if self.file >= 0:
            os.close(self.file)
            self.file = -1


def sync(path: str) -> None:
    """Make a file or a folder durable, and drop its cached pages so that a check reads the disk."""
    files.sync(path, drop=True)
