"""Packs: many threads read and encode, one writes in order, and the result is checked and named.

Everything a run keeps is bounded whatever the number of samples: a window of pictures (pool.py),
one transaction or write buffer (sinks.py), and tables on disk (spool.py).
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

import numpy as np

from asyncreader.errors import AsyncReaderError, FormatError, SampleError, SourceError
from asyncreader.format import Meta
from asyncreader.order import permutation

from .options import Options, PathLike, Progress, Size, check
from .picture import Packed
from .pool import Lease, Pool
from .publish import Target
from .report import ConvertReport
from .samples import Samples, open_samples
from .scan import SKIP_HINT
from .sinks import Hdf5Sink, LmdbSink, Sink
from .tables import Ledger

#: Keeps the order of packing independent of every order of training with the same seed.
_STREAM: Final = 0x7061636B

#: Places of a shuffled order worked out together.
_PLACES: Final = 4096


def convert(
    src: PathLike,
    dst: PathLike,
    *,
    encoding: str | None = None,
    size: Size | None = None,
    resize: str = "crop",
    quality: int = 90,
    labels: PathLike | None = None,
    no_labels: bool = False,
    channels: int | None = None,
    shuffle: int | None = None,
    compression: str | None = None,
    chunk: int | None = None,
    classes: PathLike | None = None,
    follow_links: bool = False,
    jobs: int | None = None,
    skip_bad: bool = False,
    overwrite: bool = False,
    check_decode: bool = False,
    format: str | None = None,
    progress: Progress | None = None,
    params: Mapping[str, Any] | None = None,
    allow_pickle: bool = False,
) -> ConvertReport:
    """Pack ``src``, pictures in a folder or a packed set, into ``dst``, HDF5 file or LMDB folder.

    ``encoding``: "raw" (pixels, all of one shape), "jpeg", "png" or "original" (the files' own
    bytes); None is "raw" for a folder, and for a packed set what it has. ``size``: (H, W) or
    "HxW", reached by ``resize`` "crop" (centred, as PIL's ImageOps.fit), "pad" (black) or
    "squeeze"; or one number, the length of the shorter side. ``quality``: of "jpeg".
    ``labels``: a CSV of path,label[,label...] that names the set; ``no_labels``: none; neither: the
    class is the first folder level, numbered as sorted or by ``classes`` (a packed set, or a text
    file with a name on each line). ``channels``: 3 or 1; None is 3 for a folder.
    ``shuffle``: a seed to pack in random order. ``compression``: "gzip" for raw HDF5, ``chunk``
    samples (1) to a chunk. ``follow_links``: also links out of the folder. ``jobs``: threads; the
    file does not depend on it. ``skip_bad``: leave bad pictures out and report them.
    ``overwrite``: replace an existing set. ``check_decode``: decode what is only copied, too.
    ``format``: "hdf5" or "lmdb" where the suffix does not say. ``progress(done, total)`` is called
    after each sample, by the calling thread. ``params``: how a packed ``src`` is read, as the
    reader's parameters data_field, labels_field, labels_path, subset, channel_order and axes.
    ``allow_pickle``: unpickle the samples of an LMDB that keeps them so; only for a set whose
    writer you trust.

    The target appears under its name when it is complete, verified and on the disk; on any error
    nothing is left. Raises ParamsError for what was asked, SampleError (such as DecodeError, with
    ``source_path``) for a bad picture, SourceError for source or target.
    """
    options = check(
        src=src,
        dst=dst,
        format=format,
        encoding=encoding,
        size=size,
        resize=resize,
        quality=quality,
        labels=labels,
        no_labels=no_labels,
        channels=channels,
        shuffle=shuffle,
        compression=compression,
        chunk=chunk,
        classes=classes,
        follow_links=follow_links,
        jobs=jobs,
        skip_bad=skip_bad,
        overwrite=overwrite,
        check_decode=check_decode,
        allow_pickle=allow_pickle,
        progress=progress,
        params=params,
    )
    try:
        with (
            Target(options.dst, options.format, options.overwrite) as target,
            contextlib.closing(open_samples(options, target.path)) as samples,
        ):
            return _Packing(options, samples, target).run()
    except OSError as exc:
        if isinstance(exc, AsyncReaderError):
            raise
        # such as a temporary folder without room for the spools
        raise SourceError(
            "the set cannot be packed", path=exc.filename, found=exc.strerror or str(exc)
        ) from exc


class _Packing:
    """One run of :func:`convert`."""

    def __init__(self, options: Options, samples: Samples, target: Target) -> None:
        self._begun = time.perf_counter()
        self._options = options
        self._samples = samples
        self._target = target
        self._ledger = Ledger()
        self._skipped = [(key, name, _reason(why)) for key, name, why in samples.skipped]
        self._order = _Order(samples.count, options.shuffle)
        self._shape: tuple[int, int, int] | None = None
        self._same_shape = True

    def run(self) -> ConvertReport:
        sink = self._sink()
        try:
            self._pack(sink)
            meta = self._write_tables(sink)
            self._target.sync()
            self._verify()
            size = os.stat(self._data_file(self._target.work)).st_size
            self._target.publish()
        finally:
            sink.abandon()
            self._ledger.close()
        return ConvertReport(
            target=self._options.dst,
            format=self._options.format,
            encoding=meta.encoding,
            count=meta.count,
            skipped=tuple((name, why) for _, name, why in sorted(self._skipped)),
            ignored=self._samples.ignored,
            classes=meta.classes,
            bytes=size,
            seconds=time.perf_counter() - self._begun,
        )

    def _sink(self) -> Sink:
        options, target = self._options, self._target
        common: dict[str, Any] = {
            "encoding": self._samples.encoding,
            "expected": self._samples.count,
        }
        if options.format == "lmdb":
            return LmdbSink(target.work, target.shown, **common)
        return Hdf5Sink(
            target.work,
            target.shown,
            compression=options.compression,
            chunk=options.chunk,
            jobs=options.jobs,
            **common,
        )

    # -- samples -----------------------------------------------------------------------------

    def _pack(self, sink: Sink) -> None:
        count = self._samples.count
        before = len(self._skipped)
        with Pool(
            self._fetch,
            count,
            jobs=self._options.jobs,
            cost=lambda sample: len(sample.data),
            group=self._samples.run,
        ) as pool:
            for place, result in pool:
                number = self._order[place]
                if isinstance(result, Exception):
                    self._bad(number, result)
                else:
                    self._check_shape(number, result)
                    sink.append(result)
                    self._ledger.add(number, result.checksum, len(result.data))
                if self._options.progress is not None:
                    self._options.progress(before + place + 1, before + count)
        if not self._ledger.count:
            _, name, why = min(self._skipped)
            raise SourceError(
                "every picture was bad, so there is nothing to pack",
                path=self._options.src,
                found=f"{len(self._skipped)} bad ones; the first is {name!r}: {why}",
            )

    def _fetch(self, place: int, lease: Lease) -> Packed:
        return self._samples.fetch(self._order[place], lease.hold)

    def _bad(self, number: int, error: Exception) -> None:
        if not isinstance(error, SampleError):
            if not isinstance(error, AsyncReaderError):
                error.add_note(f"while packing {self._samples.where(number)!r}")
            raise error
        if not self._options.skip_bad:
            error.hint = error.hint or SKIP_HINT
            raise error
        key, name = self._samples.name(number)
        self._skipped.append((key, name, _reason(error)))

    def _check_shape(self, number: int, sample: Packed) -> None:
        if self._ledger.count == 0:
            self._shape = sample.shape
        elif sample.shape != self._shape:
            if self._samples.encoding == "raw":
                assert self._shape is not None
                assert sample.shape is not None
                raise FormatError(
                    "pictures of different sizes cannot be packed as raw pixels",
                    source_path=self._samples.where(number),
                    found="{} x {} pixels (height x width)".format(*sample.shape),
                    expected="{} x {}, as the first picture".format(*self._shape),
                    hint="pass a size (--size HxW), or choose encoding 'jpeg' or 'original'",
                )
            self._same_shape = False

    # -- the rest ----------------------------------------------------------------------------

    def _write_tables(self, sink: Sink) -> Meta:
        samples = self._samples
        meta = Meta(
            count=self._ledger.count,
            encoding=samples.encoding,
            shape=self._shape if self._same_shape else None,
            channels=samples.channels,
            label_kind=samples.label_kind,
            classes=samples.classes,
        )
        tables = self._ledger.tables(meta, samples.label_rows, samples.path)
        sink.finish(tables)
        return tables.meta

    def _verify(self) -> None:
        """Read the file back as any reader would, and hold it against what was packed.

        Its own digests were computed here, before writing; all else is bound to them.
        """
        from asyncreader.verify import verify_file

        report = verify_file(self._target.work)
        problem = report.problems[0] if report.problems else None
        if problem is None and report.count != self._ledger.count:
            problem = f"{report.count} samples instead of {self._ledger.count}"
        if problem is not None:
            raise SourceError(
                "the finished set does not read back as it was written",
                path=self._target.shown,
                found=problem,
                hint="check the disk and the memory of this machine",
            )

    def _data_file(self, path: str) -> str:
        return path if self._options.format == "hdf5" else os.path.join(path, "data.mdb")


class _Order:
    """From the place in the file to the number in the source. Any thread may ask."""

    def __init__(self, count: int, seed: int | None) -> None:
        self._count = count
        self._seed = seed
        self._block = lru_cache(maxsize=8)(self._places)

    def __getitem__(self, place: int) -> int:
        if self._seed is None:
            return place
        return int(self._block(place // _PLACES)[place % _PLACES])

    def _places(self, block: int) -> Any:
        assert self._seed is not None
        start = block * _PLACES
        places = np.arange(start, min(start + _PLACES, self._count), dtype=np.int64)
        return permutation(self._count, self._seed, _STREAM)(places)


def _reason(error: SampleError) -> str:
    """What is wrong with a sample, without saying again where."""
    return str(SampleError(error.what, found=error.found, expected=error.expected))
