"""Checks of values: what a parameter takes, what is kept of it, and what is expected instead.

``--help`` reads them: nothing here loads numpy before a check needs it.
"""

from __future__ import annotations

import math
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, TypeAlias, TypeVar, get_args

from ..errors import ParamsError
from .late import numpy as np

if TYPE_CHECKING:
    from .array_types import Int64

T = TypeVar("T")
W = TypeVar("W")
T_co = TypeVar("T_co", covariant=True)

#: How a command line writes a value. "word": as one of the check's words; "json": also as plain
#: text; "file": as text that names a file; "texts": as several plain
#: texts; "paths": as names of sets; "folders", "params": as
#: several NAME=VALUE; "object": it cannot.
Form: TypeAlias = Literal[
    "word", "json", "text", "file", "paths", "size", "slice", "function", "folders", "params",
    "texts", "object",
]  # fmt: skip

#: The most pixels on a side of an image: JPEG states sides in 16 bits (ITU-T T.81, B.2.2).
MAX_SIDE: Final = 65_535


class Wrong(ValueError):
    """A wrong value, with more to say than its check's ``expected``."""

    def __init__(
        self, expected: str, found: object = None, part: str = "", hint: str | None = None
    ) -> None:
        super().__init__(expected)
        self.expected, self.found, self.part, self.hint = expected, found, part, hint


@dataclass(frozen=True)
class Check(Generic[T_co]):
    """The check of one value.

    ``take`` returns what is kept of a value. It raises Wrong, or whatever the value raises, if the
    value is none of those ``expected``. ``words``: values that Tab offers. ``limits``: least and
    most of a whole number. ``by_field``: it takes a dict by field, too.
    """

    expected: str
    take: Callable[[Any], T_co]
    form: Form = "json"
    words: tuple[object, ...] = ()
    limits: tuple[int | None, int | None] | None = None
    by_field: bool = False

    def __call__(self, name: str, value: object) -> T_co:
        """What is kept of ``value``; ParamsError if it is wrong."""
        try:
            return self.take(value)
        except Wrong as exc:
            found = value if exc.found is None else exc.found
            raise invalid(name + exc.part, found, exc.expected, exc.hint) from None
        except ParamsError:
            raise
        except Exception:  # an odd object may raise anything when it is looked at
            raise invalid(name, value, self.expected) from None


def invalid(name: str, found: object, expected: str, hint: str | None = None) -> ParamsError:
    """The error of a wrong value."""
    return ParamsError(f"{name} is not valid", found=written(found), expected=expected, hint=hint)


def written(value: object) -> str:
    """At most 200 letters of the ``repr`` of whatever the caller passed."""
    try:
        text = repr(value)
    except Exception:  # an odd object, or a number of too many digits
        return f"a {type(value).__name__}"
    return text if len(text) <= 200 else f"{text[:200]}..."


# -- checks of any parameter ---------------------------------------------------------------------


def plain(value: Any) -> object:
    """A number of numpy as one of Python, and all else as it is."""
    numpy = sys.modules.get("numpy")
    if numpy is None or isinstance(value, numpy.timedelta64):  # numpy calls a time span an integer
        return value
    for kind, python in ((numpy.bool_, bool), (numpy.integer, int), (numpy.floating, float)):
        if isinstance(value, kind):
            return python(value)
    return value


def real_number(value: object) -> int | float:
    """A number that is no truth value, of numpy or of Python; ValueError for anything else."""
    number = plain(value)
    if isinstance(number, bool) or not isinstance(number, int | float):
        raise ValueError
    return number


def whole(low: int | None = None, high: int | None = None) -> Check[int]:
    """A whole number from ``low``, below ``high``."""

    def take(value: object) -> int:
        number = real_number(value)
        good = isinstance(number, int) and (low is None or number >= low)
        if not good or (high is not None and number >= high):
            raise ValueError
        return int(number)

    expected = "a whole number" + ("" if low is None else f" of at least {low}")
    few = low is not None and high is not None and high - low <= 8
    return Check(
        expected + ("" if high is None else f", below {high}"),
        take,
        words=tuple(range(low or 0, high or 0)) if few else (),
        limits=(low, None if high is None else high - 1),
    )


def number(above: float, most: float) -> Check[float]:
    """A number above ``above``, at most ``most``."""

    def take(value: object) -> float:
        found = real_number(value)
        if not above < found <= most:
            raise ValueError
        return float(found)

    return Check(f"a number above {above:g}, at most {most:g}", take)


def between(low: float, high: float = math.inf, below: bool = False) -> Check[float]:
    """A number from ``low`` to ``high``; ``below``: below ``high``."""

    def take(value: object) -> float:
        found = within(value, low, high)
        if below and found == high:
            raise ValueError
        return found

    words = _range(low, high, "a number")
    return Check(words.replace(" to ", ", below ") if below else words, take)


def within(value: object, low: float, high: float) -> float:
    """A finite number from ``low`` to ``high``; ValueError for anything else."""
    found = real_number(value)
    if not low <= found <= high or math.isinf(found):
        raise ValueError
    return float(found)


def _range(low: float, high: float, what: str) -> str:
    return f"{what} from {low:g}" + ("" if high == math.inf else f" to {high:g}")


def numbers(count: int, low: float = -math.inf, high: float = math.inf) -> Check[tuple[float, ...]]:
    """So many numbers from ``low`` to ``high``."""

    def take(value: Any) -> tuple[float, ...]:
        if isinstance(value, str) or len(value) != count:
            raise ValueError
        return tuple(within(one, low, high) for one in value)

    what = f"{count} numbers"
    return Check(what if low == -math.inf else _range(low, high, what), take)


def span(low: float, high: float = math.inf, above: bool = False) -> Check[tuple[float, float]]:
    """(least, most), both from ``low`` to ``high``; ``above``: above ``low``."""

    def take(value: Any) -> tuple[float, float]:
        least, most = numbers(2, low, high).take(value)
        if least > most or (above and least <= low):
            raise ValueError
        return least, most

    words = _range(low, high, "(least, most)")
    return Check(words.replace("from", "above") if above else words, take)


FINITE: Final = Check("a finite number", lambda value: within(value, -math.inf, math.inf))
NUMBER: Final = Check("a number", real_number)


def one_of(form: object) -> Check[T]:
    """One of the values of a type: of a Literal, of bool, or of a union of these."""
    allowed = tuple(_values(form))

    def take(value: object) -> Any:
        found = plain(value)
        for one in allowed:
            if type(found) is type(one) and found == one:
                return one
        raise ValueError

    return Check(" or ".join(map(repr, allowed)), take, "word", allowed)


def _values(form: object) -> Iterator[object]:
    if form is bool:
        yield from (True, False)
    elif form is type(None):
        yield None
    elif get_args(form):
        for one in get_args(form):
            yield from _values(one)
    else:
        yield form


FLAG: Final[Check[bool]] = one_of(bool)


def optional(check: Check[T]) -> Check[T | None]:
    """What ``check`` takes, or None."""
    return _also(check, None)


def or_auto(check: Check[T]) -> Check[T | Literal["auto"]]:
    """What ``check`` takes, or "auto"."""
    return _also(check, "auto")


def _also(check: Check[T], word: W) -> Check[T | W]:
    comma = "," if "," in check.expected else ""
    return Check(
        f"{check.expected}{comma} or {word!r}",
        lambda value: word if type(value) is type(word) and value == word else check.take(value),
        check.form,
        (*check.words, word),
        check.limits,
        check.by_field,
    )


def by_field(check: Check[T], noun: str = "value") -> Check[T | dict[str, T]]:
    """What ``check`` takes, a ``noun``, or a dict of it by the names of fields."""

    def take(value: Any) -> T | dict[str, T]:
        if not isinstance(value, Mapping):
            return check.take(value)
        if not value or not all(isinstance(name, str) and name for name in value):
            raise Wrong(f"{{field: {noun}, ...}}")
        found = {}
        for name, one in value.items():
            try:
                found[name] = check.take(one)
            except Exception as exc:  # an odd object may raise anything when it is looked at
                wrong = exc if isinstance(exc, Wrong) else Wrong(check.expected, one)
                given = one if wrong.found is None else wrong.found
                raise Wrong(wrong.expected, given, f"[{name!r}]{wrong.part}", wrong.hint) from None
        return found

    comma = "," if "," in check.expected else ""
    expected = f"{check.expected}{comma} or a dict of these by field"
    return Check(expected, take, check.form, check.words, by_field=True)


# -- texts and paths -----------------------------------------------------------------------------


def _text(value: Any) -> str:
    text = os.fspath(value)
    if not text or not isinstance(text, str):
        raise ValueError
    return text


TEXT: Final = Check("text", _text, "text")

#: What makes a path a URL rather than the name of a file.
URL: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://")


def path_text(value: Any) -> str:
    """``value`` as text that the system takes as a path, or a URL, which is checked when it is
    opened. A ``~`` in front is the home folder, as in a shell, but where a file has that name."""
    path = _text(value)
    if URL.match(path):
        return path
    if "\0" in path:
        raise Wrong("a path without null characters", path)
    try:
        os.fsencode(path)
    except UnicodeEncodeError:
        encoding = sys.getfilesystemencoding()
        raise Wrong(f"a path of letters that {encoding} has", path) from None
    return os.path.expanduser(path) if path[0] == "~" and not os.path.lexists(path) else path


#: The path of one file.
FILE: Final = Check("text", path_text, "file")


def _paths(value: Any) -> str | tuple[str, ...]:
    if isinstance(value, str | os.PathLike):
        return path_text(value)
    if isinstance(value, bytes) or not (several := tuple(map(path_text, value))):
        raise ValueError
    return several


PATHS: Final = Check("a path, a glob or a list of at least one of them", _paths, "paths")


def _names(value: Any) -> str | tuple[str, ...]:
    if not isinstance(value, list | tuple):
        return _text(value)
    names = tuple(value)
    good = names and all(isinstance(one, str) and one for one in names)
    if not good or len(set(names)) < len(names):
        raise Wrong("text, or a list of different names")
    return names


#: A name, or several in the order in which they are served.
NAMES: Final = Check("text", _names, "text")
#: As NAMES; a command line has a list or a dict of them as JSON.
MEMBERS: Final = Check("text, or a list of different names", _names)


def _fields(value: Any) -> str | tuple[str, ...] | dict[str, str]:
    if not isinstance(value, Mapping):
        return _names(value)
    fields = dict(value)
    if not fields or not all(isinstance(one, str) and one for one in (*fields, *fields.values())):
        raise Wrong("{name: name in the file, ...}")
    return fields


#: As NAMES, or names of the caller's own for what the file calls otherwise.
FIELDS: Final = Check("text", _fields, "text")


def _offsets(value: Any) -> str | Literal[False] | dict[str, str]:
    return False if value is False else by_field(TEXT).take(value)


#: The name of a data set, or of one for each field; False: none.
OFFSETS: Final = Check("text, a dict of texts by field, or False", _offsets)


# -- numbers of images ---------------------------------------------------------------------------


def _size(value: Any) -> tuple[int, int]:
    sides = list(value) if isinstance(value, list | tuple) or np.ndim(value) == 1 else []
    if len(sides) != 2:
        side = plain(value)
        good = isinstance(side, int) and not isinstance(side, bool) and 1 <= side <= MAX_SIDE
        example = (side, side) if good else (224, 224)
        raise Wrong(f"(H, W), such as {example}")
    side = whole(1, MAX_SIDE + 1)
    return side.take(sides[0]), side.take(sides[1])


SIZE: Final = Check(f"(H, W), each from 1 to {MAX_SIDE}", _size, "size")


def per_channel(divisor: bool = False) -> Check[tuple[float, ...]]:
    """Finite numbers, one for all channels or one for each; a divisor is not 0."""

    def take(value: Any) -> tuple[float, ...]:
        values = np.atleast_1d(np.asarray(value, np.float64))
        finite = values.ndim == 1 and values.size > 0 and bool(np.isfinite(values).all())
        if not finite or (divisor and bool((values == 0).any())):
            raise Wrong("finite numbers" + (" other than 0" if divisor else ""))
        return tuple(float(one) for one in values)

    return Check("a number, or one per channel", take)


def _dtype(value: Any) -> str:
    dtype = np.dtype(value)
    if dtype.kind not in "buif" or not dtype.isnative or dtype.itemsize > 8:
        raise Wrong('a numeric dtype in native byte order, such as "float32"')
    return str(dtype.name)


DTYPE: Final = Check(
    'a numeric dtype, such as "float32"', _dtype, words=("float16", "float32", "float64")
)


# -- data ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class DatasetPath:
    """Path and name of an h5py data set given as ``data``: the reader opens it by these."""

    path: str
    name: str


#: Arrays are more than mypy can say: whatever has a shape, a dtype and numbered rows.
Rows: TypeAlias = Any


#: The hint of an error about a masked array.
FILL_MASKED: Final = "say what stands in the place of the masked values: array.filled(0)"


def check_unmasked(value: object) -> None:
    """Wrong for a masked array, or a list of them."""
    rows = value if isinstance(value, list | tuple) else (value,)
    if any(isinstance(one, np.ma.MaskedArray) for one in rows):
        raise Wrong("an array without a mask, which would be lost", "masked array", "", FILL_MASKED)


def _rows(value: Any) -> Rows:
    check_unmasked(value)
    name = (value if isinstance(value, type) else type(value)).__name__
    try:
        if isinstance(value, list | tuple) or _in_memory(value):
            value = np.asarray(value)
        if not isinstance(value, DatasetPath):
            _ = [int(n) for n in value.shape], np.dtype(value.dtype), value.__getitem__
    # rows of several lengths, or a tensor on a GPU or with a gradient
    except (AttributeError, TypeError, ValueError, RuntimeError):
        kinds = "numpy, memmap, h5py dataset, zarr, or a tensor as tensor.detach().cpu()"
        kinds += " (bfloat16: .float())"
        raise Wrong(f"an array: {kinds}", name) from None
    return value


def _in_memory(value: Any) -> bool:
    """Whether numpy can look at ``value`` where it lies, such as a tensor of torch: its rows are
    numbered by labels (pandas), or it has a dtype of its own. zarr's arrays, which numpy would read
    as a whole, have numpy's dtypes."""
    if isinstance(value, np.ndarray | type) or not hasattr(value, "__array__"):
        return False
    return hasattr(value, "iloc") or not isinstance(getattr(value, "dtype", None), np.dtype)


def _opened(value: Any) -> Any:
    """An h5py data set that is open, else None."""
    h5py = sys.modules.get("h5py")
    return value if h5py is not None and isinstance(value, h5py.Dataset) and value else None


def _labels(value: Any) -> Rows:
    return _rows(value if _opened(value) is None else value[()])


def _array(value: Any) -> Rows:
    file = None if _opened(value) is None else value.file
    if file is None or file.driver != "sec2" or value.name is None:
        return _rows(value)
    if file.mode != "r":
        file.flush()
    return DatasetPath(os.path.abspath(file.filename), value.name)


def _data(value: Any) -> Rows | dict[str, Rows]:
    if not isinstance(value, Mapping):
        return _array(value)
    if not value or not all(isinstance(key, str) and key for key in value):
        raise Wrong("an array, or {name: array, ...}", list(value))
    arrays = {}
    for key, one in value.items():
        try:
            arrays[key] = _array(one)
        except Wrong as exc:
            expected = "an array under each name" if one is None else exc.expected
            raise Wrong(expected, exc.found, f"[{key!r}]", exc.hint) from None
    return arrays


LABELS: Final = Check("an array", _labels, "object")
DATA: Final = Check("an array", _data, "object")


def _subset(value: Any) -> str | slice | Int64:
    if isinstance(value, str):
        return value
    if isinstance(value, slice):
        try:
            value.indices(0)
        except (TypeError, ValueError):
            raise Wrong("a slice of whole numbers, with a step other than 0") from None
        return value
    check_unmasked(value)
    chosen = np.asarray(value)
    if chosen.dtype == np.bool_:
        raise Wrong("a slice, an int64 array (np.flatnonzero) or a name", "a bool array")
    if chosen.ndim != 1 or chosen.dtype.kind not in "iu" or chosen.size == 0:
        raise ValueError
    return np.array(chosen, np.int64)  # a copy: changes to the caller's array leave the order alone


SUBSET: Final = Check(
    "a slice, a 1-D array of record numbers or the name of a split", _subset, "slice"
)


# -- the rest ------------------------------------------------------------------------------------


def _function(value: object) -> Callable[..., object]:
    if not callable(value):
        raise ValueError
    return value


TRANSFORM: Final = Check(
    "a function f(image), f(image, label) or f(image, label, rng)", _function, "function"
)
FUNCTION: Final = Check("a function f(data, labels) or f(data, labels, rng)", _function, "function")


def _cuda(value: object) -> bool | str:
    if isinstance(value, bool) or (isinstance(value, str) and re.fullmatch(r"cuda(:\d+)?", value)):
        return value
    raise ValueError


CUDA: Final = Check('False, True or "cuda:N"', _cuda, words=(True, False))
