"""Every kind of data set behind one door: ``open_source`` tells by content what a path holds."""

from __future__ import annotations

import glob
import os
import stat
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ..errors import FormatError, SourceNotFoundError
from ..params import ReaderParams
from .base import RowError, RowPlan, Source, SourceSpec, fingerprint
from .concat import ConcatSource
from .fields import Hdf5Fields
from .hdf5 import is_hdf5, open_hdf5
from .hdf5_list import is_list, listed_files
from .lmdb import lmdb_data_file, open_lmdb

__all__ = [
    "Hdf5Fields",
    "RowError",
    "RowPlan",
    "Source",
    "SourceSpec",
    "container_of",
    "expand_paths",
    "fields_of",
    "fingerprint",
    "open_source",
]


def fields_of(p: ReaderParams) -> Hdf5Fields:
    """Which fields of a set a reader's parameters name."""
    return Hdf5Fields(
        data=p.data_field,
        labels=p.labels_field,
        labels_path=p.labels_path,
        dims=p.dims,
        labels_required=p.labels_field != "labels" or p.labels_path is not None,
        channel_order=p.channel_order,
    )


def container_of(path: str) -> str:
    """ "HDF5" or "LMDB", by content. SourceNotFoundError or FormatError if neither."""
    if not os.path.lexists(path):
        raise SourceNotFoundError("no such file or folder", path=path)
    try:
        mode = os.stat(path).st_mode
    except OSError as exc:
        raise SourceNotFoundError(f"cannot be reached: {exc.strerror}", path=path) from exc
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        raise FormatError("not a regular file", path=path, hint="a pipe or device is never opened")
    if lmdb_data_file(path) is not None:
        return "LMDB"
    if os.path.isdir(path):
        raise FormatError(
            "a folder without an LMDB data file in it",
            path=path,
            hint="pack a folder of pictures with: asyncreader convert FOLDER out.h5",
        )
    if is_hdf5(path) or is_list(path):
        return "HDF5"
    raise FormatError(
        "neither HDF5 nor LMDB by its content",
        path=path,
        hint="is it complete? pack pictures with: asyncreader convert FOLDER out.h5",
    )


def expand_paths(path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> list[str]:
    """The files that a path, a glob pattern or a list of either names, in that order."""
    if not isinstance(path, str | os.PathLike):
        return [found for entry in path for found in expand_paths(entry)]
    text = os.fspath(path)
    if os.path.lexists(text) or not glob.has_magic(text):
        return [text]
    found = sorted(glob.glob(text, recursive=True))
    if not found:
        raise SourceNotFoundError("nothing matches this pattern", path=text)
    return found


def open_source(
    path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    fields: Hdf5Fields | None = None,
    *,
    io: str = "auto",
    expect: str | None = None,
) -> Source:
    """Open packed files as one source.

    ``expect``: "HDF5" or "LMDB" where only that will do. Raises SourceNotFoundError, FormatError
    or ParamsError; nothing stays open then.
    """
    fields = fields or Hdf5Fields()
    opened: list[Any] = []
    try:
        for name in expand_paths(path):
            kind = container_of(name)
            if expect is not None and kind != expect:
                raise FormatError(f"not an {expect} file", path=name, found=kind)
            if kind == "LMDB":
                opened.append(open_lmdb(name, fields, io=io))
            elif is_hdf5(name):
                opened.append(open_hdf5(name, fields, io=io))
            else:
                caffe = replace(fields, listed=True)
                for file in listed_files(name):
                    if container_of(file) != "HDF5" or not is_hdf5(file):
                        raise FormatError("a list names a file that is not HDF5", path=file)
                    opened.append(open_hdf5(file, caffe, io=io))
        if not opened:
            raise SourceNotFoundError("no files were named", path=str(path))
        whole: Source = opened[0] if len(opened) == 1 else ConcatSource(opened)
        return whole
    except BaseException:
        for source in opened:
            source.close()
        raise
