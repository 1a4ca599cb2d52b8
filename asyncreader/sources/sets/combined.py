"""Several open sets as one: files that are alike in sequence, or a mix of sets that differ.

The sets of a mix may differ in all but what is served: each keeps its own container, encoding and
sizes, and has its own way from stored samples to rows.
"""

from __future__ import annotations

import copy
import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from ...errors import FormatError, ParamsError, SampleError, closed_on_error
from ...formats import packed as fmt
from ...pixels.row_maker import RowMaker
from ...pixels.rows import by_field
from ...pixels.specs import OutputSpec, SampleSpec
from ...system.array_types import Array, Int64
from ...system.text import times
from ..base import FieldIndex, SetFacts
from ..bytestore import REMOTE
from ..fields import OpenSet, SetIndex
from ..inspector import Inspector
from ..labels import in_sequence, joined_tables, united
from .joined import Joined, JoinedSource


def join(files: Sequence[OpenSet]) -> OpenSet:
    """The open ``files`` as one set of the fields that all have. FormatError where they do not go
    together."""
    first = files[0].facts
    names = [name for name in files[0].names if all(name in file.names for file in files)]
    for name in names:
        for file in files[1:]:
            _check_alike(files[0].only(name), file.only(name))
    tables, classes = _joined_classes(files)
    common = [
        field
        for field in first.fields
        if all(field.name in (one.name for one in file.facts.fields) for file in files)
    ]
    facts, starts = joined_facts(files, classes=classes, fields=tuple(common))
    labels, splits = _joined_labels(files, tables), joined_splits(files, starts)
    held = {name: [file.only(name) for file in files] for name in names}
    rules = [file.rule for file in files]
    rule = next((one for one in rules if one.apart), rules[0])
    rule = rule.joined(rules, [file.facts.path for file in files])
    fields = {}
    for name in names:
        own = np.cumsum([file.rows_of(name) for file in files], dtype=np.int64)
        own_ends = None if np.array_equal(own, starts[1:]) else own
        storage = Joined(tuple(file.index for file in held[name]), ends=own_ends)
        fields[name] = joined_field(held[name], storage)
    parts = [JoinedSource(facts, one, held[name]) for name, one in fields.items()]
    return OpenSet(SetIndex(facts, fields, labels, splits, rule=rule), parts)


def joined_facts(sets: Sequence[OpenSet], **changes: Any) -> tuple[SetFacts, list[int]]:
    """The facts of several sets in sequence, with ``changes``, and the record numbers at which each
    of them begins, and the last one ends."""
    facts = [one.facts for one in sets]
    ends = np.cumsum(np.array([one.count for one in facts], np.int64))
    joined = replace(
        facts[0],
        path=f"{facts[0].path} and {len(facts) - 1} more",
        count=int(ends[-1]),
        meta=None,
        io=REMOTE if any(one.remote for one in facts) else facts[0].io,
        size_on_disk=sum(one.size_on_disk for one in facts),
        ends=ends,
        **changes,
    )
    return joined, [0, *ends.tolist()]


def joined_field(sets: Sequence[OpenSet], storage: Joined, **changes: Any) -> FieldIndex:
    """The only field of several sets in sequence, with ``changes``: what all of them store, as far
    as it is the same."""
    first, specs = sets[0].index.first, [one.spec for one in sets]
    checked = {one.index.first.checked for one in sets}
    alike = len({spec.shape for spec in specs}) == 1
    return replace(
        first,
        spec=replace(
            first.spec,
            shape=first.spec.shape if alike else None,
            narrow=all(spec.narrow for spec in specs),
        ),
        storage=storage,
        where=None,
        checksums=None,
        names=None,
        path=None,
        checked=checked.pop() if len(checked) == 1 else "some",
        offsets=joined_offsets(one.index.first.offsets for one in sets),
        **changes,
    )


def joined_offsets(tables: Iterable[Array | None]) -> Int64 | None:
    """Where the values of samples of different length begin among those of all files."""
    there = [table.astype(np.int64) for table in tables if table is not None]
    if not there:
        return None
    ends = np.cumsum([0, *(int(table[-1]) for table in there)])
    starts = (table[:-1] + end for table, end in zip(there, ends.tolist(), strict=False))
    return np.concatenate((*starts, ends[-1:]))


def _joined_labels(files: Sequence[OpenSet], tables: list[Array | None]) -> Array | None:
    there = [table for table in tables if table is not None]
    if not there:
        return None
    if len(there) < len(files):
        raise FormatError(
            "some of the files have labels and some have none",
            path=files[[table is None for table in tables].index(True)].facts.path,
            hint="pass labels_field=None to read all of them without",
        )
    try:
        return joined_tables(there)
    except ParamsError:
        raise
    except ValueError as exc:
        raise FormatError(
            "the files' labels differ in shape",
            found=", ".join(str(table.shape[1:]) for table in there),
        ) from exc


def joined_splits(files: Sequence[OpenSet], starts: Sequence[int]) -> Mapping[str, slice | Int64]:
    """Splits that every file has: their records, file by file."""
    names = [name for name in files[0].splits if all(name in file.splits for file in files)]
    joined: dict[str, slice | Int64] = {}
    for name in names:
        rows = []
        for file, start in zip(files, starts, strict=False):
            split = file.splits[name]
            chosen = np.arange(split.start, split.stop) if isinstance(split, slice) else split
            rows.append(chosen.astype(np.int64) + start)
        joined[name] = np.concatenate(rows)
    return joined


def _joined_classes(
    files: Sequence[OpenSet],
) -> tuple[list[Array | None], tuple[str, ...] | None]:
    """Labels of each file, and the class names of all.

    Foreign sets number the names that they hold (OCR, say), so that numbers are worked out anew.
    """
    labels = [file.table for file in files]
    named = [file.facts.classes for file in files]
    if all(names == named[0] for names in named):
        return labels, named[0]
    return united(labels, named)


def _check_alike(first: OpenSet, file: OpenSet) -> None:
    if first.index.first.columns != file.index.first.columns:
        raise FormatError(
            "this file has other columns (genes) than the first one, or another order of them",
            path=file.facts.path,
            hint="columns=[...] takes the columns of these names from each file",
        )
    one, other = first.spec, file.spec
    same = _kind(one) == _kind(other)
    packed = first.facts.meta is not None or file.facts.meta is not None
    named = (first.facts.classes is None, file.facts.classes is None)
    if not same or named[0] != named[1] or (packed and first.facts.classes != file.facts.classes):
        hint = "all files of a dataset need the same shape, dtype, encoding and classes: convert "
        hint += "them so (--classes takes the classes of another dataset)"
        if not packed and not one.encoded and one.shape != other.shape:
            hint += "; of volumes, one in each file, sample_axis=None with patch=(Z, Y, X) serves "
            hint += "parts of one shape"
        raise FormatError(
            "this file does not match the first one",
            path=file.facts.path,
            found=_kind_in_words(file),
            expected=_kind_in_words(first),
            hint=hint,
        )


def _kind(spec: SampleSpec) -> tuple[object, ...]:
    """What the samples of all files of a set have in common."""
    channels = spec.image_shape()[2]
    shape = None if spec.encoded else spec.shape
    return spec.dtype, spec.axes, spec.encoded, spec.ragged, channels, shape


def _kind_in_words(file: OpenSet) -> str:
    """What all files of a set have in common, in words."""
    spec = file.spec
    shape = "images of many sizes" if spec.shape is None else f"{spec.shape}"
    shape = f"rows of different length of {shape}" if spec.ragged else shape
    names = file.facts.classes or ()
    classes = f"{len(names)} classes" + (f" ({_classes_in_words(names)})" if names else "")
    return f"{shape} {spec.dtype} {spec.encoding}, {classes}"


# -- mixes -----------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class MixedIndex(SetIndex):
    """The index of a mix: those of its ``sets``, which come in the proportion of ``ratios``;
    ``classes``: "joined" or "own"."""

    sets: tuple[SetIndex, ...] = ()
    ratios: tuple[float, ...] = ()
    classes: str = "joined"

    def open(self) -> MixedSet:
        """See :class:`SetIndex`."""
        opened: list[OpenSet] = []
        with closed_on_error(opened):
            opened.extend(one.open() for one in self.sets)
            return MixedSet(self, opened)


class MixedSet(OpenSet):
    """The sets of a mix, open. Record numbers continue from set to set; errors name the record by
    its number in its own set."""

    index: MixedIndex

    def __init__(self, index: MixedIndex, sets: Sequence[OpenSet]) -> None:
        held = {name: [one.only(name) for one in sets] for name in index.fields}
        fields = index.fields.items()
        super().__init__(
            index, [JoinedSource(index.facts, one, held[name]) for name, one in fields]
        )
        self.sets = tuple(sets)

    def fills(self, wanted: OutputSpec) -> tuple[RowMaker, ...]:
        """How each field becomes rows. ParamsError where those of two sets would differ."""
        own = [by_field(fills, fills) for fills in (one.fills(wanted) for one in self.sets)]
        joined: list[RowMaker] = []
        for number, name in enumerate(self.names):
            arrays = zip(*(fields[number] for fields in own))  # noqa: B905
            joined += (self._joined_fill(name, fills) for fills in arrays)
        return tuple(joined)

    def _joined_fill(self, name: str, fills: Sequence[RowMaker]) -> RowMaker:
        first, paths = fills[0], [one.facts.path for one in self.sets]
        for fill, path in zip(fills[1:], paths[1:], strict=True):
            if _row_kind(fill) == _row_kind(first):
                continue
            field = f"field {name!r}: " if self.named else ""
            raise ParamsError(
                f"{field}two datasets of the mix would be served in different shapes",
                path=path,
                found=_in_words(fill, first),
                expected=f"{_in_words(first, fill)}, as in {paths[0]}",
                hint=_cure(fill, first),
            )
        joined = copy.copy(first)
        joined.stored = self.part(name).spec
        joined.members = dict(zip([0, *self.set_ends[:-1]], fills, strict=True))
        joined.random = any(fill.random for fill in fills)
        joined.narrows = any(fill.narrows for fill in fills)
        joined.geometry = any(fill.geometry for fill in fills)
        if any(fill.kernel != first.kernel or fill.stored != first.stored for fill in fills):
            joined.kernel, joined.as_stored = "", False  # no call does rows of several kinds
        return joined

    def reserve(self, samples: int) -> None:
        for one, ratio in zip(self.sets, self.index.ratios, strict=True):
            one.reserve(math.ceil(samples * ratio))


def _row_kind(fill: RowMaker) -> tuple[object, ...]:
    return fill.allocate_shape(1), fill.dtype, fill.view_axes, fill.stored.flat


def _served(fill: RowMaker) -> tuple[tuple[int, ...], np.dtype[Any]]:
    return fill.handed_out(np.empty((1, *fill.row_shape), fill.dtype)).shape[1:], fill.dtype


def _in_words(fill: RowMaker, other: RowMaker) -> str:
    """What a sample is as it is served, and in memory where it is served as the other one is."""
    shape, dtype = _served(fill)
    order = f" ({times(fill.row_shape)} in memory)" if _served(other) == (shape, dtype) else ""
    return f"samples of {times(shape)} {dtype}{order}"


def _cure(fill: RowMaker, first: RowMaker) -> str:
    if fill.dtype != first.dtype:
        return 'pass dtype="float32", or another dtype that all of them can have'
    if _served(fill) == _served(first):
        return "pass contiguous=True: all of them are then served in C order"
    return "size=(H, W) makes images of one size; they must have as many channels"


def mix(sets: Sequence[OpenSet], ratios: Sequence[float], classes: str) -> MixedSet:
    """The open ``sets`` as a mix. ``classes``: "joined", those of the same name are one, or "own",
    none of one set is one of another. ParamsError where the sets' fields, labels or classes
    clash."""
    first = sets[0]
    for one in sets[1:]:
        if one.names != first.names:
            raise ParamsError(
                "two datasets of the mix have different fields",
                path=one.facts.path,
                found=", ".join(one.names),
                expected=f"{', '.join(first.names)}, as {first.facts.path}",
            )
    for one in sets:
        one.check_rows("a mix")
        ragged = [n for n, part in zip(one.names, one.parts, strict=True) if part.spec.ragged]
        if ragged:
            raise ParamsError(
                "the datasets of a mix have samples of one length",
                path=one.facts.path,
                found=f"field {ragged[0]!r}",
            )
    labels, names = _mixed_labels(sets, classes == "own")
    packed = [one.facts.fields for one in sets]
    facts, starts = joined_facts(
        sets,
        container=" and ".join(dict.fromkeys(one.facts.container for one in sets)),
        layout=f"a mix of {len(sets)} sets",
        classes=names,
        fields=packed[0] if all(one == packed[0] for one in packed) else (),
    )
    index = MixedIndex(
        facts,
        {name: _mixed_field([one.only(name) for one in sets]) for name in first.names},
        labels,
        joined_splits(sets, starts),
        named=any(one.named for one in sets),
        sets=tuple(one.index for one in sets),
        ratios=tuple(ratios),
        classes=classes,
    )
    return MixedSet(index, sets)


def _mixed_field(sets: Sequence[OpenSet]) -> FieldIndex:
    """One field of all sets. ParamsError where the columns that are served have other names."""
    first = sets[0].index.first
    for one in sets[1:]:
        if one.index.first.columns != first.columns:
            raise ParamsError(
                "two datasets of the mix have other columns (genes), or another order of them",
                path=one.facts.path,
                hint="columns=[...] takes the columns of these names from each dataset",
            )
    storage = Joined(tuple(one.index for one in sets), own_numbers=True)
    joined = joined_field(sets, storage, chunk=None, compression=None)
    encodings = dict.fromkeys(one.spec.encoding for one in sets)
    return replace(joined, spec=replace(joined.spec, encoding=" and ".join(encodings)))


# -- labels --------------------------------------------------------------------------------------


def _mixed_labels(
    sets: Sequence[OpenSet], kept_apart: bool
) -> tuple[Array | None, tuple[str, ...] | None]:
    """Labels of all sets in sequence, and the names of their classes. Where some sets have labels
    (N,) and others (N, 1), all have (N, 1)."""
    if all(one.labels is None for one in sets):
        return None, None
    first = sets[0]
    for one in sets[1:]:
        if _label_kind(one) != _label_kind(first):
            raise ParamsError(
                "two datasets of the mix have labels of different kinds",
                path=one.facts.path,
                found=_labels_in_words(one),
                expected=f"{_labels_in_words(first)}, as {first.facts.path}",
                hint="pass labels_field=None to read all of them without labels",
            )
    tables = [np.asarray(one.labels) for one in sets]
    if len({table.ndim for table in tables}) > 1:  # (N,) and (N, 1) are one number a sample
        tables = [table.reshape(-1, 1) for table in tables]
    names = [one.facts.classes for one in sets]
    if kept_apart:
        every = tuple(name for known in names for name in known or ())
        return np.concatenate(_apart(sets, tables)), None if None in names else every
    for one, known in zip(sets, names, strict=True):
        if (known is None) != (names[0] is None):
            raise ParamsError(
                "one dataset of the mix has names of its classes and another has none",
                path=one.facts.path,
                found=_classes_in_words(known),
                expected=f"{_classes_in_words(names[0])}, as {first.facts.path}",
                hint='pass classes="own" to keep the numbers of each dataset apart, or convert the '
                "dataset with --classes",
            )
    if all(known == names[0] for known in names):
        return in_sequence(tables), names[0]
    for one, table, known in zip(sets, tables, names, strict=True):
        _check_numbers(one, table, len(known or ()))
    united_tables, every = united(tables, names)
    return in_sequence([table for table in united_tables if table is not None]), every


def _apart(sets: Sequence[OpenSet], tables: Sequence[Array]) -> list[Array]:
    """Class numbers of each set behind those of the sets before it."""
    first, found = 0, []
    for one, table in zip(sets, tables, strict=True):
        names = one.facts.classes
        count = len(names) if names is not None else int(table.max()) + 1 if _whole(table) else 0
        _check_numbers(one, table, count)
        found.append(np.where(table < 0, -1, table.astype(np.int64) + first))
        first += count
    return found


def _check_numbers(one: OpenSet, table: Array, count: int) -> None:
    """ParamsError unless labels are class numbers, 0 to ``count - 1``, or -1 for a label that is
    missing where the classes have names."""
    if not _whole(table):
        raise ParamsError(
            "the classes of a mix need integer labels",
            path=one.facts.path,
            found=f"labels of {table.dtype}",
            hint="pass labels_field=None to read all datasets without labels",
        )
    least = 0 if one.facts.classes is None else -1
    outside = (table < least) | (table >= count)
    wrong = np.flatnonzero(outside.reshape(len(table), -1).any(axis=1))
    if wrong.size:
        record = int(wrong[0])
        raise ParamsError(
            "a label is no class number of its dataset",
            path=one.facts.path,
            index=record,
            found=table[record].tolist(),
            expected=f"{least} to {count - 1}",
        )


def _whole(table: Array) -> bool:
    return table.dtype.kind in "bui"


def _label_kind(one: OpenSet) -> tuple[object, ...] | None:
    if one.labels is None:
        return None
    shape, kind = tuple(one.labels.shape[1:]), one.labels.dtype.kind
    return shape or (1,), "i" if kind in "bui" else kind


def _labels_in_words(one: OpenSet) -> str:
    if one.labels is None:
        return "no labels"
    return f"labels {tuple(one.labels.shape)} of {one.labels.dtype}"


def _classes_in_words(names: tuple[str, ...] | None) -> str:
    if names is None:
        return "no names"
    return ", ".join(map(repr, names[:4])) + (", ..." if len(names) > 4 else "")


# -- what identifies a set -------------------------------------------------------------------------


#: Bytes of a sample of different length that are hashed; of a longer one its length says enough.
_HASHED: Final = 1 << 20


def fingerprint(source: OpenSet) -> str:
    """What identifies this data set: the first field's fingerprint, and those of the others."""
    if isinstance(source, MixedSet):  # with what its labels are numbered by
        parts = [fingerprint(one) for one in source.sets]
        text = repr((parts, source.index.classes, source.facts.classes))
        return f"{source.facts.count}:{hashlib.sha256(text.encode()).hexdigest()[:32]}"
    return _of_fields(source, source.facts)


def earlier_fingerprints(source: OpenSet) -> dict[str, int]:
    """The fingerprints that the set had before shards were added to it, and its samples then."""
    facts, meta, found = source.facts, source.facts.meta, {}
    for count, digests in facts.earlier if meta is not None else ():
        assert meta is not None
        before = replace(facts, count=count, meta=replace(meta, digests=digests))
        found[_of_fields(source, before)] = count
    return found


def _of_fields(source: OpenSet, facts: SetFacts) -> str:
    first = _fingerprint(source, source.names[0], facts)
    named = "".join(f"{name}={_fingerprint(source, name, facts)}\n" for name in source.names[1:])
    return first if not named else f"{first}:{hashlib.sha256(named.encode()).hexdigest()[:16]}"


def _fingerprint(source: OpenSet, name: str, facts: SetFacts) -> str:
    """The fingerprint of one field; the first one's has that of the labels.

    Packed by asyncreader: count and the digests of checksums and labels. Others: count, shape,
    dtype and a hash of 64 fixed samples. Their numbers are hashed in little-endian order, since
    pickle gives arrays back in the machine's order.
    """
    count, meta, part = facts.count, facts.meta, source.part(name)
    digests: Mapping[str, str] | None = None if meta is None else meta.digests
    table = fmt.table_of(name.strip("/"), fmt.CHECKSUMS)
    if meta is None and isinstance(part, JoinedSource):
        digests = part.digests()
    if digests is not None and table in digests:  # others may have added a field
        labels = digests.get(fmt.LABELS, "-") if part is source.first else "-"
        return f"{count}:{digests[table]}:{labels}"
    spec = part.spec
    little = spec.dtype.newbyteorder("<")
    dtype = little.str if little.names is None else str(little)
    kind = part.index.stored_as or f"{'ragged ' * spec.ragged}{spec.shape} {dtype}"
    state = hashlib.sha256(f"{count} {kind} {spec.encoding}".encode())
    inspector, offsets, rows = Inspector(part), part.index.offsets, source.rows_of(name)
    for index in np.linspace(0, rows - 1, min(64, rows)).astype(np.int64).tolist():
        if offsets is not None:
            size = int(offsets[index + 1]) - int(offsets[index])
            state.update(f"{int(offsets[index])} {size}".encode())
            if not 0 <= size * spec.row_bytes <= _HASHED:
                continue
        try:
            stored = inspector.bytes(index)
            if little != spec.dtype:
                stored = np.frombuffer(stored, spec.dtype).astype(little).tobytes()
            state.update(stored)
        except SampleError:  # with on_error a set with bad samples can be resumed, too
            state.update(b"bad")
    return f"{count}:{state.hexdigest()[:32]}"
