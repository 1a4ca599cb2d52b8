"""Lists of files as one set, all of them held open."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ...errors import FormatError, ParamsError
from ...system.array_types import Array, Int64
from ..base import FieldIndex, SetFacts
from ..bytestore import REMOTE
from ..fields import OpenSet, SetIndex
from ..labels import joined_tables, united
from .joined import Joined, JoinedSource


def join(files: Sequence[OpenSet]) -> OpenSet:
    """The open ``files`` as one set of the fields that all have. FormatError where they do not go
    together."""
    first = files[0].facts
    names = [name for name in files[0].names if all(name in file.names for file in files)]
    for name in names:
        for file in files[1:]:
            _check_alike(files[0].only(name), file.only(name))
    tables, classes = _joined_classes(files)
    common = [
        field
        for field in first.fields
        if all(field.name in (one.name for one in file.facts.fields) for file in files)
    ]
    facts, starts = joined_facts(files, classes=classes, fields=tuple(common))
    labels, splits = _joined_labels(files, tables), joined_splits(files, starts)
    held = {name: [file.only(name) for file in files] for name in names}
    rules = [file.rule for file in files]
    rule = next((one for one in rules if one.apart), rules[0])
    rule = rule.joined(rules, [file.facts.path for file in files])
    fields = {}
    for name in names:
        own = np.cumsum([file.rows_of(name) for file in files], dtype=np.int64)
        own_ends = None if np.array_equal(own, starts[1:]) else own
        storage = Joined(tuple(file.index for file in held[name]), ends=own_ends)
        fields[name] = joined_field(held[name], storage)
    parts = [JoinedSource(facts, one, held[name]) for name, one in fields.items()]
    return OpenSet(SetIndex(facts, fields, labels, splits, rule=rule), parts)


def joined_facts(sets: Sequence[OpenSet], **changes: Any) -> tuple[SetFacts, list[int]]:
    """The facts of several sets in sequence, with ``changes``, and the record numbers at which each
    of them begins, and the last one ends."""
    facts = [one.facts for one in sets]
    ends = np.cumsum(np.array([one.count for one in facts], np.int64))
    joined = replace(
        facts[0],
        path=f"{facts[0].path} and {len(facts) - 1} more",
        count=int(ends[-1]),
        meta=None,
        io=REMOTE if any(one.remote for one in facts) else facts[0].io,
        size_on_disk=sum(one.size_on_disk for one in facts),
        ends=ends,
        **changes,
    )
    return joined, [0, *ends.tolist()]


def joined_field(sets: Sequence[OpenSet], storage: Joined, **changes: Any) -> FieldIndex:
    """The only field of several sets in sequence, with ``changes``: what all of them store, as far
    as it is the same."""
    first, specs = sets[0].index.first, [one.spec for one in sets]
    checked = {one.index.first.checked for one in sets}
    alike = len({spec.shape for spec in specs}) == 1
    return replace(
        first,
        spec=replace(
            first.spec,
            shape=first.spec.shape if alike else None,
            narrow=all(spec.narrow for spec in specs),
        ),
        storage=storage,
        where=None,
        checksums=None,
        names=None,
        path=None,
        checked=checked.pop() if len(checked) == 1 else "some",
        offsets=joined_offsets(one.index.first.offsets for one in sets),
        **changes,
    )


def joined_offsets(tables: Iterable[Array | None]) -> Int64 | None:
    """Where the values of samples of different length begin among those of all files."""
    there = [table.astype(np.int64) for table in tables if table is not None]
    if not there:
        return None
    ends = np.cumsum([0, *(int(table[-1]) for table in there)])
    starts = (table[:-1] + end for table, end in zip(there, ends.tolist(), strict=False))
    return np.concatenate((*starts, ends[-1:]))


def _joined_labels(files: Sequence[OpenSet], tables: list[Array | None]) -> Array | None:
    there = [table for table in tables if table is not None]
    if not there:
        return None
    if len(there) < len(files):
        raise FormatError(
            "some of the files have labels and some have none",
            path=files[[table is None for table in tables].index(True)].facts.path,
            hint="pass labels_field=None to read all of them without",
        )
    try:
        return joined_tables(there)
    except ParamsError:
        raise
    except ValueError as exc:
        raise FormatError(
            "the files' labels differ in shape",
            found=", ".join(str(table.shape[1:]) for table in there),
        ) from exc


def joined_splits(files: Sequence[OpenSet], starts: Sequence[int]) -> Mapping[str, slice | Int64]:
    """Splits that every file has: their records, file by file."""
    names = [name for name in files[0].splits if all(name in file.splits for file in files)]
    joined: dict[str, slice | Int64] = {}
    for name in names:
        rows = []
        for file, start in zip(files, starts, strict=False):
            split = file.splits[name]
            chosen = np.arange(split.start, split.stop) if isinstance(split, slice) else split
            rows.append(chosen.astype(np.int64) + start)
        joined[name] = np.concatenate(rows)
    return joined


def _joined_classes(
    files: Sequence[OpenSet],
) -> tuple[list[Array | None], tuple[str, ...] | None]:
    """Labels of each file, and the class names of all.

    Foreign sets number the names that they hold (OCR, say), so that numbers are worked out anew.
    """
    labels = [file.table for file in files]
    named = [file.facts.classes for file in files]
    if all(names == named[0] for names in named):
        return labels, named[0]
    return united(labels, named)


def _check_alike(first: OpenSet, file: OpenSet) -> None:
    if first.index.first.columns != file.index.first.columns:
        raise FormatError(
            "this file has other columns (genes) than the first one, or another order of them",
            path=file.facts.path,
            hint="columns=[...] takes the columns of these names from each file",
        )
    one, other = first.spec, file.spec
    same = (one.dtype, one.axes, one.encoded) == (other.dtype, other.axes, other.encoded)
    same = same and one.ragged == other.ragged
    same = same and one.image_shape()[2] == other.image_shape()[2]
    if not one.encoded:
        same = same and one.shape == other.shape
    packed = first.facts.meta is not None or file.facts.meta is not None
    named = (first.facts.classes is None, file.facts.classes is None)
    if not same or named[0] != named[1] or (packed and first.facts.classes != file.facts.classes):
        hint = "all files of a dataset need the same shape, dtype, encoding and classes: convert "
        hint += "them so (--classes takes the classes of another dataset)"
        if not packed and not one.encoded and one.shape != other.shape:
            hint += "; of volumes, one in each file, sample_axis=None with patch=(Z, Y, X) serves "
            hint += "parts of one shape"
        raise FormatError(
            "this file does not match the first one",
            path=file.facts.path,
            found=_kind(file),
            expected=_kind(first),
            hint=hint,
        )


def _kind(file: OpenSet) -> str:
    """What all files of a set have in common, in words."""
    spec = file.spec
    shape = "images of many sizes" if spec.shape is None else f"{spec.shape}"
    shape = f"rows of different length of {shape}" if spec.ragged else shape
    names = file.facts.classes or ()
    listed = ", ".join(map(repr, names[:4])) + (", ..." if len(names) > 4 else "")
    classes = f"{len(names)} classes" + (f" ({listed})" if names else "")
    return f"{shape} {spec.dtype} {spec.encoding}, {classes}"
