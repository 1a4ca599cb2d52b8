"""``Writer`` and ``convert``: a set of samples that a program adds, or of files and other sets.

``convert`` checks the options, packs (one_file.py, shards.py) and renames to the target.
"""

from __future__ import annotations

import contextlib
import os
import time
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, Never, Self, Unpack

import numpy as np
from xxhash import xxh3_64_hexdigest

from asyncreader.errors import (
    AsyncReaderError,
    ChecksumError,
    ParamsError,
    ReaderClosedError,
    SourceError,
)
from asyncreader.formats.packed import DATA
from asyncreader.params.declare import documented
from asyncreader.system.array_types import Int64
from asyncreader.version import __version__

from .check_options import check, check_writer
from .inputs.added import DatasetItems, Items, as_array, count_of, give, is_paths
from .inputs.dataset_samples import DatasetSamples
from .inputs.labels import class_names
from .inputs.opening import open_samples
from .options import OPTIONS, SRC, ConvertKeywords, PathLike, WriterKeywords
from .outputs.adding import Adding, Blocks, SampleFormat
from .outputs.disk import is_full, no_temporary_space, temporary_files
from .outputs.one_file import SetFile, pack_file, progress_callback, publish_file
from .outputs.publish import Target
from .outputs.sharded_set import PIECE, Grown, Pieces
from .outputs.shards import ShardPacking, load_ray
from .report import ConvertReport, progress_line

#: Of options that were met when samples were added: shards are copies.
_AS_STORED: Final[dict[str, Any]] = {
    **dict.fromkeys(("encoding", "size", "quality", "channels", "bits", "restarts")),
    "resize": "crop",
}


class Writer:
    """Writes a dataset sample by sample. It appears under its name when it is complete and
    verified.

    ::

        with Writer("train.h5") as writer:
            for image, label in samples:
                writer.add(image, label)

    The first sample decides for all: which fields there are, their dtypes and shapes, and whether
    there are labels and paths. A sample that differs raises ParamsError with its number, and no
    dataset is published. ``classes``: class names by number; without it, labels that are text
    become the numbers of their sorted names. ``variable_length`` names the fields whose first axis
    differs from sample to sample. The other options are those of :func:`convert` that apply to
    samples that are not files; ``encoding`` is "raw" by default. If the block raises an error, the
    process ends, or a Writer is lost without ``close()``, the target stays as it was; with
    ``resume`` what was finished is kept for the next run. Memory is bounded. A Writer is for one
    thread, in the process that opened it.

    Raises ParamsError for options and samples, SourceError if the target cannot be written,
    ReaderClosedError after ``close()`` and in a forked child. ``report``: what was written, once it
    is published.
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
        self._target = Target(
            self._options.dst,
            self._options.kind,
            self._options.overwrite,
            self._options.resume,
            keep=self._options.resume,
        )
        self._process, self._stack = os.getpid(), contextlib.ExitStack()
        # one that is lost without close() leaves no lock, file or thread
        weakref.finalize(self, _abandon, self._process, self._stack)
        self._set: Adding | None = None
        self._files = contextlib.ExitStack()  # closes what self._set has open
        self._items: DatasetItems | None = None
        #: of a Dataset's samples the numbers of those that the open file has
        self._numbers: list[int] = []
        self._format: SampleFormat | None = None
        # shards are made of files that are copied when all samples are there
        self._pieces: Pieces | None = None
        try:
            self._stack.push(self._target)  # first: Ctrl-C may come when it is entered
            self._target.__enter__()
            self._stack.enter_context(self._files)
            if self._options.sharded:
                self._pieces = Pieces(self._target.workspace, self._options.resume)
        except BaseException as exc:
            self._end(exc)
            raise

    @property
    def count(self) -> int:
        """The number of samples added so far."""
        return self._count

    def add(
        self,
        /,
        data: object,
        label: object = None,
        *,
        path: PathLike | None = None,
        **fields: object,
    ) -> None:
        """Add one sample.

        ``data``: an array of numbers of any shape, whatever numpy turns into one (a torch tensor, a
        Pillow image), or the bytes of an image file; ``label``: a number, a row of numbers or text;
        ``path``: where the sample comes from; ``fields``: other arrays of this sample by name. With
        ``resume``, a sample whose path the interrupted run has written is left as it is.
        """
        adding = self._set
        if adding is None or self._refused or os.getpid() != self._process:
            adding = self._begin(data, label, path, fields)
        try:
            if path is None or self._pieces is None or path not in self:
                adding.add(data, label, path, fields)
                if self._items is not None and self._items.splits is not None:
                    self._numbers.append(self._count)
            if self._options.resume and adding.bytes >= PIECE:
                self._finish_piece(adding)
        except BaseException as exc:
            self._refuse(exc)
        self._count += 1

    def __contains__(self, path: object) -> bool:
        """Whether an interrupted run has written the sample of this path, so that with ``resume``
        it need not be made again."""
        known = isinstance(path, str | os.PathLike)
        return known and self._pieces is not None and self._pieces.holds(path)  # type: ignore[arg-type]

    def add_many(
        self,
        /,
        data: object,
        labels: object = None,
        *,
        paths: Sequence[PathLike] | None = None,
        **fields: object,
    ) -> None:
        """Add samples (n, ...) at once, which is much faster than one by one if they are small.

        ``labels``: (n,) or (n, L), or n texts; ``paths``: n; ``fields``: (n, ...) each. A field of
        variable length is a list of n arrays, which are added one by one.
        """
        with self._numbered():
            for name in {"label", "path"} & fields.keys():
                raise ParamsError(f"add_many() has no {name}=", hint=f"write {name}s=")
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
        if not isinstance(adding, Blocks) or not adding.even or self._options.resume:
            for i in range(count):
                label, path = (None if o is None else o[i] for o in (labels, paths))
                self.add(table[DATA][i], label, path=path, **{n: table[n][i] for n in fields})
            return
        with self._numbered():
            adding.add_many(table, labels, paths)
            self._count += count

    # -- inside ------------------------------------------------------------------------------

    def _take_from(self, items: DatasetItems) -> None:
        """The samples come from a Dataset, which knows their splits, and the names of their labels.
        ParamsError for a target that cannot serve several labels."""
        options = self._options
        if items.labels and (options.sharded or options.format != "hdf5"):
            raise ParamsError(
                "several labels can be stored in one HDF5 file only",
                path=options.dst,
                found="shards" if options.sharded else "LMDB",
                hint="write one HDF5 file; name one label as labels_field; or serve the others as "
                "fields: data_field=[...]",
            )
        self._items = items

    def _begin(
        self, data: object, label: object, path: object, fields: Mapping[str, object]
    ) -> Adding:
        """The file that takes the next sample; how it is made follows from the first one."""
        with self._numbered():
            if self._set is None:
                if self._format is None:
                    self._format = self._format_of(data, label, path, fields)
                work = self._target.work if self._pieces is None else self._pieces.path
                self._set = self._format.open(work, self._target.shown)
                self._files.callback(self._set.close)
            return self._set

    def _format_of(
        self, data: object, label: object, path: object, fields: Mapping[str, object]
    ) -> SampleFormat:
        options = self._options
        for name in {"labels", "paths"} & fields.keys():
            raise ParamsError(f"add() has no {name}=", hint=f"write {name[:-1]}=")
        if options.resume and (path is None or (isinstance(label, str) and not self._classes)):
            raise ParamsError(
                "resume needs the path of each sample, and with labels of text classes",
                hint="add(data, label, path=key); Writer(..., classes=[...])",
            )
        if self._pieces is not None:
            options = replace(options, shards=None, shard_size=None)
            options = replace(options, format="hdf5", compression=None, chunk=1)
        plan = SampleFormat(options, self._classes, data, label, path, fields)
        if self._pieces is not None:
            said = f"{plan.words} {__version__}".encode("utf-8", "surrogateescape")
            self._pieces.check_kind(xxh3_64_hexdigest(said))
        return plan

    def _finish_piece(self, adding: Adding) -> None:
        """Finish a file of the shards; the next sample begins another."""
        assert self._pieces is not None
        self._finish_file(adding)
        self._files.close()
        self._pieces.finish()
        self._set = None

    def _finish_file(self, adding: Adding) -> SetFile:
        if self._items is not None:
            numbers, splits = np.array(self._numbers, np.int64), self._items.splits
            adding.splits = None if splits is None else splits.of(numbers)
            adding.label_names = self._items.label_names
            self._numbers.clear()
        return adding.finish()

    @contextlib.contextmanager
    def _numbered(self) -> Any:
        """An error inside names the next sample, and is the end of this set."""
        if os.getpid() != self._process:
            raise ReaderClosedError(
                "this Writer belongs to the process that this one was forked from",
                found=f"opened in process {self._process}, called in {os.getpid()}",
                hint="add samples in that process",
            )
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

    def _refuse(self, error: BaseException) -> Never:
        self._refused = True
        if isinstance(error, ParamsError) and error.index is None:
            error.index = self._count
            error.path = error.path or self._options.dst
        with temporary_files():
            raise error

    def close(self) -> ConvertReport | None:
        """Publish the dataset and return the report. A second call does nothing. Raises ParamsError
        if a sample was refused; nothing is published then."""
        if self._closed:
            return self.report
        try:
            with self._numbered():
                if self._set is None and (self._pieces is None or not self._pieces.count):
                    raise SourceError(
                        "no sample was added, so there is no dataset", path=self._options.dst
                    )
            with temporary_files():
                self._finish()
        except BaseException as exc:
            self._end(exc)
            raise
        self._end(None)
        return self.report

    def _finish(self) -> None:
        options, adding = self._options, self._set
        if self._pieces is not None:
            if adding is not None and adding.taken:
                self._finish_piece(adding)
            source = self._pieces.pattern
            copied = replace(options, src=source, sources=(source,), **_AS_STORED)
            free = self._pieces.give_back
            with contextlib.closing(_Finished(copied)) as samples:
                packing = ShardPacking(copied, samples, self._target, self._begun, copied=free)
                try:
                    self.report = packing.run()
                except ChecksumError as exc:
                    folder = self._target.workspace
                    exc.hint = (
                        "if a finished shard was damaged: the space of its samples was given back, "
                        f"so remove {folder!r} to start over"
                    )
                    raise
            return
        assert adding is not None
        packed = self._finish_file(adding)
        self.report = publish_file(options, adding, packed, self._target, self._begun)

    def abandon(self) -> None:
        """End without a dataset: the target is as it was, and what was finished stays for a run
        with ``resume``. It does nothing after ``close()``."""
        self._end(None)

    def _end(self, error: BaseException | None) -> None:
        if os.getpid() != self._process:
            return  # the files are those of the process that opened them
        self._closed, self._set = True, None
        if error is None:
            self._stack.close()
        else:
            self._stack.__exit__(type(error), error, error.__traceback__)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if error is None:
            self.close()
        else:
            self._end(error)


class _Finished(DatasetSamples):
    """The samples of finished files, which are told by their checksums: the files' times change
    when space of theirs is given back."""

    def sources(self, numbers: Int64) -> str:
        return ""


def _abandon(process: int, stack: contextlib.ExitStack) -> None:
    """End a Writer that is lost, in the process that opened it and not in one that was forked."""
    if os.getpid() == process:
        stack.close()


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


# -- convert ---------------------------------------------------------------------------------------


@documented(OPTIONS)
def convert(
    src: PathLike | Sequence[PathLike] | Items,
    dst: PathLike,
    **keywords: Unpack[ConvertKeywords],
) -> ConvertReport:
    """Convert ``src``, images in a folder or a dataset, to ``dst``, an HDF5 file, an LMDB folder or
    shards. A list of sources becomes one dataset.

    ``src``, ``labels`` and ``classes`` may be URLs of object stores (s3://, gs://; https:// only
    for what need not be listed); ``labels`` names the images on a web server.

    ``src`` may also be samples: an array (n, ...), a tuple of arrays (data, labels), a dict of
    arrays, or an iterable or map-style dataset of arrays, of tuples (data, label) or of dicts with
    "data" (or "image"), "label", "path" and other fields. They are given to a :class:`Writer`, and
    so are the samples of an :class:`asyncreader.Dataset`: as it serves them, with labels, classes,
    paths and splits, its first field as ``data`` and the others by their names. If it has several
    labels, those after the first become fields, which one HDF5 file serves as labels.

    The target appears under its name when it is complete, verified and on the disk; after any error
    it is as it was (finished shards are kept next to it, for ``resume``). Raises ParamsError for
    bad arguments, SampleError (such as DecodeError, with ``source_path``) for a bad image,
    SourceError for source or target. The options:
    """
    with progress_line(keywords.get("progress")) as progress:
        return _convert(src, dst, {**keywords, "progress": progress})


def _convert(src: Any, dst: PathLike, keywords: ConvertKeywords) -> ConvertReport:
    if not is_paths(src):
        return _convert_items(src, dst, keywords)
    begun = time.perf_counter()  # compiling, which the first run on a machine waits for, counts
    options = check(src, dst, **keywords)
    if options.engine == "ray":
        load_ray()  # before any file is read
    try:
        with (
            Target(
                options.dst, options.kind, options.overwrite, options.resume, options.append
            ) as target,
            contextlib.ExitStack() as opened,
        ):
            grown = Grown.open(target.path, target.shown) if options.append else None
            known: tuple[str, ...] = ()
            if grown is not None:
                options, known = grown.options(options), grown.classes
            usual = None if grown is None else grown.encoding
            samples = open_samples(options, target.path, known, usual)
            opened.callback(samples.close)
            if grown is not None:
                grown.fit(samples, target.shown)
            if options.sharded:
                return ShardPacking(options, samples, target, begun, grown).run()
            done = progress_callback(options, samples)
            packed = pack_file(options, samples, target.work, target.shown, done=done)
            return publish_file(options, samples, packed, target, begun)
    except OSError as exc:
        if isinstance(exc, AsyncReaderError):
            raise
        if is_full(exc):  # sinks and publish() raise their own: these are temporary files
            raise no_temporary_space() from exc
        raise SourceError(
            "the dataset cannot be written",
            path=exc.filename,
            found=exc.strerror or str(exc),
            hint="; ".join(getattr(exc, "__notes__", ())) or None,
        ) from exc


def _convert_items(src: Items, dst: PathLike, keywords: ConvertKeywords) -> ConvertReport:
    """Give samples that are no files to a Writer."""
    from asyncreader.dataset import Dataset

    options: dict[str, Any] = dict(keywords)
    progress = options.pop("progress")
    if isinstance(options.get("classes"), str | os.PathLike):
        options["classes"] = class_names(SRC("classes", options["classes"]))
    notes: tuple[str, ...] = ()
    with contextlib.ExitStack() as opened:
        if isinstance(src, Dataset):
            served = DatasetItems(src, options.get("classes"))
            src = opened.enter_context(contextlib.closing(served))
            options = {**served.places, **options, "classes": served.classes}
            notes = served.notes
        count, writer = count_of(src), opened.enter_context(Writer(dst, **options))
        if isinstance(src, DatasetItems):
            writer._take_from(src)
        for done in give(src, writer.add, writer.add_many):
            if progress is not None:
                progress(done, done if count is None else count)
    assert writer.report is not None
    return replace(writer.report, notes=(*writer.report.notes, *notes))
