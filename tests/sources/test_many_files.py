"""Lists of many files as one data set."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from shard_sets import write_set

from asyncreader import AsyncReader
from asyncreader.pipeline import build
from asyncreader.sources.hdf5.chunk_cache import ChunkCache, OpenChunks

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
        with h5py.File(folder / f"{number:04d}.h5", "w") as file:
            file["data"] = np.full((1, 6, 4, 3), number, np.uint8)
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(folder), str(soft), str(hard)],
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode()


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
@pytest.mark.calls
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
