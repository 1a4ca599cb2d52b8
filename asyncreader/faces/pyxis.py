"""ml-pyxis' interface and files: samples of named arrays in LMDB, msgpack inside msgpack.

Layout: named databases ``data_db`` (key ``{:010}``, value a msgpack map name -> packed array) and
``meta_db`` (``nb_samples`` in ASCII digits, and the user's strings). A packed array is a msgpack
map of ``type`` (2), ``dtype`` (numpy's string), ``shape`` and ``data`` (C order), keys as bytes.

Files are read without the LMDB library, as bytes that are checked (sources/lmdb.py): a damaged one
raises an error, and a reader can be pickled, forked and shared by threads, also while a writer is
at work. Needs ``msgpack``: ``pip install -e '.[pyxis]'``.
"""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any, Self, TypeAlias, TypeVar

import lmdb
import numpy as np

from ..errors import Closing, FormatError, ParamsError, ReaderClosedError, SourceError
from ..sources import absolute
from ..sources.lmdb import lmdb_data_file
from ..system.array_types import Int64
from ..system.checks import FILE, FILL_MASKED, whole
from . import pyxis_reader
from .pyxis_reader import DATA_DB, META_DB, Array, Reader, Snapshot, pack_sample, record_key

if TYPE_CHECKING:
    from torch import Tensor

__all__ = [
    "DataIterator",
    "Reader",
    "SequentialBatch",
    "SequentialBatchThreadSafe",
    "SimpleBatch",
    "SimpleBatchThreadSafe",
    "StochasticBatch",
    "StochasticBatchThreadSafe",
    "TorchDataset",
    "Writer",
]

T = TypeVar("T")


class Writer(Closing):
    """Writes samples to the LMDB folder ``dirpath``, or adds to one that exists.

    ``map_size_limit``: MiB to begin with; the map grows when it is full. ``ram_gb_limit``: GB (1e9
    bytes) that one put_samples() may take. Every put is one transaction, with the number of samples
    in it: after a crash the file holds all puts that returned. Raises ParamsError, FormatError
    (there is another kind of file) or SourceError.
    """

    def __init__(
        self, dirpath: str | os.PathLike[str], map_size_limit: float = 64, ram_gb_limit: float = 2
    ) -> None:
        self.dirpath = absolute(FILE("dirpath", dirpath))
        if not map_size_limit > 0 or not ram_gb_limit > 0:
            raise ParamsError(
                "map_size_limit (MiB) and ram_gb_limit (GB) must be above 0",
                found=f"{map_size_limit} and {ram_gb_limit}",
            )
        self.map_size_limit = map_size_limit
        self.ram_gb_limit = float(ram_gb_limit)
        self.nb_samples = self._found()
        self._env: Any = None
        try:
            self._env = lmdb.open(
                self.dirpath, map_size=max(1 << 16, int(map_size_limit * (1 << 20))), max_dbs=2
            )
            self._data = self._growing(lambda: self._env.open_db(DATA_DB))
            self._meta = self._growing(lambda: self._env.open_db(META_DB))
            if self.nb_samples == 0:
                self._commit(lambda transaction: None)
        except (lmdb.Error, OSError) as exc:
            self.close()
            raise SourceError(f"LMDB: {exc}", path=self.dirpath) from exc

    def _found(self) -> int:
        """Samples in a set that is there; checked before the LMDB library sees the file."""
        if lmdb_data_file(self.dirpath) is None:
            if os.path.lexists(self.dirpath) and not os.path.isdir(self.dirpath):
                raise FormatError("not an LMDB folder", path=self.dirpath)
            return 0
        snapshot = Snapshot.of(self.dirpath)
        # a writer of old may have died before it noted the number
        last = int(snapshot.numbers[-1]) + 1 if snapshot.numbers.size else 0
        return max(snapshot.nb_samples, last)

    # -- samples ---------------------------------------------------------------------------

    def put_samples(self, *args: Mapping[str, Array] | str | Array) -> None:
        """Add samples: ``put_samples({name: array, ...})`` or ``put_samples(name, array, ...)``.

        Samples lie along the first axis of every array. All of them are in the file when it
        returns, or none. Raises ParamsError (a ValueError) for anything but arrays of plain values
        and one length, or for more than ``ram_gb_limit``.
        """
        arrays = _named(args)
        lengths = {name: array.shape[0] if array.ndim else None for name, array in arrays.items()}
        if len(set(lengths.values())) != 1 or None in lengths.values():
            raise ParamsError("the arrays must have one number of samples", found=lengths)
        size = sum(array.nbytes for array in arrays.values())
        if size > self.ram_gb_limit * 1e9:
            raise ParamsError(
                "more than ram_gb_limit at once",
                found=f"{size / 1e9:.3f} GB",
                expected=f"at most {self.ram_gb_limit} GB",
                hint="put fewer samples at a time",
            )
        (count,) = set(lengths.values())
        assert count is not None
        first = self.nb_samples

        def put(transaction: Any) -> None:
            for i in range(count):
                sample = {name: array[i, ...] for name, array in arrays.items()}
                transaction.put(record_key(first + i), pack_sample(sample), db=self._data)

        self._commit(put, first + count)

    def put_sample(
        self, index: int, *args: Mapping[str, Array] | str | Array, overwrite: bool = False
    ) -> None:
        """Write one sample (its arrays have no sample axis) under a number of your own.

        Numbers may have gaps: ml-pyxis itself then fails on a missing one. Raises ParamsError if
        the sample exists and ``overwrite`` is False.
        """
        number = whole(0)("index", index)
        arrays = _named(args)

        def put(transaction: Any) -> None:
            written = transaction.put(
                record_key(number), pack_sample(arrays), db=self._data, overwrite=overwrite
            )
            if not written:
                raise ParamsError(f"sample {number} is there", hint="pass overwrite=True")

        self._commit(put, max(self.nb_samples, number + 1))

    def delete_sample(self, index: int) -> None:
        """Remove a sample; the others keep their numbers. Raises IndexError if there is none."""
        number = whole(0)("index", index)
        left = self.nb_samples

        def delete(transaction: Any) -> None:
            nonlocal left
            if not transaction.delete(record_key(number), db=self._data):
                raise IndexError(f"there is no sample {number}")
            if number == self.nb_samples - 1:
                with transaction.cursor(db=self._data) as cursor:
                    left = int(cursor.key()) + 1 if cursor.last() else 0
            transaction.put(pyxis_reader.NB_SAMPLES, str(left).encode(), db=self._meta)

        self._commit(delete)
        self.nb_samples = left

    # -- the rest --------------------------------------------------------------------------

    def set_meta_str(self, key: str | bytes, string: object) -> None:
        """Keep a string with the dataset, under a key of at most 511 bytes."""
        name = key if isinstance(key, bytes) else str(key).encode()
        if name == pyxis_reader.NB_SAMPLES or not 0 < len(name) <= 511:
            raise ParamsError("not a key for a string of yours", found=repr(key))
        self._commit(lambda transaction: transaction.put(name, str(string).encode(), db=self._meta))

    def _commit(self, work: Callable[[Any], Any], nb_samples: int | None = None) -> None:
        """Run ``work`` in one transaction that also notes the number of samples."""
        if self._env is None:
            raise ReaderClosedError("this Writer is closed", hint="open a new one: it adds")
        number = self.nb_samples if nb_samples is None else nb_samples

        def whole_transaction() -> None:
            with self._env.begin(write=True) as transaction:
                transaction.put(pyxis_reader.NB_SAMPLES, str(number).encode(), db=self._meta)
                work(transaction)

        try:
            self._growing(whole_transaction)
        except lmdb.Error as exc:
            raise SourceError(f"LMDB: {exc}", path=self.dirpath) from exc
        self.nb_samples = number  # only now: a transaction that failed has written nothing

    def _growing(self, work: Callable[[], T]) -> T:
        """Run ``work`` until the map is large enough for it."""
        while True:
            try:
                return work()
            except lmdb.MapFullError:
                self._env.set_mapsize(2 * self._env.info()["map_size"])
            except lmdb.MapResizedError:  # another process made it larger
                self._env.set_mapsize(0)

    def close(self) -> None:
        """Close the file. A second call does nothing."""
        env, self._env = self._env, None
        if env is not None:
            env.close()

    def __repr__(self) -> str:
        return (
            f"pyxis.Writer\nLocation:\t\t{self.dirpath!r}\n"
            f"LMDB map_size:\t\t{self.map_size_limit} MB\nNumber of samples:\t{self.nb_samples}"
        )


def _named(args: tuple[Any, ...]) -> dict[str, Array]:
    """Arrays by name from a dict, or from names and arrays in turn."""
    if len(args) == 1 and isinstance(args[0], dict):
        arrays = args[0]
    elif len(args) % 2 == 0:
        arrays = dict(zip(args[0::2], args[1::2], strict=True))
    else:
        raise ParamsError("names and arrays come in pairs, or as one dict", found=len(args))
    if not arrays:
        raise ParamsError("a sample has at least one array")
    for name, array in arrays.items():
        if not isinstance(name, str):
            raise ParamsError("names are strings", found=repr(name))
        if not isinstance(array, np.ndarray):
            raise ParamsError(f"{name!r} is no numpy array", found=type(array).__name__)
        if isinstance(array, np.ma.MaskedArray):
            raise ParamsError(f"{name!r} would be written without its mask", hint=FILL_MASKED)
        if array.dtype.kind not in "biufcSUMm":
            raise ParamsError(f"{name!r} holds no plain values", found=f"dtype {array.dtype}")
    return dict(arrays)


#: One array, or one for each key.
Arrays: TypeAlias = Array | tuple[Array, ...]

#: What draws: ``numpy.random`` itself, or a generator of it.
Random: TypeAlias = np.random.Generator | np.random.RandomState | ModuleType


class DataIterator:
    """Base of the iterators: derive from one of them to change what it gives.

    ``keys``: a name, or several; batches are an array, or a tuple of arrays in that order, new ones
    each time; threads may share an iterator. ``gen``: the batches as they are stored; ``lock``:
    take it around ``next(gen)``. Override ``__next__`` (or ``next``) for batches of your own.
    ``rng``: ``numpy.random``, a RandomState or a Generator.
    """

    #: True while the last batch of a pass is out.
    end_of_dataset = False

    def __init__(self, db: Reader, keys: str | Sequence[str], rng: Random = np.random) -> None:
        self.db = db
        self.keys = [keys] if isinstance(keys, str) else list(keys)
        self.rng = rng
        self.lock = threading.RLock()
        indices = db.indices
        if indices.size == 0:
            raise ParamsError("the dataset has no samples", found=db.dirpath)
        self.spec = db.get_data_specification(int(indices[0]))
        for key in self.keys:
            if key not in self.spec:
                raise KeyError(f"Key does not exist: {key}")
        self.gen: Iterator[Arrays] = iter(())

    def __iter__(self) -> Self:
        return self

    def next(self) -> Arrays:
        """The next batch. Raises StopIteration after the last one of a single pass."""
        with self.lock:
            return next(self.gen)

    def __next__(self) -> Arrays:
        return self.next()

    def _batch(self, indices: Int64) -> Arrays:
        arrays = self.db.stacked(indices.tolist(), self.keys)
        return arrays[0] if len(arrays) == 1 else tuple(arrays)


@dataclass
class _Pass:
    """The sample numbers in the order of this pass, and how many of them are left of it."""

    order: Int64
    left: int = 0
    begun: bool = False


class SimpleBatch(DataIterator):
    """Each sample once a pass; ``shuffle``: in another order every pass.

    A batch has ``batch_size`` samples; the last one of a pass may be shorter (``end_of_dataset`` is
    True with it). ``endless``: pass after pass; otherwise StopIteration after one. Raises KeyError
    or ParamsError.
    """

    def __init__(
        self,
        db: Reader,
        keys: str | Sequence[str],
        batch_size: int,
        shuffle: bool = False,
        endless: bool = True,
        rng: Random = np.random,
    ) -> None:
        super().__init__(db, keys, rng)
        self.batch_size = whole(1)("batch_size", batch_size)
        self.shuffle = shuffle
        self.endless = endless
        self.gen = self.batch()

    def batch(self) -> Iterator[Arrays]:
        """The batches as they are stored. After an error the next one comes."""
        # no generator: Ctrl-C and errors would end it
        return map(self._next_of, itertools.repeat(_Pass(self.db.indices)))

    def _next_of(self, now: _Pass) -> Arrays:
        if now.left == 0:
            if now.begun and not self.endless:
                raise StopIteration
            if self.shuffle:
                self.rng.shuffle(now.order)
            now.left, now.begun = now.order.size, True
        left = max(0, now.left - self.batch_size)
        try:
            part = self._batch(now.order[now.order.size - now.left :][: self.batch_size])
        except Exception:
            now.left = left
            raise
        self.end_of_dataset = left == 0
        now.left = left
        return part


class SequentialBatch(SimpleBatch):
    """The samples in the order in which they were written; see SimpleBatch."""

    def __init__(
        self, db: Reader, keys: str | Sequence[str], batch_size: int, endless: bool = True
    ) -> None:
        super().__init__(db, keys, batch_size, shuffle=False, endless=endless)


class StochasticBatch(DataIterator):
    """``batch_size`` samples drawn uniformly, with replacement; endless."""

    def __init__(
        self, db: Reader, keys: str | Sequence[str], batch_size: int, rng: Random = np.random
    ) -> None:
        super().__init__(db, keys, rng)
        self.batch_size = whole(1)("batch_size", batch_size)
        self.gen = self.batch()

    def batch(self) -> Iterator[Arrays]:
        """The batches as they are stored."""
        # no generator: Ctrl-C and errors would end it
        return map(self._drawn_from, itertools.repeat(self.db.indices))

    def _drawn_from(self, indices: Int64) -> Arrays:
        draw = self.rng.integers if hasattr(self.rng, "integers") else self.rng.randint
        drawn = draw(indices.size, size=self.batch_size, dtype=np.uint64)
        return self._batch(indices[drawn.astype(np.int64)])


#: Every iterator can be shared by threads.
SimpleBatchThreadSafe = SimpleBatch
SequentialBatchThreadSafe = SequentialBatch
StochasticBatchThreadSafe = StochasticBatch


class TorchDataset:
    """Samples as dicts of torch tensors, for torch's DataLoader with any number of workers."""

    def __init__(self, dirpath: str | os.PathLike[str]) -> None:
        self.dirpath = absolute(FILE("dirpath", dirpath))
        self.db = Reader(self.dirpath, lock=False)

    def __len__(self) -> int:
        return len(self.db)

    def __getitem__(self, key: int) -> dict[str, Tensor]:
        import torch

        return {name: torch.from_numpy(value) for name, value in self.db[key].items()}

    def __repr__(self) -> str:
        return repr(self.db)
