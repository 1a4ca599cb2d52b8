"""Small packed sets whose every record is known: painted pictures, converted by our converter, and
rows of different length, written by our Writer."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

UInt8 = npt.NDArray[np.uint8]

#: Blocks of 8 x 8 pixels that spell a record's number, white for 1: they survive JPEG.
BITS = 10
WIDTH = 40

CLASSES = ("ant", "bee", "cat")


def painted(number: int, height: int, seed: int) -> UInt8:
    """A picture (height, 40, 3) that shows its number in its first 16 rows, with noise around."""
    rng = np.random.default_rng((seed, number))
    image = rng.integers(60, 190, (height, WIDTH, 3), np.uint8)
    for bit in range(BITS):
        row, column = divmod(bit, WIDTH // 8)
        block = image[8 * row : 8 * row + 8, 8 * column : 8 * column + 8]
        block //= 16
        if number >> bit & 1:
            block += 230
    return image


def number_in(image: UInt8) -> int:
    """The number that a picture shows."""
    blocks = image[:16].reshape(2, 8, WIDTH // 8, 8, 3).mean(axis=(1, 3, 4)).ravel()
    return sum(1 << bit for bit in range(BITS) if blocks[bit] > 127)


@dataclass(frozen=True)
class KnownSet:
    """A packed set and what must come out of it. ``other``: one of the same layout, for splices."""

    path: str
    container: str
    """"HDF5" or "LMDB"."""
    expected: str
    """Folder with ``data.npy`` and, of the other set, ``others.npy``, (N, H, W, 3) uint8 or, of
    rows, (N, longest, 4) int32 with zeros behind; ``labels.npy``, which are those of both; and
    ``lengths.npy``, those of rows."""
    classes: tuple[str, ...] | None
    other: str
    params: dict[str, Any] = field(default_factory=dict)
    """What a reader of it needs besides its path."""

    @property
    def file(self) -> Path:
        """The one file that holds its bytes."""
        return Path(self.path) / "data.mdb" if self.container == "LMDB" else Path(self.path)

    def to_json(self) -> str:
        """For a child's command line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> KnownSet:
        """What to_json wrote."""
        fields = json.loads(text)
        fields["classes"] = None if fields["classes"] is None else tuple(fields["classes"])
        return cls(**fields)


@dataclass(frozen=True)
class Recipe:
    """How a set is packed. ``floats``: two float64 labels a record instead of a class; ``longest``:
    of rows of different length, which are then in the place of pictures."""

    count: int
    height: int = 32
    floats: bool = False
    options: tuple[tuple[str, Any], ...] = ()
    longest: int = 0

    @property
    def params(self) -> dict[str, Any]:
        """What a reader needs."""
        return {"max_length": self.longest} if self.longest else {}


#: The formats of the table, each with its sets; trials go round them.
FORMATS: dict[str, tuple[tuple[str, Recipe], ...]] = {
    "HDF5 raw": (
        ("raw.h5", Recipe(96)),
        ("small.h5", Recipe(12, 16, True)),
    ),
    "HDF5 gzip": (
        ("gzip1.h5", Recipe(64, options=(("compression", "gzip"),))),
        ("gzip8.h5", Recipe(100, 16, options=(("compression", "gzip"), ("chunk", 8)))),
    ),
    "HDF5 jpeg": (("jpeg.h5", Recipe(64, 48, options=(("encoding", "jpeg"),))),),
    "HDF5 yuv420": (("yuv.h5", Recipe(64, 48, options=(("encoding", "yuv420"),))),),
    "LMDB raw": (
        ("raw.lmdb", Recipe(160)),
        ("small.lmdb", Recipe(64, 16, True)),
    ),
    "LMDB jpeg": (
        ("jpeg.lmdb", Recipe(64, 48, options=(("encoding", "jpeg"),))),
        ("jpeg_small.lmdb", Recipe(200, 16, options=(("encoding", "jpeg"), ("quality", 70)))),
    ),
    "HDF5 ragged": (
        ("ragged.h5", Recipe(96, longest=40)),
        ("ragged_gzip.h5", Recipe(64, longest=300, options=(("compression", "gzip"),))),
    ),
    "LMDB ragged": (
        ("ragged.lmdb", Recipe(96, longest=40)),
        ("ragged_long.lmdb", Recipe(24, longest=3000)),
    ),
}


def build(formats: Sequence[str], folder: Path) -> dict[str, tuple[KnownSet, ...]]:
    """The sets of these formats below ``folder``, packed unless they are there already."""
    folder.mkdir(exist_ok=True)
    return {
        name: tuple(_build(file, recipe, folder) for file, recipe in FORMATS[name])
        for name in formats
    }


def _build(name: str, recipe: Recipe, folder: Path) -> KnownSet:
    done = folder / f"{name}.json"
    if done.exists():
        return KnownSet.from_json(done.read_text(encoding="utf-8"))
    other, target = folder / f"other_{name}", folder / name
    pack = _write_rows if recipe.longest else _pack
    pack(folder / f"photos_other_{name}", other, recipe, seed=2)
    packed = pack(folder / f"photos_{name}", target, recipe, seed=1)
    container = "LMDB" if name.endswith(".lmdb") else "HDF5"
    known = folder / f"expected_{name}"
    known.mkdir()
    options = dict(recipe.options)
    data, labels, lengths = _read(target, recipe.params)
    if options.get("encoding") in ("jpeg", "yuv420"):
        assert [number_in(image) for image in data] == list(range(recipe.count))
        assert np.abs(data.astype(int) - packed).mean() < 40
    else:
        assert np.array_equal(data, packed)
    assert np.array_equal(labels, _labels(recipe))
    np.save(known / "data.npy", data)
    np.save(known / "labels.npy", labels)
    np.save(known / "others.npy", _read(other, recipe.params)[0])
    if lengths is not None:
        assert np.array_equal(lengths, _lengths(recipe, seed=1))
        np.save(known / "lengths.npy", lengths)
    classes = None if recipe.floats else CLASSES
    made = KnownSet(str(target), container, str(known), classes, str(other), recipe.params)
    done.write_text(made.to_json(), encoding="utf-8")
    return made


def _lengths(recipe: Recipe, seed: int) -> npt.NDArray[np.int64]:
    """The lengths of rows: an empty one first, and the longest last."""
    found = np.random.default_rng(seed).integers(0, recipe.longest + 1, recipe.count)
    found[0], found[-1] = 0, recipe.longest
    return found


def _write_rows(_: Path, target: Path, recipe: Recipe, seed: int) -> npt.NDArray[np.int32]:
    """Rows of different length, as a reader fills them up."""
    from converters import Writer

    rng, labels = np.random.default_rng((seed, 3)), _labels(recipe)
    filled = np.zeros((recipe.count, recipe.longest, 4), np.int32)
    options: dict[str, Any] = dict(recipe.options)
    with Writer(target, variable_length=True, classes=CLASSES, **options) as writer:
        for number, length in enumerate(_lengths(recipe, seed).tolist()):
            row = rng.integers(-(2**31), 2**31, (length, 4), np.int32)
            filled[number, :length] = row
            writer.add(row, int(labels[number, 0]), path=f"{number:04d}")
    return filled


def _labels(recipe: Recipe) -> npt.NDArray[Any]:
    numbers = np.arange(recipe.count)
    if recipe.floats:
        return np.stack([numbers / 8, 100.5 - numbers], axis=1)
    return (numbers * len(CLASSES) // recipe.count)[:, None]


def _pack(photos: Path, target: Path, recipe: Recipe, seed: int) -> UInt8:
    from converters import convert

    pixels = np.stack([painted(i, recipe.height, seed) for i in range(recipe.count)])
    labels = _labels(recipe)
    lines = []
    for i, image in enumerate(pixels):
        folder = photos if recipe.floats else photos / CLASSES[int(labels[i, 0])]
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(folder / f"{i:04d}.png")
        lines.append(f"{i:04d}.png,{','.join(map(str, labels[i].tolist()))}\n")
    options = dict(recipe.options)
    if recipe.floats:
        table = photos.with_suffix(".csv")
        table.write_text("".join(["path,x,y\n", *lines]), encoding="utf-8")
        options["labels"] = table
    convert(photos, target, jobs=1, **options)
    return pixels


def _read(path: Path, params: dict[str, Any]) -> tuple[Any, Any, Any]:
    """Data, labels and lengths (None of pictures) of all records of a sound set, in order."""
    from asyncreader import AsyncReader

    given: dict[str, Any] = {"path": str(path), "verify": "always", **params}
    with AsyncReader(given, batch_size=16, last_batch="short", layout="NHWC", copy=True) as reader:
        batches = list(reader)
    assert np.concatenate([b.indices for b in batches]).tolist() == list(range(reader.count))
    columns = [[getattr(b, name) for b in batches] for name in ("data", "labels", "lengths")]
    return tuple(None if one[0] is None else np.concatenate(one) for one in columns)  # type: ignore
