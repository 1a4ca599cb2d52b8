"""The images of a folder as samples: fetched, prepared, with their masks.

A mask, in a folder of its own, goes with the image of the same path without its suffix:
``masks/cat/1.png`` with ``cat/1.jpg``. Its values are packed (``codec.decode_values``),
cut and resized as the image is, by nearest neighbour.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import struct
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

import xxhash

from asyncreader.errors import (
    FormatError,
    SampleError,
    SourceError,
    SourceNotFoundError,
    closed_on_error,
    located,
)
from asyncreader.formats.manifest import manifest_path
from asyncreader.formats.packed import DATA
from asyncreader.pixels import codec
from asyncreader.pixels.codec import decode_values
from asyncreader.sources import open_source
from asyncreader.sources.hdf5.file import is_hdf5
from asyncreader.sources.urls import is_url
from asyncreader.system.array_types import Int64

from ..check_options import check_encoding
from ..encode import (
    Block,
    FieldBlock,
    Hold,
    Recipe,
    decoding_bytes,
    field_encoding,
    make_recipe,
    stored_values,
)
from ..options import Options
from ..temp_tables import Strings, sorted_records
from .dataset_samples import check_class_names, may_be_packed
from .listing import SKIP_HINT, Listing, read_class_names
from .origins import Tree, sort_key
from .samples import RUN

#: Between a path's sort key and what follows it: a component is never empty, so none is inside.
_END: Final = b"\0\0"
_NUMBER: Final = struct.Struct(">Q")
#: What follows: a mask's path, or the number of an image. Masks are sorted first.
_MASK, _PICTURE = b"0", b"1"


@dataclass(frozen=True)
class MaskFolder:
    """The masks of a folder's images. ``paths``: by number of the image, b"" if it has none;
    ``extra``: masks without an image."""

    name: str
    tree: Tree
    paths: Strings
    extra: int

    @classmethod
    def match(
        cls, name: str, folder: str, pictures: Strings, follow_links: bool, skip_bad: bool
    ) -> MaskFolder:
        """Find the mask of each image, on disk and with bounded memory.

        Raises SourceNotFoundError where there is no such folder, SampleError for the first image
        without a mask (unless ``skip_bad``: then its fetch does), FormatError for one with two.
        """
        if not os.path.isdir(folder):
            kind = SourceError if os.path.lexists(folder) else SourceNotFoundError
            raise kind(f"there is no folder of field {name!r}", path=folder)
        tree = Tree(folder, follow_links)
        paths, extra = Strings(), Counter[str]()
        missing, first = 0, b""
        for record in sorted_records(_matched(name, tree, pictures, extra)):
            paths.append(record[_NUMBER.size :])
            if len(record) == _NUMBER.size:
                first = first or pictures[paths.count - 1]
                missing += 1
        if missing and not skip_bad:
            raise _missing(name, tree, first, missing)
        return cls(name, tree, paths.freeze(), extra[name])

    def fetch(
        self, number: int, picture: bytes, full: tuple[int, int], recipe: Recipe, hold: Hold
    ) -> FieldBlock:
        """The mask of image ``number``, whose full size is ``full``, as it is stored.

        SampleError (with its ``source_path``) if it is missing, damaged or of another size.
        """
        path = self.paths[number]
        if not path:
            raise _missing(self.name, self.tree, picture, 1)
        with located(source_path=self.tree.shown(path)):
            data = self.tree.read(path, hold)
            header = codec.read_header(data)
            hold(decoding_bytes(header))
            return stored_values(self.name, decode_values(data), full, recipe)


def _matched(name: str, tree: Tree, pictures: Strings, extra: Counter[str]) -> Iterator[bytes]:
    """Records of image number and mask path, in order of the paths without suffixes; ``extra``
    counts the masks without an image."""
    # sorted together: each mask comes right before the images of the same stem
    masks = (_stem(mask.path) + _END + _MASK + mask.path for mask in tree)
    numbered = (
        _stem(path) + _END + _PICTURE + _NUMBER.pack(number) for number, path in enumerate(pictures)
    )
    records = (r.split(_END, 1) for r in sorted_records(itertools.chain(masks, numbered)))
    for _, group in itertools.groupby(records, lambda record: record[0]):
        paths: list[bytes] = []
        used = False
        for _, record in group:
            if record.startswith(_MASK):
                paths.append(record[1:])
                continue
            if len(paths) > 1:
                raise FormatError(
                    f"an image has two of field {name!r}",
                    source_path=tree.shown(paths[0]),
                    found=repr(tree.shown(paths[1])),
                    hint="remove one of them",
                )
            yield record[1:] + b"".join(paths)
            used = True
        if not used:
            extra[name] += len(paths)


def _stem(path: bytes) -> bytes:
    return sort_key(os.path.splitext(path)[0])


def _missing(name: str, tree: Tree, picture: bytes, count: int) -> SampleError:
    stem = os.path.splitext(picture)[0]
    return SampleError(
        f"an image without its {name!r}",
        source_path=os.fsdecode(picture),
        found=None if count == 1 else f"{count:,} such images, this is the first",
        expected=f"{tree.shown(stem)}.png, or another suffix",
        hint=SKIP_HINT,
    )


# -- the images ------------------------------------------------------------------------------------


class FolderSamples(Listing):
    """The images of a folder, as they are packed."""

    def __init__(self, options: Options, exclude: str) -> None:
        encoding = options.encoding or "raw"
        self.channels: int = options.channels or (1 if options.bits == 16 else 3)
        check_encoding(options, encoding, self.channels, options.bits)
        self._recipe = make_recipe(options, encoding, self.channels, options.bits)
        names = None if options.classes is None else class_names(options.classes)
        super().__init__(options, exclude, names)
        light = encoding == "original" and not options.check_decode
        self.run = RUN if light else 1
        self.ahead = self.tree.ahead
        self._masks: list[MaskFolder] = []
        self.fields = (DATA, *(name for name, _ in options.fields))
        self.encodings = (encoding, *[field_encoding(encoding)] * len(options.fields))
        with closed_on_error([self]):
            for name, folder in options.fields:
                match = (name, folder, self.files, options.follow_links, options.skip_bad)
                self._masks.append(MaskFolder.match(*match))
                if self._masks[-1].extra:
                    self.ignored[f"{name} without an image"] = self._masks[-1].extra
        self._name_paths()

    def _name_paths(self) -> None:
        every = self.files, *(field.paths for field in self._masks)
        self.paths = tuple(paths.__getitem__ for paths in every)

    def _source_identity(self) -> str:
        return "folder"

    def will_need(self, number: int) -> bool:
        number = self.at(number)
        return self.tree.will_need(self.files[number], self.stamps[number])

    def fetch(self, number: int, hold: Hold) -> Block:
        number = self.at(number)
        path = self.files[number]
        with located(source_path=self.tree.shown(path)):
            data = self.tree.read(path, hold, self.stamps[number])
            picture = self._recipe.from_file(data, hold)
            header = codec.read_header(data) if self._masks else None
        if header is None:
            return (picture,)
        full = header.height, header.width
        masks = (field.fetch(number, path, full, self._recipe, hold) for field in self._masks)
        return (picture, *masks)

    def name(self, number: int) -> tuple[Any, str]:
        path = self.files[self.at(number)]
        return sort_key(path), os.fsdecode(path)

    def where(self, number: int) -> str:
        return self.tree.shown(self.files[self.at(number)])

    def sources(self, numbers: Int64) -> str:
        state = xxhash.xxh3_128()
        for number in self.in_source(numbers).tolist():
            path = self.files[number]
            state.update(path + b"\0" + self.tree.stamp(path, self.stamps[number]) + b"\0")
            for field in self._masks:
                path = field.paths[number]
                state.update(path + b"\0" + (field.tree.stamp(path, b"") if path else b"") + b"\0")
        return state.hexdigest()

    def part(self, numbers: Int64) -> FolderSamples:
        """The images ``numbers`` with their tables alone, to send to another machine."""
        part = self.of(numbers)
        wanted = self.in_source(numbers).tolist()
        part.files, part.stamps = self.files.some(wanted), self.stamps.some(wanted)
        part._masks = [replace(field, paths=field.paths.some(wanted)) for field in self._masks]
        part._name_paths()
        part.numbers, part.skipped = None, []
        return part

    def give_up(self) -> None:
        self.close()

    def close(self) -> None:
        self.tree.close()


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
