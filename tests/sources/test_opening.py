"""What opening a set looks at, what it costs in calls and opened files, and lists of many files."""

import os
import pickle
import sys
import tracemalloc
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from types import FrameType
from typing import Any

import h5py
import numpy as np
import pytest
from child_processes import run
from fakes import Packed, hdf5, packed, paint, write_hdf5, write_lmdb
from shard_sets import write_set

import asyncreader
from asyncreader import AsyncReader, FormatError
from asyncreader.formats import packed as fmt
from asyncreader.params.parse import parse_params
from asyncreader.pipeline import build
from asyncreader.sources import open_reader_source
from asyncreader.sources.bytestore import OpenFile
from asyncreader.sources.hdf5.chunk_cache import ChunkCache, OpenChunks
from asyncreader.sources.hdf5.file import Hdf5
from asyncreader.sources.hdf5.listing import some_names
from asyncreader.system import late
from asyncreader.system.text import natural
from converters.outputs.hdf5_writer import Hdf5File

# -- the description in an HDF5 file -------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("count", 5), ("count", None), ("count", np.array([6])), ("version", 2)),
        *(("encoding", np.bytes_("png")), ("encoding", "raw"), ("axes", np.bytes_("NCHW"))),
    ],
)
def test_an_attribute_that_contradicts_the_description(
    tmp_path: Path, name: str, value: Any
) -> None:
    """An attribute for other readers that is missing, or not what the description says, is a
    FormatError that names it."""
    path = write_hdf5(tmp_path / "a.h5", packed(paint(6, (9, 8, 3))))
    with h5py.File(path, "r+") as file:
        del file.attrs[name]
        if value is not None:
            file.attrs[name] = value
    with pytest.raises(FormatError, match=f"{name!r} contradicts its description"):
        AsyncReader(path)


@pytest.mark.parametrize("libver", ["latest", pytest.param("earliest", marks=pytest.mark.slow)])
def test_a_great_many_names(tmp_path: Path, libver: str) -> None:
    """Groups in groups and 20,000 side by side do no harm: opening keeps no name of these in
    memory, and of as many episodes the set has those that match, in the order of their numbers."""
    path = str(tmp_path / "beside.h5")
    with h5py.File(path, "w", libver=libver) as file:
        file["data"] = paint(6, (9, 8, 3))
        for number in range(20_000):
            h5py.h5g.create(file.id, b"group_%d" % number)
        group = file.create_group("deep").id
        for _ in range(3000):  # deeper than Python recurses
            group = h5py.h5g.create(group, b"g")
    with AsyncReader(path=path, batch_size=2) as reader:
        assert reader.count == 6
    with Hdf5(OpenFile(path, "mmap")) as h5:
        tracemalloc.start()
        assert {"data", "group_19999"} <= h5.names
        assert h5.names.isdisjoint({"group_20000", "/", "group_1/", "\0", ""})
        assert len(some_names(h5.reach(""), 5)) == 5
        assert tracemalloc.get_traced_memory()[1] < 100_000
        tracemalloc.stop()
    with h5py.File(path := tmp_path / "episodes.h5", "w", libver=libver) as file:
        for number in (10, 9, 100, 0):
            file[f"data/demo_{number}/actions"] = np.full((2, 3), number, np.float32)
        for number in range(20_000):
            h5py.h5g.create(file["data"].id, b"other_%d" % number)
    kind = "groups:data/demo_*"
    with asyncreader.open(path, data_field="actions", episodes=kind, window=2) as stored:
        assert stored[:][:, 0, 0].tolist() == [0, 9, 10, 100]


def test_groups_in_circles(tmp_path: Path) -> None:
    """A pattern over groups that hold themselves under many names ends in an error, in memory that
    the file bounds; a long chain of soft links, too."""
    with h5py.File(path := tmp_path / "circles.h5", "w") as file:
        for number in range(1000):
            file[f"again_{number}"] = file["/"]
        file["data/demo_0/actions"] = np.zeros((2, 3))
        for number in range(1, 40):
            file[f"data/demo_{number}"] = h5py.SoftLink(f"/data/demo_{number - 1}")
    with pytest.raises(FormatError, match="in circles"):
        AsyncReader(path=path, episodes="groups:*/*/*", data_field="actions")
    with pytest.raises(FormatError, match="soft link"):
        AsyncReader(path=path, episodes="groups:data/demo_*", data_field="actions")


def test_names_sort_by_their_numbers() -> None:
    """Names sort as their texts and numbers do, one after the other; numbers may be of any length,
    and zeros before them do not count."""
    names = ["", "7", "70x", "a", "a0", "a1", "a01b", "a2", "a9z3", "a9z12", "a10"]
    names += ["a1" + "0" * 5000, "a9" + "0" * 5000, "a-1", "b"]
    for order in (names, names[::-1]):
        assert sorted(order, key=natural) == names


def test_a_description_longer_than_a_header(tmp_path: Path) -> None:
    """A description of 256 fields with the longest names does not fit an object header: HDF5 keeps
    it elsewhere, and it is written and read all the same."""
    names = [f"{'f' * 60}{number:04d}" for number in range(256)]
    digests = {f"{name}.{table}": "0" * 16 for name in names for table in ("checksums", "paths")}
    meta = fmt.Meta(
        count=6,
        encoding="raw",
        shape=(9, 8, 3),
        channels=3,
        label_kind="none",
        classes=None,
        digests={"checksums": "0" * 16, **digests},
        fields=tuple(fmt.FieldMeta(name, "raw", (9, 8, 1), 1, "uint8") for name in names),
    ).sealed()
    file = Hdf5File(str(tmp_path / "a.h5"), "a.h5")
    file.open()
    file.describe(meta)
    file.finish()
    assert len(meta.to_json()) > 1 << 16
    from asyncreader.sources.hdf5.file import read_meta

    found = OpenFile(str(tmp_path / "a.h5"), "mmap")
    with Hdf5(found) as h5:
        assert read_meta(h5) == meta


# -- what opening costs ---------------------------------------------------------------------------


PACKAGE = os.path.dirname(asyncreader.__file__)


def foreign(path: str, content: Packed) -> str:
    """Images and labels as h5py writes them."""
    hdf5(path, data=paint(6, (9, 8, 3)), labels=np.arange(6))
    return path


#: What writes a set of two fields, the name of the second, the most calls that opening the first
#: takes, and how often the file is opened: for its bytes, and by the HDF5 library.
KINDS: dict[str, tuple[Callable[[str, Packed], Any], str, int, tuple[int, int]]] = {
    "ours": (write_hdf5, "mask", 300, (1, 1)),
    "foreign": (foreign, "labels", 260, (1, 1)),
    "lmdb": (write_lmdb, "mask", 260, (1, 0)),
}


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_opening_takes_few_calls(tmp_path: Path, kind: str) -> None:
    """Opening takes at most 300 calls of the package for HDF5 of ours, else 260."""
    path, calls = str(tmp_path / "set"), Counter[str]()
    KINDS[kind][0](path, packed(paint(6, (9, 8, 3))))
    params = parse_params({"path": path}, {})
    open_reader_source(params).close()  # what is imported late

    def note(frame: FrameType, event: str, argument: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(PACKAGE):
            calls[frame.f_code.co_name] += 1

    sys.setprofile(note)
    try:
        source = open_reader_source(params)
    finally:
        sys.setprofile(None)
    source.close()
    assert calls.total() <= KINDS[kind][2], calls.most_common(20)


def test_how_often_a_file_is_opened(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An HDF5 file is opened once for its bytes and once by the HDF5 library, an LMDB file once,
    for all fields together. From its index it is opened once for each field, without a library."""
    path, content = str(tmp_path / "set"), packed(paint(6, (9, 8, 3)))
    content.fields["mask"] = packed(paint(6, (9, 8, 1)), with_labels=False)
    KINDS[kind][0](path, content)
    file = os.path.join(path, "data.mdb") if kind == "lmdb" else path
    opened = Counter[str]()

    def counting(how: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(name: Any, *rest: Any, **more: Any) -> Any:
            opened[how] += name == file
            return real(name, *rest, **more)

        return call

    monkeypatch.setattr(os, "open", counting("bytes", os.open))
    monkeypatch.setattr(late.h5py, "File", counting("library", h5py.File))
    fields = {"data_field": ["data", KINDS[kind][1]], "labels_field": None}
    with closing(open_reader_source(parse_params({"path": path, **fields}, {}))) as source:
        assert (opened["bytes"], opened["library"]) == KINDS[kind][3]
        index = pickle.loads(pickle.dumps(source.index))
        opened.clear()
        index.open().close()
        assert (opened["bytes"], opened["library"]) == (2, 0)


# -- lists of many files --------------------------------------------------------------------------


CHILD = """
import json, resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[2]), int(sys.argv[3])))
from asyncreader import AsyncReader, SourceError
given = {"path": sys.argv[1] + "/*.h5", "batch_size": 8, "shuffle": True, "epochs": 1, "njob": 2}
try:
    for workers in ("thread", "process"):
        with AsyncReader(workers=workers, **given) as reader:
            served = [(b.indices.tolist(), b.data[:, 0, 0, 0].tolist()) for b in reader]
        assert all(numbers == values for numbers, values in served)
        assert len({number for numbers, _ in served for number in numbers}) == 8 * len(served)
    print(8 * len(served))
except SourceError as error:
    print(error)
"""


def in_a_child(folder: Path, files: int, soft: int, hard: int) -> str:
    """What a program says that reads so many files of one sample each, where it may have ``soft``
    files open, and raise that to ``hard``."""
    for number in range(files):
        hdf5(folder / f"{number:04d}.h5", data=np.full((1, 6, 4, 3), number, np.uint8))
    done = run([sys.executable, "-c", CHILD, folder, soft, hard])
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_more_files_than_a_process_may_have_open_at_first(tmp_path: Path) -> None:
    """The limit of open files is raised as far as it has to be: 120 files of others are served
    where 64 may be open at first, in threads and in worker processes."""
    assert in_a_child(tmp_path, 120, 64, 1024) == "120\n"


@pytest.mark.slow
def test_more_files_than_may_ever_be_open(tmp_path: Path) -> None:
    """All files of a list are held open: where that cannot be, the error says what to do."""
    assert "ulimit -n" in in_a_child(tmp_path, 60, 48, 48)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["files of others", "shards"])
def test_compressed_files_share_the_memory_for_chunks(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With block shuffle over many compressed files each chunk is decoded once an epoch, and the
    decoded chunks that are kept are those of a few windows, however many the files."""
    files, count, chunk, window = 60, 100, 5, 400
    images = np.zeros((files * count, 6, 4, 3), np.uint8)
    images += np.repeat(np.arange(files, dtype=np.uint8), count)[:, None, None, None]
    path: Any = tmp_path / "set"
    if kind == "shards":
        write_set(path, images, [count] * files, chunk=chunk)
    else:
        path = [str(tmp_path / f"{number:03d}.h5") for number in range(files)]
        for name, pixels in zip(path, np.split(images, files), strict=True):
            with h5py.File(name, "w") as file:
                file.create_dataset("data", data=pixels, chunks=(chunk, 6, 4, 3), compression=1)
                file["labels"] = np.arange(count)
    decoded: list[int] = []
    caches: list[ChunkCache] = []
    real, made = OpenChunks.decode, ChunkCache.__init__

    def counted(self: Any, numbers: Any, *rest: Any) -> Any:
        decoded.extend(numbers.tolist())
        return real(self, numbers, *rest)

    def noted(self: ChunkCache, *rest: Any) -> None:
        made(self, *rest)
        caches.append(self)

    monkeypatch.setattr(build, "CACHE_BYTES", 0)  # the set is larger than what is remembered
    monkeypatch.setattr(OpenChunks, "decode", counted)
    monkeypatch.setattr(ChunkCache, "__init__", noted)
    given = {"shuffle": "block", "shuffle_window": window, "layout": "NHWC"}
    kept, descriptors = [], len(os.listdir("/proc/self/fd"))
    with AsyncReader(path=path, **given, batch_size=16, nthread=2, last_batch="pad") as reader:
        for batch in reader:
            assert (batch.data[batch.mask, 0, 0, 0] == batch.indices[batch.mask] // count).all()
            kept.append(sum(0 if one._memory is None else one._memory.nbytes for one in caches))
    assert len(os.listdir("/proc/self/fd")) <= descriptors
    assert len(decoded) <= files * count // chunk * 1.1
    if kind != "shards":  # of which those that were closed are kept by this test alone
        assert max(kept) <= 5 * window * 6 * 4 * 3
