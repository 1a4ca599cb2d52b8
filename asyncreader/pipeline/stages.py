"""What is done with a whole batch when its rows are filled: a stage after the other.

A new stage is a class here and its line in :func:`stages_of`.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final, Protocol, TypeAlias

import numpy as np

from ..errors import ParamsError, WorkerError
from ..params.reader import Run
from ..pixels.user_transform import check_unmasked
from ..sampling.schedule import BatchPlan
from ..sources.labels import apart, together
from ..system.array_types import Array, Bools
from ..system.keyed_random import Draws, key_of, mix_rows
from .slots import BatchArrays, BatchLayout, Part

Postprocessor: TypeAlias = Callable[..., Any]

#: Makes the first batch as a stage is given it, of real rows, and says which batch that is.
Trial: TypeAlias = Callable[[], tuple[BatchArrays, BatchPlan]]


class Stage(Protocol):
    """One thing that is done with each batch. Called from several workers at once."""

    @property
    def name(self) -> str:
        """The name that its seconds have in stats and trace."""

    def layout(self, given: BatchLayout, trial: Trial) -> BatchLayout:
        """What it makes of batches laid out as ``given``; called once, when a reader is opened.

        What it returns of ``given`` it changes in place. What it describes anew gets memory of its
        own. Where that cannot be computed, one call of ``trial`` gives real rows.
        """

    def run(self, given: BatchArrays, made: BatchArrays, plan: BatchPlan) -> None:
        """Make ``made``, laid out as layout() said, of ``given``: both cut to the batch's rows.

        ``plan``: which batch it is, with its random keys. What it raises is the batch's error.
        """


def stages_of(p: Run, classes: tuple[str, ...] | None, image: str | None) -> tuple[Stage, ...]:
    """The stages that the parameters ask for, in their order.

    ``classes``: of the set; ``image``: the axes of its data, as handed out ("HWC"), None for data
    that are no images.
    """
    stages: list[Stage] = []
    if p.mixup is not None or p.cutmix is not None or p.label_smoothing or p.num_classes:
        count = p.num_classes or (None if classes is None else len(classes))
        axes = None if image is None else (image.index("H") + 1, image.index("W") + 1)
        stages.append(SoftLabels(count, p.label_smoothing, p.mixup, p.cutmix, axes))
    if p.postprocess is not None:
        stages.append(Postprocess(p.postprocess))
    return tuple(stages)


#: Keeps the draws of pairs apart from others of the same seed and epoch.
_PAIRS: Final = 0x5052


class SoftLabels:
    """Labels as rows of probabilities (B, classes) float32; pairs of rows mixed, and their labels.

    ``image_axes``: axes of height and width of a batch's data, None where these are no images.
    A row's partner is its neighbour in the epoch's order, position xor 1. Rows that hold no sample
    and rows with label -1 have labels of zeros, and their pairs are not mixed.
    """

    def __init__(
        self,
        classes: int | None,
        smoothing: float,
        mixup: float | None,
        cutmix: float | None,
        image_axes: tuple[int, int] | None,
    ) -> None:
        self._classes, self._smoothing, self._image_axes = classes, smoothing, image_axes
        ways = {"mixup": (self._mix, mixup), "cutmix": (self._cut, cutmix)}
        self._ways = [(way, alpha) for way, alpha in ways.values() if alpha is not None]
        named = "/".join(name for name, (_, alpha) in ways.items() if alpha is not None)
        self.name = named or ("label_smoothing" if smoothing else "num_classes")
        if cutmix is not None and image_axes is None:
            raise ParamsError(
                "cutmix works on images",
                found="data that are none",
                hint="mixup blends rows of any numbers",
            )

    def layout(self, given: BatchLayout, trial: Trial) -> BatchLayout:
        """Labels of (B, classes) float32. ParamsError if there are no class numbers."""
        labels = given.labels
        numbers = labels is not None and labels.dtype.kind in "iu"
        if labels is None or not numbers or math.prod(labels.shape[1:]) != 1:
            raise ParamsError(
                f"{self.name} needs a class number for each sample",
                found="no labels" if labels is None else f"{labels.shape[1:]} {labels.dtype}",
                expected="labels (N,) or (N, 1) of whole numbers",
            )
        if self._classes is None:
            raise ParamsError(
                f"{self.name} needs the number of classes, which the dataset does not name",
                hint="num_classes=10",
            )
        if self._ways and (given.several or given.data[0].dtype.kind not in "iuf"):
            raise ParamsError(
                f"{self.name} mixes the data of one field of numbers",
                found="several fields" if given.several else str(given.data[0].dtype),
                hint="postprocess gets the batches of all fields"
                if given.several
                else 'pass dtype="float32"',
            )
        if self._ways and labels.shape[0] % 2:
            raise ParamsError(
                f"{self.name} needs an even batch_size: it mixes rows two by two",
                found=labels.shape[0],
            )
        return replace(given, labels=Part((labels.shape[0], self._classes), np.dtype(np.float32)))

    def run(self, given: BatchArrays, made: BatchArrays, plan: BatchPlan) -> None:
        """Write the rows of probabilities, and mix pairs. ParamsError for a label of no class."""
        assert given.labels is not None
        assert made.labels is not None
        assert self._classes is not None
        given_numbers, soft = given.labels.reshape(-1), made.labels
        wrong = plan.valid & ((given_numbers < -1) | (given_numbers >= self._classes))
        numbers = given_numbers.astype(np.int64)  # 2**64 - 1 would be -1
        if wrong.any():
            row = int(np.argmax(wrong))
            raise ParamsError(
                "a label is no class number",
                index=int(plan.indices[row]),
                found=int(given_numbers[row]),
                expected=f"0 to {self._classes - 1}, or -1 for none",
                hint="num_classes= says how many there are",
            )
        known = plan.valid & (numbers >= 0)
        soft[:] = self._smoothing / self._classes
        soft[~known] = 0
        soft[known, numbers[known]] += 1 - self._smoothing
        if self._ways:
            self._mix_pairs(made.data[0], soft, known, plan)

    def _mix_pairs(self, data: Array, soft: Array, known: Bools, plan: BatchPlan) -> None:
        if plan.start % 2:
            raise ParamsError(
                f"{self.name} mixes neighbours of the epoch's order: a batch cannot begin between "
                "two",
                found=f"position {plan.start}",
                hint="resume where a batch of even size begins",
            )
        pairs = np.arange(plan.start, plan.start + len(soft) - 1, 2, dtype=np.int64)
        keys = mix_rows(key_of(plan.seed, _PAIRS, plan.epoch), pairs).tolist()
        for pair, key in enumerate(keys):
            first, second = 2 * pair, 2 * pair + 1
            if not (known[first] and known[second]):
                continue
            draws = Draws(key)
            way, alpha = self._ways[draws.below(len(self._ways))]
            part = way(data[first], data[second], draws.beta(alpha), draws)
            one, other = soft[first].copy(), soft[second].copy()
            soft[first] = part * one + (1 - part) * other
            soft[second] = part * other + (1 - part) * one

    @staticmethod
    def _mix(first: Array, second: Array, part: float, draws: Draws) -> float:
        """Blend two rows: ``part`` of each is its own (Zhang et al., "mixup", 2018)."""
        small = first.dtype.itemsize <= 2 or first.dtype == np.float32
        change = np.subtract(second, first, dtype=np.float32 if small else np.float64)
        np.multiply(change, 1 - part, out=change)
        if first.dtype.kind != "f":
            np.rint(change, out=change)
        np.add(first, change, out=first, casting="unsafe")
        np.subtract(second, change, out=second, casting="unsafe")
        return part

    def _cut(self, first: Array, second: Array, part: float, draws: Draws) -> float:
        """Exchange a rectangle of two rows (Yun et al., "CutMix", 2019), placed as torchvision's
        CutMix does. Returns the part of a row that is its own."""
        assert self._image_axes is not None
        high, wide = (first.shape[axis - 1] for axis in self._image_axes)
        x, y = draws.below(wide), draws.below(high)
        half = 0.5 * math.sqrt(1 - part)
        across, down = int(half * wide), int(half * high)
        left, right = max(x - across, 0), min(x + across, wide)
        top, bottom = max(y - down, 0), min(y + down, high)
        place = [slice(None)] * first.ndim
        place[self._image_axes[0] - 1] = slice(top, bottom)
        place[self._image_axes[1] - 1] = slice(left, right)
        one, other = first[tuple(place)], second[tuple(place)]
        kept = one.copy(order="K")
        one[...] = other
        other[...] = kept
        return float(1 - (right - left) * (bottom - top) / (wide * high))


class Postprocess:
    """The user's function of a batch. What it returns is copied to memory of the slot."""

    name = "postprocess"

    def __init__(self, function: Postprocessor) -> None:
        self._function = function
        self._with_rng = takes_rng(function)

    def layout(self, given: BatchLayout, trial: Trial) -> BatchLayout:
        """What one trial call on real rows returns. WorkerError if it cannot be served."""
        rows, plan = trial()
        result = self._call(rows, plan)
        if result is None:
            return given
        several, data = _fields(result[0], given.several)
        parts = (*data, result[1])
        try:
            arrays = [None if part is None else np.asarray(part) for part in parts]
        except ValueError as exc:  # rows of several lengths
            raise WorkerError(f"postprocess must return arrays: {exc}") from exc
        *found, labels = arrays
        labelled = labels is None or labels.dtype.names is not None or _has_numbers(labels)
        if not found or not all(map(_has_numbers, found)) or not labelled:
            raise WorkerError(
                "postprocess must return arrays of numbers",
                found=" and ".join(type(part).__name__ for part in parts),
            )
        made = [None if one is None else Part(one.shape, one.dtype) for one in arrays]
        return BatchLayout(tuple(filter(None, made[:-1])), made[-1], several)

    def run(self, given: BatchArrays, made: BatchArrays, plan: BatchPlan) -> None:
        """Call the function, and copy what it returns. WorkerError if that is another shape."""
        result = self._call(given, plan)
        if (result is None) != np.may_share_memory(made.data[0], given.data[0]):
            first, then = ("arrays", "None") if result is None else ("None", "arrays")
            raise WorkerError(
                f"postprocess returned {then}, but {first} in its trial call",
                hint="it must always work in place, or always return arrays",
            )
        if result is None:
            return
        _, data = _fields(result[0], given.several)
        if len(data) != len(made.data):
            raise WorkerError(
                "postprocess returned another number of arrays than in its trial call",
                found=f"{len(data)} of data",
                expected=len(made.data),
            )
        for returned, out in zip(data, made.data, strict=True):
            _store("data", returned, out)
        _store("labels", result[1], made.labels)

    def _call(self, given: BatchArrays, plan: BatchPlan) -> tuple[Any, Any] | None:
        """Call the function; None if it worked in place. WorkerError if it raised."""
        arguments: list[Any] = [given.data if given.several else given.data[0], apart(given.labels)]
        if self._with_rng:
            arguments.append(np.random.Generator(np.random.Philox(key=plan.rng_key)))
        try:
            result = self._function(*arguments)
        except Exception as exc:
            raise WorkerError(
                f"postprocess raised {type(exc).__name__}: {exc}",
                hint="the original error is its cause",
            ) from exc
        if result is None:
            return None
        if isinstance(result, tuple | list):
            if len(result) != 2:
                raise WorkerError(
                    "postprocess must return None, data, or (data, labels)",
                    found=f"{len(result)} values",
                    hint="several fields go as ((first, second, ...), labels)",
                )
            return result[0], _one_table(result[1], given.labels)
        return result, given.labels


def _one_table(labels: Any, given: Array | None) -> Any:
    """Several labels, where a function returns them, as one array again; others as they are."""
    if given is None or given.dtype.names is None or not isinstance(labels, tuple):
        return labels
    return together({str(i): np.asarray(one) for i, one in enumerate(labels)})


def takes_rng(function: Postprocessor) -> bool:
    """Whether ``function`` takes (data, labels, rng) rather than (data, labels)."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return False
    try:
        signature.bind(None, None, None)
    except TypeError:
        return False
    # f(data, labels, alpha=0.5) binds three too, but did not ask for a generator
    named = list(signature.parameters.values())
    if len(named) < 3:
        return True
    return named[2].default is inspect.Parameter.empty or named[2].name == "rng"


def _has_numbers(array: Array | None) -> bool:
    """Whether it is an array of numbers, with an axis."""
    return array is not None and array.ndim > 0 and array.dtype.kind in "buif"


def _fields(data: Any, several: bool) -> tuple[bool, tuple[Any, ...]]:
    """Whether the user gets a tuple of data arrays, and the arrays that postprocess made.

    ``several``: whether it was given a tuple.
    """
    several = several and isinstance(data, tuple | list)
    return several, tuple(data) if several else (data,)


def _store(name: str, returned: Any, out: Array | None) -> None:
    """Copy what postprocess returned to ``out``, which is what its trial call returned."""
    if out is None:
        if returned is not None:
            raise WorkerError(f"postprocess returned {name}, but none in its trial call")
        return
    check_unmasked("postprocess", name, returned)
    array = np.asarray(returned)
    if array.shape != out.shape or array.dtype != out.dtype:
        raise WorkerError(
            f"postprocess returned {name} of another shape or dtype than in its trial call",
            found=f"{array.shape} {array.dtype}",
            expected=f"{out.shape} {out.dtype}",
            hint="a batch has a fixed shape",
        )
    np.copyto(out, array)
