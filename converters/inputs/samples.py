"""Samples to be packed, by number: what those of folders and packed sets have in common."""

from __future__ import annotations

import copy
from typing import Any, NamedTuple, Protocol, Self

import numpy as np

from asyncreader.errors import SampleError
from asyncreader.formats.packed import DATA, digest
from asyncreader.system.array_types import Int64, UInt64

from ..block import Block
from ..encode import Hold
from ..options import Options
from ..temp_tables import LabelTable, PathOf, gathered


class Splits(NamedTuple):
    """``names`` of splits, and ``rows``: of each sample the number of its name, int64, -1 for
    none."""

    names: tuple[str, ...]
    rows: Int64

    def of(self, numbers: Int64) -> Splits:
        """Those of some samples."""
        return Splits(self.names, self.rows[numbers])

    def present(self) -> Splits | None:
        """Without the names that no sample has; None where that leaves none."""
        numbers = np.unique(self.rows[self.rows >= 0])
        names = tuple(self.names[number] for number in numbers.tolist())
        rows = np.where(self.rows < 0, -1, np.searchsorted(numbers, self.rows))
        return Splits(names, rows) if names else None


class Part(Protocol):
    """Some samples, as they are sent to another machine."""

    def open(self, options: Options) -> Samples:
        """These samples, numbered from 0."""


class Samples:
    """The samples of a source, by number; ``fetch`` is called by many threads.

    What is known of all of them stands in tables. Some of them (see :meth:`of`) are the same source
    with shorter tables, and with ``numbers``: those that the samples have in the source.
    """

    count = 0
    #: Names of the fields that each sample has, the image's first; and how each is stored.
    fields: tuple[str, ...] = (DATA,)
    encodings: tuple[str, ...]
    #: Of images 1 or 3; 0 of rows of numbers.
    channels: int
    #: Samples that a thread takes at a time.
    run = 1
    #: Samples that may be prefetched; 0 where that does not help.
    ahead = 0
    #: None: all of the source.
    numbers: Int64 | None = None
    label_kind = "none"
    labels: LabelTable | None = None
    #: Names of the classes by number; None where the labels have none.
    classes: tuple[str, ...] | None = None
    #: Of the labels of a sample; empty where they have none.
    label_names: tuple[str, ...] = ()
    #: Paths of each field's files; None where they are not known.
    paths: tuple[PathOf | None, ...] = (None,)
    #: The splits of the source; None where it has none.
    splits: Splits | None = None
    #: Of each sample a hash of the group that a CSV puts it in; None where none does.
    groups: UInt64 | None = None
    #: Notes for the user: what may be unexpected in the source.
    notes: tuple[str, ...] = ()
    #: Files that are no candidates, by kind.
    ignored: dict[str, int]
    #: Bad ones found before any was fetched: sort key, name, and why.
    skipped: list[tuple[Any, str, SampleError]]

    def __init__(self) -> None:
        self.ignored = {}
        self.skipped = []

    @property
    def encoding(self) -> str:
        """How the first field is stored."""
        return self.encodings[0]

    def of(self, numbers: Int64) -> Self:
        """The samples ``numbers`` of these, numbered from 0. Close one of both."""
        chosen = copy.copy(self)
        chosen.count = int(numbers.size)
        chosen.numbers = self.in_source(numbers)
        chosen.labels = None if self.labels is None else gathered(self.labels, numbers)
        chosen.splits = None if self.splits is None else self.splits.of(numbers)
        chosen.groups = None if self.groups is None else self.groups[numbers]
        chosen.paths = tuple(renumbered(path, numbers) for path in self.paths)
        return chosen

    def in_source(self, numbers: Int64) -> Int64:
        """The numbers that samples have in the source."""
        return numbers if self.numbers is None else self.numbers[numbers]

    def at(self, number: int) -> int:
        """The number that a sample has in the source."""
        return number if self.numbers is None else int(self.numbers[number])

    @property
    def identity(self) -> str:
        """What identifies these samples, in addition to their paths and labels."""
        chosen = "" if self.numbers is None else digest(self.numbers)
        return f"{self._source_identity()} {chosen}"

    def _source_identity(self) -> str:
        """What identifies the source."""
        raise NotImplementedError

    def fetch(self, number: int, hold: Hold) -> Block:
        """One sample as it is stored. SampleError if it is bad, SourceError to stop packing."""
        raise NotImplementedError

    def sources(self, numbers: Int64) -> str:
        """Digest of the samples' source files now: it differs when a file was changed. Empty where
        ``identity`` has it."""
        return ""

    def name(self, number: int) -> tuple[Any, str]:
        """The key by which skipped samples are sorted, and the sample's name in that list."""
        return number, f"record {number}"

    def where(self, number: int) -> str:
        """A sample's origin, for an error."""
        return self.name(number)[1]

    def will_need(self, number: int) -> bool:
        """Prefetch a sample; False if too much is in flight."""
        return True

    def part(self, numbers: Int64) -> Part | None:
        """Some samples to send to another machine; None where that opens the source itself."""
        return None

    def give_up(self) -> None:
        """Stop fetches in flight: waiting threads get an error. Only close() follows."""

    def close(self) -> None:
        """Close the files."""


def renumbered(path: PathOf | None, numbers: Int64) -> PathOf | None:
    """The paths of some samples, numbered from 0."""
    return None if path is None else lambda number: path(int(numbers[number]))
