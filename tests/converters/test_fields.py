"""Masks beside pictures: found by name, packed without loss, cut and resized as pictures are."""

import io
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import lmdb
import numpy as np
import pytest
from command_sets import run
from converter_corpus import put
from fakes import data_file, hdf5
from foreign_sets import pyxis_sample, write_pyxis
from PIL import Image

import asyncreader
from asyncreader import AsyncReader, DecodeError, FormatError, ParamsError, SampleError, Writer
from asyncreader.errors import SourceNotFoundError
from asyncreader.tools.verify import verify_file
from converters import convert
from converters.encode import as_stored
from converters.inputs.folder import MaskFolder
from converters.temp_tables import Strings

HIGH, WIDE = 40, 56
NAMES = ("cat/1", "cat/10", "cat/2", "dog/a-1", "dog/a", "dog/sub/x")
#: Orientation 6: stored lying on its side.
TURNED = 6


def picture(number: int, high: int = HIGH, wide: int = WIDE) -> np.ndarray:
    """A smooth picture that says where its pixels are, and a number."""
    rows, columns = np.mgrid[0:high, 0:wide]
    return np.stack([rows * 5 % 256, columns * 4 % 256, rows * 0 + number], 2).astype(np.uint8)


def classes(number: int, high: int = HIGH, wide: int = WIDE) -> np.ndarray:
    """Its mask: blocks of classes 0 to 19, and the number in the corner."""
    rows, columns = np.mgrid[0:high, 0:wide]
    mask = ((rows // 8 + columns // 8 * 3) % 20).astype(np.uint8)
    mask[0, 0] = number
    return mask


def save(path: Path, pixels: np.ndarray, mode: str | None = None, **options: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    image = Image.fromarray(pixels)
    if mode == "P":
        image = Image.frombytes("P", image.size, np.ascontiguousarray(pixels).tobytes())
        image.putpalette([(37 * i + 11) % 256 for i in range(768)])
    image.save(path, **options)


def exif(orientation: int) -> bytes:
    found = Image.Exif()
    found[0x0112] = orientation
    return found.tobytes()


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    """Six pictures, with palette masks (Pascal VOC's kind) under the same names."""
    pictures, masks = tmp_path / "photos", tmp_path / "masks"
    for number, name in enumerate(NAMES):
        save(pictures / f"{name}.png", picture(number))
        save(masks / f"{name}.png", classes(number), mode="P")
    return pictures, masks


def all_of(path: Any, **params: Any) -> tuple[np.ndarray, np.ndarray]:
    """All pictures and masks, (N, H, W, C)."""
    fields = {"data_field": ["data", "mask"], "layout": "NHWC", "last_batch": "short", **params}
    with AsyncReader({"path": path, "batch_size": 64, **fields}) as reader:
        (batch,) = reader
        image, mask = batch.data
        return image.copy(), mask.copy()


ENCODINGS: dict[str, dict[str, Any]] = {
    "raw": {},
    "gzip": {"compression": "gzip", "chunk": 4},
    "png": {"encoding": "png"},
    "jpeg": {"encoding": "jpeg"},
    "yuv420": {"encoding": "yuv420"},
    "original": {"encoding": "original"},
}


#: LMDB has no compression.
KINDS = [(name, kind) for name in ENCODINGS for kind in (".h5", ".lmdb")]
KINDS.remove(("gzip", ".lmdb"))


@pytest.mark.some(2)
@pytest.mark.parametrize(("encoding", "suffix"), KINDS)
def test_masks_are_kept_to_the_bit(
    folders: tuple[Path, Path], tmp_path: Path, encoding: str, suffix: str
) -> None:
    """In every encoding and container, in the pictures' order, checked: palette indices are uint8,
    masks of 16 bits uint16 (depth, instances), and coloured ones have three channels."""
    pictures, masks = folders
    depth = [(picture(n)[..., 0].astype(np.uint16) * 250 + n) for n in range(6)]
    for number, name in enumerate(NAMES):
        save(tmp_path / "depth" / f"{name}.tif", depth[number])
        save(tmp_path / "panoptic" / f"{name}.png", picture(number + 100))
    fields = {"mask": masks, "depth": tmp_path / "depth", "panoptic": tmp_path / "panoptic"}
    path, same = tmp_path / f"set{suffix}", tmp_path / f"again{suffix}"
    report = convert(pictures, path, fields=fields, jobs=2, **ENCODINGS[encoding])
    assert (report.count, report.skipped) == (6, ())
    asked: Any = {"data_field": ["data", *fields], "layout": "NHWC", "batch_size": 6}
    with AsyncReader(path=path, **asked) as reader:
        (batch,) = reader
        image, mask, deep, colours = batch.data
        assert (mask.dtype, deep.dtype) == (np.uint8, np.uint16)
        np.testing.assert_array_equal(mask[..., 0], [classes(n) for n in range(6)])
        np.testing.assert_array_equal(deep[..., 0], depth)
        np.testing.assert_array_equal(colours, [picture(n + 100) for n in range(6)])
        if encoding not in ("jpeg", "yuv420"):
            np.testing.assert_array_equal(image, [picture(n) for n in range(6)])
    checked = verify_file(str(path), decode=True)
    assert (checked.ok, checked.checked) == (True, 24)
    convert(pictures, same, fields=fields, jobs=1, **ENCODINGS[encoding])
    assert data_file(path).read_bytes() == data_file(same).read_bytes()


def test_what_others_read(folders: tuple[Path, Path], tmp_path: Path) -> None:
    """h5py and lmdb read the masks by their name, as the description says."""
    pictures, masks = folders
    convert(pictures, tmp_path / "raw.h5", fields={"mask": masks})
    with h5py.File(tmp_path / "raw.h5") as file:
        assert (file["mask"].shape, file["mask"].dtype) == ((6, HIGH, WIDE, 1), np.uint8)
        assert file["mask"].chunks is None
        np.testing.assert_array_equal(file["mask"][3, :, :, 0], classes(3))
        assert file["mask.checksums"].shape == (6,)
        described = {"name": "mask", "encoding": "raw", "shape": [HIGH, WIDE, 1]}
        described |= {"channels": 1, "dtype": "uint8"}
        assert json.loads(file.attrs["description"])["fields"] == [described]
    convert(pictures, tmp_path / "png.h5", fields={"mask": masks}, encoding="original")
    with h5py.File(tmp_path / "png.h5") as file:
        start, stop = file["mask.offsets"][3:5]
        png = Image.open(io.BytesIO(file["mask"][start:stop].tobytes()))
        assert (png.format, png.mode) == ("PNG", "L")
        np.testing.assert_array_equal(np.asarray(png), classes(3))
    convert(pictures, tmp_path / "set.lmdb", fields={"mask": masks})
    with lmdb.open(str(tmp_path / "set.lmdb"), max_dbs=8, lock=False) as env, env.begin() as txn:
        meta = json.loads(txn.get(b"meta", db=env.open_db(b"meta", txn, create=False)))
        assert meta["fields"] == [described]
        raw = txn.get(b"0000000003", db=env.open_db(b"mask", txn, create=False))
        np.testing.assert_array_equal(np.frombuffer(raw, np.uint8).reshape(HIGH, WIDE), classes(3))


# -- kinds of masks ------------------------------------------------------------------------------


def test_masks_of_two_kinds_are_refused(folders: tuple[Path, Path], tmp_path: Path) -> None:
    """One field has one dtype and one number of channels; the error names the odd picture."""
    pictures, masks = folders
    save(masks / "dog/a.png", classes(3).astype(np.uint16))
    with pytest.raises(FormatError, match=r"'mask'.*dog/a.*uint16, 1 channel.*uint8, 1 channel"):
        convert(pictures, tmp_path / "set.h5", fields={"mask": masks}, jobs=2)
    assert sorted(os.listdir(tmp_path)) == ["masks", "photos"]


def test_numbers_that_fit() -> None:
    """Whole numbers of any width are packed as uint16 if they fit, and refused if not."""
    small = np.array([[[0], [65_535]]])
    for dtype in ("int64", "uint32", "int32"):
        found = as_stored("mask", small.astype(dtype))
        assert found.dtype == np.uint16
        np.testing.assert_array_equal(found, small)
    assert as_stored("mask", small.astype(bool)).dtype == np.uint8
    for bad in (small - 1, small + 1, small * 0.5, np.zeros((4, 4, 2), np.uint8)):
        with pytest.raises(SampleError, match="whole numbers from 0 to 65535"):
            as_stored("mask", bad)


# -- geometry ------------------------------------------------------------------------------------


@pytest.mark.parametrize("encoding", ["raw", "png"])
@pytest.mark.parametrize(
    ("resize", "size"),
    [
        *(("crop", 30), ("crop", (20, 24)), ("crop", (60, 44)), ("pad", (20, 24))),
        *(("pad", (60, 44)), ("squeeze", (20, 24)), ("squeeze", (60, 44))),
    ],
)
def test_masks_are_resized_as_the_pictures(
    tmp_path: Path, resize: str, size: Any, encoding: str
) -> None:
    """crop, pad and squeeze take the same part to the same place; values are never mixed."""
    for number in range(2):
        save(tmp_path / "photos" / f"{number}.png", picture(number))
        rows, columns = np.mgrid[0:HIGH, 0:WIDE]
        mask = (rows * 256 + columns + 257).astype(np.uint16)  # 0 is padding
        save(tmp_path / "masks" / f"{number}.png", mask)
    how = {"size": size, "resize": resize, "encoding": encoding, "no_labels": True}
    convert(tmp_path / "photos", tmp_path / "set.h5", fields={"mask": tmp_path / "masks"}, **how)
    image, mask = (array.astype(int) for array in all_of(tmp_path / "set.h5"))
    mask = mask[..., 0]
    inside = mask > 0
    assert inside.all() == (resize != "pad")
    away = np.abs(image[..., 0] - 5 * (mask // 256 - 1))[inside]
    aside = np.abs(image[..., 1] - 4 * (mask % 256 - 1))[inside]
    assert max(away.max(), aside.max()) <= 12  # two pixels at the edge of bicubic's kernel
    assert max(away.mean(), aside.mean()) < 2.5
    assert (image[~inside] == 0).all()


def test_orientation(tmp_path: Path) -> None:
    """A picture's EXIF turns the picture; the mask is upright, or has an orientation of its own."""
    lying = np.rot90(picture(0), 1)
    save(tmp_path / "photos/0.jpg", lying, exif=exif(TURNED), quality=98, subsampling=0)
    save(tmp_path / "photos/1.jpg", lying, exif=exif(TURNED), quality=98, subsampling=0)
    save(tmp_path / "masks/0.png", classes(0), mode="P")
    save(tmp_path / "masks/1.png", np.rot90(classes(0), 1).copy(), mode="P", exif=exif(TURNED))
    for encoding in ("raw", "original"):
        path = tmp_path / f"{encoding}.h5"
        fields = {"mask": tmp_path / "masks"}
        convert(tmp_path / "photos", path, fields=fields, encoding=encoding, no_labels=True)
        image, mask = all_of(path)
        np.testing.assert_array_equal(mask[..., 0], [classes(0)] * 2)
        assert np.abs(image[0].astype(int) - picture(0)).mean() < 4
    save(tmp_path / "masks/1.png", np.rot90(classes(0), 1).copy(), mode="P")
    with pytest.raises(SampleError, match=r"differ in size.*masks/1.png.*56 x 40.*40 x 56"):
        convert(tmp_path / "photos", tmp_path / "x.h5", fields=fields, no_labels=True)


# -- what goes with what -------------------------------------------------------------------------


def matched(folder: Path, pictures: list[str], masks: list[str]) -> MaskFolder:
    put(folder, dict.fromkeys(masks, b""))
    names = Strings()
    for name in pictures:
        names.append(name.encode())
    return MaskFolder("mask", str(folder), names.freeze(), False, False)


def test_masks_are_found_by_path_without_suffix(tmp_path: Path) -> None:
    """Whatever the suffixes, and however names sort with and without them; extras are counted."""
    pairs = {
        "a-1.jpg": "a-1.tiff",
        "a.b.jpg": "a.b.png",
        "a.jpeg": "a.png",
        "a/1.png": "a/1.gif",
        "a/1/2.jpg": "a/1/2.png",
        "a/10.PNG": "a/10.bmp",
        "a/2.tif": "a/2.png",
        "é.bmp": "é.PNG",
    }
    extra = ["0.png", "a/1/3.png", "a/3.png", "z.png", "b/a.png", ".hidden.png", "a/1.txt"]
    found = matched(tmp_path, list(pairs), [*pairs.values(), *extra])
    assert [found.paths[n].decode() for n in range(len(pairs))] == list(pairs.values())
    assert found.extra == 5


def test_a_picture_with_two_masks(tmp_path: Path) -> None:
    """Which one is meant cannot be known; but two pictures may share one."""
    with pytest.raises(FormatError, match=r"two of field 'mask'.*1\.png.*1\.tif"):
        matched(tmp_path / "two", ["1.jpg"], ["1.png", "1.tif"])
    found = matched(tmp_path / "one", ["2.bmp", "2.jpg"], ["1.png", "1.tif", "2.png"])
    assert [found.paths[n] for n in range(2)] == [b"2.png"] * 2
    assert found.extra == 2


def test_a_missing_mask_is_named_before_anything_is_packed(
    folders: tuple[Path, Path], tmp_path: Path
) -> None:
    """The first picture without one, how many there are, and what was looked for."""
    pictures, masks = folders
    (masks / "cat/10.png").unlink()
    (masks / "dog/sub/x.png").unlink()
    calls: list[int] = []
    expected = r"without its 'mask'.*'cat/10.png'.*2 such images.*masks/cat/10\.png"
    given: Any = {"fields": {"mask": masks}, "progress": lambda done, _: calls.append(done)}
    with pytest.raises(SampleError, match=expected):
        convert(pictures, tmp_path / "set.h5", **given)
    assert calls == []
    assert not (tmp_path / "set.h5").exists()


def test_bad_masks_are_skipped_with_their_pictures(
    folders: tuple[Path, Path], tmp_path: Path
) -> None:
    """--skip-bad: missing, damaged, of another size; extras are counted as ignored."""
    pictures, masks = folders
    (masks / "cat/10.png").unlink()
    whole = (masks / "dog/a.png").read_bytes()
    (masks / "dog/a.png").write_bytes(whole[: len(whole) // 2])
    save(masks / "dog/a-1.png", classes(0, 8, 8))
    save(masks / "dog/extra.png", classes(0))
    path = tmp_path / "set.lmdb"
    report = convert(pictures, path, fields={"mask": masks}, skip_bad=True)
    assert report.count == 3
    assert [name for name, _ in report.skipped] == ["cat/10.png", "dog/a-1.png", "dog/a.png"]
    reasons = [reason for _, reason in report.skipped]
    assert "without its 'mask'" in reasons[0]
    assert "differ in size" in reasons[1]
    assert "damaged" in reasons[2].lower()
    assert report.ignored["mask without an image"] == 1
    _, mask = all_of(path)
    np.testing.assert_array_equal(mask[..., 0], [classes(n) for n in (0, 2, 5)])
    save(masks / "cat/10.png", classes(1))
    save(masks / "dog/a-1.png", classes(3))
    with pytest.raises(DecodeError) as raised:  # it is told by its own path
        convert(pictures, tmp_path / "other.h5", fields={"mask": masks})
    assert raised.value.source_path == str(masks / "dog/a.png")


def test_links_out_of_the_folder_are_not_followed(
    folders: tuple[Path, Path], tmp_path: Path
) -> None:
    """As with pictures: a mask that is a link elsewhere is refused, unless that is meant."""
    pictures, masks = folders
    other = tmp_path / "elsewhere.png"
    (masks / "cat/1.png").rename(other)
    (masks / "cat/1.png").symlink_to(other)
    with pytest.raises(SampleError, match="link out of the folder"):
        convert(pictures, tmp_path / "set.h5", fields={"mask": masks})
    convert(pictures, tmp_path / "set.h5", fields={"mask": masks}, follow_links=True)


@pytest.mark.parametrize("suffix", [".h5", ".lmdb"])
def test_shuffled_and_listed(folders: tuple[Path, Path], tmp_path: Path, suffix: str) -> None:
    """Masks, labels and paths stay with their pictures in random order, and in a set that a CSV
    names. A seed gives another order, another seed a third."""
    (pictures, masks), orders = folders, []
    for seed in (None, 1, 2, -1):
        path = tmp_path / f"set{seed}{suffix}"
        convert(pictures, path, fields={"mask": masks}, shuffle=seed)
        image, mask = all_of(path)
        orders.append(image[:, 0, 0, 2].tolist())
        assert mask[:, 0, 0, 0].tolist() == orders[-1]
        with asyncreader.open(path) as found:
            assert found.paths == [f"{NAMES[n]}.png" for n in orders[-1]]
            assert found.labels[:, 0].tolist() == [n // 3 for n in orders[-1]]
    assert all(sorted(order) == list(range(6)) for order in orders)
    assert len(set(map(tuple, orders))) == 4
    (tmp_path / "some.csv").write_text("dog/a.png,5\ncat/2.png,7\n")
    labels, some = tmp_path / "some.csv", tmp_path / f"some{suffix}"
    report = convert(pictures, some, fields={"mask": masks}, labels=labels)
    assert report.ignored["mask without an image"] == 4
    assert all_of(some)[1][:, 0, 0, 0].tolist() == [2, 4]


# -- from set to set -----------------------------------------------------------------------------


@pytest.mark.parametrize("encoding", ["raw", "original"])
def test_a_set_is_resized_with_its_fields(
    folders: tuple[Path, Path], tmp_path: Path, encoding: str
) -> None:
    """A packed set that is packed smaller, as JPEG, has its masks smaller, as PNG: those that the
    folder gives."""
    pictures, masks = folders
    convert(pictures, tmp_path / "one.h5", fields={"mask": masks}, encoding=encoding)
    how: dict[str, Any] = {"encoding": "jpeg", "size": (20, 20)}
    convert(tmp_path / "one.h5", tmp_path / "small.lmdb", **how)
    convert(pictures, tmp_path / "direct.lmdb", fields={"mask": masks}, **how)
    found = all_of(tmp_path / "small.lmdb")[1]
    assert found.shape == (6, 20, 20, 1)
    np.testing.assert_array_equal(found, all_of(tmp_path / "direct.lmdb")[1])
    convert(tmp_path / "one.h5", tmp_path / "none.h5", params={"data_field": ["data"]})
    with h5py.File(tmp_path / "none.h5") as file:
        assert "mask" not in file
    convert(tmp_path / "one.h5", tmp_path / "two.h5", params={"subset": slice(2, 4)})
    assert all_of(tmp_path / "two.h5")[1][:, 0, 0, 0].tolist() == [2, 3]


def test_fields_of_foreign_sets(tmp_path: Path) -> None:
    """data_field names what is packed; masks without an axis of channels get one, int64 fits."""
    images = np.stack([picture(n) for n in range(4)])
    masks = np.stack([classes(n) for n in range(4)])
    fields = {"train/x": images, "train/mask": masks.astype(np.int64), "boxes": masks[:, 0]}
    hdf5(tmp_path / "foreign.h5", **fields)
    params: dict[str, Any] = {"data_field": ["train/x", "train/mask"]}
    convert(tmp_path / "foreign.h5", tmp_path / "set.lmdb", params=params)
    image, mask = all_of(tmp_path / "set.lmdb")
    np.testing.assert_array_equal(image, images)
    np.testing.assert_array_equal(mask[..., 0], masks)
    assert mask.dtype == np.uint16
    params = {"data_field": ["train/x", "boxes"]}
    convert(tmp_path / "foreign.h5", tmp_path / "rows.h5", params=params)
    found = all_of(tmp_path / "rows.h5", data_field=["data", "boxes"])[1]
    np.testing.assert_array_equal(found, masks[:, 0])
    samples = [{"image": images[n], "seg": masks[n]} for n in range(4)]
    path = write_pyxis(tmp_path / "pyxis", [pyxis_sample(sample) for sample in samples])
    convert(path, tmp_path / "p.h5", params={"data_field": ["image", "seg"]}, encoding="png")
    with AsyncReader(path=tmp_path / "p.h5", data_field="seg", batch_size=4) as reader:
        (batch,) = reader
        np.testing.assert_array_equal(batch.data[:, 0], masks)


# -- what is asked for ---------------------------------------------------------------------------


def test_what_cannot_be(folders: tuple[Path, Path], tmp_path: Path) -> None:
    """Names and places that make no sense are refused before anything is packed."""
    pictures, masks = folders
    for fields, match in (
        *(({name: masks}, "not a valid name of a field") for name in ("data", "a.b", 3)),
        (["mask"], "fields is not valid"),
        ({"mask": 7}, r"fields\['mask'\] is not valid; found 7; expected a path"),
        ({"mask": pictures / "cat"}, "lies inside"),
    ):
        with pytest.raises(ParamsError, match=match):
            convert(pictures, tmp_path / "set.h5", fields=fields)  # type: ignore[arg-type]
    with pytest.raises(SourceNotFoundError, match="no folder of field 'mask'"):
        convert(pictures, tmp_path / "set.h5", fields={"mask": masks / "nowhere"})


def test_the_command(folders: tuple[Path, Path], tmp_path: Path) -> None:
    """--field NAME=DIR, repeated; info, verify and bench tell of fields."""
    pictures, masks = folders
    path, words = tmp_path / "set.h5", ("-p", 'data_field=["data", "again"]')
    both = ("--field", f"mask={masks}", "--field", f"again={masks}")
    assert run("convert", pictures, path, *both, "--quiet").exit_code == 0
    for given, names in (((), ["mask", "again"]), (words, ["again"])):
        facts = json.loads(run("info", path, *given, "--json").stdout)
        assert [field["name"] for field in facts["fields"]] == names
    assert "field mask   40 x 56 x 1 uint8, raw" in run("info", path).stdout
    assert "18 checksums right" in run("verify", path).stdout
    bench = run("bench", path, *words, "--nthread", "1", "--seconds", "0.01", "--batch-size", "2")
    assert "batch 2 x 3 x 40 x 56, 2 x 1 x 40 x 56 uint8, uint8" in bench.stdout
    for wrong in (["mask"], ["=x"], ["mask="], ["mask=a", "--field", "mask=b"]):
        assert run("convert", pictures, path, "--field", *wrong).exit_code == 2


# -- boxes, keypoints and other numbers beside images that are resized -----------------------------

#: Sizes that images are resized to, and how.
RESIZED: dict[str, dict[str, Any]] = {
    "cut": {"size": (48, 36)},
    "squeezed": {"size": (45, 90), "resize": "squeeze"},
    "padded": {"size": (70, 61), "resize": "pad"},
    "shorter side": {"size": 30, "encoding": "png"},
}
#: The sides of the images (height, width), and of the white rectangle in each of them.
SIDES = [(60, 80)] * 3 + [(90, 50)] * 3


def white(number: int) -> tuple[np.ndarray, np.ndarray]:
    """A black image with a white rectangle, and the box that is around it."""
    rng = np.random.default_rng(number)
    high, wide = SIDES[number]
    left, top = rng.integers(8, wide - 32), rng.integers(8, high - 36)
    box = np.array((left, top, left + rng.integers(12, 22), top + rng.integers(14, 26)))
    image = np.zeros((high, wide, 3), np.uint8)
    image[box[1] : box[3], box[0] : box[2]] = 255
    return image, box


def moved_as_pillow(places: np.ndarray, number: int, size: Any, resize: str = "crop") -> np.ndarray:
    """Places (n, 2) where Pillow's ImageOps.fit and pad, or a plain resize, take them."""
    high, wide = SIDES[number]
    if isinstance(size, int):
        scale = size / min(high, wide)
        return places * (round(wide * scale) / wide, round(high * scale) / high)
    by_y, by_x = size[0] / high, size[1] / wide
    if resize == "squeeze":
        return places * (by_x, by_y)
    if resize == "pad":
        scale = min(by_x, by_y)
        inner = np.array((round(wide * scale), round(high * scale)))
        return places * inner / (wide, high) + np.round((np.array(size[::-1]) - inner) / 2)
    scale = max(by_x, by_y)
    return (places - np.array((wide, high)) / 2) * scale + np.array(size[::-1]) / 2


def seen(image: np.ndarray) -> np.ndarray:
    """The box around what is white."""
    rows, columns = np.nonzero(image[..., 0] > 127)
    return np.array((columns.min(), rows.min(), columns.max() + 1, rows.max() + 1))


def samples_with_boxes(alike: bool = False) -> Iterator[dict[str, Any]]:
    """Images of two sizes, or ``alike``, with boxes whose number differs, keypoints, a map of
    floats of their size, and other numbers."""
    for number in range(3 if alike else 6):
        image, box = white(number)
        around = np.array([[0, 0, *image.shape[1::-1]]])
        yield {
            "image": image,
            "boxes": np.concatenate([box[None], around, np.zeros((number % 2, 4), int)]),
            "points": np.array([[*box[:2], 2], [*box[2:], 1], [0, 0, 0]], np.float64),
            "depth": (image[..., 0] / 255).astype(np.float32),
            "pose": np.arange(12).reshape(3, 4) + number,
        }


KNOWN: dict[str, Any] = {
    "boxes_field": "boxes", "keypoints_field": ["points"], "numbers_field": "pose",
}  # fmt: skip


def check_moved(path: Path, how: dict[str, Any], count: int = 6) -> None:
    """What a dataset serves as stored is where its images show it, and where Pillow takes it."""
    fields = ["data", "boxes", "points", "depth", "pose"]
    plain = {name: value for name, value in how.items() if name != "encoding"}
    with asyncreader.open(path, data_field=fields, max_length={"boxes": 4}, layout="NHWC") as ds:
        assert len(ds) == count
        for number in range(count):
            image, boxes, points, depth, pose = ds[number]
            before, box = white(number)
            if number == 0 or SIDES[number] == SIDES[0]:
                assert seen(image).tolist() == pytest.approx(boxes[0], abs=1.6)
            expected = moved_as_pillow(box.reshape(2, 2), number, **plain)
            high, wide = image.shape[:2]
            cut = expected.clip(0, (wide, high)).reshape(-1)
            np.testing.assert_allclose(boxes[0], cut, atol=1e-3)
            whole = np.array(((0, 0), before.shape[1::-1]))
            around = moved_as_pillow(whole, number, **plain).clip(0, (wide, high)).reshape(-1)
            np.testing.assert_allclose(boxes[1], around, atol=1e-3)
            assert not boxes[2:].any()
            assert boxes.dtype == points.dtype == np.float32
            np.testing.assert_allclose(points[:2, :2], expected, atol=1e-3)
            assert points[:, 2].tolist() == [2, 1, 0]
            assert not points[2].any()
            assert depth.shape == (high, wide)
            assert np.mean((depth > 0.5) == (image[..., 0] > 127)) > 0.97
            np.testing.assert_array_equal(pose, np.arange(12).reshape(3, 4) + number)


@pytest.mark.slow
@pytest.mark.parametrize("how", RESIZED)
def test_boxes_and_keypoints_are_resized_with_their_images(tmp_path: Path, how: str) -> None:
    """Writer(size=), convert(samples, size=), convert(dataset, size=) of HDF5, LMDB and shards, and
    of a Dataset: boxes and keypoints are where Pillow's arithmetic takes them, and around what the
    image shows; floats of the image's size are resized as it is; other numbers stay."""
    options = RESIZED[how]
    alike = how == "shorter side"
    count = 3 if alike else 6
    varied: dict[str, Any] = {"variable_length": "boxes"}

    def samples(data: str = "image") -> Iterator[dict[str, Any]]:
        for one in samples_with_boxes(alike):
            yield {data: one.pop("image"), **one}

    with Writer(tmp_path / "a.h5", **options, **varied, **KNOWN) as writer:
        for one in samples("data"):
            writer.add(**one)
    check_moved(tmp_path / "a.h5", options, count)
    convert(samples(), tmp_path / "b", shards=2, **options, **varied, **KNOWN)
    check_moved(tmp_path / "b", options, count)
    if how == "cut":  # images of two sizes with maps of theirs cannot be stored as they are
        files = [{**one, "image": io.BytesIO()} for one in samples()]
        for one, original in zip(files, samples(), strict=True):
            Image.fromarray(original["image"]).save(one["image"], "PNG")
            one["image"] = one["image"].getvalue()
        convert(files, tmp_path / "bytes.h5", **options, **varied, **KNOWN)
        check_moved(tmp_path / "bytes.h5", options, count)
    stored = list(samples_with_boxes(alike=True))
    for name, more in (("c.h5", {}), ("c.lmdb", {"encoding": "png"}), ("c", {"shards": 2})):
        convert(stored, tmp_path / name, **varied, **more)
        small = {**options, **KNOWN, "encoding": options.get("encoding")}
        convert(tmp_path / name, tmp_path / f"small-{name}.h5", **small)
        check_moved(tmp_path / f"small-{name}.h5", options, 3)
    fields = ["data", "points", "depth", "pose"]
    known = {name: value for name, value in KNOWN.items() if name != "boxes_field"}
    given = asyncreader.open(
        tmp_path / "c.h5", data_field=fields, boxes_field="boxes", max_length={"boxes": 4}
    )
    convert(given, tmp_path / "d.h5", **options, **known, variable_length="boxes")
    check_moved(tmp_path / "d.h5", options, 3)


def test_boxes_of_foreign_sets_and_the_command(tmp_path: Path) -> None:
    """--size of a file of h5py with boxes: its line is the one that the refusal gives, and boxes in
    the table for all, int64, are those that Pillow's arithmetic gives."""
    images, boxes = zip(*(white(number) for number in range(3)), strict=True)
    fields = {"boxes": np.stack(boxes)[:, None], "one": np.stack(boxes)}
    hdf5(tmp_path / "a.h5", images=np.stack(images), names=np.arange(15).reshape(3, 5), **fields)
    line = ["convert", tmp_path / "a.h5", tmp_path / "b.h5", "--size", "20x30"]
    line += ["-p", 'data_field=["images", "boxes", "one", "names"]']
    refused = run(*line)
    assert refused.exit_code == 2
    assert "--boxes-field boxes" in refused.output
    assert "'one'" in run(*line, "--boxes-field", "boxes").output
    assert not (tmp_path / "b.h5").exists()
    done = run(*line, "--boxes-field", "boxes,one")
    assert done.exit_code == 0, done.output
    with h5py.File(tmp_path / "b.h5") as file:
        for number, box in enumerate(boxes):
            expected = moved_as_pillow(box.reshape(2, 2), number, (20, 30)).clip(0, (30, 20))
            np.testing.assert_allclose(file["boxes"][number, 0], expected.reshape(-1), atol=1e-3)
            np.testing.assert_allclose(file["one"][number], expected.reshape(-1), atol=1e-3)
        np.testing.assert_array_equal(file["names"], np.arange(15).reshape(3, 5))


@pytest.mark.parametrize(
    ("fields", "options", "said"),
    [
        ({"a": np.zeros((3, 4))}, {}, "'a' may hold boxes.*boxes_field='a'.*numbers_field='a'"),
        ({"a": np.zeros((5, 2))}, {}, "'a' may hold keypoints.*keypoints_field='a'"),
        ({"a": np.zeros((5, 3), np.int16)}, {}, "'a' may hold keypoints"),
        ({"a": np.zeros(4)}, {}, "'a' may hold boxes"),
        ({"a": np.zeros((2, 4))}, {"variable_length": "a"}, r"(?s)'a' may hold boxes.*\(any, 4\)"),
        ({"a": np.zeros((2, 3))}, {"boxes_field": "a"}, "(?s)'a': the field holds no boxes"),
        ({"a": np.zeros(6)}, {"boxes_field": "b"}, "(?s)names a field that.*'b'.*a"),
        ({}, {"boxes_field": "data"}, "names a field that"),
        ({"a": np.zeros(4)}, {"boxes_field": "a", "numbers_field": ["a"]}, "named twice"),
        ({"a": np.zeros((3, 4), bool)}, {"boxes_field": "a"}, "boxes are numbers"),
    ],
)
def test_numbers_that_may_be_places_are_asked_about(
    tmp_path: Path, fields: dict[str, Any], options: dict[str, Any], said: str
) -> None:
    """A field of the shape of boxes or keypoints is not left in the old pixels: with size= it is a
    ParamsError with the lines that say what it is, and so is a field that is said to hold what it
    cannot; nothing is written."""
    with (
        pytest.raises(ParamsError, match=said),
        Writer(tmp_path / "a.h5", size=(20, 20), **options) as writer,
    ):
        writer.add(white(0)[0], **fields)
    assert not list(tmp_path.iterdir())
    if "may hold" in said:
        for plain in ({"size": None}, {"numbers_field": "a"}):
            given = {"size": (20, 20), "overwrite": True, **options, **plain}
            convert([{"image": white(0)[0], **fields}], tmp_path / "a.h5", **given)
        with h5py.File(tmp_path / "a.h5") as file:
            assert not file["a"][:].any()
            assert file["a"].dtype == fields["a"].dtype


def test_masks_beside_the_bytes_of_images_are_resized(tmp_path: Path) -> None:
    """A mask that is added with an image file's bytes is cut as the upright image is."""
    file = io.BytesIO()
    lying = np.rot90(picture(0))
    Image.fromarray(lying).save(file, "PNG", exif=exif(TURNED))
    for options in ({"size": (20, 28)}, {"encoding": "jpeg", "size": (20, 28)}):
        given = {"image": file.getvalue(), "mask": classes(0)}
        convert([given], tmp_path / "a.h5", overwrite=True, **options)
        convert([{**given, "image": picture(0)}], tmp_path / "b.h5", overwrite=True, **options)
        found = all_of(tmp_path / "a.h5")[1]
        assert found.shape == (1, 20, 28, 1)
        np.testing.assert_array_equal(found, all_of(tmp_path / "b.h5")[1])
    with pytest.raises(SampleError, match="differ in size"):
        convert([given, {**given, "mask": classes(0, 30, 30)}], tmp_path / "c.h5", size=(20, 28))
