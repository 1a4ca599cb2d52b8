"""Checks the arguments of ``convert`` once, before a file is opened."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from asyncreader.errors import ParamsError
from asyncreader.formats.packed import ENCODINGS, is_field_name
from asyncreader.params import ReaderParams, parse_params, snake_case
from asyncreader.sources.urls import absolute, is_url, local_path, location_of, without_secrets
from asyncreader.system.limits import usable_cores

PathLike: TypeAlias = str | os.PathLike[str]
#: (H, W); or the shorter side's length; or either as text, "224x224" or "256".
Size: TypeAlias = tuple[int, int] | int | str
Progress: TypeAlias = Callable[[int, int], None]

RESIZES: Final = ("crop", "pad", "squeeze")
FORMATS: Final = ("hdf5", "lmdb")
ENGINES: Final = ("local", "ray")
#: Threads for each file: of Ray one, since it runs as many tasks as there are cores.
_JOBS_OF_RAY: Final = 1
_SUFFIXES: Final = {".h5": "hdf5", ".hdf5": "hdf5", ".lmdb": "lmdb"}

#: Parameters of a reader that say which part of a packed set is meant.
READ_BY: Final = (
    *("data_field", "labels_field", "labels_path", "subset", "channel_order"),
    *("num_dim", "h_dim", "w_dim", "cha_dim"),
)

#: Shards of a set: a manifest of that many is 100 MB.
MOST_SHARDS: Final = 1_000_000

#: Of JPEG, where the caller says nothing.
QUALITY: Final = 90

#: The longest side a resized picture may have: JPEG states sides in 16 bits (ITU-T T.81, B.2.2).
MAX_SIDE: Final = 65_535


@dataclass(frozen=True)
class Options:
    """The parameters of ``convert``, checked. None of encoding and channels: as in the source."""

    src: str
    dst: str
    format: str
    encoding: str | None
    size: tuple[int, int] | int | None
    resize: str
    quality: int
    labels: str | None
    no_labels: bool
    channels: int | None
    shuffle: int | None
    compression: str | None
    chunk: int
    classes: str | None
    follow_links: bool
    jobs: int
    skip_bad: bool
    overwrite: bool
    check_decode: bool
    allow_pickle: bool
    #: Number of files, or about how many bytes each; both None: one file.
    shards: int | None
    shard_size: int | None
    resume: bool
    engine: str
    #: Address of the Ray cluster.
    address: str | None
    progress: Progress | None
    #: How a packed source is read; None: as it is.
    read: ReaderParams | None
    #: Names and folders of the other fields.
    fields: tuple[tuple[str, str], ...]
    classes_from_folders: bool = False

    @property
    def sharded(self) -> bool:
        """Whether the target is a folder of shards."""
        return self.shards is not None or self.shard_size is not None

    @property
    def kind(self) -> str:
        """What the target is: "hdf5" (a file), "lmdb" (its folder) or "shards"."""
        return "shards" if self.sharded else self.format


def check(
    *,
    src: PathLike,
    dst: PathLike,
    format: str | None,
    shards: int | None,
    shard_size: int | str | None,
    engine: str,
    address: str | None,
    encoding: str | None,
    size: Size | None,
    resize: str,
    quality: int,
    labels: PathLike | None,
    no_labels: bool,
    channels: int | None,
    shuffle: int | None,
    compression: str | None,
    chunk: int | None,
    classes: PathLike | None,
    jobs: int | None,
    progress: Progress | None,
    params: Mapping[str, Any] | None,
    fields: Mapping[str, PathLike] | None,
    **flags: bool,
) -> Options:
    """The parameters as one frozen value; ParamsError for wrong ones."""
    target = _path("dst", dst)
    if is_url(target):
        local = local_path(target)
        if local is None:
            raise ParamsError(
                "the target must be on a disk, not a URL",
                found=without_secrets(target),
                hint="pack to a folder, and upload that with the store's own tools",
            )
        target = local
    target = absolute(target)
    options = Options(
        src=_path_or_url("src", src),
        dst=target,
        format=_format(target, format, shards is not None or shard_size is not None),
        shards=None if shards is None else _whole("shards", shards, 1, MOST_SHARDS),
        shard_size=None if shard_size is None else _bytes("shard_size", shard_size),
        engine=_one_of("engine", engine, ENGINES),
        address=None if address is None else _path("address", address),
        encoding=None if encoding is None else _one_of("encoding", encoding, ENCODINGS),
        size=None if size is None else _size(size),
        resize=_one_of("resize", resize, RESIZES),
        quality=_whole("quality", quality, 1, 100),
        labels=None if labels is None else _path_or_url("labels", labels),
        no_labels=_flag("no_labels", no_labels),
        channels=None if channels is None else _channels(channels),
        shuffle=None if shuffle is None else _whole("shuffle", shuffle, None, None),
        compression=None if compression is None else _one_of("compression", compression, ["gzip"]),
        chunk=1 if chunk is None else _whole("chunk", chunk, 1, 1 << 20),
        classes=None if classes is None else _path_or_url("classes", classes),
        jobs=_default_jobs(engine) if jobs is None else _whole("jobs", jobs, 1, 1024),
        progress=progress,
        read=_read(_path_or_url("src", src), params),
        fields=_fields(_path_or_url("src", src), fields, labels is not None),
        **{name: _flag(name, value) for name, value in flags.items()},
    )
    if chunk is not None and compression is None:
        raise ParamsError(
            "chunk applies only with compression",
            hint="add compression 'gzip' (--compression gzip)",
        )
    _check_together(options)
    return options


def _check_together(options: Options) -> None:
    if options.shards is not None and options.shard_size is not None:
        raise ParamsError("shards and shard_size contradict each other", hint="give one of them")
    if options.resume and not options.sharded:
        raise ParamsError(
            "resume goes with shards: a single file is written in one go",
            hint="add shards (--shards N) or shard_size (--shard-size 1GB)",
        )
    if options.engine == "ray" and not options.sharded:
        raise ParamsError(
            "engine 'ray' packs shards: a single file is written by one machine",
            hint="add shards (--shards N) or shard_size (--shard-size 1GB)",
        )
    if options.address is not None and options.engine != "ray":
        raise ParamsError("address goes with engine 'ray'")
    if options.sharded and options.allow_pickle:
        raise ParamsError(
            "a set of pickles cannot be converted to shards: its classes are known at its end",
            hint="convert it to one file, and that to shards",
        )
    if options.follow_links and is_url(options.src):
        raise ParamsError("follow_links is for folders on a disk", found=options.src)
    if options.no_labels and (options.labels or options.classes):
        other = "labels" if options.labels else "classes"
        raise ParamsError(f"no_labels and {other} contradict each other", hint="give one of them")
    if options.classes_from_folders and (options.labels or options.no_labels):
        other = "labels" if options.labels else "no_labels"
        raise ParamsError(
            f"classes_from_folders and {other} contradict each other", hint="give one of them"
        )
    if options.encoding == "original" and options.size is not None:
        raise ParamsError(
            "size cannot be had with encoding 'original', which keeps the files' own bytes",
            hint="choose encoding 'jpeg', 'png' or 'raw', or leave size out",
        )
    if isinstance(options.size, int) and options.resize != "crop":
        raise ParamsError(
            f"resize {options.resize!r} needs a fixed shape",
            found=f"size {options.size}, the length of the shorter side",
            expected="size HxW",
        )
    if options.compression is not None and options.format == "lmdb":
        raise ParamsError(
            "compression is a filter of HDF5; LMDB has none",
            hint="write to .h5, or choose encoding 'png'",
        )


def check_encoding(options: Options, encoding: str) -> None:
    """Raise ParamsError for options that do not apply to ``encoding``: compression of samples that
    are compressed already, a quality for anything but JPEG."""
    if options.quality != QUALITY and encoding != "jpeg":
        raise ParamsError(
            f"quality is of encoding 'jpeg'; the samples are to be {encoding!r}",
            hint="choose encoding 'jpeg' (--encoding jpeg), or leave quality out",
        )
    if options.compression is not None and encoding != "raw":
        raise ParamsError(
            f"compression is for raw pixels; encoding {encoding!r} is compressed already",
            hint="leave compression out",
        )


def _read(src: str, params: Mapping[str, Any] | None) -> ReaderParams | None:
    """The caller's params of a packed source, checked as a reader checks them."""
    if not params:
        return None
    checked = parse_params({**params, "path": src}, {})
    unknown = sorted(name for name in params if snake_case(name) not in READ_BY)
    if unknown:
        raise ParamsError(
            "params say how a packed set is read",
            found=", ".join(unknown),
            expected=", ".join(READ_BY),
        )
    return checked


def _fields(
    src: str, fields: Mapping[str, PathLike] | None, listed: bool
) -> tuple[tuple[str, str], ...]:
    """Names and folders. ``listed``: a CSV names the pictures."""
    if not fields:
        return ()
    if not isinstance(fields, Mapping):
        raise ParamsError("fields is not valid", found=repr(fields), expected="{name: folder}")
    for name, folder in fields.items():
        if not isinstance(name, str) or not is_field_name(name):
            raise ParamsError(
                "not a name for a field",
                found=repr(name),
                expected="letters, digits, _ and -, and none of data, labels, paths, ...",
            )
        if is_url(_path(f"fields[{name!r}]", folder)):
            raise ParamsError(
                f"the folder of field {name!r} must be on this machine",
                found=without_secrets(_path("fields", folder)),
                hint="copy it here",
            )
        inside = os.path.realpath(_path(f"fields[{name!r}]", folder))
        if not listed and inside.startswith(os.path.join(os.path.realpath(src), "")):
            raise ParamsError(
                f"the folder of field {name!r} lies inside that of the pictures, "
                "and would be packed as pictures",
                path=inside,
                hint="move it out of that folder, or name the pictures by a CSV (labels, --labels)",
            )
    return tuple((name, absolute(_path("fields", folder))) for name, folder in fields.items())


def _default_jobs(engine: str) -> int:
    return _JOBS_OF_RAY if engine == "ray" else usable_cores()


def _path(name: str, value: Any) -> str:
    try:
        # bytes are allowed: a path need not be text
        path: str = os.fsdecode(os.fspath(value))
    except TypeError:
        raise ParamsError(f"{name} is not a path", found=repr(value)) from None
    if not path or "\0" in path:
        raise ParamsError(f"{name} is not a path", found=repr(path))
    return path


def _path_or_url(name: str, value: Any) -> str:
    """An absolute path, or a store's URL; file:// becomes a path. ParamsError for other URLs."""
    path = _path(name, value)
    if not is_url(path):
        return absolute(path)
    local = local_path(path)
    if local is None:
        location_of(path)  # ParamsError for a malformed URL or secrets in it
    return path if local is None else local


def _format(target: str, value: str | None, sharded: bool) -> str:
    suffix = os.path.splitext(target.rstrip(os.sep))[1].lower()
    if sharded and suffix in _SUFFIXES:
        raise ParamsError(
            "the target of shards is a folder, and this name is that of one file",
            found=repr(target),
            hint=f"pass {os.path.splitext(target)[0]!r} and format {_SUFFIXES[suffix]!r} "
            "(--format)",
        )
    if value is not None:
        return _one_of("format", value, FORMATS)
    if sharded:
        return "hdf5"
    if suffix not in _SUFFIXES:
        raise ParamsError(
            "the target's suffix does not say what to write",
            found=repr(suffix),
            expected=" or ".join(_SUFFIXES),
            hint="or pass format 'hdf5' or 'lmdb' (--format)",
        )
    return _SUFFIXES[suffix]


def _one_of(name: str, value: Any, known: Any) -> str:
    if not isinstance(value, str) or value not in known:
        raise ParamsError(f"{name} is not one of those known", found=repr(value), expected=known)
    return value


def _flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise ParamsError(f"{name} must be True or False", found=repr(value))
    return value


def _whole(name: str, value: Any, low: int | None, high: int | None) -> int:
    good = not isinstance(value, bool) and hasattr(value, "__index__")
    if good:
        value = value.__index__()
        good = (low is None or value >= low) and (high is None or value <= high)
    if not good:
        limits = "" if low is None else f" from {low} to {high}"
        raise ParamsError(f"{name} must be a whole number{limits}", found=repr(value))
    return int(value)


def _bytes(name: str, value: Any) -> int:
    """A number of bytes: 1000000, "1MB", "1MiB"."""
    if isinstance(value, str):
        text = re.fullmatch(r"(\d{1,15})\s*([kMGTP]?)(i?)B?", value.strip(), re.IGNORECASE)
        if text is None or (text[3] and not text[2]):
            raise ParamsError(
                f"{name} is not a number of bytes", found=repr(value), expected="'500MB' or '1GiB'"
            )
        power = " kmgtp".index(text[2].lower() or " ")
        value = int(text[1]) * (1024 if text[3] else 1000) ** power
    return _whole(name, value, 1, 1 << 50)


def _channels(value: Any) -> int:
    if _whole("channels", value, 1, 3) == 2:
        raise ParamsError("channels must be 1 (grey) or 3 (RGB)", found="2")
    return int(value)


def _size(value: Any) -> tuple[int, int] | int:
    if isinstance(value, str):
        text = re.fullmatch(r"(\d{1,6})(?:[xX](\d{1,6}))?", value.strip())
        if text is not None:
            value = (int(text[1]), int(text[2])) if text[2] else int(text[1])
    if isinstance(value, (tuple, list)) and len(value) == 2:
        high, wide = (_whole("size", side, 1, MAX_SIDE) for side in value)
        return high, wide
    if isinstance(value, (str, tuple, list)):
        raise ParamsError(
            "size is neither HxW nor one number", found=repr(value), expected="'224x224' or '256'"
        )
    return _whole("size", value, 1, MAX_SIDE)
