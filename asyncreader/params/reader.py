"""The parameters of a reader: each is declared here, with its default, its check and its text.

To add one: a line in ReaderKeywords, for type checkers and editors, and its declaration in
ReaderParams. ``-p``, Tab, ``help()`` and the table of parameters follow from that.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import (
    TYPE_CHECKING,
    Any,
    Final,
    Literal,
    Protocol,
    TypeAlias,
    TypedDict,
    runtime_checkable,
)

from .. import checks
from ..checks import one_of, optional, or_auto, whole
from ..pixels.augment.options import between, span
from ..pixels.augment.parse import AUGMENT
from ..sampling import Shuffle
from ..system.late import numpy as np
from .columns import COLUMNS, Chosen
from .declare import Parameter, declared, parameter
from .patches import PATCH, PATCH_AXES, PATCH_STEP, PatchAt
from .shares import MIX, WEIGHTS
from .views import Augment, Crop, View, listed_views, of_view, views_check
from .windows import (
    EDGE,
    EPISODES,
    EVERY,
    OUTSIDE,
    SOME_EPISODES,
    WINDOW,
    EachEpisode,
    Edge,
    Rows,
)

if TYPE_CHECKING:
    import numpy.typing as npt

    from ..pixels.specs import OutputSpec
    from ..pixels.steps import Step
    from ..system.array_types import Float64, Int64

#: What names packed files: a path, a glob or several of them.
PATHS: Final = ("path", "hdf5_path", "lmdb_path")
Paths: TypeAlias = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]

#: The sets of a mix: each path, or several as one set, with its ratio.
Ratios: TypeAlias = (
    Mapping[str, float] | Mapping[os.PathLike[str], float] | Mapping[str | tuple[str, ...], float]
)

#: Parameters that say which part of a packed set is meant.
READ_BY: Final = (
    *(
        "data_field",
        "labels_field",
        "labels_path",
        "columns",
        "offsets_field",
        "subset",
        "episodes",
        "channel_order",
    ),
    *("num_dim", "h_dim", "w_dim", "cha_dim"),
)


@runtime_checkable
class Described(Protocol):
    """What was opened with parameters, and says which: a dataset."""

    @property
    def given(self) -> Mapping[str, object]:
        """The parameters that were passed, by name."""


#: Parameters of how numbers are served, which also are a dict by field. Those of lengths are of all
#: fields, where they are no dict.
BY_FIELD: Final = (
    *("members", "dtype", "scale", "mean", "std"),
    *("max_length", "overlong", "pad_value"),
)

#: What a reader is opened with: a dict of parameters, what ``path`` takes, or a dataset.
Given: TypeAlias = "Mapping[str, object] | Paths | Described"

#: Samples mixed together by shuffle="block".
SHUFFLE_WINDOW: Final = 16_384

# The values that some parameters have: their check and Tab take them from these types.
Workers: TypeAlias = Literal["thread", "process"]
LastBatch: TypeAlias = Literal["drop", "pad", "wrap", "short"]
ChannelOrder: TypeAlias = Literal["RGB", "stored"]
Layout: TypeAlias = Literal["NCHW", "NHWC", "planes"]
PaddingMode: TypeAlias = Literal["zero", "edge", "reflect"]
Interpolation: TypeAlias = Literal["bilinear", "bicubic", "area", "nearest"]
OnError: TypeAlias = Literal["raise", "skip", "zero"]
Verify: TypeAlias = Literal["always", "first", "never"]
Io: TypeAlias = Literal["auto", "mmap", "pread"]
MixUntil: TypeAlias = Literal["all", "first"]
Classes: TypeAlias = Literal["joined", "own"]
Overlong: TypeAlias = Literal["cut", "random", "error"]
Auto: TypeAlias = Literal["auto"]


class ReaderKeywords(TypedDict, total=False):
    """Types of what a caller may pass; ReaderParams says what each means and what is kept."""

    path: Paths | None
    hdf5_path: Paths | None
    lmdb_path: Paths | None
    mix: Ratios | None
    mix_until: MixUntil
    classes: Classes
    data: npt.ArrayLike | Mapping[str, npt.ArrayLike] | None
    labels: npt.ArrayLike | None
    data_field: str | Sequence[str] | Mapping[str, str]
    boxes_field: str | None
    keypoints_field: str | None
    labels_field: str | Sequence[str] | None
    labels_path: str | os.PathLike[str] | None
    columns: Sequence[int] | Sequence[str] | Mapping[str, Sequence[int] | Sequence[str]] | None
    subset: slice | str | Sequence[int] | npt.NDArray[np.integer] | None
    episodes: str | None
    episodes_subset: slice | str | Sequence[int] | Sequence[str] | npt.NDArray[np.integer] | None
    window: Rows | Mapping[str, Rows] | None
    window_every: int | EachEpisode
    window_edge: Edge | Sequence[Edge]
    window_outside: Sequence[int | None] | None
    max_length: int | Mapping[str, int] | None
    overlong: Overlong | Mapping[str, Overlong]
    pad_value: float | Mapping[str, float]
    offsets_field: str | Literal[False] | Mapping[str, str] | None
    patch: Sequence[int] | None
    patch_at: PatchAt
    patch_axes: Sequence[int] | None
    patch_step: int | Sequence[int] | None
    sample_axis: int | None
    batch_size: int
    nthread: int | Auto
    njob: int
    workers: Workers
    shuffle: Shuffle
    shuffle_window: int
    weights: Literal["balanced"] | npt.ArrayLike | None
    epoch_samples: int | None
    seed: int
    epochs: int | None
    last_batch: LastBatch
    rank: int | Auto
    world_size: int | Auto
    num_dim: int | None
    h_dim: int | None
    w_dim: int | None
    cha_dim: int | None
    channel_order: ChannelOrder
    layout: Layout
    contiguous: bool
    members: str | Sequence[str] | Mapping[str, str | Sequence[str]] | None
    dtype: npt.DTypeLike | Mapping[str, npt.DTypeLike] | None
    scale: float | Mapping[str, float] | None
    mean: npt.ArrayLike | Mapping[str, npt.ArrayLike] | None
    std: npt.ArrayLike | Mapping[str, npt.ArrayLike] | None
    size: Sequence[int] | None
    crop: Crop
    crop_ratio: float
    crop_area: Sequence[float]
    crop_aspect: Sequence[float]
    crop_padding: int
    padding_mode: PaddingMode
    interpolation: Interpolation
    flip: bool
    augment: Augment | None
    views: int | Sequence[View] | None
    transform: Callable[..., object] | None
    mixup: float | None
    cutmix: float | None
    label_smoothing: float
    num_classes: int | None
    postprocess: Callable[..., object] | None
    on_error: OnError
    verify: Verify
    io: Io
    timeout: float | None
    cuda: bool | str
    trace: str | os.PathLike[str] | None
    copy: bool
    debug: bool


def listed(path: str | tuple[str, ...]) -> tuple[str, ...]:
    """The paths of one set."""
    return (path,) if isinstance(path, str) else path


#: An axis of stored 4-D data.
_AXIS: Final = optional(whole(1, 5))


@dataclass(frozen=True, eq=False)
class ReaderParams:
    """Checked parameters of a reader: what AsyncReader keeps of its keywords.

    Equal ones have equal values. Arrays of numpy are compared row by row; other arrays are equal
    where they are the same object."""

    path: str | tuple[str, ...] | None = parameter(
        None,
        optional(checks.PATHS),
        "dataset file(s): a path, a glob, a URL or a list (one dataset, in that order); the format "
        "is recognised by content; numpy's `.npy` is read, too",
        shown="one of these",
    )
    hdf5_path: str | tuple[str, ...] | None = parameter(
        None,
        optional(checks.PATHS),
        "the same, and an error if it is not HDF5",
        shown="one of these",
    )
    lmdb_path: str | tuple[str, ...] | None = parameter(
        None,
        optional(checks.PATHS),
        "the same, and an error if it is not LMDB",
        shown="one of these",
    )
    mix: dict[str | tuple[str, ...], float] | None = parameter(
        None,
        optional(MIX),
        "several datasets by ratio: `{path: ratio}`, the ratios add up to 1. Each has its own "
        "order and every batch holds them by these ratios; `batch.source` says which dataset a row "
        "is of, and `indices` number the records of all datasets in sequence",
        shown="one of these",
    )
    mix_until: MixUntil = parameter(
        "all",
        one_of(MixUntil),
        'when an epoch of a `mix` ends: `"all"`: as soon as every dataset is used up, where those '
        'that end before begin anew; `"first"`: as soon as one is',
    )
    classes: Classes = parameter(
        "joined",
        one_of(Classes),
        'classes of a `mix`: `"joined"`: those of one name are one, numbered as `reader.classes` '
        'lists them; `"own"`: the numbers of each dataset come behind those of the datasets '
        "before it",
    )
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
    data_field: str | tuple[str, ...] | dict[str, str] = parameter(
        "data",
        checks.FIELDS,
        'name in the file (`group/x` works); `["data", "mask"]`: several fields; '
        '`{"obs": "obs/low", "goal": "obs/low"}`: with names of your own',
    )
    boxes_field: str | None = parameter(
        None,
        optional(checks.TEXT),
        "name of a field of boxes (..., 4): x1, y1, x2, y2 in pixels of the stored image. They "
        "move with it and come behind the images in `data`, float32, in pixels of the image as "
        "served ([boxes](masks-and-fields.md#boxes-and-keypoints))",
    )
    keypoints_field: str | None = parameter(
        None,
        optional(checks.TEXT),
        "name of a field of keypoints (..., 2), or (..., 3) with their visibility: x, y; they come "
        "behind the boxes",
    )
    labels_field: str | tuple[str, ...] | None = parameter(
        "labels",
        optional(checks.NAMES),
        'name of the labels in the file; None: no labels; `["a", "b"]`: several, as a tuple. Of '
        'episodes also a value or a row of each, and `"@attribute"` of its group or file '
        "([labels](arrays.md#labels))",
    )
    labels_path: str | None = parameter(
        None,
        optional(checks.FILE),
        "another file, which holds the labels: HDF5, or an LMDB for one of Caffe's Datums",
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
        "`indices` stay record numbers. Where a sample is an episode, or one of each, it takes "
        "numbers of episodes",
    )
    episodes: str | None = parameter(
        None,
        optional(EPISODES),
        "where episodes end, such as recordings of a robot: "
        '`"groups:data/demo_*"`: each such group of an HDF5 file is one, its datasets the fields; '
        '`"files"`: each file; `"ends:NAME"`: a dataset of cumulative ends; `"ids:NAME"`: an id '
        'for each row; `"flags:NAME,NAME"`: a row where one is true is the last; `"axis"`: stored '
        'as (episode, time, ...); `"whole"`: the dataset is one recording; see [arrays](arrays.md)',
        shown="as recognised",
    )
    episodes_subset: slice | Int64 | tuple[str, ...] | None = parameter(
        None,
        optional(SOME_EPISODES),
        "a slice, numbers or names of episodes; samples come from these alone",
    )
    window: Rows | dict[str, Rows] | None = parameter(
        None,
        optional(WINDOW),
        "a sample is several rows of one episode: their number, from the anchor on; "
        '`(start, stop[, step])` relative to the anchor; a list of such rows; `"last"`: the '
        'episode\'s last row; `"episode"`: the whole episode, (B, max_length, ...); or a dict of '
        "these by field, where a field that is not named has one row. Data are (B, W, ...)",
        shown="one row",
    )
    window_every: int | EachEpisode = parameter(
        1,
        EVERY,
        'a window at rows 0, n, 2n ... of an episode; `"episode"`: at one random row of each '
        "episode, another one in each epoch",
    )
    window_edge: Edge | tuple[Edge, Edge] = parameter(
        "drop",
        EDGE,
        'rows outside of the episode: `"drop"`: only windows without any; `"repeat"` its first or '
        'last row; `"zero"`; or a pair: before, after. `batch.present` says which rows are real',
    )
    window_outside: tuple[int | None, int | None] | None = parameter(
        None,
        optional(OUTSIDE),
        "`(before, after)`: at most so many rows of a window lie outside; None in it: any number",
        shown="any number",
    )
    max_length: int | dict[str, int] | None = parameter(
        None,
        optional(checks.by_field(whole(1, 1 << 31))),
        "length of a row of samples that differ in length (variable length, values with offsets, "
        'whole episodes: `window="episode"`): data are (B, max_length, ...), and `batch.lengths` '
        "says how much of a row is served; or a dict by field. See "
        "[rows of different length](arrays.md#rows-of-different-length)",
        shown="needed there",
    )
    overlong: Overlong | dict[str, Overlong] = parameter(
        "cut",
        checks.by_field(one_of(Overlong)),
        'a sample that is longer: `"cut"`: its head; `"random"`: a random stretch, the same for '
        'all fields of an episode; `"error"`; or a dict by field',
    )
    pad_value: float | dict[str, float] = parameter(
        0,
        checks.by_field(checks.NUMBER),
        "what shorter samples are filled up with; or a dict by field",
    )
    offsets_field: str | Literal[False] | dict[str, str] | None = parameter(
        None,
        optional(checks.OFFSETS),
        "name of the (N + 1,) starts of samples in an array of values, or of their (N,) lengths; "
        "or a dict by field. `<name>_offsets`, `<name>_lengths`, `offsets` and `indptr` are found "
        "where neither `episodes` nor `window` is given; False: the values are rows",
        shown="found",
    )
    patch: tuple[int, ...] | None = parameter(
        None,
        optional(PATCH),
        "`(Z, Y, X)` or `(Y, X)`: a sample is a patch of a stored volume, cut out of its last "
        "axes; those before come whole. All fields are cut at the same place; only the chunks that "
        "a patch touches are read. See [arrays](arrays.md#patches-of-large-volumes)",
    )
    patch_at: PatchAt = parameter(
        "random",
        one_of(PatchAt),
        'where: `"random"`: anywhere, one for each volume and epoch, or `epoch_samples`; `"grid"`: '
        'side by side, the last ones shifted inwards; `"center"`. `batch.place` says where',
    )
    patch_axes: tuple[int, ...] | None = parameter(
        None,
        optional(PATCH_AXES),
        "the axes of the stored data that `patch` cuts, counted from 0, or below 0 from the end",
        shown="the last ones",
    )
    patch_step: int | tuple[int, ...] | None = parameter(
        None,
        optional(PATCH_STEP),
        'how far patches of a `"grid"` are from each other: a number, or one for each axis',
        shown="the patch",
    )
    sample_axis: int | None = parameter(
        0,
        optional(whole(0, 32)),
        "the axis of stored data that numbers the volumes; None: a dataset is one volume, and in "
        "a list of files each is one, of its own extent",
    )
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
    shuffle: Shuffle = parameter(
        False,
        one_of(Shuffle),
        '`True`: another permutation every epoch; `"block"`: blocks of storage in random order, '
        'samples mixed over a window; `"replacement"`: independent draws; '
        '`"balanced-permutation"`: groups of one sample of each class, and none comes again before '
        "all of its class have come",
    )
    shuffle_window: int = parameter(
        SHUFFLE_WINDOW, whole(1), 'samples mixed together by `"block"`, at most 256 MiB decoded'
    )
    weights: Literal["balanced"] | Float64 | None = parameter(
        None,
        optional(WEIGHTS),
        "independent draws: how often each sample comes, relative to the others. One number for "
        'each sample (of the `subset`, in its order), or `"balanced"`: each class as often as the '
        "others, and none of label -1, which is no class unless all labels are -1 and 1. Samples "
        "of weight 0 never come",
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
        'processes that share an epoch; `"auto"` as for `rank`. Left out where a launcher started '
        "several, it is a warning",
    )
    num_dim: int | None = parameter(
        None,
        _AXIS,
        "number of the sample axis of stored 4-D data, from 1; the four are a permutation. Data "
        "that may be NCHW, and more than 4 channels, are images only where the axes are named",
        shown="from the file, else 1",
    )
    h_dim: int | None = parameter(
        None, _AXIS, "number of the height axis", shown="from the file, else 2"
    )
    w_dim: int | None = parameter(
        None, _AXIS, "number of the width axis", shown="from the file, else 3"
    )
    cha_dim: int | None = parameter(
        None, _AXIS, "number of the channel axis", shown="from the file, else 4"
    )
    channel_order: ChannelOrder = parameter(
        "RGB",
        one_of(ChannelOrder),
        '`"stored"`: raw pixels known to be BGR (Caffe) are not turned into RGB',
    )
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
        "by field. See [arrays](arrays.md#structured-rows)",
    )
    dtype: str | dict[str, str] | None = parameter(
        None,
        optional(checks.by_field(checks.DTYPE)),
        '`"float32"`, `"float16"` ...: cast while filling. This, `scale`, `mean` and `std` are of '
        "the first field, or a dict by field",
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
        "one number, or one for each channel; of data that are no images, for each number of the "
        "last axis",
    )
    std: tuple[float, ...] | dict[str, tuple[float, ...]] | None = parameter(
        None, optional(checks.by_field(checks.per_channel(divisor=True))), "as `mean`"
    )
    size: tuple[int, int] | None = parameter(
        None,
        optional(checks.SIZE),
        "`(H, W)`: crop and resize while filling, raw pixels too; needed where stored images "
        "differ in size",
        shown="as stored",
    )
    crop: Crop = parameter(
        "center",
        one_of(Crop),
        '`"center"`, `"random"`: a part of the largest rectangle of the shape of `size`; '
        '`"random-resized"`: 0.08 to 1 of the area; `"none"`: all of it, squeezed',
    )
    crop_ratio: float = parameter(
        1.0,
        checks.number(0, 1),
        "part of that rectangle's sides; 0.875 is the usual crop for evaluation",
    )
    crop_area: tuple[float, float] = parameter(
        (0.08, 1.0),
        span(0, 1, above=True),
        'parts of the area that `crop="random-resized"` takes: (least, most)',
    )
    crop_aspect: tuple[float, float] = parameter(
        (3 / 4, 4 / 3),
        span(0, above=True),
        "and the width of these parts by their height",
        shown="(3/4, 4/3)",
    )
    crop_padding: int = parameter(
        0,
        whole(0, 4097),
        'pixels put around an image before `crop="random"` (4 for CIFAR)',
    )
    padding_mode: PaddingMode = parameter(
        "zero", one_of(PaddingMode), 'what they are: `"edge"`: as the outermost; `"reflect"`'
    )
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
        'operations on each image behind its flip, by name (`"trivial-augment-wide"`) or as '
        "(name, options), with the options of torchvision's v2 transforms; "
        "[augmentation](augmentation.md#operations) lists them",
    )
    views: int | tuple[View, ...] | None = parameter(
        None,
        optional(views_check(lambda: PARAMETERS)),
        "each sample several times, from one decode: a number, or for each size a dict of `count`, "
        "`size`, `crop`, `crop_area`, `flip`, `augment` (the reader's own where they are left "
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
    mixup: float | None = parameter(
        None,
        optional(checks.number(0, 1000)),
        "blends each two neighbours of the epoch's order, with a part of Beta(mixup, mixup); "
        "labels become (B, classes) float32. Needs an even `batch_size`",
    )
    cutmix: float | None = parameter(
        None,
        optional(checks.number(0, 1000)),
        "exchanges a rectangle of them instead; with `mixup`, too, each pair draws one of the two",
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
    verify: Verify = parameter(
        "first",
        one_of(Verify),
        'check checksums: `"first"` until each sample has passed once, `"always"` or `"never"`',
    )
    io: Io = parameter(
        "auto", one_of(Io), '`"mmap"`, or `"pread"` (network file systems, cold data)'
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

    # -- equality --------------------------------------------------------------------------

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ReaderParams):
            return NotImplemented
        return all(_equal(getattr(self, name), getattr(other, name)) for name in PARAMETERS)

    def __hash__(self) -> int:
        return hash(tuple(getattr(self, name) for name in PARAMETERS if name not in _UNHASHED))

    # -- derived ---------------------------------------------------------------------------

    @property
    def dims(self) -> tuple[int, int, int, int] | None:
        """1-based (number, height, width, channel) axes, or None where none was named."""
        given = (self.num_dim, self.h_dim, self.w_dim, self.cha_dim)
        if given == (None, None, None, None):
            return None
        number, height, width, channel = (
            default if value is None else value
            for value, default in zip(given, (1, 2, 3, 4), strict=True)
        )
        return number, height, width, channel

    @property
    def given_path(self) -> str | tuple[str, ...]:
        """What names the packed files, of a mix those of all sets; () if the data are arrays."""
        if self.mix is not None:
            return tuple(one for path in self.mix for one in listed(path))
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
        return tuple(of_view(self, view) for view in listed_views(self.views)) or (self,)

    @property
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

        values: dict[str, Any] = {}
        by_field: dict[str, dict[str, Any]] = {}
        for name in BY_FIELD:
            value = getattr(self, name)
            for field, one in value.items() if isinstance(value, dict) else [("", value)]:
                own = by_field.setdefault(field, {}) if field else values
                if one is not None:
                    own[name] = np.dtype(one) if name == "dtype" else one
        return OutputSpec(
            **values,
            **{name: getattr(self, name) for name in _OF_ROWS},
            by_field=by_field,
            boxes=self.boxes_field,
            keypoints=self.keypoints_field,
            steps=self.augment or (),
            transformed_later=self.transform is not None,
        )


#: The declarations, by name.
PARAMETERS: Final[dict[str, Parameter]] = declared(ReaderParams)

#: Parameters that say what rows are wanted, by their names in OutputSpec.
_OF_ROWS: Final = (
    *("layout", "contiguous", "size", "crop", "crop_ratio", "crop_area", "crop_aspect"),
    *("crop_padding", "padding_mode", "interpolation", "flip"),
)

#: Parameters whose values may have no hash; equal ones of the others have equal hashes.
_UNHASHED: Final = (
    *("mix", "data", "labels", "data_field", "columns", "subset", "episodes_subset", "window"),
    *("weights", "views", "transform", "postprocess", "offsets_field", *BY_FIELD),
)


def _equal(a: object, b: object) -> bool:
    """Whether two values of a parameter are the same."""
    if a is b:
        return True
    if type(a) is not type(b):
        return False
    if isinstance(a, dict) and isinstance(b, dict):
        return list(a) == list(b) and all(_equal(a[name], b[name]) for name in a)
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        alike = a.dtype == b.dtype and a.shape == b.shape
        return alike and bool(np.array_equal(a, b, equal_nan=a.dtype.kind in "fc"))
    return not hasattr(a, "shape") and bool(a == b)
