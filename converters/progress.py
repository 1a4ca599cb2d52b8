"""Shows the progress of ``convert`` as one line, in terminals and notebooks."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import Final, TextIO, TypeAlias

from asyncreader.text import in_time

#: Called with samples done, and in all.
Progress: TypeAlias = Callable[[int, int], object]

#: Seconds between two updates.
_APART: Final = 0.1


@contextlib.contextmanager
def shown(given: Progress | bool | None) -> Iterator[Progress | None]:
    """What is to be called: the caller's function, or one that writes a line where a person looks
    on, which is removed at the end. None: nothing; also of ``False``."""
    where = _where() if given is None or given is True else None
    if where is None:
        yield None if isinstance(given, bool) else given
        return
    line = _Line(where)
    try:
        yield line
    finally:
        line.write("")


def _where() -> TextIO | None:
    """Where a line can be rewritten: a terminal, or the output of a notebook's cell."""
    notebook = sys.modules.get("IPython")
    shell = None if notebook is None else notebook.get_ipython()
    if shell is not None and "IPKernelApp" in shell.config:
        return sys.stdout
    there = sys.stderr is not None and sys.stderr.isatty()
    return sys.stderr if there and os.environ.get("TERM") != "dumb" else None


class _Line:
    """A line that is written again and again: done, in all, samples a second and what is left."""

    def __init__(self, where: TextIO) -> None:
        self._where = where
        self._wide = 0
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
        self.write(f"packing: {done:,} of {total:,}, {rate:,.0f}/s{left}")

    def write(self, text: str) -> None:
        """Put ``text`` in the place of the line."""
        with contextlib.suppress(OSError):
            self._where.write(f"\r{text:{self._wide}}" + ("" if text else "\r"))
            self._where.flush()
            self._wide = len(text)
