"""Packs a sharded set: shards one after the other, each whole or not there, the manifest last.

A shard's bytes are a function of the plan alone: of the samples that the listing has at its places,
of the options and of the shape of raw pixels. So a run that is cut and resumed, with any number of
threads or on other machines, gives the same files. A bad picture that is skipped leaves its shard
shorter and moves no other; a shard whose pictures are all bad is left out.

In the workspace (publish.py): ``plan.json``; ``set/``, where a shard appears by rename when it is
complete, verified and on the disk; ``receipts/``, a small file for each of them, written behind it;
``attempts/``, where shards are written.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import xxhash

from asyncreader import __version__
from asyncreader import format as fmt
from asyncreader.errors import AsyncReaderError, ParamsError, SampleError, SourceError
from asyncreader.manifest import NAME, Common, Manifest, Shard, file_digest

from .disk import check_room, sync
from .options import Options
from .packing import Order, Packing, Shape, all_bad, check_skippable, data_file, reason
from .picture import Packed
from .publish import Target
from .report import ConvertReport
from .samples import Samples, View

#: Samples that are encoded to know how many make a shard of the size that is asked for.
MEASURED: Final = 64

_BLOCK: Final = 1 << 16


@dataclass(frozen=True)
class Plan:
    """What is packed where. ``source``: digest of the listing and of all that shapes the bytes;
    ``count``: samples listed; ``shape``: (H, W, C) of raw pixels, None of encoded ones."""

    source: str
    count: int
    shards: int
    shape: Shape | None

    def span(self, number: int) -> range:
        """Places of the samples of shard ``number``; sizes differ by one at most."""
        ends = (number * self.count // self.shards, (number + 1) * self.count // self.shards)
        return range(*ends)

    def name(self, number: int, kind: str) -> str:
        """Its file: ``shard-00003-of-00064.h5``."""
        suffix = "h5" if kind == "hdf5" else "lmdb"
        return f"shard-{number:05d}-of-{self.shards:05d}.{suffix}"

    def to_json(self) -> str:
        """One line."""
        return json.dumps(asdict(self), sort_keys=True)


@dataclass(frozen=True)
class Receipt:
    """What there is to know of a finished shard. ``shard`` is None where all its samples were bad.

    ``label_dtype``, ``label_width``, ``data_bytes``: as in the manifest; ``skipped``: (place in the
    shard, reason).
    """

    shard: Shard | None
    shape: Shape | None
    label_dtype: str
    label_width: int
    data_bytes: int
    skipped: tuple[tuple[int, str], ...]

    def to_json(self) -> str:
        """One line."""
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Receipt:
        """The same again; ValueError, KeyError or TypeError for anything else."""
        raw = json.loads(text)
        shard, shape = raw.pop("shard"), raw.pop("shape")
        skipped = tuple((int(place), str(why)) for place, why in raw.pop("skipped"))
        return cls(
            shard=None if shard is None else Shard(**shard),
            shape=None if shape is None else (shape[0], shape[1], shape[2]),
            skipped=skipped,
            **raw,
        )


class Workspace:
    """The folders that a run writes to. Any machine that sees them can write a shard."""

    def __init__(self, root: str, kind: str) -> None:
        self.root = root
        self.kind = kind
        self.set = os.path.join(root, "set")

    def prepare(self) -> None:
        """Make the folders; whatever attempts were cut are removed."""
        shutil.rmtree(self._path("attempts"), ignore_errors=True)
        for name in ("set", "receipts", "attempts"):
            os.makedirs(self._path(name), exist_ok=True)

    def _path(self, *names: str) -> str:
        return os.path.join(self.root, *names)

    def plan(self) -> str | None:
        """The plan of the run that was interrupted, if there was one."""
        try:
            with open(self._path("plan.json"), encoding="ascii") as file:
                return file.read()
        except FileNotFoundError:
            return None

    def keep_plan(self, plan: Plan) -> None:
        """Note what is packed, durably, before the first shard."""
        self._write("plan.json", plan.to_json())

    def _write(self, name: str, text: str) -> None:
        """A small file, there as a whole or not at all."""
        part = self._path("attempts", f"{os.path.basename(name)}.{os.urandom(8).hex()}")
        with open(part, "w", encoding="ascii") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.rename(part, self._path(name))
        sync(os.path.dirname(self._path(name)))

    def attempt(self, number: int) -> str:
        """A path to write shard ``number`` to; no other attempt at it has the same."""
        suffix = "h5" if self.kind == "hdf5" else "lmdb"
        return self._path("attempts", f"{number:05d}.{os.urandom(8).hex()}.{suffix}")

    def finish(self, number: int, attempt: str, receipt: Receipt) -> None:
        """Give a packed shard its name, and then its receipt. Twice is harmless: the same bytes."""
        if receipt.shard is not None:
            os.rename(data_file(attempt, self.kind), os.path.join(self.set, receipt.shard.name))
            sync(self.set)
        self._write(os.path.join("receipts", f"{number:05d}.json"), receipt.to_json())

    def seal(self, manifest: Manifest) -> None:
        """Take away what is no part of the set, and write the manifest into it: the last file."""
        known = {manifest.name(number) for number in range(len(manifest))}
        for entry in os.listdir(self.set):
            if entry not in known:
                os.unlink(os.path.join(self.set, entry))
        self._write(os.path.join("set", NAME), manifest.to_json())

    def discard(self, attempt: str) -> None:
        """Remove what is left of an attempt."""
        shutil.rmtree(attempt, ignore_errors=True)
        with contextlib.suppress(OSError):
            os.unlink(attempt)

    def receipt(self, number: int) -> Receipt | None:
        """What shard ``number`` is, if it is finished; None for a damaged receipt, too."""
        try:
            with open(self._path("receipts", f"{number:05d}.json"), encoding="ascii") as file:
                return Receipt.from_json(file.read())
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def whole(self, receipt: Receipt) -> bool:
        """Whether the shard is, byte for byte, what was verified when it was packed."""
        shard = receipt.shard
        if shard is None:
            return True
        try:
            size, found = file_digest(os.path.join(self.set, shard.name))
        except OSError:
            return False
        return (size, found) == (shard.bytes, shard.xxh3)


# -- the plan ------------------------------------------------------------------------------------


def make_plan(options: Options, samples: Samples, order: Order) -> Plan:
    """How ``samples`` are cut into shards: a function of the listing and the options."""
    shape, mean = _measure(options, samples, order)
    if options.shards is not None:
        shards = options.shards
    else:
        assert options.shard_size is not None
        shards = max(1, round(samples.count * mean / options.shard_size))
    if shards > samples.count:
        raise ParamsError(
            "more shards than there are samples",
            found=f"{shards} shards",
            expected=f"at most {samples.count}",
        )
    return Plan(_source_digest(options, samples), samples.count, shards, shape)


def _measure(options: Options, samples: Samples, order: Order) -> tuple[Shape | None, float]:
    """Shape of raw pixels (of the first good sample), and mean bytes of a stored sample."""
    raw = samples.encoding == "raw"
    if not raw and options.shard_size is None:
        return None, 0.0
    evenly = np.linspace(0, samples.count - 1, 1 if raw else min(MEASURED, samples.count))
    places = dict.fromkeys(evenly.astype(np.int64).tolist())
    sizes: list[int] = []
    shape: Shape | None = None
    for place in _then_all(places, samples.count):
        if sizes and place not in places:
            break
        sample = _tried(options, samples, order[place])
        if sample is not None:
            sizes.append(len(sample.data))
            shape = shape or sample.shape
    if not sizes:
        raise all_bad(options, _skipped(samples, order, []) or [(0, "?", "?")])
    return (shape if raw else None), sum(sizes) / len(sizes)


def _then_all(places: dict[int, None], count: int) -> Iterator[int]:
    yield from places
    yield from (place for place in range(count) if place not in places)


def _tried(options: Options, samples: Samples, number: int) -> Packed | None:
    try:
        return samples.fetch(number, lambda _: None)
    except SampleError as exc:
        check_skippable(exc, options, samples, number)
        return None


def _source_digest(options: Options, samples: Samples) -> str:
    """Of everything that the bytes of the shards follow from, but for the pictures themselves."""
    state = xxhash.xxh3_128()
    shaping = {
        name: getattr(options, name)
        for name in (
            *("format", "size", "resize", "quality", "shuffle", "compression", "chunk"),
            *("follow_links", "skip_bad", "check_decode"),
        )
    }
    head = [__version__, samples.identity, samples.encoding, samples.channels, samples.label_kind]
    state.update(json.dumps([head, shaping, samples.classes], sort_keys=True).encode("ascii"))
    for start in range(0, samples.count, _BLOCK):
        numbers = np.arange(start, min(start + _BLOCK, samples.count), dtype=np.int64)
        rows = samples.label_rows(numbers)
        if rows is not None:
            state.update(f"{rows.dtype.str}{rows.shape[1]}".encode("ascii"))
            state.update(np.ascontiguousarray(rows).reshape(-1).view(np.uint8).data)
        if samples.path is not None:
            for number in numbers.tolist():
                state.update(samples.path(number) + b"\0")
    return state.hexdigest()


# -- one shard -----------------------------------------------------------------------------------


def pack_shard(
    options: Options,
    plan: Plan,
    number: int,
    samples: Samples,
    workspace: Workspace,
    done: Callable[[int], None] | None = None,
) -> Receipt:
    """Pack shard ``number`` of ``plan``, whose samples are ``samples``, and give it its name."""
    name = plan.name(number, options.format)
    attempt = workspace.attempt(number)
    shown = os.path.join(options.dst, name)
    try:
        packed = Packing(options, samples, attempt, shown, shape=plan.shape, done=done).run()
        shard = None
        if packed.meta is not None:
            digests = packed.meta.digests
            size, digest = file_digest(data_file(attempt, options.format))
            shard = Shard(
                name=name,
                count=packed.meta.count,
                bytes=size,
                xxh3=digest,
                checksums=digests[fmt.CHECKSUMS],
                labels=digests.get(fmt.LABELS),
            )
        receipt = Receipt(
            shard=shard,
            shape=None if packed.meta is None else packed.meta.shape,
            label_dtype="<i8" if packed.meta is None else packed.meta.label_dtype,
            label_width=packed.label_width,
            data_bytes=packed.data_bytes,
            skipped=packed.skipped,
        )
        workspace.finish(number, attempt, receipt)
    finally:
        workspace.discard(attempt)
    return receipt


# -- all of them ---------------------------------------------------------------------------------


def pack_shards(options: Options, samples: Samples, target: Target) -> ConvertReport:
    """Pack ``samples`` into the folder ``target``; what a cut run finished is kept if resumed."""
    return _Run(options, samples, target).run()


class _Run:
    """One run over all shards of a set."""

    def __init__(self, options: Options, samples: Samples, target: Target) -> None:
        self._begun = time.perf_counter()
        self._options = options
        self._samples = samples
        self._target = target
        self._order = Order(samples.count, options.shuffle)
        self._workspace = Workspace(target.workspace, options.format)
        self._before = len(samples.skipped)

    def run(self) -> ConvertReport:
        target, workspace = self._target, self._workspace
        target.keep = workspace.plan() is not None  # an error from here on loses nothing
        plan = self._plan()
        self._check_room(plan)
        workspace.prepare()
        workspace.keep_plan(plan)
        receipts = self._kept(plan)
        kept = sum(receipt.shard is not None for receipt in receipts.values())
        target.keep = kept > 0
        try:
            self._pack(plan, receipts)
            manifest, skipped = self._finish(plan, [receipts[n] for n in range(plan.shards)])
        except AsyncReaderError as exc:
            if target.keep:
                more = f"{len(receipts)} finished shards are kept: resume (--resume) goes on"
                exc.hint = more if exc.hint is None else f"{exc.hint}; {more}"
            raise
        target.publish()
        return ConvertReport(
            target=self._options.dst,
            format=self._options.format,
            encoding=manifest.common.encoding,
            count=manifest.count,
            skipped=skipped,
            ignored=self._samples.ignored,
            classes=manifest.common.classes,
            bytes=int(manifest.sizes.sum()),
            seconds=time.perf_counter() - self._begun,
            shards=len(manifest),
            kept=kept,
        )

    def _plan(self) -> Plan:
        """The plan of this run; SourceError if an interrupted one had another."""
        plan = make_plan(self._options, self._samples, self._order)
        before = self._workspace.plan()
        if before is not None and before != plan.to_json():
            raise SourceError(
                "the interrupted run had other sources or options",
                path=self._target.workspace,
                found=before[:200],
                expected=plan.to_json(),
                hint="call it with the same ones, or remove that folder to start over",
            )
        return plan

    def _check_room(self, plan: Plan) -> None:
        if plan.shape is not None and self._options.compression is None:
            done = os.path.join(self._target.workspace, "set")
            held = os.scandir(done) if os.path.isdir(done) else ()
            there = sum(entry.stat().st_size for entry in held)
            needed = plan.count * int(np.prod(plan.shape)) - there
            check_room(self._target.shown, os.path.dirname(self._target.workspace), needed)

    def _kept(self, plan: Plan) -> dict[int, Receipt]:
        """Receipts of the shards that are finished and whole."""
        receipts = {}
        for number in range(plan.shards):
            receipt = self._workspace.receipt(number)
            if receipt is not None and self._workspace.whole(receipt):
                receipts[number] = receipt
        return receipts

    def _pack(self, plan: Plan, receipts: dict[int, Receipt]) -> None:
        """Pack what is not in ``receipts`` yet, and add it there."""
        if self._options.engine == "ray":
            self._pack_on_ray(plan, receipts)
            return
        done = self._before + sum(len(plan.span(number)) for number in receipts)
        for number in range(plan.shards):
            if number not in receipts:
                samples = View(self._samples, self._numbers(plan, number))
                receipts[number] = pack_shard(
                    self._options, plan, number, samples, self._workspace, self._told(done)
                )
                self._target.keep |= receipts[number].shard is not None
                done += samples.count

    def _pack_on_ray(self, plan: Plan, receipts: dict[int, Receipt]) -> None:
        from .ray_engine import RayEngine, tasks_of

        told = self._told(self._before)
        kept = sum(len(plan.span(number)) for number in receipts)

        def done(number: int, receipt: Receipt) -> None:
            nonlocal kept
            receipts[number] = receipt
            self._target.keep |= receipt.shard is not None
            kept += len(plan.span(number))
            told(kept)

        missing = (number for number in range(plan.shards) if number not in receipts)
        wanted = ((number, self._numbers(plan, number)) for number in list(missing))
        root = self._workspace.root
        with RayEngine(self._options.address) as engine:
            engine.run(tasks_of(self._options, plan, self._samples, root, wanted), done)

    def _told(self, before: int) -> Callable[[int], None]:
        total = self._before + self._samples.count

        def done(count: int) -> None:
            if self._options.progress is not None:
                self._options.progress(before + count, total)

        return done

    def _numbers(self, plan: Plan, number: int) -> npt.NDArray[np.int64]:
        span = plan.span(number)
        numbers: npt.NDArray[np.int64] = self._order.numbers(span.start, span.stop)
        return numbers

    def _finish(
        self, plan: Plan, receipts: list[Receipt]
    ) -> tuple[Manifest, tuple[tuple[str, str], ...]]:
        """Write the manifest; returns it, and what was skipped in path order."""
        bad = [
            (plan.span(number).start + place, why)
            for number, receipt in enumerate(receipts)
            for place, why in receipt.skipped
        ]
        skipped = _skipped(self._samples, self._order, bad)
        good = [receipt for receipt in receipts if receipt.shard is not None]
        if not good:
            raise all_bad(self._options, skipped)
        shapes = {receipt.shape for receipt in good}
        options, samples = self._options, self._samples
        common = Common(
            container=options.format,
            encoding=samples.encoding,
            shape=shapes.pop() if len(shapes) == 1 else None,
            channels=samples.channels,
            label_kind=samples.label_kind,
            label_dtype=good[0].label_dtype,
            label_width=good[0].label_width,
            classes=samples.classes,
            chunk=options.chunk if options.compression else None,
            compression=options.compression,
            data_bytes=sum(receipt.data_bytes for receipt in good),
        )
        manifest = Manifest.of(common, [r.shard for r in good if r.shard is not None])
        self._workspace.seal(manifest)
        return manifest, tuple((name, why) for _, name, why in sorted(skipped))


def _skipped(
    samples: Samples, order: Order, bad: list[tuple[int, str]]
) -> list[tuple[Any, str, str]]:
    """(where it sorts, name, reason) of all that was passed over; ``bad``: (place, reason)."""
    skipped = [(key, name, reason(why)) for key, name, why in samples.skipped]
    return skipped + [(*samples.name(order[place]), why) for place, why in bad]
