"""Sparse rows (CSR) in HDF5, AnnData's .h5ad and 10x Genomics' files: written here with h5py after
their specifications, and compared with dense numpy arrays."""

import json
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from anndata_files import categorical, frame, put
from command_sets import run
from fakes import epoch_of, first, first_batch, hdf5
from reader_contract import ReaderContract, Served

import asyncreader
from asyncreader import AsyncReader, FormatError, ParamsError, SampleError
from asyncreader.sources.layouts.hdf5_sparse import LONGEST

N, WIDTH = 61, 37
GENES = [f"gene{i}" for i in range(WIDTH)]


def dense(dtype: str = "float32", seed: int = 0, width: int = WIDTH) -> np.ndarray:
    """Rows that are a fifth full; some have nothing at all."""
    rng = np.random.default_rng(seed)
    values = rng.integers(1, 100, (N, width)) * (rng.random((N, width)) < 0.2)
    values[[0, 7, N - 1]] = 0
    return values.astype(dtype)


def csr(table: np.ndarray, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """data, indices and indptr; the columns of a row are in no order."""
    rng = np.random.default_rng(seed)
    columns = [rng.permutation(np.flatnonzero(row)) for row in table]
    data = np.concatenate([row[at] for row, at in zip(table, columns, strict=True)])
    return data, np.concatenate(columns), np.cumsum([0, *map(len, columns)])


def write(
    path: Path,
    table: np.ndarray,
    index: str = "int32",
    genes: list[str] | None = None,
    **how: Any,
) -> str:
    """A set of ``table`` in X."""
    data, indices, indptr = csr(table)
    with h5py.File(path, "w") as file:
        file.attrs["encoding-type"] = "anndata"
        parts = data, indices.astype(index), indptr.astype(index)
        put(file.create_group("X"), parts, table.shape, **how)
        frame(file, "obs", [f"cell{i}" for i in range(len(table))])
        frame(file, "var", GENES[: table.shape[1]] if genes is None else genes)
    return str(path)


def served(path: Any, **params: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Data, record numbers and labels of an epoch, as they come."""
    given = {"path": path, "batch_size": 8, "last_batch": "short", **params}
    data, labels, records = epoch_of(given)
    return data, records, labels


STORED: dict[str, dict[str, Any]] = {
    "contiguous": {},
    "chunks": {"chunks": (16,)},
    "gzip": {"chunks": (50,), "compression": "gzip"},
    "lzf, shuffled": {"chunks": (7,), "compression": "lzf", "shuffle": True},
    "one chunk": {"chunks": True, "compression": "gzip", "fletcher32": True},
    "scaleoffset": {"chunks": (20,), "scaleoffset": 0},
}


@pytest.mark.filterwarnings("ignore:.*can only be decoded by the HDF5 library")
@pytest.mark.parametrize("how", STORED)
@pytest.mark.parametrize("shuffle", [False, True, "block", "replacement"])
def test_rows_are_dense_rows(tmp_path: Path, how: str, shuffle: Any) -> None:
    """Rows are those of the dense array, stored in any way and read in any order by threads."""
    table = dense("int32" if how == "scaleoffset" else "float32")
    path = write(tmp_path / "x.h5ad", table, **STORED[how])
    for nthread, io in ((1, "auto"), (3, "pread")):
        data, records, _ = served(path, shuffle=shuffle, nthread=nthread, njob=2, io=io)
        assert data.dtype == np.float32
        assert np.array_equal(data, table[records].astype(np.float32))
        if shuffle != "replacement":
            assert np.array_equal(np.sort(records), np.arange(N))


@pytest.mark.some(3)
@pytest.mark.parametrize("index", ["int16", "uint32", "int64", ">i4", "uint64"])
@pytest.mark.parametrize("kind", ["float32", "float64", "int64", ">f8", "uint8", "bool", "float16"])
def test_dtypes(tmp_path: Path, kind: str, index: str) -> None:
    """Numbers of any dtype are served as float32, or as the dtype that is asked for."""
    table = dense(kind)
    path = write(tmp_path / "x.h5ad", table, index)
    assert np.array_equal(served(path)[0], table.astype(np.float32))
    for dtype in ("float64", "float16", "int32"):
        data = served(path, dtype=dtype)[0]
        assert data.dtype == dtype
        assert np.array_equal(data, table.astype(dtype))


def test_whole_numbers_stay_exact(tmp_path: Path) -> None:
    """A dtype of whole numbers, or float64, takes stored values without passing through float32."""
    table = dense("int64")
    table[5, 3] = (1 << 53) + 1
    path = write(tmp_path / "x.h5ad", table)
    assert np.array_equal(served(path, dtype="int64")[0], table)
    table = dense("float64")
    table[5, 3] = 1 + 2**-40
    path = write(tmp_path / "y.h5ad", table)
    assert np.array_equal(served(path, dtype="float64")[0], table)


def test_values_that_do_not_fit(tmp_path: Path) -> None:
    """A value, or a sum of values, that the dtype cannot hold is an error that names the row."""
    table = dense("float64")
    table[9, 4] = 1e300
    path = write(tmp_path / "x.h5ad", table)
    with pytest.raises(ParamsError, match=r"cannot hold.*record 9\b"):
        served(path)
    assert np.array_equal(served(path, dtype="float64")[0], table)
    data = np.full(4, 3e38, np.float32)
    with h5py.File(tmp_path / "y.h5", "w") as file:
        put(file.create_group("m"), (data, np.array([0, 1, 2, 2]), np.array([0, 2, 4])), (2, 3))
    with pytest.raises(ParamsError, match=r"too large for float32.*record 1\b"):
        served(str(tmp_path / "y.h5"), data_field="m")


@pytest.mark.parametrize("dtype", [None, "float64"])
def test_duplicates_are_summed(tmp_path: Path, dtype: str | None) -> None:
    """Values of one column in one row are added, also in a row longer than what is read at once;
    those that are stored as no number, or as infinite, stay so."""
    many = LONGEST + 5
    data = np.ones(many + 6, np.float32)
    data[-3:] = np.nan, np.inf, 5
    indices = np.concatenate(([2, 2, 0], np.full(many, 1), [3, 0, 0]))
    with h5py.File(tmp_path / "x.h5", "w") as file:
        parts = data, indices.astype("i4"), np.array([0, 3, many + 3, many + 6])
        put(file.create_group("m"), parts, (3, 4), compression="gzip")
    expected = np.array([[1, 0, 2, 0], [0, many, 0, 0], [np.inf, 0, 0, np.nan]])
    for scale in (1.0, 2.0):
        given = {"data_field": "m", "scale": scale, "dtype": dtype}
        np.testing.assert_array_equal(served(tmp_path / "x.h5", **given)[0], expected * scale)
    found = served(tmp_path / "x.h5", data_field="m", columns=[2, 1], dtype=dtype)[0]
    np.testing.assert_array_equal(found, expected[:, [2, 1]])


class TestSparse(ReaderContract):
    """Sparse rows are the same in every way of reading."""

    @pytest.fixture
    def served(self, tmp_path: Path) -> Served:
        table, chosen = dense(), np.array([40, 3, 3, 17, 60, 22, 5, 9, 31, 50, 0])

        def expected(batch: Any) -> None:
            rows = table[batch.indices[batch.mask]]
            np.testing.assert_array_equal(batch.data[batch.mask], rows[:, [5, 0, 31]])

        path = write(tmp_path / "x.h5ad", table, chunks=(50,), compression="gzip")
        given = {"path": path, "subset": chosen, "columns": [5, 0, 31]}
        return Served(given, expected, len(chosen))


def test_columns(tmp_path: Path) -> None:
    """columns serves the named or numbered columns in that order, of each field by itself."""
    table, other = dense(), dense("int32", 1)
    path = write(tmp_path / "x.h5ad", table)
    with h5py.File(path, "a") as file:
        parts = csr(other)
        put(file.create_group("layers/counts"), parts, other.shape)
    chosen = [30, 2, 17]
    for columns in (chosen, [f"gene{i}" for i in chosen], np.array(chosen)):
        data, records, _ = served(path, columns=columns, shuffle=True)
        assert np.array_equal(data, table[records][:, chosen])
    with AsyncReader(
        path=path, batch_size=N, data_field=["X", "layers/counts"], columns={"X": ["gene5"]}
    ) as reader:
        one, two = next(iter(reader)).data
        assert np.array_equal(one, table[:, [5]])
        assert np.array_equal(two, other)
    for columns, what in (
        (["gene1", "nope"], "nope"),
        ([WIDTH], f"0 to {WIDTH - 1}"),
        ({"Y": [1]}, "not read"),
    ):
        with pytest.raises(ParamsError, match=what):
            served(path, columns=columns)


def test_columns_may_change_between_runs(tmp_path: Path) -> None:
    """A saved state is that of the stored rows: another choice of columns, or dtype, resumes it."""
    given: dict[str, Any] = {"batch_size": 8, "shuffle": True}
    path = write(tmp_path / "x.h5ad", dense())
    with AsyncReader(given, path=path) as reader:
        first(reader)
        state, expected = reader.state_dict(), np.array(first(reader).indices)
    with AsyncReader(given, path=path, columns=["gene3"], dtype="float64") as reader:
        reader.load_state_dict(state)
        assert np.array_equal(first(reader).indices, expected)
    other = write(tmp_path / "y.h5ad", dense(seed=5))
    with AsyncReader(given, path=other) as reader, pytest.raises(ParamsError):
        reader.load_state_dict(state)


def test_columns_of_dense_rows(tmp_path: Path) -> None:
    """Dense rows, in one piece or in chunks, have columns by number, those of AnnData by name: in
    the order asked for, normalised, of several files."""
    table, chosen = dense(), [5, 2, 30]
    names = [GENES[i] for i in chosen]
    path = write(tmp_path / "x.h5ad", table)
    with h5py.File(path, "a") as file:
        file["layers/dense"] = table
        file.create_dataset("layers/chunks", data=table, chunks=(7, 10), compression="gzip")
        file["plain"] = table.astype(">i2")
    for field in ("layers/dense", "layers/chunks"):
        for columns in (chosen, names):
            given: dict[str, Any] = {"data_field": field, "columns": columns}
            np.testing.assert_array_equal(served(path, **given)[0], table[:, chosen])
    plain: dict[str, Any] = {"data_field": "plain", "columns": chosen}
    numbers = table[:, chosen].astype(int)
    np.testing.assert_array_equal(served(path, **plain)[0], numbers)
    made = served(path, **plain, dtype="float64", mean=[1, 2, 3], std=2)[0]
    np.testing.assert_allclose(made, (numbers - [1, 2, 3]) / 2)
    other = write(tmp_path / "y.h5ad", dense(seed=5))
    with h5py.File(other, "a") as file:
        file["layers/dense"] = dense(seed=5)
    both = served([path, other], data_field="layers/dense", columns=names)[0]
    np.testing.assert_array_equal(both, np.concatenate([table, dense(seed=5)])[:, chosen])


def test_a_field_goes_by_its_name_in_the_file(tmp_path: Path) -> None:
    """The field that a layout chooses has its name in the file, for parameters by field, too; what
    they name otherwise is an error."""
    table = dense("float64")
    path = write(tmp_path / "x.h5ad", table)
    for given in ({"path": path}, {"path": [path, path]}, {"mix": {path: 1.0}}):
        with asyncreader.open(given, columns={"X": [4, 2]}, dtype={"X": "float64"}) as ds:
            assert list(ds.fields) == list(ds.statistics()) == ["X"]
            assert ds.fields["X"] == ((2,), np.dtype("float64"))
            assert np.array_equal(ds[:N], table[:, [4, 2]])
    for wrong in ({"columns": {"data": [1]}}, {"dtype": {"data": "float64"}}):
        with pytest.raises(ParamsError, match=r"data'.*X"):
            asyncreader.open(path, **wrong)
    hdf5(tmp_path / "images.h5", imgs=np.zeros((6, 3, 9, 8), np.uint8))
    hdf5(tmp_path / "data.h5", data=np.ones((6, 9, 8, 3), np.uint8))
    hdf5(tmp_path / "more.h5", imgs=np.full((6, 9, 8, 3), 2, np.uint8))
    images, data, more = (str(tmp_path / f"{name}.h5") for name in ("images", "data", "more"))
    with asyncreader.open(images) as ds:
        assert list(ds.fields) == ["imgs"]
    mixed = {"mix": {images: 0.5, data: 0.5}, "contiguous": True}
    together: list[dict[str, Any]] = [mixed, {"path": [more, data]}]
    for given, most in zip(together, (0, 2), strict=True):
        with asyncreader.open(given) as ds:
            assert (len(ds), list(ds.fields)) == (12, ["imgs"])
            assert [int(ds[i].max()) for i in (0, 11)] == [most, 1]


def test_columns_that_are_not_there(tmp_path: Path) -> None:
    """Columns of what has no rows of numbers, names where there are none or that stand twice, and
    numbers that are too large are ParamsErrors."""
    path = write(tmp_path / "x.h5ad", dense(), genes=["a", "a", *GENES[2:]])
    with pytest.raises(ParamsError, match="several columns"):
        served(path, columns=["a"])
    cases: list[tuple[dict[str, Any], str]] = [
        ({"data": dense(), "columns": ["a"]}, "have no names"),
        ({"data": dense(), "columns": [3, WIDTH]}, f"expected 0 to {WIDTH - 1}"),
        ({"data": np.zeros(9), "columns": [1]}, "columns choose among the numbers"),
        ({"data": np.zeros((9, 8, 8, 3)), "columns": [1]}, "columns choose among the numbers"),
    ]
    for given, says in cases:
        with pytest.raises(ParamsError, match=says):
            AsyncReader(given)


# -- labels ----------------------------------------------------------------------------------------


def test_labels(tmp_path: Path) -> None:
    """Columns of obs are labels: categories and text with their classes, -1 for what is missing."""
    path = write(tmp_path / "x.h5ad", dense())
    rng = np.random.default_rng(3)
    codes = rng.integers(-1, 3, N)
    number, mask = rng.integers(0, 9, N), rng.random(N) < 0.2
    text = rng.choice(["z", "ä", "b"], N).tolist()
    with h5py.File(path, "a") as file:
        obs = file["obs"]
        categorical(obs, "cell_type", codes, ["T", "B", "NK"])
        categorical(obs, "day", codes, [7, 3, 5])
        obs.create_dataset("batch", data=text, dtype=h5py.string_dtype())
        obs["depth"] = number * 0.5
        for kind, values in (("integer", number), ("boolean", number > 4)):
            group = obs.create_group(kind)
            group.attrs["encoding-type"] = f"nullable-{kind}"
            group["values"], group["mask"] = values, mask
        group = obs.create_group("words")
        group.attrs["encoding-type"] = "nullable-string-array"
        group.create_dataset("values", data=text, dtype=h5py.string_dtype())
        group["mask"] = mask
    cases: dict[str, tuple[np.ndarray, tuple[str, ...] | None]] = {
        "cell_type": (codes, ("T", "B", "NK")),
        "day": (codes, ("7", "3", "5")),
        "batch": (np.unique(text, return_inverse=True)[1], ("b", "z", "ä")),
        "depth": (number * 0.5, None),
        "integer": (np.where(mask, -1, number), None),
        "boolean": (np.where(mask, -1, number > 4), None),
        "words": (np.where(mask, -1, np.unique(text, return_inverse=True)[1]), ("b", "z", "ä")),
    }
    for name, (expected, classes) in cases.items():
        with AsyncReader(path=path, batch_size=N, labels_field=f"obs/{name}") as reader:
            assert np.array_equal(next(iter(reader)).labels, expected), name
            assert reader.classes == classes
    with pytest.raises(ParamsError, match="cell_type"):
        served(path, labels_field="obs/nothing")


def test_damaged_labels(tmp_path: Path) -> None:
    """Codes outside of the categories, a mask or a column of another length are FormatErrors."""
    path = write(tmp_path / "x.h5ad", dense())
    with h5py.File(path, "a") as file:
        categorical(file["obs"], "far", [3] * N, ["a", "b", "c"])
        categorical(file["obs"], "low", [-2] * N, ["a", "b", "c"])
        categorical(file["obs"], "short", [0] * (N - 1), ["a", "b", "c"])
        group = file["obs"].create_group("masked")
        group.attrs["encoding-type"] = "nullable-integer"
        group["values"], group["mask"] = np.zeros(N), np.zeros(N + 1, bool)
        file["obs"].create_group("odd").attrs["encoding-type"] = "dict"
    for name in ("far", "low", "short", "masked", "odd"):
        with pytest.raises(FormatError, match=name):
            served(path, labels_field=f"obs/{name}")


# -- several files ---------------------------------------------------------------------------------


@pytest.mark.slow
def test_files_as_one_set(tmp_path: Path) -> None:
    """Categories of several files are joined by name, and what is missing stays -1; files of other
    genes go together where columns names the same ones."""
    table, second = dense(), dense(seed=1)
    one = write(tmp_path / "a.h5ad", table, chunks=(50,), compression="gzip")
    two = write(tmp_path / "b.h5ad", second)
    turned = write(tmp_path / "c.h5ad", second, genes=GENES[::-1])
    codes = np.arange(N) % 3 - 1
    for path, names in ((one, ["x", "y"]), (two, ["y", "a"]), (turned, ["y", "a"])):
        with h5py.File(path, "a") as file:
            categorical(file["obs"], "kind", codes, names)
    for shuffle in (True, "block"):
        data, records, labels = served([one, two], labels_field="obs/kind", shuffle=shuffle)
        assert np.array_equal(data, np.concatenate((table, second))[records])
        expected = np.concatenate(([-1, 1, 2], [-1, 2, 0]))  # of a, x, y
        assert labels is not None
        assert np.array_equal(labels, expected[(records >= N) * 3 + codes[records % N] + 1])
    given: dict[str, Any] = {"mix": {one: 0.5, two: 0.5}, "labels_field": "obs/kind"}
    kinds = np.array([[-1, 1, 2], [-1, 2, 0]]), np.array([[-1, 0, 1], [-1, 2, 3]])
    for classes, known in zip(("joined", "own"), kinds, strict=True):  # as a list of the files
        with asyncreader.open(given, classes=classes) as mixed:
            assert np.array_equal(mixed.labels, np.concatenate(known[:, codes + 1]))
            assert mixed.classes == (
                ("a", "x", "y") if classes == "joined" else ("x", "y", "y", "a")
            )
    with pytest.raises(FormatError, match="other columns"):
        served([one, turned])
    data, _, _ = served([one, turned], columns=["gene3", "gene30"])
    assert np.array_equal(data[:N], table[:, [3, 30]])
    assert np.array_equal(data[N:], second[:, [WIDTH - 4, WIDTH - 31]])
    with pytest.raises(FormatError, match="other columns"):
        served([one, turned], columns=[3])
    with pytest.raises(ParamsError, match="other columns"):
        AsyncReader(mix={one: 0.5, turned: 0.5})
    batch = first_batch(mix={one: 0.5, turned: 0.5}, columns=["gene3"], batch_size=8)
    expected = np.concatenate((table[:, [3]], second[:, [WIDTH - 4]]))
    assert np.array_equal(batch.data, expected[batch.indices])


# -- other layouts ---------------------------------------------------------------------------------


def test_dense_layers_and_raw(tmp_path: Path) -> None:
    """A dense X, layers and raw/X are read, with the names of raw/var for raw/X."""
    table, raw = dense(), dense(seed=2, width=5)
    path = write(tmp_path / "x.h5ad", table)
    with h5py.File(path, "a") as file:
        put(file.create_group("raw/X"), csr(raw), raw.shape)
        frame(file, "raw/var", list("abcde"))
        file["layers/dense"] = table * 2
    assert np.array_equal(served(path, data_field="layers/dense")[0], table * 2)
    assert np.array_equal(served(path, data_field="raw/X", columns=["d", "a"])[0], raw[:, [3, 0]])
    with h5py.File(path, "a") as file:
        del file["X"]
        file.create_dataset("X", data=table, compression="gzip")
    assert np.array_equal(served(path)[0], table)


@pytest.mark.parametrize("form", ["earliest", "latest", "user block", "fixed text"])
def test_attributes_in_any_form(tmp_path: Path, form: str) -> None:
    """The text of attributes is found in files of old and new structure. Where it cannot be, among
    many attributes, the file is refused: its rows might be columns."""
    table = dense()
    how: dict[str, Any] = {"userblock_size": 1024} if form == "user block" else {}
    if form in ("earliest", "latest"):
        how = {"libver": form}
    path = str(tmp_path / "x.h5ad")
    with h5py.File(path, "w", **how) as file:
        group = file.create_group("X")
        put(group, csr(table), table.shape)
        frame(file, "var", GENES)
        file.create_group("obs")
        if form == "fixed text":
            group.attrs["encoding-type"] = np.bytes_("csr_matrix")
            file["var"].attrs["_index"] = np.bytes_("names")
    assert np.array_equal(served(path, columns=["gene9"])[0], table[:, [9]])
    with h5py.File(path, "a") as file:
        file["X"].attrs.modify("encoding-type", "csc_matrix")
    with pytest.raises(FormatError, match="tocsr"):
        served(path)
    with h5py.File(path, "a", **({"libver": form} if form == "latest" else {})) as file:
        for number in range(20):
            file["X"].attrs[f"note {number}"] = "text"
    what = "not one text" if form == "latest" else "tocsr"
    with pytest.raises(FormatError, match=what):
        served(path)


def tenx(group: h5py.Group, table: np.ndarray, **names: str) -> None:
    """10x Genomics' matrix of cells; ``names``: tables of the genes' names, and how these begin."""
    for part, values in zip(("data", "indices", "indptr"), csr(table), strict=True):
        group.create_dataset(part, data=values, compression="gzip")
    group["shape"] = np.array([WIDTH, N], np.int32)
    group["barcodes"] = np.array([f"AC{i}-1" for i in range(N)], "S18")
    for name, begin in names.items():
        group[name.replace("_", "/")] = np.array([f"{begin}{i}" for i in range(WIDTH)], "S15")


def test_tenx(tmp_path: Path) -> None:
    """10x Genomics' matrix: cells are rows, though its shape is (genes, cells); names are ids, or
    else names of features."""
    table, path = dense("int32"), tmp_path / "x.h5"
    with h5py.File(path, "w") as file:
        tenx(file.create_group("matrix"), table, features_id="ENSG", features_name="gene")
    assert np.array_equal(served(path)[0], table)
    for columns in (["ENSG7", "ENSG2"], ["gene7", "gene2"], [7, 2]):
        assert np.array_equal(served(path, columns=columns)[0], table[:, [7, 2]])


@pytest.mark.parametrize("genomes", [1, 2])
def test_sparse_rows_in_a_group_of_any_name_are_listed_as_one_field(
    tmp_path: Path, genomes: int
) -> None:
    """The groups of 10x Genomics' second version have the genome's name: one alone is served; of
    several errors and info name them, and not the arrays that the sparse rows are made of."""
    table, path = dense("int32"), str(tmp_path / "x.h5")
    with h5py.File(path, "w") as file:
        for name in ("GRCh38", "mm10")[:genomes]:
            tenx(file.create_group(name), table, genes="ENSG")
    found = json.loads(run("info", path, "--json").stdout)
    if genomes == 1:
        assert np.array_equal(served(path)[0], table)
        assert (found["layout"].split(",")[0], found["count"]) == ("10x Genomics (GRCh38)", N)
    else:
        with pytest.raises(ParamsError, match=rf"found GRCh38 \({N} sparse vectors\)") as caught:
            served(path)
        assert "indptr" not in str(caught.value)
        assert "GRCh38/data" not in str(caught.value)
        assert {"GRCh38", "mm10"} <= {one["name"] for one in found["listed"]}
        assert (found["opens"], found["hints"]) == ({"data_field": "GRCh38"}, [])
    assert np.array_equal(served(path, data_field="GRCh38", columns=["ENSG7"])[0], table[:, [7]])


@pytest.mark.parametrize("sparse", [True, False])
def test_an_index_of_genes_that_is_no_text(tmp_path: Path, sparse: bool) -> None:
    """An index of ``var`` that is no text, but numbers or codes of categories, is asked for only
    where columns are named."""
    path, table = str(tmp_path / "x.h5ad"), dense()
    write(Path(path), table)
    for number, kind in enumerate(("numbers", "group")):
        with h5py.File(path, "a") as file:
            del file["var/names"]
            file["var/names" if kind == "numbers" else "var/names/codes"] = np.arange(WIDTH)
            if not sparse and not number:
                del file["X"]
                file["X"] = table
        assert np.array_equal(served(path)[0], table)
        assert np.array_equal(served(path, columns=[3, 1])[0], table[:, [3, 1]])
        with pytest.raises(FormatError, match="'var/names' does not have one name for each column"):
            served(path, columns=["gene3"])


def test_what_must_be_rewritten(tmp_path: Path) -> None:
    """Columns of a csc_matrix and older encodings are FormatErrors that say what to do."""
    path = write(tmp_path / "x.h5ad", dense())
    with h5py.File(path, "a") as file:
        file["X"].attrs["encoding-type"] = "csc_matrix"
        file["obs"].create_group("__categories")["kind"] = np.array([b"a"])
        file["obs/kind"] = np.zeros(N, np.int8)
    with pytest.raises(FormatError, match="tocsr"):
        served(path)
    with h5py.File(path, "a") as file:
        file["X"].attrs["encoding-type"] = "csr_matrix"
    with pytest.raises(FormatError, match=r"write_h5ad"):
        served(path, labels_field="obs/kind")
    with h5py.File(path, "a") as file:
        del file["X"].attrs["encoding-type"]
        file["X"].attrs["h5sparse_format"] = "csr"
        file["X"].attrs["h5sparse_shape"] = (N, WIDTH)
    with pytest.raises(FormatError, match=r"write_h5ad"):
        served(path)
    old = str(tmp_path / "old.h5ad")
    with h5py.File(old, "w") as file:
        file["X"] = dense()
        for name in ("obs", "var"):
            file[name] = np.zeros(N, [("index", "S4"), ("n", "i4")])
    with pytest.raises(FormatError, match=r"write_h5ad"):
        served(old)


# -- hostile files ---------------------------------------------------------------------------------


_DATA, _INDICES, _INDPTR = csr(dense())


@pytest.mark.parametrize(
    "wrong", [WIDTH, -1, 1 << 40, np.uint64((1 << 64) - 1), np.uint64(1 << 63)]
)
@pytest.mark.parametrize("columns", [None, [1, 2]])
def test_columns_out_of_range(tmp_path: Path, wrong: Any, columns: Any) -> None:
    """A column out of range makes its row bad, by its number; the others are served."""
    kind = np.uint64 if isinstance(wrong, np.uint64) else np.int64
    indices = _INDICES.astype(kind)
    indices[_INDPTR[20] + 1] = wrong
    path = str(tmp_path / "x.h5")
    with h5py.File(path, "w") as file:
        put(file.create_group("m"), (_DATA, indices, _INDPTR), (N, WIDTH))
    expected = dense() if columns is None else dense()[:, columns]
    params = {"data_field": "m", "columns": columns, "last_batch": "drop", "batch_size": N}
    with pytest.raises(SampleError, match=r"column that does not exist.*record 20\b"):
        served(path, **params)
    with AsyncReader(path=path, on_error="zero", **params) as reader:
        batch = next(iter(reader))
        assert np.array_equal(np.flatnonzero(~batch.mask), [20])
        good = np.array(batch.mask)
        assert np.array_equal(batch.data[good], expected[good])
        assert not batch.data[20].any()
        assert reader.stats().bad_samples


def test_rows_of_a_damaged_chunk(tmp_path: Path) -> None:
    """Rows whose numbers lie in a damaged chunk are bad; all others are served."""
    table = dense()
    path = write(tmp_path / "x.h5ad", table, chunks=(50,), compression="gzip")
    with h5py.File(path) as file:
        info = file["X/indices"].id.get_chunk_info(2)
        indptr = file["X/indptr"][:]
    with open(path, "r+b") as raw:
        raw.seek(info.byte_offset)
        raw.write(bytes(info.size))
    lost = (indptr[:-1] < 150) & (indptr[1:] > 100) & (indptr[1:] > indptr[:-1])
    batch = first_batch(path=path, batch_size=N, on_error="zero")
    assert np.array_equal(batch.mask, ~lost)
    assert np.array_equal(batch.data, np.where(lost[:, None], 0, table))


# -- how it is read --------------------------------------------------------------------------------
