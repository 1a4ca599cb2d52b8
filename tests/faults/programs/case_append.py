"""kill -9 while shards are added to a set: it is the old or the new one, and open readers go on."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from faults.case import Case, Figures, Outcome, tally
from faults.programs.case_kill import SUFFIXES, bytes_of, listed, photos
from faults.programs.child_runner import ChildRunner, End

SPLIT = ("--split", "train=0.8,val=0.2")


class Grower:
    """Appends of the same pictures to copies of the same set of shards."""

    def __init__(self, runner: ChildRunner, scratch: Path, container: str) -> None:
        self.runner = runner
        self.temporary = scratch / f"temporary of {container}"
        self.temporary.mkdir()
        self.folder = scratch / f"growing {container}"
        self.target = self.folder / "set"
        self.workspace = self.folder / ".set.asyncreader-tmp"
        first, self.source = (photos(scratch / f"{name} {container}") for name in ("first", "more"))
        (self.source / "class 1").rename(self.source / "a new class")
        self.folder.mkdir()
        kind = "hdf5" if container == "HDF5" else "lmdb"
        end = self._run(first, {}, "--shards", "2", "--format", kind)
        assert end.code == 0, end
        self.base = Path(shutil.copytree(self.folder, scratch / f"base {container}"))
        self.old = bytes_of(self.target)
        self.plain = self.append({})
        assert self.plain.code == 0, self.plain
        self.new = bytes_of(self.target)
        self.old_manifest, self.new_manifest = (
            (where / "set" / "asyncreader.json").read_bytes() for where in (self.base, self.folder)
        )

    def put_old(self) -> None:
        """Start with the set as it was."""
        shutil.rmtree(self.folder)
        shutil.copytree(self.base, self.folder)

    def append(self, plan: dict[str, object], *more: str, **happens: object) -> End:
        """One append of two shards."""
        return self._run(self.source, plan, "--append", "--shards", "2", *more, **happens)

    def _run(self, source: Path, plan: dict[str, object], *words: str, **happens: object) -> End:
        arguments = [str(source), str(self.target), "--encoding", "png", "--jobs", "2"]
        return self.runner.run(
            plan,
            arguments=[*arguments, *SPLIT, *words],
            temporary=str(self.temporary),
            **happens,
        )


@dataclass(frozen=True)
class Append:
    """kill -9 at random times, and at every kind of call that writes."""

    name: str = "append"
    row: str = "kill -9 while shards are added to a set"
    promise: str = (
        "the set is the old or the new one, readers that were open serve what they served, and "
        "the next run completes it"
    )
    short: int = 3
    long: int = 200

    def run(self, rounds: int, seed: int, scratch: Path) -> Iterator[Figures]:
        """A line for shards of each container; the short form tries one."""
        with ChildRunner("faults.programs.conversions") as runner:
            for container in list(SUFFIXES)[: 1 if rounds <= self.short else None]:
                grower = Grower(runner, scratch, container)
                yield tally(f"{container} shards", self._kills(grower, rounds, seed))

    def _kills(self, grower: Grower, rounds: int, seed: int) -> Iterator[Outcome]:
        from asyncreader import AsyncReader

        rng = random.Random(seed)
        calls = int(grower.plain.report["calls"])
        for number in range(rounds):
            grower.put_old()
            with AsyncReader(path=str(grower.target), batch_size=8, shuffle=True) as reader:
                epoch = epoch_of(reader)
                if number % 2:
                    after = rng.uniform(0, 1.1 * grower.plain.lived)
                    said = f"after {after:.4f} s"
                    end = grower.append({"signal": 9, "after": after})
                else:
                    # the last tenth of the calls gives the shards their names
                    first = calls * 9 // 10 if number % 4 else 0
                    at, after_it = rng.randint(first + 1, calls), bool(rng.getrandbits(1))
                    end = grower.append({}, kill_at=at, after_it=after_it)
                    said = f"{'after' if after_it else 'before'} {end.report.get('at')}"
                found, problem = found_in(grower, end)
                reader.seek(0)
                if problem is None and epoch_of(reader) != epoch:
                    problem = "the reader that was open serves something else"
            also: list[str] = []
            if problem is None and found == "old":
                problem = completed(grower, also)
            broken = () if problem is None else (f"{said}: {problem}",)
            yield Outcome(found, broken, also=tuple(also))


def epoch_of(reader: object) -> list[bytes]:
    """The bytes of all batches of an epoch."""
    return [
        np.asarray(part).tobytes()
        for batch in reader  # type: ignore[attr-defined]
        for part in (batch.data, batch.labels, batch.indices)
    ]


def found_in(grower: Grower, end: End) -> tuple[str, str | None]:
    """Which set is there, and what is wrong with it."""
    from asyncreader.tools.verify import verify_file

    manifest = (grower.target / "asyncreader.json").read_bytes()
    names = {grower.old_manifest: "old", grower.new_manifest: "new"}
    found = names.get(manifest, "neither")
    if end.code not in (0, -9) or end.hung or end.left:
        return found, f"{end.how}: {end.output[-300:]} {end.left}"
    report = verify_file(str(grower.target))
    if found == "neither" or not report.ok:
        return found, f"the set is {found}: {report.problems[:1]}"
    if end.code == 0 and found != "new":
        return found, "exit code 0, and the set is the old one"
    if listed(grower.temporary):
        return found, f"temporary files: {listed(grower.temporary)}"
    return found, None


def completed(grower: Grower, also: list[str]) -> str | None:
    """What is wrong after the next append. One that finds finished shards is refused, counted in
    ``also``, and repeated with --resume."""
    end = grower.append({})
    if end.code == 1 and "pass resume (--resume)" in end.output:
        also.append("finished shards kept, resumed")
        end = grower.append({}, "--resume")
    if end.code != 0:
        return f"the next run: {end.how}, {end.output[-300:]}"
    if bytes_of(grower.target) != grower.new:
        return "the next run made another set"
    if os.path.lexists(grower.workspace):
        return f"the next run left {listed(grower.workspace)}"
    return None


CASES: tuple[Case, ...] = (Append(),)
