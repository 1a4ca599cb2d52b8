"""Ours against what people would pick: side by side in one run, alternating.

``python tests/benchmarks/run.py DIR`` builds its inputs in DIR (once, about 5 GB with the rivals'
own files), runs every contender that is installed, and writes DIR/results.json, DIR/results.md and
DIR/results.svg. ``--ffcv-python``, ``--torch-python`` (torch, torchvision) and ``--peers-python``
(Grain, TensorFlow, DALI) name interpreters that have the rivals.

How it is measured:

* Each contender is a process of its own, which is built, compiled and warm before its first window.
  While another has its window it is stopped (SIGSTOP).
* Two modes each: epoch after epoch, as users loop, with all time counted; and the fastest mode that
  the system has (rivals.FASTEST). The better one counts, both are told.
* A window ends after 20 epochs and a fifth of ``--seconds``, or after ``--seconds``, whichever is
  first. What was ready before it is thrown away. Contenders alternate, in turned order each round.
* Told are medians and best windows of ``--rounds``, and ratios as medians over rounds.

``python tests/benchmarks/run.py DIR --matrix`` measures ours alone: each path of raw pixels as a
share of plain copying, and what checks cost on each, in the first epoch and in the second.

``python tests/benchmarks/run.py DIR --recipes`` measures augmentation against torchvision's v2
transforms in a DataLoader with as many workers, and orders that are drawn against plain ones.

``python tests/benchmarks/run.py DIR --against REV`` measures this tree against another revision
instead, in a temporary git worktree, both alternating, and exits with 1 where a ratio is below
0.95. Run it before each commit that touches the hot path: ``--against main``.
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
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

import cases
import inputs
import numpy as np
import rivals
from cases import EPOCHS, FASTEST, Case, Contender, Goal

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]

#: Seconds after which a contender that says nothing is given up (FFCV writes its file first).
PATIENCE = 600

#: A window need not be longer than so many epochs.
EPOCHS_A_WINDOW = 20


class Player:
    """A contender's process, in one of its modes, while the case runs."""

    def __init__(self, contender: Contender, case: Case, mode: str) -> None:
        self.contender, self.mode = contender, mode
        # a file: a pipe that nobody reads would fill up and stop the contender
        self.errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 (lives as long as the player)
        setting = case.setting
        spec = {
            "mode": mode, "batch": setting.batch, "workers": setting.workers,
            "consumer": setting.consumer, **contender.spec,
        }  # fmt: skip
        environment = dict(os.environ)
        if contender.kind in cases.OUR_KINDS:
            environment["PYTHONPATH"] = spec.setdefault("tree", str(ROOT))
        self.process = subprocess.Popen(
            [contender.python, str(HERE / "players.py"), contender.kind, json.dumps(spec)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            text=True,
            start_new_session=True,
            env=environment,
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
        self.contender.versions = json.loads(self._line().removeprefix("ready"))

    def _signal(self, number: int) -> None:
        """To the contender and the processes it has started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)

    def rest(self) -> None:
        """Stand still while others have their turn: workers that fetch ahead would slow them."""
        self._signal(signal.SIGSTOP)

    def turn(self, seconds: float, samples: int) -> float:
        """Samples per second of one window."""
        assert self.process.stdin is not None
        self._signal(signal.SIGCONT)
        try:
            self.process.stdin.write(f"go {seconds} {samples}\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # it ended: its last words are read below
        result = json.loads(self._line())
        return float(result["samples"]) / float(result["seconds"])

    def stop(self) -> None:
        self._signal(signal.SIGKILL)
        self.process.communicate()
        self.errors.close()


def warm(spec: dict[str, Any]) -> None:
    """Read every file that a contender is given, so that all find theirs in the page cache."""
    for key, value in spec.items():
        if isinstance(value, dict):
            warm(value)
        elif key == "tree":
            continue
        elif isinstance(value, str) and value.startswith("/"):
            path = Path(value)
            for file in [path] if path.is_file() else sorted(path.rglob("*")):
                if file.is_file():
                    with open(file, "rb") as held:
                        while held.read(1 << 24):
                            pass


def run_case(case: Case, rounds: int, seconds: float) -> None:
    """Start all players, then let them take turns; one warm-up turn each is not counted."""
    samples = EPOCHS_A_WINDOW * case.count
    running: list[Player] = []

    def one_turn(player: Player, window: float) -> float | None:
        """Its rate; None if it failed, and then it is out."""
        try:
            return player.turn(window, samples)
        except RuntimeError as exc:
            player.contender.failures[player.mode] = str(exc)
            player.contender.rates.pop(player.mode, None)
            running.remove(player)
            player.stop()
            return None
        finally:
            player.rest()

    for contender in case.contenders:
        warm(contender.spec)
    try:
        for contender in case.contenders:
            for mode in contender.modes:
                player = Player(contender, case, mode)
                running.append(player)
                try:
                    player.wait_ready()
                except RuntimeError as exc:
                    contender.failures[mode] = str(exc)
                    running.remove(player)
                    player.stop()
                    continue
                one_turn(player, seconds / 2)
        for number in range(rounds):
            for player in running[:: 1 if number % 2 == 0 else -1]:
                rate = one_turn(player, seconds)
                if rate is not None:
                    player.contender.rates.setdefault(player.mode, []).append(rate)
    finally:
        for player in running:
            player.stop()


def ratio(case: Case, goal: Goal) -> float | None:
    """Median over rounds of ours / other in the same round; None if one of them did not run."""
    found = []
    for name in (goal.ours, goal.other):
        (contender,) = [one for one in case.contenders if one.name == name]
        rates = contender.rates
        mode = goal.mode or (contender.best if rates else "")
        if mode not in rates:
            return None
        found.append(rates[mode])
    return statistics.median(a / b for a, b in zip(*found, strict=True))


# -- telling -------------------------------------------------------------------------------------


def told(case: Case) -> dict[str, Any]:
    """A case's outcome as plain values."""
    rows = []
    for contender in case.contenders:
        row: dict[str, Any] = {"name": contender.name, "kind": contender.kind}
        row |= {"about": contender.about, "versions": contender.versions, "modes": {}}
        for mode, rates in contender.rates.items():
            row["modes"][mode] = {
                "median": statistics.median(rates), "best": max(rates), "rates": rates,
            }  # fmt: skip
        if contender.rates:
            row["counts"] = contender.best
            row |= {key: row["modes"][contender.best][key] for key in ("median", "best")}
        row["failures"] = contender.failures
        rows.append(row)
    goals = []
    for goal in case.goals:
        reached = ratio(case, goal)
        if reached is not None:
            mode = "epoch after epoch" if goal.mode else "the better"
            found = {"ours": goal.ours, "other": goal.other, "mode": mode}
            goals.append({**found, "ratio": reached, "bar": goal.bar})
    setting = case.setting
    return {
        "case": case.name, "batch": setting.batch, "workers": setting.workers,
        "consumer": setting.consumer, "contenders": rows, "goals": goals,
    }  # fmt: skip


def markdown(case: dict[str, Any]) -> str:
    """A case's outcome as tables."""
    consumer = "each batch read once" if case["consumer"] == "sum" else "batches not read"
    lines = [f"### {case['case']}", ""]
    lines += [f"Samples/s; batch {case['batch']}, {case['workers']} worker(s), {consumer}.", ""]
    lines += ["| contender | median | best window | epoch after epoch | fastest mode | notes |"]
    lines += ["|---|---|---|---|---|---|"]
    for row in case["contenders"]:
        if "median" not in row:
            failure = "; ".join(dict.fromkeys(row["failures"].values())).replace("|", "/")
            lines.append(f"| {row['name']} | - | - | - | - | not run: {failure} |")
            continue
        notes = [rivals.FASTEST[row["kind"]]] if row["kind"] in rivals.FASTEST else []
        notes += [f"{mode} failed: {why}" for mode, why in row["failures"].items()]
        notes += [row["about"]] if row["about"] else []
        modes = [
            f"{row['modes'][mode]['median']:,.0f}" if mode in row["modes"] else "-"
            for mode in (EPOCHS, FASTEST)
        ]
        figures = [f"{row['median']:,.0f}", f"{row['best']:,.0f}", *modes]
        lines.append(f"| {row['name']} | {' | '.join(figures)} | {'; '.join(notes)} |")
    if case["goals"]:
        lines += ["", "| ratio | modes | reached | asked |", "|---|---|---|---|"]
    for goal in case["goals"]:
        asked = "" if goal["bar"] is None else f"{goal['bar']:g}"
        if goal["bar"] is not None and goal["ratio"] < goal["bar"]:
            asked += " NOT REACHED"
        lines.append(
            f"| {goal['ours']} / {goal['other']} | {goal['mode']} | {goal['ratio']:.2f} | {asked} |"
        )
    return "\n".join(lines) + "\n"


def facts(options: argparse.Namespace, made: dict[str, str]) -> dict[str, Any]:
    """Of the machine, the run and the inputs."""
    cpu = platform.processor()
    with contextlib.suppress(OSError), open("/proc/cpuinfo", encoding="utf-8") as lines:
        cpu = next((line.split(":")[1].strip() for line in lines if "model name" in line), cpu)
    return {
        "date": date.today().isoformat(),
        "python": platform.python_version(),
        "cpu": cpu,
        "cores": len(os.sched_getaffinity(0)),
        "load": os.getloadavg()[0],
        "rounds": options.rounds,
        "seconds": options.seconds,
        "inputs": {
            "raw224": f"{inputs.RAW224:,} pictures of 224 x 224 x 3",
            "raw32": f"{inputs.RAW32:,} pictures of 32 x 32 x 3",
            "JPEG": f"{inputs.JPEGS:,} of 500 x 375 at quality {inputs.QUALITY}, 4:2:0, "
            f"{inputs.jpeg_bytes(Path(made['jpeg'])) / 1000:.0f} kB in the mean, each "
            f"{inputs.TIMES} times; FFCV's writer encodes them again at that quality",
        },
    }


def write(folder: Path, name: str, about: dict[str, Any], outcome: list[dict[str, Any]]) -> None:
    """The JSON and Markdown files of a run."""
    (folder / f"{name}.json").write_text(json.dumps({**about, "cases": outcome}, indent=1))
    head = [
        f"{about['date']}, {about['cpu']}, {about['cores']} cores, Python {about['python']}, load "
        f"{about['load']:.1f} at the start; {about['rounds']} rounds of {about['seconds']:g} s.",
        *(f"{key}: {value}." for key, value in about["inputs"].items()),
    ]
    versions: dict[str, str] = {}
    for case in outcome:
        for row in case["contenders"]:
            versions |= row["versions"]
    head.append(", ".join(f"{key} {value}" for key, value in sorted(versions.items())) + ".")
    tables = [markdown(case) for case in outcome]
    (folder / f"{name}.md").write_text("\n\n".join(head) + "\n\n" + "\n".join(tables))


def draw(outcome: list[dict[str, Any]], path: Path) -> None:
    """One figure: a panel of bars for each case with the usual setting."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    matplotlib.rcParams["svg.hashsalt"] = "asyncreader"
    matplotlib.rcParams["svg.fonttype"] = "none"  # text stays text
    usual = vars(cases.Setting())
    shown = []
    for case in outcome:
        rows = [row for row in case["contenders"] if "median" in row]
        if rows and all(case[key] == value for key, value in usual.items()):
            shown.append((case["case"], rows[::-1]))
    if not shown:
        return
    figure, axes = pyplot.subplots(len(shown), 1, figsize=(8, 1.0 + 2.1 * len(shown)))
    for axis, (name, rows) in zip(np.atleast_1d(axes), shown, strict=True):
        rates = [row["median"] for row in rows]
        colours = [
            "#2f6fb0" if row["kind"] in cases.OUR_KINDS
            else "#d08a4a" if row["kind"] in rivals.USED else "#b8b8b8"
            for row in rows
        ]  # fmt: skip
        bars = axis.barh([row["name"] for row in rows], rates, color=colours)
        axis.bar_label(bars, [f" {rate:,.0f}" for rate in rates], fontsize=8)
        axis.set_title(f"{name} (samples/s)", fontsize=9, loc="left")
        axis.tick_params(labelsize=8)
        axis.xaxis.set_major_formatter("{x:,.0f}")
        axis.set_xlim(right=max(rates) * 1.18)
        axis.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)


# -- the two commands ----------------------------------------------------------------------------


@contextlib.contextmanager
def worktree(revision: str) -> Iterator[str]:
    """Another revision of this repository in a temporary folder; CalledProcessError if unknown."""
    git = ["git", "-C", str(ROOT)]
    with tempfile.TemporaryDirectory(prefix="asyncreader-against-") as folder:
        tree = str(Path(folder) / "tree")
        subprocess.run([*git, "worktree", "add", "--quiet", "--detach", tree, revision], check=True)
        try:
            yield tree
        finally:
            subprocess.run([*git, "worktree", "remove", "--force", tree], check=True)


def chosen(found: list[Case], names: list[str] | None) -> list[Case]:
    """Cases of these names; a name that none has chooses those that contain it."""
    if not names:
        return found
    exact = {case.name for case in found}
    return [
        case
        for case in found
        if any(name == case.name if name in exact else name in case.name for name in names)
    ]


def measure(found: list[Case], rounds: int, seconds: float) -> Iterator[dict[str, Any]]:
    """Run cases one after the other, each printed when it is done."""
    for case in found:
        run_case(case, rounds, seconds)
        outcome = told(case)
        print(markdown(case=outcome), flush=True)
        yield outcome


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=5.0, help="the longest window")
    parser.add_argument("--case", action="append", help="this one, or all whose name contains it")
    parser.add_argument("--matrix", action="store_true", help="every path of raw pixels, no rival")
    parser.add_argument("--recipes", action="store_true", help="augmentation, and drawn orders")
    parser.add_argument("--list", action="store_true", help="print the names of the cases")
    parser.add_argument("--name", help="of the files written (results, or against)")
    parser.add_argument("--against", metavar="REV", help="measure this tree against a revision")
    parser.add_argument("--ffcv-python", default=sys.executable)
    parser.add_argument("--torch-python", default=sys.executable)
    parser.add_argument("--peers-python", default=sys.executable)
    options = parser.parse_args(arguments)
    options.folder = options.folder.resolve()
    options.folder.mkdir(parents=True, exist_ok=True)
    made = inputs.build(options.folder)
    pythons = cases.Pythons(options.ffcv_python, options.torch_python, options.peers_python)
    if options.recipes:
        found = cases.recipes(made, pythons)
    else:
        found = cases.matrix(made) if options.matrix else cases.all_cases(made, pythons)
    if options.list:
        print("\n".join(case.name for case in found))
        return 0
    about = facts(options, made)
    if options.against is None:
        found = chosen(found, options.case)
        outcome = list(measure(found, options.rounds, options.seconds))
        write(options.folder, options.name or "results", about, outcome)
        draw(outcome, options.folder / f"{options.name or 'results'}.svg")
        return 0
    with worktree(options.against) as tree:
        pairs = [
            cases.of_two_trees(case, str(ROOT), tree, options.against)
            for case in chosen(found, options.case or list(cases.GUARD))
        ]
        outcome = list(measure(pairs, options.rounds, options.seconds))
    write(options.folder, options.name or "against", about, outcome)
    goals = [goal for case in outcome for goal in case["goals"]]
    missing = sum(len(pair.goals) for pair in pairs) - len(goals)
    slower = [goal for goal in goals if goal["ratio"] < goal["bar"]]
    for goal in slower:
        print(f"slower: {goal['ours']}: {goal['ratio']:.2f} of {options.against}")
    if missing:
        print(f"{missing} comparison(s) could not be made: see above")
    return int(bool(slower) or missing > 0)


if __name__ == "__main__":
    sys.exit(main())
