"""kill -9 during a conversion: the target is old, absent or complete, and leftovers go."""

import hashlib
import os
import random
import shutil
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from PIL import Image

from faults.case import Case, Figures, Outcome, tally
from faults.programs.child_runner import ChildRunner, End
from faults.sets import painted

PICTURES = 40
SUFFIXES = {"HDF5": ".h5", "LMDB": ".lmdb"}
#: Shards of a set of shards.
SHARDS = 3


def photos(folder: Path, mode: str = "RGB") -> Path:
    """Pictures in two classes: noise, so that encoding takes a while."""
    for number in range(PICTURES):
        class_folder = folder / f"class {number % 2}"
        class_folder.mkdir(parents=True, exist_ok=True)
        noise = Image.fromarray(np.tile(painted(number, 48, 5), (1, 2, 1)))
        noise.convert(mode).save(class_folder / f"{number:03}.png")
    return folder


def bytes_of(target: Path) -> str | None:
    """Digest of a set: of its file, or of all files in its folder; None where there is none."""
    if not os.path.lexists(target):
        return None
    files = [target] if target.is_file() else sorted(target.rglob("*"))
    state = hashlib.sha256()
    for file in files:
        if file.name != "lock.mdb":
            state.update(f"{file.name} {file.stat().st_size}\n".encode() + file.read_bytes())
    return state.hexdigest() if files else None


def listed(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


class Packer:
    """Conversions of the same pictures to the same target: a file, or ``sharded`` a folder."""

    def __init__(
        self,
        runner: ChildRunner,
        scratch: Path,
        container: str,
        sharded: bool = False,
        masks: bool = False,
        added: bool = False,
    ) -> None:
        self.runner = runner
        self.added = added
        self.source = photos(scratch / f"photos {container}")
        self.always: tuple[str, ...] = ()
        if sharded:
            kind = "hdf5" if container == "HDF5" else "lmdb"
            self.always = ("--shards", str(SHARDS), "--format", kind)
        if masks:
            self.always = ("--field", f"mask={photos(scratch / f'masks {container}', 'L')}")
        self.sharded = sharded
        self.folder = scratch / f"to {container}"
        self.temporary = scratch / f"temporary {container}"
        self.target = self.folder / ("set" if sharded else f"set{SUFFIXES[container]}")
        self.workspace = f".{self.target.name}.asyncreader-tmp"
        self.temporary.mkdir()
        self.empty()
        self.old = self._made("png")
        self.new = self._made("raw")
        assert self.old != self.new

    def empty(self) -> None:
        """Start with empty folders."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir()

    def clear(self) -> None:
        """Remove what the folder holds, not the folder: it may be a mounted disk."""
        for entry in self.folder.iterdir():
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()

    def _made(self, encoding: str) -> str:
        from asyncreader.tools.verify import verify_file

        end = self.run({}, encoding=encoding)
        assert end.code == 0, end
        report = verify_file(str(self.target))
        assert report.ok
        assert report.count == PICTURES
        digest = bytes_of(self.target)
        assert digest is not None
        # the file follows from the pictures alone: whatever has these bytes is this set, complete
        shutil.copytree(self.folder, self.folder.with_name(f"{self.folder.name} {encoding}"))
        self.empty()
        return digest

    def put_old(self) -> None:
        """Put the old set under the target's name."""
        shutil.rmtree(self.folder)
        shutil.copytree(self.folder.with_name(f"{self.folder.name} png"), self.folder)

    def run(
        self,
        plan: dict[str, object],
        encoding: str = "raw",
        overwrite: bool = False,
        more: Sequence[str] = (),
        **happens: object,
    ) -> End:
        """One conversion."""
        return self.runner.run(
            plan,
            arguments=[
                *(str(self.source), str(self.target), "--encoding", encoding, "--jobs", "2"),
                *(["--overwrite"] if overwrite else []),
                *self.always,
                *more,
            ],
            temporary=str(self.temporary),
            added=self.added,
            **happens,
        )


@dataclass(frozen=True)
class Kill:
    """kill -9 at random times, and at every kind of call that writes."""

    name: str = "kill"
    row: str = "kill -9 during a conversion"
    promise: str = "the target is old, absent or complete, and the next run removes all leftovers"
    short: int = 2
    long: int = 200

    def run(self, rounds: int, seed: int, scratch: Path) -> Iterator[Figures]:
        """A line for each container, and for shards of each; the short form tries shards of one."""
        with ChildRunner("faults.programs.conversions") as runner:
            for container in SUFFIXES:
                packer = Packer(runner, scratch, container)
                yield self._figures(packer, container, rounds, seed)
            for container in list(SUFFIXES)[: 1 if rounds <= self.short else None]:
                folder = scratch / "shards"
                folder.mkdir(exist_ok=True)
                packer = Packer(runner, folder, container, sharded=True)
                yield self._figures(packer, f"{container}, {SHARDS} shards", rounds, seed)

    def _figures(self, packer: Packer, what: str, rounds: int, seed: int) -> Figures:
        """Of all conversions that are killed, and of a second one that must be refused."""
        killed = tally(what, self._kills(packer, rounds, random.Random(seed)))
        problem = refused(packer)
        counts = {**killed.counts, "concurrent second run refused": int(problem is None)}
        broken = killed.broken if problem is None else (*killed.broken, problem)
        return replace(killed, counts=counts, broken=broken)

    def _kills(self, packer: Packer, rounds: int, rng: random.Random) -> Iterator[Outcome]:
        plain = packer.run({})
        calls = int(plain.report["calls"])
        for number in range(rounds):
            overwrite = number % 4 >= 2
            packer.put_old() if overwrite else packer.empty()
            if number % 2:
                after = rng.uniform(0, 1.1 * plain.lived)
                said = f"after {after:.4f} s"
                end = packer.run({"signal": 9, "after": after}, overwrite=overwrite)
            else:
                at, after_it = 1 + number * calls // rounds, bool(rng.getrandbits(1))
                end = packer.run({}, overwrite=overwrite, kill_at=at, after_it=after_it)
                said = f"{'after' if after_it else 'before'} call {at}, {end.report.get('at')}"
            if end.code == 0:
                said += " (it had ended)"
            found, problem = self._found(packer, end, overwrite)
            also: list[str] = []
            if problem is None:
                problem = self._next(packer, also, at_once=packer.sharded and number % 3 == 0)
            where = f"{said}, {'overwrite' if overwrite else 'fresh'}"
            yield Outcome(
                found, () if problem is None else (f"{where}: {problem}",), also=tuple(also)
            )

    def _found(self, packer: Packer, end: End, overwrite: bool) -> tuple[str, str | None]:
        """What the target holds, and what is wrong with it."""
        digest = bytes_of(packer.target)
        names = {packer.old: "old", packer.new: "complete", None: "absent"}
        kind = names.get(digest, "neither")
        others = [name for name in listed(packer.folder) if name != packer.target.name]
        if end.code not in (0, -9) or end.hung or end.left:
            return kind, f"{end.how}: {end.output[-300:]} {end.left}"
        # a folder cannot be renamed over another: for a moment there is none, and the next run puts
        # the old one back
        held = packer.folder / packer.workspace / "old"
        moved = packer.sharded and overwrite and bytes_of(held) == packer.old
        if kind == "absent" and moved:
            kind = "absent, the old one put back by the next run"
        elif kind == "neither" or kind == ("absent" if overwrite else "old"):
            return kind, f"the target is {kind}"
        if end.code == 0 and kind != "complete":
            return kind, f"exit code 0, and the target is {kind}"
        if others not in ([], [packer.workspace]):
            return kind, f"next to it lies {others}"
        if listed(packer.temporary):
            return kind, f"temporary files: {listed(packer.temporary)}"
        return kind, None

    def _next(self, packer: Packer, also: list[str], at_once: bool) -> str | None:
        """What is wrong after the next conversion to that target. ``at_once``: with --resume. Else
        one that finds finished shards is refused, counted in ``also``, and repeated with it."""
        there = packer.target.exists() or (packer.folder / packer.workspace / "old").exists()
        half = packer.folder / packer.workspace / "set"
        if half.is_dir() and (problem := readable(packer, half)) is not None:
            return problem
        end = packer.run({}, overwrite=there, more=["--resume"] if at_once else [])
        if packer.sharded and end.code == 1 and "pass resume (--resume)" in end.output:
            also.append("finished shards kept, resumed")
            end = packer.run({}, overwrite=there, more=["--resume"])
        if end.code != 0:
            return f"the next run: {end.how}, {end.output[-300:]}"
        if bytes_of(packer.target) != packer.new:
            return "the next run made another set"
        if listed(packer.folder) != [packer.target.name]:
            return f"the next run left {listed(packer.folder)}"
        return None


def readable(packer: Packer, half: Path) -> str | None:
    """What is wrong with the folder of an unfinished sharded set: reading it must be refused, or
    serve the whole set."""
    from asyncreader import AsyncReader
    from asyncreader.errors import SourceError

    if not packer.sharded:
        return None
    try:
        with AsyncReader(path=str(half), batch_size=PICTURES) as reader:
            count = reader.count
    except SourceError:
        return None
    whole = bytes_of(half) == packer.new
    return None if whole else f"half a set is read as {count} samples: {listed(half)}"


def refused(packer: Packer) -> str | None:
    """What is wrong with a conversion to a target that another one writes: it must be refused."""
    packer.empty()
    ends: list[End] = []
    fifo = packer.temporary.with_name("fifo")
    os.mkfifo(fifo)
    given = {
        "arguments": [str(packer.source), str(packer.target), *packer.always],
        "temporary": str(packer.temporary),
        "wait_at": 60,
        "fifo": str(fifo),
        "added": packer.added,
    }
    with ChildRunner("faults.programs.conversions") as other:
        first = threading.Thread(target=lambda: ends.append(other.run({}, **given)))
        first.start()
        while first.is_alive():
            try:
                held = os.open(fifo, os.O_WRONLY | os.O_NONBLOCK)
                break
            except OSError:  # it is not there yet
                time.sleep(0.01)
        second = packer.run({})
        between = listed(packer.folder)
        os.close(held)
        first.join()
    fifo.unlink()
    if second.code != 1 or "another run is writing this target" not in second.output:
        return f"next to a running one: {second.how}, {second.output[-300:]}"
    if between != [packer.workspace]:
        return f"the refused one left {between}"
    if ends[0].code != 0 or bytes_of(packer.target) is None:
        return f"the first one: {ends[0].how}, {ends[0].output[-300:]}"
    return None


@dataclass(frozen=True)
class KillWriter(Kill):
    """The same of programs that add samples to a Writer."""

    name: str = "kill-writer"
    row: str = "kill -9 while samples are added to a Writer"

    def run(self, rounds: int, seed: int, scratch: Path) -> Iterator[Figures]:
        """A line for each container, and for shards; the short form leaves LMDB out."""
        kinds = (("HDF5", False), ("LMDB", False), ("HDF5", True))
        with ChildRunner("faults.programs.conversions") as runner:
            for container, sharded in kinds[:: 2 if rounds <= self.short else 1]:
                folder = scratch / f"sharded {sharded}"
                folder.mkdir(exist_ok=True)
                packer = Packer(runner, folder, container, sharded=sharded, added=True)
                what = f"{container}, {SHARDS} shards" if sharded else container
                yield self._figures(packer, what, rounds, seed)


CASES: tuple[Case, ...] = (Kill(), KillWriter())
