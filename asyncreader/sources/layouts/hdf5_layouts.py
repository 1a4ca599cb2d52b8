"""Layouts of HDF5 sets: packed by asyncreader, and well-known names that others give their data."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from typing import Final

from ...errors import FormatError, ParamsError
from ...formats import packed as fmt
from ...system.late import h5py
from ..bytestore import ByteFile
from ..fields import Layout, SetIndex, index_of, index_set
from ..hdf5.file import Hdf5, read_meta, translated
from ..request import Request
from . import fuel
from .anndata import index_anndata, is_anndata
from .hdf5_data import index_data
from .hdf5_episodes import index_episodes
from .hdf5_set import Hdf5Set
from .hdf5_sparse import index_sparse, index_tenx, is_sparse, is_tenx

#: DeepLearning.ai's course sets: one file for training, one for testing.
_COURSE: Final = {"train_set_x": "train_set_y", "test_set_x": "test_set_y"}
_COURSE_CLASSES: Final = "list_classes"
#: Fuel's usual names of images; labels are ``targets``.
_FUEL: Final = ("features", "image_features", "encoded_images", "images")
#: What BigGAN-PyTorch's make_hdf5.py writes, and what followed it: (N, C, H, W), and ``labels``.
_GAN: Final = "imgs"
#: Usual names of encoded images of variable length.
_ENCODED: Final = ("encoded_images", "images", "image", "jpegs", "x")
#: Names of labels, tried where there is no ``labels``: Caffe's HDF5Data, Fuel, others.
_LABEL_NAMES: Final = ("label", "targets", "target")


def _with_labels(found: Hdf5Set, data: str) -> Request:
    """``data``, and the labels beside them that go by a usual name: the first of their number, else
    the first, whose number is then an error."""
    fields = replace(found.fields, data=data)
    rows = found.samples(data) if found.labels_unnamed and "/" not in data else None
    if rows is None:
        return fields
    named = ((name, found.samples(name)) for name in _LABEL_NAMES)
    there = [(name, one) for name, one in named if one is not None and one.dtype.kind in "buif"]
    fit = [name for name, one in there if found.unlabelled or one.shape[0] == rows.shape[0]]
    names = fit or [name for name, _ in there]
    return replace(fields, labels=names[0]) if names else fields


# -- DeepLearning.ai -----------------------------------------------------------------------------


def _course(found: Hdf5Set) -> str | None:
    """The data of a course set: those that are named, else the first there."""
    if not found.unnamed:
        return found.fields.data if found.fields.data in _COURSE else None
    return next((name for name in _COURSE if name in found.h5.names), None)


def _index_course(found: Hdf5Set) -> SetIndex:
    data = _course(found)
    assert data is not None
    fields = replace(found.fields, data=data)
    if found.labels_unnamed and _COURSE[data] in found.h5.names:
        fields = replace(fields, labels=_COURSE[data])
    classes = _COURSE_CLASSES if _COURSE_CLASSES in found.h5.names else None
    return index_data(replace(found.named("DeepLearning.ai", fields), classes=classes))


# -- Fuel ----------------------------------------------------------------------------------------


def _index_fuel(found: Hdf5Set) -> SetIndex:
    found = replace(found, unlabelled=True, axes=fuel.axis_order)
    data = found.fields.data
    if found.unnamed:
        data = next((name for name in _FUEL if name in found.h5.names), _encoded(found) or data)
    return index_data(found.named("Fuel", _with_labels(found, data)))


# -- encoded images ------------------------------------------------------------------------------


def _encoded(found: Hdf5Set) -> str | None:
    """The data set of variable length that goes by a usual name."""
    for name in _ENCODED if found.unnamed else ():
        data = found.samples(name)
        if data is not None and h5py.check_vlen_dtype(data.dtype) is not None:
            return name
    return None


def _index_encoded(found: Hdf5Set) -> SetIndex:
    return index_data(found.named("", _with_labels(found, _encoded(found) or "")))


# -- BigGAN-PyTorch ------------------------------------------------------------------------------


def _index_gan(found: Hdf5Set) -> SetIndex:
    data = _GAN if found.unnamed else found.fields.data
    named = found.named("BigGAN-PyTorch", _with_labels(found, data))
    return index_data(replace(named, axes=fuel.axis_order) if data == _GAN else named)


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


def _index_list(found: Hdf5Set) -> SetIndex:
    fields = _with_labels(found, found.fields.data)
    named = found.named("Caffe HDF5Data list", fields)
    return index_data(replace(named, axes=lambda shape: (1, 3, 4, 2)))


def _is_caffe(found: Hdf5Set) -> bool:
    return found.fields.data == "data" and _with_labels(found, "data").labels == "label"


def _index_caffe(found: Hdf5Set) -> SetIndex:
    return index_data(found.named("Caffe HDF5Data", _with_labels(found, found.fields.data)))


def _index_plain(found: Hdf5Set) -> SetIndex:
    try:
        return index_data(found.named("", _with_labels(found, found.fields.data)))
    except (FormatError, ParamsError):
        from .plugins import Hdf5Layout, index_installed

        installed = index_installed(found, Hdf5Layout, found.file)
        if installed is None:
            raise
        return installed


#: All layouts of HDF5 sets; the first that recognises a set reads it.
LAYOUTS: Final[tuple[Layout[Hdf5Set], ...]] = (
    Layout("asyncreader", lambda found: found.whole is not None, index_data),
    Layout(
        "AnnData",
        is_anndata,
        index_anndata,
        "`.h5ad`: `X`, `obs`, `var` | `X`, sparse rows (CSR) as dense ones of float32 | "
        '`data_field="layers/counts"` or `"raw/X"`; `labels_field="obs/cell_type"`: categories '
        "or text as classes; `columns`",
    ),
    Layout(
        "10x Genomics",
        is_tenx,
        index_tenx,
        "`matrix` with `barcodes` | cells as rows of float32 | `columns`: numbers, ids or names of "
        "features",
    ),
    Layout(
        "sparse rows",
        lambda found: is_sparse(found, found.fields.data),
        lambda found: index_sparse(found.named("", found.fields)),
        "a group of `data`, `indices`, `indptr`, with its `shape` (CSR) | dense rows of float32 | "
        "the group: `data_field`; `columns`",
    ),
    Layout(
        "DeepLearning.ai",
        lambda found: _course(found) is not None,
        _index_course,
        "`train_set_x` or `test_set_x` | with `..._y` and `list_classes` |",
    ),
    Layout(
        "Fuel",
        lambda found: fuel.is_fuel(found.h5),
        _index_fuel,
        "attribute `split` | `features`, `image_features` or `encoded_images`; "
        "pixels of variable length by their `shapes`; `targets` | a split: "
        '`subset="train"`; samples without labels: `labels_field=None` too',
    ),
    Layout(
        "encoded images of variable length",
        lambda found: _encoded(found) is not None,
        _index_encoded,
        "HDF5 of variable length, `images` ... | images; `labels`, `label`, `targets` | other "
        "names: `data_field`, `labels_field`",
    ),
    Layout(
        "BigGAN-PyTorch",
        lambda found: _GAN in found.h5.names and fmt.DATA not in found.h5.names,
        _index_gan,
        "HDF5 `imgs`, N x C x H x W or N x H x W x C | `imgs` with `labels` | other axes: "
        "`num_dim` ...",
    ),
    Layout(
        "PCam",
        lambda found: _pcam(found) is not None,
        _index_pcam,
        "`x`, and `..._y.h5` next to `..._x.h5` | `x` with `y` | labels elsewhere: `labels_path`",
    ),
    Layout(
        "Caffe HDF5Data list",
        lambda found: found.fields.listed,
        _index_list,
        "text, its first line an HDF5 file | all files as one dataset, N x C x H x W | other axes: "
        "`num_dim` ...",
    ),
    Layout(
        "Caffe HDF5Data",
        _is_caffe,
        _index_caffe,
        "HDF5 `data`, `label` | `data` with `label` | the axes: `num_dim` ...",
    ),
    Layout("", lambda found: True, _index_plain),
)


def index_hdf5(file: ByteFile, fields: Request) -> SetIndex:
    """The index of an open file."""
    with translated(file.path), Hdf5(file, checked=True) as h5:
        meta = read_meta(h5)

        def index(one: Request) -> SetIndex:
            return index_of(Hdf5Set(file, h5, one, meta), LAYOUTS)

        found = None
        if meta is None or fields.episodes is not None:
            found = index_episodes(Hdf5Set(file, h5, fields, meta), index)
        return found or index_set(fields, index)
