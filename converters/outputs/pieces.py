"""Files of added samples, which an interrupted run leaves for the next one: known by their keys."""

from __future__ import annotations

import contextlib
import glob
import os
import re
from collections.abc import Iterable
from typing import Final

import numpy as np
from xxhash import xxh3_64_intdigest

from asyncreader.errors import FormatError, ParamsError, SourceError
from asyncreader.sources import Inspector, open_whole
from asyncreader.system.array_types import UInt64

from .disk import sync
from .publish import PIECES

#: Bytes of samples after which a file is finished: so much is added again after an interruption.
PIECE: Final = 64 << 20

_NAME: Final = re.compile(r"([0-9a-f]{16})-(\d{6})\.h5")


class Pieces:
    """The finished files in a workspace, and the keys (paths) of their samples.

    Each key is kept as its XXH3-64, 8 bytes.
    """

    def __init__(self, workspace: str, keyed: bool) -> None:
        # without keys nothing can go on with them: the next run removes them
        self._folder = os.path.join(workspace, PIECES if keyed else "added")
        self._keyed = keyed
        #: Where the next file is written.
        self.path = os.path.join(workspace, "unfinished.h5")
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path)
        os.makedirs(self._folder, exist_ok=True)
        self.count = self._next = 0
        self._kind = ""
        self._keys: UInt64 = np.empty(0, np.uint64)
        for name in sorted(os.listdir(self._folder)):
            found = _NAME.fullmatch(name)
            if found is not None:
                self._kind, self._next = found[1], int(found[2]) + 1
                self._take_kept(os.path.join(self._folder, name))
        self._kept = self._keys

    def check_kind(self, kind: str) -> None:
        """SourceError unless the kept files have samples of this kind: 16 hex digits."""
        if self._kind not in ("", kind):
            raise SourceError(
                "the interrupted run had other options, or samples of another kind",
                path=self._folder,
                hint="call it with the same ones, or remove that folder to start over",
            )
        self._kind = kind

    @property
    def pattern(self) -> str:
        """A glob of all of them, in order."""
        return os.path.join(glob.escape(self._folder), "*.h5")

    def finish(self) -> None:
        """Give the file at ``path``, which is whole and on the disk, its name."""
        self._take(self.path)
        name = f"{self._kind}-{self._next:06d}.h5"
        self._next += 1
        os.rename(self.path, os.path.join(self._folder, name))
        sync(self._folder)

    def _take_kept(self, path: str) -> None:
        """Add the keys of a file that an interrupted run has finished. SourceError for one that
        cannot be read."""
        try:
            self._take(path)
        except (SourceError, FormatError) as exc:
            raise SourceError(
                "a file of samples that an interrupted run has finished cannot be read",
                path=path,
                found=str(exc),
                hint="remove that file to add its samples again",
            ) from exc

    def _take(self, path: str) -> None:
        """Add a file's keys. ParamsError for one that another sample has."""
        self.count += 1
        if not self._keyed:
            return
        with contextlib.closing(open_whole(path)) as found:
            keys = np.sort(hashes(name or b"" for name in Inspector(found.first).paths()))
        twice = keys[1:] == keys[:-1]
        if twice.any() or np.isin(keys, self._keys, assume_unique=True).any():
            raise ParamsError(
                "two samples have the same path, and resume knows samples by their paths",
                hint="give each sample a path of its own",
            )
        self._keys = np.sort(np.concatenate([self._keys, keys]))

    def holds(self, path: str | os.PathLike[str]) -> bool:
        """Whether the interrupted run has finished the sample of this path."""
        key = np.uint64(xxh3_64_intdigest(os.fsencode(path)))
        at = int(np.searchsorted(self._kept, key))
        return at < self._kept.size and bool(self._kept[at] == key)


def hashes(names: Iterable[bytes]) -> UInt64:
    """XXH3-64 of each name."""
    return np.fromiter((xxh3_64_intdigest(name) for name in names), np.uint64)
