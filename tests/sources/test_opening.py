"""What opening a set looks at: its description, names without number, groups in circles."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from fakes import packed, paint, write_hdf5

import asyncreader
from asyncreader import AsyncReader, FormatError
from asyncreader.formats import packed as fmt
from asyncreader.sources.bytestore import OpenFile
from asyncreader.sources.hdf5.file import Hdf5
from asyncreader.sources.hdf5.listing import some_names
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


@pytest.mark.parametrize("libver", ["earliest", "latest"])
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
    with Hdf5(found, checked=True) as h5:
        assert read_meta(h5) == meta
