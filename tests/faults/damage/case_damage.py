"""Damaged files: flipped bytes, damaged structure, truncation, changes while a reader is open."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from child_processes import Ended, Watched

from faults.case import Case, Figures, Outcome, tally
from faults.damage.trials import Job
from faults.sets import build

FORMATS = (
    *("HDF5 raw", "HDF5 gzip", "HDF5 jpeg", "HDF5 yuv420", "HDF5 ragged"),
    *("LMDB raw", "LMDB jpeg", "LMDB ragged"),
)

#: Verdicts that break the promise.
BROKEN = ("silent wrong", "short", "untyped", "signal", "hang", "slow", "not at open")


@dataclass(frozen=True)
class Damage:
    """One kind of damage, on every format and with each value of ``verify``."""

    name: str
    row: str
    promise: str
    short: int
    long: int
    verify: Sequence[str] = ("always", "first")
    formats: Sequence[str] = FORMATS

    def run(self, rounds: int, seed: int, scratch: Path) -> Iterator[Figures]:
        """A line for each format and value of ``verify``. One process runs all trials; where a
        trial ends it, a new one takes over."""
        made = build(self.formats, scratch.parent / "sets")
        with Watched("-m", "faults.damage.trials") as child:
            for name in self.formats:
                sets = [one.to_json() for one in made[name]]
                for verify in self.verify:
                    job = Job(self.name, sets, verify, seed, str(scratch / f"{name} {verify}"))
                    what = f'{name}, verify="{verify}"' if len(self.verify) > 1 else name
                    yield tally(what, trials(child, job, rounds), "s of CPU")
            try:
                child.close()
            except Ended as end:  # of what the last trial did
                yield tally("at exit", [_ended("the last trial", end)])


def trials(child: Watched, job: Job, rounds: int) -> Iterator[Outcome]:
    """Each trial of a job as it is counted, broken promises in words."""
    for number in range(rounds):
        try:
            found = child.ask((asdict(job), number))
        except Ended as end:
            yield _ended(f"trial {number}", end)
            continue
        verdict = found["verdict"]
        said = f"trial {number}: {verdict}: {found['did']}: {found['said']}"
        yield Outcome(verdict, (said,) if verdict in BROKEN else (), found["seconds"])


def _ended(what: str, end: Ended) -> Outcome:
    """A trial that killed its process or made it hang."""
    said = " | ".join(end.said.split("\n"))
    if end.how.startswith("exit code"):
        raise RuntimeError(f"the process of the trials failed: {said}")
    verdict = "hang" if end.how == "hang" else "signal"
    return Outcome(verdict, (f"{what}: {verdict}: {end.how}: {said}",))


_NOTHING_WRONG = "no silently wrong sample, no signal, no hang, no untyped error"

CASES: tuple[Case, ...] = (
    Damage("flips", "random byte flips", _NOTHING_WRONG, 24, 1000),
    Damage("structure", "structural mutations", _NOTHING_WRONG, 24, 1000),
    Damage(
        "live",
        'bytes changed while a reader is open, verify="always"',
        _NOTHING_WRONG,
        12,
        300,
        verify=("always",),
    ),
    Damage(
        "truncations",
        "truncation at every page boundary and at random offsets",
        "FormatError when the file is opened, within 1 s",
        16,
        200,
        verify=("first",),
    ),
)
