"""The benchmark's inputs, cut from photographs that scikit-image and scikit-learn ship.

Each is built once in the folder given and found again by later runs. Sizes follow what people
train on: 224 x 224 crops, CIFAR's 32 x 32, and JPEGs of 500 x 375 at quality 90, 4:2:0.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

RAW224 = 4000
RAW32 = 50_000
#: Shards of the sharded sets.
SHARDS = 8
#: Different JPEGs, and how often each is in the set: an epoch of 1,000 pictures would be over
#: before a loader that starts anew each epoch is under way.
JPEGS = 1000
TIMES = 10
QUALITY = 90


def photographs() -> list[np.ndarray]:
    """The colour photographs, uint8 (H, W, 3)."""
    import skimage.data
    from sklearn.datasets import load_sample_images

    names = ("astronaut", "chelsea", "coffee", "rocket", "retina", "immunohistochemistry")
    found = []
    for name in names:
        try:
            found.append(np.asarray(getattr(skimage.data, name)())[..., :3])
        except Exception:  # some are fetched over a network on first use: those that ship will do
            continue
    return found + [np.asarray(image) for image in load_sample_images().images]


def crops(count: int, height: int, width: int, seed: int) -> Iterator[np.ndarray]:
    """``count`` pieces of the photographs, rescaled to (height, width, 3), mirrored at random."""
    rng = np.random.default_rng(seed)
    photos = photographs()
    for _ in range(count):
        photo = photos[rng.integers(len(photos))]
        h, w = photo.shape[:2]
        scale = rng.uniform(0.45, 1.0)
        if w * height >= h * width:
            rows, columns = h * scale, h * scale * width / height
        else:
            rows, columns = w * scale * height / width, w * scale
        top, left = rng.uniform(0, h - rows), rng.uniform(0, w - columns)
        piece = Image.fromarray(photo).resize(
            (width, height), Image.Resampling.BILINEAR, box=(left, top, left + columns, top + rows)
        )
        pixels = np.asarray(piece)
        yield pixels[:, ::-1] if rng.random() < 0.5 else pixels


def once(path: Path, make: Callable[[Path], None]) -> Path:
    """``path``, made by ``make(temporary)`` unless it is there."""
    if not path.exists():
        temporary = path.with_name(path.name + ".part")
        print(f"building {path.name} ...", flush=True)
        make(temporary)
        temporary.rename(path)
    return path


def raw_array(folder: Path, name: str, count: int, side: int) -> Path:
    """``count`` raw pictures as a .npy (count, side, side, 3) uint8."""

    def make(path: Path) -> None:
        pixels = np.empty((count, side, side, 3), np.uint8)
        for i, piece in enumerate(crops(count, side, side, seed=side)):
            pixels[i] = piece
        with open(path, "wb") as file:
            np.save(file, pixels)

    return once(folder / f"{name}.npy", make)


def jpeg_folder(folder: Path, count: int = JPEGS, times: int = 1) -> Path:
    """``count`` JPEGs of 500 x 375 in ten class folders, each there ``times`` times."""

    def make(path: Path) -> None:
        for i, piece in enumerate(crops(count, 375, 500, seed=1)):
            into = path / f"class{i % 10}"
            into.mkdir(parents=True, exist_ok=True)
            held = io.BytesIO()
            Image.fromarray(piece).save(held, "JPEG", quality=QUALITY, subsampling=2)
            for turn in range(times):
                (into / f"{i:05d}-{turn}.jpg").write_bytes(held.getvalue())

    return once(folder / f"jpeg{count}x{times}", make)


def pack_raw(path: Path, pixels: Any, **options: Any) -> None:
    """Raw rows as an HDF5 file of plain h5py."""
    import h5py

    with h5py.File(path, "w") as file:
        data = file.create_dataset("data", pixels.shape, "u1", **options)
        for low in range(0, len(pixels), 64):
            data[low : low + 64] = pixels[low : low + 64]
        file["labels"] = np.arange(len(pixels))[:, None]


def pack_lmdb(path: Path, pixels: Any) -> None:
    """Raw rows as an LMDB of ours."""
    from converters import convert

    middle = path.with_name(path.name + "_middle.h5")
    pack_raw(middle, pixels)
    convert(middle, path, format="lmdb")
    middle.unlink()


def pack_halves(path: Path, pixels: Any) -> None:
    """Raw rows as two HDF5 files of plain h5py in one folder."""
    path.mkdir()
    half = len(pixels) // 2
    pack_raw(path / "a.h5", pixels[:half])
    pack_raw(path / "b.h5", pixels[half:])


def pack_shards(path: Path, pixels: Any, count: int = SHARDS) -> None:
    """Raw rows as shards of ours."""
    from converters import convert

    middle = path.with_name(path.name + "_middle.h5")
    pack_raw(middle, pixels)
    convert(middle, path, format="hdf5", shards=count)
    middle.unlink()


def build(folder: Path) -> dict[str, str]:
    """All inputs, as paths."""
    from converters import convert

    made: dict[str, Path] = {
        "raw224": raw_array(folder, "raw224", RAW224, 224),
        "raw32": raw_array(folder, "raw32", RAW32, 32),
        "jpeg": jpeg_folder(folder, JPEGS, TIMES),
    }
    for name, chunk in (("raw224", 1), ("raw32", 64)):
        pixels = np.load(made[name], mmap_mode="r")
        gzip: dict[str, Any] = {"chunks": (chunk, *pixels.shape[1:]), "compression": "gzip"}
        for key, file, pack, options in (
            ("h5", "plain.h5", pack_raw, {}),
            ("gz", "gzip.h5", pack_raw, gzip),
            ("lmdb", "lmdb", pack_lmdb, {}),
            ("halves", "halves", pack_halves, {}),
            ("shards", "shards", pack_shards, {}),
        ):

            def make(
                path: Path, pack: Any = pack, pixels: Any = pixels, options: Any = options
            ) -> None:
                pack(path, pixels, **options)

            made[f"{name}.{key}"] = once(folder / f"{name}_{file}", make)
    for suffix, kind in (("lmdb", "lmdb"), ("h5", "hdf5")):

        def original(path: Path, kind: str = kind) -> None:
            convert(made["jpeg"], path, encoding="original", format=kind)

        made[f"jpeg.{suffix}"] = once(folder / f"{made['jpeg'].name}.{suffix}", original)

    def restarts(path: Path) -> None:
        convert(made["jpeg"], path, encoding="original", format="hdf5", restarts=True)

    made["jpeg.restarts"] = once(folder / f"{made['jpeg'].name}_restarts.h5", restarts)
    for encoding in ("raw", "yuv420", "jpeg"):

        def at_256(path: Path, encoding: str = encoding) -> None:
            convert(made["jpeg"], path, encoding=encoding, format="hdf5", size=(256, 256))

        made[f"{encoding}256"] = once(folder / f"{made['jpeg'].name}_256_{encoding}.h5", at_256)
    return {name: str(path) for name, path in made.items()}


def jpeg_bytes(folder: Path) -> float:
    """Mean size (bytes) of a folder's JPEGs."""
    sizes = [file.stat().st_size for file in folder.rglob("*.jpg")]
    return sum(sizes) / len(sizes)


#: The shape of a volume: 200 MB of pictures, and 100 MB of labels.
VOLUME = (384, 512, 512)


def volume(folder: Path, number: int = 0) -> Path:
    """A volume, uint16 under ``raw``, with its labels, uint8 under ``label``: gzip in the chunks
    that h5py chooses."""
    import h5py

    def make(path: Path) -> None:
        rng = np.random.default_rng(number)
        axes = (np.linspace(0, 20, n).reshape(at) for n, at in zip(
            VOLUME, ((-1, 1, 1), (-1, 1), (-1,)), strict=True))  # fmt: skip
        z, y, x = axes
        smooth = (np.sin(z) + np.sin(y * 1.3) + np.cos(x * 0.7)) * 2000 + 8000
        with h5py.File(path, "w") as file:
            for name, data in (
                ("raw", (smooth + rng.normal(0, 60, VOLUME)).astype(np.uint16)),
                ("label", (smooth // 1500).astype(np.uint8)),
            ):
                file.create_dataset(name, data=data, chunks=True, compression="gzip")

    return once(folder / f"volume{number or ''}.h5", make)
