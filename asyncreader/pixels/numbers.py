"""Rows that are no pictures: their numbers, or members of structured ones, cast and normalised.

A structured row (a compound of HDF5, a structured array of numpy) is read as its bytes. Its dtype
here is flat: a member inside another has the name ``outer.inner``, and what is no number of at most
64 bits is bytes (``V``), which are not served.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, Final, NamedTuple

import numpy as np

from ..errors import ParamsError, SampleError
from ..system.array_types import Array, Bools, Int64, UInt64
from ..system.keyed_random import uniforms
from ..system.memory import address_of, bytes_at
from ..system.text import times
from . import kernels
from .row_maker import Affine, RowMaker, RowView, Target, arrays_at, load
from .specs import OutputSpec, SampleSpec, after, does_not_fit, holds_all
from .tables import RUN, numbers

#: The most members of a structured row, and compounds inside each other.
MOST_MEMBERS: Final = 4096
DEEPEST: Final = 8
#: Numbers of a row that numpy casts: a call takes 2 us, the kernel 5 ns for each number.
LONG: Final = 4096
#: Members that an error lists.
_LISTED: Final = 40


class Member(NamedTuple):
    """A run of numbers in an element of a row: ``offset`` in bytes, dtype and shape. ``name``: ""
    of a row that is not structured."""

    name: str
    offset: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...] = ()

    @property
    def numbers(self) -> int:
        """How many numbers."""
        return math.prod(self.shape)


def is_number(dtype: np.dtype[Any]) -> bool:
    """Whether a dtype is that of numbers that are read."""
    return dtype.kind in "buif" and dtype.itemsize <= 8


def record_dtype(members: Iterable[Member], size: int) -> np.dtype[Any]:
    """The dtype of structured rows of ``size`` bytes. ValueError where a member has no name or that
    of another one, or lies outside, or where there are too many."""
    found = list(members)
    names = [one.name for one in found]
    if not all(names) or len(set(names)) < len(names):
        raise ValueError("a member has no name, or that of another")
    for one in found:
        if one.offset < 0 or one.offset + one.numbers * one.dtype.itemsize > size:
            raise ValueError(f"member {one.name!r} lies outside of its row")
    if not 0 < len(found) <= MOST_MEMBERS:
        raise ValueError(f"{len(found)} members, where 1 to {MOST_MEMBERS} are read")
    formats = [(one.dtype, one.shape) if one.shape else one.dtype for one in found]
    offsets = [one.offset for one in found]
    named = {"names": names, "formats": formats, "offsets": offsets, "itemsize": size}
    return np.dtype(named)  # type: ignore[call-overload,no-any-return]


def flat_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """A structured dtype of numpy with the members of those inside; ValueError as
    :func:`record_dtype`."""
    return record_dtype(_inside(dtype, "", 0, DEEPEST), dtype.itemsize)


def _inside(dtype: np.dtype[Any], prefix: str, start: int, depth: int) -> Iterator[Member]:
    for name in dtype.names or ():
        one, offset = dtype.fields[name][:2]  # type: ignore[index]
        if one.names is not None and depth:
            yield from _inside(one, f"{prefix}{name}.", start + offset, depth - 1)
            continue
        base, shape = one.subdtype or (one, ())
        if not is_number(base):
            base, shape = np.dtype((np.void, one.itemsize)), ()
        yield Member(prefix + name, start + offset, base, shape)


def members_of(dtype: np.dtype[Any]) -> list[Member]:
    """The members of a flat structured dtype."""
    return list(_inside(dtype, "", 0, 0))


def listed(dtype: np.dtype[Any], member: str | None = None) -> str:
    """The members of a structured dtype in words, or one of them: names, dtypes and shapes."""
    members = [one for one in members_of(dtype) if member in (None, one.name)]
    words = [
        f"{one.name} ({one.dtype.name if is_number(one.dtype) else 'no number'}"
        + (f", {times(one.shape)})" if one.shape else ")")
        for one in members[:_LISTED]
    ]
    more = len(members) - len(words)
    return ", ".join(words) + (f" and {more} more" if more else "")


def _chosen(
    members: list[Member], asked: str | tuple[str, ...] | None, dtype: np.dtype[Any], path: str
) -> list[Member]:
    """The members that are asked for. ParamsError where there are none of these names, or where
    they do not fit beside each other."""
    there = {one.name: one for one in members}
    chosen = [asked] if isinstance(asked, str) else list(asked or ())
    found = [there[name] for name in chosen if name in there]
    missing = [name for name in chosen if name not in there]
    odd = [one.name for one in found if not is_number(one.dtype)]
    arrays = [one.name for one in found if one.shape and len(found) > 1]
    if asked is None:
        wrong = "the rows are structured: members says which of theirs to serve"
    elif missing:
        wrong = f"no member {missing[0]!r} in these rows"
    elif odd:
        wrong = f"member {odd[0]!r} does not hold plain numbers"
    elif arrays:
        wrong = f"member {arrays[0]!r} holds an array, which is served alone"
    else:
        return found
    numbers = [one.name for one in members if is_number(one.dtype) and not one.shape][:2]
    example = ", ".join(f'"{name}"' for name in numbers or ["NAME"])
    raise ParamsError(
        wrong,
        path=path,
        found=listed(dtype),
        hint=f'members=[{example}], or data_field="FIELD.NAME" for one as a field of its own',
    )


class Numbers(RowMaker):
    """Rows that are no pictures: their numbers, or members of them, cast and normalised."""

    def __init__(self, stored: SampleSpec, wanted: OutputSpec, path: str) -> None:
        assert stored.shape is not None
        each, self._item = 1, stored.row_bytes
        self._members, shape = [Member("", 0, stored.dtype, stored.shape)], stored.shape
        if stored.columns is not None:
            size, shape = stored.dtype.itemsize, (len(stored.columns),)
            self._members = [Member("", one * size, stored.dtype) for one in stored.columns]
        if stored.dtype.names is not None:
            each, self._item = math.prod(stored.shape), stored.dtype.itemsize
            asked = wanted.members if stored.members is None else stored.members
            self._members = _chosen(members_of(stored.dtype), asked, stored.dtype, path)
            alone = len(self._members) == 1 and (isinstance(asked, str) or self._members[0].shape)
            inner = self._members[0].shape if alone else (len(self._members),)
            shape = (*stored.shape, *inner)
        kinds = [one.dtype for one in self._members]
        dtype = wanted.dtype or np.result_type(*(kind.newbyteorder("=") for kind in kinds))
        narrows = not all(holds_all(kind, dtype) for kind in kinds)
        super().__init__(stored, wanted, path, dtype, narrows)
        self._check(shape)
        self.row_shape = after(wanted.steps, shape)
        self._affine = Affine(wanted, dtype)
        whole = stored.dtype.names is None and stored.columns is None
        self.as_stored = whole and stored.dtype == dtype and not (wanted.affine or wanted.steps)
        self.kernel = "copy_batches" if self.as_stored else ""
        #: whether compiled code knows all dtypes, and nothing else is to be done
        self._compiled = all(is_number(kind) for kind in kinds) and not wanted.steps
        #: the kernel normalises float16 in float32, and makes all its NaN one
        long = self._members[0].numbers >= LONG and stored.dtype.names is None
        half = "e" in [kind.char for kind in kinds] or (wanted.affine and dtype.itemsize < 4)
        self._by_numpy = long and self._compiled and not narrows and not half
        runs = []
        for one, kind in zip(self._members, kinds, strict=True):
            copied = kind.newbyteorder("=") == dtype and not wanted.affine
            run = one.offset, kind.itemsize, ord(kind.kind), not kind.isnative, one.numbers, copied
            runs.append(run)
        served = ord(dtype.kind), dtype.itemsize, wanted.affine
        affine = self._affine.scale, self._affine.shift
        #: what the kernel takes besides addresses
        self._terms = each, self._item, numbers(np.array(runs, RUN)), *served, *affine
        if self._compiled and not self.as_stored:
            load("cast_numbers")

    def _check(self, shape: tuple[int, ...]) -> None:
        """ParamsError where something is wanted of samples of ``shape`` that needs pictures, or
        other means than there are numbers."""
        asked = [name for name in ("size", "flip", "views") if getattr(self.wanted, name)]
        if asked:
            need = "needs" if len(asked) == 1 else "need"
            raise ParamsError(
                f"{' and '.join(asked)} {need} images",
                path=self.path,
                found=f"samples of shape {shape}, {self.dtype}",
                hint="images are (N, H, W, C), grey ones also (N, H, W, 1), or (N, H, W) of "
                "uint8; num_dim, h_dim, w_dim and cha_dim name the axes of 4-D data",
            )
        last = shape[-1] if shape else 1
        for name, values in (("mean", self.wanted.mean), ("std", self.wanted.std)):
            if len(values) not in (1, last):
                raise ParamsError(
                    f"{name} has one value, or one for each number of the last axis",
                    path=self.path,
                    found=f"{len(values)} values for samples of shape {shape}",
                    expected="1" if last == 1 else f"1 or {last}",
                    hint="those of each channel need images: num_dim, h_dim, w_dim and cha_dim "
                    "name the axes of 4-D data",
                )

    def put(self, sample: Array, view: RowView) -> None:
        if self._compiled:
            whole = np.ascontiguousarray(sample)
            wrong = self.put_all(np.array([whole.ctypes.data]), np.zeros(1, np.int64), view.out)
            if wrong is not None:
                raise wrong[1]
            return
        with self.checked(sample):
            self._affine.into(sample, view.out)
        self.run_last_steps(view.out, view.row)

    def place(self, target: Target, which: Int64, addresses: Int64) -> None:
        if not self._compiled:
            super().place(target, which, addresses)
            return
        wrong = self.put_all(addresses, target.rows[which], target.out)
        if wrong is not None:
            raise target.locate(wrong[1], int(which[wrong[0]]))

    def put_all(self, addresses: Int64, rows: Int64, out: Array) -> tuple[int, ParamsError] | None:
        """Write stored rows at ``addresses`` to ``rows`` of ``out``, in one compiled call; long
        ones that any dtype holds by numpy, which has a loop of its own for each pair of dtypes.

        Returns the first of them with a number that the dtype cannot hold, and the error.
        """
        if self._by_numpy:
            self._put_long(addresses, rows, out)
            return None
        bad = np.full(2, -1, np.int64)
        where = address_of(out), rows, self.row_bytes
        kernels.cast_numbers(addresses, *self._terms, *where, bad)
        i, offset = bad.tolist()
        return None if i < 0 else (i, self._wrong(int(addresses[i]) + offset, offset % self._item))

    def _put_long(self, addresses: Int64, rows: Int64, out: Array) -> None:
        made = out.reshape(-1, *self.row_shape)
        with np.errstate(all="ignore"):
            for data, row in zip(arrays_at(addresses, self._item), rows.tolist(), strict=True):
                values = data.view(self.stored.dtype).reshape(self.row_shape)
                self._affine.into(values, made[row])

    def _wrong(self, address: int, offset: int) -> ParamsError:
        """The error of the number at ``address``, ``offset`` bytes behind the element's start."""
        inside = (
            one
            for one in self._members
            if 0 <= offset - one.offset < one.numbers * one.dtype.itemsize
        )
        one = next(inside)
        value = bytes_at(address, one.dtype.itemsize).copy().view(one.dtype)
        error = does_not_fit(value, one.dtype, self.dtype, self.path)
        if one.name:
            error.what = f"member {one.name!r}: {error.what}"
        return error


# -- samples of different length ----------------------------------------------------------------

#: The draw of ``overlong="random"``; crops have the first 40, mirroring the last of 64.
LENGTH_DRAW: Final = 62
#: Values that are read together: some numbers for each are in memory meanwhile.
TOGETHER: Final = 1 << 17
#: Rows of fewer bytes are filled with padding from their beginning: that takes less time than to go
#: from row to row.
WHOLE: Final = 4096


class Stretches(NamedTuple):
    """What is served of samples: ``served`` values from ``starts`` on, int64 (n,) each."""

    starts: Int64
    served: Int64

    @classmethod
    def of(
        cls,
        wanted: OutputSpec,
        starts: Int64,
        lengths: Int64,
        keys: UInt64,
        among: Int64 | None = None,
    ) -> Stretches:
        """Those of samples that begin at ``starts``, with ``lengths`` values each. A random one is
        drawn by ``keys``, among so many values: fields of one episode have one draw."""
        assert wanted.max_length is not None
        most = wanted.max_length
        if wanted.overlong == "random":
            room = np.maximum((lengths if among is None else among) - most, 0)
            drawn = uniforms(np.ascontiguousarray(keys), LENGTH_DRAW) * (room + 1)
            starts = starts + np.minimum(drawn.astype(np.int64), room)
        return cls(starts, np.minimum(lengths, most))

    def pick(self, which: Bools) -> Stretches:
        """Those of some of the samples."""
        return Stretches(self.starts[which], self.served[which])

    def pieces(self, rows: Int64, most: int) -> Iterator[tuple[Int64, Int64, Int64]]:
        """The values, some at a time, of samples that go to ``rows`` of ``most`` values: how many
        of each sample (n,), their numbers, and their places among the values of all rows; int64.
        """
        ends = np.cumsum(self.served)
        begins, total = ends - self.served, int(ends[-1]) if ends.size else 0
        records, places = self.starts - begins, rows * most - begins
        for low in range(0, total, TOGETHER):
            high = min(low + TOGETHER, total)
            counts = np.maximum(np.minimum(ends, high) - np.maximum(begins, low), 0)
            every = np.arange(low, high, dtype=np.int64)
            yield counts, np.repeat(records, counts) + every, np.repeat(places, counts) + every

    def pad(self, out: Array, rows: Int64, value: Array) -> None:
        """Fill up ``rows`` of ``out`` (B, max_length, ...) behind what is served; then read it."""
        most = out.shape[1]
        if rows.size and out[0].nbytes < WHOLE:
            behind = bool((np.diff(rows) == 1).all())  # as in most batches
            out[slice(rows[0], rows[0] + rows.size) if behind else rows] = value
            return
        for row, served in zip(rows.tolist(), self.served.tolist(), strict=True):
            if served < most:
                out[row, served:] = value


def too_long(wanted: OutputSpec, length: int) -> SampleError:
    """The error of a sample that is longer than ``overlong="error"`` allows."""
    return SampleError(
        "a sample is longer than max_length",
        found=f"{length:,}",
        expected=f"at most {wanted.max_length:,}",
        hint='overlong="cut" or "random" serves a part of such samples',
    )


class Ragged(RowMaker):
    """Numbers of different length, cut and filled up to one; ``values`` makes one of a row."""

    def __init__(self, stored: SampleSpec, wanted: OutputSpec, path: str) -> None:
        # steps work on a whole sample
        self.values = Numbers(replace(stored, ragged=False), replace(wanted, steps=()), path)
        if wanted.max_length is None:
            raise ParamsError(
                "the stored samples differ in length, but all samples of a batch have one shape",
                path=path,
                hint="pass max_length",
            )
        super().__init__(stored, wanted, path, self.values.dtype, self.values.narrows)
        self.row_shape = (wanted.max_length, *after(wanted.steps, self.values.row_shape))
        load("copy_runs")
        self.pad  # noqa: B018 - checked when the set is opened
