"""Saved states: where training stands as plain JSON values, and whether one is of this training."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, TypeAlias

import numpy as np

from ..errors import ParamsError
from .samplers import subset_count, subset_digest, subset_inside
from .schedule import Cursor, Schedule

#: Where training stands: numbers and names, as JSON holds them.
State: TypeAlias = dict[str, str | int | None]

#: Part of a saved state: another version means another order, and the state is refused.
ORDER_VERSION: Final = 2

#: What to do where a state does not fit, by what of it differs.
_RESUME: Final = {
    "fingerprint": "resume on the same samples in the same order, in one file or in shards; some "
    "of the shards, another subset or other fields are another dataset",
    "weights": "the order follows from the weights: resume with the same ones",
    "classes": 'with shuffle="balanced-permutation" the order follows the labels: resume with the '
    "same ones",
    "episodes": "resume with the same episodes of the same dataset",
    "rows": "resume with the same window, window_every, window_edge and window_outside",
    "lengths": "resume with the same max_length and overlong",
    "patch": "resume with the same patch, patch_at, patch_axes, patch_step and sample_axis, on the "
    "same volumes",
    "files": 'with shuffle="block" the order follows how samples are cut into files: resume on '
    "files that hold as many samples each",
}

#: What the states of some samplers have, and the others' have not.
_OF_SOME: Final = (
    *("mix", "weights", "classes", "epoch_samples", "episodes", "rows", "lengths", "patch"),
)


def state_at(schedule: Schedule, cursor: Cursor, fingerprint: str) -> State:
    """The state of training that goes on at ``cursor``; ``fingerprint``: that of the data set."""
    return {
        "epoch": cursor.epoch,
        "samples": cursor.position,
        "steps": cursor.step,
        "global_batch": schedule.global_batch,
        **_identity(schedule, fingerprint),
    }


def cursor_of(state: Mapping[str, Any]) -> Cursor:
    """The cursor of a state; its numbers are as they were given."""
    return Cursor(state["epoch"], state["samples"], state["steps"])


def cursor_in(
    schedule: Schedule,
    state: object,
    fingerprint: str,
    earlier: Mapping[str, int] = MappingProxyType({}),
) -> Cursor:
    """The cursor of ``state``; ParamsError if it is no state, or one of other training.

    The order and the data set must match, but not world_size x batch_size. ``earlier``: the
    fingerprints of the set before shards were added to it, and its samples then.
    """
    if not isinstance(state, Mapping):
        raise ParamsError("not a state", found=type(state).__name__, expected="a dict")
    identity = _identity(schedule, fingerprint)
    missing = [
        name
        for name in ("epoch", "samples", "steps", "global_batch", *identity)
        if name not in state and name not in ("files", *_OF_SOME)  # not in all states
    ]
    if missing:
        raise ParamsError("the state lacks fields", found=", ".join(missing))
    not_compared = _of_before(schedule, state, earlier)
    # what only another order has is None here
    for name, mine in (identity | {n: identity.get(n) for n in _OF_SOME}).items():
        if state.get(name) != mine and name not in not_compared:
            raise ParamsError(
                f"the state was saved by other training: {name} differs",
                found=repr(state.get(name))[:200],
                expected=repr(mine),
                hint=_RESUME.get(name, "resume with the same parameters on the same dataset"),
            )
    cursor = cursor_of(state)
    schedule.check(cursor, "state")
    return cursor


def _of_before(
    schedule: Schedule, state: Mapping[str, Any], earlier: Mapping[str, int]
) -> tuple[str, ...]:
    """What a state of the set before shards were added need not match: nothing, unless it is one.
    ParamsError where the order of then is not the one of now."""
    found = str(state["fingerprint"])
    before = next((one for one in earlier if found == one or found.startswith(f"{one}:")), None)
    if before is None:
        return ()
    count, subset, chosen = earlier[before], schedule.sampler.subset, found[len(before) + 1 :]
    # the part of the subset that was there
    then = subset_inside(subset, 0, count)
    if subset is not None and then is not None:
        same = subset_count(then, count) == schedule.sampler.population
        every = subset_digest(range(count))
        if same and (chosen or every) == subset_digest(then):
            return ("fingerprint",)
    if chosen != ("" if then is None else subset_digest(then)):
        return ()
    if state["samples"] == 0:
        follow = ("fingerprint", "files", "weights", "classes")
        # as many draws as there were samples
        usual = state.get("epoch_samples") == subset_count(then, count)
        return (*follow, "epoch_samples") if usual else follow
    before_new = subset is None or then is None or np.array_equal(subset[: len(then)], then)
    if schedule.sampler.kind is False and before_new:
        return ("fingerprint",)
    raise ParamsError(
        "the dataset has grown since the state was saved, and its samples are in another order now",
        found=f"a state of {count:,} samples, {state['samples']} into its epoch",
        expected="one at the start of an epoch, or of shuffle=False",
        hint=f"finish the epoch with the samples of before: subset=slice(0, {count})"
        if subset is None
        else f"finish the epoch with those records of the subset that are below {count}",
    )


def _identity(schedule: Schedule, fingerprint: str) -> State:
    """What a state must match. Every state names window, block and files; a sampler that has none
    of them leaves them None."""
    sampler: dict[str, str | int | None] = {
        "seed": schedule.sampler.seed,
        **dict.fromkeys(("shuffle", "window", "block", "files")),
        **schedule.sampler.identity(),
    }
    subset = sampler.pop("subset", None)  # a subset of a set is another set
    if schedule.lengths is not None:
        sampler["lengths"] = schedule.lengths
    return {
        **sampler,
        "last_batch": schedule.last_batch,
        "order_version": ORDER_VERSION,
        "fingerprint": fingerprint if subset is None else f"{fingerprint}:{subset}",
    }
