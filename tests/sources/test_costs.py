"""What opening a set costs, in what can be counted: calls of the package, and opened files."""

from __future__ import annotations

import os
import pickle
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from types import FrameType
from typing import Any

import h5py
import numpy as np
import pytest
from fakes import Packed, packed, paint, write_hdf5, write_lmdb

import asyncreader
from asyncreader.params import parse_params
from asyncreader.sources import open_reader_source
from asyncreader.system import late

PACKAGE = os.path.dirname(asyncreader.__file__)


def foreign(path: str, content: Packed) -> str:
    """Images and labels as h5py writes them."""
    with h5py.File(path, "w") as file:
        file["data"], file["labels"] = paint(6, (9, 8, 3)), np.arange(6)
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
