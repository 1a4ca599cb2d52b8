"""What conventions of other programs say of a data set's values, in its attributes."""

from __future__ import annotations

from typing import Final

import numpy as np

from ...errors import FormatError
from ...system.late import h5py
from .checks import Dataset, attribute

#: The attribute of all that MATLAB writes.
_CLASS: Final = b"MATLAB_class"
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


def no_samples(data: Dataset) -> tuple[str, str] | None:
    """What a data set holds instead of samples, and what to do; None where it may hold samples."""
    empty, kind = (attribute(data, f"MATLAB_{name}") for name in ("empty", "class"))
    if isinstance(empty, np.integer) and empty:
        return "the size of an array that is empty in MATLAB", "save the array again with values"
    return _CLASSES.get(kind) if isinstance(kind, bytes) else None


def check_samples(data: Dataset, name: str, path: str) -> None:
    """FormatError where a convention says that a data set holds no samples."""
    if not h5py.h5a.exists(data.id, _CLASS):  # asked of each data set that is opened
        return
    instead = no_samples(data)
    if instead is not None:
        raise FormatError(
            f"dataset {name!r} holds no samples",
            path=path,
            found=instead[0],
            expected="an array of numbers",
            hint=f"{instead[1]}; labels_field=None serves data without labels",
        )
