"""The records that a ``subset`` selects, their classes, and how often ``weights`` draws each."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from ..array_types import Float64, Int64
from ..errors import ParamsError
from ..sampling.episodes import Windows
from ..sampling.patches import PatchAt, Patches
from ..sampling.within import subset_count
from ..text import some
from .fields import OpenSet


def resolve_subset(subset: Any, source: OpenSet, total: int | None = None) -> slice | Int64 | None:
    """``subset`` checked against the set: a slice of integers, an int64 array, or None for all.
    ``total``: what it selects from, where that is not the set's records.

    ParamsError if it selects nothing or names records that do not exist.
    """
    if isinstance(subset, str):
        subset = _named(subset, source)
    if subset is None:
        return None
    total = source.facts.count if total is None else total
    if isinstance(subset, slice):
        start, stop, step = subset.indices(total)
        if not range(start, stop, step):
            raise ParamsError("subset selects nothing", found=f"{subset} of {total} samples")
        # below 0 a stop of range() is not one of slice()
        return slice(start, None if stop < 0 else stop, step)
    chosen: Int64 = subset
    if not chosen.size:
        raise ParamsError("subset selects nothing", found=f"no record of {total} samples")
    low, high = int(chosen.min()), int(chosen.max())
    if low < 0 or high >= total:
        raise ParamsError(
            "subset names a record that does not exist",
            found=f"{low if low < 0 else high}",
            expected=f"0 to {total - 1}",
        )
    return chosen


def resolve_windows(subset: Any, source: OpenSet) -> tuple[Windows | None, slice | Int64 | None]:
    """The rule of a set of episodes for the samples that ``subset`` selects, and the numbers of
    these among its anchors; of another set None and the records. ParamsError if it selects none."""
    windows = source.windows
    if windows is None:
        return None, resolve_subset(subset, source)
    numbers, episodes = None, windows.episodes
    if isinstance(subset, str) and subset in episodes.splits:
        windows = windows.choose(episodes.splits[subset])
    elif windows.by_episode:
        some_of_all = resolve_subset(subset, source, episodes.ends.size)
        if some_of_all is not None:
            windows = windows.choose(_numbers(some_of_all, episodes.ends.size))
    else:
        rows = resolve_subset(subset, source)
        numbers = None if rows is None else windows.numbers(rows)
    count = windows.population
    if count == 0 or (numbers is not None and subset_count(numbers, count) == 0):
        longest = int(windows.episodes.lengths.max())
        raise ParamsError(
            "no episode is long enough for the window"
            if subset is None and windows.chosen is None
            else "subset selects no row at which a window begins",
            path=source.facts.path,
            found=f"episodes of at most {some(longest, 'row')}",
            hint='window_edge="repeat" or "zero" also serves windows that reach beyond the ends',
        )
    return windows, numbers


def resolve_rule(
    subset: Any, at: PatchAt, source: OpenSet
) -> tuple[Windows | Patches | None, slice | Int64 | None]:
    """The rule of a set whose samples are windows or patches for those that ``subset`` selects, and
    their numbers: see :func:`resolve_windows`. Of volumes the rule has those selected, and patches
    are ``at`` these places."""
    if source.patches is None:
        return resolve_windows(subset, source)
    chosen, patches = resolve_subset(subset, source), replace(source.patches, at=at)
    if chosen is not None:
        patches = replace(patches, chosen=_numbers(chosen, source.facts.count))
    return patches, None


def _named(name: str, source: OpenSet) -> slice | Int64:
    splits = source.splits
    of_episodes = () if source.windows is None else source.windows.episodes.splits
    if name not in splits:
        also = "; labels_field=None also reads splits that have no labels" if splits else ""
        raise ParamsError(
            f"no split {name!r} in the dataset",
            path=source.facts.path,
            expected=" or ".join(map(repr, [*splits, *of_episodes]))
            or "a dataset with named splits (convert --split, Fuel, robomimic)",
            hint="pass a slice, subset=slice(0, 100) (-p subset=0:100 on the command line), or an "
            f"array of record numbers{also}",
        )
    return splits[name]


def split_counts(source: OpenSet) -> dict[str, int]:
    """Samples of each split of a set."""
    count = source.facts.count
    return {name: subset_count(rows, count) for name, rows in source.splits.items()}


def classes_of(
    source: OpenSet,
    subset: slice | Int64 | None,
    needed_by: str,
    patches: Patches | None = None,
) -> Int64:
    """The class of each sample of the subset, int64, as numbers 0 .. K-1 of the K classes that have
    samples there. ParamsError if samples have no label, several, or one that is no whole number."""
    labels = source.labels
    found = "no labels" if labels is None else f"labels {labels.shape}, {labels.dtype}"
    if labels is None or labels.dtype.kind not in "bui" or math.prod(labels.shape[1:]) != 1:
        raise ParamsError(
            f"{needed_by} needs one class number for each sample",
            path=source.facts.path,
            found=found,
            expected="integer labels (N,) or (N, 1)",
        )
    windows = source.windows
    if windows is not None and windows.every == 0:
        raise ParamsError(
            f'{needed_by} needs samples with a label; window_every="episode" draws them'
        )
    if windows is not None:  # a subset has the numbers of anchors
        subset = windows.anchors.rows(_numbers(subset, windows.population))
    if patches is not None:
        subset = patches.records(_numbers(None, patches.population))
    chosen = labels[:] if subset is None else labels[subset]
    _, classes = np.unique(np.asarray(chosen).reshape(-1), return_inverse=True)
    return classes.astype(np.int64, copy=False)


def _numbers(subset: slice | Int64 | None, count: int) -> Int64:
    """The numbers that a subset selects of 0 .. count-1."""
    every = np.arange(count, dtype=np.int64)
    return every if subset is None else every[subset]


def resolve_weights(
    weights: Any,
    source: OpenSet,
    subset: slice | Int64 | None,
    patches: Patches | None = None,
) -> Float64 | None:
    """``weights`` of each sample of the subset, float64; None where there are none. "balanced": the
    inverse of its class's number of samples. ParamsError for another number of weights."""
    if weights is None:
        return None
    if isinstance(weights, str):
        classes = classes_of(source, subset, 'weights="balanced"', patches)
        return (1.0 / np.bincount(classes))[classes]
    given: Float64 = weights
    rule = source.windows or patches
    total = source.facts.count if rule is None else rule.population
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
