"""What a set holds of a sample, and what the user wants of it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ..system.array_types import Float64
from . import geometry
from .rectangles import crop_shares
from .steps import Step


@dataclass(frozen=True)
class SampleSpec:
    """What a source holds of one sample.

    ``shape``: of a stored row, in stored axis order; None where encoded images differ in size.
    ``axes``: for raw pictures the order of the letters H, W, C in a row; "HWC" for encoded images;
    None for data that are no pictures, which are served as they are. ``encoding``: "raw", a codec's
    name, or "original" for image files of any kind. ``flat``: the one channel is
    no axis of its own in storage, nor in what is handed out. ``values``: encoded numbers, not
    colours (masks.py). ``as_stored``: handed out in the stored order of axes, whatever the layout.
    ``narrow``: it is known that grey pictures of 16 bits are served with 8; where it is not, such a
    picture is a DecodeError. ``members``: of structured rows, the one that is a field of its own;
    their ``dtype`` is flat (numbers.py). ``ragged``: samples differ in length: each is a number of
    values, and ``shape`` is that of one value. ``columns``: of rows (D,) of numbers those that are
    served, in this order; None: all.
    """

    shape: tuple[int, ...] | None
    dtype: np.dtype[Any]
    axes: str | None
    encoding: str = "raw"
    channels: int = 3
    flat: bool = False
    values: bool = False
    as_stored: bool = False
    narrow: bool = False
    members: str | None = None
    ragged: bool = False
    columns: tuple[int, ...] | None = None

    @property
    def encoded(self) -> bool:
        """Whether a sample is an image file, or numbers in one."""
        return self.encoding != "raw"

    @property
    def row_bytes(self) -> int:
        """Bytes of one raw sample, where all have one shape; of one value of ragged ones."""
        assert self.shape is not None
        return math.prod(self.shape) * self.dtype.itemsize

    def image_shape(self) -> tuple[int | None, int | None, int]:
        """(H, W, C), None where samples differ."""
        if self.shape is None or self.axes is None:
            return None, None, self.channels
        size = dict(zip(self.axes, self.shape, strict=True))
        return size["H"], size["W"], size["C"]


@dataclass(frozen=True)
class OutputSpec:
    """What the user asked for (see the table in docs/parameters.md)."""

    layout: str = "NCHW"
    contiguous: bool = False
    dtype: np.dtype[np.generic] | None = None
    scale: float = 1.0
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    size: tuple[int, int] | None = None
    crop: str = "center"
    crop_ratio: float = 1.0
    crop_area: tuple[float, float] = (0.08, 1.0)
    crop_aspect: tuple[float, float] = (3 / 4, 4 / 3)
    crop_padding: int = 0
    padding_mode: str = "zero"
    interpolation: str = "bilinear"
    flip: bool = False
    #: Resized by nearest neighbour: the numbers mean something, and none may be made up.
    nearest: bool = False
    #: Names of the fields that hold boxes and keypoints.
    boxes: str | None = None
    keypoints: str | None = None
    #: What is done with each image between its crop and its row, and after it (steps.py).
    steps: tuple[Step, ...] = ()
    #: Whether a function of the user's is still to come: it may leave other channels, and mean and
    #: std are of these.
    transformed_later: bool = False
    #: Views of a sample in a row (B, views, ...); 0: a row is the sample itself, (B, ...).
    views: int = 0
    #: The number of the first of these among all views of a sample.
    first_view: int = 0
    #: Of samples that are served in several sizes: what is wanted of the other arrays.
    others: tuple[OutputSpec, ...] = ()
    #: Members of structured rows, of each field that has such rows; one alone is no axis.
    members: str | tuple[str, ...] | None = None
    #: Of samples that differ in length: the length of a row, what is served of a longer one, and
    #: what a shorter one is filled up with.
    max_length: int | None = None
    overlong: str = "cut"
    pad_value: float = 0
    #: What is asked of single fields, by their names: other values of the fields above.
    by_field: Mapping[str, Mapping[str, object]] = field(default_factory=dict)

    @property
    def arrays(self) -> tuple[OutputSpec, ...]:
        """What is wanted of each array that is made of a field of pictures: this one first."""
        return replace(self, others=()), *self.others

    @classmethod
    def of(cls, arrays: Sequence[OutputSpec]) -> OutputSpec:
        """Several arrays of a field as one: see :attr:`arrays`."""
        return replace(arrays[0], others=tuple(arrays[1:]))

    def for_field(self, name: str) -> OutputSpec:
        """What is wanted of one field."""
        return replace(self, by_field={}, **self.by_field.get(name, {}))  # type: ignore[arg-type]

    @property
    def affine(self) -> bool:
        """Whether values change by more than a cast."""
        return self.scale != 1.0 or any(m != 0 for m in self.mean) or any(s != 1 for s in self.std)

    @property
    def random(self) -> bool:
        """Whether anything of a row is drawn."""
        cropped = self.size is not None and self.crop in ("random", "random-resized")
        cut = self.max_length is not None and self.overlong == "random"
        return self.flip or cropped or cut or any(step.random for step in self.steps)

    @property
    def shares(self) -> Float64:
        """What choose_rect takes of the ranges, as compiled code takes them."""
        return np.array(crop_shares(self.crop_ratio, self.crop_area, self.crop_aspect))

    def rect(self, height: int, width: int, draws: Float64 | None) -> geometry.Rect:
        """The part of a picture that is served; with ``crop_padding``, of the padded picture."""
        assert self.size is not None
        ranges = self.crop_area, self.crop_aspect, self.crop_padding
        return geometry.choose_rect(
            height, width, self.size, self.crop, self.crop_ratio, draws, *ranges
        )
