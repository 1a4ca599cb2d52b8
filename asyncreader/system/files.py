"""Files as systems have them: read and written at a place, locked, made durable, and their disks.

Linux has all of these calls, macOS most and Windows few. What a system lacks is done by calls that
every system has, or left out where it is only advice.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import importlib
import os
import shutil
import stat
import threading
from collections.abc import Iterator
from typing import Any, Final


def _module(name: str) -> Any:
    """A module that some systems have."""
    return importlib.import_module(name)


try:
    _fcntl = _module("fcntl")
except ImportError:
    _fcntl = None
_WINDOWS: Final = _fcntl is None

try:
    _sync_file_range: Any = ctypes.CDLL(None).sync_file_range
    _sync_file_range.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)
except (AttributeError, OSError, TypeError):  # Linux alone has it; TypeError: Windows
    _sync_file_range = None

#: For os.open(): not inherited by child processes, and bytes as they are.
BYTES: Final[int] = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
#: For os.open(): a link is an error (ELOOP). 0 on Windows, see :func:`open_itself`.
NO_LINK: Final[int] = getattr(os, "O_NOFOLLOW", 0)
#: For os.open(): no waiting for the other end of a pipe, and no terminal of one's own.
NO_WAIT: Final[int] = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0)
#: For os.open(): past the page cache. 0 where that cannot be had.
DIRECT: Final[int] = getattr(os, "O_DIRECT", 0)

#: Of systems without calls that read and write at a place: one thread at a time moves to it.
_MOVING: Final = threading.Lock()


def open_itself(path: str | bytes, flags: int) -> int:
    """``os.open`` of a file that must be no link: OSError (ELOOP) for one.

    A system without O_NOFOLLOW looks first; a link that is made after that is followed.
    """
    if not NO_LINK and os.path.islink(path):
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
    return os.open(path, flags | BYTES | NO_LINK)


def open_shared(path: str, flags: int, mode: int = 0o666) -> int:
    """``os.open`` of a file that others may rename and remove while it is open, as they may on
    every system but Windows, where that must be said; of a link an OSError, as open_itself()."""
    if not _WINDOWS:
        return os.open(path, flags | BYTES | NO_LINK, mode)
    if os.path.islink(path):
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
    access = 0xC0000000 if flags & os.O_RDWR else 0x80000000  # GENERIC_READ, GENERIC_WRITE
    kind = 4 if flags & os.O_CREAT else 3  # OPEN_ALWAYS, OPEN_EXISTING
    # 7: FILE_SHARE_READ, FILE_SHARE_WRITE, FILE_SHARE_DELETE
    handle = _module("_winapi").CreateFile(path, access, 7, 0, kind, 0x80, 0)
    fd: int = _module("msvcrt").open_osfhandle(handle, flags | BYTES)
    return fd


def read_into(fd: int, buffer: Any, offset: int) -> int:
    """Fill a writable buffer of bytes from a file at ``offset``; how many were read."""
    if hasattr(os, "preadv"):
        return os.preadv(fd, [buffer], offset)
    view = memoryview(buffer)
    data = read_at(fd, len(view), offset)
    view[: len(data)] = data
    return len(data)


def read_at(fd: int, size: int, offset: int) -> bytes:
    """At most ``size`` bytes of a file from ``offset`` on."""
    if hasattr(os, "pread"):
        return os.pread(fd, size, offset)
    with _MOVING:
        os.lseek(fd, offset, os.SEEK_SET)
        return os.read(fd, size)


def write_at(fd: int, data: bytes | memoryview, offset: int) -> int:
    """Write to a file at ``offset``; how many bytes were written."""
    if hasattr(os, "pwrite"):
        return os.pwrite(fd, data, offset)
    with _MOVING:
        os.lseek(fd, offset, os.SEEK_SET)
        return os.write(fd, data)


def rename(path: str, target: str) -> None:
    """Give a file or a folder its name, in place of a file that has it."""
    try:
        os.rename(path, target)
    except FileExistsError:  # Windows; elsewhere a folder that is not empty: the same error again
        os.replace(path, target)


def set_used(fd: int, path: str) -> None:
    """Set the times of an open file, which lies at ``path``, to now."""
    os.utime(fd if os.utime in os.supports_fd else path)


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


def free_bytes(path: str) -> int:
    """Bytes that this process may still write on the file system of ``path``."""
    if not hasattr(os, "statvfs"):
        return shutil.disk_usage(path).free
    facts = os.statvfs(path)
    blocks = facts.f_bfree if os.geteuid() == 0 else facts.f_bavail
    return blocks * facts.f_frsize


def sync(path: str, drop: bool = False) -> None:
    """Make a file, or the names in a folder, durable; ``drop``: see :func:`drop_cached`. The end of
    such a file is asked for again at once: tables lie there, and who checks it begins with them.

    Windows cannot open a folder: there its names are left to the file system's journal.
    """
    if not hasattr(os, "O_DIRECTORY"):
        if os.path.isdir(path):
            return
        file = os.open(path, os.O_RDWR | BYTES)  # what is read only cannot be synced there
    else:
        file = os.open(path, os.O_RDONLY | BYTES)
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


def lock(fd: int, shared: bool = False, wait: bool = True) -> None:
    """Lock an open file, in place of a lock that it has; a process that ends gives it back.

    ``shared``: with others that ask so. Not to ``wait``: BlockingIOError where another open file
    has it. OSError of file systems without locks.
    """
    if _fcntl is None:
        _lock_windows(fd, shared, wait)
        return
    kind = _fcntl.LOCK_SH if shared else _fcntl.LOCK_EX
    _fcntl.flock(fd, kind if wait else kind | _fcntl.LOCK_NB)


def close_locked(fd: int) -> None:
    """Unlock and close a file. A process forked meanwhile has it open, and would keep the lock."""
    if _fcntl is None:
        _call_windows("UnlockFileEx", fd)
    else:
        _fcntl.flock(fd, _fcntl.LOCK_UN)
    os.close(fd)


@contextlib.contextmanager
def locked_folder(folder: str) -> Iterator[None]:
    """Inside, this thread alone has the lock of a folder.

    On Windows, which opens no folders, it is that of a hidden file in it, which stays.
    """
    if hasattr(os, "O_DIRECTORY"):
        file = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | BYTES)
    else:
        file = os.open(os.path.join(folder, ".lock"), os.O_RDWR | os.O_CREAT | BYTES, 0o600)
    try:
        lock(file)
        yield
    finally:
        close_locked(file)


class _Overlapped(ctypes.Structure):
    """Windows' OVERLAPPED: which byte is locked. It lies behind the end of every file:
    others cannot read what is locked there."""

    _fields_ = (
        ("internal", ctypes.c_size_t),
        ("internal_high", ctypes.c_size_t),
        ("offset", ctypes.c_uint32),
        ("offset_high", ctypes.c_uint32),
        ("event", ctypes.c_void_p),
    )


#: LockFileEx's LOCKFILE_FAIL_IMMEDIATELY and LOCKFILE_EXCLUSIVE_LOCK.
_AT_ONCE: Final = 1
_EXCLUSIVE: Final = 2
#: Windows' ERROR_LOCK_VIOLATION.
_TAKEN: Final = 33


def _call_windows(name: str, fd: int, *flags: int) -> bool:
    """Whether LockFileEx, or UnlockFileEx, did what it says."""
    system: Any = ctypes
    call = getattr(system.WinDLL("kernel32", use_last_error=True), name)
    handle = ctypes.c_void_p(_module("msvcrt").get_osfhandle(fd))
    byte = _Overlapped(0, 0, 0, 1 << 30, None)
    return bool(call(handle, *flags, 0, 1, 0, ctypes.byref(byte)))


def _lock_windows(fd: int, shared: bool, wait: bool) -> None:
    _call_windows("UnlockFileEx", fd)  # a second lock would wait for the first
    if _call_windows("LockFileEx", fd, (0 if shared else _EXCLUSIVE) | (0 if wait else _AT_ONCE)):
        return
    system: Any = ctypes
    code = system.get_last_error()
    if code == _TAKEN:
        raise BlockingIOError(errno.EWOULDBLOCK, "another open file has the lock")
    raise system.WinError(code)
