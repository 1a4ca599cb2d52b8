"""Mistakes in what is asked of ``convert``: each is one error that names what is wrong, or what to
write, and nothing is written."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from converter_corpus import listed

from asyncreader import ParamsError, SourceNotFoundError
from asyncreader.system.text import plain_name
from converters import convert
from converters.check_options import _HABITS
from converters.options import OPTIONS

SPLIT = {"split": "train=0.8,val=0.1,test=0.1"}
GOOD = np.zeros((3, 4), "f4")
PHOTO = np.zeros((8, 8, 3), "u1")

#: Options that are wrong for the images of a folder: the error names the first of them.
OF_IMAGES: list[dict[str, Any]] = [
    *({"encoding": "webp"}, {"size": ""}, {"size": "axb"}, {"size": (0, 5)}, {"size": (5,)}),
    *({"size": True}, {"size": 70_000}, {"resize": "stretch"}, {"size": 5, "resize": "pad"}),
    *({"quality": 0}, {"quality": 101}, {"quality": 9.5}, {"quality": 50}),
    *({"quality": 50, "encoding": "png"}, {"channels": 2}, {"channels": 4}, {"jobs": 0}),
    *({"shuffle": "yes"}, {"shuffle": True}, {"compression": "lzf"}, {"skip_bad": 1}),
    *({"compression": "gzip", "encoding": "jpeg"}, {"compression": "gzip", "format": "lmdb"}),
    *({"chunk": 4}, {"chunk": 0, "compression": "gzip"}, {"format": "zarr"}, {"labels": 3}),
    *({"size": 5, "encoding": "original"}, {"resize": "pad"}, {"resize": "squeeze", "size": 5}),
    *({"no_labels": True, "labels": "x.csv"}, {"no_labels": True, "classes": "x.txt"}),
    *({"bits": 12}, {"bits": 32}, {"bits": True}, {"bits": "16"}, {"shards": 0}),
    {"stratify": True},
]
#: What is asked: source, target, options, and what the error says.
ASKED: list[tuple[Any, str, dict[str, Any], str]] = [
    *(("folder", "out.h5", options, next(iter(options))) for options in OF_IMAGES),
    *(("folder", "out.h5", {"bits": 16, "channels": 3, **more}, "bits 16")
      for more in ({}, {"encoding": "png"})),
    ("folder", "out.h5", {"bits": 16, "encoding": "jpeg"}, "cannot keep 16"),
    ("folder", "out.dat", {}, "suffix"),
    *(("folder", "out.h5", {"encoding": name, "restarts": True},
       "applies only to encodings 'jpeg' and 'original'") for name in ("png", "raw")),
    ("folder", "out.h5", {"size": (8, 8), "boxes_field": "boxes"},
     r"(?s)fields of a dataset.*a folder"),
    # shards
    ("folder", "set", {"shards": 24}, "more shards than there are samples"),
    ("folder", "set", {"shards": 2, "shard_size": 5}, "contradict"),
    *(("folder", name, {"shards": 2}, "is a folder") for name in ("set.h5", "set.lmdb")),
    ("folder", "set.h5", {"resume": True}, "goes with shards"),
    *(("folder", "set", {"shard_size": size}, "shard_size")
      for size in ("1 apple", "1iB", "3.6kB")),
    # splits
    ("folder", "out.h5", {"split": "train=0.8,val=0.1"}, "add up to 1"),
    ("folder", "out.h5", {"split": "train=1.2,val=-0.2"}, "shares above 0"),
    ("folder", "out.h5", {"split": "train"}, "such as 'train=0.8"),
    ("folder", "out.h5", {**SPLIT, "splits_from_folders": True}, "contradict"),
    ("folder", "out.h5", {"split_column": "part"}, "split_column goes with labels"),
    ("folder", "out.h5", {**SPLIT, "group_by": "(["}, "no regular expression"),
    ("folder", "out.h5", {**SPLIT, "group_by": "q+"}, "not found in a path"),
    ("folder", "out.h5", {**SPLIT, "stratify": True, "no_labels": True}, "needs one class"),
    # packed sets
    ("raw.h5", "out.lmdb", {"encoding": "original"}, "original"),
    ("original.h5", "out.lmdb", {"size": 5}, "size"),
    *(("raw.h5", "out.lmdb", options, next(iter(options))) for options in (
        {"compression": "gzip"}, {"labels": "x.csv"}, {"splits_from_folders": True},
        {"follow_links": True})),
    ("raw.h5", "out.h5", {"fields": {"mask": "."}}, "for folders of images"),
    # URLs: before a request is made, and no secret is repeated
    *((src, dst, {}, "user name, password or query") for src, dst in (
        ("s3://key:topsecret@b/x", "o.h5"), ("https://h/x?sig=topsecret", "o.h5"),
        ("here", "https://me:topsecret@h/o.h5"))),
    ("here", "s3://b/train.h5", {}, "must be on a disk"),
    ("s3://b/x", "o.h5", {"follow_links": True}, "follow_links is for folders on a disk"),
    ("s3://b/x", "o.h5", {"fields": {"mask": "s3://b/m"}}, "must be on this machine"),
    ("here", "o.h5", {"labels": "https://h/l.csv?token=topsecret"}, "password or query"),
    ("ftp://h/x", "o.h5", {}, "unknown URL scheme"),
    # options of elsewhere, and slips of the keyboard
    *(("photos", "out.h5", {name: 4}, f"{name}.*{says}") for name, says in {
        "qualty": "did you mean 'quality'", "sized": "did you mean 'size'",
        "imageSize": "write size=", "num_workers": "write jobs=", "force": "write overwrite=",
        "grayscale": "write channels=1", "data_field": "write params={'data_field': ...}",
        **dict.fromkeys(("recursive", "compress_level"), r"help\(convert\) list all options"),
    }.items()),
    # samples of a program
    *((source, "out.h5", {}, ".") for source in (
        5, None, np.array(3), {}, [{"data": GOOD, 5: 1}], {"data": GOOD, 5: GOOD})),
    *(([(GOOD, label)], "out.h5", {}, "labels of this shape")
      for label in (np.zeros(0), np.zeros((3, 4)))),
    ([(1, 2, 3)], "out.h5", {}, "tuple of 3"),
    ([{"x": GOOD}], "out.h5", {}, "which part is the data"),
    *(([(data, 0)], "out.h5", options, says) for data, options, says in (
        (GOOD, {"encoding": "jpeg"}, "only images can be encoded"),
        (GOOD, {"size": 8}, "only images"), (GOOD, {"labels": "x.csv"}, "folders of images"),
        (GOOD, {"encodings": "raw"}, "unknown option"),
        (PHOTO, {"encoding": "original"}, "own bytes"),
        (GOOD, {"classes": ["a", "a"]}, "different names"))),
    ([(GOOD, "c")], "out.h5", {"classes": ["a", "b"]}, "one of the classes"),
    *(([GOOD], "out.h5", options, "variable_length|different length") for options in (
        {"variable_length": True, "encoding": "jpeg"}, {"variable_length": "data", "size": 8},
        {"variable_length": 3}, {"variable_length": [3]})),
    *((wrong, "out.h5", {}, "another number of rows") for wrong in (
        (GOOD, ["a", "b"]), (GOOD, np.arange(4)), {"data": GOOD, "label": [1]})),
]  # fmt: skip


@pytest.fixture(scope="module")
def sources(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A folder of images, and sets of it as pixels and as the files' bytes."""
    root = tmp_path_factory.mktemp("sets")
    for encoding in ("raw", "original"):
        convert(folder, root / f"{encoding}.h5", encoding=encoding)  # type: ignore[arg-type]
    return {"folder": folder, **{path.name: path for path in root.iterdir()}}


@pytest.mark.parametrize(("src", "dst", "options", "says"), ASKED)
def test_what_cannot_be_asked(
    sources: dict[str, Path], tmp_path: Path, src: Any, dst: str, options: Any, says: str
) -> None:
    """It is a ParamsError before a sample is packed."""
    source = sources.get(src, src) if isinstance(src, str) else src
    target = dst if "://" in dst else tmp_path / dst
    with pytest.raises(ParamsError, match=says) as caught:
        convert(source, target, **options)
    assert "topsecret" not in f"{caught.value}{caught.value!r}{caught.value.fields()}"
    assert listed(tmp_path) == []


def test_no_folder_for_the_target(folder: Path, tmp_path: Path) -> None:
    """A target in a folder that does not exist is an error at once."""
    with pytest.raises(SourceNotFoundError, match="folder does not exist"):
        convert(folder, tmp_path / "no" / "out.h5")


def test_names_of_options_from_elsewhere_hide_none() -> None:
    """What is written instead of a foreign name is an option, and no option has such a name."""
    for foreign, ours in _HABITS.items():
        assert foreign not in map(plain_name, OPTIONS)
        assert ours.partition("=")[0] in OPTIONS
