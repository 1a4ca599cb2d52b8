"""The user's function of each sample, ``transform``, as a step: called, its result checked."""

from __future__ import annotations

import inspect
import random
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, NamedTuple

import numpy as np

from ..checks import FILL_MASKED
from ..errors import WorkerError
from .steps import Array, ImageShape, Row

_HINT: Final = "it must return images of one shape, with the dtype that it gets"


class LabelSpec(NamedTuple):
    """Shape and dtype of the label that a transform returns."""

    shape: tuple[int, ...]
    dtype: np.dtype[np.generic]


class Made(NamedTuple):
    """What a transform returned for a real row: ``shape`` of the image; ``label``: None where it
    returns none."""

    shape: ImageShape
    label: LabelSpec | None


@dataclass(frozen=True)
class Transform:
    """A step that calls the user's function. ``made``: what it must return, None in a trial call,
    of which ``trials`` keeps what it returned. ``seeded``: the global generators are seeded for
    each sample, in a process whose other threads draw nothing."""

    function: Callable[..., object]
    made: Made | None = None
    seeded: bool = False
    trials: list[Made] = field(default_factory=list, compare=False)

    name: ClassVar[str] = "transform"
    random: ClassVar[bool] = True
    last: ClassVar[bool] = False

    def shape(self, given: ImageShape) -> ImageShape:
        """The shape that the trial call returned."""
        return given if self.made is None else self.made.shape

    def __call__(self, image: Array, row: Row) -> Array:
        if self.seeded:
            seed_generators(row.key)
            own = getattr(self.function, "set_random_seed", None)  # albumentations 2
            if own is not None:
                own(row.key & 0xFFFFFFFF)
        label = None if row.label is None else row.label.copy()
        given = image if self.made is not None else image.copy()
        result = self._call(given, label, row)
        new_label: object = None
        if isinstance(result, tuple):
            if len(result) != 2:
                raise WorkerError(
                    "transform must return None, the image, or (image, label)",
                    found=f"{len(result)} values",
                )
            result, new_label = result
        made = self._image(given if result is None else result, given.dtype)
        label_spec = None
        if new_label is not None:
            _check_unmasked("a label", new_label)
            as_array = np.asarray(new_label)
            label_spec = LabelSpec(as_array.shape, as_array.dtype)
            if as_array.dtype.kind not in "buif":
                raise WorkerError("transform must return a label of numbers", found=repr(new_label))
            row.label = as_array
        if self.made is None:
            self.trials.append(Made(made.shape, label_spec))
            return image
        self._check(Made(made.shape, label_spec), self.made)
        return made

    def _call(self, image: Array, label: Array | None, row: Row) -> object:
        """Call the function in the way that it is called; WorkerError if it raised."""
        kind = (type(self.function).__module__ or "").partition(".")[0]
        try:
            if kind == "albumentations":
                return self.function(image=image)["image"]  # type: ignore[index]
            if kind == "torchvision":
                return _by_torch(self.function, image)
            arguments: list[Any] = [image, label]
            taken = takes(self.function)
            if taken == 3:
                arguments.append(row.rng)
            return self.function(*arguments[:taken])
        except Exception as exc:
            raise WorkerError(
                f"transform raised {type(exc).__name__}: {exc}",
                hint="the original error is its cause",
            ) from exc

    @staticmethod
    def _image(result: object, dtype: np.dtype[Any]) -> Array:
        """The image that was returned, as an array of the dtype that it must have."""
        _check_unmasked("an image", result)
        try:
            made = np.asarray(result)
        except Exception as exc:  # rows of several lengths, a tensor on a GPU
            raise WorkerError(f"transform must return an array: {exc}") from exc
        if made.dtype != dtype or made.ndim != 3 or not made.size:
            raise WorkerError(
                "transform must return an image (H, W, C) with the dtype that it gets",
                found=f"{made.shape} {made.dtype}"
                if made.dtype != object
                else type(result).__name__,
                expected=f"(H, W, C) {dtype}",
                hint="dtype=, scale=, mean= and std= cast and normalise behind it",
            )
        return made

    @staticmethod
    def _check(found: Made, expected: Made) -> None:
        if found.shape != expected.shape:
            raise WorkerError(
                "transform returned an image of another shape than in its trial call",
                found=found.shape,
                expected=expected.shape,
                hint=_HINT,
            )
        if found.label != expected.label:
            said = [
                "no label" if one.label is None else f"a label {one.label.shape} {one.label.dtype}"
                for one in (found, expected)
            ]
            raise WorkerError(
                "transform returned another label than in its trial call",
                found=said[0],
                expected=said[1],
                hint="it must return labels of one shape and dtype",
            )


def _check_unmasked(what: str, returned: object) -> None:
    if np.ma.is_masked(returned):
        raise WorkerError(
            f"transform returned {what} with masked values, whose mask would be lost",
            hint=FILL_MASKED,
        )


def _by_torch(function: Callable[..., Any], image: Array) -> object:
    """Call a transform of torchvision, which works on tensors (C, H, W)."""
    torch: Any = sys.modules["torch"]
    made = function(torch.from_numpy(np.ascontiguousarray(image)).permute(2, 0, 1))
    return made.permute(1, 2, 0).contiguous().numpy() if isinstance(made, torch.Tensor) else made


def takes(function: Callable[..., object]) -> int:
    """Whether ``function`` takes (image), (image, label) or (image, label, rng): 1, 2 or 3."""
    try:
        found = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return 1
    placed = [p for p in found if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    names = ("image", "label", "rng")
    count = 1
    # f(image, strength=0.5) binds two, too, but did not ask for the label
    for one, name in zip(placed[1:3], names[1:], strict=False):
        if one.default is not one.empty and one.name != name:
            break
        count += 1
    return count


def seed_generators(key: int) -> None:
    """Seed what a user's function may draw from besides its rng: the global generators of
    ``random``, numpy and, where it is imported, torch. For a process without other threads that
    draw."""
    words = [key & 0xFFFFFFFF, key >> 32]
    random.seed(key)
    np.random.seed([*words, 1])  # of the same words alone both would draw the same numbers
    torch: Any = sys.modules.get("torch")
    if torch is not None:
        torch.manual_seed(key)
