"""Groups of an HDF5 file as episodes: the data sets of one name in all of them are one field."""

from __future__ import annotations

import fnmatch
import math
import warnings
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np

from ...errors import ParamsError
from ...pixels.specs import SampleSpec
from ...sampling.episodes import Windows
from ...system.array_types import Int64
from ...system.late import h5py
from ...system.text import natural, some
from ..base import FieldIndex, SetFacts, default_block
from ..bytestore import ByteFile
from ..episodes import episodes_of
from ..fields import SetIndex
from ..hdf5.checks import check_bomb, check_inside, stored_at
from ..hdf5.chunks import Pieces
from ..hdf5.file import Hdf5
from ..hdf5.filters import in_words
from ..hdf5.groups import CHUNKED, GroupNames, GroupRows
from ..hdf5.listing import list_fields, missing
from ..hdf5.physical import Meaning, meaning_of, physical_field
from ..hdf5.structure import DatasetHeader
from ..request import Request, stored_samples
from .hdf5_data import index_data
from .hdf5_set import EpisodeValues, Hdf5Set

#: Bytes that a name in a group takes of a file at least: where there are more names than that,
#: groups lead to each other in circles.
_NAME_BYTES: Final = 16
#: The field of an episode that is one data set, not a group of them.
ITSELF: Final = "."
#: Splits that are read.
_MASKS: Final = 4096
#: About what an image file takes.
_ENCODED_BYTES: Final = 64 << 10


def matching_groups(found: Hdf5Set, pattern: str) -> list[str]:
    """The names of the groups that match, in the order of the number in the last part of the name,
    where there is one, and else by name."""
    names, most = [""], found.file.size // _NAME_BYTES
    for part in filter(None, pattern.split("/")):
        below: list[str] = []
        for name in names:
            if not _is_pattern(part):
                below.append(f"{name}/{part}" if name else part)
                continue
            group = found.h5.reach(name)
            if isinstance(group, h5py.h5g.GroupID):
                inside = (one.decode("utf-8", "surrogateescape") for one in group)
                prefix = f"{name}/" if name else ""
                below.extend(prefix + one for one in inside if fnmatch.fnmatchcase(one, part))
            if len(below) > most:
                raise found.refuse(
                    "more groups match than the file has: they lead to each other in circles",
                    found=f"{pattern!r}: more than {len(below):,}",
                    hint="name the groups that hold the episodes: a * for each level of them",
                )
        names = below
    return sorted(names, key=natural)


def _is_pattern(part: str) -> bool:
    return any(letter in part for letter in "*?[")


@dataclass
class _Column:
    """One field of all groups, as it is collected group by group. ``name``: in the open set;
    ``data``: as it is asked for; ``stored``: the name of its data sets; ``member``: of structured
    rows, the one that is the field."""

    name: str
    data: str
    #: what is asked of it, as soon as the first group was looked at
    asked: Request
    stored: str = ""
    member: str | None = None
    kind: Any = None
    spec: SampleSpec | None = None
    row: tuple[int, ...] = ()
    chunk: int | None = None
    compression: str | None = None
    rows: array[int] = field(default_factory=lambda: array("q"))
    addresses: array[int] = field(default_factory=lambda: array("q"))
    pieces: array[int] = field(default_factory=lambda: array("q"))
    piece_bytes: int = 0
    #: header of the first data set, if it says what h5py says
    header: DatasetHeader | None = None
    #: what its numbers mean, where their values are served
    meaning: Meaning | None = None


class GroupScan:
    """Collects the fields of many groups; each of their data sets is opened once."""

    def __init__(
        self, found: Hdf5Set, groups: Sequence[str], labels: EpisodeValues | None = None
    ) -> None:
        self._found = found
        self._labels = labels
        self._groups = groups
        #: the group that the one before was in, by name
        self._inside: tuple[str | None, object | None] = None, None
        asked = found.fields
        names = {asked.own_name: asked.data, **(asked.others or {})}
        self._columns = [_Column(name, data, asked) for name, data in names.items()]
        found.h5.many_objects()  # not before all names were read, in any order
        for number, group in enumerate(groups):
            self._add(group, number)

    def _add(self, group: str, number: int) -> None:
        h5 = self._found.h5
        inside, _, last = group.rpartition("/")
        if inside != self._inside[0]:
            self._inside = inside, h5.reach(inside)
        here = None if self._inside[1] is None else h5.reach(last, self._inside[1])
        if not isinstance(here, h5py.h5g.GroupID | h5py.h5d.DatasetID):
            raise self._found.refuse(f"{group!r} is not a group")
        below: dict[str, Any] = {"": here}
        for column in self._columns:
            if number == 0:
                column.stored, column.member = h5.member_of(column.data, here)
            prefix, _, part = column.stored.rpartition("/")
            if prefix not in below:
                below[prefix] = h5.reach(prefix, here)
            name, parent = f"{group}/{column.stored}", below[prefix]
            if column.stored == ITSELF:
                parent, part = self._inside[1], last
            within = isinstance(parent, h5py.h5g.GroupID)
            if within and column.header is not None:
                header = h5.header(part, parent)
                if header is not None and header.like(column.header):
                    self._append(column, name, header)
                    continue
            data = h5.reach(part, parent) if within else None
            if not isinstance(data, h5py.h5d.DatasetID):
                raise self._missing(group, column.stored, here, number)
            if number == 0:
                self._first(column, name, data)
            self._note(column, name, data)
            if number == 0 and column.meaning is None:
                column.header = _as_the_library(h5.header(part, parent), data)
        if self._labels is not None:
            self._labels.add(here, group)

    def _missing(self, group: str, name: str, here: Any, number: int) -> Exception:
        path = self._found.path
        if isinstance(here, h5py.h5d.DatasetID):
            return ParamsError(
                f"{group!r} is a dataset, not a group",
                path=path,
                found=f"data_field={name!r}",
                hint=f"where each dataset is one sample or episode: data_field={ITSELF!r}",
            )
        if number:
            return self._found.refuse(f"group {group!r} has no dataset {name!r}")
        listed, _ = list_fields(self._found.h5.members, here)
        error = missing(name, listed, path, f"{some(len(self._groups), 'episode')}; in {group!r}: ")
        error.what = f"no dataset {name!r} in the episodes of this dataset"
        return error

    def _first(self, column: _Column, name: str, data: Any) -> None:
        """What a field is, by its data set in the first group."""
        path = self._found.path
        dataset = self._found.h5.stored(data, name, records=True)
        dataset.check_samples()
        first = self._columns[0].spec
        if first is not None:
            column.asked = column.asked.other(column.name, column.data, first)
        column.meaning = meaning_of(self._found.h5, dataset, name, column.asked)
        if dataset.ndim and dataset.shape[0] and _may_be_encoded(data):
            index = look_up(self._found.file, self._found.h5, name)
            if index.first.spec.encoded:
                column.spec, column.compression = index.first.spec, index.first.compression
                return
        dtype = dataset.values_dtype()
        if dataset.ndim == 0:
            raise self._found.refuse(f"dataset {name!r} is one number, not rows")
        axis, column.spec = stored_samples(tuple(dataset.shape), dtype, column.asked, path)
        column.spec = replace(column.spec, members=column.member)
        if axis != 0:
            raise ParamsError(
                "the rows of an episode are its first axis: num_dim is 1, and sample_axis 0",
                path=path,
            )
        column.kind, column.row = data.get_type(), tuple(dataset.shape[1:])
        column.chunk = None if dataset.chunks is None else dataset.chunks[0]
        column.compression = in_words(dataset.filters) or None

    def _note(self, column: _Column, name: str, data: Any) -> None:
        """Where the rows of one data set lie, as h5py says. It must be like the first one."""
        plist = data.get_create_plist()
        layout, external = plist.get_layout(), plist.get_external_count()
        if layout == h5py.h5d.VIRTUAL or external:
            self._found.h5.stored(data, name)  # which says what is wrong
        kind, shape = data.get_type(), data.shape
        assert column.spec is not None
        if column.spec.encoded:
            if not _may_be_encoded(data):
                raise self._found.refuse(
                    f"dataset {name!r} holds no image files, as that of the first group does"
                )
        elif shape[1:] != column.row or len(shape) == 0 or not kind.equal(column.kind):
            raise self._found.refuse(
                f"dataset {name!r} is of another kind than that of the first group",
                found=f"rows of shape {shape[1:]}, {_dtype(kind)}",
                expected=f"rows of shape {column.row}, {_dtype(column.kind)}",
            )
        elif shape[0] and layout not in (h5py.h5d.CHUNKED, h5py.h5d.CONTIGUOUS):
            raise self._found.refuse(
                f"dataset {name!r} is stored inside its header",
                hint="write it again: h5repack -l CONTI",
            )
        if column.meaning is not None and column.rows:
            own = meaning_of(self._found.h5, self._found.h5.stored(data, name), name, column.asked)
            if own is None or own.said != column.meaning.said:
                raise self._found.refuse(
                    f"numbers of {name!r} mean other values than those of the first group",
                    found="no attributes" if own is None else own.said,
                    expected=column.meaning.said,
                )
        chunk = plist.get_chunk() if layout == h5py.h5d.CHUNKED else None
        self._append(column, name, DatasetHeader(shape, b"", b"", chunk, stored_at(data)))

    def _append(self, column: _Column, name: str, header: DatasetHeader) -> None:
        """Note rows that are like those of the first data set."""
        spec = column.spec
        assert spec is not None
        address, pieces, rows = CHUNKED, 0, header.shape[0]
        size = math.prod(column.row) * spec.dtype.itemsize
        if rows and not size and not spec.encoded:
            raise self._found.refuse(f"dataset {name!r} has rows of no bytes")
        if spec.encoded:
            pass  # each is looked at when it is read
        elif header.chunk is not None:
            found = Pieces.of(header.shape, header.chunk, spec.dtype.itemsize)
            pieces = found.number
            if pieces > self._found.file.size:
                raise self._found.refuse(f"dataset {name!r} declares more than the file has")
            column.piece_bytes = max(column.piece_bytes, found.nbytes)
        elif rows:
            if header.address is None:
                raise self._found.refuse(f"dataset {name!r} declares rows but stores none")
            check_inside(self._found.file, header.address, rows * size)
            address = header.address
        else:
            address = 0
        column.rows.append(rows)
        column.pieces.append(pieces)
        column.addresses.append(address)

    # -- what was found --------------------------------------------------------------------

    def index(self, kind: str, splits: Callable[[Sequence[str]], Mapping[str, Int64]]) -> SetIndex:
        """The set of all groups. ``splits``: those of the episodes with such names."""
        found, columns = self._found, self._columns
        lengths = np.array([np.frombuffer(one.rows, np.int64) for one in columns])
        episodes, kept = episodes_of(
            {one.name: rows for one, rows in zip(columns, lengths, strict=True)},
            kind,
            found.path,
            self._groups,
        )
        names = episodes.names
        fields = {}
        for column, rows in zip(columns, lengths, strict=True):
            spec = column.spec
            assert spec is not None
            check_bomb(column.piece_bytes, found.file.size, column.name, found.path)
            rows = rows[kept]
            places = GroupNames(names, column.stored, np.cumsum(rows))
            members = GroupRows(
                places,
                np.frombuffer(column.addresses, np.int64)[kept],
                places.ends,
                np.cumsum(np.frombuffer(column.pieces, np.int64)[kept]),
                column.piece_bytes,
                look_up,
            )
            size = _ENCODED_BYTES if spec.encoded else spec.row_bytes
            block = column.chunk or default_block(size)
            one = FieldIndex(
                spec,
                members,
                found.file.where,
                names=places,
                block=block,
                chunk=column.chunk,
                compression=column.compression,
            )
            if column.meaning is not None:
                one = physical_field(one, column.meaning, column.asked)
            fields[column.name] = one
        labels, classes = None, None
        if self._labels is not None:
            labels, classes = self._labels.made(kept, episodes)
        short = tuple(name.rpartition("/")[2] for name in names)
        episodes = replace(episodes, names=short, splits=splits(short))
        how = f"{found.layout}, {kind}" if found.layout else kind
        facts = SetFacts.of(found.file, "HDF5", how, int(episodes.ends[-1]), classes=classes)
        rule = Windows(episodes, dict.fromkeys(fields))
        return SetIndex(facts, fields, labels, rule=rule)


def _as_the_library(header: DatasetHeader | None, data: Any) -> DatasetHeader | None:
    """The header of a data set, if h5py says the same of it."""
    if header is None or header.shape != data.shape or header.address != stored_at(data):
        return None
    chunked = header.chunk is not None
    return header if not chunked or header.chunk == data.get_create_plist().get_chunk() else None


def _may_be_encoded(data: Any) -> bool:
    """Whether a data set may hold an image file in each row: bytes of variable length, or rows of
    bytes."""
    t, kind, axes = h5py.h5t, data.get_type(), len(data.shape)
    ragged = kind.get_class() == t.VLEN
    base = kind.get_super() if ragged else kind
    if axes != (1 if ragged else 2) or base.get_class() != t.INTEGER or base.get_size() != 1:
        return False
    return ragged or bool(base.get_sign() == t.SGN_NONE)  # rows of int8 are numbers


def look_up(file: ByteFile, h5: Hdf5, name: str) -> SetIndex:
    """The samples of one data set of an open file."""
    return index_data(Hdf5Set(file, h5, Request(name, labels=None, physical=True)))


def _dtype(kind: Any) -> str:
    try:
        return str(kind.dtype)
    except (TypeError, ValueError):
        return f"type class {kind.get_class()}"


def read_masks(found: Hdf5Set, names: Sequence[str]) -> dict[str, Int64]:
    """robomimic's splits: ``mask/<name>`` lists the episodes of a split by name. They are served
    in the order of the set, as its SequenceDataset does."""
    group = found.h5.reach("mask") if "mask" in found.h5.names else None
    if not isinstance(group, h5py.h5g.GroupID):
        return {}
    if group.get_num_objs() > _MASKS:
        raise found.refuse("its mask/ has too many splits", expected=_MASKS)
    numbers = {name: i for i, name in enumerate(names)}
    splits = {}
    for key in group:
        name = key.decode("utf-8", "surrogateescape")
        if found.file.store.remote and found.dataset(f"mask/{name}").dtype.kind == "O":
            warnings.warn(
                f"{found.path}: split {name!r} is left out: its text is of variable length, which "
                "is not read from a store",
                stacklevel=2,
            )
            continue
        texts = found.dataset(f"mask/{name}").texts()
        listed = [text.decode("utf-8", "surrogateescape") for text in texts or ()]
        # an empty episode is left out, and so is its name
        chosen = [numbers[one] for one in listed if one in numbers]
        if chosen:
            splits[name] = np.sort(np.array(chosen, np.int64))
    return splits
