"""The converter's target: there in whole or not at all, and nothing else is ever harmed."""

import contextlib
import errno
import fcntl
import hashlib
import itertools
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
import pytest
from converter_corpus import files, hash_of, listed
from ctrl_c import interrupted, killed, moments
from fakes import data_file

import asyncreader
import converters.outputs.disk
import converters.outputs.one_file
import converters.outputs.sinks
from asyncreader import Writer
from asyncreader.errors import SourceError
from asyncreader.formats.manifest import NAME, Manifest, read_manifest
from asyncreader.formats.packed import record_key
from asyncreader.tools.verify import verify_file
from converters import convert
from converters.outputs.publish import Target
from converters.outputs.sharded_set import Grown, Workspace

SUFFIXES = ["h5", "lmdb"]


# -- there in whole or not at all ----------------------------------------------------------------


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_an_existing_target_is_refused_and_replaced(
    folder: Path, tmp_path: Path, suffix: str
) -> None:
    """Without overwrite the target stays as it is; with it an open reader keeps the old one, and so
    does an LMDB environment that is open with its lock."""
    target = tmp_path / f"out.{suffix}"
    convert(folder, target)
    before = hash_of(target)
    with pytest.raises(SourceError, match=r"exists already.*--overwrite"):
        convert(folder, target, encoding="png")
    assert hash_of(target) == before
    with open(data_file(target), "rb") as old, contextlib.ExitStack() as opened:
        if suffix == "lmdb":
            env = opened.enter_context(lmdb.open(str(target), readonly=True, max_dbs=8))
            database = env.open_db(b"data", create=False)
            first = env.begin(db=database).get(record_key(0))
            assert listed(target) == ["data.mdb", "lock.mdb"]
        convert(folder, target, encoding="png", overwrite=True)
        assert hashlib.sha256(old.read()).hexdigest() == before
        if suffix == "lmdb":
            assert env.begin(db=database).get(record_key(0)) == first
    assert hash_of(target) != before
    assert verify_file(str(target)).ok
    assert listed(tmp_path) == [target.name]
    if suffix == "lmdb":
        assert listed(target) == ["data.mdb"]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_another_kind_of_target_is_refused(folder: Path, tmp_path: Path, suffix: str) -> None:
    """overwrite replaces a set of the same kind only: nothing else is ever deleted."""
    target = tmp_path / f"out.{suffix}"

    def folder_of(**files: str) -> None:
        target.mkdir(exist_ok=True)
        for name, text in files.items():
            (target / name.replace("_", ".")).write_text(text)

    kinds: list[Callable[[], Any]] = [
        lambda: folder_of(x_txt="precious"),
        lambda: os.mkfifo(target),
    ]
    if suffix == "h5":
        kinds += [lambda: convert(folder, target, format="lmdb"), folder_of]
        kinds += [lambda: target.write_text("precious")]
    else:
        kinds += [lambda: convert(folder, target, format="hdf5")]
        kinds += [lambda: folder_of(data_mdb="precious" * 10)]
        kinds += [lambda: (convert(folder, target), folder_of(x_txt="precious"))]
    for make in kinds:
        make()
        held = os.lstat(target).st_mtime_ns, listed(target) if target.is_dir() else None
        with pytest.raises(SourceError, match="of another kind"):
            convert(folder, target, overwrite=True)
        assert held == (os.lstat(target).st_mtime_ns, listed(target) if target.is_dir() else None)
        subprocess.run(["rm", "-r", "--", target], check=True)
    assert listed(tmp_path) == []


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_link_to_a_target_is_followed(folder: Path, tmp_path: Path, suffix: str) -> None:
    """A target that is a link is replaced where it leads, and the link stays."""
    (tmp_path / "far").mkdir()
    real = tmp_path / "far" / f"real.{suffix}"
    convert(folder, real)
    link = tmp_path / f"out.{suffix}"
    link.symlink_to(real)
    with pytest.raises(SourceError, match="exists already"):
        convert(folder, link)
    convert(folder, link, encoding="png", overwrite=True)
    assert link.is_symlink()
    assert verify_file(str(real)).ok
    assert listed(tmp_path / "far") == [real.name]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_target_being_written_is_refused(folder: Path, tmp_path: Path, suffix: str) -> None:
    """A workspace that a living process holds is left alone, and the second run says so; one that
    nobody holds is cleared, and what is no workspace at all is left alone."""
    target = tmp_path / f"out.{suffix}"
    left = tmp_path / f".out.{suffix}.asyncreader-tmp"
    (left / "set.lmdb").mkdir(parents=True)
    for half in ("set.lmdb/data.mdb", "set.h5"):
        (left / half).write_bytes(b"half")
    with open(left / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(SourceError, match="another run is writing"):
            convert(folder, target)
        assert listed(left) == ["lock", "set.h5", "set.lmdb"]
    convert(folder, target)
    assert listed(tmp_path) == [target.name]
    assert verify_file(str(target)).ok
    left.write_text("precious")
    with pytest.raises(SourceError, match="taken by something else"):
        convert(folder, target, overwrite=True)
    assert left.read_text() == "precious"


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_set_that_does_not_read_back_is_not_published(
    folder: Path, tmp_path: Path, suffix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bit that flips on the way to the disk is found before the target gets its name."""
    real = converters.outputs.one_file.sync_set

    def flip(work: str, kind: str, shown: str) -> None:
        path = data_file(Path(work))
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
        real(work, kind, shown)

    monkeypatch.setattr(converters.outputs.one_file, "sync_set", flip)
    with pytest.raises(SourceError, match="does not read back as it was written"):
        convert(folder, tmp_path / f"out.{suffix}", size=100)
    assert listed(tmp_path) == []


def test_fsync_comes_before_the_name_and_again_after(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The order is: data on the disk, then the rename, then its folder on the disk."""
    done: list[str] = []
    for name in ("fsync", "rename"):
        real = getattr(os, name)

        def noted(*args: Any, real: Any = real, name: str = name) -> Any:
            where = os.readlink(f"/proc/self/fd/{args[0]}") if name == "fsync" else args[1]
            done.append(f"{name} {os.path.basename(where)}")
            return real(*args)

        monkeypatch.setattr(os, name, noted)
    here = tmp_path.name
    convert(folder, tmp_path / "a.h5")
    assert done == ["fsync set.h5", "rename a.h5", f"fsync {here}"]
    done.clear()
    convert(folder, tmp_path / "a.lmdb")
    assert done == ["fsync data.mdb", "fsync set.lmdb", "rename a.lmdb", f"fsync {here}"]
    done.clear()
    convert(folder, tmp_path / "a.lmdb", overwrite=True)
    assert done[2:4] == ["rename data.mdb", "fsync a.lmdb"]


# -- no space ------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("call", ["pwrite", "posix_fallocate"])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_the_kth_write_fails(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, code: int
) -> None:
    """Whichever write or reservation fails, the error is clear and nothing is left."""
    real = getattr(os, call)
    left = 0

    def failing(*args: Any) -> Any:
        nonlocal left
        left -= 1
        # Once full, full: a second, smaller try must not save the day.
        if left < 0:
            raise OSError(code, os.strerror(code))
        return real(*args)

    monkeypatch.setattr(converters.outputs.disk.os, call, failing)
    failures: list[SourceError] = []
    for options in ({"size": 200}, {"encoding": "png"}, {"size": 200, "compression": "gzip"}):
        for good in range(100):
            left = good
            try:
                convert(folder, tmp_path / "out.h5", **options)
            except SourceError as exc:
                failures.append(exc)
                assert listed(tmp_path) == []
            else:
                (tmp_path / "out.h5").unlink()
                break
        else:
            pytest.fail("it never succeeded")
    assert len(failures) > 3
    wanted = "no space on the disk" if code == errno.ENOSPC else "cannot be written"
    assert all(wanted in str(failure) for failure in failures)
    assert {failure.path for failure in failures} == {str(tmp_path / "out.h5")}


@pytest.mark.parametrize("name", ["out.h5", "out.lmdb", "shards", "append", "no links.h5"])
@pytest.mark.parametrize("old", [False, True])
def test_a_name_that_is_not_durable_is_taken_back(
    folder: Path, tmp_path: Path, name: str, old: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the target's folder cannot be synced, the target is what it was: old, or absent; or it
    is the new set whole, where no hard link can keep the old one. Added shards, whose new manifest
    does not reach the disk, wait for a run that resumes."""
    target, appends = tmp_path / name, name == "append"
    options: dict[str, Any] = {} if "." in name else {"shards": 2}
    if old or appends:
        convert(folder, target, **options)
    before, real, place = bytes_of(target), os.fsync, target if appends else tmp_path

    def failing(file: int) -> None:
        there = os.readlink(f"/proc/self/fd/{file}") == str(place)
        if there and (not appends or len(read_manifest(str(target / NAME))) > 2):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        real(file)

    how: dict[str, Any] = {"append": True} if appends else {"encoding": "png", "overwrite": old}
    said = (
        r"Input/output error.*finished shards are kept" if appends else "cannot be given its name"
    )
    monkeypatch.setattr(os, "fsync", failing)
    if "links" in name:
        monkeypatch.setattr(os, "link", lambda *_: os.lstat(tmp_path / "none"))
    with pytest.raises(SourceError, match=said):
        convert(folder, target, **how, **options)
    monkeypatch.undo()
    if old and "links" in name:
        assert verify_file(str(target)).ok
    else:
        assert bytes_of(target) == before
    if options:
        assert convert(folder, target, resume=True, **how, **options).kept == 2
    assert listed(tmp_path) == ([name] if old or options else [])


@pytest.mark.slow
def test_a_name_that_was_taken_meanwhile(folder: Path, tmp_path: Path) -> None:
    """Killed between taking the old set away and naming the new one, after which something else
    took the name: neither is removed, and the error names both."""
    target, work = tmp_path / "set", tmp_path / ".set.asyncreader-tmp"
    for name in ("set", "old", "new", "again"):
        convert(folder, tmp_path / name, shards=2)
    work.mkdir()
    (tmp_path / "old").rename(work / "old")
    (tmp_path / "new").rename(work / "set")
    before = files(target)
    for resume in (False, True):
        with pytest.raises(SourceError, match=r"taken by something else.*tmp/old") as caught:
            convert(folder, target, shards=2, overwrite=True, resume=resume)
        assert caught.value.path == str(target)
    assert files(target) == files(work / "old") == before
    (work / "old").rename(tmp_path / "saved")
    convert(folder, target, shards=2, overwrite=True, resume=True)
    assert listed(tmp_path) == ["again", "saved", "set"]


def test_a_file_system_without_locks(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A set is written there, without a lock, and no file stays open."""

    def flock(*_: object) -> None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(fcntl, "flock", flock)
    convert(folder, tmp_path / "set.h5")
    assert listed(tmp_path) == ["set.h5"]
    opened = [os.readlink(entry) for entry in Path("/proc/self/fd").iterdir() if entry.is_symlink()]
    assert not [path for path in opened if ".asyncreader-tmp" in path]


# -- Ctrl-C and kill -9 between any two calls of publishing ---------------------------------------


#: Calls of the system that change folders, or wait for the disk.
CHANGES = {"rename", "link", "unlink", "mkdir", "rmdir", "fsync"}


def changes_of_publish() -> Callable[[Any, str, Any], bool]:
    """Counts as moments the begin of publish(), and each such call that has returned since."""
    begun = False

    def counts(frame: Any, event: str, argument: Any) -> bool:
        nonlocal begun
        if not begun:
            begun = event == "call" and frame.f_code.co_name == "publish"
            return begun
        return event == "c_return" and argument.__name__ in CHANGES

    return counts


ROWS = np.arange(60, dtype="u1").reshape(20, 3)


NAMES = {"hdf5": "set.h5", "lmdb": "set.lmdb", "shards": "set", "append": "set"}


Files = dict[str, bytes]


@dataclass
class Pair:
    """A set, the one that replaces it, and what of that is in the workspace before publishing."""

    kind: str
    old: Path
    new: Path
    work: Path
    added: Manifest | None = None

    def run(self, target: Path, overwrite: bool, resume: bool) -> tuple[Files, Files]:
        """What a run does when all has been written. Returns what it found: target, workspace."""
        append = self.kind == "append"
        kind = "shards" if append else self.kind
        with Target(str(target), kind, overwrite, resume, append) as run:
            found = bytes_of(target), bytes_of(Path(run.work))
            if found[0] == bytes_of(self.new):
                return found
            copy(self.work, Path(run.work))
            if self.added is None:
                run.publish()
            else:
                workspace = Workspace(run.workspace, "hdf5")
                workspace.prepare()
                Grown.open(run.path, run.path).publish(run, workspace, self.added)
        return found


def copy(source: Path, target: Path) -> None:
    """Copy a set; of a folder what the target does not have."""
    if source.is_file():
        shutil.copy(source, target)
        return
    target.mkdir(exist_ok=True)
    for file in source.iterdir():
        if not (target / file.name).exists():
            shutil.copy(file, target)


def bytes_of(path: Path) -> Files:
    """The files of a set, without shards that its manifest does not list; {} where it is not."""
    if path.is_file():
        return {"": path.read_bytes()}
    found = {file.name: file.read_bytes() for file in path.glob("*")}
    if NAME in found:
        manifest = read_manifest(str(path / NAME))
        listed = {NAME, *map(manifest.name, range(len(manifest)))}
        found = {name: data for name, data in found.items() if name in listed}
    return found


@pytest.fixture(scope="module", params=NAMES)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """The two sets of a kind; of "append" the new one has shards that were added to the old one."""
    root, kind = tmp_path_factory.mktemp("pair"), request.param
    old, new = (root / part / NAMES[kind] for part in ("old", "new"))
    old.parent.mkdir()
    new.parent.mkdir()
    shards: dict[str, Any] = {} if "." in NAMES[kind] else {"shards": 2}
    convert(ROWS[::-1], old, **shards)
    if kind != "append":
        convert(ROWS, new, **shards)
        return Pair(kind, old, new, new)
    shutil.copytree(old, new)
    convert(ROWS, root / "more.h5")
    pair = Pair(kind, old, new, root / "work")
    publish = Grown.publish

    def noted(self: Grown, target: Target, workspace: Workspace, added: Manifest) -> Manifest:
        pair.added = added
        shutil.copytree(workspace.set, pair.work)
        return publish(self, target, workspace, added)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Grown, "publish", noted)
        convert(root / "more.h5", new, append=True, **shards)
    return pair


@pytest.mark.slow
@pytest.mark.parametrize("stop", [interrupted, killed])
@pytest.mark.parametrize("replaces", [True, False])
def test_publishing_is_stopped_at_every_change(
    tmp_path: Path, pair: Pair, replaces: bool, stop: Callable[..., bool]
) -> None:
    """Ctrl-C, or kill -9, after any call that changes folders: the old set is there or the new one,
    of a killed run once the next one has begun; that one has all that was finished, and ends with
    the new set and nothing beside it."""
    if pair.kind == "append" and not replaces:
        pytest.skip("there is a set to append to")
    old, new = bytes_of(pair.old) if replaces else {}, bytes_of(pair.new)
    target, resumes = tmp_path / NAMES[pair.kind], pair.kind in ("shards", "append")
    seen = set()

    def case() -> Iterator[Callable[[], Any]]:
        shutil.rmtree(tmp_path)
        tmp_path.mkdir()
        if replaces:
            copy(pair.old, target)
        yield lambda: pair.run(target, replaces, False)
        assert stop is killed or bytes_of(target) in (old, new)
        begun, finished = pair.run(target, True, resumes)
        assert begun in (old, new)
        assert begun == new or not resumes or bytes_of(pair.work).items() <= finished.items()
        seen.add(begun == new)
        assert bytes_of(target) == new
        assert listed(tmp_path) == [target.name]

    moments(case, lambda moment, act: stop(moment, act, changes_of_publish()))
    assert seen == {True, False}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "old", "resume"),
    [("set.h5", True, False), ("set", True, False), ("set", True, True), ("set", False, True)],
)
def test_a_writer_that_is_interrupted_while_it_publishes(
    tmp_path: Path, name: str, old: bool, resume: bool
) -> None:
    """Ctrl-C after any call that changes folders: the old set is served or the new one; a run that
    resumes has every sample, and the next run leaves nothing beside the new set."""
    options: dict[str, Any] = {"overwrite": old, "resume": resume}
    if name == "set":
        options["shards"] = 2
    target = tmp_path / name
    counted = itertools.count()

    def rows_of() -> Any:
        with asyncreader.open(target) as found:
            return found[:]

    def case() -> Iterator[Callable[[], Any]]:
        shutil.rmtree(tmp_path)
        tmp_path.mkdir()
        if old:
            convert(ROWS[::-1], target, **{**options, "resume": False})
        writers = [Writer(target, **options)]
        for number, row in enumerate(ROWS):
            writers[0].add(row, path=f"{number}")
        yield lambda: writers.pop().close()
        served = rows_of() if target.exists() else None
        assert (served is None) != old or np.array_equal(served, ROWS)
        assert served is None or old or np.array_equal(served, ROWS)
        again = Writer(target, **{**options, "overwrite": True})
        known = [f"{number}" in again for number in range(20)]
        assert all(known) or not resume or np.array_equal(served, ROWS)
        with again:
            for number, row in enumerate(ROWS):
                again.add(row, path=f"{number}")
        assert np.array_equal(rows_of(), ROWS)
        assert listed(tmp_path) == [name]
        next(counted)

    moments(case, lambda moment, act: interrupted(moment, act, changes_of_publish()))
    assert next(counted) > 4
