"""Types of arrays, as they stand in annotations."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

#: An array whose dtype is known when a set is opened.
Array: TypeAlias = npt.NDArray[Any]
Bools: TypeAlias = npt.NDArray[np.bool_]
Int64: TypeAlias = npt.NDArray[np.int64]
UInt8: TypeAlias = npt.NDArray[np.uint8]
UInt64: TypeAlias = npt.NDArray[np.uint64]
Float32: TypeAlias = npt.NDArray[np.float32]
Float64: TypeAlias = npt.NDArray[np.float64]
