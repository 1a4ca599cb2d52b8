"""All layouts of one HDF5 or LMDB set: that of asyncreader, and those of others.

A layout of others is told by content: the first of the list that recognises a set indexes it. Those
of HDF5 that are no more than well-known names of data and labels stand here themselves."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Final, TypeAlias

from ...errors import FormatError, ParamsError
from ...formats import packed as fmt
from ...system.late import h5py
from ..bytestore import ByteFile, OpenFile
from ..fields import Layout, SetIndex, index_of, index_set
from ..hdf5.file import Hdf5, read_meta, translated
from ..lmdb import LmdbFile
from ..request import Request
from . import caffe, fuel, image_files, msgpack
from .anndata import index_anndata, is_anndata
from .hdf5_data import Hdf5Set, index_data
from .hdf5_episodes import index_episodes
from .hdf5_sparse import index_sparse, index_tenx, is_sparse, is_tenx
from .loom import index_loom, is_loom
from .packed import index_packed_hdf5, index_packed_lmdb
from .pandas import index_pandas, is_pandas
from .plugins import ForeignSet, Hdf5Layout, LmdbLayout, index_installed, is_pickle, unknown

#: Fuel's usual names of images; labels are ``targets``.
_FUEL: Final = ("features", "image_features", "encoded_images", "images")
#: What BigGAN-PyTorch's make_hdf5.py writes, and what followed it: (N, C, H, W), and ``labels``.
_GAN: Final = "imgs"
#: Usual names of encoded images of variable length.
_ENCODED: Final = ("encoded_images", "images", "image", "jpegs", "x")
#: Names of labels, tried where there is no ``labels``: Caffe's HDF5Data, Fuel, others.
LABEL_NAMES: Final = ("label", "targets", "target")


def _there(found: Hdf5Set, names: Iterable[str]) -> str | None:
    """The first of these names that the file has, where the caller names no data."""
    return next((name for name in names if name in found.h5.names), None) if found.unnamed else None


def _with_labels(found: Hdf5Set, data: str) -> Request:
    """``data``, and the labels beside them that go by a usual name: the first of their number, else
    the first, whose number is then an error."""
    fields = replace(found.fields, data=data)
    rows = found.samples(data) if found.labels_unnamed and "/" not in data else None
    if rows is None:
        return fields
    named = ((name, found.samples(name)) for name in LABEL_NAMES)
    there = [(name, one) for name, one in named if one is not None and one.dtype.kind in "buif"]
    fit = [name for name, one in there if found.unlabelled or one.shape[0] == rows.shape[0]]
    names = fit or [name for name, _ in there]
    return replace(fields, labels=names[0]) if names else fields


def _by_names(found: Hdf5Set, layout: str, data: str | None = None) -> SetIndex:
    """The index of a recognised set: ``data`` where the layout has a name for them, and the labels
    beside them."""
    return index_data(found.named(layout, _with_labels(found, data or found.fields.data)))


def _index_fuel(found: Hdf5Set) -> SetIndex:
    found = replace(found, unlabelled=True, axes=fuel.axis_order)
    return _by_names(found, "Fuel", _there(found, _FUEL) or _encoded(found))


def _encoded(found: Hdf5Set) -> str | None:
    """The data set of variable length that goes by a usual name."""
    for name in _ENCODED if found.unnamed else ():
        data = found.samples(name)
        if data is not None and h5py.check_vlen_dtype(data.dtype) is not None:
            return name
    return None


def _index_gan(found: Hdf5Set) -> SetIndex:
    data = _there(found, [_GAN]) or found.fields.data
    axes = fuel.axis_order if data == _GAN else found.axes
    return _by_names(replace(found, axes=axes), "BigGAN-PyTorch", data)


# -- PCam ----------------------------------------------------------------------------------------


def _pcam(found: Hdf5Set) -> Request | None:
    """The images ``x``; their labels ``y`` are in ..._y.h5 next to ..._x.h5, or where the caller
    says."""
    fields = found.fields
    if found.h5.names != {"x"} or not (found.unnamed or fields.data == "x"):
        return None
    labels_path, neighbour = fields.labels_path, re.sub(r"_x(\.\w+)$", r"_y\1", found.path)
    if labels_path is None and fields.labels == "labels" and neighbour != found.path:
        labels_path = neighbour if os.path.isfile(neighbour) else None
    if labels_path is None:
        return replace(fields, data="x") if fields.labels is None else None
    labels = "y" if fields.labels == "labels" else fields.labels
    return replace(fields, data="x", labels=labels, labels_path=labels_path, labels_required=True)


def _index_pcam(found: Hdf5Set) -> SetIndex:
    fields = _pcam(found)
    assert fields is not None
    return index_data(found.named("PCam", fields))


# -- Caffe's HDF5Data, and what has usual names ---------------------------------------------------


def _index_plain(found: Hdf5Set) -> SetIndex:
    try:
        return _by_names(found, "")
    except (FormatError, ParamsError):
        installed = index_installed(found, Hdf5Layout)
        if installed is None:
            raise
        return installed


#: All layouts of HDF5 sets that others packed; the first that recognises a set reads it.
HDF5_LAYOUTS: Final[tuple[Layout[Hdf5Set], ...]] = (
    Layout("AnnData", is_anndata, index_anndata),
    Layout("loom", is_loom, index_loom),
    Layout("10x Genomics", is_tenx, index_tenx),
    Layout("pandas", is_pandas, index_pandas),
    Layout("sparse rows", is_sparse, lambda found: index_sparse(found.named("", found.fields))),
    Layout("Fuel", lambda found: fuel.split_table(found.h5) is not None, _index_fuel),
    Layout(
        "encoded images of variable length",
        lambda found: _encoded(found) is not None,
        lambda found: _by_names(found, "", _encoded(found)),
    ),
    Layout(
        "BigGAN-PyTorch",
        lambda found: _GAN in found.h5.names and fmt.DATA not in found.h5.names,
        _index_gan,
    ),
    Layout("PCam", lambda found: _pcam(found) is not None, _index_pcam),
    Layout(
        "Caffe HDF5Data",
        lambda found: found.fields.data == "data" and _with_labels(found, "data").labels == "label",
        lambda found: _by_names(found, "Caffe HDF5Data"),
    ),
    Layout("", lambda found: True, _index_plain),
)


def index_hdf5(file: ByteFile, fields: Request) -> SetIndex:
    """The index of an open file."""
    with translated(file.path), Hdf5(file) as h5:
        meta = read_meta(h5)

        def index(one: Request) -> SetIndex:
            found = Hdf5Set(file, h5, one)
            return index_of(found, HDF5_LAYOUTS) if meta is None else index_packed_hdf5(found, meta)

        found = None
        if meta is None or fields.episodes is not None:
            found = index_episodes(Hdf5Set(file, h5, fields), index)
        return found or index_set(fields, index)


# -- LMDB ------------------------------------------------------------------------------------------


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
        installed = index_installed(found, LmdbLayout)
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
    names = sorted(name.decode("ascii", "backslashreplace") for name in found.named)
    raise unknown(f"named databases {', '.join(names)}")


def _refuse_unknown(found: ForeignSet) -> SetIndex:
    begins = f"values that begin with {found.first[:8].hex(' ')}"
    raise unknown(begins, found.records, caffe.refusal(found.records))


#: All layouts of LMDB sets that others packed; the first that recognises a set reads it.
LMDB_LAYOUTS: Final[tuple[Layout[ForeignSet], ...]] = (
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


def index_lmdb(file: OpenFile, fields: Request) -> SetIndex:
    """The index of a set whose data file is open, packed by asyncreader or in another layout.

    FormatError if it is damaged, truncated or of an unknown layout; SourceNotFoundError or
    ParamsError if it lacks a field of ``fields``.
    """
    fields.check_rows("LMDB")
    tree = LmdbFile(file.mapped.bytes, file.path)
    named = tree.named()
    if fmt.META.encode() in named and fmt.DATA.encode() in named:
        return index_set(fields, lambda one: index_packed_lmdb(file, tree, named, one))

    def index(one: Request) -> SetIndex:
        return index_of(ForeignSet(file, tree, named, one), LMDB_LAYOUTS)

    return index_set(fields, index)
