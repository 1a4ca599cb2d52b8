"""The report of a conversion."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass

from asyncreader.stats import html_table
from asyncreader.system.text import in_bytes, some

#: Bad sources that a notebook's table lists.
_LISTED = 5


@dataclass(frozen=True)
class ConvertReport:
    """The outcome of ``converters.convert()``.

    ``count``: samples packed; ``skipped``: (path, reason) of each bad source, in path order, so
    that count + len(skipped) is what was found; ``ignored``: files that were not candidates, by
    kind ("hidden", "other suffix", "not in the CSV"); ``bytes``: size of the target on disk;
    ``shards``: files of a sharded set, None of one file; ``kept``: how many of them an
    interrupted run had finished, ``kept_samples`` in all; ``seconds``: of the whole call;
    ``rewritten``: images that got restart markers, None where they
    were not to get any; ``narrowed``: images of 16 bits that became 8; ``notes``: what a user may
    not expect, such as folders inside classes, and classes without images.
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

    def _repr_html_(self) -> str:
        """A table, for notebooks (IPython's rich display)."""
        words = [self.format, self.encoding, in_bytes(self.bytes)]
        words += [] if self.shards is None else [some(self.shards, "shard")]
        rows = [("target", self.target), ("format", ", ".join(words))]
        packed = some(self.count, "sample")
        packed += f", {self.kept_samples:,} kept from the run before" if self.kept_samples else ""
        rows.append(("written", f"{packed}, in {self.seconds:.1f} s"))
        if self.classes is not None:
            names = ", ".join(self.classes[:_LISTED]) + ", ..." * (len(self.classes) > _LISTED)
            rows.append(("classes", f"{len(self.classes):,}: {names}"))
        for number, (path, reason) in enumerate(self.skipped[:_LISTED]):
            name = "" if number else f"skipped: {len(self.skipped):,}"
            rows.append((name, f"{path}: {reason}"))
        if len(self.skipped) > _LISTED:
            rows.append(("", "..."))
        rows += [("ignored", f"{count:,} {kind}") for kind, count in self.ignored.items() if count]
        if self.narrowed:
            rows.append(("narrowed", f"{self.narrowed:,} of 16 bits to 8"))
        rows += [("note", note) for note in self.notes]
        return html_table("ConvertReport", rows)
