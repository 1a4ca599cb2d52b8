"""LMDB sets of pickled samples, for users who trust the set's writer (``allow_pickle``).

A pickle can run any code when it is read. Here it may name only containers, numbers, text, bytes
and numpy arrays. That stops the known attacks, but it is not a sandbox. The reader never unpickles.
"""

from __future__ import annotations

import io
import pickle
import threading
import warnings
from collections import OrderedDict
from typing import Any, Final

import numpy as np
from numpy._core import multiarray

from asyncreader.array_types import Array, Int64, UInt8
from asyncreader.errors import DecodeError, ParamsError, SampleError, closed_on_error, located
from asyncreader.pixels import codec
from asyncreader.sources.layouts.detect import PickledSet, pickled_set
from asyncreader.sources.request import no_field

from ..check_options import check_encoding
from ..encode import Hold, Sample, make_recipe, notes
from ..options import Options
from .packed import check_original, check_packed
from .samples import Samples


def _latin1(text: str, encoding: str) -> bytes:
    """What protocol 2 calls to make bytes under Python 3."""
    if encoding not in ("latin1", "latin-1"):
        raise pickle.UnpicklingError(f"text encoded as {encoding!r}")
    return text.encode("latin-1")


#: Everything that a pickle may name, under the module names of all numpy versions.
_ALLOWED: Final[dict[tuple[str, str], Any]] = {
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("_codecs", "encode"): _latin1,
    ("collections", "OrderedDict"): OrderedDict,
    **{
        (module, name): getattr(multiarray, name)
        for module in ("numpy.core.multiarray", "numpy._core.multiarray")
        for name in ("_reconstruct", "scalar")
    },
    **{
        (module, "_frombuffer"): lambda data, dtype, shape, order: np.frombuffer(
            data, dtype
        ).reshape(shape, order=order)
        for module in ("numpy.core.numeric", "numpy._core.numeric")
    },
    **{
        (module, kind.__name__): kind
        for module in ("builtins", "__builtin__")
        for kind in (list, tuple, dict, set, frozenset, bytes, bytearray, str, int, float, bool)
    },
}


class _Careful(pickle.Unpickler):
    """Refuses every name but those above."""

    def find_class(self, module: str, name: str) -> Any:
        try:
            return _ALLOWED[module, name]
        except KeyError:
            raise pickle.UnpicklingError(
                f"it names {module}.{name}, which is not allowed"
            ) from None


def open_pickled(options: Options) -> PickledSamples | None:
    """The samples of ``options.src`` if it is an LMDB of pickles, else None."""
    found = pickled_set(options.src)
    if found is None:
        return None
    with closed_on_error([found.file]):
        return PickledSamples(options, found)


class PickledSamples(Samples):
    """Pickled datapoints such as (image, label): image files' bytes, or uint8 arrays of pixels.

    ``data_field`` and ``labels_field`` name the parts: by number (0 and 1), or by key in dicts.
    """

    def __init__(self, options: Options, found: PickledSet) -> None:
        super().__init__()
        check_packed(options, "classes")
        read = options.params
        if read is not None and (read.labels_path is not None or read.subset is not None):
            raise ParamsError("labels_path and subset do not go with pickles", path=options.src)
        warnings.warn(
            f"{options.src}: unpickling its samples; a pickle can run any code, so do this only "
            "with a dataset whose writer you trust",
            stacklevel=2,
        )
        self._found = found
        self.count = len(found.entries)
        image, label = self._parts(found, read)
        self._image, self._label = image, None if options.no_labels else label
        first = self._picture(0)
        raw = isinstance(first, np.ndarray)
        usual = 1 if options.bits == 16 else 3
        self.channels = options.channels or (
            first.shape[2] if isinstance(first, np.ndarray) else usual
        )
        self.encoding: str = options.encoding or ("raw" if raw else "original")
        if self.encoding == "original":
            check_original(options, "raw" if raw else "original")
        check_encoding(options, self.encoding, self.channels, options.bits)
        self._recipe = make_recipe(options, self.encoding, self.channels, options.bits)
        self._labels = None if self._label is None else _Labels(self._first_label(), self.count)
        self.notes = notes(options, self._recipe)
        self.label_kind = "none" if self._labels is None else self._labels.kind

    def _parts(self, found: PickledSet, read: Any) -> tuple[Any, Any]:
        """The keys or indices of the image and the label (None: no label) in a datapoint."""
        point = self._point(0)
        data = "data" if read is None else read.data_field
        labels = "labels" if read is None else read.labels_field
        if isinstance(point, dict):
            known: list[Any] = [key for key in point if isinstance(key, str | bytes | int)]
        elif isinstance(point, list | tuple):
            known = list(range(len(point)))
            data = "0" if data == "data" else data
            labels = "1" if labels == "labels" and len(point) > 1 else labels
        else:
            raise self._bad(0, f"a pickled {type(point).__name__}, not a list or dict of fields")
        by_name = {name.decode() if isinstance(name, bytes) else str(name): name for name in known}
        if labels == "labels" and labels not in by_name:
            labels = None
        for name in (data, labels):
            if name is not None and name not in by_name:
                raise no_field(name, list(by_name), found.path)
        return by_name[data], None if labels is None else by_name[labels]

    def _point(self, number: int) -> Any:
        value = self._found.entries.value(number)
        try:
            # text of Python 2 is bytes here: it may be a picture
            return _Careful(io.BytesIO(value.tobytes()), encoding="bytes").load()
        except Exception as exc:  # a damaged or hostile pickle can raise anything
            raise self._bad(number, "a sample cannot be unpickled", str(exc)) from exc

    def _bad(self, number: int, what: str, found: object = None) -> SampleError:
        return SampleError(what, **self._found.entries.blame(number), found=found)

    def _field(self, point: Any, part: Any, number: int) -> Any:
        try:
            value = point[part]
        except (LookupError, TypeError) as exc:
            raise self._bad(number, f"a sample without field {part!r}") from exc
        # torch's DataLoader makes a list of one of everything
        if isinstance(value, list | tuple) and len(value) == 1:
            value = value[0]
        return value

    def _picture(self, number: int) -> bytes | UInt8:
        return self._as_picture(self._field(self._point(number), self._image, number), number)

    def _as_picture(self, value: Any, number: int) -> bytes | UInt8:
        if isinstance(value, bytes | bytearray):
            return bytes(value)
        if not isinstance(value, np.ndarray) or value.dtype != np.uint8 or value.size == 0:
            kind = f"{value.dtype}" if isinstance(value, np.ndarray) else type(value).__name__
            raise self._bad(number, "an image that is neither bytes nor a uint8 array", kind)
        if value.ndim == 1:
            return value.tobytes()
        pixels = value[:, :, None] if value.ndim == 2 else value
        if pixels.ndim != 3 or pixels.shape[2] not in (1, 3):
            raise self._bad(number, "an array that is no (H, W, 1 or 3) image", value.shape)
        return pixels

    def _first_label(self) -> Any:
        return self._field(self._point(0), self._label, 0)

    def fetch(self, number: int, hold: Hold) -> Sample:
        hold(2 * int(self._found.entries.sizes[number]))
        point = self._point(number)
        if self._labels is not None:
            label = self._field(point, self._label, number)
            why = self._labels.note(number, label)
            if why is not None:
                raise self._bad(number, why, ascii(label)[:80])
        picture = self._as_picture(self._field(point, self._image, number), number)
        blame = self._found.entries.blame
        with located(path=self._found.path, index=number, key=lambda: blame(number)["key"]):
            if isinstance(picture, bytes):
                return (self._recipe.from_file(picture, hold),)
            if self.encoding == "original":
                raise DecodeError("raw pixels among image files")
            if picture.shape[0] * picture.shape[1] > codec.MAX_PIXELS:
                raise DecodeError("image dimensions out of range", found=picture.shape)
            return (self._recipe.from_pixels(np.ascontiguousarray(picture)),)

    @property
    def classes(self) -> tuple[str, ...] | None:
        """Sorted class names, of labels that are text: known when all samples were fetched."""
        return None if self._labels is None else self._labels.classes()

    def label_rows(self, numbers: Int64) -> Array | None:
        return None if self._labels is None else self._labels.rows(numbers)

    def close(self) -> None:
        self._found.file.close()


class _Labels:
    """Labels, noted by many threads in any order: rows of numbers, or text as classes."""

    def __init__(self, first: Any, count: int) -> None:
        self._text = isinstance(first, str | bytes)
        width = 1 if self._text else np.asarray(first).size
        real = not self._text and np.asarray(first).dtype.kind == "f"
        self._rows = np.zeros((count, max(1, width)), np.float64 if real else np.int64)
        self._numbers: dict[str, int] = {}
        self._lock = threading.Lock()
        self.kind = "class" if self._text else "values"

    def note(self, number: int, label: Any) -> str | None:
        """Keep the label of a sample; what is wrong with it, if anything."""
        if self._text:
            if isinstance(label, bytes):
                label = label.decode("utf-8", "backslashreplace")
            if not isinstance(label, str):
                return "a label that is not text, as the first one is"
            if "\0" in label:
                return "a label with a NUL character, which cannot be stored"
            with self._lock:
                self._rows[number] = self._numbers.setdefault(label, len(self._numbers))
            return None
        try:
            row = np.asarray(label)
        except ValueError:  # lists of several lengths
            return "a label that is no row of numbers"
        if row.dtype.kind not in "bui" + self._rows.dtype.kind or row.size != self._rows.shape[1]:
            return "a label of another kind or length than the first one"
        self._rows[number] = row.reshape(-1)
        return None

    def classes(self) -> tuple[str, ...] | None:
        return tuple(sorted(self._numbers)) if self._text else None

    def rows(self, numbers: Int64) -> Array:
        if not self._text:
            return self._rows[numbers]
        sorted_numbers = {name: n for n, name in enumerate(sorted(self._numbers))}
        final = np.array([sorted_numbers[name] for name in self._numbers], np.int64)
        chosen: Int64 = final[self._rows[numbers]]
        return chosen
