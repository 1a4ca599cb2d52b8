"""Reads a damaged set and says what came out: everything right, a typed error, or worse."""

import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from asyncreader import AsyncReader, AsyncReaderError
from faults.sets import KnownSet

BATCH = 8

#: A splice has left nothing of one set, and the other is as it was packed.
OTHER_SET = "all of the other set"


@dataclass
class Outcome:
    """``verdict``: "right", an error's type, OTHER_SET, "silent wrong", "short" or "untyped"."""

    verdict: str
    said: str = ""
    seconds: float = 0.0
    """CPU time: of a machine with others on it, the clock says nothing."""


@dataclass
class Expected:
    """What a sound set holds."""

    known: KnownSet
    data: npt.NDArray[Any] = field(init=False)
    labels: npt.NDArray[Any] = field(init=False)
    #: Pixels of the set that splices are taken from; its labels are the same.
    others: npt.NDArray[Any] = field(init=False)
    #: Of rows of different length.
    lengths: npt.NDArray[Any] | None = field(init=False)

    def __post_init__(self) -> None:
        folder = Path(self.known.expected)
        self.data, self.labels, self.others = (
            np.load(folder / f"{name}.npy") for name in ("data", "labels", "others")
        )
        known = folder / "lengths.npy"
        self.lengths = np.load(known) if known.exists() else None

    def of_other(self, batch: Any) -> bool:
        """Whether a batch is as the other set has it."""
        at = batch.indices
        return np.array_equal(batch.data, self.others[at]) and np.array_equal(
            batch.labels, self.labels[at]
        )

    def wrong(self, batch: Any) -> str | None:
        """What is not as it was packed; None when all is."""
        at = batch.indices
        if at.dtype != np.int64 or (at < 0).any() or (at >= len(self.data)).any():
            return f"indices {at}"
        if batch.labels is None:
            return "no labels"
        for name, found, want in (
            ("pixels", batch.data, self.data[at]),
            ("labels", batch.labels, self.labels[at]),
        ):
            if found.shape != want.shape or found.dtype != want.dtype:
                return f"{name} are {found.shape} {found.dtype}, not {want.shape} {want.dtype}"
            if not np.array_equal(found, want):
                rows = (found != want).reshape(len(at), -1).any(axis=1)
                return f"{name} of {at[rows].tolist()} differ"
        if self.lengths is not None and not np.array_equal(batch.lengths, self.lengths[at]):
            return f"lengths of {at.tolist()} are {batch.lengths}"
        if not batch.mask.all():
            return "a row masked out"
        return None


def read(
    known: KnownSet,
    expected: Expected,
    path: Path,
    verify: str,
    seed: int,
    *,
    io: str = "auto",
    epochs: int = 1,
    meanwhile: Callable[[], None] | None = None,
) -> Outcome:
    """Every epoch of the set at ``path``. ``meanwhile`` is called after the third batch."""
    began = time.process_time()
    try:
        outcome = _read(known, expected, path, verify, seed, io, epochs, meanwhile)
    except AsyncReaderError as exc:
        outcome = Outcome(type(exc).__name__, str(exc))
    except BaseException as exc:
        where = traceback.extract_tb(exc.__traceback__)[-1]
        outcome = Outcome("untyped", f"{exc!r} at {Path(where.filename).name}:{where.lineno}")
    outcome.seconds = round(time.process_time() - began, 3)
    return outcome


def _read(
    known: KnownSet,
    expected: Expected,
    path: Path,
    verify: str,
    seed: int,
    io: str,
    epochs: int,
    meanwhile: Callable[[], None] | None,
) -> Outcome:
    error = ""
    said = ""
    with AsyncReader(
        path=str(path),
        batch_size=BATCH,
        shuffle=True,
        seed=seed,
        last_batch="short",
        layout="NHWC",
        nthread=2,
        verify=verify,
        io=io,
        **known.params,
    ) as reader:
        if reader.count != len(expected.data):
            return Outcome("silent wrong", f"{reader.count} records")
        if reader.classes != known.classes:
            return Outcome("silent wrong", f"classes {reader.classes}")
        served: list[npt.NDArray[np.int64]] = []
        others = 0
        for step in range(epochs * len(reader)):
            if step == 3 and meanwhile is not None:
                meanwhile()
            reader.fetchData()
            try:
                batch = reader.getNextBatch()
            except AsyncReaderError as exc:
                error, said = type(exc).__name__, str(exc)
                continue
            wrong = expected.wrong(batch)
            if wrong is not None and others == len(served) and expected.of_other(batch):
                others += 1
            elif wrong is not None or others:
                unverified = ", unverified" if "unverified" in repr(reader) else ""
                return Outcome("silent wrong", f"step {step}{unverified}: {wrong}")
            served.append(batch.indices.copy())
    if error:
        return Outcome(error, said)
    whole = complete(served, len(expected.data), epochs)
    return Outcome(OTHER_SET) if others and whole.verdict == "right" else whole


def complete(served: Sequence[npt.NDArray[np.int64]], count: int, epochs: int) -> Outcome:
    """Without an error, every record came once an epoch."""
    times = np.bincount(np.concatenate(served), minlength=count)
    if times.size != count or (times != epochs).any():
        return Outcome("short", f"records {np.flatnonzero(times[:count] != epochs).tolist()}")
    return Outcome("right")


def verified(path: Path) -> Outcome:
    """What ``asyncreader verify`` finds of the same set."""
    from asyncreader.tools.verify import verify_file

    try:
        report = verify_file(str(path), decode=True, jobs=1)
    except AsyncReaderError as exc:
        return Outcome(type(exc).__name__, str(exc))
    except BaseException as exc:
        return Outcome("untyped", f"verify: {exc!r}")
    if report.unverified:
        return Outcome("unverified")
    return Outcome("right" if report.ok else "problems", "; ".join(report.problems[:1]))
