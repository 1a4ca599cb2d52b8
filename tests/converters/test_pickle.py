"""convert --allow-pickle: what it packs, what it still refuses, and that it says what it does."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import foreign_sets as foreign
import numpy as np
import pytest
from click.testing import CliRunner
from fakes import encoded, paint, pictures

from asyncreader import FormatError, ParamsError, SampleError
from asyncreader.cli import main as cli
from asyncreader.pixels.specs import OutputSpec
from asyncreader.sources import Inspector, open_source
from asyncreader.testing.contract import fill_rows
from converters import convert

COUNT = 12
IMAGES = pictures(COUNT, (9, 11, 3))
FILES = foreign.files(IMAGES)


def write(folder: Path, points: list[Any], protocol: int = 4) -> str:
    entries = foreign.tensorpack(points, "{}", lambda value: pickle.dumps(value, protocol))
    return foreign.write_lmdb(folder / "old.lmdb", entries, subdir=False)


def packed(path: str, out: Path, **options: Any) -> tuple[np.ndarray, np.ndarray | None]:
    with pytest.warns(UserWarning, match="a pickle can run any code"):
        report = convert(path, out, allow_pickle=True, **options)
    assert report.count == COUNT
    source = open_source(out)
    assert source.checked
    pixels, _, errors = fill_rows(source, OutputSpec(layout="NHWC"), np.arange(COUNT))
    assert errors == ()
    return pixels, source.labels


POINTS: dict[str, list[Any]] = {
    "bytes and int": [(f, i) for i, f in enumerate(FILES)],
    "folder2lmdb": [([f], np.array([i])) for i, f in enumerate(FILES)],
    "tensorpack": [[np.frombuffer(f, np.uint8), i] for i, f in enumerate(FILES)],
    "bytearray": [(bytearray(f), np.int32(i)) for i, f in enumerate(FILES)],
    "dict": [{"data": f, "labels": i, "extra": {1.5, "x"}} for i, f in enumerate(FILES)],
    "pixels": [(image, i) for i, image in enumerate(IMAGES)],
    "turned pixels": [(image.transpose(1, 0, 2).copy("F"), i) for i, image in enumerate(IMAGES)],
}


@pytest.mark.parametrize("protocol", [2, 4, 5])
@pytest.mark.parametrize("name", POINTS)
def test_pickled_sets_are_packed(tmp_path: Path, name: str, protocol: int) -> None:
    """Files as bytes or arrays, or pixels, with their labels, whatever protocol wrote them."""
    path = write(tmp_path, POINTS[name], protocol)
    pixels, labels = packed(path, tmp_path / "new.h5")
    wanted = IMAGES.transpose(0, 2, 1, 3) if "turned" in name else IMAGES
    np.testing.assert_array_equal(pixels, wanted)
    assert labels is not None
    assert (labels.shape, labels.dtype) == ((COUNT, 1), np.int64)
    np.testing.assert_array_equal(labels[:, 0], np.arange(COUNT))


def test_labels_of_all_kinds(tmp_path: Path) -> None:
    """Text becomes sorted classes, floats stay, rows of numbers are kept; or none at all."""
    texts = [f"kind {(i * 5) % 7}" for i in range(COUNT)]
    path = write(tmp_path, list(zip(FILES, texts, strict=True)))
    _, labels = packed(path, tmp_path / "a.h5", jobs=4, shuffle=3)
    source = open_source(tmp_path / "a.h5")
    assert source.facts.classes == tuple(sorted(set(texts)))
    assert labels is not None
    names = [source.facts.classes[n] for n in labels[:, 0]]
    order = [FILES.index(Inspector(source.first).bytes(i)) for i in range(COUNT)]
    assert names == [texts[i] for i in order]
    assert order != sorted(order)
    os.remove(path)
    path = write(tmp_path, [(f, [i, 0.5]) for i, f in enumerate(FILES)])
    _, labels = packed(path, tmp_path / "b.h5")
    np.testing.assert_array_equal(labels, [[i, 0.5] for i in range(COUNT)])
    assert packed(path, tmp_path / "c.h5", no_labels=True)[1] is None
    assert packed(path, tmp_path / "d.h5", params={"labels_field": None})[1] is None


def test_a_nul_in_a_label_is_not_the_disks_fault(tmp_path: Path) -> None:
    """A class name with a NUL, which no packed set can hold, is named with its record."""
    path = write(tmp_path, [(f, "kind" + "\0" * (i == 7)) for i, f in enumerate(FILES)])
    with (
        pytest.warns(UserWarning, match="pickle"),
        pytest.raises(SampleError, match="NUL") as caught,
    ):
        convert(path, tmp_path / "a.h5", allow_pickle=True)
    assert caught.value.index == 7


def test_processed_like_a_folder(tmp_path: Path) -> None:
    """Encoding, size and channels can be had; fields go by number or name."""
    points = [{"y": i, "x": image} for i, image in enumerate(IMAGES)]
    path = write(tmp_path, points)
    params = {"data_field": "x", "labels_field": "y"}
    pixels, labels = packed(path, tmp_path / "a.lmdb", params=params, size=(4, 5), encoding="png")
    assert pixels.shape == (COUNT, 4, 5, 3)
    assert labels is not None
    with (
        pytest.warns(UserWarning, match="pickle"),
        pytest.raises(ParamsError, match=r"no field 'data'.*found y, x.*-p data_field"),
    ):
        convert(path, tmp_path / "b.h5", allow_pickle=True)
    with (
        pytest.warns(UserWarning, match="pickle"),
        pytest.raises(ParamsError, match="keeps image files' own"),
    ):
        convert(path, tmp_path / "b.h5", allow_pickle=True, params=params, encoding="original")
    with pytest.raises(ParamsError, match="for folders of images"):
        convert(path, tmp_path / "b.h5", allow_pickle=True, labels="x.csv")


class Names:
    """Pickles as the call of a function, with text."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = function, arguments

    def __reduce__(self) -> Any:
        return self.call


@pytest.mark.parametrize(
    "hostile",
    [
        lambda mark: Names(os.system, f"touch {mark}"),
        lambda mark: Names(Path.touch, Path(mark)),
        lambda mark: Names(eval, f"open({mark!r}, 'w')"),
        lambda mark: Names(getattr, 1, "real"),
        lambda mark: [Names(print, "x")],
    ],
)
def test_no_code_is_run(tmp_path: Path, hostile: Any) -> None:
    """Even where it is allowed, a pickle may name nothing but plain values and numpy arrays."""
    mark = tmp_path / "mark"
    points: list[Any] = [(f, i) for i, f in enumerate(FILES)]
    points[3] = (FILES[3], hostile(str(mark)))
    path = write(tmp_path, points)
    with (
        pytest.warns(UserWarning, match="pickle"),
        pytest.raises(SampleError, match=r"cannot be unpickled.*record 3, key 3.*not allowed"),
    ):
        convert(path, tmp_path / "new.h5", allow_pickle=True)
    assert not (tmp_path / "new.h5").exists()
    with pytest.warns(UserWarning, match="pickle"):
        report = convert(path, tmp_path / "new.h5", allow_pickle=True, skip_bad=True)
    assert (report.count, len(report.skipped)) == (COUNT - 1, 1)
    assert not mark.exists()


@pytest.mark.parametrize(
    ("point", "match"),
    [
        (b"\x80\x04truncated", "cannot be unpickled"),
        (pickle.dumps((b"no picture", 1)), "not an image"),
        (pickle.dumps((FILES[0][:50], 1)), "truncated|damaged"),
        (pickle.dumps((7, 1)), "neither bytes nor a uint8 array"),
        (pickle.dumps((np.zeros((3, 3, 3)), 1)), "neither bytes nor a uint8 array"),
        (pickle.dumps((np.array(["x"], object), 1)), "neither bytes nor a uint8 array"),
        (pickle.dumps((np.zeros((3, 3, 3, 3), "u1"), 1)), "no \\(H, W, 1 or 3\\) image"),
        (pickle.dumps((FILES[0], [1, 2])), "of another kind or length"),
        (pickle.dumps((FILES[0], "text")), "of another kind or length"),
        (pickle.dumps((FILES[0],)), "without field 1"),
        (pickle.dumps(7), "without field 1"),
    ],
)
def test_damaged_samples(tmp_path: Path, point: bytes, match: str) -> None:
    """What cannot be packed is a SampleError that names file, record and key."""
    entries = dict(foreign.tensorpack([(f, i) for i, f in enumerate(FILES)], dumps=pickle.dumps))
    entries[b"00000005"] = point
    path = foreign.write_lmdb(tmp_path / "set", entries)
    with (
        pytest.warns(UserWarning, match="pickle"),
        pytest.raises(SampleError, match=match) as caught,
    ):
        convert(path, tmp_path / "new.h5", allow_pickle=True)
    error = caught.value
    assert (error.path, error.index, error.key) == (path, 5, "00000005")


def test_sizes_that_differ(tmp_path: Path) -> None:
    """Raw pixels of different shapes need a size, and the error says so."""
    path = write(tmp_path, [(paint(1, (5 + i % 2, 6, 3))[0], i) for i in range(COUNT)])
    with pytest.warns(UserWarning, match="pickle"), pytest.raises(FormatError, match="--size HxW"):
        convert(path, tmp_path / "new.h5", allow_pickle=True)
    assert packed(path, tmp_path / "new.h5", size=(4, 4))[0].shape == (COUNT, 4, 4, 3)


def test_only_where_it_is_needed(tmp_path: Path) -> None:
    """allow_pickle changes nothing for sets without pickles, and says nothing then."""
    path = foreign.write_lmdb(tmp_path / "set", {b"%d" % i: f for i, f in enumerate(FILES)})
    assert convert(path, tmp_path / "new.h5", allow_pickle=True).count == COUNT
    (tmp_path / "photos" / "a").mkdir(parents=True)
    (tmp_path / "photos" / "a" / "1.png").write_bytes(encoded(IMAGES[0]))
    assert convert(tmp_path / "photos", tmp_path / "b.h5", allow_pickle=True).count == 1


@pytest.mark.filterwarnings("always")
def test_the_command(tmp_path: Path) -> None:
    """The command that the refusal names does it, with a warning on stderr."""
    path = write(tmp_path, POINTS["folder2lmdb"])
    out = str(tmp_path / "new.h5")
    refused = CliRunner().invoke(cli.cli, ["convert", path, out])
    assert refused.exit_code == 1
    assert f"asyncreader convert {path} NEW.h5 --allow-pickle" in refused.stderr
    done = CliRunner().invoke(cli.cli, ["convert", path, out, "--allow-pickle", "--quiet"])
    assert (done.exit_code, done.stdout) == (0, "")
    assert done.stderr.startswith("warning: ")
    assert "only with a dataset whose writer you trust" in done.stderr
