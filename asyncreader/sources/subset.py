"""Parts of a set: its splits, the records that a ``subset`` selects, their classes, and how often
``weights`` draws each."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from ..errors import ParamsError
from ..sampling.rule import PatchAt, Rule
from ..sampling.samplers import Subset, subset_count, subset_numbers
from ..system.array_types import Float64, Int64
from ..system.text import some
from .fields import OpenSet


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
