"""Opens what is to be packed: folders and packed sets, joined, all samples or some, with splits."""

from __future__ import annotations

import copy
import csv
import json
import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
import xxhash

from asyncreader.errors import FormatError, ParamsError, closed_on_error
from asyncreader.formats.packed import RAGGED, Encoding
from asyncreader.sampling.feistel import permutation
from asyncreader.system.array_types import Array, Int64
from asyncreader.system.text import some

from ..encode import Block, Hold
from ..options import Condition, Options
from ..temp_tables import PathOf, blocks, renumbered, spooled
from .dataset_samples import DatasetSamples, may_be_packed
from .folder import FolderSamples
from .labels import class_names
from .origins import open_text
from .samples import Samples, Splits, check_split_names, drawn, shared_out

#: Paths or classes that an error names.
_NAMED = 5
#: In place of the number of a class that has none.
_UNKNOWN = -2


def renamed(samples: Samples, classes: tuple[str, ...]) -> Samples:
    """The samples with labels that number the names ``classes``, among them those of all of these
    samples; they name the labels of a source that has no names. ParamsError and FormatError: see
    Renumbering."""
    if samples.labels is None:
        raise ParamsError("classes are the names of labels, and the samples have none")
    names = samples.classes if samples.label_kind == "class" else None
    numbers = Renumbering(names or classes, classes)
    table = samples.labels
    changed = copy.copy(samples)
    changed.labels = spooled(numbers.of(table[part]) for part in blocks(samples.count))
    changed.label_kind, changed.classes = "class", classes
    return changed


class Renumbering:
    """From the numbers of ``names`` to those that the same names have in ``classes``; -1, which is
    no class, stays."""

    def __init__(self, names: tuple[str, ...], classes: tuple[str, ...]) -> None:
        self._names, self._known = names, len(classes)
        self._numbers = renumbered(names, classes, _UNKNOWN)

    def of(self, labels: Array) -> Int64:
        """The new numbers. ParamsError for labels that number no names, FormatError for those of a
        name that ``classes`` lacks."""
        top = len(self._names)
        if labels.dtype.kind not in "iu" or bool(((labels < -1) | (labels >= top)).any()):
            raise ParamsError(
                "the labels are no numbers of the classes",
                found=f"{labels.dtype}, from {labels.min()} to {labels.max()}",
                expected=f"whole numbers from 0 to {top - 1}, or -1 for no class",
            )
        numbers: Int64 = self._numbers[labels]
        unknown = np.unique(labels[numbers == _UNKNOWN]).tolist()
        if unknown:
            raise FormatError(
                "an unknown class",
                found=", ".join(repr(self._names[number]) for number in unknown[:_NAMED]),
                expected=f"one of the {self._known} names given by classes",
            )
        return numbers


def select(samples: Samples, conditions: Sequence[Condition]) -> Int64:
    """The numbers of the samples that fulfil all conditions. ParamsError where one names what is
    not there, or selects nothing."""
    numbers: Int64 = np.arange(samples.count, dtype=np.int64)
    for condition in conditions:
        numbers = _fulfilling(condition, samples, numbers)
        if not numbers.size:
            raise ParamsError("select leaves no sample", found=_shown(condition))
    return numbers


def _shown(condition: Condition) -> str:
    if condition.kind == "slice":
        return str(condition.rows)
    return f"{condition.kind}={','.join(condition.names)}".removeprefix("=")


def _fulfilling(condition: Condition, samples: Samples, numbers: Int64) -> Int64:
    kind, names = condition.kind, condition.names
    if kind == "slice":
        return numbers[condition.rows]
    if kind == "paths":
        return numbers[np.isin(numbers, _listed(samples, names[0]))]
    splits = () if samples.splits is None else samples.splits.names
    classes = (samples.classes if samples.label_kind == "class" else None) or ()
    if not kind:
        both = (("split", splits), ("classes", classes))
        known = [word for word, of in both if not set(_each_of(names, of)) - {*of}]
        if len(known) != 1:
            raise ParamsError(
                "select names both splits and classes" if known else "select names nothing here",
                found=_shown(condition),
                expected=f"splits: {_some_of(splits)}; classes: {_some_of(classes)}; or a CSV",
                hint="write split=..., classes=... or paths=...",
            )
        kind = known[0]
    of = splits if kind == "split" else classes
    names = _each_of(names, of)
    missing = [name for name in names if name not in of]
    if missing:
        raise ParamsError(
            f"select names a {'split' if kind == 'split' else 'class'} that the source has not",
            found=", ".join(map(repr, missing)),
            expected=_some_of(of),
        )
    wanted = [of.index(name) for name in names]
    if kind == "split":
        assert samples.splits is not None
        return numbers[np.isin(samples.splits.rows[numbers], wanted)]
    assert samples.labels is not None
    return numbers[np.isin(samples.labels[numbers], wanted).any(axis=1)]


def _each_of(texts: Sequence[str], known: Sequence[str]) -> tuple[str, ...]:
    """The names in ``texts``, each a known name or several with commas between."""
    return tuple(n for text in texts for n in ([text] if text in known else text.split(",")))


def _some_of(names: Sequence[str]) -> str:
    shown = ", ".join(map(repr, names[:_NAMED]))
    return f"{shown}, ..." if len(names) > _NAMED else shown or "none"


def _listed(samples: Samples, file: str) -> Int64:
    """The numbers of the samples that a CSV lists by path, in its first column."""
    path = samples.paths[0]
    if path is None:
        raise ParamsError("select goes by paths, and this dataset has none", found=file)
    with open_text(file, "the CSV of paths") as lines:
        rows = [os.path.normpath(row[0]) for row in csv.reader(lines, strict=True) if row]
    asked = dict.fromkeys(name.encode("utf-8", "surrogateescape") for name in rows)
    found = [number for number in range(samples.count) if path(number) in asked]
    missing = asked.keys() - set(map(path, found))
    # a first line that is no path is the header
    first = next(iter(asked), b"")
    if missing - ({first} if b"." not in first and b"/" not in first else set()):
        names = [os.fsdecode(name) for name in asked if name in missing]
        raise ParamsError(
            f"the CSV of paths lists {some(len(names), 'path')} that the source has not",
            path=file,
            found=", ".join(map(repr, names[:_NAMED])),
            expected=f"paths such as {os.fsdecode(path(0))!r}",
        )
    return np.array(found, np.int64)


# -- several sources -----------------------------------------------------------------------------


class JoinedSamples(Samples):
    """The samples of ``parts`` in sequence, of which all have the same fields, encoding and kind of
    labels, and number the same classes. ``shown``: the parts' names for messages."""

    def __init__(self, parts: Sequence[Samples], shown: Sequence[str]) -> None:
        super().__init__()
        self._parts, first = tuple(parts), parts[0]
        for part, name in zip(parts[1:], shown[1:], strict=True):
            _check_alike(first, part, name)
        self._ends = np.cumsum([part.count for part in parts])
        self.count = int(self._ends[-1])
        self.encodings, self.channels, self.fields = first.encodings, first.channels, first.fields
        self.label_kind, self.classes = first.label_kind, first.classes
        if all(part.label_names for part in parts):
            self.label_names = first.label_names
        if first.labels is not None:
            self.labels = spooled(
                part.labels[rows]
                for part in parts
                for rows in blocks(part.count)
                if part.labels is not None
            )
        self.run = min(part.run for part in parts)
        self.ahead = min(part.ahead for part in parts)
        self.paths = tuple(map(self._path_of, zip(*(part.paths for part in parts), strict=True)))
        self.notes = tuple(note for part in parts for note in part.notes)
        for number, part in enumerate(parts):
            for kind, count in part.ignored.items():
                self.ignored[kind] = self.ignored.get(kind, 0) + count
            self.skipped += [((number, key), name, why) for key, name, why in part.skipped]
        if any(part.splits is not None for part in parts):
            self.splits = _joined_splits(parts)
        if all(part.groups is not None for part in parts):
            self.groups = np.concatenate([p.groups for p in parts if p.groups is not None])

    def _place(self, number: int) -> tuple[int, int]:
        """The part that a sample of the source lies in, and its number there."""
        part = int(np.searchsorted(self._ends, number, side="right"))
        return part, number - (int(self._ends[part - 1]) if part else 0)

    def _at(self, number: int) -> tuple[Samples, int]:
        part, inside = self._place(self.at(number))
        return self._parts[part], inside

    def _path_of(self, paths: Sequence[PathOf | None]) -> PathOf | None:
        known = [path for path in paths if path is not None]
        if len(known) < len(paths):
            return None

        def path(number: int) -> bytes:
            part, inside = self._place(number)
            return known[part](inside)

        return path

    def _source_identity(self) -> str:
        return " and ".join(f"{part.identity}, {part.count}" for part in self._parts)

    def fetch(self, number: int, hold: Hold) -> Block:
        part, inside = self._at(number)
        return part.fetch(inside, hold)

    def sources(self, numbers: Int64) -> str:
        numbers, start, found = self.in_source(numbers), 0, []
        for part, end in zip(self._parts, self._ends, strict=True):
            inside = numbers[(numbers >= start) & (numbers < end)] - start
            found += [part.sources(inside)] if inside.size else []
            start = end
        return xxhash.xxh3_128_hexdigest("\0".join(found).encode("ascii")) if any(found) else ""

    def name(self, number: int) -> tuple[Any, str]:
        part, inside = self._place(self.at(number))
        key, name = self._parts[part].name(inside)
        return (part, key), name

    def where(self, number: int) -> str:
        part, inside = self._at(number)
        return part.where(inside)

    def will_need(self, number: int) -> bool:
        part, inside = self._at(number)
        return part.will_need(inside)

    def give_up(self) -> None:
        for part in self._parts:
            part.give_up()

    def close(self) -> None:
        for part in self._parts:
            part.close()


def check_same(says: str, path: str, *facts: tuple[Any, ...]) -> None:
    """ParamsError where samples differ from those that they go to. ``facts``: of each its name,
    what it is, what it has to be, and perhaps a hint; ``says``: the message, with {} for the name.
    """
    for what, *values, hint in ((*fact, None)[:4] for fact in facts):
        found, expected = map(str, values)
        if found != expected:
            what = says.format(what)
            raise ParamsError(what, path=path, found=found, expected=expected, hint=hint)


def _check_alike(first: Samples, other: Samples, name: str) -> None:
    named = other.label_names
    check_same(
        "this source has other {} than the first one",
        name,
        ("fields", other.fields, first.fields),
        ("encoding", other.encodings, first.encodings, "name one for all (--encoding jpeg)"),
        ("channels", other.channels, first.channels, "name them (--channels 3)"),
        ("labels", _labels(other), _labels(first), "leave them out (--no-labels)"),
        ("label names", named, named and (first.label_names or named), "give them one order"),
    )


def _labels(samples: Samples) -> str:
    """The kind of labels, in words."""
    if samples.labels is None:
        return "no labels"
    kind = "classes" if samples.label_kind == "class" else "values"
    return f"{kind}, {samples.labels.shape[1]} of {samples.labels.dtype} for each sample"


def _joined_splits(parts: Sequence[Samples]) -> Splits:
    """The splits of all parts: those of the same name are one."""
    names = dict.fromkeys(n for one in parts if one.splits is not None for n in one.splits.names)
    rows = []
    for one in parts:
        own, of = one.splits or Splits((), np.full(one.count, -1, np.int64))
        rows.append(renumbered(own, names)[of])
    return Splits(tuple(names), np.concatenate(rows))


# -- all of them -----------------------------------------------------------------------------------


#: Keeps the order of packing independent of every order of training with the same seed.
_STREAM: Final = 0x7061636B

#: Letters of the names in a description, which has at most 64 KiB in HDF5.
MOST_LETTERS: Final = 60_000


def open_samples(
    options: Options, exclude: str, known: tuple[str, ...] = (), usual: Encoding | None = None
) -> Samples:
    """What the sources in ``options`` hold, and ``options`` choose of it, in their order.

    ``exclude``: the target, in case it lies inside a folder; ``known``: classes that keep their
    numbers, new ones go behind; ``usual``: the encoding of sources that have it already, or have
    none.
    """
    opened: list[Samples] = []
    if len(options.sources) > 1:
        usual = usual or options.encoding
    with closed_on_error(opened):
        for path in options.sources:
            params = options.params and replace(options.params, path=path)
            opened.append(_open(replace(options, src=path, params=params), exclude, usual))
        given = None if options.classes is None else class_names(options.classes)
        whole = _of_one_list(opened, known if given is None else given)
        samples = whole[0] if len(whole) == 1 else JoinedSamples(whole, options.sources)
        if options.select:
            samples = samples.of(select(samples, options.select))
        if options.sample is not None:
            samples = samples.of(drawn(options, samples))
        if given is not None and (samples.classes != given or samples.label_kind != "class"):
            samples = renamed(samples, given)
        if samples.splits is not None:
            samples.splits = samples.splits.present()
        if options.split:
            samples.splits = shared_out(options, samples)
        if samples.splits is not None:
            check_split_names(samples.splits.names)
        if options.shuffle is not None:
            positions = np.arange(samples.count, dtype=np.int64)
            samples = samples.of(permutation(samples.count, options.shuffle, _STREAM)(positions))
        splits = () if samples.splits is None else samples.splits.names
        if len(json.dumps([*splits, *samples.label_names])) > MOST_LETTERS:
            samples.label_names = ()
            samples.notes = (*samples.notes, "the names of the labels are too long to be kept")
        return samples


def _open(options: Options, exclude: str, usual: Encoding | None) -> Samples:
    if not may_be_packed(options.src):
        if options.params is not None:
            raise ParamsError(
                "params say how a dataset is read", path=options.src, found="a folder"
            )
        if options.kinds:
            raise ParamsError(
                "boxes_field, keypoints_field and numbers_field say what the fields of a dataset "
                "hold, or of samples that a program adds",
                path=options.src,
                found="a folder, which has images alone",
            )
        return FolderSamples(replace(options, encoding=options.encoding or usual), exclude)
    if options.fields:
        raise ParamsError("fields are for folders of images", found="a dataset")
    if usual is None:
        return DatasetSamples(options)
    # named for a source that has it, an encoding would encode its samples again
    samples = DatasetSamples(replace(options, encoding=None))
    if samples.encoding == usual or RAGGED in (samples.encoding, usual):
        return samples  # the others differ from it: that is an error
    samples.close()
    return DatasetSamples(replace(options, encoding=usual))


def _of_one_list(opened: Sequence[Samples], known: tuple[str, ...]) -> Sequence[Samples]:
    """The sources with one list of classes: ``known`` ones, and behind them the others of all."""
    names = [one.classes for one in opened]
    if opened[0].label_kind != "class" or (not known and all(one == names[0] for one in names)):
        return opened
    new = {name for one in names for name in one or ()} - set(known)
    ordered = sorted(new, key=lambda name: name.encode("utf-8", "surrogateescape"))
    every = (*known, *ordered)
    return [
        one if one.classes == every or one.label_kind != "class" else renamed(one, every)
        for one in opened
    ]
