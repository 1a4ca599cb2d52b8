"""What is packed: a folder's pictures, or the samples of a set that is packed already."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import xxhash

from asyncreader import codec
from asyncreader import format as fmt
from asyncreader.errors import FormatError, ParamsError, SampleError, SourceError
from asyncreader.format import ENCODINGS, digest, is_field_name
from asyncreader.manifest import manifest_path
from asyncreader.sources import (
    FieldsSource,
    Source,
    expand_paths,
    fields_of,
    fingerprint,
    open_reader_source,
    open_source,
    open_whole,
)
from asyncreader.sources.lmdb import lmdb_data_file
from asyncreader.sources.remote import is_url
from asyncreader.sources.shards import ShardLabels
from asyncreader.sources.subset import resolve_subset
from asyncreader.values import decode_values

from .fields import MaskFolder, stored_values
from .options import Options, check_compression
from .origins import open_origin
from .picture import Hold, Packed, Recipe, packed
from .scan import Listing, read_class_names, scan
from .spool import Numbers, Strings
from .stores import holds_set
from .walk import Tree, sort_key

Int64: TypeAlias = npt.NDArray[np.int64]
#: The path of a sample, as bytes, by its number.
PathOf: TypeAlias = Callable[[int], bytes]

#: Samples that one thread takes at a time where each is only read and checked.
RUN: Final = 16


class Samples(Protocol):
    """A source of samples, by number; ``fetch`` is called by many threads."""

    count: int
    encoding: str
    channels: int
    label_kind: str
    ignored: dict[str, int]
    #: Bad ones found before any was fetched: where each sorts, its name, and why.
    skipped: list[tuple[Any, str, SampleError]]
    #: None where paths are not known.
    path: PathOf | None
    #: Samples a thread takes at a time.
    run: int
    #: Names of further fields that each sample has.
    fields: tuple[str, ...]
    #: Paths of each field's files; None where they are not known.
    field_paths: tuple[PathOf | None, ...]
    #: Samples that may be announced before they are fetched; 0 where that is of no use.
    ahead: int

    @property
    def identity(self) -> str:
        """What tells this source from another beside its paths and labels."""

    @property
    def classes(self) -> tuple[str, ...] | None:
        """Class names by number; asked for when all samples were fetched."""

    def will_need(self, number: int) -> bool:
        """Begin to fetch a sample that is wanted soon; False if too much is under way."""

    def fetch(self, number: int, hold: Hold) -> Packed:
        """One sample as it is stored. SampleError if it is bad, SourceError if all is lost."""

    def name(self, number: int) -> tuple[Any, str]:
        """Where a sample sorts among the skipped, and its name there."""

    def where(self, number: int) -> str:
        """A sample's origin, for an error."""

    def label_rows(self, numbers: Int64) -> npt.NDArray[Any] | None:
        """Labels of samples: (n, L) int64 or float64; None without labels."""

    def sources(self, numbers: Int64) -> str:
        """Digest of what samples are made from, as it is now: another when a file was changed."""

    def part(self, numbers: Int64) -> FolderPart | None:
        """Some samples to be sent to another machine; None where it can open the source itself."""

    def give_up(self) -> None:
        """End what is under way: who waits for it gets an error. All that follows is close()."""

    def close(self) -> None:
        """Let go of files."""


def open_samples(options: Options, exclude: str) -> Samples:
    """What ``options.src`` holds. ``exclude``: the target, in case it lies inside a folder."""
    if _may_be_packed(options.src):
        if options.allow_pickle and not options.fields:
            from .pickled import open_pickled

            pickled = open_pickled(options)
            if pickled is not None:
                return pickled
        if options.fields:
            raise ParamsError("fields are for folders of pictures", found="a packed set")
        return PackedSamples(options)
    if options.read is not None:
        raise ParamsError("params say how a packed set is read", path=options.src, found="a folder")
    return FolderSamples(options, exclude)


def _may_be_packed(path: str) -> bool:
    """Whether ``path`` is a file, an LMDB's folder or a sharded set's; a FIFO is none of them."""
    if is_url(path):
        return holds_set(path)
    if os.path.isdir(path):
        return lmdb_data_file(path) is not None or manifest_path(path) is not None
    return os.path.isfile(path)


@dataclass(frozen=True)
class FolderPart:
    """Some pictures of a folder, by path, with their labels (n, L): what another machine needs.

    ``masks``: paths of each further field.
    """

    paths: tuple[bytes, ...]
    stamps: tuple[bytes, ...]
    masks: tuple[tuple[bytes, ...], ...]
    labels: npt.NDArray[Any] | None
    label_kind: str
    classes: tuple[str, ...] | None

    def open(self, options: Options) -> FolderSamples:
        """These pictures as samples."""
        labels = None
        if self.labels is not None:
            kind = "d" if self.labels.dtype.kind == "f" else "q"
            labels = Numbers(kind, self.labels.shape[1])
            labels.extend(self.labels)
            labels.rows()
        listing = Listing(
            open_origin(options.src, options.follow_links),
            Strings.of(self.paths),
            Strings.of(self.stamps),
            labels,
            self.label_kind,
            self.classes,
            {},
        )
        named = zip(options.fields, self.masks, strict=True)
        masks = [
            MaskFolder(name, Tree(folder, options.follow_links), Strings.of(paths), 0)
            for (name, folder), paths in named
        ]
        return FolderSamples(options, "", listing, masks)


class FolderSamples:
    """The pictures of a folder. ``listing`` and ``masks``: which, where they were found before."""

    def __init__(
        self,
        options: Options,
        exclude: str,
        listing: Listing | None = None,
        masks: Sequence[MaskFolder] = (),
    ) -> None:
        self.encoding = options.encoding or "raw"
        self.channels = options.channels or 3
        check_compression(options, self.encoding)
        self._recipe = make_recipe(options, self.encoding, self.channels)
        self._listing: Listing = listing or scan(
            options.src,
            labels=options.labels,
            no_labels=options.no_labels,
            classes=None if options.classes is None else _class_names(options.classes),
            follow_links=options.follow_links,
            skip_bad=options.skip_bad,
            exclude=exclude,
        )
        self.count = self._listing.count
        self.classes = self._listing.classes
        self.label_kind = self._listing.label_kind
        self.ignored = self._listing.ignored
        self.skipped = [
            (sort_key(path), os.fsdecode(path), problem) for path, problem in self._listing.skipped
        ]
        self.path: PathOf | None = self._listing.paths.__getitem__
        self.run = RUN if self.encoding == "original" and not options.check_decode else 1
        self.ahead = self._listing.tree.ahead
        self.identity = "folder"
        self._masks = list(masks)
        self.fields = tuple(name for name, _ in options.fields)
        try:
            for name, folder in options.fields[len(masks) :]:
                match = (name, folder, self._listing.paths, options.follow_links, options.skip_bad)
                self._masks.append(MaskFolder.match(*match))
                if self._masks[-1].extra:
                    self.ignored[f"{name} without a picture"] = self._masks[-1].extra
        except BaseException:
            self.close()
            raise
        self.field_paths: tuple[PathOf | None, ...] = tuple(
            field.paths.__getitem__ for field in self._masks
        )

    def will_need(self, number: int) -> bool:
        listing = self._listing
        return listing.tree.will_need(listing.paths[number], listing.stamps[number])

    def fetch(self, number: int, hold: Hold) -> Packed:
        path = self._listing.paths[number]
        try:
            data = self._listing.tree.read(path, hold, self._listing.stamps[number])
            sample = self._recipe.from_file(data, hold)
            header = codec.read_header(data) if self._masks else None
        except SampleError as exc:
            exc.source_path = self._listing.tree.shown(path)
            raise
        if header is None:
            return sample
        full = header.height, header.width
        masks = (field.fetch(number, path, full, self._recipe, hold) for field in self._masks)
        return replace(sample, fields=tuple(masks))

    def name(self, number: int) -> tuple[Any, str]:
        path = self._listing.paths[number]
        return sort_key(path), os.fsdecode(path)

    def where(self, number: int) -> str:
        return self._listing.tree.shown(self._listing.paths[number])

    def label_rows(self, numbers: Int64) -> npt.NDArray[Any] | None:
        return self._listing.label_rows(numbers)

    def sources(self, numbers: Int64) -> str:
        listing = self._listing
        state = xxhash.xxh3_128()
        for number in numbers.tolist():
            path = listing.paths[number]
            state.update(path + b"\0" + listing.tree.stamp(path, listing.stamps[number]) + b"\0")
            for field in self._masks:
                path = field.paths[number]
                state.update(path + b"\0" + (field.tree.stamp(path, b"") if path else b"") + b"\0")
        return state.hexdigest()

    def part(self, numbers: Int64) -> FolderPart:
        """The pictures ``numbers``, to be sent away."""
        listing, wanted = self._listing, numbers.tolist()
        masks = (tuple(field.paths[number] for number in wanted) for field in self._masks)
        return FolderPart(
            tuple(listing.paths[number] for number in wanted),
            tuple(listing.stamps[number] for number in wanted),
            tuple(masks),
            *(self.label_rows(numbers), self.label_kind, self.classes),
        )

    def give_up(self) -> None:
        self._listing.tree.close()

    def close(self) -> None:
        self._listing.close()
        for field in self._masks:
            field.close()


class _Asked(threading.local):
    """The samples of a packed set that this thread has asked for."""

    numbers = range(0)


class PackedSamples:
    """The samples of a packed set: as they are, unless something else is asked for."""

    ahead = 0

    def __init__(self, options: Options) -> None:
        check_packed(options)
        read = options.read
        self._src = options.src
        self._source: Source
        if read is not None and read.field_names is not None:
            self._source = open_reader_source(read)
        else:
            self._source = open_whole(options.src, None if read is None else fields_of(read))
        try:
            self._prepare(options)
        except BaseException:
            self._source.close()
            raise

    def _prepare(self, options: Options) -> None:
        spec = self._source.spec
        chosen = None if options.read is None else resolve_subset(options.read.subset, self._source)
        self._records = None if chosen is None else _numbers(chosen, spec.count)
        self.count = spec.count if self._records is None else self._records.size
        stored = spec.encoding if spec.encoding in ENCODINGS else "original"
        self._axes = None if spec.stored.encoded else _pixel_axes(self._source)
        grey = spec.stored.axes is None and not spec.stored.encoded
        self.channels = options.channels or (1 if grey else spec.channels)
        self.encoding = options.encoding or stored
        asked = options.encoding is not None or options.size is not None
        changed = asked or self.channels != (1 if grey else spec.channels)
        if self.encoding == "original":
            self._check_original(options, spec.stored.encoded)
            # what others packed may be damaged or of any size: each is looked at, not only copied
            changed = spec.meta is None
        check_compression(options, self.encoding)
        self._recipe = make_recipe(options, self.encoding, self.channels) if changed else None
        self._check_decode = options.check_decode and spec.stored.encoded
        self._fields = _fields(self._source, make_recipe(options, self.encoding, self.channels))
        self.fields = tuple(field.name for field in self._fields)
        labels = None if options.no_labels else self._source.labels
        self._labels = None if labels is None else _label_table(labels, options.src)
        self.classes = None if labels is None else spec.classes
        self.label_kind = _label_kind(self._source, labels is not None)
        self.ignored: dict[str, int] = {}
        self.skipped: list[tuple[Any, str, SampleError]] = []
        self._paths = _paths(self._source)
        self.path: PathOf | None = None if self._paths is None else self._path
        self._of_fields = [_paths(field.part) for field in self._fields]
        self.field_paths = tuple(map(self._field_path, self._of_fields))
        # far away a run of samples is one request; packed in random order there are no runs
        self._far = spec.io == "ranges" and options.shuffle is None
        light = self._recipe is None and not self._check_decode
        self.run = RUN if light or self._far else 1
        self._asked = _Asked()

    @property
    def identity(self) -> str:
        """The packed set's fingerprint, and what of it is meant."""
        chosen = "" if self._records is None else digest(self._records)
        return f"{fingerprint(self._source)} {chosen}"

    def _check_original(self, options: Options, encoded: bool) -> None:
        if encoded and options.size is None:
            return
        raise ParamsError(
            "encoding 'original' keeps image files' own bytes",
            path=options.src,
            found="a size to resize to" if encoded else "a packed set of raw pixels",
            hint="choose encoding 'jpeg', 'png' or 'raw'",
        )

    def _record(self, number: int) -> int:
        """The record of the source that is sample ``number``."""
        return number if self._records is None else int(self._records[number])

    def _path(self, number: int) -> bytes:
        assert self._paths is not None
        return self._paths[self._record(number)]

    def _field_path(self, paths: Strings | None) -> PathOf | None:
        return None if paths is None else lambda number: paths[self._record(number)]

    def _ask(self, number: int) -> None:
        """Ask for the run of samples that this thread fetches from here on."""
        if number not in self._asked.numbers:
            self._asked.numbers = range(number, min(number + RUN, self.count))
            self._source.announce(np.array([self._record(n) for n in self._asked.numbers]))

    def fetch(self, number: int, hold: Hold) -> Packed:
        record = self._record(number)
        if self._far:
            self._ask(number)
        sample = self._picture(record, hold)
        if not self._fields:
            return sample
        full = self._full(record)
        same = self._recipe is None
        return replace(sample, fields=tuple(f.fetch(record, full, same) for f in self._fields))

    def _full(self, record: int) -> tuple[int, int]:
        """(H, W) of a sample's picture as it is in the source."""
        stored = self._source.spec.stored
        if stored.axes is None and stored.shape is not None:
            return stored.shape[0], stored.shape[1]
        return self._source.picture_size(record)

    def _picture(self, record: int, hold: Hold) -> Packed:
        try:
            if self._axes is not None:
                return self._from_pixels(self._source.sample_pixels(record), self._axes, hold)
            data = self._source.sample_bytes(record)
            hold(len(data))
            if self._recipe is not None:
                return self._recipe.from_file(data, hold)
            if self._check_decode:
                codec.decode(data, self.channels)
            shape = self._source.spec.stored.shape
            return packed(data, None if shape is None else (shape[0], shape[1], shape[2]))
        except SampleError as exc:
            exc.path, exc.index = exc.path or self._source.spec.path, record
            exc.key = exc.key or self._source.key_of(record)
            raise

    def _from_pixels(self, stored: npt.NDArray[Any], axes: tuple[int, ...], hold: Hold) -> Packed:
        hold(stored.nbytes)
        # grey pictures may lack the axis of channels
        pixels = stored.transpose(axes) if stored.ndim == 3 else stored[:, :, None]
        if self._recipe is not None:
            return self._recipe.from_pixels(pixels)
        rows = np.ascontiguousarray(pixels)
        high, wide, channels = rows.shape
        return packed(rows.reshape(-1).data, (high, wide, channels))

    def name(self, number: int) -> tuple[Any, str]:
        path = None if self.path is None else os.fsdecode(self.path(number))
        return number, f"record {self._record(number)}" if path is None else path

    def where(self, number: int) -> str:
        return self.name(number)[1]

    def label_rows(self, numbers: Int64) -> npt.NDArray[Any] | None:
        if self._labels is None:
            return None
        rows: npt.NDArray[Any] = self._labels[
            numbers if self._records is None else self._records[numbers]
        ]
        return rows

    def will_need(self, number: int) -> bool:
        return True

    def sources(self, numbers: Int64) -> str:
        """Of one of ours nothing more: ``identity`` has the digest of all its checksums."""
        return "" if self._source.spec.meta is not None else files_digest(self._src)

    def part(self, numbers: Int64) -> None:
        """Any machine opens the packed set itself."""

    def give_up(self) -> None:
        if self._source.spec.io == "ranges":
            self._source.close()

    def close(self) -> None:
        for paths in (self._paths, *self._of_fields):
            if paths is not None:
                paths.close()
        self._source.close()


@dataclass(frozen=True)
class _Field:
    """A further field of a packed set. ``recipe``: what is done to each picture."""

    name: str
    part: Source
    recipe: Recipe

    def fetch(self, record: int, full: tuple[int, int], same: bool) -> Packed:
        """Its values of one sample; ``same``: the pictures are packed as they are."""
        spec = self.part.spec
        try:
            data = None
            if spec.stored.encoded or same:
                data = self.part.sample_bytes(record)
            if same and data is not None and spec.meta is not None:
                shape = spec.stored.shape
                if shape is None:
                    shape = (*self.part.picture_size(record), spec.stored.channels)
                high, wide, channels = shape
                return packed(data, (high, wide, channels), spec.stored.dtype.name)
            if spec.stored.encoded:
                assert data is not None
                values = decode_values(data)
            else:
                axes = spec.stored.axes
                assert axes is not None
                order = tuple(axes.index(letter) for letter in "HWC")
                values = self.part.sample_pixels(record).transpose(order)
            return stored_values(self.name, values, full, self.recipe)
        except SampleError as exc:
            exc.path, exc.index = exc.path or spec.path, record
            exc.key = exc.key or self.part.key_of(record)
            raise


def _fields(source: Source, recipe: Recipe) -> tuple[_Field, ...]:
    """Further fields of ``source``; FormatError where one holds no pictures."""
    if not isinstance(source, FieldsSource):
        return ()
    found: list[_Field] = []
    for name, part in zip(source.names[1:], source.parts[1:], strict=True):
        own = name.rstrip("/").rsplit("/", 1)[-1]
        if part.spec.stored.axes is None:
            raise FormatError(
                f"field {name!r} holds no pictures, and only those can be packed as a field",
                path=part.spec.path,
                found=f"samples of shape {part.spec.stored.shape}",
            )
        if not is_field_name(own) or own in (field.name for field in found):
            raise ParamsError("a field cannot have this name in a packed set", found=repr(own))
        found.append(_Field(own, part, recipe))
    return tuple(found)


class View:
    """Some of the samples of ``samples``, those of ``numbers`` (int64), numbered from 0."""

    def __init__(self, samples: Samples, numbers: Int64) -> None:
        self._samples = samples
        self._numbers = numbers
        self.count = int(numbers.size)
        self.encoding, self.channels = samples.encoding, samples.channels
        self.label_kind, self.run = samples.label_kind, samples.run
        self.fields, self.ahead = samples.fields, samples.ahead
        self.ignored: dict[str, int] = {}
        self.skipped: list[tuple[Any, str, SampleError]] = []
        self.path: PathOf | None = self._of_all(samples.path)
        self.field_paths = tuple(map(self._of_all, samples.field_paths))

    @property
    def identity(self) -> str:
        """Of all samples."""
        return self._samples.identity

    @property
    def classes(self) -> tuple[str, ...] | None:
        """Of all samples."""
        return self._samples.classes

    def _of_all(self, path: PathOf | None) -> PathOf | None:
        return None if path is None else lambda number: path(int(self._numbers[number]))

    def will_need(self, number: int) -> bool:
        return self._samples.will_need(int(self._numbers[number]))

    def fetch(self, number: int, hold: Hold) -> Packed:
        return self._samples.fetch(int(self._numbers[number]), hold)

    def name(self, number: int) -> tuple[Any, str]:
        return self._samples.name(int(self._numbers[number]))

    def where(self, number: int) -> str:
        return self._samples.where(int(self._numbers[number]))

    def label_rows(self, numbers: Int64) -> npt.NDArray[Any] | None:
        return self._samples.label_rows(self._numbers[numbers])

    def sources(self, numbers: Int64) -> str:
        return self._samples.sources(self._numbers[numbers])

    def part(self, numbers: Int64) -> FolderPart | None:
        """Of all samples."""
        return self._samples.part(self._numbers[numbers])

    def give_up(self) -> None:
        self._samples.give_up()

    def close(self) -> None:
        """The samples are closed by whoever opened them."""


def files_digest(path: str) -> str:
    """Of names, sizes and times of the files that a path to a packed set names."""
    state = xxhash.xxh3_128()
    for name in expand_paths(path):
        file = lmdb_data_file(name) or name
        state.update(os.fsencode(name) + b"\0")
        if not is_url(file):
            facts = os.stat(file)
            state.update(f"{facts.st_size} {facts.st_mtime_ns} {facts.st_ctime_ns}".encode())
    return state.hexdigest()


def check_packed(options: Options) -> None:
    """What only goes with folders of pictures is refused."""
    for name, value in (
        ("labels", options.labels),
        ("classes", options.classes),
        ("follow_links", options.follow_links),
    ):
        if value:
            raise ParamsError(
                f"{name} is for folders of pictures",
                path=options.src,
                found="a packed set, which has its own labels",
            )


def _numbers(chosen: slice | Int64, count: int) -> Int64:
    return np.arange(count, dtype=np.int64)[chosen]


def make_recipe(options: Options, encoding: str, channels: int) -> Recipe:
    """What is done to each picture."""
    return Recipe(
        encoding=encoding,
        channels=channels,
        size=options.size,
        resize=options.resize,
        quality=options.quality,
        check_decode=options.check_decode,
    )


def _class_names(path: str) -> tuple[str, ...]:
    """Names from a packed set, or from a text file."""
    from asyncreader.sources.hdf5 import is_hdf5

    if is_url(path):
        plain = not holds_set(path)
    else:
        plain = os.path.isfile(path) and not is_hdf5(path) and manifest_path(path) is None
        plain = plain or not _may_be_packed(path)
    if plain:
        return read_class_names(path)
    source = open_source(path)
    try:
        if source.spec.classes is None:
            raise FormatError("this set has no class names", path=path)
        return source.spec.classes
    finally:
        source.close()


def _pixel_axes(source: Source) -> tuple[int, int, int]:
    """How to transpose a stored row to (H, W, C)."""
    stored = source.spec.stored
    if stored.axes is None and len(stored.shape or ()) == 2 and stored.dtype == np.uint8:
        return 0, 1, 2
    if stored.axes is not None and stored.dtype == np.uint8 and stored.image_shape()[2] in (1, 3):
        high, wide, channel = (stored.axes.index(letter) for letter in "HWC")
        return high, wide, channel
    raise FormatError(
        "only sets of 8-bit grey or RGB pictures can be packed anew",
        path=source.spec.path,
        found=f"samples of shape {stored.shape}, {stored.dtype}",
        expected="uint8, 1 or 3 channels",
    )


def _label_table(labels: Any, path: str) -> Any:
    """Labels as they are stored: (N, L), int64 or float64."""
    if isinstance(labels, ShardLabels):
        return labels  # ours, and not all in memory
    if labels.size == 0 or (labels.ndim > 2 and labels[0].size != 1):  # PCam's are (N, 1, 1, 1)
        raise FormatError(
            "labels of this shape cannot be packed",
            path=path,
            found=labels.shape,
            expected="(N,) or (N, L)",
            hint="pass no_labels to leave them out",
        )
    table: npt.NDArray[Any] = labels.reshape(labels.shape[0], -1)
    if table.dtype.kind == "f":
        return table.astype(np.float64, copy=False)
    if table.dtype == np.uint64 and bool((table > np.uint64(2**63 - 1)).any()):
        raise FormatError("labels beyond int64 cannot be packed", path=path)
    return table.astype(np.int64, copy=False)


def _label_kind(source: Source, labelled: bool) -> str:
    if not labelled:
        return "none"
    meta = source.spec.meta
    if meta is not None:
        return meta.label_kind
    return "class" if source.spec.classes is not None else "values"


def _paths(source: Source) -> Strings | None:
    """The recorded paths, on disk; None unless every sample has one."""
    meta = source.spec.meta
    recorded = meta is not None and fmt.PATHS in meta.digests
    if not recorded and source.source_path(0) is None:
        return None
    paths = Strings()
    try:
        for path in source.all_paths():
            if path is None:
                raise SourceError("some of its paths are missing", path=source.spec.path)
            paths.append(path)
    except BaseException:
        paths.close()
        raise
    return paths.freeze()
