"""Steps: what is done with one sample between its crop and its row, or with the row itself.

A reader's steps come in this order: decode, crop, resize and mirror, in one pass; the steps; cast
and normalise, in one pass; the steps that are ``last``. All of them run in the worker that reads
the sample, in its own memory.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, MutableMapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, Protocol, TypeAlias, runtime_checkable

import numpy as np
import numpy.typing as npt

from ..system.keyed_random import Draws, key_of
from .fill_tables import STEP_DRAWS, Erasure

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


class Step(Protocol):
    """One step. Frozen and picklable: worker processes get it, and threads share it."""

    @property
    def name(self) -> str:
        """The name that its seconds have in stats and trace."""

    @property
    def random(self) -> bool:
        """Whether it draws random numbers."""

    @property
    def last(self) -> bool:
        """Whether it works on the sample as it is served: cast and normalised."""

    def shape(self, given: ImageShape) -> ImageShape:
        """The shape of what it returns for an image of shape ``given``."""

    def __call__(self, image: Array, row: Row) -> Array:
        """The image after this step: ``image`` (H, W, C), changed in place, or another array of
        the same dtype."""


@runtime_checkable
class Erases(Protocol):
    """A step that compiled code can do for many rows, where it is the only one."""

    @property
    def erasure(self) -> Erasure | None:
        """What it does, if that is to paint over a rectangle with ``paint``; None: more."""

    def paint(self, dtype: np.dtype[np.generic], channels: int) -> Array:
        """A pixel (C,)."""


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
