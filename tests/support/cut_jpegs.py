"""JPEGs with restart markers: parts of them decoded alone and as parts of the whole, and damage."""

import io
import math
import re
from collections import Counter
from itertools import pairwise

import cv2
import numpy as np
from PIL import Image

from asyncreader.errors import DecodeError
from asyncreader.pixels import codec
from asyncreader.pixels.codec import jpeg

#: Pixels of an MCU across, by sampling.
ACROSS = {"4:4:4": 8, "4:2:2": 16, "4:2:0": 16, "4:4:0": 8, "4:1:1": 32, "grey": 8}


def picture(rng: np.random.Generator, height: int, width: int) -> np.ndarray:
    """Waves and noise, (H, W, 3)."""
    y, x = np.mgrid[:height, :width]
    waves = [x / rng.uniform(3, 40) + y / rng.uniform(3, 40) for _ in range(3)]
    noise = rng.normal(0, 12, (height, width, 3))
    return np.clip(128 + 100 * np.sin(np.stack(waves, -1)) + noise, 0, 255).astype(np.uint8)


def marked(
    pixels: np.ndarray, sampling: str, interval: int, turn: int = 1, quality: int = 90
) -> bytes:
    """``pixels`` as a JPEG with a restart marker behind every ``interval`` MCUs."""
    if sampling in ("4:4:0", "4:1:1"):  # Pillow does not write these
        factor = getattr(cv2, f"IMWRITE_JPEG_SAMPLING_FACTOR_{sampling.replace(':', '')}")
        options = [
            *(cv2.IMWRITE_JPEG_SAMPLING_FACTOR, factor),
            *(cv2.IMWRITE_JPEG_RST_INTERVAL, interval, cv2.IMWRITE_JPEG_QUALITY, quality),
        ]
        data = cv2.imencode(".jpg", pixels, options)[1].tobytes()
        body = _exif(turn).tobytes()
        return data[:2] + b"\xff\xe1" + (len(body) + 2).to_bytes(2, "big") + body + data[2:]
    image = Image.fromarray(pixels)
    held = io.BytesIO()
    options = {} if sampling == "grey" else {"subsampling": sampling}
    image.convert("L" if sampling == "grey" else "RGB").save(
        *(held, "JPEG"),
        quality=quality,
        exif=_exif(turn),
        restart_marker_blocks=interval,
        **options,
    )
    return held.getvalue()


def _exif(turn: int) -> Image.Exif:
    exif = Image.Exif()
    exif[0x0112] = turn
    return exif


def drawn(rng: np.random.Generator, low: int = 100, high: int = 520) -> bytes:
    """A JPEG that can be cut: of any sampling, size, turn and interval."""
    height, width = (int(side) for side in rng.integers(low, high, 2))
    sampling = str(rng.choice(list(ACROSS)))
    across = -(-width // ACROSS[sampling])
    intervals = [n for n in range(1, across + 1) if across % n == 0] + [2 * across, 3 * across]
    return marked(
        picture(rng, height, width),
        sampling,
        int(rng.choice(intervals)),
        int(rng.integers(1, 9)),
        int(rng.integers(40, 97)),
    )


def drawn_part(
    rng: np.random.Generator, header: codec.ImageHeader, share: float = 1
) -> tuple[int, int, int, int]:
    """Top, left, height and width of a part whose sides are at most ``share`` of the picture's."""
    high, wide = header.height, header.width
    height, width = (int(rng.integers(1, 1 + max(1, int(side * share)))) for side in (high, wide))
    return (
        int(rng.integers(high - height + 1)),
        int(rng.integers(wide - width + 1)),
        height,
        width,
    )


def least(rng: np.random.Generator, header: codec.ImageHeader) -> tuple[int, int] | None:
    """A size to be decoded at least: all, a half, a quarter ..."""
    by = int(rng.choice([1, 1, 1, 2, 3, 4, 8]))
    return None if by == 1 else (-(-header.height // by), -(-header.width // by))


def pixels_of(found: codec.Decoded, header: codec.ImageHeader, part: tuple[int, ...]) -> np.ndarray:
    """Those of the part, with the pixels that lie in it but for a fraction."""
    scale, y, x = codec.reduction(header, found.whole)
    top, left, height, width = part
    rows = max(0, math.floor(top * scale + y)), math.ceil((top + height) * scale + y)
    columns = max(0, math.floor(left * scale + x)), math.ceil((left + width) * scale + x)
    return found.pixels[
        rows[0] - found.top : min(rows[1], found.whole[0]) - found.top,
        columns[0] - found.left : min(columns[1], found.whole[1]) - found.left,
    ]


def is_cut(found: codec.Decoded) -> bool:
    return found.pixels.shape[:2] != found.whole


def compare_parts(pictures: int, seed: int = 0) -> Counter[str]:
    """How many parts were "cut" and decoded alone, or decoded as a "whole"; ten of each picture.
    AssertionError where one has other pixels than the whole picture."""
    rng = np.random.default_rng(seed)
    counts: Counter[str] = Counter()
    for _ in range(pictures):
        data = drawn(rng)
        header = codec.read_plain_header(data)
        assert header is not None
        assert header.facts is not None
        for _ in range(10):
            part, min_size = drawn_part(rng, header), least(rng, header)
            whole = codec.decode_part(data, 3, header, codec.Shown(min_size=min_size))
            found = codec.decode_part(data, 3, header, codec.Shown(part, min_size=min_size))
            assert found.whole == whole.whole
            np.testing.assert_array_equal(
                pixels_of(found, header, part), pixels_of(whole, header, part)
            )
            counts["cut" if is_cut(found) else "whole"] += 1
    return counts


def compare_damaged(files: int, seed: int = 0) -> Counter[str]:
    """The same with one damage in each of ``files``, four parts of each; "error": of both.

    A part that is decoded alone has the pixels of the whole damaged file, and where decoding that
    is an error, those of the undamaged picture: AssertionError for other pixels.
    """
    rng = np.random.default_rng(seed)
    sources = [drawn(rng, 160, 330) for _ in range(24)]
    counts: Counter[str] = Counter()
    for number in range(files):
        source = sources[number % len(sources)]
        data = damaged(source, rng)
        try:
            header = codec.read_plain_header(data) or codec.read_header(data)
        except DecodeError:
            counts["header"] += 1
            continue
        if header.height * header.width > 1_000_000:
            continue
        min_size = least(rng, header)
        for _ in range(4):
            part = drawn_part(rng, header, 0.5)
            whole = decoded(data, header, None, min_size)
            found = decoded(data, header, part, min_size)
            if found is None:
                assert whole is None, (seed, number, part)
                counts["error"] += 1
                continue
            what = "both" if whole is not None else "elsewhere"
            if whole is None:
                whole = decoded(source, codec.read_header(source), None, min_size)
            assert whole is not None
            np.testing.assert_array_equal(
                pixels_of(found, header, part), pixels_of(whole, header, part), str((seed, number))
            )
            counts[what if is_cut(found) else "whole"] += 1
    return counts


def decoded(
    data: bytes,
    header: codec.ImageHeader,
    part: tuple[int, int, int, int] | None,
    min_size: tuple[int, int] | None,
) -> codec.Decoded | None:
    try:
        return codec.decode_part(data, 3, header, codec.Shown(part, min_size=min_size))
    except DecodeError:
        return None


def damaged(data: bytes, rng: np.random.Generator) -> bytes:
    """The file with one damage: mostly in its scan, often at a restart marker."""
    facts = jpeg.read_facts(data)
    assert facts is not None
    scan = int(facts["scan"][0])
    marks = [
        found.start() for found in re.finditer(rb"\xff[\xd0-\xd7]", data) if found.start() >= scan
    ]
    at = int(rng.integers(scan if rng.random() < 0.85 else 2, len(data)))
    mark, count = int(rng.choice(marks)), int(rng.integers(1, 5))
    some = rng.integers(0, 255, count, np.uint8).tobytes()
    kind = int(rng.integers(9))
    if kind == 0:
        return data[:at] + bytes((data[at] ^ 1 << int(rng.integers(8)),)) + data[at + 1 :]
    if kind == 1:
        return data[:at] + some[:1] + data[at + 1 :]
    if kind == 2:
        return data[:at] + data[at + count :]
    if kind == 3:
        return data[:at] + some + data[at:]
    if kind == 4:
        return data[:mark] + some + data[mark:]
    if kind == 5:
        return data[: mark - count] + data[mark:]
    if kind == 6:
        return data[: mark + 1] + bytes((0xD0 + int(rng.integers(8)),)) + data[mark + 2 :]
    if kind == 7:
        return data[:mark] + data[mark + 2 :]
    # two segments change places, their markers do not
    bounds = [scan, *(mark + 2 for mark in marks)]
    segments = [data[a : b - 2] for a, b in pairwise(bounds)]
    first, second = int(rng.integers(len(segments))), int(rng.integers(len(segments)))
    segments[first], segments[second] = segments[second], segments[first]
    whole = b"".join(
        segment + data[mark : mark + 2] for segment, mark in zip(segments, marks, strict=True)
    )
    return data[:scan] + whole + data[bounds[-1] :]
