"""Which data are pictures, and in which order of axes: nothing is guessed, or served otherwise
than it is stored without a reason that the data give."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import page_tables
import pytest
from fakes import hdf5, packed, write_hdf5
from foreign_sets import pyxis_sample, write_pyxis

from asyncreader import AsyncReader, ParamsError
from asyncreader.tools.preview import preview, preview_batch
from converters import convert

N = 6


def _array(folder: Path, data: np.ndarray) -> dict[str, Any]:
    return {"data": data}


def _hdf5(folder: Path, data: np.ndarray) -> dict[str, Any]:
    hdf5(folder / "set.h5", data=data)
    return {"path": folder / "set.h5"}


def _chunked(folder: Path, data: np.ndarray) -> dict[str, Any]:
    with h5py.File(folder / "set.h5", "w") as file:
        file.create_dataset("data", data=data, chunks=(1, *data.shape[1:]), compression="gzip")
    return {"path": folder / "set.h5"}


def _files(folder: Path, data: np.ndarray) -> dict[str, Any]:
    for number, part in enumerate(np.split(data, 2)):
        hdf5(folder / f"{number}.h5", data=part)
    return {"path": [folder / "0.h5", folder / "1.h5"]}


def _lmdb(folder: Path, data: np.ndarray) -> dict[str, Any]:
    return {"path": write_pyxis(folder / "set", [pyxis_sample({"data": row}) for row in data])}


#: Writes data into a folder: the parameters that open them.
Opens = Callable[[Path, np.ndarray], dict[str, Any]]

SOURCES: dict[str, Opens] = {
    "array": _array,
    "hdf5": _hdf5,
    "hdf5 gzip": _chunked,
    "list of files": _files,
    "pyxis": _lmdb,
}


@pytest.fixture(params=SOURCES)
def source(request: Any) -> Opens:
    return SOURCES[request.param]


def values(*shape: int, dtype: str = "uint8") -> np.ndarray:
    """N samples of a shape, no two values beside each other equal."""
    return (np.arange(N * np.prod(shape)) * 37 % 251).reshape(N, *shape).astype(dtype)


def served(params: dict[str, Any], **more: Any) -> Any:
    """The whole set as one batch's data."""
    with AsyncReader(params, batch_size=N, copy=True, **more) as reader:
        (batch,) = reader
        return batch.data


# -- the table of docs/layouts.md ----------------------------------------------------------------


@pytest.mark.parametrize("row", page_tables.SHAPES, ids=str)
def test_the_table_is_what_is_served(row: page_tables.Shape, source: Opens, tmp_path: Path) -> None:
    """Data of each shape in the table of docs/layouts.md are served as it says, value for value,
    from arrays, HDF5, a list of files and an LMDB; and cut and resized, or refused, as it says."""
    line = next(
        line for line in page_tables.shape_table().splitlines() if f"| {row.example} |" in line
    )
    *_, plain, cropped, _ = (cell.strip() for cell in line.split("|"))
    data = values(*row.shape, dtype=row.dtype)
    axes = dict(zip(("num_dim", "h_dim", "w_dim", "cha_dim"), row.dims or (), strict=False))
    params = {**source(tmp_path, data), **axes}
    for more, said in (
        ({}, plain),
        ({"size": page_tables.SIZE}, cropped),
        ({"flip": True}, cropped),
    ):
        if "asks" in said or "refused" in said:
            match = "num_dim=" if "asks" in said else "needs? images"
            with pytest.raises(ParamsError, match=match):
                served(params, **more)
            continue
        found = served(params, **more)
        if "flip" not in more:
            assert f"(B, {', '.join(map(str, found.shape[1:]))})".replace("(B, )", "(B,)") in said
        if more:
            continue
        if "images" in said:
            dims = row.dims or (1, 2, 3, 4)
            expected = data.transpose(np.array(dims)[[0, 3, 1, 2]] - 1)
        else:
            expected = data
        np.testing.assert_array_equal(found, expected)


# -- what is no picture --------------------------------------------------------------------------


NCHW = {"num_dim": 1, "cha_dim": 2, "h_dim": 3, "w_dim": 4}
SIDES = [(3, 24, 24), (1, 5, 5), (4, 24, 4), (1, 1, 1), (4, 4, 4)]


@pytest.mark.parametrize(
    ("shape", "asked"),
    [
        *((shape, {}) for shape in SIDES),
        *(
            (shape, {"flip": True})
            for shape in ((16, 24, 24), (3, 24, 24), (2, 3, 4), (24, 24, 12))
        ),
        *((shape, {"size": (12, 12)}) for shape in ((16, 24, 24), (24, 24, 12))),
    ],
)
def test_the_axes_are_asked_for(
    source: Opens,
    tmp_path: Path,
    shape: tuple[int, ...],
    asked: dict[str, Any],
) -> None:
    """Where the second axis may be the channels, and for size and flip of 4-D data that are not
    known to be pictures, the axes must be named: the error says what to pass."""
    params = source(tmp_path, values(*shape))
    says = r"num_dim=1, cha_dim=2, h_dim=3, w_dim=4 .*NCHW" if asked else r"ambiguous.*cha_dim=2"
    with pytest.raises(ParamsError, match=says):
        served(params, **asked)
    served(params, **asked, **NCHW)


def test_grey_pictures(source: Opens, tmp_path: Path) -> None:
    """(N, H, W) uint8: as stored, and grey pictures where size or flip is asked for."""
    data = values(8, 10)
    params = source(tmp_path, data)
    np.testing.assert_array_equal(served(params), data)
    np.testing.assert_array_equal(
        served(params, size=(4, 5), interpolation="nearest"), data[:, 1::2, 1::2]
    )
    found = served(params, flip=True)
    mirrored = [not np.array_equal(one, stored) for one, stored in zip(found, data, strict=True)]
    np.testing.assert_array_equal(
        found, [row[:, ::-1] if m else row for row, m in zip(data, mirrored, strict=True)]
    )
    assert 0 < sum(mirrored) < N
    with pytest.raises(ParamsError, match=r"flip needs images.*\(N, H, W, 1\)"):
        AsyncReader(data=data.astype("float32"), flip=True)


def test_our_own_sets_know_their_axes(tmp_path: Path) -> None:
    """A packed set of tiny pictures is not asked about, and refuses other axes."""
    images = values(3, 4, 3)
    path = write_hdf5(tmp_path / "set.h5", packed(list(images), "raw"))
    np.testing.assert_array_equal(served({"path": path}, layout="NHWC"), images)
    with pytest.raises(ParamsError, match="the axes of this dataset are known"):
        served({"path": path}, num_dim=1, cha_dim=2, h_dim=3, w_dim=4)


def test_data_that_are_no_pictures_are_packed_as_stored(tmp_path: Path) -> None:
    """convert of a foreign set of volumes: copied as it is, and drawn as slices."""
    stored = values(16, 24, 24)
    _hdf5(tmp_path, stored)
    convert(tmp_path / "set.h5", tmp_path / "out.h5", no_labels=True)
    with AsyncReader(tmp_path / "out.h5", batch_size=len(stored)) as reader:
        np.testing.assert_array_equal(next(iter(reader)).data, stored)
    notes = preview({"path": tmp_path / "set.h5"}).notes
    assert "data: slices through the middle of 16 x 24 x 24" in notes
    assert "num_dim=1" in notes[-1]
    assert preview_batch({"path": tmp_path / "set.h5"}, count=2).records == (0, 1)


# -- several fields ------------------------------------------------------------------------------


def test_volumes_and_their_labels_stay_aligned() -> None:
    """(N, 1, D, H, W) and (N, D, H, W): both as stored; what needs images is named."""
    data = {"volume": values(1, 8, 10, 12), "label": values(8, 10, 12)}
    found = served({"data": data})
    for name, one in zip(data, found, strict=True):
        np.testing.assert_array_equal(one, data[name])
    with pytest.raises(ParamsError, match="field 'label': size, crop and flip need images"):
        served({"data": data}, flip=True)
    with pytest.raises(ParamsError, match="size and flip need images"):
        served({"data": values(7)}, size=(4, 4), flip=True)
    with pytest.raises(ParamsError, match=r"each number of the last.*of each channel need images"):
        served({"data": values(7)}, dtype="float32", mean=(1, 2, 3))


def test_each_field_decides_for_itself() -> None:
    """Beside pictures, features and volumes come as stored, with both layouts."""
    data = {"image": values(24, 28, 3), "feature": values(64, 7, 7), "bands": values(9, 8, 12)}
    for layout, expected in (("NCHW", (0, 3, 1, 2)), ("NHWC", (0, 1, 2, 3))):
        image, feature, bands = served({"data": data}, layout=layout)
        np.testing.assert_array_equal(image, data["image"].transpose(expected))
        np.testing.assert_array_equal(feature, data["feature"])
        np.testing.assert_array_equal(bands, data["bands"])
    with pytest.raises(ParamsError, match=r"field 'feature'.*num_dim=1"):
        served({"data": data}, flip=True)


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_a_field_of_the_pictures_size_moves_with_them(layout: str) -> None:
    """Maps of many channels that have the picture's height and width: served as stored, and cut and
    mirrored as their picture is."""
    rows, columns = np.mgrid[0:24, 0:28]
    places = np.broadcast_to((rows * 28 + columns).astype("uint16"), (N, 24, 28))
    planes = places[:, None] + np.arange(12, dtype="uint16")[:, None, None] * 1000
    data = {
        "image": places[..., None].astype("uint16"),
        "mask": places,
        "first": planes,
        "last": np.moveaxis(planes, 1, 3),
    }
    _, mask, first, last = served({"data": data}, layout=layout)
    np.testing.assert_array_equal(first, data["first"])
    np.testing.assert_array_equal(last, data["last"])
    asked = {"size": (12, 12), "crop": "random", "crop_ratio": 0.5, "flip": True}
    asked["interpolation"] = "nearest"
    image, mask, first, last = served({"data": data}, layout=layout, **asked)
    np.testing.assert_array_equal(mask, image[:, 0] if layout == "NCHW" else image[..., 0])
    for number in range(12):
        np.testing.assert_array_equal(first[:, number], mask + number * 1000)
        np.testing.assert_array_equal(last[..., number], mask + number * 1000)


def test_a_field_that_fits_twice_is_asked() -> None:
    """(N, 24, 24, 24) beside pictures of 24 x 24: as stored, and asked about before it moves."""
    data = {"image": values(24, 24, 3), "cube": values(24, 24, 24)}
    np.testing.assert_array_equal(served({"data": data})[1], data["cube"])
    with pytest.raises(ParamsError, match=r"field 'cube'.*num_dim=1"):
        served({"data": data}, flip=True)


def test_fields_with_more_axes_do_not_stay_behind() -> None:
    """Films of the pictures' height and width would not be cut with them: refused."""
    data = {"image": values(24, 28, 3), "film": values(5, 24, 28, 3)}
    np.testing.assert_array_equal(served({"data": data})[1], data["film"])
    with pytest.raises(ParamsError, match=r"field 'film' has the height and width"):
        served({"data": data}, flip=True)
