"""Looks at stored samples of a set, by number: a small image of each, whatever a sample is.

Images are shown as they are. Windows, series, volumes and tables are drawn with all of their fields
below each other, as strips, lines and slices.
"""

from __future__ import annotations

import base64
import contextlib
import io
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
from xxhash import xxh3_64_intdigest

from ..dataset import Dataset
from ..errors import FormatError, SampleError, located
from ..params.reader import PARAMETERS, ReaderParams
from ..pixels import codec
from ..pixels.codec import decode_values
from ..pixels.encoded import decode_sample
from ..pixels.points import check_places, real
from ..pixels.specs import SampleSpec
from ..sampling.rule import Lengths
from ..sources import Inspector, OpenSet, Source
from ..sources.request import NAME_AXES
from ..system.array_types import Array, Float64, Int64, UInt8
from ..system.text import some, times

#: What pixels are shown as that are not a number, or infinite.
NOT_A_NUMBER: Final = (255, 0, 255)


@dataclass(frozen=True)
class Scale:
    """Which values are shown as black and as white; the same for all pictures of a sheet."""

    low: float = 0.0
    high: float = 255.0
    stretched: bool = False
    holes: bool = False
    """Whether some values are not numbers, or infinite."""

    @property
    def notes(self) -> list[str]:
        """What a reader of the sheet must know; nothing where values are shown as they are."""
        notes = []
        if self.stretched:
            notes.append(f"values {self.low:.6g} to {self.high:.6g} are shown as black to white")
        if self.holes:
            notes.append("pixels that are not a number are magenta")
        return notes


def scale_of(pictures: Iterable[Array]) -> Scale:
    """The scale that suits pictures (H, W, C): uint8 as it is, 0 to 1, or all that occurs.

    Floats that stay within 0 to 1 are taken for that range, floats that stay within 0 to 255 and
    exceed 1 for bytes. Everything else is stretched from its least to its greatest value.
    """
    low, high, floats, holes = math.inf, -math.inf, False, False
    for pixels in pictures:
        if pixels.dtype == np.uint8:
            return Scale()
        if pixels.dtype == np.bool_:
            return Scale(0.0, 1.0)
        floats = pixels.dtype.kind == "f"
        values = pixels[np.isfinite(pixels)] if floats else pixels
        holes |= values.size < pixels.size
        if values.size:
            low, high = min(low, float(values.min())), max(high, float(values.max()))
    if floats and low >= 0 and high <= 1:
        return Scale(0.0, 1.0, holes=holes)
    if low > high or (floats and low >= 0 and high <= 255):  # no picture at all, or like bytes
        return Scale(holes=holes)
    return Scale(low, high if high > low else low + 1, True, holes)


def to_rgb(pixels: Array, scale: Scale) -> UInt8:
    """(H, W, C) of any numeric dtype as (H, W, 3) uint8: grey or the first three channels."""
    pixels = pixels[:, :, : 3 if pixels.shape[2] >= 3 else 1]
    if pixels.dtype != np.uint8:
        wide = pixels.astype(np.float64)
        good = np.isfinite(wide)
        wide = (np.where(good, wide, scale.low) - scale.low) / (scale.high - scale.low) * 255
        pixels = np.rint(np.clip(wide, 0, 255)).astype(np.uint8)
        if not good.all():
            pixels = np.where(
                good.all(axis=2, keepdims=True), pixels, np.array(NOT_A_NUMBER, np.uint8)
            )
    if pixels.shape[2] == 1:
        pixels = np.repeat(pixels, 3, axis=2)
    return np.ascontiguousarray(pixels)


def fit(pixels: UInt8, side: int) -> UInt8:
    """(H, W, 3) made to fill a square of ``side`` as far as its shape lets it.

    Pixels of small pictures stay squares, so that one sees what a network sees; what is larger
    than a third of the square is enlarged or shrunk smoothly.
    """
    height, width = pixels.shape[:2]
    longer = max(height, width)
    if 3 * longer <= side:
        factor = side // longer
        return pixels.repeat(factor, axis=0).repeat(factor, axis=1)
    from PIL import Image

    size = (max(1, round(width * side / longer)), max(1, round(height * side / longer)))
    picture = Image.fromarray(pixels)
    return np.asarray(picture.resize(size, Image.Resampling.LANCZOS, reducing_gap=2.0))


#: How much of a mask's colour there is over the picture.
_TINT: Final = 0.5


def tinted(picture: UInt8, mask: Array) -> UInt8:
    """``picture`` (h, w, 3) with each value of ``mask`` (H, W) but 0 in a colour of its own.

    The mask is brought to the picture's size without mixing its values; 255 of bytes, which
    most sets keep for unlabelled pixels, is grey.
    """
    rows = np.arange(picture.shape[0]) * mask.shape[0] // picture.shape[0]
    columns = np.arange(picture.shape[1]) * mask.shape[1] // picture.shape[1]
    values, which = np.unique(mask[rows][:, columns], return_inverse=True)
    colours = colours_of(values)
    if mask.dtype == np.uint8:
        colours[values == 255] = 128
    share = np.where(values == 0, 0, _TINT)[which].reshape(*picture.shape[:2], 1)
    tint = colours[which].reshape(picture.shape)
    return np.rint((1 - share) * picture + share * tint).astype(np.uint8)


def colours_of(values: Array) -> Float64:
    """A colour (n, 3) for each whole number, from 0 to 255."""
    # steps of the golden ratio keep the hues of neighbouring numbers apart
    hues = np.array([value * 0.6180339887 % 1 for value in values.tolist()]).reshape(-1, 1)
    colours: Float64 = np.clip(np.abs((hues * 6 + (3, 1, 5)) % 6 - 3) - 1, 0, 1) * 255
    return colours


def marked(picture: UInt8, size: tuple[int, int], places: Mapping[str, Array]) -> UInt8:
    """``picture`` (h, w, 3) with a frame around each of its "boxes" (..., 4), and a disc on each of
    its "keypoints" (..., 2 or 3), in pixels of a picture of ``size`` (H, W)."""
    from PIL import Image, ImageDraw

    image = Image.fromarray(picture)
    draw = ImageDraw.Draw(image)
    by_x, by_y = picture.shape[1] / size[1], picture.shape[0] / size[0]
    for what, values in places.items():
        rows = values.reshape(-1, values.shape[-1]).astype(np.float64)
        colours = colours_of(np.arange(1, len(rows) + 1)).astype(int).tolist()
        for number in np.flatnonzero(real(rows, what)).tolist():
            colour, row = tuple(colours[number]), rows[number].tolist()
            if what == "boxes":
                ends = row[2] * by_x - 1, row[3] * by_y - 1
                start = min(row[0] * by_x, ends[0]), min(row[1] * by_y, ends[1])
                draw.rectangle((*start, *ends), outline=colour, width=2)
            else:  # the middle of its pixel
                x, y = (row[0] + 0.5) * by_x, (row[1] + 0.5) * by_y
                draw.ellipse((x - 3, y - 3, x + 3, y + 3), fill=colour, outline=(255, 255, 255))
    return np.asarray(image)


def beside(pictures: Sequence[UInt8], side: int, gap: int, paper: int | Sequence[int]) -> UInt8:
    """Pictures (h, w, 3), each in the middle of a square of ``side``, side by side on ``paper``;
    of none an empty square."""
    sheet = np.full((side, max(1, len(pictures)) * (side + gap) - gap, 3), paper, np.uint8)
    for number, picture in enumerate(pictures):
        high, wide = picture.shape[:2]
        top, left = (side - high) // 2, number * (side + gap) + (side - wide) // 2
        sheet[top : top + high, left : left + wide] = picture
    return sheet


def as_mask(pixels: Array) -> Array | None:
    """(H, W) of whole numbers, of (H, W) or (H, W, 1); None where it is no mask."""
    if pixels.ndim == 3 and pixels.shape[2] == 1:
        pixels = pixels[:, :, 0]
    return pixels if pixels.ndim == 2 and pixels.dtype.kind in "bui" else None


def not_pictures(path: str, shape: tuple[int, ...]) -> FormatError:
    """The error for data that cannot be looked at."""
    return FormatError(
        "its samples are not images",
        path=path,
        found=f"samples of shape {shape}",
        expected="height x width, or height x width x channels",
        hint="name a field that holds images with -p data_field=NAME; 'asyncreader info' "
        "describes any dataset" + (f"; or {NAME_AXES}" if len(shape) == 3 else ""),
    )


# -- arrays ----------------------------------------------------------------------------------------


#: The height of a field's picture, the gap between pictures, the most of them in a strip, and how
#: wide lines are drawn at least: in pixels.
HIGH: Final = 96
_GAP: Final = 4
_STRIP: Final = 6
WIDE: Final = 3 * (HIGH + _GAP) - _GAP

#: Numbers beside each other that are drawn as lines; more of them are drawn as a picture.
LINES: Final = 16
#: Points of a line that are drawn.
_POINTS: Final = 2 * WIDE
#: Lines are drawn this much larger, and made smaller smoothly.
_FINER: Final = 3

_PAPER: Final = (255, 255, 255)
_MOUNT: Final = (238, 239, 242)


class FieldDrawing:
    """Draws one field of the samples of a sheet. Of each sample only what is drawn is kept.

    ``picture``: samples are (H, W, C) or (H, W), else numbers of any shape; ``windowed``: several
    rows of these, (W, ...); ``differ``: as many rows as a sample has, none at all, too. The scale
    is that of the samples that are drawn first.
    """

    def __init__(self, name: str, picture: bool, windowed: bool, differ: bool = False) -> None:
        self.name = name
        self._picture, self._windowed, self._differ = picture, windowed or differ, differ
        self._series: list[Float64] = []
        self._panels: list[list[Array]] = []
        self._words = ""
        self._scale: Scale | None = None
        self._lines: tuple[float, float, bool] | None = None

    def add(self, value: Array) -> None:
        """One more sample."""
        axes = value.ndim
        if self._windowed and (self._picture or axes == 3):
            self._add_strip(value)
        elif self._picture:
            self._panels.append([value])
        elif axes == 1:
            self._add_lines(value[:, None])
        elif axes == 2 and (value.shape[1] if self._differ else min(value.shape)) <= LINES:
            # time runs along the longer axis, or along that of the window
            along = self._windowed or value.shape[0] >= value.shape[1]
            self._add_lines(value if along else value.T)
        elif axes == 2:
            self._panels.append([value] * bool(value.size))
        elif axes > 2:
            self._add_slices(value)

    def _add_lines(self, lines: Array) -> None:
        """Lines (T, K). Of many points the least and the greatest of each run, so that no peak is
        lost."""
        if len(lines) > _POINTS:
            runs = np.array_split(lines, _POINTS // 2)
            lines = np.concatenate([np.stack([run.min(axis=0), run.max(axis=0)]) for run in runs])
        self._series.append(lines.astype(np.float64))

    def _add_strip(self, value: Array) -> None:
        rows = len(value)
        which = np.unique(np.linspace(0, rows - 1, min(rows, _STRIP)).round().astype(int)).tolist()
        if len(which) < rows:
            self._words = f"rows {', '.join(map(str, which))} of {rows}"
            if self._differ:
                self._words = f"up to {_STRIP} rows of each, evenly spread"
        self._panels.append([value[i].copy() for i in which])

    def _add_slices(self, value: Array) -> None:
        if not value.size:
            self._panels.append([])
            return
        one = value.reshape(-1, *value.shape[-3:])[0]
        deep, high, wide = (n // 2 for n in one.shape)
        self._panels.append([one[deep].copy(), one[:, high].copy(), one[:, :, wide].copy()])
        more = "" if value.ndim == 3 else f", the first of {times(value.shape[:-3])}"
        more = ", the first of each sample" if self._differ else more
        self._words = f"slices through the middle of {times(one.shape)}{more}"

    def charts(self, wide: int) -> tuple[list[UInt8], list[str]]:
        """As :meth:`pictures`, of series: lines, so many pixels ``wide``."""
        series, self._series = self._series, []
        if not series:
            return [], []
        if self._lines is None:
            there = [one[np.isfinite(one)] for one in series]
            low = min((float(one.min()) for one in there if one.size), default=0.0)
            high = max((float(one.max()) for one in there if one.size), default=1.0)
            gaps = sum(one.size for one in there) < sum(one.size for one in series)
            self._lines = low, high, gaps
        low, high, gaps = self._lines
        note = f"{self.name}: lines from {low:.4g} to {high:.4g}"
        note += ", with gaps where a value is not a number" * gaps
        return [_chart(one, low, high, wide) for one in series], [note]

    def pictures(self) -> tuple[list[UInt8], list[str]]:
        """A picture (h, w, 3) of each sample, and what the foot of the sheet says of them; none of
        series, and of single numbers."""
        panels, self._panels = self._panels, []
        if not panels:
            return [], []
        deep = [[p if p.ndim == 3 else p[:, :, None] for p in one] for one in panels]
        if not self._picture:  # as other numbers are shown: a label of 1 is not black
            deep = [[p.astype(np.int16) if p.dtype == np.uint8 else p for p in o] for o in deep]
        scale = self._scale = self._scale or scale_of(p for pictures in deep for p in pictures)
        made = [
            beside([fit(to_rgb(p, scale), HIGH) for p in pictures], HIGH, _GAP, _MOUNT)
            for pictures in deep
        ]
        words = filter(None, [self._words, *scale.notes])
        return made, [f"{self.name}: {note}" for note in words]


def draw_samples(fields: Sequence[FieldDrawing], wide: int = WIDE) -> tuple[list[UInt8], list[str]]:
    """An image of each sample, its fields below each other, and what the foot of the sheet says of
    them; nothing where all of them are single numbers. ``wide``: of lines at least, in pixels."""
    drawn = [field.pictures() for field in fields]
    wide = max([wide, *(one.shape[1] for pictures, _ in drawn for one in pictures)])
    both = [one if one[0] else field.charts(wide) for field, one in zip(fields, drawn, strict=True)]
    kept = [(field.name, *one) for field, one in zip(fields, both, strict=True) if one[0]]
    made = [_below(rows) for rows in zip(*(pictures for _, pictures, _ in kept), strict=True)]
    notes = [note for _, _, own in kept for note in own]
    if len(kept) > 1:
        notes.insert(0, f"from above: {', '.join(name for name, _, _ in kept)}")
    return made, notes


def _chart(lines: Float64, low: float, high: float, wide: int) -> UInt8:
    """Lines (T, K) from ``low``, at the foot, to ``high``."""
    from PIL import Image, ImageDraw

    size = wide * _FINER, HIGH * _FINER
    image = Image.new("RGB", size, _PAPER)
    draw = ImageDraw.Draw(image)
    across = np.full(len(lines), size[0] / 2)
    if len(lines) > 1:
        across = np.linspace(2, size[0] - 3, len(lines))
    span = high - low or 1.0
    down = size[1] - 4 - (lines - low) / span * (size[1] - 8)
    for number, colour in enumerate(colours_of(np.arange(1, lines.shape[1] + 1)).tolist()):
        ink = tuple(int(one * 0.8) for one in colour)
        finite = np.flatnonzero(np.isfinite(down[:, number]))
        for run in np.split(finite, np.flatnonzero(np.diff(finite) > 1) + 1):
            points = np.stack([across[run], down[run, number]], axis=1).tolist()
            if len(points) == 1:
                ((left, top),) = points
                draw.ellipse((left - 3, top - 3, left + 3, top + 3), fill=ink)
            else:
                draw.line(list(map(tuple, points)), fill=ink, width=_FINER)
    return np.asarray(image.resize((wide, HIGH), Image.Resampling.BOX))


def _below(rows: Sequence[UInt8]) -> UInt8:
    wide = max(row.shape[1] for row in rows)
    sheet = np.full((len(rows) * (HIGH + _GAP) - _GAP, wide, 3), _MOUNT, np.uint8)
    for number, row in enumerate(rows):
        top = number * (HIGH + _GAP)
        sheet[top : top + HIGH, : row.shape[1]] = row
    return sheet


# -- files in a page -------------------------------------------------------------------------------


#: Pictures up to this long are kept as they are, in PNG, and enlarged by the browser.
TINY = 48


class Thumb(NamedTuple):
    """One small image of a page."""

    kind: str
    data: bytes
    width: int
    height: int
    tiny: bool

    @property
    def uri(self) -> str:
        """Its bytes as a ``data:`` URI (RFC 2397)."""
        return f"data:image/{self.kind};base64,{base64.b64encode(self.data).decode('ascii')}"


def thumb_of(pixels: UInt8, side: int) -> Thumb:
    """``pixels`` (H, W, 3) at most ``side`` long: JPEG, or PNG where each pixel counts."""
    from PIL import Image

    tiny = max(pixels.shape[:2]) <= TINY
    small = pixels if tiny else fit(pixels, side)
    encoded = io.BytesIO()
    kind = "png" if tiny else "jpeg"
    Image.fromarray(small).save(encoded, kind.upper(), **({} if tiny else {"quality": 80}))
    return Thumb(kind, encoded.getvalue(), small.shape[1], small.shape[0], tiny)


# -- samples ---------------------------------------------------------------------------------------


#: Samples that are looked at to find the range of values.
PROBE: Final = 64

#: What drawings leave out: the order of training, and how values are changed.
_LEFT_OUT: Final = (
    *("shuffle", "shuffle_window", "weights", "epoch_samples", "last_batch", "rank", "world_size"),
    *("dtype", "scale", "mean", "std", "contiguous", "postprocess", "transform", "batch_size"),
)


@dataclass(frozen=True)
class Looked:
    """One stored sample, looked at.

    ``picture``: (h, w, 3), a JPEG possibly decoded smaller than it is; ``height``, ``width``: of
    the whole image, upright; of a drawing its rows, and 1. ``stored``: what is stored of it;
    ``words``: what is said of it besides its label. ``mask``, ``places``: what lies over an image.
    """

    picture: UInt8
    height: int
    width: int
    stored: bytes | memoryview
    words: str = ""
    mask: Array | None = None
    places: Mapping[str, Array] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """Its bytes as it is stored."""
        return memoryview(self.stored).nbytes

    @property
    def checksum(self) -> int:
        """XXH3-64 of what is stored, equal for samples with the same bytes."""
        return xxh3_64_intdigest(self.stored)

    def fitted(self, side: int) -> UInt8:
        """An image in a square of ``side``, with its mask and places."""
        picture = fit(self.picture, side)
        picture = picture if self.mask is None else tinted(picture, self.mask)
        return marked(picture, (self.height, self.width), self.places) if self.places else picture


def _probed(numbers: Sequence[int] | Int64) -> list[int]:
    return [int(number) for number in numbers[:: max(1, len(numbers) // PROBE)]]


def is_grey(stored: SampleSpec) -> bool:
    """Whether samples are numbers (H, W) without known axes, which can be drawn as grey images."""
    plain = not stored.ragged and stored.dtype.names is None
    return plain and stored.axes is None and len(stored.shape or ()) == 2


def drawn_as_arrays(source: OpenSet) -> bool:
    """Whether the samples of a set are no single images (H, W) or (H, W, C), or parts of such."""
    spec = source.spec
    shape = spec.shape or ()
    grey = is_grey(spec) and (spec.dtype == np.uint8 or min(shape) > LINES)
    return source.rule.apart or (spec.axes is None and not grey)


def looker_of_rows(ds: Dataset[Any]) -> Looker:
    """A looker at the rows of a set where these are images, else at its samples."""
    try:
        return ImageLooker(ds.source)
    except FormatError:
        return ArrayLooker(ds.source, ds.params)


# -- images --------------------------------------------------------------------------------------


class ImageLooker:
    """Looks at the images of a set by their rows, 0 to ``total`` - 1, in one scale; ``notes`` say
    what holds for all. Thread-safe, as its source is. ``p``: names the masks, boxes and keypoints
    that lie over them.

    FormatError at construction where samples are no images.
    """

    drawn = False
    """Whether samples are drawn, being no images."""

    def __init__(self, source: OpenSet, p: ReaderParams | None = None) -> None:
        self.source, self.total, self.notes = source, source.facts.count, list[str]()
        self._first: Source = source.first
        self._inspector = Inspector(self._first)
        if source.spec.axes is None and not is_grey(source.spec):
            raise not_pictures(source.facts.path, source.spec.shape or ())
        self._scale = Scale()
        self._over: list[Source] = []
        self._places: dict[str, Source] = {}
        if p is not None:
            parts = zip(source.names[1:], source.parts[1:], strict=True)
            self._over = [part for name, part in parts if name not in p.places]
            named = {"boxes": p.boxes_field, "keypoints": p.keypoints_field}
            self._places = {what: source.part(name) for what, name in named.items() if name}

    def rows(self, numbers: Int64) -> Int64:
        """The rows of the set that samples begin with."""
        return numbers

    def settle(self, numbers: Sequence[int] | Int64, most: int | None = None) -> None:
        """Find the scale that suits these samples, by at most 64 of them, and of those no more
        than the first ``most`` bytes."""
        if self.source.spec.dtype != np.uint8:
            self._scale = scale_of(self._some_pixels(numbers))
        self.notes = self._scale.notes

    def _some_pixels(self, numbers: Sequence[int] | Int64) -> Iterator[Array]:
        for number in _probed(numbers):
            with contextlib.suppress(SampleError):
                yield self._pixels(self._record(number), 160)[0]

    def look(self, number: int, side: int) -> Looked:
        """An image at least ``side`` pixels long if it is; SampleError if it is bad."""
        record = self._record(number)
        pixels, height, width, stored = self._pixels(record, side)
        masks = (stored_mask(part, record) for part in self._over)
        places = {}
        for what, part in self._places.items():
            check_places(part.spec, what, self.source.facts.path)
            places[what] = Inspector(part).pixels(record)
        differ = self.source.spec.shape is None
        return Looked(
            to_rgb(pixels, self._scale),
            height,
            width,
            stored,
            f"{height} x {width}" if differ else "",
            next((mask for mask in masks if mask is not None), None),
            places,
        )

    def _record(self, number: int) -> int:
        """The first field's own record, of which an episode may have one more than of others."""
        return int(self.source.records(np.array([number], np.int64))[0])

    def _pixels(self, record: int, side: int) -> tuple[Array, int, int, bytes | memoryview]:
        """Pixels (h, w, C) of an image, its size, and what is stored."""
        source, stored = self._first, self._first.spec
        if not stored.encoded:
            pixels = _hwc(self._inspector.pixels(record), stored.axes)
            high, wide, _ = pixels.shape
            return pixels, high, wide, np.ascontiguousarray(pixels).data
        data = self._inspector.bytes(record)
        with located(path=source.facts.path, index=record):
            header = codec.read_header(data)
            part = min(1.0, side / max(header.height, header.width))
            least = (math.ceil(header.height * part), math.ceil(header.width * part))
            return decode_sample(data, stored, header, least), header.height, header.width, data


def stored_mask(part: Source, record: int) -> Array | None:
    """Sample ``record`` of a field as a mask, None where it is none; SampleError if it is bad."""
    stored = part.spec
    if stored.encoded:
        return as_mask(decode_values(Inspector(part).bytes(record)))
    pixels = Inspector(part).pixels(record)
    return as_mask(pixels if stored.axes is None else _hwc(pixels, stored.axes))


def _hwc(pixels: Array, axes: str | None) -> Array:
    """(..., H, W, C) of images whose last axes are ``axes``; with None, of grey ones (H, W)."""
    if axes is None:
        return pixels[:, :, None]
    inner = pixels.ndim - 3
    return pixels.transpose([*range(inner), *(inner + axes.index(axis) for axis in "HWC")])


# -- arrays --------------------------------------------------------------------------------------


def drawings_of(source: OpenSet, lengths: Iterable[object]) -> list[FieldDrawing]:
    """What draws each field of a set's samples; ``lengths``: None of a field whose samples are all
    as long."""
    found = []
    for name, part, differ in zip(source.names, source.parts, lengths, strict=True):
        shape = part.spec.shape or ()
        images = part.spec.ragged and len(shape) == 3 and shape[2] in (1, 3)
        windowed = source.rule.width(name) is not None
        picture = part.spec.axes is not None or images
        found.append(FieldDrawing(name, picture, windowed, differ is not None))
    return found


class ArrayLooker:
    """Draws samples of a set by their numbers, each with all of its fields; in one thread. Those
    that differ in length have their own. Its methods are those of ImageLooker."""

    drawn = True

    def __init__(self, source: OpenSet, p: ReaderParams) -> None:
        default = {name: PARAMETERS[name].default for name in _LEFT_OUT}
        p = replace(p, **default, layout="NHWC")  # type: ignore[arg-type]
        self.dataset: Dataset[tuple[Array, ...]] = Dataset(p, source=source, owned=False)
        self.source, self.total, self.notes = source, len(self.dataset), list[str]()
        self._lengths = source.lengths(p.wanted)
        self._fields = drawings_of(source, self._lengths)
        self._wide = WIDE
        """How wide the widest sample is drawn, of those that the scale was found by."""

    @property
    def differ(self) -> bool:
        """Whether the samples of the first field differ in length."""
        return self._lengths[0] is not None

    def rows(self, numbers: Int64) -> Int64:
        return self.dataset.records(numbers)

    def settle(self, numbers: Sequence[int] | Int64, most: int | None = None) -> None:
        """FormatError where there is nothing to draw."""
        read, good = 0, 0
        for number in _probed(numbers):
            if most is not None and read > most:
                break
            with contextlib.suppress(SampleError):
                values = self._values(number)
                read, good = read + sum(value.nbytes for value in values), good + 1
                self._add(values)
        pictures, self.notes = draw_samples(self._fields)
        self._wide = max((picture.shape[1] for picture in pictures), default=self._wide)
        if good and not pictures:
            raise FormatError(
                "there is nothing to draw: samples are single numbers",
                path=self.source.facts.path,
                found=", ".join(self.source.names),
                hint="'asyncreader info' describes any dataset; -p data_field=NAME names another "
                "field",
            )

    def look(self, number: int, side: int) -> Looked:
        values = self._values(number)
        words = self._add(values)
        (picture,), _ = draw_samples(self._fields, self._wide)
        stored = b"".join(value.tobytes() for value in values)
        rows = len(values[0]) if values[0].ndim else 1
        return Looked(picture, rows, 1, stored, words)

    def _values(self, number: int) -> tuple[Array, ...]:
        """The fields of a sample, without its label; SampleError if it is bad."""
        sample = self.dataset[number]
        data: object = sample[0] if self.source.labels is not None else sample
        fields = data if isinstance(data, tuple) else (np.asarray(data),)
        record = self.dataset.records(np.array([number], np.int64))
        every = zip(fields, self._lengths, self.source.parts, strict=True)
        return tuple(_own(field, lengths, record, part.spec) for field, lengths, part in every)

    def _add(self, values: tuple[Array, ...]) -> str:
        """One more sample to draw: its single numbers and lengths in words."""
        words = []
        for drawn, value, lengths in zip(self._fields, values, self._lengths, strict=True):
            drawn.add(value)
            words += [f"{drawn.name} {value.item():.4g}"] if value.ndim == 0 else []
            if lengths is not None:
                words.append(f"{drawn.name}: " * (len(values) > 1) + some(len(value), "row"))
        return ", ".join(words)


#: Looks at samples of a set by their numbers.
Looker: TypeAlias = ImageLooker | ArrayLooker


def _own(value: Array, lengths: Lengths | None, record: Int64, spec: SampleSpec) -> Array:
    """A field of a sample as it is drawn: without what fills it up, images (..., H, W, C) or
    (..., H, W)."""
    own = None if lengths is None else lengths.served(record, np.ones(1, np.bool_))
    if own is not None and own.ndim == 1:  # of each row of a window it is another
        value = value[: int(own[0])]
    return _hwc(value, spec.axes) if spec.axes is not None and spec.as_stored else value
