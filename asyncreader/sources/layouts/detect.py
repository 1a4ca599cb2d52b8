"""Detects the layout of LMDB sets that others packed, by content."""

from __future__ import annotations

import os
import shlex
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from ...errors import FormatError
from ..base import FieldIndex
from ..bytestore import OpenFile
from ..images import image_kind
from ..lmdb.btree import LmdbFile, Tree
from ..lmdb.entries import Entries
from ..request import Hdf5Fields
from .base import ForeignSet, in_order, unknown

Int64 = npt.NDArray[np.int64]

#: Keys of some layouts that are not records.
_KEYS, _LENGTH_OF, _LENGTH, _SAMPLES = b"__keys__", b"__len__", b"length", b"num-samples"

#: What a pickle begins with: the opcode PROTO and a protocol from 2 to 5.
_PICKLES: Final = tuple(bytes((0x80, protocol)) for protocol in range(2, 6))


def index_foreign(
    path: str, file: OpenFile, tree: LmdbFile, named: dict[bytes, Tree], fields: Hdf5Fields
) -> FieldIndex:
    """The index of an LMDB set that others packed.

    FormatError if it is damaged or of an unknown layout; SourceNotFoundError or ParamsError if it
    lacks a field of ``fields``.
    """
    from . import caffe, image_files, msgpack

    found = ForeignSet(path, file, tree, fields)
    if b"data_db" in named and b"meta_db" in named:
        return msgpack.index_pyxis(found, named[b"data_db"], named[b"meta_db"])
    if msgpack.BRANCH_MAIN in named:
        return msgpack.index_pyxis_branch(found, named)
    if named:
        raise unknown(path, f"named databases {', '.join(sorted(map(_name, named)))}")
    if not tree.main.entries:
        raise FormatError("an LMDB without a record", path=path)
    entries = Entries.of(tree, tree.main)
    samples = tree.find(tree.main, _SAMPLES)
    if samples is not None:
        return image_files.index_ocr(found, entries, samples.tobytes())
    listing = meta_info(path)
    if listing is not None:
        return image_files.index_basicsr(found, entries, listing)
    keyed = tree.find(tree.main, _KEYS) is not None
    length = tree.find(tree.main, _LENGTH)
    entries = records(entries)
    if not len(entries):
        raise FormatError("an LMDB without a record", path=path)
    first = entries.value(0)[:64].tobytes()
    if is_pickle(entries):
        raise FormatError(
            "its samples are Python pickles, which can run any code when they are read",
            **entries.blame(0),
            found=f"a value that begins with {first[:2].hex(' ')}",
            hint="if you trust whoever wrote it, convert it once, on a machine that may be harmed: "
            f"asyncreader convert {shlex.quote(path)} NEW.h5 --allow-pickle",
        )
    if length is not None and image_files.is_stylegan(entries):
        return image_files.index_stylegan(found, entries, length.tobytes())
    if keyed:
        if msgpack.is_datapoint(first):
            return msgpack.index_tensorpack(found, entries)
        raise FormatError(
            "its samples are neither msgpack nor pickle; pyarrow.serialize wrote such sets until "
            "2021, and no pyarrow of today reads them",
            **entries.blame(0),
            found=f"a value that begins with {first[:8].hex(' ')}",
            hint="pack the original pictures again: asyncreader convert FOLDER NEW.h5",
        )
    if image_kind(first) is not None:
        return image_files.index_bare(found, entries)
    why = caffe.refusal(entries)
    if why is None:
        return caffe.index_datum(found, entries)
    raise unknown(path, f"values that begin with {first[:8].hex(' ')}", entries, why)


@dataclass(frozen=True)
class PickledSet:
    """An LMDB whose samples are pickles; only converters unpickle, and only where told to."""

    path: str
    file: OpenFile
    entries: Entries


def pickled_set(path: str) -> PickledSet | None:
    """The records of an LMDB of pickles, sorted by number; None for any other file."""
    from ..lmdb.file import lmdb_data_file, open_tree

    if lmdb_data_file(path) is None:
        return None
    file, tree = open_tree(path, "mmap")
    try:
        entries = None
        if not tree.named() and tree.main.entries:
            entries = in_order(records(Entries.of(tree, tree.main)))
        if entries is not None and len(entries) and is_pickle(entries):
            return PickledSet(path, file, entries)
    except BaseException:
        file.close()
        raise
    file.close()
    return None


def records(entries: Entries) -> Entries:
    """Without the entries that describe the set."""
    special = (_KEYS, _LENGTH_OF, _LENGTH)
    sizes = {len(key) for key in special}
    # only keys of those lengths are compared: there may be millions
    maybe = np.flatnonzero(np.isin(entries.key_sizes, list(sizes)))
    keep = np.ones(len(entries), np.bool_)
    if maybe.size:
        for key in special:
            same = maybe[entries.key_sizes[maybe] == len(key)]
            low = _bisect(entries, same, key)
            if low is not None:
                keep[low] = False
    return entries if keep.all() else entries.pick(keep)


def _bisect(entries: Entries, among: Int64, key: bytes) -> int | None:
    """Which of the entries ``among`` (in key order) has ``key``."""
    low, high = 0, among.size
    while low < high:
        middle = (low + high) // 2
        if entries.key(int(among[middle])) < key:
            low = middle + 1
        else:
            high = middle
    if low < among.size and entries.key(int(among[low])) == key:
        return int(among[low])
    return None


def is_pickle(entries: Entries) -> bool:
    """Whether the first value looks like a pickle of protocol 2 or newer: it ends with a stop."""
    value = entries.value(0)
    return value[:2].tobytes() in _PICKLES and value[-1:].tobytes() == b"."


def meta_info(path: str) -> str | None:
    """BasicSR's list next to the data file, if it exists."""
    folder = path if os.path.isdir(path) else os.path.dirname(path)
    listing = os.path.join(folder, "meta_info.txt")
    return listing if os.path.isfile(listing) else None


def _name(name: bytes) -> str:
    return name.decode("ascii", "backslashreplace")
