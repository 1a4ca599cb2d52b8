"""The report of a conversion."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class ConvertReport:
    """The outcome of ``converters.convert()``.

    ``count``: samples packed; ``skipped``: (path, reason) of each bad source, in path order, so
    that count + len(skipped) is what was found; ``ignored``: files that were not candidates, by
    kind ("hidden", "other suffix", "not in the CSV"); ``bytes``: size of the target on disk;
    ``shards``: files of a sharded set, None of one file; ``kept``: how many of them an
    interrupted run had finished, ``kept_samples`` in all; ``seconds``: of the whole call;
    ``rewritten``: pictures that got restart markers, None where they
    were not to get any; ``narrowed``: pictures of 16 bits that became 8; ``notes``: what a user may
    not expect, such as folders inside classes, and classes without pictures.
    Names that are not UTF-8 carry surrogate escapes, as everywhere in Python.
    """

    target: str
    format: str
    encoding: str
    count: int
    skipped: tuple[tuple[str, str], ...]
    ignored: Mapping[str, int]
    classes: tuple[str, ...] | None
    bytes: int
    seconds: float
    shards: int | None = None
    kept: int = 0
    kept_samples: int = 0
    rewritten: int | None = None
    narrowed: int = 0
    notes: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, object]:
        """The same facts as plain lists and dicts, for JSON."""
        facts = asdict(self)
        facts["skipped"] = [{"path": path, "reason": reason} for path, reason in self.skipped]
        facts["classes"] = None if self.classes is None else list(self.classes)
        facts["notes"] = list(self.notes)
        facts["ignored"] = dict(self.ignored)
        return facts
