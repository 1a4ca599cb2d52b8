"""Which fields of a set to read, which of them are pictures, and the order of their axes."""

from __future__ import annotations

import itertools
import json
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

import numpy as np

from ..errors import FormatError, ParamsError
from ..formats import packed as fmt
from ..params.values import Chosen
from ..pixels.specs import SampleSpec


@dataclass(frozen=True)
class Cut:
    """The patches that are asked for: see the parameters ``patch``, ``patch_axes`` and
    ``sample_axis``."""

    patch: tuple[int, ...]
    axes: tuple[int, ...] | None = None
    sample_axis: int | None = 0

    def axes_of(self, rank: int) -> tuple[int, ...]:
        """The axes that are cut, of data of so many."""
        given = range(-len(self.patch), 0) if self.axes is None else self.axes
        return tuple(axis + rank if axis < 0 else axis for axis in given)

    def axes_of_sample(self, rank: int) -> tuple[int, ...]:
        """Those of a patch of so many axes."""
        number = self.sample_axis
        if number is None:
            return self.axes_of(rank)
        return tuple(axis - (axis > number) for axis in self.axes_of(rank + 1))


@dataclass(frozen=True)
class Request:
    """Names of a set's fields, as the caller gives them; most options apply to HDF5 only.

    What is asked for by field goes by the names that fields have in the open set: ``name``, and the
    names of ``others``.
    """

    #: The name of the first field in the file.
    data: str = fmt.DATA
    labels: str | None = fmt.LABELS
    labels_path: str | None = None
    #: 1-based axes (number, height, width, channel); None: from the file, else (1, 2, 3, 4).
    dims: tuple[int, int, int, int] | None = None
    labels_required: bool = False
    #: "RGB", or "stored": raw pixels that are stored as BGR (Caffe) are not reversed.
    channel_order: str = "RGB"
    #: (H, W) of the first field's pictures, each None if they differ; None: this is that field, or
    #: that one holds no pictures. Data of that size are cropped and mirrored with the pictures.
    image_size: tuple[int | None, int | None] | None = None
    #: ``size``, ``crop`` or ``flip`` is asked for: what has no known height and width is an error.
    moved: bool = False
    #: More fields of the same samples, by name: what each is called in the file. None: all that
    #: asyncreader packed.
    others: Mapping[str, str] | None = field(default_factory=dict)
    #: Fields that hold boxes or keypoints: numbers, whatever their shape.
    places: tuple[str, ...] = ()
    #: What says where episodes end (the parameter ``episodes``); None: what is recognised.
    episodes: str | None = None
    #: Windows, or some of the episodes, are asked for: a set must have episodes.
    windowed: bool = False
    #: The file is one of several.
    several: bool = False
    #: So many first axes of stored data number the samples together; 0: all of it is one sample.
    lead: int = 1
    #: The axis of stored data along which samples lie, unless there is but one axis.
    along: int = 0
    #: Numbers are served as the values that the file says they mean, with ``missing`` where one
    #: stands for none.
    physical: bool = False
    missing: float = float("nan")
    #: Samples are patches of stored volumes.
    cut: Cut | None = None
    #: The dtype that is asked for of the first field, or by field; None: none.
    dtype: str | Mapping[str, str] | None = None
    #: Columns of sparse rows to be served, by number or name; of all fields, or by field.
    columns: Chosen | Mapping[str, Chosen] | None = None
    #: Names the offsets of samples in an array of values, of all fields or by field; None: those
    #: that go by a usual name; False: there are none.
    offsets: str | Literal[False] | Mapping[str, str] | None = None
    #: ``max_length`` is given: bytes of variable length that are no pictures are numbers.
    limited: bool = False
    #: What the first field is called in the open set; None: as in the file.
    name: str | None = None

    def check_rows(self, stored: str) -> None:
        """ParamsError where samples are to lie along an axis of what is no array, ``stored``."""
        if self.along or not self.lead:
            raise ParamsError(
                "sample_axis goes with arrays of numbers: HDF5 datasets, .npy files, arrays in "
                "memory",
                found=stored,
            )

    def check_labels_path(self, stored: str) -> None:
        """ParamsError where labels are to be in another file than those of what is no HDF5 file,
        ``stored``."""
        if self.labels_path is not None:
            raise ParamsError(
                f"labels_path does not go with {stored}", hint="labels_path goes with one HDF5 file"
            )

    def check_names(self, data: Sequence[str], labels: Sequence[str]) -> None:
        """ParamsError unless the named fields are some of these: the caller would get others."""
        for name, own in ((self.data, data), (self.labels, labels)):
            if name is not None and name not in own:
                raise no_field(name, (*data, *labels))

    @property
    def own_name(self) -> str:
        """What this field is called in the open set."""
        return self.data if self.name is None else self.name

    @property
    def own_offsets(self) -> str | Literal[False] | None:
        """Those of this field."""
        given = self.offsets
        return given.get(self.own_name) if isinstance(given, Mapping) else given

    @property
    def own_columns(self) -> Chosen | None:
        """Those of this field; None: all."""
        given = self.columns
        return given.get(self.own_name) if isinstance(given, Mapping) else given

    @property
    def own_dtype(self) -> str | None:
        """The dtype that is asked for of this field."""
        return self.dtype.get(self.own_name) if isinstance(self.dtype, Mapping) else self.dtype

    def other_names(self, packed: Sequence[str]) -> Mapping[str, str]:
        """The ``others``. ``packed``: the set's other fields, if asyncreader packed it."""
        if self.others is not None:
            return self.others
        return {name: name for name in packed} if self.data == fmt.DATA else {}

    def other(self, name: str, data: str, stored: SampleSpec) -> Request:
        """The field ``data`` of the file, which is called ``name`` in the set whose first field's
        samples are ``stored``."""
        return replace(
            self,
            name=name,
            data=data,
            labels=None,
            labels_path=None,
            labels_required=False,
            image_size=None if stored.axes is None else stored.image_shape()[:2],
            others={},
            dtype=self.dtype if isinstance(self.dtype, Mapping) else None,
        )


#: An error lists at most this many names.
NAMED: Final = 20


class NoFieldError(ParamsError):
    """A field that a set lacks. ``there``: fields that it has and that can be read together."""

    there: tuple[str, ...] = ()


class NoSamplesError(FormatError):
    """A field without a sample, which in a file of its own is an empty episode."""


def no_field(
    name: str, names: Sequence[str], served: Sequence[str] | None = None, path: str | None = None
) -> NoFieldError:
    """The error for a field ``name`` that a set lacks; it lists the set's fields, and says which of
    those that are ``served`` (None: all) has this name in a group."""
    held = [str(one) for one in names[:NAMED]]
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    inside = _in_a_group(name, map(str, names if served is None else served))
    meant = f"did you mean {' or '.join(map(repr, inside))}? " if inside else ""
    return NoFieldError(
        f"no field {name!r} in this dataset",
        path=path,
        found=", ".join(held) + more if held else "no fields",
        hint=f"{meant}name one of them with data_field or labels_field "
        "(on the command line: -p data_field=NAME)"
        if held
        else None,
    )


def _in_a_group(name: str, names: Iterable[str]) -> list[str]:
    """Paths of a field or group ``name`` inside a group, in the order of ``names``; [] where there
    are more than three."""
    found: dict[str, None] = {}
    for one in names:
        before, met, _ = f"/{one}/".partition(f"/{name}/")
        if before and met:
            found[f"{before}/{name}".lstrip("/")] = None
    return list(found) if len(found) <= 3 else []


#: Axes of at most so many numbers may be channels, or coordinates; longer ones may be sides.
_MOST_CHANNELS: Final = 4
#: What a caller passes where nothing says which axis is which.
NAME_AXES: Final = (
    "say which axis is which: num_dim=1, cha_dim=2, h_dim=3, w_dim=4 for NCHW, "
    "or num_dim=1, h_dim=2, w_dim=3, cha_dim=4 for NHWC (on the command line each with -p)"
)


def stored_samples(
    shape: tuple[int, ...], dtype: np.dtype[Any], asked: Request, path: str, known: bool = False
) -> tuple[int, SampleSpec]:
    """(axis of the sample number, what a sample is) of raw data that others packed, or of rows of
    numbers that asyncreader packed (``known``: they are never to be NCHW without being named).

    4-D data are pictures if the axes are named (``asked.dims``), or if the last axis is 1 to 4 and
    the second is larger; or, beside pictures, if they have the pictures' height and width. Where
    the second axis may be the channels, ParamsError asks for the axes. Other data are served as
    stored; ParamsError if they would have to move with pictures. (N, H, W) uint8 is grey pictures
    where pictures are asked for. Boxes and keypoints are never pictures, nor are structured rows
    (flat dtypes).
    """
    along = asked.along
    if along and len(shape) > 1 and asked.dims is None:
        if along >= len(shape):
            raise ParamsError(
                f"field {asked.data!r} has no such axis of samples",
                found=f"sample_axis={along}, shape {shape}",
                expected=f"at most {len(shape) - 1}",
            )
        moved = shape[along], *shape[:along], *shape[along + 1 :]
        return along, stored_samples(moved, dtype, replace(asked, along=0), path, known)[1]
    if asked.data in asked.places or dtype.names is not None:
        return 0, SampleSpec(shape[1:], dtype, None)
    letters = _letters(shape, dtype, asked, known)
    if letters is None:
        if asked.moved and _has_size(f"field {asked.data!r}", shape, asked.image_size, path):
            raise ParamsError(
                f"field {asked.data!r} has the height and width of the images, but too many axes "
                "to be cropped and mirrored with them",
                found=f"shape {shape}",
                expected="(N, H, W), (N, H, W, C) or (N, C, H, W)",
                hint="give it a reader of its own: with the same seed it has the same order",
            )
        return 0, SampleSpec(shape[1:], dtype, None, columns=_numbers_of_columns(shape, asked))
    number = letters.index("N")
    rows, axes = shape[:number] + shape[number + 1 :], letters.replace("N", "")
    if "C" not in axes:
        return number, grey_rows(rows, dtype, axes)
    few = asked.dims is not None or min(shape[1], shape[3]) <= _MOST_CHANNELS
    return number, SampleSpec(rows, dtype, axes, as_stored=not few)


def _numbers_of_columns(shape: tuple[int, ...], asked: Request) -> tuple[int, ...] | None:
    """The columns of rows of numbers that are asked for, by number; None for all, and where
    something else has to say what their names mean."""
    columns = asked.own_columns
    if columns is None or len(shape) != 2:
        return None
    numbers = tuple(one for one in columns if isinstance(one, int))
    check_columns(numbers, shape[1])
    return numbers or None


def check_columns(numbers: Iterable[int], width: int) -> None:
    """ParamsError unless these are numbers of columns of rows of ``width``."""
    wrong = [one for one in numbers if not 0 <= one < width]
    if wrong:
        raise ParamsError(
            "columns names a column that does not exist",
            found=wrong[0],
            expected=f"0 to {width - 1}",
        )


def grey_rows(shape: tuple[int, ...], dtype: np.dtype[Any], axes: str = "HW") -> SampleSpec:
    """Raw pictures of one channel, which is no axis of theirs."""
    return SampleSpec((*shape, 1), dtype, axes + "C", channels=1, flat=True)


def _letters(
    shape: tuple[int, ...], dtype: np.dtype[Any], asked: Request, known: bool
) -> str | None:
    """The axes of all samples, such as "NHWC" or "NHW"; None where they are no pictures."""
    named = None
    if asked.dims is not None:
        named = "".join(letter for _, letter in sorted(zip(asked.dims, "NHWC", strict=True)))
    fits = _orders_of_size(shape, named, asked.image_size)
    if len(fits) == 1 or (fits and fits[0] == named):
        return fits[0]
    if asked.image_size is None and asked.moved and len(shape) == 3 and dtype == np.uint8:
        return "NHW"
    if len(shape) != 4 or named is not None:
        return named if len(shape) == 4 else None
    second, last = shape[1] <= _MOST_CHANNELS, shape[3] <= _MOST_CHANNELS
    if last and not second:
        return "NHWC"
    if second and not (known and not asked.moved):
        what = "the order of this dataset's axes is ambiguous: it may be NCHW"
    elif asked.moved:
        what = "size, crop and flip need images, and nothing says that these data are images"
    else:
        return None
    if asked.data != fmt.DATA:
        what = f"field {asked.data!r}: {what}"
    hint = NAME_AXES
    if not asked.moved and asked.cut is None:
        hint += "; if it holds volumes, patch=(Z, Y, X) serves patches of them, and with "
        hint += "sample_axis=None of one volume (C, Z, Y, X)"
    if asked.image_size is not None:
        hint += "; or give it a reader of its own: with the same seed it has the same order"
    raise ParamsError(what, found=f"shape {shape}", hint=hint)


def _orders_of_size(
    shape: tuple[int, ...],
    named: str | None,
    image_size: tuple[int | None, int | None] | None,
) -> list[str]:
    """The orders in which data have the height and width of the pictures beside them: of the one
    that is named and the usual ones."""
    orders = [named, "NHWC", "NCHW"] if named is not None else ["NHWC", "NCHW"]
    if len(shape) != 4:
        orders = [order.replace("C", "") for order in orders]
    fits = (
        order
        for order in orders
        if image_size is not None
        and len(order) == len(shape)
        and (shape[order.index("H")], shape[order.index("W")]) == image_size
    )
    return list(dict.fromkeys(fits))


def check_labels(
    shape: tuple[int, ...], stored: SampleSpec, asked: Request, path: str, *, in_file: bool = True
) -> None:
    """ParamsError where labels of a ``shape`` have the height and width of pictures that are moved:
    labels are served as stored, and would no longer show what their picture shows.

    ``in_file``: they lie in the set's file, where they can be named as a field.
    """
    if not asked.moved or stored.axes is None:
        return
    name = asked.labels or fmt.LABELS
    arrays = not in_file and asked.labels_path is None
    size = stored.image_shape()[:2]
    if not _has_size(f"labels {name!r}", shape, size, path):
        return
    fields = list(dict.fromkeys([asked.data, *(asked.others or {}).values(), name]))
    listed = f"data_field=[{', '.join(json.dumps(field) for field in fields)}]"
    if in_file:  # where a layout found the labels, they would be found again
        listed += ", labels_field=None"
    if arrays:
        listed = f"data={{{', '.join(f'{json.dumps(field)}: ...' for field in fields)}}}, {listed}"
    elif not in_file:
        listed += ", with all of them in one file"
    raise ParamsError(
        f"labels {name!r} have the height and width of the images, but size, crop and flip move "
        "only the images",
        found=f"shape {shape}",
        hint=f"name them as a field, which moves with its image: {listed}",
    )


def _has_size(
    what: str, shape: tuple[int, ...], image_size: tuple[int | None, int | None] | None, path: str
) -> bool:
    """Whether two axes beside each other, after the first, are the pictures' height and width.
    Warns where they are these times a whole number, or divided by it."""
    high, wide = image_size or (None, None)
    if high is None or wide is None:
        return False
    sides = list(itertools.pairwise(shape[1:]))
    if image_size in sides:
        return True
    for side in sides:
        same_ratio = side[0] * wide == side[1] * high
        whole = side[0] % high == 0 == side[1] % wide or high % side[0] == 0 == wide % side[1]
        if same_ratio and whole and min(side) > _MOST_CHANNELS:
            warnings.warn(
                f"{path}: {what} of {side[0]} x {side[1]} are served as stored, while size, crop "
                f"and flip move the images of {high} x {wide}: a field of shape "
                f"(N, {side[0]}, {side[1]}, 1) moves with its image",
                stacklevel=2,
            )
            break
    return False
