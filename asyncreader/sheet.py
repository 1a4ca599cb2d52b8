"""Draws a contact sheet: pictures in rows, two lines of words under each, words above and below."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from .errors import shown

if TYPE_CHECKING:
    from PIL import Image, ImageDraw

UInt8 = npt.NDArray[np.uint8]

_PAPER: Final = (255, 255, 255)
_MOUNT: Final = (238, 239, 242)  # behind pictures that do not fill their square
_INK: Final = (24, 26, 31)
_GREY: Final = (102, 107, 117)
_RED: Final = (180, 35, 24)

_MARGIN: Final = 20
_GAP: Final = 12
_TITLE, _TEXT, _SMALL = 18, 14, 12

#: Where the letters are that Pillow's own font lacks; the first that is installed and has them.
_WIDER_FONTS: Final = (
    "DejaVuSans.ttf",
    "NotoSans-Regular.ttf",
    "NotoSansCJK-Regular.ttc",
    "NotoSansCJKsc-Regular.otf",
    "wqy-microhei.ttc",
    "FreeSans.ttf",
)


@dataclass(frozen=True)
class Tile:
    """One square of a sheet. ``picture``: (h, w, 3) uint8 that fits it, None where it is bad."""

    picture: UInt8 | None
    name: str
    """The first line below it."""
    note: str
    """The second one."""
    bad: str | None = None
    """What is wrong with it, where there is no picture."""


def draw_sheet(
    tiles: Sequence[Tile],
    *,
    side: int,
    columns: int,
    title: str,
    subtitle: str,
    notes: Sequence[str] = (),
) -> Image.Image:
    """All ``tiles``, ``columns`` in a row, as an RGB picture."""
    from PIL import Image, ImageDraw

    columns = max(1, min(columns, len(tiles)))
    rows = math.ceil(len(tiles) / columns)
    step_y = side + 2 * (_TEXT + 4) + _GAP
    head = _MARGIN + _TITLE + _TEXT + 24
    width = max(2 * _MARGIN + columns * (side + _GAP) - _GAP, 2 * _MARGIN + 320)
    lines = [line for note in notes for line in _wrapped(note, width - 2 * _MARGIN)]
    height = head + rows * step_y + len(lines) * (_SMALL + 6) + _MARGIN
    sheet = Image.new("RGB", (width, height), _PAPER)
    draw = ImageDraw.Draw(sheet)
    room = width - 2 * _MARGIN
    _write(draw, (_MARGIN, _MARGIN), title, _TITLE, _INK, room)
    _write(draw, (_MARGIN, _MARGIN + _TITLE + 8), subtitle, _TEXT, _GREY, room)
    for number, tile in enumerate(tiles):
        left = _MARGIN + number % columns * (side + _GAP)
        top = head + number // columns * step_y
        draw.rectangle((left, top, left + side - 1, top + side - 1), _MOUNT)
        if tile.picture is None:
            _draw_bad(draw, left, top, side, tile.bad or "")
        else:
            high, wide = tile.picture.shape[:2]
            place = (left + (side - wide) // 2, top + (side - high) // 2)
            sheet.paste(Image.fromarray(tile.picture), place)
        _write(draw, (left, top + side + 4), tile.name, _TEXT, _INK, side)
        _write(draw, (left, top + side + 22), tile.note, _SMALL, _GREY, side)
    top = head + rows * step_y
    for number, line in enumerate(lines):
        _write(draw, (_MARGIN, top + number * (_SMALL + 6)), line, _SMALL, _GREY, room)
    return sheet


def _draw_bad(draw: ImageDraw.ImageDraw, left: int, top: int, side: int, words: str) -> None:
    edge = (left, top, left + side - 1, top + side - 1)
    draw.rectangle(edge, outline=_RED, width=2)
    lines = _wrapped(f"bad: {words}", side - 16)
    for number, line in enumerate(lines[: (side - 16) // (_SMALL + 3)]):
        _write(draw, (left + 8, top + 8 + number * (_SMALL + 3)), line, _SMALL, _RED, side - 16)


def _write(
    draw: ImageDraw.ImageDraw,
    place: tuple[int, int],
    text: str,
    size: int,
    colour: tuple[int, int, int],
    room: int,
) -> None:
    """One line that keeps to ``room`` pixels: what does not fit becomes "..." in its middle."""
    text = shown(text)
    if len(text) > room:  # a letter takes a pixel: megabytes of them need not be measured
        text = _cut(text, room)
    font = _font(size, text)
    if font is None:  # no font has these letters
        text = text.encode("ascii", "backslashreplace").decode()
        font = _font(size, "")
    length = font.getlength(text)
    if length > room:
        # the end tells long names apart as often as the beginning
        keep = int(len(text) * room / length)
        while keep > 2 and font.getlength(_cut(text, keep)) > room:
            keep -= 1
        text = _cut(text, keep)
    draw.text(place, text, fill=colour, font=font)


def _cut(text: str, keep: int) -> str:
    ahead = (keep + 1) // 2
    return f"{text[:ahead].rstrip()}...{text[len(text) - (keep - ahead) :].lstrip()}"


def _wrapped(text: str, room: int) -> list[str]:
    font = _font(_SMALL, text) or _font(_SMALL, "")
    lines = [""]
    for word in shown(text).split(" "):
        longer = f"{lines[-1]} {word}".strip()
        if lines[-1] and font.getlength(longer) > room:
            lines.append(word)
        else:
            lines[-1] = longer
    return [line for line in lines if line]


def _font(size: int, text: str) -> Any:
    """A font with every letter of ``text``; None if none is installed. Pillow brings one along."""
    fonts = _fonts(size)
    return fonts[0] if text.isascii() else next((f for f in fonts if _has(f, text)), None)


@functools.cache
def _fonts(size: int) -> list[Any]:
    from PIL import ImageFont

    found: list[Any] = [ImageFont.load_default(size)]
    for name in _WIDER_FONTS:
        with contextlib.suppress(OSError):
            found.append(ImageFont.truetype(name, size))
    return found


def _has(font: Any, text: str) -> bool:
    """Whether no letter of ``text`` is drawn as the box that stands for a missing one."""
    missing = _drawn(font, "\U0010ffff")
    return all(_drawn(font, letter) != missing for letter in set(text) if not letter.isspace())


@functools.lru_cache(4096)
def _drawn(font: Any, letter: str) -> tuple[Any, bytes]:
    mask = font.getmask(letter)
    return mask.size, bytes(mask)
