"""ml-pyxis by its numbers (X1-X19), and its files byte for byte."""

import itertools
import os
import pickle
import random
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import face_sources as made
import foreign_sets as foreign
import lmdb
import numpy as np
import pytest
from observed import HANG, in_threads

from asyncreader import (
    FormatError,
    ParamsError,
    ReaderClosedError,
    SampleError,
    SourceError,
    SourceNotFoundError,
)
from asyncreader.faces import OrderedEnqueuer

px = pytest.importorskip("asyncreader.faces.pyxis", reason="needs msgpack")

COUNT = 23
INPUT = np.random.default_rng(1).random((COUNT, 4, 3)).astype("f4")
TARGET = np.arange(COUNT, dtype="u1")

#: One sample as ml-pyxis 0.4 writes it: float32 (2, 2) "input", uint8 scalar "target".
FLOATS = np.array([[0.5, -1.0], [2.0, 3.25]], "<f4")
SAMPLE = (
    b"\x82"
    b"\xa5input\xc4\x35"
    b"\x84\xc4\x04type\x02\xc4\x05dtype\xa3<f4\xc4\x05shape\x92\x02\x02\xc4\x04data\xc4\x10"
    + FLOATS.tobytes()
    + b"\xa6target\xc4\x24"
    b"\x84\xc4\x04type\x02\xc4\x05dtype\xa3|u1\xc4\x05shape\x90\xc4\x04data\xc4\x01\x07"
)


def write_raw(path: Path, data: dict[bytes, bytes], meta: dict[bytes, bytes]) -> str:
    """An ml-pyxis file made of given bytes, with plain lmdb."""
    return foreign.write_named(path, {b"data_db": data, b"meta_db": meta})


def read_raw(path: str) -> dict[bytes, dict[bytes, bytes]]:
    """All entries of both databases, with plain lmdb."""
    found = {}
    with lmdb.open(path, readonly=True, lock=False, max_dbs=2) as env:
        for name in (b"data_db", b"meta_db"):
            database = env.open_db(name, create=False)
            with env.begin(db=database) as transaction:
                found[name] = {bytes(k): bytes(v) for k, v in transaction.cursor()}
    return found


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "set")


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A set of 23 samples; only read."""
    path = str(tmp_path_factory.mktemp("pyxis") / "set")
    with px.Writer(path, 10) as writer:
        writer.put_samples("input", INPUT, "target", TARGET)
    return path


@pytest.fixture
def reader(shared: str) -> Iterator[Any]:
    with px.Reader(shared) as reader:
        yield reader


# -- the file ------------------------------------------------------------------------------------


def test_written_and_read_byte_for_byte(path: str) -> None:
    """What is written is what ml-pyxis writes: 107 bytes of one sample, and the count. Such bytes
    are read, whoever wrote them."""
    assert len(SAMPLE) == 107
    with px.Writer(path, 10) as writer:
        writer.put_samples({"input": FLOATS[None], "target": np.array([7], "u1")})
    assert read_raw(path) == {
        b"data_db": {b"0000000000": SAMPLE},
        b"meta_db": {b"nb_samples": b"1"},
    }
    with px.Reader(path) as reader:
        sample = reader[0]
        assert list(sample) == ["input", "target"]
        assert (sample["input"] == FLOATS).all()
        assert sample["input"].dtype == np.dtype("<f4")
        assert (sample["target"], sample["target"].shape) == (7, ())


def test_read_files_of_python_2(tmp_path: Path) -> None:
    """Names, dtypes and data may be msgpack text or bytes, and a value a string."""
    inner = b"\x84\xa4type\x02\xa5dtype\xa3>i2\xa5shape\x91\x02\xa4data\xa4\x00\x01\xff\xfe"
    text = b"\x82\xc4\x04type\x01\xc4\x04data\xa3abc"
    # a raw16, as msgpack of old wrote bytes that are longer than 31
    value = b"\x82\xc4\x01x\xda" + len(inner).to_bytes(2, "big") + inner
    value += b"\xa1s" + b"\xc4" + bytes([len(text)]) + text
    path = write_raw(tmp_path / "a", {b"0000000000": value}, {b"nb_samples": b"1"})
    sample = px.Reader(path)[0]
    assert sample["x"].tolist() == [1, -2]
    assert sample["x"].dtype == np.dtype(">i2")
    assert sample["s"] == "abc"


# -- features ------------------------------------------------------------------------------------


def test_X1_dict_or_alternating_arguments(path: str) -> None:
    """put_samples takes a dict or names and arrays in turn, many to a sample."""
    many = {f"key {i}": np.arange(3) + i for i in range(40)}
    with px.Writer(path, 10) as writer:
        writer.put_samples(many)
        writer.put_samples(*itertools.chain.from_iterable(many.items()))
        assert writer.nb_samples == 6
    found = read_raw(path)[b"data_db"]
    assert found[b"0000000001"] == found[b"0000000004"]
    assert px.Reader(path).get_data_keys(5) == list(many)


@pytest.mark.parametrize(
    "dtype", ["u1", "<i8", ">i8", "<f2", ">f4", "f8", "?", "c8", "S5", "U3", "M8[s]"]
)
@pytest.mark.parametrize("shape", [(), (3,), (2, 0, 3), (2, 3, 4)])
def test_X2_any_dtype_and_shape(path: str, dtype: str, shape: tuple[int, ...]) -> None:
    """Arrays of every plain dtype and shape, scalars included, come back the same."""
    kind = np.dtype(dtype)
    size = 2 * int(np.prod(shape))
    values = np.arange(1, size + 1).astype(kind).reshape(2, *shape)
    with px.Writer(path, 10) as writer:
        writer.put_samples("x", np.asfortranarray(values))
    with px.Reader(path) as reader:
        for i in (0, 1):
            assert reader[i]["x"].dtype == kind
            assert reader[i]["x"].shape == shape
            assert (reader[i]["x"] == values[i]).all()
            assert reader[i]["x"].flags.writeable


def test_X3_samples_may_differ_in_the_store(path: str) -> None:
    """Samples of other shapes or without a key are stored and read; a batch of them is an error
    that names sample and key."""
    with px.Writer(path, 10) as writer:
        for size in (2, 2, 5):
            writer.put_samples("x", np.ones((1, size)), "y", np.arange(1))
        writer.put_samples("y", np.arange(1))
    with px.Reader(path) as reader:
        assert [reader[i]["x"].size for i in range(3)] == [2, 2, 5]
        assert reader.get_samples(0, 2)["x"].shape == (2, 2)
        with pytest.raises(SampleError, match=r"record 2.*\(5,\).*\(2,\)"):
            reader.get_samples(1, 2)
        with pytest.raises(SampleError, match=r"no 'x'.*record 3"):
            reader.get_samples(2, 2)
        with pytest.raises(SampleError, match="record 2"):
            list(px.SimpleBatch(reader, "x", 3, endless=False))
        assert len(next(px.SimpleBatch(reader, "y", 4))) == 4


def test_X4_random_access(reader: Any) -> None:
    """By number, negative too, numpy's too, by slice; IndexError, TypeError and KeyError else."""
    assert len(reader) == COUNT
    for i in (0, 7, COUNT - 1, -1, -COUNT, np.int64(3), np.uint8(4)):
        assert (reader[i]["input"] == INPUT[i]).all()
        assert reader[i]["target"] == TARGET[i]
    for key in (slice(None), slice(3, 9, 2), slice(None, None, -1), slice(50, 60)):
        assert [int(s["target"]) for s in reader[key]] == TARGET[key].tolist()
    samples = reader.get_samples(4, 6)
    assert (samples["input"] == INPUT[4:10]).all()
    assert (samples["target"] == TARGET[4:10]).all()
    assert (reader.get_data_value(3, "input") == INPUT[3]).all()
    for kind, call, *wrong in (
        *((IndexError, reader.__getitem__, i) for i in (COUNT, -COUNT - 1)),
        *((TypeError, reader.__getitem__, i) for i in ("1", 1.0, None, [1])),
        *((IndexError, reader.get_samples, i, 2) for i in (-1, COUNT - 1)),
        (KeyError, reader.get_data_value, 3, "nothing"),
        (IndexError, reader.get_sample, -1),
    ):
        with pytest.raises(kind):
            call(*wrong)


def test_X5_says_what_is_in_it(reader: Any, shared: str, path: str) -> None:
    """Names, dtypes and shapes, and a repr with all of them; of an empty set too."""
    assert reader.get_data_keys() == ["input", "target"]
    assert reader.get_data_specification(0) == {
        "input": {"dtype": np.dtype("f4"), "shape": (4, 3)},
        "target": {"dtype": np.dtype("u1"), "shape": ()},
    }
    text = repr(reader)
    for part in (shared, "23", "'input' <- dtype: float32, shape: (4, 3)", "'target'", "uint8"):
        assert part in text
    with px.Writer(path, 1) as writer:
        assert path in repr(writer)
    empty = px.Reader(path)
    assert len(empty) == 0
    assert "Number of samples:\t0" in repr(empty)
    empty.close()
    assert "closed" in repr(empty)


def test_X6_strings_of_the_user(path: str) -> None:
    """Strings are kept with the set, in UTF-8; one that is not there reads "None", as before."""
    with px.Writer(path, 1) as writer:
        writer.set_meta_str("title", "grün")
        writer.set_meta_str(b"number", 3)
        for wrong in ("nb_samples", "", "k" * 512):
            with pytest.raises(ParamsError):
                writer.set_meta_str(wrong, "x")
    assert read_raw(path)[b"meta_db"][b"title"] == "grün".encode()
    reader = px.Reader(path)
    assert reader.get_meta_str("title") == "grün"
    assert reader.get_meta_str(b"number") == "3"
    assert reader.get_meta_str("nothing") == "None"


def test_X7_three_iterators(reader: Any) -> None:
    """In order; each sample once a pass in another order; drawn with replacement."""
    keys = ("target", "input")
    gen = px.SequentialBatch(reader, keys, 5, endless=False)
    assert [t.tolist() for t, _ in gen] == [TARGET[i : i + 5].tolist() for i in range(0, COUNT, 5)]
    gen = px.SimpleBatch(reader, keys, 5, shuffle=True)
    passes = []
    for _ in range(3):
        parts = [next(gen) for _ in range(5)]
        for targets, inputs in parts:
            assert (inputs == INPUT[targets]).all()
        passes.append(tuple(int(t) for targets, _ in parts for t in targets))
    assert all(sorted(one) == list(range(COUNT)) for one in passes)
    assert len(set(passes)) == 3
    drawn = list(itertools.islice(px.StochasticBatch(reader, ["target"], 50), 20))
    assert all(batch.shape == (50,) for batch in drawn)
    assert set(np.concatenate(drawn).tolist()) == set(range(COUNT))
    with pytest.raises(KeyError, match="nothing"):
        px.SimpleBatch(reader, "nothing", 5)
    with pytest.raises(ParamsError, match="batch_size"):
        px.SimpleBatch(reader, "target", 0)


@pytest.mark.parametrize("kind", ["SimpleBatch", "SequentialBatch"])
@pytest.mark.parametrize("size", [1, 5, 22, 23, 24, 40])
def test_X8_X9_passes(reader: Any, kind: str, size: int) -> None:
    """A batch of a pass is shorter where it is the last, and end_of_dataset says which that is, for
    a last one that is whole, too. One pass ends with StopIteration; endless, the default, goes on.
    """
    sizes = [min(size, COUNT - at) for at in range(0, COUNT, size)]
    gen = getattr(px, kind)(reader, "target", size, endless=False)
    assert [len(batch) for batch in gen] == sizes
    with pytest.raises(StopIteration):
        next(gen)
    gen = getattr(px, kind)(reader, "target", size)
    for step in range(3 * len(sizes)):
        assert len(next(gen)) == sizes[step % len(sizes)]
        assert gen.end_of_dataset is (step % len(sizes) == len(sizes) - 1)


def test_X10_explicit_generator(reader: Any) -> None:
    """A RandomState draws what it draws in ml-pyxis; a Generator works too; numpy.random else."""
    rng = np.random.RandomState(5)
    gen = px.SimpleBatch(reader, "target", COUNT, shuffle=True, rng=rng)
    twin, order = np.random.RandomState(5), np.arange(COUNT, dtype=np.uint64)
    for _ in range(3):
        twin.shuffle(order)
        assert (next(gen) == order).all()
    gen = px.StochasticBatch(reader, "target", 9, rng=rng)
    assert (next(gen) == twin.randint(COUNT, size=9, dtype=np.uint64)).all()

    def drawn(make: Callable[[int], Any]) -> list[list[int]]:
        return [
            next(px.SimpleBatch(reader, "target", 9, True, rng=make(1))).tolist(),
            next(px.StochasticBatch(reader, "target", 9, rng=make(1))).tolist(),
        ]

    for make in (np.random.default_rng, np.random.RandomState, lambda _: np.random):
        np.random.seed(4)
        first = drawn(make)
        np.random.seed(4)
        assert drawn(make) == first


@pytest.mark.parametrize("kind", ["SimpleBatch", "SequentialBatch"])
def test_X11_thread_safe_iterators(reader: Any, kind: str) -> None:
    """Threads share an iterator: each sample of a pass goes to one of them."""
    gen = getattr(px, f"{kind}ThreadSafe")(reader, "target", 1, endless=False)
    found = in_threads(6, lambda: (int(batch[0]) for batch in gen))
    assert sorted(n for mine in found for n in mine) == list(range(COUNT))
    endless = px.StochasticBatchThreadSafe(reader, "target", 4)
    found = in_threads(4, lambda: itertools.islice(endless, 20))
    assert [len(batches) for batches in found] == [20] * 4


def test_X12_context_managers(path: str) -> None:
    """Both close at the end of a with block; closing twice is fine; later calls say so."""
    before = len(os.listdir("/proc/self/fd"))
    with px.Writer(path, 1) as writer:
        writer.put_samples("x", np.arange(3))
    with px.Reader(path) as reader:
        assert len(reader) == 3
    writer.close()
    reader.close()
    with pytest.raises(ReaderClosedError):
        writer.put_samples("x", np.arange(3))
    with pytest.raises(ReaderClosedError):
        _ = reader[0]
    assert len(os.listdir("/proc/self/fd")) == before


def test_X13_incremental_writing(path: str) -> None:
    """Several puts add up, and each is in the file when it returns. A set that is opened again is
    added to; opening and closing changes nothing."""
    with px.Writer(path, 1) as writer:
        for start in range(0, 30, 7):
            writer.put_samples("x", np.arange(start, start + 7))
            assert len(px.Reader(path)) == writer.nb_samples == start + 7
        writer.put_samples("x", np.arange(0))
        assert writer.nb_samples == 35
    px.Writer(path, 1).close()
    assert len(px.Reader(path)) == 35
    with px.Writer(path) as writer:
        writer.put_samples("x", np.arange(35, 37))
    assert [int(sample["x"]) for sample in px.Reader(path)] == list(range(37))


def test_X13_a_failed_put_leaves_no_gap(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A put that fails half way has written nothing, and the next takes its numbers."""
    import asyncreader.faces.pyxis as module

    packed, real = [], module.pack_sample

    def fails_at_third(sample: Any) -> bytes:
        packed.append(sample)
        if len(packed) == 3:
            raise lmdb.DiskError("no space left")
        return real(sample)

    with px.Writer(path, 1) as writer:
        monkeypatch.setattr(module, "pack_sample", fails_at_third)
        with pytest.raises(SourceError, match="no space left"):
            writer.put_samples("x", np.arange(5))
        assert writer.nb_samples == 0
        writer.put_samples("x", np.arange(10, 12))
    assert [int(sample["x"]) for sample in px.Reader(path)] == [10, 11]


def test_X14_ram_guard(path: str) -> None:
    """More than ram_gb_limit in one put is refused, and nothing is written."""
    with px.Writer(path, 10, ram_gb_limit=1e-6) as writer:
        writer.put_samples("x", np.zeros((1, 1000), "u1"))
        with pytest.raises(ValueError, match="ram_gb_limit"):
            writer.put_samples("x", np.zeros((1, 600), "u1"), "y", np.zeros((1, 600), "u1"))
        assert writer.nb_samples == 1


def test_X15_map_size_grows(path: str) -> None:
    """A full map is made larger: map_size_limit is where it begins."""
    noise = np.random.default_rng(0).integers(0, 255, (40, 100_000), dtype=np.uint8)
    with px.Writer(path, map_size_limit=1) as writer:
        for part in range(0, 40, 8):
            writer.put_samples("x", noise[part : part + 8])
    reader = px.Reader(path)
    assert all((reader[i]["x"] == noise[i]).all() for i in range(40))
    for limits in ((0,), (-1,), (1, 0)):
        with pytest.raises(ValueError, match="above 0"):
            px.Writer(path, *limits)


@pytest.mark.slow
def test_X16_torch_data_set(shared: str) -> None:
    """TorchDataset gives dicts of tensors to torch's DataLoader, with worker processes too."""
    torch = pytest.importorskip("torch")
    data = px.TorchDataset(shared)
    assert len(data) == COUNT
    assert repr(data) == repr(data.db)
    assert torch.equal(data[-1]["input"], torch.from_numpy(INPUT[-1]))
    loader = torch.utils.data.DataLoader(
        data, batch_size=5, num_workers=2, multiprocessing_context="spawn"
    )
    found = [batch["target"].tolist() for batch in loader]
    assert found == [TARGET[i : i + 5].tolist() for i in range(0, COUNT, 5)]


@pytest.mark.slow
def test_X17_prefetched_by_processes(reader: Any) -> None:
    """Batches are read ahead by spawned processes, in order: the reader goes with the sequence."""
    with OrderedEnqueuer(made.PyxisBatches(reader), use_multiprocessing=True) as enqueuer:
        enqueuer.start(workers=2, max_queue_size=4)
        found = list(itertools.islice(enqueuer.get(), 6))
    assert (np.concatenate([batch["input"] for batch in found]) == INPUT).all()
    assert (np.concatenate([batch["target"] for batch in found]) == TARGET).all()


def test_X18_replace_delete_and_gaps(path: str) -> None:
    """Samples can be replaced, removed, and kept under any number; iterators skip the gaps."""
    with px.Writer(path, 1) as writer:
        writer.put_samples("x", np.arange(6))
        writer.put_sample(2, "x", np.array(200), overwrite=True)
        writer.put_sample(9, {"x": np.array(900)})
        with pytest.raises(ParamsError, match="overwrite"):
            writer.put_sample(9, "x", np.array(0))
        writer.delete_sample(4)
        with pytest.raises(IndexError):
            writer.delete_sample(4)
        assert writer.nb_samples == 10
        with pytest.raises(ParamsError, match="ten digits"):
            writer.put_sample(10**10, "x", np.array(0))
    with px.Reader(path) as reader:
        assert len(reader) == 10
        assert reader.indices.tolist() == [0, 1, 2, 3, 5, 9]
        assert [reader.has(i) for i in (-1, 3, 4, 9, 10)] == [False, True, False, True, False]
        assert [int(sample["x"]) for sample in reader] == [0, 1, 200, 3, 5, 900]
        with pytest.raises(SampleError, match="record 4"):
            _ = reader[4]
        batches = list(px.SimpleBatch(reader, "x", 4, shuffle=True, endless=False))
        assert sorted(np.concatenate(batches).tolist()) == [0, 1, 3, 5, 200, 900]
    with px.Writer(path) as writer:
        writer.delete_sample(9)
        assert writer.nb_samples == 6
        for i in (0, 1, 2, 3, 5):
            writer.delete_sample(i)
        assert writer.nb_samples == 0
    with px.Writer(path) as writer:
        assert writer.nb_samples == 0
    with pytest.raises(ParamsError, match="no samples"):
        px.SimpleBatch(px.Reader(path), "x", 1)


def test_X19_derived_iterators(reader: Any) -> None:
    """A class derived from an iterator changes its batches: by gen and lock, or by super()."""

    class SquareTargets(px.SimpleBatchThreadSafe):  # as in ml-pyxis' notebook
        def __init__(self, db: Any, keys: Any, batch_size: int) -> None:
            super().__init__(db, keys, batch_size, shuffle=False, endless=False)

        def __next__(self) -> Any:
            with self.lock:
                inputs, targets = next(self.gen)
            return inputs, targets.astype(int) ** 2

    class Doubled(px.SequentialBatch):
        def next(self) -> Any:
            return super().next() * 2

    squares = SquareTargets(reader, keys=("input", "target"), batch_size=6)
    assert [n for _, part in squares for n in part] == [i * i for i in range(COUNT)]
    assert next(Doubled(reader, "target", 3)).tolist() == [0, 2, 4]
    assert issubclass(px.SimpleBatch, px.DataIterator)


def test_only_the_keys_asked_for_are_unpacked(path: str) -> None:
    """One key is read without unpacking the others, and batches are new arrays each time."""
    with px.Writer(path, 1) as writer:
        writer.put_samples("x", np.arange(4), "damaged", np.arange(4))
    first = read_raw(path)[b"data_db"][b"0000000000"]
    at = first.rindex(b"\xa3<i8")
    broken = first[:at] + b"\xa3???" + first[at + 4 :]
    twin = write_raw(Path(f"{path}2"), {b"0000000000": broken}, {b"nb_samples": b"1"})
    reader = px.Reader(twin)
    assert reader.get_data_value(0, "x") == 0
    with pytest.raises(SampleError, match="'damaged'"):
        reader.get_data_value(0, "damaged")
    gen = px.StochasticBatch(px.Reader(path), "x", 3)
    one, two = next(gen), next(gen)
    assert not np.shares_memory(one, two)


def test_a_reader_pickles_and_forks(reader: Any) -> None:
    """A reader is pickled as its path, and works in a forked child."""
    again = pickle.loads(pickle.dumps(reader))
    assert (again[3]["input"] == INPUT[3]).all()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # other tests' threads are no part of this
        pid = os.fork()
    if pid == 0:
        os._exit(0 if (reader[3]["input"] == INPUT[3]).all() else 1)
    assert os.waitpid(pid, 0)[1] == 0


# -- a writer at work ----------------------------------------------------------------------------


def sized(index: int, version: int) -> np.ndarray:
    """A sample that tells its number and is of another length in each version."""
    return np.full(500 + 700 * (index + version) % 3000, 100 * version + index)


def test_a_reader_follows_the_file(path: str) -> None:
    """Pages that a writer has used again since the reader opened are never taken for samples."""
    with px.Writer(path, 8) as writer:
        for i in range(12):
            writer.put_sample(i, "x", sized(i, 0))
        writer.set_meta_str("title", "old")
        reader = px.Reader(path)
        for version in range(1, 6):
            for i in np.random.default_rng(version).permutation(12).tolist():
                writer.put_sample(i, "x", sized(i, version), overwrite=True)
            writer.put_samples("x", np.zeros((2, 9)))
            writer.set_meta_str("title", f"new {version}")
            for i in range(12):
                assert (reader[i]["x"] == sized(i, version)).all()
            assert reader.get_meta_str("title") == f"new {version}"
            assert len(reader) == 12


def test_reading_while_a_writer_is_at_work(path: str) -> None:
    """Samples that are rewritten all the time are never torn nor taken for others."""
    count = 12
    with px.Writer(path, 8) as writer:
        for i in range(count):
            writer.put_sample(i, "x", sized(i, 0))
        stop = threading.Event()
        failures: list[BaseException] = []

        def rewrite() -> None:
            try:
                for version in itertools.count(1):
                    for i in range(count):
                        if stop.is_set():
                            return
                        writer.put_sample(i, "x", sized(i, version), overwrite=True)
            except BaseException as exc:
                failures.append(exc)

        thread = threading.Thread(target=rewrite)
        reader = px.Reader(path)
        thread.start()
        try:
            chosen = random.Random(1)
            for _ in range(400):
                i = chosen.randrange(count)
                values = reader[i]["x"]
                assert (values == sized(i, int(values[0]) // 100)).all()
        finally:
            stop.set()
            thread.join(HANG)
        assert failures == []


# -- what is refused -----------------------------------------------------------------------------


def test_what_the_writer_refuses(path: str, tmp_path: Path) -> None:
    """Anything but pairs of names and arrays of plain values and one length is a ValueError."""
    structured = np.zeros(2, [("a", "i4")])
    with px.Writer(path, 1) as writer:
        for arguments in (
            *(("x",), (), ({},), ("x", [1, 2]), (1, np.arange(2)), ("x", np.array(3))),
            *(("x", np.arange(2), "y", np.arange(3)), ("x", np.array([None, 1]))),
            *(("x", structured), ("x", np.arange(2), "y")),
            ("x", np.ma.masked_array(np.arange(2), [True, False])),
        ):
            with pytest.raises(ParamsError):
                writer.put_samples(*arguments)
        assert writer.nb_samples == 0
    with pytest.raises(SourceError):
        px.Writer(tmp_path / "no" / "such" / "folder")
    file = tmp_path / "file"
    file.write_bytes(b"something else")
    with pytest.raises(FormatError):
        px.Writer(file)


def test_other_files_are_refused(tmp_path: Path) -> None:
    """Nothing there, another layout, no count: typed errors, for reader and writer."""
    with pytest.raises(SourceNotFoundError):
        px.Reader(tmp_path / "nothing")
    (tmp_path / "folder").mkdir()
    with pytest.raises(SourceNotFoundError):
        px.Reader(tmp_path / "folder")
    with lmdb.open(str(tmp_path / "other"), max_dbs=2) as env:
        env.open_db(b"images")
    for kind in (px.Reader, px.Writer):
        with pytest.raises(FormatError, match="images"):
            kind(tmp_path / "other")
    for number, meta in enumerate(({}, {b"nb_samples": b"many"}, {b"nb_samples": b"-1"})):
        path = write_raw(tmp_path / f"{number}", {b"0000000000": SAMPLE}, meta)
        with pytest.raises(FormatError, match="number of samples"):
            px.Reader(path)
    for number, key in enumerate((b"000000000a", b"0", b"00000000000", b"/000000000")):
        path = write_raw(tmp_path / f"key{number}", {key: SAMPLE}, {b"nb_samples": b"1"})
        with pytest.raises(FormatError, match="ten digits"):
            px.Reader(path)


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"\xc1",
        b"\x93\x01\x02\x03",
        b"\x81\xa1x\x05",
        b"\x81\x05\xc4\x00",
        b"\x81\xa1\xff\xc4\x00",
        b"\x81\xa1x\xc4\x01\xc1",
        b"\x81\xa1x\xc4\x01\x80",
        SAMPLE[:-1],
        SAMPLE + b"\x00",
        SAMPLE.replace(b"\xa3<f4", b"\xa3|O8"),
        SAMPLE.replace(b"\xa3<f4", b"\xa3<f8"),
        SAMPLE.replace(b"\xa3<f4", b"\xa3,,,"),
        SAMPLE.replace(b"\xa3<f4", b"\xa3|V4"),
        SAMPLE.replace(b"\x92\x02\x02", b"\x92\x02\x03"),
        SAMPLE.replace(b"\x92\x02\x02", b"\x92\xff\xfc"),
        SAMPLE.replace(b"type\x02", b"type\x03"),
        b"\x91" * 5000 + b"\x00",
        b"\xdf\xff\xff\xff\xff",
        b"\xc9\xff\xff\xff\xff\x00",
    ],
    ids=range(20),
)
def test_damaged_samples(tmp_path: Path, value: bytes) -> None:
    """A value that is no sample is a SampleError that names file, record and key."""
    path = write_raw(tmp_path / "a", {b"0000000000": value}, {b"nb_samples": b"1"})
    reader = px.Reader(path)
    with pytest.raises(SampleError) as caught:
        _ = reader[0]
    assert (caught.value.path, caught.value.index) == (path, 0)
    assert "0000000000" in caught.value.key
