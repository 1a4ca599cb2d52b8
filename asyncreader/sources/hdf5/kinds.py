"""Kinds of HDF5 files whose samples depend on what is to be learned: how they are known, and how
their users get samples."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Set
from typing import Final, NamedTuple, Protocol

from ...errors import FormatError
from ...system.late import h5py
from .listing import some_names

#: Names in the root group that are looked at.
_LOOKED_AT: Final = 64


class NamedObjects(Protocol):
    """What is asked of an open file: see :class:`~asyncreader.sources.hdf5.file.Hdf5`."""

    @property
    def names(self) -> Set[str]:
        """Names in the root group."""

    def reach(self, name: str) -> object | None:
        """An object by its name."""

    def plain_text(self, name: str, attribute: str) -> str | None:
        """An attribute of an object that is one text."""


class Kind(NamedTuple):
    """``known``: whether a file is one; ``samples``: how users get samples."""

    name: str
    known: Callable[[NamedObjects], bool]
    samples: str


def _reached(h5: NamedObjects, name: str) -> object | None:
    """An object of the root group; None of one in another file."""
    with contextlib.suppress(FormatError):
        return h5.reach(name)
    return None


def _is_nexus(h5: NamedObjects) -> bool:
    root = h5.reach("/")
    names = [name.decode("utf-8", "surrogateescape") for name in some_names(root, _LOOKED_AT)]
    groups = (name for name in names if isinstance(_reached(h5, name), h5py.h5g.GroupID))
    return any(h5.plain_text(name, "NX_class") == "NXentry" for name in groups)


#: Each kind; the first that knows a file names it.
KINDS: Final[tuple[Kind, ...]] = (
    Kind(
        "cooler",
        lambda h5: (h5.plain_text("/", "format") or "").startswith("HDF5::"),
        "contacts are stored as rows of pixels/bin1_id, bin2_id and count; for squares of the "
        "matrix save it once, as in numpy.save('hic.npy', "
        "cooler.Cooler(path).matrix(balance=False)[:]), and pass patch=(Y, X), sample_axis=None",
    ),
    Kind(
        "NWB",
        lambda h5: h5.plain_text("/", "nwb_version") is not None,
        "a series is data_field='acquisition/NAME/data', its rows are time: with "
        "episodes='whole', window=N a sample is N rows of it; trials begin at "
        "intervals/trials/start_time, in seconds, which subset= takes as rows",
    ),
    Kind(
        "NeXus",
        _is_nexus,
        "the signal of an NXdata group is data_field='ENTRY/DATA/SIGNAL'; frames of a detector are "
        "its first axis",
    ),
    Kind(
        "SNIRF",
        lambda h5: {"formatVersion", "nirs"} <= h5.names,
        "data_field='nirs/data1/dataTimeSeries', its rows are time: with episodes='whole', "
        "window=N a sample is N rows; in a list of files each is an episode: episodes='files'",
    ),
    Kind(
        "Keras",
        lambda h5: "model_weights" in h5.names or h5.plain_text("/", "keras_version") is not None,
        "these are the weights of a model, which are no samples",
    ),
)


def kind_of(h5: NamedObjects) -> Kind | None:
    """The kind of a file; None of any other."""
    return next((kind for kind in KINDS if kind.known(h5)), None)
