"""Labels, splits, classes and weights of a set's samples, and what ``subset`` selects.

Several labels are one structured array inside, with a member for each, and a tuple outside."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, cast

import numpy as np

from ..errors import ParamsError
from ..formats import packed as fmt
from ..sampling.episodes import Episodes, Windows
from ..sampling.rule import PatchAt, Rule
from ..sampling.samplers import Subset, subset_count, subset_numbers
from ..system.array_types import Array, Float64, Int64
from ..system.late import LazyTable
from ..system.text import some
from .arrays import label_array
from .fields import OpenSet, SetIndex


class EpisodeLabels(LazyTable):
    """Labels of the rows of episodes, ``table[e]`` for all rows of episode ``e``, in the place of
    an array (N, ...). ``ends``: int64 (E,), the row after each episode."""

    def __init__(self, table: Array, ends: Int64) -> None:
        super().__init__(
            (int(ends[-1]), *table.shape[1:]), table.dtype, partial(_of_episodes, table, ends)
        )
        self.table, self.ends = table, ends


def _of_episodes(table: Array, ends: Int64, rows: Int64) -> Array:
    """The labels of the episodes that rows are in."""
    return table[np.searchsorted(ends, rows, side="right")]


def of_each_episode(table: Array, episodes: Episodes) -> Array:
    """Labels of all rows, one for each episode: (E, ...) as (N, ...). Where fields are stored as
    (episode, time, ...), so are labels of both extents: they have one for each row."""
    rows = int(episodes.lengths[0])
    if episodes.kind == "axis" and rows > 1 and table.shape[1:2] == (rows,):
        return table.reshape(-1, *table.shape[2:])
    return cast(Array, EpisodeLabels(table, episodes.ends))


def joined_tables(tables: Sequence[Array]) -> Array:
    """Labels of several files in sequence."""
    each = [one for one in cast(Sequence[object], tables) if isinstance(one, EpisodeLabels)]
    if len(each) < len(tables):
        return in_sequence([np.asarray(one) for one in tables])
    starts = np.cumsum([0, *(len(one) for one in each)])
    ends = [one.ends + start for one, start in zip(each, starts.tolist(), strict=False)]
    table = in_sequence([one.table for one in each])
    return cast(Array, EpisodeLabels(table, np.concatenate(ends)))


def in_sequence(tables: Sequence[Array]) -> Array:
    """Tables of labels, one behind the other, in the dtype that numpy finds for all of them; whole
    numbers stay such. ParamsError where that dtype would round one, ValueError for other shapes."""
    names = tables[0].dtype.names
    if names is not None:
        return together({name: in_sequence([one[name] for one in tables]) for name in names})
    made = np.concatenate(tables)
    if made.dtype.kind != "f" or len({one.dtype for one in tables}) == 1:
        return made
    exact = 1 << (np.finfo(made.dtype).nmant + 1)
    whole = [one for one in tables if one.dtype.kind in "iu"]
    largest = max((max(-int(one.min()), int(one.max())) for one in whole if one.size), default=0)
    if len(whole) == len(tables) and largest <= np.iinfo(np.int64).max:
        return np.concatenate([one.astype(np.int64) for one in tables])
    if largest > exact:
        kinds = ", ".join(dict.fromkeys(str(one.dtype) for one in tables))
        raise ParamsError(
            "labels of several dtypes have no dtype that holds all of them",
            found=f"{kinds}, and a number as large as {largest}",
            expected=f"at most {exact}, which {made.dtype} holds",
            hint="write labels of one dtype, or pass labels_field=None to read without labels",
        )
    return made


def united(
    tables: Sequence[Array | None], named: Sequence[tuple[str, ...] | None]
) -> tuple[list[Array | None], tuple[str, ...]]:
    """Labels of several sets, each numbered by the sorted names of the classes of all, and these.
    ``named``: the classes of each set. A label that is missing is -1, and stays so."""
    every = sorted({name for names in named for name in names or ()})
    number = {name: i for i, name in enumerate(every)}
    found = list(tables)
    for i, (table, names) in enumerate(zip(tables, named, strict=True)):
        if table is not None and names is not None:
            numbers = np.array([*(number[name] for name in names), -1], np.int64)
            each: object = table
            if isinstance(each, EpisodeLabels):
                found[i] = cast(Array, EpisodeLabels(numbers[each.table], each.ends))
            else:
                found[i] = numbers[table]
    return found, tuple(every)


def numbered(texts: Iterable[bytes]) -> tuple[Array, tuple[str, ...]]:
    """Numbers of texts in the sorted list of them, and the list. Each text is kept once."""
    met: dict[bytes, int] = {}
    given = np.array([met.setdefault(text, len(met)) for text in texts], np.int64)
    names = np.array([text.decode("utf-8", "surrogateescape") for text in met], object)
    order = np.argsort(names, kind="stable")
    return np.argsort(order)[given], tuple(names[order].tolist())


# -- several at once -------------------------------------------------------------------------------


def together(tables: Mapping[str, Array]) -> Array:
    """Several labels as one structured array."""
    given: list[Any] = list(tables.values())
    each = [one for one in given if isinstance(one, EpisodeLabels)]
    if len(each) == len(given):  # it stays one for each episode
        inside = together(dict(zip(tables, (one.table for one in each), strict=True)))
        return cast(Array, EpisodeLabels(inside, each[0].ends))
    arrays = [np.asarray(one) for one in given]
    kinds = [(name, one.dtype, one.shape[1:]) for name, one in zip(tables, arrays, strict=True)]
    # aligned: torch takes arrays whose strides are whole numbers
    made = np.empty(len(arrays[0]), np.dtype(kinds, align=True))
    for name, one in zip(tables, arrays, strict=True):
        made[name] = one
    return made


def apart(labels: Any) -> Any:
    """Labels as they are handed out: of several a tuple of views."""
    names = None if labels is None else labels.dtype.names
    return labels if names is None else tuple(labels[name] for name in names)


def label_names(found: OpenSet, field: str | tuple[str, ...] | None) -> tuple[str, ...]:
    """The names of the columns of the labels ``field``, where asyncreader packed those; of several
    files those of the first."""
    if field != fmt.LABELS or found.labels is None or found.facts.meta is None:
        return ()
    with found.first.holding(0) as (file, _):  # no manifest has them
        meta = file.facts.meta
    return () if meta is None else meta.label_names or ()


def with_labels(found: OpenSet, labels: Any) -> SetIndex:
    """The index of a set with labels of the caller's: one for each row, or for each episode.
    ParamsError for another number of them."""
    index, count = found.index, found.facts.count
    episodes = index.rule.episodes if isinstance(index.rule, Windows) else None
    given = np.shape(labels)[:1]
    if episodes is None or given == (count,):
        table = label_array(labels, count)
    elif given == episodes.ends.shape:
        table = of_each_episode(label_array(labels, episodes.ends.size), episodes)
    else:
        left_out = f" ({episodes.empty} empty ones are not counted)" if episodes.empty else ""
        raise ParamsError(
            "labels has one row for each row of the dataset, or for each episode",
            path=found.facts.path,
            found=f"shape {np.shape(labels)}",
            expected=f"{count} rows, or {episodes.ends.size} episodes{left_out}",
        )
    return labelled(index, table, None)


def labelled(index: SetIndex, labels: Array, classes: tuple[str, ...] | None) -> SetIndex:
    """A set with other labels, and the names of their classes."""
    return replace(index, labels=labels, facts=replace(index.facts, classes=classes))


# -- splits ----------------------------------------------------------------------------------------


class PackedSplits(Mapping[str, Int64]):
    """Record numbers of each split by its name. ``rows``: int64 (N,), of each record the number of
    its split among ``names``, -1 for none."""

    def __init__(self, names: tuple[str, ...], rows: Int64) -> None:
        self.names = names
        self.rows = rows

    def __getitem__(self, name: str) -> Int64:
        if name not in self.names:
            raise KeyError(name)
        return np.flatnonzero(self.rows[:] == self.names.index(name))

    def __contains__(self, name: object) -> bool:
        return name in self.names

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)


def split_rows(splits: Mapping[str, slice | Int64], count: int) -> Int64:
    """Of each of ``count`` records the number of its split, -1 for none; of the last one where it
    is in several."""
    if isinstance(splits, PackedSplits):
        return splits.rows[:]
    rows = np.full(count, -1, np.int64)
    for number, records in enumerate(splits.values()):
        rows[records] = number
    return rows


def split_counts(splits: Mapping[str, slice | Int64], count: int) -> dict[str, int]:
    """Samples of each split of a set of ``count``."""
    every = range(count)
    sizes = (len(every[one] if isinstance(one, slice) else one) for one in splits.values())
    return dict(zip(splits, sizes, strict=True))


# -- what is selected ------------------------------------------------------------------------------


def resolve_subset(subset: Any, source: OpenSet, total: int | None = None) -> Subset | None:
    """``subset`` checked against the set: a range, an int64 array, or None for all.
    ``total``: the number of episodes, where it selects among them.

    ParamsError if it selects nothing or names records that do not exist.
    """
    if isinstance(subset, str):
        subset = _named(subset, source)
    if subset is None:
        return None
    what, hint = "record", None
    if total is None:
        total = source.facts.count
    else:
        what, hint = "episode", "a sample is one of each episode: subset takes their numbers"
    if isinstance(subset, slice):
        rows = range(*subset.indices(total))
        if not rows:
            found = f"{subset} of {some(total, what)}"
            raise ParamsError("subset selects nothing", found=found, hint=hint)
        return rows
    chosen: Int64 = subset
    if not chosen.size:
        raise ParamsError("subset selects nothing", found=f"none of {some(total, what)}", hint=hint)
    low, high = int(chosen.min()), int(chosen.max())
    if low < 0 or high >= total:
        raise ParamsError(
            f"subset names {'an' if hint else 'a'} {what} that does not exist",
            found=f"{low if low < 0 else high}",
            expected=f"0 to {total - 1}",
            hint=hint,
        )
    return chosen


def selected(subset: Any, at: PatchAt, source: OpenSet) -> tuple[Rule, Subset | None]:
    """The rule of a set for the samples that ``subset`` selects, ``at`` these places of volumes,
    and the rows of the set that it selects; None for all that are left by the rule."""
    rule = source.rule.placed(at)
    split = rule.split(subset) if isinstance(subset, str) else None
    if split is not None:
        return split, None
    chosen = resolve_subset(subset, source, rule.parts)
    return (rule, None) if chosen is None else rule.choose(chosen)


def resolve_rule(subset: Any, at: PatchAt, source: OpenSet) -> tuple[Rule, Subset | None]:
    """The rule of a set for the samples that ``subset`` selects, and the numbers of these; None for
    all that are left by the rule: see :func:`selected`. ParamsError if none is selected."""
    rule, rows = selected(subset, at, source)
    numbers = None if rows is None else rule.numbers(rows)
    left = subset_count(numbers, rule.samples(source.facts.count))
    rule.check(left, subset is None, source.facts.path)
    return rule, numbers


def _named(name: str, source: OpenSet) -> slice | Int64:
    # those of rows, which may be no samples
    splits = source.splits if source.rule.parts is None else {}
    if name not in splits:
        fuel = source.facts.layout.startswith("Fuel") and source.labels is not None
        also = "; labels_field=None also reads splits that have no labels" if fuel else ""
        raise ParamsError(
            f"no split {name!r} in the dataset",
            path=source.facts.path,
            expected=" or ".join(map(repr, [*splits, *source.rule.splits]))
            or "a dataset with named splits (convert --split, Fuel, robomimic)",
            hint="pass a slice, subset=slice(0, 100) (-p subset=0:100 on the command line), or an "
            f"array of record numbers{also}",
        )
    return splits[name]


def classes_of(
    source: OpenSet, rule: Rule, subset: Subset | None, needed_by: str
) -> tuple[Int64, Int64]:
    """The classes that have samples in the subset, as K sorted label numbers, and of each sample
    the number of its class among these, 0 .. K-1; ``rule``: by whose numbers the subset is.
    ParamsError if samples have no label, several, or one that is no whole number."""
    labels = source.labels
    found = "no labels" if labels is None else f"labels {labels.shape}, {labels.dtype}"
    if labels is None or labels.dtype.kind not in "bui" or math.prod(labels.shape[1:]) != 1:
        raise ParamsError(
            f"{needed_by} needs one class number for each sample",
            path=source.facts.path,
            found=found,
            expected="integer labels (N,) or (N, 1)",
        )
    subset = rule.labelled(subset, needed_by)
    chosen = labels[:] if subset is None else labels[subset_numbers(subset, len(labels))]
    numbers, classes = np.unique(np.asarray(chosen).reshape(-1), return_inverse=True)
    return numbers.astype(np.int64, copy=False), classes.astype(np.int64, copy=False)


def resolve_weights(
    weights: Any, source: OpenSet, rule: Rule, subset: Subset | None
) -> Float64 | None:
    """``weights`` of each sample of the subset, float64; None where there are none. "balanced": the
    inverse of its class's number of samples, and 0 with a warning for label -1, which is no class
    where there are others than -1 and 1. ParamsError for another number of weights."""
    if weights is None:
        return None
    if isinstance(weights, str):
        numbers, classes = classes_of(source, rule, subset, 'weights="balanced"')
        counts = np.bincount(classes)
        shares = 1.0 / counts
        if numbers[0] == -1 and set(numbers.tolist()) > {-1} and numbers.tolist() != [-1, 1]:
            shares[0] = 0
            warnings.warn(
                f'weights="balanced" never draws the {some(int(counts[0]), "sample")} of label -1, '
                "which is no class; weights= with a number for each sample also draws them",
                stacklevel=4,
            )
        return shares[classes]
    given: Float64 = weights
    total = rule.samples(source.facts.count)
    count = subset_count(subset, total)
    if given.size != count:
        whole = given.size == total
        raise ParamsError(
            "weights has another length than there are samples",
            path=source.facts.path,
            found=f"{given.size} weights",
            expected=f"{count}, one for each sample" + ("" if subset is None else " of the subset"),
            hint="pass the weights of these samples alone" if whole else None,
        )
    return given
