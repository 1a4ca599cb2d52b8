"""How fast a set is served: samples per second by number of threads, measured in turns."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import ParamsError
from ..params import ReaderParams, given_params, parse_params
from ..pipeline import build
from ..reader import AsyncReader
from ..sources import OpenSet, SetIndex
from ..sources.urls import is_url
from .trials import Params, Rate, Trial, Trials, Turn, fields_of, rate_of, serve


@dataclass(frozen=True)
class BenchReport:
    """What :func:`run_bench` measured, and of what."""

    path: str
    count: int
    data_shape: Any
    """The shape of a batch as handed out."""
    dtype: str
    batch_bytes: int
    """Bytes of ``data`` of a batch."""
    params: Mapping[str, Any]
    """The parameters of the reader, but for nthread."""
    seconds: float
    """Measured for each thread count, over all its turns."""
    consumer_seconds: float
    """What the consumer pretends to do with each batch."""
    rows: tuple[Rate, ...]
    """What each thread count reached."""

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {**vars(self), "rows": [row.to_dict() for row in self.rows]}


def run_bench(
    params: Mapping[str, Any],
    *,
    nthreads: Sequence[int],
    seconds: float = 2.0,
    consumer_seconds: float = 0.0,
    progress: Callable[[int, int], None] | None = None,
    index: SetIndex | None = None,
) -> BenchReport:
    """Measure ``params`` (as for AsyncReader) with each number of threads in ``nthreads``.

    Each is measured for ``seconds`` in all, in turns of at least one batch, each after a warm-up in
    which every slot is filled once. Each turn is a new reader, so with ``verify="first"`` it checks
    checksums as a first epoch does; ``index``: of the set, which the first reader finds otherwise,
    see :func:`reusable_index`. ``last_batch`` is "wrap" unless given, so that small sets do too.
    ``progress(done, total)`` counts turns. Raises what AsyncReader raises.
    """
    if not nthreads or not seconds > 0 or not consumer_seconds >= 0:
        raise ParamsError("nothing to measure", found=f"nthreads {nthreads}, {seconds} s")
    params = {"last_batch": "wrap", "world_size": 1, **given_params(params, {})}
    bench = _Bench(params, index, consumer_seconds)
    with Trials(bench.trial) as trials:
        for nthread in dict.fromkeys(nthreads):
            trials.add(str(nthread), {"nthread": nthread}, needed=True)
        rows = tuple(trials.run(seconds * len(set(nthreads)), progress).values())
    return BenchReport(
        **bench.facts,
        batch_bytes=rows[0].batch_bytes,
        params=params,
        seconds=seconds,
        consumer_seconds=consumer_seconds,
        rows=rows,
    )


def open_set(params: Mapping[str, Any]) -> contextlib.closing[OpenSet]:
    """The set that a reader of ``params`` opens. Raises what that raises."""
    return contextlib.closing(build.open_set(build.rooted(parse_params(params, {}))))


def reusable_index(source: OpenSet) -> SetIndex | None:
    """An index that later readers can open; None for remote files and mixes."""
    again = type(source) is OpenSet and not is_url(source.facts.path)
    return source.index if again else None


class _Bench:
    """What the turns of all thread counts share: the parameters, and what the first one found."""

    def __init__(
        self, params: dict[str, Any], index: SetIndex | None, consumer_seconds: float
    ) -> None:
        self.params, self.index, self.consumer_seconds = params, index, consumer_seconds
        self.facts: dict[str, Any] = {}
        self.turns = 0

    def trial(self, params: Params, _: float) -> Trial:
        """The trial of a number of threads."""
        return _FreshTrial(self, params["nthread"])


class _FreshTrial(Trial):
    """A number of threads whose every turn is a new reader."""

    def __init__(self, bench: _Bench, nthread: int) -> None:
        self._bench, self._nthread = bench, nthread
        self._turns: list[Turn] = []
        self._spent: Counter[str] = Counter()
        self._done = 0

    def turn(self, seconds: float) -> None:
        bench = self._bench
        with _Reader(bench, self._nthread) as reader:
            # each turn another epoch: the samples of the turn before are in memory now
            reader.seek(epoch=bench.turns)
            _touch_slots(reader, seconds)
            self._turns.append(serve(reader, seconds, bench.consumer_seconds))
            stats = reader.stats()
            self._spent.update(stats.seconds)
            self._done += stats.samples
            self._rate = rate_of(reader, self._turns, self._spent, self._done)
            bench.turns += 1
            bench.facts = bench.facts or _facts(reader)

    def rate(self) -> Rate:
        return self._rate

    def close(self) -> None:
        """Nothing is open between turns."""


class _Reader(AsyncReader):
    """A reader that opens a set by its index, if there is one: it opens the files and parses
    nothing. Otherwise it finds the index for the next reader."""

    def __init__(self, bench: _Bench, nthread: int) -> None:
        self._bench = bench
        super().__init__(bench.params, nthread=nthread)

    def _open_set(self, p: ReaderParams) -> OpenSet:
        if self._bench.index is not None:
            return self._bench.index.open()
        source = super()._open_set(p)
        self._bench.index = reusable_index(source)
        return source


def _touch_slots(reader: AsyncReader, seconds: float) -> None:
    """Serve one batch more than njob, but not for longer: then every slot has its memory."""
    spent = 0.0
    for _ in range(reader.params.njob + 1):
        spent += serve(reader, 0).seconds
        if spent > seconds:
            break


def _facts(reader: AsyncReader) -> dict[str, Any]:
    return {
        "path": _named(reader.params.given_path),
        "count": reader.count,
        "data_shape": reader.data_shape,
        "dtype": ", ".join(dtype.name for _, dtype in fields_of(reader)),
    }


def _named(path: str | tuple[str, ...]) -> str:
    if isinstance(path, str):
        return path
    more = f" and {len(path) - 1} more" if len(path) > 1 else ""
    return f"{path[0]}{more}" if path else "arrays"
