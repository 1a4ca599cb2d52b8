"""A full disk: whichever write fails, the conversion ends with exit code 1 and leaves nothing."""

from __future__ import annotations

import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from faults.case import Case, Figures
from faults.case_kill import SUFFIXES, Packer, bytes_of, listed
from faults.nursery import End, nursery

#: Encodings and options that write in different ways.
KINDS = {
    "HDF5": (["raw"], ["png"], ["raw", "--compression", "gzip", "--chunk", "8"]),
    "LMDB": (["raw"], ["png"]),
}


def trouble(packer: Packer, end: End, full: bool) -> str | None:
    """What was not as promised; ``full``: the error must be that there is no room."""
    if end.hung or end.left or end.code != 1:
        return f"{end.how}: {end.said[-600:]}"
    if "Traceback" in end.said:
        return f"a traceback: {end.said[-900:]}"
    if full and not ("bytes free" in end.said and "more" in end.said):
        return f"no needed and free bytes: {end.said[-300:]}"
    if listed(packer.folder):
        return f"left behind: {listed(packer.folder)}"
    if listed(packer.temporary):
        return f"temporary files: {listed(packer.temporary)}"
    return None


@contextmanager
def disk(place: Path, kib: int) -> Iterator[None]:
    """A file system of that many KiB at ``place``. OSError where mounting is not allowed."""
    size = f"size={kib}k"
    command = ["mount", "-t", "tmpfs", "-o", size, "none", str(place)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        raise OSError("mounting is not allowed here")
    try:
        yield
    finally:
        subprocess.run(["umount", str(place)], check=True)


@dataclass(frozen=True)
class Full:
    """``rounds``: how many of the calls that could fail are tried at most, evenly spread."""

    name: str = "full"
    row: str = "disk full: the k-th write fails"
    promise: str = "exit code 1, the message with needed and free bytes, no target, no signal"
    short: int = 2
    long: int = 100_000

    def run(self, rounds: int, seed: int, scratch: Path) -> Iterator[Figures]:
        """Three lines to a container: how the disk comes to be full."""
        with nursery("faults.packing") as place:
            for container in SUFFIXES:
                packers = []
                for number, options in enumerate(KINDS[container]):
                    folder = scratch / f"{container} {number}"
                    folder.mkdir()
                    packers.append((Packer(place, folder, container), options))
                    if rounds <= self.short:
                        break
                yield self._failing(packers, container, rounds)
                yield self._limited(packers, container, rounds)
                yield self._small_disks(packers, container, rounds)

    def _failing(
        self, packers: list[tuple[Packer, list[str]]], container: str, rounds: int
    ) -> Figures:
        """Each call of ours that writes is ENOSPC; then that one alone."""

        def tries(packer: Packer, options: list[str]) -> Iterator[tuple[str, End, bool]]:
            whole = run(packer, options, fail_at=1 << 30)
            writes = int(whole.report["writes"])
            packer.clear()
            for at in spread(writes, rounds):
                for for_good in (True, False):
                    end = run(packer, options, fail_at=at, for_good=for_good)
                    what = f"write {at} of {writes}, {end.report.get('at')}"
                    yield f"{what}{', and all behind it' if for_good else ''}", end, True

        return self._count(packers, f"{container}, a write of ours fails", tries)

    def _limited(
        self, packers: list[tuple[Packer, list[str]]], container: str, rounds: int
    ) -> Figures:
        """No file may grow from some call on, by RLIMIT_FSIZE: writes of HDF5 and LMDB fail too."""

        def tries(packer: Packer, options: list[str]) -> Iterator[tuple[str, End, bool]]:
            calls = int(run(packer, options).report["calls"])
            packer.clear()
            for at in spread(calls, min(rounds, 120)):
                end = run(packer, options, full_at=at)
                yield f"from call {at} of {calls} on, {end.report.get('at')}", end, False

        return self._count(packers, f"{container}, no write succeeds from some call on", tries)

    def _small_disks(
        self, packers: list[tuple[Packer, list[str]]], container: str, rounds: int
    ) -> Figures:
        """A real file system of every size up to what is needed."""

        def tries(packer: Packer, options: list[str]) -> Iterator[tuple[str, End, bool]]:
            run(packer, options)
            size = sum(file.stat().st_size for file in packer.folder.rglob("*")) // 1024
            packer.empty()
            for kib in spread(size + 512, min(rounds, 40)):
                with disk(packer.folder, max(8, kib)):
                    end = run(packer, options)
                    yield f"a disk of {kib} KiB", end, True

        what = f"{container}, on disks of all sizes"
        try:
            return self._count(packers, what, tries)
        except OSError as exc:
            return Figures(what, 0, {str(exc): 1})

    def _count(
        self,
        packers: list[tuple[Packer, list[str]]],
        what: str,
        tries: Callable[[Packer, list[str]], Iterator[tuple[str, End, bool]]],
    ) -> Figures:
        counts: Counter[str] = Counter()
        broken: list[str] = []
        for packer, options in packers:
            for said, end, full in tries(packer, options):
                if end.code == 0 and bytes_of(packer.target) is not None:
                    # nothing that it needed failed: then the set is whole
                    counts["packed whole"] += 1
                    found = None
                    if listed(packer.folder) != [packer.target.name]:
                        found = f"left {listed(packer.folder)}"
                else:
                    found = trouble(packer, end, full)
                    no_room = "bytes free" in end.said
                    counts["no room, exit code 1" if no_room else f"exit code {end.code}"] += 1
                if found is not None:
                    broken.append(f"{' '.join(options)}: {said}: {found}")
                packer.clear()
        return Figures(what, counts.total(), dict(counts), tuple(broken))


def spread(count: int, rounds: int) -> list[int]:
    """1 .. count, or ``rounds`` of them."""
    if count <= rounds:
        return list(range(1, count + 1))
    return sorted({1 + number * (count - 1) // (rounds - 1) for number in range(rounds)})


def run(packer: Packer, options: list[str], **happens: object) -> End:
    """One conversion with these options."""
    return packer.run({}, options[0], more=options[1:], **happens)


CASES: tuple[Case, ...] = (Full(),)
