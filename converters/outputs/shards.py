"""Packs a sharded set: one shard after the other, each whole or not at all, the manifest last.

A shard's bytes are a function of the plan alone: of the samples at its positions in the listing, of
the options and of the shape of raw pixels. So a run that is interrupted and resumed, with any
number of threads or on other machines, gives the same files. A bad image that is skipped leaves
its shard shorter and moves no other; a shard whose images are all bad is left out.

On a Ray cluster each shard is a task, run again if its machine dies. All machines must see source
and target under the same paths; a source may also be a URL, which each task opens. Each attempt at
a shard, on any machine, writes under a name of its own, renamed when it is verified. The driver
keeps the lock, the plan and the shards' records, and writes the manifest.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
import platform
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, fields, replace
from functools import partial, reduce
from typing import Any, Final, cast

import numpy as np
import xxhash

from asyncreader.errors import AsyncReaderError, ParamsError, SampleError, SourceError
from asyncreader.formats import packed as fmt
from asyncreader.formats.manifest import Common, Manifest, Shard, file_digest
from asyncreader.formats.packed import Encoding, FieldMeta
from asyncreader.params.reader import READ_BY
from asyncreader.sources import open_whole
from asyncreader.sources.sets.joined import JoinedSource
from asyncreader.sources.sets.shards import whole_digests
from asyncreader.version import __version__

from ..encode import block_bytes
from ..inputs.opening import open_samples
from ..inputs.samples import Samples, Splits
from ..options import Options
from ..report import ConvertReport
from ..temp_tables import blocks
from .disk import check_space, reported, temporary_files
from .one_file import (
    SetFile,
    all_bad,
    all_skipped,
    data_file,
    described,
    pack_file,
    progress_callback,
    reason,
    report_of,
    skippable,
)
from .publish import Target
from .sharded_set import Grown, ShardPlan, ShardRecord, Workspace, together

#: Samples that are encoded to estimate how many make a shard of the requested size.
MEASURED: Final = 64

# -- the plan ------------------------------------------------------------------------------------


def make_plan(
    options: Options, samples: Samples, grown: Grown | None = None, known: ShardPlan | None = None
) -> ShardPlan:
    """How ``samples`` are cut into shards: a function of the listing, the options and the set that
    they are added to. ``known``: the plan of an interrupted run, which is taken where that may have
    left the tables of the samples alone: they cannot be measured again."""
    source, before = _source_digest(options, samples), 0
    if known is not None:
        return replace(known, source=source)
    fields, mean = _measure(options, samples)
    count, size = samples.count, options.shard_size
    if size is None and grown is not None:  # as large as those that are there
        shards = options.shards or min(count, max(1, round(count * mean / grown.shard_size)))
    else:
        shards = options.shards or max(1, round(count * mean / (size or 1)))
    if shards > count and options.shards is not None:
        raise ParamsError(
            "more shards than there are samples",
            path=options.dst,
            found=f"{shards} shards",
            expected=f"at most {count}",
        )
    if shards > count:
        raise ParamsError(
            "shard_size is less than one sample takes",
            path=options.dst,
            found=f"{size:,} bytes; a sample takes {math.ceil(mean):,} on average",
            expected=f"at least {math.ceil(mean):,}: a sample to a shard",
            hint="raise shard_size (--shard-size), or say how many shards: shards (--shards)",
        )
    sample_bytes = round(mean) if samples.encoding == "raw" else 0
    if grown is not None:
        fields, before = grown.fields() or fields, len(grown.manifest)
    return ShardPlan(source, count, shards, fields, sample_bytes, before)


def _measure(options: Options, samples: Samples) -> tuple[tuple[FieldMeta, ...], float]:
    """What each field is (of the first good sample), and mean bytes of a stored sample."""
    raw = samples.encoding == "raw"
    encoded = samples.encoding not in fmt.PLAIN
    if encoded and len(samples.fields) == 1 and options.shards is not None:
        return (), 0.0
    all_alike = raw or options.shards is not None
    evenly = np.linspace(0, samples.count - 1, 1 if all_alike else min(MEASURED, samples.count))
    numbers = dict.fromkeys(evenly.astype(np.int64).tolist())
    others = (number for number in range(samples.count) if number not in numbers)
    sizes: list[int] = []
    bad: list[tuple[int, str]] = []
    fields: tuple[FieldMeta, ...] = ()
    for number in itertools.chain(numbers, others):
        if sizes and number not in numbers:
            break
        try:
            sample = samples.fetch(number, lambda _: None)
        except SampleError as exc:
            bad.append((number, reason(skippable(exc, options, samples, number))))
        else:
            sizes.append(block_bytes(sample))
            fields = fields or described(sample, samples)
    if not sizes:
        raise all_bad(options, all_skipped(samples, bad))
    return fields, sum(sizes) / len(sizes)


def _source_digest(options: Options, samples: Samples) -> str:
    """Digest of everything that decides the shards' bytes, except the images themselves."""
    state = xxhash.xxh3_128()
    shaping = {
        name: getattr(options, name)
        for name in (
            *("shards", "shard_size", "size", "resize", "quality", "shuffle", "format"),
            *("compression", "chunk"),
            *("follow_links", "skip_bad", "check_decode", "restarts", "bits", "kinds"),
        )
    }
    head = [__version__, samples.identity, samples.encoding, samples.channels, samples.label_kind]
    head += samples.fields
    if samples.splits is not None:
        head += [samples.splits.names, fmt.digest(samples.splits.rows)]
    if options.params is not None:  # of those, identity tells the subset
        flat = options.params.flat()
        read = {name: flat[name] for name in READ_BY if name != "subset"}
        shaping["params"] = read
    paths = [path for path in samples.paths if path is not None]
    state.update(json.dumps([head, shaping, samples.classes], sort_keys=True).encode("ascii"))
    for part in blocks(samples.count):
        if samples.labels is not None:
            rows = samples.labels[part]
            state.update(f"{rows.dtype.str}{rows.shape[1]}".encode("ascii"))
            state.update(np.ascontiguousarray(rows).reshape(-1).view(np.uint8).data)
        for path in paths:
            for number in range(part.start, part.stop):
                state.update(path(number) + b"\0")
    return state.hexdigest()


# -- a shard -------------------------------------------------------------------------------------


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
    sources = samples.sources(np.arange(samples.count, dtype=np.int64))
    try:
        packed = pack_file(options, samples, attempt, shown, described=plan.fields, done=done)
        shard = None
        if packed.meta is not None:
            size, digest = file_digest(data_file(attempt, options.format))
            shard = _manifest(options, packed, packed.meta, name, size, digest)
        skipped, counted = tuple(packed.skipped), (packed.rewritten, packed.narrowed)
        record = ShardRecord(sources, shard, skipped, *counted)
        with reported(shown, workspace.root):
            workspace.finish(number, attempt, record)
    finally:
        workspace.discard(attempt)
    return record


def _manifest(
    options: Options, packed: SetFile, meta: fmt.Meta, name: str, size: int, digest: str
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


# -- all of them ---------------------------------------------------------------------------------


@dataclass
class ShardPacking:
    """Packs ``samples`` into the folder ``target``; a resumed run keeps the finished shards.
    ``begun``: when, by ``time.perf_counter()``; ``grown``: the set that they are added to;
    ``copied``: called with numbers of samples that are in a finished shard."""

    options: Options
    samples: Samples
    target: Target
    begun: float
    grown: Grown | None = None
    copied: Callable[[range], None] | None = None

    def __post_init__(self) -> None:
        self.workspace = Workspace(self.target.workspace, self.options.format)

    def run(self) -> ConvertReport:
        target, workspace = self.target, self.workspace
        plan = self._plan()
        self._check_space(plan)
        with reported(target.shown, workspace.root):
            workspace.prepare()
            workspace.keep_plan(plan)
        records = self._kept(plan)
        kept = [record.shard.count for record in records.values() if record.shard is not None]
        if self.options.resume:
            progress = progress_callback(self.options, self.samples)
            progress(sum(len(plan.span(number)) for number in records))
        with temporary_files():
            self._pack(plan, records)
            manifest, skipped = self._finish(plan, [records[n] for n in range(plan.shards)])
            notes = self._publish(manifest)
        rewritten = [r.rewritten for r in records.values() if r.rewritten is not None]
        return report_of(
            *(self.options, self.samples, self.begun, manifest.common),
            count=manifest.count,
            skipped=skipped,
            bytes=int(manifest.sizes.sum()),
            shards=len(manifest),
            kept=len(kept),
            kept_samples=sum(kept),
            rewritten=sum(rewritten) if rewritten else None,
            narrowed=sum(record.narrowed for record in records.values()),
            notes=self.samples.notes + notes,
        )

    def _plan(self) -> ShardPlan:
        """The plan of this run; SourceError if an interrupted one had another."""
        before = self.workspace.plan()
        known = None if before is None or self.copied is None else ShardPlan.from_json(before)
        plan = make_plan(self.options, self.samples, self.grown, known)
        if before is not None and before != plan.to_json():
            raise SourceError(
                "the interrupted run had other sources or options",
                path=self.target.workspace,
                found=before[:200],
                expected=plan.to_json(),
                hint="call it with the same ones, or remove that folder to start over",
            )
        return plan

    def _check_space(self, plan: ShardPlan) -> None:
        if plan.sample_bytes and self.options.compression is None:
            done = os.path.join(self.target.workspace, "set")
            entries = os.scandir(done) if os.path.isdir(done) else ()
            finished = sum(entry.stat().st_size for entry in entries)
            needed = plan.count * plan.sample_bytes - finished
            if self.copied is not None:  # what is copied makes room for the next shard
                needed = min(needed, len(plan.span(plan.shards - 1)) * plan.sample_bytes)
            check_space(self.target.shown, os.path.dirname(self.target.workspace), needed)

    def _kept(self, plan: ShardPlan) -> dict[int, ShardRecord]:
        """Records of the finished shards that are whole and whose source files have not changed."""
        records = {}
        for number in range(plan.shards):
            record = self.workspace.record(number)
            if (
                record is not None
                and record.sources == self.samples.sources(plan.numbers(number))
                and self.workspace.whole(record)
            ):
                records[number] = record
        return records

    def _pack(self, plan: ShardPlan, records: dict[int, ShardRecord]) -> None:
        """Pack the shards that are not in ``records`` yet, and add them."""
        options, before = self.options, sum(len(plan.span(number)) for number in records)
        if options.engine == "ray":
            progress = progress_callback(options, self.samples)
            missing = (number for number in range(plan.shards) if number not in records)
            todo = (options, plan, self.samples, self.workspace.root, iter([*missing]))
            with contextlib.closing(packed_on_ray(*todo)) as packed:
                for number, record in packed:
                    records[number] = record
                    before += len(plan.span(number))
                    progress(before)
            return
        for number in range(plan.shards):
            if number not in records:
                samples = self.samples.of(plan.numbers(number))
                done = progress_callback(options, self.samples, before)
                records[number] = pack_shard(options, plan, number, samples, self.workspace, done)
                before += samples.count
            if self.copied is not None:
                self.copied(plan.span(number))

    def _finish(
        self, plan: ShardPlan, records: list[ShardRecord]
    ) -> tuple[Manifest, tuple[tuple[str, str], ...]]:
        """The manifest of these shards, and the skipped samples in path order."""
        skipped = all_skipped(
            self.samples,
            (
                (plan.span(number).start + position, why)
                for number, record in enumerate(records)
                for position, why in record.skipped
            ),
        )
        good = [record.shard for record in records if record.shard is not None]
        if not good:
            raise all_bad(self.options, skipped)
        common = reduce(together, [shard.common for shard in good])
        manifest = Manifest.of(common, [shard.shards[0] for shard in good])
        return manifest, skipped

    def _publish(self, manifest: Manifest) -> tuple[str, ...]:
        """Give the set its name, or add the shards to the set that is there; notes about that."""
        with reported(self.target.shown, self.workspace.root):
            if self.grown is not None:
                whole = self.grown.publish(self.target, self.workspace, manifest)
                return (f"the dataset has {whole.count:,} samples in {len(whole):,} shards now",)
            digests = whole_digests(self.workspace.set, manifest)
            self.workspace.seal(replace(manifest, digests=digests))
        self._read_back()
        self.target.publish()
        return ()

    def _read_back(self) -> None:
        """Open the set, and each of its shards, as a reader does: SourceError if that fails."""
        try:
            with contextlib.closing(open_whole(self.workspace.set)) as found:
                for part in found.parts:
                    assert isinstance(part, JoinedSource)
                    part.open_each()
        except AsyncReaderError as exc:
            raise SourceError(
                "the finished dataset cannot be opened, so it is not published",
                path=self.target.shown,
                found=str(exc),
            ) from exc


# -- on a Ray cluster ------------------------------------------------------------------------------


#: Times that a shard is tried again when its worker or machine dies. A bad image may kill every
#: worker.
RETRIES: Final = 8

#: Unfinished tasks handed to Ray at a time: per core of the cluster, and at least.
AHEAD_PER_CORE: Final = 4
LEAST_AHEAD: Final = 32


def _packed_by_worker(
    options: Options,
    plan: ShardPlan,
    root: str,
    number: int,
    part: Samples | None,
    splits: Splits | None,
    encoding: Encoding | None,
    classes: tuple[str, ...],
) -> str:
    """Pack shard ``number`` on another machine; its record as JSON. ``part``: the images of a
    folder, None for samples that the options name; ``encoding``: of a set that grows; ``classes``:
    names of all."""
    workspace = Workspace(root, options.format)
    if not os.path.isdir(workspace.set):
        raise SourceError(
            "a worker does not see the target's folder",
            path=workspace.set,
            found=f"nothing there on {platform.node()}",
            hint="source and target must be on a file system that all machines share",
        )
    if part is None:
        part = open_samples(options, options.dst, classes, encoding).of(plan.numbers(number))
        part.splits = splits
    with contextlib.closing(part):
        return pack_shard(options, plan, number, part, workspace).to_json()


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


def packed_on_ray(
    options: Options, plan: ShardPlan, samples: Samples, root: str, shards: Iterator[int]
) -> Generator[tuple[int, ShardRecord]]:
    """Pack these shards: the number and the record of each, in the order they finish.

    Raises what a task raised; those still running are cancelled then.
    """
    read = options.params
    if read is not None and read.labels_path is not None:  # a worker has a folder of its own
        read = replace(read, labels_path=os.path.abspath(read.labels_path))
    away = replace(options, params=read, progress=None)
    usual = cast(Encoding, samples.encoding) if options.append else None
    classes = samples.classes or ()
    with _connected(options.address) as ray:
        remote = ray.remote(max_retries=RETRIES, scheduling_strategy="SPREAD")(_run)
        cores = int(ray.cluster_resources().get("CPU", 1))
        ahead = max(LEAST_AHEAD, AHEAD_PER_CORE * cores)
        running: dict[Any, int] = {}
        try:
            while True:
                for number in itertools.islice(shards, ahead - len(running)):
                    numbers = plan.numbers(number)
                    splits = None if samples.splits is None else samples.splits.of(numbers)
                    about = (number, samples.part(numbers), splits, usual, classes)
                    task = partial(_packed_by_worker, away, plan, root, *about)
                    running[remote.options(num_cpus=options.jobs).remote(task)] = number
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
        if isinstance(cause := exc.cause, AsyncReaderError):
            raise cause from exc
        what = f"writing shard {number} failed on a worker"
        raise SourceError(what, found=f"{type(cause).__name__}: {cause}") from exc
    except ray.exceptions.RayError as exc:
        raise SourceError(
            f"shard {number} could not be written: its worker died {RETRIES + 1} times",
            found=f"{type(exc).__name__}: {str(exc)[:300]}",
            hint="it may lack memory for one image for each thread: lower jobs (--jobs)",
        ) from exc


def _run(task: Callable[[], str]) -> str:
    return task()
