"""Families: parameters that belong together, as one small value each; and views.

``window=Window(8, every=4)`` says what ``window=8, window_every=4`` say, and ``window=8`` is the
short form of ``Window(8)``. A family without its first field stands for nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, Self, TypeAlias, TypedDict, cast

from ..errors import ParamsError
from ..system import checks
from ..system.checks import invalid, one_of, optional, plain, span, whole, written
from ..system.text import slip
from . import values
from .declare import ANY, Parameter, parameter
from .values import EachEpisode, Edge, PatchAt, WindowRows

PaddingMode: TypeAlias = Literal["zero", "edge", "reflect"]
MixUntil: TypeAlias = Literal["all", "first"]
Classes: TypeAlias = Literal["joined", "own"]
Overlong: TypeAlias = Literal["cut", "random", "error"]
CropKind: TypeAlias = Literal["center", "random", "random-resized", "none"]

_RESIZED: Final = {"crop": "random-resized"}


@dataclass(frozen=True)
class Mix:
    """Several datasets by ratio: ``mix=Mix({"a.h5": 0.9, "b.h5": 0.1}, until="first")``."""

    ratios: dict[str | tuple[str, ...], float] | None = parameter(
        None,
        optional(values.MIX),
        "several datasets by ratio: `{path: ratio}`, the ratios add up to 1. Each has its own "
        "order and every batch holds them by these ratios; `batch.source` says which dataset a row "
        "comes from, and `indices` number the records of all datasets in sequence",
        shown="one of these",
    )
    until: MixUntil = parameter(
        "all",
        one_of(MixUntil),
        'when an epoch of a `mix` ends: `"all"`: when every dataset has been read in full; shorter '
        'ones start over; `"first"`: when one has',
    )
    classes: Classes = parameter(
        "joined",
        one_of(Classes),
        'classes of a `mix`: `"joined"`: classes of the same name are one, numbered as '
        '`reader.classes` lists them; `"own"`: the numbers of each dataset come after those of the '
        "datasets before it",
        name="classes",
    )


@dataclass(frozen=True)
class Window:
    """Rows around an anchor as one sample: ``window=Window(8, every=4)``."""

    rows: WindowRows | dict[str, WindowRows] | None = parameter(
        None,
        optional(values.WINDOW),
        "a sample is several rows of one episode: their number, from the anchor on; "
        '`(start, stop[, step])` relative to the anchor; a list of such rows; `"last"`: the '
        'episode\'s last row; `"episode"`: the whole episode, (B, max_length, ...); or a dict of '
        "these by field; a field missing from it has one row. Data are (B, W, ...)",
        shown="one row",
    )
    every: int | EachEpisode = parameter(
        1,
        values.EVERY,
        'a window at rows 0, n, 2n ... of an episode; `"episode"`: at one random row of each '
        "episode, a new one in each epoch",
        goes_with={"window": ANY, "episodes": ANY},
    )
    edge: Edge | tuple[Edge, Edge] = parameter(
        "drop",
        values.EDGE,
        'rows outside of the episode: `"drop"`: only windows without any; `"repeat"` its first or '
        'last row; `"zero"`; or a pair: before, after. `batch.present` says which rows are real',
    )
    outside: tuple[int | None, int | None] | None = parameter(
        None,
        optional(values.OUTSIDE),
        "`(before, after)`: how many rows of a window may lie outside; None in it: any number",
        shown="any number",
    )


@dataclass(frozen=True)
class Lengths:
    """Samples that differ in length as rows of one: ``lengths=Lengths(512, overlong="random")``."""

    most: int | dict[str, int] | None = parameter(
        None,
        optional(checks.by_field(whole(1, 1 << 31))),
        "length of a row of samples that differ in length (variable length, values with offsets, "
        'whole episodes: `window="episode"`): data are (B, max_length, ...), and `batch.lengths` '
        "says how much of a row is served; or a dict by field. See "
        "[rows of different length](lengths.md)",
        shown="needed there",
        name="max_length",
    )
    overlong: Overlong | dict[str, Overlong] = parameter(
        "cut",
        checks.by_field(one_of(Overlong)),
        'a sample that is longer: `"cut"`: its head; `"random"`: a random stretch, the same for '
        'all fields of an episode; `"error"`; or a dict by field',
        name="overlong",
    )
    pad: float | dict[str, float] = parameter(
        0,
        checks.by_field(checks.NUMBER),
        "what shorter samples are filled up with; or a dict by field",
        name="pad_value",
    )


@dataclass(frozen=True)
class Patch:
    """Patches of stored volumes as samples: ``patch=Patch((64, 64, 64), at="grid")``."""

    shape: tuple[int, ...] | None = parameter(
        None,
        optional(values.PATCH),
        "`(Z, Y, X)` or `(Y, X)`: a sample is a patch of a stored volume, cut out of its last "
        "axes; those before come whole. All fields are cut at the same place; only the chunks that "
        "a patch touches are read. See [volumes](volumes.md)",
    )
    at: PatchAt = parameter(
        "random",
        one_of(PatchAt),
        'where: `"random"`: anywhere, one for each volume and epoch, or `epoch_samples`; `"grid"`: '
        'side by side, the last ones shifted inwards; `"center"`. `batch.place` says where',
    )
    axes: tuple[int, ...] | None = parameter(
        None,
        optional(values.PATCH_AXES),
        "the axes of the stored data that `patch` cuts, counted from 0, or below 0 from the end",
        shown="the last ones",
    )
    step: int | tuple[int, ...] | None = parameter(
        None,
        optional(values.PATCH_STEP),
        'how far patches of a `"grid"` are from each other: a number, or one for each axis',
        shown="the patch",
        goes_with={"patch_at": "grid"},
    )


@dataclass(frozen=True)
class Crop:
    """Which part of an image is served: ``crop=Crop("random", padding=4)``."""

    kind: CropKind = parameter(
        "center",
        one_of(CropKind),
        '`"center"`, `"random"`: a part of the largest rectangle of the shape of `size`; '
        '`"random-resized"`: 0.08 to 1 of the area; `"none"`: all of it, squeezed',
    )
    ratio: float = parameter(
        1.0,
        checks.number(0, 1),
        "part of that rectangle's sides; 0.875 is the usual crop for evaluation",
        goes_with={},
    )
    area: tuple[float, float] = parameter(
        (0.08, 1.0),
        span(0, 1, above=True),
        'parts of the area that `crop="random-resized"` takes: (least, most)',
        goes_with=_RESIZED,
    )
    aspect: tuple[float, float] = parameter(
        (3 / 4, 4 / 3),
        span(0, above=True),
        "range of the width of these parts divided by their height",
        shown="(3/4, 4/3)",
        goes_with=_RESIZED,
    )
    padding: int = parameter(
        0,
        whole(0, 4097),
        'pixels put around an image before `crop="random"` (4 for CIFAR)',
        goes_with={"crop": "random"},
    )
    mode: PaddingMode = parameter(
        "zero",
        one_of(PaddingMode),
        'values of these pixels: `"edge"`: as the outermost; `"reflect"`',
        goes_with={"crop_padding": ANY},
        name="padding_mode",
    )

    @property
    def at_random(self) -> bool:
        """Whether it differs from epoch to epoch."""
        return self.kind.startswith("random")

    def of_kind(self, kind: CropKind) -> Crop:
        """A crop of another kind, with what such a crop takes of this one."""
        taken = {"random-resized": ("area", "aspect"), "random": ("padding", "mode")}.get(kind, ())
        return Crop(kind, self.ratio, **{name: getattr(self, name) for name in taken})


def _axis(name: str, default: int, flat: str) -> Any:
    return parameter(
        None,
        optional(whole(1, 5)),
        f"number of the {name} axis",
        shown=f"from the file, else {default}",
        goes_with={},
        name=flat,
    )


@dataclass(frozen=True)
class Axes:
    """The axes of stored 4-D data by their numbers, from 1: ``axes="NCHW"``."""

    number: int | None = parameter(
        None,
        optional(whole(1, 5)),
        'which axis of stored 4-D data is which: a permutation of the letters of `"NHWC"`. Data '
        "that may be NCHW, or have more than 4 channels, are images only if the axes are named. "
        "`num_dim`: the number of the sample axis, from 1",
        shown="from the file, else 1",
        name="num_dim",
    )
    height: int | None = _axis("height", 2, "h_dim")
    width: int | None = _axis("width", 3, "w_dim")
    channel: int | None = _axis("channel", 4, "cha_dim")

    @classmethod
    def of(cls, letters: object) -> Self:
        """The axes by their letters; None: those that the file says."""
        if letters is None:
            return cls()
        if not isinstance(letters, str) or sorted(letters) != sorted("NHWC"):
            raise invalid("axes", letters, "a permutation of the letters of 'NHWC'")
        return cls(*(letters.index(letter) + 1 for letter in "NHWC"))

    @property
    def dims(self) -> tuple[int, int, int, int] | None:
        """1-based (number, height, width, channel) axes, or None where none was named."""
        given = (self.number, self.height, self.width, self.channel)
        if given == (None, None, None, None):
            return None
        number, height, width, channel = (
            default if value is None else value
            for value, default in zip(given, (1, 2, 3, 4), strict=True)
        )
        return number, height, width, channel


@dataclass(frozen=True)
class Block:
    """Blocks of storage in random order, samples mixed over a window: ``shuffle=Block(16384)``."""

    window: int = 16_384


#: An operation of ``augment``: its name, or its name and its options.
Named: TypeAlias = str | tuple[str, Mapping[str, object]]
Augment: TypeAlias = Named | Sequence[Named]


class View(TypedDict, total=False):
    """What an array of views has of its own; what is left out is the reader's."""

    count: int
    size: Sequence[int] | None
    crop: CropKind
    crop_area: Sequence[float]
    flip: bool
    augment: Augment | None


_COUNT: Final = whole(1, 1025)
_KEYS: Final = tuple(View.__annotations__)


def taken_views(value: Any, parameters: Mapping[str, Parameter]) -> int | tuple[View, ...]:
    """What is kept of ``views``. ``parameters``: those of a reader, whose checks a dict's values
    have, too."""
    if isinstance(plain(value), int):
        return _COUNT.take(value)
    if not isinstance(value, list | tuple) or not value:
        raise ValueError
    return tuple(_view(f"views[{number}]", one, parameters) for number, one in enumerate(value))


def _view(name: str, given: object, parameters: Mapping[str, Parameter]) -> View:
    """One dict of ``views``, checked."""
    keys = ", ".join(_KEYS)
    if not isinstance(given, Mapping):
        raise ParamsError(
            f"{name} is not valid", found=written(given), expected=f"a dict of {keys}"
        )
    for key in given:
        if key not in _KEYS:
            near = slip(str(key), _KEYS)
            one = "it is a parameter of the reader, for all views" if key in parameters else None
            raise ParamsError(
                f"unknown key {written(key)} of {name}",
                expected=keys,
                hint=one if near is None else f"did you mean {near!r}?",
            )
    kept: dict[str, object] = {"count": 1}
    for key, value in given.items():
        check = _COUNT if key == "count" else parameters[key].check
        kept[key] = check(f"{key} of {name}", value)
    return cast(View, kept)
