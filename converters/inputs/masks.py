"""Other fields of the samples: masks in a folder of their own, or fields of a packed set.

A mask goes with the image of the same path without its suffix: ``masks/cat/1.png`` with
``cat/1.jpg``. Its values are packed (asyncreader/pixels/codec/masks.py), cut and resized as the
image is, by nearest neighbour.
"""

from __future__ import annotations

import itertools
import os
import struct
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from asyncreader.errors import (
    FormatError,
    SampleError,
    SourceError,
    SourceNotFoundError,
    located,
)
from asyncreader.formats.packed import FIELD_DTYPES
from asyncreader.pixels import codec
from asyncreader.pixels.codec.masks import decode_values
from asyncreader.system.array_types import Array

from ..encode import FieldBlock, Hold, Recipe, decoding_bytes
from ..temp_tables import Strings, sorted_records
from .listing import SKIP_HINT
from .local_tree import Tree, sort_key

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


def stored_values(name: str, values: Array, full: tuple[int, int], recipe: Recipe) -> FieldBlock:
    """Values (H, W, C) of field ``name`` of an image of size ``full``, as they are stored."""
    check_size(name, values, full)
    return recipe.from_values(as_stored(name, values), full)


def check_size(name: str, values: Array, full: tuple[int, int]) -> None:
    """SampleError where a field of an image of size ``full`` has another height or width."""
    if values.shape[:2] != full:
        raise SampleError(
            f"field {name!r} and its image differ in size",
            found="{} x {} (height x width)".format(*values.shape),
            expected="{} x {}, as the upright image".format(*full),
        )


def as_stored(name: str, values: Array) -> Array:
    """Whole numbers as uint8 or uint16, with 1 or 3 channels; SampleError if they are neither."""
    if values.dtype == np.bool_:
        values = values.astype(np.uint8)
    fits = values.dtype.kind in "iu" and int(values.min()) >= 0 and int(values.max()) <= 65_535
    if fits and values.dtype.name not in FIELD_DTYPES:
        values = values.astype(np.uint16)
    if values.dtype.name not in FIELD_DTYPES or values.shape[2] not in (1, 3):
        raise SampleError(
            f"field {name!r} cannot be stored",
            found=f"{values.shape[2]} channels of {values.dtype}, "
            f"from {values.min()} to {values.max()}",
            expected="1 or 3 channels of whole numbers from 0 to 65535",
        )
    return values
