"""A full disk: whichever write fails, the conversion ends with exit code 1 and leaves nothing."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from faults.case import Case, Figures, Outcome, tally
from faults.programs.case_kill import SHARDS, SUFFIXES, Packer, bytes_of, listed
from faults.programs.child_runner import ChildRunner, End

#: Encodings and options that write in different ways.
KINDS = {
    "HDF5": (["raw"], ["png"], ["raw", "--compression", "gzip", "--chunk", "8"]),
    "LMDB": (["raw"], ["png"]),
}
#: KiB between two sizes: tmpfs gives whole pages.
STEP = 4
#: At most so many calls and disks are tried for one kind of set.
MOST_CALLS = 400
MOST_DISKS = 60


def trouble(packer: Packer, end: End) -> str | None:
    """The promise that this conversion broke."""
    if end.hung or end.left or end.code != 1:
        return f"{end.how}: {end.output[-600:]}"
    if "Traceback" in end.output:
        return f"a traceback: {end.output[-900:]}"
    last = end.output.strip().rpartition("\n")[2]
    if not ("error: " in last and "bytes free" in last and "more" in last):
        return f"no line with needed and free bytes: {end.output[-300:]}"
    kept = "finished shards are kept" in last
    if ("nothing was left behind" in last) == kept:
        return f"the message must say either that nothing was left or that shards were kept: {last}"
    if listed(packer.folder) != ([packer.workspace] if kept else []):
        return f"left behind: {listed(packer.folder)}"
    if listed(packer.temporary):
        return f"temporary files: {listed(packer.temporary)}"
    return None


@contextmanager
def disk(folder: Path, kib: int) -> Iterator[None]:
    """A file system of that many KiB at ``folder``. OSError where mounting is not allowed."""
    size = f"size={kib}k"
    command = ["mount", "-t", "tmpfs", "-o", size, "none", str(folder)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        raise OSError("mounting is not allowed here")
    try:
        yield
    finally:
        subprocess.run(["umount", str(folder)], check=True)


@dataclass(frozen=True)
class Full:
    """``rounds``: how many of the calls that could fail are tried at most, evenly spread: all of
    them in the long form, but for ``MOST_CALLS`` and ``MOST_DISKS``."""

    name: str = "full"
    row: str = "full disk: any of the writes fails"
    promise: str = (
        "exit code 1, a message with the bytes needed and free, no target left, no signal"
    )
    short: int = 2
    long: int = 100_000

    def run(self, rounds: int, seed: int, scratch: Path) -> Iterator[Figures]:
        """Three lines for each kind of set, one for each way in which the disk is full."""
        with ChildRunner("faults.programs.conversions") as runner:
            for packer, options, what in self._packers(runner, rounds, scratch):
                for words, full in WAYS.items():
                    try:
                        ends = full(packer, options, rounds)
                        yield tally(f"{what}, {words}", outcomes(packer, options, ends))
                    except OSError as exc:
                        yield Figures(f"{what}, {words}", 0, {str(exc): 1})

    def _packers(
        self, runner: ChildRunner, rounds: int, scratch: Path
    ) -> Iterator[tuple[Packer, list[str], str]]:
        """Each kind of set; the short form tries one for each container."""
        short = rounds <= self.short
        number = 0
        for container in SUFFIXES:
            kinds = KINDS[container][: 1 if short else None]
            for sharded, masks in ((False, False), (True, False), (False, True)):
                if short and (sharded or masks):
                    continue
                for options in kinds if not sharded and not masks else kinds[:1]:
                    folder = scratch / f"{container} {number}"
                    folder.mkdir()
                    number += 1
                    packer = Packer(runner, folder, container, sharded, masks)
                    words = [word.lstrip("-") for word in options]
                    words += [f"{SHARDS} shards"] * sharded + ["with masks"] * masks
                    yield packer, options, f"{container} {' '.join(words)}"


#: Conversions: what was done, and how each ended.
Ends = Iterator[tuple[str, End]]


def failing(packer: Packer, options: list[str], rounds: int) -> Ends:
    """One writing call of the converter fails with ENOSPC: with all that follow, or alone."""
    writes = int(run(packer, options, fail_at=1 << 30).report["writes"])
    packer.clear()
    for at in spread(writes, rounds):
        for for_good in (True, False):
            end = run(packer, options, fail_at=at, for_good=for_good)
            said = f"write {at} of {writes}, {end.report.get('at')}"
            yield f"{said}{' and all that follow' if for_good else ''}", end


def limited(packer: Packer, options: list[str], rounds: int) -> Ends:
    """From some call on RLIMIT_FSIZE lets no file grow: writes of HDF5 and LMDB fail too."""
    calls = int(run(packer, options).report["calls"])
    packer.clear()
    for at in spread(calls, min(rounds, MOST_CALLS)):
        end = run(packer, options, full_at=at)
        yield f"from call {at} of {calls} on, {end.report.get('at')}", end


def small_disks(packer: Packer, options: list[str], rounds: int) -> Ends:
    """A real file system of every size up to what is needed."""
    run(packer, options)
    files = [file for file in packer.folder.rglob("*") if file.is_file()]
    sizes = (sum(file.stat().st_size for file in files) // 1024 + 512) // STEP
    packer.empty()
    for size in spread(sizes, min(rounds, MOST_DISKS)):
        with disk(packer.folder, max(8, size * STEP)):
            end = run(packer, options)
            yield f"a disk of {size * STEP} KiB", end


#: How the disk is full, in words.
WAYS = {
    "one write fails, alone or with all that follow": failing,
    "no write succeeds from some call on": limited,
    "small disks": small_disks,
}


def outcomes(
    packer: Packer, options: list[str], ends: Iterator[tuple[str, End]]
) -> Iterator[Outcome]:
    """What came of each conversion. Then the folder is emptied for the next one."""
    for said, end in ends:
        if end.code == 0 and bytes_of(packer.target) is not None:
            # no write that it needed failed: the set must be whole
            verdict, left = "packed whole", listed(packer.folder)
            problem = None if left == [packer.target.name] else f"left {left}"
        else:
            verdict = "disk full, exit code 1" if "bytes free" in end.output else end.how
            problem = trouble(packer, end)
        broken = () if problem is None else (f"{' '.join(options)}: {said}: {problem}",)
        yield Outcome(verdict, broken)
        packer.clear()


def spread(count: int, rounds: int) -> list[int]:
    """1 .. count, or ``rounds`` of them."""
    if count <= rounds:
        return list(range(1, count + 1))
    return sorted({1 + number * (count - 1) // (rounds - 1) for number in range(rounds)})


def run(packer: Packer, options: list[str], **happens: object) -> End:
    """One conversion with these options."""
    return packer.run({}, options[0], more=options[1:], **happens)


CASES: tuple[Case, ...] = (Full(),)
