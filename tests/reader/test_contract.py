"""Combinations of features do what every reader must do: some that are drawn, with ``--long`` many
more, and each way to store and to cut samples."""

import inspect
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from drawn_sets import DrawnContract, DrawnSet, draw_set
from reader_contract import Served, tupled

from asyncreader import AsyncReader, FormatError, ParamsError

#: What holds episodes, and how it says where they are.
EPISODES = [
    *(("file", kind) for kind in ("groups", "ends", "ids", "flags", "axis", "whole")),
    *(("data", kind) for kind in ("ends", "ids", "flags", "axis", "whole")),
    *(("files", kind) for kind in ("groups", "files", "ends", "whole")),
]
#: Windows at each row of all episodes, and what becomes of rows before and after an episode.
PLAIN: dict[str, Any] = {
    "sample": "windows", "one window": False, "every": 1, "subset": False,
    "episodes_subset": False, "outside": False,
}  # fmt: skip
EDGES = [("drop", "drop"), ("repeat", "zero"), ("zero", "repeat"), ("zero", "zero")]
#: What drawn sets have for certain, by family; all else is drawn.
FAMILIES: list[list[dict[str, Any]]] = [
    [
        {**PLAIN, "container": container, "episodes": kind, "edges": EDGES[number % 4]}
        for number, (container, kind) in enumerate(EPISODES)
    ],
    [
        {"sample": "windows", "container": "file", "episodes": kind, "kind": "Image",
         "stored": stored, "one window": False, "move": move}
        for stored, move in (
            ("cut", False), ("contiguous", True), ("chunked", False), ("gzip", True),
        )
        for kind in ("groups", "ends", "axis")
    ],
    [
        {**PLAIN, "container": container, "episodes": kind, "fields": 2, "kind of b": "Numbers",
         "extra": True, "more": more, "edges": edges, "one window": one}
        for container, kind, more in (
            ("files", "files", 1), ("file", "groups", 1), ("file", "groups", None),
            ("files", "files", None), ("file", "ends", None),
        )
        for edges, one in zip(EDGES, (True, False), strict=False)
    ],
    *(
        [
            {"sample": "windows", "container": container, "episodes": episodes, "kind": kind}
            for container, episodes in (("file", "groups"), ("file", "ends"), ("files", "files"))
        ]
        for kind in ("Table", "Encoded")
    ),
    [
        {**PLAIN, "container": "file", "episodes": "ends", "kind": "Ragged", "labels": labels,
         "edges": ("zero", "zero")}
        for labels in ("several", "episode")
    ],
    [
        {**PLAIN, "container": "file", "episodes": "groups", "subset": "split", "edges": EDGES[1],
         "shuffle": False}
        for _ in range(2)
    ],
    [
        {"sample": "whole", "container": container, "episodes": kind, "fields": 2}
        for container, kind in EPISODES
    ],
    [
        {"sample": "rows", "container": container, "episodes": None, "kind": "Ragged",
         "how": how, "overlong": {"overlong": overlong}}
        for container, how, overlong in (
            ("files", "vlen", "random"), ("file", "_offsets", "cut"), ("file", "vlen", "cut"),
            ("file", "_lengths", "random"), ("files", "_offsets", "random"),
            ("data", "_offsets", "cut"), ("data", "_lengths", "random"),
        )
    ],
    [
        {"sample": "rows", "container": container, "kind": "Ragged"}
        for container in ("shards", "h5", "lmdb")
    ],
    *(
        [
            {"sample": "patch", "container": container, "single volume": single, "patch at": at}
            for container, single in sets
        ]
        for at, sets in (
            ("random", (("files", 1), ("file", 0), ("data", 0), ("h5", 0))),
            ("grid", (("file", 1), ("files", 0), ("data", 1), ("shards", 0))),
            ("center", (("data", 1), ("file", 0), ("files", 1), ("h5", 0))),
        )
    ),
    [
        {"sample": "whole", "container": "file", "episodes": episodes, "kind": kind, "move": True}
        for episodes, kind in (("ends", "Image"), ("groups", "Encoded"))
    ],
    [
        {"sample": "patch", "container": container, "single volume": single, "patch at": "grid",
         "stored": "cut", "shuffle": "block"}
        for container, single in (("file", 0), ("file", 1), ("files", 0), ("files", 1))
    ],
    [
        {"sample": "windows", "container": "file", "episodes": "groups", "labels": labels}
        for labels in ("several", "attribute")
    ],
]  # fmt: skip
#: Their cases, each with a seed of its own; of a family the first one is for the fast tests.
CASES = [
    pytest.param((seed, case), marks=[pytest.mark.slow] * (case is not cases[0]))
    for seed, (cases, case) in enumerate(((some, one) for some in FAMILIES for one in some), 24)
]


def told(case: tuple[int, dict[str, Any]]) -> str:
    """A case by what it has for certain."""
    own = (value for name, value in case[1].items() if name == "sample" or name not in PLAIN)
    return " ".join(map(str, own)) or str(case[0])


@pytest.fixture(scope="class")
def drawn(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> DrawnSet:
    seed, forced = request.param
    return draw_set(tmp_path_factory.mktemp("set"), seed, **forced)


@pytest.fixture(scope="class")
def served(drawn: DrawnSet) -> Served:
    return drawn.served()


@pytest.mark.some(3)
@pytest.mark.parametrize(
    "drawn", [(seed, {}) for seed in range(24)], indirect=True, ids=told, scope="class"
)
class TestCombinations(DrawnContract):
    """All that holds of a reader, for each combination."""


@pytest.mark.parametrize("drawn", CASES, indirect=True, ids=told, scope="class")
class TestEachWay(DrawnContract):
    """The same for each way to store and to cut samples; processes take the ones above."""

    test_processes = None  # type: ignore[assignment]


class Combination(DrawnContract):
    """The tests of a drawn set, and one of what a framework gets."""

    def test_tensors(self, served: Served) -> None:
        """A TorchReader serves the batches of a reader."""
        from asyncreader.adapters.torch import TorchReader

        size = served.sizes[0]
        with (
            AsyncReader(served.params, batch_size=size) as reader,
            TorchReader(served.params, batch_size=size, with_mask=True) as loader,
        ):
            for batch, (data, labels, mask) in zip(reader, loader, strict=True):
                assert mask.tolist() == batch.mask.tolist()
                for one, other in zip(tupled(data), tupled(batch.data), strict=True):
                    assert np.array_equal(one.numpy(), other)
                for one, other in zip(
                    tupled(labels) or (), tupled(batch.labels) or (), strict=True
                ):
                    assert np.array_equal(one[mask].numpy().ravel(), other[batch.mask].ravel())


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_many_combinations(tmp_path: Path, subtests: pytest.Subtests) -> None:
    """All that holds of a reader, and what a framework gets, for 3,000 more (about half an hour);
    what the pages say does not go together is refused. A failure names its seed."""
    pytest.importorskip("torch", reason="tensors are torch's: pip install '.[torch]'")
    methods = inspect.getmembers(Combination(), inspect.ismethod)
    tests = [test for name, test in methods if name.startswith("test_")]
    tests = [test for test in tests if test.__name__ != "test_processes"]
    for seed in range(24, 3024):
        (tmp_path / "set").mkdir()
        drawn = draw_set(tmp_path / "set", seed, 0.1)
        with subtests.test(seed=seed):
            if drawn.refused:
                with pytest.raises((ParamsError, FormatError)):
                    AsyncReader(drawn.params, batch_size=1).close()
            given = {"drawn": drawn, "served": drawn.served()}
            for test in tests if drawn.refused is None else ():
                test(**{name: given[name] for name in inspect.signature(test).parameters})
        shutil.rmtree(tmp_path / "set")
