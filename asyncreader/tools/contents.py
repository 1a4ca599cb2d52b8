"""What an HDF5 file holds whose samples nothing names: its data sets, and what would open one."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator, Mapping
from typing import Any, Final

from ..dataset import look_into
from ..dataset import open as open_dataset
from ..errors import AsyncReaderError
from ..params.parse import parse_params
from ..pixels.numbers import is_number, listed, members_of
from ..sampling.episodes import Windows
from ..sources.bytestore import OpenFile
from ..sources.hdf5.checks import MATLAB_CLASS, record_type
from ..sources.hdf5.file import Hdf5, is_hdf5, kind_of, translated
from ..sources.hdf5.listing import SPARSE, Listed, list_fields, says_where
from ..sources.hdf5.physical import meaning_of
from ..sources.hdf5.stored import is_plain
from ..sources.layouts.known import LABEL_NAMES
from ..sources.request import NoFieldError, Request
from ..system.late import h5py
from ..system.text import times
from .describe import describe, hints_for

#: Data sets that are tried, the largest first.
_TRIED: Final = 8
#: Names of labels, which are samples only where nothing else is.
_LABELS: Final = {"labels", *LABEL_NAMES}
#: (H, W) of images that differ in size, as most training uses it.
_SIZE: Final = (224, 224)
#: What else may have to be said of a field, tried in this order.
_MORE: Final[tuple[dict[str, Any], ...]] = (
    {},
    {"labels_field": None},
    {"axes": "NCHW"},
    {"axes": "NCHW", "labels_field": None},
)
#: Attributes that name a unit (CF and NeXus, NWB).
_UNITS: Final = ("units", "unit")


def facts_of(given: Mapping[str, Any]) -> tuple[dict[str, Any], AsyncReaderError | None]:
    """What a set holds, as :func:`describe` says it; of an HDF5 file in which nothing says what its
    samples are, what is in it, and where it is something else that is wrong, the error.

    Raises what opening it raises where it cannot be listed, or a field was named.
    """
    try:
        with look_into(given) as ds:
            named = "data_field" in given or isinstance(ds.source.rule, Windows)
            named = named or ds.params.data_field == parse_params(given, {}).data_field
            found = None if named else _contents(given, ds.source.first.facts.path)
            return found or describe(ds), None
    except AsyncReaderError as exc:
        found = None if exc.path is None or "data_field" in given else _contents(given, exc.path)
        if found is None:
            raise
        return found, None if isinstance(exc, NoFieldError) else exc


def _contents(given: Mapping[str, Any], path: str) -> dict[str, Any] | None:
    """The data sets of a file that another program wrote, the largest first, and parameters besides
    those ``given`` that open one of them; None where there are none, or it cannot be read."""
    if not is_hdf5(path):
        return None
    file = OpenFile(path, "mmap")
    try:
        with contextlib.closing(file), translated(path), Hdf5(file) as h5:
            fields, unseen = list_fields(h5.members, h5.reach("/"))
            if not fields:
                return None
            kind, told = kind_of(h5), [_told(h5, one) for one in fields]
            tried = [way for one in _likely(fields) for way in _ways(h5, one)]
    except AsyncReaderError:
        return None
    opens, hints, refused = None, list[str](), None
    meant = {one["name"] for one in told if "meaning" in one["says"]}
    for way in tried:
        way |= {"values": "physical"} if way["data_field"] in meant else {}
        try:
            opens, hints = way, _opened(given, way)
            break
        except AsyncReaderError as exc:
            opens, refused = None, refused or str(exc)
    return {
        "path": path,
        "container": "HDF5",
        "layout": None,
        "kind": None if kind is None else {"name": kind.name, "samples": kind.samples},
        "listed": told,
        "unseen": unseen,
        "opens": opens,
        "refused": refused,
        "hints": hints,
    }


def _told(h5: Hdf5, one: Listed) -> dict[str, Any]:
    """A data set as ``info`` tells it."""
    data: Any = None if one.dtype in (SPARSE, "virtual") else h5.reach(one.name)
    dtype, said, stored = one.dtype, dict[str, Any](), None
    if data is not None:
        with contextlib.suppress(OSError, RuntimeError):  # of damaged storage
            stored = data.get_storage_size() if is_plain(data.get_type()) else None
        if dtype == "structured":
            with contextlib.suppress(ValueError):  # a damaged type, or one that is not read
                dtype = listed(record_type(data.get_type()))
        said = _said(h5, one, h5py.Dataset(data))
    return {
        "name": one.name,
        "alike": one.alike or None,
        "shape": list(one.shape),
        "dtype": dtype,
        "bytes_stored": stored,
        "says": said,
    }


def _said(h5: Hdf5, one: Listed, data: Any) -> dict[str, Any]:
    """What the attributes of a data set say of its values."""
    said: dict[str, Any] = {}
    if not one.shape or not h5py.h5a.get_num_attrs(data.id):
        return said
    for name in _UNITS:
        said |= {"units": text} if (text := h5.plain_text(one.name, name)) else {}
    with contextlib.suppress(AsyncReaderError):  # what is not read
        stored = h5.stored(data.id, one.name)
        meaning = meaning_of(h5, stored, one.name, Request(one.name, physical=True))
        said |= {} if meaning is None else {"meaning": meaning.said}
    if h5py.h5a.exists(data.id, MATLAB_CLASS) and len(one.shape) > 1:
        said["in MATLAB"] = times(one.shape[::-1])
    return said


def _likely(fields: list[Listed]) -> list[Listed]:
    """The data sets that are most likely to be samples; those with a name of labels come last."""
    rows = (one for one in fields if one.shape and one.size and not one.name.startswith("#"))
    may = (one for one in rows if one.served or one.dtype.endswith("variable length"))
    samples = [one for one in may if not says_where(one.name)]
    return sorted(samples, key=lambda one: one.name.rpartition("/")[2] in _LABELS)[:_TRIED]


def _ways(h5: Hdf5, one: Listed) -> Iterator[dict[str, Any]]:
    """Parameters that may open a data set, the plainest first."""
    way: dict[str, Any] = {"data_field": one.name}
    if one.alike:
        pattern, parts = one.alike.split("/"), one.name.split("/")
        depth = 1 + max(number for number, part in enumerate(pattern) if "*" in part)
        inside = "/".join(parts[depth:])
        way = {"episodes": "groups:" + "/".join(pattern[:depth]), "data_field": inside or "."}
        way |= {} if inside else {"window": "episode"}
    if one.dtype == "structured":
        data: Any = h5.reach(one.name)
        with contextlib.suppress(ValueError):
            members = members_of(record_type(data.get_type()))
            numbers = [m.name for m in members if is_number(m.dtype) and not m.shape]
            way |= {"members": numbers} if numbers else {}
    for more in _MORE:
        yield {**way, **more}


def _opened(given: Mapping[str, Any], way: dict[str, Any]) -> list[str]:
    """Open a first sample: ``way`` gets the length or size that it needs. Hints of what else could
    be passed; raises what opening it raises."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # said where it is opened to be used
        with look_into({**given, **way}) as ds:
            most = ds.params.lengths.most
            if most is not None and given.get("max_length") is None:
                way["max_length"] = max(most.values()) if isinstance(most, dict) else most
            if ds.source.spec.axes is not None and ds.source.spec.shape is None:
                way["size"] = list(_SIZE)
            hints = hints_for(ds, [])
        with open_dataset({**given, **way}) as ds:
            assert ds[0] is not None
        return hints
