"""The user's function of each sample, ``transform``, as a step: called, its result checked."""

from __future__ import annotations

import inspect
import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np

from ..errors import WorkerError
from ..system.array_types import Array
from ..system.checks import FILL_MASKED
from .points import real
from .specs import ImageShape, Row, Step

_HINT: Final = "it must return images of one shape, with the dtype that it gets"


class LabelSpec(NamedTuple):
    """Shape and dtype of the label that a transform returns."""

    shape: tuple[int, ...]
    dtype: np.dtype[np.generic]


class Made(NamedTuple):
    """What a transform returned for a real row: ``shapes`` of its fields; ``label``: None where it
    returns none."""

    shapes: tuple[ImageShape, ...]
    label: LabelSpec | None


class Field(NamedTuple):
    """A field of a sample. ``kind``: "image", "mask", "boxes", "keypoints" or "numbers"."""

    name: str
    kind: str


@dataclass(frozen=True)
class Transform(Step):
    """A step that calls the user's function. ``made``: what it must return, None in a trial call,
    of which ``trials`` keeps what it returned. ``seeded``: the global generators are seeded for
    each sample, in a process whose other threads draw nothing. ``fields``: of the function of
    several fields, which gets a tuple of them by :meth:`of`; () of one that gets an image."""

    function: Callable[..., object]
    made: Made | None = None
    seeded: bool = False
    fields: tuple[Field, ...] = ()
    trials: list[Made] = field(default_factory=list, compare=False)

    name = "transform"

    def shape(self, given: ImageShape) -> ImageShape:
        """The shape that the trial call returned."""
        return given if self.made is None else self.made.shapes[0]

    def __call__(self, image: Array, row: Row) -> Array:
        return self.of((image,), row)[0]

    def of(self, sample: tuple[Array, ...], row: Row) -> tuple[Array, ...]:
        """The fields of a sample after the function; its label is put into ``row``."""
        if self.seeded:
            seed_generators(row.key)
            own = getattr(self.function, "set_random_seed", None)  # albumentations 2
            if own is not None:
                own(row.key & 0xFFFFFFFF)
        label = None if row.label is None else row.label.copy()
        given = sample if self.made is not None else tuple(one.copy() for one in sample)
        result, new_label = self._parts(self._call(given, label, row))
        returned = given if result is None else result
        dtypes = [one.dtype for one in given]
        made = tuple(self._array(k, returned[k], dtypes[k]) for k in range(len(given)))
        label_spec = None
        if new_label is not None:
            check_unmasked("transform", "a label", new_label)
            as_array = np.asarray(new_label)
            label_spec = LabelSpec(as_array.shape, as_array.dtype)
            if as_array.dtype.kind not in "buif":
                raise WorkerError("transform must return a label of numbers", found=repr(new_label))
            row.label = as_array
        found = Made(tuple(one.shape for one in made), label_spec)
        if self.made is None:
            self.trials.append(found)
            return sample
        self._check(found, self.made)
        return made

    def _parts(self, result: object) -> tuple[Sequence[object] | None, object]:
        """The fields and the label that were returned; None for what was not."""
        if not self.fields:
            if not isinstance(result, tuple):
                return None if result is None else (result,), None
            if len(result) != 2:
                raise WorkerError(
                    "transform must return None, the image, or (image, label)",
                    found=f"{len(result)} values",
                )
            return result[:1], result[1]
        label: object = None
        if isinstance(result, tuple) and len(result) == 2 and isinstance(result[0], tuple):
            result, label = result
        if result is None:
            return None, label
        if not isinstance(result, tuple) or len(result) != len(self.fields):
            raise WorkerError(
                "transform must return None, the fields, or (fields, label)",
                found=f"{len(result)} values"
                if isinstance(result, tuple)
                else type(result).__name__,
                expected=f"a tuple of {', '.join(one.name for one in self.fields)}",
            )
        return result, label

    def _call(self, given: tuple[Array, ...], label: Array | None, row: Row) -> object:
        """Call the function in the way that it is called; WorkerError if it raised."""
        kind = (type(self.function).__module__ or "").partition(".")[0]
        try:
            if kind == "albumentations":
                return _by_albumentations(self.function, given, self.fields)
            if kind == "torchvision":
                return _by_torch(self.function, given, self.fields)
            arguments: list[Any] = [given if self.fields else given[0], label]
            taken = takes(self.function)
            if taken == 3:
                arguments.append(row.rng)
            return self.function(*arguments[:taken])
        except Exception as exc:
            raise WorkerError(
                f"transform raised {type(exc).__name__}: {exc}",
                hint="the original error is its cause",
            ) from exc

    def _of_field(self, number: int) -> str:
        return f"field {self.fields[number].name!r}: " if self.fields else ""

    def _array(self, number: int, result: object, dtype: np.dtype[Any]) -> Array:
        """What was returned of a field, as an array of the dtype that it must have."""
        said = self._of_field(number)
        check_unmasked("transform", "an array" if self.fields else "an image", result)
        try:
            made = np.asarray(result)
        except Exception as exc:  # rows of several lengths, a tensor on a GPU
            raise WorkerError(f"{said}transform must return an array: {exc}") from exc
        image = not self.fields or self.fields[number].kind in ("image", "mask")
        if made.dtype != dtype or (image and made.ndim != 3) or not made.ndim or not made.size:
            what, shape = ("an image (H, W, C)", "(H, W, C)") if image else ("numbers", "(...)")
            raise WorkerError(
                f"{said}transform must return {what} with the dtype that it gets",
                found=f"{made.shape} {made.dtype}"
                if made.dtype != object
                else type(result).__name__,
                expected=f"{shape} {dtype}",
                hint="dtype=, scale=, mean= and std= cast and normalise after it",
            )
        return made

    def _check(self, found: Made, expected: Made) -> None:
        for number, (shape, known) in enumerate(zip(found.shapes, expected.shapes, strict=True)):
            if shape != known:
                what = "an image of another shape" if not self.fields else "another shape"
                raise WorkerError(
                    f"{self._of_field(number)}transform returned {what} than in its trial call",
                    found=shape,
                    expected=known,
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


def check_unmasked(name: str, what: str, returned: object) -> None:
    """WorkerError where what the user's function ``name`` returned has values without a number."""
    if np.ma.is_masked(returned):
        raise WorkerError(
            f"{name} returned {what} with masked values, whose mask would be lost", hint=FILL_MASKED
        )


def _by_albumentations(
    function: Callable[..., Any], given: tuple[Array, ...], fields: tuple[Field, ...]
) -> object:
    """Call a transform of albumentations, with ``image`` and, of several fields, ``masks``."""
    if not fields:
        return function(image=given[0])["image"]
    made = function(image=given[0], masks=list(given[1:]))
    shapes = zip((made["image"], *made["masks"]), given, strict=True)
    # some of its transforms drop an axis of one channel
    return tuple(np.asarray(one).reshape(*one.shape[:2], was.shape[2]) for one, was in shapes)


def _by_torch(
    function: Callable[..., Any], given: tuple[Array, ...], fields: tuple[Field, ...]
) -> object:
    """Call a transform of torchvision, which works on tensors (C, H, W); several fields become
    torchvision's tensors of their kinds."""
    torch: Any = sys.modules["torch"]
    tensors = [torch.from_numpy(np.ascontiguousarray(one)) for one in given]
    if not fields:
        made = function(tensors[0].permute(2, 0, 1))
        if not isinstance(made, torch.Tensor):
            return made
        return made.permute(1, 2, 0).contiguous().numpy()
    kinds, size = sys.modules["torchvision"].tv_tensors, given[0].shape[:2]
    told: list[Any] = []
    for one, (_, kind) in zip(tensors, fields, strict=True):
        if kind in ("image", "mask"):
            told.append((kinds.Image if kind == "image" else kinds.Mask)(one.permute(2, 0, 1)))
        elif kind == "boxes":
            flat = one.reshape(-1, 4).clone()
            told.append(kinds.BoundingBoxes(flat, format="XYXY", canvas_size=size))
        elif kind == "keypoints":
            flat = one.reshape(-1, one.shape[-1])[:, :2].clone()
            told.append(kinds.KeyPoints(flat, canvas_size=size))
        else:
            told.append(one)
    found = zip(function(*told), given, fields, strict=True)
    return tuple(_of_torch(made, was, one.kind) for made, was, one in found)


def _of_torch(made: Any, given: Array, kind: str) -> Array:
    """What torchvision made of a field, as an array like the one that it was given."""
    if kind in ("image", "mask"):
        made = made.permute(1, 2, 0).contiguous()
    found: Array = made.numpy()
    if kind in ("boxes", "keypoints"):
        rows = given.reshape(-1, given.shape[-1])
        if len(found) != len(rows):
            return found  # which is an error, as another shape
        moved = rows.copy()
        there = real(moved, kind)  # what marks that there is no more stays
        moved[there, : found.shape[1]] = found[there]
        found = moved.reshape(given.shape)
    return found


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
