"""Verifies a packed set: structure, count, every checksum, and on request every picture."""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from operator import itemgetter
from typing import Any, Final

import numpy as np

from .. import errors
from ..dataset import look_into
from ..formats import packed as fmt
from ..formats.manifest import CONTAINERS, file_digest, manifest_path, read_manifest
from ..params.parse import reading_params
from ..params.reader import READ_BY
from ..pixels.encoded import decode_sample
from ..pixels.specs import OutputSpec
from ..pixels.transform import plan_rows
from ..sources import Inspector, OpenSet, Source, container_of, expand_paths
from ..sources.base import read_stored
from ..sources.extents import ExtentSource
from ..sources.labels import split_counts
from ..sources.sets.joined import WholeDigests
from ..sources.sets.shards import EachShard, LocalShards
from ..sources.sniff import is_url
from ..system.array_types import Int64
from ..system.limits import usable_cores
from ..system.signals import in_threads

#: Problems listed one by one; more are only counted.
LISTED: Final = 1000
#: Samples that one task looks at; of raw ones, those of about so many bytes.
_RUN: Final = 256
_TOGETHER: Final = 2 << 20
#: Raw samples of a set from which on they are hashed by compiled code, many at a time.
_MANY: Final = 20_000
#: Bytes of a store that each thread asks for at once.
_AHEAD_BYTES: Final = 32 << 20


@dataclass(frozen=True)
class VerifyReport:
    """What :func:`verify_file` found."""

    path: str
    container: str
    count: int
    checked: int
    """Checksums compared with the table: one per sample, and one per sample of each other field."""
    decoded: int
    """Images that were decoded in full."""
    bad: int
    """Samples that failed."""
    problems: tuple[str, ...]
    """One line each, the first 1,000."""
    splits: Mapping[str, int] = field(default_factory=dict)
    """Samples of each split that the set names."""

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems

    @property
    def unverified(self) -> bool:
        """Whether the set carries no checksums, so that only its structure could be checked."""
        return self.ok and self.checked == 0

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {**asdict(self), "ok": self.ok, "unverified": self.unverified}


def verify_file(
    path: str,
    *,
    decode: bool = False,
    jobs: int | None = None,
    progress: Callable[[int, int], None] | None = None,
    params: Mapping[str, object] | None = None,
) -> VerifyReport:
    """Check a packed file, or a sharded set, in full. Damage is reported, not raised.

    Opening checks structure, count and the digests of all tables. Then every sample's XXH3-64 is
    compared with the table, and with ``decode`` every image is decoded, in other fields too. The
    shards of a sharded set are checked one after the other, and their bytes are compared with the
    manifest; a missing or wrong shard is one of the problems. ``progress(done, total)`` is called
    now and then. ``params``: how a set that others wrote is read, such as ``{"data_field": "x"}``;
    of the fields that these name, all are checked. Raises SourceNotFoundError if there is no such
    file, ParamsError if its fields or axes are not clear.
    """
    names = expand_paths(path)
    how = _How(decode, jobs or usable_cores(), progress or (lambda *_: None))
    manifest = None if is_url(names[0]) else manifest_path(names[0])
    if params:
        reading_params(path, params, _READ_BY)
        if is_url(names[0]) or manifest is not None:
            raise errors.ParamsError(
                "params say how a file that others wrote is read; a sharded dataset, or one in a "
                "store, is checked in full without them",
                path=names[0],
                found=", ".join(params),
            )
    elif is_url(names[0]):
        return _verify_url(path, how)
    elif manifest is not None and len(names) == 1:
        return _verify_local_set(path, manifest, how)
    container = container_of(names[0])
    try:
        ds = look_into({**(params or {}), "path": path}, whole=not params)
    except errors.SourceError as exc:
        return _unreadable(path, container, exc)
    with ds:
        return _verify(path, ds.source, how)


@dataclass(frozen=True)
class _How:
    """How a set is verified: in how many threads, with its pictures decoded, and who is told."""

    decode: bool
    jobs: int
    progress: Callable[[int, int], None]


def _unreadable(path: str, container: str, error: errors.SourceError) -> VerifyReport:
    """The report of a set that cannot be opened."""
    return VerifyReport(path, container, 0, 0, 0, 0, (str(error),))


#: Parameters that say how a set is read: all of it.
_READ_BY: Final = tuple(name for name in READ_BY if name != "subset")


def _verify_local_set(path: str, manifest_file: str, how: _How) -> VerifyReport:
    try:
        manifest = read_manifest(manifest_file)
    except errors.SourceError as exc:
        return _unreadable(path, "?", exc)
    shards = LocalShards(os.path.dirname(manifest_file), manifest)
    each = EachShard(path, manifest, shards)

    def same(number: int) -> bool:
        row = manifest.shards[number]
        return file_digest(each.path(number)) == (row.bytes, row.xxh3)

    return _verify_set(path, manifest_file, each, same, how)


def _verify_url(path: str, how: _How) -> VerifyReport:
    """Verify a set in a store: its shards are fetched one after the other. A store that cannot be
    reached is an error, not a problem of the set."""
    from ..sources.remote.open import fetched_shards

    try:
        with fetched_shards(path) as each:
            if each is not None:  # each shard was compared with the manifest when it was fetched
                return _verify_set(path, path, each, lambda _: True, how)
        with look_into({"path": path}, whole=True) as ds:
            return _verify(path, ds.source, how)
    except errors.FormatError as exc:
        return _unreadable(path, "?", exc)


def _verify_set(
    path: str, name: str, each: EachShard, same: Callable[[int], bool], how: _How
) -> VerifyReport:
    """``name``: of the manifest; ``same``: whether a shard's bytes are those it states."""
    manifest = each.manifest
    digests = WholeDigests(manifest.digests)
    checked = decoded = bad = before = 0
    problems: list[str] = []
    splits = Counter(dict.fromkeys(manifest.common.splits or (), 0))

    def shard_progress(done: int, _: int) -> None:
        how.progress(before + done, manifest.count)

    of_shard = replace(how, progress=shard_progress)

    for number in range(len(manifest)):
        row, shown = manifest.shards[number], each.path(number)
        try:
            with each.open(number) as shard:
                found = _verify(shown, shard, of_shard, before)
                digests.add(shard)
        except errors.SourceError as exc:
            of_shard_itself = errors.SourceNotFoundError | errors.FormatError
            if is_url(path) and not isinstance(exc, of_shard_itself):
                raise  # the store, not the shard
            exc.shift_record(before)
            found = _unreadable(shown, "", exc)
        checked, decoded, bad = checked + found.checked, decoded + found.decoded, bad + found.bad
        problems.extend(found.problems)
        splits.update(found.splits)
        if found.ok and not same(number):
            problems.append(
                f"{shown}: the bytes outside its samples have changed since it was written"
            )
        del problems[LISTED:]
        before += row.count
        shard_progress(0, 0)
    if not problems and digests.found() != manifest.digests:
        problems.append(f"{name}: its digests are not those of its shards' samples")
    container = CONTAINERS[manifest.common.container]
    found_all = checked, decoded, bad, tuple(problems), dict(splits)
    return VerifyReport(path, container, manifest.count, *found_all)


def _verify(path: str, source: OpenSet, how: _How, first: int = 0) -> VerifyReport:
    """``first``: the record number of its first sample, where it is a part of a set."""
    facts, parts = source.facts, source.parts
    problems = [*filter(None, (check_paths(source, name) for name in source.names))]
    encoded = sum(part.spec.encoded for part in parts) if how.decode else 0
    # of fewer samples the work takes less time than loading numba
    differ = any(part.spec.ragged for part in parts)
    together = facts.count >= _MANY and all(map(_alike, parts)) and not differ
    step = _RUN
    if together:
        step = max(_RUN, _TOGETHER // max(part.spec.row_bytes for part in parts))
    rows = max(map(source.rows_of, source.names))
    runs = (range(lo, min(lo + step, rows)) for lo in range(0, rows, step))
    done = bad = 0
    # a sparse file may state 2^50 samples: only some runs wait at any time
    check = partial(_check, source, how.decode, together, first)
    for run, (failed, found) in in_threads(how.jobs, "asyncreader-verify", check, runs):
        done += len(run)
        bad += failed
        problems.extend(found[: max(0, LISTED - len(problems))])
        how.progress(done, rows)
    return VerifyReport(
        path=path,
        container=facts.container,
        count=facts.count,
        checked=facts.count * len(source.checked),
        decoded=facts.count * encoded,
        bad=bad,
        problems=tuple(problems),
        splits=split_counts(source.splits, source.facts.count),
    )


def _alike(part: Source) -> bool:
    """Whether asyncreader packed raw samples of one shape: they are hashed many at a time."""
    spec = part.spec
    raw = not spec.encoded and spec.shape is not None and not part.facts.remote
    return raw and part.index.checked == "all"


def _check(
    source: OpenSet, decode: bool, together: bool, first: int, run: range, stop: threading.Event
) -> tuple[int, list[str]]:
    """How many samples of a run are bad, and a line for each problem. ``together``: all fields are
    :func:`_alike`."""
    found = list[tuple[int, str]]()
    for name, part in zip(source.names, source.parts, strict=True):
        own = range(run.start, min(run.stop, source.rows_of(name)))
        for index, error in _errors(part, own, decode, together, stop):
            error.shift_record(first)
            found.append((index, f"field {name!r}: {error}" if source.named else str(error)))
    found.sort(key=itemgetter(0))
    return len({index for index, _ in found}), [said for _, said in found]


def _errors(
    part: Source, run: range, decode: bool, together: bool, stop: threading.Event
) -> Iterator[tuple[int, errors.SampleError]]:
    """The bad samples of a run of a field."""
    records = np.arange(run.start, run.stop)
    if together and _sums_hold(part, records):
        return
    if together or part.spec.ragged:
        fill = None
        if part.spec.ragged:  # of a long one a part is in memory at a time
            fill = plan_rows(part.spec, OutputSpec(max_length=1), part.facts.path)
        for bad in read_stored(part, records, fill, check=True)[1]:
            yield run.start + bad.row, bad.error
        return
    ahead, inspector, facts = 0, Inspector(part), part.facts
    if facts.remote:  # where each request costs a round trip
        ahead = max(1, min(_RUN, int(_AHEAD_BYTES * facts.count / facts.size_on_disk)))
    for at, index in enumerate(run):
        if stop.is_set():
            return
        if ahead and at % ahead == 0:
            part.prefetch(records[at : at + ahead])
        try:
            data = inspector.bytes(index)
            if not decode or not part.spec.encoded:
                continue
            with errors.located(path=facts.path, index=index):
                shape = decode_sample(data, part.spec).shape
                if part.spec.shape not in (None, shape):
                    raise errors.DecodeError(
                        "image of another size than the dataset declares",
                        found=shape,
                        expected=part.spec.shape,
                    )
        except errors.SampleError as exc:
            yield index, exc


def _sums_hold(part: Source, records: Int64) -> bool:
    """Whether samples, which follow each other, were hashed where they lie, and are all good."""
    runs = part.runs if isinstance(part, ExtentSource) else None
    if runs is None or part.checksums is None:
        return False
    (store, offsets), size = runs, part.spec.row_bytes
    data = store.view(int(offsets(records[:1])[0]), records.size * size)
    sums = fmt.row_checksums(data.reshape(-1, size))
    return np.array_equal(sums, part.checksums[records[0] : records[-1] + 1])


def check_paths(source: OpenSet, name: str) -> str | None:
    """Check the digest of a field's paths, which opening does not: the problem, or None."""
    facts, table = source.facts, fmt.table_of(name.strip("/"), fmt.PATHS)
    expected = None if facts.meta is None else facts.meta.digests.get(table)
    if expected is None:
        return None
    try:
        found = fmt.names_digest(name or b"" for name in Inspector(source.part(name)).paths())
    except errors.FormatError as exc:
        return str(exc)
    if found == expected:
        return None
    return f"{facts.path}: its paths do not match their digest"
