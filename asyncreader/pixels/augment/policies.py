"""AutoAugment and those after it: operations chosen from tables, which are torchvision's
(``torchvision/transforms/v2/_auto_augment.py``).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, TypeAlias

from ...errors import ParamsError
from ...system.array_types import Array, Float64, UInt8
from ...system.checks import one_of, whole
from ...system.keyed_random import Draws
from ..specs import ImageShape
from . import functions
from .base import FILL, INTERPOLATION, WARPS, Drawn, Interpolation, Operation, option
from .functions import Affine, Fill


class Magnitudes(NamedTuple):
    """The magnitudes of an operation: even steps from ``first`` to ``last``. ``side``: parts of
    this axis of the picture; ``bits``: whole numbers from 8 down by ``bits``; ``signed``: of either
    sign."""

    last: float = 0.0
    first: float = 0.0
    signed: bool = True
    side: int | None = None
    bits: int = 0

    def of(self, number: int, bins: int, shape: ImageShape) -> float:
        """Magnitude ``number`` of so many, for a picture of ``shape``."""
        part = number / (bins - 1)
        if self.bits:
            return float(round(8 - self.bits * part))
        last = self.last if self.side is None else self.last * shape[self.side]
        return self.first + (last - self.first) * part


#: Operations by name; None: it has no magnitude.
Space: TypeAlias = dict[str, Magnitudes | None]


def _space(shear: float, turn: float, blend: float, bits: int) -> Space:
    return {
        **dict.fromkeys(("ShearX", "ShearY"), Magnitudes(shear)),
        "TranslateX": Magnitudes(150.0 / 331.0, side=1),
        "TranslateY": Magnitudes(150.0 / 331.0, side=0),
        "Rotate": Magnitudes(turn),
        **dict.fromkeys(("Brightness", "Color", "Contrast", "Sharpness"), Magnitudes(blend)),
        "Posterize": Magnitudes(signed=False, bits=bits),
        "Solarize": Magnitudes(0.0, 1.0, signed=False),
        **dict.fromkeys(("AutoContrast", "Equalize")),
    }


SPACES: Final[dict[str, Space]] = {
    "trivial-augment-wide": {
        "Identity": None,
        **_space(0.99, 135.0, 0.99, 6),
        **dict.fromkeys(("TranslateX", "TranslateY"), Magnitudes(32.0)),
    },
    "rand-augment": {"Identity": None, **_space(0.3, 30.0, 0.9, 4)},
    "auto-augment": {**_space(0.3, 30.0, 0.9, 4), "Invert": None},
}

_NAMES: Final = {policy: tuple(space) for policy, space in SPACES.items()}

_TEXTS: Final = {
    "imagenet": """
        Posterize 0.4 8, Rotate 0.6 9; Solarize 0.6 5, AutoContrast 0.6 0;
        Equalize 0.8 0, Equalize 0.6 0; Posterize 0.6 7, Posterize 0.6 6;
        Equalize 0.4 0, Solarize 0.2 4; Equalize 0.4 0, Rotate 0.8 8;
        Solarize 0.6 3, Equalize 0.6 0; Posterize 0.8 5, Equalize 1 0;
        Rotate 0.2 3, Solarize 0.6 8; Equalize 0.6 0, Posterize 0.4 6;
        Rotate 0.8 8, Color 0.4 0; Rotate 0.4 9, Equalize 0.6 0;
        Equalize 0 0, Equalize 0.8 0; Invert 0.6 0, Equalize 1 0;
        Color 0.6 4, Contrast 1 8; Rotate 0.8 8, Color 1 2;
        Color 0.8 8, Solarize 0.8 7; Sharpness 0.4 7, Invert 0.6 0;
        ShearX 0.6 5, Equalize 1 0; Color 0.4 0, Equalize 0.6 0;
        Equalize 0.4 0, Solarize 0.2 4; Solarize 0.6 5, AutoContrast 0.6 0;
        Invert 0.6 0, Equalize 1 0; Color 0.6 4, Contrast 1 8;
        Equalize 0.8 0, Equalize 0.6 0
    """,
    "cifar10": """
        Invert 0.1 0, Contrast 0.2 6; Rotate 0.7 2, TranslateX 0.3 9;
        Sharpness 0.8 1, Sharpness 0.9 3; ShearY 0.5 8, TranslateY 0.7 9;
        AutoContrast 0.5 0, Equalize 0.9 0; ShearY 0.2 7, Posterize 0.3 7;
        Color 0.4 3, Brightness 0.6 7; Sharpness 0.3 9, Brightness 0.7 9;
        Equalize 0.6 0, Equalize 0.5 0; Contrast 0.6 7, Sharpness 0.6 5;
        Color 0.7 7, TranslateX 0.5 8; Equalize 0.3 0, AutoContrast 0.4 0;
        TranslateY 0.4 3, Sharpness 0.2 6; Brightness 0.9 6, Color 0.2 8;
        Solarize 0.5 2, Invert 0 0; Equalize 0.2 0, AutoContrast 0.6 0;
        Equalize 0.2 0, Equalize 0.6 0; Color 0.9 9, Equalize 0.6 0;
        AutoContrast 0.8 0, Solarize 0.2 8; Brightness 0.1 3, Color 0.7 0;
        Solarize 0.4 5, AutoContrast 0.9 0; TranslateY 0.9 9, TranslateY 0.7 9;
        AutoContrast 0.9 0, Solarize 0.8 3; Equalize 0.8 0, Invert 0.1 0;
        TranslateY 0.7 9, AutoContrast 0.9 0
    """,
    "svhn": """
        ShearX 0.9 4, Invert 0.2 0; ShearY 0.9 8, Invert 0.7 0;
        Equalize 0.6 0, Solarize 0.6 6; Invert 0.9 0, Equalize 0.6 0;
        Equalize 0.6 0, Rotate 0.9 3; ShearX 0.9 4, AutoContrast 0.8 0;
        ShearY 0.9 8, Invert 0.4 0; ShearY 0.9 5, Solarize 0.2 6;
        Invert 0.9 0, AutoContrast 0.8 0; Equalize 0.6 0, Rotate 0.9 3;
        ShearX 0.9 4, Solarize 0.3 3; ShearY 0.8 8, Invert 0.7 0;
        Equalize 0.9 0, TranslateY 0.6 6; Invert 0.9 0, Equalize 0.6 0;
        Contrast 0.3 3, Rotate 0.8 4; Invert 0.8 0, TranslateY 0 2;
        ShearY 0.7 6, Solarize 0.4 8; Invert 0.6 0, Rotate 0.8 4;
        ShearY 0.3 7, TranslateX 0.9 3; ShearX 0.1 6, Invert 0.6 0;
        Solarize 0.7 2, TranslateY 0.6 7; ShearY 0.8 4, Invert 0.8 0;
        ShearX 0.7 9, TranslateY 0.8 3; ShearY 0.8 5, AutoContrast 0.7 0;
        ShearX 0.7 2, Invert 0.1 0
    """,
}


def _pairs(text: str) -> tuple[tuple[tuple[str, float, int], ...], ...]:
    pairs = (pair.split(",") for pair in text.split(";"))
    return tuple(
        tuple((n, float(chance), int(number)) for n, chance, number in map(str.split, pair))
        for pair in pairs
    )


#: Pairs of operations: name, chance, and the number of its magnitude of 10.
POLICIES: Final = {name: _pairs(text) for name, text in _TEXTS.items()}


# -- operations ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Policy(Operation):
    """Operations drawn from a table, each with a magnitude: what those of AutoAugment share."""

    interpolation: Interpolation = option(INTERPOLATION, "nearest")
    fill: Fill = option(FILL, None)

    kernels = (
        *("autocontrast", "blend_level", "equalize", "sum_of_grey", "saturate", "sharpen"),
        *WARPS,
    )

    def _magnitude(
        self, name: str, number: int, bins: int, shape: ImageShape, draws: Draws
    ) -> float:
        """Magnitude ``number`` of so many, of a random sign where it may have either."""
        of = SPACES[self.name][name]
        if of is None:
            return 0.0
        magnitude = of.of(number, bins, shape)
        return -magnitude if of.signed and draws.uniform() <= 0.5 else magnitude

    def apply(self, image: Array, drawn: Drawn) -> None:
        for name, magnitude in drawn["chosen"]:
            if name in _MOVES:
                _move(image, name, magnitude, self.interpolation, self.fill)
            else:
                _CHANGES[name](image, magnitude)

    def move(self, values: UInt8, drawn: Drawn) -> None:
        for name, magnitude in drawn["chosen"]:
            if name in _MOVES:
                _move(values, name, magnitude, "nearest", None)

    def matrices(self, drawn: Drawn, shape: ImageShape, unit: int) -> list[Float64]:
        moves = [(name, by) for name, by in drawn["chosen"] if name in _MOVES]
        return [_MOVES[name](by).matrix(shape) for name, by in moves]


def _slope(by: float) -> float:
    return math.degrees(math.atan(by))


#: What those that move pixels are as an affine map, by their magnitude.
_MOVES: Final[dict[str, Callable[[float], Affine]]] = {
    "ShearX": lambda by: Affine(shear=(_slope(by), 0.0), center=(0, 0)),
    "ShearY": lambda by: Affine(shear=(0.0, _slope(by)), center=(0, 0)),
    "TranslateX": lambda by: Affine(translate=(int(by), 0)),
    "TranslateY": lambda by: Affine(translate=(0, int(by))),
    "Rotate": lambda angle: Affine(-angle),
}


def _move(image: Array, name: str, by: float, interpolation: str, fill: Fill) -> None:
    if name == "Rotate":  # which turns by quarters exactly
        functions.rotate(image, by, interpolation, fill)
    else:
        functions.affine(image, _MOVES[name](by), interpolation, fill)


#: What the others do to a picture, by their magnitude.
_CHANGES: Final[dict[str, Callable[[Array, float], None]]] = {
    "Identity": lambda image, _: None,
    "Brightness": lambda image, by: functions.adjust_brightness(image, 1.0 + by),
    "Color": lambda image, by: functions.adjust_saturation(image, 1.0 + by),
    "Contrast": lambda image, by: functions.adjust_contrast(image, 1.0 + by),
    "Sharpness": lambda image, by: functions.adjust_sharpness(image, 1.0 + by),
    "Posterize": lambda image, bits: functions.posterize(image, int(bits)),
    "Solarize": lambda image, part: functions.solarize(image, 255 * part),
    "AutoContrast": lambda image, _: functions.autocontrast(image),
    "Equalize": lambda image, _: functions.equalize(image),
    "Invert": lambda image, _: functions.invert(image),
}


@dataclass(frozen=True)
class TrivialAugmentWide(Policy, name="trivial-augment-wide"):
    """One operation with a random magnitude (Müller and Hutter, "TrivialAugment", 2021)."""

    num_magnitude_bins: int = option(whole(2), 31)

    def draw(self, draws: Draws, shape: ImageShape) -> Drawn | None:
        bins, names = self.num_magnitude_bins, _NAMES[self.name]
        name = names[draws.below(len(names))]
        number = draws.below(bins)
        return {"chosen": [(name, self._magnitude(name, number, bins, shape, draws))]}


@dataclass(frozen=True)
class RandAugment(Policy, name="rand-augment"):
    """Some operations of one magnitude (Cubuk et al., "RandAugment", 2019)."""

    num_ops: int = option(whole(0, 101), 2)
    magnitude: int = option(whole(0), 9)
    num_magnitude_bins: int = option(whole(2), 31)

    def __post_init__(self) -> None:
        if self.magnitude >= self.num_magnitude_bins:
            raise ParamsError(
                'magnitude of "rand-augment" must be below num_magnitude_bins',
                found=f"{self.magnitude} of {self.num_magnitude_bins}",
            )

    def draw(self, draws: Draws, shape: ImageShape) -> Drawn | None:
        bins, names, chosen = self.num_magnitude_bins, _NAMES[self.name], []
        for _ in range(self.num_ops):
            name = names[draws.below(len(names))]
            chosen.append((name, self._magnitude(name, self.magnitude, bins, shape, draws)))
        return {"chosen": chosen}


PolicyName: TypeAlias = Literal["imagenet", "cifar10", "svhn"]


@dataclass(frozen=True)
class AutoAugment(Policy, name="auto-augment"):
    """One of 25 learned pairs of operations (Cubuk et al., "AutoAugment", 2018)."""

    policy: PolicyName = option(one_of(PolicyName), "imagenet")

    def draw(self, draws: Draws, shape: ImageShape) -> Drawn | None:
        pairs, chosen = POLICIES[self.policy], []
        for name, chance, number in pairs[draws.below(len(pairs))]:
            if draws.uniform() <= chance:
                chosen.append((name, self._magnitude(name, number, 10, shape, draws)))
        return {"chosen": chosen}
