"""Byte stores, which copy bytes to a slot: a mapped file, a file read by pread, or memory.

All implement :class:`ByteStore`. The opener checked all offsets against the store's size, so that
bounds are not checked again here.
"""

from __future__ import annotations

import errno
import os
import stat
from dataclasses import dataclass
from io import IOBase
from typing import Final, Protocol, TypeAlias

import numpy as np

from ..errors import FormatError, SourceError, SourceNotFoundError
from ..pixels import kernels
from ..pixels.rows import RowStore
from ..system import files
from ..system.array_types import Array, Int64, UInt8
from ..system.memory import SCRATCH, bytes_at, cached_share, map_file
from ..system.signals import after_this

#: The ``io`` of a file that is read by ranges over a network.
REMOTE: Final = "ranges"


class ByteStore(RowStore, Protocol):
    """Bytes by offset. Thread-safe; scratch memory belongs to the calling thread.

    A view is valid until this thread's next call. ``address(0)`` is the address if bytes can ever
    be copied from memory, else None.
    """

    size: int
    #: Each call is a round trip over a network: a batch is prefetched before its parts are read.
    remote: bool

    def will_need(self, offsets: Int64, lengths: Array) -> None:
        """Prefetch: the calling thread reads these extents next."""


class ByteFile(Protocol):
    """An open file: of this machine (:class:`OpenFile`), or in a store (remote/open.py)."""

    path: str
    size: int
    io: str
    #: The samples are read from this.
    store: ByteStore

    @property
    def mapped(self) -> Metadata:
        """The openers read a set's tables through this."""

    @property
    def handle(self) -> str | IOBase:
        """What the HDF5 library opens: a path, or a file object."""

    @property
    def where(self) -> FileRef:
        """The file by name, to be opened again in another process."""

    def table(self, offset: int, size: int) -> UInt8:
        """A table's bytes, which stay valid as long as the set is open."""

    def check_same(self) -> None:
        """FormatError if the path names another file by now."""

    def close(self) -> None:
        """Close it. Memory that a thread can still reach stays mapped."""


class Slices(Protocol):
    """Slices of bytes are memoryviews, as a memoryview gives them."""

    def __getitem__(self, part: slice, /) -> memoryview:
        """The bytes of one slice."""


class Bytes(Protocol):
    """The bytes of a whole file: an array of uint8, or what reads them when they are asked for."""

    @property
    def size(self) -> int:
        """The number of bytes."""

    @property
    def data(self) -> Slices:
        """The bytes as a buffer, for what parses them in Python."""

    def __getitem__(self, part: slice, /) -> UInt8 | memoryview:
        """The bytes of one slice."""


class Metadata(Protocol):
    """Bytes of a whole file, for those who read its structure."""

    @property
    def bytes(self) -> Bytes:
        """The bytes of the whole file."""

    def view(self, offset: int, length: int) -> UInt8:
        """The bytes of one extent."""


class FileRef(Protocol):
    """A file by name: frozen and picklable."""

    def open(self) -> ByteFile:
        """The same file. FormatError if another one is there, or if it was changed."""


class MemoryStore:
    """Memory of this process by absolute address: offsets are addresses."""

    remote = False
    size = 1 << 62
    #: offsets are counted from here
    _address = 0

    def gather(self, offsets: Int64, row_bytes: int, out: int, rows: Int64) -> None:
        sizes = np.full(offsets.size, row_bytes, np.int64)
        kernels.copy_runs(self._address + offsets, sizes, out + rows * row_bytes)

    def address(self, size: int) -> int | None:
        return self._address

    def view(self, offset: int, length: int) -> UInt8:
        return bytes_at(offset, length)

    def will_need(self, offsets: Int64, lengths: Array) -> None:
        pass  # a file is in the page cache with "auto"; with "mmap" its user chose page faults


class MappedStore(MemoryStore):
    """A read-only mapping of a whole file; it stays mapped while anything refers to it.

    A file that is shortened while it is mapped kills the process on access (SIGBUS): that is a
    limit of mmap. ``io="pread"`` turns it into an error.
    """

    def __init__(self, fd: int, size: int) -> None:
        self.size = size
        self.bytes = map_file(fd, size)
        self._address = self.bytes.ctypes.data

    def view(self, offset: int, length: int) -> UInt8:
        return self.bytes[offset : offset + length]

    def cached_share(self) -> float:
        """Part of the file in the page cache, 0 to 1, by some evenly spread pages."""
        return cached_share(self.bytes)


#: Smaller rows are read faster without posix_fadvise.
_ADVISED: Final = 16 << 10


class Descriptor:
    """A file descriptor that is closed with the last reference to it.

    Each read holds a reference. Without it another thread could close the number, the system could
    give it to another file, and the read would return wrong pixels without an error.
    """

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._close = os.close  # usable at interpreter exit, when modules are cleared

    def __del__(self) -> None:
        self._close(self.fd)


class PreadStore:
    """A file read by ``preadv`` straight into its destination; adjacent rows in one call.

    No page is mapped: a file that becomes shorter is an error, and a network file system gets whole
    requests instead of page faults. close() closes ``file`` after the last read under way.
    """

    remote = False

    def __init__(self, file: Descriptor, size: int, path: str) -> None:
        self._file: Descriptor | None = file
        self.size = size
        self._path = path

    def close(self) -> None:
        """Allow no new read."""
        self._file = None

    def _opened(self) -> Descriptor:
        file = self._file
        if file is None:
            raise SourceError("the file was closed while it was read", path=self._path)
        return file

    def read_singly(self, row_bytes: int) -> Descriptor | None:
        """The file, where rows of this size are read one by one: larger ones are requested
        together before the first is waited for. None after close()."""
        return None if row_bytes >= _ADVISED else self._file

    def gather(self, offsets: Int64, row_bytes: int, out: int, rows: Int64) -> None:
        order = np.argsort(offsets, kind="stable")  # a disk reads forwards
        if row_bytes >= _ADVISED:
            self.will_need(offsets[order], np.full(order.size, row_bytes))
        file, done = self._opened(), np.zeros(1, np.int64)
        kernels.pread_rows(file.fd, offsets, row_bytes, out, rows, order, done)
        for i in order[done[0] :].tolist():  # one was cut short: read again, or an error
            self._read(int(offsets[i]), bytes_at(out + int(rows[i]) * row_bytes, row_bytes))

    def address(self, size: int) -> int | None:
        return None

    def view(self, offset: int, length: int) -> UInt8:
        scratch = SCRATCH.take("pread view", length)
        self._read(offset, scratch)
        return scratch

    def will_need(self, offsets: Int64, lengths: Array) -> None:
        file = self._opened()
        for offset, length in zip(offsets.tolist(), lengths.tolist(), strict=True):
            files.will_need(file.fd, offset, length)

    def _read(self, offset: int, target: UInt8) -> None:
        file, done = self._opened(), 0
        while done < target.size:
            try:
                got = files.read_into(file.fd, target[done:].data, offset + done)
            except OSError as exc:
                raise SourceError(
                    f"reading failed: {exc.strerror}",
                    path=self._path,
                    found=f"errno {exc.errno} at byte {offset + done}",
                ) from exc
            if got == 0:
                raise SourceError(
                    "the file became shorter while it was read",
                    path=self._path,
                    found=f"end of file at byte {offset + done}",
                    expected=f"{self.size} bytes, as when it was opened",
                    hint="never write to a dataset that is in use: convert to a new one",
                )
            done += got


#: An AdaptiveStore looks again after it has handed out this part of the file, or this many bytes.
_LOOK_AGAIN_PART: Final = 8
_LOOK_AGAIN_BYTES: Final = 64 << 20


class AdaptiveStore:
    """Reads from the mapping if the file is in the page cache, else by pread (``io="auto"``).

    Page faults fetch a few pages each, one after the other; pread can prefetch a whole batch. Once
    the pages are cached, copying from the mapping is three times as fast as pread.
    """

    remote = False

    def __init__(self, mapped: MappedStore, direct: PreadStore) -> None:
        self.size = mapped.size
        self._mapped, self._direct = mapped, direct
        self._period = max(_LOOK_AGAIN_BYTES, self.size // _LOOK_AGAIN_PART)
        self._until = 0
        self.now: MappedStore | PreadStore = mapped
        self._choose(0)

    def _choose(self, size: int) -> MappedStore | PreadStore:
        # a race between threads costs one more check or a few bytes of the count: harmless
        self._until -= size
        if self._until <= 0:
            self._until = self._period
            share = self._mapped.cached_share()
            if share >= 0.9:
                self.now = self._mapped
            elif share < 0.5:
                self.now = self._direct
        return self.now

    def gather(self, offsets: Int64, row_bytes: int, out: int, rows: Int64) -> None:
        self._choose(offsets.size * row_bytes).gather(offsets, row_bytes, out, rows)

    def address(self, size: int) -> int | None:
        return (self._choose(size) if size else self._mapped).address(size)

    def view(self, offset: int, length: int) -> UInt8:
        return self._choose(length).view(offset, length)

    def will_need(self, offsets: Int64, lengths: Array) -> None:
        self.now.will_need(offsets, lengths)


def check_descriptors(exc: BaseException, path: str) -> None:
    """Raise SourceError if ``exc`` says that too many files are open."""
    if isinstance(exc, OSError) and exc.errno in (errno.EMFILE, errno.ENFILE):
        raise SourceError(
            "too many files are open",
            path=path,
            found=os.strerror(exc.errno),
            hint="raise the limit (ulimit -n), or make fewer files of them: asyncreader convert",
        ) from exc


#: What file_system() says, by device: it takes 0.3 ms.
_KINDS: Final = dict[int, str]()


class OpenFile:
    """A file's descriptor and its byte store, opened once.

    ``io``: "mmap", "pread", or "auto": pread on network file systems, else adaptive; ``name``: for
    messages, of the folder that it lies in, say.
    """

    def __init__(self, path: str, io: str, name: str | None = None) -> None:
        self.path, self.handle = name or path, path
        try:
            # NO_WAIT: the path may be a pipe by now
            with after_this():  # a signal in between would leave the descriptor open
                file = Descriptor(os.open(path, os.O_RDONLY | files.NO_WAIT))
        except FileNotFoundError as exc:
            raise SourceNotFoundError("no such file", path=path) from exc
        except OSError as exc:
            check_descriptors(exc, path)
            raise SourceError(f"cannot be opened: {exc.strerror}", path=path) from exc
        facts = os.fstat(file.fd)
        self.size = facts.st_size
        # the time of the last write can be set back, that of the last change cannot
        times = facts.st_mtime_ns, facts.st_ctime_ns
        self.identity: Identity = (facts.st_dev, facts.st_ino, facts.st_size, *times)
        if not stat.S_ISREG(facts.st_mode):
            del file
            raise FormatError("not a regular file", path=path)
        if self.size == 0:
            del file  # closed now, not when the error is forgotten
            raise FormatError(
                "the file is empty",
                path=path,
                hint="copy it again, or convert images with: asyncreader convert FOLDER out.h5",
            )
        if io == "auto":
            if facts.st_dev not in _KINDS:
                _KINDS[facts.st_dev] = files.file_system(path)
            io = "pread" if _KINDS[facts.st_dev] in files.NETWORK_FILE_SYSTEMS else io
        self.io = io
        #: The openers read a set's tables through this.
        try:
            self.mapped = MappedStore(file.fd, self.size)
        except OSError as exc:
            del file
            check_descriptors(exc, path)
            raise SourceError(
                f"cannot be mapped: {exc.strerror}", path=path, found=f"{self.size} bytes"
            ) from exc
        self._direct = PreadStore(file, self.size, path)
        self.store: ByteStore = self.mapped
        if io == "mmap":
            self.close()  # the mapping needs no descriptor
        else:
            self.store = self._direct if io == "pread" else AdaptiveStore(self.mapped, self._direct)

    @property
    def where(self) -> LocalFile:
        """The file by name, to be opened again in another process."""
        return LocalFile(self.handle, self.io, self.identity)

    def table(self, offset: int, size: int) -> UInt8:
        """A table for as long as the set is open: mapped, or with "pread" a copy."""
        view = self.mapped.view(offset, size)
        return view.copy() if self.io == "pread" else view

    def check_same(self) -> None:
        """FormatError if the path names another file by now: its metadata do not describe the file
        that is open here."""
        named = os.stat(self.handle)
        if self.identity[:2] != (named.st_dev, named.st_ino):
            raise FormatError(
                "the file was replaced by another while it was opened",
                path=self.path,
                hint="open it again",
            )

    def close(self) -> None:
        """Close the descriptor; a mapping stays as long as something refers to it."""
        self._direct.close()


#: Device, inode, size and time of the last change, which tell whether a file is still the same.
Identity: TypeAlias = tuple[int, int, int, int, int]


@dataclass(frozen=True)
class LocalFile:
    """A file of this machine by name, as it was when it was opened."""

    path: str
    io: str
    identity: Identity

    def open(self) -> OpenFile:
        """The same file. FormatError if another one is there, or if it was changed."""
        file = OpenFile(self.path, self.io)
        if file.identity != self.identity:
            file.close()
            raise FormatError(
                "the file was replaced or changed since its reader opened it",
                path=self.path,
                hint="open the reader again",
            )
        return file
