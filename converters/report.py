"""What ``convert`` tells: its progress as one line, in terminals and notebooks, and its report."""

from __future__ import annotations

import contextlib
import os
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Final, TextIO, TypeAlias

from asyncreader.stats import html_table
from asyncreader.system.text import in_bytes, in_notebook, in_time, show, some

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
    try:
        yield _Line(write)
    finally:
        write("")  # leaves nothing of the line


def _writer() -> Callable[[str], None] | None:
    """What writes a line in the place of the one before: in a notebook's cell, or a terminal."""
    if in_notebook():
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
            show({"text/plain": text}, self._key, update=known)


# -- the report ------------------------------------------------------------------------------------


#: Bad sources that a notebook's table lists.
_LISTED = 5


@dataclass(frozen=True)
class ConvertReport:
    """The outcome of ``converters.convert()``.

    ``count``: samples written; ``skipped``: (path, reason) of each bad source, in path order, so
    count + len(skipped) sources were tried; ``ignored``: how many files were left out, by kind
    ("hidden", "other suffix", "not in the CSV"); ``bytes``: the size of the target on disk;
    ``shards``: the files of a sharded dataset, None for one file; ``kept``: how many of them an
    interrupted run had finished, with ``kept_samples`` samples; ``seconds``: the time of the whole
    call; ``rewritten``: images that got restart markers, None if they were not to get any;
    ``narrowed``: images of 16 bits that became 8; ``notes``: what a user may not expect, such as
    folders inside classes, and classes without images. Names that are not UTF-8 carry surrogate
    escapes, as everywhere in Python.
    """

    target: str
    format: str
    encoding: str
    count: int
    skipped: tuple[tuple[str, str], ...]
    ignored: Mapping[str, int]
    classes: tuple[str, ...] | None
    bytes: int
    seconds: float
    shards: int | None = None
    kept: int = 0
    kept_samples: int = 0
    rewritten: int | None = None
    narrowed: int = 0
    notes: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, object]:
        """The same facts as plain lists and dicts, for JSON."""
        facts = asdict(self)
        facts["skipped"] = [{"path": path, "reason": reason} for path, reason in self.skipped]
        facts["classes"] = None if self.classes is None else list(self.classes)
        facts["notes"] = list(self.notes)
        facts["ignored"] = dict(self.ignored)
        return facts

    def _repr_html_(self) -> str:
        """A table, for notebooks (IPython's rich display)."""
        words = [self.format, self.encoding, in_bytes(self.bytes)]
        words += [] if self.shards is None else [some(self.shards, "shard")]
        rows = [("target", self.target), ("format", ", ".join(words))]
        packed = some(self.count, "sample")
        packed += f", {self.kept_samples:,} kept from the run before" if self.kept_samples else ""
        rows.append(("written", f"{packed}, in {self.seconds:.1f} s"))
        if self.classes is not None:
            names = ", ".join(self.classes[:_LISTED]) + ", ..." * (len(self.classes) > _LISTED)
            rows.append(("classes", f"{len(self.classes):,}: {names}"))
        for number, (path, reason) in enumerate(self.skipped[:_LISTED]):
            name = "" if number else f"skipped: {len(self.skipped):,}"
            rows.append((name, f"{path}: {reason}"))
        if len(self.skipped) > _LISTED:
            rows.append(("", "..."))
        rows += [("ignored", f"{count:,} {kind}") for kind, count in self.ignored.items() if count]
        if self.narrowed:
            rows.append(("narrowed", f"{self.narrowed:,} of 16 bits to 8"))
        rows += [("note", note) for note in self.notes]
        return html_table("ConvertReport", rows)
