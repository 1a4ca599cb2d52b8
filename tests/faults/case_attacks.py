"""The hostile corpus as a fault case: every attack through its entrances, canaries untouched."""

from __future__ import annotations

import re
import zlib
from collections import Counter
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from faults.attacks import all_attacks
from faults.attacks.corpus import FURTHER, Attack, Home
from faults.attacks.visits import Visit, Visitor
from faults.case import Case, Figures

#: What a visit may end in; anything else is a broken promise.
GOOD = ("refused", "served")
#: Seconds that a visit may take; those that measure, or start processes, take one or two by design.
LIMIT = 5.0
LIMITS = {"doctor": 15.0, "process": 15.0}
_ROOMS = {
    "hdf5_links": "HDF5",
    "hdf5_filters": "HDF5",
    "hdf5_bombs": "HDF5",
    "hdf5_types": "HDF5",
    "hdf5_compact": "HDF5",
    "hdf5_files": "HDF5",
    "lmdb_files": "LMDB",
    "shard_files": "shards",
    "images": "pictures",
    "several_fields": "fields and masks",
    "shown_names": "names that are shown",
    "stores": "stores",
    "folders": "folders and CSVs",
}


def room(attack: Attack) -> str:
    """What kind of thing an attack is."""
    return _ROOMS[attack.make.__module__.rpartition(".")[2]]


def entrances(attack: Attack, most: int) -> tuple[str, ...]:
    """The entrances that are tried, those that must refuse first."""
    order = sorted(attack.entrances, key=lambda entrance: entrance not in attack.refused)
    return (*order, *further(attack))[:most]


def further(attack: Attack) -> tuple[str, ...]:
    """The other entrances of what can be read."""
    # a worker process waits for a store that fails as long as users do: 20 s
    if "read" not in attack.entrances or room(attack) == "stores":
        return ()
    # a second each where the set opens: then for some of the attacks only
    slow = {"doctor": 4, "process": 8}
    drawn = zlib.crc32(attack.name.encode())
    return tuple(
        entrance
        for entrance in FURTHER
        if entrance not in attack.entrances
        and ("info" in attack.refused or drawn % slow.get(entrance, 1) == 0)
    )


def must_refuse(attack: Attack, entrance: str) -> bool:
    """Whether that entrance must answer with a typed error."""
    if entrance in FURTHER and entrance not in attack.entrances:
        # the page shows the first field alone, as verify does with others' sets
        alike = {"info", "verify"} if entrance == "page" else {"info"}
        return alike <= attack.refused
    return entrance in attack.refused


def broken(attack: Attack, visits: list[Visit]) -> list[str]:
    """The promises that were not kept, a line each."""
    lines = [
        f"{attack.name} by {visit.entrance}: {visit.outcome}: {' '.join(visit.said.split())[:300]}"
        for visit in visits
        if visit.outcome not in GOOD
    ]
    lines += [
        f"{attack.name} by {visit.entrance}: not refused"
        for visit in visits
        if visit.outcome == "served" and must_refuse(attack, visit.entrance)
    ]
    said = [visit.said for visit in visits if visit.entrance in attack.refused]
    if attack.says and said and not any(re.search(attack.says, text) for text in said):
        lines.append(f"{attack.name}: no error says {attack.says!r}: {said[0][:300]!r}")
    return lines


class Attacks:
    """Every attack of the corpus; a round is an entrance (read, info, verify, convert, face, and
    those of corpus.FURTHER)."""

    name = "attacks"
    row = "hostile corpus"
    promise = "100 % refused or served without harm, canaries untouched, each below 5 s and 2 GiB"
    short = 1
    long = 11

    def run(self, rounds: int, seed: int, scratch: Path) -> Iterator[Figures]:
        """A line for each kind of thing; ``seed`` is of no use here."""
        home = Home(scratch / "corpus")
        with Visitor(home) as visitor:
            for kind in dict.fromkeys(_ROOMS.values()):
                chosen = [attack for attack in all_attacks().values() if room(attack) == kind]
                if kind == "stores" and find_spec("obstore") is None:
                    yield Figures(kind, 0, {"obstore is not installed": 1})
                    continue
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
                        if visit.seconds > LIMITS.get(visit.entrance, LIMIT)
                    ]
                note = f"{len(chosen)} attacks"
                yield Figures(kind, trials, dict(counts), tuple(lines), note=note)


CASES: tuple[Case, ...] = (Attacks(),)
