"""A contact sheet: images in rows, two lines of words under each, words above and below; how it is
put together."""

from __future__ import annotations

import functools
import math
import os
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ..errors import shown
from ..sampling.episodes import Windows
from ..sampling.patches import Patches
from ..sources import OpenSet
from ..sources.labels import split_counts
from ..system.array_types import Array, UInt8
from ..system.text import counts_in_words, some, times
from .describe import class_of, in_words
from .look import HIGH

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

#: Fonts for sheets with letters that Pillow's own, "", lacks, as Linux, macOS and Windows have
#: them; Pillow knows the folders. The first that has all letters of a sheet draws it.
_FONTS: Final = (
    *("", "DejaVuSans.ttf", "NotoSans-Regular.ttf", "LiberationSans-Regular.ttf", "FreeSans.ttf"),
    *("NotoSansCJK-Regular.ttc", "NotoSansCJKsc-Regular.otf", "wqy-microhei.ttc", "wqy-zenhei.ttc"),
    *("DroidSansFallbackFull.ttf", "NotoSansDevanagari-Regular.ttf", "NotoSansThai-Regular.ttf"),
    *("NotoSansArabic-Regular.ttf", "NotoSansHebrew-Regular.ttf", "unifont.ttf"),
    *("Arial Unicode.ttf", "PingFang.ttc", "STHeiti Light.ttc", "AppleSDGothicNeo.ttc"),
    *("segoeui.ttf", "msyh.ttc", "msgothic.ttc", "malgun.ttf", "Nirmala.ttf", "LeelawUI.ttf"),
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
    record: int = -1
    """Its record number; -1 for a padded row."""


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
    """All ``tiles``, ``columns`` in a row, as an RGB image. ``wide``: of a tile, if other than
    its ``side``."""
    from PIL import Image, ImageDraw

    columns = max(1, min(columns, len(tiles)))
    rows = math.ceil(len(tiles) / columns)
    step_y = side + 2 * (_TEXT + 4) + _GAP
    across = wide or side
    width = max(2 * _MARGIN + columns * (across + _GAP) - _GAP, 2 * _MARGIN + 320)
    width_left = width - 2 * _MARGIN
    pen = _Pen(font_for([title, *(tile.name for tile in tiles)])[0])
    about = pen.wrapped(subtitle, width_left, _TEXT)
    head = _MARGIN + _TITLE + 18 + (_TEXT + 6) * max(1, len(about))
    lines = [line for note in notes for line in pen.wrapped(note, width_left)]
    height = head + rows * step_y + len(lines) * (_SMALL + 6) + _MARGIN
    sheet = Image.new("RGB", (width, height), _PAPER)
    pen.draw = draw = ImageDraw.Draw(sheet)
    pen.write((_MARGIN, _MARGIN), title, _TITLE, _INK, width_left)
    for number, line in enumerate(about):
        top = _MARGIN + _TITLE + 8 + number * (_TEXT + 6)
        pen.write((_MARGIN, top), line, _TEXT, _GREY, width_left)
    for number, tile in enumerate(tiles):
        left = _MARGIN + number % columns * (across + _GAP)
        top = head + number // columns * step_y
        draw.rectangle((left, top, left + across - 1, top + side - 1), _MOUNT)
        if tile.picture is None:
            pen.write_bad(left, top, side, tile.bad or "")
        else:
            high, broad = tile.picture.shape[:2]
            corner = (left + (across - broad) // 2, top + (side - high) // 2)
            sheet.paste(Image.fromarray(tile.picture), corner)
        pen.write((left, top + side + 4), tile.name, _TEXT, _INK, across)
        pen.write((left, top + side + 22), tile.note, _SMALL, _GREY, across)
    top = head + rows * step_y
    for number, line in enumerate(lines):
        pen.write((_MARGIN, top + number * (_SMALL + 6)), line, _SMALL, _GREY, width_left)
    return sheet


class _Pen:
    """Writes lines in one font on a sheet, its ``draw``."""

    draw: ImageDraw.ImageDraw

    def __init__(self, font: str) -> None:
        self._font = font

    def write_bad(self, left: int, top: int, side: int, words: str) -> None:
        """A red square that says what is wrong with a sample."""
        edge = (left, top, left + side - 1, top + side - 1)
        self.draw.rectangle(edge, outline=_RED, width=2)
        lines = self.wrapped(f"bad: {words}", side - 16)
        for number, line in enumerate(lines[: (side - 16) // (_SMALL + 3)]):
            corner = (left + 8, top + 8 + number * (_SMALL + 3))
            self.write(corner, line, _SMALL, _RED, side - 16)

    def write(
        self,
        corner: tuple[int, int],
        text: str,
        size: int,
        colour: tuple[int, int, int],
        width_left: int,
    ) -> None:
        """One line in ``width_left`` pixels: what does not fit becomes "..." in its middle."""
        if len(text) > width_left:  # a letter takes a pixel: megabytes of them need not be measured
            text = _cut(text, width_left)
        text = readable(text, self._font)
        length = self.length(text, size)
        if length > width_left:
            # long names differ at the end as often as at the beginning
            keep = int(len(text) * width_left / length)
            while keep > 2 and self.length(_cut(text, keep), size) > width_left:
                keep -= 1
            text = _cut(text, keep)
        left, top = corner
        # of all fonts the same, so that lines lie alike
        base = top + _font("", size).getmetrics()[0]
        font = _font(self._font, size)
        self.draw.text((left, base), text, fill=colour, font=font, anchor="ls")

    def wrapped(self, text: str, width_left: int, size: int = _SMALL) -> list[str]:
        """``text`` in lines that fit."""
        lines = [""]
        for word in readable(text, self._font).split(" "):
            longer = f"{lines[-1]} {word}".strip()
            if lines[-1] and self.length(longer, size) > width_left:
                lines.append(word)
            else:
                lines[-1] = longer
        return [line for line in lines if line]

    def length(self, text: str, size: int) -> float:
        """How wide a line is, in pixels."""
        return float(_font(self._font, size).getlength(text))


def _cut(text: str, keep: int) -> str:
    first = (keep + 1) // 2
    return f"{text[:first].rstrip()}...{text[len(text) - (keep - first) :].lstrip()}"


# -- fonts ---------------------------------------------------------------------------------------


def font_for(texts: Iterable[str]) -> tuple[str, str | None]:
    """The first font that has all letters of ``texts``, or the one that lacks the fewest of them,
    and what the foot of the sheet says of these; None if it has all."""
    letters = sorted({letter for text in texts for letter in _composed(text)})
    lacking = {
        name: [letter for letter in letters if not letter.isspace() and not _has(name, letter)]
        for name in _FONTS
        if _font(name, _TEXT) is not None
    }
    best = min(lacking, key=lambda name: len(lacking[name]))
    first = {unicodedata.name(letter, "UNNAMED").split()[0] for letter in lacking[best]}
    kinds = (f"{kind if kind == 'CJK' else kind.capitalize()} letters" for kind in sorted(first))
    if not first:
        return best, None
    return best, f"no installed font has: {', '.join(kinds)}; one such as Noto Sans may have them"


def readable(text: str, font: str) -> str:
    """``text`` in the letters that a font has: others lose their accents, or become "?"."""
    return "".join(
        letter
        if letter.isspace() or _has(font, letter)
        else "".join(filter(str.isascii, unicodedata.normalize("NFD", letter))) or "?"
        for letter in _composed(text)
    )


def _composed(text: str) -> str:
    """Fit to be shown, and each accent one with its letter: some systems keep names in two."""
    return unicodedata.normalize("NFC", shown(text))


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
    return _drawn(name, letter) != _drawn(name, "\U0010ffff")


@functools.lru_cache(4096)
def _drawn(name: str, letter: str) -> tuple[Any, bytes]:
    """A letter alone as it is: shaping would put a vowel sign on a dotted circle."""
    from PIL import ImageFont

    plain = _font(name, _TEXT).font_variant(layout_engine=ImageFont.Layout.BASIC)
    mask = plain.getmask(letter)
    return mask.size, bytes(mask)


# -- what is on it ---------------------------------------------------------------------------------


#: Most samples on a sheet that a person still looks at.
MOST: Final = 1000

#: Sides of the squares that pictures are fitted into, in pixels.
SIDE: Final = 160

#: A drawing's place is at least so wide, for its words.
NARROWEST: Final = 160

#: Pixels between the pictures of one sample.
GAP: Final = 4


@dataclass(frozen=True)
class Preview:
    """A sheet, and what is on it."""

    sheet: Image.Image
    records: tuple[int, ...]
    """Record numbers in the order of the sheet; -1 for a padded row."""
    labels: tuple[str | None, ...]
    """Each one's label in words, with the name of its class."""
    bad: tuple[tuple[int, str], ...]
    """Record numbers of samples that cannot be shown, and why."""
    notes: tuple[str, ...]
    """What the foot of the sheet says."""


def values_of(mask: Array | None) -> set[int]:
    """The values of a mask."""
    return set() if mask is None else set(map(int, np.unique(mask).tolist()))


def label_words(
    row: Array | None, names: Sequence[str] | None, soft: bool = False
) -> tuple[str, str]:
    """A label as the two lines under a picture begin: its class or number, and its number.

    ``soft``: a label is a row of probabilities, of which the two largest are told."""
    if row is None:
        return "", ""
    if soft and row.ndim == 1:
        likely = [n for n in np.argsort(-row, kind="stable")[:2].tolist() if row[n] > row.min()]
        words = (f"{names[n] if names else f'label {n}'} {row[n]:.2f}" for n in likely)
        return ", ".join(words) or "no class", ""
    name = class_of(row, names)
    if name is None:
        return f"label {in_words(row)}", ""
    return name, f"label {in_words(row)}, "


def title_of(source: OpenSet) -> str:
    """The name of the set."""
    return os.path.basename(source.facts.path.rstrip("/")) or source.facts.path


def facts_of(source: OpenSet, total: int | None = None) -> str:
    """How many samples a set has, how they are stored, its classes and splits. ``total``: samples
    that are served, if not all."""
    facts, spec, rule = source.facts, source.spec, source.rule
    if isinstance(rule, Patches):
        volumes = rule.volumes
        return f"{some(total or 0, 'patch')} of {times(volumes.patch)}, of {volumes.words}"
    words = some(facts.count if total is None else total, "sample")
    if isinstance(rule, Windows):
        return f"{words} of {rule.episodes.words}"
    words += f", {spec.encoding}"
    if facts.classes:
        words += f", {some(len(facts.classes), 'class')}"
    elif source.labels is None:
        words += ", no labels"
    if source.splits:
        words += f"; {counts_in_words(split_counts(source.splits, facts.count))}"
    return words


def notes_of(scales: Sequence[str], channels: int, masks: set[int]) -> list[str]:
    """What the foot of a sheet says of values that are no colours, of masks, and of channels."""
    notes = list(scales)
    values = sorted(masks - {0})
    if values:
        listed = ", ".join(map(str, values[:12])) + (", ..." if len(values) > 12 else "")
        notes.append(f"the mask's values are coloured: {listed}")
    if channels == 2 or channels > 3:
        seen = "the first" if channels == 2 else "the first three"
        notes.append(f"{seen} of {channels} channels shown")
    return notes


def put_together(
    source: OpenSet,
    tiles: Sequence[Tile],
    subtitle: str,
    notes: Sequence[str],
    bad: Sequence[tuple[int, str]],
    columns: int | None,
    wide: int | None,
) -> Preview:
    """The sheet of ``tiles``, which are so many pixels ``wide``, or with None as large as they are
    drawn."""
    high = SIDE
    if wide is None:
        shapes = [tile.picture.shape for tile in tiles if tile.picture is not None]
        high = max((shape[0] for shape in shapes), default=HIGH)
        wide = max([NARROWEST, *(shape[1] for shape in shapes)])
        columns = columns or max(1, round(math.sqrt(len(tiles) * 1.5 * high / wide)))
    columns = columns or max(1, _fitting(len(tiles)) // max(1, round(wide / high)))
    title = title_of(source)
    _, lacking = font_for([title, *(tile.name for tile in tiles)])
    notes = [*notes, lacking] if lacking else notes
    how: dict[str, Any] = {"side": high, "wide": wide, "columns": columns}
    return Preview(
        draw_sheet(tiles, title=title, subtitle=subtitle, notes=notes, **how),
        records=tuple(tile.record for tile in tiles),
        labels=tuple(None if source.labels is None else tile.name for tile in tiles),
        bad=tuple(bad),
        notes=tuple(notes),
    )


def _fitting(tiles: int) -> int:
    """Columns that make a sheet of about 3 : 2 and leave the fewest squares of it empty."""
    ideal = (tiles * 1.8) ** 0.5
    near = range(max(1, round(ideal * 0.75)), max(1, round(ideal * 1.25)) + 1)
    return min(near, key=lambda columns: (-tiles % columns, abs(columns - ideal)))
