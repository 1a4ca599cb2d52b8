"""A part of a JPEG as a smaller JPEG, cut out without decoding: for files with restart markers.

Between two restart markers (ITU-T T.81, E.1.4) lies a segment: MCUs that can be decoded without
those before them. A file that holds the segments around a part of the picture, under a header with
another height and width, decodes to the same pixels there, and costs as much as its own size. The
decoder is an ordinary one.

Only plain files are cut: baseline, one scan, with a restart interval that divides the MCUs of a
row or is a number of whole rows. The markers of the whole scan are counted first, and their numbers
compared; what is not as it should be is left to the decoder, which sees the whole file and says
what is wrong.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from . import kernels

UInt8: TypeAlias = npt.NDArray[np.uint8]
#: First row, first column, end row and end column of a part of the stored picture, in pixels.
Part: TypeAlias = tuple[int, int, int, int]

#: Pixels that must be saved: finding and copying the segments takes as long as decoding some
#: thousand pixels.
_WORTH: Final = 16_384
#: Shortest side of a part: a decoder treats pictures of a few pixels in other ways.
_SHORTEST: Final = 64
#: Bytes behind the end of what is cut: libjpeg-turbo decodes an MCU of six blocks in its fast way
#: only where at least so many follow (BUFSIZE in its jdhuff.c). That saved 6 % of the time.
_BEHIND: Final = 6 * 512


@dataclass(frozen=True)
class Restarts:
    """Where the segments of a JPEG are.

    ``head``: the file up to its scan, without what says nothing about its pixels; height and width
    stand at byte ``sof`` of it. ``scan``: where the segments begin. ``size``: (H, W) as stored.
    ``segment``: (H, W) in pixels; ``grid``: rows and columns of segments. ``spread``: how many
    pixels of the picture one of the chroma channels stands for, down and across. ``last``: the
    fewest rows of pixels that need all the MCUs of a row of segments.
    """

    head: bytes
    sof: int
    scan: int
    size: tuple[int, int]
    segment: tuple[int, int]
    grid: tuple[int, int]
    spread: tuple[int, int]
    last: int

    def cut(self, data: Any, part: Part, eighths: int, out: UInt8) -> tuple[UInt8, Part] | None:
        """(a JPEG, what part it shows) that holds the pixels of ``part`` as the whole file has
        them when it is decoded at ``eighths`` of its size; None where that is not worth while or
        the file's markers are not as they should be.

        ``out``: memory for it, of at least :meth:`most` bytes.
        """
        lines: list[tuple[int, int]] = []
        for axis in (0, 1):
            # upsampling mixes a pixel of a chroma channel with the next one
            spread = self.spread[axis]
            more = -(-16 * spread // eighths) if spread > 1 else 0
            first = max(0, part[axis] - more) // self.segment[axis]
            end = -(-(part[axis + 2] + more) // self.segment[axis])
            lines.append((first, min(end, self.grid[axis])))
        (top, bottom), (left, right) = lines
        # Whether bytes are left over in a segment, because it is damaged, shows at the next one.
        height = bottom * self.segment[0]
        if bottom < self.grid[0]:
            bottom += 1
            height += self.last
        elif right < self.grid[1]:
            right += 1
        begin = top * self.segment[0], left * self.segment[1]
        end_at = min(height, self.size[0]), min(right * self.segment[1], self.size[1])
        sides = end_at[0] - begin[0], end_at[1] - begin[1]
        if self.size[0] * self.size[1] - sides[0] * sides[1] < _WORTH or any(
            side < min(_SHORTEST, whole) for side, whole in zip(sides, self.size, strict=True)
        ):
            return None
        head = bytearray(self.head)
        struct.pack_into(">HH", head, self.sof, *sides)
        written = np.zeros(1, np.int64)
        kernels.cut_jpeg(
            np.frombuffer(data, np.uint8),
            self.scan,
            np.frombuffer(head, np.uint8),
            np.array((*self.grid, top, bottom, left, right)),
            out,
            written,
        )
        if not written[0]:
            return None
        end = int(written[0])
        out[end : end + _BEHIND] = 0
        return out[: end + _BEHIND], (*begin, *end_at)


def most(data: Any) -> int:
    """Bytes that what is cut out of ``data`` takes at most."""
    return len(data) + 4 + _BEHIND


def find_restarts(data: memoryview, segments: Sequence[tuple[int, int, int]]) -> Restarts | None:
    """The segments between the restart markers of a JPEG, by its header; None where it has none, or
    is none that can be cut. ``segments``: marker, start and end of those up to the scan."""
    if not any(marker == 0xDD for marker, _, _ in segments):
        return None
    interval = sof = size = 0
    head, frame = [b"\xff\xd8"], b""
    for marker, start, end in segments:
        if (0xE0 <= marker <= 0xEF and marker not in (0xE0, 0xEE)) or marker == 0xFE:
            continue  # but for JFIF and Adobe, which say what the colours are
        part = bytes(data[start:end])
        if marker == 0xDD:
            interval = _number(part, 4)
        elif marker == 0xC0 and not frame:
            frame, sof = part[4:], 2 + size + 5
        elif 0xC0 <= marker <= 0xCF and marker != 0xC4:
            return None
        head.append(part)
        size += end - start
    scan, scan_start, scan_end = segments[-1]
    channels = frame[5] if len(frame) > 5 else 0
    if channels not in (1, 3) or len(frame) != 6 + 3 * channels or frame[0] != 8:
        return None
    if scan != 0xDA or scan_end > len(data) or data[scan_start + 4] != channels or not interval:
        return None
    factors = [(frame[k] & 15, frame[k] >> 4) for k in range(7, len(frame), 3)]
    if any(factor != (1, 1) for factor in factors[1:]) or channels == 1 != max(factors[0]):
        return None
    height, width = _number(frame, 1), _number(frame, 3)
    mcu = 8 * factors[0][0], 8 * factors[0][1]
    down, across = -(-height // mcu[0]), -(-width // mcu[1])
    if across and across % interval == 0:
        grid, segment = (down, across // interval), (mcu[0], interval * mcu[1])
    elif across and interval % across == 0:
        rows = interval // across
        grid, segment = (-(-down // rows), 1), (rows * mcu[0], width)
    else:
        return None
    if grid[0] * grid[1] < 2:
        return None
    return Restarts(
        b"".join(head),
        sof,
        scan_end,
        (height, width),
        segment,
        grid,
        factors[0],
        segment[0] - mcu[0] + 1,
    )


def _number(data: Any, at: int) -> int:
    return data[at] << 8 | data[at + 1] if at + 1 < len(data) else 0
