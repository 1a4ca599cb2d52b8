"""Lets the target appear under its name only when it is whole: a locked workspace, then a rename.

The workspace is a folder next to the target, ``.NAME.asyncreader-tmp``. It has a lock file (flock,
for as long as the process lives) and the set being written. The next run clears what a killed run
left there; while another run holds the lock it raises an error. Finished shards (shards.py) are
kept for a run that resumes.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
import stat
import weakref
from typing import Final

from asyncreader.errors import AsyncReaderError, FormatError, SourceError, SourceNotFoundError
from asyncreader.formats import manifest
from asyncreader.sources.hdf5.file import is_hdf5
from asyncreader.sources.lmdb import lmdb_data_file
from asyncreader.system.files import close_locked, lock, open_itself
from asyncreader.system.signals import after_this

from .disk import NOTHING_LEFT, reported, sync

SUFFIX: Final = ".asyncreader-tmp"
_LOCK: Final = "lock"
_SHARD: Final = re.compile(r"\d+-of-\d+\.")
#: What the names of shards begin with that are added to a set; those of its first ones do not.
ADDED: Final = "shards-after-"

#: By kind of target: what its set is called in the workspace, and in messages.
_WORK: Final = {"hdf5": "set.h5", "lmdb": "set.lmdb", "shards": "set"}
_KIND: Final = {"hdf5": "an HDF5 file", "lmdb": "an LMDB folder", "shards": "a folder of shards"}
#: In the workspace: the set that is being replaced.
_OLD: Final = "old"
#: In the workspace: files of added samples (sharded_set.py).
PIECES: Final = "pieces"
#: In the workspace: the plan of shards, written when they have a folder.
PLAN: Final = "plan.json"
#: A second name of the old file, until the new one is on the disk.
_LINK: Final = "link"


class Target:
    """Where a set will be; a context manager around the writing of it.

    ``kind``: "hdf5" (a file), "lmdb" (a folder with data.mdb) or "shards" (a folder with a
    manifest). ``work``: the path to write to; ``resume``: what an interrupted run left there is
    not cleared; ``append``: a set is there already, and stays; ``keep``: finished shards stay in
    the workspace where the run ends before the set has its name.
    Raises SourceError when the path is taken, or cannot be used. A forked child that leaves it
    changes nothing.
    """

    def __init__(
        self,
        path: str,
        kind: str,
        overwrite: bool,
        resume: bool = False,
        append: bool = False,
        keep: bool = True,
    ) -> None:
        # A link to a set is replaced where it leads.
        self.path = os.path.realpath(path)
        self.shown = path
        self.kind = kind
        self._overwrite = overwrite
        self._resume = resume
        self._append = append
        self._keep = keep
        self._published = False
        self._folder, name = os.path.split(self.path)
        #: The folder next to the target, for unfinished work.
        self.workspace = os.path.join(self._folder, f".{name}{SUFFIX}")
        self.work = os.path.join(self.workspace, _WORK[kind])
        self._process = os.getpid()
        #: The open and locked file, from __enter__() on.
        self._locked: list[int] = []
        weakref.finalize(self, _unlock, self._process, self._locked)
        if not os.path.isdir(self._folder):
            raise SourceNotFoundError("the target's folder does not exist", path=path)
        self._check()

    def _check(self) -> None:
        """Refuse a target that exists, or that is not what would be written."""
        if self._append:
            return  # sharded_set.py looks at it
        try:
            os.lstat(self.path)
        except FileNotFoundError:
            return
        except OSError as exc:
            raise SourceError(
                "the target cannot be used", path=self.shown, found=exc.strerror
            ) from exc
        if not self._overwrite:
            raise SourceError(
                "the target exists already",
                path=self.shown,
                hint="pass overwrite (--overwrite) to replace it",
            )
        problem = _other_kind(self.path, self.kind)
        if problem is not None:
            raise SourceError(
                "the target is of another kind, so it is not replaced",
                path=self.shown,
                found=problem,
                expected=_KIND[self.kind],
                hint="choose another name",
            )

    # -- the workspace -----------------------------------------------------------------------

    def __enter__(self) -> Target:
        try:
            with reported(self.shown, self._folder, "the target's folder cannot be written to"):
                while not self._acquire():
                    pass
                self._put_back()
                self._check()
                if not self._resume:
                    self._check_finished()
                if not self._resume or self._has_its_name():
                    _clear(self.workspace)
        except BaseException:  # Ctrl-C too: the lock lives as long as the process
            self._leave(bool(self._finished()))  # of another run: nothing was written yet
            raise
        return self

    def _put_back(self) -> None:
        """Undo what a run has renamed that ended before the last rename of publishing."""
        old = os.path.join(self.workspace, _OLD)
        if self._append:
            self._take_back_added()
        elif not os.path.isdir(old):
            return
        elif not os.path.lexists(self.path):
            os.rename(old, self.path)
        elif not os.path.lexists(self.work):  # the new set has its name
            shutil.rmtree(old)
        else:
            raise SourceError(
                "the target was taken away to be replaced, and its name is taken by something else",
                path=self.shown,
                found=f"the old dataset is {old!r}",
                hint="move one of them to another name",
            )

    def _take_back_added(self) -> None:
        """Move shards that the manifest does not list from the set to the workspace."""
        found = manifest.manifest_path(self.path)
        if found is None:
            return  # sharded_set.py says so
        listed = manifest.read_manifest(found)
        known = {listed.name(number) for number in range(len(listed))}
        for name in os.listdir(self.path):
            if name.startswith(ADDED) and name not in known:
                os.makedirs(self.work, exist_ok=True)
                os.rename(os.path.join(self.path, name), os.path.join(self.work, name))

    def _has_its_name(self) -> bool:
        """Whether a run has ended between publishing its shards and clearing the workspace: what is
        left of them can be of use no more."""
        planned = os.path.lexists(os.path.join(self.workspace, PLAN))
        return planned and not os.path.lexists(self.work)

    def _check_finished(self) -> None:
        """SourceError rather than delete the shards that an interrupted run has finished."""
        if self._finished():
            raise SourceError(
                "an interrupted run has left finished shards of this target",
                path=self.workspace,
                found=f"{len(self._finished())} files",
                hint="pass resume (--resume) to go on with them, or remove that folder",
            )

    def _finished(self) -> list[str]:
        """The names of the shards that are finished, and of the files that become shards."""
        folders = (os.path.join(self.workspace, name) for name in (_WORK["shards"], PIECES))
        return [name for one in folders if os.path.isdir(one) for name in os.listdir(one)]

    def _acquire(self) -> bool:
        """Make and lock the workspace; False when another run removed it in between."""
        try:
            os.mkdir(self.workspace, 0o777)
        except FileExistsError:
            if not stat.S_ISDIR(os.lstat(self.workspace).st_mode):
                raise SourceError(
                    "the name for temporary files is taken by something else",
                    path=self.workspace,
                    hint="remove it",
                ) from None
        path = os.path.join(self.workspace, _LOCK)
        try:
            self._locked.append(open_itself(path, os.O_RDWR | os.O_CREAT))
        except FileNotFoundError:
            return False
        except OSError:
            with contextlib.suppress(OSError):  # others are in it already
                os.rmdir(self.workspace)
            raise
        try:
            _lock(self._locked[0])
            if os.path.samestat(os.fstat(self._locked[0]), os.lstat(path)):
                return True
        except FileNotFoundError:
            pass
        except BlockingIOError as exc:
            _unlock(self._process, self._locked)
            raise SourceError(
                "another run is writing this target",
                path=self.shown,
                found=f"{self.workspace} is locked",
                hint="wait for it to end",
            ) from exc
        _unlock(self._process, self._locked)
        return False

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        keep = True
        try:
            if not self._locked or os.getpid() != self._process:
                return
            self._put_back()
            keep = self._keep and not self._published and bool(self._finished())
            if error is not None and self.kind == "shards":
                self._say_what_is_kept(error, keep)
        except (OSError, FormatError):
            pass  # the next run puts it back; what went wrong before matters more
        finally:
            self._leave(keep)

    def _say_what_is_kept(self, error: BaseException, keep: bool) -> None:
        """Add it to the hint of our error types, or to another exception as a note."""
        shards = sum(_SHARD.search(name) is not None for name in self._finished())
        if self._published:
            words = "the dataset is complete and has its name"
        elif keep and shards:
            words = (
                f"finished shards are kept ({shards:,}): resume (--resume) goes on with them, in "
                f"{self.workspace!r}; with other options remove that folder first"
            )
        elif keep:
            words = f"what was added is kept in {self.workspace!r}: resume goes on with it"
        elif isinstance(error, AsyncReaderError):
            return  # its own hint says that nothing is left
        else:
            words = "no shard was finished, nothing is kept"
        if isinstance(error, AsyncReaderError):
            hint = (error.hint or "").removesuffix(NOTHING_LEFT).removesuffix("; ")
            error.hint = f"{hint}; {words}" if hint else words
        else:
            error.add_note(words)

    def _leave(self, keep: bool) -> None:
        """Give the lock back. ``keep``: the workspace stays."""
        if not self._locked:
            return
        try:
            if not keep:
                _clear(self.workspace)
                os.unlink(os.path.join(self.workspace, _LOCK))
                os.rmdir(self.workspace)
        except OSError:
            pass  # the next run clears it; what went wrong before matters more
        finally:
            _unlock(self._process, self._locked)

    # -- publishing --------------------------------------------------------------------------

    def publish(self) -> None:
        """Rename the set to its target, durably. On an error the old target is as it was, once the
        workspace is left."""
        self._check()
        new, path = self.work, self.path
        with reported(self.shown, self._folder, "the finished dataset cannot be given its name"):
            if self.kind == "shards" and os.path.isdir(path):
                # A folder cannot be renamed onto a full one, so for a moment there is none. If
                # the run ends then, it or the next one puts the old one back.
                os.rename(path, os.path.join(self.workspace, _OLD))
            elif self.kind == "lmdb" and os.path.isdir(path):
                # Readers map the old lock.mdb by its inode and go on; new ones must not see its
                # table, whose transaction numbers are those of the old file.
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(os.path.join(path, "lock.mdb"))
                new, path = (os.path.join(folder, "data.mdb") for folder in (new, path))
            self.replace(new, path)

    def replace(self, new: str, path: str) -> None:
        """Rename ``new`` to ``path``, durably: with that the set is published. On an OSError
        ``path`` is as it was; Ctrl-C leaves it as it was, or renamed."""
        link = os.path.join(self.workspace, _LINK)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(link)  # of a run that was killed
        replaced = os.path.lexists(path)
        try:
            if replaced:
                with contextlib.suppress(OSError):  # there are file systems without hard links
                    os.link(path, link)
            os.rename(new, path)
            for folder in dict.fromkeys((os.path.dirname(path), self._folder)):
                sync(folder)
        except OSError:
            if os.path.lexists(link):
                os.rename(link, path)
            elif not replaced and not os.path.lexists(new):
                os.rename(path, new)
            raise
        except BaseException:
            self._published = not os.path.lexists(new)
            raise
        self._published = True


def _unlock(process: int, locked: list[int]) -> None:
    """Close the locked file, if there is one, and give the lock back, which a forked child shares
    with ``process``."""
    with after_this():
        while locked:
            file = locked.pop()
            if os.getpid() == process:
                close_locked(file)
            else:
                os.close(file)


def _lock(file: int) -> None:
    """Lock ``file`` for this process; BlockingIOError if another one holds it."""
    try:
        lock(file, wait=False)
    except OSError as exc:
        # Some file systems (some mounts of Lustre) have no locks: go on without.
        if exc.errno not in (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP):
            raise


def _other_kind(path: str, kind: str) -> str | None:
    """What is at ``path``, which exists, if it is no set of this ``kind`` nor an empty one."""
    mode = os.lstat(path).st_mode
    if kind == "hdf5":
        if not stat.S_ISREG(mode):
            return "a folder" if stat.S_ISDIR(mode) else "not a regular file"
        whole = os.path.getsize(path) == 0 or is_hdf5(path)
        return None if whole else "a file that is not HDF5"
    if not stat.S_ISDIR(mode):
        return "a file"
    names = set(os.listdir(path))
    if kind == "lmdb":
        known = {"data.mdb", "lock.mdb"}
        data = os.path.join(path, "data.mdb")
        empty = os.path.isfile(data) and os.path.getsize(data) == 0
        sound = not os.path.islink(data) and (empty or lmdb_data_file(data))
        if "data.mdb" in names and not sound:
            return "a folder whose data.mdb is not LMDB's"
    else:
        found = os.path.join(path, manifest.NAME)
        if names and not os.path.isfile(found):
            return f"a folder without a manifest ({manifest.NAME})"
        known = {manifest.NAME}
        if names:
            listed = manifest.read_manifest(found)
            known |= {listed.name(number) for number in range(len(listed))}
    others = sorted(name for name in names - known if not name.startswith(ADDED))
    return f"a folder with other files, such as {others[0]!r}" if others else None


def _clear(folder: str) -> None:
    """Remove all but the lock from a workspace, the plan last: see :meth:`Target._has_its_name`."""
    with os.scandir(folder) as entries:
        others = [entry for entry in entries if entry.name != _LOCK]
    for entry in sorted(others, key=lambda entry: entry.name == PLAN):
        if entry.is_dir(follow_symlinks=False):
            shutil.rmtree(entry.path)
        else:
            os.unlink(entry.path)
