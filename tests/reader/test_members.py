"""Structured rows served by a reader, and what is asked of single fields, against plain numpy."""

import struct
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from fakes import epoch_of, first_batch, hdf5
from reader_contract import ReaderContract, Served

from asyncreader import AsyncReader, FormatError, ParamsError
from asyncreader.pixels.numbers import MOST_MEMBERS

N, TRACKS = 120, 5
#: As salt's jets: members of all kinds, one in the other byte order, and some that are no numbers.
JET = np.dtype([
    ("pt", "f4"), ("eta", ">f2"), ("flavour", "i8"), ("n", "u1"), ("valid", "?"), ("name", "S6"),
    ("mass", "f8"), ("cov", ">i2", (2, 3)), ("at", [("x", "f4"), ("y", "i4")]),
])  # fmt: skip
MEMBERS = ["mass", "pt", "eta", "flavour", "valid", "at.y"]


def filled(shape: tuple[int, ...], seed: int = 0) -> Any:
    """Structured rows of random numbers."""
    rng, rows = np.random.default_rng(seed), np.zeros(shape, JET)
    for name in ("pt", "eta", "mass"):
        rows[name] = rng.normal(size=shape)
    for name in ("flavour", "n"):
        rows[name] = rng.integers(0, 6, shape)
    rows["valid"], rows["name"] = rng.integers(0, 2, shape), b"jet"
    rows["cov"] = rng.integers(-99, 99, (*shape, 2, 3))
    rows["at"]["x"], rows["at"]["y"] = rng.normal(size=shape), rng.integers(0, 9, shape)
    return rows


JETS, TRACK = filled((N,)), filled((N, TRACKS), 1)


def right(rows: Any, members: list[str] = MEMBERS, dtype: str | None = None) -> Any:
    """What these members of rows are, by numpy."""
    columns = []
    for name in members:
        column = rows
        for part in name.split("."):
            column = column[part]
        columns.append(column)
    common = dtype or np.result_type(*(column.dtype.newbyteorder("=") for column in columns))
    return np.stack([column.astype(common) for column in columns], axis=-1)


def write(path: Path, layout: str, jets: Any = JETS, tracks: Any = TRACK) -> Path:
    """A file of ``jets`` and ``tracks``, stored as ``layout`` says."""
    with h5py.File(path, "w") as file:
        for name, rows in (("jets", jets), ("tracks", tracks)):
            chunk = (16,) if rows.ndim == 1 else (16, TRACKS)
            cut = (16,) if rows.ndim == 1 else (16, 2)
            options: dict[str, Any] = {
                "contiguous": {},
                "chunks": {"chunks": chunk},
                "gzip": {"chunks": chunk, "compression": "gzip", "shuffle": True},
                "cut": {"chunks": cut, "compression": "lzf", "fletcher32": True},
                "table": {"chunks": chunk, "maxshape": (None, *rows.shape[1:]),
                          "compression": "gzip"},
            }[layout]  # fmt: skip
            data = file.create_dataset(name, data=rows, **options)
            if layout == "table":
                data.attrs["CLASS"], data.attrs["VERSION"] = np.bytes_("TABLE"), np.bytes_("2.7")
        file["labels"] = np.arange(len(jets))
    return path


LAYOUTS = ["contiguous", "chunks", "gzip", "cut", "table"]


@pytest.fixture(scope="module", params=LAYOUTS)
def stored(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The set in one file of each layout."""
    return write(tmp_path_factory.mktemp("members") / "set.h5", request.param)


def served(**params: Any) -> tuple[Any, Any]:
    """(data, indices) of an epoch, batch behind batch."""
    data, _, records = epoch_of({"last_batch": "short", **params})
    return data, records


@pytest.mark.some(3)
class TestMembers(ReaderContract):
    """Members of structured rows are numpy's fields, in every order and way of reading."""

    @pytest.fixture(params=["jets", "tracks"])
    def served(self, request: pytest.FixtureRequest, stored: Path) -> Served:
        rows, io = (JETS, "mmap") if request.param == "jets" else (TRACK, "pread")

        def expected(batch: Any) -> None:
            assert batch.data.dtype == np.float64
            records = batch.indices[batch.mask]
            assert np.array_equal(batch.data[batch.mask], right(rows)[records])

        given = {"path": stored, "data_field": request.param, "subset": slice(3, 40), "io": io}
        return Served(given | {"members": MEMBERS}, expected, 37, (12, 3, 4))


@pytest.mark.parametrize(
    "kind", ["plain", "strided", "swapped", "recarray", "npy", "h5py", "files", "axis"]
)
@pytest.mark.parametrize("shuffle", [False, True, "block"])
def test_what_holds_structured_rows(tmp_path: Path, kind: str, shuffle: Any) -> None:
    """Structured arrays of numpy, of any strides and byte order, a .npy file, an open data set of
    h5py, several files and rows of episodes are served as a file is."""
    path, rows = tmp_path / "set.h5", TRACK
    given: dict[str, Any] = {"data_field": "tracks"}
    if kind == "files":
        parts = zip((slice(0, 40), slice(40, 56), slice(56, N)), LAYOUTS[1:4], strict=True)
        given["path"] = [
            write(tmp_path / f"{layout}.h5", layout, JETS[part], TRACK[part])
            for part, layout in parts
        ]
    elif kind == "axis":
        rows = TRACK.reshape(-1)
        given |= {"path": write(path, "cut"), "episodes": "axis", "labels_field": None}
    elif kind == "h5py":
        with h5py.File(write(path, "gzip")) as file:
            check_members({"data": file["tracks"], "shuffle": shuffle}, rows)
        return
    elif kind == "npy":
        np.save(tmp_path / "tracks.npy", TRACK)
        given = {"path": tmp_path / "tracks.npy"}
    else:
        given = {"data": {
            "plain": TRACK, "strided": np.repeat(TRACK, 2, axis=0)[::2],
            "swapped": TRACK.astype(JET.newbyteorder()), "recarray": np.rec.array(TRACK),
        }[kind]}  # fmt: skip
    check_members(given | {"shuffle": shuffle}, rows)


def check_members(given: dict[str, Any], rows: Any) -> None:
    """A reader serves the members of rows, each row once."""
    data, records = served(**given, members=MEMBERS, batch_size=11)
    assert np.array_equal(data, right(rows)[records])
    assert sorted(records) == list(range(len(rows)))


def test_files_whose_members_differ(tmp_path: Path) -> None:
    """A file whose members differ from those of the others is refused."""
    path = write(tmp_path / "0.h5", "contiguous")
    hdf5(tmp_path / "1.h5", jets=JETS[["pt", "eta"]])
    with pytest.raises(FormatError, match="dtype"):
        AsyncReader([path, tmp_path / "1.h5"], data_field="jets", members=["pt"])


@pytest.mark.parametrize(
    ("members", "shape"), [("pt", ()), (["pt"], (1,)), (["cov"], (2, 3)), (["pt", "n"], (2,))]
)
def test_shapes_of_members(stored: Path, members: Any, shape: tuple[int, ...]) -> None:
    """A list of k names gives (B, ..., k), a name alone (B, ...), an array keeps its shape."""
    data, _ = served(path=stored, data_field="tracks", members=members, batch_size=8)
    assert data.shape == (N, TRACKS, *shape)
    if members == ["cov"]:
        assert np.array_equal(data, TRACK["cov"])
        assert data.dtype == np.dtype("=i2")


def test_members_of_arrays_as_fields(tmp_path: Path) -> None:
    """``data_field`` names members of arrays, too, also of the rows of episodes; a point in the
    name of an array, or of a data set in a file, is a part of it."""
    given = {"jets": JETS, "tracks": TRACK, "jets.eta": np.arange(N)}
    data, at = served(data=given, data_field={"a": "jets.at.x", "b": "tracks.pt", "c": "jets.eta"},
                      shuffle=True, batch_size=16)  # fmt: skip
    assert np.array_equal(data[0], JETS["at"]["x"][at])
    assert np.array_equal(data[1], TRACK["pt"][at])
    assert np.array_equal(data[2], at)
    with h5py.File(tmp_path / "set.h5", "w") as file:
        file["jets"], file["jets.eta"] = JETS, np.arange(N)
    data, at = served(path=tmp_path / "set.h5", data_field="jets.eta", labels_field=None)
    assert np.array_equal(data, at)
    rows, _ = served(data={"tracks": TRACK}, data_field=["tracks.pt"], episodes="axis", window=2,
                     batch_size=16)  # fmt: skip
    assert np.array_equal(rows[0][:4, 0], TRACK["pt"][0, :4])
    assert rows[0].shape == (N * (TRACKS - 1), 2)
    for name in ("jets.nothing", "nothing.pt", "jets.eta.x"):
        with pytest.raises(ParamsError):
            AsyncReader(data=given, data_field=[name])
    with pytest.raises(ParamsError, match="objects"):
        AsyncReader(data=np.zeros(3, [("x", "O")]), members=["x"])


def test_numbers_of_more_than_64_bits() -> None:
    """Arrays of numpy's long double are served and cast, though no compiled code knows them."""
    rows = np.arange(12, dtype=np.longdouble).reshape(4, 3)
    assert np.array_equal(served(data=rows)[0], rows)
    made, _ = served(data=rows, dtype="float32", mean=[1, 2, 3])
    assert np.array_equal(made, rows - [1, 2, 3])
    records = np.zeros(4, [("x", "g"), ("y", "f4")])
    with pytest.raises(ParamsError, match="'x' does not hold plain numbers"):
        AsyncReader(data=records, members=["x"])


@pytest.mark.parametrize("label", ["flavour", "at.y", "cov"])
def test_labels_that_are_a_member(stored: Path, label: str) -> None:
    """``labels_field="jets.flavour"``: one member of other rows as labels."""
    with AsyncReader(
        stored, data_field="tracks.pt", labels_field=f"jets.{label}", batch_size=30, shuffle=True
    ) as reader:
        for batch in reader:
            values = JETS["at"]["y"] if label == "at.y" else JETS[label]
            assert np.array_equal(batch.data, TRACK["pt"][batch.indices])
            assert np.array_equal(batch.labels, values[batch.indices])
            assert batch.labels.dtype.isnative


def test_names_of_members_with_dots(tmp_path: Path) -> None:
    """A member's own name may have dots, as may that of the compound around it: as a field, as
    labels and as ids of episodes it is the one that is stored, and statistics are of it."""
    rows = np.zeros(6, [("x.y", ">u8"), ("b.c", [("f4", "f4"), ("d.e", ">i2")])])
    rows["x.y"], rows["b.c"]["f4"], rows["b.c"]["d.e"] = np.arange(6) + 7, 0.5, np.arange(6) // 2
    hdf5(tmp_path / "a.h5", t=rows)
    params = {"path": tmp_path / "a.h5", "data_field": "t", "members": ["x.y", "b.c.d.e"]}
    for labels, wanted in (("x.y", rows["x.y"]), ("b.c.d.e", rows["b.c"]["d.e"])):
        given = {**params, "labels_field": f"t.{labels}", "batch_size": 6}
        with AsyncReader(given) as reader:
            batch = next(iter(reader))
            assert np.array_equal(batch.data, np.stack([rows["x.y"], rows["b.c"]["d.e"]], -1))
            assert np.array_equal(batch.labels, wanted)
            assert reader.dataset.statistics()["t"].mean.tolist() == [9.5, 1]
    ids = {"labels_field": None, "episodes": "ids:t.b.c.d.e", "window": 2, "batch_size": 3}
    assert first_batch({**params, **ids}).indices.tolist() == [0, 2, 4]


def test_a_state_is_of_the_stored_rows(stored: Path) -> None:
    """A state resumes with other members and another dtype."""
    params: dict[str, Any] = {"path": stored, "data_field": "tracks", "shuffle": True}
    with AsyncReader(params, batch_size=12, members=MEMBERS) as reader:
        batches = iter(reader)
        next(batches)
        state, records = reader.state_dict(), next(batches).indices.copy()
    with AsyncReader(params, batch_size=12, members=["pt", "n"], dtype="float32") as reader:
        reader.load_state_dict(state)
        batch = next(iter(reader))
        assert np.array_equal(batch.indices, records)
        assert np.array_equal(batch.data, right(TRACK, ["pt", "n"], "f4")[records])


@pytest.mark.parametrize("kind", ["ids:jets.at.y", "flags:jets.valid,jets.flag"])
def test_episodes_by_a_member(tmp_path: Path, kind: str) -> None:
    """Ids and flags of episodes may be members, too."""
    jets = np.zeros(N, [*JET.descr, ("flag", "?")])
    for name in JET.names or ():
        jets[name] = JETS[name]
    jets["at"]["y"], jets["flag"][-1] = np.arange(N) // 7, True
    path = write(tmp_path / "set.h5", "gzip", jets)
    last = jets["valid"] | jets["flag"]
    ends = np.flatnonzero(last) + 1 if kind[0] == "f" else np.arange(7, N + 7, 7).clip(max=N)
    with AsyncReader(path, data_field="jets.pt", episodes=kind, window=1) as reader:
        assert np.array_equal(reader._source.rule.episodes.ends, ends)


# -- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"data_field": "jets"}, "members says which"),
        ({"data_field": "jets", "members": ["pt", "e"]}, "no member 'e'"),
        ({"data_field": "jets", "members": ["name"]}, "'name' does not hold plain numbers"),
        ({"data_field": "jets", "members": ["pt", "cov"]}, "'cov' holds an array"),
        ({"data_field": "jets.e"}, "no member 'e'"),
        ({"data_field": "jets.at"}, "no member 'at'"),
        ({"data_field": ["jets", "tracks"], "members": {"jets": ["pt"]}}, "'tracks': the rows are"),
    ],
)
def test_members_that_are_not_there(stored: Path, params: dict[str, Any], message: str) -> None:
    """The error lists the members with their dtypes and shapes."""
    with pytest.raises(ParamsError, match=message) as raised:
        AsyncReader(stored, **params)
    text = str(raised.value)
    assert "pt (float32), eta (float16), flavour (int64)" in text
    assert "name (no number)" in text
    assert "cov (int16, 2 x 3)" in text
    assert "at.y (int32)" in text


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"data_field": "jets.pt", "members": ["pt"]}, "members goes with fields of structured"),
        ({"data_field": ["jets.pt", "tracks"], "members": {"jets.pt": ["pt"], "tracks": ["pt"]}},
         "members goes with fields of structured"),
        ({"data_field": "labels", "members": ["pt"]}, "members goes with fields of structured"),
        ({"data_field": "jets.pt", "dtype": {"pt": "float64"}}, "no field 'pt'"),
        ({"data_field": "jets.pt", "labels_field": "jets.nothing"}, "no field 'jets.nothing'"),
        ({"data_field": "jets.pt", "labels_field": "jets.name"}, "no field 'jets.name'"),
        ({"data_field": "jets", "members": {"jets": 3}}, r"members\['jets'\] is not valid"),
        ({"data_field": "jets.pt", "dtype": {"jets.pt": "S3"}}, r"dtype\['jets.pt'\] is not valid"),
        ({"data_field": "jets.pt", "size": (4, 4)}, "size needs images"),
        ({"data_field": "jets", "members": ["n"], "mean": 1}, "need a float dtype"),
        ({"data_field": "jets", "members": ["pt"], "mean": [1, 2]}, "one for each number"),
    ],
)  # fmt: skip
def test_wrong_params(stored: Path, params: dict[str, Any], message: str) -> None:
    """What does not fit these rows is an error when the reader opens."""
    with pytest.raises(ParamsError, match=message):
        AsyncReader(stored, **params)


def test_labels_that_are_structured_rows(stored: Path) -> None:
    """Structured rows are no labels; the error says how one of their members is."""
    with pytest.raises(FormatError, match="'jets' does not hold plain numbers") as raised:
        AsyncReader(stored, data_field="jets.pt", labels_field="jets")
    assert '"jets.MEMBER"' in str(raised.value)


def test_a_value_that_the_dtype_cannot_hold(tmp_path: Path) -> None:
    """It is an error when the reader opens, where the first samples have it, and else of its
    batch; it names the member, the record and the file."""
    jets = JETS.copy()
    jets["n"][0], jets["mass"][77] = 200, 1e39
    path = write(tmp_path / "set.h5", "contiguous", jets)
    with pytest.raises(ParamsError, match="member 'n'") as raised:
        AsyncReader(path, data_field="jets", members=["flavour", "n"], dtype="int8")
    assert raised.value.index == 0
    with AsyncReader(
        path, data_field="jets", members=["mass"], dtype="float32", batch_size=N
    ) as reader:
        with pytest.raises(ParamsError, match="member 'mass'") as raised:
            next(iter(reader))
        assert raised.value.index == 77
        assert str(path) in str(raised.value)
        assert "1e+39" in str(raised.value)


def test_a_second_field_that_its_dtype_cannot_hold(tmp_path: Path) -> None:
    """It is an error when the reader opens, too."""
    x = np.full((9, 2), 300.0)
    with pytest.raises(ParamsError, match="cannot hold"):
        AsyncReader(data={"a": x, "b": x}, dtype={"b": "uint8"})


# -- hostile and odd files -----------------------------------------------------------------------


def _type(size: int, members: list[tuple[str, int, Any]]) -> Any:
    made = h5py.h5t.create(h5py.h5t.COMPOUND, size)
    for name, offset, kind in members:
        made.insert(name.encode(), offset, kind)
    return made


def _raw(path: Path, kind: Any, rows: bytes, count: int) -> Path:
    """A data set ``jets`` of a type, with these bytes."""
    with h5py.File(path, "w", libver="earliest") as file:
        data = h5py.h5d.create(file.id, b"jets", kind, h5py.h5s.create_simple((count,)))
        memory = np.frombuffer(rows, np.dtype((np.void, kind.get_size())))
        data.write(h5py.h5s.ALL, h5py.h5s.ALL, memory, kind)
    return path


def test_members_that_are_no_numbers_are_passed_over(tmp_path: Path) -> None:
    """Text and lists of variable length, references, odd floats and enumerations may be beside what
    is asked for."""
    t = h5py.h5t
    bfloat = t.IEEE_F32LE.copy()
    bfloat.set_fields(15, 7, 8, 0, 7)
    bfloat.set_precision(16)
    bfloat.set_offset(0)
    bfloat.set_size(2)
    colour = t.enum_create(t.STD_I16LE)
    for number, name in enumerate((b"RED", b"GREEN", b"BLUE")):
        colour.enum_insert(name, number)
    kind = _type(64, [
        ("text", 0, t.py_create(h5py.string_dtype(), logical=True)),
        ("list", 16, t.vlen_create(t.IEEE_F32LE)),
        ("ref", 32, t.STD_REF_OBJ), ("bf", 40, bfloat), ("colour", 42, colour),
        ("x", 44, t.IEEE_F64BE),
    ])  # fmt: skip
    with h5py.File(tmp_path / "set.h5", "w") as file:
        h5py.h5d.create(file.id, b"jets", kind, h5py.h5s.create_simple((4,)),
                        dcpl=_early())  # fmt: skip
        offset = file["jets"].id.get_offset()
    with open(tmp_path / "set.h5", "r+b") as raw:
        for i in range(4):
            raw.seek(offset + 64 * i + 42)
            raw.write(struct.pack("<h", i % 3) + struct.pack(">d", i + 0.5))
    data, _ = served(path=tmp_path / "set.h5", data_field="jets", members=["x", "colour"],
                     labels_field=None)  # fmt: skip
    assert np.array_equal(data, np.stack([np.arange(4) + 0.5, np.arange(4) % 3], -1))
    for name in ("text", "list", "ref", "bf"):
        with pytest.raises(ParamsError, match=f"member '{name}' does not hold plain numbers"):
            AsyncReader(tmp_path / "set.h5", data_field=f"jets.{name}", labels_field=None)


def _early() -> Any:
    plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    plist.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    return plist


def test_types_inside_each_other(tmp_path: Path) -> None:
    """Compounds inside each other are looked at to a bounded depth; more members than are read are
    refused."""
    kind = _type(4, [("x", 0, h5py.h5t.IEEE_F32LE)])
    for _ in range(40):
        kind = _type(4, [("a", 0, kind)])
    path = _raw(tmp_path / "deep.h5", kind, np.arange(3, dtype="<f4").tobytes(), 3)
    with pytest.raises(ParamsError, match="members says which") as raised:
        AsyncReader(path, data_field="jets", labels_field=None)
    assert ".".join("a" * 9) + " (no number)" in str(raised.value)
    many = np.zeros(3, [(f"m{i}", "u1") for i in range(MOST_MEMBERS + 1)])
    with pytest.raises(ParamsError, match=f"{MOST_MEMBERS + 1} members"):
        AsyncReader(data=many, members=["m1"])


@pytest.mark.parametrize("damage", range(24))
def test_damaged_types(tmp_path: Path, damage: int) -> None:
    """A type whose bytes are damaged (offsets outside, over each other, other sizes) is an error,
    or its numbers are those that h5py reads: never bytes outside of a row."""
    kind = _type(12, [("x", 0, h5py.h5t.IEEE_F32LE), ("y", 4, h5py.h5t.STD_I64LE)])
    path = _raw(tmp_path / "set.h5", kind, np.arange(36, dtype=np.uint8).tobytes(), 3)
    held = bytearray(path.read_bytes())
    at = held.index(b"x\0\0\0\0\0\0\0") + 8 + damage  # the first member, behind its name
    for value in (0xFF, 0x0B, 0x80):
        held[at] ^= value
        path.write_bytes(held)
        try:
            data, _ = served(path=path, data_field="jets", members=["x", "y"], labels_field=None)
        except (FormatError, ParamsError):
            continue
        with h5py.File(path, "r") as file:
            assert np.array_equal(data, right(file["jets"][()], ["x", "y"]), equal_nan=True)


def test_data_beside_pictures(tmp_path: Path) -> None:
    """A second field, of float vectors, is normalised along its last axis, while pictures are
    cropped; the plain form is the first field's alone."""
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (20, 9, 8, 3), np.uint8)
    depth = rng.integers(0, 999, (20, 9, 8), np.uint16)
    vectors = rng.normal(size=(20, 3))
    given = {"images": images, "vectors": vectors, "depth": depth}
    (pictures, made, far), at = served(
        data=given, size=(4, 4), dtype={"images": "float32", "vectors": "float32",
        "depth": "float32"}, scale={"images": 1 / 255, "depth": 0.1},
        mean={"vectors": [1, 2, 3], "depth": 5}, std={"vectors": [4, 5, 6]}, batch_size=5,
    )  # fmt: skip
    assert np.allclose(made, (vectors[at] - [1, 2, 3]) / [4, 5, 6], atol=1e-6)
    (plain, same, near), _ = served(data=given, size=(4, 4), dtype="float32", scale=1 / 255,
                                    batch_size=5)  # fmt: skip
    assert np.array_equal(plain, pictures)
    assert np.array_equal(same, vectors)
    assert near.dtype == np.uint16
    assert np.allclose(far, near * 0.1 - 5, atol=1e-4)
