"""Saved states: where training stands as plain JSON values, and whether one is of this training."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypeAlias

from ..errors import ParamsError
from .schedule import Cursor, Schedule

#: Where training stands: numbers and names, as JSON holds them.
State: TypeAlias = dict[str, str | int | None]

#: Part of a saved state: another version means another order, and the state is refused.
ORDER_VERSION: Final = 2

#: What to do where a state does not fit, by what of it differs.
_RESUME: Final = {
    "fingerprint": "resume on the same samples in the same order, in one file or in shards; some "
    "of the shards, another subset or other fields are another data set",
    "weights": "the order follows from the weights: resume with the same ones",
    "classes": 'with shuffle="balanced-permutation" the order follows the labels: resume with the '
    "same ones",
    "episodes": "resume with the same episodes of the same set",
    "rows": "resume with the same window, window_every, window_edge and window_outside",
    "lengths": "resume with the same max_length and overlong",
    "files": 'with shuffle="block" the order follows how samples are cut into files: resume on '
    "files that hold as many samples each",
}

#: What the states of some samplers have, and the others' have not.
_OF_SOME: Final = (*("mix", "weights", "classes", "epoch_samples", "episodes", "rows", "lengths"),)


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


def cursor_in(schedule: Schedule, state: object, fingerprint: str) -> Cursor:
    """The cursor of ``state``; ParamsError if it is no state, or one of other training.

    The order and the data set must match, but not world_size x batch_size.
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
    # what only another order has is None here
    for name, mine in (identity | {n: identity.get(n) for n in _OF_SOME}).items():
        if state.get(name) != mine:
            raise ParamsError(
                f"the state is of other training: {name} differs",
                found=repr(state.get(name))[:200],
                expected=repr(mine),
                hint=_RESUME.get(name, "resume with the same parameters on the same data set"),
            )
    cursor = cursor_of(state)
    schedule.check(cursor, "state")
    return cursor


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
