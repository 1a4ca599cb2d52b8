"""Restart markers put into JPEGs without loss: the same pixels, and no harm from damaged files."""

import io
import random
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from converter_corpus import image, put, saved
from jpeg_files import jpeg_of, segment
from PIL import Image

import asyncreader
from asyncreader.pixels import codec
from converters import convert
from converters.encode import with_restarts

pytest.importorskip("numba")

SIZES = [(375, 500), (333, 641), (64, 640), (17, 1009), (200, 48)]


def pixels(data: bytes) -> np.ndarray:
    """As Pillow decodes them."""
    return np.asarray(Image.open(io.BytesIO(data)))


def rewritten(data: bytes) -> bytes:
    """With restart markers."""
    new = with_restarts(data)
    assert new is not None
    return new


def stored(target: Path) -> list[bytes]:
    """The samples of a packed set, as they are stored."""
    with asyncreader.open(target) as found:
        return [found.sample(number).stored["data"] for number in range(len(found))]


def stated(data: bytes) -> int:
    """The restart interval in a JPEG's header."""
    at = data.index(b"\xff\xdd\0\x04")
    return int.from_bytes(data[at + 4 : at + 6], "big")


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("options", [{}, {"optimize": True}, {"quality": 30, "optimize": True}])
@pytest.mark.parametrize("sampling", [0, 1, 2, None])
def test_pixels_stay_the_same(
    size: tuple[int, int], options: dict[str, object], sampling: int | None
) -> None:
    """4:4:4, 4:2:2, 4:2:0 and grey, standard and optimised tables: Pillow decodes the same; so it
    does of files of an independent small encoder."""
    picture = image(*size)
    if sampling is None:
        data = saved(picture.convert("L"), "JPEG", **options)
    else:
        data = saved(picture, "JPEG", subsampling=sampling, **options)
    assert rewritten(data).count(b"\xff\xd0") >= 1
    factors: Any = ([(1, 1)], [(2, 2)], [(2, 1), (1, 1), (1, 1)])
    noise = [jpeg_of(one, (150, 210)) for one in factors] if size == SIZES[0] else []
    for one in (data, *noise):
        assert np.array_equal(pixels(rewritten(one)), pixels(one))


def test_missing_dc_codes_are_added() -> None:
    """A table that was optimised for small differences gets longer codes for absolute values."""
    values = np.repeat(np.arange(128, 256, dtype=np.uint8), 2)[:, None] * np.ones(256, np.uint8)
    data = saved(Image.fromarray(values), "JPEG", quality=95, optimize=True)
    new = rewritten(data)
    assert new.count(b"\xff\xc4") == data.count(b"\xff\xc4") + 1
    assert np.array_equal(pixels(new), pixels(data))


@pytest.mark.parametrize(
    ("wide", "sampling", "interval"),
    [(512, 2, 4), (512, 0, 8), (496, 2, 31), (480, 2, 5), (500, 1, 4)],
)
def test_interval_divides_the_row(wide: int, sampling: int, interval: int) -> None:
    """64 pixels where they divide a row of MCUs, else the nearest divisor, else the whole row."""
    rng = np.random.default_rng(1)
    picture = Image.fromarray(rng.integers(0, 256, (100, wide, 3), np.uint8))
    assert stated(rewritten(saved(picture, "JPEG", subsampling=sampling))) == interval


def test_markers_of_a_flat_picture_cost_little() -> None:
    """A file of few bytes gets a marker per row, and grows by less than a marker per 64 pixels."""
    data = saved(Image.new("RGB", (512, 512), (90, 120, 30)), "JPEG")
    assert stated(rewritten(data)) == 32


def test_other_segments_are_kept() -> None:
    """EXIF, ICC profile, comment and what follows the picture: byte for byte, in their order."""
    exif = Image.Exif()
    exif[0x0112] = 6
    more = {"exif": exif, "icc_profile": b"profile" * 20_000, "comment": b"hello"}
    data = saved(image(300, 400), "JPEG", **more) + b"behind"
    new = rewritten(data)
    scan = data.rindex(b"\xff\xda")
    assert new.startswith(data[:scan])
    assert new.endswith(b"\xff\xd9behind")
    assert np.array_equal(pixels(new), pixels(data))


def test_other_files_stay_untouched() -> None:
    """Progressive, arithmetic, several scans, markers already there, four channels, several
    pictures, and a picture of one row."""
    picture = image(300, 400)
    plain = saved(picture, "JPEG")
    several = plain[:2] + segment(0xE2, b"MPF\0rest") + plain[2:]
    assert with_restarts(plain) is not None
    for data in (
        saved(picture, "JPEG", progressive=True),
        saved(picture.convert("CMYK"), "JPEG"),
        saved(picture.crop((0, 0, 40, 8)), "JPEG"),
        rewritten(plain),
        plain.replace(b"\xff\xc0", b"\xff\xc9", 1),
        plain.replace(b"\xff\xc0\0\x11\x08", b"\xff\xc0\0\x11\x0c", 1),
        jpeg_of([(4, 4), (1, 1), (1, 1)], (150, 210)),
        several,
        b"",
        b"\xff\xd8",
    ):
        assert with_restarts(data) is None


def test_damaged_files_do_no_harm() -> None:
    """Truncated, changed and random files are left alone, or decode as before."""
    rng = random.Random(5)
    good = [
        saved(image(80, 240), "JPEG"),
        saved(image(80, 240), "JPEG", optimize=True),
        saved(image(80, 240).convert("L"), "JPEG", quality=95),
    ]
    for number in range(3000):
        data = bytearray(rng.choice(good))
        if number % 3 == 0:
            del data[rng.randrange(len(data)) :]
            data += b"\xff\xd9" * (number % 2)
        first = 0 if number % 2 else 600
        for _ in range(rng.randrange(1, 5)):
            if len(data) > first:
                data[rng.randrange(first, len(data))] = rng.choice([0, 255, rng.randrange(256)])
        new = with_restarts(bytes(data))
        if new is None or number % 10:
            continue
        try:
            wanted = pixels(bytes(data))
        except OSError:
            continue
        assert np.array_equal(pixels(new), wanted)


@pytest.mark.parametrize("target", ["after", "after.h5"])
def test_convert_counts_what_it_rewrote(tmp_path: Path, target: str) -> None:
    """The report tells rewritten files from others; readers see the same pixels as before."""
    images = (saved(image(150, 320, n), "JPEG", progressive=n == 3) for n in range(4))
    folder = put(tmp_path / "in", {f"{number}.jpg": data for number, data in enumerate(images)})
    common: Any = {"encoding": "original", "no_labels": True}
    before = convert(folder, tmp_path / "before.h5", **common)
    shards = {} if "." in target else {"shards": 2}
    after = convert(folder, tmp_path / target, restarts=True, **common, **shards)
    assert (before.rewritten, after.rewritten, after.count) == (None, 3, 4)
    with (
        asyncreader.open(tmp_path / "before.h5") as one,
        asyncreader.open(tmp_path / target) as other,
    ):
        assert all(np.array_equal(one[number], other[number]) for number in range(4))


@pytest.mark.parametrize(("kind", "encoding"), [("PNG", "jpeg"), ("JPEG", "original")])
def test_packed_jpegs_get_markers_by_record(tmp_path: Path, kind: str, encoding: Any) -> None:
    """A set of JPEGs that is copied, not encoded anew, gets markers when that is asked: the same
    pixels; and without a word it is copied byte for byte. Other encodings may refuse them."""
    folder = put(tmp_path / "in", {f"a.{kind}": saved(image(150, 320), kind)})
    before = tmp_path / "a.h5"
    convert(folder, before, encoding=encoding, no_labels=True, restarts=False)
    assert convert(before, tmp_path / "copy.lmdb").rewritten is None
    again = convert(before, tmp_path / "b.h5", restarts=True)
    assert (again.encoding, again.rewritten) == (encoding, 1)
    old, copy, new = (stored(tmp_path / name)[0] for name in ("a.h5", "copy.lmdb", "b.h5"))
    assert old == copy
    assert new == with_restarts(old)
    convert(folder, tmp_path / "c.h5", encoding="png", restarts=False, no_labels=True)


@pytest.mark.parametrize(("size", "channels"), [(None, 3), (None, 1), ((224, 224), 3), (256, 3)])
def test_jpeg_gets_markers_unless_refused(
    tmp_path: Path, size: tuple[int, int] | int | None, channels: Literal[1, 3]
) -> None:
    """Encoding jpeg has restart markers that jpeg_cut can use, at most 2 % larger; with
    restarts=False it has none. Pillow decodes both to the same pixels."""
    images = [*(image(*size, number) for number, size in enumerate(SIZES)), image(8, 16)]
    files = {f"{number}.png": saved(one, "PNG") for number, one in enumerate(images)}
    folder = put(tmp_path / "in", files)
    common: Any = {"encoding": "jpeg", "no_labels": True, "size": size, "channels": channels}
    with_them = convert(folder, tmp_path / "with.h5", **common)
    without = convert(folder, tmp_path / "without.h5", restarts=False, **common)
    assert without.rewritten is None
    assert with_them.rewritten == len(SIZES) + (size is not None)
    both = list(zip(stored(tmp_path / "with.h5"), stored(tmp_path / "without.h5"), strict=True))
    for new, old in both[: with_them.rewritten]:
        assert np.array_equal(pixels(new), pixels(old))
        marked, plain = codec.read_plain_header(new), codec.read_plain_header(old)
        assert marked is not None
        assert marked.facts is not None
        assert plain is not None
        assert plain.facts is None
    assert sum(len(new) for new, _ in both) < 1.02 * sum(len(old) for _, old in both)
