"""Dataset: a set to look into, sample by sample, without workers and without an order."""

from __future__ import annotations

import html
import os
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, SupportsIndex, Unpack, cast

import numpy as np

from .batch import Array, flat_labels
from .errors import Closing, ParamsError, ReaderClosedError, closed_on_error
from .params.declare import documented
from .params.keywords import ReaderKeywords
from .params.parse import apart_from, parse_params
from .params.reader import SHOWN, Given, ReaderParams
from .pipeline import build
from .pipeline.opened import Opened, Rows, is_number, number_of, numbers_of
from .sources import Inspector, OpenSet, fingerprint, open_there, open_whole
from .sources.episodes import windows_of
from .sources.labels import apart
from .sources.ragged import longest_of
from .stats import FieldStatistics
from .system.array_types import Bools, Int64
from .system.late import TypeVar, tools_notebook, tools_preview, tools_statistics
from .system.text import some, times

if TYPE_CHECKING:
    from PIL import Image

    from .reader import AsyncReader

#: A sample: (data, label) where nothing else is said.
S = TypeVar("S", default=tuple[Array, Array])


class Field(NamedTuple):
    """A field as it is served: the shape of a sample (None if samples differ), and the dtype."""

    shape: tuple[int, ...] | None
    dtype: np.dtype[np.generic]


@dataclass(frozen=True)
class Sample:
    """All that a dataset holds of a sample.

    ``data``: as ``dataset[i]`` gives it, a tuple with several fields; ``label``: as ``dataset[i]``
    gives it, or None; ``record``: its number in the file; ``class_name``: the name of its stored
    label; ``path``: the file that it was converted from; ``key``: its key in LMDB; both are None if
    the dataset does not record them; ``stored``: the bytes of each field by name.
    """

    data: Array
    label: Array | None
    record: int
    class_name: str | None
    path: str | None
    key: str | None
    stored: Mapping[str, bytes]


class Dataset(Closing, Generic[S]):
    """A dataset without a reader: its samples by number, and what it says of them.

    ``dataset[i]`` is (data, label), or the data alone if the dataset has no labels. It is what an
    AsyncReader with these parameters serves, but not shuffled, with ``crop="center"`` for a random
    crop and ``patch_at="center"`` for a random patch, and without ``flip``, ``augment``, ``views``
    and changes to whole batches (``mixup``, ``label_smoothing``, ``postprocess``). ``dataset[a:b]``
    and ``dataset[[3, 7]]`` are stacked: data (n, ...) and labels (n, ...). With ``subset``, numbers
    are positions in the subset.

    ``nthread`` threads (by default one for each core) decode the samples of one call, and end with
    it. In a worker process, and with a ``transform``, one thread does.

    It takes the place of a map-style dataset in torch's DataLoader, with any start method: it is
    pickled as its parameters. Threads may share it. Errors: IndexError for a number that does not
    exist, SampleError (ChecksumError, DecodeError) for a bad sample, ReaderClosedError after
    close(); opening raises what AsyncReader raises.

    ``S`` is the type of a sample, ``tuple[Array, Array]`` unless annotated otherwise, as ``ds:
    Dataset[dict[str, Array]] = asyncreader.open(path, as_dict=True)``.
    """

    def __init__(
        self,
        params: ReaderParams,
        as_dict: bool = False,
        source: OpenSet | None = None,
        owned: bool = True,
    ) -> None:
        """See :func:`open`, which checks what a caller passes. ``source``: the dataset, if it is
        open already; ``owned``: whether closing this closes it."""
        self._params, self._as_dict = params, as_dict
        self._locks = {os.getpid(): threading.Lock()}
        self._closed = False
        self._opened = None if source is None else Opened(params, source, owned)
        if as_dict and "label" in self.source.names:
            self.close()
            raise ParamsError(
                "a dict of a sample has its label under the name of a field",
                found="field 'label'",
                hint='give the field another name: data_field={"image": "label", ...}',
            )

    def _now(self) -> Opened:
        """The set as this process has it open: a forked process opens it again."""
        opened = self._opened
        if opened is not None and opened.pid == os.getpid():
            return opened
        # a lock for each process: that of the parent may be held for ever by a thread of it
        with self._locks.setdefault(os.getpid(), threading.Lock()):
            if self._closed:
                raise ReaderClosedError("this dataset was closed", hint="open it again")
            if self._opened is None or self._opened.pid != os.getpid():
                self._opened = Opened(self._params, build.open_set(self._params))
            return self._opened

    # -- samples ---------------------------------------------------------------------------

    def __len__(self) -> int:
        return self._now().length

    @property
    def count(self) -> int:
        """The number of samples (those of ``subset``)."""
        return len(self)

    def __getitem__(self, index: SupportsIndex | slice | Sequence[int] | Int64 | Bools) -> S:
        """A sample of a number, or samples that are stacked."""
        opened = self._now()
        if is_number(index):
            return self._shaped(opened.read(number_of(index, opened.length)), 0)
        return self._shaped(opened.read(numbers_of(index, opened.length)))

    def __getitems__(self, indices: Sequence[int]) -> list[S]:
        """Samples of a list of numbers, read in one go: what torch's DataLoader calls. A label that
        is one whole number is a number, not a row of one: a batch of them is what losses take."""
        return self._samples(indices, flat_labels)

    def __iter__(self) -> Iterator[S]:
        """All samples in order, read some at a time."""
        opened = self._now()
        for at in range(0, opened.length, opened.together):
            yield from self._samples(range(at, min(at + opened.together, opened.length)))

    def _samples(
        self, indices: Sequence[int], of_labels: Callable[[Any], Any] | None = None
    ) -> list[S]:
        """Samples of some numbers, their labels as ``of_labels`` makes them."""
        opened = self._now()
        if isinstance(indices, tuple):  # what numpy takes for the axes of one sample
            indices = list(indices)
        numbers = numbers_of(indices, opened.length)
        if opened.sizes_differ:
            return [self._shaped(opened.read(n), 0, of_labels) for n in numbers[:, None]]
        rows = opened.read(numbers)
        return [self._shaped(rows, row, of_labels) for row in range(len(numbers))]

    def _shaped(
        self, rows: Rows, row: int | None = None, of_labels: Callable[[Any], Any] | None = None
    ) -> S:
        """Rows, or one of them, as samples are handed out, their labels as ``of_labels`` makes
        them."""
        labels, made = apart(rows.labels), cast(Any, None)
        if labels is not None and of_labels is not None:
            labels = of_labels(labels)
        if self._as_dict:
            made = {name: _one_of(array, row) for name, array in rows.named(labels).items()}
        else:
            made = _one_of(rows.data if rows.several else rows.data[0], row)
            made = made if labels is None else (made, _one_of(labels, row))
        shaped: S = made
        return shaped

    def sample(self, index: int) -> Sample:
        """All that the dataset holds of a sample: see :class:`Sample`."""
        opened = self._now()
        rows = opened.read(number_of(index, opened.length))
        (record,) = rows.records.tolist()
        looked = Inspector(opened.source.first)
        (own,) = opened.source.records(rows.records).tolist()
        path, classes, name = looked.path(own), self.classes, None
        if classes and opened.source.labels is not None:
            stored: Any = _one_of(np.asarray(opened.source.labels[rows.records]), 0)
            first = stored[0] if isinstance(stored, tuple) else stored
            number = int(first.reshape(-1)[0]) if first.size == 1 else -1
            name = classes[number] if 0 <= number < len(classes) else None
        parts = zip(opened.source.names, opened.source.parts, strict=True)
        return Sample(
            data=_one_of(rows.data if rows.several else rows.data[0], 0),
            label=None if rows.labels is None else _one_of(rows.labels, 0),
            record=int(opened.source.rule.shown(rows.records)[0]),
            class_name=name,
            path=None if path is None else os.fsdecode(path),
            key=looked.key(own),
            stored={name: opened.stored(name, part, record) for name, part in parts},
        )

    # -- what the set says -----------------------------------------------------------------

    @property
    def params(self) -> ReaderParams:
        """The checked parameters."""
        return self._params

    @property
    def given(self) -> Mapping[str, object]:
        """The parameters that were passed, by name."""
        return self._params.given

    @property
    def labels(self) -> Array | None:
        """The labels of all samples, (N, ...) as stored; with several labels a tuple; None without
        labels."""
        opened = self._now()
        table = opened.source.labels
        if table is None:
            return None
        chosen = np.asarray(table[opened.records(np.arange(opened.length, dtype=np.int64))])
        return cast(Array, apart(chosen))

    @property
    def paths(self) -> list[str | None]:
        """The file that each sample was converted from, or the path that it was added with; None if
        none is recorded. Each call reads all of them. To look samples up by their paths: ``{path:
        number for number, path in enumerate(dataset.paths)}``."""
        opened = self._now()
        looked, source = Inspector(opened.source.first), opened.source
        samples = source.records(opened.records(np.arange(opened.length, dtype=np.int64)))
        if not source.rule.renumbered:
            found, rows = list(looked.paths()), samples
        else:  # a patch of each volume stands for all of them
            _, first, rows = np.unique(
                source.rule.shown(samples), return_index=True, return_inverse=True
            )
            found = [looked.path(place) for place in samples[first].tolist()]
        names = [None if path is None else os.fsdecode(path) for path in found]
        return [names[row] for row in rows.tolist()]

    @property
    def classes(self) -> tuple[str, ...] | None:
        """Class names by label number, or None if the dataset has none; with several labels those
        of the first."""
        return self._now().source.facts.classes

    @property
    def class_to_idx(self) -> dict[str, int]:
        """The label number of each class; empty if the dataset has no names."""
        return {name: number for number, name in enumerate(self.classes or ())}

    @property
    def class_counts(self) -> dict[str | int, int]:
        """The number of samples of each class, by its name, or by its label number if the dataset
        has no names. Raises ParamsError if samples have no label, several, or labels that are no
        class numbers."""
        labels = self.labels
        if isinstance(cast(object, labels), tuple):
            raise ParamsError("samples have several labels", found=self._params.labels_field)
        if labels is None or labels.dtype.kind not in "bui" or labels.size != len(labels):
            raise ParamsError(
                "samples have no class to count",
                path=self._now().source.facts.path,
                found="no labels" if labels is None else f"labels {labels.shape} {labels.dtype}",
                expected="one whole number for each sample",
            )
        names = self.classes or ()
        counts: dict[str | int, int] = dict.fromkeys(names, 0)
        for number, samples in zip(*np.unique(labels, return_counts=True), strict=True):
            inside = 0 <= number < len(names)
            counts[names[int(number)] if inside else int(number)] = int(samples)
        return counts

    @property
    def splits(self) -> dict[str, Int64]:
        """What ``subset`` takes for each split that the dataset names: its record numbers; for
        splits of episodes the rows of these episodes, or their numbers if each episode gives one
        sample."""
        source = self._now().source
        every = np.arange(source.facts.count, dtype=np.int64)
        found = {name: every[rows] for name, rows in source.splits.items()}
        rule = source.rule
        return {**(found if rule.parts is None else {}), **rule.splits}

    @property
    def fields(self) -> dict[str, Field]:
        """The fields by name, as they are served."""
        opened = self._now()
        served = opened.read(np.empty(0, np.int64)).data
        known = not opened.sizes_differ
        fields = (Field(array.shape[1:] if known else None, array.dtype) for array in served)
        return dict(zip(opened.source.names, fields, strict=True))

    @property
    def source(self) -> OpenSet:
        """The open dataset, which the commands and tools read: its names may change."""
        return self._now().source

    def records(self, numbers: Int64) -> Int64:
        """The numbers in the file of samples by their numbers here (int64, each in 0 .. count - 1);
        for a window the number of its anchor row."""
        return self._now().records(numbers)

    @property
    def fingerprint(self) -> str:
        """What identifies the dataset, wherever it lies: see ``asyncreader info``."""
        return fingerprint(self._now().source)

    def statistics(self) -> dict[str, FieldStatistics]:
        """Count, mean, standard deviation, minimum and maximum of each field and channel, of the
        stored values: one pass over all samples, some at a time. In a dataset of episodes the rows
        that ``subset`` and ``episodes_subset`` select count, each once, whatever the windows.

        Raises SampleError for a bad sample.
        """
        found: dict[str, FieldStatistics] = tools_statistics.statistics(self._now())
        return found

    def preview(self, count: int = 24, seed: int = 0) -> Image.Image:
        """A sheet of ``count`` samples drawn by ``seed``, as ``asyncreader preview`` draws it: a
        Pillow image (RGB), which notebooks show."""
        sheet: Image.Image = tools_preview.preview(self.given, count=count, seed=seed).sheet
        return sheet

    def reader(self, **overrides: Unpack[ReaderKeywords]) -> AsyncReader:
        """An AsyncReader of this dataset: ``overrides`` win over the parameters of the dataset."""
        from .reader import AsyncReader

        return AsyncReader(self.given, **overrides)

    # -- the end ---------------------------------------------------------------------------

    @property
    def closed(self) -> bool:
        """Whether close() was called."""
        return self._closed

    def close(self) -> None:
        """Close the dataset. A second call does nothing."""
        self._closed = True
        opened, self._opened = self._opened, None
        if opened is not None:
            opened.close()

    def __reduce__(self) -> tuple[Callable[..., Dataset], tuple[dict[str, object], bool]]:
        return _open_again, (self._params.given, self._as_dict)

    def __repr__(self) -> str:
        if self._closed:
            return "<Dataset, closed>"
        return "<Dataset {}: {}>".format(*self._facts().values())

    def _facts(self) -> dict[str, str]:
        source = self._now().source
        words = source.rule.words(len(self))
        words += [
            f"{name} {'of many sizes' if one.shape is None else times(one.shape)} {one.dtype}"
            for name, one in self.fields.items()
        ]
        if self.classes:
            words.append(some(len(self.classes), "class"))
        return {"set": os.path.basename(source.facts.path.rstrip("/")), "holds": ", ".join(words)}

    def _repr_html_(self) -> str:
        """A table, with some stored pictures, for notebooks (IPython's rich display)."""
        if self._closed:
            return f"<code>{html.escape(repr(self))}</code>"
        made: str = tools_notebook.set_html("Dataset", self._facts(), self)
        return made


@documented(SHOWN)
def open(
    params: Given | None = None, /, *, as_dict: bool = False, **overrides: Unpack[ReaderKeywords]
) -> Dataset[S]:
    """Open a dataset to look into it: see :class:`Dataset`. ``params``: as for AsyncReader, a path
    or a dict; keywords override it. ``as_dict``: a sample is a dict of its fields by name, with its
    label as ``label``. It also has ``episode`` and ``present`` for episodes, ``lengths`` for
    samples of different length (with several fields ``<name>.present``, ``<name>.lengths``; see
    Batch), and ``place`` for patches. Raises ParamsError, SourceNotFoundError or FormatError."""
    given, flags = apart_from(params, overrides, as_dict=as_dict)
    p = build.rooted(parse_params(given, {}))
    made: Dataset[S] = Dataset(p, flags["as_dict"])
    with closed_on_error([made]):
        opened = made._now()
        opened.check()
        for warning in filter(
            None, (_left_out(p), build.warning_of_others(p, opened.source, opened.fills))
        ):
            warnings.warn(warning, stacklevel=2)
    return made


def _left_out(p: ReaderParams) -> str | None:
    """The warning if samples by number are served without something random that is asked for."""
    asked = {"flip": p.flip, "augment": p.augment, f"crop={p.crop.kind!r}": p.crop.at_random}
    names = [name for name, one in asked.items() if one]
    if not names:
        return None
    return (
        f"samples by number have no {' and no '.join(names)}, which differ from epoch to epoch: an "
        "AsyncReader, such as dataset.reader(batch_size=32), serves them"
    )


def look_into(params: Mapping[str, object], whole: bool = False) -> Dataset:
    """The set that ``params`` name, to look at what is stored: unlike :func:`open`, this does not
    ask whether its samples can be served as they say. Where nothing says which field is meant, all
    that can be read together; ``whole``: all that asyncreader packed."""
    p = parse_params(params, {})
    p, source = (p, open_whole(p.given_path)) if whole else open_there(p)
    longest = longest_of(source) if p.lengths.most is None else None
    if longest is not None:
        p = replace(p, lengths=replace(p.lengths, most=longest))
        source = source.ruled(windows_of(p, source.index))
    return Dataset(p, source=source)


def _one_of(arrays: Any, row: int | None) -> Any:
    """Row ``row`` of an array, or of each of several, which labels in one array are too; None: all
    rows."""
    several = apart(arrays) if isinstance(arrays, np.ndarray) else arrays
    if isinstance(several, tuple):
        return tuple(_one_of(one, row) for one in several)
    return several if row is None else several[row]


def _open_again(given: dict[str, Any], as_dict: bool) -> Dataset:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it said them where it was opened first
        return open(given, as_dict=as_dict)
