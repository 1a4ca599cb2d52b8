"""Boxes and keypoints: numbers that name places in a picture, and move as the picture does.

Definitions are those of torchvision's v2 transforms of ``BoundingBoxes`` and ``KeyPoints``. A box
that is moved is the smallest upright box around its four corners, cut to the picture.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from ..errors import ParamsError
from ..system.array_types import Array, Bools, Float64
from .augment.base import Operation
from .row_maker import RowMaker
from .specs import OutputSpec, Row, SampleSpec, Step
from .transform import plan_rows

#: What lies opposite the place 0 in a mirrored picture, below its side: see Placement.matrix.
UNITS: Final = {"boxes": 0, "keypoints": 1}

#: How many numbers a place has, and what they are.
PLACES: Final = {"boxes": {4: "x1, y1, x2, y2"}, "keypoints": {2: "x, y", 3: "x, y, visibility"}}

#: The corners of a box as pairs of its numbers.
_CORNERS: Final = ((0, 1), (2, 1), (2, 3), (0, 3))


@dataclass(frozen=True)
class Moved(Step):
    """A step that moves boxes (..., 4) or keypoints (..., 2 or 3) of a sample in the row itself.

    ``name``: "boxes" or "keypoints"; ``picture``: how the sample's picture becomes its row;
    ``frame``: its stored (H, W), None where pictures differ; ``random``: the picture's.
    """

    name: str
    picture: RowMaker
    frame: tuple[int, int] | None
    random: bool
    last = True

    def __call__(self, image: Array, row: Row) -> Array:
        frame = self.frame or row.frame
        assert frame is not None
        values = image.reshape(-1, image.shape[-1]).astype(np.float64)
        placement = self.picture.placement(row.key, frame)
        shape, unit = (*placement.size, 3), UNITS[self.name]
        matrices = [placement.matrix(unit)]
        for operation in self.picture.wanted.steps:
            if isinstance(operation, Operation):
                drawn = operation.draw(row.draws, shape)
                if drawn is not None:
                    matrices += operation.matrices(drawn, shape, unit)
        move(values, self.name, matrices, placement.size)
        return values.reshape(image.shape)


def move(values: Float64, what: str, matrices: list[Float64], size: tuple[int, int]) -> None:
    """Move "boxes" (n, 4) or "keypoints" (n, 2 or 3) in place, by one matrix after the other; each
    gives a picture of ``size`` (H, W). Rows that are none stay as they are."""
    with np.errstate(divide="ignore", invalid="ignore"):  # a place on a projection's horizon
        there = real(values, what)
        if what == "boxes":
            values[there] = _moved_boxes(values[there], matrices, size)
        else:
            for matrix in matrices:
                values[there, :2] = _moved(values[there, :2], matrix)


def real(values: Array, what: str) -> Bools:
    """Which rows of "boxes" (n, 4) or "keypoints" (n, 2 or 3) are some: boxes that have an area,
    keypoints that are numbers and not marked as absent (a visibility of 0)."""
    if what == "boxes":
        found: Bools = (values[:, 2] > values[:, 0]) & (values[:, 3] > values[:, 1])
    else:
        found = np.isfinite(values[:, :2]).all(axis=1) & (values[:, 2:] != 0).all(axis=1)
    return found


def _moved_boxes(boxes: Float64, matrices: list[Float64], size: tuple[int, int]) -> Float64:
    """Boxes (n, 4) after that. What nothing is left of in the picture becomes zeros."""
    left, most = np.ones(len(boxes), np.bool_), np.array((*size[::-1], *size[::-1]), np.float64)
    for matrix in matrices:
        corners = _moved(boxes[:, _CORNERS].reshape(-1, 2), matrix).reshape(-1, 4, 2)
        boxes = np.concatenate((corners.min(axis=1), corners.max(axis=1)), axis=1)
        np.minimum(np.maximum(boxes, 0, out=boxes), most, out=boxes)
        left &= real(boxes, "boxes")
    boxes[~left] = 0
    return boxes


def _moved(places: Float64, matrix: Float64) -> Float64:
    """Places (n, 2) as a matrix (3, 3) takes them, times a number."""
    found: Float64 = places @ matrix[:2, :2].T
    found += matrix[:2, 2]
    if matrix[2].tolist() != [0.0, 0.0, 1.0]:
        found /= places @ matrix[2:, :2].T + matrix[2, 2]
    return found


def check_places(stored: SampleSpec, what: str, path: str) -> None:
    """ParamsError where a field of the set at ``path`` cannot hold "boxes" or "keypoints"."""
    axes, shape = PLACES[what], stored.shape or ()
    if stored.axes is not None or not shape or shape[-1] not in axes:
        raise ParamsError(
            f"the field holds no {what}",
            path=path,
            found=f"{stored.encoding} images"
            if stored.axes is not None
            else f"samples of shape {shape}, {stored.dtype}",
            expected="; or ".join(f"(..., {size}): {names}" for size, names in axes.items()),
        )
    if stored.dtype.kind not in "iuf":
        raise ParamsError(f"{what} are numbers", path=path, found=str(stored.dtype))


def moved_fill(
    stored: SampleSpec,
    what: str,
    wanted: OutputSpec,
    picture: RowMaker,
    frame: tuple[int, int] | None,
    path: str,
) -> RowMaker:
    """How "boxes" or "keypoints" of a field become rows: float32, moved with their ``picture``, and
    where samples differ in number cut and filled up as is ``wanted`` of the field.

    ``frame``: stored (H, W) of the pictures, None where they differ. ParamsError if the field
    cannot hold what it is said to hold.
    """
    if picture.stored.axes is None:
        raise ParamsError(
            f"{what} need images as the first field",
            path=path,
            found=f"samples of shape {picture.stored.shape}, {picture.stored.dtype}",
            hint="data_field names the images",
        )
    check_places(stored, what, path)
    step = Moved(what, picture, frame, picture.random)
    plain = OutputSpec(
        dtype=np.dtype(np.float32),
        steps=(step,),
        max_length=wanted.max_length,
        overlong=wanted.overlong,
        pad_value=wanted.pad_value,
    )
    return plan_rows(stored, plain, path)
