"""Runs the fault cases and writes their figures: ``python tests/faults/run.py --long``.

Without ``--long`` the short form, which pytest runs too. ``--json FILE`` writes them to a file, for
publish.py; ``--only flips,kill`` picks cases, ``--list`` names them. The exit code is 1 when a
promise was broken.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from datetime import date
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
if str(HERE.parent) not in sys.path:  # run as a file: faults.* by the same name as in pytest
    sys.path.insert(0, str(HERE.parent))

from faults.case import Case, Figures  # isort: skip  # noqa: E402 - it makes observed known
from observed import take_ctrl_c  # noqa: E402

SEED = 20261121


def cases() -> list[Case]:
    """Every registered case, by file name."""
    found: list[Case] = []
    for path in sorted(HERE.rglob("case_*.py"), key=lambda path: path.name):
        folders = path.parent.relative_to(HERE.parent).parts
        found += importlib.import_module(".".join([*folders, path.stem])).CASES
    names = [case.name for case in found]
    assert len(set(names)) == len(names), f"a name twice: {names}"
    return found


def figures(case: Case, rounds: int, seed: int, scratch: Path) -> Iterator[Figures]:
    """The figures of one case, with the time that each took."""
    began = time.perf_counter()
    for line in case.run(rounds, seed, scratch):
        now = time.perf_counter()
        yield replace(line, seconds=line.seconds or round(now - began, 2))
        began = now


def machine() -> dict[str, str]:
    """Versions that the outcome may depend on."""
    import h5py
    import lmdb
    import numpy as np

    import asyncreader

    return {
        "asyncreader": asyncreader.__version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cores": str(len(os.sched_getaffinity(0))),
        "h5py": f"{h5py.__version__} (HDF5 {h5py.version.hdf5_version})",
        "lmdb": f"{lmdb.__version__} (LMDB {'.'.join(map(str, lmdb.version()))})",
        "numpy": np.__version__,
    }


def outcomes(counts: dict[str, int]) -> str:
    """The counts in a table's cell, most frequent first; zeros only where nothing else is."""
    some = {name: n for name, n in counts.items() if n} or counts
    return ", ".join(f"{n:,} {name}" for name, n in sorted(some.items(), key=lambda x: -x[1]))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what was asked for; 0 when every promise was kept."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--long", action="store_true", help="the rounds that are published")
    parser.add_argument("--only", default="", help="names of cases, joined by commas")
    parser.add_argument("--list", action="store_true", help="name the cases and stop")
    parser.add_argument("--rounds", type=int, help="another number of rounds for every case")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--json", type=Path, help="write all figures there")
    parser.add_argument("--scratch", type=Path, help="a folder to work in (default: a temporary)")
    asked = parser.parse_args(arguments)

    take_ctrl_c()
    chosen = cases()
    if asked.list:
        for case in chosen:
            print(f"{case.name:12} {case.row}: {case.promise} ({case.short} / {case.long})")
        return 0
    if asked.only:
        wanted = asked.only.split(",")
        unknown = set(wanted) - {case.name for case in chosen}
        if unknown:
            parser.error(f"no such case: {', '.join(sorted(unknown))} (--list names them)")
        chosen = [case for case in chosen if case.name in wanted]

    results: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(dir=asked.scratch, prefix="faults-") as scratch:
        for case in chosen:
            rounds = asked.rounds or (case.long if asked.long else case.short)
            lines = []
            folder = Path(scratch) / case.name
            folder.mkdir()
            for line in figures(case, rounds, asked.seed, folder):
                lines.append(asdict(line))
                print(
                    f"{case.name:12} {line.what:34} {line.trials:7,} trials {line.seconds:7.1f} s  "
                    f"{'BROKEN ' + str(len(line.broken)) if line.broken else 'ok'}  "
                    f"{outcomes(dict(line.counts))} {line.note}",
                    flush=True,
                )
                for promise in line.broken[:20]:
                    print(f"    {promise}", flush=True)
            results.append(
                {"name": case.name, "row": case.row, "promise": case.promise, "figures": lines}
            )
    record = {
        "date": date.today().isoformat(),
        "form": "long" if asked.long else "short",
        "rounds": asked.rounds,
        "seed": asked.seed,
        "machine": machine(),
        "cases": results,
    }
    if asked.json:
        asked.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return int(any(line["broken"] for case in results for line in case["figures"]))


if __name__ == "__main__":
    sys.exit(main())
