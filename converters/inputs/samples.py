"""Samples to be packed, by number: what those of all sources have in common, and their splits.

Which split a sample goes to, and which samples are drawn, says a hash of its path or its group:
XXH3-64 of their bytes. A split has the hashes up to its share of 2^64, behind those of the splits
before it. So where a sample goes follows from its path alone: it stays there when samples are
added, in another container and on another machine.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple, Self

import numpy as np
from xxhash import xxh3_64_intdigest

from asyncreader.errors import ParamsError, SampleError
from asyncreader.formats.packed import DATA, digest
from asyncreader.sources.labels import split_counts, split_rows
from asyncreader.system.array_types import Array, Float64, Int64, UInt64

from ..encode import Block, Hold
from ..options import Options
from ..temp_tables import PathOf, gathered

#: Samples that one thread takes at a time where each is only read and checked.
RUN: Final = 16


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
    #: Labels (N, L), int64 or float64: an array, or what reads its rows when they are asked for.
    labels: Array | None = None
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
        chosen.paths = tuple(paths_of(path, numbers) for path in self.paths)
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

    def part(self, numbers: Int64) -> Samples | None:
        """Some samples as they are sent to another machine; None where that opens the source
        itself."""
        return None

    def give_up(self) -> None:
        """Stop fetches in flight: waiting threads get an error. Only close() follows."""

    def close(self) -> None:
        """Close the files."""


def paths_of(path: PathOf | None, numbers: Int64) -> PathOf | None:
    """The paths of some samples, numbered from 0."""
    return None if path is None else lambda number: path(int(numbers[number]))


# -- splits ----------------------------------------------------------------------------------------


#: The seed of the hash that draws a sample: what is drawn does not follow from what it is split by.
_DRAW: Final = 1


#: Letters of the names of all splits, which stand in a description of at most 64 KiB (HDF5).
MOST_NAMES: Final = 10_000

#: What is said of a set with a sample that is in several splits: of each, a file has one.
SHARED: Final = "the splits of the source share samples, so they are left out"


def check_split_names(names: tuple[str, ...]) -> None:
    """ParamsError where a file cannot have all of these splits."""
    if len("".join(names)) > MOST_NAMES:
        raise ParamsError(
            "too many splits, or too long names of them",
            found=f"{len(names):,}, such as {names[0][:80]!r}",
            expected=f"names of {MOST_NAMES:,} letters together",
        )


def kept_splits(splits: Mapping[str, slice | Int64], count: int) -> Splits | None:
    """The splits of a set of ``count`` samples as a table; None where they share samples."""
    rows = split_rows(splits, count)
    samples = sum(split_counts(splits, count).values())
    return None if samples > np.count_nonzero(rows >= 0) else Splits(tuple(splits), rows)


def shared_out(options: Options, samples: Samples) -> Splits:
    """The splits of ``samples`` by the shares in ``options``. ParamsError for samples without
    paths, or a group that a path does not have."""
    names, shares = zip(*options.split, strict=True)
    keys = samples.groups
    if keys is None:
        group = None if options.group_by is None else _group_of(options.group_by, samples)
        keys = _hashes(samples, "split", group=group)
    ends = np.cumsum(shares)
    if not options.stratify:
        # shares that add up to a little more than 1 end at the last hash
        bounds = [min(round(end * 2**64), 2**64 - 1) for end in ends[:-1].tolist()]
        return Splits(
            names, np.searchsorted(np.array(bounds, np.uint64), keys, side="right").astype(np.int64)
        )
    classes = _classes(samples)
    if options.group_by is None:
        place, sizes = _places(classes, keys)
        # of n samples of a class the first round(n * end) lie before an end
        rows = (place[:, None] >= np.rint(sizes[:, None] * ends[:-1])).sum(axis=1)
        return Splits(names, rows.astype(np.int64))
    return Splits(names, _by_groups(keys, classes, np.array(shares)))


def drawn(options: Options, samples: Samples) -> Int64:
    """The numbers of ``options.sample`` of the samples, ascending."""
    count = options.sample or 0
    if count > samples.count:
        raise ParamsError(
            "sample is larger than the dataset",
            path=options.src,
            found=f"{count:,} of {samples.count:,} samples",
        )
    keys = _hashes(samples, None, seed=_DRAW)
    if not options.stratify:
        return np.sort(np.argsort(keys, kind="stable")[:count])
    place, sizes = _places(_classes(samples), keys)
    # each class has floor(n * share) samples; those left over go to the largest rests
    share = count / samples.count
    order = np.lexsort((keys, -((sizes * share) % 1), place >= np.floor(sizes * share)))
    sure = int((place < np.floor(sizes * share)).sum())
    next_ones = order[sure:][place[order[sure:]] == np.floor(sizes[order[sure:]] * share)]
    return np.sort(np.concatenate((order[:sure], next_ones[: count - sure])))


def _hashes(
    samples: Samples,
    needed_by: str | None,
    *,
    group: Callable[[bytes], bytes] | None = None,
    seed: int = 0,
) -> UInt64:
    """The hash of each sample's path; of its number where paths are not known, or ParamsError if an
    option needs them."""
    path = samples.paths[0]
    texts: Iterable[bytes]
    if path is not None:
        texts = map(path, range(samples.count))
        texts = texts if group is None else map(group, texts)
    elif needed_by is None:
        texts = (b"%d" % number for number in range(samples.count))
    else:
        raise ParamsError(
            f"{needed_by} goes by the paths of the images, and this dataset has none",
            hint="convert the images themselves, give Writer the path of each sample, or select a "
            "slice (--select 0:1000)",
        )
    hashes = (xxh3_64_intdigest(text, seed) for text in texts)
    return np.fromiter(hashes, np.uint64, samples.count)


def _group_of(pattern: str, samples: Samples) -> Callable[[bytes], bytes]:
    """From a path to the group in it."""
    try:
        compiled = re.compile(pattern.encode("utf-8", "surrogateescape"))
    except re.error as exc:
        raise ParamsError(
            "group_by is no column of a labels CSV and no regular expression",
            found=repr(pattern),
            hint=str(exc),
        ) from exc

    def group(path: bytes) -> bytes:
        found = compiled.search(path)
        if found is None or (compiled.groups and found[1] is None):
            raise ParamsError(
                "group_by is not found in a path",
                found=repr(path.decode("utf-8", "backslashreplace")),
                expected=f"a path in which {pattern!r} is found, or the name of a column of the "
                "labels CSV",
            )
        return found[1] if compiled.groups else found[0]

    return group


def _classes(samples: Samples) -> Int64:
    """The class of each sample; ParamsError where they have none."""
    labels = samples.labels
    if labels is None or np.dtype(labels.dtype).kind != "i" or labels.shape[1] != 1:
        raise ParamsError(
            "stratify needs one class for each sample",
            found="no labels" if labels is None else f"labels {labels.shape}, {labels.dtype}",
        )
    return labels[:][:, 0]


def _places(classes: Int64, keys: UInt64) -> tuple[Int64, Int64]:
    """The place of each sample among those of its class, by its hash; and how many these are."""
    order = np.lexsort((keys, classes))
    _, starts, own, sizes = np.unique(
        classes[order], return_index=True, return_inverse=True, return_counts=True
    )
    place, size = np.empty_like(classes), np.empty_like(classes)
    place[order], size[order] = np.arange(order.size) - starts[own], sizes[own]
    return place, size


def _by_groups(keys: UInt64, classes: Int64, shares: Float64) -> Int64:
    """The split of each sample: whole groups, the largest first, each to the split that lacks most
    of its classes."""
    _, group = np.unique(keys, return_inverse=True)
    _, own = np.unique(classes, return_inverse=True)
    lacking = shares[:, None] * np.bincount(own)
    order = np.argsort(group, kind="stable")
    members = np.split(order, np.flatnonzero(np.diff(group[order])) + 1)
    rows = np.empty_like(classes)
    for one in sorted(members, key=lambda one: (-one.size, int(keys[one[0]]))):
        kinds, counts = np.unique(own[one], return_counts=True)
        best = int(np.argmax(lacking[:, kinds] @ counts))
        lacking[best, kinds] -= counts
        rows[one] = best
    return rows
