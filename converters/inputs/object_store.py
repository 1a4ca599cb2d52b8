"""Where images come from: a folder on disk (local_tree.py), or an object store, which is listed,
prefetched, and compared with the listing.

Records, classes and ignored files are those of the same tree on a disk. Memory is bounded: names
are sorted on disk (temp_tables.py), and the bytes of prefetched images are limited.
"""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Final, TypeAlias

from asyncreader.errors import ParamsError, SourceError, SourceNotFoundError
from asyncreader.formats.manifest import NAME as MANIFEST
from asyncreader.sources.remote.client import IN_FLIGHT, Objects, Version
from asyncreader.sources.urls import Location, is_url, location_of

from ..encode import Hold
from ..temp_tables import sorted_records
from .local_tree import (
    HIDDEN,
    OTHER_SUFFIX,
    Found,
    Tree,
    check_file_size,
    has_image_suffix,
    sort_key,
)

#: Bytes of prefetched images, of all threads together.
AHEAD_BYTES: Final = 128 << 20

#: Between a name's sort key and its stamp: a component is never empty, so none is inside.
_END: Final = b"\0\0"

#: A text file at a URL is fetched in pieces of this size, _TOGETHER at a time.
_PIECE: Final = 8 << 20
_TOGETHER: Final = 8

_Answer: TypeAlias = Callable[[], tuple[memoryview, Version]]


class StoreFolder:
    """The images below a URL, as a :class:`Tree`. Opened in the process that uses it.

    A stamp has what the store says of an object, such as its size.
    Raises ParamsError for a malformed URL, or without obstore.
    """

    ahead = IN_FLIGHT

    def __init__(self, url: str, ahead_bytes: int = AHEAD_BYTES) -> None:
        self._url, location = url, location_of(url)
        self._location = Location(location.base, location.key.strip("/"))
        self._objects = Objects(location.base)
        self.lists = self._objects.lists
        self.ignored: dict[str, int] = {HIDDEN: 0, OTHER_SUFFIX: 0}
        self.folders: list[bytes] = []
        self._nested = False
        self._ahead_bytes = ahead_bytes
        self._lock = threading.Lock()
        self._requested: dict[bytes, tuple[_Answer, int]] = {}
        self._bytes = 0

    def __reduce__(self) -> tuple[object, ...]:
        return StoreFolder, (self._url,)

    @property
    def name(self) -> str:
        return self._location.shown

    def shown(self, path: bytes) -> str:
        return self._at(path).shown

    def _at(self, path: bytes) -> Location:
        return self._location.inside(os.fsdecode(path))

    def relative(self, name: bytes) -> bytes:
        top = os.fsencode(f"{self.name}/")
        return os.path.normpath(name.removeprefix(top))

    # -- listing -----------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Found]:
        """Every image, in order. Memory: one run of the sorting."""
        if not self.lists:
            raise ParamsError(
                "a web server does not list its images",
                path=self.name,
                hint="name them in a CSV of path,label (--labels), or convert a local folder",
            )
        hidden = b""
        empty = True
        for record in sorted_records(self._listed()):
            key, stamp = record.split(_END, 1)
            path = key.replace(b"\0", b"/")
            empty = False
            if hidden and path.startswith(hidden):
                continue
            folder, slash, _ = path.partition(b"/")
            if slash and not folder.startswith(b".") and folder not in self.folders[-1:]:
                self.folders.append(folder)
            at = b"/" + path
            if b"/." in at:  # a hidden folder is counted once, with all it contains
                end = path.find(b"/", at.index(b"/."))
                hidden = path[: end + 1] if end >= 0 else b""
                self.ignored[HIDDEN] += 1
            elif has_image_suffix(path):
                yield Found(path, stamp=stamp)
            else:
                self.ignored[OTHER_SUFFIX] += 1
        if empty:
            raise SourceNotFoundError("there are no files below this URL", path=self.name)

    def _listed(self) -> Iterator[bytes]:
        top = f"{self._location.key}/" if self._location.key else ""
        for entries in self._objects.listed(self._location):
            for key, version in entries:
                if not key.startswith(top) or key == top:
                    continue
                path = os.fsencode(key.removeprefix(top))
                self._nested |= b"/" in path and not path.startswith(b".")
                yield sort_key(path) + _END + version.to_bytes()

    def has_folders(self) -> bool:
        return self._nested

    def exists(self, path: bytes) -> bool:
        return self.look_up([path])[0] is not None

    def look_up(self, paths: Sequence[bytes]) -> list[Found | None]:
        good = [path for path in paths if _is_text(path)]
        versions = self._objects.versions(self._location, list(map(self._at, good)))
        there = {
            path: Found(path, stamp=version.to_bytes())
            for path, version in zip(good, versions, strict=True)
            if version is not None
        }
        return [there.get(path) for path in paths]

    # -- images ----------------------------------------------------------------------------

    def will_need(self, path: bytes, stamp: bytes) -> bool:
        size = Version.from_bytes(stamp).size
        if size > self._ahead_bytes // 4:
            return True  # fetched when it is read, and its memory is counted there
        with self._lock:
            if path in self._requested:
                return True
            if len(self._requested) >= self.ahead or self._bytes + size > self._ahead_bytes:
                return False
            self._requested[path] = self._objects.begin_whole(self._at(path)), size
            self._bytes += size
        return True

    def read(self, path: bytes, hold: Hold, stamp: bytes = b"") -> bytes:
        listed = Version.from_bytes(stamp)
        check_file_size(listed.size)
        hold(listed.size)
        with self._lock:
            answer, size = self._requested.pop(path, (None, 0))
        try:
            data, version = (answer or self._objects.begin_whole(self._at(path)))()
        except SourceError as exc:
            exc.path, exc.source_path = None, self.shown(path)
            raise
        finally:
            with self._lock:
                self._bytes -= size
        if not version.same(listed):
            raise SourceError(
                "an image changed while it was converted",
                source_path=self.shown(path),
                found=_words(version),
                expected=f"{_words(listed)}, as it was listed",
                hint="convert again when nothing writes there",
            )
        return bytes(data)

    def stamp(self, path: bytes, found: bytes) -> bytes:
        return found

    def close(self) -> None:
        self._objects.close()
        with self._lock:
            self._requested.clear()


def _is_text(path: bytes) -> bool:
    """Whether a name can be one in a store: those are UTF-8."""
    try:
        path.decode()
    except UnicodeDecodeError:
        return False
    return True


def _words(version: Version) -> str:
    tag = "" if version.tag is None else f", ETag {version.tag[:40]!r}"
    return f"{version.size} bytes{tag}"


def holds_set(url: str) -> bool:
    """Whether a URL names a packed set rather than a folder of images: by its suffix, or by the
    manifest below it."""
    location = location_of(url)
    if location.key.rstrip("/").endswith((".h5", ".hdf5", ".json", ".lmdb")):
        return True
    with closing(Objects(location.base)) as objects:
        return objects.versions(location, [location.inside(MANIFEST)]) != [None]


# -- a folder, or a store --------------------------------------------------------------------------


#: A tree of images; any thread may read.
Origin: TypeAlias = Tree | StoreFolder


@contextmanager
def text_file(path: str) -> Iterator[str]:
    """A file of text, at a path or a URL, on this machine as long as the context lasts."""
    if not is_url(path):
        yield path
        return
    location = location_of(path)
    with (
        closing(Objects(location.base)) as objects,
        tempfile.NamedTemporaryFile(prefix="asyncreader-") as file,
    ):
        size = objects.size(location)
        for lo in range(0, size, _PIECE * _TOGETHER):
            hi = min(lo + _PIECE * _TOGETHER, size)
            ranges = [(at, min(at + _PIECE, hi)) for at in range(lo, hi, _PIECE)]
            file.writelines(objects.read_ranges(location, ranges))
        file.flush()
        yield file.name


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
