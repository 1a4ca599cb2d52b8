"""The training loop: batches in order, buffers, epochs, place and state (contract, section 1)."""

import itertools
import json
import pickle
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fakes import MemorySource, open_fake, packed, pictures, write_hdf5, write_lmdb
from observed import in_threads, slot_states, switching_often, until
from painted import COUNT, IMAGES, LABELS, open_reader
from reader_contract import ReaderContract, Served

from asyncreader import (
    AsyncReader,
    Batch,
    FinishedError,
    NothingQueuedError,
    ParamsError,
    QueueFullError,
    ReaderClosedError,
    ReaderStats,
)
from asyncreader.pixels.rows import RowWriter
from asyncreader.sampling.schedule import Cursor


def all_ready(reader: AsyncReader) -> bool:
    """Whether everything in flight is ready."""
    return slot_states(reader)["filling"] == 0


def indices_of(batches: Iterator[Batch]) -> list[list[int]]:
    return [batch.indices.tolist() for batch in batches]


# -- the loop ------------------------------------------------------------------------------------


def test_batch() -> None:
    """A batch knows its data, labels, indices, mask, epoch and step, and unpacks to two."""
    with open_reader() as reader:
        for _ in range(3):
            reader.fetchData()
            batch = reader.getNextBatch()
        assert isinstance(batch, Batch)
        data, labels = batch
        assert data is batch.data
        assert labels is batch.labels
        assert batch.indices.tolist() == [8, 9, 10, 11]
        assert batch.indices.dtype == np.int64
        assert batch.mask.tolist() == [True] * 4
        assert batch.mask.dtype == np.bool_
        assert (batch.epoch, batch.step, len(batch)) == (0, 2, 4)
        assert repr(batch) == "<Batch epoch 0 step 2: 4x6x5x3 uint8>"


@pytest.mark.parametrize(
    ("given", "steps"),
    [
        *(({"last_batch": last}, 6) for last in ("pad", "wrap", "short")),
        ({}, 5),
        ({"batch_size": COUNT}, 1),
    ],
)
def test_end_of_epoch_is_known_with_the_fetch(given: dict[str, Any], steps: int) -> None:
    """fetchData() is True exactly for the last batch of an epoch, and batches come as fetched."""
    with open_reader(njob=2, **given) as reader:
        assert len(reader) == steps
        reader.fetchData()
        for number in range(3 * steps):
            last = reader.fetchData()
            batch = reader.getNextBatch()
            assert (batch.epoch, batch.step) == divmod(number, steps)
            assert last is ((number + 1) % steps == steps - 1)
            np.testing.assert_array_equal(batch.data[batch.mask], IMAGES[batch.indices[batch.mask]])


def test_few_batches_in_flight_keep_all_threads_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch that is fetched with nothing in flight is cut for all threads, the next for fewer."""
    monkeypatch.setattr("asyncreader.reader.SPLIT_BYTES", 0)  # as large batches are
    source = MemorySource(IMAGES, LABELS, checksums=True)
    read, sizes = source.read_into, list[int]()

    def count(writer: RowWriter) -> None:
        sizes.append(writer.job.records.size)
        read(writer)

    monkeypatch.setattr(source, "read_into", count)
    monkeypatch.setattr("asyncreader.pipeline.fill_batch.BatchFiller.find_tables", lambda _: None)
    with open_fake(monkeypatch, source, batch_size=8, nthread=4, njob=4) as reader:
        for parts in (4, 2, 2, 1):
            sizes.clear()
            reader.fetchData()
            until(lambda parts=parts: len(sizes) == parts)
            assert sizes == [8 // parts] * parts
        sizes.clear()
        reader.getNextBatch()
        reader.fetchData()
        until(lambda: len(sizes) == 1)


def test_misuse_at_once() -> None:
    """Too many fetches, nothing fetched, and calls after close are typed errors at once."""
    reader = open_reader(njob=2)
    with pytest.raises(NothingQueuedError, match=r"fetchData\(\)"):
        reader.getNextBatch()
    reader.fetchData()
    reader.fetchData()
    before = reader.state_dict()
    for _ in range(3):
        with pytest.raises(QueueFullError, match="njob = 2"):
            reader.fetchData()
    assert reader.state_dict() == before
    assert [reader.getNextBatch().step for _ in range(2)] == [0, 1]
    with pytest.raises(NothingQueuedError):
        reader.getNextBatch()
    # nothing was skipped or lost by the errors
    reader.fetchData()
    assert reader.getNextBatch().step == 2
    reader.close()
    for call in (
        reader.fetchData,
        reader.getNextBatch,
        lambda: next(iter(reader)),
        lambda: reader.seek(0),
        reader.state_dict,
        lambda: reader.load_state_dict(before),
        lambda: pickle.dumps(reader),
    ):
        with pytest.raises(ReaderClosedError):
            call()
    assert "closed" in repr(reader)


# -- buffers -------------------------------------------------------------------------------------


@pytest.mark.parametrize("njob", [1, 3])
def test_several_threads_in_loops(njob: int) -> None:
    """Threads in loops over one reader that copies share each epoch: each batch comes once."""
    with switching_often():
        for _ in range(20):
            with open_reader(njob=njob, epochs=1, copy=True) as reader:
                taken = in_threads(4, lambda: [batch.step for batch in reader])
            assert sorted(itertools.chain(*taken)) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("njob", [1, 2, 3])
def test_addresses(njob: int) -> None:
    """Over 1,000 batches the arrays have exactly njob + 1 addresses, each on a page."""
    data, labels = set(), set()
    with open_reader(njob=njob, nthread=2, shuffle=True) as reader:
        for batch in itertools.chain.from_iterable(iter(reader) for _ in range(200)):
            data.add(batch.data.ctypes.data)
            assert batch.labels is not None
            labels.add(batch.labels.ctypes.data)
            assert (batch.data[:, 0, 0, 0] == batch.indices).all()
    assert len(data) == len(labels) == njob + 1
    assert all(address % 4096 == 0 for address in data | labels)


def test_keep_and_release() -> None:
    """keep() holds a batch beyond the next one and lowers what can be in flight by one."""
    with open_reader(njob=3) as reader:
        for _ in range(3):
            reader.fetchData()
        first = reader.getNextBatch().keep()
        second = reader.getNextBatch()
        assert second.keep() is second
        third = reader.getNextBatch()
        with pytest.raises(QueueFullError, match="njob - 1 = 2"):
            third.keep()
        # two kept of three: one may be in flight
        reader.fetchData()
        with pytest.raises(QueueFullError, match="2 kept"):
            reader.fetchData()
        fourth = reader.getNextBatch()
        for batch, step in ((first, 0), (second, 1), (fourth, 3)):
            np.testing.assert_array_equal(batch.data, IMAGES[step * 4 : step * 4 + 4])
        first.release()
        first.release()
        reader.fetchData()
        reader.fetchData()
        with pytest.raises(QueueFullError):
            reader.fetchData()
        with pytest.raises(QueueFullError, match="given back"):
            first.keep()
        np.testing.assert_array_equal(second.data, IMAGES[4:8])


@pytest.mark.parametrize("debug", [False, True])
@pytest.mark.parametrize("workers", ["thread", pytest.param("process", marks=pytest.mark.slow)])
def test_a_batch_that_was_given_back(workers: str, debug: bool) -> None:
    """data and labels of a batch given back raise and name copy=True; arrays taken out stay."""
    with open_reader(njob=3, workers=workers, debug=debug) as reader:
        loop = iter(reader)
        kept = next(loop).keep()
        batch = next(loop)
        data, labels = batch
        assert batch.data is data
        assert batch.labels is labels
        with pytest.raises(ParamsError):
            reader.seek(-1)
        assert batch.data is data  # what failed gave nothing back
        next(loop)
        for read in (lambda: batch.data, lambda: batch.labels, lambda: tuple(batch)):
            with pytest.raises(ReaderClosedError, match="copy=True"):
                read()
        assert (batch.epoch, batch.step, len(batch), batch.mask.all()) == (0, 1, len(data), True)
        assert "step 1" in repr(batch)
        assert data.shape == reader.data_shape  # the array is the caller's, whatever fills it
        assert kept.data.shape == data.shape
        kept.release()
        with pytest.raises(ReaderClosedError, match="given back"):
            _ = kept.data
        reader.seek(0)
        listed = list(reader)
        assert listed[-1].data is not None
        with pytest.raises(ReaderClosedError, match="epoch 0 step 0"):
            _ = [data for data, _ in listed]


@pytest.mark.parametrize("njob", [1, 3])
def test_arrays_that_are_collected(njob: int) -> None:
    """A caller who collects the arrays of batches gets an error that names copy=True, not a list of
    overwritten arrays; the batch behind it comes as ever."""
    with open_reader(batch_size=2, njob=njob) as reader:
        with pytest.raises(ReaderClosedError, match="copy=True"):
            _ = [data for data, _ in reader]
        assert next(iter(reader)).step == njob + 3


def test_arrays_that_may_be_held() -> None:
    """A variable left over, batches instead of their arrays, kept batches and private copies are
    no error."""
    with open_reader(batch_size=2, njob=1) as reader:
        left_over, _ = next(iter(reader))
        steps = [data.shape[0] for data, labels in reader]
        batches = list(reader)
        kept = [batch.data.copy() for batch in reader]
    with open_reader(batch_size=2, njob=1, copy=True) as reader:
        copies = [data for data, _ in reader]
    assert left_over.shape[0] == 2
    assert len(steps) + 1 == len(batches) == len(kept) == len(copies) > 4


def test_keeping_a_copy() -> None:
    """With copy=True keep() has nothing to do, whatever njob is: nothing fills up."""
    with open_reader(copy=True, njob=1, debug=True) as reader:
        kept = [batch.keep() for batch in reader]
        assert [batch.labels[0, 0] for batch in kept] == [0, 40, 80, 120, 160]
        for batch in kept:
            batch.release()
        assert [batch.labels[0, 0] for batch in kept] == [0, 40, 80, 120, 160]
        assert len(list(reader)) == 5
    assert [data.shape for data, _ in kept] == [reader.data_shape] * 5


HOLDERS: dict[str, Callable[[Any], object]] = {
    "batch": lambda batch: batch,
    "array": lambda batch: batch.data,
    "slice": lambda batch: batch.data[1:3, 0],
    "memoryview": lambda batch: memoryview(batch.data[2]),
    "other dtype": lambda batch: batch.data[0].transpose(1, 2, 0).reshape(-1).view(np.int8),
    "labels": lambda batch: batch.labels,
}


@pytest.mark.parametrize("held", HOLDERS)
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_copies_are_private_whoever_holds_them(held: str, layout: str) -> None:
    """With copy=True the memory of a batch is used again only when nothing refers to it: not a
    view, a memoryview or another dtype of it."""
    holder = HOLDERS[held]
    with open_reader(copy=True, layout=layout, njob=2, epochs=8, shuffle=True) as reader:
        kept: list[tuple[Any, bytes]] = []
        for step, batch in enumerate(batch for _ in range(8) for batch in reader):
            pixels = batch.data if layout == "NHWC" else batch.data.transpose(0, 2, 3, 1)
            assert pixels.flags.c_contiguous
            np.testing.assert_array_equal(pixels, IMAGES[batch.indices])
            np.testing.assert_array_equal(batch.labels, LABELS[batch.indices])
            if step % 3 == 0:
                one = holder(batch)
                kept.append((one, content(one)))
            del batch
            assert all(content(one) == was for one, was in kept)


def content(held: Any) -> bytes:
    """The bytes of what a caller kept."""
    array = held.data if hasattr(held, "indices") else held
    return np.asarray(array).tobytes()


def test_memory_of_dropped_copies_is_used_again() -> None:
    """With copy=True a loop that drops its batches has them in the same memory again and again; one
    that keeps them gets memory of its own for each."""
    with open_reader(copy=True, njob=2, epochs=20, shuffle=True) as reader:
        places = [batch.data.ctypes.data for _ in range(10) for batch in reader]
        assert len(set(places)) <= 6  # three slots, and as many batches that were handed out
        kept = [batch.data for _ in range(10) for batch in reader]
        assert len({array.ctypes.data for array in kept}) == len(kept) == 50


@pytest.mark.parametrize("failure", [OSError, KeyboardInterrupt])
def test_a_copy_that_fails_changes_nothing(
    failure: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where there is no memory for one more batch with copy=True, or Ctrl-C comes, that batch is
    lost, and no two slots have one memory: all later batches are right, and so are those held."""
    with open_reader(copy=True, njob=3, shuffle=True, layout="NHWC") as reader:
        more, calls = reader._ring._more, 0
        assert more is not None

        def failing() -> Any:
            nonlocal calls
            calls += 1
            if calls in (3, 4, 6):
                raise failure
            return more()

        monkeypatch.setattr(reader._ring, "_more", failing)
        held, lost = [], 0
        for _ in range(40):
            while reader._ring.can_begin():
                reader.fetchData()
            try:
                held.append(reader.getNextBatch())
            except failure:
                lost += 1
            memories = [id(slot.memory) for slot in reader._ring.slots]
            assert len(set(memories)) == len(memories)
            for batch in held:
                np.testing.assert_array_equal(batch.data, IMAGES[batch.indices])
            del held[:-5]
        assert lost == 3


# -- epochs and loops ----------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["break", "next"])
def test_the_rest_of_an_epoch_is_told_of(how: str) -> None:
    """The first loop that begins inside an epoch because the one before ended early warns and names
    seek(); no other does, and none after a seek, a resume or calls."""

    def peek(loader: Any) -> None:
        if how == "next":
            next(iter(loader))
            return
        for _ in loader:
            break

    def quiet(loader: Any, count: int) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert len(list(loader)) == count

    arrays: dict[str, Any] = {"data": IMAGES, "labels": LABELS, "batch_size": 4, "copy": True}
    with AsyncReader(arrays) as loader:
        quiet(loader, 5)
        peek(loader)
        state = loader.state_dict()
        loader.seek(2, 1)
        quiet(loader, 4)
        peek(loader)
        loader.load_state_dict(state)
        quiet(loader, 4)
        quiet(loader, 5)
        peek(loader)
        with pytest.warns(UserWarning, match=r"inside epoch 3, at step 1 of 5.*seek\(3\)"):
            assert len(list(loader)) == 4
        peek(loader)
        quiet(loader, 4)


def test_break_at_the_last_batch() -> None:
    """After a break at the last batch of an epoch nothing of it is left for the next loop."""
    with open_reader(shuffle=True, njob=2) as reader:
        for batch in reader:
            if batch.step == 4:
                break
        assert [batch.epoch for batch in reader] == [1] * 5


def test_loop_and_calls_mix() -> None:
    """A loop goes on where calls stopped, and calls where a loop stopped."""
    with open_reader(njob=2) as reader:
        reader.fetchData()
        assert reader.getNextBatch().step == 0
        reader.fetchData()
        assert [batch.step for batch in reader] == [1, 2, 3, 4]
        assert reader.getNextBatch().step == 0  # fetched ahead by the loop
        assert [batch.step for batch in reader] == [1, 2, 3, 4]


class Watched(AsyncReader):
    """Counts the fetches."""

    fetched = 0

    def fetchData(self) -> bool:
        self.fetched += 1
        return super().fetchData()


@pytest.mark.parametrize("njob", [1, 3])
def test_loop_prefetches_across_the_epoch(njob: int) -> None:
    """While the caller works, njob batches are in flight, also beyond the epoch's end."""
    with Watched(data=IMAGES, batch_size=4, njob=njob) as reader:
        for number, _ in enumerate(reader):
            assert reader.fetched == number + 1 + njob
            assert reader.stats().queue_depth == njob
        assert reader.fetched == 5 + njob
        for number, batch in enumerate(reader):
            assert (batch.epoch, batch.step) == (1, number)
            assert reader.fetched == 5 + number + 1 + njob


def test_epochs() -> None:
    """With epochs=N a fetch past the last batch is FinishedError; further loops are empty."""
    with open_reader(epochs=2, njob=2) as reader:
        assert len([*reader, *reader]) == 10
        assert list(reader) == []
        assert list(reader) == []
        with pytest.raises(FinishedError, match="all 2 epochs"):
            reader.fetchData()
        with pytest.raises(NothingQueuedError):
            reader.getNextBatch()
        reader.seek(1, 3)
        assert [reader.fetchData(), reader.fetchData()] == [False, True]
        with pytest.raises(FinishedError):
            reader.fetchData()  # which takes nothing away that was fetched before
        assert [reader.getNextBatch().step for _ in range(2)] == [3, 4]
        reader.seek(1, 3)
        assert [batch.step for batch in reader] == [3, 4]
        reader.seek(7)
        assert list(reader) == []
        with pytest.raises(FinishedError):
            reader.fetchData()


def test_seek() -> None:
    """seek() drops what is queued and goes to any batch of any epoch, forwards and backwards."""
    with open_reader(shuffle=True, njob=3, nthread=2) as reader:
        epochs = [indices_of(iter(reader)) for _ in range(3)]
        for epoch, step in ((0, 0), (2, 4), (1, 2), (0, 3), (2, 0)):
            reader.seek(epoch, step)
            assert reader.stats().queue_depth == 0
            reader.fetchData()
            batch = reader.getNextBatch()
            assert (batch.epoch, batch.step) == (epoch, step)
            assert batch.indices.tolist() == epochs[epoch][step]
            for _ in range(3):
                reader.fetchData()
        reader.seek(np.int64(10**12), np.int32(1))
        reader.fetchData()
        assert reader.getNextBatch().epoch == 10**12


@pytest.mark.parametrize(
    ("epoch", "step"), [(-1, 0), (0, 5), (0, -1), (1.0, 0), ("0", 0), (0, True)]
)
def test_seek_to_nowhere(epoch: Any, step: Any) -> None:
    """A place that is not there is a ParamsError, and nothing was dropped."""
    with open_reader() as reader:
        reader.fetchData()
        with pytest.raises(ParamsError):
            reader.seek(epoch, step)
        assert reader.getNextBatch().step == 0


# -- state ---------------------------------------------------------------------------------------


def test_state_is_json() -> None:
    """A state is JSON and says what was delivered, not what was fetched ahead."""
    with open_reader(shuffle=True, seed=2**64 - 1, njob=3) as reader:
        before = reader.state_dict()
        for _ in range(3):
            reader.fetchData()
        assert reader.state_dict() == before
        reader.getNextBatch()
        reader.getNextBatch()
        state = reader.state_dict()
        assert json.loads(json.dumps(state)) == state
        assert (state["epoch"], state["samples"], state["steps"]) == (0, 8, 2)
        assert state["seed"] == 2**64 - 1
        assert set(state) == {
            *("epoch", "samples", "steps", "global_batch", "seed", "shuffle", "window", "block"),
            *("last_batch", "order_version", "fingerprint", "files"),
        }


class TestPlain(ReaderContract):
    """Images in memory are the same in every way of reading."""

    @pytest.fixture(
        params=itertools.product(["drop", "pad", "wrap", "short"], [True, "replacement"])
    )
    def served(self, request: pytest.FixtureRequest) -> Served:
        def expected(batch: Batch) -> None:
            images = IMAGES[batch.indices[batch.mask]]
            left = (batch.data[batch.mask] == images).all(axis=(1, 2, 3))
            right = (batch.data[batch.mask] == images[:, :, ::-1]).all(axis=(1, 2, 3))
            assert (left | right).all()

        last, shuffle = request.param
        given = {"data": IMAGES, "labels": LABELS, "layout": "NHWC", "seed": 5, "flip": True}
        return Served({**given, "last_batch": last, "shuffle": shuffle}, expected, COUNT)


CHANGES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "seed": ({}, {"seed": 1}),
    "shuffle": ({}, {"shuffle": True}),
    "window": (
        {"shuffle": "block", "shuffle_window": 60_000},
        {"shuffle": "block", "shuffle_window": 30_000},
    ),
    "last_batch": ({}, {"last_batch": "pad"}),
    "fingerprint": ({}, {"data": IMAGES + 1}),
    "fingerprint of another length": ({}, {"data": IMAGES[:20], "labels": LABELS[:20]}),
    "fingerprint of a subset": ({"subset": [1, 2, 3, 4, 5]}, {"subset": [1, 2, 3, 4, 6]}),
    "fingerprint of a slice": ({"subset": slice(0, 20)}, {"subset": slice(1, 21)}),
}


@pytest.mark.parametrize("what", CHANGES)
def test_state_of_other_training_is_refused(what: str) -> None:
    """A state that does not match is refused by the field that differs, and nothing moved."""
    before, after = CHANGES[what]
    with open_reader(**before) as reader:
        reader.seek(3)
        state = reader.state_dict()
    with open_reader(**after) as reader:
        reader.seek(1)
        reader.fetchData()
        mine = reader.state_dict()
        with pytest.raises(ParamsError, match=what.split()[0]):
            reader.load_state_dict(state)
        assert reader.state_dict() == mine
        assert reader.getNextBatch().epoch == 1


#: Numbers of a state that make no sense, or are of another version.
GARBLED: list[dict[str, Any]] = [
    *({name: value} for name in ("epoch", "samples", "steps") for value in (-1, "4", 1.5, True)),
    *({"order_version": 1}, {"block": 7}, {"samples": 10**9}, {"fingerprint": None}),
]


def test_garbled_state_is_refused() -> None:
    """A state with a wrong version or senseless numbers is a ParamsError."""
    with open_reader() as reader:
        state = reader.state_dict()
        for change in GARBLED:
            with pytest.raises(ParamsError):
                reader.load_state_dict(state | change)
        for name in state.keys() - {"files"}:
            with pytest.raises(ParamsError, match=name):
                reader.load_state_dict({k: v for k, v in state.items() if k != name})
        for other in (None, [], "state", 5):
            with pytest.raises(ParamsError, match="not a state"):
                reader.load_state_dict(other)  # type: ignore[arg-type]
        reader.load_state_dict(state)


# -- the same bytes, whatever the machinery ------------------------------------------------------


LARGE = pictures(24, (120, 100, 3))


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Sets of large images."""
    folder = tmp_path_factory.mktemp("large")
    return {
        "raw": write_hdf5(folder / "raw.h5", packed(LARGE)),
        "jpeg": write_lmdb(folder / "jpeg.lmdb", packed(LARGE, "jpeg")),
    }


class TestLarge(ReaderContract):
    """Batches that are cut into parts, as those above a MiB and encoded ones are, are the same in
    every way of reading."""

    @pytest.fixture(params=["raw", "jpeg"])
    def served(self, request: pytest.FixtureRequest, large: dict[str, str]) -> Served:
        def expected(batch: Batch) -> None:
            if request.param == "raw":
                images = LARGE[batch.indices] * np.float32(1 / 255)
                np.testing.assert_allclose(batch.data, images, rtol=1e-6)

        given: dict[str, Any] = {"path": large[request.param], "layout": "NHWC", "shuffle": True}
        if request.param == "raw":
            given |= {"dtype": "float32", "scale": 1 / 255}
        else:
            given |= {"size": (40, 40), "crop": "random-resized", "flip": True}
        return Served(given, expected, 24, (8, 2, 8))


# -- how it is doing -----------------------------------------------------------------------------


def test_stats() -> None:
    """stats() is a frozen snapshot of what was handed out, waited for and worked."""
    with open_reader(njob=2, nthread=3) as reader:
        empty = reader.stats()
        assert isinstance(empty, ReaderStats)
        assert (empty.batches, empty.samples, empty.bytes, empty.elapsed_seconds) == (0, 0, 0, 0)
        assert empty.verdict == "nothing served yet"
        reader.fetchData()
        reader.fetchData()
        reader.getNextBatch()
        stats = reader.stats()
        assert (stats.batches, stats.samples, stats.bytes) == (1, 4, 4 * 90)
        assert (stats.queue_depth, stats.nthread, stats.bad_samples) == (1, 3, 0)
        assert stats.elapsed_seconds > 0
        assert stats.read_seconds > 0
        assert 0 <= stats.wait_share <= 1
        assert stats.samples_per_second > 0
        reader.getNextBatch()
        assert stats.batches == 1
        with pytest.raises(AttributeError):
            stats.batches = 5  # type: ignore[misc]


def stats(**given: Any) -> ReaderStats:
    """A snapshot of 10 seconds."""
    values: dict[str, Any] = dict.fromkeys(
        ("samples", "bytes", "read_seconds", "decode_seconds", "postprocess_seconds"), 0
    )
    values |= {"batches": 9, "wait_seconds": 0.0, "elapsed_seconds": 10.0, "queue_depth": 1}
    return ReaderStats(**{**values, "bad_samples": 0, "bad_list": (), "nthread": 2} | given)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({}, "the consumer is the bottleneck"),
        ({"wait_seconds": 0.5}, "the consumer is the bottleneck"),
        (
            {"wait_seconds": 5, "decode_seconds": 18},
            "loader is the bottleneck: decode; raise nthread",
        ),
        ({"wait_seconds": 5, "read_seconds": 19}, "bottleneck: read; raise nthread"),
        ({"wait_seconds": 5, "postprocess_seconds": 19}, "bottleneck: postprocess; raise nthread"),
        ({"wait_seconds": 5, "read_seconds": 3}, "raise njob"),
        ({"wait_seconds": 5, "decode_seconds": 18, "cores": 3}, "decode; raise nthread"),
        ({"wait_seconds": 5, "decode_seconds": 18, "cores": 2}, "already; 'asyncreader doctor'"),
        ({"wait_seconds": 5, "postprocess_seconds": 19, "cores": 1}, "has a worker already ("),
        ({"wait_seconds": 5, "read_seconds": 19, "cores": 2}, "read; raise nthread"),
    ],
)
def test_verdict(given: dict[str, Any], says: str) -> None:
    """The verdict names who waits for whom, and what to raise."""
    assert says in stats(**given).verdict


@pytest.mark.parametrize(
    ("given", "reader", "dataset"),
    [
        ({"window": 2}, "10 windows,", "10 windows, 2 episodes of 6 rows"),
        ({"window": 2, "window_every": "episode"}, "2 windows,", "2 windows"),
        ({"window": "episode", "max_length": 6}, "2 episodes,", "2 episodes of 6 rows"),
        ({}, "12 samples,", "12 samples, 2 episodes"),
        ({"episodes": None, "patch": (2, 2)}, "2 patches,", "2 patches, 2 volumes"),
        ({"patch": (2, 2), "epoch_samples": 9}, "9 patches an epoch,", "2 patches"),
        ({"shuffle": "replacement", "epoch_samples": 7}, "7 samples an epoch,", "12 samples"),
    ],
)
def test_repr_calls_samples_what_they_are(given: dict[str, Any], reader: str, dataset: str) -> None:
    """Windows, episodes and patches are called so, and draws are those of an epoch."""
    data = np.zeros((2, 6, 4), np.float32)
    rows = {"data": data, "episodes": "axis"} if "patch" not in given else {"data": data}
    with AsyncReader({**rows, **given}) as made:
        assert reader in repr(made)
        assert f": {dataset}" in repr(made.dataset)


def test_repr_shows_live_state(tmp_path: Path) -> None:
    """repr() says what is served, whether it is verified, the place, and who owns the slots."""
    path = write_hdf5(tmp_path / "train.h5", packed(IMAGES))
    with AsyncReader(path=path, batch_size=4, njob=2) as reader:
        assert repr(reader) == (
            "<AsyncReader train.h5 (HDF5, raw, 22 samples, verify first) epoch 0 batch 0/5, "
            "slots 3 free>"
        )
        reader.fetchData()
        until(lambda: all_ready(reader))
        reader.getNextBatch()
        reader.fetchData()
        until(lambda: all_ready(reader))
        assert "batch 1/5, slots 1 free, 1 ready, 1 held" in repr(reader)
        page = reader._repr_html_()
        for words in ("train.h5", "batch 1/5", "1 free, 1 ready, 1 held", "verify first"):
            assert words in page
        assert page.count("<tr>") == page.count("</tr>") == 4
    assert repr(reader) == "<AsyncReader train.h5 closed>"
    assert reader._repr_html_() == "<code>&lt;AsyncReader train.h5 closed&gt;</code>"
    with open_reader() as reader:
        assert "unverified: no checksums" in repr(reader)


def test_cursor_and_go_to() -> None:
    """A reader goes on where another one's cursor stood, over an epoch's end as well."""
    with open_reader(njob=2) as reader, open_reader(njob=2, nthread=2) as other:
        assert reader.cursor == Cursor(0, 0, 0)
        for _ in range(2):
            for number, batch in enumerate(reader):
                end = reader.cursor
                assert (end.epoch, end.step) == (batch.epoch, number + 1)
                assert end.position == (number + 1) * 4
                assert batch.last is (number + 1 == len(reader))
        other.go_to(end)
        assert other.cursor == Cursor(2, 0, 0)  # behind an epoch's end comes the next one's head
        other.go_to(Cursor(1, 8, 2))
        with open_reader() as expected:
            expected.seek(1, 2)
            assert indices_of(other) == indices_of(expected)


def test_go_to_where_the_reader_stands_keeps_what_is_queued() -> None:
    """Batches that were fetched ahead are not dropped where nothing moves."""
    with open_reader(njob=2) as reader:
        reader.fetchData()
        reader.go_to(reader.cursor)
        assert reader.getNextBatch().step == 0


@pytest.mark.parametrize("cursor", [Cursor(0, 10**9, 0), Cursor(-1, 0, 0), Cursor(0, 1.5, 0)])
def test_go_to_a_place_that_is_not_there(cursor: Cursor) -> None:
    """A cursor of no place in this data set is a ParamsError, and the reader stays."""
    with open_reader() as reader:
        with pytest.raises(ParamsError, match="cursor"):
            reader.go_to(cursor)
        assert reader.cursor == Cursor()


@pytest.mark.filterwarnings("default:last_batch")
def test_samples_that_no_epoch_serves() -> None:
    """Without shuffle, last_batch="drop" leaves the same samples out of each epoch: a warning says
    how many, and what serves them. Where none or others are left out each time, there is none."""
    given: dict[str, Any] = {"data": np.arange(22.0), "batch_size": 4}
    with pytest.warns(UserWarning, match='leaves out 2 samples of 22 .*"short" serves all'):
        AsyncReader(given).close()
    with pytest.warns(UserWarning, match='leaves out 6 samples of 22 .*"pad" serves all'):
        AsyncReader(given, world_size=2, rank=0).close()
    others: list[dict[str, Any]] = [
        *({"shuffle": True}, {"last_batch": "short"}, {"batch_size": 11}, {"subset": slice(0, 8)}),
        *({"shuffle": "replacement"}, {"weights": np.ones(22)}, {"world_size": 2, "rank": 1}),
    ]
    for more in others:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            AsyncReader({**given, **more}).close()
