"""The doctor: what limits training on a set, measured, and what would help, tried.

``measure`` looks, ``advice`` finds the words; :func:`diagnose` measures, and puts them together.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

import numpy as np

from ...dataset import Dataset, look_into
from ...errors import AsyncReaderError, ParamsError
from ...params.parse import given_params, parse_params
from ...params.reader import READ_BY, ReaderParams
from ...sampling import at_random, takes_classes
from ...sources import Source, expand_paths
from ...sources.urls import is_url
from ...system.array_types import Int64
from ..bench import IN_ORDER, copy_ceiling, decode_ceiling, read_ceiling
from ..trials import Rate, Trials
from . import advice, measure
from .advice import Candidate, Ceilings, Epoch
from .measure import Facts, look

__all__ = ["Candidate", "Ceilings", "Diagnosis", "Epoch", "Facts", "Rate", "diagnose"]

#: Pixels of a picture that hardly any training sees whole.
_LARGE: Final = 1 << 20

#: Part of the time for the warm-up of each trial on compressed chunks.
_WARM_UP: Final = 0.06

#: Parts of the time that may be spent on bringing a set into memory, ceilings and packing.
_BRING_IN, _CEILINGS, _PACK = 0.15, 0.15, 0.3


@dataclass(frozen=True)
class Diagnosis:
    """What :func:`diagnose` found. Rates are samples/s."""

    facts: Facts
    params: Mapping[str, Any]
    """The parameters of the reader, as measured."""
    now: Rate
    samples_per_second: float
    """What training gets from the second epoch on."""
    measured: bool
    """False if the rate was worked out from a part of the set and the disk's speed."""
    by_nthread: Mapping[int, float]
    spread: Mapping[int, tuple[float, float]]
    """The slowest and the fastest turn, by nthread."""
    ceilings: Ceilings
    limit: str
    """"decode", "disk", "memory" or "work"."""
    words: tuple[str, ...]
    suited: Mapping[str, Any]
    """Parameters that suit the set as it is."""
    tried: tuple[Candidate, ...]
    advised: Candidate | None
    keeps_up: bool | None
    """Whether the loader is as fast as the consumer; None where no consumer was named."""
    keeps_up_words: str | None
    notes: tuple[str, ...]
    epochs: tuple[Epoch, ...]
    """What an epoch costs, of a set in compressed chunks: as it is, and after each change."""
    seconds: float
    """How long the diagnosis took."""

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {**asdict(self), "now": self.now.to_dict()}


def diagnose(
    params: Mapping[str, Any],
    *,
    seconds: float = 12.0,
    consumer_seconds: float | None = None,
    memory: int | None = None,
    progress: Callable[[str], None] | None = None,
    propose: Callable[[Facts, ReaderParams], list[Candidate]] = advice.propose,
    trials: Callable[[], Trials] = Trials,
) -> Diagnosis:
    """Measure the set of ``params`` (as for AsyncReader, with a path) and what would help.

    Takes about ``seconds``, and longer where a single batch does. ``consumer_seconds``: what
    training takes for a batch. ``memory``: bytes left to the page cache in training, else what is
    free now. Samples are packed in a temporary folder (TMPDIR), at most 192 MB of each form.
    ``progress`` gets a line for each step. ``propose`` says what is tried, and ``trials`` measures.
    Nothing of the set is changed. Raises what AsyncReader raises.
    """
    given = given_params(params, {})
    given = {"last_batch": "wrap", "verify": "never", "shuffle": True, "nthread": "auto", **given}
    given.setdefault("njob", 4)
    given.setdefault("batch_size", 128)
    p = parse_params(given, {})
    notes, order = [], dict[str, Any](shuffle=p.shuffle)
    if p.weights is not None or takes_classes(p.shuffle):
        # what is measured may be a part of the set, which they would not fit
        order = {} if p.weights is not None else order
        given |= {"weights": None, "epoch_samples": None, "shuffle": "replacement"}
        notes.append(
            'draws by weight or by class were measured as shuffle="replacement", which reads alike'
        )
        p = parse_params(given, {})
    _check_set(p)
    with look_into(given) as ds:
        source = ds.source
        high, wide, _ = source.spec.image_shape()
        large = source.spec.encoded and (high or 0) * (wide or 0) > _LARGE
        unsized = any(one.size is None for one in p.arrays)
        if unsized and (source.spec.shape is None or large):
            given["size"] = advice.USUAL_SIZE
            why = "are large" if large else "differ in size"
            notes.append("the images {}: taken to be cut to {}x{}".format(why, *advice.USUAL_SIZE))
            p = parse_params(given, {})
        visit = _Visit(given, p, ds, seconds, look(source, p.given_path, memory), progress, notes)
        found = visit.run(consumer_seconds, propose, trials)
        return replace(found, suited={**found.suited, **order})


def _check_set(p: ReaderParams) -> None:
    """ParamsError for several sets, and for one in a store: what is measured here are a disk and
    the page cache."""
    if p.mix.ratios is not None:
        raise ParamsError(
            "the doctor is for one dataset",
            found="mix=",
            expected="path=",
            hint="run it on each dataset of the mix; bench measures the mix",
        )
    for name in expand_paths(p.given_path):
        if is_url(name):
            raise ParamsError(
                "the doctor is for datasets on this machine: it measures disk and memory",
                path=name,
                hint="bench measures how fast a store serves it; or copy some shards here, and ask "
                "of those",
            )


class _Visit:
    """One run of :func:`diagnose`."""

    def __init__(
        self,
        given: dict[str, Any],
        p: ReaderParams,
        ds: Dataset,
        seconds: float,
        facts: Facts,
        progress: Callable[[str], None] | None,
        notes: list[str],
    ) -> None:
        self._began = time.perf_counter()
        self._given, self._p, self._seconds, self._facts = given, p, seconds, facts
        self._source: Source = ds.source.first
        self._tell = progress or (lambda _: None)
        self._notes = notes
        self._fill = ds.source.fills(p.wanted)[0]
        if given["nthread"] == "auto":
            given["nthread"] = facts.cores
        every = np.arange(len(ds), dtype=np.int64)
        self._records = None if p.subset is None else ds.records(every)
        self._in_order = not at_random(p.shuffle)
        self._cold: Int64 | None = None

    def run(
        self,
        consumer_seconds: float | None,
        propose: Callable[[Facts, ReaderParams], list[Candidate]],
        trials: Callable[[], Trials],
    ) -> Diagnosis:
        facts, p = self._facts, self._p
        self._tell("bringing it into memory")
        here = self._where_to_measure()
        self._tell("measuring ceilings")
        tops, fastest = self._ceilings()
        pairs = p.mixup is not None or p.cutmix is not None
        here["batch_size"] = measure.batch_that_fits(p.batch_size, fastest, 1 + pairs)
        candidates = propose(facts, p)
        with tempfile.TemporaryDirectory(prefix="asyncreader-doctor-") as folder, trials() as turns:
            packed = self._packed(candidates, folder, turns.failures)
            self._tell("measuring readers")
            rates = self._rates(turns, here, candidates, packed)
        now = rates["now"]
        served = self._in_training(now.samples_per_second, self._in_order, tops)
        counts = [rates[name] for name in ("one", "now") if name in rates]
        tried = [
            self._tried(one, rates, packed, turns.failures, served, tops) for one in candidates
        ]
        keeps, words, needed = None, None, None
        if consumer_seconds:
            needed = p.batch_size / consumer_seconds
            keeps, words = advice.keeps_up(served, p.batch_size, consumer_seconds)

        def expected(rate: float) -> float:
            return self._in_training(rate, self._in_order, tops)

        copied = self._fill.as_stored and facts.compression is None
        kind, about = advice.limit(facts, p, now, tops, copied)
        threads, unsure = advice.threads(counts)
        if unsure is not None:
            self._notes.append(unsure)
        return Diagnosis(
            facts=facts,
            params={k: v for k, v in self._given.items() if k not in ("last_batch", "verify")},
            now=now,
            samples_per_second=served,
            measured=facts.fits,
            by_nthread={one.nthread: expected(one.samples_per_second) for one in counts},
            spread={one.nthread: (expected(one.slowest), expected(one.fastest)) for one in counts},
            ceilings=tops,
            limit=kind,
            words=tuple(about),
            suited=advice.suited(facts, threads),
            tried=tuple(sorted(tried, key=lambda change: -(change.factor or 0))),
            advised=advice.chosen(tried, keeps, needed),
            keeps_up=keeps,
            keeps_up_words=words,
            notes=tuple(self._notes),
            epochs=tuple(advice.epochs(facts, p, served, tried)),
            seconds=time.perf_counter() - self._began,
        )

    # -- where -----------------------------------------------------------------------------

    def _where_to_measure(self) -> dict[str, Any]:
        """Parameters with which the set serves as it will in training: from memory, or cold."""
        facts, given = self._facts, dict(self._given)
        if facts.fits:
            share, upto = measure.bring_in(facts, self._seconds * _BRING_IN)
            if share < 0.9 and facts.chunk == 1 and len(facts.files) == 1:
                warm = measure.records_below(self._source, upto, self._records)
                if warm is not None and warm.size >= 1000:
                    given["subset"] = warm
                    given["io"] = "mmap" if given.get("io", "auto") == "auto" else given["io"]
                    share = 1.0
            if share < 0.9:
                self._notes.append(
                    f"{1 - share:.0%} of it were not in memory while it was measured: "
                    "later epochs are faster"
                )
        elif self._records is None:
            seed = int(self._began * 1e6) % (1 << 32)  # not what an earlier diagnosis has read
            self._cold = measure.cold_records(self._source, facts, seed)
            if self._cold is None:
                self._notes.append("too little of it is out of memory to measure the disk by it")
        return given

    def _cold_parts(self, in_order: Sequence[bool]) -> list[dict[str, Any]]:
        """Cold records for each trial, by whether it reads in order: no trial brings in what
        another reads.
        """
        if self._cold is None:
            return [{} for _ in in_order]
        io = self._given.get("io", "auto")
        return [
            {"subset": part, "io": "pread" if io == "auto" else io}
            for part in measure.share_out(self._cold, in_order)
        ]

    def _in_training(self, rate: float, in_order: bool, tops: Ceilings) -> float:
        """The rate of later epochs, from that of the records measured, which were cold if the set
        does not fit in memory: what stays there comes at once.
        """
        if self._facts.fits:
            return rate
        hit = measure.hit_share(self._facts, in_order)
        return min(rate / max(1 - hit, 0.05), tops.decode_all or tops.copy)

    # -- measuring -------------------------------------------------------------------------

    def _ceilings(self) -> tuple[Ceilings, float]:
        """The ceilings, and the samples/s that the set can reach at most, roughly."""
        facts, p, cores = self._facts, self._p, int(self._given["nthread"])
        spell = self._seconds * _CEILINGS / 5
        fill = self._fill
        copied = copy_ceiling(fill.sample_bytes * p.batch_size, cores, spell) * p.batch_size
        one = every = None
        fastest = copied
        if facts.encoded or facts.compression:
            # whole chunks, so that each is undone once, as in no other order; many, and those that
            # the trial of one thread decoded last come last: they may still be remembered
            records = measure.spread(facts.count, 4096 * facts.chunk, facts.chunk, self._records)
            group = max(4, facts.chunk)
            with contextlib.suppress(AsyncReaderError):  # a bad sample: the trials report it
                one = decode_ceiling(self._source, fill, records, 1, spell, group)
                half = np.roll(records, records.size // group // 2 * group)
                every = decode_ceiling(self._source, fill, half, cores, spell, group)
                # a sample drawn at random takes its whole chunk along
                fastest = every.filled_per_second / (1 if self._in_order else facts.chunk)
        elif not fill.kernel and fill.stored.axes is not None:
            records = measure.spread(facts.count, 256, 1, None)
            fastest = decode_ceiling(self._source, fill, records, cores, spell).filled_per_second
        largest = max(facts.files, key=os.path.getsize)
        piece = int(facts.stored_bytes * facts.chunk)
        tops = Ceilings(
            copy=copied,
            decode_one=None if one is None else one.decoded_per_second,
            decode_all=None if every is None else every.decoded_per_second,
            disk_random=read_ceiling(largest, piece, spell),
            disk_in_order=read_ceiling(largest, IN_ORDER, spell, random=False),
        )
        return tops, fastest

    def _packed(
        self,
        candidates: Sequence[Candidate],
        folder: str,
        failures: dict[str, AsyncReaderError],
    ) -> dict[str, measure.PackedSample]:
        """Samples of the set in each form that is proposed; why others could not be packed is
        noted in ``failures``."""
        packed = dict[str, measure.PackedSample]()
        forms = [(one, one.options) for one in candidates if one.options is not None]
        for form, options in forms:
            self._tell(f"trying: {form.words}")
            try:
                packed[form.name] = measure.pack_some(
                    self._p.given_path,
                    form.name,
                    options,
                    self._facts,
                    records=self._records,
                    read=self._read(),
                    folder=folder,
                    seconds=self._seconds * _PACK / len(forms),
                )
            except AsyncReaderError as exc:
                failures[form.name] = exc
        return packed

    def _rates(
        self,
        trials: Trials,
        here: dict[str, Any],
        candidates: Sequence[Candidate],
        packed: Mapping[str, measure.PackedSample],
    ) -> dict[str, Rate]:
        """What the set, each change of parameters, and each packed part reach."""
        facts = self._facts
        wanted = {"now": here}
        if int(self._given["nthread"]) > 1:
            wanted["one"] = {**here, "nthread": 1}
        for change in candidates:
            if change.options is None:
                batch = {"batch_size": self._p.batch_size} if facts.chunk > 1 else {}
                wanted[change.name] = {**here, **batch, **change.params}
        in_order = [params.get("shuffle", True) is not True for params in wanted.values()]
        parts = self._cold_parts(in_order)
        # decoded chunks are remembered: their cache is as full then as in training
        warm_up = _WARM_UP * self._seconds if facts.chunk > 1 else 0.0
        left = max(self._seconds * 0.3, self._seconds - (time.perf_counter() - self._began))
        for (name, params), part in zip(wanted.items(), parts, strict=True):
            trials.add(name, {**params, **part}, warm_up, needed=name == "now")
        for name, sample in packed.items():
            trials.add(name, self._on_packed(sample.path, sample.count))
        return trials.run(left)

    def _on_packed(self, path: str, count: int) -> dict[str, Any]:
        """The parameters of training, on a packed sample."""
        kept = {name: value for name, value in self._given.items() if name not in READ_BY}
        kept |= {"path": path}
        kept.pop("hdf5_path", None)
        kept.pop("lmdb_path", None)
        if count >= self._facts.count:
            return kept  # the whole of a small set: as it will be trained on
        again = measure.repeated(count, self._p.batch_size)
        return kept if again is None else {**kept, "subset": again}

    def _read(self) -> dict[str, Any]:
        """How the set is read; ``convert`` needs the same parameters."""
        names = set(READ_BY) - {"subset"}
        return {name: value for name, value in self._given.items() if name in names}

    def _tried(
        self,
        change: Candidate,
        rates: Mapping[str, Rate],
        packed: Mapping[str, measure.PackedSample],
        failures: Mapping[str, AsyncReaderError],
        served: float,
        tops: Ceilings,
    ) -> Candidate:
        """A candidate with what came of it."""
        facts, in_order = self._facts, self._in_order
        size, each, command = float(facts.size), facts.stored_bytes, None
        if change.options is not None:
            read, path = self._read(), str(self._p.given_path)
            if isinstance(self._p.subset, str):
                read["subset"] = self._p.subset
            target = advice.free_name(path, change.name)
            command = advice.command(path, target, change.options, read)
            if change.name in packed:
                each = packed[change.name].bytes_each
                size = each * (facts.count if self._records is None else self._records.size)
        rate, factor, measured = None, None, facts.fits
        if change.name in rates:
            warm = rates[change.name].samples_per_second
            if change.options is None:
                rate = self._in_training(warm, in_order or change.name == "block", tops)
            else:
                hit = measure.hit_share(facts, in_order, size)
                disk = tops.disk_in_order if in_order else tops.disk_random
                rate = measure.expected_rate(warm, each, hit, disk)
                measured = hit >= 1
            as_measured = facts.fits and measured
            factor = rates[change.name].against(rates["now"]) if as_measured else rate / served
        return replace(
            change,
            command=command,
            samples_per_second=rate,
            factor=factor,
            size=size,
            fits=size <= facts.memory,
            measured=measured,
            failure=str(failures[change.name]) if change.name in failures else None,
        )
