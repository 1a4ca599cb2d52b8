"""What a RowMaker makes of stored samples: shapes, the way it picks, and its values."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from fakes import encoded, paint
from source_contract import MODES, expected

from asyncreader import DecodeError
from asyncreader.pixels.encoded import put_views
from asyncreader.pixels.row_maker import RowMaker, RowView
from asyncreader.pixels.specs import OutputSpec, SampleSpec
from asyncreader.pixels.tables import MIRROR_DRAW
from asyncreader.pixels.transform import Resized, plan_rows
from asyncreader.stats import Meter
from asyncreader.system.keyed_random import mix_rows, uniforms
from asyncreader.testing.contract import sized

U8, F4 = np.dtype("uint8"), np.dtype("float32")
PADDED: dict[str, Any] = {"crop": "random", "crop_padding": 2}
#: Those that make one row of a sample; writers make rows of views (tests/reader/test_views.py).
ROW_MODES = {name: wanted for name, wanted in MODES.items() if not wanted.views}


def stored(
    axes: str | None = "HWC", dtype: Any = U8, shape: tuple[int, ...] = (8, 6, 3)
) -> SampleSpec:
    """Raw samples whose (H, W, C) is ``shape``, lying in the order of ``axes``."""
    if axes is not None:
        shape = tuple(shape["HWC".index(axis)] for axis in axes)
    return SampleSpec(shape, np.dtype(dtype), axes)


def way(fill: RowMaker) -> str:
    """The way that a fill picked."""
    if fill.as_stored:
        return "copy"
    names = {"copy_batches": "mirror", "transpose_batches": "transpose"}
    if fill.kernel:
        return names.get(fill.kernel, "affine")
    return "resize" if isinstance(fill, Resized) else "each"


def filled(fill: RowMaker, images: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """All images (N, H, W, C) put one by one, as handed out."""
    out = np.full(fill.allocate_shape(len(images)), 77).astype(fill.dtype)
    places, flips = fill.draws(keys)
    axes = fill.stored.axes
    for i, image in enumerate(images):
        sample = image if axes is None else image.transpose(["HWC".index(axis) for axis in axes])
        place = None if places is None else places[i]
        fill.put(sample, RowView(fill, place, flips is not None and bool(flips[i]), out[i, ...]))
    return fill.handed_out(out)


# -- shapes --------------------------------------------------------------------------------------


@pytest.mark.parametrize("axes", ["HWC", "CHW", "WHC", "CWH", "HCW", "WCH"])
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("contiguous", [False, True])
def test_shape_handed_out(axes: str, layout: str, contiguous: bool) -> None:
    """The user's shape is the layout's, a view where that is free, C order where asked for."""
    fill = plan_rows(stored(axes), OutputSpec(layout=layout, contiguous=contiguous), "set")
    batch = fill.handed_out(np.zeros(fill.allocate_shape(5), fill.dtype))
    assert batch.shape == ((5, 3, 8, 6) if layout == "NCHW" else (5, 8, 6, 3))
    assert fill.row_bytes == 8 * 6 * 3
    if contiguous or axes == layout[1:]:
        assert batch.flags.c_contiguous
    elif layout == "NCHW" and axes == "HWC":
        assert batch.strides == (144, 1, 18, 3)  # channels last
        assert batch.transpose(0, 2, 3, 1).flags.c_contiguous
    # a plain copy unless the order must change
    assert fill.as_stored == (not contiguous or axes == layout[1:])
    # and so with a size that is there already
    wanted = OutputSpec(layout=layout, contiguous=contiguous, size=(8, 6))
    assert way(plan_rows(stored(axes), wanted, "set")) == way(fill)


@pytest.mark.parametrize("axes", ["HWC", "CHW", "WHC", "CWH"])
@pytest.mark.parametrize("mode", ROW_MODES)
def test_any_axes_in_any_mode(axes: str, mode: str) -> None:
    """However samples lie, each mode hands out the same values, and writes to no sample."""
    images = paint(7, (8, 6, 3))
    images.flags.writeable = False
    wanted = sized(MODES[mode], images)
    keys = mix_rows(3, np.arange(7))
    found = filled(plan_rows(stored(axes), wanted, "set"), images, keys)
    plain = expected(images, wanted, keys)
    assert found.shape == plain.shape
    assert found.dtype == plain.dtype
    tolerance = 0 if found.dtype == U8 else {2: 2e-3}.get(found.dtype.itemsize, 1e-5)
    np.testing.assert_allclose(
        found.astype(float), plain.astype(float), rtol=tolerance, atol=10 * tolerance
    )


@pytest.mark.parametrize(
    ("wanted", "dtype", "mode"),
    [
        (OutputSpec(), "uint8", "copy"),
        (OutputSpec(layout="NHWC"), "float64", "copy"),
        (OutputSpec(contiguous=True), "uint8", "transpose"),
        (OutputSpec(contiguous=True), "int16", "transpose"),
        (OutputSpec(layout="NHWC", flip=True), "uint8", "mirror"),
        (OutputSpec(dtype=F4), "uint8", "affine"),
        (OutputSpec(dtype=F4, scale=2.0, flip=True, contiguous=True), "uint8", "affine"),
        (OutputSpec(dtype=F4), "uint16", "each"),
        (OutputSpec(dtype=np.dtype("float64")), "uint8", "each"),
        (OutputSpec(), ">i2", "each"),
        *(  # a size that is there, with nothing to cut off, costs nothing
            (OutputSpec(size=(8, 6), crop=crop), "uint8", "copy")
            for crop in ("center", "random", "none")
        ),
        (OutputSpec(size=(8, 6), layout="NHWC", flip=True), "uint8", "mirror"),
        (OutputSpec(size=(8, 6), crop="random-resized"), "uint8", "resize"),
        (OutputSpec(size=(8, 6), crop="random", crop_ratio=0.9), "uint8", "resize"),
        (OutputSpec(size=(8, 6), crop_ratio=0.9), "uint8", "resize"),
        (OutputSpec(size=(4, 4)), "uint8", "resize"),
        (OutputSpec(size=(4, 4), dtype=F4, contiguous=True), "uint8", "resize"),
        (OutputSpec(size=(4, 4)), "uint16", "each"),
        (OutputSpec(size=(4, 4), interpolation="nearest"), "uint8", "each"),
        (OutputSpec(size=(8, 6), **PADDED), "uint8", "mirror"),
        (OutputSpec(size=(8, 6), **PADDED), "uint16", "mirror"),
        (OutputSpec(size=(8, 6), contiguous=True, **PADDED), "uint8", "transpose"),
        (OutputSpec(size=(8, 6), contiguous=True, **PADDED), "uint16", "transpose"),
        (OutputSpec(size=(8, 6), dtype=F4, **PADDED), "uint8", "affine"),
        (OutputSpec(size=(8, 6), crop_ratio=0.5, **PADDED), "uint8", "each"),
        (OutputSpec(size=(8, 5), **PADDED), "uint8", "each"),
    ],
)
def test_cheapest_way(wanted: OutputSpec, dtype: str, mode: str) -> None:
    """A fill picks the cheapest way that does what is wanted."""
    assert way(plan_rows(stored(dtype=dtype), wanted, "set")) == mode


#: Ways to a slot of what has been resized.
RESIZED: list[dict[str, Any]] = [
    {},
    {"contiguous": True},
    {"interpolation": "bicubic", "dtype": F4, "scale": 1 / 255},
    {"interpolation": "area", "dtype": F4, "contiguous": True},
    {"dtype": np.dtype("f2"), "contiguous": True},
    {"dtype": np.dtype("f8"), "mean": (1.0, 2.0, 3.0)},
]


def test_compiled_modes_equal_one_by_one() -> None:
    """What a compiled pass makes of a batch is what put() makes of each image, bit for bit."""
    images = np.ascontiguousarray(paint(9, (8, 6, 3)))
    keys = mix_rows(4, np.arange(9))
    resized = [
        OutputSpec(size=size, crop=crop, crop_ratio=0.75, flip=True, **options)
        for size in ((5, 4), (6, 6), (11, 13))
        for crop in ("center", "random", "random-resized", "none")
        for options in (*RESIZED, {"crop_area": (0.4, 0.5), "crop_aspect": (0.5, 0.6)})
    ]
    resized += [
        OutputSpec(size=(8, 6), flip=flip, padding_mode=mode, **PADDED, **options)
        for flip in (False, True)
        for mode in ("zero", "edge", "reflect")
        for options in RESIZED
    ]
    for name, wanted in [*ROW_MODES.items(), *((str(one), one) for one in resized)]:
        fill = plan_rows(stored(), wanted, "set")
        if way(fill) in ("copy", "each"):
            continue
        out = np.zeros(fill.allocate_shape(9), fill.dtype)
        rows = np.arange(9, dtype=np.int64)
        addresses = images.ctypes.data + rows * images[0].nbytes
        filler = fill.filler(out.nbytes)
        if filler is None:
            assert isinstance(fill, Resized)
            target: Any = SimpleNamespace(out=out, rows=rows, draws=fill.draws(keys))
            fill.place(target, rows, addresses)
        else:
            filler.fill(addresses, rows, out, keys)
        np.testing.assert_array_equal(fill.handed_out(out), filled(fill, images, keys), name)


# -- values --------------------------------------------------------------------------------------


@pytest.mark.parametrize("contiguous", [False, True])
@pytest.mark.parametrize("to", ["float16", "float32", "float64"])
@pytest.mark.parametrize("dtype", ["u1", "i1", "u2", "i2", "i4", "f4", "f8"])
def test_affine_values(dtype: str, to: str, contiguous: bool) -> None:
    """(x * scale - mean) / std per channel, to the precision of the wanted type."""
    images = paint(3, (5, 4, 3), dtype)
    if to == "float16":
        images = images.astype(np.float64).clip(-100, 120).astype(dtype)
    scale, mean, std = 0.731, (-8.5, 0.25, 7.0), (0.125, 1.0, 6.3)
    wanted = OutputSpec(contiguous=contiguous, dtype=np.dtype(to), scale=scale, mean=mean, std=std)
    fill = plan_rows(stored(dtype=dtype, shape=(5, 4, 3)), wanted, "set")
    found = filled(fill, images, np.zeros(3, np.uint64))
    plain = ((images.astype(np.float64) * scale - mean) / std).transpose(0, 3, 1, 2)
    most = {"float16": 2e-3, "float32": 2e-6, "float64": 1e-13}[to]
    size = np.abs(images.astype(np.float64) * scale).max() + max(mean)
    np.testing.assert_allclose(found, plain, rtol=most, atol=most * size / min(std))


def test_half_of_all_are_flipped() -> None:
    """flip mirrors one sample in two."""
    keys = mix_rows(1, np.arange(4000))
    places, flips = plan_rows(stored(), OutputSpec(flip=True), "set").draws(keys)
    assert places is None
    assert flips is not None
    np.testing.assert_array_equal(flips, uniforms(keys, MIRROR_DRAW) < 0.5)
    assert flips.mean() == pytest.approx(0.5, abs=0.03)
    assert plan_rows(stored(), OutputSpec(), "set").draws(keys) == (None, None)


# -- encoded images ------------------------------------------------------------------------------


def test_encoded_of_another_size() -> None:
    """Without ``size`` an image that is not as declared is a DecodeError with both sizes."""
    fill = plan_rows(SampleSpec((30, 26, 3), U8, "HWC", "original"), OutputSpec(), "set")
    view = RowView(fill, None, False, np.zeros(fill.allocate_shape(1), fill.dtype)[0])
    with pytest.raises(DecodeError, match="26 x 30") as caught:
        put_views((view,), encoded(np.zeros((26, 30, 3), np.uint8)), Meter())
    assert caught.value.expected == "30 x 26"
