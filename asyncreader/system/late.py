"""What is imported, or read, when it is asked for: a program that does not need it does without."""

from __future__ import annotations

import typing
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, cast


class LateModule:
    """A module that is imported when the first of its names is asked for. Names are kept."""

    def __init__(self, module: str) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        value = vars(self)[name] = getattr(import_module(self._module), name)
        return value


#: h5py takes 0.1 s to import; LMDB, images and arrays do without it. obstore is an extra, for
#: stores. numpy takes as long as h5py; ``--help``, which reads what parameters
#: there are, does without it.
h5py: Any = LateModule("h5py")
obstore: Any = LateModule("obstore")
#: What notebooks show of batches, datasets and readers, and what is found out about a whole set:
#: the tools are made of these, and are loaded when they are asked for.
tools_notebook: Any = LateModule("asyncreader.tools.notebook")
tools_preview: Any = LateModule("asyncreader.tools.preview")
tools_statistics: Any = LateModule("asyncreader.tools.statistics")
if TYPE_CHECKING:
    import numpy as numpy
    import numpy.typing as npt
    from typing_extensions import TypeVar as TypeVar

    from .array_types import Array, Int64
else:
    numpy = LateModule("numpy")

    class TypeVar:
        """A TypeVar that a type checker takes for ``default`` where nothing else is said. From
        Python 3.13 on typing has such."""

        def __new__(cls, name: str, default: object = None, **options: Any) -> typing.TypeVar:
            return typing.TypeVar(name, **options)


def need(module: str, extra: str) -> Any:
    """The library ``module``; ImportError that names the extra to install where it is missing."""
    try:
        return import_module(module)
    except ModuleNotFoundError as exc:
        raise ImportError(
            f"this needs {module}: pip install -e '.[{extra}]' in asyncreader's checkout"
        ) from exc


def late_names(
    package: dict[str, Any], names: Mapping[str, str]
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """``__getattr__`` and ``__dir__`` (PEP 562) of a package, which is given by its ``globals()``:
    names that are taken from their modules when they are first asked for. ``names``: those of each
    module, with spaces between them."""
    modules = {name: module for module, those in names.items() for name in those.split()}

    def __getattr__(name: str) -> object:
        if name not in modules:
            raise AttributeError(f"module {package['__name__']!r} has no attribute {name!r}")
        try:
            value = package[name] = getattr(import_module(modules[name]), name)
        except AttributeError as exc:  # to Python it would say that the name is unknown
            raise ImportError(f"{modules[name]} cannot be loaded: {exc}") from exc
        return value

    return __getattr__, lambda: sorted({*package, *package["__all__"]})


# -- tables --------------------------------------------------------------------------------------


class LazyTable:
    """In place of an array of ``shape`` (N, ...) and ``dtype``.

    ``read``: gives the rows of record numbers (n,), int64, as an array (n, ...); ``tables``: gives
    the arrays that hold all rows in sequence, where they can be in memory.
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        dtype: npt.DTypeLike,
        read: Callable[[Int64], Array],
        tables: Callable[[], list[Array]] | None = None,
    ) -> None:
        self.shape = shape
        self.dtype = numpy.dtype(dtype)
        self._read = read
        self._tables = tables

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    def __len__(self) -> int:
        return self.shape[0]

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> Array:
        return self[:].astype(dtype or self.dtype, copy=False)

    def __getitem__(self, rows: Int64 | slice | int) -> Array:
        """The rows of these numbers, (n, ...); of one number its row."""
        if isinstance(rows, slice):
            return self._read(numpy.arange(*rows.indices(len(self)), dtype=numpy.int64))
        if isinstance(rows, int | numpy.integer):
            row: Array = self._read(numpy.array([rows], numpy.int64))[0]
            return row
        return self._read(rows)


#: A :class:`LazyTable`, for those who take it for an array.
as_array = cast("Callable[..., Array]", LazyTable)


def tables_of(table: Array) -> list[Array] | None:
    """The arrays in memory that hold all rows of a table in sequence; None where there are none."""
    given: object = table
    if not isinstance(given, LazyTable):
        return [table]
    return None if given._tables is None else given._tables()
