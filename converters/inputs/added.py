"""Samples that a program has: taken out of arrays, dicts, map-style datasets, generators and a
Dataset; and what is kept of them until their file is finished."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias, runtime_checkable

import numpy as np

from asyncreader.errors import ParamsError
from asyncreader.formats.packed import DATA, MOST_AXES, NUMBER_DTYPES
from asyncreader.sampling.episodes import Windows
from asyncreader.sources.labels import label_names
from asyncreader.system.array_types import Array
from asyncreader.system.checks import FILL_MASKED

from ..temp_tables import Numbers, gathered, renumbered
from .opening import Renumbering
from .samples import SHARED, Splits, check_split_names, kept_splits

if TYPE_CHECKING:
    from asyncreader.dataset import Dataset

#: Sides of an image are longer than so many pixels, and its channels are at most so many, as in a
#: file that another program wrote (asyncreader/sources/request.py).
_MOST_CHANNELS: Final = 4


def as_array(value: object, what: str) -> Array:
    """A value as numbers of a dtype that sets have; ParamsError for anything else. ``what``: its
    name in messages."""
    kind = type(value)
    if isinstance(value, np.ma.MaskedArray):
        raise ParamsError(f"{what} has a mask, which would be lost", hint=FILL_MASKED)
    palette = kind.__module__.startswith("PIL.") and getattr(value, "mode", "") not in _MODES
    if palette and what == f"field {DATA!r}":
        raise ParamsError(
            "an image of a mode that cannot be stored",
            found=repr(getattr(value, "mode", "")),
            expected=" or ".join(map(repr, _MODES)),
            hint="convert it: image.convert('RGB')",
        )
    try:
        array: Array = np.asarray(value)
    except Exception as exc:  # rows of several lengths, a tensor on a GPU
        raise ParamsError(
            f"{what} is no array of numbers", found=kind.__name__, hint=str(exc)[:200]
        ) from exc
    if not _is_stored(array.dtype):
        raise ParamsError(
            f"{what} has a dtype that cannot be stored",
            found=f"{kind.__name__}, dtype {array.dtype}",
            expected=", ".join(NUMBER_DTYPES),
        )
    return array


@lru_cache(64)  # numpy makes the name anew each time: 15 us
def _is_stored(dtype: np.dtype[Any]) -> bool:
    """Whether sets have numbers of this dtype, in either byte order."""
    return dtype.newbyteorder("=").name in NUMBER_DTYPES


#: Where a label is an array.
_AS_FIELD: Final = "an array of the image's size is a field: add(image, mask=array)"

#: Modes of Pillow's images whose numbers are those of pixels.
_MODES: Final = ("L", "RGB", "I;16", "I", "F", "1")


@dataclass(frozen=True)
class Form:
    """How the samples of a field are stored. ``way``: as "rows" of numbers, as "values" (rows of
    different length), as the "picture" of a sample, which is cut, resized and encoded, or as a
    "mask" that is cut as that image is.

    ``dtype``, ``shape``: what all rows must have; of values: the shape of one; of images that
    differ in size: of the first. ``kind``: what numbers are to an image that is resized (see
    ``kind_of``).
    """

    name: str
    way: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    kind: str = "numbers"

    @classmethod
    def of_rows(cls, name: str, row: Array, differ: bool = False) -> Form:
        """The form of rows like this one, or of rows that ``differ`` in length; ParamsError where
        that is none."""
        shape = row.shape[1:] if differ else row.shape
        if 0 in shape or row.ndim > MOST_AXES or (differ and not row.ndim):
            raise ParamsError(
                f"field {name!r} has rows without a number, or with too many axes",
                found=f"shape {row.shape}",
                expected="an axis of different length first" if differ else None,
            )
        return cls(name, "values" if differ else "rows", row.dtype.newbyteorder("="), shape)

    @property
    def sample_shape(self) -> tuple[int | None, ...]:
        """The shape of a sample, None where samples differ."""
        return (None, *self.shape) if self.way == "values" else self.shape

    @property
    def row_bytes(self) -> int:
        """Bytes of a row, or of a value."""
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def picture(self) -> bool:
        """Whether raw rows are images (H, W, C) as ``convert`` packs them."""
        if self.way == "values" or len(self.shape) != 3 or self.shape[0] <= _MOST_CHANNELS:
            return False
        deep = self.dtype == np.uint16 and self.shape[2] == 1
        return deep or (self.dtype == np.uint8 and self.shape[2] in (1, 3))

    @property
    def words(self) -> str:
        """For messages."""
        return f"shape {str(self.sample_shape).replace('None', 'any')}, {self.dtype}"

    def check(self, row: Array) -> Array:
        """The row, or rows (n, ...), if it has this form; else ParamsError."""
        shape = row.shape
        if self.way == "values":
            shape = shape[1:] if shape else (0,)
        if row.dtype.newbyteorder("=") == self.dtype and shape == self.shape:
            return row
        empty = f"np.empty({(0, *self.shape)}, {self.dtype.name!r}) is one without values"
        differ = f"variable_length={self.name!r} stores rows whose first axis differs"
        raise ParamsError(
            f"field {self.name!r} of a sample differs from the first one's",
            found=f"shape {row.shape}, {row.dtype}",
            expected=self.words,
            hint="pad or cut it to that shape, cast it with array.astype, or write another dataset"
            f"; {empty if self.way == 'values' else differ}",
        )


class AddedLabels:
    """Labels in the order in which they are added: rows of numbers, or text as classes.

    ``first``: the first label, which says what all are; ``classes``: names by number, if given.
    """

    def __init__(self, first: object, classes: tuple[str, ...] | None) -> None:
        self._text = isinstance(first, str)
        self._classes = classes
        self._numbers: dict[str, int] = {name: n for n, name in enumerate(classes or ())}
        row = np.zeros((), np.int64) if self._text else as_array(first, "the label")
        if not row.size or (row.ndim > 1 and row.size > 1):
            raise ParamsError(
                "labels of this shape cannot be stored",
                found=f"shape {row.shape}",
                expected="a number, a row of numbers, or text",
                hint=_AS_FIELD,
            )
        self._width, real = row.size, row.dtype.kind == "f"
        if real and classes is not None:
            raise ParamsError(
                "classes are given, and a label is no whole number",
                found=f"{row.reshape(-1)[0]}, {row.dtype}",
                expected=f"0 to {len(classes) - 1}, -1 for no class, or a name",
                hint="cast labels that are numbers of classes: label.astype(int)",
            )
        self._rows = Numbers("d" if real else "q", self._width)
        self.kind = "class" if self._text or classes is not None else "values"

    def add(self, label: object) -> None:
        """Add one label: a number, a row of numbers, or text."""
        if type(label) is int and self._width == 1 and self._classes is None and not self._text:
            if not -(1 << 63) <= label < 1 << 63:
                raise ParamsError("a label beyond int64 cannot be stored", found=label)
            self._rows.append(label)
        else:
            self.add_many([label] if isinstance(label, str) else as_array(label, "the label")[None])

    def add_many(self, labels: object) -> None:
        """Add labels (n,) or (n, L), or n texts."""
        if self._text:
            self._add_names(labels)
            return
        table = as_array(labels, "labels")
        count = len(table) if table.ndim else 0
        rows = table.reshape(count, -1) if count else table
        dtype = self._rows.dtype
        if not count or rows.shape[1] != self._width or rows.dtype.kind not in "bui" + dtype.kind:
            raise ParamsError(
                "a label differs from the first one",
                found=f"shape {table.shape[1:]}, {table.dtype}",
                expected=f"{self._width} of {dtype}",
                hint=_AS_FIELD,
            )
        if rows.dtype == np.uint64 and bool((rows > np.uint64(2**63 - 1)).any()):
            raise ParamsError("labels beyond int64 cannot be stored")
        if self._classes is not None:
            wrong = (rows < -1) | (rows >= len(self._classes))  # -1 is no class
            if wrong.any():
                raise self._unknown(rows[wrong][0])
        self._rows.extend(rows)

    def _add_names(self, labels: object) -> None:
        names = labels.tolist() if isinstance(labels, np.ndarray) else labels
        if not isinstance(names, list | tuple) or not all(isinstance(n, str) for n in names):
            raise ParamsError("a label that is not text, as the first one is", found=labels)
        for name in names:
            if self._classes is not None and name not in self._numbers:
                raise self._unknown(name)
            if "\0" in name:
                raise ParamsError("a label with a NUL character cannot be stored", found=name)
            self._rows.append(self._numbers.setdefault(str(name), len(self._numbers)))

    def _unknown(self, label: object) -> ParamsError:
        return ParamsError(
            "a label that is not one of the classes",
            found=label,
            expected=f"one of {len(self._classes or ())} names, or its number",
        )

    def finish(self) -> tuple[Array, tuple[str, ...] | None]:
        """Labels (N, L) of all that were added, and the class names by number: those given, or the
        sorted labels of a set of text."""
        table = self._rows.rows().reshape(-1, self._width)
        if self._classes is not None or not self._text:
            return table, self._classes
        names = tuple(sorted(self._numbers))
        return gathered(renumbered(self._numbers, names).reshape(-1, 1), table[:, 0]), names


def path_of(path: object) -> bytes:
    """A sample's path as it is stored. ParamsError for one that is no name."""
    try:
        name = os.fsencode(path)  # type: ignore[arg-type]
    except (TypeError, ValueError) as exc:
        raise ParamsError("path must be text, or a path", found=repr(path)[:80]) from exc
    if b"\0" in name or not name:
        raise ParamsError("an empty path, or one with a NUL character", found=repr(path)[:80])
    return name


# -- out of what a program has ---------------------------------------------------------------------


#: What is taken of a dict, by the names that others use, too.
_NAMES: Final = {
    **dict.fromkeys(("data", "image"), "data"),
    **dict.fromkeys(("label", "labels"), "label"),
    **dict.fromkeys(("path", "paths", "key"), "path"),
}

#: Bytes of rows that are read together from an array.
_TOGETHER: Final = 4 << 20


@runtime_checkable
class MapStyle(Protocol):
    """Samples by number, as torch's map-style datasets have them."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> object: ...


#: What ``convert`` takes in place of a path.
Items: TypeAlias = Iterable[object] | MapStyle


#: ``Writer.add`` and ``Writer.add_many``, which samples are given to.
Take: TypeAlias = Callable[..., None]


def is_paths(source: object) -> bool:
    """Whether this is a path, or a list of them, and no samples."""
    if isinstance(source, list | tuple):
        return all(isinstance(one, str | os.PathLike) for one in source)
    return isinstance(source, str | os.PathLike)


def count_of(source: Items) -> int | None:
    """Samples in ``source``; None where only its end tells."""
    table = _columns(source)
    if table is not None:
        return len(next(iter(table.values())))
    try:
        return len(source)  # type: ignore[arg-type]
    except TypeError:
        return None


def give(source: Items, add: Take, add_many: Take) -> Iterator[int]:
    """Give all samples of ``source`` to ``add``, or some at a time to ``add_many``; yields how many
    after each."""
    table = _columns(source)
    if table is not None:
        yield from _give_columns(table, add_many)
        return
    if isinstance(source, Mapping):
        raise _unclear("a dict whose values are no arrays or lists", source)
    mapped = isinstance(source, MapStyle) and not isinstance(source, list | tuple)
    if getattr(source, "shape", None) == () or not (mapped or isinstance(source, Iterable)):
        raise _unclear("the source has no samples", source)
    # a map-style dataset need not say by IndexError where it ends
    samples: Any = (source[n] for n in range(len(source))) if mapped else source  # type: ignore
    for number, sample in enumerate(samples):
        _give_one(sample, add, number)
        yield number + 1


def _give_one(sample: object, add: Take, number: int) -> None:
    if isinstance(sample, Mapping):
        parts = _named(sample, f"sample {number}")
        add(parts.pop("data"), parts.pop("label", None), **parts)
    elif isinstance(sample, tuple | list) and not _numbers(sample):
        if len(sample) != 2:
            raise _unclear(f"sample {number} is a tuple of {len(sample)}", sample)
        add(sample[0], sample[1])
    else:
        add(sample)


def _numbers(sample: tuple[object, ...] | list[object]) -> bool:
    """Whether a list is a row of numbers, and no (data, label)."""
    return isinstance(sample, list) and all(isinstance(one, int | float | list) for one in sample)


def _named(parts: Mapping[Any, object], where: str) -> dict[str, Any]:
    """The parts of a sample by the names that a Writer has for them."""
    found: dict[str, Any] = {}
    for name, value in parts.items():
        if not isinstance(name, str):
            raise ParamsError(f"{where} has a name that is no text", found=repr(name)[:80])
        own = _NAMES.get(name, name)
        if own in found:
            raise _unclear(f"{where} has its {own} twice", parts)
        found[own] = value
    if "data" not in found:
        raise _unclear(f"{where} does not say which part is the data", parts)
    return found


def _unclear(what: str, given: Any) -> ParamsError:
    names = ", ".join(map(repr, given)) if isinstance(given, Mapping) else type(given).__name__
    return ParamsError(
        what,
        found=names[:200],
        expected="data; (data, label); or a dict of 'data' (or 'image'), 'label', 'path' and "
        "other fields",
    )


def _columns(source: Any) -> dict[str, Any] | None:
    """Columns that hold all samples: an array, (data, labels), or columns by name; else None."""
    if _is_array(source):
        return {"data": source}
    if isinstance(source, tuple) and len(source) == 2 and _is_array(source[0]):
        return dict(zip(("data", "label"), source, strict=True)) if _is_column(source[1]) else None
    if isinstance(source, Mapping) and source and all(map(_is_column, source.values())):
        return _named(source, "the source")
    return None


def _is_column(value: object) -> bool:
    """Whether a value holds that of each sample: an array, or a list."""
    return _is_array(value) or isinstance(value, list)


def _is_array(value: object) -> bool:
    """Whether a value has rows of one shape: an array, a memmap, a data set of h5py or zarr."""
    shape = getattr(value, "shape", None)
    return isinstance(shape, tuple) and len(shape) > 0 and hasattr(value, "dtype")


def _give_columns(table: dict[str, Any], add_many: Take) -> Iterator[int]:
    count = len(table["data"])
    for name, column in table.items():
        if len(column) != count:
            raise ParamsError(
                f"{name!r} has another number of rows than the data",
                found=len(column),
                expected=count,
            )
    each = max(1, sum(_row_bytes(column) for column in table.values()))
    step = max(1, _TOGETHER // each)
    for start in range(0, count, step):
        part: dict[str, Array] = {n: column[start : start + step] for n, column in table.items()}
        data, labels, paths = part.pop("data"), part.pop("label", None), part.pop("path", None)
        add_many(data, labels, paths=paths, **part)
        yield min(start + step, count)


def _row_bytes(column: Any) -> int:
    """Bytes of a row; of a list, whose rows may be anything, so many that some go together."""
    if not _is_array(column):
        return _TOGETHER >> 10
    return int(getattr(column.dtype, "itemsize", 8) * math.prod(map(int, column.shape[1:])))


# -- a Dataset -------------------------------------------------------------------------------------


class DatasetItems:
    """The samples of a :class:`asyncreader.Dataset` as dicts, as it serves them: its fields by
    name, the first as the data, with labels and paths. Images are turned to (H, W, C), as sets
    store them: a set of them serves the same as ``dataset``.

    ``splits``: those of its samples; ``label_names``: of the columns of its labels; ``labels``: the
    names of its labels behind the first, which are fields of a sample here; ``notes``: what a user
    may not expect. ``classes``: names that its classes get the numbers of, and that name its labels
    where it has no classes; None: its own. ``places``: the options that say which fields are boxes
    and keypoints.
    """

    def __init__(self, dataset: Dataset, classes: tuple[str, ...] | None) -> None:
        from asyncreader.dataset import open

        named = dataset.params.labels_field
        self.labels = _last_parts(named[1:]) if isinstance(named, tuple) else ()
        self._names = _field_names(tuple(dataset.fields))
        paths = dataset.paths
        self._paths = None if None in paths else paths
        self._images = _images_of(dataset)
        read = dataset.params
        said = {"boxes_field": read.boxes_field, "keypoints_field": read.keypoints_field}
        self.places = {what: self._names[one] for what, one in said.items() if one is not None}
        names = None if dataset.labels is None else dataset.classes
        self.classes = names if classes is None else classes
        self._renumbering = None
        if names is not None and classes is not None:
            self._renumbering = Renumbering(names, classes)
        self.splits, self.notes = _splits_of(dataset)
        self.label_names = label_names(dataset.source, dataset.params.labels_field)
        if self.labels:
            again = ["labels", *self.labels]
            self.notes += (f"labels_field={again} serves the labels of this file as they were",)
        self._samples: Dataset[dict[str, Any]] = open(dataset.given, as_dict=True)

    def __len__(self) -> int:
        return len(self._samples)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for number, sample in enumerate(self._samples):
            named = {self._name(served): value for served, value in sample.items()}
            for name in self._images:
                named[name] = _channels_last(named[name])
            if self.labels:
                named["label"], *others = named["label"]
                named = _with_labels(named, dict(zip(self.labels, others, strict=True)))
            if self._renumbering is not None:
                named["label"] = self._renumbering.of(named["label"])
            if self._paths is not None:
                named["path"] = self._paths[number]
            yield named

    def _name(self, served: str) -> str:
        """What an array of a sample is called in a set: of ``left/image.present`` image_present."""
        if served in self._names:
            return self._names[served]
        field, _, fact = served.rpartition(".")
        return f"{self._names[field]}_{fact}" if field in self._names else served

    def close(self) -> None:
        """Close the Dataset that serves them."""
        self._samples.close()


def _field_names(served: tuple[str, ...]) -> dict[str, str]:
    """What the fields are called in a set: the first ``data``, the others by the last part of their
    names. ParamsError where two would be called alike."""
    first = DATA if DATA in served else served[0]
    names = dict(zip(served, _last_parts(served), strict=True)) | {first: DATA}
    if len(set(names.values())) < len(names):
        raise ParamsError(
            "two fields would have one name",
            found=", ".join(map(repr, served)),
            hint='name them: data_field={"left": "left/image", "right": "right/image"}',
        )
    return names


def _last_parts(names: Iterable[str]) -> tuple[str, ...]:
    """What fields, or labels, of these names are called in a set."""
    return tuple(name.rstrip("/").rsplit("/", 1)[-1].lstrip("@") for name in names)


def _with_labels(sample: dict[str, Any], labels: Mapping[str, Any]) -> dict[str, Any]:
    """A sample with other labels as fields. ParamsError where it has a field of such a name."""
    if taken := sample.keys() & labels.keys():
        raise ParamsError(
            "a label and a field would have one name",
            found=repr(min(taken)),
            hint='give the field another name: data_field={"image": "label", ...}, or name one '
            "label as labels_field",
        )
    return {**sample, **labels}


def _splits_of(dataset: Dataset) -> tuple[Splits | None, tuple[str, ...]]:
    """The splits that the samples of a dataset are in, and what is to be said of them: of a window
    that of its anchor, or of its episode, and of a patch that of its volume."""
    source, records = dataset.source, dataset.records(np.arange(len(dataset), dtype=np.int64))
    splits, count = source.splits, source.facts.count
    rule = source.rule
    records = rule.shown(records)
    if isinstance(rule, Windows) and not splits:
        episodes = rule.episodes
        splits, count, records = episodes.splits, episodes.ends.size, episodes.of(records)
    if not splits:
        return None, ()
    found = kept_splits(splits, count)
    if found is None:
        return None, (SHARED,)
    found = found.of(records).present()
    if found is not None:
        check_split_names(found.names)
    return found, ()


def _images_of(dataset: Dataset) -> tuple[str, ...]:
    """The names in a set of the fields that are served as images (C, H, W)."""
    if dataset.params.layout != "NCHW":
        return ()
    names = _field_names(tuple(dataset.fields))
    parts = zip(dataset.fields, dataset.source.parts, strict=True)
    return tuple(names[n] for n, one in parts if one.spec.encoded or one.spec.axes is not None)


def _channels_last(image: Array) -> Array:
    """(C, H, W) as (H, W, C), unless that could be taken for something else."""
    plain = image.ndim == 3 and image.shape[0] <= _MOST_CHANNELS < image.shape[1]
    return image.transpose(1, 2, 0) if plain else image
