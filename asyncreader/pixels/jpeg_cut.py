"""A part of a JPEG as a smaller JPEG, cut out without decoding: for files with restart markers.

Between two restart markers (ITU-T T.81, E.1.4) lies a segment: MCUs that can be decoded without
those before them. A file that holds the segments around a part of the picture, under a header with
another height and width, decodes to the same pixels there, and costs as much as its own size. The
decoder is an ordinary one.

Only plain files are cut: baseline, one scan, with a restart interval that divides the MCUs of a
row or is a number of whole rows. The markers of the whole scan are counted first, and their numbers
compared; what is not as it should be is left to the decoder, which sees the whole file and says
what is wrong. Headers and parts are the work of compiled kernels.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

from ..system.array_types import Int64, UInt8
from . import kernels
from .fill_tables import JPEG_FACTS

#: First row, first column, end row and end column of a part of the stored picture, in pixels.
Part: TypeAlias = tuple[int, int, int, int]


def read_facts(data: Any) -> Int64 | None:
    """What the header of a plain JPEG says (see the kernel ``jpeg_header``), in 2 us; None for
    one that is not plain or not as it should be."""
    if not len(data):
        return None
    facts = np.empty(JPEG_FACTS, np.int64)
    kernels.jpeg_header(np.frombuffer(data, np.uint8), facts)
    return facts if facts[0] else None


def most(data: Any) -> int:
    """Bytes of memory that :func:`cut` needs."""
    return len(data) + 64


def cut(data: Any, facts: Int64, part: Part, eighths: int, out: UInt8) -> tuple[UInt8, Part] | None:
    """(a JPEG, what part it shows) that holds the pixels of ``part`` as the whole file has them
    when it is decoded at ``eighths`` of its size; None where that is not worth while or the file is
    not as it should be.

    ``facts``: of the file, with segments. ``out``: memory for it, of at least :func:`most` bytes.
    """
    found = np.empty(5, np.int64)
    kernels.cut_jpeg(
        np.frombuffer(data, np.uint8), facts, np.array((*part, eighths), np.int64), out, found
    )
    end, top, left, bottom, right = found.tolist()
    return (out[:end], (top, left, bottom, right)) if end else None
