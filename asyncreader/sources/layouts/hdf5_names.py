"""Field names of well-known HDF5 sets, used if the caller names no fields."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace
from typing import Final

from ..hdf5.checks import Dataset
from ..hdf5.file import Hdf5
from ..request import Hdf5Fields
from . import fuel

_DATA, _LABELS = "data", "labels"

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


#: What the table in docs/layouts.md says of layouts of HDF5 files that are known by their names.
HDF5_ROWS: Final = (
    "| `BigGAN-PyTorch` | HDF5 `imgs`, N x C x H x W or N x H x W x C | `imgs` with `labels` | "
    "other axes: `num_dim` ... |",
    "| `encoded images of variable length` | HDF5 of variable length, `images` ... | "
    "pictures; `labels`, `label`, `targets` | other names: `data_field`, `labels_field` |",
    "| `Fuel` | attribute `split`, or that of 2015 | `features`, `image_features` or "
    "`encoded_images`; pixels of variable length by their `shapes`; `targets` | a split: "
    '`subset="train"`; samples without labels: `labels_field=None` too |',
    "| `DeepLearning.ai` | `train_set_x` or `test_set_x` | with `..._y` and `list_classes` | |",
    "| `PCam` | `x`, and `..._y.h5` next to `..._x.h5` | `x` with `y` | labels elsewhere: "
    "`labels_path` |",
    "| `Caffe HDF5Data list` | text, its first line an HDF5 file | all files as one set, N "
    "x C x H x W | other axes: `num_dim` ... |",
)


@dataclass(frozen=True)
class Known:
    """What was recognised: a name for the layout ("" for none), and its fields."""

    layout: str
    fields: Hdf5Fields
    classes: str | None = None
    fuel: bool = False
    #: The fields by name, where the caller did not name them.
    names: str = ""

    def said(self, how: str) -> str:
        """``how`` the data are stored, after the name of the layout."""
        layout = f"{self.layout} ({self.names})" if self.layout and self.names else self.layout
        return ", ".join(word for word in (layout or self.names, how) if word)


def recognise(h5: Hdf5, fields: Hdf5Fields) -> Known:
    """This file's field names, in place of the defaults that the caller left."""
    root = h5.names
    given = (fields.data, fields.labels)
    is_fuel = fuel.is_fuel(h5) or (not root.isdisjoint(_FUEL) and fuel.is_fuel_of_2015(h5))
    if fields.data == _DATA and _DATA not in root:
        for data in _COURSE:
            if data in root:
                fields = replace(fields, data=data)
                break
        else:
            fields = _images(h5, fields, is_fuel)
    if fields.labels == _LABELS and not fields.labels_required and _LABELS not in root:
        fields = replace(fields, labels=_partner(h5, fields, is_fuel))
    layout = "Fuel" if is_fuel else ""
    classes = None
    if fields.data in _COURSE:
        layout = "DeepLearning.ai"
        classes = _COURSE_CLASSES if _COURSE_CLASSES in root else None
    elif fields.data == "x" and fields.labels == "y" and fields.labels_path is not None:
        layout = "PCam"
    elif fields.data == _GAN and given[0] == _DATA:
        layout = "BigGAN-PyTorch"
    elif fields.listed:
        layout = "Caffe HDF5Data list"
    elif not layout and fields.labels == "label" and fields.data == _DATA:
        layout = "Caffe HDF5Data"
    names = fields.data
    if fields.labels is not None and (fields.labels_path or fields.labels in root):
        names += f", labels from {fields.labels}"
    chosen = (fields.data, fields.labels) != given
    return Known(layout, fields, classes, is_fuel, names if chosen else "")


def _images(h5: Hdf5, fields: Hdf5Fields, is_fuel: bool) -> Hdf5Fields:
    import h5py

    root = h5.names
    if is_fuel:
        for name in _FUEL:
            if name in root:
                return replace(fields, data=name)
    for name in _ENCODED:
        data = _numbers(h5, name) if name in root else None
        if data is not None and h5py.check_vlen_dtype(data.dtype) is not None:
            return replace(fields, data=name)
    if _GAN in root:
        data = _numbers(h5, _GAN)
        dims = None if data is None else fuel.axis_order(data.shape)
        return replace(fields, data=_GAN, dims=fields.dims or dims)
    if root == {"x"}:
        return _pcam(fields, h5.path)
    return fields


def _pcam(fields: Hdf5Fields, path: str) -> Hdf5Fields:
    """PCam's images: the labels ``y`` are in ..._y.h5 next to ..._x.h5."""
    labels_path = fields.labels_path
    neighbour = re.sub(r"_x(\.\w+)$", r"_y\1", path)
    if labels_path is None and fields.labels == _LABELS and neighbour != path:
        labels_path = neighbour if os.path.isfile(neighbour) else None
    if labels_path is None:
        return replace(fields, data="x") if fields.labels is None else fields
    labels = "y" if fields.labels == _LABELS else fields.labels
    return replace(fields, data="x", labels=labels, labels_path=labels_path, labels_required=True)


def _partner(h5: Hdf5, fields: Hdf5Fields, is_fuel: bool) -> str | None:
    """The labels that go with ``fields.data``; "labels", which the file lacks, for none."""
    root = h5.names
    if fields.data in _COURSE:
        return _COURSE[fields.data] if _COURSE[fields.data] in root else fields.labels
    rows = _numbers(h5, fields.data) if "/" not in fields.data and fields.data in root else None
    for name in _LABEL_NAMES:
        labels = _numbers(h5, name) if name in root else None
        if rows is None or labels is None or labels.dtype.kind not in "buif":
            continue
        if is_fuel or labels.shape[0] == rows.shape[0]:
            return name
    return fields.labels


def _numbers(h5: Hdf5, name: str) -> Dataset | None:
    """A data set of the root group that is in this file, or None."""
    item = h5.member(name)
    return item if item is not None and item.ndim else None
