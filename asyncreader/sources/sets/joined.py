"""Several files as one set: their samples in sequence, in the order given.

The files are held open, or opened when they are read, with few open at a time. A file that is
opened later is compared with what is known of it. A wrong or missing file is an error with any
``on_error``. combined.py and shards.py make such sets. Digests of their tables are those of one
file of all samples: a set's identity does not depend on how its samples are divided into files.
"""

from __future__ import annotations

import contextlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, Final, Protocol, TypeAlias

import numpy as np
import xxhash

from ...errors import AsyncReaderError, FormatError, SourceError, closed_on_error, located
from ...formats import packed as fmt
from ...pixels.rows import E, Writer
from ...pixels.tables import RowsInMemory
from ...sampling.blocks import files_together
from ...system.array_types import Array, Int64, UInt64
from ...system.late import as_array
from ...system.limits import allow_open_files, open_files
from ...system.signals import after_this, result_of
from ..base import BaseSource, FieldIndex, OpenField, SetFacts, Source
from ..fields import OpenSet, SetIndex
from ..hdf5.chunks import ChunkPatches
from ..inspector import Inspector
from ..labels import PackedSplits, split_rows
from ..request import Request

#: The part of the files that may be out of memory while the set is read as one that is in memory:
#: as much as AdaptiveStore allows of one file's pages.
MOST_NOT_IN_MEMORY: Final = 0.1
#: The hint of an error about a missing or wrong file.
RESTORE: Final = "restore it, or convert the dataset again"


class Files(Protocol):
    """Opens the files of a set by number. Picklable."""

    def path(self, number: int) -> str:
        """The name of a file in messages."""

    def open(self, number: int, fields: Request) -> OpenSet:
        """Open a file, for the fields that are asked for."""

    def close(self) -> None:
        """Close what opening them needs."""


@dataclass(frozen=True, eq=False)
class Joined:
    """Storage in several files in sequence. Record numbers continue from file to file; the
    set's ``facts.ends`` say where each ends.

    ``files`` opens one of them for the field of ``request``, at most ``limit`` at a time, or it is
    all of them, to be held open.
    ``stated``: for each file the digest (uint64) that it must state of a table, None where it must
    have no such table. ``labels``: width and dtype of labels that are read from the files; None
    where the index has them, or the set has none. ``own_numbers``: errors name a record by its
    number in its file, not in the whole set.
    """

    files: Files | tuple[SetIndex, ...]
    stated: Mapping[str, UInt64 | None] = field(default_factory=dict)
    labels: tuple[int, str] | None = None
    limit: int = 0
    own_numbers: bool = False
    request: Request = field(default_factory=Request)
    #: the field's own rows up to the end of each file, where these are not the set's
    ends: Int64 | None = None

    def serve(self, field: OpenField) -> JoinedSource:
        """A source that reads the files."""
        if not isinstance(self.files, tuple):
            return JoinedSource(field.facts, field.index)
        held: list[OpenSet] = []
        with closed_on_error(held):
            held.extend(one.open() for one in self.files)
            return JoinedSource(field.facts, field.index, held)


class JoinedSource(Source):
    """Reads the files of a :class:`Joined`. ``held``: all of them, open already, where they are."""

    def __init__(self, facts: SetFacts, index: FieldIndex, held: Sequence[OpenSet] = ()) -> None:
        joined = index.storage
        assert isinstance(joined, Joined)
        if joined.ends is not None:
            facts = replace(facts, count=int(joined.ends[-1]), ends=joined.ends)
        self.facts = facts
        self.index = index
        self.spec = index.spec
        assert facts.ends is not None
        self._ends = facts.ends
        self._joined = joined
        self._files = None if isinstance(joined.files, tuple) else joined.files
        self._held = tuple(held)
        self._window = 0
        self._in_memory: tuple[RowsInMemory, ...] = ()
        self._all_open: tuple[OpenSet, ...] = ()
        self._not_in_memory = set[int]()
        self._looked_at = 0
        self._closed = False
        self.open_files = OpenFileCache(self._open_one, len(held) or joined.limit, held)
        #: files whose decoded chunks are remembered together
        stored = (one for file in held for one in (file.first, *file.first.parts))
        self._patches = [one for one in stored if isinstance(one, ChunkPatches)]
        if self._patches:
            ChunkPatches.remember(self._patches)
        if joined.labels is not None:
            width, dtype = joined.labels
            native = np.dtype(dtype).newbyteorder("=")
            self.labels = as_array(
                (facts.count, width), native, self._read_labels, self._label_tables
            )
        if self._files is not None and facts.meta is not None and facts.meta.splits:
            rows = as_array((facts.count,), np.int64, self._read_splits)
            self.splits = PackedSplits(facts.meta.splits, rows)

    # -- files -------------------------------------------------------------------------------

    def _open_one(self, number: int) -> OpenSet:
        """File ``number``, opened and compared with what is known of it."""
        assert self._files is not None  # others are open already
        with self._numbering(number):
            file = self._files.open(number, self._joined.request)
        with closed_on_error([file]):
            self.check(file, number)
        if self._window:
            file.reserve(self._share(file.facts.count))
        return file

    @contextlib.contextmanager
    def file(self, number: int) -> Iterator[OpenSet]:
        """File ``number``, open; an error that reading it raises names the record in the set."""
        # _open_one() numbers its errors itself: several threads may get the same one
        with self.open_files.use(number) as file, self._numbering(number):
            yield file

    @contextlib.contextmanager
    def _numbering(self, number: int) -> Iterator[None]:
        try:
            yield
        except AsyncReaderError as exc:
            exc.shift_record(0 if self._joined.own_numbers else self._start(number))
            raise

    def open_each(self) -> None:
        """Open one file after the other, each compared with what is known of it: SourceError."""
        for number in range(self._ends.size):
            with self.open_files.use(number):
                pass

    def check(self, file: OpenSet, number: int) -> None:
        """FormatError unless ``file`` is number ``number`` of those that the set was made of."""
        spec, mine, facts = file.spec, self.spec, file.facts
        digests: Mapping[str, str] = {} if facts.meta is None else facts.meta.digests
        for what, found, expected in (
            ("count", facts.count, int(self._ends[number]) - self._start(number)),
            *(
                (
                    f"digest of {table.rpartition('.')[2]}",
                    digests.get(table),
                    None if of is None else f"{of[number]:016x}",
                )
                for table, of in self._joined.stated.items()
            ),
            ("list of class names", *_beginning(facts.classes, self.facts.classes)),
            ("list of splits", *_beginning(_splits_of(facts), _splits_of(self.facts))),
            ("encoding", spec.encoding, mine.encoding),
            ("channels", spec.image_shape()[2], mine.image_shape()[2]),
            ("dtype", spec.dtype, mine.dtype),
            (
                "list of fields",
                [one.name for one in facts.fields],
                [one.name for one in self.facts.fields],
            ),
            ("shape", None if mine.shape is None else spec.shape, mine.shape),
            ("row of labels", _row(file.labels, self.labels), _row(self.labels, file.labels)),
        ):
            if found != expected:
                raise FormatError(
                    f"a shard is not the one that the manifest lists: its {what} differs",
                    path=facts.path,
                    found=found,
                    expected=expected,
                    hint=f"it belongs to another dataset or was converted again: {RESTORE}",
                )

    def split(self, records: Int64) -> Iterator[tuple[int, Int64, Int64]]:
        """(file, positions in ``records``, record numbers in the file), by file."""
        if not records.size:  # a rank with only padding left
            return
        which = np.searchsorted(self._ends, records, side="right")
        order = np.argsort(which, kind="stable")
        numbers, first = np.unique(which[order], return_index=True)
        for number, positions in zip(numbers.tolist(), np.split(order, first[1:]), strict=True):
            yield number, positions, records[positions] - self._start(number)

    def _start(self, number: int) -> int:
        return int(self._ends[number - 1]) if number else 0

    @contextlib.contextmanager
    def holding(self, record: int) -> Iterator[tuple[BaseSource, int]]:
        number = int(np.searchsorted(self._ends, record, side="right"))
        with self.file(number) as file, file.first.holding(record - self._start(number)) as found:
            yield found

    # -- samples -----------------------------------------------------------------------------

    def read_into(self, writer: Writer) -> None:
        parts = list(self.split(writer.job.records))
        self._prefetch(parts, least=2)
        for number, positions, local in parts:
            with self.file(number) as file:
                file.first.read_into(
                    writer.of_file(file.first, self._start(number), positions, local)
                )

    def located(self, error: E, record: int) -> E:
        number = int(np.searchsorted(self._ends, record, side="right"))
        with self.file(number) as file:
            located = file.first.located(error, record - self._start(number))
        if not self._joined.own_numbers:
            located.index = record
        return located

    def prefetch(self, records: Int64) -> None:
        self._prefetch(list(self.split(records)), least=1)

    def _prefetch(self, parts: list[tuple[int, Int64, Int64]], least: int) -> None:
        """Of a remote set, request the rows of all files before waiting for the first."""
        if self.facts.remote and len(parts) >= least:
            for number, _, local in parts:
                with self.file(number) as file:
                    file.first.prefetch(local)

    # -- the whole set -----------------------------------------------------------------------

    def digests(self) -> Mapping[str, str] | None:
        """Digests of tables that one file of all samples would state; None if asyncreader did not
        pack all of the files, or if one of them is several files."""
        if any(file.facts.ends is not None for file in self._held) or self.index.checked != "all":
            return None
        if len({file.facts.meta and file.facts.meta.label_dtype for file in self._held}) > 1:
            return None
        labels = [fmt.LABELS] * all(file.labels is not None for file in self._held)
        (name,) = self._held[0].names
        digests = WholeDigests([fmt.table_of(name.strip("/"), fmt.CHECKSUMS), *labels])
        for file in self._held:
            digests.add(file)
        return digests.found()

    def in_memory(self, size: int) -> tuple[RowsInMemory, ...]:
        if self._closed:
            return ()
        if not self._in_memory and (self._held or len(self.open_files) == self._ends.size):
            # shards are opened when they are read: as soon as all are open, they stay so
            with self.file(0) as one:
                possible = one.first.in_memory(0)
            if possible:
                self._all_open = self._held or self.open_files.keep_all(self._ends.size)
                rows = [file.first.in_memory(0) for file in self._all_open]
                counts = [sum(one.samples for one in own) for own in rows]
                whole = counts == np.diff(self._ends, prepend=0).tolist()
                self._in_memory = tuple(chain(*rows)) if all(rows) and whole else ()
        if size == 0 or not self._in_memory:
            return self._in_memory
        # one file a call, with the bytes of a whole batch: each is asked for its share of them
        number = self._looked_at = (self._looked_at + 1) % len(self._all_open)
        if self._all_open[number].first.in_memory(size):
            self._not_in_memory.discard(number)
        else:
            self._not_in_memory.add(number)
        few = len(self._not_in_memory) <= len(self._all_open) * MOST_NOT_IN_MEMORY
        return self._in_memory if few else ()

    def _read_labels(self, records: Int64) -> Array:
        """The labels of records, from the files that hold them."""
        assert self.labels is not None
        out: Array = np.empty((records.size, *self.labels.shape[1:]), self.labels.dtype)
        for number, rows, local in self.split(records):
            with self.file(number) as file:
                assert file.labels is not None
                out[rows] = file.labels[local]
        return out

    def _label_tables(self) -> list[Array]:
        """The labels of all files as they are in memory, in sequence; call in_memory() before."""
        assert self.labels is not None
        tables = [file.labels for file in self._all_open]
        dtype = self.labels.dtype
        same = [one for one in tables if isinstance(one, np.ndarray) and one.dtype == dtype]
        return same if len(same) == len(tables) else [self.labels[:]]

    def _read_splits(self, records: Int64) -> Int64:
        """The numbers of the splits of records, of which those of all are read and compared."""
        found, meta = [], self.facts.meta
        for number in range(self._ends.size):
            with self.file(number) as file:
                found.append(split_rows(file.splits, file.facts.count))
        rows = np.concatenate(found)
        if meta is not None and fmt.SPLITS in meta.digests:
            with located(path=self.facts.path):
                fmt.check_digest(fmt.SPLITS, rows, meta)
        return rows[records]

    def reserve(self, samples: int) -> None:
        self._window = samples
        for patches in self._patches[:1]:
            patches.reserve(samples)
        for file in () if self._patches else self._held:
            file.reserve(self._share(file.facts.count))
        if any(
            one.compression is not None
            for one in (self.index, *(f.index.first for f in self._held))
        ):
            # each file in use caches decoded chunks: those of at most two groups of files are kept
            self.open_files.limit = min(self.open_files.limit, 2 * self._together())

    def release(self) -> None:
        self.open_files.release()

    def _together(self) -> int:
        return files_together(self._ends.size, self.facts.count, self._window)

    def _share(self, count: int) -> int:
        """Samples of a window that may come from one file of ``count``, as blocks are mixed."""
        files = self._ends.size
        larger = max(1.0, count * files / self.facts.count)
        return min(count, int(1.25 * self._window * larger / min(self._together(), files)) + 1)

    def close(self) -> None:
        self._closed = True
        self._in_memory = self._all_open = ()
        if self._files is not None:
            self._files.close()
        self.open_files.close()


Names: TypeAlias = tuple[str, ...] | None


def _splits_of(facts: SetFacts) -> Names:
    return () if facts.meta is None else facts.meta.splits or ()


def _row(labels: Array | None, other: Array | None) -> tuple[int, ...]:
    """The shape of a label; () where one of the two has none to compare."""
    return () if labels is None or other is None else labels.shape[1:]


def _beginning(found: Names, names: Names) -> tuple[Names, Names]:
    """``found`` and what it is compared with: names that were added to a set go behind those that
    its first files have."""
    return found, names if found is None or names is None else names[: len(found)]


# -- the identity of the whole ---------------------------------------------------------------------


class WholeDigests:
    """Computed file by file. ``tables``: ``checksums``, ``labels``, ``mask.checksums``;
    labels go with the first field."""

    def __init__(self, tables: Iterable[str]) -> None:
        self._states = {name: xxhash.xxh3_64() for name in tables}

    def add(self, file: OpenSet) -> None:
        """Go on with the next file."""
        parts = {name.strip("/"): part for name, part in zip(file.names, file.parts, strict=True)}
        for name, state in self._states.items():
            rows: Any
            if name == fmt.LABELS:
                rows = file.labels
            elif name == fmt.SPLITS:
                rows = split_rows(file.splits, file.facts.count)
            else:
                part = parts[name.rpartition(".")[0] or fmt.DATA]
                rows = Inspector(part).checksums(0, file.facts.count)
            assert rows is not None
            state.update(np.ascontiguousarray(rows).reshape(-1).view(np.uint8).data)

    def found(self) -> dict[str, str]:
        """The digests, of all files that were added; 16 hex digits each."""
        return {name: state.hexdigest() for name, state in self._states.items()}


# -- files that are open ---------------------------------------------------------------------------


#: Open files: at least and at most so many; in between, a quarter of the process's descriptors. An
#: open shard takes 6 kB of memory.
LEAST_OPEN: Final = 32
MOST_OPEN: Final = 4096
_PART: Final = 4


def open_limit() -> int:
    """How many files a set keeps open."""
    most = open_files()
    allowed = MOST_OPEN if most is None else most // _PART
    return max(LEAST_OPEN, min(MOST_OPEN, allowed))


def allow_open(files: int) -> None:
    """Raise this process's limit of open files where it would not let a set keep ``files`` open."""
    allow_open_files(_PART * files)


class _Entry:
    """A file that is open, or being opened by the thread that asked first."""

    __slots__ = ("source", "users")

    def __init__(self) -> None:
        self.source: Future[OpenSet] = Future()
        self.users = 0


class OpenFileCache:
    """Open files by number, opened by ``open_one`` and shared by threads. ``held``: all of them,
    open already. They stay open; beyond ``limit`` they release decoded chunks instead.

    At most ``limit`` are open, or more if more are in use: a source that a thread is reading is not
    closed. Two threads that need the same source open it once. If opening fails, all threads that
    wait for it get the error, and the next use tries again. The lock is re-entrant, since a
    collected reader is closed by whatever thread collects it, which may be in here.
    """

    def __init__(
        self, open_one: Callable[[int], OpenSet], limit: int, held: Sequence[OpenSet] = ()
    ) -> None:
        self.limit = limit
        self._open_one = held.__getitem__ if held else open_one
        self._held = held
        self._entries: OrderedDict[int, _Entry] = OrderedDict()
        self._lock = threading.RLock()
        self._closed = False
        self._keeps_all = False

    def __len__(self) -> int:
        return len(self._entries)

    @contextlib.contextmanager
    def use(self, number: int) -> Iterator[OpenSet]:
        """The source, open for as long as the context lasts."""
        entry: _Entry | None = None
        first = False
        try:
            with after_this():  # nothing comes between counting a user and knowing it
                entry, first = self._take(number)
            if first:
                self._fill(number, entry)
                first = False
            yield result_of(entry.source)
        finally:
            if entry is not None:
                with after_this():
                    if first:  # Ctrl-C: nobody waits for it for ever
                        self._failed(number, entry, SourceError("opening a file was interrupted"))
                    self._give(entry)

    def keep_all(self, count: int) -> tuple[OpenSet, ...]:
        """All of ``count`` sources, if they are open and as many may be: they stay open until
        close(). Else nothing."""
        with self._lock:
            entries = [entry for _, entry in sorted(self._entries.items())]
            whole = len(entries) == count <= self.limit and not self._closed
            self._keeps_all = whole and all(entry.source.done() for entry in entries)
        return tuple(result_of(entry.source) for entry in entries if self._keeps_all)

    def _take(self, number: int) -> tuple[_Entry, bool]:
        with self._lock:
            if self._closed:
                raise SourceError("the dataset is closed")
            entry = self._entries.get(number)
            first = entry is None
            if entry is None:
                entry = self._entries[number] = _Entry()
            else:
                self._entries.move_to_end(number)
            entry.users += 1
            unused = self._over_limit(self.limit)
        self._drop(unused)
        return entry, first

    def _fill(self, number: int, entry: _Entry) -> None:
        try:
            source = self._open_one(number)
            with after_this():
                entry.source.set_result(source)
        except Exception as exc:
            with after_this():
                self._failed(number, entry, exc)

    def _failed(self, number: int, entry: _Entry, error: BaseException) -> None:
        """Give the threads that wait for a source the error, unless it is open."""
        if not entry.source.done():
            with self._lock:
                self._entries.pop(number, None)
            entry.source.set_exception(error)

    def _give(self, entry: _Entry) -> None:
        with self._lock:
            entry.users -= 1
            unused = self._over_limit(0 if self._closed else self.limit)
        self._drop(unused)

    def _over_limit(self, limit: int) -> list[_Entry]:
        """Remove and return the entries to drop; under the lock."""
        over = len(self._entries) - limit
        if over <= 0 or (self._keeps_all and not self._closed):
            return []
        idle = (number for number, entry in self._entries.items() if not entry.users)
        chosen = [number for number, _ in zip(idle, range(over), strict=False)]
        return [self._entries.pop(number) for number in chosen]

    def _drop(self, entries: list[_Entry]) -> None:
        """Close sources that are no longer used, or release those that are held open."""
        for entry in entries:
            if entry.source.exception() is None:
                source = result_of(entry.source)
                if self._held and not self._closed:
                    source.release()
                else:
                    source.close()

    def release(self) -> None:
        """Drop the sources that no thread uses: they are not needed soon."""
        with self._lock:
            unused = self._over_limit(0)
        self._drop(unused)

    def close(self) -> None:
        """Close the unused sources now, and the others when their last user is done."""
        with self._lock:
            self._closed = True
            released = [one for number, one in enumerate(self._held) if number not in self._entries]
            unused = self._over_limit(0)
        for source in released:
            source.close()
        self._drop(unused)
