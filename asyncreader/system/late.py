"""What is imported when it is first used: a program that does not need it starts without it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any


class LateModule:
    """A module that is imported when the first of its names is asked for. Names are kept."""

    def __init__(self, module: str) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        value = vars(self)[name] = getattr(import_module(self._module), name)
        return value


#: h5py takes 0.1 s to import; LMDB, pictures and arrays do without it. obstore is an extra, for
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
else:
    numpy = LateModule("numpy")


def late_names(
    package: dict[str, Any], modules: Mapping[str, str]
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """``__getattr__`` and ``__dir__`` (PEP 562) of a package, which is given by its ``globals()``:
    names that are taken from ``modules`` when they are first asked for."""

    def __getattr__(name: str) -> object:
        if name not in modules:
            raise AttributeError(f"module {package['__name__']!r} has no attribute {name!r}")
        try:
            value = package[name] = getattr(import_module(modules[name]), name)
        except AttributeError as exc:  # to Python it would say that the name is unknown
            raise ImportError(f"{modules[name]} cannot be loaded: {exc}") from exc
        return value

    return __getattr__, lambda: sorted({*package, *package["__all__"]})
