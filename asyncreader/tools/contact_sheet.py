"""Draws a contact sheet: pictures in rows, two lines of words under each, words above and below."""

from __future__ import annotations

import functools
import math
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from ..errors import shown
from ..system.array_types import UInt8

if TYPE_CHECKING:
    from PIL import Image, ImageDraw


_PAPER: Final = (255, 255, 255)
_MOUNT: Final = (238, 239, 242)  # behind pictures that do not fill their square
_INK: Final = (24, 26, 31)
_GREY: Final = (102, 107, 117)
_RED: Final = (180, 35, 24)

_MARGIN: Final = 20
_GAP: Final = 12
_TITLE, _TEXT, _SMALL = 18, 14, 12

#: Fonts for letters that Pillow's own lacks, as Linux, macOS and Windows have them; Pillow knows
#: the folders. The first that has a letter draws it.
_FONTS: Final = (
    *("DejaVuSans.ttf", "NotoSans-Regular.ttf", "LiberationSans-Regular.ttf", "FreeSans.ttf"),
    *("NotoSansCJK-Regular.ttc", "NotoSansCJKsc-Regular.otf", "wqy-microhei.ttc", "wqy-zenhei.ttc"),
    *("DroidSansFallbackFull.ttf", "NotoSansDevanagari-Regular.ttf", "NotoSansThai-Regular.ttf"),
    *("NotoSansArabic-Regular.ttf", "NotoSansHebrew-Regular.ttf", "unifont.ttf"),
    *("Arial Unicode.ttf", "PingFang.ttc", "STHeiti Light.ttc", "AppleSDGothicNeo.ttc"),
    *("segoeui.ttf", "msyh.ttc", "msgothic.ttc", "malgun.ttf", "Nirmala.ttf", "LeelawUI.ttf"),
)

#: What a letter lacks that can be drawn without it.
_ACCENTS: Final = "accents"


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
    wide: int | None = None,
) -> Image.Image:
    """All ``tiles``, ``columns`` in a row, as an RGB picture. ``wide``: of a tile, if other than
    its ``side``."""
    from PIL import Image, ImageDraw

    columns = max(1, min(columns, len(tiles)))
    rows = math.ceil(len(tiles) / columns)
    step_y = side + 2 * (_TEXT + 4) + _GAP
    across = wide or side
    width = max(2 * _MARGIN + columns * (across + _GAP) - _GAP, 2 * _MARGIN + 320)
    width_left = width - 2 * _MARGIN
    about = _wrapped(subtitle, width_left, _TEXT)
    head = _MARGIN + _TITLE + 18 + (_TEXT + 6) * max(1, len(about))
    lines = [line for note in notes for line in _wrapped(note, width_left)]
    height = head + rows * step_y + len(lines) * (_SMALL + 6) + _MARGIN
    sheet = Image.new("RGB", (width, height), _PAPER)
    draw = ImageDraw.Draw(sheet)
    _write(draw, (_MARGIN, _MARGIN), title, _TITLE, _INK, width_left)
    for number, line in enumerate(about):
        top = _MARGIN + _TITLE + 8 + number * (_TEXT + 6)
        _write(draw, (_MARGIN, top), line, _TEXT, _GREY, width_left)
    for number, tile in enumerate(tiles):
        left = _MARGIN + number % columns * (across + _GAP)
        top = head + number // columns * step_y
        draw.rectangle((left, top, left + across - 1, top + side - 1), _MOUNT)
        if tile.picture is None:
            _draw_bad(draw, left, top, side, tile.bad or "")
        else:
            high, broad = tile.picture.shape[:2]
            corner = (left + (across - broad) // 2, top + (side - high) // 2)
            sheet.paste(Image.fromarray(tile.picture), corner)
        _write(draw, (left, top + side + 4), tile.name, _TEXT, _INK, across)
        _write(draw, (left, top + side + 22), tile.note, _SMALL, _GREY, across)
    top = head + rows * step_y
    for number, line in enumerate(lines):
        _write(draw, (_MARGIN, top + number * (_SMALL + 6)), line, _SMALL, _GREY, width_left)
    return sheet


def _draw_bad(draw: ImageDraw.ImageDraw, left: int, top: int, side: int, words: str) -> None:
    edge = (left, top, left + side - 1, top + side - 1)
    draw.rectangle(edge, outline=_RED, width=2)
    lines = _wrapped(f"bad: {words}", side - 16)
    for number, line in enumerate(lines[: (side - 16) // (_SMALL + 3)]):
        _write(draw, (left + 8, top + 8 + number * (_SMALL + 3)), line, _SMALL, _RED, side - 16)


def _write(
    draw: ImageDraw.ImageDraw,
    corner: tuple[int, int],
    text: str,
    size: int,
    colour: tuple[int, int, int],
    width_left: int,
) -> None:
    """One line in ``width_left`` pixels: what does not fit becomes "..." in its middle."""
    if len(text) > width_left:  # a letter takes a pixel: megabytes of them need not be measured
        text = _cut(text, width_left)
    text = in_words(text)
    length = _length(text, size)
    if length > width_left:
        # long names differ at the end as often as at the beginning
        keep = int(len(text) * width_left / length)
        while keep > 2 and _length(_cut(text, keep), size) > width_left:
            keep -= 1
        text = _cut(text, keep)
    left, top = corner
    base = top + _font("", size).getmetrics()[0]  # of all fonts of a line, so that it is one line
    for font, run in _runs(text, size):
        draw.text((left, base), run, fill=colour, font=font, anchor="ls")
        left += font.getlength(run)


def _cut(text: str, keep: int) -> str:
    first = (keep + 1) // 2
    return f"{text[:first].rstrip()}...{text[len(text) - (keep - first) :].lstrip()}"


def _wrapped(text: str, width_left: int, size: int = _SMALL) -> list[str]:
    lines = [""]
    for word in in_words(text).split(" "):
        longer = f"{lines[-1]} {word}".strip()
        if lines[-1] and _length(longer, size) > width_left:
            lines.append(word)
        else:
            lines[-1] = longer
    return [line for line in lines if line]


# -- fonts ---------------------------------------------------------------------------------------


def undrawn(texts: Iterable[str]) -> str | None:
    """What the foot of a sheet says of letters in ``texts`` that no font has; None if all are."""
    letters = {letter for text in texts for letter in _composed(text)}
    lacking = sorted({_lacking(letter) for letter in letters if _font_of(letter) is None})
    if not lacking:
        return None
    return f"no installed font has: {', '.join(lacking)}; one such as Noto Sans may have them"


def _composed(text: str) -> str:
    """Fit to be shown, and each accent one with its letter: some systems keep names in two."""
    return unicodedata.normalize("NFC", shown(text))


def in_words(text: str) -> str:
    """``text`` with letters that no font has in words, "[CJK letters]", or without accents."""
    text = _composed(text)
    if text.isascii():
        return text
    parts: list[str] = []
    for letter in text:
        if _font_of(letter) is not None:
            parts.append(letter)
        elif _lacking(letter) == _ACCENTS:
            parts += filter(str.isascii, unicodedata.normalize("NFD", letter))
        elif parts[-1:] != [words := f"[{_lacking(letter)}]"]:
            parts.append(words)
    return "".join(parts)


def _lacking(letter: str) -> str:
    """A letter that no font has in words: "Thai letters", or what another sign is called: "cat"."""
    name = unicodedata.name(letter, "UNNAMED SIGN")
    if name.startswith("COMBINING") or unicodedata.normalize("NFD", letter)[0].isascii():
        return _ACCENTS
    if unicodedata.category(letter)[0] not in "LM":
        return name.lower()
    first = name.split()[0]
    return f"{first if first == 'CJK' else first.capitalize()} letters"


def _length(text: str, size: int) -> float:
    return float(sum(font.getlength(run) for font, run in _runs(text, size)))


def _runs(text: str, size: int) -> list[tuple[Any, str]]:
    """``text`` in pieces, each with a font that has all its letters."""
    name, begun, found = "", 0, []
    if not text.isascii():
        for at, letter in enumerate(text):
            if not letter.isspace() and not _has(name, letter):
                found.append((name, text[begun:at]))
                name, begun = _font_of(letter) or "", at
    found.append((name, text[begun:]))
    return [(_font(name, size), run) for name, run in found if run]


@functools.lru_cache(4096)
def _font_of(letter: str) -> str | None:
    """The first font that has a letter; "" is Pillow's own, None if none has it."""
    if letter.isascii() or letter.isspace():
        return ""
    return next((name for name in ("", *_FONTS) if _has(name, letter)), None)


@functools.cache
def _font(name: str, size: int) -> Any:
    """A font by its file's name, "" for the one that Pillow brings along; None without it."""
    from PIL import ImageFont

    if not name:
        return ImageFont.load_default(size)
    try:
        return ImageFont.truetype(name, size)
    except OSError:
        return None


@functools.lru_cache(65_536)
def _has(name: str, letter: str) -> bool:
    """Whether a font has a letter: what it draws is not its box for missing letters."""
    return _font(name, _TEXT) is not None and _drawn(name, letter) != _drawn(name, "\U0010ffff")


@functools.lru_cache(4096)
def _drawn(name: str, letter: str) -> tuple[Any, bytes]:
    """A letter alone as it is: shaping would put a vowel sign on a dotted circle."""
    from PIL import ImageFont

    plain = _font(name, _TEXT).font_variant(layout_engine=ImageFont.Layout.BASIC)
    mask = plain.getmask(letter)
    return mask.size, bytes(mask)
