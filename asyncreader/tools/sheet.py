"""What all contact sheets share: their words, their pictures, and how they are put together."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from ..errors import ParamsError
from ..sampling.episodes import Windows
from ..sampling.patches import Patches
from ..sources import OpenSet
from ..sources.splits import split_counts
from ..system.array_types import Array, Int64
from ..system.text import counts_in_words, some, times
from .contact_sheet import Tile, draw_sheet, font_for
from .drawing import HIGH
from .label_stats import class_of, in_words

if TYPE_CHECKING:
    from PIL import Image


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


@dataclass(frozen=True)
class Choice:
    """The samples of a sheet: those of ``indices``, or ``count`` of ``classes`` (names or numbers;
    none: of all) drawn at random by ``seed``."""

    count: int
    seed: int
    indices: Sequence[int] | None
    classes: Sequence[str]

    @property
    def how(self) -> str:
        """How they were chosen, in words."""
        return f"drawn at random (seed {self.seed})" if self.indices is None else "chosen"

    def given(self, total: int, path: str) -> list[int] | None:
        """The ``indices``; ParamsError unless these are numbers of a set's samples, and not too
        many for a sheet."""
        if self.indices is None:
            return None
        wrong = [index for index in self.indices if not 0 <= index < total]
        if wrong or not 0 < len(self.indices) <= MOST:
            raise ParamsError(
                "no such samples" if wrong else "not a number of samples for a sheet",
                path=path,
                found=wrong[0] if wrong else len(self.indices),
                expected=f"0 to {total - 1}" if wrong else f"1 to {MOST}",
            )
        return list(self.indices)

    def drawn(self, pool: Int64 | range, path: str) -> list[int]:
        """Some numbers of ``pool``, in order; ParamsError where it is empty."""
        if not len(pool):
            found = f"class {', '.join(self.classes)}"
            raise ParamsError("no sample to show", path=path, found=found)
        count = min(self.count, len(pool))
        at = np.random.default_rng(self.seed).choice(len(pool), count, replace=False)
        return sorted(int(pool[i]) for i in at.tolist())


def put_together(
    tiles: Sequence[Tile],
    records: Sequence[int],
    named: bool,
    bad: Sequence[tuple[int, str]],
    columns: int | None,
    title: str,
    subtitle: str,
    notes: Sequence[str],
    size: tuple[int, int] = (SIDE, SIDE),
    drawn: bool = False,
) -> Preview:
    """The sheet of ``tiles`` of ``size`` (height, width), or ``drawn`` ones as large as they are.
    ``named``: samples have labels."""
    if drawn:
        shapes = [tile.picture.shape for tile in tiles if tile.picture is not None]
        high = max((shape[0] for shape in shapes), default=HIGH)
        size = high, max((shape[1] for shape in shapes), default=HIGH)
        size = high, max(size[1], NARROWEST)
        columns = columns or max(1, round(math.sqrt(len(tiles) * 1.5 * size[0] / size[1])))
    columns = columns or max(1, _fitting(len(tiles)) // max(1, round(size[1] / size[0])))
    _, lacking = font_for([title, *(tile.name for tile in tiles)])
    notes = [*notes, lacking] if lacking else notes
    sheet = draw_sheet(
        tiles,
        side=size[0],
        columns=columns,
        title=title,
        subtitle=subtitle,
        notes=notes,
        wide=size[1],
    )
    words = tuple(tile.name if named else None for tile in tiles)
    return Preview(sheet, tuple(records), words, tuple(bad), tuple(notes))


def _fitting(tiles: int) -> int:
    """Columns that make a sheet of about 3 : 2 and leave the fewest squares of it empty."""
    ideal = (tiles * 1.8) ** 0.5
    near = range(max(1, round(ideal * 0.75)), max(1, round(ideal * 1.25)) + 1)
    return min(near, key=lambda columns: (-tiles % columns, abs(columns - ideal)))
