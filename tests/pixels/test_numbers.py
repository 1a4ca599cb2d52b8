"""Numbers of rows that are no pictures, and members of structured rows, against plain numpy."""

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncreader.errors import ParamsError
from asyncreader.pixels import kernels
from asyncreader.pixels.numbers import LONG, Numbers, flat_dtype
from asyncreader.pixels.specs import OutputSpec, SampleSpec

KINDS = ("?", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8")
#: Whole numbers and floats at which casts differ: ends of ranges, halves, what rounds twice.
EDGES: dict[str, list[Any]] = {
    "f": [0.0, -0.0, 1.0, -1.5, 2.5, 0.1, 65504.0, 65519.9, 65520.0, 6e-8, 2.98e-8, 6.1e-5, 1e-300,
          3.4e38, 3.5e38, 2.0**31, 2.0**53 + 2, 2.0**63, 2.0**64, -(2.0**63), 255.0, 256.0, -129.0,
          1 + 2**-11, 1 + 2**-11 + 2**-30, np.inf, -np.inf, np.nan],
    "i": [0, 1, -1, 127, -128, 2**15 - 1, -(2**15), 2**24 + 1, 2**31 - 1, 2**53 + 1, 2**63 - 1,
          -(2**63), 2**60 + 2**36 + 1, 65519, 65520],
    "u": [0, 1, 2, 255, 256, 2**16 - 1, 2**24 + 1, 2**32 - 1, 2**63, 2**64 - 1, 2**63 + 2**39 + 1],
    "b": [False, True],
}  # fmt: skip


def edges(dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """Values at which a cast of ``dtype`` may go wrong."""
    values = EDGES[dtype.kind]
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        values = [v for v in values if limits.min <= v <= limits.max]
    with np.errstate(over="ignore"):
        return np.array(values, dtype)


def cast(values: Any, dtype: Any, scale: tuple[float, float] | None = None) -> tuple[Any, int]:
    """Each of ``values`` as a row of one number of ``dtype``, and the first that it cannot hold."""
    stored, made = values.dtype, np.dtype(dtype)
    out = np.zeros(values.size, made)
    table = np.array([[0, stored.itemsize, ord(stored.kind), not stored.isnative, 1,
                       scale is None and stored.newbyteorder("=") == made]])  # fmt: skip
    bad = np.full(2, -1, np.int64)
    a, b = (np.array([one]) for one in scale or (1.0, 0.0))
    kernels.cast_numbers(
        values.ctypes.data + np.arange(values.size) * stored.itemsize, 1, stored.itemsize, table,
        ord(made.kind), made.itemsize, scale is not None, a, b, out.ctypes.data,
        np.arange(values.size), made.itemsize, bad,
    )  # fmt: skip
    return out, int(bad[0])


def held_by(made: str, one: Any, right: Any) -> bool:
    """Whether a dtype can hold a number, which numpy casts to ``right``."""
    if np.dtype(made).kind == "f":
        return bool(np.isfinite(right) or not np.isfinite(one))
    if not np.isfinite(one) or one != np.floor(one):
        return False
    exact = int(one)
    if made == "?":
        return exact in (0, 1)
    return bool(np.iinfo(made).min <= exact <= np.iinfo(made).max)


@pytest.mark.parametrize("stored", KINDS)
def test_casts_are_numpys(stored: str) -> None:
    """Every number becomes what numpy's astype makes of it, to the bit, and one that the dtype
    cannot hold is noted."""
    for made, order, one in itertools.product(KINDS, "=>", edges(np.dtype(stored))):
        value = np.array([one], np.dtype(stored).newbyteorder(order))
        with np.errstate(all="ignore"):
            right = value.astype(made)
        out, bad = cast(value, made)
        fits, case = held_by(made, one, right[0]), (one, stored, order, made)
        assert (bad < 0) == fits, case
        if fits:
            equal = out.tobytes() == right.tobytes()
            assert equal or (np.isnan(out[0]) and np.isnan(right[0])), case


@pytest.mark.parametrize("made", ["f2", "f4", "f8"])
@pytest.mark.parametrize("stored", KINDS)
def test_scaled_numbers_are_numpys(stored: str, made: str) -> None:
    """A number is cast to the work dtype (float64 for float64, else float32), multiplied and added
    to there, and then cast."""
    values, work = edges(np.dtype(stored)), np.dtype("f8" if made == "f8" else "f4")
    a, b = 0.37, -1.25
    with np.errstate(all="ignore"):
        right = (values.astype(work) * work.type(a) + work.type(b)).astype(made)
    out, _ = cast(values, made, (a, b))
    assert np.array_equal(out, right, equal_nan=True)


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_members_of_rows_are_numpys(data: st.DataObject) -> None:
    """Members at any offset, also one over the other, of any kind and order, into any rows of a
    slot, are what numpy's fields are."""
    kinds = data.draw(st.lists(st.sampled_from(KINDS), min_size=1, max_size=6))
    swaps = [data.draw(st.sampled_from("<>")) for _ in kinds]
    size = data.draw(st.integers(8, 40))
    offsets = [data.draw(st.integers(0, size - 8)) for _ in kinds]
    names = [f"m{i}" for i in range(len(kinds))]
    formats = [np.dtype(one).newbyteorder(swap) for one, swap in zip(kinds, swaps, strict=True)]
    dtype = np.dtype({"names": names, "formats": formats, "offsets": offsets, "itemsize": size})
    each, count = data.draw(st.sampled_from([(), (3,), (2, 2)])), data.draw(st.integers(1, 7))
    seed = np.random.default_rng(data.draw(st.integers(0, 99)))
    raw = seed.integers(0, 256, (count, int(np.prod(each)) * size), dtype=np.uint8)
    stored = raw.reshape(-1).view(dtype).reshape(count, *each)
    for name in names:  # a bool is 0 or 1
        if stored.dtype[name].kind == "b":
            stored[name] = seed.integers(0, 2, stored.shape)
    asked = tuple(data.draw(st.permutations(names))[: data.draw(st.integers(1, len(names)))])
    rows = seed.permutation(count + 2)[:count]
    fill = Numbers(SampleSpec(each, dtype, None), OutputSpec(members=asked), "set")
    common = np.result_type(*(stored.dtype[name].newbyteorder("=") for name in asked))
    assert fill.dtype == common
    with np.errstate(all="ignore"):
        right = np.stack([stored[name].astype(common) for name in asked], axis=-1)
    out = np.zeros((count + 2, *each, len(asked)), common)
    assert fill.put_all(raw.ctypes.data + np.arange(count) * raw.shape[1], rows, out) is None
    assert np.array_equal(out[rows], right, equal_nan=common.kind == "f")
    assert not out[np.setdiff1d(np.arange(count + 2), rows)].any()


def _rows(dtype: Any) -> SampleSpec:
    return SampleSpec((), flat_dtype(np.dtype(dtype)), None)


PARTICLE = [("pt", ">f4"), ("id", "i8"), ("name", "S5"), ("hits", "f4", (3,)),
            ("at", [("x", "f8"), ("in", [("y", "u2")])])]  # fmt: skip


def test_members_that_are_no_numbers() -> None:
    """The error of a member that cannot be served lists all, and says which could be."""
    with pytest.raises(ParamsError, match="'name' does not hold plain numbers") as raised:
        Numbers(_rows(PARTICLE), OutputSpec(members=("name",)), "set")
    assert "hits (float32, 3), at.x (float64), at.in.y (uint16)" in str(raised.value)
    assert 'members=["pt", "id"]' in str(raised.value)


@pytest.mark.parametrize("made", ["f2", "f4", "f8", "i8"])
@pytest.mark.parametrize("stored", [*KINDS, ">u2", ">f4"])
def test_long_rows_are_what_short_ones_are(stored: str, made: str) -> None:
    """Rows that numpy casts have the bits that compiled code gives the same numbers in short rows,
    normalised or not."""
    rng, kind = np.random.default_rng(0), np.dtype(stored)
    bits = rng.integers(0, 256, (3, LONG * kind.itemsize), np.uint8)
    values = np.concatenate((bits.view(kind), np.resize(edges(kind), (1, LONG))))
    if kind == np.bool_:
        values = (bits[:, :LONG] > 99).view(kind)
    values = np.ascontiguousarray(values)
    rows = np.arange(len(values))[::-1].copy()
    for more in ({}, {"scale": 0.3, "mean": (2.0,), "std": (1.7,)}):
        if np.dtype(made).kind != "f" and more:
            continue
        wanted = OutputSpec(dtype=np.dtype(made), **more)  # type: ignore[arg-type]
        found = []
        for width in (LONG, LONG // 8):
            short = values.reshape(-1, width)
            one = Numbers(SampleSpec((width,), kind, None), wanted, "")
            if one.narrows:
                continue
            out = np.zeros(short.shape, made)
            at = short.ctypes.data + np.arange(len(short)) * short.strides[0]
            assert one.put_all(at, np.arange(len(short)) if width < LONG else rows, out) is None
            found.append(out)
        if found:
            assert found[0][rows].tobytes() == found[1].tobytes()
