"""Groups of an HDF5 file as episodes: the data sets of one name in all of them are one field.

Each data set costs a few numbers in memory. Where the rows of a contiguous one lie is known when
the set is open; the chunks of another are looked up when its first row is read."""

from __future__ import annotations

import fnmatch
import glob
import math
import threading
import warnings
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final

import numpy as np

from ...errors import AsyncReaderError, FormatError, ParamsError
from ...pixels.rows import Writer
from ...pixels.specs import SampleSpec
from ...pixels.tables import RowsInMemory
from ...sampling.episodes import Episodes, Windows
from ...system.array_types import Int64
from ...system.late import h5py
from ...system.text import natural, some
from ..base import (
    CACHE_BYTES,
    BaseSource,
    FieldIndex,
    Names,
    OpenField,
    SetFacts,
    Source,
    default_block,
)
from ..bytestore import ByteFile
from ..episodes import episodes_of
from ..fields import SetIndex
from ..hdf5.checks import check_bomb, check_inside, stored_at
from ..hdf5.chunk_cache import ChunkCache
from ..hdf5.chunks import Chunks, ChunkSource, Pieces
from ..hdf5.file import Hdf5, translated
from ..hdf5.filters import check_filters, in_words, remedy
from ..hdf5.listing import list_fields, missing
from ..hdf5.physical import Meaning, meaning_of, physical_field
from ..hdf5.structure import DatasetHeader
from ..request import Request, stored_samples
from .hdf5_data import Hdf5Set, index_data

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
            if not glob.has_magic(part):
                below.append(f"{name}/{part}" if name else part)
                continue
            group = found.h5.reach(name)
            if isinstance(group, h5py.h5g.GroupID):
                inside = (one.decode("utf-8", "surrogateescape") for one in group)
                prefix = f"{name}/" if name else ""
                below.extend(prefix + one for one in inside if fnmatch.fnmatchcase(one, part))
            if len(below) > most:
                raise FormatError(
                    "more groups match than the file has: they lead to each other in circles",
                    found=f"{pattern!r}: more than {len(below):,}",
                    hint="name the groups that hold the episodes: a * for each level of them",
                )
        names = below
    return sorted(names, key=natural)


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
    """Collects the fields of many groups; each of their data sets is opened once. ``look``: gets
    each group, and its name, too."""

    def __init__(
        self, found: Hdf5Set, groups: Sequence[str], look: Callable[[Any, str], None] | None
    ) -> None:
        self._found = found
        self._look = look
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
            raise FormatError(f"{group!r} is not a group")
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
        if self._look is not None:
            self._look(here, group)

    def _missing(self, group: str, name: str, here: Any, number: int) -> Exception:
        if isinstance(here, h5py.h5d.DatasetID):
            return ParamsError(
                f"{group!r} is a dataset, not a group",
                found=f"data_field={name!r}",
                hint=f"where each dataset is one sample or episode: data_field={ITSELF!r}",
            )
        if number:
            return FormatError(f"group {group!r} has no dataset {name!r}")
        listed, _ = list_fields(self._found.h5.members, here)
        error = missing(name, listed, f"{some(len(self._groups), 'episode')}; in {group!r}: ")
        error.what = f"no dataset {name!r} in the episodes of this dataset"
        return error

    def _first(self, column: _Column, name: str, data: Any) -> None:
        """What a field is, by its data set in the first group."""
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
            raise FormatError(f"dataset {name!r} is one number, not rows")
        axis, column.spec = stored_samples(
            tuple(dataset.shape), dtype, column.asked, self._found.path
        )
        column.spec = replace(column.spec, members=column.member)
        if axis != 0:
            raise ParamsError(
                "the rows of an episode are its first axis: num_dim is 1, and sample_axis 0"
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
                raise FormatError(
                    f"dataset {name!r} holds no image files, as that of the first group does"
                )
        elif shape[1:] != column.row or len(shape) == 0 or not kind.equal(column.kind):
            raise FormatError(
                f"dataset {name!r} is of another kind than that of the first group",
                found=f"rows of shape {shape[1:]}, {_dtype(kind)}",
                expected=f"rows of shape {column.row}, {_dtype(column.kind)}",
            )
        elif shape[0] and layout not in (h5py.h5d.CHUNKED, h5py.h5d.CONTIGUOUS):
            raise FormatError(
                f"dataset {name!r} is stored inside its header",
                hint="write it again: h5repack -l CONTI",
            )
        if column.meaning is not None and column.rows:
            own = meaning_of(self._found.h5, self._found.h5.stored(data, name), name, column.asked)
            if own is None or own.said != column.meaning.said:
                raise FormatError(
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
            raise FormatError(f"dataset {name!r} has rows of no bytes")
        if spec.encoded:
            pass  # each is looked at when it is read
        elif header.chunk is not None:
            found = Pieces.of(header.shape, header.chunk, spec.dtype.itemsize)
            pieces = found.number
            if pieces > self._found.file.size:
                raise FormatError(f"dataset {name!r} declares more than the file has")
            column.piece_bytes = max(column.piece_bytes, found.nbytes)
        elif rows:
            if header.address is None:
                raise FormatError(f"dataset {name!r} declares rows but stores none")
            check_inside(self._found.file, header.address, rows * size)
            address = header.address
        else:
            address = 0
        column.rows.append(rows)
        column.pieces.append(pieces)
        column.addresses.append(address)

    # -- what was found --------------------------------------------------------------------

    def index(self, kind: str) -> tuple[SetIndex, Episodes, Int64]:
        """The set of all groups without labels, its episodes, and which groups these are."""
        found, columns = self._found, self._columns
        lengths = np.array([np.frombuffer(one.rows, np.int64) for one in columns])
        episodes, kept = episodes_of(
            {one.name: rows for one, rows in zip(columns, lengths, strict=True)},
            kind,
            self._groups,
        )
        names = episodes.names
        fields = {}
        for column, rows in zip(columns, lengths, strict=True):
            spec = column.spec
            assert spec is not None
            check_bomb(column.piece_bytes, found.file.size, column.name)
            rows = rows[kept]
            places = GroupNames(names, column.stored, np.cumsum(rows))
            members = GroupRows(
                places,
                np.frombuffer(column.addresses, np.int64)[kept],
                np.cumsum(np.frombuffer(column.pieces, np.int64)[kept]),
                column.piece_bytes,
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
        short = tuple(name.rpartition("/")[2] for name in names)
        episodes = replace(episodes, names=short, splits=_read_masks(found, short))
        how = f"{found.layout}, {kind}" if found.layout else kind
        facts = SetFacts.of(found.file, "HDF5", how, int(episodes.ends[-1]))
        rule = Windows(episodes, dict.fromkeys(fields))
        return SetIndex(facts, fields, rule=rule), episodes, kept


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


def _read_masks(found: Hdf5Set, names: Sequence[str]) -> dict[str, Int64]:
    """robomimic's splits: ``mask/<name>`` lists the episodes of a split by name. They are served
    in the order of the set, as its SequenceDataset does."""
    group = found.h5.reach("mask") if "mask" in found.h5.names else None
    if not isinstance(group, h5py.h5g.GroupID):
        return {}
    if group.get_num_objs() > _MASKS:
        raise FormatError("its mask/ has too many splits", expected=_MASKS)
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


# -- the source ------------------------------------------------------------------------------------


#: Chunks whose places are remembered, 24 bytes each: those of the data sets used last.
KNOWN_CHUNKS: Final = 2 << 20

#: The address of a data set that is not contiguous.
CHUNKED: Final = -1
#: Data sets of image files that stay open: each may keep decoded chunks of its own.
_ENCODED_OPEN: Final = 16


@dataclass(frozen=True)
class GroupNames(Names):
    """The names of groups, and of the data set in each: keys for messages. ``ends``: int64, the
    number of rows up to the end of each."""

    groups: tuple[str, ...]
    field: str
    ends: Int64

    def key(self, file: ByteFile, index: int) -> str | None:
        """The data set that a row lies in."""
        number = int(np.searchsorted(self.ends, index, side="right"))
        return f"{self.groups[number]}/{self.field}" if number < len(self.groups) else None


@dataclass(frozen=True, eq=False)
class GroupRows:
    """Rows in the data sets ``names.field`` of ``names.groups``.

    ``addresses``: int64, where the rows of each begin in the file, CHUNKED of one in chunks;
    ``pieces``: int64, the number of pieces (see chunks.py) up to the end of each; ``piece_bytes``:
    of the largest piece.
    """

    names: GroupNames
    addresses: Int64
    pieces: Int64
    piece_bytes: int

    def serve(self, field: OpenField) -> Source:
        """A source that reads them."""
        facts = replace(field.facts, count=int(self.names.ends[-1]))
        return GroupSource(replace(field, facts=facts), self)


class GroupSource(BaseSource):
    """Reads the rows of :class:`GroupRows`. Decoded chunks of all data sets share one cache."""

    def __init__(self, field: OpenField, members: GroupRows) -> None:
        super().__init__(field)
        self._members = members
        self._file = field.own_file
        self._starts = np.concatenate((np.zeros(1, np.int64), members.names.ends[:-1]))
        limit = max(CACHE_BYTES, 2 * members.piece_bytes)
        self.cache = ChunkCache(limit, int(members.pieces[-1]), max(1, members.piece_bytes))
        # re-entrant, since a collected reader is closed by whatever thread collects it
        self._lock = threading.RLock()
        self._library: Hdf5 | None = None
        self._closed = False
        #: open data sets in chunks by number, the one used last at the end
        self._open: dict[int, Source] = {}
        self._known = 0

    @cached_property
    def _in_memory(self) -> tuple[RowsInMemory, ...]:
        """The runs of rows of contiguous data sets."""
        where, size, rows = self.store.address(0), self.spec.row_bytes, self._members
        if where is None or (rows.addresses == CHUNKED).any():
            return ()
        count, sums, owner = self.facts.count, self.checksums, (self.store, self.index)
        ends = rows.names.ends
        return (RowsInMemory(count, where, rows.addresses, 0, size, sums, None, owner, ends),)

    def in_memory(self, size: int) -> tuple[RowsInMemory, ...]:
        return () if self._closed or self.store.address(size) is None else self._in_memory

    def read_into(self, writer: Writer) -> None:
        records = writer.job.records
        which = np.searchsorted(self._members.names.ends, records, side="right")
        at = self._members.addresses[which]
        inside = records - self._starts[which]
        flat = at != CHUNKED
        every = bool(flat.all())
        if every or flat.any():
            offsets = (at + inside * self.spec.row_bytes)[flat]
            if self.store.remote:
                self.store.will_need(offsets, np.full(offsets.size, self.spec.row_bytes))
            writer.bulk(self.store, offsets, None if every else flat)
        if every:
            return
        for number in np.unique(which[~flat]).tolist():
            if writer.stopped:
                break
            places, start = np.flatnonzero(which == number), int(self._starts[number])
            try:
                source = self._source(number)
                part = writer.of_file(source, start, places, inside[places])
                source.read_into(part)
            except AsyncReaderError as exc:
                exc.shift_record(start)
                raise

    def _source(self, number: int) -> Source:
        """The open data set ``number``, which lies in chunks."""
        with self._lock:
            found = self._open.pop(number, None)
            if found is None:
                found = self._opened(number)
                self._known += _chunks(found)
                while self._known > KNOWN_CHUNKS and self._open:
                    oldest = next(iter(self._open))
                    self._known -= _chunks(self._open.pop(oldest))
            self._open[number] = found
            return found

    def _opened(self, number: int) -> Source:
        names = self._members.names
        name = f"{names.groups[number]}/{names.field}"
        rows = int(self._members.names.ends[number] - self._starts[number])
        one = GroupNames(names.groups[number : number + 1], names.field, np.array([rows]))
        index, facts = replace(self.index, names=one), replace(self.facts, count=rows)
        with translated(self._file.path):
            if self._library is None:
                if self._closed:
                    raise FormatError("the file was closed while it was read")
                self._library = Hdf5(self._file)
                self._library.many_objects()
            if self.spec.encoded:
                found = look_up(self._file, self._library, name)
                if found.facts.count != rows or not found.first.spec.encoded:
                    raise FormatError(f"dataset {name!r} does not hold an image file for each row")
                own = replace(found.first, names=one)
                return own.storage.serve(OpenField(facts, own, self._file))
            data = self._library.dataset(name, records=True)
            steps = data.filters
            if not check_filters(steps, name):
                raise FormatError(
                    f"dataset {name!r} has a filter that only the HDF5 library decodes",
                    found=in_words(steps),
                    hint=remedy(steps),
                )
            dtype = data.values_dtype()
            records = None if dtype.names is None else dtype
            grid = data.grid(records)
            row = grid.shape[1:] + (1,) * self.spec.flat
            last = int(self._members.pieces[number])
            first = int(self._members.pieces[number - 1]) if number else 0
            pieces = Pieces.of(grid.shape, grid.chunk, grid.dtype.itemsize)
            same = (
                grid.shape[0] == rows and row == self.spec.shape and pieces.number == last - first
            )
            same = same and pieces.nbytes <= self.cache.chunk_bytes
            if not same or dtype != self.spec.dtype:
                raise FormatError(f"dataset {name!r} is not what it was")
            whole = not self._open and not self._known  # one of them is also compared decoded
            whole = whole and records is None
            data.compare(grid, decoded=whole)
        one_field = OpenField(facts, index, self._file)
        return ChunkSource(one_field, Chunks(grid, 0), (self.cache, first))

    def reserve(self, samples: int) -> None:
        # of chunks that samples are cut over and that make no piece, enough for one of each
        if self.spec.encoded:
            return
        count = -(-samples // max(1, self.index.chunk or 1))
        share = max(self._members.piece_bytes, self.spec.row_bytes * (self.index.chunk or 1))
        self.cache.hold(count, share)

    def release(self) -> None:
        self.cache.release()
        with self._lock:
            opened = list(self._open.values())
        for source in opened:  # of image files each has a cache of its own
            source.release()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._open.clear()
            self.__dict__.pop("_in_memory", None)  # it owns the file
            if self._library is not None:
                self._library.close()
                self._library = None
        super().close()


def _chunks(source: Source) -> int:
    """What a data set that is open counts for among KNOWN_CHUNKS."""
    if isinstance(source, ChunkSource) and not source.spec.encoded:
        return source.chunks
    return KNOWN_CHUNKS // _ENCODED_OPEN
