"""Samples that a program adds: what is kept of them until their file is finished."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import numpy as np

from asyncreader.errors import ParamsError
from asyncreader.formats.packed import DATA, MOST_AXES, NUMBER_DTYPES
from asyncreader.system.array_types import Array
from asyncreader.system.checks import FILL_MASKED

from ..temp_tables import Numbers, Strings, gathered
from .samples import Samples

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
        self._dtype: np.dtype[Any] = np.dtype(np.float64 if real else np.int64)
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

    def add_many(self, labels: object) -> int:
        """Add labels (n,) or (n, L), or n texts; returns n."""
        if self._text:
            return self._add_names(labels)
        table = as_array(labels, "labels")
        count = len(table) if table.ndim else 0
        rows = table.reshape(count, -1) if count else table
        kinds = "bui" + self._dtype.kind
        if not count or rows.shape[1] != self._width or rows.dtype.kind not in kinds:
            raise ParamsError(
                "a label differs from the first one",
                found=f"shape {table.shape[1:]}, {table.dtype}",
                expected=f"{self._width} of {self._dtype}",
                hint=_AS_FIELD,
            )
        if rows.dtype == np.uint64 and bool((rows > np.uint64(2**63 - 1)).any()):
            raise ParamsError("labels beyond int64 cannot be stored")
        if self._classes is not None:
            wrong = (rows < -1) | (rows >= len(self._classes))  # -1 is no class
            if wrong.any():
                raise self._unknown(rows[wrong][0])
        self._rows.extend(rows)
        return count

    def _add_names(self, labels: object) -> int:
        names = labels.tolist() if isinstance(labels, np.ndarray) else labels
        if not isinstance(names, list | tuple) or not all(isinstance(n, str) for n in names):
            raise ParamsError("a label that is not text, as the first one is", found=labels)
        for name in names:
            if self._classes is not None and name not in self._numbers:
                raise self._unknown(name)
            if "\0" in name:
                raise ParamsError("a label with a NUL character cannot be stored", found=name)
            self._rows.append(self._numbers.setdefault(str(name), len(self._numbers)))
        return len(names)

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
        place = {name: number for number, name in enumerate(names)}
        numbers = np.array([place[name] for name in self._numbers], np.int64)
        return gathered(numbers.reshape(-1, 1), table[:, 0]), names


class AddedSamples(Samples):
    """What the tables of a file need of samples that were added: labels and paths, on disk."""

    def __init__(self, forms: Sequence[Form], encodings: Sequence[str]) -> None:
        super().__init__()
        self.channels = 3
        self.fields = tuple(form.name for form in forms)
        self.encodings = tuple(encodings)
        self.added: AddedLabels | None = None
        self._names: Strings | None = None

    def add_path(self, path: object) -> None:
        """Keep the path of the next sample. ParamsError for one that is no name."""
        try:
            name = os.fsencode(path)  # type: ignore[arg-type]
        except (TypeError, ValueError) as exc:
            raise ParamsError("path must be text, or a path", found=repr(path)[:80]) from exc
        if b"\0" in name or not name:
            raise ParamsError("an empty path, or one with a NUL character", found=repr(path)[:80])
        if self._names is None:
            self._names = Strings()
        self._names.append(name)

    def complete(self) -> None:
        """All samples were added: make the tables of them."""
        if self.added is not None:
            self.labels, self.classes = self.added.finish()
            self.label_kind = self.added.kind
        path = None if self._names is None else self._names.freeze().__getitem__
        self.paths = (path, *[None] * (len(self.fields) - 1))
