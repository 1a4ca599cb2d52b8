"""Files that are no set: numpy's .npy is served, others are answered with what to write."""

import gzip
import io
import pickle
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_sets import run
from fakes import first_batch, hdf5, packed, paint, write_hdf5
from PIL import Image

import asyncreader
from asyncreader import AsyncReader, AsyncReaderError, FormatError, ParamsError
from asyncreader.tools.verify import verify_file
from converters import convert

IMAGES = paint(23)


@pytest.fixture
def npy(tmp_path: Path) -> Path:
    """Pictures that numpy saved."""
    np.save(tmp_path / "a.npy", IMAGES)
    return tmp_path / "a.npy"


# -- .npy ----------------------------------------------------------------------------------------


def test_npy_under_names(tmp_path: Path) -> None:
    """The array of a .npy file is served under the names that it is given, each with parameters of
    its own."""
    rows = np.arange(40.0).reshape(10, 4)
    np.save(tmp_path / "a.npy", rows)
    series = {"path": tmp_path / "a.npy", "episodes": "whole", "window": {"past": (-3, 0)}}
    series |= {"data_field": {"past": "data", "next": "data"}, "columns": {"next": [1]}}
    with asyncreader.open(series, as_dict=True) as dataset:
        for number in range(7):
            np.testing.assert_array_equal(dataset[number]["past"], rows[number : number + 3])
            np.testing.assert_array_equal(dataset[number]["next"], rows[number + 3, [1]])


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"labels_field": "y"}, "mmap_mode='r'), labels=np.load(...)"),
        ({"labels_path": "y.npy"}, "mmap_mode='r'), labels=np.load(...)"),
        ({"data_field": "x"}, "no field 'x'"),
        ({"data_field": ["data", "x"]}, "no field 'x'"),
    ],
)
def test_fields_that_npy_has_not(npy: Path, given: dict[str, Any], says: str) -> None:
    """A .npy file has one array and no labels: other names are a ParamsError with what to write."""
    with pytest.raises(ParamsError) as caught:
        AsyncReader(path=npy, **given)
    assert says in str(caught.value)
    with pytest.raises(FormatError, match="not an HDF5 file"):
        AsyncReader(hdf5_path=npy)


def _with_header(text: str, data: bytes = bytes(64)) -> bytes:
    return b"\x93NUMPY\1\0" + len(text).to_bytes(2, "little") + text.encode() + data


SHAPES = [
    "(17,)",
    "(2**70,)",
    "(1180591620717411303424, 1)",
    "(-1, -16)",
    "(True, 4)",
    "()",
    "(0, 4)",
]
KINDS = ["'|O'", "'<c8'", "'<f16'", "'<M8[s]'", "'|V4'", "('<f4', (2,))", "[('a', '|O')]"]
KINDS += ["'nonsense'", "None"]
HEADER = "{{'descr': {}, 'fortran_order': {}, 'shape': {}}}\n"


@pytest.mark.parametrize(
    "content",
    [
        b"\x93NUMPY",
        b"\x93NUMPY\1\0\xff\xff{",
        b"\x93NUMPY\3\0\xff\xff\xff\xff{",
        _with_header("{'descr': '<f4'"),
        _with_header("__import__('os').abort()"),
        _with_header("(" * 5000),
        _with_header("[]"),
        *(_with_header(HEADER.format("'<f4'", "False", shape)) for shape in SHAPES),
        *(_with_header(HEADER.format(kind, "False", "(4,)")) for kind in KINDS),
        _with_header(HEADER.format("'<f4'", "1", "(4,)")),
        _with_header(HEADER.format("'<f4'", "True", "(4, 4)")),
    ],
)
def test_damaged_npy(tmp_path: Path, content: bytes) -> None:
    """Whatever stands in the header, what is no array of plain numbers is a FormatError."""
    (tmp_path / "a.npy").write_bytes(content)
    with pytest.raises(FormatError):
        AsyncReader(path=tmp_path / "a.npy")


# -- what is not read ----------------------------------------------------------------------------


def _saved(save: Any, *given: Any, **more: Any) -> bytes:
    buffer = io.BytesIO()
    save(buffer, *given, **more)
    return buffer.getvalue()


def _zip(*names: str) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name in names:
            archive.writestr(name, b"x")
    return buffer.getvalue()


def _tar(mode: Any) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=mode) as archive:
        archive.addfile(tarfile.TarInfo("0.png"), io.BytesIO())
    return buffer.getvalue()


PICTURE = _saved(Image.fromarray(IMAGES[0]).save, "PNG")
OTHERS: dict[str, tuple[bytes, str]] = {
    "a.npz": (
        _saved(np.savez, images=IMAGES, y=np.arange(23)),
        "write data=np.load({!r})['images']",
    ),
    "a b.zip": (_zip("0.png"), "unzip '{}'"),
    "bad.zip": (b"PK\3\4" + bytes(90), "copy it again"),
    "a.pt": (_zip("a/data.pkl", "a/version"), "write data=torch.load({!r}, weights_only=True)"),
    "a.pth": (b"\x80\x02old", "write data=torch.load({!r}, weights_only=True)"),
    "a.tar": (_tar("w"), "tar -xf {}"),
    "a.tar.gz": (_tar("w:gz"), "tar -xf {} if"),
    "a.npy.gz": (gzip.compress(b"x"), "gunzip -k {}"),
    "a.csv": (b"path,label\na.png,1\n", "write asyncreader convert FOLDER out.h5 --labels {}"),
    "a.parquet": (b"PAR1" + bytes(90), "write data=pandas.read_parquet({!r}).to_numpy()"),
    "a.mat": (b"MATLAB 5.0 MAT-file" + bytes(200), "write data=scipy.io.loadmat({!r})[VARIABLE]"),
    "a.nc": (b"CDF\1" + bytes(90), "write nccopy -k netCDF-4 {} out.nc, which makes it HDF5"),
    "b.nc": (b"CDF\2" + bytes(90), "data=scipy.io.netcdf_file({!r}).variables[VARIABLE].data"),
    "c.nc": (b"CDF\5" + bytes(90), "found a netCDF-3 file"),
    "a.hdf": (b"\x0e\x03\x13\x01" + bytes(90), "write h4toh5convert {} out.h5"),
    "a.tfrecord": (bytes(90), "tf.data.TFRecordDataset"),
    "a.tfrecord-00000-of-00010": (bytes(90), "tf.data.TFRecordDataset"),
    "a.pkl": (pickle.dumps({}), "write data=pickle.load(open({!r}, 'rb')), if you trust"),
    "a.png": (PICTURE, "asyncreader convert {folder} out.h5"),
    "a.bin": (bytes(90), "is it complete?"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_files_that_are_no_set(tmp_path: Path, name: str) -> None:
    """A reader, verify and convert say what such a file is, and the line to write instead."""
    content, line = OTHERS[name]
    path = tmp_path / name
    path.write_bytes(content)
    wanted = line.replace("{folder}", str(tmp_path)).format(str(path))
    for use in (AsyncReader, verify_file, lambda path: convert(path, tmp_path / "b.h5")):
        with pytest.raises(FormatError, match="neither HDF5 nor LMDB") as caught:
            use(str(path))
        assert wanted in str(caught.value)


def test_the_lines_for_arrays_work(tmp_path: Path) -> None:
    """What is written instead of an .npz file serves its array."""
    path = tmp_path / "a.npz"
    np.savez(path, images=IMAGES)
    with pytest.raises(FormatError) as caught:
        AsyncReader(path=path)
    assert caught.value.hint is not None
    line = caught.value.hint.removeprefix("write data=")
    with AsyncReader(data=eval(line), batch_size=23, layout="NHWC") as reader:
        np.testing.assert_array_equal(next(iter(reader)).data, IMAGES)


def test_folders_that_are_no_set(tmp_path: Path) -> None:
    """A folder of pictures, of HDF5 files or a zarr array is answered with the line to write."""
    folder = tmp_path / "my pictures"
    folder.mkdir()

    def hint(what: str = "without an LMDB data file") -> str:
        with pytest.raises(FormatError, match=what) as caught:
            AsyncReader(path=folder)
        return str(caught.value.hint)

    assert f"asyncreader convert '{folder}' out.h5" in hint()
    (folder / "a" / "b").mkdir(parents=True)
    (folder / "a" / "b" / "1.JPG").touch()
    said = hint(r"a folder of images, and no dataset yet.*such as 'a/b/1\.JPG'")
    assert f"asyncreader convert '{folder}' out.h5" in said
    assert f"asyncreader convert '{folder}' --dry-run" in said
    write_hdf5(folder / "0.h5", packed(paint(8)))
    assert hint() == f"write path={str(folder / '*.h5')!r} for all of its files as one dataset"
    (folder / "zarr.json").touch()
    assert hint() == f"write data=zarr.open({str(folder)!r}, mode='r')"


# -- tensors -------------------------------------------------------------------------------------


class Tensor:
    """As torch's: an own dtype, and numpy sees its memory."""

    dtype = "torch.uint8"

    def __init__(self, values: np.ndarray, broken: type[Exception] | None = None) -> None:
        self.values, self.shape, self.broken = values, values.shape, broken

    def __getitem__(self, number: int) -> Any:
        raise AssertionError("a row at a time is slow")

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        if self.broken is not None:
            raise self.broken("use tensor.detach().cpu()")
        return self.values


class Series(Tensor):
    """As pandas': a dtype of numpy, but its rows have labels."""

    dtype = np.dtype("u1")  # type: ignore[assignment]
    iloc = None


@pytest.mark.parametrize("kind", [Tensor, Series])
def test_tensors_are_served_where_they_lie(kind: type[Tensor]) -> None:
    """data and labels that numpy can look at are served without a copy."""
    images = IMAGES.copy()
    given = {"data": kind(images), "labels": kind(np.arange(23)), "layout": "NHWC"}
    with AsyncReader(given, batch_size=23) as reader:
        assert np.shares_memory(reader.params.data, images)  # type: ignore[arg-type]
        batch = next(iter(reader))
        np.testing.assert_array_equal(batch.data, images)
        np.testing.assert_array_equal(batch.labels, np.arange(23))
    assert len(first_batch(data={"a": kind(images), "b": kind(images)}, batch_size=23).data) == 2


@pytest.mark.parametrize("error", [RuntimeError, TypeError, ValueError])
def test_tensors_that_numpy_cannot_see(error: type[Exception]) -> None:
    """A tensor on a GPU, or one that needs its gradient, is a ParamsError."""
    for given in (
        {"data": Tensor(IMAGES, error)},
        {"data": IMAGES, "labels": Tensor(IMAGES, error)},
    ):
        with pytest.raises(ParamsError, match="Tensor") as caught:
            AsyncReader(given)
        assert "tensor.detach().cpu()" in str(caught.value)


def test_tensors_of_torch() -> None:
    """torch's tensors are served without a copy."""
    torch = pytest.importorskip("torch")
    images = torch.from_numpy(IMAGES.copy())
    with AsyncReader(data=images, labels=torch.arange(23), batch_size=23) as reader:
        assert np.shares_memory(reader.params.data, images.numpy())  # type: ignore[arg-type]
        np.testing.assert_array_equal(next(iter(reader)).labels, np.arange(23))
    for bad in (images.float().requires_grad_(), images.to(torch.bfloat16)):
        with pytest.raises(ParamsError, match="Tensor"):
            AsyncReader(data=bad)


# -- verify of foreign names ---------------------------------------------------------------------


def test_verify_of_sets_with_other_names(tmp_path: Path) -> None:
    """verify reads a set that others wrote by the names and axes that it is given, in Python and by
    -p, all of the fields that are named; its error names what it takes."""
    path = str(tmp_path / "a.h5")
    hdf5(path, x=IMAGES, masks=IMAGES[:, :, :, :1], nchw=np.zeros((4, 3, 8, 8), "u1"))
    with pytest.raises(ParamsError, match="data_field"):
        verify_file(path)
    for given in ({"data_field": "x"}, {"dataField": ["x", "masks"]}):
        report = verify_file(path, params=given, decode=True)
        assert (report.ok, report.unverified, report.count) == (True, True, 23)
    axes = {"num_dim": 1, "cha_dim": 2, "h_dim": 3, "w_dim": 4}
    assert verify_file(path, params={"data_field": "nchw", **axes}).count == 4
    result = run("verify", path, "-p", "data_field=x")
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.startswith("unverified")
    for words in (["subset=0:3"], ["batch_size=3"], ["xyzzy=1"], ["data_field=y"]):
        result = run("verify", path, "-p", *words)
        assert result.exit_code == 2, result.output


def test_verify_of_a_sharded_set_takes_no_names(tmp_path: Path) -> None:
    """A sharded set says itself how it is read, so params are an error, never ignored."""
    convert(write_hdf5(tmp_path / "a.h5", packed(paint(8))), tmp_path / "s", shards=2)
    with pytest.raises(ParamsError, match="checked in full without them"):
        verify_file(str(tmp_path / "s"), params={"data_field": "data"})
    assert verify_file(str(tmp_path / "s"), params={}).ok
    assert verify_file(str(tmp_path / "a.h5"), params={"labels_field": None}).checked == 8
    (tmp_path / "a.h5").write_bytes(b"\x89HDF\r\n\x1a\n" + bytes(100))
    report = verify_file(str(tmp_path / "a.h5"), params={"data_field": "data"})
    assert not report.ok
    with pytest.raises(AsyncReaderError):
        verify_file(str(tmp_path / "none.h5"), params={"data_field": "data"})
