"""The samples of a packed set: copied as they are stored, unless the options change them."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import xxhash

from asyncreader.errors import FormatError, ParamsError, SourceError, closed_on_error, located
from asyncreader.formats import packed as fmt
from asyncreader.formats.manifest import manifest_path
from asyncreader.formats.packed import ENCODINGS, is_field_name
from asyncreader.pixels.codec import decode_values
from asyncreader.pixels.codec.planes import YUV420
from asyncreader.pixels.encoded import decode_sample
from asyncreader.pixels.specs import SampleSpec
from asyncreader.sampling.samplers import subset_numbers
from asyncreader.sources import (
    Inspector,
    OpenSet,
    SetIndex,
    Source,
    fields_of,
    fingerprint,
    open_reader_source,
    open_whole,
)
from asyncreader.sources.bytestore import FileRef, LocalFile
from asyncreader.sources.labels import label_names, resolve_subset
from asyncreader.sources.layouts.hdf5_sparse import SparseRows
from asyncreader.sources.lmdb import lmdb_data_file
from asyncreader.sources.request import NAME_AXES
from asyncreader.sources.sets.joined import Joined
from asyncreader.sources.sniff import is_url
from asyncreader.system.array_types import Array, Int64

from ..check_options import check_encoding, check_named, kind_of
from ..encode import (
    Block,
    FieldBlock,
    Hold,
    Recipe,
    field_encoding,
    hashed,
    hashed_pixels,
    hashed_values,
    make_recipe,
    stored_values,
)
from ..options import Options
from ..temp_tables import PathOf, Strings
from .origins import holds_set
from .samples import RUN, SHARED, Samples, kept_splits, paths_of


class DatasetSamples(Samples):
    """The samples of a packed set, by number."""

    def __init__(self, options: Options) -> None:
        super().__init__()
        check_packed(options)
        read = options.params
        if read is not None and read.field_names is not None:
            self._source = open_reader_source(read)
        else:
            self._source = open_whole(options.src, None if read is None else fields_of(read))
        self._inspector = Inspector(self._source.first)
        with closed_on_error([self._source]):
            self._prepare(options)

    def _prepare(self, options: Options) -> None:
        self._source.check_rows("a conversion")
        facts, spec = self._source.facts, self._source.spec
        subset = None if options.params is None else options.params.subset
        chosen = resolve_subset(subset, self._source)
        self.count = facts.count
        if chosen is not None:
            self.numbers = subset_numbers(chosen, facts.count)
            self.count = self.numbers.size
        stored = spec.encoding if spec.encoding in ENCODINGS else "original"
        asked = options.size is not None or options.encoding not in (None, "raw")
        self._rows = not (asked or options.channels) and _are_numbers(self._source.first)
        encoded = spec.encoded or self._rows
        self._axes = None if encoded else _pixel_axes(self._source.first)
        grey = spec.axes is None and not encoded
        # of grey images; None where the headers of files say it one by one
        unknown = spec.encoded and not spec.narrow
        mine = 16 if spec.dtype.itemsize == 2 else None if unknown else 8
        bits = options.bits or mine
        self.channels = options.channels or (1 if grey or bits == 16 else spec.image_shape()[2])
        encoding = options.encoding or stored
        other_channels = self.channels != (1 if grey else spec.image_shape()[2])
        # planes that are stored are copied: encoding them again would only lose
        same = encoding == stored == YUV420
        given = (None if same else options.encoding, options.size, options.quality)
        changed = other_channels or bits != mine or any(option is not None for option in given)
        if encoding == "original":
            check_original(options, spec.encoding)
            # in a set that others packed, images may be damaged or differ in size: check each
            changed = facts.meta is None or bool(options.restarts) or other_channels or bits != mine
        check_encoding(options, encoding, self.channels, bits)
        recipe = make_recipe(options, encoding, self.channels, bits)
        self._recipe = recipe if changed else None
        if self._recipe is None and options.restarts:  # JPEGs that are not encoded again
            self._recipe = make_recipe(options, "original", self.channels, bits)
        self._check_decode = options.check_decode and spec.encoded
        if self._rows:
            self._recipe, self.channels = None, 0
            encoding = _stored_as(self._source.first)
        self._others = _others(self._source, options, recipe, same=self._recipe is None)
        self.fields = (fmt.DATA, *(field.name for field in self._others))
        plain = field_encoding(encoding)
        rows = (_stored_as(field.part) if field.rows else plain for field in self._others)
        self.encodings = (encoding, *rows)
        check_named(options, self.fields)
        self._take_labels(options)
        self._take_splits()
        self.paths = tuple(_paths(self._source, name) for name in self._source.names)
        if self.numbers is not None:
            self.paths = tuple(paths_of(path, self.numbers) for path in self.paths)
        # a run of remote samples is one request; in random order there are no runs
        self._remote = facts.remote and options.shuffle is None
        light = self._recipe is None or self._recipe.encoding == "original"
        light = light and not self._check_decode
        self.run = RUN if light or self._remote else 1
        self._prefetched = threading.local()  # records that each thread has prefetched

    def _take_labels(self, options: Options) -> None:
        """Keep the labels of the chosen samples, unless none are wanted."""
        labels = None if options.no_labels else self._source.labels
        if labels is None:
            return
        table = _label_table(labels, options.src)
        self.labels = table if self.numbers is None else table[self.numbers]
        self.classes = self._source.facts.classes
        check_class_names(self.classes, options.src)
        if (meta := self._source.facts.meta) is not None:
            self.label_kind = meta.label_kind
        else:
            self.label_kind = "values" if self.classes is None else "class"
        named = fmt.LABELS if options.params is None else options.params.labels_field
        self.label_names = label_names(self._source, named)

    def _take_splits(self) -> None:
        """Keep the splits of the source, or note why they are left out."""
        source = self._source
        if source.rule.apart or not source.splits:
            return
        splits = kept_splits(source.splits, source.facts.count)
        if splits is None:
            self.notes = (SHARED,)
        else:
            self.splits = splits if self.numbers is None else splits.of(self.numbers)

    def _source_identity(self) -> str:
        return fingerprint(self._source)

    def _prefetch(self, number: int) -> None:
        """Prefetch the run of samples that this thread fetches next."""
        if self.at(number) not in getattr(self._prefetched, "records", ()):
            run = np.arange(number, min(number + RUN, self.count))
            records = self.in_source(run)
            self._prefetched.records = frozenset(records.tolist())
            self._source.prefetch(records)

    def fetch(self, number: int, hold: Hold) -> Block:
        record = self.at(number)
        if self._remote:
            self._prefetch(number)
        key = partial(self._inspector.key, record)
        with located(path=self._source.facts.path, index=record, key=key):
            picture = self._picture(record, hold)
            if not self._others:
                return (picture,)
            full = (0, 0) if self._rows else self._full(record)
            return (picture, *(field.fetch(record, full) for field in self._others))

    def _full(self, record: int) -> tuple[int, int]:
        """(H, W) of a sample's image as it is in the source."""
        stored = self._source.spec
        if stored.axes is None and stored.shape is not None:
            return stored.shape[0], stored.shape[1]
        return self._inspector.size(record)

    def _picture(self, record: int, hold: Hold) -> FieldBlock:
        if self._rows:
            return _numbers(self._source.first, self._inspector.pixels(record))
        if self._axes is not None:
            pixels = self._inspector.pixels(record)
            hold(pixels.nbytes)
            # grey images may lack the axis of channels
            pixels = pixels.transpose(self._axes) if pixels.ndim == 3 else pixels[:, :, None]
            recipe = self._recipe
            return hashed_pixels(pixels) if recipe is None else recipe.from_pixels(pixels)
        data = self._inspector.bytes(record)
        hold(len(data))
        if self._recipe is not None:
            return self._recipe.from_file(data, hold)
        stored = self._source.spec
        if self._check_decode:
            decode_sample(data, stored)
        shape = (
            None if stored.shape is None else (stored.shape[0], stored.shape[1], stored.channels)
        )
        return hashed(data, shape, stored.dtype.name, self.channels)

    def name(self, number: int) -> tuple[Any, str]:
        record, path = self.at(number), self.paths[0]
        return record, f"record {record}" if path is None else os.fsdecode(path(number))

    def sources(self, numbers: Int64) -> str:
        """Empty for a set packed by asyncreader: ``identity`` has the digest of its checksums."""
        return "" if self._source.facts.meta is not None else files_digest(self._source.index)

    def give_up(self) -> None:
        if self._source.facts.remote:
            self._source.close()

    def close(self) -> None:
        self._source.close()


@dataclass(frozen=True)
class _Other:
    """One of the other fields of a packed set. ``recipe``: what is done to each image; ``same``:
    the stored bytes are packed as they are; ``rows``: they are rows of numbers, of this ``kind``
    (see ``kind_of``)."""

    name: str
    part: Source
    recipe: Recipe
    same: bool
    rows: bool
    kind: str

    def fetch(self, record: int, full: tuple[int, int]) -> FieldBlock:
        """Its values of one sample, whose image has size ``full``."""
        stored, inspector = self.part.spec, Inspector(self.part)
        if self.rows:
            values = inspector.pixels(record)
            values = values[..., 0] if stored.flat else values
            return _numbers(self.part, self.recipe.moved(self.kind, values, full))
        if self.same:
            data = inspector.bytes(record)
            high, wide, channels = stored.shape or (*inspector.size(record), stored.channels)
            return hashed(data, (high, wide, channels), stored.dtype.name)
        if stored.encoded:
            values = decode_values(inspector.bytes(record))
        else:
            assert stored.axes is not None
            order = tuple(stored.axes.index(letter) for letter in "HWC")
            values = inspector.pixels(record).transpose(order)
        return stored_values(self.name, values, full, self.recipe)


def _others(source: OpenSet, options: Options, recipe: Recipe, same: bool) -> tuple[_Other, ...]:
    """The other fields of ``source``; FormatError where one holds no images, ParamsError where
    one may hold places in images that are resized. ``same``: the images are packed as they are,
    and values that asyncreader packed, too."""
    found: list[_Other] = []
    for name, part in zip(source.names[1:], source.parts[1:], strict=True):
        own = name.rstrip("/").rsplit("/", 1)[-1]
        ours = _is_ours(part)
        # masks of another program become uint16, as those of a folder do
        mask = part.spec.axes is not None and part.spec.dtype.kind in "iu" and not ours
        named = options.kinds.get(own)
        rows = _are_numbers(part) and (not mask or named is not None)
        rows = rows or (same and ours and part.spec.flat)
        if part.spec.axes is None and not rows:
            raise FormatError(
                f"field {name!r} holds no images, and only those can be stored as a field",
                path=part.facts.path,
                found=f"samples of shape {part.spec.shape}",
            )
        if not is_field_name(own) or own in (field.name for field in found):
            raise ParamsError("a field cannot have this name in a dataset", found=repr(own))
        ours = ours and part.index.checked == "all"
        kind = _kind(options, own, source, part) if rows else "mask"
        found.append(_Other(own, part, recipe, same and ours, rows, kind))
    return tuple(found)


def _kind(options: Options, name: str, source: OpenSet, part: Source) -> str:
    """What rows of numbers are to the images of ``source``."""
    stored, first = part.spec, source.spec
    size: tuple[int | None, int | None] = first.image_shape()[:2]
    if first.axes is None and first.shape is not None and len(first.shape) == 2:
        size = first.shape[0], first.shape[1]
    assert stored.shape is not None
    shape: tuple[int | None, ...] = stored.shape[:-1] if stored.flat else stored.shape
    return kind_of(options, name, (None, *shape) if stored.ragged else shape, stored.dtype, size)


def may_be_packed(path: str) -> bool:
    """Whether ``path`` is a file, an LMDB's folder or a sharded set's; a FIFO is none of them."""
    if is_url(path):
        return holds_set(path)
    if os.path.isdir(path):
        return lmdb_data_file(path) is not None or manifest_path(path) is not None
    return os.path.isfile(path)


def check_packed(options: Options) -> None:
    """ParamsError for options that are for folders of images."""
    for name in ("labels", "follow_links", "classes_from_folders", "splits_from_folders"):
        if getattr(options, name):
            raise ParamsError(
                f"{name} is for folders of images",
                path=options.src,
                found="a dataset, which has its own labels",
            )


def check_original(options: Options, stored: str) -> None:
    """ParamsError for encoding 'original' of what is no image files, or with a size. ``stored``:
    the encoding of the source."""
    files = stored not in ("raw", YUV420)
    if not files or options.size is not None:
        raise ParamsError(
            "encoding 'original' keeps image files' own bytes",
            path=options.src,
            found="a size to resize to" if files else f"a dataset of encoding {stored!r}",
            hint="choose encoding 'jpeg', 'png', 'yuv420' or 'raw'",
        )


def files_digest(index: SetIndex) -> str:
    """Of names, sizes and times of the files, or objects in a store, that a set lies in, as they
    were when it was opened."""
    state = xxhash.xxh3_128()
    for ref in _files(index):
        # the numbers of a disk and of a file on it may be others after a restart
        known = (ref.path, ref.identity[2:]) if isinstance(ref, LocalFile) else ref
        state.update(f"{known!r}\0".encode("utf-8", "surrogateescape"))
    return state.hexdigest()


def _files(index: SetIndex) -> Iterator[FileRef]:
    where, storage = index.first.where, index.first.storage
    if where is not None:
        yield where
    if isinstance(storage, Joined) and isinstance(storage.files, tuple):
        for one in storage.files:
            yield from _files(one)


def _is_ours(part: Source) -> bool:
    """Whether asyncreader packed all samples of a field, in one file or in several."""
    return part.facts.meta is not None or part.index.checked == "all"


def _are_numbers(part: Source) -> bool:
    """Whether samples are rows of numbers that can be packed as they are, and no images that
    ``convert`` packs: those have an axis of channels where asyncreader packed them. Sparse rows are
    not: written densely they take many times their space."""
    spec, ours = part.spec, _is_ours(part)
    if (
        isinstance(part.index.storage, SparseRows)
        or spec.encoded
        or spec.shape is None
        or spec.axes not in (None, "HWC")
    ):
        return False
    if spec.ragged:
        return spec.dtype.newbyteorder("=").name in fmt.NUMBER_DTYPES
    if spec.flat:
        image = spec.dtype == np.uint8 or _is_deep(spec)
    else:
        image = _image_axes(spec) is not None and not (ours and spec.axes is None)
    return not image and spec.dtype.newbyteorder("=").name in fmt.NUMBER_DTYPES


def _stored_as(part: Source) -> str:
    """How rows of numbers are packed."""
    return fmt.RAGGED if part.spec.ragged else "raw"


def _numbers(part: Source, values: Array) -> FieldBlock:
    """A row of numbers as it is packed."""
    if part.spec.ragged:
        return hashed_values(values, np.array([len(values)], np.int64))
    return hashed_pixels(values, image=False)


def _is_deep(spec: SampleSpec) -> bool:
    """Whether values have 16 bits, of either byte order."""
    return spec.dtype.kind == "u" and spec.dtype.itemsize == 2


def _image_axes(spec: SampleSpec) -> tuple[int, ...] | None:
    """How to transpose a stored row to (H, W, C); None of what is no image that is packed."""
    deep = _is_deep(spec)
    if spec.axes is None:
        grey = not spec.ragged and len(spec.shape or ()) == 2
        return (0, 1, 2) if grey and (deep or spec.dtype == np.uint8) else None
    channels = (1,) if deep else (1, 3) if spec.dtype == np.uint8 else ()
    known = spec.image_shape()[2] in channels
    return tuple(map(spec.axes.index, "HWC")) if known else None


def _pixel_axes(source: Source) -> tuple[int, ...]:
    """How to transpose a stored row to (H, W, C); FormatError of what is no image."""
    stored = source.spec
    if (axes := _image_axes(stored)) is not None:
        return axes
    images = "8-bit grey or RGB images, or 16-bit grey ones"
    hint = NAME_AXES if stored.axes is None and len(stored.shape or ()) == 3 else None
    if isinstance(source.index.storage, SparseRows):
        hint = "train from this file; convert(asyncreader.open(path), dst) writes dense rows"
    elif stored.dtype.names is not None:
        hint = "convert(asyncreader.open(path, members=[...]), dst) writes plain rows"
    rows = _are_numbers(source)
    raise FormatError(
        "samples of this kind cannot be resized or encoded"
        if rows
        else "samples of this kind cannot be converted",
        path=source.facts.path,
        found=f"samples of shape {stored.shape}, {stored.dtype}",
        expected=images if rows else f"{images}; or rows of numbers",
        hint="without encoding, size and channels they are copied as they are" if rows else hint,
    )


def _label_table(labels: Any, path: str) -> Any:
    """Labels as they are stored: (N, L), int64 or float64."""
    if not isinstance(labels, np.ndarray):
        return labels  # packed by asyncreader, and not all in memory
    if labels.dtype.names is not None:
        raise ParamsError(
            "several labels are not stored",
            path=path,
            found=", ".join(labels.dtype.names),
            hint="name one as labels_field, or convert what asyncreader.open() serves",
        )
    if labels.size == 0 or (labels.ndim > 2 and labels[0].size != 1):  # PCam's are (N, 1, 1, 1)
        raise FormatError(
            "labels of this shape cannot be stored",
            path=path,
            found=labels.shape,
            expected="(N,) or (N, L)",
            hint="pass no_labels to leave them out",
        )
    table: Array = labels.reshape(labels.shape[0], -1)
    if table.dtype.kind == "f":
        return table.astype(np.float64, copy=False)
    if table.dtype == np.uint64 and bool((table > np.uint64(2**63 - 1)).any()):
        raise FormatError("labels beyond int64 cannot be stored", path=path)
    return table.astype(np.int64, copy=False)


def _paths(source: OpenSet, name: str) -> PathOf | None:
    """The recorded paths, which are kept on disk; None unless every sample has one."""
    meta = source.facts.meta
    recorded = meta is not None and fmt.table_of(name.strip("/"), fmt.PATHS) in meta.digests
    inspector = Inspector(source.part(name))
    if not recorded and inspector.path(0) is None:
        return None
    paths = Strings()
    for path in inspector.paths():
        if path is None:
            raise SourceError("some of its paths are missing", path=source.facts.path)
        paths.append(path)
    return paths.freeze().__getitem__


def check_class_names(names: tuple[str, ...] | None, path: str) -> None:
    """FormatError for a name of the set at ``path`` that no table of names can hold."""
    for name in names or ():
        if "\0" in name:
            raise FormatError(
                "a class name holds a NUL character, which cannot be stored",
                path=path,
                found=repr(name[:80]),
                hint="pass no_labels (--no-labels) to leave the labels out",
            )
