"""AutoAugment and those after it: operations chosen from tables, which are torchvision's
(``torchvision/transforms/v2/_auto_augment.py``).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from ...errors import ParamsError
from ...system.array_types import Array, Float64, UInt8
from ...system.checks import one_of, whole
from ...system.keyed_random import Draws
from ..specs import ImageShape
from . import FILL, INTERPOLATION, Interpolation, functions, option
from .base import WARPS, Drawn, Operation
from .functions import Fill


class Magnitudes(NamedTuple):
    """The magnitudes of an operation: even steps from ``first`` to ``last``. ``side``: parts of
    this axis of the picture; ``bits``: whole numbers from 8 down by ``bits``; ``signed``: of either
    sign."""

    last: float = 0.0
    first: float = 0.0
    signed: bool = True
    side: int | None = None
    bits: int = 0


#: Operations by name; None: it has no magnitude.
Space: TypeAlias = dict[str, Magnitudes | None]


def magnitude_of(of: Magnitudes, number: int, bins: int, shape: ImageShape) -> float:
    """Magnitude ``number`` of so many, for a picture of ``shape``."""
    part = number / (bins - 1)
    if of.bits:
        return float(round(8 - of.bits * part))
    last = of.last if of.side is None else of.last * shape[of.side]
    return of.first + (last - of.first) * part


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

    @staticmethod
    def _magnitude(
        space: Space, name: str, number: int, bins: int, shape: ImageShape, draws: Draws
    ) -> float:
        """Magnitude ``number`` of so many, of a random sign where it may have either."""
        of = space[name]
        if of is None:
            return 0.0
        magnitude = magnitude_of(of, number, bins, shape)
        return -magnitude if of.signed and draws.uniform() <= 0.5 else magnitude

    def apply(self, image: Array, drawn: Drawn) -> None:
        for name, magnitude in drawn["chosen"]:
            self._apply(image, name, magnitude)

    def move(self, values: UInt8, drawn: Drawn) -> None:
        for name, magnitude in drawn["chosen"]:
            if name in _MOVES:
                _move(values, name, magnitude, "nearest", None)

    def matrices(self, drawn: Drawn, shape: ImageShape, unit: int) -> list[Float64]:
        moves = [(name, by) for name, by in drawn["chosen"] if name in _MOVES]
        return [functions.affine_matrix(shape, **_MOVES[name](by)) for name, by in moves]

    def _apply(self, image: Array, name: str, magnitude: float) -> None:
        if name in _MOVES:
            _move(image, name, magnitude, self.interpolation, self.fill)
        elif name == "Posterize":
            functions.posterize(image, int(magnitude))
        elif name == "Solarize":
            functions.solarize(image, 255 * magnitude)
        elif name in _BLENDS:
            _BLENDS[name](image, 1.0 + magnitude)
        elif name != "Identity":
            _PLAIN[name](image)


def _shears(axis: int) -> Callable[[float], dict[str, Any]]:
    def shear(by: float) -> dict[str, Any]:
        angles = [0.0, 0.0]
        angles[axis] = math.degrees(math.atan(by))
        return {"shear": angles, "center": (0, 0)}

    return shear


def _translates(axis: int) -> Callable[[float], dict[str, Any]]:
    def translate(by: float) -> dict[str, Any]:
        pixels = [0, 0]
        pixels[axis] = int(by)
        return {"translate": pixels}

    return translate


#: What those that move pixels are as an affine map, by their magnitude.
_MOVES: Final[dict[str, Callable[[float], dict[str, Any]]]] = {
    "ShearX": _shears(0),
    "ShearY": _shears(1),
    "TranslateX": _translates(0),
    "TranslateY": _translates(1),
    "Rotate": lambda angle: {"angle": -angle},
}


def _move(image: Array, name: str, by: float, interpolation: str, fill: Fill) -> None:
    if name == "Rotate":  # which turns by quarters exactly
        functions.rotate(image, by, interpolation, fill)
    else:
        functions.affine(image, **_MOVES[name](by), interpolation=interpolation, fill=fill)


_BLENDS: Final = {
    "Brightness": functions.adjust_brightness,
    "Color": functions.adjust_saturation,
    "Contrast": functions.adjust_contrast,
    "Sharpness": functions.adjust_sharpness,
}
_PLAIN: Final = {
    "AutoContrast": functions.autocontrast,
    "Equalize": functions.equalize,
    "Invert": functions.invert,
}


@dataclass(frozen=True)
class TrivialAugmentWide(Policy, name="trivial-augment-wide"):
    """One operation with a random magnitude (Müller and Hutter, "TrivialAugment", 2021)."""

    num_magnitude_bins: int = option(whole(2), 31)

    def draw(self, draws: Draws, shape: ImageShape) -> Drawn | None:
        bins, space, names = self.num_magnitude_bins, SPACES[self.name], _NAMES[self.name]
        name = names[draws.below(len(names))]
        number = draws.below(bins)
        return {"chosen": [(name, self._magnitude(space, name, number, bins, shape, draws))]}


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
        bins, space, names = self.num_magnitude_bins, SPACES[self.name], _NAMES[self.name]
        chosen = []
        for _ in range(self.num_ops):
            name = names[draws.below(len(names))]
            magnitude = self._magnitude(space, name, self.magnitude, bins, shape, draws)
            chosen.append((name, magnitude))
        return {"chosen": chosen}


PolicyName: TypeAlias = Literal["imagenet", "cifar10", "svhn"]


@dataclass(frozen=True)
class AutoAugment(Policy, name="auto-augment"):
    """One of 25 learned pairs of operations (Cubuk et al., "AutoAugment", 2018)."""

    policy: PolicyName = option(one_of(PolicyName), "imagenet")

    def draw(self, draws: Draws, shape: ImageShape) -> Drawn | None:
        space, pairs, chosen = SPACES[self.name], POLICIES[self.policy], []
        for name, chance, number in pairs[draws.below(len(pairs))]:
            if draws.uniform() <= chance:
                magnitude = self._magnitude(space, name, number, 10, shape, draws)
                chosen.append((name, magnitude))
        return {"chosen": chosen}
