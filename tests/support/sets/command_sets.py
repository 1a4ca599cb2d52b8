"""Runs a command in this process, and makes sets that the tests of the commands share."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from click.testing import CliRunner, Result
from fakes import pictures
from PIL import Image

import converters
from asyncreader.cli.main import cli

#: Class names that try to break out of a page, and some that only look odd.
HOSTILE = (
    "<img src=x onerror=alert(1)>",
    "\"' onmouseover=alert(1) x='",
    "{braces} & &amp; %s",
    "-->]]>",
    "\u202ertl",
    "new\nline",
    "\u732b \u0438 \u0441\u043e\u0431\u0430\u043a\u0430",
    "x" * 200,
)


def run(*words: str | Path) -> Result:
    """``asyncreader`` with these words."""
    return CliRunner().invoke(cli, [str(word) for word in words])


def save_images(folder: Path, images: Mapping[str, Any]) -> Path:
    """Files of pixels, or of images, by their paths in the folder, which is made."""
    for name, image in images.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        found = image if isinstance(image, Image.Image) else Image.fromarray(np.asarray(image))
        found.save(folder / name)
    return folder


def pets(folder: Path) -> Path:
    """24 PNGs in HDF5: 10 cat, 8 dog (40 x 30), 6 eel (30 x 40, width x height).

    Records 1, 2 and 3 are the same, so are 4 (cat) and 12 (dog); 20 is of one colour.
    """
    wide, tall = pictures(24, (30, 40, 3)), pictures(24, (40, 30, 3))
    wide[2] = wide[3] = wide[1]
    wide[12] = wide[4]
    tall[20] = 99
    names = ["cat"] * 10 + ["dog"] * 8 + ["eel"] * 6
    images = {
        f"{name}/{number:02}.png": (tall if name == "eel" else wide)[number]
        for number, name in enumerate(names)
    }
    converters.convert(
        save_images(folder / "photos", images), folder / "pets.h5", encoding="original"
    )
    return folder / "pets.h5"


def differing(target: Path) -> Path:
    """Three PNGs of 10, 11 and 12 x 12 (width x height) as they are, without labels."""
    folder = target.parent / "differing"
    folder.mkdir()
    for number in range(3):
        Image.new("RGB", (10 + number, 12)).save(folder / f"{number}.png")
    converters.convert(folder, target, encoding="original", no_labels=True)
    return target


def damaged(packed: Path, target: Path, *records: int) -> Path:
    """A copy with one bit of some records turned."""
    data = bytearray(packed.read_bytes())
    with h5py.File(packed) as file:
        start, stored = file["data"].id.get_offset(), file["data"]
        row = 1 if "offsets" in file else stored[0].nbytes
        offsets = file["offsets"][:] if "offsets" in file else np.arange(len(stored) + 1)
    for record in records:
        data[start + row * int(np.mean(offsets[record : record + 2]))] ^= 1
    target.write_bytes(data)
    return target


def grainy(folder: Path) -> Path:
    """16 pictures of 200 x 150 noise in two classes: their thumbnails are as large as those of any
    photograph."""
    noise = np.random.default_rng(0).integers(0, 256, (16, 150, 200, 3), np.uint8)
    for number, pixels in enumerate(noise):
        path = folder / "grain" / f"{number % 2}" / f"{number:02}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(path, quality=95)
    converters.convert(folder / "grain", folder / "grain.h5", encoding="original")
    return folder / "grain.h5"
