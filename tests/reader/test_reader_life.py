"""A reader's life: closing, forgetting, forking, pickling, interrupting, and what it leaves."""

import gc
import os
import pickle
import subprocess
import sys
import threading
import warnings
import weakref
from pathlib import Path
from typing import Any

import child_processes
import h5py
import numpy as np
import pytest
import xxhash
from fakes import MemorySource, describe, hdf5, open_fake, packed, pictures, write_hdf5, write_lmdb
from observed import HANG, descriptors, in_threads, switching_often, until
from painted import COUNT, IMAGES, LABELS, open_reader
from shard_sets import write_set

from asyncreader import (
    AsyncReader,
    AsyncReaderError,
    ChecksumError,
    Dataset,
    ReaderClosedError,
    SourceError,
    SourceNotFoundError,
    WorkerError,
)
from asyncreader.errors import located
from asyncreader.formats import packed as fmt
from asyncreader.pipeline.children import STUCK_AFTER
from asyncreader.pixels import kernels


def workers() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith("asyncreader")]


def run(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a script with warnings as errors, as pyproject.toml has them; it must end by itself."""
    ours = "-W", "error", "-W", 'ignore:last_batch="drop" leaves out'
    return child_processes.run([sys.executable, *ours, "-c", code, *arguments])


@pytest.fixture(params=["hdf5 mmap", "hdf5 pread", "lmdb mmap", "lmdb pread", "gzip", "jpeg"])
def some_set(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, Any]:
    """Parameters of a set of each kind on disk."""
    kind, *io = request.param.split()
    images = pictures(COUNT, (12, 10, 3))
    if kind == "lmdb":
        path = write_lmdb(tmp_path / "a.lmdb", packed(images))
    elif kind == "gzip":
        chunks = {"chunks": (4, 12, 10, 3), "compression": "gzip"}
        path = write_hdf5(tmp_path / "a.h5", packed(images), **chunks)
    else:
        path = write_hdf5(tmp_path / "a.h5", packed(images, "jpeg" if kind == "jpeg" else "raw"))
    return {"path": path, "batch_size": 4, "io": io[0] if io else "auto"}


# -- closing -------------------------------------------------------------------------------------


def test_close_leaves_nothing(some_set: dict[str, Any]) -> None:
    """After close() threads and descriptors are what they were, although the reader is held."""
    gc.collect()
    before = descriptors(), workers()
    for _ in range(3):
        reader = AsyncReader(some_set, nthread=3, njob=2)
        assert len(workers()) == 3
        for _ in range(2):
            reader.fetchData()
        reader.getNextBatch()
        reader.close()
        reader.close()
        assert (descriptors(), workers()) == before
        assert "closed" in repr(reader)
        assert reader.count == COUNT
        assert len(reader) == 5


@pytest.mark.parametrize("io", ["pread", "mmap", "auto"])
@pytest.mark.parametrize("kind", ["list", "shards"])
def test_close_leaves_nothing_of_several_files(tmp_path: Path, kind: str, io: str) -> None:
    """After close() no descriptor of a list of files, or of shards that were all open, is left,
    although the reader is held."""
    from converters import convert

    names = [write_hdf5(tmp_path / f"{n}.h5", packed(pictures(8))) for n in range(3)]
    path: object = names
    if kind == "shards":
        path = convert(names[0], tmp_path / "shards", format="hdf5", shards=3).target
    gc.collect()
    before = descriptors(), workers()
    reader = AsyncReader(path=path, batch_size=4, io=io, nthread=2, njob=2, shuffle=True)
    for _ in range(3):
        for batch in reader:
            assert len(batch) == 4
    assert reader._ring.fills is not None
    reader.close()
    del batch
    assert (descriptors(), workers()) == before


def test_a_closed_reader_is_freed_with_its_last_reference(some_set: dict[str, Any]) -> None:
    """close() leaves no cycle: without the garbage collector the reader goes, and its mapping."""
    gc.collect()
    gc.disable()
    try:
        reader = AsyncReader(some_set, nthread=2)
        reader.fetchData()
        reader.getNextBatch()
        reader.close()
        gone = weakref.ref(reader)
        del reader
        assert gone() is None
        with open("/proc/self/maps", encoding="utf-8") as maps:
            assert str(some_set["path"]) not in maps.read()
    finally:
        gc.enable()


def test_batches_outlive_their_reader(some_set: dict[str, Any]) -> None:
    """Arrays of a batch stay readable after close(), and after the reader is gone."""
    reader = AsyncReader(some_set)
    reader.fetchData()
    batch = reader.getNextBatch()
    was = batch.data.copy()
    reader.close()
    del reader
    gc.collect()
    np.testing.assert_array_equal(batch.data, was)
    batch.data[:] = 0
    batch.release()


def test_close_from_many_threads() -> None:
    """Any number of threads may close one reader."""
    reader = open_reader(nthread=2)
    in_threads(8, lambda: [reader.close()])
    reader.close()
    with pytest.raises(ReaderClosedError):
        reader.fetchData()


def test_samples_by_number_while_the_reader_is_closed(tmp_path: Path) -> None:
    """Threads that ask ``reader.dataset`` for samples during close() end with ReaderClosedError."""
    path, ended = tmp_path / "set.h5", list[str]()
    with h5py.File(path, "w") as file:
        file.create_dataset("data", data=np.zeros((400, 50)), chunks=(10, 50), compression="gzip")

    def ask(dataset: Dataset, asked: threading.Event) -> None:
        try:
            while True:
                dataset[np.arange(0, 400, 9)]
                asked.set()
        except Exception as exc:
            ended.append(type(exc).__name__)

    with switching_often():
        for _ in range(10):
            reader, asked = AsyncReader(path, labels_field=None), threading.Event()
            given = {"target": ask, "args": (reader.dataset, asked), "daemon": True}
            threads = [threading.Thread(**given) for _ in range(2)]
            for thread in threads:
                thread.start()
            assert asked.wait(HANG)
            reader.close()
            for thread in threads:
                thread.join(HANG)
    assert ended == ["ReaderClosedError"] * 20


@pytest.mark.parametrize("error", [False, True])
def test_close_with_a_stuck_worker(error: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker stuck in a read is left behind, with a warning that shows where it is. Where the
    warning is an error, it comes when all else of close() is done."""
    gate = threading.Event()
    source = MemorySource(IMAGES, gate=gate)
    reader = open_fake(monkeypatch, source, batch_size=4)
    reader.fetchData()
    assert source.entered.acquire(timeout=HANG)
    says = "(?s)did not stop.*read_into"
    with pytest.raises(RuntimeWarning, match=says) if error else pytest.warns(match=says):
        reader.close()
    assert source.closed == 1 or not error
    gate.set()
    until(lambda: workers() == [])
    assert source.closed == 1


def test_close_amid_a_slow_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker in a batch that takes seconds to decode leaves it at the next picture: close() has
    nobody to leave behind (which would be a warning, and so an error here)."""
    from asyncreader.pixels.codec import decoding

    decode, begun, never = decoding.decode, threading.Event(), threading.Event()

    def slowly(*args: Any, **settings: Any) -> Any:
        begun.set()
        never.wait(0.05)
        return decode(*args, **settings)

    path = write_lmdb(tmp_path / "a", packed(pictures(64), "png"))
    reader = AsyncReader(path=path, batch_size=64)
    monkeypatch.setattr(decoding, "decode", slowly)
    reader.fetchData()
    assert begun.wait(HANG)
    reader.close()
    assert workers() == []


def test_close_waits_for_a_worker_that_compiles(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a fresh checkout a worker may be compiling kernels, one after another, when the reader is
    closed: it is waited for, and not called stuck."""
    load, loading = kernels._load, threading.Event()

    def slowly(name: str) -> Any:
        loading.set()
        threading.Event().wait(1.2 * STUCK_AFTER)
        return load(name)

    path = write_hdf5(tmp_path / "a.h5", packed(pictures(8)))
    for name in ("copy_batches", "resize_planned"):
        monkeypatch.delitem(vars(kernels), name, raising=False)
    reader = AsyncReader(path=path, batch_size=8, size=(8, 8))
    monkeypatch.setattr(kernels, "_load", slowly)
    reader.fetchData()
    assert loading.wait(HANG)
    reader.close()
    assert workers() == []


def test_close_inside_postprocess() -> None:
    """User code in a worker may close the reader: the consumer is told, nobody waits for ever."""
    box: list[AsyncReader] = []

    def close_it(data: np.ndarray, labels: np.ndarray) -> None:
        if box:
            box[0].close()

    reader = open_reader(postprocess=close_it)
    box.append(reader)
    reader.fetchData()
    with pytest.raises(ReaderClosedError):
        reader.getNextBatch()
    until(lambda: workers() == [])


def test_failed_opening_leaves_nothing(some_set: dict[str, Any]) -> None:
    """A reader that cannot be opened leaves no thread and no descriptor."""

    def fails(data: np.ndarray, labels: np.ndarray) -> None:
        raise KeyError

    before = descriptors(), workers()
    with pytest.raises(WorkerError):
        AsyncReader(some_set, postprocess=fails)
    with pytest.raises(AsyncReaderError):
        AsyncReader(some_set, batch_size=1000)
    gc.collect()
    assert (descriptors(), workers()) == before


# -- forgetting ----------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["idle", "in flight", "in a loop", "postprocess"])
def test_a_forgotten_reader_closes_itself(how: str, some_set: dict[str, Any]) -> None:
    """Without close(), the last reference takes threads and descriptors along."""
    gc.collect()
    before = descriptors(), workers()
    params = {**some_set, "njob": 3, "nthread": 2}
    if how == "postprocess":
        params["postprocess"] = lambda data, labels: None
    reader = AsyncReader(params)
    if how in ("in flight", "postprocess"):
        for _ in range(3):
            reader.fetchData()
        reader.getNextBatch()
    elif how == "in a loop":
        for _ in reader:
            break
    gone = weakref.ref(reader)
    del reader
    gc.collect()
    assert gone() is None
    assert (descriptors(), workers()) == before


# -- forking and pickling ------------------------------------------------------------------------


def test_fork() -> None:
    """In a forked child every call is ReaderClosedError, repr() works, and the parent goes on."""
    reader = open_reader(nthread=2, shuffle=True)
    reader.fetchData()
    batch = reader.getNextBatch()
    reader.fetchData()
    reader._ring._cond.acquire()  # held by another thread of the parent at the moment of the fork
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12: fork with threads
        child = os.fork()
    if child == 0:
        code = 1
        try:
            for call in (
                *(reader.fetchData, reader.getNextBatch, reader.state_dict, reader.stats),
                *(lambda: next(iter(reader)), lambda: reader.seek(0)),
                lambda: reader.load_state_dict({}),
            ):
                with pytest.raises(ReaderClosedError, match="forked"):
                    call()
            assert "of process" in repr(reader)
            reader.close()
            del reader, batch
            gc.collect()
            code = 0
        finally:
            os._exit(code)
    reader._ring._cond.release()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert reader.getNextBatch().step == 1
    assert [b.step for b in reader] == [2, 3, 4]
    reader.close()


#: What a user may write, in the folder that holds ``set``, ``lmdb`` and ``a.h5``.
RELATIVE: dict[str, dict[str, Any]] = {
    "folder": {"path": "set"},
    "dotted": {"path": "./set/"},
    "manifest": {"path": "set/asyncreader.json"},
    "glob": {"path": "se[t]/shard-*.h5"},
    "list": {"path": ["set/shard-00001-of-00005.h5", Path("set/shard-00000-of-00005.h5")]},
    "hdf5": {"hdf5_path": "a.h5"},
    "lmdb": {"lmdb_path": "lmdb"},
    "labels elsewhere": {"path": "a.h5", "labels_path": "labels.h5", "labels_field": "y"},
    "mix": {"mix": {"a.h5": 0.5, "lmdb": 0.5}},
}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*shards of the dataset are named:UserWarning")
@pytest.mark.parametrize(
    ("name", "workers"), [*((name, "thread") for name in RELATIVE), ("glob", "process")]
)
def test_relative_paths_survive_chdir(
    name: str, workers: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A set opened by a relative path is served after os.chdir(), and a pickled reader opens the
    same set from another folder, in whatever way the path was written."""
    here = tmp_path / "a [12] folder"  # itself a pattern, where it is not kept from being one
    here.mkdir()
    monkeypatch.chdir(here)
    content = packed(IMAGES, labels=LABELS)
    write_set(here / "set", IMAGES, (7, 5, 5, 3, 2), content=content)
    write_hdf5("a.h5", content)
    write_lmdb("lmdb", content)
    hdf5("labels.h5", y=LABELS)
    params = {**RELATIVE[name], "batch_size": 5, "workers": workers, "trace": "trace.json"}
    with AsyncReader(params) as reader:
        first = reader._source.first
        if hasattr(first, "open_files"):
            first.open_files.limit = 1  # each shard is opened again and again
        monkeypatch.chdir("/")
        seen = [
            (batch.indices.tolist(), batch.data.copy(), batch.labels.copy()) for batch in reader
        ]
        with pickle.loads(pickle.dumps(reader)) as twin:
            twin.seek(0)
            for (indices, data, labels), batch in zip(seen, twin, strict=True):
                assert batch.indices.tolist() == indices
                np.testing.assert_array_equal(batch.data, data)
                np.testing.assert_array_equal(batch.labels, labels)
    assert len(seen) == reader.count // 5
    assert (here / "trace.json").exists()


def test_a_folder_that_was_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the current folder is gone a relative path is a SourceNotFoundError, as ever."""
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with pytest.raises(SourceNotFoundError):
        AsyncReader(path="set.h5")


def test_pickling_an_h5py_data_set(tmp_path: Path) -> None:
    """A reader over an h5py data set pickles as its place."""
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x/y"], file["z"] = IMAGES, LABELS
    with (
        h5py.File(tmp_path / "a.h5") as file,
        AsyncReader(data=file["x/y"], labels=file["z"], batch_size=4) as one,
    ):
        data = pickle.dumps(one)
    with pickle.loads(data) as two:
        two.fetchData()
        np.testing.assert_array_equal(two.getNextBatch().labels, LABELS[:4])


def test_errors_are_located_where_they_pass() -> None:
    """Inside located() an error of ours gets the place that it does not name itself, and nothing
    else of it changes; a key is looked up for an error alone; other errors pass as they are."""
    asked = list[int]()

    def unreadable() -> str:
        raise SourceError("not even the key can be read")

    def key() -> str:
        asked.append(1)
        return "07"

    with located(path="a.h5", key=key):
        pass
    assert asked == []
    for given, expected in (
        ({}, {"path": "a.h5", "index": 7, "key": "07", "source_path": "cat/1.png"}),
        ({"path": "b.h5", "index": 0, "key": ""}, {"path": "b.h5", "index": 0, "key": ""}),
    ):
        error = ChecksumError("what", found=3, **given)
        cause = error.__cause__ = ValueError()
        with (
            pytest.raises(ChecksumError) as raised,
            located(path="a.h5", index=7, key=key, source_path="cat/1.png"),
        ):
            raise error
        assert raised.value is error
        assert (error.what, error.found, error.__cause__) == ("what", 3, cause)
        assert expected.items() <= error.fields().items()
    with pytest.raises(KeyError) as other, located(path="a.h5"):
        raise KeyError("k")
    error = SourceError("the disk")
    with pytest.raises(SourceError, match="the disk"), located(key=unreadable):
        raise error
    assert error.key is None
    assert not hasattr(other.value, "path")


def test_errors_keep_their_fields_through_pickling() -> None:
    """Every error type pickles with all its fields and its text."""
    fields = {"path": "a.h5", "index": 3, "key": "0000000003", "source_path": "cat/1.png"}
    fields |= {"found": "this", "expected": ("that", 5), "hint": "do so"}
    every = [AsyncReaderError]
    for kind in every:
        every.extend(kind.__subclasses__())
    kinds = [kind for kind in every if kind.__module__ == AsyncReaderError.__module__]
    assert len(kinds) == 14
    for kind in kinds:
        error = kind("what", **fields)
        again = pickle.loads(pickle.dumps(error))
        assert type(again) is kind
        assert str(again) == str(error)
        assert again.fields() == fields
        assert again.what == "what"
    text = str(ChecksumError("what", **fields))
    assert text == (
        "what [a.h5, record 3, key 0000000003, source 'cat/1.png']; found this; "
        "expected ('that', 5); do so"
    )
    assert str(ChecksumError("what")) == "what"
    for kind, builtin in (
        (SourceNotFoundError, FileNotFoundError),
        (ChecksumError, OSError),
        (WorkerError, RuntimeError),
        (ReaderClosedError, RuntimeError),
    ):
        assert issubclass(kind, builtin)


# -- side by side --------------------------------------------------------------------------------


def test_replaced_file_does_not_matter(some_set: dict[str, Any], tmp_path: Path) -> None:
    """An open reader goes on with its file when another is renamed over it."""
    with AsyncReader(some_set, epochs=1) as alone:
        plain = [batch.data.copy() for batch in alone]
    with AsyncReader(some_set) as reader:
        path = Path(some_set["path"])
        file = path / "data.mdb" if path.is_dir() else path
        (tmp_path / "other").write_bytes(b"other")
        os.replace(tmp_path / "other", file)
        for batch in reader:
            np.testing.assert_array_equal(batch.data, plain[batch.step])


# -- the interpreter's end: see also tests/faults/programs/endings.py ----------------------------

STUCK = """
import os, signal, threading, time
import numpy as np
from asyncreader import AsyncReader
entered, gate, calls = threading.Event(), threading.Event(), []
def stuck(data, labels):
    calls.append(1)
    if len(calls) == 2:
        entered.set()
        gate.wait()
reader = AsyncReader(data=np.zeros((8, 3)), batch_size=2, postprocess=stuck)
reader.fetchData()
def interrupt():
    entered.wait()
    while not reader._ring._waiting:
        os.sched_yield()
    # Python's locks do not see a signal that comes between the release of the GIL and the wait
    time.sleep(0.1)
    os.kill(os.getpid(), signal.SIGINT)
threading.Thread(target=interrupt, daemon=True).start()
"""


@pytest.mark.slow
def test_interrupt_that_nobody_catches() -> None:
    """Ctrl-C that is not caught ends the program, although a worker is stuck for ever."""
    done = run(STUCK + "reader.getNextBatch()\n")
    assert done.returncode == -2
    assert "KeyboardInterrupt" in done.stderr


# -- what it costs -------------------------------------------------------------------------------


def test_a_million_samples_are_not_a_million_objects(tmp_path: Path) -> None:
    """Opening a set of a million samples builds no Python object per sample."""
    count = 1_000_000
    path = tmp_path / "million.h5"
    offsets = np.arange(count + 1, dtype=np.int64)
    checksums = np.full(count, xxhash.xxh3_64_intdigest(b"\0"), np.uint64)
    labels = np.zeros((count, 1), np.int64)
    tables = {fmt.OFFSETS: offsets, fmt.CHECKSUMS: checksums, fmt.LABELS: labels}
    with h5py.File(path, "w", libver=("v110", "v110")) as file:
        file[fmt.DATA] = np.zeros(count, np.uint8)
        for name, table in tables.items():
            file[name] = table
        meta = fmt.Meta(
            count=count,
            encoding="png",
            shape=(4, 4, 3),
            channels=3,
            label_kind="values",
            classes=None,
            digests={name: fmt.digest(table) for name, table in tables.items()},
        )
        describe(file, meta.facts())
    AsyncReader(path=path, on_error="zero").close()  # whatever is imported late
    gc.collect()
    before = sys.getallocatedblocks()
    with AsyncReader(path=path, on_error="zero", batch_size=8, shuffle=True) as reader:
        assert sys.getallocatedblocks() - before < 20_000
        assert reader.count == count
        reader.fetchData()
        assert not reader.getNextBatch().mask.any()
