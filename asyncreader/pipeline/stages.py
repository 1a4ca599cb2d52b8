"""What is done with a whole batch when its rows are filled: a stage after the other.

A new stage is a class here and its line in :func:`stages_of`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Protocol, TypeAlias

import numpy as np

from ..array_types import Array
from ..checks import FILL_MASKED
from ..errors import WorkerError
from ..params import ReaderParams
from ..sampling.schedule import BatchPlan
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


def stages_of(p: ReaderParams) -> tuple[Stage, ...]:
    """The stages that the parameters ask for, in their order."""
    return () if p.postprocess is None else (Postprocess(p.postprocess),)


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
        made = [None if one is None else Part(one.shape, one.dtype) for one in arrays]
        known = [part for part in made[:-1] if part is not None]
        if (
            not known
            or len(known) < len(data)
            or any(
                one is not None and (one.dtype.kind not in "buif" or not one.ndim) for one in arrays
            )
        ):
            raise WorkerError(
                "postprocess must return arrays of numbers",
                found=" and ".join(type(part).__name__ for part in parts),
            )
        return BatchLayout(tuple(known), made[-1], several)

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
        arguments: list[Any] = [given.data if given.several else given.data[0], given.labels]
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
            return result[0], result[1]
        return result, given.labels


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
    if np.ma.is_masked(returned):
        raise WorkerError(
            f"postprocess returned {name} with masked values, whose mask would be lost",
            hint=FILL_MASKED,
        )
    array = np.asarray(returned)
    if array.shape != out.shape or array.dtype != out.dtype:
        raise WorkerError(
            f"postprocess returned {name} of another shape or dtype than in its trial call",
            found=f"{array.shape} {array.dtype}",
            expected=f"{out.shape} {out.dtype}",
            hint="a batch has a fixed shape",
        )
    np.copyto(out, array)
