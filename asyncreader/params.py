"""The parameters of a reader: each is declared here, and checked here once.

To add one: a line in ReaderKeywords, for type checkers and editors, and its declaration in
ReaderParams. ``-p``, Tab, ``help()`` and the table of parameters follow from that.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, TypeAlias, TypedDict

from . import checks
from .checks import declared, one_of, optional, or_auto, parameter, whole, written
from .errors import ParamsError
from .sampling import Shuffle, takes_window
from .text import plain_name, slip

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from .array_types import Int64
    from .pixels.transform import OutputSpec

#: What names packed files: a path, a glob or several of them.
PATHS: Final = ("path", "hdf5_path", "lmdb_path")
Paths: TypeAlias = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]

#: Parameters that say which part of a packed set is meant.
READ_BY: Final = (
    *("data_field", "labels_field", "labels_path", "subset", "channel_order"),
    *("num_dim", "h_dim", "w_dim", "cha_dim"),
)

#: What a reader is opened with: a dict of parameters, or what ``path`` takes.
Given: TypeAlias = Mapping[str, object] | Paths

#: Samples mixed together by shuffle="block".
SHUFFLE_WINDOW: Final = 16_384

# The values that some parameters have: their check and Tab take them from these types.
Workers: TypeAlias = Literal["thread", "process"]
LastBatch: TypeAlias = Literal["drop", "pad", "wrap", "short"]
ChannelOrder: TypeAlias = Literal["RGB", "stored"]
Layout: TypeAlias = Literal["NCHW", "NHWC"]
Crop: TypeAlias = Literal["center", "random", "random-resized", "none"]
Interpolation: TypeAlias = Literal["bilinear", "bicubic", "area", "nearest", "fast"]
OnError: TypeAlias = Literal["raise", "skip", "zero"]
Verify: TypeAlias = Literal["always", "first", "never"]
Io: TypeAlias = Literal["auto", "mmap", "pread"]
Auto: TypeAlias = Literal["auto"]


class ReaderKeywords(TypedDict, total=False):
    """Types of what a caller may pass; ReaderParams says what each means and what is kept."""

    path: Paths | None
    hdf5_path: Paths | None
    lmdb_path: Paths | None
    data: npt.ArrayLike | Mapping[str, npt.ArrayLike] | None
    labels: npt.ArrayLike | None
    data_field: str | Sequence[str]
    labels_field: str | None
    labels_path: str | os.PathLike[str] | None
    subset: slice | str | Sequence[int] | npt.NDArray[np.integer] | None
    batch_size: int
    nthread: int | Auto
    njob: int
    workers: Workers
    shuffle: Shuffle
    shuffle_window: int
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
    dtype: npt.DTypeLike | None
    scale: float | None
    mean: npt.ArrayLike | None
    std: npt.ArrayLike | None
    size: Sequence[int] | None
    crop: Crop
    crop_ratio: float
    interpolation: Interpolation
    flip: bool
    postprocess: Callable[..., object] | None
    on_error: OnError
    verify: Verify
    io: Io
    timeout: float | None
    cuda: bool | str
    trace: str | os.PathLike[str] | None
    copy: bool
    debug: bool


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
        "packed file(s): a path, a glob, a URL or a list (one data set, in that order); the format "
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
    data: object = parameter(
        None,
        optional(checks.DATA),
        "an array instead of a path: numpy, memmap, zarr, a tensor of torch (not copied), "
        "h5py data set (reopened by its path); "
        "`data={name: array, ...}`: several fields",
        shown="one of these",
    )
    labels: object = parameter(None, optional(checks.LABELS), "labels that go with `data`")
    data_field: str | tuple[str, ...] = parameter(
        "data",
        checks.NAMES,
        'name in the file (`group/x` works); `["data", "mask"]`: several fields',
    )
    labels_field: str | None = parameter(
        "labels", optional(checks.TEXT), "name of the labels in the file; None: no labels"
    )
    labels_path: str | None = parameter(
        None,
        optional(checks.FILE),
        "another file, which holds the labels: HDF5, or an LMDB for one of Caffe's Datums",
    )
    subset: slice | Int64 | str | None = parameter(
        None,
        optional(checks.SUBSET),
        "a slice, an array of record numbers (repeats allowed) or the name of a split; "
        "`indices` stay record numbers",
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
        'samples mixed over a window; `"replacement"`: independent draws',
    )
    shuffle_window: int = parameter(
        SHUFFLE_WINDOW, whole(1), 'samples mixed together by `"block"`, at most 256 MiB decoded'
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
        "that may be NCHW, and more than 4 channels, are pictures only where the axes are named",
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
        "NCHW", one_of(Layout), "shape of a batch; NCHW of data stored NHWC is a free view"
    )
    contiguous: bool = parameter(False, checks.FLAG, "transpose into C order")
    dtype: str | None = parameter(
        None,
        optional(checks.DTYPE),
        '`"float32"`, `"float16"` ...: cast while filling',
        shown="as stored",
    )
    scale: float | None = parameter(
        None,
        optional(checks.FINITE),
        "`(x * scale - mean) / std`, fused into the fill; needs a float dtype",
    )
    mean: tuple[float, ...] | None = parameter(
        None, optional(checks.per_channel()), "one number, or one for each channel"
    )
    std: tuple[float, ...] | None = parameter(
        None, optional(checks.per_channel(divisor=True)), "as `mean`"
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
    interpolation: Interpolation = parameter(
        "bilinear",
        one_of(Interpolation),
        'how to resize: `"bilinear"` and `"bicubic"` as Pillow and torchvision do (antialiased); '
        '`"area"`: the mean of what a pixel covers; `"nearest"`; `"fast"`: OpenCV\'s bilinear',
    )
    flip: bool = parameter(False, checks.FLAG, "mirror at random")
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
        """What names the packed files; () if the data are arrays."""
        return self.path or self.hdf5_path or self.lmdb_path or ()

    @property
    def field_names(self) -> tuple[str, ...] | None:
        """Names of the fields that are served as a tuple, in that order; None for plain data."""
        if isinstance(self.data_field, tuple):
            return self.data_field
        return tuple(self.data) if isinstance(self.data, dict) else None

    @property
    def wanted(self) -> OutputSpec:
        """The part that shapes and converts samples."""
        import numpy as np

        from .pixels.transform import OutputSpec

        return OutputSpec(
            layout=self.layout,
            contiguous=self.contiguous,
            dtype=None if self.dtype is None else np.dtype(self.dtype),
            scale=1.0 if self.scale is None else float(self.scale),
            mean=(0.0,) if self.mean is None else self.mean,
            std=(1.0,) if self.std is None else self.std,
            size=self.size,
            crop=self.crop,
            crop_ratio=self.crop_ratio,
            interpolation=self.interpolation,
            flip=self.flip,
        )


#: The declarations, by name.
PARAMETERS: Final = declared(ReaderParams)

#: Parameters whose values may have no hash; equal ones of the others have equal hashes.
_UNHASHED: Final = ("data", "labels", "subset", "postprocess")


def _equal(a: object, b: object) -> bool:
    """Whether two values of a parameter are the same."""
    if a is b:
        return True
    if type(a) is not type(b):
        return False
    if isinstance(a, dict) and isinstance(b, dict):
        return list(a) == list(b) and all(_equal(a[name], b[name]) for name in a)
    import numpy as np

    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        alike = a.dtype == b.dtype and a.shape == b.shape
        return alike and bool(np.array_equal(a, b, equal_nan=a.dtype.kind in "fc"))
    return not hasattr(a, "shape") and bool(a == b)


def snake_case(name: str) -> str:
    """The canonical spelling of a parameter: ``batchSize`` -> ``batch_size``."""
    return re.sub(r"(?<=[a-z0-9])([A-Z])", lambda m: "_" + m.group(1).lower(), name)


def parse_params(params: Given | None, overrides: Mapping[str, object]) -> ReaderParams:
    """Check everything that can be known without opening a file; ParamsError says what is wrong."""
    given = given_params(params, overrides)
    _check_source(given)
    checked = {name: PARAMETERS[name].check(name, value) for name, value in given.items()}
    result = ReaderParams(**checked)  # type: ignore[arg-type]
    _check_together(result)
    return result


def reading_params(
    path: str, given: Mapping[str, object], allowed: Sequence[str] = READ_BY
) -> ReaderParams:
    """``given`` checked, of which only those ``allowed`` say how the set at ``path`` is read."""
    read = parse_params({**given, "path": path}, {})
    unknown = sorted(name for name in given if snake_case(name) not in allowed)
    if unknown:
        raise ParamsError(
            "params say how a packed set is read",
            found=", ".join(unknown),
            expected=", ".join(allowed),
        )
    return read


def given_params(params: Given | None, overrides: Mapping[str, object]) -> dict[str, object]:
    """What the caller passed, by canonical name and unchecked; ``overrides`` win.

    ParamsError for names that no parameter has.
    """
    return {**_collect(params), **_collect(overrides)}


def _collect(params: Given | None) -> dict[str, object]:
    if params is None:
        return {}
    if isinstance(params, str | os.PathLike | list | tuple):
        return {"path": params}
    if not isinstance(params, Mapping):
        raise ParamsError(
            "params must be a dict or a path",
            found=type(params).__name__,
            expected='{"path": ..., ...} or "train.h5"',
            hint="arrays go as data=" if hasattr(params, "shape") else None,
        )
    given: dict[str, object] = {}
    for raw, value in params.items():
        name = snake_case(raw) if isinstance(raw, str) else raw
        if name not in PARAMETERS:
            raise ParamsError(f"unknown parameter {written(raw)}", hint=_instead(str(name), value))
        if name in given:
            raise ParamsError(f"{name!r} is given twice, also as {raw!r}")
        given[name] = value
    return given


#: Names from torch, torchvision, FFCV, DALI, Keras, tf.data and WebDataset, and of what other
#: libraries have and this one has not, without punctuation; and what to write here instead. ``{}``
#: is the value that was passed.
_THREADS: Final = "nthread={} (worker threads; they need no processes)"
_AHEAD: Final = "njob={} (batches in flight)"
_PATH_IS: Final = "path={}"
_SIZE_IS: Final = "size={}"
_OWN_CODE: Final = (
    "size=(H, W), crop=, flip=, dtype=, scale=, mean= and std=, which cover the usual ones, or "
    "postprocess=f for a function f(data, labels) of whole batches"
)
_BY_RNG: Final = (
    "postprocess=f for a function f(data, labels, rng) that does it to a whole batch "
    "(docs/augmentation.md shows one)"
)
_ONE_HOT: Final = (
    "postprocess=f for a function f(data, labels) that returns (data, rows of probabilities)"
)
_MIXED: Final = (
    "postprocess=f for a function f(data, labels, rng) that mixes a batch (docs/augmentation.md "
    "has mixup)"
)
_CLASSES: Final = (
    "nothing instead: labels are class numbers, and reader.classes has the names where the set has "
    "them"
)
_OFTEN: Final = (
    "shuffle=True, and subset= with the number of a record as often as an epoch should serve it "
    "(docs/splits-and-balance.md)"
)
_GREY: Final = "nothing instead: asyncreader convert --channels 1 packs grey pictures"
_AREA: Final = (
    'size=(H, W), crop="random-resized": 0.08 to 1 of the area, sides of 3/4 to 4/3; for other '
    "ranges postprocess=f for a function f(data, labels, rng)"
)
_WINDOW: Final = (
    "data=np.moveaxis(np.lib.stride_tricks.sliding_window_view(rows, W, 0), -1, 1) for an "
    "array of rows in order"
)
_PROCESSES: Final = 'workers="process" if processes are needed, else leave it out'
_WINDOWED: Final = 'shuffle="block", shuffle_window={}'
_LAST: Final = 'last_batch="drop" for True; "short", "pad" or "wrap" for False'
_EPOCHS: Final = "epochs={} to end after so many epochs; without it they are repeated without end"
_FIRST_ONES: Final = "subset=slice(0, {}) for the first ones"
_RANKS: Final = 'rank="auto", world_size="auto"'


def _answers(*pairs: tuple[str, str]) -> dict[str, str]:
    """From pairs of several names, as one text, and their answer."""
    return {name: answer for names, answer in pairs for name in names.split()}


_HABITS: Final[dict[str, str]] = _answers(
    ("numworkers nworkers numthreads threads jobs numparallelcalls readthreads", _THREADS),
    ("numparallelreads numreaders workerscount", _THREADS),
    ("prefetchfactor prefetch batchesahead maxqueuesize queuesize buffers", _AHEAD),
    ("prefetchqueuedepth prefetchbatches prefetchsize", _AHEAD),
    ("droplast dropremainder", _LAST),
    ("drop", 'last_batch="drop"'),
    ("padlastbatch", 'last_batch="pad"'),
    ("lastbatchpolicy lastbatchhandle partial", 'last_batch="drop", "short", "pad" or "wrap"'),
    ("transform transforms augment augmentation augmentations pipelines pipeline tfms", _OWN_CODE),
    ("preprocessingfunction preprocess imagetransform itemtfms preprocessing", _OWN_CODE),
    ("map mapfn batchtransform batchtfms", "postprocess=f for a function f(data, labels)"),
    ("targettransform", "postprocess=f for a function f(data, labels) that changes the labels"),
    ("collatefn collate", "postprocess=f for a function f(data, labels) of joined batches"),
    ("rotate rotation rotationrange randomrotation degrees affine randomaffine shear", _BY_RNG),
    ("shearrange zoom zoomrange randomzoom translate perspective randomperspective", _BY_RNG),
    ("widthshiftrange heightshiftrange brightnessrange channelshiftrange elastic", _BY_RNG),
    ("vflip verticalflip randomverticalflip flipud colorjitter colourjitter color", _BY_RNG),
    ("brightness contrast saturation hue sharpness jitter noise gaussianblur blur", _BY_RNG),
    ("randomgrayscale randomerasing erasing cutout randaugment autoaugment augmix", _BY_RNG),
    ("trivialaugment trivialaugmentwide posterize solarize equalize invert autocontrast", _BY_RNG),
    ("lighting pca cropping padding pad croppadding paddingmode randompad clip clamp", _BY_RNG),
    ("views numviews nviews multicrop twocrops", _BY_RNG),
    ("mixup cutmix mixupalpha cutmixalpha mixupprob cutmixprob", _MIXED),
    ("labelsmoothing smoothing", "CrossEntropyLoss(label_smoothing={}) in torch, or " + _ONE_HOT),
    ("onehot labelmode classmode categorical", _ONE_HOT),
    ("numclasses nclasses nbclasses classes classnames labelnames", _CLASSES),
    ("weights weight classweights classweight sampleweights sampleweight balanced balance", _OFTEN),
    ("weightedsampler oversample upsample", _OFTEN),
    ("grayscale greyscale gray grey colormode numchannels channels inchannels", _GREY),
    ("bs batch samplespergpu batchsizeperreplica", "batch_size={}"),
    ("pinmemory", "cuda=True for batches on the GPU, else leave it out"),
    ("pinmemorydevice device deviceid gpu gpuid", 'cuda="cuda:0" or True'),
    (
        "sampler batchsampler indices",
        "shuffle=True for a random order, subset=[3, 1, 4] for record numbers of your own",
    ),
    ("imagesize imgsize targetsize inputsize resize resolution imgsz cropsize", _SIZE_IS),
    ("imageshape inputshape outputsize resizeto", _SIZE_IS),
    ("persistentworkers", "nothing instead: workers live as long as the reader"),
    ("multiprocessingcontext usemultiprocessing processes numprocesses numproc", _PROCESSES),
    ("workerinitfn", "postprocess=f for a function f(data, labels, rng): rng is seeded for it"),
    ("dataset root directory datadir fname filename file filepath datapath db source", _PATH_IS),
    ("fileroot imagedir imgdir folder dataroot filelist files filenames urls url", _PATH_IS),
    ("h5 h5path hdf5 lmdb dbpath datasetpath", _PATH_IS),
    ("x features array arrays tensors images", "data= for arrays, path= for a file"),
    ("y target targets", "labels= for arrays, labels_field= for names in a file"),
    ("imagekey imagefield datakey key keys", "data_field={}"),
    ("labelkey targetfield targetkey labelname", "labels_field={}"),
    ("generator", "seed=0"),
    ("randomstate randomseed manualseed rng", "seed={}"),
    ("order", 'shuffle=True, shuffle="block" (quasi-random) or leave it out (sequential)'),
    ("shufflebuffer buffersize shufflebuffersize initialfill", _WINDOWED),
    ("randomshuffle reshuffleeachiteration", "shuffle=True: another order each epoch"),
    ("replacement", 'shuffle="replacement"'),
    ("numsamples limit maxsamples samplesperepoch", _FIRST_ONES),
    ("oscache mmap memmap mmapmode", 'io="mmap" for True, io="pread" for False'),
    ("cache inmemory cacheinmemory", "nothing instead: the system keeps what was read in memory"),
    ("numreplicas numshards", "world_size={}"),
    ("shardid", "rank={}"),
    ("distributed ddp", _RANKS),
    ("localrank", _RANKS + ", and cuda= for the device"),
    ("channelslast dataformat memoryformat", 'layout="NHWC"'),
    ("channelsfirst", 'layout="NCHW"'),
    ("rescale", "scale={}"),
    ("normalize normalise normalization", 'dtype="float32", scale=1/255, mean=(...), std=(...)'),
    ("totensor tofloat", 'dtype="float32", scale=1/255'),
    ("half fp16 tohalf", 'dtype="float16", scale=1/255'),
    ("horizontalflip randomflip randomhorizontalflip hflip fliplr mirror", "flip=True"),
    ("randomcrop", 'size=(H, W), crop="random"'),
    ("centercrop centrecrop", 'size=(H, W), crop="center"'),
    ("randomresizedcrop", 'size=(H, W), crop="random-resized"'),
    ("cropscale croparea arearange ratio aspectratio cropaspect scalerange", _AREA),
    ("antialias", 'interpolation="bilinear" or "bicubic": both are antialiased'),
    ("split validationsplit", 'subset="train", or subset=slice(0, 1000)'),
    ("train mode phase", 'path= of that part, or subset="train" where the file has parts'),
    ("numepochs nepochs maxepochs repeat", _EPOCHS),
    ("startepoch resume state", "nothing instead: call reader.load_state_dict(state)"),
    ("returnindices withindex withindices", "nothing instead: they are batch.indices"),
    ("deterministic", "nothing instead: the order follows from seed=, never from threads"),
    ("ignoreerrors skiperrors skipbad handler onbad", 'on_error="skip"'),
    ("profile profiler", 'trace="trace.json"'),
    ("mix datasets concat", "path=[...] for several files as one set"),
    ("masks maskfield mask", 'data_field=["data", "mask"] (docs/masks-and-fields.md)'),
    ("window windowsize seqlen sequencelength numframes", _WINDOW),
)  # fmt: skip


def _instead(name: str, value: object) -> str:
    """What to write instead of an unknown parameter: of a name that is known from elsewhere, or of
    one that is a parameter's but for a slip of the keyboard. There are no other guesses."""
    known = plain_name(name)
    if known not in _HABITS:
        near = slip(name, PARAMETERS)
        if near is not None:
            return f"did you mean {near!r}?"
        known = slip(known, _HABITS) or ""
    habit = _HABITS.get(known)
    if habit is None:
        return "docs/parameters.md and help(AsyncReader) list all parameters"
    value = checks.plain(value)
    if habit in (_THREADS, _AHEAD) and value == 0:  # "no processes", "nothing ahead"
        value = 1
    if habit is _SIZE_IS and type(value) is int:
        value = (value, value)
    elif habit is _SIZE_IS and isinstance(value, tuple | list) and len(value) != 2:
        habit = "size=(H, W)"  # with channels, perhaps
    return "write " + habit.format(_shown_in(habit, value))


def _shown_in(habit: str, value: object) -> str:
    """``value`` as ``habit`` shows it, if the parameter there takes it; else dots."""
    named = re.search(r"(\w+)=\{\}", habit)
    if named is not None and named[1] in PARAMETERS:
        try:
            PARAMETERS[named[1]].check(named[1], value)
        except ParamsError:
            return "..."
    simple = isinstance(value, str | os.PathLike | int | float | tuple | list)
    if not simple or isinstance(value, bool):
        return "..."
    text = written(os.fspath(value) if isinstance(value, os.PathLike) else value)
    return text if len(text) <= 80 else "..."


def _check_source(given: Mapping[str, object]) -> None:
    named = [n for n in (*PATHS, "data") if given.get(n) is not None]
    if len(named) != 1:
        raise ParamsError(
            "name one source of data",
            found=" and ".join(named) or "none",
            expected="one of path, hdf5_path, lmdb_path or data",
        )
    if given.get("labels") is not None and "data" not in named:
        raise ParamsError(
            "labels= goes with data=", hint="name the labels of a file by labels_field"
        )
    if given.get("labels_path") is not None:
        if named != ["path"] and named != ["hdf5_path"]:
            raise ParamsError("labels_path goes with path= or hdf5_path=", found=f"{named[0]}=")
        if "labels_field" in given and given["labels_field"] is None:
            raise ParamsError("labels_path is given, but labels_field=None asks for no labels")


def _check_together(p: ReaderParams) -> None:
    dims = p.dims
    if dims is not None and sorted(dims) != [1, 2, 3, 4]:
        raise ParamsError(
            "num_dim, h_dim, w_dim and cha_dim must be a permutation of 1, 2, 3, 4",
            found=f"({', '.join(map(str, dims))})",
        )
    auto = {p.rank, p.world_size} & {"auto"}
    if not auto and not 0 <= int(p.rank) < int(p.world_size):
        raise ParamsError(
            "rank must be below world_size", found=f"rank {p.rank}, world_size {p.world_size}"
        )
    if p.last_batch == "short" and p.world_size not in (1, "auto"):
        raise ParamsError('last_batch="short" needs world_size 1: other ranks would wait for ever')
    if p.size is None and (p.crop_ratio != 1.0 or p.crop in ("random", "random-resized")):
        raise ParamsError("crop and crop_ratio need size=(H, W)")
    if not takes_window(p.shuffle) and p.shuffle_window != SHUFFLE_WINDOW:
        raise ParamsError('shuffle_window goes with shuffle="block"', found=f"{p.shuffle!r}")
    _check_fields(p)


def _check_fields(p: ReaderParams) -> None:
    if p.data is None:
        return
    if not isinstance(p.data, dict):
        if isinstance(p.data_field, tuple):
            raise ParamsError(
                "several fields of arrays go as data={name: array, ...}",
                found=type(p.data).__name__,
            )
        return
    if p.data_field == "data":
        return
    chosen = p.data_field if isinstance(p.data_field, tuple) else (p.data_field,)
    missing = [name for name in chosen if name not in p.data]
    if missing or isinstance(p.data_field, str):
        raise ParamsError(
            "data_field does not choose from data's arrays",
            found=repr(p.data_field),
            expected=f"a list of some of {', '.join(map(repr, p.data))}",
        )
