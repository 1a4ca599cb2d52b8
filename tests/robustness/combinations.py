"""Random combinations of what a reader can do, compared with plain numpy.

    python tests/robustness/combinations.py [--trials 3000] [--seed 0]

A trial draws a set (fields of several kinds, in a file, several files, arrays, a mix, or packed),
what a sample of it is (a row, a window, an episode, a patch), a part of it, and an order, and runs
the tests of tests/support/sets/drawn_sets.py on it. What the pages say does not go together must be
a ParamsError or a FormatError. A failure shows its seed: ``--trials 1 --seed N`` repeats it. Ctrl-C
ends the trials. The exit code is 1 if anything differed.
"""

import argparse
import contextlib
import inspect
import sys
import tempfile
import traceback
import warnings
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
    sys.path.insert(0, str(Path(__file__).parents[1] / "support" / "sets"))

import numpy as np
from drawn_sets import DrawnContract, DrawnSet, draw_set
from reader_contract import Served, tupled

from asyncreader import AsyncReader, FormatError, ParamsError
from asyncreader.adapters.torch import TorchReader


class Combination(DrawnContract):
    """The tests of a drawn set, and one of what a framework gets."""

    def test_tensors(self, served: Served) -> None:
        """A TorchReader serves the batches of a reader."""
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


def tried(drawn: DrawnSet) -> tuple[str, str | None]:
    """The outcome of a trial in a word, and what differed."""
    try:
        AsyncReader(drawn.params, batch_size=1).close()
    except (ParamsError, FormatError) as exc:
        return "refused", None if drawn.refused else f"refused: {exc}"
    if drawn.refused:
        return "served", f"served: {drawn.refused}"
    contract, given = Combination(), {"drawn": drawn, "served": drawn.served()}
    tests = {name for name in dir(contract) if name.startswith("test_")} - {"test_processes"}
    for test in (getattr(contract, name) for name in sorted(tests)):
        try:
            test(**{name: given[name] for name in inspect.signature(test).parameters})
        except Exception:  # nothing else may come out of a reader, either
            return "differed", traceback.format_exc(limit=-3)
    return "held", None


def main(arguments: Sequence[str] | None = None) -> int:
    """Run trials; print what differed, and the counts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=3000)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args(arguments)
    np.set_printoptions(threshold=6, edgeitems=2, linewidth=1000)
    outcomes, features, wrong = Counter[str](), Counter[str](), 0
    with contextlib.suppress(KeyboardInterrupt):  # Ctrl-C ends the trials
        for seed in range(asked.seed, asked.seed + asked.trials):
            with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
                warnings.simplefilter("error")
                warnings.simplefilter("ignore", UserWarning)
                one = draw_set(Path(folder), seed, 0.1)
                outcome, problem = tried(one)
            outcomes["differed" if problem else outcome] += 1
            features.update(one.features)
            if problem:
                wrong += 1
                shown = {k: v for k, v in one.params.items() if k != "data"}
                print(f"{sorted(one.features)}\n    {shown}\n{problem.rstrip()}")
                print(f"    python {sys.argv[0]} --trials 1 --seed {seed}", flush=True)
    for name, count in (*outcomes.most_common(), *sorted(features.items())):
        print(f"{count:8} {name}")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
