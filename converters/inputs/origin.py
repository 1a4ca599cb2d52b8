"""Where images come from: a folder on disk (local_tree.py) or in a store (object_store.py)."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

from asyncreader.errors import SourceError, SourceNotFoundError
from asyncreader.sources.urls import is_url

from ..encode import Hold
from .local_tree import Found, Tree
from .object_store import StoreFolder, fetched_text


class Origin(Protocol):
    """A tree of images. Paths are bytes, relative to it, with ``/``; any thread may read.

    A stamp says what an image was when it was found, or looked up: a few bytes that differ
    when it is written again.
    """

    #: How many files of each kind are ignored.
    ignored: dict[str, int]
    #: Names of the first-level folders, in order, as far as the iteration has come.
    folders: list[bytes]
    #: Whether it can be listed; else a CSV must name the images.
    lists: bool
    #: Images that may be prefetched; 0 where that does not help.
    ahead: int

    @property
    def name(self) -> str:
        """Its name in messages."""

    def __iter__(self) -> Iterator[Found]:
        """Every image, good or bad, once, in order of their sort keys."""

    def shown(self, path: bytes) -> str:
        """An image's name for messages."""

    def relative(self, name: bytes) -> bytes:
        """A path below this, of a name that may be absolute."""

    def exists(self, path: bytes) -> bool:
        """Whether there is a file of this name."""

    def look_up(self, paths: Sequence[bytes]) -> list[Found | None]:
        """Images that the caller names, whatever their suffix; None for those not there."""

    def has_folders(self) -> bool:
        """Whether there are folders on the first level."""

    def will_need(self, path: bytes, stamp: bytes) -> bool:
        """Prefetch an image; False if too much is in flight."""

    def read(self, path: bytes, hold: Hold, stamp: bytes = b"") -> bytes:
        """An image's whole file; ``hold`` is called with its size before.

        SampleError where it cannot be an image; SourceError if it cannot be read, or changed while
        it was read or (in a store) since ``stamp``.
        """

    def stamp(self, path: bytes, found: bytes) -> bytes:
        """What an image is now (on disk), or was when it was ``found`` (in a store)."""

    def close(self) -> None:
        """Stop fetches in flight; threads that wait for them get an error."""


def text_file(path: str) -> AbstractContextManager[str]:
    """A file of text, at a path or a URL, on this machine as long as the context lasts."""
    return fetched_text(path) if is_url(path) else nullcontext(path)


def open_origin(root: str, follow_links: bool = False, exclude: str | None = None) -> Origin:
    """The images in a folder, or below a store's URL. SourceError where there is no folder.

    ``follow_links``, ``exclude``: see :class:`local_tree.Tree`.
    """
    if is_url(root):
        return StoreFolder(root)
    if not os.path.isdir(root):
        kind = SourceError if os.path.lexists(root) else SourceNotFoundError
        raise kind("there is no folder of images", path=root)
    return Tree(root, follow_links, exclude)
