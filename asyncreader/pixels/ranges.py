"""Which values a dtype can hold, and the errors of those that it cannot."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from ..errors import ParamsError
from ..system.array_types import Array


def holds_all(stored: np.dtype[Any], dtype: np.dtype[Any]) -> bool:
    """Whether ``dtype`` has every value of ``stored``: for a float dtype, to its precision."""
    if dtype.kind == "f":
        top = np.finfo(stored).max if stored.kind == "f" else _limits(stored)[1]
        return float(top) <= float(np.finfo(dtype).max)
    if stored.kind == "f":
        return False
    (low, high), (least, most) = _limits(stored), _limits(dtype)
    return least <= low and high <= most


@contextlib.contextmanager
def checked(
    values: Array, stored: np.dtype[Any], dtype: np.dtype[Any], path: str
) -> Iterator[None]:
    """What casts a sample's ``values`` to ``dtype`` goes in here: ParamsError where one does not
    fit. ``stored``: their dtype in the set at ``path``."""
    if dtype.kind != "f":
        with np.errstate(invalid="ignore"):
            wrong = values.astype(dtype) != values
        if wrong.any():
            raise does_not_fit(values[wrong], stored, dtype, path)
        yield
        return
    try:
        with np.errstate(over="raise"):
            yield
    except FloatingPointError:
        raise does_not_fit(values[np.isfinite(values)], stored, dtype, path) from None


def does_not_fit(
    values: Array, stored: np.dtype[Any], dtype: np.dtype[Any], path: str
) -> ParamsError:
    """The error of ``values`` of a set at ``path``, stored as ``stored``."""
    return ParamsError(
        f'dtype="{dtype}" cannot hold the values that are stored',
        path=path,
        found=f"{values.flat[int(np.argmax(np.abs(values.astype(np.float64))))]} as "
        f"{stored.newbyteorder('=')}",
        expected=_range_of(dtype),
        hint="leave dtype out to get them as stored, or ask for a wider one"
        + (' (with scale, say, "float32")' if dtype.kind != "f" else ""),
    )


def padding(value: float, dtype: np.dtype[Any], path: str) -> Array:
    """``pad_value`` as a number of ``dtype``. ParamsError where there is no such number."""
    made = None
    whole = float(value).is_integer()
    if dtype.kind == "f" or (whole and _limits(dtype)[0] <= value <= _limits(dtype)[1]):
        with np.errstate(over="ignore"):
            made = np.array(value).astype(dtype)
    if made is None or (np.isfinite(value) and not np.isfinite(made)):
        having = "int64" if whole and abs(value) < 1 << 62 else "float32"
        raise ParamsError(
            "pad_value is no number of the dtype that is served",
            path=path,
            found=f"pad_value={value!r}",
            expected=f"a number of {dtype}",
            hint=f'pass another one, or a dtype that has it, such as dtype="{having}"',
        )
    return made


def _limits(dtype: np.dtype[Any]) -> tuple[int, int]:
    if dtype.kind == "b":
        return 0, 1
    limits = np.iinfo(dtype)
    return int(limits.min), int(limits.max)


def _range_of(dtype: np.dtype[Any]) -> str:
    if dtype.kind == "f":
        return f"at most {np.finfo(dtype).max:g}"
    return "whole numbers from {} to {}".format(*_limits(dtype))
