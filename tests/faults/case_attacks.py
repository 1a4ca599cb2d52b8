"""Hostile files: each attack is opened in every way, and the canary files are not touched."""

import re
import zlib
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from faults.case import Case, Figures, Outcome, tally
from faults.hostile import all_attacks
from faults.hostile.corpus import OTHER_WAYS, Attack, Corpus
from faults.hostile.runner import AttackRunner, Result

#: Good outcomes of an attack; any other is a broken promise.
GOOD = ("refused", "served")
#: Seconds that opening an attack in one way may take. Ways that measure or start processes take
#: one or two.
LIMIT = 5.0
LIMITS = {"doctor": 15.0, "process": 15.0}
_GROUPS = {
    "hdf5": "HDF5",
    "lmdb_files": "LMDB",
    "shard_files": "shards",
    "images": "pictures",
    "several_fields": "fields and masks",
    "shown_names": "displayed names",
    "stores": "stores",
    "folders": "folders and CSVs",
}


def group(attack: Attack) -> str:
    """The kind of file that an attack uses: HDF5, LMDB, shards, pictures, ..."""
    return _GROUPS[attack.make.__module__.split(".")[2]]  # the module in faults.hostile


def ways(attack: Attack, most: int) -> tuple[str, ...]:
    """The ways in which an attack is opened; those that must refuse come first."""
    order = sorted(attack.ways, key=lambda way: way not in attack.refused)
    return (*order, *other_ways(attack))[:most]


def other_ways(attack: Attack) -> tuple[str, ...]:
    """Other ways to open an attack that can be read."""
    # a worker process waits for a store that fails as long as users do: 20 s
    if "read" not in attack.ways or group(attack) == "stores":
        return ()
    # a second each where the set opens: then for some of the attacks only
    slow = {"doctor": 4, "process": 8}
    drawn = zlib.crc32(attack.name.encode())
    return tuple(
        way
        for way in OTHER_WAYS
        if way not in attack.ways and ("info" in attack.refused or drawn % slow.get(way, 1) == 0)
    )


def must_refuse(attack: Attack, way: str) -> bool:
    """Whether this way must raise a typed error."""
    if way in OTHER_WAYS and way not in attack.ways:
        # the page shows the first field alone, as verify does with others' sets
        alike = {"info", "verify"} if way == "page" else {"info"}
        return alike <= attack.refused
    return way in attack.refused


def broken(attack: Attack, results: list[Result]) -> list[str]:
    """Each broken promise in one line."""
    lines = [
        f"{attack.name} by {one.way}: {one.outcome}: {' '.join(one.said.split())[:300]}"
        for one in results
        if one.outcome not in GOOD
    ]
    lines += [
        f"{attack.name} by {result.way}: not refused"
        for result in results
        if result.outcome == "served" and must_refuse(attack, result.way)
    ]
    said = [result.said for result in results if result.way in attack.refused]
    if attack.says and said and not any(re.search(attack.says, text) for text in said):
        lines.append(f"{attack.name}: no error says {attack.says!r}: {said[0][:300]!r}")
    return lines


class Attacks:
    """Every attack of the corpus. Each round opens it in one more way: read, info, verify,
    convert, drop_in, and those of corpus.OTHER_WAYS."""

    name = "attacks"
    row = "hostile files"
    promise = "each refused or served without harm within 5 s and 2 GiB, no secret read or changed"
    short = 1
    long = 11

    def run(self, rounds: int, seed: int, scratch: Path) -> Iterator[Figures]:
        """A line for each kind of file; ``seed`` is not used."""
        corpus = Corpus(scratch / "corpus")
        with AttackRunner(corpus) as runner:
            for kind in dict.fromkeys(_GROUPS.values()):
                chosen = [attack for attack in all_attacks().values() if group(attack) == kind]
                if kind == "stores" and find_spec("obstore") is None:
                    yield Figures(kind, 0, {"obstore is not installed": 1})
                    continue
                yield tally(kind, _outcomes(runner, chosen, rounds))


def _outcomes(runner: AttackRunner, attacks: list[Attack], rounds: int) -> Iterator[Outcome]:
    """Each attack in its first ``rounds`` ways."""
    for attack in attacks:
        results = list(runner.run(attack, ways(attack, rounds)))
        lines = broken(attack, results)
        for result in results:
            if result.seconds > LIMITS.get(result.way, LIMIT):
                lines.append(f"{attack.name} by {result.way} took {result.seconds:.1f} s")
            yield Outcome(result.outcome, tuple(lines))
            lines = []


CASES: tuple[Case, ...] = (Attacks(),)
