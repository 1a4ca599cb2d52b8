"""Packs samples into one file: threads read and encode, one writes in order; then it is verified.

Memory is bounded for any number of samples: a window of images (ordered_pool.py), one transaction
or write buffer (sinks.py), and tables on disk (temp_tables.py).
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import numpy as np

from asyncreader.errors import AsyncReaderError, FormatError, SampleError, SourceError
from asyncreader.formats.packed import DATA, RAGGED, FieldMeta, Meta
from asyncreader.pixels.rows import SKIP_HINT as READER_HINT
from asyncreader.sampling.feistel import permutation
from asyncreader.system.text import some

from ..block import Block, FieldBlock, block_bytes
from ..inputs.listing import SKIP_HINT
from ..inputs.samples import Samples
from ..options import Options
from ..ordered_pool import Lease, Pool
from ..report import ConvertReport
from .disk import ENTRY, full_error, is_full, sync
from .publish import Target
from .sinks import Hdf5Sink, LmdbSink, Sink
from .tables import RecordTables, Tables

#: Keeps the order of packing independent of every order of training with the same seed.
_STREAM: Final = 0x7061636B

#: Positions of a shuffled order that are computed together.
_ORDER_BLOCK: Final = 4096


@dataclass(frozen=True)
class WrittenFile:
    """A file that was packed, synced and verified. ``meta`` is None, and there is no file, where
    every sample was bad.

    ``label_width``: labels of a sample; ``bytes``: of all samples of each field, before any filter;
    ``skipped``: (number of the sample, what is wrong with
    it); ``rewritten``: images that got restart markers, None where that was not tried;
    ``narrowed``: images of 16 bits that became 8.
    """

    meta: Meta | None
    label_width: int
    bytes: tuple[int, ...]
    skipped: tuple[tuple[int, str], ...]
    rewritten: int | None
    narrowed: int


class SetFile:
    """One file while it is written: samples go to its container and its tables, in record order.

    ``samples``: what is known of them but their bytes; ``work``: its path, ``shown``: its name in
    messages; ``described``: what the samples of each field must be, empty: as the first ones.
    """

    def __init__(
        self,
        options: Options,
        samples: Samples,
        work: str,
        shown: str,
        described: tuple[FieldMeta, ...] = (),
    ) -> None:
        self._options = options
        self._samples = samples
        self._work = work
        self._shown = shown
        self._described = described
        self._records = RecordTables(samples)
        self._rewritten: int | None = None
        self._narrowed = 0
        self._sink = self._opened()

    @property
    def count(self) -> int:
        """Samples so far."""
        return self._records.count

    @property
    def bytes(self) -> int:
        """Bytes of all fields so far."""
        return sum(self._records.bytes)

    def append(self, number: int, sample: Block) -> None:
        """Add sample ``number`` of the source; or several, from that one on. FormatError if a field
        is of another kind than those before."""
        if not self._described:
            self._described = described(sample, self._samples)
        for field, values in zip(self._described, sample, strict=True):
            if not values.fits(field):
                raise self._unfit(number, field, values)
        self._records.add(number, sample)
        self._sink.append(sample)
        self._narrowed += sample[0].narrowed
        if sample[0].rewritten is not None:
            self._rewritten = (self._rewritten or 0) + sample[0].rewritten

    def finish(self, skipped: Sequence[tuple[int, str]] = ()) -> WrittenFile:
        """Write the tables; make all durable, and verify it. ``skipped``: samples that were bad. On
        an error the caller removes what was written."""
        tables: Tables | None = None
        if self._records.count:
            tables = self._records.tables()
            self._sink.finish(tables)
            sync_set(self._work, self._options.format, self._shown)
            self._verify()
        labels = None if tables is None else tables.labels
        return WrittenFile(
            None if tables is None else tables.meta,
            1 if labels is None else int(labels.shape[1]),
            self._records.bytes,
            tuple(skipped),
            self._rewritten,
            self._narrowed,
        )

    def close(self) -> None:
        """Close the files, finished or not."""
        self._sink.abandon()
        self._records.close()

    def _opened(self) -> Sink:
        options = self._options
        common: dict[str, Any] = {
            "encoding": self._samples.encoding,
            "expected": self._samples.count,
            "fields": self._samples.fields,
        }
        if options.format == "lmdb":
            return LmdbSink(self._work, self._shown, **common)
        return Hdf5Sink(
            self._work,
            self._shown,
            compression=options.compression,
            chunk=options.chunk,
            jobs=options.jobs,
            **common,
        )

    def _unfit(self, number: int, expected: FieldMeta, values: FieldBlock) -> FormatError:
        """The error for values that are of another kind than ``expected``."""
        where = self._samples.where(number)
        found = values.described(expected.name, expected.encoding)
        sides, wanted = (meta.shape if meta.channels else None for meta in (found, expected))
        if expected.name == DATA and sides and wanted and sides[:2] != wanted[:2]:
            return FormatError(
                "images of different sizes cannot be stored as raw pixels",
                source_path=where,
                found="{} x {} pixels (height x width)".format(*sides),
                expected="{} x {}, as the first image".format(*wanted),
                hint=f"{_one_size(self._options)}, or choose encoding 'jpeg' or 'original'",
            )
        return FormatError(
            f"field {expected.name!r} has values of another kind than the first",
            source_path=where,
            found=_words(found),
            expected=_words(expected),
            hint="bring all of them to one shape and dtype",
        )

    def _verify(self) -> None:
        """Read the file back as a reader does, and compare it with what was packed.

        The digests in it were computed here, before writing, and cover everything else.
        """
        from asyncreader.tools.verify import verify_file

        report = verify_file(self._work)
        problem = report.problems[0] if report.problems else None
        if problem is None and report.count != self._records.count:
            problem = f"{report.count} samples instead of {self._records.count}"
        if problem is not None:
            raise SourceError(
                "the finished dataset does not read back as it was written",
                path=self._shown,
                found=problem,
                hint="check the disk and the memory of this machine",
            )


class Packing:
    """Packs ``samples``, in ``order`` (of their numbers), into the one file ``work``.

    ``shown``: its name in messages; ``described``: what the samples of each field must be, empty:
    as the first ones; ``done(n)`` is called after each sample, by the calling thread.
    """

    def __init__(
        self,
        options: Options,
        samples: Samples,
        work: str,
        shown: str,
        *,
        order: Order | None = None,
        described: tuple[FieldMeta, ...] = (),
        done: Callable[[int], None] | None = None,
    ) -> None:
        self._options = options
        self._samples = samples
        self._order = order or Order(samples.count, None)
        self._done = done
        self._file = SetFile(options, samples, work, shown, described)
        self._skipped: list[tuple[int, str]] = []
        self._prefetched = 0  # positions below this are prefetched, or being fetched
        self._lock = threading.Lock()

    def run(self) -> WrittenFile:
        """Pack all. On an error the caller removes what was written so far."""
        with contextlib.closing(self._file):
            self._pack()
            return self._file.finish(self._skipped)

    def _pack(self) -> None:
        with Pool(
            self._fetch,
            self._samples.count,
            jobs=self._options.jobs,
            cost=block_bytes,
            group=self._samples.run,
        ) as pool:
            try:
                self._append_all(pool)
            except BaseException:
                self._samples.give_up()  # the pool waits for its threads
                raise

    def _append_all(self, pool: Pool[Block]) -> None:
        for position, result in pool:
            number = self._order[position]
            if isinstance(result, Exception):
                self._bad(number, result)
            else:
                self._file.append(number, result)
            if self._done is not None:
                self._done(position + 1)

    def _prefetch(self, position: int) -> None:
        """Prefetch the samples after ``position``, as many as the source accepts."""
        samples = self._samples
        with self._lock:
            self._prefetched = max(self._prefetched, position + 1)
            stop = min(position + 1 + samples.ahead, samples.count)
            while self._prefetched < stop and samples.will_need(self._order[self._prefetched]):
                self._prefetched += 1

    def _fetch(self, position: int, lease: Lease) -> Block:
        if self._samples.ahead:
            self._prefetch(position)
        return self._samples.fetch(self._order[position], lease.hold)

    def _bad(self, number: int, error: Exception) -> None:
        check_skippable(error, self._options, self._samples, number)
        assert isinstance(error, SampleError)
        self._skipped.append((number, reason(error)))


def publish_file(
    options: Options, samples: Samples, packed: WrittenFile, target: Target, begun: float
) -> ConvertReport:
    """Give the file that ``samples`` were packed into its name; the report."""
    skipped = all_skipped(samples, packed.skipped)
    if packed.meta is None:
        raise all_bad(options, skipped)
    size = os.stat(data_file(target.work, options.format)).st_size
    target.publish()
    return ConvertReport(
        target=options.dst,
        format=options.format,
        encoding=packed.meta.encoding,
        count=packed.meta.count,
        skipped=tuple((name, why) for _, name, why in sorted(skipped)),
        ignored=samples.ignored,
        classes=packed.meta.classes,
        bytes=size,
        seconds=time.perf_counter() - begun,
        rewritten=packed.rewritten,
        narrowed=packed.narrowed,
        notes=samples.notes,
    )


class Order:
    """From the position in the file to the number in the source. Safe in any thread."""

    def __init__(self, count: int, seed: int | None) -> None:
        self._count = count
        self._seed = seed
        self._block = lru_cache(maxsize=8)(self._numbers_of)

    def __getitem__(self, position: int) -> int:
        if self._seed is None:
            return position
        return int(self._block(position // _ORDER_BLOCK)[position % _ORDER_BLOCK])

    def _numbers_of(self, block: int) -> Any:
        start = block * _ORDER_BLOCK
        return self.numbers(start, min(start + _ORDER_BLOCK, self._count))

    def numbers(self, start: int, stop: int) -> Any:
        """int64: the numbers at positions start .. stop-1."""
        positions = np.arange(start, stop, dtype=np.int64)
        if self._seed is None:
            return positions
        return permutation(self._count, self._seed, _STREAM)(positions)


def data_file(path: str, kind: str) -> str:
    """The file that holds the samples of a set that is written to ``path``."""
    return path if kind == "hdf5" else os.path.join(path, "data.mdb")


def sync_set(path: str, kind: str, shown: str) -> None:
    """Make what was written durable; ``shown``: the target's name for messages."""
    try:
        sync(data_file(path, kind))
        if kind == "lmdb":
            sync(path)
    except OSError as exc:
        if is_full(exc):
            raise full_error(shown, os.path.dirname(path), ENTRY, exc) from exc
        what = "what was written does not reach the disk"
        raise SourceError(what, path=shown, found=exc.strerror) from exc


def described(block: Block, samples: Samples) -> tuple[FieldMeta, ...]:
    """What all of ``samples`` must have in common with these."""
    fields = zip(block, samples.fields, samples.encodings, strict=True)
    return tuple(values.described(name, encoding) for values, name, encoding in fields)


def _words(field: FieldMeta) -> str:
    if field.channels:
        return f"{field.dtype}, {some(field.channels, 'channel')}"
    differ = ", of different length" if field.encoding == RAGGED else ""
    return f"{field.dtype}, shape {field.shape}{differ}"


def _one_size(options: Options) -> str:
    """How to bring all images to one size."""
    side = options.size
    if not isinstance(side, int):
        return "pass a size (--size HxW)"
    both = f"{side}x{side}"
    return f"size {side} is the length of the shorter side: pass size {both!r} (--size {both})"


def check_skippable(error: Exception, options: Options, samples: Samples, number: int) -> None:
    """Return if a sample's error may be skipped; else raise it."""
    if not isinstance(error, SampleError):
        if not isinstance(error, AsyncReaderError):
            error.add_note(f"while converting {samples.where(number)!r}")
        raise error
    if not options.skip_bad:
        hint = error.hint or SKIP_HINT
        error.hint = hint.replace(READER_HINT, "pass skip_bad (--skip-bad) to leave it out")
        raise error


def reason(error: SampleError) -> str:
    """What is wrong with a sample, without its path."""
    return str(SampleError(error.what, found=error.found, expected=error.expected))


def progress_callback(options: Options, samples: Samples, before: int = 0) -> Callable[[int], None]:
    """A function that reports progress when so many samples are packed. It counts all that were
    found: those that were bad from the start, ``before`` others, and then these."""
    bad = len(samples.skipped)

    def done(count: int) -> None:
        if options.progress is not None:
            options.progress(bad + before + count, bad + samples.count)

    return done


def all_skipped(samples: Samples, bad: Iterable[tuple[int, str]]) -> list[tuple[Any, str, str]]:
    """All skipped samples: where each sorts, its name, the reason; ``bad``: (number, reason)."""
    skipped = [(key, name, reason(why)) for key, name, why in samples.skipped]
    return skipped + [(*samples.name(number), why) for number, why in bad]


def all_bad(options: Options, skipped: list[tuple[Any, str, str]]) -> SourceError:
    """The error where nothing is left to pack; ``skipped``: (where it sorts, name, reason)."""
    _, name, why = min(skipped)
    return SourceError(
        "every image was bad, so there is nothing to write",
        path=options.src,
        found=f"{len(skipped)} bad ones; the first is {name!r}: {why}",
    )
