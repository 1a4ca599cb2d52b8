"""What is packed: a folder's pictures, or the samples of a packed set."""

from __future__ import annotations

from typing import Any, Protocol

from asyncreader.array_types import Array, Int64
from asyncreader.errors import ParamsError, SampleError

from ..encode import Hold, Sample
from ..options import Options
from ..temp_tables import PathOf
from .folder import FolderPart, FolderSamples
from .packed import PackedSamples, may_be_packed


class FileSamples(Protocol):
    """Samples of one file to be packed, by number; ``fetch`` is called by many threads."""

    count: int
    encoding: str
    channels: int
    label_kind: str
    #: Samples a thread takes at a time.
    run: int
    #: Names of the fields that each sample has, the picture's first.
    fields: tuple[str, ...]
    #: Paths of each field's files; None where they are not known.
    paths: tuple[PathOf | None, ...]
    #: Samples that may be prefetched; 0 where that does not help.
    ahead: int

    @property
    def classes(self) -> tuple[str, ...] | None:
        """Class names by number; complete when all samples were fetched."""

    def will_need(self, number: int) -> bool:
        """Prefetch a sample; False if too much is in flight."""

    def fetch(self, number: int, hold: Hold) -> Sample:
        """One sample as it is stored. SampleError if it is bad, SourceError to stop packing."""

    def where(self, number: int) -> str:
        """A sample's origin, for an error."""

    def label_rows(self, numbers: Int64) -> Array | None:
        """Labels of samples: (n, L) int64 or float64; None without labels."""

    def sources(self, numbers: Int64) -> str:
        """Digest of the samples' source files now: it differs when a file was changed."""

    def give_up(self) -> None:
        """Stop fetches in flight: waiting threads get an error. Only close() follows."""


class Samples(FileSamples, Protocol):
    """All samples of a source."""

    ignored: dict[str, int]
    #: Notes for the user: what may be unexpected in the source.
    notes: tuple[str, ...]
    #: Bad ones found before any was fetched: sort key, name, and why.
    skipped: list[tuple[Any, str, SampleError]]

    @property
    def identity(self) -> str:
        """What identifies this source, in addition to its paths and labels."""

    def name(self, number: int) -> tuple[Any, str]:
        """The key by which skipped samples are sorted, and the sample's name in that list."""

    def part(self, numbers: Int64) -> FolderPart | None:
        """Some samples to send to another machine; None where that opens the source itself."""

    def close(self) -> None:
        """Close the files."""


def open_samples(options: Options, exclude: str) -> Samples:
    """What ``options.src`` holds. ``exclude``: the target, in case it lies inside a folder."""
    if may_be_packed(options.src):
        if options.allow_pickle and not options.fields:
            from .pickled import open_pickled

            pickled = open_pickled(options)
            if pickled is not None:
                return pickled
        if options.fields:
            raise ParamsError("fields are for folders of pictures", found="a packed set")
        return PackedSamples(options)
    if options.params is not None:
        raise ParamsError("params say how a packed set is read", path=options.src, found="a folder")
    return FolderSamples(options, exclude)


class View:
    """Some of the samples of ``samples``, those of ``numbers`` (int64), numbered from 0."""

    def __init__(self, samples: Samples, numbers: Int64) -> None:
        self._samples = samples
        self._numbers = numbers
        self.count = int(numbers.size)
        self.encoding, self.channels = samples.encoding, samples.channels
        self.label_kind, self.run = samples.label_kind, samples.run
        self.fields, self.ahead = samples.fields, samples.ahead
        self.paths = tuple(map(self._of_all, samples.paths))

    @property
    def classes(self) -> tuple[str, ...] | None:
        """Of all samples."""
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
