"""Patches of volumes: which places of them are samples, worked out from the extents of the volumes.

A *place* is where a patch begins in a volume. All places of all volumes have a number, so that a
record number says both; no list of patches exists.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

import numpy as np

from ..errors import ParamsError
from ..system.array_types import Array, Int64, UInt64
from ..system.keyed_random import STREAM_PLACE, key_of, mix_rows, uniforms
from ..system.late import as_array
from ..system.text import some
from .rule import E, PatchAt, Rule, Ruled
from .samplers import Sampler, Storage, Subset, digest, passes, subset_numbers

#: Places along an axis whose chunks are counted; of more so many, evenly spread.
_LOOKED_AT: Final = 1 << 20


@dataclass(frozen=True, eq=False)
class Volumes:
    """The volumes of a set, and the places of a patch in them: a record number is that of a place.

    Volumes of one extent that follow each other are a run. ``patch``: (k,), on the ``axes`` that
    are cut; ``extents``: int64 (R, k), of the volumes of each run on these; ``counts``: int64 (R,),
    the volumes of each run. ``sample_axis``: that of the volumes' number, None without;
    ``chunk``: (k,) of the first field's chunks, None where it has none.
    """

    patch: tuple[int, ...]
    axes: tuple[int, ...]
    sample_axis: int | None
    extents: Int64
    counts: Int64
    chunk: tuple[int, ...] | None = None

    @property
    def count(self) -> int:
        """The number of volumes."""
        return int(self.counts.sum())

    @property
    def words(self) -> str:
        """How many, and of which extents on the axes that are cut, such as "2 volumes of 40 to 56 x
        72 x 80"."""
        ends = zip(
            self.extents.min(axis=0).tolist(), self.extents.max(axis=0).tolist(), strict=True
        )
        sides = (f"{low}" if low == high else f"{low} to {high}" for low, high in ends)
        return f"{some(self.count, 'volume')} of {' x '.join(sides)}"

    @cached_property
    def room(self) -> Int64:
        """Places along each axis in the volumes of each run: int64 (R, k)."""
        found: Int64 = self.extents - np.array(self.patch) + 1
        return found

    @cached_property
    def _places(self) -> Int64:
        """Places in a volume of each run."""
        found: Int64 = self.room.prod(axis=1)
        return found

    @cached_property
    def ends(self) -> Int64:
        """Places up to the end of each run."""
        return np.cumsum(self.counts * self._places)

    @property
    def places(self) -> int:
        """The number of places in all volumes."""
        return int(self.ends[-1])

    @cached_property
    def first(self) -> Int64:
        """The number of the first volume of each run."""
        return np.cumsum(self.counts) - self.counts

    def runs(self, volumes: Int64) -> Int64:
        """The run that each volume is in."""
        return np.searchsorted(self.first, volumes, side="right") - 1

    def of(self, records: Int64) -> tuple[Int64, Int64]:
        """The volumes (n,) of places, and their corners there (n, k); -1 for records below 0."""
        run = np.searchsorted(self.ends, records, side="right")
        starts = self.ends - self.counts * self._places
        volume, place = np.divmod(records - starts[run], self._places[run])
        corner = np.empty((records.size, len(self.patch)), np.int64)
        for axis in reversed(range(len(self.patch))):
            place, corner[:, axis] = np.divmod(place, self.room[run, axis])
        volume += self.first[run]
        outside = records < 0
        volume[outside], corner[outside] = -1, -1
        return volume, corner

    def records(self, volumes: Int64, corners: Int64) -> Int64:
        """The numbers of the places at ``corners`` (n, k) of ``volumes`` (n,)."""
        run = self.runs(volumes)
        place = np.zeros(volumes.size, np.int64)
        for axis in range(len(self.patch)):
            place = place * self.room[run, axis] + corners[:, axis]
        inside = (volumes - self.first[run] - self.counts[run]) * self._places[run]
        return self.ends[run] + inside + place


def joined_volumes(parts: list[Volumes]) -> Volumes:
    """The volumes of several files in sequence."""
    extents = np.concatenate([one.extents for one in parts])
    return replace(parts[0], extents=extents, counts=np.concatenate([one.counts for one in parts]))


@dataclass(frozen=True, eq=False)
class Patches(Rule):
    """A sample is a patch of one of ``volumes``, and its record is the number of its place.

    ``step``: (k,), how far those of a grid are from each other; the last ones are shifted inwards.
    ``chosen``: int64, the only volumes that have samples, in that order; None for all.
    """

    noun = "patch"
    apart = renumbered = True
    more = "epoch_samples draws more random patches of each volume"
    volumes: Volumes
    at: PatchAt = "random"
    step: tuple[int, ...] = ()
    chosen: Int64 | None = None

    def samples(self, count: int) -> int:
        return self.population

    def words(self, samples: int) -> list[str]:
        return [*super().words(samples), self.volumes.words]

    def joined(self, rules: Sequence[Rule], paths: Sequence[str]) -> Patches:
        volumes = []
        for rule, path in zip(rules, paths, strict=True):
            if not isinstance(rule, Patches):
                raise no_volumes(path)
            volumes.append(rule.volumes)
        return replace(self, volumes=joined_volumes(volumes))

    def placed(self, at: PatchAt) -> Patches:
        return replace(self, at=at)

    def choose(self, chosen: Subset) -> tuple[Patches, None]:
        """The patches of the volumes that are chosen."""
        return replace(self, chosen=subset_numbers(chosen, self.volumes.count)), None

    def labelled(self, numbers: Subset | None, needed_by: str) -> Int64:
        return self.places(subset_numbers(numbers, self.population))

    def rows_of(self, name: str, count: int) -> int:
        return self.volumes.places

    def rows_read(self, samples: int, block: int) -> int:
        return int(samples * self.decoded) + 1

    def shown(self, records: Int64) -> Int64:
        """The volumes that the places lie in."""
        return self.volumes.of(records)[0]

    def told(self, error: E) -> E:
        if error.index is not None:
            volumes, corners = self.volumes.of(np.array([error.index]))
            error.index = int(volumes[0])
            error.what = f"the patch at {tuple(corners[0].tolist())}: {error.what}"
        return error

    def labels_of(self, table: Array) -> Array:
        """The labels of the volumes that places lie in: (places, ...)."""
        volumes = self.volumes
        return as_array(
            (volumes.places, *table.shape[1:]),
            table.dtype,
            lambda places: np.asarray(table[volumes.of(places)[0]]),
        )

    def place(self, records: Int64) -> Int64:
        return self.volumes.of(records)[1]

    @cached_property
    def _counts(self) -> Int64:
        """Patches along each axis in the volumes of each run: int64 (R, k)."""
        if self.at != "grid":
            return np.ones_like(self.volumes.extents)
        counts: Int64 = -(-(self.volumes.room - 1) // np.array(self.step)) + 1
        return counts

    @cached_property
    def _each(self) -> Int64:
        """Patches of a volume of each run."""
        found: Int64 = self._counts.prod(axis=1)
        return found

    @property
    def shares(self) -> Int64:
        """Patches of the volumes of each run, whichever are chosen."""
        return self._each * self.volumes.counts

    @cached_property
    def _ends(self) -> Int64:
        """Patches up to the end of each run, or of each chosen volume."""
        if self.chosen is not None:
            return np.cumsum(self._each[self.volumes.runs(self.chosen)])
        return np.cumsum(self.shares)

    @property
    def population(self) -> int:
        """Patches of an epoch, of random ones those of a pass over the volumes."""
        return int(self._ends[-1])

    def _volumes(self, numbers: Int64) -> tuple[Int64, Int64, Int64]:
        """The volumes that patches lie in, the runs of these, and the numbers of the patches in
        their volumes."""
        which = np.searchsorted(self._ends, numbers, side="right")
        before = np.concatenate((np.zeros(1, np.int64), self._ends))[which]
        if self.chosen is not None:
            volumes = self.chosen[which]
            return volumes, self.volumes.runs(volumes), numbers - before
        inside, number = np.divmod(numbers - before, self._each[which])
        return inside + self.volumes.first[which], which, number

    def places(self, numbers: Int64, by_chunk: bool = False) -> Int64:
        """The places of patches by their numbers in the volumes' sequence, of random ones the
        centre. ``by_chunk``: those of a volume are numbered cell by cell, not in C order."""
        volumes, corners, _ = self._corners(numbers, by_chunk)
        return self.volumes.records(volumes, corners)

    def touched(self, run: int, chunk: Sequence[int]) -> float:
        """The mean number of chunks with these sides, on the axes that are cut, that a patch of a
        volume of a run touches: over all places, where these are random."""
        mean, counts = 1.0, self._counts if self.at == "grid" else self.volumes.room
        for axis, (side, size) in enumerate(zip(chunk, self.volumes.patch, strict=True)):
            count, most = int(counts[run, axis]), int(self.volumes.room[run, axis]) - 1
            starts = np.unique(np.linspace(0, count - 1, min(count, _LOOKED_AT)).astype(np.int64))
            if self.at == "grid":
                starts = np.minimum(starts * self.step[axis], most)
            elif self.at == "center":
                starts = np.array([most // 2])
            mean *= float(((starts + size - 1) // side - starts // side + 1).mean())
        return mean

    def repeated(self, numbers: Int64) -> Int64:
        """How far patches of a grid are shifted inwards on each axis: int64 (n, k)."""
        return self._corners(numbers)[2]

    def _corners(self, numbers: Int64, by_chunk: bool = False) -> tuple[Int64, Int64, Int64]:
        """The volumes of patches, their corners, and how far these are shifted."""
        volumes, run, number = self._volumes(numbers)
        most = self.volumes.room[run] - 1
        if self.at != "grid":
            return volumes, most // 2, np.zeros_like(most)
        cell = self.cell if by_chunk else (1,) * len(self.step)
        wanted = _in_cells(number, self._counts[run], cell) * np.array(self.step)
        corners = np.minimum(wanted, most)
        return volumes, corners, wanted - corners

    def drawn(self, numbers: Int64, keys: UInt64) -> Int64:
        """A random place in each of the volumes with these numbers, drawn by ``keys``."""
        volumes, run, _ = self._volumes(numbers)
        room = self.volumes.room[run]
        draws = [uniforms(keys, axis) * room[:, axis] for axis in range(room.shape[1])]
        return self.volumes.records(volumes, np.stack(draws, axis=1).astype(np.int64))

    # -- how they are stored -----------------------------------------------------------------

    @cached_property
    def cell(self) -> tuple[int, ...]:
        """Patches of a grid along each axis that lie in about one chunk; without chunks those in a
        line along the last axis."""
        most = self._counts.max(axis=0).tolist()
        chunk = self.volumes.chunk
        if chunk is None:
            return *(1 for _ in most[1:]), most[-1]
        sides = zip(chunk, self.step, most, strict=True)
        return tuple(max(1, min(side // step, count)) for side, step, count in sides)

    @cached_property
    def decoded(self) -> float:
        """What is decoded for a patch, by its own size, where those in one cell are read together
        (random ones each by itself)."""
        chunk, patch = self.volumes.chunk, self.volumes.patch
        if chunk is None:
            return 1.0
        if self.at != "grid":
            # of a side of n, n + c - 1 on average of all places
            return math.prod((n + c - 1) / n for n, c in zip(patch, chunk, strict=True))
        share = 1.0
        for n, c, step, count in zip(patch, chunk, self.step, self.cell, strict=True):
            side = (count - 1) * step + n
            chunks = -(-side // c) if count * step % c == 0 else (side + c - 2) // c + 1
            share *= chunks * c / (count * n)
        return share

    def storage(self, rows: Storage) -> Storage:
        kept = replace(
            rows,
            count=self.population,
            sample_bytes=max(1, int(rows.sample_bytes * self.decoded)),
            ends=None if self.chosen is not None else rows.ends,
        )
        if self.at != "grid":
            return kept
        ends = self._ends
        if self.chosen is None:
            ends = np.cumsum(np.repeat(self._each, self.volumes.counts))
        block = math.prod(self.cell)
        if rows.block > 1:  # several volumes lie in one chunk
            block = int(self._each.max()) * rows.block
            ends = ends[-1:] if kept.ends is None else ends[kept.ends - 1]
        return replace(kept, block=block, ends=ends)

    def sampler(self, numbers: Sampler, storage: Storage) -> Sampler:
        """``numbers`` draws the numbers of patches, of random ones those of volumes."""
        if self.at == "random":
            return RandomPatches(self, numbers, storage.epoch_samples)
        return Patched(self, numbers)

    def identity(self) -> Mapping[str, str]:
        volumes = self.volumes
        where = np.concatenate((volumes.extents, volumes.counts[:, None]), axis=1).tobytes()
        if self.chosen is not None:
            where += self.chosen.tobytes()
        cut = f"{volumes.patch} of axes {volumes.axes}, volumes along {volumes.sample_axis}"
        step = f" every {self.step}" if self.at == "grid" else ""
        return {"patch": f"{self.at} {cut}{step}: {digest(where)}"}


def no_volumes(path: str, found: str | None = None) -> ParamsError:
    """The error of a set of which there are no patches."""
    return ParamsError(
        "patch goes with volumes: HDF5 datasets of numbers, .npy files and arrays",
        path=path,
        found=found,
    )


def _in_cells(numbers: Int64, counts: Int64, cell: tuple[int, ...]) -> Int64:
    """Where numbers lie in grids of ``counts`` (n, k) that are counted cell by cell, and in C order
    in each cell: int64 (n, k). Cells at the end of an axis may be smaller."""
    axes = range(len(cell))
    tops, heights = np.empty_like(counts), np.empty_like(counts)
    rest, done = numbers, np.ones(numbers.size, np.int64)
    for axis in axes:
        line = done * cell[axis] * counts[:, axis + 1 :].prod(axis=1)
        which, rest = np.divmod(rest, line)
        tops[:, axis] = which * cell[axis]
        heights[:, axis] = np.minimum(cell[axis], counts[:, axis] - tops[:, axis])
        done = done * heights[:, axis]
    for axis in reversed(axes):
        rest, inside = np.divmod(rest, heights[:, axis])
        tops[:, axis] += inside
    return tops


class Patched(Ruled):
    """The places of patches in the order of ``sampler``, which draws their numbers."""

    rule: Patches

    def chosen(self, numbers: Int64) -> Int64:
        return self.rule.places(numbers, by_chunk=self.kind == "block")


class RandomPatches(Patched):
    """A random place in each volume that ``sampler`` draws, another one at each position.

    ``samples``: in an epoch, None for as many as ``sampler`` draws. More are several passes over
    the volumes; a pass that an epoch does not end goes on in the next one.
    """

    def __init__(self, patches: Patches, sampler: Sampler, samples: int | None = None) -> None:
        super().__init__(patches, sampler)
        self._samples = sampler.length if samples is None else samples

    @property
    def length(self) -> int:
        return self._samples

    def records(self, epoch: int, positions: Int64) -> Int64:
        if not positions.size:
            return positions
        numbers = np.zeros_like(positions)
        if self._sampler.population > 1:
            first = epoch * self._samples
            for turn, which, inside in passes(first, self._sampler.length, positions):
                numbers[which] = self._sampler.records(turn, inside)
        keys = mix_rows(key_of(self.seed, STREAM_PLACE, epoch), positions)
        return self.rule.drawn(numbers, keys)

    def replacements(self, epoch: int, position: int, attempts: int) -> Int64:
        """Other places, of volumes that ``sampler`` says."""
        key = key_of(self.seed, STREAM_PLACE, epoch, position)
        numbers = self._sampler.replacements(epoch, position, attempts)
        return self.rule.drawn(numbers, mix_rows(key, np.arange(attempts, dtype=np.int64)))

    def identity(self) -> Mapping[str, str | int | None]:
        """With the number of samples, where that is not the number of volumes."""
        same = self._samples == self.population
        return {**super().identity()} | ({} if same else {"epoch_samples": self._samples})
