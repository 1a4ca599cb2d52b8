"""A part of a JPEG as a smaller JPEG, cut out without decoding: for files with restart markers.

Between two restart markers (ITU-T T.81, E.1.4) lies a segment: MCUs that can be decoded without
those before them. A file that holds the segments around a part of the image, under a header with
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

from ...system.array_types import Array, UInt8
from .. import kernels
from ..fill_tables import FACTS, PART, numbers

#: First row, first column, end row and end column of a part of the stored image, in pixels.
Part: TypeAlias = tuple[int, int, int, int]


def read_facts(data: Any) -> Array | None:
    """What the header of a plain JPEG says: a record of FACTS, in 2 us; None for one that is not
    plain or not as it should be."""
    if not len(data):
        return None
    facts = np.empty(1, FACTS)
    kernels.jpeg_header(np.frombuffer(data, np.uint8), numbers(facts)[0])
    return facts if facts["scan"][0] else None


def most(data: Any) -> int:
    """Bytes of memory that :func:`cut` needs."""
    return len(data) + 64


def cut(data: Any, facts: Array, part: Part, eighths: int, out: UInt8) -> tuple[UInt8, Part] | None:
    """(a JPEG, what part it shows) that holds the pixels of ``part`` as the whole file has them
    when it is decoded at ``eighths`` of its size; None where that is not worth while or the file is
    not as it should be.

    ``facts``: of the file, with segments. ``out``: memory for it, of at least :func:`most` bytes.
    """
    parts = np.array([(0, *part, eighths), (0,) * 6], PART)
    wanted, found = numbers(parts)
    kernels.cut_jpeg(np.frombuffer(data, np.uint8), numbers(facts)[0], wanted, out, found)
    size, top, left, bottom, right, _ = found.tolist()
    return (out[:size], (top, left, bottom, right)) if size else None
