"""What conventions of other programs say of a data set's values, in its attributes."""

from __future__ import annotations

import warnings
from typing import Any, Final

import numpy as np

from ...system.late import h5py
from .checks import attribute

#: The attribute of all that MATLAB writes.
MATLAB_CLASS: Final = b"MATLAB_class"
#: MATLAB's classes whose stored numbers are not those of an array: what they are, and what to do.
_CLASSES: Final = {
    b"char": (
        "text as character codes (MATLAB's char)",
        "save class numbers instead: [~, ~, labels] = unique(cellstr(text))",
    ),
    b"cell": (
        "references to other arrays (MATLAB's cell)",
        "join the cells into one array before it is saved: cat(1, cells{:})",
    ),
}
#: The attributes by which the CF conventions say that values are packed, or missing, with the
#: values that say nothing.
_PACKED: Final = {
    "scale_factor": 1,
    "add_offset": 0,
    "_FillValue": np.nan,
    "missing_value": np.nan,
}


def no_samples(data: Any) -> tuple[str, str] | None:
    """What a data set (h5py.Dataset) holds instead of samples, and what to do; None where it may
    hold samples."""
    empty, kind = (attribute(data, f"MATLAB_{name}") for name in ("empty", "class"))
    if isinstance(empty, np.integer) and empty:
        return "the size of an array that is empty in MATLAB", "save the array again with values"
    return _CLASSES.get(kind) if isinstance(kind, bytes) else None


def warn_of_packed(data: Any, name: str) -> None:
    """Warn if attributes say that the numbers of a field, which are served as stored, are packed,
    or that some stand for missing values."""
    if not h5py.h5a.get_num_attrs(data.id):
        return
    found: dict[str, Any] = {}
    for key, usual in _PACKED.items():
        values = np.asarray(attribute(data, key))
        # NaN is one wherever it is served
        if values.dtype.kind in "iuf" and ((values != usual) & ~np.isnan(values)).any():
            found[key] = values.item() if values.size == 1 else values.tolist()
    if data.dtype.kind == "i" and h5py.h5a.exists(data.id, b"_Unsigned"):
        found["_Unsigned"] = "true"
    if found:
        said = ", ".join(f"{key} = {value}" for key, value in found.items())
        advice = "a transform or postprocess can make values of them"
        if found.keys() & {"scale_factor", "add_offset"}:
            scale, mean = found.get("scale_factor", 1), -found.get("add_offset", 0)
            advice = f'dtype="float32", scale={scale}, mean={mean}, std=1 unpacks them'
        warnings.warn(
            f"field {name!r} is served as stored, and its attributes say that numbers of it are "
            f"packed or missing ({said}): {advice}",
            stacklevel=2,
        )
