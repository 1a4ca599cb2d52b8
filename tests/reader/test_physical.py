"""Physical values: what the attributes of a file say of its numbers, against numpy and the readers
of the fields."""

import warnings
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from fakes import first_batch
from reader_contract import ReaderContract, Served

import asyncreader
from asyncreader import AsyncReader, FormatError, ParamsError, convert

N = 24
Array = np.ndarray
RAW = np.random.default_rng(0).integers(-100, 100, (N, 6, 7))
CHUNKS: dict[str, Any] = {"chunks": (5, 4, 7), "compression": "gzip"}


def masked(raw: Array, *missing: Any) -> Array:
    return np.where(np.isin(raw, missing), np.nan, raw.astype("f8"))


def signs(raw: Array) -> Array:
    return raw.astype("i1").view("u1")


#: By name: dtype, storage, attributes, and what the numbers mean.
KINDS: dict[str, tuple[str, dict[str, Any], dict[str, Any], Array]] = {
    "packed": (
        "i2", {}, {"scale_factor": 0.01, "add_offset": 273.15, "_FillValue": np.int16(-9)},
        masked(RAW, -9) * 0.01 + 273.15,
    ),
    "several": (
        ">i4", CHUNKS, {"missing_value": np.array([-9, 5], ">i4"), "scale_factor": np.float32(0.5)},
        masked(RAW, -9, 5) * 0.5,
    ),
    "unsigned": (
        "i1", CHUNKS, {"_Unsigned": "true", "_FillValue": np.int8(-9), "add_offset": 1.0},
        masked(signs(RAW), 247) + 1,
    ),
    "signed": ("u1", {}, {"_Unsigned": "false", "_FillValue": 247}, masked(RAW, -9)),
    "floats": (
        "f4", {}, {"_FillValue": np.float32(50), "missing_value": np.array([7, np.nan])},
        masked(RAW, 50, 7),
    ),
    "none there": ("u2", {}, {"_FillValue": -1.5, "scale_factor": 2}, (RAW + 100) * 2.0),
}  # fmt: skip


def write(path: Path, kind: str, some: slice = slice(None), name: str = "t") -> Path:
    dtype, storage, attributes, _ = KINDS[kind]
    raw = RAW + 100 if kind == "none there" else RAW
    raw = signs(RAW).view("i1") if kind == "unsigned" else raw
    raw = RAW.astype("i1").view("u1") if kind == "signed" else raw
    with h5py.File(path, "a") as file:
        data = file.create_dataset(name, data=raw[some].astype(dtype), **storage)
        data.attrs.update(attributes)
    return path


def minc(path: Path) -> tuple[Path, Array]:
    """A MINC file of (slice, y, x), with a range for each slice, and its values."""
    raw = (RAW + 100).astype("u2")
    low, high = np.linspace(-3, 0, N), np.linspace(5, 90, N)
    with h5py.File(path, "w") as file:
        group = file.create_group("minc-2.0/image/0")
        data = group.create_dataset("image", data=raw, chunks=(4, 6, 3))
        data.attrs["valid_range"] = np.array([10.0, 180.0])
        group["image-min"], group["image-max"] = low, high
    clipped = np.clip(raw, 10, 180)
    wide = ((high - low) / 170)[:, None, None]
    return path, (clipped - 10.0) * wide + low[:, None, None]


IMAGE = "minc-2.0/image/0/image"


def near(found: Any, values: Array) -> None:
    """``found`` are these values, NaN where they are."""
    np.testing.assert_array_equal(np.isnan(found), np.isnan(values))
    np.testing.assert_allclose(found, values, rtol=2e-6, atol=1e-5)


def served_as(values: Array, params: dict[str, Any], count: int = N, cut: Any = None) -> Served:
    def expected(batch: Any) -> None:
        rows = batch.indices[batch.mask]
        wanted = values[rows] if cut is None else cut(batch)
        assert batch.data.dtype == params.get("dtype", "float32")
        near(batch.data[batch.mask], wanted.astype(batch.data.dtype))

    given = {"labels_field": None, "values": "physical"} | params
    return Served(given, expected, count, (6, 2, 3), lambda row: row.record)


@pytest.mark.some(2)
class TestPhysical(ReaderContract):
    """Values of every convention are numpy's, in every order and way of reading; a number
    stands for missing ones, since rows are compared."""

    @pytest.fixture(params=["packed", "several", "unsigned", "floats", "minc", "float64"])
    def served(self, request: pytest.FixtureRequest, tmp_path: Path) -> Served:
        kind, given = request.param, dict[str, Any](missing=-1000.0)
        if kind == "minc":
            path, values = minc(tmp_path / "x.mnc")
            return served_as(values, given | {"path": path, "data_field": IMAGE})
        if kind == "float64":
            kind, given = "packed", given | {"dtype": "float64", "io": "pread"}
        values = np.nan_to_num(KINDS[kind][3], nan=-1000.0)
        path = write(tmp_path / "x.nc", kind)
        return served_as(values, given | {"path": path, "data_field": "t"})


class TestPatches(ReaderContract):
    """Patches of slices that have ranges of their own, of one volume."""

    @pytest.fixture(params=[None, 0])
    def served(self, request: pytest.FixtureRequest, tmp_path: Path) -> Served:
        axis, (path, values) = request.param, minc(tmp_path / "x.mnc")
        patch = (3, 2, 4) if axis is None else (2, 4)

        def cut(batch: Any) -> Array:
            tiles = []
            for record, place in zip(batch.indices, batch.place, strict=True):
                volume = values if axis is None else values[record]
                where = (slice(a, a + n) for a, n in zip(place, patch, strict=True))
                tiles.append(volume[tuple(where)])
            return np.array(tiles)

        given = {"path": path, "data_field": IMAGE, "patch": patch, "patch_at": "random"}
        more = {"sample_axis": axis, "epoch_samples": 9}
        served = served_as(values, given | more, 9, cut)
        return Served(served.params, served.expected, 9, (3, 2, 2), lambda row: row.data[0].shape)


@pytest.mark.parametrize("kind", KINDS)
def test_each_convention(kind: str, tmp_path: Path) -> None:
    """What the attributes say is served, alone, cast and normalised; statistics leave missing
    values out; a conversion keeps the values, or stored numbers and their warning."""
    path, values = write(tmp_path / "x.nc", kind), KINDS[kind][3]
    given: dict[str, Any] = {"data_field": "t", "labels_field": None}
    with asyncreader.open(path, values="physical", **given) as dataset:
        near(dataset[:], values)
        near(dataset.sample(3).data, values[3])
        (found,) = dataset.statistics().values()
        assert found.count == np.isfinite(values).sum()
        assert found.mean == pytest.approx(np.nanmean(values))
        assert found.std == pytest.approx(np.nanstd(values), rel=1e-5)
    scaled = {"mean": 2.0, "std": 4.0, "scale": 3.0, "missing": 0}
    with asyncreader.open(path, values="physical", **given, **scaled) as dataset:
        near(dataset[:], (np.nan_to_num(values) * 3 - 2) / 4)
    params = {"data_field": "t", "values": "physical"}
    convert(path, tmp_path / "made.h5", no_labels=True, params=params)
    with asyncreader.open(tmp_path / "made.h5") as dataset:
        near(dataset[:], values)
    with pytest.warns(UserWarning, match='values="physical" serves what they mean'):
        convert(path, tmp_path / "stored.h5", no_labels=True, params={"data_field": "t"})


def test_files_of_different_scales(tmp_path: Path) -> None:
    """Each file of a list, and each sample of several fields, has the values of its own attributes;
    windows and samples of different length, too."""
    paths = []
    for i, at in enumerate(range(0, N, 8)):
        paths.append(write(tmp_path / f"{i}.nc", "packed", slice(at, at + 8)))
        with h5py.File(paths[-1], "a") as file:
            file["t"].attrs["scale_factor"] = 0.01 * (i + 1)
            file["plain"] = RAW[at : at + 8]
    factor = (np.arange(N) // 8 + 1)[:, None, None]
    values = masked(RAW, -9) * 0.01 * factor + 273.15
    given: dict[str, Any] = {"labels_field": None, "values": "physical", "epochs": 1}
    t, plain = first_batch(paths, data_field=["t", "plain"], batch_size=N, **given).data
    near(t, values)
    np.testing.assert_array_equal(plain, RAW)
    assert plain.dtype == RAW.dtype
    with AsyncReader(paths, data_field="t", window=3, batch_size=4, **given) as reader:
        for batch in reader:
            for k, row in enumerate(batch.indices):
                near(batch.data[k], values[row : row + 3])
    with h5py.File(paths[0], "a") as file:
        file["t_offsets"] = np.array([0, 3, 3, 8])
        varied = file.create_dataset("v", (3,), h5py.vlen_dtype(np.int16))
        varied[...] = [RAW[0, 0], RAW[0, 0, :2], RAW[1, 1]]
        varied.attrs["scale_factor"] = 2.0
    batch = first_batch(paths[0], data_field="v", max_length=7, batch_size=3, **given)
    assert batch.lengths.tolist() == [7, 2, 7]
    near(batch.data[2], RAW[1, 1] * 2.0)
    batch = first_batch(paths[0], data_field="t", max_length=5, batch_size=3, **given)
    assert batch.lengths.tolist() == [3, 0, 5]
    near(batch.data[2], values[3:8])


def test_slices_along_other_axes(tmp_path: Path) -> None:
    """Ranges of MINC's slices go along with their axis, whatever a sample is."""
    path, values = minc(tmp_path / "x.mnc")
    given: dict[str, Any] = {"data_field": IMAGE, "labels_field": None, "values": "physical"}
    for axis, wanted in ((None, values[None]), (1, np.moveaxis(values, 1, 0)), (0, values)):
        with asyncreader.open(path, sample_axis=axis, **given) as dataset:
            near(dataset[:], wanted)
    with h5py.File(path, "a") as file:
        image = file["minc-2.0/image/0"]
        for name, value in (("image-min", -1.0), ("image-max", 16.0)):
            del image[name]
            image[name] = value
    with asyncreader.open(path, **given) as dataset:
        near(dataset[:], (np.clip(RAW + 100, 10, 180) - 10) / 10 - 1)
    with h5py.File(path, "a") as file:
        del file["minc-2.0/image/0/image-max"]
        file["minc-2.0/image/0/image-max"] = np.ones(3)
    with pytest.raises(FormatError, match="image-min, image-max"):
        asyncreader.open(path, **given)


def odim(path: Path) -> Array:
    """Sweeps of a radar as ODIM has them, and the values of the first."""
    raw = (RAW[0] + 100).astype("u1")
    with h5py.File(path, "w") as file:
        file.attrs["Conventions"] = "ODIM_H5/V2_2"
        for sweep in range(1, 4):
            group = file.create_group(f"dataset{sweep}/data1")
            group["data"] = raw
            what = {"gain": 0.5, "offset": -32.0, "nodata": 255.0, "undetect": float(raw[0, 0])}
            group.create_group("what").attrs.update(what)
    return masked(raw, 255, raw[0, 0]) * 0.5 - 32


def test_radars(tmp_path: Path) -> None:
    """ODIM's gain, offset, nodata and undetect are in the group ``what`` beside the data; groups
    are episodes where all say the same."""
    path = tmp_path / "x.h5"
    values = odim(path)
    given: dict[str, Any] = {"path": path, "labels_field": None, "values": "physical"}
    with asyncreader.open(**given, data_field="dataset1/data1/data") as dataset:
        near(dataset[:], values)
    sweeps = {"episodes": "groups:dataset*", "data_field": "data1/data"}
    with asyncreader.open(**given, **sweeps) as dataset:
        near(dataset[:], np.concatenate([values] * 3))
    with pytest.warns(UserWarning, match=r"gain = 0.5, offset = -32.0, nodata = 255.0, undetect"):
        asyncreader.open(path, data_field="dataset1/data1/data").close()
    with h5py.File(path, "a") as file:
        file["dataset2/data1/what"].attrs["gain"] = 0.25
    with pytest.raises(FormatError, match=r"dataset2/data1/data' mean other values.*gain = 0.25"):
        asyncreader.open(**given, **sweeps)


def test_dtype_is_of_the_first_field(tmp_path: Path) -> None:
    """``dtype`` is said of the first field: others are float32, in groups as in rows."""
    with h5py.File(tmp_path / "x.h5", "w") as file:
        for group in ("", "demo_0/", "demo_1/"):
            for name in ("a", "b"):
                file[group + name] = np.arange(12, dtype="i2").reshape(6, 2)
                file[group + name].attrs["scale_factor"] = 0.5
    given: dict[str, Any] = {"path": tmp_path / "x.h5", "labels_field": None, "batch_size": 6}
    given |= {"data_field": ["a", "b"], "values": "physical", "dtype": "float64"}
    for more in ({}, {"episodes": "groups:demo_*"}):
        with (
            pytest.warns(UserWarning, match="dtype is of the first field"),
            AsyncReader(given, **more) as reader,
        ):
            data = next(iter(reader)).data
        assert [one.dtype for one in data] == [np.float64, np.float32]
        for one in data:
            np.testing.assert_array_equal(one, np.arange(12).reshape(6, 2) / 2)


def test_what_has_no_values(tmp_path: Path) -> None:
    """Without attributes numbers are served as they are stored; what is no array of numbers is
    refused; missing goes with physical."""
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["t"] = RAW
        file["r"] = np.zeros(9, [("a", "f4")])
        file["r"].attrs["scale_factor"] = 2.0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with asyncreader.open(tmp_path / "x.h5", data_field="t", values="physical") as dataset:
            np.testing.assert_array_equal(dataset[:], RAW)
    with pytest.raises(ParamsError, match="goes with arrays of numbers"):
        asyncreader.open(tmp_path / "x.h5", data_field="r", members="a", values="physical")
    with pytest.raises(ParamsError, match='missing goes with values="physical"'):
        AsyncReader(tmp_path / "x.h5", data_field="t", missing=0)


@pytest.mark.parametrize("kind", KINDS)
def test_as_xarray_decodes(kind: str, tmp_path: Path) -> None:
    """Values are those of xarray."""
    xarray = pytest.importorskip("xarray", reason="xarray is not installed")
    pytest.importorskip("h5netcdf", reason="h5netcdf is not installed")
    path = write(tmp_path / "x.nc", kind)
    with h5py.File(path, "a") as file:
        file["t"].attrs["valid_range"] = np.array([0, 5])  # masks nothing
        if kind == "none there":  # xarray makes whole numbers of it, and fails
            file["t"].attrs["scale_factor"] = 2.0
    warnings.simplefilter("ignore", xarray.SerializationWarning)  # of several missing values
    with xarray.open_dataset(path, engine="h5netcdf", phony_dims="sort") as judge:
        values = judge["t"].values
    with asyncreader.open(path, data_field="t", values="physical") as dataset:
        near(dataset[:], values)


def test_as_nibabel_scales(tmp_path: Path) -> None:
    """MINC's values are those of nibabel."""
    nibabel = pytest.importorskip("nibabel", reason="nibabel is not installed")
    path, _ = minc(tmp_path / "x.mnc")
    with h5py.File(path, "a") as file:
        for number, name in enumerate(("zspace", "yspace", "xspace")):
            space = file.create_dataset(f"minc-2.0/dimensions/{name}", data=0)
            space.attrs.update(length=RAW.shape[number], step=1.0, start=0.0)
        file[IMAGE].attrs["dimorder"] = np.bytes_("zspace,yspace,xspace")
        for name in ("image-min", "image-max"):
            file[f"minc-2.0/image/0/{name}"].attrs["dimorder"] = np.bytes_("zspace")
    values = nibabel.load(path).get_fdata()
    with asyncreader.open(path, data_field=IMAGE, values="physical") as dataset:
        near(dataset[:], values)
