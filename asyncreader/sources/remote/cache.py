"""A cache of whole shards in a local folder, of bounded size, shared by all processes.

``ASYNCREADER_CACHE_DIR`` and ``ASYNCREADER_CACHE_BYTES`` (such as 200GB) say where and how much.
A file gets its final name when it is complete and its XXH3-64 equals the manifest's; the name holds
that checksum, so that equal shards are stored once and a changed shard is another file. The least
recently used is removed first. A killed process leaves an unlocked part file; the next process that
needs space removes it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
from collections.abc import Callable, Iterator
from typing import Final, TypeVar

import xxhash

from ...errors import FormatError, ParamsError, SourceError
from ...formats.manifest import Shard
from ...system import files
from ..sniff import Location
from .client import Objects

T = TypeVar("T")

DIR_VARIABLE: Final = "ASYNCREADER_CACHE_DIR"
BYTES_VARIABLE: Final = "ASYNCREADER_CACHE_BYTES"

#: Without BYTES_VARIABLE: this part of what was free or the cache's own, at most so much.
_SHARE: Final = 2
_MOST: Final = 1 << 40

#: Asked for at once while a shard is fetched, and how much of it is one request.
_TOGETHER: Final = 64 << 20
_PIECE: Final = 8 << 20

_UNITS: Final = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_NAME: Final = re.compile(r"[0-9a-f]{16}-\d+\.(h5|lmdb)(\.part)?")


def cache_folder() -> str | None:
    """The folder that the environment names, None if it names none."""
    return os.environ.get(DIR_VARIABLE) or None


def default_folder() -> str:
    """Where caches of programs lie (XDG Base Directory Specification)."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(base, "asyncreader")


def parse_bytes(text: str) -> int:
    """ "200GB" -> 200_000_000_000. ParamsError."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?)b?\s*", text.lower())
    if found is None or float(found[1]) <= 0:
        raise ParamsError(f"{BYTES_VARIABLE} is not a size", found=text[:40], expected="200GB")
    return int(float(found[1]) * _UNITS[found[2]])


class ShardCache:
    """The cache in ``folder``, of at most ``limit`` bytes. ParamsError or SourceError."""

    def __init__(self, folder: str, limit: int | None = None) -> None:
        self.folder = folder
        try:
            os.makedirs(folder, mode=0o700, exist_ok=True)
            if limit is None:
                held = sum(size for _, size, _ in self._files())
                limit = min(_MOST, (files.free_bytes(folder) + held) // _SHARE)
        except OSError as exc:
            raise SourceError(
                f"the cache cannot be used: {exc.strerror}", path=folder, hint=f"set {DIR_VARIABLE}"
            ) from exc
        self.limit = limit

    @classmethod
    def by_environment(cls) -> ShardCache:
        """The one that the environment describes."""
        text = os.environ.get(BYTES_VARIABLE)
        return cls(cache_folder() or default_folder(), None if text is None else parse_bytes(text))

    def check_fits(self, largest: int, path: str) -> None:
        """Raise ParamsError unless two shards fit."""
        if 2 * largest > self.limit:
            raise ParamsError(
                "the cache is too small: it must hold at least two shards",
                path=path,
                found=f"{self.limit} bytes in {self.folder}",
                expected=f"at least {2 * largest}",
                hint=f"raise {BYTES_VARIABLE}, or write smaller shards",
            )

    def open(
        self,
        objects: Objects,
        location: Location,
        row: Shard,
        suffix: str,
        opened: Callable[[str], T],
    ) -> T:
        """What ``opened`` makes of the path of the shard's file, downloaded if necessary. The file
        may be removed as soon as that returns: what is open stays readable."""
        path = os.path.join(self.folder, f"{row.xxh3}-{row.bytes}.{suffix}")
        part = f"{path}.part"
        while True:
            try:
                if _is_whole(path, row):
                    os.utime(path)
                    return opened(path)
            except OSError:
                if os.path.exists(path):
                    raise
            busy = None
            with self._locked(part) as file:
                if os.fstat(file).st_nlink and not _is_whole(path, row):  # else another did it
                    busy = self._take_space(file, row.bytes)
                    if busy is None:
                        self._copy(objects, location, row, file)
                        os.fsync(file)
                        # a cleaner may have deleted it, and another thread may fetch it again
                        with self._alone(), contextlib.suppress(FileNotFoundError):
                            if _is_at(part, file):
                                os.rename(part, path)
                                return opened(path)  # before another removes it
            if busy is not None:
                self._remove(busy, wait=True)  # holding no lock: nobody waits for this thread

    @contextlib.contextmanager
    def _locked(self, part: str) -> Iterator[int]:
        """A part file, which is made, and removed in the end. Another thread or process that has it
        is waited for."""
        with self._alone():
            file = files.open_itself(part, os.O_RDWR | os.O_CREAT, 0o600)
        mine = False
        try:
            files.lock(file)
            mine = True
            yield file
        finally:
            try:
                if mine:
                    _unlink(part, file)
            finally:
                files.close_locked(file)

    def _copy(self, objects: Objects, location: Location, row: Shard, file: int) -> None:
        state = xxhash.xxh3_64()
        for lo in range(0, row.bytes, _TOGETHER):
            hi = min(lo + _TOGETHER, row.bytes)
            ranges = [(at, min(at + _PIECE, hi)) for at in range(lo, hi, _PIECE)]
            for (at, _), piece in zip(ranges, objects.read_ranges(location, ranges), strict=True):
                state.update(piece)
                self._write(file, piece, at)
        if state.hexdigest() != row.xxh3:
            raise FormatError(
                "a shard is not the file that the manifest lists: its bytes differ",
                path=location.shown,
                found=f"XXH3-64 {state.hexdigest()}",
                expected=row.xxh3,
                hint="upload it again, or convert the dataset again",
            )

    def _write(self, file: int, piece: memoryview, at: int) -> None:
        while piece:
            try:
                done = os.pwrite(file, piece, at)
            except OSError as exc:
                full = exc.errno in (errno.ENOSPC, errno.EDQUOT)
                raise SourceError(
                    "the disk of the cache is full" if full else "the cache cannot be written",
                    path=self.folder,
                    found=exc.strerror,
                    hint=f"lower {BYTES_VARIABLE}, or set {DIR_VARIABLE} to another disk",
                ) from exc
            at += done
            piece = piece[done:]

    # -- space -------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Only one thread of all processes at a time makes files, enlarges them or renames them:
        none escapes another thread that counts them, and no two take the same space. The lock is
        the folder's: a cleaner would delete a file of its own."""
        os.makedirs(self.folder, mode=0o700, exist_ok=True)
        with files.locked_folder(self.folder):
            yield

    def _files(self) -> list[tuple[float, int, str]]:
        """(last use, bytes, name) of the cache's files, the least recently used first."""
        found = []
        for entry in os.scandir(self.folder):
            if _NAME.fullmatch(entry.name):
                with contextlib.suppress(FileNotFoundError):
                    facts = entry.stat(follow_symlinks=False)
                    found.append((facts.st_mtime, facts.st_size, entry.name))
        return sorted(found)

    def _take_space(self, file: int, needed: int) -> str | None:
        """Give ``file`` its size of ``needed`` bytes, after removing part files of dead processes
        and the least recently used shards. If other threads and processes fetch too much for that,
        the path of a file to wait for."""
        busy = None
        with self._alone():
            os.ftruncate(file, 0)  # a dead process may have left it
            found = self._files()
            held = sum(size for _, size, _ in found)
            # part files first: a dead process leaves them unlocked. The last that is busy is waited
            # for
            for _, size, name in sorted(found, key=lambda each: not each[2].endswith(".part")):
                if held + needed > self.limit or name.endswith(".part"):
                    path = os.path.join(self.folder, name)
                    try:
                        self._remove(path)
                    except BlockingIOError:
                        busy = path if size else busy
                    except OSError:
                        continue  # another user's
                    else:
                        held -= size
            if held + needed <= self.limit:
                os.ftruncate(file, needed)
                return None
        if busy is None:
            raise SourceError(
                "the cache is full of files that cannot be removed",
                path=self.folder,
                found=f"{held} of {self.limit} bytes",
                expected=f"{needed} free",
                hint=f"remove them, or set {DIR_VARIABLE} to another folder",
            )
        return busy

    def _remove(self, path: str, wait: bool = False) -> None:
        """Remove a file. BlockingIOError while a thread or process downloads it; or ``wait`` until
        none does, which ends: requests have deadlines, and a process that dies has no lock."""
        with contextlib.suppress(FileNotFoundError):
            file = files.open_itself(path, os.O_RDONLY)
            try:
                files.lock(file, wait)
                _unlink(path, file)
            finally:
                files.close_locked(file)


def _unlink(path: str, file: int) -> None:
    """Remove ``path`` if it still is ``file``, for which this thread has the exclusive lock."""
    with contextlib.suppress(FileNotFoundError):
        if _is_at(path, file):
            os.unlink(path)


def _is_whole(path: str, row: Shard) -> bool:
    """Whether a shard's file is there, and was not truncated by a crash or by another program."""
    try:
        facts = os.stat(path, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return stat.S_ISREG(facts.st_mode) and facts.st_size == row.bytes


def _is_at(path: str, file: int) -> bool:
    """Whether ``path`` is ``file``. FileNotFoundError."""
    return os.path.samestat(os.stat(path, follow_symlinks=False), os.fstat(file))
