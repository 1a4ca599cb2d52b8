"""The 22 painted images that the tests of the reader read."""

from typing import Any

import numpy as np
from fakes import paint

from asyncreader import AsyncReader

COUNT = 22
IMAGES = paint(COUNT, (6, 5, 3))
#: The label of image i is 10 i.
LABELS = np.arange(COUNT, dtype=np.int64)[:, None] * 10


def open_reader(**params: Any) -> AsyncReader:
    """A reader of these images, four in a batch."""
    base = {"data": IMAGES, "labels": LABELS, "layout": "NHWC", "batchSize": 4}
    return AsyncReader(base, **params)
