"""Drop-in replacements for older loaders, built on asyncreader's slots, workers and order.

Change an import and keep the code: ``ParaLoad`` (paraload), ``GeneratorEnqueuer``,
``OrderedEnqueuer``, ``Sequence`` and ``HDF5Matrix`` (Keras), ``get_batch`` (the recipe built on
them), ``iter_minibatches`` (climin); ml-pyxis is in :mod:`asyncreader.faces.pyxis`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..system.late import late_names

if TYPE_CHECKING:
    from .enqueuer import GeneratorEnqueuer, OrderedEnqueuer, Sequence, get_batch
    from .hdf5matrix import HDF5Matrix
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
    "asyncreader.faces.enqueuer": "GeneratorEnqueuer OrderedEnqueuer Sequence get_batch",
    "asyncreader.faces.hdf5matrix": "HDF5Matrix",
    "asyncreader.faces.minibatches": "iter_minibatches",
    "asyncreader.faces.paraload": "ParaLoad",
}

__getattr__, __dir__ = late_names(globals(), _LATE)
