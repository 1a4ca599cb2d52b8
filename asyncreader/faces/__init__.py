"""Drop-in replacements for older loaders, built on asyncreader's slots, workers and order.

Change an import and keep the code: ``ParaLoad`` (paraload), ``GeneratorEnqueuer``,
``OrderedEnqueuer``, ``Sequence`` and ``HDF5Matrix`` (Keras), ``get_batch`` (the recipe built on
them), ``iter_minibatches`` (climin); ml-pyxis is in :mod:`asyncreader.faces.pyxis`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .enqueuer import GeneratorEnqueuer, OrderedEnqueuer, get_batch
    from .hdf5matrix import HDF5Matrix
    from .jobs import Sequence
    from .minibatches import iter_minibatches
    from .paraload import ParaLoad

__all__ = [
    "GeneratorEnqueuer",
    "HDF5Matrix",
    "OrderedEnqueuer",
    "ParaLoad",
    "Sequence",
    "get_batch",
    "iter_minibatches",
]

#: Loaded when first asked for (PEP 562): a spawned worker imports its user's module, and that this
#: package, but needs none of the parent's side.
_LATE = {
    "GeneratorEnqueuer": "enqueuer",
    "HDF5Matrix": "hdf5matrix",
    "OrderedEnqueuer": "enqueuer",
    "ParaLoad": "paraload",
    "Sequence": "jobs",
    "get_batch": "enqueuer",
    "iter_minibatches": "minibatches",
}


def __getattr__(name: str) -> object:
    if name not in _LATE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    try:
        value = globals()[name] = getattr(import_module(f"{__name__}.{_LATE[name]}"), name)
    except AttributeError as exc:  # to Python it would say that the name is unknown
        raise ImportError(f"{__name__}.{_LATE[name]} cannot be loaded: {exc}") from exc
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
