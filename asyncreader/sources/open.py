"""Opens a path, a glob pattern, a list, a URL or an array as one source."""

from __future__ import annotations

import contextlib
import glob
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, TypeAlias

import numpy as np

from ..errors import (
    AsyncReaderError,
    FormatError,
    ParamsError,
    SourceError,
    SourceNotFoundError,
    closed_on_error,
    located,
)
from ..formats import packed as fmt
from ..formats.manifest import CONTAINERS, Manifest, manifest_path, read_manifest
from ..params.reader import ReaderParams
from ..params.values import Chosen
from ..sampling.episodes import Episodes, Windows
from ..system.array_types import Array
from ..system.checks import FILE, DatasetPath
from ..system.text import natural
from .arrays import index_arrays, label_array, patches_of
from .base import FieldIndex
from .bytestore import OpenFile
from .episodes import array_episodes, of_episodes, tables_of, windows_of
from .fields import OpenSet, SetIndex, index_each, joined_fields
from .labels import together, with_labels
from .layouts.hdf5_sparse import sum_dtype
from .layouts.known import index_hdf5
from .ragged import array_offsets, ragged_field
from .request import Cut, NoFieldError, NoSamplesError, Request, check_labels
from .sets.combined import MixedSet, join, mix
from .sets.joined import allow_open
from .sets.shards import open_shards, volumes_of_shards
from .sniff import FAMILY, absolute_file, is_url, local_path, sniff

#: What a caller names: a path, a glob pattern, a URL, or a list of them.
Paths: TypeAlias = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


def fields_of(p: ReaderParams) -> Request:
    """Which fields of a set a reader's parameters name, and what is asked of them."""
    stored = _stored(p)
    opened = _opened_as(p, stored)
    first, *others = dict.fromkeys(opened.values())
    by_field: dict[str, Any] = {
        "dtype": p.dtype,
        "columns": p.columns,
        "offsets": p.offsets_field,
    }
    for option, given in by_field.items():
        if isinstance(given, dict):  # without the names that are those of another field
            by_field[option] = {n: one for n, one in given.items() if opened.get(n, n) == n}
    rows = p.patch.shape is None
    return Request(
        data=stored[first],
        name=None if isinstance(p.data_field, str) else first,
        others={name: stored[name] for name in others},
        episodes=p.episodes,
        windowed=p.window.rows is not None or p.episodes_subset is not None,
        labels=None if isinstance(p.labels_field, tuple) else p.labels_field,
        labels_path=p.labels_path,
        dims=p.axes.dims,
        labels_required=p.labels_field != "labels" or p.labels_path is not None,
        channel_order=p.channel_order,
        moved=p.size is not None or p.flip or p.views is not None,
        places=p.places,
        limited=p.lengths.most is not None,
        physical=p.values == "physical",
        missing=float("nan") if p.missing is None else p.missing,
        lead=0 if rows and p.sample_axis is None else 1,
        along=(p.sample_axis or 0) if rows else 0,
        cut=None if p.patch.shape is None else Cut(p.patch.shape, p.patch.axes, p.sample_axis),
        **by_field,
    )


def _stored(p: ReaderParams) -> dict[str, str]:
    """The names in the file of the fields that are served, by the names that they are served
    under."""
    field = p.data_field
    if isinstance(p.data, dict) and field == fmt.DATA:
        asked = p.offsets_field
        named = asked if isinstance(asked, dict) else dict.fromkeys(p.data, asked)
        offsets = [_array_offsets(p, name, p.data, named.get(name)) for name in p.data]
        tables = {*tables_of(p.episodes), *(one[0] for one in offsets if one is not None)}
        field = tuple(name for name in p.data if name not in tables and name not in p.places)
    elif p.data is not None and p.field_names is None:
        field = fmt.DATA
    if isinstance(field, str):
        field = (field,)
    named = field if isinstance(field, dict) else dict(zip(field, field, strict=True))
    places = p.places
    return {**named, **dict(zip(places, places, strict=True))}


def _opened_as(p: ReaderParams, stored: Mapping[str, str]) -> dict[str, str]:
    """The names of fields in the open set by the names that they are served under: a ``stored``
    field is opened once for all names that ask the same of it."""
    if len(set(stored.values())) == len(stored):
        return dict(zip(stored, stored, strict=True))
    opened: dict[tuple[object, ...], str] = {}
    found: dict[str, str] = {}
    for name, held in stored.items():
        asked: list[Any] = [p.columns, p.offsets_field, p.dtype]
        columns, offsets, dtype = (
            given.get(name) if isinstance(given, dict) else given for given in asked
        )
        if found and not isinstance(p.dtype, dict):  # it is said of the first field alone
            dtype = None
        made = sum_dtype(np.dtype(np.int64), None if dtype is None else np.dtype(dtype))
        found[name] = opened.setdefault((held, columns, offsets, made), name)
    return found


def _check_by_field(asked: Request, index: SetIndex) -> None:
    """ParamsError where columns or offsets are asked for of what has none."""
    names = index.fields
    for option, given in (("columns", asked.columns), ("offsets_field", asked.offsets)):
        wrong = [name for name in given if name not in names] if isinstance(given, Mapping) else []
        if wrong:
            raise ParamsError(
                f"{option} names a field that is not read",
                found=repr(wrong[0]),
                expected=" or ".join(map(repr, names)),
            )
    requests = {name: replace(asked, name=name) for name in names}
    for name, one in requests.items():
        if one.own_columns is not None:
            _check_columns(one.own_columns, name, names[name])
    unused = [n for n, r in requests.items() if r.own_offsets and r.own_offsets != names[n].table]
    if unused and (isinstance(asked.offsets, Mapping) or len(unused) == len(names)):
        whose = "no field has such"
        if isinstance(asked.offsets, Mapping):
            whose = f"field {unused[0]!r} has none"
        raise ParamsError(
            f"offsets_field names where samples begin among values, and {whose}",
            found=f"offsets_field={requests[unused[0]].own_offsets!r}, {index.facts.layout}",
            expected="arrays of values, in HDF5 or in memory",
            hint="leave offsets_field out: HDF5's variable length needs none",
        )


def _check_columns(columns: Chosen, name: str, field: FieldIndex) -> None:
    """ParamsError unless a field has such columns to choose from."""
    ragged, chosen = field.spec.ragged, field.spec.columns is not None
    if chosen or (field.stored_as is not None and not ragged):  # sparse rows
        return
    named = isinstance(columns[0], str) and len(field.spec.shape or ()) == 1 and not ragged
    raise ParamsError(
        f"the columns of field {name!r} have no names"
        if named
        else f"columns choose among the numbers of a row, and field {name!r} has none",
        found=f"{'values' if ragged else 'samples'} of shape {field.spec.shape}"
        + (", samples differ in length" if ragged else ""),
        hint="give their numbers"
        if named
        else "serve it whole, and choose from it in postprocess; with several fields: "
        "columns={field: [...]}",
    )


def expand_paths(path: Paths) -> list[str]:
    """The files that a path, a glob pattern or a list of either names, in that order: absolute
    paths, since some are opened later, and URLs."""
    if not isinstance(path, str | os.PathLike):
        return [found for entry in path for found in expand_paths(entry)]
    text = FILE("path", path)
    if not os.path.isabs(text) and is_url(text):
        local = local_path(text)
        return [text] if local is None else expand_paths(local)
    if not _is_pattern(text):
        return [absolute_file(text)]
    found = [absolute_file(name) for name in sorted(glob.glob(text, recursive=True))]
    if not found:
        raise SourceNotFoundError("nothing matches this pattern", path=text)
    return found


def _is_pattern(text: str) -> bool:
    return glob.has_magic(text) and not os.path.lexists(text)


def open_whole(path: Paths, fields: Request | None = None, *, io: str = "auto") -> OpenSet:
    """The set in packed files, with the other fields of a set packed by asyncreader."""
    return open_source(path, replace(fields or Request(), others=None), io=io)


def open_source(
    path: Paths, fields: Request | None = None, *, io: str = "auto", expect: str | None = None
) -> OpenSet:
    """Open packed files as one set of the fields that are asked for.

    ``expect``: "HDF5" or "LMDB" where only that will do. Raises SourceNotFoundError, FormatError
    or ParamsError; nothing stays open then.
    """
    fields = fields or Request()
    found = _open_files(path, fields, io, expect)
    if fields.episodes == "whole":
        found = _as_episode(found, fields)
    if fields.columns is not None or fields.offsets:
        with closed_on_error([found]), located(path=found.facts.path):
            _check_by_field(fields, found.index)
    return found


def _open_files(path: Paths, fields: Request, io: str, expect: str | None) -> OpenSet:
    """The files of a path as one set."""
    names = expand_paths(path)
    if fields.windowed or fields.episodes is not None:
        if isinstance(path, str | os.PathLike):
            names.sort(key=natural)
        fields = replace(fields, several=len(names) > 1)
    if not isinstance(path, str | os.PathLike) or _is_pattern(os.fspath(path)):
        known = None if fields.cut is not None else _by_manifest(names)
        if known is not None and expect in (None, CONTAINERS[known[1].common.container]):
            return open_shards(known[0], fields, io=io, manifest=known[1])
        _check_family(names)
    allow_open(len(names))
    files: list[OpenSet] = []
    empty: list[NoSamplesError] = []
    with closed_on_error(files):
        try:
            for name in names:
                try:
                    for found in _open_named(name, fields, io, expect):
                        files.append(found)
                        if fields.windowed or fields.episodes is not None:
                            files[-1] = _as_episode(found, fields)
                except NoSamplesError as exc:
                    if not _episode_each(fields):
                        raise
                    empty.append(exc)
        except AsyncReaderError as exc:
            exc.shift_record(sum(file.facts.count for file in files))
            raise
        if not files and empty:
            raise empty[0]
        if not files:
            raise SourceNotFoundError("no files were named", path=str(path))
        whole = files[0] if len(files) == 1 else join(_under_one_name(files))
        return _with_empty(whole, len(empty)) if empty else whole


def _under_one_name(sets: Sequence[OpenSet]) -> list[OpenSet]:
    """The sets, each of the field that its layout has where the caller names none, with that field
    under its name in the first of them."""
    name, *others = sets[0].names
    found = []
    for one in sets:
        differs = not others and len(one.names) == 1 and one.names[0] != name
        found.append(one.renamed({name: one.names[0]}) if differs else one)
    return found


def _by_manifest(names: Sequence[str]) -> tuple[str, Manifest] | None:
    """The manifest in the folder of the shards ``names``, and its rows for them, if it lists each
    of them once. They are then read like the whole set, a few open at a time."""
    folders = {os.path.dirname(os.path.abspath(name)) for name in names}
    file = manifest_path(next(iter(folders))) if len(folders) == 1 and len(names) > 1 else None
    if file is None:
        return None
    try:
        whole = read_manifest(file)
    except SourceError:
        return None  # the named files may still be good
    known = {whole.name(number): number for number in range(len(whole))}
    numbers = [known.get(os.path.basename(name), -1) for name in names]
    if -1 in numbers or len(set(numbers)) < len(numbers):
        return None
    _warn_if_some(file, len(numbers), len(whole))
    return file, whole.take(numbers)


def _warn_if_some(where: str, named: int, total: int) -> None:
    if named < total:
        warnings.warn(
            f"{where}: {named} of the {total} shards of the dataset are named; pass the folder for "
            "all of them",
            stacklevel=5,
        )


def _open_named(name: str, fields: Request, io: str, expect: str | None) -> Iterator[OpenSet]:
    """The set of one name that :func:`expand_paths` gave; of volumes in shards, one for each."""
    if not os.path.isabs(name) and is_url(name):
        from .remote.open import open_remote  # with asyncio, which costs files on disk 0.05 s

        remote = open_remote(name, fields, io=io)
        yield remote  # before the check: the caller closes it, even if it is the wrong kind
        _expect(expect, remote.facts.container, name)
        return
    found = sniff(name, io)
    with closed_on_error([found]):
        _expect(expect, found.container, name)
    if found.manifest is not None and fields.cut is not None:
        yield from volumes_of_shards(*found.manifest, fields, io=io)
    elif found.manifest is not None:
        manifest_file, manifest = found.manifest
        yield open_shards(manifest_file, fields, io=io, manifest=manifest)
    else:
        yield found.open(fields)


def _expect(expect: str | None, found: str, path: str) -> None:
    if expect not in (None, found):
        raise FormatError(f"not an {expect} file", path=path, found=found)


def _check_family(names: Sequence[str]) -> None:
    """Shards named one by one: not also by their manifest, and a warning if some are left out."""
    families: dict[tuple[str, str, str], set[int]] = {}
    folders = set()
    for name in names:
        if not os.path.isabs(name):
            continue  # a URL
        manifest = manifest_path(name)
        if manifest is not None:
            folders.add(os.path.dirname(os.path.abspath(manifest)))
            continue
        folder, base = os.path.split(os.path.abspath(name.rstrip("/")))
        found = FAMILY.search(base)
        if found is not None:
            family = folder, base[: found.start()], found[2]
            families.setdefault(family, set()).add(int(found[1]))
    for (folder, base, total), numbers in families.items():
        if folder in folders:
            raise ParamsError(
                "shards are named one by one and by their manifest, so they would come twice",
                path=folder,
                hint="pass the folder alone",
            )
        _warn_if_some(os.path.join(folder, base), len(numbers), int(total))


def open_reader_source(p: ReaderParams) -> OpenSet:
    """What a reader's parameters name: fields of a path's set, or arrays, with their labels.

    Raises SourceNotFoundError, FormatError or ParamsError; nothing stays open then.
    """
    if isinstance(p.labels_field, tuple):
        return _with_several(p, p.labels_field)
    if p.labels is not None and (p.data is None or p.episodes is not None):
        found = open_reader_source(replace(p, labels=None, labels_field=None))
        with closed_on_error([found]):
            return OpenSet(with_labels(found, p.labels), found.parts)
    fields = fields_of(p)
    if p.mix.ratios is not None:
        return _open_mix(p, p.mix.ratios, fields)
    if p.data is not None:
        return _open_arrays(p, p.data, fields)
    expect = "HDF5" if p.hdf5_path is not None else "LMDB" if p.lmdb_path is not None else None
    found = open_source(p.given_path, fields, io=p.io, expect=expect)
    ruled = found.rule.apart or fields.windowed or p.episodes or p.patch.shape
    if p.field_names is None and not ruled:
        return found
    with closed_on_error([found]):
        return _named(p, found)


def _open_mix(
    p: ReaderParams, paths: Mapping[str | tuple[str, ...], float], fields: Request
) -> OpenSet:
    """The sets of a mix, with their ratios in it by path."""
    if fields.windowed or p.episodes is not None or isinstance(p.data_field, dict):
        raise ParamsError(
            "the datasets of a mix are read by rows, not by episodes or renamed fields"
        )
    sets: list[OpenSet] = []
    with closed_on_error(sets):
        for path in paths:
            sets.append(open_source(path, fields, io=p.io))
        sets = _under_one_name(sets)
        whole = mix(sets, tuple(paths.values()), p.mix.classes)
    return whole if p.field_names is None else MixedSet(replace(whole.index, named=True), sets)


def _open_arrays(p: ReaderParams, data: Any, fields: Request) -> OpenSet:
    """The arrays that the caller gives as ``data``: one, or several by name."""
    axes = 2 if p.episodes == "axis" else fields.lead
    asked = replace(fields, episodes=None, windowed=False, lead=axes)
    given: dict[str, Any] = data if isinstance(data, dict) else {fmt.DATA: data}

    def index_one(one: Request) -> SetIndex:
        return _index_array(p, given, p.labels if one is asked else None, one)

    indexes = index_each(asked, index_one)
    if p.episodes is None:
        index = joined_fields(indexes)
    else:
        counts = {name: one.facts.count for name, one in indexes.items()}
        stored = {name: next(iter(one.fields)) for name, one in indexes.items()}
        held = {name: _holder(data, given) for name, data in stored.items() if axes > 1}
        shapes = {name: tuple(given[of].shape[:2]) for name, of in held.items()}
        index = of_episodes(indexes, array_episodes(p.episodes, given, counts, shapes))
    with located(path=index.facts.path):
        _check_by_field(fields, index)
    found = index.open()
    with closed_on_error([found]):
        return _named(p, found)


def _with_several(p: ReaderParams, names: tuple[str, ...]) -> OpenSet:
    """The set with several labels: each is found, joined and numbered as it is alone."""
    found = open_reader_source(replace(p, labels_field=names[0]))
    with closed_on_error([found]):
        tables: dict[str, Array] = {}
        for name in names:
            one = found if not tables else open_reader_source(replace(p, labels_field=name))
            with contextlib.nullcontext() if one is found else contextlib.closing(one):
                if one.table is None:
                    raise ParamsError(f"no labels {name!r} in this dataset", path=found.facts.path)
                tables[name] = one.table
        return OpenSet(replace(found.index, labels=together(tables)), found.parts)


def open_there(p: ReaderParams) -> tuple[ReaderParams, OpenSet]:
    """What the parameters name; where they name no field and nothing says which one is meant, all
    fields that can be read together. With the parameters that name these.

    Raises what :func:`open_reader_source` raises.
    """
    try:
        return p, open_reader_source(p)
    except NoFieldError as exc:
        if p.data_field != fmt.DATA or not exc.there:
            raise
        labels = None if p.labels_field == fmt.LABELS else p.labels_field
        every = replace(p, data_field=exc.there, labels_field=labels)
        try:
            return every, open_reader_source(every)
        except AsyncReaderError:
            raise exc from None  # which lists all of them


def _ragged(values: SetIndex, labels: Any, table: str, offsets: Array) -> SetIndex:
    """The set of the samples of different length whose values these are; ``table``: the array that
    says where they begin."""
    count = offsets.size - 1
    (name,) = values.fields
    one = ragged_field(values.first, values.facts.count, offsets, table)
    rows = None if labels is None else label_array(labels, count)
    layout = f"{values.facts.layout}, rows of different length"
    facts = replace(values.facts, count=count, layout=layout)
    return replace(values, facts=facts, fields={name: one}, labels=rows)


def _named(p: ReaderParams, found: OpenSet) -> OpenSet:
    """The set with its fields under the caller's names, and the windows that are asked for."""
    if p.field_names is not None:
        names = dict(zip(found.names, found.names, strict=True))
        if isinstance(p.data_field, dict):
            names = _opened_as(p, _stored(p))
        found = found.renamed(names)
        found = OpenSet(replace(found.index, named=True), found.parts)
    rule_of = windows_of if p.patch.shape is None else patches_of
    with located(path=found.facts.path):
        return found.ruled(rule_of(p, found.index))


def _episode_each(fields: Request) -> bool:
    """Whether each file is an episode, or a part of one, where nothing in it says otherwise."""
    several = fields.several and fields.windowed and fields.episodes is None
    return fields.episodes in ("files", "whole") or several


def _with_empty(found: OpenSet, empty: int) -> OpenSet:
    """The set with so many more empty episodes, which were left out."""
    rule = found.rule
    assert isinstance(rule, Windows)
    episodes = replace(rule.episodes, empty=rule.episodes.empty + empty)
    return found.ruled(replace(rule, episodes=episodes))


def _as_episode(found: OpenSet, fields: Request) -> OpenSet:
    """A file that is one episode, or a part of one, where each is; HDF5 files know that already."""
    if not _episode_each(fields) or isinstance(found.rule, Windows):
        return found
    episodes = Episodes(fields.episodes or "files", np.array([found.facts.count]))
    return found.ruled(Windows(episodes, dict.fromkeys(found.names)))


def _holder(name: str, given: Mapping[str, Any]) -> str:
    """The array that holds the field ``name``: of that name, or the structured rows whose member it
    is."""
    while name and name not in given:
        name = name.rpartition(".")[0]
    return name


def _array_offsets(
    p: ReaderParams, name: str, given: Mapping[str, Any], asked: str | Literal[False] | None
) -> tuple[str, Array] | None:
    """Where the samples of an array begin among its rows, and which array says it: ``asked``, where
    the caller names one."""
    shape = getattr(given[name], "shape", ())
    episodes = p.episodes is not None or p.window.rows is not None
    if not shape or p.episodes == "axis" or (asked is None and episodes):
        return None
    return array_offsets(name, int(shape[0]), given, asked)


def _index_array(
    p: ReaderParams, given: Mapping[str, Any], labels: Any, asked: Request
) -> SetIndex:
    """One array of those that are given, or a member of one of structured rows. An h5py data set is
    reopened by its path, off h5py's global lock."""
    name = _holder(asked.data, given)
    array, member = given[name], asked.data[len(name) + 1 :] or None
    if not isinstance(array, DatasetPath):
        offsets = _array_offsets(p, name, given, asked.own_offsets)
        if offsets is None:
            return index_arrays(array, labels, asked, member)
        values = replace(asked, places=(asked.data,))
        return _ragged(index_arrays(array, None, values, member), labels, *offsets)
    inside = array.name if member is None else f"{array.name}.{member}"
    places = (inside,) if asked.data in asked.places else ()
    named = replace(asked, data=inside, labels=None, others={}, places=places)
    file = OpenFile(array.path, p.io)
    with contextlib.closing(file):
        found = index_hdf5(file, named)
    table = None if labels is None else label_array(labels, found.facts.count)
    if table is not None:
        check_labels(table.shape, found.first.spec, asked, array.path, in_file=False)
    return replace(found, labels=table, fields={asked.data: found.first})
