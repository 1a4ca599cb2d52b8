"""Samples to be packed, by number: of a folder (folder.py), a packed set (packed.py)."""

from __future__ import annotations

from functools import cached_property
from typing import Any, NamedTuple, Protocol

import numpy as np

from asyncreader.errors import SampleError
from asyncreader.formats.packed import DATA
from asyncreader.system.array_types import Array, Int64, UInt64

from ..encode import Hold, Sample, field_encoding
from ..options import Options
from ..temp_tables import PathOf


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
    """The samples of a source, by number; ``fetch`` is called by many threads."""

    count: int
    encoding: str
    #: Of images 1 or 3; 0 of rows of numbers.
    channels: int
    label_kind: str
    #: Samples that a thread takes at a time.
    run = 1
    #: Samples that may be prefetched; 0 where that does not help.
    ahead = 0
    #: Names of the fields that each sample has, the picture's first.
    fields: tuple[str, ...] = (DATA,)
    #: Paths of each field's files; None where they are not known.
    paths: tuple[PathOf | None, ...] = (None,)
    #: Of the labels of a sample; empty where they have none.
    label_names: tuple[str, ...] = ()
    #: The splits of the source; None where it has none.
    splits: Splits | None = None
    #: Of each sample a hash of the group that a CSV puts it in; None where none does.
    groups: UInt64 | None = None
    #: Files that are no candidates, by kind.
    ignored: dict[str, int]
    #: Notes for the user: what may be unexpected in the source.
    notes: tuple[str, ...]
    #: Bad ones found before any was fetched: sort key, name, and why.
    skipped: list[tuple[Any, str, SampleError]]

    _classes: tuple[str, ...] | None = None

    def __init__(self) -> None:
        self.ignored = {}
        self.skipped = []

    @cached_property
    def encodings(self) -> tuple[str, ...]:
        """How each field is stored."""
        return self.encoding, *[field_encoding(self.encoding)] * (len(self.fields) - 1)

    @property
    def classes(self) -> tuple[str, ...] | None:
        """Class names by number; complete when all samples were fetched."""
        return self._classes

    @property
    def identity(self) -> str:
        """What identifies this source, in addition to its paths and labels."""
        raise NotImplementedError

    def fetch(self, number: int, hold: Hold) -> Sample:
        """One sample as it is stored. SampleError if it is bad, SourceError to stop packing."""
        raise NotImplementedError

    def label_rows(self, numbers: Int64) -> Array | None:
        """Labels of samples: (n, L) int64 or float64; None without labels."""
        raise NotImplementedError

    def label_table(self) -> Array | None:
        """Those of all samples in their order; None where they must be asked for by number."""
        return None

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


class View(Samples):
    """Some of the samples of ``samples``, those of ``numbers`` (int64), numbered from 0."""

    def __init__(self, samples: Samples, numbers: Int64) -> None:
        super().__init__()
        self._samples = samples
        self._numbers = numbers
        self.count = int(numbers.size)
        self.encoding, self.channels = samples.encoding, samples.channels
        self.label_kind, self.label_names = samples.label_kind, samples.label_names
        self.run = samples.run
        self.fields, self.ahead = samples.fields, samples.ahead
        self.paths = tuple(map(self._of_all, samples.paths))
        self.splits = None if samples.splits is None else samples.splits.of(numbers)
        self.groups = None if samples.groups is None else samples.groups[numbers]
        self.encodings = samples.encodings

    @property
    def classes(self) -> tuple[str, ...] | None:
        return self._samples.classes

    def _of_all(self, path: PathOf | None) -> PathOf | None:
        return None if path is None else lambda number: path(int(self._numbers[number]))

    def will_need(self, number: int) -> bool:
        return self._samples.will_need(int(self._numbers[number]))

    def fetch(self, number: int, hold: Hold) -> Sample:
        return self._samples.fetch(int(self._numbers[number]), hold)

    def where(self, number: int) -> str:
        return self._samples.where(int(self._numbers[number]))

    def label_rows(self, numbers: Int64) -> Array | None:
        return self._samples.label_rows(self._numbers[numbers])

    def sources(self, numbers: Int64) -> str:
        return self._samples.sources(self._numbers[numbers])

    def give_up(self) -> None:
        self._samples.give_up()
