"""Builds the parts of a reader from its parameters: the open set, the filler and the slots.

The reader connects them. Each worker process builds its own.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

import numpy as np

from ..errors import ParamsError, SourceError, WorkerError
from ..params.reader import PATHS, ReaderParams, Run
from ..pixels.augment.base import Operation
from ..pixels.row_maker import RowMaker
from ..pixels.rows import by_field
from ..pixels.specs import OutputSpec
from ..pixels.user_transform import LabelSpec, Made, Transform
from ..sampling import sampler_of, takes_classes
from ..sampling.patches import Patches
from ..sampling.samplers import Sampler, Storage
from ..sampling.schedule import BatchPlan, Cursor, Schedule
from ..sources import (
    OpenSet,
    RowJob,
    SetIndex,
    Source,
    absolute,
    absolute_pattern,
    open_reader_source,
    read_rows,
)
from ..sources.base import CACHE_BYTES
from ..sources.labels import classes_of, resolve_rule, resolve_weights
from ..sources.ragged import rule_of_lengths
from ..sources.sets.joined import JoinedSource
from ..stats import Meter
from ..system.limits import physical_memory
from ..system.memory import aligned_empty
from ..system.text import some
from .fill_batch import BatchFiller, Together
from .slots import Allocate, Arena, BatchArrays, BatchLayout, Part, Slot, SlotLayout, padded
from .stages import stages_of

#: Samples, spread over a set, that are read to see whether ``dtype`` can hold their values.
LOOKED_AT: Final = 16


def rooted(p: ReaderParams) -> ReaderParams:
    """The parameters with absolute paths, which pickled readers and worker processes need."""
    found: dict[str, Any] = {}
    single = dict.fromkeys(("labels_path", "trace"), absolute)
    for name, rooted_of in {**dict.fromkeys(PATHS, _absolute), **single}.items():
        if (given := getattr(p, name)) is not None:
            found[name] = rooted_of(given)
    if p.mix.ratios is not None:
        ratios = {_absolute(path): ratio for path, ratio in p.mix.ratios.items()}
        if len(ratios) < len(p.mix.ratios):
            named = ", ".join(map(str, p.mix.ratios))
            raise ParamsError("a dataset of the mix is named twice", found=named)
        found["mix"] = replace(p.mix, ratios=ratios)
    return replace(p, **found)


def _absolute(path: str | tuple[str, ...]) -> str | tuple[str, ...]:
    if isinstance(path, str):
        return absolute_pattern(path)
    return tuple(map(absolute_pattern, path))


def make_schedule(p: ReaderParams, source: OpenSet, rank: int, world_size: int) -> Schedule:
    """The batches of a rank, in the order that the parameters ask for. ParamsError if source and
    parameters do not fit."""
    if p.last_batch == "short" and world_size != 1:
        raise ParamsError('last_batch="short" needs world_size 1', found=f"{world_size}")
    lengths = rule_of_lengths(p, source)
    rule, subset = resolve_rule(p.subset, p.patch.at, source)
    storage = replace(
        _storage(source, p),
        weights=resolve_weights(p.weights, source, rule, subset),
        classes=classes_of(source, rule, subset, f"shuffle={p.shuffle!r}")[1]
        if takes_classes(p.shuffle)
        else None,
        epoch_samples=p.epoch_samples,
        ratios=tuple((p.mix.ratios or {}).values()),
        until_first=p.mix.until == "first",
    )
    sampler = sampler_of(p.shuffle, p.seed, p.shuffle_window, storage, subset, rule)
    warning = sampler.warning(storage)
    if warning is not None:
        warnings.warn(warning, stacklevel=3)
    schedule = Schedule(sampler, p.batch_size, rank, world_size, p.last_batch, lengths)
    if schedule.steps == 0:
        raise ParamsError(
            "an epoch would have no batch",
            found=f"{schedule.length} samples, batch_size x world_size = {schedule.global_batch}",
            hint='lower batch_size, or last_batch="pad", "wrap" or "short"'
            + (f"; {rule.more}" if rule.more else ""),
        )
    return schedule


def make_filler(
    p: ReaderParams,
    source: OpenSet,
    schedule: Schedule,
    allocate: Allocate = np.zeros,
    seeded: bool = False,
) -> BatchFiller:
    """The filler of a source. ParamsError if source and parameters do not fit.

    ``seeded``: see :class:`Transform`.
    """
    fills = source.fills(p.wanted)
    for one in source.sets or (source,) if any(fill.wanted.steps for fill in fills) else ():
        for fill in one.fills(p.wanted):
            for step in fill.wanted.steps:
                if isinstance(step, Operation):
                    step.check(*fill.stepped(step.last), one.facts.path)
    if schedule.sampler.window and not _stays_decoded(source, fills):
        source.reserve(schedule.sampler.window)
    unchecked = [name for name in source.names if name not in source.checked]
    if p.verify == "always" and unchecked:
        raise ParamsError(
            'verify="always" of a dataset without checksums',
            path=source.facts.path,
            found=f"none of {', '.join(map(repr, unchecked))}" if source.named else None,
            hint="convert it with asyncreader convert, which records them",
        )
    label, together = None, None
    if p.transform is not None:
        arrays, step = p.wanted.arrays, Transform(p.transform, seeded=seeded)
        made = [_tried(p, source, schedule.sampler, one) for one in arrays]
        if len(source.parts) > 1:
            together = Together(source, p.wanted, replace(step, made=made[0]))
            fills = together.fills
        else:
            steps = (replace(step, made=one) for one in made)
            fills = source.fills(OutputSpec.of(list(map(_with, arrays, steps))))
        label = made[0].label
    stages = stages_of(p, source.facts.classes, fills[0].image_axes)
    return BatchFiller(p, source, fills, schedule, stages, label, together, allocate)


def _with(wanted: OutputSpec, transform: Transform) -> OutputSpec:
    """``wanted`` with the user's transform: after the operations, before those that are last."""
    steps = [step for step in wanted.steps if not step.last]
    steps += [transform, *(step for step in wanted.steps if step.last)]
    return replace(wanted, steps=tuple(steps), transformed_later=transform.made is None)


def _tried(p: ReaderParams, source: OpenSet, sampler: Sampler, wanted: OutputSpec) -> Made:
    """What the user's transform returns for the first good sample of the order, served as
    ``wanted``. WorkerError if it fails."""
    if len(source.parts) > 1 and wanted.views:
        raise ParamsError(
            "transform works on views of one field",
            found=", ".join(map(repr, source.names)),
            hint="postprocess gets the batches of all fields, as a tuple",
        )
    assert p.transform is not None
    trial = Transform(p.transform)
    together = Together(source, p.wanted, trial) if len(source.parts) > 1 else None
    # the operations with random sizes do not exist, those that are last come after it
    fill = together.before[0] if together else source.fills(_with(wanted, trial))[0]
    if fill.stored.axes is None:
        raise ParamsError(
            "transform works on images",
            path=source.facts.path,
            found=f"samples of shape {fill.stored.shape}",
            hint="postprocess gets whole batches of any data",
        )
    out, row = aligned_empty(fill.allocate_shape(1), fill.dtype), np.zeros(1, np.int64)
    for position in range(min(LOOKED_AT, sampler.length)):
        record = sampler.records(0, np.array([position]))
        labels = None if source.labels is None else source.labels[record]
        job = RowJob(
            source.records(record), row, np.zeros(1, np.uint64), None, row + position, labels
        )
        # a bad sample fails its batch later
        if together is not None:
            together.read_fields(job, (), Meter())
        else:
            read_rows(source.first, job, fill, out, Meter())
        if trial.trials:
            if wanted.views and trial.trials[0].label is not None:
                raise ParamsError(
                    "transform returns a label, and views of one sample have one label",
                    hint="return the image alone",
                )
            return trial.trials[0]
    raise SourceError("none of the first samples can be read", path=source.facts.path)


def check_values(p: ReaderParams, filler: BatchFiller) -> None:
    """Warn of what is left out or not done, and check ``dtype``.

    ParamsError if ``dtype`` cannot hold a value of some samples. None is read if it can hold all
    values that the stored dtype has. A value that this does not find fails its batch later.
    """
    source, sampler = filler.source, filler.schedule.sampler
    warned = [_warning_of_dropped(filler.schedule, source)]
    warned.append(warning_of_others(p, source, filler.fills))
    for name, fills in zip(source.names, by_field(filler.fills, filler.fills), strict=True):
        warned.append(_warning_of_scale(p, fills[0], name, name == source.names[0]))
    for warning in filter(None, warned):
        warnings.warn(warning, stacklevel=3)
    if not any(fill.narrows for fill in filler.fills) or p.transform is not None:
        return  # what is cast is what the user's function returns
    positions = np.unique(np.linspace(0, sampler.length - 1, LOOKED_AT).astype(np.int64))
    row, key = np.zeros(1, np.int64), np.zeros(1, np.uint64)
    outs = [aligned_empty(part.shape, part.dtype) for part in filler.rows(1)]
    for record in sampler.records(0, positions):
        # a damaged sample is not the dtype's fault: it fails its batch later
        try:
            job = RowJob(record.reshape(1), row, key)
            source.read_fields(job, filler.fills, outs, Meter())
        except ParamsError as exc:
            raise source.rule.told(exc) from exc.__cause__


def _warning_of_dropped(schedule: Schedule, source: OpenSet) -> str | None:
    """The warning if ``last_batch="drop"`` leaves out the same samples in each epoch."""
    left = schedule.length - schedule.steps * schedule.global_batch
    same = schedule.sampler.kind is False and not source.sets  # whose next passes go on from there
    if not same or not left or schedule.last_batch != "drop" or schedule.rank:
        return None
    return (
        f'last_batch="drop" leaves out {some(left, source.rule.noun)} of {schedule.length:,} in '
        "each epoch, with shuffle=False always the last ones: "
        + ('"short"' if schedule.world_size == 1 else '"pad"')
        + " serves all"
    )


def warning_of_others(p: ReaderParams, source: OpenSet, fills: Sequence[RowMaker]) -> str | None:
    """The warning if ``dtype``, ``scale``, ``mean`` or ``std`` are of the first field alone, and
    other fields are floating-point numbers as it is."""
    given = {name: getattr(p, name) for name in ("dtype", "scale", "mean", "std")}
    given = {n: one for n, one in given.items() if one is not None and not isinstance(one, dict)}
    fields = dict(zip(source.names, by_field(fills, fills), strict=True))
    floats = [name for name, (fill, *_) in fields.items() if fill.stored.dtype.kind == "f"]
    first, same = source.names[0], given.keys() == {"dtype"}
    others = [
        name
        for name in floats
        if name not in (first, *p.places) and not (same and fields[name][0].dtype == p.dtype)
    ]
    if not given or not others or first not in floats:
        return None
    return (
        f"{' and '.join(given)} {'are' if len(given) > 1 else 'is'} of the first field, {first!r}, "
        f"alone, and {' and '.join(map(repr, others))} served as stored: a dict by field, such as "
        f"{next(iter(given))}={{{first!r}: ..., {others[0]!r}: ...}}, says what each of them gets"
    )


def _warning_of_scale(p: ReaderParams, fill: RowMaker, field: str, first: bool) -> str | None:
    """The warning if mean and std of a field do not have the scale of integer pixels."""
    dtype = fill.stored.dtype
    given = (getattr(p, name) for name in ("scale", "mean", "std"))
    scale, mean, std = (
        one.get(field) if isinstance(one, dict) else one if first else None for one in given
    )
    if dtype.kind != "u" or (mean is None and std is None):
        return None
    limit = int(np.iinfo(dtype).max)
    mean, std = mean or (0.0,), std or (1.0,)
    top = limit * abs(1.0 if scale is None else scale)
    changes = any(mean) or any(value != 1.0 for value in std)
    if scale is None and changes and max(map(abs, mean)) <= 1 and max(map(abs, std)) <= 1:
        cure = f"pass scale=1/{limit} as well (or scale=1, if this is meant)"
    elif max(mean) > top:
        cure = "leave scale out" if scale is not None else "give both in the scale of the pixels"
    else:
        return None
    scaled = "" if scale is None else f" with scale={scale:.6g}"
    return (
        f"mean={_shortly(mean)} and std={_shortly(std)} are not of the scale of {dtype} pixels"
        f"{scaled}, which are 0 to {top:.6g}: {cure}"
    )


def _shortly(values: tuple[float, ...]) -> str:
    shown = ", ".join(f"{value:.6g}" for value in values)
    return shown if len(values) == 1 else f"({shown})"


def slot_rows(p: ReaderParams, filler: BatchFiller) -> BatchLayout:
    """The memory of each field's rows, and of their labels."""
    table, label = filler.source.labels, filler.label
    if label is None and table is not None:
        label = LabelSpec(table.shape[1:], table.dtype)
    labels = None if label is None else Part((p.batch_size, *label.shape), label.dtype)
    several = filler.source.named or p.views is not None
    return BatchLayout(filler.rows(p.batch_size), labels, several)


def slot_layout(p: ReaderParams, filler: BatchFiller) -> SlotLayout:
    """The layout of the slots: of the rows, and then of what each stage makes of them."""
    source = filler.source
    lengths = source.lengths(p.wanted)
    layout = SlotLayout(slot_rows(p, filler), (), source.set_ends, source.rule, lengths)
    _check_memory(p, layout)
    for number, stage in enumerate(filler.stages):
        (slot,) = layout.build(1, aligned_empty, filler.handed_out)
        trial = partial(_first_batch, filler, number, slot)
        made = stage.layout(slot.made[-1].layout(), trial)
        layout = replace(layout, made=(*layout.made, made))
        _check_memory(p, layout)
    return layout


def _first_batch(filler: BatchFiller, stages: int, slot: Slot) -> tuple[BatchArrays, BatchPlan]:
    """The first batch after so many stages, made in ``slot``, and its plan."""
    trial = filler.trial(stages)
    slot.plan = plan = filler.schedule.plan(filler.schedule.next_batch_at(Cursor()))
    trial.fill_part(slot, 0, plan.indices.size, Meter())
    trial.finish(slot, Meter())
    return slot.batch_rows(-1), plan


def _check_memory(p: Run, layout: SlotLayout) -> None:
    needed = (p.njob + 1) * sum(layout.sizes())
    there = physical_memory()
    if needed > there:
        raise ParamsError(
            "the slots do not fit in memory",
            found=f"{needed / 1e9:.1f} GB for njob + 1 = {p.njob + 1} batches",
            expected=f"at most {there / 1e9:.1f} GB",
            hint="lower batch_size or njob",
        )


def shared_arena(p: Run, layout: SlotLayout, filler: BatchFiller) -> Arena | None:
    """The memory of slots that worker processes fill, after the map of samples that these check;
    None for threads."""
    if p.workers == "thread":
        return None
    seen = 0 if filler.seen is None else padded(filler.seen.nbytes)
    return Arena(seen + (p.njob + 1) * sum(padded(size) for size in layout.sizes()))


def make_slots(p: Run, layout: SlotLayout, filler: BatchFiller, arena: Arena | None) -> list[Slot]:
    """The slots of a reader, in ``arena`` or in memory of its own."""
    if arena is not None and filler.seen is not None:
        filler.seen = arena.empty(filler.seen.shape, np.uint8)
    allocate = aligned_empty if arena is None else arena.empty
    return layout.build(p.njob + 1, allocate, filler.handed_out)


def build_worker(
    index: SetIndex, p: ReaderParams, schedule: Schedule, layout: SlotLayout, arena: Arena
) -> tuple[BatchFiller, list[Slot]]:
    """The filler and the slots of a worker process: its own source of the set, shared memory."""
    filler = make_filler(p, index.open(), schedule, arena.empty, seeded=True)
    if slot_rows(p, filler) != layout.rows:
        found, expected = (
            [fill.row_shape for fill in filler.fills],
            [part.shape[1:] for part in layout.rows.data],
        )
        raise WorkerError(
            "transform returned another shape in the trial call of a worker process",
            found=f"rows of {', '.join(map(str, found))}",
            expected=f"rows of {', '.join(map(str, expected))}",
        )
    return filler, layout.build(p.njob + 1, arena.empty, filler.handed_out)


def open_set(p: ReaderParams) -> OpenSet:
    """Open the set that the parameters name. Tests replace this function by a fake."""
    return open_reader_source(p)


def _storage(source: OpenSet, p: ReaderParams) -> Storage:
    """What a sampler needs to know of a set, which is decoded as ``p`` says."""
    fills = source.fills(replace(p.wanted, others=()))
    decoded = sum(map(_decoded_bytes, source.parts, fills))
    facts, block = source.facts, source.first.index.block
    files = source.first.open_files.limit if isinstance(source.first, JoinedSource) else None
    sets = tuple(_storage(one, p) for one in source.sets)
    return Storage(facts.path, facts.count, block, decoded, facts.ends, files, sets=sets)


def _decoded_bytes(part: Source, fill: RowMaker) -> int:
    """Bytes that a sample of a field takes decoded."""
    stored = fill.stored
    return part.index.memory or (fill.row_bytes if stored.shape is None else stored.row_bytes)


def _stays_decoded(source: OpenSet, fills: Sequence[RowMaker]) -> bool:
    """Whether a source that is asked for no window remembers all chunks: of each field, those of
    all files together are no more than one may remember. Volumes are more than their patches."""
    made = by_field(fills, fills)
    return not isinstance(source.rule, Patches) and all(
        part.facts.count * _decoded_bytes(part, arrays[0]) <= CACHE_BYTES
        for part, arrays in zip(source.parts, made, strict=True)
    )
