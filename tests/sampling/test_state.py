"""Saved states: their keys and values stay what they are, so that older ones resume."""

import json
import re
from typing import Any

import numpy as np
import pytest

from asyncreader import ParamsError
from asyncreader.sampling import sampler_of
from asyncreader.sampling.samplers import Sampler, Storage
from asyncreader.sampling.schedule import Cursor, Schedule
from asyncreader.sampling.state import cursor_in, state_at

SOME = range(3, 15)
NONE = {"window": None, "block": None, "files": None}
BLOCKS = {"shuffle": "block", "window": 4, "block": 2}
BALANCED, WEIGHTS = {"shuffle": "balanced-permutation", **NONE}, {"shuffle": "weights", **NONE}
MIX = {"shuffle": True, **NONE, "mix": "7:3 of 6:4 samples", "epoch_samples": 12}
ENDS = np.array([3, 8, 10, 17], np.int64)
CLASSES, WEIGHED = np.array([0, 0, 1, 2, 0, 2, 0, 0]), np.array([1, 0, 2, 3, 0.5, 8])


def order(shuffle: Any, subset: Any = None, count: int = 17, **storage: Any) -> Sampler:
    return sampler_of(shuffle, 9, 5, Storage("set", count, block=2, **storage), subset)


def mix(first: int, shuffle: Any = True, *ratios: float, until_first: bool = False) -> Sampler:
    sets = Storage("a", first, block=2), Storage("b", 4, block=2)
    ratios = ratios or (0.7, 0.3)
    return order(shuffle, count=first + 4, sets=sets, ratios=ratios, until_first=until_first)


#: Orders, and what a state says of them.
PINNED: dict[str, tuple[Sampler, dict[str, Any]]] = {
    "sequential": (order(False, ends=ENDS), {"shuffle": False, **NONE}),
    "shuffled": (order(True, ends=ENDS), {"shuffle": True, **NONE}),
    "replacement": (order("replacement", ends=ENDS), {"shuffle": "replacement", **NONE}),
    "replacement, fewer": (
        order("replacement", epoch_samples=8),
        {"shuffle": "replacement", **NONE, "epoch_samples": 8},
    ),
    "block": (order("block"), {**BLOCKS, "files": None}),
    "block, files": (order("block", ends=ENDS), {**BLOCKS, "files": "ab1700aaa6c278c7"}),
    "block, some": (order("block", SOME, ends=ENDS), {**BLOCKS, "files": "0ee7e6eab725dee3"}),
    "slice": (order(True, SOME), {"shuffle": True, **NONE}),
    "array": (
        order(True, np.array([5, 7, 7, 16, 3, 2, 1, 0])),
        {"shuffle": True, **NONE},
    ),
    "classes": (
        order("balanced-permutation", count=8, classes=CLASSES),
        {**BALANCED, "classes": "92a56956e18f461d"},
    ),
    "classes, others": (
        order("balanced-permutation", count=8, classes=CLASSES[::-1]),
        {**BALANCED, "classes": "8720f2a5385b5e05"},
    ),
    "weights": (
        order(True, count=6, weights=WEIGHED, epoch_samples=12),
        {**WEIGHTS, "epoch_samples": 12, "weights": "a4caedc8beb18938"},
    ),
    "weights, others": (
        order(True, count=6, weights=WEIGHED[::-1], epoch_samples=12),
        {**WEIGHTS, "epoch_samples": 12, "weights": "218e1fcc9f023e6c"},
    ),
    "weights, more": (
        order(True, count=6, weights=WEIGHED, epoch_samples=13),
        {**WEIGHTS, "epoch_samples": 13, "weights": "a4caedc8beb18938"},
    ),
    "mix": (mix(6), MIX),
    "mix, larger": (mix(8), {**MIX, "mix": "7:3 of 8:4 samples"}),
    "mix, even": (
        mix(6, True, 0.5, 0.5),
        {**MIX, "mix": "1:1 of 6:4 samples", "epoch_samples": 11},
    ),
    "mix, in order": (mix(6, False), {**MIX, "shuffle": False}),
    "mix, first": (mix(6, until_first=True), {**MIX, "epoch_samples": 8}),
    "mix, blocks": (mix(6, "block"), {**MIX, "shuffle": "block", "files": "ebd54417210512fa"}),
}
#: Digests that the fingerprint of a subset ends with.
SUBSETS = {"array": "cb994b0b8a82559c"} | dict.fromkeys(
    ("block, some", "slice"), "da86724548917360"
)


def schedule(name: str) -> Schedule:
    return Schedule(PINNED[name][0], 3, rank=1, world_size=2, last_batch="pad")


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
    """A state that was saved as JSON gives its cursor, and is refused by every other order, which
    names something that differs."""
    saved = json.loads(json.dumps(state(name)))
    assert cursor_in(schedule(name), saved, "17:abc") == Cursor(1, 6, 1)
    for other in PINNED.keys() - {name}:
        with pytest.raises(ParamsError, match="other training") as caught:
            cursor_in(schedule(other), saved, "17:abc")
        (what,) = re.findall(r"training: (\w+) differs", str(caught.value))
        assert saved.get(what) != state(other).get(what)


def test_states_of_as_many_draws() -> None:
    """Weights that are the same relative to each other are the same draws: their states resume."""
    twice = order(True, count=6, weights=2 * WEIGHED, epoch_samples=12)
    given = Schedule(twice, 3, rank=1, world_size=2, last_batch="pad")
    assert cursor_in(given, state("weights"), "17:abc") == Cursor(1, 6, 1)


def test_older_states_have_no_files() -> None:
    """A state saved before states named files resumes in one file, not where files decide."""
    saved = state("block")
    del saved["files"]
    assert cursor_in(schedule("block"), saved, "17:abc") == Cursor(1, 6, 1)
    with pytest.raises(ParamsError, match="files differs"):
        cursor_in(schedule("block, files"), saved, "17:abc")
