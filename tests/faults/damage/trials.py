"""One process full of trials: each request names a job and a trial of it, the answer is what came
of it. case_damage.py knows by that which trial killed the process or made it hang."""

import os
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from child_processes import answer_requests

from faults.damage.damaged_bytes import Mutant, damage_structure, flip
from faults.damage.read_damaged import OTHER_SET, Expected, Outcome, read, verified
from faults.damage.regions import PAGE, regions
from faults.sets import KnownSet

#: Memory that a damaged file may ask for: more is a bomb.
LIMIT = 6 << 30


@dataclass(frozen=True)
class Job:
    """Trials of one kind on some sets, one set after the other."""

    kind: str
    """"flips", "structure", "live" or "truncations"."""
    sets: list[str]
    """KnownSet.to_json of each."""
    verify: str
    seed: int
    scratch: str


class DamagedSet:
    """One set to be damaged: its sound bytes, and what they should yield."""

    def __init__(self, text: str, scratch: Path) -> None:
        self.known = KnownSet.from_json(text)
        self.sound = self.known.file.read_bytes()
        self.parts = regions(self.known)
        self.expected = Expected(self.known)
        other = Path(self.known.other)
        if self.known.container == "LMDB":
            self.path = scratch / "set.lmdb"
            self.path.mkdir(exist_ok=True)
            self.file = self.path / "data.mdb"
            self.other = (other / "data.mdb").read_bytes()
        else:
            self.path = self.file = scratch / "set.h5"
            self.other = other.read_bytes()

    def write(self, data: bytes) -> None:
        """A new file replaces the old one: mappings of the old one stay whole."""
        fresh = self.file.with_name("fresh")
        fresh.write_bytes(data)
        os.replace(fresh, self.file)

    def mutant(self) -> Mutant:
        return Mutant(bytearray(self.sound), self.parts, len(self.expected.data), self.other)


def flips(target: DamagedSet, job: Job, number: int) -> tuple[str, Outcome]:
    """One byte is another."""
    rng = np.random.default_rng((job.seed, 1, number))
    mutant = target.mutant()
    said = flip(mutant, rng)
    return said, _try(target, job, number, bytes(mutant.data))


def structure(target: DamagedSet, job: Job, number: int) -> tuple[str, Outcome]:
    """A change of the structure."""
    rng = np.random.default_rng((job.seed, 2, number))
    mutant = target.mutant()
    said = damage_structure(mutant, rng)
    return said, _try(target, job, number, bytes(mutant.data))


def _try(target: DamagedSet, job: Job, number: int, data: bytes) -> Outcome:
    target.write(data)
    known, expected = target.known, target.expected
    io = ("auto", "mmap", "pread")[number % 3]
    outcome = read(known, expected, target.path, job.verify, number, io=io, epochs=1 + number % 2)
    if number % 8 == 0 and outcome.verdict not in ("silent wrong", "short", "untyped"):
        by_command = verified(target.path)
        if by_command.verdict == "untyped":
            return by_command
        if by_command.verdict == "right" and outcome.verdict not in ("right", OTHER_SET):
            return Outcome("silent wrong", f"verify finds nothing where reading: {outcome.said}")
    return outcome


def live(target: DamagedSet, job: Job, number: int) -> tuple[str, Outcome]:
    """Bytes change under an open reader: some flips, a page of zeros, or noise."""
    rng = np.random.default_rng((job.seed, 3, number))
    target.write(target.sound)
    mutant = target.mutant()
    said: list[str] = []

    def change_bytes() -> None:
        if number % 3 == 2:
            at = mutant.parts.offset(rng, "anywhere") // PAGE * PAGE
            size = min(PAGE, len(mutant.data) - at)
            mutant.data[at : at + size] = bytes(size) if rng.random() < 0.5 else rng.bytes(size)
            said.append(f"page at {at}")
        else:
            said.extend(flip(mutant, rng) for _ in range(4))
        with open(target.file, "r+b") as file:
            file.write(mutant.data)

    io = ("mmap", "pread", "auto")[number // 3 % 3]
    outcome = read(
        target.known,
        target.expected,
        target.path,
        job.verify,
        number,
        io=io,
        epochs=2,
        meanwhile=change_bytes,
    )
    return f"io={io}, " + "; ".join(said), outcome


def truncations(target: DamagedSet, job: Job, number: int) -> tuple[str, Outcome]:
    """The file ends early: at each page's edge, then at random offsets."""
    edges = range(0, len(target.sound), PAGE)
    which = number // len(job.sets)
    rng = np.random.default_rng((job.seed, 4, number))
    size = edges[which] if which < len(edges) else int(rng.integers(1, len(target.sound)))
    target.write(target.sound[:size])
    outcome = read(target.known, target.expected, target.path, job.verify, number)
    if outcome.verdict == "FormatError" and outcome.seconds >= 1:
        outcome = Outcome("slow", outcome.said, outcome.seconds)
    elif outcome.verdict in ("ChecksumError", "DecodeError"):
        outcome = Outcome("not at open", outcome.said, outcome.seconds)
    return f"cut to {size} of {len(target.sound)}", outcome


KINDS: dict[str, Callable[[DamagedSet, Job, int], tuple[str, Outcome]]] = {
    "flips": flips,
    "structure": structure,
    "live": live,
    "truncations": truncations,
}


class Trials:
    """The jobs of one process; the sets of the last one are kept."""

    def __init__(self) -> None:
        self._job: Job | None = None
        self._targets: list[DamagedSet] = []

    def answer(self, request: tuple[dict[str, Any], int]) -> dict[str, Any]:
        """What came of one trial of a job."""
        job, number = Job(**request[0]), request[1]
        if job != self._job:
            scratch = Path(job.scratch)
            scratch.mkdir(exist_ok=True)
            self._job, self._targets = job, [DamagedSet(text, scratch) for text in job.sets]
        target = self._targets[number % len(self._targets)]
        said, outcome = KINDS[job.kind](target, job, number)
        return {"did": said, **asdict(outcome)}


if __name__ == "__main__":
    warnings.simplefilter("ignore")  # an error is what counts, not what is said before it
    answer_requests(Trials().answer, LIMIT)
