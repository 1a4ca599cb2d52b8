"""Checks the options of ``convert`` before a file is opened: names, values, contradictions."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, Unpack

import numpy as np

from asyncreader.errors import ParamsError
from asyncreader.formats.packed import DATA
from asyncreader.params.parse import snake_case
from asyncreader.params.reader import READ_BY
from asyncreader.pixels.points import check_places
from asyncreader.pixels.specs import SampleSpec
from asyncreader.sources.fields import named_field
from asyncreader.system.limits import usable_cores
from asyncreader.system.text import plain_name, slip

from .options import (
    DST,
    OPTIONS,
    QUALITY,
    SRC,
    ConvertKeywords,
    Format,
    Options,
    PathLike,
    WriterKeywords,
)

#: Threads for each file: of Ray one, since it runs as many tasks as there are cores.
_JOBS_OF_RAY: Final = 1
_SUFFIXES: Final[dict[str, Format]] = {".h5": "hdf5", ".hdf5": "hdf5", ".lmdb": "lmdb"}

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
        return f"write params={{{read!r}: ...}}, if SRC is a dataset"
    near = slip(name, OPTIONS)
    return (
        f"did you mean {near!r}?" if near else "docs/commands.md and help(convert) list all options"
    )


def check(
    src: PathLike | Sequence[PathLike], dst: PathLike, **given: Unpack[ConvertKeywords]
) -> Options:
    """The options as one frozen value; ParamsError for wrong ones."""
    sources = tuple(SRC("src", one) for one in (src if isinstance(src, list | tuple) else (src,)))
    if not sources:
        raise ParamsError("no source is named", expected="one path, or several")
    if given.get("variable_length"):
        raise ParamsError(
            "variable_length is for samples that a program adds",
            found="a folder or a dataset",
            hint="leave it out: datasets are copied as they are",
        )
    return _checked(sources, dst, given)


#: Options that are lists of names, which may be empty.
_LISTS: Final = (
    *("fields", "split", "label_columns", "select"),
    *("boxes_field", "keypoints_field", "numbers_field"),
)

#: Options that say what is done with samples that are in a dataset already.
_OF_SETS: Final = frozenset(
    ("append", "split", "stratify", "group_by", "select", "sample", "shuffle")
)


def check_writer(dst: PathLike, given: Mapping[str, object]) -> Options:
    """The options of a Writer, in which ``src`` is empty; ParamsError for wrong ones."""
    for name in given:
        if name in OPTIONS and name not in WriterKeywords.__annotations__:
            raise ParamsError(
                f"{name} is for folders of images and datasets",
                found="samples that a program adds",
                hint=f"write them to a file of their own, and convert that: convert(FILE, DST, "
                f"{name}=...)"
                if name in _OF_SETS
                else None,
            )
    return _checked(("",), dst, given)


def _checked(sources: tuple[str, ...], dst: PathLike, given: Mapping[str, object]) -> Options:
    for name in given:
        if name not in OPTIONS:
            raise ParamsError(f"unknown option {name!r}", hint=_instead(name))
    kept = {name: OPTIONS[name].check(name, value) for name, value in given.items()}
    if kept.get("chunk") is not None and kept.get("compression") is None:
        raise ParamsError(
            "chunk applies only with compression",
            hint="add compression 'gzip' (--compression gzip)",
        )
    options = Options(sources[0], DST("dst", dst), sources, **kept)  # type: ignore[arg-type]
    lists: dict[str, Any] = {name: getattr(options, name) or () for name in _LISTS}
    options = replace(
        options,
        format=_format(options),
        chunk=options.chunk or 1,
        jobs=options.jobs or (_JOBS_OF_RAY if options.engine == "ray" else usable_cores()),
        params=options.params and replace(options.params, path=options.src),
        **lists,
    )
    _check_together(options)
    return options


def _format(options: Options) -> Format:
    suffix = os.path.splitext(options.dst.rstrip(os.sep))[1].lower()
    if options.sharded and suffix in _SUFFIXES:
        hint = f"pass {os.path.splitext(options.dst)[0]!r} and format {_SUFFIXES[suffix]!r}"
        raise ParamsError(
            "the target of shards is a folder, and this name is that of one file",
            found=repr(options.dst),
            hint=how_to_append(options.dst) if options.append else f"{hint} (--format)",
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


def how_to_append(path: str) -> str:
    """What to do where ``path`` is no sharded dataset: a single file is copied to one."""
    if not os.path.exists(path):
        return "write the first shards without append (--shards N)"
    folder, suffix = os.path.splitext(path.rstrip(os.sep))
    folder = f"{folder}-shards" if not suffix or os.path.lexists(folder) else folder
    command = f"asyncreader convert {shlex.quote(path)} {shlex.quote(folder)} --shards 1"
    return f"{command} copies the samples of one file to a folder of shards, which can grow"


#: Options that cannot both be given.
_CONTRARY: Final = (
    *(("shards", "shard_size"), ("no_labels", "labels"), ("no_labels", "classes")),
    *(("classes_from_folders", "labels"), ("classes_from_folders", "no_labels")),
    *(("split", "splits_from_folders"), ("split", "split_column")),
    *(("splits_from_folders", "labels"), ("splits_from_folders", "classes_from_folders")),
    *(("append", "overwrite"), ("append", "compression")),
)
#: Options that need one of others.
_NEEDED: Final = (
    *(("split_column", ("labels",)), ("label_columns", ("labels",))),
    *(("group_by", ("split",)), ("stratify", ("split", "sample"))),
    ("resume", ("shards", "shard_size", "append")),
)


def _check_together(options: Options) -> None:
    from asyncreader.sources.sniff import is_url

    for one, other in _CONTRARY:
        if getattr(options, one) and getattr(options, other):
            raise ParamsError(f"{one} and {other} contradict each other", hint="give one of them")
    for one, others in _NEEDED:
        if getattr(options, one) and not any(getattr(options, other) for other in others):
            raise ParamsError(f"{one} goes with {' or '.join(others)}", hint="pass that as well")
    ray = options.engine == "ray"
    if not options.sharded and ray:
        raise ParamsError(
            "engine 'ray' packs shards: a single file is written by one machine",
            hint="add shards (--shards N) or shard_size (--shard-size 1GB)",
        )
    if options.address is not None and not ray:
        raise ParamsError("address goes with engine 'ray'")
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
    if options.differ(DATA) and (options.encoding not in (None, "raw") or size is not None):
        raise ParamsError(
            "images that are encoded or resized are not samples of different length",
            found=f"encoding {options.encoding!r}, size {size}",
            hint="variable_length names the fields that differ in length, without 'data'",
        )
    named = (*options.boxes_field, *options.keypoints_field, *options.numbers_field)
    if len(options.kinds) < len(named):
        raise ParamsError(
            "a field is named twice, among boxes_field, keypoints_field and numbers_field",
            found=", ".join(map(repr, named)),
        )
    if options.compression is not None and options.format == "lmdb":
        raise ParamsError(
            "compression is a filter of HDF5; LMDB has none",
            hint="write to .h5, or choose encoding 'png'",
        )
    _check_fields(options)


def _check_fields(options: Options) -> None:
    """The folder of the images must not hold those of the fields, if they are found by folder."""
    pictures = os.path.join(os.path.realpath(options.src), "")
    for name, folder in options.fields if options.labels is None else ():
        inside = os.path.realpath(folder)
        if inside.startswith(pictures):
            raise ParamsError(
                f"the folder of field {name!r} lies inside that of the images, "
                "and would be converted as images",
                path=inside,
                hint="move it out of that folder, or name the images by a CSV (labels, --labels)",
            )


def check_named(options: Options, names: Sequence[str]) -> None:
    """ParamsError where an option says of a field what it holds, and the samples have no such
    field. ``names``: those of the fields, the image's first."""
    for name in options.kinds.keys() - set(names[1:]):
        raise ParamsError(
            "boxes_field, keypoints_field or numbers_field names a field that the samples do not "
            "have beside their images",
            path=options.src or None,
            found=repr(name),
            expected=", ".join(map(repr, names[1:])) or None,
        )


def kind_of(
    options: Options,
    name: str,
    shape: tuple[int | None, ...],
    dtype: np.dtype[Any],
    size: tuple[int | None, int | None] | None,
) -> str:
    """What a field of numbers is to an image that is resized: "boxes" or "keypoints", which move
    with it, a "map", which is resized as it is, or "numbers", which stay. ``shape``: of a sample,
    None where samples differ; ``size``: (H, W) of the image, of the first one where they differ.

    ParamsError where the field does not hold what it is said to hold, and where it may hold places
    in the image, and nothing says so.
    """
    kind = options.kinds.get(name)
    if kind in ("boxes", "keypoints"):
        with named_field(name):
            known = tuple(side for side in shape if side is not None)
            check_places(SampleSpec(known, dtype, None), kind, options.src)
    elif kind is None and options.size is not None:
        if shape[:2] == size:
            return "map"
        few = shape == (4,) or (len(shape) > 1 and shape[-1] in (2, 3, 4))
        if few and dtype.kind in "iuf" and (len(shape) == 2 or dtype != np.uint8):
            what = "boxes" if shape[-1] == 4 else "keypoints"
            raise ParamsError(
                f"field {name!r} may hold {what}, which have to move when the image is resized, "
                "and nothing says what it holds",
                path=options.src or None,
                found=f"samples of shape {str(shape).replace('None', 'any')}, {dtype}; "
                f"size {options.size}",
                hint=f"{what}_field={name!r} (--{what}-field {name}) moves them with the image; "
                f"numbers_field={name!r} (--numbers-field {name}) keeps other numbers as they are",
            )
    return kind or "numbers"


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
            "encoding 'yuv420' is for colour images: grey ones have no chroma to store smaller",
            found=f"channels {channels}",
            expected="channels 3",
            hint="choose encoding 'raw', 'png' or 'jpeg' (--encoding), or channels 3",
        )
    if bits == 16 and channels != 1:
        raise ParamsError(
            "bits 16 keeps grey images, which have one channel",
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
    if options.compression is not None and encoding != "raw":
        raise ParamsError(
            f"compression is for raw pixels; encoding {encoding!r} is compressed already",
            hint="leave compression out",
        )
