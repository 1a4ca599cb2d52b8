"""``convert``: checks the options, packs (one_file.py, shards.py) and renames to the target."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Mapping
from typing import Any

from asyncreader.errors import AsyncReaderError, SourceError

from .inputs.samples import Samples, open_samples
from .options import QUALITY, Options, PathLike, Progress, Size, check
from .outputs.disk import is_full, no_temporary_space
from .outputs.one_file import Order, Packing, all_bad, data_file, reason
from .outputs.publish import Target
from .outputs.shards import pack_shards
from .report import ConvertReport


def convert(
    src: PathLike,
    dst: PathLike,
    *,
    encoding: str | None = None,
    size: Size | None = None,
    resize: str = "crop",
    quality: int = QUALITY,
    labels: PathLike | None = None,
    no_labels: bool = False,
    channels: int | None = None,
    shuffle: int | None = None,
    compression: str | None = None,
    chunk: int | None = None,
    classes: PathLike | None = None,
    classes_from_folders: bool = False,
    follow_links: bool = False,
    jobs: int | None = None,
    skip_bad: bool = False,
    overwrite: bool = False,
    check_decode: bool = False,
    format: str | None = None,
    shards: int | None = None,
    shard_size: int | str | None = None,
    resume: bool = False,
    engine: str = "local",
    address: str | None = None,
    progress: Progress | None = None,
    params: Mapping[str, Any] | None = None,
    allow_pickle: bool = False,
    fields: Mapping[str, PathLike] | None = None,
) -> ConvertReport:
    """Pack ``src``, pictures in a folder or a packed set, into ``dst``, HDF5 file or LMDB folder.

    ``src``, ``labels`` and ``classes`` may be URLs of object stores (s3://, gs://; https:// only
    what need not be listed); pictures on a web server are named by ``labels``.

    ``encoding``: "raw" (pixels, all of one shape), "jpeg", "png" or "original" (the files' own
    bytes); None is "raw" for a folder, and for a packed set what it has. ``size``: (H, W) or "HxW",
    reached by ``resize`` "crop" (centred, as PIL's ImageOps.fit), "pad" (black) or "squeeze"; or
    one number, the length of the shorter side. ``quality``: of "jpeg". ``labels``: a CSV of
    path,label[,label...] that names the set. Each of its columns has its own type: numbers keep
    their values, text becomes the number of its name among the sorted names of all text columns.
    Labels are (N, L) int64, or float64 where a column has fractions. ``no_labels``: none; neither:
    the class is the first folder level, numbered as sorted or by ``classes`` (a packed set, or a
    text file with a name on each line). Folders called train, val, test or the like are an error,
    unless ``classes_from_folders`` says that they are classes; it also silences the note in
    ``report.notes`` about folders inside classes. ``channels``: 3 or 1; None is 3 for a folder.
    ``shuffle``: a seed to pack in random order. ``compression``: "gzip" for raw HDF5, ``chunk``
    samples (1) to a chunk. ``follow_links``: also links out of the folder. ``jobs``: threads; the
    file does not depend on it. ``skip_bad``: leave bad pictures out and report them. ``overwrite``:
    replace an existing set. ``check_decode``: also decode pictures that are copied. ``format``:
    "hdf5" or "lmdb", for a ``dst`` without such a suffix. ``shards``: this number of files in the
    folder ``dst``, and a manifest; or ``shard_size``: files of about so many bytes (a number, or
    "500MB", "1GiB"). ``resume``: continue an interrupted run of the same sources and options. Its
    finished shards are kept if they are whole and their pictures have not changed. ``engine``:
    "local", or "ray": the Ray cluster at ``address`` (None: as ``ray.init`` finds one) packs the
    same shards; its machines must see ``src`` and ``dst`` under the same paths. ``progress(done,
    total)`` is called after each sample, by the calling thread. ``params``: how a packed ``src`` is
    read, as the reader's parameters data_field, labels_field, labels_path, subset, channel_order
    and axes. ``allow_pickle``: unpickle the samples of an LMDB that keeps them so; only for a set
    whose writer you trust. ``fields``: folders of other fields by name, such as {"mask": "masks"}:
    a picture's mask has the same path there, with any suffix, and the same size; palette indices
    and grey values (8 or 16 bits) are kept without loss, cut and resized by nearest neighbour as
    the pictures are (padded with 0), and stored raw with raw pixels, else as PNG.

    The target appears under its name when it is complete, verified and on the disk; on any error
    nothing is left under it (finished shards are kept next to it, for ``resume``). Raises
    ParamsError for bad arguments, SampleError (such as DecodeError, with ``source_path``) for a bad
    picture, SourceError for source or target.
    """
    options = check(
        src=src,
        dst=dst,
        format=format,
        shards=shards,
        shard_size=shard_size,
        resume=resume,
        engine=engine,
        address=address,
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
        classes_from_folders=classes_from_folders,
        follow_links=follow_links,
        jobs=jobs,
        skip_bad=skip_bad,
        overwrite=overwrite,
        check_decode=check_decode,
        allow_pickle=allow_pickle,
        fields=fields,
        progress=progress,
        params=params,
    )
    if options.engine == "ray":
        from .outputs.ray import load_ray

        load_ray()  # before any file is read
    try:
        with (
            Target(options.dst, options.kind, options.overwrite, options.resume) as target,
            contextlib.closing(open_samples(options, target.path)) as samples,
        ):
            if options.sharded:
                return pack_shards(options, samples, target)
            return _pack_one(options, samples, target)
    except OSError as exc:
        if isinstance(exc, AsyncReaderError):
            raise
        if is_full(exc):  # sinks and publish() raise their own: these are temporary files
            raise no_temporary_space() from exc
        raise SourceError(
            "the set cannot be packed",
            path=exc.filename,
            found=exc.strerror or str(exc),
            hint="; ".join(getattr(exc, "__notes__", ())) or None,
        ) from exc


def _pack_one(options: Options, samples: Samples, target: Target) -> ConvertReport:
    begun = time.perf_counter()
    before, total = len(samples.skipped), len(samples.skipped) + samples.count

    def done(count: int) -> None:
        if options.progress is not None:
            options.progress(before + count, total)

    packed = Packing(
        options,
        samples,
        target.work,
        target.shown,
        order=Order(samples.count, options.shuffle),
        done=done,
    ).run()
    skipped = [(key, name, reason(why)) for key, name, why in samples.skipped]
    skipped += [(*samples.name(number), why) for number, why in packed.skipped]
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
        notes=samples.notes,
    )
