"""The options of ``convert``: each is declared here, with the check of its value (check_options.py
checks them together).

To add one: a line in ConvertKeywords, for type checkers and editors, and its declaration in
Options. The command line, Tab, ``help()`` and the table of options follow from that.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple, TypeAlias, TypedDict

from asyncreader.errors import ParamsError
from asyncreader.formats.packed import Encoding, is_field_name
from asyncreader.params.declare import declared, parameter, worked_out
from asyncreader.params.parse import reading_params
from asyncreader.params.reader import READ_BY, ReaderParams
from asyncreader.system import checks
from asyncreader.system.checks import Check, Wrong, one_of, optional, whole

# -- values ----------------------------------------------------------------------------------------


def _path(value: Any) -> str:
    return checks.path_text(os.fsdecode(os.fspath(value)))  # bytes: a path need not be text


def _local(path: str) -> str | None:
    """An absolute path, also of a file:// URL; None for other URLs."""
    from asyncreader.sources.sniff import absolute, is_url, local_path

    local = local_path(path) if is_url(path) else path
    return None if local is None else absolute(local)


def _path_or_url(value: Any) -> str:
    """An absolute path, or a store's URL; file:// becomes a path. ParamsError for other URLs."""
    from asyncreader.sources.sniff import location_of

    path = _path(value)
    if (local := _local(path)) is None:
        location_of(path)  # ParamsError for a malformed URL or secrets in it
    return local or path


def _target(value: Any) -> str:
    from asyncreader.sources.sniff import without_secrets

    path = _path(value)
    if (local := _local(path)) is None:
        raise ParamsError(
            "the target must be on a disk, not a URL",
            found=without_secrets(path),
            hint="convert to a folder, and upload that with the store's own tools",
        )
    return local


def size_of(value: Any) -> tuple[int, int] | int:
    """(H, W), or a length: "224x224", "256", or numbers."""
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


def bytes_of(value: Any) -> int:
    """A number of bytes: 1000000, "1MB", "1MiB"."""
    if isinstance(value, str):
        text = re.fullmatch(r"(\d{1,15})\s*([kMGTP]?)(i?)B?", value.strip(), re.IGNORECASE)
        if text is None or (text[3] and not text[2]):
            raise ValueError
        power = " kmgtp".index(text[2].lower() or " ")
        value = int(text[1]) * (1024 if text[3] else 1000) ** power
    return whole(1, (1 << 50) + 1).take(value)


def read_of(value: Any) -> ReaderParams | None:
    """The parameters of a packed source, checked as a reader checks them."""
    if not value:
        return None
    return reading_params(os.curdir, value)


def check_field(name: object) -> None:
    """ParamsError for a name that no field can have."""
    if not isinstance(name, str) or not is_field_name(name):
        raise ParamsError(
            "not a valid name of a field",
            found=repr(name),
            expected="letters, digits, _ and -, and none of data, labels, paths, ...",
        )


def fields_of(value: Any) -> tuple[tuple[str, str], ...]:
    """The name and the folder of each field."""
    from asyncreader.sources.sniff import absolute, is_url, without_secrets

    folders = []
    for name, given in value.items():
        check_field(name)
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


def names_of(value: Any) -> tuple[str, ...] | bool:
    """True, False, a name, or several."""
    if isinstance(value, bool):
        return value
    return tuple(map(checks.TEXT.take, [value] if isinstance(value, str) else value))


def columns_of(value: Any) -> tuple[str, ...]:
    """Names of columns: "age,weight", or several."""
    names = value.split(",") if isinstance(value, str) else value
    found = tuple(checks.TEXT.take(name).strip() for name in names)
    if not all(found) or len(set(found)) < len(found):
        raise Wrong("each name once", value)
    return found


def split_of(value: Any) -> tuple[tuple[str, float], ...]:
    """Names and shares: "train=0.8,val=0.2", or {"train": 0.8, "val": 0.2}."""
    if isinstance(value, str):
        parts = [part.partition("=") for part in value.split(",")]
        found = [(name.strip(), float(share)) for name, _, share in parts]
    else:
        found = [(checks.TEXT.take(name), float(share)) for name, share in value.items()]
    if len({name for name, _ in found}) < len(found):
        raise Wrong("each name once", value)
    if not all(name and 0 < share <= 1 for name, share in found):
        raise Wrong("names, and shares above 0", value)
    if abs(math.fsum(share for _, share in found) - 1) > 1e-6:
        raise Wrong("shares that add up to 1", value)
    return tuple(found)


class Condition(NamedTuple):
    """What is chosen of a source. ``kind``: "split" or "classes" (``names``), "slice" (``rows``),
    "paths" (``names`` has that of a CSV), or "" where a bare name may be that of a split or a
    class."""

    kind: str
    names: tuple[str, ...] = ()
    rows: slice = slice(None)


def select_of(value: Any) -> tuple[Condition, ...]:
    """A slice, or text as --select takes it, or several."""
    if isinstance(value, list | tuple):
        return tuple(one for each in value for one in select_of(each))
    if isinstance(value, Mapping):
        return tuple(
            Condition(kind, (one,) if isinstance(one, str) else tuple(one))
            for kind, one in value.items()
            if _of_kind(kind)
        )
    if isinstance(value, slice):
        value.indices(0)
        return (Condition("slice", rows=value),)
    text: str = checks.TEXT.take(os.fspath(value))
    if re.fullmatch(r"(-?\d{1,18})?(:(-?\d{1,18})?){1,2}", text):
        ends = [int(end) if end else None for end in text.split(":")]
        return (Condition("slice", rows=slice(*ends)),)
    kind, equals, rest = text.partition("=")
    if not equals:
        listed = os.path.splitext(text)[1].lower() in (".csv", ".txt")
        return (Condition("paths", (os.path.abspath(text),)) if listed else Condition("", (text,)),)
    kind = {"class": "classes", "splits": "split"}.get(kind.strip(), kind.strip())
    _of_kind(kind)
    return (Condition(kind, (os.path.abspath(rest) if kind == "paths" else rest,)),)


def _of_kind(kind: str) -> bool:
    if kind not in ("split", "classes", "paths"):
        raise Wrong("split=NAME, classes=NAME,NAME, paths=CSV or a slice such as 0:100", kind)
    return True


SRC: Final = Check("a path or a URL", _path_or_url, "file")
DST: Final = Check("a path", _target, "file")

# -- the options -----------------------------------------------------------------------------------

PathLike: TypeAlias = str | os.PathLike[str]
#: (H, W); or the shorter side's length; or either as text, "224x224" or "256".
Size: TypeAlias = tuple[int, int] | int | str

#: What is packed of a source: as on the command line, a slice, or several of them.
Select: TypeAlias = (
    PathLike | slice | Sequence[PathLike | slice] | Mapping[str, str | Sequence[str]]
)

# The values that some options have: their check and Tab take them from these types.
Resize: TypeAlias = Literal["crop", "pad", "squeeze"]
Channels: TypeAlias = Literal[1, 3]
Bits: TypeAlias = Literal[8, 16]
Compression: TypeAlias = Literal["gzip"]
Format: TypeAlias = Literal["hdf5", "lmdb"]
Engine: TypeAlias = Literal["local", "ray"]

#: Shards of a set: a manifest of that many is 100 MB.
MOST_SHARDS: Final = 1_000_000

#: The check of what names fields.
_FIELDS: Final = Check("names of fields, such as 'boxes' or 'boxes,faces'", columns_of, "text")

#: Of JPEGs, where the caller says nothing.
QUALITY: Final = 90


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
    variable_length: bool | str | Sequence[str]
    boxes_field: str | Sequence[str] | None
    keypoints_field: str | Sequence[str] | None
    numbers_field: str | Sequence[str] | None


class ConvertKeywords(WriterKeywords, total=False):
    """Types of what a caller may pass; Options says what each means and what is kept."""

    labels: PathLike | None
    no_labels: bool
    shuffle: int | None
    classes: PathLike | Sequence[str] | None
    classes_from_folders: bool
    follow_links: bool
    skip_bad: bool
    fields: Mapping[str, PathLike] | None
    append: bool
    split: str | Mapping[str, float] | None
    stratify: bool
    group_by: str | None
    splits_from_folders: bool
    split_column: str | None
    label_columns: str | Sequence[str] | None
    select: Select | None
    sample: int | None
    engine: Engine
    address: str | None
    progress: Callable[[int, int], object] | bool | None
    params: Mapping[str, object] | None


@dataclass(frozen=True)
class Options:
    """The parameters of ``convert``, checked. None of encoding and channels: as in the source."""

    src: str
    dst: str
    #: All sources; the first is ``src``.
    sources: tuple[str, ...]
    encoding: Encoding | None = parameter(
        None,
        one_of(Encoding | None),
        "how samples are stored: pixels (all of one shape), JPEG, PNG, 4:2:0 planes (`yuv420`: "
        "half the bytes of pixels) or the files' own bytes",
        shown="raw; for a dataset: the one it has",
    )
    size: tuple[int, int] | int | None = parameter(
        None,
        optional(Check("(H, W), 'HxW' or the shorter side, from 1 to 65535", size_of, "size")),
        "a shape, or the length of the shorter side",
        shown="as the images are",
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
        "quality of encoding `jpeg`. If you pass it for a dataset of JPEGs, they are encoded again",
        shown=f"{QUALITY}; JPEGs of a dataset are copied",
    )
    restarts: bool | None = parameter(
        None,
        one_of(bool | None),
        "put restart markers into JPEGs, so that a part of an image can be decoded without the "
        "rest. With encoding `original`, baseline JPEGs get them without loss. Other files are "
        "stored as they are; the report says how many got markers",
        shown="True with encoding `jpeg`",
    )
    channels: Channels | None = parameter(
        None,
        one_of(Channels | None),
        "1: grey, 3: RGB",
        shown="3, with bits 16: 1; for a dataset: what it has",
    )
    bits: Bits | None = parameter(
        None,
        one_of(Bits | None),
        "for grey images of 16 bits, such as depth maps. 16 keeps them, as uint16; then all "
        "images must have 16 bits, and the encoding is not `jpeg`. 8 drops the lower 8 bits. "
        "If a folder has such images, you must pass one of the two. Colours of 16 bits always "
        "become 8. The report counts the images that lose bits",
        shown="for a dataset: what it has",
    )
    compression: Compression | None = parameter(
        None, one_of(Compression | None), "compress raw pixels in HDF5"
    )
    chunk: int = worked_out(whole(1, (1 << 20) + 1), "samples compressed together", shown="1")
    jobs: int = worked_out(
        whole(1, 1025),
        "threads. The files do not depend on it",
        shown="usable cores; 1 with engine `ray`",
    )
    overwrite: bool = parameter(False, checks.FLAG, "replace an existing dataset")
    check_decode: bool = parameter(
        False, checks.FLAG, "also decode images that are stored as they are"
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
        optional(Check("a number of bytes, such as '500MB' or '1GiB'", bytes_of, "text")),
        "write files of about this size, such as 1GB",
        metavar="BYTES",
    )
    resume: bool = parameter(
        False,
        checks.FLAG,
        "continue an interrupted run that writes shards. Its finished shards are kept if they are "
        "whole and their images have not changed",
    )
    variable_length: tuple[str, ...] | bool = parameter(
        False,
        Check("True, or names of fields", names_of, "object"),
        "fields of samples that a program adds, such as `data`, whose first axis differs from "
        "sample to sample; True: all of them. The values of all samples are stored one after the "
        "other, with where each sample begins",
    )
    boxes_field: tuple[str, ...] = worked_out(
        _FIELDS,
        "fields of boxes (..., 4): x1, y1, x2, y2 in pixels of the image. With `size` they move "
        "with it, and are stored as float32",
        shown="none",
        metavar="FIELD,...",
    )
    keypoints_field: tuple[str, ...] = worked_out(
        _FIELDS,
        "fields of keypoints (..., 2), or (..., 3) with their visibility: x, y. With `size` they "
        "move with the image, and are stored as float32",
        shown="none",
        metavar="FIELD,...",
    )
    numbers_field: tuple[str, ...] = worked_out(
        _FIELDS,
        "fields that look like boxes or keypoints, such as (M, 3), and are other numbers: `size` "
        "leaves them as they are",
        shown="none",
        metavar="FIELD,...",
    )
    labels: str | None = parameter(
        None,
        optional(SRC),
        "a CSV with a line path,label[,label...] for each sample. Each column has its own type: "
        "numbers keep their values, text becomes the number of its name among the sorted names of "
        "all text columns. Labels are (N, L) int64, or float64 if a column has fractions",
        metavar="CSV",
    )
    no_labels: bool = parameter(
        False,
        checks.FLAG,
        "convert without labels. Without this and `labels`, the class is the first folder level",
    )
    shuffle: int | None = parameter(
        None, optional(whole()), "store in random order, by this seed", metavar="SEED"
    )
    classes: str | None = parameter(
        None,
        optional(SRC),
        "class names, from number 0 on: a dataset that has them, or a text file with a name on "
        "each line",
        metavar="SET_OR_FILE",
        shown="the sorted names of the folders, or of the text columns of `labels`",
    )
    classes_from_folders: bool = parameter(
        False,
        checks.FLAG,
        "folders called train, val or the like are classes as well. Without it they raise an error",
    )
    follow_links: bool = parameter(
        False, checks.FLAG, "also follow links that lead out of the folder"
    )
    skip_bad: bool = parameter(
        False, checks.FLAG, "leave bad images out and list them (exit code 3)"
    )
    fields: tuple[tuple[str, str], ...] = worked_out(
        Check("{name: folder}", fields_of, "folders"),
        "also convert the images in these folders, such as mask=masks/. An image's mask has the "
        "same path there, with any suffix, and the same size. Palette indices and grey values (8 "
        "or 16 bits) are kept without loss. Masks are cut as the images are, resized by nearest "
        "neighbour and padded with 0. They are stored raw with raw pixels, else as PNG",
    )
    append: bool = parameter(
        False,
        checks.FLAG,
        "add SRC to the sharded dataset DST as new shards. Class numbers stay, new classes go "
        "last; the dataset changes in one moment, when all of them are complete",
    )
    split: tuple[tuple[str, float], ...] = worked_out(
        Check("shares by name, such as 'train=0.8,val=0.1,test=0.1'", split_of, "text"),
        "divide the samples into splits of about these shares, by a hash of each path, so images "
        "that are added later move no others",
        shown="as in a dataset that has splits",
        metavar="NAME=SHARE,...",
    )
    stratify: bool = parameter(
        False,
        checks.FLAG,
        "keep the shares of classes: with `split` each class has the shares, to one sample; with "
        "`sample` each class has as large a share as in the source. Images that are added later "
        "then move some others",
    )
    group_by: str | None = parameter(
        None,
        optional(checks.TEXT),
        "keep samples of the same group in one split. The group is a column of the labels CSV, or "
        "what the first group of a regular expression (else all of it) matches in the path",
        metavar="REGEX|COLUMN",
    )
    splits_from_folders: bool = parameter(
        False,
        checks.FLAG,
        "the first-level folders, such as train and val, are splits, and the folders inside them "
        "are classes",
    )
    split_column: str | None = parameter(
        None,
        optional(checks.TEXT),
        "the column of the labels CSV, by its name in the first line, that names each sample's "
        "split; an empty cell means no split",
        metavar="COLUMN",
    )
    label_columns: tuple[str, ...] = worked_out(
        Check("names of columns, such as 'age,weight'", columns_of, "text"),
        "the columns of the labels CSV that are the labels, by their names in the first line, in "
        "this order",
        shown="all columns but the path, `split_column` and that of `group_by`",
        metavar="COLUMN,...",
    )
    select: tuple[Condition, ...] = worked_out(
        Check("split=NAME, classes=NAME,NAME, a slice such as 0:100, or a CSV", select_of, "texts"),
        "convert some samples of the source: those of a split, of classes, of a slice of record "
        "numbers (of those that are left), or those that a CSV lists by path. Several are applied "
        "one after the other. Class numbers stay",
        shown="all",
        metavar="WHAT",
    )
    sample: int | None = parameter(
        None,
        optional(whole(1)),
        "convert N of the samples, drawn by a hash of their paths: the same ones each time",
        metavar="N",
    )
    engine: Engine = parameter(
        "local",
        one_of(Engine),
        "what writes the shards. With `ray`, all machines must see DST, and an SRC that is no URL, "
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
        optional(Check("a function f(done, total), or False", checks.FUNCTION.take, "object")),
        "called as `progress(done, total)` after each sample, by the calling thread; False shows "
        "nothing; by default terminals and notebooks show a line. With `resume` it is called "
        "first with the samples that are kept",
    )
    params: ReaderParams | None = worked_out(
        Check("{name: value}", read_of, "params"),
        "how SRC is read, if it is a dataset, such as data_field=images. The parameters are "
        + ", ".join(f"`{name}`" for name in READ_BY),
        shown="as it is",
    )

    @property
    def sharded(self) -> bool:
        """Whether the target is a folder of shards."""
        return self.append or self.shards is not None or self.shard_size is not None

    @property
    def selective(self) -> bool:
        """Whether only some samples of the sources are converted."""
        return bool(self.select) or self.sample is not None

    def differ(self, field: str) -> bool:
        """Whether samples that a program adds differ in length in this field."""
        named = self.variable_length
        return named if isinstance(named, bool) else field in named

    @property
    def kinds(self) -> dict[str, str]:
        """What fields are said to hold, by name: "boxes", "keypoints" or other "numbers"."""
        said = (self.boxes_field, "boxes"), (self.keypoints_field, "keypoints")
        return {
            name: kind for names, kind in (*said, (self.numbers_field, "numbers")) for name in names
        }

    @property
    def kind(self) -> str:
        """What the target is: "hdf5" (a file), "lmdb" (its folder) or "shards"."""
        return "shards" if self.sharded else self.format


#: The declarations, by name.
OPTIONS: Final = declared(Options)
