"""Batches that are only copied: the queue that compiled code serves, and the reader over it."""

import contextlib
import os
import random
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import h5py
import numpy as np
import pytest
from fakes import first, hdf5, paint, write_hdf5
from fakes import packed as pack
from observed import HANG

from asyncreader import AsyncReader, ChecksumError, SourceError
from asyncreader.pipeline.fill_queue import LOOKS, FillQueue
from asyncreader.pipeline.slots import FILLING, REFUSED
from asyncreader.pixels.row_maker import RowFiller, RowTables
from asyncreader.pixels.specs import OutputSpec, SampleSpec
from asyncreader.pixels.tables import CLAIMED, PUBLISHED, STOPPED, RowsInMemory, file_table
from asyncreader.pixels.transform import plan_rows
from asyncreader.sources import bytestore, open_source
from asyncreader.stats import Meter
from asyncreader.system.limits import last_level_cache
from asyncreader.system.memory import address_of

pytestmark = pytest.mark.skipif(not FillQueue.available(), reason="no x86-64 processor")

COUNT, ROWS, SIZE = 1000, 16, 48
DATA = np.random.default_rng(0).integers(0, 256, (COUNT, SIZE), dtype=np.uint8)


def labels_of(width: int) -> np.ndarray | None:
    """Labels of ``width`` float32 numbers a sample; None for 0."""
    rng = np.random.default_rng(1)
    return rng.random((COUNT, width), dtype=np.float32) if width else None


class Jobs:
    """A queue over a few slots, published to as the ring does."""

    def __init__(self, slots: int, width: int, starts: bool) -> None:
        self.labels = labels_of(width)
        shape = None if self.labels is None else (ROWS, width)
        self.outs = [
            (np.zeros((ROWS, SIZE), np.uint8), None if shape is None else np.zeros(shape, "f4"))
            for _ in range(slots)
        ]
        table = np.arange(COUNT, dtype=np.int64) * SIZE if starts else np.empty(0, np.int64)
        self.marks = np.full(slots, FILLING)
        given: Any = [SimpleNamespace(mark=self.marks[i : i + 1].data) for i in range(slots)]
        rows = RowsInMemory(COUNT, DATA.ctypes.data, table, 0, 0 if starts else SIZE)
        one = np.ones(1, np.float32)
        filler = RowFiller.of(
            "copy_batches", one, one, row_bytes=SIZE, out_bytes=SIZE, label_bytes=4 * width
        )
        files = file_table([rows], [] if self.labels is None else [self.labels])
        self.queue = FillQueue(given, RowTables.of([filler], [files], alive=table), 1)
        for slot, (out, of) in enumerate(self.outs):
            self.queue.jobs.memory(slot, address_of(out), address_of(of))
        self.numbers = [np.zeros(ROWS, np.int64) for _ in range(slots)]

    def publish(self, slot: int, numbers: np.ndarray, generation: int) -> None:
        """Add a job behind the others."""
        self.numbers[slot] = numbers
        jobs, control = self.queue.jobs, self.queue.control
        jobs.records(slot, numbers)
        jobs.mark(slot, address_of(self.marks[slot : slot + 1]), generation, REFUSED)
        self.queue.queue[control[PUBLISHED] % len(self.outs)] = slot
        control[PUBLISHED] += 1

    def check(self, slot: int) -> None:
        """What a slot holds is what its job says."""
        numbers = self.numbers[slot]
        rows, labels = self.outs[slot]
        assert (rows[: numbers.size] == DATA[numbers]).all()
        if labels is not None and self.labels is not None:
            assert (labels[: numbers.size] == self.labels[numbers]).all()


def queue_of(reader: AsyncReader) -> FillQueue | None:
    """The copy queue of a reader, which nothing public shows."""
    return reader._ring.fills


@pytest.mark.parametrize("starts", [False, True])
@pytest.mark.parametrize("width", [0, 1, 2, 5])
def test_batches_are_filled_in_turn(width: int, starts: bool) -> None:
    """Slots are filled with the right rows and labels, and marked, as they were published."""
    jobs = Jobs(3, width, starts)
    rng = np.random.default_rng(2)
    for slot, size in enumerate((ROWS, 5, 1)):
        jobs.publish(slot, rng.integers(0, COUNT, size), generation=slot + 7)
    jobs.queue.fill(Meter(), 1)
    jobs.queue.fill(Meter(), 1)
    assert list(jobs.marks) == [7, 8, FILLING]
    assert jobs.queue.waiting()
    jobs.queue.fill_all()
    assert list(jobs.marks) == [7, 8, 9]
    assert not jobs.queue.waiting()
    for slot in range(3):
        jobs.check(slot)
    for generation in (20, 21):  # a worker serves until there is none, and again later
        jobs.publish(0, rng.integers(0, COUNT, ROWS), generation)
        jobs.queue.work(Meter(), threading.RLock(), lambda: None)
        assert jobs.marks[0] == generation
        jobs.check(0)


def test_large_rows_go_past_the_caches() -> None:
    """Slots that would not stay in the last-level cache are filled past it, smaller ones not."""
    for rows, row, streamed in ((64, 1 << 20, True), (2, 32 << 10, False), (1 << 16, 1024, False)):
        stored = SampleSpec((row,), np.dtype(np.uint8), None)
        filler = plan_rows(stored, OutputSpec(), "").filler(rows * row)
        assert filler is not None
        assert bool(filler.terms["stream"][0]) is (streamed and last_level_cache() < 512 << 20)


def test_a_stopped_queue_begins_nothing() -> None:
    """After the reader closed, compiled code copies no other batch and returns at once."""
    jobs = Jobs(1, 1, False)
    jobs.publish(0, np.arange(ROWS), 1)
    jobs.queue.control[STOPPED] = 1
    jobs.queue.fill(Meter(), looks=LOOKS)
    jobs.queue.fill(Meter(), 1)
    assert (jobs.queue.control[CLAIMED], jobs.marks[0]) == (0, FILLING)


@pytest.mark.slow
def test_each_batch_is_copied_once_by_one_of_several_threads() -> None:
    """Three threads serve one queue, a fourth publishes and helps: each job is done once."""
    jobs, meter = Jobs(4, 1, False), Meter()
    over = threading.Event()

    def serve() -> None:
        while not over.is_set():
            jobs.queue.fill(meter, looks=LOOKS)

    threads = [threading.Thread(target=serve) for _ in range(3)]
    for thread in threads:
        thread.start()
    rng = np.random.default_rng(3)
    try:
        for job in range(6000):
            slot = job % 4
            if job >= 4:
                while jobs.marks[slot] != job - 3 + REFUSED:
                    jobs.queue.look(slot)
                    jobs.queue.fill(Meter(), 1)
                jobs.check(slot)
                jobs.outs[slot][0][:] = 0
            jobs.marks[slot] = FILLING
            jobs.publish(slot, rng.integers(0, COUNT, ROWS), job + 1 + REFUSED)
    finally:
        over.set()
        for thread in threads:
            thread.join(HANG)
    jobs.queue.fill_all()
    assert jobs.queue.control[CLAIMED] == jobs.queue.control[PUBLISHED] == 6000


@pytest.mark.parametrize(("nthread", "njob"), [(1, 1), (2, 1), (1, 4), (3, 4)])
def test_batches_are_right_whatever_is_done_with_them(nthread: int, njob: int) -> None:
    """Fetching, taking, keeping and seeking at random: each batch is that of its samples."""
    labels = labels_of(1)
    assert labels is not None
    chance = random.Random(nthread * 10 + njob)
    with AsyncReader(
        data=DATA, labels=labels, batch_size=ROWS, shuffle=True, nthread=nthread, njob=njob
    ) as reader:
        assert queue_of(reader) is not None
        kept = []
        queued = 0
        for _ in range(3000):
            action = chance.random()
            if action < 0.02:
                reader.seek(chance.randrange(3), chance.randrange(len(reader)))
                queued = 0
            elif action < 0.05 and kept:
                kept.pop().release()
            elif queued < njob - len(kept) and (queued == 0 or action < 0.5):
                reader.fetchData()
                queued += 1
            elif queued:
                batch = reader.getNextBatch()
                queued -= 1
                assert (batch.data == DATA[batch.indices]).all()
                assert (batch.labels == labels[batch.indices]).all()
                batch.data[:] = 255  # the caller's, to write
                if action > 0.9 and len(kept) < njob - 1:
                    kept.append(batch.keep())
            for batch in kept:
                assert (batch.data == 255).all()


def test_a_slot_is_ready_as_soon_as_its_rows_are_copied() -> None:
    """A slot's state is the one that compiled code has written: it is READY for whoever asks, with
    no call of the ring in between; and a batch that is wanted at once is there without a worker."""
    with AsyncReader(data=DATA, batch_size=ROWS) as reader:
        fills = queue_of(reader)
        assert fills is not None
        fills.servers = 0
        reader.fetchData()
        (slot,) = (one for one in reader._ring.slots if one.state != "free")
        assert slot.state == "filling"
        fills.fill(Meter(), 1)
        assert slot.state == "ready"
        assert reader._ring.head() is slot
        for step in range(5):
            batch = first(reader) if step else reader.getNextBatch()
            assert (batch.data == DATA[step * ROWS : (step + 1) * ROWS]).all()


def packed(path: Path, side: int = 12) -> Path:
    """A packed set with checksums."""
    return Path(write_hdf5(path / "packed.h5", pack(paint(64, (side, side, 3)))))


@pytest.mark.some(3)
@pytest.mark.parametrize("extra", [{}, {"flip": True}, {"dtype": "float32"}, {"contiguous": True}])
@pytest.mark.parametrize("verify", ["first", "always"])
@pytest.mark.parametrize("storage", ["hdf5", "lmdb", "shards"])
def test_compiled_code_checks_samples(
    tmp_path: Path, storage: str, verify: str, extra: dict[str, object]
) -> None:
    """Batches with samples to be checked are filled by the queue, too. One with a damaged sample
    goes to the workers, with the error, or the zeros, of that sample alone; with "first" the next
    epochs check it again, and no other."""
    from converters import convert

    path, given = packed(tmp_path), {"batch_size": 8, "shuffle": True, "njob": 2, **extra}
    with h5py.File(path) as file:
        data = file["data"][:]
    if storage != "hdf5":
        to = tmp_path / ("set.lmdb" if storage == "lmdb" else "set")
        convert(path, to, **({} if storage == "lmdb" else {"format": "hdf5", "shards": 3}))
        path = to
    with AsyncReader(path=str(path), **given) as reader:
        whole = [[batch.data.copy() for batch in reader] for _ in range(2)]
    for file in [path] if path.is_file() else path.iterdir():
        raw = bytearray(file.read_bytes())
        if (at := raw.find(data[5].tobytes())) >= 0:
            raw[at + 70] ^= 1
            file.write_bytes(raw)
    with AsyncReader(path=str(path), verify=verify, on_error="zero", **given) as reader:
        for epoch in range(2):
            for batch, expected in zip(reader, whole[epoch], strict=True):
                bad = batch.indices == 5
                np.testing.assert_array_equal(batch.mask, ~bad)
                np.testing.assert_array_equal(batch.data[~bad], expected[~bad])
                assert not batch.data[bad].any()
        assert reader.stats().bad_samples == 2
        fills = queue_of(reader)
        assert fills is not None
        assert fills.control[PUBLISHED] >= (4 if storage == "shards" else 14)
        seen = reader._filler.seen
        if verify == "first":
            assert seen is not None
            assert np.flatnonzero(seen == 0).tolist() == [5]
    with AsyncReader(path=str(path), verify=verify, **given) as reader:
        errors = []
        for _ in range(16):
            reader.fetchData()
            try:
                reader.getNextBatch()
            except ChecksumError as exc:
                errors.append(exc)
        assert [exc.index for exc in errors] == [5, 5]


def test_rows_too_short_for_compiled_hashing_are_checked_in_python(tmp_path: Path) -> None:
    """Rows of up to 240 bytes are hashed by the xxhash library: damage is found there, too."""
    path = packed(tmp_path, side=8)
    with h5py.File(path, "r+") as file:
        file["data"][40] ^= 1
    for extra in ({}, {"flip": True}, {"io": "pread"}, {"io": "pread", "contiguous": True}):
        with AsyncReader(path=str(path), batch_size=8, on_error="zero", **extra) as reader:
            bad = [batch.indices[~batch.mask].tolist() for batch in reader]
        assert bad == [[], [], [], [], [], [40], [], []]


@pytest.mark.parametrize("extra", [{}, {"flip": True}, {"contiguous": True}])
def test_compiled_code_reads_files(tmp_path: Path, extra: dict[str, object]) -> None:
    """With io="pread" compiled code reads small rows itself, and checks them. A file that became
    shorter is an error of the batch that needs what is gone, and of no other."""
    path = packed(tmp_path)
    given = {"path": str(path), "batch_size": 8, "njob": 2, "nthread": 2, **extra}
    with AsyncReader(given) as reader:
        expected = [batch.data.copy() for _ in range(2) for batch in reader]
    with AsyncReader(given, io="pread") as reader:
        fills = queue_of(reader)
        assert fills is not None
        for batch, wanted in zip((b for _ in range(2) for b in reader), expected, strict=True):
            np.testing.assert_array_equal(batch.data, wanted)
        assert fills.control[PUBLISHED] >= 16
        with h5py.File(path) as file:
            end = file["data"].id.get_offset() + 12 * 12 * 3 * 61
        os.truncate(path, end)
        wrong = []
        for step in range(8):
            reader.seek(3, step)
            reader.fetchData()
            try:
                np.testing.assert_array_equal(reader.getNextBatch().data.shape[0], 8)
            except SourceError as exc:
                wrong.append((step, exc.what))
        assert wrong == [(7, "the file became shorter while it was read")]


def test_a_refused_batch_that_is_dropped(tmp_path: Path) -> None:
    """seek() waits for batches with a wrong checksum as for others, and goes on elsewhere."""
    path = packed(tmp_path)
    with h5py.File(path, "r+") as file:
        file["data"][3] ^= 1
    for nthread in (1, 2):
        with AsyncReader(path=str(path), batch_size=8, njob=3, nthread=nthread) as reader:
            for _ in range(50):
                for _ in range(3):
                    reader.fetchData()
                reader.seek(0)
            reader.seek(0, 1)
            for batch, step in zip(reader, range(1, 8), strict=True):
                assert batch.step == step


@pytest.mark.parametrize("labels", ["labels", None])
def test_shards_are_only_copied_when_all_are_open(tmp_path: Path, labels: str | None) -> None:
    """Shards are opened when they are read. As soon as all are open they stay so, and their rows
    are copied as those of one file; what is served is the same, and close() closes them."""
    from converters import convert

    before = len(os.listdir("/proc/self/fd"))
    convert(packed(tmp_path), tmp_path / "shards", format="hdf5", shards=4)
    params = {"batch_size": 8, "shuffle": True, "labels_field": labels, "nthread": 2, "njob": 3}
    with (
        AsyncReader(path=tmp_path / "packed.h5", **params) as one,
        AsyncReader(path=tmp_path / "shards", **params) as several,
    ):
        assert queue_of(several) is None
        for _ in range(3):
            for wanted, found in zip(one, several, strict=True):
                np.testing.assert_array_equal(found.data, wanted.data)
                np.testing.assert_array_equal(found.indices, wanted.indices)
                if labels is None:
                    assert found.labels is None
                else:
                    np.testing.assert_array_equal(found.labels, wanted.labels)
        fills = queue_of(several)
        assert fills is not None
        assert fills.control[CLAIMED] > 0
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_few_cold_files_of_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a tenth of many files or less is out of memory, the set counts as one in memory, as
    one file does whose pages are so."""
    names = []
    for number in range(20):
        names.append(tmp_path / f"{number:02}.h5")
        hdf5(names[-1], data=np.full((8, 6, 6, 3), number, np.uint8))
    cold: set[int] = set()
    monkeypatch.setattr(
        bytestore, "cached_share", lambda mapped: float(int(mapped[-1]) not in cold)
    )
    monkeypatch.setattr(bytestore, "_LOOK_AGAIN_BYTES", 1)
    with contextlib.closing(open_source([str(name) for name in names])) as source:
        for cold_now, in_memory in (({3, 7}, True), ({3, 7, 11}, False), ({11}, True)):
            cold.clear()
            cold.update(cold_now)
            for _ in names:  # a file is looked at in each call
                found = source.first.in_memory(1 << 20)
            assert bool(found) is in_memory, cold


@pytest.mark.parametrize("cuts", [[], [20, 21, 50]])
def test_files_that_are_cold(
    cuts: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file, or a list of raw files that are held open, is copied by the queue, and serves what it
    holds; with io="auto" only while all of it is in the page cache."""
    data = np.random.default_rng(4).integers(0, 256, (64, 6, 6, 3), dtype=np.uint8)
    names, last = [], len(cuts)
    for number, part in enumerate(np.split(data, cuts)):
        names.append(tmp_path / f"{number}.h5")
        hdf5(names[-1], data=part, labels=part[:, 0, 0, :1].astype(np.int64))
    mapped: list[object] = []
    cold = {last}

    def share(bytes_: object) -> float:
        if not any(one is bytes_ for one in mapped):
            mapped.append(bytes_)
        return float(next(i for i, one in enumerate(mapped) if one is bytes_) not in cold)

    monkeypatch.setattr(bytestore, "cached_share", share)
    monkeypatch.setattr(bytestore, "_LOOK_AGAIN_BYTES", 1)
    with AsyncReader(path=names, batch_size=8, shuffle=True, layout="NHWC") as reader:
        for cold_now, low, high in (({last}, 0, 4), (set(), 4, 8), ({0}, 0, 4), (set(), 4, 8)):
            cold.clear()
            cold.update(cold_now)
            for _ in range(2):
                queue = queue_of(reader)
                before = 0 if queue is None else queue.control[PUBLISHED]
                for batch in reader:
                    assert (batch.data == data[batch.indices]).all()
                    assert (batch.labels[:, 0] == data[batch.indices, 0, 0, 0]).all()
                queue = queue_of(reader)
                assert queue is not None
                published = queue.control[PUBLISHED] - before
            assert low <= published <= high, cold


@pytest.mark.parametrize(
    "params",
    [{"size": (4, 4)}, {"postprocess": lambda data, labels: None}],
    ids=lambda params: next(iter(params)),
)
def test_what_compiled_code_cannot_fill_alone(params: dict[str, object], tmp_path: Path) -> None:
    """Readers that resize or that have a postprocess have no such queue."""
    with AsyncReader({"path": str(packed(tmp_path)), "batch_size": 8, **params}) as reader:
        assert queue_of(reader) is None
        assert sum(1 for _ in reader) == 8


@pytest.mark.slow
def test_worker_processes_are_not_needed_to_copy(tmp_path: Path) -> None:
    """With worker processes, too, compiled code of this process fills batches without a
    postprocess; those with a damaged sample, and padded ones, go to the processes."""
    path = packed(tmp_path)
    with h5py.File(path, "r+") as file:
        file["data"][3] ^= 1
        data = file["data"][:]
    with AsyncReader(
        path=str(path), batch_size=10, workers="process", last_batch="pad", on_error="zero",
        layout="NHWC", nthread=2, njob=2,
    ) as reader:  # fmt: skip
        fills = queue_of(reader)
        assert fills is not None
        for _ in range(2):
            for batch in reader:
                assert (~batch.mask[batch.indices == 3]).all()
                good = batch.mask
                assert (batch.data[good] == data[batch.indices[good]]).all()
        assert fills.control[PUBLISHED] >= 12
