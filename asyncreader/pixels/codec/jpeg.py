"""The segments of a JPEG before its picture: its size, sampling and orientation; and parts cut out.

A part of a JPEG is cut out as a smaller JPEG, without decoding, of files with restart markers.
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

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np

from ...errors import DecodeError
from ...system.array_types import Array, UInt8
from .. import kernels
from ..shared import exif_orientation
from ..tables import FACTS, PART, numbers

#: Anything with the buffer protocol (collections.abc.Buffer is Python 3.12's).
Buffer: TypeAlias = Any

#: Above this an image is refused by its header: Pillow's own warning limit (about 9,459 squared).
MAX_PIXELS: Final = 89_478_485

#: Scans of a progressive JPEG, and pixels in all of them: usual encoders make 10, none 100.
MAX_SCANS: Final = 256
_SCANNED: Final = 32 * MAX_PIXELS
#: Marker segments before a JPEG's first scan: a colour profile takes 255 at most.
_JPEG_SEGMENTS: Final = 4096

#: The next marker, as libjpeg finds it: any number of fill bytes may stand in front.
_JPEG_HEAD: Final = re.compile(rb"\xff[^\x00\xff]")
#: The next one after a scan, in which it is no restart marker.
_JPEG_MARKER: Final = re.compile(rb"\xff+[^\x00\xd0-\xd7\xff]")
#: The same to search for: beginning with one plain byte, it is found 15 times faster.
_JPEG_NEXT: Final = re.compile(rb"\xff[^\x00\xd0-\xd7\xff]")
_JFIF: Final = b"\xff\xe0\0\x10JFIF\0\1\1\0\0\1\0\1\0\0"
_XMP_SEGMENT: Final = b"http://ns.adobe.com/xap/1.0/\0"
_XMP_ORIENTATION: Final = re.compile(rb'tiff:Orientation(="|>)([0-9])')


@dataclass(frozen=True)
class _Jpeg:
    """What stands before a JPEG's first scan, which begins at ``scan``.

    ``several``: it may have more than one scan (progressive, its channels apart, or odd).
    ``size``: (H, W) as stored; ``sampling``: a byte for each channel, horizontal and vertical
    factor in its high and low half.
    """

    orientation: int
    several: bool
    scan: int
    size: tuple[int, int]
    sampling: bytes

    @property
    def unusual(self) -> bool:
        """Whether its sampling is valid (T.81, B.2.2) and turbojpeg has no name for it."""
        first, others = self.sampling[:1], set(self.sampling[1:])
        valid = all(1 <= factor >> 4 <= 4 and 1 <= factor & 15 <= 4 for factor in self.sampling)
        count = len(self.sampling)
        named = count == 3 and others == {0x11} and first in _NAMED_SAMPLING
        return valid and 2 <= count <= 4 and not named


#: 4:4:4, 4:2:2, 4:2:0, 4:4:0, 4:1:1. What else there is, 4:4:1 too, is known to some versions only.
_NAMED_SAMPLING: Final = (b"\x11", b"\x21", b"\x22", b"\x12", b"\x41")


def check_sampling(sampling: bytes) -> None:
    """DecodeError for what libjpeg, which is in all our decoders, does not decode."""
    if len(sampling) == 2:
        raise DecodeError("a JPEG of 2 channels is not read", expected="1, 3 or 4 channels")
    axes = [factor >> 4 for factor in sampling], [factor & 15 for factor in sampling]
    if any(max(axis) % factor for axis in axes for factor in axis):
        raise DecodeError(
            "a JPEG with sampling that is not read",
            found=", ".join(f"{across}x{down}" for across, down in zip(*axes, strict=True)),
            expected="factors that divide the largest of them",
            hint="convert it to a usual JPEG or PNG",
        )


def _segments(data: Buffer) -> Iterator[tuple[int, int, int]]:
    """(marker, start, end) of a JPEG's segments up to its first scan or its end (T.81, B.1.1).

    Bytes between segments are passed over, as libjpeg and Pillow do. The last one is (0, start,
    start) where no segment can be made out. DecodeError where there are more of them than any
    camera or program writes.
    """
    view = memoryview(data)
    at, end = 2, len(view)
    for _ in range(_JPEG_SEGMENTS):
        if at + 4 > end:
            break
        start, marker = at, view[at + 1]
        if view[at] != 0xFF or marker in (0x00, 0xFF):
            found = _JPEG_HEAD.search(view, at)
            if found is None or found.end() + 2 > end:
                break
            start = found.end() - 2
            marker = view[start + 1]
        if marker == 0x01 or 0xD0 <= marker <= 0xD7:  # these stand alone
            at = start + 2
            continue
        size = (view[start + 2] << 8) | view[start + 3]
        if size < 2:
            break
        yield marker, start, start + 2 + size
        at = start + 2 + size
        if marker in (0xDA, 0xD9):
            return
    else:
        raise DecodeError(
            "a JPEG with too many segments before its image", expected=f"at most {_JPEG_SEGMENTS}"
        )
    yield 0, at, at


def walk_jpeg(data: Buffer) -> _Jpeg:
    """The facts of the segments up to the first scan; APP1 "Exif" or XMP turn the picture."""
    view = memoryview(data)
    exif: list[bytes] = []
    xmp = b""
    several, size, sampling = False, (0, 0), b""
    for marker, start, end in _segments(data):
        if marker == 0xE1:
            body = bytes(view[start + 4 : end])
            if body.startswith(b"Exif\0\0"):
                exif.append(body[6:])
            elif body.startswith(_XMP_SEGMENT):
                xmp = body[len(_XMP_SEGMENT) :]
        elif 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            body = bytes(view[start + 4 : end])
            several = marker & 3 == 2
            if len(body) >= 6:
                size = ((body[1] << 8) | body[2], (body[3] << 8) | body[4])
                sampling = body[7 : 6 + 3 * body[5] : 3]
        elif marker == 0xDA:
            several = several or len(view) <= start + 4 or view[start + 4] < len(sampling)
    several = several or marker != 0xDA
    turned = orientation_of(b"".join(exif), xmp)
    return _Jpeg(turned, several, start, size, sampling)


def plain_jpeg(data: Buffer) -> bytes:
    """A JPEG without the bytes between its segments, and without the segments that say nothing
    about its pixels."""
    view = memoryview(data)
    parts = [b"\xff\xd8"]
    for marker, start, end in _segments(data):
        if marker in (0x00, 0xDA, 0xD9):
            parts.append(bytes(view[start:]))
        elif marker == 0xE0 and bytes(view[start + 4 : start + 9]) == b"JFIF\0":
            parts.append(_JFIF)  # that it is there says which colours; its version does not matter
        elif marker == 0xEE:
            adobe = bytearray(view[start:end])
            if len(adobe) > 15 and adobe[15] > 1:  # no such colours: YCbCr, as libjpeg takes it
                adobe[15] = 1
            parts.append(bytes(adobe))
        elif not (0xE0 <= marker <= 0xEF or marker == 0xFE):
            parts.append(bytes(view[start:end]))
    return b"".join(parts)


def check_scans(data: Buffer, facts: _Jpeg, pixels: int) -> None:
    """DecodeError where decoding would go over the picture absurdly often: a few bytes of a
    progressive JPEG can be a scan of all its pixels."""
    if not facts.several:
        return
    scans = bytes(memoryview(data)[facts.scan :]).count(b"\xff\xda")
    if scans > MAX_SCANS or scans * pixels > _SCANNED:
        raise DecodeError(
            "a JPEG of too many scans",
            found=f"{scans} scans of {pixels} pixels",
            expected=f"at most {MAX_SCANS}, and {_SCANNED} pixels in all",
        )


def check_jpeg(data: bytes) -> None:
    """DecodeError unless marker segments and scans follow each other to the end-of-image marker."""
    at, scans = 2, 0
    while True:
        # what stands between the segments of its header has been looked at by read_header
        marker = (_JPEG_MARKER.match if scans else _JPEG_MARKER.search)(data, at)
        if marker is None:
            raise DecodeError(
                "truncated or damaged JPEG: no marker where one is due",
                found=f"byte {at} of {len(data)}",
            )
        at = marker.end()
        kind = data[at - 1]
        if kind == 0xD9:
            if not scans:
                raise DecodeError("damaged JPEG: it ends before its first scan")
            return
        size = int.from_bytes(data[at : at + 2], "big")
        if size < 2 or at + size > len(data):
            raise DecodeError("truncated JPEG: a segment runs past the end")
        at += size
        if kind == 0xDA:
            scans += 1
            following = _JPEG_NEXT.search(data, at)
            if following is None:
                raise DecodeError("truncated JPEG: no end-of-image marker")
            at = following.start()


def orientation_of(exif: bytes, xmp: bytes) -> int:
    """1 to 8: what EXIF says, or where that does not speak of it, what XMP says."""
    turned = _tiff_orientation(exif) if exif else 0
    if turned == 0 and (found := _XMP_ORIENTATION.search(xmp)) is not None:
        turned = int(found[2])
    return turned if 1 <= turned <= 8 else 1


def _tiff_orientation(tiff: bytes) -> int:
    """The orientation in EXIF data; 0 where it has none, 1 where it makes no sense."""
    turned = int(exif_orientation(tiff, 0, len(tiff)))
    if turned < 0:  # they are not as they should be
        return pillow_orientation(lambda: _exif_of(tiff))
    return turned if turned <= 8 else 1


def _exif_of(tiff: bytes) -> Any:
    from PIL import Image

    exif = Image.Exif()
    exif.load(tiff)
    return exif


def pillow_orientation(exif: Callable[[], Any]) -> int:
    """The orientation that Pillow finds in what ``exif`` gives: 0 where there is none, 1 where it
    makes no sense."""
    try:
        turned = exif().get(0x0112, 0)
    except (ImportError, MemoryError):
        raise
    except Exception:
        return 1
    return int(turned) if turned in range(9) else 1


# -- a part of a JPEG ---------------------------------------------------------------------------

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
