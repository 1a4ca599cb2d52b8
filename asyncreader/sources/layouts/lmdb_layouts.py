"""LMDB sets: packed by asyncreader, or in a layout of others, which is told by content."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

from ...formats import packed as fmt
from ..bytestore import OpenFile
from ..fields import Layout, SetIndex, index_of, index_set
from ..lmdb import LmdbFile
from ..request import Request
from . import caffe, image_files, msgpack
from .packed import index_packed_lmdb
from .plugins import ForeignSet, LmdbLayout, index_installed, is_pickle, unknown

#: Makes the index of a set.
Index: TypeAlias = Callable[[ForeignSet], SetIndex]


def _refuse_pickles(found: ForeignSet) -> SetIndex:
    raise found.records.refuse(
        0,
        "its samples are Python pickles, which can run any code when they are read",
        found=f"a value that begins with {found.first[:2].hex(' ')}",
        hint="if you trust whoever wrote it, read it by a few lines of Python and give its samples "
        "to asyncreader.Writer: docs/layouts.md has them",
    )


def _unless_installed(refuse: Index) -> Index:
    """``refuse``, for a set that no installed layout (plugins.py) recognises either."""

    def index(found: ForeignSet) -> SetIndex:
        installed = index_installed(found, LmdbLayout, found.path)
        return refuse(found) if installed is None else installed

    return index


def _refuse_pyarrow(found: ForeignSet) -> SetIndex:
    raise found.records.refuse(
        0,
        "its samples are neither msgpack nor pickle; pyarrow.serialize wrote such datasets until "
        "2021, and no pyarrow of today reads them",
        found=f"a value that begins with {found.first[:8].hex(' ')}",
        hint="convert the original images again: asyncreader convert FOLDER NEW.h5",
    )


def _refuse_databases(found: ForeignSet) -> SetIndex:
    raise unknown(found.path, f"named databases {', '.join(sorted(map(_name, found.named)))}")


def _refuse_unknown(found: ForeignSet) -> SetIndex:
    begins = f"values that begin with {found.first[:8].hex(' ')}"
    raise unknown(found.path, begins, found.records, caffe.refusal(found.records))


#: All layouts of LMDB sets that others packed; the first that recognises a set reads it.
LAYOUTS: Final[tuple[Layout[ForeignSet], ...]] = (
    msgpack.PYXIS,
    msgpack.PYXIS_BRANCH,
    Layout("", lambda found: bool(found.named), _unless_installed(_refuse_databases)),
    image_files.OCR,
    image_files.BASICSR,
    Layout("", lambda found: is_pickle(found.records), _refuse_pickles),
    image_files.STYLEGAN,
    msgpack.TENSORPACK,
    Layout("", lambda found: found.keyed, _unless_installed(_refuse_pyarrow)),
    image_files.BARE,
    caffe.DATUM,
    Layout("", lambda found: True, _unless_installed(_refuse_unknown)),
)


def index_lmdb(path: str, file: OpenFile, fields: Request) -> SetIndex:
    """The index of a set whose data file is open, packed by asyncreader or in another layout.
    ``path``: its name for messages.

    FormatError if it is damaged, truncated or of an unknown layout; SourceNotFoundError or
    ParamsError if it lacks a field of ``fields``.
    """
    fields.check_rows("LMDB", path)
    tree = LmdbFile(file.mapped.bytes, path)
    named = tree.named()
    if fmt.META.encode() in named and fmt.DATA.encode() in named:
        return index_set(fields, lambda one: index_packed_lmdb(path, file, tree, named, one))

    def index(one: Request) -> SetIndex:
        return index_of(ForeignSet(path, file, tree, named, one), LAYOUTS)

    return index_set(fields, index)


def _name(name: bytes) -> str:
    return name.decode("ascii", "backslashreplace")
