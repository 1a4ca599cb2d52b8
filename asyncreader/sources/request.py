"""Which fields of a set to read, and the order of the axes of 4-D data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from ..errors import ParamsError
from ..formats import packed as fmt
from ..pixels.transform import Stored


@dataclass(frozen=True)
class Hdf5Fields:
    """Names of a set's fields, as the caller gives them; most options apply to HDF5 only."""

    data: str = fmt.DATA
    labels: str | None = fmt.LABELS
    labels_path: str | None = None
    #: 1-based axes (number, height, width, channel); None: from the file, else (1, 2, 3, 4).
    dims: tuple[int, int, int, int] | None = None
    labels_required: bool = False
    #: "RGB", or "stored": raw pixels that are stored as BGR (Caffe) are not reversed.
    channel_order: str = "RGB"
    #: The file comes from a list of Caffe's, whose blobs are N x C x H x W.
    listed: bool = False
    #: (H, W) of the first field's pictures, each None if they differ; None: this is that field.
    #: Data of that size, (N, H, W) or (N, C, H, W), are taken for pictures.
    image_size: tuple[int | None, int | None] | None = None
    #: More fields of the same samples; None: all that asyncreader packed.
    others: tuple[str, ...] | None = ()

    def other_names(self, packed: Sequence[str]) -> tuple[str, ...]:
        """Names of the ``others``. ``packed``: the set's other fields, if asyncreader packed it."""
        if self.others is not None:
            return self.others
        return tuple(packed) if self.data == fmt.DATA else ()

    def also(self, stored: Stored, packed: Sequence[str]) -> list[Hdf5Fields]:
        """Each of the ``others`` for itself. ``stored``: the first field's samples; ``packed``: as
        for :meth:`other_names`."""
        return [self.other(name, stored) for name in self.other_names(packed)]

    def other(self, name: str, stored: Stored) -> Hdf5Fields:
        """The field ``name`` of the set whose first field's samples are ``stored``."""
        return replace(
            self,
            data=name,
            labels=None,
            labels_path=None,
            labels_required=False,
            image_size=None if stored.axes is None else stored.image_shape()[:2],
            others=(),
        )


#: An error lists at most this many names.
_NAMED: Final = 20


def no_field(name: str, names: Sequence[str], path: str, option: str = "") -> ParamsError:
    """The error for a field ``name`` that a set lacks; it lists the set's fields.

    ``option``: the command-line option with a space behind it, if it is not a parameter.
    """
    held = [str(one) for one in names[:_NAMED]]
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ParamsError(
        f"no field {name!r} in this set",
        path=path,
        found=", ".join(held) + more if held else "no fields",
        hint=f"name one of them with {option}data_field or {option}labels_field",
    )


def image_axes(
    shape: tuple[int, ...],
    dims: tuple[int, int, int, int] | None,
    meta: fmt.Meta | None,
    path: str,
    image_size: tuple[int | None, int | None] | None = None,
) -> tuple[int, str | None]:
    """(axis of the sample number, letters of a row's axes or None where it is not an image).

    ``image_size``: see :class:`Hdf5Fields`; with it a row's axes may lack C.
    """
    if meta is None and image_size is not None:
        found = _axes_of_size(shape, dims, image_size)
        if found is not None:
            return found
    if len(shape) != 4:
        return 0, None
    if dims is None:
        if meta is None and shape[1] <= 4 < shape[3]:
            raise ParamsError(
                "the order of this set's axes is ambiguous: it may be NCHW",
                path=path,
                found=f"shape {shape}",
                hint="say which axis is which: num_dim=1, cha_dim=2, h_dim=3, w_dim=4 for NCHW, "
                "or num_dim=1, h_dim=2, w_dim=3, cha_dim=4 for NHWC",
            )
        dims = (1, 2, 3, 4)
    number, height, width, channel = dims
    letters = {height: "H", width: "W", channel: "C"}
    return number - 1, "".join(letters[i] for i in range(1, 5) if i != number)


def _axes_of_size(
    shape: tuple[int, ...],
    dims: tuple[int, int, int, int] | None,
    image_size: tuple[int | None, int | None],
) -> tuple[int, str] | None:
    """The axes of pictures of a known size, in the order given or a usual one; None if no order
    fits."""
    named = "NHWC"
    if dims is not None:
        named = "".join(letter for _, letter in sorted(zip(dims, "NHWC", strict=True)))
    for order in (named, "NHWC", "NCHW"):
        letters = order if len(shape) == 4 else order.replace("C", "")
        if len(letters) != len(shape):
            return None
        sizes = dict(zip(letters, shape, strict=True))
        if (sizes["H"], sizes["W"]) == image_size:
            return letters.index("N"), letters.replace("N", "")
    return None


def stored_rows(shape: tuple[int, ...], dtype: np.dtype[Any], axes: str | None) -> Stored:
    """Raw samples of a shape, axes as :func:`image_axes` found them."""
    if axes is not None and "C" not in axes:
        return Stored((*shape, 1), dtype, axes + "C", channels=1, flat=True)
    return Stored(shape, dtype, axes)
