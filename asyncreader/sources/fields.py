"""An open data set: its fields, such as image and mask, with the same crop for each sample.

Each field is a source over the same file, read with the same plan: records, rows and random keys.
This module compares their counts, uses the first one's crop for all, and reports a sample as bad if
one of its fields is.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar

import numpy as np

from ..errors import DecodeError, FormatError, ParamsError, SampleError, closed_on_error, located
from ..pixels.augment.base import along
from ..pixels.codec import decode_values
from ..pixels.numbers import Stretches, too_long
from ..pixels.points import Moved, moved_fill
from ..pixels.row_maker import RowMaker
from ..pixels.rows import RowError, RowJob, by_field
from ..pixels.specs import OutputSpec, SampleSpec
from ..pixels.transform import plan_rows
from ..sampling.patches import Patches
from ..sampling.rule import EACH_ROW, Lengths, Rule
from ..stats import Meter
from ..system.array_types import Array, Int64
from ..system.text import sides
from . import base
from .base import FieldIndex, OpenField, SetFacts, Source, read_field
from .bytestore import ByteFile
from .inspector import Inspector
from .request import Request, no_field

File = TypeVar("File", bound=ByteFile)
Found = TypeVar("Found")

#: At most so many samples are tried to find one that can be decoded.
_LOOKED_AT = 16


@dataclass(frozen=True, eq=False)
class SetIndex:
    """All that was found out of a set when it was opened. The first of the fields has the crop.

    Frozen and picklable. A worker process gets it, and neither looks for the set nor parses it
    again. ``labels``: None where there are none, or where several files have them; ``splits``:
    parts of the set by name, for ``subset="name"``; ``named``: see :class:`OpenSet`.
    ``rule``: what a sample is; where it is a patch, ``labels`` are those of the volumes.
    """

    facts: SetFacts
    fields: Mapping[str, FieldIndex]
    labels: Array | None = None
    splits: Mapping[str, slice | Int64] = field(default_factory=dict)
    named: bool = False
    rule: Rule = EACH_ROW

    @property
    def first(self) -> FieldIndex:
        """The first field."""
        return next(iter(self.fields.values()))

    def open(self) -> OpenSet:
        """The set, open. Nothing stays open if a field fails: FormatError if a file was replaced
        or changed."""
        parts: list[Source] = []
        with closed_on_error(parts):
            parts.extend(one.open(self.facts) for one in self.fields.values())
            return OpenSet(self, parts)


def joined_fields(fields: Mapping[str, SetIndex]) -> SetIndex:
    """One set of the first field of each, with all else of the first. FormatError (ParamsError of
    arrays) where the fields differ in their number of samples."""
    (first_name, first), *others = fields.items()
    found = {first_name: first.first}
    for name, one in others:
        facts = one.facts
        if facts.count != first.facts.count:
            kind = ParamsError if first.facts.container == "arrays" else FormatError
            raise kind(
                f"field {name!r} has another number of samples than {first_name!r}",
                path=facts.path,
                found=facts.count,
                expected=first.facts.count,
            )
        _check_extents(first_name, first, name, one)
        same = facts.path == first.facts.path
        found[name] = one.first if same else replace(one.first, path=facts.path)
    return replace(first, fields=found)


def _check_extents(first_name: str, first: SetIndex, name: str, one: SetIndex) -> None:
    """ParamsError where two fields that are cut at one place have volumes of other extents."""
    found = [
        tuple(index.rule.volumes.extents[0].tolist()) if isinstance(index.rule, Patches) else None
        for index in (first, one)
    ]
    if found[0] != found[1]:
        raise ParamsError(
            "the volumes of two fields that are cut at the same places have different extents",
            path=one.facts.path,
            found=f"field {name!r} {found[1]}",
            expected=f"{found[0]}, as field {first_name!r}",
            hint="give it a reader of its own, or name the axes that are cut: patch_axes",
        )


def open_file(file: File, index: Callable[[File], SetIndex]) -> OpenSet:
    """The set that ``index`` finds in ``file``, which is closed if that fails, and which errors
    name."""
    with closed_on_error([file]), located(path=file.path):
        found = index(file)
        fields, facts = found.fields.values(), found.facts
        return OpenSet(found, [one.storage.serve(OpenField(facts, one, file)) for one in fields])


def index_each(fields: Request, index: Callable[[Request], SetIndex]) -> dict[str, SetIndex]:
    """The index of each of the fields that are asked for, by name: where the caller names none,
    the one that the layout has for it. ``index``: finds one of them in a file that is open."""
    first = index(fields)
    name = next(iter(first.fields)) if fields.name is None else fields.name
    others = fields.other_names([one.name for one in first.facts.fields]).items()
    stored = first.first.spec
    return {name: first, **{own: index(fields.other(own, data, stored)) for own, data in others}}


def index_set(fields: Request, index: Callable[[Request], SetIndex]) -> SetIndex:
    """The index of the fields that are asked for, as one: see :func:`index_each`."""
    return joined_fields(index_each(fields, index))


@dataclass(frozen=True)
class Layout(Generic[Found]):
    """A layout of sets, which are handed to it open.

    ``name``: what ``info`` calls it, "" for one that is no layout of its own; ``index``: finds the
    field that is asked for.
    """

    name: str
    recognise: Callable[[Found], bool]
    index: Callable[[Found], SetIndex]


def index_of(found: Found, layouts: Iterable[Layout[Found]]) -> SetIndex:
    """The index by the first layout that recognises what was found; the last one takes all."""
    return next(layout for layout in layouts if layout.recognise(found)).index(found)


class OpenSet:
    """A set that is open: ``parts``, each a source of one field.

    ``named``: errors name the field, and a batch's data is a tuple: there are several, or the
    caller named the only one. ``checked``: fields whose samples all have checksums.
    """

    def __init__(self, index: SetIndex, parts: Sequence[Source]) -> None:
        self.index = index
        self.facts = index.facts
        self.rule = index.rule
        self.named = index.named or len(parts) > 1
        self.names = tuple(index.fields)
        self.parts = tuple(parts)
        #: those of a mix, in which record numbers continue from set to set
        self.sets: tuple[OpenSet, ...] = ()
        self.first = first = parts[0]
        self.spec = first.spec
        self.labels = first.labels if index.labels is None else index.labels
        self.splits = index.splits or first.splits
        #: as stored: labels of volumes, where ``labels`` are those of places
        self.table = self.labels
        if self.labels is not None and self.rule.renumbered:
            self.labels = self.rule.labels_of(self.labels)
        fields = index.fields.items()
        self.checked = tuple(name for name, one in fields if one.checked == "all")

    @property
    def set_ends(self) -> tuple[int, ...]:
        """The record numbers at which the sets of a mix end; () where this is no mix."""
        return tuple(itertools.accumulate(one.facts.count for one in self.sets))

    def ruled(self, rule: Rule) -> OpenSet:
        """The set with other samples."""
        return OpenSet(replace(self.index, rule=rule), self.parts)

    def only(self, name: str) -> OpenSet:
        """The set with one of its fields alone."""
        fields = {name: self.index.fields[name]}
        return OpenSet(replace(self.index, fields=fields), [self.part(name)])

    def renamed(self, names: Mapping[str, str]) -> OpenSet:
        """The set with its fields under other names: by name what each is called here."""
        fields = {name: self.index.fields[of] for name, of in names.items()}
        index = replace(self.index, fields=fields, rule=self.rule.renamed(names))
        return OpenSet(index, [self.part(of) for of in names.values()])

    def part(self, name: str) -> Source:
        """The source of a field."""
        return self.parts[self.names.index(name)]

    def fills(self, wanted: OutputSpec) -> tuple[RowMaker, ...]:
        """How each field becomes rows, where the first does as ``wanted``: of the first field,
        then of each other, all arrays that are made of it. Others keep their values but for what is
        wanted of them by name."""
        self._check_named(wanted)
        spec, path, name = self.spec, self.facts.path, self.names[0]
        fills = [plan_rows(spec, one.for_field(name), path) for one in wanted.arrays]
        first = fills[0]
        for name, part in zip(self.names[1:], self.parts[1:], strict=True):
            fills += _fills(name, part, wanted, _size(spec), first)
        for name, (fill, *_) in zip(self.names, by_field(fills, fills), strict=True):
            if self.rule.is_whole(name) and fill.wanted.max_length is not None:
                fill.pad  # noqa: B018 - checked when the set is opened
        return tuple(fills)

    def lengths(self, wanted: OutputSpec) -> tuple[Lengths | None, ...]:
        """How long the samples of each field are as they are served; None where all are alike."""
        found: list[Lengths | None] = []
        for name, one in self.index.fields.items():
            most = wanted.for_field(name).max_length
            differ = one.offsets is not None or self.rule.is_whole(name)
            cut = differ and most is not None
            found.append(Lengths(name, most or 0, one.offsets, self.rule) if cut else None)
        return tuple(found)

    def _check_named(self, wanted: OutputSpec) -> None:
        """ParamsError where something is wanted of a field that is not there, or members of one
        that has none to choose from."""
        named = wanted.by_field
        unknown = [name for name in named if name not in self.names]
        if unknown:
            raise no_field(unknown[0], self.names, path=self.facts.path)
        each = zip(self.names, self.parts, strict=True)
        plain = [name for name, one in each if one.spec.dtype.names is None or one.spec.members]
        wrong = [name for name in plain if "members" in named.get(name, {})]
        if wrong or (wanted.members is not None and len(plain) == len(self.names)):
            raise ParamsError(
                "members goes with fields of structured rows",
                path=self.facts.path,
                found=", ".join(wrong or plain),
            )

    # -- reading ---------------------------------------------------------------------------

    def read_fields(
        self, plan: RowJob, fills: Sequence[RowMaker], outs: Sequence[Array], meter: Meter
    ) -> tuple[RowError, ...]:
        """Fill rows of each field's memory. A sample is bad if one of its fields is."""
        errors: list[RowError] = []
        if self.facts.remote and len(self.parts) > 1:  # request all before waiting for the first
            self.prefetch(plan.records)
        fields = zip(by_field(fills, fills), by_field(fills, outs), strict=True)
        made: dict[object, tuple[RowJob, Int64]] = {}
        for name, part, (own, into) in zip(self.names, self.parts, fields, strict=True):
            alike = part is self.first or self.rule.apart
            if not alike and any(self._may_differ(fills[0], one) for one in own):
                errors += self._other_sizes(_without(plan, errors), name, part)
            rest = _without(plan, errors)
            if rest.records.size == 0:
                break
            if _size(self.spec) is None and any(isinstance(s, Moved) for s in own[0].wanted.steps):
                sizes = map(Inspector(self.first).size, self.records(rest.records).tolist())
                rest = rest._replace(frames=np.array(list(sizes), np.int64))
            found = self._read(name, part, rest, own, into, meter, made)
            if found:
                made.clear()  # they are left out of the fields that follow
            for bad in found:
                if self.named:
                    bad.error.what = f"field {name!r}: {bad.error.what}"
                numbered = bad.error.source_path is None and bad.error.index is not None
                if numbered and not self.rule.apart:  # a field without paths of its own
                    record = int(plan.records[np.flatnonzero(plan.rows == bad.row)[0]])
                    origin = Inspector(self.first).path(record)
                    bad.error.source_path = base.shown_path(origin)
                errors.append(bad)
        return tuple(errors)

    def _read(
        self,
        name: str,
        part: Source,
        job: RowJob,
        fills: Sequence[RowMaker],
        outs: Sequence[Array],
        meter: Meter,
        made: dict[object, tuple[RowJob, Int64]],
    ) -> Collection[RowError]:
        """Read one field. A window is more rows with one key; it is bad if one of its rows is."""
        rule = self.rule
        if not rule.apart:
            return read_field(part, job, fills, outs, meter)
        if rule.is_whole(name):
            return self._read_whole(name, part, job, fills[0], outs[0], meter)
        if rule.width(name) is None:
            records = rule.stored(name, job.records)[0]
            return read_field(part, job._replace(records=records), fills, outs, meter)
        (out,) = outs  # windows have no views
        alike = rule.alike(name)
        if alike not in made:
            made[alike] = self._rows_of_windows(name, job)
        each, zeroed = made[alike]
        memory, width = out.reshape(-1, *out.shape[2:]), out.shape[1]
        if zeroed.size:
            memory[zeroed] = 0
        bad = read_field(part, each, fills, (memory,), meter)
        # one error for each sample
        return {row.row // width: RowError(row.row // width, row.error) for row in bad}.values()

    def _rows_of_windows(self, name: str, job: RowJob) -> tuple[RowJob, Int64]:
        """The rows of the samples' windows that are read, and those of the slot that are zeros."""
        records, count = self.rule.records(name, job.records), job.records.size
        width = records.size // count
        rows = (job.rows[:, None] * width + np.arange(width)).reshape(-1)
        each = job.pick(np.repeat(np.arange(count), width))
        each = each._replace(records=records, rows=rows)
        zeroed = records < 0
        return (each.pick(~zeroed), rows[zeroed]) if zeroed.any() else (each, rows[:0])

    def own_records(self, records: Int64) -> tuple[Int64, ...]:
        """The rows that each field has of samples, by its own numbers: (B * W,) of windows, -1 for
        zeros."""
        rule, found = self.rule, dict[object, Int64]()
        for name in self.names:
            if rule.alike(name) not in found:
                found[rule.alike(name)] = rule.records(name, records)
        return tuple(found[rule.alike(name)] for name in self.names)

    def in_memory(self, size: int) -> bool:
        """Whether ``size`` bytes of raw rows of all fields can be copied from memory now."""
        each = -(-size // len(self.parts))
        for part in self.parts:  # noqa: SIM110 - each batch asks, and all() takes longer
            if not part.in_memory(each):
                return False
        return True

    def _read_whole(
        self,
        name: str,
        part: Source,
        job: RowJob,
        fill: RowMaker,
        out: Array,
        meter: Meter,
    ) -> Collection[RowError]:
        """Read whole episodes of one field: their rows, cut or filled up. One is bad if one of its
        rows is."""
        starts, lengths, base = self.rule.whole(name, job.records)
        found, most = Stretches.of(fill.wanted, starts, lengths, job.keys, base), out.shape[1]
        assert most == self.rule.width(name)  # else rows would be written behind the array
        bad: dict[int, RowError] = {}
        if fill.wanted.overlong == "error":
            for i in np.flatnonzero(lengths > most).tolist():
                error = too_long(fill.wanted, int(lengths[i]))
                row = int(job.rows[i])
                bad[row] = RowError(row, part.located(error, int(starts[i])))
            found = found._replace(served=np.where(lengths > most, 0, found.served))
        found.pad(out, job.rows, fill.pad)
        memory = out.reshape(-1, *out.shape[2:])
        for counts, records, rows in found.pieces(job.rows, most):
            each = job.pick(np.repeat(np.arange(counts.size), counts))
            each = each._replace(records=records, rows=rows)
            for one in read_field(part, each, (fill,), (memory,), meter):
                bad.setdefault(one.row // most, RowError(one.row // most, one.error))
            if meter.stopped:
                break
        return bad.values()

    def rows_of(self, name: str) -> int:
        """How many rows a field has, which of a set of episodes may be others than the set's."""
        return self.rule.rows_of(name, self.facts.count)

    def check_rows(self, reader: str) -> None:
        """ParamsError where a field's rows are not numbered as the set's, for a ``reader`` of rows
        that takes the same numbers of each field."""
        own = [name for name in self.names if self.rows_of(name) != self.facts.count]
        if own:
            raise ParamsError(
                f"{reader} takes one row of each field for a sample",
                path=self.facts.path,
                found=f"field {own[0]!r}, which has other rows in an episode than "
                + ", ".join(repr(name) for name in self.names if name not in own),
                hint="leave the field out",
            )

    def records(self, records: Int64) -> Int64:
        """The first field's own records in samples: of a window the first one."""
        name = self.names[0]
        if self.rule.is_whole(name):
            return self.rule.whole(name, records)[0]
        found = self.rule.stored(name, records)[0]
        return found if found.ndim == 1 else found[:, 0]

    @staticmethod
    def _may_differ(first: RowMaker, other: RowMaker) -> bool:
        """Whether a sample's picture and this field of it may differ in size, so that one crop
        would not be the other."""
        cropped = other.geometry and other.wanted.crop != "none" and first.stored.axes is not None
        return cropped and (_size(first.stored) is None or _size(other.stored) is None)

    def _other_sizes(self, plan: RowJob, name: str, part: Source) -> Iterator[RowError]:
        first, other = Inspector(self.first), Inspector(part)
        for record, row in zip(plan.records.tolist(), plan.rows.tolist(), strict=True):
            try:
                expected, found = first.size(record), other.size(record)
            except DecodeError:
                continue  # reading it raises the error
            if found != expected:
                error = SampleError(
                    f"field {name!r} has another size than {self.names[0]!r}: one crop for both "
                    "would show different parts",
                    found=sides(*found),
                    expected=sides(*expected),
                    hint='leave it out with on_error="skip", or squeeze all with crop="none"',
                )
                error = part.located(error, record)
                error.source_path = None  # that of the picture
                yield RowError(row, error)

    def prefetch(self, records: Int64) -> None:
        for name, part in zip(self.names, self.parts, strict=True):
            if not self.rule.is_whole(name):  # else which rows are read is not known yet
                part.prefetch(self.rule.stored(name, records)[0].reshape(-1))

    def reserve(self, samples: int) -> None:
        for part in self.parts:
            part.reserve(self.rule.rows_read(samples, part.index.block))

    def release(self) -> None:
        for part in self.parts:
            part.release()

    def close(self) -> None:
        for part in self.parts:
            part.close()


def _without(plan: RowJob, errors: Sequence[RowError]) -> RowJob:
    if not errors:
        return plan
    return plan.pick(~np.isin(plan.rows, np.array([bad.row for bad in errors], np.int64)))


def _size(stored: SampleSpec) -> tuple[int, int] | None:
    """(H, W) of every sample's picture; None where they differ, or there is none."""
    if stored.axes is None:
        return None
    high, wide, _ = stored.image_shape()
    return None if high is None or wide is None else (high, wide)


def _fills(
    name: str,
    part: Source,
    wanted: OutputSpec,
    frame: tuple[int, int] | None,
    picture: RowMaker,
) -> list[RowMaker]:
    """How another field becomes rows, of all arrays that are made of it. Boxes and keypoints move
    with the ``picture`` of ``frame``."""
    if name in (wanted.boxes, wanted.keypoints):
        with named_field(name):
            what = "boxes" if name == wanted.boxes else "keypoints"
            own = wanted.for_field(name)
            return [moved_fill(part.spec, what, own, picture, frame, part.facts.path)]
    stored = _values_of(part) if part.spec.encoded else part.spec
    if stored.axes is None:  # of numbers there are no views
        arrays: tuple[OutputSpec, ...] = (replace(wanted, views=0, others=()),)
    else:
        arrays = wanted.arrays
    return [_fill(name, stored, one, part.facts.path, frame) for one in arrays]


def _fill(
    name: str, stored: SampleSpec, wanted: OutputSpec, path: str, frame: tuple[int, int] | None
) -> RowMaker:
    """Other fields keep their values: nearest neighbour, and no cast or normalisation but what is
    wanted of them by name."""
    steps = along(wanted.steps)
    plain = replace(
        wanted, dtype=None, scale=1.0, mean=(0.0,), std=(1.0,), nearest=True, steps=steps
    ).for_field(name)
    if plain.layout == "planes":  # of the pictures alone
        plain = replace(plain, layout="NCHW")
    if stored.axes is None:  # numbers of unknown meaning, such as boxes
        plain = replace(plain, size=None, flip=False, steps=())
    with named_field(name):
        return plan_rows(stored, plain, path, frame if _size(stored) is not None else None)


@contextlib.contextmanager
def named_field(name: str) -> Iterator[None]:
    """A ParamsError that passes names the field."""
    try:
        yield
    except ParamsError as exc:
        exc.what = f"field {name!r}: {exc.what}"
        raise


def _values_of(part: Source) -> SampleSpec:
    """The stored form of encoded values; from the first good sample if the set does not say it."""
    stored = part.spec
    if stored.values:
        return stored
    for index in range(min(_LOOKED_AT, part.facts.count)):
        try:
            values = decode_values(Inspector(part).bytes(index))
        except SampleError:
            continue
        shape = None if stored.shape is None else (*stored.shape[:2], values.shape[2])
        return replace(
            stored, shape=shape, dtype=values.dtype, channels=values.shape[2], values=True
        )
    raise FormatError("none of its first samples can be decoded", path=part.facts.path)
