"""``convert``: checks the options, packs (one_file.py, shards.py) and renames to the target."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Unpack

from asyncreader.errors import AsyncReaderError, SourceError
from asyncreader.params.declare import documented

from .check_options import check
from .inputs.folder import class_names
from .inputs.items import DatasetItems, Items, count_of, give, is_paths
from .inputs.opening import open_samples
from .option_values import SRC
from .options import OPTIONS, ConvertKeywords, PathLike
from .outputs.append import Grown
from .outputs.disk import is_full, no_temporary_space
from .outputs.one_file import pack_file, progress_callback, publish_file
from .outputs.one_shard import load_ray
from .outputs.publish import Target
from .outputs.shards import ShardPacking
from .report import ConvertReport, Progress, progress_line
from .writer import Writer


@documented(OPTIONS)
def convert(
    src: PathLike | Sequence[PathLike] | Items,
    dst: PathLike,
    **keywords: Unpack[ConvertKeywords],
) -> ConvertReport:
    """Pack ``src``, images in a folder or a packed set, into ``dst``, HDF5 file or LMDB folder.
    A list of sources becomes one set.

    ``src``, ``labels`` and ``classes`` may be URLs of object stores (s3://, gs://; https:// only
    what need not be listed); images on a web server are named by ``labels``.

    ``src`` may also be samples: an array (n, ...), a tuple of arrays (data, labels), a dict of
    arrays, or an iterable or map-style dataset of arrays, of tuples (data, label) or of dicts with
    "data" (or "image"), "label", "path" and other fields. They are given to a :class:`Writer`. So
    are those of an :class:`asyncreader.Dataset`: as it serves them, with labels, classes, paths and
    splits, its first field as ``data`` and the others by their names. Of several labels those
    after the first become fields, which one HDF5 file serves as labels.

    The target appears under its name when it is complete, verified and on the disk; on any error
    it is as it was (finished shards are kept next to it, for ``resume``). Raises
    ParamsError for bad arguments, SampleError (such as DecodeError, with ``source_path``) for a bad
    image, SourceError for source or target. The options:
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
    with contextlib.ExitStack() as opened:
        if isinstance(src, Dataset):
            src = opened.enter_context(DatasetItems(src, options.get("classes")))
            options = {**src.places, **options, "classes": src.classes}
        return _give_all(src, dst, options, progress)


def _give_all(
    src: Items, dst: PathLike, options: dict[str, Any], progress: Progress | None
) -> ConvertReport:
    count = count_of(src)
    notes = src.notes if isinstance(src, DatasetItems) else ()
    with Writer(dst, **options) as writer:
        if isinstance(src, DatasetItems):
            writer._keep_facts(src)
        for done in give(src, writer):
            if progress is not None:
                progress(done, done if count is None else count)
    assert writer.report is not None
    return replace(writer.report, notes=(*writer.report.notes, *notes))
