"""The images of a folder as samples: fetched, prepared, with their masks."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import xxhash

from asyncreader.errors import FormatError, closed_on_error, located
from asyncreader.formats.manifest import manifest_path
from asyncreader.formats.packed import DATA
from asyncreader.pixels import codec
from asyncreader.sources import open_source
from asyncreader.sources.hdf5.file import is_hdf5
from asyncreader.sources.urls import is_url
from asyncreader.system.array_types import Array, Int64

from ..check_options import check_encoding
from ..encode import Block, Hold, field_encoding, make_recipe
from ..options import Options
from ..ordered_pool import RUN
from ..temp_tables import Strings
from .dataset_samples import check_class_names, may_be_packed
from .listing import Listing, read_class_names, scan
from .local_tree import Tree, sort_key
from .masks import MaskFolder
from .object_store import open_origin
from .samples import Samples


@dataclass(frozen=True)
class FolderPart:
    """Some images of a folder, with their labels (n, L): what another machine needs.

    ``paths``: of each field's files; ``stamps``: of the images.
    """

    paths: tuple[tuple[bytes, ...], ...]
    stamps: tuple[bytes, ...]
    labels: Array | None
    label_kind: str
    classes: tuple[str, ...] | None
    label_names: tuple[str, ...]

    def open(self, options: Options) -> FolderSamples:
        """These images as samples."""
        pictures, *others = map(Strings.of, self.paths)
        listing = Listing(
            open_origin(options.src, options.follow_links),
            pictures,
            Strings.of(self.stamps),
            self.labels,
            self.label_kind,
            self.classes,
            {},
            label_names=self.label_names,
        )
        masks = [
            MaskFolder(name, Tree(folder, options.follow_links), paths, 0)
            for (name, folder), paths in zip(options.fields, others, strict=True)
        ]
        return FolderSamples(options, "", listing, masks)


class FolderSamples(Samples):
    """The images of a folder. Leave ``listing`` and ``masks`` out to scan the folder."""

    labels: Array | None

    def __init__(
        self,
        options: Options,
        exclude: str,
        listing: Listing | None = None,
        masks: Sequence[MaskFolder] = (),
    ) -> None:
        super().__init__()
        encoding = options.encoding or "raw"
        self.channels: int = options.channels or (1 if options.bits == 16 else 3)
        check_encoding(options, encoding, self.channels, options.bits)
        self._recipe = make_recipe(options, encoding, self.channels, options.bits)
        if listing is None:
            names = None if options.classes is None else class_names(options.classes)
            listing = scan(options, exclude, names)
        self._listing = listing
        self.count, self.labels = listing.count, listing.label_table
        self.label_kind, self.label_names = listing.label_kind, listing.label_names
        self.classes = listing.classes
        self.ignored, self.notes = listing.ignored, listing.notes
        self.splits, self.groups = listing.splits, listing.groups
        self.skipped = [
            (sort_key(path), os.fsdecode(path), problem) for path, problem in listing.skipped
        ]
        light = encoding == "original" and not options.check_decode
        self.run = RUN if light else 1
        self.ahead = listing.tree.ahead
        self._masks = list(masks)
        self.fields = (DATA, *(name for name, _ in options.fields))
        self.encodings = (encoding, *[field_encoding(encoding)] * len(options.fields))
        with closed_on_error([self]):
            for name, folder in options.fields[len(masks) :]:
                match = (name, folder, listing.paths, options.follow_links, options.skip_bad)
                self._masks.append(MaskFolder.match(*match))
                if self._masks[-1].extra:
                    self.ignored[f"{name} without an image"] = self._masks[-1].extra
        self._paths = (listing.paths, *(field.paths for field in self._masks))
        self.paths = tuple(paths.__getitem__ for paths in self._paths)

    def _source_identity(self) -> str:
        return "folder"

    def will_need(self, number: int) -> bool:
        listing, number = self._listing, self.at(number)
        return listing.tree.will_need(listing.paths[number], listing.stamps[number])

    def fetch(self, number: int, hold: Hold) -> Block:
        number = self.at(number)
        path = self._listing.paths[number]
        with located(source_path=self._listing.tree.shown(path)):
            data = self._listing.tree.read(path, hold, self._listing.stamps[number])
            picture = self._recipe.from_file(data, hold)
            header = codec.read_header(data) if self._masks else None
        if header is None:
            return (picture,)
        full = header.height, header.width
        masks = (field.fetch(number, path, full, self._recipe, hold) for field in self._masks)
        return (picture, *masks)

    def name(self, number: int) -> tuple[Any, str]:
        path = self._listing.paths[self.at(number)]
        return sort_key(path), os.fsdecode(path)

    def where(self, number: int) -> str:
        return self._listing.tree.shown(self._listing.paths[self.at(number)])

    def sources(self, numbers: Int64) -> str:
        listing = self._listing
        state = xxhash.xxh3_128()
        for number in self.in_source(numbers).tolist():
            path = listing.paths[number]
            state.update(path + b"\0" + listing.tree.stamp(path, listing.stamps[number]) + b"\0")
            for field in self._masks:
                path = field.paths[number]
                state.update(path + b"\0" + (field.tree.stamp(path, b"") if path else b"") + b"\0")
        return state.hexdigest()

    def part(self, numbers: Int64) -> FolderPart:
        """The images ``numbers``, to send to another machine."""
        wanted = self.in_source(numbers).tolist()
        return FolderPart(
            tuple(tuple(paths[number] for number in wanted) for paths in self._paths),
            tuple(self._listing.stamps[number] for number in wanted),
            None if self.labels is None else self.labels[numbers],
            *(self.label_kind, self.classes, self.label_names),
        )

    def give_up(self) -> None:
        self.close()

    def close(self) -> None:
        self._listing.tree.close()


def class_names(path: str) -> tuple[str, ...]:
    """Names from a packed set, or from a text file."""
    known = is_url(path) or os.path.isdir(path) or manifest_path(path) is not None
    if not may_be_packed(path) or not (known or is_hdf5(path)):
        return read_class_names(path)
    with contextlib.closing(open_source(path)) as source:
        names = source.facts.classes
    if names is None:
        raise FormatError("this dataset has no class names", path=path)
    check_class_names(names, path)
    return names
