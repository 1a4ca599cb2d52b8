"""Packs one shard of a set, whole or not at all, here or on a Ray cluster, and returns its record.

On a cluster each shard is a task, run again if its machine dies. All machines must see source and
target under the same paths; a source may also be a URL, which each task opens. A task is a function
of the plan and of its part of the listing, so each attempt, on any machine, writes the same bytes:
under a name of its own, renamed when they are verified. The driver keeps the lock, the plan and the
shards' records, and writes the manifest.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import platform
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass, fields, replace
from typing import Any, Final, cast

import numpy as np

from asyncreader.errors import AsyncReaderError, ParamsError, SourceError
from asyncreader.formats import packed as fmt
from asyncreader.formats.manifest import Common, Manifest, Shard, file_digest
from asyncreader.formats.packed import Encoding
from asyncreader.system.array_types import Int64

from ..inputs.opening import open_samples
from ..inputs.samples import Samples, Splits
from ..options import Options
from .disk import reported
from .one_file import WrittenFile, data_file, pack_file
from .workspace import ShardPlan, ShardRecord, Workspace


def pack_shard(
    options: Options,
    plan: ShardPlan,
    number: int,
    samples: Samples,
    workspace: Workspace,
    done: Callable[[int], None] | None = None,
) -> ShardRecord:
    """Pack shard ``number`` of ``plan``, whose samples are ``samples``, and give it its name."""
    name = plan.name(number, options.format)
    attempt = workspace.attempt(number)
    shown = os.path.join(options.dst, name)
    sources = sources_digest(samples)
    try:
        packed = pack_file(options, samples, attempt, shown, described=plan.fields, done=done)
        shard = None
        if packed.meta is not None:
            size, digest = file_digest(data_file(attempt, options.format))
            shard = _manifest(options, packed, packed.meta, name, size, digest)
        record = ShardRecord(sources, shard, packed.skipped, packed.rewritten, packed.narrowed)
        with reported(shown, workspace.root):
            workspace.finish(number, attempt, record)
    finally:
        workspace.discard(attempt)
    return record


def _manifest(
    options: Options, packed: WrittenFile, meta: fmt.Meta, name: str, size: int, digest: str
) -> Manifest:
    """The manifest of a set of this shard alone; ``size`` and ``digest`` are those of its file."""
    first, *others = packed.bytes
    common = Common(
        **{fact.name: getattr(meta, fact.name) for fact in fields(fmt.Described)},
        container=options.format,
        label_width=packed.label_width,
        chunk=options.chunk if options.compression else None,
        compression=options.compression,
        data_bytes=first,
        field_bytes=tuple(others),
    )
    checksums, *field_checksums = (
        meta.digests[fmt.table_of(field, fmt.CHECKSUMS)]
        for field in (None, *(field.name for field in meta.fields))
    )
    labels = meta.digests.get(fmt.LABELS)
    shard = Shard(name, meta.count, size, digest, checksums, labels, tuple(field_checksums))
    digests = {table: meta.digests[table] for table in common.tables()}
    return Manifest.of(common, [shard], digests)


def sources_digest(samples: Samples) -> str:
    """Digest of the source files of all of ``samples``."""
    return samples.sources(np.arange(samples.count, dtype=np.int64))


# -- on a Ray cluster ------------------------------------------------------------------------------


#: Times that a shard is tried again when its worker or machine dies. A bad image may kill every
#: worker.
RETRIES: Final = 8

#: Unfinished tasks handed to Ray at a time: per core of the cluster, and at least.
AHEAD_PER_CORE: Final = 4
LEAST_AHEAD: Final = 32


@dataclass(frozen=True)
class Task:
    """All that decides a shard's bytes, as it is sent to a worker."""

    options: Options
    plan: ShardPlan
    number: int
    #: The images of a folder, or the numbers of samples that the options name.
    part: Samples | Int64
    root: str
    #: Of the set: its encoding, the names of all classes, and the splits of these samples.
    encoding: Encoding
    classes: tuple[str, ...]
    splits: Splits | None

    def run(self) -> str:
        """Pack the shard; its record as JSON."""
        workspace = Workspace(self.root, self.options.format)
        if not os.path.isdir(workspace.set):
            raise SourceError(
                "a worker does not see the target's folder",
                path=workspace.set,
                found=f"nothing there on {platform.node()}",
                hint="source and target must be on a file system that all machines share",
            )
        samples = self.part
        if not isinstance(samples, Samples):
            usual = self.encoding if self.options.append else None
            whole = open_samples(self.options, self.options.dst, self.classes, usual)
            samples = whole.of(samples)
            samples.splits = self.splits
        with contextlib.closing(samples):
            return pack_shard(self.options, self.plan, self.number, samples, workspace).to_json()


def load_ray() -> Any:
    """The module; ParamsError with the command that installs it where it is missing."""
    try:
        import ray
    except ImportError as exc:
        raise ParamsError(
            "engine 'ray' needs Ray, which is not installed",
            hint="pip install -e '.[ray]' in asyncreader's checkout, on every machine",
        ) from exc
    return ray


@contextlib.contextmanager
def _connected(address: str | None) -> Iterator[Any]:
    """Ray, connected to a cluster. ``address``: as of ``ray.init``; None: the cluster that
    RAY_ADDRESS names, or one of this machine alone. An existing connection of the caller is used,
    and left open."""
    ray = load_ray()
    started = not ray.is_initialized()
    if started:
        try:
            ray.init(address=address, log_to_driver=False, logging_level="error")
        except (ConnectionError, RuntimeError, ValueError, TimeoutError) as exc:
            raise SourceError(
                "no Ray cluster could be reached",
                found=str(exc)[:300],
                hint="start one (ray start --head), or leave the address out",
            ) from exc
    try:
        yield ray
    finally:
        if started:
            ray.shutdown()


def packed_on_ray(address: str | None, tasks: Iterator[Task]) -> Generator[tuple[int, ShardRecord]]:
    """Run all tasks: the number and the record of each shard, in the order they finish.

    Raises what a task raised; those still running are cancelled then.
    """
    with _connected(address) as ray:
        remote = ray.remote(max_retries=RETRIES, scheduling_strategy="SPREAD")(_run)
        cores = int(ray.cluster_resources().get("CPU", 1))
        ahead = max(LEAST_AHEAD, AHEAD_PER_CORE * cores)
        running: dict[Any, int] = {}
        try:
            while True:
                for task in itertools.islice(tasks, ahead - len(running)):
                    reference = remote.options(num_cpus=task.options.jobs).remote(task)
                    running[reference] = task.number
                if not running:
                    return
                (reference,), _ = ray.wait(list(running), num_returns=1)
                number = running.pop(reference)
                yield number, _record_of(ray, reference, number)
        finally:
            for reference in running:
                ray.cancel(reference, force=True)


def _record_of(ray: Any, reference: Any, number: int) -> ShardRecord:
    """The record of a shard whose task is done; raises what went wrong in it."""
    try:
        return ShardRecord.from_json(ray.get(reference))
    except ray.exceptions.RayTaskError as exc:
        cause = exc.cause
        if isinstance(cause, AsyncReaderError):
            raise cause from exc
        raise SourceError(
            f"writing shard {number} failed on a worker",
            found=f"{type(cause).__name__}: {cause}",
        ) from exc
    except ray.exceptions.RayError as exc:
        raise SourceError(
            f"shard {number} could not be written: its worker died {RETRIES + 1} times",
            found=f"{type(exc).__name__}: {str(exc)[:300]}",
            hint="it may lack memory for one image for each thread: lower jobs (--jobs)",
        ) from exc


def _run(task: Task) -> str:
    return task.run()


def tasks_of(
    options: Options, plan: ShardPlan, samples: Samples, root: str, shards: Iterable[int]
) -> Iterator[Task]:
    """A task for each of these shards."""
    read = options.params
    if read is not None and read.labels_path is not None:  # a worker has a folder of its own
        read = replace(read, labels_path=os.path.abspath(read.labels_path))
    away = replace(options, params=read, progress=None)
    encoding, classes = cast(Encoding, samples.encoding), samples.classes or ()
    for number in shards:
        numbers = plan.numbers(number)
        part = samples.part(numbers) or numbers
        splits = None if samples.splits is None else samples.splits.of(numbers)
        yield Task(away, plan, number, part, root, encoding, classes, splits)
