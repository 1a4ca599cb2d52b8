"""``asyncreader info``: what a dataset holds, in words and in JSON."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import foreign_sets
import h5py
import numpy as np
import pytest
from command_sets import run, save_images
from fakes import hdf5
from PIL import Image

import asyncreader
import converters
from asyncreader.cli.options import params_of
from asyncreader.system.text import in_bytes


def table(text: str) -> dict[str, str]:
    """The name and value columns of ``info``."""
    return dict(re.split(r"  +", line, maxsplit=1) for line in text.split("\n\n")[0].splitlines())


def test_info_of_a_packed_set(packed: Path) -> None:
    """The table tells format, count, shape, encoding, labels per class, and what is checked; --json
    has the same facts as plain values, with the fingerprint of a reader's state."""
    result = run("info", packed)
    assert result.exit_code == 0
    assert "\x1b" not in result.stdout
    assert max(len(line) for line in result.stdout.splitlines() if str(packed) not in line) <= 80
    facts = table(result.stdout)
    assert facts["format"].startswith("HDF5: ")
    assert facts["count"] == "20 samples"
    assert facts["shape"] == "12 x 10 x 3 (H, W, C)"
    assert (facts["dtype"], facts["encoding"]) == ("uint8", "raw")
    assert facts["labels"] == "20 x 1 int64, 0 to 1, 2 classes"
    assert facts["checksums"] == "XXH3-64 of each sample"
    rows = [line.split() for line in result.stdout.split("\n\n")[1].splitlines()]
    assert rows == [["label", "samples", "class"], ["0", "15", "cat"], ["1", "5", "dog"]]
    told = json.loads(run("info", packed, "--json").stdout)
    assert (told["count"], told["shape"], told["checksums"]) == (20, [12, 10, 3], True)
    assert told["bytes_on_disk"] == packed.stat().st_size
    assert told["labels"]["counts"] == [
        {"label": 0, "class": "cat", "samples": 15},
        {"label": 1, "class": "dog", "samples": 5},
    ]
    with asyncreader.AsyncReader(path=packed) as reader:
        assert told["fingerprint"] == reader.state_dict()["fingerprint"]


def test_info_has_no_line_for_what_a_set_lacks(packed: Path, foreign: Path) -> None:
    """No line of info says "none": chunks, compression and splits stand there if the set has them,
    and labels or checksums that it lacks are said in words."""
    for words in ([packed], [foreign, "-p", "data_field=images", "-p", "labels_field=null"]):
        printed = run("info", *words).stdout
        assert "none" not in printed
        assert not {"chunks", "compression", "splits"} & set(table(printed))


def test_info_divides_by_the_samples_of_their_own_field(tmp_path: Path) -> None:
    """Bytes of a sample are those of its field, whatever else the file holds: contiguous, in
    compressed chunks, encoded, in a list of files, and in shards."""
    images = {"images": np.zeros((200, 8, 9, 3), "u1"), "val_images": np.zeros((20, 8, 9, 3), "u1")}
    path = hdf5(tmp_path / "two.h5", **images)
    with h5py.File(path, "a") as file:
        seven, chunks = np.full((40, 8, 9, 3), 7, "u1"), (10, 8, 9, 3)
        zipped = file.create_dataset("zipped", data=seven, chunks=chunks, compression="gzip")
        stored = zipped.id.get_storage_size() / 40

    def each(*words: str | Path) -> float:
        return float(json.loads(run("info", *words, "--json").stdout)["bytes_a_sample"])

    for name, size in (("images", 216), ("val_images", 216), ("zipped", stored)):
        words = (path, "-p", f"data_field={name}", "-p", "labels_field=null")
        assert each(*words) == size
        assert table(run("info", *words).stdout)["a sample"] == f"{in_bytes(size)} as stored"
    shutil.copy(path, tmp_path / "two2.h5")
    both = tmp_path / "two*.h5"
    assert each(both, "-p", "data_field=val_images", "-p", "labels_field=null") == 216
    named = {f"c/{n}.png": Image.new("RGB", (10 + n, 9)) for n in range(4)}
    photos = save_images(tmp_path / "in", named)
    sizes = [one.stat().st_size for one in (photos / "c").iterdir()]
    converters.convert(photos, tmp_path / "o.lmdb", encoding="original")
    assert each(tmp_path / "o.lmdb") == sum(sizes) / 4
    converters.convert(photos, tmp_path / "s", encoding="original", shards=2)
    assert each(tmp_path / "s") > sum(sizes) / 4


@pytest.mark.parametrize(
    ("subset", "rows"),
    [
        *(("0:3", slice(0, 3)), ("::2", slice(None, None, 2)), ("-4:", slice(-4, None))),
        *((":-1", slice(None, -1)), ("[1,1,5]", [1, 1, 5]), ("4:1:-1", slice(4, 1, -1))),
    ],
)
@pytest.mark.parametrize("kind", ["file", "shards"])
def test_info_of_a_subset(packed: Path, subset: str, rows: Any, kind: str, tmp_path: Path) -> None:
    """-p subset= takes slices and lists, and info tells the labels of those records alone."""
    path = packed
    if kind == "shards":
        path = tmp_path / "set"
        assert run("convert", packed, path, "--shards", "3", "-q").exit_code == 0
    labels = np.repeat([0, 1], [15, 5])[rows]
    facts = json.loads(run("info", path, "-p", f"subset={subset}", "--json").stdout)
    assert (facts["count"], facts["subset"]) == (20, len(labels))
    told = {row["label"]: row["samples"] for row in facts["labels"]["counts"] if row["samples"]}
    assert told == {int(n): int((labels == n).sum()) for n in np.unique(labels)}
    words = table(run("info", path, "-p", f"subset={subset}").stdout)
    assert words["subset"].startswith(f"{len(labels)} sample")


def _hints(*words: Any) -> list[str]:
    found: list[str] = json.loads(run("info", *words, "--json").stdout)["hints"]
    return found


def test_info_suggests_what_serves_a_set(tmp_path: Path) -> None:
    """Of volumes, of samples of different length and of values with a table of offsets info says
    what to pass; passed, it serves them, and nothing more is suggested. Of others it is quiet."""
    count = np.array([3, 9, 0, 5])
    sets: dict[str, tuple[dict[str, Any], str]] = {
        "one volume": ({"raw": np.zeros((40, 36, 48), "u2")}, "one volume of 40 x 36 x 48"),
        "volumes": ({"raw": np.zeros((3, 2, 16, 36, 80), "f4")}, "patch=16x32x32 serves"),
        "channels": ({"raw": np.zeros((2, 30, 40, 50), "u1")}, "one volume of 2 x 30 x 40 x 50"),
        "lengths": ({"x": np.ones((17, 2)), "n": count}, "n may say where samples begin in x"),
        "starts": ({"x": np.ones(17), "s": np.cumsum([0, *count])}, "s may say"),
        "found": ({"x": np.ones(17), "x_lengths": count}, "max_length=9 serves all of them whole"),
    }
    for name, (fields, says) in sets.items():
        path = hdf5(tmp_path / f"{name}.h5", **fields)
        (hint,) = _hints(path)
        assert says in hint
        passed = [word for part in re.findall(r"-p (\S+)", hint) for word in ("-p", part)]
        assert _hints(path, *passed) == []
        given = {"data_field": next(iter(fields))}
        given.update(part.split("=") for part in passed if part != "-p")
        patch = tuple(map(int, given.pop("patch", "0").split("x")))
        axis = {"sample_axis": None} if given.pop("sample_axis", "") else {}
        most = int(given.pop("max_length", "0"))
        served = {**given, **axis, **({"patch": patch} if any(patch) else {"max_length": most})}
        with asyncreader.open(path, **served) as ds:  # type: ignore[arg-type]
            assert ds[0] is not None
    for name, values in {
        "digits": np.zeros((600, 16, 16), "u1"),
        "rows": np.zeros((20, 8)),
        "maps": np.zeros((9, 64, 7, 7)),
    }.items():
        assert _hints(hdf5(tmp_path / f"{name}.h5", x=values, y=np.arange(len(values)))) == []


def test_info_lists_the_columns_of_cells(tmp_path: Path) -> None:
    """Of AnnData's files info lists the columns of obs, and says how one becomes the labels."""
    path = tmp_path / "cells.h5ad"
    with h5py.File(path, "w") as file:
        file["X"], file["var/g"] = np.zeros((6, 4), "f4"), np.array([b"a", b"b", b"c", b"d"])
        obs = file.create_group("obs")
        obs.attrs["_index"], file["var"].attrs["_index"] = "cell", "g"
        obs["cell"] = np.array([f"c{n}".encode() for n in range(6)])
        obs["depth"], obs["donor"] = np.arange(6.0), np.array([b"x", b"y"] * 3)
        kinds = {"kind": "categorical", "one": "categorical", "age": "nullable-integer"}
        for name, encoding in {**kinds, "odd": "interval"}.items():
            obs.create_group(name).attrs["encoding-type"] = encoding
        kind, one, age = (obs[name] for name in kinds)
        kind["categories"], kind["codes"] = np.array([b"B", b"T"]), np.arange(6, dtype="i1") % 2
        one["categories"], one["codes"] = np.array([b"A"]), np.zeros(6, "i1")
        age["values"], age["mask"] = np.arange(6), np.arange(6) == 0
        obs.create_group("wrong").attrs["encoding-type"] = np.arange(3)
    facts = json.loads(run("info", path, "--json").stdout)
    assert {one["name"]: (one["words"], one["label"]) for one in facts["columns"]} == {
        "obs/age": ("whole numbers, -1 where missing", True),
        "obs/depth": ("float64", True),
        "obs/donor": ("text, classes by name", True),
        "obs/kind": ("categorical, 2 classes", True),
        "obs/one": ("categorical, 1 class", True),
        "obs/odd": ("of a kind that is not read", False),
        "obs/wrong": ("of a kind that is not read", False),
    }
    assert facts["hints"] == ["-p labels_field=obs/donor serves a column as labels"]
    assert table(run("info", path).stdout)["obs/kind"] == "categorical, 2 classes"
    for one in facts["columns"]:
        found = run("info", path, "-p", f"labels_field={one['name']}")
        assert (found.exit_code == 0) == one["label"]
    with asyncreader.open(path, labels_field="obs/kind") as ds:
        assert ds.classes == ("B", "T")


@pytest.mark.parametrize("subset", ["0:5:0", "train", "900:", "[0,999]", "1:2:3:4", "a:b"])
def test_info_of_a_subset_that_is_not_there(packed: Path, subset: str) -> None:
    """A subset that selects nothing, or makes no sense, is misuse and said in one line."""
    result = run("info", packed, "-p", f"subset={subset}")
    assert result.exit_code == 2
    assert "subset" in result.stderr
    assert "Traceback" not in result.stderr


def test_words_of_parameters() -> None:
    """-p size=24x32 is size=(24, 32), as --size writes it. A field, a path and a trace may be named
    by a number; a number of samples stays one."""
    words = ["size=24x32", "subset=5:", "data_field=1", "labelsPath=2", "trace=3", "labelsField=0"]
    found = params_of(None, None, [*words, "njob=4", "flip=True", "scale=null"])  # type: ignore[arg-type]
    assert found == {
        "size": [24, 32],
        "subset": slice(5, None),
        "data_field": "1",
        "labelsPath": "2",
        "trace": "3",
        "labelsField": "0",
        "njob": 4,
        "flip": True,
        "scale": None,
    }


@pytest.mark.parametrize("kind", ["ours", "shards", "foreign"])
def test_info_says_how_many_jpegs_can_be_cut(tmp_path: Path, kind: str) -> None:
    """Of JPEGs, packed by asyncreader or not, info tells how many have restart markers by which a
    part is decoded without the rest, and of how many it looked at; of other pictures nothing."""
    noise = np.random.default_rng(3).integers(0, 256, (230, 32, 144, 3), np.uint8)
    pictures = save_images(tmp_path / "pictures", {"999.png": noise[-1]})
    for number, pixels in enumerate(noise):
        more: dict[str, Any] = {} if number % 2 else {"restart_marker_blocks": 3}
        Image.fromarray(pixels).save(pictures / f"{number:03}.jpg", **more)
    target = tmp_path / ("set" if kind == "shards" else "set.lmdb")
    if kind == "foreign":
        files = [file.read_bytes() for file in sorted(pictures.iterdir())]
        foreign_sets.write_lmdb(target, foreign_sets.ocr(files, ["1"] * len(files)))
    else:
        shards = {"shards": 3} if kind == "shards" else {}
        converters.convert(pictures, target, encoding="original", no_labels=True, **shards)
    found = json.loads(run("info", target, "--json").stdout)["restarts"]
    assert (found["looked_at"], found["jpegs"]) == (200, 199)
    assert 90 <= found["can_be_cut"] <= 110
    words = table(run("info", target).stdout)["restart markers"]
    assert words == f"{found['can_be_cut']} of 199 JPEGs can be decoded in part (200 looked at)"


def test_info_of_damaged_jpegs(tmp_path: Path) -> None:
    """A damaged sample does not keep info from showing the set: it is no JPEG that can be cut."""
    image = Image.fromarray(np.zeros((90, 160, 3), np.uint8))
    photos = save_images(tmp_path / "in", {"0.jpg": image, "1.jpg": image})
    target = tmp_path / "set.h5"
    converters.convert(photos, target, encoding="jpeg", no_labels=True)
    with h5py.File(target, "r+") as file:
        file["data"][: int(file["offsets"][1])] = 0
    result = run("info", target, "--json")
    assert result.exit_code == 0
    found = json.loads(result.stdout)["restarts"]
    assert found == {"looked_at": 2, "jpegs": 1, "can_be_cut": 1}


def test_info_of_a_foreign_set(foreign: Path) -> None:
    """--param names the fields; without checksums the set is called unverified."""
    result = run("info", foreign, "-p", "data_field=images", "-p", "labels_field=y")
    facts = table(result.stdout)
    assert facts["checksums"] == "not recorded: served unverified"
    assert facts["labels"] == "30 int64, -1 to 1, 3 different values"
    rows = [line.split() for line in result.stdout.split("\n\n")[1].splitlines()]
    assert rows == [["label", "samples"], ["-1", "10"], ["0", "10"], ["1", "10"]]
    facts = table(
        run("info", foreign, "-p", "data_field=images", "-p", "labels_field=boxes").stdout
    )
    assert facts["labels"] == "30 x 4 float64, 0 to 1"
    for nothing in ("null", "None"):
        words = ("-p", "data_field=images", "-p", f"labels_field={nothing}", "--json")
        assert json.loads(run("info", foreign, *words).stdout)["labels"] is None


def _odd(file: h5py.File) -> None:
    """Text, tables, units, a packed field, and an axis without values."""
    file["deep/in/it/names"] = ["a", "bc"]
    file["table"] = np.zeros(3, [("pt", "f4"), ("id", "S2")])
    file["t2m"] = np.zeros((9, 50, 60), "i2")
    file["t2m"].attrs.update({"units": "K", "scale_factor": 0.5, "_FillValue": np.int16(-9)})
    file["lat"], file["nothing"] = np.zeros(9, "f4"), h5py.Empty("f4")
    file["lat"].make_scale("This is a netCDF dimension but not a netCDF variable    9")


def _user(file: h5py.File, name: str) -> None:
    file[f"{name}/signal/raw"], file[f"{name}/rate"] = np.zeros((7, 2)), 5.0


#: What is in a file without a layout; what info says that opens it; what it lists first, with the
#: name of those that are alike; and the number of data sets in its list.
CONTENTS: dict[str, tuple[Any, dict[str, Any], tuple[str, str | None], int]] = {
    "odd": (_odd, {"data_field": "t2m", "values": "physical"}, ("t2m", None), 4),
    "offsets": (
        lambda file: file.update(
            hits=np.ones((10, 2)), hits_offsets=np.array([0, 4, 4, 10]), y=np.arange(3)
        ),
        {"data_field": "hits", "max_length": 6},
        ("hits", None),
        3,
    ),
    "many fields": (
        lambda file: [file.create_dataset(f"g{n}/x{n}", data=np.zeros(9 + n)) for n in range(300)],
        {"data_field": "g299/x299"},
        ("g299/x299", None),
        300,
    ),
    "no images": (
        lambda file: file.update(maps=np.zeros((5, 3, 8, 9)), labels=np.arange(7)),
        {"data_field": "maps", "axes": "NCHW", "labels_field": None},
        ("maps", None),
        2,
    ),
    "table": (
        lambda file: file.update(rows=np.zeros(4, [("pt", "f4"), ("name", "S3"), ("eta", "f8")])),
        {"data_field": "rows", "members": ["pt", "eta"]},
        ("rows", None),
        1,
    ),
    "groups": (
        lambda file: [_user(file, f"all/user_{n}") for n in range(4)],
        {"episodes": "groups:all/user_*", "data_field": "signal/raw"},
        ("all/user_0/signal/raw", "all/user_*/signal"),
        2,
    ),
    "ids": (
        lambda file: [_user(file, f"read_{n:02x}{9 - n}d-e") for n in range(9)],
        {"episodes": "groups:read_*", "data_field": "signal/raw"},
        ("read_009d-e/signal/raw", "read_*/signal"),
        2,
    ),
    "one each": (
        lambda file: [
            file.create_dataset(f"emb/P{n}", data=np.ones((n + 1, 4))) for n in range(20)
        ],
        {"episodes": "groups:emb/*", "data_field": ".", "window": "episode", "max_length": 20},
        ("emb/P0", "emb/*"),
        1,
    ),
    "volumes": (
        lambda file: file.update(
            {"x/label": np.zeros((4, 9, 9, 9), "u2"), "x/raw": np.zeros((4, 9, 9, 9), "u1")}
        ),
        {"data_field": "x/raw"},
        ("x/label", None),
        2,
    ),
    "only labels": (
        lambda file: file.update(label=np.arange(4)),
        {"data_field": "label"},
        ("label", None),
        1,
    ),
    "only text": (lambda file: file.update(a=["x", "y"]), {}, ("a", None), 1),
}


@pytest.mark.parametrize("case", CONTENTS)
def test_info_where_no_field_is_named(tmp_path: Path, case: str) -> None:
    """Of a file of which nothing says what its samples are, info counts none, and lists all that is
    in it, the largest first, with what opens it; and that opens it."""
    write, opens, first, number = CONTENTS[case]
    with h5py.File(tmp_path / "x.h5", "w") as file:
        write(file)
    found = json.loads(run("info", tmp_path / "x.h5", "--json").stdout)
    assert "count" not in found
    assert (found["opens"] or {}) == opens
    assert (found["listed"][0]["name"], found["listed"][0]["alike"]) == first
    assert (len(found["listed"]), found["unseen"]) == (number, 0)
    said = run("info", tmp_path / "x.h5").stdout
    assert first[0] in said
    assert ("... and 250 more (--json lists all)" in said) == (number == 300)
    if opens:
        with asyncreader.open(tmp_path / "x.h5", **opens) as ds:
            assert ds[0] is not None


def test_info_says_what_attributes_say(tmp_path: Path) -> None:
    """Units, scale and fill value of a data set stand beside it; members beside a table; no axis
    without values is listed; preview draws what info opens."""
    with h5py.File(tmp_path / "x.h5", "w") as file:
        _odd(file)
    listed = json.loads(run("info", tmp_path / "x.h5", "--json").stdout)["listed"]
    assert listed[0]["says"] == {"units": "K", "meaning": "scale_factor = 0.5, _FillValue = -9"}
    assert {one["name"]: one["dtype"] for one in listed[1:]} == {
        "table": "pt (float32), id (no number)",
        "deep/in/it/names": "text",
        "nothing": "float32",
    }
    drawn = run("preview", tmp_path / "x.h5", "--output", tmp_path / "x.png", "--json")
    assert drawn.exit_code == 0
    assert json.loads(drawn.stdout)["sheet"]["records"] == list(range(9))


def test_info_counts_no_bytes_of_values_that_lie_elsewhere(tmp_path: Path) -> None:
    """Of values of variable length a data set stores where they are: 16 bytes would be no size of
    a picture."""
    with h5py.File(tmp_path / "x.h5", "w") as file:
        pictures = file.create_dataset("pictures", 1, h5py.vlen_dtype("u1"))
        pictures[0] = np.zeros(5000, "u1")
        file["words"], file["names"] = ["word"] * 3, np.array(["ab", "c"], "S2")
        file.create_dataset("rows", 2, [("text", h5py.string_dtype()), ("x", "f4")])
    listed = json.loads(run("info", tmp_path / "x.h5", "--json").stdout)["listed"]
    stored = {one["name"]: one["bytes_stored"] for one in listed}
    assert stored == {"words": None, "rows": None, "pictures": None, "names": 4}


@pytest.mark.parametrize(
    ("kind", "write"),
    [
        ("cooler", lambda file: file.attrs.update(format="HDF5::Cooler")),
        ("NWB", lambda file: file.attrs.update(nwb_version="2.6.0")),
        ("NeXus", lambda file: file.create_group("entry").attrs.update(NX_class="NXentry")),
        ("SNIRF", lambda file: file.update({"formatVersion": "1.0", "nirs/x": np.zeros(3)})),
        ("Keras", lambda file: file.update({"model_weights/x": np.zeros(3)})),
    ],
)
def test_kinds_of_files_say_how_samples_are_had(tmp_path: Path, kind: str, write: Any) -> None:
    """Of files whose samples depend on the question, info and the error say how users get them."""
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["x"] = np.zeros((4, 2))
        write(file)
    found = json.loads(run("info", tmp_path / "x.h5", "--json").stdout)["kind"]
    assert found["name"] == kind
    assert found["samples"] in " ".join(run("info", tmp_path / "x.h5").stdout.split())
    with pytest.raises(asyncreader.ParamsError) as caught:
        asyncreader.open(tmp_path / "x.h5")
    assert f"{kind}: {found['samples']}" in str(caught.value)


@pytest.mark.parametrize(
    ("labels", "low", "high", "counts"),
    [
        (np.array([True, False, True, True]), 0, 1, [(0, 1), (1, 3)]),
        (np.array([-100, 100, 100, 0], np.int8), -100, 100, [(-100, 1), (0, 1), (100, 2)]),
        (np.array([2**63] * 4, np.uint64), 2**63, 2**63, None),
        (np.array([0, 10**9, 5, 5]), 0, 10**9, None),
        (np.array([0.5, np.nan, np.inf, 1]), None, None, None),
        (np.array([-np.inf, 1, 2, 3]), None, 3, None),
    ],
)
def test_info_of_odd_labels(tmp_path: Path, labels: Any, low: Any, high: Any, counts: Any) -> None:
    """Labels of any dtype and range are described, and never make JSON that others refuse."""
    hdf5(tmp_path / "odd.h5", data=np.zeros((4, 3), "u1"), labels=labels)
    result = run("info", tmp_path / "odd.h5", "--json")
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout, parse_constant=lambda name: pytest.fail(name))["labels"]
    assert (found["min"], found["max"]) == (low, high)
    if counts is None:
        assert found["counts"] is None
    else:
        assert [(c["label"], c["samples"]) for c in found["counts"]] == counts
    shown = table(run("info", tmp_path / "odd.h5").stdout)["labels"]
    assert ("not finite" in shown) == (None in (low, high))
    assert "?" not in shown


def test_info_of_many_classes(tmp_path: Path) -> None:
    """Only the first 20 of many classes are shown; --json has all."""
    hdf5(tmp_path / "many.h5", data=np.zeros((100, 3), "u1"), labels=np.arange(100))
    result = run("info", tmp_path / "many.h5")
    assert result.stdout.endswith("... and 80 more (--json lists all)\n")
    assert len(result.stdout.split("\n\n")[1].splitlines()) == 1 + 20 + 1
    facts = json.loads(run("info", tmp_path / "many.h5", "--json").stdout)
    assert len(facts["labels"]["counts"]) == 100
