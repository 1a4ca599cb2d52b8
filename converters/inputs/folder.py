"""The images of a folder as samples: listed with their labels, in record order and on disk, then
fetched and prepared, with their masks.

Folders are checked as classes: parts of a set are an error, losses are noted. A mask, in a folder
of its own, goes with the image of the same path without its suffix: ``masks/cat/1.png`` with
``cat/1.jpg``. Its values are packed (``codec.decode_values``), cut and resized as the
image is, by nearest neighbour.
"""

from __future__ import annotations

import copy
import itertools
import os
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import xxhash

from asyncreader.errors import (
    FormatError,
    SampleError,
    SourceError,
    SourceNotFoundError,
    closed_on_error,
    located,
)
from asyncreader.formats.packed import DATA
from asyncreader.pixels import codec
from asyncreader.pixels.codec import decode_values
from asyncreader.system.array_types import Int64
from asyncreader.system.text import some

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
from ..temp_tables import Numbered, Numbers, Strings, gathered, sorted_records
from .labels import Labels, Row, class_names, hint_of_marks
from .origins import (
    NOT_LISTED,
    Found,
    Origin,
    Tree,
    has_image_suffix,
    ignored_in_words,
    open_origin,
    sort_key,
    text_file,
)
from .samples import RUN, Samples, Splits

#: Names of parts of a set, in lower case and without digits at the end (COCO's train2017).
_PARTS: Final = ("train", "training", "val", "valid", "validation", "test", "testing")
#: Folders that a message names.
_NAMED: Final = 3
#: How to say that first-level folders are classes, whatever their names and contents.
_MEANT: Final = "pass classes_from_folders (--classes-from-folders)"


@dataclass
class _Class:
    """A first-level folder with images."""

    #: Images that lie in it directly.
    direct: int = 0
    #: Folders in it that have images, and the first names of them.
    folders: int = 0
    named: list[bytes] = field(default_factory=list)
    last: bytes = b""


class ClassFolders:
    """The classes of ``tree``, whose images are added in the order of the walk."""

    def __init__(self, tree: Origin) -> None:
        self._tree = tree
        self._classes: dict[bytes, _Class] = {}

    def add(self, path: bytes) -> None:
        """Note an image, good or bad."""
        name, *inside = path.split(b"/", 2)
        if not inside:
            return
        found = self._classes.setdefault(name, _Class())
        if len(inside) == 1:
            found.direct += 1
        elif inside[0] != found.last:
            found.last = inside[0]
            found.folders += 1
            found.named += [inside[0]] if found.folders <= _NAMED else []

    def check(self) -> None:
        """FormatError where the folders are parts of a set: all that have images are called so,
        or two that have folders inside (a class may be called train: Pascal VOC has one)."""
        parts = [name for name in self._classes if is_part(name)]
        nested = [name for name in parts if self._classes[name].folders]
        if parts and (len(parts) == len(self._classes) or len(nested) >= 2):
            raise self.refusal()

    def refusal(self) -> FormatError:
        """The error that the folders found so far are parts of a set."""
        parts = [name for name in self._classes if is_part(name)]
        inside = [path for name in parts for path in self._inside(name)][:_NAMED]
        first = repr(self._tree.shown(parts[0]))
        way = f"convert {first}" if inside else f"convert {first} with --labels CSV or --no-labels"
        others = ", and the others with its classes (--classes SET)" if inside else ""
        return FormatError(
            f"folders called {_listed(parts)} are the parts of a dataset and no classes",
            path=self._tree.name,
            found=f"in them {', '.join(inside)}, ..." if inside else "images in them directly",
            expected="one folder for each class",
            hint=f"pass splits_from_folders (--splits-from-folders) for one dataset of these "
            f"parts, or {way}{others}; or {_MEANT} if they are the classes",
        )

    def notes(self, deep: bool) -> tuple[str, ...]:
        """What a user may not expect. ``deep``: also of the levels below the classes."""
        notes = []
        nested = [name for name, found in self._classes.items() if found.folders]
        if deep and self._lossy(nested):
            inside = [path for name in nested for path in self._inside(name)]
            direct = sum(self._classes[name].direct for name in nested)
            also = f" together with {some(direct, 'image')} next to them" if direct else ""
            notes.append(
                f"a class is a first-level folder: folders inside, such as "
                f"{', '.join(map(repr, inside[:_NAMED]))}, are no classes, and their images are "
                f"stored{also} as {_listed(nested)}; to make them classes convert "
                f"{self._tree.shown(nested[0])!r}, or {_MEANT} if this is meant"
            )
        empty = [name for name in self._tree.folders if name not in self._classes]
        if empty:
            notes.append(f"no images in {some(len(empty), 'class folder')}: {_listed(empty)}")
        return tuple(notes)

    def _lossy(self, nested: list[bytes]) -> bool:
        """Whether folders inside classes mean anything: one of the same name in each does not."""
        classes = [self._classes[name] for name in nested]
        plain = all(found.folders == 1 and not found.direct for found in classes)
        same = len({found.last for found in classes}) == 1 < len(classes)
        return bool(nested) and not (plain and same)

    def _inside(self, name: bytes) -> list[str]:
        return [os.fsdecode(name + b"/" + folder) for folder in self._classes[name].named]


def is_part(name: bytes) -> bool:
    """Whether a folder's name is that of a part of a set, such as train or val."""
    return name.decode("utf-8", "replace").lower().rstrip("0123456789_- ") in _PARTS


def _listed(names: list[bytes]) -> str:
    """'a', 'b' and 'c'; or the first of them."""
    shown = [repr(os.fsdecode(name)) for name in names[:_NAMED]]
    if len(names) > _NAMED:
        return f"{', '.join(shown)}, ..."
    return " and ".join(filter(None, (", ".join(shown[:-1]), shown[-1])))


# -- the list --------------------------------------------------------------------------------------


#: Missing files of a CSV that an error names.
_LISTED = 5
#: Splits that a note names.
_SPLITS = 10
#: Rows of a CSV that are looked up together where the images cannot be listed.
_LOOKED_UP = 4096


class Listing(Samples):
    """The images under ``options.src``, a folder or a URL, and their labels; how they are packed is
    up to FolderSamples.

    The labels are in the CSV ``labels``; or there are none (``no_labels``); or the class is the
    first folder level, also (``classes_from_folders``) where the folders are called train and val
    or have folders inside; with ``splits_from_folders`` the second one. ``classes`` fixes names and
    numbers; where only some samples are converted, other names follow these. ``exclude``: see
    :class:`origins.Tree`. ``files``: the path of each image below ``tree``; ``stamps``: the
    stamp of each when it was found, empty if it is not known until it is read.
    Raises SampleError (with ``source_path``) for the first image that must not be
    opened, unless ``skip_bad``; SourceError for errors of the whole set.
    """

    def __init__(
        self,
        options: Options,
        exclude: str | None = None,
        classes: tuple[str, ...] | None = None,
    ) -> None:
        super().__init__()
        self.tree = open_origin(options.src, options.follow_links, exclude)
        self.files, self.stamps = Strings(), Strings()
        self._skip_bad = options.skip_bad
        with closed_on_error([self.tree]):
            if options.labels is None:
                self._by_folders(options, classes)
                return
            with text_file(options.labels) as file:
                self._by_csv(options, file, classes)

    def _levels(self, path: bytes, levels: int) -> list[str]:
        """The first folders of a path, and the rest; FormatError where there are fewer."""
        found = path.split(b"/", levels - 1)
        if len(found) < levels:
            inside = "class folders" if levels == 3 else "images"
            raise FormatError(
                "an image lies in no split" if len(found) < 2 else "an image lies in no class",
                source_path=self.tree.shown(path),
                expected=f"a folder for each split, such as train/ and val/, with {inside} inside",
                hint="move the file, or leave out splits_from_folders (--splits-from-folders)"
                + (", or pass no_labels (--no-labels)" if len(found) == 2 else ""),
            )
        return [_name(one) for one in found]

    def _by_folders(self, options: Options, classes: tuple[str, ...] | None) -> None:
        """The images of class folders; or of folders such as train/ and val/, each with the classes
        inside; or all of them without labels."""
        # classes that are not among the given ones are accepted: their samples may be left out
        names = None if options.no_labels else Numbered(classes, options.selective)
        splits = Numbered() if options.splits_from_folders else None
        folders, meant = ClassFolders(self.tree), options.classes_from_folders
        plain = names is not None and splits is None
        name = ""
        for found in self.tree:
            if plain:
                folders.add(found.path)
            if not self._good(found):
                continue
            if splits is not None:
                split, name, *_ = self._levels(found.path, 2 if names is None else 3)
                splits.add(split)
            elif names is not None:
                name = self._class(found.path, names, folders, meant or classes is None)
            self._append(found)
            if names is not None and not names.add(name):
                raise FormatError(
                    "an unknown class",
                    source_path=self.tree.shown(found.path),
                    found=repr(name),
                    expected=f"one of the {len(names.names)} names given by classes",
                )
        if names is not None:
            if plain and classes is None:
                if not meant:
                    folders.check()
                names.note(map(_name, self.tree.folders))
            self.classes, self.labels = names.sorted()
            self.label_kind = "class"
        self._complete()
        if plain:
            self.notes = folders.notes(deep=not meant)
        if splits is not None:
            split_names, rows = splits.sorted()
            self.splits = Splits(split_names, rows[:, 0])
            self.notes = (self._which_splits(self.splits),)

    def _class(self, path: bytes, names: Numbered, folders: ClassFolders, any_name: bool) -> str:
        """The class of an image: its first folder."""
        if b"/" not in path:
            raise FormatError(
                "an image lies next to the class folders, so it has no class"
                if self.tree.has_folders()
                else "the folder is flat: its images have no class",
                source_path=self.tree.shown(path),
                expected="one folder for each class",
                hint="give labels (--labels CSV) or no_labels (--no-labels), or move the files",
            )
        top = path.split(b"/", 1)[0]
        name = _name(top)
        if not any_name and is_part(top) and name not in names.names:
            raise folders.refusal()
        return name

    def _append(self, found: Found) -> None:
        self.files.append(found.path)
        self.stamps.append(found.stamp)

    def _by_csv(self, options: Options, file: str, classes: tuple[str, ...] | None) -> None:
        table = Labels(options, file, self.tree, classes)
        rows = Numbers("q")
        missing: list[Row] = []
        absent = 0
        for row, found in self._joined(table.rows()):
            if found is None:
                absent += 1
                missing += [row] if len(missing) < _LISTED else []
            elif self._good(found):
                self._append(found)
                rows.append(row.number)
        if absent:
            raise _missing(options.labels or file, self.tree.name, missing, absent)
        numbers = rows.rows()
        self.labels = gathered(table.labels.rows().reshape(-1, table.labels.width), numbers)
        self.label_kind, self.classes, self.label_names = table.kind, table.classes, table.names
        self._complete()
        if table.splits is not None:
            names, split_of = table.splits.sorted()
            self.splits = Splits(names, gathered(split_of, numbers)[:, 0])
        self.notes = table.notes
        if table.groups is not None:
            self.groups = table.groups.rows()[numbers]

    def _joined(self, rows: Iterator[Row]) -> Iterator[tuple[Row, Found | None]]:
        """Each row with what the folder has for it; both come in the same order."""
        ignored = self.tree.ignored
        ignored[NOT_LISTED] = 0
        if not self.tree.lists:
            while some_rows := list(itertools.islice(rows, _LOOKED_UP)):
                images = self.tree.look_up([row.path for row in some_rows])
                yield from zip(some_rows, images, strict=True)
            return
        walk = iter(self.tree)
        found = next(walk, None)
        for row in rows:
            key = sort_key(row.path)
            while found is not None and sort_key(found.path) < key:
                ignored[NOT_LISTED] += has_image_suffix(found.path)
                found = next(walk, None)
            if found is not None and found.path == row.path:
                yield row, found
                found = next(walk, None)
            else:
                # the CSV names a file that the walk ignores (hidden, other suffix)
                yield row, self.tree.look_up([row.path])[0]
        while found is not None:
            ignored[NOT_LISTED] += has_image_suffix(found.path)
            found = next(walk, None)

    def _good(self, found: Found) -> bool:
        if found.problem is None:
            return True
        if not self._skip_bad:
            found.problem.source_path = self.tree.shown(found.path)
            found.problem.hint = found.problem.hint or SKIP_HINT
            raise found.problem
        path = found.path
        self.skipped.append((sort_key(path), os.fsdecode(path), found.problem))
        return False

    def _complete(self) -> None:
        """All images are listed."""
        if not len(self.files) and not self.skipped:
            raise SourceError(
                "there are no images in the folder",
                path=self.tree.name,
                found=ignored_in_words(self.tree.ignored) or "no files",
            )
        self.files.freeze()
        self.stamps.freeze()
        self.count, self.ignored = len(self.files), dict(self.tree.ignored)

    def _which_splits(self, splits: Splits) -> str:
        """What became of each first-level folder."""
        classes = self.labels
        said = []
        for number, name in enumerate(splits.names[:_SPLITS]):
            chosen = splits.rows == number
            words = some(int(chosen.sum()), "image")
            if classes is not None:
                words += f" in {some(np.unique(classes[chosen]).size, 'class')}"
            said.append(f"{name!r} ({words})")
        if len(splits.names) > _SPLITS:
            said.append(f"... ({len(splits.names):,} in all)")
        empty = [name for name in map(_name, self.tree.folders) if name not in splits.names]
        others = f"; no images in {', '.join(map(repr, empty[:_SPLITS]))}" if empty else ""
        return f"splits are the first-level folders: {', '.join(said)}{others}"


SKIP_HINT = "repair or remove it, or pass skip_bad (--skip-bad)"


def _name(folder: bytes) -> str:
    return folder.decode("utf-8", "surrogateescape")


def _missing(csv: str, root: str, rows: list[Row], count: int) -> SourceNotFoundError:
    paths = [os.fsdecode(row.path) for row in rows]
    named = ", ".join(f"{path!r} (line {row.line})" for path, row in zip(paths, rows, strict=True))
    path = f"a row begins with a path below {root!r}, suffix included: correct the CSV"
    return SourceNotFoundError(
        f"{count} of the files that the labels CSV names are not there",
        path=csv,
        found=named + (", ..." if count > len(rows) else ""),
        hint=hint_of_marks(paths) or path,
    )


# -- masks -----------------------------------------------------------------------------------------


#: Between a path's sort key and what follows it: a component is never empty, so none is inside.
_END: Final = b"\0\0"
_NUMBER: Final = struct.Struct(">Q")
#: What follows: a mask's path, or the number of an image. Masks are sorted first.
_MASK, _PICTURE = b"0", b"1"


class MaskFolder:
    """The masks of a folder's images, matched on disk and with bounded memory. ``paths``: by number
    of the image, b"" if it has none; ``extra``: masks without an image.

    Raises SourceNotFoundError where there is no such folder, SampleError for the first image
    without a mask (unless ``skip_bad``: then its fetch does), FormatError for one with two.
    """

    def __init__(
        self, name: str, folder: str, pictures: Strings, follow_links: bool, skip_bad: bool
    ) -> None:
        if not os.path.isdir(folder):
            kind = SourceError if os.path.lexists(folder) else SourceNotFoundError
            raise kind(f"there is no folder of field {name!r}", path=folder)
        self.name, self.tree = name, Tree(folder, follow_links)
        self.paths, self.extra = Strings(), 0
        missing, first = 0, b""
        for record in sorted_records(self._matched(pictures)):
            self.paths.append(record[_NUMBER.size :])
            if len(record) == _NUMBER.size:
                first = first or pictures[self.paths.count - 1]
                missing += 1
        if missing and not skip_bad:
            raise self._missing(first, missing)
        self.paths.freeze()

    def some(self, numbers: Sequence[int]) -> MaskFolder:
        """The masks of the images with these numbers."""
        chosen = copy.copy(self)
        chosen.paths = self.paths.some(numbers)
        return chosen

    def fetch(
        self, number: int, picture: bytes, full: tuple[int, int], recipe: Recipe, hold: Hold
    ) -> FieldBlock:
        """The mask of image ``number``, whose full size is ``full``, as it is stored.

        SampleError (with its ``source_path``) if it is missing, damaged or of another size.
        """
        path = self.paths[number]
        if not path:
            raise self._missing(picture, 1)
        with located(source_path=self.tree.shown(path)):
            data = self.tree.read(path, hold)
            header = codec.read_header(data)
            hold(decoding_bytes(header))
            return stored_values(self.name, decode_values(data), full, recipe)

    def _matched(self, pictures: Strings) -> Iterator[bytes]:
        """Records of image number and mask path, in order of the paths without suffixes."""
        # sorted together: each mask comes right before the images of the same stem
        masks = (_stem(mask.path) + _MASK + mask.path for mask in self.tree)
        images = (_stem(path) + _PICTURE + _NUMBER.pack(n) for n, path in enumerate(pictures))
        records = (r.split(_END, 1) for r in sorted_records(itertools.chain(masks, images)))
        for _, group in itertools.groupby(records, lambda record: record[0]):
            paths: list[bytes] = []
            used = False
            for _, record in group:
                if record.startswith(_MASK):
                    paths.append(record[1:])
                    continue
                if len(paths) > 1:
                    raise FormatError(
                        f"an image has two of field {self.name!r}",
                        source_path=self.tree.shown(paths[0]),
                        found=repr(self.tree.shown(paths[1])),
                        hint="remove one of them",
                    )
                yield record[1:] + b"".join(paths)
                used = True
            if not used:
                self.extra += len(paths)

    def _missing(self, picture: bytes, count: int) -> SampleError:
        stem = os.path.splitext(picture)[0]
        return SampleError(
            f"an image without its {self.name!r}",
            source_path=os.fsdecode(picture),
            found=None if count == 1 else f"{count:,} such images, this is the first",
            expected=f"{self.tree.shown(stem)}.png, or another suffix",
            hint=SKIP_HINT,
        )


def _stem(path: bytes) -> bytes:
    return sort_key(os.path.splitext(path)[0]) + _END


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
                self._masks.append(MaskFolder(*match))
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
            for masks in self._masks:
                path = masks.paths[number]
                state.update(path + b"\0" + (masks.tree.stamp(path, b"") if path else b"") + b"\0")
        return state.hexdigest()

    def part(self, numbers: Int64) -> FolderSamples:
        """The images ``numbers`` with their tables alone, to send to another machine."""
        part = self.of(numbers)
        wanted = self.in_source(numbers).tolist()
        part.files, part.stamps = self.files.some(wanted), self.stamps.some(wanted)
        part._masks = [masks.some(wanted) for masks in self._masks]
        part._name_paths()
        part.numbers, part.skipped = None, []
        return part

    def give_up(self) -> None:
        self.close()

    def close(self) -> None:
        self.tree.close()
