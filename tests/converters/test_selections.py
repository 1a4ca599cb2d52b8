"""Which samples are packed, of one source or several, and their splits."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import lmdb
import numpy as np
import pytest
from command_sets import run
from fakes import hdf5
from PIL import Image
from split_sets import TEXT, contents, pictures, splits_of
from xxhash import xxh3_64_intdigest

import asyncreader
from asyncreader import AsyncReader, FormatError, ParamsError
from asyncreader.tools.verify import verify_file
from converters import convert

# -- samples and sources --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def jpegs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """30 JPEGs in three classes, packed with splits."""
    root = tmp_path_factory.mktemp("jpegs")
    pictures(root / "in", [f"{'abc'[n % 3]}/{n:02}.jpg" for n in range(30)])
    convert(root / "in", root / "all.h5", encoding="original", split=TEXT)
    return root


@pytest.mark.parametrize(
    ("what", "expected"),
    [
        ("0:7", lambda n, split: n < 7),
        (slice(None, None, 4), lambda n, split: n % 4 == 0),
        ("split=train", lambda n, split: split == "train"),
        ("train,val", lambda n, split: split in ("train", "val")),
        ("b,c", lambda n, split: n >= 10),
        ({"classes": ["a"]}, lambda n, split: n < 10),
        (["classes=a", "5:"], lambda n, split: 5 <= n < 10),
    ],
)
def test_selected_samples_are_copied(
    jpegs: Path, tmp_path: Path, what: Any, expected: Callable[[int, str], bool]
) -> None:
    """Slices, splits and classes: the bytes, classes, paths and splits of those that are chosen."""
    whole, found = contents(jpegs / "all.h5"), tmp_path / "some.lmdb"
    convert(jpegs / "all.h5", found, select=what)
    split = {path: name for name, paths in splits_of(jpegs / "all.h5").items() for path in paths}
    kept = {p: one for n, (p, one) in enumerate(whole.items()) if expected(n, split[p])}
    assert contents(found) == kept
    assert {p: n for n, paths in splits_of(found).items() for p in paths} == {
        p: split[p] for p in kept
    }
    with asyncreader.open(found) as some:
        assert some.classes == ("a", "b", "c")


def test_listed_paths(jpegs: Path, tmp_path: Path) -> None:
    """A CSV, with a header or without; of a folder as of its packed set; missing ones are named."""
    for text in ("path\nb/01.jpg\na/00.jpg,x\n", "a/00.jpg\nb/01.jpg"):
        (tmp_path / "l.csv").write_text(text)
        for src in (jpegs / "in", jpegs / "all.h5"):
            convert(src, tmp_path / "o.h5", select=str(tmp_path / "l.csv"), overwrite=True)
            assert list(contents(tmp_path / "o.h5")) == ["a/00.jpg", "b/01.jpg"]
    (tmp_path / "l.csv").write_text("a/00.jpg\nb/99.jpg\n")
    with pytest.raises(ParamsError, match="b/99"):
        convert(jpegs / "in", tmp_path / "no.h5", select=str(tmp_path / "l.csv"))


def test_drawn_samples(jpegs: Path, tmp_path: Path) -> None:
    """So many, the same from the folder and the set, smaller ones inside larger ones; stratified
    as many of each class, and what is left over is of the class that lacks most."""
    drawn = []
    for number, src in ((6, jpegs / "in"), (6, jpegs / "all.h5"), (15, jpegs / "all.h5")):
        convert(src, tmp_path / "d.h5", sample=number, overwrite=True)
        drawn.append({*contents(tmp_path / "d.h5")})
    assert drawn[0] == drawn[1] < drawn[2]
    assert list(map(len, drawn)) == [6, 6, 15]
    convert(jpegs / "all.h5", tmp_path / "s.h5", sample=10, stratify=True)
    with asyncreader.open(tmp_path / "s.h5") as found:
        assert sorted(np.bincount(found.labels[:, 0]).tolist()) == [3, 3, 4]
    with h5py.File(tmp_path / "unequal.h5", "w") as file:
        file["data"], file["labels"] = np.zeros((30, 2)), np.repeat(np.arange(3), (8, 13, 9))
    convert(tmp_path / "unequal.h5", tmp_path / "u.h5", sample=10, stratify=True)
    with asyncreader.open(tmp_path / "u.h5") as found:
        assert np.bincount(found.labels.reshape(-1)).tolist() == [3, 4, 3]
    with pytest.raises(ParamsError, match="larger than the dataset"):
        convert(jpegs / "all.h5", tmp_path / "no.h5", sample=31)


@pytest.mark.slow
def test_sources_become_one_set(jpegs: Path, tmp_path: Path) -> None:
    """A packed set, shards and a folder with other classes: bytes are copied, names are numbered
    anew, splits of one name are one."""
    more = pictures(tmp_path / "more", ["b/m1.jpg", "aa/m2.jpg"])
    convert(more, tmp_path / "shards", encoding="original", shards=2)
    extra = pictures(tmp_path / "extra", ["c/e1.jpg"])
    sources = [jpegs / "all.h5", tmp_path / "shards", extra]
    convert(sources, tmp_path / "one.lmdb", encoding="original")
    found = contents(tmp_path / "one.lmdb")
    assert found == {
        **contents(jpegs / "all.h5"),
        **contents(tmp_path / "shards"),
        "c/e1.jpg": ((extra / "c/e1.jpg").read_bytes(), "c"),
    }
    assert splits_of(tmp_path / "one.lmdb") == splits_of(jpegs / "all.h5")
    with asyncreader.open(tmp_path / "one.lmdb") as one:
        assert one.classes == ("a", "aa", "b", "c")
    convert(sources, tmp_path / "sh", encoding="original", shards=3, shuffle=1)
    assert contents(tmp_path / "sh") == found


@pytest.mark.parametrize("kind", ["packed", "folder", "csv", "splits", "joined"])
@pytest.mark.parametrize("chosen", ["select", "sample"])
def test_classes_need_not_name_what_is_left_out(
    jpegs: Path, tmp_path: Path, kind: str, chosen: str
) -> None:
    """Given classes name those of the samples that are chosen; one of another class is an error
    that names it, and so it is where all samples are converted."""
    names, csv = tmp_path / "names.txt", tmp_path / "labels.csv"
    files = [f"{'abc'[n % 3]}/{n:02}.jpg" for n in range(30)]
    csv.write_text("".join(f"{name},{name[0]}\n" for name in files))
    src: Any = jpegs / ("all.h5" if kind == "packed" else "in")
    given: dict[str, Any] = {"classes": names, "encoding": "original"}
    if kind == "csv":
        given["labels"] = csv
    elif kind == "splits":
        src = pictures(tmp_path / "parts", [f"{n % 2}/{name}" for n, name in enumerate(files)])
        given["splits_from_folders"] = True
    elif kind == "joined":
        src = [jpegs / "all.h5", pictures(tmp_path / "more", ["b/m1.jpg", "c/m2.jpg"])]
    names.write_text("c\nz\nb\n")
    with pytest.raises(FormatError, match=r"an unknown class.*'a'"):
        convert(src, tmp_path / "no.h5", **given)
    given |= {"select": "classes=b,c"} if chosen == "select" else {"sample": 1}
    if chosen == "sample":
        names.write_text("c\nz\nb\na\nq\n")
        convert(src, tmp_path / "one.h5", **given)
        (kept,) = {one for _, one in contents(tmp_path / "one.h5").values()}
        names.write_text(f"z\n{kept}\n")
    convert(src, tmp_path / "some.h5", **given)
    found = contents(tmp_path / "some.h5")
    assert {path[-8] for path in found} == {str(one) for _, one in found.values()}
    with asyncreader.open(tmp_path / "some.h5") as some:
        assert some.classes == tuple(names.read_text().split())
    names.write_text("z\ny\n")
    with pytest.raises(FormatError, match="an unknown class"):
        convert(src, tmp_path / "no.h5", **given)


@pytest.mark.parametrize("labels", [[1, -1, 0], [1, 2, 0], [0.5, 1, 0], None])
def test_given_classes_name_plain_numbers(tmp_path: Path, labels: list[float] | None) -> None:
    """Whole numbers of a set without names become the classes that are given, -1 none; ParamsError
    for labels that are no numbers of these, and for a set without labels."""
    (tmp_path / "names.txt").write_text("c\na\n")
    more = {} if labels is None else {"labels": labels}
    source = hdf5(tmp_path / "in.h5", data=np.zeros((3, 6, 6, 3), np.uint8), **more)
    if labels == [1, -1, 0]:
        convert(source, tmp_path / "out.h5", classes=tmp_path / "names.txt")
        with asyncreader.open(tmp_path / "out.h5") as found:
            assert found.classes == ("c", "a")
            assert found.labels[:, 0].tolist() == labels
    else:
        with pytest.raises(ParamsError, match=r"no numbers of the classes|have none"):
            convert(source, tmp_path / "out.h5", classes=tmp_path / "names.txt")


def test_what_does_not_go_together(jpegs: Path, tmp_path: Path) -> None:
    """Sources of other encodings or labels, and selections of nothing."""
    with pytest.raises(ParamsError, match="other encoding than the first"):
        convert([jpegs / "all.h5", jpegs / "in"], tmp_path / "no.h5")
    convert(jpegs / "in", tmp_path / "un.h5", encoding="original", no_labels=True)
    with pytest.raises(ParamsError, match="other labels than the first"):
        convert([jpegs / "all.h5", tmp_path / "un.h5"], tmp_path / "no.h5")
    for what, said in (
        ("100:", "leaves no sample"),
        ("split=dev", "a split that"),
        ("q", "nothing here"),
    ):
        with pytest.raises(ParamsError, match=said):
            convert(jpegs / "all.h5", tmp_path / "no.h5", select=what)


@pytest.mark.parametrize("target", ["both.h5", "both"])
def test_images_of_several_sizes_join_a_folder(tmp_path: Path, target: str) -> None:
    """A packed set of image files that differ in size and a folder of others are one set, in one
    file or as shards, and the files' bytes are kept."""
    folder = pictures(tmp_path / "in", [f"a/{n}.png" for n in range(4)])
    Image.new("RGB", (5, 3)).save(folder / "a" / "4.png")
    convert(folder, tmp_path / "packed.h5", encoding="original")
    shards: dict[str, Any] = {} if target.endswith(".h5") else {"shards": 2}
    (folder / "a" / "words.txt").touch()
    both = [tmp_path / "packed.h5", folder]
    made = convert(both, tmp_path / target, encoding="original", **shards)
    assert made.ignored["other suffix"] == 1
    kept = [path.read_bytes() for path in sorted((folder / "a").glob("*.png"))]
    with asyncreader.open(tmp_path / target) as found:
        assert [found.sample(n).stored["data"] for n in range(10)] == kept * 2


# -- splits ---------------------------------------------------------------------------------------


SHARES = {"train": 0.8, "val": 0.1, "test": 0.1}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """600 pictures in three classes, of which one is rare."""
    names = [f"{'aab'[n % 3] if n % 20 else 'rare'}/{n // 10}_{n}.png" for n in range(600)]
    return pictures(tmp_path_factory.mktemp("photos"), names)


@pytest.fixture(scope="module")
def packed(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same as one HDF5 file with splits."""
    target = tmp_path_factory.mktemp("packed") / "all.h5"
    convert(folder, target, split=TEXT)
    return target


@pytest.mark.slow
def test_a_split_is_a_function_of_the_path(folder: Path, packed: Path, tmp_path: Path) -> None:
    """By the documented hash, from a folder, its packed set, its shards and its LMDB alike; the
    shares are those that were asked for, within five standard deviations."""
    found = splits_of(packed)
    paths = [str(file.relative_to(folder)) for file in folder.rglob("*.png")]
    place = {path: xxh3_64_intdigest(path.encode()) / 2**64 for path in paths}
    expected = {
        "train": {p for p in paths if place[p] < 0.8},
        "val": {p for p in paths if 0.8 <= place[p] < 0.9},
        "test": {p for p in paths if place[p] >= 0.9},
    }
    assert found == expected
    for name, share in SHARES.items():
        deviation = math.sqrt(len(paths) * share * (1 - share))
        assert abs(len(found[name]) - share * len(paths)) < 5 * deviation
    convert(folder, tmp_path / "plain.lmdb")
    convert(tmp_path / "plain.lmdb", tmp_path / "of_set.h5", split=SHARES)
    convert(folder, tmp_path / "shards", split=TEXT, shards=4)
    convert(packed, tmp_path / "kept", shards=3, format="lmdb", shuffle=3)
    for other in ("of_set.h5", "shards", "kept"):
        assert splits_of(tmp_path / other) == found, other


def test_anyone_can_read_a_split(packed: Path, tmp_path: Path) -> None:
    """With h5py, and with lmdb: a number for each record, and the names in the description."""
    convert(packed, tmp_path / "all.lmdb")
    with h5py.File(packed) as file:
        names = json.loads(file.attrs["description"])["splits"]
        rows = file["splits"][()]
        paths = file["paths"][()]
    assert {p.decode() for p in paths[rows == names.index("val")]} == splits_of(packed)["val"]
    with lmdb.open(str(tmp_path / "all.lmdb"), readonly=True, max_dbs=9) as env:
        table = env.begin(db=env.open_db(b"splits", create=False)).get(b"table")
    np.testing.assert_array_equal(np.frombuffer(table, "<i8"), rows)


def test_stratified_classes_have_the_shares(folder: Path, tmp_path: Path) -> None:
    """Each class to one sample, the rare one too."""
    convert(folder, tmp_path / "s.h5", split=TEXT, stratify=True)
    with asyncreader.open(tmp_path / "s.h5") as found:
        totals = np.bincount(found.labels[:, 0])
        for name, rows in found.splits.items():
            counts = np.bincount(found.labels[rows, 0], minlength=totals.size)
            assert (np.abs(counts - totals * SHARES[name]) <= 1).all(), name


@pytest.mark.parametrize("stratify", [False, True])
def test_no_group_is_in_two_splits(folder: Path, tmp_path: Path, stratify: bool) -> None:
    """By a pattern in the path; the shares are near those asked for."""
    target = tmp_path / "g.h5"
    convert(folder, target, split=TEXT, group_by=r"/(\d+)_", stratify=stratify)
    found = splits_of(target)
    groups = {name: {p.split("/")[1].split("_")[0] for p in paths} for name, paths in found.items()}
    assert sum(map(len, groups.values())) == len(set().union(*groups.values())) == 60
    assert 400 < len(found["train"]) < 550
    if stratify:
        assert [len(found[name]) for name in SHARES] == [480, 60, 60]


@pytest.mark.slow
def test_groups_and_splits_of_a_csv(folder: Path, tmp_path: Path) -> None:
    """Columns that the header names; an empty cell is in no split; other columns stay labels."""
    paths = sorted(str(file.relative_to(folder)) for file in folder.rglob("*.png"))
    rows = [f"{p},{('x', '', 'y')[n % 3]},{n % 7},p{n // 50}" for n, p in enumerate(paths)]
    csv = tmp_path / "l.csv"
    csv.write_text("\n".join(["path,part,label,patient", *rows]))
    with pytest.raises(FormatError, match="empty label"):
        convert(folder, tmp_path / "no.h5", labels=csv, split=TEXT, group_by="patient")
    csv.write_text("\n".join(["path,part,label", *(row.rpartition(",")[0] for row in rows)]))
    convert(folder, tmp_path / "c.h5", labels=csv, split_column="part")
    assert splits_of(tmp_path / "c.h5") == {"x": set(paths[::3]), "y": set(paths[2::3])}
    with asyncreader.open(tmp_path / "c.h5") as found:
        assert sorted(np.unique(found.labels).tolist()) == list(range(7))
    cells = (row.split(",") for row in rows)
    csv.write_text("\n".join(["path,label,patient", *(f"{p},{n},{w}" for p, _, n, w in cells)]))
    convert(folder, tmp_path / "p.h5", labels=csv, split=TEXT, group_by="patient")
    patient = {row.split(",")[0]: row.rpartition(",")[2] for row in rows}
    groups = [{patient[p] for p in one} for one in splits_of(tmp_path / "p.h5").values()]
    assert sum(map(len, groups)) == len(set().union(*groups)) == 12
    with pytest.raises(ParamsError, match="has no column 'fold'"):
        convert(folder, tmp_path / "no.h5", labels=csv, split_column="fold")


def test_splits_from_folders(tmp_path: Path) -> None:
    """One set of class numbers, also where a split lacks a class; without labels, too."""
    names = ["train/dog/1.png", "train/cat/1.png", "val/dog/1.png", "val/emu/2.png"]
    photos = pictures(tmp_path / "in", names)
    with pytest.raises(FormatError, match="splits_from_folders"):
        convert(photos, tmp_path / "no.h5")
    report = convert(photos, tmp_path / "all.h5", splits_from_folders=True)
    assert report.classes == ("cat", "dog", "emu")
    assert splits_of(tmp_path / "all.h5") == {"train": {*names[:2]}, "val": {*names[2:]}}
    with asyncreader.open(tmp_path / "all.h5") as found:
        assert dict(zip(found.paths or (), found.labels[:, 0].tolist(), strict=True)) == {
            names[0]: 1, names[1]: 0, names[2]: 1, names[3]: 2,
        }  # fmt: skip
    convert(photos, tmp_path / "un.lmdb", splits_from_folders=True, no_labels=True)
    assert splits_of(tmp_path / "un.lmdb")["val"] == {*names[2:]}
    (tmp_path / "classes.txt").write_text("emu\ndog\ncat\n")
    convert(photos, tmp_path / "c.h5", splits_from_folders=True, classes=tmp_path / "classes.txt")
    with asyncreader.open(tmp_path / "c.h5") as found:
        assert found.labels[:, 0].tolist() == [2, 1, 1, 0]
    pictures(photos, ["val/3.png"])
    with pytest.raises(FormatError, match="lies in no class"):
        convert(photos, tmp_path / "no.h5", splits_from_folders=True)


@pytest.mark.slow
def test_a_share_beside_the_whole_is_empty(folder: Path, tmp_path: Path) -> None:
    """Shares may add up to a little more than 1: a split that begins where all hashes end has no
    samples."""
    for number, text in enumerate(("train=1,val=1e-9", "train=0.5,val=0.5,test=1e-20")):
        convert(folder, tmp_path / f"{number}.h5", split=text)
        *splits, last = splits_of(tmp_path / f"{number}.h5").values()
        assert sum(map(len, splits)) == 600
        assert not last


def test_the_report_says_which_folder_is_which_split(tmp_path: Path) -> None:
    """A note names each split with its images and classes, and the folders without images."""
    sharded: dict[str, Any] = {"shards": 2}
    names = ["train/dog/1.png", "train/cat/1.png", "train/cat/2.png", "masks/dog/1.png"]
    photos = pictures(tmp_path / "in", names)
    (photos / "extra").mkdir()
    words = "splits are the first-level folders: 'masks' (1 image in 1 class), 'train' (3 images"
    for target, shards in (("one.h5", {}), ("many", sharded)):
        report = convert(photos, tmp_path / target, splits_from_folders=True, **shards)
        assert report.notes == (f"{words} in 2 classes); no images in 'extra'",)
    report = convert(photos, tmp_path / "un.lmdb", splits_from_folders=True, no_labels=True)
    assert report.notes == (f"{words}); no images in 'extra'".replace(" in 1 class)", ")"),)
    done = run("convert", photos, tmp_path / "told.h5", "--splits-from-folders")
    assert f"note: {report.notes[0][:36]}" in done.stderr
    pictures(photos, [f"part{number:02}/dog/1.png" for number in range(20)])
    (note,) = convert(photos, tmp_path / "x.h5", splits_from_folders=True).notes
    assert "'part08' (1 image in 1 class), ... (22 in all); no images" in note


def test_splits_are_served_and_shown(packed: Path, tmp_path: Path) -> None:
    """subset="val" serves the records of the split; info and verify say how many each has; a
    damaged table is found when the set is opened."""
    with asyncreader.open(packed) as found:
        rows = found.splits["val"]
    with AsyncReader(path=packed, subset="val", batch_size=len(rows)) as reader:
        assert next(iter(reader)).indices.tolist() == rows.tolist()
    for command in ("info", "verify"):
        done = run(command, packed)
        assert done.exit_code == 0, done.output
        assert f"val {len(rows)}" in done.output, done.output
    assert verify_file(str(packed)).splits["val"] == len(rows)
    wrong = tmp_path / "wrong.h5"
    wrong.write_bytes(packed.read_bytes())
    with h5py.File(wrong, "r+") as file:
        file["splits"][0] = 1 - file["splits"][0]
    with pytest.raises(FormatError, match="its splits do not match their digest"):
        AsyncReader(path=wrong)
    with pytest.raises(ParamsError, match="no split 'dev'"):
        AsyncReader(path=packed, subset="dev")
