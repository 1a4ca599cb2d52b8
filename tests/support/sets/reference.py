"""What the samples of a set must be, worked out by plain numpy from what was stored.

A :class:`Reference` restates what the pages say of windows, lengths, patches, subsets and views.
It uses nothing of asyncreader: what is served is compared with it.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
from field_kinds import WIDTH, Array, Asked, Numbers
from reader_contract import Row, row_of, same

#: What may be served of a field of a sample: data, ``present`` and length.
Value: TypeAlias = tuple[Array, Any, Any]
#: How an image is moved: left, width, mirrored.
Move: TypeAlias = tuple[int, int, bool]


@dataclass
class Field:
    """A field as it is asked for. ``rows``: of each episode; ``extra``: so many more than episodes
    have, None: one for an episode; ``asked``: parameters of this name; ``reach``: rows relative to
    the anchor, "last", "episode", or None without a window."""

    name: str
    kind: Numbers
    rows: list[list[Array]]
    extra: int | None
    asked: Asked
    reach: Any = None


@dataclass(frozen=True)
class Look:
    """How an image is served: its width, where it is cut, whether it may be mirrored; ``count``: so
    many times, None: once, without an axis for it."""

    width: int = WIDTH
    crop: str = "center"
    flip: bool = False
    count: int | None = None

    def moves(self, random: bool) -> list[Move]:
        """The ways in which it may move an image."""
        room = WIDTH - self.width
        lefts = range(room + 1) if random and self.crop == "random" else [room // 2]
        flips = (False, True) if random and self.flip else (False,)
        return [(left, self.width, flip) for left in lefts for flip in flips]


@dataclass(frozen=True)
class Patch:
    """Parts of volumes: their shape on the ``axes`` of a row that are cut, and where they lie."""

    shape: tuple[int, ...]
    axes: tuple[int, ...]
    at: str
    step: tuple[int, ...]

    def corners(self, extent: tuple[int, ...]) -> list[tuple[int, ...]]:
        """Where the patches of a volume begin; of random ones the centre."""
        room = [extent[axis] - n for axis, n in zip(self.axes, self.shape, strict=True)]
        if self.at != "grid":
            return [tuple(most // 2 for most in room)]
        lines = ([*range(0, most, n), most] for most, n in zip(room, self.step, strict=True))
        return list(itertools.product(*lines))

    def cut(self, row: Array, corner: Iterable[int]) -> Array:
        """The patch of a volume at a corner."""
        where = [slice(None)] * row.ndim
        for axis, at, n in zip(self.axes, corner, self.shape, strict=True):
            where[axis] = slice(at, at + n)
        return row[tuple(where)]


def stretches(values: Array, asked: Asked, random: bool) -> Iterator[tuple[Array, np.int64]]:
    """The values of a sample of any length, filled up, and how many; each that may be drawn."""
    most = asked["max_length"]
    room = max(0, len(values) - most) if random and asked.get("overlong") == "random" else 0
    for start in range(room + 1):
        part = values[start : start + most]
        out = np.full((most, *values.shape[1:]), asked.get("pad_value", 0), values.dtype)
        out[: len(part)] = part
        yield out, np.int64(len(part))


@dataclass
class Reference:
    """A set and what is asked of it.

    ``lengths``: rows of each episode, of a set without episodes of each of its files; ``sources``:
    the set of a mix that each of these is in; ``label``: that of row t of episode e; ``subset``,
    ``episodes``: what of it is served, None for all.
    """

    fields: list[Field]
    lengths: list[int]
    episodic: bool
    sources: list[int] | None
    label: Callable[[int, int], Any] | None
    every: Any = 1
    edges: tuple[str, str] = ("drop", "drop")
    outside: tuple[int | None, int | None] = (None, None)
    patch: Patch | None = None
    look: Look = Look()
    views: tuple[Look, ...] = ()
    subset: Any = None
    episodes: list[int] | None = None
    starts: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self.starts = [0, *itertools.accumulate(self.lengths)]

    @property
    def whole(self) -> bool:
        """Whether a sample is a whole episode."""
        return any(one.reach == "episode" for one in self.fields)

    @property
    def by_episode(self) -> bool:
        """Whether there is one sample of each episode."""
        return self.whole or self.every == "episode"

    def where(self, index: int) -> tuple[int, int]:
        """The episode of a record, and its row there."""
        episode = int(np.searchsorted(self.starts, index, "right")) - 1
        return episode, index - self.starts[episode]

    def source(self, unit: Any) -> int | None:
        """The set of a mix that a sample of the population is in."""
        if self.sources is None:
            return None
        return self.sources[unit if isinstance(unit, int) else self.where(unit[0])[0]]

    # -- which samples there are -----------------------------------------------------------------

    def fits(self, episode: int, row: int) -> bool:
        """Whether a window may begin at a row."""
        if self.every != "episode" and row % self.every:
            return False
        for one in self.fields:
            if isinstance(one.reach, tuple) and one.extra is not None:
                rows, last = [row + n for n in one.reach], self.lengths[episode] + one.extra
                outside = sum(n < 0 for n in rows), sum(n >= last for n in rows)
                for count, edge, most in zip(outside, self.edges, self.outside, strict=True):
                    if count > 0 and (edge == "drop" or (most is not None and count > most)):
                        return False
        return True

    def population(self) -> list[Any]:
        """Samples in their order without shuffle: (record, corner), or, where one row of each
        episode is drawn, numbers of episodes."""
        chosen = self.episodes or range(len(self.lengths))
        numbers = np.arange(len(self.lengths) if self.by_episode else self.starts[-1])
        numbers = numbers if self.subset is None else numbers[self.subset]
        if self.by_episode:
            order = chosen if self.subset is None else [n for n in numbers.tolist() if n in chosen]
            if self.whole:
                return [(self.starts[n], ()) for n in order]
            return [n for n in order if any(self.fits(n, t) for t in range(self.lengths[n]))]
        rows = [r for n in chosen for r in range(self.starts[n], self.starts[n + 1])]
        if self.subset is not None:
            rows = [r for r in numbers.tolist() if r in rows]
        if self.patch is None:
            return [(r, ()) for r in rows if self.fits(*self.where(r))]
        return [(r, at) for r in rows for at in self.patch.corners(self._volume(r).shape)]

    def unit(self, row: Row) -> Any:
        """What of the population a served sample is."""
        if self.every == "episode" and not self.whole:
            return self.where(row.record)[0]
        if self.patch is not None and self.patch.at == "random":
            return row.record, self.patch.corners(self._volume(row.record).shape)[0]
        return row.record, () if row.place is None else tuple(row.place.tolist())

    def uncut(self, episode: int) -> list[int]:
        """The extents of a volume along the axes that a patch takes whole."""
        assert self.patch is not None
        shape = self.fields[0].rows[episode][0].shape
        return [n for axis, n in enumerate(shape) if axis not in self.patch.axes]

    def _volume(self, index: int) -> Array:
        episode, row = self.where(index)
        return self.fields[0].rows[episode][row]

    # -- what a sample is ------------------------------------------------------------------------

    def check(self, batch: Any) -> None:
        """Each row of a batch is what was stored; those that the mask leaves out are zeros."""
        for k, valid in enumerate(batch.mask.tolist()):
            row = row_of(batch, k)
            if valid:
                self.check_row(row)
            else:
                assert row.record == -1
                assert not any(part.any() for part in row.data)

    def check_row(self, row: Row, random: bool = True) -> None:
        """A served row is what was stored; without ``random`` crops and stretches are not drawn."""
        episode, place = self.where(row.record)
        still = self.look.moves(False)[0]
        first = [next(self._values(one, row, False, still)) for one in self.fields]
        assert (row.place is None) == (self.patch is None)
        expected = {
            "episode": episode if self.episodic else None,
            "source": None if self.sources is None else self.sources[episode],
            "label": None if self.label is None else self.label(episode, place),
            "present": [value[1] for value in first],
            "lengths": [value[2] for value in first],
        }
        for name, value in expected.items():
            if isinstance(value, list):
                value = tuple(value) if any(part is not None for part in value) else None
            assert same(getattr(row, name), value), f"{name}: {getattr(row, name)} for {value}"
        data, looks = iter(row.data), (self.views if random else ()) or (self.look,)
        moving = any(one.kind.moves for one in self.fields) and looks != (Look(),)
        moved: list[list[tuple[Field, Array]]] = [[] for _ in looks]
        starts: dict[Any, set[int]] = {}
        for one in self.fields:
            if moving and one.kind.moves:
                for view in moved:
                    view.append((one, next(data)))
                continue
            array = next(data)
            values = enumerate(self._values(one, row, random, still))
            right = {n for n, value in values if same(array, value[0], "scale" in one.asked)}
            # a stretch of a whole episode is the same for all its fields
            rule = len(one.rows[episode]), one.asked.get("max_length"), one.asked.get("overlong")
            which = rule if one.reach == "episode" else one.name
            starts[which] = right & starts.get(which, right)
            assert starts[which], f"field {one.name!r} of {row.record}: {array!r}"
        for look, view in zip(looks, moved, strict=True):
            for number in range(look.count or 1):
                parts = [(one, a if look.count is None else a[number]) for one, a in view]
                moves = look.moves(random)
                good = any(self._moved(row, parts, random, move) for move in moves)
                assert good, f"view {number} of {row.record}: {[part for _, part in parts]!r}"
        assert next(data, None) is None

    def _moved(self, row: Row, parts: list[tuple[Field, Array]], random: bool, move: Move) -> bool:
        """Whether all fields of a view are those of an image that was moved so."""
        return all(
            any(same(part, value[0]) for value in self._values(one, row, random, move))
            for one, part in parts
        )

    def _values(self, one: Field, served: Row, random: bool, move: Move) -> Iterator[Value]:
        """What a field of a sample may be: several where a stretch of a long sample is drawn."""
        episode, row = self.where(served.record)
        rows = one.rows[episode]

        def value(stored: Array) -> Array:
            stored = stored if self.patch is None else self.patch.cut(stored, served.place)
            return one.kind.serve(one.kind.move(stored, *move), one.asked)

        if one.reach is None or one.extra is None:
            data = value(rows[0 if one.extra is None else row])
            parts = stretches(data, one.asked, random) if one.kind.ragged else [(data, None)]
            yield from ((part, None, length) for part, length in parts)
        elif one.reach == "episode":
            for part, length in stretches(np.stack(list(map(value, rows))), one.asked, random):
                yield part, np.arange(len(part)) < length, length
        else:
            wanted = np.array([len(rows) - 1] if one.reach == "last" else row + np.array(one.reach))
            inside, lengths = np.clip(wanted, 0, len(rows) - 1), None
            window = [value(rows[at]) for at in inside]
            if one.kind.ragged:
                cut = [next(stretches(part, one.asked, False)) for part in window]
                window, lengths = [part for part, _ in cut], np.array([n for _, n in cut])
            data = np.stack(window)
            zeros = [self.edges[int(at > 0)] == "zero" for at in wanted] & (inside != wanted)
            data[zeros] = 0
            if lengths is not None:
                lengths[zeros] = 0
            yield data, inside == wanted, lengths
