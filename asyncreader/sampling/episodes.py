"""Episodes and windows: which stored rows belong to a sample, worked out from the ends of episodes.

An *anchor* is a row at which a sample begins. A window says which rows around its anchor a sample
has. No list of windows exists: all is arithmetic on one number for each episode.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal, TypeAlias

import numpy as np

from ..errors import FormatError, ParamsError
from ..system.array_types import Bools, Int64
from ..system.keyed_random import STREAM_ANCHOR, key_of, mix_rows
from ..system.text import some
from .rule import Rule, Ruled
from .samplers import Sampler, Storage, Subset, digest, numbers_below, subset_numbers

#: The rows of one field in a window, relative to the anchor; the episode's last row; all of its
#: rows; or None: the anchor's row itself, without an axis for the window.
Reach: TypeAlias = tuple[int, ...] | Literal["last", "episode"] | None

Edge: TypeAlias = Literal["drop", "repeat", "zero"]


@dataclass(frozen=True, eq=False)
class FieldRows:
    """Where the rows of a field lie that are numbered otherwise than those of the set.

    ``starts``: int64 (E,), the field's first row of each episode; ``extra``: rows that it has more
    than the set has in each episode; None: it has one row for each episode.
    """

    starts: Int64
    extra: int | None = 0


@dataclass(frozen=True, eq=False)
class Episodes:
    """The episodes of a set, none of them empty.

    ``kind``: what says where they end, as the parameter ``episodes`` has it; ``ends``: int64 (E,),
    the row of the set behind each; ``names``: of each, () where they have none; ``splits``: int64
    episode numbers by the name of a split; ``empty``: episodes that are left out; ``fields``: those
    whose rows are not numbered as the set's.
    """

    kind: str
    ends: Int64
    names: tuple[str, ...] = ()
    splits: Mapping[str, Int64] = field(default_factory=dict)
    empty: int = 0
    fields: Mapping[str, FieldRows] = field(default_factory=dict)

    @cached_property
    def starts(self) -> Int64:
        """The first row of each episode, int64 (E,)."""
        return np.concatenate((np.zeros(1, np.int64), self.ends[:-1]))

    @property
    def lengths(self) -> Int64:
        """Rows of each episode, int64 (E,)."""
        return self.ends - self.starts

    @property
    def words(self) -> str:
        """How many, and how long, such as "12 episodes of 40 to 51 rows, median 45.5"."""
        low, high = int(self.lengths.min()), int(self.lengths.max())
        rows = f"{low:,} to {high:,} rows, median {float(np.median(self.lengths)):,.6g}"
        return f"{some(self.ends.size, 'episode')} of {some(low, 'row') if low == high else rows}"

    def of(self, rows: Int64) -> Int64:
        """The episodes that ``rows`` of the set are in; -1 for a row below 0."""
        found: Int64 = np.searchsorted(self.ends, rows, side="right")
        return np.where(rows < 0, -1, found)

    def digest(self) -> str:
        """A digest of where the episodes end."""
        return digest(self.ends.astype("<i8").tobytes())


def joined_episodes(parts: list[Episodes], kind: str) -> Episodes:
    """The episodes of several files in sequence. Splits are those that all of them have."""
    rows = np.cumsum([0, *(int(one.ends[-1]) for one in parts)])
    counts = np.cumsum([0, *(one.ends.size for one in parts)])
    names = [one.names for one in parts]
    shared = [name for name in parts[0].splits if all(name in one.splits for one in parts)]
    fields = {}
    for name in dict.fromkeys(name for one in parts for name in one.fields):
        own = [one.fields.get(name) or FieldRows(one.starts) for one in parts]
        extras = {rows.extra for rows in own}
        # what one row beside one row is, the other files say
        unsure = (e.lengths.max() for e, rows in zip(parts, own, strict=True) if rows.extra == 0)
        if extras == {0, None} and max(unsure) == 1:
            extras = {None}
        if len(extras) > 1:
            raise ParamsError(
                f"field {name!r} has as many rows as the others in some files only",
                found="one row for each episode" if None in extras else "one row more",
                hint="leave out the field, or the files whose episodes have other rows of it",
            )
        before = np.cumsum([0, *map(field_count, parts, own)]).tolist()
        starts = [rows.starts + first for rows, first in zip(own, before, strict=False)]
        fields[name] = FieldRows(np.concatenate(starts), extras.pop())
    return Episodes(
        kind,
        np.concatenate([one.ends + at for one, at in zip(parts, rows, strict=False)]),
        tuple(name for some in names for name in some) if all(names) else (),
        {
            name: np.concatenate(
                [one.splits[name] + at for one, at in zip(parts, counts, strict=False)]
            )
            for name in shared
        },
        sum(one.empty for one in parts),
        fields,
    )


def field_count(episodes: Episodes, rows: FieldRows) -> int:
    """Rows up to the end of a field's last episode."""
    last = 1 if rows.extra is None else int(episodes.lengths[-1]) + rows.extra
    return int(rows.starts[-1]) + last


@dataclass(frozen=True, eq=False)
class Anchors:
    """The rows of the set at which samples begin, numbered 0 .. count-1.

    ``ends``: int64, the number of anchors up to the end of each chosen episode; ``shifts``: what
    ``every`` times an anchor's number is below its row; ``chosen``: the numbers of these episodes.
    """

    ends: Int64
    shifts: Int64
    every: int
    chosen: Int64 | None

    @property
    def count(self) -> int:
        """The number of anchors."""
        return int(self.ends[-1]) if self.ends.size else 0

    @property
    def counts(self) -> Int64:
        """Anchors of each chosen episode."""
        return np.diff(self.ends, prepend=0)

    def rows(self, numbers: Int64) -> Int64:
        """The rows of anchors."""
        which = np.searchsorted(self.ends, numbers, side="right")
        return numbers * self.every + self.shifts[which]

    def numbers(self, rows: Int64, episodes: Episodes) -> Int64:
        """The numbers of the anchors at ``rows``, without the rows that are no anchor."""
        which = episodes.of(rows)
        if self.chosen is not None:
            places = np.full(episodes.ends.size, -1, np.int64)
            places[self.chosen] = np.arange(self.chosen.size)
            which = places[which]
        number, rest = np.divmod(rows - self.shifts[which], self.every)
        good = (which >= 0) & (rest == 0) & (number < self.ends[which])
        good &= number >= self.ends[which] - self.counts[which]
        found: Int64 = number[good]
        return found

    def before(self, ends: Int64 | None, episodes: Episodes) -> Int64 | None:
        """The number of anchors up to each of ``ends``, which are ends of episodes; None where the
        episodes are not in their order."""
        if ends is None:
            return None
        chosen = np.arange(episodes.ends.size) if self.chosen is None else self.chosen
        if (np.diff(chosen) <= 0).any():
            return None
        last = np.searchsorted(chosen, np.searchsorted(episodes.ends, ends, side="right"))
        found: Int64 = np.unique(np.concatenate((np.zeros(1, np.int64), self.ends))[last])
        return found[found > 0]


@dataclass(frozen=True, eq=False)
class Windows(Rule):
    """A sample is a window of rows, or a whole episode, and its record is the row of its anchor.

    ``fields``: of each field of the set, by name; ``every``: a sample begins at each so-many-th row
    of an episode; 0: at one random row of each episode; ``edges``: what rows before and behind the
    episode become; ``outside``: the most rows of a window that may lie there, None for any number;
    ``most``: rows that are served of whole episodes, by field. Where a field has the whole episode,
    samples are episodes, which begin at their first rows.
    """

    apart = True
    episodes: Episodes
    fields: Mapping[str, Reach]
    every: int = 1
    edges: tuple[Edge, Edge] = ("drop", "drop")
    outside: tuple[int | None, int | None] = (None, None)
    chosen: Int64 | None = None
    most: Mapping[str, int | None] = field(default_factory=dict)

    @property
    def by_episode(self) -> bool:
        """Whether an epoch has one sample of each episode."""
        return self.every == 0 or self._whole

    @cached_property
    def _whole(self) -> bool:
        return any(map(self.is_whole, self.fields))

    @property
    def noun(self) -> str:
        if all(self.reach(name) is None for name in self.fields):
            return "sample"
        return "episode" if self._whole else "window"

    def words(self, samples: int) -> list[str]:
        if self.noun == "episode" and samples == self.episodes.ends.size:
            return [self.episodes.words]
        return [*super().words(samples), self.episodes.words]

    def joined(self, rules: Sequence[Rule], paths: Sequence[str]) -> Windows:
        kind, parts = self.episodes.kind, list[Episodes]()
        for rule, path in zip(rules, paths, strict=True):
            if not isinstance(rule, Windows) or rule.episodes.kind != kind:
                raise FormatError(
                    "some of the files say otherwise than the first one where episodes end",
                    path=path,
                )
            names = (os.path.basename(path),) if kind == "files" else rule.episodes.names
            parts.append(replace(rule.episodes, names=names))
        whole = joined_episodes(parts, kind)
        if kind == "whole":
            for name in whole.fields:
                raise FormatError(
                    "one recording in several files has as many rows of each field",
                    path=paths[0],
                    found=f"field {name!r}, which has other rows than {next(iter(self.fields))!r}",
                    hint='episodes="files": each file is a recording of its own',
                )
            whole = replace(whole, ends=whole.ends[-1:])
        return replace(self, episodes=whole)

    def renamed(self, names: Mapping[str, str]) -> Windows:
        held = self.episodes.fields
        fields = {name: held[of] for name, of in names.items() if of in held}
        return Windows(replace(self.episodes, fields=fields), dict.fromkeys(names))

    @property
    def splits(self) -> dict[str, Int64]:
        """Of each split of the episodes its rows, int64, or the numbers of its episodes where
        samples are episodes."""
        episodes = self.episodes
        if self.by_episode:
            return dict(episodes.splits)
        each = np.repeat(np.arange(episodes.ends.size), episodes.lengths)
        return {n: np.flatnonzero(np.isin(each, some)) for n, some in episodes.splits.items()}

    def split(self, name: str) -> Windows | None:
        numbers = self.episodes.splits.get(name)
        return None if numbers is None else self.of_episodes(numbers)

    @property
    def parts(self) -> int | None:
        return self.episodes.ends.size if self.by_episode else None

    def choose(self, chosen: Subset) -> tuple[Windows, Subset | None]:
        if not self.by_episode:
            return self, chosen
        return self.of_episodes(subset_numbers(chosen, self.episodes.ends.size)), None

    def of_episodes(self, numbers: Int64) -> Windows:
        """The same rule for some of the episodes, by their numbers, in that order and as often as
        they are named; for those among the episodes that are chosen already."""
        if self.chosen is not None:
            numbers = numbers[np.isin(numbers, self.chosen)]
        return replace(self, chosen=numbers)

    def check(self, left: int, whole: bool, path: str) -> None:
        if left:
            return
        raise ParamsError(
            "no episode is long enough for the window"
            if whole and self.chosen is None
            else "subset selects no row at which a window begins",
            path=path,
            found=f"episodes of at most {some(int(self.episodes.lengths.max()), 'row')}",
            hint='window_edge="repeat" or "zero" also serves windows that reach beyond the ends',
        )

    def labelled(self, numbers: Subset | None, needed_by: str) -> Int64:
        if self.every == 0:
            raise ParamsError(
                f'{needed_by} needs samples with a label; window_every="episode" draws them'
            )
        return self.anchors.rows(subset_numbers(numbers, self.population))

    def rows_of(self, name: str, count: int) -> int:
        own = self.episodes.fields.get(name)
        return count if own is None else field_count(self.episodes, own)

    def is_whole(self, name: str) -> bool:
        return self.reach(name) == "episode"

    def alike(self, name: str) -> object:
        return self.reach(name), self.episodes.fields.get(name)

    def longest(self, name: str) -> int:
        return int(self.whole(name, self.episodes.starts)[1].max())

    def episode(self, records: Int64) -> Int64:
        return self.episodes.of(records)

    def width(self, name: str) -> int | None:
        reach = self.reach(name)
        if reach == "episode":
            return self.most.get(name)
        return 1 if reach == "last" else None if reach is None else len(reach)

    def whole(self, name: str, rows: Int64) -> tuple[Int64, Int64, Int64]:
        which, own = self.episodes.of(rows), self.episodes.fields.get(name)
        lengths = self.episodes.ends[which] - self.episodes.starts[which]
        if own is None:
            return rows, lengths, lengths
        return own.starts[which], lengths + (own.extra or 0), lengths

    def reach(self, name: str) -> Reach:
        """The rows of a field in a sample."""
        rows = self.episodes.fields.get(name)
        return None if rows is not None and rows.extra is None else self.fields[name]

    @cached_property
    def _limits(self) -> tuple[int, int]:
        """The first row of an episode that may be an anchor, and how many rows it must be before
        the last one."""
        first = behind = 0
        limits = zip(self.edges, self.outside, strict=True)
        before, after = (0 if edge == "drop" else outside for edge, outside in limits)
        for name in self.fields:
            reach = self.reach(name)
            if not isinstance(reach, tuple):
                continue
            rows = self.episodes.fields.get(name)
            extra = 0 if rows is None else rows.extra or 0
            # the first row, and the last one, that must lie in the episode
            near = sorted(reach)
            if before is not None and before < len(near):
                first = max(first, -near[before])
            if after is not None and after < len(near):
                behind = max(behind, near[-1 - after] - extra)
        return first, behind

    @cached_property
    def anchors(self) -> Anchors:
        """All rows at which a sample may begin."""
        first, behind = self._limits
        every, starts, lengths = self.every or 1, self.episodes.starts, self.episodes.lengths
        if self._whole:  # beyond which no episode has a row
            every = int(lengths.max())
        if self.chosen is not None:
            starts, lengths = starts[self.chosen], lengths[self.chosen]
        skipped = -(-first // every)
        counts = np.maximum((lengths - 1 - behind) // every - skipped + 1, 0)
        ends = np.cumsum(counts)
        return Anchors(ends, starts + (skipped - (ends - counts)) * every, every, self.chosen)

    def stored(self, name: str, rows: Int64) -> tuple[Int64, Bools | None]:
        reach, own = self.reach(name), self.episodes.fields.get(name)
        if reach is None and own is None:
            return rows, None
        which = self.episodes.of(rows)
        begin = self.episodes.starts[which]
        start = begin if own is None else own.starts[which]
        if own is not None and own.extra is None:
            return start, None
        if reach is None:
            return rows - begin + start, None
        last = self.episodes.ends[which] - begin - 1 + (0 if own is None else own.extra or 0)
        if reach == "last":
            return (start + last)[:, None], np.ones((rows.size, 1), np.bool_)
        near = range(self.most[name] or 0) if reach == "episode" else reach
        wanted = (rows - begin)[:, None] + np.array(near, np.int64)
        inside = np.clip(wanted, 0, last[:, None])
        return inside + start[:, None], inside == wanted

    def zeroed(self, name: str, rows: Int64) -> Bools | None:
        reach = self.reach(name)
        if not isinstance(reach, tuple) or "zero" not in self.edges:
            return None
        inside = self.stored(name, rows)[1]
        assert inside is not None
        before = (rows - self.episodes.starts[self.episodes.of(rows)])[:, None] + np.array(
            reach
        ) < 0
        return ~inside & np.where(before, *(edge == "zero" for edge in self.edges))

    def records(self, name: str, rows: Int64) -> Int64:
        found, zeroed = self.stored(name, rows)[0], self.zeroed(name, rows)
        if zeroed is not None:
            found[zeroed] = -1
        return found.reshape(-1)

    def present(self, name: str, rows: Int64, mask: Bools) -> Bools | None:
        width = self.width(name)
        if width is None:
            return None
        found = np.zeros((rows.size, width), np.bool_)
        inside = self.stored(name, rows[mask])[1]
        assert inside is not None
        found[mask] = inside
        return found

    def rows_read(self, samples: int, block: int) -> int:
        """Of blocks that begin anywhere, also the other rows of the chunks at their ends."""
        named = [reach for reach in map(self.reach, self.fields) if isinstance(reach, tuple)]
        span = max((max(reach) - min(reach) for reach in named), default=0)
        every = self._each
        rows = max(block, every)
        if not self._whole and 0 < self.population * self.every < int(self.episodes.ends[-1]):
            span += block
        return samples * every + -(-samples * every // rows) * span

    @property
    def _each(self) -> int:
        """The rows from one sample to the next, about."""
        if self._whole:
            return max(1, int(self.episodes.ends[-1]) // self.episodes.ends.size)
        return self.every or 1

    def identity(self) -> Mapping[str, str]:
        shown = {name: self.reach(name) for name in self.fields}
        chosen = "" if self.chosen is None else f":{digest(self.chosen.tobytes())}"
        rule = (sorted(shown.items()), self.every, self.edges, self.outside)
        return {
            "episodes": f"{self.episodes.kind}:{self.episodes.digest()}{chosen}",
            "rows": str(rule),
        }

    @property
    def population(self) -> int:
        """Samples that may come."""
        return self.anchors.count if self.every else int(np.count_nonzero(self.anchors.counts))

    def samples(self, count: int) -> int:
        return self.population

    def storage(self, rows: Storage) -> Storage:
        every = self._each if self.every else 0
        # of a sample the rows that are decoded for it alone, where blocks are read
        decoded = rows.sample_bytes * self.rows_read(rows.block, rows.block) // rows.block
        return replace(
            rows,
            count=self.population,
            sample_bytes=decoded,
            block=max(1, rows.block // every) if every else 1,
            ends=self.anchors.before(rows.ends, self.episodes) if every else None,
        )

    def sampler(self, numbers: Sampler, storage: Storage) -> Sampler:
        return Ruled(self, numbers) if self.every else OneOfEach(self, numbers)

    def begins(self, numbers: Int64) -> Int64:
        return self.anchors.rows(numbers)

    def selects(self, name: str, records: Int64, rows: Subset | None) -> Bools:
        """Which of a field's own rows are of the chosen episodes: bool, one for each of
        ``records``. ``rows``: the only rows of the set that are selected, an array of them sorted;
        None for all. An episode's extra row goes with its last one, and a row that is one for the
        whole episode with any of its rows."""
        episodes, own = self.episodes, self.episodes.fields.get(name)
        starts, extra = (episodes.starts, 0) if own is None else (own.starts, own.extra)
        which = np.searchsorted(starts, records, side="right") - 1
        first, end, inside = episodes.starts[which], episodes.ends[which], records - starts[which]
        if extra is None:
            found: Bools = inside == 0
        else:
            found = inside < end - first + extra
            first = np.minimum(first + inside, end - 1)
            end = first + 1
        if self.chosen is not None:
            found &= np.isin(which, self.chosen)
        if rows is not None:
            found &= numbers_below(rows, end) > numbers_below(rows, first)
        return found

    def numbers(self, subset: Subset) -> Subset:
        anchors = self.anchors
        if not isinstance(subset, range) or subset.step != 1 or self.chosen is not None:
            rows = subset_numbers(subset, int(self.episodes.ends[-1]))
            return anchors.numbers(rows, self.episodes)
        bounds = np.array((subset.start, subset.stop))
        which = np.searchsorted(self.episodes.ends, bounds, side="right")
        which = np.minimum(which, self.episodes.ends.size - 1)
        number = -(-(bounds - anchors.shifts[which]) // self.every)
        last = anchors.ends[which]
        low, high = np.clip(number, last - anchors.counts[which], last).tolist()
        return range(low, high)


class OneOfEach(Ruled):
    """One row of each episode, drawn anew in each epoch. ``sampler`` draws among the episodes that
    have rows to begin at."""

    rule: Windows

    @cached_property
    def _able(self) -> Int64:
        return np.flatnonzero(self.rule.anchors.counts)

    def records(self, epoch: int, positions: Int64) -> Int64:
        key = key_of(self.seed, STREAM_ANCHOR, epoch)
        return self._drawn(self._sampler.records(epoch, positions), key, positions)

    def replacements(self, epoch: int, position: int, attempts: int) -> Int64:
        key = key_of(self.seed, STREAM_ANCHOR, epoch, position)
        numbers = self._sampler.replacements(epoch, position, attempts)
        return self._drawn(numbers, key, np.arange(attempts, dtype=np.int64))

    def _drawn(self, numbers: Int64, key: int, draws: Int64) -> Int64:
        """A row of each of the episodes ``numbers``."""
        anchors = self.rule.anchors
        which = self._able[numbers]
        counts = anchors.ends[which] - np.where(which > 0, anchors.ends[which - 1], 0)
        # the product of two numbers below 2**32; an episode is shorter than that
        high = (mix_rows(key, draws) >> np.uint64(32)) * counts.astype(np.uint64) >> np.uint64(32)
        return anchors.rows(anchors.ends[which] - counts + high.astype(np.int64))
