"""The user's dict -> a frozen ReaderParams. Only this module checks what the user asked for."""

from __future__ import annotations

import difflib
import math
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final, TypeAlias

import numpy as np

from .errors import ParamsError
from .pixels.transform import Wanted

#: What a reader is opened with: a dict of parameters, or what ``path`` takes.
Given: TypeAlias = Mapping[str, Any] | str | os.PathLike[str] | Sequence[str | os.PathLike[str]]

#: What names packed files: a path, a glob or several of them.
PATHS: Final = ("path", "hdf5_path", "lmdb_path")

#: Samples mixed together by shuffle="block", and the most bytes that may take decoded.
SHUFFLE_WINDOW: Final = 16_384
WINDOW_BYTES: Final = 256 << 20


@dataclass(frozen=True)
class ReaderParams:
    """Checked parameters of a reader; the table in README says what each means."""

    path: Any = None
    hdf5_path: Any = None
    lmdb_path: Any = None
    data: Any = None
    labels: Any = None
    data_field: str | tuple[str, ...] = "data"
    labels_field: str | None = "labels"
    labels_path: str | None = None
    subset: Any = None
    batch_size: int = 1
    nthread: int | str = 1
    njob: int = 1
    workers: str = "thread"
    shuffle: bool | str = False
    shuffle_window: int = SHUFFLE_WINDOW
    seed: int = 0
    epochs: int | None = None
    last_batch: str = "drop"
    rank: int | str = 0
    world_size: int | str = 1
    num_dim: int | None = None
    h_dim: int | None = None
    w_dim: int | None = None
    cha_dim: int | None = None
    channel_order: str = "RGB"
    layout: str = "NCHW"
    contiguous: bool = False
    dtype: Any = None
    scale: float | None = None
    mean: Any = None
    std: Any = None
    size: Any = None
    crop: str = "center"
    crop_ratio: float = 1.0
    flip: bool = False
    postprocess: Callable[..., Any] | None = None
    on_error: str = "raise"
    verify: str = "first"
    io: str = "auto"
    timeout: float | None = None
    cuda: bool | str = False
    trace: str | None = None
    copy: bool = False
    debug: bool = False

    # -- derived ---------------------------------------------------------------------------

    @property
    def dims(self) -> tuple[int, int, int, int] | None:
        """1-based (number, height, width, channel) axes, or None where none was named."""
        given = (self.num_dim, self.h_dim, self.w_dim, self.cha_dim)
        if all(value is None for value in given):
            return None
        number, height, width, channel = (
            default if value is None else value
            for value, default in zip(given, (1, 2, 3, 4), strict=True)
        )
        return number, height, width, channel

    @property
    def field_names(self) -> tuple[str, ...] | None:
        """Names of the fields that are served as a tuple, in that order; None for plain data."""
        if isinstance(self.data_field, tuple):
            return self.data_field
        return tuple(self.data) if isinstance(self.data, dict) else None

    @property
    def wanted(self) -> Wanted:
        """The part that shapes and converts samples."""
        return Wanted(
            layout=self.layout,
            contiguous=self.contiguous,
            dtype=None if self.dtype is None else np.dtype(self.dtype),
            scale=1.0 if self.scale is None else float(self.scale),
            mean=(0.0,) if self.mean is None else self.mean,
            std=(1.0,) if self.std is None else self.std,
            size=self.size,
            crop=self.crop,
            crop_ratio=self.crop_ratio,
            flip=self.flip,
        )


@dataclass(frozen=True)
class DatasetPath:
    """Path and name of an h5py data set given as ``data``: the reader opens it by these."""

    path: str
    name: str


_NAMES: Final = tuple(field.name for field in fields(ReaderParams))


def snake_case(name: str) -> str:
    """The canonical spelling of a parameter: ``batchSize`` -> ``batch_size``."""
    return re.sub(r"(?<=[a-z0-9])([A-Z])", lambda m: "_" + m.group(1).lower(), name)


def parse_params(params: Given | None, overrides: Mapping[str, Any]) -> ReaderParams:
    """Check everything that can be known without opening a file; ParamsError says what is off."""
    given = given_params(params, overrides)
    _check_source(given)
    checked = {name: _CHECKS[name](name, value) for name, value in given.items()}
    result = ReaderParams(**checked)
    _check_together(result)
    return result


def given_params(params: Given | None, overrides: Mapping[str, Any]) -> dict[str, Any]:
    """What the caller gave, by canonical name and unchecked; ``overrides`` win.

    ParamsError for names that no parameter has.
    """
    return {**_collect(params), **_collect(overrides)}


def _collect(params: Given | None) -> dict[str, Any]:
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
    given: dict[str, Any] = {}
    for raw, value in params.items():
        name = snake_case(raw) if isinstance(raw, str) else raw
        if name not in _NAMES:
            raise ParamsError(f"unknown parameter {_written(raw)}", hint=_instead(str(name), value))
        if name in given:
            raise ParamsError(f"{name!r} is given twice, also as {raw!r}")
        given[name] = value
    return given


#: What people write who come from torch, torchvision, FFCV, DALI, Keras or tf.data, and the line to
#: write here; ``{}`` is the value that was given.
_THREADS: Final = "nthread={} (worker threads; they need no processes)"
_AHEAD: Final = "njob={} (batches in flight)"
_PATH_IS: Final = "path={}"
_SIZE_IS: Final = "size={}"
_OWN_CODE: Final = (
    "size=(H, W), crop=, flip=, dtype=, scale=, mean= and std=, which cover the usual ones, or "
    "postprocess=f for a function f(data, labels) of whole batches"
)
_HABITS: Final[dict[str, str]] = {
    **dict.fromkeys(
        ("num_workers", "n_workers", "num_threads", "threads", "n_jobs"),
        _THREADS,
    ),
    **dict.fromkeys(("num_parallel_calls", "read_threads", "nworkers"), _THREADS),
    **dict.fromkeys(("prefetch_factor", "prefetch", "batches_ahead", "max_queue_size"), _AHEAD),
    **dict.fromkeys(("queue_size", "prefetch_queue_depth", "prefetch_batches"), _AHEAD),
    "drop_last": 'last_batch="drop" for True; "short", "pad" or "wrap" for False',
    "drop_remainder": 'last_batch="drop" for True; "short", "pad" or "wrap" for False',
    **dict.fromkeys(("transform", "transforms", "augment", "augmentation", "pipelines"), _OWN_CODE),
    **dict.fromkeys(("preprocessing_function", "preprocess", "image_transform"), _OWN_CODE),
    "target_transform": "postprocess=f for a function f(data, labels) that changes the labels",
    "collate_fn": "postprocess=f for a function f(data, labels): batches are joined already",
    **dict.fromkeys(("bs", "batch", "samples_per_gpu"), "batch_size={}"),
    "pin_memory": "cuda=True for batches on the GPU, else leave it out",
    **dict.fromkeys(("pin_memory_device", "device", "device_id", "gpu"), 'cuda="cuda:0" or True'),
    **dict.fromkeys(
        ("sampler", "batch_sampler", "indices"),
        "shuffle=True for a random order, subset=[3, 1, 4] for record numbers of your own",
    ),
    **dict.fromkeys(("image_size", "img_size", "target_size", "input_size"), _SIZE_IS),
    **dict.fromkeys(("resize", "resolution", "img_sz", "imgsz", "crop_size"), _SIZE_IS),
    **dict.fromkeys(("image_shape", "input_shape"), _SIZE_IS),
    "persistent_workers": "nothing instead: workers live as long as the reader",
    "multiprocessing_context": 'workers="process" if processes are needed, else leave it out',
    "use_multiprocessing": 'workers="process" if processes are needed, else leave it out',
    "worker_init_fn": "postprocess=f for a function f(data, labels, rng): rng is seeded for it",
    **dict.fromkeys(("dataset", "root", "directory", "data_dir", "fname", "filename"), _PATH_IS),
    **dict.fromkeys(("file", "file_path", "filepath", "data_path", "db", "source"), _PATH_IS),
    "generator": "seed=0",
    **dict.fromkeys(("random_state", "random_seed", "manual_seed"), "seed={}"),
    "order": 'shuffle=True, shuffle="block" (quasi-random) or leave it out (sequential)',
    **dict.fromkeys(("shuffle_buffer", "buffer_size"), 'shuffle="block", shuffle_window={}'),
    "os_cache": 'io="mmap" for True, io="pread" for False',
    **dict.fromkeys(("num_replicas", "num_shards"), "world_size={}"),
    "shard_id": "rank={}",
    "distributed": 'rank="auto", world_size="auto"',
    **dict.fromkeys(("channels_last", "data_format", "memory_format"), 'layout="NHWC"'),
    "rescale": "scale={}",
    "normalize": 'dtype="float32", scale=1/255, mean=(...), std=(...)',
    "to_tensor": 'dtype="float32", scale=1/255',
    **dict.fromkeys(("horizontal_flip", "random_flip", "hflip", "mirror"), "flip=True"),
    "random_crop": 'size=(H, W), crop="random"',
    "random_resized_crop": 'size=(H, W), crop="random-resized"',
    **dict.fromkeys(("split", "validation_split"), 'subset="train", or subset=slice(0, 1000)'),
    "train": 'path= of the part that is wanted, or subset="train" where the file has parts',
    **dict.fromkeys(("num_epochs", "n_epochs", "max_epochs", "repeat"), "epochs={}"),
}


def _instead(name: str, value: object) -> str:
    """What to write instead of an unknown parameter."""
    habit = _HABITS.get(name.lower())
    if habit is None:
        close = difflib.get_close_matches(name, _NAMES, 1, 0.9)
        close = close or difflib.get_close_matches(name, (*_NAMES, *_HABITS), 1, 0.6)
        if not close:
            return f"known: {', '.join(_NAMES)}"
        if close[0] in _NAMES:
            return f"did you mean {close[0]!r}?"
        habit = _HABITS[close[0]]
    if habit is _SIZE_IS and _is_int(value):
        value = (value, value)
    elif habit is _SIZE_IS and isinstance(value, tuple | list) and len(value) != 2:
        habit = "size=(H, W)"  # with channels, perhaps
    simple = isinstance(value, str | os.PathLike | int | float | tuple | list)
    written = _written(os.fspath(value) if isinstance(value, os.PathLike) else value)
    return "write " + habit.format(written if simple and len(written) <= 80 else "...")


def _check_source(given: Mapping[str, Any]) -> None:
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
            raise ParamsError("labels_path goes with an HDF5 file", found=f"{named[0]}=")
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
    if p.shuffle != "block" and p.shuffle_window != SHUFFLE_WINDOW:
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


# -- one check per parameter ---------------------------------------------------------------------


def _fail(name: str, value: object, expected: str) -> ParamsError:
    return ParamsError(f"{name} is not valid", found=_written(value), expected=expected)


def _written(value: object) -> str:
    """``repr`` of whatever was given, and not more of it than a line holds."""
    try:
        text = repr(value)
    except Exception:  # an odd object, or a number of too many digits
        return f"a {type(value).__name__}"
    return text if len(text) <= 200 else f"{text[:200]}..."


def _is_int(value: object) -> bool:
    # to numpy a time span is a whole number, too
    return isinstance(value, int | np.integer) and not isinstance(value, bool | np.timedelta64)


def _is_number(value: object) -> bool:
    return _is_int(value) or isinstance(value, float | np.floating)


def _integer(low: int, high: int | None = None, *words: str | None) -> Callable[[str, Any], Any]:
    limits = f"a whole number of at least {low}" + (f", below {high}" if high else "")
    also = "".join(f", or {word!r}" for word in words)

    def check(name: str, value: Any) -> Any:
        if (isinstance(value, str) or value is None) and value in words:
            return value
        if not _is_int(value) or value < low or (high is not None and value >= high):
            raise _fail(name, value, limits + also)
        return int(value)

    return check


def _choice(*allowed: Any) -> Callable[[str, Any], Any]:
    def check(name: str, value: Any) -> Any:
        for option in allowed:
            if type(value) in (type(option), np.bool_) and value == option:
                return option
        raise _fail(name, value, " or ".join(repr(option) for option in allowed))

    return check


def _flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool | np.bool_):
        raise _fail(name, value, "True or False")
    return bool(value)


def _text(optional: bool) -> Callable[[str, Any], Any]:
    def check(name: str, value: Any) -> Any:
        if value is None and optional:
            return None
        if isinstance(value, os.PathLike):
            value = os.fspath(value)
        if not isinstance(value, str) or not value:
            raise _fail(name, value, "text" + (" or None" if optional else ""))
        return value

    return check


def _path(name: str, value: Any) -> Any:
    if value is None:
        return None
    if isinstance(value, str | os.PathLike):
        if not os.fspath(value):
            raise _fail(name, value, "a path, a glob or a list of them")
        return os.fspath(value)
    try:
        entries = [] if isinstance(value, bytes) else list(value)
    except Exception:  # no list, or one that cannot be gone through
        raise _fail(name, value, "a path, a glob or a list of them") from None
    entries = [
        _path(name, entry) if isinstance(entry, str | os.PathLike) else entry for entry in entries
    ]
    if not entries or any(not isinstance(entry, str) for entry in entries):
        raise _fail(name, value, "a path, a glob or a list of at least one of them")
    return tuple(entries)


def _data_field(name: str, value: Any) -> Any:
    """A name, or several in the order in which they are served."""
    if not isinstance(value, list | tuple):
        return _text(optional=False)(name, value)
    names = tuple(value)
    good = names and all(isinstance(one, str) and one for one in names)
    if not good or len(set(names)) < len(names):
        raise _fail(name, value, "text, or a list of different names")
    return names


def _data(name: str, value: Any) -> Any:
    """An array, or several by name."""
    if not isinstance(value, Mapping):
        return _array(name, value)
    if not value or not all(isinstance(key, str) and key for key in value):
        raise _fail(name, list(value), "an array, or {name: array, ...}")
    arrays = {key: _array(f"{name}[{key!r}]", one) for key, one in value.items()}
    if any(one is None for one in arrays.values()):
        raise _fail(name, None, "an array under each name")
    return arrays


def _array(name: str, value: Any) -> Any:
    if value is None:
        return None
    if isinstance(value, list | tuple):
        try:
            value = np.asarray(value)
        except ValueError:  # rows of several lengths
            raise _fail(name, type(value).__name__, "an array") from None
    h5py = sys.modules.get("h5py")
    if h5py is not None and isinstance(value, h5py.Dataset) and value:
        if name == "labels":
            return np.asarray(value[()])
        if value.file.driver == "sec2" and value.name is not None:
            if value.file.mode != "r":
                value.file.flush()
            return DatasetPath(os.path.abspath(value.file.filename), value.name)
    if isinstance(value, DatasetPath):
        return value
    try:
        [int(n) for n in value.shape]
        np.dtype(value.dtype)
    except (AttributeError, TypeError, ValueError):
        known = False  # or a type, which has these names too
    else:
        known = hasattr(value, "__getitem__")
    if not known:
        kind = value.__name__ if isinstance(value, type) else type(value).__name__
        raise _fail(name, kind, "an array: numpy, memmap, h5py data set, zarr")
    return value


def _number(low: float, high: float, optional: bool, above: bool = False) -> Callable[..., Any]:
    def check(name: str, value: Any) -> Any:
        if value is None and optional:
            return None
        if (
            not _is_number(value)
            or not (low < value if above else low <= value)
            or not value <= high
        ):
            limits = f"above {low:g}, at most" if above else f"from {low:g} to"
            raise _fail(name, value, f"a number {limits} {high:g}")
        return float(value)

    return check


def _per_channel(positive: bool) -> Callable[[str, Any], Any]:
    def check(name: str, value: Any) -> Any:
        if value is None:
            return None
        try:
            values = np.atleast_1d(np.asarray(value, np.float64))
        except (TypeError, ValueError, OverflowError):
            raise _fail(name, value, "a number, or one per channel") from None
        finite = values.ndim == 1 and values.size > 0 and bool(np.isfinite(values).all())
        if not finite or (positive and bool((values == 0).any())):
            raise _fail(name, value, "finite numbers" + (" other than 0" if positive else ""))
        return tuple(float(v) for v in values)

    return check


def _size(name: str, value: Any) -> Any:
    if value is None:
        return None
    pair = list(value) if isinstance(value, list | tuple) or np.ndim(value) == 1 else []
    if len(pair) != 2:
        side = _written(value) if _is_int(value) and 1 <= value <= 65_535 else "224"
        raise _fail(name, value, f"(H, W), such as ({side}, {side})")
    if not all(_is_int(side) and 1 <= side <= 65_535 for side in pair):
        raise _fail(name, value, "(H, W), each from 1 to 65535")
    return int(pair[0]), int(pair[1])


def _dtype(name: str, value: Any) -> Any:
    if value is None:
        return None
    try:
        dtype = np.dtype(value)
    except Exception:  # numpy asks odd objects many things
        raise _fail(name, value, 'a numeric dtype, such as "float32"') from None
    if dtype.kind not in "buif" or not dtype.isnative or dtype.itemsize > 8:
        raise _fail(name, value, 'a numeric dtype in native byte order, such as "float32"')
    return dtype.name


def _subset(name: str, value: Any) -> Any:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, slice):
        try:
            value.indices(0)
        except (TypeError, ValueError):
            raise _fail(name, value, "a slice of whole numbers, with a step other than 0") from None
        return value
    try:
        chosen = np.asarray(value)
    except ValueError:  # rows of several lengths
        chosen = np.empty((0, 0))
    if chosen.dtype == np.bool_:
        raise _fail(name, "a bool array", "a slice, an int64 array (np.flatnonzero) or a name")
    if chosen.ndim != 1 or chosen.dtype.kind not in "iu" or chosen.size == 0:
        raise _fail(name, value, "a slice, a 1-D array of record numbers or the name of a split")
    return np.array(chosen, np.int64)  # a copy: changes to the caller's array leave the order alone


def _function(name: str, value: Any) -> Any:
    if value is not None and not callable(value):
        raise _fail(name, value, "a function f(data, labels) or f(data, labels, rng)")
    return value


def _scale(name: str, value: Any) -> Any:
    if value is None:
        return None
    try:
        number = float(value) if _is_number(value) else math.nan
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise _fail(name, value, "a finite number")
    return number


def _cuda(name: str, value: Any) -> Any:
    if isinstance(value, bool) or (isinstance(value, str) and re.fullmatch(r"cuda(:\d+)?", value)):
        return value
    raise _fail(name, value, 'False, True or "cuda:N"')


_CHECKS: Final[dict[str, Callable[[str, Any], Any]]] = {
    "path": _path,
    "hdf5_path": _path,
    "lmdb_path": _path,
    "data": _data,
    "labels": _array,
    "data_field": _data_field,
    "labels_field": _text(optional=True),
    "labels_path": _text(optional=True),
    "subset": _subset,
    "batch_size": _integer(1, 1 << 63),
    "nthread": _integer(1, 1025, "auto"),
    "njob": _integer(1, 4097),
    "workers": _choice("thread", "process"),
    "shuffle": _choice(False, True, "block", "replacement"),
    "shuffle_window": _integer(1),
    "seed": _integer(0, 1 << 64),
    "epochs": _integer(1, None, None),
    "last_batch": _choice("drop", "pad", "wrap", "short"),
    "rank": _integer(0, 1 << 31, "auto"),
    "world_size": _integer(1, 1 << 31, "auto"),
    "num_dim": _integer(1, 5, None),
    "h_dim": _integer(1, 5, None),
    "w_dim": _integer(1, 5, None),
    "cha_dim": _integer(1, 5, None),
    "channel_order": _choice("RGB", "stored"),
    "layout": _choice("NCHW", "NHWC"),
    "contiguous": _flag,
    "dtype": _dtype,
    "scale": _scale,
    "mean": _per_channel(positive=False),
    "std": _per_channel(positive=True),
    "size": _size,
    "crop": _choice("center", "random", "random-resized", "none"),
    "crop_ratio": _number(0.0, 1.0, optional=False, above=True),
    "flip": _flag,
    "postprocess": _function,
    "on_error": _choice("raise", "skip", "zero"),
    "verify": _choice("always", "first", "never"),
    "io": _choice("auto", "mmap", "pread"),
    "timeout": _number(0.0, 1e9, optional=True, above=True),
    "cuda": _cuda,
    "trace": _text(optional=True),
    "copy": _flag,
    "debug": _flag,
}
