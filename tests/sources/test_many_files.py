"""Lists of more files than may be open: one data set, of which few files are open at a time."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fakes
import h5py
import numpy as np
import pytest
from fakes import Packed, damage, packed, paint, write_hdf5, write_lmdb
from shard_sets import cut

from asyncreader import AsyncReader, FormatError
from asyncreader.sources import Inspector, fingerprint, open_source, open_whole
from asyncreader.sources.hdf5 import chunks
from asyncreader.sources.hdf5.chunk_cache import ChunkCache
from asyncreader.sources.sets.open_cache import INDEXED_FILES
from asyncreader.sources.sniff import Sniffed, sniff
from asyncreader.tools.verify import verify_file

#: Files, of a few samples each; and how many may be open.
FILES, OPEN = 20, 4
SIZES = [1 + number % 3 for number in range(FILES)]
COUNT = sum(SIZES)


def contents(encoding: str = "raw", **options: Any) -> Packed:
    """The samples of all files, with masks."""
    content = packed(paint(COUNT), encoding, **options)
    masks = [np.full((6, 5, 1), 300 + n, np.uint16) for n in range(COUNT)]
    content.fields["mask"] = Packed(
        [mask.tobytes() for mask in masks], None, "raw", (6, 5, 1), 1, dtype="uint16"
    )
    return content


def write(folder: Path, content: Packed, container: str = "hdf5") -> list[str]:
    """``content`` in files; LMDB folders, or HDF5."""
    folder.mkdir(exist_ok=True)
    names = []
    for number, part in enumerate(cut(content, SIZES)):
        if container == "lmdb":
            names.append(write_lmdb(folder / f"{number:03d}.lmdb", part))
        else:
            names.append(write_hdf5(folder / f"{number:03d}.h5", part))
    return names


@pytest.fixture(scope="module", params=["raw hdf5", "png hdf5", "raw lmdb"])
def names(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    encoding, container = request.param.split()
    return write(tmp_path_factory.mktemp("many") / "set", contents(encoding), container)


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only so many files may be open."""
    limit_open_files(monkeypatch)


def limit_open_files(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("asyncreader.sources.open", "asyncreader.sources.sets.lists"):
        monkeypatch.setattr(f"{module}.open_limit", lambda: OPEN)


def open_now(source: Any) -> int:
    """Files of the first field that are open."""
    return len(source.first.open_files)


def digest(path: Any, **params: Any) -> str:
    """Of all batches of an epoch."""
    given = {"batch_size": 7, "last_batch": "pad", "epochs": 1, "nthread": 2, **params}
    with AsyncReader(path=path, **given) as reader:
        return fakes.digest(reader)


WAYS: list[dict[str, Any]] = [
    {"shuffle": False},
    {"shuffle": "block", "shuffle_window": 40},
    {"shuffle": False, "labels_field": None},
    {"shuffle": "block", "data_field": "mask"},
    {"shuffle": False, "data_field": ["data", "mask"]},
]


@pytest.mark.slow
def test_many_files_serve_what_few_serve(names: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The batches, orders and fingerprint of files that are all held open."""
    expected = [digest(names, **way) for way in WAYS]
    with AsyncReader(path=names, shuffle="block", batch_size=7) as reader:
        state = reader.state_dict()
    held = open_whole(names)
    assert open_now(held) == FILES
    limit_open_files(monkeypatch)
    assert [digest(names, **way) for way in WAYS] == expected
    source = open_whole(names)
    assert open_now(source) <= OPEN
    assert fingerprint(source) == fingerprint(held)
    assert source.facts.count == COUNT
    with AsyncReader(path=names, shuffle="block", batch_size=7) as reader:
        reader.load_state_dict(json.loads(json.dumps(state)))
    source.close()
    held.close()


def test_each_file_is_looked_at_once(
    tmp_path: Path, few: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Opening a set of two fields opens each of its files once, not once for each field, and the
    fields share the limit of open files."""
    names = write(tmp_path / "set", contents())
    seen: list[str] = []

    def counted(name: str, io: str) -> Sniffed:
        seen.append(name)
        return sniff(name, io)

    monkeypatch.setattr("asyncreader.sources.open.sniff", counted)
    with contextlib.closing(open_whole(names)) as source:
        assert seen == [str(name) for name in names]
        assert [part.open_files.limit for part in source.parts] == [OPEN // 2] * 2  # type: ignore[attr-defined]


def test_the_fingerprint_is_that_of_one_file(tmp_path: Path, few: None) -> None:
    """A list, held open or not, is known as the one file of the same samples is."""
    names = write(tmp_path / "set", contents())
    one = open_whole(write_hdf5(tmp_path / "one.h5", contents()))
    many, some = open_whole(names), open_whole(names[:5])
    assert fingerprint(many) == fingerprint(one) != fingerprint(some)
    first = write_hdf5(tmp_path / "first.h5", cut(contents(), [sum(SIZES[:5]), COUNT - 9])[0])
    head = open_whole(first)
    assert fingerprint(head) == fingerprint(some)
    for source in (one, many, some, head):
        source.close()


@pytest.mark.slow
def test_verify_and_errors(tmp_path: Path, few: None) -> None:
    """Checked in full; a bad sample, and a file that was replaced, are named."""
    names = write(tmp_path / "set", contents())
    report = verify_file(str(tmp_path / "set" / "*.h5"))
    assert (report.ok, report.count, report.checked) == (True, COUNT, 2 * COUNT)
    damage(names[10], paint(COUNT)[sum(SIZES[:10])].tobytes())
    assert verify_file(str(tmp_path / "set" / "*.h5")).bad == 1
    source = open_source(names)
    os.replace(names[12], names[17])
    with pytest.raises(FormatError, match="not the one that the manifest lists") as caught:
        Inspector(source.first).bytes(sum(SIZES[:17]))
    assert caught.value.path == names[17]
    source.close()


def test_labels_of_another_name(tmp_path: Path, few: None) -> None:
    """Labels that others added to packed files are read as of few files."""
    import h5py

    names = write(tmp_path / "set", packed(paint(COUNT)))
    for number, name in enumerate(names):
        with h5py.File(name, "r+") as file:
            file["age"] = np.full(SIZES[number], number, np.float32)
    with AsyncReader(path=names, labels_field="age", batch_size=COUNT) as reader:
        labels = next(iter(reader)).labels
    np.testing.assert_array_equal(labels, np.repeat(np.arange(FILES), SIZES))


def others(content: Packed) -> Iterator[tuple[str, Packed]]:
    """What does not go with files of pixels, labels and classes."""
    yield "classes", dataclasses.replace(content, classes=("x", "y", "z"))
    yield "pixels", packed(paint(COUNT), "png")


@pytest.mark.slow
@pytest.mark.parametrize("number", [0, 1])
def test_files_that_do_not_go_together(tmp_path: Path, few: None, number: int) -> None:
    """Many of them are refused as few are, and the error says in what they differ."""
    names = write(tmp_path / "set", packed(paint(COUNT)))
    other = list(others(packed(paint(COUNT))))[number][1]
    write_hdf5(names[-1], cut(other, SIZES)[-1])
    said = (
        "classes \\('x', 'y', 'z'\\); expected.*classes \\('",
        "uint8 png, 3 classes.*uint8 raw, 3 classes",
    )
    with pytest.raises(FormatError, match=f"does not match the first one.*{said[number]}"):
        open_source(names)


CHILD = """
import json, os, resource, sys, threading
resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[2]), int(sys.argv[2])))
from asyncreader import AsyncReader
folder = sys.argv[1]
most = mapped = 0
served, labels = [], []
with AsyncReader(path=folder + "/*.h5", batch_size=16, shuffle="block", shuffle_window=64,
                 nthread=2, njob=2, epochs=1, last_batch="pad", data_field=["data", "mask"]) as r:
    for batch in r:
        most = max(most, len(os.listdir("/proc/self/fd")))
        with open("/proc/self/maps") as maps:
            mapped = max(mapped, len({line.split()[-1] for line in maps if folder in line}))
        served += batch.indices[batch.mask].tolist()
        labels += batch.labels[batch.mask, 0].tolist()
    state = r.state_dict()
with AsyncReader(path=folder + "/*.h5", batch_size=90, workers="process", epochs=1) as r:
    assert [n for batch in r for n in batch.indices.tolist()] == list(range(180))
print(json.dumps([served, labels, most, mapped, state["fingerprint"]]))
"""


@pytest.mark.slow
def test_under_a_low_limit_of_open_files(tmp_path: Path) -> None:
    """90 files where 80 may be open: all is served, and what is open stays few. Files that are
    closed are mapped as long as their indices are kept."""
    sizes = [2] * 90
    content = packed(paint(180))
    content.fields["mask"] = dataclasses.replace(content, labels=None)
    for number, part in enumerate(cut(content, sizes)):
        write_hdf5(tmp_path / f"{number:03d}.h5", part)
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(tmp_path), "80"], capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr.decode()
    served, labels, most, mapped, print_of_many = json.loads(done.stdout)
    assert sorted(served) == list(range(180))
    assert labels == [number % 3 for number in served]
    assert most < 80
    assert mapped == 90 <= INDEXED_FILES
    one = open_whole(write_hdf5(tmp_path / "one", content))
    assert fingerprint(one) == print_of_many
    one.close()


@pytest.mark.slow
def test_too_many_foreign_files(tmp_path: Path) -> None:
    """What others packed is all held open: where that cannot be, the error says what to do."""
    import h5py

    for number in range(60):
        with h5py.File(tmp_path / f"{number:03d}.h5", "w") as file:
            file["data"] = np.zeros((2, 6, 4, 3), np.uint8)
    script = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_NOFILE, (48, 48))\n"
        "from asyncreader import AsyncReader, SourceError\n"
        "try: AsyncReader(path=sys.argv[1] + '/*.h5')\n"
        "except SourceError as error: print(error)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr.decode()
    assert "ulimit -n" in done.stdout.decode()


@pytest.mark.slow
@pytest.mark.calls
def test_compressed_files_share_the_memory_for_chunks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With block shuffle over many compressed files of others each chunk is decoded once an epoch,
    and the decoded chunks that are kept are those of a few windows, however many the files."""
    files, count, chunk, window = 60, 100, 5, 400
    names = []
    for number in range(files):
        names.append(str(tmp_path / f"{number:03d}.h5"))
        pixels = np.full((count, 6, 4, 3), number, np.uint8)
        with h5py.File(names[-1], "w") as file:
            file.create_dataset("data", data=pixels, chunks=(chunk, 6, 4, 3), compression="gzip")
            file["labels"] = np.arange(count)
    decoded: list[int] = []
    caches: list[ChunkCache] = []
    real, made = chunks.ChunkSource._decode, ChunkCache.__init__

    def counted(self: Any, numbers: Any, *rest: Any) -> Any:
        decoded.extend(numbers.tolist())
        return real(self, numbers, *rest)

    def noted(self: ChunkCache, *rest: Any) -> None:
        made(self, *rest)
        caches.append(self)

    monkeypatch.setattr(chunks.ChunkSource, "_decode", counted)
    monkeypatch.setattr(ChunkCache, "__init__", noted)
    given = {"shuffle": "block", "shuffle_window": window, "layout": "NHWC"}
    kept, descriptors = [], len(os.listdir("/proc/self/fd"))
    with AsyncReader(path=names, **given, batch_size=16, nthread=2, last_batch="pad") as reader:
        for batch in reader:
            assert (batch.data[batch.mask, 0, 0, 0] == batch.indices[batch.mask] // count).all()
            kept.append(sum(0 if one._memory is None else one._memory.nbytes for one in caches))
    assert len(os.listdir("/proc/self/fd")) <= descriptors
    assert len(decoded) <= files * count // chunk * 1.1
    assert max(kept) <= 5 * window * 6 * 4 * 3
