"""Lists of files as one set, all of them held open."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from ...errors import FormatError, ParamsError
from ...sampling.episodes import FieldRows, Windows, field_count, joined_episodes
from ...sampling.patches import Patches, joined_volumes
from ...system.array_types import Array, Int64
from ..base import FieldIndex
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
    ends = np.cumsum(np.array([file.facts.count for file in files], np.int64))
    tables, classes = _joined_classes(files)
    facts = replace(
        first,
        path=f"{first.path} and {len(files) - 1} more",
        count=int(ends[-1]),
        meta=None,
        classes=classes,
        io=REMOTE if any(file.facts.remote for file in files) else first.io,
        size_on_disk=sum(file.facts.size_on_disk for file in files),
        ends=ends,
        fields=tuple(
            field
            for field in first.fields
            if all(field.name in (one.name for one in file.facts.fields) for file in files)
        ),
    )
    labels, splits = _joined_labels(files, tables), joined_splits(files, [0, *ends.tolist()])
    held = {name: [file.only(name) for file in files] for name in names}
    windows = _joined_windows(files)
    own = {} if windows is None else windows.episodes.fields
    patches = [file.patches for file in files if file.patches is not None]
    places = [one.volumes.places for one in patches]
    fields = {
        name: _join(held[name], np.cumsum(places) if places else _own_rows(name, files, own))
        for name in names
    }
    parts = [JoinedSource(facts, one, held[name]) for name, one in fields.items()]
    whole = Patches(joined_volumes([one.volumes for one in patches])) if patches else None
    index = SetIndex(facts, fields, labels, splits, windows=windows, patches=whole)
    return OpenSet(index, parts)


def _joined_windows(files: Sequence[OpenSet]) -> Windows | None:
    """The episodes of all files; None where they are none."""
    found = [file.windows for file in files if file.windows is not None]
    if not found:
        return None
    if len(found) < len(files) or len({one.episodes.kind for one in found}) > 1:
        raise FormatError(
            "some of the files say otherwise than the first one where episodes end",
            path=next(
                file.facts.path
                for file in files
                if file.windows is None or file.windows.episodes.kind != found[0].episodes.kind
            ),
        )
    episodes = [one.episodes for one in found]
    if episodes[0].kind == "files":
        names = [os.path.basename(file.facts.path) for file in files]
        episodes = [replace(e, names=(n,)) for e, n in zip(episodes, names, strict=True)]
    joined = joined_episodes(episodes, episodes[0].kind)
    if joined.kind == "whole":
        if joined.fields:
            name = next(iter(joined.fields))
            raise FormatError(
                "one recording in several files has as many rows of each field",
                path=files[0].facts.path,
                found=f"field {name!r}, which has other rows than {files[0].names[0]!r}",
                hint='episodes="files": each file is a recording of its own',
            )
        joined = replace(joined, ends=joined.ends[-1:])
    return replace(found[0], episodes=joined)


def _own_rows(name: str, files: Sequence[OpenSet], own: Mapping[str, FieldRows]) -> Int64 | None:
    """The rows of a field up to the end of each file; None where they are the set's."""
    if name not in own:
        return None
    found = [file.windows.episodes for file in files if file.windows is not None]
    rows = [field_count(one, one.fields.get(name) or FieldRows(one.starts)) for one in found]
    return np.cumsum(np.array(rows, np.int64))


def _join(files: Sequence[OpenSet], own_rows: Int64 | None) -> FieldIndex:
    """One field of all files; ``own_rows``: see :func:`_own_rows`."""
    first = files[0].index.first
    checked = {file.index.first.checked for file in files}
    alike = len({file.spec.shape for file in files}) == 1
    shape, narrow = first.spec.shape if alike else None, all(file.spec.narrow for file in files)
    return replace(
        first,
        spec=replace(first.spec, shape=shape, narrow=narrow),
        storage=Joined(tuple(file.index for file in files), ends=own_rows),
        where=None,
        checksums=None,
        names=None,
        path=None,
        checked=checked.pop() if len(checked) == 1 else "some",
        offsets=joined_offsets(file.index.first.offsets for file in files),
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
