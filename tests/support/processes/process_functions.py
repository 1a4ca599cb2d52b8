"""Postprocess functions of tests, which worker processes import by name.

They are in a module of their own because only pytest knows the name that it gives a test file: a
worker process finds ``process_functions`` on its path, but no ``tests.test_processes``.
"""

import multiprocessing
import os
import random
import signal
import threading
from typing import Any

import numpy as np
from face_sources import Odd


def jitter(data: np.ndarray, labels: np.ndarray, rng: np.random.Generator) -> None:
    """In place, and different for each batch."""
    data += rng.integers(0, 3, data.shape, dtype=np.uint8)


def halves(data: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """New arrays of another shape and dtype."""
    return data[:, :, ::2].astype(np.float32), labels[:, 0] * 2


def fails_at_20(data: np.ndarray, labels: np.ndarray) -> None:
    if labels[0, 0] == 20:
        raise Odd("twenty")


def shrinks_at_20(data: np.ndarray, labels: np.ndarray) -> np.ndarray:
    return data[:-1] if labels[0, 0] == 20 else data


def dies_at_20(data: np.ndarray, labels: np.ndarray) -> None:
    if labels[0, 0] == 20:
        os.kill(os.getpid(), signal.SIGSEGV)


def stays_for_ever(data: np.ndarray, labels: np.ndarray) -> None:
    if labels[0, 0] == 20:
        threading.Event().wait()


def negative(data: Any, labels: np.ndarray) -> Any:
    """Of a set of three fields."""
    image, mask, ids = data
    return (255 - image, mask.astype(np.int64), ids[:, 0]), labels


def darker(image, label, rng):  # type: ignore[no-untyped-def]
    """Darkens a picture by a random number, and adds to its label."""
    image //= int(rng.integers(1, 5))
    return image[:-1], label + 100


def from_global_generators(image):  # type: ignore[no-untyped-def]
    """Draws from the generators of ``random`` and numpy."""
    image[0, 0] = random.randrange(256)
    image[0, 1] = np.random.randint(256)


def dies_in_worker(image):  # type: ignore[no-untyped-def]
    """Returns another shape in worker processes."""
    return image if multiprocessing.parent_process() is None else image[1:]


def dims(image, label, rng):  # type: ignore[no-untyped-def]
    """Halves a random line of a picture, in place."""
    image[int(rng.integers(len(image)))] //= 2


def shift_fields(fields: Any, label: Any, rng: np.random.Generator) -> Any:
    """A transform of image, label map, boxes and keypoints: moved to the right by a few columns."""
    image, mask, boxes, points = fields
    by = int(rng.integers(0, 5))
    return (np.roll(image, by, 1), np.roll(mask, by, 1), boxes + by, points), label + by


def nothing(data: np.ndarray, labels: np.ndarray) -> None:
    """Leaves a batch as it is."""


def exits(image):  # type: ignore[no-untyped-def]
    """Ends the worker process that it is called in, for a bright picture."""
    if multiprocessing.parent_process() is not None and image[0, 0, 0] >= 128:
        os._exit(3)
