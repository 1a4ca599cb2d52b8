"""The doctor: what limits training on a dataset, measured, and what would help, tried.

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
from ...errors import AsyncReaderError, ParamsError, SourceError
from ...params.parse import given_params, parse_params
from ...params.reader import READ_BY, ReaderParams
from ...sampling import at_random, takes_classes
from ...sources import Source, expand_paths
from ...sources.sniff import is_url
from ...system.array_types import Int64
from ..trials import IN_ORDER, Rate, Trials, copy_ceiling, decode_ceiling, read_ceiling
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

#: Bytes of a packed sample: several times the caches of today's processors.
_SAMPLE_BYTES: Final = 192 << 20

#: Pixels, decoded or not, beyond which caches help no more.
_ENOUGH: Final = 96 << 20


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
    usual = {"shuffle": True, "nthread": "auto", "njob": 4, "batch_size": 128}
    given = {"last_batch": "wrap", "verify": "never", **usual, **given}
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
        visit = _Visit(given, p, ds, seconds, memory, progress or (lambda _: None), notes)
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
    """One run of :func:`diagnose`, and what it has measured so far."""

    def __init__(
        self,
        given: dict[str, Any],
        p: ReaderParams,
        ds: Dataset,
        seconds: float,
        memory: int | None,
        tell: Callable[[str], None],
        notes: list[str],
    ) -> None:
        self._began = time.perf_counter()
        self._given, self._p, self._seconds = given, p, seconds
        self._tell, self._notes = tell, notes
        self._facts = look(ds.source, p.given_path, memory)
        self._source: Source = ds.source.first
        self._fill = ds.source.fills(p.wanted)[0]
        if given["nthread"] == "auto":
            given["nthread"] = self._facts.cores
        every = np.arange(len(ds), dtype=np.int64)
        self._records = None if p.subset is None else ds.records(every)
        self._in_order = not at_random(p.shuffle)
        self._cold: Int64 | None = None
        tell("bringing it into memory")
        self._here = self._where_to_measure()
        tell("measuring ceilings")
        self._tops, self._fastest = self._ceilings()
        self._packed: dict[str, measure.PackedSample] = {}
        self._rates: dict[str, Rate] = {}
        self._failures: dict[str, AsyncReaderError] = {}

    def run(
        self,
        consumer_seconds: float | None,
        propose: Callable[[Facts, ReaderParams], list[Candidate]],
        trials: Callable[[], Trials],
    ) -> Diagnosis:
        """Measure the set as it is and what is proposed, and say what follows."""
        facts, p = self._facts, self._p
        candidates = propose(facts, p)
        with tempfile.TemporaryDirectory(prefix="asyncreader-doctor-") as folder, trials() as turns:
            self._pack(candidates, folder)
            self._tell("measuring readers")
            self._rates |= self._measured(turns, candidates)
            self._failures |= turns.failures
        now = self._rates["now"]
        served = self._in_training(now.samples_per_second)
        counts = [self._rates[name] for name in ("one", "now") if name in self._rates]
        tried = [self._tried(change, served) for change in candidates]
        keeps, words, needed = None, None, None
        if consumer_seconds:
            needed = p.batch_size / consumer_seconds
            keeps, words = advice.keeps_up(served, p.batch_size, consumer_seconds)
        copied = self._fill.as_stored and facts.compression is None
        kind, about = advice.limit(facts, p, now, self._tops, copied)
        threads, unsure = advice.threads(counts)
        expected = self._in_training
        return Diagnosis(
            facts=facts,
            params={k: v for k, v in self._given.items() if k not in ("last_batch", "verify")},
            now=now,
            samples_per_second=served,
            measured=facts.fits,
            by_nthread={one.nthread: expected(one.samples_per_second) for one in counts},
            spread={one.nthread: (expected(one.slowest), expected(one.fastest)) for one in counts},
            ceilings=self._tops,
            limit=kind,
            words=tuple(about),
            suited=advice.suited(facts, threads),
            tried=tuple(sorted(tried, key=lambda change: -(change.factor or 0))),
            advised=advice.chosen(tried, keeps, needed),
            keeps_up=keeps,
            keeps_up_words=words,
            notes=(*self._notes, *filter(None, [unsure])),
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

    def _in_training(self, rate: float, in_order: bool | None = None) -> float:
        """The rate of later epochs, from that of the records measured, which were cold if the set
        does not fit in memory: what stays there comes at once. ``in_order``: None: as it is read
        now.
        """
        if self._facts.fits:
            return rate
        hit = measure.hit_share(self._facts, self._in_order if in_order is None else in_order)
        return min(rate / max(1 - hit, 0.05), self._tops.decode_all or self._tops.copy)

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
                one, _ = decode_ceiling(self._source, fill, records, 1, spell, group)
                half = np.roll(records, records.size // group // 2 * group)
                every, filled = decode_ceiling(self._source, fill, half, cores, spell, group)
                # a sample drawn at random takes its whole chunk along
                fastest = filled / (1 if self._in_order else facts.chunk)
        elif not fill.kernel and fill.stored.axes is not None:
            records = measure.spread(facts.count, 256, 1, None)
            _, fastest = decode_ceiling(self._source, fill, records, cores, spell)
        largest = max(facts.files, key=os.path.getsize)
        random = read_ceiling(largest, int(facts.stored_bytes * facts.chunk), spell)
        in_order = read_ceiling(largest, IN_ORDER, spell, random=False)
        return Ceilings(copied, one, every, random, in_order), fastest

    def _pack(self, candidates: Sequence[Candidate], folder: str) -> None:
        """Pack samples of the set in each form that is proposed; why others could not be packed is
        noted."""
        forms = [change for change in candidates if change.options is not None]
        for form in forms:
            self._tell(f"trying: {form.words}")
            target, seconds = os.path.join(folder, form.name), self._seconds * _PACK / len(forms)
            try:
                self._packed[form.name] = self._pack_some(form.options or {}, target, seconds)
            except AsyncReaderError as exc:
                self._failures[form.name] = exc

    def _pack_some(
        self, options: Mapping[str, Any], stem: str, seconds: float
    ) -> measure.PackedSample:
        """Pack a part of the set with ``options`` into a file whose name begins with ``stem``: a
        few samples first, then as many as the ``seconds`` let expect, until the caches are
        exceeded. Raises what ``convert`` raises."""
        from converters import convert

        path, facts = self._p.given_path, self._facts
        if not isinstance(path, str) or not os.path.lexists(path):
            raise SourceError(
                "doctor does not convert several files",
                hint="run doctor on one of them and convert each, or convert the images to one "
                "dataset",
            )
        until = time.perf_counter() + seconds
        wanted = 16
        while True:
            target = f"{stem}-{wanted}.h5"
            records = measure.spread(facts.count, wanted, facts.chunk, self._records)
            params = {**self._read(), "subset": records}
            begun = time.perf_counter()
            report = convert(path, target, params=params, skip_bad=True, progress=False, **options)
            took = time.perf_counter() - begun
            each = report.bytes / max(1, report.count)
            most = min(facts.count, int(_SAMPLE_BYTES / max(each, 1)))
            more = int(wanted * min(16.0, 0.7 * (until - time.perf_counter()) / took))
            if wanted >= most or more < 2 * wanted:
                break
            os.unlink(target)
            wanted = min(more, most)
        most = min(most, int(_ENOUGH / max(each, 1)))
        if options.get("encoding") == "raw" and report.count < most:
            # pixels that all lie in a core's cache would be copied too fast: the same again
            again = {"subset": np.arange(most, dtype=np.int64) % report.count}
            report = convert(target, f"{stem}.h5", params=again, progress=False)
            target = f"{stem}.h5"
        return measure.PackedSample(target, each, report.count)

    def _measured(self, trials: Trials, candidates: Sequence[Candidate]) -> dict[str, Rate]:
        """What the set, each change of parameters, and each packed part reach."""
        facts, p = self._facts, self._p
        pairs = p.mixup is not None or p.cutmix is not None
        batch_size = measure.batch_that_fits(p.batch_size, self._fastest, 1 + pairs)
        here = {**self._here, "batch_size": batch_size}
        wanted = {"now": here}
        if int(self._given["nthread"]) > 1:
            wanted["one"] = {**here, "nthread": 1}
        for change in candidates:
            if change.options is None:
                batch = {"batch_size": p.batch_size} if facts.chunk > 1 else {}
                wanted[change.name] = {**here, **batch, **change.params}
        if self._cold is not None:  # no trial brings in what another reads
            in_order = [params.get("shuffle", True) is not True for params in wanted.values()]
            io = {"io": "pread" if self._given.get("io", "auto") == "auto" else self._given["io"]}
            parts = zip(wanted, measure.share_out(self._cold, in_order), strict=True)
            wanted |= {name: {**wanted[name], "subset": part, **io} for name, part in parts}
        # decoded chunks are remembered: their cache is as full then as in training
        warm_up = _WARM_UP * self._seconds if facts.chunk > 1 else 0.0
        left = max(self._seconds * 0.3, self._seconds - (time.perf_counter() - self._began))
        for name, params in wanted.items():
            trials.add(name, params, warm_up, needed=name == "now")
        for name, sample in self._packed.items():
            trials.add(name, self._on_packed(sample))
        return trials.run(left)

    def _on_packed(self, sample: measure.PackedSample) -> dict[str, Any]:
        """The parameters of training, on a packed sample."""
        left_out = {*READ_BY, "hdf5_path", "lmdb_path"}
        kept = {name: value for name, value in self._given.items() if name not in left_out}
        kept |= {"path": sample.path}
        again = None  # the whole of a small set: as it will be trained on
        if sample.count < self._facts.count:
            again = measure.repeated(sample.count, self._p.batch_size)
        return kept if again is None else {**kept, "subset": again}

    def _read(self) -> dict[str, Any]:
        """How the set is read; ``convert`` needs the same parameters."""
        names = set(READ_BY) - {"subset"}
        return {name: value for name, value in self._given.items() if name in names}

    def _tried(self, change: Candidate, served: float) -> Candidate:
        """A candidate with what came of it."""
        facts, in_order, rates = self._facts, self._in_order, self._rates
        size, each, command = float(facts.size), facts.stored_bytes, None
        if change.options is not None:
            read, path = self._read(), str(self._p.given_path)
            if isinstance(self._p.subset, str):
                read["subset"] = self._p.subset
            target = advice.free_name(path, change.name)
            command = advice.command(path, target, change.options, read)
            if change.name in self._packed:
                each = self._packed[change.name].bytes_each
                size = each * (facts.count if self._records is None else self._records.size)
        rate, factor, measured = None, None, facts.fits
        if change.name in rates:
            warm = rates[change.name].samples_per_second
            if change.options is None:
                rate = self._in_training(warm, in_order or change.name == "block")
            else:
                hit = measure.hit_share(facts, in_order, size)
                disk = self._tops.disk_in_order if in_order else self._tops.disk_random
                rate = measure.expected_rate(warm, each, hit, disk)
                measured = hit >= 1
            as_measured = facts.fits and measured
            factor = rates[change.name].against(rates["now"]) if as_measured else rate / served
        failure = self._failures.get(change.name)
        return replace(
            change,
            command=command,
            samples_per_second=rate,
            factor=factor,
            size=size,
            fits=size <= facts.memory,
            measured=measured,
            failure=None if failure is None else str(failure),
        )
