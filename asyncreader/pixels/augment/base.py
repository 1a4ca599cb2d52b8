"""What operations share: their options, a step that draws numbers and changes a picture, and the
table of them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Literal, TypeAlias, TypeVar

import numpy as np

from ...errors import ParamsError
from ...system.array_types import Array, Float64, UInt8
from ...system.checks import Check, between, numbers, one_of, optional, plain, span, within
from ...system.keyed_random import Draws
from .. import kernels
from ..specs import ImageShape, Row, Step

# -- options: how they are declared, and the checks of their values --------------------------------

T = TypeVar("T")


def option(check: Check[T], default: Any = dataclasses.MISSING) -> T:
    """The declaration of an option, as a field of an operation; without a default it is needed."""
    field: T = dataclasses.field(default=default, metadata={"check": check})
    return field


def around(middle: float, low: float, high: float = math.inf) -> Check[tuple[float, float] | None]:
    """A number x for (middle - x, middle + x), cut at ``low``, or (least, most); None: not done."""

    def take(value: Any) -> tuple[float, float] | None:
        if isinstance(plain(value), int | float):
            far = within(value, 0, high)
            value = (max(middle - far, low), middle + far)
        least, most = span(low, high).take(value)
        return None if least == most == middle else (least, most)

    return optional(Check(f"a number of at least 0, or {span(low, high).expected}", take))


def angles(counts: Sequence[int] = (2,)) -> Check[tuple[float, ...]]:
    """A number x for (-x, x), or ranges: so many numbers."""

    def take(value: Any) -> tuple[float, ...]:
        if isinstance(plain(value), int | float):
            far = within(value, 0, math.inf)
            return -far, far
        found = numbers(len(value)).take(value)
        if len(found) not in counts or any(a > b for a, b in zip(*[iter(found)] * 2, strict=True)):
            raise ValueError
        return found

    more = " or (x least, x most, y least, y most)" if 4 in counts else ""
    return Check(f"a number of at least 0, (least, most){more}, in degrees", take)


def _fill(value: Any) -> float | tuple[float, ...]:
    if isinstance(plain(value), int | float):
        return within(value, 0, 255)
    return numbers(3, 0, 255).take(value)


FILL: Final = optional(Check("a number from 0 to 255, or one for each channel", _fill))
Interpolation: TypeAlias = Literal["nearest", "bilinear"]
INTERPOLATION: Final[Check[Interpolation]] = one_of(Interpolation)
CHANCE: Final = between(0, 1)


# -- operations ----------------------------------------------------------------------------------

#: The operations by name.
OPERATIONS: Final[dict[str, type[Operation]]] = {}

#: What an operation drew, as keywords of what it does.
Drawn: TypeAlias = dict[str, Any]


@dataclass(frozen=True)
class Operation(Step):
    """A step that changes a picture at random, in place. Its fields are its options."""

    #: Compiled code that it needs.
    kernels: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls, name: str = "") -> None:
        if name:
            cls.name = name
            OPERATIONS[name] = cls

    def draw(self, draws: Draws, shape: ImageShape) -> Drawn | None:
        """The numbers for a picture of ``shape`` (H, W, C); None: it stays as it is."""
        chance = getattr(self, "p", None)
        return {} if chance is None or draws.uniform() < chance else None

    def apply(self, image: Array, drawn: Drawn) -> None:
        """Change a picture (H, W, C) as was drawn."""
        raise NotImplementedError

    def move(self, values: UInt8, drawn: Drawn) -> None:
        """Move the pixels of a label map, as bytes (H, W, n), as those of its picture are moved:
        by nearest neighbour, 0 where it has none. Operations that move nothing leave it alone."""

    def matrices(self, drawn: Drawn, shape: ImageShape, unit: int) -> list[Float64]:
        """How places in a picture of ``shape`` are moved, one after the other: matrices (3, 3),
        which take (x, y, 1) to a place in the result, times a number. ``unit``: see
        :class:`Placement`. None of operations that move nothing."""
        return []

    def shape(self, given: ImageShape) -> ImageShape:
        """The same; compiled code is loaded here, when a reader is opened."""
        for kernel in self.kernels:
            getattr(kernels, kernel)
        return given

    def check(self, dtype: np.dtype[np.generic], shape: ImageShape, path: str) -> None:
        """ParamsError if it cannot work on pictures (H, W, C) of the set at ``path``."""
        if dtype != np.uint8 or shape[2:] not in ((1,), (3,)):
            raise ParamsError(
                f'"{self.name}" needs images of 8 bits with 1 or 3 channels',
                path=path,
                found=f"{shape[2]} channels of {dtype}" if shape else f"{dtype}, no images",
            )
        if len(np.atleast_1d(getattr(self, "fill", None) or 0)) not in (1, shape[2]):
            raise ParamsError(f'fill of "{self.name}" has 3 numbers', found=f"{shape[2]} channel")

    def __call__(self, image: Array, row: Row) -> Array:
        drawn = self.draw(row.draws, image.shape)
        if drawn is not None:
            self.apply(image, drawn)
        return image


#: Compiled code of operations that move pixels.
WARPS: Final = ("affine_nearest", "warp")


# -- label maps ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Along(Step):
    """A step that moves a label map as operations move its picture, with the same draws."""

    operations: tuple[Operation, ...]
    name = "augment"
    last = True

    def __call__(self, image: Array, row: Row) -> Array:
        values = np.ascontiguousarray(image).view(np.uint8)
        for operation in self.operations:
            drawn = operation.draw(row.draws, image.shape)
            if drawn is not None:
                operation.move(values, drawn)
        image[...] = values.view(image.dtype)
        return image


def along(steps: Iterable[Step]) -> tuple[Step, ...]:
    """The steps of a label map whose picture has these."""
    operations = tuple(step for step in steps if isinstance(step, Operation))
    moves = any(type(one).move is not Operation.move for one in operations)
    return (Along(operations),) if moves else ()
