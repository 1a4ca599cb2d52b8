"""Which sample comes when: samplers give the order of an epoch, the schedule makes batches of it.

What ``shuffle`` means is known here alone. To add a sampler: a file with a class, and its name and
a line here. Nothing is loaded before a sampler is made, since parameters are checked without it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from .rule import Rule
    from .samplers import Sampler, Storage, Subset

#: Values of the parameter ``shuffle``.
Shuffle: TypeAlias = bool | Literal["block", "replacement", "balanced-permutation"]


def at_random(shuffle: Shuffle) -> bool:
    """Whether samples come from anywhere in the set, not from a few places at a time."""
    return shuffle in (True, "replacement", "balanced-permutation")


def takes_classes(shuffle: Shuffle) -> bool:
    """Whether this order follows the classes of the samples."""
    return shuffle == "balanced-permutation"


def draws(shuffle: Shuffle) -> bool:
    """Whether samples are drawn independently, as many as one wants."""
    return shuffle == "replacement"


def takes_weights(shuffle: Shuffle) -> bool:
    """Whether weights may go with this order: draws by weight are an order of their own."""
    return shuffle in (True, False, "replacement")


def sampler_of(
    shuffle: Shuffle,
    seed: int,
    window: int,
    storage: Storage,
    subset: Subset | None = None,
    rule: Rule | None = None,
) -> Sampler:
    """The sampler of a set, or of a ``subset`` of it. ``window``: samples to mix together;
    ``rule``: what a sample is, by whose numbers the subset is; None: a row.

    ParamsError if nothing of one of the sets of a mix is in the subset.
    """
    if storage.sets:
        return _mixed(shuffle, seed, window, storage, subset)
    if rule is not None:
        numbers = sampler_of(shuffle, seed, window, rule.storage(storage), subset)
        return rule.sampler(numbers, storage)
    from .blocks import Blocks, window_of
    from .samplers import Replacement, Sequential, Shuffled, Within, ends_inside, subset_count
    from .weighted import AliasTable, Balanced, Weighted

    count = subset_count(subset, storage.count)
    sampler: Sampler
    if storage.weights is not None:
        table = AliasTable.of(storage.weights)
        sampler = Weighted(count, seed, table, storage.epoch_samples or count)
    elif shuffle == "block":
        window = window_of(window, storage.block, storage.sample_bytes)
        ends = ends_inside(storage.ends, subset)
        sampler = Blocks(count, seed, storage.block, window, ends)
    elif shuffle == "balanced-permutation":
        assert storage.classes is not None
        sampler = Balanced.of(storage.classes, seed)
    elif shuffle == "replacement":
        sampler = Replacement(count, seed, storage.epoch_samples)
    else:
        sampler = Shuffled(count, seed) if shuffle else Sequential(count, seed)
    return sampler if subset is None else Within(subset, sampler)


def _mixed(
    shuffle: Shuffle, seed: int, window: int, storage: Storage, subset: Subset | None
) -> Sampler:
    """The sampler of the sets of a mix, each with an order and a seed of its own."""
    from ..errors import ParamsError
    from ..system.keyed_random import STREAM_SET, key_of
    from .mixed import Mixed
    from .samplers import Within, subset_count, subset_inside

    samplers, first = [], 0
    for i, (one, ratio) in enumerate(zip(storage.sets, storage.ratios, strict=True)):
        end = first + one.count
        inside = subset_inside(subset, first, end)
        if subset_count(inside, one.count) == 0:
            raise ParamsError(
                "subset selects nothing of a dataset of the mix",
                path=one.path,
                expected=f"some of the mix's records {first} to {end - 1}",
            )
        key = key_of(seed, STREAM_SET, i)
        own = sampler_of(shuffle, key, int(window * ratio) or 1, one, inside)
        samplers.append(Within(range(first, end), own))
        first = end
    return Mixed.of(tuple(samplers), seed, storage, subset)
