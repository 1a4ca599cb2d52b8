"""What an HDF5 file says that the numbers of a data set mean, in attributes: CF, ODIM and MINC."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from ...errors import FormatError
from ...system.array_types import Array
from ...system.late import h5py
from ..physical import Meaning
from ..request import Request
from .checks import attribute
from .file import Hdf5
from .stored import Stored

#: The attributes by which conventions say that values are scaled, shifted or missing: of a data set
#: (CF), and of a group ``what`` beside it (ODIM, the radars of weather services).
_CF: Final = ("scale_factor", "add_offset", "_FillValue", "missing_value")
_ODIM: Final = ("gain", "offset", "nodata", "undetect")
#: What ``_Unsigned`` may say of whole numbers: by their kind, and the kind that they then are.
_SIGNS: Final = {"i": ("true", "u"), "u": ("false", "i")}
#: More numbers than these of an attribute are not shown.
_SHOWN: Final = 4


def meaning_of(h5: Hdf5, data: Stored, name: str, asked: Request) -> Meaning | None:
    """What the file says of the numbers of the data set ``name``, where their values are asked for;
    None where nothing is said. One warning of numbers that are served as stored."""
    found = _of_attributes(h5, data, name, asked.physical) or _of_slices(h5, data, name)
    if found is None:
        return None
    if not asked.physical:
        warnings.warn(
            f"field {asked.data!r} is served as stored, and its attributes say that numbers of it "
            f'are packed or missing ({found.said}): values="physical" serves what they mean, with '
            "NaN where one is missing",
            stacklevel=2,
        )
        return None
    return found


def _words(said: Mapping[str, Array | str]) -> str:
    """Attributes in words; of long ones how many numbers they have."""
    words = []
    for key, value in said.items():
        few: object = value
        if not isinstance(value, str):
            few = value.item() if value.size == 1 else value.tolist()
            few = few if value.size <= _SHOWN else f"{value.size} numbers"
        words.append(f"{key} = {few}")
    return ", ".join(words)


def _of_attributes(h5: Hdf5, data: Stored, name: str, served: bool) -> Meaning | None:
    """What CF's attributes of a data set say, or ODIM's of the group ``what`` beside it.
    FormatError where one cannot be read, and the values are ``served``."""
    stored = np.dtype(h5py.check_vlen_dtype(data.dtype) or data.dtype)
    item, keys, kind = data.data, _CF, stored
    group = name.strip("/").rpartition("/")[0]
    what = h5.reach(f"{group}/what") if group else None
    if isinstance(what, h5py.h5g.GroupID) and h5py.h5a.exists(what, b"gain"):
        item, keys = h5py.Group(what), _ODIM
    if not h5py.h5a.get_num_attrs(item.id):
        return None
    said: dict[str, Any] = {}
    for key, usual in zip(keys, (1, 0, np.nan, np.nan), strict=True):
        values = np.asarray(attribute(item, key)).reshape(-1)
        # NaN is one wherever it is served
        if values.dtype.kind in "iuf" and ((values != usual) & ~np.isnan(values)).any():
            said[key] = values
    scale, offset = (said.get(key, [usual])[0] for key, usual in zip(keys, (1, 0), strict=False))
    missing = [one for key in keys[2:] for one in said.get(key, ())]
    signs = _SIGNS.get(kind.kind)
    if signs is not None and _text(h5, data, name, served) == signs[0]:
        said["_Unsigned"] = signs[0]
        kind = np.dtype(kind.str.replace(kind.kind, signs[1]))
    if not said:
        return None
    numbers = (_as_stored(one, stored, kind) for one in missing if kind.kind in "iuf")
    there = tuple(one for one in numbers if one is not None)
    return Meaning(kind, there, np.array(scale, float), np.array(offset, float), _words(said))


def _text(h5: Hdf5, data: Stored, name: str, served: bool) -> str | None:
    """What ``_Unsigned`` of a data set says."""
    if not h5py.h5a.exists(data.id, b"_Unsigned"):
        return None
    value = attribute(data.data, "_Unsigned")
    if isinstance(value, bytes):
        return value.decode("latin-1")
    try:
        return h5.text(name, "_Unsigned")
    except FormatError:
        if served:
            raise
        return "true"


def _as_stored(value: Any, stored: np.dtype[Any], kind: np.dtype[Any]) -> Any:
    """A number as one of ``stored``, read as ``kind``, or as it is given of ``kind``; None where
    there is no such number."""
    with np.errstate(all="ignore"):
        for dtype in (stored, kind):
            number = np.asarray(value).astype(dtype)
            if kind.kind == "f" or number == value:
                return number.view(kind)[()]
    return None


def _of_slices(h5: Hdf5, data: Stored, name: str) -> Meaning | None:
    """What MINC says of the slices of an image: the values that its least and its greatest number
    mean in each of them."""
    group, _, last = name.rpartition("/")
    if last != "image" or data.dtype.kind not in "iu":
        return None
    ends = [h5.find(f"{group}/{one}") for one in ("image-min", "image-max")]
    if None in ends:
        return None
    # one number for all slices is read as an array of one
    low, high = (one.read().astype(float).reshape(one.shape) for one in ends if one is not None)
    info, valid = np.iinfo(data.dtype), np.ravel(attribute(data.data, "valid_range"))
    least, most = valid.tolist() if valid.size == 2 else (info.min, info.max)
    if low.shape != high.shape or low.shape != data.shape[: low.ndim] or not least < most:
        raise data.refuse(
            "image-min, image-max and valid_range are not those of the image",
            found=f"shapes {low.shape} and {high.shape}, range {least} to {most}",
            expected=f"the first axes of {data.shape}",
        )
    scale = (high - low) / (most - least)
    offset = low - least * scale
    scale, offset = (
        one.reshape(one.shape + (1,) * (data.ndim - one.ndim) * (one.ndim > 0))
        for one in (scale, offset)
    )
    said = {"image-min": low, "image-max": high, "valid_range": np.array([least, most])}
    return Meaning(data.dtype, (), scale, offset, _words(said), (least, most))
