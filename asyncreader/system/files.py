"""Files as systems have them: read and written at a place, locked, made durable, and their disks.

Linux has all of these calls, macOS most. What a system lacks is done by calls that every system
has, or left out where it is only advice.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import stat
from collections.abc import Iterator
from typing import Any, Final

from .signals import after_this

try:
    _sync_file_range: Any = ctypes.CDLL(None).sync_file_range
    _sync_file_range.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)
    _fallocate: Any = ctypes.CDLL(None).fallocate
    _fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
except AttributeError:  # Linux alone has them
    _sync_file_range = _fallocate = None

#: For os.open(): no waiting for the other end of a pipe, and no terminal of one's own.
NO_WAIT: Final[int] = os.O_NONBLOCK | os.O_NOCTTY
#: For os.open(): past the page cache. 0 where that cannot be had.
DIRECT: Final[int] = getattr(os, "O_DIRECT", 0)


def open_itself(path: str | bytes, flags: int, mode: int = 0o666) -> int:
    """``os.open`` of a file that must be no link: OSError (ELOOP) for one."""
    return os.open(path, flags | os.O_NOFOLLOW, mode)


def read_into(fd: int, buffer: Any, offset: int) -> int:
    """Fill a writable buffer of bytes from a file at ``offset``; how many were read."""
    if hasattr(os, "preadv"):
        return os.preadv(fd, [buffer], offset)
    view = memoryview(buffer)
    data = os.pread(fd, len(view), offset)
    view[: len(data)] = data
    return len(data)


# -- advice --------------------------------------------------------------------------------------


def will_need(fd: int, offset: int, length: int) -> None:
    """Tell the system that a part of a file is read soon (posix_fadvise(2))."""
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(fd, offset, length, os.POSIX_FADV_WILLNEED)


def drop_cached(fd: int) -> None:
    """Drop a file's cached pages where the system does so: the next read is of the disk."""
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)


def begin_sync(fd: int, offset: int) -> None:
    """Have the system begin to write a file from ``offset`` on to the disk (sync_file_range(2)), so
    that :func:`sync` waits for less. It makes nothing durable."""
    if _sync_file_range is not None:
        _sync_file_range(fd, offset, 0, 2)  # SYNC_FILE_RANGE_WRITE


def reserve(fd: int, offset: int, length: int) -> bool:
    """Whether a part of a file has its space on the disk now; False where the system reserves none.

    OSError as posix_fallocate(3): of a full disk, and of file systems that cannot.
    """
    if not hasattr(os, "posix_fallocate"):
        return False
    os.posix_fallocate(fd, offset, length)
    return True


#: Bytes at the end of a file that are read again, and of each request: Linux reads no more of one
#: than its readahead, by default 128 KiB.
_END: Final = 16 << 20
_PIECE: Final = 128 << 10

# -- disks ---------------------------------------------------------------------------------------


def give_back(fd: int, offset: int, length: int) -> None:
    """Give the disk the space of a part of a file, which has zeros from then on (fallocate(2)); a
    system or a file system that cannot leaves it as it is."""
    if _fallocate is not None:
        _fallocate(fd, 3, offset, length)  # FALLOC_FL_KEEP_SIZE and FALLOC_FL_PUNCH_HOLE


def free_bytes(path: str) -> int:
    """Bytes that this process may still write on the file system of ``path``."""
    facts = os.statvfs(path)
    blocks = facts.f_bfree if os.geteuid() == 0 else facts.f_bavail
    return blocks * facts.f_frsize


def sync(path: str, drop: bool = False) -> None:
    """Make a file, or the names in a folder, durable; ``drop``: see :func:`drop_cached`. The end of
    such a file is asked for again at once: tables lie there, and who checks it begins with them.
    """
    file = os.open(path, os.O_RDONLY)
    try:
        facts = os.fstat(file)
        is_folder = stat.S_ISDIR(facts.st_mode)
        try:
            os.fsync(file)
            if drop and not is_folder:
                drop_cached(file)
                for start in range(max(0, facts.st_size - _END), facts.st_size, _PIECE):
                    will_need(file, start, _PIECE)
        except OSError as exc:
            # Some file systems (CIFS, FUSE) have nothing to do for a folder and say so.
            unable = (errno.EINVAL, errno.EBADF, errno.EOPNOTSUPP)
            if not is_folder or exc.errno not in unable:
                raise
    finally:
        os.close(file)


#: File systems on which a page fault is a request over a network.
NETWORK_FILE_SYSTEMS: Final = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "lustre", "ceph", "gpfs", "beegfs", "9p", "afs", "fuse.sshfs"}
)


def file_system(path: str) -> str:
    """Type of the file system of ``path`` ("ext4", "nfs4" ...), "" if unknown: it is read from
    proc(5), which Linux has."""
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as lines:
            mounts = [line.split() for line in lines]
    except OSError:
        return ""
    real = os.path.realpath(path)
    best, kind = "", ""
    for fields in mounts:
        mount = fields[4].encode().decode("unicode_escape", "surrogateescape")
        inside = real == mount or real.startswith(mount.rstrip("/") + "/")
        if inside and len(mount) >= len(best):
            best, kind = mount, fields[fields.index("-") + 1]
    return kind


# -- locks ---------------------------------------------------------------------------------------


def lock(fd: int, wait: bool = True) -> None:
    """Lock an open file; a process that ends gives the lock back. Not to ``wait``: BlockingIOError
    where another open file has it. OSError of file systems without locks."""
    fcntl.flock(fd, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)


def close_locked(fd: int) -> None:
    """Unlock and close a file. A process forked meanwhile has it open, and would keep the lock."""
    try:  # where Ctrl-C comes in no call of Python
        fcntl.flock(fd, fcntl.LOCK_UN)
    except OSError:  # there are file systems without locks
        pass
    finally:
        os.close(fd)


@contextlib.contextmanager
def locked_folder(folder: str) -> Iterator[None]:
    """Inside, this thread alone has the lock of a folder. Ctrl-C comes after it, so keep what is
    done there short."""
    with after_this():
        file = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            lock(file)
            yield
        finally:
            close_locked(file)
