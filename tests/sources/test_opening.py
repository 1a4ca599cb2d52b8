"""What opening a set looks at: descriptions, groups without number, a great many names."""

from __future__ import annotations

import os
import sys
import tracemalloc
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import h5py
import numpy as np
import pytest
from fakes import packed, paint, write_hdf5

import asyncreader
from asyncreader import AsyncReader, FormatError
from asyncreader.sources.bytestore import OpenFile
from asyncreader.sources.hdf5.file import Hdf5
from asyncreader.sources.hdf5.listing import some_names
from asyncreader.system.text import natural

PACKAGE = os.path.dirname(asyncreader.__file__)


def foreign(path: Path) -> str:
    with h5py.File(path, "w") as file:
        file["data"], file["labels"] = paint(6, (9, 8, 3)), np.arange(6)
    return str(path)


@contextmanager
def counted() -> Iterator[Counter[str]]:
    """Calls of the package's functions by name, however they are named in their modules."""
    calls: Counter[str] = Counter()

    def note(frame: FrameType, event: str, argument: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(PACKAGE):
            calls[frame.f_code.co_name] += 1

    sys.setprofile(note)
    try:
        yield calls
    finally:
        sys.setprofile(None)


# -- the description in an HDF5 file -------------------------------------------------------------


def rows_of(path: str, **params: Any) -> list[Any]:
    with AsyncReader(path=path, layout="NHWC", batch_size=6, **params) as reader:
        reader.fetchData()
        batch = reader.getNextBatch()
        data = batch.data if isinstance(batch.data, tuple) else (batch.data,)
        return [*(part.copy() for part in data), batch.labels.copy(), reader.classes]


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


@pytest.mark.parametrize("libver", ["earliest", "latest"])
def test_groups_without_number_beside_the_data(tmp_path: Path, libver: str) -> None:
    """Groups in groups, deeper than Python recurses, and many side by side: the rows are served,
    and what is looked at is bounded."""
    path = foreign(tmp_path / "groups.h5")
    with h5py.File(path, "a", libver=libver) as file:
        group = file.create_group("deep").id
        for _ in range(3000):
            group = h5py.h5g.create(group, b"g")
        many = file.create_group("many").id
        for number in range(20_000):
            h5py.h5g.create(many, b"%d" % number)
    with counted() as calls, AsyncReader(path=path, batch_size=2) as reader:
        assert len(reader) == 3
    assert sum(calls.values()) < 200_000  # 10,000 of these groups are looked at
    for found, expected in zip(
        rows_of(path)[:2], rows_of(foreign(tmp_path / "none.h5"))[:2], strict=True
    ):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("libver", ["earliest", "latest"])
def test_a_great_many_names(tmp_path: Path, libver: str) -> None:
    """Opening keeps no name of 20,000 groups beside the data in memory, and of as many episodes
    the set has those that match, in the order of their numbers."""
    path = foreign(tmp_path / "beside.h5")
    with h5py.File(path, "a", libver=libver) as file:
        for number in range(20_000):
            h5py.h5g.create(file.id, b"group_%d" % number)
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
