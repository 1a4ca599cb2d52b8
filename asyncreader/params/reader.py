"""The parameters of a reader: each is declared here, with its default, its check and its text.

To add one: its declaration in the group of its consumer, or in a family (families.py). ``-p``, Tab,
``help()``, the tables of parameters and the types for editors (keywords.py) follow from that:
``python tests/support/page_tables.py`` writes them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, Self, TypeAlias, runtime_checkable

from ..pixels.augment import AUGMENT
from ..sampling import Shuffle
from ..system import checks
from ..system.checks import Check, between, one_of, optional, or_auto, whole
from ..system.late import numpy as np
from .declare import ANY, Parameter, declared, family, parameter, shown
from .families import Axes, Block, Crop, Lengths, Mix, Patch, View, Window, taken_views
from .values import COLUMNS, EPISODES, SOME_EPISODES, WEIGHTS, Chosen

if TYPE_CHECKING:
    from ..pixels.specs import OutputSpec, Step
    from ..system.array_types import Float64, Int64

#: A path, a glob or several of them.
Paths: TypeAlias = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]

#: The sets of a mix: each path, or several as one set, with its ratio.
Ratios: TypeAlias = (
    Mapping[str, float] | Mapping[os.PathLike[str], float] | Mapping[str | tuple[str, ...], float]
)


@runtime_checkable
class Described(Protocol):
    """What was opened with parameters, and says which: a dataset."""

    @property
    def given(self) -> Mapping[str, object]:
        """The parameters that were passed, by name."""


#: What a reader is opened with: a dict of parameters, what ``path`` takes, or a dataset.
Given: TypeAlias = "Mapping[str, object] | Paths | Described"

# The values that some parameters have: their check and Tab take them from these types.
Workers: TypeAlias = Literal["thread", "process"]
LastBatch: TypeAlias = Literal["drop", "pad", "wrap", "short"]
ChannelOrder: TypeAlias = Literal["RGB", "stored"]
Layout: TypeAlias = Literal["NCHW", "NHWC", "planes"]
Interpolation: TypeAlias = Literal["bilinear", "bicubic", "area", "nearest"]
OnError: TypeAlias = Literal["raise", "skip", "zero"]
Verify: TypeAlias = Literal["always", "first", "never"]
Values: TypeAlias = Literal["stored", "physical"]
Io: TypeAlias = Literal["auto", "mmap", "pread"]
Auto: TypeAlias = Literal["auto"]


VIEWS: Final = Check(
    "a whole number of at least 1, or a list of dicts", lambda value: taken_views(value, PARAMETERS)
)


def listed_views(views: int | tuple[View, ...] | None) -> tuple[View, ...]:
    """What each array of views has of its own; nothing without ``views``."""
    return ({"count": views},) if isinstance(views, int) else views or ()


def listed(path: str | tuple[str, ...]) -> tuple[str, ...]:
    """The paths of one set."""
    return (path,) if isinstance(path, str) else path


@dataclass(frozen=True)
class Files:
    """The packed files that are read, by path: one of these, a mix or arrays."""

    path: str | tuple[str, ...] | None = parameter(
        None,
        optional(checks.PATHS),
        "dataset file(s): a path, a glob, a URL or a list (one dataset, in that order); the format "
        "is recognised by content; numpy's `.npy` is read as well",
        shown="one of these",
    )
    hdf5_path: str | tuple[str, ...] | None = parameter(
        None,
        optional(checks.PATHS),
        "as `path`; a file that is not HDF5 raises an error",
        shown="one of these",
    )
    lmdb_path: str | tuple[str, ...] | None = parameter(
        None,
        optional(checks.PATHS),
        "as `path`; a dataset that is not LMDB raises an error",
        shown="one of these",
    )


@dataclass(frozen=True)
class Stored:
    """How the samples of a set are read: what a converter may be told of it, too."""

    data_field: str | tuple[str, ...] | dict[str, str] = parameter(
        "data",
        checks.FIELDS,
        'name in the file (`group/x` works); `["data", "mask"]`: several fields; '
        '`{"obs": "obs/low", "goal": "obs/low"}`: with names of your own',
    )
    labels_field: str | tuple[str, ...] | None = parameter(
        "labels",
        optional(checks.NAMES),
        'name of the labels in the file; None: no labels; `["a", "b"]`: several, as a tuple. With '
        'episodes also one value or row for each, or `"@attribute"` of its group or file '
        "([labels](episodes.md#labels))",
    )
    labels_path: str | None = parameter(
        None,
        optional(checks.FILE),
        "another HDF5 file, which holds the labels",
        goes_with={"path": ANY, "hdf5_path": ANY},
    )
    columns: Chosen | dict[str, Chosen] | None = parameter(
        None,
        optional(COLUMNS),
        "columns (genes) of sparse rows, or of rows of numbers, to be served, in this order: "
        "numbers, or names as the dataset has them; or a dict of these by field",
        shown="all",
    )
    subset: slice | Int64 | str | None = parameter(
        None,
        optional(checks.SUBSET),
        "a slice, an array of record numbers (repeats allowed) or the name of a split; "
        "`indices` stay record numbers. With one sample for each episode, it takes numbers of "
        "episodes",
    )
    episodes: str | None = parameter(
        None,
        optional(EPISODES),
        "where episodes end, such as recordings of a robot: "
        '`"groups:data/demo_*"`: each such group of an HDF5 file is one, its datasets the fields; '
        '`"files"`: each file; `"ends:NAME"`: a dataset of cumulative ends; `"ids:NAME"`: an id '
        'for each row; `"flags:NAME,NAME"`: a row where one is true is the last; `"axis"`: stored '
        'as (episode, time, ...); `"whole"`: the dataset is one recording; '
        "see [episodes](episodes.md#where-episodes-end)",
        shown="as recognised",
    )
    offsets_field: str | Literal[False] | dict[str, str] | None = parameter(
        None,
        optional(checks.OFFSETS),
        "name of the (N + 1,) starts of samples in an array of values, or of their (N,) lengths; "
        "or a dict by field. `<name>_offsets`, `<name>_lengths`, `offsets` and `indptr` are used "
        "if neither `episodes` nor `window` is given; False: the values are rows",
        shown="found",
    )
    channel_order: ChannelOrder = parameter(
        "RGB",
        one_of(ChannelOrder),
        '`"stored"`: raw pixels known to be BGR (Caffe) are not turned into RGB',
    )
    sample_axis: int | None = parameter(
        0,
        optional(whole(0, 32)),
        "the axis of stored data along which samples lie, with `patch` volumes; None: a dataset is "
        "one sample or volume, and in a list of files each is one (volumes of their own extent)",
    )
    values: Values = parameter(
        "stored",
        one_of(Values),
        '`"physical"`: what the attributes of an HDF5 file say that its numbers mean, float32 (or '
        "float64 if `dtype` says so) with NaN for missing values; `scale`, `mean` and `std` are "
        "applied after that ([physical values](arrays.md#physical-values))",
    )
    missing: float | None = parameter(
        None,
        optional(checks.NUMBER),
        "the number served for a missing physical value",
        shown="NaN",
        goes_with={"values": "physical"},
    )
    axes: Axes = family(Axes())


@dataclass(frozen=True)
class Source(Stored, Files):
    """Where samples lie, and what a sample is."""

    mix: Mix = family(Mix())
    data: object = parameter(
        None,
        optional(checks.DATA),
        "an array instead of a path: numpy, memmap, zarr, a tensor of torch (not copied), "
        "h5py dataset (reopened by its path); "
        "`data={name: array, ...}`: several fields",
        shown="one of these",
    )
    labels: object = parameter(
        None,
        optional(checks.LABELS),
        "labels that go with `data`, or with a path: one for each row, or for each episode",
    )
    boxes_field: str | None = parameter(
        None,
        optional(checks.TEXT),
        "name of a field of boxes (..., 4): x1, y1, x2, y2 in pixels of the stored image. They "
        "move with it and come after the images in `data`, float32, in pixels of the image as "
        "served ([boxes](masks-and-fields.md#boxes-and-keypoints))",
    )
    keypoints_field: str | None = parameter(
        None,
        optional(checks.TEXT),
        "name of a field of keypoints (..., 2), or (..., 3) with their visibility: x, y; they come "
        "after the boxes",
    )
    episodes_subset: slice | Int64 | tuple[str, ...] | None = parameter(
        None,
        optional(SOME_EPISODES),
        "a slice, numbers or names of episodes; samples come from these alone",
    )
    window: Window = family(Window())
    patch: Patch = family(Patch())
    verify: Verify = parameter(
        "first",
        one_of(Verify),
        'when checksums are compared: `"first"`: until each sample has passed once; `"always"`; '
        '`"never"`',
    )
    io: Io = parameter(
        "auto", one_of(Io), '`"mmap"`, or `"pread"` (network file systems, cold data)'
    )


@dataclass(frozen=True)
class Order:
    """Which sample comes when."""

    shuffle: Shuffle = parameter(
        False,
        one_of(Shuffle),
        '`True`: another permutation every epoch; `"block"`: blocks of storage in random order, '
        'samples mixed over a window; `"replacement"`: independent draws; '
        '`"balanced-permutation"`: groups of one sample of each class; no sample repeats until '
        "its whole class has been served",
    )
    shuffle_window: int = parameter(
        Block.window,
        whole(1),
        'samples mixed together by `"block"`, at most 256 MiB decoded; `Block(16384)` says both',
        goes_with={"shuffle": "block"},
    )
    weights: Literal["balanced"] | Float64 | None = parameter(
        None,
        optional(WEIGHTS),
        "independent draws: how often each sample comes, relative to the others. One number for "
        'each sample (of the `subset`, in its order), or `"balanced"`: each class as often as the '
        "others; samples of label -1 have no class and never come, unless all labels are -1 and 1. "
        "Samples of weight 0 never come",
    )
    epoch_samples: int | None = parameter(
        None,
        optional(whole(1, 1 << 63)),
        'samples in an epoch with `weights`, `mix`, `shuffle="replacement"` or random patches',
        shown="as many as there are samples",
    )
    seed: int = parameter(0, whole(0, 1 << 64), "seed of the order, of crops and of flips")
    epochs: int | None = parameter(None, optional(whole(1)), "number of epochs; None: endless")
    last_batch: LastBatch = parameter(
        "drop",
        one_of(LastBatch),
        'an incomplete last batch: `"drop"`, `"pad"` (zeros, mask False), `"wrap"` (head of the '
        'next epoch\'s order), `"short"` (world_size 1)',
    )
    rank: int | Auto = parameter(
        0,
        or_auto(whole(0, 1 << 31)),
        'number of this process among `world_size`; `"auto"` asks Ray Train\'s context, else reads '
        "`RANK` and `WORLD_SIZE`, `OMPI_*` or `SLURM_*`",
    )
    world_size: int | Auto = parameter(
        1,
        or_auto(whole(1, 1 << 31)),
        'processes that share an epoch; `"auto"` as for `rank`. If a launcher started several, '
        "leaving it out gives a warning",
    )


@dataclass(frozen=True)
class Rows:
    """What becomes of a sample: its row in a batch."""

    layout: Layout = parameter(
        "NCHW",
        one_of(Layout),
        'shape of a batch; NCHW of data stored NHWC is a free view; `"planes"`: the planes of '
        "encoding `yuv420` as they are stored, (B, bytes of a sample) uint8",
    )
    contiguous: bool = parameter(False, checks.FLAG, "transpose into C order")
    members: str | tuple[str, ...] | dict[str, str | tuple[str, ...]] | None = parameter(
        None,
        optional(checks.by_field(checks.MEMBERS)),
        'members of structured rows (compound HDF5, PyTables): `["pt", "eta"]`: (B, 2), in '
        '`dtype` or the dtype that numpy finds for all of them; `"pt"`: (B,); or a dict of these '
        "by field. See [tables](table-rows.md)",
    )
    dtype: str | dict[str, str] | None = parameter(
        None,
        optional(checks.by_field(checks.DTYPE)),
        '`"float32"`, `"float16"` ...: cast while filling. `dtype`, `scale`, `mean` and `std` '
        "apply to the first field, or are a dict by field",
        shown="as stored",
    )
    scale: float | dict[str, float] | None = parameter(
        None,
        optional(checks.by_field(checks.FINITE)),
        "`(x * scale - mean) / std`, fused into the fill; needs a float dtype",
    )
    mean: tuple[float, ...] | dict[str, tuple[float, ...]] | None = parameter(
        None,
        optional(checks.by_field(checks.per_channel())),
        "one number, or one for each channel; for non-image data, one for each entry of the "
        "last axis",
    )
    std: tuple[float, ...] | dict[str, tuple[float, ...]] | None = parameter(
        None, optional(checks.by_field(checks.per_channel(divisor=True))), "as `mean`"
    )
    lengths: Lengths = family(Lengths())
    size: tuple[int, int] | None = parameter(
        None,
        optional(checks.SIZE),
        "`(H, W)`: crop and resize while filling, also raw pixels; needed if the stored images "
        "differ in size",
        shown="as stored",
    )
    crop: Crop = family(Crop())
    interpolation: Interpolation = parameter(
        "bilinear",
        one_of(Interpolation),
        'how to resize: `"bilinear"` and `"bicubic"` as Pillow and torchvision do (antialiased); '
        '`"area"`: the mean of what a pixel covers; `"nearest"`',
    )
    flip: bool = parameter(False, checks.FLAG, "mirror at random")
    augment: tuple[Step, ...] | None = parameter(
        None,
        optional(AUGMENT),
        'operations on each image after its flip, by name (`"trivial-augment-wide"`) or as '
        "(name, options), with the options of torchvision's v2 transforms; "
        "[augmentation](augmentation.md#operations) lists them",
    )
    views: int | tuple[View, ...] | None = parameter(
        None,
        optional(VIEWS),
        "each sample several times, from one decode: a number, or for each size a dict of `count`, "
        "`size`, `crop`, `crop_area`, `flip`, `augment` (the reader's own if they are left "
        "out). `data` is a tuple of arrays, one for each size, (B, count, ...); "
        "[augmentation](augmentation.md#views) has examples",
    )
    transform: Callable[..., object] | None = parameter(
        None,
        optional(checks.TRANSFORM),
        "`f(image)`, `f(image, label)` or `f(image, label, rng)` for each sample, in the workers, "
        "with the image (H, W, C) after `augment` and before cast and normalise; it returns the "
        "image, (image, label), or None if it worked in place; of several fields it gets and "
        "returns a tuple; transforms of albumentations and torchvision as they are",
    )


@dataclass(frozen=True)
class Run:
    """Batches: how many samples, what is done with all of them, who does it, and for whom."""

    batch_size: int = parameter(1, whole(1, 1 << 63), "samples in a batch")
    nthread: int | Auto = parameter(
        1,
        or_auto(whole(1, 1025)),
        'worker threads; `"auto"`: usable cores divided by the ranks on this machine',
    )
    njob: int = parameter(1, whole(1, 4097), "batches in flight at most")
    workers: Workers = parameter(
        "thread",
        one_of(Workers),
        '`"process"`: the same slots filled by spawned processes, for a `postprocess` that holds '
        "the GIL",
    )
    mixup: float | None = parameter(
        None,
        optional(checks.number(0, 1000)),
        "blends each pair of neighbours in the epoch's order, by a share of Beta(mixup, mixup); "
        "labels become (B, classes) float32. Needs an even `batch_size`",
    )
    cutmix: float | None = parameter(
        None,
        optional(checks.number(0, 1000)),
        "exchanges a rectangle between them; with `mixup` as well, each pair gets one of the two",
    )
    label_smoothing: float = parameter(
        0.0,
        between(0, 1, below=True),
        "the part of a label that is spread over all classes: (B, classes) float32",
    )
    num_classes: int | None = parameter(
        None,
        optional(whole(1)),
        "classes of labels of (B, classes) float32",
        shown="those of the dataset",
    )
    postprocess: Callable[..., object] | None = parameter(
        None,
        optional(checks.FUNCTION),
        "`f(data, labels)` or `f(data, labels, rng)` for each batch, in the workers; it returns "
        "both, the data alone, or None if it worked in place. What it draws from `rng` is "
        "reproducible; what it draws from the generators of `random`, numpy and torch is so in "
        "worker processes only",
    )
    on_error: OnError = parameter(
        "raise",
        one_of(OnError),
        'a bad sample: `"raise"`, `"skip"` (a replacement sample, shown in `indices`), `"zero"` '
        "(mask False); listed in `stats()`",
    )
    timeout: float | None = parameter(
        None,
        optional(checks.number(0, 1e9)),
        "seconds before `getNextBatch()` raises `ReaderTimeoutError`; the batch keeps filling",
    )
    cuda: bool | str = parameter(
        False,
        checks.CUDA,
        'True or `"cuda:1"`: page-locked slots, copied on a side stream into two device slots; '
        "`data` and `labels` are torch device tensors, valid until the next `getNextBatch()` in "
        "the order of the stream current at that call",
    )
    trace: str | None = parameter(
        None,
        optional(checks.FILE),
        "a file for a Chrome trace of workers, slots and waits (the last 20,000 events of each), "
        "written whole by `close()` or at the end of the program; opens in ui.perfetto.dev. One "
        "file per rank",
    )
    copy: bool = parameter(False, checks.FLAG, "batches are private copies, which stay valid")
    debug: bool = parameter(False, checks.FLAG, "overwrite batches that were given back")


@dataclass(frozen=True)
class ReaderParams(Run, Rows, Order, Source):
    """Checked parameters of a reader: what AsyncReader keeps of its keywords. ``names_given``: the
    flat names of those that were passed."""

    names_given: frozenset[str] = field(default=frozenset(), compare=False, repr=False)

    @classmethod
    def from_flat(cls, flat: Mapping[str, object]) -> Self:
        """The parameters with these checked values, by flat names, and the other defaults."""
        given: dict[str, Any] = {"names_given": frozenset(flat)}
        for name, top in SHOWN.items():
            if top.kind is None:
                if name in flat:
                    given[name] = flat[name]
                continue
            parts = {part: flat[one.name] for part, one in top.parts.items() if one.name in flat}
            if parts:
                given[name] = top.kind(**parts)
        return cls(**given)

    def flat(self) -> dict[str, object]:
        """All values by their flat names, those of families apart."""
        found: dict[str, object] = {}
        for name, top in SHOWN.items():
            value = getattr(self, name)
            if top.kind is None:
                found[name] = value
            for part, one in top.parts.items():
                found[one.name] = getattr(value, part)
        return found

    @property
    def given(self) -> dict[str, object]:
        """The values of those that were passed, by flat names."""
        return {name: value for name, value in self.flat().items() if name in self.names_given}

    @property
    def given_path(self) -> str | tuple[str, ...]:
        """What names the packed files, of a mix those of all sets; () if the data are arrays."""
        if self.mix.ratios is not None:
            return tuple(one for path in self.mix.ratios for one in listed(path))
        return self.path or self.hdf5_path or self.lmdb_path or ()

    @property
    def places(self) -> tuple[str, ...]:
        """Names of the fields of boxes and of keypoints."""
        return tuple(filter(None, (self.boxes_field, self.keypoints_field)))

    @property
    def field_names(self) -> tuple[str, ...] | None:
        """Names of the fields that are served as a tuple, in that order; None for plain data."""
        if not isinstance(self.data_field, str):
            return *self.data_field, *self.places
        if isinstance(self.data, dict):
            return *(name for name in self.data if name not in self.places), *self.places
        return (self.data_field, *self.places) if self.places else None

    @property
    def arrays(self) -> tuple[ReaderParams, ...]:
        """The parameters of each array that is made of a field: these, or those of its views."""
        return tuple(self._of_view(view) for view in listed_views(self.views)) or (self,)

    def _of_view(self, view: View) -> ReaderParams:
        """These as an array of views has them. It does not get what its crop does not take."""
        own: dict[str, Any] = {key: value for key, value in view.items() if key != "count"}
        crop = self.crop.of_kind(own.pop("crop", self.crop.kind))
        crop = replace(crop, area=own.pop("crop_area", crop.area))
        return replace(self, views=None, crop=crop, **own)

    @cached_property
    def wanted(self) -> OutputSpec:
        """The part that shapes and converts samples."""
        from ..pixels.specs import OutputSpec

        found, first = [one._wanted for one in self.arrays], 0
        for k, view in enumerate(listed_views(self.views)):
            found[k] = replace(found[k], views=view["count"], first_view=first)
            first += found[k].views
        return OutputSpec.of(found)

    @property
    def _wanted(self) -> OutputSpec:
        from ..pixels.specs import OutputSpec

        flat: dict[str, Any] = self.flat()
        values: dict[str, Any] = {}
        by_field: dict[str, dict[str, Any]] = {}
        for name in BY_FIELD:
            value = flat[name]
            for served, one in value.items() if isinstance(value, dict) else [("", value)]:
                own = by_field.setdefault(served, {}) if served else values
                if one is not None:
                    own[name] = np.dtype(one) if name == "dtype" else one
        of_all = {one.name for one in fields(OutputSpec)} - {*BY_FIELD, "views"}
        return OutputSpec(
            **values,
            **{name: flat[name] for name in of_all & flat.keys()},
            by_field=by_field,
            boxes=self.boxes_field,
            keypoints=self.keypoints_field,
            steps=self.augment or (),
            transformed_later=self.transform is not None,
        )


#: The declarations by name, with families as one each.
SHOWN: Final[dict[str, Parameter]] = shown(ReaderParams)
#: The declarations by their flat names.
PARAMETERS: Final[dict[str, Parameter]] = declared(ReaderParams)
#: What names packed files, and what says how those of others are read.
PATHS: Final = tuple(declared(Files))
READ_BY: Final = tuple(declared(Stored))
#: Parameters of how numbers are served, which also are a dict by field. Those of lengths are of all
#: fields, where they are no dict.
BY_FIELD: Final = tuple(name for name, one in declared(Rows).items() if one.check.by_field)


def flattened(name: str, value: object) -> dict[str, object]:
    """What ``name=value`` says, by flat names: a family says all of its fields, its short form only
    the first one."""
    top = SHOWN.get(name)
    if name == "shuffle" and isinstance(value, Block):
        return {"shuffle": "block", "shuffle_window": value.window}
    if top is None or top.kind is None:
        return {name: value}
    if top.kind is Axes and not isinstance(value, Axes):
        value = Axes.of(value)
    if isinstance(value, top.kind):
        return {one.name: getattr(value, part) for part, one in top.parts.items()}
    return {next(iter(top.parts.values())).name: value}
