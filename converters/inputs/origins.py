"""Where images come from: a folder on disk, or an object store; found in order, and said which of
them must not be opened.

Order: by path component, as bytes. The walk of a folder opens directories only. It reports links
out of the folder, and images that are not regular files. A store is listed, prefetched, and
compared with the listing; records, classes and ignored files are those of the same tree on a disk.
Memory is bounded: names are sorted on disk (temp_tables.py), and the bytes of prefetched images are
limited.
"""

from __future__ import annotations

import contextlib
import csv
import errno
import os
import stat
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Final, TextIO, TypeAlias

from asyncreader.errors import (
    FormatError,
    ParamsError,
    SampleError,
    SourceError,
    SourceNotFoundError,
)
from asyncreader.formats.manifest import NAME as MANIFEST
from asyncreader.pixels.codec import IMAGE_SUFFIXES
from asyncreader.sources.remote.client import IN_FLIGHT, Objects, Version
from asyncreader.sources.sniff import Location, is_url, location_of
from asyncreader.system.files import NO_WAIT, open_itself

from ..encode import Hold
from ..temp_tables import sorted_records

_SUFFIXES: Final = frozenset(suffix.encode() for suffix in IMAGE_SUFFIXES)

#: Larger files are not read: an image of codec.MAX_PIXELS is smaller (16 bits, four channels:
#: 0.7 GB).
MAX_FILE: Final = 1 << 30

HIDDEN: Final = "hidden"
OTHER_SUFFIX: Final = "other suffix"
NOT_LISTED: Final = "not in the CSV"

#: How a number of ignored files is said, of one and of more.
_WORDS: Final = {
    HIDDEN: ("hidden file", "hidden files"),
    OTHER_SUFFIX: ("file that is no image by its suffix", "files that are no images by suffix"),
    NOT_LISTED: ("file not in the CSV", "files not in the CSV"),
}

_LOOP: Final = "a link loop"
_MANY: Final = "a folder that too many links lead to"
#: How often links may lead to one folder: a few folders that link to each other have 2^40 paths.
_ENTERED: Final = 64
_ABSENT: Final = (errno.ENOENT, errno.ENOTDIR)


@dataclass(frozen=True, slots=True)
class Found:
    """An image: its path below the folder, why it must not be opened (None if it may be), and its
    stamp if that is known (of a store)."""

    path: bytes
    problem: SampleError | None = None
    stamp: bytes = b""


def sort_key(path: bytes) -> bytes:
    """A key whose byte order is the paths' order by component: no name has a byte as low as NUL."""
    return path.replace(b"/", b"\0")


def ignored_in_words(ignored: Mapping[str, int]) -> str:
    """What was ignored, by kind: "1 hidden file, 2 files that are no images by suffix"."""
    return ", ".join(
        f"{count:,} {_WORDS.get(kind, (kind, kind))[count != 1]}"
        for kind, count in ignored.items()
        if count
    )


def check_file_size(size: int) -> None:
    """SampleError for a file (bytes) that is larger than any image."""
    if size > MAX_FILE:
        raise SampleError(
            "too large to be an image",
            found=f"{size} bytes",
            expected=f"at most {MAX_FILE}",
        )


def has_image_suffix(name: bytes) -> bool:
    """Whether a file's name says that it is an image."""
    return os.path.splitext(name)[1].lower() in _SUFFIXES


@contextlib.contextmanager
def errors_told(
    what: str, path: str | None = None, source_path: str | None = None
) -> Iterator[None]:
    """The system's error inside becomes a SourceError, SourceNotFoundError where nothing is there:
    ``what`` cannot be done, and where."""
    try:
        yield
    except SourceError:
        raise
    except OSError as exc:
        kind = SourceNotFoundError if exc.errno in _ABSENT else SourceError
        raise kind(what, path=path, source_path=source_path, found=exc.strerror) from exc


class Tree:
    """A folder of images and its rules for links. Paths are bytes, relative to it, with ``/``; any
    thread may read. A stamp says what an image was when it was found, or looked up: a few bytes
    that differ when it is written again.

    ``exclude``: a path (absolute, no links) that is never entered: the target, when it lies inside.
    """

    #: Whether it can be listed; else a CSV must name the images.
    lists = True
    #: Images that may be prefetched; 0 where that does not help: here the kernel reads ahead.
    ahead = 0

    def __init__(self, root: str, follow_links: bool, exclude: str | None = None) -> None:
        self.root = os.fsencode(root)
        self.real = os.path.realpath(self.root)
        self.follow_links = follow_links
        self._exclude = None if exclude is None else os.fsencode(exclude)
        self.ignored: dict[str, int] = {HIDDEN: 0, OTHER_SUFFIX: 0}
        #: Names of the first-level folders, in order, as they are entered.
        self.folders: list[bytes] = []
        self._entered: dict[tuple[int, int], int] = {}

    def full(self, path: bytes) -> bytes:
        """``path`` below the folder, as this process can open it."""
        return os.path.join(self.root, path)

    def shown(self, path: bytes) -> str:
        """The full path, for messages."""
        return os.fsdecode(self.full(path))

    @property
    def name(self) -> str:
        """Its name in messages."""
        return os.fsdecode(self.root)

    def relative(self, name: bytes) -> bytes:
        """A path below this, of a name that may be absolute."""
        path = os.path.normpath(name)
        if not path.startswith(b"/"):
            return path
        path = b"/" + path.lstrip(b"/")
        for root in (self.root, self.real):
            top = os.path.abspath(root).rstrip(b"/") + b"/"
            if path.startswith(top):
                return path[len(top) :]
        return path

    def exists(self, path: bytes) -> bool:
        """Whether there is a file of this name."""
        return os.path.lexists(self.full(path))

    def has_folders(self) -> bool:
        """Whether there are folders on the first level."""
        with os.scandir(self.root) as entries:
            return any(entry.is_dir() for entry in entries if not entry.name.startswith(b"."))

    # -- walking -----------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Found]:
        """Every image, good or bad, once, in order. Memory: one directory's names at most."""
        stack = [(b"", self._entries(b""))]
        above = [self._identity(b"")]
        while stack:
            prefix, entries = stack[-1]
            entry = next(entries, None)
            if entry is None:
                stack.pop()
                above.pop()
                continue
            kind, path = entry[-1:], prefix + entry[:-2]
            found = self._link(path, above) if kind == b"l" else self._plain(path, kind)
            if isinstance(found, Found):
                yield found
            elif found:
                if not prefix:
                    self.folders.append(path)
                stack.append((path + b"/", self._entries(path)))
                above.append(self._identity(path))

    def _entries(self, path: bytes) -> Iterator[bytes]:
        """Visible entries of a directory, sorted: name, NUL, and one letter for the kind."""
        return sorted_records(self._listed(path))

    def _listed(self, path: bytes) -> Iterator[bytes]:
        with (
            self._reported(path, "a folder cannot be read"),
            os.scandir(self.full(path)) as entries,
        ):
            for entry in entries:
                if entry.name.startswith(b"."):
                    self.ignored[HIDDEN] += 1
                elif entry.is_symlink():
                    yield entry.name + b"\0l"
                elif entry.is_dir(follow_symlinks=False):
                    if not self._excluded(os.path.join(path, entry.name)):
                        yield entry.name + b"\0d"
                elif has_image_suffix(entry.name):
                    regular = entry.is_file(follow_symlinks=False)
                    yield entry.name + (b"\0f" if regular else b"\0o")
                else:
                    self.ignored[OTHER_SUFFIX] += 1

    def _reported(self, path: bytes, what: str) -> contextlib.AbstractContextManager[None]:
        return errors_told(what, source_path=self.shown(path))

    def _again(self, folder: tuple[int, int]) -> bool:
        """Whether a folder may be entered by one more link."""
        times = self._entered[folder] = self._entered.get(folder, 0) + 1
        return times <= _ENTERED

    def _excluded(self, path: bytes) -> bool:
        return self._exclude == os.path.normpath(os.path.join(self.real, path))

    def _identity(self, path: bytes) -> tuple[int, int]:
        with self._reported(path, "a folder cannot be read"):
            facts = os.stat(self.full(path))
        return facts.st_dev, facts.st_ino

    def _plain(self, path: bytes, kind: bytes) -> Found | bool:
        if kind == b"d":
            return True
        if kind == b"f":
            return Found(path)
        target = self._target(path)
        return Found(path, target if isinstance(target, SampleError) else _not_regular(target))

    def _link(self, path: bytes, above: list[tuple[int, int]]) -> Found | bool:
        """What a link leads to: an image, True for a folder to enter, False for neither."""
        target = self._target(path)
        if isinstance(target, SampleError):
            if target.what == _LOOP or has_image_suffix(path):
                return Found(path, target)
        elif stat.S_ISDIR(target.st_mode):
            if (target.st_dev, target.st_ino) in above:
                return Found(path, SampleError(_LOOP, found="a link to a folder that it lies in"))
            outside = self._outside(os.path.realpath(self.full(path)))
            if outside is None and not self._again((target.st_dev, target.st_ino)):
                return Found(path, SampleError(_MANY, found="links to folders full of such links"))
            return Found(path, outside) if outside else not self._excluded(path)
        elif has_image_suffix(path):
            return Found(path, self._problem(path, target))
        self.ignored[OTHER_SUFFIX] += 1
        return False

    # -- one path ----------------------------------------------------------------------------

    def look_up(self, paths: Sequence[bytes]) -> list[Found | None]:
        """Images that the caller names, whatever their suffix; None for those not there, and for
        folders: the columns of a CSV may be swapped."""
        return list(map(self._named, paths))

    def _named(self, path: bytes) -> Found | None:
        with self._reported(path, "an image cannot be found"):
            try:
                os.lstat(self.full(path))
            except (FileNotFoundError, NotADirectoryError):
                return None
        target = self._target(path)
        if isinstance(target, SampleError):
            return Found(path, target)
        folder = stat.S_ISDIR(target.st_mode)
        return None if folder else Found(path, self._problem(path, target))

    def will_need(self, path: bytes, stamp: bytes) -> bool:
        """Prefetch an image; False if too much is in flight."""
        return True

    def stamp(self, path: bytes, found: bytes) -> bytes:
        """What an image is now (on disk), or was when it was ``found`` (in a store)."""
        try:
            facts = os.stat(self.full(path))
        except OSError as exc:
            return f"none: {exc.errno}".encode()
        # ctime too: what keeps size and mtime (touch -r, cp -p) cannot keep that
        return f"{facts.st_size} {facts.st_mtime_ns} {facts.st_ctime_ns}".encode()

    def close(self) -> None:
        """Stop fetches in flight, of which there are none here; threads that wait for them get an
        error."""

    def read(self, path: bytes, hold: Callable[[int], None], stamp: bytes = b"") -> bytes:
        """An image's whole file; ``hold`` is called with its size before it is read.

        SampleError where it cannot be an image; SourceError if it cannot be read, or changed while
        it was read or (in a store) since ``stamp``.
        """
        with self._reported(path, "an image cannot be read"):
            file = self._open(path)
            try:
                before = os.fstat(file)
                if not stat.S_ISREG(before.st_mode):
                    raise _not_regular(before)
                check_file_size(before.st_size)
                hold(before.st_size)
                with open(file, "rb", closefd=False) as whole:
                    data = whole.read(before.st_size + 1)  # a byte more: it may have grown
                after = os.fstat(file)
            finally:
                os.close(file)
        same = before.st_size == after.st_size and before.st_mtime_ns == after.st_mtime_ns
        if not same or len(data) != after.st_size:
            raise SourceError(
                "an image changed while it was converted",
                source_path=self.shown(path),
                hint="convert again when nothing writes to the folder",
            )
        return data

    def _open(self, path: bytes) -> int:
        # The file may have become a link or a FIFO since the walk: do not follow it or wait for it.
        flags = os.O_RDONLY | NO_WAIT
        full = self.full(path)
        try:
            return open_itself(full, flags)
        except OSError as exc:
            if exc.errno != errno.ELOOP:
                raise
        real = os.path.realpath(full)  # once: what is opened is what was checked
        outside = self._outside(real)
        if outside is not None:
            raise outside
        return open_itself(real, flags)

    def _target(self, path: bytes) -> os.stat_result | SampleError:
        """What ``path`` is, links followed, or why they lead nowhere."""
        try:
            return os.stat(self.full(path))
        except OSError as exc:
            looped = exc.errno == errno.ELOOP
            return SampleError(_LOOP if looped else "a link to nothing", found=exc.strerror)

    def _problem(self, path: bytes, target: os.stat_result) -> SampleError | None:
        if not stat.S_ISREG(target.st_mode):
            return _not_regular(target)
        return self._outside(os.path.realpath(self.full(path)))

    def _outside(self, real: bytes) -> SampleError | None:
        """Why a file must not be read that links lead to; None if it may be."""
        if self.follow_links or real.startswith(os.path.join(self.real, b"")):
            return None
        return SampleError(
            "a link out of the folder",
            found=f"it leads to {os.fsdecode(real)!r}",
            hint="pass follow_links (--follow-links) if that is meant",
        )


def _not_regular(facts: os.stat_result) -> SampleError:
    kind = _KINDS.get(stat.S_IFMT(facts.st_mode), "something else")
    return SampleError("not a regular file", found=kind)


_KINDS: Final = {
    stat.S_IFIFO: "a FIFO",
    stat.S_IFCHR: "a character device",
    stat.S_IFBLK: "a block device",
    stat.S_IFSOCK: "a socket",
    stat.S_IFDIR: "a folder",
}


# -- an object store -------------------------------------------------------------------------------


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
        # names in a store are UTF-8
        good = [path for path in paths if path.decode("utf-8", "ignore").encode() == path]
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


@contextlib.contextmanager
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
        size = objects.version(location).size
        for lo in range(0, size, _PIECE * _TOGETHER):
            hi = min(lo + _PIECE * _TOGETHER, size)
            ranges = [(at, min(at + _PIECE, hi)) for at in range(lo, hi, _PIECE)]
            file.writelines(objects.read_ranges(location, ranges))
        file.flush()
        yield file.name


@contextlib.contextmanager
def open_text(path: str, what: str, shown: str | None = None) -> Iterator[TextIO]:
    """A file of text on this machine, whose newlines stay as they are: a CSV, say. Errors tell
    ``what`` it is: SourceNotFoundError, or SourceError where it is no file (links may be followed)
    or cannot be read, and FormatError for what the reader of CSVs refuses."""
    shown = shown or path
    with errors_told(f"{what} cannot be read", path=shown):
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise SourceError(f"{what} is not a regular file", path=shown)
        with open(path, encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
            try:
                yield file
            except csv.Error as exc:
                raise FormatError("not a CSV file", path=shown, found=str(exc)) from exc


def open_origin(root: str, follow_links: bool = False, exclude: str | None = None) -> Origin:
    """The images in a folder, or below a store's URL. SourceError where there is no folder.

    ``follow_links``, ``exclude``: see :class:`Tree`.
    """
    if is_url(root):
        return StoreFolder(root)
    if not os.path.isdir(root):
        kind = SourceError if os.path.lexists(root) else SourceNotFoundError
        raise kind("there is no folder of images", path=root)
    return Tree(root, follow_links, exclude)
