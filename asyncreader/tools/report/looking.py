"""Finds out what the page says: in one pass over at most so many samples, in bounded memory.

Labels and recorded checksums are looked at in full; headers, sizes, pixels and bytes of the
samples that are looked at, which are all of them up to the limit, else a random part.
"""

from __future__ import annotations

import contextlib
import math
import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np

from ...dataset import Dataset, look_into
from ...errors import ChecksumError, ParamsError, SampleError
from ...params.parse import parse_params
from ...sources import Inspector
from ...sources.labels import split_counts
from ...system.array_types import Array, Int64, UInt8, UInt64
from ...system.limits import usable_cores
from ...system.signals import in_threads
from ...system.text import counts_in_words
from ..describe import LabelCount, class_of, count_labels, in_words, single
from ..look import ArrayLooker, Looked, Thumb, looker_of_rows, thumb_of
from ..verify import check_paths
from .facts import LISTED, MEMBERS, Copies, Facts, Group, Row, checks_of

#: Thumbnails on a page in all, of one class, and of a set without classes.
THUMBS: Final = 1000
OF_A_CLASS: Final = 12
WITHOUT_CLASSES: Final = 60

#: The longest side of a drawing of numbers, in pixels.
WIDEST: Final = 600

#: Above this many samples, labels are grouped and checksums compared for a random part only.
IN_FULL: Final = 10_000_000

#: A picture whose channels all have a smaller standard deviation than this, of 255, is near
#: constant: what an encoder makes of one colour stays below 1, a dim photograph is above 5.
FLAT: Final = 2.0

#: Samples that one task looks at, and whose checksums are read together.
_RUN: Final = 16
_TOGETHER: Final = 65_536


def gather(
    params: Mapping[str, Any],
    *,
    limit: int = 10_000,
    seed: int = 0,
    jobs: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Facts:
    """Find out what the page says of the set that ``params`` (as for AsyncReader) name.

    At most ``limit`` samples are looked at, those whose thumbnails are shown included; which, is
    drawn by ``seed``. Bad samples are facts, not errors. Samples that are no pictures are drawn as
    on a sheet: see look.py. Raises ParamsError, SourceNotFoundError, or FormatError where
    the set cannot be opened or its samples are single numbers.
    """
    p = parse_params(params, {})
    path = p.given_path
    if not path or p.mix.ratios is not None:
        found = "data=" if p.mix.ratios is None else "mix="
        raise ParamsError("a report is about one dataset", found=found, expected="path=")
    if p.subset is not None:
        raise ParamsError("a report is about a whole dataset", found="subset")
    with look_into(params) as ds:
        tell = progress or (lambda *_: None)
        facts = _Gathering(ds, limit, seed).run(jobs or usable_cores(), tell)
    # as the caller named it: a page that is passed on should not show the folders above the set
    return replace(facts, path=os.fspath(path)) if isinstance(path, str | os.PathLike) else facts


class _Seen(NamedTuple):
    """What a worker found out about one good sample."""

    record: int
    height: int
    width: int
    size: int
    spread: float
    checksum: int


def spread_of(pixels: UInt8) -> float:
    """The greatest standard deviation of a channel of (H, W, 3), by some 64 x 64 pixels."""
    step = max(1, max(pixels.shape[:2]) // 64)
    # a channel in one piece: over a short last axis numpy takes ten times as long
    return float(pixels[::step, ::step].reshape(-1, pixels.shape[2]).T.copy().std(axis=1).max())


#: Record numbers of the first hundred groups of samples with equal checksums, those with several
#: labels first, then by size; and what Facts tells of all groups.
_Equal: TypeAlias = tuple[list[Int64], dict[str, Any]]


class _Gathering:
    def __init__(self, ds: Dataset, limit: int, seed: int) -> None:
        self.dataset, self.source = ds, ds.source
        source = self.source
        self.inspector = Inspector(source.first)
        self.looker = looker_of_rows(ds)
        self.arrays = self.looker.drawn
        self.checked = bool(source.checked)
        self.rng = np.random.default_rng(seed)
        facts = source.facts
        self.count, self.names = facts.count, facts.classes
        # of shards they are read now, all of them
        labels: Any = ds.labels if self.arrays else source.labels
        if self.arrays and source.rule.apart:
            self.count, self.checked = len(ds), False  # several samples have bytes in common
        if isinstance(labels, tuple):  # the first of several
            labels = labels[0]
        self.labels = None if labels is None else np.asarray(labels)
        if self.labels is not None and self.labels.dtype.names is not None:
            self.labels = self.labels[self.labels.dtype.names[0]]
        # drawn before anything is made that is as long as the set
        part = self.count > limit
        drawn = self.rng.choice(self.count, limit, replace=False) if part else range(self.count)
        self.sample: Int64 = np.sort(np.array(drawn, np.int64))
        self.counts = count_labels(self.labels, self.names)
        # half of what may be looked at stays drawn from all samples alike
        most = THUMBS if self.count <= limit else min(THUMBS, max(1, limit // 2))
        self.shown = self._choose_shown(most)
        chosen = [record for records in self.shown for record in records]
        self.side = WIDEST if self.arrays else 128 if len(chosen) <= 300 else 96
        self.thumbs: dict[int, Thumb] = {}
        self.equal: _Equal | None = None  # without recorded checksums known after the pass
        if self.checked and self.count <= IN_FULL:
            runs = ((at, min(at + _TOGETHER, self.count)) for at in range(0, self.count, _TOGETHER))
            self.equal = self._find_equal(np.arange(self.count), self._recorded(runs))
            firsts = [int(group[0]) for group in self.equal[0]]
            chosen += firsts[: max(0, limit - len(chosen)) // 2]
        self.wanted = set(chosen)
        others = self.sample[~np.isin(self.sample, chosen)]
        others = self.rng.permutation(others)[: max(0, limit - len(self.wanted))]
        self.records = np.union1d(others, np.array(chosen, np.int64))
        self.looker.settle(self.records)

    def _choose_shown(self, most: int) -> list[list[int]]:
        """Records to show of each label, drawn at random, ``most`` in all."""
        pool = self.sample if self.count > IN_FULL else np.arange(self.count)
        if self.counts is None:
            return [self._draw(self.sample, min(WITHOUT_CLASSES, most))]
        column = single(self.labels)
        assert column is not None
        each = min(OF_A_CLASS, max(1, most // len(self.counts)))
        order = pool[np.argsort(column[pool], kind="stable")]
        values = [count.label for count in self.counts[:most]]
        starts = np.searchsorted(column[order], values, side="left").tolist()
        stops = np.searchsorted(column[order], values, side="right").tolist()
        found = [self._draw(order[lo:hi], each) for lo, hi in zip(starts, stops, strict=True)]
        return found + [[]] * (len(self.counts) - len(found))

    def _draw(self, pool: Int64, count: int) -> list[int]:
        return sorted(self.rng.choice(pool, min(count, pool.size), replace=False).tolist())

    # -- the pass --------------------------------------------------------------------------

    def run(self, jobs: int, progress: Callable[[int, int], None]) -> Facts:
        seen: list[_Seen] = []
        bad: list[Row] = []
        bad_count = wrong_bytes = done = 0
        records = self.records.tolist()
        runs = [records[at : at + _RUN] for at in range(0, len(records), _RUN)]
        jobs = 1 if self.arrays else jobs  # of which the time is Python's
        for _, results in in_threads(jobs, "asyncreader-report", self._look_at, runs):
            for result in results:
                done += 1
                if isinstance(result, _Seen):
                    seen.append(result)
                    continue
                bad_count += 1
                wrong_bytes += isinstance(result[1], ChecksumError)
                if len(bad) < LISTED:
                    bad.append(self._row(result[0], str(result[1].what)))
            progress(done, len(records))
        return self._facts(seen, bad, bad_count, wrong_bytes)

    def _look_at(
        self, run: Sequence[int], stop: threading.Event
    ) -> list[_Seen | tuple[int, SampleError]]:
        found: list[_Seen | tuple[int, SampleError]] = []
        for record in run:
            if stop.is_set():
                break
            try:
                look = self.looker.look(record, self.side)
            except SampleError as exc:
                found.append((record, exc))
                continue
            spread = math.inf if self.arrays else spread_of(look.picture)
            if record in self.wanted or spread < FLAT:
                self._keep_thumb(record, look)
            checksum = 0 if self.checked else look.checksum
            found.append(_Seen(record, look.height, look.width, look.size, spread, checksum))
        return found

    def _keep_thumb(self, record: int, look: Looked) -> None:
        """A drawing of numbers keeps its size."""
        side = min(self.side, max(look.picture.shape[:2])) if self.arrays else self.side
        self.thumbs[record] = thumb_of(look.picture, side)

    def _facts(self, seen: list[_Seen], bad: list[Row], bad_count: int, wrong_bytes: int) -> Facts:
        source, of_set, spec = self.source, self.source.facts, self.source.spec
        tallies = self.counts or [LabelCount(0, None, self.count)]
        groups = [
            Group(tally, tuple(self._row(one, "") for one in records if one in self.thumbs))
            for tally, records in zip(tallies, self.shown, strict=True)
        ]
        flat = [entry for entry in seen if entry.spread < FLAT]
        copies, copied = self.equal or self._equal_of(seen)
        images = not self.arrays and spec.axes is not None
        channels = spec.image_shape()[2] if images else 1
        notes = list(self.looker.notes)
        if channels == 2 or channels > 3:
            notes.append(f"of {channels} channels the first {1 if channels == 2 else 3} are shown")
        if source.splits:
            counts = split_counts(source.splits, source.facts.count)
            notes.append(f"splits: {counts_in_words(counts)}")
        about = f"{of_set.container}: {of_set.layout}; {spec.encoding}, {spec.dtype}; labels: "
        labels = self.labels
        about += "none" if labels is None else f"{'x'.join(map(str, labels.shape))} {labels.dtype}"
        facts = Facts(
            path=of_set.path,
            about=about,
            count=self.count,
            looked=int(self.records.size),
            size_on_disk=of_set.size_on_disk,
            fingerprint=self.dataset.fingerprint,
            groups=tuple(groups),
            classed=self.counts is not None,
            label_values=self._label_values(),
            heights=np.array([entry.height for entry in seen if not self.arrays], np.int64),
            widths=np.array([entry.width for entry in seen if not self.arrays], np.int64),
            **self._of_arrays(seen),
            bytes_each=np.array([entry.size for entry in seen], np.int64),
            copies=tuple(map(self._copies, copies)),
            **copied,
            flat=tuple(self._row(e.record, f"{e.spread:.1f} of 255") for e in flat[:LISTED]),
            flat_count=len(flat),
            bad=tuple(bad),
            bad_count=bad_count,
            notes=tuple(notes),
        )
        whole = facts.looked == facts.count
        paths = check_paths(source, source.names[0]) if whole else None
        checks = checks_of(facts, source, wrong_bytes, paths)
        return replace(facts, checks=checks)

    def _of_arrays(self, seen: list[_Seen]) -> dict[str, Any]:
        """The shape of samples that are no images, and their lengths, where these differ."""
        if not isinstance(self.looker, ArrayLooker):
            return {}
        shape: Sequence[object] = next(iter(self.looker.dataset.fields.values())).shape or ()
        lengths = [entry.height for entry in seen] if self.looker.differ else []
        shape = ("any length", *shape[1:]) if self.looker.differ else shape
        words = " x ".join(map(str, shape)) or "one number"
        return {"shape": words, "lengths": np.array(lengths, np.int64)}

    # -- its parts -------------------------------------------------------------------------

    def _label_values(self) -> tuple[tuple[str, Array], ...]:
        labels = self.labels
        if labels is None or self.counts is not None:
            return ()
        columns = labels.reshape(len(labels), -1)
        rows = self.sample if self.count > IN_FULL else slice(None)
        wide = columns.shape[1]
        names: Sequence[str] = [f"label {n}" for n in range(wide)] if wide > 1 else ["label"]
        if self.names and len(self.names) == wide:
            names = self.names
        return tuple((name, columns[rows, n]) for n, name in enumerate(names[:8]))

    def _recorded(self, runs: Iterable[tuple[int, int]]) -> UInt64:
        """The recorded checksums of samples, from each run's first up to its end."""
        parts = [self.inspector.checksums(first, end) for first, end in runs]
        return np.concatenate([np.empty(0, np.uint64), *(p for p in parts if p is not None)])

    def _equal_of(self, seen: list[_Seen]) -> _Equal:
        """Equal samples among those that were looked at."""
        records = np.array([entry.record for entry in seen], np.int64)
        sums = np.array([entry.checksum for entry in seen], np.uint64)
        if self.checked:
            sums = self._recorded((record, record + 1) for record in records.tolist())
        return self._find_equal(records, sums)

    def _find_equal(self, records: Int64, sums: UInt64) -> _Equal:
        _, first, group, counts = np.unique(
            sums, return_index=True, return_inverse=True, return_counts=True
        )
        torn = np.zeros(counts.size, np.bool_)
        if self.labels is not None:  # those of a copy, and of the first of its group
            rows, copies = self.labels.reshape(len(self.labels), -1), counts[group] > 1
            mine, firsts = rows[records[copies]], rows[records[first[group[copies]]]]
            same = (mine == firsts) | ((mine != mine) & (firsts != firsts))  # NaN is like NaN
            torn[group[copies][~same.all(axis=1)]] = True
        several = np.flatnonzero(counts > 1)
        listed = several[np.lexsort((-counts[several], ~torn[several]))][:LISTED].tolist()
        return [records[group == number] for number in listed], {
            "extra_copies": int((counts[several] - 1).sum()),
            "compared": int(sums.size),
            "copy_groups": int(several.size),
            "torn_groups": int(torn.sum()),
        }

    def _copies(self, group: Int64) -> Copies:
        """A group as a row of the table, with the image of a member that was looked at."""
        labels, members = self.labels, group[:MEMBERS]
        kinds = 1 if labels is None else len(np.unique(labels[group], axis=0))
        looked = np.intersect1d(members, self.records).tolist()
        if looked and not any(record in self.thumbs for record in members.tolist()):
            with contextlib.suppress(SampleError):
                self._keep_thumb(looked[0], self.looker.look(looked[0], self.side))
        rows = [self._row(record, "") for record in members.tolist()]
        thumb = next((row.thumb for row in rows if row.thumb is not None), None)
        return Copies(len(group), (rows[0]._replace(thumb=thumb), *rows[1:]), kinds)

    def _row(self, record: int, why: str) -> Row:
        label, words = None, ""
        if self.labels is not None:
            row = np.asarray(self.labels[record])
            label = int(row.reshape(-1)[0]) if self.counts is not None else None
            words = class_of(row, self.names) or in_words(row)
        # the first field's own record, of which an episode may have one more than of others
        own = self.source.records(self.looker.rows(np.array([record], np.int64)))
        path = self.inspector.path(int(own[0]))
        name = "" if path is None else path.decode("utf-8", "surrogateescape")
        return Row(record, label, words, name, why, self.thumbs.get(record))
