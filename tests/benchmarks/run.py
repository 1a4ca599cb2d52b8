"""Ours against what people would pick: side by side in one run, alternating, medians and ratios.

``python tests/benchmarks/run.py DIR`` builds its inputs in DIR (once, about 3 GB), runs every
contender that is installed, prints a table, and writes DIR/results.json and
DIR/results.svg.
``--ffcv-python`` names an interpreter that has FFCV (it needs numpy < 2, so an environment of its
own); ``--peers-python`` one that has torch, Grain and TensorFlow, if this one has not.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import select
import signal
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

import inputs
import numpy as np

HERE = Path(__file__).resolve().parent

#: Seconds after which a contender that says nothing is given up (FFCV writes its file first).
PATIENCE = 120


@dataclass
class Contender:
    """One row of a case: a player of players.py, its interpreter and what it is given."""

    name: str
    kind: str
    spec: dict[str, Any]
    python: str = sys.executable
    rates: list[float] = field(default_factory=list)
    failure: str = ""


@dataclass
class Goal:
    """What a row is held against: ``ours`` / ``other`` of the same round, at least ``factor``."""

    ours: str
    other: str
    factor: float


@dataclass
class Case:
    name: str
    contenders: list[Contender]
    goals: list[Goal]


class Player:
    """A contender's process while the case runs."""

    def __init__(self, contender: Contender) -> None:
        self.contender = contender
        # a file: a pipe that nobody reads would fill up and stop the contender
        self.errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 (lives as long as the player)
        self.process = subprocess.Popen(
            [
                contender.python,
                str(HERE / "players.py"),
                contender.kind,
                json.dumps(contender.spec),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            text=True,
            start_new_session=True,
        )

    def _line(self) -> str:
        assert self.process.stdout is not None
        while True:
            if not select.select([self.process.stdout], [], [], PATIENCE)[0]:
                raise RuntimeError(f"nothing heard for {PATIENCE} s")
            line = self.process.stdout.readline()
            if not line:
                self.errors.seek(0)
                tail = self.errors.read().strip().splitlines()[-1:]
                raise RuntimeError(tail[0] if tail else "it ended")
            if line.startswith(("ready", "{")):
                return line

    def wait_ready(self) -> None:
        self._line()

    def _signal(self, number: int) -> None:
        """To the contender and the processes it has started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)

    def rest(self) -> None:
        """Stand still while others have their turn: workers that fetch ahead would slow them."""
        self._signal(signal.SIGSTOP)

    def turn(self, seconds: float) -> float:
        assert self.process.stdin is not None
        self._signal(signal.SIGCONT)
        self.process.stdin.write(f"go {seconds}\n")
        self.process.stdin.flush()
        result = json.loads(self._line())
        return float(result["samples"]) / float(result["seconds"])

    def stop(self) -> None:
        self._signal(signal.SIGKILL)
        self.process.communicate()
        self.errors.close()


def warm(spec: Any) -> None:
    """Read every file that a contender is given, so that all find theirs in the page cache."""
    for value in spec.values() if isinstance(spec, dict) else (spec,):
        if isinstance(value, dict):
            warm(value)
        elif isinstance(value, str) and value.startswith("/"):
            path = Path(value)
            for file in [path] if path.is_file() else sorted(path.rglob("*")):
                if file.is_file():
                    with open(file, "rb") as held:
                        while held.read(1 << 24):
                            pass


def run_case(case: Case, rounds: int, seconds: float) -> None:
    """Start all players, then let them take turns; one warm-up round is not counted."""
    players = []
    for contender in case.contenders:
        warm(contender.spec)
    for contender in case.contenders:
        player = Player(contender)
        try:
            player.wait_ready()
            player.turn(seconds / 2)
            player.rest()
            players.append(player)
        except RuntimeError as exc:
            contender.failure = str(exc)
            player.stop()
    try:
        for _ in range(rounds):
            for player in players:
                player.contender.rates.append(player.turn(seconds))
                player.rest()
    finally:
        for player in players:
            player.stop()


def ratio(case: Case, goal: Goal) -> float | None:
    """Median over rounds of ours / other in the same round."""
    by_name = {contender.name: contender.rates for contender in case.contenders}
    ours, other = by_name.get(goal.ours, []), by_name.get(goal.other, [])
    if not ours or not other:
        return None
    return statistics.median(a / b for a, b in zip(ours, other, strict=True))


# -- the cases -----------------------------------------------------------------------------------


def build(folder: Path) -> dict[str, str]:
    """All inputs, as paths."""
    import h5py

    from converters import convert

    made: dict[str, Path] = {
        "raw224": inputs.raw_array(folder, "raw224", inputs.RAW224, 224),
        "raw32": inputs.raw_array(folder, "raw32", inputs.RAW32, 32),
        "jpeg": inputs.jpeg_folder(folder),
    }
    for name, chunk in (("raw224", 1), ("raw32", 64)):
        pixels = np.load(made[name], mmap_mode="r")

        def pack(path: Path, pixels: Any = pixels, **options: Any) -> None:
            with h5py.File(path, "w") as file:
                data = file.create_dataset("data", pixels.shape, "u1", **options)
                for lo in range(0, len(pixels), 64):
                    data[lo : lo + 64] = pixels[lo : lo + 64]
                file["labels"] = np.arange(len(pixels))[:, None]

        made[f"{name}.h5"] = inputs.once(folder / f"{name}_plain.h5", pack)

        def pack_gzip(
            path: Path, pack: Any = pack, pixels: Any = pixels, chunk: int = chunk
        ) -> None:
            pack(path, chunks=(chunk, *pixels.shape[1:]), compression="gzip")

        made[f"{name}.gz"] = inputs.once(folder / f"{name}_gzip.h5", pack_gzip)

        def as_lmdb(path: Path, name: str = name) -> None:
            pack_lmdb(path, np.load(made[name], mmap_mode="r"))

        made[f"{name}.lmdb"] = inputs.once(folder / f"{name}_lmdb", as_lmdb)
    for suffix, kind in (("lmdb", "lmdb"), ("h5", "hdf5")):

        def pack_original(path: Path, kind: str = kind) -> None:
            convert(made["jpeg"], path, encoding="original", format=kind)

        made[f"jpeg.{suffix}"] = inputs.once(folder / f"jpeg_original.{suffix}", pack_original)
    return {name: str(path) for name, path in made.items()}


def pack_lmdb(path: Path, pixels: Any) -> None:
    """Raw rows straight through the converters' sink: what ``convert`` writes from a folder."""
    import h5py

    from asyncreader import format as fmt
    from converters import convert

    middle = path.with_name(path.name + "_middle.h5")
    checksums = np.array(
        [int(fmt.digest(np.ascontiguousarray(row)), 16) for row in pixels], np.uint64
    )
    labels = np.arange(len(pixels), dtype=np.int64)[:, None]
    names = [b"%d" % i for i in range(len(pixels))]
    with h5py.File(middle, "w") as file:
        data = file.create_dataset("data", pixels.shape, "u1")
        for lo in range(0, len(pixels), 64):
            data[lo : lo + 64] = pixels[lo : lo + 64]
        file["labels"], file["checksums"] = labels, checksums
        file["paths"] = np.array(names, f"S{max(map(len, names))}")
        facts = {
            "format": fmt.FORMAT_NAME, "version": fmt.FORMAT_VERSION, "count": len(pixels),
            "encoding": "raw", "shape": np.array(pixels.shape[1:]), "channels": 3,
            "label_kind": "values", "axes": "NHWC", "dtype": "uint8", "label_dtype": "<i8",
            "digest_labels": fmt.digest(labels), "digest_checksums": fmt.digest(checksums),
            "digest_paths": fmt.names_digest(names),
        }  # fmt: skip
        for key, value in facts.items():
            file.attrs[key] = np.bytes_(value) if isinstance(value, str) else value
    convert(middle, path, format="lmdb")
    middle.unlink()


def jpeg_case(made: dict[str, str], folder: Path, ffcv: str, peers: str) -> Case:
    """JPEGs decoded, cropped (0.875, centred) and resized to 224 x 224."""
    sized = {"size": [224, 224], "crop_ratio": 0.875, "verify": "never"}
    return Case(
        "jpeg 500x375 to 224x224",
        [
            Contender("ours LMDB", "ours", {"params": {"path": made["jpeg.lmdb"], **sized}}),
            Contender("ours HDF5", "ours", {"params": {"path": made["jpeg.h5"], **sized}}),
            Contender("bare decode", "decode", {"folder": made["jpeg"]}),
            Contender(
                "FFCV",
                "ffcv",
                {
                    "beton": str(folder / "jpeg.beton"),
                    "folder": made["jpeg"],
                    "count": inputs.JPEGS,
                },
                ffcv,
            ),
            Contender("Grain", "grain", {"folder": made["jpeg"]}, peers),
            Contender("tf.data", "tfdata", {"folder": made["jpeg"]}, peers),
            Contender(
                "DataLoader + lmdb",
                "torch_lmdb",
                {"path": made["jpeg.lmdb"], "count": inputs.JPEGS},
                peers,
            ),
            Contender(
                "DataLoader + folder, Pillow",
                "torch_folder",
                {"folder": made["jpeg"], "count": inputs.JPEGS},
                peers,
            ),
        ],
        [
            Goal(ours, other, factor)
            for ours in ("ours LMDB", "ours HDF5")
            for other, factor in (
                ("FFCV", 1.4),
                ("Grain", 1.2),
                ("DataLoader + lmdb", 2.5),
                ("bare decode", 0.95),
            )
        ],
    )


def cases(made: dict[str, str], folder: Path, ffcv: str, peers: str) -> list[Case]:
    """Every case of the bar."""
    found = []
    for name, count, side in (("raw224", inputs.RAW224, 224), ("raw32", inputs.RAW32, 32)):
        shape = [side, side, 3]
        beton = {"beton": str(folder / f"{name}.beton"), "npy": made[name], "count": count}
        big = name == "raw224"
        found.append(
            Case(
                name,
                [
                    Contender("ours HDF5", "ours", {"params": {"path": made[f"{name}.h5"]}}),
                    Contender(
                        "ours LMDB",
                        "ours",
                        {"params": {"path": made[f"{name}.lmdb"], "verify": "never"}},
                    ),
                    Contender("memcpy", "memcpy", {"row_bytes": side * side * 3}),
                    Contender("FFCV", "ffcv", beton, ffcv),
                    Contender(
                        "DataLoader + h5py",
                        "torch_h5py",
                        {"path": made[f"{name}.h5"], "count": count},
                        peers,
                    ),
                    Contender(
                        "DataLoader + lmdb",
                        "torch_lmdb",
                        {"path": made[f"{name}.lmdb"], "count": count, "shape": shape},
                        peers,
                    ),
                ],
                [
                    Goal("ours HDF5", "FFCV", 2.0 if big else 1.7),
                    Goal("ours LMDB", "FFCV", 2.0 if big else 1.5),
                    Goal("ours HDF5", "DataLoader + h5py", 10.0 if big else 30.0),
                    Goal("ours LMDB", "DataLoader + h5py", 10.0 if big else 30.0),
                ]
                + (
                    [Goal("ours HDF5", "memcpy", 0.6), Goal("ours LMDB", "memcpy", 0.5)]
                    if big
                    else [Goal("ours LMDB", "DataLoader + lmdb", 30.0)]
                ),
            )
        )
    for name, count, chunk, factor, shuffle in (
        ("raw224", inputs.RAW224, 1, 4.0, True),
        ("raw32", inputs.RAW32, 64, 150.0, "block"),
    ):
        found.append(
            Case(
                f"{name} gzip, {chunk} a chunk",
                [
                    Contender(
                        "ours HDF5",
                        "ours",
                        {"params": {"path": made[f"{name}.gz"], "shuffle": shuffle}},
                    ),
                    Contender(
                        "DataLoader + h5py, random order",
                        "torch_h5py",
                        {"path": made[f"{name}.gz"], "count": count},
                        peers,
                    ),
                    Contender(
                        "bare inflate", "inflate", {"path": made[f"{name}.gz"], "chunk": chunk}
                    ),
                    Contender(
                        "DataLoader + h5py, whole chunks",
                        "torch_h5py_block",
                        {"path": made[f"{name}.gz"], "chunk": chunk},
                        peers,
                    ),
                ],
                [
                    Goal("ours HDF5", "DataLoader + h5py, random order", factor),
                    Goal("ours HDF5", "DataLoader + h5py, whole chunks", 1.0),
                    Goal("ours HDF5", "bare inflate", 0.8),
                ],
            )
        )
    found.append(jpeg_case(made, folder, ffcv, peers))
    floats = {"dtype": "float32", "scale": 1 / 255, "mean": [0.485, 0.456, 0.406],
              "std": [0.229, 0.224, 0.225], "verify": "never"}  # fmt: skip
    found.append(
        Case(
            "raw224 to normalised float32",
            [
                Contender(
                    "ours, NCHW view of NHWC",
                    "ours",
                    {"params": {"path": made["raw224.h5"], **floats}},
                ),
                Contender(
                    "ours, contiguous NCHW",
                    "ours",
                    {"params": {"path": made["raw224.h5"], "contiguous": True, **floats}},
                ),
                Contender(
                    "ours, contiguous NCHW, float16, flip",
                    "ours",
                    {
                        "params": {
                            "path": made["raw224.h5"],
                            "contiguous": True,
                            "flip": True,
                            **floats,
                            "dtype": "float16",
                        }
                    },
                ),
                Contender("bare float32 fill", "fill", {"row_values": 224 * 224 * 3}),
            ],
            [
                Goal("ours, NCHW view of NHWC", "bare float32 fill", 0.6),
                Goal("ours, contiguous NCHW", "bare float32 fill", 0.6),
            ],
        )
    )
    path = {"path": made["raw224.lmdb"]}
    found.append(
        Case(
            "cost of verify, raw224 LMDB",
            [
                Contender("never", "verifying", {"params": {**path, "verify": "never"}}),
                Contender("first", "verifying", {"params": {**path, "verify": "first"}}),
                Contender("always", "verifying", {"params": {**path, "verify": "always"}}),
                Contender("later epochs, never", "ours", {"params": {**path, "verify": "never"}}),
                Contender("later epochs, first", "ours", {"params": {**path, "verify": "first"}}),
            ],
            [
                Goal("first", "never", 0.75),
                Goal("always", "never", 0.7),
                Goal("later epochs, first", "later epochs, never", 0.97),
            ],
        )
    )
    return found


# -- telling -------------------------------------------------------------------------------------


def report(found: list[Case]) -> list[dict[str, Any]]:
    """Print the table; the same as plain values."""
    told = []
    for case in found:
        print(f"\n{case.name}")
        rows: list[dict[str, Any]] = []
        for contender in case.contenders:
            if not contender.rates:
                print(f"  {contender.name:<34} not run: {contender.failure}")
                continue
            middle = statistics.median(contender.rates)
            low, high = min(contender.rates), max(contender.rates)
            print(f"  {contender.name:<34} {middle:>12,.0f} /s   ({low:,.0f} to {high:,.0f})")
            rows.append({"name": contender.name, "median": middle, "rates": contender.rates})
        goals = []
        for goal in case.goals:
            reached = ratio(case, goal)
            if reached is None:
                continue
            mark = "ok" if reached >= goal.factor else "NOT REACHED"
            print(f"    {goal.ours} / {goal.other}: {reached:.2f} (bar {goal.factor:g}) {mark}")
            goals.append(
                {"ours": goal.ours, "other": goal.other, "ratio": reached, "bar": goal.factor}
            )
        told.append({"case": case.name, "contenders": rows, "goals": goals})
    return told


def draw(told: list[dict[str, Any]], path: Path) -> None:
    """One figure: a panel of bars per case."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    matplotlib.rcParams["svg.hashsalt"] = "asyncreader"
    matplotlib.rcParams["svg.fonttype"] = "none"  # text stays text
    shown = [case for case in told if case["contenders"]]
    figure, axes = pyplot.subplots(len(shown), 1, figsize=(8, 1.0 + 2.1 * len(shown)))
    for axis, case in zip(np.atleast_1d(axes), shown, strict=True):
        names = [row["name"] for row in case["contenders"]][::-1]
        rates = [row["median"] for row in case["contenders"]][::-1]
        limits = ("memcpy", "never", "later epochs, never")
        colours = [
            "#2f6fb0" if "ours" in n or n in ("first", "always", "later epochs, first")
            else "#b8b8b8" if n in limits or n.startswith("bare ") else "#d08a4a"
            for n in names
        ]  # fmt: skip
        bars = axis.barh(names, rates, color=colours)
        axis.bar_label(bars, [f" {rate:,.0f}" for rate in rates], fontsize=8)
        axis.set_title(f"{case['case']} (samples/s)", fontsize=9, loc="left")
        axis.tick_params(labelsize=8)
        axis.xaxis.set_major_formatter("{x:,.0f}")
        axis.set_xlim(right=max(rates) * 1.18)
        axis.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.5)
    parser.add_argument("--case", action="append", help="only cases whose name contains this")
    parser.add_argument("--name", default="results", help="of the two files written")
    parser.add_argument("--ffcv-python", default=sys.executable)
    parser.add_argument("--peers-python", default=sys.executable)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    found = cases(build(options.folder), options.folder, options.ffcv_python, options.peers_python)
    if options.case:
        found = [case for case in found if any(part in case.name for part in options.case)]
    told = []
    for case in found:
        run_case(case, options.rounds, options.seconds)
        told += report([case])
        sys.stdout.flush()
    facts = {
        "date": date.today().isoformat(),
        "python": platform.python_version(),
        "machine": platform.machine(),
        "rounds": options.rounds,
        "seconds": options.seconds,
        "cases": told,
    }
    name = options.name
    (options.folder / f"{name}.json").write_text(json.dumps(facts, indent=1))
    draw(told, options.folder / f"{name}.svg")


if __name__ == "__main__":
    main()
