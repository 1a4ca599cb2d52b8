"""JPEGs that are planned many at a time against images that are decoded one by one."""

import io
import math
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cut_jpegs
import numpy as np
import pytest
import simplejpeg
from fakes import Packed, encoded, write_hdf5
from PIL import Image

from asyncreader import AsyncReader, DecodeError
from asyncreader.pixels import codec, geometry, kernels
from asyncreader.pixels import rows as rows_module
from asyncreader.pixels.encoded import Images, groups, planned, put_views
from asyncreader.pixels.row_maker import Drawn, RowMaker, RowView
from asyncreader.pixels.shared import choose_rect, crop_shares
from asyncreader.pixels.specs import OutputSpec, SampleSpec
from asyncreader.pixels.tables import PLAN, numbers
from asyncreader.pixels.transform import Pictures, plan_rows
from asyncreader.stats import Meter
from asyncreader.system.keyed_random import mix_rows, uniforms

STORED = SampleSpec(None, np.dtype("u1"), "HWC", "original")


def put_planned(
    fill: RowMaker, images: Images, crops: Any, flips: Any, out: Any, rows: Any, meter: Meter
) -> Iterator[int]:
    assert isinstance(fill, Pictures)

    target: Any = SimpleNamespace(out=out, rows=rows, draws=Drawn(crops, flips))
    return planned(fill)(fill, images, target, slice(0, len(rows))).put_all(meter)


def lying(images: list[bytes]) -> Images:
    """Images one behind the other in memory."""
    data = np.frombuffer(b"".join(images), np.uint8).copy()
    sizes = np.array([len(image) for image in images])
    offsets = np.cumsum(sizes) - sizes
    return Images(lambda at, size: data[at : at + size], data.ctypes.data, offsets, sizes)


def both_ways(
    fill: RowMaker, images: list[bytes], keys: np.ndarray
) -> tuple[list[np.ndarray], list[dict[int, str]], int]:
    """Rows and errors as planned, and one by one; and how many images were planned."""
    crops, flips = fill.draws(keys)
    order = np.random.default_rng(1).permutation(len(images))
    rows, errors, meter = [], list[dict[int, str]](), Meter()
    planned = 0
    for plan in (True, False):
        out = np.full(fill.allocate_shape(len(images)), 7).astype(fill.dtype)
        failed: dict[int, str] = {}
        left: Any = range(len(images))
        if plan:
            left = put_planned(fill, lying(images), crops, flips, out, order, meter)
            planned = len(images)
        for k in left:
            planned -= plan
            crop = None if crops is None else crops[k]
            flip = flips is not None and bool(flips[k])
            try:
                put_views((RowView(fill, crop, flip, out[order[k]]),), images[k], meter)
            except DecodeError as exc:
                failed[k] = str(exc)
                out[order[k]] = 7
        rows.append(out)
        errors.append(failed)
    return rows, errors, planned


def any_image(rng: np.random.Generator) -> bytes:
    """JPEGs of every kind, and other images; one in ten is damaged."""
    height, width = (int(side) for side in np.exp(rng.uniform(0, 6, 2)))
    pixels = cut_jpegs.picture(rng, height, width)
    kind = int(rng.integers(8))
    if kind < 3:
        data = cut_jpegs.drawn(rng)
        if rng.random() < 0.8:  # without EXIF
            at = data.index(b"\xff\xe1")
            data = data[:at] + data[at + 2 + int.from_bytes(data[at + 2 : at + 4], "big") :]
    elif kind < 6:
        options: dict[str, Any] = {"quality": int(rng.integers(30, 96))}
        options["subsampling"] = str(rng.choice(["4:4:4", "4:2:2", "4:2:0"]))
        options["progressive"] = bool(rng.random() < 0.2)
        data = encoded(pixels, "JPEG", **options)
    elif kind == 6:
        data = encoded(pixels[:, :, :1], "JPEG")
    else:
        held = io.BytesIO()
        mode, name = [("CMYK", "JPEG"), ("RGB", "PNG"), ("P", "PNG"), ("RGB", "BMP")][
            int(rng.integers(4))
        ]
        Image.fromarray(pixels).convert(mode).save(held, name)
        data = held.getvalue()
    if rng.random() < 0.1:
        at = int(rng.integers(2, len(data)))
        some = rng.integers(0, 256, 3, np.uint8).tobytes()
        return [data[:at], data[:at] + some + data[at + 3 :], b""][int(rng.integers(3))]
    return data


@pytest.mark.parametrize(
    "interpolation",
    ["bilinear", *(pytest.param(name, marks=pytest.mark.slow) for name in ("bicubic", "area"))],
)
def test_planned_is_what_comes_one_by_one(interpolation: str) -> None:
    """What is planned has the bytes of what is decoded by itself, whatever the JPEG, its crop, its
    size and the dtype; what cannot be planned is left, and its errors are the same."""
    pytest.importorskip("numba")
    rng = np.random.default_rng(len(interpolation))
    images = [any_image(rng) for _ in range(60)]
    counts: Counter[str] = Counter()
    options: list[dict[str, Any]] = [
        {"crop": "random-resized", "flip": True},
        {"crop": "random", "crop_ratio": 0.6, "flip": True},
        {"crop": "random", "crop_ratio": 0.31},
        {"crop": "none", "flip": True},
        {},
        {"crop": "random-resized", "dtype": np.dtype("f4"), "scale": 1 / 255},
        {"crop": "random-resized", "dtype": np.dtype("f8"), "flip": True},
        {"crop_ratio": 0.875, "contiguous": True, "flip": True},
        {"crop": "random-resized", "crop_area": (0.3, 0.5), "crop_aspect": (0.5, 3), "flip": True},
    ]
    for number, option in enumerate(options * 3):
        size = [(64, 64), (31, 90), (3, 2), (200, 180), (1, 1)][number % 5]
        fill = plan_rows(STORED, OutputSpec(size=size, interpolation=interpolation, **option), "")
        keys = mix_rows(number, np.arange(len(images)))
        rows, errors, planned = both_ways(fill, images, keys)
        np.testing.assert_array_equal(rows[0], rows[1], str(option))
        assert errors[0] == errors[1]
        counts.update(planned=planned, left=len(images) - planned, errors=len(errors[0]))
    assert counts["planned"] > 500, counts
    assert counts["left"] > 300, counts
    assert counts["errors"] > 40, counts


def test_pictures_of_the_size_declared_are_planned() -> None:
    """In a set whose images have one size, and are served with it, the JPEGs of that size are
    planned; what has another size is the same error."""
    pytest.importorskip("numba")
    rng = np.random.default_rng(2)
    for shape in ((33, 47, 3), (1, 1, 3), (1, 9, 3), (200, 210, 3)):
        same = [cut_jpegs.picture(rng, *shape[:2]) for _ in range(6)]
        images = [encoded(pixels, "JPEG", restart_marker_blocks=1) for pixels in same]
        images += [
            encoded(same[0], "PNG"),
            encoded(same[0][:1, :1, :1], "JPEG"),
            b"",
            images[0][:50],
        ]
        stored = SampleSpec(shape, np.dtype("u1"), "HWC", "jpeg")
        for option in ({}, {"flip": True}, {"contiguous": True}, {"dtype": np.dtype("f4")}):
            fill = plan_rows(stored, OutputSpec(**option), "")
            rows, errors, planned = both_ways(fill, images, mix_rows(1, np.arange(10)))
            np.testing.assert_array_equal(rows[0], rows[1], str(option))
            assert errors[0] == errors[1]
            assert planned == (7 if shape == (1, 1, 3) else 6)


def test_a_file_that_changes_between_header_and_decoding() -> None:
    """Where the decoder finds a picture of another size than was planned, or one that is too large
    for the memory, the image is left; and so are all where it does not write to that memory."""
    pytest.importorskip("numba")
    rng = np.random.default_rng(3)
    images = [encoded(cut_jpegs.picture(rng, 90, side), "JPEG") for side in (80, 81, 82)]
    fill = plan_rows(STORED, OutputSpec(size=(64, 64)), "")
    out = np.zeros(fill.allocate_shape(3), np.uint8)
    decode = simplejpeg.decode_jpeg

    def left(instead: Any) -> list[int]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(simplejpeg, "decode_jpeg", instead)
            return list(put_planned(fill, lying(images), None, None, out, np.arange(3), Meter()))

    assert left(decode) == []
    assert left(lambda data, *a: decode(images[0], *a)) == [1, 2]
    assert left(lambda *a: decode(*a).copy()) == [0, 1, 2]
    large = encoded(cut_jpegs.picture(rng, 900, 900), "JPEG")
    assert left(lambda data, *a: decode(large, *a)) == [0, 1, 2]


@pytest.mark.parametrize("size", [None, (8, 8), (5, 7)])
@pytest.mark.parametrize(("kind", "values"), [("PNG", True), ("PNG", False), ("JPEG", False)])
def test_pixels_of_another_size_than_the_header(
    kind: str, values: bool, size: tuple[int, int] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where another program writes an image anew between a look at its header and decoding it, that
    is a DecodeError, and nothing is written beside its row."""
    rng = np.random.default_rng(3)
    small, large = (encoded(cut_jpegs.picture(rng, side, side), kind) for side in (8, 256))
    stored = SampleSpec((8, 8, 3), np.dtype("u1"), "HWC", "original", values=values)
    fill = plan_rows(stored, OutputSpec(size=size, nearest=values), "")
    out = np.full((3, *fill.allocate_shape(1)[1:]), 7, fill.dtype)
    header = codec.read_header(small)
    monkeypatch.setattr(codec, "read_header", lambda data: header)
    monkeypatch.setattr(codec, "read_plain_header", lambda data: None)
    with pytest.raises(DecodeError, match=r"another size than its header|too small"):
        put_views((RowView(fill, None, False, out[1]),), large, Meter())
    assert (out == 7).all()


def test_a_reader_that_is_closed_plans_no_more() -> None:
    """Where the reader is being closed, no picture is decoded."""
    pytest.importorskip("numba")
    fill = plan_rows(STORED, OutputSpec(size=(4, 4)), "")
    image = encoded(np.full((9, 9, 3), 200, np.uint8), "JPEG")
    out = np.zeros(fill.allocate_shape(2), np.uint8)
    rows, meter = np.arange(2), Meter(stopped=True)
    assert not list(put_planned(fill, lying([image] * 2), None, None, out, rows, meter))
    assert not out.any()
    meter.stopped = False
    assert not list(put_planned(fill, lying([image] * 2), None, None, out, rows, meter))
    assert out.all()
    assert meter.seconds["decode"] > 0


class WrongSums(Packed):
    """A set whose checksums of some samples are wrong."""

    @property
    def checksums(self) -> np.ndarray:
        found = super().checksums
        found[WRONG] += np.uint64(1)
        return found


WRONG = [3, 11, 12, 29]


@pytest.mark.parametrize("together", [0, 20_000, 1 << 20])
def test_all_ways_of_a_reader(
    together: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader serves the same rows, and finds the same samples bad for the same reasons, whether
    images lie in memory or are read, are compared with checksums or not, and however many are
    planned together; and they are those that are decoded one by one, for a transform."""
    monkeypatch.setattr(rows_module, "PLANNED_BYTES", together)
    rng = np.random.default_rng(9)
    content = WrongSums([any_image(rng) for _ in range(30)], None, "original", None)
    path = write_hdf5(tmp_path / "set.h5", content)

    def served(**params: Any) -> tuple[np.ndarray, dict[int, str]]:
        with AsyncReader(
            path=path, batch_size=30, size=(24, 31), crop="random-resized", flip=True, seed=2,
            shuffle=True, on_error="zero", labels_field=None, **params,
        ) as reader:  # fmt: skip
            batch = next(iter(reader))
            bad = dict(reader.stats().bad_list)
            assert not batch.data[~batch.mask].any()
            assert sorted(bad) == sorted(batch.indices[~batch.mask])
            return batch.data[np.argsort(batch.indices)].copy(), bad

    for verify, wrong in (("never", []), ("always", WRONG)):
        alone, damaged = served(verify=verify, transform=lambda image: image)
        assert len(damaged) > len(wrong)
        assert all("the stored bytes of a sample do not match" in damaged[k] for k in wrong)
        for way in ("mmap", "pread"):
            rows, bad = served(verify=verify, io=way)
            np.testing.assert_array_equal(rows, alone)
            assert bad == damaged


def test_groups() -> None:
    """Images are taken in turn, as many together as have the bytes allowed, and at least one."""
    for sizes, most in (([3, 4, 5, 100, 1, 1], 7), ([], 5), ([0, 0], 0), ([9], 1), ([1, 1], 0)):
        found = list(groups(sizes, most))
        assert [k for some in found for k in range(some.start, some.stop)] == [*range(len(sizes))]
        for some in found:
            assert sum(sizes[some]) <= most or some.stop - some.start == 1
        for one, two in pairwise(found):
            assert sum(sizes[one]) + sizes[two.start] > most


@pytest.mark.slow
def test_compiled_rectangles_are_those_of_python() -> None:
    """Compiled code chooses the rectangle that choose_rect does, of any picture, target, crop,
    ratio, area and aspect, to the pixel."""
    rng = np.random.default_rng(6)
    count = 200
    offsets, rows = rng.integers(0, 1 << 40, count), rng.permutation(count)
    flips = rng.integers(0, 2, count).astype(np.uint8)
    for number in range(400):
        high, wide = rng.integers(1, 400, 2)
        sizes = np.exp(rng.uniform(0, 9, 2)).astype(np.int64)
        ratio = float(rng.choice([1.0, 0.875, rng.uniform(1e-3, 1)]))
        area, aspect = (0.08, 1.0), (3 / 4, 4 / 3)
        if number % 3 == 0:
            area, aspect = sorted(rng.uniform(1e-3, 1, 2)), sorted(np.exp(rng.uniform(-3, 3, 2)))
        shares = np.array(crop_shares(ratio, tuple(area), tuple(aspect)))
        wanted = np.array((high, wide, number % 4, 1), np.int64)
        draws = rng.random((count, 40))
        if number % 7 == 0:
            draws = np.empty((count, 0)) if number % 4 in (0, 3) else np.round(draws, 1) * 0.999
        plan, boxes, picture = np.zeros(count, PLAN), np.zeros((count, 4)), np.array((*sizes, 3))
        drawn, size = (shares, draws, flips), int(high * wide * 3)
        kernels.plan_crops(
            *(5 + offsets, picture, wanted, *drawn, 99, size, rows, numbers(plan), boxes)
        )
        given = *sizes.tolist(), *wanted[:3].tolist(), shares.tolist()
        assert boxes.tolist() == [[*choose_rect(*given, one)] for one in draws]
        assert (plan["source"] == 5 + offsets).all()
        assert (plan["target"] == 99 + rows * high * wide * 3).all()
        assert plan[["height", "width"]].tolist() == [tuple(sizes.tolist())] * count
        assert (plan["mirrored"] == flips).all()


def test_the_usual_ranges_are_numbers_without_rounding() -> None:
    """Crops of 0.08 to 1 of the area, with sides of 3/4 to 4/3, follow from these very numbers:
    others in the last place would serve other rectangles to those who resume."""
    shares = crop_shares(0.875, (0.08, 1.0), (3 / 4, 4 / 3))
    assert shares == (0.875, 0.08, 0.92, 0.0, math.log(4 / 3))


def test_compiled_draws_are_those_of_python() -> None:
    """uniform_rows draws what keyed_random.uniforms does."""
    keys = mix_rows(3, np.arange(500))
    for first, count in ((0, 40), (63, 1), (7, 2)):
        found = np.empty((500, count))
        kernels.uniform_rows(keys, first, found)
        np.testing.assert_array_equal(found.T, [uniforms(keys, first + k) for k in range(count)])


@pytest.mark.slow
def test_planned_resizes_are_those_of_one_image() -> None:
    """resize_planned gives the bytes of geometry.resize_into: of any box in an image, mirrored or
    not, of any number of channels, and where nothing is to be resized."""
    rng, ways = np.random.default_rng(8), {n: name for name, n in geometry.METHODS.items()}
    for number in range(150):
        channels, method = int(rng.integers(1, 5)), number % 3
        high, wide = (int(side) for side in rng.integers(1, 40, 2))
        plan, boxes = np.zeros(3, PLAN), np.empty((3, 4))
        kept, out = [], np.zeros((3, high, wide, channels), np.uint8)
        for i in range(3):
            height, width = (int(side) for side in rng.integers(40, 64, 2))
            image = rng.integers(0, 256, (height, width, channels), np.uint8)
            kept.append(image)
            where = image.ctypes.data, height, width, rng.integers(2), out[i].ctypes.data
            plan[i] = (*where, 0, 0, 0, 0)
            boxes[i, 2:] = (high, wide) if i == 0 else (rng.uniform(1, height), rng.uniform(1, 40))
            boxes[i, :2] = rng.uniform(0, (height - boxes[i, 2], width - boxes[i, 3]))
            if i < 2:
                boxes[i, :2] = np.floor(boxes[i, :2])
        kernels.resize_planned(numbers(plan), boxes, 0, 2, channels, method, high, wide, False)
        assert not out[2].any()
        kernels.resize_planned(numbers(plan), boxes, 2, 3, channels, method, high, wide, False)
        for image, box, line, found in zip(kept, boxes, plan, out, strict=True):
            made = np.empty_like(found)
            flip = bool(line["mirrored"])
            geometry.resize_into(image, made, tuple(box.tolist()), ways[method], flip)
            np.testing.assert_array_equal(found, made)
