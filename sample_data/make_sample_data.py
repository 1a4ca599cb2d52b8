"""Draws the sample pictures: four shapes, with everything but the shape left to chance.

Run ``python sample_data/make_sample_data.py``; it replaces ``sample_data/train`` and
``sample_data/test``. Every picture has a random generator of its own, seeded by (split, class,
number), so the set does not depend on the order of drawing and the two splits share no picture.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

HERE = Path(__file__).resolve().parent
SEED = 20240607
CLASSES = ("circle", "cross", "square", "triangle")
SPLITS = {"train": 88, "test": 28}  # pictures per class
SIZES = ((72, 72), (96, 96), (112, 84), (84, 120), (101, 77), (75, 99))  # (width, height)
SUPERSAMPLE = 4  # the mask is drawn this much larger, then reduced, for smooth edges

# The odd kinds of picture file, by (class, number in the training split).
ODD_KINDS = {
    ("circle", 5): "grey",
    ("cross", 5): "cmyk",
    ("square", 5): "grey-alpha",
    ("triangle", 5): "palette",
    ("circle", 6): "rgba",
    ("cross", 6): "animated",
    ("square", 6): "webp",
    ("triangle", 6): "exif",
    ("square", 7): "spaces",
}


def outline(shape: str, radius: float) -> list[tuple[float, float]]:
    """The corners of ``shape`` around (0, 0), with the area of a circle of ``radius``.

    Equal areas, because a shape that covered more of the picture could be told by counting pixels.
    """
    area = math.pi * radius**2
    if shape == "circle":
        turns = np.linspace(0.0, 2 * math.pi, 90, endpoint=False)
        return [(radius * math.cos(t), radius * math.sin(t)) for t in turns]
    if shape == "square":
        h = math.sqrt(area) / 2
        return [(-h, -h), (h, -h), (h, h), (-h, h)]
    if shape == "triangle":
        r = math.sqrt(area * 4 / (3 * math.sqrt(3)))  # circumscribed circle, equal sides
        return [(r * math.sin(t), -r * math.cos(t)) for t in (0, 2 * math.pi / 3, 4 * math.pi / 3)]
    if shape == "cross":
        h = math.sqrt(area / 5) / 2  # five small squares of side 2h
        a = 3 * h
        return [
            (-h, -a), (h, -a), (h, -h), (a, -h), (a, h), (h, h),
            (h, a), (-h, a), (-h, h), (-a, h), (-a, -h), (-h, -h),
        ]  # fmt: skip
    raise ValueError(f"unknown shape {shape!r}")


def draw_mask(shape: str, size: tuple[int, int], rng: np.random.Generator) -> NDArray[np.float64]:
    """How much of every pixel the shape covers: (height, width) float64 in 0..1.

    Size, place and angle are drawn for the central square, so a square crop keeps the shape whole.
    """
    width, height = size
    side = min(width, height)
    radius = rng.uniform(0.17, 0.25) * side
    angle = math.radians(rng.uniform(-12, 12))
    cx = width / 2 + rng.uniform(-0.06, 0.06) * side
    cy = height / 2 + rng.uniform(-0.06, 0.06) * side
    cos, sin = math.cos(angle), math.sin(angle)
    corners = [
        (SUPERSAMPLE * (cx + cos * x - sin * y), SUPERSAMPLE * (cy + sin * x + cos * y))
        for x, y in outline(shape, radius)
    ]
    large = Image.new("L", (width * SUPERSAMPLE, height * SUPERSAMPLE))
    ImageDraw.Draw(large).polygon(corners, fill=255)
    return np.asarray(large.reduce(SUPERSAMPLE), dtype=np.float64) / 255


def draw_colours(rng: np.random.Generator) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Foreground and background: two (3,) float64 RGB colours that also differ in brightness.

    The difference keeps the shape visible in the grey pictures; which one is lighter is chance.
    """
    while True:
        fore, back = rng.uniform(10, 245, size=(2, 3))
        if abs(float((fore - back) @ (0.299, 0.587, 0.114))) >= 70:
            return fore, back


def draw_picture(
    shape: str, size: tuple[int, int], grain: bool, rng: np.random.Generator
) -> Image.Image:
    """One RGB picture: the shape in one colour on a patchy background of another.

    ``grain`` adds pixel noise, which JPEG stores in few bytes and PNG does not.
    """
    width, height = size
    mask = draw_mask(shape, size, rng)[..., None]
    fore, back = draw_colours(rng)
    cell = int(rng.integers(4, 11))  # the background's noise: square patches of this side
    patches = rng.normal(0, rng.uniform(2, 11), size=(height // cell + 1, width // cell + 1, 3))
    noise = patches.repeat(cell, axis=0).repeat(cell, axis=1)[:height, :width]
    pixels = mask * fore + (1 - mask) * (back + noise)
    if grain:
        pixels += rng.normal(0, rng.uniform(0, 8), size=pixels.shape)
    return Image.fromarray(np.clip(np.rint(pixels), 0, 255).astype(np.uint8))


def save_plain(picture: Image.Image, stem: Path, jpeg: bool, rng: np.random.Generator) -> None:
    """Save as an RGB PNG, or as a JPEG of random quality, chroma subsampling and scan order."""
    if not jpeg:
        picture.save(stem.with_suffix(".png"), optimize=True)
        return
    picture.save(
        stem.with_suffix(".jpg"),
        quality=int(rng.integers(65, 91)),
        subsampling=int(rng.integers(0, 3)),
        progressive=bool(rng.integers(0, 4) == 0),
        optimize=True,
    )


def save_odd(picture: Image.Image, stem: Path, kind: str, other: Image.Image) -> None:
    """Save as one of the ODD_KINDS; ``other`` is another class's picture, for the second frame."""

    def rgba() -> Image.Image:
        # Half-clear right half: dropping alpha or blending it both leave the shape to be seen.
        alpha = Image.new("L", picture.size, 255)
        alpha.paste(160, (picture.width // 2, 0, picture.width, picture.height))
        picture.putalpha(alpha)
        return picture

    def exif() -> None:
        # 6 = "turn a quarter clockwise to view", so the stored pixels are turned the other way.
        tags = Image.Exif()
        tags[0x0112] = 6
        turned = picture.transpose(Image.Transpose.ROTATE_90)
        turned.save(f"{stem}_exif.jpg", quality=80, exif=tags)

    grey = picture.convert("L")
    frames = [p.quantize(24, dither=Image.Dither.NONE) for p in (picture, other)]
    writers: dict[str, Callable[[], None]] = {
        "grey": lambda: grey.save(f"{stem}_grey.jpg", quality=80),
        "cmyk": lambda: picture.convert("CMYK").save(f"{stem}_cmyk.jpg", quality=75),
        "grey-alpha": lambda: grey.convert("LA").save(f"{stem}_grey_alpha.png", optimize=True),
        "palette": lambda: frames[0].save(f"{stem}_palette.png", optimize=True),
        "rgba": lambda: rgba().save(f"{stem}_rgba.png", optimize=True),
        "animated": lambda: frames[0].save(
            f"{stem}_animated.gif", save_all=True, append_images=frames[1:], duration=400, loop=0
        ),
        "webp": lambda: picture.save(f"{stem}_webp.webp", quality=80),
        "exif": exif,
        "spaces": lambda: picture.save(
            stem.with_name(stem.name.replace("_", " ") + " with spaces.jpg"), quality=80
        ),
    }
    writers[kind]()


def make_one(folder: Path, split: str, shape: str, number: int) -> None:
    """Draw and save picture ``number`` of class ``shape`` in ``split``."""
    rng = np.random.default_rng([SEED, list(SPLITS).index(split), CLASSES.index(shape), number])
    size = SIZES[int(rng.integers(len(SIZES)))]
    kind = ODD_KINDS.get((shape, number)) if split == "train" else None
    jpeg = bool(rng.random() < 0.7)
    stem = folder / f"{shape}_{number:03d}"
    if kind is None:
        save_plain(draw_picture(shape, size, jpeg, rng), stem, jpeg, rng)
        return
    if kind == "exif":
        size = (72, 112)  # not square, so that ignoring the tag changes the picture's size
    picture = draw_picture(shape, size, False, rng)
    wrong = CLASSES[(CLASSES.index(shape) + 1) % len(CLASSES)]
    save_odd(picture, stem, kind, draw_picture(wrong, size, False, rng))


def main() -> None:
    """Replace both splits."""
    for split, count in SPLITS.items():
        shutil.rmtree(HERE / split, ignore_errors=True)
        for shape in CLASSES:
            folder = HERE / split / shape
            folder.mkdir(parents=True)
            for number in range(count):
                make_one(folder, split, shape, number)


if __name__ == "__main__":
    main()
