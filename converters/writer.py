"""``Writer``: a set made of samples that a program adds, in any of the formats of ``convert``."""

from __future__ import annotations

import contextlib
import os
import time
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any, Final, Self, Unpack

import numpy as np

from asyncreader.array_types import Array
from asyncreader.errors import ParamsError, ReaderClosedError, SourceError, located
from asyncreader.formats.packed import DATA
from asyncreader.system.futures import result_of, submit

from .encode import Packed, Recipe, Sample, make_recipe, packed_many, packed_pixels
from .inputs.added import AddedLabels, AddedSamples, Form, as_array, check_names
from .inputs.masks import stored_values
from .inputs.packed import PackedSamples
from .options import Options, PathLike, WriterKeywords, check_encoding, check_writer
from .ordered_pool import BYTES_PER_JOB
from .outputs.one_file import SetFile, data_file
from .outputs.publish import Target
from .outputs.shards import pack_shards
from .report import ConvertReport

#: Of options that were met when samples were added: shards are copies.
_AS_STORED: Final[dict[str, Any]] = {
    **dict.fromkeys(("encoding", "size", "quality", "channels", "bits", "restarts")),
    "resize": "crop",
}

#: Bytes of rows that are kept until they are hashed and written together, and most of such rows.
TOGETHER: Final = 1 << 20
MOST_ROWS: Final = 1 << 14


class Writer:
    """Writes a set sample by sample; it appears under its name when it is complete and verified.

    ::

        with Writer("train.h5") as writer:
            for image, label in samples:
                writer.add(image, label)

    The first sample says what all of them are: which fields there are, their dtypes and shapes, and
    whether there are labels and paths. A sample that differs is a ParamsError with its number, and
    nothing of the set is published. ``classes``: class names by number; without it labels that are
    text become the numbers of their sorted names. The other options are those of
    :func:`convert`, where they apply to samples that are no files; ``encoding`` is "raw" unless
    said otherwise. A block that ends with an error, and a process that ends, leave the target as it
    was. Memory is bounded. Not for several threads at once.

    Raises ParamsError for options and samples, SourceError where the target cannot be written,
    ReaderClosedError after ``close()``. ``report``: what was written, once it is published.
    """

    def __init__(
        self,
        dst: PathLike,
        *,
        classes: Sequence[str] | None = None,
        **options: Unpack[WriterKeywords],
    ) -> None:
        self._begun = time.perf_counter()
        self._options = check_writer(dst, options)
        self._classes = None if classes is None else _checked_names(classes)
        self.report: ConvertReport | None = None
        self._count = 0
        self._closed = self._refused = False
        self._stack = contextlib.ExitStack()
        self._target = self._stack.enter_context(
            Target(self._options.dst, self._options.kind, self._options.overwrite)
        )
        self._set: _Adding | None = None
        #: where samples are written to: the set, or the file that becomes shards
        self._work = replace(self._options, shards=None, shard_size=None)
        self._path = self._target.work
        if self._options.sharded:
            self._work = replace(self._work, format="hdf5", compression=None, chunk=1)
            self._path = os.path.join(self._target.workspace, "added.h5")

    @property
    def count(self) -> int:
        """Samples added so far."""
        return self._count

    def add(
        self, data: object, label: object = None, *, path: PathLike | None = None, **fields: object
    ) -> None:
        """Add one sample.

        ``data``: an array of numbers of any shape, or whatever numpy makes one of (a torch tensor,
        a Pillow image), or the bytes of an image file; ``label``: a number, a row of numbers or
        text; ``path``: where it comes from; ``fields``: other arrays of this sample by name.
        """
        self._add(data, label, path, fields)

    def add_many(
        self,
        data: object,
        labels: object = None,
        *,
        paths: Sequence[PathLike] | None = None,
        **fields: object,
    ) -> None:
        """Add samples (n, ...) at once, which is much faster than one by one where they are small.

        ``labels``: (n,) or (n, L), or n texts; ``paths``: n; ``fields``: (n, ...) each.
        """
        with self._numbered():
            table = {DATA: _rows(data, DATA)}
            table |= {name: _rows(value, name) for name, value in fields.items()}
            count = len(table[DATA])
            sizes = {name: len(rows) for name, rows in table.items()}
            if labels is not None:
                labels = labels if isinstance(labels, list | tuple) else as_array_or_text(labels)
                sizes["labels"] = len(labels)
            if paths is not None:
                sizes["paths"] = len(paths)
            if set(sizes.values()) != {count}:
                raise ParamsError("a number of rows differs", found=str(sizes))
        if not count:
            return
        first = None if labels is None else labels[0]
        adding = self._begin(table[DATA][0], first, paths, {n: table[n][0] for n in fields})
        if not isinstance(adding, _Blocks):
            for i in range(count):
                label, path = (None if o is None else o[i] for o in (labels, paths))
                self._add(table[DATA][i], label, path, {n: table[n][i] for n in fields})
            return
        with self._numbered():
            adding.add_many(table, labels, paths)
            self._count += count

    # -- inside ------------------------------------------------------------------------------

    def _add(
        self, data: object, label: object, path: PathLike | None, fields: Mapping[str, object]
    ) -> None:
        adding = self._set
        if adding is None or self._refused:
            adding = self._begin(data, label, path, fields)
        try:
            adding.add(data, label, path, fields)
        except BaseException as exc:
            self._refuse(exc)
            raise
        self._count += 1

    def _begin(
        self, data: object, label: object, path: object, fields: Mapping[str, object]
    ) -> _Adding:
        """What takes samples; made for the first one."""
        with self._numbered():
            if self._set is None:
                made = _adding(self._work, self._path, self._target.shown, data, fields)
                self._set = made
                self._stack.callback(self._set.close)
                self._set.expect(label, path, self._classes)
            return self._set

    @contextlib.contextmanager
    def _numbered(self) -> Any:
        """An error inside names the next sample, and is the end of this set."""
        if self._closed:
            raise ReaderClosedError("this Writer was closed")
        if self._refused:
            raise ParamsError(
                "nothing more can be added: a sample was refused, so nothing is published",
                path=self._options.dst,
                found=f"sample {self._count}",
            )
        try:
            yield
        except BaseException as exc:
            self._refuse(exc)
            raise

    def _refuse(self, error: BaseException) -> None:
        self._refused = True
        if isinstance(error, ParamsError) and error.index is None:
            error.index = self._count
            error.path = error.path or self._options.dst

    def close(self) -> ConvertReport | None:
        """Publish the set; returns the report. Idempotent. After a sample was refused nothing is
        published: that is a ParamsError."""
        if self._closed:
            return self.report
        try:
            with self._numbered():
                if self._set is None:
                    raise SourceError(
                        "no sample was added, so there is no set", path=self._options.dst
                    )
                self._finish(self._set)
        finally:
            self.abandon()
        return self.report

    def _finish(self, adding: _Adding) -> None:
        packed, options = adding.finish(), self._options
        assert packed.meta is not None
        if options.sharded:
            adding.close()
            copied = replace(options, src=self._path, **_AS_STORED)
            with contextlib.closing(PackedSamples(copied)) as samples:
                self.report = pack_shards(copied, samples, self._target, self._begun)
            return
        self._target.publish()
        self.report = ConvertReport(
            target=options.dst,
            format=options.format,
            encoding=packed.meta.encoding,
            count=packed.meta.count,
            skipped=(),
            ignored={},
            classes=packed.meta.classes,
            bytes=os.stat(data_file(self._target.path, options.format)).st_size,
            seconds=time.perf_counter() - self._begun,
            rewritten=packed.rewritten,
            narrowed=packed.narrowed,
        )

    def abandon(self) -> None:
        """End without a set: the target is as it was. Idempotent; nothing after ``close()``."""
        self._closed, self._set = True, None
        self._stack.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self.abandon()


def _checked_names(classes: Sequence[str]) -> tuple[str, ...]:
    names = tuple(classes)
    good = bool(names) and all(isinstance(name, str) and "\0" not in name for name in names)
    if isinstance(classes, str) or not good or len(set(names)) < len(names):
        raise ParamsError("classes must be different names", found=repr(classes)[:200])
    return names


def as_array_or_text(labels: object) -> Any:
    """Labels as an array, or as a list of text."""
    kind = getattr(getattr(labels, "dtype", None), "kind", "")
    return np.asarray(labels).tolist() if kind in ("U", "O", "T") else as_array(labels, "labels")


def _rows(value: object, name: str) -> Any:
    """Rows of a field: an array, or a list of what is no array, such as bytes."""
    if isinstance(value, list | tuple):
        return value
    rows = as_array(value, f"field {name!r}")
    if not rows.ndim:
        raise ParamsError(f"field {name!r} has no rows", found="a single number")
    return rows


# -- what takes samples --------------------------------------------------------------------------


def _adding(
    options: Options, path: str, shown: str, data: object, fields: Mapping[str, object]
) -> _Adding:
    """What takes samples like this one, and writes them to the file ``path``."""
    check_names(tuple(fields))
    encoding = options.encoding or "raw"
    others = {name: as_array(value, f"field {name!r}") for name, value in fields.items()}
    if encoding == "raw" and options.size is None and not isinstance(data, bytes):
        array = as_array(data, f"field {DATA!r}")
        forms = [Form.of_rows(name, row) for name, row in {DATA: array, **others}.items()]
        check_encoding(options, encoding, options.channels or 3, options.bits)
        samples = AddedSamples(encoding, forms, ["raw"] * len(forms))
        return _Blocks(options, path, shown, samples, forms)
    form, recipe = _picture_form(options, encoding, data)
    forms = [form, *(_other_form(name, row, form) for name, row in others.items())]
    raw = [encoding, *("raw" if f.way == "rows" or encoding == "raw" else "png" for f in forms[1:])]
    return _Pictures(options, path, shown, AddedSamples(encoding, forms, raw), forms, recipe)


def _picture_form(options: Options, encoding: str, data: object) -> tuple[Form, Recipe]:
    """Of pictures that are encoded, or resized: arrays, or image files' bytes."""
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
    """A picture as (H, W, C)."""
    array = as_array(data, f"field {DATA!r}")
    pixels = array[:, :, None] if array.ndim == 2 else array
    deep = pixels.dtype == np.uint16
    if pixels.ndim != 3 or pixels.shape[2] not in ((1,) if deep else (1, 3)) or not pixels.size:
        good = False
    else:
        good = deep or pixels.dtype == np.uint8
    if not good:
        raise ParamsError(
            "only pictures can be encoded or resized",
            found=f"shape {array.shape}, {array.dtype}",
            expected="(H, W), (H, W, 1) or (H, W, 3) uint8; or (H, W) uint16",
            hint="choose encoding 'raw', without size, for any other array",
        )
    return pixels


def _other_form(name: str, row: Array, picture: Form) -> Form:
    """A field of pictures: whole numbers of their height and width are a mask, cut as they are."""
    form = Form.of_rows(name, row)
    sized = picture.shape and row.shape[:2] == picture.shape[:2]
    mask = sized and row.dtype in (np.uint8, np.uint16) and row.shape[2:] in ((), (1,), (3,))
    return replace(form, way="mask") if mask else form


class _Adding:
    """Takes samples, and gives them to the file: its labels and paths here, the rest by a way of
    its own."""

    def __init__(
        self,
        options: Options,
        path: str,
        shown: str,
        samples: AddedSamples,
        forms: Sequence[Form],
    ) -> None:
        self._samples = samples
        self._forms = {form.name: form for form in forms}
        self._labelled = self._named = False
        self._number = 0
        self._file = SetFile(options, samples, path, shown, ())

    def expect(self, label: object, path: object, classes: tuple[str, ...] | None) -> None:
        """Whether there are labels and paths, as the first sample has them."""
        self._labelled, self._named = label is not None, path is not None
        if self._labelled:
            self._samples.labels = AddedLabels(label, classes)
        elif classes is not None:
            raise ParamsError("classes are the names of labels, and this sample has none")

    def add(self, data: object, label: object, path: object, fields: Mapping[str, object]) -> None:
        """Take one sample."""
        raise NotImplementedError

    def _tell(self, label: object, path: object, fields: Mapping[str, object]) -> None:
        """Keep label and path of a sample. ParamsError where it has other parts than the first."""
        if (label is not None) != self._labelled or (path is not None) != self._named:
            raise self._others(label, path, fields)
        if len(fields) + 1 != len(self._forms) or not fields.keys() <= self._forms.keys():
            raise self._others(label, path, fields)
        if label is not None:
            assert self._samples.labels is not None
            self._samples.labels.add(label)
        if path is not None:
            self._samples.add_path(path)

    def _others(self, label: object, path: object, fields: Mapping[str, object]) -> ParamsError:
        def parts(labelled: bool, named: bool, names: Sequence[str]) -> str:
            said = {"a label": labelled, "a path": named}
            return ", ".join([*names, *(word for word, there in said.items() if there)])

        return ParamsError(
            "a sample has other parts than the first one",
            found=parts(label is not None, path is not None, (DATA, *fields)),
            expected=parts(self._labelled, self._named, tuple(self._forms)),
        )

    def _write(self, sample: Sample) -> None:
        self._file.append(self._number, sample)
        self._number += sample[0].count

    def finish(self) -> Any:
        """Write what is left, and finish the file."""
        return self._file.finish()

    def close(self) -> None:
        """Close what is open, finished or not."""
        self._file.close()
        self._samples.close()


class _Blocks(_Adding):
    """Samples whose fields are all raw: kept until there are enough of them to be written."""

    def __init__(
        self,
        options: Options,
        path: str,
        shown: str,
        samples: AddedSamples,
        forms: Sequence[Form],
    ) -> None:
        super().__init__(options, path, shown, samples, forms)
        size = max(form.dtype.itemsize * int(np.prod(form.shape)) for form in forms)
        self._size = max(1, min(MOST_ROWS, TOGETHER // size))
        little = {form.name: form.dtype.newbyteorder("<") for form in forms}
        self._blocks = {f.name: np.empty((self._size, *f.shape), little[f.name]) for f in forms}
        self._held = 0
        first = forms[0]
        self._first, self._first_form = self._blocks[DATA], first
        self._dtype, self._shape = first.dtype, first.shape

    def add(self, data: object, label: object, path: object, fields: Mapping[str, object]) -> None:
        at = self._held
        # the usual case costs no call
        plain = type(data) is np.ndarray and data.dtype == self._dtype
        if not plain or data.shape != self._shape:  # type: ignore[attr-defined]
            data = self._first_form.check(as_array(data, f"field {DATA!r}"))
        self._tell(label, path, fields)
        self._first[at] = data
        for name, value in fields.items():
            row = as_array(value, f"field {name!r}")
            self._blocks[name][at] = self._forms[name].check(row)
        self._held = at + 1
        if self._held == self._size:
            self._flush()

    def add_many(self, table: Mapping[str, Any], labels: Any, paths: Any) -> None:
        """Take samples (n, ...), as they are in memory."""
        parts = labels is None, paths is None
        if parts != (not self._labelled, not self._named) or table.keys() != self._forms.keys():
            raise self._others(labels, paths, {n: v for n, v in table.items() if n != DATA})
        rows = {}
        for name, form in self._forms.items():
            rows[name] = as_array(table[name], f"field {name!r}")
            every = replace(form, shape=(len(table[name]), *form.shape))
            every.check(rows[name])
        self._flush()
        if labels is not None:
            assert self._samples.labels is not None
            self._samples.labels.add_many(labels)
        for path in paths or ():
            self._samples.add_path(path)
        count = len(table[DATA])
        step = max(self._size, MOST_ROWS // 4)
        for start in range(0, count, step):
            self._pack({name: array[start : start + step] for name, array in rows.items()})

    def _flush(self) -> None:
        count, self._held = self._held, 0
        if count:
            self._pack({name: block[:count] for name, block in self._blocks.items()})

    def _pack(self, rows: Mapping[str, Array]) -> None:
        self._write(tuple(packed_many(rows[n], form.picture) for n, form in self._forms.items()))

    def finish(self) -> Any:
        self._flush()
        return super().finish()


class _Pictures(_Adding):
    """Samples whose pictures are encoded or resized, by threads; they are written in order."""

    def __init__(
        self,
        options: Options,
        path: str,
        shown: str,
        samples: AddedSamples,
        forms: Sequence[Form],
        recipe: Recipe,
    ) -> None:
        super().__init__(options, path, shown, samples, forms)
        self._recipe = recipe
        self._jobs = options.jobs
        self._pool = ThreadPoolExecutor(options.jobs, thread_name_prefix="asyncreader-writer")
        self._pending: deque[tuple[int, Future[Sample]]] = deque()
        self._bytes = 0
        self._added = 0

    def add(self, data: object, label: object, path: object, fields: Mapping[str, object]) -> None:
        picture = data if isinstance(data, bytes) else _pixels(data).copy()
        if not isinstance(picture, bytes):
            self._same_kind(picture)
        self._tell(label, path, fields)
        others = {name: self._kept(name, value) for name, value in fields.items()}
        size = len(picture) if isinstance(picture, bytes) else picture.nbytes
        size += sum(row.nbytes for row in others.values())
        shown = None if path is None else os.fsdecode(os.fspath(path))  # type: ignore[call-overload]
        work = partial(self._encoded, self._added, shown, picture, others)
        self._pending.append((size, submit(self._pool, work)))
        self._added += 1
        self._bytes += size
        while len(self._pending) > 4 * self._jobs or self._bytes > BYTES_PER_JOB * self._jobs:
            self._take()

    def _same_kind(self, pixels: Array) -> None:
        """ParamsError for a picture that would lose bits or channels, or get some."""
        form = self._forms[DATA]
        if form.shape and (pixels.dtype, pixels.shape[2]) != (form.dtype, form.shape[2]):
            form.check(pixels)

    def _kept(self, name: str, value: object) -> Array:
        """A copy of a field, which is compared with the first one's."""
        row, form = as_array(value, f"field {name!r}"), self._forms[name]
        if form.way == "mask":
            row = row[:, :, None] if row.ndim == 2 else row
            if row.ndim != 3 or row.dtype != form.dtype:
                form.check(row)
            return row.copy()
        return form.check(row).copy()

    def _encoded(
        self, number: int, path: str | None, picture: bytes | Array, others: Mapping[str, Array]
    ) -> Sample:
        """In a thread: a sample as it is stored."""
        with located(index=number, source_path=path):
            if isinstance(picture, bytes):
                first = self._recipe.from_file(picture, lambda _: None)
            else:
                first = self._recipe.from_pixels(picture)
            return (first, *(self._stored(name, row, picture) for name, row in others.items()))

    def _stored(self, name: str, row: Array, picture: bytes | Array) -> Packed:
        form = self._forms[name]
        if form.way == "rows" or isinstance(picture, bytes):
            return packed_pixels(row, form.picture)
        return stored_values(name, row, (picture.shape[0], picture.shape[1]), self._recipe)

    def _take(self) -> None:
        size, future = self._pending.popleft()
        self._bytes -= size
        self._write(result_of(future))

    def finish(self) -> Any:
        while self._pending:
            self._take()
        return super().finish()

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)
        super().close()
