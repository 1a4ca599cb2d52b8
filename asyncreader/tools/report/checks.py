"""Checks of a set from its facts: good, to look at, or bad, each in one sentence."""

from __future__ import annotations

from typing import Final

from ...sources import OpenSet
from ...system.text import some
from .facts import Check, Facts

#: Above this ratio of the largest class to the smallest, the check of classes says "look".
UNEVEN: Final = 10


def checks_of(
    facts: Facts, source: OpenSet, wrong_bytes: int, paths: str | None
) -> tuple[Check, ...]:
    """All checks. ``wrong_bytes``: samples whose checksum failed; ``paths``: their problem."""
    looked, whole = facts.looked, facts.looked == facts.count
    good = looked - facts.bad_count
    part, seen = _of(looked, facts.count), _of(good, facts.count)
    among = some(looked, "sample") if whole else f"the {looked:,} looked at"
    rest = "" if whole else "; 'asyncreader verify' checks all"
    found = []
    tables = "its structure is whole"
    if source.facts.meta is not None:
        tables += ", and labels, classes and checksums match their digests"
    found.append(
        Check("ok", "Structure", tables) if paths is None else Check("bad", "Structure", paths)
    )
    if not source.checked:
        found.append(Check("look", "Checksums", "none recorded: the dataset is served unverified"))
    elif wrong_bytes:
        words = f"{wrong_bytes:,} of {among} do not match their checksums{rest}"
        found.append(Check("bad", "Checksums", words, "bad"))
    elif facts.bad_count:  # what cannot be read may not have been compared
        words = f"{seen} match their checksums; {facts.bad_count:,} cannot be shown{rest}"
        found.append(Check("look", "Checksums", words, "bad"))
    else:
        found.append(Check("ok", "Checksums", f"{part} match their checksums{rest}"))
    if facts.bad_count:
        words = f"{facts.bad_count:,} of {among} cannot be shown"
        found.append(Check("bad", "Samples" if facts.shape else "Images", words, "bad"))
    else:
        words = "decoded" if source.spec.encoded else "read"
        found.append(Check("ok", "Samples" if facts.shape else "Images", f"{part} {words}"))
    found.append(_copies(facts))
    if facts.shape:  # numbers have no colours
        pass
    elif facts.flat_count:
        words = f"{facts.flat_count:,} of {among} show (almost) one colour only"
        found.append(Check("look", "Content", words, "flat"))
    elif not good:
        found.append(Check("look", "Content", "no image could be looked at", "bad"))
    else:
        found.append(Check("ok", "Content", f"none of {seen} is of one colour"))
    if facts.classed and len(facts.groups) > 1:
        found.append(_classes(facts))
    return tuple(found)


def _of(part: int, count: int) -> str:
    """ "1 sample", or "5 of 24 samples" where there are more."""
    return some(part, "sample") if part == count else f"{part:,} of {some(count, 'sample')}"


def _copies(facts: Facts) -> Check:
    part = _of(facts.compared, facts.count)
    if not facts.compared:
        return Check("look", "Duplicates", "no sample could be compared", "bad")
    if not facts.extra_copies:
        return Check("ok", "Duplicates", f"no two of {part} have the same bytes")
    torn = facts.torn_groups
    words = f"{facts.extra_copies:,} of {part} repeat the bytes of others"
    if torn:
        words += f"; in {some(torn, 'group')} copies carry different labels"
    return Check("bad" if torn else "look", "Duplicates", words, "copies")


def _classes(facts: Facts) -> Check:
    sizes = [group.tally.samples for group in facts.groups]
    empty = sum(size == 0 for size in sizes)
    if empty:
        return Check(
            "look", "Classes", f"{empty:,} of {len(sizes):,} classes have no samples", "classes"
        )
    low, high = min(sizes), max(sizes)
    words = f"{len(sizes):,} classes of {low:,} to {high:,} samples"
    if low == high:
        words = f"{len(sizes):,} classes of {low:,} samples each"
    return Check("look" if high > UNEVEN * low else "ok", "Classes", words, "classes")
