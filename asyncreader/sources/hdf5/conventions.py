"""What MATLAB stores for other things than numbers, as its attributes say."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

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


def no_samples(data: Any) -> tuple[str, str] | None:
    """What a data set (h5py.Dataset) holds instead of samples, and what to do; None where it may
    hold samples."""
    empty, kind = (attribute(data, f"MATLAB_{name}") for name in ("empty", "class"))
    if isinstance(empty, np.integer) and empty:
        return "the size of an array that is empty in MATLAB", "save the array again with values"
    return _CLASSES.get(kind) if isinstance(kind, bytes) else None
