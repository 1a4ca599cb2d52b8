"""Draws the diagrams that need no measurement: ``python tests/support/diagrams.py``.

docs/images gets window.svg (rows of an episode that a window takes), patches.svg (places of
patches), ranks.svg (samples of a step by rank), encodings.svg (which encoding to choose) and
strips.png (crops, flips and operations, as AsyncReader serves them).
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping
from html import escape
from pathlib import Path
from typing import Any, Final

import numpy as np
from PIL import Image, ImageDraw, ImageFont
from project import ROOT

from asyncreader import AsyncReader, convert

IMAGES: Final = ROOT / "docs" / "images"

#: Colours that can be told apart in light and dark, and by the colour-blind.
BLUE, ORANGE, GREEN, GREY, LINE, TEXT = (
    "#4a6fa5",
    "#e0a040",
    "#5a9a6a",
    "#dddddd",
    "#888888",
    "#222222",
)


def svg(width: int, height: int, title: str, parts: Iterable[str]) -> str:
    """A diagram on a white ground, with a title for those who cannot see it."""
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'font-family="sans-serif" font-size="14" role="img">\n  <title>{escape(title)}</title>\n'
        f'  <rect width="{width}" height="{height}" rx="8" fill="#ffffff"/>\n'
    )
    return head + "".join(f"  {part}\n" for part in parts) + "</svg>\n"


def box(x: float, y: float, wide: float, high: float, fill: str, more: str = "") -> str:
    """A rectangle."""
    place = f'x="{x:g}" y="{y:g}" width="{wide:g}" height="{high:g}"'
    return f'<rect {place} fill="{fill}" stroke="#ffffff" {more}/>'


def words(x: float, y: float, text: str, fill: str = TEXT, anchor: str = "start") -> str:
    """A line of text."""
    return f'<text x="{x:g}" y="{y:g}" fill="{fill}" text-anchor="{anchor}">{escape(text)}</text>'


def window() -> str:
    """Twelve rows of an episode, and what window=(-1, 4) takes of them at three anchors."""
    left, wide, rows = 190, 40, 12
    parts = [words(20, 38, "rows of an episode")]
    for row in range(rows):
        parts.append(box(left + row * wide, 20, wide, 28, GREY))
        parts.append(words(left + (row + 0.5) * wide, 39, str(row), anchor="middle"))
    for line, anchor in enumerate((0, 5, 10)):
        y = 70 + line * 44
        parts.append(words(20, y + 19, f"anchor {anchor}"))
        for row in range(anchor - 1, anchor + 4):
            real = 0 <= row < rows
            shown = min(max(row, 0), rows - 1)
            fill = (ORANGE if row == anchor else BLUE) if real else "#ffffff"
            edge = "" if real else f'style="stroke:{LINE};stroke-dasharray:4"'
            parts.append(box(left + row * wide, y, wide, 28, fill, edge))
            x = left + (row + 0.5) * wide
            parts.append(words(x, y + 19, str(shown), "#ffffff" if real else TEXT, "middle"))
    y = 70 + 3 * 44
    notes = (
        "window=(-1, 4): the row before the anchor, the anchor (orange), and three after it.",
        'Dashed: outside of the episode. window_edge="repeat" serves the row written there, "zero" '
        "zeros;",
        'batch.present is False. "drop", the default, leaves out the first and the last window.',
    )
    parts += [words(20, y + 18 + 20 * number, note) for number, note in enumerate(notes)]
    title = (
        "A window of five rows, one before its anchor, at the start, middle and end of an episode"
    )
    return svg(800, y + 72, title, parts)


def patches() -> str:
    """Where patches of 32 x 32 lie in a volume of 72 x 80, by patch_at."""
    height, wide, side, scale = 72, 80, 32, 2.6
    parts = []

    def starts(extent: int) -> list[int]:
        return sorted({min(at, extent - side) for at in range(0, extent, side)})

    grid = [(y, x) for y in starts(height) for x in starts(wide)]
    rng = np.random.default_rng(3)
    drawn = [(int(rng.integers(height - side)), int(rng.integers(wide - side))) for _ in range(4)]
    kinds: Mapping[str, list[tuple[int, int]]] = {
        'patch_at="grid"': grid,
        'patch_at="random"': drawn,
        'patch_at="center"': [((height - side) // 2, (wide - side) // 2)],
    }
    for number, (name, corners) in enumerate(kinds.items()):
        left, top = 30 + number * 250, 40
        parts.append(words(left, 26, name))
        parts.append(box(left, top, wide * scale, height * scale, "#f0f0f0"))
        for y, x in corners:
            place = left + x * scale, top + y * scale, side * scale, side * scale
            parts.append(box(*place, BLUE, f'fill-opacity="0.35" style="stroke:{BLUE}"'))
    note = "The last patches of a grid are shifted inwards: they overlap those before them (dark)."
    parts.append(words(30, 40 + height * scale + 28, note))
    title = "Places of patches: a grid that covers the volume, four random places, the centre"
    return svg(780, int(40 + height * scale + 44), title, parts)


def ranks() -> str:
    """Which positions of the order are served by which rank, in which step."""
    left, wide, batch, world = 130, 50, 3, 2
    parts = [words(20, 42, "order of epoch")]
    for position in range(12):
        step, place = divmod(position, batch * world)
        fill = BLUE if place < batch else ORANGE
        parts.append(box(left + position * wide, 24, wide, 28, fill))
        name = str((position * 7 + 4) % 12)
        parts.append(words(left + (position + 0.5) * wide, 43, name, "#ffffff", "middle"))
        if place == 0:
            x = left + position * wide
            parts.append(words(x + 1.5 * world * wide, 74, f"step {step}", anchor="middle"))
            for rank in range(world):
                x = left + (position + rank * batch) * wide
                where = f'x1="{x + 4}" y1="84" x2="{x + batch * wide - 4}" y2="84"'
                parts.append(f'<line {where} stroke="{(BLUE, ORANGE)[rank]}" stroke-width="4"/>')
                parts.append(words(x + 1.5 * wide, 104, f"rank {rank}", anchor="middle"))
    notes = (
        "batch_size=3, world_size=2: the batches of all ranks at a step, one after the other, are",
        "the batch that one process with batch_size=6 would get. A state says how many samples",
        "were delivered, so any number of ranks can continue from it.",
    )
    parts += [words(20, 136 + 20 * number, note) for number, note in enumerate(notes)]
    return svg(
        760, 190, "Samples of two steps by rank: rank 0 takes three, rank 1 the next three", parts
    )


def encodings() -> str:
    """A tree: which encoding of convert fits."""
    asked = (
        ("Do all images as pixels fit on the disk, and in memory?", "--encoding raw", "fastest"),
        ("Would half as many bytes fit?", "--encoding yuv420", "colours at half resolution"),
        (
            "Are the files JPEGs that you want to keep as they are?",
            "--encoding original --restarts",
            "no loss; crops decode a part",
        ),
        ("Must no pixel change?", "--encoding png", "slowest to decode"),
    )
    parts = []
    for number, (question, answer, why) in enumerate(asked):
        y = 20 + number * 66
        parts.append(box(20, y, 425, 34, "#eef2f8", f'rx="6" style="stroke:{BLUE}"'))
        parts.append(words(34, y + 22, question))
        parts.append(f'<path d="M445 {y + 17} h45" stroke="{LINE}" fill="none"/>')
        parts.append(words(454, y + 12, "yes", LINE))
        parts.append(box(490, y, 290, 34, BLUE, 'rx="6"'))
        parts.append(words(504, y + 22, answer, "#ffffff"))
        parts.append(words(504, y + 50, why, LINE))
        parts.append(f'<path d="M60 {y + 34} v32" stroke="{LINE}" fill="none"/>')
        parts.append(words(68, y + 55, "no", LINE))
    y = 20 + len(asked) * 66
    parts.append(box(20, y, 425, 34, BLUE, 'rx="6"'))
    parts.append(words(34, y + 22, "--encoding jpeg --size 256", "#ffffff"))
    parts.append(
        words(34, y + 50, "the usual choice for photographs; restart markers are added", LINE)
    )
    return svg(
        800, y + 66, "Which encoding: raw if it fits, else yuv420, original, png or jpeg", parts
    )


#: The rows of strips.png: what they show, and the parameters.
STRIPS: Final[tuple[tuple[str, dict[str, Any]], ...]] = (
    ('crop="center"', {}),
    ('crop="random"', {"crop": "random", "crop_ratio": 0.7}),
    ('crop="random-resized"', {"crop": "random-resized", "crop_area": (0.2, 1.0)}),
    ("flip=True", {"flip": True}),
    ('augment="trivial-augment-wide"', {"augment": "trivial-augment-wide"}),
    ('augment="random-erasing", p=1', {"augment": [("random-erasing", {"p": 1.0})]}),
)


def strips() -> Image.Image:
    """One image in seven epochs, a row for each set of parameters."""
    side, epochs, left = 88, 7, 250
    sheet = Image.new("RGB", (left + epochs * (side + 4), len(STRIPS) * (side + 4) + 4), "white")
    pen, font = ImageDraw.Draw(sheet), ImageFont.load_default(14)
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder, "set.h5"))
        convert(str(ROOT / "sample_data" / "train"), path, size=(128, 128), progress=False)
        for row, (name, given) in enumerate(STRIPS):
            y = 4 + row * (side + 4)
            pen.text((8, y + side / 2 - 8), name, TEXT, font)
            known = {"path": path, "subset": [100], "size": (side, side), "layout": "NHWC"}
            with AsyncReader(known | given, batch_size=1, seed=3) as reader:
                for column in range(epochs):
                    image = next(iter(reader)).data[0]
                    sheet.paste(Image.fromarray(image.copy()), (left + column * (side + 4), y))
    return sheet


DRAWN: Final[Mapping[str, Callable[[], str]]] = {
    "window": window,
    "patches": patches,
    "ranks": ranks,
    "encodings": encodings,
}


def main() -> int:
    """Writes all of them."""
    for name, draw in DRAWN.items():
        (IMAGES / f"{name}.svg").write_text(draw(), encoding="utf-8")
    strips().save(IMAGES / "strips.png", optimize=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
