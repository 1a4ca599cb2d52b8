"""Parts of a set and several sources as one set: which samples, their labels, their bytes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from command_sets import hdf5
from PIL import Image
from split_sets import TEXT, contents, pictures, splits_of

import asyncreader
from asyncreader import FormatError, ParamsError
from converters import convert


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
