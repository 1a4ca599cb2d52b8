"""Shows the progress of ``convert`` as one line, in terminals and notebooks."""

from __future__ import annotations

import contextlib
import os
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Final, TextIO, TypeAlias

from asyncreader.system import notebooks
from asyncreader.system.text import in_time

#: Called with samples done, and in all.
Progress: TypeAlias = Callable[[int, int], object]

#: Seconds between two updates.
_APART: Final = 0.1


@contextlib.contextmanager
def progress_line(given: Progress | bool | None) -> Iterator[Progress | None]:
    """What is to be called: the caller's function, or one that writes a line where a person looks
    on, which is removed at the end. None: nothing; also of ``False``."""
    write = _writer() if given is None or given is True else None
    if write is None:
        yield None if isinstance(given, bool) else given
        return
    line = _Line(write)
    try:
        yield line
    finally:
        line.remove()


def _writer() -> Callable[[str], None] | None:
    """What writes a line in the place of the one before: in a notebook's cell, or a terminal."""
    if notebooks.in_notebook():
        return _Cell()
    there = sys.stderr is not None and sys.stderr.isatty()
    return _Terminal(sys.stderr) if there and os.environ.get("TERM") != "dumb" else None


class _Line:
    """A line that is written again and again: done, in all, samples a second and what is left."""

    def __init__(self, write: Callable[[str], None]) -> None:
        self._write = write
        self._began = self._last = time.monotonic()
        self._before: int | None = None

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic()
        if self._before is None:  # a run that resumes tells first what is kept
            self._before, self._began = done, now
        if now - self._last < _APART and done < total:
            return
        self._last = now
        rate = (done - self._before) / max(now - self._began, 1e-9)
        left = f", {in_time((total - done) / rate)} left" if done < total and rate > 0 else ""
        self._write(f"converting: {done:,} of {total:,}, {rate:,.0f}/s{left}")

    def remove(self) -> None:
        """Leave nothing of the line."""
        self._write("")


class _Terminal:
    """Writes over the line of a terminal."""

    def __init__(self, where: TextIO) -> None:
        self._where, self._wide = where, 0

    def __call__(self, text: str) -> None:
        with contextlib.suppress(OSError):
            self._where.write(f"\r{text:{self._wide}}" + ("" if text else "\r"))
            self._where.flush()
            self._wide = len(text)


class _Cell:
    """Replaces one output of a notebook's cell. Standard output with carriage returns would stay
    in the saved notebook, with all its lines."""

    def __init__(self) -> None:
        self._key = ""

    def __call__(self, text: str) -> None:
        known, self._key = bool(self._key), self._key or uuid.uuid4().hex
        if text or known:
            notebooks.show({"text/plain": text}, self._key, update=known)
