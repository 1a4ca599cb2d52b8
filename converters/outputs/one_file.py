"""Packs samples into one file: threads read and encode, one writes in order; then it is verified.

What is written cannot depend on the number of threads. Memory is bounded for any number of samples:
a window of images, one transaction or write buffer (sinks.py), and tables on disk
(temp_tables.py).
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from queue import SimpleQueue
from typing import Any, Final

from asyncreader.errors import AsyncReaderError, FormatError, SampleError, SourceError
from asyncreader.formats.packed import DATA, RAGGED, Described, FieldMeta, Meta
from asyncreader.pixels.rows import SKIP_HINT as READER_HINT
from asyncreader.system.signals import after_this, wait_for
from asyncreader.system.text import some

from ..encode import Block, FieldBlock, block_bytes
from ..inputs.folder import SKIP_HINT
from ..inputs.samples import Samples
from ..options import Options
from ..report import ConvertReport
from .disk import check_space, reported, sync
from .publish import Target
from .sinks import FieldTables, Hdf5Sink, LmdbSink, tables_of

#: Bytes of images and results in flight, for each thread: a 24-megapixel photo, decoded.
BYTES_PER_JOB: Final = 192 << 20


class Stopped(Exception):
    """Raised inside work when the pool is closed; caught in the pool's thread."""


class Pool:
    """Fetches ``samples`` in threads: iterates (number, block or exception) in order.

    A fetch calls ``hold(size)`` before it takes so many bytes of memory, which waits until they are
    free. ``cost``: bytes a block holds until it is consumed. ``most_begun`` and ``most_bytes`` are
    the largest figures seen. Samples that come next are prefetched, as many as these accept.
    """

    def __init__(
        self,
        samples: Samples,
        jobs: int,
        cost: Callable[[Block], int] = block_bytes,
        window: int | None = None,
        limit: int | None = None,
    ) -> None:
        self._samples = samples
        self._count = samples.count
        self._cost = cost
        self.window = window or 4 * jobs * samples.run
        self.limit = limit or BYTES_PER_JOB * jobs
        #: Numbers for the threads; None ends one.
        self._begun: SimpleQueue[range | None] = SimpleQueue()
        self._lock = threading.RLock()  # which wait() takes back in C, where no Ctrl-C comes
        self._changed = threading.Condition(self._lock)  # what is done, or held
        self._head = 0
        self._bytes = 0
        self._done: dict[int, tuple[Block | Exception, int]] = {}
        self._prefetched = 0  # samples below this are prefetched, or being fetched
        self._prefetching = threading.Lock()
        self._stopped = False
        self.most_begun = 0
        self.most_bytes = 0
        self._threads = [
            threading.Thread(target=self._run, name=f"asyncreader-convert-{n}", daemon=True)
            for n in range(min(jobs, self._count))
        ]

    def __enter__(self) -> Pool:
        try:
            with after_this():
                for thread in self._threads:
                    thread.start()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    def _stop(self) -> None:
        with self._lock:
            self._stopped = True
            self._changed.notify_all()
        for _ in self._threads:
            self._begun.put(None)
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()

    def __iter__(self) -> Iterator[tuple[int, Block | Exception]]:
        begun = 0
        for number in range(self._count):
            while begun < min(self._count, number + self.window):
                stop = min(begun + self._samples.run, self._count, number + self.window)
                self._begun.put(range(begun, stop))
                begun = stop
            self.most_begun = max(self.most_begun, begun - number)
            with self._lock:
                wait_for(self._changed, self._lock, partial(self._done.__contains__, number))
                result, size = self._done.pop(number)
            yield number, result
            # Only now has the consumer written it: until here its bytes counted.
            with self._lock:
                self._bytes -= size
                self._head = number + 1
                self._changed.notify_all()

    # -- in the threads ----------------------------------------------------------------------

    def _run(self) -> None:
        for numbers in iter(self._begun.get, None):
            for number in numbers:
                if self._stopped:
                    return
                self._one(number)

    def _one(self, number: int) -> None:
        held = size = 0

        def hold(more: int) -> None:
            nonlocal held
            with self._lock:
                while (
                    not self._stopped and number != self._head and self._bytes + more > self.limit
                ):
                    self._changed.wait()
                if self._stopped:
                    raise Stopped
                held += more
                self._bytes += more
                self.most_bytes = max(self.most_bytes, self._bytes)

        result: Block | Exception
        try:
            if self._samples.ahead:
                self._prefetch(number)
            result = self._samples.fetch(number, hold)
            size = self._cost(result)
        except Stopped:
            return
        except Exception as exc:
            result = exc
        except BaseException as exc:  # a decoder's panic: the consumer must not wait for ever
            result = RuntimeError(f"the work on an image ended in {exc!r}")
        with self._lock:
            self._bytes += size - held
            self.most_bytes = max(self.most_bytes, self._bytes)
            self._done[number] = result, size
            self._changed.notify_all()

    def _prefetch(self, number: int) -> None:
        """Prefetch the samples after ``number``."""
        with self._prefetching:
            self._prefetched = max(self._prefetched, number + 1)
            stop = min(number + 1 + self._samples.ahead, self._count)
            while self._prefetched < stop and self._samples.will_need(self._prefetched):
                self._prefetched += 1


# -- a file ----------------------------------------------------------------------------------------


class SetFile:
    """One file while it is written: samples, each stored or left out, go to its container and its
    tables in their order. ``count``: samples so far.

    ``samples``: what is known of them but their bytes; ``work``: its path, ``shown``: its name in
    messages; ``described``: what the samples of each field must be, empty: as the first ones.

    When it is finished, synced and verified it tells ``meta``, None where every sample was bad and
    there is no file; ``label_width``: labels of a sample; ``skipped``: (number of the sample, what
    is wrong with it); ``rewritten``: images that got restart markers, None where that was not
    tried; ``narrowed``: images of 16 bits that became 8.
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
        self._tables = tuple(map(FieldTables, samples.fields, samples.encodings))
        self.count = 0
        self.meta: Meta | None = None
        self.label_width = 1
        self.skipped: list[tuple[int, str]] = []
        self.rewritten: int | None = None
        self.narrowed = 0
        sink: type[LmdbSink | Hdf5Sink] = LmdbSink if options.format == "lmdb" else Hdf5Sink
        self._sink = sink(work, shown, options, samples)

    @property
    def bytes(self) -> tuple[int, ...]:
        """Bytes of the samples of each field so far, before any filter."""
        return tuple(field.bytes for field in self._tables)

    def append(self, sample: Block) -> None:
        """Add the next sample, or several. FormatError if a field is of another kind than those
        before."""
        if not self._described:
            self._described = described(sample, self._samples)
        if not self.count:
            self._check_space(sample)
        for field, values, table in zip(self._described, sample, self._tables, strict=True):
            if not values.fits(field):
                raise self._unfit(field, values)
            table.add(values)
        self._sink.append(sample)
        self.count += sample[0].count
        self.narrowed += sample[0].narrowed
        if sample[0].rewritten is not None:
            self.rewritten = (self.rewritten or 0) + sample[0].rewritten

    def _check_space(self, sample: Block) -> None:
        """SourceError if there is no space for all samples, where they are as large as this one."""
        options, needed = self._options, block_bytes(sample)
        if self._samples.encoding == "raw" and options.compression is None:
            if options.format == "hdf5":  # fields beside the first are written twice
                needed += needed - len(sample[0].data)
            folder = os.path.dirname(self._work)
            check_space(self._shown, folder, self._samples.count * needed)

    def skip(self, why: str) -> None:
        """Leave the next sample out."""
        self.skipped.append((self._next, why))

    @property
    def _next(self) -> int:
        return self.count + len(self.skipped)

    def finish(self) -> None:
        """Write the tables; make all durable, and verify it. On an error the caller removes what
        was written."""
        if self.count:
            skipped = [number for number, _ in self.skipped]
            tables = tables_of(self._samples, self._tables, self.count, skipped)
            self._sink.finish(tables)
            sync_set(self._work, self._options.format, self._shown)
            self._verify()
            self.meta = tables.meta
            self.label_width = 1 if tables.labels is None else tables.labels.shape[1]

    def close(self) -> None:
        """Close the files, finished or not."""
        self._sink.abandon()

    def _unfit(self, expected: FieldMeta, values: FieldBlock) -> FormatError:
        """The error for values that are of another kind than ``expected``."""
        where = self._samples.where(self._next)
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
        if problem is None and report.count != self.count:
            problem = f"{report.count} samples instead of {self.count}"
        if problem is not None:
            raise SourceError(
                "the finished dataset does not read back as it was written",
                path=self._shown,
                found=problem,
                hint="check the disk and the memory of this machine",
            )


def pack_file(
    options: Options,
    samples: Samples,
    work: str,
    shown: str,
    *,
    described: tuple[FieldMeta, ...] = (),
    done: Callable[[int], None] | None = None,
) -> SetFile:
    """Pack ``samples`` into the one file ``work``. On an error the caller removes what was written.

    ``shown``, ``described``: see :class:`SetFile`; ``done(n)`` is called after each sample, by the
    calling thread.
    """
    with (
        contextlib.closing(SetFile(options, samples, work, shown, described)) as file,
        Pool(samples, options.jobs) as pool,
    ):
        try:
            for number, result in pool:
                if isinstance(result, Exception):
                    file.skip(reason(skippable(result, options, samples, number)))
                else:
                    file.append(result)
                if done is not None:
                    done(number + 1)
        except BaseException:
            samples.give_up()  # the pool waits for its threads
            raise
        file.finish()
        return file


def publish_file(
    options: Options, samples: Samples, packed: SetFile, target: Target, begun: float
) -> ConvertReport:
    """Give the file that ``samples`` were packed into its name; the report."""
    meta, skipped = packed.meta, all_skipped(samples, packed.skipped)
    if meta is None:
        raise all_bad(options, skipped)
    size = os.stat(data_file(target.work, options.format)).st_size
    target.publish()
    marked, narrowed = packed.rewritten, packed.narrowed
    facts = {"bytes": size, "rewritten": marked, "narrowed": narrowed, "notes": samples.notes}
    return report_of(options, samples, begun, meta, count=meta.count, skipped=skipped, **facts)


def report_of(
    options: Options, samples: Samples, begun: float, described: Described, **facts: Any
) -> ConvertReport:
    """The report on ``samples`` that were packed as ``described``, with the other ``facts``."""
    return ConvertReport(
        target=options.dst,
        format=options.format,
        encoding=described.encoding,
        ignored=samples.ignored,
        classes=described.classes,
        seconds=time.perf_counter() - begun,
        **facts,
    )


def data_file(path: str, kind: str) -> str:
    """The file that holds the samples of a set that is written to ``path``."""
    return path if kind == "hdf5" else os.path.join(path, "data.mdb")


def sync_set(path: str, kind: str, shown: str) -> None:
    """Make what was written durable; ``shown``: the target's name for messages."""
    with reported(shown, os.path.dirname(path), "what was written does not reach the disk"):
        sync(data_file(path, kind))
        if kind == "lmdb":
            sync(path)


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


def skippable(error: Exception, options: Options, samples: Samples, number: int) -> SampleError:
    """A sample's error, if it may be skipped; else it is raised."""
    if not isinstance(error, SampleError):
        if not isinstance(error, AsyncReaderError):
            error.add_note(f"while converting {samples.where(number)!r}")
        raise error
    if not options.skip_bad:
        hint = error.hint or SKIP_HINT
        error.hint = hint.replace(READER_HINT, "pass skip_bad (--skip-bad) to leave it out")
        raise error
    return error


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


def all_skipped(samples: Samples, bad: Iterable[tuple[int, str]]) -> tuple[tuple[str, str], ...]:
    """Name and reason of all skipped samples, in path order; ``bad``: (number, reason)."""
    skipped = [(key, name, reason(why)) for key, name, why in samples.skipped]
    skipped += [(*samples.name(number), why) for number, why in bad]
    return tuple((name, why) for _, name, why in sorted(skipped))


def all_bad(options: Options, skipped: Sequence[tuple[str, str]]) -> SourceError:
    """The error where nothing is left to pack; ``skipped``: (name, reason) in path order."""
    name, why = skipped[0]
    return SourceError(
        "every image was bad, so there is nothing to write",
        path=options.src,
        found=f"{len(skipped)} bad ones; the first is {name!r}: {why}",
    )
