"""Postprocess functions of tests that draw from global generators: worker processes import them by
name, and torch with them, where it is installed."""

import contextlib
import random
from typing import Any

import numpy as np

torch: Any = None
with contextlib.suppress(ImportError):
    import torch


def from_global_generators(data: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(B, 3) numbers: a draw of ``random``, of numpy and of torch for each sample."""
    draws = [(random.random(), np.random.random(), 0.0) for _ in data]
    made = np.array(draws)
    if torch is not None:
        made[:, 2] = torch.rand(len(data)).numpy()
    return made, labels
