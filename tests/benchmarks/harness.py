"""The one way to measure: cases as data, contenders that take turns, medians, ratios, and tables.

A program of this folder is a list of cases and the functions that they name; :func:`main` reads the
command line and does the rest. To add a measurement, add a :class:`Case` to such a list.

* Each contender is a process of its own (player.py), which is built, compiled and warm before its
  first window. While another works it is stopped (SIGSTOP).
* A window ends after 20 epochs and a fifth of ``--seconds``, or after ``--seconds``, whichever is
  first. What was ready before it is thrown away. A contender that does a job, such as writing a
  file, does it once in each turn.
* Contenders take turns, in reverse order every other round. Figures are medians over the rounds,
  and ratios are medians of the ratios of each round: a drift of the machine does not show in them.
* A contender that runs in two modes, epoch after epoch and in its fastest way, counts by the
  better one.

``--against REV`` measures asyncreader of this tree against another revision, in a temporary git
worktree, and exits with 1 where a ratio is below 0.95.
"""

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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from pathlib import Path
from typing import Any

from inputs import Place

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
#: The mode that every user knows, and the fastest way that a loader has.
EPOCHS, FASTEST = "epochs", "fastest"
BOTH = (EPOCHS, FASTEST)
#: Seconds after which a contender that says nothing is given up. Some write their files first.
PATIENCE = 1800
#: A window need not be longer than so many epochs.
EPOCHS_A_WINDOW = 20
#: A ratio of two revisions below this is "slower".
SLOWER = 0.95
#: Interpreters that have the libraries of others: ``--ffcv-python`` and so on.
PYTHONS = ("ffcv", "torch", "peers")

# -- cases -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Setting:
    """What all contenders of a case are given alike."""

    batch: int = 128
    workers: int = 2
    #: What is done with a batch: "none", or "sum", which reads it once.
    consumer: str = "none"


@dataclass(frozen=True)
class Unit:
    """What the figures of a case are: rates, or ``each`` divided by them, such as milliseconds of
    a sample, or of a batch."""

    name: str = "samples/s"
    each: float = 0
    a_batch: bool = False

    def figure(self, rate: float, setting: Setting) -> float:
        each = self.each * setting.batch if self.a_batch else self.each
        return each / rate if each else rate


MILLISECONDS, SECONDS = Unit("ms", 1e3), Unit("s", 1)


@dataclass(frozen=True)
class Contender:
    """One row of a case: ``kind`` is "module.function" of this folder, called with ``spec``."""

    name: str
    kind: str
    spec: dict[str, Any] = field(default_factory=dict)
    #: One of ``PYTHONS``, or empty for this interpreter.
    python: str = ""
    #: Those of the case, unless it has fewer.
    modes: tuple[str, ...] = ()
    about: str = ""
    #: Whether it is asyncreader, which ``--against`` measures in two revisions.
    ours: bool = False


@dataclass(frozen=True)
class Goal:
    """A ratio of rates: ``ours`` / ``other``, round by round, each in its better mode, or both in
    ``mode``."""

    ours: str
    other: str
    mode: str | None = None


@dataclass(frozen=True)
class Case:
    """A table: contenders that do the same, and ratios of them."""

    name: str
    group: str
    contenders: Sequence[Contender]
    goals: Sequence[Goal] = ()
    setting: Setting = Setting()
    unit: Unit = Unit()
    modes: tuple[str, ...] = (FASTEST,)
    #: Samples in an epoch; 0: windows are bounded by seconds alone.
    count: Any = 0
    rounds: int = 5
    seconds: float = 2.0
    #: Whether a turn that does not count comes first.
    warm: bool = True


def ours(name: str, path: Any = None, about: str = "", **params: Any) -> Contender:
    """A reader with these parameters."""
    params = params if path is None else {"path": path, **params}
    return Contender(name, "ours.Ours", {"params": params}, about=about, ours=True)


def of_two_trees(case: Case, here: str, there: str, revision: str) -> Case:
    """A case with asyncreader alone, each contender from two trees: this one, and a revision's."""
    pairs, goals = [], []
    for contender in case.contenders:
        if contender.ours:
            other = f"{contender.name} at {revision}"
            for tree, name in ((here, contender.name), (there, other)):
                spec = {**contender.spec, "tree": tree}
                pairs.append(replace(contender, name=name, spec=spec, modes=(FASTEST,)))
            goals.append(Goal(contender.name, other))
    return replace(case, contenders=pairs, goals=goals)


# -- contenders at work ----------------------------------------------------------------------------


class Player:
    """A contender's process, in one of its modes, while the case runs."""

    def __init__(self, contender: Contender, mode: str, spec: dict[str, Any], python: str) -> None:
        self.contender, self.mode, self.spec, self.python = contender, mode, spec, python
        self.results: list[dict[str, Any]] = []
        self.versions: dict[str, str] = {}
        self.failure = ""
        self.process: Any = None

    def start(self) -> None:
        """Start the process, and wait until it is ready."""
        # a file: a pipe that nobody reads would fill up and stop the contender
        self.errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 (closed by stop)
        environment = {**os.environ, **self.spec.get("environment", {})}
        if self.spec.get("tree"):
            paths = [self.spec["tree"], *filter(None, [environment.get("PYTHONPATH")])]
            environment["PYTHONPATH"] = os.pathsep.join(paths)
        self.process = subprocess.Popen(
            [self.python, str(HERE / "player.py"), self.contender.kind, json.dumps(self.spec)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors, text=True,
            start_new_session=True, env=environment,
        )  # fmt: skip
        self.versions = self._answer("ready ")

    def _answer(self, word: str) -> Any:
        """What the process says after this word; RuntimeError with its last words if it ends."""
        while True:
            if not select.select([self.process.stdout], [], [], PATIENCE)[0]:
                raise RuntimeError(f"nothing heard for {PATIENCE} s")
            line = self.process.stdout.readline()
            if line.startswith(word):
                return json.loads(line.removeprefix(word))
            if not line:
                self.errors.seek(0)
                tail = self.errors.read().strip().splitlines()[-1:]
                raise RuntimeError(tail[0] if tail else "it ended")

    def _signal(self, number: int) -> None:
        """Send a signal to the contender and the processes that it has started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)

    def turn(self, seconds: float, samples: int) -> dict[str, Any]:
        """The result of one turn. Before and after it the contender stands still, because workers
        that fetch ahead would slow the others."""
        self._signal(signal.SIGCONT)
        with contextlib.suppress(BrokenPipeError):  # it ended: its last words are read below
            self.process.stdin.write(f"go {seconds} {samples}\n")
            self.process.stdin.flush()
        result: dict[str, Any] = self._answer("result ")
        self._signal(signal.SIGSTOP)
        return result

    def stop(self) -> None:
        """End the process, if there is one."""
        if self.process is not None:
            self._signal(signal.SIGKILL)
            self.process.communicate()
            self.errors.close()
            self.process = None

    def rates(self) -> list[float]:
        return [result["samples"] / result["seconds"] for result in self.results]


class Turns:
    """The players of a case; one that fails is out, and its failure is kept."""

    def __init__(self, case: Case, players: list[Player], seconds: float, samples: int) -> None:
        self.case, self.seconds, self.samples = case, seconds, samples
        self.running, self.number = list(players), 0

    def _fails(self, player: Player, exc: RuntimeError) -> None:
        player.failure = str(exc)
        player.results.clear()
        self.running.remove(player)
        player.stop()

    def prepare(self, player: Player) -> None:
        """Start a player, and give it half a window that does not count."""
        try:
            player.start()
            if self.case.warm:
                player.turn(self.seconds / 2, self.samples)
            player._signal(signal.SIGSTOP)
        except RuntimeError as exc:
            self._fails(player, exc)

    def take(self, player: Player) -> None:
        """One turn that counts."""
        try:
            result = player.turn(self.seconds, self.samples)
            self.number += 1
            player.results.append({**result, "turn": self.number})
        except RuntimeError as exc:
            self._fails(player, exc)

    def all(self, rounds: int) -> None:
        try:
            for player in list(self.running):
                self.prepare(player)
            for number in range(rounds):
                for player in self.running[:: 1 if number % 2 == 0 else -1]:
                    self.take(player)
        finally:
            for player in self.running:
                player.stop()


def run_case(case: Case, options: argparse.Namespace) -> dict[str, Any]:
    """Make the inputs of a case, let its contenders take turns, and return what came of it."""
    place, setting = options.place, case.setting
    if options.workers is not None:
        setting = replace(setting, workers=options.workers)
    if place.small:
        setting = replace(setting, batch=min(setting.batch, 16))
    players = []
    for contender in case.contenders:
        spec = {**vars(setting), "folder": str(place.folder), **place.plain(contender.spec)}
        if contender.ours:
            spec.setdefault("tree", options.tree)
        python = getattr(options, f"{contender.python}_python", sys.executable)
        for mode in contender.modes or case.modes:
            players.append(Player(contender, mode, {"mode": mode, **spec}, python))
    place.warm([player.spec for player in players])
    seconds = case.seconds if options.seconds is None else options.seconds
    samples = EPOCHS_A_WINDOW * place.plain(case.count)
    Turns(case, players, seconds, samples).all(options.rounds or case.rounds)
    check_digests(case, players)
    return outcome(replace(case, setting=setting), players)


def check_digests(case: Case, players: list[Player]) -> None:
    """RuntimeError if contenders that hash what they served had different bytes in a round."""
    hashed = [[one["digest"] for one in player.results if "digest" in one] for player in players]
    for digests in zip(*filter(None, hashed), strict=False):
        if len(set(digests)) > 1:
            raise RuntimeError(f"{case.name}: the contenders served different bytes")


# -- what came of it -------------------------------------------------------------------------------


def outcome(case: Case, players: list[Player]) -> dict[str, Any]:
    """The figures and ratios of a case as plain values."""
    rows = []
    for contender in case.contenders:
        modes = {player.mode: player for player in players if player.contender is contender}
        row: dict[str, Any] = {"name": contender.name, "about": contender.about, "modes": {}}
        row["failures"] = {mode: one.failure for mode, one in modes.items() if one.failure}
        row["versions"] = {k: v for one in modes.values() for k, v in one.versions.items()}
        for mode, player in modes.items():
            if rates := player.rates():
                row["modes"][mode] = {
                    "median": case.unit.figure(statistics.median(rates), case.setting),
                    "best": case.unit.figure(max(rates), case.setting),
                    "rates": rates,
                    "results": player.results,
                }
        if row["modes"]:
            row["counts"] = max(row["modes"], key=lambda m: statistics.median(modes[m].rates()))
            row |= {key: row["modes"][row["counts"]][key] for key in ("median", "best")}
        rows.append(row)
    goals = []
    for goal in case.goals:
        reached = ratio(rows, goal)
        if reached is not None:
            mode = "epoch after epoch" if goal.mode else "the better"
            goals.append({**vars(goal), "mode": mode, "ratio": reached})
    return {
        "case": case.name, "unit": case.unit.name, **vars(case.setting),
        "contenders": rows, "goals": goals,
    }  # fmt: skip


def ratio(rows: list[dict[str, Any]], goal: Goal) -> float | None:
    """Median over rounds of ours / other in the same round; None if one of them did not run."""
    rates = []
    for name in (goal.ours, goal.other):
        (row,) = [row for row in rows if row["name"] == name]
        mode = goal.mode or row.get("counts")
        if mode not in row["modes"]:
            return None
        rates.append(row["modes"][mode]["rates"])
    return statistics.median(a / b for a, b in zip(*rates, strict=True))


def figures_of(row: dict[str, Any]) -> dict[str, Any]:
    """Figures beside the rate: medians of numbers, the last of anything else."""
    results = row["modes"][row["counts"]]["results"] if row["modes"] else []
    figures = {}
    for name in dict.fromkeys(key for result in results for key in result):
        values = [result[name] for result in results if name in result]
        number = isinstance(values[0], (int, float)) and not isinstance(values[0], bool)
        if name not in ("samples", "seconds", "turn", "digest"):
            figures[name] = statistics.median(values) if number else values[-1]
    return figures


def words(value: Any) -> str:
    """A figure as it stands in a table."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(value)
    return f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.3g}"


def markdown(case: dict[str, Any]) -> str:
    """The outcome of a case as tables."""
    consumer = {"none": "batches not read", "sum": "each batch read once"}[case["consumer"]]
    setting = f"batch {case['batch']}, {case['workers']} worker(s), {consumer}"
    lines = [f"### {case['case']}", "", f"{case['unit']}; {setting}.", ""]
    both = any(len(row["modes"]) > 1 for row in case["contenders"])
    figures = [figures_of(row) for row in case["contenders"]]
    more = list(dict.fromkeys(name for named in figures for name in named))
    heads = ["contender", "median", "best", *(["epoch after epoch", "fastest mode"] * both)]
    lines += [line_of([*heads, *more, "notes"]), line_of(["---"] * (len(heads) + len(more) + 1))]
    for row, named in zip(case["contenders"], figures, strict=True):
        cells = [words(row[key]) if key in row else "-" for key in ("median", "best")]
        if both:
            modes = [row["modes"].get(mode, {}).get("median") for mode in BOTH]
            cells += ["-" if median is None else words(median) for median in modes]
        cells += [words(named.get(name, "-")) for name in more]
        failures = {f"{mode} failed: {why}": why for mode, why in row["failures"].items()}
        notes = list(failures)
        if failures and not row["modes"]:
            notes = ["not run: " + "; ".join(dict.fromkeys(failures.values()))]
        notes += [row["about"]] if row["about"] else []
        lines.append(line_of([row["name"], *cells, "; ".join(notes).replace("|", "/")]))
    if case["goals"]:
        lines += ["", line_of(["ratio", "modes", "reached"]), line_of(["---"] * 3)]
    for goal in case["goals"]:
        names = f"{goal['ours']} / {goal['other']}"
        lines.append(line_of([names, goal["mode"], f"{goal['ratio']:.2f}"]))
    return "\n".join(lines) + "\n"


def line_of(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def machine(tree: str) -> dict[str, Any]:
    """Where and when it was measured, and what."""
    cpu = platform.processor()
    with contextlib.suppress(OSError), open("/proc/cpuinfo", encoding="utf-8") as lines:
        cpu = next((line.split(":")[1].strip() for line in lines if "model name" in line), cpu)
    asked = subprocess.run(
        ["git", "-C", tree, "describe", "--always", "--dirty"], capture_output=True, text=True
    )
    return {
        "date": date.today().isoformat(), "commit": asked.stdout.strip(),
        "python": platform.python_version(), "cpu": cpu,
        "cores": len(os.sched_getaffinity(0)), "load": os.getloadavg()[0], "tree": tree,
    }  # fmt: skip


def write(path: Path, about: dict[str, Any], outcomes: list[dict[str, Any]]) -> None:
    """The outcomes as JSON, and beside it as Markdown."""
    path.write_text(json.dumps({**about, "cases": outcomes}, indent=1))
    versions = {k: v for case in outcomes for row in case["contenders"]
                for k, v in row["versions"].items()}  # fmt: skip
    lines = [f"{name}: {about[name]}" for name in about]
    lines += [f"{name} {version}" for name, version in sorted(versions.items())]
    tables = [markdown(case) for case in outcomes]
    path.with_suffix(".md").write_text("; ".join(lines) + "\n\n" + "\n".join(tables))


# -- the command line ------------------------------------------------------------------------------


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


def chosen(cases: Sequence[Case], names: Sequence[str] | None) -> list[Case]:
    """Cases of these names; a name that none has chooses those that contain it."""
    if not names:
        return list(cases)
    exact = {case.name for case in cases}
    return [
        case for case in cases
        if any(name == case.name if name in exact else name in case.name for name in names)
    ]  # fmt: skip


def parser_of(doc: str, groups: Sequence[str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=doc.split("\n\n")[0])
    add = parser.add_argument
    help_ = "inputs are made here once, and results written (default: a temporary folder)"
    add("folder", type=Path, nargs="?", help=help_)
    add("--only", action="append", choices=groups, help="this group of cases")
    for group in groups:
        add(f"--{group}", dest="only", action="append_const", const=group, help=argparse.SUPPRESS)
    add("--case", action="append", help="this case, or all whose name contains it")
    add("--list", action="store_true", help="print the groups and names of the cases")
    add("--rounds", type=int, help="turns of each contender")
    add("--seconds", type=float, help="the longest window")
    add("--workers", type=int, help="threads or processes of each contender")
    add("--small", action="store_true", help="tiny inputs: to see that a case runs")
    add("--give", action="append", default=[], metavar="NAME=VALUE", help="a value of a case")
    add("--json", type=Path, help="write the results there, and tables beside them as .md")
    add("--against", metavar="REV", help="measure this tree against a revision")
    for name in PYTHONS:
        add(f"--{name}-python", default=sys.executable, help="an interpreter that has the library")
    return parser


def measure(cases: Sequence[Case], options: argparse.Namespace) -> list[dict[str, Any]]:
    """Run cases one after the other, each printed when it is done, and write the results."""
    about = machine(options.tree)
    print(f"asyncreader of {options.tree}\n", flush=True)
    outcomes = []
    for case in cases:
        outcomes.append(run_case(case, options))
        print(markdown(outcomes[-1]), flush=True)
    write(options.json, {**about, "inputs": options.place.inputs()}, outcomes)
    return outcomes


def measure_against(cases: Sequence[Case], options: argparse.Namespace) -> int:
    """The exit code: 1 if this tree is slower than the revision, or could not be compared."""
    with worktree(options.against) as tree:
        pairs = [of_two_trees(case, str(ROOT), tree, options.against) for case in cases]
        outcomes = measure([pair for pair in pairs if pair.goals], options)
    goals = [goal for case in outcomes for goal in case["goals"]]
    missing = sum(len(pair.goals) for pair in pairs) - len(goals)
    slower = [goal for goal in goals if goal["ratio"] < SLOWER]
    for goal in slower:
        print(f"slower: {goal['ours']}: {goal['ratio']:.2f} of {options.against}")
    if missing:
        print(f"{missing} comparison(s) could not be made: see above")
    return int(bool(slower) or missing > 0)


def main(
    program: str, doc: str | None, cases: Sequence[Case], *, arguments: list[str] | None = None,
    asked: Sequence[str] = (), guard: Sequence[str] = (),
) -> int:  # fmt: skip
    """Run the command line of a program; its exit code. Groups of ``asked`` run only if they are
    chosen, and ``guard`` names the cases that ``--against`` compares if none is."""
    parser = parser_of(doc or "", list(dict.fromkeys(case.group for case in cases)))
    options = parser.parse_args(arguments)
    if arguments is None:  # contenders that are stopped would outlive a program that is ended
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    groups = options.only or {case.group for case in cases} - set(asked)
    cases = chosen([case for case in cases if case.group in groups], options.case)
    if options.list:
        print("\n".join(f"{case.group}: {case.name}" for case in cases))
        return 0
    if options.against and not options.case and guard:
        cases = [case for case in cases if case.name in guard]
    options.tree = str(ROOT)
    with contextlib.ExitStack() as stack:
        folder = options.folder or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        given = dict(pair.split("=", 1) for pair in options.give)
        options.place = Place(folder.resolve(), options.small, given)
        name = "against" if options.against else program
        options.json = options.json or options.place.folder / f"{name}.json"
        if options.against:
            return measure_against(cases, options)
        measure(cases, options)
    return 0
