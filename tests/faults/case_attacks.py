"""The hostile corpus as a fault case: every attack through its entrances, canaries untouched."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from faults.attacks import all_attacks
from faults.attacks.corpus import Attack, Home
from faults.attacks.visits import Visit, Visitor
from faults.case import Case, Figures

#: What a visit may end in; anything else is a broken promise.
GOOD = ("refused", "served")
#: Seconds that a visit may take.
LIMIT = 5.0
_ROOMS = {
    "hdf5_links": "HDF5",
    "hdf5_filters": "HDF5",
    "hdf5_bombs": "HDF5",
    "hdf5_types": "HDF5",
    "hdf5_files": "HDF5",
    "lmdb_files": "LMDB",
    "shard_files": "shards",
    "images": "pictures",
    "folders": "folders and CSVs",
}


def room(attack: Attack) -> str:
    """What kind of thing an attack is."""
    return _ROOMS[attack.make.__module__.rpartition(".")[2]]


def entrances(attack: Attack, most: int) -> tuple[str, ...]:
    """The entrances that are tried, those that must refuse first."""
    order = sorted(attack.entrances, key=lambda entrance: entrance not in attack.refused)
    return tuple(order[:most])


def broken(attack: Attack, visits: list[Visit]) -> list[str]:
    """The promises that were not kept, a line each."""
    lines = [
        f"{attack.name} by {visit.entrance}: {visit.outcome}: {' '.join(visit.said.split())[:300]}"
        for visit in visits
        if visit.outcome not in GOOD
    ]
    said = [visit.said for visit in visits if visit.entrance in attack.refused]
    if attack.says and said and not any(re.search(attack.says, text) for text in said):
        lines.append(f"{attack.name}: no error says {attack.says!r}: {said[0][:300]!r}")
    return lines


class Attacks:
    """Every attack of the corpus; a round is an entrance (read, info, verify, convert, face)."""

    name = "attacks"
    row = "hostile corpus"
    promise = "100 % refused or served without harm, canaries untouched, each below 5 s and 2 GiB"
    short = 1
    long = 5

    def run(self, rounds: int, seed: int, scratch: Path) -> Iterator[Figures]:
        """A line for each kind of thing; ``seed`` is of no use here."""
        home = Home(scratch / "corpus")
        with Visitor(home) as visitor:
            for kind in dict.fromkeys(_ROOMS.values()):
                chosen = [attack for attack in all_attacks().values() if room(attack) == kind]
                counts: Counter[str] = Counter()
                lines: list[str] = []
                trials = 0
                for attack in chosen:
                    visits = list(visitor.visits(attack, entrances(attack, rounds)))
                    trials += len(visits)
                    counts.update(visit.outcome for visit in visits)
                    lines += broken(attack, visits)
                    lines += [
                        f"{attack.name} by {visit.entrance} took {visit.seconds:.1f} s"
                        for visit in visits
                        if visit.seconds > LIMIT
                    ]
                note = f"{len(chosen)} attacks"
                yield Figures(kind, trials, dict(counts), tuple(lines), note=note)


CASES: tuple[Case, ...] = (Attacks(),)
