"""The options of ``convert``: each is declared here, and checked here before a file is opened.

To add one: a line in ConvertKeywords, for type checkers and editors, and its declaration in
Options. The command line, Tab, ``help()`` and the table of options follow from that.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, TypeAlias, TypedDict, Unpack

from asyncreader import checks
from asyncreader.checks import Check, Wrong, one_of, optional, whole
from asyncreader.errors import ParamsError
from asyncreader.formats.packed import Encoding
from asyncreader.params import READ_BY, ReaderParams, reading_params, snake_case
from asyncreader.params.declare import declared, parameter, worked_out
from asyncreader.system.limits import usable_cores
from asyncreader.text import plain_name, slip

PathLike: TypeAlias = str | os.PathLike[str]
#: (H, W); or the shorter side's length; or either as text, "224x224" or "256".
Size: TypeAlias = tuple[int, int] | int | str

# The values that some options have: their check and Tab take them from these types.
Resize: TypeAlias = Literal["crop", "pad", "squeeze"]
Channels: TypeAlias = Literal[1, 3]
Bits: TypeAlias = Literal[8, 16]
Compression: TypeAlias = Literal["gzip"]
Format: TypeAlias = Literal["hdf5", "lmdb"]
Engine: TypeAlias = Literal["local", "ray"]

#: Threads for each file: of Ray one, since it runs as many tasks as there are cores.
_JOBS_OF_RAY: Final = 1
_SUFFIXES: Final[dict[str, Format]] = {".h5": "hdf5", ".hdf5": "hdf5", ".lmdb": "lmdb"}

#: Shards of a set: a manifest of that many is 100 MB.
MOST_SHARDS: Final = 1_000_000

#: Of JPEGs, where the caller says nothing.
QUALITY: Final = 90


# -- checks --------------------------------------------------------------------------------------


def _path(value: Any) -> str:
    return checks.path_text(os.fsdecode(os.fspath(value)))  # bytes: a path need not be text


def _path_or_url(value: Any) -> str:
    """An absolute path, or a store's URL; file:// becomes a path. ParamsError for other URLs."""
    from asyncreader.sources.urls import absolute, is_url, local_path, location_of

    path = _path(value)
    local = local_path(path) if is_url(path) else path
    if local is None:
        location_of(path)  # ParamsError for a malformed URL or secrets in it
    return path if local is None else absolute(local)


def _target(value: Any) -> str:
    from asyncreader.sources.urls import absolute, is_url, local_path, without_secrets

    path = _path(value)
    local = local_path(path) if is_url(path) else path
    if local is None:
        raise ParamsError(
            "the target must be on a disk, not a URL",
            found=without_secrets(path),
            hint="pack to a folder, and upload that with the store's own tools",
        )
    return absolute(local)


def _size(value: Any) -> tuple[int, int] | int:
    if isinstance(value, str):
        text = re.fullmatch(r"(\d{1,6})(?:[xX](\d{1,6}))?", value.strip())
        if text is None:
            raise ValueError
        value = (int(text[1]), int(text[2])) if text[2] else int(text[1])
    side = whole(1, checks.MAX_SIDE + 1)
    if not isinstance(value, tuple | list):
        return side.take(value)
    high, wide = value
    return side.take(high), side.take(wide)


def _bytes(value: Any) -> int:
    """A number of bytes: 1000000, "1MB", "1MiB"."""
    if isinstance(value, str):
        text = re.fullmatch(r"(\d{1,15})\s*([kMGTP]?)(i?)B?", value.strip(), re.IGNORECASE)
        if text is None or (text[3] and not text[2]):
            raise ValueError
        power = " kmgtp".index(text[2].lower() or " ")
        value = int(text[1]) * (1024 if text[3] else 1000) ** power
    return whole(1, (1 << 50) + 1).take(value)


def _read(value: Any) -> ReaderParams | None:
    """The parameters of a packed source, checked as a reader checks them."""
    if not value:
        return None
    return reading_params(os.curdir, value)


def _fields(value: Any) -> tuple[tuple[str, str], ...]:
    """The name and the folder of each field."""
    from asyncreader.formats.packed import is_field_name
    from asyncreader.sources.urls import absolute, is_url, without_secrets

    folders = []
    for name, given in value.items():
        if not isinstance(name, str) or not is_field_name(name):
            raise ParamsError(
                "not a valid name of a field",
                found=repr(name),
                expected="letters, digits, _ and -, and none of data, labels, paths, ...",
            )
        try:
            folder = _path(given)
        except (TypeError, ValueError):
            raise Wrong("a path", given, f"[{name!r}]") from None
        if is_url(folder):
            raise ParamsError(
                f"the folder of field {name!r} must be on this machine",
                found=without_secrets(folder),
                hint="copy it here",
            )
        folders.append((name, absolute(folder)))
    return tuple(folders)


_SRC: Final = Check("a path or a URL", _path_or_url, "file")
_DST: Final = Check("a path", _target, "file")


# -- declarations --------------------------------------------------------------------------------


class ConvertKeywords(TypedDict, total=False):
    """Types of what a caller may pass; Options says what each means and what is kept."""

    encoding: Encoding | None
    size: Size | None
    resize: Resize
    quality: int | None
    restarts: bool | None
    labels: PathLike | None
    no_labels: bool
    channels: Channels | None
    bits: Bits | None
    shuffle: int | None
    compression: Compression | None
    chunk: int | None
    classes: PathLike | None
    classes_from_folders: bool
    follow_links: bool
    jobs: int | None
    skip_bad: bool
    overwrite: bool
    check_decode: bool
    fields: Mapping[str, PathLike] | None
    format: Format | None
    shards: int | None
    shard_size: int | str | None
    resume: bool
    engine: Engine
    address: str | None
    progress: Callable[[int, int], object] | None
    params: Mapping[str, object] | None
    allow_pickle: bool


@dataclass(frozen=True)
class Options:
    """The parameters of ``convert``, checked. None of encoding and channels: as in the source."""

    src: str
    dst: str
    encoding: Encoding | None = parameter(
        None,
        one_of(Encoding | None),
        "how samples are stored: pixels (all of one shape), JPEG, PNG, 4:2:0 planes (`yuv420`: "
        "half the bytes of pixels) or the files' own bytes",
        shown="raw; for a packed set: the one it has",
    )
    size: tuple[int, int] | int | None = parameter(
        None,
        optional(Check("(H, W), 'HxW' or the shorter side, from 1 to 65535", _size, "size")),
        "a shape, or the length of the shorter side",
        shown="as the pictures are",
        metavar="HxW|N",
    )
    resize: Resize = parameter(
        "crop",
        one_of(Resize),
        "how HxW is reached: cut to as much as fits, centred (as PIL's ImageOps.fit), padded with "
        "black, or squeezed",
    )
    quality: int | None = parameter(
        None,
        optional(whole(1, 101)),
        "of the JPEGs of encoding `jpeg`. Given for a packed set of JPEGs, it encodes them again",
        shown=f"{QUALITY}; packed JPEGs are copied",
    )
    restarts: bool | None = parameter(
        None,
        one_of(bool | None),
        "put restart markers into JPEGs, so that a part of a picture can be decoded without the "
        "rest. With encoding `original`, baseline JPEGs get them without loss. Other files are "
        "stored as they are; the report says how many got markers",
        shown="True with encoding `jpeg`",
    )
    labels: str | None = parameter(
        None,
        optional(_SRC),
        "a CSV with a line path,label[,label...] for each sample. Each column has its own type: "
        "numbers keep their values, text becomes the number of its name among the sorted names of "
        "all text columns. Labels are (N, L) int64, or float64 where a column has fractions",
        metavar="CSV",
    )
    no_labels: bool = parameter(
        False,
        checks.FLAG,
        "pack without labels. Without this and `labels`, the class is the first folder level",
    )
    channels: Channels | None = parameter(
        None,
        one_of(Channels | None),
        "1: grey, 3: RGB",
        shown="3, with bits 16: 1; for a packed set: what it has",
    )
    bits: Bits | None = parameter(
        None,
        one_of(Bits | None),
        "of grey pictures of 16 bits, such as depth maps. 16 keeps them, as uint16; then all "
        "pictures must have 16 bits, and the encoding is not `jpeg`. 8 drops the lower 8 bits. "
        "One of them must be given where a folder has such pictures. Colours of 16 bits always "
        "become 8. The report counts the pictures that lose bits",
        shown="for a packed set: what it has",
    )
    shuffle: int | None = parameter(
        None, optional(whole()), "pack in random order, by this seed", metavar="SEED"
    )
    compression: Compression | None = parameter(
        None, one_of(Compression | None), "compress raw pixels in HDF5"
    )
    chunk: int = worked_out(whole(1, (1 << 20) + 1), "samples compressed together", shown="1")
    classes: str | None = parameter(
        None,
        optional(_SRC),
        "class names, from number 0 on: a packed set that has them, or a text file with a name on "
        "each line",
        metavar="SET_OR_FILE",
        shown="the sorted names of the folders, or of the text columns of `labels`",
    )
    classes_from_folders: bool = parameter(
        False,
        checks.FLAG,
        "folders called train, val or the like are classes, too. Without this they are an error",
    )
    follow_links: bool = parameter(
        False, checks.FLAG, "also follow links that lead out of the folder"
    )
    jobs: int = worked_out(
        whole(1, 1025),
        "threads. The files do not depend on it",
        shown="usable cores; 1 with engine `ray`",
    )
    skip_bad: bool = parameter(
        False, checks.FLAG, "leave bad pictures out and list them (exit code 3)"
    )
    overwrite: bool = parameter(False, checks.FLAG, "replace an existing set")
    check_decode: bool = parameter(
        False, checks.FLAG, "also decode pictures that are stored as they are"
    )
    fields: tuple[tuple[str, str], ...] = worked_out(
        Check("{name: folder}", _fields, "folders"),
        "also pack the pictures in these folders, such as mask=masks/. A picture's mask has the "
        "same path there, with any suffix, and the same size. Palette indices and grey values (8 "
        "or 16 bits) are kept without loss. Masks are cut as the pictures are, resized by nearest "
        "neighbour and padded with 0. They are stored raw with raw pixels, else as PNG",
    )
    format: Format = worked_out(
        one_of(Format),
        "what is written, whatever the suffix of DST",
        shown="by the suffix of DST; for shards hdf5",
    )
    shards: int | None = parameter(
        None,
        optional(whole(1, MOST_SHARDS + 1)),
        "write this number of files, and a manifest, into folder DST",
    )
    shard_size: int | None = parameter(
        None,
        optional(Check("a number of bytes, such as '500MB' or '1GiB'", _bytes, "text")),
        "write files of about this size, such as 1GB",
        metavar="BYTES",
    )
    resume: bool = parameter(
        False,
        checks.FLAG,
        "continue an interrupted run that writes shards. Its finished shards are kept if they are "
        "whole and their pictures have not changed",
    )
    engine: Engine = parameter(
        "local",
        one_of(Engine),
        "what packs the shards. With `ray`, all machines must see DST, and an SRC that is no URL, "
        "under the same paths",
    )
    address: str | None = parameter(
        None,
        optional(checks.TEXT),
        "address of the Ray cluster, such as auto",
        shown="as `ray.init` finds one",
        metavar="ADDRESS",
    )
    progress: Callable[[int, int], object] | None = parameter(
        None,
        optional(Check("a function f(done, total)", checks.FUNCTION.take, "object")),
        "called as `progress(done, total)` after each sample, by the calling thread; with `resume` "
        "first with the samples that are kept",
    )
    params: ReaderParams | None = worked_out(
        Check("{name: value}", _read, "params"),
        "how a packed SRC is read, such as data_field=images. The parameters are "
        + ", ".join(f"`{name}`" for name in READ_BY),
        shown="as it is",
    )
    allow_pickle: bool = parameter(
        False,
        checks.FLAG,
        "unpickle SRC, only if you trust who wrote it: a pickle can run any program",
    )

    @property
    def sharded(self) -> bool:
        """Whether the target is a folder of shards."""
        return self.shards is not None or self.shard_size is not None

    @property
    def kind(self) -> str:
        """What the target is: "hdf5" (a file), "lmdb" (its folder) or "shards"."""
        return "shards" if self.sharded else self.format


#: The declarations, by name.
OPTIONS: Final = declared(Options)


#: What other programs call options of ``convert``, without punctuation.
_HABITS: Final[dict[str, str]] = {
    **dict.fromkeys(("workers", "numworkers", "nworkers", "threads", "numthreads"), "jobs"),
    **dict.fromkeys(("nthread", "njobs", "processes", "numproc"), "jobs"),
    **dict.fromkeys(("imagesize", "imgsize", "targetsize", "resolution", "imgsz"), "size"),
    **dict.fromkeys(("grayscale", "greyscale", "gray", "grey"), "channels=1"),
    **dict.fromkeys(("force", "existok", "replace"), "overwrite"),
    **dict.fromkeys(("skiperrors", "ignoreerrors"), "skip_bad"),
    **dict.fromkeys(("seed", "shuffleseed"), "shuffle"),
    **dict.fromkeys(("csv", "labelsfile", "labelscsv", "annotations"), "labels"),
    **dict.fromkeys(("codec", "imageformat", "writemode"), "encoding"),
    **dict.fromkeys(("numshards", "nshards"), "shards"),
    **dict.fromkeys(("maxsize", "shardbytes"), "shard_size"),
    **dict.fromkeys(("masks", "mask"), "fields={'mask': folder}"),
    **dict.fromkeys(("classnames", "labelnames"), "classes"),
}


def _instead(name: str) -> str:
    """What to write instead of an unknown option; a guess only at a slip of the keyboard."""
    if (habit := _HABITS.get(plain_name(name))) is not None:
        return f"write {habit}" if "=" in habit else f"write {habit}="
    if (read := snake_case(name)) in READ_BY:
        return f"write params={{{read!r}: ...}}, if SRC is a packed set"
    near = slip(name, OPTIONS)
    return (
        f"did you mean {near!r}?" if near else "docs/convert.md and help(convert) list all options"
    )


class WriterKeywords(TypedDict, total=False):
    """Options that a Writer takes, and ``convert`` of samples that are no files."""

    encoding: Encoding | None
    size: Size | None
    resize: Resize
    quality: int | None
    restarts: bool | None
    channels: Channels | None
    bits: Bits | None
    compression: Compression | None
    chunk: int | None
    jobs: int | None
    overwrite: bool
    check_decode: bool
    format: Format | None
    shards: int | None
    shard_size: int | str | None
    resume: bool


def check_writer(dst: PathLike, given: Mapping[str, object]) -> Options:
    """The options of a Writer, in which ``src`` is empty; ParamsError for wrong ones."""
    for name in given:
        if name in OPTIONS and name not in WriterKeywords.__annotations__:
            raise ParamsError(
                f"{name} is for folders of pictures and packed sets",
                found="samples that a program adds",
            )
    return _checked("", dst, given)


def check(src: PathLike, dst: PathLike, **given: Unpack[ConvertKeywords]) -> Options:
    """The options as one frozen value; ParamsError for wrong ones."""
    return _checked(_SRC("src", src), dst, given)


def _checked(src: str, dst: PathLike, given: Mapping[str, object]) -> Options:
    for name in given:
        if name not in OPTIONS:
            raise ParamsError(f"unknown option {name!r}", hint=_instead(name))
    kept = {name: OPTIONS[name].check(name, value) for name, value in given.items()}
    if kept.get("chunk") is not None and kept.get("compression") is None:
        raise ParamsError(
            "chunk applies only with compression",
            hint="add compression 'gzip' (--compression gzip)",
        )
    options = Options(src, _DST("dst", dst), **kept)  # type: ignore[arg-type]
    options = replace(
        options,
        format=_format(options),
        chunk=options.chunk or 1,
        jobs=options.jobs or (_JOBS_OF_RAY if options.engine == "ray" else usable_cores()),
        fields=options.fields or (),
        params=options.params and replace(options.params, path=options.src),
    )
    _check_together(options)
    return options


def _format(options: Options) -> Format:
    suffix = os.path.splitext(options.dst.rstrip(os.sep))[1].lower()
    if options.sharded and suffix in _SUFFIXES:
        raise ParamsError(
            "the target of shards is a folder, and this name is that of one file",
            found=repr(options.dst),
            hint=f"pass {os.path.splitext(options.dst)[0]!r} and format {_SUFFIXES[suffix]!r} "
            "(--format)",
        )
    if options.format is not None or options.sharded:
        return options.format or "hdf5"
    if suffix not in _SUFFIXES:
        raise ParamsError(
            "the target's suffix does not say what to write",
            found=repr(suffix),
            expected=" or ".join(_SUFFIXES),
            hint="or pass format 'hdf5' or 'lmdb' (--format)",
        )
    return _SUFFIXES[suffix]


#: Options that cannot both be given.
_CONTRARY: Final = (
    *(("shards", "shard_size"), ("no_labels", "labels"), ("no_labels", "classes")),
    *(("classes_from_folders", "labels"), ("classes_from_folders", "no_labels")),
)


def _check_together(options: Options) -> None:
    from asyncreader.sources.urls import is_url

    for one, other in _CONTRARY:
        if getattr(options, one) and getattr(options, other):
            raise ParamsError(f"{one} and {other} contradict each other", hint="give one of them")
    ray = options.engine == "ray"
    if not options.sharded and (ray or options.resume):
        raise ParamsError(
            "engine 'ray' packs shards: a single file is written by one machine"
            if ray
            else "resume goes with shards: a single file is written in one go",
            hint="add shards (--shards N) or shard_size (--shard-size 1GB)",
        )
    if options.address is not None and not ray:
        raise ParamsError("address goes with engine 'ray'")
    if options.sharded and options.allow_pickle:
        raise ParamsError(
            "a set of pickles cannot be converted to shards: its classes are known only at its end",
            hint="convert it to one file, and that to shards",
        )
    if options.follow_links and is_url(options.src):
        raise ParamsError("follow_links is for folders on a disk", found=options.src)
    size = options.size
    if options.encoding == "original" and size is not None:
        raise ParamsError(
            "size does not apply to encoding 'original', which keeps the files' own bytes",
            hint="choose encoding 'jpeg', 'png', 'yuv420' or 'raw', or leave size out",
        )
    if not isinstance(size, tuple) and options.resize != "crop":
        raise ParamsError(
            f"resize {options.resize!r} needs a fixed shape",
            found="no size" if size is None else f"size {size}, the length of the shorter side",
            expected="size HxW (height x width)",
        )
    if options.compression is not None and options.format == "lmdb":
        raise ParamsError(
            "compression is a filter of HDF5; LMDB has none",
            hint="write to .h5, or choose encoding 'png'",
        )
    _check_fields(options)


def _check_fields(options: Options) -> None:
    """The folder of the pictures must not hold those of the fields, if they are found by folder."""
    pictures = os.path.join(os.path.realpath(options.src), "")
    for name, folder in options.fields if options.labels is None else ():
        inside = os.path.realpath(folder)
        if inside.startswith(pictures):
            raise ParamsError(
                f"the folder of field {name!r} lies inside that of the pictures, "
                "and would be packed as pictures",
                path=inside,
                hint="move it out of that folder, or name the pictures by a CSV (labels, --labels)",
            )


def check_encoding(options: Options, encoding: str, channels: int, bits: int | None) -> None:
    """Raise ParamsError for options that do not apply to ``encoding``: compression of samples that
    are compressed already, a quality for anything but JPEG, 16 ``bits`` of JPEGs or of colours."""
    if bits == 16 and encoding in ("jpeg", "yuv420"):
        raise ParamsError(
            f"encoding {encoding!r} has 8 bits, so it cannot keep 16",
            hint="choose encoding 'png' or 'raw' (--encoding), or bits 8 (--bits 8), which drops "
            "the lower 8 bits",
        )
    if encoding == "yuv420" and channels != 3:
        raise ParamsError(
            "encoding 'yuv420' is for colour pictures: grey ones have no chroma to store smaller",
            found=f"channels {channels}",
            expected="channels 3",
            hint="choose encoding 'raw', 'png' or 'jpeg' (--encoding), or channels 3",
        )
    if bits == 16 and channels != 1:
        raise ParamsError(
            "bits 16 keeps grey pictures, which have one channel",
            found=f"channels {channels}",
            expected="channels 1",
            hint="leave channels out, or choose bits 8 (--bits 8)",
        )
    if options.quality not in (None, QUALITY) and encoding != "jpeg":
        raise ParamsError(
            f"quality applies only to encoding 'jpeg'; the samples are stored as {encoding!r}",
            hint="choose encoding 'jpeg' (--encoding jpeg), or leave quality out",
        )
    if options.restarts and encoding not in ("jpeg", "original"):
        raise ParamsError(
            "restarts applies only to encodings 'jpeg' and 'original'; the samples are stored as "
            f"{encoding!r}",
            hint="choose encoding 'jpeg' (--encoding jpeg), or leave restarts out",
        )
    if options.restarts:
        from asyncreader.pixels import kernels

        if not kernels.compiled("add_restarts"):
            raise ParamsError(
                "restarts needs numba, which does not work here",
                found=kernels.reason(),
                hint="install numba (pip install numba), or leave restarts out",
            )
    if options.compression is not None and encoding != "raw":
        raise ParamsError(
            f"compression is for raw pixels; encoding {encoding!r} is compressed already",
            hint="leave compression out",
        )
