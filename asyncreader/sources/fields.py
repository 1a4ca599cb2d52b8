"""Which fields of a set are meant, and how the axes of 4-D data lie."""

from __future__ import annotations

from dataclasses import dataclass

from .. import format as fmt
from ..errors import ParamsError


@dataclass(frozen=True)
class Hdf5Fields:
    """Names of the fields of a set, as a caller gives them; most say something of HDF5 only."""

    data: str = fmt.DATA
    labels: str | None = fmt.LABELS
    labels_path: str | None = None
    #: 1-based axes (number, height, width, channel); None: as the file says, else (1, 2, 3, 4).
    dims: tuple[int, int, int, int] | None = None
    labels_required: bool = False
    #: "RGB", or "stored": raw pixels known to lie as BGR (Caffe) are not turned round.
    channel_order: str = "RGB"
    #: The file was named by a list of Caffe's, whose blobs are N x C x H x W.
    listed: bool = False


def image_axes(
    shape: tuple[int, ...],
    dims: tuple[int, int, int, int] | None,
    meta: fmt.Meta | None,
    path: str,
) -> tuple[int, str | None]:
    """(axis of the sample number, letters of a row's axes or None where it is not an image)."""
    if len(shape) != 4:
        return 0, None
    if dims is None:
        if meta is None and shape[1] <= 4 < shape[3]:
            raise ParamsError(
                "the axes of this set are not clear: it may be NCHW",
                path=path,
                found=f"shape {shape}",
                hint="say which axis is which: num_dim=1, cha_dim=2, h_dim=3, w_dim=4 for NCHW, "
                "or num_dim=1, h_dim=2, w_dim=3, cha_dim=4 for NHWC",
            )
        dims = (1, 2, 3, 4)
    number, height, width, channel = dims
    letters = {height: "H", width: "W", channel: "C"}
    return number - 1, "".join(letters[i] for i in range(1, 5) if i != number)
