"""How the loader is doing: counters that cost nothing, and a frozen snapshot of them."""

from __future__ import annotations

import html
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from .system.array_types import Float64
from .system.text import some

#: Bad samples listed one by one in a snapshot; more are only counted.
LISTED_BAD = 1000


@dataclass
class Meter:
    """What one worker has done so far. Each worker writes its own, so there is no lock.

    ``seconds``: spent in each step, by its name; a step that adds to it is shown in stats, trace
    and doctor, and does not count as reading. ``stopped``: set by close(), what is being filled is
    not wanted any more. ``spans``: what it did when, in a reader with ``trace`` (see
    pipeline/trace.py).
    """

    seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    stopped: bool = False
    spans: Any = ()

    def since(self, before: Mapping[str, float]) -> dict[str, float]:
        """Seconds spent since ``before``, a copy of ``seconds``, in the steps that were taken."""
        spent = ((name, now - before.get(name, 0.0)) for name, now in self.seconds.items())
        return {name: seconds for name, seconds in spent if seconds}


def total_seconds(meters: Iterable[Meter]) -> dict[str, float]:
    """Seconds spent in each step by all of the workers."""
    total: dict[str, float] = defaultdict(float)
    for meter in meters:
        for name, seconds in dict(meter.seconds).items():  # a worker may add a name meanwhile
            total[name] += seconds
    return total


class BadRow(NamedTuple):
    """A bad sample of a batch: its row, its record number, what is wrong with it, and the record
    served in its place (None: zeros)."""

    row: int
    record: int
    reason: str
    replacement: int | None


@dataclass
class Totals:
    """What the consumer's side has seen so far."""

    batches: int = 0
    samples: int = 0
    bytes: int = 0
    waited: float = 0.0
    started: float | None = None
    bad: int = 0
    bad_listed: list[tuple[int, str]] = field(default_factory=list)

    def note_bad(self, bad: list[BadRow]) -> None:
        """Count the bad samples of a delivered batch."""
        self.bad += len(bad)
        # workers add them as they meet them
        for one in sorted(bad)[: LISTED_BAD - len(self.bad_listed)]:
            self.bad_listed.append((one.record, one.reason))


@dataclass(frozen=True, repr=False)
class ReaderStats:
    """A snapshot of a reader's work. Seconds of workers are summed over all workers.

    ``repr`` is a small table, and a notebook shows it as one.

    * ``batches``, ``samples`` (padded rows included), ``bytes`` (of ``data``): handed out
    * ``wait_seconds``: time the consumer spent waiting in getNextBatch(); ``elapsed_seconds``: time
      since the first fetchData()
    * ``read_seconds``: time reading, copying and converting rows, by the workers or in
      getNextBatch(); ``decode_seconds``: worker time decoding images and compressed chunks;
      ``postprocess_seconds``: worker time in ``postprocess``; ``other_seconds``: in other steps, by
      name
    * ``queue_depth``: batches fetched and not yet handed out
    * ``bad_samples``: samples skipped or zeroed by ``on_error``; ``bad_list``: their record numbers
      and reasons (the first 1,000)
    * ``nthread``: workers; ``cores``: processor cores that this program may use; 0: not known
    """

    batches: int
    samples: int
    bytes: int
    wait_seconds: float
    elapsed_seconds: float
    read_seconds: float
    decode_seconds: float
    postprocess_seconds: float
    queue_depth: int
    bad_samples: int
    bad_list: tuple[tuple[int, str], ...]
    nthread: int
    cores: int = 0
    other_seconds: Mapping[str, float] = field(default_factory=dict, hash=False)

    @property
    def seconds(self) -> dict[str, float]:
        """Worker time in each step, by name."""
        return {
            "read": self.read_seconds,
            "decode": self.decode_seconds,
            "postprocess": self.postprocess_seconds,
            **self.other_seconds,
        }

    @property
    def wait_share(self) -> float:
        """The share of the elapsed time that the consumer spent waiting, 0 to 1."""
        return self.wait_seconds / self.elapsed_seconds if self.elapsed_seconds else 0.0

    @property
    def samples_per_second(self) -> float:
        """Rows handed out per second of elapsed time."""
        return self.samples / self.elapsed_seconds if self.elapsed_seconds else 0.0

    @property
    def verdict(self) -> str:
        """One line: is the loader the bottleneck, what in it, and what to do."""
        if not self.batches:
            return "nothing served yet"
        if self.wait_share < 0.1:
            return f"the consumer is the bottleneck: it waited {self.wait_share:.0%} of the time"
        work = self.seconds
        worst = max(work, key=lambda name: work[name])
        busy = self.busy_share
        advice = "fetch more batches ahead, up to njob, or raise njob"
        if busy > 0.7:
            advice = "raise nthread"
            if 0 < self.cores <= self.nthread and worst != "read":  # reading may wait for a disk
                advice = "every core has a worker already"
                if worst == "decode":
                    advice += "; 'asyncreader doctor' measures other encodings"
        return (
            f"the loader is the bottleneck: {worst}; {advice} "
            f"(the consumer waited {self.wait_share:.0%} of the time)"
        )

    @property
    def busy_share(self) -> float:
        """The share of the elapsed time that the workers were at work, 0 to 1, on average."""
        work = sum(self.seconds.values())
        return work / (self.elapsed_seconds * self.nthread) if self.elapsed_seconds else 0.0

    def _rows(self) -> list[tuple[str, str]]:
        bad = f"{self.bad_samples:,}"
        if self.bad_list:
            index, reason = self.bad_list[0]
            again = {record for record, _ in self.bad_list} == {index}
            again = again and len(self.bad_list) == self.bad_samples
            more = f", {bad} times" if again else ", ..."
            bad += f": record {index} ({reason})" + more * (self.bad_samples > 1)
        return [
            (
                "served",
                f"{some(self.batches, 'batch')}, {self.samples:,} samples, "
                f"{self.bytes / 1e6:,.1f} MB",
            ),
            ("in", f"{self.elapsed_seconds:.2f} s: {self.samples_per_second:,.0f} samples/s"),
            ("consumer", f"waited {self.wait_seconds:.2f} s, {self.wait_share:.0%} of the time"),
            (
                some(self.nthread, "worker"),
                f"busy {self.busy_share:.0%} of the time: "
                + ", ".join(f"{name} {seconds:.2f} s" for name, seconds in self.seconds.items()),
            ),
            ("in flight", some(self.queue_depth, "batch")),
            ("bad samples", bad),
            ("verdict", self.verdict),
        ]

    def __repr__(self) -> str:
        rows = self._rows()
        wide = max(len(name) for name, _ in rows)
        return "\n".join(["ReaderStats", *(f"  {name:<{wide}}  {text}" for name, text in rows)])

    def _repr_html_(self) -> str:
        """The same as a table, for notebooks (IPython's rich display)."""
        return html_table("ReaderStats", self._rows())


def html_table(caption: str, rows: Sequence[tuple[str, str]]) -> str:
    """Names and what they stand for, as notebooks show it (IPython's rich display)."""
    cells = "".join(
        f'<tr><th style="text-align:left">{html.escape(name)}</th>'
        f'<td style="text-align:left">{html.escape(text)}</td></tr>'
        for name, text in rows
    )
    return f"<table><caption>{html.escape(caption)}</caption>{cells}</table>"


@dataclass(frozen=True)
class FieldStatistics:
    """The numbers of a field, for each channel: float64 (C,) for images, (D,) for vectors of D
    numbers, () for anything else. ``count``: values of a channel; ``std``: population standard
    deviation."""

    count: int
    mean: Float64
    std: Float64
    min: Float64
    max: Float64
