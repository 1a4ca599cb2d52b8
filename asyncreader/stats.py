"""How the loader is doing: counters that cost nothing, and a frozen snapshot of them."""

from __future__ import annotations

from dataclasses import dataclass, field

#: Bad samples listed one by one in a snapshot; further ones are only counted.
LISTED_BAD = 1000


@dataclass
class Meter:
    """What one worker has done so far. Each worker writes its own, so there is no lock."""

    read: float = 0.0
    decode: float = 0.0
    postprocess: float = 0.0


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

    def note_bad(self, bad: list[tuple[int, int, str]]) -> None:
        """Count bad samples (row, record number, reason) of a delivered batch."""
        self.bad += len(bad)
        # workers add them as they meet them
        for _, index, reason in sorted(bad)[: LISTED_BAD - len(self.bad_listed)]:
            self.bad_listed.append((index, reason))


@dataclass(frozen=True)
class ReaderStats:
    """A snapshot of a reader's work. Seconds of workers are summed over all of them."""

    batches: int
    """Batches handed out."""
    samples: int
    """Rows handed out, padded ones included."""
    bytes: int
    """Bytes of ``data`` handed out."""
    wait_seconds: float
    """Time the consumer spent waiting in getNextBatch()."""
    elapsed_seconds: float
    """Time since the first fetchData()."""
    read_seconds: float
    """Worker time reading, copying and converting rows."""
    decode_seconds: float
    """Worker time decoding images and compressed chunks."""
    postprocess_seconds: float
    """Worker time in ``postprocess``."""
    queue_depth: int
    """Batches fetched and not yet handed out."""
    bad_samples: int
    """Samples skipped or zeroed by ``on_error``."""
    bad_list: tuple[tuple[int, str], ...]
    """Their record numbers and reasons (the first 1,000)."""
    nthread: int
    """Workers."""

    @property
    def wait_share(self) -> float:
        """Part of the elapsed time that the consumer spent waiting, 0 to 1."""
        return self.wait_seconds / self.elapsed_seconds if self.elapsed_seconds else 0.0

    @property
    def samples_per_second(self) -> float:
        """Rows handed out per second of elapsed time."""
        return self.samples / self.elapsed_seconds if self.elapsed_seconds else 0.0

    @property
    def verdict(self) -> str:
        """One line: is the loader the bottleneck, what in it, and what to do."""
        if not self.batches:
            return "nothing handed out yet"
        if self.wait_share < 0.1:
            return f"the consumer is the bottleneck: it waited {self.wait_share:.0%} of the time"
        work = {
            "read": self.read_seconds,
            "decode": self.decode_seconds,
            "postprocess": self.postprocess_seconds,
        }
        worst = max(work, key=lambda name: work[name])
        busy = sum(work.values()) / (self.elapsed_seconds * self.nthread)
        advice = (
            "raise nthread" if busy > 0.7 else "raise njob, so that more batches are fetched ahead"
        )
        return (
            f"the loader is the bottleneck: {worst}; {advice} "
            f"(the consumer waited {self.wait_share:.0%} of the time)"
        )
