"""Takes samples that a program adds into one file: kept in blocks, or encoded by threads."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any, Final

import numpy as np

from asyncreader.errors import ParamsError, located
from asyncreader.formats.packed import DATA, RAGGED
from asyncreader.system.array_types import Array
from asyncreader.system.signals import result_of, submit

from ..check_options import check_encoding, check_named, kind_of
from ..encode import (
    Block,
    FieldBlock,
    Recipe,
    check_size,
    hashed_pixels,
    hashed_rows,
    hashed_values,
    make_recipe,
    size_of_picture,
    stored_values,
)
from ..inputs.added import AddedLabels, Form, as_array, path_of
from ..inputs.samples import Samples
from ..options import Options, check_field
from ..temp_tables import Strings
from .one_file import BYTES_PER_JOB, SetFile

#: Bytes of rows that are kept until they are hashed and written together, and most of such rows.
TOGETHER: Final = 1 << 20
MOST_ROWS: Final = 1 << 14


class SampleFormat:
    """How samples like the first one are stored, in a file of ``options``; ParamsError for one that
    cannot be stored.

    ``recipe``: of images that are encoded or resized, None where all fields are raw as they are;
    ``label``, ``named``: the first sample's label, and whether it has a path.
    """

    def __init__(
        self,
        options: Options,
        classes: tuple[str, ...] | None,
        data: object,
        label: object,
        path: object,
        fields: Mapping[str, object],
    ) -> None:
        for name in fields:
            check_field(name)
        if classes is not None and label is None:
            raise ParamsError("classes are the names of labels, and this sample has none")
        self.options, self.label, self.classes = options, label, classes
        self.named = path is not None
        self.recipe: Recipe | None = None
        encoding = options.encoding or "raw"
        others = {name: as_array(value, f"field {name!r}") for name, value in fields.items()}
        image = isinstance(data, bytes) and not options.differ(DATA)
        if encoding == "raw" and options.size is None and not image:
            first, size = as_array(data, f"field {DATA!r}"), None
            form = Form.of_rows(DATA, first, options.differ(DATA))
            check_encoding(options, encoding, options.channels or 3, options.bits)
        else:
            form, self.recipe = _picture_form(options, encoding, data)
            with located(index=0, source_path=_shown(path)):
                size = size_of_picture(data if isinstance(data, bytes) else _pixels(data))
        beside = (_other_form(options, n, row, size) for n, row in others.items())
        self.forms = (form, *beside)
        self.encodings = tuple(_stored_as(form, encoding) for form in self.forms)
        self.fields = tuple(form.name for form in self.forms)
        check_named(options, self.fields)
        named = options.variable_length
        unknown = set() if isinstance(named, bool) else {*named} - {*self.fields}
        if unknown:
            raise ParamsError(
                "variable_length names a field that the first sample does not have",
                found=repr(min(unknown)),
                expected=", ".join(self.fields),
            )

    @property
    def words(self) -> str:
        """What samples have in common, and how they are stored: equal for equal plans."""
        fixed = self.recipe is None
        forms = [(f.name, f.way, f.dtype.str, f.shape if fixed else None) for f in self.forms]
        label = type(self.label).__name__
        return repr((forms, self.encodings, self.recipe, label, self.classes, self.named))

    def open(self, path: str, shown: str) -> Adding:
        """The file ``path``, which takes samples; ``shown``: its name in messages."""
        return Blocks(self, path, shown) if self.recipe is None else Pictures(self, path, shown)


def _stored_as(form: Form, encoding: str) -> str:
    """How a field is stored beside images of an encoding, or as these."""
    if form.way == "values":
        return RAGGED
    raw = encoding == "raw" or form.way == "rows"
    return encoding if form.name == DATA else "raw" if raw else "png"


def _picture_form(options: Options, encoding: str, data: object) -> tuple[Form, Recipe]:
    """Of images that are encoded, or resized: arrays, or image files' bytes."""
    if isinstance(data, bytes):
        bits, usual = options.bits, 1 if options.bits == 16 else 3
        form = Form(DATA, "picture", np.dtype(np.uint8), ())
    else:
        pixels = _pixels(data)
        if encoding == "original":
            raise ParamsError(
                "encoding 'original' keeps image files' own bytes",
                found=type(data).__name__,
                expected="bytes",
                hint="choose encoding 'raw', 'png' or 'jpeg'",
            )
        deep = pixels.dtype == np.uint16
        bits, usual = options.bits or (16 if deep else None), pixels.shape[2]
        form = Form(DATA, "picture", pixels.dtype, pixels.shape)
    channels = options.channels or usual
    check_encoding(options, encoding, channels, bits)
    return form, make_recipe(options, encoding, channels, bits)


def _pixels(data: object) -> Array:
    """An image as (H, W, C)."""
    array = as_array(data, f"field {DATA!r}")
    pixels = array[:, :, None] if array.ndim == 2 else array
    deep = pixels.dtype == np.uint16
    good = pixels.ndim == 3 and pixels.shape[2] in ((1,) if deep else (1, 3)) and pixels.size
    if not good or not (deep or pixels.dtype == np.uint8):
        raise ParamsError(
            "only images can be encoded or resized",
            found=f"shape {array.shape}, {array.dtype}",
            expected="(H, W), (H, W, 1) or (H, W, 3) uint8; or (H, W) uint16",
            hint="choose encoding 'raw', without size, for any other array",
        )
    return pixels


def _other_form(options: Options, name: str, row: Array, size: tuple[int, int] | None) -> Form:
    """Of another field: beside an image of ``size`` that is encoded or resized, whole numbers of
    its height and width are a mask, cut as it is. ParamsError where numbers may be places in it."""
    form = Form.of_rows(name, row, options.differ(name))
    sized = form.way == "rows" and row.shape[:2] == size and name not in options.kinds
    if sized and row.dtype in (np.uint8, np.uint16) and row.shape[2:] in ((), (1,), (3,)):
        return replace(form, way="mask")
    return replace(form, kind=kind_of(options, name, form.sample_shape, form.dtype, size))


def _shown(path: Any) -> str | None:
    """A sample's path in messages."""
    return None if path is None else os.fsdecode(os.fspath(path))


class Adding(Samples):
    """Takes samples, and gives them to the file by a way of its own; labels and paths are kept on
    disk until it is finished. ``taken``: samples so far."""

    def __init__(self, plan: SampleFormat, path: str, shown: str) -> None:
        super().__init__()
        self.channels, self.encodings = 3, plan.encodings
        self.fields = plan.fields
        self._forms = {form.name: form for form in plan.forms}
        labels = None if plan.label is None else AddedLabels(plan.label, plan.classes)
        self._labels, self._paths = labels, Strings() if plan.named else None
        self.taken = 0
        self._file = SetFile(plan.options, self, path, shown)

    @property
    def bytes(self) -> int:
        """Bytes of the samples that were taken; less what is still to be encoded."""
        return sum(self._file.bytes)

    def add(self, data: object, label: object, path: object, fields: Mapping[str, object]) -> None:
        """Take one sample."""
        raise NotImplementedError

    def _tell(self, label: object, path: object, fields: Mapping[str, object]) -> None:
        """Keep label and path of a sample. ParamsError where it has other parts than the first."""
        if (label is None) != (self._labels is None) or (path is None) != (self._paths is None):
            raise self._others(label, path, fields)
        if len(fields) + 1 != len(self._forms) or not fields.keys() <= self._forms.keys():
            raise self._others(label, path, fields)
        self.taken += 1
        if self._labels is not None:
            self._labels.add(label)
        if self._paths is not None:
            self._paths.append(path_of(path))

    def _others(self, label: object, path: object, fields: Mapping[str, object]) -> ParamsError:
        def parts(labelled: bool, named: bool, names: Sequence[str]) -> str:
            said = {"a label": labelled, "a path": named}
            return ", ".join([*names, *(word for word, there in said.items() if there)])

        return ParamsError(
            "a sample has other parts than the first one",
            found=parts(label is not None, path is not None, (DATA, *fields)),
            expected=parts(self._labels is not None, self._paths is not None, self.fields),
        )

    def finish(self) -> SetFile:
        """Write what is left, and finish the file."""
        if self._labels is not None:
            self.labels, self.classes = self._labels.finish()
            self.label_kind = self._labels.kind
        path = None if self._paths is None else self._paths.freeze().__getitem__
        self.paths = (path, *[None] * (len(self.fields) - 1))
        self._file.finish()
        return self._file

    def close(self) -> None:
        """Close what is open, finished or not."""
        self._file.close()
        del self._file  # which knows these samples: memory must not wait for a collection


class _Values:
    """Samples of different length of one field, until they are written together."""

    def __init__(self, form: Form) -> None:
        self._dtype, self._rows = form.dtype.newbyteorder("<"), list[Array]()
        self.bytes = 0

    def put(self, row: Array) -> None:
        """Take a sample; a large one is written before its owner can change it."""
        self._rows.append(row if row.nbytes >= TOGETHER else row.astype(self._dtype))
        self.bytes += row.nbytes

    def take(self) -> FieldBlock:
        """All that were put."""
        rows, self._rows, self.bytes = self._rows, [], 0
        values = rows[0] if len(rows) == 1 else np.concatenate(rows)
        return hashed_values(values, np.array(list(map(len, rows))))


class Blocks(Adding):
    """Samples whose fields are all raw: kept until there are enough of them to be written."""

    def __init__(self, plan: SampleFormat, path: str, shown: str) -> None:
        super().__init__(plan, path, shown)
        even = [form for form in plan.forms if form.way != "values"]
        self._row_bytes = sum(form.row_bytes for form in even)
        self._size = max(1, min(MOST_ROWS, TOGETHER // max(1, self._row_bytes)))
        little = {form.name: form.dtype.newbyteorder("<") for form in even}
        self._blocks = {f.name: np.empty((self._size, *f.shape), little[f.name]) for f in even}
        self._values = {f.name: _Values(f) for f in plan.forms if f.way == "values"}
        self._held = 0
        first = plan.forms[0]
        self._first, self._first_form = self._blocks.get(DATA), first
        self._dtype, self._shape = first.dtype, None if self._first is None else first.shape

    @property
    def bytes(self) -> int:
        differ = sum(one.bytes for one in self._values.values())
        return super().bytes + self._held * self._row_bytes + differ

    @property
    def even(self) -> bool:
        """Whether all samples have one shape."""
        return not self._values

    def add(self, data: object, label: object, path: object, fields: Mapping[str, object]) -> None:
        # the usual case costs no call
        plain = type(data) is np.ndarray and data.dtype == self._dtype
        if not plain or data.shape != self._shape:  # type: ignore[attr-defined]
            data = self._first_form.check(as_array(data, f"field {DATA!r}"))
        self._tell(label, path, fields)
        rows = {n: self._forms[n].check(as_array(v, f"field {n!r}")) for n, v in fields.items()}
        if self._values:
            self._put({DATA: data, **rows})  # type: ignore[dict-item]
            return
        at = self._held
        assert self._first is not None
        self._first[at] = data
        for name, row in rows.items():
            self._blocks[name][at] = row
        self._held = at + 1
        if self._held == self._size:
            self._flush()

    def _put(self, rows: Mapping[str, Array]) -> None:
        """Keep a sample of which some fields differ in length."""
        if any(rows[name].nbytes >= TOGETHER for name in self._values):
            self._flush()
        for name, row in rows.items():
            if name in self._values:
                self._values[name].put(row)
            else:
                self._blocks[name][self._held] = row
        self._held += 1
        most = max(one.bytes for one in self._values.values())
        if self._held == self._size or most >= TOGETHER:
            self._flush()

    def add_many(self, table: Mapping[str, Any], labels: Any, paths: Any) -> None:
        """Take samples (n, ...), as they are in memory."""
        parts = labels is None, paths is None
        known = self._labels is None, self._paths is None
        if parts != known or table.keys() != self._forms.keys():
            raise self._others(labels, paths, {n: v for n, v in table.items() if n != DATA})
        rows = {}
        for name, form in self._forms.items():
            rows[name] = as_array(table[name], f"field {name!r}")
            every = replace(form, shape=(len(table[name]), *form.shape))
            every.check(rows[name])
        self._flush()
        if self._labels is not None:
            self._labels.add_many(labels)
        if self._paths is not None:
            for path in paths:
                self._paths.append(path_of(path))
        count = len(table[DATA])
        self.taken += count
        step = max(self._size, MOST_ROWS // 4)
        for start in range(0, count, step):
            self._pack({name: array[start : start + step] for name, array in rows.items()})

    def _flush(self) -> None:
        count, self._held = self._held, 0
        if count:
            self._pack({name: block[:count] for name, block in self._blocks.items()})

    def _pack(self, rows: Mapping[str, Array]) -> None:
        self._file.append(
            tuple(
                hashed_rows(rows[n], form.picture) if n in rows else self._values[n].take()
                for n, form in self._forms.items()
            )
        )

    def finish(self) -> SetFile:
        self._flush()
        return super().finish()


class Pictures(Adding):
    """Samples whose images are encoded or resized, by threads; they are written in order."""

    def __init__(self, plan: SampleFormat, path: str, shown: str) -> None:
        super().__init__(plan, path, shown)
        assert plan.recipe is not None
        self._recipe, self._jobs = plan.recipe, plan.options.jobs
        self._pool = ThreadPoolExecutor(self._jobs, thread_name_prefix="asyncreader-writer")
        self._pending: deque[tuple[int, Future[Block]]] = deque()
        self._bytes = 0
        self._added = 0

    def add(self, data: object, label: object, path: object, fields: Mapping[str, object]) -> None:
        picture: bytes | Array
        if isinstance(data, bytes):
            picture, size = data, len(data)
        else:
            picture, form = _pixels(data).copy(), self._forms[DATA]
            size = picture.nbytes
            # none loses bits or channels, or gets some
            if form.shape and (picture.dtype, picture.shape[2]) != (form.dtype, form.shape[2]):
                form.check(picture)
        self._tell(label, path, fields)
        others = {name: self._kept(name, value) for name, value in fields.items()}
        size += sum(row.nbytes for row in others.values())
        work = partial(self._encoded, self._added, _shown(path), picture, others)
        self._pending.append((size, submit(self._pool, work)))
        self._added += 1
        self._bytes += size
        while len(self._pending) > 4 * self._jobs or self._bytes > BYTES_PER_JOB * self._jobs:
            self._take()

    def _kept(self, name: str, value: object) -> Array:
        """A copy of a field, which is compared with the first one's."""
        row, form = as_array(value, f"field {name!r}"), self._forms[name]
        if form.kind == "map" and row.dtype == form.dtype and row.shape[2:] == form.shape[2:]:
            return row.copy()  # of any height and width, as its image
        if form.way == "mask":
            row = row[:, :, None] if row.ndim == 2 else row
            if row.ndim != 3 or row.dtype != form.dtype:
                form.check(row)
            return row.copy()
        return form.check(row).copy()

    def _encoded(
        self, number: int, path: str | None, picture: bytes | Array, others: Mapping[str, Array]
    ) -> Block:
        """In a thread: a sample as it is stored."""
        with located(index=number, source_path=path):
            if isinstance(picture, bytes):
                first = self._recipe.from_file(picture, lambda _: None)
            else:
                first = self._recipe.from_pixels(picture)
            size = size_of_picture(picture) if others else (0, 0)
            return (first, *(self._stored(name, row, size) for name, row in others.items()))

    def _stored(self, name: str, row: Array, size: tuple[int, int]) -> FieldBlock:
        """A field of a sample whose image has ``size`` (H, W)."""
        form = self._forms[name]
        if form.way == "mask":
            return stored_values(name, row, size, self._recipe)
        if form.kind == "map":
            check_size(name, row, size)
        row = self._recipe.moved(form.kind, row, size)
        if form.way == "values":
            return hashed_values(row, np.array([len(row)], np.int64))
        return hashed_pixels(row, form.picture)

    def _take(self) -> None:
        size, future = self._pending.popleft()
        self._bytes -= size
        self._file.append(result_of(future))

    def finish(self) -> SetFile:
        while self._pending:
            self._take()
        return super().finish()

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)
        super().close()
