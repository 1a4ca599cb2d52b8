"""Contact sheets: the right samples, pixels and words; and the manners of the command."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from command_sets import damaged, differing, run, save_images
from fakes import hdf5, paint, pictures
from PIL import Image

import converters
from asyncreader import AsyncReader, FormatError, ParamsError
from asyncreader.tools import sheet
from asyncreader.tools.look import Scale, as_mask, fit, scale_of, tinted, to_rgb
from asyncreader.tools.preview import preview, preview_batch, undone
from asyncreader.tools.sheet import MOST, SIDE, Tile, draw_sheet

NAMES = ("cat", "dog", "eel")


def top_of(sheet: Image.Image) -> int:
    """Where the tiles begin: the first line that is no paper for as long as a tile is wide."""
    inked = (np.asarray(sheet)[:, 20 : 20 + SIDE] != 255).any(axis=2).all(axis=1)
    return int(np.argmax(inked))


def square(sheet: Image.Image, number: int, columns: int) -> np.ndarray:
    """The square of tile ``number``, (160, 160, 3)."""
    left = 20 + number % columns * (SIDE + 12)
    top = top_of(sheet) + number // columns * (SIDE + 48)
    return np.asarray(sheet)[top : top + SIDE, left : left + SIDE]


def small(sheet: Image.Image, number: int, columns: int, height: int, width: int) -> np.ndarray:
    """The picture in a square, its enlarged pixels made single again."""
    factor = SIDE // max(height, width)
    whole = square(sheet, number, columns)
    top, left = (SIDE - height * factor) // 2, (SIDE - width * factor) // 2
    part = whole[top : top + height * factor, left : left + width * factor]
    pixels = part[::factor, ::factor]
    assert (part == pixels.repeat(factor, axis=0).repeat(factor, axis=1)).all()
    return pixels


@pytest.fixture(scope="module")
def images() -> np.ndarray:
    return pictures(30, (24, 20, 3))


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory, images: np.ndarray) -> Path:
    """Those 30 pictures, ten of each class, as raw HDF5."""
    folder = tmp_path_factory.mktemp("preview")
    named = {f"{NAMES[n // 10]}/{n:02}.png": image for n, image in enumerate(images)}
    converters.convert(save_images(folder / "photos", named), folder / "pets.h5")
    return folder / "pets.h5"


# -- stored samples ------------------------------------------------------------------------------


def test_chosen_samples_are_shown_as_they_are(packed: Path, images: np.ndarray) -> None:
    """--indices: those records in that order, pixel for pixel, with their classes; data= is shown
    as a file is."""
    made = preview({"path": packed}, indices=[21, 3, 3, 10], columns=4)
    assert made.records == (21, 3, 3, 10)
    assert made.labels == ("eel", "cat", "cat", "dog")
    for place, record in enumerate(made.records):
        np.testing.assert_array_equal(small(made.sheet, place, 4, 24, 20), images[record])
    assert made.notes == ("all 24 x 20 (height x width)",)
    made = preview({"data": images, "labels": np.arange(30)}, indices=[4], columns=1)
    np.testing.assert_array_equal(small(made.sheet, 0, 1, 24, 20), images[4])
    assert made.labels == ("label 4",)


def test_random_samples_depend_on_the_seed_only(packed: Path) -> None:
    """The same seed draws the same different samples, in order; another one draws others."""
    draws = [preview({"path": packed}, count=8, seed=seed).records for seed in (5, 5, 6)]
    assert draws[0] == draws[1] != draws[2]
    assert list(draws[0]) == sorted(set(draws[0]))
    assert len(draws[0]) == 8
    everything = preview({"path": packed}, count=100)
    assert everything.records == tuple(range(30))


def test_classes_and_subset_narrow_the_choice(packed: Path) -> None:
    """Classes are named or numbered; with subset= only what is in both is drawn."""
    assert preview({"path": packed}, classes=["eel", "0"]).records == (*range(10), *range(20, 30))
    some = preview({"path": packed, "subset": slice(5, 25)}, classes=["cat"])
    assert some.records == (5, 6, 7, 8, 9)
    assert preview({"path": packed, "subset": np.array([7, 2])}).records == (2, 7)
    with pytest.raises(ParamsError, match="did you mean 'dog'"):
        preview({"path": packed}, classes=["dgo"])
    with pytest.raises(ParamsError, match="no sample has label 7"):
        preview({"path": packed}, classes=["7"])
    with pytest.raises(ParamsError, match="no sample to show"):
        preview({"path": packed, "subset": slice(0, 5)}, classes=["eel"])


def test_pictures_of_different_sizes(tmp_path: Path) -> None:
    """Each encoded picture fills its square as its shape lets it, upright, and its size is told."""
    sides = enumerate([(400, 200), (90, 300), (700, 700)])
    images = {f"{n}.jpg": Image.new("RGB", size, (200, 30, 30)) for n, size in sides}
    photos = save_images(tmp_path / "photos", images)
    converters.convert(photos, tmp_path / "o.lmdb", encoding="original", no_labels=True)
    made = preview({"path": tmp_path / "o.lmdb"}, columns=3)
    red = [square(made.sheet, n, 3)[:, :, 1] < 100 for n in range(3)]
    seen = [(part.any(axis=1).sum(), part.any(axis=0).sum()) for part in red]
    assert seen == [(80, 160), (160, 48), (160, 160)]
    assert made.notes == ("sizes are height x width",)


@pytest.mark.parametrize(
    ("data", "notes"),
    [
        (paint(6, (8, 9)), []),
        (paint(6, (8, 9, 1)), []),
        (paint(6, (8, 9, 3), "uint16"), ["values 0 to 31993 are shown as black to white"]),
        (paint(6, (8, 9, 3), "int8"), ["values -125 to 125 are shown as black to white"]),
        (np.linspace(0, 1, 6 * 8 * 9 * 3, dtype="f4").reshape(6, 8, 9, 3), []),
        (paint(6, (8, 9, 3), "bool"), []),
        (paint(6, (8, 9, 2)), ["the first of 2 channels shown"]),
        (paint(6, (8, 9, 4)), ["the first three of 4 channels shown"]),
    ],
    ids=lambda value: f"{value.dtype}-{value.shape}" if isinstance(value, np.ndarray) else "",
)
def test_any_numbers_in_the_shape_of_pictures(
    data: np.ndarray, notes: list[str], tmp_path: Path
) -> None:
    """Any dtype and number of channels, and grey without a channel axis, can be looked at."""
    made = preview({"path": hdf5(tmp_path / "f.h5", data=data)}, count=6, columns=6)
    assert list(made.notes[1:]) == notes
    assert set(made.labels) == {None}
    spread = square(made.sheet, 0, 6).reshape(-1, 3).std(axis=0)
    assert (spread > 20).all()


def test_numbers_that_are_none_are_magenta(tmp_path: Path) -> None:
    """NaN and infinity show as magenta, and the foot of the sheet says so."""
    data = np.full((1, 8, 8, 3), 0.5, np.float32)
    data[0, 2, 3, 0], data[0, 4, 4, 1] = np.nan, np.inf
    made = preview({"path": hdf5(tmp_path / "f.h5", data=data)}, columns=1)
    pixels = small(made.sheet, 0, 1, 8, 8)
    magenta = (pixels == (255, 0, 255)).all(axis=2)
    assert [tuple(place) for place in np.argwhere(magenta)] == [(2, 3), (4, 4)]
    assert (pixels[~magenta] == 128).all()
    assert "pixels that are not a number are magenta" in made.notes


def test_bad_samples_have_a_square_that_says_so(packed: Path, tmp_path: Path) -> None:
    """A sample whose bytes changed is framed in red, named, and keeps no other from the sheet."""
    target = damaged(packed, tmp_path / "damaged.h5", 2)
    made = preview({"path": target}, indices=[1, 2, 3], columns=3)
    assert [record for record, _ in made.bad] == [2]
    assert "XXH3-64" in made.bad[0][1]
    assert tuple(square(made.sheet, 1, 3)[0, 0]) == (180, 35, 24)
    assert tuple(square(made.sheet, 0, 3)[0, 0]) != (180, 35, 24)
    result = run("preview", target, "--indices", "2", "--output", tmp_path / "s.png")
    assert result.exit_code == 0
    assert result.stderr.startswith("warning: record 2: the stored bytes of a sample do not match")


# -- batches -------------------------------------------------------------------------------------


def test_a_batch_is_what_training_gets(packed: Path) -> None:
    """Order, flips and random crops of the sheet are those of the reader's first batch."""
    params: dict[str, Any] = {"path": str(packed), "batch_size": 8, "shuffle": True, "seed": 3}
    params |= {"flip": True, "size": (12, 14), "crop": "random-resized"}
    made = preview_batch(params, columns=4)
    with AsyncReader(params, layout="NHWC", copy=True) as reader:
        (batch, *_) = reader
    assert made.records == tuple(batch.indices)
    assert made.labels == tuple(NAMES[label] for label in batch.labels[:, 0])
    for row in range(8):
        np.testing.assert_array_equal(small(made.sheet, row, 4, 12, 14), batch.data[row])
    assert made.notes == ("seed=3, shuffle=True, size=(12, 14), crop=random-resized, flip=True",)


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_views_are_side_by_side(packed: Path, layout: str) -> None:
    """The views of a sample, of all sizes, are one picture of the sheet; the shapes are told."""
    params: dict[str, Any] = {"path": str(packed), "batch_size": 4, "crop": "random-resized"}
    params |= {"views": [{"count": 2, "size": (12, 10)}, {"count": 3, "size": (6, 5)}]}
    with AsyncReader(params, layout="NHWC", copy=True) as reader:
        (large, small_), _ = next(iter(reader))
    made = preview_batch({**params, "layout": layout}, columns=4)
    for row in range(4):
        below = [np.pad(view, ((0, 6), (0, 0), (0, 0))) for view in small_[row]]
        joined = np.concatenate([*large[row], *below], axis=1)
        np.testing.assert_array_equal(small(made.sheet, row, 4, 12, 35), joined)
    assert made.notes == ("seed=0, shuffle=False, views=2 + 3",)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_normalisation_is_undone(packed: Path, layout: str, dtype: str) -> None:
    """scale, mean and std are taken back: the sheet shows the pixels that were stored."""
    plain = {"path": str(packed), "batch_size": 6, "shuffle": True, "flip": True, "layout": layout}
    normal = {"dtype": dtype, "scale": 1 / 255, "mean": (0.5, 0.4, 0.3), "std": (0.2, 0.3, 0.25)}
    shown, expected = preview_batch({**plain, **normal}), preview_batch(plain)
    for row in range(6):
        one, other = (square(sheet, row, 3).astype(int) for sheet in (shown.sheet, expected.sheet))
        assert abs(one - other).max() <= (0 if dtype == "float32" else 1)


def darker(data: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """postprocess: half as bright, floats in 0 to 1, another layout."""
    return (data.transpose(0, 2, 3, 1) / 510).astype(np.float32), labels


def flat(data: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """postprocess: no pictures any more."""
    return data.reshape(len(data), -1), labels


def test_postprocess_is_seen(packed: Path, images: np.ndarray) -> None:
    """A batch is shown as postprocess left it, also in another layout and range."""
    made = preview_batch({"path": str(packed), "batch_size": 3, "postprocess": darker}, columns=3)
    expected = np.rint(images[1] / 2).astype(int)
    assert abs(small(made.sheet, 1, 3, 24, 20).astype(int) - expected).max() <= 1
    assert made.notes[0].endswith("postprocess=darker")
    with pytest.raises(FormatError, match="not images"):
        preview_batch({"path": str(packed), "postprocess": flat})


def test_padded_and_small_batches(packed: Path) -> None:
    """A set smaller than the sheet is one batch; padded rows say so."""
    made = preview_batch({"path": str(packed), "subset": slice(0, 5)}, count=24)
    assert made.records == (0, 1, 2, 3, 4)
    padded = {"path": str(packed), "subset": slice(0, 5), "batch_size": 8, "last_batch": "pad"}
    assert preview_batch(padded).records == (0, 1, 2, 3, 4, -1, -1, -1)
    with pytest.raises(ParamsError, match="too many for a sheet"):
        preview_batch({"path": str(packed), "batch_size": MOST + 1})


def test_undoing_needs_the_same_channels() -> None:
    """Where a postprocess left other channels, or no floats, nothing is undone."""
    from asyncreader.params.parse import parse_params

    p = parse_params({"path": "x", "dtype": "float32", "mean": (1, 2, 3)}, {})
    two = np.ones((1, 4, 4, 2), np.float32)
    assert undone(two, p) is two
    whole = np.ones((1, 4, 4, 3), np.uint8)
    assert undone(whole, p) is whole


# -- masks ---------------------------------------------------------------------------------------


@pytest.fixture
def masked(tmp_path: Path) -> Path:
    """Four black pictures; sample n's mask has the value n + 1 in its upper half."""
    masks = np.zeros((4, 8, 10), np.uint8)
    masks[:, :4] = np.arange(1, 5)[:, None, None]
    masks[3, :4] = 255
    black = np.zeros((4, 8, 10, 3), np.uint8)
    more = {"labels": np.arange(4), "boxes": np.zeros((4, 4)), "mask": masks}
    return hdf5(tmp_path / "m.h5", data=black, **more)


def test_a_mask_lies_over_its_picture(masked: Path) -> None:
    """Of several fields the mask lies over the picture: each value a colour, 0 none, 255 grey."""
    params = {"path": masked, "data_field": ["data", "boxes", "mask"]}
    made = preview(params, columns=4)
    upper = []
    for number in range(4):
        pixels = small(made.sheet, number, 4, 8, 10)
        assert (pixels[4:] == 0).all()
        assert (pixels[:4] == pixels[0, 0]).all()
        upper.append(tuple(pixels[0, 0].tolist()))
    assert len(set(upper)) == 4
    assert upper[3] == (64, 64, 64)
    assert made.notes[-1] == "the mask's values are coloured: 1, 2, 3, 255"
    assert len(preview({"path": masked}).notes) == 1


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("axes", [3, 4])
def test_a_batch_shows_its_masks(masked: Path, layout: str, axes: int) -> None:
    """The masks of a batch are those of its rows, flipped and cropped as they are."""
    if axes == 4:
        with h5py.File(masked, "a") as file:
            masks = file["mask"][...]
            del file["mask"]
            file["mask"] = masks[..., None]
    params = {"path": masked, "data_field": ["data", "boxes", "mask"], "layout": layout}
    made = preview_batch({**params, "shuffle": True, "seed": 1}, columns=4)
    whole = preview(params, columns=4)
    assert sorted(made.records) == [0, 1, 2, 3] != list(made.records)
    for place, record in enumerate(made.records):
        np.testing.assert_array_equal(square(made.sheet, place, 4), square(whole.sheet, record, 4))
    assert made.notes[-1] == "the mask's values are coloured: 1, 2, 3, 255"


def test_a_mask_of_many_values() -> None:
    """Any whole numbers are a mask; its colours mix with the picture and never with each other."""
    mask = np.arange(100, dtype=np.int64).reshape(10, 10) - 50
    made = tinted(np.full((40, 20, 3), 200, np.uint8), mask)
    assert (made[20:24, 0:2] == 200).all()  # where the mask is 0
    blocks = made.reshape(10, 4, 10, 2, 3)
    assert (blocks == blocks[:, :1, :, :1]).all()
    assert as_mask(np.zeros((3, 3), "f4")) is None
    assert as_mask(np.zeros((3, 3, 3), "u1")) is None


# -- pixels --------------------------------------------------------------------------------------


def test_scales() -> None:
    """Bytes, and floats like bytes or in 0 to 1, keep their meaning; all else is stretched."""
    one = np.ones((2, 2, 1))
    assert scale_of([one.astype(np.uint8)]) == Scale()
    assert scale_of([one * 0.5, one * 0.25]) == Scale(0, 1)
    assert scale_of([one * 200.5]) == Scale()
    assert scale_of([one * -2, one * 6]) == Scale(-2, 6, stretched=True)
    assert scale_of([(one * 40).astype(np.uint16)]) == Scale(40, 41, stretched=True)
    assert scale_of([one * np.nan]) == Scale(0, 1, holes=True)
    assert scale_of([]) == Scale()
    low, high = to_rgb(np.array([[[-2.0], [6.0]]]), Scale(-2, 6))[0]
    assert (tuple(low), tuple(high)) == ((0, 0, 0), (255, 255, 255))


@pytest.mark.parametrize(
    ("shape", "fitted"),
    [((8, 6), (160, 120)), ((53, 1), (159, 3)), ((54, 30), (160, 89)), ((1, 4000), (1, 160))],
)
def test_fit(shape: tuple[int, int], fitted: tuple[int, int]) -> None:
    """The longer side comes to the square's, by a whole factor for tiny pictures."""
    assert fit(np.zeros((*shape, 3), np.uint8), 160).shape[:2] == fitted


@pytest.mark.parametrize("tiles", [1, 2, 5, 24, 37, 1000])
def test_sheets_of_any_number(tiles: int) -> None:
    """Every tile has its place, and names of any length and letters are drawn."""
    name = "\u732b " + "w" * 300 + "\n\x1b[31m"
    tile = Tile(np.full((8, 8, 3), 9, np.uint8), name, "note", None)
    sheet = draw_sheet(
        [tile] * tiles, side=8, columns=7, title=name, subtitle="s", notes=["n " * 500]
    )
    assert (np.asarray(sheet) == 9).all(axis=2).sum() >= tiles * 64


# -- letters -------------------------------------------------------------------------------------


@pytest.fixture
def fonts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder that is the only one with fonts."""
    for name in ("HOME", "XDG_DATA_HOME", "XDG_DATA_DIRS"):
        monkeypatch.setenv(name, str(tmp_path / "data"))

    def forget() -> None:
        for known in (sheet._has, sheet._drawn, sheet._font):
            known.cache_clear()

    forget()
    yield tmp_path / "data" / "fonts"
    forget()


def captioned(name: str) -> np.ndarray:
    """The line below the one picture of a sheet, (H, W) of brightness; the baseline is row 14."""
    tile = Tile(np.full((SIDE, SIDE, 3), 9, np.uint8), name, "", None)
    drawn = draw_sheet([tile], side=SIDE, columns=1, title="", subtitle="")
    top = 20 + 18 + 14 + 24 + SIDE + 4
    return np.asarray(drawn.convert("L"))[top : top + 22, 20 : 20 + SIDE]


def test_what_no_font_has_is_said(fonts: Path, tmp_path: Path) -> None:
    """Letters that no installed font has are named by the foot of the sheet: neither an escape nor
    a box is drawn for them, but "?", or the letter without its accent."""
    for name, words in (
        ("a \u732b\u732b b", "a ?? b"),
        ("\u0e44 \U0001f408", "? ?"),
        ("caf\u00e9 cafe\u0301", "cafe cafe"),
    ):
        assert sheet.readable(name, "") == words
        np.testing.assert_array_equal(captioned(name), captioned(words))
    assert sheet.font_for(["x", "\u732b", "\u0e44"]) == (
        "",
        "no installed font has: CJK letters, Thai letters; one such as Noto Sans may have them",
    )
    assert "has: Latin letters;" in (sheet.font_for(["caf\u00e9"])[1] or "")
    assert sheet.font_for(["\x1b[31m"])[1] is None
    made = preview({"path": hdf5(tmp_path / "\u732b.h5", data=paint(2, (8, 8, 3)))})
    assert made.notes[-1].startswith("no installed font has: CJK letters;")


# -- the command ---------------------------------------------------------------------------------


def test_the_command_says_where(packed: Path, tmp_path: Path, monkeypatch: Any) -> None:
    """Without --output the sheet comes into this folder under the set's name, and that is said;
    --json tells the file, and the records with their labels."""
    monkeypatch.chdir(tmp_path)
    result = run("preview", packed, "--count", "6", "--columns", "2")
    assert result.exit_code == 0, result.stderr
    says = r"6 samples in pets-preview\.png: \d+ x \d+ pixels \(height x width\), [\d.]+ kB\n"
    assert re.fullmatch(says, result.stdout)
    assert [path.name for path in tmp_path.iterdir()] == ["pets-preview.png"]
    with Image.open("pets-preview.png") as sheet:
        assert (sheet.format, sheet.width) == ("PNG", 2 * 20 + 2 * SIDE + 12)
    assert run("preview", packed, "--quiet", "--output", "x.webp").output == ""
    with Image.open("x.webp") as sheet:
        assert sheet.format == "WEBP"
    words = ["--indices", "1,12-13", "--output", "s.jpg", "--json"]
    told = json.loads(run("preview", packed, *words).stdout)["sheet"]
    assert (told["file"], told["records"]) == ("s.jpg", [1, 12, 13])
    assert told["labels"] == ["cat", "dog", "dog"]
    assert Path("s.jpg").is_file()


def test_the_command_shows_a_batch(packed: Path, tmp_path: Path, monkeypatch: Any) -> None:
    """--batch takes parameters, and a postprocess by module:function from this folder. Pictures
    that differ in size are cut to 224 x 224, and that is said."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_aug.py").write_text("def dim(data, labels): data //= 2\n")
    words = "--batch --size 16x16 -p postprocess=my_aug:dim -p flip=true --count 4 --seed 2 --json"
    told = json.loads(run("preview", packed, *words.split()).stdout)["sheet"]
    asked = "seed=2, shuffle=False, size=(16, 16), crop=center, flip=True, postprocess=dim"
    assert (told["notes"], told["records"]) == ([asked], [0, 1, 2, 3])
    result = run("preview", differing(tmp_path / "o.h5"), "--batch")
    assert result.exit_code == 0
    assert result.stderr == "the images differ in size: cut to 224x224; see --size\n"


def test_a_recipe_is_seen(packed: Path, tmp_path: Path, monkeypatch: Any) -> None:
    """--batch shows soft labels by their largest parts, and of a mix the set of each row; the foot
    says what was asked for."""
    monkeypatch.chdir(tmp_path)
    mix = json.dumps({str(packed): 0.75, str(differing(tmp_path / "o.h5")): 0.25})
    words = ["--batch", "--size", "16x16", "--count", "8", "-p", "mixup=1", "-p", "shuffle=true"]
    asked = ["-p", "label_smoothing=0.1", "-p", "augment=random-equalize", "--json"]
    told = json.loads(run("preview", packed, *words, *asked).stdout)["sheet"]
    assert (
        "seed=0, shuffle=True, size=(16, 16), crop=center, mixup=1, label_smoothing=0.1, "
        in (told["notes"][0])
    )
    named = re.compile(r"(cat|dog|eel) 0\.\d\d(, (cat|dog|eel) 0\.\d\d)?")
    assert all(named.fullmatch(one) for one in told["labels"])
    params = {"path": str(packed), "size": (16, 16), "mixup": 1.0, "shuffle": True}
    with AsyncReader(params, label_smoothing=0.1, batch_size=8) as reader:
        for batch_labels, said in zip(next(iter(reader)).labels, told["labels"], strict=True):
            best = int(batch_labels.argmax())
            assert said.startswith(f"{NAMES[best]} {batch_labels[best]:.2f}")
    words[4] = "1"  # two make a pair
    told = json.loads(run("preview", packed, *words, "--json").stdout)["sheet"]
    assert len(told["records"]) == 2
    words[4] = "8"
    told = json.loads(
        run("preview", *words[:5], "-p", f"mix={mix}", "-p", "labels_field=None", "--json").stdout
    )
    assert told["path"] is None
    assert told["sheet"]["file"] == "mix-preview.png"
    assert {record < 30 for record in told["sheet"]["records"]} == {True, False}
    for words in (["-p", f"mix={mix}"], ["--html", "x.html", "-p", f"mix={mix}"]):
        result = run("preview", *words)
        assert result.exit_code == 2
        assert "one dataset" in result.stderr


@pytest.mark.parametrize(
    ("words", "code", "error"),
    [
        ("--output set.h5", 2, "does not end in"),
        ("--html page.png", 2, "does not end in"),
        ("--indices 1,x", 2, "not a list of record numbers"),
        ("--indices 9-1", 2, "names no samples"),
        ("--indices 0-99999999999999999", 2, "more than 1,000"),
        ("--indices 30", 2, "no such samples"),
        ("--class gnu", 2, "no class 'gnu'"),
        ("--size 8x8", 2, "it goes with --batch"),
        ("--batch --indices 1", 2, "--indices cannot be used here"),
        ("--batch --class cat", 2, "--class cannot be used here"),
        ("--html p.html --batch", 2, "--batch cannot be used here"),
        ("--html p.html --output s.png --batch", 2, "--batch cannot be used here"),
        ("--limit 10", 2, "--limit has no effect here"),
        ("--html p.html --count 5", 2, "--count has no effect here"),
        ("--html p.html --columns 5", 2, "--columns has no effect here"),
        ("--batch -p postprocess=nowhere:f", 2, "cannot be imported"),
        ("--batch -p postprocess=f", 2, "not module:function"),
        ("--batch -p nonsense=1", 2, "unknown parameter"),
        ("--batch -p mean=[1,2]", 2, "mean"),
        ("--class cat --indices 1", 2, "--class cannot be used here"),
        ("--output nowhere/s.png", 2, "there is no folder 'nowhere'"),
        ("--html nowhere/s.html", 2, "there is no folder 'nowhere'"),
        ("--html /dev/full/s.html", 2, "there is no folder '/dev/full'"),
    ],
)
def test_errors_leave_nothing(
    words: str, code: int, error: str, packed: Path, tmp_path: Path, monkeypatch: Any
) -> None:
    """Each mistake is one line that names it, and no file is left."""
    monkeypatch.chdir(tmp_path)
    result = run("preview", packed, *words.split())
    assert (result.exit_code, result.stdout) == (code, "")
    assert re.fullmatch(r"error: [^\n]+\n", result.stderr)
    assert error in result.stderr
    assert list(tmp_path.iterdir()) == []


# -- boxes, keypoints and several pictures -------------------------------------------------------


def coloured(picture: np.ndarray) -> np.ndarray:
    """Where a picture of grey levels has colours."""
    found: np.ndarray = np.ptp(picture.astype(int), axis=2) > 40
    return found


@pytest.fixture
def boxed(tmp_path: Path) -> Path:
    """Four black pictures of 80 x 80 with a box, which a mark of absent boxes follows, and a
    keypoint."""
    return hdf5(
        tmp_path / "boxed.h5",
        data=np.zeros((4, 80, 80, 3), np.uint8),
        boxes=np.array([[[10, 20, 40, 70], [0, 0, 0, 0]]] * 4),
        points=np.array([[[60, 10, 2], [5, 5, 0]]] * 4, np.float32),
        depth=np.full((4, 80, 80, 1), 7, np.float32),
    )


def frame_of(picture: np.ndarray) -> tuple[int, int, int, int]:
    """Left, top, right and bottom of what is coloured."""
    rows, columns = np.nonzero(coloured(picture))
    return int(columns.min()), int(rows.min()), int(columns.max()) + 1, int(rows.max()) + 1


def test_boxes_and_keypoints_are_drawn(boxed: Path) -> None:
    """A box is a frame in the picture as stored, or as training gets it; a keypoint is a disc on
    its pixel; what marks that there is no more is not drawn."""
    params: dict[str, Any] = {"path": boxed, "boxes_field": "boxes"}
    for made in (preview(params, indices=[0], columns=1), preview_batch(params, count=1)):
        picture = square(made.sheet, 0, 1)
        assert frame_of(picture) == (20, 40, 80, 140)
        assert not coloured(picture)[50:130, 30:70].any()
    both = {**params, "keypoints_field": "points"}
    assert coloured(square(preview_batch(both, count=1).sheet, 0, 1))[18:24, 118:124].any()
    half = {**params, "size": (40, 40), "crop_ratio": 0.5, "layout": "NHWC"}
    assert frame_of(square(preview_batch(half, count=1).sheet, 0, 1)) == (0, 0, 80, 160)
    with pytest.raises(ParamsError, match="the field holds no boxes"):
        preview({"path": boxed, "boxes_field": "points"})


def test_several_pictures_of_a_sample_stand_side_by_side(boxed: Path) -> None:
    """Other fields that are pictures stand beside the first, and so do the pictures of an array
    (B, n, ...): a sheet has room for all."""
    fields = {"path": boxed, "data_field": ["data", "depth"], "boxes_field": "boxes"}
    made = preview_batch(fields, count=2, columns=1)
    assert made.sheet.size[0] == 40 + max(2 * SIDE + 4, 320)
    top = top_of(made.sheet)
    sheet = np.asarray(made.sheet)[top : top + SIDE]
    assert frame_of(sheet[:, 20 : 20 + SIDE]) == (20, 40, 80, 140)
    assert not coloured(sheet[:, 20 + SIDE :]).any()

    def three(data: Any, labels: Any) -> Any:
        return np.stack([data, data + 100, data + 200], axis=1), labels

    for layout in ("NCHW", "NHWC"):
        made = preview_batch(
            {"path": boxed, "layout": layout, "postprocess": three}, count=2, columns=1
        )
        sheet = np.asarray(made.sheet)[top_of(made.sheet) + SIDE // 2]
        levels = [int(sheet[20 + k * (SIDE + 4) + SIDE // 2, 0]) for k in range(3)]
        assert levels == [0, 100, 200]
