"""Chunked HDF5 sets of every index, read by a reader and by h5py: equal, or refused.

Where a chunk lies is said by an index of the HDF5 library, which has made mistakes. So h5py's own
read is the judge: of every index (single chunk, implicit, fixed array, extensible array, B-trees of
both versions), with every choice of growing axes, file format and filters. tests/sources/
test_chunks.py tries some of the layouts, and with ``--long`` all.
"""

import contextlib
import itertools
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import hdf5plugin
import numpy as np

from asyncreader import FormatError
from asyncreader.pixels.specs import OutputSpec
from asyncreader.sources import Request, open_source
from asyncreader.testing.contract import fill_rows

FORMATS = ("earliest", "v108", "v110", "v112", "v114", "latest")
FILTERS: dict[str, dict[str, Any]] = {
    "plain": {},
    "gzip": {"compression": "gzip"},
    "shuffle, gzip, fletcher32": {"compression": "gzip", "shuffle": True, "fletcher32": True},
    "lzf": {"compression": "lzf"},
    "scaleoffset": {"scaleoffset": 0},
    "blosc": dict(hdf5plugin.Blosc(cname="lz4")),
}
#: Shape and chunk: of one axis to four; the last chunk of an axis is mostly cut off.
SHAPES: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...] = (
    ((23,), (4,)),
    ((11, 9), (3, 2)),
    ((6, 8), (1, 8)),
    ((5, 7, 6), (2, 3, 6)),
    ((7, 4, 5), (7, 1, 2)),
    ((6, 5, 4, 3), (2, 2, 3, 1)),
    ((9, 4, 4, 3), (9, 4, 4, 3)),
    ((4, 4, 3, 40), (2, 4, 1, 7)),
)
#: What may grow, an axis a letter: "n" without limit, "m" to a limit above the shape, "." not.
GROWS = "nm."
#: How a set came to its shape.
HISTORIES = ("written", "grown", "shrunk", "allocated early", "written in part")
#: Of a set that is written in part: what stands for the rest.
FILL = 117


@dataclass(frozen=True)
class Layout:
    """One way to store a set."""

    shape: tuple[int, ...]
    chunk: tuple[int, ...]
    grows: str
    libver: str
    filters: str
    history: str
    dtype: str

    def most(self, extra: int = 2) -> tuple[int | None, ...]:
        """The greatest shape."""
        kinds = {".": 0, "m": extra}
        pairs = zip(self.shape, self.chunk, self.grows, strict=True)
        return tuple(None if g == "n" else n + kinds[g] * c for n, c, g in pairs)

    def begun(self) -> tuple[int, ...]:
        """The shape that it is created with."""
        if self.history not in ("grown", "shrunk"):
            return self.shape
        other = -1 if self.history == "grown" else 1
        pairs = zip(self.shape, self.chunk, self.grows, strict=True)
        return tuple(n if g == "." else max(1, n + other * c) for n, c, g in pairs)

    def write(self, file: h5py.File, name: str, values: np.ndarray) -> None:
        """Store ``values`` in this way."""
        begun = self.begun()
        plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        if self.history == "allocated early":
            plist.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
        data = file.create_dataset(
            name,
            shape=begun,
            dtype=values.dtype,
            chunks=self.chunk,
            maxshape=self.most(),
            dcpl=plist,
            fillvalue=FILL if self.history == "written in part" else None,
            **FILTERS[self.filters],
        )
        if self.history == "written in part":
            for where in data.iter_chunks():
                if zlib.crc32(repr((self, where)).encode()) % 3 == 0:
                    data[where] = values[where]
            return
        first = tuple(slice(0, min(a, b)) for a, b in zip(begun, self.shape, strict=True))
        if self.history == "shrunk":
            data[...] = 1
        data[first] = values[first]
        if begun != self.shape:
            data.resize(self.shape)
            data[...] = values


def layouts() -> Iterator[Layout]:
    """All of them."""
    dtypes = itertools.cycle(("u1", "<u2", ">i4", "<f4", "<u2", "i1", ">f8"))
    for shape, chunk in SHAPES:
        for letters in itertools.product(GROWS, repeat=len(shape)):
            if letters.count("m") > 1 or (len(shape) == 4 and letters.count("n") == 3):
                continue
            for libver, filters in itertools.product(FORMATS, FILTERS):
                for history in HISTORIES:
                    if history in ("grown", "shrunk") and set(letters) == {"."}:
                        continue
                    dtype = next(dtypes)
                    if filters == "scaleoffset" and dtype[1:2] == "f":
                        dtype = "<u2"  # of floats it loses digits
                    yield Layout(shape, chunk, "".join(letters), libver, filters, history, dtype)


def drawn(count: int) -> list[Layout]:
    """So many of the layouts, always the same ones."""
    every = list(layouts())
    picked = np.random.default_rng(len(every)).choice(len(every), count, replace=False)
    return [every[i] for i in sorted(picked.tolist())]


def dims_of(shape: Sequence[int]) -> list[tuple[int, int, int, int] | None]:
    """Orders of the axes that a set of this shape is read by: the number first, and last."""
    return [(1, 2, 3, 4), (4, 1, 2, 3), (2, 3, 4, 1)] if len(shape) == 4 else [None]


def differs(layout: Layout, path: Path) -> str:
    """What came of a layout: "equal", "refused", or what is wrong."""
    values = np.random.default_rng(7).integers(0, 120, layout.shape).astype(layout.dtype)
    with h5py.File(path, "w", libver=layout.libver) as file:
        layout.write(file, "data", values)
    with h5py.File(path) as file:
        judged = file["data"][()]
    if layout.history == "written in part":
        values = np.where(judged == FILL, judged, values)
    if not np.array_equal(judged, values):
        return "h5py itself reads other values"
    for dims in dims_of(layout.shape):
        wanted = judged if dims is None else np.transpose(judged, [axis - 1 for axis in dims])
        try:
            source = open_source(path, Request(labels=None, dims=dims))
        except FormatError:
            return "refused"
        with contextlib.closing(source):
            rows = np.arange(source.facts.count)
            found, _, errors = fill_rows(source, OutputSpec(layout="NHWC"), rows)
            if errors:
                return f"dims {dims}: {errors[0].error}"
            if not np.array_equal(found, wanted):
                wrong = 100 * np.mean(found != wanted)
                return f"dims {dims}: {wrong:.0f} % of the values are wrong"
    return "equal"
