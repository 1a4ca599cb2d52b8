"""workers="process": the same batches, order, errors and end as threads, in spawned processes."""

import hashlib
import itertools
import json
import multiprocessing
import os
import sys
import tempfile
import textwrap
import threading
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import child_processes
import h5py
import numpy as np
import pytest
from child_processes import child
from face_sources import Odd
from fakes import hdf5, paint, write_hdf5
from fakes import packed as pack
from global_draws import from_global_generators
from hidden_calls import HIDDEN, MISSING
from observed import HANG, descriptors
from process_functions import (
    dies_at_20,
    fails_at_20,
    halves,
    jitter,
    shrinks_at_20,
    stays_for_ever,
)
from project import ROOT

from asyncreader import AsyncReader, ChecksumError, ParamsError, SourceError, WorkerError
from asyncreader.pipeline.slots import Arena
from asyncreader.pipeline.workers import ProcessWorkers

COUNT = 60


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("processes") / "set.h5"
    hdf5(path, data=paint(COUNT, (6, 5, 3)), labels=np.arange(COUNT)[:, None])
    return str(path)


def digest_of(path: str, **params: Any) -> str:
    state = hashlib.sha256()
    with AsyncReader(path=path, batch_size=8, shuffle=True, **params) as reader:
        for _ in range(3):
            for batch in reader:
                state.update(batch.data.tobytes())
                state.update(np.ascontiguousarray(batch.labels).tobytes())
                state.update(batch.indices.tobytes())
    return state.hexdigest()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("postprocess", "nthread", "njob"), [(None, 1, 1), (None, 2, 3), (jitter, 3, 4), (halves, 1, 2)]
)
def test_same_bytes_as_threads(packed: str, postprocess: Any, nthread: int, njob: int) -> None:
    """Three shuffled epochs are the same bytes with threads and processes, any njob and nthread."""
    expected = digest_of(packed, postprocess=postprocess)
    found = digest_of(
        packed, postprocess=postprocess, workers="process", nthread=nthread, njob=njob
    )
    assert found == expected


@pytest.mark.slow
def test_global_generators_follow_from_the_batch(packed: str) -> None:
    """In worker processes what postprocess draws from the global generators of random, numpy and
    torch is the same with 1 and 3 of them, and after resuming; no two batches, and no two
    generators, draw the same."""
    params: dict[str, Any] = {"batch_size": 8, "shuffle": True, "workers": "process"}
    params |= {"path": packed, "postprocess": from_global_generators}
    first: list[np.ndarray] = []
    states: list[Any] = []
    with AsyncReader(params) as reader:
        for batch in itertools.chain(reader, reader):
            first.append(batch.data.copy())
            states.append(reader.state_dict())
    draws = np.ravel(first)
    assert np.unique(draws[draws > 0]).size == np.count_nonzero(draws) >= 2 * draws.size / 3
    with AsyncReader(params, nthread=3, njob=4) as reader:
        found = [batch.data.copy() for batch in itertools.chain(reader, reader)]
        np.testing.assert_array_equal(found, first)
        reader.load_state_dict(states[8])
        np.testing.assert_array_equal([batch.data.copy() for batch in reader], first[9:])


@pytest.mark.slow
def test_close_leaves_nothing(packed: str) -> None:
    """Processes, threads and descriptors are back to the count before; close() twice is fine."""
    AsyncReader(path=packed, workers="process").close()  # starts the one resource tracker
    threads, fds = threading.active_count(), descriptors()
    for nthread in (1, 2):
        reader = AsyncReader(path=packed, batch_size=4, workers="process", nthread=nthread, njob=3)
        reader.fetchData()
        reader.close()
        reader.close()
    assert threading.active_count() == threads
    assert descriptors() == fds
    assert multiprocessing.active_children() == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("postprocess", "cause"), [(fails_at_20, Odd), (shrinks_at_20, type(None))]
)
def test_an_error_belongs_to_its_batch(packed: str, postprocess: Any, cause: type) -> None:
    """postprocess's error comes from its own batch, with its type; the next batch is well."""
    with AsyncReader(
        path=packed, batch_size=4, workers="process", nthread=2, njob=3, postprocess=postprocess
    ) as reader:
        for first in range(0, 20, 4):
            reader.fetchData()
            assert reader.getNextBatch().indices[0] == first
        for _ in range(3):
            reader.fetchData()
        with pytest.raises(WorkerError) as caught:
            reader.getNextBatch()
        assert type(caught.value.__cause__) is cause
        assert "in worker process" in caught.value.__notes__[0]
        assert reader.getNextBatch().indices[0] == 24
        assert reader.getNextBatch().indices[0] == 28


@pytest.mark.slow
def test_a_dead_worker_is_an_error_with_its_signal(packed: str) -> None:
    """A worker that is killed ends the wait with WorkerError naming process and signal."""
    reader = AsyncReader(
        path=packed, batch_size=4, workers="process", njob=3, postprocess=dies_at_20
    )
    with reader, pytest.raises(WorkerError, match=r"process \d+, signal SIGSEGV"):
        for _ in reader:
            pass


@pytest.mark.slow
def test_a_stuck_worker_is_killed_by_close(packed: str) -> None:
    """close() ends a worker that never returns from user code."""
    reader = AsyncReader(
        path=packed, batch_size=4, workers="process", njob=3, postprocess=stays_for_ever,
        timeout=0.3,
    )  # fmt: skip
    with pytest.raises(TimeoutError):
        for _ in reader:
            pass
    reader.close()
    assert multiprocessing.active_children() == []


def test_a_local_function_is_refused(packed: str) -> None:
    """A postprocess that cannot be sent to a process is a ParamsError at construction."""
    with pytest.raises(ParamsError, match=r"postprocess.*top of a module"):
        AsyncReader(path=packed, workers="process", postprocess=lambda data, labels: None)


@pytest.mark.slow
def test_a_program_from_standard_input_is_refused(packed: str) -> None:
    """A main module that cannot be imported is a ParamsError, not a hang."""
    program = (
        "from asyncreader import AsyncReader, ParamsError\n"
        "try:\n"
        f"    AsyncReader(path={packed!r}, workers='process', nthread=2)\n"
        "except ParamsError as exc: print('refused:', exc)\n"
    )
    done = child_processes.run([sys.executable, "-"], given=program)
    assert done.stdout.startswith("refused: a worker process could not start"), done
    assert 'workers="thread"' in done.stdout


@pytest.mark.slow
def test_an_unguarded_main_module_is_refused(packed: str, tmp_path: Path) -> None:
    """A script that starts training at import is told to guard it, in parent and child."""
    script = tmp_path / "train.py"
    script.write_text(
        "from asyncreader import AsyncReader\n"
        f"AsyncReader(path={packed!r}, workers='process').close()\n"
    )
    done = child_processes.run([sys.executable, script])
    assert done.returncode == 1
    assert 'if __name__ == "__main__"' in done.stderr.splitlines()[-1]


@pytest.mark.parametrize("what", ["daemon", "starting"])
def test_where_no_process_may_be_started(
    what: str, packed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a Pool's worker, or while a process is unpickled, the error says what to do."""
    this = multiprocessing.current_process()
    if what == "daemon":
        monkeypatch.setitem(this._config, "daemon", True)  # type: ignore[attr-defined]
    else:
        monkeypatch.setattr(this, "_inheriting", True, raising=False)
    held = []
    for _ in range(2):  # what the process opens once, for itself, is there after the first
        with pytest.raises(ParamsError, match=r'may not start.*workers="thread"'):
            AsyncReader(path=packed, workers="process")
        held.append(len(os.listdir("/proc/self/fd")))
    assert held[0] == held[1]


def test_a_file_that_vanished_is_an_error_at_construction(
    packed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that cannot open the set says so while the reader is constructed."""
    link = tmp_path / "set.h5"
    link.symlink_to(packed)
    start = ProcessWorkers.start

    def without_the_file(workers: ProcessWorkers) -> None:
        link.unlink()
        start(workers)

    monkeypatch.setattr(ProcessWorkers, "start", without_the_file)
    with pytest.raises(SourceError, match="no such file"):
        AsyncReader(path=str(link), workers="process")


@pytest.mark.slow
def test_bad_samples_and_padding_cross_over(tmp_path: Path) -> None:
    """Skipped, zeroed and padded rows show in indices, mask and stats as they do with threads."""
    path = write_hdf5(tmp_path / "bad.h5", pack(paint(10, (4, 4, 3))))
    with h5py.File(path, "r+") as file:
        file["data"][3] = 255 - file["data"][3]
    for on_error in ("skip", "zero"):
        found = []
        for workers in ("thread", "process"):
            with AsyncReader(
                path=str(path), batch_size=4, workers=workers, on_error=on_error,
                last_batch="pad", epochs=1, njob=2,
            ) as reader:  # fmt: skip
                rows = [(b.indices.tolist(), b.mask.tolist(), b.data.tobytes()) for b in reader]
                found.append((rows, reader.stats().bad_list))
        assert found[0] == found[1]
        assert found[0][1][0][0] == 3


@pytest.mark.slow
def test_thousands_of_bad_rows_and_a_postprocess(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parts of a batch with thousands of bad rows are finished while workers send as many: every
    batch comes, and one thread writes to a worker's pipe."""
    writers: dict[int, set[str]] = {}
    send = Connection.send

    def noted(pipe: Connection, message: Any) -> None:
        writers.setdefault(id(pipe), set()).add(threading.current_thread().name)
        send(pipe, message)

    monkeypatch.setattr(Connection, "send", noted)
    path = write_hdf5(tmp_path / "bad.h5", pack(paint(12_000, (10, 10, 3))))
    with h5py.File(path, "r+") as file:
        file["data"][...] = 255 - file["data"][...]
    with AsyncReader(
        path=str(path), batch_size=4000, workers="process", on_error="zero", postprocess=halves,
        epochs=2, njob=4, nthread=4, timeout=HANG,
    ) as reader:  # fmt: skip
        found = [int(batch.mask.sum()) for _ in range(2) for batch in reader]
        assert found == [0] * 6
        assert reader.stats().bad_samples == 24_000
    assert all(names == {"asyncreader-fill-send"} for names in writers.values())


@pytest.mark.slow
def test_verified_once_for_all_workers(tmp_path: Path) -> None:
    """verify="first" marks what passed in one map for all processes: what is damaged later is
    served, whichever process checked it."""
    content = pack(paint(12, (4, 4, 3)))
    path = write_hdf5(tmp_path / "good.h5", content)
    params = {"path": str(path), "batch_size": 4, "workers": "process", "nthread": 2}
    with AsyncReader(params, shuffle=True) as reader:
        for _ in reader:
            pass
        held = Path(path).read_bytes()
        with open(path, "r+b") as file:
            for sample in content.samples:
                file.seek(held.index(sample))
                file.write(bytes(len(sample)))
        for _ in range(5):
            for batch in reader:
                assert batch.mask.all()
    with AsyncReader(params) as reader, pytest.raises(ChecksumError):
        next(iter(reader))


@pytest.mark.slow
def test_exit_without_close(packed: str, tmp_path: Path) -> None:
    """A program that ends without close() ends cleanly and leaves no process behind."""
    script = tmp_path / "train.py"
    script.write_text(
        textwrap.dedent(f"""
        import json, multiprocessing, sys
        from asyncreader import AsyncReader
        if __name__ == "__main__":
            reader = AsyncReader(path={packed!r}, batch_size=4, workers="process", nthread=2)
            for batch in reader:
                break
            print(json.dumps([child.pid for child in multiprocessing.active_children()]))
            sys.exit(7)
        """)
    )
    done = child_processes.run([sys.executable, script])
    assert done.returncode == 7, done.stderr
    assert done.stderr == ""
    for pid in json.loads(done.stdout):
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


# -- Pythons that lack what others have ----------------------------------------------------------

PROGRAM = """
import os, sys, warnings
import numpy as np
from PIL import Image
from asyncreader import AsyncReader
from asyncreader.faces import GeneratorEnqueuer, OrderedEnqueuer, get_batch
from converters import convert
from face_sources import Numbers, count_to

if __name__ == "__main__":
    os.makedirs("photos/one")
    for number in range(12):
        Image.fromarray(np.full((8, 8, 3), number, np.uint8)).save(f"photos/one/{number:02}.png")
    for target, count in (("a.h5", 2), ("a.lmdb", 1)):
        assert convert("photos", target, size=(8, 8), jobs=2).count == 12
        for given in ({"io": "pread"}, {}, {"workers": "process", "nthread": count}):
            with AsyncReader(path=target, batch_size=4, layout="NHWC", **given) as reader:
                assert [b.data[:, 0, 0, 0].tolist() for b in reader] == [
                    [0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]
                ]
                if "workers" in given:
                    with warnings.catch_warnings():  # Python 3.12 and later warn of threads
                        warnings.simplefilter("ignore", DeprecationWarning)
                        pid = os.fork()  # a forked child's end is not that of the workers
                    if pid == 0:
                        sys.exit(0)
                    assert os.waitpid(pid, 0)[1] == 0
                    assert sum(map(len, reader)) == 12
    with OrderedEnqueuer(Numbers(5), use_multiprocessing=True) as enqueuer:
        enqueuer.start(1, 3)
        items = enqueuer.get()
        assert [next(items) for _ in range(5)] == [0, 1, 2, 3, 4]
    assert list(get_batch(1, count_to, 2, stop=4)) == [[0, 1], [2, 3]]
    print("all of it")
"""


@pytest.mark.slow
@pytest.mark.parametrize("hidden", list(MISSING))
def test_pythons_without_newer_calls(tmp_path: Path, hidden: str) -> None:
    """Packing, reading with processes for workers, and the drop-in classes with processes need
    none of the calls that some builds of Python lack, nor what only Linux has."""
    (tmp_path / "program.py").write_text(PROGRAM)
    done = child_processes.run([sys.executable, "program.py"], cwd=tmp_path, env=without(hidden))
    assert done.stdout == "all of it\n", done.stderr
    assert done.returncode == 0
    assert done.stderr == ""


def without(hidden: str) -> dict[str, str]:
    """The environment of a Python from which calls are hidden."""
    path = [str(HIDDEN), str(ROOT), str(ROOT / "tests/support/processes")]
    return {**os.environ, "HIDE_CALLS": hidden, "PYTHONPATH": os.pathsep.join(path)}


@pytest.mark.slow
def test_workers_end_with_a_killed_parent_without_newer_calls(tmp_path: Path) -> None:
    """A worker that is busy for ever ends when its parent is killed, on such a Python too."""
    (tmp_path / "program.py").write_text(
        """
import threading
from asyncreader.faces import OrderedEnqueuer

class Stuck:
    def __len__(self):
        return 5
    def __getitem__(self, index):
        print("busy", flush=True)
        threading.Event().wait()

if __name__ == "__main__":
    enqueuer = OrderedEnqueuer(Stuck(), use_multiprocessing=True)
    enqueuer.start(1, 2)
    threading.Event().wait()
"""
    )
    command = [sys.executable, "program.py"]
    with child(command, cwd=tmp_path, env=without("linux"), stdout=-1) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"busy\n"
        process.kill()
        process.wait()
        assert process.stdout.read() == b""  # the worker, which holds it too, has ended


def test_no_memory_to_share(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no slots can be shared the error says so, and what to do."""

    def full(*_: object, **__: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "memfd_create", full, raising=False)
    monkeypatch.setattr(tempfile, "TemporaryFile", full)
    with pytest.raises(ParamsError, match=r"4096 bytes.*No space.*workers=\"thread\""):
        Arena(4096)
