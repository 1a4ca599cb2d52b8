"""What a set holds of a sample, what the user wants of it, and the steps that change it.

A reader's steps come in this order: decode, crop, resize and mirror, in one pass; the steps; cast
and normalise, in one pass; the steps that are ``last``. All of them run in the worker that reads
the sample, in its own memory.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from ..errors import ParamsError
from ..system.array_types import Float64
from ..system.keyed_random import Draws, key_of
from .geometry import Rect
from .shared import CROPS, choose_rect, crop_shares
from .tables import STEP_DRAWS, Erasure

Array: TypeAlias = npt.NDArray[np.number]
#: Height, width and channels; of data that are no pictures, the shape of a sample.
ImageShape: TypeAlias = tuple[int, ...]

#: Keeps the generator of steps apart from other draws of the same key.
_STREAM: Final = 0x5354


@dataclass(eq=False, repr=False)
class Row:
    """The sample that a step works on.

    ``record``: its number in the set; ``position``: its place in the epoch's global order;
    ``label``: its row of the labels, None without labels; ``key``: what its random numbers follow
    from, a function of seed, epoch and position alone; ``seconds``: each step adds its own,
    by its name; ``frame``: (H, W) of its picture as it is stored, for boxes and keypoints.
    """

    record: int
    position: int
    label: Array | None
    key: int
    seconds: MutableMapping[str, float]
    frame: tuple[int, int] | None = None

    @cached_property
    def draws(self) -> Draws:
        """Random numbers of the sample, shared by its steps: cheaper than those of ``rng``."""
        return Draws(key_of(self.key, STEP_DRAWS))

    @cached_property
    def rng(self) -> np.random.Generator:
        """The sample's generator, shared by its steps; made when it is asked for."""
        return np.random.Generator(np.random.Philox(key=key_of(self.key, _STREAM)))


class Step:
    """One step. Frozen and picklable: worker processes get it, and threads share it."""

    #: The name that its seconds have in stats and trace.
    name: str
    #: Whether it draws random numbers.
    random: bool = True
    #: Whether it works on the sample as it is served: cast and normalised.
    last: bool = False

    @property
    def erasure(self) -> Erasure | None:
        """The rectangle that it erases, which compiled code does too, if that is all it does."""
        return None

    def shape(self, given: ImageShape) -> ImageShape:
        """The shape of what it returns for an image of shape ``given``."""
        return given

    def paint(self, dtype: np.dtype[np.generic], channels: int) -> Array:
        """The pixel (C,) that is left where it erases."""
        raise NotImplementedError

    def __call__(self, image: Array, row: Row) -> Array:
        """The image after this step: ``image`` (H, W, C), changed in place, or another array of
        the same dtype."""
        raise NotImplementedError


def after(steps: Iterable[Step], shape: ImageShape) -> ImageShape:
    """The shape of an image of ``shape`` after some steps."""
    for step in steps:
        shape = step.shape(shape)
    return shape


def run(steps: Sequence[Step], image: Array, row: Row | None) -> Array:
    """``image`` after some steps; their seconds are added to ``row.seconds``."""
    if not steps:
        return image
    assert row is not None
    seconds, begun = row.seconds, time.perf_counter()
    for step in steps:
        image = step(image, row)
        now = time.perf_counter()
        seconds[step.name] += now - begun
        begun = now
    return image


def run_in_place(steps: Sequence[Step], image: Array, row: Row | None) -> None:
    """Change ``image`` by some steps."""
    made = run(steps, image, row)
    if made is not image:
        image[...] = made


@dataclass(frozen=True)
class SampleSpec:
    """What a source holds of one sample.

    ``shape``: of a stored row, in stored axis order; None where encoded images differ in size.
    ``axes``: for raw pictures the order of the letters H, W, C in a row; "HWC" for encoded images;
    None for data that are no pictures, which are served as they are. ``encoding``: "raw", a codec's
    name, or "original" for image files of any kind. ``flat``: the one channel is
    no axis of its own in storage, nor in what is handed out. ``values``: encoded numbers, not
    colours (codec.decode_values). ``as_stored``: handed out in the stored order of axes, whatever
    the layout.
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
    #: What is done with each image between its crop and its row, and after it.
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

    def rect(self, height: int, width: int, draws: Float64 | None) -> Rect:
        """The part of a (height, width) picture that is served; with ``crop_padding``, of the
        picture with so many pixels around it.

        ``crop``: "center", "random" (offset by draws[0:2], anywhere), "random-resized" (ten tries
        of a part of ``crop_area`` and ``crop_aspect`` with draws[4k : 4k+4], then centred; Szegedy
        et al., "Going deeper with convolutions", 2015, section 6) or "none" (all of it, squeezed).
        ``draws``: float64 in [0, 1), of this sample; None where the crop is not random.
        """
        assert self.size is not None
        shares = crop_shares(self.crop_ratio, self.crop_area, self.crop_aspect)
        how = CROPS.index(self.crop), shares, draws, self.crop_padding
        return Rect(*choose_rect(height, width, *self.size, *how))


# -- which values a dtype holds ----------------------------------------------------------------


def holds_all(stored: np.dtype[Any], dtype: np.dtype[Any]) -> bool:
    """Whether ``dtype`` has every value of ``stored``: for a float dtype, to its precision."""
    if dtype.kind == "f":
        top = np.finfo(stored).max if stored.kind == "f" else limits(stored)[1]
        return float(top) <= float(np.finfo(dtype).max)
    if stored.kind == "f":
        return False
    (low, high), (least, most) = limits(stored), limits(dtype)
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
        expected=f"at most {np.finfo(dtype).max:g}"
        if dtype.kind == "f"
        else "whole numbers from {} to {}".format(*limits(dtype)),
        hint="leave dtype out to get them as stored, or ask for a wider one"
        + (' (with scale, say, "float32")' if dtype.kind != "f" else ""),
    )


def limits(dtype: np.dtype[Any]) -> tuple[int, int]:
    """The least and the largest value of a dtype of whole numbers."""
    if dtype.kind == "b":
        return 0, 1
    found = np.iinfo(dtype)
    return int(found.min), int(found.max)
