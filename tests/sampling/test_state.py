"""Saved states: their keys and values stay what they are, so that older ones resume."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from asyncreader import ParamsError
from asyncreader.sampling import sampler_of
from asyncreader.sampling.samplers import Storage
from asyncreader.sampling.schedule import Cursor, Schedule
from asyncreader.sampling.state import cursor_in, state_at

SOME = range(3, 15)
NONE = {"window": None, "block": None, "files": None}
BLOCKS = {"shuffle": "block", "window": 4, "block": 2}
#: Shuffle, whether of several files, subset; and what a state says of them.
PINNED: dict[str, tuple[Any, bool, Any, dict[str, Any]]] = {
    "sequential": (False, True, None, {"shuffle": False, **NONE}),
    "shuffled": (True, True, None, {"shuffle": True, **NONE}),
    "replacement": ("replacement", True, None, {"shuffle": "replacement", **NONE}),
    "block": ("block", False, None, {**BLOCKS, "files": None}),
    "block, files": ("block", True, None, {**BLOCKS, "files": "ab1700aaa6c278c7"}),
    "block, some": ("block", True, SOME, {**BLOCKS, "files": "0ee7e6eab725dee3"}),
    "slice": (True, False, SOME, {"shuffle": True, **NONE}),
    "array": (True, False, np.array([5, 7, 7, 16, 3, 2, 1, 0]), {"shuffle": True, **NONE}),
}
#: Digests that the fingerprint of a subset ends with.
SUBSETS = {"array": "cb994b0b8a82559c"} | dict.fromkeys(
    ("block, some", "slice"), "da86724548917360"
)


def schedule(name: str) -> Schedule:
    shuffle, several, subset, _ = PINNED[name]
    ends = np.array([3, 8, 10, 17], np.int64) if several else None
    sampler = sampler_of(shuffle, 9, 5, Storage("set", 17, block=2, ends=ends), subset)
    return Schedule(sampler, 3, rank=1, world_size=2, last_batch="pad")


def state(name: str) -> dict[str, Any]:
    """The state as it has always been, after the first batch of epoch 1."""
    subset = f":{SUBSETS[name]}" if name in SUBSETS else ""
    return {
        "epoch": 1,
        "samples": 6,
        "steps": 1,
        "global_batch": 6,
        "seed": 9,
        **PINNED[name][-1],
        "last_batch": "pad",
        "order_version": 2,
        "fingerprint": f"17:abc{subset}",
    }


@pytest.mark.parametrize("name", PINNED)
def test_states_are_pinned(name: str) -> None:
    """The state of each kind of order is the JSON text that it has always been."""
    found = state_at(schedule(name), Cursor(1, 6, 1), "17:abc")
    assert json.dumps(found) == json.dumps(state(name))


@pytest.mark.parametrize("name", PINNED)
def test_states_are_read(name: str) -> None:
    """A state that was saved as JSON gives its cursor, and is refused by every other order."""
    saved = json.loads(json.dumps(state(name)))
    assert cursor_in(schedule(name), saved, "17:abc") == Cursor(1, 6, 1)
    for other in PINNED.keys() - {name}:
        with pytest.raises(ParamsError, match="other training"):
            cursor_in(schedule(other), saved, "17:abc")


def test_older_states_have_no_files() -> None:
    """A state saved before states named files resumes in one file, not where files decide."""
    saved = state("block")
    del saved["files"]
    assert cursor_in(schedule("block"), saved, "17:abc") == Cursor(1, 6, 1)
    with pytest.raises(ParamsError, match="files differs"):
        cursor_in(schedule("block, files"), saved, "17:abc")
