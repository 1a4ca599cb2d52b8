"""Checks the folders of a tree as classes: parts of a set are an error, losses are noted."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Final

from asyncreader.errors import FormatError
from asyncreader.system.text import some

from .origin import Origin

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
